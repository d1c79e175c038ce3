"""A session comes to this node: its client has come back here, or the node that had it is dead.

Its two rows are read, and written again with this node's name under the versions that were read. From that commit on
the store refuses whatever the other node writes for the session; that node learns it from the `open` record in the
stream. If the rows have changed meanwhile, they are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from semel.errors import StoreError
from semel.kernel.effects import CommitUnknown, Loaded, LoadedAll, LoadFailed
from semel.kernel.ledger import Kind
from semel.kernel.ops import Fresh, Result
from semel.kernel.store import State
from semel.pubsub.hub.catchup import LOST
from semel.pubsub.hub.clients import Clients
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.commits import Failure, hint, is_conflict, is_trouble, why
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.floors import Floors
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.roster import UNREADABLE, Arrivals, Elsewhere, Here, Roster
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_phase import SessionPhase
from semel.pubsub.hub.session_rows import Spilled, acks_key, session_key
from semel.pubsub.hub.sessions import Sessions
from semel.pubsub.hub.sockets import ResumeSession
from semel.pubsub.hub.spills import Spills
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.messages import Request, weigh
from semel.websocket import CloseCode

TRIES = 5
HELD_MAX = 10_000
HELD_BYTES_MAX = 128 * 1024 * 1024
"""More than a client of ours has without an answer."""


@dataclass(slots=True)
class _Coming:
    """A session on its way here. `peer` is the client's socket, if it has come. `wanted`: take it only if this node has
    it. `held` are the client's requests meanwhile."""

    connection: str
    then: Callable[[bool], None]
    peer: str | None = None
    asked: ResumeSession | None = None
    wanted: str | None = None
    tries: int = 0
    row: State | None = None
    held: list[Request] = field(default_factory=list)
    held_bytes: int = 0

    def let_go(self) -> None:
        self.held.clear()
        self.held_bytes = 0


class TakeOver:
    def __init__(
        self,
        context: HubContext,
        outgoing: Outgoing,
        tail: Tail,
        roster: Here,
        elsewhere: Roster[Elsewhere],
        arrivals: Arrivals,
        floors: Floors,
        spills: Spills,
        sessions: Sessions,
        closing: Closing,
        clients: Clients,
    ) -> None:
        self._context, self._outgoing, self._tail = context, outgoing, tail
        self._roster, self._elsewhere, self._arrivals = roster, elsewhere, arrivals
        self._floors, self._spills = floors, spills
        self._sessions, self._closing, self._clients = sessions, closing, clients
        self._coming: dict[str, _Coming] = {}
        self._peers: dict[str, _Coming] = {}

    def __len__(self) -> int:
        """How many sessions are on their way here."""
        return len(self._coming)

    # -- for a client that has come back

    def resume(self, asked: ResumeSession, peer: str) -> None:
        connection = asked.connection
        coming = self._coming.get(connection)
        if coming is None:
            coming = self._coming[connection] = _Coming(connection, lambda is_decided: None)
            self._load(coming)
        elif coming.peer is not None:
            self._close_socket(coming, CloseCode.GOING_AWAY, "another socket has taken over")
        coming.peer, coming.asked, coming.wanted = peer, asked, None
        self._peers[peer] = coming

    def hold(self, peer: str, requests: Sequence[Request]) -> bool:
        """What a client asks before its session is here waits for it. False: none is on its way to this socket."""
        coming = self._peers.get(peer)
        if coming is None:
            return False
        coming.held_bytes += weigh(requests)
        if len(coming.held) + len(requests) > HELD_MAX or coming.held_bytes > HELD_BYTES_MAX:
            self._close_socket(coming, CloseCode.INTERNAL, "the session is not here yet")
        else:
            coming.held += requests
        return True

    def socket_closed(self, peer: str) -> None:
        coming = self._peers.pop(peer, None)
        if coming is not None:
            coming.peer = None
            coming.let_go()

    def abandon(self, reason: str) -> None:
        """The hub is loaded again: those who wait may come back then."""
        for coming in self._coming.values():
            self._close_socket(coming, CloseCode.INTERNAL, reason)

    # -- after a node's death

    def take_from(self, node: str, connection: str, then: Callable[[bool], None]) -> None:
        """Unless another node has it by now. `then` is called with whether that is decided."""
        if connection in self._coming:
            then(False)
            return
        if self._roster.get(connection) is not None:
            then(True)
            return
        coming = self._coming[connection] = _Coming(connection, then, wanted=node)
        self._load(coming)

    # -- how it comes: its row, its acks, what was spilled, and the commit that makes it ours

    def _load(self, coming: _Coming) -> None:
        coming.tries += 1
        if coming.tries > TRIES:
            self._fail(coming, "others use the session")
            return
        key = session_key(self._context.hub, coming.connection)
        self._context.load(key, lambda found, now: self._found_row(coming, found, now))

    def _found_row(self, coming: _Coming, found: Loaded | LoadedAll | LoadFailed, now: float) -> None:
        if not isinstance(found, Loaded):
            self._fail(coming, "the store cannot be read", is_store=True)
        elif found.state is None:
            self._end(coming)
            self._close_socket(coming, CloseCode.POLICY, "there is no such session any more")
        else:
            coming.row = found.state
            key = acks_key(self._context.hub, coming.connection)
            self._context.load(key, lambda found, now: self._found_acks(coming, found, now))

    def _found_acks(self, coming: _Coming, found: Loaded | LoadedAll | LoadFailed, now: float) -> None:
        if not isinstance(found, Loaded):
            self._fail(coming, "the store cannot be read", is_store=True)
            return
        assert coming.row is not None
        try:
            session = Session.of_rows(coming.connection, coming.row, found.state)
        except StoreError as error:
            self._fail(coming, error.message, UNREADABLE)
            return
        if coming.wanted is not None and session.node != coming.wanted:
            self._end(coming)
        elif session.epoch != self._context.epoch or not session.is_reliable:
            self._give_up(coming, session, now)
        elif session.spill.rows:
            self._spills.load(session, now, lambda found, now: self._found_spilled(coming, session, found, now))
        else:
            self._take(coming, session, now)

    def _found_spilled(self, coming: _Coming, session: Session, found: Spilled, now: float) -> None:
        """Before it is taken: what cannot be read here is left to a node that can. What is missing may be so because
        the rows have changed meanwhile. If not, the commit is made, and what was found is what there is."""
        if found.error is not None:
            self._fail(coming, found.error.message, UNREADABLE)
            return
        session.spill.found = found
        self._take(coming, session, now)

    def _give_up(self, coming: _Coming, session: Session, now: float) -> None:
        """Nobody can continue with it: its client cannot resume, or the store was restored since. That is decided only
        when it is gone from the store, since nobody would look for it again."""

        def then(failure: Failure | None) -> None:
            self._close_socket(coming, CloseCode.POLICY, "there is no such session any more")
            self._end(coming, is_decided=failure is None)

        self._closing.close(session, Kind.CANCELLED, "its node is dead, and it cannot be resumed", now, then)

    def _take(self, coming: _Coming, session: Session, now: float) -> None:
        context = self._context
        assert session.phase is SessionPhase.NEW, "what was read is not served before the commit"
        session.node, session.dropped_at = context.node, now
        record = self._sessions.open_record(session, now)
        floor = self._floors.expect(session.id, session.missing_after)
        puts = (session.put_row(context.hub, session.row()), session.put_acks(context.hub))

        def done(results: tuple[Result, ...], now: float) -> None:
            opened = results[0]
            assert isinstance(opened, Fresh)
            for put, result in zip(puts, results[1:], strict=False):
                session.stored(put, result)
            # nothing that was sent to it can stand after the record that says where it is now
            session.opened = session.present_at = session.backlog.sent = opened.position.offset
            self._floors.arrived(session.id)
            if self._tail.offset >= session.opened and self._elsewhere.get(session.id) is not None:
                # our own record was read before this answer came, and after it that of another node
                self._fail(coming, "another node has taken it since")
            else:
                self._arrive(coming, session, now)
            self._arrivals.decided(session, now)
            self._tail.take_own((record,), results, now)

        def failed(failure: Failure, now: float) -> None:
            self._floors.arrived(session.id)
            if isinstance(failure, CommitUnknown):
                # it may be ours by now, and nobody would know
                context.restart("the store did not answer")
                return
            if is_conflict(failure):
                self._load(coming)
            else:
                self._fail(coming, why(failure), hint(failure), is_store=is_trouble(failure))
            self._arrivals.decided(session, now)

        self._arrivals.begin(session)
        context.commit((record, *puts, floor), done, failed, session.id)

    def _arrive(self, coming: _Coming, session: Session, now: float) -> None:
        self._end(coming)
        self._sessions.take_in(session, now)
        if self._roster.get(session.id) is not session:
            self._close_socket(coming, CloseCode.POLICY, LOST)
        elif coming.peer is not None and coming.asked is not None:
            del self._peers[coming.peer]
            self._sessions.resume(session, coming.peer, coming.asked, now)
            self._clients.handle(session, coming.held, now)

    # -- how it ends

    def _fail(self, coming: _Coming, cause: str, reason: str | None = None, *, is_store: bool = False) -> None:
        """The client may come again: the session may be there. `reason` is what it gets, if not the cause."""
        self._end(coming, is_decided=False)
        self._context.notify("take-over", f"{coming.connection}: {cause}", is_store=is_store)
        self._close_socket(coming, CloseCode.INTERNAL, reason or cause)

    def _end(self, coming: _Coming, is_decided: bool = True) -> None:
        # one that was given up stays until its end is in the store, and a client may have come for it meanwhile
        self._coming.pop(coming.connection, None)
        coming.then(is_decided)

    def _close_socket(self, coming: _Coming, code: CloseCode, reason: str) -> None:
        if coming.peer is not None:
            self._outgoing.close_peer(coming.peer, code, reason)
            del self._peers[coming.peer]
            coming.peer = None
            coming.let_go()
