"""Turns a conflict into an error that says where each size came from.

Origins are found by walking back from the tensor only when something failed, so that they cost
nothing otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isomorph.dimensions import Affine, Unknown, show_shape
from isomorph.errors import IsomorphError
from isomorph.operators.declare import Conflict
from isomorph.resolver.budget import Exhausted
from isomorph.resolver.search import NoSolution, Several, Undetermined
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
    if isinstance(conflict, NoSolution):
        return _nothing_fits(resolution, conflict)
    if isinstance(conflict, Exhausted):
        return _too_much_work(resolution, conflict, owner)
    if owner >= len(resolution.drafts):
        return _contract_error(resolution, conflict)
    draft = resolution.drafts[owner]
    if isinstance(conflict, Conflict):
        return _broken_rule(resolution, draft, conflict)
    if isinstance(conflict, RankClash):
        return _rank_error(resolution, draft, conflict)
    if isinstance(conflict, AxisClash):
        return _axis_error(resolution, draft, conflict)
    return IsomorphError(
        "E_CONSTRAINT",
        f"{draft.operator.name}: {_clash_text(resolution, conflict)}",
        draft.locate(),
        [*_shape_lines(resolution, draft), *_origins_of(resolution, draft, (conflict.left, conflict.right))],
    )


def _broken_rule(resolution: Resolution, draft: Draft, conflict: Conflict) -> IsomorphError:
    name = draft.operator.name
    hints = [_origin_line(resolution, draft, size) for size in conflict.sizes]
    message = conflict.message
    if conflict.code != "E_CONSTRAINT" and not message.startswith(name):
        message = f"{name}: {message}"
    if conflict.code == "E_CONSTRAINT" and not conflict.sizes:
        hints += _shape_lines(resolution, draft)
    place = draft.locate(_argument_key(draft, conflict.argument))
    return IsomorphError(conflict.code, message, place, [*filter(None, hints), *conflict.hints])


def _nothing_fits(resolution: Resolution, conflict: NoSolution) -> IsomorphError:
    """A search ran out of values: what the first of them broke is an example, not a fact."""
    example = conflict.example
    what = example.message if isinstance(example, Conflict) else _clash_text(resolution, example)
    if conflict.owner < len(resolution.drafts):
        draft = resolution.drafts[conflict.owner]
        place = draft.locate(_argument_key(draft, getattr(example, "argument", None)))
    else:
        place = _contract_error(resolution, example).location
        what += ", as the output contract requires"
    open_sizes = [
        f"{_label(resolution, v)} of {resolution.drafts[v.owner].name} "
        f"({resolution.drafts[v.owner].operator.name}){_line_of(resolution.drafts[v.owner])}"
        for v in conflict.unknowns[:4]
    ]
    return IsomorphError(
        "E_CONSTRAINT",
        f"no choice of the open sizes fits; one of them fails because {what}",
        place,
        [f"open: {size}" for size in open_sizes],
    )


def _too_much_work(resolution: Resolution, spent: Exhausted, owner: int) -> IsomorphError:
    """The sizes that are not given hang together in more ways than may be tried."""
    variable = spent.variable
    draft = resolution.drafts[min(owner, len(resolution.drafts) - 1) if variable is None else variable.owner]
    argument = None if variable is None else _argument_of(resolution, variable)
    which = "the sizes that are not given"
    if variable is not None:
        which += f", {argument or variable.label} of {draft.name} ({draft.operator.name}) among them,"
    return IsomorphError(
        "E_RESOURCE",
        f"{which} take more than {spent.limit:,} steps to work out (max_search_steps)",
        draft.locate(),
        [
            f"give it, as in {draft.operator.name}(64)" if argument else "give some of them",
            'or raise the limit: limits={"max_search_steps": ...}',
        ],
    )


def _contract_error(resolution: Resolution, conflict: Any) -> IsomorphError:
    """No sizes make the outputs what their contract says."""
    contracts = zip(resolution.outputs, resolution.output_contracts, strict=False)
    pairs = [
        (value, contract)
        for (_, value), contract in contracts
        if resolution.solver.values(_known_shape(resolution, value)) != contract.shape
    ]
    note = _clash_text(resolution, conflict) if isinstance(conflict, Clash) else str(conflict)
    if not pairs:
        return IsomorphError("E_CONSTRAINT", f"the output contract cannot be met: {note}")
    value, contract = pairs[0]
    error = output_error(resolution, value, contract, _known_shape(resolution, value))
    return IsomorphError(error.code, error.message, error.location, [*error.hints, note])


def _known_shape(resolution: Resolution, value: int) -> tuple[Any, ...]:
    shape = resolution.shapes[value]
    return (shape.closed or shape.prefix) if isinstance(shape, OpenShape) else shape


def _shape_lines(resolution: Resolution, draft: Draft) -> list[str]:
    values = dict.fromkeys(value for _, value in draft.inputs)
    return [line for value in values if (line := _shape_line(resolution, value))]


def _origins_of(resolution: Resolution, draft: Draft, sizes: tuple[Any, ...]) -> list[str]:
    """Where the two sizes of a clash come from, for the axes of the inputs that have them."""
    lines: dict[str, None] = {}
    for _, value in draft.inputs:
        for axis, dim in enumerate(_known_shape(resolution, value)):
            size = resolution.solver.value(dim)
            if axis and size in sizes:
                lines[f"{size} comes from {origin(resolution, value, axis)}"] = None
    return list(lines)[:4]


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
    if clash.note.startswith("not "):
        return f"{left} cannot be {right} ({clash.note})"
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
    followed = _same_axis(resolution, draft, axis, shape)
    if followed is not None:
        return followed
    here = f"{draft.name} ({operator.name}){_line_of(draft)}"
    cause = _cause(resolution, shape[axis]) if shape is not None else ""
    return f"{here}, {cause}" if cause else here


def _same_axis(resolution: Resolution, draft: Draft, axis: int, shape: Any) -> tuple[int, int] | None:
    """The one input axis that an output axis of an operator without pattern was taken over from, if sure."""
    operator = draft.operator
    if operator.relate is None or operator.settle is not None or shape is None or len(draft.inputs) != 1:
        return None
    value = draft.inputs[0][1]
    held = _known_shape(resolution, value)
    if operator.keeps_count:  # axes were moved: follow a size that occurs once
        places = [i for i, dim in enumerate(held) if dim == shape[axis]]
        return (value, places[0]) if len(places) == 1 else None
    for place in (axis, axis - len(shape) + len(held)):  # counted from the start, then from the end
        if 0 <= place < len(held) and held[place] == shape[axis]:
            return value, place
    return None


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
    return _requirement(resolution, resolution.drafts[cause], resolution.solver.value(dim))


def _requirement(resolution: Resolution, draft: Draft, size: Any) -> str:
    """How the call that fixed a size came by it: by an argument, or by another of its inputs."""
    for name, spec in draft.operator.arguments.items():
        if spec.size and draft.arguments.get(name) == size:
            return f"as {draft.name} = {draft.operator.name}({name}={size}){_line_of(draft)} requires"
    text = f"as {draft.name} ({draft.operator.name}){_line_of(draft)} requires"
    for _, value in draft.inputs:
        for axis, dim in enumerate(_known_shape(resolution, value)):
            if axis and type(dim) is int and dim == size:
                return f"{text}, where it comes from {origin(resolution, value, axis)}"
    return text


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
        hints += [clash.note] if clash.note else []
        return IsomorphError("E_CONSTRAINT", message, draft.locate(_argument_key(draft, argument)), hints)
    first_port, first = _first_holder(resolution, draft, clash)
    message = (
        f"{operator.name}: {first_port}={shape_text(resolution, resolution.shapes[first])} and {got} "
        f"differ in axis {clash.axis} ({held} and {found})"
    )
    hints = [
        f"{held} comes from {origin(resolution, first, clash.axis)}",
        f"{found} comes from {origin(resolution, value, clash.axis)}",
        *([clash.note] if clash.note else []),
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
    while isinstance(shape, OpenShape) and shape.promised and draft.inputs:
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


def _argument_of(resolution: Resolution, variable: Unknown) -> str | None:
    """The argument that states an unknown, if one does."""
    if variable.argument:
        return variable.argument
    arguments = resolution.drafts[variable.owner].operator.arguments
    return next((name for name, spec in arguments.items() if spec.size == variable.label), None)


def _label(resolution: Resolution, variable: Unknown) -> str:
    return _argument_of(resolution, variable) or variable.label


def _not_unique(resolution: Resolution, conflict: Several | Undetermined) -> IsomorphError:
    variable = conflict.variable
    draft = resolution.drafts[variable.owner]
    operator = draft.operator
    argument = _argument_of(resolution, variable)
    what = argument or variable.label
    if isinstance(conflict, Several):
        values = " or ".join(map(str, conflict.values))
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
