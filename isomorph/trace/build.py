"""A plan, or one operator, as a recorded program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from isomorph.dimensions import evaluate as evaluate_dimension
from isomorph.dimensions import show_shape, symbols_of
from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.operators.declare import Operator
from isomorph.plan import Node, Plan
from isomorph.plan.holder import Holder, evaluate, with_ties
from isomorph.primitives import Primitives, Recording
from isomorph.trace.program import Program, TracedTensor

DEFAULT_BATCH = 1
DEFAULT_LENGTH = 128

_PRIMITIVES: Primitives = Recording()


def trace(
    plan: Plan, sizes: Mapping[str, int] | None = None, *, primitives: Primitives = _PRIMITIVES
) -> Program:
    """Record a plan's primitives at given sizes.

    Args:
        plan: the network.
        sizes: values of its symbols; see :func:`sizes_with` for those left out.
        primitives: what is recorded with.

    Raises:
        IsomorphError: E_ARGUMENT for an unknown symbol or a value that its bound forbids; E_OPERATOR when an
            operator's forward computation gives another shape than its shape rule says.
    """
    all_sizes = sizes_with(plan, sizes)
    shapes = [
        [evaluate_dimension(d, all_sizes) for d in plan.values[value].shape] for _, value in plan.inputs
    ]

    def check(node: Node, tensors: Sequence[TracedTensor]) -> None:
        for value, tensor in zip(node.outputs, tensors, strict=True):
            shape = tuple(evaluate_dimension(d, all_sizes) for d in plan.values[value].shape)
            if tensor.shape != shape:
                raise IsomorphError(
                    "E_OPERATOR",
                    f"{node.operator.name} ({node.name}): forward gives {show_shape(tensor.shape)}, "
                    f"but its shape rule says {show_shape(shape)}",
                    node.location,
                    ["the operator's forward computation and its shape pattern must agree"],
                )

    return record(plan, shapes, all_sizes, check, primitives=primitives)


def record(
    plan: Plan,
    shapes: Sequence[Sequence[int]],
    sizes: Mapping[str, int],
    observe: Callable[[Node, Sequence[TracedTensor]], None],
    *,
    primitives: Primitives = _PRIMITIVES,
) -> Program:
    """Record a plan's primitives on inputs of any shapes, its contracts' or others.

    Args:
        plan: the network.
        shapes: of its inputs, in order.
        sizes: what the program says that it was traced at.
        observe: called after every node with its outputs.
        primitives: what is recorded with.
    """
    program = Program(plan.dtype, dict(sizes))
    for (name, value), shape in zip(plan.inputs, shapes, strict=True):
        program.inputs[name] = program.values[value] = program.tensor(shape, plan.values[value].dtype)
    for parameter in plan.parameters:
        program.parameters[parameter.path] = program.tensor(parameter.shape, parameter.dtype)
    parameters = with_ties(plan, program.parameters)
    holders = [
        Holder(node.operator, primitives, parameters, node.name, program.entering) for node in plan.nodes
    ]

    def note(node: Node, inputs: tuple[Any, ...], outputs: tuple[TracedTensor, ...]) -> None:
        program.values.update(zip(node.outputs, outputs, strict=True))
        observe(node, outputs)

    program.outputs = evaluate(plan, holders, list(program.inputs.values()), note)
    return program


def trace_operator(
    operator: Operator,
    input_shapes: Sequence[Sequence[int] | None],
    *,
    input_dtypes: Sequence[str] | None = None,
    dtype: str = "float32",
) -> Program:
    """Record one operator; its path is its name.

    Args:
        operator: an instance with all its sizes, such as ``Linear.of(D_in=8, D_out=16)``.
        input_shapes: one shape per input that ``forward`` takes; None for an absent optional one.
        input_dtypes: their dtypes; by default what the ports declare.
        dtype: the compute dtype.
    """
    ports = operator.signature.inputs
    if input_dtypes is None:
        declared = [ports[min(index, len(ports) - 1)].dtype for index in range(len(input_shapes))]
        input_dtypes = [dtype if name == "compute" else name for name in declared]
    program = Program(dtype)
    inputs = [
        None if shape is None else program.tensor(shape, name)
        for shape, name in zip(input_shapes, input_dtypes, strict=True)
    ]
    for index, tensor in enumerate(inputs):
        if tensor is not None:
            port = ports[min(index, len(ports) - 1)]
            program.inputs[f"{port.name}{index}" if port.variadic else port.name] = tensor
    for path, spec in operator.all_parameters.items():
        program.parameters[f"{operator.name}.{path}"] = program.tensor(spec.shape, dtype)
    result = Holder(operator, _PRIMITIVES, program.parameters, operator.name, program.entering)(*inputs)
    results = result if isinstance(result, tuple) else (result,)
    names = [port.name for port in operator.signature.outputs]
    program.outputs = dict(zip(names, results, strict=True))
    return program


def sizes_with(plan: Plan, given: Mapping[str, int] | None = None) -> dict[str, int]:
    """A value for every symbol of the inputs.

    A symbol left out is 1 when it sizes a first axis (the batch), else its upper bound, else 128.

    Raises:
        IsomorphError: E_ARGUMENT for an unknown symbol, or a value that is no integer within its bound.
    """
    batch = {s for _, value in plan.inputs for s in symbols_of(_first(plan.values[value].shape))}
    sizes = {symbol: _default(plan, symbol, symbol in batch) for symbol in plan.symbols}
    for symbol, size in (given or {}).items():
        if symbol not in sizes:
            known = ", ".join(sizes) or "none"
            raise IsomorphError(
                "E_ARGUMENT",
                f"the network has no symbol {shorten(symbol)}; its symbols: {known}",
                hints=did_you_mean(symbol, sizes),
            )
        low, high = plan.bounds.get(symbol, (0, None))
        if type(size) is not int or size < low or (high is not None and size > high):
            limit = f"from {low} to {high}" if high is not None else f">= {low}"
            raise IsomorphError("E_ARGUMENT", f"size {symbol} must be an int {limit}, got {shorten(size)}")
        sizes[symbol] = size
    return sizes


def _default(plan: Plan, symbol: str, is_batch: bool) -> int:
    low, high = plan.bounds.get(symbol, (0, None))
    preferred = DEFAULT_BATCH if is_batch else high if high is not None else DEFAULT_LENGTH
    return max(low, preferred if high is None else min(preferred, high))


def _first(shape: Sequence[Any]) -> Any:
    return shape[0] if shape else 1


def parameter_rows(program: Program, path: str) -> int:
    """How many rows the gradient of an operator's parameters sums over, at least 1.

    For ``linear`` and ``layer_norm`` on ``[B, T, D]`` that is ``B * T``: the positions at which one
    parameter acts. The largest over the operator's steps that read a parameter, or what is a parameter
    seen otherwise.
    """
    from_parameters = {tensor.id for tensor in program.parameters.values()}
    rows = 1
    for step in program.within(path):
        if not from_parameters.intersection(step.inputs):
            continue
        if step.inputs and from_parameters.issuperset(step.inputs):
            from_parameters.update(step.outputs)
        shape = program.tensors[step.outputs[0]].shape
        channels = 1 if step.primitive in ("conv1d", "conv2d") else len(shape) - 1
        rows = max(rows, prod(size for axis, size in enumerate(shape) if axis != channels))
    return rows
