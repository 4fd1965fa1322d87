"""What a published model asks of a generation: read, and turned into settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.checkpoints.generation import settings_of
from isomorph.checkpoints.notes import notes_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def asked(**generation: Any) -> iso.GenerationSettings:
    return settings_of({"generation_config": generation})


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {"top_p": 0.9}),  # nothing is drawn without do_sample
        ({"do_sample": False, "temperature": 0.6}, {}),
        ({"do_sample": True}, {"temperature": 1.0, "top_k": 50}),  # transformers' own defaults
        ({"do_sample": True, "temperature": 0.6, "top_k": 0, "min_p": 0.1}, {"temperature": 0.6, "min_p": 0.1}),
        ({"do_sample": True, "top_k": None, "temperature": None}, {"temperature": 1.0, "top_k": 50}),
        ({"repetition_penalty": 1.1, "no_repeat_ngram_size": 3}, {"repetition_penalty": 1.1, "no_repeat_ngram": 3}),
        ({"eos_token_id": [5, 3]}, {"stop": [3, 5]}),
        ({"eos_token_id": 3, "bad_words_ids": [[3], [4], [3, 3]]}, {"stop": 3, "banned": [[4], [3, 3]]}),
        ({"suppress_tokens": [1], "begin_suppress_tokens": [2]}, {"suppress": 1, "begin_suppress": 2}),
        ({"forced_bos_token_id": 7, "forced_eos_token_id": 2}, {"forced": {1: 7}, "forced_end": 2}),
        ({"forced_decoder_ids": [[1, 7], [2, 8]]}, {"forced": {1: 7, 2: 8}}),
        ({"max_new_tokens": 9, "max_length": 30}, {"max_new_tokens": 9, "max_length": 30}),
        ({"max_length": 20}, {}),  # what older versions wrote where nobody had said it
        ({"min_new_tokens": 4}, {"min_new_tokens": 4}),
        ({"num_beams": 1, "use_cache": True, "length_penalty": 2.0, "transformers_version": "5.0"}, {}),
        # a model of several languages asks for its language to be found
        ({"forced_decoder_ids": [[1, None], [2, 8]]},
         {"forced": {2: 8}, "unfollowed": ("forced_decoder_ids [[1, None], [2, 8]]",)}),
        ({"num_beams": 4, "penalty_alpha": 0.6, "typical_p": 1.0, "chat_format": "chatml"},
         {"unfollowed": ("chat_format 'chatml'", "num_beams 4", "penalty_alpha 0.6")}),
        ({"temperature": "hot", "do_sample": True, "top_k": -1},
         {"temperature": 0.0, "unfollowed": ("temperature 'hot'", "top_k -1")}),
        ({"do_sample": "yes", "suppress_tokens": {"a": 1}},
         {"unfollowed": ("do_sample 'yes'", "suppress_tokens {'a': 1}")}),
        ({"forced_decoder_ids": 5, "bad_words_ids": 6},
         {"unfollowed": ("bad_words_ids 6", "forced_decoder_ids 5")}),
    ],
)  # fmt: skip
def test_what_a_configuration_asks_for(generation, expected):
    assert asked(**generation) == iso.GenerationSettings(**expected)


def test_the_end_of_text_is_that_of_the_generation_or_else_of_the_model():
    assert settings_of({"eos_token_id": 3}).stop == (3,)
    assert settings_of({"eos_token_id": 3, "generation_config": {"eos_token_id": [4, 5]}}).stop == (4, 5)
    assert settings_of({"eos_token_id": 3, "generation_config": {"top_k": 5}}).stop == (3,)


def test_older_models_say_it_in_their_configuration():
    old = {"eos_token_id": 3, "suppress_tokens": [1, 2], "num_beams": 2, "vocab_size": 9, "top_k": None}
    assert notes_of(old) == {
        "eos_token_id": 3, "generation_config": {"suppress_tokens": [1, 2], "num_beams": 2},
    }  # fmt: skip
    assert notes_of(old, {"top_k": 4}) == {"eos_token_id": 3, "generation_config": {"top_k": 4}}


@pytest.mark.parametrize(
    "notes", [{"generation_config": 3}, {"generation_config": [1]}, {"eos_token_id": "x"}]
)
def test_notes_that_nobody_should_trust(notes):
    assert settings_of(notes).stop == ()


def test_settings_of_what_is_nothing_published(tmp_path):
    plan = iso.resolve('ids = input("B", "T", dtype="int64")\nembedding(5, 4)\nlinear(5)')
    iso.save(tmp_path / "model.safetensors", plan, iso.initial_weights(plan), notes={"eos_token_id": 4})
    (tmp_path / "config.json").write_text("{}")  # as a run has one
    expected = iso.GenerationSettings(stop=4)
    assert (
        iso.generation_settings(tmp_path)
        == iso.generation_settings(tmp_path / "model.safetensors")
        == expected
    )
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generation_settings(tmp_path / "nothing")
    assert caught.value.code == "E_CHECKPOINT"


def test_whispers_forced_and_suppressed_ids_are_the_peers(tmp_path):
    """The peer's own front end: the beginning is forced, then its processors; the command of nobody, but its ids."""
    config = transformers.WhisperConfig(
        vocab_size=53, d_model=24, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=3, encoder_ffn_dim=40, decoder_ffn_dim=36, num_mel_bins=7, max_source_positions=9,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    torch.manual_seed(0)
    peer = transformers.WhisperForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(std=0.4)
    peer.save_pretrained(tmp_path)
    plan, weights = iso.import_checkpoint(tmp_path)
    model = iso.torch.build(plan, weights)
    features = torch.randn(2, 7, 18, dtype=torch.float64)
    free = iso.generate(model, [[3]] * 2, 8, inputs={"features": features})
    never, first = np.unique(free[:, 3:])[:3].tolist(), 0
    given: dict[str, Any] = {
        "suppress_tokens": never,
        "forced_decoder_ids": [[1, 40], [2, 41]],
        "eos_token_id": 2,
    }
    without = iso.generate(model, [[3]] * 2, 8, inputs={"features": features}, settings=asked(**given))
    assert without[:, :3].tolist() == [[3, 40, 41]] * 2 and not np.isin(without[:, 3:], never).any()
    first = int(without[0, 3])
    given["begin_suppress_tokens"] = [first]
    found = iso.generate(model, [[3]] * 2, 8, inputs={"features": features}, settings=asked(**given))
    assert found[0, 3] != first
    expected = transformers.GenerationMixin.generate(
        peer, features, decoder_input_ids=torch.tensor([[3, 40, 41]] * 2), max_new_tokens=6, do_sample=False,
        suppress_tokens=never, begin_suppress_tokens=[first], eos_token_id=2, pad_token_id=2, num_beams=1,
    )  # fmt: skip
    assert found.tolist() == expected.tolist()
