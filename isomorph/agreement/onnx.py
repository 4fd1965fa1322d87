"""An ONNX file, run by whoever wrote it, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from isomorph.agreement.bounds import NumericBound, numeric_bound
from isomorph.agreement.compare import difference_of
from isomorph.agreement.samples import sample_inputs, sample_sizes
from isomorph.errors import IsomorphError
from isomorph.plan import Plan


class Comparison(NamedTuple):
    """The written model in onnxruntime against the float64 reference, at one choice of sizes.

    Attributes:
        sizes: the value of every symbol.
        difference: ``max |y - y_ref|`` over all outputs.
        bound: what it may be (:mod:`isomorph.agreement.bounds`).
    """

    sizes: dict[str, int]
    difference: float
    bound: float

    @property
    def agrees(self) -> bool:
        """Whether the difference is within its bound; NaN is not."""
        return self.difference <= self.bound

    def __str__(self) -> str:
        where = " at " + ", ".join(f"{symbol}={size}" for symbol, size in self.sizes.items())
        return f"difference {self.difference:.3g}, allowed {self.bound:.3g}{where if self.sizes else ''}"


def compare_onnx(
    plan: Plan, weights: Mapping[str, Any], run: Callable[[Sequence[Mapping[str, Any]]], list[Any]]
) -> tuple[Comparison, ...]:
    """The model at two choices of sizes; E_BACKEND where it does not compute what the reference computes.

    ``run`` gives its outputs for each mapping of inputs. One after the other, lest both be in memory at once.
    """
    tried = sample_sizes(plan)[:2]
    computed = run([sample_inputs(plan, sizes) for sizes in tried])
    comparisons = []
    for sizes, outputs in zip(tried, computed, strict=True):
        truth = numeric_bound(plan, weights, sample_inputs(plan, sizes), dtype=plan.dtype)
        comparisons.append(_comparison(outputs, truth, sizes))
    return tuple(comparisons)


def _comparison(outputs: Sequence[Any], truth: NumericBound, sizes: dict[str, int]) -> Comparison:
    pairs = zip(outputs, truth.outputs.values(), strict=True)
    difference = float(
        np.max([difference_of(output, expected) for output, expected in pairs])
    )  # NaN stays NaN
    comparison = Comparison(sizes, difference, truth.total)
    if not comparison.agrees:
        raise IsomorphError(
            "E_BACKEND",
            f"onnxruntime does not compute what the reference computes: {comparison}",
            hints=["nothing was written"],
        )
    return comparison
