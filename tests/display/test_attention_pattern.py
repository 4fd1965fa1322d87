"""Permissions against the reference backend by probing, and the picture made of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import isomorph as iso
from isomorph.backends.reference import primitives as reference
from isomorph.display.attention_pattern import MOST_PANELS, attention_nodes, draw_attention, permissions
from isomorph.display.permissions import Pattern, panels
from isomorph.display.svg import ACCENT, GREEN
from isomorph.errors import IsomorphError
from isomorph.operators.attention import Attention, CrossAttention
from isomorph.operators.declare import Operator, operator

EXAMPLES = Path(iso.__file__).parents[1] / "examples"
SVG = "{http://www.w3.org/2000/svg}"
WITH_ATTENTION = sorted(path for path in EXAMPLES.glob("*.net") if path.stem != "mlp")


def probed(T: int, S: int, causal: bool, window: int, mask: list[bool] | None) -> list[list[bool]]:
    """Which results of the reference change when one value changes."""
    draw = np.random.default_rng(T * 100 + S)
    q, k, v = (draw.standard_normal((1, 1, length, 2)) for length in (T, S, S))
    given = None if mask is None else np.array([mask])
    before = reference.attention(q, k, v, given, causal=causal, window=window)
    seen = np.zeros((T, S), dtype=bool)
    for j in range(S):
        changed = v.copy()
        changed[0, 0, j] += 1e6
        after = reference.attention(q, k, changed, given, causal=causal, window=window)
        seen[:, j] = (after != before).any(axis=(0, 1, 3))
    return seen.tolist()


@pytest.mark.parametrize("window", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("T", "S"), [(5, 5), (2, 5), (5, 2), (1, 1), (1, 4)])
def test_permissions_are_what_the_reference_does(T, S, causal, window):
    masks = [None, [True] * S, [False] * S, [j % 2 == 0 for j in range(S)]]
    for mask in masks:
        assert permissions(T, S, causal, window, mask) == probed(T, S, causal, window, mask)


def test_permissions_by_hand():
    assert permissions(2, 3, causal=True) == [[True, True, False], [True, True, True]]
    assert permissions(3, 3, window=2) == [[True, True, False], [True, True, True], [False, True, True]]
    assert permissions(1, 2, mask=[True, False]) == [[True, False]]
    assert permissions(0, 2) == []


@pytest.mark.parametrize(
    "definition",
    ["attention(2)", "attention(2, causal=True)", "attention(2, causal=True, window_size=3)",
     "attention(2, window_size=2)", "transformer_block(2)", "transformer_block(2, causal=True)",
     "encoder_block(2, 8)", "post_norm_block(2, causal=True)"],
)  # fmt: skip
def test_what_is_found_in_a_plan_is_what_the_plan_does(definition):
    T = 6
    plan = iso.resolve(definition, input=("B", T, 8), dtype="float64")
    found = attention_nodes(plan)
    assert [(node.queries, node.keys) for node in found] == [(T, T)]
    pattern = found[0].pattern
    model = iso.reference.build(plan, iso.initial_weights(plan))
    x = np.random.default_rng(0).standard_normal((1, T, 8))
    before = model(x)
    for j in range(T):
        changed = x.copy()
        changed[0, j] = np.random.default_rng(j + 1).standard_normal(8)
        moved = (np.abs(model(changed) - before) > 1e-12).any(axis=(0, 2))
        expected = [row[j] for row in permissions(T, T, pattern.causal, pattern.window)]
        assert moved.tolist() == expected  # a position always attends itself, so its own row fits too


def test_nodes_and_masks_are_found_inside_composite_operators():
    found = attention_nodes(iso.resolve_file(EXAMPLES / "bert.net"), {"T": 7})
    assert [node.path for node in found] == [f"block{n}.attn" for n in range(12)]
    assert {(node.pattern, node.queries, node.keys) for node in found} == {(Pattern(mask=True), 7, 7)}


@operator(
    "decoder_block", shape="x[B, T, D], context[B, S, D_ctx] -> out[B, T, D]", category="test", register=False
)
class DecoderBlock(Operator):
    """A block that someone else might write: two attentions of different kinds."""

    def children(self, D: int, D_ctx: int):
        return {
            "inner": Attention.of(D=D, heads=2, causal=True),
            "outer": CrossAttention.of(D=D, D_ctx=D_ctx, heads=2),
        }

    def forward(self, m, F, x, context):
        x = x + m.inner(x)
        return x + m.outer(x, context)


def decoder_plan(blocks: int = 1) -> iso.Plan:
    text = 'x = input("B", "T", 8)\nc = input("B", "S", 12)\n' + "x = cross_attention(x, c, 2)\n" * blocks
    plan = iso.resolve(text)
    block = DecoderBlock.of(D=8, D_ctx=12)
    return replace(plan, nodes=tuple(replace(node, operator=block) for node in plan.nodes))


def test_an_operator_of_others_with_two_kinds_of_attention():
    found = attention_nodes(decoder_plan(2), {"T": 5, "S": 3})
    inner, outer = (Pattern(causal=True), 5, 5), (Pattern(cross=True), 5, 3)
    # the second block's queries depend on the context too; its own attention is no cross-attention for that
    assert [(node.path, *node[2:]) for node in found] == [
        ("n0.inner", *inner), ("n0.outer", *outer), ("n1.inner", *inner), ("n1.outer", *outer),
    ]  # fmt: skip
    own, _ = panels(decoder_plan(2))
    assert [panel.title for panel in own] == ["n0..n1.inner · causal", "n0..n1.outer · cross-attention"]


def titles(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [group.findtext(f"{SVG}title", "") for group in root.findall(f"{SVG}g")]


def test_the_titles_name_nodes_and_patterns():
    svg = draw_attention(iso.resolve_file(EXAMPLES / "bert.net"))
    assert titles(svg) == [
        "block0..block11 · bidirectional, padding mask", "bidirectional", "causal", "sliding window", "padding"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("definition", "matching"),
    [
        ("encoder_block(2, 8)", ["bidirectional"]),  # the block that mixes every position with every other
        ("transformer_block(2, causal=True)", ["causal"]),
        ("attention(2, causal=True, window_size=4)", ["sliding window"]),
        ("attention(2, window_size=4)", []),
        ("attention(2)\nattention(2, causal=True)", ["bidirectional", "causal"]),
    ],
)
def test_the_matching_standard_panels_are_marked(definition, matching):
    plan = iso.resolve(definition, input=("B", "T", 8))
    _, standard = panels(plan)
    assert [panel.names for panel in standard if panel.matches] == matching
    root = ElementTree.fromstring(draw_attention(plan))
    marked = []
    for group in root.findall(f"{SVG}g"):
        texts = [text.text for text in group.findall(f"{SVG}text")]
        bordered = group.find(f"{SVG}rect").get("stroke") == GREEN
        assert bordered == ("this network" in texts) == (group.find(f"{SVG}circle") is not None)
        if bordered:
            marked.append(group.findtext(f"{SVG}title"))
    assert marked == matching


def test_a_mask_matches_padding_and_a_causal_mask_nothing():
    text = 'x = input("B", "T", 8)\nm = input("B", "T", dtype="bool")\nattention(2, mask=m{})'
    for extra, matching in (("", ["padding"]), (", causal=True", [])):
        _, standard = panels(iso.resolve(text.format(extra)))
        assert [panel.names for panel in standard if panel.matches] == matching


def test_cells_are_the_permissions():
    plan = iso.resolve("attention(2, causal=True, window_size=2)", input=("B", "T", 8))
    root = ElementTree.fromstring(draw_attention(plan, length=5))
    squares = [
        sum(
            len(re.findall("M", path.get("d")))
            for path in group.findall(f"{SVG}path")
            if path.get("fill") == ACCENT
        )
        for group in root.findall(f"{SVG}g")
    ]
    # own: 1 + 4 * 2; 25; 1 + 2 + 3 + 4 + 5; its own window again; four of five keys
    assert squares == [9, 25, 15, 9, 20]


def test_queries_run_down_and_keys_across():
    plan = iso.resolve("attention(2, causal=True)", input=("B", "T", 8))
    group = ElementTree.fromstring(draw_attention(plan, length=4)).find(f"{SVG}g")
    path = next(path for path in group.findall(f"{SVG}path") if path.get("fill") == ACCENT)
    corners = [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)", path.get("d"))]
    rows = Counter(y for _, y in corners)
    assert [rows[y] for y in sorted(rows)] == [1, 2, 3, 4]  # the first query sees one key
    assert min(x for x, y in corners if y == max(rows)) == min(x for x, _ in corners)


def test_cross_attention_has_its_own_axis():
    plan = iso.resolve('x = input("B", "T", 8)\nc = input("B", "S", 12)\ncross_attention(x, c, 2)')
    own, standard = panels(plan, length=8)
    assert [(panel.queries, panel.keys) for panel in own] == [(8, 6)]
    assert not any(panel.matches for panel in standard)
    own, _ = panels(plan, length=8, sizes={"T": 3, "S": 20})
    assert [(p.queries, p.keys, p.all_queries, p.all_keys) for p in own] == [(3, 8, 3, 20)]
    assert "3 of 3 queries, 8 of 20 keys." in re.sub(
        r"</text>\s*<text[^>]*>", " ", draw_attention(plan, 8, {"T": 3, "S": 20})
    )


def test_a_fixed_length_is_drawn_as_it_is_and_a_long_one_cut():
    (digits,), standard = panels(iso.resolve_file(EXAMPLES / "digits_vit.net"))
    assert (digits.queries, digits.keys, digits.attentions) == (5, 5, 4)  # four patches and the class token
    assert {panel.queries for panel in standard} == {5}
    svg = draw_attention(iso.resolve_file(EXAMPLES / "vit_b16.net"))
    assert "The first 8 of 197" in svg


def test_many_patterns_are_counted_rather_than_drawn():
    text = "\n".join(f"attention(2, window_size={n})" for n in range(1, 41))
    svg = draw_attention(iso.resolve(text, input=("B", "T", 8)))
    assert "This network: 24 of its 40 patterns" in svg
    assert len(titles(svg)) == MOST_PANELS + 4


@pytest.mark.parametrize("path", WITH_ATTENTION, ids=lambda path: path.stem)
def test_every_example_is_drawn_alike_twice_and_says_what_it_shows(path):
    svg = draw_attention(iso.resolve_file(path))
    assert svg == draw_attention(iso.Plan.from_json(iso.resolve_file(path).to_json()))
    root = ElementTree.fromstring(svg)
    assert (root.get("role"), root[0].tag, root[1].tag) == ("img", f"{SVG}title", f"{SVG}desc")
    assert root[2].get("fill") == "#ffffff"  # its own background, on dark pages too
    assert root[1].text.endswith(".")


@pytest.mark.parametrize("length", [1, 2, 64])
def test_every_length_fits(length):
    plan = iso.resolve("attention(2, causal=True)", input=("B", "T", 8))
    root = ElementTree.fromstring(draw_attention(plan, length))
    width, height = float(root.get("width")), float(root.get("height"))
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x")) + float(rect.get("width")) <= width
        assert float(rect.get("y")) + float(rect.get("height")) <= height


def test_one_position_has_no_padding():
    svg = draw_attention(iso.resolve("attention(2)", input=("B", "T", 8)), 1)
    assert "Drawn with" not in svg and "Drawn with" in draw_attention(
        iso.resolve("attention(2)", input=("B", 2, 8))
    )


def test_no_positions_at_all():
    plan = iso.resolve("attention(2)", input=("B", "T", 8))
    ElementTree.fromstring(draw_attention(plan, sizes={"T": 0}))


@pytest.mark.parametrize(
    ("length", "sizes", "message"),
    [
        (0, None, "E_ARGUMENT: length must be an int from 1 to 64, got 0"),
        (65, None, "E_ARGUMENT: length must be an int from 1 to 64, got 65"),
        (True, None, "E_ARGUMENT: length must be an int from 1 to 64, got True"),
        (8, {"S": 3}, "E_ARGUMENT: the network has no symbol 'S'; its symbols: B, T"),
    ],
)
def test_refuses(length, sizes, message):
    with pytest.raises(IsomorphError) as caught:
        draw_attention(iso.resolve("attention(2)", input=("B", "T", 8)), length, sizes)
    assert str(caught.value) == message


def test_a_network_without_attention():
    with pytest.raises(IsomorphError) as caught:
        draw_attention(iso.resolve_file(EXAMPLES / "mlp.net"))
    assert str(caught.value) == (
        "E_ARGUMENT: the network has no attention, so there are no permissions to draw\n"
        "  without --attention, the network itself is drawn"
    )
