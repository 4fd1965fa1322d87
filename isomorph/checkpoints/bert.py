"""BERT (Devlin et al., 2019), and sentence-transformers' MiniLM, which is a BERT.

Norms come after each sum. Inputs come in the peer library's order: ids, attention mask, token types. What
follows the encoder depends on the class, and on whether the directory is one of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isomorph.checkpoints.blocks import ACTIVATIONS, number
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
    operators_of,
    their_name,
)
from isomorph.checkpoints.heads import labels, observe
from isomorph.errors import shorten
from isomorph.plan import Plan

if TYPE_CHECKING:
    import numpy as np

_IDENTITY = "torch.nn.modules.linear.Identity"
_HEAD = "cls.predictions"
_HEAD_BIAS, _DECODER_BIAS = f"{_HEAD}.bias", f"{_HEAD}.decoder.bias"

SETTINGS: dict[str, Handled | Ignored | Only] = {
    "vocab_size": Handled("int", 30522),
    "hidden_size": Handled("int", 768),
    "num_hidden_layers": Handled("layers", 12),
    "num_attention_heads": Handled("int", 12),
    "intermediate_size": Handled("int", 3072),
    "hidden_act": Handled("choice", "gelu", ACTIVATIONS),
    "max_position_embeddings": Handled("int", 512),
    "type_vocab_size": Handled("int", 2),
    "layer_norm_eps": Handled("float", 1e-12),
    "position_embedding_type": Only(("absolute",), "positions are a table"),
    "tie_word_embeddings": Handled("bool", True),
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
    **dict.fromkeys(
        ("cell", "emb_size", "pre_trained", "structure", "training"),
        Ignored("in TinyBERT's files, and read by nobody"),
    ),
    **dict.fromkeys(("language", "name"), Ignored("what the file is, in words")),
    **dict.fromkeys(
        ("sbert_ce_default_activation_function", "sentence_transformers.activation_fn"),
        Only((_IDENTITY, None), "the answers are the class's scores, on which nothing acts"),
    ),
    "sentence_transformers.version": Ignored("who wrote the file"),
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
        'mask = input("B", "T", dtype="bool", optional=True)        # True where there is a token\n'
        'segments = input("B", "T", dtype="int64", optional=True)   # which sentence a token belongs to\n\n'
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
    return text + _ending(options)


def _pooled(options: Options) -> bool:
    """Whether the token [CLS] goes through a map of its own, as their class has it and the file too."""
    if options["architecture"] == "BertModel":
        return options["pooler"] and not options.get("pooling")
    return options["architecture"] == "BertForSequenceClassification"


def _ending(options: Options) -> str:
    """What follows the encoder."""
    width, architecture = options["hidden_size"], options["architecture"]
    if options.get("pooling"):
        return _sentence(options)
    if architecture == "BertForMaskedLM":
        return _word_head(options)
    if not _pooled(options):
        return f'output("B", "T", {width})\n'
    if architecture == "BertForSequenceClassification":
        return (
            'pool_tokens("first")                        # the token [CLS]\n'
            f'linear({width}, name="pooler")\n'
            "tanh()\n"
            f'linear({options["num_labels"]}, name="classifier")\n\n'
            f'output("B", {options["num_labels"]})\n'
        )
    return (
        'hidden = identity(name="encoded")\n\n'
        'first = pool_tokens(hidden, "first")        # the token [CLS]\n'
        f'linear({width}, name="pooler")\n'
        "pooled = tanh()\n\n"
        f'output(hidden=("B", "T", {width}), pooled=("B", {width}))\n'
    )


def _sentence(options: Options) -> str:
    mode = options["pooling"]
    given, comment = {
        "mean": ("mask=mask", "the mean over the tokens, without the padding"),
        "max": ('"max", mask=mask', "the largest over the tokens, without the padding"),
        "first": ('"first"', "the token [CLS]"),
        "last": ('"last", mask=mask', "the last token before the padding"),
    }[mode]
    norm = "l2_norm()   # products of two embeddings are cosines\n" if options["normalize"] else ""
    return f'pool_tokens({given})   # {comment}\n{norm}\noutput("B", {options["hidden_size"]})\n'


def _word_head(options: Options) -> str:
    vocabulary = options["vocab_size"]
    activation = ACTIVATIONS[options["hidden_act"]]
    call = 'gelu("tanh")' if activation == "gelu_tanh" else f"{activation}()"
    tie, comment = "", ""
    if options["tie_word_embeddings"]:
        tie, comment = ', tie={"weight": "words.weight"}', "   # reads and scores with one table"
    return (
        f'linear({options["hidden_size"]}, name="transform")\n{call}\n'
        f'layer_norm(eps={number(options["layer_norm_eps"])}, name="transform_norm")\n'
        f'linear({vocabulary}, name="head"{tie}){comment}\n\n'
        f'output("B", "T", {vocabulary})\n'
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
        *(affine("pooler.dense", "pooler") if _pooled(options) else []),
        *_head_rows(options),
    ]


def _head_rows(options: Options) -> list[Row]:
    if options["architecture"] == "BertForSequenceClassification":
        return affine("classifier", "classifier", head=True)
    if options["architecture"] != "BertForMaskedLM":
        return []
    # Two names of one bias while tied; else the decoder's own is added, and the other one is read by nobody.
    bias = _HEAD_BIAS if options["tie_word_embeddings"] else _DECODER_BIAS
    return [
        *affine(f"{_HEAD}.transform.dense", "transform", head=True),
        *affine(f"{_HEAD}.transform.LayerNorm", "transform_norm", head=True),
        Row(f"{_HEAD}.decoder.weight", ("head.weight",), head=True),
        Row(bias, ("head.bias",), head=True),
    ]


def aliases(options: Options) -> Mapping[str, str]:
    """Of a tied head's bias both names may be in a file."""
    tied = options["architecture"] == "BertForMaskedLM" and options["tie_word_embeddings"]
    return {_DECODER_BIAS: _HEAD_BIAS} if tied else {}


def filled(options: Options) -> Mapping[str, tuple[int, ...]]:
    """A pooler that a sentence's embedding does not read, and a bias that an untied head does not."""
    width = options["hidden_size"]
    if options.get("pooling"):
        return {"pooler.dense.weight": (width, width), "pooler.dense.bias": (width,)}
    if options["architecture"] == "BertForMaskedLM" and not options["tie_word_embeddings"]:
        return {_HEAD_BIAS: (options["vocab_size"],)}
    return {}


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
        "vocab_size": tables[0].num_embeddings,
        "hidden_size": width,
        "num_hidden_layers": len(blocks),
        "num_attention_heads": first.heads,
        "intermediate_size": first.hidden or 4 * width,
        "hidden_act": their_name(ACTIVATIONS, first.activation),
        "max_position_embeddings": operators_of(plan, "pos_embed")[0].max_len,
        "type_vocab_size": tables[-1].num_embeddings,
        "layer_norm_eps": first.eps,
        "tie_word_embeddings": True,
        "pooler": False,
        **_described_ending(plan),
    }


def _described_ending(plan: Plan) -> dict[str, Any]:
    """The class that a plan's last nodes belong to, and what is particular to it."""
    last, names = plan.nodes[-1], [node.operator.name for node in plan.nodes]
    if last.operator.name == "tanh":
        return {"architecture": "BertModel", "pooler": True}
    if last.operator.name == "post_norm_block":
        return {"architecture": "BertModel"}
    if last.operator.name in ("pool_tokens", "l2_norm"):
        pooling = operators_of(plan, "pool_tokens")[-1]
        normalize = last.operator.name == "l2_norm"
        return {"architecture": "BertModel", "pooling": pooling.mode, "normalize": normalize}
    if last.operator.name != "linear":
        raise NotThisFamily(f"it ends with {last.operator.name}")
    if "tanh" in names:
        classes = operators_of(plan, "linear")[-1].sizes["D_out"]
        return {
            "architecture": "BertForSequenceClassification", "pooler": True, "num_labels": classes,
            **labels(classes),
        }  # fmt: skip
    return {"architecture": "BertForMaskedLM", "tie_word_embeddings": "weight" in last.tie}


def strangers(configuration: Mapping[str, Any]) -> list[str]:
    """What tells RoBERTa and its kin, whose tensors have BERT's names.

    They number positions from ``pad_token_id + 1``, so the same tensors compute something else. Nothing in the
    tensors' shapes tells; their ids do, which are those of fairseq's dictionary: 0 begins a text, 1 is padding, 2
    ends it. BERT's padding is 0. Of the models of BERT's class HerBERT alone has these ids, and its own tokenizer.
    """
    if str(configuration.get("tokenizer_class")).startswith("Herbert"):
        return []
    begin, padding, end = (configuration.get(key) for key in ("bos_token_id", "pad_token_id", "eos_token_id"))
    if padding == 1 or (begin, end) == (0, 2):
        return [
            f"pad_token_id: expected 0 and no bos_token_id=0 beside eos_token_id=2, got {shorten(padding)}, "
            f"{shorten(begin)} and {shorten(end)}: the ids of RoBERTa and its kin, whose positions begin elsewhere"
        ]
    return []


def untrained_row(weights: Mapping[str, np.ndarray]) -> list[str]:
    """A position that nothing has trained: that of the padding, whose row stays zeros in RoBERTa and its kin."""
    rows = weights["positions.weight"][:3]
    if len(rows) < 3 or rows[1].any() or not (rows[0].any() and rows[2].any()):
        return []
    return [
        "embeddings.position_embeddings.weight: expected a position in every row, got zeros in row 1, where "
        "RoBERTa and its kin have their padding"
    ]


_PRETRAINING = (
    *(
        f"{_HEAD}.{name}"
        for name in (
            "bias", "transform.dense.weight", "transform.dense.bias", "transform.LayerNorm.weight",
            "transform.LayerNorm.bias", "decoder.weight", "decoder.bias",
        )
    ),
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
)  # fmt: skip
"""Heads of which the encoder alone is imported; those of the imported class are not left out."""

BERT = Family(
    model_type="bert",
    prefix="bert",
    # Of a model with both heads of pre-training the encoder is imported, as BertModel.from_pretrained does.
    architectures={
        **{name: name for name in ("BertModel", "BertForMaskedLM", "BertForSequenceClassification")},
        "BertForPreTraining": "BertModel",
    },
    base_architectures=frozenset(["BertModel"]),
    default_architecture="BertModel",
    settings=SETTINGS,
    definition=definition,
    rows=rows,
    layers=lambda options: options["num_hidden_layers"],
    describe=describe,
    unread=(
        "embeddings.position_ids", "embeddings.token_type_ids", "pooler.dense.weight", "pooler.dense.bias",
        *_PRETRAINING,
    ),
    written=frozenset(["id2label", "label2id"]),
    observe=observe,
    rename=rename,
    aliases=aliases,
    filled=filled,
    strangers=strangers,
    strange_weights=untrained_row,
    sentences=True,
)  # fmt: skip
