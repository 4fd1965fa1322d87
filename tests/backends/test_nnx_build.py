"""Built NNX networks: their parts, and what NNX's users do with modules."""

import copy
import pickle
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax import numpy as jnp

import isomorph as iso
from isomorph.backends.jax.harness import compiled_quickly
from isomorph.initializers import Constant
from isomorph.nnx import Frozen, build
from isomorph.operators.declare import Operator, Parameter, operator

BLOCK = "linear(16)\ntransformer_block(2, mlp_ratio=2, layer_scale=True)\nlinear()"


def block_plan(**keywords):
    return iso.resolve(BLOCK, input=("B", 6, 8), output=("B", 6, 8), **keywords)


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def shapes(state):
    return {".".join(map(str, path)): leaf.shape for path, leaf in nnx.to_flat_state(state)}


# -- names and parts -------------------------------------------------------------------------------


def test_attribute_paths_are_the_plans_with_flax_leaf_names():
    model = build(iso.resolve("transformer_block(4, layer_scale=True)", input=("B", 8, 32)))
    assert shapes(nnx.state(model)) == {
        "n0.gamma1": (32,), "n0.gamma2": (32,),
        "n0.norm1.scale": (32,), "n0.norm1.bias": (32,),
        "n0.attn.q_proj.kernel": (32, 32), "n0.attn.q_proj.bias": (32,),
        "n0.attn.k_proj.kernel": (32, 32), "n0.attn.k_proj.bias": (32,),
        "n0.attn.v_proj.kernel": (32, 32), "n0.attn.v_proj.bias": (32,),
        "n0.attn.o_proj.kernel": (32, 32), "n0.attn.o_proj.bias": (32,),
        "n0.norm2.scale": (32,), "n0.norm2.bias": (32,),
        "n0.ffn.up.kernel": (32, 128), "n0.ffn.up.bias": (128,),
        "n0.ffn.down.kernel": (128, 32), "n0.ffn.down.bias": (32,),
    }  # fmt: skip
    plain = build(iso.resolve('transformer_block(4, norm="rms_norm")', input=("B", 8, 32)))
    assert [path for path in shapes(nnx.state(plain)) if "norm" in path or "gamma" in path] == [
        "n0.norm1.weight",
        "n0.norm2.weight",
    ]


def test_leaves_are_flax_layers():
    model = build(
        iso.resolve(
            "embedding(5, 8)\nlayer_norm(eps=1e-4)\nlinear(3, bias=False)\ndropout(0.25)",
            input=("B", "T"),
            input_dtype="int64",
        )
    )
    assert isinstance(model.n0, nnx.Embed)
    assert isinstance(model.n1, nnx.LayerNorm)
    assert (model.n1.epsilon, model.n1.use_fast_variance) == (1e-4, False)
    assert type(model.n2) is nnx.Linear
    assert (model.n2.precision, model.n2.bias) == (jax.lax.Precision.HIGHEST, None)
    assert type(model.n3) is nnx.Dropout
    assert (model.n3.rate, model.n3.broadcast_dims) == (0.25, ())
    assert str(model) == str(model.plan)


def test_kernels_are_transposed_and_square_ones_too():
    weight = np.array([[0.0, 1.0], [0.0, 0.0]])  # [out, in]: out 0 reads in 1
    model = build(iso.resolve("linear(2, bias=False)", input=("B", 2)), {"n0.weight": weight})
    assert model.n0.kernel[...].tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert model(jnp.array([[0.0, 1.0]])).tolist() == [[1.0, 0.0]]


def test_a_seed_decides_the_weights_as_in_every_backend():
    plan = block_plan()
    drawn = iso.initial_weights(plan, seed=1)
    found = iso.nnx.weights(build(plan, seed=1))
    assert all(found[path].tobytes() == drawn[path].tobytes() for path in drawn)
    assert not np.array_equal(found["n0.weight"], iso.nnx.weights(build(plan, seed=2))["n0.weight"])


def test_drawn_flax_own_way_from_the_plans_distributions():
    text = """
    linear(300, init={"weight": normal(mean=2.0, std=0.5), "bias": constant(0.25)})
    linear(100, init={"weight": orthogonal(gain=2.0), "bias": uniform(low=1.0, high=3.0)})
    linear(250, init={"weight": truncated_normal(std=0.1)})
    linear(350, init={"weight": xavier_uniform()})
    linear(450, init={"weight": kaiming_normal(nonlinearity="relu")})
    linear(150, init={"weight": kaiming_uniform(mode="fan_out", nonlinearity="relu")})
    linear(350, init={"weight": xavier_normal(gain=3.0)})
    layer_norm()
    """
    plan = iso.resolve(text, input=("B", 200))

    def drawn(**streams):
        model = build(plan)
        graph, _ = nnx.split(model)
        make = compiled_quickly(lambda: nnx.state(build(plan, rngs=nnx.Rngs(**streams))))
        return iso.nnx.weights(nnx.merge(graph, make()))

    found = drawn(default=0)
    n = {path: array.astype(np.float64) for path, array in found.items()}
    assert n["n0.weight"].shape == (300, 200)
    assert (n["n0.weight"].mean(), n["n0.weight"].std()) == pytest.approx((2.0, 0.5), abs=0.01)
    assert set(n["n0.bias"]) == {0.25}
    np.testing.assert_allclose(n["n1.weight"] @ n["n1.weight"].T, 4 * np.eye(100), atol=1e-5)
    assert 1 <= n["n1.bias"].min() < 1.2 and 2.8 < n["n1.bias"].max() < 3
    assert n["n2.weight"].std() == pytest.approx(0.1, rel=0.02)
    # cut at two deviations of the uncut normal, 0.1 / 0.8796
    assert 0.22 < np.abs(n["n2.weight"]).max() <= 0.2 / 0.8796
    assert np.abs(n["n3.weight"]).max() == pytest.approx((6 / (250 + 350)) ** 0.5, rel=0.001)
    assert n["n4.weight"].std() == pytest.approx((2 / 350) ** 0.5, rel=0.02)
    assert np.abs(n["n5.weight"]).max() == pytest.approx((6 / 150) ** 0.5, rel=0.001)
    assert n["n6.weight"].std() == pytest.approx(3 * (2 / (150 + 350)) ** 0.5, rel=0.02)
    assert np.abs(n["n6.bias"]).max() == pytest.approx(150**-0.5, rel=0.05)
    assert set(n["n7.weight"]) == {1.0}
    again, other = drawn(default=0), drawn(params=1)
    assert np.array_equal(found["n0.weight"], again["n0.weight"])
    assert not np.array_equal(found["n0.weight"], other["n0.weight"])


def test_abstract_networks_allocate_nothing():
    room = {"max_parameter_bytes": 1 << 42}  # for 4 TB
    plan = iso.resolve("linear(1000000)", input=("B", 1000000), limits=room)
    model = nnx.eval_shape(lambda: build(plan, rngs=nnx.Rngs(0)))
    assert model.n0.kernel.shape == (1000000, 1000000)


@operator("with_a_taken_name", shape="x[B, D] -> out[B, D]", category="test", register=False)
class Taken(Operator):
    """Has a parameter called as a method of every module."""

    def parameters(self, D: int) -> dict[str, Parameter]:
        return {"sow": Parameter((D,), Constant(0.0))}


def test_a_part_named_as_something_that_every_module_has():
    plan = iso.resolve("relu()", input=("B", 2))
    taken = replace(plan.nodes[0], operator=Taken.of(D=2))
    with pytest.raises(iso.IsomorphError) as caught:
        build(replace(plan, nodes=(taken,)))
    assert str(caught.value) == (
        "E_NAME: with_a_taken_name: 'sow' cannot name a part of an nnx.Module, which has an attribute of "
        "that name\n  give it another name"
    )
    with pytest.raises(iso.IsomorphError, match=r"'sow' cannot name a part of a linen\.Module"):
        iso.linen.build(replace(plan, nodes=(taken,))).init(jax.random.key(0), jnp.ones((1, 2)))


# -- training and evaluation -----------------------------------------------------------------------


def test_dropout_in_training_alone_with_a_fresh_mask_every_time():
    """q = k = 0 and v = 1: each query's result is the share of its weights that stayed, over 1 - p."""
    plan = iso.resolve("attention(2, dropout=0.5)", input=("B", 64, 2))
    weights = {path: np.zeros(p.shape) for path, p in ((p.path, p) for p in plan.parameters)}
    weights |= {"n0.v_proj.bias": np.ones(2), "n0.o_proj.weight": np.eye(2)}
    model, x = build(plan, weights), jnp.ones((3, 64, 2))
    call = nnx.jit(lambda model, x: model(x))
    first, second = call(model, x), call(model, x)
    assert not jnp.array_equal(first, second)  # another mask in every call, compiled too,
    assert not jnp.array_equal(first[0], first[1])  # example,
    assert not jnp.array_equal(first[..., 0], first[..., 1])  # and head
    # mean 1, and deviation sqrt(p / (1 - p) / T) = 1/8 for each of 384 results: 5 sigma of the mean
    assert abs(first.mean().item() - 1) < 5 / 8 / 384**0.5
    assert first.std().item() == pytest.approx(1 / 8, rel=0.25)
    model.eval()
    count = int(model.n0.dropout.rngs.count[...])
    np.testing.assert_allclose(model(x), 1.0, atol=1e-6)
    assert jnp.array_equal(model(x), model(x))
    assert int(model.n0.dropout.rngs.count[...]) == count  # nothing is drawn in evaluation
    model.train()
    assert not jnp.array_equal(model(x), model(x))


def test_dropout_streams_are_part_of_the_state():
    plan = iso.resolve("dropout(0.5)", input=("B", 50))
    model, x = build(plan, rngs=nnx.Rngs(dropout=3, params=0)), jnp.ones((1, 50))
    model(x)
    graph, state = nnx.split(model)
    saved = jax.tree.map(jnp.copy, state)
    straight = [model(x) for _ in range(2)]
    resumed = nnx.merge(graph, saved)
    assert all(jnp.array_equal(out, resumed(x)) for out in straight)


def test_without_dropout_there_is_nothing_random():
    model = build(iso.resolve("transformer_block(2, dropout=0.0)", input=("B", 3, 4)))
    assert not jax.tree.leaves(nnx.state(model, nnx.RngState))
    x = draw(2, 3, 4)
    assert jnp.array_equal(model(x), model(x))
    model.eval()
    assert jnp.array_equal(model(x), build(model.plan)(x))


def test_frozen_parameters_are_no_params():
    text = 'transformer_block(2, trainable={"attn": False})\nlinear(2)'
    model = build(iso.resolve(text, input=("B", 3, 4)))
    frozen = shapes(nnx.state(model, Frozen))
    assert len(frozen) == 8 and all(path.startswith("n0.attn.") for path in frozen)
    assert isinstance(model.n0.attn.q_proj.kernel, Frozen)
    slopes = nnx.jit(nnx.grad(lambda model, x: (model(x) ** 2).sum()))(model, draw(2, 3, 4))
    assert shapes(slopes).keys() == shapes(nnx.state(model)).keys() - frozen.keys()
    before = iso.nnx.weights(model)
    nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param).update(model, slopes)
    after = iso.nnx.weights(model)
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed == {path for path in before if "attn" not in path}


# -- what NNX's users do ---------------------------------------------------------------------------


def test_split_merge_jit_grad_and_copies():
    text = "linear(3)\nlayer_norm()"
    plan, other = (iso.resolve(text, input=("B", 4)) for _ in range(2))
    model, x = build(plan, seed=1), draw(3, 4)
    want = model(x)
    graph, state = nnx.split(model)
    assert jnp.array_equal(nnx.merge(graph, state)(x), want)
    np.testing.assert_allclose(nnx.jit(lambda model, x: model(x))(model, x), want, atol=1e-5)
    assert nnx.split(build(other, seed=2))[0] == graph  # equal plans have equal graphs
    for twin in (copy.deepcopy(model), nnx.clone(model), pickle.loads(pickle.dumps(model))):
        assert jnp.array_equal(twin(x), want)
        twin.n0.bias[...] = twin.n0.bias[...] + 1
        assert not jnp.array_equal(twin(x), want)
    assert jnp.array_equal(model(x), want)
    slopes = nnx.grad(lambda model, x: (model(x) ** 2).sum())(model, x)
    pure = jax.grad(lambda state, x: (nnx.merge(graph, state)(x) ** 2).sum())(state, x)
    for a, b in zip(jax.tree.leaves(slopes), jax.tree.leaves(pure), strict=True):
        assert jnp.array_equal(a, b)


def test_nnx_jit_compiles_once():
    traces = []

    @nnx.jit
    def call(model, x):
        traces.append(x.shape)
        return model(x)

    for seed in range(3):
        model = build(iso.resolve("linear(2)\nrelu()", input=("B", 3)), seed=seed)
        for _ in range(7):
            call(model, draw(4, 3))
    call(model, draw(5, 3))
    assert traces == [(4, 3), (5, 3)]


def test_a_replaced_layer_runs():
    model = build(iso.resolve("linear(3)\nlinear(2)", input=("B", 4)))
    model.n1 = nnx.LoRALinear(3, 2, lora_rank=2, rngs=nnx.Rngs(0))
    assert model(draw(1, 4)).shape == (1, 2)
