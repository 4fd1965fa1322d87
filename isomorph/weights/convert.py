"""From a mapping that someone hands over to exactly a plan's parameters: ties, prefixes, strictness.

Every backend loads through :func:`owned_weights`. It knows no framework: an array is anything with
``.shape``, ``.dtype`` and elementwise ``==``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from isomorph.errors import IsomorphError, shorten
from isomorph.plan import DTYPE_BYTES, Plan
from isomorph.weights.check import check_weights


def owned_weights(plan: Plan, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Exactly the plan's parameters, in its order, each under its owner's path.

    A tied parameter may come under its owner's path, under the tied one, or under both if they are equal.
    Values are passed on as they are; what is no array yet becomes a NumPy array.

    Raises:
        IsomorphError: E_WEIGHTS listing every missing, unexpected and misshapen entry at once, two
            different values for one tied parameter, or entries that hold no floating-point numbers.
    """
    if not isinstance(weights, Mapping):
        raise IsomorphError(
            "E_ARGUMENT",
            f"weights must be a mapping from parameter path to array, got {shorten(type(weights).__name__)}",
        )
    strange = [path for path in weights if not isinstance(path, str)]
    if strange:
        raise IsomorphError(
            "E_WEIGHTS", f"a parameter path is a string such as n0.weight, got {shorten(strange[0])}"
        )
    _check_dense(weights)
    arrays = {
        p: v if hasattr(v, "shape") and hasattr(v, "dtype") else to_array(p, v) for p, v in weights.items()
    }
    arrays_by_owner = merge_ties(plan, arrays)
    try:
        check_weights(plan, {path: tuple(array.shape) for path, array in arrays_by_owner.items()})
    except IsomorphError as error:
        prefix = foreign_prefix(plan, arrays_by_owner)
        if not prefix:
            raise
        hint = f"every such path starts with {prefix!r}: strip that prefix before loading"
        raise IsomorphError(error.code, error.message, hints=[*error.hints, hint]) from None
    _check_floating(plan, arrays_by_owner)
    return {parameter.path: arrays_by_owner[parameter.path] for parameter in plan.parameters}


def _check_dense(weights: Mapping[str, Any]) -> None:
    """E_WEIGHTS for sparse tensors, of whichever framework: they say how they lie, or are no arrays."""
    for path, value in weights.items():
        shaped = hasattr(value, "shape") and hasattr(value, "dtype")
        layout = str(getattr(value, "layout", "torch.strided"))
        if shaped and (layout.startswith("torch.sparse") or not hasattr(value, "__array__")):
            raise IsomorphError(
                "E_WEIGHTS",
                f"{path}: expected a dense array, got a {type(value).__module__.partition('.')[0]} "
                f"{type(value).__name__} that is none",
                hints=["make it dense, as in x.to_dense() or x.toarray()"],
            )


def to_array(path: str, value: Any) -> np.ndarray:
    """What NumPy makes of a value; E_WEIGHTS when it can make no array of it."""
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise IsomorphError(
            "E_WEIGHTS",
            f"{path}: NumPy cannot read this {type(value).__name__}: {shorten(str(error), 160)}",
            hints=["a backend's weights(model) gives arrays"],
        ) from error


def merge_ties(plan: Plan, weights: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with every tied path replaced by its owner's; E_WEIGHTS when the two differ."""
    owned = {path: array for path, array in weights.items() if path not in plan.ties}
    source = {path: path for path in owned}
    for alias, owner in plan.ties.items():
        if alias not in weights:
            continue
        if owner not in owned:
            owned[owner], source[owner] = weights[alias], alias
        elif not _equal(owned[owner], weights[alias]):
            raise IsomorphError(
                "E_WEIGHTS",
                f"{alias} is tied to {owner}, but {source[owner]} and {alias} are given different values",
                hints=["give one of them, or both alike; or resolve the definition without the tie"],
            )
    return owned


def foreign_prefix(plan: Plan, paths: Iterable[str]) -> str:
    """What stands before the plan's paths in all unexpected ones (``module._orig_mod.``), or ``""``."""
    known = {parameter.path for parameter in plan.parameters} | set(plan.ties)
    unexpected = [path for path in paths if path not in known]
    if not unexpected:
        return ""
    first = unexpected[0]
    for start in (i + 1 for i, character in enumerate(first) if character == "."):
        prefix = first[:start]
        if all(path.startswith(prefix) and path[start:] in known for path in unexpected):
            return prefix
    return ""


def _equal(a: Any, b: Any) -> bool:
    """Elementwise equality, NaN equal to itself, of arrays of one framework."""
    if a is b:
        return True
    if tuple(a.shape) != tuple(b.shape):
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _check_floating(plan: Plan, weights: Mapping[str, Any]) -> None:
    names = {path: str(getattr(array.dtype, "name", array.dtype)) for path, array in weights.items()}
    names = {path: name.rpartition(".")[2] for path, name in names.items()}  # torch says torch.float32
    wrong = {path: name for path, name in names.items() if name not in DTYPE_BYTES}
    if wrong:
        raise IsomorphError(
            "E_WEIGHTS",
            f"{len(wrong)} of the weights are not floating-point numbers",
            hints=[f"{path}: expected {plan.dtype}, got {name}" for path, name in wrong.items()],
        )
