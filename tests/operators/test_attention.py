"""Attention: values by hand, with projections chosen so that the weights are simple."""

from __future__ import annotations

from math import cos, exp, sin

import numpy as np
import pytest

import isomorph as iso
from isomorph.backends.available import available, load
from isomorph.testing import order_one_weights

EYE = np.eye(2)
V = np.array([[[4.0, 0.0], [2.0, 8.0], [0.0, 1.0]]])


def weights(q=0, k=0, v=EYE, o=EYE, node="n0"):
    """Unbiased projections; a zero query makes all visible keys weigh the same."""
    made = {"q_proj": q * EYE, "k_proj": k * EYE, "v_proj": v, "o_proj": o}
    return {f"{node}.{name}.weight": np.asarray(matrix) for name, matrix in made.items()}


def test_equal_scores_average_the_values(run):
    np.testing.assert_allclose(run("attention(1, bias=False)", V, weights()), [[[2, 3]] * 3], rtol=1e-15)


def test_causal_attention_averages_the_past(run):
    out = run("attention(1, bias=False, causal=True)", V, weights())
    np.testing.assert_allclose(out, [[[4, 0], [3, 4], [2, 3]]], rtol=1e-15)


def test_windows(run):
    out = run("attention(1, bias=False, causal=True, window_size=2)", V, weights())
    np.testing.assert_allclose(out, [[[4, 0], [3, 4], [1, 4.5]]], rtol=1e-15)
    out = run("attention(1, bias=False, window_size=2)", V, weights())
    np.testing.assert_allclose(out, [[[3, 4], [2, 3], [1, 4.5]]], rtol=1e-15)


def test_scores_are_scaled_by_the_head_width(run):
    # One head of width 2: scores of query [1, 0] are x . x' / sqrt(2).
    x = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    e = exp(1 / 2**0.5)
    expected = [e / (e + 1), 1 / (e + 1)]
    out = run("attention(1, bias=False)", x, weights(q=1, k=1))
    np.testing.assert_allclose(out, [[expected, expected[::-1]]], rtol=1e-14)


def test_scores_of_two_heads_stay_apart(run):
    # Heads of width 1: head 0 sees feature 0 alone, where the scores of query 0 are 1 and 0.
    x = np.array([[[1.0, 5.0], [0.0, 5.0]]])
    out = run("attention(2, bias=False)", x, weights(q=1, k=1))
    np.testing.assert_allclose(out[0, 0], [exp(1) / (exp(1) + 1), 5], rtol=1e-14)


def test_T18_a_true_mask_means_visible(run):
    definition = 'x = input("B", 2, 2)\nm = input("B", 2, dtype="bool")\nattention(1, bias=False, mask=m)'
    x = np.array([[[1.0, 1.0], [9.0, 9.0]]])
    out = run(definition, {"x": x, "m": np.array([[True, False]])}, weights())
    np.testing.assert_array_equal(out, [[[1, 1], [1, 1]]])
    out = run(definition, {"x": x, "m": np.array([[False, False]])}, weights())
    np.testing.assert_array_equal(out, np.zeros((1, 2, 2)))


def test_hidden_nan_stays_hidden(run):
    definition = 'x = input("B", 2, 2)\nm = input("B", 2, dtype="bool")\nattention(1, bias=False, mask=m)'
    x = np.array([[[1.0, 1.0], [np.nan, np.inf]]])
    out = run(definition, {"x": x, "m": np.array([[True, False]])}, weights())
    np.testing.assert_array_equal(out[0, 0], [1, 1])


def test_T9_consecutive_heads_share_a_key_value_head(run):
    # Four query heads of width 1 over two value heads holding 10 and 20.
    found = {
        "n0.q_proj.weight": np.zeros((4, 4)),
        "n0.k_proj.weight": np.zeros((2, 4)),
        "n0.v_proj.weight": [[10, 0, 0, 0], [20, 0, 0, 0]],
        "n0.o_proj.weight": np.eye(4),
    }
    out = run("attention(4, bias=False, kv_heads=2)", [[[1.0, 0, 0, 0]]], found)
    np.testing.assert_array_equal(out, [[[10, 10, 20, 20]]])


def test_T10_head_width_may_be_free_of_the_model_width():
    plan = iso.resolve("attention(2, head_dim=8)", input=("B", 3, 12))
    shapes = {p.path: p.shape for p in plan.parameters}
    assert shapes["n0.q_proj.weight"] == (16, 12)
    assert shapes["n0.o_proj.weight"] == (12, 16)


def test_T6_rope_pairs_a_feature_with_the_other_half(run):
    # d = 4: features pair as (0, 2) and (1, 3). With q = k = [1, 0, 0, 0] everywhere the score between
    # positions m and n is cos(m - n) / sqrt(4); values tell the positions apart through feature 1.
    found = {
        "n0.q_proj.weight": np.diag([1.0, 0, 0, 0]),
        "n0.k_proj.weight": np.diag([1.0, 0, 0, 0]),
        "n0.v_proj.weight": np.diag([0.0, 1, 0, 0]),
        "n0.o_proj.weight": np.eye(4),
    }
    x = np.array([[[1.0, 0, 0, 0], [1.0, 1, 0, 0]]])
    out = run("attention(1, bias=False, rope=True)", x, found)
    near, far = exp(1 / 2), exp(cos(1) / 2)
    np.testing.assert_allclose(out[0, :, 1], [far / (near + far), near / (near + far)], rtol=1e-14)
    # A query in feature 0 and a key in feature 2 meet by the sine, which pairing (0, 1) would miss.
    found["n0.k_proj.weight"] = np.zeros((4, 4))
    found["n0.k_proj.weight"][2, 0] = 1
    out = run("attention(1, bias=False, rope=True)", x, found)
    same, ahead = exp(0), exp(-sin(1) / 2)  # key at +1 seen from 0: cos-sin product is -sin(1)
    np.testing.assert_allclose(out[0, 0, 1], ahead / (same + ahead), rtol=1e-14)


def test_logit_softcap(run):
    # Scores 100 and 0 become tanh(100) = 1 and 0.
    x = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    found = weights(q=100 * 2**0.5, k=1)
    out = run("attention(1, bias=False, logit_softcap=1.0)", x, found)
    np.testing.assert_allclose(out[0, 0], [exp(1) / (exp(1) + 1), 1 / (exp(1) + 1)], rtol=1e-12)


@pytest.mark.parametrize(("norm", "score"), [("rms_norm", 2 / 2**0.5), ("l2_norm", 1 / 2**0.5)])
def test_queries_and_keys_are_normalized_per_head(run, norm, score):
    # [3, 0] and [5, 0] normalize to [sqrt 2, 0] (rms) or [1, 0] (l2); the second key is zero.
    x = np.array([[[3.0, 0.0], [0.0, 0.0]]])
    found = weights(q=1, k=5)
    if norm == "rms_norm":
        found |= {"n0.q_norm.weight": np.ones(2), "n0.k_norm.weight": np.ones(2)}
    out = run(f'attention(1, bias=False, qk_norm="{norm}", eps=1e-30)', x, found)
    np.testing.assert_allclose(out[0, 0, 0], 3 * exp(score) / (exp(score) + 1), rtol=1e-12)


def test_biases_need_both_flags():
    def biased(definition):
        plan = iso.resolve(definition, input=("B", 3, 4))
        return {p.path.split(".")[1][0] for p in plan.parameters if p.path.endswith("bias")}

    assert biased("attention(2)") == set("qkvo")
    assert biased("attention(2, qkv_bias=False)") == {"o"}
    assert biased("attention(2, k_bias=False)") == set("qvo")
    assert biased("attention(2, qkv_bias=False, k_bias=True)") == {"o"}
    assert biased("attention(2, out_bias=False)") == set("qkv")
    assert biased("attention(2, bias=False)") == set()


def test_cross_attention_reads_the_context(run):
    found = {
        "n0.q_proj.weight": np.zeros((2, 2)),
        "n0.k_proj.weight": np.zeros((2, 1)),
        "n0.v_proj.weight": [[1.0], [10.0]],
        "n0.o_proj.weight": EYE,
    }
    inputs = {"x": np.zeros((1, 1, 2)), "context": np.array([[[1.0], [2.0], [6.0]]])}
    out = run("cross_attention(x, context, 1, bias=False)", inputs, found)
    np.testing.assert_allclose(out, [[[3, 30]]], rtol=1e-15)


def test_attention_errors(error):
    found = error("attention(3)", input=("B", 8, 32))
    assert found.code == "E_CONSTRAINT"
    assert found.message == "heads=3 does not divide the model width D=32"
    assert "heads that divide 32: 1, 2, 4, 8, 16, 32" in found.hints
    assert error("attention(4, kv_heads=3)", input=("B", 8, 32)).message == (
        "kv_heads=3 does not divide heads=4"
    )
    assert error("attention(2, rope=True)", input=("B", 8, 6)).message == (
        "rope needs an even head width, got 3 (D=6, heads=2)"
    )
    assert error("attention(2)", input=("B", 6)).code == "E_CONSTRAINT"


HIDDEN = 'x = input("B", "T", 8)\nc = input("B", "S", 8)\nm = input("B", "S", dtype="bool")\n'


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("options", ["", ', qk_norm="rms_norm", logit_softcap=3.0, bias=False'])
@pytest.mark.parametrize("backend", ["reference", "torch", "nnx", "linen"])
def test_what_a_mask_hides_of_a_context_reaches_neither_result_nor_gradient(backend, options, bad):
    """A projection's gradient is dk^T c, in which 0 * NaN is NaN unless the hidden rows are taken out first."""
    if backend not in available():
        pytest.skip(f"{backend} is not installed")
    plan = iso.resolve(f"{HIDDEN}cross_attention(x, c, 2, mask=m{options})")
    harness, made, rng = load(backend), order_one_weights(plan), np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((2, 3, 8)),
        "c": rng.standard_normal((2, 5, 8)),
        "m": np.ones((2, 5), bool),
    }
    inputs["m"][0, 2] = inputs["m"][1, 0] = False
    results = []
    for filler in (0.0, 7.0, bad):
        inputs["c"] = np.where(inputs["m"][..., None], inputs["c"], filler)
        found = harness.forward(plan, made, inputs, "float32")
        gradients = harness.gradients(plan, made, inputs, {"": np.ones((2, 3, 8))}, "float32")
        if gradients is not None:
            found = {**found, **gradients.parameters, **gradients.inputs}
        results.append(found)
    zeros, *others = results
    for other in others:
        for name, array in zeros.items():
            assert np.isfinite(array).all(), name
            np.testing.assert_array_equal(other[name], array, err_msg=name)


def test_rope_errors_blame_the_argument_that_set_the_width(error):
    found = error("linear(12)\nattention(3, rope=True, head_dim=3)", input=("B", 8, 32))
    assert str(found).startswith(
        "E_CONSTRAINT: rope needs an even head width, got head_dim=3\n"
        "  <definition>:2:34\n"
        "  2 | attention(3, rope=True, head_dim=3)\n"
        "    |                                  ^\n"
    )
    assert "D=12" not in str(found)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("rope_theta=5e-324", "rope_theta must be >= 1, got 5e-324"),
        ("rope_scale=5e-324", "rope_scale must be >= 1, got 5e-324"),
        ("rope_low_factor=4.0", "rope_high_factor must be above rope_low_factor=4.0, got 4.0"),
        ("rope_original_length=0", "rope_original_length must be >= 1, got 0"),
        ("logit_softcap=5e-324", "logit_softcap must be 0 or between 1e-30 and 1e+30, got 5e-324"),
        ("logit_softcap=1e300", "logit_softcap must be 0 or between 1e-30 and 1e+30, got 1e+300"),
    ],
)
def test_numbers_that_would_overflow_are_refused(error, argument, expected):
    found = error(f"attention(2, rope=True, {argument})", input=("B", 8, 32))
    assert found.code == "E_ARGUMENT"
    assert found.message.endswith(expected)
    assert found.location.column == len("attention(2, rope=True, ") + argument.index("=") + 2
