"""What a published model asks of a generation: ``generation_config.json``, or the same keys in an older ``config.json``.

They travel as the notes of a saved model, word for word, and are read here when somebody generates. Nobody trusts
them: what cannot be followed is left out and told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from isomorph.checkpoints.hub import SCHEME, local_directory
from isomorph.checkpoints.notes import GENERATION_NOTE, notes_of
from isomorph.checkpoints.source import CONFIGURATION, configuration_of, generation_of
from isomorph.errors import IsomorphError, shorten
from isomorph.generation.settings import GenerationSettings
from isomorph.paths import path_text

_DEFAULT_TOP_K = 50
_DEFAULT_MAX_LENGTH = 20
"""What ``transformers`` takes for settings that a file does not say, and writes into some files although nobody did."""

_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "suppress_tokens": "suppress",
    "begin_suppress_tokens": "begin_suppress",
    "forced_eos_token_id": "forced_end",
    "eos_token_id": "stop",
    "min_new_tokens": "min_new_tokens",
    "max_new_tokens": "max_new_tokens",
    "max_length": "max_length",
}
"""Their key, and the setting of the same meaning; others take more than a name."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "min_length": (0,),
    "penalty_alpha": (0,),
    "typical_p": (1,),
    "top_h": (),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "exponential_decay_length_penalty": (),
    "sequence_bias": (),
    "guidance_scale": (1,),
    "watermarking_config": (),
    "constraints": (),
    "force_words_ids": (),
    "stop_strings": (),
    "max_time": (),
    "remove_invalid_values": (False,),
    "token_healing": (False,),
    "dola_layers": (),
    "return_timestamps": (False,),
    "language": (),
    "task": (),
}
"""Keys that are not followed, with the values that ask for nothing; so does null."""

_WITHOUT_EFFECT = frozenset([
    # which ids these are, and who wrote the file
    "bos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version", "_from_model_config",
    "_commit_hash", "trust_remote_code",
    # of the search with several beams, which num_beams asks for
    "early_stopping", "length_penalty", "num_beam_groups", "diversity_penalty", "low_memory",
    # how fast, and what else is returned
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "return_legacy_cache", "compile_config",
    "disable_compile", "prefill_chunk_size", "continuous_batching_config", "use_mtp", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "return_dict",
    "renormalize_logits", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight", "assistant_lookbehind",
    "target_lookbehind", "prompt_lookup_num_tokens", "max_matching_ngram_size", "speculation_type",
    # tables of Whisper, which its own front end reads
    "alignment_heads", "is_multilingual", "lang_to_id", "task_to_id", "max_initial_timestamp_index",
    "no_timestamps_token_id", "prev_sot_token_id", "median_filter_width",
])  # fmt: skip

_FOLLOWED = frozenset([*_NAMES, "do_sample", "bad_words_ids", "forced_bos_token_id", "forced_decoder_ids"])


def generation_settings(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
) -> GenerationSettings:
    """What a model asks of a generation: the settings that its publisher chose.

    They are read as ``transformers`` reads them: without ``do_sample`` the highest score is taken, whatever the
    temperature; with it ``top_k`` is 50 where the file does not say it. The ids that end a text are the stops.

    Args:
        path: a saved model (``.safetensors``), the directory of a run, or a published model as
            :func:`isomorph.import_checkpoint` takes it.

    Returns:
        Settings for :func:`isomorph.generate`; plain ones where nothing is asked for. What the model asks for and is
        not done is in ``unfollowed``.

    Raises:
        IsomorphError: E_CHECKPOINT when the files cannot be read.
    """
    text = path_text(path, "the model's path")
    place = Path(text)
    if text.startswith(SCHEME) or not (place.is_file() or _is_run(place)):
        directory = Path(local_directory(text))
        return settings_of(notes_of(configuration_of(directory), generation_of(directory)))
    from isomorph.weights.file import load_notes

    return settings_of(load_notes(place / "model.safetensors" if place.is_dir() else place))


def _is_run(directory: Path) -> bool:
    """Whether a directory holds a model that was saved here, and no published one."""
    from isomorph.weights.file import holds_plan

    model = directory / "model.safetensors"
    return model.is_file() and (holds_plan(model) or not (directory / CONFIGURATION).is_file())


def settings_of(notes: Mapping[str, Any]) -> GenerationSettings:
    """The settings in a model's notes."""
    noted = notes.get(GENERATION_NOTE)
    asked = {
        key: value for key, value in (noted if isinstance(noted, dict) else {}).items() if value is not None
    }
    if "eos_token_id" in notes:
        asked.setdefault("eos_token_id", notes["eos_token_id"])
    return _Reader(asked).settings()


class _Reader:
    """Reads the keys of a configuration one by one, and notes those that cannot be followed.

    Args:
        asked: the configuration's values by key, none of them None.
    """

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._asked, self._unfollowed = asked, []
        self._settings = GenerationSettings()

    def settings(self) -> GenerationSettings:
        asked = self._asked
        draws = asked.get("do_sample") is True
        for key, name in _NAMES.items():
            self._take(key, lambda value, name=name: {name: value})
        self._take("forced_bos_token_id", lambda value: {"forced": {1: value}})
        self._take("forced_decoder_ids", self._forced)
        self._take("bad_words_ids", self._banned)
        if self._settings.max_length == _DEFAULT_MAX_LENGTH:
            self._set({"max_length": None})
        if not draws:
            self._set({"temperature": 0.0})
        elif "temperature" not in asked:
            self._set({"temperature": 1.0})
        if draws and "top_k" not in asked:
            self._set({"top_k": _DEFAULT_TOP_K})
        if not isinstance(asked.get("do_sample", False), bool):
            self._leave("do_sample")
        for key in asked.keys() - _FOLLOWED - _WITHOUT_EFFECT:
            value = asked[key]
            if not any(value == neutral for neutral in _NEUTRAL.get(key, ())):
                self._leave(key)
        self._set({"unfollowed": tuple(sorted(self._unfollowed))})
        return self._settings

    def _set(self, changes: Mapping[str, Any]) -> None:
        from dataclasses import replace

        self._settings = replace(self._settings, **changes)

    def _take(self, key: str, changes: Callable[[Any], Mapping[str, Any]]) -> None:
        if key in self._asked:
            try:
                self._set(changes(self._asked[key]))
            except (IsomorphError, TypeError, ValueError):
                self._leave(key)

    def _leave(self, key: str) -> None:
        self._unfollowed.append(f"{shorten(key)[1:-1]} {shorten(self._asked[key], 40)}")

    def _forced(self, pairs: Any) -> dict[str, Any]:
        """Positions whose id is null are left to the network; in ``transformers`` they ask for the language."""
        if any(token is None for _, token in pairs):
            self._leave("forced_decoder_ids")
        return {"forced": {**dict(self._settings.forced), **{p: i for p, i in pairs if i is not None}}}

    def _banned(self, sequences: Any) -> dict[str, Any]:
        stops = [[token] for token in self._settings.stop]  # the end of text alone is not forbidden
        return {"banned": [sequence for sequence in sequences if sequence not in stops]}


def generation_bytes(notes: Mapping[str, Any]) -> bytes | None:
    """The file ``generation_config.json`` of a model with these notes, or None where there is nothing to write."""
    asked = notes.get(GENERATION_NOTE)
    if not isinstance(asked, dict) or not asked:
        return None
    return (json.dumps(asked, indent=2, sort_keys=True) + "\n").encode()
