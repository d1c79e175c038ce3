"""Runs the demo: two processes, a bad link between them, and somebody who kills them.

customers → sender process → link that loses, doubles, delays, cuts → receiver process
            own SQLite file                                           own SQLite file

Beside it, in `hub.py`, clients of the pub/sub server.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from semel.demo import proof
from semel.demo.audit import Figures, count
from semel.demo.hub import HubShow
from semel.demo.options import RECEIVER, SENDER, DemoOptions
from semel.demo.report import DemoResult
from semel.errors import ConfigError, PeerUnavailable
from semel.stores import open_store
from semel.testing.children import Child
from semel.testing.faults import FaultProxy, Weather

WATCH_S = 0.02
DELAY_S = 0.03
CHILD_FIX = "mend what it complains about; run with --keep to look at its data"


def run(options: DemoOptions, console: Console | None = None) -> DemoResult:
    """Run the demo to its end. Everything it starts is ended, whatever happens; with a console it shows its progress
    and its findings. Ctrl-C ends it cleanly and comes through as KeyboardInterrupt."""
    console = console or Console(quiet=True)
    with _folder(options) as folder:
        if options.keep or options.folder:
            console.print(f"data in {folder}", style="dim", highlight=False)
        hub = HubShow(options, folder) if options.hub else None
        result = asyncio.run(_both(_Show(options, folder), hub, console))
        console.print(result)
        if not options.audit:
            return result
        stores = tuple(f"sqlite:///{folder / role}.db" for role in (SENDER, RECEIVER))
        return replace(result, audit=proof.audit((*stores, *(hub.stores if hub else ())), result.folder, console))


async def _both(show: _Show, hub: HubShow | None, console: Console) -> DemoResult:
    """Side by side: each of them waits most of the time. If one fails, the other is ended."""
    with _progress(console) as progress:
        if hub is None:
            return await show.run(progress)
        shown, heard = asyncio.create_task(show.run(progress)), asyncio.create_task(hub.run(progress))
        try:
            await asyncio.gather(shown, heard)
        finally:
            for task in (shown, heard):
                task.cancel()
            await asyncio.gather(shown, heard, return_exceptions=True)
    return replace(shown.result(), hub=heard.result())


@contextmanager
def _folder(options: DemoOptions) -> Iterator[Path]:
    if options.folder is not None:
        try:
            options.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{options.folder} cannot be made: {error.strerror}", fix="name another folder") from None
        yield options.folder.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="semel-demo-"))
    try:
        yield folder
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class _Seen:
    """What the children have said so far. It drives the bar and the kills; the verdict comes from the stores."""

    acked: set[str] = field(default_factory=set)
    accepted: int = 0
    waiting: int = 0
    done: bool = False
    changed_at: float = field(default_factory=time.monotonic)

    def hear(self, said: dict[str, Any]) -> None:
        before = (len(self.acked), self.accepted, self.waiting, self.done)
        self.acked.update(said.get("acked", ()))
        self.accepted = max(self.accepted, said.get("accepted", 0))
        self.waiting = said.get("waiting", self.waiting)
        self.done = self.done or "done" in said
        if before != (len(self.acked), self.accepted, self.waiting, self.done):
            self.changed_at = time.monotonic()


class _Show:
    def __init__(self, options: DemoOptions, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.seen = _Seen()
        self.kills: list[str] = []
        self.children: dict[str, Child] = {}
        self.secret = secrets.token_hex(16)
        weather = Weather(options.loss, options.doubling, options.delay, DELAY_S, options.cuts)
        self.proxy = FaultProxy(("127.0.0.1", 0), weather, seed=options.seed)
        self.proxy_port = 0

    async def run(self, progress: Progress) -> DemoResult:
        began = time.monotonic()
        async with self._processes():
            await self._watch(progress)
            for child in (self.children[SENDER], self.children[RECEIVER]):
                await child.stop()
        figures = await asyncio.to_thread(self._count)
        kept = self.folder if self.options.keep or self.options.folder else None
        took_s = time.monotonic() - began
        return DemoResult(self.options, figures, self.proxy.counts, tuple(self.kills), took_s, kept)

    def _count(self) -> Figures:
        sender, receiver = (open_store(self._url(role), create=False) for role in (SENDER, RECEIVER))
        try:
            return count(sender, receiver, self.seen.acked)
        finally:
            sender.close()
            receiver.close()

    # -- processes

    @asynccontextmanager
    async def _processes(self) -> AsyncIterator[None]:
        try:
            await self._start(RECEIVER)
            self.proxy_port = await self.proxy.start()
            await self._start(SENDER)
            yield
        finally:
            for child in self.children.values():
                await child.kill()
            await self.proxy.close()

    async def _start(self, role: str) -> None:
        config: dict[str, Any] = {"store": self._url(role), "secret": self.secret}
        if role == SENDER:
            config |= {"port": self.proxy_port, "messages": self.options.messages, "seed": self.options.seed}
        else:
            config |= {"plant": self.options.plant}
        log = self.folder / f"{role}.log"
        child = await Child.start(role, f"semel.demo.{role}", config, log, self.seen.hear, fix=CHILD_FIX)
        self.children[role] = child
        said = await child.ready()
        self.seen.changed_at = time.monotonic()  # a slow start is not a standstill
        if role == RECEIVER:
            self.proxy.target = ("127.0.0.1", said["port"])

    def _url(self, role: str) -> str:
        return f"sqlite:///{self.folder / role}.db"

    async def _kill(self, role: str, progress: Progress) -> None:
        child = self.children[role]
        await child.kill()
        self.kills.append(f"{role} at {self.seen.accepted:,}")
        progress.console.print(
            f"kill -9 of the {role}, process {child.process.pid}, at {self.seen.accepted:,} accepted, and a new one",
            style="yellow",
            highlight=False,
        )
        await self._start(role)

    # -- watching

    async def _watch(self, progress: Progress) -> None:
        options, seen = self.options, self.seen
        task = progress.add_task("accepted", total=options.messages)
        until = time.monotonic() + options.timeout_s
        while not seen.done or len(self.kills) < options.kills:
            if len(self.kills) < options.kills and (seen.done or seen.accepted >= self._next_kill()):
                await self._kill(RECEIVER if len(self.kills) % 2 == 0 else SENDER, progress)
            self._check(until)
            progress.update(task, completed=min(seen.accepted, options.messages))
            await asyncio.sleep(WATCH_S)
        progress.update(task, completed=options.messages)

    def _next_kill(self) -> int:
        """Kills are spread over the run: two of them come after a third and after two thirds."""
        return self.options.messages * (len(self.kills) + 1) // (self.options.kills + 1)

    def _check(self, until: float) -> None:
        for child in self.children.values():
            if not child.is_running:
                raise child.trouble(f"ended by itself with code {child.process.returncode}")
        now = time.monotonic()
        if now - self.seen.changed_at > self.options.stall_s:
            raise self._hung(f"nothing has moved for {self.options.stall_s:.0f} s")
        if now > until:
            raise self._hung(f"the demo is not done after {self.options.timeout_s:.0f} s")

    def _hung(self, what: str) -> PeerUnavailable:
        seen = self.seen
        where = (
            f"{len(seen.acked):,} of {self.options.messages:,} orders placed, {seen.accepted:,} accepted, "
            f"{seen.waiting:,} waiting to be confirmed"
        )
        tails = "\n".join(str(child.trouble("is running").message) for child in self.children.values())
        return PeerUnavailable(f"{what}: {where}\n{tails}", fix="run with --keep and look at the logs in the folder")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
