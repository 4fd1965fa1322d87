"""Records the graph of an ordinary Python function that calls ``iso.ops``.

While the function runs, a recorder is active in its context (``contextvars``: other threads and tasks are
not affected). Tensors are opaque handles; Python's own loops, conditions and helpers are free.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from types import CodeType, FrameType
from typing import Any, NoReturn

from isomorph.errors import IsomorphError, Location, shorten
from isomorph.initializers import Initializer
from isomorph.language.graph import NOTHING, Call, Graph, Reference
from isomorph.language.names import IsOperator, check_node_name, check_tensor_name
from isomorph.language.options import NODE_KEYWORDS, check_node_keyword, check_number
from isomorph.language.scanner import too_many_nodes
from isomorph.limits import limits_with

_recorder: ContextVar[_Recorder | None] = ContextVar("isomorph_recorder", default=None)
_DEEPEST_LITERAL = 50


def capture(
    function: Callable[..., Any],
    *,
    input_names: tuple[str, ...] = ("x",),
    is_operator: IsOperator | None = None,
    limits: Mapping[str, int] | None = None,
) -> Graph:
    """The graph of the calls that a function makes.

    The function gets one tensor per input, by keyword when its parameters have the inputs' names, otherwise
    in order; a function without parameters starts from the current tensor. It returns nothing (the current
    tensor is the output), a tensor, or a dictionary of tensors (named outputs).

    Raises:
        IsomorphError: E_ARGUMENT for what cannot be called; E_BINDING when the function cannot take the inputs, returns something else, or is
            called while another is being recorded; and whatever its calls raise, with the place in its file.
    """
    if not callable(function):
        raise IsomorphError("E_ARGUMENT", f"the network is a function, got {shorten(function)}")
    if _recorder.get() is not None:
        raise IsomorphError(
            "E_BINDING",
            "a function is being recorded already; recordings do not nest",
            hints=["call the inner function directly: it adds its calls to this network"],
        )
    for name in input_names:
        check_tensor_name(name, is_operator)
    recorder = _Recorder(limits_with(None) if limits is None else limits)
    tensors = [SymbolicTensor(recorder, Reference(-1, i)) for i in range(len(input_names))]
    arguments, keywords = _spread(function, input_names, tensors)
    token = _recorder.set(recorder)
    try:
        result = function(*arguments, **keywords)
    finally:
        _recorder.reset(token)
    bindings = {name: Reference(-1, i) for i, name in enumerate(input_names)}
    graph = Graph(calls=recorder.calls, bindings=bindings, current=recorder.current, input_names=input_names)
    _publish(graph, recorder, result, is_operator)
    code = getattr(function, "__code__", None)
    graph.file = code.co_filename if isinstance(code, CodeType) else "<function>"
    return graph


def _spread(
    function: Callable[..., Any], names: tuple[str, ...], tensors: list[SymbolicTensor]
) -> tuple[list[SymbolicTensor], dict[str, SymbolicTensor]]:
    """How the function takes its inputs."""
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a callable that does not tell
        return tensors, {}
    parameters = signature.parameters
    if not parameters:
        return [], {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if all(name in parameters and parameters[name].kind in by_name for name in names):
        arguments, keywords = [], dict(zip(names, tensors, strict=True))
    else:
        arguments, keywords = tensors, {}
    try:
        signature.bind(*arguments, **keywords)
    except TypeError:
        raise IsomorphError(
            "E_BINDING",
            f"the function takes {signature}, the network has the inputs {', '.join(names)}",
            hints=["give it one parameter for each input"],
        ) from None
    return arguments, keywords


def _publish(graph: Graph, recorder: _Recorder, result: Any, is_operator: IsOperator | None) -> None:
    if result is None:
        return
    if isinstance(result, SymbolicTensor):
        graph.current = recorder.reference(result, "the result")
        return
    if not isinstance(result, Mapping) or not result:
        raise IsomorphError(
            "E_BINDING",
            f"the function returns a tensor, a dictionary of tensors or nothing, got {shorten(result)}",
            hints=['several outputs: return {"logits": logits, "features": features}'],
        )
    for name, tensor in result.items():
        if not isinstance(name, str):
            raise IsomorphError("E_BINDING", f"an output's name is a string, got {shorten(name)}")
        if not isinstance(tensor, SymbolicTensor):
            raise IsomorphError("E_BINDING", f"the output {name} is a tensor, got {shorten(tensor)}")
        check_tensor_name(name, is_operator)
        graph.bindings[name] = recorder.reference(tensor, f"the output {name}")
    graph.returned = tuple(result)


class SymbolicTensor:
    """A tensor of the network that is being recorded; only ``iso.ops`` can do something with it."""

    __slots__ = ("_recorder", "_reference")

    def __init__(self, recorder: _Recorder, reference: Reference) -> None:
        self._recorder, self._reference = recorder, reference

    def __repr__(self) -> str:
        return "<a tensor of the network>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _misused(f"a tensor has no attribute {name!r} while the network is being recorded",
                       f"call an operator: iso.ops.{name}(...)" if name.isidentifier() else "")  # fmt: skip

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SymbolicTensor):
            return self is other
        raise _misused("a tensor cannot be compared: it has no value yet", _CONDITION)

    __hash__ = object.__hash__


_CONDITION = "decide by ordinary Python values; the network itself has no conditions"
_ADD, _MUL, _SCALE = "use iso.ops.add(a, b)", "use iso.ops.mul(a, b)", "use iso.ops.scale(x, 0.5)"
_SPLIT = "use iso.ops.split(size, dim=1), which gives first and rest"
_FORBIDDEN: dict[str, tuple[str, str]] = {
    "add": ("`+`", _ADD), "radd": ("`+`", _ADD), "iadd": ("`+=`", _ADD),
    "sub": ("`-`", f"{_ADD} with iso.ops.scale(b, -1.0)"), "rsub": ("`-`", _ADD),
    "mul": ("`*`", f"{_MUL}, or iso.ops.scale(x, 0.5) for a number"), "rmul": ("`*`", _SCALE),
    "truediv": ("`/`", _SCALE), "rtruediv": ("`/`", _SCALE), "floordiv": ("`//`", _SCALE),
    "mod": ("`%`", _SCALE), "pow": ("`**`", _MUL), "neg": ("`-`", "use iso.ops.scale(x, -1.0)"),
    "matmul": ("`@`", "use iso.ops.linear(width)"), "rmatmul": ("`@`", "use iso.ops.linear(width)"),
    "abs": ("abs()", "call an operator"),
    "lt": ("`<`", _CONDITION), "le": ("`<=`", _CONDITION),
    "gt": ("`>`", _CONDITION), "ge": ("`>=`", _CONDITION),
    "bool": ("a condition", _CONDITION),
    "len": ("len()", "sizes are known only after the plan is resolved"),
    "iter": ("unpacking or a loop", _SPLIT), "getitem": ("a subscript", _SPLIT),
    "float": ("float()", _CONDITION), "int": ("int()", _CONDITION), "index": ("a size", _CONDITION),
    "call": ("a call", "call an operator with it: iso.ops.linear(x, 64)"),
}  # fmt: skip


def _forbid(what: str, hint: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise _misused(f"a tensor cannot be used in {what}: it has no value yet", hint)

    return refuse


for _method, (_what, _hint) in _FORBIDDEN.items():
    setattr(SymbolicTensor, f"__{_method}__", _forbid(_what, _hint))


def _misused(message: str, hint: str) -> IsomorphError:
    return located(IsomorphError("E_SYNTAX", message, hints=[hint] if hint else []))


class _Recorder:
    """The calls recorded so far and the current tensor."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.calls: list[Call] = []
        self.current: Reference | None = Reference(-1, 0)
        self.names: set[str] = set()
        self.max_nodes, self.largest = limits["max_nodes"], limits["max_dimension"]

    def reference(self, tensor: SymbolicTensor, what: str) -> Reference:
        if tensor._recorder is not self:
            raise IsomorphError("E_BINDING", f"{what} is a tensor of another network")
        return tensor._reference

    def record(
        self, operator: str, values: tuple[Any, ...], keywords: dict[str, Any], outputs: int, locate: Any
    ) -> Any:
        if len(self.calls) >= self.max_nodes:
            raise too_many_nodes(self.max_nodes)
        call = Call(operator, current=self.current, targets=outputs if outputs > 1 else 0, locate=locate)
        count = next((i for i, v in enumerate(values) if not isinstance(v, SymbolicTensor)), len(values))
        call.inputs = tuple(self.reference(value, f"argument {i}") for i, value in enumerate(values[:count]))
        if any(isinstance(value, SymbolicTensor) for value in values[count:]):
            raise IsomorphError(
                "E_SYNTAX", "tensors come first, before literals", hints=[f"write iso.ops.{operator}(x, 64)"]
            )
        call.arguments = tuple(self._literal(value) for value in values[count:])
        self._keywords(call, keywords)
        index = len(self.calls)
        self.calls.append(call)
        if outputs > 1:
            self.current = None
            return tuple(SymbolicTensor(self, Reference(index, k)) for k in range(outputs))
        self.current = Reference(index, None)
        return SymbolicTensor(self, self.current)

    def _keywords(self, call: Call, given: dict[str, Any]) -> None:
        literals: dict[str, Any] = {}
        tensors: dict[str, Reference] = {}
        for key, value in given.items():
            if isinstance(value, SymbolicTensor):
                tensors[key] = self.reference(value, key)
            elif key not in NODE_KEYWORDS:
                literals[key] = self._literal(value)
            elif value is not None:
                plain = self._literal(value)
                check_node_keyword(key, plain)
                if key == "name":
                    check_node_name(plain, self.names)
                    self.names.add(plain)
                setattr(call, key, plain)
        misplaced = next((key for key in tensors if key in NODE_KEYWORDS), None)
        if misplaced:
            raise IsomorphError("E_ARGUMENT", f"{misplaced} is {NODE_KEYWORDS[misplaced]}, got a tensor")
        call.keywords, call.keyword_inputs = literals or NOTHING, tensors or NOTHING

    def _literal(self, value: Any, depth: int = 0) -> Any:
        """A value as a definition could write it; E_ARGUMENT for any other."""
        kind = type(value)
        if value is None or kind is bool or kind is str or isinstance(value, Initializer):
            return value
        if kind is int or kind is float:
            check_number(value, self.largest)
            return value
        if kind in (tuple, list) and depth < _DEEPEST_LITERAL:
            return kind(self._literal(item, depth + 1) for item in value)
        if kind is dict and depth < _DEEPEST_LITERAL:
            keys = [self._literal(key, _DEEPEST_LITERAL) for key in value]
            return dict(zip(keys, (self._literal(item, depth + 1) for item in value.values()), strict=True))
        if isinstance(value, SymbolicTensor):
            raise IsomorphError("E_SYNTAX", "a tensor is an argument by itself, not a part of a literal")
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a scalar of numpy
            value = value.item()
        for base in (bool, int, float, str):
            if isinstance(value, base):
                return self._literal(base(value))
        raise IsomorphError(
            "E_ARGUMENT",
            f"an argument is a number, a string, True, False, None, or a tuple, list or dictionary of them; "
            f"got {shorten(value)}",
        )


def record(operator: str, values: tuple[Any, ...], keywords: dict[str, Any], outputs: int) -> Any:
    """Add a call to the network that is being recorded.

    Args:
        operator: its name.
        values: tensors, then literals.
        keywords: tensors and literals by name, with name, init, trainable and tie.
        outputs: how many outputs the operator has.

    Returns:
        The result, or a tuple of results; they become the current tensor as in a text.

    Raises:
        IsomorphError: E_BINDING outside a recorded function; otherwise as for a text, with the place in the
            caller's file.
    """
    recorder, locate = _recorder.get(), _place_outside()
    try:
        if recorder is None:
            raise IsomorphError(
                "E_BINDING",
                f"iso.ops.{operator} was called outside a network: it records, and computes nothing",
                hints=["pass the function that calls it to iso.resolve_function"],
            )
        return recorder.record(operator, values, keywords, outputs, locate)
    except IsomorphError as error:
        raise located(error) from None


# -- places ------------------------------------------------------------------------------------


def located(error: IsomorphError) -> IsomorphError:
    """The error with the place of the caller outside this package."""
    locate = _place_outside()
    if error.location is not None or locate is None:
        return error
    return IsomorphError(error.code, error.message, locate(), error.hints)


def _place_outside() -> Callable[..., Location] | None:
    """A function that tells where the caller stands, outside this package's recording."""
    import sys

    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in (__name__, "isomorph.ops"):
        frame = frame.f_back
    if frame is None:
        return None
    return partial(_place, frame.f_code, frame.f_lasti, frame.f_lineno)


def _place(code: CodeType, instruction: int, line: int, key: Any = None) -> Location:
    text = linecache.getline(code.co_filename, line).rstrip("\n")
    column = 1
    for number, position in enumerate(code.co_positions()):
        if number == instruction // 2:
            if position[0] == line and position[2] is not None:
                column = len(text.encode()[: position[2]].decode(errors="replace")) + 1
            break
    return Location(code.co_filename, line, column, text)
