"""What differs between two plans, in words."""

from __future__ import annotations

from typing import Any

from isomorph.plan.table import render_header
from isomorph.resolver.resolved import Node, ResolvedGraph


def plan_difference(one: ResolvedGraph, other: ResolvedGraph) -> list[str]:
    """A line for each difference in contracts, nodes and bounds; empty when the plans are equal."""
    lines = []
    if render_header(one) != render_header(other):
        lines.append(f"network: {render_header(one)[9:]} became {render_header(other)[9:]}")
    theirs = {node.name: node for node in other.nodes}
    ours = {node.name: node for node in one.nodes}
    lines += [f"{name}: removed ({node.operator.name})" for name, node in ours.items() if name not in theirs]
    lines += [f"{name}: added ({node.operator.name})" for name, node in theirs.items() if name not in ours]
    for name, node in ours.items():
        if name in theirs:
            lines += _node_difference(one, node, other, theirs[name])
    if dict(one.bounds) != dict(other.bounds):
        lines.append(f"bounds: {_bounds(one)} became {_bounds(other)}")
    shared = [name for name in ours if name in theirs]
    if shared != [name for name in theirs if name in ours]:
        lines.append("order of nodes: changed")
    return lines


def _bounds(plan: ResolvedGraph) -> str:
    return (
        ", ".join(
            f"{b.low} <= {s}" + ("" if b.high is None else f" <= {b.high}") for s, b in plan.bounds.items()
        )
        or "none"
    )


def _node_difference(one: ResolvedGraph, mine: Node, other: ResolvedGraph, theirs: Node) -> list[str]:
    name = mine.name
    if mine.operator.identity != theirs.operator.identity:
        return [f"{name}: {mine.operator.identity} became {theirs.operator.identity}"]
    lines = []
    for argument, value in mine.operator.argument_values.items():
        changed = theirs.operator.argument_values[argument]
        if value != changed:
            lines.append(f"{name}: {argument} {value!r} became {changed!r}")
    for what in ("init", "trainable", "tie"):
        before, after = dict(getattr(mine, what)), dict(getattr(theirs, what))
        if before != after:
            lines.append(f"{name}: {what} {_spell(before)} became {_spell(after)}")
    before, after = _wiring(one, mine), _wiring(other, theirs)
    if before != after:
        lines.append(f"{name}: inputs {before} became {after}")
    before, after = _outputs_text(one, mine), _outputs_text(other, theirs)
    if before != after:
        lines.append(f"{name}: outputs {before} became {after}")
    return lines


def _spell(mapping: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in mapping.items()) + "}"


def _wiring(plan: ResolvedGraph, node: Node) -> str:
    return ", ".join(
        f"{port}={plan.values[v].source}:{list(plan.values[v].shape)}" for port, v in node.inputs
    )


def _outputs_text(plan: ResolvedGraph, node: Node) -> str:
    return ", ".join(f"{plan.values[v].port}={list(plan.values[v].shape)}" for v in node.outputs)
