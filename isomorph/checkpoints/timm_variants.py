"""What timm's configuration, its tensors and the name of a variant tell about a vision transformer.

``config.json`` has no ``model_type`` and no sizes: these are read off the tensors. What no tensor tells, which is
the number of heads, the activation and epsilon, follows from the name of the variant, ``architecture``; what
``model_args`` says goes first. A name is a size and words, as in ``vit_base_patch16_clip_224``, and a word that is
not known is refused, for it may stand for another computation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any, NamedTuple

from isomorph.checkpoints import images
from isomorph.checkpoints.family import TRAINING, Handled, Ignored, Only, Options
from isomorph.errors import IsomorphError, shorten

HEADS: dict[str, dict[int, int]] = {
    "tiny": {192: 3},
    "xsmall": {256: 4},
    "wee": {256: 4},
    "little": {320: 5},
    "small": {384: 6},
    "medium": {512: 8},
    "mediumd": {512: 8},
    "betwixt": {640: 10},
    "base": {768: 12, 896: 14},
    "so150m2": {832: 13},
    "so150m": {896: 14},
    "large": {1024: 16},
    "intern300m": {1024: 16},
    "so400m": {1152: 16},
    "huge": {1280: 16},
    "giant": {1408: 16, 1536: 24},
    "gigantic": {1664: 16},
}
"""Heads by a variant's size and width, as timm defines them."""

IRREGULAR = {"vit_base_patch16_gap_224": 16}
"""Variants with another number of heads than their size tells."""

_WORD = re.compile(
    r"(?:patch[0-9]+|reg[0-9]+|[0-9]+|36x1|plus|clip|quickgelu|gap|dinov2|tipsv2|distilled|miil|in21k)"
)
_WORDS = "patchN, regN, plus, clip, quickgelu, gap, dinov2, tipsv2, distilled, miil, in21k, 36x1 and the image's size"
_ACTIVATIONS = {
    "gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
_POOLS = {"token": "token", "avg": "avg", "max": "max", "avgmax": "avgmax"}

_SHAPES = Ignored("the tensors' shapes and names tell")
_DATA = Ignored("how images are prepared, or where the file is from")
SETTINGS: dict[str, Handled | Ignored | Only] = {
    "architecture": Ignored("the variant's name, read beforehand"),
    "architecture_name": Handled("any"),
    "global_pool": Handled("choice", None, _POOLS, optional=True),
    "num_classes": Handled("any", None),
    "num_features": Ignored("the width, which the tensors tell"),
    **dict.fromkeys(("labels", "label_names", "label_descriptions"), Ignored("names of classes")),
    "model_args.num_heads": Handled("int", None, optional=True),
    "model_args.img_size": Handled("any", None),
    "model_args.act_layer": Handled("choice", None, _ACTIVATIONS, optional=True),
    "model_args.global_pool": Handled("choice", None, _POOLS, optional=True),
    "model_args.no_embed_class": Handled("bool", None, optional=True),
    **dict.fromkeys(
        (
            f"model_args.{key}"
            for key in (
                "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "class_token",
                "reg_tokens", "pre_norm", "final_norm", "fc_norm", "init_values",
            )
        ),
        _SHAPES,
    ),
    **dict.fromkeys(
        (
            f"model_args.{key}"
            for key in (
                "drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate",
                "drop_path_rate", "weight_init", "fix_init",
            )
        ),
        TRAINING,
    ),
    **dict.fromkeys(
        ("model_args.dynamic_img_size", "model_args.dynamic_img_pad"),
        Ignored("changes nothing at the image size of the configuration, and the definition takes no other"),
    ),
    "model_args.qk_norm": Only((False,), "attention has no layer norm of queries and keys"),
    "model_args.scale_attn_norm": Only((False,), "attention has no norm before its last projection"),
    "model_args.scale_mlp_norm": Only((False,), "the feed-forward has no norm inside"),
    "model_args.proj_bias": Only((True,), "the blocks have these biases"),
    "model_args.pos_embed": Only(("learn",), "positions are learned vectors"),
    "model_args.pool_include_prefix": Only((False,), "patches alone are pooled"),
    **dict.fromkeys(
        (
            f"model_args.{key}"
            for key in ("norm_layer", "embed_norm_layer", "embed_layer", "block_fn", "mlp_layer", "attn_layer")
        ),
        Only((None,), "the layers are those of the variant"),
    ),
    "pretrained_cfg.input_size": Handled("any", None),
    "pretrained_cfg.num_classes": Handled("any", None),
    **dict.fromkeys(
        (
            f"pretrained_cfg.{key}"
            for key in (
                "architecture", "classifier", "crop_mode", "crop_pct", "custom_load", "description", "file",
                "first_conv", "fixed_input_size", "global_pool", "hf_hub_filename", "hf_hub_id", "interpolation",
                "label_descriptions", "label_names", "label_offset", "license", "mean", "min_input_size", "notes",
                "origin_url", "paper_ids", "paper_name", "pool_size", "source", "std", "tag", "test_crop_pct",
                "test_input_size", "test_pool_size", "url",
            )
        ),
        _DATA,
    ),
}  # fmt: skip


def update(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the variant's name under another key: options call the class ``architecture``."""
    return {**configuration, "architecture_name": configuration.get("architecture")}


# -- what the tensors tell -----------------------------------------------------------------------

_NEEDED = (
    "patch_embed.proj.weight",
    "pos_embed",
    "blocks.0.norm1.weight",
    "blocks.0.mlp.fc1.weight",
    "blocks.0.mlp.fc2.weight",
)
_OTHERS = {
    "attn_pool": "pooling by attention",
    "blocks.0.attn.q_norm": "norms of queries and keys",
    "blocks.0.attn.norm": "a norm inside attention",
    "blocks.0.mlp.norm": "a norm inside the feed-forward",
    "patch_embed.backbone": "a convolutional stem",
    "patch_embed.norm": "a norm of the patches",
}
"""Modules of timm's that the definition has no words for."""


def observe(shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Sizes, and which optional parts there are.

    Raises:
        IsomorphError: E_WEIGHTS when a tensor is missing without which there is no size.
    """
    expected = {name: 4 if name.startswith("patch") else 3 if name == "pos_embed" else 2 for name in _NEEDED}
    expected["blocks.0.norm1.weight"] = 1
    wrong = [
        f"{name}: expected a tensor with {rank} axes, got {'none' if name not in shapes else list(shapes[name])}"
        for name, rank in expected.items()
        if len(shapes.get(name, ())) != rank or 0 in shapes[name]
    ]
    if wrong:
        raise IsomorphError(
            "E_WEIGHTS", "the tensors are not those of a vision transformer under timm's names", hints=wrong
        )
    width, channels, patch, columns = shapes["patch_embed.proj.weight"]
    registers = shapes.get("reg_token", ())
    head = shapes.get("head.weight", ())
    blocks = (re.match(r"blocks\.([0-9]{1,9})\.", name) for name in shapes)
    return {
        "width": width,
        "channels": channels,
        "patch": patch,
        "patch_columns": columns,
        "depth": 1 + max(int(match[1]) for match in blocks if match),
        "inner": shapes["blocks.0.mlp.fc1.weight"][0],
        "outer": shapes["blocks.0.mlp.fc2.weight"][1],
        "positions": shapes["pos_embed"][1],
        "registers": registers[1] if len(registers) == 3 else 0,
        "distilled": "dist_token" in shapes,
        "class_token": "cls_token" in shapes,
        "patch_bias": "patch_embed.proj.bias" in shapes,
        "qkv_bias": "blocks.0.attn.qkv.bias" in shapes,
        "layer_scale": "blocks.0.ls1.gamma" in shapes,
        "norm_pre": "norm_pre.weight" in shapes,
        "norm": "norm.weight" in shapes,
        "fc_norm": "fc_norm.weight" in shapes,
        "classes": head[0] if len(head) == 2 else 0,
        "others": [
            what for part, what in _OTHERS.items() if any(name.startswith(f"{part}.") for name in shapes)
        ],
    }


# -- what the name of the variant tells ----------------------------------------------------------


class Variant(NamedTuple):
    """A name of timm's, read: its size and the words after it."""

    name: str
    size: str
    words: frozenset[str]


def read_variant(name: object) -> Variant:
    """The parts of an ``architecture``; ValueError says what is known where it is not."""
    if not isinstance(name, str) or not re.match(r"vit_|deit3?_", name):
        raise ValueError(f"expected a name that begins with vit_, deit_ or deit3_, got {shorten(name)}")
    size, *words = name.split("_")[1:]
    if size not in HEADS:
        raise ValueError(f"{shorten(size)} is no known size of {shorten(name)}; sizes: {', '.join(HEADS)}")
    for word in words:
        if not _WORD.fullmatch(word):
            raise ValueError(f"the word {shorten(word)} of {shorten(name)} is not known; words: {_WORDS}")
    return Variant(name, size, frozenset(words))


def variant(options: Options) -> Variant:
    """The configuration's variant."""
    return read_variant(options["architecture_name"])


def heads(options: Options) -> int | None:
    """The number of heads; None where the name's size has another width."""
    if options["model_args.num_heads"] is not None:
        return options["model_args.num_heads"]
    name, size, _ = variant(options)
    return IRREGULAR.get(name) or HEADS[size].get(options["width"])


def activation(options: Options) -> str:
    """The feed-forward's nonlinearity, as a definition writes it."""
    given = options["model_args.act_layer"]
    if given is not None:
        return _ACTIVATIONS[given]
    return "quick_gelu" if "quickgelu" in variant(options).words else "gelu"


def eps(options: Options) -> float:
    """Of every norm: timm's own, but for CLIP's towers."""
    return 1e-5 if "clip" in variant(options).words else 1e-6


def pool(options: Options) -> str:
    """``token``, ``avg``, ``max`` or ``avgmax``."""
    given = options["model_args.global_pool"] or options["global_pool"]
    return given or ("avg" if "gap" in variant(options).words else "token")


def gated(options: Options) -> bool:
    """Whether the feed-forward is the giant's: a gate and another map in one tensor."""
    return options["inner"] == 2 * options["outer"]


def prefix(options: Options) -> int:
    """How many tokens stand before the patches."""
    return options["class_token"] + options["distilled"] + options["registers"]


# -- sizes of the image --------------------------------------------------------------------------


def image(options: Options) -> tuple[int, int]:
    """Height and width in pixels; ValueError when they are not told or make no grid."""
    patch = options["patch"]
    key = "model_args.img_size"
    size = options[key]
    if size is None and (size := options["pretrained_cfg.input_size"]) is not None:
        key = "pretrained_cfg.input_size"
        channels = options["channels"]
        if not isinstance(size, list) or len(size) != 3 or size[0] != channels:
            raise ValueError(
                f"{key}: expected [{channels}, height, width], as the patches have, got {shorten(size)}"
            )
        size = size[1:]
    if size is None:
        return _square(options)
    height, width = images.pair({key: size}, key)
    if height % patch or width % patch:
        raise ValueError(f"{key}: expected multiples of the patches' size {patch}, got {shorten(size)}")
    return height, width


def _square(options: Options) -> tuple[int, int]:
    """The square image that the number of positions leaves."""
    counts = {options["positions"], options["positions"] - prefix(options)}
    if options["model_args.no_embed_class"] is not None:
        counts = {options["positions"] - (0 if options["model_args.no_embed_class"] else prefix(options))}
    sides = [isqrt(count) for count in counts if count > 0 and isqrt(count) ** 2 == count]
    if len(sides) != 1:
        raise ValueError(
            f"pretrained_cfg.input_size: missing, and {options['positions']} positions tell no square image"
        )
    return sides[0] * options["patch"], sides[0] * options["patch"]


def patches(options: Options) -> int:
    """How many there are."""
    height, width = image(options)
    return (height // options["patch"]) * (width // options["patch"])


def positions_of_all(options: Options) -> bool:
    """Whether the tokens before the patches have positions too."""
    return options["positions"] != patches(options) or not prefix(options)


def problems(options: Options) -> list[str]:
    """What is not known of the variant's name."""
    try:
        variant(options)
    except ValueError as problem:
        return [f"architecture: {problem}"]
    return []


def disagreements(options: Options) -> list[str]:
    """What of the name, the tensors and the keys cannot be followed together."""
    name, size, _ = variant(options)
    problems = [f"architecture: {what} cannot be followed" for what in options["others"]]
    if options["patch"] != options["patch_columns"]:
        problems.append(
            f"architecture: expected square patches, got {options['patch']} x {options['patch_columns']}"
        )
    else:
        problems += _size_problems(options)
    if heads(options) is None:
        known = " or ".join(map(str, HEADS[size]))
        problems.append(
            f"model_args.num_heads: missing, and {size} has the width {known}, not {options['width']}"
        )
    if gated(options) and size != "giant":
        problems.append(f"architecture: a gated feed-forward is known of giant alone, not of {shorten(name)}")
    return problems + _token_problems(options) + _class_problems(options)


def _size_problems(options: Options) -> list[str]:
    try:
        count = patches(options)
    except ValueError as problem:
        return [str(problem)]
    allowed = {True: (count,), False: (count + prefix(options),)}.get(
        options["model_args.no_embed_class"], (count, count + prefix(options))
    )
    if options["positions"] not in allowed:
        height, width = image(options)
        return [
            f"pos_embed: expected {' or '.join(map(str, dict.fromkeys(allowed)))} positions for an image of "
            f"{height} x {width} pixels, got {options['positions']}"
        ]
    return []


def _token_problems(options: Options) -> list[str]:
    problems = []
    if not options["class_token"] and (pool(options) == "token" or options["distilled"]):
        problems.append("global_pool: expected avg, max or avgmax, for there is no cls_token, got token")
    if options["distilled"] and pool(options) != "token":
        problems.append(f"global_pool: expected token, for there is a dist_token, got {pool(options)}")
    if options["distilled"] and (options["registers"] or options["fc_norm"] or not options["norm"]):
        problems.append("architecture: expected norm, and neither reg_token nor fc_norm, beside dist_token")
    return problems


def _class_problems(options: Options) -> list[str]:
    given = [
        options[key] for key in ("num_classes", "pretrained_cfg.num_classes") if options[key] is not None
    ]
    if given and (type(given[0]) is not int or given[0] < 0):
        return [f"num_classes: expected an integer from 0, got {shorten(given[0])}"]
    if options["distilled"] and not classes(options):
        return ["num_classes: expected classes, for there is a dist_token, got 0"]
    return []


def classes(options: Options) -> int:
    """How many classes there are; 0 where there is no classifier."""
    for key in ("num_classes", "pretrained_cfg.num_classes"):
        if options[key] is not None:
            return options[key]
    return options["classes"]
