"""Greedy ids of published families are those of ``transformers.generate``, also of a batch with padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import isomorph as iso

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIGURATIONS: dict[str, Any] = {
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=61, n_positions=40, n_embd=24, n_layer=2, n_head=3, n_inner=50, bos_token_id=None, eos_token_id=None
    ),
    "llama": lambda: transformers.LlamaConfig(
        vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    ),
    "mistral": lambda: transformers.MistralConfig(
        vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=6, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    ),
    "qwen2": lambda: transformers.Qwen2Config(
        vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    ),
}  # fmt: skip
CLASSES = {
    "qwen2": "Qwen2ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
}


def published(name: str, directory: Any) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, CLASSES[name])(CONFIGURATIONS[name]()).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_greedy_ids_are_the_peers(name, tmp_path):
    peer = published(name, tmp_path)
    plan, weights = iso.import_checkpoint(tmp_path)
    model = iso.torch.build(plan, weights)
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7]]
    ids = torch.tensor([prompts[0], [0] * 7 + prompts[1]])
    mask = torch.tensor([[1] * 9, [0] * 7 + [1, 1]])
    expected = peer.generate(
        ids, attention_mask=mask, max_new_tokens=20, do_sample=False, pad_token_id=0
    ).numpy()
    found = iso.generate(model, prompts, 20)
    np.testing.assert_array_equal(found, expected)
    alone = peer.generate(
        ids[:1], attention_mask=mask[:1], max_new_tokens=20, do_sample=False, pad_token_id=0
    ).numpy()
    np.testing.assert_array_equal(iso.generate(model, prompts[0], 20), alone[0])


def test_sampled_ids_come_as_often_as_the_peers_probabilities_say(tmp_path):
    """The peer's own processors give the probabilities; 3,000 draws follow them within four deviations."""
    peer = published("gpt2", tmp_path)
    plan, weights = iso.import_checkpoint(tmp_path)
    prompt = [3, 1, 4]
    with torch.no_grad():
        scores = peer(torch.tensor([prompt])).logits[:, -1]
    for processor in (
        transformers.TemperatureLogitsWarper(2.0),
        transformers.TopKLogitsWarper(10),
        transformers.TopPLogitsWarper(0.8),
    ):
        scores = processor(torch.tensor([prompt]), scores)
    probabilities = torch.softmax(scores, -1)[0].numpy()
    model, draws = iso.torch.build(plan, weights), 3000
    found = iso.generate(model, [prompt] * draws, 1, temperature=2.0, top_k=10, top_p=0.8, seed=11)[:, -1]
    counts = np.bincount(found, minlength=61) / draws
    assert ((counts > 0) <= (probabilities > 0)).all()
    np.testing.assert_allclose(
        counts, probabilities, atol=4 * np.sqrt(probabilities.max() * (1 - probabilities.max()) / draws)
    )


def test_a_transcription_is_the_peers(tmp_path):
    """Whisper: the encoder once, and the ids that score highest under the peer's own forward."""
    config = transformers.WhisperConfig(
        vocab_size=53, d_model=24, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=3, encoder_ffn_dim=40, decoder_ffn_dim=36, num_mel_bins=7, max_source_positions=9,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    )  # fmt: skip
    torch.manual_seed(0)
    peer = transformers.WhisperForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(std=0.4)
    peer.save_pretrained(tmp_path)
    plan, weights = iso.import_checkpoint(tmp_path)
    features = torch.randn(2, 7, 18, dtype=torch.float64)
    ids = torch.tensor([[3, 5], [3, 9]])
    for _ in range(10):
        with torch.no_grad():
            scores = peer(features, decoder_input_ids=ids).logits[:, -1]
        ids = torch.cat((ids, scores.argmax(-1, keepdim=True)), 1)
    found = iso.generate(iso.torch.build(plan, weights), ids[:, :2], 10, inputs={"features": features})
    assert found.tolist() == ids.tolist()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_ids_under_every_setting_are_the_peers(name, tmp_path):
    """The peer counts a filling among the n-grams, so each row is compared alone, and the batch without n-grams."""
    peer = published(name, tmp_path)
    plan, weights = iso.import_checkpoint(tmp_path)
    model = iso.torch.build(plan, weights)
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7]]
    ids, mask = torch.tensor([prompts[0], [0] * 7 + prompts[1]]), torch.tensor([[1] * 9, [0] * 7 + [1, 1]])
    told = {
        "repetition_penalty": 1.4, "suppress_tokens": [11, 30], "begin_suppress_tokens": [17, 20, 21],
        "bad_words_ids": [[8], [6, 5, 40]], "min_new_tokens": 3, "eos_token_id": [5, 6, 7, 12], "forced_eos_token_id": 44,
    }  # fmt: skip
    asked = {
        "repetition_penalty": 1.4, "suppress": [11, 30], "begin_suppress": [17, 20, 21], "banned": [[8], [6, 5, 40]],
        "min_new_tokens": 3, "stop": [5, 6, 7, 12], "forced_end": 44,
    }  # fmt: skip

    def of_peer(rows: Any, shown: Any, **more: Any) -> list[list[int]]:
        return peer.generate(
            rows, attention_mask=shown, max_new_tokens=20, do_sample=False, pad_token_id=0, **told, **more
        ).tolist()

    found = iso.generate(model, prompts, 20, **asked).tolist()
    for row, other in zip(found, of_peer(ids, mask), strict=True):
        end = next((i for i in range(9, len(row)) if row[i] in asked["stop"]), len(row) - 1) + 1
        assert row[:end] == other[:end] and all(token == 0 for token in other[end:])
    for prompt in prompts:
        for size in (2, 3):
            alone = torch.tensor([prompt])
            expected = of_peer(alone, torch.ones_like(alone), no_repeat_ngram_size=size)[0]
            assert iso.generate(model, prompt, 20, no_repeat_ngram=size, **asked).tolist() == expected
