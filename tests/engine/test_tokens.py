"""Text to ids and back, and what tokenizers of many kinds do to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import isomorph as iso
from isomorph.engine.tokens import Bytes, added, open_tokenizer

tokenizers = pytest.importorskip("tokenizers")
LOWER_BLOCK = "\N{LOWER ONE EIGHTH BLOCK}"


@pytest.fixture
def published(tmp_path):
    """A tokenizer from its JSON."""

    def make(content: dict[str, Any]) -> Any:
        (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", **content}))
        return open_tokenizer(tmp_path, 4)

    return make


@pytest.fixture
def sentencepiece(tmp_path):
    """Pieces that carry the space before them, and a decoder that drops the first space, as LLaMA's does."""
    words = ["<unk>", f"{LOWER_BLOCK}hello", f"{LOWER_BLOCK}world", "a", "<0xC3>", "<0xA9>"]
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>")
    )
    steps = tokenizers.decoders
    inner.decoder = steps.Sequence(
        [steps.Replace(LOWER_BLOCK, " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(" ", 1, 0)]
    )
    inner.save(str(tmp_path / "tokenizer.json"))
    return open_tokenizer(tmp_path, len(words))


def test_new_ids_are_read_behind_the_prompt(sentencepiece):
    assert sentencepiece.decode([1, 2, 1]) == "hello world hello"
    assert sentencepiece.decode([2, 1], before=[1]) == " world hello"
    assert sentencepiece.decode([2, 1]) == "world hello"  # where nothing comes before, it is the beginning
    assert sentencepiece.decode([], before=[1]) == ""
    pieces = sentencepiece.stream([1])
    assert [pieces.add(2), pieces.add(3), pieces.add(1), pieces.end()] == [" world", "a", " hello", ""]


def test_a_character_that_the_prompt_began(sentencepiece):
    """U+00E9 is the bytes c3 a9, which are ids 4 and 5."""
    assert sentencepiece.decode([5, 2], before=[1, 4]) == "\N{LATIN SMALL LETTER E WITH ACUTE} world"
    pieces = sentencepiece.stream([1])
    assert [pieces.add(4), pieces.add(5), pieces.end()] == ["", "\N{LATIN SMALL LETTER E WITH ACUTE}", ""]
    pieces = sentencepiece.stream([1])
    assert [pieces.add(4), pieces.end()] == ["", "\N{REPLACEMENT CHARACTER}"]
    assert Bytes().decode([0xA9, 0x62], before=[0x61, 0xC3]) == "\N{LATIN SMALL LETTER E WITH ACUTE}b"


def test_what_a_longer_text_adds():
    assert added("do", "do n't") == " n't"
    assert added("a \N{REPLACEMENT CHARACTER}", "a \N{EURO SIGN}b") == "\N{EURO SIGN}b"
    assert added("do .", "do.") == "."  # a decoder that tidies up before a point


@pytest.mark.parametrize("make", [lambda sentencepiece: sentencepiece, lambda _: Bytes()])
def test_ids_that_are_no_text(make, sentencepiece):
    tokenizer = make(sentencepiece)
    assert tokenizer.decode([-1, 999, 2**31, 2**70]) == ""
    pieces = tokenizer.stream()
    assert [pieces.add(-1), pieces.add(2**70), pieces.end()] == ["", "", ""]


def test_text_that_is_no_text(sentencepiece):
    for tokenizer, text in ((sentencepiece, "a\udcff"), (Bytes(), "a\ud800")):
        with pytest.raises(iso.IsomorphError) as caught:
            tokenizer.encode(text)
        assert str(caught.value) == (
            f"E_ARGUMENT: the text is not valid UTF-8: {text!r}\n  convert it first, as in iconv -t utf-8"
        )
    assert Bytes().encode("a\udcff") == [0x61, 0xFF]  # a byte, as arguments of a command hold it


def test_a_text_that_a_tokenizer_has_no_ids_for(published, tmp_path):
    tokenizer = published({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}})
    with pytest.raises(iso.IsomorphError) as caught:
        tokenizer.encode("abc")
    assert caught.value.code == "E_ARGUMENT"
    assert caught.value.message.startswith(f"{tmp_path / 'tokenizer.json'} has no ids for the text 'abc': ")


def test_a_panic_inside_the_package(published, tmp_path):
    """A template that names a token it does not define ends the package's compiled part, not the program."""
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "zz", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {},
    }  # fmt: skip
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    with pytest.raises(iso.IsomorphError) as caught:
        published({"post_processor": template, "model": model}).encode("a")
    assert caught.value.message.startswith(f"{tmp_path / 'tokenizer.json'} has no ids for the text 'a': ")


@pytest.mark.parametrize(
    ("failure", "code"), [(Exception("bad"), "E_CHECKPOINT"), (KeyboardInterrupt(), ""), (SystemExit(), "")]
)
def test_what_is_caught_and_what_is_not(sentencepiece, failure, code):
    class Failing:
        def decode(self, ids: Any) -> str:
            raise failure

    sentencepiece._inner = Failing()
    if not code:
        with pytest.raises(type(failure)):
            sentencepiece.decode([1])
        return
    with pytest.raises(iso.IsomorphError) as caught:
        sentencepiece.decode([1])
    assert str(caught.value) == (
        f"E_CHECKPOINT: {sentencepiece._path} cannot turn ids into text: bad\n"
        "  copy it again from where the model is from"
    )


@pytest.mark.parametrize(
    "model",
    [
        {"type": "Unigram", "unk_id": 5, "vocab": [["a", -1.0]]},
        {"type": "Unigram", "unk_id": 0, "vocab": []},
        {"type": "BPE", "vocab": {"a": 0}, "merges": [["b", "c"]]},
        {"type": "no such"},
    ],
)
def test_files_that_are_no_tokenizer(published, tmp_path, model):
    with pytest.raises(iso.IsomorphError) as caught:
        published({"model": model})
    assert caught.value.code == "E_CHECKPOINT"
    assert caught.value.message.startswith(f"{tmp_path / 'tokenizer.json'} is damaged or no tokenizer: ")


def test_a_prompt_is_neither_cut_nor_filled_up(published):
    tokenizer = published(
        {
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
            "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": {
                "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
                "pad_id": 0, "pad_type_id": 0, "pad_token": "a",
            },
        }
    )  # fmt: skip
    assert tokenizer.encode("aaaa") == [0, 0, 0, 0]


def test_no_tokenizer_and_other_ids_than_bytes(tmp_path):
    assert isinstance(open_tokenizer(Path(tmp_path), 256), Bytes)
    with pytest.raises(iso.IsomorphError, match=r"there is no tokenizer\.json in .* the network's 257 ids"):
        open_tokenizer(Path(tmp_path), 257)
