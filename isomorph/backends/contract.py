"""Checks of what a network is called with, and the run-time errors that every backend words alike.

Knows no framework: a tensor is anything with ``.shape`` and ``.dtype``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, NoReturn

from isomorph.dimensions import Affine, show_shape, symbols_of
from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.plan import ABSENT, Plan

DTYPE_KINDS: dict[str, str] = {
    **dict.fromkeys(("float64", "float32", "float16", "bfloat16"), "float"),
    **dict.fromkeys(("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"), "int"),
    "bool": "bool",
}
"""Kind of a dtype by its name. A contract asks for a kind: a ``float32`` input takes any floating dtype."""

OTHER_NAMES = {
    "ids": ("input_ids", "decoder_input_ids"),
    "mask": ("attention_mask",),
    "segments": ("token_type_ids",),
    "image": ("pixel_values",),
    "features": ("input_features",),
    "x": ("input_ids", "pixel_values", "input_features"),
}
"""What ``transformers`` calls an input of that name; such a keyword is taken where the network has no such input."""

Full = Callable[[tuple[int, ...], Any, str, Any], Any]
"""``full(shape, value, dtype, like)``: a backend's tensor of one value, where the tensor ``like`` is."""

_KIND_WORDS = {"float": "a floating-point dtype", "int": "an integer dtype", "bool": "dtype bool"}


class _Rule(NamedTuple):
    """What one input must be, in the order in which it is looked at."""

    input: int
    rank: int
    kind: str
    fixed: tuple[tuple[int, int], ...]  # (axis, size)
    plain: tuple[tuple[int, str], ...]  # (axis, symbol)


class _Equation(NamedTuple):
    """An axis ``constant + sum(coefficient * symbol)`` in which at most one symbol is still to be found."""

    input: int
    axis: int
    constant: int
    known: tuple[tuple[str, int], ...]
    unknown: str | None
    coefficient: int


class InputContracts:
    """The input contracts of a plan, prepared so that a call costs about a microsecond.

    Args:
        plan: the network.
        kinds: kind (``"float"``, ``"int"``, ``"bool"``) by dtype, keyed by the objects that a backend's
            tensors have as ``.dtype``. Names by default.
        full: makes what an optional input is where it is left out; needed where the plan has one.

    A symbol takes its value from the first axis that is that symbol alone; one that occurs only inside
    arithmetic (``2*T+1``) is solved for. An axis that leaves two symbols open is not checked.
    """

    def __init__(self, plan: Plan, kinds: Mapping[Any, str] | None = None, full: Full | None = None) -> None:
        self.names = tuple(name for name, _ in plan.inputs)
        self._full = full
        self.values = tuple(plan.values[value] for _, value in plan.inputs)
        self._kinds: Mapping[Any, str] = DTYPE_KINDS if kinds is None else kinds
        self._rules = tuple(self._rule(index) for index in range(len(self.names)))
        self._origins: dict[str, tuple[int, int]] = {}
        for rule in self._rules:
            for axis, symbol in rule.plain:
                self._origins.setdefault(symbol, (rule.input, axis))
        solved_from = len(self._origins)
        self._equations = self._order_equations()
        self._bounds = self._limits(plan, tuple(self._origins)[solved_from:])
        self._masks = tuple(rule.input for rule in self._rules if rule.kind == "bool")
        self._optional = frozenset(plan.optional)
        self._other_names = {
            other: name
            for name in self.names
            for other in OTHER_NAMES.get(name, ())
            if other not in self.names
        }

    # -- use -----------------------------------------------------------------------------------

    def bind(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """Inputs given by position or by name, in the plan's order; E_RUNTIME when they do not fit.

        An optional input that is left out, or None, is what :data:`~isomorph.plan.ABSENT` says. A mask of integers
        is True where it is not 0.
        """
        if not keywords and len(arguments) == len(self.names):
            tensors = list(arguments)
        else:
            tensors = self._ordered(arguments, keywords)
        if self._masks or self._optional:
            self._complete(tensors)
        return tensors

    def _complete(self, tensors: list[Any]) -> None:
        """Put in what optional inputs are that were left out, and make masks of integers boolean."""
        for index, name in enumerate(self.names):
            if tensors[index] is None and name in self._optional:
                tensors[index] = self._absent(index, tensors)
        for index in self._masks:
            mask = tensors[index]
            if self._kinds.get(getattr(mask, "dtype", None)) == "int":
                tensors[index] = mask != 0

    def _absent(self, index: int, tensors: Sequence[Any]) -> Any:
        """What an optional input is where it is left out, its sizes read off the others."""
        shape, like = [], None
        for size in self.values[index].shape:
            if type(size) is int:
                shape.append(size)
                continue
            source, axis = next(
                (other, self.values[other].shape.index(size))
                for other, name in enumerate(self.names)
                if name not in self._optional and size in self.values[other].shape
            )
            like = tensors[source]
            if len(getattr(like, "shape", ())) != len(self.values[source].shape):
                return None  # which the checks of that input tell
            shape.append(like.shape[axis])
        assert self._full is not None
        dtype = self.values[index].dtype
        return self._full(tuple(shape), ABSENT[dtype], dtype, like)

    def _ordered(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        names = self.names
        if len(arguments) > len(names):
            raise IsomorphError("E_RUNTIME", f"{self._takes()}, got {len(arguments)} by position")
        given = dict(zip(names, arguments, strict=False))
        for keyword, value in keywords.items():
            name = self._other_names.get(keyword, keyword)
            if name in given:
                raise IsomorphError("E_RUNTIME", f"input {name} is given twice, by position and by name")
            if name not in names:
                hints = did_you_mean(name, names)
                raise IsomorphError(
                    "E_RUNTIME", f"unexpected input {shorten(name)}; {self._takes()}", hints=hints
                )
            given[name] = value
        missing = [name for name in names if name not in given and name not in self._optional]
        if missing:
            word = "input" if len(missing) == 1 else "inputs"
            raise IsomorphError("E_RUNTIME", f"missing {word} {', '.join(missing)}; {self._takes()}")
        return [given.get(name) for name in names]

    def check(self, tensors: Sequence[Any]) -> dict[str, int]:
        """The value of every symbol, or E_RUNTIME naming the input, what was expected and what came.

        Args:
            tensors: one per input, in order, each with ``.shape`` and ``.dtype``.
        """
        sizes: dict[str, int] = {}
        kinds = self._kinds
        for index, rank, kind, fixed, plain in self._rules:
            tensor = tensors[index]
            shape = tensor.shape
            if len(shape) != rank:
                self._refuse(index, tensor, f"its rank must be {rank}")
            if kinds.get(tensor.dtype) != kind:
                self._refuse(index, tensor, f"it must have {_KIND_WORDS[kind]}")
            for axis, size in fixed:
                if shape[axis] != size:
                    self._refuse(index, tensor, f"axis {axis} must be {size}")
            for axis, symbol in plain:
                if sizes.setdefault(symbol, shape[axis]) != shape[axis]:
                    self._refuse(index, tensor, f"axis {axis} must be {self._size_text(symbol, sizes)}")
        if self._equations:
            self._solve(tensors, sizes)
        for symbol, low, high in self._bounds:
            if not _within(sizes[symbol], low, high):
                index = self._origins[symbol][0]
                limit = f"at least {low}" if sizes[symbol] < low else f"at most {high}"
                self._refuse(index, tensors[index], f"{symbol}={sizes[symbol]} must be {limit}")
        return sizes

    # -- preparation and messages --------------------------------------------------------------

    def _rule(self, index: int) -> _Rule:
        value = self.values[index]
        fixed = tuple((axis, d) for axis, d in enumerate(value.shape) if type(d) is int)
        plain = tuple(
            (axis, symbols_of(d)[0])
            for axis, d in enumerate(value.shape)
            if isinstance(d, Affine) and d.constant == 0 and len(d.terms) == 1 and d.terms[0][1] == 1
        )
        return _Rule(index, len(value.shape), DTYPE_KINDS[value.dtype], fixed, plain)

    def _limits(self, plan: Plan, solved: tuple[str, ...]) -> tuple[tuple[str, int, float], ...]:
        """(symbol, low, high) for bounded symbols, and for solved ones, which may come out negative."""
        limits = []
        for symbol in self._origins:
            if symbol in plan.bounds:
                low, high = plan.bounds[symbol]
                limits.append((symbol, low, inf if high is None else high))
            elif symbol in solved:
                limits.append((symbol, 0, inf))
        return tuple(limits)

    def _order_equations(self) -> tuple[_Equation, ...]:
        """Axes of arithmetic, ordered so that each has at most one symbol that is not known by then."""
        plain = {(rule.input, axis) for rule in self._rules for axis, _ in rule.plain}
        waiting = [
            (index, axis, d)
            for index, value in enumerate(self.values)
            for axis, d in enumerate(value.shape)
            if isinstance(d, Affine) and (index, axis) not in plain
        ]
        ordered: list[_Equation] = []
        while waiting:
            ready = [w for w in waiting if sum(s not in self._origins for s in symbols_of(w[2])) <= 1]
            if not ready:
                break
            index, axis, d = ready[0]
            waiting.remove(ready[0])
            coefficients = {variable.name: c for variable, c in d.terms}
            unknown = next((s for s in coefficients if s not in self._origins), None)
            known = tuple((s, c) for s, c in coefficients.items() if s != unknown)
            ordered.append(
                _Equation(index, axis, d.constant, known, unknown, coefficients.get(unknown or "", 1))
            )
            if unknown is not None:
                self._origins[unknown] = (index, axis)
        return tuple(ordered)

    def _solve(self, tensors: Sequence[Any], sizes: dict[str, int]) -> None:
        for index, axis, constant, known, unknown, coefficient in self._equations:
            size = tensors[index].shape[axis]
            rest = size - constant - sum(c * sizes[symbol] for symbol, c in known)
            expected = f"axis {axis} must be {self.values[index].shape[axis]!r}"
            if unknown is None:
                if rest != 0:
                    where = ", ".join(self._size_text(symbol, sizes) for symbol, _ in known)
                    self._refuse(index, tensors[index], f"{expected} = {size - rest}, with {where}")
            elif rest % coefficient:
                self._refuse(index, tensors[index], f"{expected} for an integer {unknown}")
            else:
                sizes[unknown] = rest // coefficient

    def _size_text(self, symbol: str, sizes: Mapping[str, int]) -> str:
        index, axis = self._origins[symbol]
        return f"{symbol}={sizes[symbol]} (from axis {axis} of {self.names[index]})"

    def _takes(self) -> str:
        count = len(self.names)
        return f"the network takes {count} input{'s' if count != 1 else ''} ({', '.join(self.names)})"

    def refuse_dtype(self, index: int, tensor: Any) -> NoReturn:
        """E_RUNTIME for a dtype of no kind."""
        self._refuse(index, tensor, f"it must have {_KIND_WORDS[self._rules[index].kind]}")

    def _refuse(self, index: int, tensor: Any, reason: str) -> NoReturn:
        value = self.values[index]
        raise IsomorphError(
            "E_RUNTIME",
            f"input {self.names[index]}: expected {show_shape(value.shape)} {value.dtype}, "
            f"got {show_shape(tensor.shape)} {dtype_name(tensor.dtype)}: {reason}",
        )


def _within(size: Any, low: int, high: float) -> bool:
    """Whether a size keeps its bounds; one that a framework leaves open (``jax.export``) may."""
    if type(size) is int:
        return low <= size <= high
    try:
        return bool(low <= size) and (high == inf or bool(size <= high))
    except Exception:  # each framework has one of its own for a comparison without an answer
        return True


def dtype_name(dtype: Any) -> str:
    """A dtype's bare name, ``float32``, whichever framework it comes from."""
    return str(getattr(dtype, "name", dtype)).rpartition(".")[2]
