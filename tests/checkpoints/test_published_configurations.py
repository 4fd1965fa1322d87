"""Configurations as they are published: every key is known, and one that is ignored is read by nobody.

What is written here are the keys and values of ``config.json`` in the named models, sizes left out where they have
their default.
"""

import dataclasses
import importlib
import inspect
import json
import re

import pytest

from isomorph.checkpoints.blocks import ACTIVATIONS
from isomorph.checkpoints.families import FAMILIES
from isomorph.checkpoints.family import Ignored, known_keys, passed_over, read_options

GPT2 = {
    "activation_function": "gelu_new", "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1,
    "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "n_ctx": 1024, "n_embd": 1024,
    "n_head": 16, "n_layer": 24, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
    "summary_use_proj": True, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}  # fmt: skip
LLAMA = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 576, "initializer_range": 0.02, "intermediate_size": 1536, "max_position_embeddings": 2048,
    "mlp_bias": False, "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
    "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.41.2", "use_cache": True,
    "vocab_size": 49152,
}  # fmt: skip
QWEN2 = {
    "attention_dropout": 0.0, "hidden_act": "silu", "max_window_layers": 24, "rope_theta": 1e6,
    "sliding_window": 131072, "tie_word_embeddings": True, "use_sliding_window": False,
}  # fmt: skip
BERT = {
    "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "hidden_size": 384, "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02,
    "intermediate_size": 1536, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0, "position_embedding_type": "absolute",
    "type_vocab_size": 2, "use_cache": True, "vocab_size": 30522,
}  # fmt: skip
DINOV2 = {
    "apply_layernorm": True, "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0, "hidden_size": 768, "image_size": 518, "initializer_range": 0.02,
    "layer_norm_eps": 1e-6, "layerscale_value": 1.0, "mlp_ratio": 4, "num_attention_heads": 12, "num_channels": 3,
    "num_hidden_layers": 12, "out_features": ["stage12"], "out_indices": [12], "patch_size": 14, "qkv_bias": True,
    "reshape_hidden_states": True, "stage_names": ["stem"], "torch_dtype": "float32", "use_swiglu_ffn": False,
}  # fmt: skip
CLIP_TOWER = {
    "_name_or_path": "", "add_cross_attention": False, "architectures": None, "attention_dropout": 0.0,
    "bad_words_ids": None, "begin_suppress_tokens": None, "bos_token_id": 0, "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None, "decoder_start_token_id": None, "diversity_penalty": 0.0,
    "do_sample": False, "dropout": 0.0, "early_stopping": False, "encoder_no_repeat_ngram_size": 0,
    "eos_token_id": 2, "exponential_decay_length_penalty": None, "finetuning_task": None,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "hidden_act": "quick_gelu",
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "initializer_factor": 1.0, "initializer_range": 0.02,
    "is_decoder": False, "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "layer_norm_eps": 1e-5, "length_penalty": 1.0, "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0,
    "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1, "output_attentions": False,
    "output_hidden_states": False, "output_scores": False, "pad_token_id": 1, "prefix": None, "problem_type": None,
    "projection_dim": 512, "pruned_heads": {}, "remove_invalid_values": False, "repetition_penalty": 1.0,
    "return_dict": True, "return_dict_in_generate": False, "sep_token_id": None, "suppress_tokens": None,
    "task_specific_params": None, "temperature": 1.0, "tf_legacy_loss": False, "tie_encoder_decoder": False,
    "tie_word_embeddings": True, "tokenizer_class": None, "top_k": 50, "top_p": 1.0, "torch_dtype": None,
    "torchscript": False, "transformers_version": "4.24.0", "typical_p": 1.0, "use_bfloat16": False,
}  # fmt: skip
CLIP = {
    "_commit_hash": None, "initializer_factor": 1.0, "logit_scale_init_value": 2.6592, "projection_dim": 512,
    "text_config": CLIP_TOWER | {"model_type": "clip_text_model"}, "text_config_dict": None,
    "torch_dtype": "float32", "transformers_version": None,
    "vision_config": CLIP_TOWER | {"model_type": "clip_vision_model"}, "vision_config_dict": None,
}  # fmt: skip
WHISPER = {
    "activation_dropout": 0.0, "activation_function": "gelu", "apply_spec_augment": False, "attention_dropout": 0.0,
    "begin_suppress_tokens": [220, 50257], "bos_token_id": 50257, "classifier_proj_size": 256, "d_model": 384,
    "decoder_layerdrop": 0.0, "decoder_start_token_id": 50258, "dropout": 0.0, "encoder_layerdrop": 0.0,
    "eos_token_id": 50257, "forced_decoder_ids": [[1, 50259]], "init_std": 0.02, "is_encoder_decoder": True,
    "mask_feature_length": 10, "mask_feature_min_masks": 0, "mask_feature_prob": 0.0, "mask_time_length": 10,
    "mask_time_min_masks": 2, "mask_time_prob": 0.05, "max_length": 448, "max_source_positions": 1500,
    "max_target_positions": 448, "median_filter_width": 7, "num_mel_bins": 80, "pad_token_id": 50257,
    "scale_embedding": False, "suppress_tokens": [1, 2, 7], "use_weighted_layer_sum": False, "vocab_size": 51865,
}  # fmt: skip
IDENTITY = "torch.nn.modules.linear.Identity"
TINYBERT = {"cell": {}, "emb_size": 312, "pre_trained": "", "structure": [], "training": ""}

PUBLISHED = {
    "gpt2": ("gpt2", GPT2),
    "gpt2-medium, gpt2-large, DialoGPT": ("gpt2", GPT2 | {"n_special": 0, "predict_special_tokens": True}),
    "gpt2-xl": ("gpt2", GPT2 | {"output_past": True}),
    "distilgpt2": ("gpt2", GPT2 | {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}),
    "files of 2019": (
        "gpt2",
        GPT2 | {"num_labels": 2, "output_attentions": False, "pruned_heads": {}, "torchscript": False, "xla_device": None,
                "eos_token_ids": 0, "finetuning_task": None, "use_bfloat16": False},
    ),
    "llama-7b": ("llama", LLAMA | {"max_sequence_length": 2048, "pad_token_id": -1}),
    "SmolLM2": ("llama", LLAMA | {"is_llama_config": True, "rope_interleaved": False}),
    "SmolLM2-Instruct": (
        "llama", LLAMA | {"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "pad_token_id": 2}
    ),
    "unsloth": ("llama", LLAMA | {"unsloth_fixed": True, "unsloth_version": "2025.1", "pad_token_id": 128004}),
    "Llama-3.2": (
        "llama",
        LLAMA | {"eos_token_id": [1, 2], "head_dim": 64, "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
    ),
    "Mistral-7B-v0.1": (
        "mistral", {"hidden_act": "silu", "rope_theta": 10000.0, "sliding_window": 4096, "_flash_attn_2_enabled": True}
    ),
    "Mistral-Nemo": ("mistral", {"head_dim": 128, "rope_theta": 1e6, "sliding_window": None}),
    "Qwen2": ("qwen2", QWEN2),
    "Qwen2.5": ("qwen2", QWEN2 | {"use_mrope": False, "unsloth_fixed": True}),
    "bert-base-uncased, bge, gte, MiniLM": ("bert", BERT),
    "nlptown": ("bert", BERT | {"_num_labels": 5, "output_past": True, "directionality": "bidi",
                                "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
                                "pooler_size_per_head": 128, "pooler_type": "first_token_transform"}),
    "multilingual-e5-small": ("bert", BERT | {"tokenizer_class": "XLMRobertaTokenizer"}),
    "TinyBERT": ("bert", BERT | TINYBERT),
    "gbert": ("bert", BERT | {"language": "german", "name": "Bert"}),
    "ms-marco-MiniLM": ("bert", BERT | {"sbert_ce_default_activation_function": IDENTITY}),
    "ms-marco-MiniLM, newer": (
        "bert", BERT | {"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.1.0.dev0"}}
    ),
    "vit-base-patch16-224": ("vit", {"encoder_stride": 16, "hidden_act": "gelu", "qkv_bias": True, "patch_size": 16}),
    "deit-base": ("deit", {"encoder_stride": 16, "hidden_act": "gelu", "qkv_bias": True, "patch_size": 16}),
    "dinov2": ("dinov2", DINOV2),
    "dinov2-with-registers": (
        "dinov2_with_registers",
        DINOV2 | {"interpolate_antialias": True, "interpolate_offset": 0.0, "num_register_tokens": 4},
    ),
    "clip-vit-large-patch14": ("clip", CLIP),
    "laion": ("clip", CLIP | {"text_config_dict": {"hidden_act": "gelu", "projection_dim": 512},
                              "vision_config_dict": {"hidden_act": "gelu", "patch_size": 32, "projection_dim": 512}}),
    "stable diffusion's text tower": (
        "clip_text_model",
        {"dropout": 0.0, "eos_token_id": 2, "hidden_act": "quick_gelu", "initializer_factor": 1.0, "projection_dim": 768},
    ),
    "whisper, distil-whisper": ("whisper", WHISPER),
    "whisper-large-v3-turbo": ("whisper", WHISPER | {"num_mel_bins": 128, "decoder_layers": 4, "vocab_size": 51866}),
    "fine-tuned whisper": (
        "whisper",
        WHISPER | {"alignment_heads": [[2, 2]], "is_multilingual": True, "lang_to_id": {"<|en|>": 50259},
                   "language": "en", "task": "transcribe", "task_to_id": {"transcribe": 50359},
                   "no_timestamps_token_id": 50363, "prev_sot_token_id": 50361, "return_timestamps": False,
                   "lang_ids": [50259], "suppress_ids": [1], "max_initial_timestamp_index": 50},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_a_published_configuration_is_followed(name):
    family, configuration = PUBLISHED[name]
    options, problems = read_options(FAMILIES[family], configuration | {"model_type": family})
    assert problems == []
    assert options


@pytest.mark.parametrize(
    ("family", "key", "value", "problem"),
    [
        ("bert", "sentence_transformers", {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
         f"sentence_transformers.activation_fn: expected '{IDENTITY}' or None (the answers are the class's scores, "
         "on which nothing acts), got 'torch.nn.modules.activation.Sigmoid'"),
        ("bert", "sbert_ce_default_activation_function", "torch.nn.modules.activation.Sigmoid",
         f"sbert_ce_default_activation_function: expected '{IDENTITY}' or None (the answers are the class's scores, "
         "on which nothing acts), got 'torch.nn.modules.activation.Sigmoid'"),
        ("qwen2", "is_causal", False,
         "is_causal: expected None or True (the family's own attention is imported), got False"),
        ("gpt2", "transformers_weights", "other.safetensors",
         "transformers_weights: expected None (weights have the usual files' names), got 'other.safetensors'"),
        ("llama", "hidden_size", 2**63, "hidden_size: expected at most 2,147,483,647, got 9223372036854775808"),
        ("gpt2", "hidden_size", 4, "hidden_size: expected 5, as n_embd, whose other name it is, got 4"),
    ],
)  # fmt: skip
def test_what_may_change_the_numbers_is_refused(family, key, value, problem):
    given = {"n_embd": 5} if family == "gpt2" else {}
    assert read_options(FAMILIES[family], given | {key: value})[1] == [problem]


@pytest.mark.parametrize(
    ("family", "configuration", "keys"),
    [
        ("llama", {"transformers.js": 1, "my_trainer": {"steps": 3}}, ["my_trainer", "transformers.js"]),
        ("clip", {"text_config.vocab_size": 3, "text_config": {"rotary": True}},
         ["text_config.rotary", "text_config.vocab_size"]),
        ("bert", {"sentence_transformers.version": "4"}, ["sentence_transformers.version"]),
        ("dinov2", {"interpolate_offset": 0.1, "num_register_tokens": 4},
         ["interpolate_offset", "num_register_tokens"]),
        ("llama", {"rope_scaling": {"rope_type": "default", "factor": 8.0, "attention_factor": 1.2}},
         ["rope_scaling.factor", "rope_scaling.attention_factor"]),
        ("qwen2", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta_fast": 3}},
         ["rope_parameters.beta_fast"]),
    ],
)  # fmt: skip
def test_keys_that_the_class_does_not_declare_are_passed_over(family, configuration, keys):
    """They cannot change its numbers, which is told."""
    options, problems = read_options(FAMILIES[family], configuration)
    assert problems == []
    assert options == read_options(FAMILIES[family], {})[0] | {
        key: value for key, value in configuration.items() if key.startswith("rope")
    }
    assert passed_over(FAMILIES[family], configuration, options) == keys


@pytest.mark.parametrize(
    ("family", "configuration"),
    [
        ("gpt2", {"n_layer": 2.0, "n_embd": 16.0}), ("bert", {"hidden_size": 16.0}), ("whisper", {"d_model": 6e0}),
        ("llama", {"num_key_value_heads": 1.0, "head_dim": 8.0}), ("mistral", {"sliding_window": 4096.0}),
        ("qwen2", {"max_window_layers": 28.0}), ("clip", {"text_config": {"eos_token_id": 7.0}}),
        ("dinov2", {"mlp_ratio": 4.0, "patch_size": 14.0, "image_size": [28.0, 28.0]}), ("llama", {"partial_rotary_factor": 1}),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                                       "original_max_position_embeddings": 8192.0}}),
    ],
)  # fmt: skip
def test_numbers_are_numbers(family, configuration):
    """16.0 is 16, whatever wrote it; the definition is the same text."""
    whole = json.loads(re.sub(r"\.0\b", "", json.dumps(configuration)))
    texts = []
    for given in (configuration, whole):
        options, problems = read_options(FAMILIES[family], given)
        assert problems == []
        architecture = FAMILIES[family].default_architecture
        texts.append(
            FAMILIES[family].definition(
                {**options, "architecture": architecture, "pooler": False, "num_labels": 2}
            )
        )
    assert texts[0].replace("28.0, 28.0", "28, 28") == texts[1]


@pytest.mark.parametrize("value", [True, 16.5, "16", float("nan"), float("inf"), -16.0, 0.0, [16], 1e400])
def test_what_is_no_whole_number_is_refused(value):
    assert read_options(FAMILIES["bert"], {"hidden_size": value})[1] == [
        f"hidden_size: expected an integer from 1, got {value!r}"
    ]


@pytest.mark.parametrize(
    ("name", "ours"),
    [("gelu_python", "gelu"), ("gelu_fast", "gelu_tanh"), ("gelu_accurate", "gelu_tanh"), ("gelu_python_tanh", "gelu_tanh")],
)  # fmt: skip
def test_other_names_of_one_function(name, ours):
    """As the peer library's table has them."""
    activations = pytest.importorskip("transformers.activations")
    torch = pytest.importorskip("torch")
    x = torch.linspace(-6, 6, 97, dtype=torch.float64)
    approximate = "tanh" if ours == "gelu_tanh" else "none"
    expected = torch.nn.functional.gelu(x, approximate=approximate)
    torch.testing.assert_close(activations.ACT2FN[name](x), expected, rtol=0, atol=1e-10)
    assert ACTIVATIONS[name] == ours


@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_key_that_the_class_declares_is_known(name):
    """Followed, ignored for a reason, or held to values: none of them is passed over."""
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    family, kind = FAMILIES[name], auto.CONFIG_MAPPING[name]
    known = {*known_keys(family), *family.other_names}
    groups = {key.partition(".")[0] for key in known if "." in key}
    declared = {field.name for field in dataclasses.fields(kind)}
    assert declared - known - groups == set()
    assert set(kind.attribute_map.items()) <= set(family.other_names.items())
    for group, inner in (kind.sub_configs if groups & {"text_config"} else {}).items():
        assert {f"{group}.{field.name}" for field in dataclasses.fields(inner)} - known == set()


# What configurations are asked for in code that all models share: masks, caches, loading.
SHARED = {"is_causal", "attention_chunk_size", "quantization_config", "transformers_weights", "fusion_config",
          "per_layer_config"}  # fmt: skip


@pytest.mark.parametrize("name", list(FAMILIES))
def test_keys_that_shared_code_reads_are_known(name):
    assert known_keys(FAMILIES[name]).keys() >= SHARED


SOURCES = {
    "gpt2": ["gpt2.modeling_gpt2"], "llama": ["llama.modeling_llama"], "mistral": ["mistral.modeling_mistral"],
    "qwen2": ["qwen2.modeling_qwen2"], "bert": ["bert.modeling_bert"], "vit": ["vit.modeling_vit"],
    "deit": ["deit.modeling_deit"], "dinov2": ["dinov2.modeling_dinov2"],
    "dinov2_with_registers": ["dinov2_with_registers.modeling_dinov2_with_registers"],
    "clip": ["clip.modeling_clip"], "whisper": ["whisper.modeling_whisper"],
}  # fmt: skip
READ = {
    "_attn_implementation": "which kernel computes attention",
    "chunk_size_feed_forward": "cuts the feed-forward along T, where every position is for itself",
    "num_labels": "the size of a head, which its tensor has",
    "pad_token_id": "the row of a table that is not trained",
    "problem_type": "picks a loss",
    "use_cache": "keeps keys and values",
}
"""Of these keys those that are read all the same, and what for."""


@pytest.mark.parametrize("name", list(SOURCES))
def test_keys_that_files_carry_along_are_read_by_no_layer(name):
    """Of the ignored keys those that no configuration of the peer has by itself: nobody may ask for them."""
    transformers = pytest.importorskip("transformers")
    text = "".join(
        inspect.getsource(importlib.import_module(f"transformers.models.{module}"))
        for module in SOURCES[name]
    )
    config = transformers.AutoConfig.for_model(name).to_dict()
    keys = {key.rpartition(".")[2] for key, setting in known_keys(FAMILIES[name]).items()
            if isinstance(setting, Ignored) and key not in config and key != "transformers.js_config"}  # fmt: skip
    keys -= {key for part in config.values() if isinstance(part, dict) for key in part}
    assert {"output_past", "_num_labels"} <= keys
    read = {key for key in keys - READ.keys() if re.search(rf"config\.{key}\b", text)}
    assert read == set()
