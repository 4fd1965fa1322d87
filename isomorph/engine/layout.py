"""Whether and how a plan generates text, found in its trace.

Every step of the trace is followed with the axis along which positions lie. A step that would let a position see
a later one, or that needs all positions at once, makes the plan unfit, and the error names its node. Nothing
here knows an operator, so that one of someone else's is found fit or unfit as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import isqrt, prod
from typing import Any

from isomorph.backends.decoding import Layout, Narrowing
from isomorph.backends.trace.build import trace
from isomorph.backends.trace.program import Program, Step
from isomorph.errors import IsomorphError
from isomorph.plan import Node, Plan
from isomorph.resolver.dimensions import show_shape, symbols_of

_MOST_PROBED = 8191
_INTEGERS = ("int64", "int32")


class _Mixes(Exception):
    """A step mixes positions; says how."""


@lru_cache(maxsize=32)
def decoding_layout(plan: Plan) -> Layout:
    """How a plan generates text.

    Raises:
        IsomorphError: E_ARGUMENT when it has no input of ids or no scores at every position, or when a node
            lets a position see later ones.
    """
    tokens = _token_input(plan)
    value = plan.inputs[tokens][1]
    program, length = _traced(plan, value)
    axes: dict[int, int] = {program.values[value].id: 1}
    for step in program.steps:
        try:
            _follow(step, program, axes, length)
        except _Mixes as problem:
            raise _unfit(plan, step, str(problem)) from None
    logits = _scores(plan, program, axes)
    return _arranged(plan, program, axes, tokens, logits)


def _token_input(plan: Plan) -> int:
    found = [
        index
        for index, (_, value) in enumerate(plan.inputs)
        if plan.values[value].dtype in _INTEGERS and len(plan.values[value].shape) == 2
    ]
    if len(found) == 1:
        return found[0]
    several = ", ".join(plan.inputs[index][0] for index in found)
    problem = f"it has several inputs that could be ids: {several}" if found else "it has no input of ids"
    raise IsomorphError(
        "E_ARGUMENT",
        f"the network cannot generate text: {problem}",
        hints=['one input is expected to be ids [B, T]: ids = input("B", "T", dtype="int64")'],
    )


def _traced(plan: Plan, tokens: int) -> tuple[Program, int]:
    """The trace at a length that is unlike the network's other sizes, and that length."""
    dimension = plan.values[tokens].shape[1]
    if type(dimension) is int:
        return trace(plan), dimension
    (symbol,) = symbols_of(dimension) or ("",)
    low, high = plan.bounds.get(symbol, (0, None))
    most = min(_MOST_PROBED, high or _MOST_PROBED)
    length = next((n for n in range(most, max(low, 2), -1) if _is_prime(n)), max(low, most))
    program = trace(plan, {symbol: length})
    return program, program.values[tokens].shape[1]


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % divisor for divisor in range(2, isqrt(n) + 1))


def _unfit(plan: Plan, step: Step, problem: str) -> IsomorphError:
    node = plan.node(step.path.partition(".")[0])
    return IsomorphError(
        "E_ARGUMENT",
        f"the network cannot generate text: {step.path} ({node.operator.name}) {problem}",
        node.location,
        ["a network that generates text sees the past alone, as with attention(..., causal=True)"],
    )


# -- following the positions through the steps ---------------------------------------------------------


def _follow(step: Step, program: Program, axes: dict[int, int], length: int) -> None:
    """Note the axis of positions of the step's outputs."""
    if step.primitive in ("cos_sin", "positions"):
        if step.attributes["length"] == length:
            axes.update(dict.fromkeys(step.outputs, 0))
        return
    if not any(tensor in axes for tensor in step.inputs):
        return
    rule = _RULES.get(step.primitive)
    if rule is None:
        raise _Mixes(f"needs all positions at once, for {step.primitive}")
    axis = rule(step, program, axes)
    axes.update(dict.fromkeys(step.outputs, axis))


Rule = Callable[[Step, Program, dict[int, int]], int]


def _kept(step: Step, program: Program, axes: dict[int, int]) -> int:
    """Element by element."""
    return axes[step.inputs[0]] if step.inputs[0] in axes else _refuse(step)


def _by_row(step: Step, program: Program, axes: dict[int, int]) -> int:
    """Acts along the last axis, with parameters that know no positions."""
    rank = len(program.tensors[step.inputs[0]].shape)
    if (
        step.inputs[0] not in axes
        or axes[step.inputs[0]] == rank - 1
        or any(i in axes for i in step.inputs[1:])
    ):
        _refuse(step)
    return axes[step.inputs[0]]


def _broadcast(step: Step, program: Program, axes: dict[int, int]) -> int:
    rank = len(program.tensors[step.outputs[0]].shape)
    found = set()
    for tensor in step.inputs:
        shift = rank - len(program.tensors[tensor].shape)
        if tensor in axes:
            found.add(axes[tensor] + shift)
    (axis,) = found if len(found) == 1 else (_refuse(step),)
    for tensor in step.inputs:
        shape = program.tensors[tensor].shape
        at = axis - rank + len(shape)
        if tensor not in axes and at >= 0 and shape[at] != 1:
            raise _Mixes("combines positions with something of a fixed length")
    return axis


def _attention(step: Step, program: Program, axes: dict[int, int]) -> int:
    q, k, v, *mask = step.inputs
    told = step.attributes
    if axes.get(q) != 2 or any(tensor in axes for tensor in mask):
        raise _Mixes("takes a mask over the ids" if axes.get(q) == 2 else "needs all positions at once")
    if k not in axes and v not in axes:
        if told["causal"] or told["window"]:
            raise _Mixes("attends another sequence in causal order")
        return 2
    if axes.get(k) != 2 or axes.get(v) != 2:
        _refuse(step)
    if not told["causal"]:
        raise _Mixes("lets a position see later ones")
    if mask:
        raise _Mixes("takes a mask beside the causal order")
    return 2


def _along(step: Step, program: Program, axes: dict[int, int]) -> int:
    """Acts along an axis that must not be that of positions."""
    axis = axes.get(step.inputs[0], -1)
    rank = len(program.tensors[step.inputs[0]].shape)
    acts = step.attributes["axis"] % rank
    if axis == acts or any(tensor not in axes or axes[tensor] != axis for tensor in step.inputs):
        _refuse(step)
    removed = len(program.tensors[step.outputs[0]].shape) < rank
    return axis - (removed and acts < axis)


def _reshape(step: Step, program: Program, axes: dict[int, int]) -> int:
    old, new = program.tensors[step.inputs[0]].shape, program.tensors[step.outputs[0]].shape
    axis = axes[step.inputs[0]]
    before, size = prod(old[:axis]), old[axis]
    for at in range(len(new)):
        if prod(new[:at]) == before and new[at] == size:
            return at
    return _refuse(step)


def _permute(step: Step, program: Program, axes: dict[int, int]) -> int:
    return step.attributes["axes"].index(axes[step.inputs[0]])


def _expand(step: Step, program: Program, axes: dict[int, int]) -> int:
    axis = axes[step.inputs[0]]
    if program.tensors[step.inputs[0]].shape[axis] != program.tensors[step.outputs[0]].shape[axis]:
        _refuse(step)
    return axis


def _refuse(step: Step) -> Any:
    raise _Mixes(f"needs all positions at once, for {step.primitive}")


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("relu", "silu", "gelu", "quick_gelu", "tanh", "sigmoid"), _kept),
    **dict.fromkeys(("linear", "layer_norm", "rms_norm", "l2_normalize"), _by_row),
    **dict.fromkeys(("add", "subtract", "multiply"), _broadcast),
    **dict.fromkeys(("softmax", "concatenate", "narrow", "mean", "max"), _along),
    "embedding": _kept,
    "attention": _attention,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
}
"""How the axis of positions goes through each primitive. One that is not here needs all positions at once."""


# -- what to compute, and when -------------------------------------------------------------------------


def _scores(plan: Plan, program: Program, axes: dict[int, int]) -> int:
    """The value that scores the next id."""
    found = {
        name: value
        for name, value in plan.outputs
        if axes.get(program.values[value].id) == 1
        and len(plan.values[value].shape) == 3
        and plan.values[value].dtype not in (*_INTEGERS, "bool")
    }
    if len(found) == 1:
        return next(iter(found.values()))
    if "logits" in found:
        return found["logits"]
    outputs = ", ".join(f"{name or 'output'}{show_shape(plan.values[v].shape)}" for name, v in plan.outputs)
    raise IsomorphError(
        "E_ARGUMENT",
        f"the network cannot generate text: its outputs are {outputs}",
        hints=[
            "one output [B, T, V] is expected, the scores of the next id, or several with one called logits"
        ],
    )


def _arranged(plan: Plan, program: Program, axes: dict[int, int], tokens: int, logits: int) -> Layout:
    value = plan.inputs[tokens][1]
    needed = _needed(plan, logits)
    moves = {v for v, tensor in program.values.items() if tensor.id in axes}
    moving = [node for node in needed if any(output in moves for output in node.outputs)]
    fixed = [node for node in needed if node not in moving]
    mixing = {step.path.partition(".")[0] for step in program.steps if _places(step, axes)}
    last = max((index + 1 for index, node in enumerate(moving) if node.name in mixing), default=0)
    made = {value} | {output for node in moving[:last] for output in node.outputs}
    read = {slot for node in moving[last:] for slot in node.call_slots if slot is not None} | {logits}
    kept = tuple(Narrowing(v, axes[program.values[v].id]) for v in sorted(made & read & moves))
    read_fixed = {slot for node in needed for slot in node.call_slots}
    return Layout(
        plan=plan,
        tokens=tokens,
        others=tuple(i for i, (_, v) in enumerate(plan.inputs) if i != tokens and v in read_fixed),
        logits=logits,
        vocabulary=_vocabulary(program, program.values[value].id),
        scores=program.values[logits].shape[2],
        limit=_limit(plan, value),
        fixed=tuple(fixed),
        moving=tuple(moving),
        last=last,
        kept=kept,
    )


def _needed(plan: Plan, logits: int) -> list[Node]:
    """The nodes that the scores depend on, in order."""
    wanted, found = {logits}, []
    for node in reversed(plan.nodes):
        if wanted.intersection(node.outputs):
            found.append(node)
            wanted.update(slot for slot in node.call_slots if slot is not None)
    return found[::-1]


def _places(step: Step, axes: dict[int, int]) -> bool:
    """Whether a step is told where positions stand."""
    return step.primitive in ("attention", "cos_sin", "positions") and step.outputs[0] in axes


def _vocabulary(program: Program, ids: int) -> int:
    """The rows of the smallest table that the ids are looked up in."""
    return min(
        (
            program.tensors[step.inputs[1]].shape[0]
            for step in program.steps
            if step.primitive == "embedding" and step.inputs[0] == ids
        ),
        default=0,
    )


def _limit(plan: Plan, tokens: int) -> int | None:
    dimension = plan.values[tokens].shape[1]
    if type(dimension) is int:
        return dimension
    (symbol,) = symbols_of(dimension) or ("",)
    return plan.bounds.get(symbol, (0, None))[1]
