"""``generate``: text and ids from a saved model."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import isomorph as iso

pytest.importorskip("torch")
BYTES = """
ids = input("B", "T", dtype="int64")
embedding(256, 8, name="bytes")
pos_embed(32)
transformer_block(2, causal=True)
linear(256)
"""


@pytest.fixture
def echo():
    """Weights of the network above that score highest the byte after the last one: 'a' is followed by 'b'."""
    plan = iso.resolve(BYTES)
    weights = {path: np.zeros_like(array) for path, array in iso.initial_weights(plan).items()}
    angle = 2 * np.pi * np.arange(256) / 256
    weights["bytes.weight"][:, 0], weights["bytes.weight"][:, 1] = np.cos(angle), np.sin(angle)
    next_byte = angle - 2 * np.pi / 256
    weights["n3.weight"][:, 0], weights["n3.weight"][:, 1] = np.cos(next_byte), np.sin(next_byte)
    return plan, weights


@pytest.fixture
def model(tmp_path, echo):
    path = tmp_path / "model.safetensors"
    iso.save(path, *echo)
    return path


def test_text_over_bytes(isomorph, model):
    assert isomorph("generate", model, "--prompt", "xyab", "-n", 5) == (0, "xyabcdefg\n", "")
    assert isomorph("generate", model, "--prompt", "xyab", "-n", 5, "--quiet") == (0, "cdefg\n", "")


@pytest.mark.parametrize("backend", ["nnx", "linen"])
def test_in_the_other_framework(isomorph, model, backend):
    pytest.importorskip("flax")
    assert isomorph("generate", model, "--prompt", "ab", "-n", 3, "--backend", backend) == (0, "abcde\n", "")


def test_ids(isomorph, model):
    assert isomorph("generate", model, "--ids", "97,98", "-n", 3) == (0, "99 100 101\n", "")
    result = isomorph("generate", model, "--ids", "1 2", "--ids", "7", "-n", 2, "--json")
    assert json.loads(result.out) == [{"ids": [1, 2], "new_ids": [3, 4]}, {"ids": [7], "new_ids": [8, 9]}]


def test_several_prompts_and_json(isomorph, model):
    result = isomorph("generate", model, "--prompt", "ab", "--prompt", "klm", "-n", 2, "--json")
    assert json.loads(result.out) == [
        {"ids": [97, 98], "new_ids": [99, 100], "text": "cd", "prompt": "ab"},
        {"ids": [107, 108, 109], "new_ids": [110, 111], "text": "no", "prompt": "klm"},
    ]
    assert isomorph("generate", model, "--prompt", "ab", "--prompt", "klm", "-n", 2).out == "abcd\nklmno\n"


def test_a_stop_ends_the_text_wherever_it_falls(isomorph, model):
    assert isomorph("generate", model, "--prompt", "ab", "-n", 20, "--stop", "fgh").out == "abcde\n"
    assert isomorph("generate", model, "--prompt", "ab", "-n", 5, "--stop", "fgx").out == "abcdefg\n"
    result = isomorph("generate", model, "--prompt", "ab", "-n", 20, "--stop", "fgh", "--json")
    assert json.loads(result.out) == [
        {"ids": [97, 98], "new_ids": [99, 100, 101], "text": "cde", "prompt": "ab"}
    ]
    result = isomorph("generate", model, "--prompt", "ab", "-n", 20, "--stop", "cd", "--json")
    assert json.loads(result.out)[0]["new_ids"] == []


def test_the_models_own_end_of_text(isomorph, tmp_path, echo):
    path = tmp_path / "noted.safetensors"
    iso.save(path, *echo, notes={"eos_token_id": [101, 300]})
    assert isomorph("generate", path, "--prompt", "ab", "-n", 6).out == "abcd\n"
    assert isomorph("generate", path, "--prompt", "ab", "-n", 6, "--ignore-end").out == "abcdefgh\n"


def test_standard_input(isomorph, model, monkeypatch):
    def type_in(typed: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(typed)))

    type_in(b"mn")
    assert isomorph("generate", model, "--prompt", "-", "-n", 2).out == "mnop\n"
    type_in(b"m\xffn")  # no UTF-8, and bytes all the same
    result = isomorph("generate", model, "--prompt", "-", "-n", 2, "--json")
    assert json.loads(result.out) == [
        {
            "ids": [0x6D, 0xFF, 0x6E],
            "new_ids": [0x6F, 0x70],
            "text": "op",
            "prompt": "m\N{REPLACEMENT CHARACTER}n",
        }
    ]
    type_in(b"m\xffn")
    assert isomorph("generate", model, "-p", "-", "-n", 2).out == "m\N{REPLACEMENT CHARACTER}nop\n"


def test_characters_of_several_bytes(isomorph, tmp_path, echo):
    plan, weights = echo
    text = "é".encode()  # c3 a9: after c3 the network says c4, which with the next begins no character
    path = tmp_path / "model.safetensors"
    iso.save(path, plan, weights)
    result = isomorph("generate", path, "--ids", text[0], "-n", 1, "--json")
    assert json.loads(result.out)[0]["new_ids"] == [0xC4]
    assert isomorph("generate", path, "--prompt", "é", "-n", 1).out == "é\N{REPLACEMENT CHARACTER}\n"


def test_a_tokenizer_beside_the_model(isomorph, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"the": 0, "cat": 1, "sat": 2, "[UNK]": 3}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.save(str(tmp_path / "tokenizer.json"))
    plan = iso.resolve(
        'ids = input("B", "T", dtype="int64")\nembedding(4, 4, name="e")\nlinear(4, bias=False)'
    )
    weights = {
        "e.weight": np.eye(4, dtype=np.float32),
        "n1.weight": np.roll(np.eye(4, dtype=np.float32), 1, 0),
    }
    iso.save(tmp_path / "model.safetensors", plan, weights)
    model = tmp_path / "model.safetensors"
    assert isomorph("generate", model, "--prompt", "the", "-n", 2, "-q").out == " cat sat\n"
    assert isomorph("generate", model, "--prompt", "the", "-n", 2).out == "the cat sat\n"
    both = isomorph("generate", model, "-p", "the", "-p", "cat", "-n", 1, "--json")
    assert [entry["text"] for entry in json.loads(both.out)] == [" cat", " sat"]
    assert isomorph("generate", model, "-p", "the", "-p", "cat", "-n", 1).out == "the cat\ncat sat\n"
    stopped = isomorph("generate", model, "-p", "the", "-n", 2, "--stop", "at s", "--json")
    assert json.loads(stopped.out) == [{"ids": [0], "new_ids": [1], "text": " c", "prompt": "the"}]
    assert isomorph("generate", model, "--prompt", "\udcff") == (
        2, "", "E_ARGUMENT: the text is not valid UTF-8: '\\udcff'\n  convert it first, as in iconv -t utf-8\n"
    )  # fmt: skip
    (tmp_path / "tokenizer.json").write_text("{")
    result = isomorph("generate", model, "--prompt", "the")
    assert result.status == 2
    assert result.err.startswith(f"E_CHECKPOINT: {tmp_path / 'tokenizer.json'} is damaged or no tokenizer: ")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "E_ARGUMENT: give --prompt TEXT, or --ids 1,2,3\n"),
        (["--prompt", "a", "--ids", "1"], "E_ARGUMENT: give --prompt TEXT, or --ids 1,2,3\n"),
        (["--ids", "1,x"], "E_ARGUMENT: --ids are written as 1,2,3, got '1,x'\n"),
        (["--ids", "1,,2"], "E_ARGUMENT: --ids are written as 1,2,3, got '1,,2'\n"),
        (["--ids", "1, "], "E_ARGUMENT: --ids are written as 1,2,3, got '1, '\n"),
        (["--prompt", ""], "E_ARGUMENT: the prompt of row 0 is empty\n  give every row at least one id\n"),
        (
            ["--prompt", "a", "--backend", "jax"],
            "E_ARGUMENT: no backend 'jax' generates text\n  --backend torch | nnx | linen\n",
        ),
        (
            ["--prompt", "a", "--device", "cpu", "--backend", "nnx"],
            "E_ARGUMENT: --device is for torch; nnx uses what JAX finds\n",
        ),
        (["--ids", "256"], "E_RUNTIME: id 256 is outside a table of 256 rows\n  ids run from 0 to 255\n"),
        (["--prompt", "a", "-n", "33"],
            "E_RUNTIME: a prompt of length 1 and 33 new ids take 33 positions; the network has 32\n"
            "  max_new_tokens is at most 32 here, or shorten the prompt\n"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(isomorph, model, arguments, error):
    result = isomorph("generate", model, *arguments)
    assert result == (2, "", error)


def test_a_definition_has_no_weights(isomorph, tmp_path):
    path = tmp_path / "gpt.net"
    path.write_text(BYTES)
    assert isomorph("generate", path, "--prompt", "a").err == (
        f"E_ARGUMENT: {path} is a definition, which has no weights to generate with\n"
        "  give a saved model: a .safetensors file or the directory of a run\n"
    )


def test_a_network_over_other_ids_needs_a_tokenizer(isomorph, tmp_path):
    plan = iso.resolve('ids = input("B", "T", dtype="int64")\nembedding(5000, 4)\nlinear(5000)')
    path = tmp_path / "model.safetensors"
    iso.save(path, plan, iso.initial_weights(plan))
    assert isomorph("generate", path, "--prompt", "a").err == (
        f"E_ARGUMENT: there is no tokenizer.json in {tmp_path} to turn text into the network's 5,000 ids\n"
        "  put the model's tokenizer.json there, or give ids: --ids 1,2,3\n"
    )


def test_a_model_that_is_not_there(isomorph, tmp_path):
    for verb, arguments in (("generate", ["--prompt", "a"]), ("export", ["-o", tmp_path]), ("show", [])):
        assert isomorph(verb, tmp_path / "gpt", *arguments) == (
            2, "",
            f"E_ARGUMENT: there is no file or directory {tmp_path / 'gpt'}\n"
            "  give a definition (.net), a saved model (.safetensors), or the directory of a run\n",
        )  # fmt: skip


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_published_checkpoint_is_imported_first(isomorph, tmp_path, weights):
    from safetensors.numpy import save_file

    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    save_file({"wte.weight": np.zeros((2, 2), np.float32)}, tmp_path / weights)
    expected = (
        2, "",
        f"E_ARGUMENT: {tmp_path} holds a published checkpoint, which has a config.json and no plan\n"
        f"  import it first: isomorph import {tmp_path} -o model.safetensors\n",
    )  # fmt: skip
    assert isomorph("generate", tmp_path, "--prompt", "a") == expected
    assert isomorph("export", tmp_path, "-o", tmp_path / "out") == expected
    if weights == "model.safetensors":
        assert isomorph("generate", tmp_path / weights, "--prompt", "a") == expected


def test_a_stop_is_placed_in_one_reading():
    """As many ids as it takes to write what stands before the stop, each decoded once or twice and not again for each."""
    from isomorph.cli.generate import Stops, _cut
    from isomorph.generation.tokens import Bytes

    read = []

    class Counting(Bytes):
        def stream(self, before=()):
            stream = super().stream(before)
            add = stream.add
            stream.add = lambda token: read.append(token) or add(token)
            return stream

    ids = [*b"word " * 300, *"né END more".encode()]
    kept, text = _cut(ids, [], Counting(), Stops((), ("END",)))
    assert text == "word " * 300 + "né "
    assert bytes(kept).decode() == text
    assert len(read) <= 2 * len(ids)
