"""``import`` and ``export``: from a published model to a definition and back."""

import json

import numpy as np

import isomorph as iso
from isomorph.weights.file import load_notes

TEXT = """
ids = input("B", "T", dtype="int64")
embedding(5, 4, name="words")
pos_embed(6)
transformer_block(2, causal=True, activation="gelu_tanh")
layer_norm()
linear(5, bias=False, tie={"weight": "words.weight"})
"""


def test_there_and_back(isomorph, tmp_path):
    plan = iso.resolve(TEXT)
    weights = iso.initial_weights(plan, seed=3)
    model, published = tmp_path / "model.safetensors", tmp_path / "published"
    iso.save(model, plan, weights)
    assert isomorph("export", model, "--to", "hf", "-o", published) == (
        0, f'{published}: for transformers.GPT2LMHeadModel.from_pretrained("{published}")\n', ""
    )  # fmt: skip
    back = tmp_path / "back"
    result = isomorph("import", published, "-o", back)
    # 5 * 4 ids, 6 * 4 positions, 4 * 20 + 4 * 16 * 2 + 16 + 4 + 16 in the block, 8 in the last norm
    assert plan.parameter_count == 20 + 24 + 80 + 128 + 20 + 16 + 8
    assert result == (
        0,
        f"{back / 'model.safetensors'}: 296 parameters, float32; its definition is {back / 'model.net'}\n",
        "",
    )
    again, found = iso.load(back / "model.safetensors")
    assert again == iso.resolve_file(back / "model.net")
    ids = np.array([[1, 4, 0]])
    np.testing.assert_array_equal(
        iso.reference.build(again, found)(ids), iso.reference.build(plan, weights)(ids)
    )


def test_scripts_get_json(isomorph, tmp_path):
    plan = iso.resolve(TEXT)
    iso.save(tmp_path / "model.safetensors", plan, iso.initial_weights(plan))
    out = tmp_path / "out"
    result = isomorph("export", tmp_path / "model.safetensors", "-o", out, "--json")
    assert json.loads(result.out) == {"directory": str(out), "to": "hf", "architecture": "GPT2LMHeadModel"}
    model = tmp_path / "half.safetensors"
    result = isomorph("import", out, "-o", model, "--dtype", "float16", "--json")
    assert json.loads(result.out) == {
        "model": str(model), "definition": str(tmp_path / "half.net"), "dtype": "float16", "parameters": 296
    }  # fmt: skip
    assert isomorph("import", out, "-o", model, "--quiet") == (0, "", "")


def test_what_cannot_be_exported_or_imported(isomorph, tmp_path, block):
    plan = iso.resolve(TEXT)
    model = tmp_path / "model.safetensors"
    iso.save(model, plan, iso.initial_weights(plan))
    assert isomorph("export", model, "--to", "onnix", "-o", tmp_path / "x").err == (
        "E_ARGUMENT: there is no format 'onnix' to export to\n  did you mean onnx?\n"
    )
    assert isomorph("export", model, "-o", tmp_path).err == (
        f"E_ARGUMENT: -o {tmp_path} is where the model itself is\n  choose another directory\n"
    )
    block.write_text('x = input("B", 3)\nlinear(2)\n')
    assert isomorph("export", block, "-o", tmp_path / "x").err == (
        f"E_ARGUMENT: {block} is a definition, which has no weights to export\n"
        "  give a saved model: a .safetensors file or the directory of a run\n"
    )
    assert isomorph("export", model, "-o", tmp_path / "out").status == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert isomorph("import", tmp_path / "out", "-o", tmp_path / "out").err == (
        f"E_ARGUMENT: -o {tmp_path / 'out'} would replace {tmp_path / 'out' / 'model.safetensors'}, "
        "which is imported\n  choose another name\n"
    )
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert isomorph("import", tmp_path / "no", "-o", tmp_path / "y").status == 2
    assert isomorph("import", tmp_path / "out", "-o", tmp_path / "y", "--dtype", "int8").err == (
        "E_ARGUMENT: dtype must be one of float64, float32, bfloat16, float16, got 'int8'\n"
    )


def test_tokens_classes_and_the_tokenizer_travel_along(isomorph, tmp_path):
    plan = iso.resolve(TEXT)
    published, back, again = tmp_path / "published", tmp_path / "back", tmp_path / "again"
    iso.export_checkpoint(published, plan, iso.initial_weights(plan))
    config = json.loads((published / "config.json").read_text())
    assert config["eos_token_id"] is None
    ids = {"bos_token_id": 2, "eos_token_id": [3, 4], "pad_token_id": 0}
    (published / "config.json").write_text(json.dumps(config | ids))
    (published / "tokenizer.json").write_text('{"version": "1.0"}')
    result = isomorph("import", published, "-o", back, "--json")
    assert json.loads(result.out)["tokenizer"] == str(back / "tokenizer.json")
    assert (back / "tokenizer.json").read_text() == '{"version": "1.0"}'
    assert load_notes(back / "model.safetensors") == ids
    assert isomorph("export", back, "-o", again, "--quiet").status == 0
    assert (again / "tokenizer.json").read_text() == '{"version": "1.0"}'
    assert json.loads((again / "config.json").read_text()) == config | ids
    # The same once more is no conflict; another tokenizer is, before anything is written.
    assert isomorph("import", published, "-o", back, "--quiet").status == 0
    (published / "tokenizer.json").write_text('{"version": "2.0"}')
    before = (back / "model.safetensors").read_bytes()
    assert isomorph("import", published, "-o", back, "--dtype", "float16").err == (
        f"E_ARGUMENT: {back / 'tokenizer.json'} is there already, and is not this model's\n"
        "  a model and its tokenizer.json lie side by side: choose another directory, or remove it\n"
    )
    assert (back / "model.safetensors").read_bytes() == before


def test_a_tokenizer_that_is_none_is_refused(isomorph, tmp_path):
    plan = iso.resolve(TEXT)
    published = tmp_path / "published"
    iso.export_checkpoint(published, plan, iso.initial_weights(plan))
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    (published / "tokenizer.json").symlink_to(outside)
    assert isomorph("import", published, "-o", tmp_path / "m").err.startswith(
        f"E_CHECKPOINT: {published / 'tokenizer.json'} is a link that leads out of the directory"
    )
    (published / "tokenizer.json").unlink()
    (published / "tokenizer.json").mkdir()
    assert isomorph("import", published, "-o", tmp_path / "m").status == 2
    (published / "tokenizer.json").rmdir()
    (published / "tokenizer.json").write_bytes(b"\x80\x04.")
    result = isomorph("import", published, "-o", tmp_path / "m")
    assert result.err.startswith(f"E_CHECKPOINT: {published / 'tokenizer.json'} is no JSON: ")
    assert not (tmp_path / "m").exists()
