"""ViT (Dosovitskiy et al., 2021) and DeiT (Touvron et al., 2021), which has a second token.

A classifier reads the class token after the last norm; of DeiT's two classifiers the answers are averaged.
"""

from __future__ import annotations

from typing import Any

from isomorph.checkpoints import images
from isomorph.checkpoints.blocks import ACTIVATIONS, PreNorm, number, read_pre_norm
from isomorph.checkpoints.family import (
    Family,
    Handled,
    Ignored,
    Only,
    Options,
    Row,
    affine,
    operators_of,
    their_name,
)
from isomorph.checkpoints.heads import labels, observe
from isomorph.plan import Plan

POOLER_ACTIVATIONS = {
    "tanh": "tanh",
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
    "sigmoid": "sigmoid",
    "gelu_python": "gelu",
    "swish": "silu",
}
SETTINGS: dict[str, Handled | Ignored | Only] = {
    **images.SETTINGS,
    "intermediate_size": Handled("int", 3072),
    "layer_norm_eps": Handled("float", 1e-12),
    "qkv_bias": Handled("bool", True),
    "pooler_output_size": Handled("int", None, optional=True),
    "pooler_act": Handled("choice", "tanh", POOLER_ACTIVATIONS),
    "encoder_stride": Ignored("of the decoder that fills in masked patches, which is not imported"),
}


def _stack(options: Options) -> PreNorm:
    return PreNorm(
        options["num_hidden_layers"], options["num_attention_heads"], options["hidden_size"],
        options["intermediate_size"], ACTIVATIONS[options["hidden_act"]], options["layer_norm_eps"],
        qkv_bias=options["qkv_bias"],
    )  # fmt: skip


def _distilled(options: Options) -> bool:
    return options["architecture"].startswith("DeiT")


def definition(options: Options) -> str:
    """The text; B stays open."""
    stack, distilled = _stack(options), _distilled(options)
    width = options["hidden_size"]
    return (
        f"# {'DeiT' if distilled else 'ViT'}: {stack.layers} layers of width {width}, "
        f"images in patches of {options['patch_size']} pixels.\n\n"
        f"{images.stem(options, stack, distilled)}{stack.text()}\n" + _ending(options)
    )


def _ending(options: Options) -> str:
    width, classes = options["hidden_size"], options["num_labels"]
    norm = f'layer_norm(eps={number(options["layer_norm_eps"])}, name="norm")\n'
    architecture = options["architecture"]
    if architecture.endswith("ForImageClassification"):
        return norm + images.class_head(classes)
    if architecture.endswith("WithTeacher"):
        return f"features = {norm}{images.teacher_head(classes)}"
    shape = f'("B", {images.tokens(options, 1 + _distilled(options))}, {width})'
    if not options["pooler"]:
        return f"{norm}\noutput{shape}\n"
    pooled = options["pooler_output_size"] or width
    return (
        f'hidden = {norm}\nfirst = pool_tokens(hidden, "first")   # the class token\n'
        f'linear({pooled}, name="pooler")\npooled = {POOLER_ACTIVATIONS[options["pooler_act"]]}()\n\n'
        f'output(hidden={shape}, pooled=("B", {pooled}))\n'
    )


def rows(options: Options) -> list[Row]:
    """Their names, ours, and the order of axes."""
    layer, paths, architecture = "encoder.layer.{i}", _stack(options).paths(), options["architecture"]
    heads: list[Row] = []
    if architecture.endswith("ForImageClassification"):
        heads = affine("classifier", "head", head=True)
    elif architecture.endswith("WithTeacher"):
        heads = affine("cls_classifier", "head", head=True)
        heads += affine("distillation_classifier", "teacher_head", head=True)
    elif options["pooler"]:
        heads = affine("pooler.dense", "pooler")
    second = [Row("embeddings.distillation_token", ("distillation.token",))] if _distilled(options) else []
    return [
        *images.stem_rows(),
        *second,
        *affine(f"{layer}.layernorm_before", paths["norm1"]),
        *images.attention_rows(paths["attn"], options["qkv_bias"]),
        *affine(f"{layer}.layernorm_after", paths["norm2"]),
        *affine(f"{layer}.intermediate.dense", f"{paths['ffn']}.up"),
        *affine(f"{layer}.output.dense", f"{paths['ffn']}.down"),
        *affine("layernorm", "norm"),
        *heads,
    ]


def _describe(plan: Plan, title: str) -> dict[str, Any]:
    image = images.describe_image(plan)
    stack = read_pre_norm(plan, image["hidden_size"])
    last = plan.nodes[-1].operator
    options = {
        **image,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.heads,
        "intermediate_size": stack.hidden,
        "hidden_act": their_name(ACTIVATIONS, stack.activation),
        "layer_norm_eps": stack.eps,
        "qkv_bias": stack.qkv_bias,
        "pooler": last.name in POOLER_ACTIVATIONS,
        "pooler_act": last.name if last.name in POOLER_ACTIVATIONS else "tanh",
        "pooler_output_size": None,
        "num_labels": 1,
    }
    if last.name in ("linear", "scale"):
        classes = operators_of(plan, "linear")[-1].sizes["D_out"]
        kind = "ForImageClassification" if last.name == "linear" else "ForImageClassificationWithTeacher"
        return {**options, **labels(classes), "architecture": title + kind, "num_labels": classes}
    if options["pooler"]:
        options["pooler_output_size"] = operators_of(plan, "linear")[-1].sizes["D_out"]
    return {**options, "architecture": f"{title}Model"}


def _family(model_type: str, title: str, endings: tuple[str, ...]) -> Family:
    names = [title + ending for ending in endings]
    return Family(
        model_type=model_type,
        prefix=model_type,
        architectures={name: name for name in names},
        base_architectures=frozenset([f"{title}Model"]),
        default_architecture=f"{title}Model",
        settings=SETTINGS,
        definition=definition,
        rows=rows,
        layers=lambda options: options["num_hidden_layers"],
        describe=lambda plan: _describe(plan, title),
        unread=("embeddings.mask_token",),
        written=frozenset(["id2label", "label2id"]),
        has_tokens=False,
        observe=observe,
        problems=images.problems,
    )


VIT = _family("vit", "ViT", ("Model", "ForImageClassification"))
DEIT = _family("deit", "DeiT", ("Model", "ForImageClassification", "ForImageClassificationWithTeacher"))
