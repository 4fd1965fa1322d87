"""The diagram of a plan as Mermaid text, which GitHub and many editors draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from isomorph.display.outline import Item, Outline, outline
from isomorph.writing.marks import text_kind

if TYPE_CHECKING:
    from isomorph.plan import Plan

MERMAID = text_kind("diagram", (".mmd", ".mermaid"), "%% {}")
"""A diagram as a file."""

_ENTITIES = {c: f"#{ord(c)};" for c in '"#&<>`\\%'}
"""Characters that mean something inside a quoted Mermaid label."""


def draw_mermaid(plan: Plan, sizes: Mapping[str, int] | None = None) -> str:
    """A plan as a Mermaid flowchart, repeats folded into subgraphs, shapes on the edges.

    Raises:
        IsomorphError: E_ARGUMENT for sizes that the plan cannot have.
    """
    drawn = outline(plan, sizes)
    lines = ["flowchart TB", *_members(drawn, 0, "  ")]
    for line in dict.fromkeys((line.source, line.target, line.label) for line in drawn.lines):
        source, target, label = line
        lines.append(f'  b{source} -- "{escape(label)}" --> b{target}')
    return "\n".join(lines) + "\n"


def _members(drawn: Outline, scope: int, indent: str) -> Iterator[str]:
    for kind, number in drawn.scopes[scope].members:
        if kind == "item":
            yield f"{indent}b{number}{_shape(drawn.items[number])}"
            continue
        group = drawn.scopes[number]
        yield f'{indent}subgraph g{number}["× {group.times}: {group.nodes} nodes, {counted(group.parameters)} each"]'
        yield from _members(drawn, number, indent + "  ")
        yield f"{indent}end"


def _shape(item: Item) -> str:
    """A box with its label; inputs and outputs have round ends."""
    if item.kind != "node":
        return f'(["{escape(item.name)}"])'
    call, *arguments = item.call
    rows = [item.name + (f" × {item.times}" if item.times > 1 else "")]
    rows.append(call + (f"({', '.join(arguments)})" if arguments else ""))
    if item.parameters:
        rows.append(counted(item.parameters) + (" each" if item.times > 1 or item.scopes else ""))
    rows += item.notes
    return f'["{"<br/>".join(map(escape, rows))}"]'


def counted(parameters: int) -> str:
    """``1,088 parameters``."""
    return f"{parameters:,} parameter{'' if parameters == 1 else 's'}"


def escape(content: str) -> str:
    """Text inside a quoted label; what cannot be printed becomes ``?``."""
    return "".join(_ENTITIES.get(c) or (c if c.isprintable() else "?") for c in content)
