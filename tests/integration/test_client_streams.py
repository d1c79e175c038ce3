"""Streams and group states of our own client against a real `semel serve`: through cuts at any byte, kill -9 of the
server, and lost sessions."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.messaging.webpubsubservice import WebPubSubServiceClient
from tests.integration.test_client import OPTIONS, WAIT_S
from tests.interop.served import HUB, KEY, ROLES, Served
from tests.tools.held_proxy import drop_all, hold_answers

from semel import ClientOptions, SyncWebPubSubClient, WebPubSubClient
from semel.errors import Forbidden, InputError, StreamBroken
from semel.pubsub.client.data import GroupStateChange
from semel.pubsub.client.events import Online, Recovered, SessionLost, State
from semel.pubsub.protocol.frames import Subprotocol
from semel.runtime.client.inbox import IncomingStream
from semel.runtime.client.streams import OutgoingStream
from semel.runtime.client.sync import SyncIncomingStream
from semel.testing.byte_faults import ByteFault, ByteProxy
from semel.testing.limits import scaled, wait_until

pytestmark = [pytest.mark.connected, pytest.mark.timeout(120)]

NOBODY = ("127.0.0.1", 9)
CUTS = (ByteFault.RESET, ByteFault.TORN, ByteFault.END, ByteFault.TORN)


@asynccontextmanager
async def proxy_to(served: Served, seed: int) -> AsyncIterator[ByteProxy]:
    proxy = ByteProxy(("127.0.0.1", served.port), seed=seed)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


def url_at(served: Served, user: str, port: int) -> str:
    """A token holds for one address, so a proxy needs its own."""
    text = f"Endpoint=http://127.0.0.1:{port};AccessKey={KEY};Version=1.0;"
    with WebPubSubServiceClient.from_connection_string(text, hub=HUB) as service:
        return str(service.get_client_access_token(user_id=user, roles=ROLES)["url"])


class Reader:
    """A client in a group that gathers streams. `ended` has each of them when it is over, with its error if any."""

    def __init__(self, client: WebPubSubClient) -> None:
        self.client = client
        self.ended: asyncio.Queue[tuple[IncomingStream, list[Any], StreamBroken | None]] = asyncio.Queue()
        client.on_stream(self._read)

    async def _read(self, stream: IncomingStream) -> None:
        parts: list[Any] = []
        error: StreamBroken | None = None
        try:
            async for part in stream:
                parts += [part.data]
        except StreamBroken as raised:
            error = raised
        self.ended.put_nowait((stream, parts, error))

    async def next(self) -> tuple[IncomingStream, list[Any], StreamBroken | None]:
        async with asyncio.timeout(scaled(WAIT_S)):
            return await self.ended.get()


@asynccontextmanager
async def member(
    served: Served, user: str, group: str, options: ClientOptions = OPTIONS, port: int | None = None
) -> AsyncIterator[tuple[WebPubSubClient, Reader]]:
    """One in a group, perhaps through a proxy."""
    client = WebPubSubClient(lambda: url_at(served, user, port or served.port), options=options)
    reader = Reader(client)
    async with client:
        await client.join_group(group)
        yield client, reader


async def write(stream: OutgoingStream, numbers: range, pause_s: float = 0.0) -> None:
    for number in numbers:
        await stream.write(number)
        await asyncio.sleep(pause_s)


# -- streams


@pytest.mark.parametrize("subprotocol", list(Subprotocol))
async def test_every_type_of_part_arrives_as_it_was_sent(served: Served, subprotocol: Subprotocol) -> None:
    group, options = f"parts {subprotocol.value}", ClientOptions(subprotocol)
    anything = b"\n\x0bexample/any\x12\x01x"
    sent: list[tuple[Any, str]] = [
        ({"a": [1, "ü", None]}, "json"), ("text ü", "text"), (b"\x00\xff", "binary"), (anything, "protobuf"),
        ("x" * 300_000, "text"),
    ]  # fmt: skip
    async with member(served, "ann", group, options) as (ann, _), member(served, "ben", group, options) as (_, ben):
        async with ann.stream_to_group(group, metadata={"k": "v"}, no_echo=True) as stream:
            for value, type in sent:
                await stream.write(value, type=type)
        got, parts, error = await ben.next()
        assert (got.id, got.group, got.metadata, got.is_whole, error) == (stream.id, group, {"k": "v"}, True, None)
        assert parts == [value for value, _ in sent]


async def test_through_cuts_at_any_byte_of_either_side_streams_arrive_whole(served: Served) -> None:
    states: list[State] = []
    async with (
        proxy_to(served, 7) as proxy,
        member(served, "ann", "cuts", port=proxy.port) as (ann, _),
        member(served, "ben", "cuts", port=proxy.port) as (ben, reader),
    ):
        ann.on_state(states.append)
        ben.on_state(states.append)

        async def send(first: int) -> None:
            async with ann.stream_to_group("cuts", id=f"from {first}") as stream:
                await write(stream, range(first, first + 400), 0.001)

        async def strike() -> None:
            for fault in (*CUTS, *CUTS):
                await asyncio.sleep(0.08)
                while not proxy.strike(fault):
                    proxy.linked.clear()
                    await proxy.linked.wait()

        async with asyncio.timeout(scaled(WAIT_S)), asyncio.TaskGroup() as doing:
            doing.create_task(send(0))
            doing.create_task(send(1000))
            doing.create_task(strike())
        found = [await reader.next(), await reader.next()]
        assert {stream.id: (parts, error) for stream, parts, error in found} == {
            "from 0": ([*range(400)], None),
            "from 1000": ([*range(1000, 1400)], None),
        }
        assert reader.ended.empty()
        assert not [state for state in states if isinstance(state, SessionLost)]
        assert sum(isinstance(state, Recovered) for state in states) >= 4


async def test_through_kill_9_of_the_server_a_stream_arrives_whole(mortal: Served) -> None:
    async with member(mortal, "ann", "kill") as (ann, _), member(mortal, "ben", "kill") as (_, reader):
        async with asyncio.timeout(scaled(WAIT_S)), ann.stream_to_group("kill") as stream:
            for turn in range(3):
                writing = asyncio.create_task(write(stream, range(turn * 200, turn * 200 + 200), 0.001))
                if turn:
                    await asyncio.sleep(0.05)
                    mortal.kill()
                    await asyncio.to_thread(mortal.start)
                await writing
        got, parts, error = await reader.next()
        assert (got.id, got.is_whole, error) == (stream.id, True, None)
        assert parts == [*range(600)]
        assert reader.ended.empty()


async def test_while_the_server_does_not_answer_a_writer_waits_and_keeps_no_more_than_it_may(served: Served) -> None:
    options = ClientOptions(stream_window=10, backoff=OPTIONS.backoff)
    written = 0

    async def write_all(stream: OutgoingStream) -> None:
        nonlocal written
        for number in range(40):
            await stream.write(number)
            written = number + 1

    async with (
        proxy_to(served, 1) as proxy,
        member(served, "ann", "slow", options, port=proxy.port) as (ann, _),
        member(served, "ben", "slow") as (_, reader),
        ann.stream_to_group("slow", id="s") as stream,
    ):
        hold_answers(proxy, scaled(WAIT_S))
        writing = asyncio.create_task(write_all(stream))
        await asyncio.to_thread(wait_until, lambda: written == 10, "as many parts as it may keep")
        for _ in range(100):  # nothing but the answer keeps it from writing on, so it would have had its turn
            await asyncio.sleep(0)
        assert written == 10
        assert not writing.done()
        drop_all(proxy)
        await asyncio.wait_for(writing, scaled(WAIT_S))
        await stream.end()
        assert (await reader.next())[1] == [*range(40)]


async def test_a_stream_that_is_idle_is_ended_on_both_sides_unless_it_is_kept_alive(served: Served) -> None:
    async with member(served, "ann", "idle") as (ann, _), member(served, "ben", "idle") as (_, reader):
        stream = await ann.stream_to_group("idle", idle_timeout_s=scaled(1.0)).open()
        await stream.write("one")
        for _ in range(4):
            await asyncio.sleep(scaled(0.4))
            await stream.keep_alive()
        await stream.write("two")
        await stream.flush()
        _, parts, error = await reader.next()
        assert parts == ["one", "two"]
        assert error is not None
        assert error.name == "IdleTimeout"
        with pytest.raises(StreamBroken, match="IdleTimeout") as raised:
            await stream.end()
        assert raised.value.parts == 2


async def test_what_a_sender_says_when_it_gives_up_its_receivers_hear(served: Served) -> None:
    async with member(served, "ann", "up") as (ann, _), member(served, "ben", "up") as (_, reader):
        stream = await ann.stream_to_group("up").open()
        await stream.write("half")
        await stream.flush()
        await stream.abort("no more", code="E7")
        with pytest.raises(ZeroDivisionError):
            async with ann.stream_to_group("up"):
                raise ZeroDivisionError
        for expected in (("UserError", "E7", ["half"]), ("UserError", None, [])):
            _, parts, error = await reader.next()
            assert error is not None
            assert (error.name, error.user_code, parts) == expected


async def test_with_the_session_of_its_sender_a_stream_ends_on_both_sides(served: Served) -> None:
    is_back = asyncio.Event()
    async with member(served, "ann", "lost") as (ann, _), member(served, "ben", "lost") as (_, reader):
        ann.on_state(lambda state: is_back.set() if isinstance(state, Online) else None)
        stream = await ann.stream_to_group("lost").open()
        await stream.write("one")
        await stream.flush()
        await asyncio.to_thread(served.service.close_connection, ann.connection_id, reason="test")
        _, parts, error = await reader.next()
        assert parts == ["one"]
        assert error is not None
        assert error.name == "Cancelled"
        async with asyncio.timeout(scaled(WAIT_S)):
            await is_back.wait()
        with pytest.raises(StreamBroken) as raised:
            await stream.write("two")
        assert (raised.value.name, raised.value.parts) == ("SessionGone", 1)
        async with ann.stream_to_group("lost") as again:
            await again.write("again")
        assert (await reader.next())[1:] == (["again"], None)


async def test_errors_of_streams_and_states_have_their_types(served: Served) -> None:
    async with WebPubSubClient(served.url("eve", roles=[])) as client:
        with pytest.raises(Forbidden):
            await client.stream_to_group("g").open()
        for asking in (client.set_group_state("g", {"a": "b"}), client.watch_group_state("g")):
            with pytest.raises(Forbidden):
                await asking
    async with WebPubSubClient(served.url("ann")) as client:
        with pytest.raises(InputError, match="4096"):
            await client.set_group_state("g", {"a": "x" * 5000})
        with pytest.raises(InputError, match="idle"):
            await client.stream_to_group("g", idle_timeout_s=90_000).open()


# -- group states


class Watch:
    """What a watcher has been told, put together."""

    def __init__(self, client: WebPubSubClient) -> None:
        self.seen: dict[str, dict[str, str]] = {}
        self._news = asyncio.Event()
        client.on_group_state(self._hear)

    def _hear(self, change: GroupStateChange) -> None:
        for item in change.changed:
            if item.state is None:
                del self.seen[item.connection_id]
            else:
                self.seen[item.connection_id] = item.state
        assert self.seen == {id: item.state for id, item in change.states.items()}
        self._news.set()

    async def until(self, expected: dict[str | None, dict[str, str]]) -> None:
        async with asyncio.timeout(scaled(WAIT_S)):
            while self.seen != expected:
                self._news.clear()
                await self._news.wait()


@pytest.mark.parametrize("subprotocol", list(Subprotocol))
async def test_a_watcher_sees_who_says_what(served: Served, subprotocol: Subprotocol) -> None:
    group, options = f"states {subprotocol.value}", ClientOptions(subprotocol)
    async with WebPubSubClient(served.url("ben"), options=options) as ben:
        watch = Watch(ben)
        async with WebPubSubClient(served.url("ann"), options=options) as ann:
            await ann.set_group_state(group, {"mood": "good", "at": "home"})
            there = await ben.watch_group_state(group)
            assert [(item.user_id, item.state) for item in there.values()] == [("ann", {"mood": "good", "at": "home"})]
            await ann.update_group_state(group, {"mood": "better", "at": None})
            await watch.until({ann.connection_id: {"mood": "better"}})
            await ben.set_group_state(group, {})
            await watch.until({ann.connection_id: {"mood": "better"}, ben.connection_id: {}})
            await ann.clear_group_state(group)
            await watch.until({ben.connection_id: {}})
            await ann.set_group_state(group, {"mood": "gone soon"})
            await watch.until({ann.connection_id: {"mood": "gone soon"}, ben.connection_id: {}})
        await watch.until({ben.connection_id: {}})


async def test_what_was_missed_during_a_kill_9_is_told_afterwards(mortal: Served) -> None:
    """The watcher is kept away until others have changed and left: also what is not there any more is told."""
    async with (
        proxy_to(mortal, 3) as proxy,
        member(mortal, "ben", "kill", port=proxy.port) as (ben, _),
        WebPubSubClient(lambda: mortal.url("ann"), options=OPTIONS) as ann,
    ):
        watch, other = Watch(ben), Watch(ann)
        for each in (ann, ben):
            await each.watch_group_state("kill")
        cem = await WebPubSubClient(lambda: mortal.url("cem"), options=OPTIONS).open()
        await ann.set_group_state("kill", {"n": "1"})
        await cem.set_group_state("kill", {"n": "1"})
        await watch.until({ann.connection_id: {"n": "1"}, cem.connection_id: {"n": "1"}})
        way, proxy.target = proxy.target, NOBODY
        drop_all(proxy)
        mortal.kill()
        await asyncio.to_thread(mortal.start)
        await ann.set_group_state("kill", {"n": "2"})
        await cem.set_group_state("kill", {"n": "2"})
        await cem.close()
        await other.until({ann.connection_id: {"n": "2"}})
        mortal.kill()
        await asyncio.to_thread(mortal.start)
        proxy.target = way
        await watch.until({ann.connection_id: {"n": "2"}})


async def test_a_new_session_says_the_same_as_the_one_before(served: Served) -> None:
    async with WebPubSubClient(served.url("ben")) as ben, WebPubSubClient(lambda: served.url("ann")) as ann:
        watch = Watch(ben)
        await ben.watch_group_state("again")
        await ann.set_group_state("again", {"n": "1"})
        before = ann.connection_id
        await watch.until({before: {"n": "1"}})
        is_back = asyncio.Event()
        ann.on_state(lambda state: is_back.set() if isinstance(state, Online) else None)
        await asyncio.to_thread(served.service.close_connection, before, reason="test")
        async with asyncio.timeout(scaled(WAIT_S)):
            await is_back.wait()
        assert ann.connection_id != before
        await watch.until({ann.connection_id: {"n": "1"}})


# -- without asyncio


def test_without_asyncio_it_is_the_same(served: Served) -> None:
    found: queue.Queue[list[Any]] = queue.Queue()
    changes: queue.Queue[GroupStateChange] = queue.Queue()
    with SyncWebPubSubClient(served.url("ann"), options=OPTIONS) as client:

        @client.on_stream
        def read(stream: SyncIncomingStream) -> None:
            found.put([part.data for part in stream])

        client.on_group_state(changes.put)
        client.join_group("sync")
        with client.stream_to_group("sync") as one, client.stream_to_group("sync") as two:
            for number in range(50):
                one.write(number)
                two.write(-number)
        got = sorted((found.get(timeout=scaled(WAIT_S)) for _ in range(2)), key=sum)
        assert got == [[-number for number in range(50)], [*range(50)]]
        assert client.watch_group_state("sync") == {}
        client.set_group_state("sync", {"mood": "good"})
        [item] = changes.get(timeout=scaled(WAIT_S)).changed
        assert (item.connection_id, item.state) == (client.connection_id, {"mood": "good"})
