"""Functions that a written Flax file brings along, each only where the network needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isomorph.source_code.layout import bracketed, docstring
from isomorph.source_code.torch_helpers import NAMES as TORCH_NAMES
from isomorph.source_code.torch_helpers import attention_name, explanation

NORMALIZE = '''
def normalize(x: jax.Array, eps: float) -> jax.Array:
    """`(x - mean) / sqrt(var + eps)` over the last axis, in float32 at least."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centered = wide - wide.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + eps)
    return (centered * scale).astype(x.dtype)
'''

RMS_NORM = '''
def rms_norm(
    x: jax.Array, weight: jax.Array | None, eps: float, offset: float = 0.0
) -> jax.Array:
    """`x / sqrt(mean(x^2) + eps) * (weight + offset)`, in float32 at least."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    out = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + eps)
    if weight is not None:
        out = out * (weight.astype(wide.dtype) + offset)
    return out.astype(x.dtype)
'''

L2_NORMALIZE = '''
def l2_normalize(x: jax.Array, eps: float) -> jax.Array:
    """`x / sqrt(sum(x^2) + eps)` over the last axis, in float32 at least."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    scale = jax.lax.rsqrt(jnp.square(wide).sum(-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype)
'''

QUICK_GELU = '''
def quick_gelu(x: jax.Array) -> jax.Array:
    """GELU's sigmoid approximation: `x * sigmoid(1.702 x)`."""
    return x * jax.nn.sigmoid(1.702 * x)
'''

CONVOLVE = '''
def convolve(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    *,
    stride: int,
    padding: int = 0,
) -> jax.Array:
    """Cross-correlation of (B, C, ...) with kernels (D, C, ...), as in PyTorch."""
    axes = x.ndim - 2
    pads = [(padding, padding)] * axes
    out = jax.lax.conv_general_dilated(x, weight, (stride,) * axes, pads)
    return out if bias is None else out + bias.reshape(-1, *(1,) * axes)
'''

TAKE_AT = '''
def take_at(x: jax.Array, ids: jax.Array, token: int) -> jax.Array:
    """The row of x at the first `token` in ids, or at the largest id for -1: (B, D)."""
    position = jnp.argmax(ids if token == -1 else ids == token, axis=1)  # (B,)
    return jnp.take_along_axis(x, position[:, None, None], axis=1)[:, 0]
'''

COS_SIN = '''
def cos_sin(
    length: int, frequencies: tuple[float, ...], dtype: np.dtype
) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of position * frequency: two tables (length, frequencies).

    Angles are computed in float64 while tracing, and rounded once.
    """
    angles = np.arange(length)[:, None] * np.asarray(frequencies, np.float64)
    return jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype)
'''

MASKED_POOL = {
    "mean": '''
def masked_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of the positions where mask is True, zeros where there is none: (B, D)."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    total = jnp.where(mask[..., None], wide, 0).sum(1)  # (B, D)
    return (total / jnp.maximum(mask.sum(1), 1)[:, None]).astype(x.dtype)
''',
    "max": '''
def masked_max(x: jax.Array, mask: jax.Array) -> jax.Array:
    """The largest values where mask is True, zeros where it is nowhere: (B, D)."""
    largest = jnp.where(mask[..., None], x, -jnp.inf).max(1)  # (B, D)
    return jnp.where(mask.any(1)[:, None], largest, 0)
''',
    "first": '''
def masked_first(x: jax.Array, mask: jax.Array) -> jax.Array:
    """The first position where mask is True, zeros where there is none: (B, D)."""
    position = jnp.argmax(mask, axis=1)  # (B,), the first of equal ones
    found = jnp.take_along_axis(x, position[:, None, None], axis=1)[:, 0]
    return jnp.where(mask.any(1)[:, None], found, 0)
''',
    "last": '''
def masked_last(x: jax.Array, mask: jax.Array) -> jax.Array:
    """The last position where mask is True, zeros where there is none: (B, D)."""
    position = x.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)  # (B,)
    found = jnp.take_along_axis(x, position[:, None, None], axis=1)[:, 0]
    return jnp.where(mask.any(1)[:, None], found, 0)
''',
}

FROZEN = '''
class Frozen(nnx.Variable):
    """A parameter that is not trained: it is no `nnx.Param`."""
'''

FREEZE = '''
def freeze(module: nnx.Module) -> nnx.Module:
    """The module with all its parameters frozen."""
    for name, part in list(vars(module).items()):
        if isinstance(part, nnx.Param):
            setattr(module, name, Frozen(part[...]))
        elif isinstance(part, nnx.Module):
            freeze(part)
    return module
'''

NAMES = TORCH_NAMES | {"normalize", "convolve"}
"""Names that functions of a file may have."""


def attention(features: Mapping[str, Any], masked: bool) -> tuple[str, str]:
    """The name and the text of attention with exactly these features; see ``torch_helpers.attention``."""
    name = attention_name(features, masked)
    causal, window, capped = (word in features for word in ("causal", "window", "softcap"))
    arguments = ["q: jax.Array", "k: jax.Array", "v: jax.Array"]
    arguments += ["mask: jax.Array"] if masked else []
    arguments += ["window: int"] if window else []
    arguments += ["softcap: float"] if capped else []
    arguments += ["dropout: nnx.Dropout"] if "dropout" in features else []
    lines = bracketed(f"def {name}(", arguments, ") -> jax.Array:", 0)
    lines += docstring(explanation(features, masked), 1)
    lines += _visible(causal, masked, window)
    if features["grouped"]:
        lines += [
            "    groups = q.shape[1] // k.shape[1]",
            "    k, v = jnp.repeat(k, groups, axis=1), jnp.repeat(v, groups, axis=1)",
        ]
    lines += [
        "    wide = jnp.promote_types(q.dtype, jnp.float32)",
        '    scores = jnp.einsum("bhtd,bhsd->bhts", q, k, preferred_element_type=wide)',
        "    scores = scores * q.shape[-1] ** -0.5  # (B, H, T, S)",
    ]
    lines += ["    scores = softcap * jnp.tanh(scores / softcap)"] if capped else []
    if masked or causal or window:
        lines += [
            "    scores = jnp.where(visible, scores, jnp.finfo(wide).min)",
            "    # A query that sees nothing gives zeros.",
            "    weights = jnp.where(visible, jax.nn.softmax(scores, axis=-1), 0)",
        ]
    else:
        lines += ["    weights = jax.nn.softmax(scores, axis=-1)"]
    lines += ["    weights = dropout(weights)"] if "dropout" in features else []
    lines += [
        '    out = jnp.einsum("bhts,bhsd->bhtd", weights.astype(v.dtype), v)',
        "    return out.astype(q.dtype)  # (B, H, T, d)",
    ]
    return name, "\n".join(["", *lines, ""])


def _visible(causal: bool, masked: bool, window: bool) -> list[str]:
    """The lines that say which key a query sees."""
    lines = []
    if masked:
        lines += [
            "    seen = mask[:, None, :, None]  # (B, 1, S, 1)",
            "    k, v = jnp.where(seen, k, 0), jnp.where(seen, v, 0)",
        ]
    if causal or window:
        lines += [
            "    T, S = q.shape[2], k.shape[2]",
            "    past = jnp.arange(S - T, S)[:, None] - jnp.arange(S)  # (T, S)",
        ]
        near = "past >= 0" if causal else "past > -window"
        lines += [f"    visible = ({near}) & (past < window)" if window else f"    visible = {near}"]
        lines += ["    visible = visible & mask[:, None, None, :]  # (B, 1, T, S)"] if masked else []
    elif masked:
        lines += ["    visible = mask[:, None, None, :]  # (B, 1, 1, S)"]
    return lines
