"""Two performers on one SQLite file, as two processes would be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Enqueue, Op, Outcome, Unit, WorkRow, WorkState
from semel.kernel.store import Record, Records
from semel.kernel.work import Follower, FollowerConfig, Worker, WorkerConfig
from semel.runtime.host.committer import Committer
from semel.runtime.host.performer import Performer
from semel.stores.sqlite import SqliteStore
from semel.testing.limits import scaled, wait_until

QUEUE = "inbox/shared"
STREAM = "hub/shared"


class CountingStore(SqliteStore):
    commits = 0

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        self.commits += 1
        return super().commit(units)


@pytest.fixture
async def performers(tmp_path: Path) -> AsyncIterator[list[Performer]]:
    async with AsyncExitStack() as stack:
        stores = [CountingStore(f"sqlite:///{tmp_path}/shared.db") for _ in range(2)]
        for store in stores:
            stack.callback(store.close)
        yield [await stack.enter_async_context(Performer(store)) for store in stores]


def worker(number: int) -> Worker:
    return Worker(WorkerConfig(f"worker-{number}", QUEUE, f"{QUEUE}>handler", parallel=4, idle_s=60))


async def test_idle_workers_leave_the_disk_alone(performers: list[Performer]) -> None:
    """Looking for work must not look like work to others, or they would wake each other for ever."""
    for number, performer in enumerate(performers):
        performer.add(worker(number), handler=lambda item: None)

    def looked() -> list[int]:
        return [performer.store.commits for performer in performers]  # type: ignore[attr-defined]

    await asyncio.to_thread(wait_until, lambda: min(looked()) > 0, "a look by each of them")
    await asyncio.sleep(scaled(0.5))
    assert max(looked()) <= 5


async def test_work_is_done_once_whoever_finds_it(performers: list[Performer]) -> None:
    done: list[str] = []
    all_done = asyncio.Event()

    async def handle(item: WorkRow | Record) -> list[Op]:
        done.append(item.envelope.id)
        if len(done) == 200:
            all_done.set()
        return [Append(STREAM, item.envelope)]

    for number, performer in enumerate(performers):
        performer.add(worker(number), handler=handle)
    committer = Committer(performers[0])
    await asyncio.gather(
        *(committer.commit([Enqueue(QUEUE, f"w{number}", Envelope(id=f"w{number}"))]) for number in range(200))
    )
    async with asyncio.timeout(scaled(30)):
        await all_done.wait()
    for performer in performers:
        await performer.close()

    store = performers[0].store
    found = store.read(STREAM)
    assert isinstance(found, Records)
    assert sorted(record.envelope.id for record in found.records) == sorted(f"w{number}" for number in range(200))
    states = {row.state for number in range(200) if (row := store.work(QUEUE, f"w{number}")) is not None}
    assert states == {WorkState.DONE}


async def test_a_follower_is_woken_by_the_other_process(performers: list[Performer]) -> None:
    seen: list[str] = []
    changed = asyncio.Event()

    async def handle(item: WorkRow | Record) -> None:
        seen.append(item.envelope.id)
        changed.set()

    config = FollowerConfig("follower", STREAM, f"{STREAM}>handler")
    await performers[1].host(lambda store: Follower(config, store.cursor(config.cursor)), handler=handle)
    committer = Committer(performers[0])
    for number in range(20):
        changed.clear()
        await committer.commit([Append(STREAM, Envelope(id=f"m{number}"))])
        async with asyncio.timeout(scaled(30)):
            await changed.wait()

    assert seen == [f"m{number}" for number in range(20)]
