"""Built Linen networks: their variables, and what Linen's users do with modules."""

import re

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx, traverse_util
from flax.errors import ScopeCollectionNotFound, ScopeParamShapeError
from jax import numpy as jnp

import isomorph as iso
from isomorph.backends.jax.build import PreparedPlan
from isomorph.backends.jax.harness import compiled_quickly
from isomorph.linen import Network, build, variables, weights
from isomorph.testing import order_one_weights

BLOCK = "transformer_block(4, layer_scale=True)"


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def shapes(tree):
    return {path: leaf.shape for path, leaf in traverse_util.flatten_dict(tree["params"], sep=".").items()}


def test_scopes_are_the_plans_paths_with_flax_leaf_names():
    plan = iso.resolve(BLOCK, input=("B", 8, 32))
    expected = {
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
    assert shapes(variables(plan)) == expected
    assert shapes(jax.eval_shape(build(plan).init, jax.random.key(0), draw(1, 8, 32))) == expected


def test_leaves_are_flax_layers():
    plan = iso.resolve(
        "embedding(5, 8)\nlayer_norm(eps=1e-4)\nlinear(3, bias=False)\ndropout(0.25)",
        input=("B", "T"),
        input_dtype="int64",
    )
    bound = build(plan).bind(variables(plan))
    assert isinstance(bound.n0, nn.Embed)
    assert isinstance(bound.n1, nn.LayerNorm)
    assert (bound.n1.epsilon, bound.n1.use_fast_variance) == (1e-4, False)
    assert type(bound.n2) is nn.Dense
    assert (bound.n2.precision, bound.n2.use_bias) == (jax.lax.Precision.HIGHEST, False)
    assert type(bound.n3) is nn.Dropout
    assert (bound.n3.rate, bound.n3.broadcast_dims) == (0.25, ())
    assert bound.plan is plan


def test_init_draws_the_plans_distributions():
    text = """
    linear(300, init={"weight": normal(mean=2.0, std=0.5), "bias": constant(0.25)})
    linear(100, init={"weight": orthogonal(gain=2.0)})
    linear(150, init={"weight": kaiming_uniform(mode="fan_out", nonlinearity="relu")})
    rms_norm()
    """
    plan = iso.resolve(text, input=("B", 200))
    init = compiled_quickly(build(plan).init)
    tree = init(jax.random.key(0), draw(1, 200))
    n = weights(plan, tree)
    assert (n["n0.weight"].mean(), n["n0.weight"].std()) == pytest.approx((2.0, 0.5), abs=0.01)
    assert set(n["n0.bias"]) == {0.25}
    np.testing.assert_allclose(n["n1.weight"] @ n["n1.weight"].T, 4 * np.eye(100), atol=1e-5)
    assert np.abs(n["n1.bias"]).max() == pytest.approx(300**-0.5, rel=0.05)
    assert np.abs(n["n2.weight"]).max() == pytest.approx((6 / 150) ** 0.5, rel=0.001)
    assert set(n["n3.weight"]) == {1.0}
    again = init(jax.random.key(0), draw(1, 200, seed=1))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, tree, again))
    other = init(jax.random.key(1), draw(1, 200))
    assert not jnp.array_equal(other["params"]["n0"]["kernel"], tree["params"]["n0"]["kernel"])


def test_renaming_a_layer_leaves_the_others_seeded_values_alone():
    """Names are the plan's, so neither the order of construction nor another layer's name matters."""
    first = iso.resolve('linear(4, name="a")\nlinear(4, name="b")', input=("B", 4))
    second = iso.resolve('linear(4, name="c")\nlinear(4, name="b")', input=("B", 4))
    one, two = (build(plan).init(jax.random.key(0), draw(1, 4))["params"] for plan in (first, second))
    assert (set(one), set(two)) == ({"a", "b"}, {"c", "b"})
    assert jnp.array_equal(one["b"]["kernel"], two["b"]["kernel"])
    assert not jnp.array_equal(one["a"]["kernel"], two["c"]["kernel"])


def test_what_init_computes_is_the_network_even_with_a_tie_to_what_comes_later():
    plan = iso.resolve(
        'linear(3, bias=False, tie={"weight": "late.weight"})\nlinear(3, bias=False, name="late")',
        input=("B", 3),
    )
    x = draw(2, 3)
    out, tree = build(plan).init_with_output(jax.random.key(0), x)
    kernel = tree["params"]["late"]["kernel"]
    assert set(tree["params"]) == {"late"}
    np.testing.assert_allclose(out, x @ kernel @ kernel, atol=1e-6)


def test_dropout_in_training_alone_with_a_fresh_mask_every_time():
    """q = k = 0 and v = 1: each query's result is the share of its weights that stayed, over 1 - p."""
    plan = iso.resolve("attention(2, dropout=0.5)", input=("B", 64, 2))
    given = {p.path: np.zeros(p.shape) for p in plan.parameters}
    given |= {"n0.v_proj.bias": np.ones(2), "n0.o_proj.weight": np.eye(2)}
    module, tree, x = build(plan), variables(plan, given), jnp.ones((3, 64, 2))
    train = jax.jit(lambda key: module.apply(tree, x, train=True, rngs={"dropout": key}))
    first, second = train(jax.random.key(0)), train(jax.random.key(1))
    assert jnp.array_equal(first, train(jax.random.key(0)))
    assert not jnp.array_equal(first, second)  # another mask for every key,
    assert not jnp.array_equal(first[0], first[1])  # example,
    assert not jnp.array_equal(first[..., 0], first[..., 1])  # and head
    # mean 1, and deviation sqrt(p / (1 - p) / T) = 1/8 for each of 384 results: 5 sigma of the mean
    assert abs(first.mean().item() - 1) < 5 / 8 / 384**0.5
    assert first.std().item() == pytest.approx(1 / 8, rel=0.25)
    np.testing.assert_allclose(module.apply(tree, x), 1.0, atol=1e-6)  # evaluation needs no key


def test_two_dropouts_of_one_call_draw_apart():
    plan = iso.resolve("dropout(0.5)\ndropout(0.5)", input=("B", 1000))
    kept = build(plan).apply(
        {"params": {}}, jnp.ones((1, 1000)), train=True, rngs={"dropout": jax.random.key(0)}
    )
    # a quarter survives both, 250 +- 5 sigma of sqrt(1000 * 3/16); one mask used twice would leave half
    assert abs(int((kept > 0).sum()) - 250) < 5 * (1000 * 3 / 16) ** 0.5


def test_without_dropout_training_draws_nothing():
    plan = iso.resolve("encoder_block(2, 6)", input=("B", 3, 4))
    module, tree, x = build(plan), variables(plan), draw(2, 3, 4)
    train = compiled_quickly(lambda x: module.apply(tree, x, train=True))  # needs no key
    assert jnp.array_equal(train(x), compiled_quickly(lambda x: module.apply(tree, x))(x))


FROZEN = """
ids = input("B", "T", dtype="int64")
embedding(7, 4, name="wte", trainable=False)
pos_embed(8, name="wpe", trainable=False)
layer_norm(name="norm", trainable={"weight": False})
transformer_block(2, name="block", layer_scale=True, trainable={"attn": False, "attn.o_proj": True, "gamma1": False})
linear(4, name="part", trainable={"bias": False})
linear(4, bias=False, name="own")
linear(4, name="read", tie={"weight": "own.weight"}, trainable={"bias": False})
linear(7, name="head", tie={"weight": "wte.weight"})
"""


def test_what_is_frozen_lies_in_a_collection_of_its_own():
    plan = iso.resolve(FROZEN)
    attention = {f"block.attn.{name}_proj" for name in "qkv"}
    frozen = {"wte.embedding", "wpe.weight", "norm.scale", "block.gamma1", "part.bias", "read.bias"}
    frozen |= {f"{name}.{part}" for name in attention for part in ("kernel", "bias")}
    ids = jnp.zeros((1, 2), "int32")
    drawn = compiled_quickly(build(plan).init)(jax.random.key(0), ids)
    for tree in (variables(plan), drawn):
        assert set(tree) == {"params", "frozen"}
        assert set(traverse_util.flatten_dict(tree["frozen"], sep=".")) == frozen
        trained = set(traverse_util.flatten_dict(tree["params"], sep="."))
        assert trained.isdisjoint(frozen) and len(trained | frozen) == len(plan.parameters)
    # Freezing changes no initial value, and Flax's own layers are Flax's own.
    free = iso.resolve(re.sub(r", trainable=(False|{[^}]*})", "", FROZEN))
    other = compiled_quickly(build(free).init)(jax.random.key(0), ids)
    assert set(other) == {"params"}
    ours, theirs = weights(plan, drawn), weights(free, other)
    assert all(np.array_equal(ours[path], theirs[path]) for path in theirs)
    bound = build(plan).bind(drawn)
    assert isinstance(bound.part, nn.Dense) and isinstance(bound.wte, nn.Embed)
    assert isinstance(bound.norm, nn.LayerNorm) and type(bound.block.attn.o_proj) is nn.Dense


def test_one_step_of_adamw_moves_what_is_trained_alone_and_as_in_torch_and_nnx():
    """Weight decay moves whatever the optimizer is given, a gradient of zero or not."""
    plan = iso.resolve(FROZEN)
    start = order_one_weights(plan)
    ids = np.array([[1, 5, 2], [6, 0, 3]], np.int64)
    rate, decay = 0.1, 0.5

    module, tree = build(plan), variables(plan, start)
    optimizer = optax.adamw(rate, weight_decay=decay)

    def loss(params):
        return (module.apply({**tree, "params": params}, ids) ** 2).mean()

    slopes = compiled_quickly(jax.grad(loss))(tree["params"])
    updates, _ = optimizer.update(slopes, optimizer.init(tree["params"]), tree["params"])
    linen = weights(plan, {**tree, "params": optax.apply_updates(tree["params"], updates)})

    model = iso.nnx.build(plan, start)
    model.eval()
    stepper = nnx.Optimizer(model, optimizer, wrt=nnx.Param)
    graph, trained, rest = nnx.split(model, nnx.Param, ...)

    def of_model(trained):
        return (nnx.merge(graph, trained, rest)(jnp.asarray(ids)) ** 2).mean()

    stepper.update(model, compiled_quickly(jax.grad(of_model))(trained))
    moved = {"linen": linen, "nnx": iso.nnx.weights(model)}

    torch = pytest.importorskip("torch")
    network = iso.torch.build(plan, start).eval()
    stepping = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
    network(torch.tensor(ids)).square().mean().backward()
    stepping.step()
    moved["torch"] = iso.torch.weights(network)

    for backend, found in moved.items():
        for parameter in plan.parameters:
            before, after = np.float32(start[parameter.path]), found[parameter.path]
            assert np.array_equal(before, after) == (not parameter.trainable), (backend, parameter.path)
            # Every number moves by the rate, and by rate * decay of itself: not by 1 % of the rate apart.
            np.testing.assert_allclose(after, moved["torch"][parameter.path], atol=0.01 * rate, rtol=0)


def test_a_network_that_is_frozen_whole():
    plan = iso.resolve("linear(3, trainable=False)", input=("B", 2))
    tree, x = variables(plan), draw(2, 2)
    assert tree["params"] == {} and set(tree["frozen"]) == {"n0"}
    drawn = build(plan).init(jax.random.key(0), x)
    assert set(drawn) == {"frozen"} and set(weights(plan, drawn)) == {"n0.weight", "n0.bias"}
    y = build(plan).apply(tree, x)
    assert jnp.array_equal(y, build(plan).apply({"frozen": tree["frozen"]}, x))
    assert jnp.array_equal(y, iso.prepare(build(plan).bind(tree))(x))


def test_what_lies_in_the_wrong_collection_is_refused():
    plan = iso.resolve('linear(2, trainable={"bias": False})', input=("B", 2))
    tree = variables(plan)
    both = {"params": {"n0": {**tree["params"]["n0"], **tree["frozen"]["n0"]}}}
    with pytest.raises(iso.IsomorphError) as caught:
        weights(plan, both)
    assert str(caught.value) == (
        "E_WEIGHTS: what is frozen lies in a collection of its own, and some of this does not\n"
        "  n0.bias belongs in 'frozen', not in 'params'"
    )
    with pytest.raises(ScopeCollectionNotFound, match='"bias" from collection "frozen"'):
        build(plan).apply(both, draw(1, 2))
    bad = {**tree, "frozen": {"n0": {"bias": jnp.zeros(3)}}}
    with pytest.raises(ScopeParamShapeError, match=r"generate shape \(2,\), but .* has shape \(3,\)"):
        build(plan).apply(bad, draw(1, 2))


@pytest.mark.parametrize(
    ("trainable", "missing", "hint"),
    [
        ("False", "frozen", 'what is frozen is given too, as in module.apply({**variables, "params": params}, x)'),
        ("True", "params", "isomorph.linen.variables(plan, weights) has all of them"),
    ],
)  # fmt: skip
def test_a_tied_parameter_that_is_not_there_is_named(trainable, missing, hint):
    """A table that two nodes share is looked for by the network itself, where Flax cannot say what is missing."""
    text = f"embedding(5, 4, name='e', trainable={trainable})\nlinear(5, tie={{'weight': 'e.weight'}})"
    plan = iso.resolve(text, input=("B", "T"), input_dtype="int64")
    tree, ids = variables(plan), jnp.ones((1, 2), int)
    rest = {**tree, missing: {name: own for name, own in tree[missing].items() if name != "e"}}
    for given in (rest, {name: tree[name] for name in tree if name != missing}):
        for use in (
            lambda given=given: build(plan).apply(given, ids),
            lambda given=given: iso.prepare(build(plan).bind(given))(ids),
            lambda given=given: iso.generate(build(plan).bind(given), [1], 1),
        ):
            with pytest.raises(iso.IsomorphError) as caught:
                use()
            expected = f"E_WEIGHTS: the variables have no {missing}/e/embedding\n  {hint}"
            assert str(caught.value) == expected


def test_transformations_of_flax_carry_the_frozen_collection():
    plan = iso.resolve('linear(4, trainable={"bias": False})\ntanh()', input=("B", 4))

    class Layers(nn.Module):
        @nn.compact
        def __call__(self, x):
            step = nn.scan(
                lambda layer, x, _: (layer(x), None),
                variable_axes={"params": 0, "frozen": 0}, split_rngs={"params": True}, length=3,
            )  # fmt: skip
            return step(nn.remat(Network)(PreparedPlan(plan), name="layer"), x, None)[0]

    x = draw(2, 4)
    tree = Layers().init(jax.random.key(0), x)
    kernels, biases = tree["params"]["layer"]["n0"]["kernel"], tree["frozen"]["layer"]["n0"]["bias"]
    assert (kernels.shape, biases.shape) == ((3, 4, 4), (3, 4))
    expected = x
    for kernel, bias in zip(kernels, biases, strict=True):
        expected = jnp.tanh(expected @ kernel + bias)
    np.testing.assert_allclose(Layers().apply(tree, x), expected, atol=1e-6)
    slopes = jax.grad(lambda params: Layers().apply({**tree, "params": params}, x).sum())(tree["params"])
    assert jax.tree.all(jax.tree.map(lambda slope: bool(slope.any()), slopes))


def test_modules_of_equal_plans_are_equal_and_can_be_static():
    one, two = (build(iso.resolve("linear(2)", input=("B", 2))) for _ in range(2))
    assert one == two and hash(one) == hash(two)
    traces = []

    def call(module, tree, x):
        traces.append(1)
        return module.apply(tree, x)

    call = jax.jit(call, static_argnums=0)
    for module in (one, two):
        call(module, variables(one.plan), draw(1, 2))
    assert len(traces) == 1


def test_an_input_named_train():
    plan = iso.resolve('train = input("B", 2)\nrelu(train)')
    with pytest.raises(iso.IsomorphError) as caught:
        build(plan)
    assert str(caught.value).startswith("E_NAME: an input named 'train' cannot be given to a Linen module")
