"""A plan as an ``onnx_ir.Model``: each kind of node is captured once, by ``torch.export``, and written for every node.

A network of thirty equal layers takes as long to capture as one of them. Captured modules have memory that nobody
reads; the weights come in afterwards, as they are.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from isomorph.backends.torch.layers import layer
from isomorph.dimensions import Affine, evaluate
from isomorph.errors import IsomorphError
from isomorph.plan import Bound, Node, Plan, Value
from isomorph.weights.initial import numpy_dtype

OPSET = 20
"""Version of the operator set: the first with ``Gelu``."""

LONE_OUTPUT = "output"
"""What the only output of a plan is called that gives it no name."""

_KNOWN_WARNINGS = (
    r".*The axis name: .* will not be used, since it shares the same shape constraints",
    r".*isinstance\(treespec, LeafSpec\)",
)


@dataclass(eq=False)
class _Kind:
    """Nodes that compute the same, but for their weights.

    Attributes:
        node: the first of them.
        given: which of its slots are there.
        values: what it takes, one for every slot that is there.
        inputs, outputs: their ``onnx_ir.Value`` in the captured graph.
        nodes: the captured nodes between, in order.
    """

    node: Node
    given: tuple[bool, ...]
    values: tuple[Value, ...]
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)


def model_of(plan: Plan, weights: Mapping[str, Any]) -> Any:
    """The network in evaluation mode as an ``onnx_ir.Model`` with the plan's names, without traces of this machine.

    Args:
        plan: the network.
        weights: a NumPy array for every parameter, in the plan's dtype; the model shares their memory.

    Raises:
        IsomorphError: E_BACKEND where ``torch.export`` cannot capture an operator, or makes a number of an open size.
    """
    kinds, of_node = _kinds(plan)
    captured = _captured(plan, kinds)
    model = _Assembly(plan, weights, captured, of_node).model()
    bounds = [f"{symbol} >= {low}" for symbol, (low, _) in plan.bounds.items() if low]
    bounds += [f"{symbol} <= {high}" for symbol, (_, high) in plan.bounds.items() if high is not None]
    model.metadata_props["isomorph.bounds"] = ", ".join(bounds)
    return model


def _kinds(plan: Plan) -> tuple[list[_Kind], list[_Kind]]:
    """The kinds of nodes, and that of every node."""
    kinds: dict[Any, _Kind] = {}
    of_node = []
    for node in plan.nodes:
        given = tuple(slot is not None for slot in node.call_slots)
        values = tuple(plan.values[slot] for slot in node.call_slots if slot is not None)
        shapes = tuple((value.shape, value.dtype) for value in values)
        of_node.append(kinds.setdefault((node.operator, given, shapes), _Kind(node, given, values)))
    return list(kinds.values()), of_node


# -- capturing ---------------------------------------------------------------------------------


class _Kinds(nn.Module):
    """One node of every kind, side by side: a single capture for all of them."""

    def __init__(self, kinds: Sequence[_Kind], dtype: str) -> None:
        super().__init__()
        self.kinds = kinds
        modules = [layer(kind.node.operator).to(getattr(torch, dtype)) for kind in kinds]
        self.parts = nn.ModuleList(modules).to_empty(device="cpu")

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        waiting = iter(tensors)
        for kind, part in zip(self.kinds, self.parts, strict=True):
            result = part(*(next(waiting) if there else None for there in kind.given))
            results += result if isinstance(result, tuple) else (result,)
        return tuple(results)


def _captured(plan: Plan, kinds: Sequence[_Kind]) -> Any:
    """An ``onnx_ir.Model`` of all kinds, simplified; what belongs to each is entered there."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript.optimizer import optimize_ir

    sizes = capture_sizes(plan)
    given = [
        torch.zeros([evaluate(size, sizes) for size in value.shape], dtype=getattr(torch, value.dtype))
        for kind in kinds
        for value in kind.values
    ]
    axes = [axes for number, kind in enumerate(kinds) for axes in _open_axes(plan, kind.values, f"_{number}")]
    with _quiet():
        try:
            program = torch.onnx.export(
                _Kinds(kinds, plan.dtype).eval(),
                tuple(given),
                dynamo=True,
                dynamic_shapes=(tuple(axes),),
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
    model: Any = program.model
    _take_out_parameters(model.graph, kinds)
    optimize_ir(model)
    ClearMetadataAndDocStringPass()(model)
    _share_out(model.graph, kinds)
    return model


def _take_out_parameters(graph: Any, kinds: Sequence[_Kind]) -> None:
    """Make inputs of the parameters: what stands in their memory is not theirs, and is neither compared nor folded.

    So a computation on parameters alone, such as a transpose, stays: its result would be a second copy.
    """
    for name in list(graph.initializers):
        number, path = _place(name)
        if path in kinds[number].node.operator.all_parameters:
            value = graph.initializers.pop(name)
            value.const_value = None
            graph.inputs.append(value)


def _place(name: str) -> tuple[int, str]:
    """Which kind's a captured tensor is, and its path inside: ``parts.3.q_proj.weight``."""
    parts, _, rest = name.partition(".")
    number, _, path = rest.partition(".")
    return (int(number), path) if parts == "parts" and number.isdigit() else (0, "")


def _is_graph(attribute: Any) -> bool:
    return attribute.type.name in ("GRAPH", "GRAPHS")


def _share_out(graph: Any, kinds: Sequence[_Kind]) -> None:
    """Find what belongs to each kind: what lies between its inputs and its outputs."""
    inputs, outputs = iter(graph.inputs), iter(graph.outputs)
    for kind in kinds:
        kind.inputs = [next(inputs) for _ in kind.values]
        kind.outputs = [next(outputs) for _ in kind.node.outputs]
        waiting, needed = list(kind.outputs), set()
        while waiting:
            node = waiting.pop().producer()
            if node is not None and node not in needed:
                needed.add(node)
                waiting += [value for value in node.inputs if value is not None]
        kind.nodes = [node for node in graph if node in needed]
        branching = [node.op_type for node in kind.nodes if any(map(_is_graph, node.attributes.values()))]
        if branching:
            raise IsomorphError(
                "E_BACKEND",
                f"PyTorch writes {kind.node.operator.name} with {branching[0]}, which is not copied",
            )


def capture_sizes(plan: Plan) -> dict[str, int]:
    """Values for the symbols that :func:`sample_sizes` does not choose where there is a choice.

    Never 0 or 1, of which ``torch.export`` makes constants.
    """
    sizes = {}
    for i, symbol in enumerate(plan.symbols):
        low, high = plan.bounds.get(symbol, Bound())
        wanted = max(low, 2, (7, 11, 13, 9, 8)[i % 5])
        sizes[symbol] = wanted if high is None else min(wanted, high)
    return sizes


def _open_axes(plan: Plan, values: Sequence[Value], suffix: str) -> Iterator[dict[int, Any]]:
    """For every tensor its symbolic axes, as ``torch.export`` takes them; a symbol's name is followed by ``suffix``."""
    shapes = [value.shape for value in values]
    lows = {symbol: plan.bounds.get(symbol, Bound()).low for symbol in plan.symbols}
    for size in (size for shape in shapes for size in shape if isinstance(size, Affine)):
        (variable, coefficient), *others = size.terms
        if not others and coefficient > 0:  # T - 1 begins at T = 1
            lows[variable.name] = max(lows[variable.name], -(size.constant // coefficient))
    roots = {
        symbol: torch.export.Dim(symbol + suffix, min=low, max=plan.bounds.get(symbol, Bound()).high)
        for symbol, low in lows.items()
    }
    for shape in shapes:
        yield {axis: _open_axis(size, roots) for axis, size in enumerate(shape) if isinstance(size, Affine)}


def _open_axis(size: Affine, roots: Mapping[str, Any]) -> Any:
    (variable, coefficient), *others = size.terms
    if others or coefficient < 0:
        return torch.export.Dim.AUTO  # it has no name there, and is found from how the operator uses it
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


# -- assembling --------------------------------------------------------------------------------


class _Assembly:
    """Writes the captured nodes of its kind for every node of a plan.

    Args:
        plan: the network.
        weights: see :func:`model_of`.
        captured: the model of all kinds.
        of_node: the kind of every node.
    """

    def __init__(
        self, plan: Plan, weights: Mapping[str, Any], captured: Any, of_node: Sequence[_Kind]
    ) -> None:
        import onnx_ir

        self.ir: Any = onnx_ir
        self.plan, self.captured, self.of_node = plan, captured, of_node
        self.parameters = {path: self._stored(path, array) for path, array in weights.items()}
        self.constants: dict[Any, Any] = {}
        self.nodes: list[Any] = []
        self.published = {value: name or LONE_OUTPUT for name, value in plan.outputs}

    def _stored(self, name: str, array: Any) -> Any:
        tensor = self.ir.tensor(array, name=name)
        return self.ir.Value(
            name=name, shape=tensor.shape, type=self.ir.TensorType(tensor.dtype), const_value=tensor
        )

    def model(self) -> Any:
        """The whole network."""
        from onnx_ir.passes import common

        plan, values = self.plan, dict[int, Any]()
        for name, number in plan.inputs:
            values[number] = self.ir.Value(name=name)
            self._declare(values[number], plan.values[number])
        for node, kind in zip(plan.nodes, self.of_node, strict=True):
            self._write(node, kind, values)
        outputs = [self._output(name or LONE_OUTPUT, number, values) for name, number in plan.outputs]
        graph = self.ir.Graph(
            [values[number] for _, number in plan.inputs], outputs, nodes=self.nodes,
            initializers=[value for value in (*self.parameters.values(), *self.constants.values()) if value.uses()],
            opset_imports=self.captured.graph.opset_imports, name="network",
        )  # fmt: skip
        model = self.ir.Model(graph, ir_version=self.captured.ir_version)
        for step in (common.DeduplicateInitializersPass(), common.CommonSubexpressionEliminationPass()):
            step(model)
        return model

    def _output(self, name: str, number: int, values: Mapping[int, Any]) -> Any:
        """The value of an output; a copy of what is an input, a parameter or an output already."""
        value = values[number]
        if value.producer() is None or "/" not in value.name:
            node = self.ir.Node("", "Identity", [value], num_outputs=1, name=f"{name}/output")
            self.nodes.append(node)
            (value,) = node.outputs
        value.name = name
        self._declare(value, self.plan.values[number])
        return value

    def _declare(self, value: Any, planned: Value) -> None:
        """Dtype and sizes as the plan has them."""
        value.dtype = self.ir.DataType.from_numpy(numpy_dtype(planned.dtype))
        value.shape = self.ir.Shape(
            [repr(size) if isinstance(size, Affine) else size for size in planned.shape]
        )

    def _write(self, node: Node, kind: _Kind, values: dict[int, Any]) -> None:
        """The captured nodes again, with the node's own inputs and parameters."""
        own = dict(
            zip(kind.inputs, (values[slot] for slot in node.call_slots if slot is not None), strict=True)
        )
        for one in kind.nodes:
            again = self.ir.Node(
                one.domain, one.op_type,
                [None if value is None else own.get(value) or self._initializer(node, value) for value in one.inputs],
                one.attributes.values(), overload=one.overload, num_outputs=len(one.outputs),
                name=f"{node.name}/{one.name}",
            )  # fmt: skip
            for old, new in zip(one.outputs, again.outputs, strict=True):
                new.name, own[old] = f"{node.name}/{old.name}", new  # no name of the plan has a slash
            self.nodes.append(again)
        for number, captured in zip(node.outputs, kind.outputs, strict=True):
            self._check(captured, number, node)
            values[number] = own.get(captured) or self._initializer(node, captured)

    def _initializer(self, node: Node, value: Any) -> Any:
        """A parameter of the node, or a constant of its kind."""
        _, inner = _place(value.name)
        if value.is_graph_input() and inner in node.operator.all_parameters:
            path = f"{node.name}.{inner}"
            return self.parameters[self.plan.ties.get(path, path)]
        if value not in self.constants:
            self.constants[value] = self._stored(f"constant/{len(self.constants)}", value.const_value.numpy())
        return self.constants[value]

    def _check(self, captured: Any, number: int, node: Node) -> None:
        """E_BACKEND for another dtype than the plan's, and where a number was made of an open size."""
        planned, name = self.plan.values[number], self.published.get(number, f"the result of {node.name}")
        if captured.dtype.numpy() != planned.dtype:
            raise IsomorphError(
                "E_BACKEND",
                f"{name} should be {planned.dtype}, and PyTorch's exporter made it {captured.dtype.numpy()}",
            )
        for axis, (size, captured_size) in enumerate(zip(planned.shape, captured.shape, strict=True)):
            if isinstance(size, Affine) and isinstance(captured_size, int):
                raise IsomorphError(
                    "E_BACKEND",
                    f"axis {axis} of {name} should be {size!r}, and torch.export made it {captured_size}",
                    hints=["an operator's computation depends on the size it is captured at"],
                )
