"""``isomorph verify``: one table of differences, bounds and times."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Callable
from typing import Literal, NamedTuple

from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.table import Table

from isomorph.agreement.verify import Agreement, Verification, verify
from isomorph.cli.network import Contracts, open_network, read_sizes


def run(
    file: str,
    contracts: Contracts,
    size: list[str] | None,
    *,
    seed: int,
    backends: list[str] | None,
    json: bool,
    quiet: bool,
) -> None:
    """Compare, print, and exit with status 1 on disagreement."""
    network = open_network(file, contracts)
    status = Console(stderr=True)
    with status.status("...") if status.is_terminal and not quiet else _NoStatus() as line:
        verification = verify(
            network.plan,
            network.weights,
            sizes=read_sizes(size),
            seed=seed,
            backends=backends,
            progress=lambda text: line.update(f"computing: {text}"),
        )
    if json:
        print(json_text.dumps(verification.to_dict(), indent=2))
    elif not quiet:
        saved = "saved weights" if network.weights is not None else "drawn weights"
        print_table(verification, saved)
    if not verification.agrees:
        if not json:
            bad = ", ".join(f"{row.backend} {row.quantity}" for row in verification.rows if not row.agrees)
            print(f"disagreement beyond the bound: {bad}", file=sys.stderr)
        sys.exit(1)


class _NoStatus:
    """Stands in where nobody watches."""

    def __enter__(self) -> _NoStatus:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def update(self, text: str) -> None:
        pass


def print_table(verification: Verification, weights: str) -> None:
    """The comparisons, a row each.

    A terminal below :data:`WIDE` columns gets those that decide, without lines between them, and the paths of
    parameters underneath; 60 columns are enough.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # nothing is cut off in a file
    wide = console.width >= WIDE
    sizes = "".join(f", {name}={size}" for name, size in verification.sizes.items())
    table = Table(box=HEAVY_HEAD if wide else None, pad_edge=wide)
    chosen = [column for column in COLUMNS if wide or column.narrow]
    for column in chosen:
        table.add_column(
            column.title, justify=column.justify, no_wrap=column.no_wrap, overflow="fold",
            min_width=None if column.no_wrap else 8,
        )  # fmt: skip
    for row in verification.rows:
        table.add_row(
            *(column.cell(row, wide) for column in chosen), style=None if row.agrees else "bold red"
        )
    console.print(f"{verification.dtype} against the float64 reference ({weights}{sizes})", style="bold")
    console.print(table)
    if not wide:
        for row in verification.rows:
            if row.where:
                console.print(f"{row.backend}, worst of {row.quantity}: {row.where}", highlight=False)
    console.print(_caption(verification, wide), style="dim italic", highlight=False)


WIDE = 120
"""Columns of a terminal that the whole table needs."""


class Column(NamedTuple):
    """A column: its title, the text of a row (given whether the table is wide), and how it is set."""

    title: str
    cell: Callable[[Agreement, bool], str]
    narrow: bool = True
    no_wrap: bool = True
    justify: Literal["left", "right"] = "right"


def _quantity(row: Agreement, wide: bool) -> str:
    return f"{row.quantity}, worst: {row.where}" if row.where and wide else row.quantity


def _ratio(row: Agreement, wide: bool) -> str:
    return f"{row.ratio:.4f}" if row.ratio < 1000 else f"{row.ratio:.1e}"


def _in_units(row: Agreement, text: str) -> str:
    """A difference in units of the true value; a dash where rounding alone is larger than that, as for zero."""
    return "—" if row.agrees and row.relative > 1 else text


COLUMNS = (
    Column("backend", lambda row, wide: row.backend, justify="left"),
    Column("quantity", _quantity, no_wrap=False, justify="left"),
    Column("difference", lambda row, wide: f"{row.difference:.2e}"),
    Column("relative", lambda row, wide: _in_units(row, f"{row.relative:.2e}"), narrow=False),
    Column("ulps", lambda row, wide: _in_units(row, f"{row.ulps:.1f}"), narrow=False),
    Column("bound", lambda row, wide: f"{row.bound:.2e}"),
    Column("ratio", _ratio),
    Column("time", lambda row, wide: seconds(row.seconds), narrow=False),
    Column("", lambda row, wide: "ok" if row.agrees else "DIFFERS", justify="left"),
)


def _caption(verification: Verification, wide: bool) -> str:
    """What the columns mean, and what the rows were compared with."""
    sentences = [
        "ratio = difference / bound, 1 at most.",
        *(["ulps of the largest value."] if wide else []),
        f"The reference took {seconds(verification.reference_seconds)}.",
    ]
    if verification.differentiator is not None:
        sentences.append(f"Gradients against {verification.differentiator}'s in float64.")
    return "  ".join(sentences)


def seconds(value: float) -> str:
    """``12 ms`` or ``3.4 s``."""
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"
