"""The text of a prepared function in PyTorch: which call serves which step of a rewritten program."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.nn import functional

from isomorph.backends.composing import Read, Writer, keywords, shape_text
from isomorph.backends.torch import eight_bits, kernels, primitives
from isomorph.backends.torch.store import Store
from isomorph.lowering import derived
from isomorph.lowering.derived import Weight
from isomorph.lowering.flatten import flattened, split_gelus
from isomorph.lowering.rewrite import Op, Rewritten

Tensor = torch.Tensor


def eager(program: Rewritten, store: Store, times: int = 1) -> Rewritten:
    """A program as it is best called step by step; see :func:`~isomorph.lowering.flatten.flattened`."""
    if store.device.type != "cpu":
        return program
    flat = flattened(program, times)
    return split_gelus(flat, lambda op: _is_tiny(op, flat, store))


def times_of_one_row(program: Rewritten, store: Store) -> int:
    """How often a step of generation had best compute a single row."""
    if store.eight_bits:
        return 1
    products = [op for op in program.ops if op.kind == "linear" and op.weight is not None]
    sizes = [_sizes(op, program) for op in products if _rows(op, program) == 1]
    return kernels.times_of_one_row(sizes, store.compute_dtype, store.device)


def _sizes(op: Op, program: Rewritten) -> tuple[int, int]:
    """``(O, I)`` of a product."""
    return program.shapes[op.outputs[0]][-1], program.shapes[op.inputs[0]][-1]


def _rows(op: Op, program: Rewritten) -> int:
    """How many rows a product multiplies."""
    return prod(program.shapes[op.inputs[0]][:-1])


_TINY = 1 << 16
"""Numbers of a weight of which another copy is nothing."""


def _is_tiny(op: Op, program: Rewritten, store: Store) -> bool:
    """Whether a product is small and PyTorch's own, in a precision that a factor in its weight does not harm."""
    sizes = _sizes(op, program)
    if prod(sizes) > _TINY or store.compute_dtype in primitives.HALVES:
        return False
    return not kernels.prefers_onednn(_rows(op, program), sizes, store.compute_dtype, store.device)


class TorchWriter(Writer):
    """See :class:`isomorph.backends.composing.Writer`.

    Attributes:
        scope: what the expressions name.

    Args:
        store: the weights.
        remembering: whether causal attention and positions are those of a memory, the argument ``M``.
        careful: whether attention looks at its keys and values, and else adds its sum to the list ``S``.
    """

    def __init__(self, store: Store, *, remembering: bool = False, careful: bool = False) -> None:
        self._store, self._remembering, self._careful = store, remembering, careful
        self._calls = 0
        self.scope: dict[str, Any] = {
            "P": primitives,
            "layer_norm": torch.layer_norm,
            "linear": functional.linear,
            "addmm": torch.addmm,
            "sdpa": functional.scaled_dot_product_attention,
            "summed": summed,
        }

    def name(self, value: Any, kind: str) -> str:
        """A name for a constant."""
        name = f"{kind}{len(self.scope)}"
        self.scope[name] = value
        return name

    def parameter(self, path: str) -> str:
        return self.name(self._store.tensor(derived.Stored(path)), "p")

    # -- shapes

    def _reshape(self, op: Op, read: Read, program: Rewritten) -> str:
        return f"{read(op.inputs[0])}.reshape{shape_text(program.shapes[op.outputs[0]])}"

    def _expand(self, op: Op, read: Read, program: Rewritten) -> str:
        return f"{read(op.inputs[0])}.expand{shape_text(program.shapes[op.outputs[0]])}"

    def _permute(self, op: Op, read: Read, program: Rewritten) -> str:
        axes = op.attributes["axes"]
        if sorted(axes) == list(range(len(axes))) and sum(i != axis for i, axis in enumerate(axes)) == 2:
            a, b = (i for i, axis in enumerate(axes) if i != axis)
            return f"{read(op.inputs[0])}.transpose({a}, {b})"
        return f"{read(op.inputs[0])}.permute{shape_text(axes)}"

    def _narrow(self, op: Op, read: Read, program: Rewritten) -> str:
        axis, start = op.attributes["axis"], op.attributes["start"]
        length = program.shapes[op.outputs[0]][axis]
        whole = program.shapes[op.inputs[0]][axis]
        return f"{read(op.inputs[0])}.narrow({axis}, {start % whole if whole else 0}, {length})"

    def _heads(self, op: Op, read: Read, program: Rewritten) -> str:
        B, T, H, d = op.attributes["shape"]
        parts = op.attributes["parts"]
        if T == 1:  # nothing changes its place
            return f"{read(op.inputs[0])}.view({B}, {parts}, {H}, 1, {d}).unbind(1)"
        return f"{read(op.inputs[0])}.view({B}, {T}, {parts}, {H}, {d}).permute(2, 0, 3, 1, 4).unbind(0)"

    # -- tables

    def _positions(self, op: Op, read: Read, program: Rewritten) -> str:
        if self._remembering:
            return f"M.positions({read(op.inputs[0])}, {op.attributes['length']})"
        return f"{read(op.inputs[0])}[:{op.attributes['length']}]"

    def _cos_sin(self, op: Op, read: Read, program: Rewritten) -> str:
        like = torch.empty(0, dtype=self._store.compute_dtype, device=self._store.device)
        if self._remembering:
            arguments = f"{op.attributes['length']}, {self.name(op.attributes['frequencies'], 'rates')}"
            return f"M.cos_sin({arguments}, {self.name(like, 'like')})"
        tables = primitives.cos_sin(op.attributes["length"], op.attributes["frequencies"], like)
        return self.name(tables, "tables")

    # -- norms, products, attention

    def weight(self, weight: Weight | None) -> str:
        return "None" if weight is None else self.name(self._store.tensor(weight), "w")

    def _layer_norm(self, op: Op, read: Read, program: Rewritten) -> str:
        x, weight, bias = self._norm(op, read)
        width = shape_text(program.shapes[op.outputs[0]][-1:])
        return f"layer_norm({x}, {width}, {weight}, {bias}, {op.attributes['eps']!r})"

    def _attention(self, op: Op, read: Read, program: Rewritten) -> str:
        q, k, v = map(read, op.inputs[:3])
        rules = op.attributes
        if self._remembering and rules["causal"]:
            call, self._calls = self._calls, self._calls + 1
            rule = f"window={rules['window']}, softcap={rules['softcap']!r}"
            return f"M.attend({call}, {q}, {k}, {v}, {rule})"
        shapes = [program.shapes[tensor] for tensor in op.inputs[:2]]
        (_, H, T, _), (_, K, S, _) = shapes
        if rules["mask"]:
            return f"P.attention({q}, {k}, {v}, {read(op.inputs[3])}{keywords(_without(rules, 'mask'))})"
        hides = rules["causal"] or rules["window"]
        if hides and (self._careful or self._remembering):
            return f"P.attention({q}, {k}, {v}, None{keywords(_without(rules, 'mask'))})"
        if rules["softcap"] or rules["window"] or (rules["causal"] and T != S):
            text = f"P.attend({q}, {k}, {v}, None{keywords(_without(rules, 'mask'))})"
        else:
            options = (", is_causal=True" if rules["causal"] else "") + (
                ", enable_gqa=True" if H != K else ""
            )
            text = f"sdpa({q}, {k}, {v}{options})"
        return f"summed({text}, S)" if hides else text

    def _linear(self, op: Op, read: Read, program: Rewritten) -> str:
        if op.weight is None:
            return f"P.linear({', '.join(map(read, op.inputs))})"
        x = read(op.inputs[0])
        shape = program.shapes[op.inputs[0]]
        rows = _rows(op, program)
        other = None if op.residual is None else read(op.residual)
        if self._store.eight_bits:
            return self._finish(self._by_eight_bits(op, x, program), op, other)
        if kernels.prefers_onednn(rows, _sizes(op, program), self._store.compute_dtype, self._store.device):
            return self._by_onednn(op, x, rows, other)
        weight, bias = self._store.tensor(op.weight), self.weight(op.bias)
        if len(shape) != 2 or (op.bias is None and other is None):
            return self._finish(f"linear({x}, {self.name(weight, 'w')}, {bias})", op, other)
        transposed = self.name(weight.t(), "w")
        if op.bias is None:
            return f"addmm({other}, {x}, {transposed})"
        return self._finish(f"addmm({bias}, {x}, {transposed})", op, other)

    def _by_onednn(self, op: Op, x: str, rows: int, other: str | None) -> str:
        assert op.weight is not None
        operators = kernels.onednn()
        assert operators is not None
        self.scope["onednn_linear"], self.scope["onednn_add"] = operators.linear, operators.add
        packed = self.name(self._store.packed(op.weight, rows), "w")
        bias = "None" if op.bias is None else self.name(self._store.unmarked(op.bias), "w")
        if other is not None:  # which may be a parameter, such as a table of positions
            self.scope["unmarked"] = kernels.unmarked
            return f'onednn_add({x}, unmarked({other}), {packed}, {bias}, "add")'
        attr, algorithm = "none", ""
        if op.activation is not None:
            known = kernels.fused(op.activation[0], dict(op.activation[1]))
            if known is None:
                return self._finish(f'onednn_linear({x}, {packed}, {bias}, "none", [], "")', op, None)
            attr, algorithm = known
        return f'onednn_linear({x}, {packed}, {bias}, "{attr}", [], "{algorithm}")'

    def _by_eight_bits(self, op: Op, x: str, program: Rewritten) -> str:
        assert op.weight is not None
        shape, sizes = program.shapes[op.inputs[0]], _sizes(op, program)
        rows = _rows(op, program)
        flat = f"{x}.contiguous()" if len(shape) == 2 else f"{x}.reshape({rows}, {shape[-1]}).contiguous()"
        whole = "" if len(shape) == 2 else f".view{shape_text(program.shapes[op.outputs[0]])}"
        if self._store.splits(op.weight, sizes):
            self.scope["split_linear"] = eight_bits.multiply_split
            weight = self.name(self._store.split(op.weight), "w")
            return f"split_linear({flat}, {weight}, {self.weight(op.bias)}){whole}"
        integers, steps = self._store.quantized(op.weight)
        if 0 in shape or not eight_bits.multiplies_eight_bits(integers):
            wide = self._store.dequantized(op.weight)
            return f"linear({x}, {self.name(wide, 'w')}, {self.weight(op.bias)})"
        few = rows < eight_bits.MANY_ROWS
        self.scope["int8_linear"] = (
            torch.ops.aten._weight_int8pack_mm.default if few else eight_bits.multiply_widened
        )
        arguments = f"{self.name(integers, 'w')}, {self.name(steps, 'w')}"
        product = f"int8_linear({flat}, {arguments}){whole}"
        return product if op.bias is None else f"({product} + {self.weight(op.bias)})"

    def _finish(self, product: str, op: Op, other: str | None) -> str:
        """The activation behind a product, or the tensor added to it."""
        if other is not None:
            return f"{product} + {other}"
        if op.activation is None:
            return product
        name, attributes = op.activation
        function = _BUILT_IN.get(name)
        if function is not None:
            self.scope[name] = function
        return f"{name if function else f'P.{name}'}({product}{keywords(dict(attributes))})"


def split_gelu(u: Tensor) -> Tensor:
    """See :func:`isomorph.lowering.flatten.split_gelus`."""
    return torch.addcmul(u, u, torch.erf(u))


_BUILT_IN = {
    "split_gelu": split_gelu,
    "gelu": functional.gelu,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
"""Activations that are called as they are."""


def summed(x: Tensor, sums: list[Tensor]) -> Tensor:
    """The tensor, its sum added to a list; a sum too large to represent is not finite either."""
    sums.append(x.sum(dtype=torch.float32 if x.dtype in primitives.HALVES else None))
    return x


def _without(attributes: Any, name: str) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if key != name}
