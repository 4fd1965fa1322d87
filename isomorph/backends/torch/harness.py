"""The torch backend behind the interface of :mod:`isomorph.backends.available`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from isomorph.backends.available import Gradients
from isomorph.backends.torch.build import build
from isomorph.plan import Plan


def forward(
    plan: Plan, weights: Mapping[str, Any], inputs: Mapping[str, Any], dtype: str = "float32"
) -> dict[str, Any]:
    """Outputs by name, in evaluation mode, computed in ``dtype``."""
    model, tensors = _prepare(plan, weights, inputs, dtype)
    with torch.no_grad():
        outputs = _by_name(plan, model(*tensors.values()))
    return {name: _to_numpy(tensor) for name, tensor in outputs.items()}


def gradients(
    plan: Plan,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any],
    cotangents: Mapping[str, Any],
    dtype: str = "float32",
) -> Gradients:
    """Derivatives of ``sum(output * cotangent)`` by parameter path and by float input, frozen ones too."""
    model, tensors = _prepare(plan, weights, inputs, dtype)
    parameters = {plan.ties.get(path, path): p.requires_grad_() for path, p in model.named_parameters()}
    floats = {name: t.requires_grad_() for name, t in tensors.items() if t.is_floating_point()}
    outputs = _by_name(plan, model(*tensors.values()))
    total = torch.zeros((), dtype=getattr(torch, dtype))
    for name, tensor in outputs.items():
        total = total + (tensor * torch.as_tensor(cotangents[name]).to(tensor.dtype)).sum()
    wanted = {**parameters, **{f"input {name}": t for name, t in floats.items()}}
    found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True, materialize_grads=True)
    by_name = {name: _to_numpy(g) for name, g in zip(wanted, found, strict=True)}
    return Gradients(
        {path: by_name[path] for path in parameters}, {name: by_name[f"input {name}"] for name in floats}
    )


def _prepare(
    plan: Plan, weights: Mapping[str, Any], inputs: Mapping[str, Any], dtype: str
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    cast = getattr(torch, dtype)
    model = build(plan, weights).eval().to(cast)
    tensors = {name: torch.as_tensor(inputs[name]).clone() for name, _ in plan.inputs}
    return model, {name: t.to(cast) if t.is_floating_point() else t for name, t in tensors.items()}


def _by_name(plan: Plan, outputs: Any) -> dict[str, torch.Tensor]:
    return outputs if isinstance(outputs, dict) else {plan.outputs[0][0]: outputs}


def _to_numpy(tensor: torch.Tensor) -> Any:
    return tensor.detach().to(torch.float64).numpy()
