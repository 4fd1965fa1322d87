"""Keys and values of the positions so far, which steps of generation read and add to."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch

from isomorph.backends.decoding import KeyValueCache, no_memory
from isomorph.backends.torch import primitives

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]


class TorchKeyValueCache(KeyValueCache):
    """Keys and values in tensors that are written in place, and replaced by longer ones when they are full.

    In half precision on the CPU they are kept in float32, since one query takes PyTorch several times as long
    in half precision.

    Args:
        capacity: slots at first.
        pads: the first slot of each row, ``[B]``, or None when all begin at 0.
    """

    def __init__(self, capacity: int, pads: Tensor | None) -> None:
        self.capacity, self.pads = capacity, pads
        self.first = 0 if pads is None else int(pads.max())  # from this slot on every row has begun
        self.offset = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.shown = self._shown()

    def attend(self, call: int, q: Tensor, k: Tensor, v: Tensor, *, window: int, softcap: float) -> Tensor:
        T = k.shape[2]
        end = self.offset + T
        keys, values = self._room(call, k, v, end)
        if (
            self.shown is not None and self.offset < self.first
        ):  # what padding holds is never used, NaN neither
            kept = self.shown[:, None, self.offset : end, None]  # (B, 1, T, 1)
            k, v = torch.where(kept, k, 0.0), torch.where(kept, v, 0.0)
        keys.narrow(2, self.offset, T).copy_(k)
        values.narrow(2, self.offset, T).copy_(v)
        start = max(0, end - T - window + 1) if window else 0
        keys, values = keys.narrow(2, start, end - start), values.narrow(2, start, end - start)
        mask = None if self.shown is None or start >= self.first else self.shown[:, start:end]
        # One new position sees every slot that is left.
        causal, window = T > 1, window if T > 1 else 0
        same = q.dtype == keys.dtype
        queries = q if same else q.to(keys.dtype)
        attended = primitives.attend(
            queries, keys, values, mask, causal=causal, window=window, softcap=softcap
        )
        return attended if same else attended.to(q.dtype)

    def _shown(self) -> Tensor | None:
        """Which slots hold ids, ``[B, C]``; None for all."""
        if self.pads is None:
            return None
        return torch.arange(self.capacity, device=self.pads.device) >= self.pads[:, None]

    def _room(self, call: int, k: Tensor, v: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """The keys and values of an attention, with room up to a slot."""
        if end > self.capacity:
            self.capacity = max(end, 2 * self.capacity)
            self.shown = self._shown()
        if call == len(self.keys):
            self.keys.append(self._longer(k[:, :, :0]))
            self.values.append(self._longer(v[:, :, :0]))
        elif self.keys[call].shape[2] < self.capacity:
            self.keys[call] = self._longer(self.keys[call])
            self.values[call] = self._longer(self.values[call])
        return self.keys[call], self.values[call]

    def _longer(self, old: Tensor) -> Tensor:
        shape = (*old.shape[:2], self.capacity, old.shape[3])
        widened = old.dtype in primitives.HALVES and old.device.type == "cpu"
        try:
            new = old.new_empty(shape, dtype=torch.float32 if widened else old.dtype)
        except (RuntimeError, MemoryError) as error:
            raise no_memory(
                shape[0] * shape[2], prod(shape) * (4 if widened else old.element_size())
            ) from error
        new[:, :, : old.shape[2]] = old
        return new

    def positions(self, table: Tensor, length: int) -> Tensor:
        if self.pads is None:
            return primitives.narrow(table, 0, self.offset, self.offset + length)
        return table[self._places(length)]  # (B, T, D)

    def cos_sin(self, length: int, frequencies: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
        end = self.offset + length
        cos, sin = primitives.cos_sin(end, frequencies, like)
        if self.pads is None:
            return cos[self.offset :], sin[self.offset :]
        places = self._places(length)
        return cos[places], sin[places]  # (B, T, d/2)

    def _places(self, length: int) -> Tensor:
        """Positions ``[B, T]`` of the new slots; those of padding are 0."""
        assert self.pads is not None
        slots = torch.arange(self.offset, self.offset + length, device=self.pads.device)
        return (slots - self.pads[:, None]).clamp(min=0)


def to_scores(scores: Tensor) -> Array:
    """Scores in NumPy, half precision as float32; the memory may be the tensor's."""
    return (scores.float() if scores.dtype in primitives.HALVES else scores).detach().cpu().numpy()
