"""Large pages: a hint to the system, which no value and no result depends on."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

import isomorph as iso
from isomorph.backends import large_pages

PAGE = 1 << 21


@pytest.fixture
def asked(monkeypatch):
    """What the system is asked for, as pairs of start and length by advice."""
    found: dict[int, list[tuple[int, int]]] = {}

    def advise(start: int, length: int, advice: int) -> int:
        found.setdefault(advice, []).append((start, length))
        return 0

    monkeypatch.setattr(large_pages, "_madvise", lambda: advise)
    return found


@pytest.mark.parametrize(
    ("start", "size", "whole"),
    [
        (PAGE, PAGE, [(PAGE, PAGE)]),
        (PAGE, PAGE + 1, [(PAGE, 2 * PAGE)]),
        (PAGE + 1, 3 * PAGE, [(PAGE, 4 * PAGE)]),
        (3 * PAGE - 1, PAGE // 2, [(2 * PAGE, 2 * PAGE)]),
        (PAGE, PAGE // 2 - 1, []),
        (PAGE, 0, []),
    ],
)
def test_whole_pages_around_the_memory(asked, start, size, whole):
    large_pages.in_large_pages(start, size)
    assert asked == ({14: whole, 25: whole} if whole else {})


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system knows no large pages")
def test_the_advice_is_the_systems():
    assert mmap.MADV_HUGEPAGE == large_pages._HUGEPAGE


def test_values_stay():
    array = np.random.default_rng(0).random(PAGE)
    before = array.copy()
    large_pages.in_large_pages(array.ctypes.data, array.nbytes)
    assert np.array_equal(array, before)


@pytest.fixture
def known():
    """What the system can is looked at anew, before and after."""
    large_pages._madvise.cache_clear()
    yield
    large_pages._madvise.cache_clear()


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_not_asked(monkeypatch, known, platform):
    monkeypatch.setattr("sys.platform", platform)
    large_pages.in_large_pages(PAGE, PAGE)  # an address that is nobody's
    assert large_pages._madvise() is None


@pytest.mark.parametrize("setting", ["always madvise [never]\n", None])
def test_an_administrator_may_want_none(monkeypatch, known, tmp_path, setting):
    path = tmp_path / "enabled"
    if setting is not None:
        path.write_text(setting)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(large_pages, "_SETTING", path)
    assert large_pages._madvise() is None


@pytest.mark.parametrize("framework", ["torch", "nnx"])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_prepared_model_that_generates_much_asks_once(asked, monkeypatch, framework, dtype):
    monkeypatch.setattr(large_pages, "PAYS", 5)
    if framework == "torch":
        from isomorph.backends.torch import kernels

        monkeypatch.setattr(kernels, "prefers_onednn", lambda *told: kernels.onednn() is not None)
        if kernels.onednn() is None:
            pytest.skip("this PyTorch packs nothing")
    door = getattr(iso, framework)
    plan = iso.resolve(
        'ids = input("B", "T", dtype="int64")\nembedding(9, 1024)\nfeed_forward(4096)\n'
        "attention(4, causal=True)\nlinear(9)"
    )
    engine = iso.prepare(door.build(plan), dtype)
    first = iso.generate(engine, [1, 2, 3], 3)
    iso.generate(engine, [1, 2, 3], 3)
    assert not asked  # two ids were read alone in each: the last one is not read
    assert iso.generate(engine, [1, 2, 3], 3).tolist() == first.tolist()
    assert sum(length for _, length in asked[25]) >= 16 * 1024 * 1024  # two weights of 8 or 16 MB
    known = {advice: list(pairs) for advice, pairs in asked.items()}
    assert iso.generate(engine, [1, 2, 3], 9).tolist()[:6] == first.tolist()
    assert asked == known


def test_it_pays_once(monkeypatch):
    monkeypatch.setattr(large_pages, "PAYS", 3)
    uses = large_pages.Uses()
    assert [uses.pays() for _ in range(6)] == [False, False, True, False, False, False]
