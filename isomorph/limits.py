"""Bounds on what a definition may ask for; each is checked before the work that it bounds."""

from __future__ import annotations

from collections.abc import Mapping

from isomorph.errors import IsomorphError, did_you_mean, shorten

DEFAULTS: dict[str, int] = {
    "max_nodes": 20_000,  # operator calls after unrolling
    "max_dimension": 2**31 - 1,  # any literal size
    "max_source_bytes": 1 << 20,
    "max_nesting": 50,  # brackets and nested loops; never more than CEILINGS allows
    "max_parameter_bytes": 64 << 30,
    "max_search_steps": 200_000,  # of a whole resolution, for sizes that are not given
}


CEILINGS: dict[str, int] = {"max_nesting": 90}
"""Bounds that no caller can raise: Python's own parser ends at 100 indentations and 200 brackets."""


def limits_with(overrides: Mapping[str, int] | None) -> dict[str, int]:
    """The defaults with a caller's own bounds, lowered to :data:`CEILINGS` where they are above.

    Raises:
        IsomorphError: E_ARGUMENT for what is no mapping, an unknown name, or a value below 1.
    """
    limits = dict(DEFAULTS)
    if overrides is not None and not isinstance(overrides, Mapping):
        raise IsomorphError(
            "E_ARGUMENT",
            f"limits must be a mapping from name to number, got {shorten(overrides)}",
            hints=['as in limits={"max_nodes": 1000}', f"limits: {', '.join(DEFAULTS)}"],
        )
    for name, value in (overrides or {}).items():
        if name not in DEFAULTS:
            hints = [*did_you_mean(name, DEFAULTS), f"limits: {', '.join(DEFAULTS)}"]
            raise IsomorphError("E_ARGUMENT", f"unknown limit {shorten(name)}", hints=hints)
        if type(value) is not int or value < 1:
            raise IsomorphError("E_ARGUMENT", f"limit {name} must be an int >= 1, got {shorten(value)}")
        limits[name] = min(value, CEILINGS.get(name, value))
    return limits
