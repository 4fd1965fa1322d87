"""The primitives on tensors without values: each records one step, with its operations and its longest sum.

How operations are counted: a multiplication, an addition, a comparison and a call of exp, tanh, erf, sqrt,
sin or cos are one each, so that a matrix product of ``[M, K]`` and ``[K, N]`` is ``2 M N K``. What a causal
or windowed attention need not compute is not taken off. Moving data (``reshape``, ``embedding``) is free.

Axis legend: B batch, T query positions, S key positions, H heads, K key/value heads, d head width,
C input channels, O output channels, p and q the sides of a kernel.
"""

from __future__ import annotations

from math import prod
from typing import Any

from isomorph.primitives import no_elements, outside_axis
from isomorph.trace.program import Shape, TracedTensor

SOFTMAX_FLOPS = 5  # per element: compare, subtract, exp, add to the sum, divide
SOFTCAP_FLOPS = 3  # divide, tanh, multiply
LAYER_NORM_FLOPS = 5  # add to the mean, subtract it, square, add to the variance, divide
RMS_NORM_FLOPS = 3  # square, add, divide
SIGMOID_FLOPS = 4  # negate, exp, add, divide
SILU_FLOPS = SIGMOID_FLOPS + 1
QUICK_GELU_FLOPS = SIGMOID_FLOPS + 2
GELU_FLOPS = 5  # divide, erf, add, multiply, multiply
GELU_TANH_FLOPS = 9  # cube (2), multiply, add, multiply, tanh, add, multiply, multiply
COS_SIN_FLOPS = 3  # multiply, cos, sin


def _given(*tensors: TracedTensor | None) -> list[TracedTensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _kept(x: TracedTensor, primitive: str, flops: int, **attributes: Any) -> TracedTensor:
    """A step whose elements depend on one element each."""
    return x.program.record(primitive, [x], x.shape, attributes, flops=flops * x.size)


# -- maps with parameters ----------------------------------------------------------------------


def linear(x: TracedTensor, weight: TracedTensor, bias: TracedTensor | None = None) -> TracedTensor:
    D_out, D_in = weight.shape
    if x.shape[-1] != D_in or (bias is not None and bias.shape != (D_out,)):
        raise ValueError(f"linear: {x.shape} does not fit a weight {weight.shape}")
    shape = (*x.shape[:-1], D_out)
    flops = prod(shape) * (2 * D_in + (bias is not None))
    return x.program.record("linear", _given(x, weight, bias), shape, flops=flops, reduction=D_in)


def conv1d(
    x: TracedTensor,
    weight: TracedTensor,
    bias: TracedTensor | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
) -> TracedTensor:
    B, C, T = x.shape
    O, channels, k = weight.shape  # noqa: E741
    if channels != C or T + 2 * padding < k:
        raise ValueError(f"conv1d: {x.shape} does not fit a weight {weight.shape}")
    shape = (B, O, (T + 2 * padding - k) // stride + 1)
    flops = prod(shape) * (2 * C * k + (bias is not None))
    attributes = {"stride": stride, "padding": padding}
    return x.program.record(
        "conv1d", _given(x, weight, bias), shape, attributes, flops=flops, reduction=C * k
    )


def conv2d(
    x: TracedTensor, weight: TracedTensor, bias: TracedTensor | None = None, *, stride: int = 1
) -> TracedTensor:
    B, C, height, width = x.shape
    O, channels, p, q = weight.shape  # noqa: E741
    if channels != C or height < p or width < q:
        raise ValueError(f"conv2d: {x.shape} does not fit a weight {weight.shape}")
    shape = (B, O, (height - p) // stride + 1, (width - q) // stride + 1)
    flops = prod(shape) * (2 * C * p * q + (bias is not None))
    return x.program.record(
        "conv2d", _given(x, weight, bias), shape, {"stride": stride}, flops=flops, reduction=C * p * q
    )


def embedding(ids: TracedTensor, weight: TracedTensor) -> TracedTensor:
    shape = (*ids.shape, weight.shape[1])
    return ids.program.record("embedding", [ids, weight], shape, dtype=weight.dtype)


# -- norms over the last axis ------------------------------------------------------------------


def layer_norm(
    x: TracedTensor, weight: TracedTensor | None, bias: TracedTensor | None, *, eps: float
) -> TracedTensor:
    flops = x.size * (LAYER_NORM_FLOPS + (weight is not None) + (bias is not None))
    attributes = {"eps": eps, "weight": weight is not None, "bias": bias is not None}
    return x.program.record(
        "layer_norm", _given(x, weight, bias), x.shape, attributes, flops=flops, reduction=x.shape[-1]
    )


def rms_norm(
    x: TracedTensor, weight: TracedTensor | None, *, eps: float, offset: float = 0.0
) -> TracedTensor:
    flops = x.size * (RMS_NORM_FLOPS + (weight is not None))
    attributes = {"eps": eps, "offset": offset}
    return x.program.record(
        "rms_norm", _given(x, weight), x.shape, attributes, flops=flops, reduction=x.shape[-1]
    )


def l2_normalize(x: TracedTensor, *, eps: float) -> TracedTensor:
    return x.program.record(
        "l2_normalize", [x], x.shape, {"eps": eps}, flops=RMS_NORM_FLOPS * x.size, reduction=x.shape[-1]
    )


# -- attention ---------------------------------------------------------------------------------


def attention(
    q: TracedTensor,
    k: TracedTensor,
    v: TracedTensor,
    mask: TracedTensor | None = None,
    *,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    dropout: Any = None,
) -> TracedTensor:
    """Two products of ``2 B H T S d`` each and the softmax; the hidden half of a causal one counts too."""
    B, H, T, d = q.shape
    K, S = k.shape[1:3]
    if k.shape != (B, K, S, d) or v.shape != k.shape or H % K or (mask is not None and mask.shape != (B, S)):
        raise ValueError(f"attention: queries {q.shape}, keys {k.shape} and values {v.shape} do not fit")
    per_score = 4 * d + SOFTMAX_FLOPS + (SOFTCAP_FLOPS if softcap else 0)
    attributes = {"causal": causal, "window": window, "softcap": softcap, "mask": mask is not None}
    return q.program.record(
        "attention", _given(q, k, v, mask), q.shape, attributes,
        flops=B * H * T * S * per_score, reduction=d if d > S else S,
    )  # fmt: skip


# -- elementwise -------------------------------------------------------------------------------


def relu(x: TracedTensor) -> TracedTensor:
    return _kept(x, "relu", 1)


def silu(x: TracedTensor) -> TracedTensor:
    return _kept(x, "silu", SILU_FLOPS)


def gelu(x: TracedTensor, approximate: str = "none") -> TracedTensor:
    return _kept(x, "gelu", GELU_TANH_FLOPS if approximate == "tanh" else GELU_FLOPS, approximate=approximate)


def quick_gelu(x: TracedTensor) -> TracedTensor:
    return _kept(x, "quick_gelu", QUICK_GELU_FLOPS)


def tanh(x: TracedTensor) -> TracedTensor:
    return _kept(x, "tanh", 1)


def exp(x: TracedTensor) -> TracedTensor:
    return _kept(x, "exp", 1)


def sigmoid(x: TracedTensor) -> TracedTensor:
    return _kept(x, "sigmoid", SIGMOID_FLOPS)


def softmax(x: TracedTensor, axis: int = -1) -> TracedTensor:
    return x.program.record(
        "softmax", [x], x.shape, {"axis": axis}, flops=SOFTMAX_FLOPS * x.size, reduction=x.shape[axis]
    )


# -- shape -------------------------------------------------------------------------------------


def reshape(x: TracedTensor, shape: tuple[int, ...]) -> TracedTensor:
    if prod(shape) != x.size or min(shape, default=0) < 0:
        raise ValueError(f"reshape: {x.shape} has not the elements of {shape}")
    return x.program.record("reshape", [x], tuple(shape), view=True)


def permute(x: TracedTensor, axes: tuple[int, ...]) -> TracedTensor:
    shape = tuple(x.shape[axis] for axis in axes)
    return x.program.record("permute", [x], shape, {"axes": tuple(axes)}, view=True)


def concatenate(tensors: tuple[TracedTensor, ...], axis: int) -> TracedTensor:
    first = tensors[0]
    shape = list(first.shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
    at = axis % len(shape)
    if any(t.shape[:at] + t.shape[at + 1 :] != first.shape[:at] + first.shape[at + 1 :] for t in tensors):
        raise ValueError(
            f"concatenate: {', '.join(str(t.shape) for t in tensors)} differ outside axis {axis}"
        )
    return first.program.record("concatenate", tensors, tuple(shape), {"axis": axis})


def narrow(x: TracedTensor, axis: int, start: int, stop: int | None) -> TracedTensor:
    length = x.shape[axis]
    first = start + length if start < 0 else start
    last = length if stop is None else stop + length if stop < 0 else stop
    if not 0 <= first <= last <= length:
        raise outside_axis(axis, start, stop, x.shape)
    shape = list(x.shape)
    shape[axis] = last - first
    attributes = {"axis": axis, "start": start, "stop": stop}
    return x.program.record("narrow", [x], tuple(shape), attributes, view=True)


def expand(x: TracedTensor, shape: tuple[int, ...]) -> TracedTensor:
    if len(shape) != len(x.shape) or any(
        old not in (1, new) for old, new in zip(x.shape, shape, strict=True)
    ):
        raise ValueError(f"expand: {x.shape} does not repeat to {shape}")
    return x.program.record("expand", [x], tuple(shape), view=True)


def select(x: TracedTensor, mask: TracedTensor) -> TracedTensor:
    if mask.shape != x.shape[:-1]:
        raise ValueError(f"select: a mask {mask.shape} does not fit {x.shape}")
    return x.program.record("select", [x, mask], x.shape)


def take_at(x: TracedTensor, ids: TracedTensor, token: int) -> TracedTensor:
    if ids.shape != x.shape[:2]:
        raise ValueError(f"take_at: ids {ids.shape} do not fit {x.shape}")
    if x.shape[1] == 0:
        raise no_elements("take_at", 1, x.shape)
    return x.program.record("take_at", [x, ids], (x.shape[0], *x.shape[2:]), {"token": token})


# -- reductions --------------------------------------------------------------------------------


def _reduced(x: TracedTensor, axis: int, keepdim: bool) -> Shape:
    shape = list(x.shape)
    if keepdim:
        shape[axis] = 1
    else:
        del shape[axis]
    return tuple(shape)


def mean(x: TracedTensor, axis: int, keepdim: bool = False) -> TracedTensor:
    if x.shape[axis] == 0:
        raise no_elements("mean", axis, x.shape)
    attributes = {"axis": axis, "keepdim": keepdim}
    return x.program.record(
        "mean", [x], _reduced(x, axis, keepdim), attributes, flops=x.size, reduction=x.shape[axis]
    )


def max(x: TracedTensor, axis: int, keepdim: bool = False) -> TracedTensor:
    """Its longest reduction is 1: choosing an element rounds nothing."""
    if x.shape[axis] == 0:
        raise no_elements("max", axis, x.shape)
    attributes = {"axis": axis, "keepdim": keepdim}
    return x.program.record("max", [x], _reduced(x, axis, keepdim), attributes, flops=x.size)


def masked_pool(x: TracedTensor, mask: TracedTensor, mode: str) -> TracedTensor:
    """A mean and a maximum read every position; the first and the last one are only moved."""
    if mask.shape != x.shape[:-1]:
        raise ValueError(f"masked_pool: a mask {mask.shape} does not fit {x.shape}")
    B, T, D = x.shape
    if T == 0:
        raise no_elements(mode, 1, x.shape)
    flops = x.size if mode in ("mean", "max") else 0
    return x.program.record(
        "masked_pool", [x, mask], (B, D), {"mode": mode}, flops=flops, reduction=T if mode == "mean" else 1
    )


# -- tables ------------------------------------------------------------------------------------


def cos_sin(
    length: int, frequencies: tuple[float, ...], like: TracedTensor
) -> tuple[TracedTensor, TracedTensor]:
    """Reads no tensor: ``like`` only lends its dtype."""
    shape = (length, len(frequencies))
    attributes = {"length": length, "frequencies": tuple(frequencies)}
    cos, sin = like.program.record_many(
        "cos_sin", [], [shape, shape], attributes, flops=COS_SIN_FLOPS * prod(shape), dtype=like.dtype
    )
    return cos, sin


def positions(table: TracedTensor, length: int) -> TracedTensor:
    if length > table.shape[0]:
        raise outside_axis(0, 0, length, table.shape)
    shape = (length, *table.shape[1:])
    return table.program.record("positions", [table], shape, {"length": length}, view=True)
