"""The doors to the Flax backends: for people, and for whoever compares backends."""

import subprocess
import sys

import pytest

import isomorph as iso
from isomorph.backends import available
from isomorph.backends.linen import harness as linen_harness
from isomorph.backends.nnx import harness as nnx_harness


@pytest.mark.parametrize("door", ["nnx", "linen", "flax"])
@pytest.mark.parametrize("missing", ["jax", "flax"])
def test_without_flax_the_door_says_what_to_install(door, missing):
    script = (
        f"import sys\nsys.modules[{missing!r}] = None\nimport isomorph as iso\n"
        f"try:\n    iso.{door}\nexcept iso.IsomorphError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == (
        f'E_BACKEND: isomorph.{door} needs Flax, which is not installed\n  pip install "isomorph[flax]"\n'
    )


def test_the_doors_lead_to_the_real_framework():
    from flax import linen, nnx

    assert issubclass(iso.nnx.Network, nnx.Module)
    assert issubclass(iso.linen.Network, linen.Module)
    assert available.load("nnx") is nnx_harness
    assert available.load("linen") is linen_harness


@pytest.mark.parametrize(
    "call",
    [
        lambda: iso.nnx.build("linear(3)"),
        lambda: iso.linen.build("linear(3)"),
        lambda: iso.linen.variables("linear(3)"),
        lambda: iso.linen.weights("linear(3)", {"params": {}}),
    ],
)
def test_a_definition_in_place_of_its_plan(call):
    with pytest.raises(iso.IsomorphError) as caught:
        call()
    assert str(caught.value) == (
        "E_ARGUMENT: expected a plan, got 'linear(3)'\n"
        "  resolve the definition first: iso.resolve(text, input=...)"
    )


def test_streams_and_seeds_of_an_nnx_model():
    plan = iso.resolve("linear(3)\ndropout(0.5)", input=("B", 2))
    weights = iso.initial_weights(plan)
    for settings, message in (
        ({"rngs": 5}, "E_ARGUMENT: rngs must be an nnx.Rngs or None, got 5"),
        ({"weights": weights, "seed": "x"}, "E_ARGUMENT: seed must be an int >= 0, got 'x'"),
    ):
        with pytest.raises(iso.IsomorphError) as caught:
            iso.nnx.build(plan, **settings)
        assert str(caught.value) == message
    assert iso.nnx.build(plan, seed=2**100 + 1).plan == plan  # beyond JAX's 64 bits


def test_sparse_arrays_are_refused():
    from jax.experimental import sparse

    plan = iso.resolve("linear(3, bias=False)", input=("B", 2))
    table = sparse.BCOO.fromdense(iso.initial_weights(plan)["n0.weight"])
    with pytest.raises(
        iso.IsomorphError, match=r"^E_WEIGHTS: n0\.weight: expected a dense array, got a jax BCOO"
    ):
        iso.nnx.build(plan, {"n0.weight": table})
