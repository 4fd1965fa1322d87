"""The pages of published families: their Python runs, their definitions resolve, and they name every key.

A page joins with one line in ``PAGES``: its name, a function that saves a small random model where its blocks read
"DIR", and the families whose keys it lists. The function makes the sizes that the page's blocks replace (twelve
layers, where a block says ``range(12)``), whatever the widths; what else the blocks use (``ids``, ``images``) it
returns by name. ``iso``, ``np``, ``jax``, and ``plan`` and ``weights`` of "DIR" are there already.

Of the blocks of a page marked ``python``, one that calls ``input(`` is a definition and is resolved; one that
mentions neither ``iso`` nor ``plan`` nor ``model`` is a piece of one; all others run, in order.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers

import isomorph as iso
from isomorph.checkpoints.families import FAMILIES

DIRECTORY = Path(__file__).parents[2] / "docs" / "checkpoints"
IDS = np.array([[1, 2, 3], [4, 5, 6]])


class Page(NamedTuple):
    make: Callable[[Path], dict[str, Any]]
    families: tuple[str, ...]


def saved(directory: Path, name: str, config: Any, **arguments: Any) -> None:
    torch.manual_seed(0)
    getattr(transformers, name)(config, **arguments).save_pretrained(directory)


def gpt2(directory: Path) -> dict[str, Any]:
    config = transformers.GPT2Config(vocab_size=9, n_positions=8, n_embd=12, n_layer=12, n_head=2)
    saved(directory, "GPT2LMHeadModel", config)
    return {"ids": IDS}


def llama(directory: Path) -> dict[str, Any]:
    config = transformers.LlamaConfig(
        vocab_size=9, hidden_size=12, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=3,
        num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip
    saved(directory, "LlamaForCausalLM", config)
    return {"ids": IDS}


def bert(directory: Path) -> dict[str, Any]:
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=12, num_hidden_layers=6, num_attention_heads=3, intermediate_size=1536,
        max_position_embeddings=8,
    )  # fmt: skip
    saved(directory, "BertModel", config)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return {"ids": IDS, "mask": np.ones_like(IDS, dtype=bool), "segments": np.zeros_like(IDS)}


PAGES = {
    "gpt2": Page(gpt2, ("gpt2",)),
    "llama": Page(llama, ("llama", "mistral", "ministral", "qwen2")),
    "bert": Page(bert, ("bert",)),
}
GROWN = ("gpt2", "llama", "bert")
"""Pages whose ``wide`` network with ``grown`` weights computes what the imported one does."""


ELSEWHERE = {
    "clip": ("test_clip", "test_the_documented_ways_to_edit_and_to_run"),
    "dinov2": ("test_vision", "test_the_page_about_dinov2_runs"),
    "timm": ("test_timm", "test_the_page_runs"),
    "vit": ("test_vision", "test_the_page_about_vit_runs"),
    "whisper": ("test_whisper", "test_the_documented_ways_to_edit_and_to_run"),
}
"""Pages whose blocks a test of their family runs: all of them, for it unpacks or walks the list."""


def test_every_page_is_run():
    assert sorted([*PAGES, *ELSEWHERE]) == sorted(page.stem for page in DIRECTORY.glob("*.md"))
    for name, (module, test) in ELSEWHERE.items():
        text = (Path(__file__).parent / f"{module}.py").read_text()
        assert f"def {test}(" in text, name
        assert f'{name}.md"' in text, name


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DIRECTORY / f"{name}.md").read_text(), re.DOTALL)


def is_definition(block: str) -> bool:
    return re.search(r"^(\w+ = )?input\(", block, re.MULTILINE) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PAGES))
def test_the_blocks_of_a_page_run(name, tmp_path, monkeypatch):
    jax = pytest.importorskip("jax")
    monkeypatch.chdir(tmp_path)
    names = PAGES[name].make(Path("DIR"))
    plan, weights = iso.import_checkpoint("DIR")
    names |= {"iso": iso, "np": np, "jax": jax, "plan": plan, "weights": weights}
    found = blocks(name)
    assert any(map(is_definition, found))
    for number, block in enumerate(found, 1):
        if is_definition(block):
            iso.resolve(block, file=f"{name}.md, block {number}")
        elif re.search(r"\b(iso|plan|model)\b", block):
            exec(compile(block, f"{name}.md, block {number}", "exec"), names)
        else:
            ast.parse(block)
    if name in GROWN:
        given = {key: names[key] for key, _ in plan.inputs}
        before = iso.reference.build(plan, weights)(**given)
        after = iso.reference.build(names["wide"], names["grown"])(**given)
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", list(PAGES))
def test_a_page_names_every_key_of_its_families(name):
    text = (DIRECTORY / f"{name}.md").read_text()
    listed = set(re.findall(r"`([a-z0-9_.]+)`", text))
    for family in PAGES[name].families:
        assert sorted(FAMILIES[family].settings.keys() - listed) == [], family
        assert all(f"`{kind}`" in text or kind.endswith(("Model", "ForCausalLM"))
                   for kind in FAMILIES[family].architectures), family  # fmt: skip
