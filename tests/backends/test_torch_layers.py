"""Operators as torch modules: native leaves, names, and where dropout acts."""

import pytest
import torch
from torch import nn

from isomorph.backends.torch.layers import layer
from isomorph.errors import IsomorphError
from isomorph.operators.activation import GELU, Dropout
from isomorph.operators.attention import Attention
from isomorph.operators.blocks import TransformerBlock
from isomorph.operators.declare import Operator, operator
from isomorph.operators.embedding import Embedding, PatchEmbed
from isomorph.operators.feed_forward import FeedForward
from isomorph.operators.linear import Linear
from isomorph.operators.normalization import LayerNorm, RMSNorm

# -- native layers ---------------------------------------------------------------------------------


def test_leaves_are_the_frameworks_own_layers():
    linear = layer(Linear.of(D_in=3, D_out=5, bias=False))
    assert type(linear) is nn.Linear
    assert (linear.in_features, linear.out_features, linear.bias) == (3, 5, None)
    norm = layer(LayerNorm.of(D=4, eps=1e-6, bias=False))
    assert type(norm) is nn.LayerNorm
    assert (norm.normalized_shape, norm.eps, norm.bias) == ((4,), 1e-6, None)
    assert layer(LayerNorm.of(D=4, affine=False)).weight is None
    table = layer(Embedding.of(num_embeddings=7, D=2))
    assert isinstance(table, nn.Embedding)
    assert (table.num_embeddings, table.embedding_dim) == (7, 2)
    drop = layer(Dropout.of(p=0.25))
    assert type(drop) is nn.Dropout
    assert drop.p == 0.25
    convolution = layer(PatchEmbed.of(C=3, D=8, patch_size=2, dim=8)).proj
    assert isinstance(convolution, nn.Conv2d)
    assert (convolution.in_channels, convolution.out_channels) == (3, 8)
    assert (convolution.kernel_size, convolution.stride) == ((2, 2), (2, 2))


@pytest.mark.parametrize(
    "instance",
    [
        Linear.of(D_in=3, D_out=5),
        LayerNorm.of(D=4),
        RMSNorm.of(D=4),
        Embedding.of(num_embeddings=7, D=2),
        PatchEmbed.of(C=3, D=8, patch_size=2, dim=8),
        TransformerBlock.of(D=8, heads=2, dropout=0.1, layer_scale=True),
        Attention.of(D=8, heads=2, qk_norm="rms_norm", qkv_bias=False),
    ],
    ids=lambda instance: instance.name,
)
def test_parameters_have_the_plans_paths_and_shapes(instance):
    found = {path: tuple(parameter.shape) for path, parameter in layer(instance).named_parameters()}
    assert found == {path: spec.shape for path, spec in instance.all_parameters.items()}
    assert list(found) == list(instance.all_parameters)


def test_making_modules_allocates_and_draws_nothing():
    before = torch.get_rng_state()
    module = layer(TransformerBlock.of(D=1 << 14, heads=2))  # 13 GB, if it were allocated
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert torch.equal(torch.get_rng_state(), before)


def test_a_leaf_without_a_native_layer_runs_its_own_forward():
    @operator("strange_leaf", shape="x[B, D] -> out[B, D]", category="test", register=False)
    class Strange(Operator):
        leaf = "unheard_of"

        def forward(self, m, F, x):
            return x + 1

    assert layer(Strange.of())(torch.zeros(1, 2)).tolist() == [[1.0, 1.0]]


def test_a_child_named_like_a_module_attribute():
    @operator("clashing", shape="x[B, D] -> out[B, D]", category="test", register=False)
    class Clashing(Operator):
        def children(self):
            return {"train": GELU.of()}

    with pytest.raises(IsomorphError) as caught:
        layer(Clashing.of())
    assert str(caught.value) == (
        "E_NAME: clashing: 'train' cannot name a part of a PyTorch module, "
        "which has an attribute of that name\n"
        "  give it another name"
    )


def test_repr_names_the_operator_and_what_was_given():
    assert "transformer_block, heads=2, causal=True\n" in repr(
        layer(TransformerBlock.of(D=8, heads=2, causal=True))
    )


# -- dropout ---------------------------------------------------------------------------------------


def test_feed_forward_drops_after_the_activation():
    """gelu(50) = 50 and identity maps: an output is 0 where its hidden feature fell, 100 where it stayed."""
    module = layer(FeedForward.of(D=32, hidden=32, dropout=0.5)).to_empty(device="cpu")
    with torch.no_grad():
        for part in (module.up, module.down):
            part.weight.copy_(torch.eye(32))
            part.bias.zero_()
    x = torch.full((4, 16, 32), 50.0)
    torch.manual_seed(0)
    first, second = module(x), module(x)
    assert set(first.unique().tolist()) == {0.0, 100.0}
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    # 2048 coins: mean 50, deviation 50 / sqrt(2048); five sigma
    assert abs(first.mean().item() - 50) < 5 * 50 / 2048**0.5
    assert torch.equal(module.eval()(x), x)
