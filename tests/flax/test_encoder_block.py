"""The two plain Flax blocks, sentence by sentence of what they promise."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx, traverse_util
from jax import numpy as jnp

import isomorph as iso
from isomorph import testing
from isomorph.backends.jax.harness import compiled_quickly
from isomorph.flax import encoder_block_forward
from isomorph.flax.linen import EncoderBlock
from isomorph.flax.nnx import EncoderBlock as NNXBlock
from isomorph.flax.weights import linen_variables, linen_weights, load_nnx, nnx_weights

SEEDS = (0, 1, 7, 123, 2**31 - 1)


class Independent(nn.Module):
    """The recipe written a second time, each submodule named by hand."""

    heads: int
    d_ff: int
    swapped: bool = False

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        first, second = ("Dense_1", "Dense_0") if self.swapped else ("Dense_0", "Dense_1")
        attend = nn.MultiHeadDotProductAttention(
            num_heads=self.heads, qkv_features=width, name="MultiHeadDotProductAttention_0"
        )
        a = attend(nn.LayerNorm(name="LayerNorm_0")(x))
        x1 = x + a
        hidden = jnp.maximum(nn.Dense(self.d_ff, name=first)(nn.LayerNorm(name="LayerNorm_1")(x1)), 0.0)
        return x1 + nn.Dense(width, name=second)(hidden)


def independent_forward(seed, x, num_heads, d_ff, **options):
    module = Independent(num_heads, d_ff, **options)
    return module.apply(module.init(jax.random.PRNGKey(seed), x), x).reshape(-1)


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def error_of(function, *arguments, **keywords):
    with pytest.raises(iso.IsomorphError) as caught:
        function(*arguments, **keywords)
    return str(caught.value)


def block_plan(D=4, heads=2, d_ff=7):
    return iso.resolve(f"encoder_block({heads}, {d_ff})", input=("B", "T", D))


def nnx_block(D=4, heads=2, d_ff=7, weights=None):
    block = NNXBlock(D, heads, d_ff, rngs=nnx.Rngs(0))
    load_nnx(
        block, block_plan(D, heads, d_ff), weights or testing.order_one_weights(block_plan(D, heads, d_ff))
    )
    return block


# -- seeded initialisation -------------------------------------------------------------------------

# (T, D, H, F): every T and D, heads of one feature, of all and between, F of 1, D - 1, D and 4 D.
SIZES = [(1, 4, 1, 1), (2, 8, 8, 7), (5, 48, 6, 48), (16, 4, 2, 16)]


@pytest.mark.parametrize(("T", "D", "H", "F"), SIZES)
def test_bit_equal_to_flax_own_initialisation(T, D, H, F):
    for seed in SEEDS:
        x = draw(T, D, seed=seed % 100)
        got = encoder_block_forward(seed, x, H, F)
        assert (got.shape, got.dtype) == ((T * D,), jnp.float32)
        assert jnp.array_equal(got, independent_forward(seed, x, H, F))


@pytest.mark.exhaustive
@pytest.mark.parametrize("D", [4, 8, 48])
def test_bit_equal_over_the_whole_grid(D):
    """1,360 cases in all, about two minutes: ``make trials``."""
    for H in (n for n in range(1, D + 1) if D % n == 0):
        for T, F in itertools.product((1, 2, 5, 16), sorted({1, D - 1, D, 4 * D})):
            x = draw(T, D, seed=T * D + F)
            for seed in SEEDS:
                got = encoder_block_forward(seed, x, H, F)
                assert got.shape == (T * D,)
                assert jnp.array_equal(got, independent_forward(seed, x, H, F)), (seed, T, D, H, F)


@pytest.mark.parametrize(("D", "heads"), [(4, (1, 2, 4)), (8, (1, 2, 4, 8)), (48, (1, 3, 16, 48))])
def test_close_to_it_when_compiled_for_many_numbers_of_heads(D, heads):
    for i, H in enumerate(heads):
        T, F = (1, 2, 5, 16)[i % 4], (1, D - 1, D, 4 * D)[(i + i // 4) % 4]
        seed, x = SEEDS[i % 5], draw(T, D, seed=i)
        got, want = (
            compiled_quickly(partial(forward, seed, num_heads=H, d_ff=F))(x)
            for forward in (encoder_block_forward, independent_forward)
        )
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_swapped_dense_names_give_other_values():
    """Nested as Dense(D)(relu(Dense(F)(z))), the outer Dense would be the first to be named."""
    x = draw(5, 8)
    assert not np.allclose(encoder_block_forward(7, x, 2, 8), independent_forward(7, x, 2, 8, swapped=True))
    variables = jax.eval_shape(EncoderBlock(2, 12).init, jax.random.PRNGKey(0), x)
    assert {k: v.shape for k, v in traverse_util.flatten_dict(variables["params"], sep="/").items()} == {
        "LayerNorm_0/scale": (8,), "LayerNorm_0/bias": (8,),
        "MultiHeadDotProductAttention_0/query/kernel": (8, 2, 4),
        "MultiHeadDotProductAttention_0/query/bias": (2, 4),
        "MultiHeadDotProductAttention_0/key/kernel": (8, 2, 4),
        "MultiHeadDotProductAttention_0/key/bias": (2, 4),
        "MultiHeadDotProductAttention_0/value/kernel": (8, 2, 4),
        "MultiHeadDotProductAttention_0/value/bias": (2, 4),
        "MultiHeadDotProductAttention_0/out/kernel": (2, 4, 8),
        "MultiHeadDotProductAttention_0/out/bias": (8,),
        "LayerNorm_1/scale": (8,), "LayerNorm_1/bias": (8,),
        "Dense_0/kernel": (8, 12), "Dense_0/bias": (12,),
        "Dense_1/kernel": (12, 8), "Dense_1/bias": (8,),
    }  # fmt: skip
    assert list(variables) == ["params"]  # no running statistics, no cache


def test_features_vary_fastest_and_jit_agrees():
    x = draw(3, 4)
    flat = encoder_block_forward(1, x, 2, 5)
    block = EncoderBlock(num_heads=2, d_ff=5)
    whole = block.apply(block.init(jax.random.PRNGKey(1), x), x)
    assert jnp.array_equal(flat.reshape(3, 4), whole)
    assert flat[4] == whole[1, 0]
    compiled = jax.jit(encoder_block_forward, static_argnums=(0, 2, 3))
    np.testing.assert_allclose(compiled(1, x, 2, 5), flat, atol=1e-5)
    assert jnp.array_equal(encoder_block_forward(np.int64(1), np.asarray(x), 2, 5), flat)


def test_stages_have_the_documented_shapes():
    T, D, H, F = 5, 8, 2, 6
    block = EncoderBlock(H, F)
    _, found = jax.eval_shape(
        lambda x: block.init_with_output(jax.random.PRNGKey(0), x, capture_intermediates=True), draw(T, D)
    )
    made = {k: v[0].shape for k, v in traverse_util.flatten_dict(found["intermediates"], sep="/").items()}
    attention = "MultiHeadDotProductAttention_0"
    assert made == {
        "LayerNorm_0/__call__": (T, D),
        **{f"{attention}/{name}/__call__": (T, H, D // H) for name in ("query", "key", "value")},
        f"{attention}/out/__call__": (T, D), f"{attention}/__call__": (T, D),
        "LayerNorm_1/__call__": (T, D), "Dense_0/__call__": (T, F), "Dense_1/__call__": (T, D),
        "__call__": (T, D),
    }  # fmt: skip
    variables = {"params": found["params"]}
    jaxpr = str(jax.make_jaxpr(block.apply)(variables, draw(T, D)))
    assert f"f32[{H},{T},{T}]" in jaxpr  # the scores


def test_defaults_are_kept():
    """Epsilon 1e-6 in both norms, scales 1, offsets and biases 0, projection biases present."""
    variables = compiled_quickly(EncoderBlock(1, 3).init)(jax.random.PRNGKey(0), draw(1, 2))
    flat = traverse_util.flatten_dict(variables["params"], sep="/")
    assert all(value.tolist() == [1.0, 1.0] for path, value in flat.items() if path.endswith("scale"))
    assert not any(value.any() for path, value in flat.items() if path.endswith("bias"))
    assert sum(path.endswith("bias") for path in flat) == 8
    # One token attends itself alone. With all of the attention but its value path off, x1 = x + norm(x):
    # for [1e-3, -1e-3], 1e-3 / sqrt(1e-6 + 1e-6) = 0.70711, which eps 1e-5 would make 0.30151.
    eye = np.eye(2)
    plan = block_plan(2, 1, 3)
    weights = {p.path: np.zeros(p.shape) for p in plan.parameters}
    weights |= {"n0.norm1.weight": np.ones(2), "n0.attn.v_proj.weight": eye, "n0.attn.o_proj.weight": eye}
    x = jnp.array([[1e-3, -1e-3]])
    for out in (
        form(x[None])[0] for name, form in forms(plan, to_float32(weights)).items() if name.endswith("block")
    ):
        np.testing.assert_allclose(out, [[0.70811, -0.70811]], atol=1e-5)


def to_float32(weights):
    return {path: array.astype(np.float32) for path, array in weights.items()}


# -- what the block computes, in all its forms -----------------------------------------------------


def forms(plan, weights):
    """The block with given weights, by form: functions of ``[B, T, D]``."""
    operator = plan.nodes[0].operator
    module, variables = EncoderBlock(operator.heads, operator.d_ff), linen_variables(plan, weights)
    block = NNXBlock(operator.sizes["D"], operator.heads, operator.d_ff, rngs=nnx.Rngs(0))
    load_nnx(block, plan, weights)
    network = iso.nnx.build(plan, weights)
    return {
        "linen block": compiled_quickly(partial(module.apply, variables)),
        "nnx block": compiled_quickly(lambda x: block(x)),
        "nnx operator": compiled_quickly(lambda x: network(x)),
        "linen operator": compiled_quickly(
            partial(iso.linen.build(plan).apply, iso.linen.variables(plan, weights))
        ),
        "reference operator": iso.reference.build(plan, weights),
        **_torch_form(plan, weights),
    }


def _torch_form(plan, weights):
    torch = pytest.importorskip("torch")
    model = iso.torch.build(plan, weights)
    return {"torch operator": lambda x: model(torch.tensor(x)).detach().numpy()}


def test_the_example_with_known_weights():
    """Attention averages the normalized tokens, [-1, 1]; the feed-forward adds relu of [-1, 1]."""
    plan = block_plan(2, 1, 2)
    weights = {p.path: np.zeros(p.shape, np.float32) for p in plan.parameters}
    eye, one = np.eye(2, dtype=np.float32), np.ones(2, np.float32)
    for name in ("attn.v_proj", "attn.o_proj", "ffn.up", "ffn.down"):
        weights[f"n0.{name}.weight"] = eye
    weights["n0.norm1.weight"] = weights["n0.norm2.weight"] = one
    x = np.array([[[1.0, 3.0], [2.0, 4.0]]], np.float32)
    for name, form in forms(plan, weights).items():
        # x1 = [[0, 4], [1, 5]], normalized [-1, 1] in both rows, so out = [[0, 4 + 1], [1, 5 + 1]]
        np.testing.assert_allclose(form(x), [[[0.0, 5.0], [1.0, 6.0]]], atol=2e-6, err_msg=name)


def test_both_residuals_with_updates_chosen_by_biases():
    """x = [1, 3], the attention adds [0.5, -0.5], the feed-forward [2, 1]: [3.5, 3.5] and not [3, 4]."""
    plan = block_plan(2, 1, 2)
    weights = {p.path: np.zeros(p.shape, np.float32) for p in plan.parameters}
    weights["n0.attn.o_proj.bias"] = np.array([0.5, -0.5], np.float32)
    weights["n0.ffn.down.bias"] = np.array([2.0, 1.0], np.float32)
    for name, form in forms(plan, weights).items():
        assert np.asarray(form(np.array([[[1.0, 3.0]]], np.float32))).tolist() == [[[3.5, 3.5]]], name


def test_all_forms_agree_with_weights_of_order_one():
    """The norms' gains differ here, so sharing one norm, or a norm at the end, would show."""
    plan, x = block_plan(8, 2, 5), np.asarray(draw(2, 5, 8))
    weights = testing.order_one_weights(plan)
    want = iso.reference.build(plan, weights)(x)
    for name, form in forms(plan, weights).items():
        np.testing.assert_allclose(form(x), want, atol=2e-5, err_msg=name)


def test_zero_branches_return_the_input_exactly():
    plan, x = block_plan(), np.asarray(draw(2, 3, 4))
    weights = testing.order_one_weights(plan)
    for path in ("attn.o_proj.weight", "attn.o_proj.bias", "ffn.down.weight", "ffn.down.bias"):
        weights[f"n0.{path}"] = weights[f"n0.{path}"] * 0
    for name, form in forms(plan, weights).items():
        assert np.array_equal(form(x), x), name


def test_permuted_tokens_give_permuted_outputs_and_every_token_matters():
    plan, x = block_plan(), np.asarray(draw(1, 5, 4))
    order = [3, 0, 4, 1, 2]
    for name, form in forms(plan, testing.order_one_weights(plan)).items():
        out = np.asarray(form(x))
        np.testing.assert_allclose(form(x[:, order]), out[:, order], atol=1e-5, err_msg=name)
        for changed in (0, 4):  # bidirectional: both ends reach the middle
            other = x.copy()
            other[:, changed] += np.array([1, -1, 2, 0], np.float32)
            assert not np.allclose(np.asarray(form(other))[:, 2], out[:, 2], atol=1e-4), name


def test_the_feed_forward_does_not_mix_rows():
    """With the attention off, a row depends on itself alone."""
    plan, x = block_plan(), np.asarray(draw(1, 5, 4))
    weights = testing.order_one_weights(plan)
    weights["n0.attn.o_proj.weight"] = weights["n0.attn.o_proj.weight"] * 0
    for name, form in forms(plan, weights).items():
        alone = np.concatenate([np.asarray(form(x[:, t : t + 1])) for t in range(5)], 1)
        np.testing.assert_allclose(form(x), alone, atol=1e-6, err_msg=name)


def test_nothing_random_happens_in_a_call():
    block = nnx_block()
    assert not jax.tree.leaves(nnx.state(NNXBlock(4, 2, 7, rngs=nnx.Rngs(0)), nnx.RngState))
    assert not jax.tree.leaves(nnx.state(block, nnx.Not(nnx.Param)))  # no streams, no statistics


# -- the NNX block ---------------------------------------------------------------------------------


def test_the_nnx_block_has_the_named_parts():
    block = NNXBlock(8, 2, 3, rngs=nnx.Rngs(0))
    assert isinstance(block.layer_norm_1, nnx.LayerNorm) and isinstance(block.layer_norm_2, nnx.LayerNorm)
    assert block.layer_norm_1.scale is not block.layer_norm_2.scale
    assert block.layer_norm_1.epsilon == block.layer_norm_2.epsilon == 1e-6
    kernels = {
        ".".join(path): leaf.shape
        for path, leaf in nnx.to_flat_state(nnx.state(block))
        if path[-1] == "kernel"
    }
    assert kernels == {
        "attention.query.kernel": (8, 8), "attention.key.kernel": (8, 8),
        "attention.value.kernel": (8, 8), "attention.out.kernel": (8, 8),
        "ff1.kernel": (8, 3), "ff2.kernel": (3, 8),
    }  # fmt: skip


def test_the_nnx_block_takes_one_sequence_or_a_batch():
    block, x = nnx_block(), draw(3, 5, 4)
    batched, one = compiled_quickly(lambda x: (block(x), block(x[1])))(x)
    assert (batched.shape, one.shape) == ((3, 5, 4), (5, 4))
    np.testing.assert_allclose(one, batched[1], atol=1e-6)
    np.testing.assert_allclose(nnx.jit(lambda b, x: b(x))(block, x), batched, atol=1e-5)


def test_the_nnx_block_normalizes_large_means():
    plan = block_plan(4, 1, 1)
    weights = {p.path: np.zeros(p.shape) for p in plan.parameters}
    eye = np.eye(4)
    weights |= {"n0.norm1.weight": np.ones(4), "n0.attn.v_proj.weight": eye, "n0.attn.o_proj.weight": eye}
    x = jnp.array([[40000.0, 40001.0, 40002.0, 40003.0]])
    out = nnx_block(4, 1, 1, weights)(x)
    # deviations -1.5, ... over sqrt(1.25); numbers around 40000 are 2^-8 apart
    np.testing.assert_allclose(out - x, [[-1.34164, -0.44721, 0.44721, 1.34164]], atol=2**-8)


# -- weights ---------------------------------------------------------------------------------------


def test_weights_go_there_and_back_bit_for_bit_without_shared_memory():
    plan = block_plan(8, 4, 3)
    weights = to_float32(testing.order_one_weights(plan))
    kept = {path: array.copy() for path, array in weights.items()}
    variables, block = linen_variables(plan, weights), NNXBlock(8, 4, 3, rngs=nnx.Rngs(0))
    load_nnx(block, plan, weights)
    for array in weights.values():
        array[...] = 0
    for read in (lambda: linen_weights(plan, variables), lambda: nnx_weights(block, plan)):
        found = read()
        assert list(found) == list(kept)
        for path, array in found.items():
            assert array.tobytes() == kept[path].tobytes()
            array[...] = 0
        assert all(array.tobytes() == kept[path].tobytes() for path, array in read().items())


def test_projections_and_heads_stay_apart():
    plan = block_plan(4, 2, 3)
    weights = {p.path: np.zeros(p.shape, np.float32) for p in plan.parameters}
    weights["n0.attn.q_proj.weight"] = np.arange(16.0, dtype=np.float32).reshape(4, 4)  # row = feature out
    weights["n0.attn.k_proj.weight"] += 1
    weights["n0.attn.v_proj.weight"] += 2
    weights["n0.attn.o_proj.weight"] = np.arange(16.0, dtype=np.float32).reshape(4, 4)
    attention = linen_variables(plan, weights)["params"]["MultiHeadDotProductAttention_0"]
    # kernel[i, head, f] = weight[head * 2 + f, i]
    assert attention["query"]["kernel"][1].tolist() == [[1.0, 5.0], [9.0, 13.0]]
    assert set(attention["key"]["kernel"].ravel().tolist()) == {1.0}
    assert set(attention["value"]["kernel"].ravel().tolist()) == {2.0}
    # kernel[head, f, o] = weight[o, head * 2 + f]
    assert attention["out"]["kernel"][1, 0].tolist() == [2.0, 6.0, 10.0, 14.0]


def test_one_node_of_a_larger_plan():
    plan = iso.resolve('linear(4)\nencoder_block(2, 3, name="block")', input=("B", "T", 4))
    weights = iso.initial_weights(plan)
    found = linen_weights(plan, linen_variables(plan, weights, "block"), "block")
    assert {path.partition(".")[0] for path in found} == {"block"}
    assert all(np.array_equal(array, weights[path]) for path, array in found.items())


def test_what_does_not_fit_is_listed():
    plan = block_plan(8, 2, 3)
    shapes = jax.eval_shape(EncoderBlock(4, 3).init, jax.random.PRNGKey(0), draw(1, 8))
    variables = jax.tree.map(lambda s: np.zeros(s.shape), shapes)  # four heads of two features
    params = dict(variables["params"])
    params["Dense_2"] = params.pop("Dense_1")
    assert error_of(linen_weights, plan, {"params": params}) == (
        "E_WEIGHTS: the block's parameters do not fit node n0\n"
        "  missing: Dense_1.kernel [3, 8]\n"
        "  missing: Dense_1.bias [8]\n"
        "  unexpected: Dense_2.bias [8]\n"
        "  unexpected: Dense_2.kernel [3, 8]\n"
        "  misshapen: MultiHeadDotProductAttention_0.key.bias: expected [2, 4], got [4, 2]\n"
        "  misshapen: MultiHeadDotProductAttention_0.key.kernel: expected [8, 2, 4], got [8, 4, 2]\n"
        "  misshapen: MultiHeadDotProductAttention_0.out.kernel: expected [2, 4, 8], got [4, 2, 8]\n"
        "  misshapen: MultiHeadDotProductAttention_0.query.bias: expected [2, 4], got [4, 2]\n"
        "  misshapen: MultiHeadDotProductAttention_0.query.kernel: expected [8, 2, 4], got [8, 4, 2]\n"
        "  misshapen: MultiHeadDotProductAttention_0.value.bias: expected [2, 4], got [4, 2]\n"
        "  misshapen: MultiHeadDotProductAttention_0.value.kernel: expected [8, 2, 4], got [8, 4, 2]"
    )
    block = NNXBlock(8, 4, 3, rngs=nnx.Rngs(0))
    before = block.ff1.kernel[...]
    message = "the block has 4 heads, the node 2"
    assert message in error_of(load_nnx, block, plan, testing.order_one_weights(plan))
    assert message in error_of(nnx_weights, block, plan)
    assert jnp.array_equal(block.ff1.kernel[...], before)
    short = {path: w for path, w in testing.order_one_weights(plan).items() if path != "n0.norm2.bias"}
    assert "missing: n0.norm2.bias [8]" in error_of(linen_variables, plan, short)
    other = iso.resolve("encoder_block(2, 3, eps=1e-5)\nlinear(2)", input=("B", "T", 8))
    assert error_of(linen_variables, other, {}) == (
        "E_ARGUMENT: node n0: Flax's blocks have eps=1e-6, the node has eps=1e-05"
    )
    assert error_of(linen_variables, other, {}, "n1").startswith(
        "E_ARGUMENT: node 'n1' must be an encoder_block: it is linear("
    )
    assert error_of(nnx_weights, block, plan, "n9") == (
        "E_ARGUMENT: node 'n9' must be an encoder_block: there is no such node"
    )
    assert error_of(linen_weights, plan, [1]).startswith("E_ARGUMENT: variables must be a mapping")


# -- what is refused -------------------------------------------------------------------------------


def test_heads_that_do_not_divide_the_width():
    message = "E_CONSTRAINT: heads=3 does not divide the model width D=8\n  heads that divide 8: 1, 2, 4, 8"
    assert error_of(encoder_block_forward, 0, draw(5, 8), 3, 4) == message
    assert error_of(NNXBlock, 8, 3, 4, rngs=nnx.Rngs(0)) == message
    with pytest.raises(iso.IsomorphError, match="heads=3 does not divide"):
        EncoderBlock(3, 4).init(jax.random.PRNGKey(0), draw(5, 8))


@pytest.mark.parametrize("wrong", [0, -2, 1.0, True, "4", None])
def test_sizes_that_are_no_positive_ints(wrong):
    for name, arguments in (("num_heads", (wrong, 4)), ("d_ff", (2, wrong))):
        message = f"E_ARGUMENT: {name} must be an int >= 1, got {wrong!r}"
        assert error_of(encoder_block_forward, 0, draw(5, 8), *arguments) == message
        assert error_of(NNXBlock, 8, *arguments, rngs=nnx.Rngs(0)) == message
    assert error_of(NNXBlock, wrong, 2, 4, rngs=nnx.Rngs(0)) == (
        f"E_ARGUMENT: d_model must be an int >= 1, got {wrong!r}"
    )


def test_inputs_that_do_not_fit():
    block = nnx_block()
    assert error_of(block, draw(4)) == "E_RUNTIME: x must be [T, D] or [B, T, D], got [4]"
    assert error_of(block, draw(1, 2, 3, 4)) == "E_RUNTIME: x must be [T, D] or [B, T, D], got [1, 2, 3, 4]"
    assert error_of(block, draw(3, 5)) == "E_RUNTIME: x must have 4 features, got [3, 5]"
    assert error_of(block, jnp.zeros((3, 4), int)) == (
        "E_RUNTIME: x must have a floating-point dtype, got int32"
    )
    assert (
        error_of(encoder_block_forward, 0, draw(1, 3, 4), 2, 4)
        == "E_RUNTIME: x must be [T, D], got [1, 3, 4]"
    )
    assert (
        error_of(encoder_block_forward, 0, [[1.0]], 2, 4)
        == "E_RUNTIME: x must be an array [T, D], got 'list'"
    )
    assert error_of(encoder_block_forward, 0, draw(3, 0), 2, 4) == (
        "E_RUNTIME: x must have at least one feature, got [3, 0]"
    )
    assert error_of(encoder_block_forward, "seed", draw(3, 4), 2, 4) == (
        "E_ARGUMENT: seed must be an int, got 'seed'"
    )
