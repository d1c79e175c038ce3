"""Child processes: how a parent starts and ends them, and how they speak with it.

A child gets its orders as one line of JSON on standard input; what it has to say goes out as lines of JSON. When
standard input ends, it ends: by the parent's wish, or because the parent is gone. So a child is always ended: by
request, by -9, or with its parent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from semel.errors import PeerUnavailable, SemelError
from semel.kernel.retry import RetryPolicy
from semel.runtime.host.performer import Performer
from semel.runtime.transports.tcp import TcpLimits, TcpTransport
from semel.testing import limits

START_S = 60.0
STOP_S = 30.0
TAIL_LINES = 12
LINE_BYTES_MAX = 1024 * 1024

REPORT_S = 0.02
"""How often a child says how far it is."""

OnReport = Callable[[dict[str, Any]], None]
"""Called with each line that a child writes, as JSON."""

Role = Callable[[dict[str, Any], asyncio.Event], Awaitable[None]]
"""What a child does with its orders until the event says that it should end."""


class Child:
    """A process as its parent sees it. `log` is the file that its standard error goes to, `fix` what people are
    advised when it fails."""

    def __init__(self, role: str, process: Process, log: Path, on_report: OnReport, fix: str) -> None:
        self.role = role
        self.process = process
        self.log = log
        self.fix = fix
        self._on_report = on_report
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        role: str,
        module: str,
        config: dict[str, Any],
        log: Path,
        on_report: OnReport,
        *,
        fix: str = "fix what it complains about",
        environment: dict[str, str] | None = None,
    ) -> Child:
        """Run a module and hand it its orders. A secret in them never shows on a command line."""
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module,
                stdin=PIPE, stdout=PIPE, stderr=errors, start_new_session=True, limit=LINE_BYTES_MAX,
                env={**(os.environ if environment is None else environment), limits.VARIABLE: f"{limits.factor():.2f}"},
            )  # fmt: skip
        child = cls(role, process, log, on_report, fix)
        assert process.stdin is not None
        process.stdin.write(json.dumps(config).encode() + b"\n")
        return child

    async def ready(self) -> dict[str, Any]:
        """What it said first. Raises with the end of its log when it does not come up."""
        limit = limits.scaled(START_S)
        try:
            async with asyncio.timeout(limit):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            raise self.trouble(f"was not ready after {limit:.0f} s") from None

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
        limit = limits.scaled(STOP_S)
        try:
            async with asyncio.timeout(limit):
                await self.process.wait()
        except TimeoutError:
            raise self.trouble(f"did not end within {limit:.0f} s") from None
        finally:
            await self.kill()

    def trouble(self, what: str) -> PeerUnavailable:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]) if self.log.exists() else ""
        return PeerUnavailable(f"the {self.role} process {what}; it said last:\n{tail or '(nothing)'}", fix=self.fix)

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            with suppress(ValueError):  # the last line of a killed process may be torn
                self._take(json.loads(line))
        if not self._ready.done():
            code = await self.process.wait()
            self._ready.set_exception(self.trouble(f"ended with code {code} before it was ready"))
            self._ready.exception()  # seen, also when nobody awaits it any more

    def _take(self, report: dict[str, Any]) -> None:
        if "ready" in report and not self._ready.done():
            self._ready.set_result(report)
        self._on_report(report)


# -- in the child


def say(**what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def main(role: Role) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        asyncio.run(_main(role))
    except SemelError as error:
        sys.exit(f"{error}")


async def _main(role: Role) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    config = json.loads(await reader.readline())
    ended = asyncio.Event()
    watch = asyncio.create_task(_watch(reader, ended))
    try:
        await role(config, ended)
    finally:
        watch.cancel()


async def _watch(reader: asyncio.StreamReader, ended: asyncio.Event) -> None:
    while await reader.read(1024):
        pass
    ended.set()


def open_transport(name: str, secret: str) -> TcpTransport:
    """One that looks for its peer often: a process that was killed is back within a second."""
    retry = RetryPolicy(interval_s=0.02, factor=2.0, interval_max_s=0.5, jitter=0.5)
    return TcpTransport(
        name, secret=bytes.fromhex(secret), limits=TcpLimits(handshake_s=limits.scaled(2.0), retry=retry)
    )


def join_network(name: str, secret: str, performer: Performer) -> TcpTransport:
    transport = open_transport(name, secret)
    performer.attach(transport)
    return transport


async def pause(ended: asyncio.Event, seconds: float) -> None:
    """Sleep, but not beyond the end."""
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        pass
