"""CLIP checkpoints beside transformers: both towers, and each by itself."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import isomorph as iso
from isomorph.checkpoints.clip import CLIP
from isomorph.checkpoints.families import recognize

TEXT = {
    "vocab_size": 13, "hidden_size": 15, "intermediate_size": 22, "projection_dim": 7, "num_hidden_layers": 2,
    "num_attention_heads": 5, "max_position_embeddings": 9, "layer_norm_eps": 1e-3, "eos_token_id": 11,
    "bos_token_id": 10, "pad_token_id": 1, "hidden_act": "gelu",
}  # fmt: skip
VISION = {
    "hidden_size": 12, "intermediate_size": 36, "projection_dim": 7, "num_hidden_layers": 3,
    "num_attention_heads": 3, "num_channels": 2, "image_size": 6, "patch_size": 3, "layer_norm_eps": 1e-2,
}  # fmt: skip
COMPOSED = {"intermediate_size": 20, "hidden_act": "gelu_new"}  # 20 is no multiple of the width 12
IMAGES = np.random.default_rng(0).normal(size=(3, 2, 6, 6))  # another number than of texts
IDS = np.array([[10, 4, 1, 11, 9, 11, 2], [10, 12, 11, 5, 8, 9, 7]])  # ends at 3 and 2; largest at 3 and 1
MASK = np.ones((2, 7), bool)


def both(text=(), vision=(), **more):
    return transformers.CLIPConfig(
        text_config={**TEXT, **dict(text)}, vision_config={**VISION, **dict(vision)}, projection_dim=7, **more
    )


def answer(model, *inputs):
    """What the class computes, under our names."""
    with torch.no_grad():
        found = model(*map(torch.from_numpy, inputs))
    ours = {"last_hidden_state": "hidden", "pooler_output": "pooled"}
    return {
        ours.get(key, key): value.numpy() for key, value in found.items() if isinstance(value, torch.Tensor)
    }


@pytest.mark.parametrize(
    ("text", "vision"),
    [
        ({}, {}),
        ({"eos_token_id": 2, "hidden_act": "quick_gelu", "intermediate_size": 30}, COMPOSED),
        ({"eos_token_id": 12, "num_hidden_layers": 1}, {"num_hidden_layers": 1, "patch_size": 2}),
    ],
)
def test_computes_what_transformers_computes_and_returns(published, agrees, returns, text, vision):
    directory, model = published("CLIPModel", both(text, vision))
    expected = answer(model, IDS, IMAGES, MASK)
    assert list(expected) == ["logits_per_image", "logits_per_text", "text_embeds", "image_embeds"]
    assert expected["logits_per_text"].shape == (2, 3)
    agrees(directory, expected, IDS, IMAGES, MASK)
    plan, _ = iso.import_checkpoint(directory)
    assert [name for name, _ in plan.inputs] == ["ids", "image", "mask"]  # as CLIPModel.forward takes them
    assert [name for name, _ in plan.outputs] == list(expected)
    given = [torch.from_numpy(array) for array in (IDS, IMAGES, MASK)]
    returns(directory, model, "logits_per_text", *given)


@pytest.mark.parametrize("name", ["CLIPTextModel", "CLIPTextModelWithProjection"])
@pytest.mark.parametrize("options", [{}, {"eos_token_id": 2, "projection_dim": 4, "hidden_act": "relu"}])
def test_the_text_tower_alone(published, agrees, returns, name, options):
    directory, model = published(name, transformers.CLIPTextConfig(**{**TEXT, **options}))
    expected = answer(model, IDS, MASK)
    assert set(expected) == {"hidden", "pooled" if name == "CLIPTextModel" else "text_embeds"}
    agrees(directory, expected, IDS, MASK)
    key = "pooler_output" if name == "CLIPTextModel" else "text_embeds"
    returns(directory, model, key, torch.from_numpy(IDS), torch.from_numpy(MASK))


@pytest.mark.parametrize("name", ["CLIPVisionModel", "CLIPVisionModelWithProjection"])
@pytest.mark.parametrize("options", [{}, {**COMPOSED, "projection_dim": 4, "image_size": 9}])
def test_the_image_tower_alone(published, agrees, returns, name, options):
    config = transformers.CLIPVisionConfig(**{**VISION, **options})
    images = np.random.default_rng(1).normal(size=(2, 2, config.image_size, config.image_size))
    directory, model = published(name, config)
    expected = answer(model, images)
    assert set(expected) == {"hidden", "pooled" if name == "CLIPVisionModel" else "image_embeds"}
    agrees(directory, expected, images)
    key = "pooler_output" if name == "CLIPVisionModel" else "image_embeds"
    returns(directory, model, key, torch.from_numpy(images))


@pytest.mark.parametrize("padded", ["left", "right", "within"])
def test_padding_is_not_attended(published, padded):
    directory, model = published("CLIPTextModel", transformers.CLIPTextConfig(**TEXT))
    mask = MASK.copy()
    mask[0, {"left": slice(0, 3), "right": slice(4, None), "within": slice(1, 3)}[padded]] = False
    expected = answer(model, IDS, mask)
    plan, weights = iso.import_checkpoint(directory)
    found = iso.reference.build(plan, weights)(IDS, mask)
    np.testing.assert_allclose(found["hidden"][mask], expected["hidden"][mask], rtol=0, atol=1e-10)
    np.testing.assert_allclose(found["pooled"], expected["pooled"], rtol=0, atol=1e-10)
    unmasked = iso.reference.build(plan, weights)(IDS, MASK)["pooled"]
    changes = np.abs(found["pooled"] - unmasked)[0].max()
    assert changes == 0 if padded == "right" else changes > 1e-3  # the end sees what is before it


def test_a_text_without_an_end_is_read_at_its_first_position(published):
    """As the peer's argmax over no match: it is neither an error nor the last position."""
    directory, model = published("CLIPTextModel", transformers.CLIPTextConfig(**TEXT))
    ids = np.where(IDS == 11, 3, IDS)
    plan, weights = iso.import_checkpoint(directory)
    found = iso.reference.build(plan, weights)(ids, MASK)
    np.testing.assert_array_equal(found["pooled"], found["hidden"][:, 0])
    np.testing.assert_allclose(found["pooled"], answer(model, ids, MASK)["pooled"], rtol=0, atol=1e-10)


def test_the_definition_of_a_clip(published):
    directory, _ = published("CLIPModel", both())
    assert iso.import_checkpoint(directory)[0].definition == (
        "# CLIP: 2 layers of width 15 for texts, 3 of width 12 for images.\n"
        "\n"
        'ids = input("B", "T", dtype="int64")   # word pieces\n'
        'image = input("N", 2, 6, 6)\n'
        'mask = input("B", "T", dtype="bool", optional=True)   # True where there is a token\n'
        "\n"
        'embedding(ids, 13, 15, name="text_tokens")\n'
        'h = pos_embed(9, name="text_positions")   # hence T <= 9\n'
        "\n"
        "for _ in range(2):\n"
        '    layer_norm(h, eps=0.001, name="text_attn_norm")\n'
        '    attended = attention(5, causal=True, mask=mask, name="text_attn")\n'
        "    h = add(h, attended)\n"
        "\n"
        '    layer_norm(h, eps=0.001, name="text_ffn_norm")\n'
        '    mixed = feed_forward(22, activation="gelu", name="text_ffn")\n'
        "    h = add(h, mixed)\n"
        "\n"
        'hidden = layer_norm(eps=0.001, name="text_norm")\n'
        "take_at(hidden, ids, token=11)   # the first id 11 ends the text\n"
        'linear(7, bias=False, name="text_projection")\n'
        "text_embeds = l2_norm()\n"
        "\n"
        'patch_embed(image, 12, patch_size=3, bias=False, name="image_patches")   # 2 x 2 patches\n'
        'cls_token(name="image_cls")\n'
        'pos_embed(5, name="image_positions")\n'
        'layer_norm(eps=0.01, name="image_norm")\n'
        "\n"
        "for _ in range(3):\n"
        '    transformer_block(3, mlp_ratio=3, activation="quick_gelu", eps=0.01, name="image_block")\n'
        "\n"
        'pool_tokens("first")   # the class token\n'
        'layer_norm(eps=0.01, name="image_pooled_norm")\n'
        'linear(7, bias=False, name="image_projection")\n'
        "image_embeds = l2_norm()\n"
        "\n"
        'logits_per_text, logits_per_image = similarity(text_embeds, image_embeds, name="logits")\n'
        "\n"
        "output(\n"
        '    logits_per_image=("N", "B"),\n'
        '    logits_per_text=("B", "N"),\n'
        '    text_embeds=("B", 7),\n'
        '    image_embeds=("N", 7),\n'
        ")\n"
    )


def edited(directory, **changes):
    """The configuration with keys changed; a dictionary changes keys of the object of that name."""
    path = directory / "config.json"
    configuration = json.loads(path.read_text())
    for key, value in changes.items():
        inside = isinstance(value, dict) and isinstance(configuration.get(key), dict)
        configuration[key] = {**configuration[key], **value} if inside else value
    path.write_text(json.dumps(configuration))


def test_files_of_older_versions(published, agrees):
    """Their configurations carry generation settings in every object, their tensors the positions."""
    config = both({"eos_token_id": 2})
    directory, model = published("CLIPModel", config)
    carried = {
        "_name_or_path": "", "architectures": None, "bad_words_ids": None, "bos_token_id": 0, "do_sample": False,
        "chunk_size_feed_forward": 0, "diversity_penalty": 0.0, "dropout": 0.0, "early_stopping": False,
        "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "length_penalty": 1.0, "max_length": 20,
        "num_beams": 1, "output_scores": False, "pruned_heads": {}, "temperature": 1.0, "tokenizer_class": None,
        "tie_word_embeddings": True, "top_k": 50, "top_p": 1.0, "torch_dtype": None, "torchscript": False,
        "typical_p": 1.0, "use_bfloat16": False, "is_decoder": False, "add_cross_attention": False,
    }  # fmt: skip
    edited(
        directory, text_config=carried, vision_config=carried, text_config_dict=None, vision_config_dict=None,
        logit_scale_init_value=5.0, initializer_factor=2.0, torch_dtype="float32",
    )  # fmt: skip
    path = directory / "model.safetensors"
    positions = {
        "text_model.embeddings.position_ids": np.arange(9)[None],
        "vision_model.embeddings.position_ids": np.arange(5)[None],
    }
    save_file(load_file(path) | positions, path)
    agrees(directory, answer(model, IDS, IMAGES, MASK), IDS, IMAGES, MASK)
    save_file(load_file(path) | {"text_model.position_ids": np.arange(9)[None]}, path)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.hints == ("unexpected: text_model.position_ids in model.safetensors [1, 9]",)


@pytest.mark.parametrize(
    "given", [{"eos_token_id": 11}, {"layer_norm_eps": 1e-4, "hidden_act": "relu", "eos_token_id": 9}]
)
def test_the_older_object_counts_where_there_are_two(published, given):
    """What ``text_config_dict`` leaves out has the class's default, whatever ``text_config`` says."""
    directory, model = published("CLIPModel", both())
    sizes = {key: TEXT[key] for key in TEXT if key not in ("layer_norm_eps", "hidden_act", "eos_token_id")}
    edited(directory, text_config_dict={**sizes, **given})
    loaded = transformers.CLIPModel.from_pretrained(directory, dtype=torch.float64).eval()
    assert loaded.config.text_config.layer_norm_eps == given.get("layer_norm_eps", 1e-5)
    expected = answer(loaded, IDS, IMAGES, MASK)
    assert np.abs(expected["text_embeds"] - answer(model, IDS, IMAGES, MASK)["text_embeds"]).max() > 1e-3
    plan, weights = iso.import_checkpoint(directory)
    found = iso.reference.build(plan, weights)(IDS, IMAGES, MASK)
    np.testing.assert_allclose(found["text_embeds"], expected["text_embeds"], rtol=0, atol=1e-10)


def test_a_text_encoder_of_older_versions_has_a_prefix(published):
    directory, _ = published("CLIPTextModel", transformers.CLIPTextConfig(**TEXT))
    plan, weights = iso.import_checkpoint(directory)
    path = directory / "model.safetensors"
    old = {f"text_model.{name}": array for name, array in load_file(path).items()}
    save_file(old | {"text_model.embeddings.position_ids": np.arange(9)[None]}, path)
    again, same = iso.import_checkpoint(directory)
    assert again == plan
    assert all(same[name].tobytes() == weights[name].tobytes() for name in weights)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"text_config": []}, "text_config: expected an object, got []"),
        ({"text_config_dict": 1},
         "text_config_dict: expected None (an object stands for text_config), got 1"),
        ({"text_config": {"model_type": "bert"}},
         "text_config.model_type: expected 'clip_text_model' (the towers are CLIP's own), got 'bert'"),
        ({"text_config": {"eos_token_id": [11, 12]}},
         "text_config.eos_token_id: expected an integer from 0, got [11, 12]"),
        ({"text_config": {"eos_token_id": None}},
         "text_config.eos_token_id: expected an integer from 0, got None"),
        ({"text_config": {"eos_token_id": -1}},
         "text_config.eos_token_id: expected an integer from 0, got -1"),
        ({"text_config": {"eos_token_id": 2**31}},
         "text_config.eos_token_id: expected an integer from 0, got 2147483648"),
        ({"vision_config": {"image_size": 7}},
         "vision_config.image_size: expected a multiple of patch_size=3, got 7"),
        ({"vision_config": {"image_size": [6, 6]}},
         "vision_config.image_size: expected an integer from 1, got [6, 6]"),
        ({"vision_config": {"layer_norm_eps": 0}},
         "vision_config.layer_norm_eps: expected a number above 0, got 0"),
        ({"vision_config": {"is_decoder": True}},
         "vision_config.is_decoder: expected False (the family's own attention is imported), got True"),
        ({"projection_dim": None}, "projection_dim: expected an integer from 1, got None"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(published, changes, hint):
    directory, _ = published("CLIPModel", both())
    edited(directory, **changes)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.code == "E_CHECKPOINT"
    assert error.value.hints == (hint,)


@pytest.mark.parametrize(
    "changes",
    [
        {"vision_config": {"image_size": 3 * 10**9}},
        {"text_config": {"num_hidden_layers": 10**9}},
        {"text_config": {"vocab_size": 10**18}},
        {"text_config": {"num_attention_heads": 4}},
        {"vision_config": {"layer_norm_eps": 1e-300}},
    ],
)
def test_hostile_sizes_are_refused(published, changes):
    directory, _ = published("CLIPModel", both())
    edited(directory, **changes)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.code == "E_CHECKPOINT"
    assert error.value.message.startswith(
        f"{directory / 'config.json'} describes a network that cannot be built"
    )


@pytest.mark.parametrize("name", ["CLIPForImageClassification", "CLIPTextModel"])
def test_other_classes_are_refused(published, name):
    directory, _ = published("CLIPModel", both())
    edited(directory, architectures=[name])
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.hints == (f"architectures: expected CLIPModel, got '{name}'",)


def test_a_missing_scale_and_a_misshapen_one(published):
    directory, _ = published("CLIPModel", both())
    path = directory / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"logit_scale": np.ones(1)}, path)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.code == "E_WEIGHTS"
    assert error.value.hints == ("misshapen: logit_scale in model.safetensors: expected [], got [1]",)
    del tensors["logit_scale"]
    save_file(tensors, path)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.hints == ("missing: logit_scale []",)


def test_an_end_that_the_peer_would_misread_is_not_exported(published, tmp_path):
    """With ``eos_token_id`` 2 it takes the largest id, so a text that ends at id 2 has no configuration."""
    directory, _ = published("CLIPTextModel", transformers.CLIPTextConfig(**TEXT))
    plan, weights = iso.import_checkpoint(directory)
    plan = iso.resolve(plan.definition.replace("token=11", "token=2"), dtype=plan.dtype)
    with pytest.raises(iso.IsomorphError) as error:
        iso.export_checkpoint(tmp_path / "out", plan, weights)
    assert "clip_text_model: n15 has token=2 where -1 is expected" in error.value.hints


PAGE = (Path(__file__).parents[2] / "docs" / "checkpoints" / "clip.md").read_text()
SMALL = {
    '"range(12)", "range(6)"': '"range(2)", "range(1)"',
    "49408": "13",
    "49410": "15",
    "linear(512": "linear(7",
}


def documented() -> list[str]:
    """The page's Python, for a model as small as these tests'."""
    blocks = [part.partition("```")[0] for part in PAGE.split("```python\n")[1:]]
    for old, new in SMALL.items():
        assert old in PAGE
        blocks = [blocks[0], *(block.replace(old, new) for block in blocks[1:])]
    return blocks


def test_the_documented_definition_is_the_real_one():
    with torch.device("meta"):
        model = transformers.CLIPModel(transformers.CLIPConfig())
    plan = iso.resolve(documented()[0])
    assert plan.parameter_count == sum(parameter.numel() for parameter in model.parameters())
    assert CLIP.definition(recognize(plan).options) == plan.definition == documented()[0]


def test_the_documented_ways_to_edit_and_to_run(published, tmp_path, monkeypatch):
    jax = pytest.importorskip("jax")
    monkeypatch.chdir(tmp_path)
    directory, model = published("CLIPModel", both(vision={"num_hidden_layers": 2}))
    plan, weights = iso.import_checkpoint(directory)
    names = {"iso": iso, "np": np, "jax": jax, "plan": plan, "weights": weights}
    _, short, wide, locked, classifier, running = documented()
    full = answer(model, IDS, IMAGES, MASK)

    exec(wide, names)
    loaded = transformers.CLIPModel.from_pretrained("WIDE", dtype=torch.float64).eval()
    assert loaded.text_model.embeddings.token_embedding.weight.shape == (15, 15)
    found = answer(loaded, IDS, IMAGES, MASK)
    np.testing.assert_allclose(found["logits_per_text"], full["logits_per_text"], rtol=0, atol=1e-12)

    exec(locked, names)
    trained = {p.path.partition(".")[0].rstrip("01") for p in names["locked"].parameters if p.trainable}
    assert {name for name in trained if not name.startswith("text_")} == {"image_projection", "logits"}
    assert names["locked"].definition.count("trainable=False") == 6

    exec(classifier, names)
    assert set(names["start"]) - set(weights) == {"classes.weight", "classes.bias"}
    with torch.no_grad():
        pooled = model.vision_model(torch.from_numpy(IMAGES)).pooler_output.numpy()
    classes = iso.reference.build(names["classifier"], names["start"])(IMAGES)
    expected = pooled @ names["start"]["classes.weight"].T + names["start"]["classes.bias"]
    np.testing.assert_allclose(classes, expected, rtol=0, atol=1e-10)

    names["plan"], names["weights"] = iso.import_checkpoint(directory, dtype="float32")
    names |= {
        "tokens": {"input_ids": IDS, "attention_mask": MASK.astype(int)},
        "image": IMAGES.astype("float32"),
    }
    exec(running, names)
    odds = np.exp(full["logits_per_image"] - full["logits_per_image"].max(1, keepdims=True))
    np.testing.assert_allclose(names["probabilities"], odds / odds.sum(1, keepdims=True), rtol=0, atol=1e-5)

    names |= {"plan": plan, "weights": weights}
    exec(short, names)
    for tower in (model.text_model, model.vision_model):
        tower.encoder.layers = tower.encoder.layers[:1]
    expected = answer(model, IDS, IMAGES, MASK)
    assert np.abs(expected["logits_per_text"] - full["logits_per_text"]).max() > 1e-3
    found = answer(
        transformers.CLIPModel.from_pretrained("OUT", dtype=torch.float64).eval(), IDS, IMAGES, MASK
    )
    np.testing.assert_allclose(found["logits_per_text"], expected["logits_per_text"], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_vit_b_32_of_its_real_size(tmp_path):
    """openai/clip-vit-base-patch32's sizes, in float32: 12 layers each, 151 million numbers."""
    torch.manual_seed(0)
    model = transformers.CLIPModel(transformers.CLIPConfig()).eval()
    model.save_pretrained(tmp_path / "real")
    plan, weights = iso.import_checkpoint(tmp_path / "real")
    assert plan.parameter_count == sum(p.numel() for p in model.parameters()) == 151_277_313
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 49406, (2, 77))
    ids[0, 5], ids[1, 76] = 49407, 49407
    images = rng.normal(size=(2, 3, 224, 224)).astype(np.float32)
    expected = answer(model, ids, images, np.ones((2, 77), bool))
    with torch.no_grad():
        found = iso.torch.build(plan, weights).eval()(
            torch.from_numpy(ids), torch.from_numpy(images), torch.ones(2, 77, dtype=torch.bool)
        )
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=0, atol=2e-5, err_msg=name)
    assert iso.export_checkpoint(tmp_path / "back", plan, weights) == "CLIPModel"
    theirs, ours = (load_file(tmp_path / name / "model.safetensors") for name in ("real", "back"))
    assert theirs.keys() == ours.keys()
    assert all(ours[name].tobytes() == array.tobytes() for name, array in theirs.items())
