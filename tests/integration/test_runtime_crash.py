"""Real processes, real files, kill -9: nothing that was acked is lost, and nothing is there twice.

This file is also the program of the child processes.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.kernel.envelope import Envelope
from semel.kernel.hop import ReceiveOrder, Receiver, ReceiverConfig, Sender, SenderConfig
from semel.kernel.ledger import START, Event, Kind
from semel.kernel.ops import Append, Put, Unit
from semel.kernel.position import Position
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Record, Records, Store
from semel.runtime.host.committer import Committer
from semel.runtime.host.performer import Performer
from semel.runtime.transports.tcp import TcpTransport
from semel.stores import open_store
from semel.stores.points import on_reach
from semel.testing.limits import scaled

PRODUCERS = 64
STREAM = "outbox/crash"
INBOX = "inbox/crash"
SECRET = b"crash"
COMMIT_POINTS = ("commit.begin", "commit.applied", "commit.committed", "perform.completed")
HOP = f"{STREAM}>{INBOX}"


# -- the children


def die_at(point: str, count: int) -> None:
    """kill -9 when the point is reached for the n-th time."""
    left = count

    def hook(reached: str) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    on_reach(hook)


async def produce(url: str, each: int) -> None:
    """64 producers; an id is printed when its commit was acked."""
    store = open_store(url)
    async with Performer(store) as performer:
        committer = Committer(performer)

        async def producer(number: int) -> None:
            for at in range(each):
                id = f"m-{number:02d}-{at:04d}"
                await committer.commit(
                    [Append(STREAM, Envelope(id=id), identity=id), Put(f"last/{number}", id.encode())]
                )
                os.write(1, f"{id}\n".encode())

        await asyncio.gather(*(producer(number) for number in range(PRODUCERS)))
    store.close()
    os.write(1, b"done\n")


async def receive(url: str, port: int) -> None:
    store = open_store(url)
    async with Performer(store) as performer:
        transport = TcpTransport("receiver", secret=SECRET)
        performer.attach(transport)
        config = ReceiverConfig("receiver", HOP, stream=INBOX, order=ReceiveOrder.STRICT)
        await performer.host(lambda store: Receiver(config), transport=transport)
        os.write(1, f"{await transport.listen(port=port)}\n".encode())
        await asyncio.Event().wait()


def main() -> None:
    role, url, number, point, count = sys.argv[1:]
    if point != "nowhere":
        die_at(point, int(count))
    asyncio.run(produce(url, int(number)) if role == "produce" else receive(url, int(number)))


# -- the tests


def child(role: str, url: str, number: int, point: str = "nowhere", count: int = 0) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, role, url, str(number), point, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> tuple[set[str], bool]:
    """The ids that were acked, and whether the process came to its end. A line cut short is no ack."""
    said, _ = process.communicate(timeout=scaled(60))
    lines = said.decode().split("\n")[:-1]
    return {line for line in lines if line != "done"}, "done" in lines


def stored(store: Store, stream: str) -> list[str]:
    return [record.envelope.id for record in records(store, stream)]


def records(store: Store, stream: str) -> Iterator[Record]:
    after: Position | None = None
    while True:
        found = store.read(stream, after, 1000)
        assert isinstance(found, Records)
        if not found.records:
            return
        yield from found.records
        after = found.records[-1].position


def check(url: str, acked: set[str]) -> None:
    store = open_store(url, create=False)
    there = Counter(stored(store, STREAM))
    assert not acked - set(there), "acked, but lost"
    assert max(there.values(), default=1) == 1, "accepted twice"
    store.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/crash.db"


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_producers_killed_at_a_point_lose_nothing_acked(url: str, point: str, count: int) -> None:
    acked, done = finish(child("produce", url, 10, point, count))
    assert not done, "the process was to die"
    check(url, acked)
    if count > 1:
        assert acked, "something was acked before"

    more, done = finish(child("produce", url, 10))
    assert done
    assert len(more) == PRODUCERS * 10
    check(url, acked | more)


@pytest.mark.slow(10)
def test_producers_killed_at_any_moment_lose_nothing_acked(url: str) -> None:
    """Ten kills at random moments, each process going on where the one before it died."""
    chance = random.Random(4711)
    acked: set[str] = set()
    killed_at_work = 0
    for _ in range(10):
        process = child("produce", url, 150)
        assert process.stdout is not None
        first = process.stdout.readline()  # it is at work now
        time.sleep(chance.uniform(0.0, 0.15))
        process.kill()
        more, done = finish(process)
        killed_at_work += not done
        acked |= more | {first.decode().strip()}
        check(url, acked)

    assert killed_at_work >= 3
    more, done = finish(child("produce", url, 150))
    assert done
    check(url, acked | more)


class Receiving:
    """Keeps a receiver process alive on one port, and makes each die at its point."""

    def __init__(self, url: str, deaths: list[tuple[str, int]]) -> None:
        self.url = url
        self.deaths = deaths
        self.died: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    async def run(self, port: int, started: asyncio.Future[int]) -> None:
        while True:
            point, count = self.deaths[0] if self.deaths else ("nowhere", 0)
            self.process = child("receive", self.url, port, point, count)
            assert self.process.stdout is not None
            line = await asyncio.to_thread(self.process.stdout.readline)
            port = int(line)
            if not started.done():
                started.set_result(port)
            await asyncio.to_thread(self.process.wait)
            self.process.stdout.close()
            self.died.append(point)
            self.deaths = self.deaths[1:]

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


async def test_a_receiver_killed_at_every_point_accepts_each_message_once(tmp_path: Path) -> None:
    """After the commit and before the confirm is the gap that doubles messages, if anything does."""
    deaths = [(point, count) for point in COMMIT_POINTS for count in (2, 5)]
    receiving = Receiving(f"sqlite:///{tmp_path}/receiver.db", list(deaths))
    store = open_store(f"sqlite:///{tmp_path}/sender.db")
    sent = Event(Kind.SENT, HOP)
    envelopes = [Envelope(id=f"m{number}", session=f"s{number % 3}", index=number // 3 + 1) for number in range(600)]
    store.commit([Unit((Append(STREAM, one, identity=one.id, on_fresh=sent),)) for one in envelopes])
    policy = ResendPolicy(window=20, timeout_s=0.1, retry=RetryPolicy(interval_s=0.1))
    config = SenderConfig("sender", STREAM, "receiver", HOP, policy=policy)
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    keeping = asyncio.create_task(receiving.run(0, started))
    try:
        async with Performer(store) as performer, asyncio.timeout(scaled(120)):
            transport = TcpTransport("sender", secret=SECRET)
            performer.attach(transport)
            await performer.host(
                lambda store: Sender(config, store.cursor(config.cursor)), transport=transport, peers={"receiver"}
            )
            transport.dial("receiver", "127.0.0.1", await started)
            while store.cursor(config.cursor) != Position(STREAM, 1, 600):  # noqa: ASYNC110 - the store offers no event
                await asyncio.sleep(0.02)
    finally:
        keeping.cancel()
        receiving.end()
        await asyncio.gather(keeping, return_exceptions=True)
        store.close()

    assert receiving.died == [point for point, _ in deaths]
    receiver = open_store(f"sqlite:///{tmp_path}/receiver.db", create=False)
    there = list(records(receiver, INBOX))
    assert sorted(record.envelope.id for record in there) == sorted(one.id for one in envelopes)
    for session in ("s0", "s1", "s2"):
        assert [one.envelope.index for one in there if one.envelope.session == session] == list(range(1, 201))
    events = [entry.event for entry in receiver.ledger(START, 100_000)]
    assert sum(event.n for event in events if event.kind is Kind.ACCEPTED) == 600
    assert any(event.kind is Kind.DUPLICATE for event in events)
    receiver.close()


if __name__ == "__main__":
    main()
