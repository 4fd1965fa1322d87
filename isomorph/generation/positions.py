"""Where the positions and rows of a text lie in every tensor of a trace, and which step is in the way of an id at a time.

The plan is traced at two lengths of the ids and two numbers of rows. What is unlike in the traces tells along which
axis of a tensor the positions lie, whatever other sizes are equal to theirs. Every step is followed with that axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from isomorph.dimensions import Affine, evaluate, symbols_of
from isomorph.errors import IsomorphError
from isomorph.plan import Node, Plan
from isomorph.primitives import Acts, acts_of
from isomorph.trace.probing import trace_ids
from isomorph.trace.program import Program, Step

LENGTHS = (89, 97)
_ROWS = (3, 5)
_CAUSAL = "a network that generates text sees the past alone, as with attention(..., causal=True)"
_OWN_PLACES = "tables of positions are added to x[B, T, D]: there they may be [T, D] or [B, T, D]"
_ANY_LENGTH = 'a text that grows has every length: ids = input("B", "T", dtype="int64")'


class _Mixes(Exception):
    """A step is in the way; says how."""


class Problem(NamedTuple):
    """Why a tensor cannot be had an id at a time, and where that begins."""

    step: int
    path: str
    text: str


def unfit(plan: Plan, path: str, problem: str, hint: str = _CAUSAL) -> IsomorphError:
    """The error about an operator that keeps a network from generating."""
    node = plan.node(path.partition(".")[0])
    return IsomorphError(
        "E_ARGUMENT",
        f"the network cannot generate text: {path} ({node.operator.name}) {problem}",
        node.location,
        [hint],
    )


# -- following the positions through the steps ---------------------------------------------------------


class Followed:
    """What is known of every tensor of a trace.

    Attributes:
        program: the trace at the first length and number of rows.
        axes: the axis of positions, of the tensors that have one.
        rows: tensors that the ids are in, whose axis 0 is that of the rows.
        sized: tensors that depend on how many positions there are and have none.
        problems: why a tensor cannot be computed an id at a time.
    """

    def __init__(self, plan: Plan, tokens: int) -> None:
        ids = plan.inputs[tokens][1]
        batch, length = plan.values[ids].shape
        first, second = LENGTHS if isinstance(length, Affine) else (length, length + 11)
        self.rows_of, self.lengths = sizes_of(batch), (first, second)
        self.program = probed(plan, tokens, self.rows_of[0], first)
        self.longer = probed(plan, tokens, self.rows_of[0], second)
        self.wider = probed(plan, tokens, self.rows_of[1], first)
        tensor = self.program.values[ids].id
        self.axes: dict[int, int] = {tensor: 1}
        self.rows = {tensor}
        self.sized = {
            value.id
            for value in self.program.inputs.values()
            if value.id != tensor and value.shape != self.longer.tensors[value.id].shape
        }
        self.problems: dict[int, Problem] = {}
        self._follow_all()

    def _follow_all(self) -> None:
        others = (self.longer.steps, self.wider.steps)
        for index, step in enumerate(self.program.steps):
            try:
                if any(len(steps) <= index or not _alike(step, steps[index]) for steps in others):
                    raise _Mixes("does something else at another length or number of rows")
                self._follow(index, step)
            except _Mixes as problem:
                self.problems.update(dict.fromkeys(step.outputs, Problem(index, step.path, str(problem))))

    def _follow(self, index: int, step: Step) -> None:
        """Note what there is to know of the step's outputs."""
        known = [self.problems[tensor] for tensor in step.inputs if tensor in self.problems]
        if known:
            self.problems.update(dict.fromkeys(step.outputs, min(known)))
            return
        attributes = (
            step.attributes,
            self.longer.steps[index].attributes,
            self.wider.steps[index].attributes,
        )
        if self._tells_places(step.primitive, attributes):
            self.axes.update(dict.fromkeys(step.outputs, 0))
            return
        moving = any(tensor in self.axes for tensor in step.inputs)
        if not moving:
            self._follow_still(step, attributes[0] != attributes[1])
            return
        rule = _RULES.get(step.primitive) or _RULES_BY_ACTS.get(acts_of(step.primitive))
        if rule is None:
            raise _Mixes(f"needs all positions at once, for {step.primitive}")
        axis = rule(step, self)
        if any(tensor in self.sized for tensor in step.inputs):
            raise _Mixes("reads something else that is as long as the ids")
        if attributes[0] != attributes[1] or attributes[0] != attributes[2]:
            raise _Mixes("depends on how many positions or rows there are")
        from_ids = any(tensor in self.rows for tensor in step.inputs)
        for output in step.outputs:
            self._check_shape(output, axis, from_ids)
        self.axes.update(dict.fromkeys(step.outputs, axis))
        if from_ids:
            self.rows.update(step.outputs)

    def _tells_places(self, primitive: str, attributes: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a step makes a table of the ids' positions, and not of another sequence's of equal length."""
        return (
            acts_of(primitive) is Acts.PLACES and tuple(t["length"] for t in attributes[:2]) == self.lengths
        )

    def _follow_still(self, step: Step, told_otherwise: bool) -> None:
        """A step that reads no positions."""
        (output, *_) = step.outputs
        changed = [axis for axis, *sizes in self.sizes(output, self.longer) if sizes[0] != sizes[1]]
        if step.primitive == "expand" and len(changed) == 1 and not self.sized.intersection(step.inputs):
            (axis,) = changed
            if self.program.tensors[step.inputs[0]].shape[axis] == 1:  # the same at every position
                self.axes[output] = axis
                return
        if told_otherwise or changed or self.sized.intersection(step.inputs):
            self.sized.update(step.outputs)

    def sizes(self, tensor: int, other: Program) -> Iterable[tuple[int, int, int]]:
        """Axis, size here and size in the other trace; nothing to compare where the ranks differ."""
        here, there = self.program.tensors[tensor].shape, other.tensors[tensor].shape
        if len(here) != len(there):
            raise _Mixes("does something else at another length or number of rows")
        return zip(range(len(here)), here, there, strict=True)

    def _check_shape(self, tensor: int, axis: int, from_ids: bool) -> None:
        """That positions lie along one axis, and rows along the first one."""
        for at, here, there in self.sizes(tensor, self.longer):
            if (here, there) != (self.lengths if at == axis else (here, here)):
                raise _Mixes("changes the number of positions")
        for at, here, there in self.sizes(tensor, self.wider):
            rows = at == 0 and (from_ids or here != there)
            if (here, there) != (self.rows_of if rows else (here, here)):
                raise _Mixes("joins or parts the rows of a batch")


def sizes_of(batch: int | Affine) -> tuple[int, int]:
    """Two numbers of rows that a contract allows, or would if its number were a symbol."""
    if isinstance(batch, int):
        return batch, batch + _ROWS[1]
    first, second = (dict.fromkeys(symbols_of(batch), n) for n in _ROWS)
    return evaluate(batch, first), evaluate(batch, second)


def _alike(step: Step, other: Step) -> bool:
    return (step.primitive, step.inputs, step.outputs, step.path) == (
        other.primitive, other.inputs, other.outputs, other.path,
    )  # fmt: skip


def probed(plan: Plan, tokens: int, rows: int, length: int, *, padded: bool = False) -> Program:
    """The trace, or E_ARGUMENT naming the node that cannot be run on that many ids."""
    done: list[Node] = []
    try:
        return trace_ids(plan, tokens, rows, length, padded=padded, observe=done.append)
    except (IsomorphError, ValueError, IndexError) as error:
        node = plan.nodes[len(done)].name
        if padded:
            raise unfit(plan, node, "cannot have positions of its own in every row", _OWN_PLACES) from error
        raise unfit(plan, node, "was made for one length alone", _ANY_LENGTH) from error


Rule = Callable[[Step, Followed], int]


def _kept(step: Step, followed: Followed) -> int:
    """Element by element."""
    axes = followed.axes
    x, *others = step.inputs
    return _refuse(step) if x not in axes or any(tensor in axes for tensor in others) else axes[x]


def _by_row(step: Step, followed: Followed) -> int:
    """Acts along the last axis, with parameters that know no positions."""
    axes = followed.axes
    rank = len(followed.program.tensors[step.inputs[0]].shape)
    if (
        step.inputs[0] not in axes
        or axes[step.inputs[0]] == rank - 1
        or any(i in axes for i in step.inputs[1:])
    ):
        _refuse(step)
    return axes[step.inputs[0]]


def _broadcast(step: Step, followed: Followed) -> int:
    axes = followed.axes
    rank = len(followed.program.tensors[step.outputs[0]].shape)
    places = set()
    for tensor in step.inputs:
        shift = rank - len(followed.program.tensors[tensor].shape)
        if tensor in axes:
            places.add(axes[tensor] + shift)
    (axis,) = places if len(places) == 1 else (_refuse(step),)
    for tensor in step.inputs:
        shape = followed.program.tensors[tensor].shape
        at = axis - rank + len(shape)
        if tensor not in axes and at >= 0 and shape[at] != 1:
            raise _Mixes("combines positions with something of a fixed length")
    return axis


def _attention(step: Step, followed: Followed) -> int:
    axes = followed.axes
    q, k, v, *mask = step.inputs
    rule = step.attributes
    if axes.get(q) != 2 or any(tensor in axes for tensor in mask):
        raise _Mixes("takes a mask over the ids" if axes.get(q) == 2 else "needs all positions at once")
    if k not in axes and v not in axes:
        if rule["causal"] or rule["window"]:
            raise _Mixes("attends another sequence in causal order")
        return 2
    if axes.get(k) != 2 or axes.get(v) != 2:
        _refuse(step)
    if not rule["causal"]:
        raise _Mixes("lets a position see later ones")
    if mask:
        raise _Mixes("takes a mask beside the causal order")
    return 2


def _along(step: Step, followed: Followed) -> int:
    """Acts along an axis that must not be that of positions."""
    axes = followed.axes
    axis = axes.get(step.inputs[0], -1)
    rank = len(followed.program.tensors[step.inputs[0]].shape)
    acts = step.attributes["axis"] % rank
    if axis == acts or any(tensor not in axes or axes[tensor] != axis for tensor in step.inputs):
        _refuse(step)
    if acts == 0 and followed.rows.intersection(step.inputs):
        raise _Mixes("lets rows of a batch see each other")
    removed = len(followed.program.tensors[step.outputs[0]].shape) < rank
    return axis - (removed and acts < axis)


def _reshape(step: Step, followed: Followed) -> int:
    tensor, result = step.inputs[0], step.outputs[0]
    old, new = followed.program.tensors[tensor].shape, followed.program.tensors[result].shape
    axis = followed.axes[tensor]
    moved = [at for at, here, there in followed.sizes(result, followed.longer) if here != there]
    if len(moved) != 1 or (prod(new[: moved[0]]), new[moved[0]]) != (prod(old[:axis]), old[axis]):
        _refuse(step)
    return moved[0]


def _permute(step: Step, followed: Followed) -> int:
    axes = followed.axes
    return step.attributes["axes"].index(axes[step.inputs[0]])


def _expand(step: Step, followed: Followed) -> int:
    axes = followed.axes
    axis = axes[step.inputs[0]]
    if (
        followed.program.tensors[step.inputs[0]].shape[axis]
        != followed.program.tensors[step.outputs[0]].shape[axis]
    ):
        _refuse(step)
    return axis


def _refuse(step: Step) -> Any:
    raise _Mixes(f"needs all positions at once, for {step.primitive}")


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("add", "subtract", "multiply"), _broadcast),
    "attention": _attention,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
}
_RULES_BY_ACTS: dict[Acts | None, Rule] = {Acts.EACH: _kept, Acts.ROWS: _by_row, Acts.AXIS: _along}
"""How the axis of positions goes through a primitive, by its name or by how it acts. Others need all positions at once."""
