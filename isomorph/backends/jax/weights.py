"""Arrays between NumPy in plan layout and JAX in Flax's layout: copies always, never a shared buffer."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from isomorph.weights.initial import numpy_dtype


def to_jax(array: Any, dtype: str, transposed: bool = False) -> jax.Array:
    """An array in plan layout, rounded to a dtype, as a JAX array in Flax's layout."""
    given = to_numpy(array)
    # The transposed copy is made by NumPy: JAX may adopt a NumPy buffer without copying it.
    ordered = np.array(given.T if transposed else given, dtype=numpy_dtype(dtype), order="C", copy=True)
    return jnp.array(ordered, copy=True)


def to_plan(array: Any, transposed: bool = False) -> np.ndarray:
    """An array in Flax's layout as a NumPy array in plan layout, in memory of its own."""
    given = np.asarray(array)
    return np.array(given.T if transposed else given, order="C", copy=True)


def to_numpy(array: Any) -> np.ndarray:
    """Any framework's array in NumPy; it may share the array's memory."""
    if hasattr(array, "detach"):  # a torch tensor, known by what it can do: torch need not be installed
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":
            array = array.float()  # every bfloat16 is a float32
        array = array.numpy()
    return np.asarray(array)
