"""Checks for operators, one's own and those of other packages.

:func:`check_operator` reads an operator's declaration, then runs each of its examples in every backend that
is installed, forward and backward, and compares with the float64 reference:

    from isomorph.testing import check_operator

    def test_my_operator():
        check_operator("my_operator")

The smaller pieces serve tests of whole plans: :func:`sample_inputs`, :func:`order_one_weights`,
:func:`sample_sizes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from isomorph.backends.available import REFERENCE, Gradients, Harness, available, load, preferred
from isomorph.backends.samples import order_one_weights, rounded, sample_inputs, sample_sizes
from isomorph.dimensions import evaluate
from isomorph.errors import IsomorphError, shorten
from isomorph.operators import catalogue
from isomorph.operators.declare import Operator
from isomorph.operators.pattern import Signature
from isomorph.plan import Plan
from isomorph.show.page import docstring, operator_page, resolve_example

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


@dataclass
class Report:
    """What :func:`check_operator` found; ``str`` gives a line per comparison."""

    identity: str
    backends: tuple[str, ...]
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def failures(self) -> list[Comparison]:
        """Comparisons that left their bounds."""
        return [comparison for comparison in self.comparisons if not comparison.agrees]

    def __str__(self) -> str:
        return "\n".join([f"{self.identity}: {', '.join(self.backends)}", *map(str, self.comparisons)])


def check_operator(
    operator: str | type[Operator], backends: Sequence[str] | None = None, *, seed: int = 0
) -> Report:
    """Check an operator's declaration, and its examples in every backend.

    Args:
        operator: a registered operator or its name.
        backends: those to run; all that are installed by default. The reference always takes part.
        seed: of the weights, inputs and directions drawn.

    Returns:
        Every comparison made, with its difference and its bound.

    Raises:
        IsomorphError: E_OPERATOR listing all faults of the declaration, parameters that nothing depends on,
            or all disagreements with their numbers; E_ARGUMENT for what is no operator; E_BACKEND for a
            backend that is not installed.
        Exception: whatever an example raises, with a note that names the operator and the example.
    """
    operator = _declared(operator)
    _refuse(operator, "is not declared completely", declaration_faults(operator))
    names = tuple(available()) if backends is None else tuple(backends)
    harnesses = {name: load(name) for name in names}
    report = Report(operator.identity, names)
    idle, busy = set[str](), set[str]()
    for number in range(1, len(operator.examples) + 1):
        try:
            plan = _check_example(operator, number, harnesses, seed, report)
            unused = idle_parameters(plan, operator)
        except Exception as error:
            error.add_note(f"in example {number} of {operator.identity}")
            raise
        idle |= {path for path, is_unused in unused.items() if is_unused}
        busy |= {path for path, is_unused in unused.items() if not is_unused}
    _refuse(operator, "declares parameters that no example's outputs depend on", sorted(idle - busy))
    operator_page(operator)
    _refuse(operator, "does not compute what the reference computes", report.failures)
    return report


def _declared(operator: Any) -> type[Operator]:
    """The operator of a name, or a class that is one already."""
    if isinstance(operator, str):
        found = catalogue.get(operator)
        if found is None:
            raise catalogue.unknown(operator)
        return found
    if isinstance(operator, type) and issubclass(operator, Operator) and hasattr(operator, "identity"):
        return operator
    raise IsomorphError(
        "E_ARGUMENT",
        f"expected an operator or its name, got {shorten(operator)}",
        hints=['an operator is a subclass of iso.Operator decorated with @iso.operator("its_name", ...)'],
    )


def _check_example(
    operator: type[Operator], number: int, harnesses: Mapping[str, Harness], seed: int, report: Report
) -> Plan:
    """Compare one example, counted from 1, in every backend."""
    plan = resolve_example(operator.examples[number - 1])
    _refuse(operator, f"has an example {number} that does not survive", plan_faults(plan))
    report.comparisons += compare_outputs(plan, harnesses, number, seed)
    if plan.dtype != "float64":  # once more at one size, where small faults show
        sizes = sample_sizes(plan)[:1]
        report.comparisons += compare_outputs(plan, harnesses, number, seed, "float64", sizes)
    report.comparisons += compare_gradients(plan, harnesses, number, seed)
    return plan


def idle_parameters(plan: Plan, operator: type[Operator]) -> dict[str, bool]:
    """Whether no output of the plan is computed from a parameter, by its path inside the operator's nodes.

    Read from the recorded program, not from values: a key's bias without rotary positions is used, although
    its gradient is zero.
    """
    from isomorph.backends.trace.build import trace

    program = trace(plan, sample_sizes(plan)[0])
    needed = {tensor.id for tensor in program.outputs.values()}
    for step in reversed(program.steps):
        if needed.intersection(step.outputs):
            needed.update(step.inputs)
    found: dict[str, bool] = {}
    for parameter in plan.parameters:
        node = plan.nodes[parameter.node]
        if node.operator.identity == operator.identity:
            path = parameter.path.removeprefix(f"{node.name}.")
            found[path] = found.get(path, True) and program.parameters[parameter.path].id not in needed
    return found


def _refuse(operator: type[Operator], what: str, faults: Iterable[Any]) -> None:
    lines = [str(fault) for fault in faults]
    if lines:
        raise IsomorphError("E_OPERATOR", f"{operator.identity} {what}", hints=lines)


# -- declarations ------------------------------------------------------------------------------


def declaration_faults(operator: type[Operator]) -> list[str]:
    """What is missing from an operator's declaration, a sentence each; empty when nothing is."""
    title, description = docstring(operator)
    faults = []
    if not operator.__dict__.get("__doc__") or not title.endswith((".", "`")):
        faults.append("its docstring must begin with a sentence")
    if not description and operator.arguments:
        faults.append("its docstring must describe it after the first sentence")
    if operator.forward is Operator.forward:
        faults.append("it has no forward computation")
    if Signature.parse(operator.shape) != operator.signature:
        faults.append(f"its shape pattern {operator.shape!r} is not its signature")
    faults += [f"argument {spec.name} has no doc" for spec in operator.arguments.values() if not spec.doc]
    faults += [f"bound {size} names {name}, which is no argument" for size, name in operator.bounds.items()
               if name not in operator.arguments]  # fmt: skip
    return faults + _example_faults(operator)


def _example_faults(operator: type[Operator]) -> list[str]:
    if not operator.examples:
        return ["it has no example"]
    faults = []
    for number, example in enumerate(operator.examples, 1):
        if not example.title.endswith("."):
            faults.append(f"the title of example {number} must be a sentence")
        if f"{operator.name}(" not in example.definition:
            faults.append(f"example {number} does not call it")
    return faults


def plan_faults(plan: Plan) -> list[str]:
    """What a resolved example does not withstand: printing, JSON and back, parameters that fit."""
    faults = []
    if not str(plan).startswith("Network: "):
        faults.append("its table does not begin with 'Network: '")
    if Plan.from_json(plan.to_json()) != plan:
        faults.append("its plan changes on the way through JSON")
    for parameter in plan.parameters:
        if parameter.axes and len(parameter.axes) != len(parameter.shape):
            faults.append(f"{parameter.path} has {len(parameter.shape)} axes and {len(parameter.axes)} names")
        if len(parameter.shape) < parameter.initial.minimum_rank:
            faults.append(f"{parameter.path} has too few axes for {parameter.initial}")
    return faults


# -- comparisons -------------------------------------------------------------------------------


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
    from isomorph.backends.bounds import numeric_bound

    dtype = dtype or plan.dtype
    weights, found = order_one_weights(plan, seed), []
    for sizes in sample_sizes(plan) if at is None else at:
        inputs = sample_inputs(plan, sizes, seed)
        expected = numeric_bound(plan, weights, inputs, dtype=dtype)
        where = f" at {', '.join(f'{s}={n}' for s, n in sizes.items())}" if sizes else ""
        where += f" in {dtype}" if dtype != plan.dtype else ""
        for backend, harness in harnesses.items():
            outputs = harness.forward(plan, weights, inputs, dtype)
            for name, array in expected.outputs.items():
                quantity = " ".join(filter(None, ("output", name))) + where
                difference = _difference(outputs.get(name), array)
                found.append(Comparison(example, backend, quantity, difference, expected.summed))
    return found


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
    found = list(problem.against_differences(differentiator, exact, example, seed))
    for backend, harness in harnesses.items():
        got = harness.gradients(plan, *given, plan.dtype)
        if got is not None:
            found += problem.against_exact(backend, got, exact, example)
    return found


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
        from isomorph.backends.reference.differences import directional_derivative

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
        from isomorph.backends.bounds import gradient_bound, value_bound
        from isomorph.backends.trace.build import trace

        program, dtype = trace(self.plan, self.sizes), self.plan.dtype
        for node in self.plan.nodes:
            bound = gradient_bound(program, node.name, exact.parameters, dtype=dtype)
            for path in (path for path in exact.parameters if path.startswith(node.name + ".")):
                difference = _difference(got.parameters.get(path), exact.parameters[path])
                yield Comparison(example, backend, f"gradient {path}", difference, bound)
        for name, array in exact.inputs.items():
            largest = float(np.abs(array).max(initial=0.0))
            bound = sum(value_bound(program.reduction(node.name), largest, dtype) for node in self.plan.nodes)
            difference = _difference(got.inputs.get(name), array)
            yield Comparison(example, backend, f"gradient of input {name}", difference, bound)


def _difference(got: Any, expected: Array) -> float:
    """``max |got - expected|``; infinite where something is missing or has another shape."""
    if got is None or np.shape(got) != expected.shape:
        return float("inf")
    apart = np.abs(np.asarray(got, dtype=np.float64) - expected)
    return float(np.max(apart, initial=0.0))  # NaN stays NaN, which is within no bound
