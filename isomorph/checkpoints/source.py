"""The files of a published model: its configuration, and its tensors one at a time.

A directory holds ``config.json`` and ``model.safetensors``, or parts of it with
``model.safetensors.index.json``, or the older ``pytorch_model.bin`` likewise. None of them is trusted:
names in an index must stay inside the directory, sizes are checked before anything is allocated, and nothing
is executed.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from isomorph.backends.available import BACKENDS, able, part, preferred
from isomorph.errors import IsomorphError, shorten, shown
from isomorph.paths import TOKENIZER, path_text
from isomorph.weights.file import CODES, refuse_foreign

if TYPE_CHECKING:
    import numpy as np

CONFIGURATION = "config.json"
ADAPTER = "adapter_config.json"
ADAPTERS = (ADAPTER, "adapter_model.safetensors", "adapter_model.bin", "pytorch_adapter.bin")
"""The files of peft's adapters, and of an older library's; the first says what it is."""
GENERATION = "generation_config.json"
SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
_MOST_JSON_BYTES = 64 << 20  # an index of the largest published models has a few megabytes
_MOST_GENERATION_BYTES = 1 << 20  # it becomes a note of the saved model; those of Whisper take 15,000
_MOST_NAME_BYTES = 255  # of every usual file system
Result = TypeVar("Result")
_DTYPES = {code: name for name, code in CODES.items()}


class Tensor(NamedTuple):
    """A tensor of the checkpoint that has not been read yet.

    Attributes:
        shape: its sizes, as the file's header states them.
        dtype: ``float32`` and so on, or what the file calls a dtype that no plan has.
        read: gives the array.
        file: where it is.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]
    file: Path


class Checkpoint(NamedTuple):
    """A directory's configuration, its tensors by name, and the names of the files that were read."""

    directory: Path
    configuration: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    files: frozenset[str]


def open_checkpoint(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> Checkpoint:
    """Look into a directory in Hugging Face layout; a tensor is read when it is asked for.

    Raises:
        IsomorphError: E_CHECKPOINT when there is no such directory, a file of it is missing or damaged, a file
            lies outside, or there is an adapter.
    """
    text = path_text(path, "the checkpoint's path")
    directory = Path(text)
    if not os.path.isdir(
        directory
    ):  # unlike Path.is_dir, it raises nothing for a name too long or not to be read
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{directory} is not a directory",
            hints=[f"give the directory that holds {CONFIGURATION} and {SAFETENSORS}"],
        )
    refuse_adapter(directory)
    configuration = configuration_of(directory)
    tensors: dict[str, Tensor] = {}
    files = _files(directory)
    for file, names in files.items():
        opened = _open_pickled(file) if file.suffix == ".bin" else _open_safetensors(file)
        if names is not None and (absent := sorted(names - opened.keys())):
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{file} lacks {len(absent)} tensors that the index says it holds",
                hints=[f"missing: {shown(name)}" for name in absent[:20]],
            )
        if twice := sorted(opened.keys() & tensors.keys()):
            raise IsomorphError(
                "E_CHECKPOINT", f"{shorten(twice[0])} is in {tensors[twice[0]].file} and in {file}"
            )
        tensors |= opened
    read = {CONFIGURATION, *(file.name for file in files)}
    if None not in files.values():  # an index said which
        read.add(f"{PICKLED if any(file.suffix == '.bin' for file in files) else SAFETENSORS}.index.json")
    return Checkpoint(directory, configuration, tensors, frozenset(read))


def refuse_adapter(directory: Path) -> None:
    """E_CHECKPOINT for a directory with an adapter, beside a model or alone.

    What the weights beside it are is not known: those from before its training, or with the adapter added already.
    ``transformers`` reads neither, but the model that the adapter names.
    """
    files = [name for name in ADAPTERS if os.path.lexists(directory / name)]
    if not files:
        return
    described = read_json(inside(directory, ADAPTER)) if ADAPTER in files else {}
    kind, rank, base = (described.get(key) for key in ("peft_type", "r", "base_model_name_or_path"))
    what = f"an adapter ({shown(str(kind), 40)}" + (f" of rank {rank})" if type(rank) is int else ")")
    if not isinstance(kind, str):
        what = f"an adapter ({files[0]})"
    alone = not os.path.lexists(directory / CONFIGURATION)
    owner = f", made for {shown(base, 100)}" if isinstance(base, str) and base else ""
    merge = "PeftModel.from_pretrained(MODEL, DIR).merge_and_unload().save_pretrained(OUT)"
    hints = [f"merge it into its model with peft, and import the result: {merge}"]
    if alone:
        message = f"{directory} holds {what} alone{owner}, and no model that it could be added to"
    else:
        message = (
            f"{directory} holds {what} beside the model{owner}, and adapters are not applied by an import"
        )
        hints.append(f"or move {' and '.join(files)} away, if the model is wanted without it")
    raise IsomorphError("E_CHECKPOINT", message, hints=hints)


def adapters_below(directory: Path) -> list[str]:
    """Directories inside a directory that hold an adapter of their own."""
    inner = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    return [name for name in inner if os.path.lexists(directory / name / ADAPTER)]


def _files(directory: Path) -> dict[Path, set[str] | None]:
    """The files that hold the tensors, each with the names that an index promises there.

    One file comes before an index, and safetensors before pickles, as in the peer library.
    """
    for name in (SAFETENSORS, PICKLED):
        if os.path.lexists(directory / name):
            return {inside(directory, name): None}
        if os.path.lexists(directory / f"{name}.index.json"):
            return _indexed(directory, f"{name}.index.json")
    raise IsomorphError(
        "E_CHECKPOINT",
        f"{directory} holds no weights",
        hints=[f"expected {SAFETENSORS}, {SAFETENSORS}.index.json, {PICKLED} or {PICKLED}.index.json"],
    )


def _indexed(directory: Path, index: str) -> dict[Path, set[str] | None]:
    places = _places(directory, index)
    return {
        inside(directory, file): {name for name, place in places.items() if place == file}
        for file in indexed_names(directory, index)
    }


def _places(directory: Path, index: str) -> dict[str, str]:
    places = read_json(inside(directory, index)).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(v, str) for v in places.values()):
        raise IsomorphError(
            "E_CHECKPOINT", f"{directory / index} has no weight_map from tensors' names to files' names"
        )
    return places


def indexed_names(directory: Path, index: str) -> list[str]:
    """The names of the files that an index lists; E_CHECKPOINT for one that is not beside it."""
    suffix = ".safetensors" if index.startswith(SAFETENSORS) else ".bin"
    names = sorted(set(_places(directory, index).values()))
    for file in names:
        if not is_file_name(file) or not file.endswith(suffix):
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{directory / index} names the file {shorten(file, 300)}",
                hints=[f"expected the name of a {suffix} file in the same directory"],
            )
    return names


def is_file_name(text: str) -> bool:
    """Whether a text is the name of one file that may lie in a directory, and no path that leads elsewhere."""
    try:
        length = len(os.fsencode(text))
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
        return False
    return Path(text).name == text != ".." and 0 < length <= _MOST_NAME_BYTES and not {"\\", "\0"} & set(text)


def inside(directory: Path, name: str) -> Path:
    """A file of the directory; E_CHECKPOINT when it is missing, no file, or a link leads out.

    The hub's cache keeps the bytes in ``blobs`` beside ``snapshots``, with links to them; those may be followed.
    """
    path = directory / name
    target = Path(os.path.realpath(path))
    home = Path(os.path.realpath(directory))
    allowed = [home, *([home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [])]
    if not any(target.is_relative_to(place) for place in allowed):
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{path} is a link that leads out of the directory, to {target}",
            hints=["copy the file into the directory"],
        )
    if problem := _no_file(path):
        raise IsomorphError("E_CHECKPOINT", f"{path} {problem}", hints=["copy the model again, whole"])
    return path


_KINDS = {
    stat.S_IFDIR: "is a directory", stat.S_IFIFO: "is a pipe", stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device", stat.S_IFBLK: "is a device",
}  # fmt: skip


def _no_file(path: Path) -> str:
    """Why a path is no file to read, or nothing. It is never opened: a pipe would wait for its writer."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "is a link that leads back to itself"
        return f"cannot be read: {error.strerror or error}"
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "is no file")


def tokenizer_of(directory: Path) -> bytes | None:
    """The bytes of a directory's ``tokenizer.json``, or None where it has none.

    Raises:
        IsomorphError: E_CHECKPOINT for a link that leads out of the directory, what is no file, and what is no
            JSON object of at most 64 MiB.
    """
    if not os.path.lexists(directory / TOKENIZER):
        return None
    path = inside(directory, TOKENIZER)
    content = _content(path)
    _parsed(path, content, dict)
    return content


def configuration_of(directory: Path) -> dict[str, Any]:
    """What a directory's ``config.json`` holds; E_CHECKPOINT where it cannot be read."""
    return read_json(inside(directory, CONFIGURATION))


def generation_of(directory: Path) -> dict[str, Any] | None:
    """What a directory's ``generation_config.json`` holds, or None where it has none.

    Raises:
        IsomorphError: E_CHECKPOINT where it cannot be read, or is larger than a model's notes may be.
    """
    if not os.path.lexists(directory / GENERATION):
        return None
    path = inside(directory, GENERATION)
    content = read_json(path)
    try:
        size = len(json.dumps(content, allow_nan=False))
    except (ValueError, RecursionError) as error:
        raise IsomorphError("E_CHECKPOINT", f"{path} is no JSON: {shorten(str(error), 100)}") from None
    if size > _MOST_GENERATION_BYTES:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{path} has {size:,} bytes of settings; at most {_MOST_GENERATION_BYTES:,} are read",
            hints=["without it the model is imported without settings of generation"],
        )
    return content


def read_json(path: Path, kind: type[Result] = dict) -> Result:
    """What a file of at most 64 MiB holds; E_CHECKPOINT when it is no JSON, or no ``kind`` (dict or list)."""
    return _parsed(path, _content(path), kind)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_JSON_BYTES + 1)
    except OSError as error:
        raise IsomorphError("E_CHECKPOINT", f"cannot read {path}: {error.strerror or error}") from None
    if len(content) > _MOST_JSON_BYTES:
        raise IsomorphError("E_CHECKPOINT", f"{path} is no JSON: more than {_MOST_JSON_BYTES:,} bytes")
    return content


def _parsed(path: Path, text: bytes, kind: type[Result]) -> Result:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IsomorphError("E_CHECKPOINT", f"{path} is no JSON: {shorten(str(error), 100)}") from None
    if not isinstance(content, kind):
        expected = "an object" if kind is dict else "a list"
        raise IsomorphError("E_CHECKPOINT", f"{path} holds {type(content).__name__}, expected {expected}")
    return content


def _open_safetensors(path: Path) -> dict[str, Tensor]:
    refuse_foreign(path)

    def reader(name: str) -> Callable[[], np.ndarray]:
        # Mapped anew for each tensor: pages of those read before would stay in memory beside their copies.
        return lambda: _with_safetensors(path, lambda file: file.get_tensor(name))

    def describe(file: Any) -> dict[str, Tensor]:
        tensors = {}
        for name in file.keys():  # noqa: SIM118  # no mapping
            part = file.get_slice(name)
            code = str(part.get_dtype())
            tensors[name] = Tensor(tuple(part.get_shape()), _DTYPES.get(code, code), reader(name), path)
        return tensors

    return _with_safetensors(path, describe)


def _with_safetensors(path: Path, use: Callable[[Any], Result]) -> Result:
    """What ``use`` makes of the opened file; E_CHECKPOINT when it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return use(file)
    except (SafetensorError, OSError) as error:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{path} is damaged or no safetensors file: {shown(str(error))}",
            hints=["copy the model again, whole"],
        ) from None


def _open_pickled(path: Path) -> dict[str, Tensor]:
    reader = preferred("unpickle")
    if reader is None:
        backend = BACKENDS[able("unpickle")[0]]
        raise IsomorphError(
            "E_BACKEND",
            f"{path} is a pickle, which only {backend.title} reads, and it is not installed",
            hints=[f'pip install "{backend.install}"'],
        )
    to_numpy = part(reader, "weights").to_numpy
    return {
        name: Tensor(
            tuple(tensor.shape), str(tensor.dtype).rpartition(".")[2], _copier(to_numpy, tensor), path
        )
        for name, tensor in part(reader, "pickled").read_pickled(path).items()
    }


def _copier(to_numpy: Callable[[Any], np.ndarray], tensor: Any) -> Callable[[], np.ndarray]:
    return lambda: to_numpy(tensor)
