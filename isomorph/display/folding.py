"""Finds what a plan repeats, so that a picture shows ``block × 12`` once.

A repeat is a run of equal segments of nodes that are wired alike: every repetition reads values of its own, what
the one before it made at the same place, and values from before the run that are the same for all; what
repetitions but the last make is read nowhere else. That is exactly a loop that carries values, whatever the
definition looked like. Bodies are folded again.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from isomorph.plan import Node, Plan

LONGEST_BODY = 128
"""Nodes in a repeated segment; longer ones are drawn as they are, which keeps the search linear."""


class Repeat(NamedTuple):
    """A folded run.

    Attributes:
        start: index of its first node.
        period: nodes in one repetition.
        times: repetitions, two or more.
        body: the first repetition, itself folded.
    """

    start: int
    period: int
    times: int
    body: tuple[int | Repeat, ...]


def fold(plan: Plan) -> tuple[int | Repeat, ...]:
    """The nodes of a plan by index, in order, with what repeats folded.

    The longest repeats are folded first, then those of the shortest body, then the earliest. Time and memory
    are linear in the number of nodes but for sorting.
    """
    return _Folder(plan).fold(0, len(plan.nodes))


class _Folder:
    def __init__(self, plan: Plan) -> None:
        self.inputs = [tuple(value for _, value in node.inputs) for node in plan.nodes]
        self.producer = [value.node for value in plan.values]
        self.place = [0] * len(plan.values)
        self.kinds = self._kinds(plan)
        self.last_use = list(range(len(plan.nodes)))
        """The last node that reads anything of a node; beyond all for what the network returns."""
        for node in plan.nodes:
            for place, value in enumerate(node.outputs):
                self.place[value] = place
            for value in self.inputs[node.index]:
                if self.producer[value] >= 0:
                    self.last_use[self.producer[value]] = node.index
        for _, value in plan.outputs:
            if self.producer[value] >= 0:
                self.last_use[self.producer[value]] = len(plan.nodes)

    def _kinds(self, plan: Plan) -> list[int]:
        """A number per node, equal for nodes that are drawn alike."""
        numbers: dict[object, int] = {}
        return [numbers.setdefault(_kind(plan, node), len(numbers)) for node in plan.nodes]

    def fold(self, low: int, high: int) -> tuple[int | Repeat, ...]:
        """Nodes ``low .. high - 1``."""
        repeats: list[tuple[int, int, int]] = []
        for start, end in self._segments(low, high):
            repeats += self._choose(start, end)
        items: list[int | Repeat] = []
        at = low
        for start, period, count in sorted(repeats):
            items += range(at, start)
            items.append(Repeat(start, period, count, self.fold(start, start + period)))
            at = start + period * count
        return (*items, *range(at, high))

    def _segments(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """What lies between nodes that occur once, since those are in no repeat."""
        occurrences = Counter(self.kinds[low:high])
        start = low
        for index in range(low, high + 1):
            if index == high or occurrences[self.kinds[index]] == 1:
                if index - start > 1:
                    yield start, index
                start = index + 1

    def _choose(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """Disjoint repeats (start, period, count), greedily by how much they cover."""
        waiting = [(-period * count, period, start) for start, period, count in self._candidates(low, high)]
        heapq.heapify(waiting)
        taken = bytearray(high - low)
        chosen = []
        while waiting:
            covered, period, start = heapq.heappop(waiting)
            end = start - covered
            if not any(taken[start - low : end - low]):
                chosen.append((start, period, (end - start) // period))
                taken[start - low : end - low] = b"\1" * (end - start)
                continue
            for free_start, free_end in _free(taken, start - low, end - low):
                for again in self._within(low + free_start, low + free_end, period):
                    heapq.heappush(waiting, (-period * again[2], period, again[0]))
        return chosen

    def _candidates(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Repeats of every period, short periods first, until one leaves less than a repetition out."""
        for period in range(1, min(LONGEST_BODY, (high - low) // 2) + 1):
            for start, end in self._runs(low, high, period):
                for candidate in self._within(start, end, period):
                    yield candidate
                    if high - low - period * candidate[2] < period:
                        return

    def _runs(self, low: int, high: int, period: int) -> Iterator[tuple[int, int]]:
        """Ranges in which each node looks like the one a period later: what may hold a repeat."""
        kinds, start = self.kinds, low
        for index in range(low, high - period + 1):
            last = index + period == high
            if last or kinds[index] != kinds[index + period] or not self._alike(index, period):
                if index - start >= period:
                    yield start, index + period
                start = index + 1

    def _alike(self, index: int, period: int) -> bool:
        """What :meth:`_follows` asks of a node, as far as it can be said without knowing where a run starts."""
        if self.last_use[index] >= index + 2 * period:
            return False
        for one, other in zip(self.inputs[index], self.inputs[index + period], strict=True):
            if one != other and self.producer[other] <= index - period:
                return False
        return True

    def _within(self, start: int, end: int, period: int) -> Iterator[tuple[int, int, int]]:
        """The repeats of one period in a range, from left to right, each where it carries fewest values."""
        while start + 2 * period <= end:
            count = self._grow(start, end, period)
            if count < 2:
                start += 1
                continue
            slack = min(period - 1, end - start - period * count)
            shifts = sorted(range(slack + 1), key=lambda shift: (self._carried(start + shift, period), shift))
            best = next(s for s in shifts if s == 0 or self._grow(start + s, end, period) == count)
            yield start + best, period, count
            start += best + period * count

    def _grow(self, start: int, end: int, period: int) -> int:
        """How often the segment at ``start`` repeats before ``end``, 1 when not at all."""
        count, entries = 1, dict[int, int]()
        while start + (count + 1) * period <= end and self._follows(start, period, count, entries):
            count += 1
        return count

    def _follows(self, start: int, period: int, number: int, entries: dict[int, int]) -> bool:
        """Whether repetition ``number`` follows from the one before it; ``entries``: what is carried, and from where."""
        base = start + (number - 1) * period
        for index in range(base, base + period):
            if self.kinds[index] != self.kinds[index + period] or self.last_use[index] >= base + 2 * period:
                return False
            for one, other in zip(self.inputs[index], self.inputs[index + period], strict=True):
                earlier, later = self.producer[one], self.producer[other]
                if (
                    earlier < start
                ):  # read from before the run: the same value for all, or where a carried one begins
                    if one == other:
                        continue
                    if (
                        number > 1
                        or not base <= later < base + period
                        or entries.setdefault(other, one) != one
                    ):
                        return False
                elif later != earlier + period or self.place[one] != self.place[other]:
                    return False
        return True

    def _carried(self, start: int, period: int) -> int:
        """How many values pass from the first repetition to the second."""
        nodes = range(start + period, start + 2 * period)
        read = {value for index in nodes for value in self.inputs[index]}
        return sum(start <= self.producer[value] < start + period for value in read)


def _kind(plan: Plan, node: Node) -> object:
    """What makes nodes look alike: all but names, places and initial values."""
    outputs = tuple((plan.values[value].shape, plan.values[value].dtype) for value in node.outputs)
    ports = tuple(port for port, _ in node.inputs)
    return node.operator, ports, outputs, tuple(sorted(node.tie)), tuple(sorted(node.trainable.items()))


def _free(taken: bytearray, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of ``start .. end`` that are not taken."""
    while start < end:
        begin = taken.find(0, start, end)
        if begin < 0:
            return
        stop = taken.find(1, begin, end)
        stop = end if stop < 0 else stop
        yield begin, stop
        start = stop
