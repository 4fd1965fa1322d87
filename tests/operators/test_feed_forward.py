"""Position-wise networks: values by hand."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest


def test_feed_forward_values(run):
    # up(2) = [2, -2 + 1], relu gives [2, 0], down gives 2*2 + 0.5; up(-1) = [-1, 2] -> [0, 2] -> 3*2 + 0.5.
    weights = {
        "n0.up.weight": [[1], [-1]],
        "n0.up.bias": [0, 1],
        "n0.down.weight": [[2, 3]],
        "n0.down.bias": [0.5],
    }
    out = run('feed_forward(2, activation="relu")', [[[2.0], [-1.0]]], weights)
    np.testing.assert_array_equal(out, [[[4.5], [6.5]]])


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("gelu", 0.8413447460685429),  # Phi(1)
        ("gelu_tanh", 0.8411919906082768),
        ("relu", 1.0),
        ("silu", 1 / (1 + exp(-1))),
        ("quick_gelu", 1 / (1 + exp(-1.702))),
    ],
)
def test_activations_at_one(run, activation, expected):
    weights = {"n0.up.weight": [[1]], "n0.down.weight": [[1]]}
    out = run(f'feed_forward(1, activation="{activation}", bias=False)', [[1.0]], weights)
    assert out[0, 0] == pytest.approx(expected, rel=1e-12)


def test_swiglu_values(run):
    # down(silu(gate) * up) = 3 * (silu(1) * 2), silu(1) = 1 / (1 + e^-1)
    weights = {"n0.gate.weight": [[1]], "n0.up.weight": [[2]], "n0.down.weight": [[3]]}
    assert run("swiglu(1)", [[1.0]], weights)[0, 0] == pytest.approx(6 / (1 + exp(-1)), rel=1e-14)


def test_activation_names(error):
    found = error('feed_forward(4, activation="swish")', input=("B", 4))
    assert found.code == "E_ARGUMENT"
    assert found.message == (
        "feed_forward: activation must be one of gelu, gelu_tanh, relu, silu, quick_gelu, got 'swish'"
    )
