"""Which backend a model belongs to."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from isomorph.errors import IsomorphError, shorten

_PACKAGES = {
    "torch": "torch",
    "flax.nnx": "nnx",
    "flax.linen": "linen",
    "isomorph.backends.torch.engine": "torch",
    "isomorph.backends.jax.engine": "jax",
}
"""Packages of the classes that a model is an instance of; prepared ones are isomorph's own."""


def part_of_backend(model: Any, part: str) -> tuple[str, Any]:
    """The name of a model's backend and its module ``part``, without loading another framework.

    Raises:
        IsomorphError: E_ARGUMENT when it is no model.
    """
    for cls in type(model).__mro__:
        for package, name in _PACKAGES.items():
            if f"{cls.__module__}.".startswith(f"{package}.") and cls.__module__ in sys.modules:
                return name, import_module(f"isomorph.backends.{name}.{part}")
    raise IsomorphError(
        "E_ARGUMENT",
        f"expected a model of PyTorch or Flax, got {shorten(type(model).__name__)}",
        hints=[
            "isomorph.torch.build(plan, weights), isomorph.nnx.build(plan, weights), or "
            "isomorph.linen.build(plan).bind(isomorph.linen.variables(plan, weights))"
        ],
    )
