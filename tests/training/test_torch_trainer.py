"""What the PyTorch trainer does to the process it runs in, and which devices and backends it refuses."""

import numpy as np
import pytest

import isomorph as iso
from isomorph.backends.available import load_trainer
from isomorph.backends.trainer import Batch
from isomorph.backends.training_config import TrainingConfig
from isomorph.errors import IsomorphError

torch = pytest.importorskip("torch")

LINEAR = 'input("B", 4)\ndropout(0.5)\nlinear(3, name="head")'


def trainer(**settings):
    plan = iso.resolve(LINEAR)
    return load_trainer("torch")(plan, iso.initial_weights(plan), TrainingConfig(data="test", **settings))


def test_leaves_the_callers_generator_and_settings_alone():
    state = torch.get_rng_state()
    trainer().step(0, [Batch({"x": np.ones((5, 4))}, np.arange(5) % 3)], 0.1)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_unknown_backend_or_device_is_refused():
    with pytest.raises(IsomorphError, match="E_BACKEND"):
        load_trainer("tensor")
    with pytest.raises(IsomorphError) as error:
        load_trainer("reference")
    assert str(error.value) == "E_BACKEND: the backend 'reference' does not train\n  use torch or nnx"
    with pytest.raises(IsomorphError, match="E_BACKEND"):
        trainer(device="cuda:99")


def test_threads_are_those_asked_for_while_it_computes_and_no_longer():
    before, seen = torch.get_num_threads(), []
    made = trainer(threads=3)
    made.model.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    batch = Batch({"x": np.ones((5, 4))}, np.arange(5) % 3)
    made.step(0, [batch], 0.1)
    made.evaluate(batch)
    assert seen == [3, 3]
    assert torch.get_num_threads() == before
    trainer().evaluate(batch)
    assert torch.get_num_threads() == before


def test_settings_come_back_with_their_mode():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        trainer().step(0, [Batch({"x": np.ones((5, 4))}, np.arange(5) % 3)], 0.1)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
