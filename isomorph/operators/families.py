"""Imports every built-in family, so that its operators are registered."""

from isomorph.operators import (
    activation,
    attention,
    blocks,
    convolution,
    embedding,
    feed_forward,
    joining,
    linear,
    normalization,
    shaping,
    similarity,
)

__all__ = [
    "activation",
    "attention",
    "blocks",
    "convolution",
    "embedding",
    "feed_forward",
    "joining",
    "linear",
    "normalization",
    "shaping",
    "similarity",
]
