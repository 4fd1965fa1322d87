"""Every operator that was declared, by name."""

from __future__ import annotations

from isomorph.errors import IsomorphError
from isomorph.operators.operator import Operator

declared: dict[str, type[Operator]] = {}


def add(operator: type[Operator]) -> None:
    """Enter an operator; E_OPERATOR when another class holds the name."""
    holder = declared.get(operator.name, operator)
    if (holder.__module__, holder.__qualname__) != (operator.__module__, operator.__qualname__):
        raise IsomorphError(
            "E_OPERATOR",
            f"two operators are named {operator.name!r}: {holder.__module__}.{holder.__qualname__} and "
            f"{operator.__module__}.{operator.__qualname__}",
        )
    declared[operator.name] = operator
