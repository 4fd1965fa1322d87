"""Plans from definitions: tables to the letter, both directions, and whole error messages."""

from __future__ import annotations

import json
import pickle
from hashlib import sha256
from typing import Any

import pytest

import isomorph as iso


def table(text: str, **arguments: Any) -> str:
    plan = iso.resolve(text, **arguments)
    return f"{plan}\n\nParameters: {plan.parameter_count:,}"


def error(text: str, **arguments: Any) -> str:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve(text, **arguments)
    return str(caught.value)


# -- tables ------------------------------------------------------------------------------------------


def test_one_block() -> None:
    assert table("transformer_block(4)", input=("B", 8, 32)) == (
        "Network: [B, 8, 32] -> [B, 8, 32]  dtype=float32\n"
        "index  name  operation          input shapes  output shapes\n"
        "0      n0    transformer_block  x=[B, 8, 32]  out=[B, 8, 32]\n"
        "\n"
        "Parameters: 12,704"
    )


def test_two_blocks() -> None:
    line = 'transformer_block(2, causal=True, norm="rms_norm")\n'
    assert table(line + line, input=("B", 6, 16)) == (
        "Network: [B, 6, 16] -> [B, 6, 16]  dtype=float32\n"
        "index  name  operation          input shapes  output shapes\n"
        "0      n0    transformer_block  x=[B, 6, 16]  out=[B, 6, 16]\n"
        "1      n1    transformer_block  x=[B, 6, 16]  out=[B, 6, 16]\n"
        "\n"
        "Parameters: 6,496"
    )


def test_a_width_from_the_output_contract() -> None:
    text = "linear(16)\ntransformer_block(2, mlp_ratio=2, layer_scale=True)\nlinear()\n"
    assert table(text, input=("B", 6, 8), output=("B", 6, 8)) == (
        "Network: [B, 6, 8] -> [B, 6, 8]  dtype=float32\n"
        "index  name  operation          input shapes  output shapes\n"
        "0      n0    linear             x=[B, 6, 8]   out=[B, 6, 16]\n"
        "1      n1    transformer_block  x=[B, 6, 16]  out=[B, 6, 16]\n"
        "2      n2    linear             x=[B, 6, 16]  out=[B, 6, 8]\n"
        "\n"
        "Parameters: 2,536"
    )


def test_a_branching_graph_names_its_sources() -> None:
    text = """
z1, z2 = split(64, name="partition")
linear(z1, 128)
features = relu(name="features")
style = linear(z2, 128)
add(features, style)
"""
    assert str(iso.resolve(text, input=("B", 128))) == (
        "Network: [B, 128] -> [B, 128]  dtype=float32\n"
        "index  name       operation  input shapes                        output shapes\n"
        "0      partition  split      x=input:[B, 128]                    first=[B, 64], rest=[B, 64]\n"
        "1      n1         linear     x=partition.first:[B, 64]           out=[B, 128]\n"
        "2      features   relu       x=n1:[B, 128]                       out=[B, 128]\n"
        "3      n3         linear     x=partition.rest:[B, 64]            out=[B, 128]\n"
        "4      n4         add        a=features:[B, 128], b=n3:[B, 128]  out=[B, 128]"
    )


def test_named_contracts_in_the_header() -> None:
    text = """
plane = linear(y, 784)
label = reshape(plane, 1, 28, 28)
concat(x, label)
features = flatten()
logits = linear(1)
"""
    plan = iso.resolve(
        text,
        input={"x": ("B", 1, 28, 28), "y": ("B", 10)},
        output={"logits": ("B", 1), "features": ("B", 1568)},
    )
    assert str(plan).splitlines()[0] == (
        "Network: x=[B, 1, 28, 28], y=[B, 10] -> logits=[B, 1], features=[B, 1568]  dtype=float32"
    )


def test_dtypes_and_bounds_in_the_header() -> None:
    plan = iso.resolve("embedding(9, 4)\npos_embed(1024)", input=("B", "T"), input_dtype="int64")
    lines = str(plan).splitlines()
    assert lines[0] == "Network: [B, T] -> [B, T, 4]  dtype=float32  input_dtype=int64"
    assert lines[-1] == "where T <= 1024"
    text = "h = embedding(ids, 9, 4)\nattention(h, 2, mask=mask)"
    plan = iso.resolve(
        text, input={"ids": ("B", "T"), "mask": ("B", "T")}, input_dtype={"ids": "int64", "mask": "bool"}
    )
    assert str(plan).splitlines()[0] == (
        "Network: ids=[B, T], mask=[B, T] -> [B, T, 4]  dtype=float32  input_dtype=ids:int64  input_dtype=mask:bool"
    )


# -- both directions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shapes", "node", "expected"),
    [
        ("linear()", (("B", 64), ("B", 10)), 0, ("B", 10)),
        ("linear()\ntransformer_block(4)\nlinear(3, in_features=12)", (("B", 5, 8), None), 0, ("B", 5, 12)),
        ("linear()\nreshape(512)\ntransformer_block(2)", (("B", 64), ("B", 512, 4)), 0, ("B", 2048)),
        ("linear()\nreshape(512)", (("B", 128), ("B", 512, 4, 4)), 0, ("B", 8192)),
        ("reshape(16)", (("B", 64), ("B", 16, 4)), 0, ("B", 16, 4)),
        ("reshape(16)\nlinear(3)", (("B", 64), None), 0, ("B", 16, 4)),
        ("a, b = split()\nadd(a, b)", (("B", 160), None), 0, ("B", 80)),
        ("a, b = split()\nlinear(a, 3, in_features=7)\nadd(linear(b, 3), n)", None, 0, ("B", 7)),
        ("h = linear(5)\nconcat(h, linear())", (("B", 4), ("B", 12)), 1, ("B", 7)),
        ("linear()\nflatten()\nlinear(2, in_features=30)", (("B", 5, 3), None), 0, ("B", 5, 6)),
        ("patch_embed(patch_size=4)\ntransformer_block(2)", (("B", 3, 8, 12), ("B", 6, 10)), 0, ("B", 6, 10)),
        ("linear()\nreshape(3)\npatch_embed(8, 2)", (("B", 5), ("B", 1, 8)), 0, ("B", 12)),
        ("embedding(7)\ntransformer_block(3)\nlinear(2, in_features=9)", "ids", 0, ("B", "T", 9)),
        ("reshape()\ntransformer_block(12)", (("B", 12), None), 0, ("B", 1, 12)),
        ("transpose(1, 2)\nlinear()\ntranspose(1, 2)", (("B", 3, 4), ("B", 6, 4)), 1, ("B", 4, 6)),
    ],
)
def test_sizes_come_from_either_side(text: str, shapes: Any, node: int, expected: tuple[Any, ...]) -> None:
    if shapes is None:
        text = "a, b = split()\nn = linear(a, 3, in_features=7)\nadd(linear(b, 3), n)"
        shapes = (("B", 12), None)
    dtype = "int64" if shapes == "ids" else None
    shapes = (("B", "T"), None) if shapes == "ids" else shapes
    plan = iso.resolve(text, input=shapes[0], output=shapes[1], input_dtype=dtype)
    found = plan.values[plan.nodes[node].outputs[0]].shape
    assert tuple(size if type(size) is int else str(size) for size in found) == expected


def test_every_argument_is_known_afterwards() -> None:
    plan = iso.resolve("linear()", input=("B", 4), output=("B", 6))
    assert plan.nodes[0].operator.argument_values == {"out_features": 6, "in_features": 4, "bias": True}


def test_symbolic_lengths_are_affine() -> None:
    plan = iso.resolve("cls_token()\npos_embed(9)", input=("B", "T", 4))
    assert str(plan).splitlines()[0] == "Network: [B, T, 4] -> [B, T+1, 4]  dtype=float32"
    assert plan.bounds["T"] == (0, 8)  # T + 1 <= 9
    plan = iso.resolve("concat(x, x, axis=0)", input=("B", "T", 4))
    assert str(plan).splitlines()[0] == "Network: [B, T, 4] -> [2*B, T, 4]  dtype=float32"
    plan = iso.resolve("a, b = split(3)\nconcat(b, a)", input=("B", "T", 4))
    assert plan.bounds["T"] == (4, None)  # both parts hold something: T - 3 >= 1


def test_any_symbol_at_run_time() -> None:
    assert error("flatten()\nlinear(3)", input=("B", "T", 4)) == (
        "E_UNRESOLVED: linear: D_in is 4*T, which is not known until run time, but it must be a number\n"
        "  <definition>:2:1\n"
        "  2 | linear(3)\n"
        "    | ^\n"
        "  D_in=4*T comes from n0 (flatten) (line 1)\n"
        "  give a number for 4*T"
    )


def test_a_product_of_symbols_is_no_size() -> None:
    assert error("flatten()", input=("B", "T", "S+1", 4)) == (
        "E_UNRESOLVED: flatten: T * (S+1) is no size: both factors are known at run time alone\n"
        "  <definition>:1:1\n"
        "  1 | flatten()\n"
        "    | ^\n"
        "  give a number for all but one of them"
    )


# -- the three outcomes ----------------------------------------------------------------------------------


def test_heads_that_do_not_divide() -> None:
    assert error("relu()\ntransformer_block(3)", input=("B", 8, 32), file="encoder.net") == (
        "E_CONSTRAINT: heads=3 does not divide the model width D=32\n"
        "  encoder.net:2:19\n"
        "  2 | transformer_block(3)\n"
        "    |                   ^\n"
        "  D=32 comes from input x[B, 8, 32]\n"
        "  heads that divide 32: 1, 2, 4, 8, 16, 32"
    )


def test_the_width_behind_a_conflict_is_named() -> None:
    assert error("linear(12)\nrelu()\ntransformer_block(heads=5)", input=("B", 8, 32)) == (
        "E_CONSTRAINT: heads=5 does not divide the model width D=12\n"
        "  <definition>:3:25\n"
        "  3 | transformer_block(heads=5)\n"
        "    |                         ^\n"
        "  D=12 comes from n0 = linear(out_features=12) (line 1)\n"
        "  heads that divide 12: 1, 2, 3, 4, 6, 12"
    )


def test_the_story_of_a_size_that_came_from_below() -> None:
    text = "linear()\nrelu()\ntransformer_block(5)\nlinear(3, in_features=12)"
    assert error(text, input=("B", 8, 32)) == (
        "E_CONSTRAINT: heads=5 does not divide the model width D=12\n"
        "  <definition>:3:19\n"
        "  3 | transformer_block(5)\n"
        "    |                   ^\n"
        "  D=12 comes from n0 (linear) (line 1), as n3 = linear(in_features=12) (line 4) requires\n"
        "  heads that divide 12: 1, 2, 3, 4, 6, 12"
    )
    assert error("linear()\ntransformer_block(5)", input=("B", 8, 32), output=("B", 8, 12)) == (
        "E_CONSTRAINT: heads=5 does not divide the model width D=12\n"
        "  <definition>:2:19\n"
        "  2 | transformer_block(5)\n"
        "    |                   ^\n"
        "  D=12 comes from n0 (linear) (line 1), as the output contract requires\n"
        "  heads that divide 12: 1, 2, 3, 4, 6, 12"
    )


def test_contradiction_with_the_output() -> None:
    assert error("linear(5)", input=("B", "T", 8), output=("B", "T", 6)) == (
        "E_CONSTRAINT: the output is [B, T, 5], the contract says [B, T, 6]\n"
        "  <definition>:1:1\n"
        "  1 | linear(5)\n"
        "    | ^\n"
        "  axis 2: 5 comes from n0 = linear(out_features=5) (line 1)\n"
        "  axis 2: 6 is required by the output contract"
    )


def test_contradiction_between_two_inputs() -> None:
    assert error("h = linear(7)\nadd(h, x)", input=("B", 8, 6)) == (
        "E_CONSTRAINT: add: a=[B, 8, 7] and b=[B, 8, 6] differ in axis 2 (7 and 6)\n"
        "  <definition>:2:1\n"
        "  2 | add(h, x)\n"
        "    | ^\n"
        "  7 comes from n0 = linear(out_features=7) (line 1)\n"
        "  6 comes from input x[B, 8, 6]"
    )


def test_contradiction_with_an_argument() -> None:
    assert error("relu()\nlinear(3, in_features=9)", input=("B", 8)) == (
        "E_CONSTRAINT: linear: in_features=9 but x=[B, 8] has size 8 there\n"
        "  <definition>:2:23\n"
        "  2 | linear(3, in_features=9)\n"
        "    |                       ^\n"
        "  8 comes from input x[B, 8]"
    )


def test_wrong_rank() -> None:
    assert error("linear(8)\ntransformer_block(2)", input=("B", 4)) == (
        "E_CONSTRAINT: transformer_block takes x[B, T, D] (rank 3), got [B, 8] (rank 2)\n"
        "  <definition>:2:1\n"
        "  2 | transformer_block(2)\n"
        "    | ^\n"
        "  n0 (linear) makes [B, 8] (line 1)"
    )


def test_several_answers() -> None:
    assert error("a, b = split()\nconcat(b, a)", input=("B", 8)) == (
        "E_AMBIGUOUS: n0 (split): size may be 1 or 2\n"
        "  <definition>:1:8\n"
        "  1 | a, b = split()\n"
        "    |        ^\n"
        "  give it, as in split(1)"
    )
    assert error("reshape(16)", input=("B", 64)).startswith(
        "E_AMBIGUOUS: reshape gives [B, 16, ...] for 64 elements per example"
    )
    assert error("reshape()\ntransformer_block(4)", input=("B", 12)).startswith("E_AMBIGUOUS: ")


def test_a_candidate_is_an_example_and_no_fact() -> None:
    assert error("reshape()\nattention(5)", input=("B", 64)) == (
        "E_CONSTRAINT: no choice of the open sizes fits; "
        "one of them fails because heads=5 does not divide the model width D=64\n"
        "  <definition>:2:11\n"
        "  2 | attention(5)\n"
        "    |           ^\n"
        "  open: the size of axis 1 of n0 (reshape) (line 1)\n"
        "  open: the size of axis 2 of n0 (reshape) (line 1)"
    )
    text = "concat(attention(linear(x), 7), attention(linear(x), 7), axis=2)"
    assert error(text, input=("B", 4, 3), output=("B", 4, 8)).startswith(
        "E_CONSTRAINT: no choice of the open sizes fits; one of them fails because heads=7 does not divide"
    )


def test_a_contract_that_no_sizes_meet() -> None:
    text = "a = linear(x)\nb = concat(a, a)\nc = linear(x)\nd = concat(c, c)\nconcat(b, d)"
    assert error(text, input=("B", 3), output=("B", 7)) == (
        "E_CONSTRAINT: no choice of the open sizes fits; one of them fails because "
        "2*?+2 cannot be 7 (not a whole multiple of 2), as the output contract requires\n"
        "  <definition>:5:1\n"
        "  5 | concat(b, d)\n"
        "    | ^\n"
        "  open: out_features of n0 (linear) (line 1)\n"
        "  open: out_features of n2 (linear) (line 3)"
    )


def test_two_open_shapes_in_a_row_are_ambiguous() -> None:
    assert error("reshape()\nreshape()\nattention(2)", input=("B", 64)).startswith(
        "E_AMBIGUOUS: n1 (reshape): the size of axis 1 may be 1 or 2\n"
    )


def test_a_size_that_another_call_relays() -> None:
    text = "h = linear()\nadd(h, linear(x, 5))\ntransformer_block(3)"
    assert (
        "D=5 comes from n0 (linear) (line 1), as n2 (add) (line 2) requires, "
        "where it comes from n1 = linear(out_features=5) (line 2)"
    ) in error(text, input=("B", 4, 3))
    assert "D=6 comes from input x[B, 6, 7]" in error("transpose(1, 2)\nattention(5)", input=("B", 6, 7))
    assert "D=7 comes from input x[B, 6, 5, 7]" in error("mean(2)\nattention(5)", input=("B", 6, 5, 7))


def test_bounds_that_contradict_each_other() -> None:
    assert error("a, b = split(9)\nconcat(a, b)\npos_embed(5)", input=("B", "T", 7)) == (
        "E_CONSTRAINT: T would have to be at least 10 and at most 5\n"
        "  <definition>:1:8\n"
        "  1 | a, b = split(9)\n"
        "    |        ^\n"
        "  input x is [B, T, 7]\n"
        "  n2 (pos_embed) (line 3) needs T to be at most 5\n"
        "  n0 (split) (line 1) needs T-9 to be at least 1"
    )


def test_a_bound_filters_what_a_size_may_be() -> None:
    plan = iso.resolve("reshape()\npos_embed(1)\nattention(2)", input=("B", 12))
    assert plan.values[1].shape[1:] == (1, 12)  # T * D = 12 and T <= 1


def test_a_size_found_late_is_held_to_its_bound() -> None:
    assert error("reshape()\npos_embed(3)", input=("B", 8), output=("B", 4, 2)) == (
        "E_CONSTRAINT: T=4 exceeds max_len=3\n"
        "  <definition>:2:11\n"
        "  2 | pos_embed(3)\n"
        "    |           ^\n"
        "  T=4 comes from n0 (reshape) (line 1), as the output contract requires"
    )


def test_ties_in_a_ring() -> None:
    assert error('linear(8, name="a", tie={"weight": "a.weight"})', input=("B", 8)).startswith(
        "E_ARGUMENT: tie of weight: a parameter cannot be tied to itself\n"
    )
    ring = 'linear(8, name="a", tie={"weight": "b.weight"})\nlinear(8, name="b", tie={"weight": "a.weight"})'
    assert error(ring, input=("B", 8)).endswith("one of the two must hold the parameter")


def test_no_answer() -> None:
    assert error("linear()\nlinear(8)", input=("B", 4)) == (
        "E_UNRESOLVED: n0 (linear): nothing says what out_features is\n"
        "  <definition>:1:1\n"
        "  1 | linear()\n"
        "    | ^\n"
        "  give it, as in linear(64), or declare the output's shape"
    )


@pytest.mark.parametrize(
    ("code", "text", "arguments"),
    [
        ("E_CONSTRAINT", "linear()\nreshape(5)", {"input": ("B", 4), "output": ("B", 3, 2)}),
        ("E_CONSTRAINT", "reshape(5)", {"input": ("B", 64), "output": ("B", 5, 3)}),
        ("E_CONSTRAINT", "a, b = split()\nadd(a, b)", {"input": ("B", 7)}),
        ("E_CONSTRAINT", "split(9)\nrelu()", {"input": ("B", 8)}),
        ("E_CONSTRAINT", "pos_embed(4)", {"input": ("B", 5, 2)}),
        ("E_CONSTRAINT", "patch_embed(4, 3)", {"input": ("B", 1, 8, 9)}),
        ("E_CONSTRAINT", "linear(4)", {"input": ("B", "T", 8), "output": ("B", 5, 4)}),
        ("E_CONSTRAINT", "mean(0)", {"input": ("B", 5, 2)}),
        ("E_CONSTRAINT", "softmax(3)", {"input": ("B", 5, 2)}),
        ("E_AMBIGUOUS", "h = linear()\nconcat(h, linear())", {"input": ("B", 4), "output": ("B", 5)}),
        ("E_UNRESOLVED", "patch_embed(4, 2)", {"input": ("B", 1, "H", 8)}),
        ("E_UNRESOLVED", "flatten()", {"input": ("B", "T", "S")}),
        ("E_UNRESOLVED", "layer_norm()", {"input": ("B", 5, "D")}),
        ("E_OPERATOR", "linaer(4)", {"input": ("B", 4)}),
        ("E_ARGUMENT", "linear(heads=4)", {"input": ("B", 4)}),
        ("E_ARGUMENT", "linear(True)", {"input": ("B", 4)}),
        ("E_ARGUMENT", "linear(4.0)", {"input": ("B", 4)}),
        ("E_ARGUMENT", "linear(4, 5)", {"input": ("B", 4)}),
        ("E_ARGUMENT", "linear([4])", {"input": ("B", 4)}),
        ("E_ARGUMENT", "linear(0)", {"input": ("B", 4)}),
        ("E_ARGUMENT", "transformer_block()", {"input": ("B", 5, 4)}),
        ("E_ARGUMENT", "transformer_block(2, dropout=1)", {"input": ("B", 5, 4)}),
        ("E_ARGUMENT", "transformer_block(2, eps=0.0)", {"input": ("B", 5, 4)}),
        ("E_ARGUMENT", 'transformer_block(2, activation="gleu")', {"input": ("B", 5, 4)}),
        ("E_ARGUMENT", "transformer_block(2, causal=1)", {"input": ("B", 5, 4)}),
        ("E_ARGUMENT", "linear(4, out_features=4)", {"input": ("B", 4)}),
        ("E_BINDING", "add(x)", {"input": ("B", 4)}),
        ("E_BINDING", "linear(x, x, 4)", {"input": ("B", 4)}),
        ("E_BINDING", "a = split(2)", {"input": ("B", 4)}),
        ("E_BINDING", "split(2)\nrelu()", {"input": ("B", 4)}),
        ("E_BINDING", "h = linear(4)\nrelu(x)", {"input": ("B", 4)}),
        ("E_BINDING", "linear(a, 4)", {"input": {"a": ("B", 4), "b": ("B", 4)}}),
        ("E_BINDING", "linear(4)", {}),
        ("E_DTYPE", "linear(4)", {"input": ("B", 4), "input_dtype": "int64"}),
        ("E_DTYPE", "embedding(4, 3)", {"input": ("B", 4)}),
        ("E_DTYPE", "linear(4)", {"input": ("B", 4), "dtype": "float8"}),
        ("E_DTYPE", "linear(4)", {"input": ("B", 4), "input_dtype": "complex64"}),
        ("E_OUTPUT", "", {"input": ("B", 4)}),
        ("E_OUTPUT", "linear(4)", {"input": ("B", 4), "output": {"features": ("B", 4)}}),
        ("E_RESOURCE", "linear(2147483647)\nlinear(2147483647)", {"input": ("B", 4)}),
        ("E_RESOURCE", "relu()\n" * 5, {"input": ("B", 4), "limits": {"max_nodes": 4}}),
        ("E_RESOURCE", "linear(65)", {"input": ("B", 4), "limits": {"max_dimension": 64}}),
        ("E_RESOURCE", "linear(4)", {"input": ("B", 2**40)}),
        ("E_RESOURCE", "linear(100)", {"input": ("B", 100), "limits": {"max_parameter_bytes": 40_399}}),
        ("E_ARGUMENT", "linear(4)", {"input": ("B", 0)}),
        ("E_ARGUMENT", "linear(4)", {"input": ("B", -1)}),
        ("E_ARGUMENT", "linear(4)", {"input": ("B", None)}),
        ("E_ARGUMENT", "linear(4)", {"input": ("B", True)}),
        ("E_ARGUMENT", "linear(4)", {"input": "B, 4"}),
        ("E_ARGUMENT", "linear(4)", {"input": ("B", "T*S")}),
        ("E_ARGUMENT", "linear(4)", {"input": ()}),
        ("E_ARGUMENT", "linear(4)", {"input": ("B", 4), "limits": {"max_node": 4}}),
        ("E_ARGUMENT", "linear(4)", {"input": ("B", 4), "limits": {"max_nodes": 0}}),
        ("E_NAME", 'linear(4, name="train")', {"input": ("B", 4)}),
    ],
)
def test_codes(code: str, text: str, arguments: dict[str, Any]) -> None:
    assert error(text, **arguments).startswith(code + ": ")


def test_enough_parameter_bytes() -> None:
    plan = iso.resolve("linear(100)", input=("B", 100), limits={"max_parameter_bytes": 40_400})
    assert plan.parameter_count == 10_100  # 100 * 100 + 100, four bytes each


# -- what a call says of its parameters --------------------------------------------------------------------


def test_init_trainable_tie() -> None:
    text = """
ids = input("B", "T", dtype="int64")
embedding(11, 8, name="wte", init={"weight": normal(std=0.02)})
transformer_block(2, layer_scale=True, init={"gamma1": 0.1}, trainable={"attn": False, "attn.q_proj": True}, name="block")
linear(11, bias=False, tie={"weight": "wte.weight"}, name="head")
"""
    plan = iso.resolve(text)
    by_path = {p.path: p for p in plan.parameters}
    assert str(by_path["wte.weight"].initial) == "normal(mean=0.0, std=0.02)"
    assert str(by_path["block.gamma1"].initial) == "constant(value=0.1)"
    assert str(by_path["block.gamma2"].initial) == "constant(value=1e-05)"
    assert not by_path["block.attn.k_proj.weight"].trainable
    assert by_path["block.attn.q_proj.weight"].trainable
    assert by_path["block.norm1.weight"].trainable
    assert "head.weight" not in by_path
    assert plan.ties == {"head.weight": "wte.weight"}
    block = 12 * 8 * 8 + 13 * 8 + 2 * 8  # 4 DD + 8 DD; 4 + 5 + 4 vectors of D; two gains
    assert plan.parameter_count == 11 * 8 + block


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("E_ARGUMENT", 'init={"gama1": 0.1}'),
        ("E_ARGUMENT", 'init={"weight": "normal"}'),
        ("E_ARGUMENT", 'init={"bias": xavier_uniform()}'),
        ("E_ARGUMENT", 'init={"weight": normal(sd=1)}'),
        ("E_ARGUMENT", 'init={"weight": normal(std=-1)}'),
        ("E_ARGUMENT", 'trainable={"wieght": False}'),
        ("E_ARGUMENT", 'trainable={"weight": 1}'),
        ("E_ARGUMENT", "trainable=1"),
        ("E_ARGUMENT", 'tie={"weight": "n9.weight"}'),
        ("E_ARGUMENT", 'tie={"weight": "n0.weight"}'),
        ("E_ARGUMENT", 'tie={"wieght": "other.weight"}'),
        ("E_CONSTRAINT", 'tie={"weight": "other.weight"}'),
    ],
)
def test_bad_parameter_options(code: str, extra: str) -> None:
    text = f'linear(4, {extra})\nlinear(9, name="other")'
    assert error(text, input=("B", 3)).startswith(code + ": ")


def test_nearest_paths_are_offered() -> None:
    assert error('linear(4, init={"wieght": 0.1})', input=("B", 3)) == (
        "E_ARGUMENT: linear: init names 'wieght', which is no parameter of it\n"
        "  <definition>:1:16\n"
        '  1 | linear(4, init={"wieght": 0.1})\n'
        "    |                ^\n"
        "  did you mean weight?"
    )


# -- plans ---------------------------------------------------------------------------------------------


TEXT = 'h = linear(16)\ntransformer_block(2, init={"norm1.weight": 0.5})\nadd(h, linear(16))\nlinear(trainable=False)'


def test_json_round_trip() -> None:
    plan = iso.resolve(TEXT, input=("B", "T", 8), output=("B", "T", 4), dtype="bfloat16")
    back = iso.Plan.from_json(plan.to_json())
    assert back == plan
    assert back.to_json() == plan.to_json()
    assert str(back) == str(plan)
    assert back.parameters == plan.parameters


def test_pickle_round_trip() -> None:
    plan = iso.resolve("transformer_block(2)\ncls_token()", input=("B", "T", 8))
    back = pickle.loads(pickle.dumps(plan.to_json()))
    assert iso.Plan.from_json(back) == plan


@pytest.mark.parametrize("place", [0, 5, 20, 90, 120, 300, -2, -1])
def test_a_changed_byte_is_refused(place: int) -> None:
    text = iso.resolve(TEXT, input=("B", "T", 8), output=("B", "T", 4)).to_json()
    changed = text[:place] + chr(ord(text[place]) ^ 1) + text[place:][1:]
    with pytest.raises(iso.IsomorphError) as caught:
        iso.Plan.from_json(changed)
    assert caught.value.code == "E_INTEGRITY"


def forged(change: Any) -> str:
    """A plan altered by someone who can compute digests."""
    data = json.loads(iso.resolve(TEXT, input=("B", "T", 8), output=("B", "T", 4)).to_json())["plan"]
    change(data)
    body = json.dumps(data, separators=(",", ":"))
    return f'{{"digest":"sha256:{sha256(body.encode()).hexdigest()}","plan":{body}}}'


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(dtype="float31"),
        lambda data: data.update(values=[]),
        lambda data: data.update(inputs=[["x", 99]]),
        lambda data: data.update(outputs=[["", -1]]),
        lambda data: data.update(outputs=[]),
        lambda data: data.update(bounds={"T": ["a", "b"]}),
        lambda data: data.update(definition="input('B', 3)\nrelu()"),
        lambda data: data.update(definition=5),
        lambda data: data.update(nodes=5),
        lambda data: data["nodes"][0].update(name="a.b"),
        lambda data: data["nodes"][0]["sizes"].update(D_in=-4),
        lambda data: data["nodes"][0]["sizes"].update(D_in="abc"),
        lambda data: data["nodes"][0]["sizes"].update(D_in=10**12),
        lambda data: data["nodes"][0].update(trainable="abc"),
        lambda data: data["nodes"][0].update(tie={"zzz": "n1.weight"}),
        lambda data: data["nodes"][0].update(init={"zzz": {"scheme": "constant", "value": 1}}),
        lambda data: data["nodes"][0].update(inputs=[["x", 4]]),
        lambda data: data["nodes"][0].update(operator=7),
    ],
)
def test_a_plan_that_no_definition_says_is_refused(change: Any) -> None:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.Plan.from_json(forged(change))
    assert caught.value.code in ("E_INTEGRITY", "E_ARGUMENT")


def test_a_read_plan_is_held_to_limits() -> None:
    text = iso.resolve("linear(100)", input=("B", 100)).to_json()
    with pytest.raises(iso.IsomorphError) as caught:
        iso.Plan.from_json(text, limits={"max_parameter_bytes": 40_399})
    assert caught.value.code == "E_RESOURCE"


@pytest.mark.parametrize("thing", [None, 5, {}, bytearray(b"{}")])
def test_a_plan_is_read_from_text_alone(thing: Any) -> None:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.Plan.from_json(thing)
    assert caught.value.code == "E_ARGUMENT"


def test_a_function_with_named_outputs_has_a_definition() -> None:
    def network(x: Any) -> dict[str, Any]:
        features = iso.ops.linear(6)
        return {"logits": iso.ops.linear(3), "features": features}

    plan = iso.resolve_function(network, input=("B", 4))
    assert [name for name, _ in plan.outputs] == ["logits", "features"]
    assert iso.resolve(plan.definition) == plan


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, b"\xff\xfe", '{"digest":"sha256:', "null"])
def test_no_plan_at_all(text: str | bytes) -> None:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.Plan.from_json(text)
    assert caught.value.code == "E_INTEGRITY"


def test_the_definition_resolves_to_the_same_plan() -> None:
    plan = iso.resolve(TEXT, input=("B", "T", 8), output=("B", "T", 4))
    assert iso.resolve(plan.definition) == plan


def test_a_function_gives_the_same_plan() -> None:
    def network(x: Any) -> None:
        h = iso.ops.linear(16)
        iso.ops.transformer_block(2, init={"norm1.weight": 0.5})
        iso.ops.add(h, iso.ops.linear(16))
        iso.ops.linear(trainable=False)

    contracts: Any = {"input": ("B", "T", 8), "output": ("B", "T", 4)}
    plan = iso.resolve_function(network, **contracts)
    assert plan == iso.resolve(TEXT, **contracts)
    assert iso.resolve(plan.definition) == plan


def test_plans_are_immutable() -> None:
    plan = iso.resolve("linear(4)", input=("B", 3))
    with pytest.raises(AttributeError):
        plan.dtype = "float64"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        plan.nodes[0].name = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="linear is immutable"):
        plan.nodes[0].operator.bias = False  # type: ignore[attr-defined]


def test_differences_in_words() -> None:
    one = iso.resolve("linear(4)\nrelu()\nlinear(2)", input=("B", 3))
    other = iso.resolve("linear(5, bias=False)\ngelu()\nlinear(2)\nlinear(2)", input=("B", 3))
    assert one.diff(one) == []
    assert one.diff(other) == [
        "n3: added (linear)",
        "n0: out_features 4 became 5",
        "n0: bias True became False",
        "n0: outputs out=[B, 4] became out=[B, 5]",
        "n1: relu@1 became gelu@1",
        "n2: in_features 4 became 5",
        "n2: inputs x=n1:[B, 4] became x=n1:[B, 5]",
    ]


def test_a_loop_is_what_it_would_be_written_out() -> None:
    loop = 'for _ in range(3):\n    transformer_block(2, name="block")\n'
    written = "\n".join(f'transformer_block(2, name="block{i}")' for i in range(3))
    assert iso.resolve(loop, input=("B", 5, 4)) == iso.resolve(written, input=("B", 5, 4))


def test_deep_chains_of_open_sizes() -> None:
    text = "linear()\n" + "relu()\n" * 3000 + "h = relu()\n" + "add(h, relu())\n" * 3000
    plan = iso.resolve(text, input=("B", 3), output=("B", 5))
    assert plan.nodes[0].operator.argument_values["out_features"] == 5
    text = "reshape(2)\n" + "linear(4)\n" * 3000
    plan = iso.resolve(text, input=("B", 8), output=("B", 2, 4))
    assert len(plan.nodes) == 3001


def test_a_definition_that_cannot_be_read_is_no_syntax_error(tmp_path):
    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve_file(tmp_path / "no.net")
    assert str(caught.value) == (
        f"E_ARGUMENT: cannot read the definition {tmp_path / 'no.net'}: No such file or directory\n"
        "  give the path of a .net file"
    )
    with pytest.raises(iso.IsomorphError, match=r"E_ARGUMENT: cannot read the definition .*: Is a directory"):
        iso.resolve_file(tmp_path)


@pytest.mark.parametrize("size", [3, 1 << 20])
def test_an_archive_is_no_definition_whatever_its_size(tmp_path, size):
    """Below and above the limit of a definition's bytes."""
    np = pytest.importorskip("numpy")
    zeros = np.zeros(size, np.float32)
    np.savez(tmp_path / "data.npz", x=zeros)
    np.save(tmp_path / "data.npy", zeros)
    (tmp_path / "raw").write_bytes(zeros.tobytes() + b"linear(2)")
    for name, what in {
        "data.npz": "a zip archive, as numpy.savez and torch.save write them",
        "data.npy": "an array of numpy.save",
        "raw": "a binary file",
    }.items():
        with pytest.raises(iso.IsomorphError) as caught:
            iso.resolve_file(tmp_path / name, input=("B", 3))
        assert str(caught.value) == (
            f"E_ARGUMENT: {tmp_path / name} is {what}, and no definition\n"
            "  a definition is text, and ends in .net; a saved model ends in .safetensors"
        )
