"""Whisper (Radford et al., 2022): an encoder of spectrograms, and a decoder that reads it while it writes.

Two convolutions make positions out of frames, two for one; the encoder's table of positions holds sines and
cosines and is not trained. Norms come before each branch, keys have no bias, and the head reads the table of
ids. Inputs come in the peer library's order: the spectrogram, then the ids written so far.
"""

from __future__ import annotations

from typing import Any

from isomorph.checkpoints.blocks import ACTIVATIONS, PreNorm, number
from isomorph.checkpoints.family import (
    GENERATION,
    Family,
    Handled,
    Ignored,
    NotThisFamily,
    Only,
    Options,
    Row,
    affine,
    dropout,
    each_layer,
    operators_of,
    their_name,
)
from isomorph.plan import Plan

EPS = 1e-5
"""Of every norm; no key of the configuration says it."""
FRAMES = 2
"""Frames for each position of the encoder: the stride of the second convolution."""

_CLASSIFIER = Ignored("of the classifier of sounds, which is not imported")
_OTHER_NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "num_key_value_heads": "encoder_attention_heads",
}
SETTINGS: dict[str, Handled | Ignored | Only] = {
    "vocab_size": Handled("int", 51865),
    "num_mel_bins": Handled("int", 80),
    "d_model": Handled("int", 384),
    "encoder_layers": Handled("layers", 4),
    "encoder_attention_heads": Handled("int", 6),
    "encoder_ffn_dim": Handled("int", 1536),
    "decoder_layers": Handled("layers", 4),
    "decoder_attention_heads": Handled("int", 6),
    "decoder_ffn_dim": Handled("int", 1536),
    "activation_function": Handled("choice", "gelu", ACTIVATIONS),
    "max_source_positions": Handled("int", 1500),
    "max_target_positions": Handled("int", 448),
    "tie_word_embeddings": Handled("bool", True),
    "scale_embedding": Ignored("the peer library reads it and scales nothing, nor does the original"),
    "is_encoder_decoder": Only((True,), "an encoder and a decoder are imported"),
    **dict.fromkeys(
        (
            "forced_decoder_ids", "median_filter_width", "alignment_heads", "is_multilingual", "lang_ids",
            "lang_to_id", "language", "max_initial_timestamp_index", "no_timestamps_token_id", "prev_sot_token_id",
            "return_timestamps", "suppress_ids", "task", "task_to_id",
        ),
        GENERATION,
    ),
    **dict.fromkeys(("use_weighted_layer_sum", "classifier_proj_size"), _CLASSIFIER),
    **dropout("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop"),
    **dropout(
        "init_std", "apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks",
        "mask_feature_prob", "mask_feature_length", "mask_feature_min_masks",
    ),
}  # fmt: skip


def _encoder(options: Options) -> PreNorm:
    return PreNorm(
        options["encoder_layers"], options["encoder_attention_heads"], options["d_model"],
        options["encoder_ffn_dim"], ACTIVATIONS[options["activation_function"]], EPS,
        k_bias=False, prefix="encoder_",
    )  # fmt: skip


def _decoder(options: Options) -> PreNorm:
    return PreNorm(
        options["decoder_layers"], options["decoder_attention_heads"], options["d_model"],
        options["decoder_ffn_dim"], ACTIVATIONS[options["activation_function"]], EPS,
        causal=True, k_bias=False, context="encoded", prefix="decoder_",
    )  # fmt: skip


def _headed(options: Options) -> bool:
    return options["architecture"] == "WhisperForConditionalGeneration"


def definition(options: Options) -> str:
    """The text; B and the decoder's T stay open."""
    return _encoder_text(options) + _decoder_text(options)


def _encoder_text(options: Options) -> str:
    width, bins, positions = options["d_model"], options["num_mel_bins"], options["max_source_positions"]
    stack, eps = _encoder(options), number(EPS)
    return (
        f"# Whisper: {stack.layers} encoder and {options['decoder_layers']} decoder layers of width {width}, "
        f"{options['vocab_size']:,} ids.\n"
        + ("" if _headed(options) else "# Features, without the head that scores ids.\n")
        + f'\nfeatures = input("B", {bins}, {FRAMES * positions})   # a log-mel spectrogram: bins, then frames\n'
        'ids = input("B", "T", dtype="int64")   # what is written so far\n\n'
        "# The encoder. Two frames make one position.\n"
        f'conv1d(features, {width}, 3, padding=1, name="conv1")\n'
        "gelu()\n"
        f'conv1d({width}, 3, stride={FRAMES}, padding=1, name="conv2")\n'
        "gelu()\n"
        "transpose(1, 2)\n"
        f'h = pos_embed({positions}, trainable=False, name="encoder_positions")   # sines and cosines, as a table\n\n'
        f"{stack.text()}\n"
        f'encoded = layer_norm(eps={eps}, name="encoder_norm")\n\n'
    )


def _decoder_text(options: Options) -> str:
    width, vocabulary, positions = options["d_model"], options["vocab_size"], options["max_target_positions"]
    stack, eps = _decoder(options), number(EPS)
    text = (
        "# The decoder. Every layer attends to what is written, then to what was heard.\n"
        f'embedding(ids, {vocabulary}, {width}, name="tokens")\n'
        f'h = pos_embed({positions}, name="decoder_positions")   # learned positions, hence T <= {positions}\n\n'
        f"{stack.text()}\n"
    )
    norm = f'layer_norm(eps={eps}, name="decoder_norm")\n'
    if not _headed(options):
        shapes = f'hidden=("B", "T", {width}), encoded=("B", {options["max_source_positions"]}, {width})'
        return f"{text}hidden = {norm}\noutput({shapes})\n"
    tie, comment = "", ""
    if options["tie_word_embeddings"]:
        tie, comment = ', tie={"weight": "tokens.weight"}', "   # reads and scores with one table"
    head = f'linear({vocabulary}, bias=False, name="head"{tie}){comment}\n'
    return f'{text}{norm}{head}\noutput("B", "T", {vocabulary})\n'


def rows(options: Options) -> list[Row]:
    """Their names, ours, and the order of axes; every layer of both stacks on its own."""
    return [
        *affine("encoder.conv1", "conv1"),
        *affine("encoder.conv2", "conv2"),
        Row("encoder.embed_positions.weight", ("encoder_positions.weight",)),
        *each_layer(_layer_rows("encoder", _encoder(options)), options["encoder_layers"]),
        *affine("encoder.layer_norm", "encoder_norm"),
        Row("decoder.embed_tokens.weight", ("tokens.weight",)),
        Row("decoder.embed_positions.weight", ("decoder_positions.weight",)),
        *each_layer(_layer_rows("decoder", _decoder(options)), options["decoder_layers"]),
        *affine("decoder.layer_norm", "decoder_norm"),
        *([Row("proj_out.weight", ("head.weight",), head=True)] if _headed(options) else []),
    ]


def _layer_rows(side: str, stack: PreNorm) -> list[Row]:
    layer, paths = f"{side}.layers.{{i}}", stack.paths()
    looks = [("self_attn", "norm1", "attn")] + (
        [("encoder_attn", "cross_norm", "cross")] if stack.context else []
    )
    attention = []
    for theirs, norm, ours in looks:
        attention += [
            *affine(f"{layer}.{theirs}_layer_norm", paths[norm]),
            *affine(f"{layer}.{theirs}.q_proj", f"{paths[ours]}.q_proj"),
            *affine(f"{layer}.{theirs}.k_proj", f"{paths[ours]}.k_proj", bias=False),
            *affine(f"{layer}.{theirs}.v_proj", f"{paths[ours]}.v_proj"),
            *affine(f"{layer}.{theirs}.out_proj", f"{paths[ours]}.o_proj"),
        ]
    return [
        *attention,
        *affine(f"{layer}.final_layer_norm", paths["norm2"]),
        *affine(f"{layer}.fc1", f"{paths['ffn']}.up"),
        *affine(f"{layer}.fc2", f"{paths['ffn']}.down"),
    ]


def describe(plan: Plan) -> dict[str, Any]:
    """A configuration for a plan."""
    stem, positions = operators_of(plan, "conv1d")[0], operators_of(plan, "pos_embed")
    attention, forward = operators_of(plan, "attention"), operators_of(plan, "feed_forward")
    crossing = operators_of(plan, "cross_attention")
    hearing = [each for each in attention if not each.causal]
    if not hearing:
        raise NotThisFamily("it has no attention that sees everything")
    last = plan.nodes[-1]
    headed = last.operator.name == "linear"
    return {
        "architecture": "WhisperForConditionalGeneration" if headed else "WhisperModel",
        "vocab_size": operators_of(plan, "embedding")[0].num_embeddings,
        "num_mel_bins": stem.sizes["C_in"],
        "d_model": stem.sizes["C_out"],
        "encoder_layers": len(hearing),
        "encoder_attention_heads": hearing[0].heads,
        "encoder_ffn_dim": forward[0].hidden,
        "decoder_layers": len(crossing),
        "decoder_attention_heads": crossing[0].heads,
        "decoder_ffn_dim": forward[-1].hidden,
        "activation_function": their_name(ACTIVATIONS, forward[0].activation),
        "max_source_positions": positions[0].max_len,
        "max_target_positions": positions[-1].max_len,
        "tie_word_embeddings": not headed or "weight" in last.tie,
    }


WHISPER = Family(
    model_type="whisper",
    prefix="model",
    architectures={
        "WhisperForConditionalGeneration": "WhisperForConditionalGeneration",
        "WhisperModel": "WhisperModel",
    },
    base_architectures=frozenset(["WhisperModel"]),
    default_architecture="WhisperForConditionalGeneration",
    settings=SETTINGS,
    definition=definition,
    rows=rows,
    layers=lambda options: 0,  # the rows have both stacks' layers already
    describe=describe,
    other_names=_OTHER_NAMES,
)
