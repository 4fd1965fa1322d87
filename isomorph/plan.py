"""The resolved network: every argument, shape and parameter known, nothing left to work out."""

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


class Parameter(NamedTuple):
    """One parameter of the plan, in plan layout.

    Attributes:
        path: ``<node>.<path inside the node>``.
        shape: sizes.
        dtype: the plan's compute dtype.
        initial: the distribution it starts from.
        axes: logical axis names, one per axis, or empty.
        trainable: False when frozen.
        node: index of its owner.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    initial: Initializer
    axes: tuple[str | None, ...]
    trainable: bool
    node: int


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
class Plan:
    """A resolved network; immutable. Equal plans describe the same computation and parameters.

    Attributes:
        dtype: compute dtype of parameters and activations.
        values: every tensor; ids index this tuple.
        inputs, outputs: (name, value id); a lone unnamed output has the name ``""``.
        nodes: operator calls in order of evaluation.
        bounds: what each bounded symbol may be.
        definition: text that resolves to this plan.
        named_inputs: whether the definition names its inputs (decides how the table looks).
        optional: names of the inputs that a call may leave out; see :data:`ABSENT`.
    """

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
        return isinstance(other, Plan) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.dtype, self.values, self.inputs, self.outputs))

    def __str__(self) -> str:
        from isomorph.show.table import render_table

        return render_table(self)

    def __repr__(self) -> str:
        return f"<Plan of {len(self.nodes)} nodes, {self.parameter_count:,} parameters>"

    @cached_property
    def ties(self) -> dict[str, str]:
        """Owner's path by tied path: ``{"head.weight": "wte.weight"}``."""
        return {f"{node.name}.{path}": owner for node in self.nodes for path, owner in node.tie.items()}

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter once, in order of nodes; a tied one is listed under its owner alone."""
        found = []
        for node in self.nodes:
            for path, spec in node.operator.all_parameters.items():
                if path in node.tie:
                    continue
                found.append(
                    Parameter(
                        f"{node.name}.{path}",
                        spec.shape,
                        self.dtype,
                        node.init.get(path, spec.initial),
                        spec.axes,
                        node.is_trainable(path),
                        node.index,
                    )
                )
        return tuple(found)

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

    @property
    def symbols(self) -> tuple[str, ...]:
        """Symbols of the inputs, in order of appearance."""
        from isomorph.dimensions import symbols_of

        found = [s for _, v in self.inputs for d in self.values[v].shape for s in symbols_of(d)]
        return tuple(dict.fromkeys(found))

    def node(self, name: str) -> Node:
        """The node of that name; KeyError when there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    def to_json(self) -> str:
        """The plan as JSON with a digest; :meth:`from_json` reads it back to an equal plan."""
        from isomorph.serialization import plan_to_json

        return plan_to_json(self)

    @staticmethod
    def from_json(text: str | bytes, *, limits: Mapping[str, int] | None = None) -> Plan:
        """Read :meth:`to_json`'s text. A single changed byte is E_INTEGRITY.

        Args:
            text: what :meth:`to_json` wrote.
            limits: bounds as for ``resolve``; what the text asks for is held to them.
        """
        from isomorph.serialization import plan_from_json

        return plan_from_json(text, limits)

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan.from_json, (self.to_json(),)  # places in the source are closures, and stay behind

    def __deepcopy__(self, memo: Any) -> Plan:
        return self  # immutable

    @staticmethod
    def expect(value: object) -> Plan:
        """The value, if it is a plan; E_ARGUMENT when it is something else, such as a definition's text."""
        if isinstance(value, Plan):
            return value
        from isomorph.errors import IsomorphError, shorten

        hints = (
            ["resolve the definition first: iso.resolve(text, input=...)"] if isinstance(value, str) else ()
        )
        got = shorten(value if isinstance(value, str) else type(value).__name__)
        raise IsomorphError("E_ARGUMENT", f"expected a plan, got {got}", hints=hints)

    def diff(self, other: Plan) -> list[str]:
        """What differs, a line each: contracts, nodes added, removed or changed. Empty when equal."""
        from isomorph.show.difference import plan_difference

        return plan_difference(self, Plan.expect(other))
