"""Costs by hand arithmetic."""

import pytest

from isomorph.display.cost import CostRow, cost
from isomorph.errors import IsomorphError
from isomorph.plan.resolve import resolve


def test_a_chain():
    plan = resolve("linear(3)\nrelu()", input=("B", "T", 2), dtype="bfloat16")
    found = cost(plan, {"B": 5, "T": 7})
    positions = 35
    assert found.sizes == {"B": 5, "T": 7}
    assert found.rows == (
        CostRow("n0", "linear", 9, 18, positions * (2 * 2 * 3 + 3), positions * 3 * 2, 0, 0),
        CostRow("n1", "relu", 0, 0, positions * 3, positions * 3 * 2, 0, 0),
    )
    assert found.total == CostRow("total", "", 9, 18, positions * 18, positions * 12, 0, 0)


def test_default_sizes_are_one_example_at_the_bound_or_128():
    plan = resolve("pos_embed(6)", input=("B", "T", 2))
    assert cost(plan).sizes == {"B": 1, "T": 6}
    assert cost(plan).total.flops == 12
    assert cost(resolve("relu()", input=("B", "T", 2))).total.flops == 256


def test_the_cache_of_grouped_causal_attention():
    plan = resolve("attention(4, causal=True, kv_heads=2, bias=False)\nattention(4)", input=("B", "T", 16))
    found = cost(plan, {"B": 3, "T": 10})
    # 2 tensors, 2 key/value heads of width 4, 3 examples, 4 bytes
    assert [row.cache_bytes_per_position for row in found.rows] == [2 * 2 * 4 * 3 * 4, 0]
    assert [row.cache_bytes for row in found.rows] == [1920, 0]
    assert found.total.cache_bytes == 1920


def test_a_window_bounds_the_cache():
    plan = resolve("attention(2, causal=True, window_size=3)", input=("B", "T", 4), dtype="float16")
    assert cost(plan, {"T": 10}).total.cache_bytes_per_position == 2 * 4 * 2
    assert cost(plan, {"T": 10}).total.cache_bytes == 3 * 16
    assert cost(plan, {"T": 2}).total.cache_bytes == 2 * 16


def test_views_make_no_activations():
    plan = resolve("attention(2)", input=("B", "T", 4))
    # per position: q, k, v, the attention's result and the output projection, 4 features of 4 bytes each
    assert cost(plan, {"T": 7}).total.activation_bytes == 7 * 5 * 4 * 4


def test_a_tied_parameter_counts_at_its_owner():
    plan = resolve(
        'embedding(5, 3, name="wte")\nlinear(5, bias=False, tie={"weight": "wte.weight"})',
        input=("B", "T"),
        input_dtype="int64",
    )
    assert [row.parameters for row in cost(plan).rows] == [15, 0]
    assert cost(plan).total.parameters == plan.parameter_count == 15


def test_the_size_of_gpt2():
    text = (
        'ids = input("B", "T", dtype="int64")\nembedding(50257, 768, name="wte")\npos_embed(1024)\n'
        'for _ in range(12):\n    transformer_block(12, activation="gelu_tanh", causal=True)\n'
        'layer_norm()\nlinear(50257, bias=False, tie={"weight": "wte.weight"})'
    )
    found = cost(resolve(text), {"T": 1024})
    assert found.total.parameters == 124_439_808  # as published
    assert found.total.parameter_bytes == 4 * 124_439_808
    assert found.total.cache_bytes_per_position == 12 * 2 * 768 * 4
    # products alone: 2 per weight of a matrix and token, and 4 T D per token for scores and mixing
    matrices = 12 * 12 * 768 * 768 + 50257 * 768
    products = 1024 * (2 * matrices + 12 * 4 * 1024 * 768)
    assert products < found.total.flops < 1.01 * products


def test_an_unknown_symbol():
    with pytest.raises(IsomorphError, match=r"^E_ARGUMENT: the network has no symbol 'S'; its symbols: B$"):
        cost(resolve("relu()", input=("B", 2)), {"S": 3})
