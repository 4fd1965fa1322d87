"""Ties and prefixes, for arrays of any framework."""

import numpy as np
import pytest

import isomorph as iso
from isomorph.weights.convert import foreign_prefix, merge_ties, owned_weights

PLAN = iso.resolve(
    'ids = input("B", "T", dtype="int64")\n'
    'embedding(4, 4, name="wte")\n'
    'linear(4, bias=False, tie={"weight": "wte.weight"}, name="mid")\n'
    'linear(4, bias=False, tie={"weight": "wte.weight"}, name="head")\n'
    'linear(2, name="out")'
)


def test_owned_weights_come_in_the_plans_order():
    table = np.eye(4)
    given = {"out.bias": np.zeros(2), "head.weight": table, "out.weight": np.zeros((2, 4))}
    found = owned_weights(PLAN, given)
    assert list(found) == ["wte.weight", "out.weight", "out.bias"]
    assert found["wte.weight"] is table


def test_two_tied_paths_without_their_owner():
    assert list(merge_ties(PLAN, {"head.weight": np.eye(4), "mid.weight": np.eye(4)})) == ["wte.weight"]
    with pytest.raises(iso.IsomorphError) as caught:
        merge_ties(PLAN, {"head.weight": np.eye(4), "mid.weight": np.ones((4, 4))})
    assert caught.value.code == "E_WEIGHTS"
    assert "mid.weight and head.weight are given different values" in caught.value.message


def test_equality_of_tied_values():
    nan = np.full((4, 4), np.nan)
    assert list(merge_ties(PLAN, {"wte.weight": nan, "head.weight": nan.copy()})) == ["wte.weight"]
    with pytest.raises(iso.IsomorphError):  # one row would broadcast to equality
        merge_ties(PLAN, {"wte.weight": np.ones((4, 4)), "head.weight": np.ones((1, 4))})


@pytest.mark.parametrize(
    ("paths", "prefix"),
    [
        (["wte.weight", "out.bias"], ""),
        (["module.wte.weight", "module.out.bias"], "module."),
        (["module._orig_mod.head.weight"], "module._orig_mod."),
        (["wte.weight", "model.out.bias"], "model."),
        (["module.wte.weight", "other.out.bias"], ""),
        (["module.wte.weights"], ""),
    ],
)
def test_foreign_prefix(paths, prefix):
    assert foreign_prefix(PLAN, paths) == prefix
