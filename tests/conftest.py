"""Settings of every test: JAX computes on the CPU, whatever else the machine has, and what it compiles is kept
in ``.cache/jax`` for other tests, processes and runs. And how long trials are."""

import gc
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "jax"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
if version("jaxlib").startswith("0.10.") and "--trials" not in sys.argv:
    # Networks are small here and run a few times: what makes them faster costs more than it saves. Long trials run
    # what users run. XLA gives up on a flag that it does not know, so other versions do without.
    os.environ["XLA_FLAGS"] = " ".join(
        (
            os.environ.get("XLA_FLAGS", ""),
            "--xla_cpu_parallel_codegen_split_count=1",
            "--xla_backend_optimization_level=0",
            "--xla_llvm_disable_expensive_passes=true",
            "--xla_cpu_use_fusion_emitters=false",
        )
    )
gc.set_threshold(50_000)


def pytest_collection_finish() -> None:
    """The frameworks' own objects are many: they are looked through no more."""
    gc.collect()
    gc.freeze()


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
