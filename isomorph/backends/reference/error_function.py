"""The error function in float64.

Rational Chebyshev approximations of W. J. Cody, "Rational Chebyshev approximations for the error
function", Mathematics of Computation 23 (1969), 631-637, with the coefficients of his routine CALERF.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SMALL, MIDDLE, LARGE = (
    0.46875,
    4.0,
    6.0,
)  # where one approximation gives way to the next; beyond 6, erf is +-1

# erf(x) = x * R(x^2) for |x| <= 0.46875; highest power first
SMALL_NUMERATOR = (
    1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
    3.20937758913846947e3,
)  # fmt: skip
SMALL_DENOMINATOR = (
    1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3,
)  # fmt: skip

# erfc(y) = exp(-y^2) * R(y) for 0.46875 < y <= 4
MIDDLE_NUMERATOR = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
    2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
    1.23033935479799725e3,
)  # fmt: skip
MIDDLE_DENOMINATOR = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip

# erfc(y) = exp(-y^2) / y * (1 / sqrt(pi) - y^-2 * R(y^-2)) for y > 4
LARGE_NUMERATOR = (
    1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
    1.60837851487422766e-2, 6.58749161529837803e-4,
)  # fmt: skip
LARGE_DENOMINATOR = (
    1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1, 6.05183413124413191e-2,
    2.33520497626869185e-3,
)  # fmt: skip


def erf(x: Array) -> Array:
    """``2 / sqrt(pi) * integral of exp(-t^2) from 0 to x``, within 4 ulp; NaN stays NaN."""
    size = np.abs(x)
    result = np.sign(x)
    small = size <= SMALL
    middle = (size > SMALL) & (size <= MIDDLE)
    large = (size > MIDDLE) & (size <= LARGE)
    result[small] = x[small] * _ratio(SMALL_NUMERATOR, SMALL_DENOMINATOR, size[small] ** 2)
    result[middle] *= (0.5 - _middle(size[middle])) + 0.5
    result[large] *= (0.5 - _large(size[large])) + 0.5
    return result


def _middle(y: Array) -> Array:
    return _exp_minus_square(y) * _ratio(MIDDLE_NUMERATOR, MIDDLE_DENOMINATOR, y)


def _large(y: Array) -> Array:
    z = 1.0 / y**2
    tail = 1.0 / np.sqrt(np.pi) - z * _ratio(LARGE_NUMERATOR, LARGE_DENOMINATOR, z)
    return _exp_minus_square(y) / y * tail


def _exp_minus_square(y: Array) -> Array:
    """exp(-y^2), the square split so that its rounding error does not grow through exp."""
    head = np.trunc(y * 16.0) / 16.0
    return np.exp(-head * head) * np.exp(-(y - head) * (y + head))


def _ratio(numerator: tuple[float, ...], denominator: tuple[float, ...], x: Array) -> Array:
    return np.polyval(numerator, x) / np.polyval(denominator, x)
