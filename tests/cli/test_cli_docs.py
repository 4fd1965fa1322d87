"""``docs``: the catalogue, a page, all pages as files."""

import re
import sys

import pytest

from isomorph.cli.docs import without_tables
from isomorph.display.page import operator_page
from isomorph.operators import catalogue
from isomorph.operators.catalogue import all_operators


def test_the_catalogue_names_every_operator(isomorph):
    result = isomorph("docs")
    assert result.status == 0
    shown = {line.split()[0] for line in result.out.splitlines() if line.startswith("  ")}
    assert shown == set(all_operators())


@pytest.mark.parametrize("columns", [60, 80])
def test_pages_and_the_catalogue_fit_a_narrow_terminal(isomorph, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = (re.sub(r"\x1b\[[0-9;]*m", "", isomorph("docs", *of).out) for of in ((), ("attention",)))
    catalogue_lines, page_lines = map(str.splitlines, shown)
    assert max(map(len, catalogue_lines + page_lines)) <= columns
    words = " ".join(page_lines).split()
    assert {"rope_original_length", "rope_scaling", "l2_norm", "projections."} <= {
        word.strip(":,") for word in words
    }


def test_a_narrow_page_lists_what_a_table_holds():
    page = operator_page(all_operators()["scale"])
    assert "| `factor` (positional) | float | required | — | The number; any finite one. |" in page
    listed = without_tables(page)
    assert (
        "- `factor` (positional): type: float, default: required, description: The number; any finite one."
        in listed
    )
    assert not [line for line in listed.splitlines() if line.startswith("|")]


def test_a_page_is_markdown_where_no_terminal_is(isomorph):
    result = isomorph("docs", "transformer_block")
    assert result.out == operator_page(all_operators()["transformer_block"])


def test_all_pages_are_written(isomorph, tmp_path):
    result = isomorph("docs", "--out", tmp_path / "pages")
    count = len(all_operators())
    assert result.out == f"{count} pages and index.md in {tmp_path}/pages\n"
    names = {path.name for path in (tmp_path / "pages").iterdir()}
    assert names == {"index.md", *(f"{name}.md" for name in all_operators())}
    index = (tmp_path / "pages" / "index.md").read_text()
    assert all(f"({name}.md)" in index for name in all_operators())


def test_an_unknown_operator_gets_the_nearest(isomorph):
    assert isomorph("docs", "liner") == (
        2, "", "E_OPERATOR: there is no operator 'liner'\n  did you mean linear?\n",
    )  # fmt: skip


def test_refuses(isomorph, tmp_path):
    (tmp_path / "file").touch()
    unwritable = isomorph("docs", "--out", tmp_path / "file")
    assert unwritable == (
        2, "",
        f"E_OUTPUT: {tmp_path / 'file'} is no directory, and several files are to be written\n"
        "  choose a directory, which is made where there is none\n",
    )  # fmt: skip
    both = isomorph("docs", "linear", "--out", tmp_path)
    assert both.err == "E_ARGUMENT: --out writes every page; leave out the operator\n"


PLUGINS = {
    "def broken(cls):\n    raise RuntimeError('no way')\n@broken\nclass X: pass": "no way",
    "raise SystemExit(3)": "3",
    "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute": "Mute",
    "raise KeyError": "KeyError",
}


@pytest.mark.parametrize("code", PLUGINS)
def test_a_package_whose_operators_do_not_load(isomorph, tmp_path, monkeypatch, code):
    """Whatever its decorator raises, and however often one asks."""
    information = tmp_path / "other-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[isomorph.operators]\nother = other_operators\n")
    (tmp_path / "other_operators.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalogue, "_load_entry_points", catalogue._load_entry_points.__wrapped__)
    for _ in range(2):
        assert isomorph("docs") == (
            2, "",
            "E_OPERATOR: the operators of 'other_operators' (entry point 'other') do not load: "
            f"{PLUGINS[code]}\n  uninstall or mend that package\n",
        )  # fmt: skip
    assert isomorph("docs", "linear").status == 0


def test_an_operator_whose_own_code_fails_on_its_page(isomorph, monkeypatch):
    linear = catalogue.get("linear")
    monkeypatch.setattr(linear, "examples", property(lambda self: 1 / 0))
    assert isomorph("docs", "linear") == (
        2, "",
        "E_OPERATOR: the page of linear@1 cannot be written: TypeError: 'property' object is not iterable\n"
        "  mend isomorph.operators.linear.Linear\n",
    )  # fmt: skip
