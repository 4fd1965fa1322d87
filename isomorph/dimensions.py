"""Sizes: positive integers, and affine expressions over symbols and unknowns.

A :class:`Symbol` (``"B"``, ``"T"``) stands for any length, chosen at run time; an :class:`Unknown` for
one size that the resolver has yet to find. ``2*T+1`` is an :class:`Affine`. Sums and integer multiples
are closed; anything else (``T*S``) is not a size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

Dim = "int | Affine"


class Symbol:
    """A named run-time length; equal by name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


class Unknown:
    """A size still to be found. ``owner`` is the index of the call that needs it, ``label`` says what."""

    __slots__ = ("argument", "label", "number", "owner")

    def __init__(self, number: int, owner: int, label: str, argument: str | None = None) -> None:
        self.number, self.owner, self.label, self.argument = number, owner, label, argument

    def __repr__(self) -> str:
        return "?"


class Affine:
    """``sum(coefficient * variable) + constant``; immutable, and never a plain integer (see :func:`affine`)."""

    __slots__ = ("_hash", "constant", "terms")

    def __init__(self, terms: tuple[tuple[Any, int], ...], constant: int) -> None:
        self.terms, self.constant, self._hash = terms, constant, None

    @property
    def is_open(self) -> bool:
        """Whether an unknown occurs in it."""
        return any(type(variable) is Unknown for variable, _ in self.terms)

    def __add__(self, other: int | Affine) -> int | Affine:
        if type(other) is int:
            return self if other == 0 else Affine(self.terms, self.constant + other)
        if isinstance(other, Affine):
            return affine([*self.terms, *other.terms], self.constant + other.constant)
        return NotImplemented

    __radd__ = __add__

    def __mul__(self, factor: int) -> int | Affine:
        if type(factor) is not int:
            return NotImplemented
        return affine([(variable, c * factor) for variable, c in self.terms], self.constant * factor)

    __rmul__ = __mul__

    def __sub__(self, other: int | Affine) -> int | Affine:
        return self + other * -1

    def __rsub__(self, other: int) -> int | Affine:
        return self * -1 + other

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Affine)
            and self.constant == other.constant
            and (self.terms == other.terms or dict(self.terms) == dict(other.terms))
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((frozenset(self.terms), self.constant))
        return self._hash

    def __repr__(self) -> str:
        parts: list[str] = []
        for variable, c in self.terms:
            sign = "-" if c < 0 else "+" if parts else ""
            parts.append(f"{sign}{'' if abs(c) == 1 else f'{abs(c)}*'}{variable!r}")
        if self.constant:
            parts.append(f"{self.constant:+d}")
        return "".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return parse_dimension, (repr(self),)


def affine(terms: list[tuple[Any, int]], constant: int) -> int | Affine:
    """The sum of terms, collected; a plain int when nothing symbolic is left."""
    total: dict[Any, int] = {}
    for variable, c in terms:
        total[variable] = total.get(variable, 0) + c
    kept = tuple((variable, c) for variable, c in total.items() if c)
    return Affine(kept, constant) if kept else constant


def symbol(name: str) -> Affine:
    """The size that a symbol names."""
    size = _symbols.get(name)
    if size is None:
        size = Affine(((Symbol(name), 1),), 0)
        if len(_symbols) < 1024:
            _symbols[name] = size
    return size


_symbols: dict[str, Affine] = {}
_TERM = re.compile(r"\s*([+-]?)\s*(?:(\d{1,18})\s*\*\s*)?([A-Za-z_]\w*|\d{1,18})\s*", re.ASCII)


def parse_dimension(text: str) -> int | Affine:
    """Read ``"T"``, ``"2*T+1"`` or ``"8"``; ValueError when it is no affine expression."""
    total: int | Affine = 0
    position, first = 0, True
    while position < len(text) or first:
        match = _TERM.match(text, position)
        if match is None or (not first and not match[1]):
            raise ValueError(text)
        sign, factor, atom = match.groups()
        value = int(atom) if atom.isdigit() else symbol(atom)
        total = total + value * ((-1 if sign == "-" else 1) * int(factor or 1))
        position, first = match.end(), False
    return total


def evaluate(dimension: int | Affine, values: Mapping[str, int]) -> int:
    """The size under given symbol values; KeyError names a missing one."""
    if isinstance(dimension, int):
        return dimension
    return dimension.constant + sum(c * values[variable.name] for variable, c in dimension.terms)


def symbols_of(dimension: int | Affine) -> tuple[str, ...]:
    """Names of the symbols in a size."""
    if isinstance(dimension, int):
        return ()
    return tuple(variable.name for variable, _ in dimension.terms if type(variable) is Symbol)


def show_shape(shape: Any) -> str:
    """``[B, 8, 32]``."""
    return "[" + ", ".join(map(str, shape)) + "]"


def written_shape(shape: Iterable[int | Affine]) -> tuple[int | str, ...]:
    """A shape as definitions and JSON have it: ``("B", 8, "2*T")``."""
    return tuple(size if type(size) is int else repr(size) for size in shape)
