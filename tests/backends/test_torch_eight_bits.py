"""Products with weights of eight bits: two kernels, probed, and done without where they are missing or wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.agreement.bounds import numeric_bound
from isomorph.testing import order_one_weights, sample_inputs

torch = pytest.importorskip("torch")
from isomorph.backends.torch import eight_bits  # noqa: E402
from isomorph.lowering.derived import Stored  # noqa: E402

TEXT = "h = feed_forward(128)\nh = add(x, h)\nattention(h, 4)\nlinear(40)"
CPU = torch.device("cpu")
has_integers = pytest.mark.skipif(
    not eight_bits._split_works(), reason="this processor adds products of integers in sixteen bits"
)


@pytest.fixture(autouse=True)
def fresh():
    """Nothing is known of the kernels, before and after."""

    def forget() -> None:
        eight_bits._eight_bits_work.cache_clear()
        eight_bits._split_works.cache_clear()
        eight_bits._choices.clear()

    forget()
    yield
    forget()


class Space:
    """A namespace with some things in place of those of another."""

    def __init__(self, of: Any, **replaced: Any) -> None:
        self.of = of
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)


def with_operator(space: str, name: str, operator: Any) -> Any:
    """``torch`` with another operator."""
    overloads = Space(getattr(getattr(torch.ops, space), name), default=operator)
    return Space(
        torch, ops=Space(torch.ops, **{space: Space(getattr(torch.ops, space), **{name: overloads})})
    )


def raising(*arguments: Any) -> Any:
    raise RuntimeError("this processor has no support\nand more lines")


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (raising, "this processor has no support"),
        (lambda x, w, steps: torch.zeros(len(x), len(w), dtype=x.dtype), "it computes something else"),
    ],
)
def test_without_products_of_eight_bits(operator, reason, monkeypatch):
    monkeypatch.setattr(eight_bits, "torch", with_operator("aten", "_weight_int8pack_mm", operator))
    plan = iso.resolve(TEXT, input=("B", "T", 64))
    weights = order_one_weights(plan)
    x = sample_inputs(plan, {"B": 2, "T": 3})["x"]
    expected = numeric_bound(plan, weights, [x], dtype="bfloat16")
    model = iso.torch.build(plan, weights)
    with pytest.warns(RuntimeWarning) as caught:
        iso.prepare(model, "int8")(torch.from_numpy(x))
    found = iso.prepare(model, "int8")(torch.from_numpy(x))  # and no more is said: warnings are errors here
    assert [str(one.message) for one in caught] == [
        f"isomorph: PyTorch's product with weights of eight bits is not usable here ({reason}); "
        "they are multiplied as bfloat16"
    ]
    (array,) = expected.outputs.values()
    assert np.abs(found.numpy() - array).max() <= expected.total


def test_both_kernels_are_here_and_right():
    """In this version of PyTorch, which the tests run with, they are taken; of integers where processors can."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    assert eight_bits._split_works() or not re.search("avx512_vnni|avx_vnni", flags)
    assert eight_bits._eight_bits_work()
    assert eight_bits.multiplies_eight_bits(torch.ones(8, 64, dtype=torch.int8))
    assert not eight_bits.multiplies_eight_bits(torch.empty(64, 64, dtype=torch.int8, device="meta"))


@pytest.mark.parametrize("width", [1, 3, 8, 31, 32, 33, 40, 64, 96])
def test_weights_of_eight_bits_at_every_width(width):
    """PyTorch's kernel reads behind the rows of widths that are no multiple of its vectors: those are not given to it."""
    plan = iso.resolve("linear(5)", input=("B", width))
    weights = order_one_weights(plan)
    engine = iso.prepare(iso.torch.build(plan, weights), "int8")
    for B in (0, 1, 7, 16, 33):
        x = sample_inputs(plan, {"B": B})["x"]
        expected = numeric_bound(plan, weights, [x], dtype="bfloat16")
        (array,) = expected.outputs.values()
        assert np.abs(engine(torch.from_numpy(x)).numpy() - array).max(initial=0.0) <= expected.total


def test_many_rows_meet_a_part_of_the_weight_at_a_time(monkeypatch):
    """[1, 1] times rows [1, 2], [3, 4], [5, 6] with steps 1, 0.5, 2 is 3, 3.5, 22, whatever the parts."""
    integers = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int8)
    steps = torch.tensor([1.0, 0.5, 2.0], dtype=torch.bfloat16)
    x = torch.ones(1, 2, dtype=torch.bfloat16)
    for numbers in (1, 2, 4, 6, 100):
        monkeypatch.setattr(eight_bits, "_WIDENED", numbers)
        assert eight_bits.multiply_widened(x, integers, steps).tolist() == [[3.0, 3.5, 22.0]]


def test_eight_bits_by_hand():
    """Row [1.27, -0.64]: steps of 0.01 (0.010009765625 in bfloat16) give 127 and -64; row of zeros: zeros."""
    plan = iso.resolve("linear(2, bias=False)", input=("B", 2))
    weights = {"n0.weight": np.array([[1.27, -0.64], [0.0, 0.0]], np.float32)}
    engine = iso.prepare(iso.torch.build(plan, weights), "int8")
    integers, steps = engine._state.store.quantized(Stored("n0.weight"))
    assert integers.tolist() == [[127, -64], [0, 0]]
    assert steps.tolist()[0] == 0.010009765625
    assert engine(torch.ones(1, 2)).tolist()[0][1] == 0.0


# -- split activations ---------------------------------------------------------------------------------


def split_of(integers: Any, steps: Any) -> eight_bits.Split:
    return eight_bits.packed(torch.tensor(integers, dtype=torch.int8), torch.tensor(steps))


@has_integers
def test_split_activations_by_hand():
    """Of a row whose largest number is 1, numbers of a 32512th each are exact: 16256, -8128 and 32512 of them."""
    weight = split_of([[2, 4, 1], [-127, 127, 127], [0, 0, 0]], [1.0, 0.5, 3.0])
    x = torch.tensor([[0.5, -0.25, 1.0]])
    bias = torch.tensor([10.0, 20.0, 30.0])
    right = np.array([1.0, 0.5 * (-127 * 0.5 - 127 * 0.25 + 127), 0.0])
    for rows in (1, 2, 5):
        given = x.repeat(rows, 1)
        for added, expected in ((None, right), (bias, right + bias.numpy())):
            found = eight_bits.multiply_split(given, weight, added)
            np.testing.assert_allclose(found.numpy(), np.tile(expected, (rows, 1)), atol=1e-5)


@has_integers
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 3, 17])
def test_a_number_is_off_by_half_a_step_at_most(rows, dtype):
    """Rows of all scales, with single numbers a thousand times the others."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 200)) * 10.0 ** rng.integers(-6, 6, (rows, 1))
    x[:, 7] *= 1000
    w = rng.integers(-127, 128, (33, 200))
    steps = rng.uniform(0.5, 2, 33).astype(np.float32)
    given = torch.from_numpy(x).to(dtype)
    found = eight_bits.multiply_split(given, split_of(w, steps), None)
    assert found.dtype == dtype
    exact = given.double().numpy() @ (w * steps[:, None].astype(np.float64)).T
    step = np.abs(given.double().numpy()).max(1, keepdims=True) / 32512
    bound = 0.51 * step * (np.abs(w) * steps[:, None]).sum(1)
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-20
    assert (np.abs(found.double().numpy() - exact) <= bound + rounding * np.abs(exact)).all()


@has_integers
def test_rows_that_are_zero_or_not_finite_or_none():
    weight = split_of(np.eye(3, dtype=np.int8), [1.0, 1.0, 1.0])
    x = torch.tensor(
        [[0.0, 0.0, 0.0], [1.0, torch.nan, 1.0], [1.0, 2.0, 4.0], [1e-38, 0.0, 0.0], [1.0, torch.inf, 1.0]]
    )
    for rows in (x, x[:, [1, 0, 2]], -x):
        found = eight_bits.multiply_split(rows.contiguous(), weight, None)
        assert found[0].tolist() == [0.0, 0.0, 0.0]
        assert found[[1, 4]].isnan().all()
        np.testing.assert_allclose(found[[2, 3]], rows[[2, 3]], atol=1e-4)
    assert eight_bits.multiply_split(torch.empty(0, 3), weight, torch.ones(3)).shape == (0, 3)


@has_integers
def test_rows_of_a_single_number():
    """An axis of one counts as contiguous, whatever its stride."""
    weight = split_of([[2], [-3]], [1.0, 0.5])
    for x in (torch.tensor([[1.0, 4.0]]).t(), torch.tensor([[1.0, 9.0], [4.0, 9.0]])[:, :1]):
        np.testing.assert_allclose(
            eight_bits.multiply_split(x, weight, None), [[2, -1.5], [8, -6]], rtol=1e-4
        )


@has_integers
def test_the_widest_rows_that_are_split():
    """Equal signs throughout: the largest sums that there are. Wider rows, whose sums might not fit, are refused."""
    width = eight_bits._WIDEST
    found = eight_bits.multiply_split(
        torch.ones(1, width), split_of(np.full((2, width), 127), [1.0, 1.0]), None
    )
    np.testing.assert_allclose(found, np.full((1, 2), 127.0 * width), rtol=1e-4)
    assert not eight_bits.prefers_split((1 << 10, width + 32), CPU)


@has_integers
def test_many_rows_are_multiplied_a_part_at_a_time(monkeypatch):
    rng = np.random.default_rng(0)
    weight = split_of(rng.integers(-127, 128, (5, 64)), np.ones(5, np.float32))
    x = torch.from_numpy(rng.standard_normal((20, 64)).astype(np.float32))
    whole = eight_bits.multiply_split(x, weight, torch.ones(5))
    monkeypatch.setattr(eight_bits, "_PIECE", 7)
    np.testing.assert_allclose(
        eight_bits.multiply_split(x, weight, torch.ones(5)), whole, rtol=1e-5, atol=1e-3
    )


@pytest.mark.parametrize("operator", [raising, lambda x, *told: torch.zeros(len(x), 5)])
def test_without_products_of_integers(operator, monkeypatch):
    """Nothing is said, since the other kernel serves."""
    monkeypatch.setattr(eight_bits, "torch", with_operator("onednn", "qlinear_pointwise", operator))
    assert not eight_bits._split_works()
    assert not eight_bits.prefers_split((1 << 13, 1 << 12), CPU)


@pytest.mark.parametrize("most", [1 << 15, 1 << 40])
def test_sums_of_pairs_in_sixteen_bits_are_noticed(most, monkeypatch):
    """As some processors add them; without a limit the same computation is right."""

    def multiply(x: Any, scale: float, zero: int, integers: Any, steps: Any, *told: Any) -> Any:
        products = x.long()[:, None, :] * integers.long()
        pairs = (products[..., ::2] + products[..., 1::2]).clamp(-most, most - 1)
        return (pairs.sum(-1) - zero * integers.long().sum(-1)).float() * steps

    packing = Space(torch.ops.onednn.qlinear_prepack, default=lambda integers, shape: integers)
    pointwise = Space(torch.ops.onednn.qlinear_pointwise, default=multiply)
    space = Space(torch.ops.onednn, qlinear_prepack=packing, qlinear_pointwise=pointwise)
    monkeypatch.setattr(eight_bits, "torch", Space(torch, ops=Space(torch.ops, onednn=space)))
    assert eight_bits._split_works() == (most > 1 << 15)


def test_small_weights_and_other_devices_are_not_asked_about():
    assert not eight_bits.prefers_split((1 << 10, 1 << 10), CPU)
    assert not eight_bits.prefers_split((1 << 13, 1 << 12), torch.device("meta"))
    assert not eight_bits._choices


@has_integers
@pytest.mark.parametrize("sizes", [(2, 3), (1, 1), (0, 3), (4, 33)])
def test_a_prepared_model_with_split_activations(sizes, monkeypatch):
    monkeypatch.setattr(eight_bits, "_LARGE", 1)
    monkeypatch.setattr(eight_bits, "is_faster", lambda *calls: True)
    plan = iso.resolve(TEXT, input=("B", "T", 64))
    weights = order_one_weights(plan)
    engine = iso.prepare(iso.torch.build(plan, weights), "int8")
    x = sample_inputs(plan, dict(zip("BT", sizes, strict=True)))["x"]
    found = engine(torch.from_numpy(x))
    expected = numeric_bound(plan, weights, [x], dtype="bfloat16")
    (array,) = expected.outputs.values()
    assert np.abs(found.numpy() - array).max(initial=0.0) <= expected.total
    kept = {kind for kind, _ in engine._state.store._kept}
    assert "split" in kept
    assert "quantized" not in kept  # a weight is kept once


@has_integers
@pytest.mark.parametrize("text", ["linear(64)", "transpose(1, 2)\nlinear(64)"])
def test_split_activations_that_are_not_contiguous(text, monkeypatch):
    monkeypatch.setattr(eight_bits, "_LARGE", 1)
    monkeypatch.setattr(eight_bits, "is_faster", lambda *calls: True)
    shape = (5, 64) if text == "linear(64)" else (1, 64, 5)
    plan = iso.resolve(text, input=shape)
    weights = order_one_weights(plan)
    x = sample_inputs(plan, {})["x"]
    turned = torch.from_numpy(np.ascontiguousarray(x.swapaxes(-1, -2))).transpose(-1, -2)
    expected = numeric_bound(plan, weights, [x], dtype="bfloat16")
    (array,) = expected.outputs.values()
    found = iso.prepare(iso.torch.build(plan, weights), "int8")(turned)
    assert np.abs(found.numpy() - array).max() <= expected.total


@has_integers
def test_split_weights_follow_the_model(monkeypatch):
    monkeypatch.setattr(eight_bits, "_LARGE", 1)
    monkeypatch.setattr(eight_bits, "is_faster", lambda *calls: True)
    model = iso.torch.build(iso.resolve("linear(64, bias=False)", input=("B", 64)))
    engine = iso.prepare(model, "int8")
    x = torch.randn(2, 64)
    before = engine(x)
    with torch.no_grad():
        model.get_parameter("n0.weight").mul_(2)
    assert torch.allclose(engine(x), 2 * before, rtol=1e-2, atol=1e-2)
