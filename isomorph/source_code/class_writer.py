"""Writes one class of a file: its constructor and its computation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from isomorph.display.page import docstring as operator_docstring
from isomorph.operators.declare import Parameter
from isomorph.source_code.body import Body
from isomorph.source_code.classes import (
    Kind,
    Layer,
    combination,
    is_number,
    named_rows,
    shared_numbers,
    slots,
)
from isomorph.source_code.framework import Framework
from isomorph.source_code.instances import Instance
from isomorph.source_code.layout import INDENT, Expression, bracketed, call, docstring, literal, statement
from isomorph.source_code.record import Step, Value

Require = Callable[[str, str], str]


class ClassWriter:
    """Writes one class.

    Args:
        kind: the class.
        framework, dtype: whose words, and the compute dtype.
        require: asks the file for a function.
        constant: how the file writes a constant (a long table has a name).
        helper: the name of a function of the file by its key.
        taken: names of the file's functions and classes.
    """

    def __init__(
        self,
        kind: Kind,
        framework: Framework,
        dtype: str,
        require: Require,
        constant: Callable[[Any], str],
        helper: Callable[[Any], str],
        taken: Iterable[str],
    ) -> None:
        self.helper = helper
        self.kind, self.framework, self.dtype = kind, framework, dtype
        self.require, self.literal = require, constant
        self._columns = [
            dict(slots(one, layers)) for one, layers in zip(kind.instances, kind.layers, strict=True)
        ]
        self._named = {
            **{v: n for v, n in named_rows(kind).items() if n in dict(kind.arguments)},
            **{values: name for name, values in kind.arguments},
        }
        self._constants = shared_numbers(kind)
        self._steps = {id(step): i for i, step in enumerate(kind.instances[0].steps)}
        self._stored: dict[str, str] = {}
        self._taken = set(taken)
        self.primitives: set[str] = set()

    def lines(self) -> list[str]:
        """The text of the class, a line each."""
        instance = self.kind.instances[0]
        operator = self.kind.operator
        parts = {*instance.children, *operator_parameters(instance)}
        parts |= self.framework.attributes
        self._attributes = {n: n if n not in parts else f"{n}_value" for n, _ in self.kind.arguments}
        body = self._body()
        names = body.inputs(instance.inputs)
        outputs = {str(i): value for i, value in enumerate(instance.outputs)}
        body.finish(instance.steps, outputs)
        self.primitives = body.primitives
        tensor = self.framework.tensor
        result = tensor if len(outputs) == 1 else f"tuple[{', '.join([tensor] * len(outputs))}]"
        head = ["self", *(f"{name}: {tensor}" for name in names)]
        return [
            f"class {self.kind.name}({self.framework.module}):",
            *docstring(_plain(operator_docstring(operator)[0]), 1),
            "",
            *self._constructor(instance),
            "",
            *bracketed(f"def {self.framework.call_method}(", head, f") -> {result}:", 1),
            *body.lines,
        ]

    def _body(self) -> Body:
        return Body(
            self.framework,
            self.dtype,
            constant=self._step_constant,
            remark=self._remark,
            called=self._called,
            require=self.require,
            taken=self._taken,
        )

    def _called(self, step: Step) -> str:
        if step.primitive == "call":
            return f"self.{step.attributes['child']}"
        return self.helper(step.attributes["helper"])

    def _constructor(self, instance: Instance) -> list[str]:
        framework = self.framework
        lines = [INDENT * 2 + framework.inner_init] if framework.inner_init else []
        for name, _ in self.kind.arguments:
            if name in self._stored:
                lines.append(f"{INDENT * 2}self.{self._attributes[name]} = {name}")
        for name, spec in operator_parameters(instance).items():
            shape = [self._text(("parameter", name, axis), size) for axis, size in enumerate(spec.shape)]
            parameter = framework.parameter(shape, spec.initial, self.dtype)
            lines += statement(f"self.{name} = ", parameter, 2)
        for name, layer in self.kind.layers[0].items():
            lines += statement(f"self.{name} = ", self._layer(name, layer), 2)
        keyword = ["*", framework.init_parameter] if framework.init_parameter else []
        arguments = [f"{name}: {_annotation(values[0])}" for name, values in self.kind.arguments]
        head = bracketed("def __init__(", ["self", *arguments, *keyword], ") -> None:", 1)
        return [*head, *(lines or [f"{INDENT * 2}pass"])]

    def _layer(self, name: str, layer: Layer) -> Expression:
        """The constructor's call for a child."""
        given = []
        if layer.native is not None:
            for position, (key, value) in enumerate(layer.native.arguments):
                text = self._text(("child", name, position), value) if is_number(value) else literal(value)
                given.append(f"{key}={text}" if key else text)
            return call(layer.native.head, *given, self.framework.init_keyword)
        assert layer.kind is not None
        for position, (key, value) in enumerate(layer.arguments):
            given.append(f"{key}={self._text(('child', name, position), value)}")
        return call(layer.kind.name, *given, self.framework.init_keyword)

    def _text(self, place: Any, value: Any) -> str:
        """A value in the constructor: a number, an argument, or an expression of arguments."""
        values = tuple(column.get(place, value) for column in self._columns)
        if all(one == value for one in values):
            return self.literal(value)
        combined = combination(values, self._named, self._constants)
        assert combined is not None, place
        return combined[0]

    def _step_constant(self, step: Step, key: Any, value: Any) -> str:
        """A value in the computation, where an argument is read from the module."""
        values = tuple(column.get(("step", self._steps[id(step)], key), value) for column in self._columns)
        if all(one == value for one in values):
            return self.literal(value)
        combined = combination(values, self._named, self._constants)
        assert combined is not None, key
        text, parts = combined
        for name, _ in parts:
            self._stored[name] = name
            text = " ".join(f"self.{self._attributes[name]}" if w == name else w for w in text.split(" "))
        return text

    def _remark(self, value: Value, axis: int, size: int) -> str | None:
        """A size in a shape comment: a number, or the name of the argument that it is."""
        step = self._maker(value)
        if step is None:
            return str(size)
        index, position = self._steps[id(step)], step.outputs.index(value)
        sizes = tuple(one.steps[index].outputs[position].shape[axis] for one in self.kind.instances)
        if all(one == size for one in sizes):
            return str(size)
        combined = combination(sizes, self._named, self._constants)
        return combined[0] if combined is not None else "..."

    def _maker(self, value: Value) -> Step | None:
        for step in self.kind.instances[0].steps:
            if any(one is value for one in step.outputs):
                return step
        return None


def operator_parameters(instance: Instance) -> Mapping[str, Parameter]:
    """The parameters that an operator holds itself."""
    return instance.operator.own_parameters


def _annotation(value: Any) -> str:
    return "tuple[float, ...]" if isinstance(value, tuple) else type(value).__name__


def _plain(text: str) -> str:
    return text.replace("``", "`")
