"""CloudEvents over real HTTP into an application's endpoints, and out again as effects: each once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.test_event_handlers import connect
from websockets.exceptions import InvalidStatus

from semel import App, Envelope, Outbox, WebPubSubClient
from semel.auth.keys import AccessKeys, connection_string
from semel.auth.tokens import service_token
from semel.errors import StoreUnavailable
from semel.http import HttpRequest
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Log, Unit
from semel.kernel.store import Store
from semel.pubsub.events.handlers import Handlers, event_handler
from semel.pubsub.protocol.client_tokens import client_token
from semel.runtime.inbox import http_entrance
from semel.runtime.inbox.definition import Verdict
from semel.runtime.inbox.http_entrance import HttpEntrance
from semel.runtime.inbox.service import InboxService
from semel.runtime.server.inbox import InboxPart, InboxPartSettings
from semel.runtime.server.ledger import LedgerPart
from semel.runtime.server.part import PartFactory, ServerSettings
from semel.runtime.server.pubsub import PubSub, PubSubSettings
from semel.runtime.server.server import serving
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled, wait_until
from semel.testing.serve_process import KEY, ServeProcess

KEYS = AccessKeys(KEY)
SERVER = ServerSettings(KEYS, port=0)
STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
BINARY = {"ce-specversion": "1.0", "ce-id": "o-1", "ce-source": "/shop", "ce-type": "order.placed"}
HUB = "chat"


def event(id: str, source: str = "/shop", **more: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": id, "source": source, "type": "order.placed", "data": {"id": id}, **more}


class Till:
    """An application whose handler writes down what it was told, in a database of its own."""

    def __init__(self, folder: Path, **endpoint: Any) -> None:
        self.path = folder / "till.db"
        self.app = App(f"sqlite:///{self.path}", name="till")
        self.orders = self.app.endpoint("orders", **endpoint)
        self.app.endpoint("quick", mode="inline", style="eager").on("order.placed")(self._charge)
        for type in ("order.placed", "azure.webpubsub.user.order"):
            self.orders.on(type)(self._charge)
        assert self.app.store
        with sqlite3.connect(self.path) as db:
            db.execute("CREATE TABLE charge (id TEXT, body TEXT)")
        db.close()

    def _charge(self, order: dict, envelope: Envelope, db: sqlite3.Connection, outbox: Outbox) -> None:
        db.execute("INSERT INTO charge VALUES (?, ?)", (envelope.id, json.dumps(order)))
        outbox.publish(order, to="stream:receipts", id=envelope.id, type="receipt")

    async def drain(self) -> None:
        """On a thread: it runs a loop of its own."""
        await asyncio.to_thread(self.app.drain, scaled(30))

    @property
    def charged(self) -> list[str]:
        db = sqlite3.connect(self.path)
        try:
            return [id for (id,) in db.execute("SELECT id FROM charge ORDER BY rowid")]
        finally:
            db.close()

    @property
    def stored(self) -> int:
        return sum(self.app.store.work_counts("inbox/orders").get("inbox/orders", {}).values())


@pytest.fixture
def till(tmp_path: Path) -> Iterator[Till]:
    till = Till(tmp_path)
    yield till
    till.app.close()


@asynccontextmanager
async def served(till: Till, *more: PartFactory, **settings: Any) -> AsyncIterator[str]:
    parts = [partial(InboxPart, app=till.app, settings=InboxPartSettings(**settings)), *more]
    async with serving(MemoryStore(), SERVER, parts) as listening:
        yield listening.endpoint


class Sender:
    """`roles` None: a token that names none, as Microsoft's libraries make them. `key` empty: no token at all."""

    def __init__(
        self, endpoint: str, *, key: str = KEY, roles: Sequence[str] = (), audience: str | None = None
    ) -> None:
        self.endpoint, self._key, self._roles, self._audience = endpoint, key, roles, audience
        self._http = httpx.AsyncClient(trust_env=False, timeout=scaled(30))

    async def post(self, path: str, body: object = b"", headers: dict[str, str] | None = None) -> httpx.Response:
        return await self.ask("POST", path, body, headers)

    async def event(self, path: str, *events: dict[str, Any]) -> httpx.Response:
        content = STRUCTURED if len(events) == 1 else BATCH
        return await self.post(path, events[0] if len(events) == 1 else list(events), {"content-type": content})

    async def ask(
        self, method: str, path: str, body: object = b"", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        headers = dict(headers or {})
        if self._key:
            url = self._audience or f"{self.endpoint}{path.partition('?')[0]}"
            token = service_token(AccessKeys(self._key), url, now=time.time(), roles=self._roles)
            headers["authorization"] = f"Bearer {token}"
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self._http.request(method, f"{self.endpoint}{path}", content=content, headers=headers)
        if "/inbox/" in path:
            assert answer.content == b"", "a hub would hand it to its client"
        return answer

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()


ORDERS = "/v1/inbox/orders"


async def test_the_three_ways_to_send_an_event_are_stored_and_handled_once(till: Till) -> None:
    async with served(till) as endpoint, Sender(endpoint) as sender:
        for _ in range(2):
            assert (await sender.event(ORDERS, event("o-1"))).status_code == 202
            binary = {**BINARY, "ce-id": "o-%32", "content-type": "application/json"}
            assert (await sender.post(ORDERS, b'{"id":"o-2"}', binary)).status_code == 202
            assert (await sender.event(ORDERS, event("o-3"), event("o-4"), event("o-3"))).status_code == 202
        assert (await sender.post(ORDERS, [], {"content-type": BATCH})).status_code == 202
        assert till.stored == 4
    await till.drain()
    assert till.charged == ["o-1", "o-2", "o-3", "o-4"]


async def test_the_same_id_from_two_sources_is_two_effects(till: Till) -> None:
    """The leak 'ids per source': by the id alone the second shop's order would be dropped as the first one's copy."""
    async with served(till) as endpoint, Sender(endpoint) as sender:
        for source in ("/shop/berlin", "/shop/paris", "/shop/berlin"):
            assert (await sender.event(ORDERS, event("o-1", source))).status_code == 202
    await till.drain()
    assert till.charged == ["o-1", "o-1"]


async def test_a_batch_is_stored_whole_or_not_at_all(till: Till) -> None:
    async with served(till) as endpoint, Sender(endpoint) as sender:
        refused = await sender.event(ORDERS, event("o-1"), event("", data=None), event("o-3"))
        assert refused.status_code == 400
        assert refused.headers["semel-error"].startswith("event 2 of the batch: the attribute 'id' is missing")
        assert till.stored == 0


@pytest.mark.parametrize(
    ("sender", "path", "status"),
    [
        ({"key": ""}, ORDERS, 401),
        ({"key": "x" * 44}, ORDERS, 401),
        ({"audience": "http://other.example/v1/inbox/orders"}, ORDERS, 401),
        ({"roles": ["semel.read"]}, ORDERS, 403),
        ({"roles": ["semel.send:inbox/bills"]}, ORDERS, 403),
        ({"roles": ["semel.send:queue/*"]}, ORDERS, 403),
        ({"roles": ["semel.send:inbox/ord*"]}, ORDERS, 202),
        ({"roles": ["semel.send:inbox/orders"]}, ORDERS, 202),
        ({"roles": ["semel.operate"]}, ORDERS, 202),
        ({}, ORDERS, 202),
        ({}, "/v1/inbox/none", 404),
        ({"key": ""}, "/v1/inbox/none", 401),
        ({}, "/v1/inbox/quick", 404),
        ({}, "/v1/inbox/", 404),
        ({}, "/v1/inbox", 404),
        ({}, "/v1/inbox/orders/more", 404),
    ],
)
async def test_who_may_send_and_where(till: Till, sender: dict[str, Any], path: str, status: int) -> None:
    async with served(till) as endpoint, Sender(endpoint, **sender) as one:
        answer = await one.event(path, event("o-1"))
        assert answer.status_code == status
        assert ("semel-error" in answer.headers) is (status != 202)
        assert till.stored == (1 if status == 202 else 0)


async def test_a_token_may_come_in_the_query_for_who_has_no_more_than_a_url(till: Till) -> None:
    async with served(till) as endpoint, Sender(endpoint, key="") as sender:
        roles = ["semel.send:inbox/orders"]
        token = service_token(KEYS, f"{endpoint}{ORDERS}", now=time.time(), roles=roles)
        other = service_token(AccessKeys("x" * 44), f"{endpoint}{ORDERS}", now=time.time(), roles=roles)
        for query, status in ((token, 202), (other, 401), ("", 401), (f"{token}&access_token={token}", 400)):
            assert (await sender.event(f"{ORDERS}?access_token={query}", event("o-1"))).status_code == status


async def test_refusals_are_empty_and_say_what_to_correct(till: Till) -> None:
    async with served(till) as endpoint, Sender(endpoint) as sender:
        for body, headers, status in (
            (b"{}", {"content-type": "application/json"}, 400),
            (b"x" * (256 * 1024 + 1), BINARY, 413),
            (b"x" * (2 * 1024 * 1024 + 1), BINARY, 413),
            (b"", {"content-type": "application/cloudevents+avro"}, 415),
        ):
            answer = await sender.post(ORDERS, body, headers)
            assert (answer.status_code, "semel-error" in answer.headers) == (status, True)
        answer = await sender.ask("GET", ORDERS)
        assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS, POST")


async def test_a_sender_asks_before_it_sends_and_needs_no_token_for_that(till: Till) -> None:
    async with served(till, origins=("semel.example",)) as endpoint, Sender(endpoint, key="") as sender:
        ask = {"WebHook-Request-Origin": "semel.example", "WebHook-Request-Callback": "http://127.0.0.1:1/"}
        for path in (ORDERS, "/v1/inbox/none"):
            answer = await sender.ask("OPTIONS", path, headers=ask)
            assert (answer.status_code, answer.headers["webhook-allowed-origin"]) == (200, "semel.example")
        refused = await sender.ask("OPTIONS", ORDERS, headers={"WebHook-Request-Origin": "evil.example"})
        assert (refused.status_code, "webhook-allowed-origin" in refused.headers) == (403, False)


async def test_while_the_store_is_away_senders_are_told_to_come_again(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("sqlite:///secret.db cannot be reached")

    async with served(till) as endpoint, Sender(endpoint) as sender:
        with monkeypatch.context() as trouble:
            trouble.setattr(till.app.store, "commit", away)
            answer = await sender.event(ORDERS, event("o-1"))
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "secret" not in answer.headers["semel-error"]
            assert "the inbox" in (await sender.ask("GET", "/healthz")).text
        assert (await sender.event(ORDERS, event("o-1"))).status_code == 202
        assert "inbox" not in (await sender.ask("GET", "/healthz")).text
    await till.drain()
    assert till.charged == ["o-1"]


async def test_a_store_that_does_not_answer_keeps_nobody_waiting(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_entrance, "STORE_S", 0.1)
    hold = asyncio.Event()
    loop, commit = asyncio.get_running_loop(), till.app.store.commit

    def slow(units: Any) -> Any:
        asyncio.run_coroutine_threadsafe(hold.wait(), loop).result()
        return commit(units)

    async with served(till) as endpoint, Sender(endpoint) as sender:
        monkeypatch.setattr(till.app.store, "commit", slow)
        answer = await sender.event(ORDERS, event("o-1"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        hold.set()
        monkeypatch.setattr(http_entrance, "STORE_S", scaled(10))
        assert (await sender.event(ORDERS, event("o-1"))).status_code == 202, "what was stored late is a duplicate"
    await till.drain()
    assert till.charged == ["o-1"]


async def test_a_full_endpoint_takes_no_more_until_its_handlers_have_caught_up(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_entrance, "LOOK_S", 0.0)
    monkeypatch.setattr(http_entrance, "LOOK_SHARE", 1e9)
    async with served(till, backlog=2) as endpoint, Sender(endpoint) as sender:
        assert (await sender.event(ORDERS, event("o-1"), event("o-2"))).status_code == 202
        answer = await sender.event(ORDERS, event("o-3"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        await till.drain()
        assert (await sender.event(ORDERS, event("o-3"))).status_code == 202


async def test_many_at_once_share_commits_and_each_is_answered(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    commits, commit = 0, till.app.store.commit

    def counted(units: Any) -> Any:
        nonlocal commits
        commits += 1
        return commit(units)

    monkeypatch.setattr(till.app.store, "commit", counted)
    async with served(till) as endpoint, Sender(endpoint) as sender:
        found = await asyncio.gather(*(sender.event(ORDERS, event(f"o-{number % 50}")) for number in range(100)))
        assert {answer.status_code for answer in found} == {202}
        assert till.stored == 50
        assert commits < 100
        figures = (await sender.ask("GET", "/metrics")).text
        assert 'semel_inbox_http_total{endpoint="orders",outcome="duplicate"} 50.0' in figures


# -- on PostgreSQL


def test_what_comes_at_once_from_several_servers_is_stored_once(postgres_url: str) -> None:
    """Two servers in front of one database, each with a thread of its own."""
    app = App(postgres_url, name="pg")
    seen: list[str] = []

    @app.endpoint("orders").on("order.placed")
    def note(order: dict) -> None:
        seen.append(order["id"])

    headers = {"content-type": BATCH}
    body = json.dumps([event(f"o-{number}") for number in range(20)]).encode()

    async def send(entrance: HttpEntrance) -> list[int]:
        request = HttpRequest("POST", ORDERS, headers=headers, body=body)
        return [
            answer.status for answer in await asyncio.gather(*(entrance.respond(request, "orders") for _ in range(5)))
        ]

    async def both() -> list[list[int]]:
        entrances = [HttpEntrance(app, None) for _ in range(2)]
        found = await asyncio.gather(*(send(entrance) for entrance in entrances))
        for entrance in entrances:
            entrance.close()
        return list(found)

    assert asyncio.run(both()) == [[202] * 5] * 2
    app.drain(scaled(60))
    app.close()
    assert sorted(seen) == sorted(f"o-{number}" for number in range(20))


# -- a hub in front


@asynccontextmanager
async def hub_before(
    inbox: str, store: MemoryStore, auth: str = "key", system: Sequence[str] = ("connect", "connected")
) -> AsyncIterator[str]:
    """A server with a hub whose event handler is an endpoint of the inbox."""
    handlers = Handlers(HUB, (event_handler(f"{inbox}{ORDERS}", system, "*", auth),))
    parts = [partial(PubSub, settings=PubSubSettings(handlers={HUB: handlers})), LedgerPart]
    async with serving(store, SERVER, parts) as listening:
        yield listening.endpoint


async def say(endpoint: str, ack_id: int, **metadata: str) -> dict[str, Any]:
    """One connection, one event, one answer."""
    client = await connect(endpoint)
    hello = await client.hear()
    assert hello["event"] == "connected"
    body = {"id": "o-7", "order": {"id": 7}}
    await client.send(type="event", event="order", dataType="json", data=body, ackId=ack_id, metadata=metadata or None)
    answer = await client.hear()
    await client.close()
    return answer


async def test_a_hub_s_event_handler_is_an_endpoint_and_a_lost_session_is_one_effect(till: Till) -> None:
    """The leak 'lost client session': after 1008 the client sends the same event over another connection, under
    another ce-source and ce-id. Only the application's own id says that it is the same."""
    hub = MemoryStore()
    async with served(till) as inbox, hub_before(inbox, hub) as endpoint:
        for ack_id in (1, 2):
            answer = await say(endpoint, ack_id, **{"semel-id": "order-7"})
            assert (answer["type"], answer["success"]) == ("ack", True), "an empty answer is no message"
        assert (await say(endpoint, 1))["success"], "without an id it is another event"
    await till.drain()
    charged = till.charged
    assert (len(charged), charged.count("order-7")) == (2, 1)
    letters = [letter.type for letter in till.app.dead_letters("orders")]
    assert {type.rpartition(".")[2] for type in letters} <= {"connect", "connected"}, "no handler for those"
    inbox_kinds = [each.event.kind for each in till.app.store.history("order-7") if "inbox/orders" in each.event.hop]
    assert inbox_kinds == [Kind.ACCEPTED, Kind.DUPLICATE, Kind.HANDLED]
    assert [each.event.kind for each in hub.history("order-7")].count(Kind.ACCEPTED) == 2


async def test_a_client_whose_session_ends_under_its_event_sends_it_again_and_it_is_one_effect(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with Semel's own client, which does it by itself: the event is stored, the answer is still on its way,
    and the server ends the session."""
    hub, hold, receive = MemoryStore(), threading.Event(), till.app.receive

    def slow(endpoint: str, envelopes: Sequence[Envelope]) -> list[Verdict]:
        verdicts = receive(endpoint, envelopes)
        assert hold.wait(scaled(60))
        return verdicts

    monkeypatch.setattr(till.app, "receive", slow)
    monkeypatch.setattr(http_entrance, "STORE_S", scaled(60))

    async def until(count: int) -> None:
        def is_there() -> bool:
            kinds = [each.event.kind for each in hub.history("order-7")]
            return kinds.count(Kind.ACCEPTED) >= count and till.stored > 0

        await asyncio.to_thread(wait_until, is_there, f"event number {count}")

    async with served(till) as inbox, hub_before(inbox, hub, system=()) as endpoint, Sender(endpoint) as operator:
        url = f"{endpoint}/client/hubs/{HUB}"
        address = f"{url.replace('http', 'ws', 1)}?access_token={client_token(KEYS, url, now=time.time())}"
        try:
            async with asyncio.timeout(scaled(60)), WebPubSubClient(address) as client:
                sending = asyncio.create_task(client.send_event("order", {"id": "o-7"}, id="order-7"))
                await until(1)
                closed = await operator.post(f"/api/hubs/{HUB}/:closeConnections?api-version=2024-12-01")
                assert closed.status_code == 204
                await until(2)
                hold.set()
                assert await sending
        finally:
            hold.set()
    await till.drain()
    assert till.charged == ["order-7"]
    assert len({each.event.delivery for each in hub.history("order-7")}) == 2, "over two connections"


async def test_a_field_of_the_body_is_the_id_where_the_endpoint_names_it(tmp_path: Path) -> None:
    till = Till(tmp_path, id_field="order.id")
    async with served(till) as inbox, hub_before(inbox, MemoryStore()) as endpoint:
        for ack_id in (1, 2):
            assert (await say(endpoint, ack_id))["success"]
    await till.drain()
    assert till.charged == ["7"]
    till.app.close()


async def test_a_hub_without_the_key_is_refused_and_its_client_told(till: Till) -> None:
    async with served(till) as inbox, hub_before(inbox, MemoryStore(), auth="none") as endpoint:
        with pytest.raises(InvalidStatus) as refused:
            await say(endpoint, 1)
    assert refused.value.response.status_code == 401
    assert till.stored == 0


# -- the journey


async def test_one_id_goes_from_a_client_over_hub_inbox_and_outbox_to_a_subscriber(till: Till) -> None:
    hub, room = MemoryStore(), "room"
    till.app.hub = connection_string("http://later.example", KEY)

    @till.orders.on("azure.webpubsub.user.pay")
    def pay(order: dict, envelope: Envelope, db: sqlite3.Connection, outbox: Outbox) -> None:
        db.execute("INSERT INTO charge VALUES (?, ?)", (envelope.id, json.dumps(order)))
        outbox.publish({"paid": order["id"]}, to=f"hub:{HUB}/group/{room}", id=envelope.id, type="receipt")

    async with served(till) as inbox, hub_before(inbox, hub) as endpoint:
        till.app.hub = connection_string(endpoint, KEY)
        roles = ["webpubsub.joinLeaveGroup"]
        url = f"{endpoint}/client/hubs/{HUB}"
        token = client_token(KEYS, url, now=time.time(), roles=roles)
        address = f"{url.replace('http', 'ws', 1)}?access_token={token}"
        async with (
            WebPubSubClient(address) as subscriber,
            WebPubSubClient(address) as payer,
            InboxService(till.app),
            asyncio.timeout(scaled(60)),
        ):
            await subscriber.join_group(room)
            assert await payer.send_event("pay", {"id": 7}, id="order%207")
            message = await anext(aiter(subscriber))
    assert (message.id, message.data) == ("order%207", {"paid": 7})


async def test_the_journey_of_a_message_is_one_timeline_over_all_stores(till: Till) -> None:
    hub = MemoryStore()
    stores = {"till": lambda: till.app.store}
    async with served(till) as inbox, hub_before(inbox, hub) as endpoint:
        assert (await say(endpoint, 1, **{"semel-id": "order-7"}))["success"]
    await till.drain()
    async with serving(hub, SERVER, [partial(LedgerPart, others=stores)]) as listening:
        async with Sender(listening.endpoint, roles=["semel.read"]) as sender:
            told = (await sender.ask("GET", "/v1/ledger?message=order-7")).json()
            assert (await sender.ask("GET", "/v1/ledger")).status_code == 400
        async with Sender(listening.endpoint, roles=["semel.send:*"]) as sender:
            assert (await sender.ask("GET", "/v1/ledger?message=order-7")).status_code == 403
    assert (told["message"], told["stores"], told["whole"]) == ("order-7", ["server", "till"], True)
    steps = [(each["store"], each["hop"], each["kind"]) for each in told["entries"]]
    assert steps[0] == ("server", "client>hub/chat/events", "accepted")
    assert [step for step in steps if step[0] == "till"][:2] == [
        ("till", "inbox/orders>handler", "accepted"), ("till", "inbox/orders>handler", "handled"),
    ]  # fmt: skip
    assert any(hop.startswith("outbox/till") for _, hop, _ in steps), "the handler passed the id on"
    assert told["entries"][0]["delivery"].endswith("#1")
    assert [each["at"] for each in told["entries"]] == sorted(each["at"] for each in told["entries"])


async def test_a_store_that_is_away_is_named_and_one_that_has_two_names_tells_once(till: Till) -> None:
    def away() -> Store:
        raise StoreUnavailable("sqlite:///secret.db cannot be reached")

    hub = MemoryStore()
    hub.commit([Unit((Log(Event(Kind.HANDLED, "inbox/orders>handler", message="o-1")),))])
    parts = [partial(LedgerPart, others={"again": lambda: hub, "inbox": away})]
    async with serving(hub, SERVER, parts) as listening, Sender(listening.endpoint) as sender:
        told = (await sender.ask("GET", "/v1/ledger?message=o-1")).json()
    assert (told["stores"], told["away"], told["whole"], len(told["entries"])) == (["server"], ["inbox"], False, 1)


# -- semel serve

SHOP = """
import sqlite3
from semel import App, Envelope

app = App("sqlite:///shop.db", name="shop")
orders = app.endpoint("orders")


@orders.on("order.placed", key=lambda order: order["id"])
def charge(order: dict, envelope: Envelope, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS charge (id TEXT)")
    db.execute("INSERT INTO charge VALUES (?)", (envelope.id,))
"""
BARE = '[inbox]\nstore = "sqlite:///shop.db"\nname = "shop"\n[[inbox.endpoint]]\nname = "orders"\n'


@pytest.mark.parametrize("settings", ['[inbox]\napp = "shop:app"\n', BARE], ids=["app", "bare store"])
async def test_semel_serve_has_the_endpoints_of_an_application_or_of_a_bare_store(
    tmp_path: Path, settings: str
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "semel.toml").write_text(settings)
    server = ServeProcess(f"sqlite:///{tmp_path}/semel.db", tmp_path / "serve.log")
    await server.start()
    try:
        async with Sender(f"http://127.0.0.1:{server.port}") as sender:
            assert (await sender.event(ORDERS, event("o-1"))).status_code == 202
            await server.kill()
            await server.start()
            assert (await sender.event(ORDERS, event("o-1"))).status_code == 202
            overview = (await sender.ask("GET", "/v1/overview")).json()
            assert overview["parts"]["inbox"]["endpoints"] == ["orders"]
            told = (await sender.ask("GET", "/v1/ledger?message=o-1")).json()
            assert [each["kind"] for each in told["entries"]] == ["accepted", "duplicate"]
    finally:
        await server.stop()
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import shop; print(shop.app.drain())", cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await run.communicate()
    assert said == b"1\n"
    db = sqlite3.connect(tmp_path / "shop.db")
    assert db.execute("SELECT id FROM charge").fetchall() == [("o-1",)]
    db.close()
