"""Child processes that are always ended: by request, by -9, or because the parent is gone."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from semel.errors import PeerUnavailable

START_S = 30.0
STOP_S = 15.0
TAIL_LINES = 12
LINE_BYTES_MAX = 1024 * 1024

Hear = Callable[[dict[str, Any]], None]
"""Hears each line that a child says."""


class Child:
    """One process of the demo. `log` is the file that its standard error goes to."""

    def __init__(self, role: str, process: Process, log: Path, hear: Hear) -> None:
        self.role = role
        self.process = process
        self.log = log
        self._hear = hear
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, role: str, config: dict[str, Any], log: Path, hear: Hear) -> Child:
        """Start `semel.demo.<role>` and hand it its orders. The secret in them never shows on a command line."""
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"semel.demo.{role}",
                stdin=PIPE, stdout=PIPE, stderr=errors, start_new_session=True, limit=LINE_BYTES_MAX,
            )  # fmt: skip
        child = cls(role, process, log, hear)
        assert process.stdin is not None
        process.stdin.write(json.dumps(config).encode() + b"\n")
        return child

    async def ready(self) -> dict[str, Any]:
        """What it said first. Raises with the end of its log when it does not come up."""
        try:
            async with asyncio.timeout(START_S):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            raise self.trouble(f"was not ready after {START_S:.0f} s") from None

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._listening

    async def stop(self) -> None:
        """Ask it to end, and end it if it does not."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            raise self.trouble(f"did not end within {STOP_S:.0f} s") from None
        finally:
            await self.kill()

    def trouble(self, what: str) -> PeerUnavailable:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]) if self.log.exists() else ""
        return PeerUnavailable(
            f"the {self.role} process {what}; it said last:\n{tail or '(nothing)'}",
            fix="mend what it complains about; run with --keep to look at its data",
        )

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            with suppress(ValueError):  # the last line of a killed process may be torn
                self._take(json.loads(line))
        if not self._ready.done():
            code = await self.process.wait()
            self._ready.set_exception(self.trouble(f"ended with code {code} before it was ready"))
            self._ready.exception()  # seen, also when nobody awaits it any more

    def _take(self, said: dict[str, Any]) -> None:
        if "ready" in said and not self._ready.done():
            self._ready.set_result(said)
        self._hear(said)
