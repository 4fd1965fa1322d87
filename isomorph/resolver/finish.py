"""The last steps of resolving: instances, parameters, bindings, and the plan itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from isomorph import initializers
from isomorph.dimensions import Symbol, written_shape
from isomorph.errors import IsomorphError, did_you_mean, nearest, shorten
from isomorph.language.graph import Contract
from isomorph.operators.declare import Conflict, Operator
from isomorph.resolver import story
from isomorph.resolver.resolved import DTYPE_BYTES, Bound, Node, ResolvedGraph, Value
from isomorph.resolver.solver import OpenShape
from isomorph.resolver.state import Draft, State

_EMPTY: dict[str, Any] = {}


def finish(state: State, outputs: list[tuple[str, int]], definition: Callable[..., str]) -> ResolvedGraph:
    """Everything is solved: check what only a whole plan can break and build it."""
    shapes = _closed_shapes(state)
    _check_reachable(state, outputs)
    nodes = _nodes(state, shapes)
    _check_ties(state, nodes)
    resolved = ResolvedGraph(
        dtype=state.dtype,
        values=_values(state, nodes, shapes),
        inputs=tuple((one.name, i) for i, one in enumerate(state.input_contracts)),
        outputs=tuple(outputs),
        nodes=nodes,
        bounds=_bounds(state),
        definition=definition(_input_statements(state), _output_statements(state, outputs, shapes)),
        named_inputs=state.named_inputs,
        optional=tuple(one.name for one in state.input_contracts if one.optional),
    )
    _check_parameter_bytes(state, resolved)
    return resolved


def _input_statements(state: State) -> list[Contract]:
    named = state.named_inputs
    return [
        Contract(
            one.name if named else "",
            written_shape(one.shape),
            None if one.dtype == state.dtype else one.dtype,
            optional=one.optional,
        )
        for one in state.input_contracts
    ]


def _output_statements(state: State, outputs: list[tuple[str, int]], shapes: list[Any]) -> list[Contract]:
    if state.output_contracts:
        return [Contract(one.name, written_shape(one.shape)) for one in state.output_contracts]
    if state.graph.returned is None:
        return []  # what the last call has several of is known without saying so
    return [Contract(name, written_shape(shapes[value])) for name, value in outputs if name]


def _closed_shapes(state: State) -> list[tuple[Any, ...]]:
    """Every tensor's shape with the unknowns put in; the open ones stay, for the story of an error."""
    solver = state.solver
    known: dict[Any, tuple[Any, ...]] = {}
    shapes = []
    for shape in state.shapes:
        if type(shape) is OpenShape:
            shape = shape.closed or ()
        if solver.unknowns:
            closed = known.get(shape)
            if closed is None:
                closed = known[shape] = solver.values(shape)
            shape = closed
        shapes.append(shape)
    return shapes


def _check_reachable(state: State, outputs: list[tuple[str, int]]) -> None:
    """Every node must reach an output and every input must be read."""
    needed = [False] * len(state.shapes)
    for _, value in outputs:
        needed[value] = True
    for draft in reversed(state.drafts):
        if any(needed[value] for value in draft.outputs):
            for _, value in draft.inputs:
                needed[value] = True
        else:
            raise IsomorphError(
                "E_BINDING",
                f"{draft.name} ({draft.operator.name}) reaches no output",
                draft.locate(),
                ["use its result, publish it with output(...), or remove the call"],
            )
    for i, one in enumerate(state.input_contracts):
        if not needed[i]:
            raise IsomorphError(
                "E_BINDING", f"input {one.name} is never read", one.location,
                ["use it in a call, or remove its declaration"],
            )  # fmt: skip


def _instance(state: State, draft: Draft, shapes: list[Any]) -> Operator:
    """The operator of a draft with every size known; a symbol may size nothing."""
    arguments = draft.arguments
    if draft.operator.settle is not None:
        arguments = draft.operator.settle(
            arguments,
            [shapes[value] for _, value in draft.inputs],
            [shapes[value] for value in draft.outputs],
        )
    elif draft.instance is not None:
        return draft.instance
    state.solver.owner = draft.index
    sizes = {name: state.solver.value(draft.sizes[name]) for name in draft.operator.sizing}
    for name, size in sizes.items():
        if type(size) is not int:
            raise story.symbolic_size_error(state, draft, name, size)
    return draft.operator.bind(arguments, sizes)


def _nodes(state: State, shapes: list[Any]) -> tuple[Node, ...]:
    nodes = []
    for draft in state.drafts:
        call = draft.call
        operator = _instance(state, draft, shapes)
        state.solver.owner = draft.index
        _ = operator.parameter_count  # makes its children now, so that what they refuse has a place
        init, trainable, tie = _EMPTY, _EMPTY, _EMPTY
        if call.init is not None or call.trainable is not None or call.tie is not None:
            init, trainable, tie = _init(draft, operator), _trainable(draft, operator), _tie(draft, operator)
        inputs = tuple(draft.inputs)
        nodes.append(
            Node(draft.index, draft.name, operator, inputs, draft.outputs, init, trainable, tie, call.locate)
        )
    return tuple(nodes)


def _values(state: State, nodes: tuple[Node, ...], shapes: list[Any]) -> tuple[Value, ...]:
    values = []
    for value, (call, output) in enumerate(state.producers):
        if call < 0:
            name = state.input_contracts[output].name
            source = name if state.named_inputs else "input"
            values.append(Value(source, shapes[value], state.dtypes[value], -1, name))
        else:
            ports = nodes[call].operator.signature.outputs
            port = ports[output].name
            source = f"{nodes[call].name}.{port}" if len(ports) > 1 else nodes[call].name
            values.append(Value(source, shapes[value], state.dtype, call, port))
    return tuple(values)


# -- what a call says of its parameters ----------------------------------------------------------


def _unknown_path(draft: Draft, what: str, path: Any, known: Any) -> IsomorphError:
    hints = did_you_mean(str(path), known) or [f"paths: {', '.join(known) or 'none'}"]
    return IsomorphError(
        "E_ARGUMENT", f"{draft.operator.name}: {what} names {shorten(path)}, which is no parameter of it",
        draft.locate(what), hints,
    )  # fmt: skip


def _init(draft: Draft, operator: Operator) -> dict[str, initializers.Initializer]:
    initials: dict[str, initializers.Initializer] = {}
    tied = draft.call.tie or {}
    for path, written in (draft.call.init or {}).items():
        spec = operator.all_parameters.get(path)
        if spec is None:
            raise _unknown_path(draft, "init", path, operator.all_parameters)
        try:
            initial = _initializer(written)
        except IsomorphError as error:
            raise IsomorphError(
                error.code, f"init of {path}: {error.message}", draft.locate("init"), error.hints
            ) from None
        if len(spec.shape) < initial.minimum_rank:
            raise IsomorphError(
                "E_ARGUMENT",
                f"init of {path}: {initial.scheme} needs at least {initial.minimum_rank} axes, "
                f"the parameter has shape {list(spec.shape)}",
                draft.locate("init"),
            )
        if path in tied:
            raise IsomorphError(
                "E_ARGUMENT",
                f"init of {path}: it is tied to {tied[path]}, whose init it takes",
                draft.locate("init"),
            )
        initials[path] = initial
    return initials


def _initializer(written: Any) -> initializers.Initializer:
    if isinstance(written, initializers.Initializer):
        return written
    if type(written) in (int, float):
        return initializers.Constant(written)
    raise IsomorphError(
        "E_ARGUMENT",
        f"must be a number or a scheme such as normal(std=0.02), got {shorten(written)}",
        hints=[f"schemes: {', '.join(initializers.SCHEMES)}"],
    )


def _trainable(draft: Draft, operator: Operator) -> dict[str, bool]:
    written = draft.call.trainable
    if written is None:
        return _EMPTY
    if isinstance(written, bool):
        _check_untied(draft, operator, "", written)
        return {"": written}
    prefixes = {
        ".".join(path.split(".")[: i + 1])
        for path in operator.all_parameters
        for i in range(path.count(".") + 1)
    }
    for path, flag in written.items():
        if path not in prefixes:
            raise _unknown_path(draft, "trainable", path, sorted(prefixes))
        if type(flag) is not bool:
            raise IsomorphError(
                "E_ARGUMENT", f"trainable of {path} must be True or False, got {shorten(flag)}",
                draft.locate("trainable"),
            )  # fmt: skip
        _check_untied(draft, operator, path, flag)
    return dict(written)


def _check_untied(draft: Draft, operator: Operator, prefix: str, flag: bool) -> None:
    """E_ARGUMENT when a flag would reach a tied parameter, whose owner decides."""
    tied = draft.call.tie or {}
    covered = [p for p in operator.all_parameters if not prefix or p == prefix or p.startswith(prefix + ".")]
    for path in covered:
        if path in tied:
            others = ", ".join(f'"{other}": {flag}' for other in covered if other not in tied)
            raise IsomorphError(
                "E_ARGUMENT",
                f"trainable of {path}: it is tied to {tied[path]}, which says whether it is trained",
                draft.locate("trainable"),
                [f"say it of the others alone: trainable={{{others}}}"] if others else (),
            )


def _tie(draft: Draft, operator: Operator) -> dict[str, str]:
    for path, owner in (draft.call.tie or {}).items():
        if path not in operator.all_parameters:
            raise _unknown_path(draft, "tie", path, operator.all_parameters)
        if not isinstance(owner, str):
            raise IsomorphError(
                "E_ARGUMENT", f'tie of {path} must be a path such as "wte.weight", got {shorten(owner)}',
                draft.locate("tie"),
            )  # fmt: skip
    return dict(draft.call.tie or {})


def _check_ties(state: State, nodes: tuple[Node, ...]) -> None:
    tying = [node for node in nodes if node.tie]
    if not tying:
        return
    by_name = {node.name: node for node in nodes}
    for node in tying:
        draft = state.drafts[node.index]
        for path, owner in node.tie.items():
            name, _, inner = owner.partition(".")
            owning = by_name.get(name)
            spec = owning.operator.all_parameters.get(inner) if owning else None
            if owning is None or spec is None:
                likely = [owning] if owning else [by_name[other] for other in nearest(name, by_name)]
                known = [f"{n.name}.{p}" for n in likely for p in n.operator.all_parameters]
                raise IsomorphError(
                    "E_ARGUMENT", f"tie of {path}: there is no parameter {shorten(owner)}", draft.locate("tie"),
                    did_you_mean(owner, known),
                )  # fmt: skip
            if owning is node and inner == path:
                raise IsomorphError(
                    "E_ARGUMENT", f"tie of {path}: a parameter cannot be tied to itself", draft.locate("tie")
                )
            if inner in owning.tie:
                ring = owning.tie[inner] == f"{node.name}.{path}"
                raise IsomorphError(
                    "E_ARGUMENT",
                    f"tie of {path}: {owner} is itself tied to {owning.tie[inner]}",
                    draft.locate("tie"),
                    ["one of the two must hold the parameter" if ring else f"tie it to {owning.tie[inner]}"],
                )
            own = node.operator.all_parameters[path].shape
            if own != spec.shape:
                raise IsomorphError(
                    "E_CONSTRAINT",
                    f"tie of {node.name}.{path}: its shape is {list(own)}, that of {owner} is {list(spec.shape)}",
                    draft.locate("tie"),
                )


# -- bounds ------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """A bound on a size, and the call that states it."""

    draft: Draft
    size: Any
    text: str
    low: int | None = None
    high: int | None = None


def _bounds(state: State) -> dict[str, Bound]:
    """What each symbol may be so that every stated bound holds."""
    solver = state.solver
    rules = []
    for draft in state.drafts:
        for name, argument in draft.operator.bounds.items():
            limit, size = draft.arguments[argument], solver.value(draft.sizes[name])
            solver.owner = draft.index
            draft.check_bound(name, size)
            rules.append(_Rule(draft, size, f"at most {limit}", high=limit))
    for dim, minimum, owner in solver.minimums:
        rules.append(_Rule(state.drafts[owner], solver.value(dim), f"at least {minimum}", low=minimum))
    bounds: dict[str, Bound] = {}
    sources: dict[str, list[str]] = {}
    for rule in rules:
        solver.owner = rule.draft.index
        if type(rule.size) is not int:
            _narrow(bounds, sources, rule)
        elif rule.low is not None and rule.size < rule.low:
            raise Conflict(f"a size would have to be {rule.text}, it is {rule.size}")
    return bounds


def _narrow(bounds: dict[str, Bound], sources: dict[str, list[str]], rule: _Rule) -> None:
    """Turn a bound on ``c * symbol + k`` into one on the symbol."""
    size = rule.size
    if len(size.terms) != 1 or not isinstance(size.terms[0][0], Symbol) or size.terms[0][1] < 0:
        raise Conflict(
            f"{size} must be {rule.text}, which cannot be said of one symbol",
            code="E_UNRESOLVED",
            hints=("give numbers for all but one of its symbols",),
        )
    (variable, c), k = size.terms[0], size.constant
    before = bounds.get(variable.name, Bound())
    lowest, highest = before
    if rule.low is not None:
        lowest = max(lowest, -((k - rule.low) // c))
    if rule.high is not None:
        limit = (rule.high - k) // c
        highest = limit if highest is None else min(highest, limit)
    said = sources.setdefault(variable.name, [])
    place = rule.draft.locate()
    line = f" (line {place.line})" if place else ""
    said.append(f"{rule.draft.name} ({rule.draft.operator.name}){line} needs {size} to be {rule.text}")
    if highest is not None and lowest > highest:
        raise Conflict(
            f"{variable.name} would have to be at least {lowest} and at most {highest}", hints=tuple(said)
        )
    bounds[variable.name] = Bound(lowest, highest)


def _check_parameter_bytes(state: State, resolved: ResolvedGraph) -> None:
    limit = state.limits["max_parameter_bytes"]
    size = resolved.parameter_count * DTYPE_BYTES[resolved.dtype]
    if size <= limit:
        return
    largest = max(resolved.nodes, key=lambda node: node.operator.parameter_count)
    raise IsomorphError(
        "E_RESOURCE",
        f"the parameters take {size:,} bytes, the limit is {limit:,}",
        largest.location,
        [
            f"the largest node is {largest.name} ({largest.operator.name}) with "
            f"{largest.operator.parameter_count:,} parameters",
            'raise it with limits={"max_parameter_bytes": ...}',
        ],
    )
