"""The base class of every operator, and what it states of parameters and examples. Standard library alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from math import prod
from typing import Any, ClassVar, NamedTuple

from isomorph.errors import did_you_mean, shorten
from isomorph.initializers import Initializer
from isomorph.operators.argument import Argument, Conflict
from isomorph.operators.pattern import Signature
from isomorph.primitives import Primitives


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

    def multiples(self) -> Mapping[str, int]:
        """Sizes that :meth:`check` accepts only as multiples of a number: ``{"D": self.heads}``.

        It helps the resolver, which asks with arguments alone: a size that is not given is sought among the
        multiples, instead of among all numbers.
        """
        return {}

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
    ``equal``, ``sum``, ``product``, ``quotient`` and ``open_shape``.
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
        instance = _instances.get(key)
        if instance is None:
            sizes = {name: values.pop(name) for name in cls.sizing if name in values}
            arguments = cls.complete(values)
            instance = _remember(key, cls.bind(arguments, cls._complete_sizes(arguments, sizes)))
        return instance

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
        instance = _instances.get(key)
        if instance is not None:
            return instance
        filled["sizes"] = known
        self = object.__new__(cls)
        self.__dict__.update(filled)
        self.check(*sizes_for(self.check, known))
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

    @cached_property
    def child_operators(self) -> Mapping[str, Operator]:
        """:meth:`children`, evaluated once."""
        return self.children(*sizes_for(self.children, self.sizes))

    @cached_property
    def own_parameters(self) -> Mapping[str, Parameter]:
        """:meth:`parameters`, evaluated once."""
        return self.parameters(*sizes_for(self.parameters, self.sizes))

    @cached_property
    def all_parameters(self) -> Mapping[str, Parameter]:
        """Every parameter by path inside the operator: its own first, then its children's."""
        by_path = dict(self.own_parameters)
        for name, child in self.child_operators.items():
            by_path.update((f"{name}.{path}", spec) for path, spec in child.all_parameters.items())
        return by_path

    @cached_property
    def parameter_count(self) -> int:
        """Elements in all parameters."""
        own = sum(prod(spec.shape) for spec in self.own_parameters.values())
        return own + sum(child.parameter_count for child in self.child_operators.values())

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


def parameters_of(method: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a plain method's parameters after self, without loading ``inspect``."""
    code = method.__code__
    return code.co_varnames[1 : code.co_argcount]


def sizes_for(method: Any, sizes: Mapping[str, int]) -> list[int]:
    """The sizes that a bound method asks for, in its order."""
    return [sizes[name] for name in parameters_of(method.__func__)]
