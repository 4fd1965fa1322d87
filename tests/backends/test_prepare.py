"""Prepared models compute what the reference computes, for every operator and every example network."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.agreement.bounds import numeric_bound
from isomorph.display.page import resolve_example
from isomorph.operators import catalogue
from isomorph.testing import order_one_weights, sample_inputs, sample_sizes

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

from isomorph.backends.jax import engine as jax_engine  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "mlp": [],
    "digits_vit": [("range(4)", "range(1)")],
    "byte_gpt": [("128", "16"), ("range(4)", "range(2)")],
    "gpt2": [("50257", "97"), ("768", "16"), ("range(12)", "range(2)"), ("        12,\n", "        4,\n")],
    "vit_b16": [("768", "16"), ("224, 224", "8, 8"), ("patch_size=16", "patch_size=4"), ("197", "5"),
                ("range(12)", "range(2)"), ("block(12", "block(4"), ("1000", "7")],
    "dinov2": [("384", "16"), ("518, 518", "8, 8"), ("patch_size=14", "patch_size=4"), ("1370", "5"),
               ("1369", "4"), ("range(12)", "range(2)"), ("block(6", "block(4")],
    "bert": [("30522", "97"), ("768", "16"), ("range(12)", "range(2)"), ("block(12", "block(4")],
    "llama": [("128256", "97"), ("2048", "32"), ("        32,", "        4,"), ("kv_heads=8", "kv_heads=2"),
              ("8192", "40"), ("range(16)", "range(2)")],
}  # fmt: skip
BLOCK = "linear(16)\ntransformer_block(2, layer_scale=True, mlp_ratio=2)\nlinear(6)"


def example(name: str, **arguments: Any) -> iso.Plan:
    """An example network, made small."""
    text = (EXAMPLES / f"{name}.net").read_text()
    for old, new in SMALL[name]:
        assert old in text, old
        text = text.replace(old, new)
    return iso.resolve(text, **arguments)


@pytest.fixture
def quick(monkeypatch):
    """JAX's compiler without its costly passes: these functions run once."""
    from isomorph.backends.jax import engine, harness, writer

    engine.functions_of.cache_clear()
    monkeypatch.setattr(writer, "compiler_options", harness._options)
    yield
    engine.functions_of.cache_clear()


def model_of(framework: str, plan: iso.Plan, weights: Any) -> Any:
    if framework == "torch":
        return iso.torch.build(plan, weights)  # in training mode: dropout would act
    if framework == "nnx":
        return iso.nnx.build(plan, weights)
    return iso.linen.build(plan).bind(iso.linen.variables(plan, weights))


def given(framework: str, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    if framework == "torch":
        return {name: torch.from_numpy(array.copy()) for name, array in inputs.items()}
    return {name: jnp.asarray(array) for name, array in inputs.items()}


def truth(expected: Any) -> np.ndarray:
    """The reference's only output."""
    (array,) = expected.outputs.values()
    return array


def check(
    framework: str, plan: iso.Plan, sizes: list[dict[str, int]], mode: str | None = None, seed: int = 0
) -> None:
    """One prepared model at one size after the other, within the bound of what it computes in."""
    weights = order_one_weights(plan, seed)
    engine = iso.prepare(model_of(framework, plan, weights), mode)
    for at in sizes:
        inputs = sample_inputs(plan, at, seed)
        expected = numeric_bound(plan, weights, inputs, dtype="bfloat16" if mode else plan.dtype)
        found = engine(**given(framework, inputs))
        if len(expected.outputs) == 1:
            found = dict.fromkeys(expected.outputs, found)
        assert list(found) == list(expected.outputs)
        for name, array in expected.outputs.items():
            got = np.asarray(found[name])
            assert got.shape == array.shape and got.dtype == plan.dtype
            assert np.abs(got - array).max(initial=0.0) <= expected.total, (name, at)


OPERATORS = list(catalogue.all_operators())


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_in_torch(name):
    for one in catalogue.all_operators()[name].examples:
        plan = resolve_example(one)
        check("torch", plan, sample_sizes(plan))  # one engine: B = 2, then 1, then 0
        for mode in ("bfloat16", "int8"):
            check("torch", plan, sample_sizes(plan)[:1], mode)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_in_nnx(name, quick):
    for one in catalogue.all_operators()[name].examples[:2]:
        plan = resolve_example(one)
        check("nnx", plan, sample_sizes(plan)[:1])


@pytest.mark.parametrize("name", ["linear", "attention", "transformer_block", "embedding", "rms_norm"])
def test_operators_in_linen(name, quick):
    plan = resolve_example(catalogue.all_operators()[name].examples[0])
    check("linen", plan, sample_sizes(plan)[:1])


@pytest.mark.parametrize("name", SMALL)
def test_example_networks_in_torch(name):
    plan = example(name)
    check("torch", plan, sample_sizes(plan))
    check("torch", example(name, dtype="float64"), sample_sizes(plan)[:1])
    for mode in ("bfloat16", "int8"):
        check("torch", plan, sample_sizes(plan)[:1], mode)


@pytest.mark.parametrize("name", SMALL)
def test_example_networks_in_nnx(name, quick):
    plan = example(name)
    check("nnx", plan, sample_sizes(plan)[:1])
    if name in ("byte_gpt", "bert"):
        check("nnx", plan, sample_sizes(plan)[:1], "bfloat16")


@pytest.mark.parametrize("name", ["gpt2", "dinov2", "bert"])
def test_example_networks_in_linen(name, quick):
    plan = example(name)
    check("linen", plan, sample_sizes(plan)[:1])


def test_every_example_network_is_here():
    assert sorted(SMALL) == sorted(path.stem for path in EXAMPLES.glob("*.net"))


WIDE = "transformer_block(4, mlp_ratio=2, causal=True)\nlinear(40)"


@pytest.mark.parametrize("mode", ["float32", "bfloat16", "int8"])
def test_sizes_that_the_fast_kernels_take(mode):
    """Large enough for oneDNN's products, and multiples of 32 for those of eight bits."""
    plan = iso.resolve(WIDE, input=("B", "T", 64))
    check("torch", plan, [{"B": 2, "T": 150}, {"B": 1, "T": 1}], None if mode == "float32" else mode)


def test_float64(quick):
    plan = iso.resolve(BLOCK, input=("B", "T", 8), dtype="float64")
    check("torch", plan, sample_sizes(plan))
    with jax.enable_x64(True):
        check("nnx", plan, sample_sizes(plan)[:1])


def test_bfloat16_plans(quick):
    plan = iso.resolve(BLOCK, input=("B", "T", 8), dtype="bfloat16")
    weights = order_one_weights(plan)
    inputs = sample_inputs(plan, {"B": 2, "T": 3})
    expected = numeric_bound(plan, weights, inputs, dtype="bfloat16")
    found = iso.prepare(iso.torch.build(plan, weights))(torch.from_numpy(inputs["x"]).bfloat16())
    assert found.dtype == torch.bfloat16
    assert np.abs(found.float().numpy() - truth(expected)).max() <= expected.total
    other = iso.prepare(iso.nnx.build(plan, weights))(jnp.asarray(inputs["x"], "bfloat16"))
    assert other.dtype == jnp.bfloat16
    assert np.abs(np.asarray(other, np.float64) - truth(expected)).max() <= expected.total


# -- one engine, many calls -----------------------------------------------------------------------------


def both(text: str, **arguments: Any) -> tuple[iso.Plan, Any, Any]:
    """A plan, its model in evaluation mode, and the model prepared."""
    plan = iso.resolve(text, **arguments)
    model = iso.torch.build(plan, order_one_weights(plan)).eval()
    return plan, model, iso.prepare(model)


def close(found: Any, expected: Any) -> None:
    """Equal but for rounding, NaN where there is NaN."""
    expected = expected.detach()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5, equal_nan=True)


def test_batch_and_length_change_from_call_to_call():
    _, model, engine = both(BLOCK, input=("B", "T", 8))
    for B, T in ((2, 3), (1, 1), (0, 4), (3, 0), (5, 7), (2, 3), (7, 2)):
        x = torch.randn(B, T, 8)
        close(engine(x), model(x))


def test_more_sizes_than_are_kept(monkeypatch):
    from isomorph.backends.torch import engine as module

    monkeypatch.setattr(module, "MOST_PROGRAMS", 3)
    _, model, engine = both(BLOCK, input=("B", "T", 8))
    for T in (1, 2, 3, 4, 5, 1, 5):
        x = torch.randn(2, T, 8)
        close(engine(x), model(x))
    assert len(engine._state.programs) == 3


def test_inputs_that_are_not_contiguous():
    _, model, engine = both(BLOCK, input=("B", "T", 8))
    wide = torch.randn(8, 4, 10)
    for x in (wide[:, :, ::2].permute(1, 2, 0), wide.permute(1, 2, 0)[:, 3:], torch.randn(1, 5, 8).expand(3, 5, 8),
              torch.randn(3, 1, 8).expand(3, 4, 8), torch.randn(1).expand(2, 3, 8)):  # fmt: skip
        assert not x.is_contiguous()
        close(engine(x), model(x))


@pytest.mark.parametrize("mode", [None, "bfloat16", "int8"])
def test_inputs_that_are_not_contiguous_before_the_fast_kernels(mode):
    """A linear, an activation inside it, a residual added by it; over two axes and over three."""
    plan = iso.resolve("h = feed_forward(128)\nadd(x, h)", input=("B", "T", 64))
    weights = order_one_weights(plan)
    engine = iso.prepare(iso.torch.build(plan, weights), mode)
    wide = torch.randn(64, 6, 200)
    for x in (
        wide.permute(2, 1, 0),
        torch.randn(1, 300, 64).expand(4, 300, 64),
        torch.randn(300, 4, 64).transpose(0, 1),
    ):
        expected = numeric_bound(plan, weights, [x.numpy()], dtype="bfloat16" if mode else "float32")
        assert np.abs(engine(x).numpy() - truth(expected)).max() <= expected.total
    plan = iso.resolve("linear(64)\nrelu()\nlinear(7)", input=("B", 96))
    weights = order_one_weights(plan)
    engine = iso.prepare(iso.torch.build(plan, weights), mode)
    for x in (torch.randn(96, 1200).t(), torch.randn(1, 96).expand(1200, 96), torch.randn(1200, 192)[:, ::2]):
        expected = numeric_bound(plan, weights, [x.numpy()], dtype="bfloat16" if mode else "float32")
        assert np.abs(engine(x).numpy() - truth(expected)).max() <= expected.total


def test_the_inputs_stay_as_they_are():
    _, _, engine = both("add(x, linear(x, 6))\nrelu()", input=("B", 6))
    x = torch.randn(3, 6)
    before = x.clone()
    engine(x)
    assert torch.equal(x, before)


def test_tied_and_frozen_parameters():
    text = """
    ids = input("B", "T", dtype="int64")
    embedding(11, 8, name="wte", trainable=False)
    transformer_block(2, causal=True, trainable={"attn": False})
    layer_norm()
    linear(11, bias=False, tie={"weight": "wte.weight"})
    """
    _, model, engine = both(text)
    ids = torch.tensor([[1, 2, 10], [0, 5, 5]])
    close(engine(ids), model(ids))
    with torch.no_grad():
        model.wte.weight[:] = torch.randn(11, 8)  # what is read and what scores
    close(engine(ids), model(ids))


def test_several_inputs_and_outputs_by_name(quick):
    text = """
    a = input("B", 4)
    b = input("B", 4)
    s = add(a, b)
    h = linear(s, 5)
    output(h=("B", 5), s=("B", 4))
    """
    plan, model, engine = both(text)
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    expected = model(a, b)
    for found in (engine(a, b), engine(b=b, a=a), engine(a, b=b)):
        assert list(found) == ["h", "s"]
        for name in found:
            close(found[name], expected[name])
    weights = iso.torch.weights(model)
    other = iso.prepare(iso.nnx.build(plan, weights))(b=b.numpy(), a=jnp.asarray(a.numpy()))
    np.testing.assert_allclose(other["h"], expected["h"].detach().numpy(), atol=1e-5)
    assert list(other) == ["h", "s"]


def test_two_threads_at_once():
    _, model, engine = both(BLOCK, input=("B", "T", 8))
    inputs = [torch.randn(1 + i % 3, 1 + i % 7, 8) for i in range(60)]
    expected = [model(x).detach() for x in inputs]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(engine, inputs))
    for got, right in zip(found, expected, strict=True):
        close(got, right)


def test_two_threads_after_the_weights_changed():
    """Both notice at once, and neither keeps anything of the older weights: 4 * 4 * value ** 2."""
    plan = iso.resolve("linear(4, bias=False)\nlinear(4, bias=False)", input=("B", 4))
    model = iso.torch.build(plan)
    engine = iso.prepare(model)
    with ThreadPoolExecutor(2) as pool:
        for value in map(float, range(1, 21)):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(value)
            for found in pool.map(engine, [torch.ones(1 + B % 3, 4) for B in range(6)]):
                assert set(found.flatten().tolist()) == {16 * value**2}


def test_nothing_is_left_for_a_derivative():
    _, _, engine = both(BLOCK, input=("B", "T", 8))
    x = torch.randn(2, 3, 8, requires_grad=True)
    assert not engine(x).requires_grad and x.grad is None
    with torch.inference_mode():
        close(engine(x.detach()), engine(x))
    with torch.inference_mode():
        again = iso.prepare(engine.network)  # derived weights made in inference mode serve outside as well
    close(again(x), engine(x))


def test_dropout_does_not_act(quick):
    plan = iso.resolve("transformer_block(2, dropout=0.5)\ndropout(0.9)", input=("B", "T", 8))
    weights = order_one_weights(plan)
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    model = iso.torch.build(plan, weights)
    assert model.training
    found = iso.prepare(model)(torch.from_numpy(x))
    assert model.training
    close(found, model.eval()(torch.from_numpy(x)))
    np.testing.assert_allclose(iso.prepare(iso.nnx.build(plan, weights))(x), found, atol=1e-5)


# -- what is hidden ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("framework", ["torch", "nnx"])
def test_nothing_leaks_from_behind_a_mask(framework, broken, quick):
    plan = iso.resolve(
        'x = input("B", "T", 8)\nm = input("B", "T", dtype="bool")\nattention(x, 2, mask=m)\nlinear(3)'
    )
    weights = order_one_weights(plan)
    engine = iso.prepare(model_of(framework, plan, weights))
    x = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)
    m = np.array([[True, True, False, True], [True, False, False, True]])
    clean = np.asarray(engine(**given(framework, {"x": x, "m": m})))
    x[~m] = broken
    found = np.asarray(engine(**given(framework, {"x": x, "m": m})))
    np.testing.assert_array_equal(found[m], clean[m])


@pytest.mark.parametrize("text", ["attention(2, causal=True)", "attention(2, window_size=1)"])
@pytest.mark.parametrize("framework", ["torch", "nnx"])
def test_nothing_leaks_from_the_future(framework, text, quick):
    """A NaN at position 2 of 4 is seen by positions 2 and 3 (causal), or by itself alone (a window of one)."""
    plan = iso.resolve(f"{text}\nlinear(3)", input=("B", "T", 8))
    engine = iso.prepare(model_of(framework, plan, order_one_weights(plan)))
    x = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)
    clean = np.asarray(engine(*given(framework, {"x": x}).values()))
    x[:, 2] = np.nan
    found = np.asarray(engine(*given(framework, {"x": x}).values()))
    hit = [2, 3] if "causal" in text else [2]
    spared = [t for t in range(4) if t not in hit]
    np.testing.assert_allclose(found[:, spared], clean[:, spared], atol=1e-5)
    assert np.isnan(found[:, hit]).all()


def test_nothing_leaks_inside_somebody_elses_compiled_function(quick):
    plan = iso.resolve("attention(2, causal=True)", input=("B", "T", 8))
    engine = iso.prepare(iso.nnx.build(plan, order_one_weights(plan)))
    x = np.random.default_rng(0).standard_normal((1, 3, 8)).astype(np.float32)
    clean = engine(x)
    x[:, 2] = np.nan
    found = jax.jit(lambda x: engine(x) * 2)(x)
    np.testing.assert_allclose(found[:, :2], 2 * clean[:, :2], atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("called_before", [True, False])
def test_arrays_that_are_there_count_inside_somebody_elses_compiled_function(causal, called_before, quick):
    plan = iso.resolve(f"attention(2, causal={causal})", input=("B", "T", 8))
    model = iso.nnx.build(plan, order_one_weights(plan))
    engine = iso.prepare(model)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 3, 8)), jnp.float32)
    if called_before:
        engine(x)
    found = jax.jit(lambda y: engine(x) + y)(jnp.ones(()))
    np.testing.assert_allclose(found, 1 + np.asarray(model(x)), atol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda y: (engine(x) * y).sum())(1.0), model(x).sum(), rtol=1e-4)


# -- what is refused ---------------------------------------------------------------------------------------


class Coming:
    """A result that is there when it was asked for so often."""

    def __init__(self, asked: float) -> None:
        self.left = asked

    def is_ready(self) -> bool:
        self.left -= 1
        return self.left <= 0


@pytest.mark.parametrize(
    ("result", "patience", "left"),
    [
        (Coming(1), 1, jax_engine.PATIENCE),
        (Coming(3), 2, jax_engine.PATIENCE),
        (Coming(float("inf")), 3, 2),
        (object(), 1, jax_engine.PATIENCE),  # where it cannot be asked it is not waited for
    ],
)
def test_a_result_is_waited_for_a_moment(result, patience, left, monkeypatch):
    monkeypatch.setattr(jax_engine, "_SOON", 10.0 if left == jax_engine.PATIENCE else 1e-6)
    assert jax_engine._awaited(result, patience) == left


@pytest.mark.parametrize("causal", [False, True])
def test_results_that_are_late_are_waited_for_no_more(causal, monkeypatch):
    patiences: list[int] = []

    def awaited(result: Any, patience: int) -> int:
        patiences.append(patience)
        return patience - (len(patiences) != 2)  # the second comes in time

    plan = iso.resolve(f"transformer_block(2, causal={causal})", input=("B", "T", 8))
    engine = iso.prepare(iso.nnx.build(plan))
    monkeypatch.setattr(jax_engine, "_is_awaited", lambda: True)
    monkeypatch.setattr(jax_engine, "_awaited", awaited)
    x = jnp.ones((1, 2, 8))
    for _ in range(8):
        engine(x)
    assert patiences == [3, 2, 2, 1]
    engine(jnp.ones((1, 3, 8)))
    engine(jnp.ones((1, 3, 8)))
    assert patiences[4:] == [3]  # other sizes may be fast


def message(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(iso.IsomorphError) as caught:
        call(*arguments, **named)
    return str(caught.value)


@pytest.mark.parametrize("framework", ["torch", "nnx", "linen"])
def test_inputs_are_refused_in_the_models_words(framework, quick):
    text = 'ids = input("B", "T", dtype="int64")\nx = input("B", 4)\nembedding(ids, 9, 4)\nh = pool_tokens()\nadd(h, x)'
    plan = iso.resolve(text)
    model = model_of(framework, plan, order_one_weights(plan))
    engine = iso.prepare(model)
    arrays = given(framework, {"ids": np.array([[1, 2]]), "x": np.ones((1, 4), np.float32)})
    ids, x = arrays.values()
    double = x.double() if framework == "torch" else x.astype("float16")
    wrong: list[tuple[list[Any], dict[str, Any]]] = [
        ([ids], {}), ([ids, x, x], {}), ([ids, x], {"y": x}), ([ids], {"ids": x}), ([x, x], {}), ([ids, x[0]], {}),
        ([ids, x[:, :3]], {}), ([ids, ids], {}), ([ids, double], {}), ([ids + 9, x], {}), ([ids - 2, x], {}),
        ([[1, 2], x], {}), ([ids, None], {}), ([ids[:, :0], x], {}),
        ([ids, np.ones((1, 4), np.float32) if framework == "torch" else torch.ones(1, 4)], {}),
    ]  # fmt: skip
    for positional, named in wrong:
        assert message(engine, *positional, **named) == message(model, *positional, **named)
    assert "id 10 is outside a table of 9 rows" in message(engine, ids + 9, x)


def test_an_error_tells_its_node():
    plan = iso.resolve('ids = input("B", "T", dtype="int64")\nlinear(embedding(3, 4, name="table"), 2)')
    model = iso.torch.build(plan)
    for call in (model, iso.prepare(model)):
        with pytest.raises(iso.IsomorphError) as caught:
            call(torch.tensor([[7]]))
        assert caught.value.__notes__[0].startswith("in node table, embedding\n")


def test_what_cannot_be_prepared():
    plan = iso.resolve("linear(4)", input=("B", 4))
    model = iso.torch.build(plan)
    assert message(iso.prepare, model, "float16") == (
        "E_ARGUMENT: dtype must be one of float32, bfloat16, int8 for torch, got 'float16'"
    )
    assert message(iso.prepare, iso.nnx.build(plan), "int8") == (
        "E_ARGUMENT: dtype must be one of float32, bfloat16 for nnx, got 'int8'"
    )
    for engine in (iso.prepare(model), iso.prepare(iso.nnx.build(plan))):
        assert (
            message(iso.prepare, engine)
            == "E_ARGUMENT: the model is prepared already\n  prepare the model itself"
        )
    assert message(iso.prepare, iso.linen.build(plan)).startswith("E_ARGUMENT: expected a bound module")
    assert message(iso.prepare, torch.nn.Linear(2, 2)) == (
        "E_ARGUMENT: expected a network from isomorph.torch.build, got 'Linear'"
    )
    assert message(iso.prepare, 3).startswith("E_ARGUMENT: expected a model of PyTorch or Flax, got 'int'")
    from flax import nnx

    assert message(iso.prepare, nnx.Linear(2, 2, rngs=nnx.Rngs(0))) == (
        "E_ARGUMENT: expected a network from isomorph.nnx.build, got 'Linear'"
    )
    module, variables = iso.linen.build(plan), iso.linen.variables(plan, iso.initial_weights(plan))
    assert message(iso.prepare, module.bind(variables, mutable=["params"])) == (
        "E_ARGUMENT: the module is bound with parameters that may change, which a prepared one would not notice\n"
        "  bind it without mutable: module.bind(variables)"
    )


# -- dtypes -------------------------------------------------------------------------------------------------


def test_models_moved_to_another_dtype():
    plan, model, engine = both(BLOCK + "\nattention(1, rope=True)", input=("B", "T", 8))
    x = torch.randn(2, 3, 8)
    engine(x)
    model.double()
    found = engine(x.double())
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, model(x.double()).detach(), rtol=1e-12, atol=1e-12)
    assert message(engine, x) == message(model, x)
    model.to(torch.bfloat16)
    found = engine(x.bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, model(x.bfloat16()).detach(), rtol=0, atol=0.2)
    model.float()
    weights = iso.torch.weights(model)
    expected = numeric_bound(plan, weights, [x.numpy()])
    assert np.abs(engine(x).numpy() - truth(expected)).max() <= expected.total
    wide = iso.prepare(model.double(), "float32")
    found = wide(x.double())
    assert found.dtype == torch.float64  # the model's, computed in float32
    assert 0 < (found - model(x.double())).abs().max() < 1e-4


def test_an_nnx_model_in_another_dtype(quick):
    from flax import nnx

    plan = iso.resolve("attention(2, rope=True)\nlayer_norm()", input=("B", "T", 8))
    model = iso.nnx.build(plan, order_one_weights(plan))
    engine = iso.prepare(model)
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    first = engine(x)
    state = jax.tree.map(lambda a: a.astype(jnp.bfloat16), nnx.state(model))
    nnx.update(model, state)
    found = engine(jnp.asarray(x, jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float32), first, atol=0.2)
    assert message(engine, x) == message(model, x)


def test_autocast_is_the_models_business():
    _, model, engine = both(BLOCK, input=("B", "T", 8))
    x = torch.randn(2, 3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(engine(x), model(x))


def test_no_parameters(quick):
    plan = iso.resolve("gelu()\nscale(2.0)\ntranspose(1, 2)", input=("B", "T", 8))
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    model = iso.torch.build(plan)
    engine = iso.prepare(model)
    torch.testing.assert_close(engine(torch.from_numpy(x)), model(torch.from_numpy(x)))
    model.double()
    assert engine(torch.from_numpy(x).double()).dtype == torch.float64
    np.testing.assert_allclose(
        iso.prepare(iso.nnx.build(plan))(x), engine(torch.from_numpy(x).double()), atol=1e-6
    )


@pytest.mark.filterwarnings("ignore:`torch.jit")  # of the compiler's own modules
def test_inside_torch_compile():
    _, model, engine = both(BLOCK, input=("B", "T", 8))
    x = torch.randn(2, 3, 8)
    close(torch.compile(lambda x: engine(x) + 1, backend="eager")(x), model(x) + 1)


def test_x64_off_refuses_a_float64_plan():
    plan = iso.resolve("linear(4)", input=("B", 4), dtype="float64")
    with jax.enable_x64(True):
        model = iso.nnx.build(plan)
        engine = iso.prepare(model)
    x = np.ones((2, 4))
    assert message(engine, x) == message(model, x)
