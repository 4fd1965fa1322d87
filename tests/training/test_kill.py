"""Real kills: SIGKILL at random moments, again and again, changes no bit of the result."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

# One process loads everything once and forks; each child trains until it is killed or done.
SCRIPT = """
import json, os, random, signal, sys, time
import torch
import isomorph as iso
import isomorph.backends.torch.training
from isomorph.training.config import TrainingConfig
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
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((50, 6)), y=rng.integers(0, 3, 50))
    arguments = [str(tmp_path), f"npz:{tmp_path / 'data.npz'}", "4"]
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
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    for name in ("model.safetensors", "checkpoint-00000150.safetensors", "checkpoint-00000148.safetensors"):
        assert (straight / name).read_bytes() == (killed / name).read_bytes(), name
    metrics = {}
    for directory in (straight, killed):
        records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        for record in records:
            record.pop("seconds", None)
        metrics[directory.name] = records
    assert metrics["straight"] == metrics["killed"]
    assert [path.name for path in killed.iterdir() if path.name.endswith(".tmp")] in ([], [".curve.png"])
