"""A model's arrays as a flattened tree of Flax. No framework is needed for it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isomorph.backends.jax.layers import places
from isomorph.plan import Plan

FORMAT = "flax"
"""What readers of safetensors call files of this framework."""


def flattened(
    plan: Plan, weights: Mapping[str, np.ndarray], trained: str = "", frozen: str = ""
) -> dict[str, np.ndarray]:
    """Arrays in Flax's axis order, by names with dots between their parts.

    Args:
        plan: the network.
        weights: arrays in plan layout by parameter path.
        trained, frozen: what the names of each kind of parameters begin with.
    """
    return {
        (frozen if place.frozen else trained) + ".".join(place.path): np.ascontiguousarray(
            weights[path].T if place.transposed else weights[path]
        )
        for path, place in places(plan).items()
    }
