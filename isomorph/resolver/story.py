"""Turns a conflict into an error that says where each size came from.

Origins are found by walking back from the tensor only when something failed, so that they cost
nothing otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isomorph.errors import IsomorphError
from isomorph.operators.declare import Conflict
from isomorph.resolver.dimensions import Affine, Unknown, show_shape
from isomorph.resolver.search import Several, Undetermined
from isomorph.resolver.shapes import AxisClash, RankClash
from isomorph.resolver.solver import Clash, OpenShape

if TYPE_CHECKING:
    from isomorph.resolver.contracts import Declared
    from isomorph.resolver.resolution import Draft, Resolution


def explain(resolution: Resolution, conflict: Any) -> IsomorphError:
    """The error for a conflict that arose while ``solver.owner`` was at work."""
    owner = getattr(conflict, "owner", None)
    owner = resolution.solver.owner if owner is None else owner
    if isinstance(conflict, Several | Undetermined):
        return _not_unique(resolution, conflict)
    if owner >= len(resolution.drafts):
        assert isinstance(conflict, Clash)
        return IsomorphError(
            "E_CONSTRAINT", f"the output contract cannot be met: {_clash_text(resolution, conflict)}"
        )
    draft = resolution.drafts[owner]
    if isinstance(conflict, Conflict):
        hints = [_origin_line(resolution, draft, name) for name in conflict.sizes]
        prefix = "" if conflict.code == "E_CONSTRAINT" else f"{draft.operator.name}: "
        message = conflict.message
        if prefix and message.startswith(draft.operator.name):
            prefix = ""
        place = draft.locate(_argument_key(draft, conflict.argument))
        return IsomorphError(
            conflict.code, prefix + message, place, [h for h in hints if h] + list(conflict.hints)
        )
    if isinstance(conflict, RankClash):
        return _rank_error(resolution, draft, conflict)
    if isinstance(conflict, AxisClash):
        return _axis_error(resolution, draft, conflict)
    return IsomorphError(
        "E_CONSTRAINT",
        f"{draft.operator.name}: {_clash_text(resolution, conflict)}",
        draft.locate(),
        [line for _, value in draft.inputs if (line := _shape_line(resolution, value))],
    )


def _argument_key(draft: Draft, argument: str | None) -> Any:
    """How the call locates an argument: by position, by name, or not at all."""
    if argument is None or argument in draft.call.keywords:
        return argument
    for i, spec in enumerate(draft.operator.positional):
        if spec.name == argument and i < len(draft.call.arguments):
            return i
    return None


def _clash_text(resolution: Resolution, clash: Clash) -> str:
    left, right = _spell(resolution, clash.left), _spell(resolution, clash.right)
    if clash.note:
        return clash.note.replace("size of axis", "the size of axis")
    return f"{left} and {right} must be equal and are not"


def _spell(resolution: Resolution, dim: Any) -> str:
    return str(resolution.solver.value(dim)) if dim is not None else "?"


def shape_text(resolution: Resolution, shape: Any) -> str:
    """``[B, 8, ?]``."""
    if isinstance(shape, OpenShape):
        shape = shape.closed or (*shape.prefix, "...")
    return show_shape(d if isinstance(d, str) else _spell(resolution, d) for d in shape or ())


# -- where a size comes from ---------------------------------------------------------------------


def source_of(resolution: Resolution, value: int) -> str:
    """What a tensor is called in messages: ``input x``, ``n3 (linear)``."""
    call, output = resolution.producers[value]
    if call < 0:
        return f"input {resolution.input_contracts[output].name}"
    draft = resolution.drafts[call]
    ports = draft.operator.signature.outputs
    port = f".{ports[output].name}" if len(ports) > 1 else ""
    return f"{draft.name}{port} ({draft.operator.name})"


def _shape_line(resolution: Resolution, value: int) -> str:
    shape = resolution.shapes[value]
    if shape is None:
        return ""
    text = shape_text(resolution, shape)
    call, output = resolution.producers[value]
    if call < 0:
        return f"input {resolution.input_contracts[output].name} is {text}"
    return f"{source_of(resolution, value)} makes {text}{_line_of(resolution.drafts[call])}"


def _line_of(draft: Draft) -> str:
    place = draft.locate()
    return f" (line {place.line})" if place else ""


def _origin_line(resolution: Resolution, draft: Draft, variable: str) -> str:
    """``D=32 comes from input x[B, 8, 32]``, for a pattern variable of a call."""
    dim = draft.sizes.get(variable)
    if dim is None:
        return ""
    label = f"{variable}={_spell(resolution, dim)}"
    for port in draft.operator.signature.inputs:
        if variable in port.axes:
            value = next((v for name, v in draft.inputs if name == port.name), None)
            if value is not None:
                axis = _axis_from_end(port.axes, variable)
                return f"{label} comes from {origin(resolution, value, axis)}"
    return label


def _axis_from_end(axes: tuple[str, ...], variable: str) -> int:
    """Index of a variable's axis: from the start before ``...``, negative after it."""
    i = axes.index(variable)
    return i if "..." not in axes[:i] else i - len(axes)


def origin(resolution: Resolution, value: int, axis: int) -> str:
    """Who decided the size of one axis of a tensor."""
    for _ in range(len(resolution.producers)):
        call, output = resolution.producers[value]
        if call < 0:
            contract = resolution.input_contracts[output]
            return f"input {contract.name}{show_shape(contract.shape)}"
        draft = resolution.drafts[call]
        shape = resolution.shapes[value]
        if isinstance(shape, OpenShape):
            shape = shape.closed
        found = _decider(resolution, draft, output, axis, shape)
        if isinstance(found, str):
            return found
        value, axis = found
    return "an earlier call"


def _decider(
    resolution: Resolution, draft: Draft, output: int, axis: int, shape: Any
) -> str | tuple[int, int]:
    """Either the text of who decided, or the (value, axis) it was taken over from."""
    operator = draft.operator
    port = operator.signature.outputs[output]
    if operator.relate is None and shape is not None:
        axes = _expanded(port.axes, len(shape))
        variable = axes[axis]
        for name, spec in operator.arguments.items():
            if spec.size == variable and draft.arguments.get(name) is not None:
                return f"{draft.name} = {operator.name}({name}={draft.arguments[name]}){_line_of(draft)}"
        for source in operator.signature.inputs:
            value = next((v for name, v in draft.inputs if name == source.name), None)
            if value is None:
                continue
            held = resolution.shapes[value]
            held = held.closed if isinstance(held, OpenShape) else held
            names = _expanded(source.axes, len(held)) if held is not None else ()
            if variable in names:
                return value, names.index(variable) - len(names)
    here = f"{draft.name} ({operator.name}){_line_of(draft)}"
    cause = _cause(resolution, shape[axis]) if shape is not None else ""
    return f"{here}, {cause}" if cause else here


def _expanded(axes: tuple[str, ...], rank: int) -> list[str]:
    """A port's axes with ``...`` written out as ``...0``, ``...1``."""
    if "..." not in axes:
        return list(axes)
    i = axes.index("...")
    middle = [f"...{k}" for k in range(rank - len(axes) + 1)]
    return [*axes[:i], *middle, *axes[i + 1 :]]


def _cause(resolution: Resolution, dim: Any) -> str:
    """Which call or contract made an unknown what it is."""
    bound, causes = resolution.solver.bound, resolution.solver.causes
    variable = _open_variable(dim)
    while variable is not None and (following := _open_variable(bound.get(variable))) is not None:
        variable = following
    cause = causes.get(variable) if variable is not None else None
    if cause is None or variable is None or cause == variable.owner:
        return ""
    if cause >= len(resolution.drafts):
        return "as the output contract requires"
    draft = resolution.drafts[cause]
    return f"as {draft.name} ({draft.operator.name}){_line_of(draft)} requires"


def _open_variable(dim: Any) -> Unknown | None:
    if not isinstance(dim, Affine):
        return None
    return next((variable for variable, _ in dim.terms if isinstance(variable, Unknown)), None)


# -- the errors ------------------------------------------------------------------------------------


def _rank_error(resolution: Resolution, draft: Draft, clash: RankClash) -> IsomorphError:
    port, shape = clash.port, clash.shape
    if clash.ranks:
        wanted = f"rank {' or '.join(map(str, clash.ranks))}"
    else:
        wanted = f"at least rank {len(port.axes) - 1}"
    value = next((v for name, v in draft.inputs if name == port.name), None)
    hints = []
    if value is not None and (line := _shape_line(resolution, value)):
        hints.append(line)
    return IsomorphError(
        "E_CONSTRAINT",
        f"{draft.operator.name} takes {port.pattern} ({wanted}), got {shape_text(resolution, shape)} "
        f"(rank {len(shape)})",
        draft.locate(),
        hints,
    )


def _axis_error(resolution: Resolution, draft: Draft, clash: AxisClash) -> IsomorphError:
    operator, port = draft.operator, clash.port
    value = next(v for name, v in draft.inputs if name == port.name)
    shape = resolution.shapes[value]
    shape = shape.closed if isinstance(shape, OpenShape) else shape
    argument = next(
        (
            name for name, spec in operator.arguments.items()
            if spec.size == clash.variable and draft.arguments.get(name) is not None
        ),
        None,
    )  # fmt: skip
    held, found = _spell(resolution, clash.held), _spell(resolution, clash.found)
    got = f"{port.name}={shape_text(resolution, shape)}"
    if argument is not None:
        message = f"{operator.name}: {argument}={held} but {got} has size {found} there"
        hints = [f"{found} comes from {origin(resolution, value, clash.axis)}"]
        return IsomorphError("E_CONSTRAINT", message, draft.locate(_argument_key(draft, argument)), hints)
    first_port, first = _first_holder(resolution, draft, clash)
    message = (
        f"{operator.name}: {first_port}={shape_text(resolution, resolution.shapes[first])} and {got} "
        f"differ in axis {clash.axis} ({held} and {found})"
    )
    hints = [
        f"{held} comes from {origin(resolution, first, clash.axis)}",
        f"{found} comes from {origin(resolution, value, clash.axis)}",
    ]
    return IsomorphError("E_CONSTRAINT", message, draft.locate(), hints)


def _first_holder(resolution: Resolution, draft: Draft, clash: AxisClash) -> tuple[str, int]:
    for port in draft.operator.signature.inputs:
        if clash.variable in port.axes:
            for name, value in draft.inputs:
                if name == port.name:
                    return name, value
    return draft.inputs[0]


def output_error(
    resolution: Resolution,
    value: int,
    contract: Declared,
    shape: tuple[Any, ...],
    axis: int | None = None,
    clash: Clash | None = None,
) -> IsomorphError:
    """An output does not have the contract's shape."""
    name = f"output {contract.name}" if contract.name else "the output"
    message = f"{name} is {shape_text(resolution, shape)}, the contract says {show_shape(contract.shape)}"
    hints = []
    if axis is None:
        hints.append(_shape_line(resolution, value))
    else:
        hints.append(
            f"axis {axis}: {_spell(resolution, shape[axis])} comes from {origin(resolution, value, axis)}"
        )
        hints.append(f"axis {axis}: {contract.shape[axis]} is required by the output contract")
        if clash is not None and clash.note:
            hints.append(clash.note)
    call = resolution.producers[value][0]
    place = contract.location or (resolution.drafts[call].locate() if call >= 0 else None)
    return IsomorphError("E_CONSTRAINT", message, place, [hint for hint in hints if hint])


def symbolic_size_error(resolution: Resolution, draft: Draft, name: str, size: Any) -> IsomorphError:
    """A symbol stands where a number must be."""
    line = _origin_line(resolution, draft, name)
    return IsomorphError(
        "E_UNRESOLVED",
        f"{draft.operator.name}: {name} is {size}, which is not known until run time, but it must be a number",
        draft.locate(),
        [*([line] if line else []), f"give a number for {size}"],
    )


def open_shape_error(resolution: Resolution, value: int) -> IsomorphError:
    """A tensor's rank is not fixed by anything."""
    shape = resolution.shapes[value]
    draft = resolution.drafts[shape.owner if isinstance(shape, OpenShape) else resolution.producers[value][0]]
    while isinstance(shape, OpenShape) and not shape.prefix and draft.inputs:
        shape = resolution.shapes[draft.inputs[0][1]]
        if isinstance(shape, OpenShape):
            draft = resolution.drafts[shape.owner]
    given = shape_text(resolution, shape)
    count = (
        resolution.solver.value(shape.count)
        if isinstance(shape, OpenShape) and shape.count is not None
        else None
    )
    what = f" for {_spell(resolution, count)} elements per example" if count is not None else ""
    return IsomorphError(
        "E_AMBIGUOUS",
        f"{draft.operator.name} gives {given}{what}, and nothing fixes how many axes follow",
        draft.locate(),
        ["give every size, or declare the output's shape"],
    )


def _not_unique(resolution: Resolution, conflict: Several | Undetermined) -> IsomorphError:
    variable = conflict.variable
    draft = resolution.drafts[variable.owner]
    operator = draft.operator
    argument = variable.argument or next(
        (name for name, spec in operator.arguments.items() if spec.size == variable.label), None
    )
    what = argument or variable.label
    if isinstance(conflict, Several):
        values = " and ".join(map(str, conflict.values))
        return IsomorphError(
            "E_AMBIGUOUS",
            f"{draft.name} ({operator.name}): {what} may be {values}",
            draft.locate(),
            [f"give it, as in {operator.name}({conflict.values[0]})" if argument else "give every size"],
        )
    reason = f": {conflict.reason}" if conflict.reason else ""
    return IsomorphError(
        "E_UNRESOLVED",
        f"{draft.name} ({operator.name}): nothing says what {what} is{reason}",
        draft.locate(),
        [
            f"give it, as in {operator.name}(64), or declare the output's shape"
            if argument
            else "give every size"
        ],
    )
