"""Reads the text of a definition into a :class:`Graph`. Nothing is ever executed.

The scanner has refused every token that the language lacks before Python's own parser runs; this module
gives the tree its meaning: calls and the current tensor, names, loops, contracts.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, NoReturn

from isomorph.errors import IsomorphError, Location, shorten
from isomorph.language.expressions import CALL_FORM, LOOP_FORM, ExpressionReader
from isomorph.language.graph import Contract, Graph, Reference
from isomorph.language.names import IsOperator, OutputsOf, check_tensor_name, unknown_tensor
from isomorph.language.plain import EACH_LINE, read_plain
from isomorph.language.scanner import TERMS_PER_NODE, scan
from isomorph.language.source import read_source
from isomorph.limits import limits_with


def parse(
    source: str | bytes,
    *,
    file: str = "<definition>",
    limits: Mapping[str, int] | None = None,
    input_names: tuple[str, ...] | None = None,
    is_operator: IsOperator | None = None,
    outputs_of: OutputsOf | None = None,
) -> Graph:
    """The graph that a definition describes.

    Args:
        source: the text; bytes are UTF-8.
        file: the name shown in errors.
        limits: the complete bounds, as :func:`isomorph.limits.limits_with` makes them.
        input_names: inputs that the caller declares; ``("x",)`` when neither it nor the text names any.
        is_operator: tells names that no tensor may have.
        outputs_of: tells the outputs of an operator, which ``output(...)`` may name where it is called last.

    Raises:
        IsomorphError: E_SYNTAX for what is not part of the language, E_NAME, E_BINDING and E_ARGUMENT for
            names, contracts and literals, E_RESOURCE for a text beyond a limit; always with a place.
    """
    bounds = limits_with(None) if limits is None else limits
    text = read_source(source, file, bounds["max_source_bytes"])
    return Reader(text, bounds, input_names, is_operator, outputs_of).read()


class Reader(ExpressionReader):
    """Statements: how names, loops and contracts build the graph of a whole text."""

    def read(self) -> Graph:
        """The graph of the whole text."""
        scanned = scan(self.source, self.limits)
        text, line = self.source.text + "\n", 1
        for start, end, plain in scanned.segments:
            if plain:
                line = self._plain_lines(text, start, end, line, scanned.has_escapes)
                continue
            statements = self._tree(start, end, line, scanned.has_escapes)
            if start == 0 and statements and _is_string(statements[0]):  # a docstring
                statements = statements[1:]
            self._block(statements)
            line += text.count("\n", start, end)
        if self.inputs_open:
            self.close_inputs()
        return Graph(
            self.inputs, self.calls, self.outputs, self.bindings, self.current, self.source.text,
            self.source.file, self.declared,
        )  # fmt: skip

    def _plain_lines(self, text: str, start: int, end: int, line: int, has_escapes: bool) -> int:
        for match in EACH_LINE.finditer(text, start, end):
            if not read_plain(self, match, line):
                self._block(self._tree(match.start(), match.end(), line, has_escapes))
            line += 1
        return line

    def _tree(self, start: int, end: int, line: int, has_escapes: bool) -> list[ast.stmt]:
        try:
            return self.source.statements(has_escapes=has_escapes, start=start, end=end, line=line)
        except SyntaxError as error:
            place = self.source.of_syntax_error(error)
            scan(self.source, self.limits, thorough=True)  # names the keyword, if one is the cause
            message = f"this cannot be read: {error.msg}"
            raise IsomorphError("E_SYNTAX", message, place, [CALL_FORM]) from None
        except (ValueError, RecursionError, MemoryError) as error:  # beyond what the scanner foresees
            place = Location(self.source.file, line, 1, self.source.line(line))
            raise IsomorphError("E_SYNTAX", f"this cannot be read: {error}", place) from None

    # -- statements ----------------------------------------------------------------------------

    def _block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            kind = statement.__class__
            value: Any = getattr(statement, "value", None)
            if value.__class__ is ast.Call:
                name = value.func.id if value.func.__class__ is ast.Name else ""
                if name == "input" or name == "output":
                    self._contract(statement, value, name)
                    continue
            elif kind is ast.Expr:
                self._not_a_call(value)
            if self.inputs_open:
                self.close_inputs()
            if self.after_output:
                self._fail(statement, "output(...) is the last statement", "move it to the end")
            if kind is ast.Expr:
                self._call(value)
            elif kind is ast.Assign:
                self._assign(statement, value)
            elif kind is ast.For:
                self._loop(statement)
            else:
                self._unexpected(statement)

    def _not_a_call(self, value: Any) -> NoReturn:
        if value.__class__ is ast.Name:
            self._fail(value, f"a tensor's name alone does nothing: {shorten(value.id)}", CALL_FORM)
        if value.__class__ is ast.Constant and isinstance(value.value, str):
            self._fail(
                value, "a string stands alone only as the first statement",
                "write comments after #; tensors and arguments go into calls",
            )  # fmt: skip
        if value.__class__ in (ast.Constant, ast.Tuple, ast.List, ast.Dict):
            self._fail(value, "a value alone does nothing", CALL_FORM)
        self._unexpected(value)

    def _assign(self, statement: Any, value: Any) -> None:
        target = statement.targets[0]
        kind = value.__class__
        if target.__class__ is ast.Name:
            if kind is ast.Call:
                index = self._call(value)
                self.calls[index].targets = 1
                self._bind(target, Reference(index, None))
            elif kind is ast.Name:
                self._bind(target, self._tensor(value))
            else:
                self._not_a_tensor(value)
            return
        if target.__class__ is not ast.Tuple or any(t.__class__ is not ast.Name for t in target.elts):
            self._fail(target, "results are taken by names", "write h = linear(64), or a, b = split(64)")
        names = [element.id for element in target.elts]
        if len(names) < 2 or len(set(names)) < len(names):
            self._fail(
                target, "several results are taken by two or more different names", "write a, b = split(64)"
            )
        if kind is not ast.Call:
            self._not_a_tensor(value)
        index = self._call(value)
        self.calls[index].targets = len(names)
        self.current = None
        for output, element in enumerate(target.elts):
            self._bind(element, Reference(index, output))

    def _not_a_tensor(self, value: Any) -> NoReturn:
        if value.__class__ in (ast.Constant, ast.UnaryOp, ast.Tuple, ast.List, ast.Dict, ast.Name):
            self._fail(
                value, "a name takes the result of a call",
                "write h = linear(64), or a, b = split(64); literals stand in calls",
            )  # fmt: skip
        self._unexpected(value)

    def _bind(self, target: Any, reference: Reference) -> None:
        name = target.id
        if name not in self.bindings:
            self._checked(target, check_tensor_name, name, self.is_operator)
        self.bindings[name] = reference

    # -- loops ---------------------------------------------------------------------------------

    def _loop(self, loop: Any) -> None:
        if not self.indices:
            self._measure(loop, 1)
        turns = self._turns(loop)
        for index in range(turns):
            self.indices.append(index)
            self._block(loop.body)
            self.indices.pop()

    def _turns(self, loop: Any) -> int:
        if loop.target.__class__ is not ast.Name or loop.target.id != "_":
            self._fail(
                loop.target, "the loop variable is `_`: a body does not depend on the turn", LOOP_FORM,
                "in Python code, iso.resolve_function records a function in which loops are free",
            )  # fmt: skip
        if loop.orelse:
            self._unexpected(loop.orelse[0])
        header = loop.iter
        if header.__class__ is not ast.Call or getattr(header.func, "id", "") != "range":
            self._fail(header, "a loop repeats its body a stated number of times", LOOP_FORM)
        count: Any = header.args[0] if len(header.args) == 1 and not header.keywords else None
        if count.__class__ is not ast.Constant or type(count.value) is not int or count.value < 1:
            self._fail(header, "range takes one positive number, written out", LOOP_FORM)
        return count.value

    def _measure(self, loop: Any, depth: int) -> tuple[int, int]:
        """Operator calls, and names and literals, of a loop once unrolled; E_RESOURCE when too many."""
        most = self.limits["max_nesting"]
        if depth > most:
            self._fail(
                loop,
                f"loops nest more than {self.limits['max_nesting']} deep (max_nesting)",
                code="E_RESOURCE",
            )
        turns = self._turns(loop)
        calls, terms = 0, 1
        for statement in loop.body:
            if statement.__class__ is ast.For:
                more, inside = self._measure(statement, depth + 1)
            else:
                more, inside = _size(getattr(statement, "value", None))
            calls, terms = calls + more, terms + inside + 1
        room = self.max_nodes - len(self.calls)
        most_terms = max(1000, TERMS_PER_NODE * self.max_nodes)
        if calls * turns > room:
            self._fail(
                loop.iter,
                f"the loop unrolls to {calls * turns:,} operator calls, above the limit of "
                f"{self.max_nodes:,} (max_nodes)",
                "repeat it less often, or raise the limit",
                code="E_RESOURCE",
            )
        if terms * turns > most_terms:
            self._fail(
                loop.iter,
                f"the loop unrolls to {terms * turns:,} names and literals, above the limit of "
                f"{most_terms:,} ({TERMS_PER_NODE} for each node of max_nodes)",
                "repeat it less often, or raise max_nodes",
                code="E_RESOURCE",
            )
        return calls * turns, terms * turns

    # -- contracts -----------------------------------------------------------------------------

    def _contract(self, statement: Any, call: Any, which: str) -> None:
        if self.indices:
            self._fail(call, f"{which}(...) stands outside loops", "move it to the top level")
        if self.after_output:
            what = (
                "there is one output statement" if which == "output" else "output(...) is the last statement"
            )
            self._fail(call, what, 'several outputs: output(logits=("B", 10), features=("B", 64))')
        if which == "output":
            if statement.__class__ is not ast.Expr:
                self._fail(statement, "output(...) has no result", 'write output("B", 10)')
            if self.inputs_open:
                self.close_inputs()
            self._output(call)
        else:
            if not self.inputs_open:
                self._fail(call, "input(...) statements come before all others", "move it to the top")
            self._input(statement, call)

    def _input(self, statement: Any, call: Any) -> None:
        target = None
        if statement.__class__ is ast.Assign:
            target = statement.targets[0]
            if target.__class__ is not ast.Name:
                self._fail(
                    target, "one input(...) declares one tensor", 'write ids = input("B", "T", dtype="int64")'
                )
        elif statement.__class__ is not ast.Expr:
            self._unexpected(statement)
        name = "x" if target is None else target.id
        self._checked(target or call, check_tensor_name, name, self.is_operator)
        if any(contract.name == name for contract in self.inputs):
            self._fail(
                target or call,
                f"two inputs are named {name!r}",
                'name one: ids = input("B", "T")',
                code="E_NAME",
            )
        dtype = self._input_keyword(call, "dtype", str, 'is a string such as "int64"')
        optional = self._input_keyword(call, "optional", bool, "is True or False")
        sizes, place = self._sizes(call.args), self.source.of(call)
        self.inputs.append(Contract(name, sizes, dtype, place, optional=bool(optional)))

    def _input_keyword(self, call: Any, name: str, type: type, expected: str) -> Any:
        """What an ``input(...)`` says under a keyword, or None."""
        given = [keyword for keyword in call.keywords if keyword.arg == name]
        strange = [keyword for keyword in call.keywords if keyword.arg not in ("dtype", "optional")]
        for keyword in (*strange, *given[1:]):
            self._fail(
                keyword, f"input takes sizes, one dtype and optional=True, got {shorten(keyword.arg)}",
                'write input("B", "T", dtype="int64")', code="E_ARGUMENT",
            )  # fmt: skip
        if not given:
            return None
        value = self._literal(given[0].value)
        if not isinstance(value, type):
            self._fail(given[0].value, f"{name} {expected}, got {shorten(value)}", code="E_ARGUMENT")
        return value

    def _output(self, call: Any) -> None:
        self.after_output = True
        if bool(call.args) == bool(call.keywords):
            self._fail(
                call, "output(...) takes the sizes of one output, or several outputs by name",
                'write output("B", 10), or output(logits=("B", 10), features=("B", 64))',
            )  # fmt: skip
        if call.args:
            self.outputs.append(Contract("", self._sizes(call.args), None, self.source.of(call)))
        for keyword in call.keywords:
            if keyword.arg not in self.bindings and not self._bind_port(keyword.arg):
                raise self._at(keyword, unknown_tensor(str(keyword.arg), self.bindings, self.is_operator))
            if keyword.value.__class__ not in (ast.Tuple, ast.List):
                self._fail(
                    keyword.value, f"the shape of {keyword.arg} is a tuple",
                    f'write output({keyword.arg}=("B", 10))',
                    code="E_ARGUMENT",
                )  # fmt: skip
            self.outputs.append(
                Contract(keyword.arg or "", self._sizes(keyword.value.elts), None, self.source.of(keyword))
            )
        self._refuse_repeated(call.keywords)

    def _bind_port(self, name: str) -> bool:
        """Let a name be that of an output of the last call, where it has several outputs and one of that name."""
        last = len(self.calls) - 1
        if self.outputs_of is None or last < 0 or self.current not in (None, Reference(last, None)):
            return False
        ports = self.outputs_of(self.calls[last].operator)
        if len(ports) < 2 or name not in ports:
            return False
        self.bindings[name] = Reference(last, ports.index(name))
        return True

    def _sizes(self, nodes: list[Any]) -> tuple[Any, ...]:
        for node in nodes:
            if node.__class__ is ast.Name:
                self._fail(node, "a size is a number, or a symbol in quotes", f'write "{node.id[:40]}"')
        return tuple([self._literal(node) for node in nodes])


def _is_string(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _size(node: Any) -> tuple[int, int]:
    """Operator calls, and names and literals, of an expression."""
    calls, terms = 0, 1
    if isinstance(node, ast.Call):
        calls = 1
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.Dict):
        parts = node.values
        terms += len(parts)
    else:
        parts = getattr(node, "elts", ())
    for part in parts:
        more, inside = _size(part)
        # what a dictionary calls is an initialiser
        calls, terms = calls + (0 if isinstance(node, ast.Dict) else more), terms + inside
    return calls, terms
