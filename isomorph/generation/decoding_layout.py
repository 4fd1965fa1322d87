"""Whether and how a plan generates text, found in its trace.

A step that would let a position see a later one, that needs all positions at once, that lets rows of a batch see each
other, or that was made for one length alone, makes the plan unfit where the scores depend on it, and the error names
its node. Nothing here knows an operator, so that one of someone else's is found fit or unfit as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

from isomorph.dimensions import Affine, show_shape, symbols_of
from isomorph.errors import IsomorphError
from isomorph.generation.positions import LENGTHS, Followed, probed, sizes_of, unfit
from isomorph.lowering.decoding_layout import DecodingLayout, Narrowing
from isomorph.plan import Node, Plan
from isomorph.primitives import Acts, acts_of
from isomorph.trace.program import Program

_INTEGERS = ("int64", "int32")


def decoding_layout(plan: Plan, given: Collection[str] = ()) -> DecodingLayout:
    """How a plan generates text.

    Args:
        plan: the network.
        given: names of inputs that are given whole. Of several that could be ids, as those of an encoder and of a
            decoder over text, the one that is left grows.

    Raises:
        IsomorphError: E_ARGUMENT when it has no input of ids or no scores at every position, when several inputs
            could be the ids, when they cannot have every length, or when a node lets a position see later ones,
            or rows of a batch each other.
    """
    return _layout(plan, _token_input(plan, given))


@lru_cache(maxsize=32)
def _layout(plan: Plan, tokens: int) -> DecodingLayout:
    _check_dimensions(plan, tokens)
    followed = Followed(plan, tokens)
    try:
        logits = _scores(plan, tokens, followed)
    except IsomorphError:
        floats = [
            i for i, (_, v) in enumerate(plan.inputs) if plan.values[v].dtype not in (*_INTEGERS, "bool")
        ]
        _check_others(plan, tokens, floats)  # the better reason
        raise
    layout = _arranged(plan, followed, tokens, logits)
    _try_padding(layout)
    return layout


def _token_input(plan: Plan, given: Collection[str]) -> int:
    """The input that grows, as an index into the plan's."""
    possible = [
        index
        for index, (_, value) in enumerate(plan.inputs)
        if plan.values[value].dtype in _INTEGERS and len(plan.values[value].shape) == 2
    ]
    if len(possible) == 1:
        return possible[0]
    names = [plan.inputs[index][0] for index in possible]
    left = [index for index, name in zip(possible, names, strict=True) if name not in given]
    if len(left) == 1:
        return left[0]
    if not possible:
        problem = "it has no input of ids"
        hint = 'one input is expected to be ids [B, T]: ids = input("B", "T", dtype="int64")'
    elif left:
        problem = f"it has several inputs that could be ids: {', '.join(plan.inputs[i][0] for i in left)}"
        hint = f'give all but one by name, as in inputs={{"{plan.inputs[left[0]][0]}": ...}}'
    else:
        problem = f"all its inputs that could be ids are given by name: {', '.join(names)}"
        hint = "leave out the one whose ids are continued"
    raise IsomorphError("E_ARGUMENT", f"the network cannot generate text: {problem}", hints=[hint])


def _check_dimensions(plan: Plan, tokens: int) -> None:
    """E_ARGUMENT unless the ids may have every number of positions, and rows and positions are counted apart."""
    rows, length = plan.values[plan.inputs[tokens][1]].shape
    if isinstance(length, Affine):
        terms = length.terms
        if len(terms) != 1 or terms[0][1] != 1 or set(symbols_of(length)) & set(symbols_of(rows)):
            name = plan.inputs[tokens][0]
            raise IsomorphError(
                "E_ARGUMENT",
                f"the network cannot generate text: its ids are {name}{show_shape((rows, length))}, and a text that "
                "grows has every length",
                hints=['declare them as in ids = input("B", "T", dtype="int64")'],
            )


# -- what to compute, and when -------------------------------------------------------------------------


def _scores(plan: Plan, tokens: int, followed: Followed) -> int:
    """The value that scores the next id."""
    ids = plan.values[plan.inputs[tokens][1]].shape
    problems = {value: followed.problems.get(followed.program.values[value].id) for _, value in plan.outputs}
    candidates = {
        name: value
        for name, value in plan.outputs
        if plan.values[value].shape[:2] == ids
        and len(plan.values[value].shape) == 3
        and plan.values[value].dtype not in (*_INTEGERS, "bool")
    }
    logits = next(iter(candidates.values())) if len(candidates) == 1 else candidates.get("logits")
    known = [p for value, p in problems.items() if p is not None and logits in (None, value)]
    if known:
        raise unfit(plan, min(known).path, min(known).text)
    if logits is not None and followed.axes.get(followed.program.values[logits].id) == 1:
        return logits
    outputs = ", ".join(f"{name or 'output'}{show_shape(plan.values[v].shape)}" for name, v in plan.outputs)
    raise IsomorphError(
        "E_ARGUMENT",
        f"the network cannot generate text: its outputs are {outputs}",
        hints=[
            "one output [B, T, V] is expected, the scores of the next id, or several with one called logits"
        ],
    )


def _arranged(plan: Plan, followed: Followed, tokens: int, logits: int) -> DecodingLayout:
    value, program, axes = plan.inputs[tokens][1], followed.program, followed.axes
    needed = _needed(plan, logits)
    moves = {v for v, tensor in program.values.items() if tensor.id in axes or tensor.id in followed.problems}
    moving = [node for node in needed if any(output in moves for output in node.outputs)]
    fixed = [node for node in needed if node not in moving]
    mixing = _mixing(plan, moving, followed)
    last = max((index + 1 for index, node in enumerate(moving) if node.name in mixing), default=0)
    computed = {value} | {output for node in moving[:last] for output in node.outputs}
    read = {slot for node in moving[last:] for slot in node.call_slots if slot is not None} | {logits}
    kept = tuple(Narrowing(v, axes[program.values[v].id]) for v in sorted(computed & read & moves))
    read_fixed = {slot for node in needed for slot in node.call_slots}
    others = tuple(i for i, (_, v) in enumerate(plan.inputs) if i != tokens and v in read_fixed)
    _check_others(plan, tokens, others)
    return DecodingLayout(
        plan=plan,
        tokens=tokens,
        others=others,
        logits=logits,
        vocabulary=_vocabulary(program, program.values[value].id),
        scores=program.values[logits].shape[2],
        limit=_limit(plan, value, followed),
        fixed=tuple(fixed),
        moving=tuple(moving),
        last=last,
        kept=kept,
    )


def _needed(plan: Plan, logits: int) -> list[Node]:
    """The nodes that the scores depend on, in order."""
    wanted, needed = {logits}, []
    for node in reversed(plan.nodes):
        if wanted.intersection(node.outputs):
            needed.append(node)
            wanted.update(slot for slot in node.call_slots if slot is not None)
    return needed[::-1]


def _mixing(plan: Plan, moving: list[Node], followed: Followed) -> set[str]:
    """The nodes that are told where positions stand; E_ARGUMENT when one of them tells the places of others too."""
    names, mixing = {node.name for node in moving}, set()
    for step in followed.program.steps:
        name = step.path.partition(".")[0]
        if name not in names or (
            step.primitive != "attention" and acts_of(step.primitive) is not Acts.PLACES
        ):
            continue
        if step.outputs[0] in followed.axes:
            mixing.add(name)
        elif step.primitive != "attention" or step.attributes["causal"]:
            raise unfit(plan, step.path, "orders the positions of another sequence beside those of the ids")
    return mixing


def _check_others(plan: Plan, tokens: int, others: Iterable[int]) -> None:
    """E_ARGUMENT when a further input would have to grow with the ids."""
    grows = set(symbols_of(plan.values[plan.inputs[tokens][1]].shape[1]))
    for index in others:
        name, value = plan.inputs[index]
        if any(grows.intersection(symbols_of(dimension)) for dimension in plan.values[value].shape):
            raise IsomorphError(
                "E_ARGUMENT",
                f"the network cannot generate text: its input {name}{show_shape(plan.values[value].shape)} would "
                "have to grow with the ids",
                hints=[f'give it a length of its own, as in {name} = input("B", "S", ...)'],
            )


def _try_padding(layout: DecodingLayout) -> None:
    """E_ARGUMENT when the network cannot run where rows of a batch stand at positions of their own."""
    plan, rows = layout.plan, sizes_of(layout.plan.values[layout.plan.inputs[layout.tokens][1]].shape[0])[0]
    for length in (1, LENGTHS[0]):
        program = probed(plan, layout.tokens, rows, length, padded=True)
        if program.values[layout.logits].shape != (rows, length, layout.scores):
            node = plan.nodes[plan.values[layout.logits].node].name
            raise unfit(plan, node, "cannot have positions of its own in every row")


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


def _limit(plan: Plan, ids: int, followed: Followed) -> int | None:
    """The most positions of the ids: of their contract, and of the tables of positions."""
    dimension = plan.values[ids].shape[1]
    known = [
        followed.program.tensors[step.inputs[0]].shape[0]
        for step in followed.program.steps
        if step.primitive == "positions" and step.outputs[0] in followed.axes
    ]
    if isinstance(dimension, int):
        known.append(dimension)
    else:
        high = plan.bounds.get(symbols_of(dimension)[0], (0, None))[1]
        known += [] if high is None else [high + dimension.constant]
    return min(known, default=None)
