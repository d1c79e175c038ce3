"""The sockets of a hub's sessions, and what is written to them.

What is written while one event is handled goes out as one effect: there may be thousands of frames.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.sockets import ALL, ClosePeer, WelcomePeer, Write
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.messages import Connected, Response
from semel.websocket import CloseCode, frame


class Outgoing:
    """`sockets` are the sessions that have one. The order of writes is kept, for each socket and altogether."""

    __slots__ = ("_context", "_frames", "_writes", "sockets")

    def __init__(self, context: HubContext) -> None:
        self._context = context
        self.sockets: dict[str, Session] = {}
        self._writes: list[tuple[Sequence[str], bytes]] = []
        self._frames = 0

    def write(self, peer: str, frames: bytes, count: int = 1) -> None:
        self.write_all((peer,), frames, count)

    def write_all(self, peers: Sequence[str], frames: bytes, count: int = 1) -> None:
        """The same frames, `count` of them, to each peer. None at all if the subprotocol cannot express the message."""
        if frames:
            self._writes.append((peers, frames))
            self._frames += count * len(peers)

    def send(self, session: Session, response: Response) -> None:
        if session.peer is not None:
            encoded = codec_for(session.subprotocol).encode(response)
            if encoded is not None:
                self.write(session.peer, frame(encoded))

    def welcome(self, session: Session, response: Connected) -> None:
        """The session is open."""
        if session.peer is None:
            return
        if codec_for(session.subprotocol).encode(response) is None:
            self._context.send(session.peer, WelcomePeer())
        else:
            self.send(session, response)

    def send_acks(self, session: Session, ack_ids: Sequence[int]) -> None:
        if session.peer is not None and ack_ids:
            frames = codec_for(session.subprotocol).ack_frames(ack_ids)
            self.write(session.peer, frames, len(ack_ids))

    def flush(self) -> None:
        if self._writes:
            self._context.send(ALL, Write(self._writes, self._frames))
            self._writes, self._frames = [], 0

    def close_socket(self, session: Session, code: CloseCode, reason: str) -> None:
        if session.peer is None:
            return
        self.flush()  # what was written before the close goes out before it
        self.close_peer(session.peer, code, reason)
        self.sockets.pop(session.peer, None)
        session.detach()

    def close_peer(self, peer: str, code: CloseCode, reason: str) -> None:
        """Close a socket that has no session here."""
        self._context.send(peer, ClosePeer(code, reason))

    def close_all(self, reason: str) -> None:
        for session in list(self.sockets.values()):
            self.close_socket(session, CloseCode.INTERNAL, reason)
