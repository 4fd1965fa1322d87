"""Networks beside the published modules that they correspond to: same weights, same numbers, same gradients.

Everything runs in float64 with every parameter at order one, gains and biases too. Outputs and all gradients
agree to 1e-12 of their largest value. Where a peer insists on float32 inside, its module sees a ``torch``
whose float32 is float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import isomorph as iso
from isomorph.testing import order_one_weights
from isomorph.torch import build

Tensor = torch.Tensor
TOLERANCE = 1e-12


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def network(definition: str, *shape: Any, seed: int = 0) -> nn.Module:
    plan = iso.resolve(definition, input=shape or None, dtype="float64")
    return build(plan, order_one_weights(plan, seed))


class Place:
    """Where a peer keeps one of our parameters: its path, the rows that are ours, and whether it is [in, out]."""

    def __init__(self, path: str, rows: slice = slice(None), transposed: bool = False) -> None:
        self.path, self.rows, self.transposed = path, rows, transposed

    def view(self, tensor: Tensor) -> Tensor:
        return (tensor.T if self.transposed else tensor)[self.rows]


def places(
    modules: Mapping[str, str | Place], kinds: tuple[str, ...] = ("weight", "bias")
) -> dict[str, Place]:
    """Ours to theirs, for modules that hold the same kinds of parameters."""
    found = {}
    for ours, theirs in modules.items():
        place = theirs if isinstance(theirs, Place) else Place(theirs)
        for kind in kinds:
            transposed = place.transposed and kind == "weight"
            found[f"{ours}.{kind}"] = Place(f"{place.path}.{kind}", place.rows, transposed)
    return found


def assert_agrees(
    ours: nn.Module,
    theirs: nn.Module,
    where: Mapping[str, Place],
    *inputs: Tensor,
    call: Callable[..., Any] | None = None,
    compare: Callable[[Tensor], Tensor] = lambda out: out,
) -> None:
    """Copy all of our parameters; then outputs and the gradients of inputs and parameters must agree.

    ``call(*inputs)`` runs the peer where it takes something else; ``compare`` picks what is compared.
    """
    theirs_parameters = dict(theirs.named_parameters())
    ours_parameters = {path.removeprefix("n0."): p for path, p in ours.named_parameters()}
    assert set(where) == set(ours_parameters)
    assert {place.path for place in where.values()} == set(theirs_parameters)
    with torch.no_grad():
        for path, place in where.items():
            place.view(theirs_parameters[place.path]).copy_(ours_parameters[path])
    mine = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    other = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    out, peer_out = compare(ours(*mine)), compare((call or theirs)(*other))
    close(out, peer_out, "output")
    cotangent = draw(*out.shape, seed=99)
    (out * cotangent).sum().backward()
    (peer_out * cotangent).sum().backward()
    for number, (a, b) in enumerate(zip(mine, other, strict=True)):
        if a.requires_grad:
            close(a.grad, b.grad, f"gradient of input {number}")
    largest = max(p.grad.abs().max().item() for p in ours_parameters.values())
    for path, place in where.items():
        gradient = place.view(theirs_parameters[place.path].grad)
        close(ours_parameters[path].grad, gradient, f"gradient of {path}", largest)


def close(got: Any, want: Any, what: str, largest: float | None = None) -> None:
    largest = max(1.0, want.abs().max().item() if largest is None else largest)
    torch.testing.assert_close(
        got, want, rtol=0, atol=TOLERANCE * largest, msg=lambda text: f"{what}: {text}"
    )


# -- torch.nn --------------------------------------------------------------------------------------


def encoder_layer_places(D: int) -> dict[str, Place]:
    found = places({"attn.o_proj": "self_attn.out_proj", "norm1": "norm1", "norm2": "norm2",
                    "ffn.up": "linear1", "ffn.down": "linear2"})  # fmt: skip
    return found | in_projections(D, "attn.", "self_attn.")


def in_projections(D: int, ours: str = "", theirs: str = "") -> dict[str, Place]:
    """Queries, keys and values stacked in one matrix and one bias."""
    found = {}
    for number, name in enumerate("qkv"):
        rows = slice(number * D, (number + 1) * D)
        for kind in ("weight", "bias"):
            found[f"{ours}{name}_proj.{kind}"] = Place(f"{theirs}in_proj_{kind}", rows)
    return found


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_block_is_torchs_pre_norm_encoder_layer(activation):
    D, H = 12, 3
    theirs = nn.TransformerEncoderLayer(
        D,
        H,
        4 * D,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=True,
        dtype=torch.float64,
    )
    ours = network(f'transformer_block({H}, activation="{activation}")', "B", "T", D)
    assert_agrees(ours, theirs, encoder_layer_places(D), draw(2, 5, D))


def test_encoder_block_is_torchs_pre_norm_encoder_layer_of_any_width():
    D, H = 8, 2
    theirs = nn.TransformerEncoderLayer(
        D, H, 7, dropout=0.0, batch_first=True, norm_first=True, layer_norm_eps=1e-6, dtype=torch.float64
    )
    assert_agrees(
        network(f"encoder_block({H}, 7)", "B", "T", D), theirs, encoder_layer_places(D), draw(2, 5, D)
    )


@pytest.mark.parametrize("causal", [False, True])
def test_post_norm_block_is_torchs_post_norm_encoder_layer(causal):
    D, H, T = 8, 2, 5
    theirs = nn.TransformerEncoderLayer(
        D, H, 20, dropout=0.0, activation="gelu", batch_first=True, dtype=torch.float64
    )
    ours = network(f"post_norm_block({H}, hidden=20, eps=1e-5, causal={causal})", "B", "T", D)
    future = torch.ones(T, T, dtype=torch.bool).triu(1) if causal else None
    assert_agrees(
        ours, theirs, encoder_layer_places(D), draw(2, T, D), call=lambda x: theirs(x, src_mask=future)
    )


def test_masked_attention_is_torchs_multi_head_attention():
    D, H = 8, 2
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    ours = network('x = input("B", "T", 8)\nm = input("B", "T", dtype="bool")\nattention(2, mask=m)')
    mask = torch.tensor([[True, True, False, True], [True, False, False, False]])
    where = in_projections(D) | places({"o_proj": "out_proj"})
    assert_agrees(  # True hides in their mask, and shows in ours
        ours, theirs, where, draw(2, 4, D), mask,
        call=lambda x, mask: theirs(x, x, x, key_padding_mask=~mask, need_weights=False)[0],
    )  # fmt: skip


def test_cross_attention_is_torchs_multi_head_attention():
    D, H, C = 8, 2, 6
    theirs = nn.MultiheadAttention(D, H, batch_first=True, kdim=C, vdim=C, dtype=torch.float64)
    ours = network('x = input("B", "T", 8)\ncontext = input("B", "S", 6)\ncross_attention(x, context, 2)')
    where = in_projections(D) | places({"o_proj": "out_proj"})
    where |= {f"{name}_proj.weight": Place(f"{name}_proj_weight") for name in "qkv"}
    assert_agrees(
        ours, theirs, where, draw(2, 3, D), draw(2, 5, C, seed=2),
        call=lambda x, context: theirs(x, context, context, need_weights=False)[0],
    )  # fmt: skip


# -- transformers ----------------------------------------------------------------------------------


def modeling(family: str) -> Any:
    return pytest.importorskip(f"transformers.models.{family}.modeling_{family}")


def configuration(name: str, attention: str = "sdpa", **settings: Any) -> Any:
    config = getattr(pytest.importorskip("transformers"), name)(**settings)
    config._attn_implementation = attention
    return config


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let a module compute in float64 where it says float32: only the rounding goes away."""

    class Lifted:
        float32 = float = torch.float64

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    return lambda module: monkeypatch.setattr(module, "torch", Lifted())


def test_causal_tanh_block_is_transformers_gpt2_block():
    D, H = 16, 4
    config = configuration(
        "GPT2Config", n_embd=D, n_head=H, n_layer=1, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0
    )
    theirs = modeling("gpt2").GPT2Block(config, layer_idx=0).double()
    modules: dict[str, str | Place] = {  # their Conv1D weights are [in, out]
        f"attn.{name}_proj": Place("attn.c_attn", slice(number * D, (number + 1) * D), True)
        for number, name in enumerate("qkv")
    }
    modules |= {"norm1": "ln_1", "norm2": "ln_2", "attn.o_proj": Place("attn.c_proj", transposed=True),
                "ffn.up": Place("mlp.c_fc", transposed=True), "ffn.down": Place("mlp.c_proj", transposed=True)}  # fmt: skip
    ours = network(f'transformer_block({H}, activation="gelu_tanh", causal=True)', "B", "T", D)
    assert_agrees(ours, theirs, places(modules), draw(2, 7, D), call=lambda x: first(theirs(x)))


def first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("masked", [False, True])
def test_post_norm_block_is_transformers_bert_layer(masked):
    D, H = 12, 3
    config = configuration(
        "BertConfig", hidden_size=D, num_attention_heads=H, intermediate_size=4 * D,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    assert config.layer_norm_eps == 1e-12  # the operator's default
    theirs = modeling("bert").BertLayer(config).double()
    where = places({
        "attn.q_proj": "attention.self.query", "attn.k_proj": "attention.self.key",
        "attn.v_proj": "attention.self.value", "attn.o_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm", "norm2": "output.LayerNorm",
        "ffn.up": "intermediate.dense", "ffn.down": "output.dense",
    })  # fmt: skip
    x, mask = draw(2, 5, D), torch.tensor([[True, True, False, True, False], [True] * 5])
    if not masked:
        assert_agrees(
            network(f"post_norm_block({H})", "B", "T", D), theirs, where, x, call=lambda x: first(theirs(x))
        )
        return
    ours = network(
        f'x = input("B", "T", {D})\nm = input("B", "T", dtype="bool")\npost_norm_block({H}, mask=m)'
    )
    assert_agrees(ours, theirs, where, x, mask, call=lambda x, mask: first(theirs(x, mask[:, None, None, :])))


def test_layer_scale_block_is_transformers_dinov2_layer():
    D, H = 12, 3
    config = configuration("Dinov2Config", hidden_size=D, num_attention_heads=H, layer_norm_eps=1e-6)
    theirs = modeling("dinov2").Dinov2Layer(config).double()
    where = places({
        **{f"attn.{name}_proj": f"attention.{name}_proj" for name in "qkvo"},
        "norm1": "norm1", "norm2": "norm2", "ffn.up": "mlp.fc1", "ffn.down": "mlp.fc2",
    })  # fmt: skip
    where |= {f"gamma{i}": Place(f"layer_scale{i}.lambda1") for i in (1, 2)}
    ours = network(f"transformer_block({H}, layer_scale=True, eps=1e-6)", "B", "T", D)
    assert_agrees(ours, theirs, where, draw(2, 5, D))


def test_encoder_block_recipe_is_transformers_vit_layer():
    D, H = 12, 3
    config = configuration(
        "ViTConfig", hidden_size=D, num_attention_heads=H, intermediate_size=4 * D, layer_norm_eps=1e-5
    )
    theirs = modeling("vit").ViTLayer(config).double()
    assert config.hidden_act == "gelu"
    where = places({
        **{f"attn.{name}_proj": f"attention.{name}_proj" for name in "qkvo"},
        "norm1": "layernorm_before", "norm2": "layernorm_after", "ffn.up": "mlp.fc1", "ffn.down": "mlp.fc2",
    })  # fmt: skip
    assert_agrees(network(f"transformer_block({H})", "B", "T", D), theirs, where, draw(2, 5, D))


def test_patch_embed_is_transformers_vit_patch_embeddings():
    config = configuration("ViTConfig", hidden_size=10, image_size=(4, 6), patch_size=2, num_channels=3)
    theirs = modeling("vit").ViTPatchEmbeddings(config).double()
    ours = network("patch_embed(10, 2)", "B", 3, 4, 6)
    assert_agrees(ours, theirs, places({"proj": "projection"}), draw(2, 3, 4, 6))


def test_rms_norm_is_transformers_llama_rms_norm(in_float64):
    llama = modeling("llama")
    in_float64(llama)
    theirs = llama.LlamaRMSNorm(12, eps=1e-5).double()
    ours = network("rms_norm(eps=1e-5)", "B", "T", 12)
    assert_agrees(ours, theirs, {"weight": Place("weight")}, draw(2, 5, 12) * 1e-2)  # where eps counts


@pytest.mark.parametrize(
    ("arguments", "rope"),
    [
        ("", {"rope_type": "default", "rope_theta": 10000.0}),
        (", rope_theta=500.0", {"rope_type": "default", "rope_theta": 500.0}),
        (
            ', rope_scaling="linear", rope_scale=4.0',
            {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        ),
        (
            ', rope_scaling="llama3", rope_scale=8.0, rope_theta=500000.0',
            {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
             "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        ),
        (
            ', rope_scaling="llama3", rope_scale=4.0, rope_low_factor=0.5, rope_high_factor=6.0, '
            "rope_original_length=64",
            {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 0.5,
             "high_freq_factor": 6.0, "original_max_position_embeddings": 64},
        ),
    ],
    ids=["plain", "theta", "linear", "llama3", "bands"],
)  # fmt: skip
def test_grouped_rotary_attention_is_transformers_llama_attention(in_float64, arguments, rope):
    D, H, K, d, T = 24, 4, 2, 16, 9
    llama = modeling("llama")
    utilities = pytest.importorskip("transformers.modeling_rope_utils")
    for module in (llama, utilities):
        in_float64(module)
    config = configuration(
        "LlamaConfig", hidden_size=D, num_attention_heads=H, num_key_value_heads=K, head_dim=d,
        rope_parameters=rope, max_position_embeddings=16384,
    )  # fmt: skip
    theirs = llama.LlamaAttention(config, layer_idx=0).double()
    rotary = llama.LlamaRotaryEmbedding(config)
    ours = network(
        f"attention({H}, causal=True, bias=False, rope=True, kv_heads={K}, head_dim={d}{arguments})",
        "B",
        "T",
        D,
    )
    assert_agrees(
        ours, theirs, places({f"{n}_proj": f"{n}_proj" for n in "qkvo"}, ("weight",)), draw(2, T, D),
        call=lambda x: theirs(x, position_embeddings=rotary(x, torch.arange(T)[None]))[0],
    )  # fmt: skip


def test_normalized_queries_and_keys_are_transformers_qwen3_attention(in_float64):
    D, H, K, d, T = 12, 4, 2, 6, 7
    qwen3 = modeling("qwen3")
    in_float64(qwen3)
    config = configuration(
        "Qwen3Config", hidden_size=D, num_attention_heads=H, num_key_value_heads=K, head_dim=d,
        rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    theirs = qwen3.Qwen3Attention(config, layer_idx=0).double()
    rotary = qwen3.Qwen3RotaryEmbedding(config)
    names = [f"{n}_proj" for n in "qkvo"] + ["q_norm", "k_norm"]
    ours = network(
        f'attention({H}, causal=True, bias=False, rope=True, kv_heads={K}, head_dim={d}, qk_norm="rms_norm")',
        "B", "T", D,
    )  # fmt: skip
    assert_agrees(
        ours, theirs, places({n: n for n in names}, ("weight",)), draw(2, T, D),
        call=lambda x: theirs(x, rotary(x, torch.arange(T)[None]), None)[0],
    )  # fmt: skip


def test_soft_capped_windowed_attention_is_transformers_gemma2_attention(in_float64):
    D, H, K, d, T = 12, 4, 2, 6, 7
    gemma2 = modeling("gemma2")
    in_float64(gemma2)
    config = configuration(
        "Gemma2Config", attention="eager", hidden_size=D, num_attention_heads=H, num_key_value_heads=K,
        head_dim=d, query_pre_attn_scalar=d, attn_logit_softcapping=2.0, sliding_window=3, num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    theirs = gemma2.Gemma2Attention(config, layer_idx=0).double().eval()
    rotary = gemma2.Gemma2RotaryEmbedding(config)
    # query i sees keys i-2, i-1 and i; they add a mask of -inf
    reach = torch.arange(T)[:, None] - torch.arange(T)
    mask = torch.zeros(T, T, dtype=torch.float64).masked_fill((reach < 0) | (reach >= 3), -math.inf)
    ours = network(
        f"attention({H}, causal=True, window_size=3, logit_softcap=2.0, bias=False, rope=True, "
        f"kv_heads={K}, head_dim={d})",
        "B", "T", D,
    )  # fmt: skip
    assert_agrees(
        ours, theirs, places({f"{n}_proj": f"{n}_proj" for n in "qkvo"}, ("weight",)), draw(2, T, D),
        call=lambda x: theirs(x, rotary(x, torch.arange(T)[None]), mask[None, None])[0],
    )  # fmt: skip


def test_a_gain_around_zero_is_transformers_gemma2_rms_norm():
    gemma2 = modeling("gemma2")
    theirs = gemma2.Gemma2RMSNorm(12, eps=1e-6).double()
    theirs.forward = lambda x: theirs._norm(x) * (1.0 + theirs.weight)  # theirs, without the casts to float32
    ours = network("rms_norm(zero_centered=True)", "B", "T", 12)
    assert_agrees(ours, theirs, {"weight": Place("weight")}, draw(2, 5, 12) * 1e-3)


def test_swiglu_is_transformers_llama_mlp():
    config = configuration("LlamaConfig", hidden_size=12, intermediate_size=20, num_attention_heads=2)
    theirs = modeling("llama").LlamaMLP(config).double()
    where = places({"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}, ("weight",))
    assert_agrees(network("swiglu(20)", "B", "T", 12), theirs, where, draw(2, 5, 12))


def test_a_composed_llama_layer_is_transformers_llama_decoder_layer(in_float64):
    D, H, T = 16, 4, 6
    llama = modeling("llama")
    in_float64(llama)
    config = configuration(
        "LlamaConfig", hidden_size=D, num_attention_heads=H, num_key_value_heads=2, intermediate_size=20,
        rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    theirs = llama.LlamaDecoderLayer(config, layer_idx=0).double()
    rotary = llama.LlamaRotaryEmbedding(config)
    ours = network(
        """
        a = rms_norm(x, name="norm1")
        h = add(x, attention(a, 4, causal=True, rope=True, kv_heads=2, bias=False, name="attn"))
        add(h, swiglu(rms_norm(h, name="norm2"), 20, name="ffn"))
        """,
        "B", "T", D,
    )  # fmt: skip
    where = places({
        **{f"attn.{n}_proj": f"self_attn.{n}_proj" for n in "qkvo"}, "norm1": "input_layernorm",
        "norm2": "post_attention_layernorm", "ffn.gate": "mlp.gate_proj", "ffn.up": "mlp.up_proj",
        "ffn.down": "mlp.down_proj",
    }, ("weight",))  # fmt: skip
    assert_agrees(
        ours, theirs, where, draw(2, T, D),
        call=lambda x: first(theirs(x, position_embeddings=rotary(x, torch.arange(T)[None]))),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs"), [("gelu", "gelu"), ("gelu_tanh", "gelu_new"), ("relu", "relu"), ("silu", "silu"),
                         ("quick_gelu", "quick_gelu")],
)  # fmt: skip
def test_activations_are_transformers_functions_of_that_name(ours, theirs):
    functions = pytest.importorskip("transformers.activations").ACT2FN
    call = 'gelu(approximate="tanh")' if ours == "gelu_tanh" else f"{ours}()"
    x = torch.linspace(-9, 9, 1001, dtype=torch.float64)[None]
    model = build(iso.resolve(call, input=("B", 1001), dtype="float64"))
    close(model(x), functions[theirs](x), ours)


# -- formulas --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["sin_cos", "cos_sin", "sin_then_cos"])
def test_sinusoidal_positions_are_their_formula(order):
    D, T = 10, 50
    table = np.zeros((T, D))
    for t in range(T):
        for i in range(D // 2):
            angle = t / 10000.0 ** (2 * i / D)
            where = {
                "sin_cos": (2 * i, 2 * i + 1),
                "cos_sin": (2 * i + 1, 2 * i),
                "sin_then_cos": (i, i + D // 2),
            }
            sine, cosine = where[order]
            table[t, sine], table[t, cosine] = math.sin(angle), math.cos(angle)
    x = draw(2, T, D)
    ours = network(f'sinusoidal_pos_embed(order="{order}")', "B", "T", D)
    torch.testing.assert_close(ours(x), x + torch.from_numpy(table), rtol=0, atol=1e-14)
