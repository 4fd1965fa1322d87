"""Norms: values by hand, epsilon and precision."""

from __future__ import annotations

import numpy as np
import pytest

import isomorph as iso


def test_layer_norm_values(run):
    # Mean 2, variance ((-1)^2 + 0 + 1^2) / 3 = 2/3, so the row becomes -1.2247, 0, 1.2247 (eps aside).
    weights = {"n0.weight": [1, 10, 2], "n0.bias": [0, 5, 1]}
    out = run("layer_norm(eps=1e-30)", [[1.0, 2.0, 3.0]], weights)
    np.testing.assert_allclose(out, [[-(1.5**0.5), 5, 2 * 1.5**0.5 + 1]], rtol=1e-14)
    out = run("layer_norm(eps=1e-30, affine=False)", [[1.0, 2.0, 3.0]])
    np.testing.assert_allclose(out, [[-(1.5**0.5), 0, 1.5**0.5]], rtol=1e-14)


@pytest.mark.parametrize(("eps", "expected"), [(1e-5, 0.3015), (1e-6, 0.7071), (1e-12, 1.0)])
def test_T2_epsilon_is_added_to_the_variance(run, eps, expected):
    # 1e-3 / sqrt(1e-6 + eps)
    out = run(f"layer_norm(eps={eps!r}, affine=False)", [[1e-3, -1e-3]])
    np.testing.assert_allclose(out, [[expected, -expected]], rtol=1e-4)


def test_T2_default_epsilons():
    plan = iso.resolve("layer_norm()\nrms_norm()\nencoder_block(1, 2)\npost_norm_block(1)", input=("B", 2, 2))
    norms = [node.operator for node in plan.nodes]
    assert [norm.eps for norm in norms] == [1e-5, 1e-6, 1e-6, 1e-12]
    assert [norms[i].child_operators["norm2"].eps for i in (2, 3)] == [1e-6, 1e-12]


def test_T3_variance_of_a_large_mean(run):
    out = run("layer_norm(affine=False)", [[40000.0, 40001.0, 40002.0, 40003.0]])
    np.testing.assert_allclose(out, [[-1.34164, -0.44721, 0.44721, 1.34164]], atol=1e-5)


def test_rms_norm_values(run):
    # The mean square of [3, 4] is 12.5.
    x, root = [[3.0, 4.0]], 12.5**0.5
    out = run("rms_norm(eps=1e-30)", x, {"n0.weight": [1, 10]})
    np.testing.assert_allclose(out, [[3 / root, 40 / root]], rtol=1e-14)
    out = run("rms_norm(eps=1e-30, zero_centered=True)", x, {"n0.weight": [0, 9]})
    np.testing.assert_allclose(out, [[3 / root, 40 / root]], rtol=1e-14)
    out = run("rms_norm(eps=3.5, affine=False)", x)
    np.testing.assert_allclose(out, [[3 / 4, 1]], rtol=1e-14)  # 12.5 + 3.5 = 16


def test_norm_values(run):
    # The length of [3, 4] is 5; with 11 added to 25 the root is 6; what is 0 stays 0.
    np.testing.assert_allclose(run("l2_norm()", [[3.0, 4.0], [0.0, 0.0]]), [[0.6, 0.8], [0, 0]], rtol=1e-15)
    np.testing.assert_allclose(run("l2_norm(eps=11.0)", [[[3.0, 4.0]]]), [[[0.5, 4 / 6]]], rtol=1e-15)


def test_norm_is_a_division_by_the_length_from_1e_8_on(run):
    x = 1e-8 * np.array([[0.6, -0.8]])  # the sum of squares is 1e-16, beside which 1e-24 is 1e-8
    np.testing.assert_allclose(run("l2_norm()", x), [[0.6, -0.8]], rtol=5.1e-9)


def test_layer_scale_multiplies_each_feature(run):
    out = run("layer_scale()", [[[1.0, 2.0], [3.0, 4.0]]], {"n0.gamma": [10.0, -1.0]})
    np.testing.assert_array_equal(out, [[[10, -2], [30, -4]]])
    np.testing.assert_array_equal(run("layer_scale()", [[1.0, 2.0]], {"n0.gamma": [3.0, 0.5]}), [[3, 1]])


def test_where_layer_scale_starts(error):
    plan = iso.resolve("layer_scale()\nlayer_scale(init_values=0.5)", input=("B", 3))
    assert [(p.path, p.shape, p.initial.value) for p in plan.parameters] == [
        ("n0.gamma", (3,), 1e-5),
        ("n1.gamma", (3,), 0.5),
    ]
    found = error("layer_scale(init_values=-1.0)", input=("B", 3))
    assert (found.code, found.message) == ("E_ARGUMENT", "layer_scale: init_values must be >= 0, got -1.0")


def test_parameters_of_norms():
    plan = iso.resolve(
        "layer_norm()\nlayer_norm(bias=False)\nlayer_norm(affine=False)\nrms_norm()\nrms_norm(zero_centered=True)",
        input=("B", 2),
    )
    assert {p.path: p.initial.value for p in plan.parameters} == {
        "n0.weight": 1,
        "n0.bias": 0,
        "n1.weight": 1,
        "n3.weight": 1,
        "n4.weight": 0,
    }


@pytest.mark.parametrize(
    "definition",
    [
        "layer_norm(eps=1e-46)", "rms_norm(eps=1e-46)", "l2_norm(eps=1e-46)", "transformer_block(2, eps=1e-46)",
        "encoder_block(2, 7, eps=1e-46)", "post_norm_block(2, eps=1e-46)",
        'attention(2, qk_norm="l2_norm", eps=1e-46)',
    ],
)  # fmt: skip
def test_an_epsilon_that_float32_loses_is_refused(error, run, definition):
    found = error(definition, input=("B", 3, 4))
    assert (found.code, found.hints) == (
        "E_ARGUMENT",
        ("in float32 a smaller one counts as 0, and a position whose features are equal gives NaN",),
    )
    assert found.message.endswith("eps must be >= 1e-30, got 1e-46")
    assert found.location.column == definition.index("eps=") + len("eps=") + 1
    assert iso.resolve(definition.replace("46", "30"), input=("B", 3, 4))
