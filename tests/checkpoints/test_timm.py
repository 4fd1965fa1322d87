"""ViT, DeiT and DINOv2 under timm's names, beside transformers and beside timm's own formula.

The files are made here, by timm's published naming, from models of transformers with random weights; for what
transformers has not, the forward computation is written out in NumPy.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import isomorph as iso
from isomorph.agreement.bounds import numeric_bound
from isomorph.backends import available
from isomorph.checkpoints.timm_variants import HEADS, read_variant

GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.normal(size=(2, 2, 6, 9))
SIZES = {
    "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 5, "image_size": [6, 9], "patch_size": 3,
    "num_channels": 2, "layer_norm_eps": 1e-6,
}  # fmt: skip

# Their names in transformers' files, each with timm's; query, key and value are joined in that order.
NAMES = {
    "embeddings.cls_token": "cls_token", "embeddings.distillation_token": "dist_token",
    "embeddings.position_embeddings": "pos_embed", "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "embeddings.register_tokens": "reg_token",
    "layernorm_before": "norm1", "layernorm_after": "norm2", "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2", "mlp.weights_in": "mlp.fc1",
    "mlp.weights_out": "mlp.fc2", "layer_scale1.lambda1": "ls1.gamma", "layer_scale2.lambda1": "ls2.gamma",
    "layernorm": "norm", "classifier": "head", "cls_classifier": "head", "distillation_classifier": "head_dist",
}  # fmt: skip


def timm_names(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of a file of transformers under timm's names."""
    found = {}
    for name, array in tensors.items():
        short = re.sub(r"^(vit|deit|dinov2)\.", "", name).replace("encoder.layer.", "blocks.")
        if "mask_token" in short or "pooler" in short:
            continue
        if part := re.fullmatch(r"(blocks\.\d+\.)attention\.attention\.query\.(weight|bias)", short):
            joined = [tensors[name.replace("query", each)] for each in ("query", "key", "value")]
            found[f"{part[1]}attn.qkv.{part[2]}"] = np.concatenate(joined)
        elif ".attention.attention." not in short:
            start, inner, kind = re.findall(r"^(blocks\.\d+\.)?(.*?)(\.weight|\.bias)?$", short)[0]
            found[start + NAMES.get(inner, inner) + kind] = array
    return found


def write(directory, configuration: dict, tensors: dict[str, np.ndarray]) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(configuration))
    save_file(
        {name: np.ascontiguousarray(array) for name, array in tensors.items()},
        directory / "model.safetensors",
    )


def configuration(name: str, **more) -> dict:
    """As timm publishes it."""
    return {
        "architecture": name, "num_classes": 3, "num_features": 15, "global_pool": "token",
        "pretrained_cfg": {
            "tag": "augreg_in21k_ft_in1k", "custom_load": True, "input_size": [2, 6, 9], "fixed_input_size": True,
            "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center", "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5], "num_classes": 3, "pool_size": None, "first_conv": "patch_embed.proj",
            "classifier": "head", "license": "apache-2.0",
        },
        "model_args": {"num_heads": 5},
    } | more  # fmt: skip


def answers(directory, expected: dict[str, np.ndarray], images: np.ndarray = IMAGES) -> iso.Plan:
    """Reference and torch give the expected numbers in float64, every backend within the bound in float32."""
    plan, weights = iso.import_checkpoint(directory)
    assert plan.dtype == "float64"
    for backend in ("reference", "torch"):
        found = available.load(backend).forward(plan, weights, {"x": images}, "float64")
        assert sorted(found) == sorted(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-10 * max(1, np.abs(value).max()))
    single, narrow = iso.import_checkpoint(directory, dtype="float32")
    truth = numeric_bound(single, narrow, {"x": images})
    for backend in ("torch", "nnx", "linen"):
        found = available.load(backend).forward(single, narrow, {"x": images}, "float32")
        for name, value in truth.outputs.items():
            assert np.abs(np.asarray(found[name]) - value).max() <= truth.total, backend
    return plan


# -- beside transformers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "options", "model_args"),
    [
        ("ViTForImageClassification", {"intermediate_size": 30}, {}),
        (
            "ViTForImageClassification",
            {"intermediate_size": 22, "hidden_act": "gelu_new"},
            {"act_layer": "gelu_tanh"},
        ),
        ("ViTForImageClassification", {"intermediate_size": 22, "qkv_bias": False}, {"qkv_bias": False}),
        (
            "DeiTForImageClassificationWithTeacher",
            {"intermediate_size": 45},
            {"img_size": [6, 9], "drop_rate": 0.5},
        ),
    ],
)
def test_computes_what_transformers_computes(published, tmp_path, architecture, options, model_args):
    family = architecture[:4].rstrip("F")
    config = getattr(transformers, f"{family}Config")(**SIZES, num_labels=3, **options)
    directory, model = published(architecture, config)
    name = "deit_small_distilled_patch3_9" if family == "DeiT" else "vit_small_patch3_9"
    their = timm_names(load_file(directory / "model.safetensors"))
    write(tmp_path / "timm", configuration(name, model_args={"num_heads": 5, **model_args}), their)
    with torch.no_grad():
        expected = model(torch.from_numpy(IMAGES)).logits.numpy()
    plan = answers(tmp_path / "timm", {"": expected})
    # And it is the very network that the other names give, which goes back to transformers.
    again, weights = iso.import_checkpoint(directory)
    imported = iso.import_checkpoint(tmp_path / "timm")[1]
    assert plan.diff(again) == []
    assert all(imported[path].tobytes() == weights[path].tobytes() for path in weights)
    assert iso.export_checkpoint(tmp_path / "back", plan, imported) == architecture


def test_a_dinov2_is_the_one_of_transformers(published, tmp_path):
    """Without a classifier the answer is all tokens, and the class token that timm's model returns."""
    sizes = SIZES | {"image_size": 6, "mlp_ratio": 3}
    directory, model = published("Dinov2Model", transformers.Dinov2Config(**sizes))
    changes = {"num_classes": 0, "pretrained_cfg": {"input_size": [2, 6, 6]}}
    write(
        tmp_path / "timm",
        configuration("vit_small_patch14_dinov2", **changes),
        timm_names(load_file(directory / "model.safetensors")),
    )
    images = np.ascontiguousarray(IMAGES[:, :, :, :6])
    with torch.no_grad():
        answer = model(torch.from_numpy(images))
    expected = {"hidden": answer.last_hidden_state.numpy(), "pooled": answer.pooler_output.numpy()}
    plan = answers(tmp_path / "timm", expected, images)
    assert plan.diff(iso.import_checkpoint(directory)[0]) == []
    assert plan.definition == (
        "# vit_small_patch14_dinov2: 2 layers of width 15, images in patches of 3 pixels.\n"
        "\n"
        'input("B", 2, 6, 6)\n'
        "\n"
        'patch_embed(15, patch_size=3, name="patches")   # 2 x 2 patches\n'
        'cls_token(name="cls")\n'
        'pos_embed(5, name="positions")\n'
        "\n"
        "for _ in range(2):\n"
        '    transformer_block(5, mlp_ratio=3, activation="gelu", layer_scale=True, eps=1e-06, name="block")\n'
        "\n"
        'hidden = layer_norm(eps=1e-06, name="norm")\n'
        'pooled = pool_tokens(hidden, "first")\n'
        "\n"
        'output(hidden=("B", 5, 15), pooled=("B", 15))\n'
    )


# -- beside the published forward computation ----------------------------------------------------

HEADED, WIDTH, HIDDEN = 3, 12, 20


def random_tensors(
    *parts: str, registers: int = 0, positions: int = 7, classes: int = 3
) -> dict[str, np.ndarray]:
    """A file of timm's: two layers of width 12 with patches of 3 pixels, and the parts that are named."""
    D, h = WIDTH, HIDDEN
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (D, 2, 3, 3), "patch_embed.proj.bias": (D,), "pos_embed": (1, positions, D),
        "cls_token": (1, 1, D), "reg_token": (1, registers, D),
    }  # fmt: skip
    for i in range(2):
        block = {
            "norm1.weight": (D,), "norm1.bias": (D,), "attn.qkv.weight": (3 * D, D), "attn.qkv.bias": (3 * D,),
            "attn.proj.weight": (D, D), "attn.proj.bias": (D,), "ls1.gamma": (D,), "norm2.weight": (D,),
            "norm2.bias": (D,), "mlp.fc1.weight": (h, D), "mlp.fc1.bias": (h,), "mlp.fc2.bias": (D,),
            "mlp.fc2.weight": (D, h // 2 if "gated" in parts else h), "ls2.gamma": (D,),
        }  # fmt: skip
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in block.items()}
    for name in ("norm_pre", "norm", "fc_norm"):
        shapes |= {f"{name}.weight": (D,), f"{name}.bias": (D,)}
    shapes |= {"head.weight": (classes, D), "head.bias": (classes,)}
    absent = {
        "cls_token": "cls_token", "scaled": r".*gamma", "norm_pre": r"norm_pre\..*", "norm": r"norm\..*",
        "fc_norm": r"fc_norm\..*", "qkv_bias": r".*qkv\.bias", "patch_bias": r"patch_embed\.proj\.bias",
    }  # fmt: skip
    without = [pattern for part, pattern in absent.items() if part not in parts]
    without += [] if registers else ["reg_token"]
    without += [] if classes else [r"head\..*"]
    draw = np.random.default_rng(1)
    return {
        name: draw.normal(scale=0.6, size=shape)
        for name, shape in shapes.items()
        if not any(re.fullmatch(pattern, name) for pattern in without)
    }


def norm(t, name, x, eps):
    if f"{name}.weight" not in t:
        return x
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps) * t[f"{name}.weight"] + t[
        f"{name}.bias"
    ]


def affine(t, name, x):
    return x @ t[f"{name}.weight"].T + t.get(f"{name}.bias", 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def attend(t, name, x):
    """Queries, keys and values are thirds of one product, each of them head after head."""
    B, T, D = x.shape
    q, k, v = affine(t, f"{name}.qkv", x).reshape(B, T, 3, HEADED, D // HEADED).transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(D // HEADED)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ v
    return affine(t, f"{name}.proj", out.transpose(0, 2, 1, 3).reshape(B, T, D))


def forward(t, images, pool, eps=1e-6, act=gelu, own=True) -> tuple[np.ndarray, np.ndarray]:
    """timm's VisionTransformer: the tokens, and the answer. ``own``: the front tokens have positions too."""
    B, C, H, W = images.shape
    tiles = images.reshape(B, C, H // 3, 3, W // 3, 3).transpose(0, 2, 4, 1, 3, 5).reshape(B, -1, C * 9)
    x = tiles @ t["patch_embed.proj.weight"].reshape(WIDTH, -1).T + t.get("patch_embed.proj.bias", 0)
    front = [np.repeat(t[name], B, 0) for name in ("cls_token", "reg_token") if name in t]
    count = sum(token.shape[1] for token in front)
    x = (
        np.concatenate([*front, x], 1) + t["pos_embed"]
        if own
        else np.concatenate([*front, x + t["pos_embed"]], 1)
    )
    x = norm(t, "norm_pre", x, eps)
    for i in range(2):
        block = f"blocks.{i}"
        x = x + attend(t, f"{block}.attn", norm(t, f"{block}.norm1", x, eps)) * t.get(f"{block}.ls1.gamma", 1)
        h = affine(t, f"{block}.mlp.fc1", norm(t, f"{block}.norm2", x, eps))
        if t[f"{block}.mlp.fc2.weight"].shape[1] == HIDDEN // 2:
            first, second = np.split(h, 2, -1)
            h = first * sigmoid(first) * second
        else:
            h = act(h)
        x = x + affine(t, f"{block}.mlp.fc2", h) * t.get(f"{block}.ls2.gamma", 1)
    x = norm(t, "norm", x, eps)
    patches = x[:, count:]
    pooled = {
        "token": x[:, 0], "avg": patches.mean(1), "max": patches.max(1),
        "avgmax": 0.5 * (patches.max(1) + patches.mean(1)),
    }[pool]  # fmt: skip
    pooled = norm(t, "fc_norm", pooled, eps)
    return x, affine(t, "head", pooled) if "head.weight" in t else pooled


COMMON = ("qkv_bias", "patch_bias")
CASES = {
    # An average of the patches alone, normalized afterwards.
    "avg": ("vit_small_patch3_9", ("cls_token", "fc_norm", *COMMON), {"pool": "avg"}, {"global_pool": "avg"}, {}),
    "max": ("vit_small_patch3_9", ("cls_token", "norm", *COMMON), {"pool": "max"}, {}, {"global_pool": "max"}),
    "avgmax": ("vit_small_patch3_9", ("cls_token", "fc_norm", *COMMON), {"pool": "avgmax"},
               {"global_pool": "avgmax"}, {"fc_norm": True}),
    "avgmax of patches alone": ("vit_small_patch3_gap_9", ("norm", *COMMON), {"pool": "avgmax"},
                                {"global_pool": "avgmax"}, {"class_token": False}),
    "token and fc_norm": ("vit_small_patch3_9", ("cls_token", "fc_norm", *COMMON), {"pool": "token"}, {},
                          {"fc_norm": True}),
    "gap": ("vit_medium_patch3_gap_9", ("norm", "scaled", "patch_bias"), {"pool": "avg"}, {"global_pool": None},
            {"class_token": False, "qkv_bias": False, "init_values": 1e-6, "fc_norm": False}),
    "registers": ("vit_little_patch3_reg4_gap_9", ("fc_norm", "scaled", *COMMON), {"pool": "avg", "own": False},
                  {"global_pool": "avg"}, {"reg_tokens": 4, "no_embed_class": True, "dynamic_img_size": True}),
    "registers with positions": ("vit_so150m_patch3_reg4_gap_9", ("cls_token", "norm", *COMMON), {"pool": "avg"},
                                 {"global_pool": "avg"}, {"no_embed_class": False}),
    "deit 3": ("deit3_small_patch3_9", ("cls_token", "norm", "scaled", *COMMON), {"pool": "token", "own": False},
               {}, {}),
    "clip": ("vit_base_patch3_clip_9", ("cls_token", "norm_pre", "norm", "qkv_bias"),
             {"pool": "token", "eps": 1e-5}, {}, {"pre_norm": True}),
    "clip's quick gelu": ("vit_base_patch3_clip_quickgelu_9", ("cls_token", "norm_pre", "norm", "qkv_bias"),
                          {"pool": "token", "eps": 1e-5, "act": lambda x: x * sigmoid(1.702 * x)}, {}, {}),
    "another activation": ("vit_small_patch3_9", ("cls_token", "norm", *COMMON),
                           {"pool": "token", "act": lambda x: np.maximum(x, 0)}, {}, {"act_layer": "relu"}),
    "giant": ("vit_giant_patch3_reg4_dinov2", ("cls_token", "norm", "scaled", "gated", *COMMON),
              {"pool": "token", "own": False}, {"num_classes": 0}, {}),
    "no norm at the end": ("vit_intern300m_patch3_9", ("cls_token", "scaled", *COMMON), {"pool": "token"},
                           {"num_classes": 0}, {"final_norm": False}),
    "features of an average": ("vit_small_patch3_reg4_gap_9", ("fc_norm", "qkv_bias", "patch_bias"),
                               {"pool": "avg", "own": False}, {"num_classes": 0}, {}),
}  # fmt: skip
"""A name, the parts that are there, how the forward computation goes, and the configuration's keys."""


@pytest.mark.parametrize("case", CASES)
def test_computes_what_timm_computes(tmp_path, case):
    name, parts, computation, keys, arguments = CASES[case]
    registers = 4 if "_reg4" in name else 0
    front = ("cls_token" in parts) + registers
    classes = keys.get("num_classes", 3)
    positions = 6 + (front if computation.get("own", True) else 0)
    tensors = random_tensors(*parts, registers=registers, positions=positions, classes=classes)
    # The norm that stands last decides the rest: a key that is absent or null is told by the name.
    written = configuration(name, model_args={"num_heads": HEADED, **arguments}, **keys)
    if "gap" in name and "global_pool" not in keys:
        del written["global_pool"]
    write(tmp_path / "timm", written, tensors)
    hidden, answer = forward(tensors, IMAGES, **computation)
    answers(tmp_path / "timm", {"": answer} if classes else {"hidden": hidden, "pooled": answer})


# -- names ---------------------------------------------------------------------------------------


def test_heads_are_64_wide_but_for_the_published_exceptions():
    wide = {(size, width): width / heads for size, widths in HEADS.items() for width, heads in widths.items()}
    # ViT-H/14 and ViT-g/14 (Zhai et al., 2022: 16 heads of 80, 88 and 104), SoViT-400m (16 of 72).
    others = {("huge", 1280): 80, ("giant", 1408): 88, ("gigantic", 1664): 104, ("so400m", 1152): 72}
    assert {key: value for key, value in wide.items() if value != 64} == others


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224", "vit_base_patch32_clip_quickgelu_224", "vit_base_patch16_224_miil",
        "vit_large_patch14_reg4_dinov2", "vit_small_patch16_36x1_224", "vit_mediumd_patch16_reg4_gap_384",
        "deit_base_distilled_patch16_384", "deit3_huge_patch14_224", "vit_so400m_patch14_reg1_tipsv2",
        "vit_base_patch16_plus_240",
    ],
)  # fmt: skip
def test_published_names_are_known(name):
    assert read_variant(name).name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet50", "expected a name that begins with vit_, deit_ or deit3_, got 'resnet50'"),
        ("vit", "expected a name that begins with vit_, deit_ or deit3_, got 'vit'"),
        (None, "expected a name that begins with vit_, deit_ or deit3_, got None"),
        (
            "vit_relpos_base_patch16_224",
            "'relpos' is no known size of 'vit_relpos_base_patch16_224'; sizes: tiny, xsmall, wee, little, small, medium, "
            "mediumd, betwixt, base, so150m2, so150m, large, intern300m, so400m, huge, giant, gigantic",
        ),
        *(
            (
                f"vit_base_patch16_{word}_224",
                f"the word {word!r} of 'vit_base_patch16_{word}_224' is not known; words: patchN, regN, plus, clip, "
                "quickgelu, gap, dinov2, tipsv2, distilled, miil, in21k, 36x1 and the image's size",
            )
            for word in ("siglip", "rope", "xp", "rpn", "18x2", "dinov3", "")
        ),
    ],
)
def test_other_names_are_refused(tmp_path, name, message):
    """siglip's activation is another for some names; the others compute something else under like tensors."""
    write(tmp_path / "timm", configuration(name), random_tensors("cls_token", "norm", *COMMON))
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(tmp_path / "timm")
    assert error.value.code == "E_CHECKPOINT"
    assert error.value.hints == (f"architecture: {message}",)


def refused(directory, written: dict, tensors: dict[str, np.ndarray]) -> iso.IsomorphError:
    write(directory / "timm", written, tensors)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory / "timm")
    return error.value


def with_arguments(**arguments) -> dict:
    return configuration("vit_small_patch3_9", model_args={"num_heads": HEADED, **arguments})


def with_data(**data) -> dict:
    return configuration("vit_small_patch3_9", model_args={"num_heads": HEADED}, pretrained_cfg=data)


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        (configuration("vit_small_patch3_9", model_args={}),
         "model_args.num_heads: missing, and small has the width 384, not 12"),
        (with_arguments(surprise=1), "model_args.surprise: unknown key, got 1"),
        (configuration("vit_small_patch3_9", model_args=[1]), "model_args: expected an object, got [1]"),
        (configuration("vit_small_patch3_9", global_pool="map"),
         "global_pool: expected 'token' or 'avg' or 'max' or 'avgmax', got 'map'"),
        (with_arguments(global_pool=""), "model_args.global_pool: expected 'token' or 'avg' or 'max' or 'avgmax', got ''"),
        (with_arguments(num_heads="6"), "model_args.num_heads: expected an integer from 1, got '6'"),
        (with_arguments(act_layer="mish"),
         "model_args.act_layer: expected 'gelu' or 'gelu_tanh' or 'quick_gelu' or 'relu' or 'silu' or 'swish', "
         "got 'mish'"),
        (with_arguments(qk_norm=True),
         "model_args.qk_norm: expected False (attention has no layer norm of queries and keys), got True"),
        (with_arguments(norm_layer="rmsnorm"),
         "model_args.norm_layer: expected None (the layers are those of the variant), got 'rmsnorm'"),
        (with_arguments(proj_bias=False), "model_args.proj_bias: expected True (the blocks have these biases), got False"),
        (with_arguments(pool_include_prefix=True),
         "model_args.pool_include_prefix: expected False (patches alone are pooled), got True"),
        (with_arguments(img_size=[6, 12]),
         "pos_embed: expected 8 or 9 positions for an image of 6 x 12 pixels, got 7"),
        (with_arguments(img_size=[6, 9], no_embed_class=True),
         "pos_embed: expected 6 positions for an image of 6 x 9 pixels, got 7"),
        (with_arguments(img_size=[6, 10]), "model_args.img_size: expected multiples of the patches' size 3, got [6, 10]"),
        (with_arguments(img_size="9"), "model_args.img_size: expected an integer from 1 or two, got '9'"),
        (with_data(input_size=[3, 6, 9]),
         "pretrained_cfg.input_size: expected [2, height, width], as the patches have, got [3, 6, 9]"),
        (with_data(), "pretrained_cfg.input_size: missing, and 7 positions tell no square image"),
        (configuration("vit_small_patch3_9", model_args={"num_heads": HEADED}, num_classes=-1),
         "num_classes: expected an integer from 0, got -1"),
    ],
)  # fmt: skip
def test_keys_that_cannot_be_followed_are_refused_by_name(tmp_path, written, hint):
    error = refused(tmp_path, written, random_tensors("cls_token", "norm", *COMMON))
    assert error.code == "E_CHECKPOINT"
    assert error.hints == (hint,)


def test_gains_have_one_name(tmp_path):
    """``ls1.gamma`` is read, and no other spelling is taken for it, nor is a norm's old name changed."""
    tensors = random_tensors("cls_token", "norm", "scaled", *COMMON)
    write(tmp_path / "timm", with_arguments(), tensors)
    plan, weights = iso.import_checkpoint(tmp_path / "timm")
    assert weights["attn_scale1.gamma"].tobytes() == tensors["blocks.1.ls1.gamma"].tobytes()
    assert plan.node("attn_scale1").operator.name == "layer_scale"
    for spelling in ("gamma_1", "ls1.weight", "norm1.gamma"):
        other = {
            key.replace("blocks.1.ls1.gamma", f"blocks.1.{spelling}"): each for key, each in tensors.items()
        }
        error = refused(tmp_path, with_arguments(), other)
        assert error.code == "E_WEIGHTS"
        assert error.hints == (
            "missing: blocks.1.ls1.gamma [12]",
            f"unexpected: blocks.1.{spelling} in model.safetensors [12]",
        )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("attn_pool.latent", "pooling by attention"),
        ("blocks.0.attn.q_norm.weight", "norms of queries and keys"),
        ("blocks.0.mlp.norm.weight", "a norm inside the feed-forward"),
        ("patch_embed.backbone.conv.weight", "a convolutional stem"),
    ],
)
def test_modules_without_words_are_refused_by_name(tmp_path, name, message):
    error = refused(
        tmp_path, with_arguments(), random_tensors("cls_token", "norm", *COMMON) | {name: np.ones(3)}
    )
    assert error.hints == (f"architecture: {message} cannot be followed",)


def test_tensors_of_another_kind(tmp_path):
    tensors = random_tensors("cls_token", "norm", *COMMON)
    del tensors["pos_embed"]
    error = refused(tmp_path, with_arguments(), tensors)
    assert str(error) == (
        "E_WEIGHTS: the tensors are not those of a vision transformer under timm's names\n"
        "  pos_embed: expected a tensor with 3 axes, got none"
    )
    tensors = random_tensors("cls_token", "norm", "gated", *COMMON)
    assert refused(tmp_path, with_arguments(), tensors).hints == (
        "architecture: a gated feed-forward is known of giant alone, not of 'vit_small_patch3_9'",
    )
    tensors = random_tensors("norm", *COMMON, positions=6)
    assert refused(tmp_path, with_arguments(), tensors).hints == (
        "global_pool: expected avg, max or avgmax, for there is no cls_token, got token",
    )
    tensors = random_tensors("cls_token", "norm", *COMMON)
    tensors["blocks.999999999.norm1.weight"] = np.ones(12)
    error = refused(tmp_path, with_arguments(), tensors)
    assert error.code == "E_CHECKPOINT"
    assert "describes a network that cannot be built" in error.message


def test_a_square_image_from_the_number_of_positions(tmp_path):
    """Five positions are a class token and 2 x 2 patches of 3 pixels; nine without their own are 3 x 3."""
    tensors = random_tensors("cls_token", "norm", *COMMON, positions=5)
    write(tmp_path / "timm", with_data(), tensors)
    plan, _ = iso.import_checkpoint(tmp_path / "timm")
    assert [str(size) for size in plan.values[plan.inputs[0][1]].shape] == ["B", "2", "6", "6"]
    write(tmp_path / "timm", with_data(), random_tensors("cls_token", "norm", *COMMON, positions=9))
    plan, _ = iso.import_checkpoint(tmp_path / "timm")
    assert [str(size) for size in plan.values[plan.inputs[0][1]].shape] == ["B", "2", "9", "9"]


def test_what_transformers_has_no_name_for_is_not_exported(tmp_path):
    write(tmp_path / "timm", configuration("vit_small_patch3_gap_9", model_args={"num_heads": HEADED}, global_pool="avg"),
          random_tensors("norm", *COMMON, positions=6))  # fmt: skip
    plan, weights = iso.import_checkpoint(tmp_path / "timm")
    with pytest.raises(iso.IsomorphError) as error:
        iso.export_checkpoint(tmp_path / "back", plan, weights)
    assert error.value.code == "E_CHECKPOINT"
    assert "vit: positions is pos_embed where cls_token is expected" in error.value.hints


def test_the_page_runs(tmp_path, monkeypatch):
    """And it names what is read."""
    page = (Path(__file__).parents[2] / "docs" / "checkpoints" / "timm.md").read_text()
    assert all(f"`{size}`" in page for size in HEADS)
    config = transformers.ViTConfig(
        hidden_size=192, num_attention_heads=3, num_hidden_layers=12, intermediate_size=768, image_size=8,
        patch_size=4, num_labels=1000, layer_norm_eps=1e-6,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "hf")
    written = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    written |= {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"input_size": [3, 8, 8]}}
    write(tmp_path / "DIR", written, timm_names(load_file(tmp_path / "hf" / "model.safetensors")))
    monkeypatch.chdir(tmp_path)
    plan, weights = iso.import_checkpoint("DIR")
    names = {"iso": iso, "plan": plan, "weights": weights, "images": np.ones((2, 3, 8, 8), np.float32)}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    assert names["logits"].shape == (2, 1000)
    short = transformers.ViTForImageClassification.from_pretrained("SHORT")
    assert (len(short.vit.layers), short.config.num_attention_heads, short.classifier.out_features) == (
        4,
        3,
        10,
    )


@pytest.mark.slow
def test_at_the_published_size(tmp_path):
    """ViT-B/16 of 224 pixels is the plan, and has the weights, that test_vision.py compares with transformers."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(num_labels=1000, layer_norm_eps=1e-6)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "hf")
    tensors = timm_names(load_file(tmp_path / "hf" / "model.safetensors"))
    data = {"input_size": [3, 224, 224], "num_classes": 1000}
    written = configuration("vit_base_patch16_224", num_classes=1000, pretrained_cfg=data, model_args={})
    write(tmp_path / "timm", written, tensors)
    plan, weights = iso.import_checkpoint(tmp_path / "timm")  # the twelve heads are told by the name alone
    other, same = iso.import_checkpoint(tmp_path / "hf")
    assert plan.diff(other) == []
    assert weights.keys() == same.keys()
    assert all(weights[path].tobytes() == array.tobytes() for path, array in same.items())
