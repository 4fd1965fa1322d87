"""Products of a tensor and a weight that stays: which kernel is fastest for which sizes.

PyTorch multiplies float32 on the CPU by MKL, which is slow on processors that it was not made for; oneDNN, which
PyTorch brings as well, is not. Its operators are PyTorch's own and not public, so their presence, and that they
compute the right thing, is looked at once, and everything works without them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from math import prod
from mmap import mmap
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from isomorph.backends.large_pages import in_large_pages

Tensor = torch.Tensor

SMALL = 1 << 22
"""Multiplications below which a product is not worth packing a weight for: the call costs more."""
FEW_ROWS = 8
"""Up to so many rows a product waits for its weight to come from memory, whatever its size."""
_SMALL_FEW = 1 << 18
STREAMED = 1 << 26
"""Bytes that are more than most caches hold."""
_TRIES = 5
_MAPPED = 1 << 20
"""Bytes from which a copy that is wanted for a moment has memory of its own."""

_FUSED: dict[tuple[str, str], tuple[str, str]] = {
    ("gelu", "none"): ("gelu", "none"),
    ("gelu", "tanh"): ("gelu", "tanh"),
    ("relu", ""): ("relu", ""),
    ("silu", ""): ("swish", ""),
    ("tanh", ""): ("tanh", ""),
    ("sigmoid", ""): ("sigmoid", ""),
}
"""oneDNN's names of the activations that it computes with a product."""


class OneDNN(NamedTuple):
    """oneDNN's operators."""

    pack: Callable[..., Tensor]
    linear: Callable[..., Tensor]
    add: Callable[..., Tensor]


@lru_cache(maxsize=1)
def onednn() -> OneDNN | None:
    """oneDNN's products with packed weights, or None where this build of PyTorch has none that work.

    What is missing is said once, as a warning.
    """
    try:
        operators = torch.ops.mkldnn
        library = OneDNN(
            operators._reorder_linear_weight.default,
            operators._linear_pointwise.default,
            operators._linear_pointwise.binary,
        )
        problem = _wrong(library)
    except (AttributeError, RuntimeError, TypeError) as error:
        library, problem = None, str(error).splitlines()[0]
    if not problem:
        return library
    warnings.warn(
        f"isomorph: oneDNN's products are not usable here ({problem}); PyTorch's usual ones are taken",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _wrong(kernels: OneDNN) -> str:
    """What a small product gets wrong, or nothing."""
    generator = torch.Generator().manual_seed(0)
    x, w, b, other = (
        torch.randn(s, generator=generator, dtype=torch.float32, device="cpu")
        for s in ((3, 8), (5, 8), (5,), (3, 5))
    )
    packed = kernels.pack(w, 3)
    plain = torch.addmm(b, x, w.t())
    for product, expected in (
        (kernels.linear(x, packed, b, "none", [], ""), plain),
        (kernels.linear(x, packed, b, "gelu", [], "none"), functional.gelu(plain)),
        (kernels.add(x, other, packed, b, "add"), plain + other),
    ):
        if not torch.allclose(product, expected, rtol=0, atol=1e-5):
            return "they compute something else"
    return ""


is_marked: Callable[[Tensor], bool] = getattr(torch._C, "_is_cow_tensor", lambda tensor: False)
"""Whether memory bears the mark by which a write to it is noticed; see :mod:`isomorph.backends.torch.watching`."""


def unmarked(tensor: Tensor) -> Tensor:
    """The same numbers where oneDNN may read them: a copy, where the memory is marked.

    oneDNN's operators ask for memory to write to, even that which they only read, so the mark would go.
    """
    if not is_marked(tensor):
        return tensor
    if tensor.nbytes < _MAPPED:
        return tensor.clone()
    memory = mmap(-1, tensor.nbytes)  # which the system has back at once, where an allocator would keep it
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape).copy_(tensor)


def keep_at_hand(weight: Tensor) -> None:
    """Let a weight be read faster; see :func:`isomorph.backends.large_pages.in_large_pages`."""
    if weight.is_mkldnn:
        with suppress(AttributeError, RuntimeError):  # these operators are not public either
            in_large_pages(torch.ops.mkldnn.data_ptr(weight), torch.ops.mkldnn._nbytes(weight))
    elif weight.device.type == "cpu":
        in_large_pages(weight.data_ptr(), weight.nbytes)


def fused(name: str, attributes: dict[str, Any]) -> tuple[str, str] | None:
    """oneDNN's name for an activation, or None."""
    return _FUSED.get((name, attributes.get("approximate", "")))


_choices: dict[tuple[Any, ...], bool] = {}


def prefers_onednn(rows: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN multiplies ``[rows, I]`` by a weight ``[O, I]`` faster, measured once per class of sizes.

    A class is the shape of the weight, its dtype, the number of threads, and the rows to the next power of two.
    With few rows the weights of a network come from memory one after another, so one large weight, which must
    come from there too, is measured for all.
    """
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return False
    few, numbers = rows <= FEW_ROWS, prod(shape)
    if (numbers < _SMALL_FEW if few else rows * numbers < SMALL) or onednn() is None:
        return False
    measured = (STREAMED // dtype.itemsize >> 10, 1 << 10) if few else shape
    kind = (max(rows, 1).bit_length(), *measured, dtype, torch.get_num_threads())
    if kind not in _choices:
        _choices[kind] = _measured(rows, torch.ones(measured, dtype=dtype, device="cpu"))
    return _choices[kind]


def _measured(rows: int, weight: Tensor) -> bool:
    kernels = onednn()
    assert kernels is not None
    x = torch.ones(rows, weight.shape[1], dtype=weight.dtype, device="cpu")
    try:
        packed = kernels.pack(weight, rows)
        kernels.linear(x, packed, None, "none", [], "")
    except RuntimeError:  # half precision on a processor that has none
        return False
    return is_faster(
        lambda: kernels.linear(x, packed, None, "none", [], ""), lambda: functional.linear(x, weight)
    )


def is_faster(one: Callable[[], Any], other: Callable[[], Any]) -> bool:
    """Whether one call takes less time than the other; by turns, so that both meet the same machine."""
    best = [float("inf"), float("inf")]
    for _ in range(_TRIES):
        for which, call in enumerate((one, other)):
            start = perf_counter()
            call()
            best[which] = min(best[which], perf_counter() - start)
    return best[0] < best[1]


_TIMES = 6
_gains: dict[tuple[Any, ...], bool] = {}


def times_of_one_row(sizes: Iterable[tuple[int, int]], dtype: torch.dtype, device: torch.device) -> int:
    """How often a network with products by weights ``[O, I]`` of some sizes had best compute a single row.

    oneDNN reads a bfloat16 weight slower for one row than for six on some processors.
    """
    shape = max(sizes, key=prod, default=None)
    if shape is None or dtype != torch.bfloat16:
        return 1
    if not all(prefers_onednn(rows, shape, dtype, device) for rows in (1, _TIMES)):
        return 1
    outputs, inputs = shape
    outputs = min(outputs, max(1, STREAMED // (inputs * dtype.itemsize)))  # more would tell no more
    kind = (outputs, inputs, dtype, torch.get_num_threads())
    if kind not in _gains:
        _gains[kind] = _gains_from_more_rows((outputs, inputs), dtype)
    return _TIMES if _gains[kind] else 1


def _gains_from_more_rows(shape: tuple[int, int], dtype: torch.dtype) -> bool:
    kernels = onednn()
    assert kernels is not None
    count = 1 + STREAMED // (prod(shape) * dtype.itemsize)
    weights = [kernels.pack(torch.ones(shape, dtype=dtype, device="cpu"), 1) for _ in range(count)]

    def all_of(x: Tensor) -> Callable[[], Any]:
        return lambda: [kernels.linear(x, weight, None, "none", [], "") for weight in weights]

    return is_faster(*(all_of(torch.ones(rows, shape[1], dtype=dtype, device="cpu")) for rows in (_TIMES, 1)))
