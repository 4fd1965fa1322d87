"""Memory that is read again and again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

_LARGE_PAGE = 1 << 21
_LEAST = _LARGE_PAGE // 2  # below that too much of a page is something else
_HUGEPAGE, _COLLAPSE = 14, 25  # of madvise(2); the second is known from Linux 6.1 on
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def in_large_pages(start: int, size: int) -> None:
    """Ask Linux to hold memory in large pages, from which weights are read faster, a few per cent at one row.

    It changes nothing that this memory holds, or what shares a page with it, and costs about a millisecond for
    each 2 MB once. Where there are no large pages, or an administrator wants none, nothing happens.

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


class Uses:
    """How often some weights were read for a single position, and whether large pages pay by now."""

    def __init__(self) -> None:
        self._count = 0

    def pays(self) -> bool:
        """Count a use; True once, when what is won by now may be as much as what it costs."""
        self._count += 1
        return self._count == PAYS


PAYS = 512
"""Uses after which large pages pay: each takes less time by about that part of what they cost."""


@lru_cache(maxsize=1)
def _madvise() -> Callable[[int, int, int], int] | None:
    """The system's function, or None."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        if "[never]" in _SETTING.read_text():
            return None
        function = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
