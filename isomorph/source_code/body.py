"""Writes the body of one function: recorded steps as statements, with names and shape comments.

A value that is used once is written where it is used, unless the operator's author gave it a name or the
line becomes too long. A name is used again once nobody needs its value any more.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from isomorph.source_code.framework import Emit, Framework
from isomorph.source_code.layout import WIDTH, Expression, call, statement
from isomorph.source_code.record import Loop, Step, Value, cannot_write
from isomorph.source_code.sizes import Size

NAMES = ("x", "h", "y", "z", "u", "v", "w")
Constant = Callable[[Step, Any, Any], str]
"""The text of a number: (step, which one of it, the number)."""


class Body:
    """The statements of one function.

    Args:
        framework: whose expressions they are.
        dtype: the compute dtype.
        constant: how a number among a step's attributes is written.
        remark: how a number in a shape comment is written, or None for a shape that is not shown.
        called: how a child is called, by its step.
        require: asks the file for a function by its name and text.
        taken: names that no tensor may have.
        stated: values that are statements of their own, whatever they are used for.
    """

    def __init__(
        self,
        framework: Framework,
        dtype: str,
        *,
        constant: Constant,
        remark: Callable[[Value, int, int], str | None],
        called: Callable[[Step], str],
        require: Callable[[str, str], str],
        taken: Iterable[str] = (),
        stated: Iterable[Value] = (),
        depth: int = 2,
    ) -> None:
        self.framework, self.dtype, self.depth = framework, dtype, depth
        self.constant, self.remark, self.called, self.require = constant, remark, called, require
        self.lines: list[str] = []
        self.used_symbols: set[str] = set()
        self.primitives: set[str] = set()
        self._names: dict[int, str] = {}  # of the values that are still read
        self._symbols: dict[str, str] = {}
        self._taken = set(taken)
        self._stated = {id(value) for value in stated}
        self._uses: list[Counter[int]] = []  # reads to come, of each block from the outermost inwards
        self._waiting: dict[int, Step] = {}
        self._inputs: list[tuple[str, Value]] = []

    # -- the whole function ----------------------------------------------------------------------

    def inputs(self, named: Mapping[str, Value]) -> list[str]:
        """Take the function's arguments; their names as the function has them."""
        for value in named.values():
            for size in value.shape:
                for symbol in size.symbols if isinstance(size, Size) else ():
                    self._symbol(symbol)
        for name, value in named.items():
            while self._is_taken(name) or name in self._names.values():
                name += "_"
            self._names[id(value)] = name
            self._inputs.append((name, value))
        return [name for name, _ in self._inputs]

    def _is_taken(self, name: str) -> bool:
        return name in self._taken or self.framework.claims(name)

    def _symbol(self, symbol: str) -> str:
        if symbol not in self._symbols:
            name = symbol
            while self._is_taken(name):
                name += "_"
            self._symbols[symbol] = name
            self._taken.add(name)
        return self._symbols[symbol]

    def finish(
        self, items: Sequence[Step | Loop], outputs: Mapping[str, Value], as_dictionary: bool = False
    ) -> None:
        """All statements, the return too; sizes that are used are read first."""
        results = list(outputs.values())
        self._uses.append(Counter(id(value) for value in results))
        self._block(items, results, returns=len(results) == 1)
        if len(results) == 1:
            self._return(results[0])
        elif as_dictionary:
            entries = [f'"{name}": {self._text(value).text}' for name, value in outputs.items()]
            self._return_many(f"return {{{', '.join(entries)}}}", "return {", entries, "}")
        else:
            entries = [self._text(value).text for value in results]
            self._return_many(f"return {', '.join(entries)}", "return (", entries, ")")
        self._uses.pop()
        self.lines[:0] = self._unpacked()

    def _return(self, value: Value) -> None:
        step = self._waiting.get(id(value))
        if step is not None:
            self._fit(step, "return ")
        self.lines += statement("return ", self._text(value), self.depth, self._shape(value) if step else "")

    def _return_many(self, line: str, start: str, entries: list[str], end: str) -> None:
        indent = "    " * self.depth
        if len(indent + line) <= WIDTH:
            self.lines.append(indent + line)
        else:
            self.lines += [indent + start, *(f"{indent}    {entry}," for entry in entries), indent + end]

    def _unpacked(self) -> list[str]:
        """``B, T, _ = x.shape`` for the symbols that the text mentions."""
        wanted, lines = set(self.used_symbols), []
        for name, value in self._inputs:
            sizes = ["_" for _ in value.shape]
            for axis, size in enumerate(value.shape):
                if isinstance(size, Size) and size.text() in wanted:
                    sizes[axis] = self._symbols[size.text()]
                    wanted.remove(size.text())
            axes = [axis for axis, size in enumerate(sizes) if size != "_"]
            if len(axes) == 1:
                lines.append(f"{sizes[axes[0]]} = {name}.shape[{axes[0]}]")
            elif axes:
                lines.append(f"{', '.join(sizes)} = {name}.shape")
        if wanted:
            raise cannot_write(
                f"a size {', '.join(sorted(wanted))} that no input states by itself",
                ["give an input an axis of that size"],
            )
        return ["    " * self.depth + line for line in lines]

    # -- statements ------------------------------------------------------------------------------

    def _block(self, items: Sequence[Step | Loop], needed: Sequence[Value], returns: bool = False) -> None:
        """The statements of some steps; ``needed`` are values that are read afterwards."""
        readers: dict[int, list[Step | Loop]] = {}
        for item in items:
            for value in reads(item):
                self._uses[-1][id(value)] += 1
                readers.setdefault(id(value), []).append(item)
        kept = {id(value) for value in needed}
        for item in items:
            if isinstance(item, Loop):
                self._loop(item)
                continue
            self.primitives.add(item.primitive)
            value = item.outputs[0]
            users = readers.get(id(value), [])
            alone = len(item.outputs) == 1 and self._uses[-1][id(value)] == 1
            ends = returns and item is items[-1] and id(value) in kept
            inner = (
                not value.hint
                and id(value) not in self._stated
                and id(value) not in kept
                and all(isinstance(user, Step) for user in users)
            )
            if alone and (ends or inner):
                self._waiting[id(value)] = item
            else:
                self._state(item)

    def _state(self, step: Step) -> None:
        """One statement: its targets, its expression."""
        self._fit(step, "x = ")
        expression = self._expression(step)
        leaves = list(self._leaves(step))
        for value in leaves:
            self._uses[-1][id(value)] -= 1
            self._waiting.pop(id(value), None)
        freed = [self._names[id(v)] for v in leaves if id(v) in self._names and self._is_dead(v)]
        reusable = [
            self._names[id(v)] for v in leaves if id(v) in self._names and v.dtype == step.outputs[0].dtype
        ]
        for value in leaves:
            if self._is_dead(value):
                self._names.pop(id(value), None)
        targets = []
        for value in step.outputs:
            targets.append(self._name(value, [name for name in reusable if name in freed]))
            if targets[-1] != "_":
                self._names[id(value)] = targets[-1]
        shape = self._shape(step.outputs[0])
        if len(step.outputs) > 1 and shape and len({value.shape for value in step.outputs}) == 1:
            shape += " each"
        self.lines += statement(f"{', '.join(targets)} = ", expression, self.depth, shape)

    def _fit(self, step: Step, prefix: str) -> None:
        """Give names to what is written inside the step until its line is short enough."""
        while True:
            width = 4 * self.depth + len(prefix) + len(self._expression(step).text)
            inner = [v for v in step.inputs if v is not None and id(v) in self._waiting]
            if width <= WIDTH or not inner:
                return
            longest = max(inner, key=lambda v: len(self._text(v).text))
            self._state(self._waiting.pop(id(longest)))

    def _is_dead(self, value: Value) -> bool:
        return not any(uses[id(value)] > 0 for uses in self._uses)

    def _name(self, value: Value, reusable: Sequence[str] = ()) -> str:
        """A free name: the author's, that of a value just read for the last time, or a plain one."""
        if self._is_dead(value):
            return "_"
        live = set(self._names.values())
        hint = re.sub(r"\W", "", value.hint)
        for name in (hint, *(name for name in reusable if len(name) == 1)):
            if name and not self._is_taken(name) and name not in live:
                return name
        return self._fresh()

    def _leaves(self, step: Step) -> Iterable[Value]:
        """The values that a step's expression reads by name, and those written inside it."""
        for value in step.inputs:
            if value is None or value.parameter is not None:
                continue
            yield value
            if id(value) in self._waiting:
                yield from self._leaves(self._waiting[id(value)])

    # -- loops -----------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        """``for i in range(12):`` with every carried value under one name."""
        names = self._carried_names(loop)
        begun = len(self.lines)
        self._line(f"for {loop.variable} in range({loop.times}):")
        self.depth += 1
        results = [result for *_, result in loop.carried]
        hints = [result.hint for result in results]
        for result, name in zip(results, names, strict=True):
            result.hint = name
        self._uses.append(Counter(id(value) for value in results))
        self._block(loop.body, results)
        for result, hint in zip(results, hints, strict=True):
            result.hint = hint
        now = [self._names[id(result)] for result in results]
        moved = [(name, old) for name, old in zip(names, now, strict=True) if name != old]
        if moved:
            self._line(f"{', '.join(a for a, _ in moved)} = {', '.join(b for _, b in moved)}")
        if len(self.lines) == begun + 1:
            del self.lines[begun]  # it changes nothing
        self._uses.pop()
        self.depth -= 1
        for value in reads(loop):
            self._uses[-1][id(value)] -= 1
        for value in [*reads(loop), *makes(loop), *(inside for _, inside, _ in loop.carried)]:
            if self._is_dead(value):
                self._names.pop(id(value), None)
        for result, name in zip(results, names, strict=True):
            if not self._is_dead(result):
                self._names[id(result)] = name

    def _carried_names(self, loop: Loop) -> list[str]:
        """A name for each carried value: its own, or another where its value is read later too."""
        names: list[str] = []
        inner = {id(value) for item in loop.body for value in reads(item)}
        for entry, inside, _ in loop.carried:
            self._uses[-1][id(entry)] -= 1
            is_last = self._is_dead(entry) and id(entry) not in inner
            self._uses[-1][id(entry)] += 1
            name = self._names[id(entry)]
            if not is_last or name in names:
                name, old = self._fresh(), name
                self._line(f"{name} = {old}")
            else:
                del self._names[id(entry)]
            self._names[id(inside)] = name
            names.append(name)
        return names

    def _fresh(self) -> str:
        """A plain name that no value has."""
        live = set(self._names.values())
        numbered = (f"x{number}" for number in itertools.count(2))
        return next(n for n in itertools.chain(NAMES, numbered) if n not in live and not self._is_taken(n))

    def _line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    # -- expressions -----------------------------------------------------------------------------

    def _text(self, value: Value) -> Expression:
        if id(value) in self._waiting:
            return self._expression(self._waiting[id(value)])
        if value.parameter is not None:
            return Expression(self.framework.read(f"self.{value.parameter}"))
        return Expression(self._names[id(value)])

    def _expression(self, step: Step) -> Expression:
        given = [None if value is None else self._text(value) for value in step.inputs]
        if step.primitive == "call":
            arguments = [one.text if one else "None" for one in given]
            return call(self.called(step), *arguments)
        if step.primitive == "helper":
            return call(self.called(step), *[one.text for one in given if one])
        write = self.framework.primitives.get(step.primitive)
        if write is None:
            raise cannot_write(f"the primitive {step.primitive} in {self.framework.name}")
        return write(StepEmit(self, step, given))

    def size_text(self, step: Step, key: Any, size: Any) -> str:
        """A size in an expression."""
        if isinstance(size, Size):
            self.used_symbols.update(size.symbols)
            return size.text(self._symbol)
        return self.constant(step, key, size)

    def _shape(self, value: Value) -> str:
        """``(B, T, 768)``."""
        sizes = []
        for axis, size in enumerate(value.shape):
            text = size.text(self._symbol) if isinstance(size, Size) else self.remark(value, axis, size)
            if text is None:
                return ""
            sizes.append(text)
        return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


class StepEmit(Emit):
    """What a framework's table sees of a step; see :class:`isomorph.source_code.framework.Emit`."""

    def __init__(self, body: Body, step: Step, inputs: list[Expression | None]) -> None:
        self._body, self.step, self.inputs = body, step, inputs
        self.dtype = body.dtype
        self.require = body.require

    def constant(self, name: str) -> str:
        return self._body.constant(self.step, name, self.step.attributes[name])

    def sizes(self, name: str) -> list[str]:
        return [
            self._body.size_text(self.step, (name, axis), size)
            for axis, size in enumerate(self.step.attributes[name])
        ]

    def size(self, name: str) -> str:
        size = self.step.attributes[name]
        return "" if size is None else self._body.size_text(self.step, name, size)

    def child(self, name: str) -> str:
        return f"self.{name}"


def reads(item: Step | Loop) -> list[Value]:
    """The values that a step reads, once for each time; those from outside that a loop reads, once each."""
    if isinstance(item, Step):
        return [value for value in item.inputs if value is not None and value.parameter is None]
    inner_values = {id(value) for inner in item.body for value in makes(inner)}
    inner_values |= {id(inside) for _, inside, _ in item.carried}
    outer_values = {id(v): v for inner in item.body for v in reads(inner) if id(v) not in inner_values}
    results = {id(result): result for *_, result in item.carried if id(result) not in inner_values}
    return list({**outer_values, **results, **{id(entry): entry for entry, *_ in item.carried}}.values())


def makes(item: Step | Loop) -> list[Value]:
    """The values that a step or a loop's body makes."""
    if isinstance(item, Step):
        return list(item.outputs)
    return [value for inner in item.body for value in makes(inner)]
