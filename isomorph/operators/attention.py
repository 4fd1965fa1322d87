"""Multi-head attention: over one sequence, and from one sequence to another.

Axis legend: B batch, T query positions, S key positions, H heads, K key/value heads, d head width.
"""

from __future__ import annotations

from typing import Any, ClassVar

from isomorph.operators.activation import Dropout
from isomorph.operators.declare import Conflict, Example, Operator, argument, operator
from isomorph.operators.linear import Linear
from isomorph.operators.normalization import RMSNorm, check_epsilon
from isomorph.operators.rotary import (
    LLAMA3_HIGH_FACTOR,
    LLAMA3_LOW_FACTOR,
    LLAMA3_ORIGINAL_LENGTH,
    ROPE_SCALINGS,
    rope_frequencies,
    rotate,
)
from isomorph.primitives import Primitives, Tensor

SOFTCAP_RANGE = (1e-30, 1e30)  # what float32 holds, with room for the scores
QK_NORMS = ("none", "rms_norm", "l2_norm")


def check_heads(heads: int, D: int) -> None:
    """``heads`` must divide the width D; :class:`Conflict` lists the numbers that do."""
    if D % heads:
        divisors = [n for n in range(1, min(D, 1 << 16) + 1) if D % n == 0]
        listed = ", ".join(map(str, divisors[:16])) + (", ..." if len(divisors) > 16 else "")
        raise Conflict(
            f"heads={heads} does not divide the model width D={D}",
            argument="heads",
            sizes=("D",),
            hints=(f"heads that divide {D}: {listed}",),
        )


class MultiHeadAttention(Operator):
    """What both kinds of attention share: arguments, widths, projections and the product itself."""

    heads: int = argument(positional=True, minimum=1, doc="Number of query heads.")
    dropout: float = argument(0.0, minimum=0, below=1, doc="Dropout probability on the attention weights.")
    bias: bool = argument(True, doc="Allow biases in the projections.")
    qkv_bias: bool = argument(True, doc="Bias in the query, key and value projections; needs `bias`.")
    k_bias: bool = argument(True, doc="Bias in the key projection; needs `bias` and `qkv_bias`.")
    out_bias: bool = argument(True, doc="Bias in the output projection; needs `bias`.")
    kv_heads: int = argument(0, minimum=0, doc="Number of key/value heads; 0 for as many as `heads`.")
    head_dim: int = argument(0, minimum=0, doc="Width of one head; 0 for D / heads.")
    qk_norm: str = argument("none", choices=QK_NORMS, doc="Normalize queries and keys per head, before rope.")
    logit_softcap: float = argument(0.0, minimum=0, doc="Squash scores to ±this by tanh; 0 for none.")
    eps: float = argument(1e-6, above=0, doc="Epsilon of `qk_norm`.")

    def head_width(self, D: int) -> int:
        """Features per head, d."""
        return self.head_dim or D // self.heads

    @property
    def key_value_heads(self) -> int:
        """Key/value heads, K."""
        return self.kv_heads or self.heads

    def check_widths(self, D: int) -> None:
        """Raise Conflict unless heads, widths and numbers go together for width ``D``."""
        check_epsilon(self.eps)
        low, high = SOFTCAP_RANGE
        if self.logit_softcap and not low <= self.logit_softcap <= high:
            raise Conflict(
                f"logit_softcap must be 0 or between {low:g} and {high:g}, got {self.logit_softcap}",
                argument="logit_softcap",
                code="E_ARGUMENT",
                hints=("float32 neither divides by less nor multiplies by more",),
            )
        if not self.head_dim:
            check_heads(self.heads, D)
        if self.heads % self.key_value_heads:
            raise Conflict(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}", argument="kv_heads",
                hints=("each key/value head serves the same number of query heads",),
            )  # fmt: skip

    def multiples(self) -> dict[str, int]:
        return {} if self.head_dim else {"D": self.heads}

    def projections(self, D: int, D_context: int) -> dict[str, Operator]:
        """The children: four projections, and norms and dropout where asked for."""
        d, qkv_bias = self.head_width(D), self.bias and self.qkv_bias
        inner, key_value = self.heads * d, self.key_value_heads * d
        children: dict[str, Operator] = {
            "q_proj": Linear.of(D_in=D, D_out=inner, bias=qkv_bias),
            "k_proj": Linear.of(D_in=D_context, D_out=key_value, bias=qkv_bias and self.k_bias),
            "v_proj": Linear.of(D_in=D_context, D_out=key_value, bias=qkv_bias),
            "o_proj": Linear.of(D_in=inner, D_out=D, bias=self.bias and self.out_bias),
        }
        if self.qk_norm == "rms_norm":
            children["q_norm"] = children["k_norm"] = RMSNorm.of(D=d, eps=self.eps)
        if self.dropout:
            children["dropout"] = Dropout.of(p=self.dropout)
        return children

    def split_heads(self, F: Primitives, x: Tensor, heads: int, d: int) -> Tensor:
        """``[B, T, heads * d] -> [B, heads, T, d]``."""
        B, T = x.shape[0], x.shape[1]
        return F.permute(F.reshape(x, (B, T, heads, d)), (0, 2, 1, 3))  # (B, heads, T, d)

    def heads_of(self, m: Any, F: Primitives, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, d), keys and values (B, K, S, d), normalized where asked for."""
        d, K = self.head_width(self.sizes["D"]), self.key_value_heads
        q = self.split_heads(F, m.q_proj(x), self.heads, d)
        k = self.split_heads(F, m.k_proj(context), K, d)
        v = self.split_heads(F, m.v_proj(context), K, d)
        if self.qk_norm == "rms_norm":
            q, k = m.q_norm(q), m.k_norm(k)
        elif self.qk_norm == "l2_norm":
            q, k = F.l2_normalize(q, eps=self.eps), F.l2_normalize(k, eps=self.eps)
        return q, k, v

    def join_heads(self, m: Any, F: Primitives, out: Tensor) -> Tensor:
        """``[B, H, T, d] -> [B, T, D]``, through the output projection."""
        B, H, T, d = out.shape
        return m.o_proj(F.reshape(F.permute(out, (0, 2, 1, 3)), (B, T, H * d)))  # (B, T, D)


@operator("attention", shape="x[B, T, D], mask?[B, T]:bool -> out[B, T, D]", category="sequence")
class Attention(MultiHeadAttention):
    """Multi-head self-attention (Vaswani et al., 2017).

    ```
    q, k, v = split(q_proj(x)), split(k_proj(x)), split(v_proj(x))   # H heads of width d
    out     = o_proj(join(softmax(q @ k.T / sqrt(d)) @ v))
    ```

    The softmax runs over key positions. A projection has a bias when `bias` and its narrower flags all
    say so; `k_bias=False` takes the key's alone away, as in Whisper. `kv_heads` below `heads` shares each
    key/value head among consecutive query heads (grouped queries); with `head_dim` given, the inner width is
    `heads * head_dim` whatever D is.

    **Who may attend to whom.** `causal=True` lets position t attend to positions <= t; `window_size=w`
    keeps the last w of them (without `causal`, the w - 1 on either side as well as itself). The optional
    `mask` is True where a position may be attended. A query that may attend nothing yields zeros before
    the output projection, and hidden keys and values never leak. A hidden position still has a query and an
    output row of its own: a NaN there makes that row NaN, and so the gradients of the projections.

    **Rotary positions.** `rope=True` rotates feature i of every query and key head with feature
    i + d/2, by position times `rope_theta ** (-2i/d)`. `rope_scaling="linear"` divides the angles by
    `rope_scale`; `"llama3"` does so for long wavelengths only: fully for pairs that turn less than
    `rope_low_factor` times over `rope_original_length` positions, not at all for those that turn more than
    `rope_high_factor` times, and in between by degrees. Their defaults are LLaMA 3.1's.
    """

    causal: bool = argument(False, doc="Attend only to the present and the past.")
    rope: bool = argument(False, doc="Rotate queries and keys by their position.")
    rope_theta: float = argument(10000.0, minimum=1, doc="Base of the rotation frequencies.")
    rope_scaling: str = argument("none", choices=ROPE_SCALINGS, doc="How to stretch the rotation.")
    rope_scale: float = argument(1.0, minimum=1, doc="Factor of `rope_scaling`.")
    rope_low_factor: float = argument(
        LLAMA3_LOW_FACTOR,
        above=0,
        doc="Of `llama3`: pairs with fewer turns are stretched by the whole factor.",
    )
    rope_high_factor: float = argument(
        LLAMA3_HIGH_FACTOR, above=0, doc="Of `llama3`: pairs with more turns stay; above `rope_low_factor`."
    )
    rope_original_length: int = argument(
        LLAMA3_ORIGINAL_LENGTH, minimum=1, doc="Of `llama3`: positions over which turns are counted."
    )
    window_size: int = argument(0, minimum=0, doc="Positions within reach; 0 for all.")

    examples: ClassVar = (
        Example("Bidirectional attention, 4 heads of width 4.", "attention(4)", ("B", 6, 16)),
        Example(
            "Grouped queries with rotary positions, as in LLaMA.",
            "attention(4, causal=True, bias=False, rope=True, kv_heads=2)",
            ("B", "T", 16),
        ),
        Example(
            "A padding mask as a second input.",
            'x = input("B", "T", 8)\nm = input("B", "T", dtype="bool")\nattention(2, mask=m)',
        ),
        Example(
            "A sliding window, normalized queries and keys, and capped scores.",
            'attention(2, causal=True, window_size=3, qk_norm="rms_norm", logit_softcap=5.0, head_dim=6)',
            ("B", 7, 8),
        ),
    )

    def check(self, D: int) -> None:
        self.check_widths(D)
        if self.rope_high_factor <= self.rope_low_factor:
            raise Conflict(
                f"rope_high_factor must be above rope_low_factor={self.rope_low_factor}, "
                f"got {self.rope_high_factor}",
                argument=(
                    "rope_low_factor" if self.rope_high_factor == LLAMA3_HIGH_FACTOR else "rope_high_factor"
                ),
                code="E_ARGUMENT",
            )
        if self.rope and self.head_width(D) % 2:
            if self.head_dim:
                raise Conflict(
                    f"rope needs an even head width, got head_dim={self.head_dim}", argument="head_dim"
                )
            raise Conflict(
                f"rope needs an even head width, got {self.head_width(D)} (D={D}, heads={self.heads})",
                argument="rope",
                sizes=("D",),
            )

    def multiples(self) -> dict[str, int]:
        return {D: 2 * heads if self.rope else heads for D, heads in super().multiples().items()}

    def children(self, D: int) -> dict[str, Operator]:
        return self.projections(D, D)

    def forward(self, m: Any, F: Primitives, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.heads_of(m, F, x, x)
        if self.rope:
            d = self.head_width(self.sizes["D"])
            bands = (self.rope_low_factor, self.rope_high_factor, self.rope_original_length)
            frequencies = rope_frequencies(d, self.rope_theta, self.rope_scaling, self.rope_scale, bands)
            q, k = rotate(F, q, frequencies), rotate(F, k, frequencies)
        out = F.attention(
            q, k, v, mask,
            causal=self.causal, window=self.window_size, softcap=self.logit_softcap,
            dropout=m.dropout if self.dropout else None,
        )  # (B, H, T, d)  # fmt: skip
        return self.join_heads(m, F, out)


@operator(
    "cross_attention",
    shape="x[B, T, D], context[B, S, D_ctx], mask?[B, S]:bool -> out[B, T, D]",
    category="sequence",
)
class CrossAttention(MultiHeadAttention):
    """Multi-head attention from one sequence to another: queries from `x`, keys and values from `context`.

    The arguments mean what they mean in `attention`. The optional `mask` is True where a position of
    `context` may be attended; what stands at the others, NaN too, reaches no output and no gradient.
    """

    examples: ClassVar = (
        Example(
            "A decoder's look at its encoder, of another length and width.",
            'x = input("B", "T", 8)\nmemory = input("B", "S", 12)\ncross_attention(x, memory, 2)',
        ),
    )

    def check(self, D: int) -> None:
        self.check_widths(D)

    def children(self, D: int, D_ctx: int) -> dict[str, Operator]:
        return self.projections(D, D_ctx)

    def forward(
        self, m: Any, F: Primitives, x: Tensor, context: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        if mask is not None:  # lest 0 * NaN stand in the projections' gradients
            context = F.select(context, mask)  # (B, S, D_ctx)
        q, k, v = self.heads_of(m, F, x, context)
        out = F.attention(
            q, k, v, mask, softcap=self.logit_softcap, dropout=m.dropout if self.dropout else None
        )  # (B, H, T, d)
        return self.join_heads(m, F, out)
