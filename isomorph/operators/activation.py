"""Elementwise nonlinearities, softmax, dropout, and the activation names that blocks accept."""

from __future__ import annotations

from typing import Any, ClassVar

from isomorph.operators.declare import Conflict, Example, Operator, argument, operator
from isomorph.primitives import Primitives, Tensor

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "quick_gelu")
"""What ``activation=`` may be. ``gelu`` is the erf form in every backend."""

_KEPT = "x[B, ...] -> out[B, ...]"


def activate(F: Primitives, name: str, x: Tensor) -> Tensor:
    """Apply an activation of :data:`ACTIVATIONS` by name."""
    if name == "gelu_tanh":
        return F.gelu(x, "tanh")
    return getattr(F, name)(x)


@operator("gelu", shape=_KEPT, category="activation")
class GELU(Operator):
    """Gaussian error linear unit: `x * Phi(x)`, with Phi the standard normal distribution function.

    ```
    out = 0.5 * x * (1 + erf(x / sqrt(2)))
    ```

    `approximate="tanh"` takes `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))` instead
    (Hendrycks and Gimpel, 2016), which GPT-2 was trained with. The two differ by up to 5e-4.
    """

    approximate: str = argument(
        "none", positional=True, choices=("none", "tanh"), doc="The erf form (`none`) or the tanh form."
    )
    examples: ClassVar = (
        Example("The exact form.", "gelu()", ("B", 8)),
        Example("The form GPT-2 uses.", 'gelu(approximate="tanh")', ("B", "T", 8)),
    )

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.gelu(x, self.approximate)


@operator("relu", shape=_KEPT, category="activation")
class ReLU(Operator):
    """Rectified linear unit: negative values become zero, `max(x, 0)`.

    At 0 the derivative is taken to be 0, in every backend.
    """

    examples: ClassVar = (Example("Rectify features.", "relu()", ("B", 8)),)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.relu(x)


@operator("silu", shape=_KEPT, category="activation")
class SiLU(Operator):
    """Sigmoid linear unit, also called swish: `x * sigmoid(x)` (Elfwing et al., 2017).

    Smooth, unbounded above, and lowest, at about -0.28, where x is about -1.28.
    """

    examples: ClassVar = (Example("Gate features by themselves.", "silu()", ("B", 8)),)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.silu(x)


@operator("quick_gelu", shape=_KEPT, category="activation")
class QuickGELU(Operator):
    """The sigmoid approximation of GELU that CLIP uses: `x * sigmoid(1.702 * x)`.

    Given beside the tanh form by Hendrycks and Gimpel (2016). It departs from `gelu` by up to 0.02,
    so weights trained with one should run with that one.
    """

    examples: ClassVar = (Example("CLIP's activation.", "quick_gelu()", ("B", 8)),)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.quick_gelu(x)


@operator("tanh", shape=_KEPT, category="activation")
class Tanh(Operator):
    """Hyperbolic tangent of every element: `(exp(x) - exp(-x)) / (exp(x) + exp(-x))`, within -1 and 1."""

    examples: ClassVar = (Example("Squash features to (-1, 1).", "tanh()", ("B", 8)),)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.tanh(x)


@operator("sigmoid", shape=_KEPT, category="activation")
class Sigmoid(Operator):
    """Logistic function of every element: `1 / (1 + exp(-x))`."""

    examples: ClassVar = (Example("Squash features to (0, 1).", "sigmoid()", ("B", 8)),)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.sigmoid(x)


@operator("identity", shape=_KEPT, category="activation")
class Identity(Operator):
    """The input, unchanged: a place to name, or to replace later.

    It holds no parameters and costs nothing.
    """

    examples: ClassVar = (Example("Name a tensor's place.", 'identity(name="features")', ("B", 8)),)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return x


@operator("softmax", shape=_KEPT, category="activation")
class Softmax(Operator):
    """Exponentials along one axis, divided by their sum.

    ```
    out[i] = exp(x[i] - max(x)) / sum over j of exp(x[j] - max(x))
    ```

    The maximum is subtracted first and the sum is taken in float32 at least. The batch axis is refused.
    """

    dim: int = argument(-1, positional=True, doc="The axis that sums to one; negative counts from the end.")
    keeps_rank: ClassVar = True
    keeps_count: ClassVar = True

    examples: ClassVar = (
        Example("Probabilities over ten classes.", "softmax()", ("B", 10)),
        Example("Weights over positions.", "softmax(1)", ("B", 4, 3)),
    )

    def relate(self, solver: Any, sizes: Any, x: Any) -> Any:
        axis_of(self.dim, len(x), "dim")
        return (x,)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.softmax(x, self.dim)


@operator("dropout", shape=_KEPT, category="regularization")
class Dropout(Operator):
    """Zero each element with probability `p` and divide the rest by `1 - p`, in training mode only.

    Every call, example and element draws anew. In evaluation mode, and with `p=0`, the input passes
    unchanged and no random number is drawn (Srivastava et al., 2014).
    """

    leaf: ClassVar = "dropout"

    p: float = argument(0.1, positional=True, minimum=0, below=1, doc="Probability of zeroing an element.")
    examples: ClassVar = (Example("Drop a tenth of the features.", "dropout()", ("B", 8)),)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return x  # evaluation; a backend's own layer draws in training mode


def axis_of(dim: int, rank: int, argument_name: str) -> int:
    """A non-batch axis as an index from 0; :class:`Conflict` when there is none such."""
    axis = dim + rank if dim < 0 else dim
    if not 0 <= axis < rank:
        raise Conflict(
            f"{argument_name}={dim} is not an axis of a tensor of rank {rank}",
            argument=argument_name,
            hints=_axes(rank),
        )
    if axis == 0:
        raise Conflict(
            f"{argument_name}={dim} is the batch axis, which this operator leaves alone",
            argument=argument_name,
            hints=_axes(rank),
        )
    return axis


def _axes(rank: int) -> tuple[str, ...]:
    """The non-batch axes of a tensor of a rank, in a line for people."""
    if rank < 2:
        return ()
    last = rank - 1
    return ("axes: 1, or -1",) if last == 1 else (f"axes: 1 to {last}, or -{last} to -1",)
