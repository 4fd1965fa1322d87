"""Erased sizes come back whenever an independent brute-force search finds exactly one solution.

A random legal network is drawn with every size known. Some sizes are erased from its text. A separate
shape evaluator, plain Python over concrete numbers, tries every value for them; the resolver must agree:
one solution is recovered, several are E_AMBIGUOUS or E_UNRESOLVED, none is E_CONSTRAINT.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from math import prod
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import isomorph as iso

LARGEST = 30  # sizes tried by brute force; networks are drawn from far smaller ones
Shape = tuple[int, ...]


class Illegal(Exception):
    """The sizes do not fit."""


def require(condition: bool) -> None:
    if not condition:
        raise Illegal


@dataclass
class Step:
    """One call: ``kind`` of ``inputs`` (indices of tensors; 0 is the input) with integer arguments."""

    kind: str
    inputs: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    erased: bool = False
    outputs: tuple[int, ...] = field(default=())


def evaluate(step: Step, sizes: tuple[int, ...], shapes: dict[int, Shape]) -> list[Shape]:
    """Output shapes (without the batch) of a step, independently of the resolver."""
    x = shapes[step.inputs[0]]
    if step.kind == "linear":
        require(len(x) in (1, 2))
        return [(*x[:-1], sizes[0])]
    if step.kind == "transformer_block":
        require(len(x) == 2 and x[1] % sizes[0] == 0)
        return [x]
    if step.kind == "split":
        require(sizes[0] < x[0])
        return [(sizes[0], *x[1:]), (x[0] - sizes[0], *x[1:])]
    if step.kind == "reshape":
        require(prod(sizes) == prod(x))
        return [sizes]
    if step.kind == "flatten":
        return [(prod(x),)]
    if step.kind == "transpose":
        require(len(x) >= 2)
        return [(x[1], x[0], *x[2:])]
    y = shapes[step.inputs[1]]
    if step.kind == "add":
        require(x == y)
        return [x]
    require(len(x) == len(y))
    if step.kind == "widen":  # along the last axis
        require(x[:-1] == y[:-1])
        return [(*x[:-1], x[-1] + y[-1])]
    assert step.kind == "concat"
    require(x[1:] == y[1:])
    return [(x[0] + y[0], *x[1:])]


def run(steps: list[Step], start: Shape, choices: dict[int, tuple[int, ...]]) -> Shape | None:
    """The final shape with the chosen sizes for erased steps, or None when something does not fit."""
    shapes = {0: start}
    try:
        for i, step in enumerate(steps):
            made = evaluate(step, choices.get(i, step.sizes), shapes)
            shapes.update(zip(step.outputs, made, strict=True))
    except Illegal:
        return None
    return shapes[steps[-1].outputs[0]]


def text_of(steps: list[Step], choices: dict[int, tuple[int, ...]] | None = None) -> str:
    """The definition; erased sizes are left out unless chosen."""
    lines = []
    for i, step in enumerate(steps):
        sizes = (choices or {}).get(i, step.sizes)
        if step.erased and choices is None:
            sizes = sizes[:1] if step.kind == "reshape" else ()
        names = [f"t{index}" if index else "x" for index in step.inputs]
        extra = {"transpose": ["1", "2"], "widen": ["axis=-1"]}.get(step.kind, [])
        operator = "concat" if step.kind == "widen" else step.kind
        call = f"{operator}({', '.join([*names, *map(str, sizes), *extra])})"
        lines.append(f"{', '.join(f't{index}' for index in step.outputs)} = {call}")
    return "\n".join(lines)


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Step], Shape]:
    start = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    shapes: dict[int, Shape] = {0: start}
    loose = [0]
    steps: list[Step] = []

    def add(kind: str, inputs: tuple[int, ...], sizes: tuple[int, ...] = ()) -> None:
        step = Step(kind, inputs, sizes)
        made = evaluate(step, sizes, shapes)
        step.outputs = tuple(range(len(shapes), len(shapes) + len(made)))
        shapes.update(zip(step.outputs, made, strict=True))
        steps.append(step)
        for index in inputs:
            if index in loose:
                loose.remove(index)
        loose.extend(step.outputs)

    for _ in range(draw(st.integers(1, 5))):
        i = draw(st.sampled_from(sorted(shapes)))
        x = shapes[i]
        kind = draw(
            st.sampled_from(
                [
                    "linear",
                    "linear",
                    "split",
                    "reshape",
                    "flatten",
                    "transpose",
                    "block",
                    "block",
                    "widen",
                    "join",
                ]
            )
        )
        if kind == "linear" and len(x) <= 2:
            add("linear", (i,), (draw(st.integers(1, 6)),))
        elif kind == "split" and x[0] > 1:
            add("split", (i,), (draw(st.integers(1, x[0] - 1)),))
        elif kind == "reshape":
            divisors = [d for d in range(1, prod(x) + 1) if prod(x) % d == 0]
            first = draw(st.sampled_from(divisors))
            if prod(x) // first > 1:
                add("reshape", (i,), (first, prod(x) // first))
        elif kind == "flatten" and len(x) > 1:
            add("flatten", (i,))
        elif kind == "transpose" and len(x) == 2:
            add("transpose", (i,))
        elif kind == "block" and len(x) == 2:
            add("transformer_block", (i,), (draw(st.sampled_from([h for h in (1, 2, 3) if x[1] % h == 0])),))
        elif kind == "widen":
            others = [j for j in shapes if j != i and len(shapes[j]) == len(x) and shapes[j][:-1] == x[:-1]]
            if others:
                add("widen", (i, draw(st.sampled_from(others))))
        elif kind == "join":
            others = [j for j in shapes if j != i and shapes[j] == x]
            if others:
                add("add", (i, draw(st.sampled_from(others))))
    while len(loose) > 1:  # everything must reach the output
        one, other = loose[0], loose[1]
        if shapes[one] == shapes[other] and draw(st.booleans()):
            add("add", (one, other))
        else:
            for index in (one, other):
                if len(shapes[index]) > 1:
                    add("flatten", (index,))
            flat = [index for index in loose if len(shapes[index]) == 1]
            add("concat", (flat[0], flat[-1]))
    if not steps:
        add("linear", (0,), (2,))
    erasable = [i for i, step in enumerate(steps) if step.kind in ("linear", "split", "reshape")]
    for i in draw(st.lists(st.sampled_from(erasable), max_size=2, unique=True)) if erasable else []:
        steps[i].erased = True
    return steps, start


def candidates(step: Step) -> list[tuple[int, ...]]:
    """Every size that a step may have. A reshape's sizes are the leading ones: up to two may follow."""
    if step.kind != "reshape":
        return [(size,) for size in range(1, LARGEST + 1)]
    given = step.sizes[:1] if step.erased else step.sizes
    tails = [tail for rank in (1, 2) for tail in itertools.product(range(1, LARGEST + 1), repeat=rank)]
    return [
        given,
        *((*given, *tail) for tail in tails if 1 < prod(tail) <= LARGEST and len(given + tail) < 4),
    ]


def brute_force(steps: list[Step], start: Shape, final: Shape) -> list[dict[int, tuple[int, ...]]]:
    """All solutions: depth first over the steps, each with every size where one is open."""
    found: list[dict[int, tuple[int, ...]]] = []
    erased = any(step.erased for step in steps)

    def descend(i: int, shapes: dict[int, Shape], choices: dict[int, tuple[int, ...]]) -> None:
        if i == len(steps):
            if shapes[steps[-1].outputs[0]] == final:
                found.append(choices)
            return
        step = steps[i]
        is_open = step.erased or (erased and step.kind == "reshape")
        for sizes in candidates(step) if is_open else [step.sizes]:
            try:
                made = evaluate(step, sizes, shapes)
            except Illegal:
                continue
            chosen = {**choices, i: sizes} if is_open else choices
            descend(i + 1, {**shapes, **dict(zip(step.outputs, made, strict=True))}, chosen)

    descend(0, {0: start}, {})
    return found


def resolve(text: str, start: Shape, output: Any) -> tuple[Any, iso.IsomorphError | None]:
    try:
        return iso.resolve(text, input=("B", *start), output=output), None
    except iso.IsomorphError as error:
        return None, error


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks(), st.booleans())
def test_erased_sizes_are_recovered(network: tuple[list[Step], Shape], with_contract: bool) -> None:
    steps, start = network
    final = run(steps, start, {})
    assert final is not None
    erased = any(step.erased for step in steps)
    if not erased:
        with_contract = True
    contract = ("B", *final) if with_contract else None
    if not with_contract:
        # Without a contract the last shape is free as well; only what the graph itself fixes may come back.
        plan, refused = resolve(text_of(steps), start, None)
        if refused is not None:
            assert refused.code in ("E_AMBIGUOUS", "E_UNRESOLVED"), refused
            return
        chosen = choices_of(plan, steps)
        assert run(steps, start, chosen) is not None
        return
    solutions = brute_force(steps, start, final)
    plan, refused = resolve(text_of(steps), start, contract)
    if refused is not None:
        assert refused.code in ("E_AMBIGUOUS", "E_UNRESOLVED"), f"{text_of(steps)}\n{refused}"
        assert len(solutions) > 1, f"{text_of(steps)} {start}->{final}\n{refused}\nonly solution: {solutions}"
        largest = max(size for solution in solutions for sizes in solution.values() for size in sizes)
        if largest <= LARGEST // 2:  # no solution near the edge of what was tried: these are all there are
            assert refused.code == "E_AMBIGUOUS", f"{text_of(steps)} {start}->{final}\n{refused}\n{solutions}"
        return
    assert [choices_of(plan, steps)] == solutions, text_of(steps)
    assert iso.resolve(text_of(steps, solutions[0]), input=("B", *start), output=contract).diff(plan) == []


def choices_of(plan: iso.Plan, steps: list[Step]) -> dict[int, tuple[int, ...]]:
    """What the resolver chose for the erased steps, read from the shapes of the plan."""
    found = {}
    for i, step in enumerate(steps):
        if step.erased or (step.kind == "reshape" and any(one.erased for one in steps)):
            shape = plan.values[plan.nodes[i].outputs[0]].shape[1:]
            assert all(type(size) is int for size in shape)
            found[i] = shape if step.kind == "reshape" else (shape[-1 if step.kind == "linear" else 0],)
    return found


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks(), st.sampled_from(["float32", "bfloat16"]))
def test_text_plan_json_plan(network: tuple[list[Step], Shape], dtype: str) -> None:
    steps, start = network
    complete = text_of(steps, {})
    plan = iso.resolve(complete, input=("B", *start), dtype=dtype)
    back = iso.Plan.from_json(plan.to_json())
    assert back == plan and back.to_json() == plan.to_json()
    assert iso.resolve(plan.definition, dtype=dtype) == plan
