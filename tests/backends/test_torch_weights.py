"""Weights in and out of torch networks."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch

import isomorph as iso
from isomorph.torch import build, load_weights, weights

TIED = """
ids = input("B", "T", dtype="int64")
embedding(5, 3, name="wte")
linear(5, bias=False, tie={"weight": "wte.weight"}, name="head")
"""


def plan(dtype="float32"):
    return iso.resolve("linear(3)\nlayer_norm()", input=("B", 2), dtype=dtype)


def error_of(function, *arguments):
    with pytest.raises(iso.IsomorphError) as caught:
        function(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_round_trip_bit_for_bit_without_shared_memory(dtype):
    drawn = iso.initial_weights(plan(dtype), seed=3)
    kept = {path: array.copy() for path, array in drawn.items()}
    model = build(plan(dtype), drawn)
    for array in drawn.values():
        array[...] = 0
    found = weights(model)
    assert list(found) == ["n0.weight", "n0.bias", "n1.weight", "n1.bias"]
    for path, array in found.items():
        assert array.dtype == kept[path].dtype
        assert array.tobytes() == kept[path].tobytes()
        array[...] = 0
    for path, array in weights(model).items():
        assert array.tobytes() == kept[path].tobytes()
    assert found["n0.weight"].dtype == (ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype))


def test_weights_follow_the_models_dtype():
    model = build(plan()).double()
    assert {array.dtype.name for array in weights(model).values()} == {"float64"}
    load_weights(model, iso.initial_weights(plan("float64"), seed=1))
    exact = iso.initial_weights(plan("float64"), seed=1)["n0.weight"]
    assert weights(model)["n0.weight"].tobytes() == exact.tobytes()


def test_any_array_will_do():
    model, values = build(plan()), np.arange(6.0).reshape(3, 2)
    rest = {path: array for path, array in weights(model).items() if path != "n0.weight"}
    frozen = values.copy()
    frozen.flags.writeable = False
    for given in (
        values.astype(">f4"), values[::-1][::-1], np.asfortranarray(values), frozen,
        torch.tensor(values, dtype=torch.bfloat16, requires_grad=True), values.tolist(),
    ):  # fmt: skip
        load_weights(model, {"n0.weight": given, **rest})
        assert weights(model)["n0.weight"].tolist() == values.tolist()
        with torch.no_grad():
            model.n0.weight.zero_()


def test_everything_that_is_wrong_at_once():
    model = build(plan())
    before = weights(model)
    message = error_of(
        load_weights,
        model,
        {
            "n0.weight": np.zeros((2, 3)),
            "n1.weight": np.zeros(1),
            "n1.bias": np.ones(3),
            "extra": np.zeros(1),
        },
    )
    assert message == (
        "E_WEIGHTS: the weights do not fit the plan: 1 missing, 1 unexpected, 2 misshapen\n"
        "  missing: n0.bias [3]\n"
        "  unexpected: extra [1]\n"
        "  misshapen: n0.weight: expected [3, 2], got [2, 3]\n"
        "  misshapen: n1.weight: expected [3], got [1]"
    )
    assert all(np.array_equal(array, before[path]) for path, array in weights(model).items())


def test_prefixed_paths():
    model = build(plan())
    wrapped = torch.nn.Module()
    wrapped.module = torch.compile(model, backend="eager")
    state = wrapped.state_dict()
    assert "module._orig_mod.n0.weight" in state
    message = error_of(load_weights, model, state)
    assert message.startswith("E_WEIGHTS: the weights do not fit the plan: 4 missing, 4 unexpected\n")
    assert "  unexpected: module._orig_mod.n0.weight [3, 2]" in message
    assert message.endswith(
        "\n  every such path starts with 'module._orig_mod.': strip that prefix before loading"
    )
    assert list(weights(wrapped)) == ["n0.weight", "n0.bias", "n1.weight", "n1.bias"]


def test_a_tied_parameter_under_either_name():
    resolved = iso.resolve(TIED)
    table, other = np.arange(15.0).reshape(5, 3), np.arange(1.0, 16.0).reshape(5, 3)
    for given in (
        {"wte.weight": table},
        {"head.weight": table},
        {"wte.weight": table, "head.weight": table.copy()},
    ):
        model = build(resolved, given)
        assert model.wte.weight.tolist() == table.tolist()
        assert model.head.weight is model.wte.weight
        assert {path: array.tolist() for path, array in weights(model).items()} == {
            "wte.weight": table.tolist()
        }
    message = error_of(build, resolved, {"wte.weight": table, "head.weight": other})
    assert message == (
        "E_WEIGHTS: head.weight is tied to wte.weight, "
        "but wte.weight and head.weight are given different values\n"
        "  give one of them, or both alike; or resolve the definition without the tie"
    )
    model = build(resolved)
    load_weights(model, build(resolved, {"wte.weight": other}).state_dict())
    assert model.head.weight.tolist() == other.tolist()


def test_frozen_parameters_are_loaded_and_stay_frozen():
    resolved = iso.resolve("linear(2, trainable=False)", input=("B", 2))
    model = build(resolved)
    load_weights(model, {"n0.weight": np.eye(2), "n0.bias": np.ones(2)})
    assert model.n0.weight.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert not model.n0.weight.requires_grad


def test_what_is_no_network_of_ours():
    assert error_of(weights, torch.nn.Linear(2, 2)) == (
        "E_ARGUMENT: expected a network from isomorph.torch.build, got 'Linear'"
    )
    assert error_of(load_weights, build(plan()), [1, 2]) == (
        "E_ARGUMENT: weights must be a mapping from parameter path to array, got 'list'"
    )
    whole = {path: np.zeros(array.shape, np.int64) for path, array in weights(build(plan())).items()}
    assert error_of(load_weights, build(plan()), whole).startswith(
        "E_WEIGHTS: 4 of the weights are not floating-point numbers\n  n0.weight: expected float32, got int64"
    )


def test_weights_of_a_parametrized_or_pruned_layer_are_what_it_computes_with():
    from torch.nn.utils import parametrize, prune

    class Double(torch.nn.Module):
        def forward(self, weight):
            return 2 * weight

    model = build(
        plan(), {path: np.ones(array.shape, "float32") for path, array in weights(build(plan())).items()}
    )
    parametrize.register_parametrization(model.n0, "weight", Double())
    prune.l1_unstructured(model.n1, "bias", amount=1)
    found = weights(model)
    assert found["n0.weight"].tolist() == [[2.0, 2.0]] * 3
    assert sorted(found["n1.bias"].tolist()) == [0.0, 1.0, 1.0]
    x = np.array([[1.0, 2.0]])
    np.testing.assert_allclose(
        model(torch.from_numpy(x).float()).detach().numpy(), iso.reference.build(plan(), found)(x), atol=1e-6
    )


def test_tensors_that_numpy_cannot_read(tmp_path):
    for model in (build(plan()), build(plan("bfloat16"))):
        given = dict(model.named_parameters()) if model.plan.dtype == "float32" else model.state_dict()
        for message in (
            error_of(iso.reference.build, model.plan, given),
            error_of(iso.save, tmp_path / "model", model.plan, given),
        ):
            assert message.startswith("E_WEIGHTS: n0.weight: NumPy cannot read this ")
            assert message.endswith("\n  a backend's weights(model) gives arrays")
        iso.save(tmp_path / "model", model.plan, weights(model))  # as it says


def test_what_wraps_itself_is_no_network():
    wrapper = SimpleNamespace(module=None)
    wrapper.module = wrapper
    with pytest.raises(iso.IsomorphError) as caught:
        weights(wrapper)
    assert str(caught.value) == (
        "E_ARGUMENT: expected a network from isomorph.torch.build, got 'SimpleNamespace'"
    )


def test_sparse_tensors_are_refused():
    plan = iso.resolve("linear(3, bias=False)", input=("B", 2))
    with pytest.raises(iso.IsomorphError) as caught:
        build(plan, {"n0.weight": torch.ones(3, 2).to_sparse()})
    assert str(caught.value) == (
        "E_WEIGHTS: n0.weight: expected a dense array, got a torch Tensor that is none\n"
        "  make it dense, as in x.to_dense() or x.toarray()"
    )
    assert weights(build(plan, {"n0.weight": torch.ones(3, 2).to_sparse().to_dense()}))["n0.weight"].all()
