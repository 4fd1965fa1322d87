"""BERT (Devlin et al., 2019), and sentence-transformers' MiniLM, which is a BERT.

Norms come after each sum. Inputs come in the peer library's order: ids, attention mask, token types.
"""

from __future__ import annotations

from typing import Any

from isomorph.checkpoints.blocks import ACTIVATIONS, number
from isomorph.checkpoints.family import (
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

SETTINGS: dict[str, Handled | Ignored | Only] = {
    "vocab_size": Handled("int", 30522),
    "hidden_size": Handled("int", 768),
    "num_hidden_layers": Handled("int", 12),
    "num_attention_heads": Handled("int", 12),
    "intermediate_size": Handled("int", 3072),
    "hidden_act": Handled("choice", "gelu", ACTIVATIONS),
    "max_position_embeddings": Handled("int", 512),
    "type_vocab_size": Handled("int", 2),
    "layer_norm_eps": Handled("float", 1e-12),
    "position_embedding_type": Only(("absolute",), "positions are a table"),
    "tie_word_embeddings": Ignored("the heads of pre-training are not imported"),
    **dict.fromkeys(
        (
            "directionality",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        ),
        Ignored("in files of the multilingual models, and read by nobody"),
    ),
    "classifier_dropout": Ignored("acts in training only"),
    **dropout("hidden_dropout_prob", "attention_probs_dropout_prob"),
}


def definition(options: Options) -> str:
    """The text; B and T stay open."""
    width, eps = options["hidden_size"], number(options["layer_norm_eps"])
    vocabulary, positions = options["vocab_size"], options["max_position_embeddings"]
    activation = ACTIVATIONS[options["hidden_act"]]
    text = (
        f"# BERT: {options['num_hidden_layers']} layers of width {width}, {vocabulary:,} word pieces.\n"
        "# Norms come after each sum.\n\n"
        'ids = input("B", "T", dtype="int64")        # word pieces\n'
        'mask = input("B", "T", dtype="bool")        # True where there is a token, False where there is padding\n'
        'segments = input("B", "T", dtype="int64")   # which sentence a token belongs to\n\n'
        f'words = embedding(ids, {vocabulary}, {width}, name="words")\n'
        f'kinds = embedding(segments, {options["type_vocab_size"]}, {width}, name="kinds")\n'
        "add(words, kinds)\n"
        f'pos_embed({positions}, name="positions")   # learned positions, hence T <= {positions}\n'
        f'layer_norm(eps={eps}, name="norm")\n\n'
        f"for _ in range({options['num_hidden_layers']}):\n"
        "    post_norm_block(\n"
        f"        {options['num_attention_heads']},\n"
        f"        hidden={options['intermediate_size']},\n"
        f'        activation="{activation}",\n'
        f"        eps={eps},\n"
        "        mask=mask,\n"
        '        name="block",\n'
        "    )\n\n"
    )
    if not options["pooler"]:
        return f'{text}output("B", "T", {width})\n'
    return (
        f'{text}hidden = identity(name="encoded")\n\n'
        'first = pool_tokens(hidden, "first")        # the token [CLS]\n'
        f'linear({width}, name="pooler")\n'
        "pooled = tanh()\n\n"
        f'output(hidden=("B", "T", {width}), pooled=("B", {width}))\n'
    )


def rows(options: Options) -> list[Row]:
    """Their names, ours, and the order of axes."""
    layer, block = "encoder.layer.{i}", "block{i}"
    return [
        Row("embeddings.word_embeddings.weight", ("words.weight",)),
        Row("embeddings.token_type_embeddings.weight", ("kinds.weight",)),
        Row("embeddings.position_embeddings.weight", ("positions.weight",)),
        *affine("embeddings.LayerNorm", "norm"),
        *affine(f"{layer}.attention.self.query", f"{block}.attn.q_proj"),
        *affine(f"{layer}.attention.self.key", f"{block}.attn.k_proj"),
        *affine(f"{layer}.attention.self.value", f"{block}.attn.v_proj"),
        *affine(f"{layer}.attention.output.dense", f"{block}.attn.o_proj"),
        *affine(f"{layer}.attention.output.LayerNorm", f"{block}.norm1"),
        *affine(f"{layer}.intermediate.dense", f"{block}.ffn.up"),
        *affine(f"{layer}.output.dense", f"{block}.ffn.down"),
        *affine(f"{layer}.output.LayerNorm", f"{block}.norm2"),
        *(affine("pooler.dense", "pooler") if options["pooler"] else []),
    ]


def rename(name: str) -> str:
    """Old files call a LayerNorm's gain ``gamma`` and its shift ``beta``; nothing else is renamed."""
    for old, new in ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def describe(plan: Plan) -> dict[str, Any]:
    """A configuration for a plan."""
    tables, blocks = operators_of(plan, "embedding"), operators_of(plan, "post_norm_block")
    width, first = tables[0].sizes["D"], blocks[0]
    return {
        "architecture": "BertModel",
        "vocab_size": tables[0].num_embeddings,
        "hidden_size": width,
        "num_hidden_layers": len(blocks),
        "num_attention_heads": first.heads,
        "intermediate_size": first.hidden or 4 * width,
        "hidden_act": their_name(ACTIVATIONS, first.activation),
        "max_position_embeddings": operators_of(plan, "pos_embed")[0].max_len,
        "type_vocab_size": tables[-1].num_embeddings,
        "layer_norm_eps": first.eps,
        "pooler": plan.nodes[-1].operator.name == "tanh",
    }


_PRETRAINING = tuple(
    f"cls.{name}"
    for name in (
        "predictions.bias", "predictions.transform.dense.weight", "predictions.transform.dense.bias",
        "predictions.transform.LayerNorm.weight", "predictions.transform.LayerNorm.bias",
        "predictions.decoder.weight", "predictions.decoder.bias", "seq_relationship.weight", "seq_relationship.bias",
    )
)  # fmt: skip

BERT = Family(
    model_type="bert",
    prefix="bert",
    # Of a model for pre-training the encoder is imported, as BertModel.from_pretrained does.
    architectures=dict.fromkeys(("BertModel", "BertForMaskedLM", "BertForPreTraining"), "BertModel"),
    base_architectures=frozenset(["BertModel"]),
    default_architecture="BertModel",
    settings=SETTINGS,
    definition=definition,
    rows=rows,
    layers=lambda options: options["num_hidden_layers"],
    describe=describe,
    unread=("embeddings.position_ids", "embeddings.token_type_ids", *_PRETRAINING),
    observe=lambda shapes: {"pooler": "pooler.dense.weight" in shapes},
    rename=rename,
)
