"""A plan as readable source code that needs nothing but its framework."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from isomorph.backends.available import able
from isomorph.dimensions import show_shape
from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.initializers import Initializer
from isomorph.operators.declare import Operator
from isomorph.plan import Node, Plan
from isomorph.source_code.body import Body
from isomorph.source_code.class_writer import ClassWriter
from isomorph.source_code.classes import Classes, Layer
from isomorph.source_code.framework import Framework
from isomorph.source_code.instances import Instance, Library, inside
from isomorph.source_code.layout import INDENT, Expression, bracketed, call, docstring, literal, statement
from isomorph.source_code.network import Network, Place
from isomorph.source_code.outline import Helper
from isomorph.source_code.record import Step

LONGEST_TUPLE = 4
"""A longer table of numbers stands in front of the classes, under a name."""
MOST_TIES_IN_LINES = 4


def write_python(plan: Plan, framework: str = "torch") -> str:
    """The network as the text of a Python module with a class ``Model``.

    The text imports its framework alone, and ``safetensors`` in its function ``load``. Each kind of operator that
    the framework has no layer for is a class; modules have the plan's names, so that in PyTorch the keys of
    the state dictionary are the plan's parameter paths. It is laid out as ``ruff format`` leaves it.

    Args:
        plan: the network.
        framework: ``"torch"``, or ``"nnx"`` for Flax.

    Raises:
        IsomorphError: E_ARGUMENT for an unknown framework; E_BACKEND for an operator whose computation asks
            for the value of a size that is known at run time alone, or calls what the framework has no text for.
    """
    Plan.expect(plan)
    frameworks = able("python")
    if framework not in frameworks:
        raise IsomorphError(
            "E_ARGUMENT",
            f"there is no framework {shorten(framework)} to write for",
            hints=did_you_mean(framework, frameworks) or [f"frameworks: {', '.join(frameworks)}"],
        )
    return _File(plan, _words(framework)).text()


def _words(framework: str) -> Framework:
    return import_module(f"isomorph.source_code.{framework}_text").WORDS()


class _File:
    """One file while it is written."""

    def __init__(self, plan: Plan, framework: Framework) -> None:
        self.plan, self.framework = plan, framework
        self.functions: dict[str, str] = {}
        self.constants: dict[tuple[float, ...], str] = {}
        self.helper_names: dict[Any, str] = {}
        self.primitives: set[str] = set()
        self.library = Library(plan.dtype)
        aliases, plain = self._ties()
        self.network = Network(plan, self.library, aliases, plain)
        self.classes = Classes(framework, plan.dtype)
        self.classes.add(_instances(self.network.places))

    # -- ties ------------------------------------------------------------------------------------

    def _ties(self) -> tuple[dict[str, str], dict[str, frozenset[str]]]:
        """What is read at its owner, and what must be held as the plan has it, by node."""
        aliases: dict[str, str] = {}
        plain: dict[str, set[str]] = {}
        self.shared: dict[str, str] = {}
        for node in self.plan.nodes:
            own = node.operator.own_parameters
            alone = not node.operator.child_operators and own and all(path in node.tie for path in own)
            for path, owner in node.tie.items():
                full = f"{node.name}.{path}"
                if self.framework.shares_parameters:
                    self.shared[full] = owner
                elif alone:
                    aliases[full] = self._located(owner, frozenset())
                else:
                    self.shared[full] = owner
                    for one in (full, owner):
                        name, _, rest = one.partition(".")
                        plain.setdefault(name, set()).add(rest)
        kept = {name: frozenset(paths) for name, paths in plain.items()}
        if kept:  # what is read elsewhere is read where it is now
            for node in self.plan.nodes:
                for path, owner in node.tie.items():
                    full, (name, _, rest) = f"{node.name}.{path}", owner.partition(".")
                    if full in aliases:
                        aliases[full] = self._located(owner, frozenset({rest} & kept.get(name, set())))
        return aliases, kept

    def _located(self, path: str, plain: frozenset[str]) -> str:
        """The attributes that lead to a parameter in the framework's layers, and ``.T`` where it lies otherwise."""
        name, *inner, last = path.split(".")
        operator: Operator = self.plan.node(name).operator
        for part in inner:
            operator, plain = operator.child_operators[part], inside(plain, part)
        native = self.framework.native(self.library.alone(operator, plain), self.plan.dtype)
        attributes = ".".join([name, *inner, last if native is None else native.names.get(last, last)])
        return attributes + (".T" if native is not None and last in native.transposed else "")

    # -- the file --------------------------------------------------------------------------------

    def text(self) -> str:
        """All of it."""
        self.taken = taken = {kind.name for kind in self.classes.kinds}
        functions = self._helpers(taken)
        classes = []
        for kind in self.classes.kinds:
            writer = ClassWriter(
                kind, self.framework, self.plan.dtype, self._require, self._literal, self._helper, taken
            )
            classes.append(writer.lines())
            self.primitives |= writer.primitives
        model = self._model(taken)
        load = self.framework.load_lines(
            self.plan, self._ties_to_read(), [*self.classes.natives], bool(self.network.places)
        )
        required = [text.strip("\n").split("\n") for text in self.functions.values()]
        tables = self._tables()
        sections = [*required, *functions, *classes, model, load]
        body = "\n\n\n".join("\n".join(section) for section in sections)
        head = ["\n".join(self._docstring()), "\n".join(self.framework.imports(body))]
        if tables:
            head.append("\n".join(tables))
        return "\n\n".join(head) + "\n\n\n" + body + "\n"

    def _ties_to_read(self) -> dict[str, str]:
        return self.shared if self.framework.shares_parameters else {}

    def _require(self, name: str, text: str) -> str:
        """The name of a function of the file; another one where the name stands for another text."""
        for number in itertools.count(1):
            numbered = name if number == 1 else f"{name}{number}"
            written = text.replace(f"def {name}(", f"def {numbered}(")
            if self.functions.setdefault(numbered, written) == written:
                return numbered
        raise AssertionError

    def _literal(self, value: Any) -> str:
        if not isinstance(value, tuple) or len(value) <= LONGEST_TUPLE:
            return literal(value)
        number = len(self.constants) + 1
        return self.constants.setdefault(value, "FREQUENCIES" + (f"_{number}" if number > 1 else ""))

    def _tables(self) -> list[str]:
        lines: list[str] = []
        for values, name in self.constants.items():
            formula = _geometric(values)
            if formula:
                lines += ["", "# Radians per position.", *formula_lines(name, formula)]
            else:
                lines += ["", f"{name} = (  # radians per position", *_rows(values), ")  # fmt: skip"]
        if len(self.shared) > MOST_TIES_IN_LINES:
            lines += ["", "TIED = {"]
            lines += [f'    "{path}": "{owner}",' for path, owner in self._shared_places()]
            lines += ["}"]
        return lines[1:]

    def _helper(self, key: Any) -> str:
        return self.helper_names[key]

    def _helpers(self, taken: set[str]) -> list[list[str]]:
        """The functions of operators' files that the classes call."""
        by_key: dict[Any, Helper] = {}
        for kind in self.classes.kinds:
            for helper in kind.instances[0].helpers:
                by_key.setdefault(helper.key, helper)
        for key, helper in by_key.items():
            name, number = helper.name, 2
            while name in taken or hasattr(builtins, name) or self.framework.claims(name):
                name, number = f"{helper.name}{number}", number + 1
            taken.add(name)
            self.helper_names[key] = name
        return [self._function(key, helper, taken) for key, helper in by_key.items()]

    def _function(self, key: Any, helper: Helper, taken: set[str]) -> list[str]:
        varying = {id(value) for value in helper.varying}
        body = Body(
            self.framework,
            self.plan.dtype,
            constant=lambda step, place, value: self._literal(value),
            remark=lambda value, axis, size: None if id(value) in varying else str(size),
            called=lambda step: self._helper(step.attributes["helper"]),
            require=self._require,
            taken=taken,
            depth=1,
        )
        tensor = self.framework.tensor
        names = body.inputs(helper.inputs)
        body.finish(helper.steps, {str(i): value for i, value in enumerate(helper.outputs)})
        self.primitives |= body.primitives
        many = len(helper.outputs)
        result = tensor if many == 1 else f"tuple[{', '.join([tensor] * many)}]"
        head = bracketed(
            f"def {self.helper_names[key]}(", [f"{name}: {tensor}" for name in names], f") -> {result}:", 0
        )
        return [*head, *(docstring(helper.title, 1) if helper.title else []), *body.lines]

    def _docstring(self) -> list[str]:
        plan, framework = self.plan, self.framework
        paragraphs = [
            f"A network of {plan.parameter_count:,} parameters in {framework.title}, written by isomorph.",
            *framework.notes(plan, self.primitives),
            "Use:",
            "\n".join(framework.usage(plan, self._arguments)),
        ]
        return docstring("\n\n".join(paragraphs), 0)

    # -- the network -----------------------------------------------------------------------------

    def _model(self, taken: set[str]) -> list[str]:
        framework, network = self.framework, self.network
        body = Body(
            framework,
            self.plan.dtype,
            constant=lambda step, place, value: self._literal(value),
            remark=lambda value, axis, size: str(size),
            called=_called,
            require=self._require,
            taken=[*taken, *network.counters],
            stated=network.stated,
        )
        names = self._arguments = body.inputs(network.inputs)
        body.finish(network.items, network.outputs, as_dictionary=len(network.outputs) > 1)
        self.primitives |= body.primitives
        tensor = framework.tensor
        result = tensor if len(network.outputs) == 1 else f"dict[str, {tensor}]"
        keyword = ["*", framework.init_parameter] if framework.init_parameter else []
        constructor = self._constructor()
        head = ["self", *(f"{name}: {tensor}" for name in names)]
        return [
            f"class Model({framework.module}):",
            *self._contract(names),
            "",
            *bracketed("def __init__(", ["self", *keyword], ") -> None:", 1),
            *(constructor or [f"{INDENT * 2}pass"]),
            "",
            *bracketed(f"def {framework.call_method}(", head, f") -> {result}:", 1),
            *body.lines,
        ]

    def _contract(self, names: list[str]) -> list[str]:
        """What goes in and what comes out, as a docstring."""
        plan = self.plan
        lines = [
            _port(name, plan.values[value].shape, plan.values[value].dtype)
            for name, (_, value) in zip(names, plan.inputs, strict=True)
        ]
        lines += [
            _port(f"-> {name}".rstrip(), plan.values[value].shape, plan.values[value].dtype)
            for name, value in plan.outputs
        ]
        for symbol, bound in plan.bounds.items():
            if bound.high is not None:
                lines.append(f"{symbol} <= {bound.high}")
        return docstring("The whole network.\n\n" + "\n".join(lines), 1)

    def _constructor(self) -> list[str]:
        framework = self.framework
        lines = [INDENT * 2 + framework.inner_init] if framework.inner_init else []
        self._late: list[Expression] = []
        lines += self._places(self.network.places, 2)
        for one in self._late:
            lines += statement("", one, 2)
        if len(self.shared) > MOST_TIES_IN_LINES:
            lines += [INDENT * 2 + line for line in framework.tie_loop()]
        else:
            lines += [f"{INDENT * 2}self.{path} = self.{owner}" for path, owner in self._shared_places()]
        return lines + [INDENT * 2 + line for line in framework.dtype_lines(self.plan)]

    def _shared_places(self) -> Iterator[tuple[str, str]]:
        for path, owner in self.shared.items():
            places = []
            for one in (path, owner):
                rest = one.partition(".")[2]
                kept = frozenset() if self.framework.shares_parameters else frozenset({rest})
                places.append(self._located(one, kept))
            yield places[0], places[1]

    def _places(self, places: list[Place], depth: int) -> list[str]:
        lines: list[str] = []
        for place in places:
            if place.node is None:
                lines.append(f"{INDENT * depth}for {place.counter} in range({place.times}):")
                lines += self._places(place.body, depth + 1)
            else:
                lines += self._place(place, place.node, depth)
        return lines

    def _place(self, place: Place, node: Node, depth: int) -> list[str]:
        """The statements that make one node."""
        assert place.instance is not None
        layer = self._layer(self.classes.layer(place.instance))
        frozen = list(_frozen(node.operator, node, ""))
        if frozen == [""]:
            layer, frozen = self.framework.frozen_new(layer), []
            self.functions |= self.framework.frozen_helpers()
        drawn = self._drawn(place)
        if "{" not in place.name:
            owner = f"self.{place.name}"
            lines = statement(f"{owner} = ", layer, depth)
            return lines + self._afterwards_lines(owner, node, frozen, drawn, depth)
        target = f'setattr(self, f"{place.name}", '
        if not frozen and not drawn:
            return statement("", call("setattr", "self", f'f"{place.name}"', layer.text), depth)
        owner = place.name.split("{")[0].rstrip("_0123456789") or "module"
        while owner in self.taken or owner in self.network.counters or self.framework.claims(owner):
            owner += "_"
        lines = statement(f"{owner} = ", layer, depth)
        lines += self._afterwards_lines(owner, node, frozen, drawn, depth)
        return [*lines, f"{INDENT * depth}{target}{owner})"]

    def _afterwards_lines(
        self, owner: str, node: Node, frozen: list[str], drawn: Mapping[str, Initializer], depth: int
    ) -> list[str]:
        done = self._afterwards(owner, node, frozen, drawn)
        return [line for one in done for line in statement("", one, depth)]

    def _afterwards(
        self, owner: str, node: Node, frozen: list[str], drawn: Mapping[str, Initializer]
    ) -> Iterator[Expression]:
        """What is done to a module that was just made."""
        for path, initial in drawn.items():
            yield self.framework.drawn(f"{owner}.{self._inner(node, path)}", initial)
        for path in frozen:
            self.functions |= self.framework.frozen_helpers()
            is_parameter = path in node.operator.all_parameters
            inner = self._inner(node, path) if is_parameter else path
            yield self.framework.frozen(f"{owner}.{inner}", is_parameter)

    def _inner(self, node: Node, path: str) -> str:
        """A parameter inside a node as the framework's layers have it."""
        plain = self.network.plain.get(node.name, frozenset())
        return self._located(f"{node.name}.{path}", plain).removesuffix(".T").partition(".")[2]

    def _drawn(self, place: Place) -> dict[str, Initializer]:
        """Initial distributions that the definition changes; those that differ in a loop are drawn later."""
        if not self.framework.draws_anew:
            return {}
        changed = [{p: i for p, i in node.init.items() if p not in node.tie} for node in place.nodes]
        if all(one == changed[0] for one in changed):
            return changed[0]
        for node, values in zip(place.nodes, changed, strict=True):
            self._late += self._afterwards(f"self.{node.name}", node, [], values)
        return {}

    def _layer(self, layer: Layer) -> Expression:
        keyword = self.framework.init_keyword
        if layer.native is not None:
            given = [f"{k}={literal(v)}" if k else literal(v) for k, v in layer.native.arguments]
            return call(layer.native.head, *given, keyword)
        assert layer.kind is not None
        given = [f"{key}={self._literal(value)}" for key, value in layer.arguments]
        return call(layer.kind.name, *given, keyword)


def _called(step: Step) -> str:
    """A node as the computation calls it."""
    name = step.attributes["child"]
    return f'getattr(self, f"{name}")' if "{" in name else f"self.{name}"


def _instances(places: list[Place]) -> Iterator[Instance]:
    for place in places:
        if place.instance is not None:
            yield place.instance
        yield from _instances(place.body)


def _frozen(operator: Operator, node: Node, path: str) -> Iterator[str]:
    """The shortest paths that hold frozen parameters of the node alone; ``""`` for all of it."""
    prefix = f"{path}." if path else ""
    inner = [prefix + name for name in operator.all_parameters if prefix + name not in node.tie]
    flags = {node.is_trainable(name) for name in inner}
    if flags == {False}:
        yield path
    elif False in flags:
        for name in operator.own_parameters:
            if prefix + name not in node.tie and not node.is_trainable(prefix + name):
                yield prefix + name
        for name, child in operator.child_operators.items():
            yield from _frozen(child, node, prefix + name)


def _port(name: str, shape: Any, dtype: str) -> str:
    return (
        f"{name}: {show_shape(shape)} {dtype}" if "->" not in name else f"{name} {show_shape(shape)} {dtype}"
    )


def formula_lines(name: str, formula: str) -> list[str]:
    """``FREQUENCIES = tuple(... for i in range(32))``."""
    return statement(f"{name} = ", call("tuple", formula), 0)


def _geometric(values: tuple[float, ...]) -> str:
    """``10000.0 ** (-2 * i / 64) for i in range(32)`` where these are exactly the numbers, else nothing."""
    half, scale = len(values), values[0]
    if not scale > 0 or not 0 < values[1] < scale:
        return ""
    ratio = (values[1] / scale) ** -half
    divisor = round(1 / scale, 9)
    for digits in range(7):
        base = round(ratio, digits)
        if base > 0 and tuple(base ** (-2.0 * i / (2 * half)) / divisor for i in range(half)) == values:
            tail = f" / {literal(divisor)}" if divisor != 1 else ""
            return f"{literal(base)} ** (-2 * i / {2 * half}){tail} for i in range({half})"
    return ""


def _rows(values: tuple[float, ...]) -> list[str]:
    """Numbers, four on a line."""
    texts = [literal(value) for value in values]
    return [f"    {', '.join(texts[i : i + 4])}," for i in range(0, len(texts), 4)]
