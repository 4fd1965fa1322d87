"""What ViT, DeiT and DINOv2 share: image and patch sizes, the stem, and the names of the encoder's tensors."""

from __future__ import annotations

from collections.abc import Mapping
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
)
from isomorph.errors import shorten
from isomorph.plan import Plan

SETTINGS: dict[str, Handled | Ignored | Only] = {
    "hidden_size": Handled("int", 768),
    "num_hidden_layers": Handled("int", 12),
    "num_attention_heads": Handled("int", 12),
    "hidden_act": Handled("choice", "gelu", ACTIVATIONS),
    "image_size": Handled("any", 224),
    "patch_size": Handled("any", 16),
    "num_channels": Handled("int", 3),
    **dropout("hidden_dropout_prob", "attention_probs_dropout_prob"),
}


def _pair(options: Options, key: str) -> tuple[int, int]:
    """A height and width; ValueError unless it is one integer or two."""
    value = options[key]
    sides = [value, value] if type(value) is int else value
    if not isinstance(sides, list) or len(sides) != 2 or any(type(s) is not int or s < 1 for s in sides):
        raise ValueError(f"{key}: expected an integer from 1 or two, got {shorten(value)}")
    return sides[0], sides[1]


def problems(options: Options) -> list[str]:
    """Sizes that make no grid of patches."""
    try:
        (height, width), (rows, columns) = _pair(options, "image_size"), _pair(options, "patch_size")
    except ValueError as problem:
        return [str(problem)]
    if rows != columns:
        return [f"patch_size: expected square patches, got {shorten(options['patch_size'])}"]
    if height % rows or width % rows:
        return [f"image_size: expected multiples of patch_size={rows}, got {shorten(options['image_size'])}"]
    return []


def tokens(options: Options, extra: int) -> int:
    """How many positions there are: one for each patch, and those put in front."""
    (height, width), (patch, _) = _pair(options, "image_size"), _pair(options, "patch_size")
    return (height // patch) * (width // patch) + extra


def stem(options: Options, stack: PreNorm, distilled: bool = False) -> str:
    """The text from the image to the encoder's input."""
    (height, width), (patch, _) = _pair(options, "image_size"), _pair(options, "patch_size")
    second = 'cls_token(name="distillation")\n' if distilled else ""
    return (
        f'input("B", {options["num_channels"]}, {height}, {width})\n\n'
        f'patch_embed({options["hidden_size"]}, patch_size={patch}, name="patches")'
        f"   # {height // patch} x {width // patch} patches\n"
        f'{second}cls_token(name="cls")\n'
        f'{stack.entry}pos_embed({tokens(options, 1 + distilled)}, name="positions")\n\n'
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


def describe_image(plan: Plan) -> dict[str, Any]:
    """The options of the stem."""
    patches = operators_of(plan, "patch_embed")[0]
    shape = plan.values[plan.inputs[0][1]].shape
    if len(shape) != 4 or not all(type(size) is int for size in shape[1:]):
        raise NotThisFamily("its image has an open size")
    _, channels, height, width = shape
    return {
        "hidden_size": patches.sizes["D"],
        "image_size": height if height == width else [height, width],
        "patch_size": patches.patch_size,
        "num_channels": channels,
    }


def labels(count: int) -> dict[str, Any]:
    """Names of classes that nobody knows here, as the peer library makes them up."""
    names = {i: f"LABEL_{i}" for i in range(count)}
    return {"id2label": names, "label2id": {name: i for i, name in names.items()}}


def observe(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Whether there is a pooler, and how many classes there are."""
    head = shapes.get("classifier.weight", shapes.get("cls_classifier.weight", ()))
    return {"pooler": "pooler.dense.weight" in shapes, "num_labels": head[0] if len(head) == 2 else 1}
