"""Generation with a prepared model: a step as functions of ids and a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import torch

from isomorph.backends.composing import compose, defined
from isomorph.backends.decoding import Decoder, run_fixed, symbol_sizes
from isomorph.backends.torch.cache import Array, TorchKeyValueCache, to_scores
from isomorph.backends.torch.engine import MOST_PROGRAMS, Engine
from isomorph.backends.torch.network import KINDS
from isomorph.backends.torch.twins import in_evaluation
from isomorph.backends.torch.writer import TorchWriter, eager, times_of_one_row
from isomorph.lowering.decoding_layout import DecodingLayout
from isomorph.lowering.rewrite import Rewritten
from isomorph.lowering.steps import step_programs

Tensor = torch.Tensor
Function = Callable[..., tuple[Tensor, ...]]


class EngineDecoder(Decoder):
    """See :class:`isomorph.backends.decoding.Decoder`."""

    def __init__(
        self, engine: Engine, layout: DecodingLayout, capacity: int, pads: Array, inputs: Mapping[int, Tensor]
    ) -> None:
        self.layout, self.state = layout, engine.current()
        store = self.state.store
        self.padded = bool(pads.any())
        device = store.device
        self.memory = TorchKeyValueCache(capacity, torch.from_numpy(pads).to(device) if self.padded else None)
        self.sizes = symbol_sizes(layout, inputs, KINDS)
        with torch.inference_mode():
            still = {
                node.name: in_evaluation(engine.network.get_submodule(node.name)) for node in layout.fixed
            }
            fixed = run_fixed(layout, still, {value: x.to(device) for value, x in inputs.items()})
        narrow = store.compute_dtype
        self.fixed = {v: x.to(narrow) if x.is_floating_point() else x for v, x in fixed.items()}
        self._functions(len(pads), 1)  # now, since the model may change on the way

    def feed(self, ids: Array, *, wanted: bool) -> Array | None:
        tensor = torch.from_numpy(ids).to(self.state.store.device)
        mixing, scoring, (before, after) = self._functions(*ids.shape)
        if ids.shape[1] == 1:
            self.state.stepped()
        with torch.inference_mode():
            kept = mixing(self.memory, tensor, *[self.fixed[value] for value in before])
            self.memory.offset += ids.shape[1]
            if not wanted:
                return None
            last = [x.narrow(axis, -1, 1) for x, (_, axis) in zip(kept, self.layout.kept, strict=True)]
            (logits,) = scoring(self.memory, *last, *[self.fixed[value] for value in after])
        return to_scores(logits[:, 0])

    def _functions(self, rows: int, length: int) -> tuple[Function, Function, tuple[tuple[int, ...], ...]]:
        steps = self.state.steps
        key = (rows, length, self.padded, *self.sizes.items())
        known = steps.get(key)
        if known is None:
            programs = step_programs(self.layout, rows, length, self.sizes, padded=self.padded)
            known = (self._function(programs.mixing), self._function(programs.scoring), programs.fixed)
            steps[key] = known
            if len(steps) > MOST_PROGRAMS:
                with suppress(KeyError):  # another thread was first
                    steps.popitem(last=False)
        return known

    def _function(self, program: Rewritten) -> Function:
        store = self.state.store
        writer = TorchWriter(store, remembering=True)
        with torch.no_grad():
            text = compose(eager(program, store, times_of_one_row(program, store)), writer, leading=["M"])
        return defined(text, writer.scope)
