"""How far a backend in finite precision may be from the float64 reference.

What rounding does to a network is measured: the reference runs again with every result inside moved at random, as far
as rounding may move it (:mod:`isomorph.agreement.rounding`), and an output may be off by :data:`MARGIN` times the
largest change. Gradients likewise, in a differentiator's double precision, by :data:`GRADIENT_MARGIN`.

One operator has bounds in closed form besides. Its values: ``4 eps sqrt(K) max(1, max |y_ref|)`` with K its longest
reduction, and for each layer norm inside it ``eps max |x| / sigma``, where ``sigma = sqrt(smallest variance of a
row + eps of the norm)``: what is lost when the mean of a row is far larger than its spread. Its gradients:
``4 eps sqrt(K rows) max |g_ref|``, the maximum over its parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from isomorph.agreement.rounding import RUNS, evaluate_rounded
from isomorph.backends.reference import primitives as numpy_primitives
from isomorph.backends.reference.build import ReferenceNetwork
from isomorph.plan import Node, Plan
from isomorph.primitives import Primitives
from isomorph.trace.build import parameter_rows, trace
from isomorph.trace.program import Program

Array = NDArray[Any]

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance from 1 to the next number of each dtype."""
SMALLEST_NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
"""Below it numbers of a dtype lose digits, or become zero."""

MARGIN = 8
"""Bound of values, in units of the largest change that random rounding made."""
GRADIENT_MARGIN = 16
"""The same of gradients, which come through twice as many operations, whose order backends choose freely."""


class NodeBound(NamedTuple):
    """The bound of one node.

    Attributes:
        name, operation: the node.
        reduction: K, the length of its longest sum.
        largest: ``max |y_ref|`` over its outputs.
        layer_norm: ``max |x| / sigma`` summed over the layer norms inside.
        bound: how far its values may be off.
    """

    name: str
    operation: str
    reduction: int
    largest: float
    layer_norm: float
    bound: float


class NumericBound(NamedTuple):
    """The bound of a network, and the reference's answer that it was measured on.

    Attributes:
        total: how far any output may be off, the largest of ``by_output``.
        by_output: how far each may be, by name.
        nodes: what each node alone may be off by, in closed form.
        outputs: the reference's outputs by name, float64.
        program: the trace at the inputs' sizes.
    """

    total: float
    by_output: dict[str, float]
    nodes: tuple[NodeBound, ...]
    outputs: dict[str, Array]
    program: Program

    @property
    def summed(self) -> float:
        """The sum of the nodes' bounds in closed form: the bound of a single operator's example."""
        return sum(node.bound for node in self.nodes)


def numeric_bound(
    plan: Plan,
    weights: Mapping[str, Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    dtype: str = "float32",
) -> NumericBound:
    """Run the reference and state how far a backend computing in ``dtype`` may be from it.

    Args:
        plan: the network.
        weights: arrays by parameter path.
        inputs: by position or by name.
        dtype: one of :data:`EPSILON`.
    """
    watched = _WatchedPrimitives()
    network = ReferenceNetwork(plan, weights, cast("Primitives", watched), copy=False)
    named = inputs if isinstance(inputs, Mapping) else {}
    arrays = [np.asarray(a) for a in network.contracts.bind(() if named else tuple(inputs), named)]
    program = trace(plan, network.contracts.check(arrays))
    nodes: list[NodeBound] = []

    def observe(node: Node, taken: tuple[Any, ...], results: tuple[Array, ...]) -> None:
        reduction = program.reduction(node.name)
        largest = max((_largest(array) for array in results), default=0.0)
        norms = sum(watched.taken())
        bound = value_bound(reduction, largest, dtype) + EPSILON[dtype] * norms
        nodes.append(NodeBound(node.name, node.operator.name, reduction, largest, norms, bound))

    outputs = network.run(arrays, observe)
    evaluate = partial(evaluate_rounded, plan, program, epsilon=EPSILON[dtype])
    moved = (network.evaluated(evaluate, arrays, seed) for seed in range(RUNS))
    by_output = measured_bounds(outputs, moved, dtype)
    total = max(by_output.values(), default=0.0)
    return NumericBound(total, by_output, tuple(nodes), outputs, program)


def measured_bounds(
    exact: Mapping[str, Array],
    moved: Iterable[Mapping[str, Array]],
    dtype: str,
    margin: int = MARGIN,
) -> dict[str, float]:
    """``margin`` times the largest change of each array, at least ``eps / 2`` of its largest number.

    Args:
        exact: arrays by name.
        moved: the same, computed with rounding, once or more.
        dtype: whose rounding.
        margin: :data:`MARGIN`, or :data:`GRADIENT_MARGIN`.

    Where an exact number is no number, or a moved one is none, there is nothing to measure.
    """
    least = SMALLEST_NORMAL[dtype]
    changes = {name: max(EPSILON[dtype] / 2 * _largest(array), least) for name, array in exact.items()}
    for arrays in moved:
        for name, array in exact.items():
            changes[name] = max(changes[name], _largest(arrays[name] - array))
        del arrays  # the next are made without these beside them
    return {name: margin * change for name, change in changes.items()}


def value_bound(reduction: int, largest: float, dtype: str = "float32") -> float:
    """``4 eps sqrt(K) max(1, max |y_ref|)``."""
    return 4 * EPSILON[dtype] * reduction**0.5 * max(1.0, largest)


def gradient_bound(
    program: Program, node: str, gradients: Mapping[str, Array], *, dtype: str = "float32"
) -> float:
    """``4 eps sqrt(K rows) max |g_ref|`` for the parameters of one node.

    Args:
        program: the trace at the inputs' sizes; it gives K and the rows that a gradient sums over.
        node: the node's name.
        gradients: the true gradients by parameter path; those of other nodes are passed over.
        dtype: what the backend computes in.
    """
    own = [_largest(g) for path, g in gradients.items() if path.startswith(node + ".")]
    terms = program.reduction(node) * parameter_rows(program, node)
    return 4 * EPSILON[dtype] * terms**0.5 * max(own, default=0.0)


class _WatchedPrimitives:
    """NumPy's primitives, noting ``max |x| / sigma`` of every layer norm."""

    def __init__(self) -> None:
        self._ratios: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy_primitives, name)

    def layer_norm(self, x: Array, weight: Array | None, bias: Array | None, *, eps: float) -> Array:
        if x.size:
            sigma = float(np.sqrt(x.var(axis=-1).min() + eps))
            self._ratios.append(_largest(x) / sigma)
        return numpy_primitives.layer_norm(x, weight, bias, eps=eps)

    def taken(self) -> list[float]:
        """The ratios noted since the last call."""
        noted, self._ratios = self._ratios, []
        return noted


def _largest(array: Array) -> float:
    """The largest magnitude among the finite numbers, 0 where there is none."""
    largest = float(max(np.max(array, initial=0.0), -np.min(array, initial=0.0)))
    if np.isfinite(largest):  # in the usual case without another array of its size
        return largest
    return float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array)))
