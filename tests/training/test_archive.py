"""Archives that declare more than they hold, or hold more than can be: known before memory is taken."""

import io
import random
import struct
import tracemalloc
import zipfile
from contextlib import suppress

import numpy as np
import pytest

import isomorph as iso
from isomorph.errors import IsomorphError
from isomorph.training import archive
from isomorph.training.sources import open_dataset

VECTORS = 'input("B", 3)\nlinear(2)\noutput("B", 2)'
HINT = "\n  write it with numpy.savez(FILE, x=..., y=...); arrays of Python objects are not read"


def npy(header: str, data: bytes = b"") -> bytes:
    """A ``.npy`` file: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def array(values) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def write(path, compression=zipfile.ZIP_STORED, **members: bytes) -> str:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return f"npz:{path}"


def refusal(data: str) -> str:
    """The message, with at most 64 MB taken on the way to it."""
    tracemalloc.start()
    try:
        with pytest.raises(IsomorphError) as error:
            open_dataset(data, iso.resolve(VECTORS))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    return str(error.value)


def header(shape: str, dtype: str = "<f4") -> str:
    return f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}"


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        # 10^12 rows of 3 float32 are 12 * 10^12 bytes; the file has one row.
        (header("(1000000000000, 3)"), "x declares 12,000,000,000,000 bytes of numbers, but its part of the file holds 12"),
        (header("(2, 3)"), "x declares 24 bytes of numbers, but its part of the file holds 12"),
        (header(f"({2**62}, 3)"), "x declares more numbers than any file holds"),
        (header(f"({10**4000}, 3)"), "x declares more numbers than any file holds"),
        (header("(-1, 3)"), "x is damaged or holds Python objects"),
        (header("(1, 3)", "|O"), "x is damaged or holds Python objects"),
        ("((((", "x is damaged"),
        ("{'descr': '<f4'}", "x is damaged"),
    ],
)  # fmt: skip
def test_declared_sizes_are_compared_with_what_the_file_holds(tmp_path, x, reason):
    data = write(tmp_path / "data.npz", x=npy(x, bytes(12)), y=array(np.zeros(1, int)))
    assert refusal(data) == f"E_ARGUMENT: {tmp_path}/data.npz is no usable NumPy archive: {reason}{HINT}"


def test_declared_shapes_are_compared_with_the_contract_before_anything_is_read(tmp_path):
    # 10^12 rows of nothing take no bytes: the contract alone tells.
    data = write(tmp_path / "data.npz", x=npy(header("(1000000000000, 0)")), y=array(np.zeros(1, int)))
    assert refusal(data) == (
        f"E_CONSTRAINT: {data}: x has shape [1000000000000, 0], the network expects [B, 3] (1 examples)"
    )
    data = write(tmp_path / "data.npz", x=npy(header("(1000000000000, 3)", "<U0")), y=array(np.zeros(1, int)))
    assert refusal(data) == f"E_DTYPE: {data}: x must be float32 or convertible to it, got <U0"


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    # 3 * 10^5 float32 zeros are 1,200,000 bytes, deflated to about a thousandth.
    monkeypatch.setattr(archive, "MOST_UNPACKED_BYTES", 1 << 19)
    x, y = array(np.zeros((10**5, 3), np.float32)), array(np.zeros(10**5, np.int8))
    data = write(tmp_path / "data.npz", zipfile.ZIP_DEFLATED, x=x, y=y)
    length = (tmp_path / "data.npz").stat().st_size
    assert length < 5_000
    assert refusal(data) == (
        f"E_ARGUMENT: {tmp_path}/data.npz is no usable NumPy archive: {length:,} bytes unpack to 1,200,000 and more, "
        f"accepted are 524,288; what numpy.savez writes, unpacked, may be of any length{HINT}"
    )
    open_dataset(write(tmp_path / "stored.npz", x=x, y=y), iso.resolve(VECTORS))


def test_arrays_that_no_network_asks_for_are_not_read(tmp_path):
    bomb = npy(header("(1000000000000, 3)"))
    data = write(tmp_path / "data.npz", x=array(np.ones((10, 3))), y=array(np.zeros(10, int)), other=bomb)
    assert open_dataset(data, iso.resolve(VECTORS)).count("test") == 2


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing_are_refused(tmp_path, compression):
    data = write(tmp_path / "data.npz", compression, x=array(np.ones((10, 3))), y=array(np.zeros(10, int)))
    assert "x is packed in a way that NumPy does not write" in refusal(data)


def test_arrays_come_back_as_numpy_wrote_them(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "c": rng.standard_normal((7, 3)), "f": np.asfortranarray(rng.standard_normal((4, 5, 6))),
        "big": rng.integers(0, 9, 5).astype(">i4"), "bool": np.array([True, False]), "none": np.zeros((0, 3)),
    }  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "data.npz", **arrays)
        read = archive.Archive((tmp_path / "data.npz").read_bytes(), "data.npz")
        assert read.names == list(arrays)
        for name, expected in arrays.items():
            actual = read.read(name, read.declared(name))
            assert (actual.dtype, actual.shape, actual.tobytes()) == (
                expected.dtype,
                expected.shape,
                expected.tobytes(),
            )


@pytest.mark.trial(sample=60, whole=5000)
def test_damaged_archives_are_refused_or_read_and_raise_nothing_else(tmp_path, trial):
    plan, chance = iso.resolve(VECTORS), random.Random(trial.seed)
    path = tmp_path / "data.npz"
    for number in range(trial.tries):
        save = np.savez_compressed if number % 2 else np.savez
        save(path, x=np.ones((10, 3), np.float32), y=np.zeros(10, int))
        content = bytearray(path.read_bytes())
        for _ in range(chance.choice((1, 1, 3))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content[: chance.choice((len(content), chance.randrange(1, len(content))))])
        with suppress(IsomorphError):
            open_dataset(f"npz:{path}", plan)
