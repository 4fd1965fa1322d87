"""``isomorph draw``: the network, or its attention permissions, as a picture."""

from __future__ import annotations

import sys

from isomorph.cli.network import Contracts, open_network, read_sizes
from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.paths import path_text

FORMATS = ("svg", "mermaid")
DEFAULT_LENGTH = 8


def run(
    file: str,
    contracts: Contracts,
    size: list[str] | None,
    *,
    attention: bool,
    format: str,
    length: int | None,
    out: str | None,
    quiet: bool,
) -> None:
    """Draw to standard output, or into a file that is written whole or not at all."""
    if format not in FORMATS:
        raise IsomorphError(
            "E_ARGUMENT",
            f"--format is svg or mermaid, got {shorten(format)}",
            hints=did_you_mean(format, FORMATS),
        )
    if attention and format == "mermaid":
        raise IsomorphError(
            "E_ARGUMENT",
            "Mermaid cannot draw attention permissions",
            hints=["--attention with --format svg, or --format mermaid without --attention"],
        )
    if length is not None and not attention:
        raise IsomorphError(
            "E_ARGUMENT",
            "--length is the number of positions of --attention, which is not given",
            hints=["--size T=16 puts a number in place of a symbol"],
        )
    picture = _picture(file, contracts, size, attention, format, DEFAULT_LENGTH if length is None else length)
    if out is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(picture)
        sys.stdout.buffer.flush()
        return
    write(out, picture)
    if not quiet:
        print(f"{out}: {len(picture):,} bytes")


def _picture(
    file: str, contracts: Contracts, size: list[str] | None, attention: bool, format: str, length: int
) -> bytes:
    """UTF-8 whatever the terminal speaks."""
    plan, sizes = open_network(file, contracts).plan, read_sizes(size)
    if attention:
        from isomorph.show.attention_pattern import draw_attention

        return draw_attention(plan, length, sizes).encode()
    from isomorph.show.diagram import draw_mermaid, draw_svg

    return (draw_mermaid if format == "mermaid" else draw_svg)(plan, sizes).encode()


def write(path: str, content: bytes) -> None:
    """Write a file atomically; E_ARGUMENT when it cannot be written."""
    from isomorph.weights.atomic import atomic_write

    path = path_text(path, "--out")
    try:
        atomic_write(path, content)
    except OSError as error:
        raise IsomorphError(
            "E_ARGUMENT", f"cannot write {path}: {error.strerror or error}", hints=["choose another --out"]
        ) from None
