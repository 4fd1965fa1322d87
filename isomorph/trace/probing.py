"""A plan's trace with any number of ids and rows, whatever number its contracts ask for.

While text is generated a network sees a few new ids at a time, of which a contract of a fixed length, or with a
least length, knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from isomorph.dimensions import Affine, evaluate
from isomorph.plan import Node, Plan
from isomorph.primitives import Recording
from isomorph.trace.build import record, sizes_with
from isomorph.trace.program import Program, TracedTensor


class ProbingPrimitives(Recording):
    """Tracing primitives for which a table of positions has no end: how many there are is asked elsewhere."""

    def positions(self, table: TracedTensor, length: int) -> TracedTensor:
        shape = (length, *table.shape[1:])
        return table.recorder.record("positions", [table], [shape], {"length": length}, view=True)[0]


class PaddedPrimitives(ProbingPrimitives):
    """The same where rows of a batch stand at positions of their own: tables are ``[B, T, ...]``.

    Args:
        rows: B.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def positions(self, table: TracedTensor, length: int) -> TracedTensor:
        shape = (self._rows, length, *table.shape[1:])
        return table.recorder.record("positions", [table], [shape], {"length": length})[0]

    def cos_sin(
        self, length: int, frequencies: tuple[float, ...], like: TracedTensor
    ) -> tuple[TracedTensor, TracedTensor]:
        shape = (self._rows, length, len(frequencies))
        attributes = {"length": length, "frequencies": tuple(frequencies)}
        cos, sin = like.recorder.record("cos_sin", [], [shape, shape], attributes, dtype=like.dtype)
        return cos, sin


def trace_ids(
    plan: Plan,
    tokens: int,
    rows: int,
    length: int,
    sizes: Mapping[str, int] | None = None,
    *,
    padded: bool = False,
    observe: Callable[[Node], None] = lambda node: None,
) -> Program:
    """Record a plan on ids ``[rows, length]``.

    Args:
        plan: the network.
        tokens: which of its inputs the ids are.
        rows, length: B and T.
        sizes: values of the symbols of the further inputs.
        padded: whether rows stand at positions of their own.
        observe: called after every node.
    """
    all_sizes = {**sizes_with(plan), **(sizes or {})}
    ids = plan.values[plan.inputs[tokens][1]].shape
    for dimension, size in zip(ids, (rows, length), strict=True):
        if isinstance(dimension, Affine) and len(dimension.terms) == 1:
            ((symbol, factor),) = dimension.terms
            all_sizes[symbol.name] = (size - dimension.constant) // factor
    shapes = [[evaluate(d, all_sizes) for d in plan.values[value].shape] for _, value in plan.inputs]
    for shape in shapes:
        if shape and shape[0] == ids[0]:  # the number of rows, where the contracts fix it
            shape[0] = rows
    shapes[tokens] = [rows, length]
    tracing = PaddedPrimitives(rows) if padded else ProbingPrimitives()
    return record(plan, shapes, all_sizes, lambda node, tensors: observe(node), primitives=tracing)
