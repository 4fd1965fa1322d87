"""Which networks generate text, and what is computed when."""

from __future__ import annotations

import pytest

import isomorph as iso
from isomorph.engine.layout import decoding_layout

HEAD = 'ids = input("B", "T", dtype="int64")\nembedding(7, 4, name="wte")\n'


def test_the_scores_are_computed_for_the_last_position_alone():
    plan = iso.resolve(
        HEAD + "h = pos_embed(9)\nattended = attention(2, causal=True)\n"
        "h = add(h, attended)\nlayer_norm()\nlinear(7)"
    )
    layout = decoding_layout(plan)
    assert [node.operator.name for node in layout.moving[: layout.last]] == [
        "embedding",
        "pos_embed",
        "attention",
    ]
    assert [node.operator.name for node in layout.moving[layout.last :]] == ["add", "layer_norm", "linear"]
    assert [(plan.values[kept.value].source, kept.axis) for kept in layout.kept] == [("n1", 1), ("n2", 1)]
    assert (layout.vocabulary, layout.scores, layout.limit) == (7, 7, 9)


def test_what_reads_no_ids_is_computed_once():
    plan = iso.resolve(
        'image = input("B", 3, 4)\nids = input("B", "T", dtype="int64")\n'
        'memory = linear(image, 6, name="encoder")\nh = embedding(ids, 7, 4)\n'
        "cross_attention(h, memory, 2)\nlogits = linear(7)\n"
        "means = mean(memory, 1)\n"
        'output(logits=("B", "T", 7), means=("B", 6))'
    )
    layout = decoding_layout(plan)
    assert [node.name for node in layout.fixed] == ["encoder"]
    assert [node.operator.name for node in layout.moving] == ["embedding", "cross_attention", "linear"]
    assert layout.others == (0,)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("attention(2)\nlinear(7)", "n1 (attention) lets a position see later ones"),
        ('transformer_block(2, name="block")\nlinear(7)', "block.attn (transformer_block) lets a position see later ones"),
        ("attention(2, window_size=2)\nlinear(7)", "n1 (attention) lets a position see later ones"),
        ("transpose(1, 2)\nsoftmax()\ntranspose(1, 2)\nlinear(7)", "n2 (softmax) needs all positions at once, for softmax"),
        ("a = mean(1, keepdim=True)\nh = add(a, a)\nlinear(7)", "n1 (mean) needs all positions at once, for mean"),
        ("concat(x, x)\nlinear(7)".replace("x", "h"), "n1 (concat) needs all positions at once, for concatenate"),
        ("cls_token()\nlinear(7)", "n1 (cls_token) needs all positions at once, for concatenate"),
    ],
)  # fmt: skip
def test_the_node_that_is_in_the_way(body, problem):
    text = HEAD.replace("embedding", "h = embedding") + body
    with pytest.raises(iso.IsomorphError) as caught:
        decoding_layout(iso.resolve(text))
    assert caught.value.code == "E_ARGUMENT"
    assert caught.value.message == f"the network cannot generate text: {problem}"
    assert caught.value.location is not None


def test_a_mask_beside_the_causal_order():
    text = (
        'ids = input("B", "T", dtype="int64")\nm = input("B", "T", dtype="bool")\n'
        "embedding(ids, 7, 4)\nattention(2, causal=True, mask=m)\nlinear(7)"
    )
    with pytest.raises(iso.IsomorphError, match=r"n1 \(attention\) takes a mask beside the causal order"):
        decoding_layout(iso.resolve(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('input("B", "T", 4)\nlinear(7)', "the network cannot generate text: it has no input of ids"),
        (
            'a = input("B", "T", dtype="int64")\nb = input("B", "T", dtype="int64")\n'
            "h = embedding(a, 7, 4)\nadd(h, embedding(b, 7, 4))",
            "the network cannot generate text: it has several inputs that could be ids: a, b",
        ),
        (HEAD + 'pool_tokens("last")', "the network cannot generate text: n1 (pool_tokens) needs all positions at once, for narrow"),
        (
            HEAD.replace("embedding", "h = embedding") + 'a = linear(7)\noutput(a=("B", "T", 7), h=("B", "T", 4))',
            "the network cannot generate text: its outputs are a[B, T, 7], h[B, T, 4]",
        ),
    ],
)  # fmt: skip
def test_inputs_and_outputs_that_do_not_fit(text, message):
    with pytest.raises(iso.IsomorphError) as caught:
        decoding_layout(iso.resolve(text))
    assert (caught.value.code, caught.value.message) == ("E_ARGUMENT", message)


def test_a_fixed_length_is_the_limit():
    plan = iso.resolve(
        "embedding(7, 4)\nattention(2, causal=True)\nlinear(7)", input=("B", 5), input_dtype="int64"
    )
    assert decoding_layout(plan).limit == 5
