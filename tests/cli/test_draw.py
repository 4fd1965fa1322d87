"""``draw``: the network and its attention permissions, to the terminal or a file."""

import hashlib
from pathlib import Path

import pytest

import isomorph as iso
from isomorph.display.attention_pattern import draw_attention
from isomorph.display.diagram import draw_mermaid, draw_svg


@pytest.fixture
def plan():
    return iso.resolve("transformer_block(4)", input=("B", "T", 32))


SHAPE = ("--input", "B,T,32")


def test_the_network_goes_to_the_terminal(isomorph, block, plan):
    assert isomorph("draw", block, *SHAPE) == (0, draw_svg(plan), "")
    assert isomorph("draw", block, *SHAPE, "--format", "mermaid") == (0, draw_mermaid(plan), "")
    assert isomorph("draw", block, *SHAPE, "--size", "T=6").out == draw_svg(plan, {"T": 6})


def test_attention(isomorph, block, plan):
    assert isomorph("draw", block, *SHAPE, "--attention") == (0, draw_attention(plan), "")
    given = isomorph("draw", block, *SHAPE, "--attention", "--length", "5", "--size", "T=7")
    assert given.out == draw_attention(plan, 5, {"T": 7})


def drawn(path):
    """A picture's file without the last line, a comment by which it is known again."""
    text, _, mark = path.read_text(encoding="utf-8").removesuffix("\n").rpartition("\n")
    text += "\n"
    assert mark == f"<!-- isomorph {hashlib.sha256(text.encode()).hexdigest()[:32]} -->"
    return text


def test_a_file_is_written_whole(isomorph, block, plan, tmp_path):
    out = tmp_path / "a.svg"
    result = isomorph("draw", block, *SHAPE, "-o", out)
    assert drawn(out) == draw_svg(plan)
    assert result == (0, f"{out}: {out.stat().st_size:,} bytes\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "block.net"]
    assert isomorph("draw", block, *SHAPE, "--attention", "--out", out, "--quiet").out == ""
    assert drawn(out) == draw_attention(plan)


def test_a_saved_model_is_drawn_as_its_definition(isomorph, plan, tmp_path):
    iso.save(tmp_path / "model.safetensors", plan, iso.initial_weights(plan))
    assert isomorph("draw", tmp_path).out == draw_svg(plan)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "png"], "E_ARGUMENT: --format is svg or mermaid, got 'png'\n"),
        (
            ["--format", "mermaidd"],
            "E_ARGUMENT: --format is svg or mermaid, got 'mermaidd'\n  did you mean mermaid?\n",
        ),
        (
            ["--attention", "--format", "mermaid"],
            "E_ARGUMENT: Mermaid cannot draw attention permissions\n"
            "  --attention with --format svg, or --format mermaid without --attention\n",
        ),
        (
            ["--length", "9"],
            "E_ARGUMENT: --length is the number of positions of --attention, which is not given\n"
            "  --size T=16 puts a number in place of a symbol\n",
        ),
        (["--attention", "--length", "65"], "E_ARGUMENT: length must be an int from 1 to 64, got 65\n"),
        (["--size", "T"], "E_ARGUMENT: --size is written as T=16, got 'T'\n"),
        (["--size", "S=1"], "E_ARGUMENT: the network has no symbol 'S'; its symbols: B, T\n"),
    ],
)
def test_refuses(isomorph, block, options, message):
    assert isomorph("draw", block, *SHAPE, *options) == (2, "", message)


def test_nothing_is_left_where_a_file_cannot_be_written(isomorph, block, tmp_path):
    out = tmp_path / "none" / "a.svg"
    assert isomorph("draw", block, *SHAPE, "-o", out) == (
        2, "", f"E_OUTPUT: cannot write {out}: No such file or directory\n  make its directory first\n",
    )  # fmt: skip
    assert not Path(tmp_path / "none").exists()


def test_no_attention(isomorph, tmp_path):
    (tmp_path / "mlp.net").write_text("linear(3)\n")
    assert isomorph("draw", tmp_path / "mlp.net", "--input", "B,4", "--attention") == (
        2, "",
        "E_ARGUMENT: the network has no attention, so there are no permissions to draw\n"
        "  without --attention, the network itself is drawn\n",
    )  # fmt: skip
