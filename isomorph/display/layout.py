"""Places boxes in layers, top to bottom, and finds a way for the lines between them.

A line leaves its box below and arrives above. Between two layers it may turn once, on a track of its own; a line
that passes layers goes straight down where nothing stands in its way, and otherwise down a lane at the right of
everything that it passes. So no line crosses a box, and no
two lines share a stretch unless they carry the same tensor. Time is linear in boxes and lines but for sorting.

Axis legend: x to the right, y down; positions are of a box's spine, the vertical line that it is aligned by.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Point = tuple[float, float]

BETWEEN = 28  # boxes of one layer
LABEL = 22  # height of the zone below a layer in which labels stand
TRACK = 10  # from one track to the next
ARROW = 16  # height of the zone above a layer in which lines arrive
LANE = 14  # from one lane to the next
CLEAR = 10  # from a line to the boxes that it passes
LONGEST_DROP = 16  # layers that a line is tried to pass straight down
_PORT = 26  # from one line's arrival to the next


@dataclass(slots=True)
class Box:
    """Something to place.

    Attributes:
        left, right: how far it extends from its spine.
        height: its height.
        ins: where lines arrive, from the spine; None where the layout may choose.
        outs: where lines leave, one per tensor, from the spine.
        label_right: how far labels below it extend from the spine.
        side: whether a line may arrive at its right side.
        layer: a layer that it must be in: 0, or -1 for the last.
        x, y: where it was placed: its spine, its upper edge.
    """

    left: float
    right: float
    height: float
    ins: list[float] | None = None
    outs: list[float] = field(default_factory=lambda: [0.0])
    label_right: float = 0.0
    side: bool = True
    layer: int | None = None
    x: float = 0.0
    y: float = 0.0

    @property
    def reach(self) -> float:
        """How far it and its labels extend to the right."""
        return max(self.right, self.label_right)


@dataclass(slots=True)
class Wire:
    """A tensor on its way: from place ``out`` of a box to place ``into`` of another.

    Attributes:
        source, out, target, into: indices of boxes and of their places.
        path: the corners of its line, once it is laid.
    """

    source: int
    out: int
    target: int
    into: int
    path: list[Point] = field(default_factory=list)


@dataclass(slots=True)
class Extent:
    """The area that boxes, labels and lines take."""

    left: float
    right: float
    height: float


def lay_out(boxes: Sequence[Box], wires: Sequence[Wire]) -> Extent:
    """Place every box and lay every wire. A wire's source comes before its target in ``boxes``."""
    return _Layout(boxes, wires).run()


class _Layout:
    def __init__(self, boxes: Sequence[Box], wires: Sequence[Wire]) -> None:
        self.boxes, self.wires = boxes, wires
        self.arriving: list[list[Wire]] = [[] for _ in boxes]
        self.leaving: list[list[Wire]] = [[] for _ in boxes]
        self.numbers: list[list[int]] = [[] for _ in boxes]  # of arriving wires
        for number, wire in enumerate(wires):
            self.arriving[wire.target].append(wire)
            self.leaving[wire.source].append(wire)
            self.numbers[wire.target].append(number)
        self.layer = self._layers()
        self.rows: list[list[int]] = [[] for _ in range(max(self.layer, default=-1) + 1)]
        for index, layer in enumerate(self.layer):
            self.rows[layer].append(index)

    def run(self) -> Extent:
        self._columns()
        self.drops = self._drops()
        self.lanes = self._lanes()
        self.ports: dict[int, float] = {}  # x of each wire's arrival from above, by its number
        self.sides: dict[int, float] = {}  # y of each arrival at a side, from the box's middle
        for layer, row in enumerate(self.rows):
            self._arrivals(row, self.rows[layer - 1] if layer else [])
        self.tracks = self._tracks()
        bottom = self._heights()
        for number, wire in enumerate(self.wires):
            wire.path = self._path(number, wire)
        xs = [x for wire in self.wires for x, _ in wire.path]
        return Extent(
            min([box.x - box.left for box in self.boxes] + xs, default=0.0),
            max([box.x + box.reach for box in self.boxes] + xs, default=0.0),
            bottom,
        )

    # -- layers and columns ------------------------------------------------------------------

    def _layers(self) -> list[int]:
        """Below everything that it reads; what comes from inputs alone stands as low as its reader allows."""
        layer = [0] * len(self.boxes)
        self.loose = loose = [False] * len(self.boxes)
        for index, box in enumerate(self.boxes):
            sources = {wire.source for wire in self.arriving[index]}
            loose[index] = box.layer is None and all(
                loose[source] and len({wire.target for wire in self.leaving[source]}) == 1
                for source in sources
            )
            if box.layer is None:
                layer[index] = max((layer[source] + 1 for source in sources), default=0)
        for index in reversed(range(len(self.boxes))):
            readers = [wire.target for wire in self.leaving[index] if self.boxes[wire.target].layer is None]
            if loose[index] and readers:
                layer[index] = min(layer[reader] for reader in readers) - 1
        last = max((layer[index] + 1 for index, box in enumerate(self.boxes) if box.layer != -1), default=0)
        return [last if box.layer == -1 else layer[index] for index, box in enumerate(self.boxes)]

    def _place(self, row: list[int], wanted: Mapping[int, float | None]) -> None:
        """Put a layer's boxes, in their order, where they want to be, moved apart as little as possible.

        Boxes that would overlap form a block that moves as one, to the mean of what its boxes want (the
        pool-adjacent-violators algorithm). What comes from inputs alone makes room for the rest.
        """
        offsets, offset, before = [], 0.0, None
        for index in row:
            box = self.boxes[index]
            offset += 0.0 if before is None else before.reach + BETWEEN + box.left
            offsets.append(offset)
            before = box
        blocks: list[tuple[float, float, int]] = []  # weighted sum of wishes, weight, boxes
        for index, offset in zip(row, offsets, strict=True):
            wish, weight = wanted[index], self._weight(index)
            block = (0.0, 0.0, 1) if wish is None else ((wish - offset) * weight, weight, 1)
            while blocks and (not block[1] or not blocks[-1][1] or _mean(blocks[-1]) > _mean(block)):
                last = blocks.pop()
                block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
            blocks.append(block)
        starts = [_mean(block) if block[1] else -offsets[-1] / 2 for block in blocks for _ in range(block[2])]
        for index, start, offset in zip(row, starts, offsets, strict=True):
            self.boxes[index].x = start + offset

    def _weight(self, index: int) -> float:
        """How much a box's wish counts against its neighbours': so much more that no trunk bends visibly."""
        return 1.0 if not self.loose[index] else 1e-5 if self.arriving[index] else 1e-10

    def _columns(self) -> None:
        """Place every layer below the one before, then inputs above what reads them."""
        for row in self.rows:
            wanted = {index: self._wanted(index) for index in row}
            row.sort(key=lambda index: (wanted[index] is None, wanted[index] or 0.0, index))
            self._place(row, wanted)
        for row in self.rows:
            wanted = {index: self.boxes[index].x for index in row}
            for index in row:
                if not self.arriving[index] and self.leaving[index] and self.boxes[index].layer is None:
                    readers = [self.boxes[wire.target].x + self._into(wire) for wire in self.leaving[index]]
                    wanted[index] = sum(readers) / len(readers)
            self._place(row, wanted)

    def _into(self, wire: Wire) -> float:
        ins = self.boxes[wire.target].ins
        return 0.0 if ins is None else ins[wire.into]

    def _wanted(self, index: int) -> float | None:
        """The mean of where its inputs come from; the network's own inputs count when it has no others."""
        sources = self.arriving[index]
        inner = [wire for wire in sources if self.arriving[wire.source]] or sources
        return _average([self._start(wire) - self._into(wire) for wire in inner])

    def _start(self, wire: Wire) -> float:
        box = self.boxes[wire.source]
        return box.x + box.outs[wire.out]

    # -- ways past layers ------------------------------------------------------------------------

    def _drops(self) -> set[int]:
        """Numbers of the wires that pass layers straight down, since nothing stands below their start."""
        dropped = set()
        for number, wire in enumerate(self.wires):
            first, last = self.layer[wire.source] + 1, self.layer[wire.target]
            if 0 < last - first <= LONGEST_DROP:
                x = self._start(wire)
                boxes = (self.boxes[index] for row in self.rows[first:last] for index in row)
                if all(x < box.x - box.left - CLEAR or x > box.x + box.reach + CLEAR for box in boxes):
                    dropped.add(number)
        return dropped

    def _lanes(self) -> dict[tuple[int, int], float]:
        """The x of the lane of each tensor (box, place) that passes layers; what runs together, side by side."""
        ends: dict[tuple[int, int], int] = {}
        for number, wire in enumerate(self.wires):
            if self._in_lane(number):
                key = wire.source, wire.out
                ends[key] = max(ends.get(key, 0), self.layer[wire.target])
        lanes: dict[tuple[int, int], float] = {}
        for cluster in _clusters([(self.layer[key[0]], end, key) for key, end in ends.items()]):
            first, last = min(span[0] for span in cluster), max(span[1] for span in cluster)
            edge = max(
                self.boxes[index].x + self.boxes[index].reach
                for row in self.rows[first : last + 1]
                for index in row
            )
            for number, key in _side_by_side(cluster):
                lanes[key] = edge + 18 + LANE * number
        return lanes

    # -- where lines arrive --------------------------------------------------------------------

    def _arrivals(self, row: list[int], above: list[int]) -> None:
        """Choose where lines arrive at the boxes of a layer."""
        boxes = self.boxes
        starts = {boxes[i].x + out for i in above if self.leaving[i] for out in boxes[i].outs}
        starts.update(self._start(self.wires[n]) for i in row for n in self.numbers[i] if n in self.drops)
        busy = sorted(starts)
        for index in row:
            box = boxes[index]
            if box.ins is not None:
                self.ports.update((n, box.x + box.ins[self.wires[n].into]) for n in self.numbers[index])
                continue
            beside = box.side and index == row[-1]
            at_side = [n for n in self.numbers[index] if beside and self._in_lane(n)]
            at_side.sort(key=lambda n: (self._approach(n), n))
            for k, number in enumerate(at_side):
                spacing = min(14.0, (box.height - 12) / len(at_side))
                self.sides[number] = (k - (len(at_side) - 1) / 2) * spacing
            self._from_above(box, sorted(set(self.numbers[index]) - set(at_side)), busy)

    def _from_above(self, box: Box, numbers: list[int], busy: list[float]) -> None:
        """Straight lines stay straight; others arrive at the left and right of them, in their own order."""
        numbers.sort(key=lambda n: (self._approach(n), n))
        straight = next((k for k, n in enumerate(numbers) if abs(self._approach(n) - box.x) < 0.5), None)
        middle = (len(numbers) - 1) / 2 if straight is None else straight
        most = max(middle, len(numbers) - 1 - middle, 1)
        spacing = min(_PORT, (min(box.left, box.right) - 8) / most)
        for k, number in enumerate(numbers):
            x = box.x + (k - middle) * spacing
            self.ports[number] = (
                x if k == straight else _clear_of(x, busy, box.x - box.left + 6, box.x + box.right - 6)
            )

    def _approach(self, number: int) -> float:
        """The x from which a line comes to the gap above its target."""
        wire = self.wires[number]
        return self.lanes[wire.source, wire.out] if self._in_lane(number) else self._start(wire)

    def _in_lane(self, number: int) -> bool:
        """Whether a wire passes layers, and cannot do so straight down."""
        wire = self.wires[number]
        return self.layer[wire.target] - self.layer[wire.source] > 1 and number not in self.drops

    # -- tracks between layers -------------------------------------------------------------------

    def _tracks(self) -> list[dict[tuple[int, int], int]]:
        """For the gap below each layer, which track each tensor turns on."""
        stretches: list[dict[tuple[int, int], list[float]]] = [defaultdict(list) for _ in self.rows]
        for number, wire in enumerate(self.wires):
            key, start, port = (wire.source, wire.out), self._start(wire), self.ports.get(number)
            above, below = self.layer[wire.source], self.layer[wire.target] - 1
            if self._in_lane(number):
                stretches[above][key] += [start, self.lanes[key]]
                if port is not None:
                    stretches[below][key] += [self.lanes[key], port]
            elif port is not None and abs(port - start) >= 0.5:
                stretches[below][key] += [start, port]
        return [_packed({key: (min(xs), max(xs)) for key, xs in gap.items()}) for gap in stretches]

    def _heights(self) -> float:
        """Place the layers below one another; the height of all."""
        y = 0.0
        self.bottoms: list[float] = []
        for row, gap in zip(self.rows, self.tracks, strict=True):
            tallest = max(self.boxes[index].height for index in row)
            for index in row:
                self.boxes[index].y = y + (tallest - self.boxes[index].height) / 2
            self.bottoms.append(y + tallest)
            y += tallest + LABEL + TRACK * (max(gap.values(), default=-1) + 1) + ARROW
        return self.bottoms[-1] if self.bottoms else 0.0

    def _path(self, number: int, wire: Wire) -> list[Point]:
        source, target, key = self.boxes[wire.source], self.boxes[wire.target], (wire.source, wire.out)
        start, port = self._start(wire), self.ports.get(number, 0.0)
        path = [(start, source.y + source.height)]
        if not self._in_lane(number):
            if abs(port - start) >= 0.5:
                turn = self._turn(self.layer[wire.target] - 1, key)
                path += [(start, turn), (port, turn)]
            return [*path, (path[-1][0], target.y)]
        lane, turn = self.lanes[key], self._turn(self.layer[wire.source], key)
        path += [(start, turn), (lane, turn)]
        if number in self.sides:
            y = target.y + target.height / 2 + self.sides[number]
            return [*path, (lane, y), (target.x + target.right, y)]
        turn = self._turn(self.layer[wire.target] - 1, key)
        return [*path, (lane, turn), (port, turn), (port, target.y)]

    def _turn(self, gap: int, key: tuple[int, int]) -> float:
        """The y of a tensor's track below a layer."""
        return self.bottoms[gap] + LABEL + TRACK * (self.tracks[gap][key] + 0.5)


def _mean(block: tuple[float, float, int]) -> float:
    return block[0] / block[1]


def _average(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _clusters(
    spans: Iterable[tuple[int, int, tuple[int, int]]],
) -> list[list[tuple[int, int, tuple[int, int]]]]:
    """Spans (first layer, last layer, tensor) grouped so that no two groups overlap."""
    clusters: list[list[tuple[int, int, tuple[int, int]]]] = []
    reach = -1
    for span in sorted(spans):
        if not clusters or span[0] >= reach:
            clusters.append([])
        clusters[-1].append(span)
        reach = max(reach, span[1])
    return clusters


def _side_by_side(cluster: list[tuple[int, int, tuple[int, int]]]) -> list[tuple[int, tuple[int, int]]]:
    """A lane for each span of a cluster, inner ones first; spans that overlap get different lanes."""
    ends: list[int] = []
    lanes = []
    for first, last, key in sorted(cluster, key=lambda span: (span[1], -span[0], span[2])):
        lane = next((n for n, end in enumerate(ends[:200]) if end <= first), len(ends))
        if lane == len(ends):
            ends.append(last)
        ends[lane] = last
        lanes.append((lane, key))
    return lanes


def _packed(stretches: dict[tuple[int, int], tuple[float, float]]) -> dict[tuple[int, int], int]:
    """A track for each stretch; stretches that overlap get different ones."""
    ends: list[float] = []
    tracks = {}
    for key, (left, right) in sorted(stretches.items(), key=lambda item: (item[1], item[0])):
        track = next((n for n, end in enumerate(ends[:200]) if end + 6 < left), len(ends))
        if track == len(ends):
            ends.append(right)
        ends[track] = right
        tracks[key] = track
    return tracks


def _clear_of(x: float, busy: Sequence[float], lowest: float, highest: float) -> float:
    """The nearest place to x that is not below the start of another line."""
    for offset in (0.0, 8.0, -8.0, 16.0, -16.0):
        near = bisect_left(busy, x + offset - 6)
        if lowest <= x + offset <= highest and (near == len(busy) or busy[near] >= x + offset + 6):
            return x + offset
    return x
