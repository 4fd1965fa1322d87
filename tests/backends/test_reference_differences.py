"""Derivatives by central differences, against derivatives known by arithmetic."""

import math

import numpy as np
import pytest

from isomorph.backends.reference.differences import directional_derivative
from isomorph.plan.resolve import resolve
from isomorph.reference import build


@pytest.mark.parametrize(
    ("f", "x", "right"),
    [
        (lambda x: x**3, 2.0, 12.0),  # 3 x^2
        (lambda x: 1 / x, 4.0, -0.0625),  # -1 / x^2
        (np.exp, 1.0, math.e),
        (np.sin, 0.5, math.cos(0.5)),
        (lambda x: 7.0, 1.0, 0.0),
        (lambda x: 1e6 * x, 1e3, 1e6),
    ],
)
def test_one_variable(f, x, right):
    estimate = directional_derivative(f, x, 1.0)
    assert estimate.value == pytest.approx(right, rel=1e-11, abs=1e-12)
    assert estimate.error <= 1e-9 * max(1.0, abs(right))


def test_mappings_of_arrays_and_a_given_step():
    # f = sum(a^2 b): along (da, db) it is sum(2 a b da + a^2 db) = 2*3*5*1 + 9*2 = 48
    point = {"a": np.array([3.0]), "b": np.array([5.0])}
    direction = {"a": np.array([1.0]), "b": np.array([2.0])}
    estimate = directional_derivative(lambda p: (p["a"] ** 2 * p["b"]).sum(), point, direction, step=0.5)
    assert estimate.value == pytest.approx(48.0, rel=1e-12)


def test_the_error_is_reported_where_there_is_no_derivative():
    estimate = directional_derivative(lambda x: abs(x - 0.01), 0.0, 1.0)  # a kink within the first steps
    assert estimate.value == pytest.approx(-1.0, abs=max(estimate.error, 1e-9) * 10)


def test_the_slope_of_a_network():
    # y = w2 * relu(w1 x + b), loss = y^2 at x=2: w1=3, b=1, w2=5 -> h=7, y=35
    plan = resolve("linear(1)\nrelu()\nlinear(1, bias=False)", input=("B", 1))
    weights = {"n0.weight": np.array([[3.0]]), "n0.bias": np.array([1.0]), "n2.weight": np.array([[5.0]])}
    direction = {"n0.weight": np.array([[1.0]]), "n0.bias": np.array([0.0]), "n2.weight": np.array([[0.5]])}

    def loss(w):
        return (build(plan, w)([[2.0]]) ** 2).sum()

    # 2 y (w2 x dw1 + h dw2) = 70 * (10 + 3.5)
    assert directional_derivative(loss, weights, direction).value == pytest.approx(945.0, rel=1e-11)
