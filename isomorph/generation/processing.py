"""What changes the scores of the next id before it is chosen, as in ``transformers`` and in its order.

Each step's scores ``[N, V]`` are those of the N rows that have not ended; what ends is dropped from every state, so
that a row never depends on another. Positions count from a row's own first id: filling on the left is none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from isomorph.errors import IsomorphError
from isomorph.generation.settings import GenerationSettings

Array = np.ndarray[Any, Any]


class Processor(Protocol):
    """Changes scores in place, and is told what was chosen."""

    def apply(self, scores: Array, step: int) -> None:
        """Change the scores ``[N, V]`` of a step, float32 or float64."""
        ...

    def keep(self, rows: Array) -> None:
        """Go on with some of the rows, ``[N]`` booleans."""
        ...

    def add(self, ids: Array) -> None:
        """Take the ids ``[N]`` that were chosen."""
        ...


class _Stateless(Processor):
    def keep(self, rows: Array) -> None:
        pass

    def add(self, ids: Array) -> None:
        pass


def processors(
    settings: GenerationSettings, rows: Sequence[Array], vocabulary: int, steps: int
) -> list[Processor]:
    """What the settings ask for, in the order in which it acts.

    Args:
        settings: of the generation.
        rows: the prompts' ids, each ``[T]`` without filling.
        vocabulary: V, how many ids are scored.
        steps: how many ids are added at most.

    Raises:
        IsomorphError: E_ARGUMENT for a forced id that is not scored.
    """
    forced = dict(settings.forced)
    _check_scored("forced", forced.values(), vocabulary)
    _check_scored("forced_end", settings.forced_end, vocabulary)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    stops, single = _scored(settings.stop, vocabulary), [one[0] for one in settings.banned if len(one) == 1]
    never = _scored([*settings.suppress, *single], vocabulary)
    at_begin = _scored(settings.begin_suppress, vocabulary)
    longer = [one for one in settings.banned if len(one) > 1]
    chosen: list[Processor] = []
    if settings.repetition_penalty != 1:
        chosen.append(RepetitionPenalty(settings.repetition_penalty, rows, vocabulary))
    if settings.no_repeat_ngram == 1:
        chosen.append(NoRepeatedIds(rows, vocabulary))
    elif settings.no_repeat_ngram:
        chosen.append(NoRepeatedNgrams(settings.no_repeat_ngram, rows, vocabulary))
    if longer:
        chosen.append(BannedSequences(longer, rows, vocabulary))
    if settings.min_new_tokens and len(stops):
        chosen.append(NoStopsBefore(settings.min_new_tokens, stops))
    if len(never):
        chosen.append(Suppressed(never))
    if len(at_begin):
        begins = np.maximum(max(forced, default=-1) + 1 - lengths, 0)
        chosen.append(SuppressedAtBegin(at_begin, begins))
    if settings.forced_end:
        chosen.append(ForcedEnd(settings.forced_end, steps - 1))
    if forced:
        chosen.append(Forced(forced, lengths))
    return chosen


def _scored(ids: Sequence[int], vocabulary: int) -> Array:
    return np.array(sorted({token for token in ids if token < vocabulary}), dtype=np.int64)


def _check_scored(name: str, ids: Any, vocabulary: int) -> None:
    for token in ids:
        if token >= vocabulary:
            raise IsomorphError(
                "E_ARGUMENT",
                f"{name} holds id {token}, the network scores {vocabulary:,}",
                hints=[f"ids run from 0 to {vocabulary - 1}"],
            )


def _seen(rows: Sequence[Array], vocabulary: int) -> Array:
    """Which ids each row has, ``[N, V]``; those that are not scored cannot come."""
    seen = np.zeros((len(rows), vocabulary), dtype=bool)
    for mask, ids in zip(seen, rows, strict=True):
        mask[ids[ids < vocabulary]] = True
    return seen


class RepetitionPenalty(Processor):
    """Makes ids that a row has less likely (CTRL, Keskar et al., 2019): s / p where s is positive, else s * p."""

    def __init__(self, penalty: float, rows: Sequence[Array], vocabulary: int) -> None:
        self._penalty, self._seen = penalty, _seen(rows, vocabulary)

    def apply(self, scores: Array, step: int) -> None:
        with np.errstate(over="ignore"):
            np.divide(scores, self._penalty, out=scores, where=self._seen & (scores > 0))
            np.multiply(scores, self._penalty, out=scores, where=self._seen & (scores < 0))

    def keep(self, rows: Array) -> None:
        self._seen = self._seen[rows]

    def add(self, ids: Array) -> None:
        self._seen[np.arange(len(ids)), ids] = True


class NoRepeatedIds(Processor):
    """Forbids every id that a row has: n-grams of one."""

    def __init__(self, rows: Sequence[Array], vocabulary: int) -> None:
        self._seen = _seen(rows, vocabulary)

    def apply(self, scores: Array, step: int) -> None:
        scores[self._seen] = -np.inf

    def keep(self, rows: Array) -> None:
        self._seen = self._seen[rows]

    def add(self, ids: Array) -> None:
        self._seen[np.arange(len(ids)), ids] = True


class NoRepeatedNgrams(Processor):
    """Forbids the id that would end an n-gram which its row has already.

    A table by the first n - 1 ids holds what came behind them. It grows by an entry a step, and a step looks up one.
    """

    def __init__(self, size: int, rows: Sequence[Array], vocabulary: int) -> None:
        self._before, self._vocabulary = size - 1, vocabulary
        self._tables: list[dict[tuple[int, ...], list[int]]] = []
        self._tails: list[tuple[int, ...]] = []
        for row in rows:
            ids, table = row.tolist(), {}
            for start in range(len(ids) - self._before):
                self._note(table, tuple(ids[start : start + self._before]), ids[start + self._before])
            self._tables.append(table)
            self._tails.append(tuple(ids[-self._before :]))

    def _note(self, table: dict[tuple[int, ...], list[int]], before: tuple[int, ...], token: int) -> None:
        if token < self._vocabulary:
            table.setdefault(before, []).append(token)

    def apply(self, scores: Array, step: int) -> None:
        for row, table, tail in zip(scores, self._tables, self._tails, strict=True):
            if tail in table:
                row[table[tail]] = -np.inf

    def keep(self, rows: Array) -> None:
        kept = np.flatnonzero(rows).tolist()
        self._tables = [self._tables[row] for row in kept]
        self._tails = [self._tails[row] for row in kept]

    def add(self, ids: Array) -> None:
        for row, (table, token) in enumerate(zip(self._tables, ids.tolist(), strict=True)):
            tail = self._tails[row]
            if len(tail) == self._before:
                self._note(table, tail, token)
            self._tails[row] = (*tail, token)[-self._before :]


class BannedSequences(Processor):
    """Forbids the last id of a sequence behind its others."""

    def __init__(self, sequences: Sequence[tuple[int, ...]], rows: Sequence[Array], vocabulary: int) -> None:
        longest = max(map(len, sequences)) - 1
        self._tails = np.full((len(rows), longest), -1, dtype=np.int64)  # -1 is no id
        for tail, row in zip(self._tails, rows, strict=True):
            ids = row[-longest:]
            tail[longest - len(ids) :] = ids
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for sequence in sequences:
            if sequence[-1] < vocabulary:
                by_length.setdefault(len(sequence) - 1, []).append(sequence)
        self._groups = [
            (length, *np.split(np.array(group, dtype=np.int64), [length], axis=1))
            for length, group in by_length.items()
        ]

    def apply(self, scores: Array, step: int) -> None:
        for length, before, last in self._groups:
            rows, which = np.nonzero((self._tails[:, None, -length:] == before).all(-1))  # (N, S, length)
            scores[rows, last[which, 0]] = -np.inf

    def keep(self, rows: Array) -> None:
        self._tails = self._tails[rows]

    def add(self, ids: Array) -> None:
        self._tails[:, :-1] = self._tails[:, 1:].copy()
        self._tails[:, -1] = ids


class NoStopsBefore(_Stateless):
    """Forbids stops among the first new ids."""

    def __init__(self, least: int, stops: Array) -> None:
        self._least, self._stops = least, stops

    def apply(self, scores: Array, step: int) -> None:
        if step < self._least:
            scores[:, self._stops] = -np.inf


class Suppressed(_Stateless):
    """Forbids ids."""

    def __init__(self, ids: Array) -> None:
        self._ids = ids

    def apply(self, scores: Array, step: int) -> None:
        scores[:, self._ids] = -np.inf


class SuppressedAtBegin(Processor):
    """Forbids ids at one step of each row."""

    def __init__(self, ids: Array, begins: Array) -> None:
        self._ids, self._begins = ids, begins

    def apply(self, scores: Array, step: int) -> None:
        rows = np.flatnonzero(self._begins == step)
        scores[rows[:, None], self._ids] = -np.inf

    def keep(self, rows: Array) -> None:
        self._begins = self._begins[rows]

    def add(self, ids: Array) -> None:
        pass


class ForcedEnd(_Stateless):
    """Leaves some ids alone at the last step, all alike."""

    def __init__(self, ids: Sequence[int], last: int) -> None:
        self._ids, self._last = list(ids), last

    def apply(self, scores: Array, step: int) -> None:
        if step == self._last:
            scores[...] = -np.inf
            scores[:, self._ids] = 0


class Forced(Processor):
    """Leaves one id at some positions of a row."""

    def __init__(self, ids: dict[int, int], lengths: Array) -> None:
        self._ids, self._lengths = ids, lengths

    def apply(self, scores: Array, step: int) -> None:
        for row, length in enumerate(self._lengths.tolist()):
            token = self._ids.get(length + step)
            if token is not None:
                scores[row] = -np.inf
                scores[row, token] = 0

    def keep(self, rows: Array) -> None:
        self._lengths = self._lengths[rows]

    def add(self, ids: Array) -> None:
        pass
