"""``isomorph docs``: an operator's page in the terminal, or all pages as files."""

from __future__ import annotations

import sys
from pathlib import Path

from isomorph.errors import IsomorphError
from isomorph.operators import catalogue
from isomorph.paths import path_text
from isomorph.show.page import catalogue_page, docstring, operator_page


def run(operator: str | None, out: str | None) -> None:
    """Show one page or the catalogue, or write all of them into a directory."""
    if out is not None:
        if operator is not None:
            raise IsomorphError("E_ARGUMENT", "--out writes every page; leave out the operator")
        write_pages(Path(path_text(out, "--out")))
    elif operator is None:
        print_catalogue()
    else:
        found = catalogue.get(operator)
        if found is None:
            raise catalogue.unknown(operator)
        print_page(operator_page(found))


def print_page(page: str) -> None:
    """Rendered in a terminal; Markdown as it is into a file or a pipe."""
    if not sys.stdout.isatty():
        print(page, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(page))


def print_catalogue() -> None:
    """Every operator with its shape and its purpose, by category."""
    operators = catalogue.all_operators()
    categories: dict[str, list[str]] = {}
    for name, operator in operators.items():
        categories.setdefault(operator.category, []).append(name)
    width = max(map(len, operators))
    for category, names in sorted(categories.items()):
        print(f"{category}:")
        for name in names:
            print(f"  {name:<{width}}  {docstring(operators[name])[0]}")
    print("\nisomorph docs OPERATOR shows a page.")


def write_pages(directory: Path) -> None:
    """``index.md`` and a page per operator; E_ARGUMENT when the directory cannot be written."""
    operators = catalogue.all_operators()
    pages = {f"{name}.md": operator_page(operator) for name, operator in operators.items()}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, page in {"index.md": catalogue_page(), **pages}.items():
            (directory / name).write_text(page, encoding="utf-8")
    except OSError as error:
        raise IsomorphError(
            "E_ARGUMENT",
            f"cannot write to {directory}: {error.strerror or error}",
            hints=["choose another --out"],
        ) from None
    print(f"{len(operators)} pages and index.md in {directory}")
