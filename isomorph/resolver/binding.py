"""Gives a call its arguments by name, and every input port its tensor."""

from __future__ import annotations

from typing import Any

from isomorph.errors import IsomorphError, shorten
from isomorph.language.graph import Reference
from isomorph.resolver.origins import source_of
from isomorph.resolver.state import Draft, State


def bind_arguments(state: State, draft: Draft) -> tuple[int, dict[str, Any]]:
    """Complete, checked arguments and a number that is equal for equal ones."""
    call, operator = draft.call, draft.operator
    given = call.arguments
    keywords = call.keywords
    key: Any = (
        operator, given, tuple(map(type, given)), tuple(keywords.items()),
        tuple(map(type, keywords.values())),
    )  # fmt: skip
    try:
        numbered = state.known_arguments.get(key)
    except TypeError:  # a list or dictionary among the values; refused below with its place
        key, numbered = None, None
    if numbered is None:
        numbered = len(state.known_arguments), operator.complete(named_arguments(draft))
        if key is not None:
            state.known_arguments[key] = numbered
    return numbered


def named_arguments(draft: Draft) -> dict[str, Any]:
    """Positional literals given their names."""
    call, operator = draft.call, draft.operator
    named: dict[str, Any] = {}
    positional = operator.positional
    if positional and positional[0].variadic:
        if call.arguments:
            named[positional[0].name] = call.arguments
    else:
        if len(call.arguments) > len(positional):
            takes = ", ".join(spec.name for spec in positional) or "none"
            others = [name for name, spec in operator.arguments.items() if spec not in positional]
            raise IsomorphError(
                "E_ARGUMENT",
                f"{operator.name} takes {len(positional)} positional argument"
                f"{'s' * (len(positional) != 1)} ({takes}), got {len(call.arguments)}",
                draft.locate(len(positional)),
                ["give the others by keyword: " + ", ".join(others)] if others else (),
            )
        named.update(zip((spec.name for spec in positional), call.arguments, strict=False))
    for name, value in call.keywords.items():
        if name in named:
            raise IsomorphError(
                "E_ARGUMENT",
                f"{operator.name}: {name} is given by position and by keyword",
                draft.locate(name),
            )
        if any(port.name == name for port in operator.signature.inputs):
            raise IsomorphError(
                "E_BINDING",
                f"{operator.name}: {name} takes a tensor, got {shorten(value)}",
                draft.locate(name),
            )
        named[name] = value
    return named


def bind_tensors(state: State, draft: Draft) -> None:
    """Find the value for every input port; E_BINDING says which tensors an operator takes."""
    call, ports = draft.call, draft.operator.signature.inputs
    if len(ports) == 1 and not call.inputs and not call.keyword_inputs and not ports[0].variadic:
        reference = call.current
        if reference is None:
            raise no_current(draft)
        draft.inputs.append((ports[0].name, value_of(state, draft, reference, None)))
        check_port_dtype(state, draft, ports[0], draft.inputs[0][1])
        return
    given = assign_tensors(draft, ports)
    for port, reference, place in given:
        value = value_of(state, draft, reference, place)
        draft.inputs.append((port if isinstance(port, str) else port.name, value))
        check_port_dtype(state, draft, ports[0] if isinstance(port, str) else port, value)


def assign_tensors(draft: Draft, ports: Any) -> list[tuple[Any, Reference, Any]]:
    """Port, reference and place in the source of every tensor that a call is given; E_BINDING where they do not fit."""
    call, name = draft.call, draft.operator.name
    if ports[0].variadic:
        if len(call.inputs) < 2 or call.keyword_inputs:
            raise IsomorphError(
                "E_BINDING", f"{name} takes two or more tensors, got {len(call.inputs)}", draft.locate(),
                [f"write {name}(a, b)"],
            )  # fmt: skip
        return [(f"{ports[0].name}{i}", r, ("input", i)) for i, r in enumerate(call.inputs)]
    if len(call.inputs) > len(ports):
        raise IsomorphError(
            "E_BINDING",
            f"{name} takes {len(ports)} tensor{'s' * (len(ports) > 1)} "
            f"({', '.join(port.name for port in ports)}), got {len(call.inputs)}",
            draft.locate(("input", len(ports))),
        )
    chosen: dict[str, tuple[Reference, Any]] = {}
    for i, (port, reference) in enumerate(zip(ports, call.inputs, strict=False)):
        chosen[port.name] = reference, ("input", i)
    for key, reference in call.keyword_inputs.items():
        if all(port.name != key for port in ports):
            raise IsomorphError(
                "E_BINDING",
                f"{name} has no input {key!r}; it takes {', '.join(port.name for port in ports)}",
                draft.locate(key),
            )
        if key in chosen:
            raise IsomorphError("E_BINDING", f"{name}: input {key} is given twice", draft.locate(key))
        chosen[key] = reference, key
    required = [port for port in ports if not port.optional]
    if len(required) == 1 and required[0].name not in chosen:
        if call.current is None:
            raise no_current(draft)
        chosen[required[0].name] = call.current, None
    missing = [port.name for port in required if port.name not in chosen]
    if missing:
        takes = ", ".join(port.name for port in required)
        raise IsomorphError(
            "E_BINDING", f"{name} takes the tensors {takes}; missing: {', '.join(missing)}", draft.locate(),
            [f"write {name}({takes})"],
        )  # fmt: skip
    return [(port, *chosen[port.name]) for port in ports if port.name in chosen]


def no_current(draft: Draft) -> IsomorphError:
    """The error of a call without a tensor where none is current."""
    name = draft.operator.name
    return IsomorphError(
        "E_BINDING", f"{name} needs a tensor and there is no current one here", draft.locate(),
        [f"give it first, as in {name}(h, ...)"],
    )  # fmt: skip


def value_of(state: State, draft: Draft | None, reference: Reference, place: Any) -> int:
    """The value that a reference means; E_BINDING when it means several."""
    call, output = reference
    if call < 0:
        return output or 0
    producer = state.drafts[call]
    if output is None:
        if len(producer.outputs) > 1:
            ports = [port.name for port in producer.operator.signature.outputs]
            raise IsomorphError(
                "E_BINDING",
                f"{producer.name} ({producer.operator.name}) has several outputs, so none of them is current",
                (draft or producer).locate(place),
                [f"name them: {', '.join(ports)} = {producer.operator.name}(...)"],
            )
        output = 0
    return producer.outputs[output]


def check_port_dtype(state: State, draft: Draft, port: Any, value: int) -> None:
    """E_DTYPE unless a value has the dtype that a port takes."""
    dtype = state.dtypes[value]
    expected = state.dtype if port.dtype == "compute" else port.dtype
    if dtype == expected or (expected == "int64" and dtype == "int32"):
        return
    hint = {
        "int64": 'declare the input as integers: input(..., dtype="int64")',
        "bool": 'declare the input as booleans: input(..., dtype="bool")',
    }.get(expected, "")
    if not hint and "int" in dtype:
        hint = "integers become features through embedding(...)"
    elif not hint and "float" in dtype:
        hint = f'declare the input as {expected}, or resolve with dtype="{dtype}"'
    raise IsomorphError(
        "E_DTYPE",
        f"{draft.operator.name}: input {port.name} must be {expected}, {source_of(state, value)} is {dtype}",
        draft.locate(),
        [hint] if hint else [],
    )
