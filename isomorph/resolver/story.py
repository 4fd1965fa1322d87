"""Turns a conflict into an error that says where each size came from."""

from __future__ import annotations

from typing import Any

from isomorph.dimensions import Unknown, show_shape
from isomorph.errors import IsomorphError
from isomorph.operators.declare import Conflict
from isomorph.resolver.budget import Exhausted
from isomorph.resolver.contracts import Declared
from isomorph.resolver.origins import known_shape, line_of, origin, origin_line, shape_line, shape_text, spell
from isomorph.resolver.search import NoSolution, Several, Undetermined
from isomorph.resolver.shapes import AxisClash, RankClash
from isomorph.resolver.solver import Clash, Impossible, Indivisible, OpenShape
from isomorph.resolver.state import Draft, State


def explain(state: State, conflict: Any) -> IsomorphError:
    """The error for a conflict that arose while ``solver.owner`` was at work."""
    owner = getattr(conflict, "owner", None)
    owner = state.solver.owner if owner is None else owner
    if isinstance(conflict, Several | Undetermined):
        return _not_unique(state, conflict)
    if isinstance(conflict, NoSolution):
        return _nothing_fits(state, conflict)
    if isinstance(conflict, Exhausted):
        return _too_much_work(state, conflict, owner)
    if owner >= len(state.drafts):
        return _contract_error(state, conflict)
    draft = state.drafts[owner]
    if isinstance(conflict, Conflict):
        return _broken_rule(state, draft, conflict)
    if isinstance(conflict, RankClash):
        return _rank_error(state, draft, conflict)
    if isinstance(conflict, AxisClash):
        return _axis_error(state, draft, conflict)
    return IsomorphError(
        "E_CONSTRAINT",
        f"{draft.operator.name}: {_clash_text(state, conflict)}",
        draft.locate(),
        [*_shape_lines(state, draft), *_origins_of(state, draft, (conflict.left, conflict.right))],
    )


def _broken_rule(state: State, draft: Draft, conflict: Conflict) -> IsomorphError:
    name = draft.operator.name
    hints = [origin_line(state, draft, size) for size in conflict.sizes]
    message = conflict.message
    if conflict.code != "E_CONSTRAINT" and not message.startswith(name):
        message = f"{name}: {message}"
    if conflict.code == "E_CONSTRAINT" and not conflict.sizes:
        hints += _shape_lines(state, draft)
    place = draft.locate(_argument_key(draft, conflict.argument))
    return IsomorphError(conflict.code, message, place, [*filter(None, hints), *conflict.hints])


def _nothing_fits(state: State, conflict: NoSolution) -> IsomorphError:
    """A search ran out of values: what the first of them broke is an example, not a fact."""
    example = conflict.example
    what = example.message if isinstance(example, Conflict) else _clash_text(state, example)
    if conflict.owner < len(state.drafts):
        draft = state.drafts[conflict.owner]
        place = draft.locate(_argument_key(draft, getattr(example, "argument", None)))
    else:
        place = _contract_error(state, example).location
        what += ", as the output contract requires"
    open_sizes = [
        f"{_label(state, v)} of {state.drafts[v.owner].name} "
        f"({state.drafts[v.owner].operator.name}){line_of(state.drafts[v.owner])}"
        for v in conflict.unknowns[:4]
    ]
    return IsomorphError(
        "E_CONSTRAINT",
        f"no choice of the open sizes fits; one of them fails because {what}",
        place,
        [f"open: {size}" for size in open_sizes],
    )


def _too_much_work(state: State, spent: Exhausted, owner: int) -> IsomorphError:
    """The sizes that are not given hang together in more ways than may be tried."""
    variable = spent.variable
    draft = state.drafts[min(owner, len(state.drafts) - 1) if variable is None else variable.owner]
    argument = None if variable is None else _argument_of(state, variable)
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


def _contract_error(state: State, conflict: Any) -> IsomorphError:
    """No sizes make the outputs what their contract says."""
    contracts = zip(state.outputs, state.output_contracts, strict=False)
    pairs = [
        (value, contract)
        for (_, value), contract in contracts
        if state.solver.values(known_shape(state, value)) != contract.shape
    ]
    note = _clash_text(state, conflict) if isinstance(conflict, Clash) else str(conflict)
    if not pairs:
        return IsomorphError("E_CONSTRAINT", f"the output contract cannot be met: {note}")
    value, contract = pairs[0]
    error = output_error(state, value, contract, known_shape(state, value))
    return IsomorphError(error.code, error.message, error.location, [*error.hints, note])


def _shape_lines(state: State, draft: Draft) -> list[str]:
    values = dict.fromkeys(value for _, value in draft.inputs)
    return [line for value in values if (line := shape_line(state, value))]


def _origins_of(state: State, draft: Draft, sizes: tuple[Any, ...]) -> list[str]:
    """Where the two sizes of a clash come from, for the axes of the inputs that have them."""
    lines: dict[str, None] = {}
    for _, value in draft.inputs:
        for axis, dim in enumerate(known_shape(state, value)):
            size = state.solver.value(dim)
            if axis and size in sizes:
                lines[f"{size} comes from {origin(state, value, axis)}"] = None
    return list(lines)[:4]


def _argument_key(draft: Draft, argument: str | None) -> Any:
    """How the call locates an argument: by position, by name, or not at all."""
    if argument is None or argument in draft.call.keywords:
        return argument
    for i, spec in enumerate(draft.operator.positional):
        if spec.name == argument and i < len(draft.call.arguments):
            return i
    return None


def _clash_text(state: State, clash: Clash) -> str:
    if isinstance(clash, Impossible):
        return clash.note
    left, right = spell(state, clash.left), spell(state, clash.right)
    if isinstance(clash, Indivisible):
        return f"{left} cannot be {right} ({clash.note})"
    return f"{left} and {right} must be equal and are not"


def _rank_error(state: State, draft: Draft, clash: RankClash) -> IsomorphError:
    port, shape = clash.port, clash.shape
    if clash.ranks:
        wanted = f"rank {' or '.join(map(str, clash.ranks))}"
    else:
        wanted = f"at least rank {len(port.axes) - 1}"
    value = draft.value_at(port.name)
    hints = []
    if value is not None and (line := shape_line(state, value)):
        hints.append(line)
    return IsomorphError(
        "E_CONSTRAINT",
        f"{draft.operator.name} takes {port.pattern} ({wanted}), got {shape_text(state, shape)} "
        f"(rank {len(shape)})",
        draft.locate(),
        hints,
    )


def _axis_error(state: State, draft: Draft, clash: AxisClash) -> IsomorphError:
    operator, port = draft.operator, clash.port
    value = draft.value_at(port.name)
    assert value is not None  # it is what has the wrong size
    shape = state.closed_shape(value)
    argument = next(
        (
            name for name, spec in operator.arguments.items()
            if spec.size == clash.variable and draft.arguments.get(name) is not None
        ),
        None,
    )  # fmt: skip
    first_size, size = spell(state, clash.first), spell(state, clash.other)
    got = f"{port.name}={shape_text(state, shape)}"
    if argument is not None:
        message = f"{operator.name}: {argument}={first_size} but {got} has size {size} there"
        hints = [f"{size} comes from {origin(state, value, clash.axis)}"]
        hints += [clash.note] if clash.note else []
        return IsomorphError("E_CONSTRAINT", message, draft.locate(_argument_key(draft, argument)), hints)
    first_port, first = _first_holder(draft, clash)
    message = (
        f"{operator.name}: {first_port}={shape_text(state, state.shapes[first])} and {got} "
        f"differ in axis {clash.axis} ({first_size} and {size})"
    )
    hints = [
        f"{first_size} comes from {origin(state, first, clash.axis)}",
        f"{size} comes from {origin(state, value, clash.axis)}",
        *([clash.note] if clash.note else []),
    ]
    return IsomorphError("E_CONSTRAINT", message, draft.locate(), hints)


def _first_holder(draft: Draft, clash: AxisClash) -> tuple[str, int]:
    for port in draft.operator.signature.inputs:
        if clash.variable in port.axes and (value := draft.value_at(port.name)) is not None:
            return port.name, value
    return draft.inputs[0]


def output_error(
    state: State,
    value: int,
    contract: Declared,
    shape: tuple[Any, ...],
    axis: int | None = None,
    clash: Clash | None = None,
) -> IsomorphError:
    """An output does not have the contract's shape."""
    name = f"output {contract.name}" if contract.name else "the output"
    message = f"{name} is {shape_text(state, shape)}, the contract says {show_shape(contract.shape)}"
    hints = []
    if axis is None:
        hints.append(shape_line(state, value))
    else:
        hints.append(f"axis {axis}: {spell(state, shape[axis])} comes from {origin(state, value, axis)}")
        hints.append(f"axis {axis}: {contract.shape[axis]} is required by the output contract")
        if clash is not None and clash.note:
            hints.append(clash.note)
    call = state.producers[value][0]
    place = contract.location or (state.drafts[call].locate() if call >= 0 else None)
    return IsomorphError("E_CONSTRAINT", message, place, [hint for hint in hints if hint])


def symbolic_size_error(state: State, draft: Draft, name: str, size: Any) -> IsomorphError:
    """A symbol stands where a number must be."""
    line = origin_line(state, draft, name)
    return IsomorphError(
        "E_UNRESOLVED",
        f"{draft.operator.name}: {name} is {size}, which is not known until run time, but it must be a number",
        draft.locate(),
        [*([line] if line else []), f"give a number for {size}"],
    )


def open_shape_error(state: State, value: int) -> IsomorphError:
    """A tensor's rank is not fixed by anything."""
    shape = state.shapes[value]
    draft = state.drafts[shape.owner if isinstance(shape, OpenShape) else state.producers[value][0]]
    while isinstance(shape, OpenShape) and shape.promised and draft.inputs:
        shape = state.shapes[draft.inputs[0][1]]
        if isinstance(shape, OpenShape):
            draft = state.drafts[shape.owner]
    given = shape_text(state, shape)
    count = (
        state.solver.value(shape.count) if isinstance(shape, OpenShape) and shape.count is not None else None
    )
    what = f" for {spell(state, count)} elements per example" if count is not None else ""
    return IsomorphError(
        "E_AMBIGUOUS",
        f"{draft.operator.name} gives {given}{what}, and nothing fixes how many axes follow",
        draft.locate(),
        ["give every size, or declare the output's shape"],
    )


def _argument_of(state: State, variable: Unknown) -> str | None:
    """The argument that states an unknown, if one does."""
    if variable.argument:
        return variable.argument
    arguments = state.drafts[variable.owner].operator.arguments
    return next((name for name, spec in arguments.items() if spec.size == variable.label), None)


def _label(state: State, variable: Unknown) -> str:
    return _argument_of(state, variable) or variable.label


def _not_unique(state: State, conflict: Several | Undetermined) -> IsomorphError:
    variable = conflict.variable
    draft = state.drafts[variable.owner]
    operator = draft.operator
    argument = _argument_of(state, variable)
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
