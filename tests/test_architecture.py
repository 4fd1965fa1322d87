"""Dependencies point one way, and nothing heavy loads before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import isomorph

PACKAGE = Path(isomorph.__file__).parent

# Each part may import itself and the parts listed; everything may import the foundation.
FOUNDATION = {"errors", "limits", "initializers", "paths", "primitives"}
MAY_IMPORT = {
    "errors": set(),
    "limits": set(),
    "paths": set(),
    "initializers": set(),
    "primitives": set(),
    "language": set(),
    "operators": set(),
    "ops": {"language", "operators"},
    "resolver": {"language", "operators", "plan"},
    "plan": {"operators", "resolver", "serialization", "show"},  # the last two lazily, from methods
    "serialization": {"operators", "resolver", "plan"},
    "weights": {"plan", "operators", "serialization", "resolver"},
    "checkpoints": {"plan", "operators", "resolver", "weights", "backends", "engine"},
    "backends": {"plan", "operators", "weights", "resolver", "training", "torch", "reference"},
    "nnx": {"backends", "weights", "plan"},
    "linen": {"backends", "weights", "plan"},
    "flax": {"backends", "weights", "plan", "operators", "resolver"},
    "torch": {"backends", "weights", "plan"},
    "reference": {"backends", "weights", "plan"},
    "engine": {"plan", "backends", "weights", "resolver", "operators"},
    "show": {"plan", "operators", "resolver", "backends", "weights", "testing", "reference", "torch"},
    "source_code": {"plan", "operators", "resolver", "weights", "show"},
    "training": {"plan", "operators", "backends", "weights", "show", "resolver", "torch"},
    "testing": {"plan", "operators", "backends", "weights", "resolver", "show", "reference", "torch"},
}
STANDARD_ONLY = (
    "errors",
    "limits",
    "paths",
    "initializers",
    "primitives",
    "language",
    "operators",
    "resolver",
    "plan",
)
FRAMEWORKS = {"torch", "jax", "flax", "optax", "numpy", "onnx", "onnxscript", "onnxruntime"}


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imports_of(path: Path) -> list[tuple[str, int]]:
    """(module, line) for each import, also inside functions, but not under TYPE_CHECKING."""
    tree = ast.parse(path.read_text())
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if node.module == "isomorph":
                found += [(f"isomorph.{alias.name}", node.lineno) for alias in node.names]
            else:
                found.append((node.module, node.lineno))
    return found


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent != PACKAGE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part == "cli":
        return
    allowed = MAY_IMPORT[part] | FOUNDATION | {part}
    for module, line in imports_of(path):
        parts = module.split(".")
        if parts[0] == "isomorph" and len(parts) > 1:
            assert parts[1] in allowed, f"{path}:{line} imports {module}"
        if part in STANDARD_ONLY and parts[0] != "isomorph":
            assert parts[0] in sys.stdlib_module_names, f"{path}:{line} imports {module}"
        if parts[0] in FRAMEWORKS - {"numpy"}:
            # The plain Flax blocks are Flax by definition.
            assert part in ("backends", "flax"), (
                f"{path}:{line}: only backends name a framework, imports {module}"
            )


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "statement",
    [
        "import isomorph",
        "import isomorph; str(isomorph.resolve('transformer_block(4)', input=('B', 8, 32)))",
        "import isomorph; isomorph.Plan.from_json(isomorph.resolve('linear(4)', input=('B', 8)).to_json())",
        "import isomorph\ndef f(x): isomorph.ops.linear(3)\nisomorph.resolve_function(f, input=('B', 8))",
    ],
)
def test_the_core_loads_no_framework(statement: str) -> None:
    loaded = loaded_after(statement)
    assert not loaded & (FRAMEWORKS | {"safetensors", "typer", "rich", "click", "ml_dtypes", "scipy"})


def test_the_trace_backend_needs_no_framework() -> None:
    assert "torch" not in loaded_after("import isomorph.backends.trace")


def test_every_public_name_has_a_home() -> None:
    assert set(isomorph.__all__) == {*isomorph._HOMES, "ops"}
    for name in isomorph.__all__:
        assert getattr(isomorph, name) is not None
