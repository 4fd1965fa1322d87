"""What resolving a graph gives: its nodes, tensors and bounds, with nothing left to work out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from isomorph.initializers import Initializer
from isomorph.operators.declare import Operator

if TYPE_CHECKING:
    from isomorph.dimensions import Affine
    from isomorph.errors import Location

    Shape = tuple[int | Affine, ...]

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Compute dtypes a plan may have, and bytes per element."""
INPUT_DTYPES = (*DTYPE_BYTES, "int64", "int32", "bool")
ABSENT = {"bool": True, "int64": 0, "int32": 0}
"""What an optional input is, everywhere, where a call leaves it out: a mask that hides nothing, and the id 0."""


class Value(NamedTuple):
    """A tensor of the plan.

    Attributes:
        source: what the table calls it: ``input``, an input's name, ``n0``, ``partition.first``.
        shape: its sizes; a symbolic one is an affine expression.
        dtype: ``"float32"``, ``"int64"``, ...
        node: index of the node that makes it, -1 for an input.
        port: the output port, or the input's name.
    """

    source: str
    shape: Shape
    dtype: str
    node: int
    port: str


class Bound(NamedTuple):
    """What a symbol may be: ``low <= symbol <= high`` (high None: no limit)."""

    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call of the plan.

    Attributes:
        index, name: its place and its name (``n<index>`` unless named).
        operator: the operator with every argument and size known.
        inputs: (port, value id) for every given input, in port order.
        outputs: value ids, one per output port.
        init: initialisers by path inside the node, overriding the operator's.
        trainable: flags by path prefix; ``""`` is the whole node.
        tie: owner's parameter path by path inside the node.
        location: where the definition calls it (not part of equality).
    """

    index: int
    name: str
    operator: Operator
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[int, ...]
    init: Mapping[str, Initializer] = field(default_factory=dict)
    trainable: Mapping[str, bool] = field(default_factory=dict)
    tie: Mapping[str, str] = field(default_factory=dict)
    locate: Any = field(default=None, compare=False, repr=False)

    @property
    def location(self) -> Location | None:
        """Where the definition calls it, or None (a plan read from JSON)."""
        return self.locate(None) if self.locate is not None else None

    @property
    def call_slots(self) -> tuple[int | None, ...]:
        """Value ids in the order in which ``forward`` takes them; None for an absent optional input."""
        ports = self.operator.signature.inputs
        if len(self.inputs) == len(ports) or any(port.variadic for port in ports):
            return tuple(value for _, value in self.inputs)
        given = dict(self.inputs)
        slots = [given.get(port.name) for port in ports]
        while slots and slots[-1] is None:
            slots.pop()
        return tuple(slots)

    def is_trainable(self, path: str) -> bool:
        """Whether the parameter at ``path`` inside the node is trained: the longest prefix decides."""
        best, flag = -1, True
        for prefix, value in self.trainable.items():
            if len(prefix) > best and (not prefix or path == prefix or path.startswith(prefix + ".")):
                best, flag = len(prefix), value
        return flag


@dataclass(frozen=True, eq=False)
class ResolvedGraph:
    """The data of a :class:`isomorph.Plan`, whose description tells the fields; equal by all but the text."""

    dtype: str
    values: tuple[Value, ...]
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    nodes: tuple[Node, ...]
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    definition: str = ""
    named_inputs: bool = False
    optional: tuple[str, ...] = ()

    def _key(self) -> tuple[Any, ...]:
        return (
            self.dtype, self.values, self.inputs, self.outputs, self.nodes, dict(self.bounds), self.named_inputs,
            self.optional,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResolvedGraph) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.dtype, self.values, self.inputs, self.outputs))

    @cached_property
    def parameter_count(self) -> int:
        """Elements in all parameters, tied ones counted once."""
        total = 0
        for node in self.nodes:
            total += node.operator.parameter_count
            for path in node.tie:
                size = 1
                for dimension in node.operator.all_parameters[path].shape:
                    size *= dimension
                total -= size
        return total
