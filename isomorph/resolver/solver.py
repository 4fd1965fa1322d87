"""Equations between sizes: solved as they come, kept while they wait, searched at the end.

An affine equation binds one unknown at once (Gaussian elimination, one step at a time); a product
waits until at most one factor is open, when it becomes affine. Binding an unknown wakes only what
watches it. What still waits at the end is searched, within a budget, for a second solution.
README.md says why this terminates and what it leaves out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from isomorph.dimensions import Affine, Unknown, affine
from isomorph.operators.declare import Conflict
from isomorph.resolver.budget import Budget


class Clash(Exception):
    """Two sizes that must be equal are not; ``note`` says more, where there is more to say."""

    def __init__(self, left: int | Affine, right: int | Affine, note: str = "") -> None:
        super().__init__(left, right)
        self.left, self.right, self.note = left, right, note
        self.owner: int | None = None  # the call whose waiting relation failed, where it is another one


class Indivisible(Clash):
    """Two sizes could be equal in fractions alone."""

    def __init__(self, left: int | Affine, right: int | Affine, divisor: int) -> None:
        super().__init__(left, right, f"not a whole multiple of {divisor}")


class Impossible(Clash):
    """What two sizes come to cannot be; ``note`` is the whole statement."""


class OpenShape:
    """A shape whose rank is not known yet.

    Attributes:
        prefix: leading sizes, batch first.
        count: product of all non-batch sizes, or None when nothing is known of it.
        closed: the whole shape once the rank is known.
        ranks: the ranks that consumers accept, or None for any.
        links: (shape, difference): open shapes of a rank that differs by so much.
        waiting: what to do when it closes.
        owner: the call that made it.
        promised: whether it stands for the result of a call that waits for a rank.
    """

    __slots__ = ("closed", "count", "links", "owner", "prefix", "promised", "ranks", "waiting")

    def __init__(self, prefix: tuple[Any, ...], count: Any, owner: int, promised: bool = False) -> None:
        self.prefix, self.count, self.owner, self.promised = prefix, count, owner, promised
        self.closed: tuple[Any, ...] | None = None
        self.ranks: set[int] | None = None
        self.links: list[tuple[OpenShape, int]] = []
        self.waiting: list[Callable[[], None]] = []

    def limit_ranks(self, ranks: Iterable[int]) -> None:
        """Allow no ranks but these."""
        self.ranks = set(ranks) if self.ranks is None else self.ranks & set(ranks)

    def possible_ranks(self, budget: Budget) -> set[int] | None:
        """Ranks that every consumer of this shape and of those linked to it accepts; None for any."""
        possible: set[int] | None = None
        seen: set[OpenShape] = {self}
        waiting: list[tuple[OpenShape, int]] = [(self, 0)]
        while waiting:
            shape, offset = waiting.pop()
            budget.spend(1 + len(shape.links))
            if shape.ranks is not None:
                allowed = {rank - offset for rank in shape.ranks}
                possible = allowed if possible is None else possible & allowed
            for other, difference in shape.links:
                if other not in seen:
                    seen.add(other)
                    waiting.append((other, offset + difference))
        return possible


class Equation:
    """``difference == 0`` with two or more unknowns of coefficient other than one."""

    __slots__ = ("done", "left", "owner", "right")

    def __init__(self, left: Any, right: Any, owner: int) -> None:
        self.left, self.right, self.owner, self.done = left, right, owner, False

    def dims(self) -> tuple[Any, ...]:
        """The sizes that it speaks of."""
        return (self.left, self.right)


class Product:
    """``factors[0] * factors[1] * ... == total``."""

    __slots__ = ("done", "factors", "owner", "total")

    def __init__(self, factors: tuple[Any, ...], total: Any, owner: int) -> None:
        self.factors, self.total, self.owner, self.done = factors, total, owner, False

    def dims(self) -> tuple[Any, ...]:
        """The sizes that it speaks of."""
        return (*self.factors, self.total)


class Solver:
    """The store of facts about unknown sizes; all of its work is charged to one budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.bound: dict[Unknown, int | Affine] = {}
        self.causes: dict[Unknown, int] = {}
        self.unknowns: list[Unknown] = []
        self.watchers: dict[Unknown, dict[Any, None]] = {}
        self.pending: list[Any] = []
        self.minimums: list[tuple[int | Affine, int, int]] = []
        self.owner = -1
        """Index of the call on whose behalf facts are stated now; the number of calls for the contract."""
        self._trail: list[Unknown] | None = None
        self._queue: deque[Any] = deque()
        self._draining = False

    # -- stating facts -------------------------------------------------------------------------

    def unknown(self, label: str, argument: str | None = None) -> Affine:
        """A new size to be found; ``label`` says what it is, ``argument`` which argument states it."""
        variable = Unknown(len(self.unknowns), self.owner, label, argument)
        self.unknowns.append(variable)
        return Affine(((variable, 1),), 0)

    def value(self, dim: Any) -> Any:
        """The size with everything known about its unknowns put in."""
        if type(dim) is int:
            return dim
        known = self._known_in(dim)
        if known and self._trail is None:
            self._shorten(known)
        result = dim
        while type(result) is not int and self._known_in(result):
            result = self._substitute(result)
        return result

    def _known_in(self, dim: Any) -> list[Unknown]:
        """The unknowns of a size that are bound."""
        if type(dim) is int:
            return []
        bound = self.bound
        return [variable for variable, _ in dim.terms if type(variable) is Unknown and variable in bound]

    def _shorten(self, variables: list[Unknown]) -> None:
        """Put what is known into what some unknowns are bound to, so that it is one step next time."""
        bound, waiting = self.bound, list(variables)
        while waiting:
            known = self._known_in(bound[waiting[-1]])
            deeper = [variable for variable in known if self._known_in(bound[variable])]
            if deeper:
                self.budget.spend(len(deeper))
                waiting += deeper
                continue
            variable = waiting.pop()
            if known:
                bound[variable] = self._substitute(bound[variable])

    def _substitute(self, dim: Any) -> Any:
        self.budget.spend(len(dim.terms))
        terms: list[tuple[Any, int]] = []
        constant = dim.constant
        for variable, c in dim.terms:
            known = self.bound.get(variable) if type(variable) is Unknown else None
            if known is None:
                terms.append((variable, c))
            elif isinstance(known, Affine):
                terms += [(v, c * k) for v, k in known.terms]
                constant += c * known.constant
            else:
                constant += c * known
        return affine(terms, constant)

    def values(self, shape: Iterable[Any]) -> tuple[Any, ...]:
        """A shape's sizes as they are known now."""
        return tuple(map(self.value, shape))

    def equal(self, left: Any, right: Any) -> None:
        """State that two sizes are equal; :class:`Clash` when they cannot be."""
        if left is right or (type(left) is int and left == right):
            return
        if not self._solve(left, right):
            self._wait(Equation(left, right, self.owner))

    def _solve(self, left: Any, right: Any) -> bool:
        """Use an equation up by binding one unknown; False when it has to wait."""
        left, right = self.value(left), self.value(right)
        difference = left - right
        if type(difference) is int:
            if difference:
                raise Clash(left, right)
            return True
        self.budget.spend(len(difference.terms))
        unknowns = [(v, c) for v, c in difference.terms if type(v) is Unknown]
        if not unknowns:
            raise Clash(left, right)
        units = [(v, c) for v, c in unknowns if c in (1, -1)]
        if not units and len(unknowns) > 1:
            return False
        # The newest unknown goes: older ones stay as representatives and chains of bindings stay short.
        variable, c = max(units or unknowns, key=lambda term: term[0].number)
        rest = [(v, k) for v, k in difference.terms if v is not variable]
        if any(k % c for _, k in rest) or difference.constant % c:
            raise Indivisible(left, right, abs(c))
        self._bind(variable, affine([(v, -k // c) for v, k in rest], -difference.constant // c), left, right)
        return True

    def sum(self, dims: Sequence[Any]) -> Any:
        """The sum of sizes, collected at once however many there are."""
        terms: list[tuple[Any, int]] = []
        constant = 0
        for dim in dims:
            if type(dim) is int:
                constant += dim
            else:
                terms += dim.terms
                constant += dim.constant
        self.budget.spend(len(terms))
        return affine(terms, constant)

    def product(self, dims: Sequence[Any], label: str = "the product") -> Any:
        """The product of sizes: a size at once where it is affine, else a new unknown."""
        known, open_dims = self._split(dims)
        if not open_dims:
            return known
        if len(open_dims) == 1:
            return open_dims[0] * known
        if not any(dim.is_open for dim in open_dims):
            written = " * ".join(f"({dim})" if dim.constant else str(dim) for dim in open_dims)
            raise Conflict(
                f"{written} is no size: both factors are known at run time alone",
                code="E_UNRESOLVED",
                hints=("give a number for all but one of them",),
            )
        total = self.unknown(label)
        self._wait(Product(tuple(dims), total, self.owner))
        return total

    def equal_product(self, left: Sequence[Any], right: Sequence[Any]) -> None:
        """State that two products are equal."""
        total = self.product(left)
        relation = Product(tuple(right), total, self.owner)
        if not self.attempt(relation):
            self._wait(relation)

    def quotient(self, dim: Any, divisor: int, label: str = "the quotient") -> Any:
        """``dim / divisor``, exact; :class:`Clash` when it cannot be."""
        dim = self.value(dim)
        if type(dim) is int:
            if dim % divisor:
                raise Impossible(dim, divisor, f"{dim} is not a multiple of {divisor}")
            return dim // divisor
        if not dim.is_open and all(c % divisor == 0 for _, c in dim.terms) and dim.constant % divisor == 0:
            return affine([(v, c // divisor) for v, c in dim.terms], dim.constant // divisor)
        if not dim.is_open:
            raise Conflict(
                f"{dim} divided by {divisor} is no size: {dim} is not known until run time",
                code="E_UNRESOLVED",
                hints=(f"give a number for {dim}",),
            )
        result = self.unknown(label)
        self.equal(result * divisor, dim)
        return result

    def at_least(self, dim: Any, minimum: int) -> None:
        """State ``dim >= minimum``."""
        dim = self.value(dim)
        if type(dim) is int:
            if dim < minimum:
                raise Impossible(dim, minimum, f"must be at least {minimum}, is {dim}")
        else:
            self.minimums.append((dim, minimum, self.owner))

    def open_shape(self, *, prefix: tuple[Any, ...], count: Any) -> OpenShape:
        """``prefix`` and further sizes of unknown number; all non-batch sizes multiply to ``count``."""
        self.equal_product((*prefix[1:], self.unknown("the product of the sizes not given")), (count,))
        return OpenShape(prefix, count, self.owner)

    def close(self, shape: OpenShape, rank: int) -> tuple[Any, ...]:
        """Fix the rank of an open shape."""
        if shape.closed is not None:
            return shape.closed
        missing = rank - len(shape.prefix)
        if missing < 0:
            raise Impossible(len(shape.prefix), rank, f"rank {rank} does not fit")
        outer, self.owner = self.owner, shape.owner
        tail = tuple(self.unknown(f"the size of axis {len(shape.prefix) + i}") for i in range(missing))
        self.owner = outer
        shape.closed = (*shape.prefix, *tail)
        if shape.count is not None:
            relation = Product(shape.closed[1:], shape.count, shape.owner)
            if not self.attempt(relation):
                self._wait(relation)
        self._queue += shape.waiting
        shape.waiting = []
        self._drain()
        return shape.closed

    # -- bookkeeping ---------------------------------------------------------------------------

    def _split(self, dims: Sequence[Any]) -> tuple[int, list[Any]]:
        self.budget.spend(len(dims))
        known, open_dims = 1, []
        for dim in map(self.value, dims):
            if type(dim) is int:
                known *= dim
            else:
                open_dims.append(dim)
        return known, open_dims

    def attempt(self, relation: Any) -> bool:
        """Try to use a waiting relation up; True when nothing is left of it."""
        if isinstance(relation, Equation):
            return self._solve(relation.left, relation.right)
        known, open_dims = self._split(relation.factors)
        if len(open_dims) > 1:
            total = self.value(relation.total)
            if type(total) is int and total % known:
                raise Impossible(total, known, f"{total} is not a multiple of {known}")
            return False
        return self._solve(relation.total, open_dims[0] * known if open_dims else known)

    def _wait(self, relation: Any) -> None:
        self.pending.append(relation)
        self._watch(relation)

    def _watch(self, relation: Any) -> None:
        for dim in map(self.value, relation.dims()):
            if type(dim) is not int:
                for variable, _ in dim.terms:
                    if type(variable) is Unknown:
                        self.watchers.setdefault(variable, {})[relation] = None

    def _bind(self, variable: Unknown, size: Any, left: Any, right: Any) -> None:
        if type(size) is int and size < 1:
            raise Impossible(left, right, f"{variable.label} would have to be {size}")
        self.bound[variable] = size
        self.causes[variable] = self.owner
        if self._trail is not None:
            self._trail.append(variable)
            return
        self._queue += self.watchers.pop(variable, ())
        self._drain()

    def _drain(self) -> None:
        """Resume everything that was woken, one after another: depth never grows with the network."""
        if self._draining:
            return
        self._draining, outer = True, self.owner
        try:
            while self._queue:
                woken = self._queue.popleft()
                if callable(woken):
                    woken()
                elif not woken.done:
                    self._wake(woken)
        finally:
            self._draining, self.owner = False, outer

    def _wake(self, relation: Any) -> None:
        self.owner = relation.owner
        try:
            relation.done = self.attempt(relation)
        except Clash as clash:
            clash.owner = relation.owner
            raise
        if not relation.done:
            self._watch(relation)

    # -- tentative facts, for the search -------------------------------------------------------

    def begin(self) -> None:
        """From now on remember bindings, wake nothing, and let :meth:`undo` take them back."""
        self._trail = []

    def mark(self) -> int:
        """The number of tentative bindings so far."""
        return len(self._trail or ())

    def assume(self, variable: Unknown, size: int) -> None:
        """Bind an unknown tentatively."""
        self._bind(variable, size, size, size)

    def undo(self, mark: int) -> None:
        """Take back tentative bindings beyond a mark."""
        assert self._trail is not None
        while len(self._trail) > mark:
            variable = self._trail.pop()
            del self.bound[variable], self.causes[variable]

    def end(self) -> None:
        """Leave tentative mode; everything must have been undone."""
        assert not self._trail
        self._trail = None
