"""The Flax Linen backend's public door: a plan as a ``flax.linen.Module``, and its variables."""

from isomorph.backends.available import missing

try:
    from isomorph.backends.linen.build import Network, build
    from isomorph.backends.linen.weights import variables, weights
except ModuleNotFoundError as error:
    raise missing("linen", error) from None

__all__ = ["Network", "build", "variables", "weights"]
