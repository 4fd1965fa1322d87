"""Published models made from random configurations, and what they compute in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.agreement.bounds import numeric_bound
from isomorph.backends import available

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def frequencies(config: Any, width: int) -> np.ndarray:
    """Radians per position in float64, written from the papers: RoFormer, and LLaMA 3.1's bands."""
    rope = config.rope_parameters
    found = np.array([rope["rope_theta"] ** (-2.0 * i / width) for i in range(width // 2)])
    if rope["rope_type"] == "linear":
        return found / rope["factor"]
    if rope["rope_type"] == "llama3":
        length, low, high = (
            rope[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        wavelength = 2 * math.pi / found
        smooth = np.clip((length / wavelength - low) / (high - low), 0, 1)
        return (1 - smooth) * found / rope["factor"] + smooth * found
    return found


def lift(model: Any) -> None:
    """Compute in float64 what the peer computes in float32 whatever its dtype: RMS norms and rotations."""

    def norm(module: Any) -> Callable[[Any], Any]:
        return lambda x: (
            module.weight * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + module.variance_epsilon)
        )

    def rotation(config: Any) -> Callable[..., Any]:
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        radians = torch.from_numpy(frequencies(config, width))

        def forward(x: Any, position_ids: Any) -> Any:
            angles = position_ids[..., None].double() * torch.cat((radians, radians))
            return angles.cos(), angles.sin()

        return forward

    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            module.forward = norm(module)
        elif name.endswith("RotaryEmbedding"):
            module.forward = rotation(module.config)


@pytest.fixture
def published(tmp_path) -> Callable[..., tuple[Path, Any]]:
    """``published("GPT2Model", config)``: a directory that the peer saved, and the model, in float64."""

    def make(name: str, config: Any, seed: int = 0, **arguments: Any) -> tuple[Path, Any]:
        torch.manual_seed(seed)
        config._attn_implementation = "sdpa"
        model = getattr(transformers, name)(config, **arguments).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.5)
        directory = tmp_path / name
        model.save_pretrained(directory)
        lift(model)
        return directory, model

    return make


def computed(model: Any, *inputs: Any, **named: Any) -> Any:
    with torch.no_grad():
        return model(*inputs, **named)


@pytest.fixture
def agrees() -> Callable[..., None]:
    """Expected outputs against the reference and torch in float64, and every backend in float32."""

    def check(directory: Path, expected: dict[str, np.ndarray], *inputs: np.ndarray) -> None:
        plan, weights = iso.import_checkpoint(directory)
        assert plan.dtype == "float64"
        names = [name for name, _ in plan.inputs]
        given = dict(zip(names, inputs, strict=True))
        for backend in ("reference", "torch"):
            found = available.load(backend).forward(plan, weights, given, "float64")
            assert sorted(found) == sorted(expected)
            for name, value in expected.items():
                np.testing.assert_allclose(
                    found[name], value, rtol=0, atol=1e-10 * max(1, np.abs(value).max())
                )
        single, narrow = iso.import_checkpoint(directory, dtype="float32")
        truth = numeric_bound(single, narrow, given)
        for backend in ("torch", "nnx", "linen"):
            found = available.load(backend).forward(single, narrow, given, "float32")
            for name, value in truth.outputs.items():
                assert np.abs(np.asarray(found[name]) - value).max() <= truth.total, backend

    return check


@pytest.fixture
def returns(tmp_path) -> Callable[..., None]:
    """Exports, loads in the peer with nothing missing and equal outputs, and imports again bit-equal."""

    def check(directory: Path, model: Any, key: str, *inputs: Any, **named: Any) -> None:
        plan, weights = iso.import_checkpoint(directory)
        back = tmp_path / "exported"
        name = iso.export_checkpoint(back, plan, weights)
        assert name == type(model).__name__
        loaded, information = getattr(transformers, name).from_pretrained(
            back, output_loading_info=True, dtype=torch.float64, attn_implementation="sdpa"
        )
        assert not any(information.values()), information
        lift(loaded)
        expected, found = computed(model, *inputs, **named), computed(loaded.eval(), *inputs, **named)
        np.testing.assert_allclose(found[key].numpy(), expected[key].numpy(), rtol=0, atol=1e-12)
        again, same = iso.import_checkpoint(back)
        assert again == plan
        assert again.definition == plan.definition
        assert list(same) == list(weights)
        assert all(same[path].tobytes() == weights[path].tobytes() for path in weights)

    return check
