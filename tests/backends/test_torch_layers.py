"""Operators as torch modules: native leaves, names, and side-by-side with the modules people know."""

import pytest
import torch
from torch import nn

from isomorph.backends.torch.layers import layer
from isomorph.errors import IsomorphError
from isomorph.operators.activation import GELU, Dropout
from isomorph.operators.attention import Attention
from isomorph.operators.blocks import PostNormBlock, TransformerBlock
from isomorph.operators.declare import Operator, operator
from isomorph.operators.embedding import Embedding, PatchEmbed
from isomorph.operators.feed_forward import FeedForward
from isomorph.operators.linear import Linear
from isomorph.operators.normalization import LayerNorm, RMSNorm


def made(instance, dtype=torch.float64, seed=0):
    """The operator's module with every parameter of order one."""
    module = layer(instance).to_empty(device="cpu").to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    return module


def draw(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
    assert type(convolution) is nn.Conv2d
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


# -- side by side ----------------------------------------------------------------------------------


def agree(ours, theirs, x, tolerance=1e-12):
    """Outputs, input gradients and all parameter gradients (by the caller's pairs) agree."""
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours_out, theirs_out = ours(a), theirs(b)
    torch.testing.assert_close(ours_out, theirs_out, rtol=0, atol=tolerance)
    cotangent = draw(*ours_out.shape, seed=5)
    (ours_out * cotangent).sum().backward()
    (theirs_out * cotangent).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=tolerance * 10)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_block_is_torchs_pre_norm_encoder_layer(activation):
    D, H = 12, 3
    ours = made(TransformerBlock.of(D=D, heads=H, activation=activation))
    theirs = nn.TransformerEncoderLayer(
        D, H, 4 * D, 0.0, activation, batch_first=True, norm_first=True, dtype=torch.float64
    )
    copy_encoder_layer(ours, theirs)
    agree(ours, theirs, draw(2, 5, D))
    for name, ours_part, theirs_part in encoder_layer_pairs(ours, theirs):
        for kind in ("weight", "bias"):
            torch.testing.assert_close(
                getattr(ours_part, kind).grad, getattr(theirs_part, kind).grad, rtol=0, atol=1e-11, msg=name
            )
    packed = torch.cat([getattr(ours.attn, f"{n}_proj").weight.grad for n in "qkv"])
    torch.testing.assert_close(packed, theirs.self_attn.in_proj_weight.grad, rtol=0, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_post_norm_block_is_torchs_post_norm_encoder_layer(causal):
    D, H, T = 8, 2, 5
    ours = made(PostNormBlock.of(D=D, heads=H, hidden=20, eps=1e-5, causal=causal))
    theirs = nn.TransformerEncoderLayer(D, H, 20, 0.0, "gelu", batch_first=True, dtype=torch.float64)
    copy_encoder_layer(ours, theirs)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1) if causal else None
    agree(ours, lambda x: theirs(x, hidden), draw(2, T, D))


def encoder_layer_pairs(ours, theirs):
    return [
        ("o_proj", ours.attn.o_proj, theirs.self_attn.out_proj),
        ("norm1", ours.norm1, theirs.norm1),
        ("norm2", ours.norm2, theirs.norm2),
        ("up", ours.ffn.up, theirs.linear1),
        ("down", ours.ffn.down, theirs.linear2),
    ]


def copy_encoder_layer(ours, theirs):
    with torch.no_grad():
        for _, from_part, to_part in encoder_layer_pairs(ours, theirs):
            to_part.weight.copy_(from_part.weight)
            to_part.bias.copy_(from_part.bias)
        projections = [getattr(ours.attn, f"{name}_proj") for name in "qkv"]
        theirs.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))


def test_masked_attention_is_torchs_multi_head_attention():
    D, H = 8, 2
    ours = made(Attention.of(D=D, heads=H))
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        projections = [getattr(ours, f"{name}_proj") for name in "qkv"]
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
        theirs.out_proj.load_state_dict(ours.o_proj.state_dict())
    mask = torch.tensor([[True, True, False, True], [True, False, False, False]])
    agree(lambda x: ours(x, mask), lambda x: theirs(x, x, x, key_padding_mask=~mask)[0], draw(2, 4, D))


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


def test_transformer_block_drops_in_both_places_in_training_alone():
    block = made(TransformerBlock.of(D=8, heads=2, dropout=0.5))
    assert (block.attn.dropout.p, block.ffn.dropout.p) == (0.5, 0.5)
    x = draw(2, 5, 8)
    plain = made(TransformerBlock.of(D=8, heads=2))
    assert torch.equal(block.eval()(x), plain(x))
    block.train()
    for place in (block.attn.dropout, block.ffn.dropout):
        other = block.ffn.dropout if place is block.attn.dropout else block.attn.dropout
        other.eval()
        assert not torch.equal(block(x), block(x))
        other.train()
    before = torch.get_rng_state()
    plain.train()(x)
    assert torch.equal(before, torch.get_rng_state())  # without dropout nothing random is drawn
