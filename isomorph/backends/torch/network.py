"""The module that a plan becomes in PyTorch: one submodule per node, run in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from inspect import Parameter as SignatureParameter
from inspect import Signature
from keyword import iskeyword
from math import prod
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from isomorph.backends.contract import DTYPE_KINDS, InputContracts, dtype_name
from isomorph.backends.torch.layers import layer, refuse_taken
from isomorph.errors import IsomorphError, shorten
from isomorph.plan import Plan
from isomorph.weights.convert import merge_ties


def _full(shape: tuple[int, ...], value: Any, dtype: str, like: torch.Tensor) -> torch.Tensor:
    return torch.full(shape, value, dtype=getattr(torch, dtype), device=like.device)


KINDS = {getattr(torch, name): kind for name, kind in DTYPE_KINDS.items()}


class NodeCall(NamedTuple):
    """One node: its submodule, the values it takes and makes, and those that nobody needs afterwards."""

    name: str
    takes: tuple[int, ...]
    makes: tuple[int, ...]
    frees: tuple[int, ...]


class Network(nn.Module):
    """A plan in PyTorch. Made by :func:`isomorph.torch.build`; submodules and parameters have the plan's names.

    Call it with the plan's inputs, by position or by name. It returns one tensor, or a dictionary in order
    when the plan has several outputs. Inputs are checked against their contracts in eager mode, and not
    while ``torch.compile`` or ``torch.export`` capture it. It starts in training mode, as every module does.
    """

    _recomputes = False  # whether the backward pass computes anew what is inside a node

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan
        self._contracts = InputContracts(plan, KINDS, _full)
        for node in plan.nodes:
            refuse_taken(self, node.name, "a network")
            self.add_module(node.name, layer(node.operator))
        self._calls = _calls(plan)
        self._input_slots = tuple(value for _, value in plan.inputs)
        self._output_slots = tuple(plan.outputs)
        self._compute_inputs = tuple(
            i for i, (_, value) in enumerate(plan.inputs) if DTYPE_KINDS[plan.values[value].dtype] == "float"
        )
        smallest = min(plan.parameters, key=lambda parameter: prod(parameter.shape), default=None)
        self._smallest = None if smallest is None else smallest.path
        if smallest is None:  # something that a cast changes, where there are no parameters
            self.register_buffer("_empty", torch.empty(0, dtype=getattr(torch, plan.dtype)), persistent=False)
        self._witness: tuple[nn.Parameter, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan that this network runs."""
        return self._plan

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        tensors = self._contracts.bind(inputs, named)
        if not torch.compiler.is_compiling():
            self._check(tensors)
        return self._run(tensors)

    def _run(self, tensors: Sequence[torch.Tensor]) -> Any:
        values: list[Any] = [None] * (len(self._plan.values) + 1)  # the last stands for an absent input
        for slot, tensor in zip(self._input_slots, tensors, strict=True):
            values[slot] = tensor
        name = ""
        try:
            for name, takes, makes, frees in self._calls:
                module = getattr(self, name)
                taken = [values[slot] for slot in takes]
                if self._recomputes and torch.is_grad_enabled():
                    result = checkpoint(module, *taken, use_reentrant=False)
                else:
                    result = module(*taken)
                if len(makes) == 1:
                    values[makes[0]] = result
                else:
                    for slot, tensor in zip(makes, result, strict=True):
                        values[slot] = tensor
                for slot in frees:
                    values[slot] = None
        except Exception as error:
            self._tell_where(error, name)
            raise
        if len(self._output_slots) == 1:
            return values[self._output_slots[0][1]]
        return {name: values[slot] for name, slot in self._output_slots}

    def _check(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_nested:
                self._refuse_type(tensors)
            if tensor.is_meta:
                self._check_device(tensors)
        self._contracts.check(tensors)
        for index in self._compute_inputs:
            # The witness is a parameter as it was when built: nearly always right, and free to look at.
            if not self._witness or tensors[index].dtype != self._witness[0].dtype:
                self._check_dtype(index, tensors[index])

    def _refuse_type(self, tensors: Sequence[Any]) -> None:
        for name, tensor in zip(self._contracts.names, tensors, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise no_tensor(name, tensor)
            if tensor.is_nested:
                raise IsomorphError(
                    "E_RUNTIME",
                    f"input {name}: expected an ordinary tensor, got a nested one",
                    hints=["fill it up, as in x.to_padded_tensor(0), and give a mask to what takes one"],
                )
            if tensor.layout is not torch.strided:
                layout = str(tensor.layout).removeprefix("torch.").removeprefix("_")
                raise IsomorphError(
                    "E_RUNTIME",
                    f"input {name}: expected an ordinary tensor, got one of layout {layout}",
                    hints=["make it one: x.to_dense()"],
                )

    def _check_device(self, tensors: Sequence[torch.Tensor]) -> None:
        """E_RUNTIME for an input without values, unless the network has none either."""
        own = next((p.device for p in (*self.parameters(), *self.buffers())), None)
        for name, tensor in zip(self._contracts.names, tensors, strict=True):
            if tensor.is_meta and own is not None and own.type != "meta":
                raise IsomorphError(
                    "E_RUNTIME",
                    f"input {name} is on the meta device, which holds no values; the network is on {own}",
                    hints=["give a tensor with values, or use the network on the meta device too"],
                )

    def _check_dtype(self, index: int, tensor: torch.Tensor) -> None:
        expected = self._compute_dtype()
        if expected in (None, tensor.dtype) or torch.is_autocast_enabled(tensor.device.type):
            return  # autocast casts for itself
        raise IsomorphError(
            "E_RUNTIME",
            f"input {self._contracts.names[index]}: expected {dtype_name(expected)}, the network's dtype, "
            f"got {dtype_name(tensor.dtype)}",
            hints=["convert one of them, as in x.to(dtype) or model.to(dtype), or use torch.autocast"],
        )

    def _compute_dtype(self) -> torch.dtype | None:
        """The parameters' dtype now, which a cast may have changed; None where a layer was replaced."""
        if self._smallest is None:
            return self.get_buffer("_empty").dtype
        try:
            parameter = self.get_parameter(self._smallest)
        except AttributeError:
            return None
        self._witness = (parameter,)  # in a tuple, lest it be registered as the network's own
        return parameter.dtype if parameter.dtype.is_floating_point else None

    def to_empty(self, *, device: str | torch.device | int | None, recurse: bool = True) -> Network:
        """As for every module, and tied parameters stay one."""
        super().to_empty(device=device, recurse=recurse)
        tie(self)
        return self

    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> Any:
        """As for every module; a tied parameter is listed once, under its owner's path.

        So no two entries share memory, which safetensors would refuse.
        """
        state = super().state_dict(*args, destination=destination, prefix=prefix, keep_vars=keep_vars)
        prefix = args[1] if len(args) > 1 else prefix  # torch's own older way of giving it
        for path, owner in self._plan.ties.items():
            if _attribute(self, path) is _attribute(self, owner) and prefix + owner in state:
                state.pop(prefix + path, None)
        return state

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool,
        missing_keys: Any, unexpected_keys: Any, error_msgs: Any,
    ) -> None:  # fmt: skip
        """What precedes the loading of all submodules, of a network inside another module too.

        A tied parameter may come under either path or both, stays one, and takes no two values: else E_WEIGHTS.
        """
        _give_both_paths(self, state_dict, prefix, bool(local_metadata.get("assign_to_params_buffers")))
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _tell_where(self, error: Exception, name: str) -> None:
        node = self._plan.node(name)
        lines = [f"in node {name}, {node.operator.name}"]
        if node.location is not None:
            lines += node.location.render()
        error.add_note("\n".join(lines))

    def __str__(self) -> str:
        return str(self._plan)

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made for the plan (see network_class), so it cannot be found by name.
        return _blank, (self._plan,), self.__dict__


def no_tensor(name: str, given: Any) -> IsomorphError:
    """The error for an input of another type."""
    got = shorten(type(given).__name__)
    return IsomorphError("E_RUNTIME", f"input {name}: expected a torch.Tensor, got {got}")


def _attribute(module: nn.Module, path: str) -> Any:
    """What stands at a path, or None where a layer was replaced by one without it."""
    return reduce(lambda part, name: getattr(part, name, None), path.split("."), module)


def _give_both_paths(network: Network, state: Any, prefix: str, assign: bool) -> None:
    """Put what a state dictionary has for a tied parameter at both its paths, for submodules to find it there.

    Where it has nothing the tied path is given what it holds, so that the owner's alone is missing.

    Args:
        network: the network.
        state: the dictionary, changed; its keys begin with ``prefix``.
        prefix: the network's place in the module that loads.
        assign: whether tensors are taken over rather than copied: then as one parameter for both paths.
    """
    ties = network.plan.ties
    if not ties:
        return
    given = {path: state[prefix + path] for path in {*ties, *ties.values()} if prefix + path in state}
    merged = merge_ties(network.plan, {p: v for p, v in given.items() if not getattr(v, "is_meta", False)})
    for path, owner in ties.items():
        value = merged.get(owner, given.get(owner, given.get(path)))
        if value is None:
            tensor = _attribute(network, path)
            if isinstance(tensor, torch.Tensor):
                state[prefix + path] = tensor
            continue
        if assign and isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            trained = bool(getattr(_attribute(network, owner), "requires_grad", True))
            value = merged[owner] = nn.Parameter(value, requires_grad=trained)
        state[prefix + path] = state[prefix + owner] = value


def tie(network: Network) -> None:
    """Put every owner's parameter at the paths tied to it."""
    for path, owner in network.plan.ties.items():
        put(network, path, network.get_parameter(owner))


def put(network: Network, path: str, parameter: nn.Parameter) -> None:
    """Put a parameter at a path."""
    module, _, name = path.rpartition(".")
    setattr(network.get_submodule(module), name, parameter)


def _calls(plan: Plan) -> tuple[NodeCall, ...]:
    """The nodes in order, each with the values that it is the last to read."""
    absent = len(plan.values)
    kept = {value for _, value in plan.outputs}
    last_reader: dict[int, int] = {}
    for node in plan.nodes:
        for value in (*node.outputs, *(slot for slot in node.call_slots if slot is not None)):
            last_reader[value] = node.index
    frees: dict[int, list[int]] = {}
    for value, index in last_reader.items():
        if value not in kept:
            frees.setdefault(index, []).append(value)
    return tuple(
        NodeCall(
            node.name,
            tuple(absent if slot is None else slot for slot in node.call_slots),
            node.outputs,
            tuple(frees.get(node.index, ())),
        )
        for node in plan.nodes
    )


@lru_cache(maxsize=128)
def network_class(plan: Plan) -> type[Network]:
    """:class:`Network` with a ``forward`` of the plan's own.

    Its parameters are the plan's inputs: ``torch.export`` reads them there, so that ``dynamic_shapes`` is
    given for ``x`` and not for ``*inputs``. Its code is an object of its own: ``torch.compile`` counts
    compilations per code object and gives up after a few, which other plans must not use up.
    """
    generic: Any = Network.forward
    forward: Any = FunctionType(generic.__code__.replace(), generic.__globals__, "forward")
    names = ("self", *(name for name, _ in plan.inputs))
    if not any(iskeyword(name) for name in names) and len(set(names)) == len(names):
        kind = SignatureParameter.POSITIONAL_OR_KEYWORD
        first = next((i for i, name in enumerate(names) if name in plan.optional), len(names))
        forward.__signature__ = Signature(
            [
                SignatureParameter(name, kind, default=SignatureParameter.empty if i < first else None)
                for i, name in enumerate(names)
            ]
        )
    return type(
        "Network", (Network,), {"forward": forward, "__doc__": Network.__doc__, "__module__": __name__}
    )


def _blank(plan: Plan) -> Network:
    """A network of the right class, for unpickling and copying to fill."""
    cls = network_class(plan)
    return cls.__new__(cls)
