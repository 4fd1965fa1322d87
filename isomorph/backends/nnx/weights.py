"""Weights in and out of a built network, between Flax's layout and the plan's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isomorph.backends.jax.build import prepared
from isomorph.backends.jax.weights import to_jax, to_plan
from isomorph.backends.nnx.build import Network
from isomorph.errors import IsomorphError, shorten
from isomorph.weights.convert import owned_weights

if TYPE_CHECKING:
    import numpy as np


def weights(model: Network) -> dict[str, np.ndarray]:
    """Every parameter by path, in plan layout, as NumPy arrays that share no memory with the model.

    Args:
        model: a network from :func:`build`. A tied parameter is listed under its owner alone.

    Returns:
        Arrays of the model's current dtype (bfloat16 as ``ml_dtypes.bfloat16``), in the plan's order.

    Raises:
        IsomorphError: E_ARGUMENT when it is no such network.
    """
    network = _network(model)
    return {
        path: to_plan(network.variable(path)[...], place.transposed)
        for path, place in prepared(network.plan).places.items()
    }


def load_weights(model: Network, weights: Mapping[str, Any]) -> None:
    """Copy weights into a built network, each rounded to the dtype that the model has now.

    Args:
        model: a network from :func:`build`.
        weights: arrays in plan layout by parameter path, exactly those of the plan. A tied parameter may
            come under either path. Nothing is changed unless everything fits.

    Raises:
        IsomorphError: E_WEIGHTS listing every missing, unexpected and misshapen entry; E_ARGUMENT when
            ``model`` is no network of this backend.
    """
    network = _network(model)
    places = prepared(network.plan).places
    for path, array in owned_weights(network.plan, weights).items():
        variable = network.variable(path)
        variable.set_value(to_jax(array, variable[...].dtype.name, places[path].transposed))


def _network(model: Any) -> Network:
    if isinstance(model, Network):
        return model
    raise IsomorphError(
        "E_ARGUMENT", f"expected a network from isomorph.nnx.build, got {shorten(type(model).__name__)}"
    )
