"""The Flax Linen backend's public door: a plan as a ``flax.linen.Module``, and its variables."""

from isomorph.errors import IsomorphError

try:
    from isomorph.backends.linen.build import Network, build
    from isomorph.backends.linen.weights import variables, weights
except ModuleNotFoundError as error:
    if error.name not in ("flax", "jax"):
        raise
    raise IsomorphError(
        "E_BACKEND",
        "isomorph.linen needs Flax, which is not installed",
        hints=['pip install "isomorph[flax]"'],
    ) from None

__all__ = ["Network", "build", "variables", "weights"]
