"""Which backends can run here, found without importing any framework.

A backend joins by having a module ``isomorph.backends.<name>.harness`` that offers :class:`Harness` and a
line in :data:`REQUIRES`. Whoever compares backends (``isomorph verify``, ``isomorph.testing``) asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from isomorph.errors import IsomorphError, did_you_mean
from isomorph.plan import Plan

if TYPE_CHECKING:
    from isomorph.backends.trace.program import Program

REQUIRES: dict[str, tuple[str, str]] = {
    "reference": ("numpy", "isomorph"),
    "torch": ("torch", "isomorph[torch]"),
    "nnx": ("flax", "isomorph[flax]"),
    "linen": ("flax", "isomorph[flax]"),
}
"""For each backend the framework that it imports, and what to install to have it."""


class Gradients(NamedTuple):
    """Derivatives of a number by parameter path and by the name of a floating-point input."""

    parameters: dict[str, Any]
    inputs: dict[str, Any]


class Harness(Protocol):
    """How a backend is run on NumPy arrays; the functions of a module named ``harness``."""

    def forward(
        self, plan: Plan, weights: Mapping[str, Any], inputs: Mapping[str, Any], dtype: str
    ) -> dict[str, Any]:
        """Outputs by name, in evaluation mode, computed in ``dtype``."""
        ...

    def gradients(
        self,
        plan: Plan,
        weights: Mapping[str, Any],
        inputs: Mapping[str, Any],
        cotangents: Mapping[str, Any],
        dtype: str,
    ) -> Gradients | None:
        """Derivatives of ``sum(output * cotangent)``; None where the backend has no derivatives."""
        ...

    def rounded_gradients(
        self,
        plan: Plan,
        program: Program,
        weights: Mapping[str, Any],
        inputs: Mapping[str, Any],
        cotangents: Mapping[str, Any],
        epsilon: float,
        seeds: Iterable[int],
    ) -> Iterator[Gradients]:
        """The same in float64, every result moved as rounding to ``epsilon`` may move it; one for each seed.

        ``program`` is the plan's trace at the inputs' sizes. Nothing where the backend has no derivatives.
        """
        ...


def available() -> dict[str, Callable[[], Harness]]:
    """A loader for each backend that can run here, the reference first. Loading imports its framework."""
    return {name: partial(load, name) for name in REQUIRES if _exists(name)}


def load(name: str) -> Harness:
    """The harness of one backend.

    Raises:
        IsomorphError: E_BACKEND when there is no such backend or its framework is not installed.
    """
    if name not in REQUIRES:
        hints = did_you_mean(name, REQUIRES) or [f"backends: {', '.join(REQUIRES)}"]
        raise IsomorphError("E_BACKEND", f"there is no backend {name!r}", hints=hints)
    if not _exists(name):
        framework, install = REQUIRES[name]
        raise IsomorphError(
            "E_BACKEND",
            f"the backend {name!r} needs {framework}, which is not installed",
            hints=[f'pip install "{install}"'],
        )
    return cast("Harness", import_module(f"isomorph.backends.{name}.harness"))


def _exists(name: str) -> bool:
    """Whether a backend and its framework are here, judged by their files."""
    package = f"isomorph.backends.{name}"
    return (
        find_spec(REQUIRES[name][0]) is not None
        and find_spec(package) is not None
        and find_spec(f"{package}.harness") is not None
    )
