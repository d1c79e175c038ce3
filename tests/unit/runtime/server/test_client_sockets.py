"""What the server does between a client's WebSocket and its hub."""

from __future__ import annotations

import os
from unittest.mock import AsyncMock, Mock

from semel.auth.keys import DEV_KEY, AccessKeys
from semel.pubsub.hub.sockets import SocketClosed
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.handshake import Handshake
from semel.runtime.host.outages import Outages
from semel.runtime.host.performer import CommitTimes, Performer
from semel.runtime.server.client_sockets import ClientSocket, ClientSockets, HubLink
from semel.runtime.transports.websocket import WebSocketPeer
from semel.stores.memory import MemoryStore


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
