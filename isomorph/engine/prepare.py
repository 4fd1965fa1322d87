"""A model prepared for inference."""

from __future__ import annotations

from typing import Any, Protocol

from isomorph.engine.models import part_of_backend
from isomorph.errors import IsomorphError, shorten

DTYPES = {"torch": ("float32", "bfloat16", "int8"), "nnx": ("float32", "bfloat16"), "linen": ("float32", "bfloat16")}


class Prepared(Protocol):
    """A function of a network's inputs, by position or by name."""

    def __call__(self, /, *inputs: Any, **named: Any) -> Any: ...


def prepare(model: Any, dtype: str | None = None) -> Prepared:
    """A faster function of the same inputs and outputs, for inference.

    It is derived from what the network computes: products on one input are joined, activations and sums are
    computed with the product before them, gains move into neighbouring weights, and weights are laid out once
    as the fastest kernel wants them. There are no gradients and no dropout. A call looks whether a parameter
    was changed, and prepares anew if so: results are never those of older weights.

    Args:
        model: from ``isomorph.torch.build`` or ``isomorph.nnx.build``, or a bound Linen module.
        dtype: what products are computed in, the plan's where omitted. ``bfloat16`` halves the memory of
            weights; in torch ``int8`` quarters it (weights alone, a step for each row, activations in
            bfloat16). Inputs and outputs keep the model's dtype.

    Returns:
        A callable that takes what the model takes. In float32 its results are within the bound of the plan's
        dtype; otherwise within that of bfloat16, with int8 the weights' steps beside it.

    Raises:
        IsomorphError: E_ARGUMENT for what is no model, or a dtype that its framework has no products for.
    """
    backend, engine = part_of_backend(model, "engine")
    if dtype is not None and dtype not in DTYPES[backend]:
        raise IsomorphError(
            "E_ARGUMENT", f"dtype must be one of {', '.join(DTYPES[backend])} for {backend}, got {shorten(dtype)}"
        )
    return engine.prepare(model, dtype)
