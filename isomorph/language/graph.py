"""What a definition says, before anything is resolved.

A :class:`Graph` holds operator calls in order of evaluation and which tensor feeds which. It knows
no operator: whether a call is legal is the resolver's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from isomorph.errors import Location


class Reference(NamedTuple):
    """A tensor: a declared input (``call == -1``, ``output`` counts inputs) or a result of a call.

    ``output`` is None for "the single result of that call" and an index after tuple assignment.
    """

    call: int
    output: int | None


Dimension = int | str
"""A declared size: a positive integer, or a symbol with optional arithmetic (``"T"``, ``"2*T+1"``)."""


@dataclass(slots=True)
class Contract:
    """The declared shape and dtype of an input, or the shape of an output (dtype None)."""

    name: str
    shape: tuple[Dimension, ...]
    dtype: str | None = None
    location: Location | None = None


class InitializerCall(NamedTuple):
    """``normal(std=0.02)`` as written inside an ``init`` dictionary."""

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(slots=True)
class Call:
    """One operator call.

    Attributes:
        operator: the name as written.
        inputs: tensors given first, in order.
        keyword_inputs: tensors given by keyword (``mask=m``).
        current: the current tensor where the call stands, or None.
        arguments: positional literals after the tensors.
        keywords: literal keyword arguments, without name, init, trainable, tie.
        name: the given name with loop indices appended, or None.
        init, trainable, tie: as written, or None.
        targets: how many names take the result; 0 for none, 1 for one name, n for a tuple.
        locate: finds a place: ``locate(None)`` the call, ``locate(i)`` the i-th positional literal,
            ``locate("heads")`` a keyword's value, ``locate(("input", i))`` a tensor argument. None
            where there is no text.
    """

    operator: str
    inputs: tuple[Reference, ...] = ()
    keyword_inputs: dict[str, Reference] = field(default_factory=dict)
    current: Reference | None = None
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    init: dict[str, Any] | None = None
    trainable: bool | dict[str, bool] | None = None
    tie: dict[str, str] | None = None
    targets: int = 0
    locate: Callable[[Any], Location | None] | None = None


@dataclass(slots=True)
class Graph:
    """A whole definition.

    Attributes:
        inputs: contracts from ``input(...)`` statements, in order; empty when they come from outside.
        calls: operator calls in order of evaluation.
        outputs: contracts from ``output(...)``; a single unnamed one has ``name == ""``.
        bindings: every tensor name and what it last referred to (a named output is looked up here).
        current: the current tensor at the end, or None.
        source: the text, or "" for a recorded function.
        file: the name shown in errors.
        input_names: names of inputs in order, as used in references (``("x",)`` by default).
    """

    inputs: list[Contract] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[Contract] = field(default_factory=list)
    bindings: dict[str, Reference] = field(default_factory=dict)
    current: Reference | None = None
    source: str = ""
    file: str = "<definition>"
    input_names: tuple[str, ...] = ("x",)
