"""The agreement bound: its arithmetic, and that float32 keeps within it where a fault does not."""

import numpy as np
import pytest

from isomorph.agreement.bounds import EPSILON, gradient_bound, numeric_bound, value_bound
from isomorph.plan.resolve import resolve


def test_epsilons_are_those_of_the_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name, epsilon in EPSILON.items():
        assert epsilon == float(ml_dtypes.finfo(name).eps)


def test_value_bound():
    assert value_bound(16, 3.0) == 4 * 2**-23 * 4 * 3
    assert value_bound(16, 0.5) == 4 * 2**-23 * 4  # never below the rounding of one
    assert value_bound(4, 1.0, "bfloat16") == 4 * 2**-7 * 2


def test_the_bound_of_each_node():
    plan = resolve("linear(1, bias=False)\nrelu()", input=("B", 4))
    found = numeric_bound(plan, {"n0.weight": np.array([[1.0, 1, 1, 1]])}, [np.array([[1.0, 2, 3, 4]])])
    first, second = found.nodes
    assert (first.name, first.operation, first.reduction, first.largest) == ("n0", "linear", 4, 10.0)
    assert (second.reduction, second.largest, second.layer_norm) == (1, 10.0, 0.0)
    assert first.bound == 4 * 2**-23 * 2 * 10
    assert second.bound == 4 * 2**-23 * 10
    # Every term of 1 + 2 + 3 + 4 and the sum are off by eps / 2 at most, relu's result and what is beside it too.
    assert 8 * 2**-24 * 10 <= found.total < 8 * 2**-24 * (10 + 10 + 10 + 1) * 1.01
    np.testing.assert_array_equal(found.outputs[""], [[10.0]])
    assert found.program.sizes == {"B": 1}


def test_a_layer_norm_adds_its_condition():
    plan = resolve("layer_norm(affine=False, eps=1.0)", input=("B", 2))
    found = numeric_bound(plan, {}, {"x": np.array([[100.0, 102.0], [7.0, 7.0]])})
    # variances 1 and 0: the smaller plus eps is 1, so max |x| / sigma is 102
    assert found.nodes[0].layer_norm == 102.0
    assert found.nodes[0].bound == pytest.approx(4 * 2**-23 * 2**0.5 + 2**-23 * 102, rel=1e-15)
    # What is measured sees it too: 100 and 102 are rounded in units of 2^-24 * 100, and sigma is 1.
    assert 8 * 2**-24 * 10 < found.total < 8 * 2**-24 * 300


def test_a_blocks_inner_norms_count():
    plan = resolve("transformer_block(2)", input=("B", 3, 4))
    random = np.random.default_rng(0)
    weights = {p.path: random.standard_normal(p.shape) for p in plan.parameters}
    weights["n0.attn.o_proj.weight"] *= 0
    weights["n0.attn.o_proj.bias"] *= 0
    x = random.standard_normal((2, 3, 4))
    found = numeric_bound(plan, weights, [x])
    # the attention branch adds nothing, so both norms read x itself
    sigma = np.sqrt(x.var(axis=-1).min() + 1e-5)
    assert found.nodes[0].layer_norm == pytest.approx(2 * np.abs(x).max() / sigma, rel=1e-14)


def test_empty_inputs_have_a_bound():
    plan = resolve("layer_norm(affine=False)", input=("B", "T", 2))
    found = numeric_bound(plan, {}, [np.zeros((2, 0, 2))])
    assert found.nodes[0].bound == 4 * 2**-23 * 2**0.5
    assert found.total == 8 * 2**-126


def test_gradient_bound():
    plan = resolve("linear(3)\nlinear(1)", input=("B", 4))
    weights = {p.path: np.ones(p.shape) for p in plan.parameters}
    program = numeric_bound(plan, weights, [np.ones((9, 4))]).program
    gradients = {
        "n0.weight": np.array([-5.0, 2.0]), "n0.bias": np.array([3.0]), "n1.weight": np.array([100.0])
    }  # fmt: skip
    assert gradient_bound(program, "n0", gradients) == 4 * 2**-23 * (4 * 9) ** 0.5 * 5
    assert gradient_bound(program, "n1", gradients, dtype="float64") == pytest.approx(
        4 * 2**-52 * 27**0.5 * 100, rel=1e-15
    )


def test_float32_keeps_within_the_bound_and_a_dropped_bias_does_not():
    torch = pytest.importorskip("torch")
    plan = resolve("linear(16)\ngelu()\nlinear(3)", input=("B", 8))
    random = np.random.default_rng(0)
    weights = {p.path: random.standard_normal(p.shape) for p in plan.parameters}
    x = random.standard_normal((32, 8))
    w = {path: torch.from_numpy(array).float() for path, array in weights.items()}
    weights = {path: tensor.double().numpy() for path, tensor in w.items()}
    hidden = torch.nn.functional.linear(torch.from_numpy(x).float(), w["n0.weight"], w["n0.bias"])
    out = torch.nn.functional.linear(torch.nn.functional.gelu(hidden), w["n2.weight"], w["n2.bias"])
    found = numeric_bound(plan, weights, [np.float32(x)])
    difference = np.abs(out.numpy() - found.outputs[""]).max()
    assert 0 < difference <= found.total
    without = np.abs(out.numpy() - weights["n2.bias"] - found.outputs[""]).max()
    assert without > 100 * found.total
