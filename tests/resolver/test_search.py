"""Sizes that are not given: what the search finds, against plain enumeration, and what it may spend."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import isomorph as iso
from isomorph.limits import DEFAULTS
from isomorph.operators.catalogue import all_operators
from isomorph.operators.declare import Conflict
from isomorph.resolver import state
from isomorph.resolver.budget import Budget
from isomorph.resolver.domains import Domains, Empty, Linear, Product, Sum, is_single

BUDGET = DEFAULTS["max_search_steps"]
DIVISIBILITY = "p = attention(linear(x), 10007)\nq = linear(x)\nconcat(p, q, axis=2)"


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[Budget]:
    """The budget of every resolution, in order."""
    kept: list[Budget] = []

    class Kept(Budget):
        def __init__(self, limit: int) -> None:
            super().__init__(limit)
            kept.append(self)

    monkeypatch.setattr(state, "Budget", Kept)
    return kept


def outcome(text: str, start: Any, output: Any, **more: Any) -> iso.Plan | iso.IsomorphError:
    try:
        return iso.resolve(text, input=start, output=output, **more)
    except iso.IsomorphError as error:
        return error


# -- divisibility --------------------------------------------------------------------------------


def test_divisibility_is_known_before_values_are_tried(budgets: list[Budget]) -> None:
    """p is a multiple of 10007 and below 20000, so it is 10007, and q is 20000 - 10007 = 9993."""
    plan = iso.resolve(DIVISIBILITY, input=("B", 5, 8), output=("B", 5, 20000))
    assert [node.operator.argument_values.get("out_features") for node in plan.nodes] == [
        10007,
        None,
        9993,
        None,
    ]
    assert budgets[0].spent < 500


def test_copies_of_a_hard_part_share_one_budget(budgets: list[Budget]) -> None:
    copy = "p{0} = attention(linear(x), 10007)\nq{0} = linear(x)\ny{0} = linear(concat(p{0}, q{0}, axis=2), 4, in_features=20000)\n"
    text = "".join(copy.format(i) for i in range(20)) + f"concat({', '.join(f'y{i}' for i in range(20))})"
    plan = iso.resolve(text, input=("B", 5, 8), output=("B", 100, 4))
    assert sum(node.operator.argument_values.get("out_features") == 9993 for node in plan.nodes) == 20
    assert budgets[0].spent < 20_000


@pytest.mark.parametrize(
    ("text", "start", "output", "width"),
    [
        # heads=6 and rope make D a multiple of 12; 12 + 1 <= 20 < 24 + 1
        ("p = attention(linear(x), 6, rope=True)\nconcat(p, linear(x), axis=2)", ("B", 5, 8), ("B", 5, 20), 12),
        # D is even; two of them and 3 make 7
        ("p = sinusoidal_pos_embed(linear(x))\nconcat(p, p, linear(x, 3), axis=2)", ("B", 5, 8), ("B", 5, 7), 2),
        # 3 * a + 5 * b = 19 with a a multiple of 3: a = 3, b = 2 (a = 6 would need 5 * b = 1)
        (
            "a = attention(linear(x), 3)\nb = linear(x)\nconcat(a, a, a, b, b, b, b, b, axis=2)",
            ("B", 5, 8), ("B", 5, 19), 3,
        ),
        # 4 * 64 + 1 + 1 + 10007 = 10265, the least of each; the width of d is what the others leave
        (
            "a = attention(linear(x), 64)\nb = linear(x)\nc = linear(x)\nd = attention(linear(x), 10007)\n"
            "concat(a, a, a, a, b, c, d, axis=2)",
            ("B", 5, 8), ("B", 5, 10265), 64,
        ),
        # b is 10007, 20014 or 30021, and 4 * a + 3 * c + 3 * d, a being a multiple of 3, is one: 30402 - b = 381
        # with b = 30021; that is 12 + 303 + 66
        (
            "a = attention(linear(x), 3)\nb = attention(linear(x), 10007)\nc = attention(linear(x), 101)\n"
            "d = attention(linear(x), 11)\nconcat(a, a, a, a, b, c, c, c, d, d, d, axis=2)",
            ("B", 5, 8), ("B", 5, 30402), 3,
        ),
    ],
)  # fmt: skip
def test_multiples(text: str, start: Any, output: Any, width: int) -> None:
    plan = iso.resolve(text, input=start, output=output)
    assert plan.values[1].shape[-1] == width


def test_what_an_operator_calls_multiples_its_check_demands() -> None:
    """A size off by one is refused by ``check``; the multiple itself is not."""
    seen = set()
    for kind in all_operators().values():
        given = {name: 3 for name, spec in kind.arguments.items() if spec.required and spec.type is int}
        if any(spec.required and spec.type is not int for spec in kind.arguments.values()):
            continue
        arguments = kind.defaults | given
        for size, number in kind.provisional(arguments).multiples().items():
            seen.add(kind.name)
            sizes: Any = dict.fromkeys(kind.sizing, number)
            kind.bind(arguments, sizes)
            with pytest.raises(Conflict):
                kind.bind(arguments, sizes | {size: number + 1})
    assert seen >= {
        "attention",
        "cross_attention",
        "transformer_block",
        "encoder_block",
        "sinusoidal_pos_embed",
    }


# -- the budget ----------------------------------------------------------------------------------

# a0 * b0 + a1 * b1 + a2 * b2 = 9973: products of two open widths each, side by side
PRODUCTS = "\n".join(
    f"a{i} = linear(x)\nb{i} = transpose(a{i}, 1, 2)\nc{i} = flatten(linear(b{i}))" for i in range(3)
)
PRODUCTS += "\nconcat(c0, c1, c2)"


def test_a_spent_budget_is_told() -> None:
    error = outcome(PRODUCTS, ("B", 5, 8), ("B", 9973), limits={"max_search_steps": 50})
    assert str(error) == (
        "E_RESOURCE: the sizes that are not given, out_features of n0 (linear) among them, take more than 50 steps "
        "to work out (max_search_steps)\n"
        "  <definition>:1:6\n"
        "  1 | a0 = linear(x)\n"
        "    |      ^\n"
        "  give it, as in linear(64)\n"
        '  or raise the limit: limits={"max_search_steps": ...}'
    )


def test_sums_of_sums_are_charged_where_they_stand() -> None:
    """The n-th sum has n terms: 9,000 of them would be 40 million."""
    error = outcome("h = linear(x)\n" + "h = concat(h, linear(x))\n" * 9000, ("B", 8), ("B", 100_000))
    assert isinstance(error, iso.IsomorphError) and error.code == "E_RESOURCE" and error.location is not None
    assert (
        error.message
        == "the sizes that are not given take more than 200,000 steps to work out (max_search_steps)"
    )


def test_long_ordinary_texts_stay_far_from_the_budget(budgets: list[Budget]) -> None:
    text = "h = linear(8)\n" + "h = add(h, linear())\n" * 2000
    assert len(iso.resolve(text, input=("B", 8)).nodes) == 4001
    assert budgets[0].spent < BUDGET // 32  # a tenth of max_nodes, and a fourth of the tenth


def test_saved_plans_and_models_have_the_same_budget(budgets: list[Budget], tmp_path: Any) -> None:
    plan = iso.resolve(
        DIVISIBILITY, input=("B", 5, 8), output=("B", 5, 20000), limits={"max_search_steps": 5000}
    )
    assert iso.Plan.from_json(plan.to_json()) == plan
    with pytest.raises(iso.IsomorphError, match="E_RESOURCE"):
        iso.Plan.from_json(plan.to_json(), limits={"max_search_steps": 10})
    assert [budget.limit for budget in budgets] == [5000, BUDGET, 10]


# -- domains against enumeration -------------------------------------------------------------------

BOX = 9


def random_facts(draw: random.Random) -> list[Any]:
    """Facts over three unknowns from 1 to BOX."""
    facts: list[Any] = [Sum(Linear(((i, -1),), BOX), None) for i in range(3)]

    def linear(most: int, low: int = 1) -> Linear:
        indices = draw.sample(range(3), draw.randint(low, most))
        return Linear(
            tuple((i, draw.choice([-3, -2, -1, 1, 1, 2, 3, 4])) for i in indices), draw.randint(-12, 12)
        )

    def factor() -> Linear:
        return Linear(((draw.randrange(3), draw.choice([1, 1, 1, 2, 3])),), draw.choice([0, 0, 0, 1, 2]))

    for _ in range(draw.randint(1, 3)):
        kind = draw.randrange(4)
        if kind == 0:
            facts.append(Sum(linear(3), draw.choice([0, 0, None, 2, 3, 5])))
        elif kind == 1:
            facts.append(Sum(linear(1), draw.choice([2, 3, 4])))
        else:
            total = Linear((), draw.choice([6, 12, 24, 30, 36, 7])) if draw.random() < 0.6 else factor()
            facts.append(Product(tuple(factor() for _ in range(draw.randint(2, 3))), total))
    return facts


def holds(fact: Any, point: tuple[int, ...]) -> bool:
    def at(linear: Linear) -> int:
        return linear.constant + sum(c * point[i] for i, c in linear.terms)

    if isinstance(fact, Sum):
        value = at(fact.linear)
        if fact.modulus:
            return value >= fact.modulus and value % fact.modulus == 0
        return value >= 0 if fact.modulus is None else value == 0
    product = 1
    for factor in fact.factors:
        product *= at(factor)
    return product == at(fact.total)


def all_solutions(domains: Domains) -> Iterator[tuple[int, ...]]:
    open_ones = [i for i, domain in enumerate(domains.values) if not is_single(domain)]
    if not open_ones:
        try:
            for fact in domains.facts:
                domains.ask(fact)
        except Empty:
            return
        yield tuple(domain[0] for domain in domains.values)
        return
    held = list(domains.values)
    for value in held[open_ones[-1]]:
        try:
            domains.assume(open_ones[-1], value)
            yield from all_solutions(domains)
        except Empty:
            pass
        domains.values = list(held)


@pytest.mark.trial(sample=60, whole=20_000)
def test_narrowing_loses_no_solution(trial: Any) -> None:
    for k in range(trial.tries):
        draw = random.Random(f"{trial.seed}/{k}")
        facts = random_facts(draw)
        points = itertools.product(range(1, BOX + 1), repeat=3)
        expected = [point for point in points if all(holds(fact, point) for fact in facts)]
        for by_divisibility in (True, False):
            domains = Domains(3, facts, Budget(10**9), by_divisibility)
            try:
                domains.narrow()
            except Empty:
                assert not expected, (k, expected)
                continue
            assert all(
                x in domain for point in expected for x, domain in zip(point, domains.values, strict=True)
            ), k
            assert sorted(all_solutions(domains)) == expected, k


# -- texts against enumeration ---------------------------------------------------------------------


@dataclass
class Part:
    """``[B, T, D]`` of an input ``[B, T0, D0]``: ``wide`` has any D, ``shaped`` any T * D = T0 * D0."""

    kind: str
    heads: int
    times: int
    even: bool

    def line(self, name: str) -> str:
        made = "linear(x)" if self.kind == "wide" else "reshape(x)"
        if self.kind == "shaped" or self.heads > 1:
            made = f"attention({made}, {self.heads})"
        return f"{name} = {f'sinusoidal_pos_embed({made})' if self.even else made}"

    def sizes(self, start: tuple[int, int], largest: int) -> list[tuple[int, int]]:
        T, D = start
        pairs = [(T, d) for d in range(1, largest + 1)]
        if self.kind == "shaped":
            pairs = [(t, T * D // t) for t in range(1, T * D + 1) if T * D % t == 0]
        return [(t, d) for t, d in pairs if d % self.heads == 0 and not (self.even and d % 2)]


def parts_case(draw: random.Random) -> tuple[str, tuple[int, int], tuple[int, int], set[Any]]:
    """A text, its input and output sizes, and all solutions by enumeration."""
    start = draw.choice([(2, 6), (3, 4), (1, 12), (4, 6)])
    axis = draw.choice([1, 2, 2, 2])
    parts = [
        Part(draw.choice(["wide", "wide", "shaped"]), draw.choice([1, 1, 2, 3, 4, 5]), draw.randint(1, 3), draw.random() < 0.2)
        for _ in range(draw.randint(1, 3))
    ]  # fmt: skip
    names = [f"t{i}" for i, part in enumerate(parts) for _ in range(part.times)]
    text = "\n".join(part.line(f"t{i}") for i, part in enumerate(parts))
    text += f"\nconcat({', '.join(names)}, axis={axis})" if len(names) > 1 else ""
    output = draw.choice([start[0], draw.randint(1, 9)]), draw.randint(1, 24)
    some = [draw.choice(part.sizes(start, 6) or [(1, 1)]) for part in parts]
    if draw.random() < 0.8:  # sizes that some choice gives
        total = sum(pair[axis - 1] * part.times for pair, part in zip(some, parts, strict=True))
        output = (some[0][0], total) if axis == 2 else (total, some[0][1])
    solutions = set()
    for choice in itertools.product(*(part.sizes(start, max(output)) for part in parts)):
        pairs = [pair for pair, part in zip(choice, parts, strict=True) for _ in range(part.times)]
        joined, kept = {pair[axis - 1] for pair in pairs}, {pair[2 - axis] for pair in pairs}
        assert joined
        total = sum(pair[axis - 1] for pair in pairs)
        if kept == {output[2 - axis]} and total == output[axis - 1]:
            solutions.add(choice)
    return text, start, output, solutions


@pytest.mark.trial(sample=100, whole=6000)
def test_heads_sums_and_products_agree_with_enumeration(trial: Any) -> None:
    """One solution is found, several are E_AMBIGUOUS, none is E_CONSTRAINT."""
    counts = [0, 0, 0]
    for k in range(trial.tries):
        text, start, output, solutions = parts_case(random.Random(f"{trial.seed}/{k}"))
        counts[min(len(solutions), 2)] += 1
        result = outcome(text, ("B", *start), ("B", *output))
        story = f"{text}\n{start} -> {output}: {sorted(solutions)[:4]}\n{result}"
        if isinstance(result, iso.IsomorphError):
            assert result.code == ("E_AMBIGUOUS" if solutions else "E_CONSTRAINT") and len(solutions) != 1, (
                story
            )
        else:
            assert len(solutions) == 1, story
            (choice,) = solutions
            last = [node for node in result.nodes if node.operator.name != "concat"]
            assert {result.values[node.outputs[0]].shape[1:] for node in last} >= set(choice), story
    assert min(counts) > trial.tries // 20, counts


# -- the worst text --------------------------------------------------------------------------------


Gene = tuple[int, int, int, int]
"""What a statement does, what it reads, and a number, each taken modulo the choices there are."""
SIZES = (1, 5, 7, 720_720, 1_000_003, 99_991, 30_030, 2**31 - 1, 20_000, 64, 9973, 123)
HEADS = (1, 2, 3, 7, 101, 10007, 64)


def text_of(genes: list[Gene]) -> str:
    """Statements over tensors of known rank, so that most of them fit; all that nothing reads is joined."""
    ranks, read, lines = {"x": 3}, set(), []

    def take(number: int, rank: int | None = None) -> str:
        names = [name for name in ranks if rank is None or ranks[name] == rank]
        name = names[-1 - number % min(len(names), 6)]
        read.add(name)
        return name

    for k, (what, first, second, number) in enumerate(genes):
        rank = 3 if what % 5 or 2 not in ranks.values() else 2
        one, other, h = take(first, rank), take(second, rank), f"h{k}"
        axis, copies = 1 + number % (rank - 1), ", ".join([one] * (1 + number % 6))
        calls = [f"linear({one})", f"concat({copies}, {other}, axis={axis})", f"add({one}, {other})"]
        if rank == 3:
            calls += [
                f"attention(linear({one}), {HEADS[number % len(HEADS)]})",
                f"transpose({one}, 1, 2)",
                f"transpose(linear(transpose(linear({one}), 1, 2)), 1, 2)",
                f"flatten({one})",
                f"attention(reshape({one}), {HEADS[number % len(HEADS)]})",
                f"patch_embed(reshape({one}, {1 + number % 3}), patch_size={1 + number % 4})",
                f"conv1d({one}, kernel_size=2, stride={1 + number % 4})",
            ]
        else:
            calls += [f"attention(reshape({one}), {HEADS[number % len(HEADS)]})", f"linear(linear({one}))"]
        ranks[h] = 2 if rank == 2 else 3
        choice = what % (len(calls) + 1)
        if choice == len(calls):
            lines.append(f"{h}, g{k} = split({one}, dim={axis})")
            ranks[f"g{k}"] = rank
            continue
        lines.append(f"{h} = {calls[choice]}")
        if "flatten" in calls[choice]:
            ranks[h] = 2
        elif "attention" in calls[choice]:
            ranks[h] = 3
    loose = [name for name in ranks if name not in read]
    flat = [name if ranks[name] == 2 else f"flatten({name})" for name in loose]
    return "\n".join(
        [
            *lines,
            f"concat({', '.join(flat)})"
            if len(flat) > 1
            else flat[0]
            if "(" in flat[0]
            else f"relu({flat[0]})",
        ]
    )


class Texts:
    """Random short texts over open sizes with their contracts, and small changes of them."""

    def __init__(self, seed: str) -> None:
        self.draw = random.Random(seed)

    def gene(self) -> Gene:
        return tuple(self.draw.randrange(1000) for _ in range(4))  # type: ignore[return-value]

    def start(self) -> tuple[list[Gene], Any, Any]:
        return [self.gene() for _ in range(self.draw.randint(2, 12))], *self.contracts()

    def contracts(self) -> tuple[Any, Any]:
        start = self.draw.choice([(5, 8), (12, 30), ("T", 8), (1, 720_720), (97, 8)])
        return ("B", *start), ("B", self.draw.choice(SIZES))

    def changed(self, genes: list[Gene], start: Any, output: Any) -> tuple[list[Gene], Any, Any]:
        genes = list(genes)
        for _ in range(self.draw.randint(1, 3)):
            k = self.draw.randrange(len(genes) + 1)
            if k == len(genes) or self.draw.random() < 0.15:
                genes.insert(k, self.gene())
            elif self.draw.random() < 0.15 and len(genes) > 1:
                del genes[k]
            else:
                gene = list(genes[k])
                gene[self.draw.randrange(4)] = self.draw.randrange(1000)
                genes[k] = tuple(gene)  # type: ignore[assignment]
        if self.draw.random() < 0.2:
            start, output = self.contracts()
        return genes[:18], start, output


def climb(seed: str, steps: int, budgets: list[Budget]) -> tuple[int, str, Any, Any, str]:
    """The text that spends most of those that small changes lead to: steps, text, contracts, outcome."""
    texts = Texts(seed)

    def judged(genes: list[Gene], start: Any, output: Any) -> tuple[int, str]:
        budgets.clear()
        result = outcome(text_of(genes), start, output)
        assert isinstance(result, iso.Plan | iso.IsomorphError)
        return budgets[0].spent if budgets else 0, getattr(result, "code", "a plan")

    here = texts.start()
    most, end = judged(*here)
    for _ in range(steps):
        other = texts.changed(*here)
        spent, code = judged(*other)
        if spent >= most:
            most, end, here = spent, code, other
        if most > BUDGET:
            break
    return most, text_of(here[0]), here[1], here[2], end


@pytest.mark.trial(sample=4, whole=150)
def test_no_short_text_spends_more_than_the_budget(trial: Any, budgets: list[Budget]) -> None:
    """Texts are made ever more expensive; all end in a plan or an error, and none goes beyond the budget."""
    worst = max(climb(f"{trial.seed}/{k}", 40, budgets) for k in range(trial.tries))
    steps, text, start, output, end = worst
    print(f"{steps:,} steps, then {end}: {start} -> {output}\n{text}")
    assert len(text) < 1200
    assert steps <= BUDGET + 10_000  # the last step is counted before it is refused


# -- what else grows with a text -------------------------------------------------------------------


def test_one_wide_node_does_not_widen_every_row() -> None:
    """1,000 inputs of 14 characters stand in one row; padding 3,000 rows to them would take 42 MB."""
    names = [f"h{i}" for i in range(1000)]
    text = (
        "".join(f"{name} = relu(x)\n" for name in names) + f"concat({', '.join(names)})\n" + "relu()\n" * 2000
    )
    assert len(str(iso.resolve(text, input=("B", 8)))) < 1_000_000


def test_a_mistyped_name_is_compared_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full comparison takes quadratic time in a name's length, so that 10,000 long names would take seconds."""
    import difflib

    compared: list[int] = []
    inner = difflib.get_close_matches
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda w, p, **k: (compared.append(len(p)), inner(w, p, **k))[1]
    )
    text = "".join(f"{'ab' * 40}{i:04} = relu(x)\n" for i in range(3000)) + f"relu({'ab' * 40}12a4)"
    error = outcome(text, ("B", 8), None)
    assert isinstance(error, iso.IsomorphError) and error.hints[0].startswith(f"did you mean {'ab' * 40}")
    lines = "".join(f'transformer_block(2, name="block_{i}")\n' for i in range(300))
    error = outcome(lines + 'linear(4, tie={"weight": "block_7.attn.q_proj.weigth"})', ("B", 4, 8), None)
    assert isinstance(error, iso.IsomorphError) and error.hints[0].startswith(
        "did you mean block_7.attn.q_proj.weight"
    )
    error = outcome(lines + 'linear(4, tie={"weight": "blok_7.attn.q_proj.weight"})', ("B", 4, 8), None)
    assert isinstance(error, iso.IsomorphError) and "block_7.attn.q_proj.weight" in error.hints[0]
    assert max(compared) <= 200
