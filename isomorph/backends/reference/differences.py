"""Derivatives without automatic differentiation: central differences, extrapolated to step zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Point = Any
"""An array, or a mapping of arrays by name."""

_SHRINK = 1.5  # each step is this much shorter than the one before
_STEPS = 12


class Estimate(NamedTuple):
    """A derivative and how far off it may be."""

    value: float
    error: float


def directional_derivative(
    f: Callable[[Any], Any], point: Point, direction: Point, step: float | None = None
) -> Estimate:
    """``d/dh f(point + h * direction)`` at ``h = 0``, in float64.

    Central differences for shrinking steps are extrapolated to zero in a Neville table, and the entry
    that its neighbours bear out best is returned (C. J. F. Ridders, "Accurate computation of F'(x) and
    F'(x) F''(x)", Advances in Engineering Software 4 (1982), 75-76).

    Args:
        f: takes what ``point`` is, an array or a mapping of arrays, and returns one number.
        point: where.
        direction: which way, of the same form.
        step: the first and longest h; by default one that moves no element by more than 1/16.
    """
    if step is None:
        step = 2.0**-4 / max(_largest(direction), 2.0**-100)

    def difference(h: float) -> float:
        return (float(f(_moved(point, direction, h))) - float(f(_moved(point, direction, -h)))) / (2 * h)

    row = [difference(step)]
    best = Estimate(row[0], float("inf"))
    for number in range(1, _STEPS):
        extrapolated = [difference(step / _SHRINK**number)]
        for order, above in enumerate(row, start=1):
            factor = _SHRINK ** (2 * order)  # the error of a central difference is a series in h^2
            previous = extrapolated[-1]
            value = previous + (previous - above) / (factor - 1)
            error = max(abs(value - previous), abs(value - above))
            if error < best.error:
                best = Estimate(value, error)
            extrapolated.append(value)
        row = extrapolated
    return best


def _moved(point: Point, direction: Point, h: float) -> Point:
    if isinstance(point, Mapping):
        return {name: _moved(array, direction[name], h) for name, array in point.items()}
    return np.asarray(point, dtype=np.float64) + h * np.asarray(direction, dtype=np.float64)


def _largest(direction: Point) -> float:
    if isinstance(direction, Mapping):
        return max(map(_largest, direction.values()), default=0.0)
    return float(np.max(np.abs(np.asarray(direction, dtype=np.float64)), initial=0.0))
