"""The learning rate as a function of the step."""

from __future__ import annotations

from math import cos, pi


def learning_rate_at(step: int, *, steps: int, peak: float, warmup: int, final: float) -> float:
    """Linear warm-up, then a half cosine (Loshchilov and Hutter, 2016).

    Step s of the first ``warmup`` takes ``peak * (s + 1) / warmup``, so that the first is not wasted and the
    last reaches the peak. The others go from ``peak`` to ``peak * final`` at step ``steps - 1``:

        final + (1 - final) * (1 + cos(pi * progress)) / 2

    Args:
        step: from 0.
        steps: of the whole run.
        peak: the largest rate.
        warmup: steps of rise; may exceed ``steps``.
        final: the last rate as a fraction of the peak.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    return peak * (final + (1 - final) * (1 + cos(pi * min(1.0, progress))) / 2)
