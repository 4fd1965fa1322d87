"""A small writer of SVG: elements as text, and estimates of how wide a text will be.

Everything is written with presentation attributes and no style sheet, scripts or fonts of its own, so that a
picture looks the same in a browser, a README and a paper. Equal calls give equal text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from isomorph.writing.marks import text_kind

MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
SANS = "Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif"

PAPER, INK, MUTED, LINE = "#ffffff", "#1f2328", "#59636e", "#d0d7de"
ACCENT, FAINT, GREEN = "#3567c4", "#eef1f4", "#1a7f37"

SVG = text_kind("picture", (".svg",), "<!-- {} -->")
"""A picture as a file."""

_MONO_WIDTH = 0.61  # of the font size; DejaVu Sans Mono, the widest of the family above, has 0.602
_NARROW, _WIDE = frozenset("ijl.,:;'|!()[] ftr·"), frozenset("mwMW@%")


def element(tag: str, *content: str, **attributes: str | float | None) -> str:
    """``<tag a="1">content</tag>``; content is markup, an attribute of None is left out, ``_`` reads ``-``."""
    written = "".join(
        f' {name.strip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else number(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if not content:
        return f"<{tag}{written}/>"
    separator = "\n" if tag in ("svg", "g") else ""
    return f"<{tag}{written}>{separator}{separator.join(content)}{separator}</{tag}>"


def text(
    x: float,
    y: float,
    content: str,
    *,
    size: float = 12,
    fill: str = INK,
    bold: bool = False,
    mono: bool = False,
    anchor: str | None = None,
) -> str:
    """One line of text whose baseline is at y."""
    return element(
        "text",
        escape(content),
        x=x,
        y=y,
        font_family=MONO if mono else SANS,
        font_size=size,
        font_weight="600" if bold else None,
        text_anchor=anchor,
        fill=fill,
    )


def document(width: float, height: float, title: str, description: str, content: Iterable[str]) -> str:
    """A whole picture on a card with its own background, readable on light and dark pages."""
    card = element("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=10, fill=PAPER, stroke=LINE)
    body = [element("title", escape(title)), element("desc", escape(description)), card, *content]
    return (
        element(
            "svg",
            *body,
            xmlns="http://www.w3.org/2000/svg",
            width=width,
            height=height,
            viewBox=f"0 0 {number(width)} {number(height)}",
            role="img",
        )
        + "\n"
    )


def escape(content: str) -> str:
    """Text as XML may hold it; what cannot be printed (control and direction characters too) becomes ``?``."""
    printable = "".join(c if c.isprintable() else " " if c in "\n\t" else "?" for c in content)
    return (
        printable.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    )  # fmt: skip


def number(value: float) -> str:
    """At most two decimals, and none that say nothing."""
    shown = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if shown == "-0" else shown


def text_width(content: str, size: float, *, bold: bool = False, mono: bool = False) -> float:
    """How wide a line may become, in the widest font of the family: rather too much than too little."""
    total = 0.0
    for character in content:
        if not character.isascii():
            total += 1.25 if unicodedata.east_asian_width(character) in "WF" else 0.9 if mono else 0.8
        elif mono:
            total += _MONO_WIDTH
        else:
            total += 0.42 if character in _NARROW else 1.0 if character in _WIDE else 0.66
    return total * size * (1.08 if bold and not mono else 1.0)


def shortened(content: str, width: float, size: float, *, bold: bool = False, mono: bool = False) -> str:
    """The line, cut with an ellipsis where it would be wider than ``width``."""
    if text_width(content[:1000], size, bold=bold, mono=mono) <= width and len(content) <= 1000:
        return content
    low, high = 0, min(len(content), 1000)  # the longest beginning that fits
    while low < high:
        middle = (low + high + 1) // 2
        if text_width(content[:middle] + "…", size, bold=bold, mono=mono) <= width:
            low = middle
        else:
            high = middle - 1
    return content[:low].rstrip() + "…"


def wrapped(content: str, width: float, size: float, *, mono: bool = False) -> list[str]:
    """The text in lines no wider than ``width``, broken at spaces; a longer word is cut."""
    lines: list[str] = []
    for word in content.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, mono=mono) <= width:
            lines[-1] = longer
        else:
            lines.append(shortened(word, width, size, mono=mono))
    return lines


def rounded_path(points: Sequence[tuple[float, float]], radius: float = 7) -> str:
    """The ``d`` of a line through points, horizontal and vertical, with rounded corners."""
    points = _simplified(points)
    parts = [f"M{number(points[0][0])} {number(points[0][1])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        r = min(radius, _distance(before, corner) / 2, _distance(corner, after) / 2)
        start, end = _towards(corner, before, r), _towards(corner, after, r)
        parts.append(f"L{_pair(start)}Q{_pair(corner)} {_pair(end)}")
    return "".join([*parts, f"L{_pair(points[-1])}"])


def _simplified(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without points that change no direction."""
    kept: list[tuple[float, float]] = []
    for point in points:
        if kept and _distance(kept[-1], point) < 0.01:
            continue
        if len(kept) > 1 and (
            kept[-2][0] == kept[-1][0] == point[0] or kept[-2][1] == kept[-1][1] == point[1]
        ):
            kept.pop()
        kept.append(point)
    return kept


def _distance(a: tuple[float, float], b: tuple[float, float]) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _towards(start: tuple[float, float], end: tuple[float, float], length: float) -> tuple[float, float]:
    whole = _distance(start, end) or 1.0
    return (
        start[0] + (end[0] - start[0]) * length / whole,
        start[1] + (end[1] - start[1]) * length / whole,
    )


def _pair(point: tuple[float, float]) -> str:
    return f"{number(point[0])} {number(point[1])}"
