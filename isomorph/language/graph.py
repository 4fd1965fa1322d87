"""What a definition says, before anything is resolved.

A :class:`Graph` holds operator calls in order of evaluation and which tensor feeds which. It knows
no operator: whether a call is legal is the resolver's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from isomorph.errors import Location


class Reference(NamedTuple):
    """A tensor: a declared input (``call == -1``, ``output`` counts inputs) or a result of a call.

    ``output`` is None for "the single result of that call" and an index after tuple assignment.
    """

    call: int
    output: int | None


NOTHING: Mapping[str, Any] = {}
"""The empty mapping that calls without keywords share; never changed."""

Dimension = int | str
"""A declared size: a positive integer, or a symbol with optional arithmetic (``"T"``, ``"2*T+1"``)."""


@dataclass(slots=True)
class Contract:
    """The declared shape and dtype of an input, or the shape of an output (dtype None).

    An optional input may be left out of a call.
    """

    name: str
    shape: tuple[Dimension, ...]
    dtype: str | None = None
    location: Location | None = field(default=None, compare=False, repr=False)
    optional: bool = False


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
    keyword_inputs: Mapping[str, Reference] = field(default_factory=lambda: NOTHING)
    current: Reference | None = None
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    name: str | None = None
    init: dict[str, Any] | None = None
    trainable: bool | dict[str, bool] | None = None
    tie: dict[str, str] | None = None
    targets: int = field(default=0, compare=False)
    locate: Callable[..., Location | None] | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True, eq=False)
class Graph:
    """A whole definition.

    Two graphs are equal when they describe the same network: same inputs, calls, wiring, contracts and
    published tensors. The text, its places and the names of inner tensors do not count, so that a text and
    a recorded function can be compared.

    Attributes:
        inputs: contracts from ``input(...)`` statements, in order; empty when they come from outside.
        calls: operator calls in order of evaluation.
        outputs: contracts from ``output(...)``; a single unnamed one has ``name == ""``.
        bindings: every tensor name and what it last referred to (a named output is looked up here).
        current: the current tensor at the end, or None.
        source: the text, or "" for a recorded function.
        file: the name shown in errors.
        input_names: names of inputs in order, as used in references (``("x",)`` by default).
        returned: names of the outputs that a recorded function returned in a dictionary, in order; they are
            in ``bindings``. None for a text, and when a single tensor was returned.
    """

    inputs: list[Contract] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[Contract] = field(default_factory=list)
    bindings: dict[str, Reference] = field(default_factory=dict)
    current: Reference | None = None
    source: str = ""
    file: str = "<definition>"
    input_names: tuple[str, ...] = ("x",)
    returned: tuple[str, ...] | None = None

    @property
    def published(self) -> dict[str, Reference]:
        """The tensors that named outputs publish, in order; empty when the current tensor is the output."""
        names = [contract.name for contract in self.outputs if contract.name] or self.returned or ()
        return {name: self.bindings[name] for name in names}

    def _key(self) -> tuple[Any, ...]:
        published = self.published
        current = None if published else self.current
        return self.input_names, self.inputs, self.calls, self.outputs, list(published.items()), current

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]
