"""Prepared inference for a bound Linen module: see :mod:`isomorph.backends.jax.engine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from isomorph.backends.jax.engine import Engine, Source, refuse_training
from isomorph.backends.jax.engine_weights import Held
from isomorph.backends.linen import decoding
from isomorph.backends.linen.layers import FROZEN, PARAMS, array_at
from isomorph.errors import IsomorphError

if TYPE_CHECKING:
    from flax import linen as nn


class LinenSource(Source):
    """See :class:`isomorph.backends.jax.engine.Source`. The variables of a bound module do not change."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._places = model.prepared.places
        self._variables = model.variables

    @property
    def decoding(self) -> Any:
        return decoding

    def marks(self) -> list[Any]:
        return []

    def look(self) -> tuple[list[Any], str]:
        return [], ""

    def parameters(self) -> Mapping[str, Held]:
        return {path: self._array(path) for path in self._places}

    def _array(self, path: str) -> Held:
        place = self._places[path]
        return Held(array_at(self._variables, place), place.transposed)

    def call(self, tensors: Sequence[Any]) -> Any:
        return self.model(*tensors)

    def made_with(self) -> tuple[Any, ...]:
        return _of_parts, self.model.unbind()  # a bound module holds a scope, which cannot be pickled


def _of_parts(module: Any, variables: Any, dtype: str | None) -> Engine:
    return prepare(module.bind(variables), dtype)


def prepare(model: nn.Module, dtype: str | None = None) -> Engine:
    """A faster function of the same inputs and outputs; see :func:`isomorph.prepare`."""
    decoding.plan_of(model)
    if any(map(model.is_mutable_collection, (PARAMS, FROZEN))):
        raise IsomorphError(
            "E_ARGUMENT",
            "the module is bound with parameters that may change, which a prepared one would not notice",
            hints=["bind it without mutable: module.bind(variables)"],
        )
    bound: Any = model
    return Engine(bound.prepared, LinenSource(model), dtype)


def prepare_training(model: Any, *, checkpointing: bool = False) -> NoReturn:
    """E_ARGUMENT: there is nothing to prepare."""
    refuse_training("linen")
