"""Settings are checked when they are made, and survive JSON."""

import json

import pytest

from isomorph.backends.training_config import TrainingConfig
from isomorph.errors import IsomorphError


def test_survives_json():
    config = TrainingConfig(data="digits", steps=7, learning_rate=1e-4)
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "E_ARGUMENT: training setting steps must be >= 1, got 0"),
        ({"steps": True}, "E_ARGUMENT: training setting steps must be int, got True"),
        ({"steps": 1.5}, "E_ARGUMENT: training setting steps must be int, got 1.5"),
        ({"learning_rate": 0}, "E_ARGUMENT: training setting learning_rate must be > 0, got 0.0"),
        ({"learning_rate": float("nan")}, "E_ARGUMENT: training setting learning_rate must be > 0, got nan"),
        ({"beta1": 1.0}, "E_ARGUMENT: training setting beta1 must be >= 0 and < 1, got 1.0"),
        ({"validation": -0.1}, "E_ARGUMENT: training setting validation must be >= 0 and < 1, got -0.1"),
        (
            {"final_learning_rate": 1.5},
            "E_ARGUMENT: training setting final_learning_rate must be >= 0 and <= 1, got 1.5",
        ),
        (
            {"precision": "fp8"},
            "E_ARGUMENT: training setting precision must be one of float32, bf16, got 'fp8'",
        ),
        (
            {"batch_size": 10, "accumulate": 3},
            "E_ARGUMENT: training setting accumulate must divide batch_size=10, got 3",
        ),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(IsomorphError) as error:
        TrainingConfig(data="digits", **settings)
    assert str(error.value) == message


def test_names_an_unknown_setting_and_the_nearest():
    with pytest.raises(IsomorphError) as error:
        TrainingConfig.from_dict({"data": "digits", "step": 5})
    assert str(error.value) == "E_ARGUMENT: there is no training setting 'step'\n  did you mean steps?"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "E_ARGUMENT: training settings are a mapping by name, got 'NoneType'"),
        ([], "E_ARGUMENT: training settings are a mapping by name, got 'list'"),
        ({}, "E_ARGUMENT: training setting data is missing, which has no default"),
        ({"data": "digits", 1: 2}, "E_ARGUMENT: there is no training setting 1"),
    ],
)
def test_settings_of_another_kind_are_refused(values, message):
    with pytest.raises(IsomorphError) as error:
        TrainingConfig.from_dict(values)
    assert str(error.value).splitlines()[0] == message
