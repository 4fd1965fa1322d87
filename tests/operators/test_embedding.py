"""Ids, images and positions: values by hand, shapes in both directions."""

from __future__ import annotations

from math import cos, sin

import numpy as np
import pytest

import isomorph as iso
from isomorph import reference
from isomorph.operators.embedding import Conv2d

TABLE = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def test_embedding_reads_rows(run):
    out = run("embedding(3, 2)", np.array([[2, 0]]), {"n0.weight": TABLE}, input_dtype="int64")
    np.testing.assert_array_equal(out, [[[5, 6], [1, 2]]])


@pytest.mark.parametrize("bad", [3, -1])
def test_an_id_outside_the_table_is_refused(run, bad):
    with pytest.raises(iso.IsomorphError) as caught:
        run("embedding(3, 2)", np.array([[0, bad]]), {"n0.weight": TABLE}, input_dtype="int64")
    assert caught.value.code == "E_RUNTIME"
    assert str(bad) in caught.value.message
    assert "3 rows" in caught.value.message


def test_embedding_width_from_either_side(shape_of):
    ids = {"input": ("B", "T"), "input_dtype": "int64"}
    assert shape_of("embedding(7)", output=("B", "T", 5), **ids) == ["B", "T", 5]
    assert shape_of("embedding(7)\nlinear(2, in_features=6)", **ids) == ["B", "T", 2]
    plan = iso.resolve("embedding(7)", output=("B", "T", 5), **ids)
    assert plan.nodes[0].operator.dim == 5
    assert [p.shape for p in plan.parameters] == [(7, 5)]


def test_embedding_takes_integers(error):
    found = error("embedding(7, 4)", input=("B", "T"))
    assert found.code == "E_DTYPE"


def test_embedding_width_unknown(error):
    assert error("embedding(7)", input=("B", "T"), input_dtype="int64").code == "E_UNRESOLVED"


def test_tied_table_scores_every_id(run):
    # h = [5, 6]; scores are its products with the rows: 1*5+2*6, 3*5+4*6, 5*5+6*6.
    definition = 'embedding(3, 2, name="wte")\nlinear(3, bias=False, tie={"weight": "wte.weight"})'
    out = run(definition, np.array([[2]]), {"wte.weight": TABLE}, input_dtype="int64")
    np.testing.assert_array_equal(out, [[[17, 39, 61]]])


def test_pos_embed_adds_the_first_rows(run):
    x = np.broadcast_to([[[10.0]], [[20.0]]], (2, 2, 2))
    out = run("pos_embed(3)", x, {"n0.weight": TABLE})
    np.testing.assert_array_equal(out, [[[11, 12], [13, 14]], [[21, 22], [23, 24]]])


def test_pos_embed_runs_up_to_its_bound():
    plan = iso.resolve("pos_embed(3)", input=("B", "T", 2))
    network = reference.build(plan, {"n0.weight": TABLE})
    for length in (0, 1, 3):
        np.testing.assert_array_equal(network(np.zeros((1, length, 2))), TABLE[None, :length])
    with pytest.raises(iso.IsomorphError) as caught:
        network(np.zeros((1, 4, 2)))
    assert caught.value.code == "E_RUNTIME"
    assert "T=4 must be at most 3" in caught.value.message
    assert str(plan).splitlines()[-1] == "where T <= 3"


def test_pos_embed_refuses_a_longer_sequence_at_once(error):
    found = error("pos_embed(3)", input=("B", 4, 2))
    assert found.code == "E_CONSTRAINT"
    assert found.message == "T=4 exceeds max_len=3"


def angles_of(order):
    # D = 4: frequencies 1 and 10000 ** (-2/4) = 0.01; position 1 turns by 1 and 0.01.
    s0, c0, s1, c1 = sin(1), cos(1), sin(0.01), cos(0.01)
    return {
        "sin_cos": [s0, c0, s1, c1],
        "cos_sin": [c0, s0, c1, s1],
        "sin_then_cos": [s0, s1, c0, c1],
    }[order]


@pytest.mark.parametrize("order", ["sin_cos", "cos_sin", "sin_then_cos"])
def test_sinusoidal_orders(run, order):
    out = run(f'sinusoidal_pos_embed(order="{order}")', np.full((1, 2, 4), 3.0))
    at_zero = {"sin_cos": [0, 1, 0, 1], "cos_sin": [1, 0, 1, 0], "sin_then_cos": [0, 0, 1, 1]}[order]
    np.testing.assert_allclose(out[0, 0], 3 + np.array(at_zero), rtol=1e-15)
    np.testing.assert_allclose(out[0, 1], 3 + np.array(angles_of(order)), rtol=1e-15)


def test_sinusoidal_max_period(run):
    # D = 4 and max_period 16: the second frequency is 16 ** -0.5 = 0.25.
    out = run("sinusoidal_pos_embed(max_period=16.0)", np.zeros((1, 3, 4)))
    np.testing.assert_allclose(out[0, 2], [sin(2), cos(2), sin(0.5), cos(0.5)], rtol=1e-15)


def test_sinusoidal_needs_pairs(error):
    found = error("sinusoidal_pos_embed()", input=("B", 4, 5))
    assert found.code == "E_CONSTRAINT"
    assert found.message == "sinusoidal_pos_embed needs an even width, got D=5"


def test_cls_token_comes_first(run, shape_of):
    out = run("cls_token()", [[[1.0, 2.0]], [[3.0, 4.0]]], {"n0.token": [[[7.0, 8.0]]]})
    np.testing.assert_array_equal(out, [[[7, 8], [1, 2]], [[7, 8], [3, 4]]])
    assert shape_of("cls_token()", input=("B", "T", 6)) == ["B", "T+1", 6]


def test_cls_token_of_an_empty_sequence(run):
    out = run("cls_token()", np.zeros((2, 0, 2)), {"n0.token": [[[7.0, 8.0]]]}, input=("B", "T", 2))
    np.testing.assert_array_equal(out, [[[7, 8]], [[7, 8]]])


def test_registers_come_first_in_their_order(run, shape_of):
    tokens = [[[7.0, 8.0], [9.0, 10.0]]]
    out = run("register_tokens(2)", [[[1.0, 2.0]], [[3.0, 4.0]]], {"n0.tokens": tokens})
    np.testing.assert_array_equal(out, [[[7, 8], [9, 10], [1, 2]], [[7, 8], [9, 10], [3, 4]]])
    assert shape_of("register_tokens(2)", input=("B", "T", 6)) == ["B", "T+2", 6]
    assert shape_of("register_tokens(2)\nlinear(3, in_features=6)", input=("B", 4, 6)) == ["B", 6, 3]


def test_registers_of_an_empty_sequence(run):
    tokens = [[[7.0, 8.0], [9.0, 10.0]]]
    out = run("register_tokens(2)", np.zeros((1, 0, 2)), {"n0.tokens": tokens}, input=("B", "T", 2))
    np.testing.assert_array_equal(out, tokens)
    assert run("register_tokens(2)", np.zeros((0, 3, 2)), {"n0.tokens": tokens}).shape == (0, 5, 2)


def test_a_count_of_registers_is_at_least_one(error):
    found = error("register_tokens(0)", input=("B", 4, 6))
    assert (found.code, found.message) == ("E_ARGUMENT", "register_tokens: count must be >= 1, got 0")


def test_patches_are_row_major(run):
    # A 4x4 image of 0..15 and 2x2 patches. Feature 0 reads a patch's top left pixel plus 100, feature 1
    # its bottom left one: patches start at 0, 2, 8, 10 and their second rows four later.
    weight = np.zeros((2, 1, 2, 2))
    weight[0, 0, 0, 0] = weight[1, 0, 1, 0] = 1
    image = np.arange(16.0).reshape(1, 1, 4, 4)
    out = run("patch_embed(2, 2)", image, {"n0.proj.weight": weight, "n0.proj.bias": [100, 0]})
    np.testing.assert_array_equal(out, [[[100, 4], [102, 6], [108, 12], [110, 14]]])


def test_patch_channels_are_summed(run):
    image = np.stack([np.full((2, 2), 1.0), np.full((2, 2), 10.0)])[None]
    weight = np.ones((1, 2, 2, 2))
    weight[0, 1] = 2
    out = run("patch_embed(1, 2)", image, {"n0.proj.weight": weight, "n0.proj.bias": [0.5]})
    np.testing.assert_array_equal(out, [[[4 * 1 + 4 * 20 + 0.5]]])


def test_patches_without_a_bias():
    plan = iso.resolve("patch_embed(2, 2, bias=False)", input=("B", 1, 4, 4))
    weight = np.zeros((2, 1, 2, 2))
    weight[0, 0, 0, 0] = weight[1, 0, 1, 0] = 1
    assert [p.path for p in plan.parameters] == ["n0.proj.weight"]
    out = reference.build(plan, {"n0.proj.weight": weight})(np.arange(16.0).reshape(1, 1, 4, 4))
    np.testing.assert_array_equal(out, [[[0, 4], [2, 6], [8, 12], [10, 14]]])


def test_patch_embed_resolves_backwards():
    plan = iso.resolve("patch_embed(patch_size=2)", input=("B", 3, 4, 6), output=("B", 6, 5))
    operator = plan.nodes[0].operator
    assert (operator.dim, operator.patch_size, operator.in_channels) == (5, 2, 3)
    assert {p.path: p.shape for p in plan.parameters} == {
        "n0.proj.weight": (5, 3, 2, 2),
        "n0.proj.bias": (5,),
    }


def test_patch_size_must_divide_the_image(error):
    found = error("patch_embed(8, 3)", input=("B", 1, 6, 4))
    assert str(found) == (
        "E_CONSTRAINT: patch_size=3 does not divide the image's width W=4\n"
        "  <definition>:1:16\n"
        "  1 | patch_embed(8, 3)\n"
        "    |                ^\n"
        "  W=4 comes from input x[B, 1, 6, 4]\n"
        "  patch sizes that divide 6 and 4: 1, 2"
    )


def test_patches_of_an_unknown_image(error):
    assert error("patch_embed(8, 2)", input=("B", 1, "H", 4)).code == "E_UNRESOLVED"


def test_patch_projection_starts_uniform_in_its_fan_in():
    # fan_in = 3 * 2 * 2 = 12
    spec = Conv2d.of(C=3, D=5, kernel_size=2, stride=2).all_parameters
    assert spec["weight"].initial.high == spec["bias"].initial.high == 12**-0.5


def test_sinusoidal_period_is_one_at_least(error):
    found = error("sinusoidal_pos_embed(max_period=5e-324)", input=("B", 3, 4))
    assert (found.code, found.message) == (
        "E_ARGUMENT", "sinusoidal_pos_embed: max_period must be >= 1, got 5e-324",
    )  # fmt: skip
