"""Rotary position embedding: its frequencies and its rotation (Su et al., 2021)."""

from __future__ import annotations

from math import pi

from isomorph.primitives import Primitives, Tensor

ROPE_SCALINGS = ("none", "linear", "llama3")

# LLaMA 3.1's band limits: https://github.com/meta-llama/llama-models, apply_scaling.
LLAMA3_LOW_FACTOR, LLAMA3_HIGH_FACTOR, LLAMA3_ORIGINAL_LENGTH = 1.0, 4.0, 8192
LLAMA3_BANDS = (LLAMA3_LOW_FACTOR, LLAMA3_HIGH_FACTOR, LLAMA3_ORIGINAL_LENGTH)


def rope_frequencies(
    head_dim: int,
    theta: float,
    scaling: str,
    scale: float,
    bands: tuple[float, float, int] = LLAMA3_BANDS,
) -> tuple[float, ...]:
    """Radians per position for each of the ``head_dim / 2`` pairs: ``theta ** (-2 i / head_dim)``.

    ``linear`` divides all of them by ``scale``; ``llama3`` divides those that make fewer turns than the first
    of ``bands`` over the length that is its third, keeps those that make more than the second, and blends
    those between.
    """
    frequencies = [theta ** (-2.0 * i / head_dim) for i in range(head_dim // 2)]
    if scaling == "linear":
        return tuple(f / scale for f in frequencies)
    if scaling == "llama3":
        return tuple(_llama3(f, scale, *bands) for f in frequencies)
    return tuple(frequencies)


def _llama3(frequency: float, scale: float, low: float, high: float, length: int) -> float:
    turns = length * frequency / (2 * pi)  # full turns over the original context
    if turns < low:
        return frequency / scale
    if turns > high:
        return frequency
    smooth = (turns - low) / (high - low)
    return (1 - smooth) * frequency / scale + smooth * frequency


def rotate(F: Primitives, x: Tensor, frequencies: tuple[float, ...]) -> Tensor:
    """Rotate feature i with feature ``i + d/2`` by position times frequency: ``[B, H, T, d]`` kept."""
    half = len(frequencies)
    cos, sin = (
        F.reshape(table, (*table.shape[:-2], 1, *table.shape[-2:]))  # (1, T, d/2): every head turns alike
        for table in F.cos_sin(x.shape[-2], frequencies, x)
    )
    first, second = F.narrow(x, -1, 0, half), F.narrow(x, -1, half, 2 * half)
    return F.concatenate((first * cos - second * sin, second * cos + first * sin), -1)
