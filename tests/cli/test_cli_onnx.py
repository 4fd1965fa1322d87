"""``export --to onnx``."""

import json

import numpy as np
import pytest

import isomorph as iso

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

TEXT = """
ids = input("B", "T", dtype="int64")
embedding(5, 4, name="words")
pos_embed(6)
h = linear(4)
scores = linear(5, bias=False, tie={"weight": "words.weight"})
output(scores=("B", "T", 5), h=("B", "T", 4))
"""


@pytest.fixture
def model(tmp_path):
    plan = iso.resolve(TEXT)
    path = tmp_path / "model.safetensors"
    iso.save(path, plan, iso.initial_weights(plan, seed=3))
    return path


def test_it_is_written_compared_and_runs(isomorph, model, tmp_path):
    out = tmp_path / "deep" / "out"
    status, text, err = isomorph("export", model, "--to", "onnx", "-o", out)
    first, *compared = text.splitlines()
    assert (status, err) == (0, "")
    assert first == (
        f"{out / 'model.onnx'}: ids [B, T] int64 -> scores [B, T, 5] float32, h [B, T, 4] float32"
    )
    assert [line.rpartition(" at ")[2] for line in compared] == ["B=2, T=5", "B=1, T=1"]
    assert all(line.startswith("onnxruntime against the reference: difference ") for line in compared)
    plan, weights = iso.load(model)
    ids = np.array([[1, 4, 0]])
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    found = session.run(["h", "scores"], {"ids": ids})
    expected = iso.reference.build(plan, weights)(ids)
    np.testing.assert_allclose(found[0], expected["h"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[1], expected["scores"], rtol=0, atol=1e-5)
    assert isomorph("export", model, "--to", "onnx", "-o", out, "--quiet") == (0, "", "")


def test_scripts_get_json(isomorph, model, tmp_path):
    out = tmp_path / "out"
    found = json.loads(isomorph("export", model, "--to", "onnx", "-o", out, "--json").out)
    compared = found.pop("comparisons")
    assert found == {
        "directory": str(out),
        "to": "onnx",
        "model": str(out / "model.onnx"),
        "data": None,
        "inputs": {"ids": "[B, T] int64"},
        "outputs": {"scores": "[B, T, 5] float32", "h": "[B, T, 4] float32"},
    }
    assert [sorted(one) for one in compared] == [["bound", "difference", "sizes"]] * 2
    assert all(0 < one["difference"] <= one["bound"] for one in compared)


def test_without_memory_for_the_reference_it_says_so(isomorph, model, tmp_path, monkeypatch):
    from isomorph.display import memory

    # 64 parameters: 5 * 4 words, 6 * 4 positions, 4 * 4 + 4; each twice 4 bytes, and one after the other twice 8.
    monkeypatch.setattr(memory, "available_bytes", lambda: 64 * 2 * 4 + 24 * 2 * 8 - 1)
    text = isomorph("export", model, "--to", "onnx", "-o", tmp_path / "out").out
    assert text.splitlines()[1:] == [
        "not compared with the reference, for which 0.0 GiB of memory are needed"
    ]
    monkeypatch.setattr(memory, "available_bytes", lambda: 64 * 2 * 4 + 24 * 2 * 8)
    assert len(isomorph("export", model, "--to", "onnx", "-o", tmp_path / "out").out.splitlines()) == 3


def test_what_cannot_be_written(isomorph, model, tmp_path):
    (tmp_path / "file").touch()
    assert isomorph("export", model, "--to", "onnx", "-o", tmp_path / "file") == (
        2,
        "",
        f"E_OUTPUT: {tmp_path / 'file'} is no directory, and several files are to be written\n"
        "  choose a directory, which is made where there is none\n",
    )
    plan = iso.resolve("linear(2)", input=("B", 3), dtype="float64")
    iso.save(model, plan, iso.initial_weights(plan))
    status, _, err = isomorph("export", model, "--to", "onnx", "-o", tmp_path / "out")
    assert (status, err.splitlines()[0].partition(":")[0]) == (2, "E_ARGUMENT")
