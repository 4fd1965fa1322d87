"""Weights in and out of a built network. PyTorch's layout is the plan's: nothing is transposed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from isomorph.backends.torch.network import Network
from isomorph.errors import IsomorphError, shorten
from isomorph.weights.convert import merge_ties, owned_weights


def weights(model: nn.Module) -> dict[str, np.ndarray]:
    """Every parameter by path, as NumPy arrays that share no memory with the model.

    Args:
        model: a network from :func:`build`, on any device; one wrapped by ``torch.compile`` or
            ``DistributedDataParallel`` will do. A tied parameter is listed under its owner alone.

    Returns:
        Arrays of the model's current dtype (bfloat16 as ``ml_dtypes.bfloat16``), in the plan's order.

    Raises:
        IsomorphError: E_ARGUMENT when it is no such network, or is on the ``meta`` device; E_WEIGHTS when two tied paths hold different
            values, which takes a module around the network that came apart on its way from the meta device.
    """
    network = unwrap(model)
    tensors = {p.path: _value(network, p.path) for p in network.plan.parameters}
    on_meta = next((path for path, value in tensors.items() if value.is_meta), None)
    if on_meta is not None:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{on_meta} is on the meta device, which holds no values",
            hints=["load the model first, as in model.load_state_dict(state, assign=True)"],
        )
    apart = {path: _value(network, path) for path, _ in _untied(network)}
    merge_ties(network.plan, {**tensors, **apart})
    return {path: to_numpy(value) for path, value in tensors.items()}


def load_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Copy weights into a built network, each rounded to the dtype that the model has now.

    Args:
        model: as in :func:`weights`.
        weights: arrays or tensors by parameter path, exactly those of the plan. A tied parameter may come
            under either path. Nothing is changed unless everything fits.

    Raises:
        IsomorphError: E_WEIGHTS listing every missing, unexpected and misshapen entry; E_ARGUMENT when
            ``model`` is no network of this backend, or is on the ``meta`` device.
    """
    network = unwrap(model)
    fitting = owned_weights(network.plan, weights)
    on_meta = [path for path in fitting if network.get_parameter(path).is_meta]
    if on_meta:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{on_meta[0]} is on the meta device, which holds no values: nothing can be loaded there",
            hints=['give the model memory first, as in model.to_empty(device="cpu")'],
        )
    fill(network, fitting)


def _value(network: Network, path: str) -> torch.Tensor:
    """A parameter, or what stands in its place: ``torch.nn.utils.parametrize`` and pruning compute it."""
    module, _, name = path.rpartition(".")
    return getattr(network.get_submodule(module), name)


def fill(network: Network, fitting: dict[str, Any]) -> None:
    """Copy checked weights into a network; each is taken out of ``fitting``, to free it at once."""
    with torch.no_grad():
        for path in list(fitting):
            network.get_parameter(path).copy_(to_tensor(fitting.pop(path)))
        for path, owner in _untied(network):
            network.get_parameter(path).copy_(network.get_parameter(owner))


def _untied(network: Network) -> list[tuple[str, str]]:
    """Tied paths, each with its owner, that do not hold the same object.

    ``to_empty`` on a module around the network makes two parameters of one.
    """
    ties = network.plan.ties.items()
    return [(path, owner) for path, owner in ties if _value(network, path) is not _value(network, owner)]


def unwrap(model: nn.Module) -> Network:
    """The network inside the wrappers of ``torch.compile`` and data parallelism; else E_ARGUMENT."""
    inner: Any = model
    seen: set[int] = set()
    while inner is not None and not isinstance(inner, Network) and id(inner) not in seen:
        seen.add(id(inner))  # an object may be its own ``module``
        inner = getattr(inner, "_orig_mod", None) or getattr(inner, "module", None)
    if not isinstance(inner, Network):
        raise IsomorphError(
            "E_ARGUMENT",
            f"expected a network from isomorph.torch.build, got {shorten(type(model).__name__)}",
        )
    return inner


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy in memory of its own."""
    copy = tensor.detach().to("cpu", copy=True).contiguous()
    if copy.dtype == torch.bfloat16:
        import ml_dtypes

        return copy.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return copy.numpy()


def to_tensor(array: Any) -> torch.Tensor:
    """A tensor of the same values and dtype, which may share the array's memory."""
    if isinstance(array, torch.Tensor):
        return array.detach()
    array = np.asarray(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch refuses negative strides and warns of read-only memory
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)
