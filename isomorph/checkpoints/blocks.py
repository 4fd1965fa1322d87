"""The pre-norm block that GPT-2, ViT and DINOv2 share: its text, its paths, and how it is read off a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isomorph.checkpoints.family import NotThisFamily, operators_of
from isomorph.plan import Plan

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}
"""Their names of activations, each with ours."""


def number(value: float) -> str:
    """A number as a definition writes it."""
    return repr(float(value))


@dataclass(frozen=True)
class PreNorm:
    """A stack of blocks ``x + attn(norm(x))``, ``x + ffn(norm(x))``."""

    layers: int
    heads: int
    width: int
    hidden: int
    activation: str
    eps: float
    causal: bool = False
    qkv_bias: bool = True
    layer_scale: bool = False

    @property
    def whole(self) -> bool:
        """Whether ``transformer_block`` can say it; else it is composed of its parts."""
        return self.hidden % self.width == 0 and self.qkv_bias

    @property
    def entry(self) -> str:
        """What must stand before the call whose result the stack takes."""
        return "" if self.whole else "h = "

    def text(self) -> str:
        """The loop. It takes the current tensor, called ``h`` where :attr:`entry` says so, and leaves one."""
        return self._whole_text() if self.whole else self._composed_text()

    def _whole_text(self) -> str:
        arguments = [
            f"{self.heads}",
            f"mlp_ratio={self.hidden // self.width}",
            f'activation="{self.activation}"',
            *(["causal=True"] if self.causal else []),
            *(["layer_scale=True"] if self.layer_scale else []),
            f"eps={number(self.eps)}",
            'name="block"',
        ]
        return f"for _ in range({self.layers}):\n    transformer_block({', '.join(arguments)})\n"

    def _composed_text(self) -> str:
        flags = (", causal=True" if self.causal else "") + ("" if self.qkv_bias else ", qkv_bias=False")
        eps = number(self.eps)
        return (
            f"for _ in range({self.layers}):\n"
            f'    layer_norm(h, eps={eps}, name="attn_norm")\n'
            f'    attended = attention({self.heads}{flags}, name="attn")\n'
            "    h = add(h, attended)\n\n"
            f'    layer_norm(h, eps={eps}, name="ffn_norm")\n'
            f'    mixed = feed_forward({self.hidden}, activation="{self.activation}", name="ffn")\n'
            "    h = add(h, mixed)\n"
        )

    def paths(self) -> Mapping[str, str]:
        """Where each part's parameters are, ``{i}`` being the layer."""
        if self.whole:
            return {
                **{part: f"block{{i}}.{part}" for part in ("norm1", "norm2", "gamma1", "gamma2")},
                "attn": "block{i}.attn",
                "ffn": "block{i}.ffn",
            }
        return {"norm1": "attn_norm{i}", "attn": "attn{i}", "norm2": "ffn_norm{i}", "ffn": "ffn{i}"}


def read_pre_norm(plan: Plan, width: int) -> PreNorm:
    """The stack of a plan, as far as its first block tells; NotThisFamily when it has none."""
    if any(node.operator.name == "transformer_block" for node in plan.nodes):
        blocks = operators_of(plan, "transformer_block")
        first = blocks[0]
        if first.norm != "layer_norm":
            raise NotThisFamily(f"its blocks have norm={first.norm!r}")
        return PreNorm(
            len(blocks), first.heads, width, first.mlp_ratio * width, first.activation, first.eps,
            first.causal, True, first.layer_scale,
        )  # fmt: skip
    attention, forward = operators_of(plan, "attention"), operators_of(plan, "feed_forward")
    first, mixed, norm = attention[0], forward[0], operators_of(plan, "layer_norm")[0]
    return PreNorm(
        len(attention), first.heads, width, mixed.hidden, mixed.activation, norm.eps, first.causal,
        first.bias and first.qkv_bias,
    )  # fmt: skip
