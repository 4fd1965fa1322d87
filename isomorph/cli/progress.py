"""A training run as a person sees it: a bar in a terminal, lines elsewhere. Both on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from isomorph.backends.training_config import TrainingConfig
from isomorph.plan import Plan
from isomorph.training.data import Dataset
from isomorph.training.loop import Reporter

if TYPE_CHECKING:
    from rich.console import Console

# Columns of a terminal: what stands beside the bar (counts of 6 digits, loss, two accuracies, speed and time), and the
# same without the speed.
_TEXT_WIDTH, _SHORT_WIDTH = 82, 60
_LINES = 20  # plain lines per run, evaluations aside


class Smoothed:
    """A running mean that forgets: the latest value counts a twentieth, more at the start."""

    def __init__(self) -> None:
        self.value, self.count = 0.0, 0

    def add(self, value: float) -> float:
        """Take in a value and return the mean."""
        self.count += 1
        self.value += (value - self.value) / min(self.count, 20)
        return self.value


class _Watcher(Reporter):
    """What both kinds of reporter know."""

    word = "accuracy"

    def __init__(self) -> None:
        self.loss, self.accuracy = Smoothed(), Smoothed()
        self.config = TrainingConfig(data="")
        self.unit, self.first, self.begun, self.validation = "example", 0, 0.0, ""

    def begin(self, plan: Plan, dataset: Dataset, config: TrainingConfig, step: int) -> None:
        self.config, self.first, self.begun = config, step, time.perf_counter()
        self.unit = "example" if dataset.unit == "byte" else dataset.unit
        counts = [f"{dataset.count(split):,} {split}" for split in ("train", "validation", "test")]
        self.note(
            f"{dataset.title}: {', '.join(counts)}; {plan.parameter_count:,} parameters"
            + (f"; resuming after step {step:,}" if step else "")
        )

    def take(self, record: dict[str, Any]) -> str:
        self.loss.add(record["loss"])
        self.accuracy.add(record["accuracy"])
        return f"loss {self.loss.value:.4f}  {self.word} {self.accuracy.value:.3f}"

    def speed(self, step: int) -> str:
        elapsed = time.perf_counter() - self.begun
        return f"{(step - self.first) * self.config.batch_size / max(elapsed, 1e-9):,.0f} {self.unit}s/s"

    def note(self, text: str) -> None:
        raise NotImplementedError

    def warn(self, text: str) -> None:
        self.note(text)

    def end(self) -> None:
        pass


class Lines(_Watcher):
    """A line now and then, for logs."""

    def step(self, record: dict[str, Any]) -> None:
        shown, step = self.take(record), record["step"]
        if step % max(1, self.config.steps // _LINES) == 0 or step == self.config.steps:
            self.note(f"step {step:>6,} of {self.config.steps:,}  {shown}  {self.speed(step)}")

    def evaluation(self, record: dict[str, Any]) -> None:
        loss, accuracy = record["validation_loss"], record["validation_accuracy"]
        self.note(
            f"step {record['step']:>6,} of {self.config.steps:,}  validation loss {loss:.4f}  accuracy {accuracy:.3f}"
        )

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bar(_Watcher):
    """A progress bar with loss, accuracy, speed and the time that is left.

    A terminal of 80 columns has no room for the bar itself, one of 60 none for the speed.
    """

    word = "acc"

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        room = console.width - _TEXT_WIDTH
        self.fast = room >= -(_TEXT_WIDTH - _SHORT_WIDTH) / 2
        self.bar = Progress(
            *([BarColumn(bar_width=min(30, room))] if room >= 5 else []),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}", markup=False),
            TimeRemainingColumn(),
            *([TextColumn("left")] if room >= 0 else []),
            console=console,
        )
        self.task = self.bar.add_task("", total=None, shown="")

    def begin(self, plan: Plan, dataset: Dataset, config: TrainingConfig, step: int) -> None:
        super().begin(plan, dataset, config, step)
        self.bar.update(self.task, total=config.steps, completed=step)
        self.bar.start()

    def step(self, record: dict[str, Any]) -> None:
        shown = f"{self.take(record)}{self.validation}" + (
            f"  {self.speed(record['step'])}" if self.fast else ""
        )
        self.bar.update(self.task, completed=record["step"], shown=shown)

    def evaluation(self, record: dict[str, Any]) -> None:
        self.validation = f"  val {record['validation_accuracy']:.3f}"

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False)

    def end(self) -> None:
        self.bar.stop()
