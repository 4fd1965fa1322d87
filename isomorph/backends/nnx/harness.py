"""The NNX backend behind the interface of :mod:`isomorph.backends.available`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flax import nnx

from isomorph.backends.available import Gradients
from isomorph.backends.jax.harness import computing, differentiate, noisy_gradients, run
from isomorph.backends.nnx.build import build
from isomorph.backends.nnx.layers import Frozen
from isomorph.backends.nnx.weights import weights as weights_of
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
        model = build(plan, weights)
        model.eval()
        graph, state = nnx.split(model)
        return run(plan, lambda state, named: nnx.merge(graph, state)(**named), state, inputs)


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
        model = build(plan, weights)
        model.eval()
        graph, parameters, rest = nnx.split(model, (nnx.Param, Frozen), ...)

        def apply(parameters: Any, named: Mapping[str, jax.Array]) -> Any:
            return nnx.merge(graph, parameters, rest)(**named)

        slopes, of_inputs = differentiate(plan, apply, parameters, inputs, cotangents)
        return Gradients(weights_of(nnx.merge(graph, slopes, rest)), of_inputs)
