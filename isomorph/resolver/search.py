"""What propagation leaves open: is there one solution, are there several, or is nothing said?

Unknowns fall into components that share a fact. In each, the facts narrow what the unknowns may be
(``domains.py``); then the unknown with the fewest values left is tried value by value, until a second
solution is found or the values run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from isomorph.dimensions import Unknown
from isomorph.operators.declare import Conflict
from isomorph.resolver.budget import Exhausted
from isomorph.resolver.domains import (
    Domain,
    Domains,
    Empty,
    Fact,
    Linear,
    Rule,
    Sum,
    count,
    highest,
    is_single,
)
from isomorph.resolver.domains import Product as ProductFact
from isomorph.resolver.solver import Clash, Equation, Impossible, Product, Solver

MOST_UNKNOWNS = 64
"""Unknowns in one component, after narrowing, beyond which no values are tried."""


class Check(NamedTuple):
    """A rule over sizes that can be judged once all of them are numbers."""

    dims: tuple[Any, ...]
    judge: Callable[[tuple[int, ...]], None]
    """Raises Conflict when the numbers break the rule."""
    owner: int


class Multiple(NamedTuple):
    """A size that is a whole multiple of a number, as some check demands in the end."""

    dim: Any
    number: int
    owner: int


class Several(Exception):
    """An unknown has more than one value; ``values`` are two of them."""

    def __init__(self, variable: Unknown, values: tuple[int, ...]) -> None:
        super().__init__(variable, values)
        self.variable, self.values = variable, values


class NoSolution(Exception):
    """No values of the open sizes fit; ``example`` is what the first ones break."""

    def __init__(self, unknowns: Sequence[Unknown], example: Clash | Conflict, owner: int) -> None:
        super().__init__(example)
        self.unknowns, self.example, self.owner = unknowns, example, owner


class Undetermined(Exception):
    """Nothing says what an unknown is."""

    def __init__(self, variable: Unknown, reason: str = "") -> None:
        super().__init__(variable)
        self.variable, self.reason = variable, reason


def search(solver: Solver, checks: Sequence[Check], multiples: Sequence[Multiple]) -> None:
    """Bind every unknown that has one solution; raise Several, Undetermined, NoSolution or Clash otherwise.

    What is impossible anywhere is told before what has several solutions elsewhere.
    """
    components = _components(solver, checks, multiples)
    _judge(solver, checks)
    unclear: Several | Undetermined | None = None
    for component in components:
        try:
            component.solve()
        except (Several, Undetermined) as conflict:
            unclear = unclear or conflict
    if unclear is not None:
        raise unclear


def _judge(solver: Solver, checks: Sequence[Check]) -> None:
    """Ask the checks whose sizes are numbers."""
    for check in checks:
        sizes = solver.values(check.dims)
        if all(type(size) is int for size in sizes):
            solver.owner = check.owner
            check.judge(sizes)


class _Component:
    """Unknowns that hang together, and everything that is known about them."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self.unknowns: list[Unknown] = []
        self.relations: list[Equation | Product] = []
        self.minimums: list[tuple[Any, int]] = []
        self.checks: list[Check] = []
        self.multiples: list[Multiple] = []
        self.solutions: list[dict[Unknown, Any]] = []

    def solve(self) -> None:
        solver = self.solver
        self.numbers = {variable: i for i, variable in enumerate(self.unknowns)}
        facts, self.has_symbols = self._facts()
        self.domains = Domains(len(self.unknowns) + self.auxiliary, facts, solver.budget)
        try:
            self._narrow_and_try()
            if not self.solutions:
                raise self._no_solution()
        except Exhausted as spent:
            raise Exhausted(spent.limit, self.unknowns[0]) from None
        first = self.solutions[0]
        for other in self.solutions[1:]:
            variable = next(v for v in self.unknowns if first[v] != other[v])
            raise Several(variable, tuple(sorted((first[variable], other[variable]))))
        for variable, value in first.items():
            solver.bound[variable] = value
            solver.causes[variable] = variable.owner

    # -- facts in whole numbers ----------------------------------------------------------------

    def _linear(self, dim: Any) -> Linear | None:
        """A size over the component's unknowns; None where a symbol is in it."""
        dim = self.solver.value(dim)
        if type(dim) is int:
            return Linear((), dim)
        if any(type(variable) is not Unknown for variable, _ in dim.terms):
            return None
        return Linear(tuple((self.numbers[variable], c) for variable, c in dim.terms), dim.constant)

    def _facts(self) -> tuple[list[Fact], bool]:
        """Facts without symbols, and whether there are others, which only the solver understands."""
        facts: list[Fact] = []
        has_symbols = False
        for relation in self.relations:
            fact = self._fact(relation)
            has_symbols |= fact is None
            facts += [fact] if fact else []
        for dim, minimum in self.minimums:
            if (linear := self._linear(dim)) is not None:
                positive = Linear(linear.terms, linear.constant - minimum)
                facts.append(Sum(positive, None, (dim, minimum)))
        self.auxiliary = 0  # unknowns that stand for sums, so that their values can be tried
        for dim, number, _ in self.multiples:
            if (linear := self._linear(dim)) is None:
                continue
            if len(linear.terms) > 1:
                i = len(self.unknowns) + self.auxiliary
                self.auxiliary += 1
                facts.append(Sum(Linear((*linear.terms, (i, -1)), linear.constant)))
                linear = Linear(((i, 1),), 0)
            facts.append(Sum(linear, number))
        for check in self.checks:
            linears = tuple(map(self._linear, check.dims))
            if None not in linears:
                facts.append(Rule(linears, check.judge, check))  # type: ignore[arg-type]
        return facts, has_symbols

    def _fact(self, relation: Equation | Product) -> Fact | None:
        if isinstance(relation, Equation):
            difference = self._linear(self.solver.value(relation.left) - self.solver.value(relation.right))
            return None if difference is None else Sum(difference, 0, relation)
        factors = tuple(map(self._linear, relation.factors))
        total = self._linear(relation.total)
        if total is None or None in factors:
            return None
        return ProductFact(factors, total, relation)  # type: ignore[arg-type]

    # -- trying values -------------------------------------------------------------------------

    def _narrow_and_try(self) -> None:
        try:
            self.domains.narrow()
        except Empty:
            return
        free = [
            v for v, domain in zip(self.unknowns, self.domains.values, strict=False) if not is_single(domain)
        ]
        if len(free) > MOST_UNKNOWNS:
            raise Undetermined(free[0], "too many sizes hang on it to try them all")
        try:
            self._descend()
        except Empty:  # where there was nothing to choose
            return

    def _descend(self) -> None:
        """Add the solutions below here, until there are two; :class:`Empty` where what is known breaks a fact."""
        domains = self.domains
        variable = _narrowest(domains.values)
        if variable is None:
            self._add_solution()
            return
        before = list(domains.values)
        for value in before[variable]:
            try:
                domains.assume(variable, value)
                self._descend()
            except Empty:
                pass
            domains.values = list(before)
            if len(self.solutions) > 1:
                return

    def _add_solution(self) -> None:
        """Every unknown that facts in whole numbers bound has one value; what symbols say of the rest."""
        domains = self.domains
        for fact in domains.facts:
            domains.ask(fact)
        values = {v: d[0] for v, d in zip(self.unknowns, domains.values, strict=False) if is_single(d)}
        if self.has_symbols:
            try:
                values = self._with_symbols(values)
            except (Clash, Conflict):
                return
        free = [v for v in self.unknowns if v not in values]
        if free:
            raise Undetermined(free[0])
        self.solutions.append(values)

    def _with_symbols(self, values: dict[Unknown, int]) -> dict[Unknown, Any]:
        solver = self.solver
        solver.begin()
        try:
            for variable, value in values.items():
                if variable not in solver.bound:
                    solver.assume(variable, value)
            self._propagate()
            _judge(solver, self.checks)
            return {v: solver.value(solver.bound[v]) for v in self.unknowns if v in solver.bound}
        finally:
            solver.undo(0)
            solver.end()

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
                raise Impossible(value, minimum, f"a size would have to be {value}")

    # -- the story of a failure ----------------------------------------------------------------

    def _no_solution(self) -> NoSolution:
        """What the first values break, of those that bounds alone leave."""
        facts = [fact for fact in self.domains.facts if not isinstance(fact, Sum) or fact.source]
        solver, domains = (
            self.solver,
            Domains(len(self.unknowns) + self.auxiliary, facts, self.solver.budget, False),
        )
        solver.begin()
        try:
            self._propagate()
            for fact in facts:
                domains.ask(fact)
            free = [i for i, v in enumerate(self.unknowns) if v not in solver.bound]
            while free:
                i = min(free, key=lambda i: count(domains.values[i]))
                value = domains.values[i][0]
                solver.assume(self.unknowns[i], value)
                self._propagate()
                _judge(solver, self.checks)
                domains.assume(i, value)
                free = [i for i in free if self.unknowns[i] not in solver.bound]
        except (Clash, Conflict) as failure:
            return NoSolution(self.unknowns, failure, solver.owner)
        except Empty as empty:
            return NoSolution(self.unknowns, *self._what_it_says(empty))
        finally:
            solver.undo(0)
            solver.end()
        return NoSolution(self.unknowns, Impossible(0, 0, "no values of them agree"), solver.owner)

    def _what_it_says(self, empty: Empty) -> tuple[Clash | Conflict, int]:
        source = getattr(empty.fact, "source", None)
        source = getattr(source, "source", source)  # a product that has become a sum
        if isinstance(source, Check):
            assert empty.conflict is not None
            return empty.conflict, source.owner
        if isinstance(source, Equation):
            return Clash(source.left, source.right), source.owner
        if isinstance(source, Product):
            return Impossible(source.total, source.total, "no sizes have this product"), source.owner
        dim, minimum = source or (0, 1)  # every other sum is a minimum
        return Impossible(
            dim, minimum, f"{self.solver.value(dim)} would have to be at least {minimum}"
        ), self.solver.owner


def _narrowest(values: Sequence[Domain]) -> int | None:
    """The unknown with the fewest values, of those with more than one and not without end."""
    best, fewest = None, 0
    for i, domain in enumerate(values):
        if not is_single(domain) and highest(domain) is not None:
            number = count(domain)
            if best is None or number < fewest:
                best, fewest = i, number
    return best


def _components(solver: Solver, checks: Sequence[Check], multiples: Sequence[Multiple]) -> list[_Component]:
    """Group unknowns by the relations, positivity facts and checks that mention several of them."""
    parent: dict[Unknown, Unknown] = {}

    def find(variable: Unknown) -> Unknown:
        while parent[variable] is not variable:
            parent[variable] = parent[parent[variable]]
            variable = parent[variable]
        return variable

    def unknowns_in(dims: Iterable[Any]) -> list[Unknown]:
        unknowns = [
            v for dim in map(solver.value, dims) if type(dim) is not int for v, _ in dim.terms
            if type(v) is Unknown
        ]  # fmt: skip
        solver.budget.spend(max(0, len(unknowns) - 1))
        return unknowns

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
            raise Impossible(value, minimum, f"a size would have to be {value}")
        facts.append((unknowns_in([dim]), "minimums", (dim, minimum)))
    facts += [(unknowns_in(check.dims), "checks", check) for check in checks]
    facts += [(unknowns_in([multiple.dim]), "multiples", multiple) for multiple in multiples]
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
