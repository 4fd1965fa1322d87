"""Whole transformer blocks, composed of attention, norms and feed-forward networks."""

from __future__ import annotations

from typing import Any, ClassVar

from isomorph.initializers import Constant
from isomorph.operators.activation import ACTIVATIONS
from isomorph.operators.attention import Attention, check_heads
from isomorph.operators.declare import Example, Operator, Parameter, argument, operator
from isomorph.operators.feed_forward import FeedForward
from isomorph.operators.normalization import LayerNorm, RMSNorm, check_epsilon
from isomorph.primitives import Primitives, Tensor


class PreNormBlock(Operator):
    """Two residual branches, each reading a normalized copy of its input."""

    heads: int
    eps: float

    def check(self, D: int) -> None:
        check_heads(self.heads, D)
        check_epsilon(self.eps)

    def multiples(self) -> dict[str, int]:
        return {"D": self.heads}

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        x = x + self.scaled(m, "gamma1", m.attn(m.norm1(x)))  # (B, T, D)
        return x + self.scaled(m, "gamma2", m.ffn(m.norm2(x)))  # (B, T, D)

    def scaled(self, m: Any, gain: str, branch: Tensor) -> Tensor:
        """The branch times its layer-scale gain, where the block has one."""
        return branch * getattr(m, gain) if gain in self.own_parameters else branch


@operator("transformer_block", shape="x[B, T, D] -> out[B, T, D]", category="sequence")
class TransformerBlock(PreNormBlock):
    """Pre-norm transformer block: residual self-attention followed by a residual feed-forward.

    Takes a sequence of T positions with D features for each of B examples, and keeps that shape. Each
    branch reads a normalized copy of its input and is added to the input as it was:

    ```
    h   = x + gamma1 * attn(norm1(x))     # multi-head self-attention
    out = h + gamma2 * ffn(norm2(h))      # position-wise feed-forward
    ```

    Without `layer_scale` there are no gains and both sums are plain. Since nothing about the shape
    changes, blocks stack by repetition, and D reaches a block from either side.

    **Submodules and parameter names.** Four children, `norm1`, `attn`, `norm2` and `ffn`, give these paths,
    with hidden = `mlp_ratio` * D; `init` and `trainable` use them too, as in `init={"gamma1": 0.1}`.

    | Path | Shape |
    | --- | --- |
    | `norm1.weight`, `norm1.bias` | `[D]` (with `rms_norm` there is no `bias`) |
    | `attn.{q,k,v,o}_proj.weight` | `[D, D]` |
    | `attn.{q,k,v,o}_proj.bias` | `[D]` |
    | `norm2.weight`, `norm2.bias` | `[D]` (with `rms_norm` there is no `bias`) |
    | `ffn.up.weight`, `ffn.up.bias` | `[hidden, D]`, `[hidden]` |
    | `ffn.down.weight`, `ffn.down.bias` | `[D, hidden]`, `[D]` |
    | `gamma1`, `gamma2` | `[D]`, with `layer_scale` alone |

    **Attention.** The operator `attention` with four biased projections and no rotary positions.
    `heads` must divide D, else the resolver answers `E_CONSTRAINT`. With `causal=True` position t sees
    positions <= t alone, so that a stack of blocks is autoregressive; otherwise every position sees every
    other. There is no padding mask.

    **Feed-forward.** The operator `feed_forward` of inner width `mlp_ratio` * D with the chosen
    activation; `gelu` is the erf form and `gelu_tanh` the tanh form.

    **Normalization.** `layer_norm` re-centers and rescales; `rms_norm` only rescales, has no bias and
    accumulates its mean square in float32. Both learn a gain and share `eps`.

    **Layer scale.** `gamma1` and `gamma2` multiply the branches feature by feature and start at
    `layer_scale_init`. A small start makes the block almost the identity, which lets very deep stacks
    train (Touvron et al., 2021).

    **Correspondences.**

    | Recipe | Arguments |
    | --- | --- |
    | GPT-2 | `transformer_block(heads, activation="gelu_tanh", causal=True)` |
    | ViT, BERT-style encoder | `transformer_block(heads)` |
    | LLaMA-style decoder | `transformer_block(heads, norm="rms_norm", causal=True)` |
    | CaiT, DINOv2 | `transformer_block(heads, layer_scale=True)` |

    LLaMA proper has rotary positions and a gated feed-forward: compose `attention(rope=True)` and `swiglu`.

    **Training and evaluation.** `dropout` acts on the attention weights and after the feed-forward's
    activation, in training mode only. With `dropout=0` both modes compute the same and nothing random is
    drawn. There are no running statistics. Everything is computed in the plan's dtype, except for the
    float32 accumulation inside norms and softmax.
    """

    heads: int = argument(
        positional=True, minimum=1, doc="How many attention heads; D must be a multiple of it."
    )
    mlp_ratio: int = argument(4, minimum=1, doc="The feed-forward's inner width in units of D.")
    activation: str = argument("gelu", choices=ACTIVATIONS, doc="The feed-forward's nonlinearity.")
    norm: str = argument(
        "layer_norm", choices=("layer_norm", "rms_norm"), doc="Which operator normalizes each branch's input."
    )
    causal: bool = argument(False, doc="Hide the future: a position attends to itself and earlier ones.")
    dropout: float = argument(
        0.0, minimum=0, below=1, doc="Probability of dropping an attention weight or a hidden activation."
    )
    layer_scale: bool = argument(False, doc="Multiply each branch by a learned gain per feature.")
    layer_scale_init: float = argument(1e-05, minimum=0, doc="Where those gains start; unused without them.")
    eps: float = argument(1e-05, above=0, doc="Epsilon of both norms.")

    examples: ClassVar = (
        Example(
            "An encoder block as in ViT: 4 heads of 8 features, inner width 128.",
            "transformer_block(4)",
            ("B", 8, 32),
        ),
        Example(
            "Two causal blocks with RMS norm, as decoders are built today.",
            'transformer_block(2, causal=True, norm="rms_norm")\n'
            'transformer_block(2, causal=True, norm="rms_norm")',
            ("B", 6, 16),
        ),
        Example(
            "A projection sets the width, 16; layer scale makes the block start near the identity.",
            "linear(16)\ntransformer_block(2, mlp_ratio=2, layer_scale=True)\nlinear()",
            ("B", 6, 8),
            ("B", 6, 8),
        ),
    )

    def children(self, D: int) -> dict[str, Operator]:
        norm = (LayerNorm if self.norm == "layer_norm" else RMSNorm).of(D=D, eps=self.eps)
        return {
            "norm1": norm,
            "attn": Attention.of(D=D, heads=self.heads, causal=self.causal, dropout=self.dropout),
            "norm2": norm,
            "ffn": FeedForward.of(
                D=D, hidden=self.mlp_ratio * D, activation=self.activation, dropout=self.dropout
            ),
        }

    def parameters(self, D: int) -> dict[str, Parameter]:
        if not self.layer_scale:
            return {}
        gain = Parameter((D,), Constant(self.layer_scale_init), ("embed",))
        return {"gamma1": gain, "gamma2": gain}


@operator("encoder_block", shape="x[B, T, D] -> out[B, T, D]", category="sequence")
class EncoderBlock(PreNormBlock):
    """Pre-norm encoder block with ReLU and a feed-forward of any width.

    ```
    h   = x + attn(norm1(x))
    out = h + ffn(norm2(h))
    ```

    Attention is bidirectional and unmasked with four biased D-to-D projections; the feed-forward is
    `down(relu(up(z)))` with inner width `d_ff`, which need not exceed D. There is no dropout, no positional
    information and no final norm. Permuting the positions permutes the output in the same way.
    """

    heads: int = argument(positional=True, minimum=1, doc="Number of attention heads; must divide D.")
    d_ff: int = argument(positional=True, minimum=1, doc="Inner width of the feed-forward.")
    eps: float = argument(1e-6, above=0, doc="Epsilon of both norms (Flax's default).")

    examples: ClassVar = (
        Example("Two heads and an inner width below D.", "encoder_block(2, 7)", ("B", 5, 8)),
        Example("A stack of two.", "encoder_block(4, 32)\nencoder_block(2, 8)", ("B", "T", 8)),
    )

    def children(self, D: int) -> dict[str, Operator]:
        norm = LayerNorm.of(D=D, eps=self.eps)
        return {
            "norm1": norm,
            "attn": Attention.of(D=D, heads=self.heads),
            "norm2": norm,
            "ffn": FeedForward.of(D=D, hidden=self.d_ff, activation="relu"),
        }


@operator("post_norm_block", shape="x[B, T, D], mask?[B, T]:bool -> out[B, T, D]", category="sequence")
class PostNormBlock(Operator):
    """Post-norm transformer block, as in BERT: each sum is normalized.

    ```
    h   = norm1(x + attn(x))
    out = norm2(h + ffn(h))
    ```

    The optional `mask` is True where a position may be attended. Parameter paths are those of
    `transformer_block`.
    """

    heads: int = argument(positional=True, minimum=1, doc="Number of attention heads; must divide D.")
    hidden: int = argument(0, minimum=0, doc="Inner width of the feed-forward; 0 for 4 * D.")
    activation: str = argument("gelu", choices=ACTIVATIONS, doc="Nonlinearity of the feed-forward.")
    causal: bool = argument(False, doc="Attend only to the present and the past.")
    dropout: float = argument(0.0, minimum=0, below=1, doc="As in `transformer_block`.")
    eps: float = argument(1e-12, above=0, doc="Epsilon of both norms (BERT's).")

    examples: ClassVar = (
        Example("A BERT layer.", "post_norm_block(4)", ("B", 6, 16)),
        Example(
            "With a padding mask.",
            'x = input("B", "T", 8)\n'
            'm = input("B", "T", dtype="bool")\n'
            "post_norm_block(2, hidden=12, mask=m)",
        ),
    )

    def check(self, D: int) -> None:
        check_heads(self.heads, D)
        check_epsilon(self.eps)

    def multiples(self) -> dict[str, int]:
        return {"D": self.heads}

    def children(self, D: int) -> dict[str, Operator]:
        norm = LayerNorm.of(D=D, eps=self.eps)
        return {
            "norm1": norm,
            "attn": Attention.of(D=D, heads=self.heads, causal=self.causal, dropout=self.dropout),
            "norm2": norm,
            "ffn": FeedForward.of(
                D=D, hidden=self.hidden or 4 * D, activation=self.activation, dropout=self.dropout
            ),
        }

    def forward(self, m: Any, F: Primitives, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = m.norm1(x + m.attn(x, mask))  # (B, T, D)
        return m.norm2(h + m.ffn(h))  # (B, T, D)
