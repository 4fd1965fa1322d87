"""Flax NNX's words: :class:`isomorph.primitives.Primitives` as expressions of JAX, native layers, parameters.

Products that the text writes itself, and Flax's layers, use JAX's default precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from isomorph.initializers import (
    Constant,
    Initializer,
    Kaiming,
    Normal,
    TruncatedNormal,
    Uniform,
    XavierNormal,
    XavierUniform,
)
from isomorph.plan import Plan
from isomorph.source_code import nnx_helpers
from isomorph.source_code.framework import (
    Framework,
    Native,
    Text,
    arithmetic,
    function,
    indexed,
    operand,
    sliced,
    summed,
    swapped,
    trailing_parameters,
)
from isomorph.source_code.layout import ATOM, PRODUCT, Bare, Expression, call, infix, literal, method
from isomorph.source_code.record import Step
from isomorph.weights.initial import CUT_STD


def _linear(e: Any) -> Expression:
    x, weight, bias = e.inputs
    table = weight.text.removesuffix(".T") if weight.text.endswith(".T") else f"{weight.within(ATOM)}.T"
    product = Expression(f"{x.within(PRODUCT)} @ {table}", PRODUCT)
    return infix(product, "+", bias) if bias else product


def _convolution(e: Any) -> Expression:
    padding = f"padding={e.constant('padding')}" if e.step.attributes.get("padding") else ""
    given = [one.text for one in e.inputs if one]
    name = e.require("convolve", nnx_helpers.CONVOLVE)
    return call(name, *given, f"stride={e.constant('stride')}", padding)


def _embedding(e: Any) -> Expression:
    ids, weight = e.inputs
    return Expression(f"{weight.within(ATOM)}[{ids.text}]")


def _layer_norm(e: Any) -> Expression:
    x, weight, bias = e.inputs
    normalized = call(e.require("normalize", nnx_helpers.NORMALIZE), x.text, e.constant("eps"))
    normalized = infix(normalized, "*", weight) if weight else normalized
    return infix(normalized, "+", bias) if bias else normalized


def _rms_norm(e: Any) -> Expression:
    x, weight = e.inputs
    name = e.require("rms_norm", nnx_helpers.RMS_NORM)
    offset = f"offset={e.constant('offset')}" if "offset" in e.step.attributes else ""
    return call(name, x.text, weight.text if weight else "None", e.constant("eps"), offset)


def _l2_normalize(e: Any) -> Expression:
    name = e.require("l2_normalize", nnx_helpers.L2_NORMALIZE)
    return call(name, operand(e, 0).text, f"eps={e.constant('eps')}")


def _attention(e: Any) -> Expression:
    attributes = e.step.attributes
    q, k, v, mask = e.inputs
    name = e.require(*nnx_helpers.attention(attributes, mask is not None))
    return call(
        name, q.text, k.text, v.text, mask.text if mask else "",
        f"window={e.constant('window')}" if "window" in attributes else "",
        f"softcap={e.constant('softcap')}" if "softcap" in attributes else "",
        f"dropout={e.child(attributes['dropout'])}" if "dropout" in attributes else "",
    )  # fmt: skip


def _gelu(e: Any) -> Expression:
    exact = e.step.attributes["approximate"] == "none"
    return call("jax.nn.gelu", operand(e, 0).text, "approximate=False" if exact else "approximate=True")


def _quick_gelu(e: Any) -> Expression:
    return call(e.require("quick_gelu", nnx_helpers.QUICK_GELU), operand(e, 0).text)


def _permute(e: Any) -> Expression:
    axes = e.step.attributes["axes"]
    swap = swapped(axes)
    return method(operand(e, 0), "swapaxes" if swap else "transpose", *map(str, swap or axes))


def _concatenate(e: Any) -> Expression:
    parts = ", ".join(one.text for one in e.inputs)
    return call("jnp.concatenate", f"({parts})", f"axis={e.step.attributes['axis']}")


def _expand(e: Any) -> Expression:
    return call("jnp.broadcast_to", operand(e, 0).text, f"({', '.join(e.sizes('shape'))})")


def _select(e: Any) -> Expression:
    x, mask = e.inputs
    return call("jnp.where", f"{mask.within(ATOM)}[..., None]", x.text, "0")


def _take_at(e: Any) -> Expression:
    x, ids = e.inputs
    return call(e.require("take_at", nnx_helpers.TAKE_AT), x.text, ids.text, e.constant("token"))


def _masked_pool(e: Any) -> Expression:
    mode = e.step.attributes["mode"]
    x, mask = e.inputs
    return call(e.require(f"masked_{mode}", nnx_helpers.MASKED_POOL[mode]), x.text, mask.text)


def _reduced(name: str) -> Text:
    def text(e: Any) -> Expression:
        attributes = e.step.attributes
        kept = "keepdims=True" if attributes["keepdim"] else ""
        return method(operand(e, 0), name, str(attributes["axis"]), kept)

    return text


def _cos_sin(e: Any) -> Expression:
    name = e.require("cos_sin", nnx_helpers.COS_SIN)
    return call(name, e.size("length"), e.constant("frequencies"), f"{operand(e, 0).within(ATOM)}.dtype")


class NNXText(Framework):
    """Modules of ``flax.nnx``."""

    name = "nnx"
    title = "Flax NNX"
    tensor = "jax.Array"
    module = "nnx.Module"
    call_method = "__call__"
    inner_init = ""
    init_keyword = "rngs=rngs"
    init_parameter = "rngs: nnx.Rngs"
    shares_parameters = False
    reserved = frozenset(
        {"jax", "jnp", "nnx", "lax", "np", "rngs", "reduce", "Model", "Frozen", "freeze", "load"}
    )
    helpers = nnx_helpers.NAMES
    attributes = frozenset({"train", "eval", "perturb", "sow"})
    primitives: ClassVar[Mapping[str, Text]] = {
        "linear": _linear,
        "conv1d": _convolution,
        "conv2d": _convolution,
        "embedding": _embedding,
        "layer_norm": _layer_norm,
        "rms_norm": _rms_norm,
        "l2_normalize": _l2_normalize,
        "attention": _attention,
        "relu": function("jax.nn.relu"),
        "silu": function("jax.nn.silu"),
        "gelu": _gelu,
        "quick_gelu": _quick_gelu,
        "tanh": function("jnp.tanh"),
        "exp": function("jnp.exp"),
        "sigmoid": function("jax.nn.sigmoid"),
        "softmax": lambda e: call("jax.nn.softmax", operand(e, 0).text, f"axis={e.step.attributes['axis']}"),
        "reshape": lambda e: method(operand(e, 0), "reshape", *e.sizes("shape")),
        "permute": _permute,
        "concatenate": _concatenate,
        "narrow": sliced,
        "index": indexed,
        "expand": _expand,
        "select": _select,
        "take_at": _take_at,
        "cumsum": summed("cumsum", "jnp", "astype"),
        "mean": _reduced("mean"),
        "max": _reduced("max"),
        "masked_pool": _masked_pool,
        "cos_sin": _cos_sin,
        "add": arithmetic("+"),
        "subtract": arithmetic("-"),
        "multiply": arithmetic("*"),
    }

    def imports(self, body: str) -> list[str]:
        lines = ["from functools import reduce", ""] if "reduce(" in body else []
        lines += ["import jax"] if "jax." in body.replace("jax.numpy", "") else []
        lines += ["import jax.numpy as jnp"] if "jnp." in body else []
        lines += ["import numpy as np"] if "np." in body.replace("jnp.", "") else []
        return [*lines, "from flax import nnx"]

    def native(self, instance: Any, dtype: str) -> Native | None:
        operator = instance.operator
        if operator.leaf == "dropout":
            return Native("nnx.Dropout", (("", operator.p),))
        trailing = trailing_parameters(instance)
        if trailing is None:
            return None
        parameters = {name: spec.shape for name, spec in operator.own_parameters.items()}
        layer = _native(trailing[0], parameters)
        if layer is None or dtype == "float32":
            return layer
        return layer._replace(arguments=(*layer.arguments, ("param_dtype", Bare(f"jnp.{dtype}"))))

    def parameter(self, shape: Sequence[str], initial: Initializer, dtype: str) -> Expression:
        sizes = f"({', '.join(shape)}{',' * (len(shape) == 1)})"
        kind = f"jnp.{dtype}"
        if isinstance(initial, Constant):
            plain = {0.0: "zeros", 1.0: "ones"}.get(initial.value)
            number = "" if plain else literal(initial.value)
            given = [sizes, *([number] if number else []), *([kind] if dtype != "float32" else [])]
            return call("nnx.Param", f"jnp.{plain or 'full'}({', '.join(given)})")
        return call("nnx.Param", _draw(initial, sizes, kind))

    def read(self, path: str) -> str:
        stem = path.removesuffix(".T")
        return f"{stem}[...]{path[len(stem) :]}"

    def tie_loop(self) -> list[str]:
        return [
            "for name, owner in TIED.items():",
            '    *parents, last = name.split(".")',
            '    shared = reduce(getattr, owner.split("."), self)',
            "    setattr(reduce(getattr, parents, self), last, shared)",
        ]

    def load_lines(
        self, plan: Plan, ties: Mapping[str, str], natives: Sequence[Native], has_modules: bool
    ) -> list[str]:
        lines = [
            'def load(path: str = "model.safetensors") -> Model:',
            '    """The model with the weights of a file, in evaluation mode.',
            "",
            "    The file has PyTorch's names and axis order: a linear weight is [out, in].",
            '    """',
            "    from safetensors.flax import load_file",
            "",
            "    model = Model(rngs=nnx.Rngs(0))",
            "    for name, array in load_file(path).items():",
            '        *parents, last = name.split(".")',
            "        module = reduce(getattr, parents, model)",
        ]
        return [*lines, *_renamed(natives), "    model.eval()", "    return model"]

    def notes(self, plan: Plan, primitives: set[str]) -> list[str]:
        sentences = [
            "Untrained weights of Flax's own layers start from Flax's own distributions. On a GPU or TPU, "
            'call it under `jax.default_matmul_precision("highest")` for products in full float32.'
        ]
        if plan.dtype == "float64":
            sentences.append('It computes in float64: `jax.config.update("jax_enable_x64", True)` first.')
        if "embedding" in primitives or any(v.dtype == "int64" for v in plan.values):
            sentences.append("An id outside a table does not raise an error, as usual in JAX.")
        return sentences

    def usage(self, plan: Plan, arguments: Sequence[str]) -> list[str]:
        given = ", ".join(arguments)
        return ["    from model import load", "", f'    y = load("model.safetensors")({given})']

    def frozen(self, expression: str, is_parameter: bool) -> Expression:
        if is_parameter:
            return Expression(f"{expression} = Frozen({expression}[...])")
        return call("freeze", expression)

    def frozen_new(self, expression: Expression) -> Expression:
        return call("freeze", expression.text)

    def frozen_helpers(self) -> Mapping[str, str]:
        return {"Frozen": nnx_helpers.FROZEN, "freeze": nnx_helpers.FREEZE}


def _native(step: Step, shapes: Mapping[str, tuple[int, ...]]) -> Native | None:
    """Flax's layer of a primitive."""
    attributes = step.attributes
    weight = shapes.get("weight", ())
    bias = () if "bias" in shapes else (("use_bias", False),)
    if step.primitive == "linear":
        names = {"weight": "kernel"}
        return Native("nnx.Linear", (("", weight[1]), ("", weight[0]), *bias), names, frozenset({"weight"}))
    if step.primitive == "embedding":
        return Native("nnx.Embed", (("", weight[0]), ("", weight[1])), {"weight": "embedding"})
    if step.primitive == "layer_norm":
        # Flax's fast variance cancels where the mean is far larger than the spread.
        options = (("epsilon", attributes["eps"]), ("use_fast_variance", False))
        scale = () if weight else (("use_scale", False),)
        return Native(
            "nnx.LayerNorm", (("", attributes["shape"][0]), *options, *scale, *bias), {"weight": "scale"}
        )
    if step.primitive == "rms_norm" and "offset" not in attributes:
        scale = () if weight else (("use_scale", False),)
        arguments = (("", attributes["shape"][0]), ("epsilon", attributes["eps"]), *scale)
        return Native("nnx.RMSNorm", arguments, {"weight": "scale"})
    return None


def _renamed(natives: Sequence[Native]) -> list[str]:
    """The part of ``load`` that finds the layers' names for weights."""
    branches: dict[tuple[str, str, bool], list[str]] = {}
    for native in natives:
        for ours, theirs in native.names.items():
            heads = branches.setdefault((ours, theirs, ours in native.transposed), [])
            if native.head not in heads:
                heads.append(native.head)
    lines = []
    for (ours, theirs, transposed), heads in branches.items():
        kinds = heads[0] if len(heads) == 1 else f"({', '.join(heads)})"
        word = "elif" if lines else "if"
        lines += [f'        {word} isinstance(module, {kinds}) and last == "{ours}":']
        lines += [f'            last{", array" * transposed} = "{theirs}"{", array.T" * transposed}']
    return [*lines, "        getattr(module, last).set_value(array)"]


def _draw(initial: Initializer, shape: str, dtype: str) -> Expression:
    """The expression that draws an array in plan layout, whose second axis is fan_in."""
    given = ("rngs.params()", shape, dtype)
    if isinstance(initial, Uniform):
        return call("jax.random.uniform", *given, literal(initial.low), literal(initial.high))
    if isinstance(initial, Normal | TruncatedNormal):
        if isinstance(initial, Normal):
            width, drawn = initial.std, call("jax.random.normal", *given)
        else:
            cut = ("rngs.params()", "-2.0", "2.0", shape, dtype)
            width, drawn = initial.std / CUT_STD, call("jax.random.truncated_normal", *cut)
        drawn = infix(Expression(literal(width)), "*", drawn) if width != 1 else drawn
        return infix(Expression(literal(initial.mean)), "+", drawn) if initial.mean else drawn
    if isinstance(initial, Kaiming | XavierNormal | XavierUniform):
        kind = "uniform" if initial.scheme.endswith("uniform") else "normal"
        mode = literal(initial.mode if isinstance(initial, Kaiming) else "fan_avg")
        scale = literal(initial.gain**2)
        axes = "in_axis=1, out_axis=0"
        return call(f'nnx.initializers.variance_scaling({scale}, {mode}, "{kind}", {axes})', *given)
    gain = literal(getattr(initial, "gain", 1.0))
    return call(f"nnx.initializers.orthogonal({gain}, column_axis=0)", *given)


WORDS = NNXText
"""What :mod:`isomorph.source_code.write` asks every framework's module for."""
