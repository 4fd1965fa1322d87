"""Sizes that are only known when the written code runs: sums of products of named lengths.

Operators compute with the sizes of their tensors (``D // heads``, ``prod(x.shape[1:])``). While one is
recorded, a length such as ``T`` is a :class:`Size`, which keeps the expression; what has no such expression
is :class:`NotSymbolic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Dimension = "int | Size"


class NotSymbolic(Exception):
    """A computation that needs the value of a length."""


class Size:
    """A polynomial in named lengths with integer coefficients; immutable, and never a plain integer.

    Attributes:
        terms: coefficient by monomial, which is the sorted tuple of its names; ``()`` is the constant.
    """

    __slots__ = ("terms",)

    def __init__(self, terms: tuple[tuple[tuple[str, ...], int], ...]) -> None:
        self.terms = terms

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names in it, in order of appearance."""
        return tuple(dict.fromkeys(name for names, _ in self.terms for name in names))

    def substitute(self, sizes: Mapping[str, int | Size]) -> int | Size:
        """The size with every name replaced by what it stands for."""
        total: int | Size = 0
        for names, coefficient in self.terms:
            product: int | Size = coefficient
            for name in names:
                product = product * sizes.get(name, symbol(name))
            total = total + product
        return total

    def text(self, name: Callable[[str], str] = str) -> str:
        """A Python expression: ``T + 1``, ``2 * T``, ``H * W``."""
        parts: list[str] = []
        for names, coefficient in sorted(self.terms, key=lambda term: -len(term[0])):
            sign = "-" if coefficient < 0 else "+" if parts else ""
            factors = [str(abs(coefficient))] if abs(coefficient) != 1 or not names else []
            body = " * ".join([*factors, *map(name, names)])
            parts.append(f"{sign} {body}" if parts else f"{sign}{body}")
        return " ".join(parts)

    def __add__(self, other: Any) -> int | Size:
        if isinstance(other, int | Size):
            return _collect([*self.terms, *_terms(other)])
        return NotImplemented

    __radd__ = __add__

    def __mul__(self, other: Any) -> int | Size:
        if isinstance(other, int | Size):
            products = [
                (tuple(sorted(a + b)), x * y) for a, x in self.terms for b, y in _terms(other)
            ]  # fmt: skip
            return _collect(products)
        return NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> int | Size:
        return self * -1

    def __sub__(self, other: Any) -> int | Size:
        return self + other * -1 if isinstance(other, int | Size) else NotImplemented

    def __rsub__(self, other: int) -> int | Size:
        return self * -1 + other

    def __floordiv__(self, divisor: Any) -> int | Size:
        """Exact for what is known of any length: ``(2 * T - 1) // 2`` is ``T - 1``."""
        if isinstance(divisor, Size):
            return self._by_monomial(divisor)
        if type(divisor) is not int or divisor < 1 or any(c % divisor for names, c in self.terms if names):
            raise NotSymbolic(f"({self}) // {divisor}")
        return _collect([(names, coefficient // divisor) for names, coefficient in self.terms])

    def _by_monomial(self, divisor: Size) -> int | Size:
        (names, factor), *others = divisor.terms
        terms = []
        for monomial, coefficient in self.terms:
            left = list(monomial)
            for name in names:
                if name not in left:
                    raise NotSymbolic(f"({self}) // ({divisor})")
                left.remove(name)
            if others or coefficient % factor:
                raise NotSymbolic(f"({self}) // ({divisor})")
            terms.append((tuple(left), coefficient // factor))
        return _collect(terms)

    def __mod__(self, divisor: Any) -> int:
        if type(divisor) is int and not any(c % divisor for names, c in self.terms if names):
            return dict(self.terms).get((), 0) % divisor
        raise NotSymbolic(f"({self}) % {divisor}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and dict(self.terms) == dict(other.terms)

    def __hash__(self) -> int:
        return hash(frozenset(self.terms))

    def __bool__(self) -> bool:
        raise NotSymbolic(f"whether {self} is 0")

    def _order(self, other: Any) -> bool:
        raise NotSymbolic(f"whether {self} is above or below {other}")

    __lt__ = __le__ = __gt__ = __ge__ = _order

    def __index__(self) -> int:
        raise NotSymbolic(f"the value of {self}")

    __repr__ = text


def symbol(name: str) -> Size:
    """The length of that name."""
    return Size((((name,), 1),))


def symbols_of(dimensions: Iterable[Any]) -> tuple[str, ...]:
    """The names in some sizes, in order of appearance."""
    return tuple(dict.fromkeys(s for d in dimensions if isinstance(d, Size) for s in d.symbols))


def _terms(size: int | Size) -> tuple[tuple[tuple[str, ...], int], ...]:
    return size.terms if isinstance(size, Size) else (((), size),)


def _collect(terms: Iterable[tuple[tuple[str, ...], int]]) -> int | Size:
    total: dict[tuple[str, ...], int] = {}
    for names, coefficient in terms:
        total[names] = total.get(names, 0) + coefficient
    kept = tuple((names, coefficient) for names, coefficient in total.items() if coefficient)
    if all(not names for names, _ in kept):
        return kept[0][1] if kept else 0
    return Size(kept)
