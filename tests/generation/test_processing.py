"""What changes scores, beside ``transformers``' own processors, and what a row is alone."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.generation.processing import processors
from isomorph.generation.sampling import Chooser, draw
from isomorph.generation.settings import NAMES, GenerationSettings, Options

V = 11
ROWS = [[3, 1, 4, 1, 5, 3, 1], [2, 7, 1, 8, 2, 7], [9, 9, 9]]


def process(
    settings: dict[str, Any], rows: list[list[int]], scores: np.ndarray, step: int = 0, steps: int = 9
) -> np.ndarray:
    arrays = [np.array(row) for row in rows]
    scores = scores.copy()
    for processor in processors(GenerationSettings(**settings), arrays, scores.shape[1], steps):
        processor.apply(scores, step)
    return scores


@pytest.fixture
def peers():
    """``peers("RepetitionPenalty", 1.3)(rows, scores)``: the same of each row alone."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")

    def make(name: str, *arguments: Any) -> Any:
        processor = getattr(transformers.generation.logits_process, f"{name}LogitsProcessor")(*arguments)

        def apply(rows: list[list[int]], scores: np.ndarray) -> np.ndarray:
            each = [
                processor(torch.tensor([row]), torch.tensor(one[None])).numpy()[0]
                for row, one in zip(rows, scores, strict=True)
            ]
            return np.stack(each)

        return apply

    return make


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("settings", "name", "arguments"),
    [
        ({"repetition_penalty": 1.3}, "RepetitionPenalty", (1.3,)),
        ({"repetition_penalty": 0.7}, "RepetitionPenalty", (0.7,)),
        ({"no_repeat_ngram": 1}, "NoRepeatNGram", (1,)),
        ({"no_repeat_ngram": 2}, "NoRepeatNGram", (2,)),
        ({"no_repeat_ngram": 3}, "NoRepeatNGram", (3,)),
        ({"no_repeat_ngram": 9}, "NoRepeatNGram", (9,)),
        ({"banned": [[4], [3, 1, 6], [1, 8], [1, 2], [0] * 7]}, "NoBadWords", ([[4], [3, 1, 6], [1, 8], [1, 2], [0] * 7],)),
        ({"suppress": [0, 5, 500]}, "SuppressTokens", ([0, 5, 500],)),
    ],
)  # fmt: skip
def test_scores_are_the_peers(peers, dtype, settings, name, arguments):
    scores = np.random.default_rng(0).normal(size=(3, V)).astype(dtype)
    scores[0, 4], scores[1, 7] = 0, -np.inf
    np.testing.assert_array_equal(process(settings, ROWS, scores), peers(name, *arguments)(ROWS, scores))


def test_what_came_is_remembered_as_if_it_had_been_in_the_prompt(peers):
    """Ten steps of all processors with a memory: the state equals one made anew, and the peers' that have none."""
    rng = np.random.default_rng(1)
    settings = GenerationSettings(
        repetition_penalty=1.2, no_repeat_ngram=3, banned=[[1, 2], [5, 6, 7], [0, 1, 2, 3]]
    )
    chain = [
        peers("RepetitionPenalty", 1.2),
        peers("NoRepeatNGram", 3),
        peers("NoBadWords", [[1, 2], [5, 6, 7], [0, 1, 2, 3]]),
    ]
    rows = [list(row) for row in ROWS]
    states = processors(settings, [np.array(row) for row in rows], V, 99)
    for step in range(40):
        scores = rng.normal(size=(len(rows), V))
        expected = scores
        for peer in chain:
            expected = peer(rows, expected)
        found = scores.copy()
        for state in states:
            state.apply(found, step)
        np.testing.assert_array_equal(found, expected)
        new = found.argmax(-1)
        if step == 20:  # the second row has ended
            kept = np.array([True, False, True])
            for state in states:
                state.keep(kept)
            rows, new = [rows[0], rows[2]], new[kept]
        for state in states:
            state.add(new)
        for row, token in zip(rows, new.tolist(), strict=True):
            row.append(token)


def test_steps_of_a_row_count_from_its_own_first_id():
    scores = np.zeros((2, 4))
    rows = [[1], [1, 1, 1]]
    forced = {"forced": {1: 2, 3: 0}, "begin_suppress": [1]}
    first = process(forced, rows, scores, 0)  # positions 1 and 3
    assert first.tolist() == [[-np.inf, -np.inf, 0, -np.inf], [0, -np.inf, -np.inf, -np.inf]]
    second = process(forced, rows, scores, 1)  # 2, which is free, and 4, where the second row's text begins
    assert second.tolist() == [[0, 0, 0, 0], [0, -np.inf, 0, 0]]
    assert process(forced, rows, scores, 3).tolist() == [[0, -np.inf, 0, 0], [0, 0, 0, 0]]  # 4 and 6
    assert process({"begin_suppress": [1]}, rows, scores, 0).tolist() == [[0, -np.inf, 0, 0]] * 2
    assert process({"begin_suppress": [1]}, rows, scores, 1).tolist() == scores.tolist()


def test_the_end_is_kept_away_and_forced():
    scores = np.arange(8.0).reshape(2, 4)
    rows = [[1], [2]]
    asked = {"stop": [3, 77], "min_new_tokens": 2, "forced_end": [1, 2]}
    assert process(asked, rows, scores, 1, 4)[:, 3].tolist() == [-np.inf, -np.inf]
    assert process(asked, rows, scores, 2, 4).tolist() == scores.tolist()
    assert process(asked, rows, scores, 3, 4).tolist() == [[-np.inf, 0, 0, -np.inf]] * 2


def test_what_is_forced_comes_although_it_is_suppressed():
    found = process({"forced": {1: 2}, "suppress": [2]}, [[0]], np.zeros((1, 3)))
    assert found.tolist() == [[-np.inf, -np.inf, 0]]


def test_min_p_is_the_peers():
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    scores = np.random.default_rng(3).normal(size=(1, 50)) * 3
    warped = torch.tensor(scores)
    for warper in (
        transformers.TemperatureLogitsWarper(1.7),
        transformers.TopKLogitsWarper(30),
        transformers.TopPLogitsWarper(0.9),
        transformers.MinPLogitsWarper(0.1),
    ):
        warped = warper(torch.zeros((1, 1), dtype=torch.int64), warped)
    left = np.flatnonzero(warped.numpy()[0] > -np.inf)
    settings = GenerationSettings(temperature=1.7, top_k=30, top_p=0.9, min_p=0.1)
    assert (
        sorted({draw(settings, scores[0], u) for u in np.linspace(0, 1, 5000, endpoint=False)})
        == left.tolist()
    )
    assert len(left) < len(np.flatnonzero(scores > -np.inf))


def test_nothing_left_to_choose():
    chooser = Chooser(GenerationSettings(suppress=range(5)), [np.array([1])] * 2, 5, 3)
    with pytest.raises(iso.IsomorphError) as caught:
        chooser.choose(np.zeros((2, 5)), 0)
    assert str(caught.value) == (
        "E_RUNTIME: row 0: the settings forbid every id that could come next\n"
        "  allow more with suppress, begin_suppress, banned, no_repeat_ngram or min_new_tokens"
    )


def test_a_row_that_has_ended_is_not_looked_at():
    """Its stop again and again would be an n-gram twice, and its scores mean nothing any more."""
    chooser = Chooser(GenerationSettings(stop=0, no_repeat_ngram=1), [np.array([1]), np.array([2])], 3, 9)
    assert chooser.choose(np.array([[9.0, 0, 0], [0, 9.0, 0]]), 0).tolist() == [0, 1]
    assert chooser.choose(np.array([[np.nan] * 3, [9.0, 0, 0]]), 1).tolist() == [0, 0]
    assert chooser.ended


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_p": 1.5}, "min_p must be a number from 0 to 1, got 1.5"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number above 0, got 0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be a number above 0, got inf"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram must be an int from 0, got -1"),
        ({"min_new_tokens": 1.0}, "min_new_tokens must be an int from 0, got 1.0"),
        ({"max_length": 0}, "max_length must be an int from 1, got 0"),
        ({"suppress": [-1]}, "suppress must be an id or several, from 0, got [-1]"),
        ({"begin_suppress": "a"}, "begin_suppress must be an id or several, from 0, got 'a'"),
        ({"forced_end": True}, "forced_end must be an id or several, from 0, got True"),
        ({"forced": [3]}, "forced must be pairs of a position and an id, both from 0, got [3]"),
        ({"forced": {1: None}}, "forced must be pairs of a position and an id, both from 0, got {1: None}"),
        ({"forced": [(1, 2), (1, 3)]}, "forced has two ids for position 1: 2 and 3"),
        ({"banned": [3]}, "banned must be sequences of ids from 0, none empty, got [3]"),
        ({"banned": [[]]}, "banned must be sequences of ids from 0, none empty, got [[]]"),
        ({"seed": [1.5]}, "seed must be an int >= 0, got 1.5"),
        ({"seed": [(1, -2)]}, "seed must be an int >= 0, got -2"),
        ({"seed": [(1, 2, 3)]}, "a row's seed must be a number, or a pair of a number and a row, got (1, 2, 3)"),
        ({"seed": "5"}, "seed must be an int >= 0, got '5'"),
        ({"seed": 2**128}, f"seed must be below 2**128, got {2**128}"),
    ],
)  # fmt: skip
def test_settings_out_of_range(arguments, message):
    with pytest.raises(iso.IsomorphError) as caught:
        iso.GenerationSettings(**arguments)
    assert (caught.value.code, caught.value.message) == ("E_ARGUMENT", message)


def test_settings_of_any_kind_are_read_once():
    given = iso.GenerationSettings(
        suppress=np.array([3, 1, 3]), forced=np.array([[1, 7]]), banned=[(2,), np.array([1, 2])],
        stop={5}, seed=np.array([4, 9]), top_k=np.int8(3), begin_suppress=None, forced_end=np.int64(2),
    )  # fmt: skip
    assert (given.suppress, given.forced, given.banned) == ((1, 3), ((1, 7),), ((1, 2), (2,)))
    assert (given.stop, given.seed, given.begin_suppress) == ((5,), ((4, 0), (9, 0)), ())
    assert given == iso.GenerationSettings(
        suppress=[1, 3],
        forced=[(1, 7)],
        banned=[[1, 2], [2]],
        stop=5,
        seed=[(4, 0), 9],
        top_k=3,
        forced_end=2,
    )
    assert hash(given) is not None


def test_the_settings_are_listed_once():
    """What functions take by name are the settings, but for the number that they take as an argument of its own."""
    assert set(Options.__annotations__) == set(NAMES) - {"max_new_tokens"}


# -- a row's seed ------------------------------------------------------------------------------------------


def test_a_draw_is_the_first_number_of_numpys_philox():
    """Key: the seed. Counter: 0, the step, and the row in two words."""
    for seed, row, step in ((0, 0, 0), (5, 1, 3), (2**128 - 1, 2**70 + 3, 8), (2**64, 0, 1)):
        bits = np.random.Philox(key=seed, counter=[0, step, row % 2**64, row >> 64])
        u = np.random.Generator(bits).random()
        settings = GenerationSettings(temperature=1.0, seed=[(seed, row)])
        found = Chooser(settings, [np.array([1])], 10_000, 9).choose(np.zeros((1, 10_000)), step)
        assert found.tolist() == [int(u * 10_000)]


def test_a_rows_draws_are_not_those_of_its_neighbours():
    scores = np.zeros((6, 50_000))
    rows = [np.array([1])] * 6

    def drawn(seed: Any, count: int = 6) -> list[int]:
        settings = GenerationSettings(temperature=1.0, seed=seed)
        return Chooser(settings, rows[:count], 50_000, 9).choose(scores[:count], 4).tolist()

    together = drawn(5)
    assert len(set(together)) == 6  # equal prompts still differ
    assert together == [drawn([(5, i)], 1)[0] for i in range(6)] == drawn([(5, i) for i in range(6)])
    assert drawn([7, 8, (5, 1), 7, (5, 0), 9])[2:5] == [together[1], drawn(7, 1)[0], together[0]]
    assert drawn(3, 2) == drawn(3)[:2]


def test_seeds_of_another_number_of_rows():
    settings = GenerationSettings(temperature=1.0, seed=(5, 1))
    with pytest.raises(iso.IsomorphError) as caught:
        Chooser(settings, [np.array([1])], 5, 3)
    assert str(caught.value) == (
        "E_ARGUMENT: seed has 2 rows' seeds, the prompts are 1\n"
        "  a number for all rows, or one for each; a pair stands in a list, as in seed=[(5, 1)]"
    )


def test_probability_zero_is_never_drawn_at_the_end():
    """Behind the last id that has a probability nothing is reached, however near to one the draw is."""
    scores = np.array([0.0, -1.0, -np.inf, -1e9])
    settings = GenerationSettings(temperature=1.0, top_k=4)
    assert draw(settings, scores, float(np.nextafter(1, 0))) == 1


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("torch", "learned"),
        ("torch", "rope"),
        ("prepared torch", "rope"),
        ("nnx", "rope"),
        ("linen", "learned"),
    ],
)
def test_a_row_of_a_batch_is_the_row_alone(network, models, framework, name):
    """Prompts of unequal lengths, equal ones among them, that end at different steps, under every setting."""
    plan, weights = network(name)
    model = models(plan, weights, framework)
    prompts = [[1, 2, 6], [3, 4], [3, 4], [5, 9, 2, 6, 5, 9, 2]]
    asked: dict[str, Any] = {
        "temperature": 1.5, "top_k": 15, "top_p": 0.95, "min_p": 0.01, "stop": [2, 5, 8], "repetition_penalty": 1.3,
        "no_repeat_ngram": 2, "banned": [[7], [6, 1]], "suppress": [20], "begin_suppress": [4, 5],
        "forced": {3: 10, 8: 11}, "min_new_tokens": 2,
    }  # fmt: skip
    whole = iso.generate(model, prompts, 12, seed=5, **asked)
    lengths = set()
    for row, (prompt, ids) in enumerate(zip(prompts, whole, strict=True)):
        alone = iso.generate(model, prompt, 12, seed=[(5, row)], **asked)
        new = alone[len(prompt) :].tolist()
        lengths.add(len(new))
        assert ids[7 : 7 + len(new)].tolist() == new
        assert (ids[7 + len(new) :] == new[-1]).all()
    assert len(lengths) > 1
    assert whole[1].tolist() != whole[2].tolist()


def test_every_framework_gives_the_same(network, models):
    plan, weights = network("window")
    asked: dict[str, Any] = {
        "temperature": 1.2, "seed": [3, (4, 1)], "repetition_penalty": 1.4, "no_repeat_ngram": 2, "min_p": 0.02,
        "suppress": [3], "forced": {4: 1},
    }  # fmt: skip
    each = [iso.generate(model, [[3, 1, 4], [1, 5]], 10, **asked) for model in models(plan, weights).values()]
    np.testing.assert_array_equal(each[0], each[1])
    np.testing.assert_array_equal(each[0], each[2])
    assert each[0][0, 4] == each[0][1, 5] == 1  # position 4 of each row, one with a filling of one
    assert not (each[0][:, 3:] == 3).any()


# -- settings of a call ------------------------------------------------------------------------------------


def test_settings_and_what_is_said_besides(network, models):
    plan, weights = network("rope")
    model = models(plan, weights, "torch")
    settings = iso.GenerationSettings(temperature=1.0, seed=3, max_new_tokens=6, stop=2)
    expected = iso.generate(model, [3, 1, 4], 6, temperature=1.0, seed=3, stop=2)
    assert iso.generate(model, [3, 1, 4], settings=settings).tolist() == expected.tolist()
    assert len(iso.generate(model, [3, 1, 4], 4, settings=settings, stop=None)) == 7
    greedy = iso.generate(model, [3, 1, 4], 5, settings=settings, temperature=0, stop=())
    assert greedy.tolist() == iso.generate(model, [3, 1, 4], 5).tolist()
    length = iso.GenerationSettings(max_length=9)
    assert iso.generate(model, [[3, 1, 4], [2]], settings=length).shape == (2, 9)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "E_ARGUMENT: nothing says how many ids to add\n  give max_new_tokens, as in max_new_tokens=100"),
        ({"max_length": 3}, "E_ARGUMENT: max_length is 3, and the longest prompt has 3 ids already\n"
         "  give max_new_tokens, which does not count the prompt"),
        ({"settings": {"top_k": 3}}, "E_ARGUMENT: settings must be GenerationSettings, got 'dict'\n"
         "  settings=isomorph.generation_settings(path), or the settings by name, as in top_k=40"),
        ({"topk": 3}, "E_ARGUMENT: there is no setting 'topk' of generation\n  did you mean top_k or stop or top_p?"),
        ({"max_new_tokens": 1, "forced": {3: 23}},
         "E_ARGUMENT: forced holds id 23, the network scores 23\n  ids run from 0 to 22"),
        ({"max_new_tokens": 1, "seed": [1, 2]},
         "E_ARGUMENT: seed has 2 rows' seeds, the prompts are 1\n"
         "  a number for all rows, or one for each; a pair stands in a list, as in seed=[(5, 1)]"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_settings_of_a_call(network, models, arguments, error):
    plan, weights = network("rope")
    model = models(plan, weights, "torch")
    for function in (iso.generate, iso.stream):
        with pytest.raises(iso.IsomorphError) as caught:
            function(model, [3, 1, 4], **arguments)
        assert str(caught.value) == error


def test_what_is_not_followed_is_told_once(network, models):
    plan, weights = network("rope")
    model = models(plan, weights, "torch")
    settings = iso.GenerationSettings(max_new_tokens=1, unfollowed=("num_beams 4", "test 1"))
    with pytest.warns(UserWarning, match="not followed") as told:
        iso.generate(model, [1], settings=settings)
    assert [str(one.message) for one in told] == [
        "the model asks for settings of generation that are not followed: num_beams 4, test 1"
    ]
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iso.generate(model, [1], settings=settings)
        list(iso.stream(model, [1], settings=settings))


# -- two inputs of ids -------------------------------------------------------------------------------------

TRANSLATOR = """
src = input("B", "S", dtype="int64")
tgt = input("B", "T", dtype="int64")
h = embedding(src, 19, 8)
memory = transformer_block(h, 2)
h = embedding(tgt, 23, 8)
a = attention(h, 2, causal=True)
h = add(h, a)
c = cross_attention(h, memory, 2)
h = add(h, c)
linear(h, 23)
"""


@pytest.mark.parametrize("framework", ["torch", "prepared torch", "nnx"])
def test_the_ids_are_the_input_that_was_not_given(models, framework):
    from isomorph.testing import order_one_weights

    plan = iso.resolve(TRANSLATOR)
    weights = order_one_weights(plan, 2)
    source = np.array([[18, 3, 1], [5, 5, 2]])
    reference = iso.reference.build(plan, weights)
    ids = np.array([[1], [2]])
    for _ in range(4):
        ids = np.concatenate((ids, reference(source, ids)[:, -1].argmax(-1)[:, None]), 1)
    model = models(plan, weights, framework)
    np.testing.assert_array_equal(iso.generate(model, ids[:, :1], 4, inputs={"src": source}), ids)
    alone = iso.generate(model, [1], 4, inputs={"src": source[:1]})
    np.testing.assert_array_equal(alone, ids[0])


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        (None, "E_ARGUMENT: the network cannot generate text: it has several inputs that could be ids: src, tgt\n"
         '  give all but one by name, as in inputs={"src": ...}'),
        ({"x": 1}, "E_ARGUMENT: the network cannot generate text: it has several inputs that could be ids: src, tgt\n"
         '  give all but one by name, as in inputs={"src": ...}'),
        ({"src": 1, "tgt": 1},
         "E_ARGUMENT: the network cannot generate text: all its inputs that could be ids are given by name: src, tgt\n"
         "  leave out the one whose ids are continued"),
        ({"src": [[1]], "x": 1}, "E_ARGUMENT: the network's further inputs are src, got src, x\n"
         '  give them by name, as in inputs={"features": x}'),
    ],
)  # fmt: skip
def test_which_input_is_meant(models, inputs, error):
    plan = iso.resolve(TRANSLATOR)
    model = models(plan, iso.initial_weights(plan), "torch")
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(model, [1], 4, inputs=inputs)
    assert str(caught.value) == error


def test_the_encoders_ids_cannot_be_continued(models):
    """Given the decoder's, the encoder's are left, in which positions see later ones."""
    plan = iso.resolve(TRANSLATOR)
    model = models(plan, iso.initial_weights(plan), "torch")
    with pytest.raises(iso.IsomorphError, match=r"the network cannot generate text: "):
        iso.generate(model, [1], 4, inputs={"tgt": np.array([[1]])})


def test_ids_among_three(models):
    """Segments and a source beside the ids: two of three are given."""
    plan = iso.resolve(
        'a = input("B", "S", dtype="int64")\nids = input("B", "T", dtype="int64")\nb = input("B", "R", dtype="int64")\n'
        "m = concat(embedding(a, 5, 4), embedding(b, 6, 4), axis=1)\nh = embedding(ids, 7, 4)\n"
        "cross_attention(h, m, 2)\nlinear(7)"
    )
    model = models(plan, iso.initial_weights(plan), "torch")
    given = {"b": np.array([[5, 0]]), "a": np.array([[4]])}
    assert iso.generate(model, [6], 2, inputs=given).shape == (3,)
    with pytest.raises(iso.IsomorphError, match="several inputs that could be ids: ids, b"):
        iso.generate(model, [6], 2, inputs={"a": given["a"]})
