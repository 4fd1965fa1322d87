"""Prepared inference for an NNX model: see :mod:`isomorph.backends.jax.engine`.

Noticed are other arrays in a variable, other variables, other layers, another epsilon of a norm, another product
or dtype of a linear. JAX's arrays do not change, so another value is another array; writing into an array of NumPy
that a variable holds is not noticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx
from jax import lax
from jax.core import Tracer

from isomorph.backends.jax.engine import Engine
from isomorph.backends.jax.engine_weights import Held
from isomorph.backends.jax.layers import inside, native
from isomorph.backends.nnx import decoding
from isomorph.backends.nnx.build import Network
from isomorph.backends.nnx.layers import Embedding, LayerNorm, OperatorModule
from isomorph.errors import IsomorphError, shorten
from isomorph.operators.declare import Operator

if TYPE_CHECKING:
    from isomorph.plan import Plan

_KINDS = {"linear": nnx.Linear, "layer_norm": LayerNorm, "embedding": Embedding, "dropout": nnx.Dropout}


class _Departure(Exception):
    """What makes a model another than its plan says."""


class _Noted:
    """What was seen of a model at one look.

    Attributes:
        places, names: dictionaries that hold parts of it, and under which names.
        held: what they held.
        variables: its parameters by path.
    """

    def __init__(self) -> None:
        self.places: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.held: list[Any] = []
        self.variables: dict[str, nnx.Variable[Any]] = {}

    def part(self, module: Any, name: str) -> Any:
        """What a module holds under a name."""
        part = vars(module).get(name)
        self.places.append(vars(module))
        self.names.append(name)
        self.held.append(part)
        return part

    def arrays(self) -> list[Any]:
        """What the variables hold now."""
        return [variable.get_raw_value() for variable in self.variables.values()]


class NnxSource:
    """See :class:`isomorph.backends.jax.engine.Source`."""

    def __init__(self, model: Network) -> None:
        self.model = model
        self.plan: Plan = model.plan
        self._noted = _Noted()

    @property
    def decoding(self) -> Any:
        return decoding

    def marks(self) -> list[Any]:
        noted = self._noted
        return [*map(dict.get, noted.places, noted.names), *noted.arrays()]

    def look(self) -> tuple[list[Any], str]:
        noted = _Noted()  # another thread may be reading the last one
        departure = ""
        try:
            for node in self.plan.nodes:
                self._look_into(noted.part(self.model, node.name), node.operator, node.name, node.tie, noted)
        except _Departure as found:
            departure = str(found)
        self._noted, arrays = noted, noted.arrays()
        return [*noted.held, *arrays], departure or self._other_arrays(noted, arrays)

    def _look_into(
        self, module: Any, operator: Operator, path: str, tied: Mapping[str, str], noted: _Noted
    ) -> None:
        is_native = native(operator, tied) is not None
        kind = _KINDS[operator.leaf] if is_native and operator.leaf is not None else OperatorModule
        if type(module) is not kind:
            raise _Departure(f"{path} is {type(module).__name__} and not {kind.__name__}")
        if not is_native and noted.part(module, "_operator") is not operator:
            raise _Departure(f"{path} is another operator")
        for name, expected in self._settings(operator, kind):
            if noted.part(module, name) != expected:
                raise _Departure(f"{path} has another {name}")
        for name in operator.own_parameters:
            if name not in tied:
                self._note_variable(module, f"{path}.{name}", noted)
        for name, child in operator.child_operators.items():
            self._look_into(noted.part(module, name), child, f"{path}.{name}", inside(tied, name), noted)

    @staticmethod
    def _settings(operator: Any, kind: type) -> tuple[tuple[str, Any], ...]:
        """What else decides what a layer of Flax's own computes."""
        if kind is LayerNorm:
            return (("epsilon", operator.eps),)
        return (("dot_general", lax.dot_general), ("dtype", None)) if kind is nnx.Linear else ()

    def _note_variable(self, module: Any, path: str, noted: _Noted) -> None:
        place = self.model._prepared.places[path]
        variable = noted.part(module, place.path[-1])
        shape = self.model._prepared.parameters[path].shape
        if not isinstance(variable, nnx.Variable) or tuple(variable.shape) != (
            shape[::-1] if place.transposed else shape
        ):
            raise _Departure(f"{path} is not there as the plan has it")
        noted.variables[path] = variable

    @staticmethod
    def _other_arrays(noted: _Noted, arrays: Sequence[Any]) -> str:
        for path, array in zip(noted.variables, arrays, strict=True):
            if isinstance(array, Tracer):
                return f"{path} is being traced"
            if not isinstance(array, jax.Array | np.ndarray):
                return f"{path} holds {shorten(type(array).__name__)} and no array"
            if isinstance(array, jax.Array) and len(array.devices()) > 1:
                return f"{path} lies on several devices"
        return "its parameters have several dtypes" if len({array.dtype for array in arrays}) > 1 else ""

    def parameters(self) -> Mapping[str, Held]:
        places = self.model._prepared.places
        variables = self._noted.variables
        return {path: Held(variable[...], places[path].transposed) for path, variable in variables.items()}

    def call(self, tensors: Sequence[Any]) -> Any:
        twin = nnx.merge(*nnx.split(self.model))  # a copy, so that its mode may be changed
        twin.eval()
        return twin(*tensors)


def prepare(model: nnx.Module, dtype: str | None = None) -> Engine:
    """A faster function of the same inputs and outputs; see :func:`isomorph.prepare`."""
    if not isinstance(model, Network):
        got = shorten(type(model).__name__)
        raise IsomorphError("E_ARGUMENT", f"expected a network from isomorph.nnx.build, got {got}")
    return Engine(model._prepared, NnxSource(model), dtype)
