"""Built networks under torch.compile and torch.export: one graph, open sizes, no checks left in it."""

import pytest
import torch
from torch.export import Dim

import isomorph as iso
from isomorph.torch import build, weights

DECODER = """
ids = input("B", "T", dtype="int64")
embedding(11, 8, name="wte")
attention(4, causal=True, bias=False, rope=True, kv_heads=2)
transformer_block(2, causal=True, norm="rms_norm", activation="silu", layer_scale=True)
linear(11, bias=False, tie={"weight": "wte.weight"})
"""
ENCODER = """
x = input("B", "T", 8)
m = input("B", "T", dtype="bool")
sinusoidal_pos_embed()
post_norm_block(2, mask=m)
attention(2, window_size=2, logit_softcap=3.0)
pool_tokens()
"""


def ids(B, T):
    return torch.randint(0, 11, (B, T), generator=torch.Generator().manual_seed(B * 100 + T))


def sequence(B, T):
    generator = torch.Generator().manual_seed(B * 100 + T)
    x = torch.randn(B, T, 8, generator=generator)
    mask = torch.rand(B, T, generator=generator) < 0.7
    mask[:, :1] = True
    return x, mask


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()


@pytest.mark.parametrize("definition", [DECODER, ENCODER])
def test_compiles_to_one_graph_with_open_sizes(definition):
    model = build(iso.resolve(definition)).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    for B, T in ((2, 8), (3, 5), (1, 2)):
        inputs = (ids(B, T),) if definition is DECODER else sequence(B, T)
        torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=0, atol=1e-6)
    assert list(weights(compiled)) == list(weights(model))


def test_compiling_many_plans_in_one_process():
    """The compiler allows eight recompilations of one function before it gives up."""
    for width in range(1, 12):
        model = build(iso.resolve(f"linear({width})\nrelu()", input=("B", 4)))
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert compiled(torch.zeros(2, 4)).shape == (2, width)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the default compiler's own, when first loaded
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_code_computes_and_differentiates_alike(backend):
    model = build(iso.resolve("transformer_block(2, causal=True)", input=("B", 6, 8)))
    x = sequence(2, 6)[0]
    results = []
    for run in (model, torch.compile(model, fullgraph=True, backend=backend)):
        model.zero_grad()
        out = run(x)
        out.square().sum().backward()
        results.append((out.detach(), {path: p.grad.clone() for path, p in model.named_parameters()}))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-5)
    largest = max(gradient.abs().max().item() for gradient in results[0][1].values())
    for path, gradient in results[0][1].items():
        torch.testing.assert_close(results[1][1][path], gradient, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_open_batch_and_length(strict):
    model = build(iso.resolve(DECODER)).eval()
    free = {"ids": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}}
    exported = torch.export.export(model, (ids(2, 8),), dynamic_shapes=free, strict=strict).module()
    for B, T in ((1, 1), (3, 5), (2, 0), (2, 8)):
        got = exported(ids(B, T))
        assert got.shape == (B, T, 11)
        torch.testing.assert_close(got, model(ids(B, T)), rtol=0, atol=1e-6)


def test_export_with_a_mask_and_named_inputs():
    model = build(iso.resolve(ENCODER)).eval()
    x, m = sequence(2, 8)
    free = {name: {0: Dim.AUTO, 1: Dim.AUTO} for name in ("x", "m")}
    exported = torch.export.export(model, (x,), {"m": m}, dynamic_shapes=free).module()
    for B, T in ((1, 1), (3, 5), (2, 8)):
        x, m = sequence(B, T)
        torch.testing.assert_close(exported(x, m=m), model(x, m), rtol=0, atol=1e-6)


def test_no_check_is_left_in_the_graph():
    """A graph of nothing but the network's own operations: no comparison, no read of a value."""
    model = build(iso.resolve(DECODER)).eval()
    exported = torch.export.export(
        model, (ids(2, 8),), dynamic_shapes={"ids": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}}
    )
    names = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert any("scaled_dot_product_attention" in name for name in names)
    assert not [
        n for n in names if any(word in n for word in ("item", "isfinite", "aminmax", "aten.eq", "aten.ge"))
    ]


def test_padding_stays_hidden_in_compiled_code():
    definition = 'x = input("B", "T", 8)\nm = input("B", "T", dtype="bool")\nattention(2, mask=m)'
    model = build(iso.resolve(definition)).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, _ = sequence(2, 6)
    m = torch.tensor([[True, True, True, False, False, False], [True] * 6])
    want = compiled(x, m)
    for bad in (float("nan"), float("inf")):
        got = compiled(x.masked_fill(~m[..., None], bad), m)
        assert torch.equal(got[m], want[m])
