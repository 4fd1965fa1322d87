"""Directories of published models: every form of the weights, and files that must be refused."""

import json
import os
import pickle
import struct

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import isomorph as iso
from isomorph.backends.torch.pickled import read_pickled
from isomorph.checkpoints import source
from isomorph.checkpoints.families import FAMILIES

SIZES = {
    "vocab_size": 7,
    "n_positions": 5,
    "n_embd": 4,
    "n_layer": 1,
    "n_head": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}


@pytest.fixture
def directory(published):
    return published("GPT2LMHeadModel", transformers.GPT2Config(**SIZES))[0]


def refused(directory, code="E_CHECKPOINT") -> iso.IsomorphError:
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.code == code
    return error.value


def same(one, other) -> bool:
    return list(one) == list(other) and all(one[path].tobytes() == other[path].tobytes() for path in one)


def shard(directory, save, name="model", ending="safetensors"):
    """Cut the weights in two files with an index."""
    arrays = load_file(directory / "model.safetensors")
    os.remove(directory / "model.safetensors")
    names = sorted(arrays)
    places = {key: f"{name}-{1 + (i >= 7)}-of-2.{ending}" for i, key in enumerate(names)}
    for file in set(places.values()):
        save({key: arrays[key] for key in names if places[key] == file}, directory / file)
    (directory / f"{name}.{ending}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def save_pickled(arrays, path, **how):
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path, **how)


def test_shards_hold_the_same(directory):
    plan, weights = iso.import_checkpoint(directory)
    shard(directory, save_file)
    again, found = iso.import_checkpoint(directory)
    assert again == plan
    assert same(found, weights)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_tensors_holds_the_same(directory, zipped):
    _, weights = iso.import_checkpoint(directory)
    arrays = load_file(directory / "model.safetensors")
    os.remove(directory / "model.safetensors")
    save_pickled(arrays, directory / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert same(iso.import_checkpoint(directory)[1], weights)


def test_sharded_pickles_hold_the_same(directory):
    _, weights = iso.import_checkpoint(directory)
    shard(directory, save_pickled, "pytorch_model", "bin")
    assert same(iso.import_checkpoint(directory)[1], weights)


def test_a_pickle_that_would_execute_something_is_refused(directory, tmp_path):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    os.remove(directory / "model.safetensors")
    path = directory / "pytorch_model.bin"
    path.write_bytes(pickle.dumps(Payload()))
    error = refused(directory)
    assert error.message.startswith(f"{path} cannot be read as tensors alone: ")
    torch.save({"wte.weight": Payload()}, path)
    assert refused(directory).message.startswith(f"{path} cannot be read as tensors alone: ")
    path.write_bytes(b"PK\x03\x04 no archive")
    refused(directory)
    torch.save({"model": {"a": torch.ones(1)}}, path)
    assert str(refused(directory)) == (
        f"E_CHECKPOINT: {path} holds 'dict' under 'model', expected tensors by name\n"
        "  a training checkpoint holds more than a model: save its state_dict() alone"
    )
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickled_tensor_that_declares_more_than_its_file_holds_is_refused(tmp_path, zipped):
    # One float32 with a stride of 0: 10^12 numbers, 4 * 10^12 bytes, in a file of less than two kilobytes.
    path = tmp_path / "pytorch_model.bin"
    tensors = {"wte.weight": torch.zeros(1).expand(10**12)}
    torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(iso.IsomorphError) as error:
        read_pickled(path)
    assert str(error.value) == (
        f"E_CHECKPOINT: {path} declares 4,000,000,000,000 bytes of numbers for 'wte.weight', but has "
        f"{path.stat().st_size:,} bytes in all\n  save the tensor's clone(), which holds every number"
    )
    torch.save({"mask": torch.ones(1, 4).expand(3, 4)}, path, _use_new_zipfile_serialization=zipped)
    assert read_pickled(path)["mask"].shape == (3, 4)


def test_a_pickle_where_nothing_reads_it(tmp_path, monkeypatch):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.ones(2)}, path)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(source, "preferred", lambda ability: None)
    with pytest.raises(iso.IsomorphError) as error:
        source.open_checkpoint(tmp_path)
    assert str(error.value) == (
        f"E_BACKEND: {path} is a pickle, which only PyTorch reads, and it is not installed\n"
        '  pip install "isomorph[torch]"'
    )


def test_bfloat16_keeps_its_bits_and_mixed_dtypes_take_the_widest(directory):
    path = directory / "model.safetensors"
    arrays = {name: torch.from_numpy(array) for name, array in load_file(path).items()}
    from safetensors.torch import save_file as save_tensors

    halves = {name: tensor.bfloat16() for name, tensor in arrays.items()}
    save_tensors(halves, path)
    plan, weights = iso.import_checkpoint(directory)
    assert plan.dtype == "bfloat16"
    bits = halves["transformer.wte.weight"].view(torch.int16).numpy().tobytes()
    assert weights["wte.weight"].tobytes() == bits
    save_tensors(halves | {"transformer.ln_f.bias": arrays["transformer.ln_f.bias"].half()}, path)
    plan, weights = iso.import_checkpoint(directory)
    assert plan.dtype == "float32"  # the least that holds both bfloat16 and float16
    expected = halves["transformer.wte.weight"].float().numpy()
    np.testing.assert_array_equal(weights["wte.weight"], expected)
    halves["transformer.wte.weight"][0, 0] = float("nan")
    save_tensors(halves, path)
    assert refused(directory, "E_WEIGHTS").message == f"wte.weight in {path} holds NaN"


def test_damaged_files_are_refused(directory):
    path = directory / "model.safetensors"
    content = path.read_bytes()
    for damaged in (
        b"", content[:100], content[:-1], content + b"\0",
        struct.pack("<Q", 2**64 - 1) + content[8:], content[:8] + b"[" * 200 + content[208:],
        content.replace(b'"data_offsets":[0,', b'"data_offsets":[8,', 1),
    ):  # fmt: skip
        path.write_bytes(damaged)
        assert refused(directory).message.startswith(str(path)), damaged[:20]
    path.write_bytes(content[:5])  # a header's length may begin like a pickle
    assert refused(directory).message.startswith(str(path))
    path.write_bytes(content)
    assert iso.import_checkpoint(directory)


def test_an_index_cannot_lead_out_of_the_directory(directory, tmp_path):
    outside = tmp_path / "outside.safetensors"
    save_file({"a": np.ones(1)}, outside)
    places = shard(directory, save_file)
    index = directory / "model.safetensors.index.json"
    for name in (
        str(outside),
        "../outside.safetensors",
        "a/../../outside.safetensors",
        "model.bin",
        "..\\x.safetensors",
    ):
        index.write_text(json.dumps({"weight_map": places | {"transformer.wte.weight": name}}))
        error = refused(directory)
        assert error.message == f"{index} names the file {name!r}"
        assert error.hints == ("expected the name of a .safetensors file in the same directory",)
    os.symlink(outside, directory / "link.safetensors")
    index.write_text(json.dumps({"weight_map": places | {"transformer.wte.weight": "link.safetensors"}}))
    assert refused(directory).message == (
        f"{directory / 'link.safetensors'} is a link that leads out of the directory, to {outside}"
    )
    for content in ("{}", '{"weight_map": {"a": 1}}', '{"weight_map": []}', "[" * 100_000, "no"):
        index.write_text(content)
        refused(directory)


def test_a_missing_part_is_named(directory):
    places = shard(directory, save_file)
    missing = directory / max(places.values())
    kept = load_file(missing)
    os.remove(missing)
    assert str(refused(directory)) == (
        f"E_CHECKPOINT: {missing} does not exist\n  copy the model again, whole"
    )
    name = sorted(kept)[0]
    save_file({key: array for key, array in kept.items() if key != name}, missing)
    error = refused(directory)
    assert error.message == f"{missing} lacks 1 tensors that the index says it holds"
    assert error.hints == (f"missing: {name}",)


def test_links_of_the_hubs_cache_are_followed(directory, tmp_path):
    _, weights = iso.import_checkpoint(directory)
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1f"
    snapshot.mkdir(parents=True)
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        os.rename(directory / name, blobs / name[:5])
        os.symlink(f"../../blobs/{name[:5]}", snapshot / name)
    assert same(iso.import_checkpoint(snapshot)[1], weights)


def test_what_is_no_checkpoint(directory, tmp_path):
    assert str(refused(tmp_path / "no")) == (
        f"E_CHECKPOINT: {tmp_path / 'no'} is not a directory\n"
        "  give the directory that holds config.json and model.safetensors"
    )
    (directory / "config.json").write_text('{"model_type": "t5"}')
    assert str(refused(directory)) == (
        f"E_CHECKPOINT: {directory / 'config.json'} has model_type 't5', which cannot be imported\n"
        f"  families: {', '.join(FAMILIES)}, timm"
    )
    os.remove(directory / "model.safetensors")
    assert refused(directory).message == f"{directory} holds no weights"


def test_networks_that_cannot_be_built_are_refused_before_anything_is_allocated(directory):
    path = directory / "config.json"
    config = json.loads(path.read_text())
    start = f"{path} describes a network that cannot be built: "
    for key, value in {"n_layer": 10**9, "vocab_size": 10**30, "n_inner": 10**12}.items():
        path.write_text(json.dumps(config | {key: value}))
        assert refused(directory).message.startswith(start), key
    path.write_text(json.dumps(config | {"n_head": 3}))
    assert str(refused(directory)).startswith(
        f"E_CHECKPOINT: {start}heads=3 does not divide the model width D=4\n"
    )
    for value in ("1e999", "NaN", "-1", "1" + "0" * 400, "true", "null"):
        changed = json.dumps(config | {"layer_norm_epsilon": 0.5}).replace("0.5", value)
        path.write_text(changed)
        assert refused(directory).hints[0].startswith("layer_norm_epsilon: expected a number above 0, got ")


def test_pickles_of_other_tensors_are_refused(directory):
    os.remove(directory / "model.safetensors")
    path = directory / "pytorch_model.bin"
    torch.save({"wte.weight": torch.eye(3).to_sparse()}, path)
    assert refused(directory).message == (
        f"{path} holds 'wte.weight' as a sparse, quantized or empty tensor, expected a dense one"
    )


def test_arrays_share_no_memory(directory):
    _, weights = iso.import_checkpoint(directory)
    weights["block0.attn.q_proj.bias"][:] = 7
    assert not (weights["block0.attn.k_proj.bias"] == 7).any()
    assert all(array.flags.writeable and array.flags.c_contiguous for array in weights.values())
