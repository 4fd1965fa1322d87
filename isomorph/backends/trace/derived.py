"""Weights made from a network's weights, as small expressions that every framework can evaluate.

A rewrite that moves a gain into a neighbouring product says so with these; an engine computes them once, in
float64 on the way, and again when the model's weights change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Parameter:
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


Weight = Parameter | Joined | Columns | Rows | Shifted | Scaled


class Arithmetic(Protocol):
    """What evaluating needs of a framework; arrays are wide (float64) unless they are a parameter alone."""

    def parameter(self, path: str) -> Any:
        """The array at a path."""
        ...

    def wide(self, array: Any) -> Any:
        """In float64."""
        ...

    def zeros(self, size: int) -> Any: ...

    def join(self, arrays: list[Any]) -> Any: ...


def evaluate(weight: Weight, arithmetic: Arithmetic) -> Any:
    """The array that an expression stands for; a lone parameter is given as it is."""
    if isinstance(weight, Parameter):
        return arithmetic.parameter(weight.path)
    if isinstance(weight, Joined):
        parts = zip(weight.parts, weight.sizes, strict=True)
        return arithmetic.join(
            [arithmetic.zeros(size) if part is None else evaluate(part, arithmetic) for part, size in parts]
        )

    def wide(part: Weight) -> Any:
        return arithmetic.wide(evaluate(part, arithmetic))

    if isinstance(weight, Columns):
        return wide(weight.weight) * (wide(weight.gain) + weight.offset)
    if isinstance(weight, Rows):
        array, gain = wide(weight.weight), wide(weight.gain)
        return array * (gain[:, None] if array.ndim == 2 else gain)
    if isinstance(weight, Scaled):
        return wide(weight.weight) * weight.factor
    product = wide(weight.weight) @ wide(weight.shift)
    return product if weight.bias is None else wide(weight.bias) + product
