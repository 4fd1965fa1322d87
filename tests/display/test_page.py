"""Documentation pages: the facts that transformer_block's page must state, and every page's form."""

from __future__ import annotations

import re

import pytest

import isomorph as iso
from isomorph.display.page import catalogue_page, operator_page
from isomorph.operators import catalogue

ARGUMENTS = {
    "`heads` (positional)": ("int", "required", ">= 1"),
    "`mlp_ratio`": ("int", "`4`", ">= 1"),
    "`activation`": ("str", '`"gelu"`', "one of `gelu`, `gelu_tanh`, `relu`, `silu`, `quick_gelu`"),
    "`norm`": ("str", '`"layer_norm"`', "one of `layer_norm`, `rms_norm`"),
    "`causal`": ("bool", "`False`", "—"),
    "`dropout`": ("float", "`0.0`", ">= 0; < 1"),
    "`layer_scale`": ("bool", "`False`", "—"),
    "`layer_scale_init`": ("float", "`1e-05`", ">= 0"),
    "`eps`": ("float", "`1e-05`", "> 0"),
}
PORTS = [
    ("`x`", "input", "`x[B, T, D]`", "compute"),
    ("`out`", "output", "`out[B, T, D]`", "compute"),
]
PARAMETER_ROWS = {
    "`norm1.weight`, `norm1.bias`": "`[D]`",
    "`attn.{q,k,v,o}_proj.weight`": "`[D, D]`",
    "`attn.{q,k,v,o}_proj.bias`": "`[D]`",
    "`norm2.weight`, `norm2.bias`": "`[D]`",
    "`ffn.up.weight`, `ffn.up.bias`": "`[hidden, D]`, `[hidden]`",
    "`ffn.down.weight`, `ffn.down.bias`": "`[D, hidden]`, `[D]`",
    "`gamma1`, `gamma2`": "`[D]`",
}
RECIPES = {
    "GPT-2": '`transformer_block(heads, activation="gelu_tanh", causal=True)`',
    "ViT": "`transformer_block(heads)`",
    "LLaMA": '`transformer_block(heads, norm="rms_norm", causal=True)`',
    "CaiT": "`transformer_block(heads, layer_scale=True)`",
}
EXAMPLES = [
    """```python
transformer_block(4)
```

Input ['B', 8, 32] → output ['B', 8, 32].

```text
Network: [B, 8, 32] -> [B, 8, 32]  dtype=float32
index  name  operation          input shapes  output shapes
0      n0    transformer_block  x=[B, 8, 32]  out=[B, 8, 32]

Parameters: 12,704
```""",
    """```python
transformer_block(2, causal=True, norm="rms_norm")
transformer_block(2, causal=True, norm="rms_norm")
```

Input ['B', 6, 16] → output ['B', 6, 16].

```text
Network: [B, 6, 16] -> [B, 6, 16]  dtype=float32
index  name  operation          input shapes  output shapes
0      n0    transformer_block  x=[B, 6, 16]  out=[B, 6, 16]
1      n1    transformer_block  x=[B, 6, 16]  out=[B, 6, 16]

Parameters: 6,496
```""",
    """```python
linear(16)
transformer_block(2, mlp_ratio=2, layer_scale=True)
linear()
```

Input ['B', 6, 8] → output ['B', 6, 8].

```text
Network: [B, 6, 8] -> [B, 6, 8]  dtype=float32
index  name  operation          input shapes  output shapes
0      n0    linear             x=[B, 6, 8]   out=[B, 6, 16]
1      n1    transformer_block  x=[B, 6, 16]  out=[B, 6, 16]
2      n2    linear             x=[B, 6, 16]  out=[B, 6, 8]

Parameters: 2,536
```""",
]


def tables(text: str) -> list[list[tuple[str, ...]]]:
    """Every Markdown table of a text: its rows as cells, without the ruler."""
    found: list[list[tuple[str, ...]]] = [[]]
    for line in text.splitlines():
        if line.startswith("| "):
            cells = tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            if set(cells) != {"---"}:
                found[-1].append(cells)
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


@pytest.fixture(scope="module")
def page() -> str:
    return operator_page(catalogue.all_operators()["transformer_block"])


def test_sections_of_transformer_block(page):
    lines = page.splitlines()
    assert lines[:5] == [
        "# `transformer_block`",
        "",
        "Pre-norm transformer block: residual self-attention followed by a residual feed-forward.",
        "",
        "Category: sequence · Identity: transformer_block@1",
    ]
    assert [line for line in lines if line.startswith("##")] == [
        "## Shape",
        "## Arguments",
        "## Description",
        "## Examples",
        "### Example 1",
        "### Example 2",
        "### Example 3",
    ]
    assert "```text\nx[B, T, D] -> out[B, T, D]\n```" in page


def test_tables_of_transformer_block(page):
    ports, arguments, parameters, recipes = tables(page)[:4]
    assert ports == [("Port", "Direction", "Pattern", "dtype"), *PORTS]
    assert arguments[0] == ("Name", "Type", "Default", "Constraints", "Description")
    assert {row[0]: row[1:4] for row in arguments[1:]} == ARGUMENTS
    assert [row[0] for row in arguments[1:]] == list(ARGUMENTS)
    assert all(row[4] for row in arguments)
    assert parameters[0] == ("Path", "Shape")
    assert list(dict(parameters[1:])) == list(PARAMETER_ROWS)
    for path, shape in parameters[1:]:
        assert shape.startswith(PARAMETER_ROWS[path])
    for row, (recipe, call) in zip(recipes[1:], RECIPES.items(), strict=True):
        assert row[0].startswith(recipe)
        assert row[1] == call


@pytest.mark.parametrize("number", [1, 2, 3])
def test_examples_of_transformer_block(page, number):
    text = page.split(f"### Example {number}\n")[1].split("\n### ")[0]
    assert text.strip().endswith(EXAMPLES[number - 1])


@pytest.mark.parametrize("name", catalogue.all_operators())
def test_every_page_is_whole(name):
    operator = catalogue.all_operators()[name]
    text = operator_page(operator)
    assert text.startswith(f"# `{name}`\n\n")
    assert text.count("\nParameters: ") == len(operator.examples) >= 1
    ports = tables(text)[0]
    assert len(ports) == 1 + len(operator.signature.inputs) + len(operator.signature.outputs)
    if operator.arguments:
        rows = tables(text.split("## Arguments")[1])[0]
        assert len(rows) == 1 + len(operator.arguments)
        assert all(len(row) == 5 and all(row) for row in rows)
    else:
        assert "## Arguments\n\nNone.\n" in text


def test_marks_of_ports_and_defaults():
    attention = operator_page(catalogue.all_operators()["attention"])
    assert "| `mask` | input (optional) | `mask[B, T]` | bool |" in attention
    assert "Input x=['B', 'T', 8], m=['B', 'T'] → output ['B', 'T', 8]." in attention
    concat = operator_page(catalogue.all_operators()["concat"])
    assert "| `x` | input (two or more) | `x[B, ...]` | compute |" in concat
    linear = operator_page(catalogue.all_operators()["linear"])
    assert "| `out_features` (positional) | int | inferred | >= 1 |" in linear


def test_the_catalogue_lists_every_operator_once():
    text = catalogue_page()
    links = re.findall(r"\[`(\w+)`\]\((\w+)\.md\)", text)
    assert sorted(name for name, _ in links) == list(catalogue.all_operators())
    assert all(name == file for name, file in links)
    assert "| [`cls_token`](cls_token.md) | `x[B, T, D] -> out[B, T+1, D]` |" in text


def test_a_page_of_an_outside_operator():
    @iso.operator("page_test_double", shape="x[B, ...] -> out[B, ...]", category="testing", version=3)
    class Double(iso.Operator):
        """Twice the input | no less."""

        times: int = iso.argument(2, choices=(2, 4), doc="a | b")
        examples = (iso.Example("Twice.", "page_test_double()", ("B", 2)),)

        def forward(self, m, F, x):
            return x * self.times

    try:
        text = operator_page(Double)
    finally:
        del catalogue.declared["page_test_double"]
    assert "Category: testing · Identity: page_test_double@3" in text
    assert "| `times` | int | `2` | one of `2`, `4` | a \\| b |" in text
    assert "## Description" not in text
