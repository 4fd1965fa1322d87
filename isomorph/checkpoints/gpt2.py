"""GPT-2 (Radford et al., 2019).

Its matrices are ``[in, out]`` (``Conv1D``), query, key and value lie in one of them, one after the other, and
the head reads the table of ids. All activations are the tanh form of GELU.
"""

from __future__ import annotations

from typing import Any

from isomorph.checkpoints.blocks import ACTIVATIONS, PreNorm, number, read_pre_norm
from isomorph.checkpoints.family import (
    TRANSPOSED,
    Family,
    Handled,
    Ignored,
    Only,
    Options,
    Row,
    affine,
    dropout,
    operators_of,
    their_name,
)
from isomorph.plan import Plan

_SUMMARY = Ignored("of a model with two heads, which is not imported")
SETTINGS: dict[str, Handled | Ignored | Only] = {
    "vocab_size": Handled("int", 50257),
    "n_positions": Handled("int", 1024),
    "n_embd": Handled("int", 768),
    "n_layer": Handled("layers", 12),
    "n_head": Handled("int", 12),
    "n_inner": Handled("int", None, optional=True),
    "activation_function": Handled("choice", "gelu_new", ACTIVATIONS),
    "layer_norm_epsilon": Handled("float", 1e-5),
    "tie_word_embeddings": Handled("bool", True),
    "n_ctx": Ignored("an older name of n_positions, which is read"),
    "scale_attn_weights": Only((True,), "scores are divided by the root of the head width"),
    "scale_attn_by_inverse_layer_idx": Only((False,), "all layers scale alike"),
    **dict.fromkeys(
        ("n_special", "predict_special_tokens"),
        Ignored("of the first GPT's ids; vocab_size counts all of them"),
    ),
    "reorder_and_upcast_attn": Ignored("how half precision is accumulated"),
    **dropout("attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_first_dropout"),
    **dict.fromkeys(
        ("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"), _SUMMARY
    ),
}


def _stack(options: Options) -> PreNorm:
    width = options["n_embd"]
    return PreNorm(
        options["n_layer"], options["n_head"], width, options["n_inner"] or 4 * width,
        ACTIVATIONS[options["activation_function"]], options["layer_norm_epsilon"], causal=True,
    )  # fmt: skip


def definition(options: Options) -> str:
    """The text; B and T stay open."""
    vocabulary, width, positions = options["vocab_size"], options["n_embd"], options["n_positions"]
    headed = options["architecture"] == "GPT2LMHeadModel"
    text = (
        f"# GPT-2: {options['n_layer']} layers of width {width}, {vocabulary:,} ids.\n"
        + ("" if headed else "# Features, without the head that scores ids.\n")
        + f'\nids = input("B", "T", dtype="int64")\n\n'
        f'embedding({vocabulary}, {width}, name="wte")\n'
        f'{_stack(options).entry}pos_embed({positions}, name="wpe")   # learned positions, hence T <= {positions}\n\n'
        f"{_stack(options).text()}\n"
        f'layer_norm(eps={number(options["layer_norm_epsilon"])}, name="ln_f")\n'
    )
    if not headed:
        return f'{text}\noutput("B", "T", {width})\n'
    tie, comment = "", ""
    if options["tie_word_embeddings"]:
        tie, comment = ', tie={"weight": "wte.weight"}', "   # reads and scores with one table"
    head = f'linear({vocabulary}, bias=False, name="lm_head"{tie}){comment}\n'
    return f'{text}{head}\noutput("B", "T", {vocabulary})\n'


def rows(options: Options) -> list[Row]:
    """Their names, ours, and the order of axes."""
    paths = _stack(options).paths()
    attention, forward = paths["attn"], paths["ffn"]
    qkv = [f"{attention}.{part}_proj" for part in "qkv"]
    return [
        Row("wte.weight", ("wte.weight",)),
        Row("wpe.weight", ("wpe.weight",)),
        *affine("h.{i}.ln_1", paths["norm1"]),
        Row("h.{i}.attn.c_attn.weight", tuple(f"{path}.weight" for path in qkv), TRANSPOSED),
        Row("h.{i}.attn.c_attn.bias", tuple(f"{path}.bias" for path in qkv)),
        *affine("h.{i}.attn.c_proj", f"{attention}.o_proj", TRANSPOSED),
        *affine("h.{i}.ln_2", paths["norm2"]),
        *affine("h.{i}.mlp.c_fc", f"{forward}.up", TRANSPOSED),
        *affine("h.{i}.mlp.c_proj", f"{forward}.down", TRANSPOSED),
        *affine("ln_f", "ln_f"),
        *([Row("lm_head.weight", ("lm_head.weight",), head=True)] if _headed(options) else []),
    ]


def _headed(options: Options) -> bool:
    return options["architecture"] == "GPT2LMHeadModel"


def describe(plan: Plan) -> dict[str, Any]:
    """A configuration for a plan."""
    table = operators_of(plan, "embedding")[0]
    width = table.sizes["D"]
    stack = read_pre_norm(plan, width)
    last = plan.nodes[-1]
    headed = last.operator.name == "linear"
    return {
        "architecture": "GPT2LMHeadModel" if headed else "GPT2Model",
        "vocab_size": table.num_embeddings,
        "n_positions": operators_of(plan, "pos_embed")[0].max_len,
        "n_embd": width,
        "n_layer": stack.layers,
        "n_head": stack.heads,
        "n_inner": stack.hidden,
        "activation_function": their_name({"gelu_new": "gelu_tanh", **ACTIVATIONS}, stack.activation),
        "layer_norm_epsilon": stack.eps,
        "tie_word_embeddings": not headed or "weight" in last.tie,
    }


GPT2 = Family(
    model_type="gpt2",
    prefix="transformer",
    architectures={"GPT2LMHeadModel": "GPT2LMHeadModel", "GPT2Model": "GPT2Model"},
    base_architectures=frozenset(["GPT2Model"]),
    default_architecture="GPT2LMHeadModel",
    settings=SETTINGS,
    definition=definition,
    rows=rows,
    layers=lambda options: options["n_layer"],
    describe=describe,
    other_names={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    unread=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),  # the causal mask as a buffer
)
