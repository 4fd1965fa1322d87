"""PyTorch's words: :class:`isomorph.primitives.Primitives` as expressions, native layers, initial values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from isomorph.initializers import Constant, Initializer, Kaiming, Normal, Orthogonal, TruncatedNormal, Uniform
from isomorph.plan import Plan
from isomorph.source_code import torch_helpers
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
from isomorph.source_code.layout import Expression, call, literal, method
from isomorph.source_code.record import Step
from isomorph.weights.initial import CUT_STD


def _with_parameters(name: str) -> Text:
    """``name(x, weight, bias)``."""
    return lambda e: call(name, *[one.text if one else "" for one in e.inputs])


def _convolution(name: str) -> Text:
    def text(e: Any) -> Expression:
        options = [
            f"{key}={e.constant(key)}"
            for key, default in (("stride", 1), ("padding", 0))
            if e.step.attributes.get(key, default) != default
        ]
        return call(name, *[one.text if one else "" for one in e.inputs], *options)

    return text


def _layer_norm(e: Any) -> Expression:
    x, weight, bias = e.inputs
    options = [f"weight={weight.text}" if weight else "", f"bias={bias.text}" if bias else ""]
    return call("F.layer_norm", x.text, _width(e), *options, f"eps={e.constant('eps')}")


def _rms_norm(e: Any) -> Expression:
    x, weight = e.inputs
    if "offset" not in e.step.attributes or weight is None:
        return call(
            "F.rms_norm", x.text, _width(e), weight.text if weight else "", f"eps={e.constant('eps')}"
        )
    gain = f"{weight.text} + {e.constant('offset')}"
    if e.dtype in ("float32", "float64"):
        return call("F.rms_norm", x.text, _width(e), gain, f"eps={e.constant('eps')}")
    # In half precision the sum is rounded once, at the end.
    name = e.require("rms_norm", torch_helpers.RMS_NORM)
    return call(name, x.text, weight.text, e.constant("offset"), e.constant("eps"))


def _width(e: Any) -> str:
    return f"({e.sizes('shape')[0]},)"


def _l2_normalize(e: Any) -> Expression:
    name = e.require("l2_normalize", torch_helpers.L2_NORMALIZE)
    return call(name, operand(e, 0).text, f"eps={e.constant('eps')}")


def _attention(e: Any) -> Expression:
    attributes = e.step.attributes
    q, k, v, mask = e.inputs
    drop = ""
    if "dropout" in attributes:
        child = e.child(attributes["dropout"])
        drop = f"{child}.p if {child}.training else 0.0"
    plain = mask is None and not {"window", "softcap"} & set(attributes)
    if plain and (not attributes.get("causal") or attributes["square"]):
        return call(
            "F.scaled_dot_product_attention", q.text, k.text, v.text,
            "is_causal=True" if attributes.get("causal") else "",
            f"dropout_p={drop}" if drop else "",
            "enable_gqa=True" if attributes["grouped"] else "",
        )  # fmt: skip
    name = e.require(*torch_helpers.attention(attributes, mask is not None))
    return call(
        name, q.text, k.text, v.text, mask.text if mask else "",
        f"window={e.constant('window')}" if "window" in attributes else "",
        f"softcap={e.constant('softcap')}" if "softcap" in attributes else "",
        f"dropout={drop}" if drop else "",
    )  # fmt: skip


def _gelu(e: Any) -> Expression:
    approximate = e.step.attributes["approximate"]
    option = "" if approximate == "none" else f"approximate={literal(approximate)}"
    return call("F.gelu", operand(e, 0).text, option)


def _quick_gelu(e: Any) -> Expression:
    name = e.require("quick_gelu", torch_helpers.QUICK_GELU)
    return call(name, operand(e, 0).text)


def _permute(e: Any) -> Expression:
    axes = e.step.attributes["axes"]
    swap = swapped(axes)
    if swap:
        return method(operand(e, 0), "transpose", *map(str, swap))
    return method(operand(e, 0), "permute", *map(str, axes))


def _concatenate(e: Any) -> Expression:
    parts = ", ".join(one.text for one in e.inputs)
    return call("torch.cat", f"({parts})", f"dim={e.step.attributes['axis']}")


def _select(e: Any) -> Expression:
    x, mask = e.inputs
    return call("torch.where", f"{mask.within(3)}[..., None]", x.text, "0.0")


def _take_at(e: Any) -> Expression:
    name = e.require("take_at", torch_helpers.TAKE_AT)
    x, ids = e.inputs
    return call(name, x.text, ids.text, e.constant("token"))


def _masked_pool(e: Any) -> Expression:
    mode = e.step.attributes["mode"]
    name = e.require(f"masked_{mode}", torch_helpers.MASKED_POOL[mode])
    x, mask = e.inputs
    return call(name, x.text, mask.text)


def _reduced(name: str) -> Text:
    def text(e: Any) -> Expression:
        attributes = e.step.attributes
        return method(
            operand(e, 0), name, str(attributes["axis"]), "keepdim=True" if attributes["keepdim"] else ""
        )

    return text


def _cos_sin(e: Any) -> Expression:
    name = e.require("cos_sin", torch_helpers.COS_SIN)
    return call(name, e.size("length"), e.constant("frequencies"), operand(e, 0).text)


class TorchText(Framework):
    """Modules of ``torch.nn``."""

    name = "torch"
    title = "PyTorch"
    shares_parameters = True
    draws_anew = True
    tensor = "torch.Tensor"
    module = "nn.Module"
    call_method = "forward"
    inner_init = "super().__init__()"
    reserved = frozenset({"F", "nn", "torch", "Model", "load"})
    helpers = torch_helpers.NAMES
    attributes = frozenset({"training", "type", "train", "eval", "half", "float", "double", "to", "apply"})
    primitives: ClassVar[Mapping[str, Text]] = {
        "linear": _with_parameters("F.linear"),
        "conv1d": _convolution("F.conv1d"),
        "conv2d": _convolution("F.conv2d"),
        "embedding": _with_parameters("F.embedding"),
        "layer_norm": _layer_norm,
        "rms_norm": _rms_norm,
        "l2_normalize": _l2_normalize,
        "attention": _attention,
        "relu": function("F.relu"),
        "silu": function("F.silu"),
        "gelu": _gelu,
        "quick_gelu": _quick_gelu,
        "tanh": function("torch.tanh"),
        "exp": function("torch.exp"),
        "sigmoid": function("torch.sigmoid"),
        "softmax": lambda e: call("torch.softmax", operand(e, 0).text, f"dim={e.step.attributes['axis']}"),
        "reshape": lambda e: method(operand(e, 0), "reshape", *e.sizes("shape")),
        "permute": _permute,
        "concatenate": _concatenate,
        "narrow": sliced,
        "index": indexed,
        "expand": lambda e: method(operand(e, 0), "expand", *e.sizes("shape")),
        "select": _select,
        "take_at": _take_at,
        "cumsum": summed("cumsum", "torch", "to"),
        "mean": _reduced("mean"),
        "max": _reduced("amax"),
        "masked_pool": _masked_pool,
        "cos_sin": _cos_sin,
        "add": arithmetic("+"),
        "subtract": arithmetic("-"),
        "multiply": arithmetic("*"),
    }

    def imports(self, body: str) -> list[str]:
        lines = ["import torch"] if "torch." in body else []
        lines += ["import torch.nn.functional as F"] if " F." in body or "(F." in body else []
        return [*lines, "from torch import nn"]

    def native(self, instance: Any, dtype: str) -> Native | None:
        operator = instance.operator
        if operator.leaf == "dropout":
            return Native("nn.Dropout", (("", operator.p),))
        trailing = trailing_parameters(instance)
        if trailing is None:
            return None
        parameters = operator.own_parameters
        return _native(trailing[0], {name: spec.shape for name, spec in parameters.items()})

    def parameter(self, shape: Sequence[str], initial: Initializer, dtype: str) -> Expression:
        sizes = ", ".join(shape)
        if isinstance(initial, Constant):
            filled = f"torch.full(({sizes}{',' * (len(shape) == 1)}), {literal(initial.value)})"
            plain = {0.0: f"torch.zeros({sizes})", 1.0: f"torch.ones({sizes})"}
            return call("nn.Parameter", plain.get(initial.value, filled))
        if isinstance(initial, Normal) and not initial.mean:
            factor = f" * {literal(initial.std)}" if initial.std != 1.0 else ""
            return call("nn.Parameter", f"torch.randn({sizes}){factor}")
        return call("nn.Parameter", _draw(f"torch.empty({sizes})", initial))

    def dtype_lines(self, plan: Plan) -> list[str]:
        return [] if plan.dtype == "float32" else [f"self.to(torch.{plan.dtype})"]

    def tie_loop(self) -> list[str]:
        return [
            "for name, owner in TIED.items():",
            '    module, _, last = name.rpartition(".")',
            "    setattr(self.get_submodule(module), last, self.get_parameter(owner))",
        ]

    def load_lines(
        self, plan: Plan, ties: Mapping[str, str], natives: Sequence[Native], has_modules: bool
    ) -> list[str]:
        lines = [
            'def load(path: str = "model.safetensors") -> Model:',
            '    """The model with the weights of a file, in evaluation mode."""',
            "    from safetensors.torch import load_file",
            "",
            "    weights = load_file(path)",
        ]
        if len(ties) > MOST_TIES_IN_LINES:
            lines += ["    for name, owner in TIED.items():", "        weights[name] = weights[owner]"]
        else:
            lines += [f'    weights["{name}"] = weights["{owner}"]' for name, owner in ties.items()]
        return [
            *lines,
            "    model = Model()",
            "    model.load_state_dict(weights)",
            "    return model.eval()",
        ]

    def notes(self, plan: Plan, primitives: set[str]) -> list[str]:
        sentences = []
        if {"conv1d", "conv2d"} & primitives:
            sentences.append(
                "Convolutions on NVIDIA GPUs round to TF32 unless `torch.backends.cudnn.allow_tf32` is False."
            )
        return sentences

    def usage(self, plan: Plan, arguments: Sequence[str]) -> list[str]:
        given = ", ".join(arguments)
        return ["    from model import load", "", f'    y = load("model.safetensors")({given})']

    def drawn(self, path: str, initial: Initializer) -> Expression:
        return _draw(path, initial)

    def frozen(self, expression: str, is_parameter: bool) -> Expression:
        return call(f"{expression}.requires_grad_", "False")

    def frozen_new(self, expression: Expression) -> Expression:
        return Expression(f"{expression.text}.requires_grad_(False)")


MOST_TIES_IN_LINES = 4
"""More tied parameters than this are listed in a table."""


def _native(step: Step, shapes: Mapping[str, tuple[int, ...]]) -> Native | None:
    """PyTorch's layer of a primitive, whose parameters have the same names and axes."""
    attributes = step.attributes
    weight = shapes.get("weight", ())
    bias = () if "bias" in shapes else (("bias", False),)
    if step.primitive == "linear":
        return Native("nn.Linear", (("", weight[1]), ("", weight[0]), *bias))
    if step.primitive == "embedding":
        return Native("nn.Embedding", (("", weight[0]), ("", weight[1])))
    if step.primitive == "layer_norm":
        width = (("", attributes["shape"][0]), ("eps", attributes["eps"]))
        return Native("nn.LayerNorm", (*width, *(bias if weight else (("elementwise_affine", False),))))
    if step.primitive == "rms_norm" and "offset" not in attributes:
        width = (("", attributes["shape"][0]), ("eps", attributes["eps"]))
        return Native("nn.RMSNorm", (*width, *(() if weight else (("elementwise_affine", False),))))
    if step.primitive in ("conv1d", "conv2d") and len(set(weight[2:])) == 1:
        options = tuple(
            (key, attributes[key])
            for key, default in (("stride", 1), ("padding", 0))
            if attributes.get(key, default) != default
        )
        head = "nn.Conv1d" if step.primitive == "conv1d" else "nn.Conv2d"
        return Native(head, (("", weight[1]), ("", weight[0]), ("", weight[2]), *options, *bias))
    return None


def _draw(target: str, initial: Initializer) -> Expression:
    """The call of ``torch.nn.init`` for a distribution."""
    values: dict[str, Any]
    if isinstance(initial, Constant):
        name = {0.0: "zeros_", 1.0: "ones_"}.get(initial.value, "constant_")
        values = {} if name != "constant_" else {"val": initial.value}
    elif isinstance(initial, Normal):
        name, values = "normal_", {"mean": initial.mean} if initial.mean else {}
        values |= {"std": initial.std}
    elif isinstance(initial, Uniform):
        name, values = "uniform_", {"a": initial.low, "b": initial.high}
    elif isinstance(initial, TruncatedNormal):
        wide = initial.std / CUT_STD  # torch's std is the deviation before the cut
        low, high = initial.mean - 2 * wide, initial.mean + 2 * wide
        name, values = "trunc_normal_", {"mean": initial.mean, "std": wide, "a": low, "b": high}
    elif isinstance(initial, Kaiming):
        name = f"{initial.scheme}_"
        values = {"a": initial.a} if initial.a else {}
        values |= {"mode": initial.mode, "nonlinearity": initial.nonlinearity}
    elif isinstance(initial, Orthogonal):
        name, values = "orthogonal_", {"gain": initial.gain}
    else:
        name, values = f"{initial.scheme}_", {"gain": getattr(initial, "gain", 1.0)}
    return call(f"nn.init.{name}", target, *(f"{key}={literal(value)}" for key, value in values.items()))


WORDS = TorchText
"""What :mod:`isomorph.source_code.write` asks every framework's module for."""
