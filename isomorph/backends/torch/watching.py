"""Whether a network still is what its plan says, and whether it changed since it was looked at last.

Noticed is whatever decides a result: every attribute of every module, parameters, buffers and layers by identity,
hooks, the functions that the modules' classes compute with, and every write that PyTorch makes into a parameter's
memory, whoever asks for it: an optimizer's kernel, ``parameter.data``, another tensor on the same memory. For that
the memory is marked as copied on write, with no copy waiting (:func:`_mark`): the first write takes the mark away.

Memory that PyTorch cannot mark (mapped, shared with processes, NumPy's, an accelerator's) is watched by PyTorch's
count of changes, where it lies, and on the CPU a sample of its numbers. ``docs/performance.md`` lists what is left.
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter, is_
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import nn
from torch.autograd.graph import increment_version
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from isomorph.backends.engine import is_patched
from isomorph.backends.torch.kernels import is_marked
from isomorph.backends.torch.layers import OperatorModule, layer
from isomorph.backends.torch.network import Network
from isomorph.plan import Plan

Tensor = torch.Tensor

_changes = attrgetter("_version", "shape")
_address = Tensor.data_ptr
_COMPUTING = ("forward", "__call__", "_call_impl")
_functions = attrgetter(*_COMPUTING)
_INERT = (nn.Dropout, nn.Identity)  # either may stand where the other does: they do nothing in evaluation
_SAMPLE = 1 << 12
"""Numbers of an unmarked parameter that are compared; one of no more is compared whole."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_marking = Lock()
_watches: WeakSet[Watch] = WeakSet()


class Watch:
    """A network as it was; :meth:`unchanged` compares it with what it is now, at C speed."""

    def __init__(self, network: Network) -> None:
        self._modules = list(network.modules())
        self._types = list(map(type, self._modules))
        self._kinds = list(dict.fromkeys(self._types))
        self._computing = list(map(_functions, self._kinds))
        self._hooks = [
            h for module in self._modules for h in (module._forward_hooks, module._forward_pre_hooks)
        ]
        self._attributes = list(map(vars, self._modules))
        self._attributes_then = list(map(dict, self._attributes))
        places = [
            p for module in self._modules for p in (module._parameters, module._buffers, module._modules)
        ]
        self._places = [place for place in places for _ in place]
        self._names = [name for place in places for name in place]
        self._parts = list(map(dict.get, self._places, self._names))
        tensors = [*network.parameters(), *network.buffers()]
        self._marked: list[Tensor] = []
        self._touched = False
        with _marking:
            for watch in list(_watches):  # marking anew would hide from others that a mark was gone
                watch._look()
            self._marked = [tensor for tensor in tensors if _mark(tensor)]
            _watches.add(self)
        self._memory = [tensor.detach() for tensor in self._marked]
        marked = set(map(id, self._marked))
        self._counted = [t for t in tensors if id(t) not in marked and not (t.is_inference() or t.is_meta)]
        self._versions = list(map(_changes, self._counted))
        self._addresses = list(map(_address, self._counted))
        self._strides = list(map(Tensor.stride, self._counted))
        self._samples = [_sample(t) for t in self._counted if t.device.type == "cpu"]
        self._samples_then = [sample.clone() for sample in self._samples]
        self._kept = [t.detach() for t in self._counted]  # lest an address be given to something else
        if self._counted:
            count_steps()

    def unchanged(self) -> bool:
        """Whether nothing of the network is other than it was."""
        try:
            return self._same_values() and self._same_parts()
        except (
            RuntimeError,
            TypeError,
            ValueError,
            AttributeError,
        ):  # such as tensors that are not to be compared
            return False

    unchanged._torchdynamo_disable = True  # what torch.compiler.disable sets, which loads the compiler  # type: ignore[attr-defined]

    def same_values(self, other: Watch) -> bool:
        """Whether another watch, a later one, met the same parameters with the same values."""
        tensors = [[*watch._marked, *watch._counted] for watch in (self, other)]
        return (
            self._same_values()
            and len(tensors[0]) == len(tensors[1])
            and all(map(is_, tensors[0], tensors[1]))
        )

    def _same_values(self) -> bool:
        return (
            not self._touched
            and all(map(is_marked, self._marked))
            and all(map(Tensor.is_set_to, self._marked, self._memory))
            and (not self._counted or self._same_counts())
        )

    def _same_counts(self) -> bool:
        return (
            list(map(_changes, self._counted)) == self._versions
            and list(map(_address, self._counted)) == self._addresses
            and list(map(Tensor.stride, self._counted)) == self._strides
            and all(map(torch.equal, self._samples, self._samples_then))
        )

    def _same_parts(self) -> bool:
        return (
            self._attributes == self._attributes_then
            and all(map(is_, map(dict.get, self._places, self._names), self._parts))
            and not any(self._hooks)
            and not any(_global_hooks())
            and list(map(type, self._modules)) == self._types
            and list(map(_functions, self._kinds)) == self._computing
        )

    def _look(self) -> None:
        self._touched = self._touched or not all(map(is_marked, self._marked))


def _mark(tensor: Tensor) -> bool:
    """Mark a tensor's memory so that the next write through PyTorch takes the mark away; whether it could be.

    A lazy clone makes memory "copied on write"; as the clone is dropped at once nothing is ever copied, and
    where the memory lies stays as it is. What PyTorch did not allocate cannot be marked.
    """
    if tensor.device.type != "cpu" or tensor.is_inference() or not hasattr(tensor, "_lazy_clone"):
        return False
    try:
        if not is_marked(tensor):
            tensor.detach()._lazy_clone()
        return is_marked(tensor)
    except (RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
        return False


def _sample(tensor: Tensor) -> Tensor:
    """Numbers of a tensor spread evenly, as bits on the same memory, so that a NaN equals itself."""
    bits = tensor.detach().view(_BITS[tensor.element_size()])
    return bits.view(-1)[:: max(1, bits.numel() // _SAMPLE)] if bits.is_contiguous() else bits


def _global_hooks() -> tuple[Any, Any]:
    """PyTorch's hooks of all modules, where this version keeps them."""
    return (
        getattr(torch_module, "_global_forward_hooks", None),
        getattr(torch_module, "_global_forward_pre_hooks", None),
    )


class Part(NamedTuple):
    """A module as the plan makes it.

    Attributes:
        path: where it is.
        kind: its class.
        settings: what it computes with beside its parameters, by attribute.
        parameters: shapes by name, None for an absent one.
    """

    path: str
    kind: type[nn.Module]
    settings: dict[str, Any]
    parameters: tuple[tuple[str, tuple[int, ...] | None], ...]


def expected_parts(plan: Plan) -> list[Part]:
    """Every module of a network of this plan."""
    return [
        Part(path, type(module), _settings(module), _shapes(module))
        for node in plan.nodes
        for path, module in layer(node.operator).named_modules(prefix=node.name, remove_duplicate=False)
    ]


def _settings(module: nn.Module) -> dict[str, Any]:
    """The operator of a module that runs one; the public attributes of a native layer."""
    if isinstance(module, OperatorModule):
        return {"_operator": module._operator}
    return {name: value for name, value in vars(module).items() if name[0] != "_" and name != "training"}


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
        difference = _other_part(module, part)
        if difference:
            return f"{part.path} {difference}"
    for kind in dict.fromkeys(map(type, network.modules())):
        if is_patched(kind, _COMPUTING):
            return f"the class {kind.__name__} computes with a function that was put on it"
    return _other_parameters(network)


def _other_part(module: nn.Module, part: Part) -> str:
    kind = getattr(type(module), "stands_for", type(module))  # the linears of a network for training
    if part.kind in _INERT and kind in _INERT:
        return ""
    if kind is not part.kind:
        return f"is {type(module).__name__} and not {part.kind.__name__}"
    if dict(_shapes(module)) != dict(part.parameters):
        return "has other parameters"
    settings = {name: vars(module).get(name) for name in part.settings}
    return "has other settings" if settings != part.settings else ""


def _other_parameters(network: Network) -> str:
    for path, owner in network.plan.ties.items():
        if network.get_parameter(path) is not network.get_parameter(owner):
            return f"{path} and {owner} are no longer tied"
    kinds = set()
    for path, parameter in network.named_parameters():
        if type(parameter) is not nn.Parameter:
            return f"{path} is a {type(parameter).__name__} and no torch.nn.Parameter"
        if parameter.is_meta:
            return f"{path} is on the meta device, which holds no values"
        if parameter.is_inference():
            return f"{path} was made in inference mode, where PyTorch does not count changes"
        if not parameter.is_floating_point():
            return f"{path} has dtype {str(parameter.dtype).removeprefix('torch.')}"
        kinds.add((parameter.dtype, parameter.device))
    return "its parameters have several dtypes or devices" if len(kinds) > 1 else ""


@cache
def count_steps() -> None:
    """Have every optimizer count its changes of parameters: PyTorch's fused kernels leave the count as it is."""
    register_optimizer_step_post_hook(_count)


def _count(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    for group in optimizer.param_groups:  # whatever their gradients are: another hook may have cleared them
        increment_version([p for p in group["params"] if not p.is_inference()])
