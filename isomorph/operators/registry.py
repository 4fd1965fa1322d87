"""Every operator by name: the built-in families, then those that installed packages bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isomorph.errors import IsomorphError, did_you_mean, shorten

if TYPE_CHECKING:
    from isomorph.operators.declare import Operator

_operators: dict[str, type[Operator]] = {}
_loaded: set[str] = set()


def add(operator: type[Operator]) -> None:
    """Enter an operator; E_OPERATOR when another class holds the name."""
    held = _operators.get(operator.name)
    if held is not None and (held.__module__, held.__qualname__) != (
        operator.__module__,
        operator.__qualname__,
    ):
        raise IsomorphError(
            "E_OPERATOR",
            f"two operators are named {operator.name!r}: {held.__module__}.{held.__qualname__} and "
            f"{operator.__module__}.{operator.__qualname__}",
        )
    _operators[operator.name] = operator


def get(name: str) -> type[Operator] | None:
    """The operator of that name, or None. Other packages are asked only where no built-in one has it."""
    _load_families()
    if name not in _operators:
        _load_entry_points()
    return _operators.get(name)


def is_known(name: str) -> bool:
    """Whether an operator has that name, as far as is known without asking other packages."""
    _load_families()
    return name in _operators


def all_operators() -> dict[str, type[Operator]]:
    """Every operator by name, in alphabetical order."""
    _load_families()
    _load_entry_points()
    return dict(sorted(_operators.items()))


def unknown(name: str) -> IsomorphError:
    """The error for a name that no operator has (without a place; the caller adds it)."""
    names = all_operators()
    hints = did_you_mean(name, names) or [f"operators: {', '.join(names)}"]
    return IsomorphError("E_OPERATOR", f"there is no operator {shorten(name)}", hints=hints)


def _load_families() -> None:
    if "families" not in _loaded:
        _loaded.add("families")
        from isomorph.operators import families  # noqa: F401  (its import registers every family)


def _load_entry_points() -> None:
    """Import what installed packages list under the entry-point group ``isomorph.operators``."""
    if "entry points" in _loaded:
        return
    _loaded.add("entry points")
    from importlib.metadata import entry_points

    for entry in entry_points(group="isomorph.operators"):
        try:
            entry.load()
        except Exception as error:
            raise IsomorphError(
                "E_OPERATOR",
                f"the operators of {entry.value!r} (entry point {entry.name!r}) do not load: {error}",
                hints=["uninstall or mend that package"],
            ) from error
