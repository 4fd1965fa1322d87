"""The doors to the torch backend: for people, and for whoever compares backends."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import isomorph as iso
from isomorph.backends import available
from isomorph.backends.torch import harness

DEFINITION = """
x = input("B", "T", 4)
ids = input("B", "T", dtype="int64")
h = linear(4, bias=False, trainable=False)
e = embedding(ids, 3, 4)
add(h, e)
"""


def test_without_pytorch_the_door_says_what_to_install():
    script = (
        "import sys\nsys.modules['torch'] = None\nimport isomorph as iso\n"
        "try:\n    iso.torch\nexcept iso.IsomorphError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == (
        'E_BACKEND: isomorph.torch needs PyTorch, which is not installed\n  pip install "isomorph[torch]"\n'
    )


def test_the_door_leads_to_the_real_framework():
    assert iso.torch.build(iso.resolve("relu()", input=("B", 2)))(torch.tensor([[-1.0, 2.0]])).tolist() == [
        [0.0, 2.0]
    ]
    assert iso.torch.Network.__mro__[1] is torch.nn.Module


def test_harness_forward_and_gradients():
    assert available.load("torch") is harness
    plan = iso.resolve(DEFINITION)
    weights = {"n0.weight": np.diag([1.0, 2.0, 3.0, 4.0]), "n1.weight": np.arange(12.0).reshape(3, 4)}
    inputs = {"x": np.ones((1, 2, 4)), "ids": np.array([[2, 2]])}
    for dtype in ("float64", "float32", "bfloat16"):
        out = harness.forward(plan, weights, inputs, dtype)[""]
        # rows of the table, 8 9 10 11, plus 1 2 3 4
        assert out.dtype.name == dtype
        assert out.tolist() == [[[9.0, 11.0, 13.0, 15.0]] * 2]
    cotangent = np.array([[[1.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 1.0]]])
    found = harness.gradients(plan, weights, inputs, {"": cotangent}, "float64")
    # out[t, i] = weight[i, :] . x[t] + table[ids[t], i]
    assert found.parameters["n0.weight"].tolist() == [[3.0] * 4, [0.0] * 4, [0.0] * 4, [1.0] * 4]
    assert found.parameters["n1.weight"].tolist() == [[0.0] * 4, [0.0] * 4, [3.0, 0.0, 0.0, 1.0]]
    assert found.inputs["x"].tolist() == [[[1.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 4.0]]]
    assert list(found.inputs) == ["x"]
    assert weights["n0.weight"][0, 0] == 1.0


def test_harness_gradients_of_what_is_not_used():
    plan = iso.resolve('x = input("B", 2)\nrelu()')
    found = harness.gradients(plan, {}, {"x": np.zeros((1, 2))}, {"": np.ones((1, 2))}, "float64")
    assert found.parameters == {}
    assert found.inputs["x"].tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cpuu", "E_BACKEND: torch cannot use the device 'cpuu': Expected one of cpu"),
        ("cpu:one", "E_BACKEND: torch cannot use the device 'cpu:one': "),
        (None, 'E_ARGUMENT: device must be a name such as "cpu" or "cuda:0", or a torch.device, got None'),
        (True, 'E_ARGUMENT: device must be a name such as "cpu" or "cuda:0", or a torch.device, got True'),
        ("cuda:77", "E_BACKEND: torch cannot use the device 'cuda:77': "),
    ],
)
def test_a_device_that_is_not_here(device, message):
    plan = iso.resolve("linear(3)", input=("B", 2))
    with pytest.raises(iso.IsomorphError) as caught:
        iso.torch.build(plan, device=device)
    assert str(caught.value).startswith(message)
