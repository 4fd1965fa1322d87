"""Nonlinearities, softmax and dropout: values by hand."""

from __future__ import annotations

from math import erf, exp, log, sqrt, tanh

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("gelu()", -2 * 0.5 * (1 + erf(-2 / sqrt(2)))),
        ('gelu("tanh")', -0.5 * 2 * (1 + tanh(sqrt(0.6366197723675814) * (-2 + 0.044715 * -8)))),
        ("relu()", 0.0),
        ("silu()", -2 / (1 + exp(2))),
        ("quick_gelu()", -2 / (1 + exp(2 * 1.702))),
        ("tanh()", tanh(-2)),
        ("sigmoid()", 1 / (1 + exp(2))),
        ("identity()", -2.0),
        ("dropout(0.5)", -2.0),
    ],
)
def test_value_at_minus_two(run, definition, expected):
    np.testing.assert_allclose(run(definition, [[-2.0, 0.0]])[0, 0], expected, rtol=1e-14)


def test_T1_gelu_is_the_erf_form(run):
    """google JAX's own default is the tanh form; the two differ in the fourth digit at -2."""
    assert run("gelu()", [[-2.0]])[0, 0] == pytest.approx(-0.0455003, abs=5e-8)
    assert run('gelu(approximate="tanh")', [[-2.0]])[0, 0] == pytest.approx(-0.0454023, abs=5e-8)


def test_softmax(run, error):
    # exp of 0, ln 2, ln 5 is 1, 2, 5; their sum is 8.
    np.testing.assert_allclose(run("softmax()", [[0.0, log(2), log(5)]]), [[0.125, 0.25, 0.625]], rtol=1e-15)
    x = np.array([[[0.0, log(3)], [log(3), 0.0]]])
    np.testing.assert_allclose(run("softmax(1)", x), [[[0.25, 0.75], [0.75, 0.25]]], rtol=1e-15)
    np.testing.assert_allclose(run("softmax()", [[1000.0, 1000.0]]), [[0.5, 0.5]], rtol=1e-15)
    found = error("softmax(0)", input=("B", 3))
    assert found.code == "E_CONSTRAINT"
    assert found.message == "dim=0 is the batch axis, which this operator leaves alone"
    assert found.hints[-1] == "axes: 1, or -1"


@pytest.mark.parametrize("p", ["1.0", "-0.1", "True", '"half"'])
def test_dropout_probability(error, p):
    found = error(f"dropout({p})", input=("B", 3))
    assert found.code == "E_ARGUMENT"
    assert found.message.startswith("dropout: p must be ")
