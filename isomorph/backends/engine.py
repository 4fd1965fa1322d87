"""What the engines of all frameworks share: a model as it was when it was prepared, and what changed since."""

from __future__ import annotations

import sys
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

from isomorph.plan import Plan


class Moment(Protocol):
    """A model at one moment, and what was derived from it.

    Attributes:
        departure: what makes the model another than its plan says; then nothing is derived.
    """

    departure: str


State = TypeVar("State", bound=Moment)


class PreparedModel(Generic[State]):
    """A function of a model's inputs that looks at every call whether the model changed, and prepares anew if so."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._names = [name for name, _ in plan.outputs]
        self._lock = Lock()
        self._warned: set[str] = set()
        self._state = self._derived(None)

    @abstractmethod
    def _derived(self, before: State | None) -> State:
        """What is derived from the model now; ``before`` may serve on where nothing it depends on has changed."""

    @abstractmethod
    def _unchanged(self, state: State) -> bool:
        """Whether the model still is as it was."""

    def current(self) -> State:
        """What was derived from the model as it is now; prepared anew if it changed since."""
        state = self._state
        if not state.departure and self._unchanged(state):
            return state
        with self._lock:
            state = self._state
            if state.departure or not self._unchanged(state):
                state = self._state = self._derived(state)
        if state.departure and state.departure not in self._warned:
            self._warned.add(state.departure)
            warnings.warn(
                f"isomorph: the prepared model calls the model itself, since {state.departure}; "
                "it is faster again when that is undone",
                RuntimeWarning,
                stacklevel=4,
            )
        return state

    def refresh(self) -> None:
        """Prepare anew from the model as it is now, whatever can be seen of its changes."""
        with self._lock:
            self._state = self._derived(None)

    def _returned(self, results: Sequence[Any]) -> Any:
        """What a model returns for these outputs: the only one, or all by name."""
        return results[0] if len(results) == 1 else dict(zip(self._names, results, strict=True))


def is_patched(kind: type, names: Sequence[str] = ("__call__",)) -> bool:
    """Whether a class computes with a function that the module of that class does not define.

    Only that tells a function that was put on a class before anybody looked.
    """
    for name in names:
        owner = next(cls for cls in kind.__mro__ if name in vars(cls))
        home = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else None
        if getattr(vars(owner)[name], "__globals__", None) is not home:
            return True
    return False
