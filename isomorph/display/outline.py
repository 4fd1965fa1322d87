"""What a diagram of a plan shows, before anything is placed: boxes, groups that repeat, and tensors between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from isomorph.dimensions import affine, show_shape
from isomorph.display.folding import Repeat, fold
from isomorph.display.naming import name_span
from isomorph.trace.build import sizes_with

if TYPE_CHECKING:
    from isomorph.operators.declare import Argument
    from isomorph.plan import Node, Plan


@dataclass(frozen=True, slots=True)
class Item:
    """A box.

    Attributes:
        kind: ``node``, ``input`` or ``output``.
        name: ``head``, ``block0..block11``.
        call: the operator and the arguments that are not at their defaults, in parts: ``linear``, ``10``.
        parameters: elements of its parameters, of one repetition; tied ones are their owner's.
        notes: what else there is to say: ties, what is frozen.
        times: how often it repeats by itself.
        scopes: the groups that it is in, outermost first.
        ports: names of its outputs when it has several.
    """

    kind: str
    name: str
    call: tuple[str, ...] = ()
    parameters: int = 0
    notes: tuple[str, ...] = ()
    times: int = 1
    scopes: tuple[int, ...] = ()
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scope:
    """A group of boxes that repeats, or the whole network.

    Attributes:
        times: how often it repeats.
        nodes: nodes in one repetition.
        parameters: elements of its parameters, of one repetition.
        members: its boxes and groups, ``("item", n)`` or ``("scope", n)``, in order of evaluation.
    """

    times: int
    nodes: int = 0
    parameters: int = 0
    members: list[tuple[str, int]] = field(default_factory=list)


class Line(NamedTuple):
    """A tensor from one box to another.

    Attributes:
        source, place: the box that it comes from and which of its outputs it is.
        target: the box that reads it.
        port: the target's input port, where it has several.
        label: the shape, and the dtype where it is not the plan's.
        entries: for each group that the target is in, what tells entries apart that begin with one tensor.
    """

    source: int
    place: int
    target: int
    port: str
    label: str
    entries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outline:
    """Boxes, groups (the whole network first) and tensors of a diagram."""

    items: list[Item]
    scopes: list[Scope]
    lines: list[Line]


def outline(plan: Plan, sizes: Mapping[str, int] | None = None) -> Outline:
    """The folded network; shapes at the given sizes, symbols that are not given as they are.

    Raises:
        IsomorphError: E_ARGUMENT for an unknown symbol or a value outside its bound.
    """
    return _Outliner(plan, sizes or {}).run()


class _Outliner:
    def __init__(self, plan: Plan, sizes: Mapping[str, int]) -> None:
        sizes_with(plan, sizes)  # refuses what the plan cannot have
        self.plan, self.sizes = plan, sizes
        self.items: list[Item] = []
        self.scopes = [Scope(1, len(plan.nodes), plan.parameter_count)]
        self.lines: list[Line] = []
        self.inputs: dict[int, int] = {}  # box by value
        self.drawn_by = [0] * len(plan.nodes)  # box by node
        self.first: dict[int, int] = {}  # node by box: the first of those that it stands for
        self.periods = [0]

    def run(self) -> Outline:
        plan = self.plan
        for name, value in plan.inputs:
            self.inputs[value] = self._add(Item("input", name if plan.named_inputs else "input"))
        self._members(fold(plan), 0, (), [0])
        for item, node in list(self.first.items()):
            for index, (port, value) in enumerate(plan.nodes[node].inputs):
                several = len(plan.nodes[node].inputs) > 1
                self._connect(value, item, port if several else "", self._entries(item, node, index, value))
        for name, value in plan.outputs:
            self._connect(value, self._add(Item("output", name or "output")), "", ())
        return Outline(self.items, self.scopes, self.lines)

    def _add(self, item: Item) -> int:
        self.items.append(item)
        self.scopes[item.scopes[-1] if item.scopes else 0].members.append(("item", len(self.items) - 1))
        return len(self.items) - 1

    def _members(
        self, folded: Sequence[int | Repeat], scope: int, scopes: tuple[int, ...], copies: list[int]
    ) -> None:
        """Add what a group holds; ``copies`` are the distances of all its repetitions from the first."""
        for part in folded:
            if not isinstance(part, Repeat):
                self._node(part, 1, scopes, copies)
                continue
            distances = [copy + part.period * n for copy in copies for n in range(part.times)]
            if part.period == 1:
                self._node(part.start, part.times, scopes, distances)
                continue
            nodes = self.plan.nodes[part.start : part.start + part.period]
            parameters = sum(own_parameters(node) for node in nodes)
            self.scopes.append(Scope(part.times, part.period, parameters))
            self.periods.append(part.period)
            inner = len(self.scopes) - 1
            self.scopes[scope].members.append(("scope", inner))
            self._members(part.body, inner, (*scopes, inner), distances)

    def _node(self, index: int, times: int, scopes: tuple[int, ...], copies: list[int]) -> None:
        plan = self.plan
        node = plan.nodes[index]
        ports = tuple(plan.values[value].port for value in node.outputs)
        item = self._add(
            Item(
                "node",
                name_span([plan.nodes[index + copy].name for copy in copies]),
                call_parts(node),
                own_parameters(node),
                notes(node),
                times,
                scopes,
                ports if len(ports) > 1 else (),
            )
        )
        self.first[item] = index
        for copy in copies:
            self.drawn_by[index + copy] = item

    def _entries(self, item: int, node: int, index: int, value: int) -> tuple[int, ...]:
        """For each group around a box, which value takes this one's part in the second repetition."""
        nodes = self.plan.nodes
        return tuple(
            nodes[node + self.periods[scope]].inputs[index][1] for scope in self.items[item].scopes
        )  # the value itself when it is the same in all

    def _connect(self, value: int, target: int, port: str, entries: tuple[int, ...]) -> None:
        tensor = self.plan.values[value]
        if tensor.node < 0:
            source, place = self.inputs[value], 0
        else:
            source, place = self.drawn_by[tensor.node], self.plan.nodes[tensor.node].outputs.index(value)
        label = show_shape(_at(size, self.sizes) for size in tensor.shape)
        if tensor.dtype != self.plan.dtype:
            label += f" {tensor.dtype}"
        if self.items[source].ports:
            label = f"{tensor.port} {label}"
        self.lines.append(Line(source, place, target, port, label, entries))


def _at(dimension: Any, sizes: Mapping[str, int]) -> Any:
    """A dimension with the symbols of ``sizes`` replaced."""
    if isinstance(dimension, int):
        return dimension
    known = sum(c * sizes[v.name] for v, c in dimension.terms if v.name in sizes)
    return affine([(v, c) for v, c in dimension.terms if v.name not in sizes], dimension.constant + known)


def own_parameters(node: Node) -> int:
    """Elements of a node's parameters, without those that are another's."""
    total = node.operator.parameter_count
    for path in node.tie:
        size = 1
        for dimension in node.operator.all_parameters[path].shape:
            size *= dimension
        total -= size
    return total


def call_parts(node: Node) -> tuple[str, ...]:
    """An operator's name and its arguments as a definition would give them, without defaults."""
    parts = [node.operator.name]
    for name, spec in node.operator.arguments.items():
        value = node.operator.argument_values[name]
        if spec.variadic:
            parts += [literal(part) for part in value]
        elif spec.positional and _is_told(spec, value):
            positional = len(parts) == 1 + sum(s.positional for s in _before(node, name))
            parts.append(literal(value) if positional else f"{name}={literal(value)}")
        elif not spec.inferable and _is_told(spec, value):
            parts.append(f"{name}={literal(value)}")
    return tuple(parts)


def _before(node: Node, name: str) -> list[Argument]:
    """The arguments declared before one."""
    names = list(node.operator.arguments)
    return [node.operator.arguments[other] for other in names[: names.index(name)]]


def _is_told(spec: Argument, value: Any) -> bool:
    return spec.required or spec.inferable or value != spec.default


def literal(value: Any) -> str:
    """A value as a definition writes it."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def notes(node: Node) -> tuple[str, ...]:
    """Ties, and what is frozen."""
    texts = [f"{path} = {owner}" for path, owner in node.tie.items()]
    flags = {node.is_trainable(path) for path in node.operator.all_parameters} if node.trainable else {True}
    if False in flags:
        texts.append("partly frozen" if True in flags else "frozen")
    return tuple(texts)
