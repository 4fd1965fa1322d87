"""``convert``: files that each framework's users load with that framework's own tools."""

import json

import numpy as np
import pytest
from flax import nnx, traverse_util
from safetensors.flax import load_file

import isomorph as iso

TEXT = """
ids = input("B", "T", dtype="int64")
embedding(5, 4, name="wte")
transformer_block(2, layer_scale=True)
linear(5, bias=False, tie={"weight": "wte.weight"}, name="head")
"""
IDS = np.array([[1, 4, 0]])


@pytest.fixture
def saved(tmp_path):
    plan = iso.resolve(TEXT)
    weights = iso.initial_weights(plan, seed=3)
    iso.save(tmp_path / "model.safetensors", plan, weights)
    return tmp_path / "model.safetensors", plan, weights


def test_torch_loads_its_state_dictionary_strictly(isomorph, saved):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    path, plan, weights = saved
    result = isomorph("convert", path, "--to", "torch")
    target = path.with_name("model.torch.safetensors")
    # 18 parameters of the block, the table, and the table again under its tied name
    size = 4 * (plan.parameter_count + 5 * 4)
    assert result == (0, f"{target}: 20 arrays for torch, {size:,} bytes\n", "")
    model = iso.torch.build(plan, seed=9)
    model.load_state_dict(load_file(target))
    assert torch.equal(model(torch.from_numpy(IDS)), iso.torch.build(plan, weights)(torch.from_numpy(IDS)))


def test_linen_applies_the_unflattened_tree(isomorph, saved, tmp_path):
    path, plan, weights = saved
    result = isomorph(
        "convert", path.parent, "--to", "linen", "--out", tmp_path / "tree.safetensors", "--json"
    )
    found = json.loads(result.out)
    assert (found["to"], found["arrays"]) == ("linen", 19)
    flat = load_file(tmp_path / "tree.safetensors")
    assert flat["params.n1.ffn.up.kernel"].shape == (4, 16)
    variables = traverse_util.unflatten_dict(flat, sep=".")
    back = iso.linen.weights(plan, variables)
    assert all(np.array_equal(back[name], weights[name]) for name in weights)


def test_nnx_takes_the_unflattened_tree(isomorph, saved):
    path, plan, weights = saved
    assert isomorph("convert", path, "--to", "nnx", "--quiet") == (0, "", "")
    model = iso.nnx.build(plan, seed=9)
    flat = load_file(path.with_name("model.nnx.safetensors"))
    nnx.update(model, traverse_util.unflatten_dict(flat, sep="."))
    back = iso.nnx.weights(model)
    assert all(np.array_equal(back[name], weights[name]) for name in weights)


def test_bfloat16_keeps_its_bits(isomorph, tmp_path):
    plan = iso.resolve("linear(3)", input=("B", 2), dtype="bfloat16")
    weights = iso.initial_weights(plan)
    iso.save(tmp_path / "m.safetensors", plan, weights)
    assert isomorph("convert", tmp_path / "m.safetensors", "--to", "linen").status == 0
    flat = load_file(tmp_path / "m.linen.safetensors")
    back = iso.linen.weights(plan, traverse_util.unflatten_dict(flat, sep="."))
    assert all(back[name].tobytes() == weights[name].tobytes() for name in weights)


def test_what_cannot_be_converted(isomorph, saved, block):
    path, _, _ = saved
    assert isomorph("convert", path, "--to", "pytorch") == (
        2, "", "E_ARGUMENT: there is no framework 'pytorch' to convert to\n  did you mean torch?\n"
    )  # fmt: skip
    before = path.read_bytes()
    result = isomorph("convert", path, "--to", "nnx", "--out", path)
    assert result.err == (
        f"E_OUTPUT: {path} is read, and an input is never overwritten\n  choose another name\n"
    )
    assert path.read_bytes() == before
    block.write_text('x = input("B", 3)\nlinear(2)\n')
    assert isomorph("convert", block, "--to", "nnx").err == (
        f"E_ARGUMENT: {block} is a definition, which has no weights to convert\n"
        "  give a saved model: a .safetensors file or the directory of a run\n"
    )
    result = isomorph("convert", path, "--to", "nnx", "--out", path.parent / "no" / "m.safetensors")
    assert result.err.startswith("E_OUTPUT: cannot write ")
