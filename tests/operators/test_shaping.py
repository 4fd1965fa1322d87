"""Reshape, flatten, transpose, mean and pooling: values by hand, sizes in both directions."""

from __future__ import annotations

import numpy as np
import pytest

import isomorph as iso
from isomorph import reference
from isomorph.operators.declare import Conflict
from isomorph.operators.shaping import TakeAt

X = np.arange(12.0).reshape(1, 3, 4)


def test_reshape_is_row_major(run):
    np.testing.assert_array_equal(run("reshape(2, 6)", X)[0], [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    np.testing.assert_array_equal(run("reshape(12)", X)[0], np.arange(12))
    np.testing.assert_array_equal(run("reshape(-1, 2)", X)[0], np.arange(12).reshape(6, 2))


@pytest.mark.parametrize(
    ("definition", "given", "wanted"),
    [
        ("reshape(4, 6)", ("B", 24), None),
        ("reshape(4)", ("B", 24), ("B", 4, 6)),
        ("reshape()", ("B", 24), ("B", 4, 6)),
        ("reshape(4)", ("B", 24), ("B", 4, 2, 3)),
        ("reshape(2, -1)", ("B", 3, 8), ("B", 2, 12)),
    ],
)
def test_reshape_completes_itself(shape_of, definition, given, wanted):
    expected = list(wanted or ("B", 4, 6))
    assert shape_of(definition, input=given, output=wanted) == expected
    plan = iso.resolve(definition, input=given, output=wanted)
    assert plan.nodes[0].operator.dims == tuple(expected[1:])


def test_reshape_takes_its_rank_from_what_follows(shape_of):
    plan = iso.resolve("reshape(2)\nattention(2)", input=("B", 24))
    assert [str(size) for size in plan.values[1].shape] == ["B", "2", "12"]


def test_a_width_comes_back_through_reshape():
    plan = iso.resolve("linear()\nreshape(4, 4)", input=("B", 3), output=("B", 4, 4))
    assert plan.nodes[0].operator.out_features == 16
    plan = iso.resolve("linear()\nreshape(4)", input=("B", 3), output=("B", 4, 5))
    assert plan.nodes[0].operator.out_features == 20


def test_reshape_of_an_open_length(shape_of):
    assert shape_of("reshape(-1, 2, 4)", input=("B", "T", 8)) == ["B", "T", 2, 4]
    assert shape_of("reshape(-1, 4)", input=("B", "T", 8)) == ["B", "2*T", 4]
    plan = iso.resolve("reshape(-1, 4)", input=("B", "T", 8))
    network = reference.build(plan, {})
    for length in (0, 1, 5):
        assert network(np.zeros((2, length, 8))).shape == (2, 2 * length, 4)


def test_reshape_errors(error):
    found = error("reshape(5)", input=("B", 24))
    assert found.code == "E_CONSTRAINT"
    assert found.message == "reshape cannot arrange 24 elements by 5"
    assert error("reshape(5, 2)", input=("B", 24)).message == "reshape cannot arrange 24 elements by 5 * 2=10"
    assert error("reshape(-1, 5)", input=("B", 24)).message == "reshape cannot arrange 24 elements by -1 * 5"
    assert error("reshape(0, 24)", input=("B", 24)).code == "E_ARGUMENT"
    found = error("reshape(-1, -1)", input=("B", 24))
    assert found.message == "reshape works out one size at most, got -1 2 times"
    assert error("reshape(4)", input=("B", 24)).code == "E_AMBIGUOUS"
    assert error("reshape(4)", input=("B", 24), output=("B", 4, 5)).code == "E_CONSTRAINT"


def test_flatten(run, shape_of):
    np.testing.assert_array_equal(run("flatten()", X), [np.arange(12)])
    assert shape_of("flatten()", input=("B", 2, 3, 4)) == ["B", 24]
    assert shape_of("flatten()", input=("B", "T", 4)) == ["B", "4*T"]


def test_flatten_resolves_backwards(error):
    plan = iso.resolve("linear()\nflatten()", input=("B", 3, 5), output=("B", 12))
    assert plan.nodes[0].operator.out_features == 4
    assert error("linear()\nflatten()", input=("B", 3, 5), output=("B", 13)).code == "E_CONSTRAINT"


def test_transpose(run, error):
    np.testing.assert_array_equal(run("transpose(1, 2)", X)[0], X[0].T)
    np.testing.assert_array_equal(run("transpose(-1, 1)", X)[0], X[0].T)
    np.testing.assert_array_equal(run("transpose(2, 2)", X), X)
    assert error("transpose(0, 1)", input=("B", 3, 4)).message == (
        "dim0=0 is the batch axis, which this operator leaves alone"
    )
    assert (
        error("transpose(1, 3)", input=("B", 3, 4)).message == "dim1=3 is not an axis of a tensor of rank 3"
    )
    assert error("transpose(1)", input=("B", 3, 4)).code == "E_ARGUMENT"


def test_transpose_resolves_backwards():
    plan = iso.resolve("linear()\ntranspose(1, 2)", input=("B", 3, 4), output=("B", 7, 3))
    assert plan.nodes[0].operator.out_features == 7


def test_mean(run, shape_of, error):
    np.testing.assert_array_equal(run("mean(1)", X), [[4, 5, 6, 7]])
    np.testing.assert_array_equal(run("mean(-1)", X), [[1.5, 5.5, 9.5]])
    np.testing.assert_array_equal(run("mean(2, keepdim=True)", X), [[[1.5], [5.5], [9.5]]])
    assert shape_of("mean(1, keepdim=True)", input=("B", "T", 4)) == ["B", 1, 4]
    assert error("mean(0)", input=("B", 4)).code == "E_CONSTRAINT"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("mean", [2, 3]), ("first", [5, 0]), ("last", [0, 2]), ("max", [5, 7])],
)
def test_pool_tokens(run, mode, expected):
    x = np.array([[[5.0, 0.0], [1.0, 7.0], [0.0, 2.0]]])
    np.testing.assert_array_equal(run(f'pool_tokens("{mode}")', x), [expected])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("mean", [[3, 4], [0, 0], [1, 7]]),  # (1 + 5) / 2 and (7 + 1) / 2
        ("max", [[5, 7], [0, 0], [1, 7]]),
        ("first", [[1, 7], [0, 0], [1, 7]]),
        ("last", [[5, 1], [0, 0], [1, 7]]),
    ],
)
def test_pool_tokens_of_what_is_no_padding(run, mode, expected):
    row = [[np.nan, np.inf], [1.0, 7.0], [5.0, 1.0], [np.nan, 9.0]]
    mask = [[False, True, True, False], [False] * 4, [False, True, False, False]]
    definition = f'x = input("B", "T", 2)\nm = input("B", "T", dtype="bool")\npool_tokens("{mode}", mask=m)'
    given = {"x": np.array([row] * 3), "m": np.array(mask)}
    np.testing.assert_array_equal(run(definition, given), expected)


def test_a_mask_of_another_length_is_refused(error):
    found = error('x = input("B", 5, 2)\nm = input("B", 4, dtype="bool")\npool_tokens(mask=m)')
    assert found.code == "E_CONSTRAINT"
    assert "5" in found.message and "4" in found.message


@pytest.mark.parametrize(
    "definition", ["mean(1)", *(f'pool_tokens("{m}")' for m in ("mean", "first", "last", "max"))]
)
def test_no_position_to_read(definition):
    plan = iso.resolve(definition, input=("B", "T", 2))
    with pytest.raises(iso.IsomorphError) as caught:
        reference.build(plan, {})(np.zeros((1, 0, 2)))
    assert caught.value.code == "E_RUNTIME"
    assert "T=0 must be at least 1" in caught.value.message


TEXTS = np.array([[5, 7, 9, 7], [9, 1, 2, 3]])


@pytest.mark.parametrize(("token", "places"), [(7, [1, 0]), (3, [0, 3]), (-1, [2, 0]), (2**31 - 1, [0, 0])])
def test_take_at(run, token, places):
    """The first of equal ids; where there is none the first position; -1 stands for the largest id."""
    x = np.arange(16.0).reshape(2, 4, 2)
    definition = f'x = input("B", "T", 2)\nids = input("B", "T", dtype="int64")\ntake_at(x, ids, {token})'
    np.testing.assert_array_equal(run(definition, {"x": x, "ids": TEXTS}), x[range(2), places])


def test_take_at_shapes_and_errors(shape_of, error):
    ids = 'ids = input("B", "T", dtype="int64")\n'
    assert shape_of(f"{ids}take_at(embedding(ids, 5, 3), ids, 4)") == ["B", 3]
    plan = iso.resolve(f"{ids}take_at(embedding(ids, 5, 3), ids, 4)")
    with pytest.raises(iso.IsomorphError) as caught:
        reference.build(plan, {"n0.weight": np.zeros((5, 3))})(np.zeros((2, 0), int))
    assert caught.value.code == "E_RUNTIME"
    assert error(f"{ids}x = input(2, 3, 4)\ntake_at(x, ids, 4)\n").code == "E_CONSTRAINT"
    assert error(f"{ids}h = embedding(ids, 5, 3)\ntake_at(h, h, 4)").code == "E_DTYPE"
    with pytest.raises(Conflict) as conflict:
        TakeAt.of(token=2**31)
    assert conflict.value.message == "token must be below 2147483648, got 2147483648"
    for token in ("-2", "True", "1.0"):
        found = error(f"{ids}take_at(embedding(ids, 5, 3), ids, {token})")
        assert (found.code, found.location.line) == ("E_ARGUMENT", 2)
    assert error(f"{ids}take_at(embedding(ids, 5, 3), ids)").message == (
        "take_at needs the argument token (int, >= -1)"
    )
