"""``isomorph draw``: the network, or its attention permissions, as a picture."""

from __future__ import annotations

import os
import sys

from isomorph.cli.network import Contracts, inputs_of, open_network, read_sizes
from isomorph.display.mermaid import MERMAID
from isomorph.display.svg import SVG
from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.paths import path_text
from isomorph.writing.rule import Target, refuse_extension

FORMATS = {"svg": SVG, "mermaid": MERMAID}
DEFAULT_LENGTH = 8


def run(
    file: str,
    contracts: Contracts,
    size: list[str] | None,
    *,
    attention: bool,
    format: str | None,
    length: int | None,
    out: str | None,
    force: bool,
    quiet: bool,
) -> None:
    """Draw to standard output, or into a file that is written whole or not at all."""
    if format is not None and format not in FORMATS:
        raise IsomorphError(
            "E_ARGUMENT",
            f"--format is svg or mermaid, got {shorten(format)}",
            hints=did_you_mean(format, FORMATS),
        )
    target = None if out is None else _target(file, path_text(out, "--out"), format, force)
    kind = FORMATS[format or "svg"] if target is None else target.kind
    if attention and kind is MERMAID:
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
    picture = _picture(
        file, contracts, size, attention, kind is MERMAID, DEFAULT_LENGTH if length is None else length
    )
    if target is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(picture.encode())  # UTF-8 whatever the terminal speaks
        sys.stdout.buffer.flush()
        return
    content = target.text(picture)
    target.write(content)
    if not quiet and not target.streams:
        print(f"{out}: {len(content):,} bytes")


def _target(file: str, out: str, format: str | None, force: bool) -> Target:
    """Where to write, and what: as the extension says, or where there is none, --format. E_OUTPUT."""
    target = Target(out, FORMATS[format or "svg"], inputs_of(file), force)
    if not target.streams:
        extensions = {extension: kind for kind in FORMATS.values() for extension in kind.extensions}
        wanted = target.kind.extensions if format else tuple(extensions)
        refuse_extension(out, wanted, bare=format is not None)
        target = target._replace(kind=extensions.get(os.path.splitext(out)[1].lower(), target.kind))
    target.check()
    return target


def _picture(
    file: str, contracts: Contracts, size: list[str] | None, attention: bool, mermaid: bool, length: int
) -> str:
    plan, sizes = open_network(file, contracts).plan, read_sizes(size)
    if attention:
        from isomorph.display.attention_pattern import draw_attention

        return draw_attention(plan, length, sizes)
    from isomorph.display.diagram import draw_mermaid, draw_svg

    return (draw_mermaid if mermaid else draw_svg)(plan, sizes)
