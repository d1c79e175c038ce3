"""What a command prints and where: results on stdout, everything else on stderr.

A command returns a `CommandResult`; the one place that prints it is `Terminal.show`. With `--json` stdout gets one
object and nothing else, whatever happens.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_COLUMNS = 160
"""How wide a table may be where there is no terminal: wide enough that nothing is cut off."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command found out. `result` is for machines, `view` for people; `error` says why it is not well.

    Text in `view` is printed as it is; anything else is drawn by rich."""

    result: Any
    view: Sequence[RenderableType] = ()
    exit_code: int = 0
    error: dict[str, str] | None = None


def claim_false(message: str, fix: str) -> dict[str, str]:
    """The error of a command whose claim does not hold."""
    return {"code": "claim-false", "message": message, "fix": fix}


@dataclass
class Terminal:
    json: bool = False
    debug: bool = False
    _noted: set[str] = field(default_factory=set)

    @cached_property
    def out(self) -> Console:
        return _console(stderr=False)

    @cached_property
    def err(self) -> Console:
        return _console(stderr=True)

    @property
    def story(self) -> Console:
        """Where a command tells what happens while it happens: stdout, or nowhere when that is for a machine."""
        return _silence() if self.json else self.out

    @property
    def live(self) -> Console:
        """Where a command draws its own progress: stderr, or nowhere when nobody looks."""
        return self.err if self.shows_progress else _silence()

    @property
    def shows_progress(self) -> bool:
        return not self.json and self.err.is_terminal

    def note(self, text: str) -> None:
        """Tell people something on the way, once. Machines find it in the result."""
        if not self.json and text not in self._noted:
            self._noted.add(text)
            self.err.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Tell people of something that happened, as often as it does."""
        if not self.json:
            self.err.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def progress(self, what: str, total: float | None = None) -> Iterator[Callable[..., None]]:
        """A progress bar on stderr where a person waits. Yields `update(done, what=…, total=…)`. A terminal that cannot
        draw gets what goes on as lines."""
        if not self.shows_progress:
            yield lambda done=0, what="", total=None: None
            return
        if self.err.is_dumb_terminal:
            self.note(what)
            yield lambda done=0, what="", total=None: self.note(what) if what else None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self.err, transient=True) as bar:
            task = bar.add_task(what, total=total)

            def update(done: float = 0, what: str = "", total: float | None = None) -> None:
                changes = {key: value for key, value in (("description", what), ("total", total)) if value}
                bar.update(task, completed=done, **changes)  # type: ignore[arg-type]

            yield update

    def show(self, command: str, answer: CommandResult) -> int:
        if self.json:
            self._print_json(answer.exit_code == 0, command, answer.result, answer.error)
            return answer.exit_code
        for part in answer.view:
            if isinstance(part, str):
                self.out.print(part, markup=False, highlight=False, soft_wrap=True)
            else:
                self.out.print(part, crop=False)  # what is wider than the terminal means to be
        sys.stdout.flush()
        if answer.error is not None:
            self._print_error(answer.error)
        return answer.exit_code

    def fail(self, command: str, error: dict[str, str], exit_code: int) -> int:
        if self.json:
            self._print_json(False, command, None, error)
        else:
            self._print_error(error)
        if self.debug:
            traceback.print_exc()
        return exit_code

    @staticmethod
    def _print_json(ok: bool, command: str, result: Any, error: dict[str, str] | None) -> None:
        import msgspec

        plain = msgspec.to_builtins(result, str_keys=True, enc_hook=str)
        print(json.dumps({"ok": ok, "command": command, "result": plain, "error": error}), flush=True)

    def _print_error(self, error: dict[str, str]) -> None:
        from rich.text import Text

        text = Text.assemble(("error: ", "bold red"), (error["message"], "red"))
        if error["fix"]:
            text.append(f"\n  fix: {error['fix']}", "default")
        self.err.print(text, soft_wrap=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            """rich would end the process with 1, which means here that a claim is false."""
            raise

    stream = sys.stderr if stderr else sys.stdout
    return Plain(stderr=stderr, width=None if stream.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS)


def _silence() -> Console:
    from rich.console import Console

    return Console(quiet=True)


def human_bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
