"""The Flax NNX backend's public door: a plan as an ``nnx.Module``, and its weights."""

from isomorph.backends.available import missing

try:
    from isomorph.backends.nnx.build import Network, build
    from isomorph.backends.nnx.layers import Frozen
    from isomorph.backends.nnx.weights import load_weights, weights
except ModuleNotFoundError as error:
    raise missing("nnx", error) from None

__all__ = ["Frozen", "Network", "build", "load_weights", "weights"]
