"""A stream flows into an inbox, on real stores: whatever process dies, each record takes effect once."""

from __future__ import annotations

import asyncio
import logging
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
from tests.campaigns.follow_child import Order, make_app
from tests.tools.paths import child_environment

from semel import App
from semel.auth.keys import parse_connection_string
from semel.inbox.messages import envelope_of
from semel.inbox.outbox import parse_destination
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Trim, Unit
from semel.kernel.store import Records, Store
from semel.runtime.inbox.following import follow_status
from semel.runtime.inbox.senders import HttpSenders
from semel.runtime.inbox.service import InboxService
from semel.stores.open import open_store
from semel.stores.points import POINTS
from semel.testing.limits import scaled, wait_until
from semel.testing.serve_process import KEY, ServeProcess

pytestmark = pytest.mark.connected

POINTS_HERE = sorted(point for point in POINTS if point.startswith("follow."))
LIVES = [
    ("follow.begun", 1), ("follow.read", 1), ("follow.stored", 1), ("follow.pinned", 2), ("follow.read", 2),
    ("commit.begin", 2), ("commit.applied", 3), ("commit.committed", 4), ("commit.applied", 5), ("follow.stored", 2),
]  # fmt: skip
RECORDS = 40
PAIRS = ["sqlite", "postgres", "sqlite>postgres", "postgres>sqlite", "sqlite entrance", "postgres entrance"]


class Scene:
    """An inbox, a stream in its own store or in another one, and processes that die while they follow it."""

    def __init__(self, url: str, source: str, stream: str) -> None:
        self.url, self.source_url, self.stream = url, source, stream
        self.app: App = make_app(url, source, stream, lease_s=scaled(0.4))
        assert self.app.store
        self.source: Store = self.app.store if source == url else open_store(source)
        with closing(self.connect()) as db:
            db.execute("CREATE TABLE effect (id text)")
            db.commit()

    def connect(self) -> Any:
        path = self.url.removeprefix("sqlite:///")
        return sqlite3.connect(path, timeout=scaled(30)) if "sqlite" in self.url else psycopg.connect(self.url)

    def put(self, *ids: str) -> None:
        self.source.commit([Unit((Append(self.stream, envelope_of(Order(id), id)),)) for id in ids])

    def effects(self) -> list[str]:
        with closing(self.connect()) as db:
            return [id for (id,) in db.execute("SELECT id FROM effect").fetchall()]

    def drain(self) -> int:
        return self.app.drain(scaled(60))

    def status(self) -> Any:
        [found] = [each for each in follow_status(self.app) if each.stream == self.stream]
        return found

    def close(self) -> None:
        if self.source is not self.app.store:
            self.source.close()
        self.app.close()


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    pair, _, is_entrance = request.param.partition(" ")
    kind, _, into = pair.partition(">")

    def url(engine: str, name: str) -> str:
        return f"sqlite:///{tmp_path}/{name}.db" if engine == "sqlite" else request.getfixturevalue("postgres_url")

    source = url(kind, "source")
    inbox = url(into, "shop") if into else source
    made = Scene(inbox, source, "inbox/orders" if is_entrance else "orders-in")
    yield made
    made.close()


@pytest.mark.slow(20)
@pytest.mark.parametrize("scene", PAIRS, indirect=True)
def test_wherever_a_follower_dies_each_record_takes_effect_once(scene: Scene) -> None:
    command = [sys.executable, "-m", "tests.campaigns.follow_child", scene.url, scene.source_url, scene.stream]
    ids = [f"{at:03}" for at in range(RECORDS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
    ) as spawner:
        assert spawner.stdin is not None
        assert spawner.stdout is not None
        for at, (point, count) in enumerate(LIVES):
            scene.put(*ids[at * 4 : at * 4 + 4])
            if scene.stream == "inbox/orders" and point.startswith("follow"):
                count = 1  # it takes all at once
            print(point, count, file=spawner.stdin, flush=True)
            ended = int(spawner.stdout.readline())
            assert ended == -signal.SIGKILL or point == "follow.begun", (point, count, ended)
        spawner.stdin.close()
    scene.drain()
    effects = Counter(scene.effects())
    assert (effects - Counter(ids), Counter(ids) - effects) == (Counter(), Counter()), "doubled, lost"
    assert (scene.status().lag, scene.status().stopped) == (0, "")


def test_every_point_of_a_follower_kills_somebody() -> None:
    assert set(POINTS_HERE) <= {point for point, _ in LIVES}


@pytest.mark.parametrize("scene", ["sqlite>sqlite", "postgres>sqlite", "sqlite>postgres"], indirect=True)
def test_a_restored_source_stops_it_and_says_so(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.put("a", "b")
    assert scene.drain() == 2
    scene.source.raise_epoch("restored from a backup")
    scene.put("c")
    with caplog.at_level(logging.ERROR):
        assert scene.drain() == 0
    assert "--from earliest" in caplog.text
    assert "is in epoch 2" in scene.status().stopped
    assert scene.drain() == 0, "and it stays so"


@pytest.mark.parametrize("scene", ["sqlite>sqlite", "postgres>sqlite", "sqlite>postgres"], indirect=True)
def test_what_a_follower_has_not_taken_is_not_trimmed(scene: Scene) -> None:
    scene.put("a")
    assert scene.drain() == 1
    scene.put("b", "c")
    scene.source.commit([Unit((Trim(scene.stream, 100),))])
    assert scene.drain() == 2
    scene.source.commit([Unit((Trim(scene.stream, 100),))])
    [stream] = [each for each in scene.source.status().streams if each.name == scene.stream]
    assert stream.first == 4, "what it has taken is"


@pytest.mark.asyncio
@pytest.mark.parametrize("scene", ["sqlite>sqlite", "postgres>postgres", "sqlite", "postgres"], indirect=True)
async def test_a_running_application_takes_what_comes(scene: Scene) -> None:
    """Two processes would do as well: the second service waits for the lease, and takes over when the first ends."""
    other = make_app(scene.url, scene.source_url, scene.stream, lease_s=scaled(0.4))
    async with asyncio.timeout(scaled(60)), InboxService(other):
        async with InboxService(scene.app):
            await asyncio.to_thread(scene.put, "a", "b")
            await asyncio.to_thread(wait_until, lambda: len(scene.effects()) == 2, "two effects")
        await asyncio.to_thread(scene.put, "c")
        await asyncio.to_thread(wait_until, lambda: len(scene.effects()) == 3, "three effects")
    other.close()
    assert Counter(scene.effects()) == Counter("abc")


@pytest.mark.parametrize("scene", ["sqlite", "postgres"], indirect=True)
def test_the_log_has_what_was_accepted_in_the_commit_of_the_row(scene: Scene) -> None:
    app = App(scene.url, name="other")
    app.endpoint("mail", log=True).on(Order)(lambda order: None)
    app.send(Order("a"), to="mail", id="a")
    app.receive("mail", [envelope_of(Order(id), id) for id in "ba"])
    with closing(scene.connect()) as db:
        with app.outbox(db) as outbox:
            outbox.publish(Order("c"), to="endpoint:mail", id="c")
        assert logged(app) == ["a", "b"], "a user's transaction holds no stream"
        db.commit()
    assert app.drain(scaled(30)) == 3
    assert logged(app) == ["a", "b", "c"]
    app.close()


def logged(app: App) -> list[str]:
    found = app.store.read("inbox/mail/log")
    assert isinstance(found, Records)
    return [record.envelope.id for record in found.records]


@pytest.mark.asyncio
async def test_a_publish_to_a_running_server_is_handled_under_its_own_id(tmp_path: Path) -> None:
    """The server has its SQLite file open, and so has the shop, which takes one group of the hub. One message comes
    again on purpose: the hub takes it once, and so does the shop."""
    server = ServeProcess(f"sqlite:///{tmp_path}/semel.db", tmp_path / "log")
    await server.start()
    try:
        endpoint = parse_connection_string(f"Endpoint=http://127.0.0.1:{server.port};AccessKey={KEY};Version=1.0;")
        senders = HttpSenders(endpoint)
        for id, to in (("order-1", "orders"), ("chat-1", "talk"), ("order-2", "orders"), ("order-1", "orders")):
            destination = parse_destination(f"hub:chat/group/{to}")
            await senders.by_kind["hub"](destination, envelope_of(Order(id), id))
        await senders.close()
        shop = App(f"sqlite:///{tmp_path}/shop.db", name="shop")
        seen: list[tuple[str, str]] = []

        def note(order: Order, envelope: Envelope) -> None:
            seen.append((order.id, envelope.source))

        shop.endpoint("orders").on("message")(note)
        shop.follow("orders", "hub/chat", store=server.store, group="orders")
        assert await asyncio.to_thread(shop.drain, scaled(60)) == 2
        hops = [(entry.event.kind.name, entry.event.hop) for entry in shop.store.history("order-1")]
        shop.close()
    finally:
        await server.kill()
    assert seen == [("order-1", "hub/chat"), ("order-2", "hub/chat")]
    assert ("ACCEPTED", "hub/chat>inbox/orders") in hops
    assert hops[-1] == ("HANDLED", "inbox/orders>handler")
