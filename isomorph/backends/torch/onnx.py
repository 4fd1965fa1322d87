"""A plan as an ONNX file: captured by ``torch.export``, every symbol open, compared with the reference.

The file is one of the ai.onnx operator set :data:`OPSET` alone, so that any ONNX runtime may read it. Its
inputs, outputs and parameters have the plan's names, and its open axes the plan's symbols; the definition and
the bounds of symbols are in its metadata. What looks at values while a network runs is not in a captured
graph: ids outside a table, a length beyond its bound, and a mean over no elements are whatever the runtime
makes of them, and a NaN at a future position of causal attention reaches the earlier ones.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from isomorph.backends.bounds import NumericBound, numeric_bound
from isomorph.backends.samples import sample_inputs, sample_sizes
from isomorph.backends.torch.build import build
from isomorph.backends.torch.weights import to_tensor
from isomorph.backends.torch.weights import weights as weights_of
from isomorph.errors import IsomorphError
from isomorph.paths import path_text
from isomorph.plan import Bound, Plan, Value
from isomorph.resolver.dimensions import Affine, show_shape
from isomorph.writing.atomic import hidden_directory, sync_directory, sync_files, take_name
from isomorph.writing.marks import Kind, onnx_marked
from isomorph.writing.rule import Input, Target, refuse_extension, told

OPSET = 20
"""Version of the operator set: the first with ``Gelu``."""

EXTERNAL_BYTES = 1 << 30
"""Weights that take more go to a file beside the model, which may have 2 GiB at most."""

LONE_OUTPUT = "output"
"""What the only output of a plan is called that gives it no name."""

DEFINITION = "isomorph.definition"
ONNX = Kind("ONNX model", (".onnx",), onnx_marked(DEFINITION))

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_REFUSED = {
    "bfloat16": "onnxruntime multiplies no bfloat16 matrices on a CPU",
    "float64": "onnxruntime has no float64 error function, and PyTorch's exporter writes constants in float32",
}
_KNOWN_WARNINGS = (
    r".*The axis name: .* will not be used, since it shares the same shape constraints",
    r".*isinstance\(treespec, LeafSpec\)",
)


class Comparison(NamedTuple):
    """The written model in onnxruntime against the float64 reference, at one choice of sizes.

    Attributes:
        sizes: the value of every symbol.
        difference: ``max |y - y_ref|`` over all outputs.
        bound: what it may be (:mod:`isomorph.backends.bounds`).
    """

    sizes: dict[str, int]
    difference: float
    bound: float

    @property
    def agrees(self) -> bool:
        """Whether the difference is within its bound; NaN is not."""
        return self.difference <= self.bound

    def __str__(self) -> str:
        where = " at " + ", ".join(f"{symbol}={size}" for symbol, size in self.sizes.items())
        return f"difference {self.difference:.3g}, allowed {self.bound:.3g}{where if self.sizes else ''}"


class OnnxModel(NamedTuple):
    """What :func:`export_onnx` wrote.

    Attributes:
        path: the model.
        data: the file with its weights, beside it; None when they are in the model.
        inputs, outputs: shape and dtype by name, as text.
        comparisons: one for each choice of sizes tried.
    """

    path: str
    data: str | None
    inputs: dict[str, str]
    outputs: dict[str, str]
    comparisons: tuple[Comparison, ...]


def export_onnx(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    plan: Plan,
    weights: Mapping[str, Any],
    *,
    compare: bool = True,
    external_bytes: int = EXTERNAL_BYTES,
    force: bool = False,
    inputs: Sequence[Input] = (),
) -> OnnxModel:
    """Write a network, in evaluation mode, as an ONNX file for any sizes of its symbols.

    The file is checked before it takes its name: by ``onnx.checker``, and in onnxruntime at two choices of
    sizes, neither of them the one it was captured at. A process that is killed leaves what was there before,
    or the new model, whole, and perhaps a hidden directory ``.<name>.<random>.tmp``. A lone output without a
    name is called ``output``.

    Args:
        path: the file; ``.onnx`` or no extension. Its directory must exist.
        plan: the network, of dtype float32 or float16.
        weights: arrays by parameter path, such as a backend's ``weights(model)``; a tied one is stored once.
        compare: whether to run the reference, which takes 8 bytes per parameter, and onnxruntime.
        external_bytes: weights that take more are written to ``<name>.<16 hex digits>.data`` beside the file.
        force: whether a file that was not exported here is replaced.
        inputs: paths of what is read meanwhile, which is never replaced.

    Raises:
        IsomorphError: E_BACKEND when a package is missing, when ``torch.export`` cannot capture an operator,
            or when onnxruntime does not compute what the reference computes; E_ARGUMENT when the plan cannot
            be said in ONNX; E_WEIGHTS when the weights are not exactly the plan's; E_OUTPUT when something else
            has the name, or the file cannot be written. They leave what was there.
    """
    named = Target(path_text(path, "the model's path"), ONNX, tuple(inputs), force, alone=False)
    refuse_extension(named.name, ONNX.extensions, bare=True)
    _refuse_inexpressible(Plan.expect(plan))
    named.check()
    target = Path(os.path.realpath(named.name))
    _require_packages()
    network = build(plan, weights).eval()
    model = _tidied(_captured(network, plan), plan)
    with told(named.name), hidden_directory(target.parent, target.name) as workplace:
        written = _write(model, workplace / target.name, external_bytes)
        _check_format(written[0])
        comparisons = tuple(_compared(written[0], plan, weights_of(network)) if compare else ())
        named.check()
        _publish(written, target)
    data = str(target.with_name(written[1].name)) if len(written) > 1 else None
    return OnnxModel(
        str(target), data, _described(plan, plan.inputs), _described(plan, plan.outputs), comparisons
    )


def _described(plan: Plan, ends: tuple[tuple[str, int], ...]) -> dict[str, str]:
    found = ((name, plan.values[value]) for name, value in ends)
    return {name or LONE_OUTPUT: f"{show_shape(value.shape)} {value.dtype}" for name, value in found}


# -- what cannot be said -----------------------------------------------------------------------


def _refuse_inexpressible(plan: Plan) -> None:
    if plan.dtype in _REFUSED:
        raise IsomorphError(
            "E_ARGUMENT",
            f"a network of dtype {plan.dtype} is not exported to ONNX: {_REFUSED[plan.dtype]}",
            hints=['resolve the definition with dtype="float32"; the weights are rounded to it'],
        )
    inputs = {name for name, _ in plan.inputs}
    both = [name for name, _ in plan.outputs if name in inputs]
    if both:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{both[0]} is an input and an output, and ONNX knows a tensor by one name",
            hints=[f"give the output a name of its own, as in {both[0]}_out = identity({both[0]})"],
        )
    for symbol in plan.symbols:
        low, high = plan.bounds.get(symbol, Bound())
        if high is not None and high < max(low + 1, 2):
            raise IsomorphError(
                "E_ARGUMENT",
                f"{symbol} must be from {low} to {high}, which torch.export does not keep open",
                hints=[f"an open size may be 2 and another one at least; give a number in place of {symbol}"],
            )


def _require_packages() -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise IsomorphError(
            "E_BACKEND",
            f"exporting to ONNX needs {', '.join(_PACKAGES)}; not installed: {', '.join(missing)}",
            hints=['pip install "isomorph[onnx]"'],
        )


# -- capturing ---------------------------------------------------------------------------------


def _captured(network: nn.Module, plan: Plan) -> Any:
    """The network as an ``onnx_ir.Model``, not yet optimized."""
    inputs = sample_inputs(plan, _capture_sizes(plan))
    with _quiet():
        try:
            program = torch.onnx.export(
                network,
                tuple(to_tensor(inputs[name]) for name, _ in plan.inputs),
                dynamo=True,
                dynamic_shapes=_open_axes(plan),
                custom_translation_table={torch.ops.aten.scaled_dot_product_attention.default: _attention},
                opset_version=OPSET,
                optimize=False,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            cause = str(error.__cause__ or error).strip().splitlines()[0]
            raise IsomorphError(
                "E_BACKEND",
                f"PyTorch cannot write this network as ONNX: {cause}",
                hints=["the exception this one comes from has the whole story"],
            ) from error
    assert program is not None  # None is for the exporter of old
    return program.model


def _capture_sizes(plan: Plan) -> dict[str, int]:
    """Values for the symbols that :func:`sample_sizes` does not choose where there is a choice.

    Never 0 or 1, of which ``torch.export`` makes constants.
    """
    found = {}
    for i, symbol in enumerate(plan.symbols):
        low, high = plan.bounds.get(symbol, Bound())
        wanted = max(low, 2, (7, 11, 13, 9, 8)[i % 5])
        found[symbol] = wanted if high is None else min(wanted, high)
    return found


def _open_axes(plan: Plan) -> tuple[dict[int, Any], ...]:
    """For every input its symbolic axes, as ``torch.export`` takes them."""
    shapes = [plan.values[value].shape for _, value in plan.inputs]
    lows = {symbol: plan.bounds.get(symbol, Bound()).low for symbol in plan.symbols}
    for size in (size for shape in shapes for size in shape if isinstance(size, Affine)):
        (variable, coefficient), *others = size.terms
        if not others and coefficient > 0:  # T - 1 begins at T = 1
            lows[variable.name] = max(lows[variable.name], -(size.constant // coefficient))
    roots = {
        symbol: torch.export.Dim(symbol, min=low, max=plan.bounds.get(symbol, Bound()).high)
        for symbol, low in lows.items()
    }
    return tuple(
        {axis: _open_axis(size, roots) for axis, size in enumerate(shape) if isinstance(size, Affine)}
        for shape in shapes
    )


def _open_axis(size: Affine, roots: Mapping[str, Any]) -> Any:
    (variable, coefficient), *others = size.terms
    if others or coefficient < 0:
        return torch.export.Dim.AUTO  # it has no name there, and is found from how the network uses it
    axis = roots[variable.name]
    axis = axis if coefficient == 1 else coefficient * axis
    return axis + size.constant if size.constant else axis


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """``scaled_dot_product_attention`` in ONNX, for 0 queries and 0 keys too.

    The exporter's own translation reshapes with a size of -1, which 0 leaves undetermined.

    Args:
        query, key, value: ``[B, H, T, d]``, ``[B, K, S, d]``, ``[B, K, S, d]``.
        attn_mask: boolean, of a shape that stretches to ``[B, H, T, S]``, with a True in every row.
        dropout_p: 0, as evaluation has it.
        is_causal: query i sees keys 0 to i; without a mask.
        scale: of the scores; ``1 / sqrt(d)`` if None.
        enable_gqa: implied by the shapes.
    """
    from onnx import TensorProto
    from onnxscript import opset20

    op: Any = opset20
    heads, key_heads, d = query.shape[1], key.shape[1], query.shape[3]
    if heads != key_heads:
        owners = op.Constant(value_ints=[head // (heads // key_heads) for head in range(heads)])
        key, value = op.Gather(key, owners, axis=1), op.Gather(value, owners, axis=1)
    factor = op.Constant(value_float=float(d**-0.5 if scale is None else scale))
    scaled = op.Mul(query, op.CastLike(factor, query))
    scores = op.MatMul(scaled, op.Transpose(key, perm=[0, 1, 3, 2]))  # (B, H, T, S)
    if is_causal:
        square = op.Concat(op.Shape(query, start=2, end=3), op.Shape(key, start=2, end=3), axis=0)
        ones = op.Cast(op.Constant(value_ints=[1]), to=TensorProto.BOOL)
        attn_mask = op.Trilu(op.Expand(ones, square), upper=0)  # (T, S)
    if attn_mask is not None:
        hidden = op.CastLike(op.Constant(value_float=float("-inf")), query)
        scores = op.Where(attn_mask, scores, hidden)  # selected: what hidden scores are does not matter
    return op.MatMul(op.Softmax(scores, axis=-1), value)  # (B, H, T, d)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notices that say nothing about the network, such as of packages it can do without.

    Errors are raised all the same.
    """
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for message in _KNOWN_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


# -- naming ------------------------------------------------------------------------------------


def _tidied(model: Any, plan: Plan) -> Any:
    """The same ``onnx_ir.Model``, simplified, with the plan's names and without traces of this machine."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript.optimizer import optimize_ir

    # A computation on parameters alone, such as a transpose, stays: its result would be a second copy.
    optimize_ir(model, should_fold=lambda node: False if any(map(_is_initializer, node.inputs)) else None)
    ClearMetadataAndDocStringPass()(model)
    graph = model.graph
    ends = [(value, *end) for value, end in zip(graph.inputs, plan.inputs, strict=True)]
    ends += [(value, *end) for value, end in zip(graph.outputs, plan.outputs, strict=True)]
    _clear_names({name or LONE_OUTPUT for _, name, _ in ends}, graph)
    for value, name, number in ends:
        value.name = name or LONE_OUTPUT
        _declare(value, plan.values[number])
    for path, owner in plan.ties.items():
        if path in graph.initializers and owner not in graph.initializers:
            graph.initializers[path].name = owner
    model.metadata_props[DEFINITION] = plan.definition
    bounds = [f"{symbol} >= {low}" for symbol, (low, _) in plan.bounds.items() if low]
    bounds += [f"{symbol} <= {high}" for symbol, (_, high) in plan.bounds.items() if high is not None]
    model.metadata_props["isomorph.bounds"] = ", ".join(bounds)
    return model


def _is_initializer(value: Any) -> bool:
    return value is not None and value.is_initializer()


def _clear_names(taken: set[str], graph: Any) -> None:
    """Rename what is inside the graph and has one of these names, which its inputs and outputs get."""
    inside = [*graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    for number, value in enumerate(inside):
        if value.name in taken:
            value.name = f"{value.name}.{number}"  # no name of an input or output has a dot


def _declare(value: Any, planned: Value) -> None:
    """Sizes as the plan has them; E_BACKEND for another dtype, and where a number was made of an open size."""
    import onnx_ir

    if value.dtype.numpy() != planned.dtype:
        raise IsomorphError(
            "E_BACKEND",
            f"{value.name} should be {planned.dtype}, and PyTorch's exporter made it {value.dtype.numpy()}",
        )
    for axis, (size, captured) in enumerate(zip(planned.shape, value.shape, strict=True)):
        if isinstance(size, Affine) and isinstance(captured, int):
            raise IsomorphError(
                "E_BACKEND",
                f"axis {axis} of {value.name} should be {size!r}, and torch.export made it {captured}",
                hints=["an operator's computation depends on the size it is captured at"],
            )
    value.shape = onnx_ir.Shape([repr(size) if isinstance(size, Affine) else size for size in planned.shape])


# -- writing -----------------------------------------------------------------------------------


def _write(model: Any, path: Path, external_bytes: int) -> list[Path]:
    """Write the model, with its weights or beside them; the files, the model first."""
    import onnx_ir

    size = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    if size <= external_bytes:
        onnx_ir.save(model, path)
        return [path]
    data = f"{path.name}.{secrets.token_hex(8)}.data"
    onnx_ir.save(model, path, external_data=data)
    return [path, path.with_name(data)]


def _publish(written: list[Path], target: Path) -> None:
    """Give finished files their names: the weights first, under a name of their own, then the model.

    At every moment the model that has the name is whole, for the weights that it names lie beside it. Those
    of the model before go last.
    """
    sync_files(written)
    for path in written:
        with suppress(FileNotFoundError):
            path.chmod(
                target.stat().st_mode & 0o7777
            )  # an existing model's permissions are kept, of its data too
    for path in reversed(written):
        take_name(path, target.with_name(path.name))
    sync_directory(target.parent)
    data = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.data")
    for path in target.parent.iterdir():
        if data.fullmatch(path.name) and path.name not in [one.name for one in written]:
            with suppress(OSError):  # someone has it open, on Windows
                path.unlink()


# -- checking ----------------------------------------------------------------------------------


def _check_format(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(os.fspath(path))
    except onnx.checker.ValidationError as error:
        first = str(error).strip().splitlines()[0]
        raise IsomorphError("E_BACKEND", f"the exported model is not valid ONNX: {first}") from error


def _compared(path: Path, plan: Plan, weights: Mapping[str, Any]) -> Iterator[Comparison]:
    """The file in onnxruntime against the reference; E_BACKEND where it differs or cannot be run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        for sizes in sample_sizes(plan)[:2]:
            inputs = sample_inputs(plan, sizes)
            outputs = session.run(None, inputs)
            yield _comparison(outputs, numeric_bound(plan, weights, inputs, dtype=plan.dtype), sizes)
    except IsomorphError:
        raise
    except Exception as error:  # onnxruntime has no exception class of its own that is public
        first = str(error).strip().splitlines()[0]
        raise IsomorphError("E_BACKEND", f"onnxruntime cannot run the exported model: {first}") from error


def _comparison(outputs: Sequence[Any], truth: NumericBound, sizes: dict[str, int]) -> Comparison:
    difference = 0.0
    for found, expected in zip(outputs, truth.outputs.values(), strict=True):
        apart = np.abs(np.asarray(found, np.float64) - expected) if found.shape == expected.shape else np.inf
        difference = float(np.maximum(difference, np.max(apart, initial=0.0)))  # NaN stays NaN
    comparison = Comparison(sizes, difference, truth.total)
    if not comparison.agrees:
        raise IsomorphError(
            "E_BACKEND",
            f"onnxruntime does not compute what the reference computes: {comparison}",
            hints=["nothing was written"],
        )
    return comparison
