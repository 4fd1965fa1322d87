"""Verbs that compute refuse the device that holds no values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import isomorph as iso

pytest.importorskip("torch")


@pytest.mark.parametrize("verb", ["train", "generate"])
def test_a_verb_that_computes_refuses_the_meta_device(verb: str, isomorph: Any, tmp_path: Any) -> None:
    text = 'ids = input("B", "T", dtype="int64")\nembedding(7, 8)\nlinear(7)\noutput("B", "T", 7)'
    network, data, model = tmp_path / "k.net", tmp_path / "data.npz", tmp_path / "k.safetensors"
    network.write_text(text)
    ids = np.arange(12).reshape(4, 3) % 7
    np.savez(data, ids=ids, y=ids)
    plan = iso.resolve(text)
    iso.save(model, plan, iso.initial_weights(plan))
    arguments = {
        "train": ("train", network, "--data", f"npz:{data}", "--batch-size", 2, "--out", tmp_path / "run"),
        "generate": ("generate", model, "--ids", "1", "--backend", "torch"),
    }
    result = isomorph(*arguments[verb], "--device", "meta")
    assert result.status == 2
    assert "E_ARGUMENT: nothing can be computed on the meta device, which holds no values" in result.err
