"""A plan as a ``torch.nn.Module`` with its weights, and the devices where that may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from isomorph.backends.torch.network import Network, network_class, put, tie
from isomorph.backends.torch.weights import fill
from isomorph.errors import IsomorphError, shorten
from isomorph.plan import Plan
from isomorph.weights.convert import owned_weights
from isomorph.weights.initial import initial_weights


def build(
    plan: Plan, weights: Mapping[str, Any] | None = None, seed: int = 0, device: str | torch.device = "cpu"
) -> Network:
    """The plan as a ``torch.nn.Module`` in training mode.

    ``linear``, ``layer_norm``, ``embedding``, ``dropout`` and convolutions are PyTorch's own layers. State
    dictionary keys are the plan's parameter paths; a tied parameter is one object under both its paths, with
    its owner's key alone. ``load_state_dict`` takes either key, or both, which PyTorch's own modules have.
    PyTorch's random number generators are left as they were.

    Args:
        plan: the network.
        weights: arrays by parameter path (see ``load_weights``), copied; drawn when None.
        seed: of the draw, ``isomorph.initial_weights(plan, seed)``.
        device: where the parameters live. On ``"meta"`` nothing is drawn or allocated.

    Raises:
        IsomorphError: E_WEIGHTS when the weights are not exactly the plan's; E_ARGUMENT for a bad seed or
            for what names no device; E_BACKEND for a device that is not here; E_NAME when a node has a name
            that PyTorch modules use themselves.
    """
    network = network_class(Plan.expect(plan))(plan)
    place = usable_device(device)
    if weights is not None:
        fitting = owned_weights(plan, weights)
    else:
        fitting = {} if place.type == "meta" else initial_weights(plan, seed)
    _allocate(network, plan, place)
    fill(network, fitting)
    return network


def usable_device(device: Any, hint: str = 'device="cpu"', *, computing: bool = False) -> torch.device:
    """The device of a name, found to be here.

    Args:
        device: a name such as ``"cuda:1"``, an accelerator's number, or a ``torch.device``.
        hint: what the error proposes.
        computing: whether numbers are computed there, which the meta device has none of.

    Raises:
        IsomorphError: E_ARGUMENT for another type, or for the meta device to compute on; E_BACKEND for a device that is not here.
    """
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise IsomorphError(
            "E_ARGUMENT",
            f'device must be a name such as "cpu" or "cuda:0", or a torch.device, got {shorten(device)}',
        )
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:  # NotImplementedError is a RuntimeError
        reason = str(error).splitlines()[0]
        raise IsomorphError(
            "E_BACKEND", f"torch cannot use the device {str(device)!r}: {reason}", hints=[hint]
        ) from error
    if computing and place.type == "meta":
        raise IsomorphError(
            "E_ARGUMENT", "nothing can be computed on the meta device, which holds no values", hints=[hint]
        )
    return place


def _allocate(network: Network, plan: Plan, device: torch.device) -> None:
    """Give every owner a parameter of the plan's dtype, and every tied path its owner's."""
    dtype = getattr(torch, plan.dtype)
    parameters = {}
    for parameter in plan.parameters:
        storage = torch.empty(parameter.shape, dtype=dtype, device=device)
        parameters[parameter.path] = nn.Parameter(storage, requires_grad=parameter.trainable)
    for path, parameter in parameters.items():
        put(network, path, parameter)
    tie(network)
