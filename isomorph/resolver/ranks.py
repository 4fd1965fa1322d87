"""Calls on tensors whose rank is not known yet: fix the rank, or wait and let linked ranks follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isomorph.dimensions import Affine
from isomorph.operators.declare import Operator
from isomorph.resolver.shapes import RankClash
from isomorph.resolver.solver import Clash, Impossible, OpenShape, Solver
from isomorph.resolver.state import Draft, State


def closed(shapes: list[Any]) -> list[Any]:
    """The shapes, as sizes where the rank is known by now."""
    return [s.closed or s if type(s) is OpenShape else s for s in shapes]


def fix_ranks(state: State, draft: Draft, shapes: list[Any], resume: Callable[[Draft], None]) -> bool:
    """Some input's rank is unknown: fix it, or have the call resumed once it is. True when all are known."""
    operator = draft.operator
    ports = [port_of(draft, name) for name, _ in draft.inputs]
    middle = middle_axes(operator, ports, shapes)
    still_open = []
    for port, shape in zip(ports, shapes, strict=True):
        if type(shape) is not OpenShape or shape.closed is not None:
            continue
        if operator.ranks:
            shape.limit_ranks(operator.ranks)
        rank = port.rank if middle is None or port.rank is not None else len(port.axes) - 1 + middle
        if rank is None:
            still_open.append((port, shape))
            continue
        try:
            state.solver.close(shape, rank)
        except Clash:
            raise RankClash(port, shape.prefix, (rank,)) from None
    if still_open:
        wait_for_ranks(state, draft, still_open, resume)
    return not still_open


def port_of(draft: Draft, name: str) -> Any:
    """The port of a name."""
    ports = draft.operator.signature.inputs
    return next((port for port in ports if port.name == name), ports[0])  # else one of a variadic port


def keeps_rank(operator: type[Operator]) -> bool:
    """Whether ``...`` in the operator's pattern is the same number of axes wherever it stands."""
    return operator.relate is None or operator.keeps_rank


def middle_axes(operator: type[Operator], ports: list[Any], shapes: list[Any]) -> int | None:
    """How many axes ``...`` stands for, if some input says."""
    if keeps_rank(operator):
        for port, shape in zip(ports, shapes, strict=True):
            if type(shape) is not OpenShape and "..." in port.axes:
                return len(shape) - (len(port.axes) - 1)
    return None


def wait_for_ranks(
    state: State,
    draft: Draft,
    still_open: list[tuple[Any, OpenShape]],
    resume: Callable[[Draft], None],
) -> None:
    """Resume the call when a rank is known, and let every rank that ``...`` ties to it follow."""
    operator = draft.operator
    port, shape = still_open[0]
    if operator.relate_open is not None and shape.count is not None and shape.prefix:
        provisional = operator.provisional(draft.arguments)
        shapes = provisional.relate_open(state.solver, shape.prefix, shape.count)
        for value, known in zip(draft.outputs, shapes, strict=True):
            state.shapes[value] = known
        return  # the output depends on the number of elements alone: nothing to wait for
    if state.shapes[draft.outputs[0]] is None:
        promise_outputs(state, draft, port, shape)
    still_open[0][1].waiting.append(lambda: resume(draft))
    if not keeps_rank(operator):
        return
    outputs = zip(operator.signature.outputs, (state.shapes[v] for v in draft.outputs), strict=True)
    linked = [(port, shape) for port, shape in [*still_open, *outputs] if "..." in port.axes]
    first_port, first = linked[0]
    all_follow = _Following(state, draft, linked)
    for port, shape in linked:
        if shape is not first:  # a star: what hangs together is found by walking
            first.links.append((shape, len(port.axes) - len(first_port.axes)))
            shape.links.append((first, len(first_port.axes) - len(port.axes)))
        shape.waiting.append(lambda port=port, shape=shape: all_follow(port, shape))


def promise_outputs(state: State, draft: Draft, port: Any, shape: OpenShape) -> None:
    """Give the outputs of a waiting call open shapes."""
    operator = draft.operator
    for value, output in zip(draft.outputs, operator.signature.outputs, strict=True):
        same = operator.keeps_count or (operator.relate is None and output.axes == port.axes)
        prefix, count = (shape.prefix[:1], shape.count) if same else ((), None)
        state.shapes[value] = OpenShape(prefix, count, draft.index, promised=True)


def settle(solver: Solver, shape: OpenShape) -> None:
    """Close an open shape where only one rank fits what is known."""
    solver.owner = shape.owner
    count = solver.value(shape.count)
    given = solver.product(shape.prefix[1:])
    fewest = len(shape.prefix)
    possible = shape.possible_ranks(solver.budget)
    if type(count) is int and type(given) is int:
        if count % given:
            raise Impossible(count, given, f"{count} elements are not a multiple of {given}")
        if count == given and (possible is None or fewest in possible):
            solver.close(shape, fewest)
            return
        fewest += count != given
    elif count != given and not (isinstance(count, Affine) and count.is_open):
        fewest += 1
    ranks = [rank for rank in sorted(possible or ()) if rank >= fewest]
    if len(ranks) == 1:
        solver.close(shape, ranks[0])


class _Following:
    """Gives the other tensors of a call their ranks, once the first of them has its own."""

    def __init__(self, state: State, draft: Draft, linked: list[tuple[Any, OpenShape]]) -> None:
        self.state, self.draft, self.linked = state, draft, linked
        self.is_done = False

    def __call__(self, port: Any, shape: OpenShape) -> None:
        if self.is_done:
            return
        self.is_done = True
        middle = len(shape.closed or ()) - len(port.axes)
        for other_port, other in self.linked:
            if other.closed is None:
                rank = len(other_port.axes) + middle
                try:
                    self.state.solver.close(other, rank)
                except Clash:
                    conflict = RankClash(other_port, other.prefix, (rank,))
                    conflict.owner = self.draft.index
                    raise conflict from None
