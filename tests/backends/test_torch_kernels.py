"""PyTorch's internal kernels: probed, and done without where they are missing or wrong."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.backends.bounds import numeric_bound
from isomorph.engine.sampling import Sampling
from isomorph.testing import order_one_weights, sample_inputs

torch = pytest.importorskip("torch")
from isomorph.backends.torch import engine as engines  # noqa: E402
from isomorph.backends.torch import engine_decoding, fast_training, kernels  # noqa: E402
from isomorph.backends.torch.engine_decoding import compose  # noqa: E402

TEXT = "h = feed_forward(128)\nh = add(x, h)\nattention(h, 4)\nlinear(40)"


@pytest.fixture
def fresh():
    """Nothing is known of the kernels, before and after."""

    def forget() -> None:
        for known in (kernels.onednn, kernels._eight_bits_work, fast_training.usable):
            known.cache_clear()
        kernels._choices.clear()

    forget()
    yield
    forget()


class Operators:
    """``torch.ops`` with other operators in one namespace."""

    def __init__(self, **namespaces: Any) -> None:
        self.__dict__.update(namespaces)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.ops, name)


class Lacking:
    """A namespace without operators."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'_OpNamespace' 'mkldnn' object has no attribute '{name}'")


class Overloads:
    """Overloads of one operator."""

    def __init__(self, **overloads: Any) -> None:
        self.__dict__.update(overloads)


def raising(*arguments: Any) -> Any:
    raise RuntimeError("mkldnn_linear: this processor has no support\nand more lines")


def of_old(x: Any, weight: Any, bias: Any) -> Any:
    """An operator with fewer arguments."""
    return x


def changed(**replaced: Any) -> Any:
    """oneDNN's operators, some of them replaced."""
    real = torch.ops.mkldnn
    pointwise = {"default": real._linear_pointwise.default, "binary": real._linear_pointwise.binary}
    pack = replaced.pop("pack", real._reorder_linear_weight.default)
    return Overloads(
        _reorder_linear_weight=Overloads(default=pack),
        _linear_pointwise=Overloads(**{**pointwise, **replaced}),
    )


class Patched:
    """``torch`` as a module sees it, with other operators."""

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def test_a_row_may_be_computed_several_times(fresh, monkeypatch):
    """The same scores, whichever kernel was found to be faster."""
    if kernels.onednn() is None:
        pytest.skip("this PyTorch has no such kernels")
    plan = iso.resolve(
        'ids = input("B", "T", dtype="int64")\nembedding(50, 64)\n'
        "transformer_block(4, causal=True)\nlayer_norm()\nlinear(50)"
    )
    weights = order_one_weights(plan)
    scores: list[Any] = []
    texts: list[str] = []

    def choose(self: Any, given: Any, step: int) -> Any:
        scores.append(given)
        return np.full(len(given), 7)

    def composed(*told: Any, **named: Any) -> str:
        texts.append(compose(*told, **named))
        return texts[-1]

    monkeypatch.setattr(Sampling, "choose", choose)
    monkeypatch.setattr(engine_decoding, "compose", composed)
    monkeypatch.setattr(kernels, "prefers_onednn", lambda *told: True)
    monkeypatch.setattr(kernels, "_gains_from_more_rows", lambda *told: many)
    for many in (False, True):
        kernels._choices.clear()
        texts.clear()
        engine = iso.prepare(iso.torch.build(plan, weights), "bfloat16")
        for rows in (1, 2):
            iso.generate(engine, [[1, 2, 3]] * rows, 3)
        assert [".expand(6, 64)" in text for text in texts] == [False, many, many, many, *[False] * 4]
    plain, repeated = scores[:6], scores[6:]
    for one, other in zip(plain, repeated, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2.0**-6 * np.abs(one).max())


ABSENCES = {
    "missing": (Lacking, "'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'"),
    "raising": (lambda: changed(default=raising), "mkldnn_linear: this processor has no support"),
    "packing raises": (lambda: changed(pack=raising), "mkldnn_linear: this processor has no support"),
    "other arguments": (lambda: changed(default=of_old), "of_old() takes 3 positional arguments but 6 were given"),
    "wrong products": (
        lambda: changed(default=lambda x, w, b, *told: torch.zeros(*x.shape[:-1], w.shape[0])),
        "they compute something else",
    ),
    "gelu left out": (
        lambda: changed(default=lambda x, w, b, *told: torch.ops.mkldnn._linear_pointwise.default(x, w, b, "none", [], "")),
        "they compute something else",
    ),
    "sum left out": (
        lambda: changed(binary=lambda x, y, w, b, how: torch.ops.mkldnn._linear_pointwise.default(x, w, b, "none", [], "")),
        "they compute something else",
    ),
}  # fmt: skip


@pytest.mark.parametrize("absence", ABSENCES)
@pytest.mark.parametrize("mode", [None, "bfloat16", "int8"])
def test_without_onednns_products(absence, mode, fresh, monkeypatch):
    make, reason = ABSENCES[absence]
    monkeypatch.setattr(kernels, "torch", Patched(Operators(mkldnn=make())))
    plan = iso.resolve(TEXT, input=("B", "T", 64))
    weights = order_one_weights(plan)
    x = sample_inputs(plan, {"B": 2, "T": 300})["x"]
    expected = numeric_bound(plan, weights, [x], dtype="bfloat16" if mode else "float32")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            engine = iso.prepare(iso.torch.build(plan, weights), mode)
            for _ in range(2):
                found = engine(torch.from_numpy(x))
    (array,) = expected.outputs.values()
    assert np.abs(found.numpy() - array).max() <= expected.total
    said = [str(one.message) for one in caught]
    if mode == "int8":
        assert not said  # it takes none of them
    else:
        (message,) = said
        assert message.startswith(f"isomorph: oneDNN's products are not usable here ({reason}")
        assert message.endswith("); PyTorch's usual ones are taken")


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (raising, "mkldnn_linear: this processor has no support"),
        (lambda x, w, steps: torch.zeros(len(x), len(w), dtype=x.dtype), "it computes something else"),
    ],
)
def test_without_products_of_eight_bits(operator, reason, fresh, monkeypatch):
    broken = Operators(aten=Overloads(_weight_int8pack_mm=Overloads(default=operator)))
    monkeypatch.setattr(kernels, "torch", Patched(broken))
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


def test_the_kernels_are_here_and_right():
    """In this version of PyTorch, which the tests run with, all of them are taken."""
    assert kernels.onednn() is not None
    assert kernels._eight_bits_work()


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
        monkeypatch.setattr(kernels, "_WIDENED", numbers)
        assert kernels.multiply_widened(x, integers, steps).tolist() == [[3.0, 3.5, 22.0]]


def test_eight_bits_by_hand():
    """Row [1.27, -0.64]: steps of 0.01 (0.010009765625 in bfloat16) give 127 and -64; row of zeros: zeros."""
    plan = iso.resolve("linear(2, bias=False)", input=("B", 2))
    weights = {"n0.weight": np.array([[1.27, -0.64], [0.0, 0.0]], np.float32)}
    engine = iso.prepare(iso.torch.build(plan, weights), "int8")
    integers, steps = engine._state.store.quantized(engines.derived.Parameter("n0.weight"))
    assert integers.tolist() == [[127, -64], [0, 0]]
    assert steps.tolist()[0] == 0.010009765625
    assert engine(torch.ones(1, 2)).tolist()[0][1] == 0.0


def test_a_gpu_takes_none_of_the_processors_kernels():
    assert not kernels.prefers_onednn(4096, (4096, 4096), torch.float32, torch.device("cuda"))
    assert not kernels.multiplies_eight_bits(torch.empty(64, 64, dtype=torch.int8, device="meta"))


def test_half_precision_that_the_processor_lacks(fresh, monkeypatch):
    def pack(weight: Any, rows: int) -> Any:
        if weight.dtype == torch.bfloat16:
            raising()
        return torch.ops.mkldnn._reorder_linear_weight.default(weight, rows)

    monkeypatch.setattr(kernels, "torch", Patched(Operators(mkldnn=changed(pack=pack))))
    assert kernels.onednn() is not None
    assert not kernels.prefers_onednn(4096, (512, 512), torch.bfloat16, torch.device("cpu"))


def test_compiling_on_a_gpu_that_fails_is_said_once(monkeypatch):
    """The wrapper alone: there is no such device here."""
    calls = []

    def compile(function: Any, dynamic: bool) -> Any:
        assert not dynamic

        def failing(*tensors: Any) -> Any:
            calls.append("compiled")
            raise RuntimeError("no compiler\nmore")

        return failing

    monkeypatch.setattr(torch, "compile", compile)
    run = engines.compiled(lambda x: (x + 1,))
    assert run(torch.ones(1))[0].tolist() == [2.0] and calls == []  # the first call as it is
    with pytest.warns(RuntimeWarning) as caught:
        assert run(torch.ones(1))[0].tolist() == [2.0]
    assert run(torch.ones(1))[0].tolist() == [2.0] and calls == ["compiled"]
    assert [str(one.message) for one in caught] == [
        "isomorph: torch.compile failed for a prepared model (no compiler); it runs uncompiled"
    ]


def test_compiling_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: lambda x: (function(x)[0] * 1,))
    run = engines.compiled(lambda x: (x + 1,))
    assert [run(torch.ones(1))[0].tolist() for _ in range(3)] == [[2.0]] * 3
    looked_up = engines.compiled(lambda ids: (ids,), [(0, 5)])
    looked_up(torch.tensor([4]))
    with pytest.raises(iso.IsomorphError, match="id 5 is outside a table of 5 rows"):
        looked_up(torch.tensor([5, 0]))
