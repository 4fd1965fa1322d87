"""``transformer_block@1``: what resolving one says. ``test_transformer_block_numbers.py`` has what it computes."""

from __future__ import annotations

from typing import Any

import pytest

import isomorph as iso

NORM_BIASES = {"norm1.bias", "norm2.bias"}


def table(text: str, **contracts: Any) -> str:
    plan = iso.resolve(text, **contracts)
    return f"{plan}\n\nParameters: {plan.parameter_count:,}"


def shapes(text: str, *shape: Any, **contracts: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters of node ``n0``, by path inside it."""
    plan = iso.resolve(text, input=shape, **contracts)
    return {p.path.removeprefix("n0."): p.shape for p in plan.parameters if p.path.startswith("n0.")}


def refusal(text: str, *shape: Any, **contracts: Any) -> str:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve(text, input=shape or None, **contracts)
    return str(caught.value)


def document(D: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Every parameter of a block with layer norms and no layer scale."""
    found: dict[str, tuple[int, ...]] = {"norm1.weight": (D,), "norm1.bias": (D,)}
    for name in "qkvo":
        found |= {f"attn.{name}_proj.weight": (D, D), f"attn.{name}_proj.bias": (D,)}
    found |= {"norm2.weight": (D,), "norm2.bias": (D,)}
    found |= {"ffn.up.weight": (hidden, D), "ffn.up.bias": (hidden,)}
    return found | {"ffn.down.weight": (D, hidden), "ffn.down.bias": (D,)}


# -- the examples ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "input", "output", "expected"),
    [
        (
            "transformer_block(4)\n",
            ("B", 8, 32),
            None,
            # 12 * 32^2 + 13 * 32
            "Network: [B, 8, 32] -> [B, 8, 32]  dtype=float32\n"
            "index  name  operation          input shapes  output shapes\n"
            "0      n0    transformer_block  x=[B, 8, 32]  out=[B, 8, 32]\n"
            "\n"
            "Parameters: 12,704",
        ),
        (
            'transformer_block(2, causal=True, norm="rms_norm")\n'
            'transformer_block(2, causal=True, norm="rms_norm")\n',
            ("B", 6, 16),
            None,
            # 2 * (12 * 16^2 + 11 * 16)
            "Network: [B, 6, 16] -> [B, 6, 16]  dtype=float32\n"
            "index  name  operation          input shapes  output shapes\n"
            "0      n0    transformer_block  x=[B, 6, 16]  out=[B, 6, 16]\n"
            "1      n1    transformer_block  x=[B, 6, 16]  out=[B, 6, 16]\n"
            "\n"
            "Parameters: 6,496",
        ),
        (
            "linear(16)\ntransformer_block(2, mlp_ratio=2, layer_scale=True)\nlinear()\n",
            ("B", 6, 8),
            ("B", 6, 8),
            # (16 * 8 + 16) + (8 * 16^2 + 11 * 16 + 2 * 16) + (8 * 16 + 8)
            "Network: [B, 6, 8] -> [B, 6, 8]  dtype=float32\n"
            "index  name  operation          input shapes  output shapes\n"
            "0      n0    linear             x=[B, 6, 8]   out=[B, 6, 16]\n"
            "1      n1    transformer_block  x=[B, 6, 16]  out=[B, 6, 16]\n"
            "2      n2    linear             x=[B, 6, 16]  out=[B, 6, 8]\n"
            "\n"
            "Parameters: 2,536",
        ),
    ],
    ids=["vit", "decoder", "layer scale"],
)
def test_the_examples_to_the_letter(text, input, output, expected):
    assert table(text, input=input, output=output) == expected


# -- parameters ------------------------------------------------------------------------------------


def test_paths_and_shapes():
    assert shapes("transformer_block(4)", "B", 8, 32) == document(32, 128)


def test_the_state_dict_has_the_same_paths_and_shapes():
    pytest.importorskip("torch")
    plan = iso.resolve("transformer_block(4)", input=("B", 8, 32))
    state = iso.torch.build(plan).state_dict()
    assert list(state) == [f"n0.{path}" for path in document(32, 128)]
    assert {path.removeprefix("n0."): tuple(t.shape) for path, t in state.items()} == document(32, 128)


@pytest.mark.parametrize(("ratio", "hidden"), [(1, 12), (2, 24), (4, 48), (7, 84)])
def test_the_hidden_width_is_mlp_ratio_times_the_width(ratio, hidden):
    assert shapes(f"transformer_block(3, mlp_ratio={ratio})", "B", 5, 12) == document(12, hidden)


def test_four_is_the_default_ratio():
    assert shapes("transformer_block(3)", "B", 5, 12) == document(12, 48)


def test_rms_norm_has_no_bias():
    plain, rms = document(12, 48), shapes('transformer_block(3, norm="rms_norm")', "B", 5, 12)
    assert rms == {path: shape for path, shape in plain.items() if path not in NORM_BIASES}


def test_gains_come_with_layer_scale_alone():
    scaled = shapes("transformer_block(3, layer_scale=True)", "B", 5, 12)
    assert scaled == document(12, 48) | {"gamma1": (12,), "gamma2": (12,)}
    assert "gamma1" not in shapes("transformer_block(3, layer_scale_init=0.5)", "B", 5, 12)


def test_nothing_but_parameters_is_in_the_state():
    pytest.importorskip("torch")
    text = "transformer_block(2, causal=True, dropout=0.5, layer_scale=True)"
    model = iso.torch.build(iso.resolve(text, input=("B", "T", 8)))
    assert list(model.buffers()) == []  # no running statistics, no stored mask
    assert set(model.state_dict()) == {path for path, _ in model.named_parameters()}


def test_heads_dropout_and_epsilon_size_nothing():
    plain = iso.resolve("transformer_block(2)", input=("B", 5, 12)).parameters
    for other in ("6", "2, causal=True", "2, dropout=0.5", "2, eps=1.0", '2, activation="relu"'):
        assert iso.resolve(f"transformer_block({other})", input=("B", 5, 12)).parameters == plain


def initial(extra: str) -> dict[str, Any]:
    plan = iso.resolve(f"transformer_block(2, {extra})", input=("B", 5, 8))
    return {p.path.removeprefix("n0."): p.initial for p in plan.parameters}


def test_layer_scale_starts_at_its_argument():
    plan = iso.resolve("transformer_block(2, layer_scale=True, layer_scale_init=0.25)", input=("B", 5, 8))
    weights = iso.initial_weights(plan)
    assert weights["n0.gamma1"].tolist() == weights["n0.gamma2"].tolist() == [0.25] * 8
    default = iso.initial_weights(iso.resolve("transformer_block(2, layer_scale=True)", input=("B", 5, 8)))
    assert default["n0.gamma1"].tolist() == pytest.approx([1e-5] * 8, rel=1e-7)
    assert initial("layer_scale=True, layer_scale_init=0.0")["gamma2"].value == 0.0


def test_layer_scale_init_is_ignored_without_layer_scale():
    with_it = iso.resolve("transformer_block(2, layer_scale_init=0.25)", input=("B", 5, 8))
    without = iso.resolve("transformer_block(2)", input=("B", 5, 8))
    assert with_it.parameters == without.parameters
    drawn, plain = iso.initial_weights(with_it), iso.initial_weights(without)
    assert {path: w.tobytes() for path, w in drawn.items()} == {p: w.tobytes() for p, w in plain.items()}


def test_norms_start_as_the_identity_and_projections_within_their_fan_in():
    weights = iso.initial_weights(iso.resolve("transformer_block(2)", input=("B", 5, 16)))
    for norm in ("norm1", "norm2"):
        assert weights[f"n0.{norm}.weight"].tolist() == [1.0] * 16
        assert weights[f"n0.{norm}.bias"].tolist() == [0.0] * 16
    for path, fan_in in (("attn.q_proj", 16), ("attn.o_proj", 16), ("ffn.up", 16), ("ffn.down", 64)):
        for kind in ("weight", "bias"):
            largest = abs(weights[f"n0.{path}.{kind}"]).max()
            assert 0.5 * fan_in**-0.5 < largest <= fan_in**-0.5


def test_init_overrides_by_path():
    found = initial('layer_scale=True, init={"gamma1": 0.1, "attn.q_proj.weight": normal(std=0.02)}')
    assert found["gamma1"].value == 0.1
    assert found["gamma2"].value == 1e-5
    assert str(found["attn.q_proj.weight"]) == "normal(mean=0.0, std=0.02)"
    plan = iso.resolve('transformer_block(2, layer_scale=True, init={"gamma1": 0.1})', input=("B", 5, 8))
    assert iso.initial_weights(plan)["n0.gamma1"].tolist() == pytest.approx([0.1] * 8, rel=1e-7)


@pytest.mark.parametrize(
    ("extra", "frozen"),
    [
        ("trainable=True", set()),
        ("trainable=False", set(document(8, 32)) | {"gamma1", "gamma2"}),
        ('trainable={"gamma1": False}', {"gamma1"}),
        ('trainable={"norm2": False}', {"norm2.weight", "norm2.bias"}),
        ('trainable={"attn": False, "attn.o_proj": True}',
         {f"attn.{n}_proj.{kind}" for n in "qkv" for kind in ("weight", "bias")}),
        ('trainable={"ffn.up.bias": False}', {"ffn.up.bias"}),
    ],
)  # fmt: skip
def test_trainable_by_path(extra, frozen):
    plan = iso.resolve(f"transformer_block(2, layer_scale=True, {extra})", input=("B", 5, 8))
    assert {p.path.removeprefix("n0.") for p in plan.parameters if not p.trainable} == frozen
    pytest.importorskip("torch")
    model = iso.torch.build(plan)
    found = {path.removeprefix("n0.") for path, p in model.named_parameters() if not p.requires_grad}
    assert found == frozen


def test_paths_that_are_none():
    assert refusal('transformer_block(2, init={"gamma1": 0.1})', "B", 5, 8) == (
        "E_ARGUMENT: transformer_block: init names 'gamma1', which is no parameter of it\n"
        "  <definition>:1:27\n"
        '  1 | transformer_block(2, init={"gamma1": 0.1})\n'
        "    |                           ^\n"
        "  paths: norm1.weight, norm1.bias, attn.q_proj.weight, attn.q_proj.bias, attn.k_proj.weight, "
        "attn.k_proj.bias, attn.v_proj.weight, attn.v_proj.bias, attn.o_proj.weight, attn.o_proj.bias, "
        "norm2.weight, norm2.bias, ffn.up.weight, ffn.up.bias, ffn.down.weight, ffn.down.bias"
    )
    assert refusal('transformer_block(2, trainable={"attn.q": False})', "B", 5, 8) == (
        "E_ARGUMENT: transformer_block: trainable names 'attn.q', which is no parameter of it\n"
        "  <definition>:1:32\n"
        '  1 | transformer_block(2, trainable={"attn.q": False})\n'
        "    |                                ^\n"
        "  did you mean attn or attn.q_proj?"
    )


# -- shapes ----------------------------------------------------------------------------------------


def test_heads_must_divide_the_width():
    assert refusal("transformer_block(3)", "B", 8, 32) == (
        "E_CONSTRAINT: heads=3 does not divide the model width D=32\n"
        "  <definition>:1:19\n"
        "  1 | transformer_block(3)\n"
        "    |                   ^\n"
        "  D=32 comes from input x[B, 8, 32]\n"
        "  heads that divide 32: 1, 2, 4, 8, 16, 32"
    )


def test_heads_must_divide_a_width_from_elsewhere():
    assert refusal("linear(12)\ntransformer_block(heads=5)", "B", 8, 32) == (
        "E_CONSTRAINT: heads=5 does not divide the model width D=12\n"
        "  <definition>:2:25\n"
        "  2 | transformer_block(heads=5)\n"
        "    |                         ^\n"
        "  D=12 comes from n0 = linear(out_features=12) (line 1)\n"
        "  heads that divide 12: 1, 2, 3, 4, 6, 12"
    )
    behind = refusal("linear()\ntransformer_block(3)\nrelu()", "B", 8, 4, output=("B", 8, 32))
    assert behind.startswith("E_CONSTRAINT: heads=3 does not divide the model width D=32\n")


def test_every_divisor_is_allowed():
    for heads in (1, 2, 3, 4, 6, 12):
        assert shapes(f"transformer_block({heads})", "B", 5, 12) == document(12, 48)


@pytest.mark.parametrize(
    ("text", "input", "output"),
    [
        ("transformer_block(2)", ("B", "T", 8), None),
        ("linear(8)\ntransformer_block(2)", ("B", "T", 3), None),
        ("linear()\ntransformer_block(2)", ("B", "T", 3), ("B", "T", 8)),
        ("linear()\ntransformer_block(2)\ntransformer_block(4)\ntransformer_block(1)", ("B", "T", 3), ("B", "T", 8)),
        ("linear()\ntransformer_block(2)\nlinear(5, in_features=8)", ("B", "T", 3), None),
        ("linear()\ntransformer_block(2)\nlayer_norm()\nadd(x, linear(3, in_features=8))", ("B", "T", 3), None),
    ],
)  # fmt: skip
def test_the_width_comes_from_either_side(text, input, output):
    plan = iso.resolve(text, input=input, output=output)
    for node in plan.nodes:
        if node.operator.name == "transformer_block":
            (_, x), (out,) = node.inputs[0], node.outputs
            assert plan.values[x].shape == plan.values[out].shape
            assert [str(size) for size in plan.values[out].shape] == ["B", "T", "8"]


def test_blocks_stack_by_repetition():
    written = "transformer_block(2, name='block0')\ntransformer_block(2, name='block1')"
    loop = "for _ in range(2):\n    transformer_block(2, name='block')"
    one, two = (iso.resolve(text, input=("B", "T", 8)) for text in (written, loop))
    assert one == two
    assert str(two) == (
        "Network: [B, T, 8] -> [B, T, 8]  dtype=float32\n"
        "index  name    operation          input shapes  output shapes\n"
        "0      block0  transformer_block  x=[B, T, 8]   out=[B, T, 8]\n"
        "1      block1  transformer_block  x=[B, T, 8]   out=[B, T, 8]"
    )


def test_the_width_must_be_a_number():
    assert refusal("transformer_block(2)", "B", "T", "D") == (
        "E_UNRESOLVED: transformer_block: D is D, which is not known until run time, but it must be a number\n"
        "  <definition>:1:1\n"
        "  1 | transformer_block(2)\n"
        "    | ^\n"
        "  D=D comes from input x[B, T, D]\n"
        "  give a number for D"
    )


def test_it_keeps_its_shape():
    assert refusal("transformer_block(2)", "B", 8, 32, output=("B", 8, 16)) == (
        "E_CONSTRAINT: the output is [B, 8, 32], the contract says [B, 8, 16]\n"
        "  <definition>:1:1\n"
        "  1 | transformer_block(2)\n"
        "    | ^\n"
        "  axis 2: 32 comes from input x[B, 8, 32]\n"
        "  axis 2: 16 is required by the output contract"
    )


@pytest.mark.parametrize("shape", [("B", 32), ("B", 3, 8, 32)])
def test_it_takes_three_axes(shape):
    rank, written = len(shape), ", ".join(map(str, shape))
    assert refusal("transformer_block(2)", *shape).startswith(
        f"E_CONSTRAINT: transformer_block takes x[B, T, D] (rank 3), got [{written}] (rank {rank})\n"
    )


def test_it_takes_the_compute_dtype():
    assert refusal("transformer_block(2)", "B", 8, 32, input_dtype="int64").startswith("E_DTYPE: ")


# -- ports and arguments ---------------------------------------------------------------------------


def test_there_is_no_padding_mask():
    text = 'x = input("B", "T", 8)\nm = input("B", "T", dtype="bool")\ntransformer_block(2, mask=m)'
    assert refusal(text) == (
        "E_BINDING: transformer_block has no input 'mask'; it takes x\n"
        "  <definition>:3:27\n"
        "  3 | transformer_block(2, mask=m)\n"
        "    |                           ^"
    )


def test_ports():
    signature = iso.resolve("transformer_block(2)", input=("B", 5, 8)).nodes[0].operator.signature
    (x,), (out,) = signature.inputs, signature.outputs
    assert (x.name, x.optional, out.name) == ("x", False, "out")


def test_identity_and_category():
    operator = iso.resolve("transformer_block(2)", input=("B", 5, 8)).nodes[0].operator
    assert (operator.identity, operator.category) == ("transformer_block@1", "sequence")
    assert operator.argument_values == {
        "heads": 2, "mlp_ratio": 4, "activation": "gelu", "norm": "layer_norm", "causal": False,
        "dropout": 0.0, "layer_scale": False, "layer_scale_init": 1e-05, "eps": 1e-05,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "transformer_block needs the argument heads (int, >= 1)"),
        ("0", "transformer_block: heads must be >= 1, got 0"),
        ("-2", "transformer_block: heads must be >= 1, got -2"),
        ("2.0", "transformer_block: heads must be an int, got 2.0"),
        ("True", "transformer_block: heads must be an int, got True"),
        ("2, 4", "transformer_block takes 1 positional argument (heads), got 2"),
        ("2, heads=2", "transformer_block: heads is given by position and by keyword"),
        ("2, mlp_ratio=0", "transformer_block: mlp_ratio must be >= 1, got 0"),
        ("2, mlp_ratio=2.5", "transformer_block: mlp_ratio must be an int, got 2.5"),
        (
            '2, activation="gelo"',
            "transformer_block: activation must be one of gelu, gelu_tanh, relu, silu, quick_gelu, got 'gelo'",
        ),
        (
            '2, norm="batch_norm"',
            "transformer_block: norm must be one of layer_norm, rms_norm, got 'batch_norm'",
        ),
        ("2, causal=1", "transformer_block: causal must be True or False, got 1"),
        ("2, dropout=1.0", "transformer_block: dropout must be >= 0 and < 1, got 1.0"),
        ("2, dropout=-0.1", "transformer_block: dropout must be >= 0 and < 1, got -0.1"),
        ("2, layer_scale=1", "transformer_block: layer_scale must be True or False, got 1"),
        ("2, layer_scale_init=-1.0", "transformer_block: layer_scale_init must be >= 0, got -1.0"),
        ("2, eps=0.0", "transformer_block: eps must be > 0, got 0.0"),
        ("2, eps=-1e-5", "transformer_block: eps must be > 0, got -1e-05"),
        (
            "2, rope=True",
            "transformer_block has no argument 'rope'; it takes: heads, mlp_ratio, activation, norm, causal, "
            "dropout, layer_scale, layer_scale_init, eps",
        ),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    assert refusal(f"transformer_block({arguments})", "B", 8, 32).splitlines()[0] == f"E_ARGUMENT: {message}"


@pytest.mark.parametrize(
    "arguments",
    ["1", "heads=8", "2, dropout=0.999", "2, layer_scale_init=0.0", "2, eps=1e-30", "2, dropout=0"],
)
def test_arguments_at_the_edge(arguments):
    assert iso.resolve(f"transformer_block({arguments})", input=("B", 8, 32)).nodes


def test_only_heads_comes_by_position():
    assert refusal("transformer_block(2, 4)", "B", 8, 32) == (
        "E_ARGUMENT: transformer_block takes 1 positional argument (heads), got 2\n"
        "  <definition>:1:22\n"
        "  1 | transformer_block(2, 4)\n"
        "    |                      ^\n"
        "  give the others by keyword: mlp_ratio, activation, norm, causal, dropout, layer_scale, "
        "layer_scale_init, eps"
    )
    assert refusal("relu(1)", "B", 8).endswith("^")  # which has nothing to give by keyword
