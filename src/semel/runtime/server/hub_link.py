"""What a hub on the performer speaks through."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from semel.pubsub.events.handler_calls import HANDLERS
from semel.pubsub.hub.calls import Answer, Call, Outcome
from semel.pubsub.hub.sockets import ClosePeer, HubRestarted, SocketStalled, Write
from semel.pubsub.protocol.messages import CloseCode
from semel.runtime.transports.base import Inbox
from semel.runtime.transports.websocket import WebSocketPeer

if TYPE_CHECKING:
    from semel.runtime.server.webhooks import Webhooks

CALL_S = 30.0
"""How long a hub may take to answer a call."""


class HubLink:
    """The transport of one hub: its sockets, the calls that wait for its answer, and its event handlers."""

    def __init__(self, name: str, webhooks: Webhooks | None = None) -> None:
        self.name, self.webhooks = name, webhooks
        self.sockets: dict[str, WebSocketPeer] = {}
        self.frames_in = self.frames_out = 0
        self._calls: dict[str, asyncio.Future[Answer]] = {}
        self._count = 0
        self._has_begun = False
        self._inbox: Inbox | None = None

    def bind(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def send_to_hub(self, peer: str, message: object) -> None:
        assert self._inbox is not None
        self._inbox.received(self, peer, message)

    def enter(self, peer: WebSocketPeer) -> str:
        self._count += 1
        name = f"socket-{self._count}"
        self.sockets[name] = peer
        return name

    async def call(self, call: Call) -> Answer:
        self._count += 1
        name = f"call-{self._count}"
        future = self._calls[name] = asyncio.get_running_loop().create_future()
        try:
            self.send_to_hub(name, call)
            async with asyncio.timeout(CALL_S):
                return await future
        except TimeoutError:
            return Answer(Outcome.FAILED, "the hub did not answer in time")
        finally:
            del self._calls[name]

    # -- what the performer asks of a transport

    def send(self, peer: str, message: Any) -> bool:
        if isinstance(message, Answer):
            future = self._calls.get(peer)
            if future is not None and not future.done():
                future.set_result(message)
            return True
        if isinstance(message, Write):
            self._write(message)
            return True
        if isinstance(message, HubRestarted):
            self._restarted()
            return True
        if peer == HANDLERS:
            assert self.webhooks is not None
            self.webhooks.receive(message, lambda reply: self.send_to_hub(HANDLERS, reply))
            return True
        socket = self.sockets.get(peer)
        if socket is None:
            return True
        if isinstance(message, ClosePeer):
            socket.close(message.code, message.reason)
        return True

    def _write(self, message: Write) -> None:
        self.frames_out += message.frames
        for peers, frames in message.writes:
            for peer in peers:
                socket = self.sockets.get(peer)
                if socket is not None and not socket.write(frames) and not socket.is_closing:
                    self.send_to_hub(peer, SocketStalled())

    def _restarted(self) -> None:
        """The first time nobody can have known another hub: whoever is here already came for this one."""
        has_begun, self._has_begun = self._has_begun, True
        if not has_begun:
            return
        for future in self._calls.values():
            if not future.done():
                future.set_result(Answer(Outcome.FAILED, "the hub was restarted; ask again"))
        for socket in self.sockets.values():
            if not socket.is_closing:
                socket.close(CloseCode.INTERNAL, "the hub was restarted")

    def flush(self) -> None:
        """Sockets gather what is written to them in a tick by themselves."""

    def pause(self) -> None:
        for socket in self.sockets.values():
            socket.hold()

    async def close(self) -> None:
        for future in self._calls.values():
            if not future.done():
                future.set_result(Answer(Outcome.FAILED, "the server is stopping"))
        if self.webhooks is not None:
            await self.webhooks.close()
