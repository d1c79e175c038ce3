"""A real `semel serve` in a process of its own, which can be killed with -9 and comes back on the same port.

A small shell minds it: when the process that started the server ends in whatever way, the server is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from semel.errors import PeerUnavailable
from semel.testing.limits import scaled

KEY = "k" * 44
SEMEL = (sys.executable, "-m", "semel")
START_S = 60.0
STOP_S = 30.0
TAIL = 2_000

# Says the number of the server's process and ends with its code. Meanwhile something waits for the end of the input.
MINDER = """
    exec 3<&0
    "$@" 3<&- & server=$!
    echo $server
    { read -r _ <&3; kill -9 $server; } 2>/dev/null >&2 & watch=$!
    wait $server; code=$?
    kill $watch 2>/dev/null
    exit $code
"""


class ServeProcess:
    """`settings` are configuration by environment variables. What it says besides its address goes to `log`. `semel` is
    the command, for who wants to change something before it runs."""

    def __init__(
        self,
        store: str,
        log: Path,
        *,
        node: str = "local",
        settings: dict[str, str] | None = None,
        semel: Sequence[str] = SEMEL,
    ) -> None:
        self.store, self.node, self.log, self._semel = store, node, log, semel
        self.settings = {"SEMEL_ACCESS_KEY": KEY, "SEMEL_STORE__NODE": node, **(settings or {})}
        self.port = 0
        """The system chooses at the first start; later ones take the same."""
        self.pid = 0
        self._minder: Process | None = None

    @property
    def is_running(self) -> bool:
        return self._minder is not None and self._minder.returncode is None

    async def start(self) -> None:
        serve = (*self._semel, "serve", "--json", "--port", str(self.port), "--store", self.store)
        with self.log.open("ab") as errors:
            self._minder = await asyncio.create_subprocess_exec(
                "sh", "-c", MINDER, "minder", *serve, stdin=PIPE, stdout=PIPE, stderr=errors, cwd=self.log.parent,
                start_new_session=True, env=os.environ | self.settings,
            )  # fmt: skip
        assert self._minder.stdout is not None
        line = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(scaled(START_S)):
                self.pid = int(await self._minder.stdout.readline())
                line = await self._minder.stdout.readline()
        started: dict[str, Any] = json.loads(line) if line else {"ok": False}
        if not started["ok"]:
            await self.kill()
            raise self.trouble(f"did not start: {line.decode(errors='replace')}")
        self.port = int(started["result"]["endpoint"].rpartition(":")[2])

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """Ask it to end. Returns its exit code."""
        limit = scaled(STOP_S)
        try:
            async with asyncio.timeout(limit):
                return await self._end(signal.SIGTERM)
        except TimeoutError:
            raise self.trouble(f"did not end within {limit:.0f} s") from None
        finally:
            await self.kill()

    async def _end(self, how: signal.Signals) -> int:
        if self._minder is None:
            return 0
        if self.is_running:
            os.kill(self.pid, how)
        code = await self._minder.wait()
        assert self._minder.stdin is not None
        self._minder.stdin.close()
        return code

    def trouble(self, what: str) -> PeerUnavailable:
        tail = self.log.read_text(errors="replace")[-TAIL:] if self.log.exists() else ""
        return PeerUnavailable(
            f"the server {self.node} {what}; it said last:\n{tail or '(nothing)'}", fix="fix what it complains about"
        )
