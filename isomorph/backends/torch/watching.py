"""Whether a network still is what its plan says, and whether it changed since it was looked at last.

Noticed are: changes of a parameter in place (PyTorch counts them), other parameters, other memory behind one
(``parameter.data = ...``, ``model.to(...)``), other layers, hooks, parametrizations, a ``forward`` put on a
module, another eps of a norm, ties that came apart. Not noticed, because PyTorch does not count it: writing
into the memory of ``parameter.data``, of ``parameter.detach().numpy()``, or by a kernel of one's own that keeps
it to itself. ``torch.autograd.graph.increment_version(parameter)`` after such a write tells it.
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter, is_
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from isomorph.backends.torch.build import Network
from isomorph.backends.torch.layers import layer
from isomorph.plan import Plan

Tensor = torch.Tensor

_changes = attrgetter("_version")
_address = Tensor.data_ptr
_INERT = (nn.Dropout, nn.Identity)  # either may stand where the other does: they do nothing in evaluation


class Watch:
    """A network as it was; :meth:`unchanged` compares it with what it is now, at about 50 ns per part."""

    def __init__(self, network: Network) -> None:
        self._modules = list(network.modules())
        self._types = list(map(type, self._modules))
        self._hooks: list[Any] = _global_hooks()
        self._places: list[dict[str, Any]] = []
        self._names: list[str] = []
        for module in self._modules:
            self._hooks += [module._forward_hooks, module._forward_pre_hooks]
            for place, names in (
                (module.__dict__, ("eps",) if "eps" in module.__dict__ else ()),
                (module._parameters, tuple(module._parameters)),
                (module._modules, tuple(module._modules)),
            ):
                self._places += [place] * len(names)
                self._names += names
        self._attributes = [module.__dict__ for module in self._modules]
        self._counts = list(map(len, self._attributes))  # a forward put on a module is one more
        self._held = list(map(dict.get, self._places, self._names))
        self._parameters = [p for p in network.parameters() if not p.is_inference()]
        self._versions = list(map(_changes, self._parameters))
        self._addresses = list(map(_address, self._parameters))
        self._memory = [p.detach() for p in self._parameters]  # lest an address be given to something else

    def unchanged(self) -> bool:
        return (
            all(map(is_, map(dict.get, self._places, self._names), self._held))
            and not any(self._hooks)
            and list(map(_changes, self._parameters)) == self._versions
            and list(map(_address, self._parameters)) == self._addresses
            and list(map(type, self._modules)) == self._types
            and list(map(len, self._attributes)) == self._counts
        )


def _global_hooks() -> list[Any]:
    """PyTorch's hooks of all modules, where this version keeps them."""
    names = ("_global_forward_hooks", "_global_forward_pre_hooks")
    return [getattr(nn.modules.module, name, {}) for name in names]


class Part(NamedTuple):
    """A module as the plan makes it.

    Attributes:
        path: where it is.
        kind: its class.
        settings: what it says of itself.
        parameters: shapes by name, None for an absent one.
    """

    path: str
    kind: type[nn.Module]
    settings: str
    parameters: tuple[tuple[str, tuple[int, ...] | None], ...]


def expected_parts(plan: Plan) -> list[Part]:
    """Every module of a network of this plan."""
    found = []
    for node in plan.nodes:
        for path, module in layer(node.operator).named_modules(prefix=node.name, remove_duplicate=False):
            found.append(Part(path, type(module), module.extra_repr(), _shapes(module)))
    return found


def _shapes(module: nn.Module) -> tuple[tuple[str, tuple[int, ...] | None], ...]:
    items = module._parameters.items()
    return tuple((name, None if p is None else tuple(p.shape)) for name, p in items)


def departure(network: Network, expected: list[Part]) -> str:
    """What makes a network another than its plan says, or nothing."""
    if any(_global_hooks()):
        return "all modules have a hook"
    for path, module in network.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return f"{path or 'the network'} has a hook"
        if "forward" in module.__dict__:
            return f"{path or 'the network'} has a forward of its own"
    for part in expected:
        try:
            module = network.get_submodule(part.path)
        except AttributeError:
            return f"{part.path} is not there"
        found = _other_part(module, part)
        if found:
            return f"{part.path} {found}"
    return _other_parameters(network)


def _other_part(module: nn.Module, part: Part) -> str:
    kind = getattr(type(module), "stands_for", type(module))  # the linears of a network for training
    if part.kind in _INERT and kind in _INERT:
        return ""
    if kind is not part.kind:
        return f"is {type(module).__name__} and not {part.kind.__name__}"
    if dict(_shapes(module)) != dict(part.parameters):
        return "has other parameters"
    return "has other settings" if module.extra_repr() != part.settings else ""


def _other_parameters(network: Network) -> str:
    for path, owner in network.plan.ties.items():
        if network.get_parameter(path) is not network.get_parameter(owner):
            return f"{path} and {owner} are no longer tied"
    kinds = set()
    for path, parameter in network.named_parameters():
        if type(parameter) is not nn.Parameter:
            return f"{path} is a {type(parameter).__name__} and no torch.nn.Parameter"
        if parameter.is_inference():
            return f"{path} was made in inference mode, where PyTorch does not count changes"
        if not parameter.is_floating_point():
            return f"{path} has dtype {str(parameter.dtype).removeprefix('torch.')}"
        kinds.add((parameter.dtype, parameter.device))
    return "its parameters have several dtypes or devices" if len(kinds) > 1 else ""


def in_evaluation(module: nn.Module) -> nn.Module:
    """The module in evaluation mode: itself, or a copy that shares everything but the mode."""
    if not any(part.training for part in module.modules()) or isinstance(module, torch.jit.ScriptModule):
        return module
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    forward = module.__dict__.get("forward")
    if getattr(forward, "__self__", None) is module:  # a forward that was put on the module
        twin.__dict__["forward"] = MethodType(forward.__func__, twin)  # type: ignore[union-attr]
    twin.__dict__["training"] = False
    twin.__dict__["_modules"] = {
        name: None if child is None else in_evaluation(child) for name, child in module._modules.items()
    }
    return twin


@cache
def count_steps() -> None:
    """Have every optimizer count its changes of parameters: PyTorch's fused kernels leave the count as it is."""
    register_optimizer_step_post_hook(_count)


def _count(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    for group in optimizer.param_groups:
        increment_version([p for p in group["params"] if p.grad is not None and not p.is_inference()])
