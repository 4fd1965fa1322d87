"""The resolved network: every argument, shape and parameter known, nothing left to work out.

A plan is what :class:`~isomorph.resolver.resolved.ResolvedGraph` holds, with its text, JSON and parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

from isomorph.dimensions import symbols_of
from isomorph.errors import IsomorphError, shorten
from isomorph.initializers import Initializer
from isomorph.plan.difference import plan_difference
from isomorph.plan.serialization import plan_to_json, resolved_from_json
from isomorph.plan.table import render_table
from isomorph.resolver.resolved import Node, ResolvedGraph


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


@dataclass(frozen=True, eq=False)
class Plan(ResolvedGraph):
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

    @classmethod
    def of(cls, resolved: ResolvedGraph) -> Plan:
        """The plan of what a resolution gave."""
        return cls(**{field.name: getattr(resolved, field.name) for field in fields(resolved)})

    def __str__(self) -> str:
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
        parameters = []
        for node in self.nodes:
            for path, spec in node.operator.all_parameters.items():
                if path in node.tie:
                    continue
                parameters.append(
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
        return tuple(parameters)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Symbols of the inputs, in order of appearance."""
        names = [s for _, v in self.inputs for d in self.values[v].shape for s in symbols_of(d)]
        return tuple(dict.fromkeys(names))

    def node(self, name: str) -> Node:
        """The node of that name; KeyError when there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    def to_json(self) -> str:
        """The plan as JSON with a digest; :meth:`from_json` reads it back to an equal plan."""
        return plan_to_json(self)

    @staticmethod
    def from_json(text: str | bytes, *, limits: Mapping[str, int] | None = None) -> Plan:
        """Read :meth:`to_json`'s text. A single changed byte is E_INTEGRITY.

        Args:
            text: what :meth:`to_json` wrote.
            limits: bounds as for ``resolve``; what the text asks for is held to them.
        """
        return Plan.of(resolved_from_json(text, limits))

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan.from_json, (self.to_json(),)  # places in the source are closures, and stay behind

    def __deepcopy__(self, memo: Any) -> Plan:
        return self  # immutable

    @staticmethod
    def expect(value: object) -> Plan:
        """The value, if it is a plan; E_ARGUMENT when it is something else, such as a definition's text."""
        if isinstance(value, Plan):
            return value
        hints = (
            ["resolve the definition first: iso.resolve(text, input=...)"] if isinstance(value, str) else ()
        )
        got = shorten(value if isinstance(value, str) else type(value).__name__)
        raise IsomorphError("E_ARGUMENT", f"expected a plan, got {got}", hints=hints)

    def diff(self, other: Plan) -> list[str]:
        """What differs, a line each: contracts, nodes added, removed or changed. Empty when equal."""
        return plan_difference(self, Plan.expect(other))
