"""The picture of a network: boxes for its nodes, lines for its tensors, repeats folded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from isomorph.display.layout import Box, Extent, Point, Wire, lay_out
from isomorph.display.mermaid import counted, draw_mermaid
from isomorph.display.outline import Item, Outline, Scope, outline
from isomorph.display.svg import (
    ACCENT,
    INK,
    LINE,
    MUTED,
    PAPER,
    document,
    element,
    escape,
    number,
    rounded_path,
    shortened,
    text,
    text_width,
)
from isomorph.plan.table import render_bounds, render_header

if TYPE_CHECKING:
    from isomorph.plan import Plan

__all__ = ["draw_mermaid", "draw_svg"]

_PAGE, _TITLE = 24, 40  # around everything; height of the line on top
_NAME, _CALL, _SMALL = 12.5, 11.5, 11.0  # font sizes
_ROW, _PAD = 17, 16  # from line to line, inside a box
_WIDEST = 330  # of a line of text in a box
_CARD = 5  # how far the card behind a repeated box shows
_FRAME = 20  # inside a group, left and right
_EDGE, _HEADING = 8, 24  # inside a group, below and above
_WIRE = "#6e7781"
_TINT, _TINT_LINE = "#f1f6ff", "#8fb0e6"
_GREY, _FRAME_FILL = "#f6f8fa", "#fbfcfe"


def draw_svg(plan: Plan, sizes: Mapping[str, int] | None = None) -> str:
    """A plan as SVG text, top to bottom, the same for equal plans.

    Nodes are boxes with name, operator, arguments that are not at their defaults, and parameters; lines carry
    shapes. Equal segments in a row are drawn once, with the number of repetitions.

    Args:
        plan: the network.
        sizes: values for symbols in the shapes; the others stay symbols.

    Raises:
        IsomorphError: E_ARGUMENT for sizes that the plan cannot have.
    """
    drawn = outline(plan, sizes)
    picture = _compose(drawn, _routes(drawn), 0)
    heading = " · ".join([counted(plan.parameter_count), plan.dtype, *render_bounds(plan)])
    shift = _PAGE - picture.extent.left
    width = max(picture.extent.right + shift + _PAGE, text_width(heading, 12) + 2 * _PAGE)
    shift += (width - _PAGE - picture.extent.right - shift) / 2
    height = _TITLE + picture.extent.height + _PAGE + 6
    content = [
        text(_PAGE, 29, heading, size=12, fill=MUTED),
        element("g", *picture.parts, transform=f"translate({number(shift)} {_TITLE + 6})"),
    ]
    title = render_header(plan)
    return document(width, height, title, f"A diagram of {len(plan.nodes):,} nodes. {heading}.", content)


# -- lines, cut where they cross the frame of a group ---------------------------------------------

End = tuple[str, int, int]
"""Where a line ends in a group: (``item``, box, output), (``scope``, group, place), (``in``, place, 0), (``out``, place, 0)."""


@dataclass(slots=True)
class _Route:
    """What crosses the frame of a group, and its lines.

    Attributes:
        entries, exits: places by what enters and leaves there.
        lines: from, to, and the label where the tensor starts.
    """

    entries: dict[tuple[int, ...], int] = field(default_factory=dict)
    exits: dict[tuple[int, ...], int] = field(default_factory=dict)
    lines: dict[tuple[End, End], str] = field(default_factory=dict)


def _routes(drawn: Outline) -> list[_Route]:
    """The lines of every group: out of the groups around their source, then into those around their target."""
    routes = [_Route() for _ in drawn.scopes]
    for line in drawn.lines:
        outward, inward = drawn.items[line.source].scopes, drawn.items[line.target].scopes
        shared = 0
        while shared < min(len(outward), len(inward)) and outward[shared] == inward[shared]:
            shared += 1
        end: End = ("item", line.source, line.place)
        for scope in reversed(outward[shared:]):
            exits = routes[scope].exits
            place = exits.setdefault((line.source, line.place), len(exits))
            routes[scope].lines[end, ("out", place, 0)] = line.label
            end = ("scope", scope, place)
        around = outward[shared - 1] if shared else 0
        for depth, scope in enumerate(inward[shared:], shared):
            entries = routes[scope].entries
            place = entries.setdefault((line.source, line.place, line.entries[depth]), len(entries))
            routes[around].lines[end, ("scope", scope, place)] = line.label
            end, around = ("in", place, 0), scope
        routes[around].lines[end, ("item", line.target, 0)] = line.label
    return routes


# -- a group, from the inside out ------------------------------------------------------------------


class _Picture(NamedTuple):
    """A drawn group: its markup, the area that it takes, and where lines enter and leave."""

    parts: list[str]
    extent: Extent
    ins: list[float]
    outs: list[float]


def _compose(drawn: Outline, routes: Sequence[_Route], scope: int) -> _Picture:
    """Lay out a group and draw it, the groups inside it first."""
    route = routes[scope]
    members = drawn.scopes[scope].members
    frames = {
        n: _frame(drawn.scopes[n], _compose(drawn, routes, n)) for kind, n in members if kind == "scope"
    }
    keys: list[tuple[str, int]] = [("in", place) for place in range(len(route.entries))]
    keys += [*members, *(("out", place) for place in range(len(route.exits)))]
    index = {key: position for position, key in enumerate(keys)}
    labels, leaving = (
        _labels(route),
        {end[1]: label for (_, end), label in route.lines.items() if end[0] == "out"},
    )
    boxes = [_box(key, drawn, frames, labels.get(key, {})) for key in keys]
    for place, box in enumerate(boxes[len(keys) - len(leaving) :]):
        box.label_right = _label_width(leaving[place])  # which stands below the frame
    wires, ends = [], []
    for start, end in route.lines:
        wires.append(Wire(index[start[:2]], start[2], index[end[:2]], end[2]))
        ends.append(end[0])
    extent = lay_out(boxes, wires)
    parts = [_wire(wire.path, arrow=end == "item") for wire, end in zip(wires, ends, strict=True)]
    for key, box in zip(keys, boxes, strict=True):
        parts += _draw(key, box, drawn, frames, labels.get(key, {}))
    count = len(route.entries)
    anchors = [box.x for box in boxes]
    return _Picture(parts, extent, anchors[:count], anchors[len(keys) - len(route.exits) :])


def _labels(route: _Route) -> dict[tuple[str, int], dict[int, str]]:
    """The label of each output of each box or group, but for what goes nowhere except out."""
    by_start: dict[tuple[str, int], dict[int, str]] = {}
    for (start, end), label in route.lines.items():
        if start[0] != "in" and end[0] != "out":
            by_start.setdefault(start[:2], {})[start[2]] = label
    return by_start


def _box(
    key: tuple[str, int], drawn: Outline, frames: Mapping[int, _Frame], labels: Mapping[int, str]
) -> Box:
    """The measures of a box, of a group's frame, or of a place where a line enters or leaves."""
    kind, n = key
    if kind in ("in", "out"):
        return Box(4, 4, 0, ins=[0.0], side=False, layer=0 if kind == "in" else -1)
    widths = {place: _label_width(label) for place, label in labels.items()}
    if kind == "scope":
        return frames[n].box(widths)
    return _item_box(drawn.items[n], widths)


def _label_width(label: str) -> float:
    return text_width(label, _SMALL, mono=True) + 12


def _item_box(item: Item, widths: Mapping[int, float]) -> Box:
    rows = _rows(item)
    card = _CARD if item.times > 1 else 0
    height = 2 * 8 + _ROW * len(rows) if item.kind == "node" else 28
    half = max(max(row.width for row in rows) / 2 + _PAD, 60 if item.kind == "node" else 30)
    outs = [0.0] * max(1, len(item.ports))
    if len(widths) > 1:
        x = -sum(widths.values()) / 2
        for place in sorted(widths):
            outs[place], x = x + 4, x + widths[place]
        half = max(half, sum(widths.values()) / 2 + 8)
    label_right = max((outs[place] + width for place, width in widths.items()), default=0.0)
    return Box(half, half + card, height + card, outs=outs, label_right=label_right)


class _Row(NamedTuple):
    """A line of text in a box."""

    content: str
    size: float
    bold: bool
    mono: bool
    fill: str
    indent: float
    width: float


def _rows(item: Item) -> list[_Row]:
    """What a box says: name, operator with arguments, parameters, notes."""

    def row(
        content: str, size: float, fill: str, *, bold: bool = False, mono: bool = True, indent: float = 0
    ) -> _Row:
        content = shortened(content, _WIDEST - indent, size, bold=bold, mono=mono)
        return _Row(
            content, size, bold, mono, fill, indent, indent + text_width(content, size, bold=bold, mono=mono)
        )

    name = row(item.name, _NAME, INK, bold=True)
    if item.kind != "node":
        return [name]
    if item.times > 1:
        name = name._replace(width=name.width + 14 + _badge_width(item.times))
    rows = [name]
    indent = text_width("  ", _CALL, mono=True)
    rows += [row(line, _CALL, INK, indent=indent * (k > 0)) for k, line in enumerate(_call_lines(item.call))]
    if item.parameters:
        each = " each" if item.times > 1 or item.scopes else ""
        rows.append(row(counted(item.parameters) + each, _SMALL, MUTED, mono=False))
    return rows + [row(note, _SMALL, MUTED) for note in item.notes]


def _call_lines(call: Sequence[str]) -> list[str]:
    """``attention(32, causal=True,`` / ``rope=True)``: broken between arguments."""
    operator, *arguments = call
    if not arguments:
        return [operator]
    lines = [f"{operator}("]
    for position, argument in enumerate(arguments):
        piece = argument + (")" if position == len(arguments) - 1 else ",")
        longer = lines[-1] + ("" if lines[-1].endswith("(") else " ") + piece
        if position and text_width(longer, _CALL, mono=True) > 270:
            lines.append(piece)
        else:
            lines[-1] = longer
    return lines


@dataclass(slots=True)
class _Frame:
    """The frame of a group that repeats, and what is in it."""

    scope: Scope
    inner: _Picture
    left: float  # of the frame, in the coordinates of what is inside
    right: float

    @property
    def spine(self) -> float:
        return self.inner.ins[0] if self.inner.ins else 0.0

    def box(self, widths: Mapping[int, float]) -> Box:
        ins = [x - self.spine for x in self.inner.ins]
        outs = [x - self.spine for x in self.inner.outs]
        label_right = max((outs[place] + width for place, width in widths.items()), default=0.0)
        return Box(
            self.spine - self.left,
            self.right - self.spine,
            self.inner.extent.height + _HEADING + _EDGE,
            ins=ins,
            outs=outs or [0.0],
            label_right=label_right,
            side=False,
        )

    @property
    def note(self) -> str:
        return f"{counted(self.scope.parameters)} each" if self.scope.parameters else "no parameters"


def _frame(scope: Scope, inner: _Picture) -> _Frame:
    """Room for the heading at the left of what enters."""
    frame = _Frame(scope, inner, inner.extent.left - _FRAME, inner.extent.right + _FRAME)
    heading = 24 + max(
        _badge_width(scope.times) + 8 + text_width(f"{scope.nodes} nodes", _SMALL),
        text_width(frame.note, _SMALL),
    )
    frame.left = min(frame.left, min(inner.ins, default=0.0) - heading)
    return frame


# -- markup ----------------------------------------------------------------------------------------


def _draw(
    key: tuple[str, int], box: Box, drawn: Outline, frames: Mapping[int, _Frame], labels: Mapping[int, str]
) -> Iterator[str]:
    kind, n = key
    if kind == "scope":
        yield _draw_frame(frames[n], box)
    elif kind == "item":
        yield _draw_item(drawn.items[n], box)
    for place, label in labels.items():
        x, y = box.x + box.outs[place], box.y + box.height
        yield text(x + 7, y + 15, label, size=_SMALL, fill=MUTED, mono=True)


def _draw_item(item: Item, box: Box) -> str:
    title = element("title", escape(f"{item.name}: {', '.join(item.call) or item.kind}"))
    return element("g", title, *(_draw_node(item, box) if item.kind == "node" else _draw_pill(item, box)))


def _draw_pill(item: Item, box: Box) -> Iterator[str]:
    """An input or an output."""
    left, width, height = box.x - box.left, box.left + box.right, box.height
    yield element("rect", x=left, y=box.y, width=width, height=height, rx=height / 2, fill=INK)
    name, y = _rows(item)[0].content, box.y + 18.5
    yield text(box.x, y, name, size=_NAME, fill=PAPER, bold=True, mono=True, anchor="middle")


def _draw_node(item: Item, box: Box) -> Iterator[str]:
    """A box with its lines of text; a second card behind it, and a badge, when it repeats."""
    card = _CARD if item.times > 1 else 0
    left, width, height = box.x - box.left, box.left + box.right - card, box.height - card
    fill, stroke = (_TINT, _TINT_LINE) if item.parameters or item.notes else (_GREY, LINE)
    for offset in (card, 0) if card else (0,):
        x, y = left + offset, box.y + offset
        yield element("rect", x=x, y=y, width=width, height=height, rx=6, fill=fill, stroke=stroke)
    y = box.y + 20.5
    for row in _rows(item):
        x = left + _PAD + row.indent
        yield text(x, y, row.content, size=row.size, fill=row.fill, bold=row.bold, mono=row.mono)
        y += _ROW
    if item.times > 1:
        yield from _badge(left + width - 8 - _badge_width(item.times), box.y + 8, item.times)


def _draw_frame(frame: _Frame, box: Box) -> str:
    left, width = box.x - box.left, frame.right - frame.left
    badge = _badge_width(frame.scope.times)
    parts = [
        element("title", escape(f"repeated {frame.scope.times} times")),
        element(
            "rect", x=left, y=box.y, width=width, height=box.height, rx=10,
            fill=_FRAME_FILL, stroke=_TINT_LINE, stroke_dasharray="5 4",
        ),
        *_badge(left + 12, box.y + 12, frame.scope.times),
        text(left + 20 + badge, box.y + 25, f"{frame.scope.nodes} nodes", size=_SMALL, fill=MUTED),
        text(left + 14, box.y + 45, frame.note, size=_SMALL, fill=MUTED),
    ]  # fmt: skip
    inner = frame.inner
    shift = box.x - frame.spine
    below = box.y + box.height
    parts += [_wire([(x + shift, box.y), (x + shift, box.y + _HEADING)]) for x in inner.ins]
    parts += [_wire([(x + shift, below - _EDGE), (x + shift, below)]) for x in inner.outs]
    parts.append(
        element("g", *inner.parts, transform=f"translate({number(shift)} {number(box.y + _HEADING)})")
    )
    return element("g", *parts)


def _badge_width(times: int) -> float:
    return text_width(f"× {times:,}", _SMALL, bold=True) + 14


def _badge(x: float, y: float, times: int) -> Iterator[str]:
    """``× 12`` on a pill."""
    width = _badge_width(times)
    yield element("rect", x=x, y=y, width=width, height=18, rx=9, fill=ACCENT)
    yield text(x + width / 2, y + 13, f"× {times:,}", size=_SMALL, fill=PAPER, bold=True, anchor="middle")


def _wire(path: Sequence[Point], arrow: bool = False) -> str:
    """A line, with a head where it arrives at a box."""
    if not arrow:
        return element("path", d=rounded_path(path), fill="none", stroke=_WIRE, stroke_width=1.4)
    (x, y), before = path[-1], path[-2]
    down = abs(before[0] - x) < 0.01
    base = (x, y - 6) if down else (x + 6 if before[0] > x else x - 6, y)
    sides = f"L{number(x - 4)} {number(base[1])}L{number(x + 4)} {number(base[1])}" if down else (
        f"L{number(base[0])} {number(y - 4)}L{number(base[0])} {number(y + 4)}"
    )  # fmt: skip
    line = element("path", d=rounded_path([*path[:-1], base]), fill="none", stroke=_WIRE, stroke_width=1.4)
    return line + "\n" + element("path", d=f"M{number(x)} {number(y)}{sides}z", fill=_WIRE)
