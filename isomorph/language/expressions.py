"""Reads the expressions of a definition's syntax tree: calls, tensors, literals, initialisers."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from isomorph import initializers
from isomorph.errors import IsomorphError, shorten
from isomorph.language.graph import NOTHING, Call, Reference
from isomorph.language.names import NOT_OPERATORS, check_node_name, unknown_tensor
from isomorph.language.options import NODE_KEYWORDS, check_node_keyword, check_number, is_number
from isomorph.language.reading import Reading
from isomorph.language.scanner import scan, too_many_nodes

CALL_FORM = "a statement is one operator call, such as linear(64), or h = linear(64)"
LOOP_FORM = "loops are written `for _ in range(4):`"


class ExpressionReader(Reading):
    """What an expression does to the graph that is read."""

    # -- errors --------------------------------------------------------------------------------

    def _fail(self, node: Any, message: str, *hints: str, code: str = "E_SYNTAX") -> NoReturn:
        raise IsomorphError(code, message, self.source.of(node), hints)

    def _at(self, node: Any, error: IsomorphError) -> IsomorphError:
        """The error with the place of a node."""
        return IsomorphError(error.code, error.message, self.source.of(node), error.hints)

    def _checked(self, node: Any, check: Callable[..., None], *arguments: Any) -> None:
        try:
            check(*arguments)
        except IsomorphError as error:
            raise self._at(node, error) from None

    def _unexpected(self, node: Any) -> NoReturn:
        """Refuse a form of Python's that the language lacks."""
        scan(self.source, self.limits, thorough=True)  # names the keyword, if one is the cause
        kind = type(node).__name__.lower()
        self._fail(node, f"this form ({kind}) is not part of the language", CALL_FORM)

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, node: Any) -> int:
        """Read one operator call and those inside it; return its index. The result becomes current."""
        function = node.func
        if function.__class__ is not ast.Name:
            self._unexpected(function)
        operator = function.id
        if operator in NOT_OPERATORS:
            self._not_an_operator(node, operator)
        inputs: list[Reference] = []
        arguments: list[Any] = []
        for argument in node.args:
            kind = argument.__class__
            if kind is ast.Constant:
                arguments.append(self._constant(argument))
            elif kind is ast.Name or kind is ast.Call:
                if arguments:
                    self._fail(argument, "tensors come first, before literals", f"write {operator}(x, 64)")
                inputs.append(self._tensor(argument))
            else:
                arguments.append(self._literal(argument))
        call = Call(operator, tuple(inputs), NOTHING, None, tuple(arguments), NOTHING)
        if node.keywords:
            self._keywords(call, node.keywords)
        index = len(self.calls)
        if index >= self.max_nodes:
            raise self._at(node, too_many_nodes(self.max_nodes))
        call.current = self.current
        call.locate = partial(self.locate, self.source.line_of(node), node.col_offset)
        self.calls.append(call)
        self.current = Reference(index, None)
        return index

    def _not_an_operator(self, node: Any, name: str) -> NoReturn:
        if name == "range":
            self._fail(node, "range(...) stands only in a loop", LOOP_FORM)
        if name in initializers.SCHEMES:
            self._fail(
                node, f"{name}(...) is an initialiser and stands only in an init dictionary",
                f'write init={{"weight": {name}(...)}}',
            )  # fmt: skip
        self._fail(
            node, f"{name}(...) is a statement of its own", f'write {name}("B", 8, 32) on its own line'
        )

    def _keywords(self, call: Call, nodes: list[ast.keyword]) -> None:
        keywords: dict[str, Any] = {}
        tensors: dict[str, Reference] = {}
        of_node = 0
        for node in nodes:
            key, value = node.arg, node.value
            kind = value.__class__
            if key is None:
                self._unexpected(node)
            if key in NODE_KEYWORDS:
                of_node += 1
                self._node_keyword(call, key, value)
            elif kind is ast.Constant:
                keywords[key] = self._constant(value)
            elif kind is ast.Name or kind is ast.Call:
                tensors[key] = self._tensor(value)
            else:
                keywords[key] = self._literal(value)
        call.keywords = keywords
        if tensors:
            call.keyword_inputs = tensors
        if len(keywords) + len(tensors) + of_node != len(nodes) or of_node > 1:
            self._refuse_repeated(nodes)

    def _refuse_repeated(self, nodes: list[ast.keyword]) -> None:
        seen: set[str | None] = set()
        for node in nodes:
            if node.arg in seen:
                self._fail(node, f"the argument {shorten(node.arg)} is given twice", "give it once")
            seen.add(node.arg)

    def _node_keyword(self, call: Call, key: str, node: Any) -> None:
        if key == "init" and node.__class__ is ast.Dict:
            value: Any = self._dictionary(node, self._initial)
        elif node.__class__ in (ast.Name, ast.Call):
            self._fail(node, f"{key} is {NODE_KEYWORDS[key]}", code="E_ARGUMENT")
        else:
            value = self._literal(node)
        if value is None:
            return
        try:
            check_node_keyword(key, value)
            if key == "name":
                if self.indices:
                    value += "_".join(map(str, self.indices))
                check_node_name(value, self.names)
                self.names.add(value)
        except IsomorphError as error:
            raise self._at(node, error) from None
        setattr(call, key, value)

    # -- tensors and literals ------------------------------------------------------------------

    def _tensor(self, node: Any) -> Reference:
        if node.__class__ is ast.Call:
            return Reference(self._call(node), None)
        reference = self.bindings.get(node.id)
        if reference is None:
            raise self._at(node, unknown_tensor(node.id, self.bindings, self.is_operator))
        return reference

    def _constant(self, node: Any) -> Any:
        value = node.value
        kind = value.__class__
        if kind is int or kind is float:
            if kind is int and -self.largest <= value <= self.largest:
                return value
            self._checked(node, check_number, value, self.largest)
        elif not (kind is str or kind is bool or value is None):
            self._unexpected(node)
        return value

    def _literal(self, node: Any) -> Any:
        kind = node.__class__
        if kind is ast.Constant:
            return self._constant(node)
        if kind is ast.UnaryOp and node.operand.__class__ is ast.Constant and is_number(node.operand.value):
            value = self._constant(node.operand)
            if node.op.__class__ is ast.USub:
                return -value
            if node.op.__class__ is ast.UAdd:
                return value
        if kind is ast.Tuple:
            return tuple([self._literal(element) for element in node.elts])
        if kind is ast.List:
            return [self._literal(element) for element in node.elts]
        if kind is ast.Dict:
            return self._dictionary(node, self._literal)
        if kind is ast.Name or kind is ast.Call:
            self._fail(
                node, "a tensor is an argument by itself, not a part of a literal",
                'a literal is made of numbers, strings such as "B", True, False and None',
            )  # fmt: skip
        return self._unexpected(node)

    def _dictionary(self, node: Any, read: Callable[[Any], Any]) -> dict[Any, Any]:
        dictionary: dict[Any, Any] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            if key_node.__class__ is not ast.Constant:
                self._fail(key_node or value_node, "a dictionary's keys are strings or numbers")
            key = self._constant(key_node)
            if key in dictionary:
                self._fail(key_node, f"the key {shorten(key)} stands twice in this dictionary", "keep one")
            dictionary[key] = read(value_node)
        return dictionary

    def _initial(self, node: Any) -> Any:
        """A value of an init dictionary: a literal, or a call of an initialiser."""
        if node.__class__ is not ast.Call:
            return self._literal(node)
        name = getattr(node.func, "id", "")
        arguments = tuple([self._literal(argument) for argument in node.args])
        keywords = {keyword.arg: self._literal(keyword.value) for keyword in node.keywords}
        if len(keywords) != len(node.keywords):
            self._refuse_repeated(node.keywords)
        try:
            return initializers.make(name, arguments, keywords)
        except IsomorphError as error:
            raise self._at(node, error) from None
