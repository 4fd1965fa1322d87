"""Reads the declared shapes and dtypes of inputs and outputs, from the text and from the caller."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any, NamedTuple

from isomorph.dimensions import Affine, parse_dimension, show_shape, symbols_of
from isomorph.errors import IsomorphError, Location, did_you_mean, shorten
from isomorph.language.graph import Contract
from isomorph.language.names import check_symbol, check_tensor_name
from isomorph.resolver.resolved import ABSENT, DTYPE_BYTES, INPUT_DTYPES


class Declared(NamedTuple):
    """A contract with its sizes read."""

    name: str
    shape: tuple[Any, ...]
    dtype: str | None
    location: Location | None
    optional: bool = False


def given_contracts(kind: str, given: Any) -> list[Contract]:
    """Contracts from ``input=`` or ``output=``: a shape (named ``""``), or a dictionary of them."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        if not given:
            raise IsomorphError("E_BINDING", f"{kind}={{}} declares nothing; leave it out or name a shape")
        for name in given:
            if not isinstance(name, str) or not name.isidentifier():
                raise IsomorphError("E_NAME", f"{kind}: {shorten(name)} is not a tensor name")
            check_tensor_name(name)
        return [Contract(name, _shape(f"{kind} {name}", shape)) for name, shape in given.items()]
    return [Contract("", _shape(kind, given))]


def _shape(what: str, shape: Any) -> tuple[Any, ...]:
    if isinstance(shape, str) or not isinstance(shape, tuple | list):
        raise IsomorphError(
            "E_ARGUMENT",
            f'{what}: a shape is a tuple such as ("B", 8, 32), got {shorten(shape)}',
        )
    return tuple(size if type(size) in (int, str, bool) else _whole(size) for size in shape)


def _whole(size: Any) -> Any:
    """An integer of another library, such as NumPy's, as an int; anything else as it is."""
    try:
        return index(size)
    except TypeError:
        return size


def check_dtype(dtype: Any) -> str:
    """A compute dtype, or E_DTYPE."""
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise IsomorphError(
            "E_DTYPE",
            f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {shorten(dtype)}",
            hints=did_you_mean(str(dtype), DTYPE_BYTES),
        )
    return dtype


def check_input_dtype(dtype: Any, location: Location | None = None) -> str:
    """A dtype that an input may have, or E_DTYPE."""
    if not isinstance(dtype, str) or dtype not in INPUT_DTYPES:
        raise IsomorphError(
            "E_DTYPE",
            f"an input's dtype must be one of {', '.join(INPUT_DTYPES)}, got {shorten(dtype)}",
            location,
            did_you_mean(str(dtype), INPUT_DTYPES),
        )
    return dtype


def read_shape(contract: Contract, kind: str, largest: int) -> tuple[Any, ...]:
    """Sizes of a contract; E_ARGUMENT for what is no size, E_RESOURCE for one that is too large."""
    where = f"{kind} {contract.name}".strip()
    if len(contract.shape) < 1:
        raise IsomorphError(
            "E_ARGUMENT", f"{where}: a shape has at least a batch axis, got ()", contract.location
        )
    if len(contract.shape) > 16:
        raise IsomorphError(
            "E_RESOURCE", f"{where}: at most 16 axes, got {len(contract.shape)}", contract.location
        )
    return tuple(_dimension(d, where, largest, contract.location) for d in contract.shape)


def _dimension(dimension: Any, where: str, largest: int, location: Location | None) -> Any:
    if type(dimension) is int:
        if dimension < 1:
            raise IsomorphError(
                "E_ARGUMENT", f"{where}: a size is at least 1, got {shorten(dimension)}", location
            )
        if dimension > largest:
            raise IsomorphError(
                "E_RESOURCE", f"{where}: a size is at most {largest:,}, got {shorten(dimension)}", location
            )
        return dimension
    if isinstance(dimension, str) and len(dimension) <= 100:
        try:
            size = parse_dimension(dimension)
        except ValueError:
            size = None
        if isinstance(size, Affine) and all(c > 0 for _, c in size.terms) and dimension.lstrip()[0] != "+":
            _check_symbolic(size, dimension, where, largest, location)
            return size
    raise IsomorphError(
        "E_ARGUMENT",
        f'{where}: a size is a positive int or a symbol such as "B" or "2*T+1", got {shorten(dimension)}',
        location,
    )


def _check_symbolic(size: Affine, written: str, where: str, largest: int, location: Location | None) -> None:
    if max(abs(size.constant), *(c for _, c in size.terms)) > largest:
        raise IsomorphError(
            "E_RESOURCE", f"{where}: a size is at most {largest:,}, got {shorten(written)}", location
        )
    for name in symbols_of(size):
        try:
            check_symbol(name)
        except IsomorphError as error:
            raise IsomorphError(error.code, f"{where}: {error.message}", location, error.hints) from None


def check_optional(declared: list[Declared]) -> None:
    """What is left out must be something that means nothing by itself, of a size that the others tell."""
    sizes = {size for one in declared if not one.optional for size in one.shape}
    for one in declared:
        if not one.optional:
            continue
        if one.dtype not in ABSENT:
            raise IsomorphError(
                "E_DTYPE",
                f"input {one.name}: an optional input has dtype {', '.join(ABSENT)}, got {one.dtype}",
                one.location,
                ["what is left out is a mask that hides nothing, or the id 0 everywhere"],
            )
        unknown = [size for size in one.shape if type(size) is not int and size not in sizes]
        if unknown:
            raise IsomorphError(
                "E_UNRESOLVED",
                f"input {one.name} is optional, and no other input has an axis {unknown[0]!r}",
                one.location,
                ["where it is left out its size would not be known; leave out optional=True"],
            )


def merge(kind: str, stated: list[Declared], given: list[Declared]) -> list[Declared]:
    """Contracts of the text and of the caller, which must agree where both speak."""
    if not stated or not given:
        return stated or given
    names = [one.name for one in stated]
    theirs = [one.name for one in given]
    if len(given) == 1 and len(stated) == 1 and "" in (theirs[0], names[0]):
        theirs = names  # a lone unnamed contract is the one there is
    if sorted(names) != sorted(theirs):
        raise IsomorphError(
            "E_BINDING",
            f"the definition declares {kind}s {', '.join(names)}, the call gives {', '.join(theirs)}",
            stated[0].location,
            [f"leave one of the two out, or name the same {kind}s"],
        )
    by_name = dict(zip(theirs, given, strict=True))
    for one in stated:
        other = by_name[one.name]
        if one.shape != other.shape:
            label = f"{kind} {one.name}".strip()
            raise IsomorphError(
                "E_CONSTRAINT",
                f"{label}: the definition says {show_shape(one.shape)}, the call says {show_shape(other.shape)}",
                one.location,
                ["leave one of the two out, or make them equal"],
            )
    return stated


def read_inputs(
    stated: list[Contract], given: list[Contract], dtype: str, input_dtype: Any, largest: int
) -> tuple[list[Declared], bool]:
    """The inputs of the text and of the caller with names and dtypes, and whether they have names of their own."""
    merged = merge("input", _declared("input", stated, largest), _declared("input", given, largest))
    if not merged:
        raise IsomorphError(
            "E_BINDING", "no input is declared",
            hints=['pass input=("B", 8, 32), or begin the definition with input("B", 8, 32)'],
        )  # fmt: skip
    named = len(merged) > 1 or merged[0].name not in ("", "x") or any(c.name for c in given)
    dtypes = _input_dtypes([one.name or "x" for one in merged], input_dtype)
    declared = []
    for one in merged:
        name = one.name or "x"
        asked, written = dtypes.get(name), one.dtype
        if written is not None:
            check_input_dtype(written, one.location)
        if asked and written and asked != written:
            raise IsomorphError(
                "E_DTYPE", f"input {name}: the definition says {written}, the call says {asked}", one.location,
                ["leave one of the two out, or make them equal"],
            )  # fmt: skip
        declared.append(one._replace(name=name, dtype=asked or written or dtype))
    check_optional(declared)
    return declared, named


def _input_dtypes(names: list[str], input_dtype: Any) -> dict[str, str]:
    if input_dtype is None:
        return {}
    if not isinstance(input_dtype, Mapping):
        return dict.fromkeys(names, check_input_dtype(input_dtype))
    for name in input_dtype:
        if name not in names:
            raise IsomorphError(
                "E_BINDING",
                f"input_dtype names {shorten(name)}, which is no input; inputs: {', '.join(names)}",
            )
    return {name: check_input_dtype(dtype) for name, dtype in input_dtype.items()}


def read_outputs(stated: list[Contract], output: Any, largest: int) -> list[Declared]:
    """The outputs of the text and of the caller."""
    given = _declared("output", given_contracts("output", output), largest)
    return merge("output", _declared("output", stated, largest), given)


def _declared(kind: str, contracts: list[Contract], largest: int) -> list[Declared]:
    return [
        Declared(c.name, read_shape(c, kind, largest), c.dtype, c.location, c.optional) for c in contracts
    ]
