"""Sizes, inputs and weights to try a plan with."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from isomorph.dimensions import evaluate
from isomorph.plan import Bound, Plan
from isomorph.weights.initial import numpy_dtype

Array = np.ndarray[Any, Any]


def sample_sizes(plan: Plan) -> list[dict[str, int]]:
    """Values for the symbols: small and different; all 1; all 0. Each within what the plan allows."""
    small = {symbol: (2, 5, 3, 4, 6)[i % 5] for i, symbol in enumerate(plan.symbols)}
    wanted = [small, dict.fromkeys(small, 1), dict.fromkeys(small, 0)]
    choices = []
    for sizes in wanted:
        allowed = {symbol: _within(plan.bounds.get(symbol, Bound()), size) for symbol, size in sizes.items()}
        if allowed not in choices:
            choices.append(allowed)
    return choices


def _within(bound: Bound, size: int) -> int:
    return max(bound.low, size if bound.high is None else min(size, bound.high))


def sample_inputs(plan: Plan, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """An array for every input: N(0, 1) in the input's dtype, ids that every table on their way has, masks.

    Args:
        plan: the network.
        sizes: a value for every symbol of its inputs.
        seed: equal seeds give equal arrays.

    A mask is True in about 7 places of 10, and is never wholly True or wholly False where it has two
    elements. Floating-point inputs are rounded to the plan's dtype (bfloat16 to float32).
    """
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name, value in plan.inputs:
        shape = tuple(evaluate(size, sizes) for size in plan.values[value].shape)
        dtype = plan.values[value].dtype
        if dtype == "bool":
            arrays[name] = _mask(rng, shape)
        elif dtype.startswith("int"):
            arrays[name] = rng.integers(0, _table_rows(plan, value), size=shape, dtype=dtype)
        else:
            arrays[name] = rounded(rng.standard_normal(shape), dtype)
    return arrays


def _mask(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    mask = rng.random(shape) < 0.7
    if mask.size > 1:
        mask.flat[0], mask.flat[-1] = True, False
    return mask


def _table_rows(plan: Plan, value: int) -> int:
    """Rows of the smallest table that integers of ``value`` index, on whatever way; 2 if none."""
    reached, rows = {value}, []
    for node in plan.nodes:
        if any(
            source in reached and plan.values[source].dtype.startswith("int") for _, source in node.inputs
        ):
            reached.update(node.outputs)
            rows += [p.shape[0] for p in node.operator.all_parameters.values() if p.axes[:1] == ("vocab",)]
    return min(rows, default=2)


def order_one_weights(plan: Plan, seed: int = 0) -> dict[str, Array]:
    """Every parameter at order one, so that losing any of them shows: gains, biases and layer scales too.

    Vectors and tables of vectors are drawn from N(0, 1), other matrices and kernels from N(0, 1/fan_in),
    which keeps activations at order one. Rounded to the plan's dtype (bfloat16 to float32).
    """
    weights = {}
    for parameter in plan.parameters:
        rng = np.random.default_rng([seed, zlib.crc32(parameter.path.encode())])
        table = parameter.axes[:1] in (("vocab",), (None,))
        fan_in = 1 if table or len(parameter.shape) < 2 else prod(parameter.shape[1:])
        weights[parameter.path] = rounded(rng.standard_normal(parameter.shape) * fan_in**-0.5, plan.dtype)
    return weights


def rounded(array: Array, dtype: str) -> Array:
    """Values that the dtype holds, in that dtype (bfloat16's in float32, which NumPy has itself)."""
    nearest = array.astype(numpy_dtype(dtype))
    return nearest.astype("float32") if dtype == "bfloat16" else nearest
