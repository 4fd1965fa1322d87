"""Scores between two batches: values by hand, sizes of either."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

import isomorph as iso
from isomorph import reference

PAIR = 'a = input("B", 2)\nb = input("N", 2)\n'
BOTH = PAIR + 'p, q = similarity(a, b)\noutput(p=("B", "N"), q=("N", "B"))'


def test_scores_by_hand():
    plan = iso.resolve(BOTH)
    assert {p.path: p.shape for p in plan.parameters} == {"n0.logit_scale": (1,)}
    a, b = np.array([[1.0, 2.0], [0.0, -1.0]]), np.array([[3.0, 1.0], [1.0, 1.0], [0.0, 5.0]])
    found = reference.build(plan, {"n0.logit_scale": [log(10)]})(a, b)
    # 1*3 + 2*1, 1*1 + 2*1, 2*5; -1*1, -1*1, -1*5; all times 10
    np.testing.assert_allclose(found["p"], [[50, 30, 100], [-10, -10, -50]], rtol=1e-14)
    np.testing.assert_array_equal(found["q"], found["p"].T)


def test_it_starts_at_the_temperature_of_clip():
    weights = iso.initial_weights(iso.resolve(BOTH, dtype="float64"))
    assert exp(weights["n0.logit_scale"][0]) == pytest.approx(1 / 0.07, rel=1e-15)


@pytest.mark.parametrize(("B", "N"), [(0, 3), (2, 0), (0, 0), (1, 1)])
def test_sizes_of_either_batch(B, N):
    network = reference.build(iso.resolve(BOTH), {"n0.logit_scale": [0.0]})
    found = network(np.ones((B, 2)), np.ones((N, 2)))
    assert (found["p"].tolist(), found["q"].shape) == (np.full((B, N), 2.0).tolist(), (N, B))


def test_a_width_comes_from_the_other_side(shape_of, error):
    assert shape_of(
        'a = input("B", 3)\nb = input("N", 2)\np, q = similarity(a, linear(b))\noutput(q=("N", "B"))'
    )
    found = error('a = input("B", 3)\nb = input("N", 2)\np, q = similarity(a, b)\noutput(p=("B", "N"))')
    assert found.code == "E_CONSTRAINT"
