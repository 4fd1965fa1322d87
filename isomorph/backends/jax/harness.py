"""What the harnesses of both Flax backends share: dtypes, derivatives, and NumPy in and out.

A harness calls :func:`run` and :func:`differentiate` with its model as a function of a tree of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from isomorph.backends.available import Evaluation, Gradients
from isomorph.backends.contract import DTYPE_KINDS
from isomorph.backends.jax import primitives
from isomorph.backends.jax.compiling import known_options
from isomorph.backends.jax.weights import to_jax, to_plan
from isomorph.plan import Plan
from isomorph.weights.convert import owned_weights

Apply = Callable[[Any, Mapping[str, jax.Array]], Any]
"""A network as a function of its parameters (a tree) and its inputs by name."""


_QUICK_TO_COMPILE = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""Compiler options for programs that run once: with the usual ones compiling takes six times as long."""


def computing(plan: Plan, dtype: str) -> tuple[Plan, AbstractContextManager[Any]]:
    """The plan with another compute dtype, and the context in which JAX knows it."""
    return replace(plan, dtype=dtype), jax.enable_x64(True) if dtype == "float64" else nullcontext()


def run(plan: Plan, apply: Apply, parameters: Any, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Outputs by name."""
    outputs = _outputs(plan, compiled_quickly(apply)(parameters, tensors(plan, inputs)))
    return {name: to_plan(array) for name, array in outputs.items()}


def differentiate(
    plan: Plan, apply: Apply, parameters: Any, inputs: Mapping[str, Any], cotangents: Mapping[str, Any]
) -> tuple[Any, dict[str, np.ndarray]]:
    """Derivatives of ``sum(output * cotangent)``: a tree like ``parameters``, and by floating-point input."""
    given = tensors(plan, inputs)
    slopes = _slopes(plan, lambda parameters, named, _: apply(parameters, named), given, cotangents)
    of_parameters, of_inputs = slopes(parameters, None)
    return of_parameters, {name: to_plan(array) for name, array in of_inputs.items()}


def noisy_gradients(
    evaluate: Evaluation,
    plan: Plan,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any],
    cotangents: Mapping[str, Any],
    seeds: Iterable[int],
) -> Iterator[Gradients]:
    """Derivatives in float64 of what ``evaluate`` makes of the plan's tensors; one for each seed of its noise."""
    plan, context = computing(plan, "float64")

    def apply(parameters: Any, named: Mapping[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
        given = [named[name] for name, _ in plan.inputs]
        return dict(evaluate(primitives, parameters, given, _Noise(key)))

    def noisy(seed: int) -> Gradients:
        with computing(plan, "float64")[1]:
            of_parameters, of_inputs = slopes(parameters, jax.random.key(seed))
        return Gradients(
            {path: to_plan(array) for path, array in of_parameters.items()},
            {name: to_plan(array) for name, array in of_inputs.items()},
        )

    with context:
        parameters = {path: to_jax(array, "float64") for path, array in owned_weights(plan, weights).items()}
        slopes = _slopes(plan, apply, tensors(plan, inputs), cotangents)
    return map(noisy, seeds)


class _Noise:
    """JAX's :class:`isomorph.backends.available.Noise`."""

    def __init__(self, key: jax.Array) -> None:
        self._key = key

    def random(self, like: jax.Array) -> jax.Array:
        self._key, use = jax.random.split(self._key)
        return jax.random.uniform(use, like.shape, like.dtype, -1.0, 1.0)

    def constant(self, x: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(x)


def _slopes(
    plan: Plan,
    apply: Callable[[Any, Mapping[str, jax.Array], Any], Any],
    given: Mapping[str, jax.Array],
    cotangents: Mapping[str, Any],
) -> Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]:
    """Derivatives of ``sum(output * cotangent)`` as a compiled function of the parameters and a key."""
    floating = {name: x for name, x in given.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    directions = {name: to_jax(array, plan.dtype) for name, array in cotangents.items()}

    def total(parameters: Any, floating: Mapping[str, jax.Array], key: Any) -> jax.Array:
        outputs = _outputs(plan, apply(parameters, {**given, **floating}, key))
        start = jnp.zeros((), plan.dtype)
        return sum(((array * directions[name]).sum() for name, array in outputs.items()), start)

    differentiated = compiled_quickly(jax.grad(total, argnums=(0, 1)))
    return lambda parameters, key: differentiated(parameters, floating, key)


def tensors(plan: Plan, inputs: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Inputs as JAX arrays, floating-point ones in the plan's dtype."""
    kinds = {name: DTYPE_KINDS[plan.values[value].dtype] for name, value in plan.inputs}
    return {
        name: to_jax(array, plan.dtype) if kinds.get(name) == "float" else jnp.array(np.asarray(array))
        for name, array in inputs.items()
    }


def _outputs(plan: Plan, result: Any) -> dict[str, jax.Array]:
    return result if isinstance(result, dict) else {plan.outputs[0][0]: result}


def compiled_quickly(function: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.jit`` for a function that runs once or twice."""
    return jax.jit(function, compiler_options=dict(_options()))


def _options() -> tuple[tuple[str, Any], ...]:
    """The options above, as far as they are known."""
    return known_options(*_QUICK_TO_COMPILE.items())
