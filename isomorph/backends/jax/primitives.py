"""The primitives of :class:`isomorph.primitives.Primitives` on ``jax.Array``, for both Flax backends.

Everything here can be traced: ``jit``, ``grad``, ``vmap`` over further axes. Sizes are Python integers, so
rotary tables are computed in NumPy while tracing. One kind of care needs values and is taken on concrete
arrays alone: an id outside a table is E_RUNTIME in eager mode; in compiled code its row is NaN. Products
ask for ``Precision.HIGHEST``, so that float32 means float32 on accelerators too.

While ``jax.export`` traces with open lengths a size is an expression: what a comparison of it decides elsewhere
is then decided for every length (:func:`_open`), and tables are computed where the function runs.

Numbers that enter arithmetic are Python's, never NumPy's, whose scalars would promote half precisions.

Axis legend: B batch, T query positions, S key positions, H heads, K key/value heads, G = H/K query heads
per key/value head, d head width.
"""

from __future__ import annotations

import builtins
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.core import Tracer

from isomorph.backends.contract import no_elements, outside_axis, outside_table

Tensor = jax.Array
PRECISION = lax.Precision.HIGHEST
"""What every product asks for, here and in the native layers of both backends."""
HALVES = (jnp.dtype("bfloat16"), jnp.dtype("float16"))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    axes = (((x.ndim - 1,), (1,)), ((), ()))
    out = lax.dot_general(x, weight, axes, precision=PRECISION)  # (..., D_out)
    return out if bias is None else out + _over(bias, out)


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
    wide = _wide(x)
    centered = wide - wide.mean(-1, keepdims=True)
    centered = centered - lax.stop_gradient(centered.mean(-1, keepdims=True))
    out = centered * lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + eps)
    if weight is not None:
        out = out * _over(_wide(weight), out)
    if bias is not None:
        out = out + _over(_wide(bias), out)
    return out.astype(x.dtype)


def rms_norm(x: Tensor, weight: Tensor | None, *, eps: float, offset: float = 0.0) -> Tensor:
    wide = _wide(x)
    out = wide * lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + eps)
    if weight is not None:
        out = out * _over(_wide(weight) + offset, out)  # 1 + weight would lose digits in half precision
    return out.astype(x.dtype)


def l2_normalize(x: Tensor, *, eps: float) -> Tensor:
    wide = _wide(x)
    return (wide * lax.rsqrt(jnp.square(wide).sum(-1, keepdims=True) + eps)).astype(x.dtype)


# -- attention -------------------------------------------------------------------------------------


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    dropout: Any = None,
) -> Tensor:
    """``softmax(q k^T / sqrt(d)) v`` as two batched products around one exponential.

    The division by the softmax's sum comes after the second product, on ``[T, d]`` in place of ``[T, S]``
    numbers; dropping weights before it is the same, since dropout is linear in them.

    Keys and values that ``mask`` hides become zeros by selection, so nothing in them can reach a result or a
    gradient. ``causal`` and ``window`` hide a position from some queries only: there a key or value that is
    not finite is replaced too, and a branch that runs only when there is one (``lax.cond``) makes the
    results of those queries infinite or NaN that do see it. This holds in compiled code as well.
    """
    H, T, S = q.shape[1], q.shape[2], k.shape[2]
    if S == 0:
        return jnp.zeros_like(q)
    if mask is not None:
        kept = mask[:, None, :, None]  # (B, 1, S, 1)
        k, v = jnp.where(kept, k, 0), jnp.where(kept, v, 0)
    poison = None
    if (causal or window) and (_open(S) or S > 1):
        visible = _visibility(mask, _places(0, T) + (S - T), _places(0, S), causal, window)
        k, v, poison = _withhold(k, v, visible, H)
    out = attend_in_blocks(q, k, v, mask, causal=causal, window=window, softcap=softcap, dropout=dropout)
    return out if poison is None else poison(out)


WHOLE = 1 << 16
"""Scores of one head up to which all queries attend at once."""
_BLOCK, _MULTIPLE, _MOST_BLOCKS = 128, 64, 8


def attend_in_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    window: int,
    softcap: float = 0.0,
    dropout: Any = None,
    adding: bool = False,
) -> Tensor:
    """:func:`attention` of finite keys and values; on the CPU long queries are taken a block at a time.

    A block's scores stay in the cache, and its keys are those that one of its queries may attend.
    ``adding`` is as in :func:`attend`.
    """
    T, S = q.shape[2], k.shape[2]
    if _open(T) or _open(S):
        visible = _visibility(mask, _places(0, T) + (S - T), _places(0, S), causal, window)
        return attend(q, k, v, visible, softcap, dropout)
    if T * S <= WHOLE or dropout is not None or jax.default_backend() != "cpu":
        rows = builtins.max(T, 1)
    else:
        rows = builtins.max(_BLOCK, -(-T // _MOST_BLOCKS // _MULTIPLE) * _MULTIPLE)
    found = []
    for start in range(0, T, rows) or (0,):
        stop = min(start + rows, T)
        queries = np.arange(start, stop) + S - T  # positions among the keys
        first, last = 0, S
        if rows < T and window:
            first = builtins.min(builtins.max(0, int(queries[0]) - window + 1), S - 1)
        if rows < T and (causal or window):
            last = builtins.max(first + 1, min(S, int(queries[-1]) + (1 if causal else window)))
        keys = np.arange(first, last)
        part = (q[:, :, start:stop], k[:, :, first:last], v[:, :, first:last])
        if adding and mask is None and (causal or window) and _all_see(queries, keys, causal, window):
            positions = (jnp.arange(start, stop) + (S - T), jnp.arange(first, last))
            visible = _visibility(None, *positions, causal, window)
            found.append(attend(*part, visible, softcap, adding=True))
        else:
            visible = _visibility(mask, queries, keys, causal, window)
            found.append(attend(*part, visible, softcap, dropout))
    return found[0] if len(found) == 1 else jnp.concatenate(found, 2)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Any,
    softcap: float = 0.0,
    dropout: Any = None,
    *,
    adding: bool = False,
) -> Tensor:
    """:func:`attention` of finite keys and values at once.

    Args:
        q, k, v: ``[B, H, T, d], [B, K, S, d], [B, K, S, d]``.
        visible: who sees whom, boolean ``[B or 1, 1, 1, T or 1, S]``, or None.
        softcap, dropout: as in :func:`attention`.
        adding: hide keys by adding minus infinity to their scores, which the CPU compiler makes one kernel of;
            each query must see a key. A score that is too large to represent, hidden or not, makes its query's
            results NaN.
    """
    B, H, T, d = q.shape
    K, S = k.shape[1], k.shape[2]
    scale = d**-0.5
    if q.dtype not in HALVES or (q.dtype == jnp.bfloat16 and scale in _EXACT):
        q, scale = q * scale, 1.0  # before the product there are fewer numbers
    query = q.reshape(B * K, H // K * T, d)
    if T == 1:
        scores = _batched(query, k.reshape(B * K, S, d), 2)
    else:
        key = jnp.swapaxes(k, 2, 3).reshape(B * K, d, S)  # the CPU compiler fuses this orientation best
        scores = _batched(query, key)  # (B*K, G*T, S), in float32 at least
    if scale != 1:
        scores = scores * scale
    if softcap:
        scores = softcap * jnp.tanh(scores / softcap)
    if adding:
        added = jnp.where(visible[0, 0], 0.0, -jnp.inf).astype(scores.dtype)  # (1, T, S)
        grouped = scores if H == K else scores.reshape(B * K, H // K, T, S)
        scores, visible = (grouped + added).reshape(scores.shape), None
    if visible is None and dropout is None:  # a reshape in between would keep the compiler from one kernel
        weights = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
        total = weights.sum(-1, keepdims=True)
    else:
        weights, total = _exponentials(scores.reshape(B, K, H // K, T, S), visible)
        if dropout is not None:
            weights = dropout(weights)
        weights, total = weights.reshape(scores.shape), total.reshape(*scores.shape[:2], 1)
    out = _batched(weights.astype(v.dtype), v.reshape(B * K, S, d)) / total
    return out.reshape(B, H, T, d).astype(q.dtype)


_EXACT = frozenset(2.0**-power for power in range(16))
"""Scales that change no digit of a bfloat16, whose exponents reach far."""


def _batched(a: Tensor, b: Tensor, axis: int = 1) -> Tensor:
    """``a`` times ``b`` along its ``axis``, with one leading batch axis; in float32 at least, and left there."""
    wide = jnp.float32 if a.dtype in HALVES else a.dtype
    axes = (((2,), (axis,)), ((0,), (0,)))
    return lax.dot_general(a, b, axes, precision=PRECISION, preferred_element_type=wide)


def _exponentials(scores: Tensor, visible: Any) -> tuple[Tensor, Tensor]:
    """The softmax's numerators ``[B, K, G, T, S]`` and their sums; hidden keys weigh nothing."""
    if visible is not None:
        scores = jnp.where(visible, scores, float(jnp.finfo(scores.dtype).min))
    weights = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
    if visible is None:
        return weights, weights.sum(-1)
    weights = jnp.where(visible, weights, 0)
    # A query that sees nothing divides zero by one: zeros, and finite gradients.
    return weights, jnp.where(visible.any(-1), weights.sum(-1), 1)


def _visibility(mask: Tensor | None, queries: Any, keys: Any, causal: bool, window: int) -> Any:
    """Which key each query may attend: boolean ``[B or 1, 1, 1, T or 1, S]``, or None for all of them.

    Args:
        mask: of the whole sequence, ``[B, S]``.
        queries, keys: their positions.
        causal, window: as in :func:`attention`.

    Returns:
        An array of the kind of the positions, where no mask is given.
    """
    seen = None
    if mask is not None:
        whole = keys.shape[0] == mask.shape[1]
        seen = (mask if whole else mask[:, keys[0] : keys[-1] + 1])[:, None, None, None, :]
    if not causal and not window:
        return seen
    past = queries[:, None] - keys  # (T, S)
    near = past >= 0 if causal else past > -window
    if window:
        near &= past < window
    near = near[None, None, None]
    return near if seen is None else near & seen


def _all_see(queries: Any, keys: Any, causal: bool, window: int) -> bool:
    """Whether every query may attend one of the keys at least; positions as in :func:`_visibility`, of NumPy."""
    last = queries if causal else queries + (window - 1)
    first = queries - (window - 1) if window else np.zeros_like(queries)
    return bool((np.maximum(first, keys[0]) <= np.minimum(last, keys[-1])).all())


def _withhold(k: Tensor, v: Tensor, visible: Any, heads: int) -> tuple[Tensor, Tensor, Any]:
    """Keys and values with zeros for what is not finite, and what to do with the result afterwards.

    A visible infinity in a value makes the result infinite, as a positive weight times it does; a visible
    NaN, or a key that is not finite, makes it NaN.
    """
    finite_k, finite_v = jnp.isfinite(k), jnp.isfinite(v)
    all_finite = finite_k.all() & finite_v.all()
    raw = lax.stop_gradient(v)

    def poisoned(out: Tensor) -> Tensor:
        sees = visible[:, :, 0].astype(jnp.float32)  # (B or 1, 1, T or 1, S)
        wrong = (raw == jnp.inf, raw == -jnp.inf, jnp.isnan(raw) | ~finite_k.all(-1, keepdims=True))
        places = jnp.concatenate(wrong, -1).astype(jnp.float32)  # (B, K, S, 3d)
        high, low, nan = jnp.split(jnp.matmul(sees, places) > 0, 3, -1)  # (B, K, T or 1, d) each
        added = jnp.where(
            nan | (high & low), jnp.nan, jnp.where(high, jnp.inf, jnp.where(low, -jnp.inf, 0.0))
        )
        return out + jnp.repeat(added.astype(out.dtype), heads // k.shape[1], axis=1)

    def poison(out: Tensor) -> Tensor:
        return lax.cond(all_finite, lambda out: out, poisoned, out)

    return jnp.where(finite_k, k, 0), jnp.where(finite_v, v, 0), poison


# -- elementwise: half precisions are computed in float32 and rounded once ---------------------------


def relu(x: Tensor) -> Tensor:
    return jax.nn.relu(x)  # its derivative at 0 is 0


def silu(x: Tensor) -> Tensor:
    return jax.nn.silu(_wide(x)).astype(x.dtype)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return jax.nn.gelu(_wide(x), approximate=approximate == "tanh").astype(x.dtype)


def quick_gelu(x: Tensor) -> Tensor:
    wide = _wide(x)
    return (wide * jax.nn.sigmoid(1.702 * wide)).astype(x.dtype)


def tanh(x: Tensor) -> Tensor:
    return jnp.tanh(_wide(x)).astype(x.dtype)


def exp(x: Tensor) -> Tensor:
    return jnp.exp(_wide(x)).astype(x.dtype)


def sigmoid(x: Tensor) -> Tensor:
    return jax.nn.sigmoid(_wide(x)).astype(x.dtype)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    return jax.nn.softmax(_wide(x), axis).astype(x.dtype)


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
    if any(map(_open, (length, start, stop))):
        return _narrowed(x, axis, start, stop)
    first = start + length if start < 0 else start
    last = length if stop is None else stop + length if stop < 0 else stop
    if not 0 <= first <= last <= length:
        raise outside_axis(axis, start, stop, x.shape)
    return lax.slice_in_dim(x, first, last, axis=axis)


def _narrowed(x: Tensor, axis: int, start: Any, stop: Any) -> Tensor:
    """:func:`narrow` of an open length: a row of NaN for each element that the axis does not have."""
    length = x.shape[axis]
    first = start + length if not _open(start) and start < 0 else start
    last = length if stop is None else stop + length if not _open(stop) and stop < 0 else stop
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
    return _wide(x).mean(axis, keepdims=keepdim).astype(x.dtype)


def max(x: Tensor, axis: int, keepdim: bool = False) -> Tensor:
    """Largest element; equal ones share the gradient."""
    if x.shape[axis] == 0:
        raise no_elements("max", axis, x.shape)
    return x.max(axis, keepdims=keepdim)


def masked_pool(x: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Mean, maximum, first or last of the positions where ``mask`` is True; zeros where there is none."""
    if x.shape[1] == 0:
        raise no_elements(mode, 1, x.shape)
    if mode == "mean":
        wide = _wide(select(x, mask))
        count = jnp.maximum(mask.sum(1), 1).astype(wide.dtype)  # (B)
        return (wide.sum(1) / count[:, None]).astype(x.dtype)
    if mode == "max":
        found = jnp.where(mask[..., None], x, -jnp.inf).max(1)  # (B, D)
    else:
        seen = mask if mode == "first" else mask[:, ::-1]
        index = jnp.argmax(seen, axis=1)  # (B), the first of equal ones
        index = index if mode == "first" else x.shape[1] - 1 - index
        found = jnp.take_along_axis(x, index[:, None, None], axis=1)[:, 0]  # (B, D)
    return jnp.where(mask.any(1)[:, None], found, 0)


# -- rotary tables ---------------------------------------------------------------------------------


def cos_sin(length: int, frequencies: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Two ``[length, len(frequencies)]`` tables, constants of a compiled function."""
    dtype = jnp.dtype(like.dtype)
    if _open(length):
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


# -- helpers ---------------------------------------------------------------------------------------


def _open(size: Any) -> bool:
    """Whether a size is an expression of ``jax.export``, whose comparisons may have no answer."""
    return size is not None and not isinstance(size, int | np.integer)


def _places(start: int, stop: Any) -> Any:
    """Positions: in NumPy, so that they are constants, unless the length is open."""
    return jnp.arange(start, stop) if _open(stop) else np.arange(start, stop)


def _over(vector: Tensor, x: Tensor) -> Tensor:
    """``[D]`` as ``[1, ..., D]``: JAX may be told to refuse to promote ranks."""
    return vector.reshape((1,) * (x.ndim - 1) + vector.shape)


def _wide(x: Tensor) -> Tensor:
    """float32 in place of the half precisions."""
    return x.astype(jnp.float32) if x.dtype in HALVES else x
