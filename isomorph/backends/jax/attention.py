"""Attention on ``jax.Array``: who sees whom, blocks of queries, and the two products of one block.

Axis legend: B batch, T query positions, S key positions, H heads, K key/value heads, G = H/K query heads
per key/value head, d head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from isomorph.backends.jax.arithmetic import HALVES, PRECISION, Tensor, is_open


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
    if (causal or window) and (is_open(S) or S > 1):
        visible = _visibility(mask, _places(0, T) + (S - T), _places(0, S), causal, window)
        k, v, poison = _withhold(k, v, visible, H)
    out = attend_in_blocks(q, k, v, mask, causal=causal, window=window, softcap=softcap, dropout=dropout)
    return out if poison is None else poison(out)


# -- blocks of queries -------------------------------------------------------------------------------

WHOLE = 1 << 16
"""Scores of one head up to which all queries attend at once."""
_BLOCK, _MULTIPLE, _MOST_BLOCKS = 128, 64, 8


class _Block(NamedTuple):
    """Queries ``start`` to ``stop``, and the keys ``first`` to ``last`` that one of them may attend."""

    start: int
    stop: int
    first: int
    last: int


def _blocks(T: int, S: int, rows: int, causal: bool, window: int) -> Iterator[_Block]:
    """``rows`` queries at a time; all keys for all queries at once."""
    for start in range(0, T, rows) or (0,):
        stop, first, last = min(start + rows, T), 0, S
        if rows < T and window:
            first = min(max(0, start + S - T - window + 1), S - 1)
        if rows < T and (causal or window):
            last = max(first + 1, min(S, stop - 1 + S - T + (1 if causal else window)))
        yield _Block(start, stop, first, last)


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

    A block's scores stay in the cache. ``adding`` takes :func:`attend_adding` where every query sees a key.
    """
    T, S = q.shape[2], k.shape[2]
    if is_open(T) or is_open(S):
        visible = _visibility(mask, _places(0, T) + (S - T), _places(0, S), causal, window)
        return attend(q, k, v, visible, softcap, dropout)
    if T * S <= WHOLE or dropout is not None or jax.default_backend() != "cpu":
        rows = max(T, 1)
    else:
        rows = max(_BLOCK, -(-T // _MOST_BLOCKS // _MULTIPLE) * _MULTIPLE)
    results = []
    for start, stop, first, last in _blocks(T, S, rows, causal, window):
        queries, keys = np.arange(start, stop) + S - T, np.arange(first, last)  # positions among the keys
        part = (q[:, :, start:stop], k[:, :, first:last], v[:, :, first:last])
        if adding and mask is None and (causal or window) and _all_see(queries, keys, causal, window):
            positions = (jnp.arange(start, stop) + (S - T), jnp.arange(first, last))
            results.append(attend_adding(*part, _visibility(None, *positions, causal, window), softcap))
        else:
            visible = _visibility(mask, queries, keys, causal, window)
            results.append(attend(*part, visible, softcap, dropout))
    return results[0] if len(results) == 1 else jnp.concatenate(results, 2)


# -- one block ---------------------------------------------------------------------------------------


def attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Any, softcap: float = 0.0, dropout: Any = None
) -> Tensor:
    """:func:`attention` of finite keys and values at once.

    Args:
        q, k, v: ``[B, H, T, d], [B, K, S, d], [B, K, S, d]``.
        visible: who sees whom, boolean ``[B or 1, 1, 1, T or 1, S]``, or None.
        softcap, dropout: as in :func:`attention`.
    """
    scores = _scores(q, k, softcap)
    if visible is None and dropout is None:  # a reshape in between would keep the compiler from one kernel
        return _mean(_exponentials(scores), v, q)
    B, H, T, _ = q.shape
    K, S = k.shape[1], k.shape[2]
    weights, total = _visible_exponentials(scores.reshape(B, K, H // K, T, S), visible)
    if dropout is not None:
        weights = dropout(weights)
    return _mean((weights.reshape(scores.shape), total.reshape(*scores.shape[:2], 1)), v, q)


def attend_adding(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, softcap: float) -> Tensor:
    """:func:`attend` that hides keys by adding minus infinity to their scores, which the CPU compiler makes one kernel of.

    ``visible`` is the same for every row of the batch, ``[1, 1, 1, T, S]``; each query must see a key. A score
    that is too large to represent, hidden or not, makes its query's results NaN.
    """
    B, H, T, _ = q.shape
    K, S = k.shape[1], k.shape[2]
    scores = _scores(q, k, softcap)
    added = jnp.where(visible[0, 0], 0.0, -jnp.inf).astype(scores.dtype)  # (1, T, S)
    grouped = scores if H == K else scores.reshape(B * K, H // K, T, S)
    return _mean(_exponentials((grouped + added).reshape(scores.shape)), v, q)


_EXACT = frozenset(2.0**-power for power in range(16))
"""Scales that change no digit of a bfloat16, whose exponents reach far."""


def _scores(q: Tensor, k: Tensor, softcap: float) -> Tensor:
    """``q k^T / sqrt(d)``, capped: ``[B*K, G*T, S]``, in float32 at least."""
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
        scores = _batched(query, key)
    if scale != 1:
        scores = scores * scale
    return softcap * jnp.tanh(scores / softcap) if softcap else scores


def _exponentials(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax's numerators, and their sums ``[..., 1]``."""
    weights = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
    return weights, weights.sum(-1, keepdims=True)


def _visible_exponentials(scores: Tensor, visible: Any) -> tuple[Tensor, Tensor]:
    """The softmax's numerators ``[B, K, G, T, S]`` and their sums ``[B, K, G, T]``; hidden keys weigh nothing."""
    if visible is not None:
        scores = jnp.where(visible, scores, float(jnp.finfo(scores.dtype).min))
    weights = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
    if visible is None:
        return weights, weights.sum(-1)
    weights = jnp.where(visible, weights, 0)
    # A query that sees nothing divides zero by one: zeros, and finite gradients.
    return weights, jnp.where(visible.any(-1), weights.sum(-1), 1)


def _mean(exponentials: tuple[Tensor, Tensor], v: Tensor, q: Tensor) -> Tensor:
    """The values' mean with these weights, in the shape and dtype of ``q``."""
    weights, total = exponentials
    B, K, S, d = v.shape
    out = _batched(weights.astype(v.dtype), v.reshape(B * K, S, d)) / total
    return out.reshape(q.shape).astype(q.dtype)


def _batched(a: Tensor, b: Tensor, axis: int = 1) -> Tensor:
    """``a`` times ``b`` along its ``axis``, with one leading batch axis; in float32 at least, and left there."""
    wide = jnp.float32 if a.dtype in HALVES else a.dtype
    axes = (((2,), (axis,)), ((0,), (0,)))
    return lax.dot_general(a, b, axes, precision=PRECISION, preferred_element_type=wide)


# -- who sees whom -----------------------------------------------------------------------------------


def _places(start: int, stop: Any) -> Any:
    """Positions: in NumPy, so that they are constants, unless the length is open."""
    return jnp.arange(start, stop) if is_open(stop) else np.arange(start, stop)


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
