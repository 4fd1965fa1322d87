"""Weights and inputs under which a wrong network shows: every part has a share in the outputs, at any depth.

Drawn at order one throughout, a network hides what it does wrong: an epsilon of 1e-5 is nothing beside a variance
of 1, one branch is little beside the sum of all before it, and biases that all positions share drown what tells
positions apart. So scales follow from where a parameter's result goes, which is read from the trace:

- what enters a norm, or a sum with another tensor of the network (the residual stream), is small: :data:`STREAM`,
  and :data:`BRANCH` of that where a matrix product writes it;
- everything else is of order one, matrices being drawn for the scale of what they read.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from isomorph.agreement.samples import rounded, sample_inputs
from isomorph.plan import Plan
from isomorph.trace.build import trace
from isomorph.trace.program import Program, Step

Array = np.ndarray[Any, Any]

STREAM = 1 / 16
"""Scale of what norms read, and of the stream that branches are added to: an epsilon of 1e-5 is 0.1 % of it."""
BRANCH = 1 / 8
"""Scale of one branch in units of the stream, which 48 blocks of two branches make 1.6 times as large."""
BIAS = 1 / 8
"""Scale of a bias in units of the result that it is added to, and of what sets a norm's gains apart."""


class Probe(NamedTuple):
    """Arrays to compute with: weights by parameter path, inputs by name."""

    weights: dict[str, Array]
    inputs: dict[str, Array]


def probe(plan: Plan, sizes: Mapping[str, int], seed: int = 0) -> Probe:
    """Draw weights and inputs, rounded to the plan's dtype (bfloat16 to float32).

    Args:
        plan: the network.
        sizes: a value for every symbol of its inputs.
        seed: equal seeds give equal arrays.
    """
    program = trace(plan, sizes)
    scales = _Scales(program)
    weights = {}
    for parameter in plan.parameters:
        rng = np.random.default_rng([seed, zlib.crc32(parameter.path.encode())])
        numbers, id = rng.standard_normal(parameter.shape), program.parameters[parameter.path].id
        numbers = 1 + BIAS * numbers if id in scales.gains else numbers
        weights[parameter.path] = rounded(numbers * scales.parameters.get(id, 1.0), plan.dtype)
    inputs = sample_inputs(plan, sizes, seed)
    for name, tensor in program.inputs.items():
        if inputs[name].dtype.kind == "f":
            inputs[name] = rounded(inputs[name] * scales.tensors[tensor.id], plan.dtype)
    return Probe(weights, inputs)


class _Scales:
    """Standard deviations to draw parameters with, and those that tensors then have, by id.

    Attributes:
        parameters: of a parameter, as its first use wants it.
        gains: parameters that a norm multiplies by, drawn around their scale.
        tensors: about how large a tensor's elements are.
    """

    def __init__(self, program: Program) -> None:
        self.parameters: dict[int, float] = {}
        self.gains: set[int] = set()
        # What is a parameter, or one seen otherwise, and which.
        self._origin = {tensor.id: tensor.id for tensor in program.parameters.values()}
        for step in program.steps:
            if step.inputs and not step.flops and self._origin.keys() >= set(step.inputs):
                self._origin.update(dict.fromkeys(step.outputs, self._origin[step.inputs[0]]))
        self._streams = self._entering(program)
        self.tensors = {tensor.id: self._target(tensor.id) for tensor in program.inputs.values()}
        for step in program.steps:
            scale = self._result(step)
            self.tensors.update(dict.fromkeys(step.outputs, scale))

    def _entering(self, program: Program) -> set[int]:
        """Tensors that a norm reads or the stream takes up, with nothing but a gain or a bias on the way."""
        entering: set[int] = set()
        for step in reversed(program.steps):
            given = self._given(step)
            if "eps" in step.attributes or (step.primitive == "add" and len(given) == 2):
                entering.update(given)
                continue
            passes = not step.flops or (step.primitive in ("add", "multiply") and len(given) == 1)
            if passes and step.outputs[0] in entering:
                entering.update(step.inputs)
        return entering

    def _target(self, id: int) -> float:
        return STREAM if id in self._streams else 1.0

    def _given(self, step: Step) -> list[int]:
        """The inputs of a step that are not parameters."""
        return [id for id in step.inputs if id not in self._origin]

    def _result(self, step: Step) -> float:
        """Draw the parameters of a step; how large its result is."""
        given = [self.tensors.get(id, 1.0) for id in self._given(step)]
        drawn = [id for id in step.inputs if id in self._origin]
        size, target = max(given, default=1.0), self._target(step.outputs[0])
        is_norm = "eps" in step.attributes
        if not drawn:
            total = sum(scale**2 for scale in given) ** 0.5
            return 1.0 if is_norm else total if step.primitive == "add" else size
        first, *rest = drawn
        if step.primitive == "multiply":
            return size * self._draw(first, 1.0)
        if step.primitive == "add":
            return (size**2 + self._draw(first, target if target == STREAM else size) ** 2) ** 0.5
        if is_norm:
            self.gains.add(self._origin[first])
            result = self._draw(first, target)
        elif step.reduction > 1:
            result = target * BRANCH if step.primitive == "linear" and target == STREAM else target
            fan_in = size * step.reduction**0.5
            result = self._draw(first, result / fan_in) * fan_in
        else:  # rows of a table
            result = self._draw(first, target)
        for id in rest:
            self._draw(id, result * BIAS)
        return result

    def _draw(self, id: int, scale: float) -> float:
        """Have a parameter drawn at a scale, unless an earlier use wants another; the scale that it has."""
        return self.parameters.setdefault(self._origin[id], scale)
