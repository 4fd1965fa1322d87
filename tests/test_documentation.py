"""What the documentation shows is what happens: its Python runs, its tables and errors are the real ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.testing import check_operator

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    python = blocks(README, "python")
    exec(python[0], names)
    assert str(names["plan"]) == blocks(README, "text")[0].strip()
    exec(python[1], names)
    listed = re.search(r"# (\['.*'\])", python[1])
    assert listed is not None
    assert str(list(names["model"].state_dict())[:4]) == listed[1]
    assert (tmp_path / "model.safetensors").exists()
    pytest.importorskip("flax")
    exec(python[2], names)
    expected = iso.reference.build(names["plan"], names["weights"])(np.ones((4, 6, 8)))
    np.testing.assert_allclose(names["y"], expected, rtol=0, atol=1e-5)


def test_the_readme_shows_the_real_error() -> None:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve("relu()\ntransformer_block(3)", input=("B", 8, 32), file="encoder.net")
    assert str(caught.value) == blocks(README, "text")[1].strip()


def test_the_language_page_resolves() -> None:
    text, function = blocks((ROOT / "docs" / "language.md").read_text(), "python")
    assert [node.name for node in iso.resolve(text).nodes] == [
        "n0",
        "block0",
        "block1",
        "n3",
        "n4",
        "n5",
        "n6",
    ]
    names: dict[str, Any] = {"iso": iso}
    exec(function, names)
    plan = names["plan"]
    assert iso.resolve(plan.definition) == plan


def test_the_generation_page_runs_and_shows_the_real_error() -> None:
    pytest.importorskip("torch")
    page = (ROOT / "docs" / "generation.md").read_text()
    exec(blocks(page, "python")[0], {})
    plan = iso.resolve("embedding(4, 4)\nattention(2)\nlinear(4)", input=("B", "T"), input_dtype="int64")
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(iso.torch.build(plan), [1], 1)
    assert str(caught.value).splitlines()[0] == blocks(page, "text")[0].strip()


def test_the_onnx_file_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torch", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    page = (ROOT / "docs" / "exporting.md").read_text()
    (code,) = [block for block in blocks(page, "python") if "export_onnx(" in block]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["scores"].shape == (1, len("To be, or"), 256)
    (shown,) = [block for block in blocks(page, "text") if "model.onnx" in block]
    # The same lines, but for what the processor makes of the last places.
    assert re.findall(r"allowed (\S+) at (.*)", shown) == [
        (f"{one.bound:.3g}", ", ".join(f"{symbol}={size}" for symbol, size in one.sizes.items()))
        for one in names["written"].comparisons
    ]


def test_the_operator_that_the_documentation_adds() -> None:
    names: dict[str, Any] = {}
    exec(blocks((ROOT / "docs" / "extending.md").read_text(), "python")[0], names)
    from isomorph.operators import catalogue

    try:
        check_operator(names["MLPMixer"])
    finally:
        catalogue.declared.pop("mlp_mixer")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), f"{page} links to {target}"
