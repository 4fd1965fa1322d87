"""DINOv2 (Oquab et al., 2023): a ViT whose branches are scaled by learned gains.

The published classifiers read the class token beside the average of the patches.
"""

from __future__ import annotations

from typing import Any

from isomorph.checkpoints import images
from isomorph.checkpoints.blocks import ACTIVATIONS, PreNorm, number, read_pre_norm
from isomorph.checkpoints.family import (
    Family,
    Handled,
    Ignored,
    NotThisFamily,
    Only,
    Options,
    Row,
    affine,
    operators_of,
    their_name,
)
from isomorph.errors import shorten
from isomorph.plan import Plan

_BACKBONE = Ignored("which layers a detector reads")
SETTINGS: dict[str, Handled | Ignored | Only] = {
    **images.SETTINGS,
    "patch_size": Handled("any", 14),
    "mlp_ratio": Handled("int", 4),
    "layer_norm_eps": Handled("float", 1e-6),
    "layerscale_value": Ignored("where the gains start; the file has them"),
    "drop_path_rate": Ignored("acts in training only"),
    "use_mask_token": Ignored("read in pre-training only"),
    "qkv_bias": Only((True,), "transformer_block has these biases"),
    "use_swiglu_ffn": Only((False,), "no operator scales a gated feed-forward by a learned gain"),
    **dict.fromkeys(
        ("out_features", "out_indices", "stage_names", "apply_layernorm", "reshape_hidden_states"), _BACKBONE
    ),
}


def _stack(options: Options) -> PreNorm:
    width = options["hidden_size"]
    return PreNorm(
        options["num_hidden_layers"], options["num_attention_heads"], width, options["mlp_ratio"] * width,
        ACTIVATIONS[options["hidden_act"]], options["layer_norm_eps"], layer_scale=True,
    )  # fmt: skip


def problems(options: Options) -> list[str]:
    """As of any image; and it must be square, for the peer library reads the table of positions as a square."""
    if found := images.problems(options):
        return found
    size = options["image_size"]
    if type(size) is not int and size[0] != size[1]:
        return [f"image_size: expected a square image, got {shorten(size)}"]
    return []


def definition(options: Options) -> str:
    """The text; B stays open."""
    stack, width = _stack(options), options["hidden_size"]
    text = (
        f"# DINOv2: {stack.layers} layers of width {width}, "
        f"images in patches of {options['patch_size']} pixels.\n"
        "# Learned gains, gamma1 and gamma2 of every block, scale the two branches.\n\n"
        f"{images.stem(options, stack)}{stack.text()}\n"
        f'hidden = layer_norm(eps={number(options["layer_norm_eps"])}, name="norm")\n'
        'pooled = pool_tokens(hidden, "first")   # the class token: one vector for the image\n'
    )
    if options["architecture"] == "Dinov2Model":
        return f'{text}\noutput(hidden=("B", {images.tokens(options, 1)}, {width}), pooled=("B", {width}))\n'
    classes = options["num_labels"]
    return (
        f"{text}token, patches = split(hidden, 1)\n"
        "average = pool_tokens(patches)\n"
        "concat(pooled, average)\n"
        f'linear({classes}, name="classifier")\n\noutput("B", {classes})\n'
    )


def rows(options: Options) -> list[Row]:
    """Their names, ours, and the order of axes."""
    layer = "encoder.layer.{i}"
    headed = options["architecture"] != "Dinov2Model"
    return [
        *images.stem_rows(),
        *affine(f"{layer}.norm1", "block{i}.norm1"),
        *images.attention_rows("block{i}.attn", True),
        Row(f"{layer}.layer_scale1.lambda1", ("block{i}.gamma1",)),
        *affine(f"{layer}.norm2", "block{i}.norm2"),
        *affine(f"{layer}.mlp.fc1", "block{i}.ffn.up"),
        *affine(f"{layer}.mlp.fc2", "block{i}.ffn.down"),
        Row(f"{layer}.layer_scale2.lambda1", ("block{i}.gamma2",)),
        *affine("layernorm", "norm"),
        *(affine("classifier", "classifier", head=True) if headed else []),
    ]


def describe(plan: Plan) -> dict[str, Any]:
    """A configuration for a plan."""
    image = images.describe_image(plan)
    if type(image["image_size"]) is not int:
        raise NotThisFamily("its image is not square")
    width = image["hidden_size"]
    stack = read_pre_norm(plan, width)
    if not stack.layer_scale:
        raise NotThisFamily("its blocks have layer_scale=False")
    headed = plan.nodes[-1].operator.name == "linear"
    classes = operators_of(plan, "linear")[-1].sizes["D_out"] if headed else 1
    return {
        **image,
        "architecture": "Dinov2ForImageClassification" if headed else "Dinov2Model",
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.heads,
        "mlp_ratio": stack.hidden // width,
        "hidden_act": their_name(ACTIVATIONS, stack.activation),
        "layer_norm_eps": stack.eps,
        "use_mask_token": False,  # there is none to write
        "num_labels": classes,
        **(images.labels(classes) if headed else {}),
    }


DINOV2 = Family(
    model_type="dinov2",
    prefix="dinov2",
    architectures={name: name for name in ("Dinov2Model", "Dinov2ForImageClassification")},
    base_architectures=frozenset(["Dinov2Model"]),
    default_architecture="Dinov2Model",
    settings=SETTINGS,
    definition=definition,
    rows=rows,
    layers=lambda options: options["num_hidden_layers"],
    describe=describe,
    unread=("embeddings.mask_token",),
    written=frozenset(["id2label", "label2id", "use_mask_token"]),
    has_tokens=False,
    observe=images.observe,
    problems=problems,
)
