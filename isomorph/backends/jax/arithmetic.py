"""What JAX's primitives are computed in: precision, ranks, and sizes that may be open."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

Tensor = jax.Array
PRECISION = lax.Precision.HIGHEST
"""What every product asks for, in the primitives and in the native layers of both backends."""
HALVES = (jnp.dtype("bfloat16"), jnp.dtype("float16"))


def widened(x: Tensor) -> Tensor:
    """float32 in place of the half precisions."""
    return x.astype(jnp.float32) if x.dtype in HALVES else x


def over(vector: Tensor, x: Tensor) -> Tensor:
    """``[D]`` as ``[1, ..., D]``: JAX may be told to refuse to promote ranks."""
    return vector.reshape((1,) * (x.ndim - 1) + vector.shape)


def is_open(size: Any) -> bool:
    """Whether a size is an expression of ``jax.export``, whose comparisons may have no answer."""
    return size is not None and not isinstance(size, int | np.integer)
