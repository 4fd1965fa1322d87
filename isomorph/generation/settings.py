"""What is asked of a generation: one list of settings, read by functions, the command and published models alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeAlias, TypedDict

import numpy as np

from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.weights.initial import check_seed

LARGEST_ID = 2**63 - 1

Ids: TypeAlias = "int | Collection[int] | None"
"""An id, several, or none; arrays and tensors too."""

Seed: TypeAlias = "int | Sequence[int | tuple[int, int]]"
"""A number ``s``, which seeds row ``i`` of a batch with the pair ``(s, i)``; or what seeds each row on its own: a
pair, or a number ``n``, which means ``(n, 0)``. Numbers are from 0 to 2**128 - 1."""


class RowSeed(NamedTuple):
    """What seeds the draws of one row: ``(s, i)`` for row ``i`` of ``seed=s``."""

    seed: int
    row: int


class Options(TypedDict, total=False):
    """The settings as they are given by name; :class:`GenerationSettings` says what they mean."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    no_repeat_ngram: int
    banned: Collection[Collection[int]]
    suppress: Ids
    begin_suppress: Ids
    forced: Mapping[int, int] | Collection[tuple[int, int]]
    forced_end: Ids
    min_new_tokens: int
    max_length: int | None
    stop: Ids
    seed: Seed


@dataclass(frozen=True)
class GenerationSettings:
    """How a text is continued.

    Scores are changed in this order, that of ``transformers``: ``repetition_penalty``, ``no_repeat_ngram``,
    ``banned``, ``min_new_tokens``, ``suppress``, ``begin_suppress``, ``forced_end``, ``forced``; of what is left an id is
    taken, or drawn after ``temperature``, ``top_k``, ``top_p`` and ``min_p``. A row's filling on the left counts
    nowhere. Ids that the network does not score may be suppressed, banned and stops: they never come anyway.

    Attributes:
        temperature: scores are divided by it; 0 takes the highest score, the lowest id among equal ones.
        top_k: only that many of the highest scores; 0 for all.
        top_p: only the fewest of the highest whose probabilities, after ``top_k``, reach it; at least one.
        min_p: only ids at least that many times as probable as the likeliest, from 0 to 1.
        repetition_penalty: scores of ids that the row has, its prompt's too, are divided by it where positive and
            multiplied where negative (Keskar et al., 2019); above 0, 1 for none.
        no_repeat_ngram: no so many ids in a row come twice, the prompt's counted; 0 for any.
        banned: sequences of ids that never come: the last of one is not chosen behind the others.
        suppress: ids that never come.
        begin_suppress: ids that are not the first to come, or the first behind the last that is ``forced``.
        forced: pairs of a position in the row, from 0 for the prompt's first id, and the id that comes there;
            or a dictionary of them. Positions within the prompt are past.
        forced_end: the id, or one of those, that comes last, where ``max_new_tokens`` are reached.
        min_new_tokens: before so many new ids no stop comes.
        max_new_tokens: how many ids to add at most; None where nobody said it.
        max_length: how many ids the longest row has at most with its prompt, where ``max_new_tokens`` is None.
        stop: ids that end a row.
        seed: of the draws, as :data:`Seed` says. A row's draws depend on its seed and the step, and on no other row.
        unfollowed: what a published model asks for besides, and is not done; told once where it generates.

    Raises:
        IsomorphError: E_ARGUMENT for a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    banned: Any = ()  # tuple[tuple[int, ...], ...] once it is read, like those below
    suppress: Any = ()
    begin_suppress: Any = ()
    forced: Any = ()
    forced_end: Any = ()
    min_new_tokens: int = 0
    max_new_tokens: int | None = None
    max_length: int | None = None
    stop: Any = ()
    seed: Any = 0
    unfollowed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        plain: dict[str, Any] = {
            "temperature": _number("temperature", self.temperature, math.inf, "a number from 0"),
            "top_p": _number("top_p", self.top_p, 1.0, "a number from 0 to 1"),
            "min_p": _number("min_p", self.min_p, 1.0, "a number from 0 to 1"),
            "repetition_penalty": _penalty(self.repetition_penalty),
            "banned": _banned(self.banned),
            "forced": _forced(self.forced),
            "seed": _seed(self.seed),
        }
        for name in ("top_k", "no_repeat_ngram", "min_new_tokens"):
            plain[name] = check_count(name, getattr(self, name), 0)
        for name, least in (("max_new_tokens", 0), ("max_length", 1)):
            value = getattr(self, name)
            plain[name] = None if value is None else check_count(name, value, least)
        for name in ("suppress", "begin_suppress", "forced_end", "stop"):
            plain[name] = _ids(name, getattr(self, name))
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def changed(self, options: Mapping[str, Any]) -> GenerationSettings:
        """These settings with others in the place of some.

        Raises:
            IsomorphError: E_ARGUMENT for an unknown name or a value out of range.
        """
        for name in options:
            if name not in NAMES:
                hints = did_you_mean(name, NAMES) or [f"settings: {', '.join(NAMES)}"]
                raise IsomorphError(
                    "E_ARGUMENT", f"there is no setting {shorten(name)} of generation", hints=hints
                )
        return replace(self, **options) if options else self

    def row_seeds(self, rows: int) -> list[RowSeed]:
        """What seeds each row of a batch.

        Raises:
            IsomorphError: E_ARGUMENT when there are seeds for another number of rows.
        """
        if isinstance(self.seed, int):
            return [RowSeed(self.seed, row) for row in range(rows)]
        if len(self.seed) != rows:
            raise IsomorphError(
                "E_ARGUMENT",
                f"seed has {len(self.seed)} rows' seeds, the prompts are {rows}",
                hints=[
                    "a number for all rows, or one for each; a pair stands in a list, as in seed=[(5, 1)]"
                ],
            )
        return list(self.seed)


NAMES = tuple(field.name for field in fields(GenerationSettings) if field.name != "unfollowed")


def unfollowed_text(settings: GenerationSettings) -> str:
    """What of a published model's settings is not done, as a sentence."""
    return (
        f"the model asks for settings of generation that are not followed: {', '.join(settings.unfollowed)}"
    )


def check_count(name: str, value: Any, least: int) -> int:
    """An int from ``least``; E_ARGUMENT for anything else."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise IsomorphError("E_ARGUMENT", f"{name} must be an int from {least}, got {shorten(value)}")
    return int(value)


def _number(name: str, value: object, high: float, expected: str) -> float:
    """A finite number from 0 to ``high``, as a float."""
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer that no float holds
            number = float(value)
    if not 0.0 <= number <= high or number == math.inf:
        raise IsomorphError("E_ARGUMENT", f"{name} must be {expected}, got {shorten(value)}")
    return number


def _penalty(value: object) -> float:
    penalty = _number("repetition_penalty", value, math.inf, "a number above 0")
    if not penalty:
        raise IsomorphError(
            "E_ARGUMENT", f"repetition_penalty must be a number above 0, got {shorten(value)}"
        )
    return penalty


def _plain(value: Any) -> Any:
    """An array or a tensor as lists of numbers, all else as it is."""
    return np.asarray(value).tolist() if hasattr(value, "__array__") else value


def _is_id(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) <= LARGEST_ID


def _ids(name: str, value: Any) -> tuple[int, ...]:
    """Ids in ascending order, each once."""
    plain = _plain(value)
    listed = [] if plain is None else [plain] if isinstance(plain, Integral) else plain
    if isinstance(listed, str | bytes) or not isinstance(listed, Sequence | Set):
        raise _no_ids(name, value)
    listed = [_plain(one) for one in listed]
    if not all(map(_is_id, listed)):
        raise _no_ids(name, value)
    return tuple(sorted({int(one) for one in listed}))


def _no_ids(name: str, value: object) -> IsomorphError:
    return IsomorphError("E_ARGUMENT", f"{name} must be an id or several, from 0, got {shorten(value)}")


def _listed(value: Any) -> list[list[Any]] | None:
    """Sequences in a sequence; None for anything else."""
    plain = _plain(value)
    if isinstance(plain, str | bytes) or not isinstance(plain, Sequence | Set):
        return None
    inner = [_plain(one) for one in plain]
    if not all(isinstance(one, Sequence) and not isinstance(one, str | bytes) for one in inner):
        return None
    return [[_plain(one) for one in sequence] for sequence in inner]


def _banned(value: Any) -> tuple[tuple[int, ...], ...]:
    sequences = [] if value is None else _listed(value)
    if sequences is None or not all(sequence and all(map(_is_id, sequence)) for sequence in sequences):
        raise IsomorphError(
            "E_ARGUMENT",
            f"banned must be sequences of ids from 0, none empty, got {shorten(value)}",
            hints=["a single id is a sequence too, as in banned=[[7], [3, 4]]"],
        )
    return tuple(sorted({tuple(map(int, sequence)) for sequence in sequences}))


def _forced(value: Any) -> tuple[tuple[int, int], ...]:
    pairs = [] if value is None else _listed(list(value.items()) if isinstance(value, Mapping) else value)
    if pairs is None or not all(len(pair) == 2 and all(map(_is_id, pair)) for pair in pairs):
        raise IsomorphError(
            "E_ARGUMENT",
            f"forced must be pairs of a position and an id, both from 0, got {shorten(value)}",
            hints=["as in forced={1: 50259, 2: 50359}"],
        )
    by_position: dict[int, int] = {}
    for position, token in pairs:
        if by_position.setdefault(int(position), int(token)) != token:
            raise IsomorphError(
                "E_ARGUMENT",
                f"forced has two ids for position {position}: {by_position[int(position)]} and {token}",
            )
    return tuple(sorted(by_position.items()))


def _seed(value: Any) -> int | tuple[RowSeed, ...]:
    plain = _plain(value)
    if isinstance(plain, str | bytes) or not isinstance(plain, Sequence):
        check_seed(plain)
        return int(plain)
    return tuple(_row_seed(_plain(one)) for one in plain)


def _row_seed(value: Any) -> RowSeed:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        value = (value, 0)
    if len(value) != 2:
        raise IsomorphError(
            "E_ARGUMENT",
            f"a row's seed must be a number, or a pair of a number and a row, got {shorten(value)}",
            hints=["seed=[(5, 1)] seeds as the second row of seed=5"],
        )
    pair = [_plain(one) for one in value]
    for number in pair:
        check_seed(number)
    return RowSeed(int(pair[0]), int(pair[1]))
