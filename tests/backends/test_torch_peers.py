"""A block beside the published one it corresponds to."""

import pytest
import torch

from isomorph.backends.torch.layers import layer
from isomorph.operators.blocks import TransformerBlock

gpt2 = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
configuration = pytest.importorskip("transformers.models.gpt2.configuration_gpt2")


def test_causal_tanh_block_is_transformers_gpt2_block():
    D, H, T = 16, 4, 7
    ours = layer(TransformerBlock.of(D=D, heads=H, activation="gelu_tanh", causal=True))
    ours = ours.to_empty(device="cpu").double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in ours.parameters():  # all of order one, gains and biases too
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    config = configuration.GPT2Config(
        n_embd=D, n_head=H, n_layer=1, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0
    )
    config._attn_implementation = "sdpa"
    theirs = gpt2.GPT2Block(config, layer_idx=0).double()
    with torch.no_grad():  # their Conv1D weights are [in, out]
        for kind in ("weight", "bias"):
            packed = torch.cat([getattr(getattr(ours.attn, f"{n}_proj"), kind) for n in "qkv"])
            getattr(theirs.attn.c_attn, kind).copy_(packed.T if kind == "weight" else packed)
            for mine, other in ((ours.norm1, theirs.ln_1), (ours.norm2, theirs.ln_2)):
                getattr(other, kind).copy_(getattr(mine, kind))
            for mine, other in (
                (ours.attn.o_proj, theirs.attn.c_proj),
                (ours.ffn.up, theirs.mlp.c_fc),
                (ours.ffn.down, theirs.mlp.c_proj),
            ):
                value = getattr(mine, kind)
                getattr(other, kind).copy_(value.T if kind == "weight" else value)
    x = torch.randn(2, T, D, generator=generator, dtype=torch.float64)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    mine, other = ours(a), theirs(b)
    other = other[0] if isinstance(other, tuple) else other
    scale = other.abs().max().item()
    torch.testing.assert_close(mine, other, rtol=0, atol=1e-12 * scale)
    cotangent = torch.randn(mine.shape, generator=generator, dtype=torch.float64)
    (mine * cotangent).sum().backward()
    (other * cotangent).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12 * b.grad.abs().max().item())
    grad = theirs.mlp.c_fc.weight.grad.T
    torch.testing.assert_close(ours.ffn.up.weight.grad, grad, rtol=0, atol=1e-12 * grad.abs().max().item())
    grad = theirs.attn.c_attn.weight.grad.T[:D]
    torch.testing.assert_close(
        ours.attn.q_proj.weight.grad, grad, rtol=0, atol=1e-12 * grad.abs().max().item()
    )
