"""What a run leaves behind, and what it refuses to overwrite."""

import hashlib
import json
from contextlib import ExitStack

import numpy as np
import pytest
from safetensors.numpy import save

import isomorph as iso
from isomorph.backends.training_config import TrainingConfig
from isomorph.errors import IsomorphError
from isomorph.training.checkpoint import RunDirectory, settings_of
from isomorph.training.data import Fingerprint
from isomorph.training.ownership import LOCK

PLAN = iso.resolve('input("B", 3)\nlinear(2)')
CONFIG = TrainingConfig(data="digits", steps=5)
STATE = {"weights/n0.bias": np.array([1.5, -2.0], np.float32), "first_moment/n0.bias": np.zeros((2, 0))}
DATA = Fingerprint.of(b"data")


@pytest.fixture
def own():
    """``own(path)``: a directory that is owned to the end of the test."""
    with ExitStack() as stack:

        def enter(path) -> RunDirectory:
            run = RunDirectory(path)
            stack.enter_context(run.own())
            return run

        yield enter


def prepare(run, config=CONFIG, plan=PLAN, data=DATA, *, resume=False, force=False, warn=lambda text: None):
    run.open(plan, config, resume=resume, force=force)
    run.begin(data, warn)


@pytest.fixture
def begun(own):
    """``begun(path)``: a run that has begun there, and the directory is owned."""

    def begin(path) -> RunDirectory:
        run = own(path)
        prepare(run)
        return run

    return begin


def test_begins_with_configuration_and_definition(tmp_path, begun):
    run = begun(tmp_path / "a" / "b")
    assert sorted(path.name for path in run.path.iterdir()) == [LOCK, "config.json", "definition.net"]
    assert iso.resolve_file(run.definition) == PLAN
    assert settings_of(run.path) == CONFIG.to_dict()
    assert settings_of(tmp_path) == {}


def test_a_checkpoint_is_read_back_bit_for_bit(tmp_path, begun):
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


def test_keeps_the_last_two_checkpoints(tmp_path, begun):
    run = begun(tmp_path)
    for step in (9, 10, 100):
        run.save(step, STATE)
    assert [path.name for path in run.checkpoints()] == [
        "checkpoint-00000100.safetensors", "checkpoint-00000010.safetensors",
    ]  # fmt: skip
    latest = run.latest()
    assert latest is not None
    assert latest.step == 100


def test_refuses_a_run_that_is_there(tmp_path, begun):
    run = begun(tmp_path)
    hint = "\n  --resume continues it, --force deletes it and starts anew, --out takes another place"
    with pytest.raises(IsomorphError) as error:
        prepare(run)
    assert str(error.value) == f"E_CHECKPOINT: {tmp_path} holds an unfinished run{hint}"
    run.model.touch()
    with pytest.raises(IsomorphError) as error:
        prepare(run)
    assert str(error.value) == f"E_CHECKPOINT: {tmp_path} holds a finished run{hint}"


def test_resuming_needs_the_same_network_and_settings(tmp_path, begun):
    run = begun(tmp_path)
    prepare(run, resume=True)
    other = TrainingConfig(data="digits", steps=6, seed=1)
    with pytest.raises(IsomorphError) as error:
        prepare(run, other, resume=True)
    assert str(error.value) == (
        f"E_CHECKPOINT: {tmp_path} holds another run, which cannot be resumed with this definition and settings\n"
        "  steps: 5 there, 6 here\n  seed: 0 there, 1 here\n"
        "  --out takes another place, --force deletes that run"
    )
    with pytest.raises(IsomorphError, match="holds another run"):
        prepare(run, plan=iso.resolve('input("B", 3)\nlinear(4)'), resume=True)


def test_force_deletes_a_run_and_nothing_else(tmp_path, begun):
    run = begun(tmp_path)
    run.save(1, STATE)
    for path in (run.model, run.metrics, run.curve, tmp_path / "notes.txt", tmp_path / "checkpoint-old"):
        path.touch()
    prepare(run, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        LOCK, "checkpoint-old", "config.json", "definition.net", "notes.txt",
    ]  # fmt: skip


def test_files_of_somebody_else_are_no_run(tmp_path, own):
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    (tmp_path / "curve.png").touch()
    run = own(tmp_path)
    for resume, force in ((False, False), (True, False), (False, True)):
        with pytest.raises(IsomorphError) as error:
            prepare(run, resume=resume, force=force)
        assert str(error.value) == (
            f"E_CHECKPOINT: {tmp_path} holds files that a run would replace, but no run made them: "
            "config.json is not there\n  files: curve.png, model.safetensors\n"
            "  --out takes another place; or move these files away"
        )
    assert (tmp_path / "model.safetensors").read_bytes() == b"precious"


@pytest.mark.parametrize("content", ['{"name": "another program"}', "[1]", "{", "[" * 100_000])
def test_force_deletes_nothing_beside_another_programs_configuration(tmp_path, content, own):
    run = own(tmp_path)
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "metrics.jsonl").write_text("precious")
    with pytest.raises(IsomorphError, match=r"no run made them: config\.json is no run's configuration"):
        prepare(run, force=True)
    assert (tmp_path / "config.json").read_text() == content
    assert (tmp_path / "metrics.jsonl").read_text() == "precious"


def test_leftovers_of_a_killed_save_are_removed(tmp_path, begun):
    run = begun(tmp_path)
    leftover = tmp_path / ".checkpoint-00000003.safetensors.0123.tmp"
    leftover.touch()
    prepare(run, resume=True)
    assert not leftover.exists()


def damage(content: bytes, how: str) -> bytes:
    return {"cut": content[:-1], "empty": b"", "flipped": content[:-1] + bytes([content[-1] ^ 1])}[how]


@pytest.mark.parametrize("how", ["cut", "empty", "flipped"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, begun, how):
    run = begun(tmp_path)
    run.save(1, STATE)
    run.save(2, STATE)
    newest = run.checkpoints()[0]
    newest.write_bytes(damage(newest.read_bytes(), how))
    warnings = []
    checkpoint = run.latest(warnings.append)
    assert checkpoint is not None
    assert checkpoint.step == 1
    (warning,) = warnings
    problem = (
        "was altered: its content has not the digest it was saved with"
        if how == "flipped"
        else "is damaged: "
    )
    assert warning.startswith(f"{newest} {problem}")
    assert warning.endswith("; continuing from checkpoint-00000001.safetensors")


def test_without_a_whole_checkpoint_nothing_is_continued(tmp_path, begun):
    run = begun(tmp_path)
    run.save(1, STATE)
    run.save(2, STATE)
    for path in run.checkpoints():
        path.write_bytes(damage(path.read_bytes(), "flipped"))
    with pytest.raises(IsomorphError) as error:
        run.latest()
    reason = "was altered: its content has not the digest it was saved with"
    assert str(error.value) == (
        f"E_CHECKPOINT: {tmp_path} has no whole checkpoint to continue from\n"
        f"  {tmp_path}/checkpoint-00000002.safetensors {reason}\n"
        f"  {tmp_path}/checkpoint-00000001.safetensors {reason}\n"
        "  --force deletes the run and starts anew"
    )


def test_a_checkpoint_that_was_passed_over_does_not_outlive_the_next(tmp_path, begun):
    # Else it would count as one of the last two, and a whole one would go.
    run = begun(tmp_path)
    for step in (1, 2, 9):
        run.save(step, STATE)
    run.checkpoints()[0].write_bytes(b"")
    run.save(3, STATE)
    assert [path.name for path in run.checkpoints()] == [
        "checkpoint-00000003.safetensors", "checkpoint-00000002.safetensors",
    ]  # fmt: skip


CUT = b'{\n  "plan": "{'


@pytest.mark.parametrize("evidence", ["checkpoint", "cut checkpoint", "metrics", "beginning"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", None])
def test_force_clears_a_run_whose_configuration_is_damaged(tmp_path, begun, evidence, content):
    run = begun(tmp_path)
    if "checkpoint" in evidence:
        run.save(1, STATE)
        (path,) = run.checkpoints()
        path.write_bytes(path.read_bytes()[: -1 if "cut" in evidence else None])
    if evidence == "metrics":
        run.metrics.write_text('{"step": 1, "loss": 2.0, "learning_rate": 0.1, "gradient_norm": 1.0}\n')
    content = CUT if evidence == "beginning" else content
    run.config.unlink() if content is None else run.config.write_bytes(content)
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(IsomorphError) as error:
        prepare(run, resume=True)
    problem = "is missing" if content is None else "is damaged: "
    assert error.value.message.startswith(f"the run cannot be resumed: {run.config} {problem}")
    assert error.value.hints == ("put the file back from a copy; --force deletes the run and starts anew",)
    with pytest.raises(IsomorphError, match="holds an unfinished run"):
        prepare(run)
    prepare(run, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        LOCK, "config.json", "definition.net", "notes.txt",
    ]  # fmt: skip
    assert settings_of(run.path) == CONFIG.to_dict()


def test_a_damaged_configuration_is_told(tmp_path, begun):
    run = begun(tmp_path)
    for content in ('{"plan": "{", "training": {"data": "digits"}}', '{"plan": 1, "training": 2}'):
        run.config.write_text(content)
        with pytest.raises(IsomorphError, match=r"config\.json is damaged"):
            prepare(run, resume=True)
    prepare(run, force=True)
    assert settings_of(run.path) == CONFIG.to_dict()


def test_every_flipped_byte_of_a_checkpoint_is_noticed(tmp_path, begun):
    run = begun(tmp_path)
    run.save(3, {"weights/n0.bias": np.array([1.5, -2.0], np.float32)})
    (path,) = run.checkpoints()
    sound = path.read_bytes()
    codes = []
    for place in range(len(sound)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        try:
            checkpoint = run.latest()
        except IsomorphError as error:
            codes.append(error.code)
        else:  # a name of the package's own header that it does not use
            assert checkpoint is not None
            assert checkpoint.state["weights/n0.bias"].tolist() == [1.5, -2.0]
            assert checkpoint.step == 3
    assert set(codes) == {"E_CHECKPOINT"}
    assert len(codes) > 0.9 * len(sound)


# -- whose run it is ---------------------------------------------------------------------------


def test_a_run_goes_on_with_its_own_data_alone(tmp_path, begun):
    run = begun(tmp_path)
    other = Fingerprint.of(b"other data")
    with pytest.raises(IsomorphError) as error:
        prepare(run, data=other, resume=True)
    # echo -n data | sha256sum; echo -n "other data" | sha256sum
    there, here = (hashlib.sha256(content).hexdigest()[:16] for content in (b"data", b"other data"))
    assert str(error.value) == (
        f"E_CHECKPOINT: {tmp_path} holds a run that was given other data: 'digits' was changed since\n"
        f"  4 bytes with SHA-256 {there}... there, 10 bytes with SHA-256 {here}... here\n"
        "  put the data back as they were; --out takes another place, --force deletes that run"
    )
    prepare(run, resume=True)
    prepare(run, data=other, force=True)
    prepare(run, data=other, resume=True)


def test_what_is_stored_says_what_its_process_was_given(tmp_path, begun):
    run = begun(tmp_path)
    other = TrainingConfig(data="digits", steps=5, seed=1)
    text = json.dumps({"plan": PLAN.to_json(), "training": other.to_dict(), "data": DATA._asdict()})
    run.config.write_text(text)  # another run's, whatever put it there
    run.save(1, STATE)
    (path,) = run.checkpoints()
    prepare(run, other, resume=True)
    with pytest.raises(IsomorphError) as error:
        run.latest()
    assert str(error.value) == (
        f"E_CHECKPOINT: {path} is the state of another run than that of config.json beside it\n"
        "  seed: 0 there, 1 here\n  move it away, or start anew with --force"
    )


def test_a_run_of_an_earlier_version_goes_on_and_says_that_its_data_are_not_known(tmp_path, begun):
    run = begun(tmp_path)
    older = {"plan": PLAN.to_json(), "training": CONFIG.to_dict()}  # as format 2 had it
    run.config.write_text(json.dumps(older))
    header = {"format": 2, "step": 3, **older}
    state = {"weights/n0.bias": np.array([1.5, -2.0], np.float32)}
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(b'["weights/n0.bias", "float32", [2]]' + state["weights/n0.bias"].tobytes())
    metadata = {"isomorph.checkpoint": json.dumps({**header, "digest": digest.hexdigest()})}
    (tmp_path / "checkpoint-00000003.safetensors").write_bytes(save(state, metadata))
    warnings = []
    prepare(run, resume=True, warn=warnings.append)
    assert warnings == [
        f"{tmp_path} was begun by a version that did not look at the data: whether 'digits' is what it was then "
        "cannot be told; from now on it is compared"
    ]
    checkpoint = run.latest(warnings.append)
    assert checkpoint is not None
    assert checkpoint.step == 3
    prepare(run, resume=True, warn=warnings.append)
    assert len(warnings) == 1
    with pytest.raises(IsomorphError, match="was given other data"):
        prepare(run, resume=True, data=Fingerprint.of(b"other"))


def test_a_checkpoint_of_a_later_format_is_refused_and_not_taken_for_damaged(tmp_path, begun):
    run = begun(tmp_path)
    header = {"format": 4, "step": 3}
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()
    path = tmp_path / "checkpoint-00000003.safetensors"
    path.write_bytes(save({}, {"isomorph.checkpoint": json.dumps({**header, "digest": digest})}))
    with pytest.raises(IsomorphError) as error:
        run.latest()
    assert str(error.value) == (
        f"E_CHECKPOINT: {path} has the format 4; this version reads 2 to 3\n"
        "  resume with the version that wrote it, or start anew with --force"
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


def test_a_place_that_cannot_be_written_is_told(tmp_path, own):
    (tmp_path / "file").touch()
    with pytest.raises(IsomorphError) as error:
        own(tmp_path / "file" / "run")
    assert error.value.code == "E_CHECKPOINT"
    assert error.value.hints == ("--out takes another place",)
