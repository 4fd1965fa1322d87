"""Prepared inference for an NNX model: see :mod:`isomorph.backends.jax.engine`.

Noticed are other arrays in a variable, other variables, other layers, another attribute of a layer (an epsilon, a
dtype, a product), and other functions of the layers' classes. JAX's arrays do not change, so another value is
another array; one of NumPy, which may be written into, makes the model serve itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jax import lax
from jax.core import Tracer

from isomorph.backends.engine import is_patched
from isomorph.backends.jax.arithmetic import PRECISION
from isomorph.backends.jax.engine import Engine, Source, refuse_training
from isomorph.backends.jax.engine_weights import Held
from isomorph.backends.jax.layers import LEAVES, inside, native
from isomorph.backends.nnx import decoding
from isomorph.backends.nnx.build import Network
from isomorph.backends.nnx.layers import Embedding, LayerNorm, OperatorModule
from isomorph.errors import IsomorphError, shorten
from isomorph.operators.declare import Operator

if TYPE_CHECKING:
    from isomorph.plan import Plan

_COMPUTING = attrgetter("__call__")
_KINDS = {"linear": nnx.Linear, "layer_norm": LayerNorm, "embedding": Embedding, "dropout": nnx.Dropout}


_OF_LINEAR = (
    ("dtype", None),
    ("precision", PRECISION),
    ("dot_general", lax.dot_general),
    ("promote_dtype", promote_dtype),
    ("preferred_element_type", None),
)
"""What nnx.Linear computes with beside its variables, as isomorph makes it."""
_ALSO = {"precision": (None,)}  # a layer of the user's own; the engine's products are no less precise


class _Departure(Exception):
    """What makes a model another than its plan says."""


class _Noted:
    """What was seen of a model at one look.

    Attributes:
        places, names: dictionaries that hold parts of it, and under which names.
        parts: those parts.
        kinds: the classes of its layers, which hold the functions that it computes with.
        variables: its parameters by path.
    """

    def __init__(self) -> None:
        self.places: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.parts: list[Any] = []
        self.kinds: dict[type, None] = {}
        self.variables: dict[str, nnx.Variable[Any]] = {}

    def part(self, module: Any, name: str) -> Any:
        """What a module holds under a name."""
        part = vars(module).get(name)
        self.places.append(vars(module))
        self.names.append(name)
        self.parts.append(part)
        return part

    def arrays(self) -> list[Any]:
        """What the variables hold now."""
        return [variable.get_raw_value() for variable in self.variables.values()]

    def functions(self) -> list[Any]:
        """What the layers' classes compute with now."""
        return list(map(_COMPUTING, self.kinds))


class NnxSource(Source):
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
        return [*map(dict.get, noted.places, noted.names), *noted.functions(), *noted.arrays()]

    def look(self) -> tuple[list[Any], str]:
        noted = _Noted()  # another thread may be reading the last one
        departure = ""
        noted.kinds[type(self.model)] = None
        try:
            for node in self.plan.nodes:
                self._look_into(noted.part(self.model, node.name), node.operator, node.name, node.tie, noted)
        except _Departure as reason:
            departure = str(reason)
        functions = noted.functions()
        if not departure and any(map(is_patched, noted.kinds)):
            (kind, *_) = filter(is_patched, noted.kinds)
            departure = f"the class {kind.__name__} computes with a function that was put on it"
        self._noted, arrays = noted, noted.arrays()
        return [*noted.parts, *functions, *arrays], departure or self._other_arrays(noted, arrays)

    def _look_into(
        self, module: Any, operator: Operator, path: str, tied: Mapping[str, str], noted: _Noted
    ) -> None:
        is_native = native(operator, tied) is not None
        kind = _KINDS[operator.leaf] if is_native and operator.leaf is not None else OperatorModule
        if type(module) is not kind:
            raise _Departure(f"{path} is {type(module).__name__} and not {kind.__name__}")
        noted.kinds[kind] = None
        if not is_native and noted.part(module, "_operator") is not operator:
            raise _Departure(f"{path} is another operator")
        for name, expected in self._settings(operator, kind):
            if noted.part(module, name) not in (expected, *_ALSO.get(name, ())):
                raise _Departure(f"{path} has another {name}")
        for name in operator.own_parameters:
            if name not in tied:
                self._note_variable(module, f"{path}.{name}", noted)
        for name, child in operator.child_operators.items():
            self._look_into(noted.part(module, name), child, f"{path}.{name}", inside(tied, name), noted)

    @staticmethod
    def _settings(operator: Any, kind: type) -> tuple[tuple[str, Any], ...]:
        """What else decides what a layer of Flax's own computes."""
        leaves = LEAVES[operator.leaf] if kind is not OperatorModule else {}
        absent = tuple(
            (leaf.name, None) for name, leaf in leaves.items() if name not in operator.own_parameters
        )
        if kind is LayerNorm:
            return (("epsilon", operator.eps), *absent)
        return (*_OF_LINEAR, *absent) if kind is nnx.Linear else absent

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
            if isinstance(array, np.ndarray):
                return f"{path} holds an array of NumPy, which may be written into unseen"
            if not isinstance(array, jax.Array):
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

    def made_with(self) -> tuple[Any, ...]:
        return prepare, (self.model,)


def prepare(model: nnx.Module, dtype: str | None = None) -> Engine:
    """A faster function of the same inputs and outputs; see :func:`isomorph.prepare`."""
    if not isinstance(model, Network):
        got = shorten(type(model).__name__)
        raise IsomorphError("E_ARGUMENT", f"expected a network from isomorph.nnx.build, got {got}")
    return Engine(model._prepared, NnxSource(model), dtype)


def prepare_training(model: Any, *, checkpointing: bool = False) -> NoReturn:
    """E_ARGUMENT: there is nothing to prepare."""
    refuse_training("nnx")
