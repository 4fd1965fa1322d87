"""The form of a family: which network is which, and what every key of a configuration is."""

from pathlib import Path

import pytest
import transformers

import isomorph as iso
from isomorph.checkpoints.families import FAMILIES, recognize
from isomorph.checkpoints.family import (
    Ignored,
    Only,
    Row,
    each_layer,
    known_keys,
    nested,
    their_shape,
    to_plan,
    to_theirs,
)

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("gpt2", "GPT2LMHeadModel"),
        ("byte_gpt", "GPT2LMHeadModel"),
        ("llama", "LlamaForCausalLM"),
        ("vit_b16", "ViTForImageClassification"),
        ("digits_vit", "ViTForImageClassification"),
        ("bert", None),  # has a dropout between embedding and blocks
        ("dinov2", None),  # returns the patches without the token
        ("mlp", None),
    ],
)
def test_examples_are_recognized_whatever_their_nodes_are_called(name, architecture):
    plan = iso.resolve_file(EXAMPLES / f"{name}.net")
    if architecture is None:
        with pytest.raises(iso.IsomorphError) as error:
            recognize(plan)
        assert error.value.code == "E_CHECKPOINT"
        assert [hint.split(":")[0] for hint in error.value.hints] == list(FAMILIES)
        return
    match = recognize(plan)
    assert match.options["architecture"] == architecture
    assert set(match.ours.values()) == {parameter.path for parameter in plan.parameters} | set(plan.ties)


CONFIGS = {
    "gpt2": "GPT2Config", "llama": "LlamaConfig", "mistral": "MistralConfig", "qwen2": "Qwen2Config",
    "ministral": "MinistralConfig",
    "bert": "BertConfig", "vit": "ViTConfig", "deit": "DeiTConfig", "dinov2": "Dinov2Config",
    "dinov2_with_registers": "Dinov2WithRegistersConfig",
    "whisper": "WhisperConfig", "clip": "CLIPConfig", "clip_text_model": "CLIPTextConfig",
    "clip_vision_model": "CLIPVisionConfig",
}  # fmt: skip


def flat(configuration):
    """Keys and values, those of a tower behind its name."""
    for key, value in configuration.items():
        if key in ("text_config", "vision_config"):
            yield from ((f"{key}.{inner}", each) for inner, each in value.items())
        else:
            yield key, value


@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_key_that_the_peer_writes_is_known(name):
    """And what a key is taken to be when it is absent is what the peer takes it to be."""
    family = FAMILIES[name]
    config = getattr(transformers, CONFIGS[name])()
    written = dict(flat(config.to_dict()))
    assert sorted(written.keys() - known_keys(family).keys()) == []
    for key, setting in family.settings.items():
        if isinstance(setting, Ignored) or not (key in written or hasattr(config, key)):
            continue
        value = written[key] if "." in key else getattr(config, key)
        if isinstance(setting, Only):
            assert value in setting.values, key
        elif setting.default is not None and key != "sliding_window":  # which the peer empties when unused
            assert value == setting.default, key


@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_reason_is_given(name):
    settings = known_keys(FAMILIES[name])
    assert all(setting.reason for setting in settings.values() if isinstance(setting, (Ignored, Only)))


def test_axes_there_and_back():
    import numpy as np

    q, k = np.arange(6.0).reshape(2, 3), 10 + np.arange(3.0).reshape(1, 3)
    row = Row("w", ("q", "k"), "transposed")
    theirs = to_theirs(row, [q, k])
    # [in, out]: three rows, and three columns of which the last is k's.
    assert theirs.tolist() == [[0, 3, 10], [1, 4, 11], [2, 5, 12]]
    assert their_shape(row, [(2, 3), (1, 3)]) == (3, 3)
    assert [part.tolist() for part in to_plan(row, theirs, [2, 1])] == [q.tolist(), k.tolist()]
    batched = Row("p", ("p",), "batched")
    assert to_theirs(batched, [q]).shape == their_shape(batched, [(2, 3)]) == (1, 2, 3)
    assert to_plan(batched, q[None], [2])[0].tolist() == q.tolist()
    for order, ours, theirs in (("scalar", np.array([4.0]), np.array(4.0)), ("vector", q[:1, None], q[0])):
        row = Row("s", ("s",), order)
        assert their_shape(row, [ours.shape]) == theirs.shape
        assert to_theirs(row, [ours]).shape == theirs.shape
        assert to_theirs(row, [ours]).tolist() == theirs.tolist()
        (back,) = to_plan(row, theirs, [1])
        assert (back.shape, back.tolist()) == (ours.shape, ours.tolist())
    assert [one.theirs for one in each_layer([Row("a.{i}", ("b{i}",)), Row("c", ("c",))], 2)] == [
        "a.0",
        "a.1",
        "c",
    ]


def test_objects_of_a_configuration():
    assert nested({"a": 1, "b.c": 2, "b.d": {"e.f": 3}}) == {"a": 1, "b": {"c": 2, "d": {"e.f": 3}}}
