"""The PyTorch backend's public door: a plan as a ``torch.nn.Module``, and its weights."""

from isomorph.backends.available import missing

try:
    from isomorph.backends.torch.build import build
    from isomorph.backends.torch.network import Network
    from isomorph.backends.torch.onnx import export_onnx
    from isomorph.backends.torch.weights import load_weights, weights
except ModuleNotFoundError as error:
    raise missing("torch", error) from None

__all__ = ["Network", "build", "export_onnx", "load_weights", "weights"]
