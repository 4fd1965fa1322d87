"""A model's arrays by the names of Linen's variables; see :mod:`isomorph.backends.jax.tensors`."""

from functools import partial

from isomorph.backends.jax.tensors import FORMAT, flattened

__all__ = ["FORMAT", "tensors"]

tensors = partial(flattened, trained="params.", frozen="frozen.")
