"""The Flax NNX trainer: see :class:`isomorph.backends.trainer.Trainer`, whose contract it keeps.

A step is one compiled function of everything it depends on: parameters and moments (whose memory it takes
over), frozen parameters, batch, learning rate, and the words that dropout draws from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax import numpy as jnp

from isomorph.backends import trainer
from isomorph.backends.jax.layers import places
from isomorph.backends.jax.weights import to_jax, to_plan
from isomorph.backends.nnx.build import build
from isomorph.backends.nnx.layers import Frozen
from isomorph.backends.trainer import (
    FIRST,
    IGNORED,
    SECOND,
    WEIGHTS,
    Batch,
    StepResult,
    Totals,
    check_state,
    compute_dtype,
    is_decayed,
    step_key,
    trained_parameters,
)
from isomorph.backends.training_config import TrainingConfig
from isomorph.errors import IsomorphError
from isomorph.plan import Plan
from isomorph.weights.initial import numpy_dtype

Array = np.ndarray[Any, Any]
Arrays = dict[str, jax.Array]
"""Parameters, or numbers for each of them, by plan path in Flax's axis order."""

_RANDOM, _WORDS = "rbg", 4
"""JAX's generator for dropout and the length of its keys. JAX's own default compiles for a second per dropout."""


class Trainer(trainer.Trainer):
    """A network with AdamW. Parameters and moments are float32 (float64 for a float64 plan).

    It computes in its plan's dtypes whether or not the process has JAX's float64 switched on, and leaves that
    switch alone. On the CPU equal steps give equal bits, run after run. A batch's shape is compiled once.
    """

    def __init__(self, plan: Plan, weights: Mapping[str, Any], config: TrainingConfig) -> None:
        self.plan, self.config = plan, config
        self._computed = compute_dtype(plan, config)
        self._dtype = "float64" if plan.dtype == "float64" else "float32"
        self._device = _device(config.device)
        self._names = [parameter.path for parameter in trained_parameters(plan)]
        self._places = places(plan)
        options = _compiler_options(config, self._device)
        with self._settings():
            self._network = _Functional(replace(plan, dtype=self._dtype), weights)
            self._optimizer = _optimizer(plan, config)
            self._hold(self._network.arrays)
            moments = jax.jit(self._optimizer.init)(self._trained)
            self._moments: Any = jax.device_put(moments, self._device)  # as steps return them
        self._take = jax.jit(self._compute_step, donate_argnums=(0, 1), compiler_options=options)
        self._score = jax.jit(self._scores, compiler_options=options)

    def step(self, step: int, parts: Sequence[Batch], learning_rate: float) -> StepResult:
        count = sum(int((part.targets != IGNORED).sum()) for part in parts)
        number = numpy_dtype(self._dtype).type
        with self._settings():
            self._trained, self._moments, totals, norm = self._take(
                self._trained,
                self._moments,
                self._frozen,
                _stacked([self._examples(part) for part in parts]),
                step_key(self.config.seed, step, _WORDS),
                number(learning_rate),
                number(max(1, count)),
            )
            loss, hits = totals
            return StepResult(Totals(float(loss), int(hits), count), float(norm))

    def evaluate(self, batch: Batch) -> Totals:
        count = int((batch.targets != IGNORED).sum())
        with self._settings():
            padded = _padded(batch, self.config.batch_size)
            loss, hits = self._score({**self._trained, **self._frozen}, self._examples(padded))
            return Totals(float(loss), int(hits), count)

    def weights(self) -> dict[str, Array]:
        dtype = numpy_dtype(self.plan.dtype)
        return {path: array.astype(dtype) for path, array in self._in_plan_layout(self._all_arrays()).items()}

    def state(self) -> dict[str, Array]:
        adam: Any = self._moments[0]
        return {
            prefix + path: array
            for prefix, arrays in ((WEIGHTS, self._all_arrays()), (FIRST, adam.mu), (SECOND, adam.nu))
            for path, array in self._in_plan_layout(arrays).items()
        }

    def load_state(self, state: Mapping[str, Array], step: int) -> None:
        check_state(self.plan, state)

        def arrays(prefix: str, paths: Sequence[str]) -> Arrays:
            loaded = {p: to_jax(state[prefix + p], self._dtype, self._places[p].transposed) for p in paths}
            return jax.device_put(loaded, self._device)

        with self._settings():
            self._hold(arrays(WEIGHTS, list(self._places)))
            adam = optax.ScaleByAdamState(
                count=jax.device_put(np.int32(step), self._device),
                mu=arrays(FIRST, self._names),
                nu=arrays(SECOND, self._names),
            )
            self._moments = (adam, *self._moments[1:])

    # -- what is compiled --------------------------------------------------------------------------

    def _compute_step(
        self,
        trained: Arrays,
        moments: Any,
        frozen: Arrays,
        parts: _Examples,
        words: jax.Array,
        rate: jax.Array,
        count: jax.Array,
    ) -> tuple[Arrays, Any, tuple[jax.Array, jax.Array], jax.Array]:
        """Parameters and moments after a step; loss and hits before it; the gradient's norm before clipping."""
        key = jax.random.wrap_key_data(words, impl=_RANDOM)

        def slopes(part: _Examples, number: Any) -> tuple[Arrays, tuple[jax.Array, jax.Array]]:
            def mean_loss(trained: Arrays) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
                loss, hits = self._scores({**trained, **frozen}, part, jax.random.fold_in(key, number))
                return loss / count, (loss, hits)

            return jax.grad(mean_loss, has_aux=True)(trained)

        gradients, totals = _summed(slopes, parts)
        norm = optax.tree.norm(gradients)
        limit = self.config.clip
        if limit:
            factor = jnp.where(norm > limit, limit / norm, 1)
            gradients = jax.tree.map(lambda gradient: gradient * factor, gradients)
        updates, moments = self._optimizer.update(gradients, moments, trained)
        trained = jax.tree.map(lambda parameter, update: parameter - rate * update, trained, updates)
        return trained, moments, totals, norm

    def _scores(
        self, arrays: Arrays, examples: _Examples, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Sum of the cross entropies and number of correct predictions, ignored targets left out.

        Args:
            arrays: all parameters.
            examples: inputs and targets.
            key: what dropout draws from; None to evaluate.
        """
        half = self._computed == "bfloat16"
        arrays, inputs = (_rounded(tree) if half else tree for tree in (arrays, examples.inputs))
        scores = self._network(arrays, inputs, key)
        if isinstance(scores, dict):
            (scores,) = scores.values()
        targets = examples.targets.reshape(-1)
        scores = scores.reshape(-1, scores.shape[-1]).astype(self._dtype)  # (B*T, classes)
        wanted = targets != IGNORED
        chosen = jnp.where(wanted, targets, 0)[:, None]
        entropies = -jnp.take_along_axis(jax.nn.log_softmax(scores), chosen, axis=-1)[:, 0]
        hits = scores.argmax(-1) == targets  # an ignored target is no class
        return jnp.where(wanted, entropies, 0).sum(), hits.sum()

    # ----------------------------------------------------------------------------------------------

    def _hold(self, arrays: Arrays) -> None:
        """Take these parameters, trained ones apart from frozen ones."""
        on_device = jax.device_put(arrays, self._device)
        self._trained = {path: on_device.pop(path) for path in self._names}
        self._frozen = on_device

    def _all_arrays(self) -> Arrays:
        """All parameters in the plan's order."""
        return {path: self._trained.get(path, self._frozen.get(path)) for path in self._places}

    def _in_plan_layout(self, arrays: Arrays) -> dict[str, Array]:
        return {path: to_plan(array, self._places[path].transposed) for path, array in arrays.items()}

    def _examples(self, batch: Batch) -> _Examples:
        """A batch with floating-point inputs in the parameters' dtype."""
        floating = {name for name, array in batch.inputs.items() if array.dtype.kind == "f"}
        inputs = {
            name: array.astype(numpy_dtype(self._dtype)) if name in floating else array
            for name, array in batch.inputs.items()
        }
        return _Examples(inputs, batch.targets)

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """JAX's settings in which everything here is made and run; the caller's come back."""
        with jax.enable_x64(self._dtype == "float64"), jax.default_device(self._device):
            yield


class _Examples(NamedTuple):
    """Inputs by name and their targets; with one more axis in front, several parts of a batch."""

    inputs: dict[str, Any]
    targets: Any


class _Functional:
    """A network as a function of its parameters.

    Attributes:
        arrays: the parameters it was built with.
    """

    def __init__(self, plan: Plan, weights: Mapping[str, Any]) -> None:
        model = build(plan, weights)
        paths: dict[Any, str] = {place.path: path for path, place in places(plan).items()}
        self._graphs = {}
        for training in (True, False):
            model.train() if training else model.eval()
            self._graphs[training], parameters, rest = nnx.split(model, (nnx.Param, Frozen), ...)
        self._variables = {
            paths[where]: (where, variable) for where, variable in nnx.to_flat_state(parameters)
        }
        self._rest = list(nnx.to_flat_state(rest))
        self.arrays: Arrays = {path: variable[...] for path, (_, variable) in self._variables.items()}

    def __call__(self, arrays: Arrays, inputs: Mapping[str, jax.Array], key: jax.Array | None) -> Any:
        """Outputs; with dropout drawn from ``key``, without any when there is none."""
        parameters = [
            (where, variable.replace(arrays[path])) for path, (where, variable) in self._variables.items()
        ]
        count = len(self._rest)
        keys = [None] * count if key is None else list(jax.random.split(key, count))
        rest = [
            (where, _fresh(variable, own)) for (where, variable), own in zip(self._rest, keys, strict=True)
        ]
        model = nnx.merge(
            self._graphs[key is not None], nnx.from_flat_state(parameters), nnx.from_flat_state(rest)
        )
        return model(**inputs)


def _fresh(variable: Any, key: jax.Array | None) -> Any:
    """A new variable for a random stream: its key, or its count of draws, which the call will change."""
    if key is not None and isinstance(variable, nnx.RngKey):
        return variable.replace(key)
    return variable.replace(variable[...])


def _summed(function: Any, parts: _Examples) -> Any:
    """The sum of ``function(part, number)`` over all parts, one after the other so that memory is reused."""

    def part(number: Any) -> _Examples:
        return jax.tree.map(lambda array: array[number], parts)

    def add(number: Any, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, function(part(number), number))

    count = len(parts.targets)
    if count == 1:
        return function(part(0), 0)
    shapes = jax.eval_shape(function, part(0), 0)
    nothing = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return jax.lax.fori_loop(0, count, add, nothing)


def _stacked(parts: Sequence[_Examples]) -> _Examples:
    return jax.tree.map(lambda *arrays: np.stack(arrays), *parts)


def _padded(batch: Batch, size: int) -> Batch:
    """A short batch filled up with copies of its last example that are not counted: one shape, one compile."""
    missing = size - len(batch.targets)
    if missing <= 0:
        return batch
    inputs = {
        name: np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
        for name, array in batch.inputs.items()
    }
    ignored = np.full((missing, *batch.targets.shape[1:]), IGNORED, batch.targets.dtype)
    return Batch(inputs, np.concatenate([batch.targets, ignored]))


def _rounded(arrays: Mapping[str, jax.Array]) -> Arrays:
    """Floating-point arrays in bfloat16."""
    return {
        name: array.astype(jnp.bfloat16) if jnp.issubdtype(array.dtype, jnp.floating) else array
        for name, array in arrays.items()
    }


def _optimizer(plan: Plan, config: TrainingConfig) -> optax.GradientTransformation:
    """AdamW but for clipping and for the learning rate, with which its updates are multiplied."""
    decayed = {parameter.path: is_decayed(parameter) for parameter in trained_parameters(plan)}
    return optax.chain(
        optax.scale_by_adam(
            b1=config.beta1, b2=config.beta2, eps=config.epsilon, eps_root=0.0, mu_dtype=None, nesterov=False
        ),
        optax.add_decayed_weights(weight_decay=config.weight_decay, mask=decayed),
    )


def _compiler_options(config: TrainingConfig, device: Any) -> dict[str, bool] | None:
    if device.platform != "cpu" or config.threads == 0:
        return None
    if config.threads == 1:
        return {"xla_cpu_multi_thread_eigen": False}
    raise IsomorphError(
        "E_BACKEND",
        f"nnx computes with one thread or with JAX's own choice, got threads={config.threads}",
        hints=["--threads 1, or --threads 0"],
    )


def _device(name: str) -> Any:
    """The device of a name such as ``cpu``, ``cuda`` or ``cuda:1``."""
    platform, _, index = name.partition(":")
    try:
        return jax.devices(platform)[int(index or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise IsomorphError(
            "E_BACKEND", f"jax cannot train on the device {name!r}: {reason}", hints=["--device cpu"]
        ) from error
