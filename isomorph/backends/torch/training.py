"""The PyTorch trainer: see :class:`isomorph.backends.trainer.Trainer`, whose contract it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from isomorph.backends import trainer
from isomorph.backends.torch.build import build, usable_device
from isomorph.backends.torch.fast_training import prepare_training
from isomorph.backends.torch.weights import to_numpy, to_tensor
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
from isomorph.plan import Plan

Array = np.ndarray[Any, Any]

_FUSED = ("cpu", "cuda")
"""Where one kernel takes an optimizer's step."""
_HALVES = ("bfloat16", "float16")


class Trainer(trainer.Trainer):
    """A network with AdamW. Parameters and moments are float32 (float64 for a float64 plan).

    On the CPU equal steps give equal bits, run after run, with the same number of threads.
    """

    def __init__(self, plan: Plan, weights: Mapping[str, Any], config: TrainingConfig) -> None:
        self.plan, self.config = plan, config
        self.device = usable_device(config.device, "--device cpu", computing=True)
        self.autocast = torch.bfloat16 if compute_dtype(plan, config) == "bfloat16" else None
        self.model = build(plan, weights, device=self.device)
        if plan.dtype in _HALVES:
            self.model.float()  # steps are too small for half precision to hold
        self.network = prepare_training(self.model)  # the same parameters
        self.trained = {p.path: self.model.get_parameter(p.path) for p in trained_parameters(plan)}
        decayed = {p.path for p in trained_parameters(plan) if is_decayed(p)}
        groups = [
            {"params": [p for path, p in self.trained.items() if path in decayed], "weight_decay": config.weight_decay},
            {"params": [p for path, p in self.trained.items() if path not in decayed], "weight_decay": 0.0},
        ]  # fmt: skip
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
            **({"fused": True} if self.device.type in _FUSED else {"foreach": True}),
        )

    def step(self, step: int, parts: Sequence[Batch], learning_rate: float) -> StepResult:
        with self._threads():
            return self._step(step, parts, learning_rate)

    def _step(self, step: int, parts: Sequence[Batch], learning_rate: float) -> StepResult:
        count = sum(int((part.targets != IGNORED).sum()) for part in parts)
        self.network.train()
        self.optimizer.zero_grad(set_to_none=True)
        losses, hits = [], []
        with self._reproducible(step):
            for part in parts:
                loss, correct = self._scores(part)
                (loss / max(1, count)).backward()
                losses.append(loss.detach())
                hits.append(correct)
            norm = self._clip()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        totals = Totals(float(torch.stack(losses).sum()), int(torch.stack(hits).sum()), count)
        return StepResult(totals, norm)

    def evaluate(self, batch: Batch) -> Totals:
        self.network.eval()
        with torch.inference_mode(), self._threads(), self._reproducible(0):
            loss, correct = self._scores(batch)
        return Totals(float(loss), int(correct), int((batch.targets != IGNORED).sum()))

    def weights(self) -> dict[str, Array]:
        dtype = getattr(torch, self.plan.dtype)
        return {p.path: to_numpy(self.model.get_parameter(p.path).to(dtype)) for p in self.plan.parameters}

    def state(self) -> dict[str, Array]:
        arrays = {WEIGHTS + p.path: to_numpy(self.model.get_parameter(p.path)) for p in self.plan.parameters}
        for path, parameter in self.trained.items():
            moments = self.optimizer.state.get(parameter)
            for prefix, key in ((FIRST, "exp_avg"), (SECOND, "exp_avg_sq")):
                moment = moments[key] if moments else torch.zeros_like(parameter)
                arrays[prefix + path] = to_numpy(moment)
        return arrays

    def load_state(self, state: Mapping[str, Array], step: int) -> None:
        check_state(self.plan, state)
        with torch.no_grad():
            for parameter in self.plan.parameters:
                self.model.get_parameter(parameter.path).copy_(to_tensor(state[WEIGHTS + parameter.path]))
        for path, parameter in self.trained.items():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(step), dtype=torch.float32),
                "exp_avg": to_tensor(state[FIRST + path]).to(self.device, copy=True),
                "exp_avg_sq": to_tensor(state[SECOND + path]).to(self.device, copy=True),
            }

    # ------------------------------------------------------------------------------------------

    def _scores(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of the cross entropies and number of correct predictions, ignored targets left out."""
        inputs = {name: self._input(array) for name, array in batch.inputs.items()}
        targets = torch.from_numpy(batch.targets).to(self.device).reshape(-1)
        casting = torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext()
        with casting:
            scores = self.network(**inputs)
        if isinstance(scores, dict):
            (scores,) = scores.values()
        scores = scores.reshape(-1, scores.shape[-1])
        if scores.dtype in (torch.bfloat16, torch.float16):
            scores = scores.float()
        loss = functional.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum")
        with torch.no_grad():
            correct = (scores.argmax(-1) == targets).sum()  # an ignored target is no class
        return loss, correct

    def _input(self, array: Array) -> torch.Tensor:
        tensor = torch.from_numpy(array).to(self.device)
        if tensor.is_floating_point():
            tensor = tensor.to(torch.float64 if self.plan.dtype == "float64" else torch.float32)
        return tensor

    def _clip(self) -> float:
        """Scale the gradient down to the largest norm allowed; return the norm before that."""
        gradients = [p.grad for p in self.trained.values() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        limit = self.config.clip
        if limit and norm > limit:
            for gradient in gradients:
                gradient.mul_(limit / norm)
        return norm

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """As many threads as the configuration asks for; the caller's number comes back."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.config.threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @contextmanager
    def _reproducible(self, step: int) -> Iterator[None]:
        """Draws keyed by (seed, step), deterministic kernels on the CPU; the caller's settings come back."""
        deterministic = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(int(step_key(self.config.seed, step).view(np.uint64)[0]))
            if self.device.type == "cpu":
                torch.use_deterministic_algorithms(True)
            try:
                yield
            finally:
                torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
