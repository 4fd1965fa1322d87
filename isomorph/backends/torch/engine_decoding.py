"""Generation with a prepared model: a step as functions of ids and a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from isomorph.backends.decoding import Layout, run_fixed
from isomorph.backends.engine import compose
from isomorph.backends.torch.decoding import Array, TorchMemory
from isomorph.backends.torch.engine import Engine, TorchWriter
from isomorph.backends.torch.weights import to_numpy, to_tensor
from isomorph.engine.rewrite import Rewritten
from isomorph.engine.steps import step_programs

Tensor = torch.Tensor
Function = Callable[..., tuple[Tensor, ...]]


class EngineDecoder:
    """See :class:`isomorph.backends.decoding.Decoder`."""

    def __init__(
        self, engine: Engine, layout: Layout, capacity: int, pads: Array, inputs: Mapping[str, Any]
    ) -> None:
        self.engine, self.layout = engine, layout
        engine.refresh()
        self.padded = bool(pads.any())
        device = engine.store.device
        self.memory = TorchMemory(capacity, torch.from_numpy(pads).to(device) if self.padded else None)
        given = {layout.plan.inputs[i][1]: to_tensor(inputs[layout.plan.inputs[i][0]]) for i in layout.others}
        named = [layout.plan.values[value] for value in given]
        self.sizes = {
            str(symbol): size
            for value, tensor in zip(named, given.values(), strict=True)
            for symbol, size in zip(value.shape, tensor.shape, strict=True)
            if type(symbol) is not int
        }
        with torch.inference_mode():
            still = {node.name: engine.network.get_submodule(node.name) for node in layout.fixed}
            fixed = run_fixed(layout, still, {value: x.to(device) for value, x in given.items()})
        narrow = engine.store.compute_dtype
        self.fixed = {v: x.to(narrow) if x.is_floating_point() else x for v, x in fixed.items()}

    def feed(self, ids: Array, *, wanted: bool) -> Array | None:
        tensor = torch.from_numpy(ids).to(self.engine.store.device)
        mixing, scoring, (before, after) = self._functions(*ids.shape)
        with torch.inference_mode():
            kept = mixing(self.memory, tensor, *[self.fixed[value] for value in before])
            self.memory.offset += ids.shape[1]
            if not wanted:
                return None
            last = [x.narrow(axis, -1, 1) for x, (_, axis) in zip(kept, self.layout.kept, strict=True)]
            (logits,) = scoring(self.memory, *last, *[self.fixed[value] for value in after])
        return to_numpy(logits[:, 0])

    def _functions(self, rows: int, length: int) -> tuple[Function, Function, tuple[tuple[int, ...], ...]]:
        key = (rows, length, self.padded, *self.sizes.items())
        known = self.engine.steps.get(key)
        if known is None:
            programs = step_programs(self.layout, rows, length, self.sizes, padded=self.padded)
            made = (self._made(programs.mixing), self._made(programs.scoring), programs.fixed)
            known = self.engine.steps[key] = made
        return known

    def _made(self, program: Rewritten) -> Function:
        writer = TorchWriter(self.engine.store, remembering=True)
        with torch.no_grad():
            text = compose(program, writer, leading=["M"])
        exec(compile(text, f"<step of {self.engine.plan!r}>", "exec"), writer.scope)
        return writer.scope["run"]
