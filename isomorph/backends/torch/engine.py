"""Prepared inference in PyTorch: a plan's rewritten program as one function of tensors.

The function is written for the sizes of the inputs at hand and kept for the next call with the same ones.
Weights are derived and packed once. See :mod:`isomorph.backends.trace.rewrite` for what is rewritten.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from operator import attrgetter
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from isomorph.backends.engine import (
    PATH_MARK,
    PROGRAM,
    Read,
    Writer,
    compose,
    defined,
    keywords,
    shape_text,
    tables_read,
)
from isomorph.backends.memory import Reading
from isomorph.backends.torch import eight_bits, kernels, primitives
from isomorph.backends.torch.build import Network
from isomorph.backends.torch.watching import Watch, count_steps, departure, expected_parts, in_evaluation
from isomorph.backends.torch.weights import unwrap
from isomorph.backends.trace import derived
from isomorph.backends.trace.build import trace
from isomorph.backends.trace.derived import Weight
from isomorph.backends.trace.flatten import flattened, split_gelus
from isomorph.backends.trace.rewrite import Op, Rewritten, rewritten
from isomorph.errors import IsomorphError

Tensor = torch.Tensor
MOST_PROGRAMS = 64
"""How many sets of sizes are kept; beyond them the oldest is written again when it is met."""


class Engine:
    """A model, prepared. Made by :func:`prepare`; takes and returns what the model does.

    It computes without gradients and without dropout. Every call looks whether the model changed
    (:class:`~isomorph.backends.torch.watching.Watch` says what is noticed), and prepares anew if so. A model
    that is no longer what its plan says, because of a hook or of another layer, is called itself.
    """

    def __init__(self, network: Network, dtype: str | None) -> None:
        self.plan, self.network = network.plan, network
        self._contracts, self._float_inputs = network._contracts, network._compute_inputs
        self._names = [name for name, _ in self.plan.outputs]
        self._dtype = dtype
        self._expected = expected_parts(self.plan)
        self._lock = Lock()
        self._told: set[str] = set()
        count_steps()
        self._state = self._derived()

    def __call__(self, /, *inputs: Tensor, **named: Tensor) -> Any:
        state = self._state
        try:
            program = None if named else state.ready.get((*map(_shape_and_dtype, inputs),))
        except (AttributeError, TypeError):  # what is no tensor is refused below
            program = None
        if program is None or not state.watch.unchanged() or torch.is_autocast_enabled(state.device_type):
            tensors, state, program = self._checked(inputs, named)
            if program is None:
                return self._by_model(tensors)
            inputs = (*tensors,)
        results = self._run(program, state, inputs)
        if len(results) == 1:
            return results[0]
        return dict(zip(self._names, results, strict=True))

    def _checked(
        self, inputs: Sequence[Tensor], named: Mapping[str, Tensor]
    ) -> tuple[list[Tensor], State, Program | None]:
        """The inputs in order, the state they meet, and the program for them; no program where the model serves."""
        tensors = self._contracts.bind(inputs, named)
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                self.network._refuse_type(tensors)
        sizes = self._contracts.check(tensors)
        state = self.current()
        if state.departure or torch.is_autocast_enabled(state.device_type):
            return tensors, state, None
        for index in self._float_inputs:
            if tensors[index].dtype != state.store.model_dtype:
                self.network._check_dtype(index, tensors[index])
        program = state.programs.get((*sizes.values(),)) or self._written(state, sizes)
        if program is not None:
            if len(state.ready) >= MOST_PROGRAMS:
                state.ready.clear()
            state.ready[(*map(_shape_and_dtype, tensors),)] = program
        return tensors, state, program

    def current(self) -> State:
        """What was derived from the model as it is now; prepared anew if it changed since."""
        state = self._state
        if not state.departure and state.watch.unchanged():
            return state
        with self._lock:
            state = self._state
            if state.departure or not state.watch.unchanged():
                state = self._state = self._derived()
        if state.departure:
            self._say(state.departure)
        return state

    def _derived(self) -> State:
        watch = Watch(
            self.network
        )  # before anything is read: what changes meanwhile is noticed by the next call
        found = departure(self.network, self._expected)
        return State(watch, Store(self.network, self._dtype), found)

    def _run(self, program: Program, state: State, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        try:
            if not (program.summing or torch.is_grad_enabled()):
                return program.run(*tensors)
            with torch.no_grad():
                if not program.summing:
                    return program.run(*tensors)
                sums: list[Tensor] = []
                results = program.run(sums, *tensors)
                total = float(torch.stack(sums).sum())
                if total - total == 0:
                    return results
                careful = self._written(state, self._contracts.check(tensors), careful=True)
                return results if careful is None else careful.run(*tensors)
        except Exception as error:
            self._tell_where(error, program)
            raise

    def _written(self, state: State, sizes: Mapping[str, int], *, careful: bool = False) -> Program | None:
        """The program for some sizes; None when there is none, and the model says why itself."""
        key = ("careful", *sizes.values()) if careful else (*sizes.values(),)
        known = state.programs.get(key)
        if known is not None:
            return known
        if sizes.keys() != set(self.plan.symbols):
            return None  # the inputs' shapes leave a size open
        try:
            program = state.write(rewritten(trace(self.plan, sizes)), careful)
        except IsomorphError:  # such as a mean over no tokens
            return None
        state.programs[key] = program
        if len(state.programs) > MOST_PROGRAMS:
            with suppress(KeyError):  # another thread was first
                state.programs.popitem(last=False)
            state.ready.clear()  # it may hold what was forgotten
        return program

    def _by_model(self, tensors: Sequence[Tensor]) -> Any:
        with torch.no_grad():
            return in_evaluation(self.network)(*tensors)

    def _say(self, reason: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            warnings.warn(
                f"isomorph: the prepared model calls the model itself, since {reason}; "
                "it is faster again when that is undone",
                RuntimeWarning,
                stacklevel=5,
            )

    def _tell_where(self, error: Exception, program: Program) -> None:
        """Add the node, as an error of the model does."""
        step = error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename == PROGRAM and step.tb_lineno <= len(program.paths):
                node = program.paths[step.tb_lineno - 1].partition(".")[0]
                if node:
                    self.network._tell_where(error, node)
                return
            step = step.tb_next


_shape_and_dtype = attrgetter("shape", "dtype")


class Program(NamedTuple):
    """A rewritten program as a function.

    Attributes:
        run: from tensors to the tuple of outputs; with ``summing`` it takes a list first.
        summing: whether it adds to that list the sum of what every causal attention gives. Kernels multiply
            what a query may not see by zero, which lets a NaN through; then these are not finite.
        paths: which operator each line of its source belongs to.
    """

    run: Callable[..., tuple[Tensor, ...]]
    summing: bool
    paths: tuple[str, ...]


class State:
    """A model at one moment, and what was derived from it.

    Attributes:
        watch: tells whether the model is still as it was.
        store: derived weights.
        departure: what makes the model another than its plan says; then nothing is derived.
        programs: by sizes.
        ready: the same by the shapes and dtypes of inputs that were found to be right.
        steps: of generation, by sizes.
    """

    def __init__(self, watch: Watch, store: Store, departure: str) -> None:
        self.watch, self.store, self.departure = watch, store, departure
        self.device_type = store.device.type
        self.programs: OrderedDict[tuple[Any, ...], Program] = OrderedDict()
        self.ready: dict[tuple[Any, ...], Program] = {}
        self.steps: OrderedDict[Any, Any] = OrderedDict()
        self._reading = Reading()

    def generating(self, slots: int) -> None:
        """A generation of so many ids begins."""
        if self._reading.pays(slots):
            self.store.keep_at_hand()

    def write(self, program: Rewritten, careful: bool) -> Program:
        """A function of the model's inputs.

        Args:
            program: what it computes.
            careful: whether it keeps what is not finite from queries that may not see it, in every attention.
        """
        store = self.store
        program = eager(program, store)
        summing = not careful and any(map(_hides_positions, program.ops))
        writer = TorchWriter(store, careful=careful)
        with torch.no_grad():
            text = compose(program, writer, leading=["S"] if summing else [])
        run = defined(text, writer.scope)
        if store.device.type == "cuda":
            run = compiled(run, [(index + summing, rows) for index, rows in tables_read(program)])
        if store.compute_dtype != store.model_dtype:
            floating = [
                program.dtypes[tensor].startswith(("float", "bfloat")) for tensor in program.inputs.values()
            ]
            run = _casting(
                run, [False, *floating] if summing else floating, store.compute_dtype, store.model_dtype
            )
        return Program(run, summing, tuple(line.partition(PATH_MARK)[2] for line in text.splitlines()))


def eager(program: Rewritten, store: Store, times: int = 1) -> Rewritten:
    """A program as it is best called step by step; see :func:`~isomorph.backends.trace.flatten.flattened`."""
    if store.device.type != "cpu":
        return program
    flat = flattened(program, times)
    return split_gelus(flat, lambda op: _is_tiny(op, flat, store))


def times_of_one_row(program: Rewritten, store: Store) -> int:
    """How often a step of generation had best compute a single row."""
    if store.eight_bits:
        return 1
    sizes = [_sizes(op, program) for op in program.ops if op.kind == "linear" and op.weight is not None]
    return kernels.times_of_one_row(sizes, store.compute_dtype, store.device)


def _sizes(op: Op, program: Rewritten) -> tuple[int, int]:
    """``(O, I)`` of a product."""
    return program.shapes[op.outputs[0]][-1], program.shapes[op.inputs[0]][-1]


_TINY = 1 << 16
"""Numbers of a weight of which another copy is nothing."""


def _is_tiny(op: Op, program: Rewritten, store: Store) -> bool:
    """Whether a product is small and PyTorch's own, in a precision that a factor in its weight does not harm."""
    sizes = _sizes(op, program)
    rows = prod(program.shapes[op.inputs[0]][:-1])
    if prod(sizes) > _TINY or store.compute_dtype in primitives.HALVES:
        return False
    return not kernels.prefers_onednn(rows, sizes, store.compute_dtype, store.device)


def _hides_positions(op: Op) -> bool:
    told = op.attributes
    return op.kind == "attention" and not told["mask"] and bool(told["causal"] or told["window"])


def _casting(
    run: Callable[..., tuple[Tensor, ...]], floating: Sequence[bool], inner: torch.dtype, outer: torch.dtype
) -> Callable[..., tuple[Tensor, ...]]:
    """The function in another dtype, its inputs and outputs in the model's."""

    def cast(*given: Any) -> tuple[Tensor, ...]:
        tensors = [x.to(inner) if is_float else x for x, is_float in zip(given, floating, strict=True)]
        return tuple(y.to(outer) if y.is_floating_point() else y for y in run(*tensors))

    return cast


def compiled(
    run: Callable[..., tuple[Tensor, ...]], tables: Sequence[tuple[int, int]] = ()
) -> Callable[..., tuple[Tensor, ...]]:
    """On a GPU: by ``torch.compile`` from the second call on, and as it is where that fails.

    Args:
        run: the function.
        tables: which of its arguments are looked up in a table, and the rows of that: what is compiled does
            not refuse an id outside it.
    """
    found: list[Any] = []

    def call(*tensors: Any) -> tuple[Tensor, ...]:
        if not found:  # sizes that are met once are not worth compiling for
            results = run(*tensors)
            found.append(torch.compile(run, dynamic=False))
            return results
        for index, rows in tables:
            primitives.check_ids(tensors[index], rows)
        try:
            return found[0](*tensors)
        except Exception as error:
            results = run(*tensors)  # an error of the inputs is raised here, in the framework's own words
            if found[0] is not run:
                found[0] = run
                reason = str(error).partition("\n")[0]
                warnings.warn(
                    f"isomorph: torch.compile failed for a prepared model ({reason}); it runs uncompiled",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return results

    return call


class Store:
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
        return self._once(("tensor", weight), lambda: self._made(weight, self.compute_dtype))

    def packed(self, weight: Weight, rows: int) -> Tensor:
        """The value as oneDNN wants it."""
        operators = kernels.onednn()
        assert operators is not None
        return self._once(("packed", weight), lambda: operators.pack(self._unkept(weight), rows))

    def keep_at_hand(self) -> None:
        """Let weights be read faster, which takes a while."""
        for kept in list(self._kept.values()):
            for weight in kept if isinstance(kept, tuple) else (kept,):  # with its steps
                kernels.keep_at_hand(weight)

    def quantized(self, weight: Weight) -> tuple[Tensor, Tensor]:
        """``[O, I]`` as integers from -127 to 127, and the step of each row."""

        return self._once(("quantized", weight), lambda: self._rounded(weight))

    def split(self, weight: Weight) -> eight_bits.Split:
        """The same for products by split activations, in place of the integers."""
        return self._once(("split", weight), lambda: eight_bits.packed(*self._rounded(weight)))

    def _rounded(self, weight: Weight) -> tuple[Tensor, Tensor]:
        wide = self._made(weight, torch.float32)
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
        return self._made(weight, self.compute_dtype) if kept is None else kept

    def _made(self, weight: Weight, dtype: torch.dtype) -> Tensor:
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


class TorchWriter(Writer):
    """See :class:`isomorph.backends.engine.Writer`.

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
        return self.name(self._store.tensor(derived.Parameter(path)), "p")

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
            told = f"{op.attributes['length']}, {self.name(op.attributes['frequencies'], 'rates')}"
            return f"M.cos_sin({told}, {self.name(like, 'like')})"
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
        told = op.attributes
        if self._remembering and told["causal"]:
            call, self._calls = self._calls, self._calls + 1
            rule = f"window={told['window']}, softcap={told['softcap']!r}"
            return f"M.attend({call}, {q}, {k}, {v}, {rule})"
        shapes = [program.shapes[tensor] for tensor in op.inputs[:2]]
        (_, H, T, _), (_, K, S, _) = shapes
        if told["mask"]:
            return f"P.attention({q}, {k}, {v}, {read(op.inputs[3])}{keywords(_without(told, 'mask'))})"
        hides = told["causal"] or told["window"]
        if hides and (self._careful or self._remembering):
            return f"P.attention({q}, {k}, {v}, None{keywords(_without(told, 'mask'))})"
        if told["softcap"] or told["window"] or (told["causal"] and T != S):
            text = f"P.attend({q}, {k}, {v}, None{keywords(_without(told, 'mask'))})"
        else:
            options = (", is_causal=True" if told["causal"] else "") + (", enable_gqa=True" if H != K else "")
            text = f"sdpa({q}, {k}, {v}{options})"
        return f"summed({text}, S)" if hides else text

    def _linear(self, op: Op, read: Read, program: Rewritten) -> str:
        if op.weight is None:
            return f"P.linear({', '.join(map(read, op.inputs))})"
        x = read(op.inputs[0])
        shape = program.shapes[op.inputs[0]]
        rows = prod(shape[:-1])
        other = None if op.residual is None else read(op.residual)
        if self._store.eight_bits:
            return self._finish(self._by_eight_bits(op, x, program), op, other)
        bias = self.weight(op.bias)
        if kernels.prefers_onednn(rows, _sizes(op, program), self._store.compute_dtype, self._store.device):
            return self._by_onednn(op, x, rows, bias, other)
        weight = self._store.tensor(op.weight)
        if len(shape) != 2 or (op.bias is None and other is None):
            return self._finish(f"linear({x}, {self.name(weight, 'w')}, {bias})", op, other)
        transposed = self.name(weight.t(), "w")
        if op.bias is None:
            return f"addmm({other}, {x}, {transposed})"
        return self._finish(f"addmm({bias}, {x}, {transposed})", op, other)

    def _by_onednn(self, op: Op, x: str, rows: int, bias: str, other: str | None) -> str:
        assert op.weight is not None
        operators = kernels.onednn()
        assert operators is not None
        self.scope["onednn_linear"], self.scope["onednn_add"] = operators.linear, operators.add
        packed = self.name(self._store.packed(op.weight, rows), "w")
        if other is not None:
            return f'onednn_add({x}, {other}, {packed}, {bias}, "add")'
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
        rows = prod(shape[:-1])
        flat = x if len(shape) == 2 else f"{x}.reshape({rows}, {shape[-1]})"
        whole = "" if len(shape) == 2 else f".view{shape_text(program.shapes[op.outputs[0]])}"
        if eight_bits.prefers_split(sizes, self._store.device):
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
        told = f"{self.name(integers, 'w')}, {self.name(steps, 'w')}"
        product = f"int8_linear({flat}.contiguous(), {told}){whole}"
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
    """See :func:`isomorph.backends.trace.flatten.split_gelus`."""
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


def prepare(model: nn.Module, dtype: str | None = None) -> Engine:
    """A faster function of the same inputs and outputs; see :func:`isomorph.prepare`."""
    return Engine(unwrap(model), dtype)
