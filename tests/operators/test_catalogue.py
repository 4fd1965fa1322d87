"""Every operator, by the public harness; and that the catalogue is whole."""

from __future__ import annotations

import pytest

from isomorph.backends.available import available, load
from isomorph.display.page import resolve_example
from isomorph.operators import catalogue
from isomorph.testing import check_operator, compare_gradients, compare_outputs

CATALOGUE = [
    "linear", "layer_norm", "rms_norm", "l2_norm", "attention", "cross_attention", "feed_forward", "swiglu",
    "transformer_block", "encoder_block", "post_norm_block", "embedding", "pos_embed",
    "sinusoidal_pos_embed", "cls_token", "register_tokens",
    "layer_scale", "patch_embed", "conv1d", "pool_tokens", "dropout", "gelu", "relu",
    "silu", "quick_gelu", "tanh", "sigmoid", "identity", "softmax", "add", "mul", "scale", "concat",
    "split", "reshape", "flatten", "transpose", "mean", "cumsum", "take_at", "similarity",
]  # fmt: skip


SAMPLE = ["attention", "conv1d", "embedding", "linear", "softmax"]
"""Operators that run in Linen as well; of the others tests/backends/test_flax_networks.py holds that Linen
computes the program of NNX, which shows what a comparison of numbers would."""


def backends_of(name):
    """Those to compare an operator's examples in."""
    return [backend for backend in available() if backend != "linen" or name in SAMPLE]


def test_the_catalogue_is_whole():
    assert set(CATALOGUE) <= set(catalogue.all_operators())


@pytest.mark.parametrize("name", catalogue.all_operators())
def test_operator(name):
    report = check_operator(name, backends_of(name))
    assert report.identity == f"{name}@1"
    assert len(report.comparisons) >= 3 * len(catalogue.all_operators()[name].examples)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", catalogue.all_operators())
def test_operator_in_half_precision(name, dtype):
    """Values and gradients within the bound of the dtype, in every framework's backend."""
    harnesses = {backend: load(backend) for backend in backends_of(name) if backend != "reference"}
    found = []
    for number, example in enumerate(catalogue.all_operators()[name].examples, 1):
        plan = resolve_example(example, dtype=dtype)
        found += compare_outputs(plan, {"torch": harnesses["torch"]}, number)  # Flax: test_flax_networks.py
        found += compare_gradients(plan, harnesses, number)
    wrong = [one for one in found if "direction" not in one.quantity and not one.difference <= one.bound]
    assert found and not wrong
