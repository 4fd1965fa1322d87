"""The values that a call may be given, whether it stands in a text or in a Python function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isomorph.errors import IsomorphError, shorten

NODE_KEYWORDS: Mapping[str, str] = {
    "name": 'a string such as "block"',
    "init": "a dictionary such as {\"weight\": 0.1} or {\"weight\": normal(std=0.02)}",
    "trainable": "True, False or a dictionary such as {\"attn\": False}",
    "tie": "a dictionary such as {\"weight\": \"wte.weight\"}",
}  # fmt: skip
"""The keywords that every operator takes, and what each may be."""


def is_number(value: Any) -> bool:
    """Whether a value is an int or a float and no bool."""
    return type(value) is int or type(value) is float


def check_number(value: float, largest: int) -> None:
    """E_RESOURCE for an int above ``max_dimension``, E_ARGUMENT for a float that is not finite."""
    if type(value) is int:
        if not -largest <= value <= largest:
            raise IsomorphError(
                "E_RESOURCE", f"the number {shorten(value)} is above the limit of {largest:,} (max_dimension)"
            )
    elif value - value != 0:
        raise IsomorphError("E_ARGUMENT", f"a number must be finite, got {value}")


def check_node_keyword(keyword: str, value: Any) -> None:
    """E_ARGUMENT unless ``name``, ``init``, ``trainable`` or ``tie`` has a value of its form."""
    allowed: Any = {"name": str, "trainable": bool | dict}.get(keyword, dict)
    if not isinstance(value, allowed):
        raise IsomorphError("E_ARGUMENT", f"{keyword} is {NODE_KEYWORDS[keyword]}, got {shorten(value)}")
