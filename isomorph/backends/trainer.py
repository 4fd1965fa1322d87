"""What a framework does for the training loop.

The loop knows no framework: it decides which examples, which learning rate and when to save. A trainer, the class
``Trainer`` of a backend's module ``training``, holds parameters and optimizer state, and takes one step when told.
Every backend's trainer takes the same steps:

    g        = gradient of (sum of the cross entropies of all parts / number of targets not ignored)
    g        = g * min(1, clip / |g|)                          # |g| over all trained parameters
    m        = beta1 * m + (1 - beta1) * g
    v        = beta2 * v + (1 - beta2) * g * g
    p        = p - rate * weight_decay * p                     # rank >= 2 alone
    p        = p - rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

which is AdamW (Loshchilov and Hutter, 2017) after clipping by the global norm, t counting steps from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from isomorph.backends.training_config import TrainingConfig
from isomorph.errors import IsomorphError
from isomorph.plan import Parameter, Plan

Array = np.ndarray[Any, Any]

WEIGHTS, FIRST, SECOND = "weights/", "first_moment/", "second_moment/"
"""Prefixes of the entries of :meth:`Trainer.state`; a parameter's path follows."""
IGNORED = -100
"""A target that is not predicted: padding."""


class Batch(NamedTuple):
    """Inputs by name, and int64 targets: a class per example ``[B]`` or per position ``[B, T]``."""

    inputs: dict[str, Array]
    targets: Array

    def parts(self, count: int) -> list[Batch]:
        """The batch cut into ``count`` parts of equal size."""
        size = len(self.targets) // count
        return [
            Batch(
                {name: array[start : start + size] for name, array in self.inputs.items()},
                self.targets[start : start + size],
            )
            for start in range(0, size * count, size)
        ]


@dataclass(frozen=True)
class Totals:
    """Sums over predictions, so that unequal batches add up rightly; ignored targets are not counted.

    Attributes:
        loss: sum of cross entropies in nats.
        correct: predictions whose best-scored class is the target.
        count: predictions.
    """

    loss: float = 0.0
    correct: int = 0
    count: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.loss + other.loss, self.correct + other.correct, self.count + other.count)

    @property
    def mean_loss(self) -> float:
        """Nats per prediction; 0 when nothing was predicted."""
        return self.loss / self.count if self.count else 0.0

    @property
    def accuracy(self) -> float:
        """Share of correct predictions; 0 when nothing was predicted."""
        return self.correct / self.count if self.count else 0.0


class StepResult(NamedTuple):
    """Loss and hits of a step's batch before the step, and the gradient's norm before clipping."""

    totals: Totals
    gradient_norm: float


class Trainer(Protocol):
    """A network in training. Made with ``Trainer(plan, weights, config)``."""

    def step(self, step: int, parts: Sequence[Batch], learning_rate: float) -> StepResult:
        """Take step number ``step`` (from 0) on a batch given in parts of equal size.

        The loss is the mean over all targets that are not ignored, in all parts together; without any it is
        0, with zero gradient. Dropout draws from a generator keyed by (seed, step), so it need not be saved.
        """
        ...

    def evaluate(self, batch: Batch) -> Totals:
        """Loss and hits without training: no dropout, no gradient."""
        ...

    def weights(self) -> dict[str, Array]:
        """All parameters by path in the plan's dtype; copies."""
        ...

    def state(self) -> dict[str, Array]:
        """Everything that the next step depends on, but for its number and batch; copies."""
        ...

    def load_state(self, state: Mapping[str, Array], step: int) -> None:
        """Continue from :meth:`state`, as it was before step number ``step``."""
        ...


class TrainerFactory(Protocol):
    """How a backend's class ``Trainer`` is called."""

    def __call__(self, plan: Plan, weights: Mapping[str, Array], config: TrainingConfig) -> Trainer: ...


def trained_parameters(plan: Plan) -> list[Parameter]:
    """The parameters that steps change, in order; a tied one once, a frozen one not at all."""
    parameters = [parameter for parameter in plan.parameters if parameter.trainable]
    if not parameters:
        raise IsomorphError(
            "E_ARGUMENT",
            "there is nothing to train: the network has no parameters, or all are frozen",
            hints=["trainable=False freezes an operator's parameters"],
        )
    return parameters


def is_decayed(parameter: Parameter) -> bool:
    """Whether weight decay acts on it: matrices, tables and kernels, but no biases, gains or scales."""
    return len(parameter.shape) >= 2


def compute_dtype(plan: Plan, config: TrainingConfig) -> str:
    """What activations are computed in: float32, float64 or bfloat16. Parameters of the last are float32.

    Raises:
        IsomorphError: E_DTYPE for a float16 plan, and for a float64 plan with the precision bf16.
    """
    if plan.dtype == "float16":
        raise IsomorphError(
            "E_DTYPE",
            "training in float16 needs a scaled loss, which is not offered",
            hints=["resolve the definition with bfloat16 or float32"],
        )
    if config.precision != "bf16":
        return plan.dtype
    if plan.dtype == "float64":
        raise IsomorphError(
            "E_DTYPE",
            "the precision bf16 computes in bfloat16, but the definition is resolved with float64",
            hints=["resolve the definition with float32, or leave the precision at float32"],
        )
    return "bfloat16"


def step_key(seed: int, step: int, words: int = 2) -> Array:
    """32-bit words that are different for every (seed, step), for practical purposes."""
    return np.random.SeedSequence([seed, step]).generate_state(words, np.uint32)


def check_state(plan: Plan, state: Mapping[str, Array]) -> None:
    """E_CHECKPOINT unless a state has exactly the entries of the plan, listing every one that does not fit."""
    wanted = {WEIGHTS + p.path: p.shape for p in plan.parameters}
    for parameter in trained_parameters(plan):
        wanted[FIRST + parameter.path] = wanted[SECOND + parameter.path] = parameter.shape
    shapes = {name: tuple(array.shape) for name, array in state.items()}
    if shapes != wanted:
        names = sorted(n for n in wanted.keys() | shapes.keys() if wanted.get(n) != shapes.get(n))
        raise IsomorphError(
            "E_CHECKPOINT",
            f"the checkpoint does not fit the plan in {len(names)} entries",
            hints=[f"{n}: expected {wanted.get(n, 'none')}, got {shapes.get(n, 'none')}" for n in names],
        )
