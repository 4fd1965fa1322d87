"""Weights in and out of Flax networks, and between all backends."""

import itertools

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

import isomorph as iso
from isomorph.backends.jax.layers import places

torch = pytest.importorskip("torch")

TEXT = """
ids = input("B", "T", dtype="int64")
embedding(5, 4, name="wte")
pos_embed(6)
transformer_block(2, layer_scale=True)
rms_norm()
linear(3)
cls_token()
linear(5, bias=False)
transformer_block(1, norm="rms_norm")
linear(4)
linear(5, bias=False, tie={"weight": "wte.weight"}, name="head")
"""

THROUGH = {
    "torch": lambda plan, w: iso.torch.weights(iso.torch.build(plan, w)),
    "nnx": lambda plan, w: iso.nnx.weights(iso.nnx.build(plan, w)),
    "linen": lambda plan, w: iso.linen.weights(plan, iso.linen.variables(plan, w)),
    "reference": lambda plan, w: {
        path: array.astype(w[path].dtype)
        for path, array in _reference_weights(iso.reference.build(plan, w)).items()
    },
}


def _reference_weights(network):
    """What the reference computes with, found by the plan's paths."""
    holders = dict(zip((node.name for node in network.plan.nodes), network._holders, strict=True))
    found = {}
    for parameter in network.plan.parameters:
        name, *path = parameter.path.split(".")
        value = holders[name]
        for part in path:
            value = getattr(value, part)
        found[parameter.path] = value
    return found


def error_of(function, *arguments):
    with pytest.raises(iso.IsomorphError) as caught:
        function(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(THROUGH, 2)))
def test_round_trips_are_bit_equal(one, other):
    plan = iso.resolve(TEXT)
    drawn = iso.initial_weights(plan, seed=4)
    kept = {path: array.copy() for path, array in drawn.items()}
    there = THROUGH[one](plan, drawn)
    for array in drawn.values():
        array[...] = 0  # nothing shares its memory
    back = THROUGH[other](plan, there)
    for array in there.values():
        array[...] = 0
    assert list(back) == [parameter.path for parameter in plan.parameters]
    for path, array in kept.items():
        assert (back[path].dtype, back[path].shape) == (array.dtype, array.shape)
        assert back[path].tobytes() == array.tobytes()


@pytest.mark.parametrize("backend", ["nnx", "linen"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_every_dtype_keeps_its_bits(backend, dtype):
    plan = iso.resolve("linear(3)\nlayer_norm()", input=("B", 2), dtype=dtype)
    drawn = iso.initial_weights(plan, seed=1)
    with jax.enable_x64(dtype == "float64"):
        found = THROUGH[backend](plan, drawn)
    for path, array in drawn.items():
        assert found[path].dtype == (ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype))
        assert found[path].tobytes() == array.tobytes()


def test_results_share_no_memory_with_the_model():
    plan = iso.resolve("linear(2)", input=("B", 2))
    model, tree = iso.nnx.build(plan), iso.linen.variables(plan)
    for read in (lambda: iso.nnx.weights(model), lambda: iso.linen.weights(plan, tree)):
        before = read()
        for array in read().values():
            array[...] = 7
        assert all(np.array_equal(array, before[path]) for path, array in read().items())


def test_where_each_parameter_is_kept_is_stated():
    plan = iso.resolve(
        'embedding(3, 3)\nlayer_norm()\nlinear(3, name="square")\nrms_norm(name="rms")',
        input=("B", "T"),
        input_dtype="int64",
    )
    assert {path: (".".join(place.path), place.transposed) for path, place in places(plan).items()} == {
        "n0.weight": ("n0.embedding", False),
        "n1.weight": ("n1.scale", False),
        "n1.bias": ("n1.bias", False),
        "square.weight": ("square.kernel", True),
        "square.bias": ("square.bias", False),
        "rms.weight": ("rms.weight", False),
    }


def test_the_three_projections_stay_apart():
    plan = iso.resolve("attention(2, bias=False)", input=("B", "T", 4))
    given = {p.path: np.full(p.shape, i + 1.0) for i, p in enumerate(plan.parameters)}
    for backend in ("nnx", "linen"):
        found = THROUGH[backend](plan, given)
        assert {path: set(array.ravel()) for path, array in found.items()} == {
            "n0.q_proj.weight": {1.0}, "n0.k_proj.weight": {2.0}, "n0.v_proj.weight": {3.0}, "n0.o_proj.weight": {4.0},
        }  # fmt: skip


def test_any_array_will_do():
    plan = iso.resolve("linear(3, bias=False)", input=("B", 2))
    values = np.arange(6.0).reshape(3, 2)
    frozen = values.copy()
    frozen.flags.writeable = False
    model = iso.nnx.build(plan)
    for given in (
        values.astype(">f4"), values[::-1][::-1], np.asfortranarray(values), frozen, values.tolist(),
        torch.tensor(values, dtype=torch.bfloat16, requires_grad=True), jax.numpy.asarray(values),
    ):  # fmt: skip
        iso.nnx.load_weights(model, {"n0.weight": given})
        assert iso.nnx.weights(model)["n0.weight"].tolist() == values.tolist()
        assert THROUGH["linen"](plan, {"n0.weight": given})["n0.weight"].tolist() == values.tolist()
        model.n0.kernel[...] = model.n0.kernel[...] * 0


def test_everything_that_is_wrong_at_once():
    plan = iso.resolve("linear(3)\nlayer_norm()", input=("B", 2))
    model = iso.nnx.build(plan)
    before = iso.nnx.weights(model)
    wrong = {
        "n0.weight": np.zeros((2, 3)), "n1.weight": np.zeros(1), "n1.bias": np.ones(3), "extra": np.zeros(1),
    }  # fmt: skip
    message = (
        "E_WEIGHTS: the weights do not fit the plan: 1 missing, 1 unexpected, 2 misshapen\n"
        "  missing: n0.bias [3]\n"
        "  unexpected: extra [1]\n"
        "  misshapen: n0.weight: expected [3, 2], got [2, 3]\n"
        "  misshapen: n1.weight: expected [3], got [1]"
    )
    assert error_of(iso.nnx.load_weights, model, wrong) == message
    assert error_of(iso.nnx.build, plan, wrong) == message
    assert error_of(iso.linen.variables, plan, wrong) == message
    assert all(np.array_equal(array, before[path]) for path, array in iso.nnx.weights(model).items())
    tree = iso.linen.variables(plan)
    params = tree["params"]
    bad = {"n0": {"kernel": params["n0"]["kernel"].T, "alpha": params["n0"]["bias"]}, "n1": params["n1"]}
    assert error_of(iso.linen.weights, plan, {"params": bad}) == (
        "E_WEIGHTS: the weights do not fit the plan: 1 missing, 1 unexpected, 1 misshapen\n"
        "  missing: n0.bias [3]\n"
        "  unexpected: n0.alpha [3]\n"
        "  misshapen: n0.weight: expected [3, 2], got [2, 3]"
    )


def test_a_tied_parameter_under_either_name():
    plan = iso.resolve(
        'ids = input("B", "T", dtype="int64")\nembedding(5, 3, name="wte")\n'
        'linear(5, bias=False, tie={"weight": "wte.weight"}, name="head")'
    )
    table = np.arange(15.0).reshape(5, 3)
    for given in (
        {"wte.weight": table}, {"head.weight": table}, {"wte.weight": table, "head.weight": table.copy()},
    ):  # fmt: skip
        for backend in ("nnx", "linen"):
            found = THROUGH[backend](plan, given)
            assert {path: array.tolist() for path, array in found.items()} == {"wte.weight": table.tolist()}
    message = "E_WEIGHTS: head.weight is tied to wte.weight, but"
    for make in (iso.nnx.build, iso.linen.variables):
        assert error_of(make, plan, {"wte.weight": table, "head.weight": table + 1}).startswith(message)


def test_weights_follow_the_models_dtype():
    model = iso.nnx.build(iso.resolve("linear(3)", input=("B", 2)))
    nnx.update(model, jax.tree.map(lambda w: w.astype("bfloat16"), nnx.state(model)))
    assert {array.dtype.name for array in iso.nnx.weights(model).values()} == {"bfloat16"}
    iso.nnx.load_weights(model, {"n0.weight": np.full((3, 2), 1.0 + 2**-9), "n0.bias": np.zeros(3)})
    assert iso.nnx.weights(model)["n0.weight"].tolist() == [[1.0, 1.0]] * 3  # rounded


def test_what_is_no_network_of_ours():
    assert error_of(iso.nnx.weights, nnx.Linear(2, 2, rngs=nnx.Rngs(0))) == (
        "E_ARGUMENT: expected a network from isomorph.nnx.build, got 'Linear'"
    )
    plan = iso.resolve("relu()", input=("B", 2))
    assert error_of(iso.linen.weights, plan, [1]) == (
        'E_ARGUMENT: variables must be a mapping with a "params" collection, got [1]'
    )
    assert iso.linen.weights(plan, {"params": {}}) == {}
