"""Models on the hub: what is asked of its client, and what is said when there is no network."""

import fnmatch
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.numpy import load_file

import isomorph as iso
from isomorph.checkpoints.hub import local_directory

huggingface_hub = pytest.importorskip("huggingface_hub")

SIZES = {"vocab_size": 7, "n_positions": 5, "n_embd": 4, "n_layer": 1, "n_head": 2}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL = [
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "tokenizer.json",
    "modules.json",
    "1_Pooling/config.json",
]


@pytest.fixture
def directory(published):
    return published("GPT2LMHeadModel", transformers.GPT2Config(**SIZES))[0]


@pytest.fixture
def calls(directory, tmp_path, monkeypatch):
    """A client that serves ``directory`` as the hub's does, and the list of what it was asked."""
    asked = []
    cache = tmp_path / "models--owner--name"
    snapshot = cache / "snapshots" / COMMIT

    def snapshot_download(name, *, revision, allow_patterns, etag_timeout):
        asked.append((name, revision, allow_patterns))
        assert etag_timeout == 5
        for path in directory.rglob("*"):
            file = path.relative_to(directory)
            if path.is_file() and any(fnmatch.fnmatch(str(file), pattern) for pattern in allow_patterns):
                blob = cache / "blobs" / str(file).replace("/", "-")
                blob.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, blob)
                link = snapshot / file
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.is_symlink():
                    os.symlink(os.path.relpath(blob, link.parent), link)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def same(one, other) -> bool:
    return list(one) == list(other) and all(one[path].tobytes() == other[path].tobytes() for path in one)


def test_one_file_of_weights(directory, calls):
    for name in ("rust_model.ot", "consolidated.safetensors", "pytorch_model.bin"):  # the same again
        (directory / name).write_bytes(b"...")
    (directory / "onnx").mkdir()
    (directory / "onnx" / "model.safetensors").write_bytes(b"...")
    plan, weights = iso.import_checkpoint("hf:owner/name")
    assert calls == [("owner/name", None, [*SMALL, "model.safetensors", "model.safetensors.index.json"])]
    for name in ("pytorch_model.bin", "onnx/model.safetensors"):
        (directory / name).unlink()
    again, found = iso.import_checkpoint(directory)
    assert again == plan and same(found, weights)
    snapshot = Path(local_directory("hf:owner/name"))
    assert sorted(path.name for path in snapshot.iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors",
    ]  # fmt: skip


def test_shards_are_those_of_the_index_and_of_the_first_answers_commit(directory, calls):
    plan, weights = iso.import_checkpoint(directory)
    size = (directory / "model.safetensors").stat().st_size
    for file in directory.iterdir():
        file.unlink()
    iso.export_checkpoint(directory, plan, weights, max_shard_bytes=size // 2)
    parts = sorted(path.name for path in directory.glob("model-*.safetensors"))
    assert len(parts) > 1
    (directory / "other-00001-of-00001.safetensors").write_bytes(b"...")
    again, found = iso.import_checkpoint("hf:owner/name@v1.0")
    assert again == plan and same(found, weights)
    assert calls[1:] == [("owner/name", COMMIT, parts)]
    assert calls[0][1] == "v1.0"


@pytest.mark.parametrize("sharded", [False, True])
def test_pickles_are_asked_for_when_there_is_nothing_else(directory, calls, sharded):
    plan, weights = iso.import_checkpoint(directory)
    arrays = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    file = "pytorch_model-1[a].bin" if sharded else "pytorch_model.bin"  # no pattern, whatever it looks like
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, directory / file)
    if sharded:
        index = {"weight_map": dict.fromkeys(arrays, file)}
        (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    again, found = iso.import_checkpoint("hf:owner/name")
    assert again == plan and same(found, weights)
    asked = [patterns for _, _, patterns in calls[1:]]
    assert asked[0] == ["pytorch_model.bin", "pytorch_model.bin.index.json"]
    assert asked[1:] == ([["pytorch_model-1[[]a].bin"]] if sharded else [])


def test_an_index_on_the_hub_cannot_lead_out(directory, calls):
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}')
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint("hf:owner/name")
    assert error.value.message.endswith("names the file '../x.safetensors'")
    assert len(calls) == 1


def test_no_weights_at_all(directory, calls):
    (directory / "model.safetensors").unlink()
    with pytest.raises(iso.IsomorphError, match="holds no weights"):
        iso.import_checkpoint("hf:owner/name")


@pytest.mark.parametrize(
    "source",
    [
        "hf:", "hf:gpt2", "hf:a/b/c", "hf:/b", "hf:a/", "hf:../b", "hf:a/..", "hf:a/b--c", "hf:a/b@", "hf:a/b@-x",
        "hf:a/b@../c", "hf:a b/c", "hf:a/b\nc", "hf:-a/b", "hf:a/" + "b" * 97, "hf:https://huggingface.co/a/b",
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused_before_anybody_is_asked(source, calls):
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(source)
    assert str(error.value) == (
        f"E_ARGUMENT: {source if len(source) > 400 else repr(source)} names no model on the hub\n"
        "  expected hf:owner/name or hf:owner/name@revision, as in hf:openai-community/gpt2"
    )
    assert calls == []


def test_a_model_that_the_hub_does_not_have(monkeypatch):
    class RepositoryNotFoundError(Exception):
        pass

    def snapshot_download(name, **options):
        raise RepositoryNotFoundError("\n401 Client Error.\nmore")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint("hf:owner/name@main")
    assert str(error.value) == (
        "E_CHECKPOINT: the hub does not give owner/name@main: RepositoryNotFoundError: '401 Client Error.'\n"
        "  check the name; a private model needs a login: hf auth login"
    )


def test_without_the_client_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint("hf:owner/name")
    assert str(error.value) == (
        "E_BACKEND: a model on the hub is loaded by huggingface_hub, which is not installed\n"
        '  pip install "isomorph[hub]"'
    )


def test_offline_it_says_so_at_once(tmp_path):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty")}
    command = [sys.executable, "-c", "from isomorph.cli.main import main; main()"]
    command += ["import", "hf:owner/name", "-o", str(tmp_path / "m")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "E_CHECKPOINT: HF_HUB_OFFLINE is set, and the local cache has not all of owner/name\n"
        "  where there is a network: hf download owner/name --local-dir DIR; then import DIR\n"
    )
    assert not (tmp_path / "m").exists()


def test_a_hub_that_cannot_be_reached(tmp_path):
    """Nobody listens on port 9 of this machine."""
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "empty")}
    environment.pop("HF_HUB_OFFLINE", None)
    code = "import isomorph; isomorph.import_checkpoint('hf:owner/name')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.splitlines()[-2:] == [
        "isomorph.errors.IsomorphError: E_CHECKPOINT: the hub cannot be reached, "
        "and the local cache has not all of owner/name",
        "  where there is a network: hf download owner/name --local-dir DIR; then import DIR",
    ]
