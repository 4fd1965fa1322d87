"""The NNX trainer beside the PyTorch one, how often it compiles, and that it leaves JAX's settings alone."""

import numpy as np
import pytest

import isomorph as iso
from isomorph.backends.available import load_trainer
from isomorph.backends.trainer import Batch
from isomorph.backends.training_config import TrainingConfig
from isomorph.errors import IsomorphError
from isomorph.training.data import Order
from isomorph.training.schedule import learning_rate_at
from isomorph.training.sources import open_dataset

jax = pytest.importorskip("jax")
pytest.importorskip("optax")

WIDTH, CLASSES = 4, 3
LINEAR = f'input("B", {WIDTH})\nlinear({CLASSES}, name="head")'


def trainer(text: str = LINEAR, dtype: str = "float32", backend: str = "nnx", seed: int = 0, **settings):
    plan = iso.resolve(text, dtype=dtype)
    config = TrainingConfig(data="test", backend=backend, **settings)
    return load_trainer(backend)(plan, iso.initial_weights(plan, seed), config)


def vectors(count: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch({"x": rng.standard_normal((count, WIDTH))}, rng.integers(0, CLASSES, count))


@pytest.fixture
def compiled():
    """The functions that were compiled, in order, as JAX tells it."""
    found = []

    def note(event: str, seconds: float, **details) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(details.get("fun_name", ""))

    jax.monitoring.register_event_duration_secs_listener(note)
    yield found
    jax.monitoring.unregister_event_duration_listener(note)


def test_a_batch_shape_is_compiled_once(compiled):
    subject = trainer()
    compiled.clear()
    for step in range(20):
        subject.step(step, [vectors(8, step)], 0.01 * (step + 1))
    assert len(compiled) == 1
    subject.step(20, [vectors(5)], 0.1)
    assert len(compiled) == 2
    subject.step(21, [vectors(8)], 0.1)
    subject.load_state(subject.state(), 22)
    subject.step(22, [vectors(8)], 0.1)
    assert len(compiled) == 2


def test_weights_are_arguments_of_what_is_compiled(compiled):
    first, second = trainer(seed=0), trainer(seed=1)
    batch = vectors(8)
    expected = second.evaluate(batch)
    assert first.evaluate(batch) != expected
    first.step(0, [batch], 0.1)
    count = len(compiled)
    first.load_state(second.state(), 0)
    assert first.evaluate(batch) == expected
    assert first.step(0, [batch], 0.1).totals.loss == pytest.approx(expected.loss, rel=1e-6)
    assert len(compiled) == count


def test_a_short_last_batch_is_filled_up_and_counted_rightly(compiled):
    # The sums over 8, 8 and 3 examples are those over all 19, worked out in NumPy.
    subject = trainer(dtype="float64", batch_size=8)
    compiled.clear()
    whole = vectors(19)
    cuts = [(0, 8), (8, 16), (16, 19)]
    totals = [subject.evaluate(Batch({"x": whole.inputs["x"][a:b]}, whole.targets[a:b])) for a, b in cuts]
    assert [t.count for t in totals] == [8, 8, 3]
    assert len(compiled) == 1
    x, weights = whole.inputs["x"], subject.weights()
    scores = x @ weights["head.weight"].T + weights["head.bias"]
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(19), whole.targets]
    assert sum(t.loss for t in totals) == pytest.approx(losses.sum(), rel=1e-12)
    assert sum(t.correct for t in totals) == (scores.argmax(1) == whole.targets).sum()


def test_parts_draw_different_dropout():
    # Two equal parts: with one mask for both, their mean loss would be that of the part alone.
    text = LINEAR.replace("linear", "dropout(0.5)\nlinear")
    half = vectors(6)
    twice = Batch({"x": np.concatenate([half.inputs["x"]] * 2)}, np.concatenate([half.targets] * 2))
    subject = trainer(text, accumulate=2)
    state = subject.state()
    alone = subject.step(0, [half], 0.1).totals.mean_loss
    subject.load_state(state, 0)
    assert abs(subject.step(0, twice.parts(2), 0.1).totals.mean_loss - alone) > 1e-3


def test_every_dropout_has_its_own_draws():
    # dropout(0.5) twice keeps a quarter of the elements when the draws are independent, half when they are one.
    text = f'input("B", {WIDTH})\nlinear({WIDTH}, name="a")\ndropout(0.5)\ndropout(0.5)\nlinear({CLASSES}, name="b")'
    plan = iso.resolve(text, dtype="float64")
    weights = {path: np.zeros_like(array) for path, array in iso.initial_weights(plan).items()}
    weights["a.bias"][:] = 1.0
    weights["b.weight"][1] = 1.0
    subject = load_trainer("nnx")(plan, weights, TrainingConfig(data="test"))
    # The score of class 1 is the sum of WIDTH numbers, each 4 with probability 1/4, and the loss for class 1
    # is log(2 + exp(s)) - s, which is log 3 where all are dropped: that has probability (3/4)^4 = 0.316 if
    # draws are independent, and (1/2)^4 = 0.0625 if they are one.
    count = 4000
    batch = Batch({"x": np.zeros((count, WIDTH))}, np.ones(count, dtype=np.int64))
    loss = subject.step(0, [batch], 0.1).totals.mean_loss
    binomial = [1, 4, 6, 4, 1]
    expected = sum(
        binomial[k] * 0.25**k * 0.75 ** (4 - k) * (np.log(2 + np.exp(4.0 * k)) - 4.0 * k) for k in range(5)
    )
    assert loss == pytest.approx(expected, rel=0.1)


def test_leaves_jaxs_settings_alone_and_does_not_depend_on_them():
    before = jax.config.jax_enable_x64
    wide = trainer(dtype="float64")
    wide.step(0, [vectors(5)], 0.1)
    assert {array.dtype.name for array in wide.state().values()} == {"float64"}
    assert jax.config.jax_enable_x64 == before
    states = []
    for switch in (False, True):
        with jax.enable_x64(switch):
            subject = trainer(LINEAR.replace("linear", "dropout(0.5)\nlinear"))
            subject.step(0, [vectors(5)], 0.1)
            subject.step(1, [vectors(5)], 0.1)
            states.append({name: array.tobytes() for name, array in subject.state().items()})
    assert states[0] == states[1]


def test_one_thread_or_jaxs_choice():
    assert trainer(threads=1).step(0, [vectors(5)], 0.1).totals.count == 5
    with pytest.raises(IsomorphError) as error:
        trainer(threads=2)
    assert str(error.value) == (
        "E_BACKEND: nnx computes with one thread or with JAX's own choice, got threads=2\n"
        "  --threads 1, or --threads 0"
    )


@pytest.mark.parametrize("device", ["cuda:99", "cpu:99", "cpu:x", "abacus"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(IsomorphError) as error:
        trainer(device=device)
    assert error.value.code == "E_BACKEND"
    assert error.value.message.startswith(f"jax cannot train on the device '{device}': ")
    assert error.value.hints == ("--device cpu",)


def test_bf16_and_float64_contradict_each_other():
    with pytest.raises(IsomorphError) as error:
        trainer(dtype="float64", precision="bf16")
    assert str(error.value) == (
        "E_DTYPE: the precision bf16 computes in bfloat16, but the definition is resolved with float64\n"
        "  resolve the definition with float32, or leave the precision at float32"
    )


# -- beside torch ------------------------------------------------------------------------------


def digits_losses(backend: str, dtype: str, steps: int, run: int) -> np.ndarray:
    """Losses of the first ``steps`` steps of a run of ``run`` on the digits, at the demo's settings."""
    plan = iso.resolve_file("examples/digits_vit.net", dtype=dtype)
    config = TrainingConfig(data="digits", steps=run, backend=backend)
    dataset = open_dataset("digits", plan)
    order = Order(dataset.count("train"), config.seed)
    subject = load_trainer(backend)(plan, iso.initial_weights(plan, config.seed), config)
    losses = []
    for step in range(steps):
        rate = learning_rate_at(
            step, steps=run, peak=config.learning_rate, warmup=config.warmup, final=config.final_learning_rate
        )
        batch = dataset.take("train", *order.places(step * config.batch_size, config.batch_size))
        losses.append(subject.step(step, [batch], rate).totals.mean_loss)
    return np.array(losses)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "steps", "bound"), [("float32", 50, 1e-4), ("float64", 200, 1e-9)])
def test_torch_and_nnx_take_the_same_steps_on_the_digits(dtype, steps, bound):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    one, other = (digits_losses(backend, dtype, steps, run=1200) for backend in ("torch", "nnx"))
    assert one[-1] < 0.5 * one[0]  # it learns
    apart = np.abs(other - one) / one
    assert apart.max() < bound
