"""Directories of sentence-transformers: the formulas of its modules, written here in torch, on a BERT of transformers."""

import json
import os

import numpy as np
import pytest
import torch
import transformers

import isomorph as iso

SIZES = {
    "vocab_size": 13, "hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
    "max_position_embeddings": 9, "layer_norm_eps": 1e-3,
}  # fmt: skip
IDS = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7], [1, 2, 3, 4, 5, 6, 7]])
MASK = np.array([[True] * 7, [True] * 4 + [False] * 3, [True] + [False] * 6])
KINDS = np.zeros_like(IDS)
TRANSFORMER, POOLING, NORMALIZE = (
    {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for i, (path, kind) in enumerate(
        [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    )
)


def make(published, *modules, **pooling):
    directory, model = published("BertModel", transformers.BertConfig(**SIZES))
    (directory / "modules.json").write_text(json.dumps(list(modules)))
    (directory / "1_Pooling").mkdir()
    configuration = {"word_embedding_dimension": 15, **pooling}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(configuration))
    return directory, model


def pooled(hidden, mask, mode):
    """Tokens' features as one vector: ``sentence_transformers.models.Pooling``."""
    kept = mask[..., None].to(hidden)
    if mode == "cls":
        return hidden[:, 0]
    if mode == "max":
        return hidden.masked_fill(kept == 0, -1e9).amax(1)
    if mode == "lasttoken":
        return hidden[torch.arange(len(mask)), mask.sum(1) - 1]
    return (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)


MODES = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "lasttoken": "lasttoken"}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("mode", list(MODES))
def test_embeddings_are_those_of_its_formulas_and_return(published, agrees, mode, normalize, tmp_path):
    modules = [TRANSFORMER, POOLING, *([NORMALIZE] if normalize else [])]
    flags = {f"pooling_mode_{flag}": name == mode for name, flag in MODES.items()}
    directory, model = make(published, *modules, **flags, pooling_mode_mean_sqrt_len_tokens=False)
    mask = torch.from_numpy(MASK)
    with torch.no_grad():
        hidden = model(torch.from_numpy(IDS), mask.long()).last_hidden_state
        expected = pooled(hidden, mask, mode)
        if normalize:
            expected = torch.nn.functional.normalize(expected, dim=1)
    agrees(directory, {"": expected.numpy()}, IDS, MASK, KINDS)
    plan, weights = iso.import_checkpoint(directory)
    assert not any(path.startswith("pooler") for path in weights)
    back = tmp_path / "back"
    assert iso.export_checkpoint(back, plan, weights) == "BertModel"
    loaded, information = transformers.BertModel.from_pretrained(
        back, output_loading_info=True, dtype=torch.float64
    )
    assert not any(information.values()), information
    with torch.no_grad():
        found = loaded.eval()(torch.from_numpy(IDS), mask.long())
    np.testing.assert_allclose(found.last_hidden_state[mask], hidden[mask], rtol=0, atol=1e-12)
    assert not found.pooler_output.any()  # a pooler of zeros, which no embedding reads
    assert json.loads((back / "modules.json").read_text()) == modules
    again, same = iso.import_checkpoint(back)
    assert again == plan
    assert all(same[path].tobytes() == weights[path].tobytes() for path in weights)


def test_the_definition_ends_with_the_pooling(published):
    plan, _ = iso.import_checkpoint(
        make(published, TRANSFORMER, POOLING, NORMALIZE, pooling_mode_mean_tokens=True, include_prompt=True)[
            0
        ]
    )
    assert plan.definition.endswith(
        "    )\n\n"
        "pool_tokens(mask=mask)   # the mean over the tokens, without the padding\n"
        "l2_norm()   # products of two embeddings are cosines\n"
        "\n"
        'output("B", 15)\n'
    )


def test_a_sentence_of_padding_alone_is_zeros_and_nothing_at_padding_is_read(published):
    directory, _ = make(
        published,
        TRANSFORMER,
        POOLING,
        pooling_mode=["mean"],
        pooling_mode_cls_token=True,
        embedding_dimension=15,
    )  # the newer key counts
    plan, weights = iso.import_checkpoint(directory)
    embed = iso.reference.build(plan, weights)
    mask = MASK.copy()
    mask[2] = False
    found = embed(IDS, mask, KINDS)
    assert not found[2].any()
    other = np.where(mask, IDS, 0)
    np.testing.assert_array_equal(embed(other, mask, KINDS), found)


@pytest.mark.parametrize(
    ("pooling", "hint"),
    [
        ({"pooling_mode_mean_sqrt_len_tokens": True},
         "the mode: expected one of cls, mean, max, lasttoken, got ['mean_sqrt_len_tokens']"),
        ({"pooling_mode_weightedmean_tokens": True},
         "the mode: expected one of cls, mean, max, lasttoken, got ['weightedmean']"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
         "the mode: expected one of cls, mean, max, lasttoken, got ['mean', 'cls']"),
        ({}, "the mode: expected one of cls, mean, max, lasttoken, got []"),
        ({"pooling_mode": ["mean", "cls"]},
         "the mode: expected one of cls, mean, max, lasttoken, got ['mean', 'cls']"),
        ({"pooling_mode": 3, "pooling_mode_mean_tokens": True},
         "the mode: expected one of cls, mean, max, lasttoken, got [3]"),
        ({"pooling_mode_mean_tokens": 1}, "pooling_mode_mean_tokens: expected true or false, got 1"),
        ({"word_embedding_dimension": 16},
         "word_embedding_dimension: expected 15, the width of the network, got 16"),
        ({"include_prompt": False}, "include_prompt: expected true (a prompt counts like any text), got False"),
        ({"surprise": 2}, "surprise: unknown key, got 2"),
    ],
)  # fmt: skip
def test_poolings_that_cannot_be_followed_are_refused_by_name(published, pooling, hint):
    directory, _ = make(published, TRANSFORMER, POOLING, **pooling)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    path = directory / "1_Pooling" / "config.json"
    assert str(error.value) == f"E_CHECKPOINT: {path}: this pooling cannot be followed\n  {hint}"


def test_steps_that_cannot_be_followed_are_refused_by_name(published):
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    directory, _ = make(published, TRANSFORMER, POOLING, dense, pooling_mode="mean")
    path = directory / "modules.json"

    def refused(content) -> str:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(iso.IsomorphError) as error:
            iso.import_checkpoint(directory)
        assert error.value.code == "E_CHECKPOINT"
        return error.value.message

    follow = f"{path} lists the steps {{}}, which a definition cannot follow"
    assert refused([TRANSFORMER, POOLING, dense]) == follow.format("['Transformer', 'Pooling', 'Dense']")
    assert refused([TRANSFORMER]) == follow.format("['Transformer']")
    assert refused([TRANSFORMER, POOLING | {"type": "evil.Pooling"}]) == (
        follow.format("['Transformer', 'evil.Pooling']")
    )
    assert refused([TRANSFORMER | {"path": "0_BERT"}, POOLING]) == follow.format("['Transformer', 'Pooling']")
    for place in ("../1_Pooling", "/etc", "", 3, "a\\b", "..", "a\0b", "\ud800"):
        message = refused([TRANSFORMER, POOLING | {"path": place}])
        assert message == f"{path} has the pooling's files in {place!r}"
    long = refused([TRANSFORMER, POOLING | {"path": "a" * 5000}])
    assert long == f"{path} has the pooling's files in '{'a' * 196}..."  # 200 characters of it
    assert refused([TRANSFORMER, 7]) == f"{path} has a step without a type: 7"
    assert refused("{}") == f"{path} holds dict, expected a list"
    assert refused("[").startswith(f"{path} is no JSON: ")
    assert refused([TRANSFORMER, POOLING | {"path": "2_Pooling"}]) == (
        f"{directory / '2_Pooling' / 'config.json'} does not exist"
    )
    os.rename(path, directory.parent / "elsewhere.json")
    os.symlink(directory.parent / "elsewhere.json", path)
    with pytest.raises(iso.IsomorphError, match="leads out of the directory"):
        iso.import_checkpoint(directory)


def test_another_family_says_how_to_import_the_network_alone(published):
    config = transformers.GPT2Config(vocab_size=7, n_positions=5, n_embd=4, n_layer=1, n_head=2)
    directory, _ = published("GPT2Model", config)
    (directory / "modules.json").write_text(json.dumps([TRANSFORMER, POOLING]))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert str(error.value) == (
        f"E_CHECKPOINT: {directory / 'modules.json'} asks for embeddings of sentences, "
        "which are not made by gpt2 here\n  without modules.json the network alone is imported"
    )


def test_an_export_over_one_of_another_kind_leaves_no_pooling(published):
    directory, _ = make(published, TRANSFORMER, POOLING, pooling_mode="mean")
    plan, weights = iso.import_checkpoint(directory)
    directory = directory.parent / "exported"
    iso.export_checkpoint(directory, plan, weights)
    assert (directory / "modules.json").exists()
    text = plan.definition.replace("pool_tokens(mask=mask)", "#").replace('output("B", 15)', "")
    bare = iso.resolve(text, dtype=plan.dtype)
    iso.export_checkpoint(directory, bare, weights)
    assert not (directory / "modules.json").exists()
    assert iso.import_checkpoint(directory)[0] == bare
