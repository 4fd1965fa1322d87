"""The command ``isomorph``: one thin function per verb, whose work is in the module of that name.

Nothing heavy is imported here, so that ``isomorph --help`` answers at once; a verb's module is imported when
the verb runs.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Annotated, TextIO

import typer

import isomorph
from isomorph.errors import IsomorphError

app = typer.Typer(
    name="isomorph",
    help="Write a transformer once: every shape worked out beforehand, the same network in every framework.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich would cost more time than all the rest of --help
    pretty_exceptions_enable=False,
)

Network = Annotated[str, typer.Argument(metavar="FILE", help="A definition (.net), a saved model, or - .")]
Input = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="SHAPE", help='The input, as in "B,8,32" or "ids=B,T"; repeatable.'),
]
Output = Annotated[
    list[str] | None, typer.Option("--output", metavar="SHAPE", help="The output, likewise; repeatable.")
]
Dtype = Annotated[str | None, typer.Option("--dtype", help="Compute dtype: float32 where omitted.")]
InputDtype = Annotated[
    list[str] | None,
    typer.Option("--input-dtype", metavar="DTYPE", help='As in "int64" or "ids=int64"; repeatable.'),
]
Sizes = Annotated[
    list[str] | None, typer.Option("--size", metavar="NAME=N", help='A symbol, as in "T=16"; repeatable.')
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[
    bool, typer.Option("--force", help="Replace what was not written here, or was changed since.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no more than the result.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"isomorph {isomorph.__version__}")
        raise typer.Exit


@app.callback()
def _isomorph(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def show(
    file: Network,
    input: Input = None,
    output: Output = None,
    dtype: Dtype = None,
    input_dtype: InputDtype = None,
    size: Sizes = None,
    costs: Annotated[bool, typer.Option("--costs", help="What every node costs.")] = False,
    expand: Annotated[bool, typer.Option("--expand", help="The stages inside every node.")] = False,
    json: Json = False,
) -> None:
    """Show a network: shapes, parameters, cost."""
    from isomorph.cli.show import run

    run(file, (input, output, dtype, input_dtype), size, costs=costs, expand=expand, json=json)


@app.command()
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Definitions or saved models.")],
    input: Input = None,
    output: Output = None,
    dtype: Dtype = None,
    input_dtype: InputDtype = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Resolve files and say a line about each.

    The exit status is 2 when one of them has an error.
    """
    from isomorph.cli.check import run

    run(files, (input, output, dtype, input_dtype), json=json, quiet=quiet)


@app.command()
def draw(
    file: Network,
    input: Input = None,
    output: Output = None,
    dtype: Dtype = None,
    input_dtype: InputDtype = None,
    size: Sizes = None,
    attention: Annotated[
        bool, typer.Option("--attention", help="Which position may attend to which, instead of the network.")
    ] = False,
    length: Annotated[
        int | None, typer.Option("--length", help="Positions drawn with --attention, 1 to 64 [8].")
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="svg or mermaid, where no extension says it [svg].")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help=".svg, .mmd or .mermaid; the terminal if omitted."),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Draw a network, or its attention permissions, as SVG or Mermaid."""
    from isomorph.cli.draw import run

    contracts = (input, output, dtype, input_dtype)
    run(
        file, contracts, size,
        attention=attention, format=format, length=length, out=out, force=force, quiet=quiet,
    )  # fmt: skip


@app.command()
def verify(
    file: Network,
    input: Input = None,
    output: Output = None,
    dtype: Dtype = None,
    input_dtype: InputDtype = None,
    size: Sizes = None,
    seed: Annotated[int, typer.Option("--seed", help="Of inputs, and weights where none are saved.")] = 0,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", help="Compare this one alone; repeatable.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare all backends with the float64 reference.

    One table of differences, bounds and times. The exit status is 1 when a bound is exceeded.
    """
    from isomorph.cli.verify import run

    run(file, (input, output, dtype, input_dtype), size, seed=seed, backends=backend, json=json, quiet=quiet)


@app.command()
def train(
    file: Network,
    data: Annotated[
        str, typer.Option("--data", metavar="DATA", help="digits, text:FILE, text:pydoc or npz:FILE.")
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="DIR", help="The run's directory; runs/NAME if omitted."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run, or begin it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Delete a run that is there.")] = False,
    steps: Annotated[int | None, typer.Option("--steps", help="Optimizer steps [1200].")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Examples per step [64].")] = None,
    accumulate: Annotated[int | None, typer.Option("--accumulate", help="Parts of a batch [1].")] = None,
    length: Annotated[int | None, typer.Option("--length", help="Tokens per example of text.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="The peak [0.002].")] = None,
    warmup: Annotated[int | None, typer.Option("--warmup", help="Steps of linear rise [100].")] = None,
    weight_decay: Annotated[float | None, typer.Option("--weight-decay", help="On matrices [0.1].")] = None,
    clip: Annotated[float | None, typer.Option("--clip", help="Largest gradient norm; 0: none [1].")] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="float32 or bf16 [float32].")] = None,
    validation: Annotated[float | None, typer.Option("--validation", help="Share held out [0.1].")] = None,
    evaluate_every: Annotated[int | None, typer.Option("--evaluate-every", help="Steps [100].")] = None,
    checkpoint_every: Annotated[int | None, typer.Option("--checkpoint-every", help="Steps [250].")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of weights, order and dropout [0].")] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="torch or nnx; torch where it is installed.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="As in cpu, cuda:0 [cpu].")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="On the CPU; 0: its choice [0].")] = None,
    input: Input = None,
    output: Output = None,
    dtype: Dtype = None,
    input_dtype: InputDtype = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a network.

    The model, its metrics and a picture of them are left in a directory.

    Ctrl-C saves the state and stops; the same command with --resume continues, and ends with exactly the
    weights of a run that was never stopped. It refuses if the data were changed meanwhile.
    """
    from isomorph.cli.stopping import Stopping

    settings = {
        "data": data, "steps": steps, "batch_size": batch_size, "accumulate": accumulate, "length": length,
        "learning_rate": learning_rate, "warmup": warmup, "weight_decay": weight_decay, "clip": clip,
        "precision": precision, "validation": validation, "evaluate_every": evaluate_every,
        "checkpoint_every": checkpoint_every, "seed": seed, "backend": backend, "device": device,
        "threads": threads,
    }  # fmt: skip
    contracts = (input, output, dtype, input_dtype)
    with Stopping(quiet=quiet) as stopping:  # before anything heavy is imported
        from isomorph.cli.train import run

        run(file, contracts, settings, out, stopping, resume=resume, force=force, json=json, quiet=quiet)


@app.command()
def convert(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A saved model, or a run's directory.")],
    to: Annotated[str, typer.Option("--to", metavar="FRAMEWORK", help="torch, nnx or linen.")],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help="MODEL.FRAMEWORK.safetensors if omitted."),
    ] = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model's weights as one framework's users load them.

    A PyTorch state dictionary, or a flattened Flax tree; safetensors either way.
    """
    from isomorph.cli.convert import run

    run(model, to, out, force=force, json=json, quiet=quiet)


@app.command()
def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A saved model, or a run's directory.")],
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt", "-p", metavar="TEXT", help="What to continue; - for standard input; repeatable."
        ),
    ] = None,
    ids: Annotated[
        list[str] | None, typer.Option("--ids", help="Ids to continue instead, as in 1,2,3; repeatable.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", help="The most ids added [128].")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", help="The same with the prompt counted.")
    ] = None,
    min_new_tokens: Annotated[
        int | None, typer.Option("--min-new-tokens", help="No end of text before so many [0].")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", "-t", help="0 takes the highest score; else ids are drawn [0]."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Draw from that many only; 0: all [0].")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Draw from the likeliest that reach it [1].")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            "--min-p", help="Draw from ids at least so many times as probable as the likeliest [0]."
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option("--repetition-penalty", help="Above 1: ids of the text come less [1].")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option("--no-repeat-ngram", help="No so many ids in a row come twice; 0: any [0].")
    ] = None,
    suppress: Annotated[
        str | None, typer.Option("--suppress", metavar="IDS", help="Never come, as in 1,2,3.")
    ] = None,
    begin_suppress: Annotated[
        str | None, typer.Option("--begin-suppress", metavar="IDS", help="Do not come first.")
    ] = None,
    banned: Annotated[
        list[str] | None,
        typer.Option("--banned", metavar="IDS", help="Never come in this order; repeatable."),
    ] = None,
    forced: Annotated[
        str | None,
        typer.Option("--forced", metavar="POSITION:ID", help="Come at positions of the text, as in 1:7,2:9."),
    ] = None,
    forced_end: Annotated[
        str | None, typer.Option("--forced-end", metavar="ID", help="Comes last, at the most ids added.")
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(
            "--seed", help="Of the draws; equal in every backend. 5,7: of each prompt; 5:1: of its row [0]."
        ),
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="A text that ends it; repeatable.")
    ] = None,
    ignore_end: Annotated[
        bool, typer.Option("--ignore-end", help="Go on behind the model's own end of text.")
    ] = False,
    backend: Annotated[
        str | None, typer.Option("--backend", help="torch, nnx or linen; torch where it is installed.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="For torch, as in cpu, cuda:0 [cpu].")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continue a text with a saved model.

    Text is turned into ids by the tokenizer.json beside the model, and for a network over 256 ids into bytes.
    An imported model's own settings of generation hold where none are given.
    """
    from isomorph.cli.generate import run

    options = {
        "max_new_tokens": max_new_tokens, "max_length": max_length, "min_new_tokens": min_new_tokens,
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition_penalty": repetition_penalty, "no_repeat_ngram": no_repeat_ngram, "suppress": suppress,
        "begin_suppress": begin_suppress, "banned": banned, "forced": forced, "forced_end": forced_end, "seed": seed,
    }  # fmt: skip
    run(
        model, prompt, ids, options, stop,
        ignore_end=ignore_end, backend=backend, device=device, json=json, quiet=quiet,
    )  # fmt: skip


@app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A directory with config.json and its weights, or hf:owner/name."
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="MODEL", help="A .safetensors file, or a directory.")
    ],
    dtype: Annotated[str | None, typer.Option("--dtype", help="That of the tensors where omitted.")] = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn a published checkpoint into a definition and a model.

    The definition is written beside the model, as text to read and edit.
    """
    from isomorph.cli.import_ import run

    run(source, out, dtype, force=force, json=json, quiet=quiet)


@app.command()
def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A saved model, or a run's directory.")],
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="The directory to write.")],
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT", help="hf: for transformers; onnx; python.")
    ] = "hf",
    framework: Annotated[
        str | None, typer.Option("--framework", help="Of python: torch or nnx [torch].")
    ] = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model for another library.

    For transformers the network must be laid out as a published family, such as GPT-2, whatever its nodes
    are called. ONNX takes any network, of any sizes, and is compared with the reference in onnxruntime. As
    python, any model or definition becomes source code that needs its framework alone.
    """
    from isomorph.cli.export import run

    run(model, to, out, force=force, json=json, quiet=quiet, framework=framework)


@app.command()
def docs(
    operator: Annotated[str | None, typer.Argument(help="An operator; the catalogue if omitted.")] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="DIR", help="Write every page as Markdown there.")
    ] = None,
    force: Force = False,
) -> None:
    """Show an operator's page, or the catalogue."""
    from isomorph.cli.docs import run

    run(operator, out, force=force)


def main() -> None:
    """Run the command; an error that isomorph raises on purpose is shown without a traceback.

    So is output that cannot be written, with status 1; if nobody reads it any more, nothing is said. A character
    that the terminal's encoding has not is shown as its escape.
    """
    for stream in (sys.stdout, sys.stderr):
        _escape_what_it_cannot_write(stream)
    try:
        try:
            app(prog_name="isomorph")
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a full disk can still be told
    except IsomorphError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.filename is not None:  # of a file, which whoever opened it should have told
            raise
        _discard_output()
        if error.errno != errno.EPIPE:
            print(f"isomorph: cannot write the output: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)


def _escape_what_it_cannot_write(stream: TextIO | None) -> None:
    """Whatever the encoding is, and the names of files are: no character is worth an exception."""
    if isinstance(stream, io.TextIOWrapper):
        lossless = stream.errors == "surrogateescape" and stream.encoding.lower().replace("-", "") == "utf8"
        if not lossless and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Let the interpreter's own last flush succeed."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
