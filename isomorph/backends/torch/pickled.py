"""Arrays in files that ``torch.save`` wrote, read without executing anything in them."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import torch

from isomorph.errors import IsomorphError, shorten


def read_pickled(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a state dictionary by name, through torch's ``weights_only`` reader.

    The newer, zipped form is mapped into memory and read when a tensor is used; the older one is read whole.

    Raises:
        IsomorphError: E_CHECKPOINT when the file is damaged, holds anything that would have to be executed,
            or holds something else than tensors by name, or tensors that declare more than the file holds.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of pickles that it then refuses
            # Only the zipped form can be mapped.
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (
        Exception
    ) as error:  # of a damaged file its reader raises whatever comes (IndexError, struct.error)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{path} cannot be read as tensors alone: {reason[:200]}",
            hints=["nothing in it was executed; it is damaged, or holds more than tensors"],
        ) from None
    if not isinstance(content, dict):
        raise IsomorphError(
            "E_CHECKPOINT", f"{path} holds {shorten(type(content).__name__)}, expected tensors by name"
        )
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{path} holds {shorten(type(tensor).__name__)} under {shorten(name)}, expected tensors by name",
                hints=["a training checkpoint holds more than a model: save its state_dict() alone"],
            )
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{path} holds {shorten(name)} as a sparse, quantized or empty tensor, expected a dense one",
            )
        declared, length = tensor.numel() * tensor.element_size(), path.stat().st_size
        if declared > length:  # one number can stand for any count of them (a stride of 0)
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{path} declares {declared:,} bytes of numbers for {shorten(name)}, but has {length:,} bytes in all",
                hints=["save the tensor's clone(), which holds every number"],
            )
    return content
