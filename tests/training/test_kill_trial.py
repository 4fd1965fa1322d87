"""Everything that can happen to a run's directory at once: each end is the undisturbed weights, or a clear refusal."""

import json
import os
import subprocess
import sys

import pytest

# One process loads a framework and forks; each child trains until it is killed, refused or done. JAX starts its
# threads with the first computation, so a process that has computed nothing may fork.
SCRIPT = """
import hashlib, json, os, random, signal, sys, time
from functools import cache
from pathlib import Path

import numpy as np
import isomorph as iso
from isomorph.errors import IsomorphError
from isomorph.training.checkpoint import RunDirectory
from isomorph.backends.training_config import TrainingConfig
from isomorph.backends.trainer import Batch
from isomorph.training import loop
from isomorph.training.loop import train
from isomorph.backends.available import load_trainer
import safetensors.numpy

backend, home, tries, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
load_trainer(backend)
os.fsync = lambda descriptor: None  # a killed process loses nothing that it has written
loop._draw = lambda run, reporter: None  # a picture costs each child more than all its steps
PLAN = iso.resolve('input("B", 6)\\nlinear(8)\\ndropout(0.5)\\nlinear(3)\\noutput("B", 3)')
if backend == "torch":  # what it imports with its first step is imported once; one thread is no obstacle to a fork
    import torch
    torch.set_num_threads(1)
    trainer = load_trainer(backend)(PLAN, iso.initial_weights(PLAN, 0), TrainingConfig("warming up"))
    trainer.step(0, [Batch({"x": np.ones((7, 6))}, np.zeros(7, int))], 0.1)
DATA = home / "data.npz"
CONTENTS = []
for number in range(2):
    rng = np.random.default_rng(number)
    np.savez(DATA, x=rng.standard_normal((50, 6)), y=rng.integers(0, 3, 50))
    CONTENTS.append(DATA.read_bytes())


def put(number):
    # Whole at every moment, as an editor saves: a child may be reading.
    (home / "next").write_bytes(CONTENTS[number])
    os.replace(home / "next", DATA)


def start(directory, seed, said, **options):
    "A child that trains. Exit 0 when it ended well, 2 when it was refused; what it says lies in a file."
    child = os.fork()
    if child:
        return child
    status, told = 1, ""
    try:
        os.dup2(os.open(f"{said}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        config = TrainingConfig(
            data=f"npz:{DATA}", steps=24, batch_size=7, warmup=5, checkpoint_every=3, evaluate_every=12, seed=seed,
            backend=backend,
        )
        outcome = train(PLAN, config, directory, **options)
        status, told = 0, repr(outcome.test_loss)
    except IsomorphError as error:
        status, told = 2, str(error)
    except BaseException as error:
        told = repr(error)
    finally:
        Path(said).write_text(told)
        os._exit(status)


def wait(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def weights(directory):
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()


@cache
def expected(seed_of_run, number):
    "What an undisturbed run ends with: weights, and what it says. It takes the place of nothing that is tried."
    directory, said = home / f"straight-{seed_of_run}-{number}", home / "straight"
    kept = DATA.read_bytes() if DATA.exists() else b""
    put(number)
    assert wait(start(directory, seed_of_run, said)) == 0, said.read_text()
    (home / "next").write_bytes(kept)
    os.replace(home / "next", DATA)
    return weights(directory), said.read_text()


REFUSALS = (
    "is in use: ", "was given other data", "holds another run", "holds an unfinished run", "holds a finished run",
    "has no whole checkpoint to continue from", "the run cannot be resumed: ", "is the state of another run",
)


def check(status, said, seed_of_run, numbers, killed):
    "What a child's end must be: its own data's and seed's result, or a refusal in our own words."
    told = Path(said).read_text() if Path(said).exists() else ""
    if status == -signal.SIGKILL and killed:
        return "killed"
    if status == 2:
        assert told.startswith("E_CHECKPOINT: "), told
        assert any(reason in told for reason in REFUSALS), told
        return "refused"
    assert status == 0, (status, told, Path(f"{said}.err").read_text())
    assert told in {expected(seed_of_run, number)[1] for number in numbers}, told
    return "equal"


def cut(directory, chance):
    "Damage the newest checkpoint, or now and then the configuration or the model."
    paths = RunDirectory(directory).checkpoints()[:1]
    if chance.random() < 0.15:
        paths = [directory / chance.choice(("config.json", "model.safetensors"))]
    for path in paths:
        if path.exists():
            content = bytearray(path.read_bytes())
            how = chance.choice(("cut", "empty", "flipped"))
            if how == "flipped" and path.name != "config.json" and path.name != "model.safetensors":
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            else:
                content = content[: 0 if how == "empty" else chance.randrange(len(content))]
            path.write_bytes(content)


put(0)
begun = time.monotonic()
expected(0, 0)
duration = time.monotonic() - begun  # of a run once everything is loaded

ends = {"equal": 0, "refused": 0, "killed": 0, "children": 0}
finals = {"equal": 0, "refused": 0}
for attempt in range(tries):
    chance = random.Random(f"{seed} {attempt}")
    directory = home / f"run-{attempt}"
    number = 0
    put(0)
    for event in range(chance.randint(2, 4)):
        if chance.random() < 0.3:
            number = 1 - number
            put(number)
        if chance.random() < 0.3 and directory.exists():
            cut(directory, chance)
        children = []
        for which in range(chance.choice((1, 1, 2))):
            run_seed = chance.choice((0, 0, 0, 1))
            options = chance.choice(({"resume": True}, {"resume": True}, {"resume": True}, {"force": True}, {}))
            said = home / f"said-{which}"
            said.unlink(missing_ok=True)
            children.append((start(directory, run_seed, said, **options), said, run_seed))
            time.sleep(chance.uniform(0, 0.3 * duration) * chance.choice((0, 1)))
        numbers = {number}
        if chance.random() < 0.2:  # while they load or train
            time.sleep(chance.uniform(0, 0.3 * duration))
            number = 1 - number
            put(number)
            numbers.add(number)
        killed = set()
        for child, said, run_seed in children:
            if chance.random() < 0.75:
                time.sleep(chance.uniform(0.0, 1.1 * duration))
                os.kill(child, signal.SIGKILL)
                killed.add(child)
        for child, said, run_seed in children:
            ends["children"] += 1
            ends[check(wait(child), said, run_seed, numbers, child in killed)] += 1
    # At the end nobody disturbs: one seed and one set of data are asked for.
    run_seed = chance.choice((0, 0, 0, 1))
    said = home / "said"
    said.unlink(missing_ok=True)
    end = check(wait(start(directory, run_seed, said, resume=True)), said, run_seed, {number}, False)
    if end == "equal":
        assert weights(directory) == expected(run_seed, number)[0]
    else:  # the message says how to go on, and that helps
        assert "--force" in said.read_text(), said.read_text()
        again = check(wait(start(directory, run_seed, said, force=True)), said, run_seed, {number}, False)
        assert again == "equal", said.read_text()
        assert weights(directory) == expected(run_seed, number)[0]
    finals[end] += 1
print(json.dumps({"finals": finals, "ends": ends}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("backend", "package"),
    [
        pytest.param("torch", "torch", marks=pytest.mark.trial(sample=2, whole=50)),
        pytest.param("nnx", "optax", marks=pytest.mark.trial(sample=1, whole=50)),
    ],
)
def test_every_end_is_the_undisturbed_weights_or_a_refusal(tmp_path, trial, backend, package):
    pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, backend, str(tmp_path), str(trial.tries), str(trial.seed)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=60 + 60 * trial.tries,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    print(backend, ends)
    assert sum(ends["finals"].values()) == trial.tries
