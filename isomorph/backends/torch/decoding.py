"""Generation in PyTorch: the model's own modules, computing with primitives that remember.

A generating model is a copy of the module tree that shares every parameter and every native layer, so that
hooks, adapters and quantised layers act as they do in a call of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from isomorph.backends.decoding import (
    Decoder,
    RememberingPrimitives,
    check_contracts,
    run_fixed,
    run_moving,
)
from isomorph.backends.torch import kernels, primitives
from isomorph.backends.torch.build import build, usable_device
from isomorph.backends.torch.cache import Array, Tensor, TorchKeyValueCache, to_scores
from isomorph.backends.torch.engine import Engine
from isomorph.backends.torch.engine_decoding import EngineDecoder
from isomorph.backends.torch.layers import OperatorModule
from isomorph.backends.torch.network import KINDS, Network, no_tensor
from isomorph.backends.torch.twins import twin
from isomorph.backends.torch.weights import to_numpy as tensor_to_numpy
from isomorph.backends.torch.weights import to_tensor, unwrap
from isomorph.errors import IsomorphError
from isomorph.lowering.decoding_layout import DecodingLayout
from isomorph.operators.declare import Operator
from isomorph.plan import Plan

__all__ = ["build", "inputs", "like", "plan_of", "slots", "start", "to_numpy"]


def plan_of(model: Any) -> Plan:
    if isinstance(model, Engine):
        if not model.current().departure:
            return model.plan
        model = model.network
    network = unwrap(model)
    first = next(network.parameters(), None)
    if first is not None and first.is_meta:
        usable_device(first.device, 'build it with device="cpu", or load weights first', computing=True)
    for node in network.plan.nodes:
        _check(network.get_submodule(node.name), node.operator, node.name)
    return network.plan


def _check(module: nn.Module, operator: Operator, path: str) -> None:
    """E_ARGUMENT where something else stands in the place of an operator that would have to remember."""
    if operator.leaf is not None:
        return
    if not isinstance(module, OperatorModule):
        raise IsomorphError(
            "E_ARGUMENT",
            f"{path} ({operator.name}) was replaced by {type(module).__name__}, which cannot take part in generation",
            hints=["replace layers such as linear inside it, or change the definition"],
        )
    for name, child in operator.child_operators.items():
        _check(module.get_submodule(name), child, f"{path}.{name}")


def slots(length: int, chunk: int) -> int:
    return length


class TorchDecoder(Decoder):
    """See :class:`isomorph.backends.decoding.Decoder`."""

    def __init__(
        self,
        network: Network,
        layout: DecodingLayout,
        capacity: int,
        pads: Array,
        inputs: Mapping[int, Tensor],
    ) -> None:
        self.layout = layout
        self.device = next((p.device for p in network.parameters()), torch.device("cpu"))
        given = torch.from_numpy(pads).to(self.device) if pads.any() else None
        self.memory = TorchKeyValueCache(capacity, given)
        self.primitives = RememberingPrimitives(primitives, self.memory)
        with torch.inference_mode():
            self.inputs = {value: tensor.to(self.device) for value, tensor in inputs.items()}
            still = {node.name: _evaluating(network.get_submodule(node.name), None) for node in layout.fixed}
            self.fixed = run_fixed(layout, still, self.inputs)
        self.layers = {
            node.name: _evaluating(network.get_submodule(node.name), self.primitives)
            for node in layout.moving
        }
        self.network = network

    def _with_hooks(self, ids: Tensor) -> Tensor:
        """The scores as the network's own hooks see and leave them."""
        copy = twin(self.network, training=False, _compiled_call_impl=None, forward=self._forward)
        given = {**self.inputs, self._ids: ids}
        result = copy(*[given[value] for _, value in self.layout.plan.inputs if value in given])
        return (next(iter(result.values())) if isinstance(result, dict) else result)[:, -1]

    def _forward(self, *inputs: Tensor) -> Any:
        """The network's outputs as far as they are computed: scores ``[B, 1, V]`` behind the last id."""
        plan = self.layout.plan
        given = [value for _, value in plan.inputs if value in self.inputs or value == self._ids]
        scores = self._run(inputs[given.index(self._ids)], wanted=True)
        assert scores is not None
        if len(plan.outputs) == 1:
            return scores[:, None]
        return {name: scores[:, None] for name, value in plan.outputs if value == self.layout.logits}

    @property
    def _ids(self) -> int:
        return self.layout.plan.inputs[self.layout.tokens][1]

    def _run(self, ids: Tensor, *, wanted: bool) -> Tensor | None:
        self.primitives.restart(self.memory)
        scores = run_moving(self.layout, self.layers, self.primitives, ids, self.fixed, wanted=wanted)
        self.memory.offset += ids.shape[1]
        return scores

    def feed(self, ids: Array, *, wanted: bool) -> Array | None:
        with torch.inference_mode():
            tensor = torch.from_numpy(ids).to(self.device)
            hooked = self.network._forward_hooks or self.network._forward_pre_hooks
            scores = self._with_hooks(tensor) if hooked else self._run(tensor, wanted=wanted)
            return to_scores(scores) if wanted and scores is not None else None


def inputs(
    model: Any, layout: DecodingLayout, shape: tuple[int, int], given: Mapping[str, Any]
) -> dict[int, Tensor]:
    """The further inputs as tensors by their value ids, checked as a call of the model checks them."""
    network = model.network if isinstance(model, Engine) else unwrap(model)
    tensors: dict[int, Tensor] = {}
    for index in layout.others:
        name, value = layout.plan.inputs[index]
        try:
            tensor = to_tensor(given[name]) if isinstance(given[name], np.ndarray | Tensor) else None
        except TypeError:  # an array of no numbers
            tensor = None
        if tensor is None:
            raise no_tensor(name, given[name])
        tensors[value] = tensor
    tensors = check_contracts(layout, shape, tensors, KINDS)
    for index in layout.others:
        if index in network._compute_inputs:
            network._check_dtype(index, tensors[layout.plan.inputs[index][1]])
    return tensors


def start(
    model: Any, layout: DecodingLayout, capacity: int, pads: Array, inputs: Mapping[int, Tensor]
) -> Decoder:
    if isinstance(model, Engine):
        if not model.current().departure:
            return EngineDecoder(model, layout, capacity, pads, inputs)
        model = model.network
    return TorchDecoder(unwrap(model), layout, capacity, pads, inputs)


class QuickLinear(nn.Linear):
    """A ``torch.nn.Linear`` that multiplies by the kernel that is faster for its rows."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        rows = input.numel() // max(1, input.shape[-1])
        if (
            input.dtype == weight.dtype
            and kernels.prefers_onednn(rows, tuple(weight.shape), weight.dtype, weight.device)
            and not kernels.is_marked(weight)  # by an engine beside, which would take reading it for a write
        ):
            operators = kernels.onednn()
            assert operators is not None
            return operators.linear(input, weight, self.bias, "none", [], "")
        return functional.linear(input, weight, self.bias)


def _evaluating(module: nn.Module, remembering: RememberingPrimitives | None) -> nn.Module:
    """A copy that shares all parameters and native layers, without dropout, with other primitives."""
    if isinstance(module, nn.Dropout):
        return nn.Identity()
    if type(module) is nn.Linear:
        return twin(module, kind=QuickLinear)
    if not isinstance(module, OperatorModule):
        return module
    attributes: dict[str, Any] = {} if remembering is None else {"_primitives": remembering}
    return twin(module, lambda child: _evaluating(child, remembering), training=False, **attributes)


def to_numpy(ids: Any) -> Array | None:
    return tensor_to_numpy(ids) if isinstance(ids, Tensor) else None


def like(ids: Array, given: Any) -> Any:
    return torch.from_numpy(ids).to(given.device)
