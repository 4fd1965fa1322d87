"""Generation with a prepared model in JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax

from isomorph.backends.composing import compose, defined
from isomorph.backends.decoding import symbol_sizes
from isomorph.backends.jax import writer
from isomorph.backends.jax.build import KINDS, broadcasting
from isomorph.backends.jax.decoding import CompiledSteps, JaxKeyValueCache
from isomorph.backends.jax.engine_weights import Kept, collect
from isomorph.backends.jax.writer import JaxWriter
from isomorph.lowering.decoding_layout import DecodingLayout
from isomorph.lowering.derived import Weight
from isomorph.lowering.rewrite import Rewritten
from isomorph.lowering.steps import fixed_program, rows_at, step_programs

Tensor = jax.Array


class EngineSteps(CompiledSteps):
    """Steps of generation from a prepared model's weights."""

    def __init__(
        self,
        layout: DecodingLayout,
        dtype: Any,
        narrow: bool,
        inputs_first: Callable[[Weight], bool],
        largest: float,
    ) -> None:
        super().__init__(layout, dict(writer.compiler_options()))
        self._largest = largest
        self.keys: dict[Kept, bool] = {}
        self._dtype, self._narrow = dtype, narrow
        for length in (1, 2):  # whatever the length, these are all the weights
            programs = step_programs(layout, rows_at(layout, {}), length, {}, padded=True, largest=largest)
            collect(programs.mixing, self.keys, inputs_first)
            collect(programs.scoring, self.keys, inputs_first)
        inputs = [layout.plan.inputs[index][1] for index in layout.others]
        outputs = [output for node in layout.fixed for output in node.outputs]
        collect(fixed_program(layout, {}, inputs, outputs, largest=largest), self.keys, inputs_first)

    def _fixed(self, parameters: Any, inputs: Mapping[int, Tensor]) -> dict[int, Tensor]:
        layout = self.layout
        sizes = symbol_sizes(layout, inputs, KINDS)
        wanted = [output for node in layout.fixed for output in node.outputs]
        program = fixed_program(layout, sizes, list(inputs), wanted, largest=self._largest)
        tensors = self._run(program, parameters, None, list(inputs.values()))
        return {**inputs, **dict(zip(wanted, tensors, strict=True))}

    def _scores(
        self,
        parameters: Any,
        memory: JaxKeyValueCache,
        ids: Tensor,
        fixed: Mapping[int, Tensor],
        *,
        wanted: bool,
    ) -> Tensor | None:
        rows, length = ids.shape
        inputs = {v: fixed[v] for _, v in self.layout.plan.inputs if v in fixed}
        sizes = symbol_sizes(self.layout, inputs, KINDS)
        programs = step_programs(self.layout, rows, length, sizes, padded=True, largest=self._largest)
        before, after = programs.fixed
        kept = self._run(programs.mixing, parameters, memory, [ids, *[fixed[v] for v in before]])
        if not wanted:
            return None
        last = [
            lax.slice_in_dim(x, length - 1, length, axis=axis)
            for x, (_, axis) in zip(kept, self.layout.kept, strict=True)
        ]
        (logits,) = self._run(programs.scoring, parameters, memory, [*last, *[fixed[v] for v in after]])
        return logits[:, 0]

    def _run(self, program: Rewritten, weights: Any, memory: Any, tensors: Sequence[Any]) -> Any:
        writer = JaxWriter(self.keys, weights, self._dtype, self._narrow, remembering=memory is not None)
        with broadcasting():
            return defined(compose(program, writer, leading=["M"]), writer.scope)(memory, *tensors)
