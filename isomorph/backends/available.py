"""What every backend needs and what it can do, known without importing any framework.

:data:`BACKENDS` is the one table of them: nothing above ``isomorph.backends`` asks which backend it has, but what
a backend can do, and goes through the modules ``isomorph.backends.<name>.<part>`` that say how. A backend joins by
a line in the table and a module ``harness`` that offers :class:`Harness`, which whoever compares backends asks
(``isomorph verify``, ``isomorph.testing``); each ability says which further module it takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from isomorph.errors import IsomorphError, did_you_mean, shorten

if TYPE_CHECKING:
    from isomorph.backends.trainer import TrainerFactory
    from isomorph.plan import Plan
    from isomorph.primitives import Primitives, Tensor

Ability = Literal["differentiate", "train", "generate", "convert", "python", "onnx", "unpickle"]
"""What a backend may be able to do:

- ``differentiate``: its derivatives in double precision serve as the true ones (``harness``);
- ``train``: a trainer's steps (``training``);
- ``generate``: text, an id at a time (``decoding``), of models that can be prepared (``engine``);
- ``convert``: files that its framework's users load (``tensors``, which imports no framework);
- ``python``: source code that needs its framework alone (``isomorph.source_code.<name>_text``);
- ``onnx``: a file for ONNX's runtimes (``export_onnx`` of its public door);
- ``unpickle``: checkpoints that are pickles (``pickled``).
"""


class Backend(NamedTuple):
    """A backend, as it is without being loaded.

    Attributes:
        requires: the packages that it imports, its framework first.
        title: what people call that.
        install: what to install to have it.
        abilities: what it can do.
        device: where it computes when nobody can say where; empty for one that takes a device by name.
        models: the package of the classes that its framework's models are instances of.
        dtypes: what the products of a prepared model are computed in.
        training_requires: what its trainer imports besides.
    """

    requires: tuple[str, ...]
    title: str
    install: str
    abilities: tuple[Ability, ...] = ()
    device: str = ""
    models: str = ""
    dtypes: tuple[str, ...] = ()
    training_requires: str = ""


BACKENDS: dict[str, Backend] = {
    "reference": Backend(("numpy",), "NumPy", "isomorph"),
    "torch": Backend(
        ("torch",),
        "PyTorch",
        "isomorph[torch]",
        ("differentiate", "train", "generate", "convert", "python", "onnx", "unpickle"),
        models="torch",
        dtypes=("float32", "bfloat16", "int8"),
    ),
    "nnx": Backend(
        ("flax", "jax"),
        "Flax",
        "isomorph[flax]",
        ("differentiate", "train", "generate", "convert", "python"),
        device="what JAX finds",
        models="flax.nnx",
        dtypes=("float32", "bfloat16"),
        training_requires="optax",
    ),
    "linen": Backend(
        ("flax", "jax"),
        "Flax",
        "isomorph[flax]",
        ("differentiate", "generate", "convert"),
        device="what JAX finds",
        models="flax.linen",
        dtypes=("float32", "bfloat16"),
    ),
}
"""Every backend by name: the reference, then the preferred one first."""
REFERENCE = "reference"
"""The backend that the others are compared with."""
_OURS = "isomorph.backends."


class Gradients(NamedTuple):
    """Derivatives of a number by parameter path and by the name of a floating-point input."""

    parameters: dict[str, Any]
    inputs: dict[str, Any]


class Noise(Protocol):
    """What a backend offers beside its primitives so that results can be moved at random."""

    def random(self, like: Tensor) -> Tensor:
        """Numbers uniform in -1..1 of the shape and dtype of ``like``; at every call others."""
        ...

    def constant(self, x: Tensor) -> Tensor:
        """The same values, through which nothing is differentiated."""
        ...


Evaluation = Callable[
    ["Primitives", Mapping[str, "Tensor"], Sequence["Tensor"], Noise], Mapping[str, "Tensor"]
]
"""Outputs by name from a backend's primitives, its tensors by parameter path and by input in order, and noise."""


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

    def noisy_gradients(
        self,
        evaluate: Evaluation,
        plan: Plan,
        weights: Mapping[str, Any],
        inputs: Mapping[str, Any],
        cotangents: Mapping[str, Any],
        seeds: Iterable[int],
    ) -> Iterator[Gradients]:
        """The same in float64 of what ``evaluate`` makes of the plan's tensors; one for each seed of its noise.

        Nothing where the backend has no derivatives.
        """
        ...


def able(ability: Ability) -> tuple[str, ...]:
    """The backends that can do something, whether or not they are installed, the preferred one first."""
    return tuple(name for name, backend in BACKENDS.items() if ability in backend.abilities)


def preferred(ability: Ability) -> str | None:
    """The preferred one of those that are installed here; None when none is."""
    installed = available()
    return next((name for name in able(ability) if name in installed), None)


def available() -> dict[str, Callable[[], Harness]]:
    """A loader for each backend that can run here, the reference first. Loading imports its framework."""
    return {name: partial(load, name) for name in BACKENDS if _exists(name)}


def load(name: str) -> Harness:
    """The harness of one backend.

    Raises:
        IsomorphError: E_BACKEND when there is no such backend or its framework is not installed.
    """
    if name not in BACKENDS:
        hints = did_you_mean(name, BACKENDS) or [f"backends: {', '.join(BACKENDS)}"]
        raise IsomorphError("E_BACKEND", f"there is no backend {name!r}", hints=hints)
    if not _exists(name):
        backend = BACKENDS[name]
        raise IsomorphError(
            "E_BACKEND",
            f"the backend {name!r} needs {backend.requires[0]}, which is not installed",
            hints=[f'pip install "{backend.install}"'],
        )
    return part(name, "harness")


def missing(name: str, error: ModuleNotFoundError, door: str = "") -> Exception:
    """What a public door raises where it cannot be imported: E_BACKEND when its backend's framework is not there.

    ``door`` is its name where that is not the backend's.
    """
    backend = BACKENDS[name]
    if error.name not in backend.requires:
        return error
    return IsomorphError(
        "E_BACKEND",
        f"isomorph.{door or name} needs {backend.title}, which is not installed",
        hints=[f'pip install "{backend.install}"'],
    )


def door(name: str) -> Any:
    """A backend's public door, ``isomorph.torch`` or another."""
    return import_module(f"isomorph.{name}")


def part(name: str, of: str) -> Any:
    """A module of a backend, which imports its framework."""
    return import_module(f"{_OURS}{name}.{of}")


def part_for(model: Any, of: str) -> tuple[str, Any]:
    """The name of a model's backend, ``jax`` for a prepared one of Flax, and its module ``of``.

    No other framework is loaded.

    Raises:
        IsomorphError: E_ARGUMENT when it is no model.
    """
    packages = {f"{backend.models}.": name for name, backend in BACKENDS.items() if backend.models}
    for cls in type(model).__mro__:
        module = cls.__module__
        name = next((name for package, name in packages.items() if f"{module}.".startswith(package)), None)
        if module.startswith(_OURS) and module.endswith(".engine"):
            name = module.removeprefix(_OURS).partition(".")[0]
        if name is not None and module in sys.modules:
            return name, part(name, of)
    raise IsomorphError(
        "E_ARGUMENT",
        f"expected a model of PyTorch or Flax, got {shorten(type(model).__name__)}",
        hints=[
            "isomorph.torch.build(plan, weights), isomorph.nnx.build(plan, weights), or "
            "isomorph.linen.build(plan).bind(isomorph.linen.variables(plan, weights))"
        ],
    )


def load_trainer(backend: str) -> TrainerFactory:
    """The ``Trainer`` of a backend's module ``training``.

    Raises:
        IsomorphError: E_BACKEND when there is no such backend, it is not installed, or it cannot train.
    """
    load(backend)  # for its errors
    if backend not in able("train"):
        hints = [f"use {' or '.join(able('train'))}"]
        raise IsomorphError("E_BACKEND", f"the backend {backend!r} does not train", hints=hints)
    needed = BACKENDS[backend].training_requires
    if needed and find_spec(needed) is None:
        raise IsomorphError(
            "E_BACKEND",
            f"training with {backend} needs {needed}, which is not installed",
            hints=[f'pip install "{BACKENDS[backend].install}"'],
        )
    return part(backend, "training").Trainer


def default_backend() -> str:
    """The preferred one of those that train and are installed here; E_BACKEND when none is."""
    name = preferred("train")
    if name is None:
        raise IsomorphError(
            "E_BACKEND",
            "training needs PyTorch or Flax, and neither is installed",
            hints=['pip install "isomorph[torch]", or pip install "isomorph[flax]"'],
        )
    return name


def _exists(name: str) -> bool:
    """Whether a backend and its framework are here, judged by their files."""
    package = f"{_OURS}{name}"
    return all(
        find_spec(one) is not None for one in (*BACKENDS[name].requires, package, f"{package}.harness")
    )
