"""Which networks generate text, and what is computed when."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np
import pytest

import isomorph as iso
from isomorph.generation.decoding_layout import decoding_layout
from isomorph.generation.generate import backend_of, read_prompt
from isomorph.operators.declare import Operator, operator
from isomorph.testing import order_one_weights

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
        ("concat(h, h, axis=0)\nlinear(7)", "n1 (concat) lets rows of a batch see each other"),
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


def layout_of(ids: str, body: str) -> Any:
    return decoding_layout(
        iso.resolve(f'ids = input({ids}, dtype="int64")\nembedding(7, 4)\n{body}\nlinear(7)')
    )


@pytest.mark.parametrize(
    ("ids", "body", "limit"),
    [
        ('"B", "T"', "pos_embed(16)", 16),
        ('"B", "T+1"', "pos_embed(16)", 16),  # T is at most 15, and there are T+1 ids
        ('"B", "T-1"', "pos_embed(16)", 16),
        ('"B", "T+1"', "gelu()", None),
        ('"B", 8', "pos_embed(16)", 8),
        ('"B", 8', "pos_embed(8)", 8),
        ('"B", "T"', "pos_embed(1)", 1),
        ('"B", "T"', "pos_embed(89)", 89),
    ],
)
def test_the_limit_is_that_of_the_ids(ids, body, limit):
    assert layout_of(ids, f"{body}\nattention(2, causal=True)").limit == limit


@pytest.mark.parametrize("ids", ["B, 2*T", "B, T+S", "N, N"])
def test_ids_that_cannot_grow_by_one(ids):
    quoted = ", ".join(f'"{part}"' for part in ids.split(", "))
    with pytest.raises(iso.IsomorphError) as caught:
        layout_of(quoted, "gelu()")
    assert str(caught.value) == (
        f"E_ARGUMENT: the network cannot generate text: its ids are ids[{ids}], and a text that grows has every length\n"
        '  declare them as in ids = input("B", "T", dtype="int64")'
    )


def test_a_length_inside_the_arguments():
    with pytest.raises(iso.IsomorphError) as caught:
        layout_of('"B", 8', "reshape(8, 2, 2)\nsoftmax()\nreshape(8, 4)")
    assert (
        caught.value.message == "the network cannot generate text: n1 (reshape) was made for one length alone"
    )
    assert caught.value.hints == ('a text that grows has every length: ids = input("B", "T", dtype="int64")',)


@pytest.mark.parametrize("body", ["encoded = pos_embed(f, 89)", "encoded = sinusoidal_pos_embed(f)"])
@pytest.mark.parametrize("length", [11, 12, 13, 89, 97])
def test_positions_of_another_sequence_of_any_length(body, length):
    plan = iso.resolve(
        f'f = input("B", {min(length, 89)}, 4)\nids = input("B", "T", dtype="int64")\n{body}\n'
        f"h = embedding(ids, 7, 4)\nh = pos_embed(h, {length})\ncross_attention(h, encoded, 2)\nlinear(7)"
    )
    layout = decoding_layout(plan)
    assert [node.name for node in layout.fixed] == ["n0"]
    assert layout.limit == length


def test_an_input_that_would_grow_with_the_ids():
    plan = iso.resolve(
        'f = input("B", "T", 4)\nids = input("B", "T", dtype="int64")\n'
        "h = embedding(ids, 7, 4)\ncross_attention(h, f, 2)\nlinear(7)"
    )
    with pytest.raises(iso.IsomorphError) as caught:
        decoding_layout(plan)
    assert str(caught.value) == (
        "E_ARGUMENT: the network cannot generate text: its input f[B, T, 4] would have to grow with the ids\n"
        '  give it a length of its own, as in f = input("B", "S", ...)'
    )


def test_what_the_scores_do_not_need_is_in_nobodys_way():
    plan = iso.resolve(
        HEAD
        + 'h = attention(2, causal=True)\na = linear(h, 7)\nv = pool_tokens(h)\noutput(a=("B", "T", 7), v=("B", 4))'
    )
    assert decoding_layout(plan).plan.values[decoding_layout(plan).logits].source == "n2"


def with_operator(made: type[Any]) -> Any:
    """A network in which an operator of somebody's stands in the place of a gelu."""
    plan = iso.resolve(HEAD + "gelu()\nlinear(7)")
    nodes = list(plan.nodes)
    nodes[1] = type(nodes[1])(1, "n1", made.of(), nodes[1].inputs, nodes[1].outputs)
    return type(plan)(plan.dtype, plan.values, plan.inputs, plan.outputs, tuple(nodes))


def forwards(forward: Any) -> type[Any]:
    @operator("strange", shape="x[B, T, D] -> out[B, T, D]", category="test", register=False)
    class Strange(Operator):
        """Of a test."""

        examples: ClassVar = ()

        def forward(self, m, F, x):
            return forward(F, x)

    return Strange


@pytest.mark.parametrize(
    ("forward", "problem"),
    [
        (lambda F, x: F.softmax(x, 0), "lets rows of a batch see each other"),
        (lambda F, x: x * F.mean(x, 0, keepdim=True), "lets rows of a batch see each other"),
        (lambda F, x: F.permute(F.permute(x, (1, 0, 2)), (1, 0, 2)), "joins or parts the rows of a batch"),
        (lambda F, x: x * (1 / x.shape[1]), "depends on how many positions or rows there are"),
        (lambda F, x: x * (1 / x.shape[0]), "depends on how many positions or rows there are"),
        (lambda F, x: F.gelu(x) if x.shape[1] > 90 else F.silu(x), "does something else at another length or number of rows"),
        (lambda F, x: F.reshape(F.reshape(x, (x.shape[0] * x.shape[1], x.shape[2])), x.shape), "needs all positions at once, for reshape"),
        (lambda F, x: x + F.reshape(F.cos_sin(x.shape[1], (1.0,) * 4, x)[0], x.shape[1:]), "cannot have positions of its own in every row"),
    ],
)  # fmt: skip
def test_operators_that_see_more_than_a_position(forward, problem):
    with pytest.raises(iso.IsomorphError) as caught:
        decoding_layout(with_operator(forwards(forward)))
    assert caught.value.message == f"the network cannot generate text: n1 (strange) {problem}"


def test_an_operator_of_somebodys_that_is_fit():
    swap = forwards(lambda F, x: F.permute(F.exp(F.permute(x, (0, 2, 1))), (0, 2, 1)))
    assert decoding_layout(with_operator(swap)).limit is None


# -- every network that is accepted computes an id at a time what it computes at once ------------------

IDS = [("B", "T"), ("B", "T+1"), ("B", "T-1"), ("B", 7), (2, "T"), (2, 7), ("2*B", "T")]
FEATURES = [5, 7, 16, "S", "S+1", "2*S", "T"]
PIECES = [
    "h = transformer_block(h, 3, causal=True, mlp_ratio=2)",
    "h = attention(h, 4, causal=True, rope=True, kv_heads=2, head_dim=4)",
    "h = attention(h, 3, causal=True, window_size=2)",
    "h = post_norm_block(h, 2, causal=True, hidden=9)",
    "h = attention(h, 2)",
    "h = encoder_block(h, 3, 10)",
    "h = layer_norm(h)",
    "h = swiglu(h, 9)",
    "h = softmax(h, dim=2)",
    "h = softmax(h, dim=1)",
    "a, b = split(h, 8, dim=2)\na = attention(a, 2, causal=True, rope=True)\nh = concat(b, a, axis=2)",
    "h = pos_embed(h, 16)",
    "h = sinusoidal_pos_embed(h)",
    "h = transpose(h, 1, 2)\nh = softmax(h, dim=1)\nh = transpose(h, 1, 2)",
    "h = transpose(h, 1, 2)\nh = softmax(h, dim=2)\nh = transpose(h, 1, 2)",
    "h = add(h, cross_attention(h, f, 3))",
    "h = add(h, cross_attention(h, pos_embed(f, 16), 3))",
    "h = add(h, cross_attention(h, encoder_block(sinusoidal_pos_embed(f), 3, 10), 3))",
    "h = reshape(h, 7, 3, 4)\nh = softmax(h, dim=3)\nh = reshape(h, 7, 12)",
    "c = cls_token(h)\na, h = split(c, 1, dim=1)",
    "h = concat(h, h, axis=0)",
    "h = mul(h, sigmoid(linear(h, 12)))",
    "h = linear(mean(h, 2, keepdim=True), 12)",
]


JAX_SEEDS = [12, 56, 87, 131]  # every kind of ids and of features, where each length is compiled for


def some_definition(seed: int) -> str:
    choose = random.Random(seed)
    rows, length = choose.choice(IDS)
    body = [choose.choice(PIECES) for _ in range(choose.randint(1, 4))]
    lines = [f"ids = input({rows!r}, {length!r}, dtype='int64')"]
    if any("cross" in piece for piece in body):
        lines.append(f"f = input({rows!r}, {choose.choice(FEATURES)!r}, 6)")
    return "\n".join([*lines, "h = embedding(ids, 11, 12)", *body, "linear(h, 11)"])


def at_once(plan: Any, weights: Any, ids: list[int], features: Any) -> np.ndarray:
    """Scores at every position of one prompt, which a fixed length fills up on the right: nothing sees that."""
    inputs = dict(plan.inputs)
    length = plan.values[inputs["ids"]].shape[1]
    filled = ids + [0] * (length - len(ids)) if isinstance(length, int) else ids
    given = {"ids": np.array([filled, filled])}
    if "f" in inputs:
        given["f"] = np.stack([features, features])
    return iso.reference.build(plan, weights)(**given)[0]


def agrees(seed: int, build: Any) -> str:
    """``accepted`` when generation is as it must be, ``refused`` when there is none, ``open`` without a plan."""
    try:
        plan = iso.resolve(some_definition(seed), dtype="float64")
    except iso.IsomorphError:
        return "open"
    try:
        layout = decoding_layout(plan)
    except iso.IsomorphError:
        return "refused"
    weights, rows = order_one_weights(plan, seed), [[3, 1, 4, 1, 5, 9], [2, 6, 5, 3]]
    features = np.zeros((2, 0, 6))
    if layout.others:
        size = plan.values[dict(plan.inputs)["f"]].shape[1]
        shape = (2, size if isinstance(size, int) else 4, 6)
        features = np.random.default_rng(seed).normal(size=shape)
    further: dict[str, Any] = {"f": features} if layout.others else {}
    model = build(plan, weights)
    backend, prompt = backend_of(model), read_prompt(rows, None, layout.vocabulary)
    truth = [at_once(plan, weights, ids, features[row]) for row, ids in enumerate(rows)]
    inputs = backend.inputs(model, layout, prompt.shape, further)
    decoder = backend.start(model, layout, 2, prompt.pads, inputs)  # memory that has to grow
    first = 0
    for chunk in (2, 1, 3):
        scores, first = decoder.feed(prompt.ids[:, first : first + chunk], wanted=True), first + chunk
        assert scores is not None
        for row, ids in enumerate(rows):
            position = first - 1 - (6 - len(ids))
            if position >= 0:
                bound = 1e-10 * max(1.0, np.abs(truth[row]).max())
                np.testing.assert_allclose(scores[row], truth[row][position], rtol=0, atol=bound)
    assert iso.generate(model, rows, 2, inputs=further).shape == (2, 8)
    return "accepted"


@pytest.mark.parametrize("kind", ["torch", "prepared torch"])
def test_what_is_accepted_agrees_with_the_whole_computed_at_once(kind):
    pytest.importorskip("torch")

    def build(plan: Any, weights: Any) -> Any:
        model = iso.torch.build(plan, weights)
        return iso.prepare(model) if kind.startswith("prepared") else model

    found = [agrees(seed, build) for seed in range(120)]
    assert found.count("accepted") > 40 and found.count("refused") > 20


@pytest.mark.parametrize("kind", ["nnx", "prepared nnx"])
def test_so_it_does_in_jax(kind):
    jax = pytest.importorskip("jax")
    pytest.importorskip("flax")

    def build(plan: Any, weights: Any) -> Any:
        model = iso.nnx.build(plan, weights)
        return iso.prepare(model) if kind.startswith("prepared") else model

    with jax.enable_x64(True):
        found = [agrees(seed, build) for seed in JAX_SEEDS]
    assert found == ["accepted"] * len(JAX_SEEDS)
