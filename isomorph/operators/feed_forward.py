"""Position-wise feed-forward networks."""

from __future__ import annotations

from typing import Any, ClassVar

from isomorph.operators.activation import ACTIVATIONS, Dropout, activate
from isomorph.operators.declare import Example, Operator, argument, operator
from isomorph.operators.linear import Linear
from isomorph.primitives import Primitives, Tensor


@operator("feed_forward", shape="x[B, ..., D] -> out[B, ..., D]", category="feed-forward")
class FeedForward(Operator):
    """Two affine maps with a nonlinearity between, applied to every position alone.

    ```
    out = down(dropout(activation(up(x))))
    ```

    Positions share the weights and are never mixed. `hidden` may be any width.
    """

    ranks: ClassVar = (2, 3)

    hidden: int = argument(positional=True, minimum=1, doc="Inner width.")
    activation: str = argument("gelu", choices=ACTIVATIONS, doc="Nonlinearity between the two maps.")
    dropout: float = argument(0.0, minimum=0, below=1, doc="Dropout probability after the activation.")
    bias: bool = argument(True, doc="Give both maps a bias.")

    examples: ClassVar = (
        Example("The classic inner width of four times D.", "feed_forward(64)", ("B", 6, 16)),
        Example(
            "ReLU, no biases, on plain vectors.", 'feed_forward(24, activation="relu", bias=False)', ("B", 8)
        ),
    )

    def children(self, D: int) -> dict[str, Operator]:
        children = {
            "up": Linear.of(D_in=D, D_out=self.hidden, bias=self.bias),
            "down": Linear.of(D_in=self.hidden, D_out=D, bias=self.bias),
        }
        if self.dropout:
            children["dropout"] = Dropout.of(p=self.dropout)
        return children

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        h = activate(F, self.activation, m.up(x))  # (B, ..., hidden)
        if self.dropout:
            h = m.dropout(h)
        return m.down(h)  # (B, ..., D)


@operator("swiglu", shape="x[B, ..., D] -> out[B, ..., D]", category="feed-forward")
class SwiGLU(Operator):
    """Gated feed-forward network (Shazeer, 2020), as in LLaMA.

    ```
    out = down(silu(gate(x)) * up(x))
    ```
    """

    ranks: ClassVar = (2, 3)

    hidden: int = argument(positional=True, minimum=1, doc="Inner width.")
    bias: bool = argument(False, doc="Give the three maps a bias.")

    examples: ClassVar = (Example("A gated feed-forward of inner width 40.", "swiglu(40)", ("B", 6, 16)),)

    def children(self, D: int) -> dict[str, Operator]:
        return {
            "gate": Linear.of(D_in=D, D_out=self.hidden, bias=self.bias),
            "up": Linear.of(D_in=D, D_out=self.hidden, bias=self.bias),
            "down": Linear.of(D_in=self.hidden, D_out=D, bias=self.bias),
        }

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return m.down(F.silu(m.gate(x)) * m.up(x))
