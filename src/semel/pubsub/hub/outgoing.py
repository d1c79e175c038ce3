"""The sockets of a hub's sessions, what is written to them, and the answers to the ackIds of clients.

What is written while one event is handled goes out as one effect: there may be thousands of frames.

A request with an ackId is answered once it is durable, and its ackId with it: who asks again is answered `Duplicate`. A
request that failed is forgotten, so the same ackId may be tried again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.pubsub.hub.commits import Failure, hint
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.records import MESSAGE_ID
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_phase import SessionPhase
from semel.pubsub.hub.sockets import ALL, ClosePeer, WelcomePeer, Write
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.messages import Ack, Connected, ErrorName, Fault, Response
from semel.websocket import CloseCode, frame

NOTHING: Mapping[int, str] = {}


class Outgoing:
    """`sockets` are the sessions that have one. The order of writes is kept, for each socket and altogether."""

    __slots__ = ("_context", "_frames", "_writes", "sockets")

    def __init__(self, context: HubContext) -> None:
        self._context = context
        self.sockets: dict[str, Session] = {}
        self._writes: list[tuple[Sequence[str], bytes]] = []
        self._frames = 0

    def open_session(self, peer: str) -> Session | None:
        """The session of a socket, if its client may ask for something already."""
        session = self.sockets.get(peer)
        return None if session is None or session.phase is SessionPhase.OPENING else session

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


class ClientAcks:
    def __init__(self, context: HubContext, outgoing: Outgoing) -> None:
        self._context, self._outgoing = context, outgoing

    def answer(self, session: Session, ack_id: int | None, error: Fault | None = None) -> None:
        if ack_id is not None:
            self._outgoing.send(session, Ack(ack_id, error))

    def is_repeated(self, session: Session, ack_id: int | None) -> bool:
        """Whether it came before. One that is durable is answered at once; one on its way when it is decided."""
        acks = session.acks
        if ack_id is None or not acks.is_known(ack_id):
            return False
        if ack_id in acks.taken:
            self._context.counts.duplicates += 1
            self.answer(session, ack_id, _duplicate(ack_id))
        else:
            acks.repeat(ack_id)
        return True

    def accept(self, session: Session, ack_ids: Sequence[int], repeated: Mapping[int, str] = NOTHING) -> None:
        """They are durable. `repeated` are those whose messages were there before, and under which ids."""
        acks = session.acks
        acks.taken.add_all(ack_ids)
        if not repeated and not acks.waiting:
            self._outgoing.send_acks(session, ack_ids)
            return
        for ack_id in ack_ids:
            self.answer(session, ack_id, _known(repeated[ack_id]) if ack_id in repeated else None)
            for _ in range(acks.take_repeats(ack_id)):
                self.answer(session, ack_id, _duplicate(ack_id))

    def fail(self, session: Session, ack_ids: Sequence[int], failure: Failure) -> None:
        """The store did not take them. Clients get no more than a hint, so whoever runs the server is notified."""
        self._context.report_once("hub-commit", failure)
        self.refuse(session, ack_ids, Fault(ErrorName.INTERNAL, hint(failure)))

    def refuse(self, session: Session, ack_ids: Sequence[int], fault: Fault) -> None:
        """They are forgotten, and may be tried again."""
        for ack_id in ack_ids:
            for _ in range(1 + session.acks.take_repeats(ack_id)):
                self.answer(session, ack_id, fault)


def forbidden(verb: str, group: str) -> Fault:
    return Fault(ErrorName.FORBIDDEN, f"The client does not have permission to {verb} group '{group}'.")


def _duplicate(ack_id: int) -> Fault:
    return Fault(ErrorName.DUPLICATE, f"Message with ack-id: {ack_id} has been processed")


def _known(id: str) -> Fault:
    """A message with this id is there already, whichever session published it."""
    return Fault(ErrorName.DUPLICATE, f"Message with {MESSAGE_ID}: {id} has been processed")
