"""Initial weights of a plan, the same for every backend.

Each parameter has a random stream of its own: NumPy's Philox generator with a key made of the seed and the
parameter's path. So nothing depends on the order of parameters, on what else a plan holds, or on how many
threads draw. Values are drawn in float64 and rounded once, which makes a float64 plan's weights those of the
float32 plan with more digits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from math import prod, sqrt
from numbers import Integral
from typing import Any

import numpy as np

from isomorph.errors import IsomorphError, shorten
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
from isomorph.plan import Parameter, Plan

CHUNK = 1 << 18
"""Elements drawn at a time: 2 MiB of float64, which stay in the cache until they are rounded."""

SEED_LIMIT = 1 << 128
"""Seeds are below: as many bits as operating systems give entropy in, and few enough to write out."""

CUT_STD = 0.8796256610342398
"""Deviation of N(0, 1) cut at -2 and 2: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1))."""

Fill = Callable[[np.random.Generator, np.ndarray], None]


def initial_weights(plan: Plan, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw every parameter of a plan.

    Args:
        plan: the network.
        seed: an integer from 0 to 2**128 - 1.

    Returns:
        Arrays of the plan's dtype (bfloat16 as ``ml_dtypes.bfloat16``) by parameter path, in the plan's
        order. The same seed and path give the same array in every process.

    Raises:
        IsomorphError: E_ARGUMENT for a seed that is no such integer, for a scheme that needs more axes than
            its parameter has, or for a value that the plan's dtype does not hold.
    """
    Plan.expect(plan)
    check_seed(seed)
    parameters = plan.parameters
    if plan.parameter_count < CHUNK:  # threads would cost more than they save
        return {parameter.path: draw(parameter, int(seed)) for parameter in parameters}
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the generators let go of the interpreter lock
        arrays = pool.map(lambda parameter: draw(parameter, int(seed)), parameters)
        return {parameter.path: array for parameter, array in zip(parameters, arrays, strict=True)}


def check_seed(seed: object) -> None:
    """E_ARGUMENT unless a seed is an integer from 0 to 2**128 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise IsomorphError("E_ARGUMENT", f"seed must be an int >= 0, got {shorten(seed)}")
    if int(seed) >= SEED_LIMIT:
        raise IsomorphError("E_ARGUMENT", f"seed must be below 2**128, got {shorten(seed)}")


def draw(parameter: Parameter, seed: int) -> np.ndarray:
    """One parameter's initial array."""
    initial, shape = parameter.initial, parameter.shape
    if len(shape) < initial.minimum_rank:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{parameter.path}: {initial.scheme} needs at least {initial.minimum_rank} axes, the shape is "
            f"{list(shape)}",
            hints=["use constant, normal, uniform or truncated_normal"],
        )
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused, and not only warned of
        return _drawn(parameter, numpy_dtype(parameter.dtype), seed)


def _drawn(parameter: Parameter, dtype: np.dtype[Any], seed: int) -> np.ndarray:
    initial, shape = parameter.initial, parameter.shape
    if isinstance(initial, Constant):
        _require_finite(np.full(1, initial.value, dtype), parameter)
        return np.full(shape, initial.value, dtype)
    generator = _generator(seed, parameter.path)
    if isinstance(initial, Orthogonal):
        array = _orthogonal(generator, shape, initial.gain).astype(dtype)
        _require_finite(array, parameter)
        return array
    fill = _filler(initial, shape)
    array = np.empty(prod(shape), dtype)
    buffer = np.empty(min(array.size, CHUNK))
    for start in range(0, array.size, CHUNK):
        part = buffer[: min(CHUNK, array.size - start)]
        fill(generator, part)
        rounded = array[start : start + part.size]
        rounded[...] = part
        _require_finite(rounded, parameter)
    return array.reshape(shape)


def _require_finite(array: np.ndarray, parameter: Parameter) -> None:
    """E_ARGUMENT when a distribution reaches beyond what the parameter's dtype holds."""
    if not np.isfinite(array).all():
        raise IsomorphError(
            "E_ARGUMENT",
            f"{parameter.path}: {parameter.initial} reaches beyond the largest {parameter.dtype}",
            hints=["give init smaller numbers, or resolve with a wider dtype"],
        )


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a plan's dtype."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """``(fan_in, fan_out)``: the sizes of the second and first axis, each times the receptive field."""
    field = prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _generator(seed: int, path: str) -> np.random.Generator:
    key = sha256(f"{seed}:{path}".encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def _filler(initial: Initializer, shape: tuple[int, ...]) -> Fill:
    """How to fill a float64 buffer with the next values of a distribution."""
    if isinstance(initial, Normal):
        return _normal(initial.mean, initial.std)
    if isinstance(initial, Uniform):
        return _uniform(initial.low, initial.high)
    if isinstance(initial, TruncatedNormal):
        return _truncated_normal(initial.mean, initial.std)
    fan_in, fan_out = fans(shape)
    if isinstance(initial, XavierUniform):
        return _symmetric(initial.gain * sqrt(6 / (fan_in + fan_out)))
    if isinstance(initial, XavierNormal):
        return _normal(0.0, initial.gain * sqrt(2 / (fan_in + fan_out)))
    assert isinstance(initial, KaimingUniform | KaimingNormal), initial
    fan = fan_in if initial.mode == "fan_in" else fan_out
    if isinstance(initial, KaimingUniform):
        return _symmetric(initial.gain * sqrt(3 / fan))
    return _normal(0.0, initial.gain / sqrt(fan))


def _normal(mean: float, std: float) -> Fill:
    def fill(generator: np.random.Generator, out: np.ndarray) -> None:
        generator.standard_normal(out=out)
        out *= std
        out += mean

    return fill


def _uniform(low: float, high: float) -> Fill:
    def fill(generator: np.random.Generator, out: np.ndarray) -> None:
        generator.random(out=out)
        out *= high - low
        out += low

    return fill


def _symmetric(bound: float) -> Fill:
    return _uniform(-bound, bound)


def _truncated_normal(mean: float, std: float) -> Fill:
    def fill(generator: np.random.Generator, out: np.ndarray) -> None:
        generator.standard_normal(out=out)
        outside = np.flatnonzero(np.abs(out) > 2)
        while outside.size:  # 4.6% of what was drawn, each time
            out[outside] = generator.standard_normal(outside.size)
            outside = outside[np.abs(out[outside]) > 2]
        out *= std / CUT_STD
        out += mean

    return fill


def _orthogonal(generator: np.random.Generator, shape: tuple[int, ...], gain: float) -> np.ndarray:
    """Q of a Gaussian matrix's QR decomposition, with signs that make R's diagonal positive.

    Without the signs Q would not be uniformly distributed (Mezzadri, 2007).
    """
    rows, columns = shape[0], prod(shape[1:])
    tall = generator.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q *= np.where(np.diagonal(r) < 0, -gain, gain)
    return (q if rows >= columns else q.T).reshape(shape)
