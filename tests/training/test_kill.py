"""Real kills: SIGKILL at random moments, again and again, changes no bit of the result."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from isomorph.training.metrics import read_records

# One process loads everything once and forks; each child trains until it is killed or done.
SCRIPT = """
import json, os, random, signal, sys, time
import torch
import isomorph as iso
import isomorph.backends.torch.training
from isomorph.backends.training_config import TrainingConfig
from isomorph.training.curve import draw_curve
from isomorph.training.loop import train

torch.set_num_threads(1)
directory, data, deadline = sys.argv[1:]
text = '''
input("B", 6)
linear(8)
dropout(0.5)
linear(3)
output("B", 3)
'''
config = TrainingConfig(
    data=data, steps=150, batch_size=7, warmup=5, checkpoint_every=2, evaluate_every=5, seed=3
)

def start(name):
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        train(iso.resolve(text), config, os.path.join(directory, name), resume=True)
        status = 0
    finally:
        os._exit(status)

_, status = os.waitpid(start("straight"), 0)
assert status == 0, status
chance, kills, stop = random.Random(5), 0, time.monotonic() + float(deadline)
while True:
    child = start("killed")
    if time.monotonic() < stop:
        time.sleep(chance.uniform(0.0, 0.25))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        assert status == 0, status
        break
    kills += 1
print(json.dumps(kills))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_sigkill_at_any_moment_and_resume_give_the_undisturbed_weights(tmp_path):
    pytest.importorskip("torch")
    arguments = [str(tmp_path), write_data(tmp_path), "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) >= 5
    compare(tmp_path / "straight", tmp_path / "killed", checkpoints=(148, 150))


NETWORK = """
input("B", 6)
linear(8)
dropout(0.5)
linear(3)
output("B", 3)
"""


@pytest.mark.slow
def test_nnx_killed_while_it_trains_and_resumed_gives_the_undisturbed_weights(tmp_path):
    # Every process is a new one: it compiles anew, and its dropout and data order start where the last ended.
    pytest.importorskip("optax")
    (tmp_path / "network.net").write_text(NETWORK)
    command = [
        sys.executable, "-c", "from isomorph.cli.main import main; main()", "train",
        tmp_path / "network.net", "--data", write_data(tmp_path), "--backend", "nnx", "--steps", "400",
        "--batch-size", "7", "--warmup", "5", "--checkpoint-every", "2", "--evaluate-every", "50",
        "--seed", "3", "--quiet", "--resume",
    ]  # fmt: skip

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, "--out", tmp_path / name], stdout=subprocess.DEVNULL)

    straight = start("straight")
    for step in (9, 120):
        process = start("killed")
        wait_for(process, tmp_path / "killed" / "metrics.jsonl", step)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert start("killed").wait() == 0
    assert straight.wait() == 0
    compare(tmp_path / "straight", tmp_path / "killed", checkpoints=(398, 400))


def wait_for(process: subprocess.Popen[bytes], metrics: Path, step: int) -> None:
    """Return when the run has taken that step."""
    while not any(record["step"] >= step for record in read_records(metrics)):
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.002)


def write_data(directory: Path) -> str:
    rng = np.random.default_rng(0)
    np.savez(directory / "data.npz", x=rng.standard_normal((50, 6)), y=rng.integers(0, 3, 50))
    return f"npz:{directory / 'data.npz'}"


def compare(straight: Path, killed: Path, checkpoints: tuple[int, int]) -> None:
    """Equal bytes of the model and the checkpoints, and equal metrics but for times."""
    for name in ("model.safetensors", *(f"checkpoint-{step:08d}.safetensors" for step in checkpoints)):
        assert (straight / name).read_bytes() == (killed / name).read_bytes(), name
    metrics = []
    for directory in (straight, killed):
        records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        for record in records:
            record.pop("seconds", None)
        metrics.append(records)
    assert metrics[0] == metrics[1]
    assert [path.name for path in killed.iterdir() if path.name.endswith(".tmp")] in ([], [".curve.png"])
