"""The doors: from a text, a file or a Python function to a plan."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from isomorph.errors import IsomorphError, shown
from isomorph.language.graph import Contract
from isomorph.limits import limits_with
from isomorph.operators import catalogue
from isomorph.paths import path_text
from isomorph.plan import Plan
from isomorph.resolver import contracts
from isomorph.resolver.resolution import Resolution


def resolve(
    text: str | bytes,
    *,
    input: Any = None,
    output: Any = None,
    dtype: str = "float32",
    input_dtype: Any = None,
    limits: Mapping[str, int] | None = None,
    file: str = "<definition>",
) -> Plan:
    """Work out every argument, shape and parameter of a definition; allocate nothing.

    Args:
        text: the definition.
        input: the input's shape, or a dictionary of shapes by name; may stand in the text instead.
        output: the shape that the output must have, or a dictionary by name.
        dtype: compute dtype: float32, float64, bfloat16 or float16.
        input_dtype: dtype of the inputs, or a dictionary by name; the compute dtype where omitted.
        limits: bounds that replace those of :data:`isomorph.limits.DEFAULTS`.
        file: the name shown in errors.

    Raises:
        IsomorphError: with the code and the place of whatever is wrong.
    """
    from isomorph.language.parser import parse
    from isomorph.language.writer import with_contracts

    bounds = limits_with(limits)
    given = contracts.given_contracts("input", input)
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
        resolution = Resolution(graph, given, output, dtype, input_dtype, bounds)
        return resolution.run(lambda ins, outs: with_contracts(graph.source, ins, outs))


def resolve_file(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    *,
    input: Any = None,
    output: Any = None,
    dtype: str = "float32",
    input_dtype: Any = None,
    limits: Mapping[str, int] | None = None,
) -> Plan:
    """:func:`resolve` of a file's contents.

    Raises:
        IsomorphError: E_ARGUMENT for what is no path, a file that cannot be read, and one that holds no text; and
            whatever :func:`resolve` raises.
    """
    name = path_text(path, "the definition's path")
    largest = limits_with(limits)["max_source_bytes"]
    try:
        with open(name, "rb") as file:
            text = file.read(largest + 1)
    except OSError as error:
        raise IsomorphError(
            "E_ARGUMENT", f"cannot read the definition {shown(name)}: {error.strerror or error}",
            hints=["give the path of a .net file"],
        ) from None  # fmt: skip
    if what := _binary(text):
        raise IsomorphError(
            "E_ARGUMENT", f"{shown(name)} is {what}, and no definition",
            hints=["a definition is text, and ends in .net; a saved model ends in .safetensors"],
        )  # fmt: skip
    return resolve(
        text, input=input, output=output, dtype=dtype, input_dtype=input_dtype, limits=limits, file=name
    )


_BINARY = {
    b"PK\x03\x04": "a zip archive, as numpy.savez and torch.save write them",
    b"PK\x05\x06": "an empty zip archive",
    b"\x93NUMPY": "an array of numpy.save",
    b"\x80": "a pickle",
    b"\x89PNG": "a picture",
    b"GGUF": "a GGUF file",
    b"\x89HDF": "an HDF5 file",
}
_LOOKED_AT = 8192


def _binary(start: bytes) -> str:
    """What a file is whose bytes begin like this, where that can be no text; nothing for text.

    Damaged text is text: what is wrong with it is told with line and column.
    """
    for mark, what in _BINARY.items():
        if start.startswith(mark):
            return what
    head = start[:_LOOKED_AT]
    return "a binary file" if head.count(b"\0") > len(head) // 16 else ""


def resolve_function(
    function: Callable[..., Any],
    *,
    input: Any,
    output: Any = None,
    dtype: str = "float32",
    input_dtype: Any = None,
    limits: Mapping[str, int] | None = None,
) -> Plan:
    """:func:`resolve` of the calls that a Python function makes to ``iso.ops``; equal plans result."""
    from isomorph.language.capture import capture
    from isomorph.language.writer import write

    bounds = limits_with(limits)
    given = contracts.given_contracts("input", input)
    names = tuple(one.name or "x" for one in given) or ("x",)
    graph = capture(function, input_names=names, is_operator=_is_operator, limits=bounds)
    resolution = Resolution(graph, given, output, dtype, input_dtype, bounds)

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
