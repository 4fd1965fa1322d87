"""The primitives of :class:`isomorph.primitives.Primitives` on ``torch.Tensor``.

Two kinds of care cost a look at values, so they are taken in eager mode alone and vanish when a graph is
captured (``torch.compile``, ``torch.export``, a CUDA graph): refusing ids outside a table, and keeping a
NaN or infinity at a *future* position from reaching an earlier query (``softmax`` gives it the weight
zero, but ``0 * nan`` is NaN; see :func:`attention`). Positions hidden by a mask argument are replaced
before any product, in every mode.

Axis legend: B batch, T query positions, S key positions, H heads, K key/value heads, d head width.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional

from isomorph.errors import IsomorphError
from isomorph.primitives import no_elements, outside_axis, outside_table

Tensor = torch.Tensor
HALVES = (torch.bfloat16, torch.float16)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(x, weight, bias)


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """Windows are gathered and multiplied as rows of a matrix, for the reason that :func:`conv2d` states.

    They take ``k / stride`` times the memory of x.
    """
    O, C, k = weight.shape  # noqa: E741
    windows = functional.pad(x, (padding, padding)).unfold(2, k, stride)  # (B, C, L, k)
    rows = windows.permute(0, 2, 1, 3).flatten(2)  # (B, L, C * k)
    return functional.linear(rows, weight.reshape(O, C * k), bias).transpose(1, 2)  # (B, O, L)


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1) -> Tensor:
    """Patches that do not overlap are multiplied as rows of a matrix.

    That product obeys ``torch.set_float32_matmul_precision``, so float32 means float32 on a GPU too;
    convolutions there round to TF32 unless a global flag says otherwise.
    """
    B, C, H, W = x.shape
    D, p = weight.shape[0], stride
    if weight.shape[2:] != (p, p) or H % p or W % p:
        return functional.conv2d(x, weight, bias, stride=stride)
    patches = x.reshape(B, C, H // p, p, W // p, p).permute(0, 2, 4, 1, 3, 5)  # (B, H/p, W/p, C, p, p)
    out = functional.linear(patches.reshape(B, H // p, W // p, C * p * p), weight.reshape(D, -1), bias)
    return out.permute(0, 3, 1, 2)  # (B, D, H/p, W/p)


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of a table. In eager mode an id outside it is E_RUNTIME with the id and the table's size.

    On the CPU the lookup itself notices, at no cost; on an accelerator the smallest and the largest id
    are read first, which waits for the device once. Captured graphs do what the framework does: an error
    on the CPU, a device-side assertion on CUDA. Ids of narrow integer dtypes are widened first.
    """
    wide = ids if ids.dtype in (torch.int64, torch.int32) else ids.long()  # what the framework's lookup takes
    if not _looking():
        return functional.embedding(wide, weight)
    if ids.device.type == "cpu":
        try:
            return functional.embedding(wide, weight)
        except IndexError:
            raise _outside(ids, weight.shape[0]) from None
    check_ids(ids, weight.shape[0])
    return functional.embedding(wide, weight)


def check_ids(ids: Tensor, rows: int) -> None:
    """E_RUNTIME for an id outside a table of ``rows`` rows; waits for the device."""
    if ids.numel():
        extremes = _read(torch.stack(torch.aminmax(ids.detach().long())))
        if extremes is not None and not 0 <= extremes[0] <= extremes[1] < rows:
            raise _outside(ids, rows)


def _outside(ids: Tensor, rows: int) -> IsomorphError:
    wide = ids.long()  # in which the upper half of uint64 is negative
    first = int(wide[(wide < 0) | (wide >= rows)][0])
    return outside_table(first % 2**64 if ids.dtype == torch.uint64 else first, rows)


# -- norms -----------------------------------------------------------------------------------------


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
    """The framework's own: two-pass (or Welford) statistics, in float32 for half-precision inputs."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor | None, *, eps: float, offset: float = 0.0) -> Tensor:
    if weight is None or (weight.dtype == x.dtype and not (offset and x.dtype in HALVES)):
        gain = weight + offset if weight is not None and offset else weight
        return functional.rms_norm(x, x.shape[-1:], gain, eps)
    # 1 + weight, or a wider weight under autocast, would lose digits in half precision: round once, last
    wide = _wide(x)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (_wide(weight) + offset)).to(x.dtype)


def l2_normalize(x: Tensor, *, eps: float) -> Tensor:
    wide = _wide(x)
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


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
    """``softmax(q k^T / sqrt(d)) v`` by ``scaled_dot_product_attention``, which picks the kernel.

    Keys and values that ``mask`` hides become zeros by selection, so nothing in them can reach a result or
    a gradient. What ``causal`` and ``window`` hide, they hide from some queries only; there the kernels
    multiply by a weight of zero. In eager mode keys and values are therefore summed first: if the sum is
    not finite (in practice: never), a slower and exact way is taken, in which queries that see the value
    become NaN and all others stay as they are. Captured graphs leave that check out.
    """
    T, S = q.shape[-2], k.shape[-2]
    if mask is not None:
        kept = mask[:, None, :, None]  # (B, 1, S, 1)
        k, v = torch.where(kept, k, 0.0), torch.where(kept, v, 0.0)
    poison = None
    if (causal or window) and S > 1 and _looking() and not _finite(k, v):
        visible = _visible(mask, T, S, causal, window, q.device)
        assert visible is not None
        k, v, poison = _withhold(k, v, visible, q.shape[1])
    out = attend(q, k, v, mask, causal=causal, window=window, softcap=softcap, dropout=dropout)
    return out if poison is None else out + poison


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    window: int,
    softcap: float,
    dropout: Any = None,
) -> Tensor:
    """:func:`attention` of keys and values that are finite wherever they are hidden from anyone."""
    if not softcap:
        return _fused_attention(q, k, v, mask, causal, window, dropout)
    visible = _visible(mask, q.shape[-2], k.shape[-2], causal, window, q.device)
    return _capped_attention(q, k, v, visible, softcap, dropout)


def _fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, window: int, dropout: Any
) -> Tensor:
    T, S = q.shape[-2], k.shape[-2]
    options: dict[str, Any] = {
        "dropout_p": _drop_probability(dropout),
        "enable_gqa": bool(q.shape[1] != k.shape[1]),
    }
    # The kernels' causal flag aligns the diagonal top-left, so it only means ours when T = S.
    if mask is None and not window and (not causal or T == S):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **options)
    visible = _visible(mask, T, S, causal, window, q.device)
    if mask is None and T <= S:  # every query sees its own position
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, **options)
    assert visible is not None
    # A query that may attend nothing attends everything instead, and its result is then put to zero: no
    # kernel has to divide by a sum of zero, so every gradient is finite.
    sees_any = visible.any(-1, keepdim=True)  # (B, 1, T or 1, 1)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible | ~sees_any, **options)
    return torch.where(sees_any, out, 0.0)


def _capped_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, softcap: float, dropout: Any
) -> Tensor:
    """Soft-capped scores, written out since the fused kernels have none; float32 at least throughout."""
    B, H, T, d = q.shape
    K = k.shape[1]
    query = _wide(q).reshape(B, K, H // K, T, d)
    key, value = _wide(k)[:, :, None], _wide(v)[:, :, None]  # (B, K, 1, S, d)
    scores = query @ key.transpose(-1, -2) * d**-0.5  # (B, K, H/K, T, S)
    scores = softcap * torch.tanh(scores / softcap)
    if visible is None:
        weights = torch.softmax(scores, -1)
    else:
        visible = visible[:, :, None]  # (B, 1, 1, T, S)
        scores = torch.where(visible, scores, torch.finfo(scores.dtype).min)
        weights = torch.where(visible, torch.softmax(scores, -1), 0.0)
    if dropout is not None:
        weights = dropout(weights)
    return (weights @ value).reshape(B, H, T, d).to(q.dtype)


def _visible(
    mask: Tensor | None, T: int, S: int, causal: bool, window: int, device: torch.device
) -> Tensor | None:
    """Which key each query may attend: boolean ``[B or 1, 1, T or 1, S]``, or None for all of them."""
    seen = None if mask is None else mask[:, None, None, :]
    if not causal and not window:
        return seen
    past = torch.arange(T, device=device)[:, None] + (S - T) - torch.arange(S, device=device)  # (T, S)
    near = past >= 0 if causal else past > -window
    if window:
        near = near & (past < window)
    near = near[None, None]
    return near if seen is None else near & seen


def _drop_probability(dropout: Any) -> float:
    """What the fused kernels are told, since they ignore evaluation mode; a holder's dropout is the identity."""
    return float(getattr(dropout, "p", 0.0)) if getattr(dropout, "training", False) else 0.0


def _finite(*tensors: Tensor) -> bool:
    """Whether all values are finite; a sum too large to represent counts as not finite."""
    total = sum(_wide_sum(tensor.detach()) for tensor in tensors)
    assert isinstance(total, Tensor)
    value = _read(total)
    return value is None or value - value == 0


def _wide_sum(x: Tensor) -> Tensor:
    return x.sum(dtype=torch.float32 if x.dtype in HALVES else x.dtype)


def _withhold(k: Tensor, v: Tensor, visible: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values with zeros for what is not finite, and what to add where a query sees such a value.

    A visible infinity in a value makes the result infinite, as a positive weight times it does; a visible
    NaN, or a key that is not finite, makes it NaN.
    """
    sees = visible.to(torch.float32)  # (B or 1, 1, T or 1, S)
    wrong = (
        (torch.inf, v == torch.inf),
        (-torch.inf, v == -torch.inf),
        (torch.nan, torch.isnan(v) | ~torch.isfinite(k).all(-1, keepdim=True)),
    )
    poison = v.new_zeros(())
    for value, places in wrong:  # (B, K, S, d)
        poison = poison + torch.where(sees @ places.to(torch.float32) > 0, value, 0.0).to(v.dtype)
    poison = poison.repeat_interleave(heads // k.shape[1], dim=1)  # (B, H, T, d)
    # Selection and not nan_to_num, whose gradient is a product with zero.
    return torch.where(torch.isfinite(k), k, 0.0), torch.where(torch.isfinite(v), v, 0.0), poison


# -- elementwise -----------------------------------------------------------------------------------


def relu(x: Tensor) -> Tensor:
    return functional.relu(x)


def silu(x: Tensor) -> Tensor:
    return functional.silu(x)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return functional.gelu(x, approximate=approximate)


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def tanh(x: Tensor) -> Tensor:
    return torch.tanh(x)


def exp(x: Tensor) -> Tensor:
    return torch.exp(x)


def sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The framework's own, which works in float32 on half-precision inputs."""
    return torch.softmax(x, axis)


# -- shapes ----------------------------------------------------------------------------------------


def reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x.reshape(shape)


def permute(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.permute(axes)


def concatenate(tensors: tuple[Tensor, ...], axis: int) -> Tensor:
    return torch.cat(tensors, axis)


def narrow(x: Tensor, axis: int, start: int, stop: int | None) -> Tensor:
    axis = axis + x.ndim if axis < 0 else axis
    if not torch.compiler.is_compiling():  # a slice would silently stop at the end
        length = x.shape[axis]
        first = start + length if start < 0 else start
        last = length if stop is None else stop + length if stop < 0 else stop
        if not 0 <= first <= last <= length:
            raise outside_axis(axis, start, stop, x.shape)
    return x[(slice(None),) * axis + (slice(start, stop),)]


def expand(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x.expand(shape)


def select(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask[..., None], x, 0.0)  # (B, S, D)


def take_at(x: Tensor, ids: Tensor, token: int) -> Tensor:
    """Rows at the first of the largest ids, or of the ids that are ``token``; ``argmax`` takes the first."""
    _require_elements("take_at", x, 1)
    wide = ids.long()  # a narrow dtype may not hold the token
    position = (wide if token == -1 else (wide == token).int()).argmax(1)  # (B,)
    return x.gather(1, position[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)  # (B, D)


# -- reductions ------------------------------------------------------------------------------------


def mean(x: Tensor, axis: int, keepdim: bool = False) -> Tensor:
    """The framework's own, which accumulates in float32; no elements are E_RUNTIME in eager mode."""
    _require_elements("mean", x, axis)
    return x.mean(axis, keepdim)


def max(x: Tensor, axis: int, keepdim: bool = False) -> Tensor:
    """Largest element; equal ones share the gradient. No elements are E_RUNTIME."""
    _require_elements("max", x, axis)
    return _amax(x, axis, keepdim)


def cumsum(x: Tensor, axis: int) -> Tensor:
    return _wide(x).cumsum(axis).to(x.dtype)


def masked_pool(x: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Mean, maximum, first or last of the positions where ``mask`` is True; zeros where there is none."""
    _require_elements(mode, x, 1)
    if mode == "mean":
        wide = _wide(select(x, mask)).sum(1)  # (B, D)
        return (wide / mask.sum(1).clamp(min=1)[:, None]).to(x.dtype)
    if mode == "max":
        pooled = _amax(torch.where(mask[..., None], x, -torch.inf), 1)  # (B, D)
    else:
        seen = mask if mode == "first" else mask.flip(1)
        index = seen.int().argmax(1)  # (B), the first of equal ones
        index = index if mode == "first" else x.shape[1] - 1 - index
        pooled = x.gather(1, index[:, None, None].expand(-1, -1, x.shape[2]))[:, 0]  # (B, D)
    return torch.where(mask.any(1)[:, None], pooled, 0.0)


def _amax(x: Tensor, axis: int, keepdim: bool = False) -> Tensor:
    """``amax``; not on its way to ONNX, where PyTorch's exporter makes float32 of half precision."""
    if x.dtype in HALVES and torch.onnx.is_in_onnx_export():
        return x.max(axis, keepdim).values
    return x.amax(axis, keepdim)


def _require_elements(name: str, x: Tensor, axis: int) -> None:
    if not torch.compiler.is_compiling() and x.shape[axis] == 0:
        raise no_elements(name, axis, x.shape)


# -- rotary tables ---------------------------------------------------------------------------------


def cos_sin(length: int, frequencies: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Two ``[length, len(frequencies)]`` tables; kept between calls in eager mode, computed in a graph.

    A graph computes them itself, so that its length stays variable.
    """
    if torch.compiler.is_compiling() or type(like) is not Tensor:  # a subclass may be a fake tensor
        return _tables(length, frequencies, like.dtype, like.device)
    capacity = 64
    while capacity < length:
        capacity *= 2  # few tables for many lengths
    cos, sin = _kept_tables(capacity, frequencies, like.dtype, like.device)
    return cos[:length], sin[:length]


def positions(table: Tensor, length: int) -> Tensor:
    return narrow(table, 0, 0, length)


def _tables(
    length: int, frequencies: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    # Apple's devices have no float64: their angles are computed on the host.
    place = torch.device("cpu") if device.type == "mps" else device
    rates = torch.tensor(frequencies, dtype=torch.float64, device=place)
    angles = torch.arange(length, dtype=torch.float64, device=place)[:, None] * rates  # (length, d/2)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


@lru_cache(maxsize=64)
def _kept_tables(
    capacity: int, frequencies: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # a table first made in inference mode must serve training too
        return _tables(capacity, frequencies, dtype, device)


# -- helpers ---------------------------------------------------------------------------------------


def _wide(x: Tensor) -> Tensor:
    """float32 in place of the half precisions."""
    return x.float() if x.dtype in HALVES else x


def _looking() -> bool:
    """Whether values may be looked at: not while a graph is being captured."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _read(x: Tensor) -> Any:
    """The values as Python numbers, or None where there are none to read (``vmap``, meta tensors)."""
    try:
        return x.tolist()
    except RuntimeError:
        return None
