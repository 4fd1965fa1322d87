"""Functions that a written PyTorch file brings along, each only where the network needs it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from isomorph.source_code.layout import WIDTH, bracketed, broken, call, docstring, statement

RMS_NORM = '''
def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, offset: float, eps: float
) -> torch.Tensor:
    """RMS norm with the gain `weight + offset`, computed in float32 and rounded once."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (weight.float() + offset)).to(x.dtype)
'''

L2_NORMALIZE = '''
def l2_normalize(x: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(sum(x^2) + eps)` over the last axis, in float32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)
'''

QUICK_GELU = '''
def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU's sigmoid approximation: `x * sigmoid(1.702 x)`."""
    return x * torch.sigmoid(1.702 * x)
'''

TAKE_AT = '''
def take_at(x: torch.Tensor, ids: torch.Tensor, token: int) -> torch.Tensor:
    """The row of x at the first `token` in ids, or at the largest id for -1: (B, D)."""
    wide = ids.long()
    position = (wide if token == -1 else (wide == token).int()).argmax(1)  # (B,)
    return x.gather(1, position[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]
'''

COS_SIN = '''
def cos_sin(
    length: int, frequencies: tuple[float, ...], like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of position * frequency: two tables (length, frequencies).

    Angles are computed in float64 and rounded once.
    """
    rates = torch.tensor(frequencies, dtype=torch.float64, device=like.device)
    positions = torch.arange(length, dtype=torch.float64, device=like.device)
    angles = positions[:, None] * rates
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)
'''

MASKED_POOL = {
    "mean": '''
def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of the positions where mask is True, zeros where there is none: (B, D)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    total = torch.where(mask[..., None], wide, 0.0).sum(1)  # (B, D)
    return (total / mask.sum(1).clamp(min=1)[:, None]).to(x.dtype)
''',
    "max": '''
def masked_max(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The largest values where mask is True, zeros where it is nowhere: (B, D)."""
    largest = torch.where(mask[..., None], x, -torch.inf).amax(1)  # (B, D)
    return torch.where(mask.any(1)[:, None], largest, 0.0)
''',
    "first": '''
def masked_first(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The first position where mask is True, zeros where there is none: (B, D)."""
    position = mask.int().argmax(1)  # (B,), the first of equal ones
    found = x.gather(1, position[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]
    return torch.where(mask.any(1)[:, None], found, 0.0)
''',
    "last": '''
def masked_last(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The last position where mask is True, zeros where there is none: (B, D)."""
    position = x.shape[1] - 1 - mask.flip(1).int().argmax(1)  # (B,)
    found = x.gather(1, position[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]
    return torch.where(mask.any(1)[:, None], found, 0.0)
''',
}


def attention(features: Mapping[str, Any], masked: bool) -> tuple[str, str]:
    """The name and the text of attention with exactly these features.

    Args:
        features: which of ``causal``, ``window``, ``softcap`` and ``dropout`` are there, whether heads are
            ``grouped``, and whether there are as many queries as keys (``square``).
        masked: whether there is a mask of the keys.
    """
    causal, window, capped = (name in features for name in ("causal", "window", "softcap"))
    dropped, grouped = "dropout" in features, features["grouped"]
    name = attention_name(features, masked)
    lines = [_head(name, masked, window, capped, dropped), *docstring(explanation(features, masked), 1)]
    lines += _visible(causal, masked, window)
    hidden = masked or causal or window
    # Keys that the mask leaves may leave a query nothing to attend; so may a window without a mask.
    empty = masked or not features["square"]
    if capped:
        lines += _capped(grouped, bool(hidden), dropped)
    else:
        options = ["dropout_p=dropout"] if dropped else []
        options += ["enable_gqa=True"] if grouped else []
        lines += _fused(options, empty)
    return name, "\n".join(["", *lines, ""])


def attention_name(features: Mapping[str, Any], masked: bool) -> str:
    """``masked_causal_attention``: a name that says which features a function has."""
    words = ["masked"] if masked else []
    words += [
        word
        for word, is_there in (
            ("causal", "causal" in features),
            ("windowed", "window" in features),
            ("capped", "softcap" in features),
        )
        if is_there
    ]
    return "_".join([*words, "attention"])


def _head(name: str, masked: bool, window: bool, capped: bool, dropped: bool) -> str:
    arguments = ["q: torch.Tensor", "k: torch.Tensor", "v: torch.Tensor"]
    arguments += ["mask: torch.Tensor"] if masked else []
    arguments += ["window: int"] if window else []
    arguments += ["softcap: float"] if capped else []
    arguments += ["dropout: float"] if dropped else []
    return "\n".join(bracketed(f"def {name}(", arguments, ") -> torch.Tensor:", 0))


def explanation(features: Mapping[str, Any], masked: bool) -> str:
    """What a function for attention does, in a sentence or two."""
    seen = ["keys where mask (B, S) is True"] if masked else []
    if "window" in features:
        seen.append(
            "the last `window` positions up to its own"
            if "causal" in features
            else "positions nearer than `window`"
        )
    elif "causal" in features:
        seen.append("positions up to its own")
    which = f" A query sees {', and of these '.join(seen)}." if seen else ""
    return f"softmax(q k^T / sqrt(d)) v.{which}" + (
        " Scores are squashed by tanh to +-`softcap`." if "softcap" in features else ""
    )


def _visible(causal: bool, masked: bool, window: bool) -> list[str]:
    lines = []
    if masked:
        lines += [
            "    seen = mask[:, None, :, None]  # (B, 1, S, 1)",
            "    k, v = torch.where(seen, k, 0.0), torch.where(seen, v, 0.0)",
        ]
    if causal or window:
        lines += [
            "    T, S = q.shape[-2], k.shape[-2]",
            "    queries = torch.arange(S - T, S, device=q.device)",
            "    past = queries[:, None] - torch.arange(S, device=q.device)  # (T, S)",
        ]
    near = "past >= 0" if causal else "past > -window"
    if window:
        near = f"({near}) & (past < window)"
    if causal or window:
        lines += [f"    visible = {near}"]
        lines += ["    visible = visible & mask[:, None, None, :]  # (B, 1, T, S)"] if masked else []
    elif masked:
        lines += ["    visible = mask[:, None, None, :]  # (B, 1, 1, S)"]
    return lines


def _fused(options: list[str], empty: bool) -> list[str]:
    given = ["q", "k", "v", "attn_mask=visible", *options]
    if not empty:
        return _return_call("F.scaled_dot_product_attention", given)
    given[3] = "attn_mask=visible | ~some"
    line = f"    out = F.scaled_dot_product_attention({', '.join(given)})"
    lines = (
        [line]
        if len(line) <= WIDTH
        else broken("out = F.scaled_dot_product_attention(", given, ")", 1)
    )  # fmt: skip
    return [
        "    some = visible.any(-1, keepdim=True)  # a query that sees nothing gives zeros",
        *lines,
        "    return torch.where(some, out, 0.0)",
    ]


def _return_call(name: str, given: list[str]) -> list[str]:
    return statement("return ", call(name, *given), 1)


def _capped(grouped: bool, hidden: bool, dropped: bool) -> list[str]:
    lines = ["    wide = torch.promote_types(q.dtype, torch.float32)"]
    if grouped:
        lines += [
            "    groups = q.shape[1] // k.shape[1]",
            "    k = k.repeat_interleave(groups, dim=1)",
            "    v = v.repeat_interleave(groups, dim=1)",
        ]
    lines += [
        "    scores = q.to(wide) @ k.to(wide).transpose(-1, -2) * q.shape[-1] ** -0.5",
        "    scores = softcap * torch.tanh(scores / softcap)  # (B, H, T, S)",
    ]
    if hidden:
        lines += [
            "    scores = torch.where(visible, scores, torch.finfo(wide).min)",
            "    weights = torch.where(visible, torch.softmax(scores, -1), 0.0)",
        ]
    else:
        lines += ["    weights = torch.softmax(scores, -1)"]
    lines += ["    weights = F.dropout(weights, dropout)"] if dropped else []
    return [*lines, "    return (weights @ v.to(wide)).to(q.dtype)"]


NAMES = frozenset(
    {
        "rms_norm", "l2_normalize", "quick_gelu", "take_at", "cos_sin", *(f"masked_{mode}" for mode in MASKED_POOL),
        *(
            attention_name(dict.fromkeys(features), masked)
            for masked in (False, True)
            for count in range(4)
            for features in combinations(("causal", "window", "softcap"), count)
        ),
    }
)  # fmt: skip
"""Names that functions of a file may have."""
