"""``train --backend``: which one is taken, that both leave the same kind of files, and what is refused."""

import json

import numpy as np
import pytest

from isomorph.backends import available
from isomorph.cli.train import configuration
from isomorph.errors import IsomorphError


@pytest.fixture
def arguments(tmp_path):
    """A small network, its data, and settings; ``--out`` is left to the test."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((50, 3)), y=rng.integers(0, 2, 50))
    (tmp_path / "net.net").write_text('input("B", 3)\nlinear(2)\noutput("B", 2)\n')
    return [
        "train", tmp_path / "net.net", "--data", f"npz:{tmp_path}/data.npz", "--batch-size", 5,
        "--warmup", 2, "--steps", 4, "--checkpoint-every", 2, "--quiet",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("installed", "taken"), [(("torch", "nnx", "linen"), "torch"), (("nnx", "linen"), "nnx")]
)
def test_torch_where_it_is_installed_and_nnx_elsewhere(monkeypatch, tmp_path, installed, taken):
    monkeypatch.setattr(available, "available", lambda: dict.fromkeys(installed))
    assert configuration({"data": "digits", "backend": None}, tmp_path, False).backend == taken
    assert configuration({"data": "digits", "backend": "nnx"}, tmp_path, False).backend == "nnx"


def test_without_either_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(available, "available", lambda: {"reference": None})
    with pytest.raises(IsomorphError) as error:
        configuration({"data": "digits"}, tmp_path, False)
    assert str(error.value) == (
        "E_BACKEND: training needs PyTorch or Flax, and neither is installed\n"
        '  pip install "isomorph[torch]", or pip install "isomorph[flax]"'
    )


def test_nnx_without_optax_says_what_to_install(monkeypatch):
    pytest.importorskip("flax")
    find_spec = available.find_spec
    monkeypatch.setattr(available, "find_spec", lambda name: None if name == "optax" else find_spec(name))
    with pytest.raises(IsomorphError) as error:
        available.load_trainer("nnx")
    assert str(error.value) == (
        'E_BACKEND: training with nnx needs optax, which is not installed\n  pip install "isomorph[flax]"'
    )


def test_a_backend_that_does_not_train_is_refused(isomorph, arguments, tmp_path):
    result = isomorph(*arguments, "--out", tmp_path / "run", "--backend", "reference")
    assert (result.status, result.err) == (
        2, "E_BACKEND: the backend 'reference' does not train\n  use torch or nnx\n",
    )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_runs_of_both_backends_leave_comparable_files(isomorph, arguments, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("optax")
    numpy = pytest.importorskip("safetensors.numpy")
    found = {}
    for backend in ("torch", "nnx"):
        run = tmp_path / backend
        assert isomorph(*arguments, "--out", run, "--backend", backend).status == 0
        assert json.loads((run / "config.json").read_text())["training"]["backend"] == backend
        found[backend] = sorted(path.name for path in run.iterdir())
    assert found["torch"] == found["nnx"]
    for name in ("model.safetensors", "checkpoint-00000002.safetensors", "checkpoint-00000004.safetensors"):
        one, other = (numpy.load_file(tmp_path / backend / name) for backend in found)
        assert list(one) == list(other)
        for path, array in one.items():
            assert (array.dtype, array.shape) == (other[path].dtype, other[path].shape)
            np.testing.assert_allclose(other[path], array, rtol=1e-4, atol=1e-6)


def test_a_run_is_resumed_with_its_own_backend(isomorph, arguments, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("optax")
    assert isomorph(*arguments, "--out", tmp_path / "run", "--backend", "nnx").status == 0
    assert isomorph(*arguments, "--out", tmp_path / "run", "--resume").status == 0  # not torch, the default
    other = isomorph(*arguments, "--out", tmp_path / "run", "--resume", "--backend", "torch")
    assert (other.status, other.err.splitlines()[1]) == (2, "  backend: 'nnx' there, 'torch' here")
