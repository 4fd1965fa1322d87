"""Weights of a prepared model in PyTorch: derived, packed or rounded, each once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from isomorph.backends.torch import eight_bits, kernels
from isomorph.backends.torch.network import Network
from isomorph.lowering import derived
from isomorph.lowering.derived import Weight

Tensor = torch.Tensor


class Store(derived.Arithmetic):
    """What was derived from a model's weights, each once.

    Args:
        network: the model.
        mode: the compute dtype, ``int8`` for weights of eight bits and bfloat16 elsewhere, None for the
            model's dtype.
    """

    def __init__(self, network: Network, mode: str | None) -> None:
        self._network = network
        self._kept: dict[Any, Any] = {}
        first = next((p for p in network.parameters() if p.is_floating_point()), None)
        if first is None:
            first = network.get_buffer("_empty") if not network.plan.parameters else torch.empty(0)
        self.model_dtype, self.device = first.dtype, first.device
        self.eight_bits = mode == "int8"
        narrow = "bfloat16" if self.eight_bits else mode
        self.compute_dtype = self.model_dtype if narrow is None else getattr(torch, narrow)

    def tensor(self, weight: Weight) -> Tensor:
        """An expression's value in the compute dtype; a lone parameter shares the model's memory."""
        return self._once(("tensor", weight), lambda: self._evaluated(weight, self.compute_dtype))

    def unmarked(self, weight: Weight) -> Tensor:
        """The value where oneDNN may read it."""
        return self._once(("unmarked", weight), lambda: kernels.unmarked(self.tensor(weight)))

    def packed(self, weight: Weight, rows: int) -> Tensor:
        """The value as oneDNN wants it."""
        operators = kernels.onednn()
        assert operators is not None
        return self._once(
            ("packed", weight), lambda: operators.pack(kernels.unmarked(self._unkept(weight)), rows)
        )

    def keep_at_hand(self) -> None:
        """Let the weights of products be read faster, which takes a while."""
        for (kind, _), kept in list(self._kept.items()):
            if kind in ("packed", "quantized", "split"):
                kernels.keep_at_hand(kept if kind == "packed" else kept[0])

    def quantized(self, weight: Weight) -> tuple[Tensor, Tensor]:
        """``[O, I]`` as integers from -127 to 127, and the step of each row."""
        return self._once(("quantized", weight), lambda: self._rounded(weight))

    def splits(self, weight: Weight, sizes: tuple[int, int]) -> bool:
        """Whether products by a weight of these sizes split activations; decided once, so that it is kept once."""
        return self._once(("splits", weight), lambda: eight_bits.prefers_split(sizes, self.device))

    def split(self, weight: Weight) -> eight_bits.Split:
        """The same for products by split activations, in place of the integers."""
        return self._once(("split", weight), lambda: eight_bits.packed(*self._rounded(weight)))

    def _rounded(self, weight: Weight) -> tuple[Tensor, Tensor]:
        wide = self._evaluated(weight, torch.float32)
        step = (wide.abs().amax(1) / 127).clamp(min=1e-30).to(torch.bfloat16)
        integers = (wide / step.float()[:, None]).round().clamp(-127, 127)
        return integers.to(torch.int8), step

    def dequantized(self, weight: Weight) -> Tensor:
        """What :meth:`quantized` stands for, for sizes that no kernel of eight bits takes."""

        def make() -> Tensor:
            integers, steps = self.quantized(weight)
            return (integers.float() * steps.float()[:, None]).to(self.compute_dtype)

        return self._once(("dequantized", weight), make)

    def _unkept(self, weight: Weight) -> Tensor:
        kept = self._kept.get(("tensor", weight))
        return self._evaluated(weight, self.compute_dtype) if kept is None else kept

    def _evaluated(self, weight: Weight, dtype: torch.dtype) -> Tensor:
        return derived.evaluate(weight, self).to(self.device, dtype)

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    # -- the arithmetic of derived weights

    def parameter(self, path: str) -> Tensor:
        return self._network.get_parameter(path).detach()

    def wide(self, array: Tensor) -> Tensor:
        return array.to("cpu", torch.float64) if self.device.type == "mps" else array.double()

    def times(self, array: Tensor, factor: Any) -> Tensor:
        return self.wide(array) * factor

    def apply(self, matrix: Tensor, vector: Tensor) -> Tensor:
        return self.wide(matrix) @ vector

    def zeros(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=self.compute_dtype, device=self.device)

    def join(self, arrays: list[Tensor]) -> Tensor:
        dtype = torch.float32 if self.eight_bits else self.compute_dtype
        return torch.cat([array.to(self.device, dtype) for array in arrays])
