"""Preparing a network of 48 blocks: time and memory; and importing a GPT-2 small checkpoint: time.

python benchmarks/preparing.py [--quick]
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import isomorph as iso
from harness import Goal, Measured, Options, main, workload
from networks import EPS, gpt2, weights_of

READY = "isomorph prepare and first call, less a later call"
MEMORY = "memory above the model at most, in units of the weights"
KEPT = "memory above the model afterwards, in units of the weights"
BUILD = "isomorph build"


def status(key: str) -> int:
    """Bytes of memory of this process: ``VmRSS`` now, ``VmHWM`` at most since :func:`forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")


def forget_peak() -> None:
    """Give freed memory back and let the peak begin anew, where the system allows it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def deep(options: Options) -> tuple[iso.Plan, np.ndarray[Any, Any]]:
    """48 blocks as ViT-B's, and a small input."""
    layers, D, H = (3, 32, 4) if options.tiny else (48, 768, 12)
    text = f'for _ in range({layers}):\n    transformer_block({H}, eps={EPS}, name="block")'
    x = np.random.default_rng(0).standard_normal((1, 197 if D > 32 else 5, D)).astype(np.float32)
    return iso.resolve(text, input=("B", "T", D)), x


def alike(plan: iso.Plan) -> dict[str, np.ndarray[Any, Any]]:
    """Weights of the first block for every block: quickly there."""
    first = weights_of(iso.resolve(plan.definition.replace("range(48)", "range(1)"), dtype=plan.dtype))
    return {
        parameter.path: first["block0." + parameter.path.partition(".")[2]] for parameter in plan.parameters
    }


def observe(
    measured: Measured,
    plan: iso.Plan,
    build: Callable[[], Any],
    prepare: Callable[[Any], Any],
    call: Callable[..., Any],
) -> None:
    """Build, prepare, call twice, and compare with the model."""
    begun = time.perf_counter()
    model = build()
    built = time.perf_counter()
    expected = call(model)
    weights = 4 * plan.parameter_count
    gc.collect()
    forget_peak()
    before = status("VmRSS")
    started = time.perf_counter()
    fast = prepare(model)
    prepared = time.perf_counter()
    first = call(fast)
    called = time.perf_counter()
    after = status("VmRSS")
    peak = max(after, status("VmHWM"))
    call(fast)
    again = time.perf_counter() - called
    measured.samples = {
        READY: [1e3 * (called - started - again)],
        "isomorph prepare alone": [1e3 * (prepared - started)],
        BUILD: [1e3 * (built - begun)],
    }
    measured.values = {MEMORY: (peak - before) / weights, KEPT: (after - before) / weights}
    difference = np.linalg.norm(np.asarray(first) - np.asarray(expected)) / np.linalg.norm(
        np.asarray(expected)
    )
    measured.check("prepared, plain, relative", difference, 1e-5)


def _goals() -> list[Goal]:
    return [
        Goal("ready in at most 3000 ms", READY, at_most=3000),
        Goal("memory above the model at most 1.3 times the weights'", MEMORY, at_most=1.3),
    ]


@workload("preparing 48 blocks, PyTorch", main=READY, processes=3, alone=True, goals=_goals())
def torch_prepare(options: Options) -> Measured:
    import torch

    from isomorph import prepare

    measured = Measured()
    plan, x = deep(options)
    weights = alike(plan)
    warm_up(options, prepare, iso.torch.build, torch.from_numpy)

    def call(model: Any) -> Any:
        with torch.no_grad():
            return model(torch.from_numpy(x)).numpy()

    observe(measured, plan, lambda: iso.torch.build(plan, weights).eval(), prepare, call)
    return measured


@workload(
    "preparing 48 blocks, JAX (NNX), compilation included",
    main=READY,
    processes=3,
    alone=True,
    goals=_goals(),
)
def nnx_prepare(options: Options) -> Measured:
    import jax

    from isomorph import prepare

    measured = Measured()
    plan, x = deep(options)
    weights = alike(plan)
    warm_up(options, prepare, iso.nnx.build, jax.numpy.asarray)
    given = jax.numpy.asarray(x)

    def build() -> Any:
        model = iso.nnx.build(plan, weights)
        model.eval()
        return model

    observe(measured, plan, build, prepare, lambda model: np.asarray(jax.block_until_ready(model(given))))
    return measured


def warm_up(options: Options, prepare: Any, build: Any, convert: Any) -> None:
    """Prepare a block of other sizes, so that loading modules is in nobody's time."""
    x = np.zeros((1, 3, 16), np.float32)
    prepare(build(iso.resolve("transformer_block(2)", input=("B", "T", 16))))(convert(x))


IMPORT = "isomorph import_checkpoint"


@workload("importing a GPT-2 small checkpoint", main=IMPORT, quick=False)
def importing(options: Options) -> Measured:
    from safetensors.numpy import load_file

    measured, sizes = Measured(), gpt2(options, 1, 8)
    plan = sizes.plan
    weights = weights_of(plan)
    with tempfile.TemporaryDirectory() as directory:
        iso.export_checkpoint(directory, plan, weights)
        file = Path(directory) / "model.safetensors"
        found, again = iso.import_checkpoint(directory)
        pairs = zip(
            again.values(), weights.values(), strict=True
        )  # nodes are called otherwise, in the same order
        worst = max(np.abs(one - other).max() for one, other in pairs)
        measured.check("weights, those that were exported", worst, 0)
        assert found.parameter_count == plan.parameter_count
        calls: dict[str, Callable[[], Any]] = {
            IMPORT: lambda: iso.import_checkpoint(directory),
            "reading its bytes": file.read_bytes,
            "safetensors' load_file": lambda: load_file(file),
            "transformers from_pretrained": _from_pretrained(directory),
        }
        measured.notes.append(
            "from_pretrained maps the file: most of its bytes are read later, when they are used"
        )
        measured.time(calls, options.count(9, 2))
    return measured


def _from_pretrained(directory: str) -> Callable[[], Any]:
    def call() -> Any:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        return transformers.GPT2LMHeadModel.from_pretrained(directory)

    return call


if __name__ == "__main__":
    main(__doc__)
