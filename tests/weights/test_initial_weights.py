"""Initial weights: distributions against their formulas, and what they must not depend on."""

import hashlib
import math
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import isomorph as iso
from isomorph import initializers
from isomorph.plan import Parameter
from isomorph.weights.initial import CHUNK, draw, fans, initial_weights


def drawn(initial, shape, dtype="float64", seed=0, path="n0.weight"):
    return draw(Parameter(path, shape, dtype, initial, (), True, 0), seed)


def normal_cdf(mean, std):
    return lambda x: 0.5 * (1 + np.vectorize(math.erf)((x - mean) / (std * math.sqrt(2))))


def uniform_cdf(low, high):
    return lambda x: np.clip((x - low) / (high - low), 0, 1)


def truncated_cdf(mean, std):
    """The normal law between -2 and 2, stretched to deviation ``std``."""
    inner = normal_cdf(0, 1)
    phi = math.exp(-2) / math.sqrt(2 * math.pi)
    inside = math.erf(math.sqrt(2))  # P(|z| < 2)
    stretch = std / math.sqrt(1 - 4 * phi / inside)
    return lambda x: (inner((x - mean) / stretch) - inner(-2.0)) / inside


# [30, 4, 5, 5]: fan_in = 4 * 25 = 100, fan_out = 30 * 25 = 750; [60, 50]: 50 and 60
WEIGHT, KERNEL = (60, 50), (30, 4, 5, 5)
LAWS = [
    (initializers.Normal(0.5, 0.02), WEIGHT, normal_cdf(0.5, 0.02)),
    (initializers.Uniform(-0.25, 0.75), WEIGHT, uniform_cdf(-0.25, 0.75)),
    (initializers.TruncatedNormal(1.0, 0.02), WEIGHT, truncated_cdf(1.0, 0.02)),
    (initializers.XavierUniform(2.0), WEIGHT, uniform_cdf(-2 * math.sqrt(6 / 110), 2 * math.sqrt(6 / 110))),
    (initializers.XavierNormal(), KERNEL, normal_cdf(0, math.sqrt(2 / 850))),
    (initializers.KaimingUniform(), WEIGHT, uniform_cdf(-math.sqrt(6 / 50), math.sqrt(6 / 50))),
    (initializers.KaimingNormal(nonlinearity="relu"), KERNEL, normal_cdf(0, math.sqrt(2 / 100))),
    (initializers.KaimingNormal("fan_out", "tanh"), KERNEL, normal_cdf(0, 5 / 3 / math.sqrt(750))),
    (initializers.KaimingUniform(a=math.sqrt(5)), WEIGHT, uniform_cdf(-1 / math.sqrt(50), 1 / math.sqrt(50))),
]


@pytest.mark.parametrize(("initial", "shape", "cdf"), LAWS, ids=lambda value: str(value)[:40])
def test_the_law_of_each_scheme(initial, shape, cdf):
    values = np.sort(drawn(initial, shape).ravel())
    n = values.size  # 3000
    expected = cdf(values)
    distance = max(np.max(np.arange(1, n + 1) / n - expected), np.max(expected - np.arange(n) / n))
    # Kolmogorov: P(distance > c / sqrt(n)) < 2 exp(-2 c^2) = 7e-6 for c = 2.5
    assert distance < 2.5 / math.sqrt(n)


def test_truncated_normal_is_cut_and_has_the_stated_deviation():
    values = drawn(initializers.TruncatedNormal(0.0, 1.0), (400_000,))  # more than one chunk
    assert values.size > CHUNK
    # cut at two sigma of a law whose sigma is 1 / 0.87962566: +-2.2737
    assert 2.25 < np.abs(values).max() <= 2 / 0.87962566103423978
    # kurtosis is below 3, so the deviation's error is below 1 / sqrt(2 n): five of them
    assert abs(values.std() - 1) < 5 / math.sqrt(2 * values.size)


def test_constant():
    assert drawn(initializers.Constant(1e-5), (2, 3), "float32").tolist() == [[np.float32(1e-5)] * 3] * 2


def test_fans():
    assert fans((60, 50)) == (50, 60)
    assert fans((30, 4, 5, 5)) == (100, 750)


@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (4, 9), (4, 3, 2, 2)])
def test_orthogonal(shape):
    matrix = drawn(initializers.Orthogonal(gain=3.0), shape).reshape(shape[0], -1)
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    np.testing.assert_allclose(matrix @ matrix.T, 9 * np.eye(len(matrix)), atol=1e-13)


def test_orthogonal_is_not_biased():
    corner = [drawn(initializers.Orthogonal(), (2, 2), seed=seed)[0, 0] for seed in range(400)]
    # a cosine of a uniform angle: mean 0, variance 1/2. Raw QR gives -2/pi.
    assert abs(np.mean(corner)) < 5 * math.sqrt(0.5 / 400)


def test_a_scheme_needs_its_axes():
    with pytest.raises(iso.IsomorphError) as caught:
        drawn(initializers.XavierNormal(), (5,), path="n0.bias")
    assert str(caught.value) == (
        "E_ARGUMENT: n0.bias: xavier_normal needs at least 2 axes, the shape is [5]\n"
        "  use constant, normal, uniform or truncated_normal"
    )


def test_defaults_of_a_plan():
    plan = iso.resolve(
        'ids = input("B", "T", dtype="int64")\nembedding(300, 64)\npos_embed(200)\n'
        'transformer_block(4, layer_scale=True)\nlinear(64, init={"weight": normal(std=0.02), "bias": 0.5})'
    )
    weights = initial_weights(plan)
    assert list(weights) == [parameter.path for parameter in plan.parameters]
    assert {array.dtype.name for array in weights.values()} == {"float32"}
    for path in ("norm1", "norm2"):
        assert set(weights[f"n2.{path}.weight"]) == {1.0}
        assert set(weights[f"n2.{path}.bias"]) == {0.0}
    assert set(weights["n2.gamma1"]) == {np.float32(1e-5)}
    for path, fan_in in (("attn.q_proj", 64), ("ffn.down", 256)):
        for kind in ("weight", "bias"):
            values = weights[f"n2.{path}.{kind}"]
            assert np.abs(values).max() <= 1 / math.sqrt(fan_in)
            assert np.abs(values).max() > 0.8 / math.sqrt(fan_in)
    # the deviation of n normal values errs by 1 / sqrt(2 n)
    for path, std in (("n0.weight", 1.0), ("n1.weight", 0.02), ("n3.weight", 0.02)):
        assert weights[path].std() == pytest.approx(std, rel=5 / math.sqrt(2 * weights[path].size))
    assert set(weights["n3.bias"]) == {0.5}


def test_values_depend_on_seed_and_path_alone():
    plan = iso.resolve('linear(8, name="first")\nlinear(8, name="last")', input=("B", 8))
    longer = iso.resolve(
        'linear(8, name="first")\nlayer_norm()\nlinear(8, name="more")\nlinear(8, name="last")',
        input=("B", 8),
    )
    one, two = initial_weights(plan, seed=5), initial_weights(longer, seed=5)
    for path, array in one.items():
        assert np.array_equal(array, two[path])
    assert not np.array_equal(one["first.weight"], one["last.weight"])
    assert not np.array_equal(one["first.weight"], initial_weights(plan, seed=6)["first.weight"])


def test_the_stream_is_philox_keyed_by_seed_and_path():
    key = int.from_bytes(hashlib.sha256(b"7:n0.weight").digest()[:16], "little")
    expected = np.random.Generator(np.random.Philox(key=key)).standard_normal(6).reshape(2, 3)
    assert np.array_equal(drawn(initializers.Normal(), (2, 3), seed=7), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_dtype_rounds_the_same_draw(dtype):
    exact = drawn(initializers.Normal(), (50, 40))
    rounded = drawn(initializers.Normal(), (50, 40), dtype)
    assert rounded.dtype.name == dtype
    assert np.array_equal(rounded, exact.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))


def test_threads_change_nothing():
    plan = iso.resolve("linear(700)\nlinear(700)", input=("B", 700))
    assert plan.parameter_count > CHUNK
    for parameter in plan.parameters:
        assert np.array_equal(initial_weights(plan, 1)[parameter.path], draw(parameter, 1))


def test_two_processes_draw_the_same_bits():
    script = (
        "import hashlib, isomorph as iso\n"
        "text = 'transformer_block(2)\\nlinear(8, init={\"weight\": orthogonal()})'\n"
        "plan = iso.resolve(text, input=('B', 4, 8))\n"
        "digest = hashlib.sha256()\n"
        "for array in iso.initial_weights(plan, seed=2**70).values(): digest.update(array.tobytes())\n"
        "print(digest.hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


@pytest.mark.parametrize("seed", [-1, 1.0, True, "1", None])
def test_seeds_that_are_none(seed):
    with pytest.raises(iso.IsomorphError) as caught:
        initial_weights(iso.resolve("linear(2)", input=("B", 2)), seed)
    assert str(caught.value) == f"E_ARGUMENT: seed must be an int >= 0, got {seed!r}"


def test_numpy_integers_are_seeds():
    plan = iso.resolve("linear(2)", input=("B", 2))
    assert np.array_equal(
        initial_weights(plan, np.int64(3))["n0.weight"], initial_weights(plan, 3)["n0.weight"]
    )


@pytest.mark.parametrize("seed", [2**128, 10**5000], ids=["129 bits", "5001 digits"])
def test_seeds_beyond_128_bits(seed):
    with pytest.raises(iso.IsomorphError, match=r"^E_ARGUMENT: seed must be below 2\*\*128, got ") as caught:
        initial_weights(iso.resolve("linear(2)", input=("B", 2)), seed)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("initial", "dtype"),
    [
        (initializers.Constant(1e39), "float32"),
        (initializers.Constant(1e39), "bfloat16"),
        (initializers.Constant(70000.0), "float16"),
        (initializers.Normal(std=1e300), "float32"),
        (initializers.TruncatedNormal(std=1e300), "float32"),
        (initializers.Uniform(-1.7e308, 1.7e308), "float64"),
        (initializers.Orthogonal(gain=1e300), "float32"),
        (initializers.XavierUniform(gain=1e300), "float16"),
    ],
)
def test_what_the_dtype_does_not_hold_is_refused(initial, dtype):
    with pytest.raises(iso.IsomorphError) as caught:
        drawn(initial, (3, 4), path="n0.weight", dtype=dtype)
    assert str(caught.value) == (
        f"E_ARGUMENT: n0.weight: {initial} reaches beyond the largest {dtype}\n"
        "  give init smaller numbers, or resolve with a wider dtype"
    )


def test_a_network_whose_start_would_be_infinite():
    plan = iso.resolve('linear(2, init={"weight": 1e39})', input=("B", 2))
    with pytest.raises(iso.IsomorphError, match=r"^E_ARGUMENT: n0\.weight: constant\(value=1e\+39\) reaches"):
        initial_weights(plan)
    assert initial_weights(iso.resolve('linear(2, init={"weight": 1e39})', input=("B", 2), dtype="float64"))


def test_uniform_runs_upwards():
    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve('linear(2, init={"weight": uniform(low=1, high=0)})', input=("B", 2))
    assert caught.value.message.endswith("uniform: low must not exceed high, got low=1.0, high=0.0")
    assert initializers.Uniform(1, 1).high == 1


def test_kaiming_of_a_steep_leak_does_not_overflow():
    # gain = sqrt(2 / (1 + a^2)), which is sqrt(2) / 1e200 for a = 1e200
    assert initializers.KaimingUniform(a=1e200).gain == pytest.approx(2**0.5 / 1e200, rel=1e-15)
    assert initializers.KaimingNormal(a=-2.0).gain == pytest.approx((2 / 5) ** 0.5, rel=1e-15)
    assert not drawn(
        initializers.KaimingUniform(a=1e200), (3, 4), dtype="float32"
    ).any()  # 1e-200 is 0 in float32
