"""Dependencies point one way, and nothing heavy loads before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import isomorph
from isomorph.backends.available import BACKENDS

PACKAGE = Path(isomorph.__file__).parent

# Each part may import itself and the parts listed, and does; the commands may import everything.
FOUNDATION = {"errors", "limits", "initializers", "paths", "dimensions", "primitives", "writing"}
"""What every part above them may import."""
MAY_IMPORT = {
    "errors": set(),
    "limits": {"errors"},
    "paths": {"errors"},
    "initializers": {"errors"},
    "dimensions": set(),
    "primitives": {"dimensions", "errors"},
    "writing": {"errors", "paths"},
    "language": FOUNDATION,
    "operators": FOUNDATION,
    "ops": FOUNDATION | {"language", "operators"},
    "resolver": FOUNDATION | {"language", "operators"},
    "plan": FOUNDATION | {"operators", "resolver"},
    "trace": FOUNDATION | {"operators", "plan"},
    "lowering": FOUNDATION | {"plan", "trace"},
    "weights": FOUNDATION | {"plan"},
    "backends": FOUNDATION | {"lowering", "operators", "plan", "trace", "weights"},
    "reference": FOUNDATION | {"backends"},
    "nnx": FOUNDATION | {"backends"},
    "linen": FOUNDATION | {"backends"},
    "torch": FOUNDATION | {"agreement", "backends", "plan"},
    "flax": FOUNDATION | {"backends", "operators", "plan", "weights"},
    "generation": FOUNDATION | {"backends", "lowering", "plan", "trace", "weights"},
    "checkpoints": FOUNDATION | {"backends", "generation", "operators", "plan", "weights"},
    "training": FOUNDATION | {"backends", "plan", "weights"},
    "display": FOUNDATION | {"operators", "plan", "trace"},
    "agreement": FOUNDATION | {"backends", "display", "operators", "plan", "trace", "weights"},
    "testing": {"agreement"},
    "source_code": FOUNDATION | {"backends", "display", "operators", "plan", "weights"},
}
STANDARD_ONLY = (
    "errors",
    "limits",
    "paths",
    "initializers",
    "dimensions",
    "primitives",
    "writing",
    "language",
    "operators",
    "resolver",
    "plan",
    "trace",
    "lowering",
)
FRAMEWORKS = {"torch", "jax", "flax", "optax", "numpy", "onnx", "onnxscript", "onnxruntime"}


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    """``isomorph.plan.table`` for ``plan/table.py``, ``isomorph.plan.__init__`` for ``plan/__init__.py``."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


MODULES = {name_of(path).removesuffix(".__init__"): name_of(path) for path in PACKAGE.rglob("*.py")}
"""The name of every module's file, by the name under which it is imported."""


@cache
def imports_of(path: Path) -> list[tuple[str, int]]:
    """(module, line) for each import, wherever it stands: also inside functions and for types alone."""
    imports = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imports += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = node.module == "isomorph" or name in MODULES
                imports.append((name if is_module else node.module, node.lineno))
    return imports


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent != PACKAGE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part in ("cli", "__main__"):
        return
    allowed = MAY_IMPORT[part] | {part}
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


def test_what_parts_may_import_is_what_they_import() -> None:
    """An allowance that nothing uses is a door left open."""
    used: dict[str, set[str]] = {}
    for path in FILES:
        parts = (module.split(".") for module, _ in imports_of(path))
        used.setdefault(part_of(path), set()).update(p[1] for p in parts if p[0] == "isomorph" and len(p) > 1)
    needless = {part: sorted(may - used[part] - FOUNDATION) for part, may in MAY_IMPORT.items()}
    assert not {part: parts for part, parts in needless.items() if parts}


# -- which backend it is ---------------------------------------------------------------------------


def backends_asked_for(tree: ast.AST) -> list[int]:
    """The lines that compare something with the name of a backend, or match it."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            texts = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
            if texts & (BACKENDS.keys() | {"jax", "flax"}):
                lines.append(node.lineno)
    return lines


def test_nothing_above_the_backends_asks_which_one_it_has() -> None:
    """What a backend can do is in its table, and how is in its own modules."""
    asking = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in FILES
        if part_of(path) != "backends"
        for line in backends_asked_for(ast.parse(path.read_text()))
    }
    assert not asking


@pytest.mark.parametrize(
    "text",
    [
        'x == "torch"',
        'x in ("nnx", "linen")',
        '"jax" != x',
        "match x:\n    case 'torch' | 'nnx':\n        pass",
    ],
)
def test_a_question_which_backend_it_is_is_seen(text: str) -> None:
    assert backends_asked_for(ast.parse(text))


# -- no circles -----------------------------------------------------------------------------------


def circles(arrows: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of names that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        ahead = reached[start] = set()
        waiting = [start]
        while waiting:
            new = arrows.get(waiting.pop(), set()) - ahead
            ahead |= new
            waiting += new
    return {
        frozenset(other for other in ahead if name in reached.get(other, ()))
        for name, ahead in reached.items()
        if name in ahead
    }


def arrows_between_members() -> dict[str, set[str]]:
    """For every package: which of its files and packages imports which other, however deep the import stands.

    Two files that reach each other make a circle in the package that holds both. A backend that is loaded by its
    name from a table is no import: what loads it knows no backend.
    """
    arrows: dict[str, set[str]] = {}
    for path in FILES:
        importer = name_of(path).split(".")
        for module, _ in imports_of(path):
            imported = MODULES.get(module, module).split(".")
            depth = next((i for i, (a, b) in enumerate(zip(importer, imported, strict=False)) if a != b), 0)
            if depth:  # the first name in which they differ; 0 for what is not ours
                here, there = ".".join(importer[: depth + 1]), ".".join(imported[: depth + 1])
                arrows.setdefault(here, set()).add(there)
    return arrows


def test_no_circle_of_imports() -> None:
    """Neither between files nor between packages, at any depth, in a function or for types alone."""
    present = [sorted(circle) for circle in circles(arrows_between_members())]
    assert not present, f"circles of imports: {present}"


@pytest.mark.parametrize(
    ("arrows", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}}, set()),
        ({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}}, {frozenset("ab")}),
        (
            {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": {"d"}},
            {frozenset("abc"), frozenset("de")},
        ),
    ],
)
def test_circles_are_seen(arrows: dict[str, set[str]], expected: set[frozenset[str]]) -> None:
    assert circles(arrows) == expected


# -- names ------------------------------------------------------------------------------------------

VAGUE = {"found", "told", "made", "held", "lively"}
"""They say that there is a result, and not what it is."""


def vague_names(tree: ast.AST) -> list[tuple[str, int]]:
    """Variables, arguments, attributes and functions with such a name, and their lines."""
    names = []
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ExceptHandler(name=str(name)):
                pass
            case ast.alias(asname=str(name)):
                pass
            case _:
                continue
        names.append((name, getattr(node, "lineno", 0)))
    return [(name, line) for name, line in names if name.strip("_") in VAGUE]


def test_results_are_named_by_what_they_are() -> None:
    vague = {
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in FILES
        for name, line in vague_names(ast.parse(path.read_text()))
    }
    assert not vague


@pytest.mark.parametrize(
    "text",
    ["found = 1", "def f(told): pass", "def _held(): pass", "import a as made", "for x, found in y: pass"],
)
def test_a_vague_name_is_seen(text: str) -> None:
    assert vague_names(ast.parse(text))


# -- one way to write a result --------------------------------------------------------------------

_WRITERS = {
    "write_text",
    "write_bytes",
    "savefig",
    "touch",
    "symlink_to",
    "hardlink_to",
    "copyfile",
    "copytree",
}
_IN_MODULES = {  # functions that write or rename, by the module they belong to
    "os": {"open", "replace", "rename", "renames", "link", "symlink", "mkfifo", "truncate"},
    "np": {"save", "savez", "savez_compressed", "savetxt", "memmap"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move"},
    "torch": {"save"},
    "onnx_ir": {"save"},
    "tempfile": {"mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory"},
}
WRITE_THEMSELVES = {
    ("training/metrics.py", "open"),  # a run's own records, a line at a time
    ("training/curve.py", "savefig"),  # into memory
    ("backends/torch/onnx_file.py", "open"),  # in a hidden directory, from which the files take their names
    ("backends/torch/onnx_file.py", "save"),  # in the same
    (
        "training/ownership.py",
        "open",
    ),  # the file by whose lock a directory is owned; it holds nothing of a result
    ("paths.py", "open"),  # for reading, without waiting for whoever writes to a pipe
    ("cli/main.py", "open"),  # of os.devnull, when nobody reads the output any more
}


def _writes(call: ast.Call) -> str | None:
    """The name of a function that makes, changes or replaces a file, when this calls one."""
    function = call.func
    if isinstance(function, ast.Attribute):
        name, owner = function.attr, function.value.id if isinstance(function.value, ast.Name) else ""
        if name in _WRITERS or name in _IN_MODULES.get(owner, ()):
            return name
        place = 1 if name == "fdopen" else 0  # of the mode: path.open(mode)
        others = not isinstance(call.args[0], ast.Constant) if call.args else True
        if name == "open" and others and not any(keyword.arg == "mode" for keyword in call.keywords):
            return None  # a method of that name of something else
    elif isinstance(function, ast.Name):
        name, place = function.id, 1
    else:
        return None
    if name not in ("open", "fdopen"):
        return None
    mode = [*call.args[place : place + 1], *(k.value for k in call.keywords if k.arg == "mode")]
    reads = not mode or (isinstance(mode[0], ast.Constant) and mode[0].value in ("r", "rb", "rt"))
    return None if reads else name


def test_results_are_written_in_one_place() -> None:
    """Whoever opens a file for writing, or renames one, does it by the rule of ``isomorph.writing``."""
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in FILES
        if part_of(path) != "writing"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and (name := _writes(node))
    }
    assert found == WRITE_THEMSELVES


@pytest.mark.parametrize(
    "line",
    ["open(p, 'w')", "p.open('ab')", "open(p, mode='x')", "open(p, m)", "p.write_text('')", "os.replace(a, b)",
     "np.save(p, x)", "figure.savefig(p)", "p.open('rb+')", "shutil.copy(a, b)", "os.fdopen(d, 'wb')"],
)  # fmt: skip
def test_the_test_above_sees(line: str) -> None:
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    assert _writes(call)


@pytest.mark.parametrize(
    "line", ["open(p)", "open(p, 'rb')", "p.open()", "p.open('r')", "safe_open(p)", "run.open(plan)"]
)
def test_the_test_above_lets_pass(line: str) -> None:
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    assert _writes(call) is None


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


def test_a_trace_needs_no_framework() -> None:
    assert "torch" not in loaded_after("import isomorph.trace")


def test_every_public_name_has_a_home() -> None:
    assert set(isomorph.__all__) == {*isomorph._HOMES, "ops"}
    for name in isomorph.__all__:
        assert getattr(isomorph, name) is not None
