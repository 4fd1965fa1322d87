"""The rewritten programs of a decoding step: what mixes positions, and what scores the last one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from isomorph.backends.decoding import Layout
from isomorph.backends.trace import primitives
from isomorph.backends.trace.build import trace
from isomorph.backends.trace.program import Program, TracedTensor
from isomorph.engine.rewrite import Rewritten, rewritten
from isomorph.resolver.dimensions import symbols_of


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


class _PaddedPrimitives:
    """Tracing primitives under which rows of a batch stand at positions of their own."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(primitives, name)

    def positions(self, table: TracedTensor, length: int) -> TracedTensor:
        shape = (self._rows, length, *table.shape[1:])
        return table.program.record("positions", [table], shape, {"length": length})

    def cos_sin(
        self, length: int, frequencies: tuple[float, ...], like: TracedTensor
    ) -> tuple[TracedTensor, TracedTensor]:
        shape = (self._rows, length, len(frequencies))
        attributes = {"length": length, "frequencies": tuple(frequencies)}
        cos, sin = like.program.record_many("cos_sin", [], [shape, shape], attributes, dtype=like.dtype)
        return cos, sin


def step_programs(layout: Layout, rows: int, length: int, sizes: Mapping[str, int], *, padded: bool) -> StepPrograms:
    """The programs for ``rows`` of a batch and ``length`` new ids.

    Args:
        layout: how the plan generates text.
        rows: B.
        length: T.
        sizes: values of the symbols of the further inputs.
        padded: whether rows stand at positions of their own.
    """
    whole = _traced(layout, rows, length, sizes, padded)
    last = whole if length == 1 else _traced(layout, rows, 1, sizes, padded)
    fixed_values = {v for i, (_, v) in enumerate(layout.plan.inputs) if i in layout.others}
    fixed_values |= {output for node in layout.fixed for output in node.outputs}
    ids = layout.plan.inputs[layout.tokens][1]
    kept = [narrowing.value for narrowing in layout.kept]
    mixing, mixing_fixed = _restricted(whole, [ids], sorted(fixed_values), kept)
    scoring, scoring_fixed = _restricted(last, kept, sorted(fixed_values), [layout.logits])
    return StepPrograms(rewritten(mixing), rewritten(scoring), (mixing_fixed, scoring_fixed))


def fixed_program(
    layout: Layout, sizes: Mapping[str, int], given: list[int], wanted: list[int]
) -> Rewritten:
    """The program of what no id changes, from the further inputs to some of the plan's values."""
    return rewritten(_restricted(_traced(layout, 1, 1, sizes, False), given, [], wanted)[0])


def _traced(layout: Layout, rows: int, length: int, sizes: Mapping[str, int], padded: bool) -> Program:
    plan = layout.plan
    shape = plan.values[plan.inputs[layout.tokens][1]].shape
    found = dict(sizes)
    for dimension, size in zip(shape, (rows, length), strict=True):
        if type(dimension) is not int:
            (symbol,) = symbols_of(dimension)
            found[symbol] = size
    tracing: Any = _PaddedPrimitives(rows) if padded else primitives
    return trace(plan, found, primitives=tracing)


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
