"""What the server does between a client's WebSocket and its hub."""

from __future__ import annotations

import asyncio
import os
from unittest.mock import AsyncMock, Mock, call

import pytest

from semel.auth.keys import DEV_KEY, AccessKeys
from semel.pubsub.events.handler_calls import HANDLERS
from semel.pubsub.hub.calls import Answer, Outcome, Summarize
from semel.pubsub.hub.sockets import ALL, ClosePeer, HubRestarted, SocketClosed, SocketStalled, Write
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.handshake import Handshake
from semel.runtime.host.outages import Outages
from semel.runtime.host.performer import CommitTimes, Performer
from semel.runtime.server.client_sockets import ClientSocket, ClientSockets, HubLink
from semel.runtime.server.webhooks import Webhooks
from semel.runtime.transports.base import Inbox
from semel.runtime.transports.websocket import WebSocketPeer
from semel.stores.memory import MemoryStore
from semel.websocket import CloseCode


def client_sockets(performer: Performer) -> ClientSockets:
    return ClientSockets(performer, Handshake(AccessKeys(DEV_KEY), os.urandom), {}, AsyncMock(), lambda: 0.0)


async def test_who_takes_nothing_may_ask_for_nothing_until_it_does() -> None:
    performer = Mock(spec=Performer, store=MemoryStore(), commit_times=CommitTimes(), outages=Outages())
    service = client_sockets(performer)
    peer = Mock(spec=WebSocketPeer, key=ClientSocket(None, None, None))
    service.on_stalled(peer)
    peer.hold.assert_called_once_with()
    peer.release.assert_not_called()
    service.on_room(peer)
    peer.release.assert_called_once_with()


class FullAfter:
    """A store that has room for so many messages."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.heard: list[object] = []

    def send_to_hub(self, peer: str, message: object) -> None:
        self.room -= 1
        self.heard.append(message)


def asking_much(room: int) -> tuple[ClientSockets, FullAfter, Mock]:
    """Somebody who leaves 200 groups in one read: four parts."""
    store = FullAfter(room)
    performer = Mock(spec=Performer, store=MemoryStore(), commit_times=CommitTimes(), outages=Outages())
    type(performer).is_full = property(lambda _: store.room <= 0)
    service = client_sockets(performer)
    link = Mock(spec=HubLink, frames_in=0, sockets={}, send_to_hub=store.send_to_hub)
    peer = Mock(spec=WebSocketPeer, key=ClientSocket(link, None, codec_for(Subprotocol.JSON)))  # type: ignore[arg-type]
    service.on_frames(peer, [f'{{"type":"leaveGroup","group":"{number}"}}' for number in range(200)])
    return service, store, peer


async def test_who_asks_for_much_is_heard_as_far_as_the_store_has_room() -> None:
    service, store, peer = asking_much(room=2)
    assert len(store.heard) == 2
    peer.hold.assert_called_once_with()
    service.on_frames(peer, ['{"type":"leaveGroup","group":"200"}'])
    store.room = 1
    service._release()
    assert len(store.heard) == 3
    peer.release.assert_not_called()
    store.room = 10
    service._release()
    peer.release.assert_called_once_with()
    groups = [request.group for message in store.heard for request in message.requests]  # type: ignore[attr-defined]
    assert groups == [str(number) for number in range(201)]
    assert max(len(message.requests) for message in store.heard) == 64  # type: ignore[attr-defined]


async def test_who_goes_while_its_requests_wait_is_gone_after_them() -> None:
    service, store, peer = asking_much(room=1)
    service.on_closed(peer, 1000, "")
    assert not any(isinstance(message, SocketClosed) for message in store.heard)
    store.room = 10
    service._release()
    assert store.heard[-1] == SocketClosed(1000)
    assert len(store.heard) == 5


async def test_publishes_in_a_row_are_not_cut() -> None:
    service, store, peer = asking_much(room=10)
    store.heard.clear()
    service.on_frames(peer, ['{"type":"sendToGroup","group":"g","dataType":"text","data":"x"}'] * 1000)
    assert [len(message.requests) for message in store.heard] == [1000]  # type: ignore[attr-defined]


# -- between the performer and the sockets and callers of one hub


def link() -> tuple[HubLink, Mock]:
    made, inbox = HubLink("chat", Mock(spec=Webhooks)), Mock(spec=Inbox)
    made.bind(inbox)
    return made, inbox


def socket(*, takes: bool = True, is_closing: bool = False) -> Mock:
    made = Mock(spec=WebSocketPeer, is_closing=is_closing)
    made.write.return_value = takes
    return made


def test_every_socket_has_a_name_of_its_own() -> None:
    made, _ = link()
    assert [made.enter(socket()), made.enter(socket())] == ["socket-1", "socket-2"]


def test_frames_go_to_those_they_are_for_and_are_counted() -> None:
    made, inbox = link()
    first, second = socket(), socket()
    one, two = made.enter(first), made.enter(second)
    made.send(ALL, Write((((one, "gone"), b"a"), ((two,), b"b")), 3))
    first.write.assert_called_once_with(b"a")
    second.write.assert_called_once_with(b"b")
    assert made.frames_out == 3
    inbox.received.assert_not_called()


def test_the_hub_hears_of_a_socket_that_takes_no_more_but_not_of_one_that_closes() -> None:
    made, inbox = link()
    full, closing = made.enter(socket(takes=False)), made.enter(socket(takes=False, is_closing=True))
    made.send(ALL, Write((((full, closing), b"a"),), 1))
    assert inbox.received.mock_calls == [call(made, full, SocketStalled())]


def test_a_socket_is_closed_as_the_hub_says() -> None:
    made, _ = link()
    peer = socket()
    assert made.send(made.enter(peer), ClosePeer(CloseCode.POLICY, "no"))
    peer.close.assert_called_once_with(CloseCode.POLICY, "no")
    assert made.send("socket-9", ClosePeer(CloseCode.POLICY, "no"))


async def test_a_call_gets_its_own_answer() -> None:
    made, inbox = link()
    asked = [asyncio.create_task(made.call(Summarize())) for _ in range(2)]
    await asyncio.sleep(0)
    names = [each.args[1] for each in inbox.received.mock_calls]
    made.send(names[1], Answer(Outcome.DONE, "second"))
    made.send(names[0], Answer(Outcome.DONE, "first"))
    made.send(names[0], Answer(Outcome.DONE, "again"))
    assert [answer.message for answer in await asyncio.gather(*asked)] == ["first", "second"]


async def test_a_hub_that_does_not_answer_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.runtime.server.client_sockets.CALL_S", 0.0)
    made, _ = link()
    assert (await made.call(Summarize())).outcome is Outcome.FAILED
    assert made._calls == {}


async def test_when_the_hub_begins_again_its_callers_and_sockets_must_as_well() -> None:
    made, _ = link()
    peer = socket()
    made.enter(peer)
    asked = asyncio.create_task(made.call(Summarize()))
    await asyncio.sleep(0)
    made.send(ALL, HubRestarted())
    peer.close.assert_not_called()
    made.send(ALL, HubRestarted())
    peer.close.assert_called_once_with(CloseCode.INTERNAL, "the hub was restarted")
    assert (await asked).outcome is Outcome.FAILED


def test_what_is_for_event_handlers_goes_to_the_webhooks_and_comes_back() -> None:
    made, inbox = link()
    made.send(HANDLERS, "an event")
    assert made.webhooks is not None
    message, reply = made.webhooks.receive.call_args.args  # type: ignore[attr-defined]
    assert message == "an event"
    reply("its answer")
    inbox.received.assert_called_once_with(made, HANDLERS, "its answer")


def test_a_pause_holds_every_socket() -> None:
    made, _ = link()
    peer = socket()
    made.enter(peer)
    made.pause()
    peer.hold.assert_called_once_with()
