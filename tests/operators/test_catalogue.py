"""Every operator, by the public harness; and that the catalogue is whole."""

from __future__ import annotations

import pytest

from isomorph.operators import registry
from isomorph.testing import check_operator

CATALOGUE = [
    "linear", "layer_norm", "rms_norm", "attention", "cross_attention", "feed_forward", "swiglu",
    "transformer_block", "encoder_block", "post_norm_block", "embedding", "pos_embed",
    "sinusoidal_pos_embed", "cls_token", "patch_embed", "pool_tokens", "dropout", "gelu", "relu",
    "silu", "quick_gelu", "tanh", "sigmoid", "identity", "softmax", "add", "mul", "scale", "concat",
    "split", "reshape", "flatten", "transpose", "mean",
]  # fmt: skip


def test_the_catalogue_is_whole():
    assert set(CATALOGUE) <= set(registry.all_operators())


@pytest.mark.parametrize("name", registry.all_operators())
def test_operator(name):
    report = check_operator(name)
    assert report.identity == f"{name}@1"
    assert len(report.comparisons) >= 3 * len(registry.all_operators()[name].examples)
