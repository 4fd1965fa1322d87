"""ViT, DeiT and DINOv2 as timm publishes them: the definition, and its tensors under timm's names."""

from __future__ import annotations

from typing import Any

from isomorph.checkpoints import images
from isomorph.checkpoints import timm_variants as variants
from isomorph.checkpoints.blocks import PreNorm, number
from isomorph.checkpoints.family import BATCHED, Family, NotThisFamily, Options, Row, affine
from isomorph.plan import Plan


def _stack(options: Options) -> PreNorm:
    gated = variants.gated(options)
    return PreNorm(
        options["depth"], variants.heads(options) or 1, options["width"], options["outer"] if gated else options["inner"],
        "silu" if gated else variants.activation(options), variants.eps(options), qkv_bias=options["qkv_bias"],
        layer_scale=options["layer_scale"], gated=gated,
    )  # fmt: skip


def definition(options: Options) -> str:
    """The text; B stays open."""
    stack = _stack(options)
    return (
        f"# {variants.variant(options).name}: {stack.layers} layers of width {stack.width}, "
        f"images in patches of {options['patch']} pixels.\n\n"
        f"{_stem(options, stack)}\n{stack.text()}\n{_ending(options, stack)}"
    )


def _stem(options: Options, stack: PreNorm) -> str:
    (height, width), patch = variants.image(options), options["patch"]
    bias = "" if options["patch_bias"] else ", bias=False"
    calls = [
        f'patch_embed({stack.width}, patch_size={patch}{bias}, name="patches")'
        f"   # {height // patch} x {width // patch} patches"
    ]
    positions = f'pos_embed({options["positions"]}, name="positions")'
    if not variants.positions_of_all(options):
        calls.append(positions + "   # of the patches alone")
    if options["registers"]:
        calls.append(f'register_tokens({options["registers"]}, name="registers")')
    if options["distilled"]:
        calls.append('cls_token(name="distillation")')
    if options["class_token"]:
        calls.append('cls_token(name="cls")')
    if variants.positions_of_all(options):
        calls.append(positions)
    if options["norm_pre"]:
        calls.append(f'layer_norm(eps={number(stack.eps)}, name="norm_pre")')
    calls[-1] = stack.entry + calls[-1]
    return f'input("B", {options["channels"]}, {height}, {width})\n\n' + "\n".join(calls) + "\n"


def _ending(options: Options, stack: PreNorm) -> str:
    """From the blocks to the answer; without a classifier, the tokens and what is pooled of them."""
    classes, eps = variants.classes(options), number(stack.eps)
    norm = f'layer_norm(eps={eps}, name="norm")\n' if options["norm"] else ""
    if options["distilled"]:
        return f"features = {norm}{images.teacher_head(classes)}"
    pooled_norm = f'layer_norm(eps={eps}, name="fc_norm")\n' if options["fc_norm"] else ""
    if classes and variants.pool(options) == "token" and not pooled_norm:
        return norm + images.class_head(classes)
    # The tokens need a name where they are read twice.
    twice = not classes or (variants.pool(options) == "avgmax" and not variants.prefix(options))
    if twice:
        norm = f"hidden = {norm or 'identity()' + chr(10)}"
    pooled = f"{_pooled(options, 'hidden' if twice else '')}\n{pooled_norm}"
    if classes:
        return f'{norm}{pooled}linear({classes}, name="head")\n\noutput("B", {classes})\n'
    *lines, last = pooled.splitlines(keepends=True)
    count = variants.patches(options) + variants.prefix(options)
    return (
        f"{norm}{''.join(lines)}pooled = {last}\n"
        f'output(hidden=("B", {count}, {stack.width}), pooled=("B", {stack.width}))\n'
    )


def _pooled(options: Options, source: str) -> str:
    """One vector of the tokens called ``source``, or of the current ones; the last call is its value."""

    def call(operator: str, *arguments: str) -> str:
        return f"{operator}({', '.join(filter(None, arguments))})"

    pool, prefix = variants.pool(options), variants.prefix(options)
    if pool == "token":
        return call("pool_tokens", source, '"first"')
    split = ""
    if prefix:
        split, source = f"front, patches = {call('split', source, str(prefix))}\n", "patches"
    average, largest = call("pool_tokens", source), call("pool_tokens", source, '"max"')
    if pool == "avgmax":
        return f"{split}average = {average}\nlargest = {largest}\nadd(largest, average)\nscale(0.5)"
    return split + (largest if pool == "max" else average)


def rows(options: Options) -> list[Row]:
    """Their names, ours, and the order of axes."""
    stack, block = _stack(options), "blocks.{i}"
    paths = stack.paths()
    attention, ffn = paths["attn"], paths["ffn"]
    kinds = ("weight", "bias") if stack.qkv_bias else ("weight",)
    mixing = [*affine(f"{block}.mlp.fc1", f"{ffn}.up"), *affine(f"{block}.mlp.fc2", f"{ffn}.down")]
    if stack.gated:
        mixing = images.gated_rows(f"{block}.mlp.fc1", f"{block}.mlp.fc2", ffn)
    gains = [Row(f"{block}.ls{n}.gamma", (paths[f"gamma{n}"],)) for n in (1, 2)] if stack.layer_scale else []
    return [
        *affine("patch_embed.proj", "patches.proj", bias=options["patch_bias"]),
        Row("pos_embed", ("positions.weight",), BATCHED),
        *_optional_rows(options),
        *affine(f"{block}.norm1", paths["norm1"]),
        *(
            Row(f"{block}.attn.qkv.{kind}", tuple(f"{attention}.{part}_proj.{kind}" for part in "qkv"))
            for kind in kinds
        ),
        *affine(f"{block}.attn.proj", f"{attention}.o_proj"),
        *affine(f"{block}.norm2", paths["norm2"]),
        *mixing,
        *gains,
        *(affine("head", "head") if variants.classes(options) else []),
        *(affine("head_dist", "teacher_head") if options["distilled"] else []),
    ]


def _optional_rows(options: Options) -> list[Row]:
    """Tokens before the patches, and norms outside the blocks."""
    named = (
        ("cls_token", "class_token", "cls.token"),
        ("dist_token", "distilled", "distillation.token"),
        ("reg_token", "registers", "registers.tokens"),
    )
    tokens = [Row(theirs, (ours,)) for theirs, fact, ours in named if options[fact]]
    norms = [name for name in ("norm_pre", "norm", "fc_norm") if options[name]]
    return [*tokens, *(row for name in norms for row in affine(name, name))]


def _describe(plan: Plan) -> dict[str, Any]:
    raise NotThisFamily("models are written under transformers' names")


TIMM = Family(
    model_type="timm",
    prefix="",
    architectures={"VisionTransformer": "VisionTransformer"},
    default_architecture="VisionTransformer",
    settings=variants.SETTINGS,
    definition=definition,
    rows=rows,
    layers=lambda options: options["depth"],
    describe=_describe,
    has_tokens=False,
    observe=variants.observe,
    problems=variants.problems,
    disagreements=variants.disagreements,
    update=variants.update,
    closed=frozenset(["model_args"]),  # each is an argument of the class
)
