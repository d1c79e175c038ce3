"""kill -9 of a real process at every point of the inbox, on both stores: delivery and row are settled, whatever dies.

The test is the broker: what was not acknowledged it delivers again. It is also the second process, which finds what the
dead one has left. Then it looks at everything: the rows, the effects, what was sent, and the ledger.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.campaigns.inbox_child import CALLS, IN_HANDLER, POSTS, Books, Life, make_app, message
from tests.integration.inbox_shop import all_entries
from tests.tools.paths import child_environment

from semel import App
from semel.inbox.outbox import outbox_hop, outbox_queue
from semel.inbox.settle import DeliveryEnd
from semel.kernel.ledger import Kind, balance
from semel.kernel.ops import OPEN_STATES, WorkState
from semel.kernel.store import Records
from semel.stores.points import POINTS
from semel.testing.limits import scaled, wait_until

pytestmark = [pytest.mark.connected, pytest.mark.slow(12)]

DONE, PARKED, DEAD = WorkState.DONE, WorkState.PARKED, WorkState.DEAD
IN_TRANSACTION = ["inbox.returned", "inbox.marked"]
COMMITS = ["commit.begin", "commit.applied", "commit.committed"]


def lives() -> Iterator[Life]:
    """Each with an id of its own, so that one database serves for all of them."""
    for point in ("inbox.stored", "inbox.claimed", IN_HANDLER, *IN_TRANSACTION, "inbox.committed", "relay.sent"):
        yield Life("receive", "durable", f"durable-{point}", point)
    for point in COMMITS:
        yield Life("receive", "durable", f"arriving-{point}", point)
        yield Life("receive", "durable", f"claiming-{point}", point, count=2)
    for style in ("eager", "optimistic"):
        for point in (IN_HANDLER, *IN_TRANSACTION, "inbox.committed", "inbox.settled"):
            yield Life("deliver", style, f"{style}-{point}", point)
    for on_crash in ("retry", "drop", "park"):
        for point in ("inbox.claimed", IN_HANDLER, "inbox.returned"):
            yield Life("receive", f"durable-{on_crash}", f"durable-{on_crash}-{point}", point)
        for point in ("commit.applied", "inbox.reserved", IN_HANDLER, "inbox.returned", "inbox.settled"):
            yield Life("deliver", f"reserved-{on_crash}", f"reserved-{on_crash}-{point}", point)
    for point in ("letter.stored", "inbox.settled"):
        yield Life("deliver", "poison-inline", f"poison-inline-{point}", point)
        yield Life("deliver", "poison-eager", f"poison-eager-{point}", point)
    for act in ("replay", "discard"):
        for point in ("commit.applied", "letter.moved"):
            yield Life(act, "poison", f"{act}-{point}", point)


LIVES = list(lives())


class Scene:
    """A database, the processes that die in it, and the broker that delivers to them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder, self.books = url, folder, Books(folder)
        self.app: App = make_app(url, self.books)
        assert self.app.store
        with closing(self.connect()) as db:
            db.execute("CREATE TABLE effect (id text)")
            db.commit()
        command = [sys.executable, "-m", "tests.campaigns.inbox_child", url, str(folder)]
        self.spawner = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
        )

    def connect(self) -> Any:
        path = self.url.removeprefix("sqlite:///")
        return sqlite3.connect(path, timeout=scaled(30)) if "sqlite" in self.url else psycopg.connect(self.url)

    def live(self, life: Life) -> int:
        """Let a process live, and say how it ended."""
        assert self.spawner.stdin is not None
        assert self.spawner.stdout is not None
        print(life.as_json(), file=self.spawner.stdin, flush=True)
        return int(self.spawner.stdout.readline())

    def told(self, life: Life) -> list[str]:
        return self.books.read(f"told {life.id}")

    def redeliver(self, life: Life) -> None:
        """What a broker does with a delivery that nobody has settled."""
        if life.act == "receive":
            self.app.receive(life.endpoint, [message(life)])
        elif life.act == "deliver":
            wait_until(lambda: self._is_settled(life), f"the end of {life.id}")

    def _is_settled(self, life: Life) -> bool:
        """What is stored with its body is no longer the transport's: a running application has it then."""
        if asyncio.run(self.app.deliver(life.endpoint, message(life))) is DeliveryEnd.ACK:
            return True
        self.app.drain(scaled(60))
        return False

    def effects(self) -> Counter[str]:
        with closing(self.connect()) as db:
            return Counter(id for (id,) in db.execute("SELECT id FROM effect").fetchall())

    def sent(self) -> Counter[str]:
        found = self.app.store.read("receipts", limit=1000)
        return Counter(record.envelope.id for record in found.records) if isinstance(found, Records) else Counter()

    def close(self) -> None:
        with self.spawner:
            assert self.spawner.stdin is not None
            self.spawner.stdin.close()
        self.app.close()


@pytest.fixture(params=["sqlite", "postgres"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made = Scene(url, tmp_path)
    yield made
    made.close()


def test_whatever_point_a_process_dies_at_delivery_and_row_are_settled(scene: Scene) -> None:
    for life in LIVES:
        if life.act in ("replay", "discard"):
            scene.app.receive(life.endpoint, [message(life)])
    scene.app.drain(scaled(60))
    for life in LIVES:
        assert scene.live(life) == -signal.SIGKILL, f"{life} was not killed"
        assert scene.told(life) in ([], ["ack"]), life
        if not scene.told(life):
            scene.redeliver(life)
        # before the next one begins: that one is to die of its own message
        scene.app.drain(scaled(60))
    for life in LIVES:
        check(scene, life)
    check_books(scene)


def check(scene: Scene, life: Life) -> None:
    """What has become of one message, by what was promised for its endpoint."""
    row = scene.app.store.work(f"inbox/{life.endpoint}", life.id)
    assert row is not None, life
    calls, effects = scene.books.read(CALLS).count(life.id), scene.effects()[life.id]
    receipts = scene.sent()[f"receipt {life.id}"]
    match life.endpoint:
        case "durable" | "eager" | "optimistic":
            posts = scene.books.read(POSTS).count(f"post {life.id}")
            assert (row.state, effects, receipts) == (DONE, 1, 1), life
            assert posts == (2 if life.point == "relay.sent" else 1), life
        case "durable-retry" | "reserved-retry":
            assert (row.state, receipts) == (DONE, 1), life
            assert calls == (2 if life.point in (IN_HANDLER, "inbox.returned") else 1), life
        case "durable-drop" | "reserved-drop":
            assert (row.state, calls <= 1) == (DONE, True), life
        case "durable-park" | "reserved-park":
            is_over = life.point in ("inbox.settled", "commit.applied")
            assert (row.state, calls <= 1) == (DONE if is_over else PARKED, True), life
            assert is_over or row.envelope.data, f"{life}: who decides needs the body"
        case "poison-inline" | "poison-eager":
            assert (row.state, row.envelope.data, effects) == (DEAD, message(life).data, 0), life
        case "poison":
            check_letter(scene, life, row.state)


def check_letter(scene: Scene, life: Life, state: WorkState) -> None:
    """Replayed, it has failed again; discarded, it is gone. Killed before its commit nothing has happened."""
    kinds = [entry.event.kind for entry in scene.app.store.history(life.id)]
    moved = life.point == "letter.moved"
    if life.act == "discard":
        assert (state, Kind.DISCARDED in kinds) == ((DONE if moved else DEAD), moved), life
    else:
        assert (state, kinds.count(Kind.DEAD_LETTERED)) == (DEAD, 2 if moved else 1), life


def check_books(scene: Scene) -> None:
    """For each hop: what was accepted or opened again has ended, or is open. And nothing waits in the outbox."""
    entries, store = all_entries(scene.app.store), scene.app.store
    hops = {each.options.queue: each.options.hop for each in scene.app.endpoints.values()}
    for queue, hop in {**hops, outbox_queue("shop"): outbox_hop("shop")}.items():
        events = [entry.event for entry in entries if entry.event.hop == hop]
        found = balance(events, len(store.work_rows(queue, OPEN_STATES, limit=1000)))
        assert found.holds, (queue, found)
        assert found.accepted, queue
    assert store.work_rows("outbox/shop", OPEN_STATES) == []


def test_every_point_of_the_inbox_kills_somebody() -> None:
    points = {point for point in POINTS if point.split(".")[0] in ("inbox", "letter", "relay")}
    assert points <= {life.point for life in LIVES}
