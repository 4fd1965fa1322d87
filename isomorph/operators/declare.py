"""The form in which an operator is written: the vocabulary of an operator's file, and the decorator that completes it.

An operator's file states everything about it once. It imports from here alone, and from other operators' files; no
framework, and nothing outside the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from isomorph.errors import IsomorphError, shorten
from isomorph.operators import registry, soundness
from isomorph.operators.argument import INFERRED, REQUIRED, Argument, Conflict, argument
from isomorph.operators.operator import Example, Operator, Parameter, parameters_of
from isomorph.operators.pattern import Signature

__all__ = ["INFERRED", "REQUIRED", "Conflict", "Example", "Operator", "Parameter", "argument", "operator"]

_Class = TypeVar("_Class", bound=type[Operator])
_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


def operator(
    name: str, *, shape: str, category: str, version: int = 1, register: bool = True
) -> Callable[[_Class], _Class]:
    """Class decorator: complete an :class:`Operator` subclass and enter it in the registry.

    Args:
        name: what definitions call it.
        shape: its shape pattern, such as ``"x[B, T, D] -> out[B, T, D]"``.
        category: the heading it is documented under.
        version: part of its identity ``name@version``; raised when its meaning changes.
        register: False for an operator that only serves as a child of others.
    """

    def complete(cls: _Class) -> _Class:
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise IsomorphError("E_OPERATOR", f"an operator's name is lower case, got {shorten(name)}")
        if register:
            soundness.check_name(cls, name)
        signature = soundness.read_signature(cls, shape)
        cls.arguments = _collect_arguments(cls, signature)  # before what follows could hide one
        cls.name, cls.version, cls.category, cls.shape = name, version, category, shape
        cls.identity, cls.signature = f"{name}@{version}", signature
        specs = cls.arguments.values()
        cls.defaults = {spec.name: _default(cls, spec) for spec in specs}
        cls.required = tuple(spec.name for spec in specs if spec.required)
        cls.stating = tuple((spec.name, spec.size) for spec in specs if spec.size)
        cls.inferred = tuple((spec.name, spec.size) for spec in specs if spec.inferable and spec.size)
        cls.positional = tuple(spec for spec in cls.arguments.values() if spec.positional)
        methods = [(m.__name__, parameters_of(m)) for m in (cls.check, cls.children, cls.parameters)]
        soundness.check_sizes(cls, methods)
        needed = [spec.size for spec in cls.arguments.values() if spec.size]
        cls.sizing = tuple(dict.fromkeys(needed + [name for _, names in methods for name in names]))
        if register:
            soundness.check_outputs(cls)
            registry.add(cls)
        return cls

    return complete


def _default(cls: type[Operator], spec: Argument) -> Any:
    """An argument's default in its declared type; None where the resolver finds the value."""
    if spec.inferable:
        return None
    if spec.required or spec.variadic:
        return spec.default
    try:
        return spec.check(spec.default)
    except Conflict as conflict:
        raise soundness.fault(cls, f"the default of {conflict.message}") from None


_TAKEN = frozenset(name for name in (*vars(Operator), *Operator.__annotations__) if name[:2] != "__")


def _collect_arguments(cls: type[Operator], signature: Signature) -> dict[str, Argument]:
    arguments: dict[str, Argument] = {}
    for base in reversed(cls.__mro__):
        for key, spec in list(vars(base).items()):
            if isinstance(spec, Argument):
                soundness.check_argument_name(cls, key, _TAKEN, signature)
                spec.name, spec.type = key, soundness.annotated_type(cls, base, key, _TYPES)
                arguments[key] = spec
    return arguments
