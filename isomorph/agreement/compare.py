"""A plan's outputs and gradients in every backend, compared number by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from isomorph.agreement.bounds import gradient_bound, numeric_bound, value_bound
from isomorph.agreement.samples import order_one_weights, rounded, sample_inputs, sample_sizes
from isomorph.backends.available import REFERENCE, Gradients, Harness, load, preferred
from isomorph.backends.reference.differences import directional_derivative
from isomorph.dimensions import evaluate
from isomorph.plan import Plan
from isomorph.trace.build import trace

Array = np.ndarray[Any, Any]

DIRECTIONS = 2
"""Random directions in which derivatives are compared with central differences."""
DERIVATIVE_TOLERANCE = 1e-7
"""Allowed difference from the central differences, in units of ``sum(|gradient * direction|)``."""
FIRST_STEP = 2.0**-12
"""Longest step of the central differences: short, so that no step crosses a kink of relu or max."""


class Comparison(NamedTuple):
    """One quantity of one example in one backend.

    Attributes:
        example: its number on the documentation page, from 1.
        backend: whose number was compared.
        quantity: what was compared, such as ``output`` or ``gradient n0.weight``.
        difference, bound: the largest difference found and the one allowed.
    """

    example: int
    backend: str
    quantity: str
    difference: float
    bound: float

    @property
    def agrees(self) -> bool:
        """Whether the difference is within its bound; NaN is not."""
        return self.difference <= self.bound

    def __str__(self) -> str:
        return (
            f"example {self.example}, {self.backend}, {self.quantity}: "
            f"difference {self.difference:.3g}, allowed {self.bound:.3g}"
        )


def compare_outputs(
    plan: Plan,
    harnesses: Mapping[str, Harness],
    example: int = 1,
    seed: int = 0,
    dtype: str | None = None,
    at: Sequence[Mapping[str, int]] | None = None,
) -> list[Comparison]:
    """Outputs against the reference.

    Args:
        plan: the network.
        harnesses: the backends, by name.
        example, seed: as in :class:`Comparison` and :func:`check_operator`.
        dtype: what the backends compute in; the plan's by default. In float64 small faults show that
            rounding hides otherwise: another epsilon, the tanh form of gelu in place of the erf form.
        at: values for the symbols, one mapping after the other; all of :func:`sample_sizes` by default.
    """
    dtype = dtype or plan.dtype
    weights, comparisons = order_one_weights(plan, seed), []
    for sizes in sample_sizes(plan) if at is None else at:
        inputs = sample_inputs(plan, sizes, seed)
        expected = numeric_bound(plan, weights, inputs, dtype=dtype)
        where = f" at {', '.join(f'{s}={n}' for s, n in sizes.items())}" if sizes else ""
        where += f" in {dtype}" if dtype != plan.dtype else ""
        for backend, harness in harnesses.items():
            outputs = harness.forward(plan, weights, inputs, dtype)
            for name, array in expected.outputs.items():
                quantity = " ".join(filter(None, ("output", name))) + where
                difference = difference_of(outputs.get(name), array)
                comparisons.append(Comparison(example, backend, quantity, difference, expected.summed))
    return comparisons


def compare_gradients(
    plan: Plan, harnesses: Mapping[str, Harness], example: int = 1, seed: int = 0
) -> list[Comparison]:
    """Derivatives of ``sum(output * cotangent)``, with random cotangents of order one.

    The preferred backend that differentiates, torch where it is installed, is compared in float64 with central
    differences of the reference in random directions; then every backend in the plan's dtype with it.
    """
    differentiator = preferred("differentiate")
    if differentiator is None:
        return []
    problem = _GradientProblem.draw(plan, seed)
    given = (problem.weights, problem.inputs, problem.cotangents)
    exact = load(differentiator).gradients(plan, *given, "float64")
    assert exact is not None
    comparisons = list(problem.against_differences(differentiator, exact, example, seed))
    for backend, harness in harnesses.items():
        got = harness.gradients(plan, *given, plan.dtype)
        if got is not None:
            comparisons += problem.against_exact(backend, got, exact, example)
    return comparisons


class _GradientProblem(NamedTuple):
    """A number computed from weights and inputs, to be differentiated."""

    plan: Plan
    sizes: dict[str, int]
    weights: dict[str, Array]
    inputs: dict[str, Array]
    cotangents: dict[str, Array]

    @classmethod
    def draw(cls, plan: Plan, seed: int) -> _GradientProblem:
        sizes, rng = sample_sizes(plan)[0], np.random.default_rng([seed, 1])
        cotangents = {}
        for name, value in plan.outputs:
            shape = tuple(evaluate(size, sizes) for size in plan.values[value].shape)
            cotangents[name] = rounded(rng.standard_normal(shape), plan.dtype)
        return cls(plan, sizes, order_one_weights(plan, seed), sample_inputs(plan, sizes, seed), cotangents)

    def value(self, point: Mapping[str, Array]) -> float:
        """The number, with the arrays of ``point`` in place of weights and inputs."""
        weights = {path: point[f"weight {path}"] for path in self.weights}
        inputs = {name: point.get(f"input {name}", array) for name, array in self.inputs.items()}
        outputs = load(REFERENCE).forward(self.plan, weights, inputs, "float64")
        return float(sum((outputs[name] * cotangent).sum() for name, cotangent in self.cotangents.items()))

    def against_differences(
        self, backend: str, exact: Gradients, example: int, seed: int
    ) -> Iterator[Comparison]:
        point = {f"weight {path}": array for path, array in self.weights.items()}
        point |= {f"input {name}": self.inputs[name] for name in exact.inputs}
        slopes = {f"weight {path}": g for path, g in exact.parameters.items()}
        slopes |= {f"input {name}": g for name, g in exact.inputs.items()}
        rng = np.random.default_rng([seed, 2])
        for number in range(DIRECTIONS if point else 0):
            direction = {key: rng.standard_normal(array.shape) for key, array in point.items()}
            step = FIRST_STEP / max(float(np.abs(d).max(initial=0.0)) for d in direction.values())
            measured = directional_derivative(self.value, point, direction, step).value
            products = [slopes[key] * d for key, d in direction.items()]
            difference = abs(measured - float(sum(p.sum() for p in products)))
            bound = DERIVATIVE_TOLERANCE * float(sum(np.abs(p).sum() for p in products))
            yield Comparison(example, backend, f"float64 derivative, direction {number}", difference, bound)

    def against_exact(
        self, backend: str, got: Gradients, exact: Gradients, example: int
    ) -> Iterator[Comparison]:
        program, dtype = trace(self.plan, self.sizes), self.plan.dtype
        for node in self.plan.nodes:
            bound = gradient_bound(program, node.name, exact.parameters, dtype=dtype)
            for path in (path for path in exact.parameters if path.startswith(node.name + ".")):
                difference = difference_of(got.parameters.get(path), exact.parameters[path])
                yield Comparison(example, backend, f"gradient {path}", difference, bound)
        for name, array in exact.inputs.items():
            largest = float(np.abs(array).max(initial=0.0))
            bound = sum(value_bound(program.reduction(node.name), largest, dtype) for node in self.plan.nodes)
            difference = difference_of(got.inputs.get(name), array)
            yield Comparison(example, backend, f"gradient of input {name}", difference, bound)


def difference_of(got: Any, expected: Array) -> float:
    """``max |got - expected|``; infinite where something is missing or has another shape."""
    if got is None or np.shape(got) != expected.shape:
        return float("inf")
    apart = np.abs(np.asarray(got, dtype=np.float64) - expected)
    return float(np.max(apart, initial=0.0))  # NaN stays NaN, which is within no bound
