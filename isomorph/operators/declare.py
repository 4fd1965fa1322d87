"""The form in which an operator is written: arguments, ports, children, parameters, forward.

An operator's file states everything about it once. This module holds the vocabulary of such a
file (:func:`operator`, :func:`argument`, :class:`Example`, :class:`Parameter`, :class:`Conflict`)
and the base class :class:`Operator`. It imports no framework and nothing outside the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.initializers import Initializer, Uniform
from isomorph.operators import soundness
from isomorph.operators.pattern import Signature

if TYPE_CHECKING:
    from isomorph.primitives import Primitives

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


class Parameter(NamedTuple):
    """A parameter as an operator declares it.

    Attributes:
        shape: sizes in plan layout (PyTorch's: a linear weight is ``[out, in]``).
        initial: the distribution it starts from.
        axes: one logical name per axis (``"embed"``, ``"heads"``, ``"mlp"``, ``"vocab"``, ...) or None.
    """

    shape: tuple[int, ...]
    initial: Initializer
    axes: tuple[str | None, ...] = ()


class Example(NamedTuple):
    """A definition that is documentation and test at once."""

    title: str
    definition: str
    input: Any = None
    output: Any = None
    dtype: str = "float32"
    input_dtype: Any = None


class Argument:
    """One argument of an operator; see :func:`argument`."""

    __slots__ = (
        "above",
        "below",
        "choices",
        "default",
        "doc",
        "maximum",
        "minimum",
        "name",
        "positional",
        "size",
        "type",
        "variadic",
    )  # fmt: skip

    def __init__(self, **values: Any) -> None:
        for name in self.__slots__:
            setattr(self, name, values.get(name))

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    @property
    def inferable(self) -> bool:
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
    values = dict(locals())
    return Argument(**values)


class Operator:
    """Base class. An instance is one operator with all its arguments and sizes known, and is immutable.

    Arguments are attributes (``self.heads``); sizes bound by the shape pattern and used by
    :meth:`children`, :meth:`parameters` or :meth:`check` are in ``self.sizes``. Equal instances are usually
    one object, so whatever is derived from one is derived once.

    Subclasses override, naming the sizes they need as method parameters (``def children(self, D)``):
    :meth:`check`, :meth:`children`, :meth:`parameters`, and always :meth:`forward`. An operator whose
    shape a pattern cannot say overrides :meth:`relate` as well.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    identity: ClassVar[str]
    category: ClassVar[str]
    shape: ClassVar[str]
    signature: ClassVar[Signature]
    arguments: ClassVar[dict[str, Argument]]
    positional: ClassVar[tuple[Argument, ...]]
    defaults: ClassVar[dict[str, Any]]
    required: ClassVar[tuple[str, ...]]
    inferred: ClassVar[tuple[tuple[str, str], ...]]
    stating: ClassVar[tuple[tuple[str, str], ...]]
    sizing: ClassVar[tuple[str, ...]]
    ranks: ClassVar[tuple[int, ...] | None] = None
    bounds: ClassVar[dict[str, str]] = {}
    """``{"T": "max_len"}``: a size that may be symbolic but never exceeds that argument."""
    leaf: ClassVar[str | None] = None
    """The native layer that a backend may use instead of :meth:`forward`, such as ``"linear"``."""
    examples: ClassVar[tuple[Example, ...]] = ()

    sizes: Mapping[str, int]

    # -- what a subclass says ------------------------------------------------------------------
    # ``*sizes, **named`` let an override name exactly the sizes and tensors that it takes.

    def check(self, *sizes: Any, **named: Any) -> None:
        """Raise :class:`Conflict` when arguments and sizes do not fit together."""

    def children(self, *sizes: Any, **named: Any) -> Mapping[str, Operator]:
        """Operators inside this one, by attribute name, made with :meth:`of`."""
        return {}

    def parameters(self, *sizes: Any, **named: Any) -> Mapping[str, Parameter]:
        """Parameters held by this operator itself."""
        return {}

    def forward(self, m: Any, F: Primitives, *inputs: Any, **named: Any) -> Any:
        """The computation: ``m`` holds the children (callable) and parameters, ``F`` the primitives."""
        raise NotImplementedError(f"{self.name} has no forward computation")

    relate: Any = None
    """``relate(self, solver, sizes, *shapes) -> output shapes`` for what no pattern can say.

    ``self`` has its given arguments (an inferable one may be None); ``sizes`` maps pattern variables
    bound by the inputs, and sizes stated by arguments, to dimensions; the solver offers ``unknown``,
    ``equal``, ``product``, ``quotient`` and ``open_shape``.
    """

    relate_open: Any = None
    """``relate_open(self, solver, leading sizes, count) -> output shapes`` for an input of unknown rank.

    For an operator whose output depends on the number of elements alone (``flatten``).
    """

    keeps_rank: ClassVar[bool] = False
    """Whether an operator with :attr:`relate` gives every port with ``...`` the same rank."""

    keeps_count: ClassVar[bool] = False
    """Whether an operator with :attr:`relate` only rearranges elements, so that their number stays."""

    settle: Any = None
    """``settle(cls, arguments, input shapes, output shapes) -> arguments``, once all shapes are known.

    For an operator whose arguments are completed by its shapes (the last sizes of a ``reshape``).
    """

    # -- what every operator has ---------------------------------------------------------------

    @classmethod
    def of(cls, **values: Any) -> Any:
        """The instance with these arguments and sizes, all others at their defaults.

        ``Linear.of(D_in=8, D_out=16, bias=False)``. Checks argument values, sizes and :meth:`check`.
        """
        key = (cls, "of", *values.items(), *map(type, values.values()))  # True is no 1
        found = _instances.get(key)
        if found is None:
            sizes = {name: values.pop(name) for name in cls.sizing if name in values}
            arguments = cls.complete(values)
            found = _remember(key, cls.bind(arguments, cls._complete_sizes(arguments, sizes)))
        return found

    @classmethod
    def _complete_sizes(cls, arguments: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
        """Check the given sizes, and add those that an argument states."""
        sizes = dict(given)
        for name, size in given.items():
            if type(size) is not int or size < 1:
                raise Conflict(
                    f"{cls.name}: the size {name} must be an int >= 1, got {shorten(size)}", code="E_ARGUMENT"
                )
        for name, size in cls.stating:
            stated = arguments[name]
            if stated is not None and sizes.setdefault(size, stated) != stated:
                raise Conflict(
                    f"{cls.name}: {name}={stated} states another size than {size}={sizes[size]}",
                    argument=name,
                )
        if len(sizes) < len(cls.sizing):
            missing = [name for name in cls.sizing if name not in sizes]
            raise Conflict(
                f"{cls.name} needs the size{'s' * (len(missing) > 1)} {', '.join(missing)}", code="E_ARGUMENT",
                hints=(f"sizes: {', '.join(cls.sizing)}",),
            )  # fmt: skip
        return sizes

    @classmethod
    def complete(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check the given arguments and add defaults; an omitted inferable one is None."""
        for name in given:
            if name not in cls.arguments:
                known = ", ".join(cls.arguments) or "none"
                raise Conflict(
                    f"{cls.name} has no argument {name!r}; it takes: {known}",
                    argument=name,
                    hints=tuple(did_you_mean(name, cls.arguments)),
                    code="E_ARGUMENT",
                )
        values = dict(cls.defaults)
        for name, value in given.items():
            spec = cls.arguments[name]
            if spec.variadic:
                values[name] = tuple(map(spec.check, value))
            elif value is not None or not spec.inferable:
                values[name] = spec.check(value)
        for name in cls.required:
            if name not in given:
                raise cls._missing(cls.arguments[name])
        return values

    @classmethod
    def _missing(cls, spec: Argument) -> Conflict:
        constraints = f", {spec.constraints()}" if spec.constraints() else ""
        return Conflict(
            f"{cls.name} needs the argument {spec.name} ({spec.type.__name__}{constraints})",
            hints=(f"{spec.name}: {spec.doc}",) if spec.doc else (),
            code="E_ARGUMENT",
        )

    @classmethod
    def provisional(cls, arguments: Mapping[str, Any]) -> Any:
        """An instance for :meth:`relate`: arguments as given, sizes still open."""
        self = object.__new__(cls)
        self.__dict__.update(arguments, sizes={})
        return self

    @classmethod
    def bind(cls, arguments: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
        """The one instance with these complete arguments and sizes (see :meth:`of`)."""
        known: dict[str, Any] = {name: sizes.get(name) for name in cls.sizing}
        filled = dict(arguments)
        for name, size in cls.inferred:
            if filled[name] is None:
                filled[name] = known[size]
        key = (cls, *filled.values(), *known.values())
        found = _instances.get(key)
        if found is not None:
            return found
        filled["sizes"] = known
        self = object.__new__(cls)
        self.__dict__.update(filled)
        self.check(*_needed(self.check, known))
        return _remember(key, self)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other)
            and self.sizes == other.sizes  # type: ignore[attr-defined]
            and self.argument_values == other.argument_values  # type: ignore[attr-defined]
        )

    def __hash__(self) -> int:
        return hash((type(self), *self.argument_values.values(), *self.sizes.values()))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self.name} is immutable")

    @property
    def argument_values(self) -> dict[str, Any]:
        """Every argument by name, in order of declaration."""
        return {name: self.__dict__[name] for name in self.arguments}

    @property
    def child_operators(self) -> Mapping[str, Operator]:
        """:meth:`children`, evaluated once."""
        return self._once("_children", self.children)

    @property
    def own_parameters(self) -> Mapping[str, Parameter]:
        """:meth:`parameters`, evaluated once."""
        return self._once("_parameters", self.parameters)

    @property
    def all_parameters(self) -> Mapping[str, Parameter]:
        """Every parameter by path inside the operator: its own first, then its children's."""
        found = self.__dict__.get("_all")
        if found is None:
            found = dict(self.own_parameters)
            for name, child in self.child_operators.items():
                found.update((f"{name}.{path}", p) for path, p in child.all_parameters.items())
            self.__dict__["_all"] = found
        return found

    @property
    def parameter_count(self) -> int:
        """Elements in all parameters."""
        found = self.__dict__.get("_count")
        if found is None:
            found = sum(child.parameter_count for child in self.child_operators.values())
            for parameter in self.own_parameters.values():
                size = 1
                for dimension in parameter.shape:
                    size *= dimension
                found += size
            self.__dict__["_count"] = found
        return found

    def _once(self, key: str, method: Callable[..., Any]) -> Any:
        found = self.__dict__.get(key)
        if found is None:
            found = method(*_needed(method, self.sizes))
            self.__dict__[key] = found
        return found

    def __repr__(self) -> str:
        body = ", ".join(f"{name}={value!r}" for name, value in self.argument_values.items())
        return f"{self.name}({body})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.argument_values, dict(self.sizes))


def _restore(cls: type[Operator], arguments: dict[str, Any], sizes: dict[str, int]) -> Operator:
    return cls.bind(arguments, sizes)


_instances: dict[tuple[Any, ...], Operator] = {}
_MOST_INSTANCES = 1 << 16  # beyond it the table starts anew; only memory depends on it


def _remember(key: tuple[Any, ...], instance: Any) -> Any:
    if len(_instances) >= _MOST_INSTANCES:
        _instances.clear()
    return _instances.setdefault(key, instance)


def _parameters_of(method: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a plain method's parameters after self, without loading ``inspect``."""
    code = method.__code__
    return code.co_varnames[1 : code.co_argcount]


def _needed(method: Any, sizes: Mapping[str, int]) -> list[int]:
    return [sizes[name] for name in _parameters_of(method.__func__)]


_Class = TypeVar("_Class", bound=type[Operator])
_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


def operator(
    name: str, *, shape: str, category: str, version: int = 1, register: bool = True
) -> Callable[[_Class], _Class]:
    """Class decorator: complete an :class:`Operator` subclass and enter it in the registry.

    Args:
        name: what definitions call it.
        shape: its shape pattern, such as ``"x[B, T, D] -> out[B, T, D]"``.
        category: the heading it is documented under.
        version: part of its identity ``name@version``; raised when its meaning changes.
        register: False for an operator that only serves as a child of others.
    """

    def complete(cls: _Class) -> _Class:
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise IsomorphError("E_OPERATOR", f"an operator's name is lower case, got {shorten(name)}")
        if register:
            soundness.check_name(cls, name)
        signature = soundness.read_signature(cls, shape)
        cls.arguments = _collect_arguments(cls, signature)  # before what follows could hide one
        cls.name, cls.version, cls.category, cls.shape = name, version, category, shape
        cls.identity, cls.signature = f"{name}@{version}", signature
        specs = cls.arguments.values()
        cls.defaults = {spec.name: _default(cls, spec) for spec in specs}
        cls.required = tuple(spec.name for spec in specs if spec.required)
        cls.stating = tuple((spec.name, spec.size) for spec in specs if spec.size)
        cls.inferred = tuple((spec.name, spec.size) for spec in specs if spec.inferable and spec.size)
        cls.positional = tuple(spec for spec in cls.arguments.values() if spec.positional)
        methods = [(m.__name__, _parameters_of(m)) for m in (cls.check, cls.children, cls.parameters)]
        soundness.check_sizes(cls, methods)
        needed = [spec.size for spec in cls.arguments.values() if spec.size]
        cls.sizing = tuple(dict.fromkeys(needed + [name for _, names in methods for name in names]))
        if register:
            from isomorph.operators import registry

            soundness.check_outputs(cls)
            registry.add(cls)
        return cls

    return complete


def _default(cls: type[Operator], spec: Argument) -> Any:
    """An argument's default in its declared type; None where the resolver finds the value."""
    if spec.inferable:
        return None
    if spec.required or spec.variadic:
        return spec.default
    try:
        return spec.check(spec.default)
    except Conflict as conflict:
        raise soundness.fault(cls, f"the default of {conflict.message}") from None


_TAKEN = frozenset(name for name in (*vars(Operator), *Operator.__annotations__) if name[:2] != "__")


def _collect_arguments(cls: type[Operator], signature: Signature) -> dict[str, Argument]:
    found: dict[str, Argument] = {}
    for base in reversed(cls.__mro__):
        for key, spec in list(vars(base).items()):
            if isinstance(spec, Argument):
                soundness.check_argument_name(cls, key, _TAKEN, signature)
                spec.name, spec.type = key, soundness.annotated_type(cls, base, key, _TYPES)
                found[key] = spec
    return found


@lru_cache(maxsize=4096)
def uniform_fan_in(fan_in: int) -> Uniform:
    """Uniform on +-1/sqrt(fan_in), PyTorch's default for linear and convolution layers."""
    bound = fan_in**-0.5 if fan_in else 0.0
    return Uniform(-bound, bound)
