"""What the demo does or waits for at the moment, so that nobody sits before a bar that stands still and wonders.

Where a bar can be drawn, its text says so. Elsewhere a line is printed once something takes long.
"""

from __future__ import annotations

import asyncio
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

LONG_S = 5.0
LOOK_S = 0.5


class Story:
    """One line of it."""

    def __init__(self, progress: Progress, what: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total)
        self._what, self._since, self._is_noted = what, time.monotonic(), False

    def now(self, what: str, completed: int | None = None) -> None:
        """Say what goes on. The figure in `completed` is only for the bar."""
        self._progress.update(self._task, description=what, completed=completed)
        if what != self._what:
            self._what, self._since, self._is_noted = what, time.monotonic(), False

    async def print_notes(self) -> None:
        """For as long as the demo runs: print what takes long, once each, where no bar says it."""
        while not can_draw(self._progress.console):
            await asyncio.sleep(LOOK_S)
            if time.monotonic() - self._since > LONG_S and not self._is_noted:
                self._is_noted = True
                note(self._progress.console, f"{self._what} …")


def progress_on(console: Console) -> Progress:
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    return Progress(*columns, console=console, transient=True)


def can_draw(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def note(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False, markup=False)
