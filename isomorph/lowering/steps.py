"""The rewritten programs of a decoding step: what mixes positions, and what scores the last one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import NamedTuple

from isomorph.dimensions import evaluate, symbols_of
from isomorph.lowering.decoding_layout import DecodingLayout
from isomorph.lowering.rewrite import Rewritten, rewritten
from isomorph.trace.probing import trace_ids
from isomorph.trace.program import Program


class StepPrograms(NamedTuple):
    """A step in two parts; tensors pass between them by the plan's value ids.

    Attributes:
        mixing: from the ids and the fixed values to what the scores need, at all new positions.
        scoring: from that, at the last position, to the scores.
        fixed: value ids of the fixed values that each part reads, in the order of its inputs.
    """

    mixing: Rewritten
    scoring: Rewritten
    fixed: tuple[tuple[int, ...], tuple[int, ...]]


def step_programs(
    layout: DecodingLayout,
    rows: int,
    length: int,
    sizes: Mapping[str, int],
    *,
    padded: bool,
    largest: float = inf,
) -> StepPrograms:
    """The programs for ``rows`` of a batch and ``length`` new ids.

    Args:
        layout: how the plan generates text.
        rows: B.
        length: T.
        sizes: values of the symbols of the further inputs.
        padded: whether rows stand at positions of their own.
        largest: as in :func:`~isomorph.lowering.rewrite.rewritten`.
    """
    whole = _traced(layout, rows, length, sizes, padded)
    last = whole if length == 1 else _traced(layout, rows, 1, sizes, padded)
    fixed_values = {v for i, (_, v) in enumerate(layout.plan.inputs) if i in layout.others}
    fixed_values |= {output for node in layout.fixed for output in node.outputs}
    ids = layout.plan.inputs[layout.tokens][1]
    kept = [narrowing.value for narrowing in layout.kept]
    mixing, mixing_fixed = _restricted(whole, [ids], sorted(fixed_values), kept)
    scoring, scoring_fixed = _restricted(last, kept, sorted(fixed_values), [layout.logits])
    before, after = (rewritten(program, largest=largest) for program in (mixing, scoring))
    return StepPrograms(before, after, (mixing_fixed, scoring_fixed))


def fixed_program(
    layout: DecodingLayout,
    sizes: Mapping[str, int],
    given: list[int],
    wanted: list[int],
    *,
    largest: float = inf,
) -> Rewritten:
    """The program of what no id changes, from the further inputs to some of the plan's values."""
    traced = _traced(layout, rows_at(layout, sizes), 1, sizes, False)
    return rewritten(_restricted(traced, given, [], wanted)[0], largest=largest)


def rows_at(layout: DecodingLayout, sizes: Mapping[str, int]) -> int:
    """How many rows of ids there are at some values of symbols, those left out being 1."""
    batch = layout.plan.values[layout.plan.inputs[layout.tokens][1]].shape[0]
    return evaluate(batch, {symbol: sizes.get(symbol, 1) for symbol in symbols_of(batch)})


def _traced(
    layout: DecodingLayout, rows: int, length: int, sizes: Mapping[str, int], padded: bool
) -> Program:
    return trace_ids(layout.plan, layout.tokens, rows, length, sizes, padded=padded)


def _restricted(
    program: Program, given: Iterable[int], fixed: Iterable[int], wanted: Iterable[int]
) -> tuple[Program, tuple[int, ...]]:
    """The steps from some of the plan's values to others, and which of the fixed ones they read."""
    inputs = {value: program.values[value] for value in given}
    possible = {program.values[value].id: value for value in fixed}
    stop = {tensor.id for tensor in inputs.values()} | possible.keys()
    outputs = {value: program.values[value] for value in wanted}
    needed = {tensor.id for tensor in outputs.values()}
    kept = []
    for step in reversed(program.steps):
        if any(output in needed and output not in stop for output in step.outputs):
            kept.append(step)
            needed.update(step.inputs)
    read = tuple(value for tensor, value in possible.items() if tensor in needed)
    restricted = replace(
        program,
        inputs={f"v{value}": program.values[value] for value in (*inputs, *read)},
        outputs={f"v{value}": tensor for value, tensor in outputs.items()},
        steps=kept[::-1],
    )
    return restricted, read
