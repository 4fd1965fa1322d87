"""Inputs that hold no ordinary numbers, in models and in prepared ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.testing import order_one_weights

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

IDS = iso.resolve("embedding(7, 8)\nlinear(3)", input=("B", "T"), input_dtype="int64")
ROWS = iso.resolve("attention(2, causal=True)\nlinear(3)", input=("B", "T", 8))


def models(plan: Any, framework: str) -> list[Any]:
    """A model, and the same prepared."""
    weights = order_one_weights(plan)
    if framework == "reference":
        return [iso.reference.build(plan, weights)]
    if framework == "linen":
        model: Any = iso.linen.build(plan).bind(iso.linen.variables(plan, weights))
    else:
        model = getattr(iso, framework).build(plan, weights)
    return [model, iso.prepare(model)]


def refused(model: Any, x: Any) -> str:
    with pytest.raises(iso.IsomorphError) as caught:
        model(x)
    assert caught.value.code == "E_RUNTIME"
    return caught.value.message


@pytest.mark.parametrize("framework", ["reference", "torch", "nnx", "linen"])
@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("uint64", 2**64 - 1),
        ("uint64", 2**63),
        ("uint64", 2**32 + 1),
        ("int64", 2**32 + 1),
        ("int64", -(2**40)),
    ],
)
def test_an_id_of_64_bits_is_named_as_it_is(framework, dtype, number):
    ids: Any = np.array([[1, number]], dtype=dtype)
    ids = torch.from_numpy(ids) if framework == "torch" else ids
    for model in models(IDS, framework):
        for _ in range(2):
            assert refused(model, ids) == f"id {number} is outside a table of 7 rows"
        good = np.array([[1, 6]], dtype=dtype)
        model(torch.from_numpy(good) if framework == "torch" else good)


@pytest.mark.parametrize("framework", ["torch", "nnx"])
def test_an_id_of_64_bits_in_a_prompt(framework):
    text = 'ids = input("B", "T", dtype="int64")\nembedding(7, 8)\nattention(2, causal=True)\nlinear(7)'
    for model in models(iso.resolve(text), framework):
        for ids in ([2**64 - 1], np.array([[1, 2**64 - 1]], np.uint64)):
            with pytest.raises(iso.IsomorphError) as caught:
                iso.generate(model, ids, 2)
            assert caught.value.message == "id 18446744073709551615 is outside a table of 7 rows"


@pytest.mark.parametrize("framework", ["nnx", "linen"])
def test_a_number_that_jax_would_change_is_refused(framework):
    """Where no table has it: 2**32 would become 0, and be the largest no more."""
    text = 'x = input("B", "T", 4)\nids = input("B", "T", dtype="int64")\ntake_at(x, ids, -1)'
    for model in models(iso.resolve(text), framework):
        with pytest.raises(iso.IsomorphError) as caught:
            model(np.ones((1, 2, 4), np.float32), np.array([[1, 2**32]]))
        assert caught.value.message == "input ids: 4294967296 is outside int32, which JAX keeps integers in"


@pytest.mark.parametrize("framework", ["reference", "nnx", "linen"])
@pytest.mark.parametrize(
    ("array", "dtype"), [(np.array([[1, None]], dtype=object), "object"), (np.array([["a", "b"]]), "str32")]
)
def test_arrays_of_objects(framework, array, dtype):
    for model in models(IDS, framework):
        assert refused(model, array) == (
            f"input x: expected [B, T] int64, got [1, 2] {dtype}: it must have an integer dtype"
        )


ORDINARY = "input x: expected an ordinary tensor, got"
X = torch.randn(2, 3, 8)
UNUSUAL = {
    "sparse_coo": (lambda: X.to_sparse(), f"{ORDINARY} one of layout sparse_coo"),
    "sparse_csr": (lambda: X.to_sparse_csr(), f"{ORDINARY} one of layout sparse_csr"),
    "mkldnn": (lambda: X.to_mkldnn(), f"{ORDINARY} one of layout mkldnn"),
    "nested": (lambda: torch.nested.nested_tensor([X[0], X[1]]), f"{ORDINARY} a nested one"),
    "jagged": (
        lambda: torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged),
        f"{ORDINARY} a nested one",
    ),
    "meta": (lambda: X.to("meta"), "input x is on the meta device, which holds no values; the network is on cpu"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", UNUSUAL)
def test_tensors_that_are_not_ordinary(kind):
    make, message = UNUSUAL[kind]
    x = make()
    for model in models(ROWS, "torch"):
        model(X)
        assert refused(model, x) == message  # also where one of that shape and dtype was met before


def test_ids_without_values():
    for model in models(IDS, "torch"):
        ids = torch.zeros(1, 2, dtype=torch.int64, device="meta")
        assert (
            refused(model, ids)
            == "input x is on the meta device, which holds no values; the network is on cpu"
        )


def test_a_model_without_values():
    """On the meta device shapes alone are computed; with values it is prepared as any other."""
    weights = order_one_weights(ROWS)
    right = iso.torch.build(ROWS, weights).eval()
    model = iso.torch.build(ROWS, device="meta")
    engine = iso.prepare(model)
    reason = "since n0.q_proj.weight is on the meta device, which holds no values;"
    with pytest.warns(RuntimeWarning, match=reason):
        assert engine(X.to("meta")).shape == (2, 3, 3)
    with pytest.raises(iso.IsomorphError) as caught:
        iso.torch.weights(model)
    assert caught.value.message == "n0.q_proj.weight is on the meta device, which holds no values"
    model.load_state_dict(right.state_dict(), assign=True)
    torch.testing.assert_close(engine(X), right(X).detach())
    assert not engine._state.departure
    model = iso.torch.build(ROWS, device="meta").to_empty(device="cpu")
    iso.torch.load_weights(model, weights)
    torch.testing.assert_close(iso.prepare(model)(X), right(X).detach())


def test_generation_refuses_the_meta_device():
    text = 'ids = input("B", "T", dtype="int64")\nembedding(7, 8)\nlinear(7)'
    model = iso.torch.build(iso.resolve(text), device="meta")
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(model, [1], 2)
    assert str(caught.value) == (
        "E_ARGUMENT: nothing can be computed on the meta device, which holds no values\n"
        '  build it with device="cpu", or load weights first'
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "text", ["attention(2)", "transformer_block(2, causal=True)\nrms_norm()\nlinear(3)", "linear(4)\ngelu()"]
)
def test_tracing_gives_equal_results_or_one_error(text):
    model, engine = models(iso.resolve(text, input=("B", "T", 8)), "torch")
    traced = torch.jit.trace(model.eval(), (X,))
    torch.testing.assert_close(traced(X), model(X))
    with pytest.raises(iso.IsomorphError) as caught:
        torch.jit.trace(engine, (X,))
    assert (caught.value.code, caught.value.message) == (
        "E_RUNTIME",
        "a prepared model cannot be traced: its weights would become constants of the trace",
    )
