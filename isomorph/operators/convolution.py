"""Convolutions along a sequence.

Axis legend: B batch, C_in and C_out channels, T steps in, L steps out, k kernel_size, s stride, p padding.
"""

from __future__ import annotations

from typing import Any, ClassVar

from isomorph.initializers import uniform_fan_in
from isomorph.operators.declare import (
    INFERRED,
    Conflict,
    Example,
    Operator,
    Parameter,
    argument,
    operator,
)
from isomorph.primitives import Primitives, Tensor


@operator("conv1d", shape="x[B, C_in, T] -> out[B, C_out, L]", category="convolution")
class Conv1d(Operator):
    """Cross-correlation along the last axis, channels before it, as PyTorch's `Conv1d` has it.

    A window of `kernel_size` steps moves over x by `stride` steps at a time, after `padding` zeros were put
    at either end. With k, s and p for the three:

    ```
    L            = (T + 2 * p - k) // s + 1
    out[b, o, l] = bias[o] + sum over c, j of weight[o, c, j] * x[b, c, l * s + j - p]   # 0 outside of x
    ```

    `weight` is `[C_out, C_in, k]` and `bias` is `[C_out]`; both start uniform in ±1/sqrt(C_in * k). No window
    fits where T + 2 * p < k: `E_CONSTRAINT` where T is known and `E_RUNTIME` where it is a symbol.

    A sequence of shape `[B, T, D]` is turned by `transpose(1, 2)` first.

    **Open lengths.** A symbolic T is followed where the result is affine in it: always with `stride=1`, and
    otherwise where the stride divides the symbol's factor, as 2 divides `2*N`. Else it is `E_UNRESOLVED`.
    Backwards, L determines T with `stride=1` alone; with a greater stride s lengths give the same L, which is
    `E_AMBIGUOUS` unless something else decides.
    """

    leaf: ClassVar = "conv1d"

    out_channels: int = argument(
        INFERRED, positional=True, minimum=1, size="C_out", doc="Channels of the result, C_out."
    )
    kernel_size: int = argument(positional=True, minimum=1, doc="Steps in a window.")
    stride: int = argument(1, minimum=1, doc="Steps from one window to the next.")
    padding: int = argument(0, minimum=0, doc="Zeros before the first step, and as many after the last.")
    in_channels: int = argument(INFERRED, minimum=1, size="C_in", doc="Channels of x, C_in.")
    bias: bool = argument(True, doc="Add a learned number to every channel.")

    examples: ClassVar = (
        Example("As many steps as before.", "conv1d(5, 3, padding=1)", ("B", 3, 8)),
        Example("Half as many, then the channels last.",
                "conv1d(4, 3, stride=2, padding=1)\ntranspose(1, 2)", ("B", 3, 8)),
        Example("Any length that holds a window, no bias.", "conv1d(4, 3, bias=False)", ("B", 2, "T")),
        Example("The channels come from the output contract.",
                "conv1d(kernel_size=2, stride=3)", ("B", 2, 9), ("B", 5, 3)),
    )  # fmt: skip

    def relate(self, solver: Any, sizes: Any, x: Any) -> Any:
        return ((x[0], sizes["C_out"], self.length(solver, solver.value(x[2]))),)

    def length(self, solver: Any, T: Any) -> Any:
        """L for a T that is a number, a symbol's multiple, or still to be found."""
        stride, more = self.stride, 2 * self.padding - self.kernel_size  # L = (T + more) // stride + 1
        if type(T) is int:
            if T + more < 0:
                raise self.too_short(T)
            return (T + more) // stride + 1
        if all(c % stride == 0 for _, c in T.terms):
            L = solver.quotient(T - T.constant, stride) + ((T.constant + more) // stride + 1)
            solver.at_least(L, 1)
            return L
        if not T.is_open:
            raise Conflict(
                f"({T}{more:+d}) // {stride} + 1 is no size: {T} is not known until run time",
                argument="stride",
                code="E_UNRESOLVED",
                hints=(f"give a number for {T}, or a multiple of {stride} such as {stride}*N",),
            )
        # T + more = (L - 1) * stride + rest, where 0 <= rest < stride; every unknown is 1 at least.
        L, rest_and_one = solver.unknown("the number of windows"), solver.unknown("the steps left over")
        solver.at_least(rest_and_one * -1 + stride, 0)
        solver.equal(T + (more + 1), (L + -1) * stride + rest_and_one)
        return L

    def too_short(self, T: int) -> Conflict:
        """What to say when not even one window fits."""
        padded = f"{T} + 2 * {self.padding}" if self.padding else f"{T}"
        return Conflict(
            f"kernel_size={self.kernel_size} does not fit into T={padded} steps",
            argument="kernel_size",
            sizes=("T",),
            hints=(f"T must be at least {self.kernel_size - 2 * self.padding}, or the padding greater",),
        )

    def parameters(self, C_in: int, C_out: int) -> dict[str, Parameter]:
        initial = uniform_fan_in(C_in * self.kernel_size)
        parameters = {
            "weight": Parameter((C_out, C_in, self.kernel_size), initial, ("embed", None, None)),
        }
        return parameters | ({"bias": Parameter((C_out,), initial, ("embed",))} if self.bias else {})

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        bias = m.bias if self.bias else None
        return F.conv1d(x, m.weight, bias, stride=self.stride, padding=self.padding)
