"""Shape patterns: ``x[B, T, D], mask?[B, T]:bool -> out[B, T+1, D]``, read once per operator.

A port is ``name[axes]`` with an optional ``:dtype``; ``?`` after the name makes an input optional and
``*`` lets it take two or more tensors. An axis is a size variable, an integer, ``...`` (any axes, the
same wherever it stands), or arithmetic over variables: ``T+1``, ``(H/p)*(W/p)``.
"""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

Axis = str
DTYPES = ("compute", "int64", "bool")
_PORT = re.compile(r"\s*([a-z_][a-z0-9_]*)([?*]?)\[([^\]]*)\](?::(\w+))?\s*(?:,|$)")


class Port(NamedTuple):
    """An input or output of an operator.

    Attributes:
        name: the port's name.
        axes: its axes as text, ``"..."`` at most once.
        dtype: ``"compute"``, ``"int64"`` or ``"bool"``.
        optional, variadic: see the module.
        pattern: the port as documented, without dtype and marks.
    """

    name: str
    axes: tuple[Axis, ...]
    dtype: str = "compute"
    optional: bool = False
    variadic: bool = False

    @property
    def pattern(self) -> str:
        """As it is written: ``x[B, T, D]``."""
        return f"{self.name}[{', '.join(self.axes)}]"

    @property
    def rank(self) -> int | None:
        """The number of axes, or None when ``...`` leaves it open."""
        return None if "..." in self.axes else len(self.axes)


class Signature(NamedTuple):
    """The input and output ports of an operator."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Read a pattern; ValueError when it is malformed (a fault of the operator's author)."""
        left, arrow, right = text.partition("->")
        if not arrow:
            raise ValueError(f"a shape pattern needs '->': {text!r}")
        signature = cls(_ports(left), _ports(right))
        signature._check(text)
        return signature

    def _check(self, text: str) -> None:
        if not self.inputs or not self.outputs:
            raise ValueError(f"a shape pattern needs an input and an output: {text!r}")
        names = [port.name for port in (*self.inputs, *self.outputs)]
        for port in (*self.inputs, *self.outputs):
            if names.count(port.name) > 1:
                raise ValueError(f"two ports are named {port.name!r} in the shape pattern {text!r}")
            if port.axes.count("...") > 1:
                raise ValueError(f"`...` stands twice in {port.pattern} of the shape pattern {text!r}")
            if port.dtype not in DTYPES:
                raise ValueError(
                    f"{port.name} has the dtype {port.dtype!r}, expected {' or '.join(DTYPES[1:])}"
                )
        for port in self.outputs:
            if port.optional or port.variadic or port.dtype != "compute":
                raise ValueError(f"the output {port.name} takes no mark and no dtype in {text!r}")
            if "..." in port.axes and all("..." not in given.axes for given in self.inputs):
                raise ValueError(f"`...` of the output {port.name} stands in no input of {text!r}")
            for axis in port.axes:
                _check_expression(axis)
        for port in self.inputs:
            for axis in port.axes:
                if axis != "..." and not axis.isdigit() and not is_variable(axis):
                    raise ValueError(
                        f"an input's axis is a size, an integer or `...`, got {axis!r} in {port.pattern}"
                    )


def _ports(text: str) -> tuple[Port, ...]:
    ports, position = [], 0
    text = text.strip()
    while position < len(text):
        match = _PORT.match(text, position)
        if match is None:
            raise ValueError(f"malformed port in shape pattern: {text[position:]!r}")
        name, mark, axes, dtype = match.groups()
        names = tuple(axis.strip() for axis in axes.split(",")) if axes.strip() else ()
        ports.append(Port(name, names, dtype or "compute", mark == "?", mark == "*"))
        position = match.end()
    return tuple(ports)


def _check_expression(axis: Axis) -> None:
    """ValueError unless an output's axis is arithmetic over sizes: ``+``, ``-``, ``*``, ``/`` and integers."""
    if axis == "...":
        return
    try:
        tree = ast.parse(axis, mode="eval")
    except SyntaxError:
        tree = None
    allowed = (ast.Expression, ast.BinOp, ast.Name, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.Div)
    if tree is None or not all(
        isinstance(node, allowed) or (isinstance(node, ast.Constant) and type(node.value) is int)
        for node in ast.walk(tree)
    ):
        raise ValueError(f"an output's axis is arithmetic with +, -, * and / over sizes, got {axis!r}")


def variables_of(axis: Axis) -> list[str]:
    """The names in an axis: itself if it is one, those of its arithmetic, none of ``...`` or an integer."""
    return re.findall(r"[A-Za-z_]\w*", axis)


def is_variable(axis: Axis) -> bool:
    """Whether an axis is a plain size variable."""
    return axis.isidentifier()
