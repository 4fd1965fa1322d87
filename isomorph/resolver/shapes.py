"""Applies an operator's shape pattern to the shapes it is given."""

from __future__ import annotations

import ast
from typing import Any

from isomorph.operators.pattern import Port, is_variable
from isomorph.resolver.solver import Clash, Solver

Environment = dict[str, Any]
"""Sizes by pattern variable; ``"..."`` holds a tuple of sizes."""


class RankClash(Exception):
    """A tensor has the wrong number of axes for its port."""

    def __init__(self, port: Port, shape: tuple[Any, ...], ranks: tuple[int, ...]) -> None:
        super().__init__(port, shape)
        self.port, self.shape, self.ranks = port, shape, ranks
        self.owner: int | None = None


class AxisClash(Exception):
    """A pattern variable of size ``first`` would have another, ``other``, by an axis of a port."""

    def __init__(self, variable: str, port: Port, axis: int, first: Any, other: Any, note: str) -> None:
        super().__init__(variable)
        self.variable, self.port, self.axis = variable, port, axis
        self.first, self.other, self.note = first, other, note


def match(solver: Solver, port: Port, shape: tuple[Any, ...], sizes: Environment) -> None:
    """Bind the variables of an input port to a shape, or equate them with what they are."""
    axes = port.axes
    if "..." in axes:
        position = axes.index("...")
        after = len(axes) - 1 - position
        if len(shape) < len(axes) - 1:
            raise RankClash(port, shape, ())
        middle = shape[position : len(shape) - after]
        first = sizes.setdefault("...", middle)
        if first is not middle:
            if len(first) != len(middle):
                raise RankClash(port, shape, (len(first) + len(axes) - 1,))
            for i, (one, other) in enumerate(zip(first, middle, strict=True)):
                _equal(solver, "...", port, position + i, one, other)
        pairs = [(axes[i], i) for i in range(position)]
        pairs += [(axes[i], i - len(axes) + len(shape)) for i in range(position + 1, len(axes))]
    else:
        if len(shape) != len(axes):
            raise RankClash(port, shape, (len(axes),))
        pairs = list(zip(axes, range(len(axes)), strict=True))
    for variable, i in pairs:
        size = shape[i]
        first = sizes.get(variable)
        if first is None:
            if variable.isdigit():
                _equal(solver, variable, port, i, int(variable), size)
            else:
                sizes[variable] = size
        elif first is not size and first != size:
            _equal(solver, variable, port, i, first, size)


def _equal(solver: Solver, variable: str, port: Port, axis: int, first: Any, other: Any) -> None:
    try:
        solver.equal(first, other)
    except Clash as clash:
        if clash.owner is not None and clash.owner != solver.owner:
            raise  # something that was woken failed elsewhere
        raise AxisClash(variable, port, axis, solver.value(first), solver.value(other), clash.note) from None


def produce(solver: Solver, port: Port, sizes: Environment, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """The shape of an output port; a variable that no input bound becomes an unknown."""
    shape: list[Any] = []
    for axis in port.axes:
        size = sizes.get(axis)
        if axis == "...":
            shape += sizes["..."]
        elif size is not None:
            shape.append(size)
        elif is_variable(axis):
            sizes[axis] = solver.unknown(axis)
            shape.append(sizes[axis])
        elif axis.isdigit():
            shape.append(int(axis))
        else:
            shape.append(_evaluate(solver, ast.parse(axis, mode="eval").body, sizes, arguments))
    return tuple(shape)


def _evaluate(solver: Solver, node: ast.expr, sizes: Environment, arguments: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id] if node.id in sizes else arguments[node.id]
    assert isinstance(node, ast.BinOp)
    left = _evaluate(solver, node.left, sizes, arguments)
    right = _evaluate(solver, node.right, sizes, arguments)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.Mult):
        return solver.product((left, right), ast.unparse(node))
    assert isinstance(node.op, ast.Div)
    return solver.quotient(left, right, ast.unparse(node))
