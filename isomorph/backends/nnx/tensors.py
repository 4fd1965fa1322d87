"""A model's arrays by the names of an NNX module's state; see :mod:`isomorph.backends.jax.tensors`."""

from isomorph.backends.jax.tensors import FORMAT
from isomorph.backends.jax.tensors import flattened as tensors

__all__ = ["FORMAT", "tensors"]
