"""Prepared inference in JAX, for both Flax backends: a plan's rewritten program, compiled.

While JAX traces the engine for some sizes, the plan is traced at them and its rewritten program is run on JAX's
values, so that JAX keeps one compiled function for each set of sizes. Weights are derived once and passed as
arguments. See :mod:`isomorph.lowering.rewrite` for what is rewritten.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from math import inf
from operator import attrgetter, is_
from time import perf_counter
from typing import Any, NoReturn, Protocol

import jax
import numpy as np
from jax import numpy as jnp
from jax.core import Tracer

from isomorph.backends.composing import compose, defined, tables_read
from isomorph.backends.contract import DTYPE_KINDS
from isomorph.backends.engine import PreparedModel
from isomorph.backends.jax import primitives, writer
from isomorph.backends.jax.build import PreparedPlan, broadcasting, require_x64
from isomorph.backends.jax.decoding import Steps
from isomorph.backends.jax.engine_decoding import EngineSteps
from isomorph.backends.jax.engine_weights import Held, Kept, collect, made_of
from isomorph.backends.jax.writer import JaxWriter
from isomorph.backends.large_pages import Uses, in_large_pages
from isomorph.errors import IsomorphError
from isomorph.lowering import derived
from isomorph.lowering.decoding_layout import DecodingLayout
from isomorph.lowering.derived import Weight
from isomorph.lowering.rewrite import rewritten
from isomorph.trace.build import trace

Tensor = jax.Array
MOST_SHAPES = 64
"""How many shapes and dtypes of inputs are remembered as right."""
LARGEST = 1 << 18
"""Numbers of a weight up to which it is joined with others: among larger products the compiler loses no time."""
SHARED = 32
"""How many plans keep their compiled functions when the last engine of theirs is gone."""


_class_shape_dtype = attrgetter("__class__", "shape", "dtype")


class Source(Protocol):
    """The model behind an engine."""

    model: Any
    """The model itself."""

    @property
    def decoding(self) -> Any:
        """The module that generates with the model."""
        ...

    def look(self) -> tuple[list[Any], str]:
        """Its marks after looking at it from the top, and what makes it another than its plan says, or nothing."""
        ...

    def marks(self) -> list[Any]:
        """Objects that the model holds: another one in a place tells that the model changed."""
        ...

    def parameters(self) -> Mapping[str, Held]:
        """The parameters by plan path as the model has them now."""
        ...

    def call(self, tensors: Sequence[Any]) -> Any:
        """The model itself, in evaluation mode."""
        ...

    def made_with(self) -> tuple[Callable[..., Engine], tuple[Any, ...]]:
        """A function, and arguments that can be copied and pickled, which make an engine of the model."""
        ...


class Engine(PreparedModel["State"]):
    """A model, prepared; takes and returns what the model does.

    Every call looks whether the model holds other arrays or other layers than before, and prepares anew if
    so. A model that is no longer what its plan says is called itself. Inside somebody else's compiled
    function the weights are those at the time of tracing, as those of anything that it closes over.

    Args:
        prepared: the plan and its contracts.
        source: the model.
        dtype: compute dtype, None for the model's.
    """

    def __init__(self, prepared: PreparedPlan, source: Source, dtype: str | None) -> None:
        self.prepared = prepared
        self._contracts, self.source, self._dtype = prepared.contracts, source, dtype
        self._float_inputs = tuple(
            i for i, value in enumerate(self._contracts.values) if DTYPE_KINDS[value.dtype] == "float"
        )
        super().__init__(prepared.plan)

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        state = self._state
        try:
            kind = (*map(_class_shape_dtype, inputs),)
            known = not named and kind in state.ready
        except (AttributeError, TypeError):  # what is no array is refused below
            kind, known = (), False
        results = self._begun(state, inputs, kind) if known else None
        if results is None:
            results = self._checked(inputs, named)
        return self._returned(results) if isinstance(results, tuple) else results

    def _begun(
        self, state: State, tensors: tuple[Tensor, ...], kind: tuple[Any, ...]
    ) -> tuple[Tensor, ...] | None:
        """The results of inputs of a kind that was found right, or None if the model changed.

        The model is looked at while the results are being computed.
        """
        try:
            begun = _computed(state.functions.fast, state.weights, tensors)
        except (RuntimeError, ValueError):  # such as weights that somebody donated
            if state.holds(self.source.marks()):
                raise
            return None
        if not state.holds(self.source.marks()):
            return None
        patience = state.ready.get(kind)
        if patience:
            state.ready[kind] = _awaited(begun[0][-1], patience)
        return self._finished(state, tensors, begun)

    def _checked(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The results as a tuple, or what the model itself gives."""
        tensors = self._contracts.bind(inputs, named)
        for index, tensor in enumerate(tensors):
            if isinstance(tensor, np.ndarray):
                tensors[index] = self.prepared.array(index, tensor)
            elif not isinstance(tensor, Tensor):
                self.prepared.ready(tensors, {}, None)  # says which input is none
        sizes = self._contracts.check(tensors)
        state = self.current()
        if state.departure or any(
            type(size) is not int for size in sizes.values()
        ):  # jax.export leaves them open
            return self.source.call(tensors)
        require_x64(self.plan)
        for index in self._float_inputs:
            if tensors[index].dtype != state.dtype:
                self.prepared.ready(tensors, {}, state.dtype)  # says which input has another
        given = (*tensors,)
        if any(isinstance(tensor, Tracer) for tensor in given):
            return state.functions.careful(state.weights, given)
        results = self._finished(state, given, _computed(state.functions.fast, state.weights, given))
        if self.plan.dtype != "float64":  # else JAX may be told to compute it in float32 at any time
            if len(state.ready) >= MOST_SHAPES:
                state.ready.clear()
            state.ready[(*map(_class_shape_dtype, given),)] = PATIENCE if _is_awaited() else 0
        return results

    def _finished(
        self, state: State, tensors: tuple[Tensor, ...], begun: tuple[tuple[Tensor, ...], Tensor | None]
    ) -> tuple[Tensor, ...]:
        functions, (results, total) = state.functions, begun
        for index, rows in functions.tables:
            primitives.check_ids(tensors[index], rows)
        if total is not None and not np.isfinite(total):
            return functions.careful(state.weights, tensors)  # a NaN may have reached who must not see it
        return results

    def _unchanged(self, state: State) -> bool:
        return state.holds(self.source.marks())

    def steps(self, layout: DecodingLayout, rows: int) -> Steps | None:
        """The compiled steps of a generation in so many rows, all of one moment of the model.

        None where the model itself generates.
        """
        state = self.current()
        if state.departure:
            return None
        single = rows == 1
        steps = state.functions.steps(layout, single=single)
        weights = state.arrays_of(steps.keys, self.source)
        if not single or state.narrow is not None:  # narrow weights would be kept in two orders
            return Steps(steps, weights, steps, weights, lambda: state.stepped(single, weights))
        longer = state.functions.steps(layout, single=False)
        own = state.arrays_of(longer.keys, self.source)
        return Steps(steps, weights, longer, own, lambda: state.stepped(single, weights))

    def __reduce__(self) -> tuple[Any, ...]:
        make, model = self.source.made_with()
        return make, (*model, self._dtype)  # what is derived is derived anew, from a copied model

    @property
    def departure(self) -> str:
        """What makes the model another than its plan says, or nothing."""
        return self.current().departure

    @jax.ensure_compile_time_eval()  # somebody else's function may be under way
    def _derived(self, before: State | None) -> State:
        marks, departure = self.source.look()  # before anything is read
        if departure:
            return State(marks, departure, np.dtype(np.float32), None, None)
        parameters = self.source.parameters()
        dtype = np.dtype(
            next(iter(parameters.values())).array.dtype if parameters else jnp.dtype(self.plan.dtype)
        )
        narrow = None if self._dtype is None or jnp.dtype(self._dtype) == dtype else jnp.dtype(self._dtype)
        functions = functions_of(self.prepared, dtype, narrow)
        state = State(marks, "", dtype, narrow, functions)
        state.weights = state.arrays_of(functions.keys, self.source)
        return state


def refuse_training(name: str) -> NoReturn:
    """E_ARGUMENT: no model of Flax is prepared for training; the backend has this name."""
    raise IsomorphError(
        "E_ARGUMENT",
        f"training=True is for models of PyTorch, got one of {name}",
        hints=["compile its training step as a whole, its state donated: jax.jit(step, donate_argnums=0)"],
    )


def _computed(function: Any, weights: Sequence[Tensor], tensors: Sequence[Tensor]) -> Any:
    """What a compiled function gives, as numbers also where somebody else's function is being traced."""
    with suppress(ValueError):  # options of the compiler are not for a function inside another one
        outputs = function(weights, tensors)
        if not isinstance(outputs[0][0], Tracer):
            return outputs
    with jax.ensure_compile_time_eval():
        return function(weights, tensors)


PATIENCE = 3
"""How often in a row results of a kind may be late before they are not waited for any more."""
_SOON = 40e-6  # seconds


@cache
def _is_awaited() -> bool:
    """Whether there is a processor to wait on while another one computes."""
    if jax.default_backend() != "cpu":
        return False
    usable = getattr(os, "sched_getaffinity", None)
    return (len(usable(0)) if usable else os.cpu_count() or 1) > 1


def _awaited(result: Tensor, patience: int) -> int:
    """Wait for a result that comes at once; how much patience is left.

    Who asks for it too early sleeps, and waking takes longer than a small network computes.
    """
    late = perf_counter() + _SOON
    is_ready: Any = getattr(result, "is_ready", lambda: True)  # not of every version's public interface
    while not is_ready():
        if perf_counter() > late:
            return patience - 1
    return PATIENCE


class State:
    """A model at one moment, and what was derived from it.

    Attributes:
        departure: what makes the model another than its plan says; then nothing is derived.
        dtype: the model's.
        narrow: that of products, None for the model's.
        functions: the compiled functions of its plan.
        weights: the derived weights in the order of ``functions.keys``.
        ready: by classes, shapes and dtypes of inputs that were found to be right, how often in a row their
            results may still be late before they are not waited for any more.
    """

    functions: Functions
    weights: tuple[Tensor, ...]

    def __init__(
        self, marks: Sequence[Any], departure: str, dtype: Any, narrow: Any, functions: Functions | None
    ) -> None:
        self._marks, self.departure, self.dtype, self.narrow = marks, departure, dtype, narrow
        self._arrays: dict[tuple[Kept, bool], Tensor] = {}
        self.ready: dict[Any, int] = {}
        self._uses = {True: Uses(), False: Uses()}
        if functions is not None:
            self.functions = functions

    def holds(self, marks: Sequence[Any]) -> bool:
        """Whether the model still holds what it held."""
        return len(marks) == len(self._marks) and all(map(is_, marks, self._marks))

    def stepped(self, single: bool, weights: Sequence[Tensor]) -> None:
        """Another id of each row was read, of a single row or of several."""
        if self._uses[single].pays():
            for array in weights:
                with suppress(ValueError, jax.errors.JaxRuntimeError):  # an array in several places
                    if {device.platform for device in array.devices()} == {"cpu"}:
                        in_large_pages(array.unsafe_buffer_pointer(), array.nbytes)

    def arrays_of(self, keys: Mapping[Kept, bool], source: Source) -> tuple[Tensor, ...]:
        """The arrays behind keys, each computed once; a product's in the narrow dtype."""
        missing = [entry for entry in keys.items() if entry not in self._arrays]
        if missing:
            parameters = source.parameters()
            for kept, narrow in missing:
                dtype = self.dtype if self.narrow is None or not narrow else self.narrow
                self._arrays[kept, narrow] = made_of(kept, parameters, dtype)
        return tuple(self._arrays[entry] for entry in keys.items())


class Functions:
    """The compiled functions of a plan, for all engines of equal plans: weights are arguments.

    Attributes:
        keys: the derived weights that they take, in order; True for those of products alone.
        tables: inputs whose ids are looked up in a table, with its rows.
        fast: from weights and inputs to outputs, and the sum of all causal attention, None without any:
            products multiply what a query may not see by zero, which lets a NaN through; then the sum is
            not finite.
        careful: the outputs alone, where nothing is let through.
    """

    def __init__(self, prepared: PreparedPlan, dtype: Any, narrow: Any) -> None:
        self._plan, self._dtype, self._narrow = prepared.plan, dtype, narrow
        self._contracts, self._places = prepared.contracts, prepared.places
        self.keys: dict[Kept, bool] = {}
        program = rewritten(trace(self._plan), largest=LARGEST)
        collect(program, self.keys, self._inputs_first)
        self.tables = tables_read(program)
        self.fast = jax.jit(self._fast, compiler_options=dict(writer.compiler_options()))
        self.careful = jax.jit(self._careful)  # it may stand inside somebody else's compiled function
        self._steps: dict[bool, EngineSteps] = {}

    def steps(self, layout: DecodingLayout, *, single: bool) -> EngineSteps:
        """The compiled steps of generation, for one row or for several."""
        if single not in self._steps:
            first, largest = ((lambda _: False), inf) if single else (self._inputs_first, LARGEST)
            self._steps[single] = EngineSteps(layout, self._dtype, self._narrow is not None, first, largest)
        return self._steps[single]

    def _inputs_first(self, weight: Weight) -> bool:
        """How a product's weight is kept: a lone parameter as the model holds it, so that memory is shared."""
        return not isinstance(weight, derived.Stored) or self._places[weight.path].transposed

    def _fast(
        self, weights: Sequence[Tensor], tensors: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        sums: list[Tensor] = []
        results = self._composed(weights, tensors, sums)
        return results, sum(sums[1:], sums[0]) if sums else None

    def _careful(self, weights: Sequence[Tensor], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self._composed(weights, tensors, None)

    def _composed(
        self, weights: Sequence[Tensor], tensors: Sequence[Tensor], sums: list[Tensor] | None
    ) -> tuple[Tensor, ...]:
        program = rewritten(trace(self._plan, self._contracts.check(tensors)), largest=LARGEST)
        writer = JaxWriter(self.keys, weights, self._dtype, self._narrow is not None, sums=sums)
        with broadcasting():
            return defined(compose(program, writer), writer.scope)(*tensors)


@lru_cache(maxsize=SHARED)
def functions_of(prepared: PreparedPlan, dtype: Any, narrow: Any) -> Functions:
    """The functions of a plan or of one equal to it."""
    return Functions(prepared, dtype, narrow)
