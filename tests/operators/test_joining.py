"""Elementwise arithmetic, concat and split: values by hand, sizes in both directions."""

from __future__ import annotations

import numpy as np
import pytest

import isomorph as iso

A = np.array([[1.0, 2.0], [3.0, 4.0]])
B = np.array([[10.0, 20.0], [30.0, 40.0]])


def test_add_mul_scale(run):
    np.testing.assert_array_equal(run("add(a, b)", {"a": A, "b": B}), [[11, 22], [33, 44]])
    np.testing.assert_array_equal(run("mul(a, b)", {"a": A, "b": B}), [[10, 40], [90, 160]])
    np.testing.assert_array_equal(run("scale(-0.5)", A), [[-0.5, -1], [-1.5, -2]])
    np.testing.assert_array_equal(run("scale(3)", A), [[3, 6], [9, 12]])


@pytest.mark.parametrize("name", ["add", "mul"])
def test_arithmetic_does_not_broadcast(error, name):
    found = error(f"{name}(a, b)", input={"a": ("B", 4), "b": ("B", 1)})
    assert found.code == "E_CONSTRAINT"
    assert error(f"{name}(a, b)", input={"a": ("B", 4), "b": ("B", 1, 4)}).code == "E_CONSTRAINT"


def test_add_tells_a_width(shape_of):
    plan = iso.resolve("add(x, linear())", input=("B", 7))
    assert plan.nodes[0].operator.out_features == 7


def test_scale_needs_a_finite_factor(error):
    found = error("scale(1e999)", input=("B", 4))
    assert found.code == "E_ARGUMENT"
    assert found.message == "a number must be finite, got inf"


def test_concat_in_order(run):
    np.testing.assert_array_equal(run("concat(b, a)", {"a": A, "b": B}), [[10, 20, 1, 2], [30, 40, 3, 4]])
    out = run("concat(a, b, axis=0)", {"a": A, "b": B})
    np.testing.assert_array_equal(out, [[1, 2], [3, 4], [10, 20], [30, 40]])


def test_concat_along_any_axis(run):
    a = np.arange(4.0).reshape(1, 2, 2)
    np.testing.assert_array_equal(run("concat(x, x, axis=2)", a), run("concat(x, x, axis=-1)", a))
    np.testing.assert_array_equal(
        run("concat(x, scale(x, 10.0), axis=-1)", a), [[[0, 1, 0, 10], [2, 3, 20, 30]]]
    )
    np.testing.assert_array_equal(run("concat(x, x, x)", a), np.tile(a, (1, 3, 1)))


def test_concat_shapes(shape_of):
    assert shape_of("concat(x, x, axis=0)", input=("B", 3)) == ["2*B", 3]
    two = {"a": ("B", "T", 4), "b": ("B", "S", 4)}
    assert shape_of("concat(a, b)", input=two) == ["B", "T+S", 4]
    assert shape_of("concat(x, cls_token(x))", input=("B", "T", 4)) == ["B", "2*T+1", 4]


def test_concat_finds_a_missing_size():
    plan = iso.resolve("concat(x, linear(x), linear(x, 2))", input=("B", 5), output=("B", 10))
    assert plan.nodes[0].operator.out_features == 3


def test_concat_conflicts(error):
    found = error("concat(a, b)", input={"a": ("B", 3, 4), "b": ("B", 3, 5)})
    assert found.code == "E_CONSTRAINT"
    assert found.message == (
        "concat along axis 1 needs tensors that agree elsewhere, axis 2 is 4 in x0 and 5 in x1"
    )
    found = error("concat(a, b)", input={"a": ("B", 3), "b": ("B", 3, 5)})
    assert found.code == "E_CONSTRAINT"
    assert found.message == "concat joins tensors of one rank, got rank 2 (x0) and rank 3 (x1)"
    found = error("concat(x, x, axis=2)", input=("B", 3))
    assert found.message == "axis=2 is not an axis of a tensor of rank 2"
    assert error("concat(x)", input=("B", 3)).code == "E_BINDING"
    found = error("concat(x, linear(x), linear(x))", input=("B", 5), output=("B", 10))
    assert found.code == "E_AMBIGUOUS"


def test_split_in_order(run):
    x = np.array([[1.0, 2, 3, 4, 5]])
    np.testing.assert_array_equal(run("a, b = split(2)\nconcat(b, a)", x), [[3, 4, 5, 1, 2]])
    x = np.arange(6.0).reshape(1, 2, 3)
    np.testing.assert_array_equal(run("a, b = split(1, dim=-1)\nmul(a, a)", x), [[[0], [9]]])


def test_split_sizes_from_either_part():
    plan = iso.resolve("a, b = split(linear(10))\nadd(a, x)", input=("B", 4))
    assert plan.nodes[1].operator.size == 4
    plan = iso.resolve("a, b = split(linear(10))\nadd(b, x)", input=("B", 4))
    assert plan.nodes[1].operator.size == 6
    plan = iso.resolve("a, b = split(linear(), 3)\nadd(b, x)", input=("B", 4))
    assert plan.nodes[0].operator.out_features == 7


def test_split_of_an_open_length(shape_of):
    definition = "a, b = split(2)\nidentity(b)"
    assert shape_of(definition, input=("B", "T", 4)) == ["B", "T-2", 4]
    assert iso.resolve(definition, input=("B", "T", 4)).bounds["T"].low == 3


def test_split_leaves_something(error):
    found = error("a, b = split(4)\nidentity(a)", input=("B", 4))
    assert found.code == "E_CONSTRAINT"
    assert found.message == "split takes size=4 of an axis of 4, which leaves nothing for the second part"
    assert "sizes: 1 to 3" in found.hints
    found = error("a, b = split(2, dim=0)\nidentity(a)", input=("B", 4))
    assert found.message == "dim=0 is the batch axis, which this operator leaves alone"
    assert error("split(2)\nrelu()", input=("B", 4)).code == "E_BINDING"
    assert error("a, b = split(x)\nidentity(a)", input=("B", 4)).code == "E_AMBIGUOUS"
