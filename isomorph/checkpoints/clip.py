"""CLIP (Radford et al., 2021): a text tower and an image tower that meet in one space.

The text tower is causal and is read where the text ends; the image tower is read at its class token. Inputs
come in the peer library's order: ids, image, mask. Each tower is a family of its own too, with or without
the projection into the common space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isomorph.checkpoints import clip_towers as towers
from isomorph.checkpoints.family import (
    SCALAR,
    Family,
    Handled,
    Ignored,
    NotThisFamily,
    Only,
    Options,
    Part,
    Row,
    each_layer,
    operators_of,
)
from isomorph.plan import Plan

# -- each tower by itself ------------------------------------------------------------------------


def _headed(options: Options) -> bool:
    return options["architecture"].endswith("WithProjection")


def _text_definition(options: Options) -> str:
    width = options["hidden_size"]
    text = (
        f"# CLIP's text tower: {options['num_hidden_layers']} layers of width {width}, "
        f"{options['vocab_size']:,} word pieces.\n\n{towers.IDS}{towers.MASK}\n{towers.text_tower(options)}"
    )
    pooled = towers.text_pooled(options)
    if not _headed(options):
        return f'{text}pooled = {pooled}\noutput(hidden=("B", "T", {width}), pooled=("B", {width}))\n'
    return (
        f"{text}{pooled}text_embeds = {towers.projection(options, 'text')}\n"
        f'output(text_embeds=("B", {options["projection_dim"]}), hidden=("B", "T", {width}))\n'
    )


def _image_definition(options: Options) -> str:
    width = options["hidden_size"]
    tokens = (options["image_size"] // options["patch_size"]) ** 2 + 1
    norm = towers.image_norm(options)
    text = (
        f"# CLIP's image tower: {options['num_hidden_layers']} layers of width {width}, "
        f"images in patches of {options['patch_size']} pixels.\n\n{towers.image_input(options, 'B')}\n"
        f'{towers.image_tower(options)}hidden = identity(name="image_encoded")\n\n'
        'pool_tokens(hidden, "first")   # the class token\n'
    )
    if not _headed(options):
        return f'{text}pooled = {norm}\noutput(hidden=("B", {tokens}, {width}), pooled=("B", {width}))\n'
    return (
        f"{text}{norm}image_embeds = {towers.projection(options, 'image')}\n"
        f'output(image_embeds=("B", {options["projection_dim"]}), hidden=("B", {tokens}, {width}))\n'
    )


def _architecture(plan: Plan, title: str) -> dict[str, Any]:
    headed = plan.nodes[-1].operator.name == "linear"
    return {"architecture": f"{title}WithProjection" if headed else title}


def _tower(model_type: str, title: str, prefix: str, **more: Any) -> Family:
    return Family(
        model_type=model_type,
        prefix=prefix,
        architectures={name: name for name in (title, f"{title}WithProjection")},
        base_architectures=frozenset([title]),
        default_architecture=title,
        layers=lambda options: options["num_hidden_layers"],
        unread=("embeddings.position_ids",),
        **more,
    )


CLIP_TEXT = _tower(
    "clip_text_model",
    "CLIPTextModel",
    "text_model",
    settings=towers.TEXT,
    definition=_text_definition,
    rows=lambda options: [*towers.text_rows(options), *(towers.TEXT_PROJECTION if _headed(options) else [])],
    describe=lambda plan: {**towers.describe_text(plan), **_architecture(plan, "CLIPTextModel")},
    problems=towers.text_problems,
)
CLIP_VISION = _tower(
    "clip_vision_model",
    "CLIPVisionModel",
    "vision_model",
    settings=towers.VISION,
    definition=_image_definition,
    rows=lambda options: [
        *towers.image_rows(options),
        *(towers.IMAGE_PROJECTION if _headed(options) else []),
    ],
    describe=lambda plan: {**towers.describe_images(plan, plan), **_architecture(plan, "CLIPVisionModel")},
    has_tokens=False,
    problems=towers.image_problems,
)


# -- both towers ---------------------------------------------------------------------------------


def _inner(group: str, settings: dict[str, Any], model_type: str) -> dict[str, Any]:
    """A tower's keys as those of an object inside the configuration of both."""
    changed = {
        **settings,
        "projection_dim": Ignored("the projection_dim of both towers counts"),
        "model_type": Only((model_type,), "the towers are CLIP's own"),
    }
    return {f"{group}.{key}": setting for key, setting in changed.items()}


BOTH: dict[str, Handled | Ignored | Only] = {
    **_inner("text_config", towers.TEXT, "clip_text_model"),
    **_inner("vision_config", towers.VISION, "clip_vision_model"),
    "projection_dim": Handled("int", 512),
    "logit_scale_init_value": Ignored("where logit_scale starts; the file has what became of it"),
    "tie_word_embeddings": Ignored("there is no head that scores words"),
    **{
        f"{group}_dict": Only((None,), f"an object stands for {group}")
        for group in ("text_config", "vision_config")
    },
}


def _update(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Older files have a tower's keys in ``text_config_dict`` too; of what it leaves out the default counts."""
    updated = dict(configuration)
    for group, settings in (("text_config", towers.TEXT), ("vision_config", towers.VISION)):
        if isinstance(updated.get(f"{group}_dict"), dict):
            older, newer = updated.pop(f"{group}_dict"), updated.get(group)
            kept = newer if isinstance(newer, dict) else {}
            kept = {key: value for key, value in kept.items() if not isinstance(settings.get(key), Handled)}
            updated[group] = {**kept, **older}
    return updated


def _part(options: Options, group: str) -> dict[str, Any]:
    """A tower's options."""
    start = f"{group}."
    own = {key.removeprefix(start): value for key, value in options.items() if key.startswith(start)}
    return {**own, "projection_dim": options["projection_dim"]}


def _definition(options: Options) -> str:
    text, image = _part(options, "text_config"), _part(options, "vision_config")
    size = options["projection_dim"]
    return (
        f"# CLIP: {text['num_hidden_layers']} layers of width {text['hidden_size']} for texts, "
        f"{image['num_hidden_layers']} of width {image['hidden_size']} for images.\n\n"
        f"{towers.IDS}{towers.image_input(image, 'N')}{towers.MASK}\n"
        f"{towers.text_tower(text)}{towers.text_pooled(text)}{towers.projection(text, 'text')}"
        "text_embeds = l2_norm()\n\n"
        f'{towers.image_tower(image)}pool_tokens("first")   # the class token\n'
        f"{towers.image_norm(image)}{towers.projection(image, 'image')}"
        "image_embeds = l2_norm()\n\n"
        'logits_per_text, logits_per_image = similarity(text_embeds, image_embeds, name="logits")\n\n'
        "output(\n"
        '    logits_per_image=("N", "B"),\n'
        '    logits_per_text=("B", "N"),\n'
        f'    text_embeds=("B", {size}),\n'
        f'    image_embeds=("N", {size}),\n'
        ")\n"
    )


def _rows(options: Options) -> list[Row]:
    halves = [("text", "text_config", towers.text_rows), ("vision", "vision_config", towers.image_rows)]
    rows = [
        Row("logit_scale", ("logits.logit_scale",), SCALAR),
        *towers.TEXT_PROJECTION,
        *towers.IMAGE_PROJECTION,
    ]
    for name, group, tower_rows in halves:
        tower = _part(options, group)
        inside = each_layer(tower_rows(tower), tower["num_hidden_layers"])
        rows += [row._replace(theirs=f"{name}_model.{row.theirs}") for row in inside]
    return rows


def _describe(plan: Plan) -> dict[str, Any]:
    cut = next(
        (i for i, node in enumerate(plan.nodes) if node.operator.name == "patch_embed"), len(plan.nodes)
    )
    operators_of(plan, "similarity")
    text = towers.describe_text(Part(plan.nodes[:cut]))
    image = towers.describe_images(plan, Part(plan.nodes[cut:]))
    if "projection_dim" not in text:
        raise NotThisFamily("its text has no projection")
    tokens = dict.fromkeys(("bos_token_id", "pad_token_id"))
    return {
        "architecture": "CLIPModel",
        "projection_dim": text["projection_dim"],
        **{f"text_config.{key}": value for key, value in {**text, **tokens}.items()},
        **{f"vision_config.{key}": value for key, value in image.items()},
    }


CLIP = Family(
    model_type="clip",
    prefix="clip",
    architectures={"CLIPModel": "CLIPModel"},
    base_architectures=frozenset(["CLIPModel"]),
    default_architecture="CLIPModel",
    settings=BOTH,
    definition=_definition,
    rows=_rows,
    layers=lambda options: 0,  # the towers have their own numbers, and the rows say each layer's
    describe=_describe,
    unread=("text_model.embeddings.position_ids", "vision_model.embeddings.position_ids"),
    written=frozenset(
        ["text_config.bos_token_id", "text_config.pad_token_id"]
        + [f"{group}.projection_dim" for group in ("text_config", "vision_config")]
    ),
    has_tokens=False,
    update=_update,
    problems=lambda options: [
        *towers.text_problems(_part(options, "text_config"), "text_config."),
        *towers.image_problems(_part(options, "vision_config"), "vision_config."),
    ],
)
