"""LLaMA (Touvron et al., 2023) and the families of the same layout: Mistral, Qwen2.

They differ in which biases there are and in the window, and each in its configuration's keys. Rotary
positions pair feature i with i + d/2, which is the layout of these checkpoints (Meta's own files are permuted).
"""

from __future__ import annotations

from typing import Any

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
)
from isomorph.errors import shorten
from isomorph.operators.rotary import LLAMA3_HIGH_FACTOR, LLAMA3_LOW_FACTOR, LLAMA3_ORIGINAL_LENGTH
from isomorph.plan import Plan

_LLAMA3 = {
    "low_freq_factor": LLAMA3_LOW_FACTOR,
    "high_freq_factor": LLAMA3_HIGH_FACTOR,
    "original_max_position_embeddings": LLAMA3_ORIGINAL_LENGTH,
}
_BASE: dict[str, Handled | Ignored | Only] = {
    "vocab_size": Handled("int", 32000),
    "hidden_size": Handled("int", 4096),
    "intermediate_size": Handled("int", 11008),
    "num_hidden_layers": Handled("int", 32),
    "num_attention_heads": Handled("int", 32),
    "num_key_value_heads": Handled("int", None, optional=True),
    "rms_norm_eps": Handled("float", 1e-6),
    "tie_word_embeddings": Handled("bool", False),
    "rope_parameters": Handled("any", None),
    "rope_scaling": Handled("any", None),
    "rope_theta": Handled("float", None, optional=True),
    "partial_rotary_factor": Only((1.0, 1), "all features are rotated"),
    "hidden_act": Only(("silu", "swish"), "the feed-forward is gated by silu"),
    "max_position_embeddings": Ignored("there is no table of positions: any length can be run"),
    **dropout("attention_dropout"),
}
LLAMA_SETTINGS = {
    **_BASE,
    "head_dim": Handled("int", None, optional=True),
    "attention_bias": Handled("bool", False),
    "mlp_bias": Handled("bool", False),
    "is_llama_config": Ignored("SmolLM's files say what they are"),
    "rope_interleaved": Only((False,), "feature i is rotated with i + d/2"),
    "pretraining_tp": Ignored("how a product is cut in training"),
}
MISTRAL_SETTINGS = {
    **_BASE,
    "intermediate_size": Handled("int", 14336),
    "num_key_value_heads": Handled("int", 8, optional=True),
    "head_dim": Handled("int", None, optional=True),
    "sliding_window": Handled("int", 4096, optional=True),
}
QWEN2_SETTINGS = {
    **_BASE,
    "vocab_size": Handled("int", 151936),
    "intermediate_size": Handled("int", 22016),
    "num_key_value_heads": Handled("int", 32, optional=True),
    "use_sliding_window": Handled("bool", False),
    "sliding_window": Handled("int", 4096, optional=True),
    "max_window_layers": Handled("any", 28),
    "layer_types": Handled("any", None),
    "use_mrope": Only((False,), "positions are one number"),
}


def _rope(options: Options) -> tuple[float, str, float]:
    """Base, scaling and factor of the rotary positions; ValueError with what cannot be followed.

    Newer files have them in ``rope_parameters``, older ones in ``rope_theta`` and ``rope_scaling``.
    """
    given: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = options[key]
        if part is not None and not isinstance(part, dict):
            raise ValueError(f"{key}: expected an object, got {shorten(part)}")
        given |= part or {}
    kind = given.pop("rope_type", given.pop("type", "default"))
    given.pop("type", None)
    theta = given.pop("rope_theta", options["rope_theta"] or 10000.0)
    if kind not in ("default", "linear", "llama3"):
        raise ValueError(f"rope_type: expected 'default' or 'linear' or 'llama3', got {shorten(kind)}")
    factor = 1.0 if kind == "default" else given.pop("factor", None)
    for key, expected in _LLAMA3.items() if kind == "llama3" else ():
        value = given.pop(key, None)
        if value != expected:
            raise ValueError(f"{key}: expected {expected} (LLaMA 3.1's band limits), got {shorten(value)}")
    if given.pop("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial_rotary_factor: expected 1.0 (all features are rotated)")
    if given:
        name = next(iter(given))
        raise ValueError(f"{name}: unknown key of the rotary positions, got {shorten(given[name])}")
    for key, value in (("rope_theta", theta), ("factor", factor)):
        if not is_positive(value):
            raise ValueError(f"{key}: expected a number above 0, got {shorten(value)}")
    return float(theta), {"default": "none"}.get(kind, kind), float(factor or 1.0)


def _window(options: Options) -> int:
    """Positions within reach, 0 for all; ValueError when layers differ."""
    window = options.get("sliding_window") or 0
    if "use_sliding_window" not in options:
        return window
    window = window if options["use_sliding_window"] else 0
    layers, first = options["num_hidden_layers"], options["max_window_layers"]
    kinds = options["layer_types"]
    if kinds is None:
        if type(first) is not int:
            raise ValueError(f"max_window_layers: expected an integer, got {shorten(first)}")
        kinds = ["sliding_attention" if window and i >= first else "full_attention" for i in (0, layers - 1)]
    elif not isinstance(kinds, list) or len(kinds) != layers:
        raise ValueError(f"layer_types: expected {layers} names, got {shorten(kinds)}")
    if kinds == ["full_attention"] * len(kinds):
        return 0
    if kinds != ["sliding_attention"] * len(kinds) or not window:
        key = "max_window_layers" if options["layer_types"] is None else "layer_types"
        raise ValueError(f"{key}: expected all layers alike, got {shorten(options[key])}")
    return window


def problems(options: Options) -> list[str]:
    """What several keys together ask for and the definition cannot say."""
    found = []
    for check in (_rope, _window):
        try:
            check(options)
        except ValueError as problem:
            found.append(str(problem))
    return found


def _biases(options: Options) -> tuple[bool, bool, bool]:
    """Whether query, key and value, the output projection, and the feed-forward have biases."""
    if "use_sliding_window" in options:  # Qwen2
        return True, False, False
    attention = options.get("attention_bias", False)
    return attention, attention, options.get("mlp_bias", False)


def _attention(options: Options) -> str:
    heads, kv_heads = options["num_attention_heads"], options["num_key_value_heads"]
    head_dim, (theta, scaling, scale) = options.get("head_dim"), _rope(options)
    inward, outward, _ = _biases(options)
    arguments = [f"{heads}"]
    if kv_heads and kv_heads != heads:
        arguments.append(f"kv_heads={kv_heads}")
    if head_dim and head_dim * heads != options["hidden_size"]:
        arguments.append(f"head_dim={head_dim}")
    arguments.append("causal=True")
    if not inward:
        arguments.append("bias=False")
    elif not outward:
        arguments.append("out_bias=False")
    arguments += ["rope=True", f"rope_theta={number(theta)}"]
    if scaling != "none":
        arguments += [f'rope_scaling="{scaling}"', f"rope_scale={number(scale)}"]
    if window := _window(options):
        arguments.append(f"window_size={window}")
    return "".join(f"        {argument},\n" for argument in [*arguments, 'name="attention"'])


def definition(options: Options) -> str:
    """The text; B and T stay open."""
    vocabulary, width, eps = options["vocab_size"], options["hidden_size"], number(options["rms_norm_eps"])
    headed = options["architecture"].endswith("ForCausalLM")
    title = options["architecture"].removesuffix("ForCausalLM").removesuffix("Model")
    mlp_bias = ", bias=True" if _biases(options)[2] else ""
    text = (
        f"# {title}: {options['num_hidden_layers']} layers of width {width}, {vocabulary:,} ids.\n"
        + ("" if headed else "# Features, without the head that scores ids.\n")
        + '\nids = input("B", "T", dtype="int64")   # any length: there is no table of positions\n\n'
        f'h = embedding({vocabulary}, {width}, name="tokens")\n\n'
        f"for _ in range({options['num_hidden_layers']}):\n"
        f'    rms_norm(h, eps={eps}, name="attention_norm")\n'
        f"    attended = attention(\n{_attention(options)}    )\n"
        "    h = add(h, attended)\n\n"
        f'    rms_norm(h, eps={eps}, name="ffn_norm")\n'
        f'    gated = swiglu({options["intermediate_size"]}{mlp_bias}, name="ffn")   # down(silu(gate(x)) * up(x))\n'
        "    h = add(h, gated)\n\n"
        f'rms_norm(h, eps={eps}, name="norm")\n'
    )
    if not headed:
        return f'{text}\noutput("B", "T", {width})\n'
    tie, comment = "", ""
    if options["tie_word_embeddings"]:
        tie, comment = ', tie={"weight": "tokens.weight"}', "   # reads and scores with one table"
    head = f'linear({vocabulary}, bias=False, name="head"{tie}){comment}\n'
    return f'{text}{head}\noutput("B", "T", {vocabulary})\n'


def rows(options: Options) -> list[Row]:
    """Their names, ours, and the order of axes."""
    inward, outward, forward = _biases(options)
    layer = "layers.{i}"
    headed = options["architecture"].endswith("ForCausalLM")
    return [
        Row("embed_tokens.weight", ("tokens.weight",)),
        Row(f"{layer}.input_layernorm.weight", ("attention_norm{i}.weight",)),
        *(row for p in "qkv"
          for row in affine(f"{layer}.self_attn.{p}_proj", f"attention{{i}}.{p}_proj", bias=inward)),
        *affine(f"{layer}.self_attn.o_proj", "attention{i}.o_proj", bias=outward),
        Row(f"{layer}.post_attention_layernorm.weight", ("ffn_norm{i}.weight",)),
        *(row for p in ("gate", "up", "down")
          for row in affine(f"{layer}.mlp.{p}_proj", f"ffn{{i}}.{p}", bias=forward)),
        Row("norm.weight", ("norm.weight",)),
        *([Row("lm_head.weight", ("head.weight",), head=True)] if headed else []),
    ]  # fmt: skip


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
        rope |= _LLAMA3
    longest = LLAMA3_ORIGINAL_LENGTH * max(1, int(first.rope_scale))
    return {
        "architecture": f"{title}ForCausalLM" if headed else f"{title}Model",
        "vocab_size": table.num_embeddings,
        "hidden_size": width,
        "intermediate_size": gated[0].hidden,
        "num_hidden_layers": len(attention),
        "num_attention_heads": first.heads,
        "num_key_value_heads": first.kv_heads or first.heads,
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
        "head_dim": first.head_dim or options["hidden_size"] // first.heads,
        "attention_bias": first.bias and first.qkv_bias and first.out_bias,
        "mlp_bias": operators_of(plan, "swiglu")[0].bias,
    }


def _describe_mistral(plan: Plan) -> dict[str, Any]:
    options = _described(plan, "Mistral")
    first = operators_of(plan, "attention")[0]
    return {
        **options,
        "head_dim": first.head_dim or options["hidden_size"] // first.heads,
        "sliding_window": first.window_size or None,
    }


def _describe_qwen2(plan: Plan) -> dict[str, Any]:
    first = operators_of(plan, "attention")[0]
    window = bool(first.window_size)
    return {
        **_described(plan, "Qwen2"),
        "use_sliding_window": window,
        "sliding_window": first.window_size or None,
        "max_window_layers": 0 if window else len(operators_of(plan, "attention")),
        "layer_types": None,
    }


def _family(model_type: str, title: str, settings: Any, describe: Any) -> Family:
    names = (f"{title}ForCausalLM", f"{title}Model")
    return Family(
        model_type=model_type,
        prefix="model",
        architectures={name: name for name in names},
        base_architectures=frozenset(names[1:]),
        default_architecture=names[0],
        settings=settings,
        definition=definition,
        rows=rows,
        layers=lambda options: options["num_hidden_layers"],
        describe=describe,
        written=frozenset(["max_position_embeddings"]),
        unwritten=frozenset(["rope_scaling", "rope_theta", "layer_types"]),
        unread=("layers.{i}.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"),  # recomputed
        problems=problems,
    )


LLAMA = _family("llama", "Llama", LLAMA_SETTINGS, _describe_llama)
MISTRAL = _family("mistral", "Mistral", MISTRAL_SETTINGS, _describe_mistral)
QWEN2 = _family("qwen2", "Qwen2", QWEN2_SETTINGS, _describe_qwen2)
