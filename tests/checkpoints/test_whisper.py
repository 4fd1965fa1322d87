"""Whisper checkpoints beside transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import isomorph as iso
from isomorph.checkpoints.families import recognize
from isomorph.checkpoints.whisper import WHISPER

SIZES = {
    "vocab_size": 13, "num_mel_bins": 7, "d_model": 12, "encoder_layers": 2, "encoder_attention_heads": 3,
    "encoder_ffn_dim": 21, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 15,
    "max_source_positions": 5, "max_target_positions": 9,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "decoder_start_token_id": 1,
    "begin_suppress_tokens": None,
}  # fmt: skip
HEADED = "WhisperForConditionalGeneration"
FEATURES = np.random.default_rng(0).normal(size=(2, 7, 10))
IDS = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])


def given(ids: np.ndarray = IDS) -> dict[str, torch.Tensor]:
    return {"input_features": torch.from_numpy(FEATURES), "decoder_input_ids": torch.from_numpy(ids)}


def answers(model, name: str, ids: np.ndarray = IDS) -> tuple[dict[str, np.ndarray], str]:
    with torch.no_grad():
        answer = model(**given(ids), use_cache=False)
    if name == HEADED:
        return {"": answer.logits.numpy()}, "logits"
    encoded = answer.encoder_last_hidden_state.numpy()
    return {"hidden": answer.last_hidden_state.numpy(), "encoded": encoded}, "last_hidden_state"


@pytest.fixture
def whisper(published):
    """A directory, and the model; what the peer draws at random replaced, its sines and cosines too."""

    def make(name: str = HEADED, **options):
        return published(name, transformers.WhisperConfig(**{**SIZES, **options}))

    return make


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (HEADED, {}),
        (HEADED, {"tie_word_embeddings": False, "activation_function": "relu", "encoder_ffn_dim": 24}),
        (HEADED, {"scale_embedding": True, "encoder_layers": 1, "decoder_layers": 2}),
        ("WhisperModel", {"activation_function": "gelu_new", "decoder_ffn_dim": 36}),
    ],
)
def test_computes_what_transformers_computes_and_returns(whisper, agrees, returns, name, options):
    directory, model = whisper(name, **options)
    expected, key = answers(model, name)
    agrees(directory, expected, FEATURES, IDS)
    returns(directory, model, key, **given(), use_cache=False)


def test_the_frozen_table_is_read_from_the_file(whisper):
    """And frozen as the peer freezes it, whose initial sines and cosines are not assumed."""
    directory, model = whisper()
    plan, weights = iso.import_checkpoint(directory)
    frozen = [parameter.path for parameter in plan.parameters if not parameter.trainable]
    theirs = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert (frozen, theirs) == (["encoder_positions.weight"], ["model.encoder.embed_positions.weight"])
    table = load_file(directory / "model.safetensors")[theirs[0]]
    assert weights[frozen[0]].tobytes() == table.tobytes()


@pytest.mark.parametrize("length", [1, 9])
def test_any_length_up_to_the_table(whisper, length):
    directory, model = whisper()
    plan, weights = iso.import_checkpoint(directory)
    ids = np.random.default_rng(1).integers(0, 13, (2, length))
    expected = answers(model, HEADED, ids)[0][""]
    found = iso.reference.build(plan, weights)(FEATURES, ids)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())
    with pytest.raises(iso.IsomorphError) as error:
        iso.reference.build(plan, weights)(FEATURES, np.zeros((2, 10), int))
    assert error.value.code == "E_RUNTIME"


def test_the_definition_is_folded_and_commented(whisper):
    directory, _ = whisper()
    plan = iso.import_checkpoint(directory)[0]
    assert plan.definition == (
        "# Whisper: 2 encoder and 1 decoder layers of width 12, 13 ids.\n"
        "\n"
        'features = input("B", 7, 10)   # a log-mel spectrogram: bins, then frames\n'
        'ids = input("B", "T", dtype="int64")   # what is written so far\n'
        "\n"
        "# The encoder. Two frames make one position.\n"
        'conv1d(features, 12, 3, padding=1, name="conv1")\n'
        "gelu()\n"
        'conv1d(12, 3, stride=2, padding=1, name="conv2")\n'
        "gelu()\n"
        "transpose(1, 2)\n"
        'h = pos_embed(5, trainable=False, name="encoder_positions")   # sines and cosines, as a table\n'
        "\n"
        "for _ in range(2):\n"
        '    layer_norm(h, eps=1e-05, name="encoder_attn_norm")\n'
        '    attended = attention(3, k_bias=False, name="encoder_attn")\n'
        "    h = add(h, attended)\n"
        "\n"
        '    layer_norm(h, eps=1e-05, name="encoder_ffn_norm")\n'
        '    mixed = feed_forward(21, activation="gelu", name="encoder_ffn")\n'
        "    h = add(h, mixed)\n"
        "\n"
        'encoded = layer_norm(eps=1e-05, name="encoder_norm")\n'
        "\n"
        "# The decoder. Every layer attends to what is written, then to what was heard.\n"
        'embedding(ids, 13, 12, name="tokens")\n'
        'h = pos_embed(9, name="decoder_positions")   # learned positions, hence T <= 9\n'
        "\n"
        "for _ in range(1):\n"
        '    layer_norm(h, eps=1e-05, name="decoder_attn_norm")\n'
        '    attended = attention(4, causal=True, k_bias=False, name="decoder_attn")\n'
        "    h = add(h, attended)\n"
        "\n"
        '    asking = layer_norm(h, eps=1e-05, name="decoder_cross_norm")\n'
        '    answered = cross_attention(asking, encoded, 4, k_bias=False, name="decoder_cross")\n'
        "    h = add(h, answered)\n"
        "\n"
        '    layer_norm(h, eps=1e-05, name="decoder_ffn_norm")\n'
        '    mixed = feed_forward(15, activation="gelu", name="decoder_ffn")\n'
        "    h = add(h, mixed)\n"
        "\n"
        'layer_norm(eps=1e-05, name="decoder_norm")\n'
        'linear(13, bias=False, name="head", tie={"weight": "tokens.weight"})   # reads and scores with one table\n'
        "\n"
        'output("B", "T", 13)\n'
    )
    assert [name for name, _ in plan.inputs] == ["features", "ids"]  # as the peer's forward takes them


# What the files of the published models hold beside the keys that are handled.
PUBLISHED_KEYS = {
    "_name_or_path": "openai/whisper-tiny", "begin_suppress_tokens": [220, 50257], "bos_token_id": 50257,
    "forced_decoder_ids": [[1, 50259], [2, 50359], [3, 50363]], "init_std": 0.02, "max_length": 448,
    "num_hidden_layers": 2, "suppress_tokens": [1, 2, 7], "torch_dtype": "float32", "use_cache": True,
    "apply_spec_augment": True, "mask_time_prob": 0.5, "median_filter_width": 7, "encoder_layerdrop": 0.1,
    "classifier_proj_size": 256, "use_weighted_layer_sum": False, "scale_embedding": True,
}  # fmt: skip


def change(directory, **keys) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_keys_of_published_files_change_nothing(whisper):
    directory, _ = whisper()
    plan, _ = iso.import_checkpoint(directory)
    change(directory, **PUBLISHED_KEYS)
    assert iso.import_checkpoint(directory)[0] == plan


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ({"per_layer_config": {"1": {"d_model": 4}}},
         "per_layer_config: expected None or {} (layers are alike), got {'1': {'d_model': 4}}"),
        ({"is_encoder_decoder": False},
         "is_encoder_decoder: expected True (an encoder and a decoder are imported), got False"),
        ({"num_hidden_layers": 4},
         "num_hidden_layers: expected 2, as encoder_layers, whose other name it is, got 4"),
        ({"hidden_size": 7}, "hidden_size: expected 12, as d_model, whose other name it is, got 7"),
        ({"num_mel_bins": "80"}, "num_mel_bins: expected an integer from 1, got '80'"),
        ({"decoder_layers": 0}, "decoder_layers: expected an integer from 1, got 0"),
        ({"activation_function": "mish"},
         "activation_function: expected 'gelu' or 'gelu_new' or 'gelu_pytorch_tanh' or 'relu' or 'silu' or 'swish' "
         "or 'quick_gelu' or 'gelu_python' or 'gelu_fast' or 'gelu_accurate' or 'gelu_python_tanh', got 'mish'"),
        ({"architectures": ["WhisperForAudioClassification"]},
         "architectures: expected WhisperForConditionalGeneration or WhisperModel, "
         "got 'WhisperForAudioClassification'"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(whisper, keys, hint):
    directory, _ = whisper()
    change(directory, **keys)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.code == "E_CHECKPOINT"
    assert error.value.hints == (hint,)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"encoder_attention_heads": 5}, "heads=5 does not divide the model width D=12"),
        # Six calls in a layer of the encoder: two norms, two branches, two sums.
        (
            {"encoder_layers": 10**9},
            "the loop unrolls to 6,000,000,000 operator calls, above the limit of 20,000",
        ),
        ({"vocab_size": 10**12}, "the number 1000000000000 is above the limit of 2,147,483,647"),
        ({"max_source_positions": 10**12}, "the number 2000000000000 is above the limit of 2,147,483,647"),
        # 12 * 10 ** 9 numbers of 8 bytes are more than 64 GiB.
        ({"vocab_size": 10**9}, "the parameters take 96,000,0"),
    ],
)
def test_hostile_sizes_are_refused_before_anything_is_read(whisper, keys, message):
    directory, _ = whisper()
    change(directory, **keys)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.code == "E_CHECKPOINT"
    assert "describes a network that cannot be built: " in error.value.message
    assert message in error.value.message


def test_everything_wrong_with_the_tensors_is_listed(whisper):
    """A bias of a key, a layer too many, a convolution whose axes stand in another order."""
    directory, _ = whisper()
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["model.encoder.layers.0.self_attn.k_proj.bias"] = np.zeros(12)
    tensors["model.encoder.conv1.weight"] = tensors["model.encoder.conv1.weight"].transpose(2, 1, 0).copy()
    del tensors["model.decoder.layers.0.encoder_attn.out_proj.bias"]
    save_file(tensors, path)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert str(error.value) == (
        "E_WEIGHTS: the tensors are not those of the configured WhisperForConditionalGeneration: 3 differ\n"
        "  missing: decoder.layers.0.encoder_attn.out_proj.bias [12]\n"
        "  misshapen: encoder.conv1.weight in model.safetensors: expected [12, 7, 3], got [3, 7, 12]\n"
        "  unexpected: encoder.layers.0.self_attn.k_proj.bias in model.safetensors [12]"
    )


def test_an_edited_definition_is_exported(whisper, tmp_path):
    """Other names, a layer fewer on one side; what counts is what it computes."""
    directory, model = whisper()
    plan, weights = iso.import_checkpoint(directory)
    text = plan.definition.replace("range(2)", "range(1)").replace('"tokens', '"table')
    text = text.replace(", trainable=False", "")
    edited = iso.resolve(text, dtype="float64")
    kept = {p.path: weights[p.path.replace("table", "tokens")] for p in edited.parameters}
    assert iso.export_checkpoint(tmp_path / "out", edited, kept) == HEADED
    short = getattr(transformers, HEADED).from_pretrained(tmp_path / "out", dtype=torch.float64).eval()
    model.model.encoder.layers = model.model.encoder.layers[:1]
    found, expected = answers(short, HEADED)[0][""], answers(model, HEADED)[0][""]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("eps=1e-05", "eps=1e-06", "encoder_attn_norm0 has eps=1e-06 where 1e-05 is expected"),
        ("stride=2", "stride=3", "cannot tell"),
        ("k_bias=False, ", "", "encoder_attn0 has k_bias=True where False is expected"),
    ],
)
def test_what_whisper_cannot_be_is_not_exported_as_one(whisper, tmp_path, old, new, hint):
    directory, _ = whisper()
    plan, _ = iso.import_checkpoint(directory)
    text = plan.definition.replace(old, new)
    if old == "stride=2":  # (14 - 1) // 3 + 1 = 5 positions
        text, hint = text.replace("7, 10)", "7, 14)"), "conv2 has stride=3 where 2 is expected"
    edited = iso.resolve(text, dtype="float64")
    with pytest.raises(iso.IsomorphError) as error:
        iso.export_checkpoint(tmp_path / "out", edited, iso.initial_weights(edited))
    assert f"whisper: {hint}" in error.value.hints


PAGE = (Path(__file__).parents[2] / "docs" / "checkpoints" / "whisper.md").read_text()
SMALL = {'"range(4)", "range(2)"': '"range(2)", "range(1)"', "range(20)": "range(1)", "51870": "17", "51865": "13",
         "50258, 50259, 50359, 50363": "3, 1, 4, 1"}  # fmt: skip


def documented() -> list[str]:
    """The page's Python, for a model as small as these tests' instead of whisper-tiny."""
    blocks = [part.partition("```")[0] for part in PAGE.split("```python\n")[1:]]
    for old, new in SMALL.items():
        assert old in PAGE
        blocks = [blocks[0], *(block.replace(old, new) for block in blocks[1:])]
    return blocks


def test_the_documented_definition_is_the_real_one():
    with torch.device("meta"):
        config = transformers.WhisperConfig(encoder_layers=1, decoder_layers=1)
        model = getattr(transformers, HEADED)(config)
    plan = iso.resolve(documented()[0])
    assert plan.parameter_count == sum(parameter.numel() for parameter in model.parameters())
    assert WHISPER.definition(recognize(plan).options) == plan.definition == documented()[0]


def test_the_documented_ways_to_edit_and_to_run(whisper, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory, model = whisper(decoder_layers=2)
    plan, weights = iso.import_checkpoint(directory)
    names = {"iso": iso, "np": np, "plan": plan, "weights": weights, "features": FEATURES[:1]}
    _, short, wide, frozen, sounds, running = documented()
    exec(short, names)
    read = getattr(transformers, HEADED).from_pretrained
    layers = model.model.decoder.layers
    model.model.decoder.layers = layers[:1]
    expected = answers(model, HEADED)[0][""]
    found = answers(read("OUT", dtype=torch.float64).eval(), HEADED)[0][""]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    model.model.decoder.layers = layers

    exec(wide, names)
    found = answers(read("WIDE", dtype=torch.float64).eval(), HEADED)[0][""]
    assert found.shape == (2, 7, 17)
    np.testing.assert_allclose(found[..., :13], answers(model, HEADED)[0][""], rtol=0, atol=1e-12)

    exec(frozen, names)
    trained = {p.path.partition(".")[0].rstrip("01") for p in names["frozen"].parameters if p.trainable}
    assert trained == {"tokens"} | {
        f"decoder_{part}"
        for part in ("positions", "attn_norm", "attn", "cross_norm", "cross", "ffn_norm", "ffn", "norm")
    }

    exec(sounds, names)
    assert set(names["start"]) - set(weights) == {"classes.weight", "classes.bias"}
    with torch.no_grad():
        pooled = model.model.encoder(torch.from_numpy(FEATURES)).last_hidden_state.mean(1).numpy()
    heard = iso.reference.build(names["sounds"], names["start"])(FEATURES)
    classes = pooled @ names["start"]["classes.weight"].T + names["start"]["classes.bias"]
    np.testing.assert_allclose(heard, classes, rtol=0, atol=1e-10)

    pytest.importorskip("flax")
    names["plan"], names["weights"] = iso.import_checkpoint(directory, dtype="float32")
    exec(running, names)
    logits = answers(model, HEADED, np.array([[3, 1, 4, 1]] * 2))[0][""]
    assert names["ids"].tolist() == [[3, 1, 4, 1, logits[0, -1].argmax()]]


@pytest.mark.slow
def test_the_widths_of_whisper_tiny(tmp_path):
    """As published, with two layers on either side, in float32: torch and NNX within the network's bound."""
    from isomorph.agreement.bounds import numeric_bound
    from isomorph.backends import available

    torch.manual_seed(0)
    config = transformers.WhisperConfig(encoder_layers=2, decoder_layers=2)
    model = getattr(transformers, HEADED)(config).eval()
    model.save_pretrained(tmp_path)
    plan, weights = iso.import_checkpoint(tmp_path)
    assert plan.parameter_count == sum(parameter.numel() for parameter in model.parameters())
    features = np.random.default_rng(0).normal(size=(1, 80, 3000)).astype("float32")
    inputs = {"features": features, "ids": np.array([[50258, 50259, 50359, 50363, 1]])}
    truth = numeric_bound(plan, weights, inputs)
    with torch.no_grad():
        tensors = [torch.from_numpy(array) for array in inputs.values()]
        expected = model(input_features=tensors[0], decoder_input_ids=tensors[1]).logits.numpy()
    assert np.abs(expected - truth.outputs[""]).max() <= truth.total
    for backend in ("torch", "nnx"):
        found = available.load(backend).forward(plan, weights, inputs, "float32")
        assert np.abs(np.asarray(found[""]) - truth.outputs[""]).max() <= truth.total, backend
    assert truth.total < 1e-2 * np.abs(truth.outputs[""]).max()  # a bound that says something
