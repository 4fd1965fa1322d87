"""ViT, DeiT and DINOv2 checkpoints beside transformers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import isomorph as iso
from isomorph.agreement.bounds import numeric_bound
from isomorph.backends import available
from isomorph.checkpoints.dinov2 import DINOV2 as DINOV2_FAMILY
from isomorph.checkpoints.dinov2 import DINOV2_WITH_REGISTERS, hidden_width
from isomorph.checkpoints.family import read_options
from isomorph.checkpoints.vit import VIT

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
        ("Dinov2Model", {"mlp_ratio": 3, "qkv_bias": False, "hidden_act": "relu"}),
        # (2 * 45 // 3 + 7) // 8 * 8 = 32, which is no multiple of the width 15.
        ("Dinov2Model", {"mlp_ratio": 3, "use_swiglu_ffn": True}),
        ("Dinov2ForImageClassification", {"mlp_ratio": 4, "use_swiglu_ffn": True, "qkv_bias": False}),
        ("Dinov2WithRegistersModel", {"mlp_ratio": 3, "num_register_tokens": 2, "hidden_act": "silu"}),
        ("Dinov2WithRegistersModel", {"use_swiglu_ffn": True, "num_register_tokens": 5, "qkv_bias": False}),
        (
            "Dinov2WithRegistersForImageClassification",
            {"mlp_ratio": 2, "num_labels": 3, "num_register_tokens": 3},
        ),
    ],
)
def test_computes_what_transformers_computes_and_returns(published, agrees, returns, name, options):
    family = name.removesuffix("WithTeacher").removesuffix("ForImageClassification").removesuffix("Model")
    sizes, images = (
        (DINOV2, np.ascontiguousarray(SQUARES)) if family.startswith("Dinov2") else (SIZES, IMAGES)
    )
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


def test_gains_are_kept_bit_for_bit(published):
    directory, model = published("Dinov2Model", transformers.Dinov2Config(**DINOV2, mlp_ratio=3))
    _, weights = iso.import_checkpoint(directory)
    gain = model.encoder.layer[1].layer_scale2.lambda1.detach().numpy()
    assert weights["block1.gamma2"].tobytes() == gain.tobytes()


def test_the_definition_of_a_giant_with_registers(published):
    config = transformers.Dinov2WithRegistersConfig(
        **DINOV2, mlp_ratio=3, use_swiglu_ffn=True, num_register_tokens=2
    )
    directory, _ = published("Dinov2WithRegistersForImageClassification", config)
    assert iso.import_checkpoint(directory)[0].definition == (
        "# DINOv2 with registers: 2 layers of width 15, images in patches of 3 pixels.\n"
        "# Learned gains, attn_scale and ffn_scale, scale the two branches.\n"
        "\n"
        'input("B", 2, 6, 6)\n'
        "\n"
        'patch_embed(15, patch_size=3, name="patches")   # 2 x 2 patches\n'
        'cls_token(name="cls")\n'
        'pos_embed(5, name="positions")\n'
        "token, patches = split(1)\n"
        'after = register_tokens(patches, 2, name="registers")\n'
        "h = concat(token, after)\n"
        "\n"
        "for _ in range(2):\n"
        '    layer_norm(h, eps=0.001, name="attn_norm")\n'
        '    attention(5, name="attn")\n'
        '    attended = layer_scale(name="attn_scale")\n'
        "    h = add(h, attended)\n"
        "\n"
        '    layer_norm(h, eps=0.001, name="ffn_norm")\n'
        '    swiglu(32, bias=True, name="ffn")\n'
        '    mixed = layer_scale(name="ffn_scale")\n'
        "    h = add(h, mixed)\n"
        "\n"
        'hidden = layer_norm(eps=0.001, name="norm")\n'
        'pooled = pool_tokens(hidden, "first")   # the class token: one vector for the image\n'
        "front, patches = split(hidden, 3)\n"
        "average = pool_tokens(patches)\n"
        "concat(pooled, average)\n"
        'linear(2, name="classifier")\n'
        "\n"
        'output("B", 2)\n'
    )


def test_the_width_of_a_gated_feed_forward():
    """Two thirds of mlp_ratio * width, rounded up to a multiple of 8: 1536 * 2/3 = 1024 for the small one."""
    assert hidden_width(384, 4, True) == 1024
    assert hidden_width(384, 4, False) == 1536
    assert hidden_width(1536, 4, True) == 4096  # the giant one, as published
    assert hidden_width(10, 3, True) == 24  # 30 * 2/3 = 20
    assert hidden_width(11, 3, True) == 24  # 33 * 2/3 = 22


def test_the_halves_of_a_fused_feed_forward(published):
    """The first rows are the gate's, to which SiLU is applied, and the others are multiplied by it."""
    directory, model = published("Dinov2Model", transformers.Dinov2Config(**DINOV2, use_swiglu_ffn=True))
    _, weights = iso.import_checkpoint(directory)
    mlp = model.encoder.layer[1].mlp
    for ours, theirs in {"gate": mlp.gate_proj, "up": mlp.up_proj, "down": mlp.down_proj}.items():
        np.testing.assert_array_equal(weights[f"ffn1.{ours}.weight"], theirs.weight.detach().numpy())
        np.testing.assert_array_equal(weights[f"ffn1.{ours}.bias"], theirs.bias.detach().numpy())


def resized(positions: np.ndarray, old: int, new: int) -> np.ndarray:
    """A table ``[1 + old * old, D]`` for a grid of new x new, by size and not by a factor (docs/checkpoints)."""
    patches = torch.from_numpy(positions[1:].reshape(1, old, old, -1)).permute(0, 3, 1, 2).float()
    grid = torch.nn.functional.interpolate(patches, size=(new, new), mode="bicubic", align_corners=False)
    return np.concatenate([positions[:1], grid[0].flatten(1).T.numpy()])


def test_nobody_resizes_the_table_of_positions(published):
    """The reported fault: for an image of 546 pixels the grid of 37 is scaled by 39/37, and 37 * (39/37) is
    rounded down to 38. Here image_size alone says how large the grid is, image_size // patch_size in integers;
    nothing is scaled on import, and a table of another size is refused by name. Who wants another size
    resizes the table to a given size, and then it is transformers' answer.
    """
    config = transformers.Dinov2Config(
        **DINOV2 | {"image_size": 37 * 2, "patch_size": 2, "num_hidden_layers": 1}
    )
    directory, model = published("Dinov2Model", config)
    path = directory / "config.json"
    written = json.loads(path.read_text())
    for grid in (39, 43, 78, 86):  # 546, 602, 1092 and 1204 pixels at the published patch size, 14
        path.write_text(json.dumps(written | {"image_size": grid * 2}))
        with pytest.raises(iso.IsomorphError) as error:
            iso.import_checkpoint(directory)
        assert error.value.code == "E_WEIGHTS"
        assert error.value.hints == (
            "misshapen: embeddings.position_embeddings in model.safetensors: "
            f"expected [1, {grid * grid + 1}, 15], got [1, 1370, 15]",
        )
    path.write_text(json.dumps(written))
    plan, weights = iso.import_checkpoint(directory)
    text = plan.definition.replace("74, 74", "78, 78").replace("1370", "1522")
    larger = iso.resolve(text, dtype="float64")
    weights["positions.weight"] = resized(weights["positions.weight"], 37, 39)
    images = np.random.default_rng(1).normal(size=(1, 2, 78, 78))
    found = available.load("torch").forward(larger, weights, {"x": images}, "float64")
    with torch.no_grad():
        expected = model(torch.from_numpy(images)).last_hidden_state.numpy()
    np.testing.assert_allclose(found["hidden"], expected, rtol=0, atol=1e-10 * np.abs(expected).max())


PAGES = Path(__file__).parents[2] / "docs" / "checkpoints"
SMALL = {"hidden_size": 12, "num_hidden_layers": 12, "num_attention_heads": 3, "num_channels": 3}


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)


def run_all(texts: list[str], names: dict) -> None:
    import jax

    with jax.enable_x64(True):
        for text in texts:
            exec(text, names)


@pytest.mark.parametrize(
    ("page", "family", "configuration", "facts"),
    [
        ("vit.md", VIT, {}, {"architecture": "ViTForImageClassification", "num_labels": 1000}),
        ("dinov2.md", DINOV2_FAMILY, {"hidden_size": 384, "num_attention_heads": 6, "image_size": 518},
         {"architecture": "Dinov2Model"}),
    ],
)  # fmt: skip
def test_the_pages_show_the_definition(page, family, configuration, facts):
    options, problems = read_options(family, configuration)
    assert not problems
    assert family.definition({**options, **facts}) == blocks(page)[0]


def test_the_page_about_vit_runs(published, tmp_path, monkeypatch):
    config = transformers.ViTConfig(
        **SMALL, intermediate_size=48, image_size=8, patch_size=4, num_labels=1000
    )
    directory, _ = published("ViTForImageClassification", config)
    monkeypatch.chdir(tmp_path)
    plan, weights = iso.import_checkpoint(directory)
    images = np.random.default_rng(0).normal(size=(2, 3, 8, 8))
    names = {"iso": iso, "np": np, "plan": plan, "weights": weights, "images": images}
    run_all(blocks("vit.md")[1:], names)
    assert len(transformers.ViTForImageClassification.from_pretrained("SHORT").vit.layers) == 6
    ten = transformers.ViTForImageClassification.from_pretrained("TEN", dtype=torch.float64).eval()
    assert answers(ten, images, "ViTForImageClassification")[0][""].shape == (2, 10)
    frozen = {
        p.path.split(".")[0].rstrip("0123456789") for p in names["classifier"].parameters if not p.trainable
    }
    assert frozen == {"patches", "block"}
    run = available.load("torch").forward
    whole = run(plan, weights, {"x": images}, "float64")[""]
    assert names["wide"].node("block0").operator.mlp_ratio == 6
    wide = run(names["wide"], names["grown"], {"x": images}, "float64")[""]
    np.testing.assert_allclose(wide, whole, rtol=0, atol=1e-10 * np.abs(whole).max())
    averaged = run(names["averaged"], weights, {"x": images}, "float64")[""]
    assert averaged.shape == whole.shape
    assert np.abs(averaged - whole).max() > 0.1


def test_the_page_about_dinov2_runs(published, tmp_path, monkeypatch):
    config = transformers.Dinov2Config(**SMALL | {"num_hidden_layers": 2}, image_size=518)
    directory, model = published("Dinov2Model", config)
    monkeypatch.chdir(tmp_path)
    plan, weights = iso.import_checkpoint(directory)
    images = np.random.default_rng(0).normal(size=(1, 3, 224, 224))
    names = {"iso": iso, "np": np, "plan": plan, "weights": weights, "images": images}
    registers, *rest = blocks("dinov2.md")[1:]
    with_registers, _ = read_options(DINOV2_WITH_REGISTERS, {"image_size": 518, "patch_size": 14})
    with_registers |= {"architecture": "Dinov2WithRegistersModel", "use_swiglu_ffn": True}
    assert registers in DINOV2_WITH_REGISTERS.definition(with_registers)
    run_all(rest, names)
    # What transformers computes with the table of 37 x 37 on an image of 16 x 16 patches.
    found = available.load("torch").forward(names["smaller"], names["resized"], {"x": images}, "float64")
    expected, _ = answers(model, images, "Dinov2Model")
    np.testing.assert_allclose(
        found["pooled"], expected["pooled"], rtol=0, atol=1e-9 * np.abs(expected["pooled"]).max()
    )
    assert transformers.Dinov2Model.from_pretrained("SMALLER").config.image_size == 224
    assert (
        transformers.Dinov2ForImageClassification.from_pretrained("CLASSIFIER").classifier.out_features == 10
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config", "size"),
    [
        ("ViTForImageClassification", {"num_labels": 1000, "layer_norm_eps": 1e-12}, 224),
        ("Dinov2Model", {"hidden_size": 384, "num_attention_heads": 6, "image_size": 224}, 224),
        (
            "Dinov2WithRegistersModel",
            {"hidden_size": 384, "num_attention_heads": 6, "image_size": 224, "patch_size": 14},
            224,
        ),
    ],
)
def test_at_the_published_size(tmp_path, name, config, size):
    """ViT-B/16, DINOv2 ViT-S/14 and the same with registers, as they start, in float32."""
    family = name.removesuffix("ForImageClassification").removesuffix("Model")
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**config)).eval()
    model.save_pretrained(tmp_path)
    plan, weights = iso.import_checkpoint(tmp_path)
    images = np.random.default_rng(0).normal(size=(1, 3, size, size)).astype(np.float32)
    found = available.load("torch").forward(plan, weights, {"x": images}, "float32")
    truth = numeric_bound(plan, weights, {"x": images})
    expected, _ = answers(model, images, name)
    for output, value in truth.outputs.items():
        assert np.abs(found[output] - value).max() <= truth.total
        assert np.abs(expected[output] - value).max() <= truth.total


@pytest.mark.parametrize(
    ("name", "keys", "hint"),
    [
        ("Dinov2Model", {"image_size": [6, 9]},
         "image_size: expected a square image (the table of positions is one), got [6, 9]"),
        ("Dinov2Model", {"mlp_ratio": 2.5}, "mlp_ratio: expected an integer from 1, got 2.5"),
        ("Dinov2Model", {"use_swiglu_ffn": "yes"}, "use_swiglu_ffn: expected true or false, got 'yes'"),
        ("Dinov2WithRegistersModel", {"num_register_tokens": 0},
         "num_register_tokens: expected an integer from 1, got 0"),
        ("Dinov2Model", {"patch_size": [3, 2]}, "patch_size: expected square patches, got [3, 2]"),
        ("ViTModel", {"image_size": 7}, "image_size: expected multiples of patch_size=3, got 7"),
        ("ViTModel", {"image_size": "big"}, "image_size: expected an integer from 1 or two, got 'big'"),
        ("ViTModel", {"head_dim": 7}, "head_dim: expected 3, the width 15 by 5 heads, got 7"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(published, name, keys, hint):
    family = name.removesuffix("Model")
    directory, _ = published(
        name, getattr(transformers, f"{family}Config")(**(DINOV2 if family.startswith("Dinov2") else SIZES))
    )
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.code == "E_CHECKPOINT"
    assert error.value.hints == (hint,)
