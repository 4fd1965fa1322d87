"""What belongs to a published model but not to its network: ids of special tokens, names of classes, settings of generation.

They travel as the notes of a saved model (:func:`isomorph.weights.file.save`), and nobody trusts them: what
does not fit the network is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


GENERATION_NOTE = "generation_config"
"""The note that holds what the model asks of a generation, word for word."""

GENERATION_KEYS = (
    "bad_words_ids", "begin_suppress_tokens", "do_sample", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "forced_bos_token_id", "forced_decoder_ids", "forced_eos_token_id", "max_length", "min_length",
    "no_repeat_ngram_size", "num_beams", "num_return_sequences", "repetition_penalty", "suppress_tokens", "temperature",
    "top_k", "top_p", "typical_p",
)  # fmt: skip
"""Such settings in a ``config.json`` from before there was a file for them."""


def notes_of(configuration: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What is noted of a published model.

    Args:
        configuration: its ``config.json``: ids of special tokens, names of classes that somebody chose, and in older
            ones settings of generation.
        generation: its ``generation_config.json``, None where it has none.
    """
    notes: dict[str, Any] = {key: configuration[key] for key in TOKEN_IDS if _are_ids(configuration.get(key))}
    names = configuration.get("id2label")
    if isinstance(names, dict) and class_names_of({"id2label": names}, len(names)):
        notes["id2label"] = names
    if generation is None:
        generation = {
            key: configuration[key] for key in GENERATION_KEYS if configuration.get(key) is not None
        }
    if generation:
        notes[GENERATION_NOTE] = dict(generation)
    return notes


def _are_ids(value: Any) -> bool:
    ids = value if isinstance(value, list) and value else [value]
    return all(type(one) is int and abs(one) < 1 << 53 for one in ids)


def token_id_of(notes: Mapping[str, Any], key: str, count: int) -> int | list[int] | None:
    """An id (of the end, several) below ``count``, or None where the notes have none that fits."""
    value = notes.get(key)
    ids = value if isinstance(value, list) and value and key == "eos_token_id" else [value]
    return value if all(type(one) is int and 0 <= one < count for one in ids) else None


def class_names_of(notes: Mapping[str, Any], count: int) -> dict[str, str] | None:
    """The names of ``count`` classes by number, or None where the notes have not just these."""
    names = notes.get("id2label")
    if not isinstance(names, dict) or len(names) != count:
        return None
    by_number = {str(i): names.get(str(i)) for i in range(count)}
    made_up = all(name == f"LABEL_{i}" for i, name in by_number.items())
    if made_up or not all(isinstance(name, str) for name in by_number.values()):
        return None
    return {i: name for i, name in by_number.items() if name is not None}
