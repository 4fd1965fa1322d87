"""Documentation pages in Markdown, written from operators' declarations alone.

Nothing here knows an operator: titles and descriptions are docstrings, tables come from ports and
arguments, and the examples' tables are resolved while the page is written.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from isomorph.errors import IsomorphError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isomorph.operators.declare import Argument, Example, Operator
    from isomorph.operators.pattern import Port
    from isomorph.plan import Plan


def operator_page(operator: type[Operator]) -> str:
    """The page of one operator: title, shape and ports, arguments, description, examples.

    Raises:
        IsomorphError: when one of its examples does not resolve; E_OPERATOR when the operator's own code raises
            something else.
    """
    try:
        return _page(operator)
    except IsomorphError:
        raise
    except Exception as error:  # whatever the code of another package raises
        raise IsomorphError(
            "E_OPERATOR",
            f"the page of {operator.identity} cannot be written: {type(error).__name__}: {error}",
            hints=[f"mend {operator.__module__}.{operator.__qualname__}"],
        ) from error


def _page(operator: type[Operator]) -> str:
    title, description = docstring(operator)
    sections = [
        f"# `{operator.name}`",
        title,
        f"Category: {operator.category} · Identity: {operator.identity}",
        "## Shape",
        _fenced(operator.shape),
        _table(("Port", "Direction", "Pattern", "dtype"), _port_rows(operator)),
        "## Arguments",
        _table(
            ("Name", "Type", "Default", "Constraints", "Description"),
            [_argument_row(spec) for spec in operator.arguments.values()],
        )
        if operator.arguments
        else "None.",
    ]
    if description:
        sections += ["## Description", description]
    if operator.examples:
        sections.append("## Examples")
    for number, example in enumerate(operator.examples, 1):
        sections += [f"### Example {number}", *_example(example)]
    return "\n\n".join(sections) + "\n"


def catalogue_page() -> str:
    """An index of all operators by category, each with its shape, title and a link to its page."""
    from isomorph.operators.catalogue import all_operators

    categories: dict[str, list[type[Operator]]] = {}
    for operator in all_operators().values():
        categories.setdefault(operator.category, []).append(operator)
    sections = ["# Operators"]
    for category, operators in sorted(categories.items()):
        rows = [
            (f"[`{operator.name}`]({operator.name}.md)", f"`{operator.shape}`", docstring(operator)[0])
            for operator in operators
        ]
        sections += [f"## {category.capitalize()}", _table(("Operator", "Shape", "Purpose"), rows)]
    return "\n\n".join(sections) + "\n"


def docstring(operator: type[Operator]) -> tuple[str, str]:
    """An operator's title sentence, on one line, and its description in Markdown (``""`` for none)."""
    text = cleandoc(operator.__doc__ or "")
    title, _, description = text.partition("\n\n")
    return " ".join(title.split()), description.strip()


def resolve_example(example: Example, **overrides: Any) -> Plan:
    """The plan of an example; ``overrides`` replace what it says (``dtype="float64"``)."""
    from isomorph.plan.resolve import resolve

    settings = {
        "input": example.input,
        "output": example.output,
        "dtype": example.dtype,
        "input_dtype": example.input_dtype,
    }
    return resolve(example.definition, **{**settings, **overrides})


def _port_rows(operator: type[Operator]) -> list[tuple[str, ...]]:
    signature = operator.signature
    return [_port_row(port, "input") for port in signature.inputs] + [
        _port_row(port, "output") for port in signature.outputs
    ]


def _port_row(port: Port, direction: str) -> tuple[str, ...]:
    if port.optional:
        direction += " (optional)"
    if port.variadic:
        direction += " (two or more)"
    return f"`{port.name}`", direction, f"`{port.pattern}`", port.dtype


def _argument_row(spec: Argument) -> tuple[str, ...]:
    name = f"`{spec.name}`" + (" (positional)" if spec.positional else "")
    kind = spec.type.__name__ + (", any number" if spec.variadic else "")
    default = repr(spec.default) if spec.required or spec.inferable else f"`{_literal(spec.default)}`"
    return name, kind, default, spec.constraints() or "—", spec.doc


def _literal(value: Any) -> str:
    """A default as a definition would write it: strings in double quotes."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _example(example: Example) -> list[str]:
    plan = resolve_example(example)
    contract = f"Input {_shapes(plan, plan.inputs)} → output {_shapes(plan, plan.outputs)}."
    table = f"{plan}\n\nParameters: {plan.parameter_count:,}"
    return [example.title, _fenced(example.definition, "python"), contract, _fenced(table)]


def _shapes(plan: Plan, contracts: Iterable[tuple[str, int]]) -> str:
    """``['B', 8, 32]``, or ``x=['B', 8], y=['B', 4]`` where there are several."""
    contracts = list(contracts)
    named = len(contracts) > 1
    texts = []
    for name, value in contracts:
        shape = [size if type(size) is int else str(size) for size in plan.values[value].shape]
        texts.append(f"{name}={shape}" if named else str(shape))
    return ", ".join(texts)


def _fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
