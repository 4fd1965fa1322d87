"""A plan as an ONNX file: captured by ``torch.export``, every symbol open, compared with the reference.

The file is one of a single ai.onnx operator set, :data:`onnx_graph.OPSET`, so that any ONNX runtime may read it. Its
inputs, outputs and parameters have the plan's names, and its open axes the plan's symbols; the definition and
the bounds of symbols are in its metadata. What looks at values while a network runs is not in a captured
graph: ids outside a table, a length beyond its bound, and a mean over no elements are whatever the runtime
makes of them, and a NaN at a future position of causal attention reaches the earlier ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isomorph.backends.torch.onnx_file import publish, write, write_outline
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
from isomorph.writing.rule import Input, Target, naming_errors, refuse_extension

DEFINITION = "isomorph.definition"
ONNX = Kind("ONNX model", (".onnx",), onnx_marked(DEFINITION))

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_REFUSED = {
    "bfloat16": "onnxruntime multiplies no bfloat16 matrices on a CPU",
    "float64": "onnxruntime has no float64 error function, and PyTorch's exporter writes constants in float32",
}


Compare = Callable[[Plan, Mapping[str, Any], Callable[..., list[Any]]], tuple[Any, ...]]
"""What compares a file with the reference: of the plan, its weights, and outputs as a function of a list of inputs."""


class OnnxModel(NamedTuple):
    """What :func:`export_onnx` wrote.

    Attributes:
        path: the model.
        data: the file with its weights, beside it; None when they are in the model.
        inputs, outputs: shape and dtype by name, as text.
        comparisons: one for each choice of sizes tried (:class:`isomorph.agreement.onnx.Comparison`).
    """

    path: str
    data: str | None
    inputs: dict[str, str]
    outputs: dict[str, str]
    comparisons: tuple[Any, ...]


def export_onnx(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    plan: Plan,
    weights: Mapping[str, Any],
    compare: Compare | None,
    *,
    external_bytes: int,
    force: bool,
    inputs: Sequence[Input],
) -> OnnxModel:
    """What :func:`isomorph.torch.export_onnx` does, which says what each argument is."""
    named = Target(path_text(path, "the model's path"), ONNX, tuple(inputs), force, alone=False)
    refuse_extension(named.name, ONNX.extensions, bare=True)
    _refuse_inexpressible(Plan.expect(plan))
    named.check()
    target = Path(os.path.realpath(named.name))
    _require_packages()
    stored = {path: _stored(value, plan.dtype) for path, value in owned_weights(plan, weights).items()}
    model = model_of(plan, stored)
    model.metadata_props[DEFINITION] = plan.definition
    with naming_errors(named.name), hidden_directory(target.parent, target.name) as workplace:
        written = write(model, workplace / target.name, external_bytes)
        light = write_outline(written[0])
        _check_format(light)
        comparisons = compare(plan, stored, partial(_run, light)) if compare else ()
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
    values = ((name, plan.values[value]) for name, value in ends)
    return {name or LONE_OUTPUT: f"{show_shape(value.shape)} {value.dtype}" for name, value in values}


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
