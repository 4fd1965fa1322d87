"""Affine maps: values by hand, widths from both sides."""

from __future__ import annotations

import numpy as np

import isomorph as iso


def test_linear_values(run):
    # [1, 2] @ [[1, 0], [3, 4], [5, 6]].T + [10, 20, 30] = [1, 11, 17] + [10, 20, 30]
    weights = {"n0.weight": [[1, 0], [3, 4], [5, 6]], "n0.bias": [10, 20, 30]}
    np.testing.assert_array_equal(run("linear(3)", [[1.0, 2.0]], weights), [[11, 31, 47]])
    np.testing.assert_array_equal(run("linear(3)", [[[1.0, 2.0]]], weights), [[[11, 31, 47]]])


def test_linear_without_bias(run):
    np.testing.assert_array_equal(run("linear(1, bias=False)", [[1.0, 2.0]], {"n0.weight": [[3, 4]]}), [[11]])


def test_widths_from_both_sides(error):
    plan = iso.resolve("linear()\nlinear(2, in_features=6)", input=("B", 3))
    assert [p.shape for p in plan.parameters] == [(6, 3), (6,), (2, 6), (2,)]
    assert error("linear()\nlinear(2)", input=("B", 3)).code == "E_UNRESOLVED"
    assert error("linear(4)", input=("B", 3), output=("B", 5)).code in ("E_CONSTRAINT", "E_OUTPUT")
    assert error("linear(4, in_features=5)", input=("B", 3)).code == "E_CONSTRAINT"


def test_ranks(error):
    assert error("linear(4)", input=("B", 3, 4, 5)).code == "E_CONSTRAINT"


def test_start_is_uniform_in_the_fan_in():
    plan = iso.resolve("linear(4)", input=("B", 16))
    assert [(p.initial.low, p.initial.high) for p in plan.parameters] == [(-0.25, 0.25)] * 2
