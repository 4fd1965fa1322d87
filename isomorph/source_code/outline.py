"""Finds what an operator does several times through a function of its file, and makes it a function again.

The rotation of queries and keys is an example: the operator's author wrote one function, and so does the
text. Which steps belong together is read from the frames they were recorded in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from isomorph.source_code.record import Step, Value
from isomorph.source_code.sizes import symbols_of

FEWEST_STEPS = 4
"""A shorter function is clearer where it is used."""


@dataclass(eq=False)
class Helper:
    """A function of the written file.

    Attributes:
        name: what the operator's author calls it.
        title: the first sentence of its documentation.
        inputs: its tensors by name.
        steps, outputs: its computation.
        key: equal for functions that compute the same.
        varying: values whose shapes differ from call to call.
    """

    name: str
    title: str
    inputs: dict[str, Value]
    steps: list[Step]
    outputs: tuple[Value, ...]
    key: Any
    varying: list[Value] = field(default_factory=list)


def outline(steps: list[Step]) -> tuple[list[Step], list[Helper]]:
    """The steps with what a function does twice or more as one step, and the functions.

    The frames that the steps remember are let go.
    """
    groups: list[list[Step]] = []
    for step in steps:
        if groups and _function(step) is not None and _function(step) is _function(groups[-1][-1]):
            groups[-1].append(step)
        else:
            groups.append([step])
    helpers = [_helper(group, steps) for group in groups]
    keys = [helper.key for helper in helpers if helper is not None]
    result: list[Step] = []
    by_key: dict[Any, Helper] = {}
    for group, helper in zip(groups, helpers, strict=True):
        if helper is None or keys.count(helper.key) < 2:
            result += group
            continue
        first = by_key.setdefault(helper.key, helper)
        for one, other in zip(first.steps, group, strict=True):
            first.varying += [
                a for a, b in zip(one.outputs, other.outputs, strict=True) if a.shape != b.shape
            ]
        call = Step("helper", tuple(helper.inputs.values()), {"helper": helper.key})
        call.outputs = helper.outputs
        result.append(call)
    for step in steps:
        step.frames = ()
    return result, list(by_key.values())


def _function(step: Step) -> FrameType | None:
    """The function of the operator's file, no method, that a step was recorded in."""
    if len(step.frames) < 2:
        return None
    frame = step.frames[1]
    code = frame.f_code
    is_function = code.co_name in frame.f_globals and code.co_varnames[:1] != ("self",)
    return frame if is_function else None


def _helper(group: Sequence[Step], steps: Sequence[Step]) -> Helper | None:
    frame = _function(group[0])
    if frame is None or len(group) < FEWEST_STEPS:
        return None
    inner_values = {id(value) for step in group for value in step.outputs}
    read = [v for step in group for v in step.inputs if v is not None and id(v) not in inner_values]
    read = list({id(value): value for value in read}.values())
    if any(value.parameter is not None for value in read):
        return None
    inputs = {_name_in(frame, value) or f"x{i}": value for i, value in enumerate(read)}
    known = set(symbols_of(d for value in read for d in value.shape))
    outside = [step for step in steps if step not in group]
    later = {id(value) for step in outside for value in step.inputs if value is not None}
    outputs = tuple(v for step in group for v in step.outputs if id(v) in later)
    if not set(_symbols(group)) <= known or not outputs or any(s.primitive == "call" for s in group):
        return None
    function = frame.f_globals[frame.f_code.co_name]
    title = " ".join((function.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")
    return Helper(frame.f_code.co_name, title, inputs, list(group), outputs, _key(frame, group, inputs))


def _symbols(group: Sequence[Step]) -> tuple[str, ...]:
    symbols: list[str] = []
    for step in group:
        for attribute in step.attributes.values():
            symbols += symbols_of(attribute if isinstance(attribute, tuple) else (attribute,))
    return tuple(symbols)


def _name_in(frame: FrameType, value: Value) -> str:
    arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return next((name for name in arguments if frame.f_locals.get(name) is value), "")


def _key(frame: FrameType, group: Sequence[Step], inputs: dict[str, Value]) -> Any:
    """What the function computes: equal keys stand for equal text."""
    numbers = {id(value): number for number, value in enumerate(inputs.values())}
    steps = []
    for step in group:
        taken = tuple(None if value is None else numbers[id(value)] for value in step.inputs)
        for value in step.outputs:
            numbers[id(value)] = len(numbers)
        steps.append((step.primitive, taken, tuple(step.attributes.items())))
    ranks = tuple((name, len(value.shape)) for name, value in inputs.items())
    return frame.f_code.co_name, ranks, tuple(steps)
