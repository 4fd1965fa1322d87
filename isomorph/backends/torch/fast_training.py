"""Training on the CPU with oneDNN's products, forward and backward.

``isomorph::linear`` is a registered operator with a derivative, so that autograd, ``torch.compile`` and hooks see
it as any other. A prepared network shares every parameter with the model that it was made from.

Which kernel multiplies is decided by rule and never by a measurement, so that equal runs give equal bits: oneDNN's
on AMD's processors, whose products MKL does slowly, where a product is large enough; PyTorch's own elsewhere.
"""

from __future__ import annotations

import platform
import warnings
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from isomorph.backends.torch import kernels
from isomorph.backends.torch.network import Network
from isomorph.backends.torch.twins import twin
from isomorph.backends.torch.weights import unwrap

Tensor = torch.Tensor

_SMALL = 1 << 22
"""Multiplications below which a product is PyTorch's own: the other call costs more."""
_VENDOR = "AuthenticAMD"


@torch.library.custom_op("isomorph::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``: ``[..., I], [O, I], [O] -> [..., O]``, float32 on the CPU."""
    operators = kernels.onednn()
    assert operators is not None
    if kernels.is_marked(weight):  # by an engine beside, which would take reading it for a write
        return nn.functional.linear(x, weight, bias)
    return operators.linear(x, weight, None if bias is None else kernels.unmarked(bias), "none", [], "")


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
    gradient = gradient.contiguous()
    of_x = gradient.new_empty(0)
    if needs_x:
        of_x = operators.linear(gradient, weight.t().contiguous(), None, "none", [], "")
    if not needs_weight:
        return of_x, gradient.new_empty(0), gradient.new_empty(0)
    rows = gradient.reshape(-1, gradient.shape[-1])
    of_weight, of_bias = torch.ops.aten.mkldnn_linear_backward_weights(
        rows.to_mkldnn(), x.reshape(-1, x.shape[-1]).contiguous().to_mkldnn(), weight, True
    )
    return of_x, _dense(of_weight), _dense(of_bias)


@linear_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape) if needs_x else gradient.new_empty(0),
        weight.new_empty(weight.shape) if needs_weight else gradient.new_empty(0),
        weight.new_empty(weight.shape[0]) if needs_weight else gradient.new_empty(0),
    )


def _dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_mkldnn else tensor


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # a derivative of this one is wanted
        rows = gradient.flatten(0, -2)
        of_x = gradient @ weight
        of_weight, of_bias = rows.t() @ x.flatten(0, -2), rows.sum(0)
    else:
        of_x, of_weight, of_bias = torch.ops.isomorph.linear_backward(
            gradient, x, weight, needs_x, needs_weight or needs_bias
        )
    return of_x if needs_x else None, of_weight if needs_weight else None, of_bias if needs_bias else None


linear.register_autograd(_backward, setup_context=_setup)


_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
"""Whether ``torch.func`` is at work (``grad``, ``vmap``), which takes PyTorch's own operators alone."""


_PLAIN = nn.Linear.forward


class FastLinear(nn.Linear):
    """A ``torch.nn.Linear`` whose large float32 products are oneDNN's. Made from one, sharing all it holds."""

    stands_for = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        if (
            input.dtype == weight.dtype == torch.float32
            and input.device.type == weight.device.type == "cpu"
            and input.ndim > 1
            and input.numel() * weight.shape[0] >= _SMALL
            and not torch.is_autocast_enabled("cpu")
            and not _transformed()
            and nn.Linear.forward is _PLAIN  # else what was put there has the word
        ):
            return torch.ops.isomorph.linear(input, weight, self.bias)
        return super().forward(input)


def prepare_training(model: nn.Module, *, checkpointing: bool = False) -> Network:
    """A network of the same parameters that trains faster on the CPU.

    Its modules share parameters, buffers and hooks with the model's, and have a training mode of their own.
    Its state dictionary and its optimizer are the model's. Layers that are replaced afterwards, in either, are
    not seen by the other. Forward-mode derivatives (``torch.autograd.forward_ad``) are the model's own business.

    Args:
        model: from ``isomorph.torch.build``.
        checkpointing: keep each node's inputs alone for the backward pass, and compute what is inside anew.
    """
    network = unwrap(model)
    sharing = cast("Network", _sharing(network, usable(), {}))
    sharing._recomputes = checkpointing
    return sharing


def _sharing(module: nn.Module, fast: bool, twins: dict[int, nn.Module]) -> nn.Module:
    """A module that holds the same parameters, buffers and hooks, its linears of the fast kind."""
    if id(module) in twins:
        return twins[id(module)]
    kind = FastLinear if fast and type(module) is nn.Linear else None
    twins[id(module)] = twin(module, lambda child: _sharing(child, fast, twins), kind=kind)
    return twins[id(module)]


@cache
def usable() -> bool:
    """Whether training takes oneDNN's products here. Where they should be taken and are wrong is said once."""
    if vendor() != _VENDOR or kernels.onednn() is None:
        return False
    problem = _wrong()
    if problem:
        warnings.warn(
            f"isomorph: oneDNN's derivatives are not usable here ({problem}); PyTorch's usual ones are taken",
            RuntimeWarning,
            stacklevel=3,
        )
    return not problem


def _wrong() -> str:
    """What is wrong with the derivatives of a small product, or nothing."""
    generator = torch.Generator().manual_seed(0)
    x, w, g = (torch.randn(shape, generator=generator) for shape in ((2, 3, 8), (5, 8), (2, 3, 5)))
    rows = g.flatten(0, 1)
    try:
        gradients = linear_backward(g, x, w, True, True)
    except (AttributeError, RuntimeError, TypeError) as error:
        return str(error).splitlines()[0]
    expected = (g @ w, rows.t() @ x.flatten(0, 1), rows.sum(0))
    if all(torch.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(gradients, expected, strict=True)):
        return ""
    return "they compute something else"


def vendor() -> str:
    """Who made the processor, as it says itself; empty where that cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return _VENDOR if _VENDOR in platform.processor() else ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
