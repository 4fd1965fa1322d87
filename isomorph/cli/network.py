"""What every verb's FILE may be, and how contracts are written on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isomorph.errors import IsomorphError, shorten
from isomorph.paths import path_text
from isomorph.plan import Plan

Contracts = tuple[list[str] | None, list[str] | None, str | None, list[str] | None]
"""``--input``, ``--output``, ``--dtype`` and ``--input-dtype`` as given."""


class NetworkFile(NamedTuple):
    """A resolved definition, or a saved model with its weights."""

    plan: Plan
    weights: dict[str, Any] | None


def open_network(file: str, contracts: Contracts = (None, None, None, None)) -> NetworkFile:
    """Resolve a definition, or load a saved model.

    Args:
        file: a definition's path, ``-`` for standard input, a ``.safetensors`` file, or a run's directory.
        contracts: what the definition leaves open.

    Raises:
        IsomorphError: of the definition or the model; E_ARGUMENT for contracts that cannot be read, or that
            are given for a saved model, which has its own.
    """
    path, model = Path(path_text(file, "FILE")), model_file(file)
    if model.suffix == ".safetensors":
        if model != path and not os.path.exists(model):
            raise _no_model(path)
        if any(contracts):
            raise IsomorphError(
                "E_ARGUMENT",
                f"{model} is a saved model, whose contracts and dtype are in it",
                hints=["leave out --input, --output, --dtype and --input-dtype"],
            )
        return NetworkFile(*_loaded(model))
    if file != "-" and path.suffix != ".net" and not os.path.lexists(path):
        raise IsomorphError(
            "E_ARGUMENT",
            f"there is no file or directory {path}",
            hints=["give a definition (.net), a saved model (.safetensors), or the directory of a run"],
        )
    from isomorph.plan.resolve import resolve, resolve_file

    inputs, outputs, dtype, input_dtypes = contracts
    arguments: dict[str, Any] = {
        "input": read_named("--input", inputs, read_shape),
        "output": read_named("--output", outputs, read_shape),
        "input_dtype": read_named("--input-dtype", input_dtypes, str),
    }
    if dtype is not None:
        arguments["dtype"] = dtype
    try:
        if file == "-":
            return NetworkFile(resolve(sys.stdin.buffer.read(), file="<stdin>", **arguments), None)
        return NetworkFile(resolve_file(file, **arguments), None)
    except IsomorphError as error:
        if (error.code, error.message) != ("E_BINDING", "no input is declared"):
            raise
        hint = '--input B,8,32, or begin the definition with input("B", 8, 32)'  # as one says it here
        raise IsomorphError(error.code, error.message, error.location, [hint]) from None


def model_file(file: str) -> Path:
    """The file of a FILE: itself, or the model in a directory, whether there is one or not."""
    return Path(file, "model.safetensors") if os.path.isdir(file) else Path(file)


def inputs_of(file: str) -> tuple[str | int, ...]:
    """What a verb reads for its FILE, which no result may overwrite: paths, and 0 for standard input."""
    return (0,) if file == "-" else (str(model_file(file)),)


def _loaded(model: Path) -> tuple[Plan, dict[str, Any]]:
    from isomorph.weights.file import load

    try:
        return load(model)
    except IsomorphError as error:
        if (
            error.code == "E_CHECKPOINT"
            and error.message.endswith("holds arrays but no plan")
            and _is_published(model.parent)
        ):
            raise _not_imported(model.parent) from error
        raise


def _is_published(directory: Path) -> bool:
    from isomorph.training.checkpoint import settings_of

    return os.path.isfile(directory / "config.json") and not settings_of(directory)


def _not_imported(directory: Path) -> IsomorphError:
    return IsomorphError(
        "E_ARGUMENT",
        f"{directory} holds a published checkpoint, which has a config.json and no plan",
        hints=[f"import it first: isomorph import {directory} -o model.safetensors"],
    )


def _no_model(directory: Path) -> IsomorphError:
    """What a directory without a model is: a published checkpoint, an unfinished run, or none."""
    from isomorph.training.checkpoint import RunDirectory, settings_of

    if settings_of(directory):
        steps = next((path.stem.partition("-")[2] for path in RunDirectory(directory).checkpoints()), "0")
        return IsomorphError(
            "E_CHECKPOINT",
            f"{directory} holds an unfinished run, saved after step {int(steps):,}, and no model yet",
            hints=[
                f"isomorph train with --resume continues it; its network is {directory / 'definition.net'}"
            ],
        )
    if _is_published(directory):
        return _not_imported(directory)
    return IsomorphError(
        "E_CHECKPOINT",
        f"{directory} is a directory without a model.safetensors",
        hints=["give a definition (.net), a saved model, or the directory of a finished run"],
    )


def read_named(option: str, values: Sequence[str] | None, read: Callable[[str], Any]) -> Any:
    """One value, or a dictionary of ``name=value``; None when there is none.

    Raises:
        IsomorphError: E_ARGUMENT when several are given and not all are named, or a name comes twice.
    """
    if not values:
        return None
    if len(values) == 1 and "=" not in values[0]:
        return read(values[0])
    by_name: dict[str, Any] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not equals or name.strip() in by_name:
            problem = (
                "is given twice for one name" if equals else "is given several times, so each needs a name"
            )
            raise IsomorphError(
                "E_ARGUMENT", f"{option} {problem}, got {shorten(value)}", hints=[f"{option} NAME=..."]
            )
        by_name[name.strip()] = read(rest)
    return by_name


def read_shape(text: str) -> tuple[int | str, ...]:
    """``"B,8,32"`` as ``("B", 8, 32)``, with or without brackets; E_ARGUMENT when a size is missing."""
    sizes = [part.strip() for part in text.strip().strip("[]()").split(",")]
    if not all(sizes):
        raise IsomorphError(
            "E_ARGUMENT", f"a shape is written as B,8,32, got {shorten(text)}", hints=["sizes between commas"]
        )
    return tuple(int(part) if part.isdecimal() and len(part) <= 18 else part for part in sizes)


def read_sizes(values: Sequence[str] | None) -> dict[str, int]:
    """``["B=2", "T=16"]`` as ``{"B": 2, "T": 16}``; E_ARGUMENT for anything else."""
    sizes = {}
    for value in values or ():
        name, _, size = value.partition("=")
        if not name.strip() or not size.strip().isdecimal():
            raise IsomorphError("E_ARGUMENT", f"--size is written as T=16, got {shorten(value)}")
        if len(size.strip()) > 18:
            raise IsomorphError(
                "E_ARGUMENT", f"--size {name.strip()} has at most 18 digits, got {shorten(value)}"
            )
        sizes[name.strip()] = int(size)
    return sizes
