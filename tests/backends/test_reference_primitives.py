"""The reference's primitives against hand arithmetic, and against torch in float64 where it has a peer."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from isomorph.backends.reference import primitives as F
from isomorph.backends.reference.error_function import erf
from isomorph.errors import IsomorphError
from isomorph.operators.rotary import rope_frequencies, rotate


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def agree(ours, theirs, tolerance=1e-12):
    theirs = theirs.numpy()
    assert ours.shape == theirs.shape
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def t(array):
    return torch.from_numpy(np.asarray(array))


def refuse(call, message):
    with pytest.raises(IsomorphError) as caught:
        call()
    assert str(caught.value) == message


# -- maps with parameters ----------------------------------------------------------------------


def test_linear_by_hand():
    x, weight, bias = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]]), np.array([0.5, -1.0])
    # rows of the weight are outputs: 1*3 + 2*4 + 0.5 = 11.5 and 1*5 + 2*6 - 1 = 16
    np.testing.assert_array_equal(F.linear(x, weight, bias), [[11.5, 16.0]])
    np.testing.assert_array_equal(F.linear(x, weight), [[11.0, 17.0]])


@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 4), (0, 5, 4), (2, 0, 4)])
def test_linear_equals_torch(shape):
    x, weight, bias = draw(*shape), draw(6, 4, seed=1), draw(6, seed=2)
    agree(F.linear(x, weight, bias), functional.linear(t(x), t(weight), t(bias)))


def test_conv1d_by_hand():
    x, weight = np.array([[[1.0, 2.0, 3.0, 4.0]]]), np.array([[[1.0, 10.0, 100.0]]])
    # no flip: 1 + 20 + 300 and 2 + 30 + 400; a zero at either end adds 0 + 10 + 200 before and 3 + 40 after
    np.testing.assert_array_equal(F.conv1d(x, weight, np.array([0.5])), [[[321.5, 432.5]]])
    np.testing.assert_array_equal(F.conv1d(x, weight, padding=1), [[[210, 321, 432, 43]]])
    np.testing.assert_array_equal(F.conv1d(x, weight, padding=1, stride=2), [[[210, 432]]])


@pytest.mark.parametrize("batch", [2, 0])
@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 2), (2, 1), (3, 0), (9, 5)])
def test_conv1d_equals_torch(batch, stride, padding):
    x, weight, bias = draw(batch, 3, 8), draw(5, 3, 4, seed=1), draw(5, seed=2)
    options = {"stride": stride, "padding": padding}
    agree(F.conv1d(x, weight, bias, **options), functional.conv1d(t(x), t(weight), t(bias), **options))
    agree(F.conv1d(x, weight, **options), functional.conv1d(t(x), t(weight), **options))


def test_conv2d_by_hand():
    x = np.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    weight = np.array([[[[1.0, 2.0], [3.0, 4.0]]]])
    # no flip of the kernel: 1*1 + 2*2 + 3*4 + 4*5 = 37; one step to the right adds 1+2+3+4 = 10, one down 30
    np.testing.assert_array_equal(F.conv2d(x, weight, np.array([0.5]))[0, 0], [[37.5, 47.5], [67.5, 77.5]])


@pytest.mark.parametrize(("batch", "stride"), [(2, 1), (2, 2), (2, 3), (0, 2)])
def test_conv2d_equals_torch(batch, stride):
    x, weight, bias = draw(batch, 3, 8, 7), draw(5, 3, 2, 3, seed=1), draw(5, seed=2)
    agree(
        F.conv2d(x, weight, bias, stride=stride), functional.conv2d(t(x), t(weight), t(bias), stride=stride)
    )


def test_embedding_takes_rows():
    table = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    np.testing.assert_array_equal(F.embedding(np.array([[2, 0, 2]]), table), [[[5, 6], [1, 2], [5, 6]]])
    assert F.embedding(np.zeros((2, 0), dtype=np.int64), table).shape == (2, 0, 2)


@pytest.mark.parametrize("wrong", [3, -1])
def test_an_id_outside_the_table_is_named(wrong):
    refuse(
        lambda: F.embedding(np.array([[0, wrong]]), np.zeros((3, 2))),
        f"E_RUNTIME: id {wrong} is outside a table of 3 rows\n  ids run from 0 to 2",
    )


# -- norms -------------------------------------------------------------------------------------


def test_layer_norm_epsilon_reaches_the_variance():
    row = np.array([[1e-3, -1e-3]])  # mean 0, variance 1e-6
    for eps, right in ((1e-5, 0.30151134), (1e-6, 0.70710678), (1e-12, 1.0)):
        # 1e-3 / sqrt(1e-6 + 1e-5) = 1 / sqrt(11), 1 / sqrt(2), 1 / sqrt(1.000001)
        np.testing.assert_allclose(F.layer_norm(row, None, None, eps=eps), [[right, -right]], rtol=1e-6)


def test_layer_norm_of_a_large_mean_keeps_its_spread():
    row = np.array([[40000.0, 40001.0, 40002.0, 40003.0]])
    # centred +-1.5, +-0.5; variance (2.25 + 0.25) / 2 = 1.25
    right = np.array([[-1.5, -0.5, 0.5, 1.5]]) / math.sqrt(1.25 + 1e-5)
    np.testing.assert_allclose(F.layer_norm(row, None, None, eps=1e-5), right, rtol=1e-14)


def test_norms_of_half_precision_rows():
    # at the door float16 becomes float64, where 300^2 * 4 does not overflow and 1e-12 is not 0
    np.testing.assert_allclose(
        F.rms_norm(np.full((1, 4), np.float16(300)).astype(np.float64), None, eps=1e-6), 1.0, rtol=1e-11
    )
    np.testing.assert_array_equal(F.layer_norm(np.zeros((1, 4)), None, None, eps=1e-12), np.zeros((1, 4)))


def test_layer_norm_equals_torch():
    x, weight, bias = draw(2, 3, 5), draw(5, seed=1), draw(5, seed=2)
    agree(
        F.layer_norm(x, weight, bias, eps=1e-3),
        functional.layer_norm(t(x), (5,), t(weight), t(bias), 1e-3),
    )
    agree(F.layer_norm(x, weight, None, eps=1e-3), functional.layer_norm(t(x), (5,), t(weight), None, 1e-3))


def test_rms_norm_by_hand_and_against_torch():
    # mean square of [3, 4] is 12.5; with eps 12.5 the root is 5; times (weight + 1)
    row = np.array([[3.0, 4.0]])
    np.testing.assert_allclose(
        F.rms_norm(row, np.array([0.0, 1.0]), eps=12.5, offset=1.0), [[0.6, 1.6]], rtol=1e-15
    )
    x, weight = draw(2, 3, 5), draw(5, seed=1)
    agree(F.rms_norm(x, weight, eps=1e-3), functional.rms_norm(t(x), (5,), t(weight), 1e-3))


def test_normalize_adds_epsilon_under_the_root():
    # 9 + 16 + 11 = 36
    np.testing.assert_allclose(F.l2_normalize(np.array([[3.0, 4.0]]), eps=11.0), [[0.5, 2 / 3]], rtol=1e-15)


# -- where the ids end a sequence --------------------------------------------------------------


def test_take_at_by_hand():
    x = np.arange(24.0).reshape(3, 4, 2)
    ids = np.array([[5, 7, 9, 7], [9, 1, 2, 3], [1, 2, 2, 1]])
    # the first 7 of row 0 is at 1; rows 1 and 2 have none, hence position 0
    np.testing.assert_array_equal(F.take_at(x, ids, 7), [[2, 3], [8, 9], [16, 17]])
    # the first of the largest ids: 9 at 2, 9 at 0, 2 at 1
    np.testing.assert_array_equal(F.take_at(x, ids, -1), [[4, 5], [8, 9], [18, 19]])
    np.testing.assert_array_equal(F.take_at(x, ids.astype(np.uint8), 49407), x[:, 0])
    assert F.take_at(x[:0], ids[:0], 7).shape == (0, 2)
    refuse(
        lambda: F.take_at(x[:, :0], ids[:, :0], 7),
        "E_RUNTIME: take_at over axis 1 of a tensor [3, 0, 2]: there are no elements\n"
        "  give an input with at least one element along that axis",
    )


# -- masked pooling ----------------------------------------------------------------------------


def test_masked_pool_needs_a_position_but_not_a_batch():
    with pytest.raises(IsomorphError) as caught:
        F.masked_pool(np.zeros((2, 0, 3)), np.zeros((2, 0), bool), "max")
    assert caught.value.message == "max over axis 1 of a tensor [2, 0, 3]: there are no elements"
    assert F.masked_pool(np.zeros((0, 2, 3)), np.zeros((0, 2), bool), "mean").shape == (0, 3)


# -- attention ---------------------------------------------------------------------------------


def attend(T, S, v, mask=None, **options):
    """One head of width 1 with queries and keys of zero: every visible key weighs the same."""
    zeros = np.zeros((1, 1, T, 1)), np.zeros((1, 1, S, 1))
    return F.attention(*zeros, np.asarray(v, dtype=float).reshape(1, 1, S, 1), mask, **options)[0, 0, :, 0]


def test_attention_by_hand():
    q, k = np.array([[[[2.0, 0.0, 0.0, 0.0]]]]), np.zeros((1, 1, 2, 4))
    k[0, 0, 0, 0] = math.log(3.0)  # score log(3) * 2 / sqrt(4) = log 3: weights 3/4 and 1/4
    v = np.array([[[[4.0, 0, 0, 0], [8.0, 0, 0, 1.0]]]])
    np.testing.assert_allclose(F.attention(q, k, v), [[[[5.0, 0, 0, 0.25]]]], rtol=1e-14)


def test_softcap_by_hand():
    q, k = np.array([[[[3.0]]]]), np.array([[[[1.0], [0.0]]]])
    weight = 1 / (1 + math.exp(-2 * math.tanh(3.0 / 2)))  # scores 2 tanh(3 / 2) and 0
    out = F.attention(q, k, np.array([[[[1.0], [0.0]]]]), softcap=2.0)
    np.testing.assert_allclose(out, [[[[weight]]]], rtol=1e-14)


def test_causal_is_aligned_at_the_last_key():
    np.testing.assert_allclose(attend(2, 5, range(5), causal=True), [1.5, 2.0])  # means of 0..3 and 0..4


def test_causal_with_more_queries_than_keys_leaves_the_first_ones_nothing():
    np.testing.assert_array_equal(attend(3, 1, [7.0], causal=True), [0, 0, 7])


def test_windows():
    # causal, width 2: keys i-1 and i; without causal: i-1, i, i+1
    np.testing.assert_allclose(attend(4, 4, [0, 1, 2, 5], causal=True, window=2), [0, 0.5, 1.5, 3.5])
    np.testing.assert_allclose(attend(4, 4, [0, 1, 2, 5], window=2), [0.5, 1, 8 / 3, 3.5])
    np.testing.assert_allclose(attend(2, 4, [0, 1, 2, 5], causal=True, window=2), [1.5, 3.5])
    np.testing.assert_allclose(attend(4, 4, [0, 1, 2, 5], window=1), [0, 1, 2, 5])


def test_true_in_a_mask_means_visible():
    np.testing.assert_array_equal(attend(1, 2, [1, 9], np.array([[True, False]])), [1])


def test_a_query_that_sees_nothing_yields_zeros():
    np.testing.assert_array_equal(attend(2, 2, [1, 9], np.array([[False, False]])), [0, 0])
    # a left-padded causal row: query 0 sees only the hidden key 0
    np.testing.assert_array_equal(attend(2, 2, [1, 9], np.array([[False, True]]), causal=True), [0, 9])


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_hidden_keys_and_values_change_nothing(poison):
    q, k, v = draw(2, 4, 3, 8), draw(2, 2, 5, 8, seed=1), draw(2, 2, 5, 8, seed=2)
    mask = np.array([[True, True, False, True, True], [True, False, True, True, True]])
    clean = F.attention(q, k, v, mask, causal=True)
    for array in (k, v):
        array[0, :, 2] = poison
        array[1, :, 1, ::2] = poison
    np.testing.assert_array_equal(F.attention(q, k, v, mask, causal=True), clean)


def test_a_future_nan_reaches_only_the_queries_that_see_it():
    v = np.array([1.0, 3.0, np.nan])
    np.testing.assert_array_equal(attend(3, 3, v, causal=True), [1, 2, np.nan])
    k = np.array([0.0, 0.0, np.nan]).reshape(1, 1, 3, 1)
    out = F.attention(np.ones((1, 1, 3, 1)), k, np.array([1.0, 3.0, 5.0]).reshape(1, 1, 3, 1), causal=True)
    np.testing.assert_array_equal(out[0, 0, :, 0], [1, 2, np.nan])


def test_an_infinite_value_among_visible_ones_is_infinite():
    np.testing.assert_array_equal(attend(1, 2, [np.inf, 1.0]), [np.inf])


def test_query_heads_share_consecutive_key_value_heads():
    q, k = np.zeros((1, 4, 1, 1)), np.zeros((1, 2, 1, 1))
    out = F.attention(q, k, np.array([10.0, 20.0]).reshape(1, 2, 1, 1))
    np.testing.assert_array_equal(out.ravel(), [10, 10, 20, 20])


@pytest.mark.parametrize(("B", "T", "S"), [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0)])
def test_empty_attention(B, T, S):
    out = F.attention(np.ones((B, 4, T, 8)), np.ones((B, 2, S, 8)), np.ones((B, 2, S, 8)), causal=True)
    np.testing.assert_array_equal(out, np.zeros((B, 4, T, 8)))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_torch(causal):
    q, k, v = draw(2, 4, 5, 6), draw(2, 2, 5, 6, seed=1), draw(2, 2, 5, 6, seed=2)
    peer = functional.scaled_dot_product_attention(t(q), t(k), t(v), is_causal=causal, enable_gqa=True)
    agree(F.attention(q, k, v, causal=causal), peer)
    mask = np.array([[True, False, True, True, False], [True] * 5])
    allowed = t(mask)[:, None, None, :] & (torch.ones(5, 5).tril().bool() if causal else True)
    peer = functional.scaled_dot_product_attention(t(q), t(k), t(v), attn_mask=allowed, enable_gqa=True)
    agree(F.attention(q, k, v, mask, causal=causal), peer)


def test_dropout_acts_on_the_attention_weights():
    assert attend(1, 2, [1, 9], dropout=lambda weights: 2 * weights)[0] == 10.0


# -- elementwise -------------------------------------------------------------------------------


def test_erf_against_the_standard_library():
    x = np.concatenate([np.linspace(-7, 7, 40_001), np.geomspace(1e-300, 1, 2_001), [0.46875, 4.0, 6.0]])
    right = np.array([math.erf(value) for value in x])
    assert (np.abs(erf(x) - right) <= 4 * np.spacing(np.abs(right))).all()
    np.testing.assert_array_equal(erf(np.array([np.inf, -np.inf, np.nan, 0.0])), [1, -1, np.nan, 0])


def test_gelu_is_the_erf_form():
    x = np.array([-2.0])
    np.testing.assert_allclose(F.gelu(x), -0.04550026389635842, rtol=1e-14)  # -1 * (1 + erf(-sqrt 2))
    np.testing.assert_allclose(F.gelu(x, "tanh"), -0.04540230591222, rtol=1e-12)
    assert f"{F.gelu(x)[0]:.7f} {F.gelu(x, 'tanh')[0]:.7f}" == "-0.0455003 -0.0454023"


def test_activations_equal_torch():
    x = np.concatenate([np.linspace(-8, 8, 1001), [-800.0, 800.0, 0.0]])
    for ours, theirs in (
        (F.relu(x), functional.relu(t(x))),
        (F.silu(x), functional.silu(t(x))),
        (F.gelu(x), functional.gelu(t(x))),
        (F.gelu(x, "tanh"), functional.gelu(t(x), approximate="tanh")),
        (F.quick_gelu(x), t(x) * torch.sigmoid(1.702 * t(x))),
        (F.tanh(x), torch.tanh(t(x))),
        (F.exp(x[:-3]), torch.exp(t(x[:-3]))),
        (F.sigmoid(x), torch.sigmoid(t(x))),
    ):
        agree(ours, theirs)


def test_softmax():
    # e^0 : e^log3 = 1 : 3, whatever is added to both
    rows = np.array([[0.0, math.log(3.0)], [1000.0, 1000.0 + math.log(3.0)]])
    np.testing.assert_allclose(F.softmax(rows), [[0.25, 0.75]] * 2, rtol=1e-12)
    agree(F.softmax(draw(2, 3, 4), 1), torch.softmax(t(draw(2, 3, 4)), 1))
    assert F.softmax(np.zeros((2, 0))).shape == (2, 0)


# -- shape and reductions ----------------------------------------------------------------------


def test_shape_functions():
    x = draw(2, 3, 4)
    agree(F.reshape(x, (2, 12)), t(x).reshape(2, 12))
    agree(F.permute(x, (2, 0, 1)), t(x).permute(2, 0, 1))
    agree(F.concatenate((x, x[:, :1]), 1), torch.cat((t(x), t(x[:, :1])), 1))
    agree(F.expand(x[:, :1], (2, 5, 4)), t(x[:, :1]).expand(2, 5, 4))
    agree(F.narrow(x, 1, 1, 3), t(x)[:, 1:3])
    agree(F.narrow(x, -1, -2, None), t(x)[..., -2:])
    agree(F.narrow(x, 2, 0, -1), t(x)[..., :-1])


@pytest.mark.parametrize(
    ("start", "stop", "written"), [(0, 4, "0:4"), (-4, None, "-4:"), (2, 1, "2:1"), (0, -4, "0:-4")]
)
def test_a_range_outside_an_axis_is_refused(start, stop, written):
    refuse(
        lambda: F.narrow(np.zeros((2, 3)), 1, start, stop),
        f"E_RUNTIME: elements {written} are outside axis 1 of a tensor [2, 3]",
    )


def test_mean_and_max():
    x = np.array([[[1.0, 2.0], [3.0, 8.0]]])
    np.testing.assert_array_equal(F.mean(x, 1), [[2.0, 5.0]])
    np.testing.assert_array_equal(F.mean(x, -1, keepdim=True), [[[1.5], [5.5]]])
    np.testing.assert_array_equal(F.max(x, 1), [[3.0, 8.0]])
    np.testing.assert_array_equal(F.max(x, 2, keepdim=True), [[[2.0], [8.0]]])
    assert F.mean(np.zeros((0, 3, 4)), 1).shape == F.max(np.zeros((0, 3, 4)), 1).shape == (0, 4)


@pytest.mark.parametrize("name", ["mean", "max"])
def test_no_elements_to_reduce(name):
    refuse(
        lambda: getattr(F, name)(np.zeros((2, 0, 8)), 1),
        f"E_RUNTIME: {name} over axis 1 of a tensor [2, 0, 8]: there are no elements\n"
        "  give an input with at least one element along that axis",
    )


# -- rotary positions --------------------------------------------------------------------------


def test_rope_pairs_feature_i_with_i_plus_half():
    q = np.zeros((1, 1, 2, 4))
    q[..., 0] = 1.0
    out = rotate(F, q, rope_frequencies(4, 1e4, "none", 1.0))
    # position 0 keeps [1, 0, 0, 0]; position 1 turns (x0, x2) by one radian
    right = [[1, 0, 0, 0], [math.cos(1), 0, math.sin(1), 0]]
    np.testing.assert_allclose(out[0, 0], right, rtol=1e-15)
    assert f"{out[0, 0, 1, 0]:.4f} {out[0, 0, 1, 2]:.4f}" == "0.5403 0.8415"


def test_every_position_has_its_own_angle():
    cos, sin = F.cos_sin(4096, (1.0, 0.01), np.zeros(1))
    assert cos.shape == sin.shape == (4096, 2)
    assert cos.dtype == np.float64
    assert [cos[4095, 1], sin[261, 0]] == [math.cos(4095 * 0.01), math.sin(261.0)]
    assert len({(c, s) for c, s in zip(cos[:, 0], sin[:, 0], strict=True)}) == 4096
