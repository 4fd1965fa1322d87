"""Elementwise arithmetic, and joining and cutting tensors along an axis."""

from __future__ import annotations

from typing import Any, ClassVar

from isomorph.operators.activation import axis_of
from isomorph.operators.declare import INFERRED, Conflict, Example, Operator, argument, operator
from isomorph.primitives import Primitives, Tensor

_TWO = "a[B, ...], b[B, ...] -> out[B, ...]"


@operator("add", shape=_TWO, category="joining")
class Add(Operator):
    """The elementwise sum of two tensors of one shape: `a + b`.

    Nothing is broadcast, so a size missing in one input is known from the other.
    """

    examples: ClassVar = (
        Example("A residual connection.", "h = linear(6)\nadd(h, tanh(h))", ("B", "T", 4)),
        Example("The projection's width comes from what it is added to.", "add(x, linear())", ("B", 8)),
    )

    def forward(self, m: Any, F: Primitives, a: Tensor, b: Tensor) -> Tensor:
        return a + b


@operator("mul", shape=_TWO, category="joining")
class Mul(Operator):
    """The elementwise product of two tensors of one shape: `a * b`. Nothing is broadcast."""

    examples: ClassVar = (
        Example(
            "A gate in (0, 1) for every feature.", "gate = sigmoid(linear(x))\nmul(x, gate)", ("B", "T", 4)
        ),
    )

    def forward(self, m: Any, F: Primitives, a: Tensor, b: Tensor) -> Tensor:
        return a * b


@operator("scale", shape="x[B, ...] -> out[B, ...]", category="joining")
class Scale(Operator):
    """Multiply by a fixed number: `x * factor`.

    Nothing is learned; `linear` and the layer scale of `transformer_block` learn their factors.
    """

    factor: float = argument(positional=True, doc="The number; any finite one.")

    examples: ClassVar = (
        Example("Halve every element.", "scale(0.5)", ("B", 8)),
        Example(
            "Embeddings times the root of their width, as in the first transformer.",
            "embedding(9, 4)\nscale(2.0)",
            ("B", "T"),
            input_dtype="int64",
        ),
    )

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return x * self.factor


@operator("concat", shape="x*[B, ...] -> out[B, ...]", category="joining")
class Concat(Operator):
    """Join two or more tensors along one axis, in the order given.

    ```
    out = [x0, x1, ...] side by side along axis
    ```

    The tensors have one rank and agree on every other axis; the sizes along `axis` add up. One missing
    size is worked out from the others. `axis=0` joins along the batch, so that two batches of B make one
    of `2*B`; negative numbers count from the last axis.
    """

    axis: int = argument(1, doc="The axis along which to join; 0 is the batch.")

    keeps_rank: ClassVar = True

    examples: ClassVar = (
        Example("Features side by side.", "concat(x, linear(3))", ("B", 5)),
        Example("A missing width: 8 in all, 5 of them given.", "concat(x, linear(x))", ("B", 5), ("B", 8)),
        Example(
            "Two sequences, one after the other.",
            'a = input("B", "T", 4)\nb = input("B", "S", 4)\nconcat(a, b)',
        ),
        Example("Two batches become one.", "concat(x, tanh(x), axis=0)", ("B", 3)),
    )

    def relate(self, solver: Any, sizes: Any, *shapes: Any) -> Any:
        first = shapes[0]
        axis = _join_axis(self.axis, len(first))
        for position, shape in enumerate(shapes[1:], 1):
            if len(shape) != len(first):
                raise Conflict(
                    f"concat joins tensors of one rank, got rank {len(first)} (x0) "
                    f"and rank {len(shape)} (x{position})"
                )
            for i, (a, b) in enumerate(zip(first, shape, strict=True)):
                if i == axis:
                    continue
                if type(a) is int and type(b) is int and a != b:
                    raise Conflict(
                        f"concat along axis {axis} needs tensors that agree elsewhere, "
                        f"axis {i} is {a} in x0 and {b} in x{position}"
                    )
                solver.equal(a, b)
        total = solver.sum([shape[axis] for shape in shapes])
        return ((*first[:axis], total, *first[axis + 1 :]),)

    def forward(self, m: Any, F: Primitives, *tensors: Tensor) -> Tensor:
        return F.concatenate(tensors, self.axis)


def _join_axis(axis: int, rank: int) -> int:
    """An axis of ``concat`` as an index from 0; unlike elsewhere the batch may be joined."""
    return 0 if axis in (0, -rank) else axis_of(axis, rank, "axis")


@operator("split", shape="x[B, ...] -> first[B, ...], rest[B, ...]", category="joining")
class Split(Operator):
    """Cut one axis in two: the first `size` places, and the rest.

    ```
    first = x[:, :size]
    rest  = x[:, size:]        # for dim=1
    ```

    Both parts hold something. Of the three sizes involved any one may be missing: `size` is worked out
    from what either part is used for. Since there are two results, the next call names the one it takes.
    """

    size: int = argument(INFERRED, positional=True, minimum=1, size="size", doc="Places in the first part.")
    dim: int = argument(1, doc="The axis to cut; not the batch; negative counts from the end.")

    keeps_rank: ClassVar = True

    examples: ClassVar = (
        Example("Three features and the other five.", "a, b = split(3)\nconcat(b, a)", ("B", 8)),
        Example(
            "The cut follows from what a part is added to.",
            "a, b = split(linear(10))\nadd(a, x)",
            ("B", 4),
        ),
        Example(
            "A gated unit: one half decides what passes of the other.",
            "a, b = split(linear(6), 3, dim=2)\nmul(a, sigmoid(b))",
            ("B", "T", 4),
        ),
    )

    def relate(self, solver: Any, sizes: Any, x: Any) -> Any:
        axis, size = axis_of(self.dim, len(x), "dim"), sizes["size"]
        rest = x[axis] - size
        if type(rest) is int and rest < 1:
            raise Conflict(
                f"split takes size={size} of an axis of {x[axis]}, which leaves nothing for the second part",
                argument="size",
                hints=(f"sizes: 1 to {x[axis] - 1}",) if x[axis] > 1 else ("an axis of 1 cannot be cut",),
            )
        solver.at_least(size, 1)
        solver.at_least(rest, 1)
        before, after = x[:axis], x[axis + 1 :]
        return (*before, size, *after), (*before, rest, *after)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.narrow(x, self.dim, 0, self.size), F.narrow(x, self.dim, self.size, None)
