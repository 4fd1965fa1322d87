"""PyTorch's internal kernels: probed, and done without where they are missing or wrong."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.agreement.bounds import numeric_bound
from isomorph.generation.sampling import Chooser
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
        for known in (kernels.onednn, fast_training.usable):
            known.cache_clear()
        kernels._choices.clear()
        kernels._gains.clear()

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
    operators = kernels.onednn()
    try:
        assert operators is not None
        operators.pack(torch.ones(4, 4, dtype=torch.bfloat16), 1)
    except (AssertionError, RuntimeError):
        pytest.skip("there are no such kernels here")
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

    monkeypatch.setattr(Chooser, "choose", choose)
    monkeypatch.setattr(engine_decoding, "compose", composed)
    monkeypatch.setattr(kernels, "prefers_onednn", lambda *told: True)
    monkeypatch.setattr(kernels, "_gains_from_more_rows", lambda *told: many)
    for many in (False, True):
        kernels._gains.clear()
        texts.clear()
        engine = iso.prepare(iso.torch.build(plan, weights), "bfloat16")
        for rows in (1, 2):
            iso.generate(engine, [[1, 2, 3]] * rows, 3)
        assert [".expand(6, 64)" in text for text in texts] == [many, many, False, many, *[False] * 4]
    plain, repeated = scores[:6], scores[6:]
    for one, other in zip(plain, repeated, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2.0**-6 * np.abs(one).max())


@pytest.mark.parametrize("gains", [False, True])
def test_the_choice_among_kernels_is_not_that_of_rows(gains, fresh, monkeypatch):
    """One question is asked of 32 to 63 rows, the other of a single one computed six times."""
    if kernels.onednn() is None:
        pytest.skip("this PyTorch has no such kernels")
    monkeypatch.setattr(kernels, "_measured", lambda rows, weight: rows <= 8 or not gains)
    monkeypatch.setattr(kernels, "_gains_from_more_rows", lambda *told: gains)
    cpu, shape = torch.device("cpu"), (512, 512)
    assert kernels.times_of_one_row([shape], torch.bfloat16, cpu) == (6 if gains else 1)
    assert kernels.prefers_onednn(40, shape, torch.bfloat16, cpu) is not gains
    assert kernels.times_of_one_row([shape], torch.bfloat16, cpu) == (6 if gains else 1)
    assert kernels.times_of_one_row([], torch.bfloat16, cpu) == 1
    assert kernels.times_of_one_row([shape], torch.float32, cpu) == 1


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


def test_the_kernels_are_here_and_right():
    """In this version of PyTorch, which the tests run with, they are taken."""
    assert kernels.onednn() is not None


def test_a_gpu_takes_none_of_the_processors_kernels():
    assert not kernels.prefers_onednn(4096, (4096, 4096), torch.float32, torch.device("cuda"))


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
