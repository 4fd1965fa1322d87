"""Options of JAX's compiler, which differ from version to version."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax


@lru_cache
def known_options(*wanted: tuple[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Those of some options for the CPU that this version of the compiler knows; none on another device."""
    known = []
    for option in wanted if jax.default_backend() == "cpu" else ():
        try:
            jax.jit(lambda x: x, compiler_options=dict([option])).lower(0).compile()
        except jax.errors.JaxRuntimeError:
            continue
        known.append(option)
    return tuple(known)
