"""Prepared inference in JAX, for both Flax backends: a plan's rewritten program, compiled.

While JAX traces the engine for some sizes, the plan is traced at them and its rewritten program is run on JAX's
values, so that JAX keeps one compiled function for each set of sizes. Weights are derived once and passed as
arguments. See :mod:`isomorph.engine.rewrite` for what is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from isomorph.backends.decoding import Layout
from isomorph.backends.engine import compose, keywords, shape_text
from isomorph.backends.jax import primitives
from isomorph.backends.jax.build import PreparedPlan
from isomorph.backends.jax.decoding import CompiledSteps, JaxMemory
from isomorph.backends.trace.build import trace
from isomorph.engine import derived
from isomorph.engine.derived import Weight
from isomorph.engine.rewrite import Op, Rewritten, rewritten
from isomorph.engine.steps import fixed_program, step_programs
from isomorph.plan import Plan

Tensor = jax.Array
Read = Callable[[], Mapping[str, Tensor]]
"""The parameters by plan path, in plan layout, as the model has them now."""


class Engine:
    """A model, prepared; takes and returns what the model does.

    Args:
        prepared: the plan and its contracts.
        read: gives the parameters in plan layout.
        marks: gives the arrays that the model holds; if one is another than before, the weights are read again.
        dtype: compute dtype, None for the plan's.
    """

    def __init__(
        self, prepared: PreparedPlan, read: Read, marks: Callable[[], Sequence[Any]], dtype: str | None
    ) -> None:
        self.plan = prepared.plan
        self._contracts, self._read, self._marks = prepared.contracts, read, marks
        self._narrow = None if dtype in (None, self.plan.dtype) else jnp.dtype(dtype)
        self._names = [name for name, _ in self.plan.outputs]
        self._keys: dict[Weight, int] = {}
        self._steps: EngineSteps | None = None
        _run = self._program
        self._inner = jax.jit(_run)  # inside somebody else's compiled function
        self._compiled = jax.jit(_run, compiler_options=dict(_options()))
        self._renew()

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        tensors = self._contracts.bind(inputs, named)
        traced = False
        for index, tensor in enumerate(tensors):
            if isinstance(tensor, np.ndarray):
                tensors[index] = jnp.asarray(tensor)
            elif not isinstance(tensor, Tensor):
                return self._refuse(tensors)
            traced = traced or isinstance(tensor, jax.core.Tracer)
        self._contracts.check(tensors)
        self.refresh()
        results = (self._inner if traced else self._compiled)(self._weights, tensors)
        if len(results) == 1:
            return results[0]
        return dict(zip(self._names, results, strict=True))

    def _refuse(self, tensors: Sequence[Any]) -> Any:
        from isomorph.backends.jax.build import prepared

        return prepared(self.plan).ready(tensors, {}, None)  # says which input is none

    def refresh(self) -> None:
        """Read the weights again if the model holds another array than before."""
        for now, before in zip(self._marks(), self._marked, strict=True):
            if now is not before:
                self._renew()
                return

    def steps(self, layout: Layout) -> tuple[EngineSteps, tuple[Tensor, ...]]:
        """The compiled steps of generation, and their weights."""
        if self._steps is None:
            self._steps = EngineSteps(layout, self._narrow is not None)
        return self._steps, self._arrays_of(self._steps.keys)

    def _renew(self) -> None:
        self._marked = list(self._marks())
        self._arrays: dict[Weight, Tensor] = {}
        if not self._keys:
            collect(rewritten(trace(self.plan)), self._keys)
        self._weights = self._arrays_of(self._keys)

    def _arrays_of(self, keys: Mapping[Weight, int]) -> tuple[Tensor, ...]:
        """The values of expressions, each computed once."""
        missing = [weight for weight in keys if weight not in self._arrays]
        if missing:
            parameters = self._read()
            model = next(iter(parameters.values())).dtype
            arithmetic = _Arithmetic(parameters)
            for weight in missing:
                self._arrays[weight] = _stored(derived.evaluate(weight, arithmetic), model, self._narrow)
        return tuple(self._arrays[weight] for weight in keys)

    def _program(self, weights: Sequence[Tensor], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        sizes = self._contracts.check(tensors)
        program = rewritten(trace(self.plan, sizes))
        writer = JaxWriter(self._keys, weights, self._narrow is not None)
        scope = writer.scope
        exec(compile(compose(program, writer), f"<prepared {self.plan!r}>", "exec"), scope)
        return scope["run"](*tensors)


def collect(program: Rewritten, keys: dict[Weight, int]) -> None:
    """Give every derived weight that a program reads a place; they are the same at all sizes."""
    for op in program.ops:
        for weight in (op.weight, op.bias):
            if weight is not None:
                keys.setdefault(weight, len(keys))
    for path in program.parameters.values():
        keys.setdefault(derived.Parameter(path), len(keys))


def _stored(array: Tensor, model: Any, narrow: Any) -> Tensor:
    """In the dtype that it is used in: matrices in the narrow one, vectors in the model's."""
    if narrow is not None and array.ndim == 2:
        return jnp.asarray(array, narrow)
    return jnp.asarray(array, model)


class _Arithmetic:
    """Derived weights in NumPy, which has float64 whatever JAX is set to."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters

    def parameter(self, path: str) -> Any:
        return self._parameters[path]

    def wide(self, array: Any) -> Any:
        return np.asarray(array).astype(np.float64)

    def zeros(self, size: int) -> Any:
        return np.zeros(size)

    def join(self, arrays: list[Any]) -> Any:
        if all(isinstance(array, Tensor) for array in arrays):
            return jnp.concatenate(arrays)
        return np.concatenate([self.wide(array) for array in arrays])


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


class JaxWriter:
    """See :class:`isomorph.backends.engine.Writer`.

    Args:
        keys: the place of each derived weight.
        weights: their arrays.
        narrow: whether products take a narrower dtype than the rest.
        remembering: whether causal attention and positions are those of a memory, the argument ``M``.
    """

    def __init__(
        self,
        keys: Mapping[Weight, int],
        weights: Sequence[Tensor],
        narrow: bool,
        *,
        remembering: bool = False,
    ) -> None:
        self._keys, self._remembering = keys, remembering
        self._calls = 0
        self.scope: dict[str, Any] = {
            "P": primitives, "W": weights, "product": product, "heads": heads, "jnp": jnp,
            "attend": attend_narrow if narrow else attend,
        }  # fmt: skip

    def parameter(self, path: str) -> str:
        return self._weight(derived.Parameter(path))

    def _weight(self, weight: Weight | None) -> str:
        return "None" if weight is None else f"W[{self._keys[weight]}]"

    def expression(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        write = getattr(self, f"_{op.kind}", None)
        if write is not None:
            return write(op, read, program)
        return f"P.{op.kind}({', '.join(map(read, op.inputs))}{keywords(op.attributes)})"

    def _sides(self, op: Op, read: Callable[[int], str]) -> tuple[str, str]:
        tensors = [read(tensor) for tensor in op.inputs]
        left = repr(op.attributes["left"]) if "left" in op.attributes else tensors.pop(0)
        right = repr(op.attributes["right"]) if "right" in op.attributes else tensors.pop(0)
        return left, right

    def _add(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        return " + ".join(self._sides(op, read))

    def _subtract(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        return " - ".join(self._sides(op, read))

    def _multiply(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        return " * ".join(self._sides(op, read))

    def _reshape(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        return f"{read(op.inputs[0])}.reshape({shape_text(program.shapes[op.outputs[0]])})"

    def _expand(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        return f"P.expand({read(op.inputs[0])}, {shape_text(program.shapes[op.outputs[0]])})"

    def _concatenate(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        parts = "".join(f"{read(tensor)}, " for tensor in op.inputs)
        return f"P.concatenate(({parts}), {op.attributes['axis']})"

    def _cos_sin(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        dtype = program.dtypes[op.outputs[0]]
        like = f"jnp.zeros(0, {dtype!r})"
        owner = "M" if self._remembering else "P"
        return f"{owner}.cos_sin({op.attributes['length']}, {op.attributes['frequencies']!r}, {like})"

    def _positions(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        owner = "M" if self._remembering else "P"
        return f"{owner}.positions({read(op.inputs[0])}, {op.attributes['length']})"

    def _heads(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        shape, parts = op.attributes["shape"], op.attributes["parts"]
        return f"heads({read(op.inputs[0])}, {shape_text(shape)}, {parts})"

    def _layer_norm(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        weight, bias = self._weight(op.weight), self._weight(op.bias)
        return f"P.layer_norm({read(op.inputs[0])}, {weight}, {bias}, eps={op.attributes['eps']!r})"

    def _rms_norm(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        return f"P.rms_norm({read(op.inputs[0])}, {self._weight(op.weight)}{keywords(op.attributes)})"

    def _attention(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        told = {name: value for name, value in op.attributes.items() if name != "mask"}
        if self._remembering and told.pop("causal"):
            call, self._calls = self._calls, self._calls + 1
            return f"M.attend({call}, {', '.join(map(read, op.inputs))}{keywords(told)})"
        if op.attributes["mask"]:
            return f"P.attention({', '.join(map(read, op.inputs))}{keywords(told)})"
        return f"attend({', '.join(map(read, op.inputs))}{keywords(told)})"

    def _linear(self, op: Op, read: Callable[[int], str], program: Rewritten) -> str:
        if op.weight is None:
            return f"P.linear({', '.join(map(read, op.inputs))})"
        text = f"product({read(op.inputs[0])}, {self._weight(op.weight)}, {self._weight(op.bias)})"
        if op.activation is not None:
            name, attributes = op.activation
            return f"P.{name}({text}{keywords(dict(attributes))})"
        return text if op.residual is None else f"{text} + {read(op.residual)}"


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``; a narrow weight makes the product narrow, and the result is as wide as ``x``."""
    axes = (((x.ndim - 1,), (1,)), ((), ()))
    if weight.dtype == x.dtype:
        out = lax.dot_general(x, weight, axes, precision=primitives.PRECISION)
    else:
        out = lax.dot_general(x.astype(weight.dtype), weight, axes, preferred_element_type=x.dtype)
    return out if bias is None else out + bias


def heads(x: Tensor, shape: tuple[int, int, int, int], parts: int) -> tuple[Tensor, ...]:
    """``[B, T, n * H * d]`` as n times ``[B, H, T, d]``."""
    B, T, H, d = shape
    split = x.reshape(B, T, parts, H, d)
    return tuple(jnp.swapaxes(split[:, :, part], 1, 2) for part in range(parts))


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int, softcap: float) -> Tensor:
    """Attention without a mask, of keys and values that are finite."""
    if k.shape[2] == 0:
        return jnp.zeros_like(q)
    visible = primitives.visibility(None, q.shape[2], k.shape[2], causal, window)
    return primitives.attend(q, k, v, visible, softcap)


def attend_narrow(q: Tensor, k: Tensor, v: Tensor, **told: Any) -> Tensor:
    """The same with products of half precision; the softmax stays wide."""
    narrow = (tensor.astype(jnp.bfloat16) for tensor in (q, k, v))
    return attend(*narrow, **told).astype(q.dtype)


class EngineSteps(CompiledSteps):
    """Steps of generation from a prepared model's weights."""

    def __init__(self, layout: Layout, narrow: bool) -> None:
        super().__init__(layout, dict(_options()))
        self.keys: dict[Weight, int] = {}
        self._narrow = narrow
        for length in (1, 2):  # whatever the length, these are all the weights
            programs = step_programs(layout, 1, length, {}, padded=True)
            collect(programs.mixing, self.keys)
            collect(programs.scoring, self.keys)
        inputs = [layout.plan.inputs[index][1] for index in layout.others]
        made = [output for node in layout.fixed for output in node.outputs]
        collect(fixed_program(layout, {}, inputs, made), self.keys)

    def _fixed(self, parameters: Any, inputs: Mapping[int, Tensor]) -> dict[int, Tensor]:
        layout, plan = self.layout, self.layout.plan
        sizes = _sizes(plan, inputs)
        wanted = [output for node in layout.fixed for output in node.outputs]
        program = fixed_program(layout, sizes, list(inputs), wanted)
        made = self._run(program, parameters, None, list(inputs.values()))
        return {**inputs, **dict(zip(wanted, made, strict=True))}

    def _scores(
        self, parameters: Any, memory: JaxMemory, ids: Tensor, fixed: Mapping[int, Tensor], *, wanted: bool
    ) -> Tensor | None:
        rows, length = ids.shape
        programs = step_programs(self.layout, rows, length, _sizes(self.layout.plan, fixed), padded=True)
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
        writer = JaxWriter(self.keys, weights, self._narrow, remembering=True)
        exec(compile(compose(program, writer, leading=["M"]), "<step>", "exec"), writer.scope)
        return writer.scope["run"](memory, *tensors)


def _sizes(plan: Plan, tensors: Mapping[int, Any]) -> dict[str, int]:
    """Values of the symbols that the shapes of some of the plan's inputs are."""
    inputs = {value for _, value in plan.inputs}
    return {
        str(symbol): size
        for value, tensor in tensors.items()
        if value in inputs
        for symbol, size in zip(plan.values[value].shape, tensor.shape, strict=True)
        if type(symbol) is not int
    }
