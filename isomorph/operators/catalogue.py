"""Every operator that can be called: the built-in families, then those that installed packages bring."""

from __future__ import annotations

from functools import cache

from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.operators import (  # noqa: F401  (each enters its operators as it is loaded)
    activation,
    attention,
    blocks,
    convolution,
    embedding,
    feed_forward,
    joining,
    linear,
    normalization,
    shaping,
    similarity,
)
from isomorph.operators.operator import Operator
from isomorph.operators.registry import declared


def get(name: str) -> type[Operator] | None:
    """The operator of that name, or None. Other packages are asked only where no built-in one has it."""
    if name not in declared:
        _load_entry_points()
    return declared.get(name)


def is_known(name: str) -> bool:
    """Whether an operator has that name, as far as is known without asking other packages."""
    return name in declared


def all_operators() -> dict[str, type[Operator]]:
    """Every operator by name, in alphabetical order."""
    _load_entry_points()
    return dict(sorted(declared.items()))


def unknown(name: str) -> IsomorphError:
    """The error for a name that no operator has (without a place; the caller adds it)."""
    names = all_operators()
    hints = did_you_mean(name, names) or [f"operators: {', '.join(names)}"]
    return IsomorphError("E_OPERATOR", f"there is no operator {shorten(name)}", hints=hints)


@cache
def _load_entry_points() -> None:
    """Import what installed packages list under the entry-point group ``isomorph.operators``."""
    from importlib.metadata import entry_points

    for entry in entry_points(group="isomorph.operators"):
        try:
            entry.load()
        except (Exception, SystemExit) as error:
            raise IsomorphError(
                "E_OPERATOR",
                f"the operators of {entry.value!r} (entry point {entry.name!r}) do not load: {_story(error)}",
                hints=["uninstall or mend that package"],
            ) from error


def _story(error: BaseException) -> str:
    """What an exception of somebody else's code says; its class where it says nothing, or cannot."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__
