"""How much work one resolution may spend on sizes that are not given."""

from __future__ import annotations

from typing import Any


class Exhausted(Exception):
    """The budget of a resolution is spent.

    Attributes:
        limit: how many steps it had.
        variable: the unknown that was being worked out, if it was one alone.
    """

    def __init__(self, limit: int, variable: Any = None) -> None:
        super().__init__(limit)
        self.limit, self.variable = limit, variable


class Budget:
    """The steps of a whole resolution, for everything in it that works out sizes that are not given.

    A step is about one term of one size that is looked at. Steps are counted and never timed, so that a text
    has one outcome on every machine.

    Attributes:
        limit: how many there are.
        spent: how many were taken so far.
    """

    __slots__ = ("limit", "spent")

    def __init__(self, limit: int) -> None:
        self.limit, self.spent = limit, 0

    def spend(self, steps: int) -> None:
        """Count steps before they are taken; :class:`Exhausted` when there are none left."""
        self.spent += steps
        if self.spent > self.limit:
            raise Exhausted(self.limit)
