"""Weights of a prepared model in JAX: the model's own arrays, or derived from them in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from isomorph.lowering import derived
from isomorph.lowering.derived import Weight
from isomorph.lowering.rewrite import Rewritten

Tensor = jax.Array


class Held(NamedTuple):
    """A parameter as a model holds it: an array, and whether it is the transpose of the plan's."""

    array: Tensor
    transposed: bool


class Kept(NamedTuple):
    """A derived weight as an engine keeps it: ``[O, I]``, or ``[I, O]`` with ``inputs_first``.

    The compiler multiplies one row faster by the former and several rows by the latter.
    """

    weight: Weight
    inputs_first: bool


def collect(program: Rewritten, keys: dict[Kept, bool], inputs_first: Callable[[Weight], bool]) -> None:
    """Add every derived weight that a program reads, and whether products alone read it.

    They are the same at all sizes.
    """
    for op in program.ops:
        if op.weight is not None:
            product = op.kind == "linear"
            keys.setdefault(Kept(op.weight, product and inputs_first(op.weight)), product)
        if op.bias is not None:
            keys.setdefault(Kept(op.bias, False), False)
    for tensor, path in program.parameters.items():
        readers = {op.kind for op in program.ops if tensor in op.reads}
        kept = Kept(derived.Stored(path), False)
        keys[kept] = keys.get(kept, True) and readers == {"embedding"}  # whose rows are widened again


_PIECE = 1 << 16
"""Numbers of a derived weight that are computed at once: their float64 fits into a cache."""


def made_of(kept: Kept, parameters: Mapping[str, Held], dtype: Any) -> Tensor:
    """The array of a key; a lone parameter that is held like this shares the model's memory."""
    weight, inputs_first = kept
    if isinstance(weight, derived.Stored):
        array, transposed = parameters[weight.path]
        return jnp.asarray(array if transposed == inputs_first else array.T, dtype)
    arithmetic = _Arithmetic(parameters)
    shape = derived.shape(weight, arithmetic)
    aligned = _aligned(shape[::-1] if inputs_first else shape, np.dtype(dtype))
    by_rows = aligned.T if inputs_first else aligned
    rows = max(1, _PIECE // max(1, derived.row_size(weight, arithmetic)))
    for start in range(0, shape[0], rows):
        part = slice(start, min(start + rows, shape[0]))
        by_rows[part] = derived.evaluate(weight, arithmetic, part)
    return jax.device_put(aligned)


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array whose memory JAX takes over as it is."""
    size = prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


_ALIGNMENT = 64


class _Arithmetic:
    """Derived weights in NumPy, which has float64 whatever JAX is set to."""

    def __init__(self, parameters: Mapping[str, Held]) -> None:
        self._parameters = parameters

    def parameter(self, path: str) -> Any:
        array, transposed = self._parameters[path]
        values = np.asarray(array)
        return values.T if transposed else values

    def wide(self, array: Any) -> Any:
        return array.astype(np.float64)

    def times(self, array: Any, factor: Any) -> Any:
        product = self.wide(array)
        product *= factor
        return product

    def apply(self, matrix: Any, vector: Any) -> Any:
        return self.wide(matrix) @ vector

    def zeros(self, size: int) -> Any:
        return np.zeros(size)

    def join(self, arrays: list[Any]) -> Any:
        return np.concatenate(arrays)
