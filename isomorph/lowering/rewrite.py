"""A traced network with fewer and larger steps that compute the same.

Each rewrite is small, knows primitives and no operators, and is valid for any network: it looks at a step, at who
reads its result, and at nothing else. :func:`rewritten` applies all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from isomorph.lowering.derived import Columns, Joined, Rows, Shifted, Stored, Weight
from isomorph.primitives import Acts, acts_of
from isomorph.trace.program import Program, Shape


@dataclass(frozen=True)
class Op:
    """One step of a rewritten program.

    Attributes:
        kind: a primitive, ``add``, ``subtract``, ``multiply``, or ``heads``.
        inputs: ids of the tensors it reads; those of parameters are in :attr:`Rewritten.parameters`.
        outputs: ids of its results.
        attributes: as in :class:`isomorph.trace.program.Step`.
        path: the operator that asked for it.
        weight, bias: of a ``linear``, a ``layer_norm`` or an ``rms_norm``.
        activation: of a ``linear``: the primitive that follows it, and its attributes.
        residual: of a ``linear``: the tensor that is added last.
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    weight: Weight | None = None
    bias: Weight | None = None
    activation: tuple[str, tuple[tuple[str, Any], ...]] | None = None
    residual: int | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """All tensors that it reads, the residual too."""
        return self.inputs if self.residual is None else (*self.inputs, self.residual)


@dataclass(frozen=True)
class Rewritten:
    """A program as operations in order.

    Attributes:
        ops: in order of evaluation.
        shapes, dtypes: by tensor id.
        parameters: path by tensor id, of those that an operation reads as a tensor.
        inputs, outputs: tensor ids by name, in order.
    """

    ops: tuple[Op, ...]
    shapes: Mapping[int, Shape]
    dtypes: Mapping[int, str]
    parameters: Mapping[int, str]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


def rewritten(program: Program, *, largest: float = inf) -> Rewritten:
    """All rewrites, in the order in which they make room for each other.

    Args:
        program: a trace.
        largest: how many numbers a weight may have to be made anew from others; larger ones stay as they are.
    """
    state = _State(program, largest)
    _fold_norms(state)
    _fold_gains(state)
    _join_parallel(state)
    _join_heads(state)
    _fuse_activations(state)
    _fuse_residuals(state)
    return state.finished()


class _State:
    """Operations under change, and who reads what."""

    def __init__(self, program: Program, largest: float) -> None:
        self.program, self.largest = program, largest
        self.parameters = {tensor.id: path for path, tensor in program.parameters.items()}
        self.shapes = {tensor.id: tensor.shape for tensor in program.tensors}
        self.dtypes = {tensor.id: tensor.dtype for tensor in program.tensors}
        self.outputs = {name: tensor.id for name, tensor in program.outputs.items()}
        self.ops = [self._read(step) for step in program.steps]
        self.count()

    def _read(self, step: Any) -> Op:
        op = Op(step.primitive, step.inputs, step.outputs, step.attributes, step.path)
        if step.primitive not in ("linear", "layer_norm", "rms_norm"):
            return op
        x, *weights_read = step.inputs
        if any(tensor not in self.parameters for tensor in weights_read):
            return op  # a product of two tensors
        weights: list[Weight | None] = [Stored(self.parameters[tensor]) for tensor in weights_read]
        if step.primitive == "layer_norm" and not step.attributes["weight"]:
            weights.insert(0, None)
        weights += [None] * (2 - len(weights))
        return replace(op, inputs=(x,), weight=weights[0], bias=weights[1])

    def count(self) -> None:
        """Bring the table of readers up to date."""
        self.readers: dict[int, list[int]] = {}
        for index, op in enumerate(self.ops):
            for tensor in op.reads:
                self.readers.setdefault(tensor, []).append(index)
        self.published = Counter(self.outputs.values())

    def only_reader(self, tensor: int) -> int | None:
        """The index of the one operation that reads a tensor, or None."""
        readers = self.readers.get(tensor, [])
        return readers[0] if len(readers) == 1 and not self.published[tensor] else None

    def may_derive(self, linears: Iterable[Op]) -> bool:
        """Whether a weight as large as those of products together may be made."""
        numbers = sum(self.shapes[op.outputs[0]][-1] * self.shapes[op.inputs[0]][-1] for op in linears)
        return numbers <= self.largest

    def tensor(self, shape: Shape, dtype: str) -> int:
        number = len(self.shapes)
        self.shapes[number], self.dtypes[number] = shape, dtype
        return number

    def replace_all(self, ops: list[Op | None]) -> None:
        self.ops = [op for op in ops if op is not None]
        self.count()

    def finished(self) -> Rewritten:
        read = {tensor for op in self.ops for tensor in op.reads} | set(self.outputs.values())
        return Rewritten(
            tuple(self.ops),
            self.shapes,
            self.dtypes,
            {tensor: path for tensor, path in self.parameters.items() if tensor in read},
            {name: tensor.id for name, tensor in self.program.inputs.items()},
            self.outputs,
        )


def _is_linear(op: Op) -> bool:
    """A product with a weight of the network to which nothing was added yet."""
    return op.kind == "linear" and op.weight is not None and op.activation is None and op.residual is None


def _fold_norms(state: _State) -> None:
    """``(n * g + s) @ W.T + b`` is ``n @ (W * g).T + (b + W @ s)``, for every product that reads a norm.

    Not where that would cost more than it saves: a shift for products that have none, which is a pass over their
    result, or another copy of a weight that something else reads as it is, such as a tied table of ids.
    """
    ops: list[Op | None] = list(state.ops)
    shared = _read_twice(state)
    for index, op in enumerate(state.ops):
        if op.kind not in ("layer_norm", "rms_norm") or op.weight is None:
            continue
        result = op.outputs[0]
        readers = [ops[reader] for reader in state.readers.get(result, ())]
        if state.published[result] or not readers:
            continue
        if not all(r is not None and _is_linear(r) and r.inputs[0] == result for r in readers):
            continue
        linears = [reader for reader in readers if reader is not None]
        if any(r.weight in shared for r in linears) or (op.bias and not any(r.bias for r in linears)):
            continue
        if not state.may_derive(linears):
            continue
        for reader in state.readers[result]:
            linear = ops[reader]
            assert linear is not None and linear.weight is not None
            bias = linear.bias if op.bias is None else Shifted(linear.bias, linear.weight, op.bias)
            weight = Columns(linear.weight, op.weight, op.attributes.get("offset", 0.0))
            ops[reader] = replace(linear, weight=weight, bias=bias)
        ops[index] = replace(op, weight=None, bias=None)
    state.replace_all(ops)


def _read_twice(state: _State) -> set[Weight]:
    """The parameters that several operations read."""
    times_read = Counter(weight for op in state.ops for weight in (op.weight, op.bias) if weight is not None)
    for tensor, path in state.parameters.items():
        times_read[Stored(path)] += len(state.readers.get(tensor, ()))
    return {weight for weight, times in times_read.items() if times > 1}


def _fold_gains(state: _State) -> None:
    """``gain * (z @ W.T + b)`` is ``z @ (gain * W.T) + gain * b``, where nothing else reads the product."""
    ops: list[Op | None] = list(state.ops)
    makers = {op.outputs[0]: index for index, op in enumerate(state.ops)}
    for index, op in enumerate(state.ops):
        if op.kind != "multiply" or len(op.inputs) != 2:
            continue
        product, gain = op.inputs if op.inputs[1] in state.parameters else op.inputs[::-1]
        if gain not in state.parameters or state.only_reader(product) != index:
            continue
        maker = makers.get(product)
        linear = None if maker is None else ops[maker]
        if linear is None or not _is_linear(linear) or state.shapes[gain] != state.shapes[product][-1:]:
            continue
        if not state.may_derive([linear]):
            continue
        assert maker is not None and linear.weight is not None
        scale = Stored(state.parameters[gain])
        ops[maker] = None
        ops[index] = replace(
            linear,
            outputs=op.outputs,
            weight=Rows(linear.weight, scale),
            bias=None if linear.bias is None else Rows(linear.bias, scale),
        )
    state.replace_all(ops)


def _join_parallel(state: _State) -> None:
    """Products on one input become one product, whose result is read in parts."""
    groups: dict[int, list[int]] = {}
    for index, op in enumerate(state.ops):
        if _is_linear(op):
            groups.setdefault(op.inputs[0], []).append(index)
    before: dict[int, list[Op]] = {}
    dropped: set[int] = set()
    for x, members in groups.items():
        linears = [state.ops[index] for index in members]
        if len(members) < 2 or not state.may_derive(linears):
            continue
        sizes = tuple(state.shapes[op.outputs[0]][-1] for op in linears)
        shape = (*state.shapes[x][:-1], sum(sizes))
        joined = state.tensor(shape, state.dtypes[linears[0].outputs[0]])
        weights = tuple(op.weight for op in linears)
        biases = tuple(op.bias for op in linears)
        parts = [
            Op(
                "linear", (x,), (joined,), path=linears[0].path, weight=Joined(weights, sizes),
                bias=Joined(biases, sizes) if any(biases) else None,
            )
        ]  # fmt: skip
        start = 0
        for op, size in zip(linears, sizes, strict=True):
            attributes = {"axis": -1, "start": start, "stop": start + size}
            parts.append(Op("narrow", (joined,), op.outputs, attributes, op.path))
            start += size
        before[members[0]] = parts
        dropped.update(members)
    ops: list[Op | None] = []
    for index, op in enumerate(state.ops):
        ops += before.get(index, [])
        ops += [] if index in dropped else [op]
    state.replace_all(ops)


def _join_heads(state: _State) -> None:
    """Equal parts of a product that are all split into heads alike become one step, ``heads``.

    ``[B, T, n * H * d]`` to n times ``[B, H, T, d]``.
    """
    ops: list[Op | None] = list(state.ops)
    for op in state.ops:
        if op.kind != "linear":
            continue
        whole = op.outputs[0]
        parts = [(i, state.ops[i]) for i in state.readers.get(whole, ())]
        if len(parts) < 2 or state.published[whole] or any(part.kind != "narrow" for _, part in parts):
            continue
        chains = [_chain(state, i) for i, _ in parts]
        if any(chain is None for chain in chains):
            continue
        in_order = sorted((chain for chain in chains if chain is not None), key=lambda c: _start(state, c[0]))
        shapes = {state.shapes[state.ops[chain[1]].outputs[0]] for chain in in_order}
        if len(shapes) != 1 or not _covers(state, whole, [chain[0] for chain in in_order]):
            continue
        (shape,) = shapes
        for chain in in_order:
            for member in chain:
                ops[member] = None
        outputs = tuple(state.ops[chain[2]].outputs[0] for chain in in_order)
        first = min(chain[0] for chain in in_order)
        ops[first] = Op("heads", (whole,), outputs, {"shape": shape, "parts": len(in_order)}, op.path)
    state.replace_all(ops)


def _start(state: _State, narrow: int) -> int:
    """Where a part begins, counted from the front of its axis."""
    op = state.ops[narrow]
    start, axis = op.attributes["start"], op.attributes["axis"]
    return start + state.shapes[op.inputs[0]][axis] if start < 0 else start


def _covers(state: _State, whole: int, parts: list[int]) -> bool:
    """Whether parts of the last axis, in order, are equally wide and lie side by side from end to end."""
    rank, width = len(state.shapes[whole]), state.shapes[whole][-1]
    if any(state.ops[part].attributes["axis"] % rank != rank - 1 for part in parts):
        return False
    widths = [state.shapes[state.ops[part].outputs[0]][-1] for part in parts]
    begins = [sum(widths[:i]) for i in range(len(widths))]
    return sum(widths) == width and begins == [_start(state, part) for part in parts]


def _chain(state: _State, narrow: int) -> tuple[int, int, int] | None:
    """The reshape ``[B, T, H, d]`` and the permutation to ``[B, H, T, d]`` that alone read a part."""
    reshape = state.only_reader(state.ops[narrow].outputs[0])
    if reshape is None or state.ops[reshape].kind != "reshape":
        return None
    split = state.ops[reshape].outputs[0]
    permute = state.only_reader(split)
    if permute is None or state.ops[permute].kind != "permute" or len(state.shapes[split]) != 4:
        return None
    if state.ops[permute].attributes["axes"] != (0, 2, 1, 3):
        return None
    part = state.shapes[state.ops[narrow].outputs[0]]
    if len(part) != 3 or state.shapes[split][:2] != part[:2]:
        return None
    return narrow, reshape, permute


def is_elementwise(op: Op) -> bool:
    """Whether each number of the result is made of one number of the only tensor that is read; no lookup in a table."""
    return acts_of(op.kind) is Acts.EACH and len(op.inputs) == 1


def _fuse_activations(state: _State) -> None:
    """An activation that alone reads a product is computed with it."""
    ops: list[Op | None] = list(state.ops)
    for index, op in enumerate(state.ops):
        if not _is_linear(op):
            continue
        reader = state.only_reader(op.outputs[0])
        follows = None if reader is None else state.ops[reader]
        if follows is None or not is_elementwise(follows):
            continue
        assert reader is not None
        fused = (follows.kind, tuple(follows.attributes.items()))
        ops[index] = None
        ops[reader] = replace(op, outputs=follows.outputs, activation=fused)
    state.replace_all(ops)


def _fuse_residuals(state: _State) -> None:
    """A sum of a product, which nothing else reads, and a tensor of its shape is computed with it."""
    ops: list[Op | None] = list(state.ops)
    makers = {op.outputs[0]: index for index, op in enumerate(state.ops)}
    for index, op in enumerate(state.ops):
        if op.kind != "add" or len(op.inputs) != 2:
            continue
        left, right = op.inputs
        for product, other in ((right, left), (left, right)):
            maker = makers.get(product)
            linear = None if maker is None else ops[maker]
            if linear is None or not _is_linear(linear) or state.only_reader(product) != index:
                continue
            if state.shapes[other] != state.shapes[product] or state.dtypes[other] != state.dtypes[product]:
                continue
            assert maker is not None
            ops[maker] = None
            ops[index] = replace(linear, outputs=op.outputs, residual=other)
            break
    state.replace_all(ops)
