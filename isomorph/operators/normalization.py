"""Norms over the last axis."""

from __future__ import annotations

from typing import Any, ClassVar

from isomorph.initializers import Constant
from isomorph.operators.declare import Conflict, Example, Operator, Parameter, argument, operator
from isomorph.primitives import Primitives, Tensor

ONE, ZERO = Constant(1.0), Constant(0.0)

SMALLEST_EPSILON = 1e-30
"""Statistics are float32 at least, whose normal numbers begin at 1.2e-38: an epsilon below is lost as zero."""


def check_epsilon(eps: float) -> None:
    """``eps`` must be a number that float32 keeps; :class:`Conflict` says which ones are."""
    if eps < SMALLEST_EPSILON:
        raise Conflict(
            f"eps must be >= {SMALLEST_EPSILON:g}, got {eps}",
            argument="eps",
            code="E_ARGUMENT",
            hints=(
                "in float32 a smaller one counts as 0, and a position whose features are equal gives NaN",
            ),
        )


@operator("layer_norm", shape="x[B, ..., D] -> out[B, ..., D]", category="normalization")
class LayerNorm(Operator):
    """Re-center and rescale each position over its features.

    ```
    out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
    ```

    Mean and variance are taken over the last axis alone, the variance after the mean has been
    subtracted (two passes) and without Bessel's correction, in float32 at least (Ba et al., 2016).
    There are no running statistics. Flax's own default for `eps` is 1e-6; here it is 1e-5, as in PyTorch.
    """

    leaf: ClassVar = "layer_norm"

    eps: float = argument(1e-5, above=0, doc="Added to the variance.")
    affine: bool = argument(True, doc="Learn a gain, and a shift unless `bias` is false.")
    bias: bool = argument(True, doc="Learn a shift; needs `affine`.")

    examples: ClassVar = (
        Example("Normalize a sequence of width 16.", "layer_norm()", ("B", 5, 16)),
        Example("Without a shift.", "layer_norm(bias=False)", ("B", 6)),
        Example("No parameters.", "layer_norm(affine=False, eps=1e-6)", ("B", 5, 16)),
    )

    def check(self) -> None:
        check_epsilon(self.eps)

    def parameters(self, D: int) -> dict[str, Parameter]:
        parameters = {}
        if self.affine:
            parameters["weight"] = Parameter((D,), ONE, ("embed",))
            if self.bias:
                parameters["bias"] = Parameter((D,), ZERO, ("embed",))
        return parameters

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.layer_norm(
            x,
            m.weight if self.affine else None,
            m.bias if self.affine and self.bias else None,
            eps=self.eps,
        )


@operator("rms_norm", shape="x[B, ..., D] -> out[B, ..., D]", category="normalization")
class RMSNorm(Operator):
    """Rescale each position by the root of its mean square (Zhang and Sennrich, 2019).

    ```
    out = x / sqrt(mean(x ** 2) + eps) * weight
    ```

    The mean square and the division are computed in float32 at least and cast back afterwards. With
    `zero_centered` the weight starts at 0 and is used as `1 + weight`.
    """

    eps: float = argument(1e-6, above=0, doc="Added to the mean square.")
    affine: bool = argument(True, doc="Learn a gain.")
    zero_centered: bool = argument(False, doc="Store the gain as its distance from 1.")

    examples: ClassVar = (
        Example("Normalize a sequence of width 16.", "rms_norm()", ("B", 5, 16)),
        Example("A gain stored around zero.", "rms_norm(zero_centered=True)", ("B", 6)),
    )

    def check(self) -> None:
        check_epsilon(self.eps)

    def parameters(self, D: int) -> dict[str, Parameter]:
        if not self.affine:
            return {}
        return {"weight": Parameter((D,), ZERO if self.zero_centered else ONE, ("embed",))}

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        offset = 1.0 if self.zero_centered else 0.0
        return F.rms_norm(x, m.weight if self.affine else None, eps=self.eps, offset=offset)


@operator("l2_norm", shape="x[B, ..., D] -> out[B, ..., D]", category="normalization")
class L2Norm(Operator):
    """Rescale each position to length one.

    ```
    out = x / sqrt(sum(x ** 2) + eps)
    ```

    The sum of squares and the division are computed in float32 at least and cast back afterwards. The
    default `eps` is the square of 1e-12: what is longer than 1e-8 becomes, to float32's last digit, what a
    division by its length gives, and zeros stay zeros. Products of such vectors are cosine similarities.
    """

    eps: float = argument(1e-24, above=0, doc="Added to the sum of squares.")

    examples: ClassVar = (
        Example("Sentence embeddings whose products are cosines.", "l2_norm()", ("B", 16)),
        Example("Every position of a sequence.", "l2_norm(eps=1e-6)", ("B", "T", 8)),
    )

    def check(self) -> None:
        check_epsilon(self.eps)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.l2_normalize(x, eps=self.eps)


@operator("layer_scale", shape="x[B, ..., D] -> out[B, ..., D]", category="normalization")
class LayerScale(Operator):
    """Multiply every position by one learned gain per feature (Touvron et al., 2021).

    ```
    out = x * gamma
    ```

    `gamma` is `[D]` and starts at `init_values`. On a branch that is added to its own input, a small start
    makes the sum almost the identity, which lets very deep stacks train. `transformer_block` has such gains
    of its own, `gamma1` and `gamma2`; this is the part to compose others with.
    """

    init_values: float = argument(1e-5, minimum=0, doc="Where the gains start.")

    examples: ClassVar = (
        Example(
            "A gated branch that starts near zero.",
            "h = linear(6)\nswiglu(9)\nadd(h, layer_scale())",
            ("B", 5, 4),
        ),
        Example("Gains of plain vectors.", "layer_scale(init_values=0.1)", ("B", 8)),
    )

    def parameters(self, D: int) -> dict[str, Parameter]:
        return {"gamma": Parameter((D,), Constant(self.init_values), ("embed",))}

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return x * m.gamma
