"""The doors: from a text, a file or a Python function to a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from isomorph.errors import IsomorphError, shown
from isomorph.limits import limits_with
from isomorph.paths import path_text
from isomorph.plan.plan import Plan
from isomorph.resolver.resolution import Request
from isomorph.resolver.resolve import resolve_calls, resolve_text


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
    return Plan.of(resolve_text(text, Request(input, output, dtype, input_dtype, limits), file))


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
    return Plan.of(resolve_calls(function, Request(input, output, dtype, input_dtype, limits)))
