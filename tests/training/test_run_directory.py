"""What a run leaves behind, and what it refuses to overwrite."""

import numpy as np
import pytest

import isomorph as iso
from isomorph.errors import IsomorphError
from isomorph.training.checkpoint import RunDirectory, settings_of
from isomorph.training.config import TrainingConfig

PLAN = iso.resolve('input("B", 3)\nlinear(2)')
CONFIG = TrainingConfig(data="digits", steps=5)
STATE = {"weights/n0.bias": np.array([1.5, -2.0], np.float32), "first_moment/n0.bias": np.zeros((2, 0))}


def begun(path) -> RunDirectory:
    run = RunDirectory(path)
    run.prepare(PLAN, CONFIG, resume=False, force=False)
    return run


def test_begins_with_configuration_and_definition(tmp_path):
    run = begun(tmp_path / "a" / "b")
    assert sorted(path.name for path in run.path.iterdir()) == ["config.json", "definition.net"]
    assert iso.resolve_file(run.definition) == PLAN
    assert settings_of(run.path) == CONFIG.to_dict()
    assert settings_of(tmp_path) == {}


def test_a_checkpoint_is_read_back_bit_for_bit(tmp_path):
    run = begun(tmp_path)
    assert run.latest() is None
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    run.save(3, {**STATE, "weights/n0.weight": transposed})
    found = run.latest()
    assert found is not None
    assert found.step == 3
    assert found.state["weights/n0.bias"].tobytes() == STATE["weights/n0.bias"].tobytes()
    assert found.state["first_moment/n0.bias"].shape == (2, 0)
    assert np.array_equal(found.state["weights/n0.weight"], transposed)


def test_keeps_the_last_two_checkpoints(tmp_path):
    run = begun(tmp_path)
    for step in (9, 10, 100):
        run.save(step, STATE)
    assert [path.name for path in run.checkpoints()] == [
        "checkpoint-00000100.safetensors", "checkpoint-00000010.safetensors",
    ]  # fmt: skip
    latest = run.latest()
    assert latest is not None
    assert latest.step == 100


def test_refuses_a_run_that_is_there(tmp_path):
    run = begun(tmp_path)
    hint = "\n  --resume continues it, --force deletes it and starts anew, --out takes another place"
    with pytest.raises(IsomorphError) as error:
        begun(tmp_path)
    assert str(error.value) == f"E_CHECKPOINT: {tmp_path} holds an unfinished run{hint}"
    run.model.touch()
    with pytest.raises(IsomorphError) as error:
        begun(tmp_path)
    assert str(error.value) == f"E_CHECKPOINT: {tmp_path} holds a finished run{hint}"


def test_resuming_needs_the_same_network_and_settings(tmp_path):
    run = begun(tmp_path)
    run.prepare(PLAN, CONFIG, resume=True, force=False)
    other = TrainingConfig(data="digits", steps=6, seed=1)
    with pytest.raises(IsomorphError) as error:
        run.prepare(PLAN, other, resume=True, force=False)
    assert str(error.value) == (
        f"E_CHECKPOINT: {tmp_path} holds another run, which cannot be resumed with this definition and settings\n"
        "  steps: 5 there, 6 here\n  seed: 0 there, 1 here\n"
        "  --out takes another place, --force deletes that run"
    )
    with pytest.raises(IsomorphError, match="holds another run"):
        run.prepare(iso.resolve('input("B", 3)\nlinear(4)'), CONFIG, resume=True, force=False)


def test_force_deletes_a_run_and_nothing_else(tmp_path):
    run = begun(tmp_path)
    run.save(1, STATE)
    for path in (run.model, run.metrics, run.curve, tmp_path / "notes.txt", tmp_path / "checkpoint-old"):
        path.touch()
    run.prepare(PLAN, CONFIG, resume=False, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-old", "config.json", "definition.net", "notes.txt",
    ]  # fmt: skip


def test_files_of_somebody_else_are_no_run(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    (tmp_path / "curve.png").touch()
    for resume, force in ((False, False), (True, False), (False, True)):
        with pytest.raises(IsomorphError) as error:
            RunDirectory(tmp_path).prepare(PLAN, CONFIG, resume=resume, force=force)
        assert str(error.value) == (
            f"E_CHECKPOINT: {tmp_path} holds files that a run would replace, but no run made them: "
            "config.json is not there\n  files: curve.png, model.safetensors\n"
            "  --out takes another place; or move these files away"
        )
    assert (tmp_path / "model.safetensors").read_bytes() == b"precious"


@pytest.mark.parametrize("content", ['{"name": "another program"}', "[1]", "{", "[" * 100_000])
def test_force_deletes_nothing_beside_another_programs_configuration(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "metrics.jsonl").write_text("precious")
    with pytest.raises(IsomorphError, match=r"no run made them: config\.json is no run's configuration"):
        RunDirectory(tmp_path).prepare(PLAN, CONFIG, resume=False, force=True)
    assert (tmp_path / "config.json").read_text() == content
    assert (tmp_path / "metrics.jsonl").read_text() == "precious"


def test_leftovers_of_a_killed_save_are_removed(tmp_path):
    run = begun(tmp_path)
    leftover = tmp_path / ".checkpoint-00000003.safetensors.0123.tmp"
    leftover.touch()
    run.prepare(PLAN, CONFIG, resume=True, force=False)
    assert not leftover.exists()


def test_a_damaged_checkpoint_names_the_one_before(tmp_path):
    run = begun(tmp_path)
    run.save(1, STATE)
    run.save(2, STATE)
    damaged = run.checkpoints()[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(IsomorphError) as error:
        run.latest()
    assert error.value.code == "E_CHECKPOINT"
    assert error.value.hints == ("delete it to continue from checkpoint-00000001.safetensors",)
    damaged.unlink()
    found = run.latest()
    assert found is not None
    assert found.step == 1


def test_a_damaged_configuration_is_told(tmp_path):
    run = begun(tmp_path)
    for content in ('{"plan": "{", "training": {"data": "digits"}}', '{"plan": 1, "training": 2}'):
        run.config.write_text(content)
        with pytest.raises(IsomorphError, match=r"config\.json is damaged"):
            run.prepare(PLAN, CONFIG, resume=True, force=False)
    run.prepare(PLAN, CONFIG, resume=False, force=True)
    assert settings_of(run.path) == CONFIG.to_dict()


def test_every_flipped_byte_of_a_checkpoint_is_noticed(tmp_path):
    run = begun(tmp_path)
    run.save(3, {"weights/n0.bias": np.array([1.5, -2.0], np.float32)})
    (path,) = run.checkpoints()
    sound = path.read_bytes()
    codes = set()
    for place in range(len(sound)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        try:
            found = run.latest()
        except IsomorphError as error:
            codes.add(error.code)
        else:  # a name of the package's own header that it does not use
            assert found is not None
            assert found.state["weights/n0.bias"].tolist() == [1.5, -2.0]
            assert found.step == 3
    assert codes == {"E_CHECKPOINT", "E_INTEGRITY"}


def test_a_checkpoint_with_one_flipped_data_bit_is_refused(tmp_path):
    run = begun(tmp_path)
    run.save(1, STATE)
    run.save(2, STATE)
    path = run.checkpoints()[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the arrays come last
    path.write_bytes(content)
    with pytest.raises(IsomorphError) as error:
        run.latest()
    assert str(error.value) == (
        f"E_INTEGRITY: {path} was altered: its content has not the digest it was saved with\n"
        "  delete it to continue from checkpoint-00000001.safetensors"
    )


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "E_ARGUMENT: the run's directory is empty: ''"),
        ("a\0b", "E_ARGUMENT: the run's directory holds a NUL character: 'a\\x00b'"),
        (None, "E_ARGUMENT: the run's directory must be str, bytes or os.PathLike, got 'NoneType'"),
    ],
)
def test_what_is_no_place_is_refused(place, message):
    with pytest.raises(IsomorphError) as error:
        RunDirectory(place)
    assert str(error.value) == message


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(IsomorphError) as error:
        begun(tmp_path / "file" / "run")
    assert error.value.code == "E_CHECKPOINT"
    assert error.value.hints == ("--out takes another place",)
