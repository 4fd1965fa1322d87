"""The classes of a written file: one for each kind of operator, with what differs between its instances as
arguments of its constructor.
"""

from __future__ import annotations

import builtins
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isomorph.operators.declare import Operator
from isomorph.source_code.framework import Framework, Native
from isomorph.source_code.instances import Instance

LARGEST_FACTOR = 8
_BUILTINS = frozenset(dir(builtins))
STRUCTURAL = ("axis", "axes", "index", "keepdim", "token")
"""Attributes of a step that are part of what the class does, not numbers that may differ."""


@dataclass(eq=False)
class Layer:
    """What a constructor makes for a child: a native layer, or a class of the file with its arguments."""

    native: Native | None = None
    kind: Kind | None = None
    arguments: tuple[tuple[str, Any], ...] = ()


@dataclass(eq=False)
class Kind:
    """A class of the file.

    Attributes:
        instances: the operators that it is for.
        layers: their children, by name, one mapping per instance.
        framework: whose names no argument may have.
        name: of the class.
        arguments: its constructor's arguments: name, and the value for each instance.
    """

    instances: list[Instance]
    layers: list[dict[str, Layer]]
    framework: Framework
    name: str = ""
    arguments: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    @property
    def operator(self) -> type[Operator]:
        """The class of its operators."""
        return type(self.instances[0].operator)

    def values(self, instance: Instance) -> tuple[tuple[str, Any], ...]:
        """The arguments for an instance, by name."""
        position = self.instances.index(instance)
        return tuple((name, values[position]) for name, values in self.arguments)


class Classes:
    """Sorts recorded operators into classes."""

    def __init__(self, framework: Framework, dtype: str) -> None:
        self.framework, self.dtype = framework, dtype
        self.kinds: list[Kind] = []
        self.natives: list[Native] = []
        self._layers: dict[int, Layer] = {}
        self._taken: set[str] = set()

    def add(self, instances: Iterable[Instance]) -> None:
        """Make classes for operators and all that is inside them, children first."""
        by_id: dict[int, Instance] = {}
        _collect(instances, by_id)
        by_depth: dict[int, list[Instance]] = {}
        for instance in by_id.values():
            native = self.framework.native(instance, self.dtype)
            if native is None:
                by_depth.setdefault(instance.depth, []).append(instance)
            else:
                self.natives.append(native)
                self._layers[id(instance)] = Layer(native)
        for depth in sorted(by_depth):
            self._sort(by_depth[depth])
        self._name()

    def layer(self, instance: Instance) -> Layer:
        """What stands for an operator."""
        return self._layers[id(instance)]

    def _sort(self, instances: list[Instance]) -> None:
        groups: dict[Any, list[Instance]] = {}
        for instance in instances:
            groups.setdefault(self._structure(instance), []).append(instance)
        for group in groups.values():
            layers = [{n: self.layer(child) for n, child in one.children.items()} for one in group]
            kind = Kind(group, layers, self.framework)
            kind.arguments = list(_arguments(kind))
            self.kinds.append(kind)
            for instance in group:
                self._layers[id(instance)] = Layer(kind=kind, arguments=kind.values(instance))

    def _structure(self, instance: Instance) -> Any:
        """Equal for operators that one class can be written for."""
        numbers: dict[int, int] = {id(value): i for i, value in enumerate(instance.inputs.values())}
        steps = []
        for step in instance.steps:
            taken = tuple(
                None if value is None else value.parameter or numbers[id(value)] for value in step.inputs
            )
            for value in step.outputs:
                numbers[id(value)] = len(numbers)
            steps.append((step.primitive, taken, _blanked(step.attributes)))
        outputs = tuple(numbers[id(value)] for value in instance.outputs)
        parameters = [(n, len(p.shape), p.initial) for n, p in instance.operator.own_parameters.items()]
        children = [(name, self._layer_structure(child)) for name, child in instance.children.items()]
        ports = [(name, len(value.shape), value.dtype) for name, value in instance.inputs.items()]
        return (
            type(instance.operator), tuple(ports), tuple(steps), outputs, tuple(parameters), tuple(children),
        )  # fmt: skip

    def _layer_structure(self, instance: Instance) -> Any:
        layer = self.layer(instance)
        if layer.native is None:
            return id(layer.kind)
        blank = tuple((k, "number" if is_number(v) else v) for k, v in layer.native.arguments)
        return layer.native.head, blank

    def _name(self) -> None:
        """Names: the operator's class, with what sets it apart from others of that class in front."""
        by_class: dict[type[Operator], list[Kind]] = {}
        for kind in self.kinds:
            by_class.setdefault(kind.operator, []).append(kind)
        for cls, kinds in by_class.items():
            for kind in kinds:
                others = [other for other in kinds if other is not kind]
                base = _distinction(kind, others) + cls.__name__
                name, number = base, 2
                while name in self._taken or name in _BUILTINS or self.framework.claims(name):
                    name, number = f"{base}{number}", number + 1
                kind.name = name
                self._taken.add(name)


def _collect(instances: Iterable[Instance], by_id: dict[int, Instance]) -> None:
    for instance in instances:
        if id(instance) not in by_id:
            _collect(instance.children.values(), by_id)
            by_id[id(instance)] = instance


def is_number(value: Any) -> bool:
    """An int or a float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_slot(name: str, value: Any) -> bool:
    """Whether an attribute's value may differ within a class."""
    if name in STRUCTURAL or (name in ("start", "stop") and not (isinstance(value, int) and value > 0)):
        return False
    return is_number(value) or name == "frequencies"


def _blanked(attributes: Mapping[str, Any]) -> Any:
    """The attributes without what may differ."""
    blanked: list[Any] = []
    for name, value in attributes.items():
        if name == "shape":
            blanked.append((name, *("number" if type(d) is int and d != 1 else d for d in value)))
        elif name != "child":
            blanked.append((name, "number" if _is_slot(name, value) else value))
        else:
            blanked.append((name, value))
    return tuple(blanked)


def slots(instance: Instance, layers: Mapping[str, Layer]) -> Iterator[tuple[Any, Any]]:
    """(place, value) of everything that may differ, in order."""
    for name, spec in instance.operator.own_parameters.items():
        for axis, size in enumerate(spec.shape):
            yield ("parameter", name, axis), size
    for name, layer in layers.items():
        given = layer.arguments if layer.native is None else layer.native.arguments
        for position, (_, value) in enumerate(given):
            if layer.native is None or is_number(value):
                yield ("child", name, position), value
    for index, step in enumerate(instance.steps):
        for name, value in step.attributes.items():
            if name == "shape":
                for axis, size in enumerate(value):
                    if type(size) is int and size != 1:
                        yield ("step", index, (name, axis)), size
            elif _is_slot(name, value):
                yield ("step", index, name), value


def _arguments(kind: Kind) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Constructor arguments: a name for every row of values that is neither constant nor made of others."""
    rows: dict[tuple[Any, ...], Any] = {}
    columns = [dict(slots(i, layers)) for i, layers in zip(kind.instances, kind.layers, strict=True)]
    for place in columns[0]:
        values = tuple(column[place] for column in columns)
        if any(value != values[0] for value in values):
            rows.setdefault(values, place)
    named = named_rows(kind)
    direct = {values: named[values] for values in rows if values in named}
    needed: dict[str, tuple[Any, ...]] = {name: values for values, name in direct.items()}
    constants = shared_numbers(kind)
    for values, place in rows.items():
        if values not in direct:
            combined = combination(values, named, constants)
            if combined is None:
                needed[_plain_name(kind, place, set(needed) | set(named.values()))] = values
            else:
                needed.update(combined[1])
    order = {name: i for i, name in enumerate(named.values())}
    yield from sorted(needed.items(), key=lambda item: order.get(item[0], len(order)))


def named_rows(kind: Kind) -> dict[tuple[Any, ...], str]:
    """Values that differ and have a name of the operator's own: its arguments, then its sizes."""
    operators = [instance.operator for instance in kind.instances]
    rows: dict[tuple[Any, ...], str] = {}
    taken: set[str] = set()
    sizes = {name: "dim" if name == "D" else name.lower() for name in operators[0].sizes}
    for attribute, name in [*sizes.items(), *((name, name) for name in operators[0].arguments)]:
        values = tuple(
            operator.sizes[attribute] if attribute in operator.sizes else getattr(operator, attribute)
            for operator in operators
        )
        if any(value != values[0] for value in values) and values not in rows:
            while name in taken or kind.framework.claims(name):
                name += "_"
            taken.add(name)
            rows[values] = name
    return rows


def combination(
    values: tuple[Any, ...], named: Mapping[tuple[Any, ...], str], constants: Iterable[int] = ()
) -> tuple[str, list[tuple[str, tuple[Any, ...]]]] | None:
    """A row as an expression of named rows and of numbers that are the same for all, with the rows it needs."""
    if values in named:
        return named[values], [(named[values], values)]
    if not all(type(value) is int for value in values):
        return None
    whole = {row: name for row, name in named.items() if all(type(v) is int and v > 0 for v in row)}
    for row, name in whole.items():
        pairs = list(zip(values, row, strict=True))
        for number in constants:
            if all(value * part == number for value, part in pairs):
                return f"{number} // {name}", [(name, row)]
            if all(value == number * part for value, part in pairs):
                return f"{number} * {name}", [(name, row)]
    for (row, name), (other, second) in itertools.permutations(whole.items(), 2):
        triples = list(zip(values, row, other, strict=True))
        if all(value * b == a for value, a, b in triples):
            return f"{name} // {second}", [(name, row), (second, other)]
        if all(value == a * b for value, a, b in triples):
            return f"{name} * {second}", [(name, row), (second, other)]
    for row, name in whole.items():
        for factor in range(2, LARGEST_FACTOR + 1):
            if all(value == factor * part for value, part in zip(values, row, strict=True)):
                return f"{factor} * {name}", [(name, row)]
    return None


def shared_numbers(kind: Kind) -> list[int]:
    """Sizes and arguments above 1 that all instances have alike."""
    operators = [instance.operator for instance in kind.instances]
    first = {**operators[0].sizes, **operators[0].argument_values}
    return [
        value
        for name, value in first.items()
        if type(value) is int
        and value > 1
        and all({**one.sizes, **one.argument_values}[name] == value for one in operators)
    ]


def _plain_name(kind: Kind, place: Any, taken: set[str]) -> str:
    what, owner, position = place
    base = f"{owner}_size" if what in ("parameter", "child") else "size"
    if what == "step":
        base = position if isinstance(position, str) else "size"
    name, number = base, 2
    while name in taken or kind.framework.claims(name):
        name, number = f"{base}{number}", number + 1
    return name


def _distinction(kind: Kind, others: Sequence[Kind]) -> str:
    """``Causal``, ``Gelu``: an argument that all of this kind have and no other."""
    if not others:
        return ""
    for name in kind.operator.arguments:
        mine = {getattr(instance.operator, name) for instance in kind.instances}
        theirs = {getattr(i.operator, name) for other in others for i in other.instances}
        if len(mine) != 1 or mine & theirs:
            continue
        value = next(iter(mine))
        if value is True:
            return _camel(name)
        if isinstance(value, str) and value != "none":
            return _camel(value)
    return ""


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"[\W_]+", name))
