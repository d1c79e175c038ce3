"""Machines beside paths, on real connections with real faults: the storage service, channels and their sessions."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from tests.integration.test_pipes import Sink, effects, messages, names, node

from semel.errors import ConfigError, InputError
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.pipes.services.channel import Channel, ChannelConfig, Initiator, Spawner, SpawnerConfig
from semel.pipes.services.consumer import Consumer, ConsumerConfig
from semel.pipes.services.publisher import Publisher, PublisherConfig
from semel.pipes.services.storage import StorageConfig, StorageService
from semel.pipes.workers.blocks import reliable_dedup_pipe
from semel.runtime.pipes.node import PipeNode
from semel.runtime.transports.tcp import TcpTransport
from semel.stores import open_store
from semel.testing.faults import FaultProxy, FrameFaults
from semel.testing.limits import scaled

BAD = FrameFaults(loss=0.2, doubling=0.2, delay=0.2, delay_s=0.01)
STREAM = "pipe/orders/s"
PIPE = partial(reliable_dedup_pipe, window=16, timeout_s=0.05)


async def proxied(tcp: TcpTransport, port: int, peer: str, seed: int) -> FaultProxy:
    proxy = FaultProxy(("127.0.0.1", port), BAD, seed=seed)
    tcp.dial(peer, "127.0.0.1", await proxy.start())
    return proxy


# -- persistent storage


async def host_service(at: PipeNode) -> None:
    await at.host(lambda store: StorageService(StorageConfig("S", "pipe/orders/", pipeline="orders")), "S")


async def host_publisher(at: PipeNode) -> None:
    quick = ResendPolicy(timeout_s=0.05, retry=RetryPolicy(interval_s=0.05))
    config = PublisherConfig("P", "S", STREAM, "orders", quick)
    await at.host(lambda store: Publisher(config, "run-1"), "P", routes={"S": ("1#middle", "0#S")})


async def host_consumer(at: PipeNode, sink: Sink, run: str) -> None:
    config = ConsumerConfig(
        "C",
        "S",
        STREAM,
        "client",
        "orders",
        durable=True,
        wait_s=0.2,
        timeout_s=0.1,
        retry=RetryPolicy(interval_s=0.01),
    )
    await at.host(
        lambda store: Consumer(config, run), "C", routes={"S": ("1#middle", "0#S")}, handler=sink, inline=True
    )


async def test_a_path_through_persistent_storage_over_bad_links(tmp_path: Path) -> None:
    """A writes with confirms, B reads from its index and comes back after a restart: all, once, in order."""
    kept, effect = (open_store(f"sqlite:///{tmp_path}/{name}.db") for name in ("middle", "right"))
    first, second = Sink(writes=True), Sink(writes=True)
    async with node("middle", kept) as (middle, middle_tcp), node("left") as (left, left_tcp):
        port = await middle_tcp.listen()
        await host_service(middle)
        await host_publisher(left)
        proxies = [await proxied(left_tcp, port, "middle", 1)]
        async with node("right", effect) as (right, right_tcp):
            await host_consumer(right, first, "run-1")
            proxies.append(await proxied(right_tcp, port, "middle", 2))
            await left.offer_all("P", messages(60))
            await first.until(30)
        await left.offer_all("P", messages(60, first=61))
        async with node("right", effect) as (right, right_tcp):
            await host_consumer(right, second, "run-2")
            proxies.append(await proxied(right_tcp, port, "middle", 3))
            async with asyncio.timeout(scaled(60)):
                while len(effects(effect)) < 120:  # noqa: ASYNC110 - the store tells nobody here
                    await asyncio.sleep(0.01)
        for proxy in proxies:
            await proxy.close()
    assert effects(effect) == names(120)
    kept.close()
    effect.close()


async def test_a_handler_that_fails_reads_the_same_message_again(tmp_path: Path) -> None:
    failures = 3

    class Failing(Sink):
        def __call__(self, item: object) -> list[Append]:
            nonlocal failures
            if failures:
                failures -= 1
                raise RuntimeError("not yet")
            return super().__call__(item)

    sink = Failing()
    async with node("middle") as (middle, tcp), node("right") as (right, right_tcp), node("left") as (left, left_tcp):
        port = await tcp.listen()
        await host_service(middle)
        await host_publisher(left)
        await host_consumer(right, sink, "run-1")
        right_tcp.dial("middle", "127.0.0.1", port)
        left_tcp.dial("middle", "127.0.0.1", port)
        await left.offer_all("P", messages(5))
        assert await sink.until(5) == names(5)
    assert failures == 0


# -- channels


async def test_questions_and_answers_through_a_session_over_a_bad_link() -> None:
    """Two pipes, one in each direction: every question arrives once, and every answer comes back once."""
    answers: list[str] = []
    heard: list[str] = []
    done = asyncio.Event()
    async with node("right") as (right, right_tcp), node("left") as (left, left_tcp):

        def answer(question: Envelope, back: tuple[str, ...]) -> None:
            heard.append(question.id)
            right.send_along(back, Envelope(f"answer-{question.id}"), back="service")

        def take(envelope: Envelope, back: tuple[str, ...]) -> None:
            answers.append(envelope.id)
            if len(answers) == 50:
                done.set()

        right.listen("service", answer)
        left.listen("client", take)
        await right.open_channel(partial(Spawner, SpawnerConfig("door", PIPE)))
        route = ("1#right", "0#door.inner")
        await left.open_channel(partial(Initiator, ChannelConfig("channel", route, PIPE, timeout_s=0.05)))
        proxy = await proxied(left_tcp, await right_tcp.listen(), "right", 7)
        for question in messages(50):
            left.send_along(("0#channel", "0#service"), question, back="client")
        async with asyncio.timeout(scaled(60)):
            await done.wait()
        await proxy.close()
    assert sorted(heard) == sorted(names(50))
    assert sorted(answers) == sorted(f"answer-{name}" for name in names(50))


async def test_a_static_channel_needs_no_handshake() -> None:
    heard: list[str] = []
    done = asyncio.Event()
    async with node("right") as (right, right_tcp), node("left") as (left, left_tcp):

        def take(envelope: Envelope, back: tuple[str, ...]) -> None:
            heard.append(envelope.id)
            if len(heard) == 20:
                done.set()

        right.listen("service", take)
        await right.open_channel(partial(Channel, ChannelConfig("c", ("1#left", "0#c.inner"), PIPE)))
        await left.open_channel(partial(Channel, ChannelConfig("c", ("1#right", "0#c.inner"), PIPE)))
        proxy = await proxied(left_tcp, await right_tcp.listen(), "right", 9)
        for envelope in messages(20):
            left.send_along(("0#c", "0#service"), envelope)
        async with asyncio.timeout(scaled(30)):
            await done.wait()
        await proxy.close()
    assert sorted(heard) == sorted(names(20))


# -- workers of the application


async def test_a_bare_message_goes_along_its_route_once_and_is_answered() -> None:
    heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with node("right") as (right, right_tcp), node("left") as (left, left_tcp):
        right.listen(
            "echo", lambda envelope, back: right.send_along(back, Envelope(f"echo-{envelope.id}"), back="echo")
        )
        left.listen("me", lambda envelope, back: heard.put_nowait((envelope.id, back[-1])))
        left_tcp.dial("right", "127.0.0.1", await right_tcp.listen())
        async with asyncio.timeout(scaled(30)):
            while heard.empty():  # a message that is said before the connection stands is lost, as over any link
                left.send_along(("1#right", "0#echo"), Envelope("hello"), back="me")
                await asyncio.sleep(0.02)
            assert await heard.get() == ("echo-hello", "0#echo")


async def test_a_worker_of_the_application_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with node("here") as (here, _):
        here.listen("bad", lambda envelope, back: 1 / 0)
        here.send_along(("0#bad",), Envelope("a"))
        assert "failed" in caplog.text
        here.send_along(("0#nobody",), Envelope("a"))
        assert here.astray == 1


async def test_names_are_given_once_and_offers_go_to_those_who_take_them() -> None:
    async with node("here") as (here, _):
        here.listen("S", lambda envelope, back: None)
        with pytest.raises(ConfigError, match="has a worker S already"):
            await host_service(here)
        await here.host(lambda store: StorageService(StorageConfig("T", "pipe/t/")), "T")
        with pytest.raises(InputError, match="T takes no offers"):
            await here.offer("T", Envelope("a"))
