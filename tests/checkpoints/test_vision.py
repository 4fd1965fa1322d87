"""ViT, DeiT and DINOv2 checkpoints beside transformers."""

import json

import numpy as np
import pytest
import torch
import transformers

import isomorph as iso

IMAGES = np.random.default_rng(0).normal(size=(2, 2, 6, 9))
SQUARES = IMAGES[:, :, :, :6]  # DINOv2's are
SIZES = {
    "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 5, "image_size": [6, 9], "patch_size": 3,
    "num_channels": 2, "layer_norm_eps": 1e-3,
}  # fmt: skip


DINOV2 = SIZES | {"image_size": 6}


def answers(model, images, name: str) -> tuple[dict[str, np.ndarray], str]:
    with torch.no_grad():
        answer = model(torch.from_numpy(images))
    if not name.endswith("Model"):
        return {"": answer.logits.numpy()}, "logits"
    if answer.pooler_output is None:
        return {"": answer.last_hidden_state.numpy()}, "last_hidden_state"
    found = {"hidden": answer.last_hidden_state.numpy(), "pooled": answer.pooler_output.numpy()}
    return found, "pooler_output"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ViTModel", {"intermediate_size": 22, "pooler_output_size": 7, "pooler_act": "relu"}),
        ("ViTForImageClassification", {"intermediate_size": 30, "num_labels": 3, "hidden_act": "gelu_new"}),
        ("ViTForImageClassification", {"intermediate_size": 30, "qkv_bias": False, "num_labels": 4}),
        ("DeiTModel", {"intermediate_size": 30}),
        ("DeiTForImageClassification", {"intermediate_size": 22, "num_labels": 3}),
        ("DeiTForImageClassificationWithTeacher", {"intermediate_size": 45, "num_labels": 3}),
        ("Dinov2Model", {"mlp_ratio": 3, "hidden_act": "quick_gelu"}),
        ("Dinov2ForImageClassification", {"mlp_ratio": 2, "num_labels": 3, "use_mask_token": False}),
    ],
)
def test_computes_what_transformers_computes_and_returns(published, agrees, returns, name, options):
    family = name.removesuffix("WithTeacher").removesuffix("ForImageClassification").removesuffix("Model")
    sizes, images = (DINOV2, np.ascontiguousarray(SQUARES)) if family == "Dinov2" else (SIZES, IMAGES)
    directory, model = published(name, getattr(transformers, f"{family}Config")(**sizes, **options))
    expected, key = answers(model, images, name)
    agrees(directory, expected, images)
    returns(directory, model, key, torch.from_numpy(images))


def test_without_a_pooler(published, agrees):
    config = transformers.ViTConfig(**SIZES, intermediate_size=30)
    directory, model = published("ViTModel", config, add_pooling_layer=False)
    agrees(directory, answers(model, IMAGES, "ViTModel")[0], IMAGES)


def test_the_definition_of_a_dinov2(published):
    directory, _ = published("Dinov2Model", transformers.Dinov2Config(**DINOV2, mlp_ratio=3))
    assert iso.import_checkpoint(directory)[0].definition == (
        "# DINOv2: 2 layers of width 15, images in patches of 3 pixels.\n"
        "# Learned gains, gamma1 and gamma2 of every block, scale the two branches.\n"
        "\n"
        'input("B", 2, 6, 6)\n'
        "\n"
        'patch_embed(15, patch_size=3, name="patches")   # 2 x 2 patches\n'
        'cls_token(name="cls")\n'
        'pos_embed(5, name="positions")\n'
        "\n"
        "for _ in range(2):\n"
        '    transformer_block(5, mlp_ratio=3, activation="gelu", layer_scale=True, eps=0.001, name="block")\n'
        "\n"
        'hidden = layer_norm(eps=0.001, name="norm")\n'
        'pooled = pool_tokens(hidden, "first")   # the class token: one vector for the image\n'
        "\n"
        'output(hidden=("B", 5, 15), pooled=("B", 15))\n'
    )


def test_t31_gains_are_kept_bit_for_bit(published):
    directory, model = published("Dinov2Model", transformers.Dinov2Config(**DINOV2, mlp_ratio=3))
    _, weights = iso.import_checkpoint(directory)
    gain = model.encoder.layer[1].layer_scale2.lambda1.detach().numpy()
    assert weights["block1.gamma2"].tobytes() == gain.tobytes()


@pytest.mark.parametrize(
    ("name", "keys", "hint"),
    [
        ("Dinov2Model", {"use_swiglu_ffn": True},
         "use_swiglu_ffn: expected False (no operator scales a gated feed-forward by a learned gain), got True"),
        ("Dinov2Model", {"image_size": [6, 9]}, "image_size: expected a square image, got [6, 9]"),
        ("Dinov2Model", {"patch_size": [3, 2]}, "patch_size: expected square patches, got [3, 2]"),
        ("ViTModel", {"image_size": 7}, "image_size: expected multiples of patch_size=3, got 7"),
        ("ViTModel", {"image_size": "big"}, "image_size: expected an integer from 1 or two, got 'big'"),
        ("ViTModel", {"registers": 4}, "registers: unknown key, got 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(published, name, keys, hint):
    family = name.removesuffix("Model")
    directory, _ = published(
        name, getattr(transformers, f"{family}Config")(**(DINOV2 if family == "Dinov2" else SIZES))
    )
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.code == "E_CHECKPOINT"
    assert error.value.hints == (hint,)
