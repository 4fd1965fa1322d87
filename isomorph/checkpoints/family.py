"""The form of a published family: its configuration's keys, its definition, and its tensors.

A family says each thing once, and it serves both directions: :class:`Row` relates one of their tensors to
parameters of the plan and states the order of axes; :class:`Family.settings` lists every key that the family's
configuration class or its bases declare, or that its model reads, as handled, ignored with a reason, or held to
the values that the definition can express. Any other key cannot change the class's numbers, and is passed over:
:func:`passed_over` says which. So that a network of a related family does not pass for this one, keys that are
read there, and change what the same tensors compute, are held to the values that change nothing.

A key of an object inside the configuration has that object's name and a dot before it:
``text_config.hidden_size``. A key with a dot of its own is known only where :data:`COMMON` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from isomorph.errors import shorten, shown
from isomorph.limits import DEFAULTS
from isomorph.plan import Node, Plan

Options = Mapping[str, Any]
"""A configuration with every handled key present, under their names; and ``architecture``."""

MOST_SIZE, _MOST_EXACT = DEFAULTS["max_dimension"], 1 << 53
REQUIRED: Any = object()
"""Stands for a default where there is none."""

SAME, TRANSPOSED, BATCHED = "same", "transposed", "batched"
"""How their axes lie: as in the plan; ``[in, out]`` for the plan's ``[out, in]``; behind an axis of 1."""
SCALAR, VECTOR = "scalar", "vector"
"""Fewer axes than in the plan: none for the plan's ``[1]``; ``[D]`` for the plan's ``[1, 1, D]``."""


class Handled(NamedTuple):
    """A key that the definition follows.

    Attributes:
        kind: ``int``, ``layers`` (an int that counts layers), ``float``, ``bool``, ``choice`` or ``any`` (the
            family checks it).
        default: the value where the key is absent, which is the peer library's default.
        choices: for ``choice``, what it may be, each with what the definition says for it.
        optional: whether it may be null.
    """

    kind: str
    default: Any = REQUIRED
    choices: Mapping[str, str] | None = None
    optional: bool = False


class Ignored(NamedTuple):
    """A key that does not change what the network computes from its weights, and why."""

    reason: str


class Only(NamedTuple):
    """A key that may have these values alone."""

    values: tuple[Any, ...]
    reason: str


class Row(NamedTuple):
    """One of their tensors, and the parameters that it holds one after another along the plan's first axis.

    Attributes:
        theirs: its name without the base model's prefix; ``{i}`` stands for a layer's number.
        ours: paths in the plan, likewise.
        order: how their axes lie.
        head: whether it is outside the base model, so that no prefix is ever before it.
    """

    theirs: str
    ours: tuple[str, ...]
    order: str = SAME
    head: bool = False


class NotThisFamily(Exception):
    """A plan cannot be this family; says why. Never leaves the package."""


@dataclass(frozen=True)
class Family:
    """One ``model_type``.

    Attributes:
        model_type: what ``config.json`` calls it.
        prefix: what stands before the base model's tensors in a model with a head.
        architectures: names that can be imported, each with the one that results.
        default_architecture: what is assumed where the configuration names none.
        settings: every known key.
        definition: the text for a configuration.
        rows: the tensors for a configuration.
        layers: how many layers a configuration has.
        describe: a configuration for a plan, as far as one can be read off; may raise NotThisFamily.
            Whether it fits is found by comparing the plan with its definition.
        base_architectures: those without a head, whose tensors have no prefix.
        unread: exact names of known tensors that are recomputed or not needed, ``{i}`` as in rows.
        written: keys that ``describe`` gives for the file beyond the handled ones.
        unwritten: older spellings of handled keys, which are read alone.
        has_tokens: whether its configuration names special tokens.
        observe: facts that only the tensors' shapes tell, as further options.
        update: an older form of the configuration to the present one.
        rename: an older name of a tensor to the present one.
        problems: what cannot be expressed because of several keys together.
        aliases: names of tensors that are copies of another in their class, each with the one that is read.
        filled: shapes of tensors that their class has and the plan has not, written as zeros, by whole name.
        disagreements: what keys and observed facts together cannot be; the options have both.
        other_names: further names that the class has for a key, each with that key.
        closed: objects inside the configuration whose every key is read, so that an unknown one is refused.
        idle: keys inside a value that its kind does not read, as they are passed over.
        strangers: what shows that a configuration was written for a related family, whose tensors have these
            names and which computes otherwise. Takes the configuration as it is in the file.
        strange_weights: likewise, of the plan's weights.
        sentences: whether the definition follows ``pooling`` and ``normalize``, which a directory of
            sentence-transformers has.
    """

    model_type: str
    prefix: str
    architectures: Mapping[str, str]
    default_architecture: str
    settings: Mapping[str, Handled | Ignored | Only]
    definition: Callable[[Options], str]
    rows: Callable[[Options], list[Row]]
    layers: Callable[[Options], int]
    describe: Callable[[Plan], dict[str, Any]]
    base_architectures: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()
    written: frozenset[str] = frozenset()
    unwritten: frozenset[str] = frozenset()
    has_tokens: bool = True
    observe: Callable[[Mapping[str, Sequence[int]]], dict[str, Any]] = lambda shapes: {}
    update: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda configuration: configuration
    rename: Callable[[str], str] = lambda name: name
    problems: Callable[[Options], list[str]] = field(default=lambda options: [])
    aliases: Callable[[Options], Mapping[str, str]] = field(default=lambda options: {})
    filled: Callable[[Options], Mapping[str, tuple[int, ...]]] = field(default=lambda options: {})
    disagreements: Callable[[Options], list[str]] = field(default=lambda options: [])
    other_names: Mapping[str, str] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()
    idle: Callable[[Options], list[str]] = field(default=lambda options: [])
    strangers: Callable[[Mapping[str, Any]], list[str]] = field(default=lambda configuration: [])
    strange_weights: Callable[[Mapping[str, np.ndarray]], list[str]] = field(default=lambda weights: [])
    sentences: bool = False


GENERATION = Ignored("about generating text, not about the network")
TRAINING = Ignored("acts in training only")
_RUNNING = Ignored("how it is run, not what it computes")
COMMON: dict[str, Handled | Ignored | Only] = {
    "architectures": Ignored("read beforehand"),
    "model_type": Ignored("read beforehand"),
    **dict.fromkeys(
        ("transformers_version", "_name_or_path", "_commit_hash", "auto_map"), Ignored("says where the file is from")
    ),
    **dict.fromkeys(("dtype", "torch_dtype"), Ignored("the tensors have their dtype")),
    **dict.fromkeys(
        (
            "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id",
            "unk_token_id", "mask_token_id", "decoder_start_token_id", "task_specific_params", "prefix",
            "eos_token_ids",
        ),
        GENERATION,
    ),
    # What files of older versions carry along, in the objects of a model of two towers too.
    **dict.fromkeys(
        (
            "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
            "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
            "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size",
            "num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "remove_invalid_values",
            "repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature",
            "tokenizer_class", "top_k", "top_p", "typical_p",
        ),
        GENERATION,
    ),
    **dict.fromkeys(
        (
            "initializer_range", "initializer_factor", "gradient_checkpointing", "problem_type",
            "finetuning_task", "dropout", "tf_legacy_loss", "loss_type",
        ),
        TRAINING,
    ),
    **dict.fromkeys(
        ("id2label", "label2id", "num_labels", "_num_labels"),
        Ignored("names of classes; the head's shape has their number"),
    ),
    "output_past": Ignored("an older name of use_cache"),
    "transformers.js_config": Ignored("how a browser stores it"),
    **dict.fromkeys(("unsloth_fixed", "unsloth_version"), Ignored("who wrote the file")),
    **dict.fromkeys(
        (
            "return_dict", "output_attentions", "output_hidden_states", "torchscript", "chunk_size_feed_forward",
            "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
            "attn_implementation", "_flash_attn_2_enabled", "use_bfloat16", "xla_device",
        ),
        _RUNNING,
    ),
    "is_encoder_decoder": Only((False,), "one network alone is imported"),
    "is_decoder": Only((False,), "the family's own attention is imported"),
    "add_cross_attention": Only((False,), "there is no second sequence"),
    "cross_attention_hidden_size": Only((None,), "there is no second sequence"),
    "tie_encoder_decoder": Only((False,), "there is one network"),
    "pruned_heads": Only(({}, None), "layers are alike"),
    "per_layer_config": Only((None, {}), "layers are alike"),
    "is_causal": Only((None, True), "the family's own attention is imported"),
    "attention_chunk_size": Only((None,), "attention is not cut in chunks"),
    "quantization_config": Only((None, {}), "tensors hold numbers, no codes of numbers"),
    "compression_config": Only((None, {}), "tensors hold numbers, no codes of numbers"),
    "fusion_config": Only((None, {}), "tensors have the class's own names"),
    "transformers_weights": Only((None,), "weights have the usual files' names"),
    "tie_last_hidden_states": Ignored("which intermediate features are listed"),
    "name_or_path": Ignored("says where the file is from"),
}  # fmt: skip
"""Keys that any configuration may have."""


def dropout(*keys: str) -> dict[str, Ignored]:
    """Dropout probabilities: the definition has none; a person who trains adds them."""
    return dict.fromkeys(keys, TRAINING)


def known_keys(family: Family) -> dict[str, Handled | Ignored | Only]:
    """Every key that a configuration may have; the objects inside it may have the common ones too."""
    inner = {f"{group}.{key}": setting for group in _groups(family) for key, setting in COMMON.items()}
    return {**COMMON, **inner, **family.settings}


def _groups(family: Family) -> list[str]:
    """The names of the objects inside a configuration."""
    return list(dict.fromkeys(key.partition(".")[0] for key in family.settings if "." in key))


def _flat(family: Family, configuration: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A configuration with the keys of its objects behind their names, and what is wrong with those objects."""
    groups, flat, problems = _groups(family), dict[str, Any](), list[str]()
    for key, value in family.update(configuration).items():
        if "." in key and key not in COMMON:
            continue  # it would pass for an object's
        if key not in groups:
            flat[key] = value
        elif isinstance(value, dict):
            flat |= {f"{key}.{inner}": each for inner, each in value.items()}
        elif value is not None:
            problems.append(f"{key}: expected an object, got {shorten(value)}")
    return flat, problems


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with its objects as a file has them."""
    configuration: dict[str, Any] = {}
    for key, value in flat.items():
        group, dot, inner = key.partition(".")
        if dot:
            configuration.setdefault(group, {})[inner] = value
        else:
            configuration[key] = value
    return configuration


def passed_over(family: Family, configuration: Mapping[str, Any], options: Options) -> list[str]:
    """The keys of a configuration that the family's class does not know: they change none of its numbers."""
    known, (flat, _) = known_keys(family), _flat(family, configuration)
    dotted = [key for key in configuration if "." in key and key not in COMMON]
    return [*(key for key in flat if key not in known), *dotted, *family.idle(options)]


def read_options(family: Family, configuration: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options of a configuration, and a line for everything in it that cannot be followed."""
    settings = known_keys(family)
    flat, problems = _flat(family, configuration)
    problems += [
        f"{shown(key)}: unknown key, got {shorten(flat[key])}"
        for key in flat
        if key not in settings and key.partition(".")[0] in family.closed
    ]
    problems += _one_name(family, flat)
    options: dict[str, Any] = {}
    for key, setting in settings.items():
        if isinstance(setting, Only):
            if key in flat and not any(_same(flat[key], value) for value in setting.values):
                allowed = " or ".join(map(repr, setting.values))
                problems.append(f"{key}: expected {allowed} ({setting.reason}), got {shorten(flat[key])}")
        elif isinstance(setting, Handled):
            value = flat.get(key, setting.default)
            if value is REQUIRED:
                problems.append(f"{key}: missing")
            elif problem := _wrong(setting, value):
                problems.append(f"{key}: expected {problem}, got {shorten(value)}")
            else:
                options[key] = value if setting.kind == "float" else whole(value)
    return options, problems or oversized(family, options) or family.problems(options)


def oversized(
    family: Family, options: Options, tensors: int = MOST_SIZE, above: int = _MOST_EXACT
) -> list[str]:
    """A line for each size above ``above``, and for each number of layers above that of ``tensors``.

    What lies between the largest size of a definition and the largest number that every computer has exactly is
    left to the resolver, which says what of the network is too large.
    """
    lines = []
    for key, setting in known_keys(family).items():
        if (
            not isinstance(setting, Handled)
            or setting.kind not in ("int", "layers")
            or options.get(key) is None
        ):
            continue
        value = options[key]
        if value > above:
            lines.append(f"{key}: expected at most {MOST_SIZE:,}, got {shorten(value)}")
        elif setting.kind == "layers" and tensors < value <= DEFAULTS["max_nodes"]:
            lines.append(f"{key}: expected at most {tensors:,}, for there are no more tensors, got {value}")
    return lines


def _one_name(family: Family, flat: dict[str, Any]) -> list[str]:
    """Moves a value from its key's other name to the key; a line for each two values of one key."""
    problems = []
    for other, key in family.other_names.items():
        if (value := flat.pop(other, None)) is None:
            continue
        if key in flat and not _same(flat[key], value):
            problems.append(
                f"{other}: expected {shorten(flat[key])}, as {key}, whose other name it is, got {shorten(value)}"
            )
        flat.setdefault(key, value)
    return problems


def _same(a: Any, b: Any) -> bool:
    """Equal, where 1 and 1.0 are one number, and no boolean is any."""
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def whole(value: Any) -> Any:
    """A number that JSON wrote as ``16.0`` as an integer; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _wrong(setting: Handled, value: Any) -> str:
    """What was expected instead of a value, or nothing."""
    if (value is None and setting.optional) or setting.kind == "any":
        return ""
    if setting.kind == "choice":
        choices = setting.choices or {}
        return "" if isinstance(value, str) and value in choices else " or ".join(map(repr, choices))
    if setting.kind == "bool":
        return "" if type(value) is bool else "true or false"
    if setting.kind in ("int", "layers"):
        value = whole(value)
        return "" if type(value) is int and value >= 1 else "an integer from 1"
    return "" if is_positive(value) else "a number above 0"


def is_positive(value: Any) -> bool:
    """Whether a value of a configuration is a finite number above 0."""
    # An integer may be too large for a float; no published number is near this bound.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300


# -- their axes and ours -------------------------------------------------------------------------


def their_shape(row: Row, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape of their tensor when the plan's parameters have ``shapes``."""
    if row.order in (SCALAR, VECTOR):
        return () if row.order == SCALAR else (shapes[0][-1],)
    joined = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    if row.order == BATCHED:
        return (1, *joined)
    return joined[::-1] if row.order == TRANSPOSED else joined


def to_plan(row: Row, theirs: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The plan's parameters in one of their tensors, of ``sizes`` along the first axis."""
    if row.order in (SCALAR, VECTOR):
        theirs = theirs.reshape((1,) if row.order == SCALAR else (1, 1, -1))
    elif row.order == BATCHED:
        theirs = theirs[0]
    elif row.order == TRANSPOSED:
        theirs = theirs.T
    if len(sizes) == 1:
        return [np.ascontiguousarray(theirs)]
    # A copy of each, so that no two parameters share memory.
    starts = np.cumsum([0, *sizes])
    return [theirs[a:b].copy(order="C") for a, b in pairwise(starts)]


def to_theirs(row: Row, ours: Sequence[np.ndarray]) -> np.ndarray:
    """Their tensor from the plan's parameters."""
    joined = ours[0] if len(ours) == 1 else np.concatenate(ours)
    if row.order in (SCALAR, VECTOR):
        return joined.reshape(() if row.order == SCALAR else (-1,))
    if row.order == BATCHED:
        return joined[None]
    return np.ascontiguousarray(joined.T) if row.order == TRANSPOSED else joined


def each_layer(rows: Sequence[Row], layers: int) -> list[Row]:
    """The rows with every ``{i}`` replaced by each layer's number."""
    each = []
    for row in rows:
        if "{i}" not in row.theirs:
            each.append(row)
            continue
        for i in range(layers):
            ours = tuple(path.replace("{i}", str(i)) for path in row.ours)
            each.append(row._replace(theirs=row.theirs.replace("{i}", str(i)), ours=ours))
    return each


def affine(theirs: str, ours: str, order: str = SAME, *, bias: bool = True, head: bool = False) -> list[Row]:
    """Rows for a layer's weight and, where it has one, its bias."""
    rows = [Row(f"{theirs}.weight", (f"{ours}.weight",), order, head)]
    return [*rows, Row(f"{theirs}.bias", (f"{ours}.bias",), SAME, head)] if bias else rows


# -- reading a plan ------------------------------------------------------------------------------


class Part(NamedTuple):
    """Some of a plan's nodes, in order, which are read as a plan is."""

    nodes: Sequence[Node]


def operators_of(plan: Plan | Part, operator: str) -> list[Any]:
    """Every call of an operator, with its arguments; NotThisFamily when there is none."""
    operators = [node.operator for node in plan.nodes if node.operator.name == operator]
    if not operators:
        raise NotThisFamily(f"it has no {operator}")
    return operators


def their_name(choices: Mapping[str, str], ours: str) -> str:
    """The first of their names for one of ours."""
    for theirs, name in choices.items():
        if name == ours:
            return theirs
    raise NotThisFamily(f"it has no name for {ours}")
