"""The steps that every trainer takes, against steps worked out in NumPy."""

import numpy as np
import pytest

import isomorph as iso
from isomorph.backends.available import load_trainer
from isomorph.backends.trainer import IGNORED, Batch, is_decayed, trained_parameters
from isomorph.backends.training_config import TrainingConfig
from isomorph.errors import IsomorphError

REQUIRED = {"torch": "torch", "nnx": "optax"}
CLASSES, WIDTH = 3, 4
LINEAR = f'input("B", {WIDTH})\nlinear({CLASSES}, name="head")'
TOKENS = 'ids = input("B", "T", dtype="int64")\nembedding(9, 8, name="table")\n{}\nlinear(9, name="head")'


@pytest.fixture(params=REQUIRED)
def trainer(request):
    """``trainer(plan, weights, **settings)`` for each backend that trains."""
    pytest.importorskip(REQUIRED[request.param])

    def make(plan, weights=None, **settings):
        config = TrainingConfig(data="test", backend=request.param, **settings)
        return load_trainer(request.param)(plan, weights or iso.initial_weights(plan, 1), config)

    return make


def vectors(count: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch({"x": rng.standard_normal((count, WIDTH))}, rng.integers(0, CLASSES, count))


def tokens(rows: int, length: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch({"ids": rng.integers(0, 9, (rows, length))}, rng.integers(0, 9, (rows, length)))


def softmax_gradient(weight, bias, batch):
    """Loss and gradients of softmax regression: the derivative of -log p[y] by the scores is p - onehot(y)."""
    x, y = batch.inputs["x"], batch.targets
    scores = x @ weight.T + bias  # (B, classes)
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    slope = (p - np.eye(CLASSES)[y]) / len(y)
    return loss, {"head.weight": slope.T @ x, "head.bias": slope.sum(0)}


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_takes_the_documented_steps(trainer, clip):
    # Every hyperparameter of AdamW is what the settings say, and decay is decoupled.
    plan = iso.resolve(LINEAR, dtype="float64")
    settings = {"weight_decay": 0.3, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, "clip": clip}
    subject = trainer(plan, **settings)
    p = {path: array.copy() for path, array in iso.initial_weights(plan, 1).items()}
    m = {path: np.zeros_like(array) for path, array in p.items()}
    v = {path: np.zeros_like(array) for path, array in p.items()}
    for step, rate in enumerate((0.1, 0.2, 0.05)):
        batch = vectors(6, seed=step)
        loss, g = softmax_gradient(p["head.weight"], p["head.bias"], batch)
        norm = np.sqrt(sum((array**2).sum() for array in g.values()))
        result = subject.step(step, [batch], rate)
        assert result.totals.mean_loss == pytest.approx(loss, rel=1e-12)
        assert result.gradient_norm == pytest.approx(norm, rel=1e-12)
        for path in p:
            gradient = g[path] * (min(1.0, clip / norm) if clip else 1.0)
            m[path] = 0.8 * m[path] + 0.2 * gradient
            v[path] = 0.9 * v[path] + 0.1 * gradient**2
            if path == "head.weight":  # rank 2
                p[path] -= rate * 0.3 * p[path]
            unbiased_m, unbiased_v = m[path] / (1 - 0.8 ** (step + 1)), v[path] / (1 - 0.9 ** (step + 1))
            p[path] -= rate * unbiased_m / (np.sqrt(unbiased_v) + 1e-3)
    for path, array in subject.weights().items():
        np.testing.assert_allclose(array, p[path], rtol=1e-12, atol=1e-14)


def test_counts_hits(trainer):
    plan = iso.resolve(LINEAR, dtype="float64")
    batch = vectors(50)
    weights = iso.initial_weights(plan, 1)
    best = (batch.inputs["x"] @ weights["head.weight"].T + weights["head.bias"]).argmax(1)
    totals = trainer(plan).evaluate(batch)
    assert (totals.correct, totals.count) == (int((best == batch.targets).sum()), 50)


def test_parts_of_unequal_length_give_the_mean_over_tokens(trainer):
    # Rows with 11 and with 101 targets: the loss is (sum of both) / 112, not the mean of two means.
    plan = iso.resolve(TOKENS.format("tanh()"), dtype="float64")
    batch = tokens(2, 101)
    batch.targets[0, 11:] = IGNORED
    whole, cut = trainer(plan), trainer(plan)
    separate = [whole.evaluate(part) for part in batch.parts(2)]
    assert [totals.count for totals in separate] == [11, 101]
    expected = (separate[0].loss + separate[1].loss) / 112
    for subject, parts in ((whole, [batch]), (cut, batch.parts(2))):
        result = subject.step(0, parts, 0.1)
        assert result.totals.count == 112
        assert result.totals.mean_loss == pytest.approx(expected, rel=1e-12)
    for path, array in whole.weights().items():
        np.testing.assert_allclose(cut.weights()[path], array, rtol=1e-9, atol=1e-12)


def test_a_batch_without_targets_has_no_loss_and_no_gradient(trainer):
    plan = iso.resolve(TOKENS.format("tanh()"))
    subject = trainer(plan, weight_decay=0.0)
    batch = tokens(2, 5)
    batch.targets[:] = IGNORED
    before = subject.weights()
    result = subject.step(0, [batch], 0.1)
    assert (result.totals.mean_loss, result.totals.count, result.gradient_norm) == (0.0, 0, 0.0)
    for path, array in subject.weights().items():
        assert np.array_equal(array, before[path])
    assert subject.evaluate(batch).mean_loss == 0.0


def test_frozen_parameters_are_neither_stepped_nor_decayed(trainer):
    plan = iso.resolve(TOKENS.format('layer_norm(name="norm", trainable={"bias": False})\n').replace(
        'embedding(9, 8, name="table")', 'embedding(9, 8, name="table", trainable=False)'
    ))  # fmt: skip
    subject = trainer(plan, weight_decay=0.5)
    before = subject.weights()
    subject.step(0, [tokens(2, 5)], 0.1)
    after = subject.weights()
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed == {"norm.weight", "head.weight", "head.bias"}
    assert not [name for name in subject.state() if "moment/table" in name or "moment/norm.bias" in name]


def test_a_tied_parameter_is_stepped_once(trainer):
    text = TOKENS.format("tanh()").replace(
        'linear(9, name="head")', 'linear(9, bias=False, name="head", tie={"weight": "table.weight"})'
    )
    plan = iso.resolve(text, dtype="float64")
    subject = trainer(plan, weight_decay=0.5, clip=0.0)
    assert sorted(subject.state()) == [
        "first_moment/table.weight", "second_moment/table.weight", "weights/table.weight",
    ]  # fmt: skip
    before = subject.weights()["table.weight"]
    subject.step(0, [tokens(4, 7)], 0.01)
    after = subject.weights()["table.weight"]
    # Adam's first step moves every element with a gradient by the rate; decay takes off 0.01 * 0.5 once.
    moved = np.abs(after - before * (1 - 0.005))
    assert moved.max() == pytest.approx(0.01, rel=1e-3)


def test_decay_acts_on_matrices_tables_and_kernels_alone():
    plan = iso.resolve(
        'input("B", 1, 4, 4)\npatch_embed(6, 2, name="patches")\npos_embed(4, name="places")\n'
        'transformer_block(2, layer_scale=True, name="block")'
    )
    undecayed = [p.path for p in trained_parameters(plan) if not is_decayed(p)]
    assert undecayed == [
        "patches.proj.bias", "block.gamma1", "block.gamma2", "block.norm1.weight", "block.norm1.bias",
        "block.attn.q_proj.bias", "block.attn.k_proj.bias", "block.attn.v_proj.bias",
        "block.attn.o_proj.bias", "block.norm2.weight", "block.norm2.bias", "block.ffn.up.bias",
        "block.ffn.down.bias",
    ]  # fmt: skip


def test_nothing_to_train_is_an_error(trainer):
    with pytest.raises(IsomorphError) as error:
        trainer(iso.resolve('input("B", 3)\nrelu()'))
    assert str(error.value) == (
        "E_ARGUMENT: there is nothing to train: the network has no parameters, or all are frozen\n"
        "  trainable=False freezes an operator's parameters"
    )


@pytest.mark.parametrize(
    ("dtype", "middle"),
    [
        ("float32", "transformer_block(2, dropout=0.5)"),
        ("float64", "tanh()\ndropout(0.5)"),
        ("bfloat16", "tanh()\ndropout(0.5)"),
    ],
)
def test_three_steps_and_three_more_equal_six(trainer, dtype, middle):
    plan = iso.resolve(TOKENS.format(middle), dtype=dtype)
    straight, resumed = trainer(plan), trainer(plan, iso.initial_weights(plan, 2))
    rates = [0.01 * (step + 1) for step in range(6)]
    batches = [tokens(4, 7, seed=step) for step in range(6)]

    def steps(subject, first: int, end: int) -> list[float]:
        return [subject.step(n, [batches[n]], rates[n]).totals.loss for n in range(first, end)]

    steps(straight, 0, 3)
    saved = straight.state()
    copied = {name: array.tobytes() for name, array in saved.items()}
    losses = steps(straight, 3, 6)
    assert {name: array.tobytes() for name, array in saved.items()} == copied  # no shared memory
    resumed.load_state(saved, 3)
    assert steps(resumed, 3, 6) == losses
    expected, got = straight.state(), resumed.state()
    assert expected.keys() == got.keys()
    for name, array in expected.items():
        assert array.tobytes() == got[name].tobytes(), name


def test_dropout_draws_by_seed_and_step(trainer):
    plan = iso.resolve(TOKENS.format("dropout(0.5)"))
    batch = tokens(4, 7)
    first, other = trainer(plan, seed=0), trainer(plan, seed=1)
    begin = first.state()

    def loss(subject, step: int) -> float:
        subject.load_state(begin, step)
        return subject.step(step, [batch], 0.1).totals.loss

    assert loss(first, 0) == loss(first, 0)
    assert len({loss(first, 0), loss(first, 1), loss(other, 0)}) == 3


def test_evaluation_drops_nothing_and_changes_nothing(trainer):
    text = TOKENS.format("dropout(0.5)")
    plan, plain = iso.resolve(text), iso.resolve(text.replace("dropout(0.5)", "identity()"))
    subject, batch = trainer(plan), tokens(4, 7)
    before = subject.state()
    assert subject.evaluate(batch) == trainer(plain).evaluate(batch)
    after = subject.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_bf16_keeps_parameters_and_moments_in_float32(trainer):
    plan = iso.resolve(TOKENS.format("layer_norm()\nlinear(8)\ngelu()"))
    full, half = trainer(plan), trainer(plan, precision="bf16")
    batch = tokens(4, 7)
    exact, rounded = full.step(0, [batch], 0.01), half.step(0, [batch], 0.01)
    assert {array.dtype.name for array in half.state().values()} == {"float32"}
    assert exact.totals.loss != rounded.totals.loss
    assert rounded.totals.loss == pytest.approx(exact.totals.loss, rel=2**-7)  # bfloat16 has 8 digits


def test_a_bfloat16_plan_trains_in_float32_and_yields_bfloat16(trainer):
    # A relative change of 1e-4 is far below bfloat16's 2**-8 and must add up all the same.
    plan = iso.resolve(LINEAR, dtype="bfloat16")
    subject = trainer(plan, weight_decay=0.0)
    batch = Batch({"x": vectors(6).inputs["x"].astype(np.float32)}, vectors(6).targets)
    before = subject.state()["weights/head.weight"]
    for step in range(3):
        subject.step(step, [batch], 1e-5)
    moved = np.abs(subject.state()["weights/head.weight"] - before)
    assert 2.5e-5 < moved.max() < 3.5e-5  # three steps of about the rate each
    assert {array.dtype.name for array in subject.weights().values()} == {"bfloat16"}


def test_float16_is_refused(trainer):
    with pytest.raises(IsomorphError) as error:
        trainer(iso.resolve(LINEAR, dtype="float16"))
    assert str(error.value) == (
        "E_DTYPE: training in float16 needs a scaled loss, which is not offered\n"
        "  resolve the definition with bfloat16 or float32"
    )


def test_another_networks_state_is_refused(trainer):
    plan = iso.resolve(LINEAR)
    state = trainer(iso.resolve(LINEAR.replace("linear(3", "linear(2"))).state()
    with pytest.raises(IsomorphError) as error:
        trainer(plan).load_state(state, 1)
    assert error.value.code == "E_CHECKPOINT"
    assert "weights/head.bias: expected (3,), got (2,)" in error.value.hints
    assert len(error.value.hints) == 6
