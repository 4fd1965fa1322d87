"""DINOv2 (Oquab et al., 2023): a ViT whose branches are scaled by learned gains.

With registers (Darcet et al., 2023) more learned vectors stand between the class token and the patches, without
a position. The published classifiers read the class token beside the average of the patches.
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
from isomorph.checkpoints.heads import labels, observe
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
    "qkv_bias": Handled("bool", True),
    "use_swiglu_ffn": Handled("bool", False),
    **dict.fromkeys(
        (
            "out_features",
            "out_indices",
            "_out_features",
            "_out_indices",
            "stage_names",
            "apply_layernorm",
            "reshape_hidden_states",
        ),
        _BACKBONE,
    ),
}
WITH_REGISTERS: dict[str, Handled | Ignored | Only] = {
    **{key: setting for key, setting in SETTINGS.items() if key != "use_mask_token"},
    "patch_size": Handled("any", 16),
    "num_register_tokens": Handled("int", 4),
    **dict.fromkeys(
        ("interpolate_antialias", "interpolate_offset"),
        Ignored(
            "how the table of positions is resized, and the definition takes the configuration's size alone"
        ),
    ),
}


def hidden_width(width: int, ratio: int, gated: bool) -> int:
    """The feed-forward's inner width; a gated one has two thirds of it, rounded up to a multiple of 8.

    So its three maps have about as many weights as the two of a plain one: 4096 for the width 1536 of the giant
    model, where ``mlp_ratio * width`` is 6144.
    """
    hidden = ratio * width
    return (2 * hidden // 3 + 7) // 8 * 8 if gated else hidden


def _stack(options: Options) -> PreNorm:
    width, gated = options["hidden_size"], options["use_swiglu_ffn"]
    return PreNorm(
        options["num_hidden_layers"], options["num_attention_heads"], width,
        hidden_width(width, options["mlp_ratio"], gated), ACTIVATIONS[options["hidden_act"]],
        options["layer_norm_eps"], qkv_bias=options["qkv_bias"], layer_scale=True, gated=gated,
    )  # fmt: skip


def _registers(options: Options) -> int:
    return options.get("num_register_tokens", 0)


def problems(options: Options) -> list[str]:
    """As of any image; and it must be square.

    The peer library arranges the table of positions as a square, whatever the configuration says, and resizes
    it for every image that is not square: no such image meets the table as it is in the file.
    """
    if problems_of_images := images.problems(options):
        return problems_of_images
    size = options["image_size"]
    if type(size) is not int and size[0] != size[1]:
        return [f"image_size: expected a square image (the table of positions is one), got {shorten(size)}"]
    return []


def definition(options: Options) -> str:
    """The text; B stays open."""
    stack, width, registers = _stack(options), options["hidden_size"], _registers(options)
    gains = "gamma1 and gamma2 of every block" if stack.whole else "attn_scale and ffn_scale"
    text = (
        f"# DINOv2{' with registers' if registers else ''}: {stack.layers} layers of width {width}, "
        f"images in patches of {options['patch_size']} pixels.\n"
        f"# Learned gains, {gains}, scale the two branches.\n\n"
        f"{images.stem(options, stack, registers=registers)}{stack.text()}\n"
        f'hidden = layer_norm(eps={number(options["layer_norm_eps"])}, name="norm")\n'
        'pooled = pool_tokens(hidden, "first")   # the class token: one vector for the image\n'
    )
    if options["architecture"].endswith("Model"):
        tokens = images.tokens(options, 1 + registers)
        return f'{text}\noutput(hidden=("B", {tokens}, {width}), pooled=("B", {width}))\n'
    classes = options["num_labels"]
    front = (
        f"front, patches = split(hidden, {1 + registers})"
        if registers
        else "token, patches = split(hidden, 1)"
    )
    return (
        f"{text}{front}\n"
        "average = pool_tokens(patches)\n"
        "concat(pooled, average)\n"
        f'linear({classes}, name="classifier")\n\noutput("B", {classes})\n'
    )


def rows(options: Options) -> list[Row]:
    """Their names, ours, and the order of axes."""
    layer, stack = "encoder.layer.{i}", _stack(options)
    paths, mlp = stack.paths(), f"{layer}.mlp"
    return [
        *images.stem_rows(),
        *([Row("embeddings.register_tokens", ("registers.tokens",))] if _registers(options) else []),
        *affine(f"{layer}.norm1", paths["norm1"]),
        *images.attention_rows(paths["attn"], stack.qkv_bias),
        Row(f"{layer}.layer_scale1.lambda1", (paths["gamma1"],)),
        *affine(f"{layer}.norm2", paths["norm2"]),
        *(
            images.gated_rows(f"{mlp}.weights_in", f"{mlp}.weights_out", paths["ffn"])
            if stack.gated
            else [*affine(f"{mlp}.fc1", f"{paths['ffn']}.up"), *affine(f"{mlp}.fc2", f"{paths['ffn']}.down")]
        ),
        Row(f"{layer}.layer_scale2.lambda1", (paths["gamma2"],)),
        *affine("layernorm", "norm"),
        *([] if options["architecture"].endswith("Model") else affine("classifier", "classifier", head=True)),
    ]


def _ratio(stack: PreNorm) -> int:
    """The ``mlp_ratio`` that gives the stack's inner width."""
    if not stack.gated:
        return stack.hidden // stack.width
    # hidden is about 2/3 * ratio * width, rounded up by less than 8: few ratios are near.
    least = max(1, (stack.hidden - 8) * 3 // (2 * stack.width))
    for ratio in range(least, stack.hidden * 3 // (2 * stack.width) + 2):
        if hidden_width(stack.width, ratio, True) == stack.hidden:
            return ratio
    raise NotThisFamily(f"no mlp_ratio makes {stack.hidden} the inner width of a gated feed-forward")


def _describe(plan: Plan, title: str) -> dict[str, Any]:
    image = images.describe_image(plan)
    if type(image["image_size"]) is not int:
        raise NotThisFamily("its image is not square")
    stack = read_pre_norm(plan, image["hidden_size"])
    if not stack.layer_scale:
        raise NotThisFamily("its blocks have layer_scale=False")
    headed = plan.nodes[-1].operator.name == "linear"
    classes = operators_of(plan, "linear")[-1].sizes["D_out"] if headed else 1
    registers = "WithRegisters" in title
    return {
        **image,
        "architecture": f"{title}ForImageClassification" if headed else f"{title}Model",
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.heads,
        "mlp_ratio": _ratio(stack),
        # A gate is SiLU's, and then the key has no say.
        "hidden_act": "gelu" if stack.gated else their_name(ACTIVATIONS, stack.activation),
        "layer_norm_eps": stack.eps,
        "qkv_bias": stack.qkv_bias,
        "use_swiglu_ffn": stack.gated,
        **(
            {"num_register_tokens": operators_of(plan, "register_tokens")[0].count}
            if registers
            else {"use_mask_token": False}  # there is none to write
        ),
        "num_labels": classes,
        **(labels(classes) if headed else {}),
    }


def _family(model_type: str, title: str, settings: dict[str, Handled | Ignored | Only]) -> Family:
    always_masked = (
        "num_register_tokens" in settings
    )  # its class has the token, whatever the configuration says
    return Family(
        model_type=model_type,
        prefix=model_type,
        architectures={name: name for name in (f"{title}Model", f"{title}ForImageClassification")},
        base_architectures=frozenset([f"{title}Model"]),
        default_architecture=f"{title}Model",
        settings=settings,
        definition=definition,
        rows=rows,
        layers=lambda options: options["num_hidden_layers"],
        describe=lambda plan: _describe(plan, title),
        unread=("embeddings.mask_token",),
        written=frozenset(["id2label", "label2id", "use_mask_token"]),
        has_tokens=False,
        observe=observe,
        problems=problems,
        filled=lambda options: (
            {"embeddings.mask_token": (1, options["hidden_size"])} if always_masked else {}
        ),
    )


DINOV2 = _family("dinov2", "Dinov2", SETTINGS)
DINOV2_WITH_REGISTERS = _family("dinov2_with_registers", "Dinov2WithRegisters", WITH_REGISTERS)
