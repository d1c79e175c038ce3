"""Messages between processes over a hub of the pub/sub server: for nodes that reach the server and not each other.

Each node is a client whose user is the name of the node, and is in the group of that name. To speak to a peer is to
publish to its group; who spoke is the user of the message, which the server has from the token. So give each node a
token with its name as the user and with roles for these groups and no others:

    webpubsub.joinLeaveGroup.<own name>, and webpubsub.sendToGroup.<name> for each of its peers

What is sent to a peer that has no session is gone, as with every transport: the pipe sends it again. A connection that
breaks loses nothing, because the session does not.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Self

from semel.errors import SemelError
from semel.kernel.hop import Wire
from semel.kernel.text import check_id
from semel.pipes.workers.route import Parcel
from semel.pubsub.client.data import Message
from semel.pubsub.client.events import ClientOptions, Interrupted, Online, Recovered, SessionLost, State
from semel.pubsub.protocol.frames import FRAME_BYTES_MAX, Subprotocol
from semel.runtime.client.client import WebPubSubClient
from semel.runtime.client.socket import Url
from semel.runtime.transports.base import Inbox
from semel.runtime.transports.frames import FrameBuffer, decode, encode

log = logging.getLogger(__name__)

AROUND_BYTES = 4 * 1024
"""What the protocol adds to the bytes of a message at most, besides making four of every three."""


@dataclass(frozen=True, slots=True)
class HubLimits:
    """`frame_bytes` is what goes out as one message; `buffer_bytes` is what may be under way to the server."""

    frame_bytes: int = FRAME_BYTES_MAX * 3 // 4 - AROUND_BYTES
    buffer_bytes: int = 4 * 1024 * 1024


@dataclass(slots=True)
class _Gathered:
    frames: list[bytes] = field(default_factory=list)
    bytes: int = 0


class HubTransport:
    """`name` is how peers know this process; `url` is the address of the hub with its token, as `WebPubSubClient` takes
    it. Only `peers` count: what others publish to the group of this node is dropped."""

    def __init__(self, name: str, url: Url, *, peers: tuple[str, ...], limits: HubLimits | None = None) -> None:
        self.name = check_id("name", name)
        self.peers = tuple(check_id("name", peer) for peer in peers)
        self.limits = limits or HubLimits()
        self.dropped = 0
        # the JSON protocol tells who published, the protobuf one does not
        self._client = WebPubSubClient(url, options=ClientOptions(Subprotocol.JSON_RELIABLE, connect_for_s=None))
        self._client.on_message(self._receive)
        self._client.on_state(self._notice)
        self._inbox: Inbox | None = None
        self._gathered: dict[str, _Gathered] = {}
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._closing = False

    def bind(self, inbox: Inbox) -> None:
        self._inbox = inbox

    async def open(self) -> Self:
        """Returns when this node can be spoken to."""
        await self._client.open()
        await self._client.join_group(self.name)
        return self

    # -- receiving

    async def _receive(self, message: Message) -> None:
        inbox = self._inbox
        assert inbox is not None, "bind comes before connections"
        peer = message.from_user
        if peer not in self.peers or message.group != self.name or not isinstance(message.data, bytes):
            log.warning("%s: dropped a message of %s: it is no peer, or speaks something else", self.name, peer)
            return
        if inbox.is_full:
            await inbox.room()
        await self._flowing.wait()
        try:
            for payload in FrameBuffer(self.limits.frame_bytes).feed(message.data):
                inbox.received(self, peer, decode(payload))
        except SemelError as error:
            log.warning("%s: %s sent what cannot be read: %s", self.name, peer, error.message)

    def _notice(self, state: State) -> None:
        """All peers are reached by one connection. Whether they are there, the hub does not say."""
        if self._inbox is None or self._closing:
            return
        for peer in self.peers:
            if isinstance(state, Online | Recovered):
                self._inbox.connected(self, peer)
            elif isinstance(state, Interrupted | SessionLost):
                self._inbox.disconnected(self, peer)

    # -- speaking

    def send(self, peer: str, message: Wire | Parcel) -> bool:
        frame = encode(message)
        if peer not in self.peers or self._under_way + len(frame) > self.limits.buffer_bytes or self._closing:
            self.dropped += 1
            return False
        self._under_way += len(frame)
        gathered = self._gathered.setdefault(peer, _Gathered())
        if gathered.bytes + len(frame) > self.limits.frame_bytes:
            self._publish(peer, gathered)
            gathered = self._gathered[peer] = _Gathered()
        gathered.frames.append(frame)
        gathered.bytes += len(frame)
        return True

    def flush(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for peer, each in gathered.items():
            self._publish(peer, each)

    def _publish(self, peer: str, gathered: _Gathered) -> None:
        if not gathered.frames:
            return
        task = asyncio.get_running_loop().create_task(self._published(peer, gathered))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _published(self, peer: str, gathered: _Gathered) -> None:
        """Twice does no harm here, and never is what the pipe is for."""
        try:
            await self._client.send_to_group(peer, b"".join(gathered.frames), at_least_once=True)
        except SemelError as error:
            self.dropped += len(gathered.frames)
            log.warning("%s: nothing goes to %s: %s", self.name, peer, error.message)
        finally:
            self._under_way -= gathered.bytes

    # -- ending

    def pause(self) -> None:
        self._flowing.clear()

    async def close(self) -> None:
        """Publish what is gathered, as far as the server takes it within a second, and end the session."""
        self.flush()
        self._closing = True
        self._flowing.set()
        await self._client.close(1.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
