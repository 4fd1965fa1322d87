"""``isomorph generate``: text, or ids, from a saved model."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isomorph.cli.network import open_network
from isomorph.engine.layout import decoding_layout
from isomorph.engine.tokens import Tokenizer, open_tokenizer
from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.plan import Plan

BACKENDS = ("torch", "nnx", "linen")


class Stops(NamedTuple):
    """What ends a text: one of these ids, or one of these texts in what was generated."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]


def run(
    model: str,
    prompts: Sequence[str] | None,
    ids: Sequence[str] | None,
    settings: Mapping[str, Any],
    stop: Sequence[str] | None,
    *,
    ignore_end: bool,
    backend: str | None,
    device: str | None,
    json: bool,
    quiet: bool,
) -> None:
    """Generate, and print the text as it comes, or JSON at the end."""
    if bool(prompts) == bool(ids):
        raise IsomorphError("E_ARGUMENT", "give --prompt TEXT, or --ids 1,2,3")
    plan, weights = open_network(model)
    if weights is None:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{model} is a definition, which has no weights to generate with",
            hints=["give a saved model: a .safetensors file or the directory of a run"],
        )
    path = Path(model)
    home = path if path.is_dir() else path.parent
    vocabulary = decoding_layout(plan).vocabulary
    tokenizer = open_tokenizer(home, vocabulary) if prompts or stop else None
    if prompts:
        assert tokenizer is not None
        prompts = [_standard_input() if text == "-" else text for text in prompts]
        given = [tokenizer.encode(text) for text in prompts]
    else:
        given = [_read_ids(text) for text in ids or ()]
    ends = () if ignore_end else _ends(path / "model.safetensors" if path.is_dir() else path)
    stops = Stops(ends, tuple(text for text in stop or () if text))
    built = _build(plan, weights, backend, device)
    if len(given) > 1 or json or tokenizer is None:
        _whole(built, given, prompts, tokenizer, settings, stops, json=json)
    else:
        _streamed(built, given[0], prompts, tokenizer, settings, stops, quiet=quiet)


def _standard_input() -> str:
    """All of it, as an argument of the same bytes would be."""
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape")


def _printable(text: str) -> str:
    """A text in which every byte that is no UTF-8 is a replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _read_ids(text: str) -> list[int]:
    parts = text.replace(",", " ").split()
    if not parts or not all(part.isdecimal() and len(part) < 19 for part in parts):
        raise IsomorphError("E_ARGUMENT", f"--ids are written as 1,2,3, got {shorten(text)}")
    return [int(part) for part in parts]


def _ends(path: Path) -> tuple[int, ...]:
    """The ids with which the model's texts end, as its file notes them."""
    from isomorph.weights.file import load_notes

    noted = load_notes(path).get("eos_token_id")
    found = noted if isinstance(noted, list) else [noted]
    return tuple(token for token in found if type(token) is int)


def _build(plan: Plan, weights: Mapping[str, Any], backend: str | None, device: str | None) -> Any:
    from isomorph.backends.available import available

    usable = available()
    name = backend or next((name for name in BACKENDS if name in usable), "torch")
    if name not in BACKENDS:
        hints = did_you_mean(name, BACKENDS) or [f"--backend {' | '.join(BACKENDS)}"]
        raise IsomorphError("E_ARGUMENT", f"no backend {shorten(name)} generates text", hints=hints)
    if device is not None and name != "torch":
        raise IsomorphError("E_ARGUMENT", f"--device is for torch; {name} uses what JAX finds")
    import isomorph

    if name == "torch":
        return isomorph.torch.build(plan, weights, device=device or "cpu")
    if name == "nnx":
        return isomorph.nnx.build(plan, weights)
    return isomorph.linen.build(plan).bind(isomorph.linen.variables(plan, weights))


def _texts(steps: Iterable[Any], prompt: list[int], tokenizer: Tokenizer, stops: Stops) -> Iterator[str]:
    """What the text adds to its prompt, in pieces. What may begin a stop is held back until it is known."""
    pieces = tokenizer.stream(prompt)
    held = ""
    for new in steps:
        token = int(new[0])
        if token in stops.ids:
            break
        held += pieces.add(token)
        cut = _first_stop(held, stops.texts)
        if cut is not None:
            yield held[:cut]
            return
        safe = len(held) - _beginning(held, stops.texts)
        yield held[:safe]
        held = held[safe:]
    held += pieces.end()
    cut = _first_stop(held, stops.texts)
    yield held if cut is None else held[:cut]


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    places = [text.find(stop) for stop in stops if stop in text]
    return min(places) if places else None


def _cut(ids: list[int], prompt: list[int], tokenizer: Tokenizer, stops: Stops) -> tuple[list[int], str]:
    """New ids and their text up to a stop: of the ids as many as it takes to write that text."""
    text = tokenizer.decode(ids, prompt)
    cut = _first_stop(text, stops.texts)
    if cut is None:
        return ids, text
    enough = (n for n in range(len(ids)) if tokenizer.decode(ids[:n], prompt).startswith(text[:cut]))
    return ids[: next(enough, len(ids))], text[:cut]


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
    settings: Mapping[str, Any],
    stops: Stops,
    *,
    quiet: bool,
) -> None:
    from isomorph.engine.generation import stream

    steps = stream(built, ids, stop=stops.ids, **settings)  # before anything is printed: it may refuse
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
    settings: Mapping[str, Any],
    stops: Stops,
    *,
    json: bool,
) -> None:
    """All prompts as one batch."""
    from isomorph.engine.generation import generate

    whole = generate(built, given, stop=stops.ids, **settings)
    longest = max(len(row) for row in given)
    found = []
    for index, (row, prompt) in enumerate(zip(whole[:, longest:].tolist(), given, strict=True)):
        end = next((i for i, token in enumerate(row) if token in stops.ids), len(row))
        entry: dict[str, Any] = {"ids": prompt, "new_ids": row[:end]}
        if tokenizer is not None:
            entry["new_ids"], entry["text"] = _cut(row[:end], prompt, tokenizer, stops)
        if prompts:
            entry["prompt"] = _printable(prompts[index])
        found.append(entry)
    if json:
        print(json_text.dumps(found, indent=2, ensure_ascii=False))
        return
    for entry in found:
        text = entry.get("text")
        print(" ".join(map(str, entry["new_ids"])) if text is None else f"{entry.get('prompt', '')}{text}")
