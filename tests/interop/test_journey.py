"""An order on its way from Microsoft's JavaScript client through everything and back, under one id: hub, event, inbox,
the shop's PostgreSQL, NATS, inbox, hub, client. What is killed with -9 meanwhile costs nothing and doubles nothing.

The application and its configuration are those of docs/how-to/one-id-over-all-hops.md.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from queue import Empty
from typing import Any

import psycopg
import pytest
from tests.interop.javascript import HERE, WAIT_S, JavaScriptError, Node
from tests.interop.javascript_clients import ONCE, Client
from tests.interop.served import KEY, Served
from tests.tools.brokers import JetStream, NatsServer, free_port, shared_nats

from semel.auth.keys import AccessKeys
from semel.kernel.ledger import Kind
from semel.kernel.ops import WorkState
from semel.kernel.store import Store
from semel.pubsub.protocol.client_tokens import client_token
from semel.stores.open import open_store
from semel.testing.limits import scaled, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.connected, pytest.mark.timeout(300)]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "one-id-over-all-hops.md").read_text()
SEMEL = (sys.executable, "-m", "semel")
HUB = "shop"
BATCH = 5
"""So many orders each browser sends at a time. There are five times, with three kills."""


OPEN = (WorkState.READY, WorkState.SCHEDULED, WorkState.CLAIMED)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


[SQL], [SHOP, PREPARE], [CONFIG], [PROTOCOL] = blocks("sql"), blocks("python"), blocks("toml"), blocks("js")


class Worker:
    """`semel inbox run` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.start()

    def start(self) -> None:
        with open(self._folder / "worker.log", "a") as log:
            command = (*SEMEL, "inbox", "run", "shop:app")
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(scaled(WAIT_S))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(scaled(WAIT_S))


class Browser:
    """Microsoft's client and what a page would do with it: what is not acknowledged is sent again under its id."""

    def __init__(self, node: Node, url: str, options: dict[str, Any]) -> None:
        self._node, self.client = node, Client(node, url, {**ONCE, **options})
        self._ack_ids = 1000
        self.resent = 0
        self.receipts: Counter[str] = Counter()

    def order(self, ids: Sequence[str]) -> None:
        for id in ids:
            self._ack_ids += 1
            self._send(id, self._ack_ids)

    def _send(self, id: str, ack_id: int) -> None:
        until = time.monotonic() + scaled(WAIT_S)
        while True:
            try:
                self.client.do("sendEvent", "order", {"order": id, "cents": cents(id)}, "json", {"ackId": ack_id})
                return
            except JavaScriptError:
                if time.monotonic() > until:
                    raise
                self.resent += 1
                time.sleep(0.05)

    def until_receipts(self, ids: Sequence[str]) -> None:
        wait_until(lambda: set(self.look()) >= set(ids), "the receipts")

    def look(self) -> Counter[str]:
        """The receipts that have come until now, by id."""
        heard = self._node.heard(self.client.name, "server-message")
        while True:
            try:
                message = heard.get_nowait()["message"]
            except Empty:
                return self.receipts
            id = message["metadata"]["semel-id"]
            assert message["data"] == {"charged": cents(id)}
            self.receipts[id] += 1


def cents(id: str) -> int:
    """Each order has a sum of its own."""
    return 100 + int(id.rpartition("-")[2])


class World:
    """All that runs, and where the test looks for signs."""

    def __init__(
        self, node: Node, server: Served, worker: Worker, nats: NatsServer, shop: Store, database: str
    ) -> None:
        self._node, self.server, self.worker, self.nats = node, server, worker, nats
        self.shop, self.database = shop, database
        self.folder = server.folder
        self.hub = open_store(server.store, create=False)
        self._look = psycopg.connect(database, autocommit=True)

    def close(self) -> None:
        self._look.close()
        self.hub.close()

    def browser(self, user: str, **options: Any) -> Browser:
        url = f"{self.server.endpoint}/client/hubs/{HUB}"
        token = client_token(AccessKeys(KEY), url, now=time.time(), user_id=user)
        return Browser(self._node, f"{url.replace('http', 'ws', 1)}?access_token={token}", options)

    def rows(self, table: str) -> list[tuple[str, str, int]]:
        return sorted(self._look.execute(f"SELECT id, customer, cents FROM {table}").fetchall())

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Whoever writes into the table waits."""
        with psycopg.connect(self.database) as holder:
            holder.execute(f"LOCK TABLE {table} IN SHARE MODE")
            yield
            holder.rollback()

    def until_waits(self, table: str) -> None:
        waiting = "SELECT count(*) FROM pg_locks WHERE relation = %s::regclass AND NOT granted"
        wait_until(lambda: self._look.execute(waiting, (table,)).fetchone() != (0,), f"a writer at {table}")

    def until_accepted(self, ids: Sequence[str]) -> None:
        """The hub has one of these events; its inbox has not."""

        def is_there() -> bool:
            return any(self.hub.history(id) for id in ids)

        wait_until(is_there, "an event at the hub")

    def until_settled(self) -> None:
        """Nothing is under way in the shop: what a worker held when it was killed comes last, after its lease."""
        queues = ("inbox/orders", "inbox/charges", "outbox/shop")
        wait_until(lambda: not any(self.shop.work_rows(queue, OPEN) for queue in queues), "the end of all work")

    def until_failed(self, ids: Sequence[str], destination: str) -> None:
        """The relay has tried in vain to send one of these there."""

        def is_tried() -> bool:
            found = (entry.event for id in ids for entry in self.shop.history(id))
            return any(event.kind is Kind.FAILED and (event.delivery or "").startswith(destination) for event in found)

        wait_until(is_tried, f"an attempt to reach {destination}")


@pytest.fixture
def nats_server() -> Iterator[NatsServer]:
    with shared_nats() as server:
        yield server


@pytest.fixture
def world(
    tmp_path: Path, node: Node, nats_server: NatsServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    port = free_port()
    (tmp_path / "shop.py").write_text(SHOP)
    stated = {"postgresql://shop@db.example/shop": postgres_url, "8080": str(port), "lease_s = 5.0": "lease_s = 2.0"}
    config = CONFIG
    for old, new in stated.items():
        assert old in config
        config = config.replace(old, new)
    (tmp_path / "semel.toml").write_text(config)
    monkeypatch.setenv("SEMEL_INBOX__HUB", f"Endpoint=http://127.0.0.1:{port};AccessKey={KEY};Version=1.0;")
    monkeypatch.setenv("SEMEL_INBOX__NATS", nats_server.url)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(SQL)
    asyncio.run(prepare(nats_server))
    shop = open_store(postgres_url)
    server = Served(tmp_path, port=port)
    worker = Worker(tmp_path)
    world = World(node, server, worker, nats_server, shop, postgres_url)
    try:
        yield world
    finally:
        worker.stop()
        server.stop()
        world.close()
        shop.close()


async def prepare(server: NatsServer) -> None:
    names: dict[str, Any] = {}
    assert "ack_wait=5" in PREPARE
    exec(compile(PREPARE.replace("ack_wait=5", "ack_wait=2"), "one-id-over-all-hops.md", "exec"), names)
    async with JetStream(server.port) as stream:
        await names["prepare"](stream)


async def ids_at_broker(server: NatsServer) -> list[tuple[str, str]]:
    """Nats-Msg-Id of every message of the stream, and its id as a CloudEvent."""
    async with JetStream(server.port) as stream:
        last = (await stream.stream_info("SHOP")).state.last_seq
        found = [await stream.get_msg("SHOP", number) for number in range(1, last + 1)]
    return [(message.headers["Nats-Msg-Id"], message.headers["ce-id"]) for message in found]


def ids_of(user: str, batch: int) -> list[str]:
    return [f"{user}-{number}" for number in range(batch * BATCH, (batch + 1) * BATCH)]


def shop_steps(id: str) -> list[tuple[str, str, str | None]]:
    """What the shop's ledger says of an order that nothing got in the way of: hop, kind and delivery."""
    user = id.partition("-")[0]
    return [
        ("inbox/orders>handler", "accepted", None),
        ("inbox/orders>handler", "handled", None),
        ("outbox/shop>relay", "accepted", "nats:shop.charges"),
        ("outbox/shop>relay", "handled", "nats:shop.charges"),
        ("inbox/charges>handler", "accepted", None),
        ("inbox/charges>handler", "handled", None),
        ("outbox/shop>relay", "accepted", f"hub:shop/user/{user}"),
        ("outbox/shop>relay", "handled", f"hub:shop/user/{user}"),
    ]


def check_timeline(world: World, id: str, says_its_id: bool) -> None:
    """The journey over both stores, as the command shows it, of an order that nothing got in the way of. That the hub's
    subscribers have confirmed it is told of ranges, as long as the records are there, and not looked for."""
    stores = ("--store", world.server.store, "--store", world.database)
    command = (*SEMEL, "store", "ledger", "--message", id, "--last", "1000", "--json", *stores)
    done = subprocess.run(command, cwd=world.folder, capture_output=True, text=True, timeout=scaled(WAIT_S))
    assert done.returncode == 0, done.stderr
    entries = [each for each in json.loads(done.stdout)["result"]["entries"] if each.get("first") is None]
    assert {each["message"] for each in entries} == {id}
    steps = [(each["hop"], each["kind"]) for each in entries]
    came = [("client>hub/shop/events", "accepted"), ("hub/shop/events>handler", "handled")] if says_its_id else []
    at_shop = [(hop, kind) for hop, kind, _ in shop_steps(id)]
    assert Counter(steps) == Counter([*came, *at_shop, ("client>hub/shop", "accepted")])
    # what a sender hears of it, and when, is not part of the order
    road = [*came[:1], *(step for step in at_shop if step[0].startswith("inbox/")), ("client>hub/shop", "accepted")]
    assert [step for step in steps if step in road] == road


def check_ledgers(world: World, id: str) -> None:
    """Every step of every order once, whatever was tried in vain or came twice."""
    found = [entry.event for entry in world.shop.history(id)]
    ends = (Kind.ACCEPTED, Kind.HANDLED)
    steps = [(event.hop, event.kind.name.lower(), event.delivery) for event in found if event.kind in ends]
    assert Counter(steps) == Counter(shop_steps(id)), id
    assert {event.kind for event in found} <= {*ends, Kind.FAILED, Kind.DUPLICATE}
    hub = [entry.event for entry in world.hub.history(id) if entry.event.hop == "client>hub/shop"]
    assert [event.kind for event in hub].count(Kind.ACCEPTED) == 1, "the hub took the receipt once"


class Ordering:
    """Both browsers send a batch, each on a thread of its own."""

    def __init__(self, pool: ThreadPoolExecutor, browsers: dict[str, Browser], batch: int) -> None:
        self.ids = {user: ids_of(user, batch) for user in browsers}
        self.all = [id for ids in self.ids.values() for id in ids]
        self._under_way = [pool.submit(each.order, self.ids[user]) for user, each in browsers.items()]

    def end(self) -> None:
        for each in self._under_way:
            each.result(scaled(WAIT_S))


def kill_worker(world: World, order: Callable[[], Ordering]) -> None:
    """While its handlers charge: what they have written is not committed."""
    with world.locked("charge"):
        ordering = order()
        world.until_waits("charge")
        world.worker.kill()
    world.worker.start()
    ordering.end()


def kill_broker(world: World, order: Callable[[], Ordering]) -> None:
    """With orders in the shop that it has not got yet. It comes back when the relay has tried in vain."""
    with world.locked("orders"):
        ordering = order()
        world.until_waits("orders")
        world.nats.kill()
    world.until_failed(ordering.all, "nats:shop.charges")
    world.nats.start()
    ordering.end()


def kill_server(world: World, order: Callable[[], Ordering]) -> None:
    """With receipts on their way to it, and events of which nobody knows whether the shop has them."""
    with world.locked("charge"):
        charging = order()
        charging.end()
        world.until_waits("charge")
        with world.locked("semel_work"):
            ordering = order()
            world.until_accepted(ordering.all)
            world.until_waits("semel_work")
            world.server.kill()
    world.until_failed(charging.all, "hub:shop/user/")
    world.server.start()
    ordering.end()


@pytest.mark.slow(15)
def test_an_order_keeps_its_id_whatever_is_killed_on_its_way(world: World) -> None:
    # one of them says its ids to the hub; those of the other one the inbox finds in the body
    browsers = {"ada": world.browser("ada", idField="order"), "bob": world.browser("bob")}
    numbers = count()
    with ThreadPoolExecutor(len(browsers)) as pool:

        def order() -> Ordering:
            return Ordering(pool, browsers, next(numbers))

        order().end()
        for user, browser in browsers.items():
            browser.until_receipts(ids_of(user, 0))
        world.until_settled()
        for kill in (kill_worker, kill_broker, kill_server):
            kill(world, order)
    batches = range(next(numbers))
    wanted = {user: [id for batch in batches for id in ids_of(user, batch)] for user in browsers}
    for user, browser in browsers.items():
        browser.until_receipts(wanted[user])
        assert browser.resent > 0, "the server was killed under an event"

    # a page that was loaded again has another session, and sends what it does not remember to have sent
    again = world.browser("ada", idField="order")
    again.order(repeated := wanted["ada"][:3])
    for id in repeated:
        kinds = [entry.event.kind for entry in world.shop.history(id) if entry.event.hop == "inbox/orders>handler"]
        assert kinds.count(Kind.DUPLICATE) >= 1

    world.until_settled()
    ids = sorted(id for of_user in wanted.values() for id in of_user)
    rows = sorted((id, id.partition("-")[0], cents(id)) for id in ids)
    assert world.rows("orders") == rows
    assert world.rows("charge") == rows
    assert sorted(asyncio.run(ids_at_broker(world.nats))) == [(id, id) for id in ids]
    for user, browser in browsers.items():
        assert browser.look() == Counter(wanted[user]), "a receipt for each, and none twice"
    assert not again.look()
    for id in ids:
        check_ledgers(world, id)
    check_timeline(world, "ada-4", says_its_id=True)
    check_timeline(world, "bob-4", says_its_id=False)
    for browser in (*browsers.values(), again):
        browser.client.do("stop")


def test_the_protocol_of_the_page_is_the_one_that_was_tested() -> None:
    assert PROTOCOL in (HERE / "driver.mjs").read_text()
