"""Messages through real brokers: from an outbox to a broker, and from there to an endpoint of another application."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from nats.js.api import ConsumerConfig, DiscardPolicy
from tests.tools.brokers import (
    HOST,
    WITHOUT_RABBITMQ,
    JetStream,
    NatsServer,
    Rabbit,
    RabbitServer,
    has_rabbitmq,
    shared_nats,
    shared_rabbitmq,
)

from semel import App, Envelope, Outbox
from semel.errors import ConfigError, PeerUnavailable, RemoteProtocolError
from semel.inbox.outbox import parse_destination
from semel.runtime.brokers.amqp import AmqpSender
from semel.runtime.brokers.listeners import make_listeners
from semel.runtime.brokers.nats import NatsSender, NatsTransport, connect_nats
from semel.runtime.inbox.service import InboxService
from semel.testing.transport_contract import until

pytestmark = pytest.mark.connected
rabbitmq = pytest.mark.skipif(not has_rabbitmq(), reason=WITHOUT_RABBITMQ)
_numbers = count(1)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with shared_nats() as server:
        yield server


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitServer]:
    with shared_rabbitmq() as server:
        yield server


def shop_app(tmp_path: Path, destination: str, **options: Any) -> App:
    """Each order makes a bill that goes to a broker."""
    app = App(f"sqlite:///{tmp_path}/shop.db", name="shop", **options)

    @app.endpoint("orders").on("order", key=lambda order: order["customer"])
    def handle(order: dict, outbox: Outbox) -> None:
        bill = Envelope(f"bill-{order['id']}", type="bill", data=order["id"].encode(), headers={"traceparent": TRACE})
        outbox.publish(bill, to=destination, id=f"bill-{order['id']}", key=order["customer"])

    return app


def billing_app(tmp_path: Path, source: str, **options: Any) -> tuple[App, list[Envelope]]:
    app, bills = App(f"sqlite:///{tmp_path}/billing.db", name="billing", **options), []

    @app.endpoint("bills").on("bill")
    def handle(data: bytes, envelope: Envelope) -> None:
        bills.append(envelope)

    app.listen("bills", source)
    return app, bills


async def check_journey(tmp_path: Path, destination: str, source: str, **options: Any) -> None:
    shop = shop_app(tmp_path, destination, **options)
    billing, bills = billing_app(tmp_path, source, **options)
    ids = [f"{number:02} €" for number in range(12)]
    for id in ids:
        shop.send({"id": id, "customer": "ada"}, to="orders", id=id, type="order")
    async with InboxService(shop), InboxService(billing, listeners=make_listeners(billing, billing)):
        await until(lambda: len(bills) == len(ids), "all bills")
    assert [bill.id for bill in bills] == [f"bill-{id}" for id in ids], "in the order of their key"
    assert {bill.headers["traceparent"] for bill in bills} == {TRACE}
    assert {bill.source for bill in bills} == {"semel"}
    shop.close()
    billing.close()


# -- NATS


async def new_stream(server: NatsServer, **options: Any) -> str:
    name = f"S{next(_numbers)}"
    async with JetStream(server.port) as stream:
        await stream.add_stream(name=name, subjects=[f"{name}.>"], **options)
    return name


async def test_a_message_keeps_its_id_through_nats(nats_server: NatsServer, tmp_path: Path) -> None:
    name = await new_stream(nats_server)
    await check_journey(tmp_path, f"nats:{name}.bills", f"nats:{name}", nats=nats_server.url)


async def test_a_copy_with_the_same_nats_msg_id_is_one_message_of_the_stream(nats_server: NatsServer) -> None:
    name, sender = await new_stream(nats_server), NatsSender(nats_server.url, "test")
    for _ in range(2):
        await sender.send(parse_destination(f"nats:{name}.a"), Envelope("same", data=b"x"))
    await sender.close()
    async with JetStream(nats_server.port) as stream:
        assert (await stream.stream_info(name)).state.messages == 1


async def test_what_jetstream_does_not_take_is_sent_again_or_a_dead_letter(nats_server: NatsServer) -> None:
    name = await new_stream(nats_server, max_msg_size=200, max_msgs=1, discard=DiscardPolicy.NEW)
    sender = NatsSender(nats_server.url, "test")
    with pytest.raises(PeerUnavailable, match="no stream takes"):
        await sender.send(parse_destination("nats:nobody.listens"), Envelope("a"))
    with pytest.raises(RemoteProtocolError, match="message size"):
        await sender.send(parse_destination(f"nats:{name}.a"), Envelope("a", data=b"x" * 300))
    await sender.send(parse_destination(f"nats:{name}.a"), Envelope("a"))
    with pytest.raises(PeerUnavailable, match="maximum messages"):
        await sender.send(parse_destination(f"nats:{name}.a"), Envelope("b"))
    await sender.close()


async def test_a_sender_dials_again_after_the_broker_was_killed(nats_server: NatsServer) -> None:
    name, sender = await new_stream(nats_server), NatsSender(nats_server.url, "test")
    await sender.send(parse_destination(f"nats:{name}.a"), Envelope("a"))
    nats_server.kill()
    with pytest.raises(PeerUnavailable):
        await sender.send(parse_destination(f"nats:{name}.a"), Envelope("b"))
    nats_server.start()
    await sender.send(parse_destination(f"nats:{name}.a"), Envelope("b"))
    await sender.close()


async def test_a_wrong_password_is_told_without_it(nats_server: NatsServer) -> None:
    with pytest.raises(PeerUnavailable, match="Authorization") as refused:
        await connect_nats(f"nats://shop:wrong-one@{HOST}:{nats_server.port}", "test")
    assert "wrong-one" not in str(refused.value)


async def test_jetstreams_own_settings_are_checked_against_the_memory(
    nats_server: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = await new_stream(nats_server, max_age=3600.0)
    async with JetStream(nats_server.port) as stream:
        await stream.add_consumer(
            name, ConsumerConfig(durable_name="billing", ack_policy="explicit", ack_wait=2.0, max_deliver=3)
        )
    app, _ = billing_app(tmp_path, f"nats:{name}?consumer=billing", nats=nats_server.url, keep_s=60.0)
    with caplog.at_level(logging.WARNING):
        async with InboxService(app, listeners=make_listeners(app, app)):
            await until(lambda: "max_deliver" in caplog.text, "the warning")
    assert "keeps messages for 3600 s, and remembers what it has handled for 60 s" in caplog.text
    app.close()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (ConsumerConfig(durable_name="c", ack_policy="none"), "explicit acks"),
        (ConsumerConfig(durable_name="c", ack_policy="explicit", max_ack_pending=5), "strict"),
    ],
)
async def test_a_consumer_that_would_lose_messages_is_refused(
    nats_server: NatsServer, config: ConsumerConfig, why: str
) -> None:
    from semel.inbox.sources import parse_source

    name = await new_stream(nats_server)
    async with JetStream(nats_server.port) as stream:
        await stream.add_consumer(name, config)
    transport = NatsTransport(nats_server.url, parse_source(f"nats:{name}?consumer=c&strict=yes"), "c")
    with pytest.raises(ConfigError, match=why):
        await transport.open(1)
    await transport.close()


async def test_what_an_endpoint_listens_to_stands_in_the_file(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await new_stream(nats_server)
    (tmp_path / "semel.toml").write_text(
        f'[[inbox.endpoint]]\nname = "bills"\nlisten = "nats:{name}?id=json:id&type=text:bill&strict=yes"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEMEL_INBOX__NATS", nats_server.url)
    app, bills = billing_app(tmp_path, "nats:SOMETHING-ELSE")
    async with InboxService(app, listeners=make_listeners(app, app)) as service:
        async with JetStream(nats_server.port) as stream:
            for number in (1, 2, 2, 3):
                await stream.publish(f"{name}.x", json.dumps({"id": number}).encode())
        await until(lambda: service.listeners[0].acked == 4, "the acks")
        await until(lambda: len(bills) == 3, "the bills")
    assert [bill.id for bill in bills] == ["1", "2", "3"]
    assert nats_server.url not in repr(app.settings)
    app.close()


def test_an_endpoint_that_listens_nowhere_is_refused_at_start(tmp_path: Path) -> None:
    app, _ = billing_app(tmp_path, "amqp:bills")
    with pytest.raises(ConfigError, match="nobody says where") as refused:
        make_listeners(app, app)
    assert "SEMEL_INBOX__AMQP" in refused.value.fix
    with pytest.raises(ConfigError, match="already"):
        app.listen("bills", "amqp:more")
    app.close()


# -- RabbitMQ


async def new_queue(server: RabbitServer, **arguments: Any) -> str:
    name = f"bills{next(_numbers)}"
    async with Rabbit(server) as channel:
        await channel.declare_queue(name, durable=True, arguments=arguments)
    return name


@rabbitmq
async def test_a_message_keeps_its_id_through_rabbitmq(rabbit: RabbitServer, tmp_path: Path) -> None:
    name = await new_queue(rabbit)
    await check_journey(tmp_path, f"amqp:{name}", f"amqp:{name}", amqp=rabbit.url)


@rabbitmq
async def test_what_no_queue_takes_is_not_sent_also_beside_another_with_its_id(rabbit: RabbitServer) -> None:
    """The client library tells messages that come back by their id: two of the same id at a time would be mixed up."""
    name, sender = await new_queue(rabbit), AmqpSender(rabbit.url, "test")
    lost = parse_destination("amqp:nobody-listens")
    await sender.send(parse_destination(f"amqp:{name}"), Envelope("first"))
    found = await asyncio.gather(
        *(sender.send(to, Envelope("same")) for to in (lost, parse_destination(f"amqp:{name}")) * 5),
        return_exceptions=True,
    )
    assert [type(each) for each in found] == [PeerUnavailable, type(None)] * 5
    assert "no queue takes" in str(found[0])
    await sender.close()


@rabbitmq
async def test_a_queue_that_is_full_is_sent_to_again_and_an_exchange_is_used(rabbit: RabbitServer) -> None:
    name = await new_queue(rabbit, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    async with Rabbit(rabbit) as channel:
        exchange = await channel.declare_exchange("shop", aio_pika.ExchangeType.TOPIC, durable=True)
        await (await channel.get_queue(name)).bind(exchange, "eu.#")
    sender = AmqpSender(f"{rabbit.url}?exchange=shop", "test")
    await sender.send(parse_destination("amqp:eu.bills"), Envelope("a"))
    with pytest.raises(PeerUnavailable, match="did not confirm"):
        await sender.send(parse_destination("amqp:eu.bills"), Envelope("b"))
    with pytest.raises(PeerUnavailable, match="no queue takes"):
        await sender.send(parse_destination("amqp:us.bills"), Envelope("c"))
    await sender.close()


@rabbitmq
async def test_rabbitmqs_own_settings_are_checked_against_the_memory(
    rabbit: RabbitServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = await new_queue(rabbit, **{"x-message-ttl": 5000, "x-max-length": 10})
    source = f"amqp:{name}?management=http://{HOST}:{rabbit.management}"
    app, _ = billing_app(tmp_path, source, amqp=rabbit.url)
    with caplog.at_level(logging.WARNING):
        async with InboxService(app, listeners=make_listeners(app, app)):
            await until(lambda: "x-overflow" in caplog.text, "the warning")
    assert "drops messages that waited for 5 s" in caplog.text
    app.close()


@rabbitmq
async def test_a_queue_that_is_deleted_is_missed_and_listened_to_again(
    rabbit: RabbitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.runtime.brokers.amqp.IDLE_S", 0.1)
    name = await new_queue(rabbit)
    app, bills = billing_app(tmp_path, f"amqp:{name}?type=text:bill", amqp=rabbit.url)
    async with InboxService(app, listeners=make_listeners(app, app)) as service, Rabbit(rabbit) as channel:
        await channel.default_exchange.publish(aio_pika.Message(b"1", message_id="1"), name)
        await until(lambda: len(bills) == 1, "the first")
        await channel.queue_delete(name)
        await until(lambda: service.listeners[0].state.value == "away", "the loss")
        await channel.declare_queue(name, durable=True)
        await channel.default_exchange.publish(aio_pika.Message(b"2", message_id="2"), name)
        await until(lambda: len(bills) == 2, "the second")
    app.close()
