"""Paths whose workers are at different nodes: real connections, real faults, nodes that end and come back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from semel.kernel.effects import Notify, Resume
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.kernel.ops import Append
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Records
from semel.pipes.language.notation import parse_path
from semel.pipes.workers.build import Built, build
from semel.pipes.workers.route import Parcel
from semel.pipes.workers.stage import Stage
from semel.runtime.host.performer import Performer
from semel.runtime.pipes.node import PipeNode
from semel.runtime.transports.tcp import TcpLimits, TcpTransport
from semel.stores import open_store
from semel.stores.memory import MemoryStore
from semel.testing.faults import FaultProxy, FrameFaults
from semel.testing.limits import scaled

SECRET = b"a secret of the test"
QUICK = TcpLimits(
    handshake_s=scaled(2.0), retry=RetryPolicy(interval_s=0.01, factor=1.5, interval_max_s=0.1, jitter=0.5)
)
VOLATILE = "A -[retries=inf,window=100,timeout=50ms,dedup=strict]-> B"
DURABLE = "A -[retries=inf,window=100,timeout=50ms,dedup=strict,durable=yes]-> B"
LEFT, RIGHT = {"B": "right"}, {"A": "left"}


def built(text: str) -> Built:
    return build(parse_path(text))


def messages(count: int, first: int = 1, **more: Any) -> list[Envelope]:
    return [Envelope(f"m{number}", **more) for number in range(first, first + count)]


def names(count: int) -> list[str]:
    return [envelope.id for envelope in messages(count)]


def transport(name: str, **options: Any) -> TcpTransport:
    return TcpTransport(name, **({"secret": SECRET, "limits": QUICK} | options))


class Sink:
    """A handler that keeps what it gets, and leaves it as an effect where a store is to keep it too."""

    def __init__(self, *, writes: bool = False) -> None:
        self.envelopes: list[Envelope] = []
        self.writes = writes

    def __call__(self, item: Any) -> list[Append]:
        self.envelopes.append(item.envelope)
        return [Append("effects", item.envelope)] if self.writes else []

    @property
    def ids(self) -> list[str]:
        return [envelope.id for envelope in self.envelopes]

    async def until(self, count: int, seconds: float = 20) -> list[str]:
        async with asyncio.timeout(scaled(seconds)):
            while len(self.envelopes) < count:  # noqa: ASYNC110 - it may be called on any thread
                await asyncio.sleep(0.005)
        return self.ids


@asynccontextmanager
async def node(name: str, store: Any = None, **options: Any) -> AsyncIterator[tuple[PipeNode, TcpTransport]]:
    async with Performer(store or MemoryStore()) as performer:
        tcp = transport(name)
        yield PipeNode(name, performer, tcp, **options), tcp


@asynccontextmanager
async def right(text: str, sink: Sink, store: Any = None, port: int = 0) -> AsyncIterator[tuple[PipeNode, int]]:
    """The node where the path ends."""
    async with node("right", store) as (made, tcp):
        await made.deploy(built(text), here={"B"}, nodes=RIGHT, handler=sink, inline=True)
        yield made, await tcp.listen(port=port)


@asynccontextmanager
async def left(text: str, port: int, store: Any = None, **options: Any) -> AsyncIterator[PipeNode]:
    """The node where the path begins."""
    async with node("left", store, **options) as (made, tcp):
        await made.deploy(built(text), here={"A"}, nodes=LEFT)
        tcp.dial("right", "127.0.0.1", port)
        yield made


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(scaled(30)):
        while not condition():  # noqa: ASYNC110 - what it waits for tells nobody
            await asyncio.sleep(0.005)


def effects(store: Any) -> list[str]:
    found = store.read("effects", None, 10_000)
    assert isinstance(found, Records)
    return [record.envelope.id for record in found.records]


# -- between nodes


@pytest.mark.parametrize("text", [VOLATILE, DURABLE])
async def test_messages_cross_a_connection_once_and_in_order(text: str) -> None:
    sink = Sink()
    async with right(text, sink) as (_, port), left(text, port) as sender:
        await sender.offer_all("A", messages(500))
        await sender.drained("A")
        assert await sink.until(500) == names(500)
        assert sender.astray == 0


@pytest.mark.parametrize(
    "text",
    [
        "A -> (P1 -> X -> P2){retries=inf,window=50,timeout=200ms,dedup=strict} -> B",
        "A -> (P1 -[retries=9]-> X -[retries=9]-> P2){retries=inf,window=50,timeout=200ms,dedup=id} -> B",
    ],
    ids=["bare middle", "middle with promises"],
)
async def test_a_pipe_goes_around_a_point_at_a_third_node(text: str) -> None:
    """The two ends have no connection with each other: messages and confirms both go through the node in between."""
    plan, sink = built(text), Sink()
    places = {"A": "left", "P1": "left", "X": "between", "P2": "right", "B": "right"}
    async with node("right") as (end, end_tcp), node("between") as (middle, middle_tcp), node("left") as (start, tcp):
        for each in (end, middle, start):
            here = {point for point, place in places.items() if place == each.name}
            await each.deploy(plan, here=here, nodes=places, handler=sink, inline=True)
        middle_tcp.dial("right", "127.0.0.1", await end_tcp.listen())
        tcp.dial("between", "127.0.0.1", await middle_tcp.listen())

        await start.offer_all("A", messages(200))
        async with asyncio.timeout(scaled(30)):
            await start.drained("P1")
        assert sorted(await sink.until(200)) == sorted(names(200))
        assert start.astray == middle.astray == end.astray == 0
        assert set(tcp._connections) == {"between"}


async def test_a_node_that_only_forwards_sends_on_at_once() -> None:
    """It has no worker whose tick would do it."""
    text = "A -> (P1 -> X -> P2){retries=inf,timeout=60s,dedup=id} -> B"
    plan, sink = built(text), Sink()
    places = {"A": "left", "P1": "left", "X": "between", "P2": "right", "B": "right"}
    async with node("right") as (end, end_tcp), node("between") as (middle, middle_tcp), node("left") as (start, tcp):
        await end.deploy(plan, here={"P2", "B"}, nodes=places, handler=sink)
        await middle.deploy(plan, here={"X"}, nodes=places)
        await start.deploy(plan, here={"A", "P1"}, nodes=places)
        middle_tcp.dial("right", "127.0.0.1", await end_tcp.listen())
        await until(lambda: "right" in middle_tcp._connections)
        tcp.dial("between", "127.0.0.1", await middle_tcp.listen())
        await until(lambda: "between" in tcp._connections)

        await start.offer("A", Envelope("m1"))
        assert await sink.until(1) == ["m1"]
        async with asyncio.timeout(scaled(30)):
            await start.drained("P1")


async def test_large_and_many_worded_messages_get_through() -> None:
    headers = {f"x{number}": "word " * 100 for number in range(20)}
    sent = [
        *messages(20, data=os.urandom(DATA_INLINE_BYTES_MAX)),
        *messages(300, first=100, headers=headers),
    ]
    sink = Sink()
    async with right(VOLATILE, sink) as (_, port), left(VOLATILE, port) as sender:
        await sender.offer_all("A", sent)
        await sink.until(320)
        assert sink.envelopes == sent


async def test_offers_wait_for_room_while_nobody_takes_what_is_sent() -> None:
    sink, plan = Sink(), built(VOLATILE)
    short = replace(plan.worker("A").config.outlets[0], queue_max=20)
    worker = replace(plan.worker("A"), config=replace(plan.worker("A").config, outlets=(short,)))
    plan = replace(plan, workers=(worker, plan.worker("B")))
    async with right(VOLATILE, sink) as (_, port), node("left") as (sender, tcp):
        await sender.deploy(plan, here={"A"}, nodes=LEFT)
        offering = asyncio.create_task(sender.offer_all("A", messages(100)))
        machine = sender.performer.machine("A")
        assert isinstance(machine, Stage)
        await until(lambda: machine.is_full)
        assert not offering.done()
        tcp.dial("right", "127.0.0.1", port)
        async with asyncio.timeout(scaled(30)):
            await offering
        assert await sink.until(100) == names(100)


# -- bad links


@pytest.mark.parametrize("text", [VOLATILE, DURABLE])
async def test_a_link_that_loses_doubles_and_delays_changes_nothing(text: str) -> None:
    sink = Sink()
    async with right(text, sink) as (_, port):
        proxy = FaultProxy(("127.0.0.1", port), FrameFaults(loss=0.3, doubling=0.3, delay=0.3, delay_s=0.02), seed=5)
        try:
            async with left(text, await proxy.start(), parcel_bodies=1) as sender:
                await sender.offer_all("A", messages(400))
                async with asyncio.timeout(scaled(40)):
                    await sender.drained("A")
                assert await sink.until(400) == names(400)
        finally:
            await proxy.close()
    assert proxy.counts.lost > 100
    assert proxy.counts.doubled > 50
    assert proxy.counts.delayed > 50


@pytest.mark.parametrize("durable", ["no", "yes"])
async def test_what_was_sent_into_the_void_is_sent_again_as_soon_as_there_is_a_connection(durable: str) -> None:
    text = f"A -[retries=inf,window=10,timeout=60s,dedup=strict,durable={durable}]-> B"
    sink = Sink()
    proxy = FaultProxy(("127.0.0.1", 1), FrameFaults())
    try:
        async with left(text, await proxy.start()) as sender:
            await sender.offer_all("A", messages(5))
            assert sender._tcp is not None
            await until(lambda: sender._tcp is not None and sender._tcp.dropped > 0)
            async with right(text, sink) as (_, port):
                proxy.target = ("127.0.0.1", port)
                assert await sink.until(5, seconds=15) == names(5)
    finally:
        await proxy.close()


# -- nodes that end and come back


async def test_a_durable_receiver_that_comes_back_has_lost_and_doubled_nothing(tmp_path: Any) -> None:
    sink, store = Sink(writes=True), open_store(f"sqlite:///{tmp_path}/right.db")
    try:
        async with right(DURABLE, sink, store) as (_, port):
            sender = left(DURABLE, port)
            node = await sender.__aenter__()
            await node.offer_all("A", messages(100))
            await sink.until(30)
        await node.offer_all("A", messages(100, first=101))
        async with right(DURABLE, sink, store, port) as (end, _):
            await node.drained("A")
            await end.drained("B")
        await sender.__aexit__(None, None, None)
        assert effects(store) == names(200)
    finally:
        store.close()


async def test_a_durable_sender_that_comes_back_goes_on_where_it_was(tmp_path: Any) -> None:
    sink, store = Sink(), open_store(f"sqlite:///{tmp_path}/left.db")
    try:
        async with left(DURABLE, 1, store) as sender:
            await sender.offer_all("A", messages(150))
        async with right(DURABLE, sink) as (_, port):
            async with left(DURABLE, port, store) as sender:
                await sink.until(20)
            async with left(DURABLE, port, store) as sender:
                await sender.offer_all("A", messages(60, first=141))
                await sender.drained("A")
            assert await sink.until(200) == names(200)
    finally:
        store.close()


async def test_a_volatile_sender_that_comes_back_is_a_new_run_and_not_a_duplicate() -> None:
    sink = Sink()
    async with right(VOLATILE, sink) as (_, port):
        for first in (1, 11, 21):
            async with left(VOLATILE, port) as sender:
                await sender.offer_all("A", messages(10, first=first))
                await sender.drained("A")
        assert await sink.until(30) == names(30)


async def test_order_and_uniqueness_survive_a_volatile_stage_that_comes_back() -> None:
    """By the hop's own index the second run of the stage would bring everything again."""
    text = (
        "A{durable=yes} -[retries=inf,window=50,timeout=50ms,confirm=cascade]-> P"
        " -[retries=inf,window=100,timeout=50ms,dedup=session,confirm=processing]-> B{durable=yes}"
    )
    plan, sink, store = built(text), Sink(writes=True), MemoryStore()
    places = {"A": "left", "P": "between", "B": "right"}
    sent = [Envelope(f"m{number}", session="s", index=number) for number in range(1, 301)]
    async with node("right", store) as (end, end_tcp), node("left") as (start, tcp):
        await end.deploy(plan, here={"B"}, nodes=places, handler=sink, inline=True)
        await start.deploy(plan, here={"A"}, nodes=places)
        end_port, port = await end_tcp.listen(), 0
        for stage in range(4):
            async with node("between") as (middle, middle_tcp):
                await middle.deploy(plan, here={"P"}, nodes=places)
                port = await middle_tcp.listen(port=port)
                middle_tcp.dial("right", "127.0.0.1", end_port)
                if not stage:
                    tcp.dial("between", "127.0.0.1", port)
                for envelope in sent[stage * 60 : stage * 60 + 60]:
                    await start.offer("A", envelope)
                await sink.until(10 * (stage + 1))
        async with node("between") as (middle, middle_tcp):
            await middle.deploy(plan, here={"P"}, nodes=places)
            await middle_tcp.listen(port=port)
            middle_tcp.dial("right", "127.0.0.1", end_port)
            await start.offer_all("A", sent[240:])
            async with asyncio.timeout(scaled(30)):
                await start.drained("A")
        assert effects(store) == names(300)


async def test_a_suspended_pipe_goes_on_when_it_is_resumed() -> None:
    text = "A -[retries=2,window=10,timeout=20ms,dedup=strict,durable=yes]-> B"
    sink, suspended = Sink(), asyncio.Event()

    def observe(name: str, effect: object) -> None:
        if isinstance(effect, Notify) and effect.topic == "suspended":
            suspended.set()

    proxy = FaultProxy(("127.0.0.1", 1), FrameFaults())
    try:
        async with left(text, await proxy.start()) as sender:
            sender.performer.observe(observe)
            await sender.offer_all("A", messages(3))
            async with asyncio.timeout(scaled(30)):
                await suspended.wait()
            async with right(text, sink) as (_, port):
                proxy.target = ("127.0.0.1", port)
                tcp = sender._tcp
                assert tcp is not None
                await until(lambda: "right" in tcp._connections)
                assert sink.ids == [], "a connection alone does not resume it"
                sender.performer.feed("A", Resume())
                async with asyncio.timeout(scaled(30)):
                    await sender.drained("A")
                assert await sink.until(3) == names(3)
    finally:
        await proxy.close()


# -- strangers


async def test_hostile_frames_harm_nobody_and_dial_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink()
    async with right(VOLATILE, sink) as (end, port), left(VOLATILE, port) as sender:
        await sender.offer_all("A", messages(10))
        await sink.until(10)
        dialled: list[object] = []
        monkeypatch.setattr(end._tcp, "dial", lambda *words: dialled.append(words))
        async with node("stranger") as (_, tcp):
            tcp.dial("right", "127.0.0.1", port)
            await until(lambda: "right" in tcp._connections)
            connection = tcp._connections["right"]
            forged = HopMessage("forged/1", Envelope("forged"), 11)
            for parcel in (
                Parcel(("0#nobody",), ("0#A",), (forged,)),
                Parcel(("1#nowhere", "0#B"), ("0#A",), (forged,)),
                Parcel(("1#192.0.2.1:80",), ("0#A",), (forged,)),
                Parcel(("0#B",), ("0#A",), (forged,)),
                Parcel(("0#B",), ("0#app",), (forged,)),
                Parcel(("0#B",), (), (forged,)),
                Parcel(("0#B",), ("0#stranger",), (forged, Confirm(("x",)))),
                Parcel(("0#B", *("0#X",) * 31), (), ()),
                Parcel(("5#B",), ("0#A",), ()),
            ):
                assert tcp.send("right", parcel)
            assert tcp.send("right", Confirm(("x",)))
            tcp.flush()
            await until(lambda: end.astray == 7)
            assert tcp._connections.get("right") is connection, "its words were wrong, its frames were not"
            connection.writer.write(b"\x00\x00\x00\x05\xc1\xc1\xc1\xc1\xc1")
            await until(lambda: tcp._connections.get("right") is not connection)

        await sender.offer_all("A", messages(10, first=11))
        assert await sink.until(20) == names(20)
        assert "no worker named nobody" in caplog.text
        assert "no connected node named nowhere" in caplog.text
        assert "malformed frame" in caplog.text
        assert dialled == []


async def test_only_who_knows_the_secret_gets_in() -> None:
    sink = Sink()
    async with right(VOLATILE, sink) as (end, port):
        async with Performer(MemoryStore()) as performer:
            tcp = transport("left", secret=b"another secret")
            thief = PipeNode("left", performer, tcp)
            await thief.deploy(built(VOLATILE), here={"A"}, nodes=LEFT)
            tcp.dial("right", "127.0.0.1", port)
            await thief.offer("A", Envelope("stolen"))
            await until(lambda: tcp.dropped > 0)
        async with left(VOLATILE, port) as sender:
            await sender.offer_all("A", messages(3))
            assert await sink.until(3) == names(3)
        assert end.astray == 0
