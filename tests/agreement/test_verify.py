"""The comparison of backends with the reference: it agrees when it should, and only then."""

import numpy as np
import pytest

import isomorph as iso
from isomorph.agreement.verify import Agreement, verify
from isomorph.backends import available
from isomorph.backends.torch import harness
from isomorph.errors import IsomorphError

pytest.importorskip("torch")

BLOCK = "linear(8)\ntransformer_block(2, layer_scale=True)"
TIED = (
    'ids = input("B", "T", dtype="int64")\nembedding(11, 8, name="table")\n'
    'transformer_block(2, causal=True)\nlinear(11, bias=False, tie={"weight": "table.weight"})'
)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_torch_agrees(dtype):
    found = verify(iso.resolve(BLOCK, input=("B", "T", 4), dtype=dtype), backends=["torch"])
    assert found.agrees
    assert found.dtype == ("float64" if dtype == "float64" else "float32")
    assert found.sizes == {"B": 2, "T": 5}
    assert [row.quantity for row in found.rows] == ["output", "gradients"]
    assert 0 < found.rows[0].ratio < 1


def test_tied_parameters_and_given_sizes():
    found = verify(iso.resolve(TIED), sizes={"T": 9}, backends=["torch"])
    assert found.agrees
    assert found.sizes == {"B": 2, "T": 9}


def test_a_network_without_parameters_has_outputs_alone():
    found = verify(iso.resolve("tanh()", input=("B", 3)), backends=["torch"])
    assert [row.quantity for row in found.rows] == ["output"]


def test_several_outputs_have_a_row_each():
    plan = iso.resolve('input("B", 3)\na, b = split(linear(6), 2)\noutput(a=("B", 2), b=("B", 4))')
    assert [row.quantity for row in verify(plan, backends=["torch"]).rows] == [
        "output a", "output b", "gradients",
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["n0.weight", "n1.gamma2", "n1.norm1.bias", "n1.attn.v_proj.weight"])
def test_one_changed_number_is_noticed(monkeypatch, path):
    # A thousandth of one weight of the network that torch builds, while the reference keeps the true one.
    plan, build = iso.resolve(BLOCK, input=("B", 3, 4)), harness.build

    def altered(plan, weights, *rest):
        weights = {name: np.array(array) for name, array in weights.items()}
        weights[path].flat[0] += 1e-3
        return build(plan, weights, *rest)

    monkeypatch.setattr(harness, "build", altered)
    output = verify(plan, backends=["torch"]).rows[0]
    assert not output.agrees
    assert output.ratio > 1


def test_a_wrong_gradient_is_noticed_and_named(monkeypatch):
    true = harness.gradients

    def wrong(plan, weights, inputs, cotangents, dtype):
        found = true(plan, weights, inputs, cotangents, dtype)
        if dtype == "float32":
            found.parameters["n1.norm2.bias"][0] *= 1.01
        return found

    monkeypatch.setattr(harness, "gradients", wrong)
    row = verify(iso.resolve(BLOCK, input=("B", 3, 4)), backends=["torch"]).rows[1]
    assert (row.agrees, row.where) == (False, "n1.norm2.bias")


def test_nan_and_missing_outputs_do_not_agree(monkeypatch):
    plan = iso.resolve("linear(2)", input=("B", 3))
    for outputs in ({"": np.full((2, 2), np.nan)}, {}, {"": np.zeros((2, 3))}):
        monkeypatch.setattr(harness, "forward", lambda *a, outputs=outputs: outputs)
        assert not verify(plan, backends=["torch"]).agrees


def test_the_numbers_of_a_row():
    row = Agreement("torch", "output", "", 2.0**-22, 2.0**-22, 2.0, 2.0**-20, 0.1)
    assert (row.ratio, row.agrees) == (0.25, True)
    assert Agreement("torch", "output", "", 0.0, 0.0, 0.0, 0.0, 0.1).ratio == 0.0
    assert Agreement("torch", "output", "", 1.0, 1.0, 1.0, 0.0, 0.1).ratio == float("inf")


def test_a_gradient_of_zero_that_rounding_leaves_something_of():
    # A mean over a softmax's own axis is 1 / 4 whatever the weights are, so every gradient is zero; in float32
    # terms of order one cancel to 4e-8.
    for backend in ("torch", "nnx"):
        if backend == "nnx":
            pytest.importorskip("flax")
        plan = iso.resolve("linear(4)\nsoftmax()\nmean(-1)", input=("B", 3))
        row = verify(plan, backends=[backend]).rows[1]
        assert row.agrees
        assert 0 < row.bound < 1e-5


def test_without_torch_the_true_gradients_are_those_of_nnx(monkeypatch):
    pytest.importorskip("flax")
    exists = available._exists
    plan = iso.resolve("linear(3)", input=("B", 4))
    assert verify(plan, backends=["torch"]).differentiator == "torch"
    monkeypatch.setattr(available, "_exists", lambda name: name != "torch" and exists(name))
    found = verify(plan)
    assert found.agrees
    assert found.differentiator == "nnx"
    assert {row.backend for row in found.rows} == {"nnx", "linen"}
    assert {row.quantity for row in found.rows} == {"output", "gradients"}


def test_without_a_backend_to_compare_it_says_what_to_install():
    with pytest.raises(IsomorphError) as error:
        verify(iso.resolve("tanh()", input=("B", 3)), backends=["reference"])
    assert str(error.value) == (
        "E_BACKEND: no backend is installed that could be compared with the reference\n"
        '  pip install "isomorph[torch]", or pip install "isomorph[flax]"'
    )
