"""A plan as JSON, guarded by a digest over its exact text and by its own definition, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from isomorph import initializers
from isomorph.dimensions import parse_dimension, written_shape
from isomorph.errors import IsomorphError, shorten
from isomorph.operators import catalogue
from isomorph.operators.declare import Conflict
from isomorph.resolver.resolution import Request
from isomorph.resolver.resolve import resolve_text
from isomorph.resolver.resolved import Bound, Node, ResolvedGraph, Value

FORMAT = "isomorph-plan/1"
_HEAD = '{"digest":"sha256:'
_MIDDLE = '","plan":'


def plan_to_json(plan: ResolvedGraph) -> str:
    """One line of JSON: the digest first, then the plan whose text it is of."""
    body = json.dumps(_plan_to_data(plan), separators=(",", ":"), allow_nan=False)
    return f"{_HEAD}{_digest(body)}{_MIDDLE}{body}}}"


def resolved_from_json(text: str | bytes, limits: Mapping[str, int] | None = None) -> ResolvedGraph:
    """Read :func:`plan_to_json`'s text.

    A digest can be made anew by anyone, so the plan is also compared with what its definition resolves to:
    a text cannot smuggle in what no definition could say.

    Raises:
        IsomorphError: E_INTEGRITY when the text was altered or is no plan; E_OPERATOR when it names an
            operator, or a version of one, that is not installed.
    """
    body = _verified_body(text)
    try:
        data = json.loads(body)
        if data["format"] != FORMAT:
            raise IsomorphError(
                "E_INTEGRITY", f"the plan's format is {data['format']!r}, this version reads {FORMAT!r}",
                hints=["read it with the version of isomorph that wrote it"],
            )  # fmt: skip
        plan = _plan_from_data(data)
    except (KeyError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise _altered(f"its contents do not make a plan ({type(error).__name__})") from None
    except Conflict as conflict:
        raise _altered(conflict.message) from None
    try:
        stated = resolve_text(plan.definition, Request(dtype=plan.dtype, limits=limits), "<saved plan>")
    except IsomorphError as error:
        if error.code == "E_RESOURCE":
            raise
        raise _altered(f"its definition does not resolve: {error.message}") from None
    if stated != plan:
        raise _altered("it is not what its definition says")
    return stated


def _digest(body: str) -> str:
    return sha256(body.encode("utf-8", "surrogatepass")).hexdigest()


def _verified_body(text: str | bytes) -> str:
    if not isinstance(text, str | bytes):
        raise IsomorphError("E_ARGUMENT", f"a plan's JSON is text, got {shorten(type(text).__name__)}")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError:
            raise _altered("it is not UTF-8 text") from None
    start = len(_HEAD) + 64
    if not text.startswith(_HEAD) or text[start : start + len(_MIDDLE)] != _MIDDLE or text[-1:] != "}":
        raise _altered("it does not look like one")
    body = text[start + len(_MIDDLE) : -1]
    if _digest(body) != text[len(_HEAD) : start]:
        raise _altered("its digest does not match its contents")
    return body


def _altered(why: str) -> IsomorphError:
    return IsomorphError(
        "E_INTEGRITY",
        f"this is not a plan as it was saved: {why}",
        hints=["save the plan again with to_json(), or resolve its definition"],
    )


def _plan_to_data(plan: ResolvedGraph) -> dict[str, Any]:
    optional = {"optional": plan.optional} if plan.optional else {}
    return {
        "format": FORMAT,
        "dtype": plan.dtype,
        "named_inputs": plan.named_inputs,
        "values": [[v.source, written_shape(v.shape), v.dtype, v.node, v.port] for v in plan.values],
        "inputs": plan.inputs,
        "outputs": plan.outputs,
        **optional,
        "nodes": [_node_to_data(node) for node in plan.nodes],
        "bounds": {symbol: [bound.low, bound.high] for symbol, bound in plan.bounds.items()},
        "definition": plan.definition,
    }


def _shape_from_data(data: list[Any]) -> tuple[Any, ...]:
    return tuple(size if type(size) is int else parse_dimension(size) for size in data)


def _node_to_data(node: Node) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": node.name,
        "operator": node.operator.identity,
        "arguments": node.operator.argument_values,
        "sizes": dict(node.operator.sizes),
        "inputs": node.inputs,
        "outputs": node.outputs,
    }
    if node.init:
        data["init"] = {path: initial.to_json() for path, initial in node.init.items()}
    if node.trainable:
        data["trainable"] = dict(node.trainable)
    if node.tie:
        data["tie"] = dict(node.tie)
    return data


def _node_from_data(index: int, data: dict[str, Any]) -> Node:
    name, _, _ = data["operator"].partition("@")
    operator = catalogue.get(name)
    if operator is None:
        raise catalogue.unknown(name)
    if operator.identity != data["operator"]:
        raise IsomorphError(
            "E_OPERATOR", f"the plan needs {data['operator']}, installed is {operator.identity}",
            hints=["resolve the definition again, or install the version that the plan was made with"],
        )  # fmt: skip
    arguments = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data["arguments"].items()
    }
    return Node(
        index,
        data["name"],
        operator.bind(operator.complete(arguments), data["sizes"]),
        tuple((port, value) for port, value in data["inputs"]),
        tuple(data["outputs"]),
        {path: initializers.from_json(initial) for path, initial in data.get("init", {}).items()},
        data.get("trainable", {}),
        data.get("tie", {}),
    )


def _plan_from_data(data: dict[str, Any]) -> ResolvedGraph:
    return ResolvedGraph(
        dtype=data["dtype"],
        values=tuple(
            Value(source, _shape_from_data(shape), dtype, node, port)
            for source, shape, dtype, node, port in data["values"]
        ),
        inputs=tuple((name, value) for name, value in data["inputs"]),
        outputs=tuple((name, value) for name, value in data["outputs"]),
        nodes=tuple(_node_from_data(i, node) for i, node in enumerate(data["nodes"])),
        bounds={symbol: Bound(low, high) for symbol, (low, high) in data["bounds"].items()},
        definition=data["definition"],
        named_inputs=data["named_inputs"],
        optional=tuple(data.get("optional", ())),
    )
