"""The next id, chosen in NumPy from scores, so that equal seeds give equal ids in every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isomorph.errors import IsomorphError
from isomorph.generation.processing import processors
from isomorph.generation.settings import GenerationSettings, RowSeed

Array = np.ndarray[Any, Any]

_WORD = 2**64 - 1


class Chooser:
    """The ids of a batch, step by step: each row is chosen as if it were alone.

    A row that has ended keeps the id that ended it; nobody looks at its scores any more.

    Args:
        settings: how ids are chosen.
        rows: the prompts' ids, each ``[T]`` without filling.
        vocabulary: V, how many ids are scored.
        steps: how many ids are added at most.

    Raises:
        IsomorphError: E_ARGUMENT for seeds of another number of rows, or a forced id that is not scored.
    """

    def __init__(
        self, settings: GenerationSettings, rows: Sequence[Array], vocabulary: int, steps: int
    ) -> None:
        self._settings = settings
        self._processors = processors(settings, rows, vocabulary, steps)
        self._stops = np.array(settings.stop, dtype=np.int64)
        self._going = np.arange(len(rows))
        self._seeds = settings.row_seeds(len(rows))
        self._philox = _Philox()
        self._ids = np.zeros(len(rows), dtype=np.int64)

    @property
    def ended(self) -> bool:
        """Whether every row has ended."""
        return not len(self._going)

    def choose(self, scores: Array, step: int) -> Array:
        """An id for every row: ``[B, V] -> [B]``, int64.

        Raises:
            IsomorphError: E_RUNTIME when the scores of a row hold NaN, or none is finite, or when the settings
                forbid every id.
        """
        chosen = self._chosen(scores if len(self._going) == len(scores) else scores[self._going], step)
        self._ids[self._going] = chosen
        if len(self._stops):
            ends = np.isin(chosen, self._stops)
            if ends.any():
                self._keep(~ends)
                chosen = chosen[~ends]
        for processor in self._processors:
            processor.add(chosen)
        return self._ids.copy()

    def _keep(self, rows: Array) -> None:
        self._going = self._going[rows]
        for processor in self._processors:
            processor.keep(rows)

    def _chosen(self, scores: Array, step: int) -> Array:
        highest = self._highest(scores)
        if self._processors:
            scores = scores.astype(np.float64 if scores.dtype == np.float64 else np.float32)  # a copy
            for processor in self._processors:
                processor.apply(scores, step)
            highest = self._left(scores)
        if self._settings.temperature == 0:
            return highest
        scores = scores.astype(np.float64)
        draws = [self._philox.uniform(self._seeds[row], step) for row in self._going.tolist()]
        return np.array(
            [draw(self._settings, row, u) for row, u in zip(scores, draws, strict=True)], dtype=np.int64
        )

    def _highest(self, scores: Array) -> Array:
        """The id of the highest score in each row."""
        highest = scores.argmax(-1)  # the first NaN where there is one
        broken = ~(scores[np.arange(len(scores)), highest] > -np.inf)
        if broken.any():
            raise IsomorphError(
                "E_RUNTIME",
                f"row {self._going[broken.argmax()]}: the scores of the next id hold NaN or are all minus infinity",
                hints=["the weights are damaged, or the dtype is too narrow for this network"],
            )
        return highest

    def _left(self, scores: Array) -> Array:
        """The same of what the settings leave."""
        highest = scores.argmax(-1)
        empty = scores[np.arange(len(scores)), highest] == -np.inf
        if empty.any():
            raise IsomorphError(
                "E_RUNTIME",
                f"row {self._going[empty.argmax()]}: the settings forbid every id that could come next",
                hints=["allow more with suppress, begin_suppress, banned, no_repeat_ngram or min_new_tokens"],
            )
        return highest


class _Philox:
    """NumPy's Philox generator (Salmon et al., 2011) at any place, without making one for each."""

    def __init__(self) -> None:
        self._bits = np.random.Philox(0)
        self._generator = np.random.Generator(self._bits)
        self._state: Any = {**self._bits.state, "buffer_pos": 4, "has_uint32": 0}

    def uniform(self, seed: RowSeed, step: int) -> float:
        """The first number, from 0 to below 1, of the key ``seed`` and the counter (0, step, row)."""
        number, row = seed
        counter = np.array([0, step, row & _WORD, row >> 64], dtype=np.uint64)
        key = np.array([number & _WORD, number >> 64], dtype=np.uint64)
        self._state["state"] = {"counter": counter, "key": key}
        self._bits.state = self._state
        return self._generator.random()


def draw(settings: GenerationSettings, scores: Array, u: float) -> int:
    """The id of one row ``[V]``, float64, at which probabilities add up to ``u``."""
    ids = _highest(scores, settings.top_k)
    probabilities = _softmax(scores[ids], settings.temperature)
    if settings.top_p < 1:
        order = np.argsort(-probabilities, kind="stable")
        reached = np.cumsum(probabilities[order])
        order = order[: 1 + int(np.searchsorted(reached, settings.top_p))]
        order.sort()
        ids, probabilities = ids[order], probabilities[order]
    if settings.min_p:
        likely = probabilities >= settings.min_p * probabilities.max()
        ids, probabilities = ids[likely], probabilities[likely]
    reached = np.cumsum(probabilities)
    last = int(np.searchsorted(reached, reached[-1]))  # behind it nothing has a probability
    return int(ids[min(int(np.searchsorted(reached, u * reached[-1], side="right")), last)])


def _highest(scores: Array, k: int) -> Array:
    """The ids that ``top_k`` leaves, in ascending order; of equal scores the lower ids."""
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
