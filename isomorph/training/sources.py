"""The kinds of data that ``isomorph train --data`` opens."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from isomorph.backends.trainer import Array, Batch
from isomorph.dimensions import show_shape
from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.paths import open_regular
from isomorph.plan import DTYPE_BYTES, Plan
from isomorph.training.archive import Archive, Declared
from isomorph.training.data import Dataset, Fingerprint, check_ids, check_shapes, check_targets, score_shape

SPLIT_SEED = 0
"""The test split is a property of the data and not of the run, whose seed may be anything."""
TEST_DIGITS = 360
TEST_FRACTION = 0.2
MOST_DEFAULT_LENGTH = 256


def open_dataset(specification: str, plan: Plan, *, length: int = 0, validation: float = 0.1) -> Dataset:
    """The dataset that a ``--data`` argument names, checked against the plan.

    Args:
        specification: ``digits``, ``text:FILE``, ``text:pydoc`` or ``npz:FILE``.
        plan: the network to be trained.
        length: tokens per example of text; 0 for the plan's own.
        validation: fraction of the training examples that becomes the validation split.

    Raises:
        IsomorphError: E_ARGUMENT for an unknown specification or unusable content; E_CONSTRAINT or E_DTYPE
            when shapes or dtypes do not meet the plan's contracts; E_BACKEND when a package is missing.
    """
    kind, _, place = specification.partition(":")
    if kind == "digits" and not place:
        return digits(plan, validation)
    if kind == "text" and place:
        return text(plan, place, length, validation)
    if kind == "npz" and place:
        return npz(plan, place, validation)
    raise IsomorphError(
        "E_ARGUMENT",
        f"there is no data {shorten(specification)}",
        hints=[*did_you_mean(kind, ("digits", "text", "npz")), *DATA_FORMS],
    )


DATA_FORMS = (
    "digits        1,797 handwritten digits, 8 x 8, that come with scikit-learn",
    "text:FILE     bytes of a file, each predicted from those before it",
    "text:pydoc    the documentation topics that come with Python",
    "npz:FILE      arrays x and y (and x_test, y_test) of a NumPy archive",
)


class ArrayDataset(Dataset):
    """Arrays whose first axis counts examples."""

    def __init__(
        self,
        title: str,
        unit: str,
        splits: dict[str, tuple[dict[str, Array], Array]],
        fingerprint: Fingerprint,
    ) -> None:
        self.title, self.unit, self._splits, self.fingerprint = title, unit, splits, fingerprint

    def count(self, split: str) -> int:
        return len(self._splits[split][1]) if split in self._splits else 0

    def take(self, split: str, indices: Array, epochs: Array) -> Batch:
        inputs, targets = self._splits[split]
        return Batch({name: array[indices] for name, array in inputs.items()}, targets[indices])


class TextDataset(Dataset):
    """Windows of consecutive ids; the targets are the ids one place later.

    A split is cut into windows that do not overlap. Where the first one starts is drawn anew in every epoch
    of training, so that the network does not see the same cuts each time.
    """

    def __init__(
        self,
        title: str,
        input_name: str,
        splits: dict[str, Array],
        length: int,
        dtype: str,
        fingerprint: Fingerprint,
    ) -> None:
        self.title, self.unit, self.length, self.fingerprint = title, "byte", length, fingerprint
        self._name, self._splits, self._dtype = input_name, splits, dtype

    def count(self, split: str) -> int:
        return window_count(len(self._splits[split]), self.length) if split in self._splits else 0

    def take(self, split: str, indices: Array, epochs: Array) -> Batch:
        ids, T = self._splits[split], self.length
        starts = indices * T
        if split == "train":
            room = min(T, len(ids) - T * self.count(split))  # places where the first window may start
            for epoch in np.unique(epochs):
                generator = np.random.Generator(np.random.Philox(key=np.array([int(epoch), T], np.uint64)))
                starts[epochs == epoch] += generator.integers(room)
        windows = ids[starts[:, None] + np.arange(T + 1)]  # (B, T+1)
        return Batch({self._name: windows[:, :-1].astype(self._dtype)}, windows[:, 1:].astype(np.int64))


def window_count(ids: int, length: int) -> int:
    """Windows of ``length`` ids and one more, not overlapping, at any shift below ``length`` if there is room."""
    return 0 if ids < length + 1 else max(1, (ids - length) // length)


# -- digits ------------------------------------------------------------------------------------


def digits(plan: Plan, validation: float) -> Dataset:
    """Scikit-learn's 1,797 handwritten digits, divided by 16 so that pixels run from 0 to 1.

    360 are for testing: a stratified split that never changes. The network's input may be
    ``[B, 1, 8, 8]``, ``[B, 8, 8]`` or ``[B, 64]``.
    """
    (name, value), *more = plan.inputs
    shape = plan.values[value].shape
    forms = ((1, 8, 8), (8, 8), (64,))
    if more or shape[1:] not in forms or plan.values[value].dtype not in DTYPE_BYTES:
        listed = ", ".join(show_shape(("B", *form)) for form in forms)
        raise IsomorphError(
            "E_CONSTRAINT",
            f"digits are single images {listed} of real numbers; the network takes {_contracts(plan)}",
        )
    try:
        load_digits = importlib.import_module("sklearn.datasets").load_digits
    except ModuleNotFoundError as error:
        raise IsomorphError(
            "E_BACKEND",
            f"the digits come with scikit-learn, which does not load: {error}",
            hints=['pip install "isomorph[train]"'],
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16.0).astype(np.float32).reshape(-1, *shape[1:])
    labels = labels.astype(np.int64)
    # The same whatever the form in which a network takes them, and on every machine.
    fingerprint = Fingerprint.of(images.astype("<f4").tobytes() + labels.astype("<i8").tobytes())
    check_targets(labels, score_shape(plan)[-1], "digits")
    check_shapes(plan, {name: images.shape}, labels.shape, "digits")
    rest, test = stratified_split(labels, TEST_DIGITS)
    splits = _with_validation({name: images}, labels, rest, validation, "digits")
    splits["test"] = ({name: images[test]}, labels[test])
    return ArrayDataset("handwritten digits", "image", splits, fingerprint)


def stratified_split(labels: Array, held_out: int) -> tuple[Array, Array]:
    """Sorted indices of the rest and of ``held_out`` examples, every class in proportion to its size.

    Shares are rounded down, and what is then missing goes to the classes with the largest remainders. The
    draw depends on the labels alone.
    """
    generator = np.random.Generator(np.random.Philox(key=SPLIT_SEED))
    classes, counts = np.unique(labels, return_counts=True)
    shares = counts * held_out / len(labels)
    sizes = shares.astype(int)
    for index in np.argsort(sizes - shares, kind="stable")[: held_out - sizes.sum()]:
        sizes[index] += 1
    chosen = [
        generator.permutation(np.flatnonzero(labels == label))[:size]
        for label, size in zip(classes, sizes, strict=True)
    ]
    test = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(labels)), test), test


def _with_validation(
    inputs: dict[str, Array], targets: Array, rest: Array, validation: float, where: str
) -> dict[str, tuple[dict[str, Array], Array]]:
    """The splits ``train`` and, if asked for, ``validation``, out of the examples ``rest``."""
    held_out = round(len(rest) * validation)
    if held_out >= len(rest):
        raise IsomorphError(
            "E_ARGUMENT",
            f"{where}: validation={validation:g} of {len(rest):,} examples leaves none for training",
            hints=["hold out less (--validation), or give more examples"],
        )
    parts = {"train": rest}
    if held_out:
        kept, out = split_examples(targets[rest], held_out)
        parts = {"train": rest[kept], "validation": rest[out]}
    return {
        split: ({name: array[chosen] for name, array in inputs.items()}, targets[chosen])
        for split, chosen in parts.items()
    }


def split_examples(targets: Array, held_out: int) -> tuple[Array, Array]:
    """Stratified by class where there is one per example, else at random."""
    return stratified_split(targets if targets.ndim == 1 else np.zeros(len(targets)), held_out)


# -- text --------------------------------------------------------------------------------------


def text(plan: Plan, place: str, length: int, validation: float) -> Dataset:
    """Bytes as ids, to be predicted one from those before it; the last tenth of the file is for testing."""
    content = _topics() if place == "pydoc" else read_bytes(place)
    name, dtype, T = _text_contract(plan, length)
    ids = np.frombuffer(content, dtype=np.uint8)
    check_ids(plan, {name: ids}, f"text:{place}")
    cut = [round(len(ids) * 0.9 * (1 - validation)), round(len(ids) * 0.9)]
    splits = {"train": ids[: cut[0]], "validation": ids[cut[0] : cut[1]], "test": ids[cut[1] :]}
    if not window_count(len(splits["train"]), T):
        raise IsomorphError(
            "E_ARGUMENT",
            f"text:{place} has {len(ids):,} bytes; {len(splits['train']):,} are left for training, "
            f"and one example takes {T + 1:,}",
            hints=["give a longer file, or shorter examples (--length)"],
        )
    title = "Python's documentation topics" if place == "pydoc" else f"bytes of {Path(place).name}"
    return TextDataset(title, name, splits, T, dtype, Fingerprint.of(content))


def _text_contract(plan: Plan, length: int) -> tuple[str, str, int]:
    """Name and dtype of the input of ids, and tokens per example; E_CONSTRAINT when the plan does not fit."""
    (name, value), *more = plan.inputs
    _, shape, dtype, *_ = plan.values[value]
    scores = score_shape(plan)
    if more or len(shape) != 2 or dtype not in ("int64", "int32") or scores[:-1] != shape:
        raise IsomorphError(
            "E_CONSTRAINT",
            f"text needs a network from ids [B, T] to scores [B, T, 256]; this one takes {_contracts(plan)} "
            f"and gives {show_shape(scores)}",
        )
    if scores[-1] < 256:
        raise IsomorphError(
            "E_CONSTRAINT", f"there are 256 different bytes, but the network scores {scores[-1]} ids"
        )
    if type(shape[1]) is int:
        if length not in (0, shape[1]):
            raise IsomorphError("E_CONSTRAINT", f"the network's length is {shape[1]}, not --length {length}")
        return name, dtype, shape[1]
    low, high = plan.bounds.get(str(shape[1]), (0, None))
    T = length or min(high or MOST_DEFAULT_LENGTH, MOST_DEFAULT_LENGTH)
    if max(low, 1) > T or (high is not None and high < T):
        raise IsomorphError("E_CONSTRAINT", f"the network takes {shape[1]} <= {high}, not --length {T}")
    return name, dtype, T


def _topics() -> bytes:
    """The help texts that ``pydoc`` shows, which come with every Python."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[key] for key in sorted(topics)).encode()


def read_bytes(place: str) -> bytes:
    """A regular file's content, read once; E_ARGUMENT when it cannot be read, is no such file, or is empty."""
    try:
        with open_regular(place) as file:
            content = file.read()
    except OSError as error:
        raise IsomorphError(
            "E_ARGUMENT", f"cannot read the data {place}: {error.strerror or error}", hints=["check the path"]
        ) from None
    if not content:
        raise IsomorphError("E_ARGUMENT", f"the data file {place} is empty")
    return content


# -- NumPy archives ----------------------------------------------------------------------------


def npz(plan: Plan, place: str, validation: float) -> Dataset:
    """Arrays of a NumPy archive: the inputs by name (a single one may be called ``x``) and targets ``y``.

    With the same names and ``_test`` behind them it brings its own test examples; otherwise a fifth of the
    examples, stratified by class, is held out.
    """
    where = f"npz:{place}"
    content = read_bytes(place)
    archive = Archive(content, place)
    inputs, targets = _examples(plan, archive, "", where)
    if any(name.endswith("_test") for name in archive.names):
        splits = _with_validation(inputs, targets, np.arange(len(targets)), validation, where)
        splits["test"] = _examples(plan, archive, "_test", where)
    else:
        rest, test = split_examples(targets, round(len(targets) * TEST_FRACTION))
        splits = _with_validation(inputs, targets, rest, validation, where)
        splits["test"] = ({name: array[test] for name, array in inputs.items()}, targets[test])
    return ArrayDataset(f"arrays of {Path(place).name}", "example", splits, Fingerprint.of(content))


def _examples(plan: Plan, archive: Archive, suffix: str, where: str) -> tuple[dict[str, Array], Array]:
    """Inputs in the plan's dtypes and int64 targets, all checked: what is declared first, then the numbers."""
    names, present, y = [name for name, _ in plan.inputs], archive.names, "y" + suffix
    keys = {
        name: name + suffix if name + suffix in present or len(names) > 1 else "x" + suffix for name in names
    }
    declared = {key: _declared(archive, key, where) for key in (*keys.values(), y)}
    dtypes = {name: plan.values[value].dtype for name, value in plan.inputs}
    for name, key in keys.items():
        _check_kind(declared[key].dtype, dtypes[name], f"{where}: {key}")
    if declared[y].dtype.kind not in "iu":
        raise IsomorphError(
            "E_DTYPE", f"{where}: {y} must hold whole numbers, one class each, got {declared[y].dtype}"
        )
    shapes = {name: declared[key].shape for name, key in keys.items()}
    check_shapes(plan, shapes, declared[y].shape, where)

    inputs = {
        name: _cast(archive.read(key, declared[key]), dtypes[name], f"{where}: {key}")
        for name, key in keys.items()
    }
    targets = archive.read(y, declared[y])
    check_targets(
        targets, score_shape(plan)[-1], where
    )  # before the cast: above 2**63 they would turn negative
    check_ids(plan, inputs, where)
    return inputs, targets.astype(np.int64)


def _declared(archive: Archive, key: str, where: str) -> Declared:
    declared = archive.declared(key)
    if not declared.shape or not declared.shape[0]:
        raise IsomorphError("E_ARGUMENT", f"{where}: {key} holds no examples")
    return declared


def _check_kind(actual: np.dtype[Any], dtype: str, where: str) -> None:
    """E_DTYPE unless numbers of this dtype can be an input's."""
    kinds = "biuf" if dtype in DTYPE_BYTES else "b" if dtype == "bool" else "iu"
    if actual.kind not in kinds:
        raise IsomorphError("E_DTYPE", f"{where} must be {dtype} or convertible to it, got {actual}")


def _cast(array: Array, dtype: str, where: str) -> Array:
    """The array in an input's dtype; half precisions stay float32 until the network rounds them."""
    target: Any = {"bfloat16": "float32", "float16": "float32"}.get(dtype, dtype)
    with np.errstate(over="ignore"):  # what is then infinite is refused
        converted = array.astype(target)
    wrong = ~np.isfinite(converted) if converted.dtype.kind == "f" else converted != array
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        problem = "is no finite number" if converted.dtype.kind == "f" else "does not fit"
        raise IsomorphError(
            "E_ARGUMENT",
            f"{where}[{', '.join(map(str, place))}] is {array[place]}, which {problem} in {target}",
            hints=["clean the data: one such number makes every weight nan"]
            if converted.dtype.kind == "f"
            else (),
        )
    return converted


def _contracts(plan: Plan) -> str:
    values = [(name, plan.values[value]) for name, value in plan.inputs]
    return ", ".join(f"{name}={show_shape(value.shape)} {value.dtype}" for name, value in values)
