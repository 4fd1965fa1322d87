"""Whatever the text, resolving gives a plan or an IsomorphError with a place, quickly and in bounded memory."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import isomorph as iso
from isomorph.operators.catalogue import all_operators

EXAMPLES = [
    (example.definition, example.input, example.output, example.input_dtype)
    for operator in all_operators().values()
    for example in operator.examples
]
NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "64",
    "1.5",
    "True",
    "None",
    '"tanh"',
    "2147483648",
    "10**9",
    "1e308",
    "()",
]
WORDS = [
    *all_operators(),
    "h",
    "x",
    "a",
    "=",
    ",",
    "(",
    ")",
    "\n",
    "for _ in range(3):\n    ",
    "name=",
    "init=",
    "tie=",
]


def resolve(text: str | bytes, **contracts: Any) -> iso.Plan | None:
    try:
        plan = iso.resolve(text, **contracts)
    except iso.IsomorphError:
        return None
    return plan


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, Any, Any, Any]:
    text, given_input, output, dtype = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(1, 3))):
        i = draw(st.integers(0, len(text)))
        j = min(len(text), i + draw(st.integers(0, 6)))
        text = text[:i] + draw(st.sampled_from(["", *NUMBERS, *WORDS])) + text[j:]
    shape = st.lists(st.sampled_from(["B", "T", "T+1", "2*T", 1, 2, 3, 4, 6, 8, 12]), min_size=1, max_size=4)
    if given_input is not None and not isinstance(given_input, dict) and draw(st.booleans()):
        given_input = tuple(draw(shape))
    if draw(st.booleans()):
        output = tuple(draw(shape))
    return text, given_input, output, dtype


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutated())
def test_mutated_definitions(case: tuple[str, Any, Any, Any]) -> None:
    text, given_input, output, dtype = case
    plan = resolve(text, input=given_input, output=output, input_dtype=dtype)
    if plan is not None:
        assert iso.Plan.from_json(plan.to_json()) == plan
        assert iso.resolve(plan.definition, dtype=plan.dtype) == plan


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from([*WORDS, *NUMBERS]), max_size=25).map("".join))
def test_words_in_any_order(text: str) -> None:
    resolve(text, input=("B", 4, 6))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_bytes(data: bytes) -> None:
    resolve(data, input=("B", 4))


HOSTILE: dict[str, str | bytes] = {
    "nested brackets": "linear" + "(" * 5000 + ")" * 5000,
    "nested lists": "linear(init=" + "[" * 5000,
    "nested calls": "relu(" * 3000 + "x" + ")" * 3000,
    "range of a power": "for _ in range(10**9):\n    relu()",
    "range too long": "for _ in range(1000000000):\n    relu()",
    "deep loops": "\n".join(" " * i + "for _ in range(9):" for i in range(90)) + "\n" + " " * 90 + "relu()",
    "loops that multiply": "\n".join(" " * i + "for _ in range(30):" for i in range(9))
    + "\n"
    + " " * 9
    + "relu()",
    "ten megabytes": "linear(" + "9" * 10_000_000 + ")",
    "ten megabytes of bytes": b"\x00" * 10_000_000,
    "five thousand digits": "linear(" + "9" * 5000 + ")",
    "nul": "linear(4)\x00",
    "utf-16": "linear(4)".encode("utf-16"),
    "latin-1": b"linear(4) # \xe9",
    "surrogate": "linear(4) # \ud800",
    "minus signs": "linear(" + "-" * 100_000 + "1)",
    "attributes": "x" + ".x" * 100_000,
    "sums": "linear(" + "1+" * 100_000 + "1)",
    "one million semicolons": ";" * 1_000_000,
    "many statements": "relu()\n" * 150_000,
    "many names": "h = x\n" * 150_000,
    "wide call": "concat(" + "x," * 300_000 + ")",
    "large dimension": "linear(2147483647)\nlinear(2147483647)\nflatten()",
    "open sizes": "a, b = split()\n" + "c, b = split(b)\na = add(a, c)\n" * 150 + "concat(a, b)",
    "products": "linear()\nreshape()\ntransformer_block(1)\n" * 200 + "flatten()",
    "sums of open sizes": "h = linear(x)\n" + "h = concat(h, linear(x))\n" * 300,
}


@pytest.mark.parametrize("case", HOSTILE, ids=str)
def test_hostile_text(case: str) -> None:
    start = time.process_time()
    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve(HOSTILE[case], input=("B", 1_000_003), output=("B", 999_999))
    assert time.process_time() - start < 30  # far above the second it takes, for a loaded machine
    assert caught.value.location is not None
    assert len(str(caught.value)) < 2000


def test_memory_stays_bounded() -> None:
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))\n"
        "sys.path.insert(0, 'tests')\n"
        "import isomorph as iso\n"
        "from test_hostile import HOSTILE\n"
        "for text in HOSTILE.values():\n"
        "    try: iso.resolve(text, input=('B', 1_000_003), output=('B', 999_999))\n"
        "    except iso.IsomorphError: pass\n"
        "    else: raise SystemExit('no error')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
