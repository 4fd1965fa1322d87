"""An operator's arguments, and the way in which a rule of an operator is broken. Standard library alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from isomorph.errors import did_you_mean, shorten

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "required"})()
INFERRED: Any = type("Inferred", (), {"__repr__": lambda self: "inferred"})()


class Conflict(Exception):
    """A rule of an operator was broken; whoever knows the line turns it into an IsomorphError.

    Args:
        message: what conflicts, with the values.
        argument: the argument to point at, if the fault lies in one.
        sizes: pattern variables (``"D"``) whose origin the error should tell.
        hints: how to mend it.
        code: the error's code.
    """

    def __init__(
        self,
        message: str,
        *,
        argument: str | None = None,
        sizes: tuple[str, ...] = (),
        hints: tuple[str, ...] = (),
        code: str = "E_CONSTRAINT",
    ) -> None:
        super().__init__(message)
        self.message, self.argument, self.sizes = message, argument, sizes
        self.hints, self.code = hints, code


@dataclass(slots=True, eq=False)
class Argument:
    """One argument of an operator; see :func:`argument`."""

    name: str = field(init=False, default="")  # the attribute's
    type: Any = field(init=False, default=None)  # the annotation's: int, float, bool or str
    default: Any = REQUIRED
    positional: bool = False
    variadic: bool = False
    minimum: float | None = None
    above: float | None = None
    below: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] | None = None
    size: str | None = None
    doc: str = ""

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is REQUIRED

    @property
    def inferable(self) -> bool:
        """Whether it is worked out from shapes where a call leaves it out."""
        return self.default is INFERRED

    def constraints(self) -> str:
        """The allowed values as the documentation shows them: ``>= 0; < 1``, ``one of ...``."""
        parts = []
        if self.choices:
            parts.append("one of " + ", ".join(f"`{choice}`" for choice in self.choices))
        for sign, bound in (
            (">=", self.minimum), (">", self.above), ("<", self.below), ("<=", self.maximum)
        ):  # fmt: skip
            if bound is not None:
                parts.append(f"{sign} {bound:g}")
        return "; ".join(parts)

    def check(self, value: Any) -> Any:
        """The value in the declared type, or a :class:`Conflict` with E_ARGUMENT."""
        if self.type is float and type(value) is int:
            try:
                value = float(value)
            except OverflowError:
                value = float("inf")
        if type(value) is not self.type:
            raise self.refuse(value, f"must be {_ARTICLES[self.type]}")
        if self.choices and value not in self.choices:
            mend = tuple(did_you_mean(value, self.choices)) if self.type is str else ()
            raise self.refuse(value, "must be one of " + ", ".join(map(str, self.choices)), mend)
        if self.type in (int, float) and not (
            (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (self.maximum is None or value <= self.maximum)
            and value - value == 0  # neither infinite nor NaN
        ):
            raise self.refuse(value, f"must be {self.constraints().replace('; ', ' and ') or 'finite'}")
        return value + 0.0 if self.type is float else value  # -0.0 means 0.0: equal values are one instance

    def refuse(self, value: Any, expected: str, hints: tuple[str, ...] = ()) -> Conflict:
        """The error about a value that is none of the allowed ones."""
        return Conflict(
            f"{self.name} {expected}, got {shorten(value)}",
            argument=self.name,
            hints=hints,
            code="E_ARGUMENT",
        )


_ARTICLES = {int: "an int", float: "a number", bool: "True or False", str: "a string"}


def argument(
    default: Any = REQUIRED,
    *,
    positional: bool = False,
    variadic: bool = False,
    minimum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
    choices: tuple[Any, ...] | None = None,
    size: str | None = None,
    doc: str = "",
) -> Any:
    """Declare an argument; the class annotation gives its type (int, float, bool or str).

    Args:
        default: its value when omitted; REQUIRED (none), or INFERRED (worked out by the resolver).
        positional: may be given by position, in order of declaration.
        variadic: takes every remaining position (``reshape(512, 4, 4)``); its value is a tuple.
        minimum, above, below, maximum: bounds on a number (``>=``, ``>``, ``<``, ``<=``).
        choices: the values allowed.
        size: the pattern variable whose size this argument states (``out_features`` states ``D_out``).
        doc: one sentence for the documentation page.
    """
    return Argument(default, positional, variadic, minimum, above, below, maximum, choices, size, doc)
