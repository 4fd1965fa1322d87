"""What happens inside every node: the primitives that it runs, with symbolic shapes.

Shapes come from tracing the plan at a few sizes: a dimension that grows by c when a symbol grows by one holds
that symbol c times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from isomorph.dimensions import affine, show_shape, symbol
from isomorph.trace.build import trace
from isomorph.trace.program import Program, Step

if TYPE_CHECKING:
    from isomorph.plan import Plan

UNREADABLE = "?"
"""A size that no sum of multiples of symbols gives."""


class Stage(NamedTuple):
    """One step inside a node.

    Attributes:
        path: which operator runs it, such as ``n1.attn.q_proj``.
        operation: the primitive; ``scores`` for the products inside an attention.
        shape: of its result.
        note: ``residual`` for the sum of two branches inside a block.
    """

    path: str
    operation: str
    shape: tuple[int | str, ...]
    note: str


def stages(plan: Plan) -> list[Stage]:
    """Every stage of every node in order. Permuted views are left out: they move nothing."""
    points = _points(plan)
    programs = [trace(plan, sizes) for sizes in points]
    first = programs[0]
    parameters = {tensor.id for tensor in first.parameters.values()}
    composite = {node.name for node in plan.nodes if node.operator.child_operators}
    rows: list[Stage] = []
    for index, step in enumerate(first.steps):
        if step.primitive == "permute":
            continue
        results = [[program.tensors[program.steps[index].outputs[0]].shape for program in programs]]
        if step.primitive == "attention":
            results.insert(0, [_scores(program, program.steps[index]) for program in programs])
        for number, shapes in enumerate(results):
            operation = "scores" if number + 1 < len(results) else step.primitive
            shape = tuple(_size(sizes, points) for sizes in zip(*shapes, strict=True))
            residual = (
                step.primitive == "add"
                and step.path in composite
                and len(step.inputs) == 2
                and not parameters.intersection(step.inputs)
            )
            rows.append(Stage(step.path, operation, shape, "residual" if residual else ""))
    return rows


def render_stages(plan: Plan) -> str:
    """The stages as a table, two spaces between columns."""
    rows = [("stage", "operation", "output shape")]
    for stage in stages(plan):
        note = f"  {stage.note}" if stage.note else ""
        rows.append((stage.path, stage.operation, show_shape(stage.shape) + note))
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows)


def _scores(program: Program, step: Step) -> tuple[int, ...]:
    """``[B, H, T, S]`` of an attention, from its queries and keys."""
    queries, keys = (program.tensors[tensor].shape for tensor in step.inputs[:2])
    return (*queries[:3], keys[2])


def _points(plan: Plan) -> list[dict[str, int]]:
    """A base, one point with each symbol larger by one, and one with all of them larger by different amounts."""
    base, free = {}, []
    for name in plan.symbols:
        low, high = plan.bounds.get(name, (0, None))
        room = len(free) + 1
        base[name] = max(low, 3 + len(free)) if high is None else max(low, min(3 + len(free), high - room))
        if high is None or base[name] + room <= high:
            free.append(name)
    steps = [{**base, name: base[name] + 1} for name in free]
    return [base, *steps, {**base, **{name: base[name] + i + 1 for i, name in enumerate(free)}}]


def _size(sizes: Sequence[int], points: Sequence[dict[str, int]]) -> int | str:
    """The expression that gives these sizes at these points."""
    base, *others = points
    names = [next(name for name in point if point[name] != base[name]) for point in others[:-1]]
    slopes = {name: size - sizes[0] for name, size in zip(names, sizes[1:-1], strict=True)}
    constant = sizes[0] - sum(slope * base[name] for name, slope in slopes.items())
    predicted = constant + sum(slope * others[-1][name] for name, slope in slopes.items())
    if predicted != sizes[-1]:
        return UNREADABLE
    terms = [(symbol(name).terms[0][0], slope) for name, slope in slopes.items()]
    size = affine(terms, constant)
    return size if type(size) is int else str(size)
