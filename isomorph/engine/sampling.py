"""The next id, chosen in NumPy from scores, so that equal seeds give equal ids in every backend."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from isomorph.errors import IsomorphError, shorten
from isomorph.weights.initial import check_seed

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sampling:
    """How ids are chosen.

    Attributes:
        temperature: scores are divided by it; 0 takes the highest score, the lowest id among equal ones.
        top_k: only that many of the highest scores; 0 for all.
        top_p: only the fewest of the highest whose probabilities, after ``top_k``, reach it; at least one.
        seed: of the draws.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        temperature = _number("temperature", self.temperature, math.inf, "a number from 0")
        top_p = _number("top_p", self.top_p, 1.0, "a number from 0 to 1")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, Integral) or self.top_k < 0:
            raise IsomorphError("E_ARGUMENT", f"top_k must be an int from 0, got {shorten(self.top_k)}")
        check_seed(self.seed)
        plain = {"temperature": temperature, "top_p": top_p, "top_k": int(self.top_k), "seed": int(self.seed)}
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def choose(self, scores: Array, step: int) -> Array:
        """An id for every row: ``[B, V] -> [B]``, int64.

        The draws of a step come from NumPy's Philox generator keyed by (seed, step), one for each row.

        Raises:
            IsomorphError: E_RUNTIME when the scores of a row hold NaN, or none is finite.
        """
        scores = np.asarray(scores)
        highest = scores.argmax(-1)  # the first NaN where there is one
        broken = ~(scores[np.arange(len(scores)), highest] > -np.inf)
        if broken.any():
            raise IsomorphError(
                "E_RUNTIME",
                f"row {int(broken.argmax())}: the scores of the next id hold NaN or are all minus infinity",
                hints=["the weights are damaged, or the dtype is too narrow for this network"],
            )
        if self.temperature == 0:
            return highest
        scores = scores.astype(np.float64)
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, step])))
        draws = generator.random(len(scores))
        return np.array([self._draw(row, u) for row, u in zip(scores, draws, strict=True)], dtype=np.int64)

    def _draw(self, scores: Array, u: float) -> int:
        ids = self._highest(scores)
        probabilities = _softmax(scores[ids], self.temperature)
        if self.top_p < 1:
            order = np.argsort(-probabilities, kind="stable")
            reached = np.cumsum(probabilities[order])
            order = order[: 1 + int(np.searchsorted(reached, self.top_p))]
            order.sort()
            ids, probabilities = ids[order], probabilities[order]
        reached = np.cumsum(probabilities)
        chosen = int(np.searchsorted(reached, u * reached[-1], side="right"))
        return int(ids[min(chosen, len(ids) - 1)])

    def _highest(self, scores: Array) -> Array:
        """The ids that ``top_k`` leaves, in ascending order; of equal scores the lower ids."""
        k = self.top_k
        if not k or k >= len(scores):
            return np.flatnonzero(scores > -np.inf)
        threshold = np.partition(scores, -k)[-k]
        above, equal = np.flatnonzero(scores > threshold), np.flatnonzero(scores == threshold)
        return np.sort(np.concatenate((above, equal[: k - len(above)])))


def _softmax(scores: Array, temperature: float) -> Array:
    highest = scores.max()
    if highest == np.inf:
        weights = (scores == np.inf).astype(np.float64)
    else:
        with np.errstate(over="ignore"):  # a tiny temperature: the others weigh nothing
            weights = np.exp((scores - highest) / temperature)
    return weights / weights.sum()


def _number(name: str, value: object, high: float, expected: str) -> float:
    """A finite number from 0 to ``high``, as a float."""
    found = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer that no float holds
            found = float(value)
    if not 0.0 <= found <= high or found == math.inf:
        raise IsomorphError("E_ARGUMENT", f"{name} must be {expected}, got {shorten(value)}")
    return found
