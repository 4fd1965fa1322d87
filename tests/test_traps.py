"""Faults that other libraries shipped, each with its tiny input and its right value, in whole plans.

Faults that meet a single function have their tests beside it (``tests/backends``, ``tests/weights``,
``tests/language``, ``tests/training``); here is what a plan as a whole must withstand.
"""

from __future__ import annotations

import io
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import isomorph as iso
from isomorph.backends.available import load
from isomorph.weights.file import PLAN_KEY

torch = pytest.importorskip("torch")

BACKENDS = pytest.mark.parametrize("backend", ["reference", "torch"])
Array = np.ndarray[Any, Any]


def compute(
    backend: str, text: str, weights: dict[str, Any], x: Any, dtype: str = "float64", **contracts: Any
) -> Array:
    """The output of a one-input plan on one array, batch and length open."""
    x = np.asarray(x)
    shape = ("B", *x.shape[1:]) if x.ndim < 3 else ("B", "T", *x.shape[2:])
    plan = iso.resolve(text, input=shape, dtype=dtype, **contracts)
    arrays = {path: np.asarray(array, dtype=np.float64) for path, array in weights.items()}
    return np.asarray(load(backend).forward(plan, arrays, {"x": x}, dtype)[""])


def refusal(text: str, *shape: Any, **contracts: Any) -> str:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve(text, input=shape or None, **contracts)
    return str(caught.value)


# -- numbers -------------------------------------------------------------------------------------------


@BACKENDS
def test_gelu_is_the_erf_form_wherever_it_is_named(backend):
    # gelu(-2) = -(1 + erf(-sqrt 2)) = -0.0455003, and -0.0454023 in the tanh form
    erf, tanh = -1 - math.erf(-math.sqrt(2)), -0.045402306
    one = {"n0.up.weight": [[1]], "n0.up.bias": [0], "n0.down.weight": [[1]], "n0.down.bias": [0]}
    for text, weights, right in (
        ("gelu()", {}, erf),
        ('gelu(approximate="tanh")', {}, tanh),
        ("feed_forward(1)", one, erf),
        ('feed_forward(1, activation="gelu_tanh")', one, tanh),
    ):
        assert compute(backend, text, weights, [[-2.0]]).item() == pytest.approx(right, abs=1e-9)


@BACKENDS
def test_every_norm_of_a_network_has_its_own_epsilon(backend):
    # row [1e-3, -1e-3] has variance 1e-6: 1e-3 / sqrt(1e-6 + eps)
    for eps, right in ((1e-5, 0.30151), (1e-6, 0.70711), (1e-12, 1.0)):
        out = compute(backend, f"layer_norm(affine=False, eps={eps!r})", {}, [[1e-3, -1e-3]])
        np.testing.assert_allclose(out, [[right, -right]], atol=1e-5)
    text = "layer_norm(eps=3.0, affine=False)\nscale(1000)\nlayer_norm(eps=1e-12, affine=False)"
    # [1, -1] becomes [1/2, -1/2], [500, -500], [1, -1]: the second norm is not given the first one's epsilon
    np.testing.assert_allclose(compute(backend, text, {}, [[1.0, -1.0]]), [[1.0, -1.0]], rtol=1e-12)


@BACKENDS
def test_a_large_mean_leaves_the_spread(backend):
    x = np.array([[40000.0, 40001.0, 40002.0, 40003.0]], dtype="float32")
    out = compute(backend, "layer_norm(affine=False)", {}, x, "float32")
    np.testing.assert_allclose(out, [[-1.34164, -0.44721, 0.44721, 1.34164]], atol=1e-5)


@BACKENDS
def test_half_precision_norms_neither_overflow_nor_lose_their_epsilon(backend):
    x = np.full((1, 4), 300.0, dtype="float16")  # 300^2 = 90,000 > 65,504
    np.testing.assert_array_equal(
        compute(backend, "rms_norm(affine=False, eps=1e-6)", {}, x, "float16").astype("float16"),
        np.ones((1, 4)),
    )
    for norm in ("layer_norm", "rms_norm"):  # 1e-12 is zero in float16
        out = compute(backend, f"{norm}(affine=False, eps=1e-12)", {}, x * 0, "float16")
        np.testing.assert_array_equal(out, np.zeros((1, 4)))


@BACKENDS
def test_rope_pairs_the_two_halves(backend):
    """q = k = [1, 0, 0, 0]: at position 1 the half pairing gives [cos 1, 0, sin 1, 0].

    Keys have their one in feature j. From position 1 to the key at position 0, which is not rotated, the
    score is then element j of the rotated query over sqrt(4), so all four elements can be read off.
    """
    right = [math.cos(1), 0.0, math.sin(1), 0.0]  # 0.5403, 0, 0.8415, 0
    for j, element in enumerate(right):
        key = np.zeros((4, 4))
        key[j, 0] = 1
        weights = {
            "n0.q_proj.weight": np.diag([1.0, 0, 0, 0]),
            "n0.k_proj.weight": key,
            "n0.v_proj.weight": np.diag([0, 1.0, 0, 0]),
            "n0.o_proj.weight": np.eye(4),
        }
        x = np.array([[[1.0, 1, 0, 0], [1, 0, 0, 0]]])  # feature 1 marks the first value
        out = compute(backend, "attention(1, bias=False, rope=True)", weights, x)
        here = 1.0 if j == 0 else 0.0  # the score with the key at its own position, equally rotated
        first, second = math.exp(element / 2), math.exp(here / 2)
        assert out[0, 1, 1] == pytest.approx(first / (first + second), rel=1e-12)


@BACKENDS
def test_consecutive_query_heads_read_one_value_head(backend):
    weights = {
        "n0.q_proj.weight": np.zeros((4, 4)),
        "n0.k_proj.weight": np.zeros((2, 4)),
        "n0.v_proj.weight": [[10, 0, 0, 0], [20, 0, 0, 0]],
        "n0.o_proj.weight": np.eye(4),
    }
    out = compute(backend, "attention(4, bias=False, kv_heads=2)", weights, [[[1.0, 0, 0, 0]]])
    np.testing.assert_array_equal(out, [[[10, 10, 20, 20]]])


@BACKENDS
def test_a_given_head_width_sets_projections_and_scale(backend):
    """d = 12, 2 heads of width 8: q is [16, 12], o is [12, 16], and scores are divided by sqrt(8)."""
    text = "attention(2, head_dim=8, bias=False)"
    shapes = {p.path: p.shape for p in iso.resolve(text, input=("B", "T", 12)).parameters}
    assert shapes == {
        "n0.q_proj.weight": (16, 12), "n0.k_proj.weight": (16, 12), "n0.v_proj.weight": (16, 12),
        "n0.o_proj.weight": (12, 16),
    }  # fmt: skip
    pick = np.zeros((16, 12))
    pick[0, 0] = pick[8, 0] = 1  # the first feature of either head
    weights = {f"n0.{name}_proj.weight": pick for name in "qkv"} | {"n0.o_proj.weight": pick.T / 2}
    x = np.zeros((1, 2, 12))
    x[0, 0, 0] = 1  # scores of position 0: 1 / sqrt(8) with itself, 0 with the other
    share = math.exp(8**-0.5) / (math.exp(8**-0.5) + 1)
    assert compute(backend, text, weights, x)[0, 0, 0] == pytest.approx(share, rel=1e-12)


def test_only_contradictory_head_widths_are_refused():
    assert iso.resolve("attention(5, head_dim=3)", input=("B", 3, 12)).nodes  # 5 * 3 = 15 need not be 12
    assert refusal("attention(5)", "B", 3, 12) == (
        "E_CONSTRAINT: heads=5 does not divide the model width D=12\n"
        "  <definition>:1:11\n"
        "  1 | attention(5)\n"
        "    |           ^\n"
        "  D=12 comes from input x[B, 3, 12]\n"
        "  heads that divide 12: 1, 2, 3, 4, 6, 12"
    )
    assert refusal("attention(5, kv_heads=2)", "B", 3, 10).startswith(
        "E_CONSTRAINT: kv_heads=2 does not divide heads=5\n"
    )


@BACKENDS
def test_a_square_weight_is_never_transposed(backend):
    """W of an [in, out] layout with W[0, 1] = 1 maps [1, 0] to [0, 1]; here it must be given as W^T."""
    text, x = "linear(2, bias=False)", [[1.0, 0.0]]
    ours = np.array([[0.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(compute(backend, text, {"n0.weight": ours}, x), [[0, 1]])
    np.testing.assert_array_equal(compute(backend, text, {"n0.weight": ours.T}, x), [[0, 0]])


@BACKENDS
def test_true_in_a_mask_means_visible(backend):
    plan = iso.resolve(
        'x = input("B", "T", 1)\nm = input("B", "T", dtype="bool")\nattention(1, bias=False, mask=m)',
        dtype="float64",
    )
    weights = {"n0.q_proj.weight": np.zeros((1, 1)), "n0.k_proj.weight": np.zeros((1, 1)),
               "n0.v_proj.weight": np.ones((1, 1)), "n0.o_proj.weight": np.ones((1, 1))}  # fmt: skip
    inputs = {"x": np.array([[[1.0], [9.0]]]), "m": np.array([[True, False]])}
    out = load(backend).forward(plan, weights, inputs, "float64")[""]
    np.testing.assert_array_equal(out, [[[1], [1]]])


@BACKENDS
def test_layouts_do_not_matter(backend):
    text = "transformer_block(2, causal=True)\nlinear(5)"
    plan = iso.resolve(text, input=("B", "T", 8), dtype="float64")
    weights = iso.initial_weights(plan, seed=2)
    x = np.random.default_rng(0).standard_normal((3, 5, 8))
    right = load(backend).forward(plan, weights, {"x": x}, "float64")[""]
    turned = np.ascontiguousarray(x.transpose(2, 0, 1)).transpose(1, 2, 0)
    backwards = np.ascontiguousarray(x[:, ::-1])[:, ::-1]
    assert not turned.flags.c_contiguous and not backwards.flags.c_contiguous
    for other in (turned, backwards, np.asfortranarray(x)):
        np.testing.assert_allclose(
            load(backend).forward(plan, weights, {"x": other}, "float64")[""], right, rtol=0, atol=1e-14
        )
    expanded = np.broadcast_to(x[:1], (4, 5, 8))
    many = load(backend).forward(plan, weights, {"x": expanded}, "float64")[""]
    np.testing.assert_allclose(many, np.repeat(right[:1], 4, 0), rtol=0, atol=1e-14)


def test_torch_takes_transposed_and_expanded_tensors():
    model = iso.torch.build(
        iso.resolve("transformer_block(2, causal=True)", input=("B", "T", 8)), seed=1
    ).eval()
    x = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(0)).transpose(1, 2)
    assert not x.is_contiguous()
    torch.testing.assert_close(model(x), model(x.contiguous()), rtol=0, atol=1e-6)
    row = x[:1].expand(4, 5, 8)
    torch.testing.assert_close(model(row), model(row.contiguous()), rtol=0, atol=1e-6)


# -- randomness and initial weights --------------------------------------------------------------------


def test_dropout_follows_the_mode_and_is_drawn_anew():
    """Two calls, p = 0.5, B = 3, H = 2: equal in evaluation, different in training, for example and head."""
    text = "attention(2, dropout=0.5, bias=False)\ndropout(0.5)"
    model = iso.torch.build(iso.resolve(text, input=("B", "T", 8)))
    with torch.no_grad():
        for name in "qk":
            getattr(model.n0, f"{name}_proj").weight.zero_()
        model.n0.v_proj.weight.copy_(torch.ones(8, 8) / 8)  # every value is one
        model.n0.o_proj.weight.copy_(torch.eye(8))
    model.n1.eval()  # the attention weights alone first
    x = torch.ones(3, 16, 8)
    torch.manual_seed(0)
    first, second = model(x), model(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[..., 0], first[..., 4])  # features of the one and the other head
    assert torch.equal(first[..., 0], first[..., 3])
    model.n0.eval()
    model.n1.train()
    assert not torch.equal(model(x), model(x))
    state = torch.get_rng_state()
    assert torch.equal(model.eval()(x), torch.ones(3, 16, 8))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_name_decides_a_layers_weights_and_not_its_place():
    """``Dense(4)(relu(Dense(7)(h)))`` with names: neither order nor other layers' names count."""
    nested = iso.resolve('linear(relu(linear(7, name="inner")), 4, name="outer")', input=("B", 3))
    written = iso.resolve('linear(7, name="inner")\nrelu()\nlinear(4, name="outer")', input=("B", 3))
    renamed = iso.resolve('linear(7, name="other")\nrelu()\nlinear(4, name="outer")', input=("B", 3))
    longer = iso.resolve(
        'layer_norm()\nlinear(7, name="inner")\nlinear(7)\nrelu()\nlinear(4, name="outer")', input=("B", 3)
    )
    drawn = iso.initial_weights(nested, seed=5)
    assert [p.path.partition(".")[0] for p in nested.parameters] == ["inner", "inner", "outer", "outer"]
    for plan, names in ((written, ("inner", "outer")), (renamed, ("outer",)), (longer, ("inner", "outer"))):
        again = iso.initial_weights(plan, seed=5)
        for name in names:
            for kind in ("weight", "bias"):
                np.testing.assert_array_equal(again[f"{name}.{kind}"], drawn[f"{name}.{kind}"])


# -- weights and files ---------------------------------------------------------------------------------


@BACKENDS
def test_bfloat16_arrays_keep_their_bits(backend):
    plan = iso.resolve("linear(1, bias=False)", input=("B", 2), dtype="bfloat16")
    weights = {"n0.weight": np.array([[1.5, -2.25]], dtype=ml_dtypes.bfloat16)}
    x = np.array([[1.0, 1.0]], dtype=ml_dtypes.bfloat16)
    out = load(backend).forward(plan, weights, {"x": x}, "bfloat16")[""]
    assert out.astype(np.float64).tolist() == [[-0.75]]
    back = iso.torch.weights(iso.torch.build(plan, weights))["n0.weight"]
    assert back.dtype == ml_dtypes.bfloat16
    assert back.tobytes() == weights["n0.weight"].tobytes()


@pytest.mark.parametrize("door", ["torch", "reference"])
def test_what_npy_made_of_bfloat16_is_refused(door):
    plan = iso.resolve("linear(1, bias=False)", input=("B", 2), dtype="bfloat16")
    file = io.BytesIO()
    np.save(file, np.array([[1.5, -2.25]], dtype=ml_dtypes.bfloat16))
    file.seek(0)
    raw = np.load(file)  # two bytes each, and no longer a number
    assert raw.dtype.kind == "V"
    with pytest.raises(iso.IsomorphError) as caught:
        getattr(iso, door).build(plan, {"n0.weight": raw})
    assert str(caught.value) == (
        "E_WEIGHTS: 1 of the weights are not floating-point numbers\n  n0.weight: expected bfloat16, got void16"
    )


TIED = """
ids = input("B", "T", dtype="int64")
embedding(5, 3, name="wte")
linear(5, bias=False, tie={"weight": "wte.weight"}, name="head")
"""


def test_files_of_a_tied_table(tmp_path):
    """Holding the embedding alone, the head alone, both alike: equal models. Both different: refused."""
    from safetensors.numpy import save_file

    plan, table = iso.resolve(TIED), np.arange(15, dtype="float32").reshape(5, 3)
    path, metadata = tmp_path / "tied.safetensors", {PLAN_KEY: plan.to_json()}
    for held in (
        {"wte.weight": table},
        {"head.weight": table},
        {"wte.weight": table, "head.weight": table.copy()},
    ):
        save_file(held, path, metadata)
        found, weights = iso.load(path)
        assert found == plan
        assert {name: array.tolist() for name, array in weights.items()} == {"wte.weight": table.tolist()}
        for door in (iso.torch, iso.reference):
            model, again = door.build(plan, weights), door.build(plan, held)
            ids = np.array([[0, 4]])
            given = torch.from_numpy(ids) if door is iso.torch else ids
            # scores of id 4, [12, 13, 14]: products with the rows
            right = table[[0, 4]] @ table.T
            for built in (model, again):
                out = built(given)
                np.testing.assert_array_equal(out.detach().numpy() if door is iso.torch else out, [right])
    save_file({"wte.weight": table, "head.weight": table + 1}, path, metadata)
    message = (
        "E_WEIGHTS: head.weight is tied to wte.weight, but wte.weight and head.weight are given different values\n"
        "  give one of them, or both alike; or resolve the definition without the tie"
    )
    different = {"wte.weight": table, "head.weight": table + 1}
    for refused in (
        lambda: iso.load(path),
        lambda: iso.torch.build(plan, different),
        lambda: iso.reference.build(plan, different),
        lambda: iso.save(tmp_path / "other", plan, different),
        lambda: iso.torch.build(plan).load_state_dict({k: torch.from_numpy(v) for k, v in different.items()}),
    ):
        with pytest.raises(iso.IsomorphError) as caught:
            refused()
        assert str(caught.value) == message


@pytest.mark.parametrize("door", ["torch", "reference"])
def test_shapes_are_never_broadcast(door):
    plan = iso.resolve("linear(5, bias=False)", input=("B", 1))
    for shape in ((2, 3), (1, 1), (5,), (1, 5), ()):
        with pytest.raises(iso.IsomorphError) as caught:
            getattr(iso, door).build(plan, {"n0.weight": np.zeros(shape, "float32")})
        assert caught.value.hints == (f"misshapen: n0.weight: expected [5, 1], got {list(shape)}",)


def test_a_network_from_the_meta_device_has_nothing_uninitialised():
    """Tables of angles are computed, not stored; what is stored comes with the weights; ties hold."""
    text = """
    ids = input("B", "T", dtype="int64")
    embedding(11, 8, name="wte")
    sinusoidal_pos_embed()
    attention(2, rope=True, causal=True)
    linear(11, bias=False, tie={"weight": "wte.weight"}, name="head")
    """
    plan = iso.resolve(text)
    right = iso.torch.build(plan, seed=3)
    ids = torch.tensor([[1, 5, 10, 0]])
    model = iso.torch.build(plan, device="meta")
    assert list(model.buffers()) == []
    with pytest.raises(iso.IsomorphError) as caught:
        iso.torch.load_weights(model, iso.torch.weights(right))
    assert str(caught.value) == (
        "E_ARGUMENT: wte.weight is on the meta device, which holds no values: nothing can be loaded there\n"
        '  give the model memory first, as in model.to_empty(device="cpu")'
    )
    model = model.to_empty(device="cpu")
    assert model.head.weight is model.wte.weight
    iso.torch.load_weights(model, iso.torch.weights(right))
    assert torch.equal(model(ids), right(ids))
    nested = torch.nn.Sequential(iso.torch.build(plan, device="meta")).to_empty(device="cpu")
    iso.torch.load_weights(nested[0], iso.torch.weights(right))  # torch has made two tables of one there
    assert torch.equal(nested(ids), right(ids))
    with torch.no_grad():
        nested[0].head.weight.add_(1)
    with pytest.raises(iso.IsomorphError, match=r"head\.weight is tied to wte\.weight, but"):
        iso.torch.weights(nested[0])
    assigned = iso.torch.build(plan, device="meta")
    assigned.load_state_dict(right.state_dict(), assign=True)
    assert assigned.head.weight is assigned.wte.weight
    assert torch.equal(assigned(ids), right(ids))


# -- compilers, devices and errors -----------------------------------------------------------------------


def test_frameworks_settings_stay_as_they_were():
    before = (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )
    model = iso.torch.build(iso.resolve("patch_embed(8, 2)\ntransformer_block(2)", input=("B", 3, 4, 4)))
    model(torch.zeros(2, 3, 4, 4)).sum().backward()
    assert before == (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )


def test_twenty_lengths_need_a_handful_of_compilations():
    text = "embedding(7, 8)\npos_embed(64)\ntransformer_block(2, causal=True)\nattention(2, rope=True)"
    model = iso.torch.build(iso.resolve(text, input=("B", "T"), input_dtype="int64")).eval()
    count = 0

    def compiler(graph: Any, example: Any) -> Any:
        nonlocal count
        count += 1
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(model, backend=compiler, fullgraph=True)
    with torch.no_grad():
        for T in range(2, 22):
            compiled(torch.zeros(2 + T % 3, T, dtype=torch.int64))
        assert 1 <= count <= 4  # the first sizes, then open ones
        before = count
        for parameter in model.parameters():
            parameter.add_(1.0)  # weights are arguments of the graph, no constants in it
        ids = torch.zeros(2, 9, dtype=torch.int64)
        torch.testing.assert_close(compiled(ids), model(ids))
    assert count == before
    torch.compiler.reset()


def test_errors_name_the_layer_the_line_what_was_expected_and_what_came():
    assert refusal("relu()\ntransformer_block(0)", "B", 3, 12, file="encoder.net") == (
        "E_ARGUMENT: transformer_block: heads must be >= 1, got 0\n"
        "  encoder.net:2:19\n"
        "  2 | transformer_block(0)\n"
        "    |                   ^"
    )
    # expected and received in the right order, either way round
    for given, wanted in ((5, 6), (6, 5)):
        assert refusal(f"linear({given})", "B", 8, output=("B", wanted)).startswith(
            f"E_CONSTRAINT: the output is [B, {given}], the contract says [B, {wanted}]\n"
        )


def test_a_name_that_stands_twice_is_refused():
    for text, message in (
        ('linear(3, name="a")\nlinear(4, name="a")', "E_NAME: two nodes are named 'a'\n"),
        ("a, a = split(4)\nrelu(a)", "E_SYNTAX: several results are taken by two or more different names\n"),
        ("linear(3, bias=True, bias=False)", "E_SYNTAX: the argument 'bias' is given twice\n"),
        (
            'linear(3, init={"weight": 0.0, "weight": 1.0})',
            "E_SYNTAX: the key 'weight' stands twice in this dictionary\n",
        ),
    ):
        assert refusal(text, "B", 12).startswith(message)
    assert refusal('x = input("B", 3)\nx = input("B", 4)\nrelu()').startswith(
        "E_NAME: two inputs are named 'x'\n"
    )


@BACKENDS
def test_a_symbol_that_stands_twice_is_one_size(backend):
    plan = iso.resolve("relu()", input=("B", "B"))
    with pytest.raises(iso.IsomorphError) as caught:
        load(backend).forward(plan, {}, {"x": np.ones((2, 3), "float32")}, "float32")
    assert str(caught.value) == (
        "E_RUNTIME: input x: expected [B, B] float32, got [2, 3] float32: "
        "axis 1 must be B=2 (from axis 0 of x)"
    )
