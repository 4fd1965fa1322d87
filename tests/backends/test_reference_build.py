"""Whole plans in the reference: hand arithmetic, torch modules side by side, the door's checks."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import torch

from isomorph.agreement.bounds import numeric_bound
from isomorph.backends.reference.layers import layer
from isomorph.errors import IsomorphError
from isomorph.operators.activation import Dropout
from isomorph.operators.blocks import TransformerBlock
from isomorph.operators.linear import Linear
from isomorph.plan.resolve import resolve
from isomorph.reference import build, run

BLOCKS = "linear(16)\ntransformer_block(2, mlp_ratio=2, layer_scale=True)\nlinear()"


def draw_weights(plan, seed=0):
    """Every parameter at order one, gains and biases too."""
    random = np.random.default_rng(seed)
    return {parameter.path: random.standard_normal(parameter.shape) for parameter in plan.parameters}


def plan_and_weights(text, **contracts):
    plan = resolve(text, **contracts)
    return plan, draw_weights(plan)


def test_one_layer_by_hand():
    f = layer(Linear.of(D_in=2, D_out=1), {"weight": [[3.0, 4.0]], "bias": [0.5]})
    np.testing.assert_array_equal(f(np.array([[1.0, 2.0]])), [[11.5]])


def test_dropout_is_the_identity():
    x = np.ones((2, 3))
    np.testing.assert_array_equal(layer(Dropout.of(p=0.9), {})(x), x)


def test_a_chain_by_hand():
    plan = resolve("linear(2)\nrelu()\nlinear(1, bias=False)", input=("B", 1))
    weights = {
        "n0.weight": [[2.0], [-1.0]],
        "n0.bias": [0.0, 5.0],
        "n2.weight": [[10.0, 1.0]],
    }
    # x=3: [6, 2] -> 62; x=-1: relu [-2, 6] = [0, 6] -> 6
    np.testing.assert_array_equal(build(plan, weights)([[3.0], [-1.0]]), [[62.0], [6.0]])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_block_equals_torch(activation):
    operator = TransformerBlock.of(D=8, heads=2, activation=activation)
    random = np.random.default_rng(3)
    w = {path: random.standard_normal(spec.shape) for path, spec in operator.all_parameters.items()}
    peer = torch.nn.TransformerEncoderLayer(
        8, 2, 32, dropout=0.0, activation=activation, batch_first=True, norm_first=True, dtype=torch.float64
    )
    state = {
        "self_attn.in_proj_weight": np.concatenate([w[f"attn.{n}_proj.weight"] for n in "qkv"]),
        "self_attn.in_proj_bias": np.concatenate([w[f"attn.{n}_proj.bias"] for n in "qkv"]),
        **{f"self_attn.out_proj.{p}": w[f"attn.o_proj.{p}"] for p in ("weight", "bias")},
        **{
            f"{theirs}.{p}": w[f"{ours}.{p}"]
            for theirs, ours in (
                ("linear1", "ffn.up"),
                ("linear2", "ffn.down"),
                ("norm1",) * 2,
                ("norm2",) * 2,
            )
            for p in ("weight", "bias")
        },
    }
    peer.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    x = random.standard_normal((3, 5, 8))
    with torch.no_grad():
        right = peer(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(layer(operator, w)(x), right, rtol=1e-12, atol=1e-12)


def test_grouped_rotary_attention_equals_torch():
    plan, w = plan_and_weights(
        "attention(4, causal=True, bias=False, rope=True, kv_heads=2)", input=("B", "T", 16)
    )
    x = np.random.default_rng(5).standard_normal((2, 6, 16))

    def turn(heads):  # complex rotation of the pairs (i, i + 2): another way to say it
        pairs = torch.complex(heads[..., :2], heads[..., 2:])
        angles = torch.arange(6, dtype=torch.float64)[:, None] * torch.tensor(
            [1.0, 0.01], dtype=torch.float64
        )
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), -1)

    def heads(name, count):
        y = torch.from_numpy(x) @ torch.from_numpy(w[f"n0.{name}_proj.weight"]).T
        return y.reshape(2, 6, count, 4).transpose(1, 2)

    out = torch.nn.functional.scaled_dot_product_attention(
        turn(heads("q", 4)), turn(heads("k", 2)), heads("v", 2), is_causal=True, enable_gqa=True
    )
    right = out.transpose(1, 2).reshape(2, 6, 16) @ torch.from_numpy(w["n0.o_proj.weight"]).T
    np.testing.assert_allclose(build(plan, w)(x), right.numpy(), rtol=1e-12, atol=1e-12)


def test_several_outputs_are_a_dictionary_in_order():
    plan = resolve(
        "h = linear(2, bias=False)\nrelu()\ny = identity()\noutput(y=('B', 2), h=('B', 2))", input=("B", 1)
    )
    out = build(plan, {"n0.weight": [[1.0], [-1.0]]})([[2.0]])
    assert list(out) == ["y", "h"]
    np.testing.assert_array_equal(out["y"], [[2.0, 0.0]])
    np.testing.assert_array_equal(out["h"], [[2.0, -2.0]])


def test_inputs_by_position_and_by_name():
    plan = resolve('x = input("B", "T", 8)\nm = input("B", "T", dtype="bool")\nattention(2, mask=m)')
    f = build(plan, draw_weights(plan))
    x, m = np.ones((1, 2, 8)), np.array([[True, False]])
    by_position = f(x, m)
    np.testing.assert_array_equal(f(m=m, x=x), by_position)
    np.testing.assert_array_equal(f(x, m=m), by_position)
    with pytest.raises(IsomorphError, match=r"^E_RUNTIME: missing input m; "):
        f(x)


def test_a_wrong_input_is_refused():
    f = build(*plan_and_weights(BLOCKS, input=("B", 6, 8), output=("B", 6, 8)))
    with pytest.raises(IsomorphError) as caught:
        f(np.zeros((2, 6, 7), dtype=np.float32))
    assert str(caught.value) == (
        "E_RUNTIME: input x: expected [B, 6, 8] float32, got [2, 6, 7] float32: axis 2 must be 8"
    )
    with pytest.raises(IsomorphError) as caught:
        f(np.zeros((2, 6, 8), dtype=np.int64))
    assert str(caught.value) == (
        "E_RUNTIME: input x: expected [B, 6, 8] float32, got [2, 6, 8] int64: "
        "it must have a floating-point dtype"
    )


def test_a_length_beyond_the_position_table_is_refused():
    plan = resolve("embedding(7, 4)\npos_embed(5)", input=("B", "T"), input_dtype="int64")
    f = build(plan, draw_weights(plan))
    assert f(np.zeros((2, 5), dtype=np.int64)).shape == (2, 5, 4)
    with pytest.raises(IsomorphError) as caught:
        f(np.zeros((2, 6), dtype=np.int64))
    assert str(caught.value) == (
        "E_RUNTIME: input x: expected [B, T] int64, got [2, 6] int64: T=6 must be at most 5"
    )
    with pytest.raises(IsomorphError) as caught:
        f(np.full((2, 5), 7))
    assert str(caught.value) == ("E_RUNTIME: id 7 is outside a table of 7 rows\n  ids run from 0 to 6")


@pytest.mark.parametrize("mode", ["mean", "max", "last", "first"])
def test_pooling_no_tokens_is_an_error(mode):
    f = build(resolve(f"pool_tokens({mode!r})", input=("B", "T", 4)), {})
    assert f(np.zeros((0, 3, 4))).shape == (0, 4)
    with pytest.raises(IsomorphError) as caught:
        f(np.zeros((2, 0, 4)))
    assert caught.value.code == "E_RUNTIME"


def test_weights_must_be_the_plans():
    plan = resolve("linear(3)", input=("B", 2))
    with pytest.raises(IsomorphError) as caught:
        build(plan, {"n0.weight": np.zeros((2, 3))})
    assert str(caught.value) == (
        "E_WEIGHTS: the weights do not fit the plan: 1 missing, 1 misshapen\n"
        "  missing: n0.bias [3]\n"
        "  misshapen: n0.weight: expected [3, 2], got [2, 3]"
    )


def test_tied_weights_are_one_table():
    plan = resolve(
        'embedding(3, 2, name="wte")\nlinear(3, bias=False, tie={"weight": "wte.weight"}, name="head")',
        input=("B", "T"),
        input_dtype="int64",
    )
    table = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    out = build(plan, {"wte.weight": table})(np.array([[0, 2]]))
    np.testing.assert_array_equal(out[0], table[[0, 2]] @ table.T)


def test_everything_is_float64():
    plan, weights = plan_and_weights(BLOCKS, input=("B", 6, 8), output=("B", 6, 8))
    x = np.random.default_rng(1).standard_normal((2, 6, 8)).astype(ml_dtypes.bfloat16)
    right = build(plan, weights)(x.astype(np.float64))
    for dtype in (ml_dtypes.bfloat16, np.float32):  # bfloat16 values are float32 values too
        out = build(plan, weights)(x.astype(dtype))
        assert out.dtype == np.float64
        np.testing.assert_array_equal(out, right)
    narrow = {path: array.astype(np.float32) for path, array in weights.items()}
    wide = {path: array.astype(np.float64) for path, array in narrow.items()}
    np.testing.assert_array_equal(build(plan, narrow)(x), build(plan, wide)(x))


@pytest.mark.parametrize(("B", "T"), [(1, 1), (3, 5), (2, 0), (0, 5)])
def test_one_plan_at_every_size(B, T):
    plan, weights = plan_and_weights("transformer_block(2, causal=True)\nlinear(3)", input=("B", "T", 4))
    f = build(plan, weights)
    x = np.random.default_rng(2).standard_normal((3, 5, 4))
    out = f(x[:B, :T])
    assert out.shape == (B, T, 3)
    np.testing.assert_allclose(out, f(x)[:B, :T], rtol=1e-12, atol=1e-12)  # causal: the past knows no future


def test_non_contiguous_and_expanded_inputs():
    f = build(*plan_and_weights(BLOCKS, input=("B", 6, 8), output=("B", 6, 8)))
    x = np.random.default_rng(1).standard_normal((8, 6, 2)).T
    np.testing.assert_array_equal(f(x), f(np.ascontiguousarray(x)))
    row = np.broadcast_to(x[:1], (3, 6, 8))
    np.testing.assert_array_equal(f(row), f(row.copy()))


def test_nothing_is_shared_with_the_caller():
    plan = resolve("identity()", input=("B", 2))
    x = np.zeros((1, 2))
    out = build(plan, {})(x)
    out += 1
    np.testing.assert_array_equal(x, [[0, 0]])
    plan = resolve("linear(1, bias=False)", input=("B", 1))
    weights = {"n0.weight": np.ones((1, 1))}
    f = build(plan, weights)
    weights["n0.weight"][:] = 5
    np.testing.assert_array_equal(f([[1.0]]), [[1.0]])


@pytest.mark.parametrize("once", [run, numeric_bound])
def test_what_runs_once_widens_one_parameter_after_the_other(once):
    """24 matrices of 256 KiB, of which a float64 copy is 512 KiB: a copy of all would take 12 MiB."""
    plan = resolve("for _ in range(24):\n    linear(256, bias=False)", input=("B", 256))
    weights = {path: array.astype(np.float32) / 16 for path, array in draw_weights(plan).items()}
    for array in weights.values():
        array.setflags(write=False)
    once(plan, weights, [np.ones((2, 256))])  # what is made at the first call alone
    tracemalloc.start()
    try:
        once(plan, weights, [np.ones((2, 256))])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 * 256 * 256 * 4 // 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ml_dtypes.bfloat16])
def test_weights_of_every_dtype_run_once_as_they_run_when_copied(dtype):
    """Under both paths of a tie, integers under one of them, and in lists."""
    text = 'linear(8)\ntransformer_block(2, mlp_ratio=2)\nlinear(8, name="last", tie={"weight": "n0.weight"})'
    plan, weights = plan_and_weights(text, input=("B", "T", 8))
    weights = {path: np.round(4 * array).astype(dtype) for path, array in weights.items()}
    weights["last.weight"] = weights["n0.weight"].astype("int64")
    weights["n0.bias"] = [1.0, -2.0, 0.5, 0.0, 3.0, 0.0, 0.0, -1.0]
    x = np.linspace(-1, 1, 48).reshape(2, 3, 8)
    (output,) = run(plan, weights, [x]).values()
    np.testing.assert_array_equal(output, build(plan, weights)(x), strict=True)


def test_observe_sees_every_node():
    plan = resolve("h = linear(2, bias=False)\na = relu(h)\nadd(h, a)", input=("B", 1))
    seen = []
    out = run(
        plan,
        {"n0.weight": [[1.0], [-1.0]]},
        {"x": [[2.0]]},
        observe=lambda node, inputs, outputs: seen.append(
            (node.name, [i.tolist() for i in inputs], [o.tolist() for o in outputs])
        ),
    )
    assert seen == [
        ("n0", [[[2.0]]], [[[2.0, -2.0]]]),
        ("n1", [[[2.0, -2.0]]], [[[2.0, 0.0]]]),
        ("n2", [[[2.0, -2.0]], [[2.0, 0.0]]], [[[4.0, -2.0]]]),
    ]
    np.testing.assert_array_equal(out[""], [[4.0, -2.0]])


def test_nan_passes_through_silently():
    f = build(resolve("layer_norm(affine=False)\nsoftmax()", input=("B", 2)), {})
    out = f([[np.inf, 1.0], [3.0, 3.0]])
    assert np.isnan(out[0]).all()
    np.testing.assert_array_equal(out[1], [0.5, 0.5])
