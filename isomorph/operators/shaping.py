"""Other shapes for the same elements, and fewer of them: reshape, transpose, mean, pooling."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from isomorph.operators.activation import axis_of
from isomorph.operators.declare import Conflict, Example, Operator, argument, operator
from isomorph.primitives import Primitives, Tensor


@operator("reshape", shape="x[B, ...] -> out[B, ...]", category="shaping")
class Reshape(Operator):
    """The same elements in row-major order under other sizes; the batch stays.

    The positional sizes are the leading ones after the batch. If they hold all elements the shape is
    complete; otherwise more sizes follow, and how many and which comes from what the result is used for.
    Where that leaves a choice the answer is `E_AMBIGUOUS`. One size may be `-1`: the shape is complete
    then, and that size is what the element count leaves.

    | Input | Call | Result |
    | --- | --- | --- |
    | `[B, 64]` | `reshape(16, 4)` | `[B, 16, 4]` |
    | `[B, 64]` | `reshape(16)` before an output `[B, 16, 4]` | `[B, 16, 4]` |
    | `[B, T, 8]` | `reshape(-1, 2, 4)` | `[B, T, 2, 4]` |
    """

    dims: int = argument(
        (), positional=True, variadic=True, minimum=-1, doc="Leading sizes after the batch; one may be -1."
    )

    examples: ClassVar = (
        Example("Vectors become sequences of two.", "reshape(2, 3)", ("B", 6)),
        Example("The rest follows from the output contract.", "reshape(4)", ("B", 24), ("B", 4, 2, 3)),
        Example("Positions in pairs.", "reshape(-1, 8)", ("B", 6, 4)),
        Example("Heads of an open number of positions.", "reshape(-1, 2, 4)", ("B", "T", 8)),
    )

    def relate(self, solver: Any, sizes: Any, x: Any) -> Any:
        dims = given_sizes(self.dims)
        count = solver.product(x[1:])
        known = prod(dim for dim in dims if dim != -1)
        if type(count) is int and count % known:
            listed = " * ".join(map(str, dims))
            raise Conflict(
                f"reshape cannot arrange {count} elements by {listed}"
                + (f"={known}" if len(dims) > 1 and -1 not in dims else ""),
                argument="dims",
                hints=(f"the sizes after the batch must divide {count}",),
            )
        if -1 in dims:
            rest = solver.quotient(count, known)
            return ((x[0], *(rest if dim == -1 else dim for dim in dims)),)
        if count == known:
            return ((x[0], *dims),)
        return (solver.open_shape(prefix=(x[0], *dims), count=count),)

    def relate_open(self, solver: Any, leading: Any, count: Any) -> Any:
        return self.relate(solver, {}, (leading[0], count))

    @classmethod
    def settle(cls, arguments: dict[str, Any], inputs: Any, outputs: Any) -> dict[str, Any]:
        """All sizes after the batch, with -1 for one that is known at run time alone."""
        return {"dims": tuple(dim if type(dim) is int else -1 for dim in outputs[0][1:])}

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        shape: tuple[Any, ...] = self.dims  # type: ignore[assignment]  # variadic: a tuple
        known = prod(dim for dim in shape if dim != -1)
        count = prod(x.shape[1:])
        return F.reshape(x, (x.shape[0], *(count // known if dim == -1 else dim for dim in shape)))


def given_sizes(dims: Any) -> tuple[int, ...]:
    """The sizes of a ``reshape`` as written, checked: positive, with at most one -1."""
    if 0 in dims:
        raise Conflict("reshape takes sizes from 1, or -1 once, got 0", argument="dims", code="E_ARGUMENT")
    if dims.count(-1) > 1:
        raise Conflict(
            f"reshape works out one size at most, got -1 {dims.count(-1)} times",
            argument="dims",
            hints=("give all sizes but one",),
            code="E_ARGUMENT",
        )
    return dims


@operator("flatten", shape="x[B, ...] -> out[B, F]", category="shaping")
class Flatten(Operator):
    """All axes but the batch become one, in row-major order: F is the product of their sizes."""

    examples: ClassVar = (
        Example("Images become vectors.", "flatten()", ("B", 1, 2, 3)),
        Example("An open number of positions.", "flatten()", ("B", "T", 4)),
    )

    def relate(self, solver: Any, sizes: Any, x: Any) -> Any:
        return ((x[0], solver.product(x[1:])),)

    def relate_open(self, solver: Any, leading: Any, count: Any) -> Any:
        return ((leading[0], count),)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.reshape(x, (x.shape[0], prod(x.shape[1:])))  # (B, F)


@operator("transpose", shape="x[B, ...] -> out[B, ...]", category="shaping")
class Transpose(Operator):
    """Swap two axes; the batch stays where it is.

    `transpose(1, 2)` leads from `[B, T, D]` to `[B, D, T]` and back. Negative numbers count from the
    last axis, and twice the same axis changes nothing.
    """

    dim0: int = argument(positional=True, doc="One axis; not the batch.")
    dim1: int = argument(positional=True, doc="The other axis.")

    keeps_rank: ClassVar = True
    keeps_count: ClassVar = True

    examples: ClassVar = (
        Example("Positions and features change places.", "transpose(1, 2)", ("B", 3, 4)),
        Example(
            "A map over positions instead of features.",
            "transpose(1, -1)\nlinear(5)\ntranspose(1, -1)",
            ("B", 4, 3),
            ("B", 5, 3),
        ),
    )

    def relate(self, solver: Any, sizes: Any, x: Any) -> Any:
        return (tuple(x[i] for i in self.order(len(x))),)

    def order(self, rank: int) -> tuple[int, ...]:
        """For each axis of the result, the axis of x that it is."""
        i, j = axis_of(self.dim0, rank, "dim0"), axis_of(self.dim1, rank, "dim1")
        order = list(range(rank))
        order[i], order[j] = j, i
        return tuple(order)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.permute(x, self.order(len(x.shape)))


@operator("mean", shape="x[B, ...] -> out[B, ...]", category="shaping")
class Mean(Operator):
    """The arithmetic mean along one axis, which goes away or, with `keepdim`, becomes 1.

    The sum is accumulated in float32 at least. Later axes move up by one unless `keepdim`. The batch is
    refused, and so is an axis without elements: `E_RUNTIME`.
    """

    dim: int = argument(positional=True, doc="The axis; not the batch; negative counts from the end.")
    keepdim: bool = argument(False, doc="Keep the axis, with size 1.")

    examples: ClassVar = (
        Example("The mean over positions.", "mean(1)", ("B", "T", 4)),
        Example("The mean over features, kept as an axis.", "mean(-1, keepdim=True)", ("B", 3, 4)),
    )

    def relate(self, solver: Any, sizes: Any, x: Any) -> Any:
        axis = axis_of(self.dim, len(x), "dim")
        solver.at_least(x[axis], 1)
        return ((*x[:axis], *((1,) if self.keepdim else ()), *x[axis + 1 :]),)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.mean(x, self.dim, self.keepdim)


@operator("cumsum", shape="x[B, ...] -> out[B, ...]", category="shaping")
class Cumsum(Operator):
    """Running sums along one axis: `out[i] = x[0] + ... + x[i]`.

    The sums are accumulated in float32 at least and rounded once: a million ones in half precision do not stop at
    2048. The batch is refused.
    """

    dim: int = argument(-1, positional=True, doc="The axis; not the batch; negative counts from the end.")
    keeps_rank: ClassVar = True
    keeps_count: ClassVar = True

    examples: ClassVar = (
        Example("What came so far, feature by feature.", "cumsum(1)", ("B", "T", 4)),
        Example("Sums along the features.", "cumsum()", ("B", 3, 5)),
    )

    def relate(self, solver: Any, sizes: Any, x: Any) -> Any:
        axis_of(self.dim, len(x), "dim")
        return (x,)

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.cumsum(x, self.dim)


@operator("pool_tokens", shape="x[B, T, D], mask?[B, T]:bool -> out[B, D]", category="shaping")
class PoolTokens(Operator):
    """One vector per example out of a sequence.

    | `mode` | `out[b, d]` |
    | --- | --- |
    | `mean` | the mean of `x[b, t, d]` over t |
    | `first` | `x[b, 0, d]`, as for a class token |
    | `last` | `x[b, T-1, d]`, as for a causal network |
    | `max` | the largest `x[b, t, d]` over t |

    The optional `mask` is True where there is a token: the mean, the largest, the first and the last are then
    those of the positions where it is True. What stands at the others, NaN too, reaches neither the result nor
    a gradient. A sequence whose mask is nowhere True gives zeros, as sentence-transformers' mean does. Without
    a mask every position counts.

    The sequence must hold a position: T = 0 is `E_RUNTIME`.
    """

    mode: str = argument(
        "mean", positional=True, choices=("mean", "first", "last", "max"), doc="What stands for the sequence."
    )

    examples: ClassVar = (
        Example("The mean over five positions.", "pool_tokens()", ("B", 5, 4)),
        Example("The last position of any length.", 'pool_tokens("last")', ("B", "T", 4)),
        Example("The largest value of each feature.", 'pool_tokens(mode="max")', ("B", 5, 4)),
        Example("A classifier's head.", 'pool_tokens("first")\nlinear()', ("B", "T", 4), ("B", 3)),
        Example(
            "The mean over the tokens of padded sentences.",
            'x = input("B", "T", 4)\nm = input("B", "T", dtype="bool")\npool_tokens(mask=m)',
        ),
        Example(
            "The largest value, the first and the last of what is no padding.",
            'x = input("B", "T", 4)\nm = input("B", "T", dtype="bool")\n'
            'a = pool_tokens(x, "max", mask=m)\nb = pool_tokens(x, "first", mask=m)\n'
            'c = pool_tokens(x, "last", mask=m)\noutput(a=("B", 4), b=("B", 4), c=("B", 4))',
        ),
    )

    def relate(self, solver: Any, sizes: Any, x: Any, *mask: Any) -> Any:
        solver.at_least(x[1], 1)
        return ((x[0], x[2]),)

    def forward(self, m: Any, F: Primitives, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            return F.masked_pool(x, mask, self.mode)
        if self.mode == "mean":
            return F.mean(x, 1)
        if self.mode == "max":
            return F.max(x, 1)
        token = F.narrow(x, 1, 0, 1) if self.mode == "first" else F.narrow(x, 1, -1, None)  # (B, 1, D)
        return F.reshape(token, (x.shape[0], x.shape[2]))  # (B, D)


@operator("take_at", shape="x[B, T, D], ids[B, T]:int64 -> out[B, D]", category="shaping")
class TakeAt(Operator):
    """The position of every sequence at which its ids first hold a given one.

    ```
    out[b] = x[b, p]        # p the least with ids[b, p] == token
    ```

    For networks that read a sequence where it ends: the ids mark the end, and what follows is padding.
    Where no id of a sequence is `token`, its first position is taken, p = 0. With `token=-1` p is the first
    position of the largest id, which marks the end where the last id of the vocabulary does. Nothing at
    other positions reaches the result or a gradient. The sequence must hold a position: T = 0 is
    `E_RUNTIME`.
    """

    token: int = argument(positional=True, minimum=-1, doc="The id to look for; -1 for the largest.")

    examples: ClassVar = (
        Example(
            "A causal network read at the end of its text, id 1.",
            'ids = input("B", "T", dtype="int64")\n'
            "h = attention(embedding(ids, 2, 4), 2, causal=True)\n"
            "take_at(h, ids, 1)",
        ),
        Example(
            "The end of the text is the largest id.",
            'x = input("B", 5, 4)\nids = input("B", 5, dtype="int64")\ntake_at(x, ids, token=-1)',
        ),
    )

    def check(self) -> None:
        if self.token >= 1 << 31:  # JAX has 32-bit integers unless told otherwise
            raise Conflict(
                f"token must be below 2147483648, got {self.token}", argument="token", code="E_ARGUMENT"
            )

    def relate(self, solver: Any, sizes: Any, x: Any, ids: Any) -> Any:
        solver.at_least(x[1], 1)
        return ((x[0], x[2]),)

    def forward(self, m: Any, F: Primitives, x: Tensor, ids: Tensor) -> Tensor:
        return F.take_at(x, ids, self.token)
