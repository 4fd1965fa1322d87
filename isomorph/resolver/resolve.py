"""From a text, or the calls of a Python function, to a resolved graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from isomorph.language.capture import capture
from isomorph.language.graph import Contract
from isomorph.language.parser import parse
from isomorph.language.writer import with_contracts, write
from isomorph.limits import limits_with
from isomorph.operators import catalogue
from isomorph.resolver import contracts
from isomorph.resolver.resolution import Request, Resolution
from isomorph.resolver.resolved import ResolvedGraph


def resolve_text(text: str | bytes, request: Request, file: str) -> ResolvedGraph:
    """The graph of a definition, resolved; ``file`` is the name shown in errors."""
    bounds = limits_with(request.limits)
    given = contracts.given_contracts("input", request.input)
    names = tuple(one.name or "x" for one in given) or None
    with _collector_paused():
        graph = parse(
            text,
            file=file,
            limits=bounds,
            input_names=names,
            is_operator=_is_operator,
            outputs_of=_outputs_of,
        )
        resolution = Resolution(graph, given, request, bounds)
        return resolution.run(lambda ins, outs: with_contracts(graph.source, ins, outs))


def resolve_calls(function: Callable[..., Any], request: Request) -> ResolvedGraph:
    """The graph of the calls that a Python function makes to ``iso.ops``, resolved."""
    bounds = limits_with(request.limits)
    given = contracts.given_contracts("input", request.input)
    names = tuple(one.name or "x" for one in given) or ("x",)
    graph = capture(function, input_names=names, is_operator=_is_operator, limits=bounds)
    resolution = Resolution(graph, given, request, bounds)

    def definition(inputs: list[Contract], outputs: list[Contract]) -> str:
        graph.inputs, graph.outputs = inputs, outputs
        return write(graph)

    return resolution.run(definition)


def _is_operator(name: str) -> bool:
    return catalogue.is_known(name)


def _outputs_of(name: str) -> tuple[str, ...]:
    operator = catalogue.get(name)
    return () if operator is None else tuple(port.name for port in operator.signature.outputs)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without cycle collection: it would walk the growing graph again and again and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
