"""What is known while one graph is resolved: every step reads it and adds to it, and knows no other step."""

from __future__ import annotations

from typing import Any

from isomorph.language.graph import Call, Graph
from isomorph.operators.declare import Conflict, Operator
from isomorph.resolver.budget import Budget
from isomorph.resolver.contracts import Declared
from isomorph.resolver.solver import OpenShape, Solver


class Draft:
    """An operator call on its way to becoming a node."""

    __slots__ = (
        "arguments", "call", "index", "inputs", "instance", "operator", "outputs", "signature_key", "sizes",
    )  # fmt: skip

    def __init__(self, index: int, call: Call, operator: type[Operator]) -> None:
        self.index, self.call, self.operator = index, call, operator
        self.inputs: list[tuple[str, int]] = []
        self.outputs: tuple[int, ...] = ()
        self.arguments: dict[str, Any] = {}
        self.signature_key: int = 0
        self.sizes: dict[str, Any] = {}
        self.instance: Operator | None = None

    @property
    def name(self) -> str:
        """The name of the node: the call's own, or ``n3``."""
        return self.call.name or f"n{self.index}"

    def check_bound(self, name: str, size: Any) -> None:
        """Raise Conflict when a size that is a number exceeds what the operator bounds it by."""
        argument = self.operator.bounds[name]
        if type(size) is int and size > self.arguments[argument]:
            raise Conflict(
                f"{name}={size} exceeds {argument}={self.arguments[argument]}",
                argument=argument,
                sizes=(name,),
            )

    def value_at(self, port: str) -> int | None:
        """The tensor at an input port, or None where none is given."""
        return next((value for name, value in self.inputs if name == port), None)

    def locate(self, key: Any = None) -> Any:
        """Where the call, or an argument of it, stands in the source; None where there is none."""
        return self.call.locate(key) if self.call.locate is not None else None


class State:
    """A graph, its contracts, and what was worked out of it so far.

    Attributes:
        graph, limits, dtype: what is resolved, within which bounds, to which compute dtype.
        input_contracts, output_contracts: what text and caller declare.
        named_inputs: whether the inputs have names of their own.
        solver: what is known of sizes.
        drafts: the calls entered so far.
        outputs: (name, value) of the outputs, once they are bound.
        shapes, dtypes: of every value; a shape is None until its call is applied.
        producers: (call, output index) of every value, or (-1, input index).
        known_arguments: a number and the complete arguments, by how a call writes them.
    """

    def __init__(
        self,
        graph: Graph,
        limits: dict[str, int],
        dtype: str,
        inputs: list[Declared],
        outputs: list[Declared],
        named_inputs: bool,
    ) -> None:
        self.graph, self.limits, self.dtype = graph, limits, dtype
        self.input_contracts, self.output_contracts, self.named_inputs = inputs, outputs, named_inputs
        self.solver = Solver(Budget(limits["max_search_steps"]))
        self.drafts: list[Draft] = []
        self.outputs: list[tuple[str, int]] = []
        self.shapes: list[Any] = []
        self.dtypes: list[str] = []
        self.producers: list[tuple[int, int]] = []
        self.known_arguments: dict[Any, tuple[int, dict[str, Any]]] = {}
        for i, one in enumerate(inputs):
            self.add_value(one.shape, one.dtype or dtype, (-1, i))

    def add_value(self, shape: Any, dtype: str, producer: tuple[int, int]) -> int:
        """Enter a tensor; its id."""
        self.shapes.append(shape)
        self.dtypes.append(dtype)
        self.producers.append(producer)
        return len(self.shapes) - 1

    def closed_shape(self, value: int) -> tuple[Any, ...] | None:
        """The shape of a value, or None while its rank is open."""
        shape = self.shapes[value]
        return shape.closed if isinstance(shape, OpenShape) else shape
