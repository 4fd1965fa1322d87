"""The primitives in NumPy, float64 throughout: what every other backend is measured against.

Written to be read, one formula after the other; nothing here is shared with another backend. Tensors are
float64 arrays, integer ids and boolean masks. :class:`isomorph.primitives.Primitives` says what each does.

Axis legend: B batch, T query positions, S key positions, H heads, K key/value heads, d head width,
D model width, N rows of a table, C input channels, O output channels, p and q the sides of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomorph.backends.reference.error_function import erf
from isomorph.primitives import no_elements, outside_axis, outside_table

Array = NDArray[Any]


# -- maps with parameters ----------------------------------------------------------------------


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    out = x @ weight.T  # (..., D_in) @ (D_in, D_out) -> (..., D_out)
    return out if bias is None else out + bias


def conv1d(x: Array, weight: Array, bias: Array | None = None, *, stride: int = 1, padding: int = 0) -> Array:
    k = weight.shape[2]
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding)))  # (B, C, T + 2 * padding)
    windows = np.lib.stride_tricks.sliding_window_view(padded, k, axis=2)[:, :, ::stride]  # (B, C, L, k)
    out = np.tensordot(windows, weight, axes=((1, 3), (1, 2)))  # (B, L, O), summed over C and k
    if bias is not None:
        out = out + bias
    return np.moveaxis(out, 2, 1)  # (B, O, L)


def conv2d(x: Array, weight: Array, bias: Array | None = None, *, stride: int = 1) -> Array:
    kernel = weight.shape[2:]  # p, q
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(2, 3))  # (B, C, H, W, p, q), stride 1
    windows = windows[:, :, ::stride, ::stride]  # (B, C, H', W', p, q)
    out = np.tensordot(windows, weight, axes=((1, 4, 5), (1, 2, 3)))  # (B, H', W', O), summed over C, p, q
    if bias is not None:
        out = out + bias
    return np.moveaxis(out, 3, 1)  # (B, O, H', W')


def embedding(ids: Array, weight: Array) -> Array:
    rows = weight.shape[0]  # N
    outside = ids[(ids < 0) | (ids >= rows)]
    if outside.size:
        raise outside_table(int(outside[0]), rows)
    return weight[ids]  # (...) -> (..., D)


# -- norms over the last axis ------------------------------------------------------------------


def layer_norm(x: Array, weight: Array | None, bias: Array | None, *, eps: float) -> Array:
    centered = x - x.mean(axis=-1, keepdims=True)  # (..., D)
    variance = (centered**2).mean(axis=-1, keepdims=True)  # (..., 1), the mean already taken away
    out = centered / np.sqrt(variance + eps)
    if weight is not None:
        out = out * weight
    return out if bias is None else out + bias


def rms_norm(x: Array, weight: Array | None, *, eps: float, offset: float = 0.0) -> Array:
    mean_square = (x**2).mean(axis=-1, keepdims=True)  # (..., 1)
    out = x / np.sqrt(mean_square + eps)
    return out if weight is None else out * (weight + offset)


def l2_normalize(x: Array, *, eps: float) -> Array:
    return x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + eps)


# -- attention ---------------------------------------------------------------------------------


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    *,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    dropout: Callable[[Array], Array] | None = None,
) -> Array:
    H, T, d = q.shape[1:]
    K, S = k.shape[1:3]
    k = np.repeat(k, H // K, axis=1)  # (B, H, S, d): head h reads key/value head h // (H / K)
    v = np.repeat(v, H // K, axis=1)  # (B, H, S, d)
    visible = visibility(T, S, mask, causal, window)  # (B or 1, 1, T, S)
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and inf may stand behind the mask
        scores = q @ np.swapaxes(k, 2, 3) / np.sqrt(d)  # (B, H, T, S)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        weights = visible_softmax(scores, visible)  # (B, H, T, S)
        if dropout is not None:
            weights = dropout(weights)
        return weighted_sum(weights, v, visible)  # (B, H, T, d)


def visibility(T: int, S: int, mask: Array | None, causal: bool, window: int) -> Array:
    """Which query (row) may attend to which key (column): ``(B or 1, 1, T, S)``, True where it may."""
    position = np.arange(T)[:, None] + S - T  # (T, 1): the last query stands at the last key
    key = np.arange(S)[None, :]  # (1, S)
    visible = np.ones((T, S), dtype=bool)
    if causal:
        visible &= key <= position
    if window:
        visible &= key > position - window
        if not causal:
            visible &= key < position + window
    visible = visible[None, None]  # (1, 1, T, S)
    return visible if mask is None else visible & mask[:, None, None, :]  # (B, 1, T, S)


def visible_softmax(scores: Array, visible: Array) -> Array:
    """Softmax over the visible keys alone; hidden ones weigh 0, and so does all of a row that sees none."""
    sees_some = visible.any(axis=-1, keepdims=True)  # (B or 1, 1, T, 1)
    scores = np.where(visible, scores, -np.inf)
    largest = np.where(sees_some, scores.max(axis=-1, keepdims=True, initial=-np.inf), 0.0)  # (B, H, T, 1)
    weights = np.exp(scores - largest)
    return weights / np.where(sees_some, weights.sum(axis=-1, keepdims=True), 1.0)


def weighted_sum(weights: Array, v: Array, visible: Array) -> Array:
    """``weights @ v`` in which 0 times a hidden NaN or infinity is nothing."""
    finite = np.isfinite(v)
    out = weights @ np.where(finite, v, 0.0)  # (B, H, T, d)
    for j in np.flatnonzero(~finite.all(axis=(0, 1, 3))):  # key positions that hold a NaN or infinity
        bad = np.where(finite[:, :, j], 0.0, v[:, :, j])[:, :, None, :]  # (B, H, 1, d)
        out = out + np.where(visible[..., j, None], weights[..., j, None] * bad, 0.0)
    return out


# -- elementwise -------------------------------------------------------------------------------


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def sigmoid(x: Array) -> Array:
    decay = np.exp(-np.abs(x))  # at most 1, so that nothing overflows
    return np.where(x >= 0, 1.0, decay) / (1.0 + decay)


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))


def quick_gelu(x: Array) -> Array:
    return x * sigmoid(1.702 * x)


def tanh(x: Array) -> Array:
    return np.tanh(x)


def exp(x: Array) -> Array:
    return np.exp(x)


def softmax(x: Array, axis: int = -1) -> Array:
    weights = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return weights / weights.sum(axis=axis, keepdims=True)


# -- shape -------------------------------------------------------------------------------------


def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return np.reshape(x, shape)


def permute(x: Array, axes: tuple[int, ...]) -> Array:
    return np.transpose(x, axes)


def concatenate(tensors: tuple[Array, ...], axis: int) -> Array:
    return np.concatenate(tensors, axis)


def narrow(x: Array, axis: int, start: int, stop: int | None) -> Array:
    length = x.shape[axis]
    first = start + length if start < 0 else start
    last = length if stop is None else stop + length if stop < 0 else stop
    if not 0 <= first <= last <= length:
        raise outside_axis(axis, start, stop, x.shape)
    index = [slice(None)] * x.ndim
    index[axis] = slice(first, last)
    return x[tuple(index)]


def expand(x: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(x, shape)


def select(x: Array, mask: Array) -> Array:
    return np.where(mask[..., None], x, 0.0)  # (B, S, D)


def take_at(x: Array, ids: Array, token: int) -> Array:
    if ids.shape[1] == 0:
        raise no_elements("take_at", 1, x.shape)
    position = (ids if token == -1 else ids == token).argmax(axis=1)  # (B,): the first of equal ones
    return x[np.arange(len(x)), position]  # (B, D)


# -- reductions --------------------------------------------------------------------------------


def mean(x: Array, axis: int, keepdim: bool = False) -> Array:
    if x.shape[axis] == 0:
        raise no_elements("mean", axis, x.shape)
    return x.mean(axis=axis, keepdims=keepdim)


def max(x: Array, axis: int, keepdim: bool = False) -> Array:
    if x.shape[axis] == 0:
        raise no_elements("max", axis, x.shape)
    return x.max(axis=axis, keepdims=keepdim)


def cumsum(x: Array, axis: int) -> Array:
    return x.cumsum(axis=axis)


def masked_pool(x: Array, mask: Array, mode: str) -> Array:
    if x.shape[1] == 0:
        raise no_elements(mode, 1, x.shape)
    out = np.zeros((x.shape[0], x.shape[2]))  # (B, D)
    for b in range(x.shape[0]):
        seen = x[b, mask[b]]  # (number of True, D)
        if len(seen):
            if mode == "mean":
                out[b] = seen.mean(axis=0)
            elif mode == "max":
                out[b] = seen.max(axis=0)
            else:
                out[b] = seen[0] if mode == "first" else seen[-1]
    return out


# -- tables ------------------------------------------------------------------------------------


def cos_sin(length: int, frequencies: tuple[float, ...], like: Array) -> tuple[Array, Array]:
    angles = np.arange(length)[:, None] * np.asarray(frequencies, dtype=np.float64)  # (length, pairs)
    return np.cos(angles), np.sin(angles)


def positions(table: Array, length: int) -> Array:
    return narrow(table, 0, 0, length)
