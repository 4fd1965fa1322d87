"""Copies of modules that share all they hold: another mode, another class or other layers, on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn


def twin(
    module: nn.Module,
    child: Callable[[nn.Module], nn.Module] | None = None,
    *,
    kind: type[nn.Module] | None = None,
    **attributes: Any,
) -> Any:
    """A copy of a module that shares its parameters, buffers and hooks.

    Args:
        module: what is copied.
        child: what stands for each of its children; the children themselves where omitted.
        kind: another class.
        attributes: other values of its attributes.
    """
    copy = object.__new__(kind or type(module))
    copy.__dict__ |= module.__dict__ | attributes
    if child is not None:
        copy.__dict__["_modules"] = {
            name: None if one is None else child(one) for name, one in module._modules.items()
        }
    return copy


def in_evaluation(module: nn.Module) -> nn.Module:
    """The module in evaluation mode: itself, or a copy that shares everything but the mode."""
    if not any(part.training for part in module.modules()) or isinstance(module, torch.jit.ScriptModule):
        return module
    copy = twin(module, in_evaluation, training=False)
    forward = module.__dict__.get("forward")
    if getattr(forward, "__self__", None) is module:  # a forward that was put on the module
        copy.__dict__["forward"] = MethodType(forward.__func__, copy)  # type: ignore[union-attr]
    return copy
