"""The Linen backend behind the interface of :mod:`isomorph.backends.available`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isomorph.backends.available import Gradients
from isomorph.backends.jax.harness import Apply, computing, differentiate, noisy_gradients, run
from isomorph.backends.linen.build import build
from isomorph.backends.linen.weights import variables
from isomorph.backends.linen.weights import weights as weights_of
from isomorph.plan import Plan

__all__ = ["forward", "gradients", "noisy_gradients"]

if TYPE_CHECKING:
    import jax
    import numpy as np


def forward(
    plan: Plan, weights: Mapping[str, Any], inputs: Mapping[str, Any], dtype: str
) -> dict[str, np.ndarray]:
    """Outputs by name, in evaluation mode, computed in ``dtype``."""
    plan, context = computing(plan, dtype)
    with context:
        return run(plan, _apply(plan), variables(plan, weights), inputs)


def gradients(
    plan: Plan,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any],
    cotangents: Mapping[str, Any],
    dtype: str,
) -> Gradients:
    """Derivatives of ``sum(output * cotangent)`` in evaluation mode; frozen parameters have theirs too."""
    plan, context = computing(plan, dtype)
    with context:
        slopes, of_inputs = differentiate(plan, _apply(plan), variables(plan, weights), inputs, cotangents)
        return Gradients(weights_of(plan, slopes), of_inputs)


def _apply(plan: Plan) -> Apply:
    module = build(plan)

    def apply(parameters: Any, named: Mapping[str, jax.Array]) -> Any:
        return module.apply(parameters, *(named[name] for name, _ in plan.inputs))

    return apply
