"""``isomorph verify``: one table of differences, bounds and times."""

from __future__ import annotations

import json as json_text
import sys

from rich.console import Console
from rich.table import Table

from isomorph.cli.network import Contracts, open_network, read_sizes
from isomorph.show.verify import Agreement, Verification, verify


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
        found = verify(
            network.plan,
            network.weights,
            sizes=read_sizes(size),
            seed=seed,
            backends=backends,
            progress=lambda text: line.update(f"computing: {text}"),
        )
    if json:
        print(json_text.dumps(found.to_dict(), indent=2))
    elif not quiet:
        saved = "saved weights" if network.weights is not None else "weights drawn at order one"
        print_table(found, saved)
    if not found.agrees:
        if not json:
            bad = ", ".join(f"{row.backend} {row.quantity}" for row in found.rows if not row.agrees)
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


def print_table(found: Verification, weights: str) -> None:
    """The comparisons, a row each."""
    sizes = "".join(f", {name}={size}" for name, size in found.sizes.items())
    table = Table(
        title=f"{found.dtype} against the float64 reference ({weights}{sizes})",
        title_justify="left",
        title_style="bold",
        caption=_caption(found),
        caption_justify="left",
    )
    for name in ("backend", "quantity"):
        table.add_column(name, overflow="fold")
    for name in ("difference", "relative", "ulps", "bound", "ratio", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in found.rows:
        table.add_row(*_cells(row), style=None if row.agrees else "bold red")
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # nothing is cut off in a file
    console.print(table)


def _caption(found: Verification) -> str:
    """What the columns mean, and what the rows were compared with."""
    sentences = [
        "ratio = difference / bound, 1 at most.",
        "ulps of the largest value.",
        f"The reference took {seconds(found.reference_seconds)}.",
    ]
    if found.differentiator is not None:
        sentences.append(f"Gradients against {found.differentiator}'s in float64.")
    return "  ".join(sentences)


def _cells(row: Agreement) -> tuple[str, ...]:
    quantity = f"{row.quantity}, worst: {row.where}" if row.where else row.quantity
    return (
        row.backend,
        quantity,
        f"{row.difference:.2e}",
        f"{row.relative:.2e}",
        f"{row.ulps:.1f}",
        f"{row.bound:.2e}",
        f"{row.ratio:.4f}",
        seconds(row.seconds),
        "ok" if row.agrees else "DIFFERS",
    )


def seconds(value: float) -> str:
    """``12 ms`` or ``3.4 s``."""
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"
