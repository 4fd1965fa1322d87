"""An operator's declaration, and its examples in every backend, against the reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isomorph.agreement.compare import Comparison, compare_gradients, compare_outputs
from isomorph.agreement.samples import sample_sizes
from isomorph.backends.available import Harness, available, load
from isomorph.display.page import docstring, operator_page, resolve_example
from isomorph.errors import IsomorphError, shorten
from isomorph.operators import catalogue
from isomorph.operators.declare import Operator
from isomorph.operators.pattern import Signature
from isomorph.plan import Plan
from isomorph.trace.build import trace


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
        declared = catalogue.get(operator)
        if declared is None:
            raise catalogue.unknown(operator)
        return declared
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
    program = trace(plan, sample_sizes(plan)[0])
    needed = {tensor.id for tensor in program.outputs.values()}
    for step in reversed(program.steps):
        if needed.intersection(step.outputs):
            needed.update(step.inputs)
    idle: dict[str, bool] = {}
    for parameter in plan.parameters:
        node = plan.nodes[parameter.node]
        if node.operator.identity == operator.identity:
            path = parameter.path.removeprefix(f"{node.name}.")
            idle[path] = idle.get(path, True) and program.parameters[parameter.path].id not in needed
    return idle


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
