"""Weights made from a network's weights, as small expressions that every framework can evaluate.

A rewrite that moves a gain into a neighbouring product says so with these; an engine computes them once, in
float64 on the way, and again when the model's weights change.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol


@dataclass(frozen=True)
class Stored:
    """The parameter at a path of the plan."""

    path: str


@dataclass(frozen=True)
class Joined:
    """One after another along the first axis; None stands for zeros of the size beside it."""

    parts: tuple[Weight | None, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Columns:
    """``weight [O, I]`` with column i multiplied by ``gain[i] + offset``."""

    weight: Weight
    gain: Weight
    offset: float = 0.0


@dataclass(frozen=True)
class Rows:
    """``weight [O, ...]`` with row o multiplied by ``gain[o]``."""

    weight: Weight
    gain: Weight


@dataclass(frozen=True)
class Shifted:
    """``bias + weight @ shift``, a bias ``[O]``; None for a bias of zeros."""

    bias: Weight | None
    weight: Weight
    shift: Weight


@dataclass(frozen=True)
class Scaled:
    """``weight`` times a number."""

    weight: Weight
    factor: float


Weight = Stored | Joined | Columns | Rows | Shifted | Scaled


class Arithmetic(Protocol):
    """What evaluating needs of a framework; arrays are wide (float64) unless they are a parameter alone."""

    def parameter(self, path: str) -> Any:
        """The array at a path."""
        ...

    def wide(self, array: Any) -> Any:
        """In float64."""
        ...

    def times(self, array: Any, factor: Any) -> Any:
        """An array times a wide one, or times a number, in float64."""
        ...

    def apply(self, matrix: Any, vector: Any) -> Any:
        """A matrix times a wide vector, in float64."""
        ...

    def zeros(self, size: int) -> Any:
        """``[size]`` zeros."""
        ...

    def join(self, arrays: list[Any]) -> Any:
        """The arrays, one after another along the first axis."""
        ...


def evaluate(weight: Weight, arithmetic: Arithmetic, rows: slice | None = None) -> Any:
    """The array that an expression stands for; a lone parameter is given as it is.

    Args:
        weight: the expression.
        arithmetic: the framework's.
        rows: which part of the first axis, all of it by default. Parts of a large weight need less memory than
            the whole does.
    """

    def wide(part: Weight, rows: slice | None = None) -> Any:
        return arithmetic.wide(evaluate(part, arithmetic, rows))

    if isinstance(weight, Stored):
        array = arithmetic.parameter(weight.path)
        return array if rows is None else array[rows]
    if isinstance(weight, Joined):
        return arithmetic.join(_parts(weight, arithmetic, rows))
    if isinstance(weight, Columns):
        return arithmetic.times(evaluate(weight.weight, arithmetic, rows), wide(weight.gain) + weight.offset)
    if isinstance(weight, Rows):
        array, gain = evaluate(weight.weight, arithmetic, rows), wide(weight.gain, rows)
        return arithmetic.times(array, gain[:, None] if array.ndim == 2 else gain)
    if isinstance(weight, Scaled):
        return arithmetic.times(evaluate(weight.weight, arithmetic, rows), weight.factor)
    product = arithmetic.apply(evaluate(weight.weight, arithmetic, rows), wide(weight.shift))
    return product if weight.bias is None else wide(weight.bias, rows) + product


def _parts(joined: Joined, arithmetic: Arithmetic, rows: slice | None) -> list[Any]:
    start, arrays = 0, []
    for part, size in zip(joined.parts, joined.sizes, strict=True):
        inside = slice(0, size)
        if rows is not None:
            inside = slice(max(rows.start - start, 0), min(rows.stop - start, size))
        start += size
        length = inside.stop - inside.start
        if length > 0 or rows is None:
            arrays.append(arithmetic.zeros(length) if part is None else evaluate(part, arithmetic, inside))
    return arrays


def shape(weight: Weight, arithmetic: Arithmetic) -> tuple[int, ...]:
    """The shape that :func:`evaluate` gives."""
    if isinstance(weight, Stored):
        return tuple(arithmetic.parameter(weight.path).shape)
    if isinstance(weight, Joined):
        parts = [part for part in weight.parts if part is not None]
        return (sum(weight.sizes), *shape(parts[0], arithmetic)[1:])
    inner = shape(weight.weight, arithmetic)
    return inner[:1] if isinstance(weight, Shifted) else inner


def row_size(weight: Weight, arithmetic: Arithmetic) -> int:
    """How many numbers are read for each element of the first axis, at most."""
    if isinstance(weight, Joined):
        return max(row_size(part, arithmetic) for part in weight.parts if part is not None)
    if isinstance(weight, Shifted):
        return row_size(weight.weight, arithmetic)
    return prod(shape(weight, arithmetic)[1:])
