"""The JAX primitives against hand arithmetic, jax.nn and the NumPy reference."""

import math

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from isomorph.backends.jax import primitives as F
from isomorph.backends.jax.harness import compiled_quickly
from isomorph.backends.reference import primitives as reference
from isomorph.errors import IsomorphError
from isomorph.primitives import Primitives

NAN, INF = math.nan, math.inf
DTYPES = ["float16", "bfloat16", "float32", "float64"]


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def draw(*shape, seed=0, dtype="float64"):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def heads(B=2, H=4, K=2, T=5, S=5, d=3, seed=0):
    return draw(B, H, T, d, seed=seed), draw(B, K, S, d, seed=seed + 1), draw(B, K, S, d, seed=seed + 2)


def padding(B=2, S=5):
    """Row 0 hides the last two keys, row 1 hides every key."""
    mask = np.ones((B, S), bool)
    mask[0, -2:] = False
    mask[1] = False
    return jnp.asarray(mask)


def close(got, want, tolerance=1e-12):
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=0, atol=tolerance)


def attention(*tensors, **options):
    return compiled_quickly(lambda *given: F.attention(*given, **options))(*tensors)


def test_every_primitive_is_there():
    names = [name for name in vars(Primitives) if not name.startswith("_")]
    assert "attention" in names
    assert [name for name in names if not callable(getattr(F, name, None))] == []


# -- values ----------------------------------------------------------------------------------------


def test_linear_by_hand():
    x, weight = jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0], [5.0, 6.0], [0.0, 1.0]])
    # 1*3 + 2*4 + 1 = 12, 1*5 + 2*6 + 1 = 18, 0 + 2 + 1 = 3
    assert F.linear(x, weight, jnp.ones(3)).tolist() == [[12.0, 18.0, 3.0]]
    assert F.linear(x, weight).tolist() == [[11.0, 17.0, 2.0]]


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 2), (2, 1), (9, 5)])
def test_conv1d_by_hand(stride, padding):
    x, weight = jnp.array([[[1.0, 2.0, 3.0, 4.0]]]), jnp.array([[[1.0, 10.0, 100.0]]])
    full = [100, 210, 321, 432, 43, 4]  # of two zeros at either end: 0 + 0 + 100, 0 + 10 + 200, ..., 4
    expected = full[2 - padding : 4 + padding : stride] if padding < 3 else [0, 0]  # windows of zeros alone
    found = F.conv1d(x, weight, jnp.array([0.5]), stride=stride, padding=padding)
    assert found.tolist() == [[[value + 0.5 for value in expected]]]
    assert F.conv1d(x[:0], weight, stride=stride, padding=padding).shape == (0, 1, len(expected))


def test_conv2d_by_hand():
    x = jnp.arange(8.0).reshape(1, 1, 2, 4)  # rows 0 1 2 3 and 4 5 6 7
    weight = jnp.array([[[[1.0, 10.0], [100.0, 1000.0]]]])
    # left patch 0 + 10*1 + 100*4 + 1000*5 = 5410, right patch 2 + 10*3 + 100*6 + 1000*7 = 7632
    assert F.conv2d(x, weight, jnp.array([0.5]), stride=2).tolist() == [[[[5410.5, 7632.5]]]]
    assert F.conv2d(x[:0], weight, stride=2).shape == (0, 1, 1, 2)


def test_layer_norm_of_a_large_mean():
    x = jnp.array([40000.0, 40001.0, 40002.0, 40003.0], "float32")
    # deviations -1.5, -0.5, 0.5, 1.5, variance 1.25: 1.5 / sqrt(1.25) = 1.34164, 0.5 / sqrt(1.25) = 0.44721
    assert F.layer_norm(x, None, None, eps=1e-5).tolist() == pytest.approx(
        [-1.34164, -0.44721, 0.44721, 1.34164], abs=1e-5
    )


def test_layer_norm_epsilon():
    x = jnp.array([1e-3, -1e-3])  # variance 1e-6
    for eps, expected in ((1e-5, 0.30151134), (1e-6, 0.70710678), (1e-12, 0.9999995)):
        # 1e-3 / sqrt(1e-6 + eps)
        assert F.layer_norm(x, None, None, eps=eps).tolist() == pytest.approx([expected, -expected], abs=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_in_half_precision(dtype):
    ones = F.rms_norm(jnp.full(4, 300, dtype), None, eps=1e-6)  # 300^2 overflows float16
    zeros = F.layer_norm(jnp.zeros(4, dtype), None, None, eps=1e-12)  # 1e-12 is zero in float16
    unit = F.l2_normalize(jnp.full(4, 300, dtype), eps=1e-12)
    assert ones.dtype == zeros.dtype == unit.dtype == dtype
    assert ones.tolist() == pytest.approx([1.0] * 4, abs=1e-6)
    assert zeros.tolist() == [0.0] * 4
    assert unit.tolist() == pytest.approx([0.5] * 4)


def test_norms_with_gains_by_hand():
    x = jnp.array([3.0, 4.0])  # mean square 12.5; mean 3.5, variance 0.25
    scale, gain = 1 / math.sqrt(12.5 + 0.5), jnp.array([2.0, -1.0])
    close(F.rms_norm(x, gain, eps=0.5), [6 * scale, -4 * scale])
    close(F.rms_norm(x, gain, eps=0.5, offset=1.0), [9 * scale, 0.0])
    close(F.rms_norm(x, None, eps=0.5), [3 * scale, 4 * scale])
    # -0.5 / sqrt(0.25 + 0.75) * 2 + 10, 0.5 * -1 + 20
    close(F.layer_norm(x, gain, jnp.array([10.0, 20.0]), eps=0.75), [9.0, 19.5])


def test_rms_norm_of_a_gain_around_zero_rounds_once_in_bfloat16():
    x, gain = draw(64, 32, dtype="bfloat16"), (draw(32, seed=1) * 3e-3).astype("bfloat16")
    wide = np.asarray(x, np.float64)
    exact = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * (1 + np.asarray(gain, np.float64))
    # 1 + gain would be 1 in bfloat16, whose values around 1 are 2^-7 apart: one rounding errs by 2^-8 at most
    got = np.asarray(F.rms_norm(x, gain, eps=1e-6, offset=1.0), np.float64)
    assert np.abs((got - exact) / exact).max() <= 2**-8 * 1.01


def test_gelu_forms():
    assert F.gelu(jnp.array(-2.0)).item() == pytest.approx(-0.0455003, abs=5e-8)
    assert F.gelu(jnp.array(-2.0), "tanh").item() == pytest.approx(-0.0454023, abs=5e-8)


@pytest.mark.parametrize("name", ["relu", "silu", "gelu", "quick_gelu", "tanh", "exp", "sigmoid", "softmax"])
def test_elementwise_equals_the_reference(name):
    x = draw(3, 7)
    function = compiled_quickly(getattr(F, name))
    close(function(x), getattr(reference, name)(np.asarray(x)))
    exact = getattr(reference, name)(np.asarray(x.astype("bfloat16"), np.float64))
    got = function(x.astype("bfloat16"))
    assert got.dtype == "bfloat16"
    # one rounding to bfloat16, half a unit of 2^-7 at values up to 4
    np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=2**-8 * 1.01, atol=1e-6)


def test_the_derivative_of_relu_at_zero_is_zero():
    assert jax.grad(lambda x: F.relu(x))(0.0) == 0.0


def test_softmax_and_mean_accumulate_in_float32():
    x = jnp.zeros(3000, "bfloat16")  # a sum of ones in bfloat16 stops at 256
    assert F.softmax(x, 0)[0].item() == pytest.approx(1 / 3000, rel=2**-8)
    assert F.mean(jnp.ones((1, 3000), "bfloat16"), 1).tolist() == [1.0]


@pytest.mark.parametrize("mode", ["mean", "max", "first", "last"])
def test_masked_pool_is_the_references_and_nothing_hidden_reaches_a_gradient(mode):
    x = draw(3, 5, 2)
    mask = np.array([[True, False, True, True, False], [False] * 5, [False, False, False, False, True]])
    close(F.masked_pool(x, jnp.asarray(mask), mode), reference.masked_pool(np.asarray(x), mask, mode), 1e-6)
    bad = jnp.where(mask[..., None], x, jnp.nan)
    for function in (F.masked_pool, jax.jit(F.masked_pool, static_argnums=2)):
        close(function(bad, jnp.asarray(mask), mode), function(x, jnp.asarray(mask), mode), 0)
        gradient = jax.grad(lambda x, f=function: f(x, jnp.asarray(mask), mode).sum())(bad)
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient.sum((1, 2)) > 0, [True, False, True])
        assert not np.asarray(gradient)[~mask].any()


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_take_at_takes_the_first_and_nothing_else_reaches_a_gradient(dtype):
    x = draw(3, 4, 2)
    ids = jnp.asarray([[5, 7, 9, 7], [9, 1, 2, 3], [1, 2, 2, 1]], dtype)
    for token, places in ((7, [1, 0, 0]), (-1, [2, 0, 1]), (49407, [0, 0, 0])):
        taken = np.zeros((3, 4, 1), bool)
        taken[range(3), places] = True
        bad = jnp.where(taken, x, NAN)
        for function in (F.take_at, jax.jit(F.take_at, static_argnums=2)):
            np.testing.assert_array_equal(function(bad, ids, token), np.asarray(x)[range(3), places])
            gradient = jax.grad(lambda x, f=function, t=token: (f(x, ids, t) * 3).sum())(bad)
            np.testing.assert_array_equal(gradient, np.where(taken, 3.0, 0.0).repeat(2, -1))
    assert F.take_at(x[:0], ids[:0], 7).shape == (0, 2)
    with pytest.raises(IsomorphError):
        F.take_at(x[:, :0], ids[:, :0], 7)


def test_masked_pool_accumulates_in_float32():
    ones = jnp.ones((1, 3000, 1), "bfloat16")  # a sum of ones in bfloat16 stops at 256
    assert F.masked_pool(ones, jnp.arange(3000)[None] < 2999, "mean").tolist() == [[1.0]]
    with pytest.raises(IsomorphError):
        F.masked_pool(ones[:, :0], jnp.ones((1, 0), bool), "first")


def test_shape_primitives_equal_the_reference():
    x = draw(2, 3, 4)
    array = np.asarray(x)
    close(F.reshape(x, (6, 4)), array.reshape(6, 4), 0)
    close(F.permute(x, (2, 0, 1)), array.transpose(2, 0, 1), 0)
    close(F.concatenate((x, x), -1), np.concatenate([array] * 2, -1), 0)
    close(F.narrow(x, -1, 1, 3), array[..., 1:3], 0)
    close(F.narrow(x, 1, -2, None), array[:, -2:], 0)
    close(F.expand(x[:1], (2, 3, 4)), np.repeat(array[:1], 2, 0), 0)
    close(F.mean(x, 1, True), array.mean(1, keepdims=True))
    close(F.max(x, -1), array.max(-1), 0)


def test_equal_largest_elements_share_the_gradient():
    assert jax.grad(lambda x: F.max(x, 0))(jnp.array([1.0, 3.0, 3.0])).tolist() == [0.0, 0.5, 0.5]


def test_narrow_beyond_the_end():
    with pytest.raises(IsomorphError) as caught:
        F.narrow(jnp.zeros((4, 2)), 0, 0, 5)
    assert str(caught.value) == "E_RUNTIME: elements 0:5 are outside axis 0 of a tensor [4, 2]"


@pytest.mark.parametrize("name", ["mean", "max"])
def test_reductions_over_nothing(name):
    for function in (getattr(F, name), jax.jit(getattr(F, name), static_argnums=1)):
        with pytest.raises(IsomorphError) as caught:
            function(jnp.zeros((2, 0, 3)), 1)
        assert caught.value.code == "E_RUNTIME"
        assert f"{name} over axis 1 of a tensor [2, 0, 3]" in str(caught.value)


# -- tables ----------------------------------------------------------------------------------------


def test_embedding_reads_rows():
    table = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    assert F.embedding(jnp.array([[1, 0]]), table).tolist() == [[[3.0, 4.0], [1.0, 2.0]]]
    assert F.embedding(jnp.zeros((2, 0), int), table).shape == (2, 0, 2)
    assert F.embedding(jnp.zeros((1, 2), int), table[:1]).tolist() == [[[1.0, 2.0]] * 2]


@pytest.mark.parametrize("wrong", [-1, 3, 9])
def test_an_id_outside_the_table_is_named(wrong):
    ids, table = jnp.array([[0, 2], [wrong, 1]]), jnp.zeros((3, 2))
    message = f"E_RUNTIME: id {wrong} is outside a table of 3 rows\n  ids run from 0 to 2"
    for function in (lambda table: F.embedding(ids, table), jax.jit(lambda table: F.embedding(ids, table))):
        with pytest.raises(IsomorphError) as caught:
            function(table)
        assert str(caught.value) == message
    # In compiled code there are no values to look at: the row is NaN, and no other.
    rows = jax.jit(F.embedding)(ids, table)
    assert jnp.isnan(rows).all(-1).tolist() == [[False, False], [True, False]]


def test_rotary_tables_in_bfloat16():
    positions = [255, 256, 257, 258, 259, 260, 261, 4095]
    cos, sin = F.cos_sin(4096, (1.0, 0.01), jnp.zeros(1, "bfloat16"))
    assert cos.dtype == sin.dtype == "bfloat16"
    for position in positions:
        for i, frequency in enumerate((1.0, 0.01)):
            assert cos[position, i].item() == pytest.approx(math.cos(position * frequency), abs=2**-8)
            assert sin[position, i].item() == pytest.approx(math.sin(position * frequency), abs=2**-8)
    assert len({(cos[p, 0].item(), sin[p, 0].item()) for p in positions}) == len(positions)


def test_rotary_tables_of_any_length():
    cos, sin = F.cos_sin(9, (1.0, 0.3), jnp.zeros(1))
    assert cos[7, 1].item() == math.cos(7 * 0.3)
    assert sin[8, 0].item() == math.sin(8.0)
    assert F.cos_sin(0, (1.0, 0.3), jnp.zeros(1))[0].shape == (0, 2)


# -- attention -------------------------------------------------------------------------------------

OPTIONS = [
    {},
    {"causal": True},
    {"window": 2},
    {"causal": True, "window": 3},
    {"softcap": 1.5},
    {"causal": True, "softcap": 1.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("T", "S", "K"), [(5, 5, 4), (2, 5, 2), (5, 2, 1), (1, 5, 2), (1, 1, 4)])
def test_attention_equals_the_reference(options, masked, T, S, K):
    tensors = (*heads(K=K, T=T, S=S), *([padding(S=S)] if masked else []))
    close(attention(*tensors, **options), reference.attention(*map(np.asarray, tensors), **options))


@pytest.mark.parametrize("options", [{}, {"causal": True, "window": 3, "softcap": 1.5}], ids=str)
@pytest.mark.parametrize(("B", "T", "S"), [(0, 3, 3), (2, 0, 0), (2, 0, 3), (2, 3, 0)])
def test_attention_over_nothing(options, B, T, S):
    q, k, v = heads(B=B, T=T, S=S)
    for mask in (None, jnp.ones((B, S), bool)):
        out = attention(q, k, v, *([] if mask is None else [mask]), **options)
        assert out.shape == (B, 4, T, 3)
        assert not out.any()  # without a key to attend, zeros


def test_causal_with_more_keys_than_queries():
    q, k = jnp.zeros((1, 1, 2, 1)), jnp.zeros((1, 1, 5, 1))
    v = jnp.arange(5.0).reshape(1, 1, 5, 1)
    # query 0 sees keys 0..3: (0+1+2+3)/4 = 1.5; query 1 sees all: 10/5 = 2
    assert attention(q, k, v, causal=True).ravel().tolist() == [1.5, 2.0]


def test_consecutive_query_heads_share_a_key_value_head():
    q, k = jnp.zeros((1, 4, 1, 1)), jnp.zeros((1, 2, 1, 1))
    v = jnp.array([10.0, 20.0]).reshape(1, 2, 1, 1)
    assert attention(q, k, v).ravel().tolist() == [10.0, 10.0, 20.0, 20.0]


def test_grouped_queries_copy_no_keys():
    """With 4 query heads for each key head, nothing as large as 4 copies of the keys appears."""
    q, k, v = heads(B=1, H=8, K=2, T=2, S=64, d=16)
    jaxpr = str(jax.make_jaxpr(F.attention)(q, k, v))
    assert "f64[2,16,64]" in jaxpr  # the keys, transposed: B*K, d, S
    assert "f64[8,16,64]" not in jaxpr
    assert "f64[1,8,64,16]" not in jaxpr


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_true_means_seen_and_nothing_is_added(dtype):
    q = jnp.full((1, 1, 1, 1), -17, dtype)
    k, v = jnp.ones((1, 1, 2, 1), dtype), jnp.array([1, 9], dtype).reshape(1, 1, 2, 1)
    for options in ({}, {"causal": True, "softcap": 50.0}):
        seen = attention(q, k, v, jnp.array([[True, False]]), **options)
        assert seen.dtype == dtype
        assert seen.ravel().tolist() == [1.0]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_a_mask_hides_reaches_neither_result_nor_gradient(options, bad):
    mask, tensors = padding(), heads()
    hidden = ~mask[:, None, :, None]

    def loss(q, k, v):
        out = F.attention(q, k, v, mask, **options)
        return (out**2).sum(), out

    function, results = compiled_quickly(jax.value_and_grad(loss, (0, 1, 2), has_aux=True)), []
    for filler in (0.0, bad):
        q, k, v = tensors
        (_, out), slopes = function(q, jnp.where(hidden, filler, k), jnp.where(hidden, filler, v))
        assert not out[1].any()  # a query that may attend nothing
        results.append((out, *slopes))
    for clean, dirty in zip(*results, strict=True):
        assert jnp.isfinite(clean).all()
        assert jnp.array_equal(clean, dirty)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("options", [{}, {"window": 2}, {"softcap": 2.0}], ids=str)
def test_the_future_does_not_leak_even_in_compiled_code(options, bad):
    q, k, v = heads(T=6, S=6)

    def loss(q, k, v):
        out = F.attention(q, k, v, causal=True, **options)
        return (out[:, :, :4] ** 2).sum(), out

    function = compiled_quickly(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))
    (_, want), wanted = function(q, k, v)
    for where in (1, 2):
        tensors = [q, k, v]
        tensors[where] = tensors[where].at[:, :, 4].set(bad)
        (_, got), slopes = function(*tensors)
        close(got[:, :, :4], want[:, :, :4], 1e-15)
        assert not jnp.isfinite(got[:, :, 4]).any()  # and who sees it is not told otherwise
        for slope, expected in zip(slopes, wanted, strict=True):
            close(slope, expected, 1e-14)


def test_a_visible_infinity_gives_what_the_reference_gives():
    q, k, v = heads(T=4, S=4)
    v = v.at[0, 0, 1, 0].set(INF).at[0, 0, 2, 0].set(-INF).at[0, 1, 3, 2].set(-INF)
    for options in ({"causal": True}, {"causal": True, "window": 2}):
        want = reference.attention(*map(np.asarray, (q, k, v)), **options)
        assert np.isposinf(want).any() and np.isneginf(want).any() and np.isnan(want).any()
        np.testing.assert_allclose(attention(q, k, v, **options), want, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_attention_accumulates_in_float32(dtype):
    q, k = jnp.zeros((1, 1, 1, 8), dtype), jnp.zeros((1, 1, 3000, 8), dtype)
    out = attention(q, k, jnp.ones((1, 1, 3000, 8), dtype))  # a sum of ones in bfloat16 stops at 256
    assert out.dtype == dtype
    assert out.ravel().tolist() == pytest.approx([1.0] * 8, rel=2**-7)


def test_attention_gradients_against_differences():
    tensors, mask = heads(B=1, H=2, K=1, T=3, S=3, d=2), jnp.array([[True, False, True]])
    rng, step = np.random.default_rng(0), 1e-5
    for options in OPTIONS:

        def loss(q, k, v, options=options):
            return (F.attention(q, k, v, mask, **options) ** 2).sum()

        value, slopes = compiled_quickly(loss), compiled_quickly(jax.grad(loss, (0, 1, 2)))(*tensors)
        directions = [jnp.asarray(rng.standard_normal(x.shape)) for x in tensors]
        ahead, behind = (
            value(*(x + sign * step * d for x, d in zip(tensors, directions, strict=True)))
            for sign in (1, -1)
        )
        slope = sum((s * d).sum() for s, d in zip(slopes, directions, strict=True))
        assert float((ahead - behind) / (2 * step)) == pytest.approx(float(slope), abs=1e-8)


def test_attention_can_be_vectorised_over():
    q, k, v = heads()
    many = jax.vmap(lambda q, k, v: F.attention(q[None], k[None], v[None], causal=True)[0])
    close(compiled_quickly(many)(q, k, v), attention(q, k, v, causal=True), 1e-15)


def test_products_ask_for_full_precision():
    """Without it an accelerator may round float32 to 10 bits of fraction."""
    x, weight, image = jnp.ones((2, 3)), jnp.ones((4, 3)), jnp.ones((1, 3, 4, 4))
    calls = [
        lambda: F.linear(x, weight),
        lambda: F.conv1d(image[0], jnp.ones((2, 4, 2)), stride=2),
        lambda: F.conv2d(image, jnp.ones((2, 3, 2, 2)), stride=2),
        lambda: F.attention(*heads()),
    ]
    for call, count in zip(calls, (1, 1, 1, 2), strict=True):
        text = str(jax.make_jaxpr(call)())
        products = text.count("dot_general[") + text.count("conv_general_dilated[")
        assert products == count
        assert text.count("Precision.HIGHEST") == 2 * products  # of either operand


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_no_number_promotes(dtype, x64):
    with jax.enable_x64(x64):
        x = jax.ShapeDtypeStruct((2, 4, 6, 6), dtype)
        vector, mask = jax.ShapeDtypeStruct((6,), dtype), jax.ShapeDtypeStruct((2, 6), bool)
        kernel = jax.ShapeDtypeStruct((3, 4, 2, 2), dtype)
        results = [
            jax.eval_shape(function, *given)
            for function, *given in (
                (lambda x, v: F.layer_norm(x, v, v, eps=1e-5), x, vector),
                (lambda x, v: F.rms_norm(x, v, eps=1e-5, offset=1.0), x, vector),
                (lambda x: F.l2_normalize(x, eps=1e-5), x),
                (lambda q, m: F.attention(q, q, q, m, causal=True, window=2, softcap=3.0), x, mask),
                (lambda x, k: F.conv1d(x[:, :, 0], k[..., 0], padding=1), x, kernel),
                (lambda x, k: F.conv2d(x, k, stride=2), x, kernel),
                (F.gelu, x), (lambda x: F.gelu(x, "tanh"), x), (F.silu, x), (F.quick_gelu, x), (F.relu, x),
                *((lambda x, m, mode=mode: F.masked_pool(x[:, 0], m, mode), x, mask)
                  for mode in ("mean", "max", "first", "last")),
                (F.tanh, x), (F.exp, x), (F.sigmoid, x), (F.softmax, x), (lambda x: F.mean(x, 1), x), (lambda x: F.max(x, 1), x),
                (lambda x: F.cos_sin(6, (1.0, 0.5), x)[0], x), (lambda x: 0.5 * x, x),
            )
        ]  # fmt: skip
        assert {str(result.dtype) for result in results} == {dtype}
