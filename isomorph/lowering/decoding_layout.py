"""How a plan generates text: which of its nodes an id moves, and where its scores are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from isomorph.plan import Node, Plan


class Narrowing(NamedTuple):
    """A value of the plan of which only the last position is needed, and the axis of positions."""

    value: int
    axis: int


@dataclass(frozen=True)
class DecodingLayout:
    """How a plan generates text.

    Attributes:
        plan: the network.
        tokens: the input of ids ``[B, T]``, as an index into ``plan.inputs``.
        others: further inputs, likewise; all are known before the first id.
        logits: id of the value that scores the next id at every position.
        vocabulary: how many ids the network knows.
        scores: V, how many ids it scores.
        limit: the most positions, None for any number.
        fixed: nodes that read no ids, computed once.
        moving: nodes that do, in order, as far as the scores need them.
        last: how many of those come before the values are narrowed to the last position.
        kept: values that the nodes after that read, with their axis of positions.
    """

    plan: Plan
    tokens: int
    others: tuple[int, ...]
    logits: int
    vocabulary: int
    scores: int
    limit: int | None
    fixed: tuple[Node, ...]
    moving: tuple[Node, ...]
    last: int
    kept: tuple[Narrowing, ...]

    def __hash__(self) -> int:
        return hash(self.plan)
