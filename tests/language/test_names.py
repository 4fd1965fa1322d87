"""Reserved names cover what the frameworks' own module classes hold."""

from __future__ import annotations

import keyword

import pytest

from isomorph.errors import IsomorphError
from isomorph.language.names import NODE_NAME, PYTHON_KEYWORDS, RESERVED, check_node_name


def uncovered(thing: object) -> list[str]:
    """Public names of an object that a node could bear and that are not reserved.

    ``transformers`` hangs methods of its own on ``torch.nn.Module`` where it is loaded; those are not asked for.
    """
    return [
        name
        for name in dir(thing)
        if NODE_NAME.fullmatch(name)
        and name not in RESERVED
        and not (getattr(getattr(thing, name), "__module__", None) or "").startswith("transformers")
    ]


def test_names_of_torch_modules_are_reserved() -> None:
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Module(), torch.nn.Sequential(), torch.nn.ModuleDict(), torch.nn.ModuleList()]
    assert [uncovered(layer) for layer in layers] == [[]] * 4


def test_names_of_flax_modules_are_reserved() -> None:
    flax = pytest.importorskip("flax")
    from flax import linen, nnx

    class Bound(linen.Module):
        pass

    assert flax is not None
    assert uncovered(nnx.Module) == []
    assert uncovered(linen.Module) == []
    assert set(Bound.__dataclass_fields__) <= RESERVED


def test_python_keywords_are_reserved() -> None:
    assert set(keyword.kwlist) == PYTHON_KEYWORDS
    assert PYTHON_KEYWORDS <= RESERVED


@pytest.mark.parametrize(
    "name", ["block", "head", "wte", "h0", "n", "n1a", "ffn_2", "features", "partition", "x"]
)
def test_ordinary_names_are_free(name: str) -> None:
    check_node_name(name)


def test_a_reserved_name_says_what_to_do() -> None:
    with pytest.raises(IsomorphError) as caught:
        check_node_name("forward")
    assert str(caught.value) == (
        "E_NAME: 'forward' is reserved: the models that are built use it themselves\n"
        "  choose another, such as forward_layer"
    )
