"""Convolution along a sequence: values by hand, lengths in both directions, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

import isomorph as iso
from isomorph.operators.convolution import Conv1d

STEPS = np.array([[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]])  # one example, two channels, four steps
WEIGHT = np.array([[[1.0, 10.0, 100.0], [0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
# The first result reads the first channel in three steps, the second the other channel in the middle one.


def test_windows_by_hand(run):
    given = {"n0.weight": WEIGHT, "n0.bias": [0.5, 0.0]}
    # 1 + 20 + 300 and 2 + 30 + 400
    np.testing.assert_array_equal(run("conv1d(2, 3)", STEPS, given), [[[321.5, 432.5], [6, 7]]])
    # a zero in front: 0 + 10 + 200; one behind: 3 + 40
    same = run("conv1d(2, 3, padding=1)", STEPS, given)
    np.testing.assert_array_equal(same, [[[210.5, 321.5, 432.5, 43.5], [5, 6, 7, 8]]])
    halved = run("conv1d(2, 3, stride=2, padding=1, bias=False)", STEPS, {"n0.weight": WEIGHT})
    np.testing.assert_array_equal(halved, [[[210, 432], [5, 7]]])


@pytest.mark.parametrize(
    ("call", "steps", "length"),
    [
        ("conv1d(4, 3)", 3, 1),
        ("conv1d(4, 3, padding=1)", 1, 1),  # (1 + 2 - 3) // 1 + 1
        ("conv1d(4, 3, stride=2, padding=1)", 3000, 1500),  # (3000 + 2 - 3) // 2 + 1
        ("conv1d(4, 10, stride=5)", 16000, 3199),  # 15990 // 5 + 1
        ("conv1d(4, 2, stride=7)", 8, 1),  # 6 // 7 + 1
    ],
)
def test_lengths(shape_of, call, steps, length):
    assert shape_of(call, input=("B", 2, steps)) == ["B", 4, length]


@pytest.mark.parametrize(
    ("call", "steps", "length", "bound"),
    [
        ("conv1d(4, 3)", "T", "T-2", "T >= 3"),
        ("conv1d(4, 3, padding=1)", "T", "T", "T >= 1"),
        ("conv1d(4, 3, stride=2, padding=1)", "2*T", "T", "T >= 1"),  # (2T - 1) // 2 + 1
        ("conv1d(4, 5, stride=2)", "6*T+1", "3*T-1", "T >= 1"),  # (6T - 4) // 2 + 1
    ],
)
def test_open_lengths(shape_of, call, steps, length, bound):
    assert shape_of(call, input=("B", 2, steps)) == ["B", 4, length]
    plan = iso.resolve(call, input=("B", 2, steps))
    assert str(plan).splitlines()[-1] == f"where {bound}"
    operator = plan.nodes[0].operator
    for size in (1, 2, 3, 4, 5):
        count = int(eval(steps.replace("T", str(size))))
        most = (count + 2 * operator.padding - operator.kernel_size) // operator.stride + 1
        if most >= 1:
            found = iso.reference.build(plan, iso.initial_weights(plan))(np.zeros((1, 2, count)))
            assert found.shape == (1, 4, most)


def test_an_open_length_that_a_stride_does_not_divide_asks_for_a_number(error):
    found = error("conv1d(4, 3, stride=2, padding=1)", input=("B", 2, "T"))
    assert str(found) == (
        "E_UNRESOLVED: conv1d: (T-1) // 2 + 1 is no size: T is not known until run time\n"
        "  <definition>:1:21\n"
        "  1 | conv1d(4, 3, stride=2, padding=1)\n"
        "    |                     ^\n"
        "  give a number for T, or a multiple of 2 such as 2*N"
    )


def test_what_holds_no_window_is_refused(error):
    found = error("conv1d(4, 5, padding=1)", input=("B", 2, 2))
    assert str(found) == (
        "E_CONSTRAINT: kernel_size=5 does not fit into T=2 + 2 * 1 steps\n"
        "  <definition>:1:11\n"
        "  1 | conv1d(4, 5, padding=1)\n"
        "    |           ^\n"
        "  T=2 comes from input x[B, 2, 2]\n"
        "  T must be at least 3, or the padding greater"
    )
    assert error("conv1d(4, 3)", input=("B", 2, 1)).message == "kernel_size=3 does not fit into T=1 steps"


@pytest.mark.parametrize(("call", "least"), [("conv1d(4, 3)", 3), ("conv1d(4, 3, padding=1)", 1)])
@pytest.mark.parametrize("backend", ["reference", "torch", "nnx", "linen"])
def test_what_holds_no_window_is_refused_at_run_time(call, least, backend):
    from isomorph.backends.available import load

    pytest.importorskip({"reference": "numpy", "torch": "torch"}.get(backend, "flax"))
    plan = iso.resolve(call, input=("B", 2, "T"))
    weights, harness = iso.initial_weights(plan), load(backend)
    for length in range(least):
        with pytest.raises(iso.IsomorphError) as caught:
            harness.forward(plan, weights, {"x": np.zeros((1, 2, length), "float32")}, "float32")
        assert caught.value.code == "E_RUNTIME"
        assert f"T={length} must be at least {least}" in caught.value.message
    found = harness.forward(plan, weights, {"x": np.zeros((1, 2, least), "float32")}, "float32")
    assert found[""].shape == (1, 4, 1)


def test_lengths_backwards(error, shape_of):
    """With stride 1 a length tells the one before; with a greater one several have the same result."""
    assert shape_of("linear()\nconv1d(4, 3)", input=("B", 6, 2), output=("B", 4, 9)) == ["B", 4, 9]
    plan = iso.resolve("linear()\nconv1d(4, 3)", input=("B", 6, 2), output=("B", 4, 9))
    assert plan.nodes[0].operator.out_features == 11  # 11 - 3 + 1 = 9
    # (19 - 3) // 2 + 1 = (20 - 3) // 2 + 1 = 9
    found = error("linear()\nconv1d(4, 3, stride=2)", input=("B", 6, 2), output=("B", 4, 9))
    assert (found.code, found.message) == ("E_AMBIGUOUS", "n0 (linear): out_features may be 19 or 20")
    assert error("linear()\nconv1d(4, 3, stride=2)", input=("B", 6, 2)).code == "E_UNRESOLVED"


def test_what_else_is_known_decides_a_length():
    # 40 = C * T, and (T - 3) // 2 + 1 = 9 leaves T in 19, 20.
    plan = iso.resolve("reshape()\nconv1d(3, 3, stride=2)", input=("B", 40), output=("B", 3, 9))
    assert plan.nodes[0].operator.dims == (2, 20)
    # A later reader says 40, and (40 - 3) // 2 + 1 = 19.
    plan = iso.resolve(
        "h = linear()\na = conv1d(h, 4, 3, stride=2)\nb = linear(h, 5, in_features=40)\n"
        'output(a=("B", 4, 19), b=("B", 6, 5))',
        input=("B", 6, 2),
    )
    assert plan.nodes[0].operator.out_features == 40


def test_channels_from_either_side(error):
    plan = iso.resolve("conv1d(kernel_size=2)", input=("B", 3, 4), output=("B", 5, 3))
    operator = plan.nodes[0].operator
    assert (operator.out_channels, operator.in_channels) == (5, 3)
    assert {p.path: p.shape for p in plan.parameters} == {"n0.weight": (5, 3, 2), "n0.bias": (5,)}
    plan = iso.resolve("reshape()\nconv1d(4, 2, in_channels=6)", input=("B", 30), output=("B", 4, 4))
    assert plan.nodes[0].operator.dims == (6, 5)
    found = error("conv1d(4, 2, in_channels=6)", input=("B", 3, 5))
    assert found.code == "E_CONSTRAINT"
    assert "3" in found.message and "6" in found.message
    assert error("conv1d(kernel_size=2)", input=("B", 3, 4)).code == "E_UNRESOLVED"
    assert error("conv1d(4)", input=("B", 3, 4)).message == (
        "conv1d needs the argument kernel_size (int, >= 1)"
    )
    assert error("conv1d(4, 2)", input=("B", 3)).code == "E_CONSTRAINT"


@pytest.mark.parametrize("call", ["conv1d(4, 0)", "conv1d(4, 2, stride=0)", "conv1d(4, 2, padding=-1)"])
def test_arguments_out_of_range(error, call):
    assert error(call, input=("B", 3, 4)).code == "E_ARGUMENT"


def test_initial_weights():
    # fan in 3 * 2, hence uniform in +-1/sqrt(6)
    weights = iso.initial_weights(iso.resolve("conv1d(500, 2)", input=("B", 3, 4)))
    for array in weights.values():
        assert 0.95 * 6**-0.5 < np.abs(array).max() <= 6**-0.5
    assert set(weights) == {"n0.weight", "n0.bias"}
    assert "bias" not in Conv1d.of(C_in=3, C_out=4, kernel_size=2, bias=False).all_parameters


def test_torch_gets_its_own_layer():
    torch = pytest.importorskip("torch")
    plan = iso.resolve("conv1d(4, 3, stride=2, padding=1, bias=False)", input=("B", 2, 8))
    layer = iso.torch.build(plan).n0
    assert isinstance(layer, torch.nn.Conv1d)
    assert (layer.in_channels, layer.out_channels, layer.kernel_size) == (2, 4, (3,))
    assert (layer.stride, layer.padding, layer.bias) == ((2,), (1,), None)
    x = torch.randn(3, 2, 8)
    found, expected = layer(x), torch.nn.Conv1d.forward(layer, x)
    torch.testing.assert_close(found, expected)
