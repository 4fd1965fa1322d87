"""A pre-norm transformer encoder block written in plain Flax, once in Linen and once in NNX.

They are what one would write by hand, and take nothing from the rest of this package but its errors. Their
weights go to and from the ``encoder_block`` operator through :mod:`isomorph.flax.weights`.
"""

from isomorph.backends.available import missing

try:
    from isomorph.flax import linen, nnx, weights
    from isomorph.flax.linen import encoder_block_forward
except ModuleNotFoundError as error:
    raise missing("linen", error, "flax") from None

__all__ = ["encoder_block_forward", "linen", "nnx", "weights"]
