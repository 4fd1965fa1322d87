"""LLaMA, Mistral and Qwen2 checkpoints beside transformers."""

import json

import numpy as np
import pytest
import torch
import transformers

import isomorph as iso

IDS = np.random.default_rng(0).integers(0, 17, (2, 12))
SIZES = {
    "vocab_size": 17, "hidden_size": 12, "intermediate_size": 22, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "rms_norm_eps": 3e-3, "bos_token_id": None, "eos_token_id": None,
    "max_position_embeddings": 131072,
}  # fmt: skip
# With theta 1e5 and head width 10 the frequencies are 1, .1, .01, .001, .0001: over 8192 positions the fourth
# makes 1.3 turns, between the bands' limits of 1 and 4, and the last less than one.
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
BANDS = {
    "low_freq_factor": 0.5,
    "high_freq_factor": 6.5,
    "original_max_position_embeddings": 64,
    "rope_theta": 1e3,
}
LINEAR = {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.5}
DEFAULT = {"rope_type": "default", "rope_theta": 70.0}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("LlamaForCausalLM", {"num_key_value_heads": 3}),
        ("LlamaForCausalLM", {"rope_parameters": LLAMA3, "head_dim": 10, "tie_word_embeddings": True}),
        ("LlamaModel", {"rope_parameters": LINEAR, "attention_bias": True, "mlp_bias": True}),
        ("MistralForCausalLM", {"sliding_window": 3, "head_dim": 4, "rope_parameters": DEFAULT}),
        ("Qwen2ForCausalLM", {"tie_word_embeddings": True, "rope_parameters": DEFAULT}),
        ("Qwen2Model", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
        # Over 64 positions the frequencies 1, .18, .03, .01 (head width 8) make 10, 1.8, .3 and .06 turns:
        # above, between and below the limits.
        ("LlamaForCausalLM", {"rope_parameters": LLAMA3 | BANDS, "head_dim": 8, "attention_bias": True}),
        ("LlamaForCausalLM", {"mlp_bias": True, "head_dim": 10, "num_key_value_heads": 1}),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1,
                              "num_hidden_layers": 3, "head_dim": 6}),
        ("Qwen2Model", {"use_sliding_window": True, "sliding_window": 3, "num_hidden_layers": 4,
                        "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "full", "sliding")]}),
        ("MinistralForCausalLM", {"sliding_window": 3, "head_dim": 4, "num_hidden_layers": 3,
                                  "layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    ],
)  # fmt: skip
def test_computes_what_transformers_computes_and_returns(published, agrees, returns, name, options):
    family = name.removesuffix("ForCausalLM").removesuffix("Model")
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **options})
    directory, model = published(name, config)
    key = "logits" if name.endswith("LM") else "last_hidden_state"
    with torch.no_grad():
        expected = model(torch.from_numpy(IDS), use_cache=False)[key].numpy()
    agrees(directory, {"": expected}, IDS)
    returns(directory, model, key, torch.from_numpy(IDS), use_cache=False)


def test_the_definition_reads_like_one_written_by_hand(published):
    config = transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3, head_dim=10, tie_word_embeddings=True)
    directory, _ = published("LlamaForCausalLM", config)
    plan, _ = iso.import_checkpoint(directory)
    assert plan.definition == (
        "# Llama: 2 layers of width 12, 17 ids.\n"
        "\n"
        'ids = input("B", "T", dtype="int64")   # any length: there is no table of positions\n'
        "\n"
        'h = embedding(17, 12, name="tokens")\n'
        "\n"
        "for _ in range(2):\n"
        '    rms_norm(h, eps=0.003, name="attention_norm")\n'
        "    attended = attention(\n"
        "        6,\n"
        "        kv_heads=2,\n"
        "        head_dim=10,\n"
        "        causal=True,\n"
        "        bias=False,\n"
        "        rope=True,\n"
        "        rope_theta=100000.0,\n"
        '        rope_scaling="llama3",\n'
        "        rope_scale=8.0,\n"
        '        name="attention",\n'
        "    )\n"
        "    h = add(h, attended)\n"
        "\n"
        '    rms_norm(h, eps=0.003, name="ffn_norm")\n'
        '    gated = swiglu(22, name="ffn")   # down(silu(gate(x)) * up(x))\n'
        "    h = add(h, gated)\n"
        "\n"
        'rms_norm(h, eps=0.003, name="norm")\n'
        'linear(17, bias=False, name="head", tie={"weight": "tokens.weight"})'
        "   # reads and scores with one table\n"
        "\n"
        'output("B", "T", 17)\n'
    )


def test_the_head_width_is_read_not_derived(published):
    """Width 12, 2 heads, head width 8."""
    config = transformers.LlamaConfig(
        **{**SIZES, "num_attention_heads": 2, "num_key_value_heads": 1}, head_dim=8
    )
    _, weights = iso.import_checkpoint(published("LlamaForCausalLM", config)[0])
    assert weights["attention0.q_proj.weight"].shape == (16, 12)
    assert weights["attention0.k_proj.weight"].shape == (8, 12)
    assert weights["attention0.o_proj.weight"].shape == (12, 16)


def change(directory, remove=(), **keys):
    """Alter a saved configuration."""
    path = directory / "config.json"
    found = {key: value for key, value in json.loads(path.read_text()).items() if key not in remove}
    path.write_text(json.dumps(found | keys))


def test_older_spellings_mean_the_same(published):
    config = transformers.LlamaConfig(**SIZES, rope_parameters=LINEAR)
    directory, _ = published("LlamaForCausalLM", config)
    plan, _ = iso.import_checkpoint(directory)
    change(
        directory,
        ["rope_parameters"],
        rope_theta=300.0,
        rope_scaling={"type": "linear", "factor": 2.5},
        is_llama_config=True,
        rope_interleaved=False,
    )
    assert iso.import_checkpoint(directory)[0] == plan


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ({"embedding_multiplier": 3.0}, "embedding_multiplier: expected 1.0 or None (Granite's models read it, whose "
                                        "tensors have these names), got 3.0"),
        ({"hidden_act": "gelu"}, "hidden_act: expected 'silu' or 'swish' (the feed-forward is gated by silu), "
                                 "got 'gelu'"),
        ({"rope_interleaved": True},
         "rope_interleaved: expected False (feature i is rotated with i + d/2), got True"),
        ({"num_attention_heads": True}, "num_attention_heads: expected an integer from 1, got True"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps: expected a number above 0, got 'tiny'"),
        ({"mlp_bias": 1}, "mlp_bias: expected true or false, got 1"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
         "rope_type: expected 'default' or 'linear' or 'llama3', got 'yarn'"),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}},
         "high_freq_factor: expected more than low_freq_factor=1.0, got 1.0"),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": None}},
         "low_freq_factor: expected a number above 0, got None"),
        ({"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 8192.5}},
         "original_max_position_embeddings: expected an integer from 1, got 8192.5"),
        ({"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.5}},
         "partial_rotary_factor: expected 1.0 (all features are rotated), got 0.5"),
        ({"partial_rotary_factor": 0.5},
         "partial_rotary_factor: expected 1.0 or 1 (all features are rotated), got 0.5"),
        ({"rope_parameters": {"full_attention": DEFAULT}},
         f"full_attention: expected one kind of rotary positions, got {DEFAULT}"),
        ({"rope_scaling": LINEAR},
         f"rope_parameters: expected the positions of rope_scaling, {LINEAR}, "
         "got {'rope_theta': 10000.0, 'rope_type': 'default'}"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor: expected a number above 0, got None"),
        ({"rope_parameters": [1]}, "rope_parameters: expected an object, got [1]"),
        ({"architectures": ["LlamaForTokenClassification"]},
         "architectures: expected LlamaForCausalLM or LlamaModel or LLaMAForCausalLM, got 'LlamaForTokenClassification'"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(published, keys, hint):
    directory, _ = published("LlamaForCausalLM", transformers.LlamaConfig(**SIZES))
    change(directory, **keys)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert str(error.value) == (
        f"E_CHECKPOINT: {directory / 'config.json'}: a key of this llama cannot be followed\n  {hint}"
    )


def test_layers_with_different_windows_stand_in_loops_of_their_own(published):
    config = transformers.Qwen2Config(
        **SIZES | {"num_hidden_layers": 3}, use_sliding_window=True, sliding_window=4, max_window_layers=1
    )
    directory, _ = published("Qwen2Model", config)
    plan, _ = iso.import_checkpoint(directory)
    attention = {node.name: node.operator for node in plan.nodes if node.operator.name == "attention"}
    assert {name: operator.argument_values["window_size"] for name, operator in attention.items()} == {
        "attention0_0": 0, "attention1_0": 4, "attention1_1": 4,
    }  # fmt: skip
    assert "for _ in range(1):\n" in plan.definition and "for _ in range(2):\n" in plan.definition
    change(directory, ["layer_types"], max_window_layers=1)  # as older files say it
    assert iso.import_checkpoint(directory)[0] == plan


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types: expected 2 names, got ['full_attention']"),
        ({"layer_types": ["full_attention", "chunked_attention"]},
         "layer_types: expected 'full_attention' or 'sliding_attention', got 'chunked_attention'"),
        ({"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": False},
         "layer_types: 'sliding_attention' needs a sliding_window that is in use"),
        ({"layer_types": None, "max_window_layers": "all"},
         "max_window_layers: expected an integer from 0, got 'all'"),
        ({"use_mrope": True}, "use_mrope: expected False (positions are one number), got True"),
    ],
)  # fmt: skip
def test_windows_that_cannot_be_followed_are_refused_by_name(published, keys, hint):
    config = transformers.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    directory, _ = published("Qwen2Model", config)
    change(directory, **keys)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.hints == (hint,)


def test_two_windows_are_no_published_network(published, tmp_path):
    config = transformers.MinistralConfig(
        **SIZES, head_dim=2, sliding_window=3, layer_types=["full_attention", "sliding_attention"]
    )
    plan, weights = iso.import_checkpoint(published("MinistralModel", config)[0])
    text = plan.definition.replace('name="attention0_",', 'window_size=5,\n        name="attention0_",')
    with pytest.raises(iso.IsomorphError) as error:
        iso.export_checkpoint(tmp_path, iso.resolve(text, dtype=plan.dtype), weights)
    assert "ministral: its attention has window_size=3 and 5" in error.value.hints


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("MinistralModel", {"sliding_window": 3, "head_dim": 2, "layer_types": ["full_attention"] * 2}),
        ("MistralModel", {"sliding_window": None}),
    ],
)
def test_without_a_window_the_network_is_a_llama(published, agrees, name, options, tmp_path):
    config = getattr(transformers, name.replace("Model", "Config"))(**SIZES, **options)
    directory, model = published(name, config)
    with torch.no_grad():
        expected = model(torch.from_numpy(IDS), use_cache=False).last_hidden_state.numpy()
    agrees(directory, {"": expected}, IDS)
    assert iso.export_checkpoint(tmp_path / "out", *iso.import_checkpoint(directory)) == "LlamaModel"


def test_a_configuration_as_smollm_has_it(published, agrees, returns):
    """Its widths and keys, with fewer layers and ids."""
    config = transformers.LlamaConfig(
        vocab_size=331, hidden_size=576, intermediate_size=1536, num_hidden_layers=2, num_attention_heads=9,
        num_key_value_heads=3, rms_norm_eps=1e-5, tie_word_embeddings=True, max_position_embeddings=2048,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    directory, model = published("LlamaForCausalLM", config)
    change(
        directory, ["rope_parameters"], rope_theta=10000.0, rope_scaling=None, rope_interleaved=False,
        is_llama_config=True, pretraining_tp=1,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 0.1  # at this width draws of order one saturate every softmax
    model.save_pretrained(directory)
    ids = np.random.default_rng(1).integers(0, 331, (1, 9))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids), use_cache=False).logits.numpy()
    plan, weights = iso.import_checkpoint(directory)
    assert weights["attention0.k_proj.weight"].shape == (3 * 64, 576)
    assert plan.ties == {"head.weight": "tokens.weight"}
    agrees(directory, {"": expected}, ids)
    returns(directory, model, "logits", torch.from_numpy(ids), use_cache=False)


def test_computed_frequencies_in_the_file_are_left_out(published):
    """An older file holds them; here they are computed from the configuration."""
    from safetensors.numpy import load_file, save_file

    directory, _ = published("LlamaForCausalLM", transformers.LlamaConfig(**SIZES))
    path = directory / "model.safetensors"
    _, weights = iso.import_checkpoint(directory)
    found = load_file(path) | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(1)}
    save_file(found, path)
    _, again = iso.import_checkpoint(directory)
    assert list(again) == list(weights)


def test_an_example_is_exported_under_its_own_names(tmp_path):
    from pathlib import Path

    text = (Path(__file__).parents[2] / "examples" / "llama.net").read_text()
    for old, new in [("128256", "97"), ("2048", "32"), ("        32,", "        4,"), ("kv_heads=8", "kv_heads=2"),
                     ("8192", "40"), ("range(16)", "range(1)")]:  # fmt: skip
        text = text.replace(old, new)
    plan = iso.resolve(text)
    assert iso.export_checkpoint(tmp_path, plan, iso.initial_weights(plan)) == "LlamaForCausalLM"
    again, _ = iso.import_checkpoint(tmp_path)
    assert again.parameter_count == plan.parameter_count
