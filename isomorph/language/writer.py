"""Writes a graph as the text of a definition, and adds contracts to a text that lacks them.

``parse(write(graph))`` equals the graph. The current tensor is left implicit where the graph leaves it so;
every other tensor gets the name that the definition gave it, or ``t<call>``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

from isomorph.errors import IsomorphError
from isomorph.initializers import Initializer
from isomorph.language.graph import Call, Contract, Graph, Reference
from isomorph.language.source import Source

_LEADING_COMMENTS = re.compile(r"(?:[ \t]*+\n)*+(?:[ \t]*+#[^\n]*+\n)*+")
_STRING_AHEAD = re.compile(r"(?:[ \t]*+(?:#[^\n]*+)?\n)*+[ \t(]*+[rRuU]?[\"']")
_REST_OF_LINE = re.compile(r"[ \t]*+(?:#[^\n]*+)?\n")
_SEPARATOR = re.compile(r"[ \t;]*")


def write(graph: Graph) -> str:
    """The text of a graph, one statement per line.

    Raises:
        IsomorphError: E_BINDING when the result is a tensor that no text can leave current (one that a
            later call follows, or one of several results of the last call), and when named outputs have no
            contracts.
    """
    return _Writer(graph).run()


class _Writer:
    """The names of tensors, and the current tensor as a reader of the text will see it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[Reference, str] = {
            Reference(-1, i): name for i, name in enumerate(graph.input_names)
        }
        self.current: Reference | None = Reference(-1, 0)
        self.published = graph.published

    def run(self) -> str:
        self._choose_names()
        lines = [_input_line(c, len(self.graph.inputs)) for c in self.graph.inputs]
        for index, call in enumerate(self.graph.calls):
            lines.append(self._call(index, call))
        lines += self._aliases()
        if self.graph.outputs:
            lines.append(output_line(self.graph.outputs))
        elif self.published:
            raise IsomorphError(
                "E_BINDING",
                f"the outputs {', '.join(self.published)} have no contracts, which a text needs to name them",
            )
        if not self.published and self.graph.current != self.current:
            raise IsomorphError(
                "E_BINDING",
                "the result is not the last tensor that was made, which a text cannot say",
                hints=['return a dictionary, such as {"features": features}'],
            )
        return "\n".join(lines) + "\n" if lines else ""

    def _choose_names(self) -> None:
        """Name every tensor that a statement mentions."""
        preferred: dict[Reference, str] = {}
        for name, reference in [*self.published.items(), *self.graph.bindings.items()]:
            if name not in self.graph.input_names:
                preferred.setdefault(reference, name)
        used = {*self.graph.input_names, *self.graph.bindings}
        splits = set()
        current: Reference | None = Reference(-1, 0)
        mentioned: list[Reference] = []
        for index, call in enumerate(self.graph.calls):
            mentioned += call.inputs
            mentioned += call.keyword_inputs.values()
            if not call.inputs and call.current is not None and call.current != current:
                mentioned.append(call.current)
            current = Reference(index, None) if call.targets < 2 else None
            if call.targets > 1:
                splits.add(index)
        mentioned += self.published.values()
        mentioned += [Reference(index, k) for index in splits for k in range(self.graph.calls[index].targets)]
        for reference in mentioned:
            if reference in self.names:
                continue
            name = preferred.get(reference)
            if name is None:
                name = _fresh(
                    f"t{reference.call}" + ("" if reference.output is None else f"_{reference.output}"), used
                )
            used.add(name)
            self.names[reference] = name

    def _call(self, index: int, call: Call) -> str:
        inputs = call.inputs
        if not inputs and call.current is not None and call.current != self.current:
            inputs = (call.current,)
        parts = [self.names[reference] for reference in inputs]
        parts += map(literal, call.arguments)
        parts += [f"{key}={self.names[reference]}" for key, reference in call.keyword_inputs.items()]
        parts += [f"{key}={literal(value)}" for key, value in call.keywords.items()]
        for key in ("name", "init", "trainable", "tie"):
            value = getattr(call, key)
            if value is not None:
                parts.append(f"{key}={literal(value)}")
        text = f"{call.operator}({', '.join(parts)})"
        if call.targets > 1:
            self.current = None
            targets = [self.names[Reference(index, k)] for k in range(call.targets)]
            return f"{', '.join(targets)} = {text}"
        self.current = Reference(index, None)
        name = self.names.get(self.current)
        return f"{name} = {text}" if name else text

    def _aliases(self) -> list[str]:
        """Statements that give the outputs their names; an input whose name is taken over is kept first."""
        lines: list[str] = []
        used = {*self.names.values(), *self.published}
        for name, reference in self.published.items():
            earlier = next((r for r, n in self.names.items() if n == name and r != reference), None)
            if earlier is not None and earlier in self.published.values():
                kept = _fresh(f"t{name}", used)
                used.add(kept)
                lines.append(f"{kept} = {name}")
                self.names[earlier] = kept
        lines += [f"{name} = {self.names[r]}" for name, r in self.published.items() if self.names[r] != name]
        return lines


def _fresh(name: str, used: Iterable[str]) -> str:
    while name in used:
        name += "_"
    return name


# -- pieces of text ----------------------------------------------------------------------------


def literal(value: Any) -> str:
    """A literal of the language, with strings in double quotes."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, Initializer):
        return f"{value.scheme}({', '.join(f'{key}={literal(item)}' for key, item in vars(value).items())})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(literal, value)) + (",)" if len(value) == 1 else ")")
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return repr(value)


def quote(text: str) -> str:
    """A string literal in double quotes."""
    escaped = {'"': '\\"', "\\": "\\\\"}
    return '"' + "".join(escaped.get(c) or (c if c.isprintable() else repr(c)[1:-1]) for c in text) + '"'


def _sizes(shape: Iterable[Any]) -> str:
    return ", ".join(repr(size) if type(size) is int else quote(str(size)) for size in shape)


def _input_line(contract: Contract, count: int) -> str:
    dtype = "" if contract.dtype is None else f", dtype={quote(contract.dtype)}"
    optional = ", optional=True" if contract.optional else ""
    text = f"input({_sizes(contract.shape)}{dtype}{optional})"
    name = contract.name or "x"
    return text if name == "x" and count == 1 else f"{name} = {text}"


def output_line(outputs: list[Contract]) -> str:
    """The ``output(...)`` statement of these contracts."""
    if len(outputs) == 1 and not outputs[0].name:
        return f"output({_sizes(outputs[0].shape)})"
    shapes = (f"{c.name}=({_sizes(c.shape)}{',' if len(c.shape) == 1 else ''})" for c in outputs)
    return f"output({', '.join(shapes)})"


# -- contracts for a text that lacks them ----------------------------------------------------------


def with_contracts(source: str, inputs: list[Contract], outputs: list[Contract]) -> str:
    """The text with ``input(...)`` lines on top and an ``output(...)`` line at the end, where it has none.

    Inputs come after a leading docstring or comments. The text must be a definition that
    :func:`isomorph.language.parser.parse` reads.
    """
    text = Source(source, "<definition>")
    indentation = text.indentation
    if not source.endswith("\n"):
        source = source.rstrip(" \t")
        source += "\n" if source and not source.endswith("\n") else ""
    if outputs and not _calls(text, "output"):
        source += f"{indentation}{output_line(outputs)}\n"
    if inputs and not _calls(text, "input"):
        start, separator = _first_place(text, source)
        lines = "".join(f"{indentation}{_input_line(c, len(inputs))}\n" for c in inputs)
        source = (
            source[:start].rstrip(" \t;") + separator + lines + indentation * bool(separator) + source[start:]
        )
    return source


def _calls(text: Source, name: str) -> bool:
    """Whether a statement of the text calls ``name``; the tree is made only when the word occurs."""
    if name not in text.text:
        return False
    values = (getattr(statement, "value", None) for statement in text.statements(has_escapes=True))
    return any(isinstance(value, ast.Call) and getattr(value.func, "id", "") == name for value in values)


def _first_place(text: Source, source: str) -> tuple[int, str]:
    """Where the first statement may stand, and what must end the line before it."""
    comments = _LEADING_COMMENTS.match(source)
    start = comments.end() if comments else 0
    if not _STRING_AHEAD.match(source, start):
        return start, ""
    end = text.end_of(text.statements(has_escapes=True)[0])  # of the docstring
    rest = _REST_OF_LINE.match(source, end)
    if rest is not None:
        return rest.end(), ""
    separator = _SEPARATOR.match(source, end)
    return (separator.end() if separator else end), "\n"
