"""Whether a set of weights is exactly what a plan needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isomorph.dimensions import show_shape
from isomorph.errors import IsomorphError, did_you_mean, shown
from isomorph.plan import Plan

_MOST_GUESSES = 8  # beyond it the names follow another scheme, and guessing is slow


def check_weights(plan: Plan, shapes: Mapping[str, Sequence[int]]) -> None:
    """E_WEIGHTS listing every missing, unexpected and misshapen entry at once.

    Args:
        plan: the network.
        shapes: the shape of each array by parameter path. Only owners count: the path of a tied
            parameter is unexpected. Shapes must be equal; nothing is broadcast or transposed.
    """
    expected = {parameter.path: parameter.shape for parameter in plan.parameters}
    missing = [path for path in expected if path not in shapes]
    unexpected = [path for path in shapes if path not in expected]
    misshapen = [path for path in expected if path in shapes and tuple(shapes[path]) != expected[path]]
    if not (missing or unexpected or misshapen):
        return
    kinds = (("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen))
    counts = ", ".join(f"{len(paths)} {word}" for word, paths in kinds if paths)
    guess = missing if len(unexpected) <= _MOST_GUESSES else []
    raise IsomorphError(
        "E_WEIGHTS",
        f"the weights do not fit the plan: {counts}",
        hints=[
            *(f"missing: {path} {show_shape(expected[path])}" for path in missing),
            *(
                f"unexpected: {shown(path)} {show_shape(shapes[path])}{_remark(plan, path, guess)}"
                for path in unexpected
            ),
            *(
                f"misshapen: {path}: expected {show_shape(expected[path])}, got {show_shape(shapes[path])}"
                for path in misshapen
            ),
        ],
    )


def _remark(plan: Plan, path: str, missing: Sequence[str]) -> str:
    if path in plan.ties:
        return f" (tied: {plan.ties[path]} holds it)"
    return "".join(f" ({hint})" for hint in did_you_mean(path, missing))
