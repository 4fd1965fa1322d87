"""The choice of the next id, against probabilities worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import isomorph as iso
from isomorph.generation.sampling import Chooser
from isomorph.generation.settings import GenerationSettings

# ln of 1, 2, 4, 8 : probabilities 1/15, 2/15, 4/15, 8/15
SCORES = np.log([[1.0, 2.0, 4.0, 8.0]])


def choose(settings: dict[str, Any], scores: Any, step: int = 0, rows: Any = None) -> np.ndarray:
    """One step behind prompts of one id, or of some."""
    scores = np.asarray(scores)
    given = [np.zeros(1, np.int64)] * len(scores) if rows is None else rows
    return Chooser(GenerationSettings(**settings), given, scores.shape[1], 9).choose(scores, step)


def frequencies(sampling: dict[str, Any], scores: Any = SCORES, draws: int = 4000) -> np.ndarray:
    rows = np.repeat(scores, draws, axis=0)
    return np.bincount(choose(sampling, rows), minlength=scores.shape[1]) / draws


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"temperature": 1.0}, [1 / 15, 2 / 15, 4 / 15, 8 / 15]),
        ({"temperature": 0.5}, [1 / 85, 4 / 85, 16 / 85, 64 / 85]),  # squares: 1, 4, 16, 64
        ({"temperature": 1.0, "top_k": 2}, [0, 0, 1 / 3, 2 / 3]),
        ({"temperature": 1.0, "top_k": 0}, [1 / 15, 2 / 15, 4 / 15, 8 / 15]),
        ({"temperature": 1.0, "top_k": 99}, [1 / 15, 2 / 15, 4 / 15, 8 / 15]),
        # 8/15 = 0.533 does not reach 0.6, 12/15 does
        ({"temperature": 1.0, "top_p": 0.6}, [0, 0, 1 / 3, 2 / 3]),
        ({"temperature": 1.0, "top_p": 1e-9}, [0, 0, 0, 1]),
        ({"temperature": 1.0, "top_p": 0.0}, [0, 0, 0, 1]),
        # of the two left by top_k, the first has 2/3
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.6}, [0, 0, 0, 1]),
        ({"temperature": 0.0}, [0, 0, 0, 1]),
        ({"temperature": 1e-300}, [0, 0, 0, 1]),
    ],
)
def test_how_often_each_id_is_drawn(sampling, expected):
    found = frequencies({**sampling, "seed": 5})
    assert [f == 0 for f in found] == [e == 0 for e in expected]
    np.testing.assert_allclose(found, expected, atol=4 * math.sqrt(0.25 / 4000))


def test_equal_scores_go_to_the_lower_id():
    scores = np.array([[1.0, 3.0, 3.0, 2.0]])
    assert choose({}, scores, 0).tolist() == [1]
    assert choose({"temperature": 1.0, "top_k": 1}, scores, 0).tolist() == [1]


def test_draws_depend_on_seed_and_step_and_row():
    scores = np.zeros((8, 1000))
    first = choose({"temperature": 1.0, "seed": 1}, scores, 0)
    assert (first == choose({"temperature": 1.0, "seed": 1}, scores, 0)).all()
    assert (first != choose({"temperature": 1.0, "seed": 2}, scores, 0)).any()
    assert (first != choose({"temperature": 1.0, "seed": 1}, scores, 1)).any()
    assert len(set(first.tolist())) > 1


def test_ids_that_cannot_come_are_never_drawn():
    scores = np.array([[-np.inf, 0.0, -np.inf, 1.0]])
    assert set(choose({"temperature": 5.0, "top_k": 4}, np.repeat(scores, 500, 0), 0)) == {1, 3}
    assert choose({"temperature": 1.0}, np.array([[0.0, np.inf]]), 0).tolist() == [1]


@pytest.mark.parametrize("row", [[0.0, np.nan], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16])
def test_scores_that_mean_nothing(row, temperature, dtype):
    with pytest.raises(iso.IsomorphError) as caught:
        choose({"temperature": temperature}, np.array([[0.0, 1.0], row], dtype), 0)
    assert str(caught.value) == (
        "E_RUNTIME: row 1: the scores of the next id hold NaN or are all minus infinity\n"
        "  the weights are damaged, or the dtype is too narrow for this network"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1.0}, "temperature must be a number from 0, got -1.0"),
        ({"temperature": math.nan}, "temperature must be a number from 0, got nan"),
        ({"temperature": math.inf}, "temperature must be a number from 0, got inf"),
        ({"temperature": 10**400}, f"temperature must be a number from 0, got 1{'0' * 56}..."),
        ({"temperature": True}, "temperature must be a number from 0, got True"),
        ({"top_k": -1}, "top_k must be an int from 0, got -1"),
        ({"top_k": 1.5}, "top_k must be an int from 0, got 1.5"),
        ({"top_p": 1.1}, "top_p must be a number from 0 to 1, got 1.1"),
        ({"seed": -1}, "seed must be an int >= 0, got -1"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(iso.IsomorphError) as caught:
        GenerationSettings(**arguments)
    assert (caught.value.code, caught.value.message) == ("E_ARGUMENT", message)
