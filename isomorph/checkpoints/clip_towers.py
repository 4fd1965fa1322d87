"""The two towers of CLIP (Radford et al., 2021): their keys, their text, their tensors.

Every function takes one tower's options, whether it stands alone or is half of a model.
"""

from __future__ import annotations

from typing import Any

from isomorph.checkpoints.blocks import ACTIVATIONS, PreNorm, number, read_pre_norm
from isomorph.checkpoints.family import (
    VECTOR,
    Handled,
    Ignored,
    NotThisFamily,
    Only,
    Options,
    Part,
    Row,
    affine,
    dropout,
    operators_of,
    their_name,
)
from isomorph.checkpoints.images import describe_image
from isomorph.errors import shorten
from isomorph.plan import Plan

LEGACY_END = 2
"""An ``eos_token_id`` that old configurations state wrongly; the peer then takes the largest id."""
_LARGEST = -1  # what `take_at` calls that
_MOST_ID = 2**31 - 1  # the peer compares ids as 32-bit integers

_TOWER: dict[str, Handled | Ignored | Only] = {
    "num_hidden_layers": Handled("layers", 12),
    "hidden_act": Handled("choice", "quick_gelu", ACTIVATIONS),
    "layer_norm_eps": Handled("float", 1e-5),
    "projection_dim": Handled("int", 512),
    "tie_word_embeddings": Ignored("there is no head that scores words"),
    **dropout("attention_dropout"),
}
TEXT: dict[str, Handled | Ignored | Only] = {
    **_TOWER,
    "vocab_size": Handled("int", 49408),
    "hidden_size": Handled("int", 512),
    "intermediate_size": Handled("int", 2048),
    "num_attention_heads": Handled("int", 8),
    "max_position_embeddings": Handled("int", 77),
    "eos_token_id": Handled("any", 49407),
}
VISION: dict[str, Handled | Ignored | Only] = {
    **_TOWER,
    "hidden_size": Handled("int", 768),
    "intermediate_size": Handled("int", 3072),
    "num_attention_heads": Handled("int", 12),
    "num_channels": Handled("int", 3),
    "image_size": Handled("int", 224),
    "patch_size": Handled("int", 32),
}


def _stack(options: Options, **more: Any) -> PreNorm:
    return PreNorm(
        options["num_hidden_layers"], options["num_attention_heads"], options["hidden_size"],
        options["intermediate_size"], ACTIVATIONS[options["hidden_act"]], options["layer_norm_eps"], **more,
    )  # fmt: skip


def text_stack(options: Options) -> PreNorm:
    """Causal, and told of padding: the blocks are composed, for ``transformer_block`` takes no mask."""
    return _stack(options, causal=True, mask=True, prefix="text_")


def image_stack(options: Options) -> PreNorm:
    """Every patch sees every other."""
    return _stack(options, prefix="image_")


IDS = 'ids = input("B", "T", dtype="int64")   # word pieces\n'
MASK = 'mask = input("B", "T", dtype="bool", optional=True)   # True where there is a token\n'


def image_input(options: Options, batch: str) -> str:
    """The declaration of the images, ``batch`` naming how many there are."""
    size = options["image_size"]
    return f'image = input("{batch}", {options["num_channels"]}, {size}, {size})\n'


def text_tower(options: Options) -> str:
    """From the ids to ``hidden``."""
    stack, positions = text_stack(options), options["max_position_embeddings"]
    return (
        f'embedding(ids, {options["vocab_size"]}, {stack.width}, name="text_tokens")\n'
        f'{stack.entry}pos_embed({positions}, name="text_positions")   # hence T <= {positions}\n\n'
        f"{stack.text()}\n"
        f'hidden = layer_norm(eps={number(stack.eps)}, name="text_norm")\n'
    )


def text_pooled(options: Options) -> str:
    """The call that reads ``hidden`` where the text ends."""
    token = options["eos_token_id"]
    if token == LEGACY_END:
        return f"take_at(hidden, ids, token={_LARGEST})   # the largest id ends the text\n"
    return f"take_at(hidden, ids, token={token})   # the first id {token} ends the text\n"


def image_tower(options: Options) -> str:
    """From the image to the last block's result."""
    stack, patch = image_stack(options), options["patch_size"]
    side = options["image_size"] // patch
    return (
        f'patch_embed(image, {stack.width}, patch_size={patch}, bias=False, name="image_patches")'
        f"   # {side} x {side} patches\n"
        'cls_token(name="image_cls")\n'
        f'pos_embed({side * side + 1}, name="image_positions")\n'
        f'{stack.entry}layer_norm(eps={number(stack.eps)}, name="image_norm")\n\n'
        f"{stack.text()}\n"
    )


def image_norm(options: Options) -> str:
    """The norm of the class token."""
    return f'layer_norm(eps={number(options["layer_norm_eps"])}, name="image_pooled_norm")\n'


def projection(options: Options, tower: str) -> str:
    """The map into the common space."""
    return f'linear({options["projection_dim"]}, bias=False, name="{tower}_projection")\n'


def _block_rows(stack: PreNorm) -> list[Row]:
    layer, paths = "encoder.layers.{i}", stack.paths()
    return [
        *affine(f"{layer}.layer_norm1", paths["norm1"]),
        *affine(f"{layer}.self_attn.q_proj", f"{paths['attn']}.q_proj"),
        *affine(f"{layer}.self_attn.k_proj", f"{paths['attn']}.k_proj"),
        *affine(f"{layer}.self_attn.v_proj", f"{paths['attn']}.v_proj"),
        *affine(f"{layer}.self_attn.out_proj", f"{paths['attn']}.o_proj"),
        *affine(f"{layer}.layer_norm2", paths["norm2"]),
        *affine(f"{layer}.mlp.fc1", f"{paths['ffn']}.up"),
        *affine(f"{layer}.mlp.fc2", f"{paths['ffn']}.down"),
    ]


def text_rows(options: Options) -> list[Row]:
    """The text tower's tensors, as its class names them."""
    return [
        Row("embeddings.token_embedding.weight", ("text_tokens.weight",)),
        Row("embeddings.position_embedding.weight", ("text_positions.weight",)),
        *_block_rows(text_stack(options)),
        *affine("final_layer_norm", "text_norm"),
    ]


def image_rows(options: Options) -> list[Row]:
    """The image tower's tensors, as its class names them."""
    return [
        Row("embeddings.class_embedding", ("image_cls.token",), VECTOR),
        *affine("embeddings.patch_embedding", "image_patches.proj", bias=False),
        Row("embeddings.position_embedding.weight", ("image_positions.weight",)),
        *affine("pre_layrnorm", "image_norm"),  # sic
        *_block_rows(image_stack(options)),
        *affine("post_layernorm", "image_pooled_norm"),
    ]


TEXT_PROJECTION = affine("text_projection", "text_projection", bias=False, head=True)
IMAGE_PROJECTION = affine("visual_projection", "image_projection", bias=False, head=True)


def text_problems(options: Options, group: str = "") -> list[str]:
    """An end of texts that is no id; ``group`` stands before the key."""
    token = options["eos_token_id"]
    if type(token) is int and 0 <= token <= _MOST_ID:
        return []
    return [f"{group}eos_token_id: expected an integer from 0, got {shorten(token)}"]


def image_problems(options: Options, group: str = "") -> list[str]:
    """Sizes that make no grid of patches; ``group`` stands before the key."""
    size, patch = options["image_size"], options["patch_size"]
    if size % patch == 0:
        return []
    return [f"{group}image_size: expected a multiple of patch_size={patch}, got {size}"]


def _describe_stack(stack: PreNorm) -> dict[str, Any]:
    return {
        "hidden_size": stack.width,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.heads,
        "intermediate_size": stack.hidden,
        "hidden_act": their_name(ACTIVATIONS, stack.activation),
        "layer_norm_eps": stack.eps,
    }


def _projected(part: Plan | Part) -> dict[str, Any]:
    linears = [node.operator for node in part.nodes if node.operator.name == "linear"]
    return {"projection_dim": linears[-1].sizes["D_out"]} if linears else {}


def describe_text(part: Plan | Part) -> dict[str, Any]:
    """The text tower's configuration; without a ``projection_dim`` where it has none."""
    table, token = operators_of(part, "embedding")[0], operators_of(part, "take_at")[0].token
    return {
        **_describe_stack(read_pre_norm(part, table.sizes["D"])),
        **_projected(part),
        "vocab_size": table.num_embeddings,
        "max_position_embeddings": operators_of(part, "pos_embed")[0].max_len,
        "eos_token_id": LEGACY_END if token == _LARGEST else token,
    }


def describe_images(plan: Plan, part: Plan | Part) -> dict[str, Any]:
    """The image tower's configuration; without a ``projection_dim`` where it has none."""
    image = describe_image(plan)
    if type(image["image_size"]) is not int:
        raise NotThisFamily("its image is not square")
    return {**_describe_stack(read_pre_norm(part, image["hidden_size"])), **_projected(part), **image}
