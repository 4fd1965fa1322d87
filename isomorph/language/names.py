"""Which names a node and a tensor may bear."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from unicodedata import normalize

from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.initializers import SCHEMES

IsOperator = Callable[[str], bool]
OutputsOf = Callable[[str], tuple[str, ...]]
"""The names of an operator's outputs, in order; none for an operator that is not known."""
LONGEST_NAME = 100  # a loop repeats a name for every turn, so its length bounds memory
NODE_NAME = re.compile(r"[a-z][a-z0-9_]*")
COUNTED_NAME = re.compile(r"n[0-9]+")
_FREE_NAME = re.compile(rf"(?!n[0-9]+\Z)[a-z][a-z0-9_]{{0,{LONGEST_NAME - 1}}}")

_PYTHON = """False None True and as assert async await break class continue def del elif else except finally
    for from global if import in is lambda nonlocal not or pass raise return try while with yield"""
PYTHON_KEYWORDS = frozenset(_PYTHON.split())

_TORCH = """add_module append apply bfloat16 buffers call_super_init children clear compile cpu cuda double
    dump_patches eval extend extra_repr float forward get_buffer get_extra_state get_parameter get_submodule
    half insert ipu items keys load_state_dict modules mtia named_buffers named_children named_modules
    named_parameters parameters pop register_backward_hook register_buffer register_forward_hook
    register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule
    share_memory state_dict to to_empty train training type update values xpu zero_grad"""
_NNX = "eval iter_children iter_modules perturb rngs set_attributes sow train"
_LINEN = """apply bind clone copy get_variable has_rng has_variable init init_with_output is_initializing
    is_mutable_collection lazy_init make_rng module_paths name param params parent path perturb put_variable
    scope setup sow tabulate unbind variable variables"""
_OURS = (
    "config device dtype input output plan self weights"  # the table's words and what models commonly hold
)

RESERVED = frozenset(f"{_TORCH} {_NNX} {_LINEN} {_OURS}".split()) | PYTHON_KEYWORDS
"""Names that would hide a method or attribute of a built model in some framework."""

NOT_OPERATORS = frozenset({"input", "output", "range", *SCHEMES})
"""What may be called in a definition without being an operator."""


def check_node_name(name: str, taken: Container[str] = ()) -> None:
    """E_NAME unless a node may have this name and it is not among those taken."""
    if _FREE_NAME.fullmatch(name) and name not in RESERVED and name not in taken:
        return
    if len(name) > LONGEST_NAME:
        raise IsomorphError(
            "E_NAME",
            f"a node's name has at most {LONGEST_NAME} characters, got {len(name):,}: {shorten(name)}",
        )
    if not NODE_NAME.fullmatch(name):
        raise IsomorphError(
            "E_NAME",
            f"a node's name is lower-case letters, digits and `_`, a letter first; got {shorten(name)}",
        )
    if COUNTED_NAME.fullmatch(name):
        raise IsomorphError(
            "E_NAME",
            f"{name!r} is kept for a node without a name (n0, n1, ...)",
            hints=["choose a name with another letter"],
        )
    if name in RESERVED:
        raise IsomorphError(
            "E_NAME",
            f"{name!r} is reserved: the models that are built use it themselves",
            hints=[f"choose another, such as {name}_layer"],
        )
    raise IsomorphError("E_NAME", f"two nodes are named {name!r}", hints=["names of nodes are unique"])


def check_tensor_name(name: str, is_operator: IsOperator | None = None) -> None:
    """E_NAME unless a tensor may be called so."""
    if name == "_":
        why = "`_` is the loop variable and holds no tensor"
    elif name in ("input", "output"):
        why = f"`{name}` declares a contract and cannot name a tensor"
    elif name == "self":
        why = "'self' is the model itself where it is called, and cannot name a tensor"
    elif name in SCHEMES:
        why = f"{name!r} is an initialiser and cannot name a tensor"
    elif is_operator is not None and is_operator(name):
        why = f"{name!r} is an operator and cannot name a tensor"
    elif name in PYTHON_KEYWORDS or not name.isidentifier():
        why = f"{shorten(name)} is not an identifier"
    elif name.startswith("__"):
        why = f"{shorten(name)} begins with two underscores, which Python keeps for its own names"
    elif not name.isascii() and normalize("NFKC", name) != name:
        why = f"{shorten(name)} is another name where Python reads it: {shorten(normalize('NFKC', name))}"
    else:
        return
    raise IsomorphError(
        "E_NAME", why, hints=[f"choose another name, such as {name.strip('_')}_out"] if len(name) > 1 else ()
    )


def check_symbol(name: str) -> None:
    """E_NAME unless a size may be called so: a size's name is a variable's in code that is written for a plan."""
    if name in PYTHON_KEYWORDS or name.startswith("__") or name == "_":
        raise IsomorphError(
            "E_NAME",
            f"{shorten(name)} cannot name a size: code that is written for a plan names its sizes",
            hints=[f"choose another symbol, such as {name.strip('_').upper() or 'T'}_SIZE"],
        )


def unknown_tensor(name: str, known: Iterable[str], is_operator: IsOperator | None = None) -> IsomorphError:
    """The error for a name that no tensor has (without a place)."""
    known = list(known)
    if name == "_":
        return IsomorphError("E_NAME", "`_` is the loop variable and holds no tensor")
    if name in SCHEMES or name in NOT_OPERATORS or (is_operator is not None and is_operator(name)):
        return IsomorphError(
            "E_NAME", f"no tensor is named {name!r}", hints=[f"to call it, write {name}(...)"]
        )
    hints = did_you_mean(name, known) or [f"tensors: {', '.join(map(shorten_name, known[:20]))}"]
    return IsomorphError("E_NAME", f"no tensor is named {shorten(name)}", hints=hints)


def shorten_name(name: str) -> str:
    """A name as a message shows it."""
    return name if len(name) <= 60 else name[:57] + "..."
