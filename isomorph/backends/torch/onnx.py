"""A plan as an ONNX file: captured by ``torch.export``, every symbol open, compared with the reference.

The file is one of a single ai.onnx operator set, :data:`onnx_graph.OPSET`, so that any ONNX runtime may read it. Its
inputs, outputs and parameters have the plan's names, and its open axes the plan's symbols; the definition and
the bounds of symbols are in its metadata. What looks at values while a network runs is not in a captured
graph: ids outside a table, a length beyond its bound, and a mean over no elements are whatever the runtime
makes of them, and a NaN at a future position of causal attention reaches the earlier ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isomorph.backends.bounds import NumericBound, numeric_bound
from isomorph.backends.samples import sample_inputs, sample_sizes
from isomorph.backends.torch.onnx_file import EXTERNAL_BYTES, publish, write, write_outline
from isomorph.backends.torch.onnx_graph import LONE_OUTPUT, model_of
from isomorph.backends.torch.weights import to_tensor
from isomorph.dimensions import show_shape
from isomorph.errors import IsomorphError
from isomorph.paths import path_text
from isomorph.plan import Bound, Plan
from isomorph.weights.convert import owned_weights
from isomorph.weights.initial import numpy_dtype
from isomorph.writing.atomic import hidden_directory
from isomorph.writing.marks import Kind, onnx_marked
from isomorph.writing.rule import Input, Target, refuse_extension, told

DEFINITION = "isomorph.definition"
ONNX = Kind("ONNX model", (".onnx",), onnx_marked(DEFINITION))

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_REFUSED = {
    "bfloat16": "onnxruntime multiplies no bfloat16 matrices on a CPU",
    "float64": "onnxruntime has no float64 error function, and PyTorch's exporter writes constants in float32",
}


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
        compare: whether to run the reference, for which one parameter after the other is widened to 8 bytes per
            element, and onnxruntime, which maps them from the file.
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
    stored = {path: _stored(value, plan.dtype) for path, value in owned_weights(plan, weights).items()}
    model = model_of(plan, stored)
    model.metadata_props[DEFINITION] = plan.definition
    with told(named.name), hidden_directory(target.parent, target.name) as workplace:
        written = write(model, workplace / target.name, external_bytes)
        light = write_outline(written[0])
        _check_format(light)
        comparisons = _compared(light, plan, stored) if compare else ()
        named.check()
        publish(written, target)
    data = str(target.with_name(written[1].name)) if len(written) > 1 else None
    return OnnxModel(
        str(target), data, _described(plan, plan.inputs), _described(plan, plan.outputs), comparisons
    )


def _stored(value: Any, dtype: str) -> np.ndarray:
    """An array of a dtype, the one that was given where it fits."""
    array = value if isinstance(value, np.ndarray) else to_tensor(value).cpu().numpy()
    return np.asarray(array, numpy_dtype(dtype), order="C")


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


# -- checking ----------------------------------------------------------------------------------


def _check_format(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(os.fspath(path))
    except onnx.checker.ValidationError as error:
        first = str(error).strip().splitlines()[0]
        raise IsomorphError("E_BACKEND", f"the exported model is not valid ONNX: {first}") from error


def _compared(path: Path, plan: Plan, weights: Mapping[str, Any]) -> tuple[Comparison, ...]:
    """The file in onnxruntime against the reference; E_BACKEND where it differs or cannot be run.

    One after the other, lest both be in memory at once.
    """
    tried = sample_sizes(plan)[:2]
    computed = _run(path, [sample_inputs(plan, sizes) for sizes in tried])
    found = []
    for sizes, outputs in zip(tried, computed, strict=True):
        inputs = sample_inputs(plan, sizes)
        found.append(_comparison(outputs, numeric_bound(plan, weights, inputs, dtype=plan.dtype), sizes))
    return tuple(found)


def _run(path: Path, inputs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The outputs for each mapping of inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised
    options.add_session_config_entry("session.disable_prepacking", "1")  # a second copy of the weights
    try:
        session = onnxruntime.InferenceSession(
            os.fspath(path),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["ConstantFolding"],
        )  # folding transposes the weights, which would be another copy
        return [session.run(None, given) for given in inputs]
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
