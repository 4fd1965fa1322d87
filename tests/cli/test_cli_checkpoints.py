"""``import`` and ``export``: from a published model to a definition and back."""

import json
import os

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
        f"E_OUTPUT: -o {tmp_path} is where the model itself is\n  choose another directory\n"
    )
    block.write_text('x = input("B", 3)\nlinear(2)\n')
    assert isomorph("export", block, "-o", tmp_path / "x").err == (
        f"E_ARGUMENT: {block} is a definition, which has no weights to export\n"
        "  give a saved model: a .safetensors file or the directory of a run\n"
    )
    assert isomorph("export", model, "-o", tmp_path / "out").status == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert isomorph("import", tmp_path / "out", "-o", tmp_path / "out").err == (
        f"E_OUTPUT: {tmp_path / 'out' / 'model.safetensors'} is read, and an input is never overwritten\n"
        "  choose another name\n"
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
        f"E_OUTPUT: {back / 'tokenizer.json'} is there already, and is not this model's\n"
        "  a model and its tokenizer.json lie side by side: choose another directory, or remove it, or replace it: "
        "--force\n"
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


def publish(directory, tokenizer=None, seed=0, text=TEXT):
    plan = iso.resolve(text)
    iso.export_checkpoint(directory, plan, iso.initial_weights(plan, seed=seed), tokenizer=tokenizer)
    return directory


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()} if directory.exists() else {}


def refused(isomorph, directory, *arguments):
    """The command's message; nothing in the directory has changed."""
    before = files(directory)
    result = isomorph("import", *arguments)
    assert result.status == 2
    assert files(directory) == before
    return result.err


def test_no_model_gets_another_ones_tokenizer(isomorph, tmp_path):
    with_one = publish(tmp_path / "a", b'{"version": "1.0"}')
    without = publish(tmp_path / "b")
    out = tmp_path / "out"
    assert isomorph("import", with_one, "-o", out / "a.safetensors").status == 0
    side = "a model and its tokenizer.json lie side by side: choose another directory"
    assert refused(isomorph, out, without, "-o", out / "b.safetensors") == (
        f"E_OUTPUT: {out / 'tokenizer.json'} is there already, and this model has none of its own\n"
        f"  {side}, or remove it\n"
    )
    assert isomorph("import", with_one, "-o", out / "c.safetensors").status == 0  # the same one
    other = tmp_path / "other"
    assert isomorph("import", without, "-o", other / "b.safetensors").status == 0
    assert refused(isomorph, other, with_one, "-o", other / "a.safetensors") == (
        f"E_OUTPUT: {other / 'tokenizer.json'} would be taken for that of b.safetensors too\n"
        f"  {side}, as in -o NAME/\n"
    )
    assert isomorph("import", with_one, "-o", other / "a/").status == 0
    assert (other / "a" / "tokenizer.json").exists()


def test_an_edited_definition_is_kept_unless_it_is_forced(isomorph, tmp_path):
    small = publish(tmp_path / "small")
    large = publish(tmp_path / "large", text=TEXT.replace("pos_embed(6)", "pos_embed(7)"))
    out = tmp_path / "out"
    model, definition = out / "m.safetensors", out / "m.net"
    assert isomorph("import", small, "-o", model).status == 0
    first = definition.read_text()
    assert "pos_embed(6" in first
    assert isomorph("import", small, "-o", model).status == 0  # as it was written
    assert isomorph("import", large, "-o", model).status == 0  # that of the model beside it
    assert "pos_embed(7" in definition.read_text()
    edited = definition.read_text() + "# my own words\n"
    definition.write_text(edited)
    message = (
        f"E_OUTPUT: {definition} is there already, and is no definition of this model or of the one beside it as "
        "it is written here, or was changed since\n"
        "  choose another name, or replace it: --force, in Python force=True\n"
    )
    assert refused(isomorph, out, large, "-o", model) == message
    assert refused(isomorph, out, small, "-o", model) == message
    model.unlink()
    assert refused(isomorph, out, large, "-o", model) == message
    model.write_bytes(b"")  # which holds nothing that could be lost
    assert refused(isomorph, out, large, "-o", model) == message
    definition.write_text(first)  # that of what is imported, whatever lies beside it
    assert isomorph("import", small, "-o", model).status == 0
    model.write_bytes(b"damaged, or somebody else's")
    assert refused(isomorph, out, small, "-o", model) == (
        f"E_OUTPUT: {model} is there already, and is no model as it is written here, or was changed since\n"
        "  choose another name, or replace it: --force, in Python force=True\n"
    )
    definition.write_text(edited)
    assert isomorph("import", small, "-o", model, "--force").status == 0
    assert definition.read_text() == first
    assert iso.load(model)[0] == iso.resolve(first)


def visible(directory):
    return sorted(name for name in files(directory) if not name.startswith("."))


def test_a_definition_is_never_that_of_another_model(isomorph, tmp_path, monkeypatch):
    """Every write that fails is a moment at which a process might be killed."""
    from isomorph.writing.atomic import Staged

    small = publish(tmp_path / "small")
    large = publish(tmp_path / "large", text=TEXT.replace("pos_embed(6)", "pos_embed(7)"))
    out = tmp_path / "out"
    assert isomorph("import", small, "-o", out).status == 0
    seen = []
    real = Staged.publish

    def publish_watched(file):
        if file.target.name == "model.safetensors":
            seen.append(visible(out))
            real(file)
            seen.append(visible(out))
        else:
            real(file)

    monkeypatch.setattr(Staged, "publish", publish_watched)
    assert isomorph("import", large, "-o", out).status == 0
    assert seen == [["model.safetensors"], ["model.safetensors"]]
    assert isomorph("import", large, "-o", out).status == 0  # the same definition stays
    assert seen[2] == ["model.net", "model.safetensors"]

    def full(*given):
        raise OSError(28, "No space left on device")

    before = files(out)
    for place, name in ((Staged, "publish"), (os, "fsync")):
        monkeypatch.setattr(place, name, full)
        assert isomorph("import", small, "-o", out).err.endswith(
            ": No space left on device\n  there must be room for a second copy of the file: the old one stays until "
            "the new one is whole\n"
        )
        monkeypatch.undo()
        assert files(out) == before


def test_where_nothing_can_be_written(isomorph, tmp_path):
    source = publish(tmp_path / "source")
    for name in ("a" * 300, "a" * 5000, "loop"):
        if name == "loop":
            (tmp_path / name).symlink_to(tmp_path / name)
        result = isomorph("import", source, "-o", tmp_path / name)
        assert (result.status, result.err.split(":")[0]) == (2, "E_OUTPUT"), name[:9]
        model = tmp_path / "model.safetensors"
        iso.save(model, iso.resolve(TEXT), iso.initial_weights(iso.resolve(TEXT)))
        result = isomorph("export", model, "-o", tmp_path / name)
        assert (result.status, result.err.split(":")[0]) == (2, "E_OUTPUT"), name[:9]
        model.unlink()
    (tmp_path / "out" / "model.net").mkdir(parents=True)
    assert isomorph("import", source, "-o", tmp_path / "out").err == (
        f"E_OUTPUT: {tmp_path / 'out' / 'model.net'} is a directory; expected the name of a file for the definition of "
        "this model or of the one beside it\n  choose another name\n"
    )


def test_a_framework_is_for_source_code_alone(isomorph, tmp_path):
    model = tmp_path / "model.safetensors"
    plan = iso.resolve(TEXT)
    iso.save(model, plan, iso.initial_weights(plan))
    for to in ("hf", "onnx"):
        assert isomorph("export", model, "--to", to, "--framework", "nnx", "-o", tmp_path / "out").err == (
            f"E_ARGUMENT: --framework 'nnx' says what source code is for, and --to {to} writes none\n"
            "  leave it out, or give --to python\n"
        )
        assert not (tmp_path / "out").exists()
