"""Training on the CPU with oneDNN's products, forward and backward.

``isomorph::linear`` is a registered operator with a derivative, so that autograd, ``torch.compile`` and hooks see
it as any other. A prepared network shares every parameter with the model that it was made from.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from isomorph.backends.torch import kernels
from isomorph.backends.torch.build import Network
from isomorph.backends.torch.weights import unwrap

Tensor = torch.Tensor


@torch.library.custom_op("isomorph::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``: ``[..., I], [O, I], [O] -> [..., O]``, float32 on the CPU."""
    operators = kernels.onednn()
    assert operators is not None
    return operators.linear(x, weight, bias, "none", [], "")


@linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.custom_op("isomorph::linear_backward", mutates_args=())
def linear_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The derivatives by ``x``, ``weight`` and ``bias``; empty where they are not needed."""
    operators = kernels.onednn()
    assert operators is not None
    none = gradient.new_empty(0)
    gradient = gradient.contiguous()
    of_x = operators.linear(gradient, weight.t().contiguous(), None, "none", [], "") if needs_x else none
    if not needs_weight:
        return of_x, none, none.clone()
    rows = gradient.reshape(-1, gradient.shape[-1])
    of_weight, of_bias = torch.ops.aten.mkldnn_linear_backward_weights(
        rows.to_mkldnn(), x.reshape(-1, x.shape[-1]).contiguous().to_mkldnn(), weight, True
    )
    return of_x, _dense(of_weight), _dense(of_bias)


@linear_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    none = gradient.new_empty(0)
    return (
        torch.empty_like(x) if needs_x else none,
        torch.empty_like(weight) if needs_weight else none,
        weight.new_empty(weight.shape[0]) if needs_weight else none.clone(),
    )


def _dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_mkldnn else tensor


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    of_x, of_weight, of_bias = torch.ops.isomorph.linear_backward(
        gradient, x, weight, needs_x, needs_weight or needs_bias
    )
    return of_x if needs_x else None, of_weight if needs_weight else None, of_bias if needs_bias else None


linear.register_autograd(_backward, setup_context=_setup)


class FastLinear(nn.Module):
    """A ``torch.nn.Linear``'s parameters, multiplied by the faster of two kernels."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.weight = source.weight
        self.bias = source.bias

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if (
            x.dtype == weight.dtype == torch.float32
            and x.device.type == "cpu"
            and not torch.is_autocast_enabled("cpu")
            and kernels.prefers_onednn(x.numel() // max(1, x.shape[-1]), weight)
        ):
            return torch.ops.isomorph.linear(x, weight, self.bias)
        return functional.linear(x, weight, self.bias)


def prepare_training(model: nn.Module, *, checkpointing: bool = False) -> Network:
    """A network of the same parameters that trains faster on the CPU.

    Args:
        model: from ``isomorph.torch.build``.
        checkpointing: keep each node's inputs alone for the backward pass, and compute what is inside anew.
    """
    network = unwrap(model)
    twin = copy.copy(network)
    twin._modules = {name: _twin(module) for name, module in network._modules.items() if module is not None}
    twin._recomputes = checkpointing
    return twin


def _twin(module: nn.Module) -> nn.Module:
    if type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks:
        return FastLinear(module)
    if not module._modules:
        return module
    twin = copy.copy(module)
    twin._modules = {name: None if child is None else _twin(child) for name, child in module._modules.items()}
    return twin
