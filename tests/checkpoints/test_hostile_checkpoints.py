"""Files that somebody damaged or made to do harm: refused with the file's and the tensor's name, nothing run."""

import json
import os
import struct

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import isomorph as iso

SIZES = {"vocab_size": 7, "n_positions": 5, "n_embd": 4, "n_layer": 1, "n_head": 2}


@pytest.fixture
def directory(published):
    return published("GPT2LMHeadModel", transformers.GPT2Config(**SIZES))[0]


def refused(directory, code="E_CHECKPOINT") -> iso.IsomorphError:
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.code == code
    return error.value


def split(path):
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:end]), data[end:]


def join(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_headers_that_lie(directory):
    path = directory / "model.safetensors"
    header, data = split(path)
    name = "transformer.ln_f.bias"  # four numbers of eight bytes
    start, end = header[name]["data_offsets"]
    lies = [
        {"shape": [5]}, {"shape": [2**62, 4]}, {"shape": [-4]}, {"shape": [4.0]}, {"shape": "4"}, {"shape": None},
        {"data_offsets": [start, end + 8]}, {"data_offsets": [end, start]}, {"data_offsets": [start - 8, end]},
        {"data_offsets": [2**64, 2**64 + 32]}, {"data_offsets": [start]}, {"dtype": "F32"}, {"dtype": "F128"},
        {"dtype": 3},
    ]  # fmt: skip
    for lie in lies:
        join(path, header | {name: header[name] | lie}, data)
        assert refused(directory).message.startswith(f"{path} is damaged or no safetensors file: "), lie
    for text in (b"[]", b"3", b"{", b"\xff\xfe", b'{"a": ' * 10_000, b""):
        join(path, text, data)
        assert str(path) in refused(directory).message, text[:20]
    join(path, header, data + b"hidden at the end")
    refused(directory)


def test_tensors_of_another_shape_or_kind_are_listed_with_file_and_name(directory):
    path = directory / "model.safetensors"
    arrays = load_file(path)
    arrays["transformer.wte.weight"] = arrays["transformer.wte.weight"].T.copy()
    arrays["transformer.ln_f.bias"] = np.arange(4)
    arrays["transformer.h.0.attn.c_attn.weight"] = np.zeros((4, 12), np.int8)
    del arrays["transformer.wpe.weight"]
    save_file(arrays, path)
    assert str(refused(directory, "E_WEIGHTS")).splitlines() == [
        "E_WEIGHTS: the tensors are not those of the configured GPT2LMHeadModel: 4 differ",
        "  missing: wpe.weight [5, 4]",
        "  no floating-point numbers: h.0.attn.c_attn.weight in model.safetensors: I8",
        "  no floating-point numbers: ln_f.bias in model.safetensors: I64",
        "  misshapen: wte.weight in model.safetensors: expected [7, 4], got [4, 7]",
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pickled", [False, True])
def test_files_filled_with_nan_name_file_and_tensor(directory, dtype, pickled):
    from safetensors.torch import save_file as save_tensors

    path = directory / "model.safetensors"
    arrays = {name: torch.from_numpy(array).to(dtype) for name, array in load_file(path).items()}
    arrays["transformer.h.0.ln_1.bias"][-1] = torch.nan
    os.remove(path)
    if pickled:
        path = directory / "pytorch_model.bin"
        torch.save(arrays, path)
    else:
        save_tensors(arrays, path)
    assert refused(directory, "E_WEIGHTS").message == f"h.0.ln_1.bias in {path} holds NaN"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_links_out_of_the_directory_are_not_followed(directory, tmp_path, name):
    if name.endswith("index.json"):
        os.remove(directory / "model.safetensors")
        (directory / name).write_text("{}")
    outside = tmp_path / "outside"
    os.rename(directory / name, outside)
    for target in (outside, os.path.relpath(outside, directory)):
        os.symlink(target, directory / name)
        assert refused(directory).message == (
            f"{directory / name} is a link that leads out of the directory, to {outside}"
        )
        os.remove(directory / name)
    os.symlink(directory / name, directory / name)  # to itself
    assert refused(directory).message == f"{directory / name} is a link that leads back to itself"
    os.remove(directory / name)
    (directory / name).mkdir()
    assert refused(directory).message == f"{directory / name} is a directory"


def test_what_only_looks_like_the_hubs_cache_opens_no_other_directory(directory, tmp_path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1f"
    snapshot.parent.mkdir(parents=True)
    os.rename(directory, snapshot)
    for place in ("blobs-of-mine", "blobs/../refs"):
        other = tmp_path / "models--a--b" / place
        (tmp_path / "models--a--b" / "blobs").mkdir(exist_ok=True)
        other.mkdir()
        os.rename(snapshot / "config.json", other / "config.json")
        os.symlink(other / "config.json", snapshot / "config.json")
        assert "leads out of the directory" in refused(snapshot).message
        os.remove(snapshot / "config.json")
        os.rename(other / "config.json", snapshot / "config.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such files here")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_that_nobody_writes_to_does_not_hang(directory, name):
    os.remove(directory / name)
    os.mkfifo(directory / name)
    assert refused(directory).message == f"{directory / name} is a pipe"


def test_a_tensor_that_repeats_one_number_without_end_is_not_written_out(directory):
    """A pickle of a few bytes may hold a view of any size."""
    arrays = {
        name: torch.from_numpy(array) for name, array in load_file(directory / "model.safetensors").items()
    }
    os.remove(directory / "model.safetensors")
    arrays["transformer.wte.weight"] = torch.zeros(1).expand(1 << 40, 4)
    torch.save(arrays, directory / "pytorch_model.bin")
    error = refused(directory)
    assert "transformer.wte.weight" in error.message and "bytes in all" in error.message
    assert error.hints == ("save the tensor's clone(), which holds every number",)


@pytest.mark.parametrize("form", ["safetensors", "zip", "legacy"])
def test_cut_or_altered_anywhere_it_is_refused_or_sound(directory, form):
    path = directory / "model.safetensors"
    if form != "safetensors":
        arrays = {name: torch.from_numpy(array) for name, array in load_file(path).items()}
        os.remove(path)
        path = directory / "pytorch_model.bin"
        torch.save(arrays, path, _use_new_zipfile_serialization=form == "zip")
    content = path.read_bytes()
    draw = np.random.default_rng(0)
    damaged = [content[:n] for n in {*range(20), *draw.integers(0, len(content) - 1, 20).tolist()}]
    for _ in range(80):
        changed = bytearray(content)
        for position in draw.integers(0, min(len(content), 3000), 3):
            changed[position] = draw.integers(0, 256)
        damaged.append(bytes(changed))
    for text in damaged:
        path.write_bytes(text)
        try:
            plan, weights = iso.import_checkpoint(directory)
        except iso.IsomorphError as error:
            assert error.code in ("E_CHECKPOINT", "E_WEIGHTS")  # noqa: PT017
            assert path.name in str(error) or "the tensors are not those" in error.message  # noqa: PT017
        else:
            assert len(text) == len(content) and sorted(weights) == sorted(p.path for p in plan.parameters)


@pytest.mark.parametrize("name", ["a" * 5000, "a" * 300, "a\0b", "\ud800", ".."])
def test_an_index_names_what_no_file_can_be_called(directory, name):
    os.remove(directory / "model.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"transformer.wte.weight": f"{name}.safetensors"}}))
    if name == "..":  # "...safetensors" is a name
        assert refused(directory).message == f"{directory / '...safetensors'} does not exist"
        return
    error = refused(directory)
    assert error.message.startswith(f"{index} names the file ")
    assert len(error.message) < len(str(index)) + 350
    assert str(error).isprintable() or str(error).count("\n") == 1


@pytest.mark.parametrize("path", ["a" * 5000, "a/" * 3000])
def test_a_path_longer_than_a_system_has(path):
    assert "is not a directory" in refused(path).message


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything may be read")
def test_what_may_not_be_read(directory):
    (directory / "config.json").chmod(0)
    assert refused(directory).message == f"cannot read {directory / 'config.json'}: Permission denied"
    directory.chmod(0)
    try:
        assert refused(directory).message.startswith(f"{directory / 'config.json'} cannot be read: ")
    finally:
        directory.chmod(0o700)


EVIL = "a\x1b]0;title\x07\x1b[2J\r\nE_FORGED: all is well\u202e\x9b"
ESCAPED = r"a\x1b]0;title\x07\x1b[2J\r\nE_FORGED: all is well\u202e\x9b"


def test_names_from_files_are_escaped_and_cut(directory):
    """A terminal would obey them, and a reader would be drowned in them."""
    path, config = directory / "model.safetensors", directory / "config.json"
    content, written = path.read_bytes(), json.loads(config.read_text())
    arrays = load_file(path)

    def with_tensor(name):
        save_file(arrays | {name: np.zeros(1)}, path)
        error = refused(directory, "E_WEIGHTS")
        path.write_bytes(content)
        return error

    def with_value(key, value):
        config.write_text(json.dumps(written | {key: value}))
        error = refused(directory)
        config.write_text(json.dumps(written))
        return error

    def with_key(key):
        lines = []
        config.write_text(json.dumps(written | {key: 1}))
        iso.import_checkpoint(directory, report=lines.append)
        config.write_text(json.dumps(written))
        return lines[0]

    assert with_tensor(EVIL).hints == (f"unexpected: {ESCAPED} in model.safetensors [1]",)
    assert with_key(EVIL) == f"left: keys of config.json that gpt2 does not read: {ESCAPED}"
    assert with_key(f"x.{EVIL}") == f"left: keys of config.json that gpt2 does not read: x.{ESCAPED}"
    assert (
        with_value("activation_function", EVIL)
        .hints[0]
        .endswith(r"got 'a\x1b]0;title\x07\x1b[2J\r\nE_FORGED: all is well\u202e\...")
    )
    assert r"model_type 'a\x1b]0;title\x07\x1b[2J\r\nE_FORGED: all" in with_value("model_type", EVIL).message
    assert "b" * 190 in with_tensor("b" * 100_000).hints[0]
    for line in (
        with_tensor("b" * 100_000).hints[0],
        with_key("b" * 100_000),
        with_key("x." + "b" * 100_000),
    ):
        assert "b" * 90 in line
        assert len(line) < 300


def test_whatever_an_error_quotes_is_shown_without_control_characters():
    error = iso.IsomorphError("E_CHECKPOINT", EVIL, hints=[EVIL, "b" * 100_000])
    assert str(error).splitlines() == [f"E_CHECKPOINT: {ESCAPED}", f"  {ESCAPED}", f"  {'b' * 1997}..."]


def test_a_tensor_of_the_head_has_no_prefix(directory):
    path = directory / "model.safetensors"
    arrays = load_file(path)
    save_file(arrays | {"transformer.lm_head.weight": arrays["transformer.wte.weight"]}, path)
    assert refused(directory, "E_WEIGHTS").hints == (
        "unexpected: transformer.lm_head.weight, expected lm_head.weight",
    )
    save_file(arrays | {"lm_head.weight": arrays["transformer.wte.weight"]}, path)
    assert iso.import_checkpoint(directory)


@pytest.mark.parametrize("given", [{}, "", 0, False, "GPT2LMHeadModel", ["GPT3"], [[]], {"a": 1}])
def test_architectures_are_a_list_of_names(directory, given):
    config = directory / "config.json"
    written = json.loads(config.read_text())
    config.write_text(json.dumps(written | {"architectures": given}))
    got = given[0] if isinstance(given, list) else given
    assert refused(directory).hints == (f"architectures: expected GPT2LMHeadModel or GPT2Model, got {got!r}",)
    for absent in (None, []):
        config.write_text(json.dumps(written | {"architectures": absent}))
        assert iso.import_checkpoint(directory)


@pytest.mark.parametrize("dtype", [["x"], {}, 5, "int8", np.float32])
def test_what_is_no_dtype(directory, dtype):
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory, dtype=dtype)
    assert str(error.value) == (
        f"E_ARGUMENT: dtype must be one of float64, float32, bfloat16, float16, got {dtype!r}"
    )
