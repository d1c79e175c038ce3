"""What the server does between its listener and its hubs."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock, patch

import msgspec
import pytest

from semel.auth.keys import DEV_KEY, AccessKeys
from semel.kernel.ops import Put, Unit
from semel.pubsub.hub.calls import Find, Group, Outcome
from semel.pubsub.hub.floors import floor_key
from semel.pubsub.hub.machine import Hub
from semel.pubsub.hub.nodes import announcement_key
from semel.pubsub.hub.sockets import ALL, HubRestarted
from semel.runtime.host.performer import Performer
from semel.runtime.server import client_sockets
from semel.runtime.server.client_sockets import HubLink
from semel.runtime.server.part import ServerContext, ServerSettings
from semel.runtime.server.pubsub import PubSub, PubSubSettings
from semel.runtime.transports.websocket import WebSocketPeer
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled
from semel.websocket import CloseCode

SERVER = ServerSettings(AccessKeys(DEV_KEY))


async def test_a_call_that_nobody_answers_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_sockets, "CALL_S", 0.01)
    link = HubLink("chat")
    link.bind(Mock())
    answer = await link.call(Find(Group("g")))
    assert answer.outcome is Outcome.FAILED
    assert link._calls == {}


async def test_hubs_begin_once_each_and_answer() -> None:
    async with Performer(MemoryStore()) as performer:
        service = PubSub(ServerContext(performer, SERVER))
        chat = await service.hub("chat")
        assert await service.hub("chat") is chat
        assert await service.hub("other") is not chat
        assert (await chat.call(Find(Group("g")))).outcome is Outcome.NOT_FOUND


async def test_hubs_of_the_store_begin_and_then_those_that_others_announce() -> None:
    store = MemoryStore()
    store.commit([Unit((Put(floor_key("old", "node"), msgspec.msgpack.encode(0)),))])
    async with Performer(store) as performer:
        service = PubSub(ServerContext(performer, SERVER))
        await service.begin_known()
        assert set(service._links) == {"old"}
        store.commit([Unit((Put(announcement_key("new"), b""),))])
        await service.begin_known()
        assert set(service._links) == {"old", "new"}


async def test_looking_for_hubs_that_others_have_begun_is_one_look() -> None:
    """However many there are: a server does it every few seconds."""
    store = MemoryStore()
    announced = tuple(Put(announcement_key(f"hub{number}"), b"") for number in range(20))
    store.commit([Unit(announced)])
    async with Performer(store) as performer:
        service = PubSub(ServerContext(performer, SERVER))
        for _ in range(2):
            await service.begin_known()
        assert len(service._links) == 20
        with patch.object(store, "states", wraps=store.states) as states:
            await service.begin_known()
        assert states.call_count == 1


async def test_a_hub_that_begins_anew_lets_nobody_wait_for_the_one_before() -> None:
    """Whatever stopped it: sockets of which it knows nothing are closed, calls are answered."""
    async with Performer(MemoryStore()) as performer:
        service = PubSub(ServerContext(performer, SERVER))
        link = await service.hub("chat")
        peer = Mock(spec=WebSocketPeer, is_closing=False)
        link.enter(peer)
        machine = performer.machine("hub/chat")
        assert isinstance(machine, Hub)
        machine._service = None  # type: ignore[assignment]
        async with asyncio.timeout(scaled(30)):
            answer = await link.call(Find(Group("g")))
        assert answer.outcome is Outcome.FAILED
        peer.close.assert_called_once()
        assert peer.close.call_args.args[0] is CloseCode.INTERNAL
        assert (await link.call(Find(Group("g")))).outcome is Outcome.NOT_FOUND


async def test_who_comes_while_the_hub_begins_is_not_sent_away() -> None:
    link = HubLink("chat")
    peer = Mock(spec=WebSocketPeer, is_closing=False)
    link.enter(peer)
    link.send(ALL, HubRestarted())
    peer.close.assert_not_called()
    link.send(ALL, HubRestarted())
    peer.close.assert_called_once()


@pytest.mark.parametrize(
    ("host", "endpoints", "known_as"),
    [
        ("127.0.0.1", (), "127.0.0.1"),
        ("::1", (), "[::1]"),
        ("0.0.0.0", (), "localhost"),
        ("::", (), "localhost"),
        ("10.0.0.1", ("https://Events.example:8443", "https://other.example"), "events.example"),
    ],
)
def test_event_handlers_know_a_server_by_its_host(host: str, endpoints: tuple[str, ...], known_as: str) -> None:
    server = ServerSettings(AccessKeys(DEV_KEY), endpoints, host=host)
    assert PubSubSettings().origin_at(server) == known_as
    assert PubSubSettings(origin="other.example").origin_at(server) == "other.example"
