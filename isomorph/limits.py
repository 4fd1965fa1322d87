"""Bounds on what a definition may ask for; each is checked before the work that it bounds."""

from __future__ import annotations

from collections.abc import Mapping

from isomorph.errors import IsomorphError, did_you_mean, shorten

DEFAULTS: dict[str, int] = {
    "max_nodes": 20_000,  # operator calls after unrolling
    "max_dimension": 2**31 - 1,  # any literal size
    "max_source_bytes": 1 << 20,
    "max_nesting": 50,  # brackets and nested loops
    "max_parameter_bytes": 64 << 30,
}


def limits_with(overrides: Mapping[str, int] | None) -> dict[str, int]:
    """The defaults with a caller's own bounds; E_ARGUMENT for an unknown name or a value below 1."""
    limits = dict(DEFAULTS)
    for name, value in (overrides or {}).items():
        if name not in DEFAULTS:
            hints = [*did_you_mean(name, DEFAULTS), f"limits: {', '.join(DEFAULTS)}"]
            raise IsomorphError("E_ARGUMENT", f"unknown limit {name!r}", hints=hints)
        if type(value) is not int or value < 1:
            raise IsomorphError("E_ARGUMENT", f"limit {name} must be an int >= 1, got {shorten(value)}")
        limits[name] = value
    return limits
