"""A gate before a worker: it says how much may be taken now, and is notified of what was. A circuit breaker is one."""

from __future__ import annotations

from typing import Protocol

from semel.kernel.ops import WorkRow


class WorkGate(Protocol):
    """Whatever it says, what is stored stays stored: rows that may not be taken are left for anybody to claim."""

    def room(self, now: float, asked: int) -> int:
        """How many rows may be taken now, of so many that the worker has room for."""
        ...

    def next_deadline(self, now: float) -> float | None:
        """When it is worth asking again, if that depends on time."""
        ...

    def taken(self, row: WorkRow, now: float) -> None:
        """The row goes to the application."""
        ...

    def returned(self, row: WorkRow) -> None:
        """The application has answered, whatever it said."""
        ...
