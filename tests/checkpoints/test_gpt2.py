"""GPT-2 checkpoints beside transformers."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import isomorph as iso

IDS = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
SIZES = {
    "vocab_size": 13, "n_positions": 9, "n_embd": 15, "n_layer": 2, "n_head": 5, "n_inner": 22, "layer_norm_epsilon": 3e-3,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("GPT2LMHeadModel", {}),
        ("GPT2LMHeadModel", {"n_inner": None, "activation_function": "gelu"}),
        ("GPT2LMHeadModel", {"tie_word_embeddings": False, "n_inner": 30, "reorder_and_upcast_attn": True}),
        ("GPT2Model", {"activation_function": "relu"}),
    ],
)
def test_computes_what_transformers_computes_and_returns(published, agrees, returns, name, options):
    directory, model = published(name, transformers.GPT2Config(**{**SIZES, **options}))
    key = "logits" if name == "GPT2LMHeadModel" else "last_hidden_state"
    with torch.no_grad():
        expected = model(torch.from_numpy(IDS))[key].numpy()
    agrees(directory, {"": expected}, IDS)
    returns(directory, model, key, torch.from_numpy(IDS))


def test_the_definition_is_folded_and_commented(published):
    directory, _ = published("GPT2LMHeadModel", transformers.GPT2Config(**{**SIZES, "n_inner": None}))
    plan, _ = iso.import_checkpoint(directory)
    assert plan.definition == (
        "# GPT-2: 2 layers of width 15, 13 ids.\n"
        "\n"
        'ids = input("B", "T", dtype="int64")\n'
        "\n"
        'embedding(13, 15, name="wte")\n'
        'pos_embed(9, name="wpe")   # learned positions, hence T <= 9\n'
        "\n"
        "for _ in range(2):\n"
        '    transformer_block(5, mlp_ratio=4, activation="gelu_tanh", causal=True, eps=0.003, name="block")\n'
        "\n"
        'layer_norm(eps=0.003, name="ln_f")\n'
        'linear(13, bias=False, name="lm_head", tie={"weight": "wte.weight"})'
        "   # reads and scores with one table\n"
        "\n"
        'output("B", "T", 13)\n'
    )


def tiny(directory, **changes):
    """A checkpoint of 1 head, width 2, 1 layer, 5 ids, written by hand; ``None`` removes a tensor."""
    arrays = {
        "wte.weight": np.arange(10.0).reshape(5, 2), "wpe.weight": np.ones((3, 2)),
        "h.0.ln_1.weight": np.ones(2), "h.0.ln_1.bias": np.zeros(2),
        "h.0.attn.c_attn.weight": np.zeros((2, 6)), "h.0.attn.c_attn.bias": np.arange(6.0),
        "h.0.attn.c_proj.weight": np.array([[0.0, 1.0], [0.0, 0.0]]), "h.0.attn.c_proj.bias": np.zeros(2),
        "h.0.ln_2.weight": np.ones(2), "h.0.ln_2.bias": np.zeros(2),
        "h.0.mlp.c_fc.weight": np.zeros((2, 8)), "h.0.mlp.c_fc.bias": np.zeros(8),
        "h.0.mlp.c_proj.weight": np.zeros((8, 2)), "h.0.mlp.c_proj.bias": np.zeros(2),
        "ln_f.weight": np.ones(2), "ln_f.bias": np.zeros(2),
    }  # fmt: skip
    arrays |= changes
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(
        '{"model_type": "gpt2", "vocab_size": 5, "n_positions": 3, "n_embd": 2, "n_layer": 1, "n_head": 1}'
    )
    kept = {name: array for name, array in arrays.items() if array is not None}
    save_file(kept, directory / "model.safetensors")
    return directory


def test_square_matrices_are_transposed_too(tmp_path):
    # W[0, 1] = 1 alone, [in, out]: x = [1, 0] gives [0, 1]. In plan layout that is weight[1, 0].
    _, weights = iso.import_checkpoint(tiny(tmp_path / "m"))
    weight = weights["block0.attn.o_proj.weight"]
    assert (weight @ [1, 0]).tolist() == [0, 1]
    assert weight.tolist() == [[0, 0], [1, 0]]


def test_query_key_and_value_are_blocks(tmp_path):
    # Six columns with distinct constants, width 2: query 0 1, key 2 3, value 4 5.
    _, weights = iso.import_checkpoint(tiny(tmp_path / "m"))
    biases = [weights[f"block0.attn.{part}_proj.bias"].tolist() for part in "qkv"]
    assert biases == [[0, 1], [2, 3], [4, 5]]


def test_a_tied_head_may_be_there_once_or_twice(tmp_path):
    table = np.arange(10.0).reshape(5, 2)
    for i, changes in enumerate(
        ({}, {"wte.weight": None, "lm_head.weight": table}, {"lm_head.weight": table.copy()})
    ):
        _, weights = iso.import_checkpoint(tiny(tmp_path / str(i), **changes))
        assert weights["wte.weight"].tolist() == table.tolist()
        assert "lm_head.weight" not in weights
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(tiny(tmp_path / "m", **{"lm_head.weight": table + 1}))
    assert str(error.value) == (
        "E_WEIGHTS: lm_head.weight is tied to wte.weight, but wte.weight and lm_head.weight are given "
        "different values\n"
        "  give one of them, or both alike; or resolve the definition without the tie"
    )
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(tiny(tmp_path / "n", **{"wte.weight": None}))
    assert error.value.hints == ("missing: wte.weight [5, 2]", "missing: lm_head.weight [5, 2]")


def test_known_buffers_are_left_out_by_their_exact_names(tmp_path):
    mask = np.tril(np.ones((1, 1, 3, 3), np.uint8))
    found = {"h.0.attn.bias": mask, "h.0.attn.masked_bias": np.array(-1e4)}
    _, weights = iso.import_checkpoint(tiny(tmp_path / "m", **found))
    assert len(weights) == 20
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(tiny(tmp_path / "n", **{"h.0.mlp.attn.bias": mask}))
    assert error.value.hints == ("unexpected: h.0.mlp.attn.bias in model.safetensors [1, 1, 3, 3]",)


def test_everything_wrong_with_the_tensors_is_listed(tmp_path):
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(
            tiny(tmp_path / "m", **{"ln_f.bias": None, "extra": np.ones(3), "wpe.weight": np.ones((2, 3))})
        )
    assert str(error.value) == (
        "E_WEIGHTS: the tensors are not those of the configured GPT2LMHeadModel: 3 differ\n"
        "  missing: ln_f.bias [2]\n"
        "  unexpected: extra in model.safetensors [3]\n"
        "  misshapen: wpe.weight in model.safetensors: expected [3, 2], got [2, 3]"
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_names_its_tensor_and_file(tmp_path, dtype):
    directory = tiny(tmp_path / "m", **{"ln_f.weight": np.array([1, np.nan], dtype)})
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.message == f"ln_f.weight in {directory / 'model.safetensors'} holds NaN"


def test_an_edited_definition_is_exported(published, tmp_path):
    """Other names, one layer fewer: what counts is what it computes."""
    directory, model = published("GPT2LMHeadModel", transformers.GPT2Config(**SIZES))
    plan, weights = iso.import_checkpoint(directory)
    text = (
        plan.definition.replace("range(2)", "range(1)").replace('"wte', '"tokens').replace('"ffn"', '"mix"')
    )
    edited = iso.resolve(text, dtype="float64")
    old = {parameter.path: parameter.path for parameter in edited.parameters}
    old |= {path: path.replace("tokens", "wte").replace("mix", "ffn") for path in old}
    iso.export_checkpoint(tmp_path / "out", edited, {path: weights[name] for path, name in old.items()})
    short = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out", dtype=torch.float64).eval()
    model.transformer.h = model.transformer.h[:1]
    with torch.no_grad():
        ids = torch.from_numpy(IDS)
        np.testing.assert_allclose(short(ids).logits, model(ids).logits, rtol=0, atol=1e-12)


def test_what_is_no_published_layout_is_refused_with_the_first_difference(tmp_path):
    plan = iso.resolve('ids = input("B", "T", dtype="int64")\nembedding(5, 4)\npos_embed(3)\n'
                       "transformer_block(2, causal=True, eps=1e-4)\nlayer_norm(eps=1e-5)")  # fmt: skip
    with pytest.raises(iso.IsomorphError) as error:
        iso.export_checkpoint(tmp_path / "out", plan, iso.initial_weights(plan))
    assert error.value.message == "the network is not laid out as any family that can be exported"
    assert error.value.hints[0] == "gpt2: n3 has eps=1e-05 where 0.0001 is expected"
    assert not (tmp_path / "out").exists()


def test_the_file_keeps_the_values_that_training_needs(published):
    directory, _ = published("GPT2Model", transformers.GPT2Config(**SIZES))
    theirs = load_file(directory / "model.safetensors")
    _, ours = iso.import_checkpoint(directory)
    parts = [ours[f"attn1.{part}_proj.weight"] for part in "qkv"]
    np.testing.assert_array_equal(np.concatenate(parts).T, theirs["h.1.attn.c_attn.weight"])


def test_the_documented_way_to_shorten_runs_in_the_other_framework(published):
    """The block under "Editing" of docs/checkpoints.md, on a model of two layers instead of twelve."""
    from pathlib import Path

    directory, model = published("GPT2Model", transformers.GPT2Config(**SIZES))
    plan, weights = iso.import_checkpoint(directory, dtype="float32")
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    code = page.partition("## Editing")[2].partition("```python\n")[2].partition("```")[0]
    assert '"range(12)", "range(6)"' in code
    names = {"iso": iso, "plan": plan, "weights": weights}
    exec(code.replace('"range(12)", "range(6)"', '"range(2)", "range(1)"'), names)
    model.h = model.h[:1]
    with torch.no_grad():
        expected = model(torch.from_numpy(IDS)).last_hidden_state.numpy()
    found = np.asarray(names["model"](IDS))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
