"""BERT checkpoints beside transformers."""

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
GIVEN = {"token_type_ids": torch.from_numpy(KINDS), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("options", "pooler"), [({}, True), ({"hidden_act": "gelu_new"}, False), ({"hidden_act": "relu"}, True)]
)
def test_computes_what_transformers_computes_and_returns(published, agrees, options, pooler, tmp_path):
    config = transformers.BertConfig(**{**SIZES, **options})
    directory, model = published("BertModel", config, add_pooling_layer=pooler)
    with torch.no_grad():
        answer = model(torch.from_numpy(IDS), **GIVEN)
    hidden = answer.last_hidden_state.numpy()
    expected = {"hidden": hidden, "pooled": answer.pooler_output.numpy()} if pooler else {"": hidden}
    agrees(directory, expected, IDS, MASK, KINDS)
    plan, weights = iso.import_checkpoint(directory)
    iso.export_checkpoint(tmp_path / "out", plan, weights)
    loaded, information = transformers.BertModel.from_pretrained(
        tmp_path / "out", output_loading_info=True, dtype=torch.float64, add_pooling_layer=pooler
    )
    assert not any(information.values()), information
    with torch.no_grad():
        found = loaded.eval()(torch.from_numpy(IDS), **GIVEN)
    np.testing.assert_allclose(found.last_hidden_state, hidden, rtol=0, atol=1e-12)
    again, same = iso.import_checkpoint(tmp_path / "out")
    assert again == plan
    assert all(same[path].tobytes() == weights[path].tobytes() for path in weights)


def test_padding_is_not_attended(published):
    directory, model = published("BertModel", transformers.BertConfig(**SIZES))
    plan, weights = iso.import_checkpoint(directory)
    assert [name for name, _ in plan.inputs] == ["ids", "mask", "segments"]  # as BertModel.forward takes them
    mask = MASK.copy()
    mask[1, 4:] = False
    with torch.no_grad():
        given = torch.from_numpy(mask).long()
        answer = model(torch.from_numpy(IDS), given, torch.from_numpy(KINDS))
    found = iso.reference.build(plan, weights)(IDS, mask, KINDS)
    np.testing.assert_allclose(
        found["hidden"][mask], answer.last_hidden_state.numpy()[mask], rtol=0, atol=1e-10
    )
    np.testing.assert_allclose(found["pooled"], answer.pooler_output.numpy(), rtol=0, atol=1e-10)


def test_the_epsilon_of_the_file_is_in_every_norm(published):
    directory, _ = published("BertModel", transformers.BertConfig(**{**SIZES, "layer_norm_eps": 1e-7}))
    plan, _ = iso.import_checkpoint(directory)
    found = [node.operator.argument_values["eps"] for node in plan.nodes if "eps" in node.operator.arguments]
    assert found == [1e-7] * 3


def test_only_the_old_names_of_layer_norms_are_renamed(published):
    directory, _ = published("BertModel", transformers.BertConfig(**SIZES))
    _, weights = iso.import_checkpoint(directory)
    path = directory / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in load_file(path).items()
    }
    assert "embeddings.LayerNorm.gamma" in old
    save_file(old, path)
    _, again = iso.import_checkpoint(directory)
    assert all(again[name].tobytes() == weights[name].tobytes() for name in weights)
    save_file(old | {"encoder.layer.0.ls1.gamma": np.ones(15)}, path)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.hints == ("unexpected: encoder.layer.0.ls1.gamma in model.safetensors [15]",)


def test_of_a_model_for_pre_training_the_encoder_is_imported(published):
    directory, model = published("BertForPreTraining", transformers.BertConfig(**SIZES))
    plan, weights = iso.import_checkpoint(directory)
    with torch.no_grad():
        hidden = model.bert(torch.from_numpy(IDS), **GIVEN).last_hidden_state.numpy()
    found = iso.reference.build(plan, weights)(IDS, MASK, KINDS)["hidden"]
    np.testing.assert_allclose(found, hidden, rtol=0, atol=1e-10)
