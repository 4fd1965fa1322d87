"""Running sums: what half precision must not do to them, and how few places know of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.source_code import write_python

torch = pytest.importorskip("torch")
jnp = pytest.importorskip("jax.numpy")


def ones(framework: str, count: int, dtype: str) -> Any:
    plan = iso.resolve(f'x = input("B", {count})\ncumsum()', dtype=dtype)
    if framework == "torch":
        return iso.torch.build(plan)(torch.ones(1, count, dtype=getattr(torch, dtype)))[0, -1].item()
    x = jnp.ones((1, count), dtype)
    if framework == "nnx":
        return float(iso.nnx.build(plan)(x)[0, -1])
    return float(iso.linen.build(plan).apply(iso.linen.variables(plan), x)[0, -1])


@pytest.mark.parametrize("framework", ["torch", "nnx", "linen"])
@pytest.mark.parametrize(
    ("count", "dtype", "last"),
    # 2048 + 1 and 256 + 1 are no numbers of these dtypes; 70,000 is beyond the largest of float16, 65,504.
    [(4096, "float16", 4096.0), (1000, "bfloat16", 1000.0), (70_000, "float16", float("inf"))],
)
def test_the_sum_of_ones_does_not_stall(framework, count, dtype, last):
    assert ones(framework, count, dtype) == last


def test_the_gradient_is_the_sum_of_what_follows():
    """Of sum(w * cumsum(x)) by x[i]: the sum of w from i on."""
    model = iso.torch.build(iso.resolve("cumsum()", input=("B", 4)))
    x, w = torch.zeros(1, 4, requires_grad=True), torch.tensor([1.0, 2.0, 4.0, 8.0])
    (model(x) * w).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[15, 14, 12, 8]]


@pytest.mark.parametrize("framework", ["torch", "nnx"])
def test_written_out_it_is_accumulated_in_float32(framework):
    text = write_python(iso.resolve("cumsum(1)", input=("B", 3, 4), dtype="bfloat16"), framework)
    library, cast = ("torch", "to") if framework == "torch" else ("jnp", "astype")
    assert f"x.cumsum(1, dtype={library}.float32).{cast}({library}.bfloat16)" in text


def test_of_what_came_so_far():
    plan = iso.resolve("cumsum(1)", input=("B", "T", 2))
    x = np.array([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    assert iso.reference.build(plan, {})(x).tolist() == [[[1, 2], [4, 6], [9, 12]]]
    assert iso.reference.build(plan, {})(x[:, :0]).shape == (1, 0, 2)


def test_over_the_batch_it_is_refused():
    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve("cumsum(0)", input=("B", 3))
    assert str(caught.value) == (
        "E_CONSTRAINT: dim=0 is the batch axis, which this operator leaves alone\n"
        "  <definition>:1:8\n  1 | cumsum(0)\n    |        ^\n  input x is [B, 3]\n  axes: 1, or -1"
    )


def test_a_text_that_grows_does_not_carry_sums():
    text = 'ids = input("B", "T", dtype="int64")\nembedding(9, 4)\n{}\nlinear(9)'
    with pytest.raises(iso.IsomorphError) as caught:
        iso.generate(iso.torch.build(iso.resolve(text.format("cumsum(1)"))), [1, 2], 2)
    assert "n1 (cumsum) needs all positions at once" in caught.value.message
    model = iso.torch.build(iso.resolve(text.format("cumsum()")))  # along the features
    ids = iso.generate(model, [1, 2], 3)
    for length in (2, 3, 4):
        assert int(model(torch.from_numpy(ids[None, :length]))[0, -1].argmax()) == ids[length]


def test_a_primitive_is_known_in_five_places():
    """Its entry, three backends and a line for each framework in which source is written; and its operator."""
    package = Path(iso.__file__).parent
    words = ("cumsum(", '"cumsum"')
    places = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(
            word in path.read_text().replace("np.cumsum(", "").replace(".cumsum(axis=-1)", "")
            for word in words
        )
    }
    assert places == {
        "primitives.py",
        "backends/reference/primitives.py",
        "backends/torch/primitives.py",
        "backends/jax/primitives.py",
        "source_code/torch_text.py",
        "source_code/nnx_text.py",
        "operators/shaping.py",
    }
