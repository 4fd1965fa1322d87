"""The PyTorch backend behind the interface of :mod:`isomorph.backends.available`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from isomorph.backends.available import Evaluation, Gradients
from isomorph.backends.contract import DTYPE_KINDS
from isomorph.backends.torch import primitives
from isomorph.backends.torch.build import build
from isomorph.backends.torch.network import Network
from isomorph.backends.torch.weights import to_numpy, to_tensor
from isomorph.plan import Plan
from isomorph.weights.convert import owned_weights

if TYPE_CHECKING:
    import numpy as np


def forward(
    plan: Plan, weights: Mapping[str, Any], inputs: Mapping[str, Any], dtype: str
) -> dict[str, np.ndarray]:
    """Outputs by name, in evaluation mode, computed in ``dtype``."""
    network = _prepared(plan, weights, dtype)
    with torch.no_grad():
        return {
            name: to_numpy(tensor)
            for name, tensor in _outputs(network, _tensors(plan, inputs, dtype)).items()
        }


def gradients(
    plan: Plan,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any],
    cotangents: Mapping[str, Any],
    dtype: str,
) -> Gradients:
    """Derivatives of ``sum(output * cotangent)`` in evaluation mode; frozen parameters have theirs too."""
    network = _prepared(plan, weights, dtype).requires_grad_(True)
    tensors = _tensors(plan, inputs, dtype)
    parameters = {p.path: network.get_parameter(p.path) for p in plan.parameters}
    return _differentiated(lambda: _outputs(network, tensors), parameters, tensors, cotangents, dtype)


def noisy_gradients(
    evaluate: Evaluation,
    plan: Plan,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any],
    cotangents: Mapping[str, Any],
    seeds: Iterable[int],
) -> Iterator[Gradients]:
    """The same in float64 of what ``evaluate`` makes of the plan's tensors; one for each seed of its noise."""
    tensors = _tensors(plan, inputs, "float64")
    parameters = {
        path: _cast(array, "float64").requires_grad_() for path, array in owned_weights(plan, weights).items()
    }
    given = [tensors[name] for name, _ in plan.inputs]

    def noisy(seed: int) -> Gradients:
        network = partial(evaluate, primitives, parameters, given, _Noise(seed))
        return _differentiated(network, parameters, tensors, cotangents, "float64")

    return map(noisy, seeds)  # which keeps none of them


class _Noise:
    """PyTorch's :class:`isomorph.backends.available.Noise`."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def random(self, like: torch.Tensor) -> torch.Tensor:
        return 2 * torch.rand(like.shape, generator=self._generator, dtype=like.dtype) - 1

    def constant(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()


def _differentiated(
    network: Callable[[], Mapping[str, torch.Tensor]],
    parameters: Mapping[str, torch.Tensor],
    tensors: Mapping[str, torch.Tensor],
    cotangents: Mapping[str, Any],
    dtype: str,
) -> Gradients:
    """Derivatives of ``sum(output * cotangent)`` by the parameters and the floating-point inputs."""
    floating = {
        name: tensor.requires_grad_() for name, tensor in tensors.items() if tensor.is_floating_point()
    }
    total = torch.zeros((), dtype=getattr(torch, dtype))
    for name, tensor in network().items():
        total = total + (tensor * _cast(cotangents[name], dtype)).sum()
    wanted = [*parameters.values(), *floating.values()]
    slopes = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True) if wanted else ()
    arrays = [to_numpy(gradient) for gradient in slopes]
    count = len(parameters)
    return Gradients(
        dict(zip(parameters, arrays[:count], strict=True)), dict(zip(floating, arrays[count:], strict=True))
    )


def _prepared(plan: Plan, weights: Mapping[str, Any], dtype: str) -> Network:
    network = build(plan, weights)
    network.to(getattr(torch, dtype)).eval()
    return network


def _tensors(plan: Plan, inputs: Mapping[str, Any], dtype: str) -> dict[str, torch.Tensor]:
    kinds = {name: DTYPE_KINDS[plan.values[value].dtype] for name, value in plan.inputs}
    return {
        name: _cast(array, dtype) if kinds.get(name) == "float" else to_tensor(array).clone()
        for name, array in inputs.items()
    }


def _outputs(network: Network, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    result = network(**tensors)
    return result if isinstance(result, dict) else {network.plan.outputs[0][0]: result}


def _cast(array: Any, dtype: str) -> torch.Tensor:
    return to_tensor(array).to(getattr(torch, dtype), copy=True)
