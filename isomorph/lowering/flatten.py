"""Rewrites for small networks in eager code, where each call costs more than its arithmetic.

Both take a rewritten program and give one that computes the same; compilers need neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import prod, sqrt

from isomorph.lowering.derived import Scaled
from isomorph.lowering.rewrite import Op, Rewritten, is_elementwise

_ARITHMETIC = ("add", "subtract", "multiply")
_ANY_RANK = ("reshape", "heads")
"""They say the shape of their result, so that it does not matter how their input is laid out in axes."""


def flattened(program: Rewritten, times: int = 1) -> Rewritten:
    """Products, norms, activations and sums on ``[rows, D]`` in place of ``[B, T, D]``.

    A tensor changes its shape where another kind of step, or a reader of the outputs, wants it whole.

    Args:
        program: what to rewrite.
        times: how often a single row is computed. Some kernels read a weight faster for a few rows than for one.
    """
    return _Flattening(program, times).result()


class _Flattening:
    def __init__(self, program: Rewritten, times: int) -> None:
        self.program, self.times = program, times
        self.shapes, self.dtypes = dict(program.shapes), dict(program.dtypes)
        self.ops: list[Op] = []
        self.flat: dict[int, int] = {}
        self.repeated: set[int] = set()
        self.whole = set(program.inputs.values()) | set(program.parameters)

    def result(self) -> Rewritten:
        for op in self.program.ops:
            if self._by_rows(op):
                self._add_by_rows(op)
            else:
                self._add_whole(op)
        for tensor in self.program.outputs.values():
            self._need_whole(tensor, self.program.ops[-1].path if self.program.ops else "")
        ops = tuple(_without_chains(self.ops, set(self.program.outputs.values())))
        return replace(self.program, ops=ops, shapes=self.shapes, dtypes=self.dtypes)

    def _by_rows(self, op: Op) -> bool:
        """Whether each row of the result comes from the same row of the inputs, and a row is a last axis."""
        shapes = [self.program.shapes[tensor] for tensor in op.inputs]
        if not op.inputs or len(shapes[0]) < 3:
            return False
        if op.kind == "linear":
            return op.weight is not None
        if op.kind in ("layer_norm", "rms_norm"):
            return len(op.inputs) == 1
        if not any(tensor in self.flat and tensor not in self.whole for tensor in op.inputs):
            return False
        if op.kind == "narrow":
            return op.attributes["axis"] in (-1, len(shapes[0]) - 1)
        return is_elementwise(op) or (op.kind in _ARITHMETIC and len(set(shapes)) == 1)

    def _add_by_rows(self, op: Op) -> None:
        inputs = tuple(self._need_flat(tensor, op.path) for tensor in op.inputs)
        residual = None if op.residual is None else self._need_flat(op.residual, op.path)
        (output,) = op.outputs
        self.flat[output] = self._flat_tensor(output)
        attributes = {**op.attributes, "axis": -1} if op.kind == "narrow" else op.attributes
        self.ops.append(
            replace(op, inputs=inputs, residual=residual, outputs=(self.flat[output],), attributes=attributes)
        )

    def _add_whole(self, op: Op) -> None:
        if op.kind in _ANY_RANK:
            inputs = tuple(t if t in self.whole else self._once(self.flat[t], op.path) for t in op.inputs)
        else:
            inputs = op.inputs
            for tensor in op.reads:
                self._need_whole(tensor, op.path)
        self.ops.append(replace(op, inputs=inputs))
        self.whole.update(op.outputs)

    def _need_flat(self, tensor: int, path: str) -> int:
        if tensor not in self.flat:
            rows = self.flat[tensor] = self._flat_tensor(tensor)
            if rows in self.repeated:
                one = self._new((1, self.shapes[rows][1]), tensor)
                self._reshape(tensor, one, path)
                self.ops.append(Op("expand", (one,), (rows,), {"shape": self.shapes[rows]}, path))
            else:
                self._reshape(tensor, rows, path)
        return self.flat[tensor]

    def _need_whole(self, tensor: int, path: str) -> None:
        if tensor not in self.whole:
            self._reshape(self._once(self.flat[tensor], path), tensor, path)
            self.whole.add(tensor)

    def _once(self, flat: int, path: str) -> int:
        """A tensor as it is, or the first row of what is computed several times."""
        if flat not in self.repeated:
            return flat
        one = self._new((1, self.shapes[flat][1]), flat)
        self.ops.append(Op("narrow", (flat,), (one,), {"axis": 0, "start": 0, "stop": 1}, path))
        return one

    def _flat_tensor(self, tensor: int) -> int:
        *leading, width = self.shapes[tensor]
        rows = prod(leading)
        if rows != 1 or self.times == 1:
            return self._new((rows, width), tensor)
        repeated = self._new((self.times, width), tensor)
        self.repeated.add(repeated)
        return repeated

    def _new(self, shape: tuple[int, int], like: int) -> int:
        number = len(self.shapes)
        self.shapes[number], self.dtypes[number] = shape, self.dtypes[like]
        return number

    def _reshape(self, tensor: int, reshaped: int, path: str) -> None:
        self.ops.append(Op("reshape", (tensor,), (reshaped,), {"shape": self.shapes[reshaped]}, path))


def _without_chains(ops: list[Op], outputs: set[int]) -> list[Op]:
    """A reshape that another one alone reads is left out."""
    reads = Counter(tensor for op in ops for tensor in op.reads)
    reshaped_at: dict[int, int] = {}
    kept: list[Op] = []
    for op in ops:
        if op.kind == "reshape":
            (x,), (output,) = op.inputs, op.outputs
            before = reshaped_at.get(x)
            if before is not None and reads[x] == 1 and x not in outputs:
                op = replace(op, inputs=kept[before].inputs)
                kept[before] = op  # where the first one stands its input is there
                reshaped_at[output] = before
                continue
            reshaped_at[output] = len(kept)
        kept.append(op)
    return kept


def split_gelus(program: Rewritten, small: Callable[[Op], bool]) -> Rewritten:
    """``gelu(z) = (u + u * erf(u)) / sqrt(2)`` with ``u = z / sqrt(2)``, both factors in the products around it.

    The activation is then called ``split_gelu``: ``u + u * erf(u)``.

    Args:
        program: what to rewrite.
        small: of which products.
    """
    ops = list(program.ops)
    readers: dict[int, list[int]] = {}
    for index, op in enumerate(ops):
        for tensor in op.reads:
            readers.setdefault(tensor, []).append(index)
    outputs = set(program.outputs.values())
    factor = sqrt(0.5)
    for index, op in enumerate(ops):
        if op.weight is None or op.activation != ("gelu", (("approximate", "none"),)):
            continue
        (result,) = op.outputs
        follows = [ops[reader] for reader in readers.get(result, ())]
        if len(follows) != 1 or result in outputs:
            continue
        (after,) = follows
        if after.kind != "linear" or after.weight is None or after.inputs[0] != result:
            continue
        if not small(op) or not small(after):
            continue
        bias = None if op.bias is None else Scaled(op.bias, factor)
        ops[index] = replace(op, weight=Scaled(op.weight, factor), bias=bias, activation=("split_gelu", ()))
        ops[readers[result][0]] = replace(after, weight=Scaled(after.weight, factor))
    return replace(program, ops=tuple(ops))
