"""Write a transformer once; every shape is worked out before anything is allocated; then the same
network is a PyTorch module, a Flax NNX module or a Flax Linen module.

This module loads nothing until a name is used; a framework is loaded by the door that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isomorph import ops as ops
    from isomorph.backends.prepare import prepare as prepare
    from isomorph.checkpoints.exporting import export_checkpoint as export_checkpoint
    from isomorph.checkpoints.generation import generation_settings as generation_settings
    from isomorph.checkpoints.importing import import_checkpoint as import_checkpoint
    from isomorph.errors import IsomorphError as IsomorphError
    from isomorph.generation.generate import generate as generate
    from isomorph.generation.generate import stream as stream
    from isomorph.generation.settings import GenerationSettings as GenerationSettings
    from isomorph.operators.declare import INFERRED as INFERRED
    from isomorph.operators.declare import Conflict as Conflict
    from isomorph.operators.declare import Example as Example
    from isomorph.operators.declare import Operator as Operator
    from isomorph.operators.declare import Parameter as Parameter
    from isomorph.operators.declare import argument as argument
    from isomorph.operators.declare import operator as operator
    from isomorph.plan import Plan as Plan
    from isomorph.plan.resolve import resolve as resolve
    from isomorph.plan.resolve import resolve_file as resolve_file
    from isomorph.plan.resolve import resolve_function as resolve_function
    from isomorph.weights.file import load as load
    from isomorph.weights.file import save as save
    from isomorph.weights.initial import initial_weights as initial_weights

__version__ = "0.1.0"

_HOMES = {
    "IsomorphError": "isomorph.errors",
    "Plan": "isomorph.plan",
    "INFERRED": "isomorph.operators.declare",
    "Conflict": "isomorph.operators.declare",
    "Example": "isomorph.operators.declare",
    "Operator": "isomorph.operators.declare",
    "Parameter": "isomorph.operators.declare",
    "argument": "isomorph.operators.declare",
    "operator": "isomorph.operators.declare",
    "export_checkpoint": "isomorph.checkpoints.exporting",
    "import_checkpoint": "isomorph.checkpoints.importing",
    "generate": "isomorph.generation.generate",
    "generation_settings": "isomorph.checkpoints.generation",
    "GenerationSettings": "isomorph.generation.settings",
    "prepare": "isomorph.backends.prepare",
    "stream": "isomorph.generation.generate",
    "resolve": "isomorph.plan.resolve",
    "resolve_file": "isomorph.plan.resolve",
    "resolve_function": "isomorph.plan.resolve",
    "initial_weights": "isomorph.weights.initial",
    "load": "isomorph.weights.file",
    "save": "isomorph.weights.file",
}
_MODULES = frozenset({"ops", "torch", "nnx", "linen", "flax", "reference", "testing"})

__all__ = [  # checked against _HOMES by a test
    "INFERRED",
    "Conflict",
    "Example",
    "GenerationSettings",
    "IsomorphError",
    "Operator",
    "Parameter",
    "Plan",
    "argument",
    "export_checkpoint",
    "generate",
    "generation_settings",
    "import_checkpoint",
    "initial_weights",
    "load",
    "operator",
    "ops",
    "prepare",
    "resolve",
    "resolve_file",
    "resolve_function",
    "save",
    "stream",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        from isomorph.errors import IsomorphError, MissingAttributeError

        try:
            return importlib.import_module(f"isomorph.{name}")
        except IsomorphError as error:  # its framework is not installed
            raise MissingAttributeError(error.code, error.message, error.location, error.hints) from None
    raise AttributeError(f"module 'isomorph' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
