"""Prepared inference in PyTorch: a plan's rewritten program as one function of tensors.

The function is written for the sizes of the inputs at hand and kept for the next call with the same ones.
Weights are derived and packed once. See :mod:`isomorph.lowering.rewrite` for what is rewritten.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn

from isomorph.backends.composing import (
    PATH_MARK,
    PROGRAM,
    compose,
    defined,
    tables_read,
)
from isomorph.backends.engine import PreparedModel
from isomorph.backends.large_pages import Uses
from isomorph.backends.torch import primitives
from isomorph.backends.torch.fast_training import prepare_training
from isomorph.backends.torch.network import Network
from isomorph.backends.torch.store import Store
from isomorph.backends.torch.twins import in_evaluation
from isomorph.backends.torch.watching import Watch, departure, expected_parts
from isomorph.backends.torch.weights import unwrap
from isomorph.backends.torch.writer import TorchWriter, eager
from isomorph.errors import IsomorphError
from isomorph.lowering.rewrite import Op, Rewritten, rewritten
from isomorph.trace.build import trace

__all__ = ["Engine", "prepare", "prepare_training"]

Tensor = torch.Tensor
MOST_PROGRAMS = 64
"""How many sets of sizes are kept; beyond them the oldest is written again when it is met."""


class Engine(PreparedModel["State"]):
    """A model, prepared. Made by :func:`prepare`; takes and returns what the model does.

    It computes without gradients and without dropout. Every call looks whether the model changed
    (:class:`~isomorph.backends.torch.watching.Watch` says what is noticed), and prepares anew if so. A model
    that is no longer what its plan says, because of a hook or of another layer, is called itself.
    """

    __name__ = "prepared"  # what torch.jit.trace calls a function that it is given

    def __init__(self, network: Network, dtype: str | None) -> None:
        self.network = network
        self._contracts, self._float_inputs = network._contracts, network._compute_inputs
        self._dtype = dtype
        self._expected = expected_parts(network.plan)
        super().__init__(network.plan)

    def __call__(self, /, *inputs: Tensor, **named: Tensor) -> Any:
        state = self._state
        try:
            program = None if named else state.ready.get((*map(_kind, inputs),))
        except (AttributeError, TypeError, RuntimeError):  # what is no tensor is refused below
            program = None
        if program is None or not state.watch.unchanged() or torch.is_autocast_enabled(state.device_type):
            tensors, state, program = self._checked(inputs, named)
            if program is None:
                return self._by_model(tensors)
            inputs = (*tensors,)
        return self._returned(self._run(program, state, inputs))

    def _checked(
        self, inputs: Sequence[Tensor], named: Mapping[str, Tensor]
    ) -> tuple[list[Tensor], State, Program | None]:
        """The inputs in order, the state they meet, and the program for them; no program where the model serves."""
        tensors = self._contracts.bind(inputs, named)
        for tensor in tensors:
            if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or tensor.is_nested:
                self.network._refuse_type(tensors)
            if tensor.is_meta:
                self.network._check_device(tensors)
        if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
            raise IsomorphError(
                "E_RUNTIME",
                "a prepared model cannot be traced: its weights would become constants of the trace",
                hints=["trace the model itself, or export it: torch.export.export(model, (x,))"],
            )
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
            state.ready[(*map(_kind, tensors),)] = program
        return tensors, state, program

    def _unchanged(self, state: State) -> bool:
        return state.watch.unchanged()

    def __reduce__(self) -> tuple[Any, ...]:
        return prepare, (self.network, self._dtype)  # what is derived is derived anew, from a copied model

    def _derived(self, before: State | None) -> State:
        watch = Watch(self.network)  # before anything is read: the next call notices what changes meanwhile
        reason = departure(self.network, self._expected)
        if before is not None and not (reason or before.departure) and before.watch.same_values(watch):
            before.watch = watch
            return before
        return State(watch, Store(self.network, self._dtype), reason)

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


_kind = attrgetter("shape", "dtype", "layout", "device")


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
        self.device_type = (
            "cpu" if store.device.type == "meta" else store.device.type
        )  # autocast knows no meta
        self.programs: OrderedDict[tuple[Any, ...], Program] = OrderedDict()
        self.ready: dict[tuple[Any, ...], Program] = {}
        self.steps: OrderedDict[Any, Any] = OrderedDict()
        self._uses = Uses()

    def stepped(self) -> None:
        """Another single id was read."""
        if self._uses.pays():
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


def _hides_positions(op: Op) -> bool:
    rule = op.attributes
    return op.kind == "attention" and not rule["mask"] and bool(rule["causal"] or rule["window"])


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
    functions: list[Any] = []

    def call(*tensors: Any) -> tuple[Tensor, ...]:
        if not functions:  # sizes that are met once are not worth compiling for
            results = run(*tensors)
            functions.append(torch.compile(run, dynamic=False))
            return results
        for index, rows in tables:
            primitives.check_ids(tensors[index], rows)
        try:
            return functions[0](*tensors)
        except Exception as error:
            results = run(*tensors)  # an error of the inputs is raised here, in the framework's own words
            if functions[0] is not run:
                functions[0] = run
                reason = str(error).partition("\n")[0]
                warnings.warn(
                    f"isomorph: torch.compile failed for a prepared model ({reason}); it runs uncompiled",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return results

    return call


def prepare(model: nn.Module, dtype: str | None = None) -> Engine:
    """A faster function of the same inputs and outputs; see :func:`isomorph.prepare`."""
    return Engine(unwrap(model), dtype)
