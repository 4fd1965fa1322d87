"""Every hyperparameter of a training run, stated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from isomorph.errors import IsomorphError, did_you_mean, shorten

PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True)
class TrainingConfig:
    """A run's settings. Two runs with equal settings, on one machine, end with equal weights.

    Attributes:
        data: ``digits``, ``text:FILE``, ``text:pydoc`` or ``npz:FILE``.
        steps: optimizer steps.
        batch_size: examples per step.
        accumulate: parts into which a step's batch is cut, to bound memory; must divide ``batch_size``.
        learning_rate: the peak, reached after ``warmup`` steps.
        final_learning_rate: where the cosine ends, as a fraction of the peak.
        warmup: steps of linear rise.
        weight_decay: decoupled (Loshchilov and Hutter, 2017), on parameters of rank 2 and more alone; each
            step takes off ``learning_rate * weight_decay`` of them.
        beta1, beta2, epsilon: Adam's.
        clip: largest global norm of the gradient; 0 for no clipping.
        precision: ``float32``, or ``bf16`` for activations in bfloat16 with float32 parameters.
        seed: of initial weights, order of examples, and dropout.
        validation: fraction of the training examples held out to watch progress; 0 for none.
        length: tokens per example of text; 0 for the plan's own length or bound, at most 256.
        evaluate_every, checkpoint_every: in steps.
        backend: who computes: ``torch`` or ``nnx``.
        device: where, in the backend's words.
        threads: on the CPU: torch's of the whole process, or 1 for the products of nnx; 0 leaves the
            backend's own choice. Small networks gain nothing from a second one, and lose much where other
            processes compute too.
    """

    data: str
    steps: int = 1200
    batch_size: int = 64
    accumulate: int = 1
    learning_rate: float = 2e-3
    final_learning_rate: float = 0.01
    warmup: int = 100
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    clip: float = 1.0
    precision: str = "float32"
    seed: int = 0
    validation: float = 0.1
    length: int = 0
    evaluate_every: int = 100
    checkpoint_every: int = 250
    backend: str = "torch"
    device: str = "cpu"
    threads: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            kind = _KINDS[str(field.type)]
            value = getattr(self, field.name)
            if kind is float and type(value) is int:
                value = float(value)
                object.__setattr__(self, field.name, value)
            if type(value) is not kind:
                raise _refusal(field.name, f"must be {kind.__name__}", value)
        for name, (low, high, closed) in _RANGES.items():
            value = getattr(self, name)
            if not (low <= value and (high is None or value < high or (closed and value == high))):
                upper = "" if high is None else f" and {'<=' if closed else '<'} {high:g}"
                raise _refusal(name, f"must be >= {low:g}{upper}", value)
        for name in ("learning_rate", "epsilon"):
            if not 0 < getattr(self, name) < float("inf"):
                raise _refusal(name, "must be > 0", getattr(self, name))
        if self.precision not in PRECISIONS:
            raise _refusal("precision", f"must be one of {', '.join(PRECISIONS)}", self.precision)
        if self.batch_size % self.accumulate:
            raise _refusal("accumulate", f"must divide batch_size={self.batch_size}", self.accumulate)

    def to_dict(self) -> dict[str, Any]:
        """All settings by name, as plain values."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> TrainingConfig:
        """The inverse of :meth:`to_dict`; settings left out have their defaults. E_ARGUMENT otherwise."""
        if not isinstance(values, Mapping):
            raise IsomorphError(
                "E_ARGUMENT", f"training settings are a mapping by name, got {shorten(type(values).__name__)}"
            )
        known = [field.name for field in fields(TrainingConfig)]
        for name in values:
            if name not in known:
                raise IsomorphError(
                    "E_ARGUMENT",
                    f"there is no training setting {shorten(name)}",
                    hints=did_you_mean(name, known) or [f"settings: {', '.join(known)}"],
                )
        if "data" not in values:
            raise IsomorphError("E_ARGUMENT", "training setting data is missing, which has no default")
        return TrainingConfig(**values)


_KINDS = {"str": str, "int": int, "float": float}
_RANGES: dict[str, tuple[float, float | None, bool]] = {
    "steps": (1, None, False),
    "batch_size": (1, None, False),
    "accumulate": (1, None, False),
    "final_learning_rate": (0, 1, True),
    "warmup": (0, None, False),
    "weight_decay": (0, None, False),
    "beta1": (0, 1, False),
    "beta2": (0, 1, False),
    "clip": (0, None, False),
    "seed": (0, 2**63, False),
    "validation": (0, 1, False),
    "length": (0, None, False),
    "threads": (0, 1025, False),
    "evaluate_every": (1, None, False),
    "checkpoint_every": (1, None, False),
}


def _refusal(name: str, expected: str, value: Any) -> IsomorphError:
    return IsomorphError("E_ARGUMENT", f"training setting {name} {expected}, got {shorten(value)}")
