"""The pre-norm block that GPT-2, ViT and DINOv2 share: its text, its paths, and how it is read off a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isomorph.checkpoints.family import NotThisFamily, Part, operators_of
from isomorph.plan import Plan

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
    "gelu_python": "gelu",
    "gelu_fast": "gelu_tanh",  # sqrt(2 / pi) to ten digits
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}
"""Their names of activations, each with ours: first the name by which ours is written."""


def number(value: float) -> str:
    """A number as a definition writes it."""
    return repr(float(value))


@dataclass(frozen=True)
class PreNorm:
    """A stack of blocks ``x + attn(norm(x))``, ``x + ffn(norm(x))``.

    With ``layer_scale`` each branch is multiplied by a learned gain; ``gated`` makes the feed-forward a
    biased ``swiglu``, whose activation is SiLU. With ``mask`` attention is told of padding by the input of
    that name. ``prefix`` stands before the nodes' names, where there are two stacks. With ``context`` each
    block also attends to the tensor of that name, between its two branches, as a decoder does.
    """

    layers: int
    heads: int
    width: int
    hidden: int
    activation: str
    eps: float
    causal: bool = False
    qkv_bias: bool = True
    layer_scale: bool = False
    gated: bool = False
    mask: bool = False
    prefix: str = ""
    k_bias: bool = True
    context: str = ""

    @property
    def whole(self) -> bool:
        """Whether ``transformer_block`` can say it; else it is composed of its parts."""
        biased = self.qkv_bias and self.k_bias
        return self.hidden % self.width == 0 and biased and not (self.gated or self.mask or self.context)

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
            f'name="{self.prefix}block"',
        ]
        return f"for _ in range({self.layers}):\n    transformer_block({', '.join(arguments)})\n"

    def _composed_text(self) -> str:
        bias = ("" if self.qkv_bias else ", qkv_bias=False") + ("" if self.k_bias else ", k_bias=False")
        flags = (", causal=True" if self.causal else "") + bias + (", mask=mask" if self.mask else "")
        eps, prefix = number(self.eps), self.prefix
        attend = f'attention({self.heads}{flags}, name="{prefix}attn")'
        mix = f'feed_forward({self.hidden}, activation="{self.activation}", name="{prefix}ffn")'
        if self.gated:
            mix = f'swiglu({self.hidden}, bias=True, name="{prefix}ffn")'
        return (
            f"for _ in range({self.layers}):\n"
            f'    layer_norm(h, eps={eps}, name="{prefix}attn_norm")\n'
            f"{self._branch('attended', attend, f'{prefix}attn_scale')}"
            "    h = add(h, attended)\n\n"
            f"{self._crossing(bias)}"
            f'    layer_norm(h, eps={eps}, name="{prefix}ffn_norm")\n'
            f"{self._branch('mixed', mix, f'{prefix}ffn_scale')}"
            "    h = add(h, mixed)\n"
        )

    def _crossing(self, bias: str) -> str:
        """The branch that attends to ``context``; nothing without one."""
        if not self.context:
            return ""
        call = f'cross_attention(asking, {self.context}, {self.heads}{bias}, name="{self.prefix}cross")'
        return (
            f'    asking = layer_norm(h, eps={number(self.eps)}, name="{self.prefix}cross_norm")\n'
            f"    answered = {call}\n"
            "    h = add(h, answered)\n\n"
        )

    def _branch(self, name: str, call: str, scale: str) -> str:
        """A branch's last lines, which name what is added to the stream."""
        if self.layer_scale:
            return f'    {call}\n    {name} = layer_scale(name="{scale}")\n'
        return f"    {name} = {call}\n"

    def paths(self) -> Mapping[str, str]:
        """Where each part's parameters are, ``{i}`` being the layer."""
        if self.whole:
            block = f"{self.prefix}block{{i}}"
            return {part: f"{block}.{part}" for part in ("norm1", "norm2", "gamma1", "gamma2", "attn", "ffn")}
        places = {
            "norm1": "attn_norm{i}", "attn": "attn{i}", "gamma1": "attn_scale{i}.gamma",
            "cross_norm": "cross_norm{i}", "cross": "cross{i}",
            "norm2": "ffn_norm{i}", "ffn": "ffn{i}", "gamma2": "ffn_scale{i}.gamma",
        }  # fmt: skip
        return {part: self.prefix + place for part, place in places.items()}


def read_pre_norm(plan: Plan | Part, width: int) -> PreNorm:
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
    names = {node.operator.name for node in plan.nodes}
    gated = "swiglu" in names
    attention = operators_of(plan, "attention")
    forward = operators_of(plan, "swiglu" if gated else "feed_forward")
    first, mixed, norm = attention[0], forward[0], operators_of(plan, "layer_norm")[0]
    return PreNorm(
        len(attention), first.heads, width, mixed.hidden, "silu" if gated else mixed.activation, norm.eps,
        first.causal, first.bias and first.qkv_bias, "layer_scale" in names, gated,
    )  # fmt: skip
