"""What networks in NNX and in Linen have in common: inputs, outputs, dtypes, transformations, agreement."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx
from jax import numpy as jnp

import isomorph as iso
from isomorph import testing
from isomorph.agreement.bounds import numeric_bound
from isomorph.backends.available import load
from isomorph.backends.jax.harness import compiled_quickly, tensors
from isomorph.backends.nnx.layers import Frozen
from isomorph.display.page import resolve_example
from isomorph.operators import catalogue

BACKENDS = ["nnx", "linen"]
TOKENS = """
ids = input("B", "T", dtype="int64")
embedding(11, 8, name="wte")
pos_embed(6)
attention(2, causal=True, rope=True, name="attention")
linear(11, bias=False, tie={"weight": "wte.weight"}, name="head")
"""
TWO = """
features = input("B", 4)
gate = input("B", 4)
hidden = mul(features, gate)
score = linear(2)
output(score=("B", 2), hidden=("B", 4))
"""


def function_of(backend, plan, weights=None):
    """The network in evaluation mode as ``f(parameters, *inputs, **inputs)``, and its parameters."""
    if backend == "linen":
        return iso.linen.build(plan).apply, iso.linen.variables(plan, weights)
    model = iso.nnx.build(plan, weights)
    model.eval()
    graph, state = nnx.split(model)
    return lambda state, *inputs, **named: nnx.merge(graph, state)(*inputs, **named), state


def network(backend, plan, weights=None):
    function, parameters = function_of(backend, plan, weights)
    return lambda *inputs, **named: function(parameters, *inputs, **named)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def error_of(function, *arguments, **keywords):
    with pytest.raises(iso.IsomorphError) as caught:
        function(*arguments, **keywords)
    return str(caught.value)


def plan_of_tokens():
    return iso.resolve(TOKENS)


# -- inputs and outputs ----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_by_position_and_by_name_outputs_in_order(backend):
    model, a, b = network(backend, iso.resolve(TWO)), draw(3, 4), draw(3, 4, seed=1)
    result = model(a, b)
    assert list(result) == ["score", "hidden"]
    assert jnp.array_equal(result["hidden"], a * b)
    for other in (model(a, gate=b), model(gate=jnp.asarray(b), features=a)):
        assert jnp.array_equal(other["score"], result["score"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_contracts_in_eager_mode_and_while_tracing(backend):
    plan = iso.resolve("linear(2)", input=("B", "T", 4))
    eager = network(backend, plan)
    for model in (eager, jax.jit(eager), jax.grad(lambda x: eager(x).sum())):
        assert error_of(model, draw(3, 2, 5)) == (
            "E_RUNTIME: input x: expected [B, T, 4] float32, got [3, 2, 5] float32: axis 2 must be 4"
        )
    assert error_of(eager, np.zeros((3, 2, 4), int)).endswith("it must have a floating-point dtype")
    assert error_of(eager, np.zeros((3, 2, 4), np.float16)) == (
        "E_RUNTIME: input x: expected float32, the network's dtype, got float16\n"
        "  convert one of them, as in x.astype(dtype)"
    )
    assert error_of(eager, [[[1.0] * 4]]) == (
        "E_RUNTIME: input x: expected a jax.Array or numpy.ndarray, got 'list'"
    )
    assert error_of(eager) == "E_RUNTIME: missing input x; the network takes 1 input (x)"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bound_and_an_id_outside_the_table(backend):
    model = network(backend, plan_of_tokens())
    assert "T=7 must be at most 6" in error_of(model, np.zeros((1, 7), int))
    assert error_of(model, np.array([[0, 11]])) == (
        "E_RUNTIME: id 11 is outside a table of 11 rows\n  ids run from 0 to 10"
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_inside_tells_the_node(backend):
    model = network(backend, plan_of_tokens())
    with pytest.raises(iso.IsomorphError) as caught:
        model(np.array([[-1]]))
    place = '  <definition>:3:1\n  3 | embedding(11, 8, name="wte")\n    | ^'
    assert f"in node wte, embedding\n{place}" in caught.value.__notes__


@pytest.mark.parametrize("backend", BACKENDS)
def test_float64_that_jax_has_switched_off(backend):
    plan = iso.resolve("linear(2)", input=("B", 4), dtype="float64")
    message = (
        "E_BACKEND: the plan's dtype is float64, which JAX has switched off\n"
        '  jax.config.update("jax_enable_x64", True), or with jax.enable_x64(True): ...'
    )
    assert error_of(function_of, backend, plan) == message
    with jax.enable_x64(True):
        assert network(backend, plan)(np.ones((1, 4))).dtype == "float64"


# -- transformations -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_batch_and_length_compiled_or_not(backend):
    plan, weights = plan_of_tokens(), iso.initial_weights(plan_of_tokens(), seed=2)
    function, parameters = function_of(backend, plan, weights)
    compiled = compiled_quickly(function)
    reference = iso.reference.build(plan, weights)
    for B, T in ((1, 1), (3, 5), (2, 0), (0, 4)):
        ids = np.random.default_rng(T).integers(0, 11, (B, T))
        want = reference(ids)
        for call in (compiled, function) if T < 2 else (compiled,):
            got = call(parameters, ids)
            assert got.shape == (B, T, 11)
            np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_once_per_shape_with_weights_as_arguments(backend):
    plan = iso.resolve("transformer_block(2)", input=("B", "T", 16))
    function, parameters = function_of(backend, plan)
    traces = []

    @jax.jit
    def compiled(parameters, x):
        traces.append(x.shape)
        return function(parameters, x)

    for seed in range(20):
        compiled(jax.tree.map(lambda w, s=seed: w * (1 + s), parameters), draw(2, 3, 16, seed=seed))
    assert traces == [(2, 3, 16)]
    compiled(parameters, draw(2, 4, 16))
    assert traces == [(2, 3, 16), (2, 4, 16)]
    constants = jax.make_jaxpr(function)(parameters, draw(2, 3, 16)).consts
    assert max((np.size(constant) for constant in constants), default=0) <= 4  # no weight is one


@pytest.mark.parametrize("backend", BACKENDS)
def test_vmap_and_grad(backend):
    plan = iso.resolve("encoder_block(2, 6)", input=("B", "T", 4))
    function, parameters = function_of(backend, plan)
    x, quick = draw(3, 2, 5, 4), compiled_quickly
    flat = quick(function)(parameters, x.reshape(6, 5, 4))
    many = quick(jax.vmap(lambda x: function(parameters, x)))(x)
    np.testing.assert_allclose(many.reshape(6, 5, 4), flat, atol=1e-6)
    one_by_one = jax.vmap(jax.grad(lambda p, x: function(p, x[None]).sum()), (None, 0))
    per_example = quick(one_by_one)(parameters, x[0])
    whole = quick(jax.grad(lambda p, x: function(p, x).sum()))(parameters, x[0])
    for one, total in zip(jax.tree.leaves(per_example), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(one.sum(0), total, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tied_table_is_one_leaf_and_can_be_donated(backend):
    plan = plan_of_tokens()
    function, parameters = function_of(backend, plan)
    sizes = sorted(np.size(leaf) for leaf in jax.tree.leaves(parameters))
    assert sum(sizes) == plan.parameter_count
    assert sizes.count(11 * 8) == 1

    def loss(parameters, ids):
        return (function(parameters, ids) ** 2).sum()

    def step(parameters, ids):
        return jax.tree.map(lambda w, g: w - 1e-3 * g, parameters, jax.grad(loss)(parameters, ids))

    ids = jnp.array([[1, 2, 3]])
    measure = compiled_quickly(loss)
    before = float(measure(parameters, ids))
    updated = jax.jit(step, donate_argnums=0)(parameters, ids)
    assert float(measure(updated, ids)) < before


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tied_table_has_the_gradient_of_both_uses(backend):
    plan = iso.resolve(
        'ids = input("B", 1, dtype="int64")\nembedding(2, 1, name="wte")\n'
        'linear(2, bias=False, tie={"weight": "wte.weight"})'
    )
    weights, inputs = {"wte.weight": np.array([[3.0], [5.0]])}, {"ids": np.array([[1]])}
    # out[i] = w[i] * w[1]: of their sum, d/dw0 = w1 = 5 and d/dw1 = w0 + 2 w1 = 13
    found = load(backend).gradients(plan, weights, inputs, {"": np.ones((1, 1, 2))}, "float32")
    assert found.parameters["wte.weight"].tolist() == [[5.0], [13.0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_tied_deep_inside_blocks_to_a_transposed_owner(backend):
    """The owner is a native layer that keeps its weight transposed; one tie goes to a later node."""
    plan = iso.resolve(
        'linear(4, bias=False, tie={"weight": "block.attn.v_proj.weight"})\n'
        'transformer_block(2, name="block", tie={"attn.k_proj.weight": "block.attn.q_proj.weight"})',
        input=("B", "T", 4),
    )
    weights = testing.order_one_weights(plan)
    assert not {"n0.weight", "block.attn.k_proj.weight"} & set(weights)
    x = draw(2, 3, 4)
    want = iso.reference.build(plan, weights)(x)
    np.testing.assert_allclose(compiled_quickly(network(backend, plan, weights))(x), want, atol=1e-4)


def test_layouts_do_not_matter():
    plan = iso.resolve("transformer_block(2)", input=("B", 3, 4))
    x = draw(2, 3, 4)
    awkward = np.asfortranarray(x)
    expanded = np.broadcast_to(x[:1], (2, 3, 4))
    for backend in BACKENDS:
        model = compiled_quickly(network(backend, plan))
        assert jnp.array_equal(model(awkward), model(x))
        assert jnp.array_equal(model(expanded), model(expanded.copy()))


def test_nnx_and_linen_give_equal_bits():
    plan = iso.resolve("linear(8)\ntransformer_block(2, layer_scale=True)\nlayer_norm()", input=("B", "T", 4))
    weights, x = testing.order_one_weights(plan), draw(2, 3, 4)
    one, two = (compiled_quickly(network(backend, plan, weights))(x) for backend in BACKENDS)
    assert jnp.array_equal(one, two)


@pytest.mark.parametrize("name", catalogue.all_operators())
def test_linen_computes_the_program_of_nnx(name):
    """Equal weights in equal order, and the same program, at every size and in half precision.

    Whatever holds of the numbers of one then holds of the other's: outputs to the bit, and derivatives.
    """
    for example in catalogue.all_operators()[name].examples:
        for dtype in (example.dtype, "bfloat16"):
            plan = resolve_example(example._replace(dtype=dtype))
            weights = testing.order_one_weights(plan)
            with jax.enable_x64(dtype == "float64"):
                model = iso.nnx.build(plan, weights)
                model.eval()
                graph, own, rest = nnx.split(model, (nnx.Param, Frozen), ...)
                module, variables = iso.linen.build(plan), iso.linen.variables(plan, weights)
                leaves = zip(jax.tree.leaves(own), jax.tree.leaves(variables), strict=True)
                for one, other in leaves:
                    np.testing.assert_array_equal(np.asarray(one), np.asarray(other), strict=True)
                for sizes in testing.sample_sizes(plan)[: None if dtype == example.dtype else 1]:
                    inputs = testing.sample_inputs(plan, sizes)
                    one, other = (
                        jax.make_jaxpr(function)(parameters, tensors(plan, inputs))
                        for function, parameters in (
                            (lambda own, x: nnx.merge(graph, own, rest)(**x), own),  # noqa: B023
                            (lambda v, x: module.apply(v, *(x[name] for name in inputs)), variables),  # noqa: B023
                        )
                    )
                    assert str(one) == str(other)
                    assert all(map(np.array_equal, one.consts, other.consts))
            back = iso.linen.weights(plan, variables)
            assert all(np.array_equal(back[path], array) for path, array in iso.nnx.weights(model).items())


# -- dtypes ----------------------------------------------------------------------------------------

DTYPES = """
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
import isomorph as iso
text = '''
linear(8)
attention(2, rope=True, qk_norm="rms_norm", logit_softcap=4.0, causal=True)
transformer_block(2, dropout=0.5, layer_scale=True)
swiglu(6)
sinusoidal_pos_embed()
scale(0.3)
layer_norm()
softmax()
'''
for dtype in ("bfloat16", "float16", "float32", "float64"):
    if dtype == "float64" and not jax.config.jax_enable_x64:
        continue
    plan = iso.resolve(text, input=("B", "T", 8), dtype=dtype)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 8)), dtype)
    model, module, variables = iso.nnx.build(plan), iso.linen.build(plan), iso.linen.variables(plan)
    drawn = nnx.eval_shape(lambda: iso.nnx.build(plan, rngs=nnx.Rngs(0)))
    results = [
        nnx.eval_shape(lambda model, x: model(x), model, x),
        jax.eval_shape(module.apply, variables, x),
        jax.eval_shape(lambda v, x: module.apply(v, x, train=True, rngs={"dropout": jax.random.key(0)}), variables, x),
        *jax.tree.leaves(nnx.state(drawn, nnx.Param)),
        *jax.tree.leaves(jax.eval_shape(module.init, jax.random.key(0), x)),
        *jax.tree.leaves(variables),
        *iso.nnx.weights(model).values(),
    ]
    print(dtype, {str(result.dtype) for result in results})
"""


@pytest.mark.parametrize("x64", ["0", "1"])
def test_the_plans_dtype_with_x64_on_and_off(x64):
    environment = {"JAX_ENABLE_X64": x64, "JAX_PLATFORMS": "cpu", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", DTYPES], env=environment, capture_output=True, text=True, check=True
    )
    dtypes = ["bfloat16", "float16", "float32", *(["float64"] if x64 == "1" else [])]
    assert done.stdout.splitlines() == [f"{dtype} {{'{dtype}'}}" for dtype in dtypes]


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_cast_by_their_user(backend):
    plan = iso.resolve("transformer_block(2)", input=("B", "T", 4))
    function, parameters = function_of(backend, plan)
    halves = jax.tree.map(lambda w: w.astype("bfloat16"), parameters)
    assert jax.eval_shape(function, halves, jnp.zeros((1, 2, 4), "bfloat16")).dtype == "bfloat16"
    assert "expected bfloat16, the network's dtype, got float32" in error_of(function, halves, draw(1, 2, 4))


@pytest.mark.parametrize("name", catalogue.all_operators())
def test_operators_in_half_precision(name):
    """Every example within the bound of its dtype, ``4 eps sqrt(K) max(1, max |y|)`` for each node."""
    for example in catalogue.all_operators()[name].examples:
        for dtype, backend in (("bfloat16", "nnx"), ("float16", "linen")):  # their bits are equal, see above
            plan = resolve_example(example._replace(dtype=dtype))
            weights = testing.order_one_weights(plan)
            inputs = testing.sample_inputs(plan, testing.sample_sizes(plan)[0])
            truth = numeric_bound(plan, weights, inputs, dtype=dtype)
            found = load(backend).forward(plan, weights, inputs, dtype)
            for key, want in truth.outputs.items():
                assert found[key].dtype.name == dtype
                assert np.abs(found[key].astype(np.float64) - want).max() <= truth.total


@pytest.mark.parametrize("backend", BACKENDS)
def test_large_means(backend):
    plan = iso.resolve("layer_norm()", input=("B", 4))
    weights = {"n0.weight": np.ones(4), "n0.bias": np.zeros(4)}
    x = np.array([[40000.0, 40001.0, 40002.0, 40003.0]], np.float32)
    expected = [-1.34164, -0.44721, 0.44721, 1.34164]  # deviations / sqrt(1.25)
    model = network(backend, plan, weights)
    for got in (model(x), jax.jit(model)(x)):
        assert got[0].tolist() == pytest.approx(expected, abs=1e-5)
    wide = iso.resolve("layer_norm()", input=("B", 768))
    weights = testing.order_one_weights(wide)
    x = 1e4 + draw(8, 768)
    truth = numeric_bound(wide, weights, {"x": x})
    for got in (network(backend, wide, weights)(x), jax.jit(network(backend, wide, weights))(x)):
        assert np.abs(got - truth.outputs[""]).max() <= truth.total
        # What the statistics of E[x^2] - E[x]^2 miss by far: a variance of 1 beside 1e8 has no digits left.
        assert np.abs(got - truth.outputs[""]).max() < 0.02


@pytest.mark.parametrize("backend", BACKENDS)
def test_epsilon_is_the_plans(backend):
    x = np.array([[1e-3, -1e-3]], np.float32)  # variance 1e-6
    for eps, expected in ((1e-5, 0.30151134), (1e-6, 0.70710678), (1e-12, 0.9999995)):
        plan = iso.resolve(f"layer_norm(eps={eps})", input=("B", 2))
        assert network(backend, plan)(x)[0].tolist() == pytest.approx([expected, -expected], abs=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gelu_is_the_erf_form(backend):
    x = np.array([[-2.0]], np.float32)
    assert network(backend, iso.resolve("gelu()", input=("B", 1)))(x).item() == pytest.approx(
        -0.0455003, abs=1e-6
    )
    tanh = network(backend, iso.resolve('gelu(approximate="tanh")', input=("B", 1)))
    assert tanh(x).item() == pytest.approx(-0.0454023, abs=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rope_turns_halves_and_not_neighbours(backend):
    """With equal values nothing but the scores matters; the weights of two positions give the angle away."""
    plan = iso.resolve("attention(1, rope=True, bias=False)", input=("B", 2, 4))
    one = np.zeros((4, 4))
    one[0, 0] = 1  # q = k = [x0, 0, 0, 0]
    weights = {
        "n0.q_proj.weight": one, "n0.k_proj.weight": one,
        "n0.v_proj.weight": np.diag([0.0, 1.0, 0.0, 0.0]), "n0.o_proj.weight": np.eye(4),
    }  # fmt: skip
    x = np.array([[[1.0, 0.0, 0, 0], [1.0, 1.0, 0, 0]]], np.float32)
    # Pairing 0 with 2 at frequency 1: [1, 0, 0, 0] at position 1 becomes [cos 1, 0, sin 1, 0], so the score
    # between positions 0 and 1 is cos(1) / 2, that of 1 with itself 1/2.
    a, b = np.exp(np.cos(1.0) / 2), np.exp(0.5)
    got = compiled_quickly(network(backend, plan, weights))(x)
    assert got[0, :, 1].tolist() == pytest.approx([a / (a + b), b / (a + b)], abs=1e-6)


def test_gradients_of_frozen_parameters_are_in_the_harness():
    plan = iso.resolve("linear(1, bias=False, trainable=False)", input=("B", 2))
    for backend in BACKENDS:
        found = load(backend).gradients(
            plan,
            {"n0.weight": np.ones((1, 2))},
            {"x": np.array([[2.0, 3.0]])},
            {"": np.ones((1, 1))},
            "float32",
        )
        assert found.parameters["n0.weight"].tolist() == [[2.0, 3.0]]
        assert found.inputs["x"].tolist() == [[1.0, 1.0]]


def test_the_harness_computes_in_float64_though_jax_does_not():
    plan = iso.resolve("transformer_block(2)", input=("B", "T", 8))
    weights, x = testing.order_one_weights(plan), np.random.default_rng(0).standard_normal((2, 3, 8))
    want = load("reference").forward(plan, weights, {"x": x}, "float64")[""]
    for backend in BACKENDS:
        got = load(backend).forward(plan, weights, {"x": x}, "float64")[""]
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, want, atol=1e-13)


def test_options_that_shorten_compilation_are_known():
    assert compiled_quickly(lambda x: x + 1)(jnp.ones(2)).tolist() == [2.0, 2.0]
