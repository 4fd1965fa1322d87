"""One file per model: bit-exact, strict, atomic, and nothing in it is executed."""

import json
import os
import pickle
import struct
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import isomorph as iso
from isomorph.weights import file as weights_file


def plan(dtype="float32"):
    return iso.resolve("linear(3)\nlayer_norm()", input=("B", 2), dtype=dtype)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    iso.save(path, plan(), iso.initial_weights(plan()))
    return path


def error_of(function, *arguments):
    with pytest.raises(iso.IsomorphError) as caught:
        function(*arguments)
    return caught.value


def split(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


# -- round trips -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_round_trip(tmp_path, dtype):
    weights = iso.initial_weights(plan(dtype), seed=4)
    weights["n1.bias"][:] = [np.nan, -0.0, np.inf]
    iso.save(tmp_path / "m", plan(dtype), weights)
    found_plan, found = iso.load(str(tmp_path / "m"))
    assert found_plan == plan(dtype)
    assert list(found) == list(weights)
    for path, array in found.items():
        assert array.dtype == weights[path].dtype
        assert array.shape == weights[path].shape
        assert array.tobytes() == weights[path].tobytes()
    found["n0.weight"][:] = 0  # it is the caller's own


def test_bfloat16_bits(tmp_path):
    resolved = iso.resolve("layer_norm(bias=False)", input=("B", 2), dtype="bfloat16")
    iso.save(tmp_path / "m", resolved, {"n0.weight": np.array([1.5, -2.25], ml_dtypes.bfloat16)})
    # 1.5 = 0x3fc0, -2.25 = 0xc010; little-endian at the end of the file
    assert (tmp_path / "m").read_bytes().endswith(b"\xc0\x3f\x10\xc0")
    array = iso.load(tmp_path / "m")[1]["n0.weight"]
    assert array.dtype == ml_dtypes.bfloat16
    assert array.tolist() == [1.5, -2.25]


def test_others_can_read_it(saved):
    arrays = safetensors.numpy.load_file(saved)
    expected = iso.initial_weights(plan())
    assert {path: array.tolist() for path, array in arrays.items()} == {
        path: array.tolist() for path, array in expected.items()
    }


def test_equal_models_give_equal_bytes(saved, tmp_path):
    shuffled = dict(reversed(iso.initial_weights(plan()).items()))
    iso.save(tmp_path / "again", plan(), shuffled)
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()


def test_tied_parameters_are_saved_once(tmp_path):
    resolved = iso.resolve(
        'ids = input("B", "T", dtype="int64")\nembedding(5, 3, name="wte")\n'
        'linear(5, bias=False, tie={"weight": "wte.weight"}, name="head")'
    )
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    iso.save(tmp_path / "m", resolved, {"head.weight": table})
    assert list(iso.load(tmp_path / "m")[1]) == ["wte.weight"]
    assert len(split(tmp_path / "m")[1]) == table.nbytes


def test_layouts_do_not_matter(tmp_path):
    weights = iso.initial_weights(plan())
    value = np.arange(6, dtype=np.float32).reshape(3, 2)
    for array in (np.asfortranarray(value), value.astype(">f4"), np.repeat(value, 2, 0)[::2]):
        iso.save(tmp_path / "m", plan(), {**weights, "n0.weight": array})
        assert iso.load(tmp_path / "m")[1]["n0.weight"].tolist() == value.tolist()


# -- refusals --------------------------------------------------------------------------------------


def test_weights_that_are_not_the_plans(tmp_path):
    weights = iso.initial_weights(plan())
    error = error_of(iso.save, tmp_path / "m", plan("float64"), weights)
    assert str(error).startswith(
        "E_WEIGHTS: the plan's dtype is float64, but 4 of the weights have another\n  n0.weight: float32\n"
    )
    del weights["n0.bias"]
    assert "missing: n0.bias [3]" in str(error_of(iso.save, tmp_path / "m", plan(), weights))
    assert not list(tmp_path.iterdir())


def test_no_such_file_or_directory(tmp_path):
    error = error_of(iso.load, tmp_path / "none")
    assert str(error) == (
        f"E_CHECKPOINT: cannot read {tmp_path}/none: No such file or directory\n  check the path"
    )
    error = error_of(iso.save, tmp_path / "no" / "m", plan(), iso.initial_weights(plan()))
    assert error.code == "E_OUTPUT"
    assert "No such file or directory" in error.message
    assert error_of(iso.load, tmp_path).code == "E_CHECKPOINT"


@pytest.mark.parametrize("kept", [0, 5, 8, 100, -1])
def test_truncated(saved, kept):
    saved.write_bytes(saved.read_bytes()[:kept])
    error = error_of(iso.load, saved)
    assert error.code == "E_CHECKPOINT"
    assert "is damaged or no safetensors file" in error.message
    assert error.hints == ("copy or save it again; a partly copied file is the usual cause",)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 10**9])
def test_header_lengths(saved, length):
    saved.write_bytes(struct.pack("<Q", length) + saved.read_bytes()[8:])
    error = error_of(iso.load, saved)
    assert error.code == "E_CHECKPOINT"
    assert f"cannot hold a header of {length:,} bytes" in error.message


@pytest.mark.parametrize("offsets", [[0, 20], [0, 28], [4, 28], [24, 0], [0, 2**63]])
def test_offsets_that_are_not_the_shape(saved, offsets):
    header, data = split(saved)
    assert header["n0.weight"]["data_offsets"] == [0, 24]
    header["n0.weight"]["data_offsets"] = offsets
    join(saved, header, data)
    assert error_of(iso.load, saved).code == "E_CHECKPOINT"


class Payload:
    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_pickles_are_not_executed(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").write_bytes(pickle.dumps(Payload(), protocol))
    error = error_of(iso.load, tmp_path / "m")
    assert error.code == "E_CHECKPOINT"
    if protocol:
        assert "is a pickle or an archive" in error.message
    assert not (tmp_path / "executed").exists()


def test_a_file_without_a_plan(tmp_path):
    safetensors.numpy.save_file({"a": np.zeros(2)}, tmp_path / "m")
    error = error_of(iso.load, tmp_path / "m")
    assert error.code == "E_CHECKPOINT"
    assert error.message == f"{tmp_path}/m holds arrays but no plan"
    assert "pass them as weights" in " ".join(error.hints)


@pytest.mark.parametrize("first", [b"\x80", b"PK"])
def test_a_sound_file_may_start_like_a_pickle(saved, first):
    """The header's length decides the first bytes; padding it makes them those of a pickle or an archive."""
    data = saved.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    longer = next(n for n in range(length, 1 << 17) if struct.pack("<Q", n).startswith(first))
    header = data[8 : 8 + length].ljust(longer)
    saved.write_bytes(struct.pack("<Q", longer) + header + data[8 + length :])
    assert iso.load(saved)[0] == plan()


@pytest.mark.parametrize("first", [b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"])
@pytest.mark.parametrize("kept", [5, 8, 9, 700])
def test_a_cut_file_is_no_pickle_though_its_length_begins_like_one(saved, first, kept):
    data = saved.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    longer = next(n for n in range(length, 1 << 17) if struct.pack("<Q", n).startswith(first))
    saved.write_bytes((struct.pack("<Q", longer) + data[8 : 8 + length].ljust(longer))[:kept])
    assert error_of(iso.load, saved).message == (
        f"{saved} is damaged or no safetensors file: "
        f"its {kept} bytes cannot hold a header of {longer:,} bytes"
    )


def test_short_pickles_and_archives_are_called_by_their_name(saved):
    import io
    import zipfile

    empty, full = io.BytesIO(), io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    with zipfile.ZipFile(full, "w") as archive:
        archive.writestr("data.pkl", b"...")
    pickles = [pickle.dumps(value, protocol) for value in (None, {}, {"a": 1}) for protocol in (2, 3, 4, 5)]
    for content in (*pickles, empty.getvalue(), full.getvalue()):
        saved.write_bytes(content)
        assert "is a pickle or an archive" in error_of(iso.load, saved).message, content


# -- notes ---------------------------------------------------------------------------------------------


def test_notes_come_back_and_change_nothing_else(tmp_path, saved):
    notes = {"eos_token_id": [2, 3], "id2label": {"0": "Zürich", "1": "\ud800"}, "x": [None, True, 1.5, {}]}
    weights = iso.initial_weights(plan())
    iso.save(tmp_path / "noted", plan(), weights, notes=notes)
    assert weights_file.load_notes(tmp_path / "noted") == notes
    assert weights_file.load_notes(saved) == {}
    found_plan, found = iso.load(tmp_path / "noted")
    assert found_plan == plan() and all(found[path].tobytes() == weights[path].tobytes() for path in weights)
    iso.save(tmp_path / "again", plan(), weights, notes=dict(reversed(notes.items())))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "noted").read_bytes()


@pytest.mark.parametrize(
    "notes",
    [
        {"a": float("nan")},
        {"a": {1, 2}},
        {"a": (1, 2)},
        {1: 2},
        {"a": {1: 2}},
        {"a": np.ones(1)},
        [1],
        3,
        "x",
    ],
    ids=str,
)
def test_notes_are_json(tmp_path, notes):
    error = error_of(lambda: iso.save(tmp_path / "m", plan(), iso.initial_weights(plan()), notes=notes))
    assert error.code == "E_ARGUMENT"
    assert error.message.startswith("notes must be a dictionary of JSON values by name: ")
    assert not (tmp_path / "m").exists()


def test_notes_have_a_limit(tmp_path, saved):
    weights = iso.initial_weights(plan())
    most = weights_file.MOST_NOTES_BYTES
    error = error_of(lambda: iso.save(tmp_path / "m", plan(), weights, notes={"a": "x" * most}))
    assert (
        str(error) == f"E_ARGUMENT: notes may take 4,194,304 bytes as JSON, got {most + 8:,}"
    )  # {"a":"..."}
    header, data = split(saved)
    for text in ("[" * 100_000, "[1]", "{", "x" * (most + 1)):
        header["__metadata__"]["isomorph.notes"] = text
        join(saved, header, data)
        error = error_of(weights_file.load_notes, saved)
        assert error.code == "E_CHECKPOINT"
        assert error.message.startswith(f"{saved} holds notes that cannot be read: ")
        assert iso.load(saved)[0] == plan()  # which does not need them


def test_an_altered_plan(saved):
    header, data = split(saved)
    header["__metadata__"]["isomorph.plan"] = header["__metadata__"]["isomorph.plan"].replace(
        "1e-05", "1e-06"
    )
    join(saved, header, data)
    assert error_of(iso.load, saved).code == "E_INTEGRITY"


def test_arrays_that_are_not_the_plans(saved):
    text = split(saved)[0]["__metadata__"]["isomorph.plan"]
    arrays = iso.initial_weights(plan())

    def rewrite(**changes):
        safetensors.numpy.save_file({**arrays, **changes}, saved, {"isomorph.plan": text})
        return error_of(iso.load, saved)

    error = rewrite(**{"n0.weight": np.zeros((2, 3), np.float32)})
    assert error.code == "E_WEIGHTS"
    assert "misshapen: n0.weight: expected [3, 2], got [2, 3]" in str(error)
    error = rewrite(extra=np.zeros(1, np.float32))
    assert "unexpected: extra [1]" in str(error)
    error = rewrite(**{"n1.bias": np.zeros(3)})
    assert str(error) == (
        "E_WEIGHTS: the plan's dtype is float32 (F32), 1 of the file's arrays have another\n  n1.bias: F64"
    )


# -- atomicity -------------------------------------------------------------------------------------

SAVER = """
import sys
import numpy as np
import isomorph as iso
plan = iso.resolve("linear(1024)", input=("B", 1024))
weights = {p.path: np.full(p.shape, float(sys.argv[2]), np.float32) for p in plan.parameters}
print("ready", flush=True)
while True:
    iso.save(sys.argv[1], plan, weights)
"""


def test_a_killed_save_leaves_the_old_file_whole(tmp_path):
    """Real processes that do nothing but save are killed: some as soon as a half-written file is seen."""
    path = tmp_path / "model.safetensors"
    resolved = iso.resolve("linear(1024)", input=("B", 1024))
    iso.save(path, resolved, {p.path: np.zeros(p.shape, np.float32) for p in resolved.parameters})
    interrupted = attempt = 0
    while interrupted < 3:
        attempt += 1
        assert attempt < 30  # else nothing was tested
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(path), str(attempt)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        if attempt % 3:
            while not list(tmp_path.glob(".model.safetensors.*.tmp")):
                assert process.poll() is None
        else:
            time.sleep(0.004 * attempt)
        process.kill()  # SIGKILL
        process.wait()
        process.stdout.close()
        for leftover in tmp_path.glob(".model.safetensors.*.tmp"):
            interrupted += 1
            leftover.unlink()
        found_plan, weights = iso.load(path)
        assert found_plan == resolved
        values = {value for array in weights.values() for value in np.unique(array).tolist()}
        assert len(values) == 1  # every number from one and the same save
        assert values <= set(range(attempt + 1))


def test_a_failing_save_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    error = error_of(iso.save, saved, plan(), iso.initial_weights(plan(), seed=9))
    assert str(error) == (
        f"E_OUTPUT: cannot write {saved}: No space left on device\n"
        "  there must be room for a second copy of the file: the old one stays until the new one is whole"
    )
    assert saved.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_model_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (iso.load, weights_file.load_notes):
        with pytest.raises(iso.IsomorphError) as error:
            read(tmp_path / "pipe")
        assert str(error.value) == (
            f"E_CHECKPOINT: cannot read {tmp_path}/pipe: it is a pipe, expected a regular file\n  check the path"
        )
