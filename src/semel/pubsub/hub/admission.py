"""What the server reports of sockets: they come, fill up, drain and close.

Whoever comes before this node may have sessions waits until it may, and so does what is asked before a session is open.
What is asked in an open session does not come here, but to `clients`.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.kernel.ledger import Kind
from semel.kernel.text import clean_cause
from semel.pubsub.hub.clients import Clients
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.endings import Endings
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.roster import UNREADABLE, Here, UnreadableSessions
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.sessions import Sessions
from semel.pubsub.hub.sockets import Frames, NewSession, ResumeSession, SocketClosed, SocketDrained, SocketStalled
from semel.pubsub.hub.takeover import HELD_BYTES_MAX, TakeOver
from semel.pubsub.protocol.messages import Request, weigh
from semel.websocket import CloseCode

EARLY_MAX = 1_000
EARLY_BYTES_MAX = 4 * 1024 * 1024
"""How much a client may ask before its session is durable. A client that resumes sends again what was not answered:
that may be more (`HELD_BYTES_MAX`)."""

SocketEvent = NewSession | ResumeSession | SocketClosed | SocketStalled | SocketDrained


class Admission:
    def __init__(
        self,
        context: HubContext,
        lease: NodeLease,
        outgoing: Outgoing,
        roster: Here,
        endings: Endings,
        left_out: UnreadableSessions,
        sessions: Sessions,
        take_over: TakeOver,
        clients: Clients,
        closing: Closing,
        delivery: Delivery,
        group_states: GroupStates,
    ) -> None:
        self._context, self._lease, self._outgoing, self._roster = context, lease, outgoing, roster
        self._endings, self._left_out, self._sessions, self._take_over = endings, left_out, sessions, take_over
        self._clients, self._closing, self._delivery, self._group_states = clients, closing, delivery, group_states
        self._waiting: dict[str, list[SocketEvent | Frames]] = {}

    def receive(self, peer: str, event: SocketEvent, now: float) -> None:
        if not self._lease.is_held and self._keep_waiting(peer, event):
            return
        match event:
            case SocketStalled() | SocketDrained():
                self._stall(peer, isinstance(event, SocketStalled), now)
            case NewSession():
                self._sessions.open(peer, event, now)
            case ResumeSession():
                self._resume(peer, event, now)
            case SocketClosed():
                self._socket_closed(peer, event, now)

    # -- before this node may have sessions

    def _keep_waiting(self, peer: str, event: SocketEvent | Frames) -> bool:
        """False for a socket that did not come while this node waits: it was here before that."""
        waiting = self._waiting.get(peer)
        if isinstance(event, NewSession | ResumeSession):
            self._waiting[peer] = [event]
        elif waiting is None:
            return False
        elif isinstance(event, SocketClosed):
            del self._waiting[peer]
        elif len(waiting) >= EARLY_MAX or _weight(waiting) > HELD_BYTES_MAX:
            del self._waiting[peer]
            self._outgoing.close_peer(peer, CloseCode.INTERNAL, "the node is not ready yet")
        else:
            waiting.append(event)
        return True

    def admit_waiting(self, now: float) -> None:
        waiting, self._waiting = self._waiting, {}
        for peer, events in waiting.items():
            for event in events:
                if not isinstance(event, Frames):
                    self.receive(peer, event, now)
                elif (session := self._outgoing.open_session(peer)) is not None:
                    self._clients.handle(session, event.requests, now)
                else:
                    self.receive_early(peer, event.requests, now)

    # -- what sockets report

    def receive_early(self, peer: str, requests: Sequence[Request], now: float) -> None:
        """A client asks in a session that is not open here."""
        if not self._lease.is_held and self._keep_waiting(peer, Frames(requests)):
            return
        session = self._outgoing.sockets.get(peer)
        if session is not None:
            self._hold_early(session, requests, now)
        elif not self._take_over.hold(peer, requests):
            # it is not on its way here: its socket was closed, or opened by the hub that was here before
            self._outgoing.close_peer(peer, CloseCode.GOING_AWAY, "this session is not open")

    def _hold_early(self, session: Session, requests: Sequence[Request], now: float) -> None:
        early = session.early
        if len(early) + len(requests) > EARLY_MAX or weigh([*early, *requests]) > EARLY_BYTES_MAX:
            self._closing.expel(session, CloseCode.POLICY, "wait for connected before you ask for so much", now)
        else:
            early += requests

    def _resume(self, peer: str, asked: ResumeSession, now: float) -> None:
        """A session that is about to end is not taken up again: it would be here twice. Its client may try again, in
        case another node has it; a single node knows that nobody has. One that is left out may be tried again as well:
        it is there, for a Semel that can read it."""
        session, is_shared = self._roster.get(asked.connection), self._context.options.is_shared
        if session is not None and session.is_reliable:
            self._sessions.resume(session, peer, asked, now)
        elif is_shared and self._endings.is_under_way(asked.connection):
            self._outgoing.close_peer(peer, CloseCode.INTERNAL, "the session is about to end")
        elif session is None and is_shared:
            self._take_over.resume(asked, peer)
        elif asked.connection in self._left_out:
            self._outgoing.close_peer(peer, CloseCode.INTERNAL, UNREADABLE)
        else:
            self._outgoing.close_peer(peer, CloseCode.POLICY, "there is no such session any more")

    def _stall(self, peer: str, is_stalled: bool, now: float) -> None:
        """What a reliable client has no room for waits in its queue. A plain client has no queue, and is too slow."""
        session = self._outgoing.sockets.get(peer)
        if session is None or session.is_opening:
            return
        if is_stalled and not session.is_reliable:
            self._context.notify("slow-client", f"{session.id} takes less than it is sent")
            self._closing.expel(session, CloseCode.POLICY, "the client is too slow", now, Kind.DISCARDED)
            return
        session.stall(is_stalled)
        if not is_stalled:
            self._delivery.catch_up(session, now)
            self._group_states.has_room(session, now)

    def _socket_closed(self, peer: str, event: SocketClosed, now: float) -> None:
        self._take_over.socket_closed(peer)
        session = self._outgoing.sockets.pop(peer, None)
        if session is None:
            return
        session.detach()
        if event.code == CloseCode.NORMAL or not session.is_reliable:
            self._closing.close(session, Kind.CANCELLED, _reason_of(event), now)
        else:
            self._closing.drop(session, now)


def _reason_of(event: SocketClosed) -> str:
    """Why the socket was closed, in the client's own words if it gave any."""
    if event.reason:
        return clean_cause(event.reason)
    return "the client closed the connection" if event.code is not None else "the connection was lost"


def _weight(events: Sequence[SocketEvent | Frames]) -> int:
    return sum(weigh(event.requests) for event in events if isinstance(event, Frames))
