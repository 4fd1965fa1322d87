"""What a directory holds beside the network: an adapter, codes of numbers, other weights; and another family's model."""

import dataclasses
import json
import os

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import isomorph as iso
from isomorph.backends import available
from isomorph.checkpoints.families import FAMILIES
from isomorph.cli import import_

TOKENS = {"bos_token_id": None, "eos_token_id": None}
GPT2 = {"vocab_size": 7, "n_positions": 5, "n_embd": 4, "n_layer": 1, "n_head": 2, **TOKENS}
SIZES = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 20,
}  # fmt: skip
LORA = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "base_model_name_or_path": "owner/base"}
MERGE = (
    "merge it into its model with peft, and import the result: "
    "PeftModel.from_pretrained(MODEL, DIR).merge_and_unload().save_pretrained(OUT)"
)


@pytest.fixture
def directory(published):
    return published("GPT2LMHeadModel", transformers.GPT2Config(**GPT2))[0]


def refused(directory, code="E_CHECKPOINT") -> iso.IsomorphError:
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.code == code
    return error.value


def change(directory, remove=(), **keys):
    path = directory / "config.json"
    configuration = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in configuration.items() if key not in remove}))


def left(directory) -> list[str]:
    lines = []
    iso.import_checkpoint(directory, report=lines.append)
    return lines


# -- adapters ------------------------------------------------------------------------------------


def test_an_adapter_beside_the_model_is_refused_by_name(directory):
    (directory / "adapter_config.json").write_text(json.dumps(LORA))
    save_file({"a": np.zeros(1)}, directory / "adapter_model.safetensors")
    assert str(refused(directory)) == (
        f"E_CHECKPOINT: {directory} holds an adapter (LORA of rank 8) beside the model, made for owner/base, "
        f"and adapters are not applied by an import\n  {MERGE}\n"
        "  or move adapter_config.json and adapter_model.safetensors away, if the model is wanted without it"
    )


def test_an_adapter_alone_says_so(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps(LORA))
    assert str(refused(tmp_path)) == (
        f"E_CHECKPOINT: {tmp_path} holds an adapter (LORA of rank 8) alone, made for owner/base, "
        f"and no model that it could be added to\n  {MERGE}"
    )


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_model.bin", "pytorch_adapter.bin"])
def test_an_adapters_weights_without_its_configuration(directory, name):
    (directory / name).write_bytes(b"")
    assert refused(directory).message == (
        f"{directory} holds an adapter ({name}) beside the model, and adapters are not applied by an import"
    )


def test_tensors_of_an_adapter_inside_the_file_are_refused(directory):
    path = directory / "model.safetensors"
    save_file(load_file(path) | {"transformer.h.0.attn.c_attn.lora_A.weight": np.zeros((2, 4))}, path)
    assert refused(directory, "E_WEIGHTS").hints == (
        "unexpected: h.0.attn.c_attn.lora_A.weight in model.safetensors [2, 4]",
    )


# -- what is left is told ------------------------------------------------------------------------


def test_whatever_is_left_is_told(directory, capsys, tmp_path):
    assert left(directory) == []
    (directory / "generation_config.json").write_text('{"num_beams": 4, "top_k": 5}')
    arrays = load_file(directory / "model.safetensors")
    save_file(arrays | {"transformer.h.0.attn.bias": np.zeros(1)}, directory / "model.safetensors")
    change(directory, my_trainer={"steps": 3})
    for name in (
        "pytorch_model.bin",
        "model.safetensors.index.json",
        "vocab.json",
        "README.md",
        ".gitattributes",
    ):
        (directory / name).write_text("{}")
    (directory / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    (directory / "helper").mkdir()
    (directory / "helper" / "adapter_config.json").write_text(json.dumps(LORA))
    lines = [
        "left: keys of config.json that gpt2 does not read: my_trainer",
        "left: tensors that GPT2LMHeadModel does not compute with: h.{i}.attn.bias",
        "left: other weights (read: model.safetensors): model.safetensors.index.json, pytorch_model.bin",
        "left: settings of generation that are not followed: num_beams 4",
        "left: a chat template (prompts are taken as they are): tokenizer_config.json",
        "left: adapters: helper",
        "left: other files: vocab.json",
    ]
    assert left(directory) == lines
    out = str(tmp_path / "out")
    import_.run(str(directory), out, None, json=False, quiet=False)
    assert capsys.readouterr().err.splitlines() == lines
    import_.run(str(directory), out, None, json=True, quiet=False)
    assert json.loads(capsys.readouterr().out)["notes"] == lines
    import_.run(str(directory), out, None, json=False, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_the_heads_that_are_not_imported_are_told(published):
    config = transformers.BertConfig(**SIZES)
    lines = left(published("BertForPreTraining", config)[0])
    assert lines[0].startswith("left: tensors that BertModel does not compute with: ")
    assert "cls.seq_relationship.weight" in lines[0]


@pytest.mark.parametrize("asked", [{"quant_method": "gptq", "bits": 4}, None])
def test_quantized_weights_are_refused_by_name(directory, asked):
    path = directory / "model.safetensors"
    arrays = load_file(path)
    codes = {"transformer.h.0.attn.c_attn.qweight": np.zeros((2, 3), np.int32)}
    save_file(arrays | codes | {"transformer.h.0.attn.c_attn.scales": np.zeros((2, 3))}, path)
    change(directory, **({"quantization_config": asked} if asked else {}))
    error = refused(directory)
    by = " by gptq" if asked else ""
    assert error.message == (
        f"{directory} holds weights that are quantized{by}, and only plain numbers can be imported"
    )
    assert error.hints[0] == (
        "quantization_config: {'quant_method': 'gptq', 'bits': 4}" if asked
        else "2 tensors such as transformer.h.0.attn.c_attn.qweight"
    )  # fmt: skip


# -- related families ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["roberta", "bort", "llama2", "Bert", "gpt_2"])
def test_no_family_is_suggested_for_another(directory, name):
    change(directory, model_type=name)
    error = refused(directory)
    assert error.message == f"{directory / 'config.json'} has model_type {name!r}, which cannot be imported"
    assert [hint.partition(":")[0] for hint in error.hints] == ["families"]


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("name", ["Roberta", "XLMRoberta", "Camembert", "Data2VecText"])
def test_roberta_is_no_bert_whatever_its_file_says(published, name, drawn, tmp_path):
    """Positions begin at ``pad_token_id + 1``: the ids tell, and without them the row that nothing trains."""
    config = getattr(transformers, f"{name}Config")(**SIZES, bos_token_id=0, pad_token_id=1, eos_token_id=2)
    if drawn:
        directory, _ = published(f"{name}Model", config)
    else:
        directory = tmp_path / "fresh"
        getattr(transformers, f"{name}Model")(config).save_pretrained(directory)
    change(directory, model_type="bert", architectures=["BertModel"])
    if not drawn:
        change(directory, ["bos_token_id", "pad_token_id", "eos_token_id"])
    error = refused(directory)
    assert error.message == (
        f"{directory} was not made by bert, whatever its configuration calls it: "
        "a related family computes something else from tensors of the same names"
    )
    assert error.hints == (
        "pad_token_id: expected 0 and no bos_token_id=0 beside eos_token_id=2, got 1, 0 and 2: the ids of RoBERTa "
        "and its kin, whose positions begin elsewhere" if drawn else
        "embeddings.position_embeddings.weight: expected a position in every row, got zeros in row 1, where RoBERTa "
        "and its kin have their padding",
        "give model_type and architectures as they were published",
    )  # fmt: skip


def test_herbert_has_those_ids_and_is_a_bert(published):
    config = transformers.BertConfig(**SIZES, bos_token_id=0, pad_token_id=1, eos_token_id=2)
    directory, _ = published("BertModel", config)
    change(directory, tokenizer_class="HerbertTokenizerFast")
    assert iso.import_checkpoint(directory)


KIN = {
    "Gemma": ("llama", {"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"}),
    "Granite": ("llama", {"logits_scaling": 2.0}),
    "SmolLM3": ("llama", {}),
    "Ernie4_5": ("llama", {}),
    "Mistral": ("llama", {"sliding_window": 3}),
    "Llama": ("mistral", {}),
    "Qwen3": ("qwen2", {}),
    "Olmo2": ("llama", {}),
}
"""Models with tensors of LLaMA's names, and what their file is made to say."""


@pytest.mark.parametrize("name", list(KIN))
def test_kin_of_llama_is_refused_under_its_name(published, name):
    family, keys = KIN[name]
    directory, _ = published(
        f"{name}Model", getattr(transformers, f"{name}Config")(**SIZES, pad_token_id=None, **TOKENS)
    )
    title = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}[family]
    change(directory, model_type=family, architectures=[f"{title}Model"], **keys)
    with pytest.raises(iso.IsomorphError) as error:
        iso.import_checkpoint(directory)
    assert error.value.code in ("E_CHECKPOINT", "E_WEIGHTS")


@pytest.mark.parametrize("name", ["Electra", "Ernie"])
def test_a_model_that_computes_what_bert_does_may_be_called_so(published, name):
    config = getattr(transformers, f"{name}Config")(
        **SIZES, **({"embedding_size": 16} if name == "Electra" else {})
    )
    directory, model = published(f"{name}Model", config)
    change(directory, model_type="bert", architectures=["BertModel"])
    plan, weights = iso.import_checkpoint(directory)
    ids = np.arange(3, 9)[None]
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).last_hidden_state.numpy()
    found = iso.reference.build(plan, weights)(ids, ids > 0, ids * 0)
    found = found["hidden"] if isinstance(found, dict) else found
    np.testing.assert_allclose(np.asarray(found).reshape(expected.shape), expected, rtol=0, atol=1e-10)


SMALL = {
    **SIZES, "num_key_value_heads": 2, "head_dim": 4, "image_size": 8, "patch_size": 4, "embedding_size": 16,
    "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 20, "projection_dim": 8, "sliding_window": 3,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
MODELS = [
    "Roberta", "XLMRoberta", "Camembert", "Data2VecText", "Electra", "Ernie", "Splinter", "LayoutLM", "MPNet", "Bert",
    "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Granite", "SmolLM3", "Olmo", "Olmo2", "Cohere", "Phi",
    "Phi3", "StableLm", "Starcoder2", "Ernie4_5", "SeedOss", "Cwm", "Arcee", "Glm", "Exaone4", "EuroBert",
    "ViT", "ViTMSN", "DeiT", "Dinov2", "Dinov2WithRegisters", "Beit", "IJepa", "GPT2", "GPTBigCode", "ImageGPT",
]  # fmt: skip
"""Names of classes of the peer's; Helium is left out, of which nothing in a directory tells."""


@pytest.mark.trial(sample=12, whole=1500)
def test_under_any_familys_name_it_computes_the_same_or_is_refused(tmp_path, trial):
    draw = np.random.default_rng(trial.seed)
    for _ in range(trial.tries):
        name, family = (
            MODELS[draw.integers(len(MODELS))],
            list(FAMILIES.values())[draw.integers(len(FAMILIES))],
        )
        kind = getattr(transformers, f"{name}Config")
        known = {field.name for field in dataclasses.fields(kind)}
        torch.manual_seed(0)
        config = kind(**{key: value for key, value in SMALL.items() if key in known})
        model = getattr(transformers, f"{name}Model")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.3)
        model.save_pretrained(tmp_path / "model")
        base = min(family.base_architectures or family.architectures)
        change(tmp_path / "model", model_type=family.model_type, architectures=[base])
        try:
            plan, weights = iso.import_checkpoint(tmp_path / "model")
        except iso.IsomorphError as error:
            assert error.code in ("E_CHECKPOINT", "E_WEIGHTS")  # noqa: PT017
            continue
        inputs = {}
        for path, value in plan.inputs:
            shape = tuple(
                size if isinstance(size, int) else 2 + 7 * i
                for i, size in enumerate(plan.values[value].shape)
            )
            inputs[path] = {"mask": np.ones(shape, bool), "segments": np.zeros(shape, int)}.get(
                path, draw.integers(3, 40, shape) if len(shape) == 2 else draw.normal(size=shape)
            )  # fmt: skip
        given = torch.from_numpy(next(iter(inputs.values())))
        with torch.no_grad():
            expected = model(given if given.ndim == 2 else given.float())[0].numpy()
        found = next(iter(available.load("reference").forward(plan, weights, inputs, "float64").values()))
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=1e-4 * np.abs(expected).max(), err_msg=f"{name} as {family}"
        )


# -- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("n_layer", 2**63, "n_layer: expected at most 2,147,483,647, got 9223372036854775808"),
        ("n_layer", 2.0**70, "n_layer: expected at most 2,147,483,647, got 1180591620717411303424"),
        ("n_embd", 2**53 + 1, "n_embd: expected at most 2,147,483,647, got 9007199254740993"),
        ("n_layer", 17, "n_layer: expected at most 16, for there are no more tensors, got 17"),
        ("n_layer", 15_000.0, "n_layer: expected at most 16, for there are no more tensors, got 15000"),
    ],
)  # fmt: skip
def test_sizes_are_looked_at_before_anything_is_computed_with_them(directory, key, value, problem):
    change(directory, **{key: value})
    assert str(refused(directory)) == (
        f"E_CHECKPOINT: {directory / 'config.json'} describes a network that cannot be built: {problem}"
    )


def test_what_the_resolver_refuses_names_the_key_too(directory):
    change(directory, vocab_size=10**12)
    assert refused(directory).hints[-1] == "vocab_size: expected at most 2,147,483,647, got 1000000000000"


def mutated(content: bytes, draw: np.random.Generator) -> bytes:
    """A configuration with one value that somebody else's program might have written."""
    values = [
        2**63, -1, 0, 1.5, 16.0, 1e308, float("nan"), float("inf"), True, None, "", "16", [], [1] * 9, {}, {"a": {}},
        2**31, 2**31 - 1, 10**40, [2**70, 1], "\ud800", 1e-320,
    ]  # fmt: skip
    configuration = json.loads(content)
    key = list(configuration)[draw.integers(len(configuration))]
    inner = configuration[key]
    if isinstance(inner, dict) and inner and draw.integers(2):
        configuration, key = inner, list(inner)[draw.integers(len(inner))]
        whole = json.loads(content)
        outer = next(name for name, each in whole.items() if each == inner)
        whole[outer] = {**inner, key: values[draw.integers(len(values))]}
        return json.dumps(whole).encode()
    return json.dumps(configuration | {key: values[draw.integers(len(values))]}).encode()


def lied(content: bytes, draw: np.random.Generator) -> bytes:
    """A file of tensors whose header says something else."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = [key for key in header if key != "__metadata__"][draw.integers(len(header) - 1)]
    entry = header[name]
    number = [0, 1, 2**31, 2**62, 2**63, 2**64, -1, 10**30, 1.5, None, "4", len(content)][draw.integers(12)]
    if draw.integers(2):
        entry["shape"] = [*entry["shape"], number] if draw.integers(2) else [number] * len(entry["shape"])
    else:
        entry["data_offsets"][draw.integers(2)] = number
    text = json.dumps(header).encode()
    size = len(text) if draw.integers(4) else [0, 2**63, 2**64 - 1, length + 8][draw.integers(4)]
    return size.to_bytes(8, "little") + text + content[8 + length :]


CONFIGURATIONS = {
    "GPT2Model": transformers.GPT2Config(**GPT2),
    "LlamaModel": transformers.LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 9.0}),
    "BertModel": transformers.BertConfig(**SIZES),
    "Dinov2Model": transformers.Dinov2Config(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    ),
    "Qwen2Model": transformers.Qwen2Config(**SIZES, num_key_value_heads=2),
}  # fmt: skip


@pytest.mark.trial(sample=40, whole=4000)
def test_whatever_numbers_say_it_is_an_import_or_an_error(published, trial):
    draw = np.random.default_rng(trial.seed)
    directories = [published(name, config)[0] for name, config in CONFIGURATIONS.items()]
    for attempt in range(trial.tries):
        directory = directories[attempt % len(directories)]
        file, change_of = [("config.json", mutated), ("model.safetensors", lied)][attempt // 5 % 2]
        content = (directory / file).read_bytes()
        changed = change_of(content, draw)
        (directory / file).write_bytes(changed)
        try:
            plan, weights = iso.import_checkpoint(directory)
        except iso.IsomorphError as error:
            assert error.code in ("E_CHECKPOINT", "E_WEIGHTS")  # noqa: PT017
        else:
            assert sorted(weights) == sorted(parameter.path for parameter in plan.parameters)
        finally:
            os.remove(directory / file)
            (directory / file).write_bytes(content)
