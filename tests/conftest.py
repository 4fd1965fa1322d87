"""Settings of every test: JAX computes on the CPU, whatever else the machine has. And how long trials are."""

import os
from typing import NamedTuple

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"


class Trial(NamedTuple):
    """How much of a long trial to run.

    Attributes:
        tries: how many.
        seed: of everything that is drawn; a failing try is repeated with it.
    """

    tries: int
    seed: int


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--trials", type=float, default=None, help="run whole trials, so many times as long")
    parser.addoption("--trial-seed", type=int, default=0, help="seed of what trials draw")


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Trial:
    """The share of ``@pytest.mark.trial(sample=20, whole=2000)`` to run: the sample, or the whole with --trials."""
    sizes = request.node.get_closest_marker("trial").kwargs
    factor = request.config.getoption("--trials")
    tries = sizes["sample"] if factor is None else max(1, round(sizes["whole"] * factor))
    return Trial(tries, request.config.getoption("--trial-seed"))
