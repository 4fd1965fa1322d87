"""The examples resolve by themselves, have the published sizes, and compute what the published models do."""

from pathlib import Path

import numpy as np
import pytest

import isomorph as iso
from isomorph.agreement.verify import verify

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.net"))


def plan_of(name: str, *shrunk: tuple[str, str], **arguments) -> iso.Plan:
    """An example's plan, with pieces of its text replaced to make it small."""
    text = (EXAMPLES / f"{name}.net").read_text()
    for old, new in shrunk:
        assert old in text, old
        text = text.replace(old, new)
    return iso.resolve(text, **arguments)


def block(D: int, hidden: int) -> int:
    """Parameters of a block: four D x D maps, two D x hidden ones, their biases, and two norms."""
    return 4 * (D * D + D) + 2 * D * hidden + hidden + D + 4 * D


COUNTS = {
    # 64 * 128 + 128 and so on.
    "mlp": 64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10,
    # Patches of 16 pixels, class token, 5 positions, 4 blocks, final norm, 10 classes.
    "digits_vit": 16 * 64 + 64 + 64 + 5 * 64 + 4 * block(64, 128) + 2 * 64 + 64 * 10 + 10,
    # One table for reading and scoring, 256 positions, 4 blocks, final norm.
    "byte_gpt": 256 * 128 + 256 * 128 + 4 * block(128, 512) + 2 * 128,
    "gpt2": 124_439_808,  # openai-community/gpt2
    "vit_b16": 86_567_656,  # torchvision's vit_b_16, google/vit-base-patch16-224
    "llama": 1_235_814_400,  # meta-llama/Llama-3.2-1B
    "bert": 109_482_240,  # google-bert/bert-base-uncased with its pooler
    "dinov2": 22_056_576 - 384,  # facebook/dinov2-small, less its mask token
}


def test_every_example_is_counted():
    assert sorted(COUNTS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_is_complete_by_itself_and_has_the_published_size(name):
    plan = iso.resolve_file(EXAMPLES / f"{name}.net")
    assert plan.parameter_count == COUNTS[name]
    assert iso.Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("name", NAMES)
def test_begins_with_a_comment_and_fits_a_page(name):
    lines = (EXAMPLES / f"{name}.net").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert max(map(len, lines)) <= 110
    assert len(lines) <= 50


@pytest.mark.parametrize("name", ["mlp", "digits_vit", "byte_gpt"])
def test_small_examples_agree_with_the_reference(name):
    pytest.importorskip("torch")
    assert verify(iso.resolve_file(EXAMPLES / f"{name}.net"), backends=["torch"]).agrees


SMALL = {
    "gpt2": [("50257", "97"), ("768", "16"), ("range(12)", "range(2)"), ("        12,\n", "        4,\n")],
    "vit_b16": [("768", "16"), ("224, 224", "8, 8"), ("patch_size=16", "patch_size=4"), ("197", "5"),
                ("range(12)", "range(2)"), ("block(12", "block(4"), ("1000", "7")],
    "dinov2": [("384", "16"), ("518, 518", "8, 8"), ("patch_size=14", "patch_size=4"), ("1370", "5"),
               ("1369", "4"), ("range(12)", "range(2)"), ("block(6", "block(4")],
    "bert": [("30522", "97"), ("768", "16"), ("range(12)", "range(2)"), ("block(12", "block(4")],
    "llama": [("128256", "97"), ("2048", "32"), ("        32,", "        4,"), ("kv_heads=8", "kv_heads=2"),
              ("8192", "40"), ("range(16)", "range(2)")],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SMALL))
def test_large_examples_agree_with_the_reference_when_made_small(name):
    pytest.importorskip("torch")
    assert verify(plan_of(name, *SMALL[name]), backends=["torch"]).agrees


# -- beside the published models ---------------------------------------------------------------


def copied(model, weights: dict[str, np.ndarray], names: dict[str, str]) -> None:
    """Put weights into a model of another library, by a table of names; each of its parameters must be met."""
    import torch

    state = {theirs: torch.from_numpy(weights[ours]) for ours, theirs in names.items()}
    assert sorted(state) == sorted(name for name, _ in model.named_parameters())
    model.load_state_dict(state, strict=False)


def test_llama_computes_what_transformers_computes():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    plan = plan_of("llama", *SMALL["llama"], dtype="float64")
    weights = iso.testing.order_one_weights(plan)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=40, rms_norm_eps=1e-5, tie_word_embeddings=True, attn_implementation="sdpa",
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    )  # fmt: skip
    peer = transformers.LlamaForCausalLM(config).double().eval()
    names = {"tokens.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    for i in range(2):
        layer = f"model.layers.{i}"
        names[f"attention_norm{i}.weight"] = f"{layer}.input_layernorm.weight"
        names[f"ffn_norm{i}.weight"] = f"{layer}.post_attention_layernorm.weight"
        names |= {f"attention{i}.{p}_proj.weight": f"{layer}.self_attn.{p}_proj.weight" for p in "qkvo"}
        names |= {f"ffn{i}.{p}.weight": f"{layer}.mlp.{p}_proj.weight" for p in ("gate", "up", "down")}
    copied(peer, weights, names)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 97, (2, 50)))
    with torch.no_grad():
        expected = peer(ids).logits.numpy()
        ours = iso.torch.build(plan, weights).eval()(ids).numpy()
    # Its cosines and sines are float32, which is what the difference comes from.
    np.testing.assert_allclose(ours, expected, atol=2e-5 * np.abs(expected).max())


def test_bert_computes_what_transformers_computes():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    plan = plan_of("bert", *SMALL["bert"], dtype="float64")
    weights = iso.testing.order_one_weights(plan)
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        layer_norm_eps=1e-12, hidden_act="gelu", attn_implementation="sdpa",
    )  # fmt: skip
    peer = transformers.BertModel(config).double().eval()
    names = {
        "words.weight": "embeddings.word_embeddings.weight",
        "kinds.weight": "embeddings.token_type_embeddings.weight",
        "positions.weight": "embeddings.position_embeddings.weight",
        "norm.weight": "embeddings.LayerNorm.weight", "norm.bias": "embeddings.LayerNorm.bias",
        "pooler.weight": "pooler.dense.weight", "pooler.bias": "pooler.dense.bias",
    }  # fmt: skip
    parts = {
        "attn.q_proj": "attention.self.query", "attn.k_proj": "attention.self.key",
        "attn.v_proj": "attention.self.value", "attn.o_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm", "ffn.up": "intermediate.dense",
        "ffn.down": "output.dense", "norm2": "output.LayerNorm",
    }  # fmt: skip
    for i in range(2):
        for ours, theirs in parts.items():
            for kind in ("weight", "bias"):
                names[f"block{i}.{ours}.{kind}"] = f"encoder.layer.{i}.{theirs}.{kind}"
    copied(peer, weights, names)
    rng = np.random.default_rng(0)
    ids, segments = (
        torch.from_numpy(rng.integers(0, 97, (2, 9))),
        torch.from_numpy(rng.integers(0, 2, (2, 9))),
    )
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    with torch.no_grad():
        expected = peer(ids, attention_mask=mask.long(), token_type_ids=segments)
        ours = iso.torch.build(plan, weights).eval()(ids, segments, mask)
    # A padded position has no meaning; all others must agree.
    np.testing.assert_allclose(
        ours["hidden"][mask].numpy(), expected.last_hidden_state[mask].numpy(), rtol=1e-11, atol=1e-11
    )
    np.testing.assert_allclose(ours["pooled"].numpy(), expected.pooler_output.numpy(), rtol=1e-11, atol=1e-11)
