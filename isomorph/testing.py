"""Checks for operators, one's own and those of other packages.

:func:`check_operator` reads an operator's declaration, then runs each of its examples in every backend that
is installed, forward and backward, and compares with the float64 reference:

    from isomorph.testing import check_operator

    def test_my_operator():
        check_operator("my_operator")

The smaller pieces serve tests of whole plans: :func:`sample_inputs`, :func:`order_one_weights`,
:func:`sample_sizes`.
"""

from isomorph.agreement.check import Report, check_operator
from isomorph.agreement.compare import Comparison, compare_gradients, compare_outputs
from isomorph.agreement.samples import order_one_weights, sample_inputs, sample_sizes

__all__ = [
    "Comparison",
    "Report",
    "check_operator",
    "compare_gradients",
    "compare_outputs",
    "order_one_weights",
    "sample_inputs",
    "sample_sizes",
]
