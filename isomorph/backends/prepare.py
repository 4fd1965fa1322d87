"""A model prepared for inference, or for training."""

from __future__ import annotations

from typing import Any, Protocol

from isomorph.backends.available import BACKENDS, part_for
from isomorph.errors import IsomorphError, shorten


class Prepared(Protocol):
    """A function of a network's inputs, by position or by name."""

    def __call__(self, /, *inputs: Any, **named: Any) -> Any: ...

    def refresh(self) -> None:
        """Prepare anew from the model as it is now, whatever can be seen of its changes."""
        ...


def prepare(
    model: Any, dtype: str | None = None, *, training: bool = False, checkpointing: bool = False
) -> Any:
    """A faster function of the same inputs and outputs, for inference; or a network that trains faster.

    It is derived from what the network computes: products on one input are joined, activations and sums are
    computed with the product before them, gains move into neighbouring weights, and weights are laid out once
    as the fastest kernel wants them. There are no gradients and no dropout, whatever mode the model is in.

    A call looks whether anything changed that a result depends on, and prepares anew if so: results are never
    those of older weights. ``docs/performance.md`` lists what cannot be seen; ``refresh()`` of what is returned
    prepares anew all the same. In JAX, what a compiled function closes over it keeps: there the weights are
    those at the time of tracing. A model that is no longer what its plan says (another layer, a hook, an
    adapter, a parametrization, on the meta device), and one under autocast, is called itself, in evaluation
    mode; the former is said once, as a warning. A copy, also by ``pickle``, is an engine of a copied model.

    Args:
        model: from ``isomorph.torch.build`` or ``isomorph.nnx.build``, or a bound Linen module.
        dtype: what products are computed in, the model's where omitted. ``bfloat16`` halves the memory of
            weights; in torch ``int8`` quarters it (weights alone, a step for each row, activations in
            bfloat16). Inputs and outputs keep the model's dtype.
        training: give a network with the same parameters, which trains faster on some CPUs; PyTorch alone.
            It is a module: call it, differentiate it, optimise its parameters, which are the model's own.
        checkpointing: with ``training``: keep each node's inputs alone for the backward pass, and compute
            what is inside anew. It takes less memory and more time.

    Returns:
        A callable that takes what the model takes. In float32 its results are within the bound of float32 from
        the reference's, in bfloat16 and int8 within that of bfloat16 (``docs/numbers.md``). With ``training``
        a ``torch.nn.Module``.

    Raises:
        IsomorphError: E_ARGUMENT for what is no model, for one that is prepared already, for a dtype that its
            framework has no products for, or for ``training`` of a Flax model.
    """
    backend, engine = part_for(model, "engine")
    if isinstance(model, engine.Engine):
        raise IsomorphError("E_ARGUMENT", "the model is prepared already", hints=["prepare the model itself"])
    if training:
        if dtype is not None:
            raise IsomorphError(
                "E_ARGUMENT",
                f"a network for training computes in its own dtype, got dtype={shorten(dtype)}",
                hints=["use torch.autocast around the forward pass"],
            )
        return engine.prepare_training(model, checkpointing=checkpointing)
    if checkpointing:
        raise IsomorphError(
            "E_ARGUMENT",
            "checkpointing is for training",
            hints=["prepare(model, training=True, checkpointing=True)"],
        )
    dtypes = BACKENDS[backend].dtypes
    if dtype is not None and dtype not in dtypes:
        raise IsomorphError(
            "E_ARGUMENT",
            f"dtype must be one of {', '.join(dtypes)} for {backend}, got {shorten(dtype)}",
        )
    return engine.prepare(model, dtype)
