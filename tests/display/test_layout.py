"""Layouts of random graphs keep their promises: nothing overlaps, no line crosses a box."""

from __future__ import annotations

import random

import pytest

from isomorph.display.layout import ARROW, LABEL, Box, Wire, lay_out


def random_graph(seed: int) -> tuple[list[Box], list[Wire]]:
    """Boxes of varied sizes, each reading one to three earlier ones; some without inputs."""
    choose = random.Random(seed)
    boxes, wires = [], []
    for index in range(choose.randint(2, 30)):
        half = choose.choice([30, 60, 61.5, 140])
        outs = [0.0] if choose.random() < 0.8 else [-20.0, 15.0]
        boxes.append(
            Box(half, half, choose.choice([28, 50, 84]), outs=outs, label_right=choose.choice([0, 55, 90]))
        )
        reads = choose.choice([0, 1, 1, 1, 1, 2, 3]) if index else 0
        recent = range(max(0, index - choose.choice([1, 3, 30])), index)
        for into, source in enumerate(choose.choices(recent, k=reads) if index else []):
            wires.append(Wire(source, choose.randrange(len(boxes[source].outs)), index, into))
    return boxes, wires


def pieces(wire: Wire):
    return [(*sorted([a, b]), a[0] == b[0]) for a, b in zip(wire.path, wire.path[1:], strict=False) if a != b]


@pytest.mark.parametrize("seed", range(60))
def test_boxes_lie_apart_and_lines_pass_them(seed):
    boxes, wires = random_graph(seed)
    extent = lay_out(boxes, wires)
    for position, box in enumerate(boxes):
        assert extent.left <= box.x - box.left and box.x + box.reach <= extent.right
        assert box.y >= 0 and box.y + box.height <= extent.height
        for other in boxes[:position]:
            apart = box.x + box.reach <= other.x - other.left or other.x + other.reach <= box.x - box.left
            assert apart or box.y >= other.y + other.height + LABEL or other.y >= box.y + box.height + LABEL
        for wire in wires:
            for (x1, y1), (x2, y2), _ in pieces(wire):
                outside = x2 <= box.x - box.left or x1 >= box.x + box.right
                assert outside or y2 <= box.y or y1 >= box.y + box.height, (position, wire)


@pytest.mark.parametrize("seed", range(60))
def test_lines_join_what_they_should_and_run_down_or_across(seed):
    boxes, wires = random_graph(seed)
    lay_out(boxes, wires)
    for wire in wires:
        source, target = boxes[wire.source], boxes[wire.target]
        assert wire.path[0] == (source.x + source.outs[wire.out], source.y + source.height)
        x, y = wire.path[-1]
        above = y == target.y and abs(x - target.x) < min(target.left, target.right)
        assert above or (x == target.x + target.right and target.y < y < target.y + target.height)
        assert target.y >= source.y + source.height + LABEL + ARROW
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in zip(wire.path, wire.path[1:], strict=False))
        assert all(a[1] <= b[1] for a, b in zip(wire.path, wire.path[1:], strict=False))


@pytest.mark.parametrize("seed", range(60))
def test_different_tensors_share_no_stretch(seed):
    boxes, wires = random_graph(seed)
    lay_out(boxes, wires)
    shared = 0
    for position, wire in enumerate(wires):
        for other in wires[:position]:
            if (wire.source, wire.out) == (other.source, other.out):
                continue
            for a, b, upright in pieces(wire):
                for c, d, also in pieces(other):
                    across, along = (0, 1) if upright else (1, 0)
                    if upright == also and abs(a[across] - c[across]) < 1:
                        shared += min(b[along], d[along]) - max(a[along], c[along]) > 1
    assert shared == 0


def test_a_chain_is_one_straight_line():
    boxes = [Box(60, 60, 40, label_right=80) for _ in range(5)]
    wires = [Wire(k, 0, k + 1, 0) for k in range(4)]
    lay_out(boxes, wires)
    assert {box.x for box in boxes} == {0.0}
    assert all(len(wire.path) == 2 for wire in wires)
    step = 40 + LABEL + ARROW  # nothing turns between the layers
    assert [box.y for box in boxes] == [0, step, 2 * step, 3 * step, 4 * step]


def test_a_residual_runs_at_the_side():
    boxes = [Box(60, 60, 40) for _ in range(4)]
    wires = [Wire(0, 0, 1, 0), Wire(1, 0, 2, 0), Wire(2, 0, 3, 0), Wire(0, 0, 3, 1)]
    lay_out(boxes, wires)
    *_, corner, end = wires[3].path
    assert end == (60, boxes[3].y + 20)  # the middle of the right side
    assert corner[0] > 60 + 10


def test_what_an_input_alone_feeds_stands_right_above_its_reader():
    boxes = [Box(30, 30, 28) for _ in range(5)]
    wires = [Wire(0, 0, 2, 0), Wire(2, 0, 3, 0), Wire(3, 0, 4, 0), Wire(1, 0, 4, 1)]  # 1 is a mask, say
    lay_out(boxes, wires)
    assert boxes[1].y == boxes[3].y
    assert [boxes[n].x for n in (0, 2, 3, 4)] == pytest.approx([0] * 4, abs=0.01)  # the trunk stays straight


def test_a_free_way_down_is_taken():
    left, right = Box(30, 30, 28), Box(30, 30, 28)
    boxes = [Box(30, 30, 28, outs=[-40.0, 40.0]), left, right, Box(30, 30, 28), Box(80, 80, 28)]
    wires = [Wire(0, 0, 1, 0), Wire(0, 1, 2, 0), Wire(2, 0, 3, 0), Wire(3, 0, 4, 1), Wire(1, 0, 4, 0)]
    lay_out(boxes, wires)
    assert max(x for x, _ in wires[4].path) <= boxes[4].x  # not around the other branch


def test_ten_thousand_boxes():
    boxes = [Box(60, 60, 40) for _ in range(10_000)]
    wires = [Wire(k, 0, k + 1, 0) for k in range(9_999)] + [Wire(k, 0, k + 3, 1) for k in range(0, 9_990, 3)]
    extent = lay_out(boxes, wires)
    assert extent.right - extent.left < 400  # lanes are used again
