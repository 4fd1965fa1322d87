"""Products with weights of eight bits: ``[O, I]`` integers from -127 to 127, and a step for each row.

PyTorch has a kernel for few rows of half precision. oneDNN, which PyTorch brings as well, multiplies integers alone,
and reads a large weight twice as fast. So an activation is given to it as two of eight bits: with the largest
magnitude m of a row and s = m / 32512, ``u = round(x / s) + 32896`` takes two bytes, ``u = 256 h + l``, and
``x`` is ``s * (256 (h - 128) + (l - 128))`` to within s / 2, finer than bfloat16 for what counts in the row.
"""

from __future__ import annotations

import sys
import warnings
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch
from torch.nn import functional

from isomorph.backends.torch.kernels import STREAMED, is_faster

Tensor = torch.Tensor

_MULTIPLE = 32
"""PyTorch's product with weights of eight bits reads behind the rows of others than multiples of this."""


def multiplies_eight_bits(weight: Tensor) -> bool:
    """Whether PyTorch multiplies by this weight ``[O, I]`` of eight bits as it is stored."""
    if weight.device.type != "cpu" or weight.shape[1] % _MULTIPLE or weight.shape[0] == 0:
        return False
    return _eight_bits_work()


@lru_cache(maxsize=1)
def _eight_bits_work() -> bool:
    """Whether PyTorch's product with weights of eight bits is here and right; what is missing is said once."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2 * _MULTIPLE, generator=generator, dtype=torch.float32, device="cpu").bfloat16()
    w = torch.randint(-127, 128, (5, 2 * _MULTIPLE), generator=generator, dtype=torch.int8, device="cpu")
    steps = torch.full((5,), 2.0**-7, dtype=torch.bfloat16, device="cpu")
    try:
        product = torch.ops.aten._weight_int8pack_mm.default(x, w, steps).float()
        expected = x.float() @ (w.float() * 2.0**-7).t()
        problem = (
            "" if torch.allclose(product, expected, rtol=2**-7, atol=2**-4) else "it computes something else"
        )
    except (AttributeError, RuntimeError, TypeError) as error:
        problem = str(error).splitlines()[0]
    if problem:
        warnings.warn(
            f"isomorph: PyTorch's product with weights of eight bits is not usable here ({problem}); "
            "they are multiplied as bfloat16",
            RuntimeWarning,
            stacklevel=2,
        )
    return not problem


MANY_ROWS = 16
"""From so many rows on a weight of eight bits is widened for each product, which its own kernel is too slow for."""
_WIDENED = 1 << 21


def multiply_widened(x: Tensor, integers: Tensor, steps: Tensor) -> Tensor:
    """``x`` times a weight of eight bits: ``[R, I], [O, I], [O] -> [R, O]``, all but the integers bfloat16.

    A part of the weight at a time is widened, which is exact, so that it stays in the cache.
    """
    rows = max(1, _WIDENED // max(1, integers.shape[1]))
    parts = [functional.linear(x, part.to(x.dtype)) for part in integers.split(rows)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).mul_(steps)


class Split(NamedTuple):
    """A weight for products of integers.

    Attributes:
        packed: the integers as oneDNN wants them.
        steps: ``[O]``, float32.
        zeros: ``[O]``, int32: no row has a zero point.
    """

    packed: Tensor
    steps: Tensor
    zeros: Tensor


_LARGE = 1 << 24
"""Numbers of a weight from which on reading it takes so long that splitting activations does not count."""
_WIDEST = 1 << 16
"""Numbers of a row up to which sums of products stay far from the limits of 32 bits."""
_PIECE = 128
"""Rows that are multiplied at once: as integers and float32 they take several times the memory of the result."""
_LEVELS = 32512
_MIDDLE = 32896.5  # what is added before a number is cut to an integer: half of it rounds
_HALF = 128  # the zero point of a byte

_choices: dict[tuple[int, ...], bool] = {}


def prefers_split(shape: tuple[int, int], device: torch.device) -> bool:
    """Whether a weight ``[O, I]`` had better be multiplied by split activations.

    That is measured at one row, once for a shape and a number of threads: a weight is kept in one form, and with
    many rows the ways differ by a fifth.
    """
    outputs, inputs = shape
    if device.type != "cpu" or prod(shape) < _LARGE or inputs > _WIDEST or not _split_works():
        return False
    if inputs % _MULTIPLE or not _eight_bits_work():  # else it would be widened
        return True
    outputs = min(outputs, STREAMED // inputs)  # more would tell no more
    kind = (outputs, inputs, torch.get_num_threads())
    if kind not in _choices:
        x, steps = (
            torch.ones(size, dtype=torch.bfloat16, device="cpu") for size in ((1, inputs), (outputs,))
        )
        integers = torch.ones(outputs, inputs, dtype=torch.int8, device="cpu")
        split = packed(integers, steps)
        _choices[kind] = is_faster(
            lambda: multiply_split(x, split, None),
            lambda: torch.ops.aten._weight_int8pack_mm.default(x, integers, steps),
        )
    return _choices[kind]


def packed(integers: Tensor, steps: Tensor) -> Split:
    """A weight ``[O, I]`` with its steps ``[O]`` for :func:`multiply_split`."""
    return Split(
        torch.ops.onednn.qlinear_prepack.default(integers, None),
        steps.float(),
        torch.zeros(len(steps), dtype=torch.int32, device="cpu"),
    )


def multiply_split(x: Tensor, weight: Split, bias: Tensor | None) -> Tensor:
    """``x [R, I]``, contiguous, times a weight ``[O, I]``, plus a bias ``[O]``, of the dtype of ``x``.

    A row that is not finite gives NaN.
    """
    rows, width = x.shape
    if not rows:
        return x.new_zeros(0, len(weight.steps))
    if rows > _PIECE:
        return torch.cat([multiply_split(part, weight, bias) for part in x.split(_PIECE)])
    step = torch.linalg.vector_norm(x, torch.inf, -1, True, dtype=torch.float32)  # (R, 1)
    step.clamp_(min=1e-30).mul_(1 / _LEVELS).add_(step * 0)
    whole = torch.addcmul(_middle(), x, step.reciprocal())
    whole = whole.to(torch.int32, memory_format=torch.contiguous_format)  # also in an axis of one
    # A row's bytes one below the other, least first. oneDNN reads weights faster for four rows than for two.
    planes = 4 if rows == 1 else 2
    bytes_of = whole.view(torch.uint8).as_strided((planes, rows, width), (1, 4 * width, 4))
    product = torch.ops.onednn.qlinear_pointwise.default(
        bytes_of.reshape(planes * rows, width), 1.0, _HALF, weight.packed, weight.steps, weight.zeros,
        None, 1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    out = torch.add(product[:rows], product[rows : 2 * rows], alpha=256)
    return (out.mul_(step) if bias is None else torch.addcmul(bias, out, step)).to(x.dtype)


@lru_cache(maxsize=1)
def _middle() -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(_MIDDLE, dtype=torch.float32, device="cpu")


@lru_cache(maxsize=1)
def _split_works() -> bool:
    """Whether oneDNN's product of integers is here and right.

    On processors that add pairs of products in sixteen bits it is not. Nothing is said of it: the other kernel serves.
    """
    if sys.byteorder != "little":
        return False
    generator = torch.Generator().manual_seed(0)
    w = torch.randint(-127, 128, (5, 96), generator=generator, dtype=torch.int8, device="cpu")
    w[0] = 127
    steps = torch.full((5,), 2.0**-7, dtype=torch.float32, device="cpu")
    exact = w.double() * 2.0**-7
    for rows in (1, 3):
        x = torch.randn(rows, 96, generator=generator, dtype=torch.float32, device="cpu")
        x[0] = 1.0  # the largest bytes beside the largest weights
        try:
            product = multiply_split(x, packed(w, steps), None).double()
        except (AttributeError, RuntimeError, TypeError):
            return False
        # half a step for each number, and a little for float32
        most = 0.51 * x.abs().amax(-1, keepdim=True).double() / _LEVELS * exact.abs().sum(-1)
        if not bool(((product - x.double() @ exact.t()).abs() <= most + 1e-5).all()):
            return False
    return True
