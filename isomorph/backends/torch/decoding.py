"""Generation in PyTorch: the model's own modules, computing with primitives that remember.

A generating model is a copy of the module tree that shares every parameter and every native layer, so that
hooks, adapters and quantised layers act as they do in a call of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from isomorph.backends.decoding import Decoder, Layout, RememberingPrimitives, run_fixed, run_moving
from isomorph.backends.torch import primitives
from isomorph.backends.torch.build import Network
from isomorph.backends.torch.layers import OperatorModule
from isomorph.backends.torch.weights import to_numpy as tensor_to_numpy
from isomorph.backends.torch.weights import to_tensor, unwrap
from isomorph.errors import IsomorphError
from isomorph.operators.declare import Operator
from isomorph.plan import Plan

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]


def plan_of(model: Any) -> Plan:
    from isomorph.backends.torch.engine import Engine

    if isinstance(model, Engine):
        return model.plan
    network = unwrap(model)
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


class TorchMemory:
    """Keys and values in tensors made once; rows are written in place.

    Args:
        capacity: slots.
        pads: the first slot of each row, ``[B]``, or None when all begin at 0.
    """

    def __init__(self, capacity: int, pads: Tensor | None) -> None:
        self.capacity, self.pads = capacity, pads
        self.first = 0 if pads is None else int(pads.max())  # from this slot on every row has begun
        self.offset = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.shown = None  # (B, C): which slots hold ids
        if pads is not None:
            self.shown = torch.arange(capacity, device=pads.device) >= pads[:, None]

    def attend(self, call: int, q: Tensor, k: Tensor, v: Tensor, *, window: int, softcap: float) -> Tensor:
        if call == len(self.keys):
            shape = (*k.shape[:2], self.capacity, k.shape[3])
            self.keys.append(k.new_empty(shape))
            self.values.append(v.new_empty(shape))
        T, keys, values = k.shape[2], self.keys[call], self.values[call]
        end = self.offset + T
        if (
            self.shown is not None and self.offset < self.first
        ):  # what padding holds is never used, NaN neither
            kept = self.shown[:, None, self.offset : end, None]  # (B, 1, T, 1)
            k, v = torch.where(kept, k, 0.0), torch.where(kept, v, 0.0)
        keys[:, :, self.offset : end], values[:, :, self.offset : end] = k, v
        start = max(0, end - T - window + 1) if window else 0
        keys, values = keys[:, :, start:end], values[:, :, start:end]
        mask = None if self.shown is None or start >= self.first else self.shown[:, start:end]
        # One new position sees every slot that is left.
        causal, window = T > 1, window if T > 1 else 0
        return primitives.attend(q, keys, values, mask, causal=causal, window=window, softcap=softcap)

    def positions(self, table: Tensor, length: int) -> Tensor:
        if self.pads is None:
            return primitives.narrow(table, 0, self.offset, self.offset + length)
        return table[self._places(length)]  # (B, T, D)

    def cos_sin(self, length: int, frequencies: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
        end = self.offset + length
        cos, sin = primitives.cos_sin(end, frequencies, like)
        if self.pads is None:
            return cos[self.offset :], sin[self.offset :]
        places = self._places(length)
        return cos[places], sin[places]  # (B, T, d/2)

    def _places(self, length: int) -> Tensor:
        """Positions ``[B, T]`` of the new slots; those of padding are 0."""
        assert self.pads is not None
        slots = torch.arange(self.offset, self.offset + length, device=self.pads.device)
        return (slots - self.pads[:, None]).clamp(min=0)


class TorchDecoder:
    """See :class:`isomorph.backends.decoding.Decoder`."""

    def __init__(
        self, network: Network, layout: Layout, capacity: int, pads: Array, inputs: Mapping[str, Any]
    ) -> None:
        self.layout = layout
        self.device = next((p.device for p in network.parameters()), torch.device("cpu"))
        given = torch.from_numpy(pads).to(self.device) if pads.any() else None
        self.memory = TorchMemory(capacity, given)
        self.primitives = RememberingPrimitives(primitives, self.memory)
        with torch.inference_mode():
            fixed = {layout.plan.inputs[i][1]: self._input(inputs, i) for i in layout.others}
            still = {node.name: _evaluating(network.get_submodule(node.name), None) for node in layout.fixed}
            self.fixed = run_fixed(layout, still, fixed)
        self.layers = {
            node.name: _evaluating(network.get_submodule(node.name), self.primitives)
            for node in layout.moving
        }

    def _input(self, inputs: Mapping[str, Any], index: int) -> Tensor:
        return to_tensor(inputs[self.layout.plan.inputs[index][0]]).to(self.device)

    def feed(self, ids: Array, *, wanted: bool) -> Array | None:
        with torch.inference_mode():
            tensor = torch.from_numpy(ids).to(self.device)
            self.primitives.restart(self.memory)
            logits = run_moving(self.layout, self.layers, self.primitives, tensor, self.fixed, wanted=wanted)
            self.memory.offset += ids.shape[1]
            return None if logits is None else tensor_to_numpy(logits)


def start(
    model: Any, layout: Layout, capacity: int, pads: Array, inputs: Mapping[str, Any]
) -> Decoder:
    from isomorph.backends.torch.engine import Engine

    if isinstance(model, Engine):
        from isomorph.backends.torch.engine_decoding import EngineDecoder

        return EngineDecoder(model, layout, capacity, pads, inputs)
    return TorchDecoder(unwrap(model), layout, capacity, pads, inputs)


def _evaluating(module: nn.Module, remembering: RememberingPrimitives | None) -> nn.Module:
    """A copy that shares all parameters and native layers, without dropout, with other primitives."""
    if isinstance(module, nn.Dropout):
        return nn.Identity()
    if not isinstance(module, OperatorModule):
        return module
    twin = copy.copy(module)
    twin._modules = {
        name: None if child is None else _evaluating(child, remembering)
        for name, child in module._modules.items()
    }
    twin.training = False
    if remembering is not None:
        twin._primitives = remembering  # type: ignore[assignment]
    return twin


def to_numpy(ids: Any) -> Array | None:
    return tensor_to_numpy(ids) if isinstance(ids, Tensor) else None


def like(ids: Array, given: Any) -> Any:
    return torch.from_numpy(ids).to(given.device)
