"""Generation in every framework: what is remembered equals what is computed anew."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.generation.decoding_layout import decoding_layout
from isomorph.generation.generate import backend_of, read_prompt

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
FRAMEWORKS = ["torch", "nnx", "linen"]
NETWORKS = ["learned", "rope", "window", "sinusoidal", "capped"]


def x64(dtype: str) -> Any:
    return jax.enable_x64(True) if dtype == "float64" else nullcontext()


def scores_of_steps(model: Any, rows: list[list[int]], chunks: list[int]) -> list[np.ndarray]:
    """Scores after every chunk, the rows filled up on the left."""
    backend = backend_of(model)
    layout = decoding_layout(backend.plan_of(model))
    prompt = read_prompt(rows, None, layout.vocabulary)
    decoder = backend.start(model, layout, prompt.ids.shape[1], prompt.pads, {})
    found, first = [], 0
    for chunk in chunks:
        found.append(decoder.feed(prompt.ids[:, first : first + chunk], wanted=True))
        first += chunk
    assert first == prompt.ids.shape[1]
    return found


def expected(plan: Any, weights: Any, ids: list[int]) -> np.ndarray:
    """The reference's scores at every position of one row, without padding or memory."""
    return iso.reference.build(plan, weights)(np.array([ids]))[0]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("chunks", [[1] * 8, [2, 3, 1, 2], [8]], ids=str)
@pytest.mark.parametrize("framework", ["torch", "prepared torch"])
def test_remembering_equals_computing_anew(network, models, framework, name, chunks):
    plan, weights = network(name, "float64")
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    truth = expected(plan, weights, ids)
    found = scores_of_steps(models(plan, weights, framework), [ids], chunks)
    for scores, position in zip(found, np.cumsum(chunks) - 1, strict=True):
        np.testing.assert_allclose(scores[0], truth[position], rtol=0, atol=1e-10 * np.abs(truth).max())


CASES = [
    *(("torch", name, chunks) for name in NETWORKS for chunks in ([1] * 6, [2, 3, 1], [6])),
    *(("nnx", name, chunks) for name in NETWORKS for chunks in ([1] * 6, [2, 3, 1])),
    *(("linen", name, [2, 3, 1]) for name in ("learned", "window")),
    *(("prepared torch", name, chunks) for name in NETWORKS for chunks in ([1] * 6, [2, 3, 1], [6])),
    *(("prepared nnx", name, [2, 3, 1]) for name in NETWORKS),
    ("prepared nnx", "rope", [1] * 6),
    ("prepared linen", "learned", [2, 3, 1]),
]


@pytest.mark.parametrize(("framework", "name", "chunks"), CASES, ids=str)
def test_padding_on_the_left_changes_nothing(network, models, framework, name, chunks):
    plan, weights = network(name, "float64")
    rows = [[7, 8], [5, 6, 7, 8, 2, 1], [9]]
    with x64("float64"):
        found = scores_of_steps(models(plan, weights, framework), rows, chunks)
    for index, row in enumerate(rows):
        truth = expected(plan, weights, row)
        for scores, slot in zip(found, np.cumsum(chunks) - 1, strict=True):
            position = slot - (6 - len(row))
            if position >= 0:
                np.testing.assert_allclose(
                    scores[index], truth[position], rtol=0, atol=1e-10 * np.abs(truth).max()
                )


def test_the_causal_order_of_a_chunk_begins_at_its_end():
    """Queries and keys of zeros attend alike: position i sees the mean of the values 0..i."""
    text = (
        'ids = input("B", "T", dtype="int64")\nembedding(5, 2, name="wte")\n'
        'attention(1, causal=True, bias=False, name="attn")\n'
    )
    plan = iso.resolve(text, dtype="float64")
    zeros, one = np.zeros((2, 2)), np.eye(2)
    weights = {
        "wte.weight": np.arange(5.0)[:, None].repeat(2, 1),
        "attn.q_proj.weight": zeros, "attn.k_proj.weight": zeros,
        "attn.v_proj.weight": one, "attn.o_proj.weight": one,
    }  # fmt: skip
    found = scores_of_steps(iso.torch.build(plan, weights), [[0, 1, 2, 3, 4]], [3, 2])
    assert found[0].tolist() == [[1.0, 1.0]]  # (0 + 1 + 2) / 3
    assert found[1].tolist() == [[2.0, 2.0]]  # (0 + 1 + 2 + 3 + 4) / 5


SAMPLINGS = [{}, {"temperature": 1.0, "seed": 7}, {"temperature": 3.0, "top_k": 9, "top_p": 0.8, "seed": 3}]


@pytest.mark.parametrize("name", NETWORKS)
def test_equal_ids_in_every_framework(network, models, name):
    plan, weights = network(name)
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6]]
    made = models(plan, weights)
    for sampling in SAMPLINGS:
        found = [iso.generate(model, prompts, 12, **sampling) for model in made.values()]
        assert found[0].shape == (2, 17)
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize(
    ("framework", "name"),
    [*(("prepared torch", name) for name in NETWORKS), ("prepared nnx", "learned"), ("prepared nnx", "rope"),
     ("prepared linen", "window")],
)  # fmt: skip
def test_equal_ids_of_prepared_models(network, models, framework, name):
    plan, weights = network(name)
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6]]
    plain, prepared = iso.torch.build(plan, weights), models(plan, weights, framework)
    for sampling in SAMPLINGS:
        np.testing.assert_array_equal(
            iso.generate(prepared, prompts, 12, **sampling), iso.generate(plain, prompts, 12, **sampling)
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_narrow_prepared_models_generate(network, dtype):
    """Scores of each step within the bound of bfloat16 from those of the whole sequence at once."""
    from isomorph.agreement.bounds import numeric_bound

    for name in NETWORKS:
        plan, weights = network(name)
        ids = [3, 1, 4, 1, 5, 9]
        bound = numeric_bound(plan, weights, [np.array([ids])], dtype="bfloat16")
        (truth,) = bound.outputs.values()
        engine = iso.prepare(iso.torch.build(plan, weights), dtype)
        for scores, position in zip(scores_of_steps(engine, [ids], [2, 1, 3]), (1, 2, 5), strict=True):
            assert np.abs(scores[0] - truth[0, position]).max() <= bound.total
        assert iso.generate(engine, [[3, 1], [4]], 5).shape == (2, 7)


def test_greedy_ids_are_those_of_the_full_forward(network, models):
    plan, weights = network("window")
    reference = iso.reference.build(plan, weights)
    ids = [3, 1, 4]
    for _ in range(15):
        ids.append(int(reference(np.array([ids]))[0, -1].argmax()))
    for model in models(plan, weights).values():
        assert iso.generate(model, ids[:3], 15).tolist() == ids


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_tensor_may_have_two_names(framework, models):
    """Dropout gives what it takes, so both values that the last step needs are one tensor."""
    text = 'ids = input("B", "T", dtype="int64")\nh = embedding(ids, 9, 8)\ng = dropout(h, 0.1)\n'
    plan = iso.resolve(
        text + "y = transformer_block(g, 2, causal=True)\ns = add(h, g)\ns = add(s, y)\nlinear(s, 9)"
    )
    model = models(plan, iso.initial_weights(plan, seed=3), framework)
    found = iso.generate(model, [1, 2], 3)
    assert np.asarray(iso.generate(iso.prepare(model), [1, 2], 3)).tolist() == np.asarray(found).tolist()


@pytest.mark.parametrize(
    ("framework", "chunk"), [("torch", 1), ("torch", 2), ("torch", 5), ("nnx", 5), ("linen", 2)]
)
def test_the_prompt_in_pieces(network, models, framework, chunk):
    plan, weights = network("rope")
    model = models(plan, weights, framework)
    prompts = [[3, 1, 4, 1, 5, 9, 2], [6, 5]]
    whole = iso.generate(iso.torch.build(plan, weights), prompts, 5)
    np.testing.assert_array_equal(iso.generate(model, prompts, 5, prefill_chunk=chunk), whole)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_up_to_the_last_position_and_no_further(network, models, framework):
    plan, weights = network("learned")  # 24 positions
    model = models(plan, weights, framework)
    ids = list(range(20))
    found = iso.generate(model, ids, 5)  # the fifth is added behind position 24 and not read
    assert len(found) == 25
    reference = iso.reference.build(plan, weights)
    assert found[24] == reference(found[None, :24])[0, -1].argmax()
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(model, ids, 6)
    assert str(caught.value) == (
        "E_RUNTIME: a prompt of length 20 and 6 new ids take 25 positions; the network has 24\n"
        "  max_new_tokens is at most 5 here, or shorten the prompt"
    )
    assert iso.generate(model, [ids[:18], ids], 5).shape == (2, 25)


def test_a_row_ends_at_a_stop_and_repeats_it(network, models):
    plan, weights = network("rope")
    model = models(plan, weights, "torch")
    free = iso.generate(model, [[3, 1, 4], [2, 7, 1]], 10)
    stop = int(free[0, 5])
    found = iso.generate(model, [[3, 1, 4], [2, 7, 1]], 10, stop=stop)
    for row, before in zip(found, free, strict=True):
        ends = np.flatnonzero(before[3:] == stop)
        end = 4 + int(ends[0]) if len(ends) else len(row)
        assert row[:end].tolist() == before[:end].tolist()
        assert (row[end:] == stop).all()
    assert iso.generate(model, [3, 1, 4], 10, stop=[stop, 22]).tolist() == free[0, :6].tolist()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_stream_is_the_same_ids_one_by_one(network, models, framework):
    plan, weights = network("rope")
    model = models(plan, weights, framework)
    prompts = [[3, 1, 4], [1, 5]]
    steps = list(iso.stream(model, prompts, 6, temperature=1.0))
    assert all(step.shape == (2,) and step.dtype == np.int64 for step in steps)
    np.testing.assert_array_equal(np.stack(steps, 1), iso.generate(model, prompts, 6, temperature=1.0)[:, 3:])


def test_ids_that_a_reader_changes(network, models):
    plan, weights = network("rope")
    model = models(plan, weights, "torch")
    found = []
    for ids in iso.stream(model, [3, 1, 4], 6):
        found.append(int(ids[0]))
        ids += 1
    assert found == iso.generate(model, [3, 1, 4], 6)[3:].tolist()


def test_a_layer_that_is_wrapped_on_the_way(network, models):
    """A text that a prepared model has begun is continued with the weights it began with."""
    plan, weights = network("rope", "bfloat16")
    engine = models(plan, weights, "prepared torch")
    expected = iso.generate(engine, [3, 1, 4], 6)[3:].tolist()
    steps = iso.stream(engine, [3, 1, 4], 6)
    found = [int(next(steps)[0])]
    for module in list(engine.network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear:
                setattr(module, name, torch.nn.Sequential(child))
    assert found + [int(ids[0]) for ids in steps] == expected


def test_the_result_is_of_the_kind_of_the_ids(network, models):
    plan, weights = network("rope")
    made = models(plan, weights)
    tensor = iso.generate(made["torch"], torch.tensor([[3, 1]]), 2)
    assert isinstance(tensor, torch.Tensor) and tensor.dtype == torch.int64 and tensor.shape == (1, 4)
    array = iso.generate(made["nnx"], jax.numpy.array([3, 1]), 2)
    assert isinstance(array, jax.Array) and array.shape == (4,)
    for ids in ([3, 1], (3, 1), np.array([3, 1]), np.array([3, 1], np.uint8)):
        found = iso.generate(made["linen"], ids, 2)
        assert found.dtype == np.int64 and found.tolist() == tensor[0].tolist()


def test_nothing_to_do(network, models):
    plan, weights = network("rope")
    model = models(plan, weights, "torch")
    assert iso.generate(model, [3, 1], 0).tolist() == [3, 1]
    assert iso.generate(model, np.zeros((0, 4), np.int64), 3).shape == (0, 7)


def test_a_mask_tells_where_ids_are(network, models):
    plan, weights = network("learned")
    for model in models(plan, weights).values():
        rows = iso.generate(model, [[7, 8], [5, 6, 7, 8]], 4)
        ids = np.array([[20, 20, 7, 8], [5, 6, 7, 8]])  # what stands in padding does not matter
        mask = np.array([[False, False, True, True], [True] * 4])
        np.testing.assert_array_equal(iso.generate(model, ids, 4, mask=mask)[:, 4:], rows[:, 4:])


def test_the_model_is_left_as_it_is(network):
    text = 'ids = input("B", "T", dtype="int64")\nembedding(9, 8)\ntransformer_block(2, causal=True, dropout=0.5)\ndropout(0.5)\nlinear(9)'
    plan = iso.resolve(text)
    for model in (iso.torch.build(plan), iso.nnx.build(plan)):
        assert len({tuple(iso.generate(model, [1, 2], 8).tolist()) for _ in range(5)}) == 1  # no dropout
        dropout = model.n2
        assert dropout.training if isinstance(dropout, torch.nn.Module) else not dropout.deterministic
    model = iso.torch.build(plan)
    assert len({tuple(iso.generate(iso.prepare(model), [1, 2], 8).tolist()) for _ in range(3)}) == 1
    before = {name: id(module) for name, module in model.named_modules()}
    iso.generate(model, [1, 2], 3)
    assert before == {name: id(module) for name, module in model.named_modules()}
    assert all(module.training for module in model.modules())


def test_weights_may_change_between_calls(network, models):
    plan, weights = network("rope")
    other = {path: -array for path, array in weights.items()}
    made = models(plan, weights)
    changed = iso.generate(iso.torch.build(plan, other), [3, 1, 4], 8)
    first = iso.generate(made["torch"], [3, 1, 4], 8)
    assert first.tolist() != changed.tolist()
    iso.torch.load_weights(made["torch"], other)
    iso.generate(made["nnx"], [3, 1, 4], 8)
    iso.nnx.load_weights(made["nnx"], other)
    assert iso.generate(made["torch"], [3, 1, 4], 8).tolist() == changed.tolist()
    assert iso.generate(made["nnx"], [3, 1, 4], 8).tolist() == changed.tolist()


def test_hooks_and_adapters_take_part(network):
    plan, weights = network("learned")
    model = iso.torch.build(plan, weights)
    plain = iso.generate(model, [3, 1, 4], 6).tolist()
    seen = []
    handle = model.n2.attn.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    assert iso.generate(model, [3, 1, 4], 3).tolist() == plain[:6]
    assert seen == [(1, 3, 12), (1, 1, 12), (1, 1, 12)]
    handle.remove()

    class Adapted(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return -self.inner(x)

    model.n2.attn.o_proj = Adapted(model.n2.attn.o_proj)
    full = [3, 1, 4]
    model.eval()
    for _ in range(6):
        full.append(int(model(torch.tensor([full]))[0, -1].argmax()))
    assert iso.generate(model, [3, 1, 4], 6).tolist() == full != plain


def test_what_took_the_place_of_an_attention_cannot_remember(network):
    plan, weights = network("learned")
    model = iso.torch.build(plan, weights)
    model.n2.attn = torch.nn.Identity()
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(model, [1], 1)
    assert str(caught.value) == (
        "E_ARGUMENT: n2.attn (attention) was replaced by Identity, which cannot take part in generation\n"
        "  replace layers such as linear inside it, or change the definition"
    )
    from flax import nnx

    model = iso.nnx.build(plan, weights)
    model.n2.attn = nnx.Linear(12, 12, rngs=nnx.Rngs(0))
    with pytest.raises(iso.IsomorphError, match=r"n2\.attn \(attention\) was replaced by Linear"):
        iso.generate(model, [1], 1)


@pytest.mark.filterwarnings("ignore:`torch.jit")  # of the compiler's own modules
def test_a_compiled_model_is_looked_into(network):
    plan, weights = network("rope")
    model = iso.torch.build(plan, weights)
    assert iso.generate(torch.compile(model), [1, 2], 3).tolist() == iso.generate(model, [1, 2], 3).tolist()


def test_few_compilations_for_many_lengths(network):
    from isomorph.backends.nnx import decoding

    plan, weights = network("rope")
    model = iso.nnx.build(plan, weights)
    decoding._compiled.cache_clear()
    for length in range(1, 21):
        iso.generate(model, list(range(length)), 3 + length)
    # lengths to 16 and to 32, and one id at a time; one capacity
    from flax import nnx

    compiled = decoding._compiled(nnx.split(model)[0], decoding_layout(plan))
    assert compiled.traces == 3
    iso.nnx.load_weights(model, {path: -array for path, array in weights.items()})
    iso.generate(model, [1, 2], 5)
    assert compiled.traces == 3  # weights are arguments


def test_scores_of_a_prompt_are_not_all_computed():
    """4,096 positions times 60,000 ids would be 983 MB of float32; the scores of one position are 240 kB."""
    text = 'ids = input("B", "T", dtype="int64")\nembedding(60000, 2, name="e")\nattention(1, causal=True)\nlinear(60000, tie={"weight": "e.weight"}, bias=False)'
    plan = iso.resolve(text)
    largest = []
    model = iso.torch.build(plan)
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: largest.append(out.numel()) if isinstance(out, torch.Tensor) else None
    )
    try:
        iso.generate(model, np.arange(4096), 1, prefill_chunk=4096)
    finally:
        handle.remove()
    assert max(largest) == 60000


def test_dropout_of_an_encoder_does_not_act():
    text = (
        'features = input("B", "S", 5)\nids = input("B", "T", dtype="int64")\n'
        "memory = dropout(linear(features, 8), 0.9)\nh = embedding(ids, 11, 8)\n"
        "a = attention(h, 2, causal=True)\nc = cross_attention(a, memory, 4)\nlinear(c, 11)"
    )
    model = iso.torch.build(iso.resolve(text)).train()
    given = {"features": np.ones((1, 3, 5), np.float32)}
    engine = iso.prepare(model)
    assert len({tuple(iso.generate(engine, [1, 2], 8, inputs=given).tolist()) for _ in range(4)}) == 1


def test_an_encoder_is_computed_once_and_given_by_name():
    text = (
        'features = input("B", "S", 5)\nids = input("B", "T", dtype="int64")\n'
        'memory = linear(features, 8, name="encoder")\nh = embedding(ids, 11, 8)\n'
        "for _ in range(2):\n"
        "    a = attention(layer_norm(h), 2, causal=True)\n    h = add(h, a)\n"
        "    c = cross_attention(layer_norm(h), memory, 4)\n    h = add(h, c)\n"
        "linear(h, 11)"
    )
    plan = iso.resolve(text)
    from isomorph.testing import order_one_weights

    weights = order_one_weights(plan, 1)
    features = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    reference = iso.reference.build(plan, weights)
    ids = np.array([[1, 2], [3, 4]])
    for _ in range(6):
        new = reference(features, ids)[:, -1].argmax(-1)
        ids = np.concatenate((ids, new[:, None]), 1)
    for model in (
        iso.torch.build(plan, weights),
        iso.nnx.build(plan, weights),
        iso.linen.build(plan).bind(iso.linen.variables(plan, weights)),
        iso.prepare(iso.torch.build(plan, weights)),
        iso.prepare(iso.nnx.build(plan, weights)),
    ):
        np.testing.assert_array_equal(iso.generate(model, ids[:, :2], 6, inputs={"features": features}), ids)
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(model, ids, 1)
    assert str(caught.value) == (
        "E_ARGUMENT: the network's further inputs are features, got none\n"
        '  give them by name, as in inputs={"features": x}'
    )


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("text", "ids must be integers, a prompt [T] or prompts [B, T], got 'text'"),
        ([1.5], "ids must be integers, a prompt [T] or prompts [B, T], got [1.5]"),
        (np.zeros((1, 2)), "ids must be integers, a prompt [T] or prompts [B, T], got float64 of shape [1, 2]"),
        (np.zeros((1, 2, 3), int), "ids must be integers, a prompt [T] or prompts [B, T], got int64 of shape [1, 2, 3]"),
        ([[1], [2, [3]]], "ids must be integers, a prompt [T] or prompts [B, T], got [[1], [2, [3]]]"),
        (None, "ids must be integers, a prompt [T] or prompts [B, T], got None"),
        ([], "the prompt of row 0 is empty"),
        ([[1], []], "the prompt of row 1 is empty"),
        ([[1, 2], 3], "ids must be integers, a prompt [T] or prompts [B, T], got [[1, 2], 3]"),
        ([True, False], "ids must be integers, a prompt [T] or prompts [B, T], got [True, False]"),
    ],
)  # fmt: skip
def test_what_is_no_prompt(network, models, ids, message):
    plan, weights = network("rope")
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(iso.torch.build(plan, weights), ids, 1)
    assert (caught.value.code, caught.value.message) == ("E_ARGUMENT", message)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("bad", [23, -1, 10**9])
def test_ids_outside_the_table(network, models, framework, bad):
    plan, weights = network("rope")
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(models(plan, weights, framework), [1, bad], 1)
    assert (
        caught.value.code == "E_RUNTIME" and str(bad) in caught.value.message and "23" in caught.value.message
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be an int from 0, got -1"),
        ({"max_new_tokens": 2.0}, "max_new_tokens must be an int from 0, got 2.0"),
        ({"max_new_tokens": 2, "prefill_chunk": 0}, "prefill_chunk must be an int from 1, got 0"),
        ({"max_new_tokens": 2, "stop": "x"}, "stop must be an id or several, from 0, got 'x'"),
        ({"max_new_tokens": 2, "stop": [1.5]}, "stop must be an id or several, from 0, got [1.5]"),
        ({"max_new_tokens": True}, "max_new_tokens must be an int from 0, got True"),
        ({"max_new_tokens": 2, "stop": [[1]]}, "stop must be an id or several, from 0, got [[1]]"),
        ({"max_new_tokens": 2, "stop": -5}, "stop must be an id or several, from 0, got -5"),
        ({"max_new_tokens": 2, "stop": True}, "stop must be an id or several, from 0, got True"),
        ({"max_new_tokens": 2, "inputs": "a"}, "inputs must be a dictionary by name, got 'str'"),
        ({"max_new_tokens": 2, "inputs": {"y": 1}}, "the network's further inputs are none, got y"),
        ({"max_new_tokens": 2, "mask": [[1, 0, 1]]}, "mask hides positions after an id in row 0"),
        ({"max_new_tokens": 2, "mask": [[0, 0, 0]]}, "the prompt of row 0 is empty"),
        ({"max_new_tokens": 2, "mask": [[1, 1]]}, "mask must be booleans of shape [1, 3], as ids are, got int64 of shape [1, 2]"),
        ({"max_new_tokens": 2, "temperature": -1.0}, "temperature must be a number from 0, got -1.0"),
    ],
)  # fmt: skip
def test_arguments_out_of_range(network, arguments, message):
    plan, weights = network("rope")
    model = iso.torch.build(plan, weights)
    for function in (iso.generate, iso.stream):
        with pytest.raises(iso.IsomorphError) as caught:
            function(model, [1, 2, 3], **arguments)
        assert (caught.value.code, caught.value.message) == ("E_ARGUMENT", message)


@pytest.mark.parametrize("model", [None, "model", torch.nn.Linear(1, 1), 3])
def test_what_is_no_model(model):
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(model, [1], 1)
    assert caught.value.code == "E_ARGUMENT"


def test_an_unbound_linen_module(network):
    plan, _ = network("rope")
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(iso.linen.build(plan), [1], 1)
    assert str(caught.value) == (
        "E_ARGUMENT: expected a bound module, got one without variables\n"
        "  module = isomorph.linen.build(plan); module.bind(isomorph.linen.variables(plan, weights))"
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_half_precision_generates(network, models, framework):
    plan, weights = network("rope", "bfloat16")
    found = iso.generate(models(plan, weights, framework), [[3, 1, 4], [1, 5]], 4)
    assert found.shape == (2, 7) and ((found >= 0) & (found < 23)).all()


def test_numbers_of_any_kind(network):
    plan, weights = network("rope")
    model = iso.torch.build(plan, weights)
    plain = iso.generate(model, [3, 1, 4], 6, temperature=0.5, top_k=5, seed=2, stop=[7, 9])
    kinds = {"temperature": np.float32(0.5), "top_k": np.int8(5), "seed": np.uint64(2)}
    for stop in (np.array([7, 9]), {np.int64(9), 7}, (9, 7), torch.tensor([7, 9])):
        found = iso.generate(model, [3, 1, 4], np.int32(6), stop=stop, prefill_chunk=np.int64(2), **kinds)
        np.testing.assert_array_equal(found, plain)
    free = iso.generate(model, [3, 1, 4], 6)
    for none in (None, (), [], np.zeros(0)):
        np.testing.assert_array_equal(iso.generate(model, [3, 1, 4], 6, stop=none), free)
    assert len(iso.generate(model, [3, 1, 4], 6, stop=np.int64(free[3]))) == 4


def test_a_list_of_rows_of_any_kind(network, models):
    plan, weights = network("rope")
    made = models(plan, weights)
    expected = iso.generate(made["torch"], [[3, 1, 4], [5]], 3)
    for rows in ([torch.tensor([3, 1, 4]), torch.tensor([5])], [np.array([3, 1, 4]), [5]], ((3, 1, 4), (5,))):
        np.testing.assert_array_equal(iso.generate(made["torch"], rows, 3), expected)
    rows = [jax.numpy.array([3, 1, 4]), np.array([5], np.uint8)]
    np.testing.assert_array_equal(iso.generate(made["nnx"], rows, 3), expected)
    scalars = [torch.tensor(3), np.int64(1), 4]
    np.testing.assert_array_equal(
        iso.generate(made["torch"], scalars, 3), iso.generate(made["torch"], [3, 1, 4], 3)
    )


def test_new_ids_fit_whatever_the_prompts_dtype_was():
    """The network always says 255, which no int8 holds."""
    plan = iso.resolve(
        'ids = input("B", "T", dtype="int64")\nembedding(256, 1, name="e")\nlinear(256, name="out")'
    )
    weights = {
        "e.weight": np.zeros((256, 1), np.float32), "out.weight": np.zeros((256, 1), np.float32),
        "out.bias": np.arange(256, dtype=np.float32),
    }  # fmt: skip
    for model, ids in (
        (iso.torch.build(plan, weights), torch.tensor([5], dtype=torch.int8)),
        (iso.nnx.build(plan, weights), jax.numpy.array([5], jax.numpy.int8)),
        (iso.nnx.build(plan, weights), np.array([5], np.int8)),
    ):
        assert iso.generate(model, ids, 2).tolist() == [5, 255, 255]


def test_what_a_mask_hides_comes_back_as_it_was(network, models):
    plan, weights = network("learned")
    ids, mask = np.array([[-100, 7, 8], [5, 6, 7]]), np.array([[0, 1, 1], [1, 1, 1]])
    for model in models(plan, weights).values():
        found = iso.generate(model, ids, 2, mask=mask)
        np.testing.assert_array_equal(found[:, :3], ids)
        np.testing.assert_array_equal(found[0, 1:], iso.generate(model, [7, 8], 2))
    model = iso.torch.build(plan, weights)
    rows = iso.generate(model, [[9, 7, 8], [5, 6, 7]], 2, mask=mask.tolist())  # lists of equal rows
    np.testing.assert_array_equal(rows[0, 1:], iso.generate(model, [7, 8], 2))


def test_a_mask_beside_rows_that_tell_their_ends(network):
    plan, weights = network("rope")
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(iso.torch.build(plan, weights), [[1, 2, 3], [4, 5]], 1, mask=[[1, 1, 1], [0, 1, 1]])
    assert str(caught.value) == (
        "E_ARGUMENT: mask was given for rows of unequal lengths, whose ends tell already where there are ids\n"
        "  leave mask out, or give an array [B, T] filled up on the left"
    )


# -- further inputs --------------------------------------------------------------------------------------

READER = (
    'ids = input("B", "T", dtype="int64")\nf = input("B", "S", 12)\nm = input("B", "S", dtype="bool")\n'
    "h = embedding(ids, 11, 12)\nh = add(h, attention(h, 3, causal=True))\n"
    "h = add(h, cross_attention(h, f, 3, mask=m))\nlinear(h, 11)\n"
)
KINDS = ["torch", "nnx", "linen", "prepared torch", "prepared nnx", "prepared linen"]


def as_called(model: Any, kind: str, ids: Any, further: dict[str, Any]) -> str:
    """What a call of the model says of its inputs."""
    if kind.endswith("torch"):
        tensors = {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in further.items()}
        with pytest.raises(iso.IsomorphError) as caught:
            model(ids=torch.tensor(ids), **tensors)
    else:
        with pytest.raises(iso.IsomorphError) as caught:
            model(ids=np.array(ids), **further)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_further_inputs_are_checked_as_a_call_checks_them(models, kind):
    plan = iso.resolve(READER)
    model = models(plan, iso.initial_weights(plan), kind)
    f, m, ids = np.ones((2, 4, 12), np.float32), np.ones((2, 4), bool), [[1, 2], [3, 4]]
    m[1, 2:] = False
    generated = iso.generate(model, ids, 2, inputs={"f": f, "m": m})
    assert generated.shape == (2, 4)
    assert np.array_equal(iso.generate(model, ids, 2, inputs={"f": f, "m": m.astype(np.int32)}), generated)
    for wrong, said in (
        ({"f": f[:1]}, "input f: expected [B, S, 12] float32, got [1, 4, 12] float32: axis 0 must be B=2 (from axis 0 of ids)"),
        ({"f": np.tile(f, (2, 1, 1)), "m": np.tile(m, (2, 1))}, "axis 0 must be B=2 (from axis 0 of ids)"),
        ({"f": f[..., :3]}, "axis 2 must be 12"),
        ({"m": m[:, :3]}, "axis 1 must be S=4 (from axis 1 of f)"),
        ({"f": f[0]}, "its rank must be 3"),
        ({"f": f.astype(np.float16)}, "input f: expected float32, the network's dtype, got float16"),
        ({"f": f.astype(np.int32)}, "it must have a floating-point dtype"),
        ({"m": m.astype(np.float32)}, "it must have dtype bool"),
        ({"f": f.tolist()}, "input f: expected a "),
        ({"m": None}, "input m: expected a "),
    ):  # fmt: skip
        further = {"f": f, "m": m, **wrong}
        for function in (iso.generate, iso.stream):
            with pytest.raises(iso.IsomorphError) as caught:
                function(model, ids, 2, inputs=further)
            assert caught.value.code == "E_RUNTIME" and said in caught.value.message
            assert str(caught.value) == as_called(model, kind, ids, further)


def test_features_of_the_dtype_that_a_model_was_cast_to(models):
    plan = iso.resolve(READER)
    f, m = torch.ones(1, 4, 12), torch.ones(1, 4, dtype=torch.bool)
    model = iso.torch.build(plan).half()
    with pytest.raises(
        iso.IsomorphError, match=r"input f: expected float16, the network's dtype, got float32"
    ):
        iso.generate(model, [1], 1, inputs={"f": f, "m": m})
    assert iso.generate(model, [1], 1, inputs={"f": f.half(), "m": m}).shape == (2,)


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_rows_that_a_contract_fixes(models, kind):
    plan = iso.resolve(
        'ids = input(2, "T", dtype="int64")\nembedding(7, 4)\nattention(2, causal=True)\nlinear(7)'
    )
    model = models(plan, iso.initial_weights(plan), kind)
    assert iso.generate(model, [[1, 2], [3, 4]], 1).shape == (2, 3)
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(model, [1, 2], 1)
    assert caught.value.message == "input ids: expected [2, T] int64, got [1, 2] int64: axis 0 must be 2"


def test_features_that_depend_on_symbols_by_arithmetic(models):
    """2*S+1 features; a prepared model is written for their number."""
    text = (
        READER.replace('"S", 12', '"2*S+1", 12')
        .replace('m = input("B", "S", dtype="bool")\n', "")
        .replace(", mask=m", "")
    )
    plan = iso.resolve(text)
    from isomorph.testing import order_one_weights

    weights, f = (
        order_one_weights(plan, 1),
        np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32),
    )
    plain = iso.generate(iso.torch.build(plan, weights), [[1, 2], [3]], 4, inputs={"f": f})
    for kind in ("prepared torch", "prepared nnx"):
        np.testing.assert_array_equal(
            iso.generate(models(plan, weights, kind), [[1, 2], [3]], 4, inputs={"f": f}), plain
        )


# -- memory that grows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["torch", "nnx", "prepared torch"])
def test_memory_grows_with_the_text(network, models, kind, monkeypatch):
    from isomorph.backends.jax import decoding
    from isomorph.generation import generate as generation

    plan, weights = network("window")
    expected = iso.generate(iso.torch.build(plan, weights), [[3, 1, 4], [1, 5, 9, 2, 6]], 40)
    monkeypatch.setattr(generation, "_FIRST_ROOM", 2)
    monkeypatch.setattr(decoding, "_CAPACITY_STEP", 1)
    found = iso.generate(models(plan, weights, kind), [[3, 1, 4], [1, 5, 9, 2, 6]], 40)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", ["torch", "prepared torch"])
def test_memory_of_half_precision_grows_too(network, models, kind, monkeypatch):
    """PyTorch keeps it in float32 on the CPU, also beside padding and behind a window."""
    from isomorph.backends.torch.cache import TorchKeyValueCache
    from isomorph.generation import generate as generation

    dtypes = set()

    def longer(self: Any, old: Any) -> Any:
        new = before(self, old)
        dtypes.add(new.dtype)
        return new

    plan, weights = network("window", "bfloat16")
    model = models(plan, weights, kind)
    expected = iso.generate(model, [[3, 1, 4], [1, 5, 9, 2, 6]], 40)
    before = TorchKeyValueCache._longer
    monkeypatch.setattr(TorchKeyValueCache, "_longer", longer)
    monkeypatch.setattr(generation, "_FIRST_ROOM", 2)
    np.testing.assert_array_equal(iso.generate(model, [[3, 1, 4], [1, 5, 9, 2, 6]], 40), expected)
    assert dtypes == {torch.float32}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_room_for_a_text_without_end_is_not_taken_at_once(network, models, framework):
    """10**12 positions of two attentions would take more bytes than there are on earth's largest machine."""
    plan, weights = network("rope")
    model = models(plan, weights, framework)
    steps = iso.stream(model, [3, 1, 4], 10**12)
    first = [int(next(steps)[0]) for _ in range(3)]
    assert first == iso.generate(model, [3, 1, 4], 3)[3:].tolist()
    assert len(iso.generate(model, [3, 1, 4], 10**12, stop=first[0])) == 4
    assert iso.generate(model, np.zeros((0, 4), np.int64), 10**9).shape == (0, 4 + 10**9)


def test_memory_that_is_not_there(network, monkeypatch):
    plan, weights = network("rope")

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch.Tensor, "new_empty", refuse)
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(iso.torch.build(plan, weights), [[3, 1, 4], [3, 1, 4]], 5)
    # 2 rows of 3 + 5 slots; 2 key heads of width 6 and 4 bytes: 16 * 2 * 6 * 4 = 768, and as much for values
    assert str(caught.value) == (
        "E_RESOURCE: there is no memory for the keys and values of 16 positions, 1,536 bytes in each attention\n"
        "  ask for fewer new ids, or give fewer rows at a time"
    )


def test_memory_that_a_compiler_does_not_find(network, monkeypatch):
    from isomorph.backends.jax import decoding

    plan, weights = network("rope")

    def refuse(*_: Any, **__: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")

    model = iso.nnx.build(plan, weights)
    steps = iso.stream(model, [3, 1, 4], 5)
    next(steps)
    monkeypatch.setattr(decoding.JaxDecoder, "_fed", refuse)
    with pytest.raises(iso.IsomorphError) as caught:
        next(steps)
    # 128 slots are compiled for; 2 key heads of width 6 and 4 bytes: 128 * 2 * 6 * 4 = 6,144
    assert str(caught.value).startswith(
        "E_RESOURCE: there is no memory for the keys and values of 128 positions, 12,288 bytes in each attention\n"
    )


# -- hooks on the network ----------------------------------------------------------------------------------


def test_a_hook_on_the_network_sees_scores_and_may_change_them(network):
    plan, weights = network("rope")
    model = iso.torch.build(plan, weights)
    plain = iso.generate(model, [3, 1, 4], 3)
    seen: list[Any] = []
    before = model.register_forward_pre_hook(lambda module, args: seen.append(args[0].tolist()))
    after = model.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    np.testing.assert_array_equal(iso.generate(model, [3, 1, 4], 3, prefill_chunk=2), plain)
    last = (1, 1, 23)
    assert seen == [[[3, 1]], last, [[4]], last, [[plain[3]]], last, [[plain[4]]], last]
    before.remove()
    after.remove()
    model.register_forward_hook(lambda module, args, out: -out)
    lowest = torch.no_grad()(model.eval())(torch.tensor([[3, 1, 4]]))[0, -1].argmax()
    assert iso.generate(model, [3, 1, 4], 1)[3] == lowest
