"""A run's metrics as a picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from isomorph.training.metrics import read_records
from isomorph.writing.atomic import atomic_write

_TRAINING, _HELD_OUT, _FAINT = "#1f5fa8", "#d1600a", "#9db8d6"


def draw_curve(metrics: Path, picture: Path) -> None:
    """Write a PNG with loss and accuracy over the steps: single steps faint, their running mean, validation.

    Args:
        metrics: a run's JSONL file.
        picture: the PNG to write.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = read_records(metrics)
    figure = Figure(figsize=(9, 3.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    loss, accuracy = figure.subplots(1, 2)
    test = next((record for record in reversed(records) if "test_loss" in record), {})
    for axes, quantity, title in ((loss, "loss", "cross entropy (nats)"), (accuracy, "accuracy", "accuracy")):
        _draw(axes, records, quantity)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    loss.set_ylim(bottom=0)
    accuracy.set_ylim(top=1.005)
    if test:
        note = f"test: loss {test['test_loss']:.4f}, accuracy {test['test_accuracy']:.4f}"
        figure.suptitle(f"{note} ({test['test_count']:,})", fontsize=10)
    if loss.lines:
        accuracy.legend(frameon=False, fontsize=9, loc="lower right")
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": "isomorph"})
    atomic_write(picture, content.getvalue())


def _draw(axes: Any, records: list[dict[str, Any]], quantity: str) -> None:
    steps, values = _series(records, quantity)
    if steps:
        axes.plot(steps, values, color=_FAINT, linewidth=0.6)
        axes.plot(steps, running_mean(values), color=_TRAINING, linewidth=1.6, label="training")
    steps, values = _series(records, f"validation_{quantity}")
    if steps:
        axes.plot(steps, values, color=_HELD_OUT, linewidth=1.6, marker="o", markersize=3, label="validation")


def _series(records: list[dict[str, Any]], quantity: str) -> tuple[list[int], list[float]]:
    points = [(record["step"], record[quantity]) for record in records if quantity in record]
    return [step for step, _ in points], [value for _, value in points]


def running_mean(values: list[float], window: int = 25) -> list[float]:
    """The mean of each value and up to ``window - 1`` before it."""
    means, total = [], 0.0
    for index, value in enumerate(values):
        total += value
        if index >= window:
            total -= values[index - window]
        means.append(total / min(index + 1, window))
    return means
