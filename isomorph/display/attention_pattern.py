"""The picture of attention permissions: which query may attend which key, a panel for every pattern.

Panels of the network's own patterns come first, then the standard ones for comparison, on which those that
the network has are marked. :mod:`isomorph.display.permissions` finds what is drawn here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from isomorph.display.permissions import Panel, attention_nodes, panels, permissions
from isomorph.display.svg import (
    ACCENT,
    FAINT,
    GREEN,
    INK,
    LINE,
    MUTED,
    PAPER,
    SANS,
    document,
    element,
    escape,
    number,
    shortened,
    text,
    text_width,
    wrapped,
)

if TYPE_CHECKING:
    from isomorph.plan import Plan

__all__ = ["attention_nodes", "draw_attention", "permissions"]

MOST_PANELS = 24
"""Patterns of a network that are drawn; of further ones their number is told."""

_COLUMNS = 4
_PAGE, _BETWEEN, _PAD = 24, 16, 14  # around everything, between panels, inside a panel
_LABELS = 34  # left of a grid, for indices and the word "queries"
_TOP = 64  # of a panel, above its grid: title, the word "keys", indices
_SUBTITLE = 18  # of the network's own panels, more: the pattern
_LEADING = 15  # from line to line
_HATCH = "#aab4be"


def draw_attention(plan: Plan, length: int = 8, sizes: Mapping[str, int] | None = None) -> str:
    """The attention permissions of a plan as SVG text, the same for equal plans.

    Queries run down, keys across; the network's own patterns come first, then the standard patterns.

    Args:
        plan: the network.
        length: how many positions are drawn at most, 1 to 64; symbolic lengths take this value.
        sizes: values for symbols, such as a length of its own for what cross-attention reads.

    Raises:
        IsomorphError: E_ARGUMENT for a length or sizes out of range, and for a plan without attention.
    """
    own, standard = panels(plan, length, sizes)
    shown = own[:MOST_PANELS]
    scale = _Scale.of([*shown, *standard])
    width = 2 * _PAGE + _COLUMNS * scale.panel + (_COLUMNS - 1) * _BETWEEN
    content = [text(_PAGE, 38, "Attention permissions", size=17, bold=True), *_legend(width - _PAGE, 38)]
    y = 74.0
    for heading, group in ((_heading(own), shown), ("Standard patterns, for comparison", standard)):
        content.append(text(_PAGE, y, heading, size=13, bold=True, fill=MUTED))
        y += 14
        for start in range(0, len(group), _COLUMNS):
            row = group[start : start + _COLUMNS]
            height = max(scale.height(panel) for panel in row)
            for column, panel in enumerate(row):
                x = _PAGE + column * (scale.panel + _BETWEEN)
                content.append(_panel(panel, x, y, height, scale))
            if group is shown and len(group) < _COLUMNS - 1:
                x = _PAGE + len(group) * (scale.panel + _BETWEEN) + 8
                content += _notes(own, x, y + 24, width - _PAGE - x)
            y += height + _BETWEEN
        y += 20
    return document(width, y - 12, "Attention permissions", _description(own, standard), content)


def _heading(own: Sequence[Panel]) -> str:
    if len(own) <= MOST_PANELS:
        return "This network"
    return f"This network: {MOST_PANELS} of its {len(own):,} patterns"


def _notes(own: Sequence[Panel], x: float, y: float, width: float) -> Iterator[str]:
    """How to read the picture, where a short row leaves room for it."""
    count = sum(panel.attentions for panel in own)
    patterns = "one pattern" if len(own) == 1 else f"{len(own)} patterns"
    for sentence in (
        f"{count:,} attention{'s' * (count > 1)}, {patterns}.",
        "A row is a query, a column a key: where a cell is filled, that query may attend that key.",
        "Only attention is drawn, no norms, feed-forward networks or residual sums.",
    ):
        for line in wrapped(sentence, width, 12):
            yield text(x, y, line, size=12, fill=MUTED)
            y += 17
        y += 6


def _description(own: Sequence[Panel], standard: Sequence[Panel]) -> str:
    """The picture in words, for those who do not see it."""
    words = [f"{panel.title}: {panel.pattern.rule}" for panel in own[:MOST_PANELS]]
    matching = [panel.names for panel in standard if panel.matches]
    words.append(f"Of the standard patterns this network has: {', '.join(matching) or 'none'}.")
    return " ".join(words)


class _Scale(NamedTuple):
    """Sizes that all panels share: side of a cell, gap between cells, width of a panel."""

    cell: float
    gap: float
    panel: float

    @classmethod
    def of(cls, shown: Sequence[Panel]) -> _Scale:
        most = max(max(panel.queries, panel.keys) for panel in shown)
        cell = min(28.0, max(6.0, (144 if most <= 8 else 192) // max(most, 1)))
        panel = max(2 * _PAD + _LABELS + most * cell + 12, 206)
        return cls(cell, 3 if cell >= 14 else 2 if cell >= 8 else 1, panel)

    def height(self, panel: Panel) -> float:
        lines = len(_captions(panel, self.panel - 2 * _PAD)) + panel.matches
        return self.top(panel) + panel.queries * self.cell + _LEADING * lines + 26

    def top(self, panel: Panel) -> float:
        """Height above a panel's grid."""
        return _TOP if panel.standard else _TOP + _SUBTITLE


def _panel(panel: Panel, x: float, y: float, height: float, scale: _Scale) -> str:
    left, width = x + _PAD, scale.panel - 2 * _PAD
    border = {"stroke": GREEN, "stroke_width": 2} if panel.matches else {"stroke": LINE}
    room = width - (26 if panel.matches else 0)
    title = shortened(panel.names, room, 12.5, bold=True, mono=not panel.standard)
    parts = [
        element("title", escape(panel.title)),
        element("rect", x=x, y=y, width=scale.panel, height=height, rx=8, fill=PAPER, **border),
        text(left, y + 24, title, size=12.5, bold=True, mono=not panel.standard),
    ]
    if not panel.standard:
        parts.append(text(left, y + 41, shortened(panel.pattern.name, width, 11.5), size=11.5, fill=MUTED))
    parts += _grid(panel, left + _LABELS, y + scale.top(panel), scale)
    below = y + scale.top(panel) + panel.queries * scale.cell + 8
    for line in _captions(panel, width):
        below += _LEADING
        parts.append(text(left, below, line, size=11.5, fill=INK))
    if panel.matches:
        parts += _check(x + scale.panel - _PAD - 9, y + 20)
        parts.append(text(left, below + _LEADING, "this network", size=11.5, bold=True, fill=GREEN))
    return element("g", *parts)


def _captions(panel: Panel, width: float) -> list[str]:
    """What stands below a grid, in lines."""
    pattern = panel.pattern
    sentences = [pattern.rule]
    padding = (panel.mask or []).count(False)
    if padding:
        hidden = f"the last {padding} keys hidden" if padding > 1 else "the last key hidden"
        sentences.append(f"Drawn with {hidden}.")
    if pattern.window > max(panel.queries, panel.keys):
        sentences.append("The window is wider than what is drawn.")
    if panel.all_queries > panel.queries or panel.all_keys > panel.keys:
        sentences.append(_cropped(panel))
    return wrapped(" ".join(sentences), width, 11.5)


def _cropped(panel: Panel) -> str:
    if panel.all_queries == panel.all_keys:
        return f"The first {panel.queries} of {panel.all_queries:,} positions."
    return f"{panel.queries:,} of {panel.all_queries:,} queries, {panel.keys:,} of {panel.all_keys:,} keys."


def _grid(panel: Panel, left: float, top: float, scale: _Scale) -> Iterator[str]:
    """Axes with indices, and the cells."""
    cell = scale.cell
    yield text(left, top - 20, "keys →", size=10.5, fill=MUTED)
    yield element(
        "text", "← queries", font_family=SANS, font_size=10.5, fill=MUTED,
        text_anchor="end", transform=f"translate({number(left - 22)} {number(top)}) rotate(-90)",
    )  # fmt: skip
    step = next(step for step in (1, 2, 4, 8, 16) if step * cell >= 14)
    for j in range(0, panel.keys, step):
        yield text(left + (j + 0.5) * cell, top - 6, str(j), size=9.5, fill=MUTED, anchor="middle")
    for i in range(0, panel.queries, step):
        yield text(left - 6, top + (i + 0.5) * cell + 3.5, str(i), size=9.5, fill=MUTED, anchor="end")
    unmasked, visible = panel.cells(masked=False), panel.cells()
    kinds: list[list[tuple[float, float]]] = [[], [], []]
    for i in range(panel.queries):
        for j in range(panel.keys):
            kinds[unmasked[i][j] + visible[i][j]].append((left + j * cell, top + i * cell))
    for corners, fill, hatched in zip(kinds, (FAINT, FAINT, ACCENT), (False, True, False), strict=True):
        yield from _cells(corners, scale, fill, hatched)


def _cells(
    corners: Sequence[tuple[float, float]], scale: _Scale, fill: str, hatched: bool = False
) -> Iterator[str]:
    """Squares of one kind as a single path; a stroke with round joins rounds their corners."""
    if not corners:
        return
    radius = min(2.5, scale.cell / 6)
    inset, side = scale.gap / 2 + radius, scale.cell - scale.gap - 2 * radius
    square = f"h{number(side)}v{number(side)}h{number(-side)}z"
    path = "".join(f"M{number(x + inset)} {number(y + inset)}{square}" for x, y in corners)
    yield element("path", d=path, fill=fill, stroke=fill, stroke_width=2 * radius, stroke_linejoin="round")
    if hatched:
        edge, span = scale.gap / 2 + 1, scale.cell - scale.gap - 2
        lines = (
            f"M{number(x + edge)} {number(y + edge + span)}l{number(span)} {number(-span)}"
            for x, y in corners
        )
        yield element("path", d="".join(lines), stroke=_HATCH, stroke_width=1.5, fill="none")


def _legend(right: float, baseline: float) -> Iterator[str]:
    """What the three kinds of cells mean, in one line that ends at ``right``."""
    scale = _Scale(14, 0, 0)
    entries = (
        ("may attend", ACCENT, False),
        ("may not attend", FAINT, False),
        ("hidden by the mask", FAINT, True),
    )
    x = right
    for label, fill, hatched in reversed(entries):
        x -= ceil(text_width(label, 11.5)) + 20
        yield from _cells([(x, baseline - 11)], scale, fill, hatched)
        yield text(x + 20, baseline, label, size=11.5, fill=INK)
        x -= 16


def _check(x: float, y: float) -> Iterator[str]:
    """A white check mark on a green disc."""
    yield element("circle", cx=x, cy=y, r=9, fill=GREEN)
    mark = f"M{number(x - 4)} {number(y + 0.5)}l3 3l5.5 -6.5"
    yield element(
        "path",
        d=mark,
        stroke=PAPER,
        stroke_width=2,
        fill="none",
        stroke_linecap="round",
        stroke_linejoin="round",
    )
