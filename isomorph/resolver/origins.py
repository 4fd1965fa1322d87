"""Where a size comes from: found by walking back from a tensor, only when something failed."""

from __future__ import annotations

from typing import Any

from isomorph.dimensions import Affine, Unknown, show_shape
from isomorph.resolver.solver import OpenShape
from isomorph.resolver.state import Draft, State


def spell(state: State, dim: Any) -> str:
    """A size as messages show it, ``?`` for one that is not known."""
    return str(state.solver.value(dim)) if dim is not None else "?"


def shape_text(state: State, shape: Any) -> str:
    """``[B, 8, ?]``."""
    if isinstance(shape, OpenShape):
        shape = shape.closed or (*shape.prefix, "...")
    return show_shape(d if isinstance(d, str) else spell(state, d) for d in shape or ())


def known_shape(state: State, value: int) -> tuple[Any, ...]:
    """The sizes of a value as far as its rank is known."""
    shape = state.shapes[value]
    return (shape.closed or shape.prefix) if isinstance(shape, OpenShape) else shape


def source_of(state: State, value: int) -> str:
    """What a tensor is called in messages: ``input x``, ``n3 (linear)``."""
    call, output = state.producers[value]
    if call < 0:
        return f"input {state.input_contracts[output].name}"
    draft = state.drafts[call]
    ports = draft.operator.signature.outputs
    port = f".{ports[output].name}" if len(ports) > 1 else ""
    return f"{draft.name}{port} ({draft.operator.name})"


def shape_line(state: State, value: int) -> str:
    """``n3 (linear) makes [B, 8] (line 4)``, or nothing for a shape that is not known."""
    shape = state.shapes[value]
    if shape is None:
        return ""
    text = shape_text(state, shape)
    call, output = state.producers[value]
    if call < 0:
        return f"input {state.input_contracts[output].name} is {text}"
    return f"{source_of(state, value)} makes {text}{line_of(state.drafts[call])}"


def line_of(draft: Draft) -> str:
    """`` (line 4)``, or nothing where there is no source."""
    place = draft.locate()
    return f" (line {place.line})" if place else ""


def origin_line(state: State, draft: Draft, variable: str) -> str:
    """``D=32 comes from input x[B, 8, 32]``, for a pattern variable of a call."""
    dim = draft.sizes.get(variable)
    if dim is None:
        return ""
    label = f"{variable}={spell(state, dim)}"
    for port in draft.operator.signature.inputs:
        if variable in port.axes and (value := draft.value_at(port.name)) is not None:
            return f"{label} comes from {origin(state, value, _axis_from_end(port.axes, variable))}"
    return label


def _axis_from_end(axes: tuple[str, ...], variable: str) -> int:
    """Index of a variable's axis: from the start before ``...``, negative after it."""
    i = axes.index(variable)
    return i if "..." not in axes[:i] else i - len(axes)


def origin(state: State, value: int, axis: int) -> str:
    """Who decided the size of one axis of a tensor."""
    for _ in range(len(state.producers)):
        call, output = state.producers[value]
        if call < 0:
            contract = state.input_contracts[output]
            return f"input {contract.name}{show_shape(contract.shape)}"
        draft = state.drafts[call]
        decider = _decider(state, draft, output, axis, state.closed_shape(value))
        if isinstance(decider, str):
            return decider
        value, axis = decider
    return "an earlier call"


def _decider(state: State, draft: Draft, output: int, axis: int, shape: Any) -> str | tuple[int, int]:
    """Either the text of who decided, or the (value, axis) it was taken over from."""
    operator = draft.operator
    port = operator.signature.outputs[output]
    if operator.relate is None and shape is not None:
        axes = _expanded(port.axes, len(shape))
        variable = axes[axis]
        for name, spec in operator.arguments.items():
            if spec.size == variable and draft.arguments.get(name) is not None:
                return f"{draft.name} = {operator.name}({name}={draft.arguments[name]}){line_of(draft)}"
        for source in operator.signature.inputs:
            if (value := draft.value_at(source.name)) is None:
                continue
            taken = state.closed_shape(value)
            names = _expanded(source.axes, len(taken)) if taken is not None else ()
            if variable in names:
                return value, names.index(variable) - len(names)
    followed = _same_axis(state, draft, axis, shape)
    if followed is not None:
        return followed
    here = f"{draft.name} ({operator.name}){line_of(draft)}"
    cause = _cause(state, shape[axis]) if shape is not None else ""
    return f"{here}, {cause}" if cause else here


def _same_axis(state: State, draft: Draft, axis: int, shape: Any) -> tuple[int, int] | None:
    """The one input axis that an output axis of an operator without pattern was taken over from, if sure."""
    operator = draft.operator
    if operator.relate is None or operator.settle is not None or shape is None or len(draft.inputs) != 1:
        return None
    value = draft.inputs[0][1]
    taken = known_shape(state, value)
    if operator.keeps_count:  # axes were moved: follow a size that occurs once
        places = [i for i, dim in enumerate(taken) if dim == shape[axis]]
        return (value, places[0]) if len(places) == 1 else None
    for place in (axis, axis - len(shape) + len(taken)):  # counted from the start, then from the end
        if 0 <= place < len(taken) and taken[place] == shape[axis]:
            return value, place
    return None


def _expanded(axes: tuple[str, ...], rank: int) -> list[str]:
    """A port's axes with ``...`` written out as ``...0``, ``...1``."""
    if "..." not in axes:
        return list(axes)
    i = axes.index("...")
    middle = [f"...{k}" for k in range(rank - len(axes) + 1)]
    return [*axes[:i], *middle, *axes[i + 1 :]]


def _cause(state: State, dim: Any) -> str:
    """Which call or contract made an unknown what it is."""
    bound, causes = state.solver.bound, state.solver.causes
    variable = _open_variable(dim)
    while variable is not None and (following := _open_variable(bound.get(variable))) is not None:
        variable = following
    cause = causes.get(variable) if variable is not None else None
    if cause is None or variable is None or cause == variable.owner:
        return ""
    if cause >= len(state.drafts):
        return "as the output contract requires"
    return _requirement(state, state.drafts[cause], state.solver.value(dim))


def _requirement(state: State, draft: Draft, size: Any) -> str:
    """How the call that fixed a size came by it: by an argument, or by another of its inputs."""
    for name, spec in draft.operator.arguments.items():
        if spec.size and draft.arguments.get(name) == size:
            return f"as {draft.name} = {draft.operator.name}({name}={size}){line_of(draft)} requires"
    text = f"as {draft.name} ({draft.operator.name}){line_of(draft)} requires"
    for _, value in draft.inputs:
        for axis, dim in enumerate(known_shape(state, value)):
            if axis and type(dim) is int and dim == size:
                return f"{text}, where it comes from {origin(state, value, axis)}"
    return text


def _open_variable(dim: Any) -> Unknown | None:
    if not isinstance(dim, Affine):
        return None
    return next((variable for variable, _ in dim.terms if isinstance(variable, Unknown)), None)
