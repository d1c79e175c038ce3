"""Runs the demo: two processes, a bad link between them, and somebody who kills them.

customers → sender process → link that loses, doubles, delays, cuts → receiver process
            own SQLite file                                           own SQLite file

Beside it, in `hub.py`, clients of the pub/sub server, and in `shop.py` a shop with an inbox behind a broker.
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
from rich.progress import Progress

from semel.demo.audit import DemoFigures, count
from semel.demo.children import Child
from semel.demo.hub import HubShow
from semel.demo.options import RECEIVER, SENDER, DemoOptions
from semel.demo.proof import audit
from semel.demo.report import DemoResult
from semel.demo.shop import ShopShow
from semel.demo.story import Story, progress_on
from semel.errors import ConfigError, PeerUnavailable
from semel.stores import open_store
from semel.testing import limits
from semel.testing.faults import FaultProxy, FrameFaults

WATCH_S = 0.02
DELAY_S = 0.03
CHILD_FIX = "fix what it complains about; run with --keep to look at its data"


def run(options: DemoOptions, console: Console | None = None) -> DemoResult:
    """Run the demo to its end. Everything it starts is ended, whatever happens; with a console it shows its progress
    and its findings. Ctrl-C ends it cleanly and comes through as KeyboardInterrupt."""
    console = console or Console(quiet=True)
    with _folder(options) as folder:
        if options.keep or options.folder:
            console.print(f"data in {folder}", style="dim", highlight=False)
        hub = HubShow(options, folder) if options.hub else None
        shop = ShopShow(options, folder) if options.inbox else None
        result = asyncio.run(_together(_Show(options, folder), hub, shop, console))
        console.print(result)
        if not options.audit:
            return result
        stores = tuple(f"sqlite:///{folder / role}.db" for role in (SENDER, RECEIVER))
        more = [url for part in (hub, shop) if part is not None for url in part.stores]
        return replace(result, audit=audit((*stores, *more), result.folder, console))


async def _together(show: _Show, hub: HubShow | None, shop: ShopShow | None, console: Console) -> DemoResult:
    """Side by side: each of them waits most of the time. If one fails, the others are ended."""
    with progress_on(console) as progress:
        shown = asyncio.create_task(show.run(progress))
        with_hub = asyncio.create_task(hub.run(progress)) if hub is not None else None
        with_shop = asyncio.create_task(shop.run(progress)) if shop is not None else None
        running: list[asyncio.Task[Any]] = [task for task in (shown, with_hub, with_shop) if task is not None]
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                # Ctrl-C has cancelled all: a second time would keep one from ending its processes
                if not task.cancelling():
                    task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    return replace(
        shown.result(),
        hub=with_hub.result() if with_hub is not None else None,
        inbox=with_shop.result() if with_shop is not None else None,
    )


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

    def receive(self, report: dict[str, Any]) -> None:
        before = (len(self.acked), self.accepted, self.waiting, self.done)
        self.acked.update(report.get("acked", ()))
        self.accepted = max(self.accepted, report.get("accepted", 0))
        self.waiting = report.get("waiting", self.waiting)
        self.done = self.done or "done" in report
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
        weather = FrameFaults(options.loss, options.doubling, options.delay, DELAY_S, options.cuts)
        self.proxy = FaultProxy(("127.0.0.1", 0), weather, seed=options.seed)
        self.proxy_port = 0

    async def run(self, progress: Progress) -> DemoResult:
        began = time.monotonic()
        story = Story(progress, "starting the processes", self.options.messages)
        notes = asyncio.create_task(story.print_notes())
        try:
            async with self._processes():
                await self._watch(story, progress.console)
                story.now("ending the processes")
                for child in (self.children[SENDER], self.children[RECEIVER]):
                    await child.stop()
            story.now("counting what came of it")
            figures = await asyncio.to_thread(self._count)
            story.now("counted")
        finally:
            notes.cancel()
        kept = self.folder if self.options.keep or self.options.folder else None
        took_s = time.monotonic() - began
        return DemoResult(self.options, figures, self.proxy.counts, tuple(self.kills), took_s, kept)

    def _count(self) -> DemoFigures:
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
        child = await Child.start(role, f"semel.demo.{role}", config, log, self.seen.receive, fix=CHILD_FIX)
        self.children[role] = child
        report = await child.ready()
        self.seen.changed_at = time.monotonic()  # a slow start is not a standstill
        if role == RECEIVER:
            self.proxy.target = ("127.0.0.1", report["port"])

    def _url(self, role: str) -> str:
        return f"sqlite:///{self.folder / role}.db"

    async def _kill(self, role: str, story: Story, console: Console) -> None:
        child = self.children[role]
        await child.kill()
        self.kills.append(f"{role} at {self.seen.accepted:,}")
        story.now(f"starting the {role} again")
        console.print(
            f"kill -9 of the {role}, process {child.process.pid}, at {self.seen.accepted:,} accepted, and a new one",
            style="yellow",
            highlight=False,
        )
        await self._start(role)

    # -- watching

    async def _watch(self, story: Story, console: Console) -> None:
        options, seen = self.options, self.seen
        until = time.monotonic() + limits.scaled(options.limit_s)
        while not seen.done or len(self.kills) < options.kills:
            if len(self.kills) < options.kills and (seen.done or seen.accepted >= self._next_kill()):
                await self._kill(RECEIVER if len(self.kills) % 2 == 0 else SENDER, story, console)
            self._check(until)
            story.now(self._doing(), min(seen.accepted, options.messages))
            await asyncio.sleep(WATCH_S)

    def _doing(self) -> str:
        if self.seen.accepted < self.options.messages:
            return "accepted"
        return f"all accepted, {self.seen.waiting:,} to be confirmed" if self.seen.waiting else "all confirmed"

    def _next_kill(self) -> int:
        """Kills are spread over the run: two of them come after a third and after two thirds."""
        return self.options.messages * (len(self.kills) + 1) // (self.options.kills + 1)

    def _check(self, until: float) -> None:
        for child in self.children.values():
            if not child.is_running:
                raise child.trouble(f"ended by itself with code {child.process.returncode}")
        now, stall_s = time.monotonic(), limits.scaled(self.options.stall_s)
        if now - self.seen.changed_at > stall_s:
            raise self._hung(f"nothing has moved for {stall_s:.0f} s")
        if now > until:
            raise self._hung(f"the demo is not done after {limits.scaled(self.options.limit_s):.0f} s")

    def _hung(self, what: str) -> PeerUnavailable:
        seen = self.seen
        where = (
            f"{len(seen.acked):,} of {self.options.messages:,} orders placed, {seen.accepted:,} accepted, "
            f"{seen.waiting:,} waiting to be confirmed"
        )
        tails = "\n".join(str(child.trouble("is running").message) for child in self.children.values())
        return PeerUnavailable(f"{what}: {where}\n{tails}", fix="run with --keep and look at the logs in the folder")
