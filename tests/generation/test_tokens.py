"""Text to ids and back, and what tokenizers of many kinds do to it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import isomorph as iso
from isomorph.generation.text_stream import added
from isomorph.generation.tokens import Bytes, open_tokenizer

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
        def id_to_token(self, token: int) -> str:
            return "a"

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


# -- bytes as ids, marks behind a prompt, and the cost of an id --------------------------------------


def byte_id(byte: int) -> int:
    return byte + 3


@pytest.fixture
def fallback(tmp_path):
    """A SentencePiece-like vocabulary in which every byte has an id, as LLaMA's and Mistral's."""
    words = ["<unk>", f"{LOWER_BLOCK}hello", LOWER_BLOCK, *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["日", "本", "</s>"]
    model = tokenizers.models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>")
    inner = tokenizers.Tokenizer(model)
    steps = tokenizers.decoders
    inner.decoder = steps.Sequence(
        [steps.Replace(LOWER_BLOCK, " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens(["</s>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    return open_tokenizer(tmp_path, len(words))


@pytest.fixture
def byte_level(tmp_path):
    """A byte-level vocabulary of single bytes, as GPT-2's begins."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>"])
    inner.add_tokens(["→→"])
    inner.save(str(tmp_path / "tokenizer.json"))
    return open_tokenizer(tmp_path, 258)


@pytest.fixture
def word_piece(tmp_path):
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "do", "##ing", "n", "##'t", ".", "it"])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.decoder = tokenizers.decoders.WordPiece()
    inner.save(str(tmp_path / "tokenizer.json"))
    return open_tokenizer(tmp_path, 7)


def streamed(tokenizer, ids, before=()):
    pieces = tokenizer.stream(before)
    return [pieces.add(token) for token in ids] + [pieces.end()]


def test_bytes_that_are_ids_make_characters(fallback):
    """Five of the eight bytes of two faces: one is whole, of the other one byte is known, which is one U+FFFD."""
    ids = [byte_id(byte) for byte in "🙂🙂".encode()]
    for count in range(9):
        expected = "🙂🙂".encode()[:count].decode(errors="replace")
        assert fallback.decode(ids[:count], before=[1]) == expected
        assert "".join(streamed(fallback, ids[:count], before=[1])) == expected
    assert streamed(fallback, ids[:5], before=[1]) == ["", "", "", "🙂", "", "\ufffd"]


def test_a_prompt_that_ends_inside_a_character(fallback):
    """Its first byte belongs to the prompt; the whole character is new, and nothing is printed twice."""
    first, *rest = (byte_id(byte) for byte in "語".encode())
    assert fallback.decode([259, 260, first]) == "日本\ufffd"
    assert streamed(fallback, rest, before=[259, 260, first]) == ["", "語", ""]
    assert fallback.decode(rest, before=[259, 260, first]) == "語"
    assert fallback.decode([1], before=[259, 260, first]) == "\ufffd hello"


def test_what_is_broken_takes_nothing_with_it(fallback):
    stray, start = byte_id(0x82), byte_id(0xF0)
    assert fallback.decode([1, stray, 1]) == "hello\ufffd hello"
    assert fallback.decode([start, byte_id(0x41), 1]) == "\ufffdA hello"
    assert fallback.decode([start, start, byte_id(0x41)]) == "\ufffd\ufffdA"
    assert fallback.decode([byte_id(0xC3), 261, byte_id(0xA9)]) == "é"  # a mark between is no text
    assert fallback.decode([byte_id(0x20), byte_id(0x41)]) == "A"  # the decoder drops the first space
    assert fallback.decode([byte_id(0x20), byte_id(0x41)], before=[1]) == " A"


@pytest.mark.trial(sample=100, whole=20_000)
@pytest.mark.parametrize("kind", ["fallback", "byte_level", "word_piece", "sentencepiece"])
def test_streamed_text_is_the_whole_text(kind, request, trial):
    """Where all bytes are characters, that of the package's own decoder; otherwise streamed and whole agree."""
    tokenizer = request.getfixturevalue(kind)
    size = tokenizer._inner.get_vocab_size()
    rng = random.Random(trial.seed)
    for _ in range(trial.tries):
        ids: list[int] = []
        while len(ids) < 8:
            if kind in ("fallback", "byte_level") and rng.random() < 0.5:
                character = rng.choice("aé語🙂 ").encode()
                ids += [
                    byte_id(b) if kind == "fallback" else tokenizer.encode(character.decode())[i]
                    for i, b in enumerate(character)
                ]
            else:
                ids.append(rng.randrange(size))
        whole = tokenizer.decode(ids)
        assert whole == "".join(streamed(tokenizer, ids))
        theirs = tokenizer._inner.decode(ids)
        if "\ufffd" not in theirs or kind == "byte_level":
            assert whole == theirs
        cut = rng.randrange(len(ids))
        before = tokenizer.decode(ids[:cut])
        if not before.endswith("\ufffd"):
            assert before + tokenizer.decode(ids[cut:], before=ids[:cut]) == whole


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("$A </s>", [0, 1]),
        ("<s> $A </s>", [2, 0, 1]),
        ("<s> $A", [2, 0, 1]),
        ("<s> <s> $A </s> </s>", [2, 2, 0, 1]),
        ("$A", [0, 1]),
    ],
)
def test_marks_behind_a_prompt_are_left_out(tmp_path, template, expected):
    """The text "ab" in a vocabulary of four; marks in front stay, and an empty prompt has those alone."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "<s>": 2, "</s>": 3}, []))
    inner.add_special_tokens(["<s>", "</s>"])
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(tmp_path, 4)
    assert tokenizer.encode("ab") == expected
    assert tokenizer.encode("") == expected[:-2]
    assert tokenizer.encode("ab</s>") == [*expected, 3]  # what the text says itself is said


@pytest.mark.parametrize("kind", ["fallback", "byte_level", "word_piece", "sentencepiece"])
def test_an_id_costs_the_same_however_long_the_text(kind, request, monkeypatch):
    """Counted in ids that the package is asked to decode; the limit is what 20 ids may need."""
    tokenizer = request.getfixturevalue(kind)
    decoded: list[int] = []

    class Counting:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def decode(self, ids):
            decoded.append(len(ids))
            return self._inner.decode(ids)

    monkeypatch.setattr(tokenizer, "_inner", Counting(tokenizer._inner))
    size = tokenizer._inner.get_vocab_size()
    costs = []
    for length in (10, 2_000):
        decoded.clear()
        pieces = tokenizer.stream([n % size for n in range(length)])
        for token in range(20):
            pieces.add(token % size)
        pieces.end()
        costs.append(sum(decoded))
    assert max(costs) <= 20 * 8 + 16
    assert max(decoded, default=0) <= 8
