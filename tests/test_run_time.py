"""What a plan promises of the models built from it: any length, names of inputs and outputs, nothing rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import isomorph as iso

torch = pytest.importorskip("torch")

Array = np.ndarray[Any, Any]

TOKENS = """
input("B", "T", dtype="int64")
embedding(50, 16, name="wte")
pos_embed(1024)
transformer_block(2, causal=True)
layer_norm()
linear(50, bias=False, tie={"weight": "wte.weight"})
"""


def in_torch(plan: iso.Plan, weights: Any) -> Callable[..., Any]:
    model = iso.torch.build(plan, weights).eval()

    def run(*inputs: Array, **named: Array) -> Any:
        with torch.no_grad():
            out = model(*map(torch.from_numpy, inputs), **{n: torch.from_numpy(a) for n, a in named.items()})
        return {n: t.numpy() for n, t in out.items()} if isinstance(out, dict) else out.numpy()

    return run


@pytest.fixture(params=["reference", "torch"])
def built(request) -> Callable[[iso.Plan], Callable[..., Any]]:
    """A function from a plan to a model that takes and gives NumPy arrays."""
    door = in_torch if request.param == "torch" else iso.reference.build
    return lambda plan: door(plan, iso.initial_weights(plan, seed=1))


def ids(B: int, T: int) -> Array:
    return np.random.default_rng(0).integers(0, 50, (1, 1024))[:, :T].repeat(B, 0)


def refusal(function: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    with pytest.raises(iso.IsomorphError) as caught:
        function(*arguments, **named)
    return str(caught.value)


# -- lengths -----------------------------------------------------------------------------------------


def test_one_model_runs_at_every_length_up_to_its_table(built):
    plan = iso.resolve(TOKENS)
    model = built(plan)
    whole = model(ids(1, 1024))
    assert whole.shape == (1, 1024, 50)
    for T in (1, 7):  # a causal model gives a prefix what it gives the prefix's place in the whole
        np.testing.assert_allclose(model(ids(1, T)), whole[:, :T], rtol=0, atol=1e-4)
    assert model(ids(3, 7)).shape == (3, 7, 50)


def test_a_length_beyond_the_table_is_refused(built):
    plan = iso.resolve(TOKENS)
    assert str(plan).splitlines()[-1] == "where T <= 1024"
    assert refusal(built(plan), ids(1, 1024).repeat(2, 1)[:, :1025]) == (
        "E_RUNTIME: input x: expected [B, T] int64, got [1, 1025] int64: T=1025 must be at most 1024"
    )


def test_a_fixed_length_beyond_the_table_is_refused_when_resolving():
    assert refusal(iso.resolve, TOKENS.replace('"T"', "1025")) == (
        "E_CONSTRAINT: T=1025 exceeds max_len=1024\n"
        "  <definition>:4:11\n"
        "  4 | pos_embed(1024)\n"
        "    |           ^\n"
        "  T=1025 comes from input x[B, 1025]"
    )


@pytest.mark.parametrize(("B", "T"), [(2, 0), (0, 7), (0, 0)])
def test_nothing_gives_nothing(built, B, T):
    assert built(iso.resolve(TOKENS))(ids(1, T)[:, :T].repeat(B, 0)).shape == (B, T, 50)


def test_no_tokens_before_a_class_token_still_give_its_features(built):
    plan = iso.resolve(
        'cls_token()\ntransformer_block(2)\npool_tokens("first")\nlinear(3)', input=("B", "T", 8)
    )
    out = built(plan)(np.zeros((2, 0, 8), "float32"))
    assert out.shape == (2, 3)
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out[0], out[1])


@pytest.mark.parametrize("mode", ["mean", "max", "last"])
def test_pooling_no_tokens_is_refused(built, mode):
    plan = iso.resolve(f'pool_tokens("{mode}")', input=("B", "T", 8))
    assert refusal(built(plan), np.zeros((2, 0, 8), "float32")).startswith("E_RUNTIME: ")


def test_lengths_leave_the_parameters_alone():
    model = iso.torch.build(iso.resolve(TOKENS)).eval()
    before = {path: id(p) for path, p in model.named_parameters()}
    versions = {path: p._version for path, p in model.named_parameters()}
    for T in (1, 7, 1024):
        model(torch.from_numpy(ids(1, T)))
    assert {path: id(p) for path, p in model.named_parameters()} == before
    assert {path: p._version for path, p in model.named_parameters()} == versions


def test_two_symbols_are_free_of_each_other_and_one_is_itself(built):
    plan = iso.resolve(
        'x = input("B", "T", 8)\ncontext = input("B", "S", 6)\nm = input("B", "S", dtype="bool")\n'
        "cross_attention(x, context, 2, mask=m)"
    )
    model = built(plan)
    x, context = np.ones((2, 3, 8), "float32"), np.ones((2, 5, 6), "float32")
    assert model(x, context, np.ones((2, 5), bool)).shape == (2, 3, 8)
    assert model(x[:, :1], context, np.ones((2, 5), bool)).shape == (2, 1, 8)
    assert refusal(model, x, context, np.ones((2, 3), bool)) == (
        "E_RUNTIME: input m: expected [B, S] bool, got [2, 3] bool: "
        "axis 1 must be S=5 (from axis 1 of context)"
    )


# -- names -------------------------------------------------------------------------------------------

HEADS = """
features = input("B", 4)
gate = input("B", 4)
hidden = mul(features, gate)
score = linear(2, name="head")
output(score=("B", 2), hidden=("B", 4))
"""


def test_named_outputs_are_a_dictionary_in_order(built):
    a, b = np.arange(8, dtype="float32").reshape(2, 4), np.full((2, 4), 2, "float32")
    out = built(iso.resolve(HEADS))(a, b)
    assert list(out) == ["score", "hidden"]
    np.testing.assert_array_equal(out["hidden"], 2 * a)
    assert out["score"].shape == (2, 2)


def test_one_named_output_is_an_array_alone(built):
    plan = iso.resolve('h = relu()\noutput(h=("B", 4))', input=("B", 4))
    np.testing.assert_array_equal(built(plan)(np.array([[-1, 0, 1, 2]], "float32")), [[0, 0, 1, 2]])


def test_the_same_tensor_under_two_names(built):
    plan = iso.resolve("a = relu()\nb = a", input=("B", 2), output={"a": ("B", 2), "b": ("B", 2)})
    out = built(plan)(np.array([[-1, 3]], "float32"))
    assert [out[name].tolist() for name in ("a", "b")] == [[[0, 3]], [[0, 3]]]


def test_inputs_by_name_in_any_order(built):
    model = built(iso.resolve(HEADS))
    a, b = np.arange(8, dtype="float32").reshape(2, 4), np.full((2, 4), 2, "float32")
    right = model(a, b)
    for other in (model(gate=b, features=a), model(a, gate=b), model(features=a, gate=b)):
        assert {name: array.tolist() for name, array in other.items()} == {
            name: array.tolist() for name, array in right.items()
        }


def test_inputs_that_do_not_fit(built):
    model = built(iso.resolve(HEADS))
    a = np.zeros((2, 4), "float32")
    takes = "the network takes 2 inputs (features, gate)"
    assert refusal(model, a) == f"E_RUNTIME: missing input gate; {takes}"
    assert refusal(model) == f"E_RUNTIME: missing inputs features, gate; {takes}"
    assert refusal(model, a, a, a) == f"E_RUNTIME: {takes}, got 3 by position"
    assert refusal(model, a, a, gate=a) == ("E_RUNTIME: input gate is given twice, by position and by name")
    assert refusal(model, a, gte=a) == (f"E_RUNTIME: unexpected input 'gte'; {takes}\n  did you mean gate?")
    assert refusal(model, a, a[:1]) == (
        "E_RUNTIME: input gate: expected [B, 4] float32, got [1, 4] float32: "
        "axis 0 must be B=2 (from axis 0 of features)"
    )


def test_an_input_cannot_be_named_self():
    message = "E_NAME: 'self' is the model itself where it is called, and cannot name a tensor"
    assert refusal(iso.resolve, "relu()", input={"self": ("B", 2)}).startswith(message)
    assert refusal(iso.resolve, 'self = input("B", 2)\nrelu()').startswith(message)


# -- what one may hand over ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32"])
def test_ids_of_any_integer_dtype(built, dtype):
    model = built(iso.resolve(TOKENS))
    np.testing.assert_array_equal(model(ids(2, 7).astype(dtype)), model(ids(2, 7)))


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_a_narrow_id_outside_the_table_is_named(built, dtype):
    assert refusal(built(iso.resolve(TOKENS)), np.array([[3, 77]], dtype)) == (
        "E_RUNTIME: id 77 is outside a table of 50 rows\n  ids run from 0 to 49"
    )


@pytest.mark.parametrize("door", ["torch", "reference"])
def test_a_definition_in_place_of_its_plan(door):
    build = getattr(iso, door).build
    for function in (lambda: build("linear(3)", {}), lambda: iso.initial_weights("linear(3)")):
        assert refusal(function) == (
            "E_ARGUMENT: expected a plan, got 'linear(3)'\n"
            "  resolve the definition first: iso.resolve(text, input=...)"
        )
    assert refusal(build, None, {}) == "E_ARGUMENT: expected a plan, got 'NoneType'"


def test_a_frozen_flag_for_a_tied_parameter_belongs_to_its_owner():
    text = TOKENS.replace("tie={", 'trainable={"weight": False}, tie={')
    assert refusal(iso.resolve, text) == (
        "E_ARGUMENT: trainable of weight: it is tied to wte.weight, which says whether it is trained\n"
        "  <definition>:7:34\n"
        '  7 | linear(50, bias=False, trainable={"weight": False}, tie={"weight": "wte.weight"})\n'
        "    |                                  ^"
    )


def test_a_frozen_node_cannot_freeze_what_it_borrows():
    text = TOKENS.replace("bias=False, tie={", "trainable=False, tie={")
    assert refusal(iso.resolve, text) == (
        "E_ARGUMENT: trainable of weight: it is tied to wte.weight, which says whether it is trained\n"
        "  <definition>:7:22\n"
        '  7 | linear(50, trainable=False, tie={"weight": "wte.weight"})\n'
        "    |                      ^\n"
        '  say it of the others alone: trainable={"bias": False}'
    )


def test_a_floating_input_of_another_dtype_says_how_to_mend_it():
    assert refusal(iso.resolve, "relu()", input=("B", 2), input_dtype="bfloat16") == (
        "E_DTYPE: relu: input x must be float32, input x is bfloat16\n"
        "  <definition>:1:1\n"
        "  1 | relu()\n"
        "    | ^\n"
        '  declare the input as float32, or resolve with dtype="bfloat16"'
    )
