"""The plan as a table of nodes and shapes."""

from __future__ import annotations

from isomorph.dimensions import show_shape
from isomorph.resolver.resolved import Node, ResolvedGraph

_HEADERS = ("index", "name", "operation", "input shapes", "output shapes")
WIDEST_COLUMN = 400
"""A longer cell, of a node with very many inputs, takes the room it needs in its own row alone."""


def render_table(plan: ResolvedGraph) -> str:
    """Header, one row per node, and bounds on symbols; two spaces between columns, none at line ends."""
    chain = is_chain(plan)
    rows: list[tuple[str, ...]] = [_HEADERS]
    rows += [
        (str(node.index), node.name, node.operator.name, _inputs(plan, node, chain), _outputs(plan, node))
        for node in plan.nodes
    ]
    widths = [
        max((len(row[i]) for row in rows if len(row[i]) <= WIDEST_COLUMN), default=0)
        for i in range(len(_HEADERS) - 1)
    ]
    lines = [render_header(plan)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    lines += render_bounds(plan)
    return "\n".join(lines)


def render_header(plan: ResolvedGraph) -> str:
    """``Network: [B, 8, 32] -> [B, 8, 32]  dtype=float32``."""
    inputs = ", ".join(
        _contract(plan, f"{name}{'?' * (name in plan.optional)}" if plan.named_inputs else "", value)
        for name, value in plan.inputs
    )
    outputs = ", ".join(_contract(plan, name, value) for name, value in plan.outputs)
    header = f"Network: {inputs} -> {outputs}  dtype={plan.dtype}"
    for name, value in plan.inputs:
        dtype = plan.values[value].dtype
        if dtype != plan.dtype:
            header += f"  input_dtype={name + ':' if len(plan.inputs) > 1 else ''}{dtype}"
    return header


def _contract(plan: ResolvedGraph, name: str, value: int) -> str:
    shape = show_shape(plan.values[value].shape)
    return f"{name}={shape}" if name else shape


def is_chain(plan: ResolvedGraph) -> bool:
    """Whether every node reads exactly what the one before it made."""
    if len(plan.inputs) != 1 or len(plan.outputs) != 1:
        return False
    last = plan.inputs[0][1]
    for node in plan.nodes:
        if len(node.inputs) != 1 or node.inputs[0][1] != last or len(node.outputs) != 1:
            return False
        last = node.outputs[0]
    return plan.outputs[0][1] == last


def _inputs(plan: ResolvedGraph, node: Node, chain: bool) -> str:
    parts = []
    for port, value in node.inputs:
        tensor = plan.values[value]
        source = "" if chain else f"{tensor.source}:"
        parts.append(f"{port}={source}{show_shape(tensor.shape)}")
    return ", ".join(parts)


def _outputs(plan: ResolvedGraph, node: Node) -> str:
    return ", ".join(f"{plan.values[v].port}={show_shape(plan.values[v].shape)}" for v in node.outputs)


def render_bounds(plan: ResolvedGraph) -> list[str]:
    """``["where T <= 1024"]``, or nothing when no symbol is bounded."""
    parts = []
    for symbol, bound in plan.bounds.items():
        if bound.low and bound.high is not None:
            parts.append(f"{bound.low} <= {symbol} <= {bound.high}")
        elif bound.high is not None:
            parts.append(f"{symbol} <= {bound.high}")
        elif bound.low:
            parts.append(f"{symbol} >= {bound.low}")
    return [f"where {', '.join(parts)}"] if parts else []
