"""Memory that is read again and again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache

_LARGE_PAGE = 1 << 21
_HUGEPAGE, _COLLAPSE = 14, 25  # of madvise(2); the second is known from Linux 6.1 on


def in_large_pages(start: int, size: int) -> None:
    """Ask the system to hold memory in large pages, from which weights are read faster, a few per cent at one row.

    It is a hint, which changes nothing that the memory holds; where the system takes none, nothing happens. It
    costs about a millisecond for each 2 MB once.

    Args:
        start: address of the first byte.
        size: bytes.
    """
    advise = _madvise()
    first = -(-start // _LARGE_PAGE) * _LARGE_PAGE
    length = (start + size) // _LARGE_PAGE * _LARGE_PAGE - first
    if advise is not None and length > 0:
        advise(first, length, _HUGEPAGE)
        advise(first, length, _COLLAPSE)


@lru_cache(maxsize=1)
def _madvise() -> Callable[[int, int, int], int] | None:
    """The system's function, or None."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        function = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
