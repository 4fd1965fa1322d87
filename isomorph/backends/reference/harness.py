"""The reference backend behind the interface of :mod:`isomorph.backends.available`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from isomorph.backends.available import Evaluation, Gradients
from isomorph.backends.reference.build import run
from isomorph.plan import Plan


def forward(
    plan: Plan, weights: Mapping[str, Any], inputs: Mapping[str, Any], dtype: str = "float64"
) -> dict[str, Any]:
    """Outputs by name, in float64 whatever ``dtype`` says."""
    return run(plan, weights, inputs)


def gradients(
    plan: Plan,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any],
    cotangents: Mapping[str, Any],
    dtype: str = "float64",
) -> None:
    """None: the reference has no derivatives of its own, only central differences."""


def noisy_gradients(
    evaluate: Evaluation,
    plan: Plan,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any],
    cotangents: Mapping[str, Any],
    seeds: Iterable[int],
) -> Iterator[Gradients]:
    """None at all, for the same reason."""
    return iter(())
