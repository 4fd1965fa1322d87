"""What the encoder blocks refuse, with the values received."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from isomorph.dimensions import show_shape
from isomorph.errors import IsomorphError, shorten
from isomorph.operators import attention
from isomorph.operators.declare import Conflict


def check_sizes(**sizes: Any) -> None:
    """E_ARGUMENT for a size that is no positive int."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise IsomorphError("E_ARGUMENT", f"{name} must be an int >= 1, got {shorten(size)}")


def check_heads(num_heads: int, d_model: int) -> None:
    """E_CONSTRAINT unless the heads divide the width."""
    try:
        attention.check_heads(num_heads, d_model)
    except Conflict as conflict:
        raise IsomorphError(conflict.code, conflict.message, hints=conflict.hints) from None


def check_input(x: Any, ranks: tuple[int, ...], width: int | None = None) -> None:
    """E_RUNTIME unless ``x`` is a floating-point array of one of the ranks, and of that last size."""
    wanted = " or ".join("[" + ", ".join(("B", "T", "D")[-rank:]) + "]" for rank in ranks)
    if not isinstance(x, jax.Array | np.ndarray):
        raise IsomorphError("E_RUNTIME", f"x must be an array {wanted}, got {shorten(type(x).__name__)}")
    if x.ndim not in ranks:
        raise IsomorphError("E_RUNTIME", f"x must be {wanted}, got {show_shape(x.shape)}")
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
        raise IsomorphError("E_RUNTIME", f"x must have a floating-point dtype, got {x.dtype.name}")
    if width is not None and x.shape[-1] != width:
        raise IsomorphError("E_RUNTIME", f"x must have {width} features, got {show_shape(x.shape)}")
    if x.shape[-1] < 1:
        raise IsomorphError("E_RUNTIME", f"x must have at least one feature, got {show_shape(x.shape)}")
