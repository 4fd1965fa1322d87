"""BERT with a head for words or for classes, beside transformers."""

import json

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import isomorph as iso

SIZES = {
    "vocab_size": 13, "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 22,
    "max_position_embeddings": 9, "type_vocab_size": 3, "layer_norm_eps": 1e-3,
}  # fmt: skip
IDS = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
KINDS = np.array([[0, 0, 1, 1, 2, 2, 2], [1, 0, 2, 1, 0, 2, 1]])
MASK = np.ones((2, 7), bool)
MASK[1, 5:] = False
GIVEN = {"token_type_ids": torch.from_numpy(KINDS), "attention_mask": torch.from_numpy(MASK).long()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("BertForMaskedLM", {}),
        ("BertForMaskedLM", {"hidden_act": "gelu_new", "tie_word_embeddings": False}),
        ("BertForMaskedLM", {"hidden_act": "relu"}),
        ("BertForSequenceClassification", {"num_labels": 4}),
        ("BertForSequenceClassification", {"num_labels": 1, "hidden_act": "silu"}),
    ],
)
def test_computes_what_transformers_computes_and_returns(published, agrees, returns, name, options):
    directory, model = published(name, transformers.BertConfig(**{**SIZES, **options}))
    with torch.no_grad():
        expected = model(torch.from_numpy(IDS), **GIVEN).logits.numpy()
    plan, weights = iso.import_checkpoint(directory)
    (output,) = [shape for _, shape in ((n, plan.values[v].shape) for n, v in plan.outputs)]
    assert output[-1] == (options.get("num_labels") or 13)
    found = iso.reference.build(plan, weights)(IDS, MASK, KINDS)
    kept = MASK if name == "BertForMaskedLM" else slice(None)  # what stands at padding is nobody's business
    np.testing.assert_allclose(found[kept], expected[kept], rtol=0, atol=1e-10 * np.abs(expected).max())
    with torch.no_grad():
        everything = model(torch.from_numpy(IDS), token_type_ids=GIVEN["token_type_ids"]).logits.numpy()
    agrees(directory, {"": everything}, IDS, np.ones_like(MASK), KINDS)
    returns(directory, model, "logits", torch.from_numpy(IDS), **GIVEN)


def test_the_definition_with_a_head_for_words(published):
    directory, _ = published("BertForMaskedLM", transformers.BertConfig(**SIZES))
    plan, _ = iso.import_checkpoint(directory)
    assert plan.definition.endswith(
        "    )\n\n"
        'linear(15, name="transform")\n'
        "gelu()\n"
        'layer_norm(eps=0.001, name="transform_norm")\n'
        'linear(13, name="head", tie={"weight": "words.weight"})   # reads and scores with one table\n\n'
        'output("B", "T", 13)\n'
    )


def test_a_tied_bias_under_either_name_or_both(published):
    directory, _ = published("BertForMaskedLM", transformers.BertConfig(**SIZES))
    _, weights = iso.import_checkpoint(directory)
    path = directory / "model.safetensors"
    arrays = load_file(path)
    ours, other = "cls.predictions.bias", "cls.predictions.decoder.bias"
    assert ours in arrays and other not in arrays
    save_file({other if name == ours else name: array for name, array in arrays.items()}, path)
    np.testing.assert_array_equal(iso.import_checkpoint(directory)[1]["head.bias"], arrays[ours])
    save_file(arrays | {other: arrays[ours]}, path)
    again = iso.import_checkpoint(directory)[1]
    assert all(again[name].tobytes() == weights[name].tobytes() for name in weights)
    save_file(arrays | {other: arrays[ours] + 1}, path)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert str(error.value) == (
        f"E_WEIGHTS: {ours} and {other} in {path} are one tensor in BertForMaskedLM, but they differ"
    )


def test_a_file_of_both_heads_serves_a_model_with_one_and_the_encoder(published):
    """As the first published files do, which have a pooler and a head for pairs of sentences."""
    directory, model = published("BertForPreTraining", transformers.BertConfig(**SIZES))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    plan, weights = iso.import_checkpoint(directory)
    with torch.no_grad():
        expected = model(torch.from_numpy(IDS), **GIVEN).prediction_logits.numpy()
    found = iso.reference.build(plan, weights)(IDS, MASK, KINDS)
    np.testing.assert_allclose(found[MASK], expected[MASK], rtol=0, atol=1e-10 * np.abs(expected).max())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    assert [name for name, _ in iso.import_checkpoint(directory)[0].outputs] == ["hidden", "pooled"]


def test_half_a_pooler_is_reported(published):
    directory, _ = published("BertModel", transformers.BertConfig(**SIZES))
    path = directory / "model.safetensors"
    arrays = load_file(path)
    del arrays["pooler.dense.weight"]
    save_file(arrays, path)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.hints == ("missing: pooler.dense.weight [15, 15]",)
