"""Affine maps."""

from __future__ import annotations

from typing import Any, ClassVar

from isomorph.initializers import uniform_fan_in
from isomorph.operators.declare import (
    INFERRED,
    Example,
    Operator,
    Parameter,
    argument,
    operator,
)
from isomorph.primitives import Primitives, Tensor


@operator("linear", shape="x[B, ..., D_in] -> out[B, ..., D_out]", category="linear")
class Linear(Operator):
    """Affine map of the last axis: every position is multiplied by one matrix and shifted.

    ```
    out = x @ weight.T + bias
    ```

    `weight` is `[D_out, D_in]` and `bias` is `[D_out]`; both start uniform in ±1/sqrt(D_in). An omitted
    width is worked out from what follows, and an omitted input width from what comes before.
    """

    ranks: ClassVar = (2, 3)
    leaf: ClassVar = "linear"

    out_features: int = argument(
        INFERRED, positional=True, minimum=1, size="D_out", doc="Width of the output, D_out."
    )
    in_features: int = argument(INFERRED, minimum=1, size="D_in", doc="Width of the input, D_in.")
    bias: bool = argument(True, doc="Add a learned vector after the product.")

    examples: ClassVar = (
        Example("A projection of feature vectors.", "linear(10)", ("B", 64)),
        Example("The width comes from the contract.", "linear(32)\nlinear()", ("B", "T", 16), ("B", "T", 8)),
        Example("No bias.", "linear(5, bias=False)", ("B", 3)),
    )

    def parameters(self, D_in: int, D_out: int) -> dict[str, Parameter]:
        initial = uniform_fan_in(D_in)
        parameters = {"weight": Parameter((D_out, D_in), initial, ("mlp", "embed"))}
        if self.bias:
            parameters["bias"] = Parameter((D_out,), initial, ("mlp",))
        return parameters

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.linear(x, m.weight, m.bias if self.bias else None)
