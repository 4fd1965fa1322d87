"""What ViT, DeiT and DINOv2 share: image and patch sizes, the stem, and the names of the encoder's tensors."""

from __future__ import annotations

from typing import Any

from isomorph.checkpoints.blocks import ACTIVATIONS, PreNorm
from isomorph.checkpoints.family import (
    BATCHED,
    Handled,
    Ignored,
    NotThisFamily,
    Only,
    Options,
    Row,
    affine,
    dropout,
    operators_of,
    whole,
)
from isomorph.errors import shorten
from isomorph.plan import Plan

SETTINGS: dict[str, Handled | Ignored | Only] = {
    "hidden_size": Handled("int", 768),
    "num_hidden_layers": Handled("layers", 12),
    "num_attention_heads": Handled("int", 12),
    "hidden_act": Handled("choice", "gelu", ACTIVATIONS),
    "image_size": Handled("any", 224),
    "patch_size": Handled("any", 16),
    "num_channels": Handled("int", 3),
    "head_dim": Handled("int", None, optional=True),  # no key of the class's, but its attention reads it
    **dropout("hidden_dropout_prob", "attention_probs_dropout_prob"),
}


def pair(options: Options, key: str) -> tuple[int, int]:
    """A height and width; ValueError unless it is one integer or two."""
    value = options[key]
    sides = [whole(side) for side in value] if isinstance(value, list) else [whole(value)] * 2
    if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
        raise ValueError(f"{key}: expected an integer from 1 or two, got {shorten(value)}")
    return sides[0], sides[1]


def problems(options: Options) -> list[str]:
    """Sizes that make no grid of patches, and heads that are not the width's share."""
    width, heads, head_dim = (options[key] for key in ("hidden_size", "num_attention_heads", "head_dim"))
    if head_dim not in (None, width // heads):
        return [f"head_dim: expected {width // heads}, the width {width} by {heads} heads, got {head_dim}"]
    try:
        (height, width), (rows, columns) = pair(options, "image_size"), pair(options, "patch_size")
    except ValueError as problem:
        return [str(problem)]
    if rows != columns:
        return [f"patch_size: expected square patches, got {shorten(options['patch_size'])}"]
    if height % rows or width % rows:
        return [f"image_size: expected multiples of patch_size={rows}, got {shorten(options['image_size'])}"]
    return []


def tokens(options: Options, extra: int) -> int:
    """How many positions there are: one for each patch, and those put in front."""
    (height, width), (patch, _) = pair(options, "image_size"), pair(options, "patch_size")
    return (height // patch) * (width // patch) + extra


def stem(options: Options, stack: PreNorm, distilled: bool = False, registers: int = 0) -> str:
    """The text from the image to the encoder's input: the class token first, then registers, then patches."""
    (height, width), (patch, _) = pair(options, "image_size"), pair(options, "patch_size")
    second = 'cls_token(name="distillation")\n' if distilled else ""
    if registers:  # after the positions, which they have none of
        positions = (
            f'pos_embed({tokens(options, 1)}, name="positions")\n'
            "token, patches = split(1)\n"
            f'after = register_tokens(patches, {registers}, name="registers")\n'
            f"{stack.entry}concat(token, after)\n\n"
        )
    else:
        positions = f'{stack.entry}pos_embed({tokens(options, 1 + distilled)}, name="positions")\n\n'
    return (
        f'input("B", {options["num_channels"]}, {height}, {width})\n\n'
        f'patch_embed({options["hidden_size"]}, patch_size={patch}, name="patches")'
        f"   # {height // patch} x {width // patch} patches\n"
        f'{second}cls_token(name="cls")\n'
        f"{positions}"
    )


def class_head(classes: int) -> str:
    """The text of a classifier that reads the class token, from the tokens that are current."""
    return f'pool_tokens("first")   # the class token\nlinear({classes}, name="head")\n\noutput("B", {classes})\n'


def teacher_head(classes: int) -> str:
    """The text of DeiT's two classifiers, from the tokens called ``features``; their answers are averaged."""
    return (
        "token, rest = split(features, 1)\n"
        "a = pool_tokens(token)                   # the class token\n"
        f'label = linear(a, {classes}, name="head")\n'
        'b = pool_tokens(rest, "first")           # the distillation token\n'
        f'teacher = linear(b, {classes}, name="teacher_head")\n'
        "add(label, teacher)\nscale(0.5)\n\n"
        f'output("B", {classes})\n'
    )


def stem_rows() -> list[Row]:
    """The stem's tensors."""
    return [
        Row("embeddings.cls_token", ("cls.token",)),
        Row("embeddings.position_embeddings", ("positions.weight",), BATCHED),
        *affine("embeddings.patch_embeddings.projection", "patches.proj"),
    ]


def attention_rows(attention: str, bias: bool) -> list[Row]:
    """The attention's tensors in every layer."""
    layer = "encoder.layer.{i}.attention"
    named = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
    return [
        *(
            row
            for theirs, ours in named.items()
            for row in affine(f"{layer}.attention.{theirs}", f"{attention}.{ours}", bias=bias)
        ),
        *affine(f"{layer}.output.dense", f"{attention}.o_proj"),
    ]


def gated_rows(inner: str, outer: str, ffn: str) -> list[Row]:
    """A gated feed-forward whose gate and other map are one tensor, the gate first."""
    return [
        *(Row(f"{inner}.{part}", (f"{ffn}.gate.{part}", f"{ffn}.up.{part}")) for part in ("weight", "bias")),
        *affine(outer, f"{ffn}.down"),
    ]


def describe_image(plan: Plan) -> dict[str, Any]:
    """The options of the stem."""
    patches = operators_of(plan, "patch_embed")[0]
    cut = next(node for node in plan.nodes if node.operator is patches)
    shape = plan.values[cut.inputs[0][1]].shape
    if len(shape) != 4 or not all(type(size) is int for size in shape[1:]):
        raise NotThisFamily("its image has an open size")
    _, channels, height, width = shape
    return {
        "hidden_size": patches.sizes["D"],
        "image_size": height if height == width else [height, width],
        "patch_size": patches.patch_size,
        "num_channels": channels,
    }
