"""What an export leaves in a directory: parts, an index, notes; and what a killed one does not leave."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file

import isomorph as iso
from isomorph.checkpoints import exporting

TEXT = """
ids = input("B", "T", dtype="int64")
embedding(5, 4, name="words")
pos_embed(6)
transformer_block(2, causal=True, activation="gelu_tanh")
layer_norm()
linear(5, bias=False, tie={"weight": "words.weight"})
"""
IDS = np.array([[1, 4, 0]])


def make(seed=0, text=TEXT):
    plan = iso.resolve(text)
    return plan, iso.initial_weights(plan, seed=seed)


def logits(directory):
    plan, weights = iso.import_checkpoint(directory)
    return iso.reference.build(plan, weights)(IDS)


def computed(plan, weights):
    return iso.reference.build(plan, weights)(IDS)


def test_parts_of_at_most_so_many_bytes(tmp_path):
    plan, weights = make()
    iso.export_checkpoint(tmp_path, plan, weights, max_shard_bytes=200)
    names = sorted(os.listdir(tmp_path))
    parts = [name for name in names if name.startswith("model-")]
    count = len(parts)
    assert names == ["config.json", *[f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)],
                     "model.safetensors.index.json"]  # fmt: skip
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    arrays = {name: load_file(tmp_path / name) for name in parts}
    assert index["weight_map"] == {key: name for name in parts for key in arrays[name]}
    assert index["metadata"] == {"total_size": 296 * 4}
    for held in arrays.values():
        # 4 x 16 numbers of the inner width take 256 bytes, and stand alone
        assert sum(array.nbytes for array in held.values()) <= 200 or len(held) == 1
    model, information = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(information.values()), information
    with torch.no_grad():
        found = model.eval()(torch.from_numpy(IDS)).logits.numpy()
    np.testing.assert_allclose(found, computed(plan, weights), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(logits(tmp_path), computed(plan, weights))


def test_parts_of_an_earlier_export_are_gone_and_other_files_stay(tmp_path):
    for name in ("README.md", "model-notes.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    kept = set(os.listdir(tmp_path))
    plan, weights = make()
    for most, seed in [(200, 1), (500, 2), (10**6, 3), (300, 4)]:
        weights = iso.initial_weights(plan, seed=seed)
        iso.export_checkpoint(tmp_path, plan, weights, max_shard_bytes=most)
        np.testing.assert_array_equal(logits(tmp_path), computed(plan, weights))
        index = tmp_path / "model.safetensors.index.json"
        parts = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else set()
        expected = parts | {index.name} if parts else {"model.safetensors"}
        assert set(os.listdir(tmp_path)) == kept | {"config.json"} | expected


def test_one_file_is_read_rather_than_an_index_beside_it(tmp_path):
    """As the peer library does: a directory that somebody else left with both."""
    plan, weights = make(1)
    iso.export_checkpoint(tmp_path / "a", plan, weights, max_shard_bytes=200)
    iso.export_checkpoint(tmp_path / "b", *make(2))
    os.replace(tmp_path / "b" / "model.safetensors", tmp_path / "a" / "model.safetensors")
    np.testing.assert_array_equal(logits(tmp_path / "a"), computed(*make(2)))
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "a").eval()
    with torch.no_grad():
        found = model(torch.from_numpy(IDS)).logits.numpy()
    np.testing.assert_allclose(found, computed(*make(2)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "5GB"])
def test_what_is_no_size(tmp_path, most):
    with pytest.raises(iso.IsomorphError) as error:
        iso.export_checkpoint(tmp_path, *make(), max_shard_bytes=most)
    assert str(error.value) == f"E_ARGUMENT: max_shard_bytes must be an integer from 1, got {most!r}"


OVERWRITE = """
    import os, shutil, signal, sys
    import isomorph as iso
    from isomorph.checkpoints import exporting

    directory, steps = sys.argv[1], int(sys.argv[2])
    plan = iso.resolve(open(sys.argv[3]).read())
    count = 0

    def killed_at(call):
        def step(*given, **named):
            global count
            count += 1
            if count > steps:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)
        return step

    for module, name in [
        (exporting, "write_safetensors"), (exporting, "atomic_write"), (exporting, "sync_directory"),
        (os, "replace"), (exporting.Path, "unlink"), (shutil, "rmtree"),
    ]:
        setattr(module, name, killed_at(getattr(module, name)))
    iso.export_checkpoint(directory, plan, iso.initial_weights(plan, seed=2), max_shard_bytes=600)
    print("done")
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are not killed like this here")
def test_killed_at_any_step_the_directory_is_old_or_new_or_does_not_load(tmp_path):
    definition = tmp_path / "text.net"
    definition.write_text(TEXT)
    old, new = computed(*make(1)), computed(*make(2))
    found = []
    for steps in range(0, 200, 4):
        directory = tmp_path / str(steps)
        iso.export_checkpoint(directory, *make(1), max_shard_bytes=300)
        code = textwrap.dedent(OVERWRITE)
        command = [sys.executable, "-c", code, str(directory), str(steps), str(definition)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if (directory / "config.json").exists():
            value = logits(directory)
            found.append("old" if np.array_equal(value, old) else "new")
            np.testing.assert_array_equal(value, old if found[-1] == "old" else new)
        else:
            found.append("none")  # nobody loads it
        if done.stdout:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert found == sorted(found, key=["old", "none", "new"].index)  # old, then not to be loaded, then new
    assert set(found) == {"old", "none", "new"}
    iso.export_checkpoint(directory, *make(3))  # and what was left behind is in nobody's way
    np.testing.assert_array_equal(logits(directory), computed(*make(3)))


def test_a_full_disk_leaves_the_old_export(tmp_path, monkeypatch):
    iso.export_checkpoint(tmp_path, *make(1))
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "atomic_write", full)
    with pytest.raises(iso.IsomorphError) as error:
        iso.export_checkpoint(tmp_path, *make(2))
    assert str(error.value) == (
        f"E_OUTPUT: cannot write {tmp_path}: No space left on device\n"
        "  there must be room for a second copy of the file: the old one stays until the new one is whole"
    )
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


def test_notes_that_fit_are_written_and_others_are_left_out(tmp_path):
    def exported(notes):
        iso.export_checkpoint(tmp_path, *make(), notes=notes)
        config = json.loads((tmp_path / "config.json").read_text())
        return [config[f"{kind}_token_id"] for kind in ("bos", "eos", "pad")]

    assert exported({"bos_token_id": 0, "eos_token_id": [1, 4], "pad_token_id": 4}) == [0, [1, 4], 4]
    assert exported({}) == exported(None) == [None] * 3
    # five ids: 5 is none; only an end may be several
    assert exported({"bos_token_id": [1], "eos_token_id": [1, 5], "pad_token_id": -1}) == [None] * 3
    assert exported({"bos_token_id": True, "eos_token_id": [], "pad_token_id": "0"}) == [None] * 3


def test_names_of_classes_return(published, tmp_path):
    names = {0: "cat", 1: "dog", 2: "neither"}
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=4, patch_size=2,
        id2label=names, label2id={name: i for i, name in names.items()},
    )  # fmt: skip
    from isomorph.checkpoints.notes import notes_of

    directory, _ = published("ViTForImageClassification", config)
    notes = notes_of(json.loads((directory / "config.json").read_text()))
    assert notes == {"id2label": {"0": "cat", "1": "dog", "2": "neither"}}
    plan, weights = iso.import_checkpoint(directory)
    iso.export_checkpoint(tmp_path / "named", plan, weights, notes=notes)
    assert transformers.AutoConfig.from_pretrained(tmp_path / "named").id2label == names
    iso.export_checkpoint(tmp_path / "unnamed", plan, weights, notes={"id2label": {"0": "cat"}})
    made_up = transformers.AutoConfig.from_pretrained(tmp_path / "unnamed").id2label
    assert made_up == {i: f"LABEL_{i}" for i in range(3)}
    assert notes_of({"id2label": {str(i): f"LABEL_{i}" for i in range(3)}, "eos_token_id": "</s>"}) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"notes": 5}, "notes must be a dictionary or None, got 5"),
        ({"notes": ["eos_token_id"]}, "notes must be a dictionary or None, got ['eos_token_id']"),
        ({"tokenizer": "{}"}, "tokenizer must be a file's bytes or None, got '{}'"),
    ],
)
def test_arguments_of_another_kind(tmp_path, arguments, message):
    with pytest.raises(iso.IsomorphError) as error:
        iso.export_checkpoint(tmp_path / "out", *make(), **arguments)
    assert str(error.value) == f"E_ARGUMENT: {message}"
    assert not (tmp_path / "out").exists()


def kept(directory, *hints, tokenizer=None):
    """The export is refused, and every file stays as it is."""
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(iso.IsomorphError) as error:
        iso.export_checkpoint(directory, *make(2), tokenizer=tokenizer)
    assert error.value.code == "E_OUTPUT"
    assert error.value.message == (
        f"{directory} holds files of a model that was not exported here, which a loader would read"
    )
    beside = any(exporting._FOREIGN.fullmatch(name) for name in hints)
    mend = "" if beside else "; or replace them: --force, in Python force=True"
    assert error.value.hints == (*hints, f"choose another directory, or move them away{mend}")
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_another_librarys_model_is_not_replaced(published, tmp_path):
    config = transformers.GPT2Config(vocab_size=7, n_positions=5, n_embd=4, n_layer=1, n_head=2)
    directory, model = published("GPT2LMHeadModel", config)
    kept(directory, "config.json", "generation_config.json", "model.safetensors")
    (directory / "generation_config.json").unlink()
    kept(directory, "config.json", "model.safetensors")
    model.save_pretrained(tmp_path / "parts", max_shard_size=400)
    names = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert "model.safetensors.index.json" in names
    kept(tmp_path / "parts", *names)
    (directory / "model.safetensors").write_bytes(b"cut")
    kept(directory, "config.json", "model.safetensors")


def test_a_model_that_was_saved_here_is_not_replaced_by_its_export(tmp_path):
    iso.save(tmp_path / "model.safetensors", *make(1))
    kept(tmp_path, "model.safetensors")


@pytest.mark.parametrize(
    "name",
    ["generation_config.json", "pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "adapter_config.json",
     "pytorch_model.bin.index.json", "adapter_model.safetensors", "tf_model.h5", "flax_model.msgpack"],
)  # fmt: skip
def test_what_a_loader_would_read_beside_an_export_is_listed(tmp_path, name):
    iso.export_checkpoint(tmp_path, *make(1))
    (tmp_path / name).write_text("{}")
    kept(tmp_path, name)
    (tmp_path / name).unlink()
    iso.export_checkpoint(tmp_path, *make(2))
    np.testing.assert_array_equal(logits(tmp_path), computed(*make(2)))


def test_without_weights_of_an_export_nothing_is_taken_for_one(tmp_path):
    for name in ("config.json", "modules.json", "tokenizer.json"):
        (tmp_path / name).write_text("[]")
    kept(tmp_path, "config.json", "modules.json")
    kept(tmp_path, "config.json", "modules.json", "tokenizer.json", tokenizer=b"{}")
    (tmp_path / "config.json").unlink()
    kept(tmp_path, "modules.json")
    (tmp_path / "modules.json").unlink()
    iso.export_checkpoint(tmp_path, *make(), tokenizer=b"[]")  # the same tokenizer
    iso.export_checkpoint(tmp_path, *make(), tokenizer=b"{}")  # an export's own may change
    assert (tmp_path / "tokenizer.json").read_bytes() == b"{}"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such files here")
def test_a_pipe_is_no_export(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(iso.IsomorphError) as error:
        iso.export_checkpoint(tmp_path, *make())
    assert error.value.hints[0] == "model.safetensors"
