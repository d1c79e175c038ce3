"""Nodes that speak through a hub: who is listened to, and what goes out as one message."""

from __future__ import annotations

import asyncio
import logging
from unittest.mock import AsyncMock, Mock, call

import pytest

from semel.errors import PeerUnavailable
from semel.kernel.hop import Confirm
from semel.pubsub.client.data import Message
from semel.pubsub.client.events import Interrupted, Online, State
from semel.runtime.client.client import WebPubSubClient
from semel.runtime.transports.base import Inbox
from semel.runtime.transports.frames import encode
from semel.runtime.transports.hub import HubLimits, HubTransport

CONFIRM = Confirm(("d1",))
FRAME = encode(CONFIRM)


class Scene:
    def __init__(self, **limits: int) -> None:
        self.transport = HubTransport("a", "ws://h", peers=("b", "c"), limits=HubLimits(**limits))
        self.client = self.transport._client = Mock(spec=WebPubSubClient, send_to_group=AsyncMock(), close=AsyncMock())
        self.inbox = Mock(spec=Inbox, is_full=False)
        self.transport.bind(self.inbox)

    async def receive(self, data: object, user: str | None = "b", group: str = "a") -> None:
        await self.transport._receive(Mock(spec=Message, data=data, from_user=user, group=group))

    async def published(self) -> list[object]:
        self.transport.flush()
        await asyncio.gather(*self.transport._tasks)
        return [each.args for each in self.client.send_to_group.mock_calls]


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_what_a_peer_sends_to_this_node_is_received_frame_by_frame(scene: Scene) -> None:
    await scene.receive(FRAME * 2)
    assert scene.inbox.received.mock_calls == [call(scene.transport, "b", CONFIRM)] * 2


@pytest.mark.parametrize(
    "message", [{"data": FRAME, "user": "stranger"}, {"data": FRAME, "user": None}, {"data": FRAME, "group": "c"},
                {"data": "text"}, {"data": b"\x00\x00\x00\x01\xff"}],
)  # fmt: skip
async def test_others_are_not_listened_to(
    scene: Scene, message: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await scene.receive(**message)  # type: ignore[arg-type]
    scene.inbox.received.assert_not_called()
    assert caplog.records


async def test_what_is_sent_in_a_tick_is_one_message_for_each_peer(scene: Scene) -> None:
    for peer in ("b", "b", "c"):
        assert scene.transport.send(peer, CONFIRM)
    assert await scene.published() == [("b", FRAME * 2), ("c", FRAME)]


async def test_a_message_is_no_larger_than_the_hub_takes() -> None:
    scene = Scene(frame_bytes=len(FRAME) * 2)
    for _ in range(3):
        scene.transport.send("b", CONFIRM)
    assert await scene.published() == [("b", FRAME * 2), ("b", FRAME)]


async def test_what_has_no_room_or_no_peer_is_dropped_and_there_is_room_again_later() -> None:
    scene = Scene(buffer_bytes=len(FRAME))
    assert scene.transport.send("b", CONFIRM)
    assert not scene.transport.send("b", CONFIRM)
    assert not scene.transport.send("stranger", CONFIRM)
    assert scene.transport.dropped == 2
    await scene.published()
    assert scene.transport.send("b", CONFIRM)


async def test_what_the_hub_did_not_take_is_dropped_and_counted(scene: Scene) -> None:
    scene.client.send_to_group.side_effect = PeerUnavailable("gone", fix="")
    scene.transport.send("b", CONFIRM)
    await scene.published()
    assert scene.transport.dropped == 1
    assert scene.transport._under_way == 0


async def test_with_the_connection_all_peers_come_and_go(scene: Scene) -> None:
    states: list[State] = [Mock(spec=Online), Mock(spec=Interrupted)]
    for state in states:
        scene.transport._notice(state)
    assert scene.inbox.mock_calls == [
        call.connected(scene.transport, "b"), call.connected(scene.transport, "c"),
        call.disconnected(scene.transport, "b"), call.disconnected(scene.transport, "c"),
    ]  # fmt: skip


async def test_a_node_that_is_full_or_paused_takes_nothing(scene: Scene) -> None:
    scene.transport.pause()
    receiving = asyncio.create_task(scene.receive(FRAME))
    await asyncio.sleep(0)
    scene.inbox.received.assert_not_called()
    await scene.transport.close()
    await receiving
    scene.inbox.received.assert_called_once()
