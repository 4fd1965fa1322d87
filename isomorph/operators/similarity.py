"""Scores between every vector of one batch and every vector of another."""

from __future__ import annotations

from math import log
from typing import Any, ClassVar

from isomorph.initializers import Constant
from isomorph.operators.declare import Example, Operator, Parameter, operator
from isomorph.primitives import Primitives, Tensor

TEMPERATURE = 0.07
"""What CLIP divides cosines by at first (Radford et al., 2021, section 2.5)."""


@operator("similarity", shape="a[B, D], b[N, D] -> per_a[B, N], per_b[N, B]", category="similarity")
class Similarity(Operator):
    """Products of every vector of one batch with every vector of another, times a learned scale.

    ```
    per_a[i, j] = per_b[j, i] = exp(logit_scale) * sum over d of a[i, d] * b[j, d]
    ```

    The two batches may differ in size. After `l2_norm` the products are cosines, and the scores those of
    CLIP (Radford et al., 2021): a softmax over the last axis of `per_a` says which b fits an a, and over
    that of `per_b` which a fits a b. `logit_scale` is `[1]` and starts at ln(1/0.07), so that the scale is
    1/0.07; it is not bounded here. Since there are two results, the next call names the one it takes.
    """

    examples: ClassVar = (
        Example(
            "Texts and images in one space.",
            'a = input("B", 6)\n'
            'b = input("N", 4)\n'
            "per_text, per_image = similarity(l2_norm(linear(a, 3)), l2_norm(linear(b, 3)))\n"
            'output(per_text=("B", "N"), per_image=("N", "B"))',
        ),
        Example(
            "Every vector with every other of its batch.",
            'x = input("B", 4)\nscores, same = similarity(x, x)\noutput(scores=("B", "B"))',
        ),
    )

    def parameters(self) -> dict[str, Parameter]:
        return {"logit_scale": Parameter((1,), Constant(log(1 / TEMPERATURE)), (None,))}

    def forward(self, m: Any, F: Primitives, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.linear(a, b) * F.exp(m.logit_scale)  # (B, N)
        return scores, F.permute(scores, (1, 0))
