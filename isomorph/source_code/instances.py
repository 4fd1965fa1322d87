"""Every operator of a plan, recorded once for each way in which it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from isomorph.operators.declare import Operator
from isomorph.operators.pattern import Port
from isomorph.source_code.outline import Helper, outline
from isomorph.source_code.record import Holder, Recorder, Shape, Step, Value, cannot_write, used_steps
from isomorph.source_code.sizes import NotSymbolic, symbol

OPEN_AXES = {1: ("T",), 2: ("H", "W")}
"""Names for the axes that ``...`` stands for in a shape pattern, by their number."""

Tensor = tuple[Shape, str]
"""A shape and a dtype."""


@dataclass(eq=False)
class Instance:
    """One operator with the ports it is given, as the steps of its forward computation.

    Attributes:
        operator: the operator.
        inputs: the given ports by name.
        steps, outputs: its computation.
        children: its children, recorded.
        helpers: functions that its steps call.
        plain: paths of parameters that must be held as the plan has them, in no layer of the framework.
    """

    operator: Operator
    inputs: dict[str, Value]
    plain: frozenset[str]
    steps: list[Step] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()
    children: dict[str, Instance] = field(default_factory=dict)
    helpers: list[Helper] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """How many operators stand inside each other below it."""
        return 1 + max((child.depth for child in self.children.values()), default=-1)


class Library:
    """Records operators and remembers them.

    Args:
        dtype: the plan's compute dtype.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.instances: dict[Any, Instance] = {}

    def use(
        self, operator: Operator, tensors: Sequence[Tensor | None], plain: frozenset[str] = frozenset()
    ) -> tuple[Instance, list[Shape]]:
        """The recorded operator, and the shapes of its results for these tensors.

        Raises:
            NotSymbolic: when its computation asks for the value of a size that is no number here.
        """
        for keep_numbers in (False, True):
            local, actual = _local_shapes(operator, tensors, keep_numbers)
            try:
                instance = self._recorded(operator, local, plain)
            except NotSymbolic:
                if keep_numbers:
                    raise
                continue
            shapes = [
                tuple(d if isinstance(d, int) else d.substitute(actual) for d in value.shape)
                for value in instance.outputs
            ]
            return instance, shapes
        raise AssertionError

    def _recorded(
        self, operator: Operator, tensors: tuple[Tensor | None, ...], plain: frozenset[str]
    ) -> Instance:
        key = (operator, tensors, plain)
        if key not in self.instances:
            self.instances[key] = self._record(operator, tensors, plain)
        return self.instances[key]

    def _record(
        self, operator: Operator, tensors: tuple[Tensor | None, ...], plain: frozenset[str]
    ) -> Instance:
        recorder, ports = Recorder(self.dtype), operator.signature.inputs
        slots: list[Value | None] = []
        instance = Instance(operator, {}, plain)
        for index, tensor in enumerate(tensors):
            port = ports[min(index, len(ports) - 1)]
            name = f"{port.name}{index}" if port.variadic else port.name
            while name in instance.inputs:
                name += "_"
            slots.append(None if tensor is None else recorder.value(*tensor, hint=name))
            if slots[-1] is not None:
                instance.inputs[name] = slots[-1]
        holder = Holder(
            **{
                path: recorder.value(spec.shape, self.dtype, path, path)
                for path, spec in operator.own_parameters.items()
            },
            **{
                name: Child(self, recorder, name, child, instance)
                for name, child in operator.child_operators.items()
            },
        )
        instance.outputs = recorder.run(operator, holder, slots)
        steps = [step for step in recorder.steps if isinstance(step, Step)]
        instance.steps, instance.helpers = outline(used_steps(steps, instance.outputs))
        for name, child in operator.child_operators.items():
            if name not in instance.children:
                instance.children[name] = self.alone(child, inside(plain, name))
        return instance

    def alone(self, operator: Operator, plain: frozenset[str]) -> Instance:
        """An operator that nothing calls: it holds its parameters all the same."""
        tensors = [
            (tuple(symbol("T") for _ in port.axes), self.dtype if port.dtype == "compute" else port.dtype)
            for port in operator.signature.inputs
            if not port.optional
        ]
        return self.use(operator, tensors, plain)[0]


class Child:
    """A child operator as ``forward`` knows it: calling it records a step.

    Attributes:
        name: under which name it is held.
    """

    def __init__(
        self, library: Library, recorder: Recorder, name: str, operator: Operator, owner: Instance
    ) -> None:
        self.name = name
        self._library, self._recorder, self._operator, self._owner = library, recorder, operator, owner

    def __call__(self, *inputs: Value | None) -> Any:
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        tensors = [None if value is None else (value.shape, value.dtype) for value in given]
        instance, shapes = self._library.use(self._operator, tensors, inside(self._owner.plain, self.name))
        if self._owner.children.setdefault(self.name, instance) is not instance:
            raise cannot_write(
                f"{self._owner.operator.name}, which calls its {self.name} in two ways",
                ["its calls differ in the rank or the number of their tensors"],
            )
        results = self._recorder.record(
            "call", given, shapes, {"child": self.name}, dtype=self._library.dtype
        )
        return results[0] if len(results) == 1 else results


def inside(paths: frozenset[str], name: str) -> frozenset[str]:
    """The paths under a child, without its name."""
    return frozenset(path[len(name) + 1 :] for path in paths if path.startswith(name + "."))


def _local_shapes(
    operator: Operator, tensors: Sequence[Tensor | None], keep_numbers: bool
) -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
    """Shapes in the operator's own words, and what its words stand for where it is called.

    An axis that sizes something inside the operator is a number; the others are named lengths, or with
    ``keep_numbers`` only those whose number is not known.
    """
    actual: dict[str, Any] = {}
    local: list[Tensor | None] = []
    ports = operator.signature.inputs
    for index, tensor in enumerate(tensors):
        if tensor is None:
            local.append(None)
            continue
        shape, dtype = tensor
        sizes = []
        for axis, size in zip(_axes(ports[min(index, len(ports) - 1)], len(shape)), shape, strict=True):
            known = operator.sizes.get(axis)
            if isinstance(known, int) or axis.isdigit():
                sizes.append(known if isinstance(known, int) else int(axis))
            elif keep_numbers and isinstance(size, int):
                sizes.append(size)
            else:
                actual.setdefault(axis, size)
                sizes.append(symbol(axis))
        local.append((tuple(sizes), dtype))
    return tuple(local), actual


def _axes(port: Port, rank: int) -> list[str]:
    """A port's axes by name, with those that ``...`` stands for."""
    open_axes = rank - len(port.axes) + 1
    names = OPEN_AXES.get(open_axes, tuple(f"N{i}" for i in range(open_axes)))
    return [name for axis in port.axes for name in (names if axis == "..." else (axis,))]
