"""What propagation leaves open: is there one solution, are there several, or is nothing said?

Unknowns fall into components that share a relation. In each component an unknown with finitely many
candidates (a divisor of a known product, a summand of a known sum) is tried value by value, with the
operators' own checks as filters, until a second solution is found or the candidates run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from isomorph.operators.declare import Conflict
from isomorph.resolver.dimensions import Symbol, Unknown
from isomorph.resolver.solver import Clash, Equation, Product, Solver

SEARCH_BUDGET = 20_000
"""Values tried in one component before the search gives up and asks for a number."""
MOST_UNKNOWNS = 64
"""Unknowns in one component beyond which the search does not start."""
LARGEST_FACTORED = 1 << 34
"""Products beyond this are not factored."""


class Check(NamedTuple):
    """A rule over sizes that can be judged once all of them are numbers."""

    dims: tuple[Any, ...]
    judge: Callable[[tuple[int, ...]], None]
    """Raises Conflict when the numbers break the rule."""
    owner: int


class Several(Exception):
    """An unknown has more than one value; ``values`` are two of them."""

    def __init__(self, variable: Unknown, values: tuple[int, ...]) -> None:
        super().__init__(variable, values)
        self.variable, self.values = variable, values


class NoSolution(Exception):
    """Every value of the open sizes was tried and none fits; ``example`` is what the first one broke."""

    def __init__(self, unknowns: Sequence[Unknown], example: Clash | Conflict, owner: int) -> None:
        super().__init__(example)
        self.unknowns, self.example, self.owner = unknowns, example, owner


class Undetermined(Exception):
    """Nothing says what an unknown is."""

    def __init__(self, variable: Unknown, reason: str = "") -> None:
        super().__init__(variable)
        self.variable, self.reason = variable, reason


def search(solver: Solver, checks: Sequence[Check]) -> None:
    """Bind every unknown that has one solution; raise Several, Undetermined, NoSolution or Clash otherwise."""
    if len(solver.unknowns) == len(solver.bound) and not solver.minimums:
        return
    for component in _components(solver, checks):
        component.solve()


class _Component:
    """Unknowns that hang together, and everything that is known about them."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self.unknowns: list[Unknown] = []
        self.relations: list[Equation | Product] = []
        self.minimums: list[tuple[Any, int]] = []
        self.checks: list[Check] = []
        self.solutions: list[dict[Unknown, int]] = []
        self.failure: tuple[Clash | Conflict, int] | None = None
        self.budget = SEARCH_BUDGET

    def solve(self) -> None:
        solver = self.solver
        if len(self.unknowns) > MOST_UNKNOWNS:
            raise Undetermined(self.unknowns[0], "too many sizes hang on it to try them all")
        solver.begin()
        try:
            self._descend()
        finally:
            solver.undo(0)
            solver.end()
        if not self.solutions:
            assert self.failure is not None
            raise NoSolution(self.unknowns, *self.failure)
        first = self.solutions[0]
        for other in self.solutions[1:]:
            variable = next(v for v in self.unknowns if first[v] != other[v])
            raise Several(variable, tuple(sorted((first[variable], other[variable]))))
        for variable, value in first.items():
            solver.bound[variable] = value
            solver.causes[variable] = variable.owner

    def _descend(self) -> None:
        try:
            self._propagate()
            free = [v for v in self.unknowns if v not in self.solver.bound]
            if not free:
                self._judge()
                self.solutions.append({v: self.solver.value(self.solver.bound[v]) for v in self.unknowns})
                return
        except (Clash, Conflict) as failure:
            self.failure = self.failure or (failure, self.solver.owner)
            return
        variable, values = self._narrowest(free)
        mark = self.solver.mark()
        for value in values:
            self.budget -= 1
            if self.budget < 0:
                raise Undetermined(variable, "too many combinations to try them all")
            try:
                self.solver.assume(variable, value)
                self._descend()
            finally:
                self.solver.undo(mark)
            if len(self.solutions) > 1:
                return

    def _propagate(self) -> None:
        mark = -1
        while mark != self.solver.mark():
            mark = self.solver.mark()
            for relation in self.relations:
                self.solver.owner = relation.owner
                self.solver.attempt(relation)
        for dim, minimum in self.minimums:
            value = self.solver.value(dim)
            if type(value) is int and value < minimum:
                raise Clash(value, minimum, f"a size would have to be {value}")

    def _judge(self) -> None:
        for check in self.checks:
            sizes = self.solver.values(check.dims)
            if all(type(size) is int for size in sizes):
                self.solver.owner = check.owner
                check.judge(sizes)

    def _narrowest(self, free: list[Unknown]) -> tuple[Unknown, Iterable[int]]:
        best: tuple[Unknown, Sequence[int]] | None = None
        for variable in free:
            for candidates in self._candidates(variable):
                if best is None or len(candidates) < len(best[1]):
                    best = variable, candidates
        if best is None:
            raise Undetermined(free[0])
        return best

    def _candidates(self, variable: Unknown) -> Iterator[Sequence[int]]:
        """Finite sets that must hold the variable, one per fact that gives one."""
        for relation in self.relations:
            if isinstance(relation, Product):
                yield from self._divisors(variable, relation)
            else:
                difference = self.solver.value(relation.left) - self.solver.value(relation.right)
                for sign in (1, -1):
                    yield from _upper(variable, difference * sign, 0)
        for dim, minimum in self.minimums:
            yield from _upper(variable, self.solver.value(dim), minimum)

    def _divisors(self, variable: Unknown, relation: Product) -> Iterator[Sequence[int]]:
        total = self.solver.value(relation.total)
        if type(total) is not int or total > LARGEST_FACTORED:
            return
        for factor in self.solver.values(relation.factors):
            if type(factor) is not int and len(factor.terms) == 1 and factor.terms[0][0] is variable:
                c, k = factor.terms[0][1], factor.constant
                yield [
                    (d - k) // c for d in _divisors_of(total) if (d - k) % c == 0 and (d - k) // c >= 1
                ]  # fmt: skip


def _upper(variable: Unknown, dim: Any, minimum: int) -> Iterator[range]:
    """From ``dim >= minimum`` with negative coefficients alone: 1..bound."""
    if type(dim) is int or any(c > 0 or type(v) is Symbol for v, c in dim.terms):
        return
    own = sum(-c for v, c in dim.terms if v is variable)
    if own:
        others = sum(-c for v, c in dim.terms if v is not variable)
        yield range(1, (dim.constant - minimum - others) // own + 1)


def _divisors_of(total: int) -> list[int]:
    small, large, d = [], [], 1
    while d * d <= total:
        if total % d == 0:
            small.append(d)
            if d * d != total:
                large.append(total // d)
        d += 1
    return small + large[::-1]


def _components(solver: Solver, checks: Sequence[Check]) -> list[_Component]:
    """Group unknowns by the relations, positivity facts and checks that mention several of them."""
    parent: dict[Unknown, Unknown] = {}

    def find(variable: Unknown) -> Unknown:
        while parent[variable] is not variable:
            parent[variable] = parent[parent[variable]]
            variable = parent[variable]
        return variable

    def unknowns_in(dims: Iterable[Any]) -> list[Unknown]:
        return [
            v for dim in map(solver.value, dims) if type(dim) is not int for v, _ in dim.terms
            if type(v) is Unknown
        ]  # fmt: skip

    free = [variable for variable in solver.unknowns if variable not in solver.bound]
    parent.update((variable, variable) for variable in free)
    facts: list[tuple[list[Unknown], str, Any]] = [
        (unknowns_in(relation.dims()), "relations", relation)
        for relation in solver.pending
        if not relation.done
    ]
    positive = [(dim, 1) for dim in solver.bound.values()]
    for dim, minimum in [*positive, *((d, m) for d, m, _ in solver.minimums)]:
        value = solver.value(dim)
        if type(value) is int and value < minimum:
            raise Clash(value, minimum, f"a size would have to be {value}")
        facts.append((unknowns_in([dim]), "minimums", (dim, minimum)))
    facts += [(unknowns_in(check.dims), "checks", check) for check in checks]
    for mentioned, _, _ in facts:
        for variable in mentioned[1:]:
            parent[find(variable)] = find(mentioned[0])
    groups: dict[Unknown, _Component] = {}
    for variable in free:
        groups.setdefault(find(variable), _Component(solver)).unknowns.append(variable)
    for mentioned, kind, fact in facts:
        if mentioned:
            getattr(groups[find(mentioned[0])], kind).append(fact)
    return list(groups.values())
