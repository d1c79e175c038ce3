"""What operators ask of a server: health, metrics, lists, and messages as they come."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.pubsub.hub.world import World

from semel.auth.keys import DEV_KEY, AccessKeys
from semel.auth.tokens import service_token
from semel.errors import (
    CommitInDoubt,
    StoreBroken,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreGone,
    StoreInRecovery,
    StoreReadOnly,
    StoreUnavailable,
)
from semel.http import HttpError, HttpRequest
from semel.kernel.effects import Close, Notify
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.ops import Append, Outcome, Put, PutBlob, Trim, Unit
from semel.kernel.position import Position
from semel.pubsub.hub.calls import Group, Publish
from semel.pubsub.hub.context import HubCounts
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.protocol.messages import Data, DataType
from semel.runtime.host import store_watch
from semel.runtime.host.outages import Outages
from semel.runtime.host.performer import CommitTimes, Performer
from semel.runtime.server import pubsub_admin
from semel.runtime.server.operating import MACHINE_FAILED, Metrics
from semel.runtime.server.part import Part, ServerSettings
from semel.runtime.server.pubsub import TOPICS, PubSub, Traffic, hub_metrics
from semel.runtime.server.pubsub_admin import read_page
from semel.runtime.server.server import Server, StorePart
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled

KEYS = AccessKeys(DEV_KEY)
HOST = "127.0.0.1:8080"
HUBS = "/v1/pubsub/hubs"
MESSAGES = f"{HUBS}/chat/messages"


class Store(MemoryStore):
    """One that can be away, or take its time."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.trouble: StoreError = StoreUnavailable("no store at /secret")
        self.answers = threading.Event()
        self.answers.set()
        self.looks = 0
        self.is_watched = asyncio.Event()

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        self.is_watched.set()
        return super().listen(wake)

    def check(self) -> None:
        self.looks += 1
        self.answers.wait(scaled(30))
        if self.is_away:
            raise self.trouble

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        if self.is_away:
            raise self.trouble
        return super().commit(units)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def server(store: Store) -> AsyncIterator[Server]:
    async with Performer(store) as performer:
        yield Server(performer, ServerSettings(KEYS), [PubSub])


async def ask(
    server: Server, path: str, query: str = "", *, token: bool = True, roles: tuple[str, ...] = (), method: str = "GET"
) -> tuple[int, Any]:
    made = service_token(KEYS, f"http://{HOST}{path}", now=time.time(), roles=roles)
    headers = {"authorization": f"Bearer {made}"} if token else {}
    listener, request = server.listener, HttpRequest(method, path, query, headers, host=HOST)
    mount = listener.find(path)
    try:
        response = await listener.handle(request, mount)
    except HttpError as error:
        response = mount.errors(error)
    is_json = ("content-type", "application/json") in response.headers
    return response.status, msgspec.json.decode(response.body) if is_json else response.body.decode()


def pubsub(server: Server) -> PubSub:
    return next(part for part in server.parts if isinstance(part, PubSub))


def append(store: MemoryStore, *bodies: str, target: str = "g/news", kind: RecordKind = RecordKind.MESSAGE) -> None:
    for body in bodies:
        envelope = Envelope(body, data=body.encode(), datacontenttype="text/plain")
        store.commit([Unit((Append("hub/chat", envelope, kind=kind, target=target),))])


# -- health


async def is_ready_again(server: Server) -> None:
    async with asyncio.timeout(scaled(30)):
        while True:
            if (await ask(server, "/readyz", token=False))[0] == 200:
                return
            await asyncio.sleep(0)


async def test_health_is_open_to_all(server: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_watch, "KEEP_S", 0.0)
    assert await ask(server, "/healthz", token=False) == (200, "ok\n")
    assert await ask(server, "/readyz", token=False) == (200, "ready\n")
    assert (await ask(server, "/readyz", token=False, method="POST"))[0] == 405
    store.is_away = True
    status, words = await ask(server, "/readyz", token=False)
    assert status == 503
    assert "does not answer" in words
    assert "secret" not in words
    status, words = await ask(server, "/healthz", token=False)
    assert status == 200
    assert "does not answer" in words
    store.is_away = False
    await is_ready_again(server)
    assert await ask(server, "/healthz", token=False) == (200, "ok\n")
    await server.store.watch._performer.close()
    assert store.state("trial/local") is None
    await server.stop()
    assert await ask(server, "/readyz", token=False) == (503, "the server is stopping\n")


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (StoreFull("no space left for /secret"), "no space left"),
        (StoreBusy("/secret is locked"), "another program holds the lock"),
        (StoreInRecovery("secret is in recovery"), "in recovery"),
        (StoreReadOnly("/secret may not be written"), "may not be written"),
        (CommitInDoubt("secret broke", marker="m"), "what became of a commit"),
    ],
)
async def test_what_is_wrong_is_said_until_it_is_over(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch, trouble: StoreError, words: str
) -> None:
    monkeypatch.setattr(store_watch, "KEEP_S", 0.0)
    store.trouble, store.is_away = trouble, True
    status, said = await ask(server, "/readyz", token=False)
    assert status == 503
    assert words in said
    assert "by itself" in said
    assert "secret" not in said
    assert (await ask(server, "/healthz", token=False))[0] == 200
    store.is_away = False
    await is_ready_again(server)


@pytest.mark.parametrize(
    ("trouble", "words", "health"),
    [
        (StoreBroken("an I/O error struck /secret"), "I/O error", 503),
        (StoreGone("/secret is gone"), "removed or replaced", 200),
    ],
)
async def test_a_store_that_needs_a_restart_is_never_ready_again(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch, trouble: StoreError, words: str, health: int
) -> None:
    monkeypatch.setattr(store_watch, "KEEP_S", 0.0)
    store.trouble, store.is_away = trouble, True
    for path, expected in (("/readyz", 503), ("/healthz", health)):
        status, said = await ask(server, path, token=False)
        assert status == expected
        assert words in said
        assert "restart" in said
        assert "secret" not in said
    store.is_away = False
    assert (await ask(server, "/readyz", token=False))[0] == 503
    assert (await ask(server, "/healthz", token=False))[0] == health


async def test_a_store_that_hangs_is_asked_once(server: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_watch, "SLOW_S", 0.01)
    before = store.looks
    store.answers.clear()
    for _ in range(5):
        assert (await ask(server, "/readyz"))[0] == 503
    assert store.looks == before + 1
    store.answers.set()


async def test_the_store_is_spared_however_often_one_asks(server: Server, store: Store) -> None:
    before = store.looks
    for _ in range(20):
        assert (await ask(server, "/readyz"))[0] == 200
    assert store.looks == before + 1


async def test_a_commit_that_takes_too_long_is_trouble_until_it_is_made(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "SLOW_S", 0.0)
    gate = threading.Event()
    commit = store.commit
    monkeypatch.setattr(store, "commit", lambda units: gate.wait(scaled(30)) and commit(units))
    performer = server.store.watch._performer
    performer.submit((Put("x", b"1"),), None, lambda _: None)
    async with asyncio.timeout(scaled(30)):
        while performer.outages.current is None:
            await asyncio.sleep(0.001)
            server.store.watch.look()
    assert (await ask(server, "/readyz"))[0] == 503
    gate.set()
    monkeypatch.setattr(store_watch, "SLOW_S", scaled(30))
    await is_ready_again(server)


# -- metrics


async def test_metrics_are_for_who_may_read(server: Server, store: Store) -> None:
    assert (await ask(server, "/metrics", token=False))[0] == 401
    assert (await ask(server, "/metrics", roles=("semel.send:x",)))[0] == 403
    status, text = await ask(server, "/metrics", roles=("semel.read",))
    assert status == 200
    assert "semel_hubs 0.0\n" in text
    async with Performer(store) as performer:
        shown = Server(performer, ServerSettings(KEYS, open_metrics=True), [PubSub])
        assert (await ask(shown, "/metrics", token=False))[0] == 200


# -- lists


async def test_hubs_that_are_stored_and_hubs_that_are_used(server: Server, store: Store) -> None:
    rows = (Put("hub/chat/session/a", b"x"), Put("hub/chat0/acks/b", b"x"), Put("hub/chat.x/acks/c", b"x"))
    store.commit([Unit(rows), Unit((Put("hub/chat/session/a", None),))])
    await pubsub(server).hub("used")
    status, found = await ask(server, HUBS)
    assert status == 200
    here = {"connected": 0, "waiting": 0, "elsewhere": 0, "groups": 0}
    assert {"name": "used", "here": here} in found["hubs"]
    assert {hub["name"] for hub in found["hubs"]} == {"used", "chat0", "chat.x"}
    assert (await ask(server, f"{HUBS}/used/groups")) == (200, {"groups": [], "next": None})
    assert (await ask(server, f"{HUBS}/used/nothing"))[0] == 404


async def test_who_looks_makes_no_hub(server: Server, store: Store) -> None:
    store.commit([Unit((Put("hub/chat/session/a", b"x"), Put("hubs/news", b"x")))])
    for sort in ("connections", "groups"):
        assert await ask(server, f"{HUBS}/caht/{sort}", roles=("semel.read",)) == (200, {sort: [], "next": None})
        assert await ask(server, f"{HUBS}/cha/{sort}") == (200, {sort: [], "next": None})
    assert {hub["name"] for hub in (await ask(server, HUBS))[1]["hubs"]} == {"chat"}
    assert await ask(server, f"{HUBS}/news/groups") == (200, {"groups": [], "next": None})
    assert {hub["name"] for hub in (await ask(server, HUBS))[1]["hubs"]} == {"chat", "news"}


async def test_a_store_that_is_away_is_not_an_empty_hub(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: object) -> bool:
        raise StoreUnavailable("not there")

    monkeypatch.setattr(pubsub_admin, "is_known", away)
    assert (await ask(server, f"{HUBS}/chat/groups"))[0] == 503


# -- messages


async def test_messages_are_told_as_they_come(server: Server, store: Store) -> None:
    chat = await pubsub(server).hub("chat")
    _, found = await ask(server, MESSAGES)
    assert found["messages"] == []
    store.is_watched.clear()
    waiting = asyncio.create_task(ask(server, MESSAGES, f"after={found['after']}&wait=30"))
    await store.is_watched.wait()
    await chat.call(Publish(Group("news"), Data(DataType.TEXT, b"hello")))
    async with asyncio.timeout(scaled(30)):
        _, page = await waiting
    assert [message["data"] for message in page["messages"]] == ["hello"]
    assert pubsub(server)._admin._changes._watching == set()


async def test_whoever_waits_is_answered_when_the_time_is_up_or_the_server_stops(server: Server, store: Store) -> None:
    _, found = await ask(server, MESSAGES)
    _, page = await ask(server, MESSAGES, f"after={found['after']}&wait=1")
    assert (page["messages"], page["after"]) == ([], found["after"])
    store.is_watched.clear()
    waiting = asyncio.create_task(ask(server, MESSAGES, f"after={found['after']}&wait=30"))
    await store.is_watched.wait()
    await server.stop()
    async with asyncio.timeout(scaled(30)):
        assert (await waiting)[1]["messages"] == []


async def test_what_is_stored_can_be_read_from_its_start(server: Server, store: Store) -> None:
    append(store, "a", "b", "c")
    _, page = await ask(server, MESSAGES, "after=start&limit=2")
    assert [message["data"] for message in page["messages"]] == ["a", "b"]
    _, rest = await ask(server, MESSAGES, f"after={page['after']}")
    assert [message["data"] for message in rest["messages"]] == ["c"]
    store.commit([Unit((Trim("hub/chat", 3),))])
    _, late = await ask(server, MESSAGES, "after=1:0")
    assert (late["messages"], late["missed"]) == ([], 2)
    _, left = await ask(server, MESSAGES, "after=start")
    assert [message["data"] for message in left["messages"]] == ["c"]
    assert (await ask(server, MESSAGES, "after=7:1"))[0] == 410


def test_a_page_passes_over_what_is_no_message_and_for_others(store: Store) -> None:
    append(store, "a", "b", target="g/sport")
    append(store, "x", kind=RecordKind.JOIN)
    append(store, "c", "d")
    begin = Position("hub/chat", store.epoch, 0)
    page = read_page(store, begin, "g/news", 1)
    assert ([record.envelope.id for record in page.records], page.after.offset) == (["c"], 4)
    page = read_page(store, begin, "g/music", 10)
    assert (list(page.records), page.after.offset, page.missed) == ([], 5, 0)
    assert len(read_page(store, begin, None, 10).records) == 4


def test_a_page_ends_when_it_is_large_enough(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub_admin, "PAGE_BYTES_MAX", 5)
    blob = Blob("b1", 6)
    large = Append("hub/chat", Envelope("large", blob=blob), target="g/news")
    store.commit([Unit((PutBlob("b1", 0, b"abc"), PutBlob("b1", 1, b"def"), large))])
    append(store, "1234", "5", "6")
    begin = Position("hub/chat", store.epoch, 0)
    pages = []
    while (page := read_page(store, begin, None, 10)).records:
        pages.append([record.body or record.envelope.data for record in page.records])
        begin = page.after
    assert pages == [[b"abcdef"], [b"1234", b"5"], [b"6"]]


# -- every metric is there from the start, says what is so, and is in the documentation


ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "how-to" / "operate-the-server.md").read_text()


class Hubs(Part):
    """Pub/sub with this traffic."""

    name = "pubsub"
    topics = TOPICS

    def __init__(self, *traffic: Traffic) -> None:
        self._traffic = traffic

    def metrics(self) -> Iterable[Metric]:
        return hub_metrics(self._traffic)


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def test_what_hubs_and_their_links_say() -> None:
    world = World()
    world.connect("ann", "Ann", groups=("news",))
    world.connect("bob", groups=("news",))
    world.drop("bob")
    world.publish("ann", "news", "four")
    counts = HubCounts()
    counts.accepted, counts.deliveries = 1, 2
    hub: Any = world.hub
    hub.counts = counts
    metrics = Metrics("n1", [Hubs(Traffic("chat", hub, 1, 7, 9, 3, 1), Traffic("new", None, 0, 0, 0))])
    found = samples(metrics)
    assert found["semel_hubs",] == 2
    assert found["semel_hub_connections", "chat"] == 1
    assert found["semel_hub_sessions_waiting", "chat"] == 1
    assert found["semel_hub_groups", "chat"] == 1
    assert found["semel_hub_backlog_messages", "chat"] == 2
    assert found["semel_hub_backlog_bytes", "chat"] == 8
    assert found["semel_hub_backlog_longest", "chat"] == 1
    assert found["semel_hub_frames_received_total", "chat"] == 7
    assert found["semel_hub_frames_sent_total", "chat"] == 9
    assert found["semel_hub_handler_requests_total", "chat"] == 3
    assert found["semel_hub_handler_failures_total", "chat"] == 1
    assert (found["semel_hub_accepted_total", "chat"], found["semel_hub_deliveries_total", "chat"]) == (1, 2)
    assert ("semel_hub_groups", "new") not in found


def test_how_long_commits_take() -> None:
    times = CommitTimes()
    for took_s, commits in ((0.0005, 1), (0.001, 20), (0.003, 300), (60.0, 1)):
        times.add(took_s, commits)
    performer = Mock(spec=Performer, store=MemoryStore(), commit_times=times, outages=Outages())
    found = samples(Metrics("n1", [StorePart(performer)]))
    assert found["semel_commits_total",] == 322
    assert found["semel_transaction_seconds_count",] == 4
    assert found["semel_transaction_seconds_sum",] == pytest.approx(60.0045)
    assert found["semel_transaction_seconds_bucket", "0.001"] == 2
    assert found["semel_transaction_seconds_bucket", "0.005"] == 3
    assert found["semel_transaction_seconds_bucket", "10.0"] == 3
    assert found["semel_transaction_seconds_bucket", "+Inf"] == 4


def test_what_is_reported_and_answered_is_counted() -> None:
    metrics = Metrics("n1", [Hubs()])
    metrics.observe("hub/chat", Notify("backlog", "c1 is closed"))
    metrics.observe("hub/chat", Notify("something new", ""))
    metrics.observe("hub/chat", Close("finished"))
    metrics.responded(202)
    found = samples(metrics)
    assert found["semel_notices_total", "backlog"] == 1
    assert found["semel_notices_total", "something new"] == 1
    assert found["semel_notices_total", "slow-client"] == 0
    assert found["semel_http_responses_total", "202"] == 1
    assert found["process_resident_memory_bytes",] > 0


def test_two_servers_in_one_process_do_not_mix() -> None:
    first, second = Metrics("a", []), Metrics("b", [])
    first.responded(200)
    assert ("semel_http_responses_total", "200") not in samples(second)


def test_every_metric_and_topic_is_documented() -> None:
    hub: Any = World().hub
    hub.counts = HubCounts()
    performer = Mock(spec=Performer, store=MemoryStore(), commit_times=CommitTimes(), outages=Outages())
    metrics = Metrics("n", [StorePart(performer), Hubs(Traffic("h", hub, 0, 0, 0))])
    metrics.responded(200)
    names = {re.sub("_(bucket|count|sum)$", "", name) for name, *_ in samples(metrics) if name.startswith("semel_")}
    documented = set(re.findall(r"^\| `(semel_\w+)", PAGE, re.MULTILINE))
    assert documented == names
    for topic in (*TOPICS, MACHINE_FAILED):
        assert f"`{topic}`" in PAGE


def test_every_topic_that_a_hub_reports_is_known() -> None:
    sources = (ROOT / "src" / "semel" / "pubsub").rglob("*.py")
    reported = {
        topic
        for source in sources
        for topic in re.findall(r'context\.(?:notify|report|report_once)\(\s*"([a-z-]+)"', source.read_text())
    }
    assert reported == set(TOPICS)
