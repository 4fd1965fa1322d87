"""A model's arrays as a state dictionary. No framework is needed for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from isomorph.plan import Plan

FORMAT = "pt"
"""What readers of safetensors call files of this framework."""


def tensors(plan: Plan, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays by path, tied parameters under each of theirs: modules of PyTorch's own want both.

    Args:
        plan: the network.
        weights: arrays in plan layout by parameter path.
    """
    return {**weights, **{path: weights[owner].copy() for path, owner in plan.ties.items()}}
