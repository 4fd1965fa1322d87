"""``isomorph show``: the table of shapes, then what the network costs."""

from __future__ import annotations

import json as json_text
from math import prod
from typing import TYPE_CHECKING, Any

from isomorph.cli.network import Contracts, open_network, read_sizes
from isomorph.dimensions import show_shape
from isomorph.display.cost import Cost, CostRow, cost

if TYPE_CHECKING:
    from isomorph.plan import Plan


def run(
    file: str, contracts: Contracts, size: list[str] | None, *, costs: bool, expand: bool, json: bool
) -> None:
    """Print a network."""
    plan = open_network(file, contracts).plan
    figures = cost(plan, read_sizes(size))
    if json:
        print(json_text.dumps(as_dict(plan, figures, expand), indent=2))
        return
    print(plan)
    print()
    print(f"Parameters: {plan.parameter_count:,}")
    frozen = sum(prod(p.shape) for p in plan.parameters if not p.trainable)
    if frozen:
        print(f"Frozen: {frozen:,}")
    print()
    print("\n".join(summary(figures)))
    if costs:
        print()
        print(cost_table(figures))
    if expand:
        from isomorph.display.stages import render_stages

        print()
        print(render_stages(plan))


def summary(costs: Cost) -> list[str]:
    """Operations and memory in a few lines."""
    total = costs.total
    at = f" at {', '.join(f'{s}={n}' for s, n in costs.sizes.items())}" if costs.sizes else ""
    lines = [
        f"FLOPs: {scaled(total.flops, 1000, '')} for one forward pass{at}",
        f"Memory: {of_bytes(total.parameter_bytes)} parameters, {of_bytes(total.activation_bytes)} activations",
    ]
    if total.cache_bytes:
        per_position = of_bytes(total.cache_bytes_per_position)
        lines[-1] += f", {of_bytes(total.cache_bytes)} keys and values ({per_position} per position)"
    return lines


def cost_table(costs: Cost) -> str:
    """A row per node and one for all, columns aligned."""
    header = ("name", "operation", "parameters", "FLOPs", "activations", "keys and values")
    rows = [header, *(_cost_cells(row) for row in (*costs.rows, costs.total))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _cost_cells(row: CostRow) -> tuple[str, ...]:
    return (
        row.name,
        row.operation,
        f"{row.parameters:,}",
        scaled(row.flops, 1000, ""),
        of_bytes(row.activation_bytes),
        of_bytes(row.cache_bytes),
    )


def as_dict(plan: Plan, costs: Cost, expand: bool) -> dict[str, Any]:
    """Everything that is shown, as plain values."""
    values = plan.values
    result: dict[str, Any] = {
        "dtype": plan.dtype,
        "inputs": [_value(name, values[value]) for name, value in plan.inputs],
        "outputs": [_value(name, values[value]) for name, value in plan.outputs],
        "nodes": [
            {
                "index": node.index,
                "name": node.name,
                "operation": node.operator.identity,
                "arguments": node.operator.argument_values,
                "inputs": [
                    {**_value(port, values[value]), "source": values[value].source}
                    for port, value in node.inputs
                ],
                "outputs": [_value(values[value].port, values[value]) for value in node.outputs],
                "cost": row._asdict(),
            }
            for node, row in zip(plan.nodes, costs.rows, strict=True)
        ],
        "bounds": {symbol: list(bound) for symbol, bound in plan.bounds.items()},
        "parameters": [
            {"path": p.path, "shape": list(p.shape), "trainable": p.trainable} for p in plan.parameters
        ],
        "ties": dict(plan.ties),
        "parameter_count": plan.parameter_count,
        "sizes": dict(costs.sizes),
        "total": costs.total._asdict(),
    }
    if expand:
        from isomorph.display.stages import stages

        result["stages"] = [stage._asdict() for stage in stages(plan)]
    return result


def _value(name: str, value: Any) -> dict[str, Any]:
    return {
        "name": name,
        "shape": [d if type(d) is int else str(d) for d in value.shape],
        "dtype": value.dtype,
    }


def contract(plan: Plan) -> str:
    """``[B, T] -> [B, T, 256]``, with names where there are several."""

    def side(contracts: tuple[tuple[str, int], ...]) -> str:
        named = len(contracts) > 1
        return ", ".join(
            (f"{name}=" if named else "") + show_shape(plan.values[value].shape) for name, value in contracts
        )

    return f"{side(plan.inputs)} -> {side(plan.outputs)}"


def of_bytes(count: int) -> str:
    """``12.4 KiB``."""
    return scaled(count, 1024, "B")


def scaled(count: int, base: int, unit: str) -> str:
    """A count with three digits or so: ``1.23 M``, ``12.4 KiB``, ``512 B``."""
    prefixes = ("", "k", "M", "G", "T", "P") if base == 1000 else ("", "Ki", "Mi", "Gi", "Ti", "Pi")
    value, index = float(count), 0
    while value >= base and index < len(prefixes) - 1:
        value, index = value / base, index + 1
    digits = 0 if index == 0 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {prefixes[index]}{unit}".rstrip()
