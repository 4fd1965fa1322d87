"""Operators as ``torch.nn.Module``: native layers for leaves, one generic module for everything else.

Modules are made on the ``meta`` device: nothing is allocated and nothing is drawn from torch's random
number generators. :mod:`isomorph.backends.torch.build` then puts the parameters in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from isomorph.backends.torch import primitives
from isomorph.errors import IsomorphError
from isomorph.operators.declare import Operator
from isomorph.primitives import Primitives

PRIMITIVES: Primitives = primitives
"""What every operator's forward computation is written in."""


class OperatorModule(nn.Module):
    """An operator that has no native layer: children as submodules, own parameters as parameters."""

    _primitives: Primitives = PRIMITIVES  # generation sets it on copies of the module

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self._operator = operator
        for name, parameter in operator.own_parameters.items():
            refuse_taken(self, name, operator.name)
            self.register_parameter(name, nn.Parameter(torch.empty(parameter.shape, device="meta")))
        for name, child in operator.child_operators.items():
            refuse_taken(self, name, operator.name)
            self.add_module(name, layer(child))

    def forward(self, *inputs: Any) -> Any:
        return self._operator.forward(self, self._primitives, *inputs)

    def extra_repr(self) -> str:
        arguments = self._operator.arguments
        given = {n: v for n, v in self._operator.argument_values.items() if v != arguments[n].default}
        return ", ".join([self._operator.name, *(f"{name}={value!r}" for name, value in given.items())])


class Embedding(nn.Embedding):
    """``torch.nn.Embedding`` whose forward refuses an id outside the table with E_RUNTIME."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return primitives.embedding(input, self.weight)


class Conv1d(nn.Conv1d):
    """``torch.nn.Conv1d`` computed by the primitive, which multiplies windows in full precision."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        stride, padding = self.stride[0], int(self.padding[0])
        return primitives.conv1d(input, self.weight, self.bias, stride=stride, padding=padding)


class Conv2d(nn.Conv2d):
    """``torch.nn.Conv2d`` computed by the primitive, which multiplies patches in full precision."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return primitives.conv2d(input, self.weight, self.bias, stride=self.stride[0])


def layer(operator: Operator) -> nn.Module:
    """The module of an operator, with uninitialised parameters on the ``meta`` device.

    Raises:
        IsomorphError: E_NAME when a child or parameter has the name of something that every module has.
    """
    native = LEAVES.get(operator.leaf) if operator.leaf is not None else None
    return OperatorModule(operator) if native is None else native(operator)


def _linear(operator: Any) -> nn.Module:
    return nn.Linear(operator.in_features, operator.out_features, operator.bias, device="meta")


def _layer_norm(operator: Any) -> nn.Module:
    width = operator.sizes["D"]
    return nn.LayerNorm(width, operator.eps, operator.affine, operator.bias, device="meta")


def _embedding(operator: Any) -> nn.Module:
    return Embedding(operator.num_embeddings, operator.sizes["D"], device="meta")


def _dropout(operator: Any) -> nn.Module:
    return nn.Dropout(operator.p)


def _conv1d(operator: Any) -> nn.Module:
    sizes = operator.sizes
    return Conv1d(
        sizes["C_in"], sizes["C_out"], operator.kernel_size, operator.stride, operator.padding,
        bias=operator.bias, device="meta",
    )  # fmt: skip


def _conv2d(operator: Any) -> nn.Module:
    sizes = operator.sizes
    return Conv2d(
        sizes["C"], sizes["D"], operator.kernel_size, operator.stride, bias=operator.bias, device="meta"
    )


LEAVES: dict[str, Callable[[Any], nn.Module]] = {
    "linear": _linear,
    "layer_norm": _layer_norm,
    "embedding": _embedding,
    "dropout": _dropout,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
}
"""Native layers by :attr:`Operator.leaf`. A leaf that is not here runs its own forward computation."""


def refuse_taken(module: nn.Module, name: str, owner: str) -> None:
    """E_NAME when a module has an attribute of that name already."""
    if hasattr(module, name):
        raise IsomorphError(
            "E_NAME",
            f"{owner}: {name!r} cannot name a part of a PyTorch module, which has an attribute of that name",
            hints=["give it another name"],
        )
