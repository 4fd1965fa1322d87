"""A plan as recorded steps: a call for every node that holds something, the primitives of the others.

What a plan repeats becomes a loop, where the nodes' names follow a counter: ``block0``, ``block1``, ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isomorph.dimensions import Affine
from isomorph.display.folding import Repeat, fold
from isomorph.plan import Node, Plan
from isomorph.source_code.instances import Instance, Library, Tensor
from isomorph.source_code.record import Holder, Loop, Recorder, Step, Value, cannot_write
from isomorph.source_code.sizes import NotSymbolic, Size, symbol

COUNTERS = ("i", "j", "k", "m", "n")
"""Names for the counters of loops, of which those are used that the network has no other use for."""


@dataclass
class Place:
    """A node as the constructor makes it, or a loop of such.

    Attributes:
        node: the node, of the first repetition; None for a loop.
        instance: what it holds.
        name: its attribute, or an f-string's text with a loop's counter.
        times, counter, body: of a loop.
        nodes: the nodes that it stands for, one per repetition.
    """

    node: Node | None = None
    instance: Instance | None = None
    name: str = ""
    times: int = 0
    counter: str = ""
    body: list[Place] = field(default_factory=list)
    nodes: tuple[Node, ...] = ()


@dataclass
class _Turn:
    """A loop while its first repetition is recorded."""

    start: int
    period: int
    times: int
    inside: dict[int, tuple[Value, Value]] = field(default_factory=dict)


class Network:
    """A plan recorded.

    Args:
        plan: the network.
        library: where operators are recorded.
        aliases: parameter paths whose arrays are read where their owner keeps them: for nodes that the
            framework cannot tie otherwise. The text that reads each.
        plain: paths inside each node that are held as the plan has them.
    """

    def __init__(
        self,
        plan: Plan,
        library: Library,
        aliases: Mapping[str, str],
        plain: Mapping[str, frozenset[str]],
    ) -> None:
        self.plan, self.library = plan, library
        self.aliases, self.plain = aliases, plain
        self._recorder = Recorder(plan.dtype, keep_argument_names=False)
        self._values: dict[int, Value] = {}
        self._turns: list[_Turn] = []
        named = {*(name for name, _ in (*plan.inputs, *plan.outputs)), *plan.symbols}
        self.counters = tuple(name for name in COUNTERS if name not in named)
        self.stated: list[Value] = []
        self.inputs = {name: self._input(name, value) for name, value in plan.inputs}
        self.places: list[Place] = []
        self.items = self._items(fold(plan), self.places)
        self.outputs = {name: self._values[value] for name, value in plan.outputs}
        if len(self.outputs) > 1:
            for name, value in self.outputs.items():
                if value.step is not None:
                    value.hint = name
        self.items = _pruned(self.items, {id(value) for value in self.outputs.values()})

    def _input(self, name: str, value: int) -> Value:
        planned = self.plan.values[value]
        recorded = self._recorder.value([_size(size) for size in planned.shape], planned.dtype, name)
        self._values[value] = recorded
        return recorded

    def _items(self, folded: Sequence[int | Repeat], places: list[Place]) -> list[Step | Loop]:
        items: list[Step | Loop] = []
        for item in folded:
            if isinstance(item, Repeat):
                items += self._repeat(item, places)
            else:
                items += self._node(item, places)
        return items

    def _repeat(self, repeat: Repeat, places: list[Place]) -> list[Step | Loop]:
        """A loop, or its repetitions one after the other where the names follow no counter."""
        counters = [(turn.period, turn.times) for turn in self._turns] + [(repeat.period, repeat.times)]
        names = [self._name(node, counters) for node in _flat(repeat.body) if self._holds(node)]
        if None in names or len(counters) > len(self.counters) or not self._reads_alike(repeat, counters):
            items: list[Step | Loop] = []
            for number in range(repeat.times):
                items += self._items(_shifted(repeat.body, number * repeat.period), places)
            return items
        turn = _Turn(repeat.start, repeat.period, repeat.times)
        counter = self.counters[len(self._turns)]
        self._turns.append(turn)
        inner: list[Place] = []
        body = self._items(repeat.body, inner)
        self._turns.pop()
        carried = [
            (entry, inner_result, self._values[result])
            for result, (entry, inner_result) in turn.inside.items()
        ]
        final = {} if body else _passed_on(carried, repeat.times)
        last = (repeat.times - 1) * repeat.period
        for node in self.plan.nodes[repeat.start : repeat.start + repeat.period]:
            for one, other in zip(node.outputs, self.plan.nodes[node.index + last].outputs, strict=True):
                if one in self._values:  # what a loop inside makes before its last turn is read there alone
                    value = self._values[one]
                    self._values[other] = final.get(id(value), value)
        if inner:
            places.append(Place(times=repeat.times, counter=counter, body=inner))
        return [Loop(repeat.times, counter, body, carried)] if body else []

    def _reads_alike(self, repeat: Repeat, counters: Sequence[tuple[int, int]]) -> bool:
        """Whether what is read at its owner, and what is held as the plan has it, is the same in every repetition."""
        for index in _flat(repeat.body):
            nodes = [self.plan.nodes[i] for i in _repetitions(index, counters)]
            if len({self.plain.get(node.name, frozenset()) for node in nodes}) > 1:
                return False
            if not self._holds(index):
                read_by = {
                    tuple(self.aliases.get(f"{n.name}.{p}") for p in n.operator.own_parameters) for n in nodes
                }
                if len(read_by) > 1:
                    return False
        return True

    def _node(self, index: int, places: list[Place]) -> list[Step | Loop]:
        node = self.plan.nodes[index]
        positions = iter(range(len(node.inputs)))
        given = [
            None if slot is None else self._look_up(len(self._turns) - 1, index, next(positions))
            for slot in node.call_slots
        ]
        try:
            record = self._call if self._holds(index) else self._inlined
            steps, results = record(node, given, places)
        except NotSymbolic as error:
            raise cannot_write(
                f"{node.operator.name} ({node.name}) at a size known at run time alone",
                [f"its computation asks for {error}", "resolve the definition with a number there"],
            ) from None
        for value, tensor in zip(node.outputs, results, strict=True):
            self._values[value] = tensor
            self.stated.append(tensor)
        return steps

    def _holds(self, index: int) -> bool:
        """Whether a node is an attribute of the network."""
        node = self.plan.nodes[index]
        operator, own = node.operator, node.operator.own_parameters
        if own and all(f"{node.name}.{path}" in self.aliases for path in own):
            return False
        return bool(own or operator.child_operators or operator.leaf is not None)

    def _call(
        self, node: Node, given: list[Value | None], places: list[Place]
    ) -> tuple[list[Step | Loop], Sequence[Value]]:
        tensors: list[Tensor | None] = [
            None if value is None else (value.shape, value.dtype) for value in given
        ]
        instance, shapes = self.library.use(node.operator, tensors, self.plain.get(node.name, frozenset()))
        counters = [(turn.period, turn.times) for turn in self._turns]
        name = self._name(node.index, counters)
        assert name is not None
        nodes = tuple(self.plan.nodes[i] for i in _repetitions(node.index, counters))
        places.append(Place(node, instance, name, nodes=nodes))
        self._recorder.steps.clear()
        results = self._recorder.record("call", given, shapes, {"child": name}, dtype=self.plan.dtype)
        return list(self._recorder.steps), results

    def _inlined(
        self, node: Node, given: list[Value | None], places: list[Place]
    ) -> tuple[list[Step | Loop], Sequence[Value]]:
        parts = {
            path: self._recorder.value(spec.shape, self.plan.dtype, path, self.aliases[f"{node.name}.{path}"])
            for path, spec in node.operator.own_parameters.items()
        }
        self._recorder.steps.clear()
        results = self._recorder.run(node.operator, Holder(**parts), given)
        return list(self._recorder.steps), results

    # -- what is read ----------------------------------------------------------------------------

    def _look_up(self, level: int, index: int, position: int) -> Value:
        """The value that a node reads; in a loop what stands there for what the loop carries."""
        value = self._input_of(index, position)
        if level < 0:
            return self._values[value]
        turn = self._turns[level]
        if self.plan.values[value].node >= turn.start:
            return self._values[value]
        later = self._input_of(index + turn.period, position)
        if later == value:
            return self._look_up(level - 1, index, position)
        if later not in turn.inside:
            entry = self._look_up(level - 1, index, position)
            turn.inside[later] = (entry, self._recorder.value(entry.shape, entry.dtype))
        return turn.inside[later][1]

    def _input_of(self, index: int, position: int) -> int:
        return self.plan.nodes[index].inputs[position][1]

    # -- names -----------------------------------------------------------------------------------

    def _name(self, index: int, counters: Sequence[tuple[int, int]]) -> str | None:
        """The name of a node, as the text of an f-string where it follows the counters of loops."""
        name = self.plan.nodes[index].name
        if not counters:
            return name
        names = [self.plan.nodes[i].name for i in _repetitions(index, counters)]
        pieces = [re.split(r"(\d+)", one) for one in names]
        if len({len(piece) for piece in pieces}) > 1:
            return None
        turns = _turns([times for _, times in counters])
        texts = []
        for place, column in enumerate(zip(*pieces, strict=True)):
            text = column[0] if place % 2 == 0 else _counted(column, turns, self.counters)
            if text is None or (place % 2 == 0 and len(set(column)) > 1):
                return None
            texts.append(text)
        return "".join(texts)


def _passed_on(carried: Sequence[tuple[Value, Value, Value]], times: int) -> dict[int, Value]:
    """What stands for the carried values in the last turn of a loop that computes nothing, by their ids."""
    now = {id(inside): entry for entry, inside, _ in carried}
    for _ in range(times - 1):
        now = {id(inside): now.get(id(result), result) for _, inside, result in carried}
    return now


def _repetitions(index: int, counters: Sequence[tuple[int, int]]) -> list[int]:
    """The indices of a node in all turns of the loops around it."""
    steps = [period for period, _ in counters]
    return [
        index + sum(turn * step for turn, step in zip(turns, steps, strict=True))
        for turns in _turns([times for _, times in counters])
    ]


def _turns(times: Sequence[int]) -> list[tuple[int, ...]]:
    all_turns: list[tuple[int, ...]] = [()]
    for number in times:
        all_turns = [(*turns, turn) for turns in all_turns for turn in range(number)]
    return all_turns


def _counted(numbers: Sequence[str], turns: Sequence[tuple[int, ...]], counters: Sequence[str]) -> str | None:
    """``{i}``, ``{2 * i + 1}``: the number as a function of the counters, or None."""
    values = list(map(int, numbers))
    if any(str(value) != number for value, number in zip(values, numbers, strict=True)):
        return None  # leading zeros
    depth = len(turns[0])
    unit = [tuple(int(i == j) for j in range(depth)) for i in range(depth)]
    by_turn = dict(zip(turns, values, strict=True))
    slopes = [by_turn[one] - values[0] for one in unit]
    if any(
        value != values[0] + sum(a * b for a, b in zip(slopes, turn, strict=True))
        for turn, value in by_turn.items()
    ):
        return None
    total: int | Size = values[0]
    for slope, counter in zip(slopes, counters, strict=False):
        total = total + slope * symbol(counter)
    return str(total) if isinstance(total, int) else f"{{{total.text()}}}"


def _flat(body: Sequence[int | Repeat]) -> list[int]:
    """The nodes of the first repetition of everything in a body."""
    return [index for item in body for index in (_flat(item.body) if isinstance(item, Repeat) else (item,))]


def _shifted(body: Sequence[int | Repeat], by: int) -> list[int | Repeat]:
    return [
        item._replace(start=item.start + by, body=tuple(_shifted(item.body, by)))
        if isinstance(item, Repeat)
        else item + by
        for item in body
    ]


def _size(size: int | Affine) -> int | Size:
    if isinstance(size, int):
        return size
    total: int | Size = size.constant
    for variable, coefficient in size.terms:
        total = total + coefficient * symbol(variable.name)
    return total


def _pruned(items: list[Step | Loop], needed: set[int]) -> list[Step | Loop]:
    """The items without steps that nothing depends on (what a peephole replaced).

    ``needed`` holds the ids of values that are read later; those that the items read are added.
    """
    remaining: list[Step | Loop] = []
    for item in reversed(items):
        if isinstance(item, Loop):
            needed.update(id(result) for *_, result in item.carried)
            item.body = _pruned(item.body, needed)
            needed.update(id(entry) for entry, *_ in item.carried)
            remaining.append(item)
        elif any(id(value) in needed for value in item.outputs):
            needed.update(id(value) for value in item.inputs if value is not None)
            remaining.append(item)
    return remaining[::-1]
