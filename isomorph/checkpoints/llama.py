"""LLaMA (Touvron et al., 2023) and the families of the same layout: Mistral, Ministral, Qwen2.

They differ in which biases there are and in the windows, and each in its configuration's keys. Layers with
and without a window stand in loops of their own. Rotary
positions pair feature i with i + d/2, which is the layout of these checkpoints (Meta's own files are permuted).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from isomorph.checkpoints.blocks import number
from isomorph.checkpoints.family import (
    Family,
    Handled,
    Ignored,
    NotThisFamily,
    Only,
    Options,
    Row,
    affine,
    dropout,
    is_positive,
    operators_of,
    whole,
)
from isomorph.errors import shorten, shown
from isomorph.operators.rotary import LLAMA3_BANDS
from isomorph.plan import Plan

_BANDS = {
    "low_freq_factor": "rope_low_factor",
    "high_freq_factor": "rope_high_factor",
    "original_max_position_embeddings": "rope_original_length",
}
"""Their names of llama3's limits, each with ours."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_KIN: dict[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(
        ("embedding_multiplier", "logits_scaling", "residual_multiplier"), ((1.0, None), "Granite's models")
    ),
    "attention_multiplier": ((None,), "Granite's models"),
    **dict.fromkeys(("scale_emb", "logit_scale"), ((1.0, None), "MiniCPM's and Cohere's models")),
    **dict.fromkeys(("scale_depth", "dim_model_base"), ((None,), "MiniCPM's models")),
    **dict.fromkeys(
        ("final_logit_softcapping", "attn_logit_softcapping", "query_pre_attn_scalar"),
        ((None,), "Gemma's models"),
    ),
    "hidden_activation": (("silu", "swish", None), "Gemma's models"),
    "use_bidirectional_attention": ((False, None), "Gemma's models"),
    **dict.fromkeys(("no_rope_layers", "no_rope_layer_interval"), ((None,), "SmolLM3's models")),
    "clip_qkv": ((None,), "OLMo's models"),
    "classifier_pooling": ((None,), "EuroBERT's models, which see later positions too,"),
    "use_bias": ((None,), "Ernie 4.5's models, which rotate neighbouring features,"),
}
"""Keys of related families: the values that change nothing, and who reads the key.

Their classes compute something else from tensors of these names, which nothing in the tensors tells.
"""
_BASE: dict[str, Handled | Ignored | Only] = {
    "vocab_size": Handled("int", 32000),
    "hidden_size": Handled("int", 4096),
    "intermediate_size": Handled("int", 11008),
    "num_hidden_layers": Handled("layers", 32),
    "num_attention_heads": Handled("int", 32),
    "num_key_value_heads": Handled("int", None, optional=True),
    "rms_norm_eps": Handled("float", 1e-6),
    "tie_word_embeddings": Handled("bool", False),
    "rope_parameters": Handled("any", None),
    "rope_scaling": Handled("any", None),
    "rope_theta": Handled("float", None, optional=True),
    "partial_rotary_factor": Only((1.0, 1), "all features are rotated"),
    "hidden_act": Only(("silu", "swish"), "the feed-forward is gated by silu"),
    **dict.fromkeys(
        ("max_position_embeddings", "max_sequence_length", "model_max_length"),
        Ignored("there is no table of positions: any length can be run"),
    ),
    **dropout("attention_dropout"),
    **{
        key: Only(values, f"{whose} read it, whose tensors have these names")
        for key, (values, whose) in _KIN.items()
    },
}
_ALIKE = Ignored("layers are alike; other lists are refused")
LLAMA_SETTINGS = {
    **_BASE,
    "head_dim": Handled("int", None, optional=True),
    "attention_bias": Handled("bool", False),
    "mlp_bias": Handled("bool", False),
    "is_llama_config": Ignored("SmolLM's files say what they are"),
    "rope_interleaved": Only((False,), "feature i is rotated with i + d/2"),
    "sliding_window": Only((None,), "every layer sees every earlier position"),
    "layer_types": _ALIKE,
    "pretraining_tp": Ignored("how a product is cut in training"),
}
MISTRAL_SETTINGS = {
    **_BASE,
    "intermediate_size": Handled("int", 14336),
    "num_key_value_heads": Handled("int", 8, optional=True),
    "head_dim": Handled("int", None, optional=True),
    "sliding_window": Handled("int", 4096, optional=True),
    "layer_types": _ALIKE,
}
MINISTRAL_SETTINGS = {**MISTRAL_SETTINGS, "layer_types": Handled("any", None)}
QWEN2_SETTINGS = {
    **_BASE,
    "vocab_size": Handled("int", 151936),
    "intermediate_size": Handled("int", 22016),
    "num_key_value_heads": Handled("int", 32, optional=True),
    "head_dim": Handled("int", None, optional=True),
    "use_sliding_window": Handled("bool", False),
    "sliding_window": Handled("int", 4096, optional=True),
    "max_window_layers": Handled("any", 28),
    "layer_types": Handled("any", None),
    "use_mrope": Only((False,), "positions are one number"),
}


class _Rope(NamedTuple):
    """Base, scaling and factor of the rotary positions, llama3's limits, and the keys that this scaling does not read."""

    theta: float
    scaling: str
    scale: float
    bands: tuple[float, float, int]
    idle: tuple[str, ...]


def _rope(options: Options) -> _Rope:
    """The rotary positions; ValueError with what cannot be followed.

    Newer files have them in ``rope_parameters``, older ones in ``rope_theta`` and ``rope_scaling``. Of two objects
    the peer library reads ``rope_scaling``; older versions of it know no other.
    """
    for key in ("rope_scaling", "rope_parameters"):
        if options[key] is not None and not isinstance(options[key], dict):
            raise ValueError(f"{key}: expected an object, got {shorten(options[key])}")
    ropes = [
        _one_rope(key, options[key], options["rope_theta"])
        for key in ("rope_scaling", "rope_parameters")
        if options[key]
    ] or [_one_rope("rope_parameters", {}, options["rope_theta"])]
    if ropes[0][:4] != ropes[-1][:4]:
        raise ValueError(
            f"rope_parameters: expected the positions of rope_scaling, {shorten(options['rope_scaling'])}, "
            f"got {shorten(options['rope_parameters'])}"
        )
    return ropes[0]


def _one_rope(group: str, parameters: Mapping[str, Any], base: float | None) -> _Rope:
    """The rotary positions that one object tells, whose name is ``group``."""
    given = dict(parameters)
    kind = given.pop("rope_type", given.pop("type", "default"))
    given.pop("type", None)
    theta: Any = given.pop("rope_theta", base or 10000.0)
    if kind not in ("default", "linear", "llama3"):
        raise ValueError(f"rope_type: expected 'default' or 'linear' or 'llama3', got {shorten(kind)}")
    factor = 1.0 if kind == "default" else given.pop("factor", None)
    bands = _bands(given) if kind == "llama3" else LLAMA3_BANDS
    if (part := given.pop("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError(
            f"partial_rotary_factor: expected 1.0 (all features are rotated), got {shorten(part)}"
        )
    for key, value in given.items():
        if isinstance(value, dict):  # positions of some layers, by their kind
            raise ValueError(f"{shown(key)}: expected one kind of rotary positions, got {shorten(value)}")
    for key, value in (("rope_theta", theta), ("factor", factor)):
        if not is_positive(value):
            raise ValueError(f"{key}: expected a number above 0, got {shorten(value)}")
    idle = tuple(f"{group}.{key}" for key in given)
    return _Rope(float(theta), {"default": "none"}.get(kind, kind), float(factor or 1.0), bands, idle)


def _bands(given: dict[str, Any]) -> tuple[float, float, int]:
    """Takes llama3's limits out of the rotary positions."""
    low, high, length = (given.pop(key, None) for key in _BANDS)
    length = whole(length)
    for key, value in zip(_BANDS, (low, high), strict=False):
        if not is_positive(value):
            raise ValueError(f"{key}: expected a number above 0, got {shorten(value)}")
    if high <= low:
        raise ValueError(f"high_freq_factor: expected more than low_freq_factor={low}, got {shorten(high)}")
    if type(length) is not int or length < 1:
        raise ValueError(
            f"original_max_position_embeddings: expected an integer from 1, got {shorten(length)}"
        )
    return float(low), float(high), length


class _Run(NamedTuple):
    """Layers one after another with one window.

    Attributes:
        mark: what follows the name of each node, before the number in the loop.
        layers: the numbers of the layers.
        window: positions within reach, 0 for all.
    """

    mark: str
    layers: range
    window: int


def _runs(options: Options) -> list[_Run]:
    """The layers, cut where the window changes, and one run has no mark; ValueError with what cannot be followed."""
    window = options.get("sliding_window") or 0
    if not options.get("use_sliding_window", True):
        window = 0
    # No list of all layers where the configuration has none: their number is bounded only later.
    cuts = _listed(options, window) if options.get("layer_types") is not None else _cut_once(options, window)
    ends = [*(start for start, _ in cuts[1:]), options["num_hidden_layers"]]
    return [
        _Run("" if len(cuts) == 1 else f"{k}_", range(start, end), reach)
        for k, ((start, reach), end) in enumerate(zip(cuts, ends, strict=True))
    ]


def _cut_once(options: Options, window: int) -> list[tuple[int, int]]:
    """Where a run begins and its window: the first layers see everything, the others have the window."""
    layers, first = options["num_hidden_layers"], options.get("max_window_layers", 0)
    if type(first) is not int or first < 0:
        raise ValueError(f"max_window_layers: expected an integer from 0, got {shorten(first)}")
    if not window or first >= layers:
        return [(0, 0)]
    return [(0, 0), (first, window)] if first else [(0, window)]


def _listed(options: Options, window: int) -> list[tuple[int, int]]:
    """Where each run begins and its window, of a list of the layers' kinds."""
    layers, kinds = options["num_hidden_layers"], options["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ValueError(f"layer_types: expected {layers} names, got {shorten(kinds)}")
    for kind in kinds:
        if kind not in (_FULL, _SLIDING):
            raise ValueError(f"layer_types: expected {_FULL!r} or {_SLIDING!r}, got {shorten(kind)}")
        if kind == _SLIDING and not window:
            raise ValueError(f"layer_types: {_SLIDING!r} needs a sliding_window that is in use")
    starts = [i for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    return [(i, window if kinds[i] == _SLIDING else 0) for i in starts]


def problems(options: Options) -> list[str]:
    """What several keys together ask for and the definition cannot say."""
    texts = []
    for check in (_rope, _runs):
        try:
            check(options)
        except ValueError as problem:
            texts.append(str(problem))
    return texts


def _mixed(configuration: Options, expected: str) -> list[str]:
    """A list of the layers' kinds, which the class does not read, with kinds that it does not have."""
    kinds = configuration.get("layer_types")
    if kinds is None or (isinstance(kinds, list) and all(kind == expected for kind in kinds)):
        return []
    return [f"layer_types: expected {expected!r} alone (layers are alike), got {shorten(kinds)}"]


def _no_llama(configuration: Options) -> list[str]:
    """Layers with windows."""
    return _mixed(configuration, _FULL)


def _no_window(configuration: Options) -> list[str]:
    """LLaMA's keys without a window.

    The classes of Mistral's kind assume a window where none is given. Their files give one, or null; those of LLaMA
    give none, for there is no such key in them.
    """
    others = [key for key in ("mlp_bias", "pretraining_tp", "attention_bias") if key in configuration]
    if "sliding_window" in configuration or not others:
        return []
    return [f"sliding_window: missing, as in a configuration of llama, which has {others[0]}"]


def _no_mistral(configuration: Options) -> list[str]:
    """The same, and layers of two kinds."""
    expected = _FULL if configuration.get("sliding_window", 1) is None else _SLIDING
    return [*_mixed(configuration, expected), *_no_window(configuration)]


class _Biases(NamedTuple):
    """Whether query, key and value, the output projection, and the feed-forward have biases."""

    inward: bool = False
    outward: bool = False
    forward: bool = False


def _llama_biases(options: Options) -> _Biases:
    return _Biases(options["attention_bias"], options["attention_bias"], options["mlp_bias"])


def _no_biases(options: Options) -> _Biases:
    return _Biases()


def _qwen2_biases(options: Options) -> _Biases:
    return _Biases(inward=True)


def _attention(options: Options, run: _Run, biases: _Biases) -> str:
    heads, kv_heads = options["num_attention_heads"], options["num_key_value_heads"]
    head_dim, rope = options.get("head_dim"), _rope(options)
    arguments = [f"{heads}"]
    if kv_heads and kv_heads != heads:
        arguments.append(f"kv_heads={kv_heads}")
    if head_dim and head_dim * heads != options["hidden_size"]:
        arguments.append(f"head_dim={head_dim}")
    arguments.append("causal=True")
    if not biases.inward:
        arguments.append("bias=False")
    elif not biases.outward:
        arguments.append("out_bias=False")
    arguments += ["rope=True", f"rope_theta={number(rope.theta)}"]
    if rope.scaling != "none":
        arguments += [f'rope_scaling="{rope.scaling}"', f"rope_scale={number(rope.scale)}"]
    for name, value, usual in zip(_BANDS.values(), rope.bands, LLAMA3_BANDS, strict=True):
        if value != usual:
            arguments.append(f"{name}={value!r}")
    if run.window:
        arguments.append(f"window_size={run.window}")
    return "".join(f"        {argument},\n" for argument in [*arguments, f'name="attention{run.mark}"'])


def _loop(options: Options, run: _Run, biases: _Biases) -> str:
    """The layers of a run."""
    eps, mlp_bias = number(options["rms_norm_eps"]), ", bias=True" if biases.forward else ""
    return (
        f"for _ in range({len(run.layers)}):\n"
        f'    rms_norm(h, eps={eps}, name="attention_norm{run.mark}")\n'
        f"    attended = attention(\n{_attention(options, run, biases)}    )\n"
        "    h = add(h, attended)\n\n"
        f'    rms_norm(h, eps={eps}, name="ffn_norm{run.mark}")\n'
        f'    gated = swiglu({options["intermediate_size"]}{mlp_bias}, name="ffn{run.mark}")'
        "   # down(silu(gate(x)) * up(x))\n"
        "    h = add(h, gated)\n\n"
    )


def definition(options: Options, biases: Callable[[Options], _Biases]) -> str:
    """The text; B and T stay open."""
    vocabulary, width, eps = options["vocab_size"], options["hidden_size"], number(options["rms_norm_eps"])
    headed = options["architecture"].endswith("ForCausalLM")
    title = options["architecture"].removesuffix("ForCausalLM").removesuffix("Model")
    text = (
        f"# {title}: {options['num_hidden_layers']} layers of width {width}, {vocabulary:,} ids.\n"
        + ("" if headed else "# Features, without the head that scores ids.\n")
        + '\nids = input("B", "T", dtype="int64")   # any length: there is no table of positions\n\n'
        f'h = embedding({vocabulary}, {width}, name="tokens")\n\n'
        + "".join(_loop(options, run, biases(options)) for run in _runs(options))
        + f'rms_norm(h, eps={eps}, name="norm")\n'
    )
    if not headed:
        return f'{text}\noutput("B", "T", {width})\n'
    tie, comment = "", ""
    if options["tie_word_embeddings"]:
        tie, comment = ', tie={"weight": "tokens.weight"}', "   # reads and scores with one table"
    head = f'linear({vocabulary}, bias=False, name="head"{tie}){comment}\n'
    return f'{text}{head}\noutput("B", "T", {vocabulary})\n'


def rows(options: Options, biases: Callable[[Options], _Biases]) -> list[Row]:
    """Their names, ours, and the order of axes."""
    headed = options["architecture"].endswith("ForCausalLM")
    return [
        Row("embed_tokens.weight", ("tokens.weight",)),
        *(row for run in _runs(options) for row in _run_rows(run, biases(options))),
        Row("norm.weight", ("norm.weight",)),
        *([Row("lm_head.weight", ("head.weight",), head=True)] if headed else []),
    ]


def _run_rows(run: _Run, biases: _Biases) -> list[Row]:
    rows = []
    for i, layer in enumerate(run.layers):
        theirs, ours = f"layers.{layer}", f"{run.mark}{i}"
        rows += [
            Row(f"{theirs}.input_layernorm.weight", (f"attention_norm{ours}.weight",)),
            *(row for p in "qkv"
              for row in affine(f"{theirs}.self_attn.{p}_proj", f"attention{ours}.{p}_proj", bias=biases.inward)),
            *affine(f"{theirs}.self_attn.o_proj", f"attention{ours}.o_proj", bias=biases.outward),
            Row(f"{theirs}.post_attention_layernorm.weight", (f"ffn_norm{ours}.weight",)),
            *(row for p in ("gate", "up", "down")
              for row in affine(f"{theirs}.mlp.{p}_proj", f"ffn{ours}.{p}", bias=biases.forward)),
        ]  # fmt: skip
    return rows


def _described(plan: Plan, title: str) -> dict[str, Any]:
    table, norm = operators_of(plan, "embedding")[0], operators_of(plan, "rms_norm")[0]
    attention, gated = operators_of(plan, "attention"), operators_of(plan, "swiglu")
    first, width, last = attention[0], table.sizes["D"], plan.nodes[-1]
    headed = last.operator.name == "linear"
    if not first.rope:
        raise NotThisFamily("its attention has rope=False")
    rope: dict[str, Any] = {"rope_theta": first.rope_theta, "rope_type": "default"}
    if first.rope_scaling != "none":
        rope |= {"rope_type": first.rope_scaling, "factor": first.rope_scale}
    if first.rope_scaling == "llama3":
        rope |= {theirs: getattr(first, ours) for theirs, ours in _BANDS.items()}
    longest = first.rope_original_length * max(1, int(first.rope_scale))
    return {
        "architecture": f"{title}ForCausalLM" if headed else f"{title}Model",
        "vocab_size": table.num_embeddings,
        "hidden_size": width,
        "intermediate_size": gated[0].hidden,
        "num_hidden_layers": len(attention),
        "num_attention_heads": first.heads,
        "num_key_value_heads": first.kv_heads or first.heads,
        "head_dim": first.head_dim or width // first.heads,
        "rms_norm_eps": norm.eps,
        "tie_word_embeddings": headed and "weight" in last.tie,
        "rope_parameters": rope,
        "rope_scaling": None,
        "rope_theta": None,
        "max_position_embeddings": longest,  # read by no layer; the file must say something
    }


def _describe_llama(plan: Plan) -> dict[str, Any]:
    options = _described(plan, "Llama")
    first = operators_of(plan, "attention")[0]
    return {
        **options,
        "attention_bias": first.bias and first.qkv_bias and first.out_bias,
        "mlp_bias": operators_of(plan, "swiglu")[0].bias,
    }


def _describe_mistral(plan: Plan) -> dict[str, Any]:
    first = operators_of(plan, "attention")[0]
    return {**_described(plan, "Mistral"), "sliding_window": first.window_size or None}


def _described_windows(plan: Plan) -> dict[str, Any]:
    """The layers with a window and those without; NotThisFamily when there are several windows."""
    windows = [attention.window_size for attention in operators_of(plan, "attention")]
    used = sorted({window for window in windows if window})
    if len(used) > 1:
        raise NotThisFamily(f"its attention has window_size={used[0]} and {used[1]}")
    kinds = [_SLIDING if window else _FULL for window in windows]
    return {"sliding_window": used[0] if used else None, "layer_types": kinds}


def _describe_ministral(plan: Plan) -> dict[str, Any]:
    return {**_described(plan, "Ministral"), **_described_windows(plan)}


def _describe_qwen2(plan: Plan) -> dict[str, Any]:
    windows = _described_windows(plan)
    kinds = windows["layer_types"]
    return {
        **_described(plan, "Qwen2"),
        **windows,
        "use_sliding_window": _SLIDING in kinds,
        "max_window_layers": kinds.index(_SLIDING) if _SLIDING in kinds else len(kinds),
    }


def _family(
    model_type: str, title: str, settings: Any, biases: Any, describe: Any, *, older: str = "", **more: Any
) -> Family:
    """``older``: what files from before the class had its present name call it."""
    names = (f"{title}ForCausalLM", f"{title}Model")
    return Family(
        model_type=model_type,
        prefix="model",
        architectures={**{name: name for name in names}, **({older: names[0]} if older else {})},
        base_architectures=frozenset(names[1:]),
        default_architecture=names[0],
        settings=settings,
        definition=partial(definition, biases=biases),
        rows=partial(rows, biases=biases),
        layers=lambda options: options["num_hidden_layers"],
        describe=describe,
        written=frozenset(["max_position_embeddings"]),
        unwritten=frozenset(["rope_scaling", "rope_theta"]),
        unread=("layers.{i}.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"),  # recomputed
        idle=lambda options: list(_rope(options).idle),
        problems=problems,
        **more,
    )


LLAMA = _family(
    "llama",
    "Llama",
    LLAMA_SETTINGS,
    _llama_biases,
    _describe_llama,
    older="LLaMAForCausalLM",
    strangers=_no_llama,
)
MISTRAL = _family(
    "mistral", "Mistral", MISTRAL_SETTINGS, _no_biases, _describe_mistral, strangers=_no_mistral
)
MINISTRAL = _family(
    "ministral", "Ministral", MINISTRAL_SETTINGS, _no_biases, _describe_ministral, strangers=_no_window
)
QWEN2 = _family("qwen2", "Qwen2", QWEN2_SETTINGS, _qwen2_biases, _describe_qwen2)
