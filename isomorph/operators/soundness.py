"""Checks of a declaration as it is made, so that its author hears of a fault and not its first user.

Every fault is E_OPERATOR and names the class.
"""

from __future__ import annotations

from collections.abc import Iterable
from keyword import iskeyword

from isomorph.errors import IsomorphError, shorten
from isomorph.initializers import SCHEMES
from isomorph.operators.operator import Operator
from isomorph.operators.pattern import Signature, variables_of

NEVER_OPERATORS = frozenset({"input", "output", "range", *SCHEMES})
"""Names that the language gives another meaning; ``language.names`` says the same."""

KEYWORDS_OF_EVERY_CALL = frozenset({"name", "init", "trainable", "tie"})
"""Keywords that no operator sees; ``language.options`` says the same."""


def fault(cls: type[Operator], message: str, hints: Iterable[str] = ()) -> IsomorphError:
    """The error for a declaration that cannot be."""
    return IsomorphError("E_OPERATOR", f"{cls.__module__}.{cls.__qualname__}: {message}", hints=hints)


def check_name(cls: type[Operator], name: str) -> None:
    """An operator needs a name that a definition can call."""
    if iskeyword(name) or name in NEVER_OPERATORS:
        meaning = "a keyword" if iskeyword(name) else "a word of the language"
        raise fault(cls, f"{name!r} is {meaning}, and could never be called", ["give it another name"])


def check_argument_name(cls: type[Operator], name: str, taken: Iterable[str], signature: Signature) -> None:
    """An argument needs a name that reaches it and hides nothing of the class."""
    if iskeyword(name):
        why = "a keyword"
    elif name in KEYWORDS_OF_EVERY_CALL:
        why = "a keyword that every call takes for itself"
    elif name in taken:
        why = "an attribute of every operator"
    elif any(port.name == name for port in signature.inputs):
        why = "one of its inputs"
    else:
        return
    raise fault(cls, f"an argument cannot be named {name!r}, which is {why}", ["give it another name"])


def annotated_type(cls: type[Operator], base: type, name: str, types: dict[str, type]) -> type:
    """The type of an argument by its annotation: int, float, bool or str, with ``| None`` or without."""
    annotation = base.__annotations__.get(name)
    if annotation is None:
        raise fault(
            cls,
            f"the argument {name} has no annotation",
            [f"write {name}: int = argument(...), or float, bool, str"],
        )
    written = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    declared = types.get(written.split("|")[0].strip())
    if declared is None:
        raise fault(
            cls, f"the argument {name} is annotated {shorten(written)}, expected int, float, bool or str"
        )
    return declared


def read_signature(cls: type[Operator], shape: str) -> Signature:
    """The ports of a shape pattern."""
    if not isinstance(shape, str):
        raise fault(cls, f"a shape pattern is a string, got {shorten(shape)}")
    try:
        return Signature.parse(shape)
    except ValueError as error:
        raise fault(
            cls,
            str(error),
            ["a pattern reads like x[B, T, D], mask?[B, T]:bool -> out[B, T+1, D]"],
        ) from None


def check_sizes(cls: type[Operator], methods: Iterable[tuple[str, tuple[str, ...]]]) -> None:
    """Every size that a method names must be one that the shape pattern or an argument has."""
    stated = {spec.size for spec in cls.arguments.values() if spec.size}
    read = {name for port in cls.signature.inputs for axis in port.axes for name in variables_of(axis)}
    plain = {axis for port in cls.signature.outputs for axis in port.axes if axis.isidentifier()}
    known = read | plain | stated
    for method, names in methods:
        for name in names:
            if name not in known:
                raise fault(
                    cls,
                    f"{method} asks for the size {name!r}, which neither the shape pattern nor an argument has",
                    [f"sizes: {', '.join(sorted(known)) or 'none'}"],
                )


def check_outputs(cls: type[Operator]) -> None:
    """What an output is computed from must be known once the inputs and arguments are."""
    stated = {spec.size for spec in cls.arguments.values() if spec.size}
    read = {name for port in cls.signature.inputs for axis in port.axes for name in variables_of(axis)}
    plain = {axis for port in cls.signature.outputs for axis in port.axes if axis.isidentifier()}
    computed = {name for port in cls.signature.outputs for axis in port.axes for name in variables_of(axis)}
    for name in sorted(computed - read - plain - stated - set(cls.arguments)):
        raise fault(
            cls,
            f"an output is computed from {name!r}, which neither the inputs nor the arguments have",
            [f"sizes: {', '.join(sorted(read | stated)) or 'none'}"],
        )
