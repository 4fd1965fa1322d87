"""``docs``: the catalogue, a page, all pages as files."""

from isomorph.operators.catalogue import all_operators
from isomorph.show.page import operator_page


def test_the_catalogue_names_every_operator(isomorph):
    result = isomorph("docs")
    assert result.status == 0
    shown = {line.split()[0] for line in result.out.splitlines() if line.startswith("  ")}
    assert shown == set(all_operators())


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
    assert (unwritable.status, unwritable.err.splitlines()[1]) == (2, "  choose another --out")
    both = isomorph("docs", "linear", "--out", tmp_path)
    assert both.err == "E_ARGUMENT: --out writes every page; leave out the operator\n"
