"""Imports every built-in family, so that its operators are registered."""

from isomorph.operators import (
    activation,
    attention,
    blocks,
    embedding,
    feed_forward,
    joining,
    linear,
    normalization,
    shaping,
)

__all__ = [
    "activation",
    "attention",
    "blocks",
    "embedding",
    "feed_forward",
    "joining",
    "linear",
    "normalization",
    "shaping",
]
