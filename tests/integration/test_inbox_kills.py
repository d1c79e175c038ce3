"""kill -9 of a real process at every point of the inbox, on both stores: delivery and row are settled, whatever dies.

The test is the broker: what was not acknowledged it delivers again. It is also the second process, which finds what the
dead one has left. Then it looks at everything: the rows, the effects, what was sent, and the ledger.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.campaigns.inbox_child import (
    ACKED,
    CALLS,
    COMMITTED,
    FAR_S,
    IN_HANDLER,
    POSTS,
    RECEIPTS,
    URL,
    WRITTEN,
    Books,
    Life,
    Order,
    call,
    connect,
    later,
    make_app,
    message,
)
from tests.integration.inbox_shop import all_entries
from tests.tools.paths import child_environment

from semel import App, Outbox
from semel.inbox.identity import inbox_hop
from semel.inbox.outbox import outbox_hop, outbox_queue, parse_destination, row_identity
from semel.inbox.settle import DeliveryEnd
from semel.kernel.ledger import Kind, balance
from semel.kernel.ops import OPEN_STATES, WorkState
from semel.kernel.store import Records
from semel.stores.points import POINTS
from semel.testing.limits import scaled, wait_until

pytestmark = [pytest.mark.connected, pytest.mark.slow(15)]

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
    yield from lives_of_callers()
    yield from lives_of_cancels()
    for point in COMMITS:
        yield Life("relay", "durable", f"relaying-{point}", point, after="relay.sent")
    for point in (ACKED, IN_HANDLER, *IN_TRANSACTION, "inbox.committed", "inbox.settled"):
        yield Life("receive", "buffered", f"buffered-{point}", point)
    for point in ("letter.stored", "inbox.settled"):
        yield Life("receive", "poison-buffered", f"poison-buffered-{point}", point)


def lives_of_callers() -> Iterator[Life]:
    for point in (WRITTEN, COMMITTED):
        yield Life("call", "", f"call-{point}", point)
        yield Life("first", "calls", f"first-{point}", point)


def lives_of_cancels() -> Iterator[Life]:
    """By a caller, by a handler in its transaction, by one that has none and commits the cancel by itself (or not: the
    commit that it dies with may be another's); and of what a relay that died has sent already."""
    for point in (WRITTEN, COMMITTED):
        yield Life("cancel", "", f"cancel-{point}", point)
    for point in (IN_HANDLER, "inbox.marked", "inbox.committed"):
        yield Life("receive", "cancels", f"cancels-{point}", point)
    yield Life("receive", "cancels-outside", "cancels-outside", "commit.committed", after="inbox.returned")
    yield Life("relay", "too-late", "too-late", "relay.sent")


LIVES = list(lives())


def is_cancel(life: Life) -> bool:
    return life.act == "cancel" or life.endpoint.startswith("cancels")


class Scene:
    """A database, the processes that die in it, and the broker that delivers to them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder, self.books = url, folder, Books(folder)
        self.app: App = make_app(url, self.books)
        assert self.app.store
        with closing(connect(url)) as db:
            db.execute("CREATE TABLE effect (id text)")
            db.commit()
        command = [sys.executable, "-m", "tests.campaigns.inbox_child", url, str(folder)]
        self.spawner = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
        )

    @contextmanager
    def sending(self) -> Iterator[Outbox]:
        """A transaction of the test's own, committed at its end."""
        with closing(connect(self.url)) as db:
            with self.app.outbox(db) as outbox:
                yield outbox
            db.commit()

    def prepare(self, life: Life) -> None:
        """What was sent before the process lived that is to die with it."""
        if is_cancel(life):
            with self.sending() as outbox:
                outbox.schedule(Order(life.id), to=RECEIPTS, after_s=FAR_S, id=later(life.id))
        elif life.act == "relay":
            here = () if life.endpoint == "too-late" else (RECEIPTS, f"endpoint:{life.endpoint}")
            with self.sending() as outbox:
                for to in (URL, *here):
                    outbox.publish(Order(life.id), to=to, id=life.id)

    def follow_up(self, life: Life) -> None:
        """What others do after a death, with no regard to it."""
        if is_cancel(life):
            # its time has come, if nobody has taken it back; who did has done so for good, also if it is sent again
            row = self.app.store.work("outbox/shop", row_identity(parse_destination(RECEIPTS), later(life.id)))
            assert row is not None, life
            with self.sending() as outbox:
                is_open = row.state is WorkState.SCHEDULED
                outbox.schedule(Order(life.id), to=RECEIPTS, after_s=0, id=later(life.id), replace=is_open)
        elif life.endpoint == "too-late":
            with self.sending() as outbox:
                outbox.cancel(life.id, to=URL)
        elif life.endpoint == "buffered" and life.point in ("inbox.committed", "inbox.settled"):
            self.app.receive(life.endpoint, [message(life)])  # the broker delivers it twice
        elif life.endpoint == "poison-buffered":
            # stored to be handled in a while, should the one who stored it not put it aside
            wait_until(lambda: self._is_dead(life), f"the end of {life.id}")

    def _is_dead(self, life: Life) -> bool:
        self.app.drain(scaled(60))
        row = self.app.store.work(f"inbox/{life.endpoint}", life.id)
        return row is not None and row.state is DEAD

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
        elif life.act == "first":
            call(self.app, life)
        elif life.act == "deliver":
            wait_until(lambda: self._is_settled(life), f"the end of {life.id}")

    def _is_settled(self, life: Life) -> bool:
        """What is stored with its body is no longer the transport's: a running application has it then."""
        if asyncio.run(self.app.deliver(life.endpoint, message(life))) is DeliveryEnd.ACK:
            return True
        self.app.drain(scaled(60))
        return False

    def effects(self) -> Counter[str]:
        with closing(connect(self.url)) as db:
            return Counter(id for (id,) in db.execute("SELECT id FROM effect").fetchall())

    def sent(self) -> Counter[str]:
        found = self.app.store.read("receipts", limit=1000)
        return Counter(record.envelope.id for record in found.records) if isinstance(found, Records) else Counter()

    def posts(self, id: str) -> int:
        return self.books.read(POSTS).count(id)

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
        scene.prepare(life)
        assert scene.live(life) == -signal.SIGKILL, f"{life} was not killed"
        assert scene.told(life) in ([], ["ack"]), life
        if not scene.told(life):
            scene.redeliver(life)
        scene.follow_up(life)
        # before the next one begins: that one is to die of its own message
        scene.app.drain(scaled(60))
    for life in LIVES:
        check(scene, life)
    check_books(scene)


def check(scene: Scene, life: Life) -> None:
    """What has become of one message, by what was promised for whoever had it."""
    if is_cancel(life):
        check_cancel(scene, life)
    elif life.act == "call" or life.endpoint == "buffered":
        check_all_or_nothing(scene, life)
    elif life.act == "relay":
        check_relayed(scene, life)
    else:
        check_row(scene, life)


def check_row(scene: Scene, life: Life) -> None:
    row = scene.app.store.work(f"inbox/{life.endpoint}", life.id)
    assert row is not None, life
    calls, effects = scene.books.read(CALLS).count(life.id), scene.effects()[life.id]
    receipts = scene.sent()[f"receipt {life.id}"]
    match life.endpoint:
        case "durable" | "eager" | "optimistic" | "calls":
            assert (row.state, effects, receipts) == (DONE, 1, 1), life
            assert scene.posts(f"post {life.id}") == (2 if life.point == "relay.sent" else 1), life
        case "durable-retry" | "reserved-retry":
            assert (row.state, receipts) == (DONE, 1), life
            assert calls == (2 if life.point in (IN_HANDLER, "inbox.returned") else 1), life
        case "durable-drop" | "reserved-drop":
            assert (row.state, calls <= 1) == (DONE, True), life
        case "durable-park" | "reserved-park":
            is_over = life.point in ("inbox.settled", "commit.applied")
            assert (row.state, calls <= 1) == (DONE if is_over else PARKED, True), life
            assert is_over or row.envelope.data, f"{life}: who decides needs the body"
        case "poison-inline" | "poison-eager" | "poison-buffered":
            assert (row.state, row.envelope.data, effects) == (DEAD, message(life).data, 0), life
        case "poison":
            check_letter(scene, life, row.state)


def check_all_or_nothing(scene: Scene, life: Life) -> None:
    """Nobody delivers it again. Before its commit nothing is left of it, not even a mark; after it all of it is there,
    once."""
    is_committed = life.point in (COMMITTED, "inbox.committed", "inbox.settled")
    found = (
        scene.effects()[life.id], scene.sent()[f"receipt {life.id}"], scene.posts(f"post {life.id}"),
    )  # fmt: skip
    assert found == (1, 1, 1) if is_committed else found == (0, 0, 0), (life, found)
    if life.endpoint == "buffered":
        row = scene.app.store.work("inbox/buffered", life.id)
        assert (row is not None and row.state is DONE) == is_committed, (life, row)


def check_cancel(scene: Scene, life: Life) -> None:
    """Sent or taken back: never both, never neither."""
    kinds = [entry.event.kind for entry in scene.app.store.history(later(life.id))]
    ends = (scene.sent()[later(life.id)], kinds.count(Kind.CANCELLED))
    assert sum(ends) == 1, (life, ends)
    if life.point in (COMMITTED, "inbox.committed"):
        assert ends == (0, 1), (life, ends)
    elif life.point == WRITTEN:
        assert ends == (1, 0), (life, ends)


def check_relayed(scene: Scene, life: Life) -> None:
    """Outside it may come twice, under the same id; in the same store it is there once, and so is its effect."""
    posts = scene.posts(life.id)
    if life.endpoint == "too-late":
        kinds = [entry.event.kind for entry in scene.app.store.history(life.id)]
        assert (posts, Kind.CANCELLED in kinds) == (2, False), life
        return
    assert posts == 2 or (posts == 1 and life.point == "commit.committed"), (life, posts)
    assert scene.sent()[life.id] == 1, life
    assert (scene.effects()[life.id], scene.sent()[f"receipt {life.id}"]) == (1, 1), life


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
    hops["inbox/calls"] = inbox_hop("calls")
    for queue, hop in {**hops, outbox_queue("shop"): outbox_hop("shop")}.items():
        events = [entry.event for entry in entries if entry.event.hop == hop]
        found = balance(events, len(store.work_rows(queue, OPEN_STATES, limit=1000)))
        assert found.holds, (queue, found)
        assert found.accepted, queue
    assert store.work_rows("outbox/shop", OPEN_STATES) == []


def test_every_point_of_the_inbox_kills_somebody() -> None:
    points = {point for point in POINTS if point.split(".")[0] in ("inbox", "letter", "relay")}
    assert points <= {life.point for life in LIVES}
