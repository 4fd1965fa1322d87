"""Initial values drawn JAX's own way from a plan's distributions, as functions that Flax calls.

Their values differ from :func:`isomorph.initial_weights`, which all backends share; their distributions
do not.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import jax
from jax import numpy as jnp

from isomorph.initializers import (
    Constant,
    Initializer,
    KaimingNormal,
    KaimingUniform,
    Normal,
    Orthogonal,
    TruncatedNormal,
    Uniform,
    XavierNormal,
    XavierUniform,
)
from isomorph.weights.initial import CUT_STD, fans

Fill = Callable[[Any, tuple[int, ...], Any], jax.Array]
"""``(key, shape, dtype) -> array``: what Flax calls an initialiser."""


def drawing(initial: Initializer, transposed: bool = False) -> Fill:
    """An initialiser for Flax.

    Args:
        initial: the plan's distribution.
        transposed: whether Flax's shape is the plan's reversed. Fans are those of the plan's shape.
    """

    def fill(key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        array = draw(key, initial, tuple(reversed(shape)) if transposed else tuple(shape), dtype)
        return array.T if transposed else array

    return fill


def draw(key: Any, initial: Initializer, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """One parameter in plan layout: drawn in float32 at least, and rounded once."""
    if isinstance(initial, Constant):
        return jnp.full(shape, initial.value, dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    return _draw(key, initial, shape, wide).astype(dtype)


def _draw(key: Any, initial: Initializer, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    if isinstance(initial, Normal):
        return initial.mean + initial.std * jax.random.normal(key, shape, dtype)
    if isinstance(initial, Uniform):
        return _uniform(key, shape, dtype, initial.low, initial.high)
    if isinstance(initial, TruncatedNormal):
        cut = jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)
        return initial.mean + initial.std / CUT_STD * cut
    fan_in, fan_out = fans(shape)
    if isinstance(initial, Orthogonal):
        flat = (shape[0], prod(shape[1:]))
        return jax.nn.initializers.orthogonal(initial.gain)(key, flat, dtype).reshape(shape)
    if isinstance(initial, XavierUniform):
        bound = initial.gain * sqrt(6 / (fan_in + fan_out))
        return _uniform(key, shape, dtype, -bound, bound)
    if isinstance(initial, XavierNormal):
        return initial.gain * sqrt(2 / (fan_in + fan_out)) * jax.random.normal(key, shape, dtype)
    assert isinstance(initial, KaimingUniform | KaimingNormal), initial
    fan = fan_in if initial.mode == "fan_in" else fan_out
    if isinstance(initial, KaimingUniform):
        bound = initial.gain * sqrt(3 / fan)
        return _uniform(key, shape, dtype, -bound, bound)
    return initial.gain / sqrt(fan) * jax.random.normal(key, shape, dtype)


def _uniform(key: Any, shape: tuple[int, ...], dtype: Any, low: float, high: float) -> jax.Array:
    return jax.random.uniform(key, shape, dtype, low, high) if high > low else jnp.full(shape, low, dtype)
