"""The values that unknown sizes may still have, and what each fact leaves of them.

Everything here is about whole numbers: unknowns are indices into a list of domains, and a fact narrows the
domains of its unknowns by bounds, by divisibility and by divisors. Narrowing removes no value that a solution
has, and a fact is decided once each of its unknowns has one value.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import gcd, isqrt, prod
from typing import Any, NamedTuple

from isomorph.operators.declare import Conflict
from isomorph.resolver.budget import Budget

UNBOUNDED = 1 << 200
"""Where a range ends that nothing bounds; no size comes near it."""
LARGEST_FACTORED = 1 << 34
"""Products beyond this are not factored."""
ROUNDS = 12
"""How often facts are asked again, on average, before what is left is tried value by value."""
COST_OF_A_PRODUCT = 4
"""Steps that a term of a product counts for."""
COST_OF_A_RULE = 24
"""Steps that an operator's own check counts for."""
STEPS_PER_DIVISION = 1 / 32
"""Trial division by one number is so much cheaper than a step."""

Domain = range | tuple[int, ...]
"""Possible values, ascending: an arithmetic progression, or a list."""
ANY: Domain = range(1, UNBOUNDED)


class Empty(Exception):
    """A fact leaves an unknown no value; ``conflict`` is what an operator's check said."""

    def __init__(self, fact: Any, conflict: Conflict | None = None) -> None:
        super().__init__(fact)
        self.fact, self.conflict = fact, conflict


def is_single(domain: Domain) -> bool:
    """Whether one value is left."""
    return domain[0] == domain[-1]


def highest(domain: Domain) -> int | None:
    """The largest value; None where nothing bounds it."""
    return None if isinstance(domain, range) and domain.stop == UNBOUNDED else domain[-1]


def count(domain: Domain) -> int:
    """How many values (``len`` refuses ranges as long as these)."""
    return len(domain) if isinstance(domain, tuple) else (domain[-1] - domain[0]) // domain.step + 1


def _step(domain: Domain) -> int:
    """A number that all differences between values are multiples of; 0 where there is one value."""
    if is_single(domain):
        return 0
    return domain.step if isinstance(domain, range) else gcd(*(value - domain[0] for value in domain[:64]))


class Linear(NamedTuple):
    """``sum(coefficient * unknown) + constant``, with unknowns by index."""

    terms: tuple[tuple[int, int], ...]
    constant: int

    def bounds(self, domains: Sequence[Domain]) -> tuple[int | None, int | None]:
        """The least and the largest value; None where there is none."""
        low: int | None = self.constant
        high: int | None = self.constant
        for i, c in self.terms:
            first, last = _span(c, domains[i])
            low = None if low is None or first is None else low + first
            high = None if high is None or last is None else high + last
        return low, high

    def divisor(self, domains: Sequence[Domain]) -> int:
        """A number that divides every value."""
        base, steps = self.constant, 0
        for i, c in self.terms:
            base, steps = base + c * domains[i][0], gcd(steps, c * _step(domains[i]))
        return gcd(base, steps)

    def at(self, domains: Sequence[Domain]) -> int:
        """The value where every unknown has its first one."""
        return self.constant + sum(c * domains[i][0] for i, c in self.terms)


def _span(c: int, domain: Domain) -> tuple[int | None, int | None]:
    """The least and the largest value of a term."""
    last = highest(domain)
    first, last = c * domain[0], None if last is None else c * last
    return (first, last) if c > 0 else (last, first)


class Sum:
    """A linear expression that is zero, or a multiple of a number, or not negative.

    Args:
        linear: the expression.
        modulus: 0 for zero, n for a multiple of n that is not below n, None for not negative.
        source: what states it, for the story of an error.
    """

    __slots__ = ("linear", "modulus", "source")

    def __init__(self, linear: Linear, modulus: int | None = 0, source: Any = None) -> None:
        self.linear, self.modulus, self.source = linear, modulus, source

    def linears(self) -> tuple[Linear, ...]:
        """The expressions that it speaks of."""
        return (self.linear,)

    def narrow(self, domains: Domains) -> None:
        """Take away what cannot be; :class:`Empty` when nothing is left."""
        values = domains.values
        if all(is_single(values[i]) for i, _ in self.linear.terms):
            value = self.linear.at(values)
            if not self._allows(value):
                raise Empty(self)
            return
        self._narrow_bounds(domains)
        if self.modulus is not None and domains.by_divisibility:
            self._narrow_multiples(domains)

    def _allows(self, value: int) -> bool:
        if not self.modulus:
            return value >= 0 if self.modulus is None else value == 0
        return value >= self.modulus and value % self.modulus == 0

    def _narrow_bounds(self, domains: Domains) -> None:
        """``c * x = value - rest``: what bounds the value and the rest bounds the term."""
        terms, values = self.linear.terms, domains.values
        spans = [_span(c, values[i]) for i, c in terms]
        low = self.linear.constant + sum(first for first, _ in spans if first is not None)
        high = self.linear.constant + sum(last for _, last in spans if last is not None)
        open_lows = sum(first is None for first, _ in spans)
        open_highs = sum(last is None for _, last in spans)
        smallest, largest = 0, 0 if self.modulus == 0 else None
        if self.modulus:
            n = self.modulus
            smallest = max(n, n if open_lows else -(-low // n) * n)
            largest = None if open_highs else high // n * n
        for (i, c), (first, last) in zip(terms, spans, strict=True):
            least = most = None
            if open_highs == (last is None):
                least = smallest + (last or 0) - high
            if largest is not None and open_lows == (first is None):
                most = largest + (first or 0) - low
            domains.clip(i, c, 0, least, most, self)

    def _narrow_multiples(self, domains: Domains) -> None:
        """``c * x = -rest (mod g)``, where all the rest's values are equal modulo g."""
        terms = self.linear.terms
        base = self.linear.at(domains.values)
        firsts = [domains.values[i][0] for i, _ in terms]
        steps = [c * _step(domains.values[i]) for i, c in terms]
        before = [self.modulus or 0]
        for step in steps:
            before.append(gcd(before[-1], step))
        after = 0
        for k in range(len(terms) - 1, -1, -1):
            i, c = terms[k]
            g, rest = gcd(before[k], after), base - c * firsts[k]
            after = gcd(after, steps[k])
            if g == 1:
                continue
            common = gcd(c, g)
            if rest % common:
                raise Empty(self)
            if g == 0:
                domains.clip(i, c, rest, 0, 0, self)
            elif g > common:
                m = g // common
                domains.keep_congruent(i, m, -rest // common * pow(c // common, -1, m) % m, self)


class Product:
    """Linear expressions, each at least 1, whose product is another one."""

    __slots__ = ("factors", "source", "total")

    def __init__(self, factors: tuple[Linear, ...], total: Linear, source: Any = None) -> None:
        self.factors, self.total, self.source = factors, total, source

    def linears(self) -> tuple[Linear, ...]:
        """The expressions that it speaks of."""
        return (*self.factors, self.total)

    def narrow(self, domains: Domains) -> None:
        """Take away what cannot be; :class:`Empty` when nothing is left."""
        values = domains.values
        spans = [(max(low or 1, 1), high) for low, high in (f.bounds(values) for f in self.factors)]
        if any(high is not None and high < low for low, high in spans):
            raise Empty(self)
        open_factors = [k for k, (low, high) in enumerate(spans) if low != high]
        known = prod(low for low, high in spans if low == high)
        if len(open_factors) <= 1:
            factor = self.factors[open_factors[0]] if open_factors else Linear((), 1)
            Sum(_difference(factor, known, self.total), 0, self).narrow(domains)
            return
        self._narrow_bounds(domains, spans)
        if not domains.by_divisibility:
            return
        common = prod(factor.divisor(values) for factor in self.factors)
        Sum(self.total, common, self).narrow(domains)
        total, high = self.total.bounds(values)
        if total == high and total is not None and total <= LARGEST_FACTORED:
            for k in open_factors:
                if len(self.factors[k].terms) == 1:
                    domains.keep_divisors(self.factors[k], total // known, self)

    def _narrow_bounds(self, domains: Domains, spans: list[tuple[int, int | None]]) -> None:
        low = prod(low for low, _ in spans)
        highs = [high for _, high in spans if high is not None]
        if len(self.total.terms) == 1:
            (i, c), constant = self.total.terms[0], self.total.constant
            domains.clip(i, c, constant, low, prod(highs) if len(highs) == len(spans) else None, self)
        total_low, total_high = self.total.bounds(domains.values)
        for factor, (own, high) in zip(self.factors, spans, strict=True):
            most = None if total_high is None else total_high // (low // own)
            least = 1
            if total_low is not None and len(highs) - (high is not None) == len(spans) - 1:
                others = prod(highs) // (high or 1)
                least = -(-max(total_low, 1) // others)
            if len(factor.terms) == 1:
                (i, c), constant = factor.terms[0], factor.constant
                domains.clip(i, c, constant, least, most, self)
            elif most is not None and most < own:
                raise Empty(self)


class Rule:
    """An operator's own check of sizes, asked once all of them are numbers."""

    __slots__ = ("dims", "judge", "source")

    def __init__(
        self, dims: tuple[Linear, ...], judge: Callable[[tuple[int, ...]], None], source: Any
    ) -> None:
        self.dims, self.judge, self.source = dims, judge, source

    def linears(self) -> tuple[Linear, ...]:
        """The expressions that it speaks of."""
        return self.dims

    def narrow(self, domains: Domains) -> None:
        """Ask the rule, once all of them are numbers; :class:`Empty` when it refuses."""
        values = domains.values
        if all(is_single(values[i]) for dim in self.dims for i, _ in dim.terms):
            domains.budget.spend(COST_OF_A_RULE)
            try:
                self.judge(tuple(dim.at(values) for dim in self.dims))
            except Conflict as conflict:
                raise Empty(self, conflict) from None


Fact = Sum | Product | Rule


def _difference(factor: Linear, times: int, total: Linear) -> Linear:
    """``times * factor - total``."""
    terms = {i: c * times for i, c in factor.terms}
    for i, c in total.terms:
        terms[i] = terms.get(i, 0) - c
    return Linear(tuple((i, c) for i, c in terms.items() if c), factor.constant * times - total.constant)


class Domains:
    """The domains of some unknowns and the facts about them.

    Args:
        number: how many unknowns.
        facts: what is known of them.
        budget: what narrowing them is charged to.
        by_divisibility: whether divisibility narrows as well as bounds do.
    """

    def __init__(
        self, number: int, facts: Iterable[Fact], budget: Budget, by_divisibility: bool = True
    ) -> None:
        self.values: list[Domain] = [ANY] * number
        self.facts, self.budget, self.by_divisibility = tuple(facts), budget, by_divisibility
        self._costs: dict[Fact, int] = {}
        self._watchers: list[list[Fact]] = [[] for _ in range(number)]
        self._divisors: dict[int, list[int]] = {}
        self._waiting: deque[Fact] = deque()
        self._listed: set[Fact] = set()  # what waits
        for fact in self.facts:
            unknowns = [i for linear in fact.linears() for i, _ in linear.terms]
            self._costs[fact] = (COST_OF_A_PRODUCT if isinstance(fact, Product) else 1) * (2 + len(unknowns))
            for i in dict.fromkeys(unknowns):
                self._watchers[i].append(fact)

    def narrow(self, changed: int | None = None) -> None:
        """Ask facts, all or those about one unknown, until none removes anything; :class:`Empty`.

        Bounds that creep up on each other are left after a while: values are tried then.
        """
        self._waiting = deque(self.facts if changed is None else self._watchers[changed])
        self._listed = set(self._waiting)
        for _ in range(ROUNDS * (len(self.facts) + 1)):
            if not self._waiting:
                return
            fact = self._waiting.popleft()
            self._listed.discard(fact)
            self.ask(fact)

    def ask(self, fact: Fact) -> None:
        """Let one fact narrow its unknowns; :class:`Empty` where it leaves none of them a value."""
        self.budget.spend(self._costs[fact])
        fact.narrow(self)

    def assume(self, i: int, value: int) -> None:
        """Leave an unknown one value, and narrow the others."""
        self.budget.spend(1 + len(self.values))  # for the copy that whoever tries values keeps
        self.values[i] = (value,)
        self.narrow(i)

    # -- what facts do -------------------------------------------------------------------------

    def _put(self, i: int, domain: Domain, fact: Fact) -> None:
        if not domain:
            raise Empty(fact)
        if domain != self.values[i]:
            self.values[i] = domain
            for other in self._watchers[i]:
                if other not in self._listed:
                    self._listed.add(other)
                    self._waiting.append(other)

    def clip(self, i: int, c: int, constant: int, least: int | None, most: int | None, fact: Fact) -> None:
        """Keep what makes ``least <= c * x + constant <= most``."""
        if least is not None:
            least -= constant
        if most is not None:
            most -= constant
        if c < 0:
            c, least, most = -c, None if most is None else -most, None if least is None else -least
        domain = self.values[i]
        low = domain[0] if least is None else max(domain[0], -(-least // c))
        last = highest(domain)
        high = last if most is None else most // c if last is None else min(last, most // c)
        if low == domain[0] and high == last:
            return
        if isinstance(domain, range):
            start = domain.start + -(-(low - domain.start) // domain.step) * domain.step
            self._put(i, range(start, UNBOUNDED if high is None else high + 1, domain.step), fact)
        elif high is not None:
            self._put(i, domain[bisect_left(domain, low) : bisect_right(domain, high)], fact)

    def keep_congruent(self, i: int, modulus: int, remainder: int, fact: Fact) -> None:
        """Keep ``x = remainder (mod modulus)``."""
        domain = self.values[i]
        if isinstance(domain, tuple):
            self.budget.spend(len(domain))
            self._put(i, tuple(value for value in domain if value % modulus == remainder), fact)
            return
        common = gcd(domain.step, modulus)
        distance = remainder - domain.start
        if distance % common:
            raise Empty(fact)
        m = modulus // common
        if m > 1:
            turns = distance // common * pow(domain.step // common, -1, m) % m
            start = domain.start + turns * domain.step
            self._put(i, range(start, domain.stop, domain.step * m), fact)

    def keep_divisors(self, factor: Linear, total: int, fact: Fact) -> None:
        """Keep what makes ``c * x + constant`` divide a number."""
        ((i, c),), constant = factor.terms, factor.constant
        domain = self.values[i]
        if count(domain) <= 512:
            candidates: Iterable[int] = domain
            self.budget.spend(count(domain))
        else:
            divisors = self.divisors(total)
            self.budget.spend(len(divisors))
            quotients = ((d - constant) // c for d in divisors if (d - constant) % c == 0)
            candidates = sorted(x for x in quotients if x in domain)
        kept = tuple(x for x in candidates if (f := c * x + constant) > 0 and total % f == 0)
        if isinstance(domain, range) or len(kept) < len(domain):
            self._put(i, kept, fact)

    def divisors(self, number: int) -> list[int]:
        """All divisors, unordered; by trial division, which is charged before it is done."""
        divisors = self._divisors.get(number)
        if divisors is None:
            self.budget.spend(1 + int(isqrt(number) * STEPS_PER_DIVISION))
            divisors = self._divisors[number] = _divisors_of(number)
        return divisors


def _divisors_of(number: int) -> list[int]:
    divisors, rest, candidate = [1], number, 2
    while rest > 1:
        if candidate * candidate > rest:
            candidate = rest
        power, powers = 1, [1]
        while rest % candidate == 0:
            rest //= candidate
            power *= candidate
            powers.append(power)
        if power > 1:
            divisors = [d * p for d in divisors for p in powers]
        candidate += 1 if candidate == 2 else 2
    return divisors
