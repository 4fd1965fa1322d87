"""Whatever has a public name says what it is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import isomorph
from isomorph.backends.available import Harness
from isomorph.backends.decoding import DecodingBackend
from isomorph.operators.operator import Operator
from isomorph.primitives import Primitives

DECLARED = {"primitives": Primitives, "decoding": DecodingBackend, "harness": Harness}
"""What says it for the functions of a backend's modules of these names."""
OPEN = ("relate", "relate_open")
"""What an operator may have, and :class:`Operator` tells of as attributes."""


def functions_of(owner: Any, module: str) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        is_function = inspect.isfunction(function) and function.__name__ != "<lambda>"
        if not name.startswith("_") and is_function and function.__module__ == module:
            yield name, function


def undocumented(module: Any) -> Iterator[str]:
    declared = DECLARED.get(module.__name__.rpartition(".")[2], object)
    for name, function in functions_of(module, module.__name__):
        if not (function.__doc__ or getattr(getattr(declared, name, None), "__doc__", None)):
            yield name
    for name, kind in vars(module).items():
        if name.startswith("_") or not inspect.isclass(kind) or kind.__module__ != module.__name__:
            continue
        if not kind.__doc__ or kind.__doc__.startswith(
            f"{kind.__name__}("
        ):  # as dataclasses and tuples write it
            yield name
        for method, _ in functions_of(kind, module.__name__):
            declared = (
                Operator
                if issubclass(kind, Operator)
                else Primitives
                if name.endswith("Primitives")
                else object
            )
            inherited = getattr(getattr(declared, method, None), "__doc__", None) or method in OPEN
            if not (
                inherited
                or inspect.getdoc(inspect.getattr_static(kind, method))
                or inspect.getdoc(getattr(kind, method))
            ):
                yield f"{name}.{method}"


def test_every_public_name_is_documented() -> None:
    """Classes, functions and methods of every module; a method may inherit it."""
    missing = []
    for found in pkgutil.walk_packages(isomorph.__path__, "isomorph."):
        if not found.name.endswith("__main__"):
            module = importlib.import_module(found.name)
            missing += [f"{found.name}.{name}" for name in undocumented(module)]
    assert not missing, "\n".join(missing)
