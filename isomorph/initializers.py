"""Initial distributions of parameters, as declarations. ``weights/initial.py`` draws from them.

The schemes and their formulas are those of ``torch.nn.init``: fan_in is the size of a weight's
second axis times its receptive field, fan_out that of the first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from math import hypot
from typing import Any, ClassVar

from isomorph.errors import IsomorphError, did_you_mean, shorten


@dataclass(frozen=True)
class Initializer:
    """A distribution from which a parameter starts. Values are checked when one is made."""

    scheme: ClassVar[str]
    minimum_rank: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, str):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
                raise IsomorphError(
                    "E_ARGUMENT", f"{self.scheme}: {field.name} must be a number, got {shorten(value)}"
                )
            if abs(value) == float("inf"):
                raise IsomorphError("E_ARGUMENT", f"{self.scheme}: {field.name} must be finite, got {value}")
            object.__setattr__(self, field.name, float(value))
            if field.name in ("std", "gain") and value < 0:
                raise IsomorphError("E_ARGUMENT", f"{self.scheme}: {field.name} must be >= 0, got {value}")

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :func:`from_json` reads back."""
        return {"scheme": self.scheme, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def __str__(self) -> str:
        body = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"{self.scheme}({body})"


@dataclass(frozen=True)
class Constant(Initializer):
    """Every element is ``value``."""

    scheme: ClassVar[str] = "constant"
    value: float = 0.0


@dataclass(frozen=True)
class Normal(Initializer):
    """N(mean, std^2)."""

    scheme: ClassVar[str] = "normal"
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform on [low, high)."""

    scheme: ClassVar[str] = "uniform"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise IsomorphError(
                "E_ARGUMENT", f"{self.scheme}: low must not exceed high, got low={self.low}, high={self.high}"
            )


@dataclass(frozen=True)
class TruncatedNormal(Initializer):
    """Normal cut at two sigma and rescaled so that ``std`` is the true deviation afterwards."""

    scheme: ClassVar[str] = "truncated_normal"
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True)
class XavierUniform(Initializer):
    """Uniform on +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""

    scheme: ClassVar[str] = "xavier_uniform"
    minimum_rank: ClassVar[int] = 2
    gain: float = 1.0


@dataclass(frozen=True)
class XavierNormal(Initializer):
    """N(0, gain^2 * 2 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""

    scheme: ClassVar[str] = "xavier_normal"
    minimum_rank: ClassVar[int] = 2
    gain: float = 1.0


@dataclass(frozen=True)
class Kaiming(Initializer):
    """Shared fields of the two Kaiming schemes (He et al., 2015)."""

    minimum_rank: ClassVar[int] = 2
    mode: str = "fan_in"
    nonlinearity: str = "leaky_relu"
    a: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (("mode", ("fan_in", "fan_out")), ("nonlinearity", tuple(GAINS))):
            if getattr(self, name) not in choices:
                got = shorten(getattr(self, name))
                raise IsomorphError(
                    "E_ARGUMENT", f"{self.scheme}: {name} must be one of {', '.join(choices)}, got {got}"
                )

    @property
    def gain(self) -> float:
        """The factor that keeps the variance through the nonlinearity."""
        if self.nonlinearity == "leaky_relu":
            return 2.0**0.5 / hypot(1.0, self.a)  # a square could overflow
        return GAINS[self.nonlinearity]


GAINS = {"linear": 1.0, "relu": 2.0**0.5, "leaky_relu": 2.0**0.5, "tanh": 5.0 / 3.0, "sigmoid": 1.0}


@dataclass(frozen=True)
class KaimingUniform(Kaiming):
    """Uniform on +-gain * sqrt(3 / fan)."""

    scheme: ClassVar[str] = "kaiming_uniform"


@dataclass(frozen=True)
class KaimingNormal(Kaiming):
    """N(0, gain^2 / fan)."""

    scheme: ClassVar[str] = "kaiming_normal"


@dataclass(frozen=True)
class Orthogonal(Initializer):
    """Rows (or columns) orthonormal, times ``gain`` (Saxe et al., 2013)."""

    scheme: ClassVar[str] = "orthogonal"
    minimum_rank: ClassVar[int] = 2
    gain: float = 1.0


SCHEMES: dict[str, type[Initializer]] = {
    cls.scheme: cls
    for cls in (
        Constant,
        Normal,
        Uniform,
        TruncatedNormal,
        XavierUniform,
        XavierNormal,
        KaimingUniform,
        KaimingNormal,
        Orthogonal,
    )
}


def make(name: str, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None) -> Initializer:
    """An initialiser from a call as written; E_ARGUMENT names what is wrong."""
    cls = SCHEMES.get(name)
    if cls is None:
        hints = [*did_you_mean(name, SCHEMES), f"schemes: {', '.join(SCHEMES)}"]
        raise IsomorphError("E_ARGUMENT", f"unknown initialiser {shorten(name)}", hints=hints)
    known = [field.name for field in fields(cls)]
    for given in keywords or {}:
        if given not in known:
            raise IsomorphError(
                "E_ARGUMENT",
                f"{name} has no argument {given!r}; it takes {', '.join(known)}",
                hints=did_you_mean(given, known),
            )
    try:
        return cls(*arguments, **(keywords or {}))
    except TypeError:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{name} takes {', '.join(known)}, each once; got {len(arguments)} positional values",
        ) from None


def from_json(data: dict[str, Any]) -> Initializer:
    """The inverse of :meth:`Initializer.to_json`."""
    data = dict(data)
    return make(data.pop("scheme"), (), data)


@lru_cache(maxsize=4096)
def uniform_fan_in(fan_in: int) -> Uniform:
    """Uniform on ±1/sqrt(fan_in), PyTorch's default for linear and convolution layers."""
    bound = fan_in**-0.5 if fan_in else 0.0
    return Uniform(-bound, bound)
