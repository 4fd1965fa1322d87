"""``isomorph generate``: text, or ids, from a saved model."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from isomorph.backends import available
from isomorph.backends.decoding import DecodingBackend
from isomorph.cli.network import model_file, open_network
from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.generation.decoding_layout import decoding_layout
from isomorph.generation.settings import GenerationSettings, unfollowed_text
from isomorph.generation.tokens import Tokenizer, open_tokenizer
from isomorph.plan import Plan

MAX_NEW_TOKENS = 128
"""Where neither the command nor the model says it."""


class Stops(NamedTuple):
    """What ends a text: one of these ids, or one of these texts in what was generated."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]


def run(
    model: str,
    prompts: Sequence[str] | None,
    ids: Sequence[str] | None,
    options: Mapping[str, Any],
    stop: Sequence[str] | None,
    *,
    ignore_end: bool,
    backend: str | None,
    device: str | None,
    json: bool,
    quiet: bool,
) -> None:
    """Generate, and print the text as it comes, or JSON at the end.

    ``options`` are the settings of generation as they are given, None for those that are not; the model's own hold
    besides.
    """
    if bool(prompts) == bool(ids):
        raise IsomorphError("E_ARGUMENT", "give --prompt TEXT, or --ids 1,2,3")
    plan, weights = open_network(model)
    if weights is None:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{model} is a definition, which has no weights to generate with",
            hints=["give a saved model: a .safetensors file or the directory of a run"],
        )
    path = model_file(model)
    settings = _settings(path, options, ignore_end=ignore_end)
    vocabulary = decoding_layout(plan).vocabulary
    tokenizer = open_tokenizer(path.parent, vocabulary) if prompts or stop else None
    if prompts:
        assert tokenizer is not None
        prompts = [_standard_input() if text == "-" else text for text in prompts]
        given = [tokenizer.encode(text) for text in prompts]
    else:
        given = [_read_ids(text) for text in ids or ()]
    stops = Stops(settings.stop, tuple(text for text in stop or () if text))
    built = _build(plan, weights, backend, device)
    if settings.unfollowed and not quiet:
        print(unfollowed_text(settings), file=sys.stderr)
    settings = replace(settings, unfollowed=())  # it was told
    if len(given) > 1 or json or tokenizer is None:
        _whole(built, given, prompts, tokenizer, settings, stops, json=json)
    else:
        _streamed(built, given[0], prompts, tokenizer, settings, stops, quiet=quiet)


def _settings(path: Path, options: Mapping[str, Any], *, ignore_end: bool) -> GenerationSettings:
    """The model's settings, with what is given in their places."""
    from isomorph.checkpoints.generation import settings_of
    from isomorph.weights.file import load_notes

    given = {
        name: _READERS.get(name, _as_it_is)(value) for name, value in options.items() if value is not None
    }
    if ignore_end:
        given["stop"] = ()
    if "max_length" in given:
        given.setdefault("max_new_tokens", None)  # the model's number does not count
    settings = settings_of(load_notes(path)).changed(given)
    if settings.max_new_tokens is None and settings.max_length is None:
        settings = replace(settings, max_new_tokens=MAX_NEW_TOKENS)
    return settings


def _standard_input() -> str:
    """All of it, as an argument of the same bytes would be."""
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape")


def _printable(text: str) -> str:
    """A text in which every byte that is no UTF-8 is a replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _read_ids(text: str, option: str = "--ids") -> list[int]:
    parts = _parts(text)
    if not all(map(_is_number, parts)):
        raise IsomorphError("E_ARGUMENT", f"{option} are written as 1,2,3, got {shorten(text)}")
    return [int(part) for part in parts]


def _parts(text: str) -> list[str]:
    """What stands between commas or spaces. Between two commas is nothing, which is no number."""
    return [part for between in text.split(",") for part in between.split() or [""]]


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 19


def _reader_of_ids(option: str) -> Callable[[str], list[int]]:
    return lambda text: _read_ids(text, option) if text.strip() else []


def _read_forced(text: str) -> list[list[int]]:
    pairs = [part.split(":") for part in (_parts(text) if text.strip() else ())]
    if not all(len(pair) == 2 and all(map(_is_number, pair)) for pair in pairs):
        raise IsomorphError(
            "E_ARGUMENT",
            f"--forced is written as 1:50259,2:50359, got {shorten(text)}",
            hints=["POSITION:ID; the prompt's first id has position 0"],
        )
    return [[int(position), int(token)] for position, token in pairs]


def _read_seed(text: str) -> Any:
    """``5``, or for every prompt its own, ``5,7`` or ``5:0,5:1``."""
    seeds = [part.split(":") for part in text.split(",")]
    if not all(
        len(seed) < 3 and all(one.isdecimal() and one.isascii() and len(one) < 40 for one in seed)
        for seed in seeds
    ):
        raise IsomorphError(
            "E_ARGUMENT",
            f"--seed is written as 5, or as 5,7 for two prompts, got {shorten(text)}",
            hints=["5:1 seeds a prompt as the second one of --seed 5"],
        )
    numbers = [tuple(int(one) for one in seed) for seed in seeds]
    if len(numbers) == 1 and len(numbers[0]) == 1:
        return numbers[0][0]
    return [seed if len(seed) == 2 else seed[0] for seed in numbers]


def _as_it_is(value: Any) -> Any:
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "suppress": _reader_of_ids("--suppress"),
    "begin_suppress": _reader_of_ids("--begin-suppress"),
    "forced_end": _reader_of_ids("--forced-end"),
    "banned": lambda texts: [_read_ids(text, "--banned") for text in texts],
    "forced": _read_forced,
    "seed": _read_seed,
}
"""How the settings are written that are no number."""


def _build(plan: Plan, weights: Mapping[str, Any], backend: str | None, device: str | None) -> Any:
    able = available.able("generate")
    name = backend or available.preferred("generate") or able[0]
    if name not in able:
        hints = did_you_mean(name, able) or [f"--backend {' | '.join(able)}"]
        raise IsomorphError("E_ARGUMENT", f"no backend {shorten(name)} generates text", hints=hints)
    place = available.BACKENDS[name].device
    if device is not None and place:
        others = " and ".join(other for other in able if not available.BACKENDS[other].device)
        raise IsomorphError("E_ARGUMENT", f"--device is for {others}; {name} uses {place}")
    available.load(name)  # for its errors
    decoding: DecodingBackend = available.part(name, "decoding")
    return decoding.build(plan, weights, **({} if device is None else {"device": device}))


def _texts(steps: Iterable[Any], prompt: list[int], tokenizer: Tokenizer, stops: Stops) -> Iterator[str]:
    """What the text adds to its prompt, in pieces. What may begin a stop is held back until it is known."""
    pieces = tokenizer.stream(prompt)
    pending = ""
    for new in steps:
        token = int(new[0])
        if token in stops.ids:
            break
        pending += pieces.add(token)
        cut = _first_stop(pending, stops.texts)
        if cut is not None:
            yield pending[:cut]
            return
        safe = len(pending) - _beginning(pending, stops.texts)
        yield pending[:safe]
        pending = pending[safe:]
    pending += pieces.end()
    cut = _first_stop(pending, stops.texts)
    yield pending if cut is None else pending[:cut]


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    places = [text.find(stop) for stop in stops if stop in text]
    return min(places) if places else None


def _cut(ids: list[int], prompt: list[int], tokenizer: Tokenizer, stops: Stops) -> tuple[list[int], str]:
    """New ids and their text up to a stop: of the ids as many as it takes to write that text."""
    text = tokenizer.decode(ids, prompt)
    cut = _first_stop(text, stops.texts)
    if cut is None:
        return ids, text
    pieces = tokenizer.stream(prompt)
    lengths = accumulate((len(pieces.add(token)) for token in ids), initial=0)
    enough = next((n for n, length in enumerate(lengths) if length >= cut), len(ids))
    return ids[:enough], text[:cut]


def _beginning(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end may begin a stop."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0


def _streamed(
    built: Any,
    ids: list[int],
    prompts: Sequence[str] | None,
    tokenizer: Tokenizer,
    settings: GenerationSettings,
    stops: Stops,
    *,
    quiet: bool,
) -> None:
    from isomorph.generation.generate import stream

    steps = stream(built, ids, settings=settings)  # before anything is printed: it may refuse
    if not quiet:
        sys.stdout.write(_printable(prompts[0]) if prompts else "")
        sys.stdout.flush()
    for piece in _texts(steps, ids, tokenizer, stops):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()


def _whole(
    built: Any,
    given: list[list[int]],
    prompts: Sequence[str] | None,
    tokenizer: Tokenizer | None,
    settings: GenerationSettings,
    stops: Stops,
    *,
    json: bool,
) -> None:
    """All prompts as one batch."""
    from isomorph.generation.generate import generate

    whole = generate(built, given, settings=settings)
    longest = max(len(row) for row in given)
    entries = []
    for index, (row, prompt) in enumerate(zip(whole[:, longest:].tolist(), given, strict=True)):
        end = next((i for i, token in enumerate(row) if token in stops.ids), len(row))
        entry: dict[str, Any] = {"ids": prompt, "new_ids": row[:end]}
        if tokenizer is not None:
            entry["new_ids"], entry["text"] = _cut(row[:end], prompt, tokenizer, stops)
        if prompts:
            entry["prompt"] = _printable(prompts[index])
        entries.append(entry)
    if json:
        unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        print(json_text.dumps(entries, indent=2, ensure_ascii=not unicode))
        return
    for entry in entries:
        text = entry.get("text")
        print(" ".join(map(str, entry["new_ids"])) if text is None else f"{entry.get('prompt', '')}{text}")
