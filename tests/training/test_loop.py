"""Whole runs, small ones: what they leave, and that stopping and resuming changes no bit."""

import os
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.backends.training_config import TrainingConfig
from isomorph.errors import IsomorphError
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
def test_a_stopped_and_resumed_run_equals_a_straight_one(tmp_path, data, stop):
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


# -- a run has one owner and knows its data ----------------------------------------------------

BACKENDS = ["torch", "nnx"]


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("kind", ["npz", "text"])
def test_a_run_is_not_continued_on_other_data(tmp_path, kind, finished):
    rng = np.random.default_rng(0)
    place = tmp_path / "data"

    def write(seed: int) -> None:
        if kind == "text":
            place.write_bytes(bytes([seed]) * 200)
        else:
            with place.open("wb") as file:
                np.savez(file, x=rng.standard_normal((60, 6)), y=rng.integers(0, 3, 60))

    text = TEXT
    if kind == "text":
        text = 'input("B", "T", dtype="int64")\nembedding(256, 2)\nlinear()\noutput("B", "T", 256)'
    settings = config(f"{kind}:{place}", batch_size=4, steps=4, length=8 if kind == "text" else 0)
    stopper = Stopper(2)
    stop: dict[str, Any] = {} if finished else {"reporter": stopper, "should_stop": stopper}
    write(1)
    before = place.read_bytes()
    train(iso.resolve(text), settings, tmp_path / "run", **stop)
    write(2)
    stored = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(IsomorphError) as error:
        train(iso.resolve(text), settings, tmp_path / "run", resume=True)
    assert (error.value.code, error.value.message) == (
        "E_CHECKPOINT",
        f"{tmp_path}/run holds a run that was given other data: '{kind}:{place}' was changed since",
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == stored
    place.write_bytes(before)
    assert train(iso.resolve(text), settings, tmp_path / "run", resume=True).step == 4


def test_built_in_data_are_known_by_what_they_hold(tmp_path, monkeypatch):
    from isomorph.training import sources

    text = 'input("B", "T", dtype="int64")\nembedding(256, 2)\nlinear()\noutput("B", "T", 256)'
    settings = config("text:pydoc", length=8, steps=1, validation=0.0)
    monkeypatch.setattr(sources, "_topics", lambda: b"as one Python has them" * 20)
    train(iso.resolve(text), settings, tmp_path / "run")
    monkeypatch.setattr(sources, "_topics", lambda: b"as another one has them" * 20)
    with pytest.raises(IsomorphError, match="was given other data: 'text:pydoc' was changed since"):
        train(iso.resolve(text), settings, tmp_path / "run", resume=True)


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"force": True}])
def test_a_directory_that_is_in_use_is_left_alone(tmp_path, data, options):
    # The second asks in the middle of the first, which then ends as it would have alone.
    messages = []

    class Meddling(Silence):
        def step(self, record) -> None:
            if record["step"] == 4:
                with pytest.raises(IsomorphError) as error:
                    run(tmp_path / "run", config(data, seed=1), **options)
                messages.append(error.value.message)

    run(tmp_path / "straight", config(data))
    train(iso.resolve(TEXT), config(data), tmp_path / "run", reporter=Meddling())
    assert messages == [f"{tmp_path}/run is in use: this process ({os.getpid()}) trains there"]
    for name in ("model.safetensors", "config.json", "checkpoint-00000003.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


def test_two_runs_in_one_directory_are_not_mixed(tmp_path, data):
    # Its lock is removed by hand, and another run begins there: the first one stores nothing more.
    class Robbed(Silence):
        def step(self, record) -> None:
            if record["step"] == 4:
                (tmp_path / "run" / ".isomorph-run.lock").unlink()
                run(tmp_path / "run", config(data, seed=1), after=4, force=True)

    with pytest.raises(IsomorphError, match="no longer belongs to this run"):
        train(iso.resolve(TEXT), config(data), tmp_path / "run", reporter=Robbed())
    run(tmp_path / "run", config(data, seed=1), resume=True)
    run(tmp_path / "straight", config(data, seed=1))
    assert comparable(tmp_path / "run") == comparable(tmp_path / "straight")
    for name in ("model.safetensors", "checkpoint-00000006.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_last_step_to_numbers_that_are_not_finite_makes_no_model(tmp_path, data, backend):
    # A step of 1e38 is still a float32; decay by 1e38 * 1000 of a weight is not.
    pytest.importorskip("optax" if backend == "nnx" else "torch")
    settings = config(
        data, backend=backend, steps=1, warmup=0, learning_rate=1e38, weight_decay=1e3, final_learning_rate=1
    )
    with pytest.raises(IsomorphError) as error:
        run(tmp_path / "run", settings)
    assert error.value.code == "E_RUNTIME"
    more = (
        3 if backend == "torch" else 1
    )  # which multiplies biases' steps by 1 / (1 - beta1) before it takes them
    assert error.value.message == (
        f"training diverged at step 1: weights/first.weight and {more} more are not finite"
    )
    assert error.value.hints == ("lower the learning rate (1e+38), warm up longer, or clip harder",)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["config.json", "definition.net", "metrics.jsonl"]


def test_the_last_good_state_is_kept(tmp_path, data, monkeypatch):
    from isomorph.backends.torch.training import Trainer

    step = Trainer.step

    def diverge(self, number, parts, learning_rate):
        return step(self, number, parts, 1e38 if number == 5 else learning_rate)

    monkeypatch.setattr(Trainer, "step", diverge)
    with pytest.raises(IsomorphError) as error:
        run(tmp_path / "run", config(data, weight_decay=1e3))
    assert error.value.message.startswith("training diverged at step 6: weights/")
    assert error.value.hints[1] == "checkpoint-00000003.safetensors is from before"
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_weights_that_their_dtype_cannot_hold_make_no_model(tmp_path, data, monkeypatch):
    # The largest float32 is above the largest bfloat16, 2**127 * (2 - 2**-7), and rounds to infinity.
    from isomorph.backends.torch.training import Trainer

    weights = Trainer.weights

    def huge(self):
        return {path: np.full_like(array, 3.4028235e38) for path, array in weights(self).items()}

    monkeypatch.setattr(Trainer, "weights", huge)
    with pytest.raises(
        IsomorphError, match=r"training diverged at step 1: first\.weight and 3 more are not finite"
    ):
        train(iso.resolve(TEXT, dtype="bfloat16"), config(data, steps=1), tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("how", ["cut", "empty", "flipped"])
def test_a_run_goes_on_from_the_newest_whole_checkpoint(tmp_path, data, how, capsys):
    run(tmp_path / "straight", config(data))
    run(tmp_path / "run", config(data, checkpoint_every=2), after=5)
    newest = tmp_path / "run" / "checkpoint-00000005.safetensors"
    content = newest.read_bytes()
    damaged = {"cut": content[: len(content) // 2], "empty": b"", "flipped": content[:-1] + b"\xff"}
    newest.write_bytes(damaged[how])
    run(tmp_path / "run", config(data, checkpoint_every=2), resume=True)
    told = capsys.readouterr().err
    assert told.startswith(str(newest))
    assert told.endswith("; continuing from checkpoint-00000004.safetensors\n")
    assert comparable(tmp_path / "run") == comparable(tmp_path / "straight")
    names = [directory / "model.safetensors" for directory in (tmp_path / "run", tmp_path / "straight")]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_a_damaged_model_of_a_finished_run_is_written_again(tmp_path, data, capsys):
    run(tmp_path / "run", config(data))
    model = tmp_path / "run" / "model.safetensors"
    content = model.read_bytes()
    model.write_bytes(content[:-1])
    outcome = run(tmp_path / "run", config(data), resume=True)
    assert (outcome.step, outcome.test_count) == (6, 12)
    assert model.read_bytes() == content
    assert "it is written again" in capsys.readouterr().err


def test_a_stop_that_was_asked_for_before_the_first_step_takes_none(tmp_path, data):
    outcome = train(iso.resolve(TEXT), config(data), tmp_path / "run", should_stop=lambda: True)
    assert (outcome.step, outcome.stopped) == (0, True)
