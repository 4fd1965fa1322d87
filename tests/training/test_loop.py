"""Whole runs, small ones: what they leave, and that stopping and resuming changes no bit."""

import os
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.errors import IsomorphError
from isomorph.training.config import TrainingConfig
from isomorph.training.loop import Silence, train
from isomorph.training.metrics import read_records

pytest.importorskip("torch")

TEXT = """
input("B", 6)
linear(8, name="first")
gelu()
dropout(0.5)
linear(3, name="head")
output("B", 3)
"""


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    path = tmp_path / "data.npz"
    np.savez(path, x=rng.standard_normal((60, 6)) + 3 * np.eye(6)[y], y=y)
    return f"npz:{path}"


def config(data: str, **settings) -> TrainingConfig:
    defaults = {"steps": 6, "batch_size": 10, "warmup": 2, "evaluate_every": 2, "checkpoint_every": 3}
    return TrainingConfig(data=data, **{**defaults, **settings})


class Stopper(Silence):
    """Asks to stop after a number of steps."""

    def __init__(self, after: int) -> None:
        self.left = after

    def step(self, record) -> None:
        self.left -= 1

    def __call__(self) -> bool:
        return self.left <= 0


def run(directory, settings, after=None, **options):
    stopper = Stopper(after) if after else None
    stop = {"reporter": stopper, "should_stop": stopper} if stopper else {}
    return train(iso.resolve(TEXT), settings, directory, **stop, **options)


def test_a_run_leaves_everything(tmp_path, data):
    pytest.importorskip("matplotlib")
    outcome = run(tmp_path / "run", config(data))
    assert (outcome.step, outcome.steps, outcome.stopped, outcome.test_count) == (6, 6, False, 12)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "checkpoint-00000003.safetensors", "checkpoint-00000006.safetensors", "config.json", "curve.png",
        "definition.net", "metrics.jsonl", "model.safetensors",
    ]  # fmt: skip
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert [record["step"] for record in records if "loss" in record] == [1, 2, 3, 4, 5, 6]
    assert [record["step"] for record in records if "validation_loss" in record] == [2, 4, 6]
    assert records[-1]["test_accuracy"] == outcome.test_accuracy
    plan, weights = iso.load(tmp_path / "run" / "model.safetensors")
    assert plan == iso.resolve(TEXT)
    outputs = iso.reference.build(plan, weights)(np.zeros((1, 6)))
    assert outputs.shape == (1, 3)


def test_learns(tmp_path, data):
    outcome = run(tmp_path / "run", config(data, steps=150, learning_rate=0.02, validation=0.0))
    assert outcome.test_accuracy is not None
    assert outcome.test_accuracy >= 0.75  # guessing gives a third


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_t24_a_stopped_and_resumed_run_equals_a_straight_one(tmp_path, data, stop):
    straight = run(tmp_path / "straight", config(data))
    stopped = run(tmp_path / "resumed", config(data), after=stop)
    assert (stopped.step, stopped.stopped, stopped.test_accuracy) == (stop, True, None)
    resumed = run(tmp_path / "resumed", config(data), resume=True)
    assert (resumed.test_loss, resumed.test_accuracy) == (straight.test_loss, straight.test_accuracy)
    for name in ("model.safetensors", "checkpoint-00000006.safetensors", "definition.net", "config.json"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes()
    assert comparable(tmp_path / "straight") == comparable(tmp_path / "resumed")


def comparable(directory):
    """The metrics without times."""
    records = read_records(directory / "metrics.jsonl")
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def test_resuming_twice_duplicates_no_step(tmp_path, data):
    run(tmp_path / "run", config(data), after=2)
    # As after a kill: metrics of steps beyond the checkpoint, and a torn line.
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 9.0}\n{"step": 4, "lo')
    run(tmp_path / "run", config(data), after=2, resume=True)
    run(tmp_path / "run", config(data), resume=True)
    records = comparable(tmp_path / "run")
    assert [record["step"] for record in records if "loss" in record] == [1, 2, 3, 4, 5, 6]
    assert 9.0 not in [record.get("loss") for record in records]


def test_a_finished_run_is_kept_and_tells_its_result(tmp_path, data):
    first = run(tmp_path / "run", config(data))
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    again = run(tmp_path / "run", config(data), resume=True)
    assert (again.test_loss, again.test_accuracy, again.test_count) == (
        first.test_loss, first.test_accuracy, 12,
    )  # fmt: skip
    with pytest.raises(IsomorphError, match="holds a finished run"):
        run(tmp_path / "run", config(data))
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_resume_begins_where_nothing_is_and_force_starts_anew(tmp_path, data):
    first = run(tmp_path / "run", config(data), resume=True)
    model = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert run(tmp_path / "run", config(data), force=True).test_loss == first.test_loss
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == model
    run(tmp_path / "run", config(data, seed=1), force=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() != model


def test_accumulated_parts_take_the_same_steps(tmp_path, data):
    # Without dropout, whose draws depend on the parts.
    plan = iso.resolve(TEXT.replace("dropout(0.5)\n", ""), dtype="float64")
    outcomes = [
        train(plan, config(data, accumulate=parts), tmp_path / str(parts)).test_loss for parts in (1, 5)
    ]
    assert outcomes[0] == pytest.approx(outcomes[1], rel=1e-9)


def test_a_diverging_run_says_so_and_keeps_its_checkpoint(tmp_path, data):
    settings = config(data, steps=200, learning_rate=1e30, checkpoint_every=1, clip=0.0)
    with pytest.raises(IsomorphError) as error:
        run(tmp_path / "run", settings)
    assert error.value.code == "E_RUNTIME"
    assert error.value.message.startswith("training diverged at step ")
    assert error.value.hints[0] == "lower the learning rate (1e+30), warm up longer, or clip harder"
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert list((tmp_path / "run").glob("checkpoint-*"))


def test_bad_data_touch_no_directory(tmp_path):
    with pytest.raises(IsomorphError, match="E_ARGUMENT"):
        run(tmp_path / "run", config("npz:/no/such/file"))
    assert not (tmp_path / "run").exists()


def test_a_batch_holds_no_example_twice(tmp_path, data):
    # 60 examples, 12 of them for testing and round(4.8) of the rest for validation, leave 43.
    with pytest.raises(IsomorphError) as error:
        run(tmp_path / "run", config(data, batch_size=44))
    assert error.value.code == "E_ARGUMENT"
    assert error.value.message.startswith(
        "training setting batch_size=44 is more than the 43 training examples of 'npz:"
    )
    assert error.value.hints == ("batch_size is at most 43",)
    assert not (tmp_path / "run").exists()
    run(tmp_path / "run", config(data, batch_size=43, steps=1))


def test_a_first_step_without_a_finite_loss_blames_no_learning_rate(tmp_path, data):
    plan = iso.resolve('input("B", 6)\nscale(1e30)\nscale(1e30)\nlinear(3)\noutput("B", 3)')
    with pytest.raises(IsomorphError) as error:
        train(plan, config(data), tmp_path / "run")
    assert error.value.code == "E_RUNTIME"
    assert error.value.message.startswith(
        "the initial weights give no finite loss and gradient on the first batch: loss nan"
    )
    assert error.value.hints == (
        "the data are finite; look at init, at scale factors, and at the dtype's range",
    )


def test_a_diverging_run_names_only_a_checkpoint_that_is_there(tmp_path, data):
    with pytest.raises(IsomorphError) as error:
        run(tmp_path / "run", config(data, steps=200, learning_rate=1e30, checkpoint_every=1000, clip=0.0))
    assert len(error.value.hints) == 1
    with pytest.raises(IsomorphError) as error:
        run(tmp_path / "other", config(data, steps=200, learning_rate=1e30, checkpoint_every=1, clip=0.0))
    latest = sorted((tmp_path / "other").glob("checkpoint-*"))[-1].name
    assert error.value.hints[1] == f"{latest} is from before"


def test_wrong_types_are_told(tmp_path, data):
    plan, good = iso.resolve(TEXT), config(data)
    anything: Any = None
    for arguments, message in (
        ((anything, good, tmp_path / "run"), "expected a plan, got 'NoneType'"),
        ((plan, anything, tmp_path / "run"), "expected a TrainingConfig, got 'NoneType'"),
        ((plan, good, anything), "the run's directory must be str, bytes or os.PathLike, got 'NoneType'"),
        ((plan, good, ""), "the run's directory is empty: ''"),
    ):
        with pytest.raises(IsomorphError) as error:
            train(*arguments)
        assert (error.value.code, error.value.message) == ("E_ARGUMENT", message)


def test_a_directory_may_be_given_as_bytes(tmp_path, data):
    outcome = train(iso.resolve(TEXT), config(data, steps=1), os.fsencode(tmp_path / "run"))
    assert outcome.directory == str(tmp_path / "run")
