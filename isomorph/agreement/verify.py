"""Whether every installed backend computes what the float64 reference computes, in numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from isomorph.agreement.bounds import (
    EPSILON,
    GRADIENT_MARGIN,
    NumericBound,
    measured_bounds,
    numeric_bound,
)
from isomorph.agreement.probe import probe
from isomorph.agreement.rounding import RUNS, evaluate_rounded
from isomorph.agreement.samples import sample_inputs, sample_sizes
from isomorph.backends.available import REFERENCE, Gradients, Harness, available, load, preferred
from isomorph.display.memory import available_bytes, verification_bytes
from isomorph.errors import IsomorphError
from isomorph.plan import Plan
from isomorph.trace.build import sizes_with
from isomorph.weights.initial import check_seed, numpy_dtype

Array = np.ndarray[Any, Any]


class Agreement(NamedTuple):
    """One quantity of one backend, compared.

    Attributes:
        backend: who computed it.
        quantity: ``output``, ``output logits``, or ``gradients``.
        where: of gradients, the parameter that comes closest to its bound.
        difference: largest absolute difference.
        relative: the same in units of the largest true value.
        ulps: the same in units of the last place of the largest true value.
        bound: what the difference may be.
        seconds: one call, building the network included.
    """

    backend: str
    quantity: str
    where: str
    difference: float
    relative: float
    ulps: float
    bound: float
    seconds: float

    @property
    def ratio(self) -> float:
        """Difference in units of the bound; up to 1 is agreement."""
        if self.bound:
            return self.difference / self.bound
        return 0.0 if self.difference == 0 else float("inf")

    @property
    def agrees(self) -> bool:
        """Whether the difference is within its bound; NaN is not."""
        return self.difference <= self.bound


class Verification(NamedTuple):
    """All comparisons of one network.

    Attributes:
        dtype: what the backends computed in.
        sizes: the value of every symbol.
        rows: the comparisons.
        reference_seconds: how long the reference took.
        differentiator: the backend whose derivatives in double precision were taken for the true ones; None
            when gradients were not compared.
    """

    dtype: str
    sizes: dict[str, int]
    rows: tuple[Agreement, ...]
    reference_seconds: float
    differentiator: str | None = None

    @property
    def agrees(self) -> bool:
        """Whether all comparisons are within their bounds."""
        return all(row.agrees for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        rows = [{**row._asdict(), "ratio": row.ratio, "agrees": row.agrees} for row in self.rows]
        return {**self._asdict(), "rows": rows, "agrees": self.agrees}


def verify(
    plan: Plan,
    weights: Mapping[str, Any] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    backends: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Run every installed backend, forward and backward, and compare with the reference.

    The backends compute in float32 (a float64 plan in float64). The true outputs are the reference's; the
    true gradients, of the sum of all outputs times random numbers, are those of the preferred backend that
    differentiates, torch where it is installed, in double precision. Bounds are those of
    :mod:`isomorph.agreement.bounds`.

    Args:
        plan: the network.
        weights: its weights; drawn when None so that losing any of them shows (:mod:`isomorph.agreement.probe`).
        sizes: values of symbols; small ones are chosen for those left out.
        seed: of inputs, projections and drawn weights.
        backends: those to compare; all that are installed by default.
        progress: told what happens next.

    Raises:
        IsomorphError: E_ARGUMENT for unknown sizes or a seed below 0, E_BACKEND when only the reference is
            installed, E_RESOURCE when the comparison would not fit into memory.
    """
    check_seed(seed)
    names = [name for name in (available() if backends is None else backends) if name != REFERENCE]
    if not names:
        raise IsomorphError(
            "E_BACKEND",
            "no backend is installed that could be compared with the reference",
            hints=['pip install "isomorph[torch]", or pip install "isomorph[flax]"'],
        )
    chosen = sizes_with(plan, {**sample_sizes(plan)[0], **(sizes or {})})
    _check_memory(plan, chosen)
    problem = _Problem(plan, weights, chosen, seed)
    progress("reference")
    begun = time.perf_counter()
    truth = numeric_bound(plan, problem.weights, problem.inputs, dtype=problem.dtype)
    reference_seconds = time.perf_counter() - begun
    problem.project(truth.outputs)
    slopes, bounds, differentiator = None, {}, preferred("differentiate")
    if differentiator is not None:
        progress("gradients in double precision")
        slopes = problem.gradients(load(differentiator), "float64")
        if slopes is not None and slopes.parameters:
            progress("gradients with rounding")
            bounds = problem.gradient_bounds(load(differentiator), slopes, truth)
    rows: list[Agreement] = []
    for name in names:
        progress(name)
        rows += problem.compare(name, load(name), truth, slopes, bounds)
    compared = differentiator if any(row.quantity == "gradients" for row in rows) else None
    return Verification(problem.dtype, problem.sizes, tuple(rows), reference_seconds, compared)


def _check_memory(plan: Plan, sizes: Mapping[str, int]) -> None:
    """E_RESOURCE before anything is allocated that the machine has no room for."""
    needed, room = verification_bytes(plan, sizes), available_bytes()
    if room is not None and needed > room:
        raise IsomorphError(
            "E_RESOURCE",
            f"comparing {plan.parameter_count:,} parameters with a float64 reference needs about "
            f"{needed / 2**30:.1f} GiB, and {room / 2**30:.1f} GiB of memory are available",
            hints=[
                "verify a smaller network: fewer repeated blocks or a narrower width test the same operators"
            ],
        )


class _Problem:
    """What every backend is asked to compute."""

    def __init__(
        self, plan: Plan, weights: Mapping[str, Any] | None, sizes: dict[str, int], seed: int
    ) -> None:
        self.plan = plan
        self.dtype = "float64" if plan.dtype == "float64" else "float32"
        self.sizes = sizes
        inputs = sample_inputs(plan, self.sizes, seed)
        drawn, self.inputs = probe(plan, self.sizes, seed) if weights is None else (weights, inputs)
        # A backend holds them in the plan's dtype, so that is what the reference must get.
        self.weights = {
            path: np.asarray(array).astype(numpy_dtype(plan.dtype)) for path, array in drawn.items()
        }
        self.seed = seed
        self.cotangents: dict[str, Array] = {}

    def gradients(self, harness: Harness, dtype: str) -> Gradients | None:
        return harness.gradients(self.plan, self.weights, self.inputs, self.cotangents, dtype)

    def gradient_bounds(self, harness: Harness, exact: Gradients, truth: NumericBound) -> dict[str, float]:
        """How far each parameter's gradient may be off: what rounding does to it, measured."""
        evaluate = partial(
            evaluate_rounded, self.plan, truth.program, epsilon=EPSILON[self.dtype], differentiated=True
        )
        moved = harness.noisy_gradients(
            evaluate, self.plan, self.weights, self.inputs, self.cotangents, range(RUNS)
        )
        parameters = map(attrgetter("parameters"), moved)
        return measured_bounds(exact.parameters, parameters, self.dtype, GRADIENT_MARGIN)

    def project(self, outputs: Mapping[str, Array]) -> None:
        """Draw the numbers that the outputs are multiplied with before they are summed."""
        rng = np.random.default_rng([self.seed, 1])
        self.cotangents = {
            name: rng.standard_normal(array.shape).astype(np.float32) for name, array in outputs.items()
        }

    def compare(
        self,
        name: str,
        harness: Harness,
        truth: NumericBound,
        slopes: Gradients | None,
        bounds: Mapping[str, float],
    ) -> Iterator[Agreement]:
        begun = time.perf_counter()
        outputs = harness.forward(self.plan, self.weights, self.inputs, self.dtype)
        seconds = time.perf_counter() - begun
        for output, expected in truth.outputs.items():
            quantity = " ".join(filter(None, ("output", output)))
            bound = truth.by_output[output]
            yield self._agreement(name, quantity, "", outputs.get(output), expected, bound, seconds)
        if slopes is None:
            return
        begun = time.perf_counter()
        gradients = self.gradients(harness, self.dtype)
        seconds = time.perf_counter() - begun
        if gradients is not None and slopes.parameters:
            rows = [
                self._agreement(
                    name, "gradients", path, gradients.parameters.get(path), expected, bounds[path], seconds
                )
                for path, expected in slopes.parameters.items()
            ]
            yield max(rows, key=lambda row: (not row.agrees, row.ratio))

    def _agreement(
        self, backend: str, quantity: str, where: str, got: Any, expected: Array, bound: float, seconds: float
    ) -> Agreement:
        largest = float(np.max(np.abs(expected), initial=0.0))
        if got is None or np.shape(got) != expected.shape:
            difference = float("inf")
        else:
            difference = float(np.max(np.abs(np.asarray(got, np.float64) - expected), initial=0.0))
        relative = difference / largest if largest else difference
        return Agreement(
            backend, quantity, where, difference, relative, relative / EPSILON[self.dtype], bound, seconds
        )
