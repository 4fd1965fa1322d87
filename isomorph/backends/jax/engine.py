"""Prepared inference in JAX, for both Flax backends: a plan's rewritten program, compiled.

While JAX traces the engine for some sizes, the plan is traced at them and its rewritten program is run on JAX's
values, so that JAX keeps one compiled function for each set of sizes. Weights are derived once and passed as
arguments. See :mod:`isomorph.backends.trace.rewrite` for what is rewritten.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from math import inf, prod
from operator import attrgetter, is_
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.core import Tracer

from isomorph.backends.contract import DTYPE_KINDS
from isomorph.backends.decoding import Layout, symbol_sizes
from isomorph.backends.engine import Read, Writer, compose, defined, keywords, shape_text, tables_read
from isomorph.backends.jax import primitives
from isomorph.backends.jax.build import KINDS, PreparedPlan, require_x64
from isomorph.backends.jax.decoding import CompiledSteps, JaxMemory
from isomorph.backends.memory import Reading, in_large_pages
from isomorph.backends.trace import derived
from isomorph.backends.trace.build import trace
from isomorph.backends.trace.derived import Weight
from isomorph.backends.trace.rewrite import Op, Rewritten, rewritten
from isomorph.backends.trace.steps import fixed_program, rows_at, step_programs

Tensor = jax.Array
MOST_SHAPES = 64
"""How many shapes and dtypes of inputs are remembered as right."""
LARGEST = 1 << 18
"""Numbers of a weight up to which it is joined with others: among larger products the compiler loses no time."""
SHARED = 32
"""How many plans keep their compiled functions when the last engine of theirs is gone."""


_class_shape_dtype = attrgetter("__class__", "shape", "dtype")


class Held(NamedTuple):
    """A parameter as a model holds it: an array, and whether it is the transpose of the plan's."""

    array: Tensor
    transposed: bool


class Source(Protocol):
    """The model behind an engine."""

    @property
    def model(self) -> Any: ...

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


class Engine:
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
        self.plan, self.prepared = prepared.plan, prepared
        self._contracts, self.source, self._dtype = prepared.contracts, source, dtype
        self._names = [name for name, _ in self.plan.outputs]
        self._float_inputs = tuple(
            i for i, value in enumerate(self._contracts.values) if DTYPE_KINDS[value.dtype] == "float"
        )
        self._lock = Lock()
        self._told: set[str] = set()
        with jax.ensure_compile_time_eval():
            self._state = self._derived()

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        state = self._state
        try:
            kind = None if named else (*map(_class_shape_dtype, inputs),)
            known = kind is not None and kind in state.ready
        except (AttributeError, TypeError):  # what is no array is refused below
            kind, known = None, False
        results = self._begun(state, inputs, kind) if known else None
        if results is None:
            results = self._checked(inputs, named)
        if not isinstance(results, tuple):
            return results
        if len(results) == 1:
            return results[0]
        return dict(zip(self._names, results, strict=True))

    def _begun(
        self, state: State, tensors: tuple[Tensor, ...], kind: tuple[Any, ...] | None
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
        if state.ready.get(kind):
            state.ready[kind] = _awaited(begun[0][-1], state.ready[kind])
        return self._finished(state, tensors, begun)

    def _checked(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The results as a tuple, or what the model itself gives."""
        tensors = self._contracts.bind(inputs, named)
        for index, tensor in enumerate(tensors):
            if isinstance(tensor, np.ndarray):
                tensors[index] = jnp.asarray(tensor)
            elif not isinstance(tensor, Tensor):
                self.prepared.ready(tensors, {}, None)  # says which input is none
        self._contracts.check(tensors)
        state = self.current()
        if state.departure:
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

    def current(self) -> State:
        """What was derived from the model as it is now; prepared anew if it changed since."""
        state = self._state
        if not state.departure and state.holds(self.source.marks()):
            return state
        with self._lock:
            state = self._state
            if state.departure or not state.holds(self.source.marks()):
                with jax.ensure_compile_time_eval():  # somebody else's function may be under way
                    state = self._state = self._derived()
        if state.departure and state.departure not in self._told:
            self._told.add(state.departure)
            warnings.warn(
                f"isomorph: the prepared model calls the model itself, since {state.departure}; "
                "it is faster again when that is undone",
                RuntimeWarning,
                stacklevel=4,
            )
        return state

    def steps(self, layout: Layout, rows: int, slots: int) -> tuple[EngineSteps, tuple[Tensor, ...]]:
        """The compiled steps of a generation of so many ids in so many rows, and their weights."""
        state = self.current()
        steps = state.functions.steps(layout, single=rows == 1)
        weights = state.arrays_of(steps.keys, self.source)
        state.generating(weights, slots)
        return steps, weights

    def reading_steps(self, layout: Layout, rows: int) -> tuple[EngineSteps, tuple[Tensor, ...]] | None:
        """Those for several positions at once, where others are faster and take weights that are there anyway."""
        state = self.current()
        if rows > 1 or state.narrow is not None:
            return None
        steps = state.functions.steps(layout, single=False)
        return steps, state.arrays_of(steps.keys, self.source)

    @property
    def departure(self) -> str:
        """What makes the model another than its plan says, or nothing."""
        return self.current().departure

    def _derived(self) -> State:
        marks, found = self.source.look()  # before anything is read
        if found:
            return State(marks, found, np.dtype(np.float32), None, None)
        parameters = self.source.parameters()
        dtype = np.dtype(
            next(iter(parameters.values())).array.dtype if parameters else jnp.dtype(self.plan.dtype)
        )
        narrow = None if self._dtype is None or jnp.dtype(self._dtype) == dtype else jnp.dtype(self._dtype)
        functions = functions_of(self.prepared, dtype, narrow)
        state = State(marks, "", dtype, narrow, functions)
        state.weights = state.arrays_of(functions.keys, self.source)
        return state


def _computed(function: Any, weights: Sequence[Tensor], tensors: Sequence[Tensor]) -> Any:
    """What a compiled function gives, as numbers also where somebody else's function is being traced."""
    with suppress(ValueError):  # options of the compiler are not for a function inside another one
        found = function(weights, tensors)
        if not isinstance(found[0][0], Tracer):
            return found
    with jax.ensure_compile_time_eval():
        return function(weights, tensors)


PATIENCE = 3
_SOON = 40e-6  # seconds


@cache
def _is_awaited() -> bool:
    """Whether there is a processor to wait on while another one computes."""
    return jax.default_backend() == "cpu" and (os.cpu_count() or 1) > 1


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
        self._reading = Reading()
        if functions is not None:
            self.functions = functions

    def holds(self, marks: Sequence[Any]) -> bool:
        """Whether the model still holds what it held."""
        return len(marks) == len(self._marks) and all(map(is_, marks, self._marks))

    def generating(self, weights: Sequence[Tensor], slots: int) -> None:
        """A generation of so many ids from some weights begins."""
        if self._reading.pays(slots) and jax.default_backend() == "cpu":
            for array in weights:
                with suppress(ValueError, jax.errors.JaxRuntimeError):  # an array in several places
                    in_large_pages(array.unsafe_buffer_pointer(), array.nbytes)

    def arrays_of(self, keys: Mapping[Kept, bool], source: Source) -> tuple[Tensor, ...]:
        """The arrays behind keys, each computed once; a product's in the narrow dtype."""
        missing = [entry for entry in keys.items() if entry not in self._arrays]
        if missing:
            parameters = source.parameters()
            for kept, narrow in missing:
                dtype = self.dtype if self.narrow is None or not narrow else self.narrow
                self._arrays[kept, narrow] = _made(kept, parameters, dtype)
        return tuple(self._arrays[entry] for entry in keys.items())


class Kept(NamedTuple):
    """A derived weight as an engine keeps it: ``[O, I]``, or ``[I, O]`` with ``inputs_first``.

    The compiler multiplies one row faster by the former and several rows by the latter.
    """

    weight: Weight
    inputs_first: bool


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
        self.fast = jax.jit(self._fast, compiler_options=dict(_options()))
        self.careful = jax.jit(self._careful)  # it may stand inside somebody else's compiled function
        self._steps: dict[bool, EngineSteps] = {}

    def steps(self, layout: Layout, *, single: bool) -> EngineSteps:
        """The compiled steps of generation, for one row or for several."""
        if single not in self._steps:
            first, largest = ((lambda _: False), inf) if single else (self._inputs_first, LARGEST)
            self._steps[single] = EngineSteps(layout, self._dtype, self._narrow is not None, first, largest)
        return self._steps[single]

    def _inputs_first(self, weight: Weight) -> bool:
        """How a product's weight is kept: a lone parameter as the model holds it, so that memory is shared."""
        return not isinstance(weight, derived.Parameter) or self._places[weight.path].transposed

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
        return defined(compose(program, writer), writer.scope)(*tensors)


@lru_cache(maxsize=SHARED)
def functions_of(prepared: PreparedPlan, dtype: Any, narrow: Any) -> Functions:
    """The functions of a plan or of one equal to it."""
    return Functions(prepared, dtype, narrow)


def collect(program: Rewritten, keys: dict[Kept, bool], inputs_first: Callable[[Weight], bool]) -> None:
    """Add every derived weight that a program reads, and whether products alone read it.

    They are the same at all sizes.
    """
    for op in program.ops:
        if op.weight is not None:
            product = op.kind == "linear"
            keys.setdefault(Kept(op.weight, product and inputs_first(op.weight)), product)
        if op.bias is not None:
            keys.setdefault(Kept(op.bias, False), False)
    for tensor, path in program.parameters.items():
        readers = {op.kind for op in program.ops if tensor in op.reads}
        kept = Kept(derived.Parameter(path), False)
        keys[kept] = keys.get(kept, True) and readers == {"embedding"}  # whose rows are widened again


_PIECE = 1 << 16
"""Numbers of a derived weight that are computed at once: their float64 fits into a cache."""


def _made(kept: Kept, parameters: Mapping[str, Held], dtype: Any) -> Tensor:
    """The array of a key; a lone parameter that is held like this shares the model's memory."""
    weight, inputs_first = kept
    if isinstance(weight, derived.Parameter):
        array, transposed = parameters[weight.path]
        return jnp.asarray(array if transposed == inputs_first else array.T, dtype)
    arithmetic = _Arithmetic(parameters)
    shape = derived.shape(weight, arithmetic)
    made = _aligned(shape[::-1] if inputs_first else shape, np.dtype(dtype))
    by_rows = made.T if inputs_first else made
    rows = max(1, _PIECE // max(1, derived.row_size(weight, arithmetic)))
    for start in range(0, shape[0], rows):
        part = slice(start, min(start + rows, shape[0]))
        by_rows[part] = derived.evaluate(weight, arithmetic, part)
    return jax.device_put(made)


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array whose memory JAX takes over as it is."""
    size = prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


_ALIGNMENT = 64


class _Arithmetic:
    """Derived weights in NumPy, which has float64 whatever JAX is set to."""

    def __init__(self, parameters: Mapping[str, Held]) -> None:
        self._parameters = parameters

    def parameter(self, path: str) -> Any:
        array, transposed = self._parameters[path]
        found = np.asarray(array)
        return found.T if transposed else found

    def wide(self, array: Any) -> Any:
        return array.astype(np.float64)

    def times(self, array: Any, factor: Any) -> Any:
        found = self.wide(array)
        found *= factor
        return found

    def apply(self, matrix: Any, vector: Any) -> Any:
        return self.wide(matrix) @ vector

    def zeros(self, size: int) -> Any:
        return np.zeros(size)

    def join(self, arrays: list[Any]) -> Any:
        return np.concatenate(arrays)


@cache
def _options() -> tuple[tuple[str, Any], ...]:
    """Compiler options that help, as far as this version of the compiler knows them."""
    if jax.default_backend() != "cpu":
        return ()
    known = []
    for option in (("xla_cpu_prefer_vector_width", 512),):
        try:
            jax.jit(lambda x: x, compiler_options=dict([option])).lower(0).compile()
        except jax.errors.JaxRuntimeError:
            continue
        known.append(option)
    return tuple(known)


class JaxWriter(Writer):
    """See :class:`isomorph.backends.engine.Writer`.

    Args:
        keys: the derived weights.
        weights: their arrays, in the same order.
        dtype: the model's.
        narrow: whether products take a narrower dtype than the rest.
        sums: a list that the sum of every causal attention is added to; without one, attention keeps what
            is not finite from who must not see it.
        remembering: whether causal attention and positions are those of a memory, the argument ``M``.
    """

    def __init__(
        self,
        keys: Mapping[Kept, bool],
        weights: Sequence[Tensor],
        dtype: Any,
        narrow: bool,
        *,
        sums: list[Tensor] | None = None,
        remembering: bool = False,
    ) -> None:
        self._places = {kept: place for place, kept in enumerate(keys)}
        self._dtype, self._remembering, self._summing = dtype, remembering, sums is not None
        self._calls = 0
        self.scope: dict[str, Any] = {
            "P": primitives, "W": weights, "product": product, "heads": heads, "jnp": jnp,
            "S": sums, "summed": summed,
            "attend": attend_narrow if narrow else attend,
        }  # fmt: skip

    def parameter(self, path: str) -> str:
        return self.weight(derived.Parameter(path))

    def weight(self, weight: Weight | None) -> str:
        return "None" if weight is None else f"W[{self._places[Kept(weight, False)]}]"

    def _embedding(self, op: Op, read: Read, program: Rewritten) -> str:
        return f"P.embedding({', '.join(map(read, op.inputs))}).astype({self._dtype.name!r})"

    def _reshape(self, op: Op, read: Read, program: Rewritten) -> str:
        return f"{read(op.inputs[0])}.reshape({shape_text(program.shapes[op.outputs[0]])})"

    def _expand(self, op: Op, read: Read, program: Rewritten) -> str:
        return f"P.expand({read(op.inputs[0])}, {shape_text(program.shapes[op.outputs[0]])})"

    def _cos_sin(self, op: Op, read: Read, program: Rewritten) -> str:
        like = f"jnp.zeros(0, {self._dtype.name!r})"
        owner = "M" if self._remembering else "P"
        return f"{owner}.cos_sin({op.attributes['length']}, {op.attributes['frequencies']!r}, {like})"

    def _positions(self, op: Op, read: Read, program: Rewritten) -> str:
        owner = "M" if self._remembering else "P"
        return f"{owner}.positions({read(op.inputs[0])}, {op.attributes['length']})"

    def _heads(self, op: Op, read: Read, program: Rewritten) -> str:
        shape, parts = op.attributes["shape"], op.attributes["parts"]
        return f"heads({read(op.inputs[0])}, {shape_text(shape)}, {parts})"

    def _layer_norm(self, op: Op, read: Read, program: Rewritten) -> str:
        x, weight, bias = self._norm(op, read)
        return f"P.layer_norm({x}, {weight}, {bias}, eps={op.attributes['eps']!r})"

    def _attention(self, op: Op, read: Read, program: Rewritten) -> str:
        told = {name: value for name, value in op.attributes.items() if name != "mask"}
        tensors = ", ".join(map(read, op.inputs))
        if self._remembering and told["causal"]:
            del told["causal"]
            call, self._calls = self._calls, self._calls + 1
            return f"M.attend({call}, {tensors}{keywords(told)})"
        hides = bool(told["causal"] or told["window"])
        if op.attributes["mask"] or (hides and not self._summing):
            return f"P.attention({tensors}{keywords(told)})"
        text = f"attend({tensors}{keywords(told)})"
        return f"summed({text}, S)" if hides else text

    def _linear(self, op: Op, read: Read, program: Rewritten) -> str:
        if op.weight is None:
            return f"P.linear({', '.join(map(read, op.inputs))})"
        place = self._places.get(Kept(op.weight, True))
        weight, axis = (self.weight(op.weight), 1) if place is None else (f"W[{place}]", 0)
        text = f"product({read(op.inputs[0])}, {weight}, {self.weight(op.bias)}, {axis})"
        if op.activation is not None:
            name, attributes = op.activation
            return f"P.{name}({text}{keywords(dict(attributes))})"
        return text if op.residual is None else f"{text} + {read(op.residual)}"


def summed(x: Tensor, sums: list[Tensor]) -> Tensor:
    """The tensor, its sum added to a list; a sum too large to represent is not finite either."""
    sums.append(x.astype(jnp.promote_types(x.dtype, jnp.float32)).sum())
    return x


def product(x: Tensor, weight: Tensor, bias: Tensor | None, axis: int) -> Tensor:
    """``x`` times a weight along its ``axis``, plus a bias.

    A narrow weight makes the product narrow, and the result is as wide as ``x``.
    """
    if weight.dtype == x.dtype:
        axes = (((x.ndim - 1,), (axis,)), ((), ()))
        out = lax.dot_general(x, weight, axes, precision=primitives.PRECISION)
    else:
        narrow = x.astype(weight.dtype).reshape(-1, x.shape[-1])
        single = len(narrow) == 1  # the CPU compiler has a kernel for two rows, and a slow loop for one
        rows = jnp.repeat(narrow, 2, 0) if single else narrow
        axes = (((1,), (axis,)), ((), ()))
        out = lax.dot_general(rows, weight, axes, preferred_element_type=x.dtype)
        out = (out[:1] if single else out).reshape(*x.shape[:-1], out.shape[1])
    return out if bias is None else out + bias


def heads(x: Tensor, shape: tuple[int, int, int, int], parts: int) -> tuple[Tensor, ...]:
    """``[B, T, n * H * d]`` as n times ``[B, H, T, d]``."""
    B, T, H, d = shape
    split = x.reshape(B, T, parts, H, d)
    return tuple(jnp.swapaxes(split[:, :, part], 1, 2) for part in range(parts))


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int, softcap: float) -> Tensor:
    """Attention without a mask; who calls it looks whether the results are finite, see :func:`summed`."""
    if k.shape[2] == 0:
        return jnp.zeros_like(q)
    return primitives.attend_in_blocks(
        q, k, v, None, causal=causal, window=window, softcap=softcap, adding=True
    )


def attend_narrow(q: Tensor, k: Tensor, v: Tensor, **told: Any) -> Tensor:
    """The same with products of half precision; the softmax stays wide."""
    narrow = (tensor.astype(jnp.bfloat16) for tensor in (q, k, v))
    return attend(*narrow, **told).astype(q.dtype)


class EngineSteps(CompiledSteps):
    """Steps of generation from a prepared model's weights."""

    def __init__(
        self,
        layout: Layout,
        dtype: Any,
        narrow: bool,
        inputs_first: Callable[[Weight], bool],
        largest: float,
    ) -> None:
        super().__init__(layout, dict(_options()))
        self._largest = largest
        self.keys: dict[Kept, bool] = {}
        self._dtype, self._narrow = dtype, narrow
        for length in (1, 2):  # whatever the length, these are all the weights
            programs = step_programs(layout, rows_at(layout, {}), length, {}, padded=True, largest=largest)
            collect(programs.mixing, self.keys, inputs_first)
            collect(programs.scoring, self.keys, inputs_first)
        inputs = [layout.plan.inputs[index][1] for index in layout.others]
        made = [output for node in layout.fixed for output in node.outputs]
        collect(fixed_program(layout, {}, inputs, made, largest=largest), self.keys, inputs_first)

    def _fixed(self, parameters: Any, inputs: Mapping[int, Tensor]) -> dict[int, Tensor]:
        layout = self.layout
        sizes = symbol_sizes(layout, inputs, KINDS)
        wanted = [output for node in layout.fixed for output in node.outputs]
        program = fixed_program(layout, sizes, list(inputs), wanted, largest=self._largest)
        made = self._run(program, parameters, None, list(inputs.values()))
        return {**inputs, **dict(zip(wanted, made, strict=True))}

    def _scores(
        self, parameters: Any, memory: JaxMemory, ids: Tensor, fixed: Mapping[int, Tensor], *, wanted: bool
    ) -> Tensor | None:
        rows, length = ids.shape
        inputs = {v: fixed[v] for _, v in self.layout.plan.inputs if v in fixed}
        sizes = symbol_sizes(self.layout, inputs, KINDS)
        programs = step_programs(self.layout, rows, length, sizes, padded=True, largest=self._largest)
        before, after = programs.fixed
        kept = self._run(programs.mixing, parameters, memory, [ids, *[fixed[v] for v in before]])
        if not wanted:
            return None
        last = [
            lax.slice_in_dim(x, length - 1, length, axis=axis)
            for x, (_, axis) in zip(kept, self.layout.kept, strict=True)
        ]
        (logits,) = self._run(programs.scoring, parameters, memory, [*last, *[fixed[v] for v in after]])
        return logits[:, 0]

    def _run(self, program: Rewritten, weights: Any, memory: Any, tensors: Sequence[Any]) -> Any:
        writer = JaxWriter(self.keys, weights, self._dtype, self._narrow, remembering=memory is not None)
        return defined(compose(program, writer, leading=["M"]), writer.scope)(memory, *tensors)
