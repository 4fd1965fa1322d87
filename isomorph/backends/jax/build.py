"""What both Flax backends prepare from a plan once, and do at every call around their own modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from isomorph.backends.contract import DTYPE_KINDS, InputContracts, dtype_name
from isomorph.backends.jax.initial import Fill, drawing
from isomorph.backends.jax.layers import Place, places
from isomorph.errors import IsomorphError, shorten
from isomorph.plan import Node, Parameter, Plan
from isomorph.plan.holder import evaluate
from isomorph.primitives import outside_table


def _full(shape: tuple[int, ...], value: Any, dtype: str, like: Any) -> jax.Array:
    return jnp.full(shape, value, jax.dtypes.canonicalize_dtype(dtype))


KINDS = {jnp.dtype(name): kind for name, kind in DTYPE_KINDS.items()}


class PreparedPlan:
    """A plan with its contracts and places, hashed once: Flax compares what a module holds at every call.

    Prepared plans are equal when their plans are.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._hash = hash(plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PreparedPlan) and (self.plan is other.plan or self.plan == other.plan)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(self.plan)

    def __reduce__(self) -> tuple[Any, ...]:
        return PreparedPlan, (self.plan,)

    def __deepcopy__(self, memo: Any) -> PreparedPlan:
        return self  # immutable

    @cached_property
    def contracts(self) -> InputContracts:
        """The checks of what the network is called with."""
        return InputContracts(self.plan, KINDS, _full)

    @cached_property
    def places(self) -> dict[str, Place]:
        """Where each parameter is kept, by its path."""
        return places(self.plan)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The plan's parameters by path."""
        return {parameter.path: parameter for parameter in self.plan.parameters}

    @cached_property
    def smallest(self) -> Place | None:
        """Where to read the network's dtype; None without parameters."""
        parameters = self.plan.parameters
        if not parameters:
            return None
        return self.places[min(parameters, key=lambda parameter: prod(parameter.shape)).path]

    def drawing(self, path: str) -> Fill:
        """The initialiser of a parameter, in Flax's axis order."""
        return drawing(self.parameters[path].initial, self.places[path].transposed)

    def ready(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], dtype: np.dtype[Any] | None
    ) -> list[jax.Array]:
        """Inputs bound, as JAX arrays, and checked; the same in eager mode and while tracing.

        Args:
            arguments, keywords: inputs by position and by name.
            dtype: what floating-point inputs must have, the network's dtype; None not to ask.

        Raises:
            IsomorphError: E_RUNTIME naming the input, what was expected and what came.
        """
        require_x64(self.plan)
        given = self.contracts.bind(arguments, keywords)
        for name, tensor in zip(self.contracts.names, given, strict=True):
            if not isinstance(tensor, jax.Array | np.ndarray):
                raise no_array(name, tensor)
        tensors = [self.array(index, tensor) for index, tensor in enumerate(given)]
        self.contracts.check(tensors)
        if dtype is not None:
            self._check_dtypes(tensors, dtype)
        return tensors

    def array(self, index: int, given: Any) -> jax.Array:
        """An input as JAX's; E_RUNTIME for what JAX would change: objects, and integers too large for it."""
        if isinstance(given, np.ndarray):
            if KINDS.get(given.dtype.newbyteorder("=")) is None:
                self.contracts.refuse_dtype(index, given)
            if given.dtype.kind in "iu":
                self._check_integers(index, given)
        return jnp.asarray(given)

    def _check_integers(self, index: int, given: np.ndarray[Any, Any]) -> None:
        kept = np.iinfo(jax.dtypes.canonicalize_dtype(given.dtype))
        if kept.bits == given.dtype.itemsize * 8:
            return
        outside = given[(given < kept.min) | (given > kept.max)]
        if outside.size:
            value, rows = int(outside[0]), self._rows.get(index)
            if rows is not None:
                raise outside_table(value, rows)
            raise IsomorphError(
                "E_RUNTIME",
                f"input {self.contracts.names[index]}: {value} is outside {kept.dtype}, which JAX keeps integers in",
                hints=['jax.config.update("jax_enable_x64", True) keeps all of them'],
            )

    @cached_property
    def _rows(self) -> dict[int, int]:
        """The rows of the first table that each input of ids is looked up in."""
        rows: dict[int, int] = {}
        places = {value: index for index, (_, value) in enumerate(self.plan.inputs)}
        for node in self.plan.nodes:
            for slot in node.call_slots:
                if node.operator.leaf == "embedding" and slot in places:
                    rows.setdefault(places[slot], next(iter(node.operator.own_parameters.values())).shape[0])
        return rows

    def _check_dtypes(self, tensors: Sequence[jax.Array], dtype: np.dtype[Any]) -> None:
        for index, tensor in enumerate(tensors):
            self.check_dtype(index, tensor, dtype)

    def check_dtype(self, index: int, tensor: jax.Array, dtype: np.dtype[Any]) -> None:
        """E_RUNTIME when a floating-point input has another dtype than the network."""
        if DTYPE_KINDS[self.contracts.values[index].dtype] == "float" and tensor.dtype != dtype:
            raise IsomorphError(
                "E_RUNTIME",
                f"input {self.contracts.names[index]}: expected {dtype_name(dtype)}, the network's dtype, "
                f"got {dtype_name(tensor.dtype)}",
                hints=["convert one of them, as in x.astype(dtype)"],
            )

    def run(self, layers: Sequence[Callable[..., Any]], tensors: Sequence[jax.Array]) -> Any:
        """Evaluate the nodes in order; one array, or a dictionary of them in order."""
        calls = [_telling(node, layer) for node, layer in zip(self.plan.nodes, layers, strict=True)]
        outputs = evaluate(self.plan, calls, tensors)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def broadcasting() -> AbstractContextManager[None]:
    """Around a forward computation: operators broadcast ``[B, T, D] + [D]``, which JAX may be told to refuse."""
    return jax.numpy_rank_promotion("allow")


def no_array(name: str, given: Any) -> IsomorphError:
    """The error for an input of another type."""
    got = shorten(type(given).__name__)
    return IsomorphError("E_RUNTIME", f"input {name}: expected a jax.Array or numpy.ndarray, got {got}")


@lru_cache(maxsize=128)
def prepared(plan: Plan) -> PreparedPlan:
    """The prepared form of a plan or of one equal to it, for what does not tell places in a definition."""
    return PreparedPlan(plan)


def require_x64(plan: Plan) -> None:
    """E_BACKEND for a float64 plan while JAX would silently compute it in float32."""
    if plan.dtype == "float64" and jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise IsomorphError(
            "E_BACKEND",
            "the plan's dtype is float64, which JAX has switched off",
            hints=['jax.config.update("jax_enable_x64", True), or with jax.enable_x64(True): ...'],
        )


def network_dtype(array: Any) -> np.dtype[Any] | None:
    """A parameter's dtype now, which a cast may have changed; None when it is no floating-point one."""
    dtype = jnp.dtype(array.dtype)
    return dtype if KINDS.get(dtype) == "float" else None


def refuse_name(name: str, owner: str, framework: str) -> IsomorphError:
    """The error for a part whose name every module of a framework has already."""
    return IsomorphError(
        "E_NAME",
        f"{owner}: {name!r} cannot name a part of {framework}, which has an attribute of that name",
        hints=["give it another name"],
    )


def _telling(node: Node, layer: Callable[..., Any]) -> Callable[..., Any]:
    """The layer, whose errors tell the node and its place in the definition."""

    def call(*inputs: Any) -> Any:
        try:
            return layer(*inputs)
        except Exception as error:
            lines = [f"in node {node.name}, {node.operator.name}"]
            if node.location is not None:
                lines += node.location.render()
            error.add_note("\n".join(lines))
            raise

    return call
