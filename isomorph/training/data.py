"""Examples to train on: which there are, how they are split, and in which order they come.

A dataset is opened for a plan and checked against its contracts before anything is computed. The order of
examples is a function of (seed, epoch) alone, so a resumed run needs nothing but its step number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from isomorph.backends.trainer import IGNORED, Array, Batch
from isomorph.dimensions import Affine, evaluate, show_shape, symbols_of
from isomorph.errors import IsomorphError
from isomorph.plan import Plan


class Fingerprint(NamedTuple):
    """By which data are known again: the length and the SHA-256 of a file's bytes, or of a built-in set's content."""

    bytes: int
    sha256: str

    @staticmethod
    def of(content: bytes | memoryview) -> Fingerprint:
        """Of bytes in memory: those that are trained on, not those that a file may hold later."""
        return Fingerprint(len(content), hashlib.sha256(content).hexdigest())

    def __str__(self) -> str:
        return f"{self.bytes:,} bytes with SHA-256 {self.sha256[:16]}..."


class Dataset(Protocol):
    """Examples in three splits; a missing split counts 0.

    Attributes:
        title: a few words for people.
        unit: what one prediction is called: ``image``, ``byte``, ``example``.
        fingerprint: of everything that the examples were made from.
    """

    title: str
    unit: str
    fingerprint: Fingerprint

    def count(self, split: str) -> int:
        """Examples in a split."""
        ...

    def take(self, split: str, indices: Array, epochs: Array) -> Batch:
        """The examples at these indices, as they are seen in these epochs."""
        ...


class Order:
    """The order of a dataset's training examples: a new permutation in every epoch, for ever.

    A batch may span the end of an epoch, so that all batches have one size and no example is left out.
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self._kept: dict[int, Array] = {}

    def permutation(self, epoch: int) -> Array:
        """The order of one epoch, from NumPy's Philox generator keyed by (seed, epoch)."""
        permutation = self._kept.get(epoch)
        if permutation is None:
            key = np.array([self.seed, epoch], dtype=np.uint64)
            permutation = np.random.Generator(np.random.Philox(key=key)).permutation(self.count)
            self._kept = {number: order for number, order in self._kept.items() if number == epoch - 1}
            self._kept[epoch] = permutation
        return permutation

    def places(self, start: int, size: int) -> tuple[Array, Array]:
        """Indices and epochs of the examples ``start .. start + size - 1`` of the endless sequence."""
        positions = np.arange(start, start + size)
        epochs = positions // self.count
        within = positions % self.count
        indices = np.empty(size, dtype=np.int64)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            indices[chosen] = self.permutation(int(epoch))[within[chosen]]
        return indices, epochs


def evaluation_batches(dataset: Dataset, split: str, size: int) -> Iterator[Batch]:
    """All examples of a split in order; the last batch may be smaller."""
    count = dataset.count(split)
    for start in range(0, count, size):
        indices = np.arange(start, min(start + size, count))
        yield dataset.take(split, indices, np.zeros_like(indices))


def score_shape(plan: Plan) -> tuple[Any, ...]:
    """The shape of the plan's one output, whose last axis scores classes.

    Raises:
        IsomorphError: E_CONSTRAINT when it has several outputs, or one that cannot be scores.
    """
    shapes = {name: plan.values[value].shape for name, value in plan.outputs}
    if len(shapes) != 1:
        raise IsomorphError(
            "E_CONSTRAINT",
            f"training needs a network with one output, a score for every class; "
            f"this one has {len(shapes)}: {', '.join(shapes)}",
            hints=['give it one, as in output("B", 10)'],
        )
    (shape,) = shapes.values()
    if len(shape) not in (2, 3) or type(shape[-1]) is not int:
        raise IsomorphError(
            "E_CONSTRAINT",
            f"training needs an output [B, classes] or [B, T, classes]; this network's is {show_shape(shape)}",
        )
    return shape


Shape = tuple[int, ...]


def check_shapes(plan: Plan, inputs: Mapping[str, Shape], targets: Shape, where: str) -> None:
    """Compare the shapes of all arrays with the plan's contracts, every symbol meaning one size.

    Shapes are known before any array is read. Each has at least one axis; the first one counts examples,
    whatever its symbol. E_CONSTRAINT names the array and both shapes.
    """
    sizes: dict[str, int] = {}
    expected = {name: plan.values[value].shape for name, value in plan.inputs}
    pairs = [(name, expected[name], shape) for name, shape in inputs.items()]
    pairs.append(("targets", score_shape(plan)[:-1], targets))
    for name, shape, actual in pairs:
        if len(actual) != len(shape) or actual[0] != targets[0]:
            raise _misfit(where, name, shape, actual, f"{targets[0]} examples")
        for dimension, size in zip(shape[1:], actual[1:], strict=True):
            names = symbols_of(dimension)
            if isinstance(dimension, Affine) and len(names) == 1 and names[0] not in sizes:
                ((_, coefficient),) = dimension.terms
                sizes[names[0]] = (size - dimension.constant) // coefficient
            if any(symbol not in sizes for symbol in names):
                continue  # a sum of several unknown lengths: the network itself will check
            if evaluate(dimension, sizes) != size:
                raise _misfit(where, name, shape, actual, ", ".join(f"{s}={n}" for s, n in sizes.items()))
    for symbol, size in sizes.items():
        low, high = plan.bounds.get(symbol, (0, None))
        if size < low or (high is not None and size > high):
            limit = f"at least {low}" if size < low else f"at most {high}"
            raise IsomorphError("E_CONSTRAINT", f"{where}: {symbol} must be {limit}, the arrays have {size}")


def check_ids(plan: Plan, inputs: dict[str, Array], where: str) -> None:
    """Every id must be a row of each table that it is looked up in; E_ARGUMENT names one that is not.

    Compiled code cannot tell, so it is asked before.
    """
    values = dict(plan.inputs)
    for node in plan.nodes:
        rows = [p.shape[0] for p in node.operator.all_parameters.values() if p.axes[:1] == ("vocab",)]
        sources = {source for _, source in node.inputs}
        for name, ids in inputs.items():
            if not rows or values[name] not in sources or ids.dtype.kind not in "iu":
                continue
            wrong = ids[(ids < 0) | (ids >= min(rows))]
            if wrong.size:
                raise IsomorphError(
                    "E_ARGUMENT",
                    f"{where}: id {int(wrong.flat[0])} of the input {name} is outside the table of "
                    f"{node.name}, which has {min(rows)} rows",
                )


def _misfit(where: str, name: str, shape: Any, actual: Shape, context: str) -> IsomorphError:
    return IsomorphError(
        "E_CONSTRAINT",
        f"{where}: {name} has shape {show_shape(actual)}, the network expects {show_shape(shape)}"
        + (f" ({context})" if context else ""),
    )


def check_targets(targets: Array, classes: int, where: str) -> None:
    """Every target must be a class, or :data:`IGNORED`; E_ARGUMENT names one that is not."""
    wrong = targets[((targets < 0) | (targets >= classes)) & (targets != IGNORED)]
    if wrong.size:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{where}: target {int(wrong.flat[0])} is no class of a network that scores {classes}",
            hints=[f"targets run from 0 to {classes - 1}; {IGNORED} marks one to ignore"],
        )
