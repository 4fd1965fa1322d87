"""The run itself: which batch, which learning rate, when to evaluate and when to save. No framework."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Protocol

import numpy as np

from isomorph.backends.available import load_trainer
from isomorph.backends.trainer import Array, Totals, Trainer
from isomorph.backends.training_config import TrainingConfig
from isomorph.errors import IsomorphError, shorten
from isomorph.plan import Plan
from isomorph.training.checkpoint import RunDirectory
from isomorph.training.data import Dataset, Order, evaluation_batches
from isomorph.training.metrics import MetricsFile, keep_records, read_records
from isomorph.training.schedule import learning_rate_at
from isomorph.training.sources import open_dataset
from isomorph.weights.initial import initial_weights


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        directory: where everything is.
        step: steps taken.
        steps: steps wanted.
        stopped: True when it was asked to stop before the end.
        unit: what one prediction is called.
        test_count, test_loss, test_accuracy: on the test split; None without one, or when stopped.
        seconds: training time of this process.
    """

    directory: str
    step: int
    steps: int
    stopped: bool
    unit: str
    test_count: int | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


class Reporter(Protocol):
    """Who shows a run's progress."""

    def begin(self, plan: Plan, dataset: Dataset, config: TrainingConfig, step: int) -> None:
        """Training is about to take step number ``step``."""
        ...

    def step(self, record: dict[str, Any]) -> None:
        """A step was taken; the record is the one in the metrics file."""
        ...

    def evaluation(self, record: dict[str, Any]) -> None:
        """The validation split was evaluated."""
        ...

    def note(self, text: str) -> None:
        """Something else to tell."""
        ...

    def warn(self, text: str) -> None:
        """Something that must be known, such as a damaged checkpoint that was passed over."""
        ...

    def end(self) -> None:
        """Training is over, well or not."""
        ...


class Silence(Reporter):
    """A reporter that shows nothing but warnings."""

    def begin(self, plan: Plan, dataset: Dataset, config: TrainingConfig, step: int) -> None:
        pass

    def step(self, record: dict[str, Any]) -> None:
        pass

    def evaluation(self, record: dict[str, Any]) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        pass


def train(
    plan: Plan,
    config: TrainingConfig,
    directory: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    *,
    resume: bool = False,
    force: bool = False,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train a plan's network and leave everything in a directory (see :mod:`isomorph.training.checkpoint`).

    The directory is this call's alone until it returns; no other process or thread may train there meanwhile.

    Args:
        plan: the network.
        config: every setting.
        directory: where; made when missing.
        resume: continue what has begun there; begin when nothing has. The result is bit-equal to that of a
            run that was never interrupted. A damaged checkpoint is passed over for the one before it.
        force: delete a run that is there.
        reporter: shows progress; without one, warnings go to stderr and nothing else is shown.
        should_stop: asked before the first step and after every one; when it says so, the state is saved and the
            run ends early.

    Raises:
        IsomorphError: for wrong types (E_ARGUMENT), data that do not fit the plan (see ``open_dataset``) or
            are fewer than a batch (E_ARGUMENT), a directory that is in use, or holds another run, one that was
            given other data, or a damaged one (E_CHECKPOINT), a backend that is not there (E_BACKEND), or a
            loss, weights or moments that are no longer finite numbers (E_RUNTIME).
    """
    Plan.expect(plan)
    if not isinstance(config, TrainingConfig):
        raise IsomorphError("E_ARGUMENT", f"expected a TrainingConfig, got {shorten(type(config).__name__)}")
    run, reporter = RunDirectory(directory), reporter or Silence()
    with run.own(reporter.warn):
        run.open(plan, config, resume=resume, force=force)
        dataset = open_dataset(config.data, plan, length=config.length, validation=config.validation)
        _check_batch_size(config, dataset)
        factory = load_trainer(config.backend)
        if run.has_result(reporter.warn):
            run.begin(dataset.fingerprint, reporter.warn)
            return _outcome_of_finished(run, config, dataset)
        trainer = factory(plan, initial_weights(plan, config.seed), config)
        run.begin(dataset.fingerprint, reporter.warn)
        checkpoint = run.latest(reporter.warn)
        step = 0
        if checkpoint is not None:
            step = checkpoint.step
            trainer.load_state(checkpoint.state, step)
        # Whatever was measured after that checkpoint, or at the very end, will be measured again.
        keep_records(run.metrics, lambda record: record.get("step", 0) <= step and "test_loss" not in record)
        session = _Session(plan, config, dataset, trainer, run, reporter, should_stop)
        return session.run_from(step)


class _Session:
    """One process's share of a run."""

    def __init__(
        self,
        plan: Plan,
        config: TrainingConfig,
        dataset: Dataset,
        trainer: Trainer,
        run: RunDirectory,
        reporter: Reporter,
        should_stop: Callable[[], bool],
    ) -> None:
        self.plan, self.config, self.dataset, self.trainer = plan, config, dataset, trainer
        self.run, self.reporter, self.should_stop = run, reporter, should_stop
        self.order = Order(dataset.count("train"), config.seed)
        self.metrics = MetricsFile(run.metrics)
        self.begun = time.perf_counter()

    def run_from(self, step: int) -> Outcome:
        try:
            self.reporter.begin(self.plan, self.dataset, self.config, step)
            if step < self.config.steps and self.should_stop():
                return self._outcome(step, None)
            while step < self.config.steps:
                self._take(step)
                step += 1
                last = step == self.config.steps
                if last or step % self.config.evaluate_every == 0:
                    self._validate(step)
                stopping = not last and self.should_stop()
                if last or stopping or step % self.config.checkpoint_every == 0:
                    self._save(step)
                if stopping:
                    return self._outcome(step, None)
            return self._finish()
        finally:
            self.metrics.close()
            self.reporter.end()

    def _take(self, step: int) -> None:
        config = self.config
        rate = learning_rate_at(
            step, steps=config.steps, peak=config.learning_rate, warmup=config.warmup,
            final=config.final_learning_rate,
        )  # fmt: skip
        indices, epochs = self.order.places(step * config.batch_size, config.batch_size)
        batch = self.dataset.take("train", indices, epochs)
        totals, norm = self.trainer.step(step, batch.parts(config.accumulate), rate)
        if not (isfinite(totals.loss) and isfinite(norm)):
            how = f"loss {totals.mean_loss}, gradient norm {norm}"
            raise self._diverged(step + 1, how) if step else _unusable(how)
        record = {
            "step": step + 1,
            "epoch": round((step + 1) * config.batch_size / self.order.count, 4),
            "loss": totals.mean_loss,
            "accuracy": totals.accuracy,
            "learning_rate": rate,
            "gradient_norm": norm,
            "seconds": round(time.perf_counter() - self.begun, 4),
        }
        self.metrics.write(record)
        self.reporter.step(record)

    def _save(self, step: int) -> None:
        """A checkpoint of what ``step`` steps have led to, if that is a state to go on from."""
        state = self.trainer.state()
        self._expect_finite(step, state)
        self.metrics.sync()
        self.run.save(step, state)

    def _expect_finite(self, step: int, arrays: Mapping[str, Array]) -> None:
        """E_RUNTIME unless all numbers are finite. The gradient of a last step may be when its weights are not."""
        wrong = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if wrong:
            what = f"{wrong[0]} and {len(wrong) - 1:,} more are" if len(wrong) > 1 else f"{wrong[0]} is"
            raise self._diverged(step, f"{what} not finite")

    def _diverged(self, step: int, how: str) -> IsomorphError:
        """What can be said when ``step`` steps have led to numbers that are no longer finite."""
        hints = [f"lower the learning rate ({self.config.learning_rate:g}), warm up longer, or clip harder"]
        kept = self.run.checkpoints()
        if kept:
            hints.append(f"{kept[0].name} is from before")
        return IsomorphError("E_RUNTIME", f"training diverged at step {step}: {how}", hints=hints)

    def _validate(self, step: int) -> None:
        if self.dataset.count("validation"):
            totals = self._evaluate("validation")
            record = {
                "step": step,
                "validation_loss": totals.mean_loss,
                "validation_accuracy": totals.accuracy,
            }
            self.metrics.write(record)
            self.reporter.evaluation(record)

    def _evaluate(self, split: str) -> Totals:
        totals = Totals()
        for batch in evaluation_batches(self.dataset, split, self.config.batch_size):
            totals += self.trainer.evaluate(batch)
        return totals

    def _finish(self) -> Outcome:
        """The test split, once; then the picture, and last the model, whose presence says that all is done."""
        weights = self.trainer.weights()
        self._expect_finite(self.config.steps, weights)  # in the plan's dtype, whose range may be smaller
        totals = self._evaluate("test") if self.dataset.count("test") else None
        if totals is not None:
            if not isfinite(totals.loss):
                raise self._diverged(self.config.steps, f"loss {totals.mean_loss} on the test split")
            record = {
                "step": self.config.steps,
                "test_loss": totals.mean_loss,
                "test_accuracy": totals.accuracy,
                "test_count": totals.count,
            }
            self.metrics.write(record)
        self.metrics.sync()
        self.run.confirm()
        _draw(self.run, self.reporter)
        self.run.finish(weights)
        return self._outcome(self.config.steps, totals)

    def _outcome(self, step: int, test: Totals | None) -> Outcome:
        return Outcome(
            directory=str(self.run.path),
            step=step,
            steps=self.config.steps,
            stopped=step < self.config.steps,
            unit=self.dataset.unit,
            test_count=test.count if test else None,
            test_loss=test.mean_loss if test else None,
            test_accuracy=test.accuracy if test else None,
            seconds=time.perf_counter() - self.begun,
        )


def _unusable(how: str) -> IsomorphError:
    return IsomorphError(
        "E_RUNTIME",
        f"the initial weights give no finite loss and gradient on the first batch: {how}",
        hints=["the data are finite; look at init, at scale factors, and at the dtype's range"],
    )


def _check_batch_size(config: TrainingConfig, dataset: Dataset) -> None:
    """E_ARGUMENT when a batch would hold an example more than once."""
    count = dataset.count("train")
    if config.batch_size > count:
        raise IsomorphError(
            "E_ARGUMENT",
            f"training setting batch_size={config.batch_size} is more than the {count:,} training examples of "
            f"{shorten(config.data)}",
            hints=[f"batch_size is at most {count}"],
        )


def _draw(run: RunDirectory, reporter: Reporter) -> None:
    from isomorph.training.curve import draw_curve

    try:
        draw_curve(run.metrics, run.curve)
    except ModuleNotFoundError as error:  # a picture is worth no failed run
        reporter.note(f'no {run.curve.name}: {error}; pip install "isomorph[train]"')


def _outcome_of_finished(run: RunDirectory, config: TrainingConfig, dataset: Dataset) -> Outcome:
    """What a run that ended earlier had to say."""
    tests = [record for record in read_records(run.metrics) if "test_loss" in record]
    test = tests[-1] if tests else {}
    return Outcome(
        directory=str(run.path),
        step=config.steps,
        steps=config.steps,
        stopped=False,
        unit=dataset.unit,
        test_count=test.get("test_count"),
        test_loss=test.get("test_loss"),
        test_accuracy=test.get("test_accuracy"),
    )
