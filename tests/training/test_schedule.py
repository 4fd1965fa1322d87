"""The learning rate at the steps where it can be worked out by hand."""

import pytest

from isomorph.training.schedule import learning_rate_at


def rate(step: int, steps: int = 11, warmup: int = 4, final: float = 0.1) -> float:
    return learning_rate_at(step, steps=steps, peak=2.0, warmup=warmup, final=final)


def test_rises_in_equal_parts_and_reaches_the_peak():
    assert [rate(step) for step in range(4)] == [0.5, 1.0, 1.5, 2.0]


def test_falls_along_a_half_cosine_to_its_share_of_the_peak():
    # Steps 4 .. 10 have progress 0, 1/6, ..., 1; halfway, at step 7, cos(pi / 2) = 0.
    assert rate(4) == 2.0
    assert rate(7) == pytest.approx(2.0 * (0.1 + 0.9 / 2))
    assert rate(10) == pytest.approx(0.2)


def test_without_warmup_the_first_step_has_the_peak():
    assert rate(0, warmup=0) == 2.0


def test_a_run_shorter_than_its_warmup_never_reaches_the_peak():
    assert [rate(step, steps=2) for step in range(2)] == [0.5, 1.0]


def test_a_single_step_has_the_peak():
    assert rate(0, steps=1, warmup=0) == 2.0
