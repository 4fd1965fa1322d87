"""The primitives of :class:`isomorph.primitives.Primitives` on ``jax.Array``, for both Flax backends.

Everything here can be traced: ``jit``, ``grad``, ``vmap`` over further axes. Sizes are Python integers, so
rotary tables are computed in NumPy while tracing. One kind of care needs values and is taken on concrete
arrays alone: an id outside a table is E_RUNTIME in eager mode; in compiled code its row is NaN. Products
ask for ``Precision.HIGHEST``, so that float32 means float32 on accelerators too.

While ``jax.export`` traces with open lengths a size is an expression: what a comparison of it decides elsewhere
is then decided for every length (:func:`is_open`), and tables are computed where the function runs.

Numbers that enter arithmetic are Python's, never NumPy's, whose scalars would promote half precisions.

Axis legend: B batch, T query positions, S key positions, H heads, K key/value heads, G = H/K query heads
per key/value head, d head width.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.core import Tracer

from isomorph.backends.jax.arithmetic import PRECISION, Tensor, is_open, over, widened
from isomorph.backends.jax.attention import attention as attention  # one of the primitives
from isomorph.primitives import no_elements, outside_axis, outside_table


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    axes = (((x.ndim - 1,), (1,)), ((), ()))
    out = lax.dot_general(x, weight, axes, precision=PRECISION)  # (..., D_out)
    return out if bias is None else out + over(bias, out)


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    out = lax.conv_general_dilated(
        x,
        weight,
        (stride,),
        [(padding, padding)],
        dimension_numbers=("NCH", "OIH", "NCH"),
        precision=PRECISION,
    )  # (B, O, L)
    return out if bias is None else out + bias[None, :, None]


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1) -> Tensor:
    out = lax.conv_general_dilated(
        x, weight, (stride, stride), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW"), precision=PRECISION
    )  # (B, O, H', W')
    return out if bias is None else out + bias[None, :, None, None]


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of a table. An id outside it is E_RUNTIME in eager mode, and a row of NaN in compiled code."""
    check_ids(ids, weight.shape[0])
    return weight.at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


def check_ids(ids: Tensor, rows: int) -> None:
    """E_RUNTIME for an id outside a table of ``rows`` rows, where there are values to look at."""
    if isinstance(ids, Tracer):
        return
    values = np.asarray(ids)
    outside = values[(values < 0) | (values >= rows)]
    if outside.size:
        raise outside_table(int(outside[0]), rows)


# -- norms -----------------------------------------------------------------------------------------


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
    """Two-pass statistics, the mean taken twice.

    XLA adds a row's elements one after the other, so the mean of many large values is off by units in the
    last place of those; the mean of what is left after subtracting it tells by how much. That second mean
    is a rounding error and no function of x, so no gradient passes through it.
    """
    wide = widened(x)
    centered = wide - wide.mean(-1, keepdims=True)
    centered = centered - lax.stop_gradient(centered.mean(-1, keepdims=True))
    out = centered * lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + eps)
    if weight is not None:
        out = out * over(widened(weight), out)
    if bias is not None:
        out = out + over(widened(bias), out)
    return out.astype(x.dtype)


def rms_norm(x: Tensor, weight: Tensor | None, *, eps: float, offset: float = 0.0) -> Tensor:
    wide = widened(x)
    out = wide * lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + eps)
    if weight is not None:
        out = out * over(widened(weight) + offset, out)  # 1 + weight would lose digits in half precision
    return out.astype(x.dtype)


def l2_normalize(x: Tensor, *, eps: float) -> Tensor:
    wide = widened(x)
    return (wide * lax.rsqrt(jnp.square(wide).sum(-1, keepdims=True) + eps)).astype(x.dtype)


# -- elementwise: half precisions are computed in float32 and rounded once ---------------------------


def relu(x: Tensor) -> Tensor:
    return jax.nn.relu(x)  # its derivative at 0 is 0


def silu(x: Tensor) -> Tensor:
    return jax.nn.silu(widened(x)).astype(x.dtype)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return jax.nn.gelu(widened(x), approximate=approximate == "tanh").astype(x.dtype)


def quick_gelu(x: Tensor) -> Tensor:
    wide = widened(x)
    return (wide * jax.nn.sigmoid(1.702 * wide)).astype(x.dtype)


def tanh(x: Tensor) -> Tensor:
    return jnp.tanh(widened(x)).astype(x.dtype)


def exp(x: Tensor) -> Tensor:
    return jnp.exp(widened(x)).astype(x.dtype)


def sigmoid(x: Tensor) -> Tensor:
    return jax.nn.sigmoid(widened(x)).astype(x.dtype)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    return jax.nn.softmax(widened(x), axis).astype(x.dtype)


# -- shapes ----------------------------------------------------------------------------------------


def reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return jnp.reshape(x, shape)


def permute(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return jnp.transpose(x, axes)


def concatenate(tensors: tuple[Tensor, ...], axis: int) -> Tensor:
    return jnp.concatenate(tensors, axis)


def narrow(x: Tensor, axis: int, start: int, stop: int | None) -> Tensor:
    axis = axis + x.ndim if axis < 0 else axis
    length = x.shape[axis]
    if any(map(is_open, (length, start, stop))):
        return _narrowed(x, axis, start, stop)
    first = start + length if start < 0 else start
    last = length if stop is None else stop + length if stop < 0 else stop
    if not 0 <= first <= last <= length:
        raise outside_axis(axis, start, stop, x.shape)
    return lax.slice_in_dim(x, first, last, axis=axis)


def _narrowed(x: Tensor, axis: int, start: Any, stop: Any) -> Tensor:
    """:func:`narrow` of an open length: a row of NaN for each element that the axis does not have."""
    length = x.shape[axis]
    first = start + length if not is_open(start) and start < 0 else start
    last = length if stop is None else stop + length if not is_open(stop) and stop < 0 else stop
    return jnp.take(x, jnp.arange(first, last), axis, mode="fill")


def expand(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return jnp.broadcast_to(x, shape)


def select(x: Tensor, mask: Tensor) -> Tensor:
    return jnp.where(mask[..., None], x, 0)  # (B, S, D)


def take_at(x: Tensor, ids: Tensor, token: int) -> Tensor:
    """Rows at the first of the largest ids, or of the ids that are ``token``; ``argmax`` takes the first."""
    if x.shape[1] == 0:
        raise no_elements("take_at", 1, x.shape)
    wide = ids if ids.dtype.itemsize >= 4 else ids.astype(jnp.int32)  # a narrow dtype may not hold the token
    position = (wide if token == -1 else wide == token).argmax(1)  # (B,)
    return jnp.take_along_axis(x, position[:, None, None], 1)[:, 0]  # (B, D)


# -- reductions ------------------------------------------------------------------------------------


def mean(x: Tensor, axis: int, keepdim: bool = False) -> Tensor:
    if x.shape[axis] == 0:
        raise no_elements("mean", axis, x.shape)
    return widened(x).mean(axis, keepdims=keepdim).astype(x.dtype)


def max(x: Tensor, axis: int, keepdim: bool = False) -> Tensor:
    """Largest element; equal ones share the gradient."""
    if x.shape[axis] == 0:
        raise no_elements("max", axis, x.shape)
    return x.max(axis, keepdims=keepdim)


def cumsum(x: Tensor, axis: int) -> Tensor:
    return jnp.cumsum(widened(x), axis).astype(x.dtype)


def masked_pool(x: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Mean, maximum, first or last of the positions where ``mask`` is True; zeros where there is none."""
    if x.shape[1] == 0:
        raise no_elements(mode, 1, x.shape)
    if mode == "mean":
        wide = widened(select(x, mask))
        count = jnp.maximum(mask.sum(1), 1).astype(wide.dtype)  # (B)
        return (wide.sum(1) / count[:, None]).astype(x.dtype)
    if mode == "max":
        pooled = jnp.where(mask[..., None], x, -jnp.inf).max(1)  # (B, D)
    else:
        seen = mask if mode == "first" else mask[:, ::-1]
        index = jnp.argmax(seen, axis=1)  # (B), the first of equal ones
        index = index if mode == "first" else x.shape[1] - 1 - index
        pooled = jnp.take_along_axis(x, index[:, None, None], axis=1)[:, 0]  # (B, D)
    return jnp.where(mask.any(1)[:, None], pooled, 0)


# -- rotary tables ---------------------------------------------------------------------------------


def cos_sin(length: int, frequencies: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Two ``[length, len(frequencies)]`` tables, constants of a compiled function."""
    dtype = jnp.dtype(like.dtype)
    if is_open(length):
        return _turned(length, frequencies, dtype)
    cos, sin = _tables(length, 1, frequencies, dtype)
    return jnp.asarray(cos), jnp.asarray(sin)


_DIGIT = 128


def _turned(length: Any, frequencies: tuple[float, ...], dtype: Any) -> tuple[Tensor, Tensor]:
    """:func:`cos_sin` of an open length below two million, its tables multiplied out where the function runs.

    A position is three digits; an angle is the sum of theirs, of which each has a table computed in float64:
    ``cos(a + b) = cos(a) cos(b) - sin(a) sin(b)``, ``sin(a + b) = sin(a) cos(b) + cos(a) sin(b)``.
    """
    wide = jnp.promote_types(dtype, jnp.float32)
    places = jnp.arange(length)
    cos, sin = _digits(places % _DIGIT, 1, frequencies, wide)
    for step in (_DIGIT, _DIGIT**2):
        c, s = _digits(places // step % _DIGIT, step, frequencies, wide)
        cos, sin = cos * c - sin * s, sin * c + cos * s
    return cos.astype(dtype), sin.astype(dtype)


def _digits(digits: Tensor, step: int, frequencies: tuple[float, ...], dtype: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines of ``digits * step`` times each frequency, ``[length, d/2]`` each."""
    cos, sin = _tables(_DIGIT, step, frequencies, dtype)
    return jnp.asarray(cos)[digits], jnp.asarray(sin)[digits]


def positions(table: Tensor, length: int) -> Tensor:
    return narrow(table, 0, 0, length)


@lru_cache(maxsize=64)
def _tables(
    length: int, step: int, frequencies: tuple[float, ...], dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(0, length * step, step)[:, None] * np.asarray(
        frequencies, dtype=np.float64
    )  # (length, d/2)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
