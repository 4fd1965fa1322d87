"""The Flax NNX backend's public door: a plan as an ``nnx.Module``, and its weights."""

from isomorph.errors import IsomorphError

try:
    from isomorph.backends.nnx.build import Network, build
    from isomorph.backends.nnx.layers import Frozen
    from isomorph.backends.nnx.weights import load_weights, weights
except ModuleNotFoundError as error:
    if error.name not in ("flax", "jax"):
        raise
    raise IsomorphError(
        "E_BACKEND",
        "isomorph.nnx needs Flax, which is not installed",
        hints=['pip install "isomorph[flax]"'],
    ) from None

__all__ = ["Frozen", "Network", "build", "load_weights", "weights"]
