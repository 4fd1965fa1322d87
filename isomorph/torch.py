"""The PyTorch backend's public door: a plan as a ``torch.nn.Module``, and its weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from isomorph.agreement.onnx import compare_onnx
from isomorph.backends.available import missing
from isomorph.plan import Plan
from isomorph.writing.rule import Input

try:
    from isomorph.backends.torch import onnx
    from isomorph.backends.torch.build import build
    from isomorph.backends.torch.network import Network
    from isomorph.backends.torch.onnx_file import EXTERNAL_BYTES
    from isomorph.backends.torch.weights import load_weights, weights
except ModuleNotFoundError as error:
    raise missing("torch", error) from None

__all__ = ["Network", "build", "export_onnx", "load_weights", "weights"]


def export_onnx(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    plan: Plan,
    weights: Mapping[str, Any],
    *,
    compare: bool = True,
    external_bytes: int = EXTERNAL_BYTES,
    force: bool = False,
    inputs: Sequence[Input] = (),
) -> onnx.OnnxModel:
    """Write a network, in evaluation mode, as an ONNX file for any sizes of its symbols.

    The file is checked before it takes its name: by ``onnx.checker``, and in onnxruntime at two choices of
    sizes, neither of them the one it was captured at. A process that is killed leaves what was there before,
    or the new model, whole, and perhaps a hidden directory ``.<name>.<random>.tmp``. A lone output without a
    name is called ``output``.

    Args:
        path: the file; ``.onnx`` or no extension. Its directory must exist.
        plan: the network, of dtype float32 or float16.
        weights: arrays by parameter path, such as a backend's ``weights(model)``; a tied one is stored once.
        compare: whether to run the reference, for which one parameter after the other is widened to 8 bytes per
            element, and onnxruntime, which maps them from the file.
        external_bytes: weights that take more are written to ``<name>.<16 hex digits>.data`` beside the file.
        force: whether a file that was not exported here is replaced.
        inputs: paths of what is read meanwhile, which is never replaced.

    Raises:
        IsomorphError: E_BACKEND when a package is missing, when ``torch.export`` cannot capture an operator,
            or when onnxruntime does not compute what the reference computes; E_ARGUMENT when the plan cannot
            be said in ONNX; E_WEIGHTS when the weights are not exactly the plan's; E_OUTPUT when something else
            has the name, or the file cannot be written. They leave what was there.
    """
    check = compare_onnx if compare else None
    return onnx.export_onnx(
        path, plan, weights, check, external_bytes=external_bytes, force=force, inputs=inputs
    )
