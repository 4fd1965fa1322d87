"""Operators as Python functions, for networks that are written as a function.

``iso.ops.linear(64)`` inside a function given to :func:`isomorph.resolve_function` records what
``linear(64)`` says in a definition; ``iso.ops.normal(std=0.02)`` makes an initialiser.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isomorph import initializers
from isomorph.errors import IsomorphError, MissingAttributeError
from isomorph.language.capture import located, record
from isomorph.operators import catalogue


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in initializers.SCHEMES:
        return _initializer(name)
    operator = catalogue.get(name)
    if operator is None:
        error = located(catalogue.unknown(name))
        raise MissingAttributeError(error.code, error.message, error.location, error.hints)
    function = _recording(name, len(operator.signature.outputs))
    function.__doc__ = operator.__doc__
    return function


def __dir__() -> list[str]:
    return sorted([*catalogue.all_operators(), *initializers.SCHEMES])


def _recording(name: str, outputs: int) -> Callable[..., Any]:
    def call(*values: Any, **keywords: Any) -> Any:
        return record(name, values, keywords, outputs)

    call.__name__ = call.__qualname__ = name
    return call


def _initializer(name: str) -> Callable[..., initializers.Initializer]:
    def make(*values: Any, **keywords: Any) -> initializers.Initializer:
        try:
            return initializers.make(name, values, keywords)
        except IsomorphError as error:
            raise located(error) from None

    make.__name__ = make.__qualname__ = name
    make.__doc__ = initializers.SCHEMES[name].__doc__
    return make
