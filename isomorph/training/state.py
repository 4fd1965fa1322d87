"""A checkpoint's file: a trainer's state, and the run that it is of. Whole, or known to be damaged.

It is a safetensors file. Its header holds the run as the process that stored it was given it, and a digest of
itself and of every array.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from isomorph.backends.trainer import Array
from isomorph.backends.training_config import TrainingConfig
from isomorph.errors import IsomorphError
from isomorph.paths import open_regular
from isomorph.plan import Plan
from isomorph.training.data import Fingerprint
from isomorph.writing.atomic import atomic_write

KEY = "isomorph.checkpoint"
FORMAT = 3
_READABLE = (2, 3)  # 2 did not say which data a run was given
_MOST_HEADER_BYTES = 100_000_000


class Damaged(Exception):
    """A file is not what was once written, and how that shows."""


class Run(NamedTuple):
    """What makes a run: two with equal ones end with equal weights.

    Attributes:
        plan: the network.
        config: every setting.
        data: what ``config.data`` held when the run began; None for a run of an earlier version, which did not
            look.
    """

    plan: Plan
    config: TrainingConfig
    data: Fingerprint | None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        values: dict[str, Any] = {"plan": self.plan.to_json(), "training": self.config.to_dict()}
        return values if self.data is None else {**values, "data": self.data._asdict()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Run:
        """The inverse of :meth:`to_dict`. Raises :class:`Damaged`."""
        try:
            data = values.get("data")
            return Run(
                Plan.from_json(values["plan"]),
                TrainingConfig.from_dict(values["training"]),
                None if data is None else Fingerprint(int(data["bytes"]), str(data["sha256"])),
            )
        except IsomorphError as error:
            raise Damaged(error.message) from error
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged("its plan, settings or data are incomplete") from error

    def differences(self, plan: Plan, config: TrainingConfig) -> list[str]:
        """Lines on what is another network or another setting there, in this run, than here."""
        there, here = self.config.to_dict(), config.to_dict()
        return [
            *self.plan.diff(plan),
            *(f"{n}: {there[n]!r} there, {here[n]!r} here" for n in here if here[n] != there[n]),
        ]


class Checkpoint(NamedTuple):
    """A trainer's state before step number ``step``, and the run that it is of."""

    step: int
    state: dict[str, Array]
    run: Run


def write_checkpoint(path: Path, step: int, state: Mapping[str, Array], run: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically.

    Args:
        path: the file.
        step: steps taken.
        state: a trainer's.
        run: :meth:`Run.to_dict` of the run that this process was given.

    Raises:
        OSError: it cannot be written.
    """
    import numpy as np
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in state.items()}
    header = {"format": FORMAT, "step": step, **run}
    # One entry, since the package writes several in no fixed order: equal states give equal bytes.
    metadata = {KEY: json.dumps({**header, "digest": state_digest(header, arrays)})}
    atomic_write(path, save(arrays, metadata))


def read_checkpoint(path: Path) -> Checkpoint:
    """What :func:`write_checkpoint` wrote.

    Raises:
        Damaged: the file is not whole, or its content has not the digest that it was saved with.
        IsomorphError: E_CHECKPOINT for a sound file of a format that this version does not read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        open_regular(path).close()  # else the package would wait for a pipe
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(KEY, "{}"))
            digest, step = header.pop("digest"), header["step"]
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except KeyError:
        raise Damaged(f"{path} is damaged: it holds no run's state") from None
    except (SafetensorError, OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: {getattr(error, 'strerror', None) or error}") from error
    if digest != state_digest(header, state):
        raise Damaged(f"{path} was altered: its content has not the digest it was saved with")
    if header.get("format") not in _READABLE:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{path} has the format {header.get('format')}; this version reads {_READABLE[0]} to {FORMAT}",
            hints=["resume with the version that wrote it, or start anew with --force"],
        )
    return Checkpoint(step, state, Run.from_dict(header))


def state_digest(header: Mapping[str, Any], state: Mapping[str, Array]) -> str:
    """SHA-256 of a checkpoint's header and of every array's name, dtype, shape and bytes, in order of names."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(state):
        array = state[name]
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        digest.update(array.reshape(-1).view("uint8").data)
    return digest.hexdigest()


def is_checkpoint(path: Path) -> bool:
    """Whether a file begins as a checkpoint does, however it goes on."""
    try:
        with open_regular(path) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length)) if length <= _MOST_HEADER_BYTES else {}
        return KEY in header["__metadata__"]
    except (OSError, ValueError, LookupError, TypeError, struct.error, RecursionError):
        return False
