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
