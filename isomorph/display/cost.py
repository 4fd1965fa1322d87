"""What a plan costs to hold and to run: parameters, operations, activations, key/value cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from isomorph.plan import DTYPE_BYTES, Node, Plan
from isomorph.trace.build import trace
from isomorph.trace.program import Program, Step

_OTHER_BYTES = {"int64": 8, "int32": 4, "bool": 1}


class CostRow(NamedTuple):
    """The cost of one node, or of all.

    Attributes:
        name, operation: the node; of the total, ``total`` and the empty string.
        parameters: elements; a tied parameter counts at its owner alone.
        parameter_bytes: their bytes in the plan's dtype.
        flops: floating-point operations of one forward pass; a product of ``[M, K]`` and ``[K, N]`` is
            ``2 M N K``, and the hidden half of a causal attention is not taken off.
        activation_bytes: bytes of every tensor that a primitive makes, each kept, as for training without
            recomputation; reshaped and permuted views add nothing, and scores inside attention, which a
            fused kernel never stores, are not counted.
        cache_bytes_per_position: bytes of keys and values that generation keeps per position, for the
            whole batch; zero without causal attention.
        cache_bytes: the same for the traced length; a window keeps no more than its own width.
    """

    name: str
    operation: str
    parameters: int
    parameter_bytes: int
    flops: int
    activation_bytes: int
    cache_bytes_per_position: int
    cache_bytes: int


@dataclass(frozen=True)
class Cost:
    """The cost of a plan at given sizes.

    Attributes:
        sizes: the value of each symbol.
        rows: one per node, in order.
        total: their sums.
    """

    sizes: Mapping[str, int]
    rows: tuple[CostRow, ...]
    total: CostRow


def cost(plan: Plan, sizes: Mapping[str, int] | None = None) -> Cost:
    """The cost of every node and of the whole.

    Args:
        plan: the network.
        sizes: symbol values; a batch symbol left out is 1, another one its upper bound, else 128.

    Raises:
        IsomorphError: E_ARGUMENT for an unknown symbol or a value outside its bound.
    """
    program = trace(plan, sizes)
    owned = dict.fromkeys(range(len(plan.nodes)), 0)
    for parameter in plan.parameters:
        owned[parameter.node] += program.parameters[parameter.path].size
    steps: dict[str, list[Step]] = {node.name: [] for node in plan.nodes}
    for step in program.steps:
        steps[step.path.partition(".")[0]].append(step)
    rows = tuple(
        _row(node, owned[index], steps[node.name], program, plan.dtype)
        for index, node in enumerate(plan.nodes)
    )
    sums = (sum(column) for column in list(zip(*rows, strict=True))[2:]) if rows else (0,) * 6
    return Cost(program.sizes, rows, CostRow("total", "", *sums))


def _row(node: Node, parameters: int, steps: list[Step], program: Program, dtype: str) -> CostRow:
    caches = [_cache(step, program) for step in steps]
    return CostRow(
        node.name,
        node.operator.name,
        parameters,
        parameters * DTYPE_BYTES[dtype],
        sum(step.flops for step in steps),
        sum(_bytes(program, output) for step in steps if not step.view for output in step.outputs),
        sum(per_position for per_position, _ in caches),
        sum(whole for _, whole in caches),
    )


def _cache(step: Step, program: Program) -> tuple[int, int]:
    """Bytes of keys and values per position and in all, for a causal attention."""
    if step.primitive != "attention" or not step.attributes["causal"]:
        return 0, 0
    keys = program.tensors[step.inputs[1]]
    B, K, S, d = keys.shape
    per_position = 2 * B * K * d * _element_bytes(keys.dtype)
    kept = min(S, step.attributes["window"] or S)
    return per_position, per_position * kept


def _bytes(program: Program, tensor: int) -> int:
    array = program.tensors[tensor]
    return array.size * _element_bytes(array.dtype)


def _element_bytes(dtype: str) -> int:
    return DTYPE_BYTES.get(dtype) or _OTHER_BYTES[dtype]
