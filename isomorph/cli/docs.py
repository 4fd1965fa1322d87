"""``isomorph docs``: an operator's page in the terminal, or all pages as files."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from pathlib import Path

from isomorph.display.page import catalogue_page, docstring, operator_page
from isomorph.errors import IsomorphError
from isomorph.operators import catalogue
from isomorph.writing.marks import text_kind
from isomorph.writing.rule import Target, directory_target, made_directory, write_files

PAGE = text_kind("page", (".md",), "<!-- {} -->")


def run(operator: str | None, out: str | None, *, force: bool) -> None:
    """Show one page or the catalogue, or write all of them into a directory."""
    if out is not None:
        if operator is not None:
            raise IsomorphError("E_ARGUMENT", "--out writes every page; leave out the operator")
        write_pages(directory_target(out, "--out"), force)
    elif operator is None:
        print_catalogue()
    else:
        declared = catalogue.get(operator)
        if declared is None:
            raise catalogue.unknown(operator)
        print_page(operator_page(declared))


def print_page(page: str) -> None:
    """Rendered in a terminal; Markdown as it is into a file or a pipe."""
    if not sys.stdout.isatty():
        print(page, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(page if console.width >= WIDE else without_tables(page)))


WIDE = 80
"""Columns of a terminal in which five columns of a table keep their words whole."""


def without_tables(page: str) -> str:
    """The page with a list in place of each table: the first cell, then the others under the names of their columns."""
    lines: list[str] = []
    names: list[str] = []
    for line in page.splitlines():
        cells = [cell.replace(r"\|", "|") for cell in re.split(r" (?<!\\)\| ", line.strip("| "))]
        if not line.startswith("| "):
            names = []
            lines.append(line)
        elif not names:
            names = [name.lower() for name in cells]
        elif cells[0] != "---":
            columns = zip(names[1:], cells[1:], strict=True)
            lines.append(
                f"- {cells[0]}: " + ", ".join(f"{name}: {cell}" for name, cell in columns if cell != "—")
            )
    return "\n".join(lines)


def print_catalogue() -> None:
    """Every operator with its shape and its purpose, by category."""
    operators = catalogue.all_operators()
    categories: dict[str, list[str]] = {}
    for name, operator in operators.items():
        categories.setdefault(operator.category, []).append(name)
    width = max(map(len, operators))
    indent = " " * (width + 4)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for category, names in sorted(categories.items()):
        print(f"{category}:")
        for name in names:
            text = f"  {name:<{width}}  {docstring(operators[name])[0]}"
            lines = [text] if columns is None else textwrap.wrap(text, columns, subsequent_indent=indent)
            print("\n".join(lines))
    print("\nisomorph docs OPERATOR shows a page.")


def write_pages(directory: Path, force: bool) -> None:
    """``index.md`` and a page per operator, all or none of them; E_OUTPUT when that cannot be."""
    operators = catalogue.all_operators()
    pages = {f"{name}.md": operator_page(operator) for name, operator in operators.items()}
    pages = {**pages, "index.md": catalogue_page()}
    targets = [Target(str(directory / name), PAGE, force=force, alone=False) for name in pages]
    with made_directory(directory):
        write_files(
            [(target, target.text(page)) for target, page in zip(targets, pages.values(), strict=True)]
        )
    print(f"{len(operators)} pages and index.md in {directory}")
