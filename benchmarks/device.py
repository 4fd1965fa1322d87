"""The same on a GPU: bfloat16 forward, training step and decoding; one script, nothing to install, JSON lines.

    python benchmarks/device.py                     # on the first CUDA device, within 4 minutes
    python benchmarks/device.py --device cpu --tiny # to see that it runs

It needs PyTorch and NumPy, and takes the peers that are there. Every part prints a line as soon as it is done, and a
last line says what was skipped for lack of time. Entrants take turns in one process; each is compared with the
model in float32 (products in full precision) in the same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import isomorph as iso
import isomorph.torch
from harness import LIMIT, Measured, Options
from isomorph import prepare
from networks import EPS, NARROW, Block, gpt2, weights_of
from torch_peers import block_peers, limit, ours, synchronize, transformers_gpt2

LAYERS = 4
COMPILING = 45.0
"""Seconds that a compilation may take; with less time left it is not begun."""
PREPARED, PLAIN = "isomorph prepared", "isomorph plain"


class Session:
    """What all parts share.

    Args:
        device: such as ``cuda`` or ``cpu``.
        tiny: the smallest sizes.
        seconds: after which nothing new is begun.
    """

    def __init__(self, device: str, tiny: bool, seconds: float) -> None:
        self.device, self.options, self.tiny = device, Options(tiny=tiny), tiny
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return self._end - time.monotonic()

    def synced(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """A call that waits for the device."""

        def call() -> Any:
            result = function()
            synchronize()
            return result

        return call

    def compiled(
        self, measured: Measured, name: str, make: Callable[[], Callable[[], Any]]
    ) -> dict[str, Callable[[], Any]]:
        """An entrant that compiles at its first calls, or nothing where that fails or time is short."""
        if self.left() < COMPILING or self.tiny:
            measured.notes.append(f"{name} was left out: {self.left():.0f} s are left")
            return {}
        try:
            begun, call = time.monotonic(), make()
            for _ in range(3):
                call()
            synchronize()
        except Exception as error:
            measured.left_out(name, error)
            return {}
        measured.notes.append(f"{name} was ready after {time.monotonic() - begun:.0f} s")
        return {name: call}


def network(session: Session) -> tuple[Block, iso.Plan, dict[str, Any]]:
    """A few blocks as ViT-B's."""
    block = Block(2, 5, 32, 4) if session.tiny else Block(128, 197, 768, 12)
    layers = 2 if session.tiny else LAYERS
    text = f'for _ in range({layers}):\n    transformer_block({block.H}, eps={EPS}, name="block")'
    plan = iso.resolve(text, input=("B", "T", block.D))
    return block, plan, weights_of(plan)


def stacks(
    block: Block, plan: iso.Plan, weights: Mapping[str, Any], measured: Measured
) -> dict[str, nn.Module]:
    """The peers' blocks, one after another."""
    found: dict[str, list[nn.Module]] = {}
    for node in plan.nodes:
        for name, peer in block_peers(block, weights, measured, node.name).items():
            if name != "HNDL":
                found.setdefault(name, []).append(peer)
    return {name: nn.Sequential(*blocks) for name, blocks in found.items()}


def relative(found: torch.Tensor, right: torch.Tensor) -> float:
    return ((found.double() - right.double()).norm() / right.double().norm()).item()


def forward(session: Session) -> Measured:
    """bfloat16 weights and activations."""
    measured = Measured()
    block, plan, weights = network(session)
    device = session.device
    x = torch.from_numpy(block.x).to(device)
    with torch.inference_mode():
        right = ours(plan, weights).to(device)(x)
    narrow = x.bfloat16()
    model = ours(plan, weights).to(device).bfloat16()
    entrants: dict[str, Callable[..., Any]] = {PLAIN: model}
    peers = {
        name: peer.to(device).bfloat16() for name, peer in stacks(block, plan, weights, measured).items()
    }

    def calling(function: Callable[..., Any]) -> Callable[[], Any]:
        def call() -> Any:
            with torch.inference_mode():
                return function(narrow)

        return session.synced(call)

    calls: dict[str, Callable[[], Any]] = {}
    try:
        entrants = {PREPARED: prepare(model), **entrants}
    except Exception as error:
        measured.left_out(PREPARED, error)
    calls |= {name: calling(function) for name, function in (entrants | peers).items()}
    for name, peer in {"timm": peers.get("timm"), "isomorph": model}.items():
        if peer is not None:
            title = "torch.compile of timm" if name == "timm" else "isomorph plain, torch.compile"
            calls |= session.compiled(measured, title, lambda peer=peer: calling(torch.compile(peer)))
    for name, call in calls.items():
        for _ in range(3):  # an engine may compile at its second call
            found = call()
        measured.check(f"{name}, relative, float32", relative(found, right), NARROW)
    products = block.products * len(plan.nodes)
    calls[LIMIT] = session.synced(
        limit(products, block.attentions * len(plan.nodes), "bfloat16", device=device)
    )
    measured.time(calls, 2 if session.tiny else 40)
    return measured


def training(session: Session) -> Measured:
    """Float32 weights, products in bfloat16 by autocast, a fused AdamW step."""
    measured = Measured()
    block, plan, weights = network(session)
    device = session.device
    x = torch.from_numpy(block.x).to(device)
    models = {PLAIN: ours(plan, weights), **stacks(block, plan, weights, measured)}
    fused = device != "cpu"

    def stepping(model: nn.Module, function: Callable[..., Any]) -> Callable[[], Any]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused)

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(torch.device(device).type, torch.bfloat16):
                loss = function(x).float().square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return session.synced(step)

    calls = {}
    losses = {}
    for name, model in models.items():
        model.to(device).train()
        calls[name] = stepping(model, model)
        losses[name] = calls[name]().item()
    for name, loss in losses.items():
        measured.check(f"{name}, first loss, relative", abs(loss / losses[PLAIN] - 1), 1e-2)
    for name, title in ((PLAIN, "isomorph plain, torch.compile"), ("timm", "torch.compile of timm")):
        if name in models:
            calls |= session.compiled(
                measured, title, lambda m=models[name]: stepping(m, torch.compile(m))
            )  # fmt: skip
    measured.time(calls, 2 if session.tiny else 20)
    return measured


def decoding(session: Session) -> Measured:
    """GPT-2 small, batch 1, greedy; milliseconds per added id."""
    measured = Measured()
    sizes, n = gpt2(session.options, 1, 16), 4 if session.tiny else 64
    plan = sizes.plan
    weights = weights_of(plan)
    device = session.device
    ids = torch.from_numpy(sizes.ids).to(device)
    with torch.inference_mode():
        right = ours(plan, weights).to(device)(ids)
    model = ours(plan, weights).to(device)
    calls: dict[str, Callable[[], Any]] = {}
    for dtype in ("bfloat16", "float32"):
        name = f"{PREPARED}, {dtype}"
        try:
            engine = prepare(model, dtype)
            bound = NARROW if dtype == "bfloat16" else 1e-4
            measured.check(f"{name}, relative, float32", relative(engine(ids), right), bound)
            calls[name] = session.synced(lambda engine=engine: iso.generate(engine, ids, n))
        except Exception as error:
            measured.left_out(name, error)
    calls[PLAIN] = session.synced(lambda: iso.generate(model, ids, n))
    try:
        for dtype in (torch.bfloat16, torch.float32):
            peer = transformers_gpt2(plan, weights).to(device=device, dtype=dtype)
            told = {"max_new_tokens": n, "min_new_tokens": n, "do_sample": False, "pad_token_id": 0}
            calls[f"transformers.generate, {str(dtype).removeprefix('torch.')}"] = session.synced(
                lambda peer=peer, told=told: peer.generate(ids, attention_mask=torch.ones_like(ids), **told)
            )
    except Exception as error:
        measured.left_out("transformers", error)
    step = sizes._replace(T=1)
    one = limit(step.products, [], "bfloat16", device=device)
    calls["products alone, bfloat16"] = session.synced(lambda: [one() for _ in range(n)])
    measured.time(calls, 2 if session.tiny else 5)
    measured.samples = {name: [ms / n for ms in samples] for name, samples in measured.samples.items()}
    return measured


PARTS: dict[str, Callable[[Session], Measured]] = {
    "forward, bfloat16": forward,
    "decoding, GPT-2 small, batch 1": decoding,
    "training step, autocast": training,
}


def record(name: str, measured: Measured, seconds: float) -> dict[str, Any]:
    """A part as JSON: medians, and ratios to our first entrant."""
    first = next((key for key in measured.samples if key.startswith("isomorph")), None)
    base = statistics.median(measured.samples[first]) if first else None
    entrants = {
        key: {
            "median_ms": statistics.median(samples), "least_ms": min(samples), "most_ms": max(samples),
            "ratio": statistics.median(samples) / base if base else None,
        }
        for key, samples in measured.samples.items()
    }  # fmt: skip
    return {
        "part": name, "ratios_to": first, "entrants": entrants,
        "checks": [{**asdict(check), "passed": check.passed} for check in measured.checks],
        "notes": list(dict.fromkeys(measured.notes)), "failures": measured.failures, "seconds": seconds,
    }  # fmt: skip


def about(device: str) -> dict[str, Any]:
    """The machine."""
    cuda = device.startswith("cuda")
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "python": platform.python_version(),
        "isomorph": iso.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, nothing compiled")
    parser.add_argument("--seconds", type=float, default=220.0, help="after which nothing new is begun")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("there is no CUDA device here; --device cpu --tiny shows that the script runs")
    torch.set_float32_matmul_precision("highest")
    session = Session(given.device, given.tiny, given.seconds)
    print(json.dumps(about(given.device)), flush=True)
    correct, skipped = True, []
    for name in given.parts:
        if session.left() < 20:
            skipped.append(name)
            continue
        begun = time.monotonic()
        try:
            measured = PARTS[name](session)
        except Exception as error:
            measured = Measured(failures=[f"{type(error).__name__}: {error}"[:2000]])
        correct = correct and not measured.failures and all(check.passed for check in measured.checks)
        print(json.dumps(record(name, measured, time.monotonic() - begun)), flush=True)
        if given.device.startswith("cuda"):
            torch.cuda.empty_cache()
    print(json.dumps({"skipped": skipped, "correct": correct}), flush=True)
    sys.exit(not correct)


if __name__ == "__main__":
    main()
