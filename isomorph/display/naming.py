"""Many node names in few words: ``block0..block11``."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBERED = re.compile(r"(.*?)(\d{1,9})")


def name_ranges(names: Sequence[str]) -> list[str]:
    """The names in order, runs with consecutive numbers written as one: ``["a", "block0..block11"]``."""
    ranges: list[list[str]] = []
    last: tuple[str, int] | None = None
    for name in names:
        match = _NUMBERED.fullmatch(name)
        key = (match[1], int(match[2])) if match else None
        if key is not None and last == (key[0], key[1] - 1):
            ranges[-1][1:] = [name]
        else:
            ranges.append([name])
        last = key
    return ["..".join(run) for run in ranges]


def name_span(names: Sequence[str]) -> str:
    """One phrase for the names of a repeated node: ``h0..h11``, ``n3, n9 .. n93`` or ``n3, n9``."""
    ranges = name_ranges(names)
    if len(ranges) <= 2:
        return ", ".join(ranges)
    return f"{names[0]}, {names[1]} .. {names[-1]}"


def listed(parts: Sequence[str], most: int = 4) -> str:
    """``a, b, c and 9 more``."""
    if len(parts) <= most:
        return ", ".join(parts)
    return f"{', '.join(parts[: most - 1])} and {len(parts) - most + 1} more"
