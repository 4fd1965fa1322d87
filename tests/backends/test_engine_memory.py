"""Engines leave nothing behind: they go with their last reference, and what is kept for others is bounded."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest

import isomorph as iso

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
from flax import nnx  # noqa: E402

from isomorph.backends.jax.engine import LARGEST  # noqa: E402
from isomorph.generation.decoding_layout import decoding_layout  # noqa: E402

GPT = (
    'ids = input("B", "T", dtype="int64")\nembedding(9, 8)\npos_embed(32)\n'
    "transformer_block(2, causal=True)\nlinear(9)"
)
IDS = np.array([[1, 2, 3]])


def torch_engine(width: int = 8) -> Any:
    plan = iso.resolve(GPT.replace(" 8)", f" {width})"))
    return iso.prepare(iso.torch.build(plan))


def nnx_engine(width: int = 8) -> Any:
    plan = iso.resolve(GPT.replace(" 8)", f" {width})"))
    return iso.prepare(iso.nnx.build(plan))


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_torch_engine_goes_with_its_last_reference(no_collector):
    """Without the garbage collector: packed weights wait for nobody."""
    for _ in range(2):  # what PyTorch does at first keeps some frames for the collector
        engine = torch_engine()
    engine(torch.from_numpy(IDS))
    iso.generate(engine, [1, 2], 3)
    held = [weakref.ref(engine), weakref.ref(engine._state.store), weakref.ref(engine.network)]
    arrays = [
        weakref.ref(value) for value in engine._state.store._kept.values() if isinstance(value, torch.Tensor)
    ]
    assert len(arrays) > 5
    del engine
    assert [ref() for ref in held + arrays] == [None] * (3 + len(arrays))


def test_weights_of_before_go_when_the_model_changes(no_collector):
    engine = torch_engine()
    engine(torch.from_numpy(IDS))
    store = weakref.ref(engine._state.store)
    with torch.no_grad():
        engine.network.get_parameter("n0.weight").mul_(2)
    engine(torch.from_numpy(IDS))
    assert store() is None


def test_a_jax_engines_weights_go_with_its_last_reference(no_collector):
    engine = nnx_engine()
    engine(IDS)
    held = [weakref.ref(engine), weakref.ref(engine._state), *map(weakref.ref, engine._state.weights)]
    del engine
    assert [ref() for ref in held] == [None] * len(held)


def grown(make: Any, rounds: int) -> int:
    """Bytes that Python allocated for so many engines more and did not give back.

    The lesser of two halves, doubled: what grows once, such as Python's own table of names, is no leak.
    """
    for _ in range(rounds // 4):
        make()
    gc.collect()
    tracemalloc.start()
    halves = []
    for _ in range(2):
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(rounds // 2):
            make()
        gc.collect()
        halves.append(tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    return 2 * min(halves)


def test_two_hundred_torch_engines_take_no_memory():
    model, ids = iso.torch.build(iso.resolve(GPT)), torch.from_numpy(IDS)

    def make() -> None:
        iso.prepare(model)(ids)

    assert grown(make, 200) < 1_000_000  # five thousand bytes for each: one engine takes a hundred thousand


def test_two_hundred_jax_engines_take_no_memory():
    model = iso.nnx.build(iso.resolve(GPT))

    def make() -> None:
        iso.prepare(model)(IDS)

    assert grown(make, 200) < 1_000_000


def test_engines_of_many_plans_are_forgotten():
    """Compiled functions stay for a bounded number of plans; no weights are among them."""
    from isomorph.backends.jax import engine as module

    held = []
    for width in range(1, module.SHARED + 8):
        engine = iso.prepare(iso.nnx.build(iso.resolve(f"linear({width})", input=("B", 2))))
        held.append(weakref.ref(engine._state.functions))
    engine(np.ones((1, 2), np.float32))
    del engine
    gc.collect()
    assert sum(ref() is not None for ref in held) <= module.SHARED


def test_engines_of_equal_plans_share_what_is_compiled():
    """20 engines, one compilation: weights are arguments."""
    plan = iso.resolve(GPT)
    engines = [iso.prepare(iso.nnx.build(plan, seed=seed)) for seed in range(20)]
    results = [np.asarray(engine(IDS)) for engine in engines]
    functions = engines[0]._state.functions
    assert all(engine._state.functions is functions for engine in engines)
    assert functions.fast._cache_size() == 1
    assert len({result.tobytes() for result in results}) == 20


def test_steps_of_generation_are_bounded(monkeypatch):
    from isomorph.backends.torch import engine_decoding

    monkeypatch.setattr(engine_decoding, "MOST_PROGRAMS", 3)
    engine = torch_engine()
    for length in range(1, 9):
        assert iso.generate(engine, list(range(length)), 2).shape == (length + 2,)
    assert len(engine._state.steps) == 3


def places(arrays: Any) -> set[int]:
    """Where large arrays lie."""
    return {array.unsafe_buffer_pointer() for array in arrays if array.size > LARGEST}


def test_large_weights_of_jax_are_the_models_own():
    """Of a prepared model, and for reading a prompt: one text at a time alone takes others."""
    plan = iso.resolve(
        'ids = input("B", "T", dtype="int64")\nembedding(600, 768)\n'
        "transformer_block(8, causal=True)\nlayer_norm()\nlinear(600)"
    )
    model = iso.nnx.build(plan)
    engine = iso.prepare(model)
    own = places(jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert len(own) == 8  # both tables; queries, keys, values and their result; both of the feed-forward part
    assert places(engine._state.weights) == own
    layout = decoding_layout(plan)
    one, several = engine.steps(layout, 1), engine.steps(layout, 2)
    assert several.single is several.longer is one.longer
    assert places(one.longer_weights) <= own
    assert not places(one.weights) <= own
    narrow = iso.prepare(model, "bfloat16").steps(layout, 1)
    assert narrow.single is narrow.longer
