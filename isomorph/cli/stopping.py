"""What SIGINT and SIGTERM do to a command that has something to save. Nothing heavy is imported here."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Two ways to end, in turn, until the end of a ``with``.

    Until :meth:`asked` is called for the first time there is nothing to save: a signal ends the process at once,
    wherever it is, be it in the middle of an import or of reading data. From then on the first signal is noted,
    and the next one acts at once. A signal that the process was started to ignore (``nohup``, a background job) is
    ignored. Outside the main thread, where no handler can be set, nothing is changed.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._polite, self._before = quiet, False, dict[signal.Signals, Any]()
        self.number = 0

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if handler not in (signal.SIG_IGN, None):  # None: not set from Python, and so not restorable
                    self._before[number] = handler
            self._set(signal.SIG_DFL)  # a handler in Python would wait for the end of whatever runs in C
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Whether to save and stop."""
        if not self._polite:
            self._polite = True
            self._set(self._note)
        return self.number > 0

    @property
    def status(self) -> int:
        """The exit status of who was stopped by a signal: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.number

    def _set(self, handler: Any) -> None:
        for number in self._before:
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._set(signal.SIG_DFL)  # of both: the next signal, whichever it is, acts at once
        if not self._quiet:
            with suppress(RuntimeError, OSError):  # the signal may have come in the middle of a line
                print("stopping after this step; again to stop at once", file=sys.stderr, flush=True)
