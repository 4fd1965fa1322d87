"""Memory that is read again and again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache

_LARGE_PAGE = 1 << 21
_LEAST = _LARGE_PAGE // 2  # below that too much of a page is something else
_HUGEPAGE, _COLLAPSE = 14, 25  # of madvise(2); the second is known from Linux 6.1 on


def in_large_pages(start: int, size: int) -> None:
    """Ask the system to hold memory in large pages, from which weights are read faster, a few per cent at one row.

    It is a hint, which changes nothing that this memory holds, or what shares a page with it; where the system
    takes none, nothing happens. It costs about a millisecond for each 2 MB once.

    Args:
        start: address of the first byte.
        size: bytes.
    """
    advise = _madvise()
    first = start // _LARGE_PAGE * _LARGE_PAGE
    length = -(-(start + size) // _LARGE_PAGE) * _LARGE_PAGE - first
    if advise is not None and size >= _LEAST:
        advise(first, length, _HUGEPAGE)
        advise(first, length, _COLLAPSE)


class Reading:
    """How often weights were read for a single position, and whether large pages pay by now."""

    def __init__(self) -> None:
        self._slots, self._paid = 0, False

    def pays(self, slots: int) -> bool:
        """True once: when with so many positions more what is won may reach what it costs."""
        self._slots += slots
        if self._paid or self._slots < _PAYS:
            return False
        self._paid = True
        return True


_PAYS = 512
"""Positions after which large pages pay: a step is shorter by a thousandth to a five-hundredth of what they cost."""


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
