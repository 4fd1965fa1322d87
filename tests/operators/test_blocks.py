"""Blocks: each equals the composition that its documentation states, weight by weight."""

from __future__ import annotations

import numpy as np
import pytest

import isomorph as iso
from isomorph.testing import order_one_weights

X = np.random.default_rng(0).standard_normal((2, 5, 8))

PRE_NORM = """
h = add(x, {gain1}attention(layer_norm(x, eps={eps!r}, name="norm1"), 2, causal={causal}, name="attn"){close})
f = feed_forward(layer_norm(h, eps={eps!r}, name="norm2"), {hidden}, activation="{activation}", name="ffn")
add(h, f)
"""


def composed(run, definition, weights):
    """The composition with the weights of the block ``n0``."""
    return run(definition, X, {path.removeprefix("n0."): array for path, array in weights.items()})


@pytest.mark.parametrize(
    ("block", "settings"),
    [
        ("transformer_block(2)", {"eps": 1e-5, "hidden": 32, "activation": "gelu", "causal": False}),
        (
            'transformer_block(2, mlp_ratio=1, activation="silu", causal=True, eps=0.1)',
            {"eps": 0.1, "hidden": 8, "activation": "silu", "causal": True},
        ),
        ("encoder_block(2, 7)", {"eps": 1e-6, "hidden": 7, "activation": "relu", "causal": False}),
    ],
)
def test_pre_norm_block_is_its_composition(run, block, settings):
    weights = order_one_weights(iso.resolve(block, input=("B", 5, 8)), seed=1)
    by_hand = composed(run, PRE_NORM.format(gain1="", close="", **settings), weights)
    np.testing.assert_allclose(run(block, X, weights), by_hand, rtol=1e-12, atol=1e-12)


def test_post_norm_block_is_its_composition(run):
    block = 'post_norm_block(2, hidden=6, activation="relu", eps=0.01)'
    weights = order_one_weights(iso.resolve(block, input=("B", 5, 8)), seed=2)
    definition = """
    h = layer_norm(add(x, attention(x, 2, name="attn")), eps=0.01, name="norm1")
    layer_norm(add(h, feed_forward(h, 6, activation="relu", name="ffn")), eps=0.01, name="norm2")
    """
    by_hand = composed(run, definition, weights)
    np.testing.assert_allclose(run(block, X, weights), by_hand, rtol=1e-12, atol=1e-12)


def test_layer_scale_multiplies_the_branches(run):
    block = "transformer_block(2, layer_scale=True)"
    weights = order_one_weights(iso.resolve(block, input=("B", 5, 8)), seed=3)
    plain = {path: array for path, array in weights.items() if "gamma" not in path}
    ones = weights | {"n0.gamma1": np.ones(8), "n0.gamma2": np.ones(8)}
    np.testing.assert_array_equal(run(block, X, ones), run("transformer_block(2)", X, plain))
    zeros = weights | {"n0.gamma1": np.zeros(8), "n0.gamma2": np.zeros(8)}
    np.testing.assert_array_equal(run(block, X, zeros), X)
    # gamma2 alone on top of the first branch: out = h + gamma2 * f, so doubling it doubles out - h.
    half = run(block, X, ones | {"n0.gamma2": np.zeros(8)})
    once, twice = (run(block, X, ones | {"n0.gamma2": np.full(8, g)}) for g in (1.0, 2.0))
    np.testing.assert_allclose(twice - half, 2 * (once - half), rtol=1e-9, atol=1e-12)


def test_permuted_positions_permute_the_output(run):
    block = "encoder_block(2, 7)"
    weights = order_one_weights(iso.resolve(block, input=("B", 5, 8)), seed=4)
    order = [3, 0, 4, 1, 2]
    np.testing.assert_allclose(run(block, X[:, order], weights), run(block, X, weights)[:, order], rtol=1e-9)


def test_a_causal_block_hides_the_future(run):
    block = "transformer_block(2, causal=True)"
    weights = order_one_weights(iso.resolve(block, input=("B", 5, 8)), seed=5)
    changed = X.copy()
    changed[:, 3:] = 100
    before, after = run(block, X, weights), run(block, changed, weights)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).any(axis=-1).all()


def test_rms_norm_block_has_no_norm_bias_and_gammas_come_with_layer_scale():
    plan = iso.resolve('transformer_block(2, norm="rms_norm", layer_scale=True)', input=("B", 6, 16))
    paths = {p.path: p.initial for p in plan.parameters}
    assert not any(path.startswith("n0.norm") and path.endswith("bias") for path in paths)
    assert paths["n0.gamma1"].value == paths["n0.gamma2"].value == 1e-5


def test_heads_must_divide_the_width(error):
    for block in ("transformer_block(3)", "encoder_block(3, 4)", "post_norm_block(3)"):
        found = error(block, input=("B", 8, 32))
        assert found.code == "E_CONSTRAINT"
        assert found.message == "heads=3 does not divide the model width D=32"
