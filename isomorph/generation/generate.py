"""Text from a causal network, an id at a time, with keys and values of earlier positions kept."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from isomorph.backends.available import part_for
from isomorph.backends.decoding import Array, DecodingBackend
from isomorph.errors import IsomorphError, shorten
from isomorph.generation.decoding_layout import decoding_layout
from isomorph.generation.sampling import Chooser
from isomorph.generation.settings import GenerationSettings, Options, check_count, unfollowed_text
from isomorph.lowering.decoding_layout import DecodingLayout
from isomorph.primitives import outside_table

PREFILL_CHUNK = 512
"""How many positions of a prompt are computed at a time."""

_FIRST_ROOM = 2048  # new ids that there is memory for at first; it grows when they have come

_LARGEST = np.iinfo(np.int64).max
_FILL = 0  # what stands in padding: any id that the network knows


class Prompt(NamedTuple):
    """Ids of a batch, shorter rows filled up on the left.

    Attributes:
        ids: ``[B, T]``, int64.
        pads: how many of them are filling, ``[B]``.
        given: ``[B, T]`` as they came, with what stands in the filling.
    """

    ids: Array
    pads: Array
    given: Array

    @property
    def shape(self) -> tuple[int, int]:
        """B, and the number of ids in the longest row."""
        B, T = self.ids.shape
        return B, T - int(self.pads.min()) if B else T


def generate(
    model: Any,
    ids: Any,
    max_new_tokens: int | None = None,
    *,
    settings: GenerationSettings | None = None,
    mask: Any = None,
    inputs: Mapping[str, Any] | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    **options: Unpack[Options],
) -> Any:
    """Continue ids with those that the network scores highest, or draws.

    Every position is computed once: keys and values are kept. Scores are computed for the last position
    alone. Dropout does not act, whatever mode the model is in, and the model is left as it is.

    Args:
        model: from ``isomorph.torch.build`` or ``isomorph.nnx.build``, or a bound Linen module,
            ``isomorph.linen.build(plan).bind(variables)``; of any plan in which a position sees the past
            alone.
        ids: a prompt ``[T]`` or prompts ``[B, T]`` as integers: an array, a tensor, or a list of ids, or of rows
            that may differ in length, themselves lists, arrays or tensors.
        max_new_tokens: how many ids to add at most, from 0; the settings' where omitted.
        settings: how ids are chosen, such as what a published model asks for,
            ``isomorph.generation_settings(path)``. Plain ones where omitted: the highest score, without an end.
        mask: for ids whose rows are filled up on the left already: ``[B, T]``, True where there is an id.
        inputs: further inputs of the network by name, such as an encoder's, as a call of the model takes them, or
            as NumPy arrays. Of several inputs that could be ids, the one that is not among them is continued.
        prefill_chunk: how many positions of the prompt are computed at a time.
        options: what else is to hold than the settings, by name: ``temperature=0.8``, ``top_k=40``, ``top_p=0.95``,
            ``min_p=0.05``, ``repetition_penalty=1.1``, ``no_repeat_ngram=3``, ``banned=[[7, 8]]``,
            ``suppress=[220]``, ``begin_suppress=[220]``, ``forced={1: 50259}``, ``forced_end=2``,
            ``min_new_tokens=5``, ``max_length=448``, ``stop=0``, ``seed=1``.
            :class:`~isomorph.GenerationSettings` says what they mean. A ``stop`` is part of the result, and fills the
            row up to the length of the longest. Equal seeds give equal ids in every backend, and row ``i`` of
            ``seed=s`` draws as it does alone with ``seed=[(s, i)]``.

    Returns:
        The prompt and what follows, ``[T + n]`` or ``[B, T + n]`` with ``n <= max_new_tokens``: a tensor or
        array of the kind of ``ids``, a NumPy array (int64) for lists. Lists of unequal rows are filled up
        on the left with 0; what a mask hides stays as it was.

    Raises:
        IsomorphError: E_ARGUMENT when the network cannot generate text, with the node that is in the way, or
            for an argument out of range; E_RUNTIME when ids are outside the table, more positions are needed than
            the network has, further inputs do not meet their contracts, or the settings leave no id to choose;
            E_RESOURCE when there is no memory for that many keys and values.

    Warns:
        UserWarning: once for all calls, what the settings hold that is not done.
    """
    text = _begun(model, ids, max_new_tokens, settings, options, mask, inputs, prefill_chunk)
    prompt, backend = text.prompt, text.backend
    if not len(prompt.ids):  # no row that could end
        whole = np.zeros((0, prompt.ids.shape[1] + text.steps), np.int64)
    else:
        whole = np.concatenate([prompt.given, *(new[:, None] for new in _run(text))], axis=1)
    whole = whole[0] if _is_row(ids) else whole
    return backend.like(whole, ids) if backend.to_numpy(ids) is not None else whole


def stream(
    model: Any,
    ids: Any,
    max_new_tokens: int | None = None,
    *,
    settings: GenerationSettings | None = None,
    mask: Any = None,
    inputs: Mapping[str, Any] | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    **options: Unpack[Options],
) -> Iterator[Array]:
    """What :func:`generate` adds, as it comes: an int64 array ``[B]`` for every step, ``[1]`` for one prompt.

    A row that has ended repeats the id that ended it. Arguments and errors are those of :func:`generate`;
    errors of arguments come at the call.
    """
    return _run(_begun(model, ids, max_new_tokens, settings, options, mask, inputs, prefill_chunk))


class _Text(NamedTuple):
    """A text before its first new id, everything checked.

    Attributes:
        model: what continues it.
        backend: what runs the model.
        layout: how.
        prompt: what is continued.
        inputs: further inputs by their value ids.
        steps: how many ids to add at most.
        chooser: what chooses them.
        chunk: how many positions of the prompt are computed at a time.
    """

    model: Any
    backend: DecodingBackend
    layout: DecodingLayout
    prompt: Prompt
    inputs: Mapping[int, Any]
    steps: int
    chooser: Chooser
    chunk: int


def _begun(
    model: Any,
    ids: Any,
    max_new_tokens: int | None,
    settings: GenerationSettings | None,
    options: Mapping[str, Any],
    mask: Any,
    inputs: Mapping[str, Any] | None,
    prefill_chunk: int,
) -> _Text:
    backend = backend_of(model)
    asked = _asked(backend, settings, options, max_new_tokens)
    chunk = check_count("prefill_chunk", prefill_chunk, 1)
    layout = decoding_layout(backend.plan_of(model), inputs if isinstance(inputs, Mapping) else ())
    prompt = read_prompt(_in_numpy(backend, ids), _in_numpy(backend, mask), layout.vocabulary)
    steps = _step_count(asked, prompt)
    _check_length(layout, prompt, steps)
    rows = [row[pad:] for row, pad in zip(prompt.ids, prompt.pads, strict=True)]
    chooser = Chooser(asked, rows, layout.scores, steps)
    given = backend.inputs(model, layout, prompt.shape, _named(layout, inputs))
    _tell_unfollowed(asked)
    return _Text(model, backend, layout, prompt, given, steps, chooser, chunk)


def _asked(
    backend: DecodingBackend,
    settings: GenerationSettings | None,
    options: Mapping[str, Any],
    max_new_tokens: int | None,
) -> GenerationSettings:
    """The settings with the options in their places."""
    given = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
    given |= {name: _in_numpy(backend, value) for name, value in options.items()}
    if settings is None:
        return GenerationSettings().changed(given)
    if not isinstance(settings, GenerationSettings):
        raise IsomorphError(
            "E_ARGUMENT",
            f"settings must be GenerationSettings, got {shorten(type(settings).__name__)}",
            hints=["settings=isomorph.generation_settings(path), or the settings by name, as in top_k=40"],
        )
    return settings.changed(given)


def _step_count(settings: GenerationSettings, prompt: Prompt) -> int:
    """How many ids are added at most."""
    if settings.max_new_tokens is not None:
        return settings.max_new_tokens
    if settings.max_length is None:
        raise IsomorphError(
            "E_ARGUMENT",
            "nothing says how many ids to add",
            hints=["give max_new_tokens, as in max_new_tokens=100"],
        )
    longest = prompt.shape[1]
    if longest >= settings.max_length:
        raise IsomorphError(
            "E_ARGUMENT",
            f"max_length is {settings.max_length:,}, and the longest prompt has {longest:,} ids already",
            hints=["give max_new_tokens, which does not count the prompt"],
        )
    return settings.max_length - longest


_warned: set[tuple[str, ...]] = set()


def _tell_unfollowed(settings: GenerationSettings) -> None:
    """Warn once of what a published model asks for and is not done."""
    if settings.unfollowed and settings.unfollowed not in _warned:
        _warned.add(settings.unfollowed)
        warnings.warn(unfollowed_text(settings), UserWarning, stacklevel=4)  # of who called generate


def _in_numpy(backend: DecodingBackend, given: Any) -> Any:
    """What is a tensor of the backend, or a list of them, in NumPy; all else as it is."""
    array = backend.to_numpy(given)
    if array is None and isinstance(given, list | tuple):
        rows = [backend.to_numpy(row) for row in given]
        return [
            row if array_of_row is None else array_of_row
            for row, array_of_row in zip(given, rows, strict=True)
        ]
    return given if array is None else array


def backend_of(model: Any) -> DecodingBackend:
    """What generates with a model; E_ARGUMENT when it is none."""
    return part_for(model, "decoding")[1]


# -- the prompt ----------------------------------------------------------------------------------------


def _is_row(ids: Any) -> bool:
    """Whether the ids are one prompt and no batch."""
    shape = getattr(ids, "shape", None)
    if shape is not None:
        return len(shape) == 1
    return not any(isinstance(row, Sequence) or getattr(row, "shape", ()) for row in ids)


def read_prompt(ids: Any, mask: Any, vocabulary: int) -> Prompt:
    """Ids of any form as a batch.

    Raises:
        IsomorphError: E_ARGUMENT for what are no prompts; E_RUNTIME for an id outside the table.
    """
    rows = _rows(ids)
    T = ids.shape[1] if _has_shape(ids) else max(map(len, rows), default=0)
    given = np.full((len(rows), T), _FILL, dtype=np.int64)
    for row, some in zip(given, rows, strict=True):
        if some.dtype == np.uint64 and (some > _LARGEST).any():  # else it would come out negative
            raise outside_table(int(some.max()), vocabulary or _LARGEST)
        row[T - len(some) :] = some
    pads = np.array([T - len(row) for row in rows], dtype=np.int64)
    if mask is not None:
        if pads.any():
            raise IsomorphError(
                "E_ARGUMENT",
                "mask was given for rows of unequal lengths, whose ends tell already where there are ids",
                hints=["leave mask out, or give an array [B, T] filled up on the left"],
            )
        pads = _padding(mask, given.shape)
    if (pads >= T).any() if len(rows) else T == 0 and not _has_shape(ids):
        index = int((pads >= T).argmax()) if len(rows) else 0
        raise IsomorphError(
            "E_ARGUMENT", f"the prompt of row {index} is empty", hints=["give every row at least one id"]
        )
    batch = np.where(np.arange(T) < pads[:, None], _FILL, given)
    outside = (batch < 0) | (batch >= vocabulary)
    if vocabulary and outside.any():
        raise outside_table(int(batch[outside][0]), vocabulary)
    return Prompt(batch, pads, given)


def _has_shape(ids: Any) -> bool:
    return len(getattr(ids, "shape", ())) == 2


def _rows(ids: Any) -> list[Array]:
    if isinstance(ids, str | bytes) or not (hasattr(ids, "__array__") or isinstance(ids, Sequence)):
        raise _no_prompt(ids)
    if hasattr(ids, "__array__"):
        array = np.asarray(ids)
        if array.ndim not in (1, 2):
            raise _no_prompt(ids)
        rows = [array] if array.ndim == 1 else list(array)
        kind = array.dtype
    else:
        given = [ids] if _is_row(ids) else list(ids)
        try:
            rows = [np.asarray(row) if len(row) else np.zeros(0, np.int64) for row in given]
        except (TypeError, ValueError):
            raise _no_prompt(ids) from None
        kind = next((row.dtype for row in rows if row.dtype.kind not in "iu"), np.dtype(np.int64))
    if kind.kind not in "iu" or any(row.ndim != 1 for row in rows):
        raise _no_prompt(ids)
    return rows


def _no_prompt(ids: Any) -> IsomorphError:
    shape, dtype = getattr(ids, "shape", None), getattr(ids, "dtype", None)
    got = shorten(ids) if shape is None else f"{dtype} of shape {list(shape)}"
    return IsomorphError(
        "E_ARGUMENT",
        f"ids must be integers, a prompt [T] or prompts [B, T], got {got}",
        hints=["encode text first, as in list(text.encode()) for a network over bytes"],
    )


def _padding(mask: Any, shape: tuple[int, ...]) -> Array:
    """How many positions of each row a mask hides, all of them before the first id."""
    shown = np.asarray(mask)
    if shown.ndim == 1:
        shown = shown[None]
    if shown.shape != shape or (shown.dtype != bool and not np.isin(shown, (0, 1)).all()):
        raise IsomorphError(
            "E_ARGUMENT",
            f"mask must be booleans of shape {list(shape)}, as ids are, got {shown.dtype} of shape {list(shown.shape)}",
        )
    shown = shown.astype(bool)
    if (shown[:, :-1] & ~shown[:, 1:]).any():
        row = int((shown[:, :-1] & ~shown[:, 1:]).any(-1).argmax())
        raise IsomorphError(
            "E_ARGUMENT",
            f"mask hides positions after an id in row {row}",
            hints=["fill rows up on the left, so that all of them end at the last position"],
        )
    return (~shown).sum(-1)


# -- the steps -----------------------------------------------------------------------------------------


def _check_length(layout: DecodingLayout, prompt: Prompt, new: int) -> None:
    """The last id that is added is not read, so it needs no position."""
    if layout.limit is None or not len(prompt.ids):
        return
    longest = prompt.shape[1]
    needed = longest + max(0, new - 1)
    if needed > layout.limit:
        raise IsomorphError(
            "E_RUNTIME",
            f"a prompt of length {longest:,} and {new:,} new ids take {needed:,} positions; "
            f"the network has {layout.limit:,}",
            hints=[
                f"max_new_tokens is at most {max(0, layout.limit - longest + 1):,} here, or shorten the prompt"
            ],
        )


def _named(layout: DecodingLayout, inputs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The further inputs by name, none missing and none too many."""
    wanted = [layout.plan.inputs[index][0] for index in layout.others]
    hints = ['give them by name, as in inputs={"features": x}'] if wanted else []
    named = {} if inputs is None else inputs
    if not isinstance(named, Mapping):
        got = shorten(type(inputs).__name__)
        raise IsomorphError("E_ARGUMENT", f"inputs must be a dictionary by name, got {got}", hints=hints)
    if set(wanted) != set(named):
        given = ", ".join(map(str, named)) or "none"
        raise IsomorphError(
            "E_ARGUMENT",
            f"the network's further inputs are {', '.join(wanted) or 'none'}, got {given}",
            hints=hints,
        )
    return named


def _run(text: _Text) -> Iterator[Array]:
    model, backend, layout, prompt, inputs, steps, chooser, chunk = text
    B, T = prompt.ids.shape
    if not steps:
        return
    if not B:
        for _ in range(steps):
            yield np.zeros(0, dtype=np.int64)
        return
    ahead = int(prompt.pads.min())  # a filling that all rows have is none
    ids, pads = prompt.ids[:, ahead:], prompt.pads - ahead
    slots = backend.slots(T - ahead, chunk)
    ids = np.pad(ids, ((0, 0), (slots - ids.shape[1], 0)), constant_values=_FILL)
    pads = pads + (slots - (T - ahead))
    decoder = backend.start(model, layout, slots + min(steps, _FIRST_ROOM), pads, inputs)
    logits = None
    for first in range(0, slots, chunk):
        logits = decoder.feed(ids[:, first : first + chunk], wanted=first + chunk >= slots)
    for step in range(steps):
        assert logits is not None
        new = chooser.choose(logits, step)
        yield new.copy()  # a reader may change it
        if step + 1 == steps or chooser.ended:
            return
        logits = decoder.feed(_known(new, layout)[:, None], wanted=True)


def _known(ids: Array, layout: DecodingLayout) -> Array:
    """Ids to read next; E_RUNTIME when the network scores an id that it has no row for."""
    if layout.vocabulary and ids.max() >= layout.vocabulary:
        raise outside_table(int(ids.max()), layout.vocabulary)
    return ids
