"""Perplexity of prepared networks in bfloat16 and with int8 weights, against float32.

    python benchmarks/quality.py [--quick]

On real text: a small GPT over bytes, trained first on Python's documentation topics, on the part held out. On a
published model: MGM, a GPT-2 over the genera of microbes, on sequences drawn from itself in float32, for its own
data are not published with it; their perplexity is that of a model that fits its data exactly.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import isomorph as iso
import peers
from harness import Goal, Measured, Options, main, workload
from networks import Array

RUN = peers.ROOT / ".cache" / "bench" / "byte_gpt"
STEPS = 200
MODES = ("float32", "bfloat16", "int8")
WITHIN = 1.02


def _goals() -> list[Goal]:
    return [
        Goal(
            f"{mode} within 2% of float32",
            f"perplexity, prepared {mode}, over plain float32's",
            at_most=WITHIN,
        )
        for mode in MODES[1:]
    ]


def compare(measured: Measured, plan: Any, weights: Any, batches: list[tuple[Array, Array]]) -> None:
    """Perplexities over ids and the ids that follow; -1 where none is scored."""
    import torch

    from isomorph import prepare

    model = iso.torch.build(plan, weights).eval()
    plain = perplexity(model, batches)
    measured.values["perplexity, plain float32"] = plain
    measured.values["ids scored"] = sum(int((targets >= 0).sum()) for _, targets in batches)
    for mode in MODES:
        with torch.inference_mode():
            found = perplexity(prepare(model, mode), batches)
        measured.values[f"perplexity, prepared {mode}, over plain float32's"] = found / plain
    exact = measured.values["perplexity, prepared float32, over plain float32's"]
    measured.check("perplexity of prepared float32, relative", abs(exact - 1), 1e-5)


def perplexity(score: Any, batches: list[tuple[Array, Array]]) -> float:
    """``exp`` of the mean cross entropy, summed in float64."""
    import torch
    from torch.nn import functional

    total, count = 0.0, 0
    with torch.no_grad():
        for ids, targets in batches:
            logits = score(torch.from_numpy(ids)).float().flatten(0, 1)
            flat = torch.from_numpy(targets).flatten()
            losses = functional.cross_entropy(logits, flat, ignore_index=-1, reduction="none")
            total += losses.double().sum().item()
            count += int((flat >= 0).sum())
    return float(np.exp(total / count))


@workload("perplexity of a byte GPT on real text, PyTorch", main="", goals=_goals())
def bytes_of_documentation(options: Options) -> Measured:
    from isomorph.training.data import evaluation_batches
    from isomorph.training.sources import open_dataset

    plan, weights = iso.load(_trained(options))
    dataset = open_dataset("text:pydoc", plan)
    batches = []
    for batch in evaluation_batches(dataset, "test", 16):
        (ids,) = batch.inputs.values()
        batches.append((ids, batch.targets))
    measured = Measured()
    compare(measured, plan, weights, batches[: 1 if options.tiny else 4 if options.quick else None])
    return measured


def _trained(options: Options) -> Path:
    """The trained network's file; trained once and kept."""
    from isomorph.backends.training_config import TrainingConfig
    from isomorph.training.loop import train

    steps = 2 if options.tiny else STEPS // 4 if options.quick else STEPS
    directory = RUN.with_name(f"{RUN.name}_{steps}")
    file = directory / "model.safetensors"
    if not file.exists():
        plan = iso.resolve_file(peers.ROOT / "examples" / "byte_gpt.net")
        config = TrainingConfig(
            "text:pydoc", steps=steps, batch_size=16, warmup=min(50, steps - 1), evaluate_every=steps
        )
        train(plan, config, directory, force=True)
    return file


@workload("perplexity of MGM on sequences drawn from it, PyTorch", main="", goals=_goals())
def mgm(options: Options) -> Measured:
    sys.path.append(str(peers.ROOT / "tests" / "checkpoints"))
    from real_checkpoints import fetch  # type: ignore[import-not-found]

    measured = Measured()
    directory = fetch("microformer-mgm==0.5.8", "mgm/resources/") / "general_model"
    plan, weights = iso.import_checkpoint(directory, dtype="float32")
    model = iso.torch.build(plan, weights).eval()
    start, end = 2, 3  # as its configuration says
    rows, n = (2, 8) if options.tiny else (16, 128) if options.quick else (64, 128)
    drawn = iso.generate(model, np.full((rows, 1), start), n, temperature=1.0, seed=0, stop=end)
    # a row that has ended repeats the id that ended it, which is scored once
    targets = np.where(np.cumsum(drawn == end, axis=1) - (drawn == end) > 0, -1, drawn)[:, 1:]
    batches = [(drawn[i : i + 8, :-1], targets[i : i + 8]) for i in range(0, rows, 8)]
    compare(measured, plan, weights, batches)
    return measured


if __name__ == "__main__":
    main(__doc__)
