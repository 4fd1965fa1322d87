"""The torch primitives against hand arithmetic, torch.nn.functional and the NumPy reference."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from isomorph.backends.reference import primitives as reference
from isomorph.backends.torch import primitives as F
from isomorph.errors import IsomorphError
from isomorph.primitives import Primitives

NAN, INF = math.nan, math.inf


def draw(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def heads(B=2, H=4, K=2, T=5, S=5, d=3, seed=0):
    return draw(B, H, T, d, seed=seed), draw(B, K, S, d, seed=seed + 1), draw(B, K, S, d, seed=seed + 2)


def padding(B=2, S=5):
    """Row 0 hides the last two keys, row 1 hides every key."""
    mask = torch.ones(B, S, dtype=torch.bool)
    mask[0, -2:] = False
    mask[1] = False
    return mask


def close(got, want, tolerance=1e-12):
    want = np.asarray(want)
    assert tuple(got.shape) == want.shape
    np.testing.assert_allclose(got.detach().to(torch.float64).numpy(), want, rtol=0, atol=tolerance)


def test_every_primitive_is_there():
    names = [name for name in vars(Primitives) if not name.startswith("_")]
    assert "attention" in names
    assert [name for name in names if not callable(getattr(F, name, None))] == []


# -- values ----------------------------------------------------------------------------------------


def test_linear_by_hand():
    x, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0], [0.0, 1.0]])
    # 1*3 + 2*4 + 1 = 12, 1*5 + 2*6 + 1 = 18, 0 + 2 + 1 = 3
    assert F.linear(x, weight, torch.ones(3)).tolist() == [[12.0, 18.0, 3.0]]
    assert F.linear(x, weight).tolist() == [[11.0, 17.0, 2.0]]


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1), (3, 0), (9, 5)])
def test_conv1d_and_its_gradients_equal_the_framework_s(stride, padding):
    tensors = [draw(2, 3, 8), draw(5, 3, 4, seed=1), draw(5, seed=2)]
    given = [x.clone().requires_grad_() for x in (*tensors, *tensors)]
    options = {"stride": stride, "padding": padding}
    ours, theirs = F.conv1d(*given[:3], **options), functional.conv1d(*given[3:], **options)
    close(ours, theirs.detach())
    cotangent = draw(*theirs.shape, seed=3)
    for output in (ours, theirs):
        (output * cotangent).sum().backward()
    for mine, other in zip(given[:3], given[3:], strict=True):
        close(mine.grad, other.grad)
    turned = tensors[0].transpose(1, 2).contiguous().transpose(1, 2)  # not contiguous
    close(F.conv1d(turned, *tensors[1:], **options), theirs.detach())
    assert F.conv1d(tensors[0][:0], tensors[1], **options).shape == (0, *theirs.shape[1:])


def test_conv1d_is_a_product_that_full_precision_reaches(monkeypatch):
    """Convolutions round to TF32 on a GPU whatever the precision of products is."""
    monkeypatch.delattr(functional, "conv1d")
    x, weight = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), torch.tensor([[[1.0, 10.0, 100.0]]])
    # 0 + 10 + 200, 1 + 20 + 300, 2 + 30 + 400, 3 + 40
    assert F.conv1d(x, weight, padding=1).tolist() == [[[210, 321, 432, 43]]]


def test_conv2d_by_hand():
    x = torch.arange(8.0).reshape(1, 1, 2, 4)  # rows 0 1 2 3 and 4 5 6 7
    weight = torch.tensor([[[[1.0, 10.0], [100.0, 1000.0]]]])
    # left patch 0 + 10*1 + 100*4 + 1000*5 = 5410, right patch 2 + 10*3 + 100*6 + 1000*7 = 7632
    assert F.conv2d(x, weight, torch.tensor([0.5]), stride=2).tolist() == [[[[5410.5, 7632.5]]]]


def test_layer_norm_of_a_large_mean():
    x = torch.tensor([40000.0, 40001.0, 40002.0, 40003.0])
    # deviations -1.5, -0.5, 0.5, 1.5, variance 1.25: 1.5 / sqrt(1.25) = 1.34164, 0.5 / sqrt(1.25) = 0.44721
    assert F.layer_norm(x, None, None, eps=1e-5).tolist() == pytest.approx(
        [-1.34164, -0.44721, 0.44721, 1.34164], abs=1e-5
    )


def test_layer_norm_epsilon():
    x = torch.tensor([1e-3, -1e-3], dtype=torch.float64)  # variance 1e-6
    for eps, expected in ((1e-5, 0.30151134), (1e-6, 0.70710678), (1e-12, 0.9999995)):
        # 1e-3 / sqrt(1e-6 + eps)
        assert F.layer_norm(x, None, None, eps=eps).tolist() == pytest.approx([expected, -expected], abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_norms_in_half_precision(dtype):
    ones = F.rms_norm(torch.full((4,), 300.0, dtype=dtype), None, eps=1e-6)  # 300^2 overflows float16
    zeros = F.layer_norm(torch.zeros(4, dtype=dtype), None, None, eps=1e-12)  # 1e-12 is zero in float16
    assert ones.dtype == zeros.dtype == dtype
    assert ones.tolist() == pytest.approx([1.0] * 4, abs=1e-10)
    assert zeros.tolist() == [0.0] * 4
    unit = F.l2_normalize(torch.full((4,), 300.0, dtype=dtype), eps=1e-12)
    assert unit.dtype == dtype
    assert unit.tolist() == pytest.approx([0.5] * 4)


def test_rms_norm_by_hand_and_with_a_gain_around_zero():
    x = torch.tensor([3.0, 4.0], dtype=torch.float64)  # mean square 12.5
    scale = 1 / math.sqrt(12.5 + 0.5)
    gain = torch.tensor([2.0, -1.0], dtype=torch.float64)
    close(F.rms_norm(x, gain, eps=0.5), [6 * scale, -4 * scale])
    close(F.rms_norm(x, gain, eps=0.5, offset=1.0), [9 * scale, 0.0])
    close(F.rms_norm(x, None, eps=0.5), [3 * scale, 4 * scale])


def test_rms_norm_of_a_gain_around_zero_rounds_once_in_bfloat16():
    x, gain = draw(64, 32, dtype=torch.bfloat16), draw(32, seed=1).mul(3e-3).to(torch.bfloat16)
    wide = x.double()
    exact = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * (1 + gain.double())
    # 1 + gain would be 1 in bfloat16, whose values around 1 are 2^-7 apart: one rounding errs by 2^-8 at most
    error = ((F.rms_norm(x, gain, eps=1e-6, offset=1.0).double() - exact) / exact).abs().max()
    assert error <= 2**-8 * 1.01
    assert ((F.rms_norm(x, gain + 1, eps=1e-6).double() - exact) / exact).abs().max() > 2**-8 * 1.01


def test_gelu_forms():
    x = torch.tensor([-2.0], dtype=torch.float64)
    assert F.gelu(x).item() == pytest.approx(-0.0455003, abs=5e-8)
    assert F.gelu(x, "tanh").item() == pytest.approx(-0.0454023, abs=5e-8)


@pytest.mark.parametrize("name", ["relu", "silu", "gelu", "quick_gelu", "tanh", "exp", "sigmoid"])
def test_elementwise_equals_the_reference(name):
    x = draw(3, 7)
    close(getattr(F, name)(x), getattr(reference, name)(x.numpy()))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert getattr(F, name)(x.to(dtype)).dtype == dtype


def test_softmax_accumulates_in_float32():
    x = torch.zeros(3000, dtype=torch.bfloat16)  # a sum of ones in bfloat16 stops at 256
    assert F.softmax(x, 0)[0].item() == pytest.approx(1 / 3000, rel=2**-8)


def test_shape_primitives_equal_the_reference():
    x = draw(2, 3, 4)
    close(F.reshape(x, (6, 4)), x.numpy().reshape(6, 4), 0)
    close(F.permute(x, (2, 0, 1)), x.numpy().transpose(2, 0, 1), 0)
    close(F.concatenate((x, x), -1), np.concatenate([x.numpy()] * 2, -1), 0)
    close(F.narrow(x, -1, 1, 3), x.numpy()[..., 1:3], 0)
    close(F.narrow(x, 1, -2, None), x.numpy()[:, -2:], 0)
    close(F.expand(x[:1], (2, 3, 4)), np.repeat(x.numpy()[:1], 2, 0), 0)
    close(F.mean(x, 1, True), x.numpy().mean(1, keepdims=True))
    close(F.max(x, -1), x.numpy().max(-1), 0)


def test_narrow_beyond_the_end():
    with pytest.raises(IsomorphError) as caught:
        F.narrow(torch.zeros(4, 2), 0, 0, 5)
    assert str(caught.value) == "E_RUNTIME: elements 0:5 are outside axis 0 of a tensor [4, 2]"


@pytest.mark.parametrize("name", ["mean", "max"])
def test_reductions_over_nothing(name):
    with pytest.raises(IsomorphError) as caught:
        getattr(F, name)(torch.zeros(2, 0, 3), 1)
    assert caught.value.code == "E_RUNTIME"
    assert f"{name} over axis 1 of a tensor [2, 0, 3]" in str(caught.value)


def test_mean_accumulates_in_float32():
    assert F.mean(torch.ones(1, 3000, dtype=torch.bfloat16), 1).tolist() == [1.0]


@pytest.mark.parametrize("mode", ["mean", "max", "first", "last"])
def test_masked_pool_is_the_references_and_nothing_hidden_reaches_a_gradient(mode):
    x = draw(3, 5, 2)
    mask = torch.tensor([[True, False, True, True, False], [False] * 5, [False] * 4 + [True]])
    close(F.masked_pool(x, mask, mode), reference.masked_pool(x.numpy(), mask.numpy(), mode), 1e-6)
    bad = torch.where(mask[..., None], x, torch.nan).requires_grad_()
    pooled = F.masked_pool(bad, mask, mode)
    assert torch.equal(pooled, F.masked_pool(x, mask, mode))
    pooled.sum().backward()
    assert bad.grad is not None and bad.grad.isfinite().all()
    assert (bad.grad.sum((1, 2)) > 0).tolist() == [True, False, True]
    assert not bad.grad[~mask].any()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_take_at_takes_the_first_and_nothing_else_reaches_a_gradient(dtype):
    x = draw(3, 4, 2)
    ids = torch.tensor([[5, 7, 9, 7], [9, 1, 2, 3], [1, 2, 2, 1]], dtype=dtype)
    for token, places in ((7, [1, 0, 0]), (-1, [2, 0, 1]), (49407, [0, 0, 0])):
        taken = torch.zeros(3, 4, 1, dtype=torch.bool)
        taken[range(3), places] = True
        bad = torch.where(taken, x, NAN).requires_grad_()
        compiled = torch.compile(F.take_at, backend="eager", fullgraph=True)
        for function in (F.take_at, compiled):
            found = function(bad, ids, token)
            assert torch.equal(found, x[range(3), places])
            (gradient,) = torch.autograd.grad((found * 3).sum(), bad)
            assert torch.equal(gradient, torch.where(taken, 3.0, 0.0).expand(-1, -1, 2).double())
    assert F.take_at(x[:0], ids[:0], 7).shape == (0, 2)
    with pytest.raises(IsomorphError):
        F.take_at(x[:, :0], ids[:, :0], 7)


def test_take_at_can_be_vectorised_over():
    x, ids = draw(5, 3, 4, 2), torch.arange(60).reshape(5, 3, 4) % 7
    found = torch.func.vmap(lambda x, ids: F.take_at(x, ids, 3))(x, ids)
    close(found, np.stack([reference.take_at(*pair, 3) for pair in zip(x.numpy(), ids.numpy(), strict=True)]))


def test_masked_pool_accumulates_in_float32():
    ones = torch.ones(1, 3000, 1, dtype=torch.bfloat16)
    found = F.masked_pool(ones, torch.arange(3000)[None] < 2999, "mean")
    assert (found.tolist(), found.dtype) == ([[1.0]], torch.bfloat16)
    with pytest.raises(IsomorphError):
        F.masked_pool(ones[:, :0], torch.ones(1, 0, dtype=torch.bool), "first")


# -- tables ----------------------------------------------------------------------------------------


def test_embedding_reads_rows():
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert F.embedding(torch.tensor([[1, 0]]), table).tolist() == [[[3.0, 4.0], [1.0, 2.0]]]
    assert F.embedding(torch.zeros(2, 0, dtype=torch.int64), table).shape == (2, 0, 2)


@pytest.mark.parametrize("wrong", [-1, 3, 9])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_an_id_outside_the_table_is_named(wrong, dtype):
    with pytest.raises(IsomorphError) as caught:
        F.embedding(torch.tensor([[0, 2], [wrong, 1]], dtype=dtype), torch.zeros(3, 2))
    assert str(caught.value) == (f"E_RUNTIME: id {wrong} is outside a table of 3 rows\n  ids run from 0 to 2")


@pytest.mark.parametrize(("ids", "wrong"), [([[0, -1]], -1), ([[5, 2]], 5)])
def test_the_check_that_accelerators_need(monkeypatch, ids, wrong):
    """There the lookup itself raises nothing, so the ids are read first."""
    monkeypatch.setattr(F.functional, "embedding", lambda ids, weight: pytest.fail("looked up"))

    class Elsewhere(torch.Tensor):
        device = type("device", (), {"type": "elsewhere"})()

    with pytest.raises(IsomorphError, match=rf"id {wrong} is outside a table of 3 rows"):
        F.embedding(torch.tensor(ids).as_subclass(Elsewhere), torch.zeros(3, 2))


def test_rotary_tables_in_bfloat16():
    positions = [255, 256, 257, 258, 259, 260, 261, 4095]
    cos, sin = F.cos_sin(4096, (1.0, 0.01), torch.zeros(1, dtype=torch.bfloat16))
    assert cos.dtype == sin.dtype == torch.bfloat16
    for position in positions:
        for i, frequency in enumerate((1.0, 0.01)):
            assert cos[position, i].item() == pytest.approx(math.cos(position * frequency), abs=2**-8)
            assert sin[position, i].item() == pytest.approx(math.sin(position * frequency), abs=2**-8)
    assert len({(cos[p, 0].item(), sin[p, 0].item()) for p in positions}) == len(positions)


def test_rotary_tables_are_those_of_every_length():
    like = torch.zeros(1, dtype=torch.float64)
    long_cos, long_sin = F.cos_sin(200, (1.0, 0.3), like)
    for length in (0, 1, 64, 65):
        cos, sin = F.cos_sin(length, (1.0, 0.3), like)
        assert cos.shape == (length, 2)
        assert torch.equal(cos, long_cos[:length])
        assert torch.equal(sin, long_sin[:length])
    assert long_cos[7, 1].item() == math.cos(7 * 0.3)


def test_rotary_tables_made_in_inference_mode_serve_training():
    x = torch.ones(3, 2, requires_grad=True)
    with torch.inference_mode():
        F.cos_sin(3, (0.123, 0.456), x)
    cos, _ = F.cos_sin(3, (0.123, 0.456), x)
    (x * cos).sum().backward()  # an inference tensor cannot be saved for this
    assert torch.equal(x.grad, cos)


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
@pytest.mark.parametrize(("T", "S"), [(5, 5), (2, 5), (5, 2), (1, 5), (1, 1)])
@pytest.mark.parametrize("K", [4, 2, 1])
def test_attention_equals_the_reference(options, masked, T, S, K):
    q, k, v = heads(K=K, T=T, S=S)
    mask = padding(S=S) if masked else None
    want = reference.attention(
        q.numpy(), k.numpy(), v.numpy(), None if mask is None else mask.numpy(), **options
    )
    close(F.attention(q, k, v, mask, **options), want)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("B", "T", "S"), [(0, 3, 3), (2, 0, 0), (2, 0, 3), (2, 3, 0)])
def test_attention_over_nothing(options, B, T, S):
    q, k, v = heads(B=B, T=T, S=S)
    for mask in (None, torch.ones(B, S, dtype=torch.bool)):
        out = F.attention(q, k, v, mask, **options)
        assert out.shape == (B, 4, T, 3)
        assert not out.any()  # without a key to attend, zeros


def test_causal_with_more_keys_than_queries():
    q, k = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 5, 1)
    v = torch.arange(5.0).reshape(1, 1, 5, 1)
    # query 0 sees keys 0..3: (0+1+2+3)/4 = 1.5; query 1 sees all: 10/5 = 2
    assert F.attention(q, k, v, causal=True).flatten().tolist() == [1.5, 2.0]


def test_consecutive_query_heads_share_a_key_value_head():
    q, k = torch.zeros(1, 4, 1, 1), torch.zeros(1, 2, 1, 1)
    v = torch.tensor([10.0, 20.0]).reshape(1, 2, 1, 1)
    assert F.attention(q, k, v).flatten().tolist() == [10.0, 10.0, 20.0, 20.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_true_means_seen_and_nothing_is_added(dtype):
    q = torch.full((1, 1, 1, 1), -17.0, dtype=dtype)
    k, v = torch.ones(1, 1, 2, 1, dtype=dtype), torch.tensor([1.0, 9.0], dtype=dtype).reshape(1, 1, 2, 1)
    for options in ({}, {"causal": True}, {"softcap": 50.0}):
        seen = F.attention(q, k, v, torch.tensor([[True, False]]), **options)
        assert seen.dtype == dtype
        assert seen.flatten().tolist() == [1.0]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_a_mask_hides_reaches_neither_result_nor_gradient(options, bad):
    mask = padding()
    tensors = heads()
    results = []
    for filler in (0.0, bad):
        q, k, v = (t.clone().requires_grad_() for t in tensors)
        hidden = ~mask[:, None, :, None]
        out = F.attention(q, k.masked_fill(hidden, filler), v.masked_fill(hidden, filler), mask, **options)
        out.square().sum().backward()
        assert not out[1].any()  # a query that may attend nothing
        results.append((out.detach(), q.grad, k.grad, v.grad))
    for clean, dirty in zip(*results, strict=True):
        assert torch.isfinite(clean).all()
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.parametrize("options", [{}, {"window": 2}, {"softcap": 2.0}], ids=str)
def test_the_future_does_not_leak(options, where, bad):
    q, k, v = (t.requires_grad_() for t in heads(T=6, S=6))
    want = F.attention(q, k, v, causal=True, **options)[:, :, :4]
    wanted = torch.autograd.grad(want.square().sum(), (q, k, v))
    replace = torch.zeros(6, dtype=torch.bool)
    replace[4] = True
    dirty = {"k": k, "v": v}
    dirty[where] = dirty[where].masked_fill(replace[:, None], bad)
    got = F.attention(q, dirty["k"], dirty["v"], causal=True, **options)
    close(got[:, :, :4], want.detach().numpy(), 1e-15)
    assert not torch.isfinite(got[:, :, 4]).any()  # and who sees it is not told otherwise
    for gradient, expected in zip(
        torch.autograd.grad(got[:, :, :4].square().sum(), (q, k, v)), wanted, strict=True
    ):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-14)


def test_a_visible_infinity_gives_what_the_reference_gives():
    q, k, v = heads(T=4, S=4)
    v[0, 0, 1, 0], v[0, 0, 2, 0], v[0, 1, 3, 2] = INF, -INF, -INF
    for options in ({"causal": True}, {"causal": True, "window": 2}):
        want = reference.attention(q.numpy(), k.numpy(), v.numpy(), **options)
        assert np.isposinf(want).any() and np.isneginf(want).any() and np.isnan(want).any()
        np.testing.assert_allclose(F.attention(q, k, v, **options).numpy(), want, atol=1e-12)


def test_layouts_do_not_matter():
    q, k, v = heads()
    mask = padding()

    def awkward(x):
        return x.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)

    want = F.attention(q, k, v, mask, causal=True)
    assert not awkward(q).is_contiguous()
    torch.testing.assert_close(F.attention(awkward(q), awkward(k), awkward(v), mask, causal=True), want)
    k, v = k[:1].expand(2, 2, 5, 3), v[:1].expand(2, 2, 5, 3)
    want = F.attention(q, k.contiguous(), v.contiguous(), causal=True)
    torch.testing.assert_close(F.attention(q, k, v, causal=True), want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_attention_accumulates_in_float32(dtype):
    q, k = torch.zeros(1, 1, 1, 8, dtype=dtype), torch.zeros(1, 1, 3000, 8, dtype=dtype)
    v = torch.ones(1, 1, 3000, 8, dtype=dtype)  # a sum of ones in bfloat16 stops at 256
    for softcap in (0.0, 3.0):
        out = F.attention(q, k, v, softcap=softcap)
        assert out.dtype == dtype
        assert out.flatten().tolist() == pytest.approx([1.0] * 8, rel=2**-7)


@pytest.mark.parametrize("softcap", [0.0, 4.0])
def test_dropout_of_attention_weights(softcap):
    """q = k = 0 and v = 1: each query's result is the share of its weights that stayed, over 1 - p."""
    B, H, T = 3, 2, 64
    q, v = torch.zeros(B, H, T, 1), torch.ones(B, H, T, 1)
    drop = torch.nn.Dropout(0.5)
    torch.manual_seed(0)
    first, second = (F.attention(q, q, v, softcap=softcap, dropout=drop) for _ in range(2))
    assert not torch.equal(first, second)  # another mask in every call,
    assert not torch.equal(first[0], first[1])  # example,
    assert not torch.equal(first[:, 0], first[:, 1])  # and head
    # mean 1, and deviation sqrt(p / (1 - p) / T) = 1/8 for each of 384 results: 5 sigma of the mean
    assert abs(first.mean().item() - 1) < 5 / 8 / math.sqrt(B * H * T)
    assert first.std().item() == pytest.approx(1 / 8, rel=0.25)
    state = torch.get_rng_state()
    still = F.attention(q, q, v, softcap=softcap, dropout=drop.eval())
    assert torch.equal(still, F.attention(q, q, v, softcap=softcap))
    assert torch.equal(state, torch.get_rng_state())  # nothing is drawn in evaluation


def test_attention_gradients_against_differences():
    q, k, v = (t.requires_grad_() for t in heads(B=1, H=2, K=1, T=3, S=3, d=2))
    mask = torch.tensor([[True, False, True]])
    for options in OPTIONS:
        assert torch.autograd.gradcheck(lambda q, k, v, o=options: F.attention(q, k, v, mask, **o), (q, k, v))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_attention_can_be_vectorised_over():
    """Under ``vmap`` values cannot be looked at; the check gives way."""
    q, k, v = heads()
    many = torch.vmap(lambda q, k, v: F.attention(q[None], k[None], v[None], causal=True)[0])(q, k, v)
    torch.testing.assert_close(many, F.attention(q, k, v, causal=True))


def test_scaled_dot_product_attention_does_the_work(monkeypatch):
    calls = []
    real = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(k) or real(*a, **k)
    )
    q, k, v = heads()
    F.attention(q, k, v, causal=True)
    F.attention(q, k, v, padding())
    assert [call.get("is_causal") for call in calls] == [True, None]
    assert calls[1]["attn_mask"].shape == (2, 1, 1, 5)  # never [B, H, T, S]
