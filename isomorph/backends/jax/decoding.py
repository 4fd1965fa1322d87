"""Generation in JAX, for both Flax backends: one compiled step, with the memory passed through it.

A step takes parameters, memory and ids as arguments, so that it is compiled once for each length of ids, batch
and capacity; the buffers of the memory are donated and written in place. Lengths are rounded up to few: what
is added is padding on the left, which costs a little work and no compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from isomorph.backends.decoding import (
    Decoder,
    KeyValueCache,
    RememberingPrimitives,
    check_contracts,
    no_memory,
    run_fixed,
    run_moving,
)
from isomorph.backends.jax import primitives
from isomorph.backends.jax.attention import attend
from isomorph.backends.jax.build import KINDS, PreparedPlan, no_array, require_x64
from isomorph.lowering.decoding_layout import DecodingLayout
from isomorph.operators.declare import Operator
from isomorph.plan import Plan

Array = np.ndarray[Any, Any]
Tensor = jax.Array

_LEAST_SLOTS = 16
_CAPACITY_STEP = 128

Layers = Mapping[str, Callable[..., Any]]
Bind = Callable[[Any, Any], Layers]
"""``bind(parameters, primitives)``: the nodes of a model by name, in evaluation mode."""


def slots(length: int, chunk: int) -> int:
    """Powers of two up to the chunk, and multiples of it."""
    if length >= chunk:
        return -(-length // chunk) * chunk
    least = _LEAST_SLOTS
    while least < length:
        least *= 2
    return min(least, chunk)


class JaxKeyValueCache(KeyValueCache):
    """Keys and values ``[B * K, C, d]`` of each attention, as they are after this step.

    With one axis for batch and heads, as products read them, the compiler writes them in place.

    Args:
        keys, values: as the last step left them; empty before the first.
        offset: the first new slot, traced.
        pads: the first slot of each row, ``[B]``.
        capacity: C.
    """

    def __init__(
        self, keys: tuple[Tensor, ...], values: tuple[Tensor, ...], offset: Any, pads: Tensor, capacity: int
    ) -> None:
        self.keys, self.values = list(keys), list(values)
        self.offset, self.pads, self.capacity = offset, pads, capacity

    def attend(self, call: int, q: Tensor, k: Tensor, v: Tensor, *, window: int, softcap: float) -> Tensor:
        B, K, T, d = k.shape
        if call == len(self.keys):
            shape = (B * K, self.capacity, d)
            self.keys.append(jnp.zeros(shape, k.dtype))
            self.values.append(jnp.zeros(shape, v.dtype))
        slot = self.offset + jnp.arange(T)  # (T,)
        kept = (slot >= self.pads[:, None])[:, None, :, None]  # what padding holds is never used, NaN neither
        none = jnp.zeros_like(self.offset)
        start = (none, self.offset, none)
        for memory, new in ((self.keys, k), (self.values, v)):
            rows = jnp.where(kept, new, 0).reshape(B * K, T, d)
            memory[call] = lax.dynamic_update_slice(memory[call], rows, start)
        keys, values = (memory[call].reshape(B, K, self.capacity, d) for memory in (self.keys, self.values))
        other = jnp.arange(self.capacity)  # (C,)
        visible = (other <= slot[:, None]) & (other >= self.pads[:, None, None])  # (B, T, C)
        if window:
            visible &= other > slot[:, None] - window
        return attend(q, keys, values, visible[:, None, None], softcap)

    def positions(self, table: Tensor, length: int) -> Tensor:
        return table[self._places(length)]  # (B, T, D)

    def cos_sin(self, length: int, frequencies: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = primitives.cos_sin(self.capacity, frequencies, like)
        places = self._places(length)
        return cos[places], sin[places]  # (B, T, d/2)

    def _places(self, length: int) -> Tensor:
        """Positions ``[B, T]`` of the new slots; those of padding are 0."""
        return jnp.maximum(self.offset + jnp.arange(length) - self.pads[:, None], 0)


class CompiledSteps:
    """The compiled steps of a model; a subclass says what a step computes.

    Args:
        layout: how its plan generates text.
        options: for the compiler.
    """

    def __init__(self, layout: DecodingLayout, options: Mapping[str, Any] | None = None) -> None:
        self.layout = layout
        self.traces = 0
        self.fixed = jax.jit(self._fixed)
        self.step = jax.jit(
            self._step,
            static_argnames=("capacity", "wanted"),
            donate_argnames=("memory",),
            compiler_options=dict(options) if options else None,
        )

    def _fixed(self, parameters: Any, inputs: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Values that no id changes."""
        raise NotImplementedError

    def _scores(
        self,
        parameters: Any,
        memory: JaxKeyValueCache,
        ids: Tensor,
        fixed: Mapping[int, Tensor],
        *,
        wanted: bool,
    ) -> Tensor | None:
        """Scores after the last id."""
        raise NotImplementedError

    def _step(
        self,
        parameters: Any,
        fixed: Mapping[int, Tensor],
        memory: tuple[tuple[Tensor, ...], tuple[Tensor, ...]],
        ids: Tensor,
        offset: Tensor,
        pads: Tensor,
        *,
        capacity: int,
        wanted: bool,
    ) -> tuple[Tensor | None, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
        self.traces += 1
        state = JaxKeyValueCache(*memory, offset, pads, capacity)
        logits = self._scores(parameters, state, ids, fixed, wanted=wanted)
        return logits, (tuple(state.keys), tuple(state.values))


class CompiledLayout(CompiledSteps):
    """Steps that call a model's own modules.

    Args:
        layout: how its plan generates text.
        bind: gives its layers.
    """

    def __init__(self, layout: DecodingLayout, bind: Bind) -> None:
        super().__init__(layout)
        self.bind = bind

    def _fixed(self, parameters: Any, inputs: Mapping[int, Tensor]) -> dict[int, Tensor]:
        return run_fixed(self.layout, self.bind(parameters, None), inputs)

    def _scores(
        self,
        parameters: Any,
        memory: JaxKeyValueCache,
        ids: Tensor,
        fixed: Mapping[int, Tensor],
        *,
        wanted: bool,
    ) -> Tensor | None:
        remembering: Any = RememberingPrimitives(primitives, memory)
        layers = self.bind(parameters, remembering)
        return run_moving(self.layout, layers, primitives, ids, fixed, wanted=wanted)


class Steps(NamedTuple):
    """What computes the steps of a generation.

    Attributes:
        single, weights: a step of one position, and what it takes.
        longer, longer_weights: the same for several positions at once.
        stepped: told of every step of one position.
    """

    single: CompiledSteps
    weights: Any
    longer: CompiledSteps
    longer_weights: Any
    stepped: Callable[[], None] = lambda: None


@dataclass
class JaxDecoder(Decoder):
    """See :class:`isomorph.backends.decoding.Decoder`."""

    steps: Steps
    fixed: Any
    capacity: int
    pads: Tensor
    memory: Any = ((), ())
    offset: int = 0

    def feed(self, ids: Array, *, wanted: bool) -> Array | None:
        try:
            return self._fed(ids, wanted=wanted)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            sizes = [keys.nbytes // keys.shape[1] * self.capacity for keys in self.memory[0]]
            raise no_memory(len(ids) * self.capacity, max(sizes, default=0)) from error

    def _fed(self, ids: Array, *, wanted: bool) -> Array | None:
        if self.offset + ids.shape[1] > self.capacity:
            self._grow(self.offset + ids.shape[1])
        steps, single = self.steps, ids.shape[1] == 1
        if single:
            steps.stepped()
        compiled, weights = (steps.single, steps.weights) if single else (steps.longer, steps.longer_weights)
        logits, self.memory = compiled.step(
            weights,
            self.fixed,
            self.memory,
            ids.astype(np.int32),
            np.int32(self.offset),
            self.pads,
            capacity=self.capacity,
            wanted=wanted,
        )
        self.offset += ids.shape[1]
        return None if logits is None else np.asarray(logits)

    def _grow(self, least: int) -> None:
        """Room for twice as many slots, so that the steps are compiled anew but few times."""
        self.capacity = _rounded(max(least, 2 * self.capacity))
        keys, values = self.memory
        self.memory = tuple(self._longer(x) for x in keys), tuple(self._longer(x) for x in values)

    def _longer(self, old: Tensor) -> Tensor:
        return jnp.pad(old, ((0, 0), (0, self.capacity - old.shape[1]), (0, 0)))


def _rounded(capacity: int) -> int:
    return -(-capacity // _CAPACITY_STEP) * _CAPACITY_STEP


def decoder(steps: Steps, capacity: int, pads: Array, inputs: Mapping[int, Tensor]) -> JaxDecoder:
    """A decoder; the capacity is rounded up, so that few are compiled for."""
    layout = steps.single.layout
    fixed = steps.single.fixed(steps.weights, dict(inputs)) if layout.others or layout.fixed else {}
    return JaxDecoder(steps, fixed, _rounded(capacity), jnp.asarray(pads, jnp.int32))


def same_steps(compiled: CompiledSteps, parameters: Any) -> Steps:
    """The same for one position and for several."""
    return Steps(compiled, parameters, compiled, parameters)


def checked_inputs(
    prepared: PreparedPlan,
    dtype: Any,
    layout: DecodingLayout,
    shape: tuple[int, int],
    given: Mapping[str, Any],
) -> dict[int, Tensor]:
    """The further inputs as arrays by their value ids, checked as a call of the model checks them.

    Args:
        prepared: the model's plan.
        dtype: what floating-point inputs must have; None not to ask.
        layout: how the plan generates text.
        shape: of the prompts.
        given: arrays by name.
    """
    require_x64(prepared.plan)
    arrays: dict[int, Any] = {}
    for index in layout.others:
        name, value = layout.plan.inputs[index]
        array = given[name]
        if not isinstance(array, jax.Array | np.ndarray):
            raise no_array(name, array)
        with suppress(TypeError):  # of a dtype that JAX does not have, which the contract refuses
            array = jnp.asarray(array)
        arrays[value] = array
    arrays = check_contracts(layout, shape, arrays, KINDS)
    if dtype is not None:
        for index in layout.others:
            prepared.check_dtype(index, arrays[layout.plan.inputs[index][1]], dtype)
    return arrays


def inputs(
    model: Any, layout: DecodingLayout, shape: tuple[int, int], given: Mapping[str, Any]
) -> dict[int, Tensor]:
    """Those of a prepared model."""
    if model.departure:
        return model.source.decoding.inputs(model.source.model, layout, shape, given)
    return checked_inputs(model.prepared, model.current().dtype, layout, shape, given)


def plan_of(model: Any) -> Plan:
    """The plan of a prepared model."""
    return model.source.decoding.plan_of(model.source.model) if model.departure else model.plan


def start(
    model: Any, layout: DecodingLayout, capacity: int, pads: Array, inputs: Mapping[int, Tensor]
) -> JaxDecoder:
    """A decoder of a prepared model."""
    steps = model.steps(layout, len(pads))
    if steps is None:
        return model.source.decoding.start(model.source.model, layout, capacity, pads, inputs)
    return decoder(steps, capacity, pads, inputs)


def composites(plan: Plan) -> list[tuple[str, Operator]]:
    """Paths of the operators that generation runs itself, which nothing else may stand in for."""

    def inside(path: str, operator: Operator) -> list[tuple[str, Operator]]:
        if operator.leaf is not None:
            return []
        operators = [(path, operator)]
        for name, child in operator.child_operators.items():
            operators += inside(f"{path}.{name}", child)
        return operators

    return [entry for node in plan.nodes for entry in inside(node.name, node.operator)]


def to_numpy(ids: Any) -> Array | None:
    return np.asarray(ids) if isinstance(ids, jax.Array) else None


def like(ids: Array, given: Any) -> Any:
    return jnp.asarray(ids, given.dtype if given.dtype.itemsize >= 4 else jnp.int32)  # any id fits
