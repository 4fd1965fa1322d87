"""What the text of one framework is made of: an expression for each primitive, its layers, its way of holding
parameters. A subclass says all of it, and nothing else of the writer knows a framework.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from typing import Any, ClassVar, NamedTuple, Protocol

from isomorph.initializers import Initializer
from isomorph.plan import Plan
from isomorph.source_code.layout import ATOM, PRODUCT, Expression, call, infix, method
from isomorph.source_code.record import Step


class Native(NamedTuple):
    """A layer of the framework that does what an operator does.

    Attributes:
        head: its class, ``nn.Linear``.
        arguments: (keyword or ``""``, value); numbers may turn out to be arguments of the class around it.
        names: the layer's name of each parameter by the operator's.
        transposed: parameters whose two axes stand in the other order in the layer.
    """

    head: str
    arguments: tuple[tuple[str, Any], ...]
    names: Mapping[str, str] = {}
    transposed: frozenset[str] = frozenset()


class Emit(Protocol):
    """A step while its expression is written."""

    step: Step
    inputs: Sequence[Expression | None]
    dtype: str

    def constant(self, name: str) -> str:
        """A number among the step's attributes, or the name of what holds it."""
        ...

    def sizes(self, name: str) -> list[str]:
        """The sizes of a shape among the attributes."""
        ...

    def size(self, name: str) -> str:
        """One size, position or length among the attributes; ``""`` for None."""
        ...

    def require(self, name: str, text: str, /) -> str:
        """The file needs a function of that name and text; the name that it has there."""
        ...

    def child(self, name: str) -> str:
        """The expression of a child, ``self.dropout``."""
        ...


Text = Callable[[Any], Expression]
"""From an :class:`Emit` to the expression of its step."""


_ALWAYS = frozenset({"_", "self", "super", "range", "getattr", "setattr"})
"""Names that every text may use."""
_TABLE = re.compile(r"TIED|FREQUENCIES(_\d+)?")


class Framework:
    """One framework's words."""

    name: ClassVar[str]
    tensor: ClassVar[str]
    module: ClassVar[str]
    call_method: ClassVar[str]
    inner_init: ClassVar[str]
    """What a constructor does first, or nothing."""
    init_keyword: ClassVar[str] = ""
    """A keyword that every constructor takes and passes on, ``rngs=rngs``."""
    init_parameter: ClassVar[str] = ""
    title: ClassVar[str]
    shares_parameters: ClassVar[bool]
    """Whether a parameter may be held by two modules."""
    draws_anew: ClassVar[bool] = False
    """Whether the constructor draws what the definition's ``init`` says; see :meth:`drawn`."""
    primitives: ClassVar[Mapping[str, Text]]
    reserved: ClassVar[frozenset[str]]
    """Names of what a file imports or always holds."""
    helpers: ClassVar[frozenset[str]]
    """Names of functions that it may have."""
    attributes: ClassVar[frozenset[str]]
    """Attributes of every module that an operator's argument might be called after."""

    def claims(self, name: str) -> bool:
        """Whether a file uses a name for something of its own: no tensor, length or argument can have it there.

        A function of which there are several variants has a number behind its name.
        """
        return (
            iskeyword(name)
            or name in _ALWAYS
            or name in self.reserved
            or name.rstrip("0123456789") in self.helpers
            or _TABLE.fullmatch(name) is not None
        )

    def imports(self, body: str) -> list[str]:
        """The import lines that a file with this body needs."""
        raise NotImplementedError

    def native(self, instance: Any, dtype: str) -> Native | None:
        """The framework's own layer for an operator, or None."""
        raise NotImplementedError

    def parameter(self, shape: Sequence[str], initial: Initializer, dtype: str) -> Expression:
        """What a constructor assigns for a parameter."""
        raise NotImplementedError

    def read(self, path: str) -> str:
        """The array of the parameter at an attribute path."""
        return path

    def dtype_lines(self, plan: Plan) -> list[str]:
        """What the network's constructor does last for the plan's dtype."""
        return []

    def tie_loop(self) -> list[str]:
        """Statements of the network's constructor that share parameters as the table ``TIED`` says."""
        raise NotImplementedError

    def load_lines(
        self, plan: Plan, ties: Mapping[str, str], natives: Sequence[Native], has_modules: bool
    ) -> list[str]:
        """The function that reads the weights' file."""
        raise NotImplementedError

    def notes(self, plan: Plan, primitives: set[str]) -> list[str]:
        """Paragraphs for the file's docstring: what a user of this framework needs to know."""
        return []

    def usage(self, plan: Plan, arguments: Sequence[str]) -> list[str]:
        """Lines that show how to call the network."""
        raise NotImplementedError

    def drawn(self, path: str, initial: Initializer) -> Expression:
        """A statement that draws a parameter anew from the definition's distribution; see :attr:`draws_anew`."""
        raise NotImplementedError

    def frozen(self, expression: str, is_parameter: bool) -> Expression:
        """A statement that keeps a module or a parameter from being trained."""
        raise NotImplementedError

    def frozen_new(self, expression: Expression) -> Expression:
        """A module that is made and kept from being trained at once."""
        raise NotImplementedError

    def frozen_helpers(self) -> Mapping[str, str]:
        """What the file needs for frozen parameters, by name."""
        return {}


# -- what frameworks share -------------------------------------------------------------------------


def operand(e: Any, index: int) -> Expression:
    """An input that must be there."""
    value = e.inputs[index]
    assert value is not None
    return value


def arithmetic(sign: str) -> Text:
    """``left sign right``, one of which may be a number."""

    def text(e: Any) -> Expression:
        sides = list(e.inputs)
        if "left" in e.step.attributes:
            sides.insert(0, number(e.constant("left")))
        if "right" in e.step.attributes:
            sides.append(number(e.constant("right")))
        return infix(sides[0], sign, sides[1])

    return text


def number(text: str) -> Expression:
    """A number as an operand."""
    return Expression(text, PRODUCT if text.startswith("-") else ATOM)


def function(name: str) -> Text:
    """``name(x)``."""
    return lambda e: call(name, operand(e, 0).text)


def sliced(e: Any) -> Expression:
    """``x[:, start:stop]``."""
    x, axis = operand(e, 0), e.step.attributes["axis"]
    start, stop = (e.size(name) if e.step.attributes[name] != 0 else "" for name in ("start", "stop"))
    return Expression(f"{x.within(ATOM)}[{leading(e, axis)}{slice_text(start, stop)}]")


def slice_text(start: str, stop: str) -> str:
    """``start:stop`` with spaces around the colon where one side is more than a name or a number."""
    plain = all(part.lstrip("-").replace("_", "").isalnum() or not part for part in (start, stop))
    if plain:
        return f"{start}:{stop}"
    return f"{start}{' ' * bool(start)}:{' ' * bool(stop)}{stop}"


def leading(e: Any, axis: int) -> str:
    """Colons for the axes before one; an ellipsis before the last of three or more."""
    rank = len(e.step.inputs[0].shape)
    return "..., " if axis == rank - 1 and rank > 2 else ":, " * axis


def indexed(e: Any) -> Expression:
    """``x[:, 0]``."""
    attributes = e.step.attributes
    return Expression(f"{operand(e, 0).within(ATOM)}[{leading(e, attributes['axis'])}{attributes['index']}]")


def summed(name: str, library: str, cast: str) -> Text:
    """``x.name(axis)``; in half precision its sums are float32 and rounded once, at the end."""

    def text(e: Any) -> Expression:
        axis, x = str(e.step.attributes["axis"]), operand(e, 0)
        if e.dtype in ("float32", "float64"):
            return method(x, name, axis)
        return method(method(x, name, axis, f"dtype={library}.float32"), cast, f"{library}.{e.dtype}")

    return text


def swapped(axes: Sequence[int]) -> tuple[int, int] | None:
    """The two axes that a permutation swaps, when it does nothing else."""
    moved = [axis for axis, source in enumerate(axes) if axis != source]
    return (moved[0], moved[1]) if len(moved) == 2 else None


def trailing_parameters(instance: Any) -> tuple[Any, Any] | None:
    """The one step of an operator and its input, when that is all the operator does with its parameters."""
    if len(instance.steps) != 1 or len(instance.inputs) != 1 or instance.plain:
        return None
    (step,), (value,) = instance.steps, instance.inputs.values()
    given = [taken for taken in step.inputs if taken is not None]
    if given[:1] != [value] or step.outputs != instance.outputs:
        return None
    named = [taken.parameter for taken in given[1:]]
    if named != [name for name in ("weight", "bias") if name in instance.operator.own_parameters]:
        return None
    return (step, value) if len(named) == len(instance.operator.own_parameters) else None
