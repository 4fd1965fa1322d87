"""Shape patterns: ``x[B, T, D], mask?[B, T]:bool -> out[B, T+1, D]``, read once per operator.

A port is ``name[axes]`` with an optional ``:dtype``; ``?`` after the name makes an input optional and
``*`` lets it take two or more tensors. An axis is a size variable, an integer, ``...`` (any axes, the
same wherever it stands), or arithmetic over variables: ``T+1``, ``(H/p)*(W/p)``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Axis = str
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
        return cls(_ports(left), _ports(right))


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


def is_variable(axis: Axis) -> bool:
    """Whether an axis is a plain size variable."""
    return axis.isidentifier()
