"""What diagrams fold, say and escape."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

import isomorph as iso
from isomorph.display.diagram import draw_mermaid, draw_svg
from isomorph.display.folding import Repeat, fold
from isomorph.display.naming import listed, name_ranges, name_span
from isomorph.display.outline import outline
from isomorph.display.svg import text_width
from isomorph.errors import IsomorphError

EXAMPLES = sorted((Path(iso.__file__).parents[1] / "examples").glob("*.net"))
SVG = "{http://www.w3.org/2000/svg}"


def folded(text: str, input=("B", 4, 8), **options):
    """The folding without indices: what is single is ``1``, a repeat ``(times, body)``."""

    def plain(items):
        return [(item.times, plain(item.body)) if isinstance(item, Repeat) else 1 for item in items]

    return plain(fold(iso.resolve(text, input=input, **options)))


def example(name: str) -> iso.Plan:
    return iso.resolve_file(next(path for path in EXAMPLES if path.stem == name))


# -- folding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("bert", [1] * 6 + [(12, [1])] + [1] * 4),
        ("byte_gpt", [1, 1, (4, [1]), 1, 1]),
        ("digits_vit", [1, 1, 1, (4, [1]), 1, 1, 1]),
        ("dinov2", [1, 1, 1, (12, [1]), 1, 1, 1]),
        ("gpt2", [1, 1, (12, [1]), 1, 1]),
        ("llama", [1, (16, [1] * 6), 1, 1]),
        ("mlp", [1] * 6),
        ("vit_b16", [1, 1, 1, (12, [1]), 1, 1, 1]),
    ],
)
def test_the_examples_fold_as_their_loops_say(name, shape):
    def plain(items):
        return [(item.times, plain(item.body)) if isinstance(item, Repeat) else 1 for item in items]

    assert plain(fold(example(name))) == shape


RESIDUAL = "    n = layer_norm(h)\n    a = {}\n    h = add(h, a)\n"


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("relu()\nrelu()", [(2, [1])]),
        ("relu()\ngelu()\nrelu()", [1, 1, 1]),
        ("for _ in range(5):\n    relu()\n    gelu()", [(5, [1, 1])]),
        ("for _ in range(3):\n    relu()\n    relu()\n    gelu()", [(3, [(2, [1]), 1])]),
        ("relu()\nrelu()\ngelu()\nrelu()\ngelu()\nrelu()\ngelu()", [1, (3, [1, 1])]),  # the most is folded
        ("transformer_block(2)\ntransformer_block(4)\ntransformer_block(4)", [1, (2, [1])]),
        ("h = linear(8)\nfor _ in range(4):\n" + RESIDUAL.format("linear(n, 8)"), [1, (4, [1, 1, 1])]),
        # the loop might begin at either norm; the earlier one is taken
        ("h = layer_norm()\nfor _ in range(3):\n    a = attention(h, 2)\n    s = add(h, a)\n    h = layer_norm(s)",
         [(3, [1, 1, 1]), 1]),
        # every block reads the same memory from before the loop
        ("m = linear(12)\nh = linear(m, 8)\nfor _ in range(3):\n    h = cross_attention(h, m, 2)", [1, 1, (3, [1])]),
        # different memories: no loop
        ("m = linear(12)\nk = relu(m)\nh = linear(m, 8)\nh = cross_attention(h, m, 2)\nh = cross_attention(h, k, 2)",
         [1] * 5),
        # the second result is read again at the end, so that it has to be seen
        ("a = relu()\nb = relu(a)\nc = relu(b)\nd = relu(c)\ne = relu(d)\nadd(e, b)", [(2, [1]), (3, [1]), 1]),
        # Fibonacci: one step reads two steps back, so that only two steps together are a loop
        ("a = relu()\nb = add(a, a)\nc = add(b, a)\nd = add(c, b)\ne = add(d, c)\nadd(e, d)", [1, (2, [1, 1]), 1]),
        ("cls_token()\ncls_token()", [1, 1]),  # 5 and 6 positions
    ],
)  # fmt: skip
def test_folding(text, shape):
    assert folded(text) == shape


def test_values_that_are_carried_apart_enter_apart():
    # what the first two steps read is one tensor, what the next two read are two
    text = "a = relu()\nb = add(a, a)\nc = add(b, a)\nd = add(c, b)\ne = add(d, c)\nadd(e, d)"
    drawn = outline(iso.resolve(text, input=("B", 4)))
    entering = {line.entries for line in drawn.lines if drawn.items[line.source].name == "n0"}
    assert len(entering) == 2


def test_what_a_network_returns_is_not_folded_away():
    text = "a = transformer_block(2)\nb = transformer_block(2)\nc = transformer_block(2)\nd = transformer_block(2)\n"
    assert folded(text + 'output(b=("B", 4, 8), d=("B", 4, 8))') == [(2, [1]), (2, [1])]
    assert folded(text + 'output(a=("B", 4, 8), c=("B", 4, 8), d=("B", 4, 8))') == [1, (2, [1]), 1]


def test_frozen_and_tied_nodes_are_apart():
    assert folded("linear(8, trainable=False)\nlinear(8, trainable=False)\nlinear(8)") == [(2, [1]), 1]
    tied = 'linear(8, name="a")\n' + 'linear(8, tie={"weight": "a.weight"})\n' * 3
    assert folded(tied) == [1, (3, [1])]


def test_ten_thousand_nodes():
    assert folded("for _ in range(10000):\n    relu()") == [(10000, [1])]
    blocks = "h = linear(8)\nfor _ in range(3000):\n" + RESIDUAL.format("feed_forward(n, 8)")
    assert folded(blocks) == [1, (3000, [1, 1, 1])]
    features = "".join(f"a{i} = relu(h)\nh = gelu(h)\n" for i in range(2000))
    sums = "".join(f"s = add(s, a{i})\n" for i in range(1, 2000))
    drawn = fold(iso.resolve(f"h = linear(8)\n{features}s = add(h, a0)\n{sums}", input=("B", 8)))
    assert len(drawn) == 6001  # every one of the 2,000 is read at the end


# -- what is said ----------------------------------------------------------------------------------


def test_an_outline_counts_what_the_plan_counts():
    for path in EXAMPLES:
        plan = iso.resolve_file(path)
        drawn = outline(plan)
        total = 0
        for item in drawn.items:
            times = item.times
            for scope in item.scopes:
                times *= drawn.scopes[scope].times
            total += times * item.parameters
        assert total == plan.parameter_count, path


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_gpt2_is_read_from_its_picture():
    assert texts(draw_svg(example("gpt2"))) == [
        "124,439,808 parameters · float32 · where T <= 1024",
        "ids", "[B, T] int64",
        "wte", "embedding(50257, 768)", "38,597,376 parameters", "[B, T, 768]",
        "wpe", "pos_embed(1024)", "786,432 parameters", "[B, T, 768]",
        "h0..h11", "transformer_block(12,", 'activation="gelu_tanh", causal=True)', "7,087,872 parameters each",
        "× 12", "[B, T, 768]",
        "ln_f", "layer_norm", "1,536 parameters", "[B, T, 768]",
        "lm_head", "linear(50257, bias=False)", "weight = wte.weight", "[B, T, 50257]",
        "output",
    ]  # fmt: skip


def test_a_group_says_how_often_and_how_much():
    shown = texts(draw_svg(example("llama")))
    at = shown.index("× 16")
    # 2 norms of 2048; q and o 2048 x 2048, k and v 512 x 2048; three of 8192 x 2048
    each = 2 * 2048 + 2 * 2048 * 2048 + 2 * 512 * 2048 + 3 * 8192 * 2048
    assert shown[at + 1 : at + 3] == ["6 nodes", f"{each:,} parameters each"]
    assert "n3, n9 .. n93" in shown
    assert "attention_norm0..attention_norm15" in shown


def test_sizes_take_the_place_of_symbols():
    shown = texts(draw_svg(example("gpt2"), {"T": 16}))
    assert "[B, 16, 768]" in shown and "[B, T, 768]" not in shown
    assert '"[2, T, 768]"' in draw_mermaid(example("gpt2"), {"B": 2})


def test_an_unknown_symbol():
    with pytest.raises(IsomorphError) as caught:
        draw_svg(example("gpt2"), {"S": 1})
    assert str(caught.value) == "E_ARGUMENT: the network has no symbol 'S'; its symbols: B, T"


def test_outputs_of_a_split_are_told_apart():
    text = "a, b = split(3)\nx = linear(a, 2)\ny = linear(b, 2)\nadd(x, y)"
    shown = texts(draw_svg(iso.resolve(text, input=("B", 8))))
    assert shown[shown.index("split(3)") + 1 :][:2] == ["first [B, 3]", "rest [B, 5]"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_drawn_alike_twice(path):
    plan = iso.resolve_file(path)
    svg = draw_svg(plan)
    assert svg == draw_svg(iso.Plan.from_json(plan.to_json()))
    root = ElementTree.fromstring(svg)
    assert root[0].tag == f"{SVG}title" and root[0].text == str(plan).splitlines()[0]
    assert root[1].tag == f"{SVG}desc" and root[2].get("fill") == "#ffffff"
    mermaid = draw_mermaid(plan)
    assert mermaid == draw_mermaid(iso.Plan.from_json(plan.to_json()))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_text_stays_inside_its_box(path):
    for group in ElementTree.fromstring(draw_svg(iso.resolve_file(path))).iter(f"{SVG}g"):
        rects, rows = group.findall(f"{SVG}rect"), group.findall(f"{SVG}text")
        if not rects or group.find(f"{SVG}title") is None or rects[0].get("stroke-dasharray"):
            continue
        card = next(rect for rect in reversed(rects) if rect.get("height") != "18")
        left, top = float(card.get("x")), float(card.get("y"))
        right, bottom = left + float(card.get("width")), top + float(card.get("height"))
        for row in rows:
            assert top < float(row.get("y")) < bottom
            if row.get("text-anchor") is None:
                mono = "mono" in row.get("font-family")
                wide = text_width(row.text, float(row.get("font-size")), mono=mono)
                assert left < float(row.get("x")) and float(row.get("x")) + wide < right


def test_labels_below_a_group_stand_apart():
    text = "a = relu()\nb = add(a, a)\nc = add(b, a)\nd = add(c, b)\ne = add(d, c)\nadd(e, d)"
    root = ElementTree.fromstring(draw_svg(iso.resolve(text, input=("B", 4))))
    labels = sorted(
        (float(row.get("y")), float(row.get("x")))
        for row in next(root.iter(f"{SVG}g")).findall(f"{SVG}text")
        if row.text == "[B, 4]"
    )
    pairs = [(one[1], other[1]) for one, other in pairwise(labels) if one[0] == other[0]]
    assert len(pairs) == 1  # what leaves the group: two tensors, side by side
    assert pairs[0][1] - pairs[0][0] > text_width("[B, 4]", 11, mono=True)


# -- Mermaid ---------------------------------------------------------------------------------------


def test_mermaid_of_a_folded_group():
    text = 'h = linear(8, name="up")\nfor _ in range(3):\n    a = feed_forward(h, 2, name="f")\n    h = add(h, a)\nrelu(h)'
    # feed_forward: 8 * 2 + 2 + 2 * 8 + 8
    assert (
        draw_mermaid(iso.resolve(text, input=("B", 8)))
        == """\
flowchart TB
  b0(["input"])
  b1["up<br/>linear(8)<br/>72 parameters"]
  subgraph g1["× 3: 2 nodes, 42 parameters each"]
    b2["f0..f2<br/>feed_forward(2)<br/>42 parameters each"]
    b3["n2, n4 .. n6<br/>add"]
  end
  b4["n7<br/>relu"]
  b5(["output"])
  b0 -- "[B, 8]" --> b1
  b1 -- "[B, 8]" --> b2
  b1 -- "[B, 8]" --> b3
  b2 -- "[B, 8]" --> b3
  b3 -- "[B, 8]" --> b4
  b4 -- "[B, 8]" --> b5
"""
    )


LINE = re.compile(
    r'  b\d+(\["[^"]*"\]|\(\["[^"]*"\]\))|  b\d+ -- "[^"]*" --> b\d+|  subgraph g\d+\["[^"]*"\]|  end'
)
HOSTILE = '"]--> b[x" <script>alert(1)</script> & #quot; %%{init: {}}%% `md` \\ \u202e\n\x00]]> é 層'


def hostile() -> iso.Plan:
    plan = iso.resolve("linear(3)\nrelu()\nlinear(4)", input=("B", 8))
    nodes = tuple(replace(node, name=f"{HOSTILE}{node.index}") for node in plan.nodes)
    return replace(plan, nodes=nodes, outputs=((HOSTILE, plan.outputs[0][1]),))


@pytest.mark.parametrize("path", [*EXAMPLES, None], ids=lambda path: path.stem if path else "hostile")
def test_mermaid_lines_have_one_of_four_forms(path):
    mermaid = draw_mermaid(iso.resolve_file(path) if path else hostile())
    first, *rest = mermaid.splitlines()
    assert first == "flowchart TB"
    for line in rest:
        assert LINE.fullmatch(line.replace("    ", "  ")), line
    known = set(re.findall(r"^ +(b\d+)[\[(]", mermaid, re.MULTILINE))
    assert set(re.findall(r"\bb\d+(?= --)|(?<=> )b\d+", mermaid)) == known


def test_hostile_names_are_only_text():
    mermaid = draw_mermaid(hostile())
    assert "<script" not in mermaid and "%%" not in mermaid and "`" not in mermaid and "\u202e" not in mermaid
    assert "#34;]--#62; b[x#34; #60;script#62;" in mermaid
    root = ElementTree.fromstring(draw_svg(hostile()))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "desc", "rect", "g", "text", "path",
    }  # fmt: skip
    titles = [element.text for element in root.iter(f"{SVG}title")]
    cleaned = HOSTILE.replace("\u202e", "?").replace("\n", " ").replace("\x00", "?")
    assert f"{cleaned}0: linear, 3" in titles


def test_long_names_are_cut():
    plan = iso.resolve("relu()", input=("B", 8))
    plan = replace(plan, nodes=(replace(plan.nodes[0], name="x" * 100_000),))
    root = ElementTree.fromstring(draw_svg(plan))
    assert float(root.get("width")) < 500
    assert any(text.endswith("x…") for text in texts(draw_svg(plan)))


# -- names -----------------------------------------------------------------------------------------


def test_names_in_few_words():
    assert name_ranges(["a", "h0", "h1", "h2", "b7", "b9"]) == ["a", "h0..h2", "b7", "b9"]
    assert name_ranges([]) == []
    assert name_span(["h0", "h1", "h2"]) == "h0..h2"
    assert name_span(["n3", "n9"]) == "n3, n9"
    assert name_span(["n3", "n9", "n15"]) == "n3, n9 .. n15"
    assert name_span(["only"]) == "only"
    assert listed(["a", "b", "c"], most=3) == "a, b, c"
    assert listed(["a", "b", "c", "d"], most=3) == "a, b and 2 more"


def test_layers_come_one_below_another():
    svg = draw_svg(example("digits_vit"))
    tops = [
        float(group.find(f"{SVG}rect").get("y"))
        for group in ElementTree.fromstring(svg).iter(f"{SVG}g")
        if group.find(f"{SVG}title") is not None
    ]
    assert len(tops) == 9  # seven nodes and groups, an input, an output
    assert all(below > above for above, below in pairwise(tops))
