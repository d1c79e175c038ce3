"""A session comes to this node: its client has come back here, or the node that had it is dead.

Its two rows are read, and written anew with this node's name under the versions that were read. From that commit on the
node that had it is refused whatever it writes for the session; it hears of it from the `open` record in the stream. If
the rows have changed meanwhile, they are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import StoreError
from semel.kernel.effects import CommitUnknown, Loaded, LoadedAll, LoadFailed
from semel.kernel.ledger import Kind
from semel.kernel.ops import Fresh, Result
from semel.kernel.store import State
from semel.pubsub.hub.catchup import LOST
from semel.pubsub.hub.commits import Failure, hint, is_conflict, is_trouble, why
from semel.pubsub.hub.left_out import UNREADABLE
from semel.pubsub.hub.session import AcksRow, Session, acks_key, read_acks, read_session, session_key
from semel.pubsub.hub.sockets import Resume
from semel.pubsub.hub.spill_rows import Spilled
from semel.pubsub.protocol.messages import CloseCode, Request, weigh

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub

TRIES = 5
HELD_MAX = 10_000
HELD_BYTES_MAX = 128 * 1024 * 1024
"""More than a client of ours has without an answer."""


@dataclass(slots=True)
class _Coming:
    """`peer` is the client's socket, if it is here. `wanted` says by which node it is believed to be held, if it is to
    be taken only from that one. `held` is what the client asks meanwhile."""

    connection: str
    then: Callable[[bool], None]
    peer: str | None = None
    asked: Resume | None = None
    wanted: str | None = None
    tries: int = 0
    row: State | None = None
    held: list[Request] = field(default_factory=list)
    held_bytes: int = 0

    def let_go(self) -> None:
        self.held.clear()
        self.held_bytes = 0


class TakeOver:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._coming: dict[str, _Coming] = {}
        self._peers: dict[str, _Coming] = {}

    # -- for a client that has come back

    def resume(self, asked: Resume, peer: str) -> None:
        connection = asked.connection
        coming = self._coming.get(connection)
        if coming is None:
            coming = self._coming[connection] = _Coming(connection, lambda is_decided: None)
            self._load(coming)
        elif coming.peer is not None:
            self._shut(coming, CloseCode.GOING_AWAY, "another socket has taken over")
        coming.peer, coming.asked, coming.wanted = peer, asked, None
        self._peers[peer] = coming

    def hold(self, peer: str, requests: Sequence[Request]) -> bool:
        """What a client asks before its session is here waits for it. False if it has none that is on its way."""
        coming = self._peers.get(peer)
        if coming is None:
            return False
        coming.held_bytes += weigh(requests)
        if len(coming.held) + len(requests) > HELD_MAX or coming.held_bytes > HELD_BYTES_MAX:
            self._shut(coming, CloseCode.INTERNAL, "the session is not here yet")
        else:
            coming.held += requests
        return True

    def gone(self, peer: str) -> None:
        coming = self._peers.pop(peer, None)
        if coming is not None:
            coming.peer = None
            coming.let_go()

    def abandon(self, reason: str) -> None:
        """The hub begins anew: those who wait may come again."""
        for coming in self._coming.values():
            self._shut(coming, CloseCode.INTERNAL, reason)

    # -- after a node's death

    def take_from(self, node: str, connection: str, then: Callable[[bool], None]) -> None:
        """Unless somebody else has it by now. `then` hears whether that is decided."""
        if connection in self._coming:
            then(False)
            return
        if self._hub.roster.get(connection) is not None:
            then(True)
            return
        coming = self._coming[connection] = _Coming(connection, then, wanted=node)
        self._load(coming)

    # -- how it comes

    def _load(self, coming: _Coming) -> None:
        coming.tries += 1
        if coming.tries > TRIES:
            self._fail(coming, "others use the session")
            return
        self._hub.load(
            session_key(self._hub.hub, coming.connection), lambda found, now: self._found_row(coming, found, now)
        )

    def _found_row(self, coming: _Coming, found: Loaded | LoadedAll | LoadFailed, now: float) -> None:
        if not isinstance(found, Loaded):
            self._fail(coming, "the store cannot be read", is_store=True)
        elif found.state is None:
            self._end(coming)
            self._shut(coming, CloseCode.POLICY, "there is no such session any more")
        else:
            coming.row = found.state
            self._hub.load(
                acks_key(self._hub.hub, coming.connection), lambda found, now: self._found_acks(coming, found, now)
            )

    def _found_acks(self, coming: _Coming, found: Loaded | LoadedAll | LoadFailed, now: float) -> None:
        if not isinstance(found, Loaded):
            self._fail(coming, "the store cannot be read", is_store=True)
            return
        assert coming.row is not None
        try:
            session = session_of(coming.connection, coming.row, found.state)
        except StoreError as error:
            self._fail(coming, error.message, UNREADABLE)
            return
        if coming.wanted is not None and session.node != coming.wanted:
            self._end(coming)
        elif session.epoch != self._hub.epoch or not session.is_reliable:
            self._give_up(coming, session, now)
        elif session.spill.rows:
            self._hub.spills.load(session, now, lambda found, now: self._found_spilled(coming, session, found, now))
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
        """It cannot be gone on with: of a plain client, or of a time before the store was restored. Decided when it is
        gone, since nobody would look for it again."""

        def then(failure: Failure | None) -> None:
            self._shut(coming, CloseCode.POLICY, "there is no such session any more")
            self._end(coming, is_decided=failure is None)

        self._hub.sessions.close(session, Kind.CANCELLED, "its node is dead, and it cannot be gone on with", now, then)

    def _take(self, coming: _Coming, session: Session, now: float) -> None:
        hub = self._hub
        session.node, session.dropped_at = hub.node, now
        record = hub.sessions.opened(session, now)
        floor = hub.floors.come(session.id, session.missing_after)
        puts = (session.put_row(hub.hub, session.row()), session.put_acks(hub.hub))

        def done(results: tuple[Result, ...], now: float) -> None:
            came = results[0]
            assert isinstance(came, Fresh)
            for put, result in zip(puts, results[1:], strict=False):
                session.stored(put, result)
            # nothing that was sent to it can stand after the record that says where it is now
            session.opened = session.came = session.sent = came.position.offset
            hub.floors.arrived(session.id)
            if hub.tail.offset >= session.opened and hub.elsewhere.get(session.id) is not None:
                self._fail(coming, "another node has taken it since")
            else:
                self._arrive(coming, session, now)
            hub.arrivals.decided(session, now)
            hub.take_own((record,), results, now)

        def failed(failure: Failure, now: float) -> None:
            hub.floors.arrived(session.id)
            if isinstance(failure, CommitUnknown):
                # it may be ours by now, and nobody would know
                hub.begin_anew("the store did not answer")
                return
            if is_conflict(failure):
                self._load(coming)
            else:
                self._fail(coming, why(failure), hint(failure), is_store=is_trouble(failure))
            hub.arrivals.decided(session, now)

        hub.arrivals.begin(session)
        hub.commit((record, *puts, floor), done, failed, session.id)

    def _arrive(self, coming: _Coming, session: Session, now: float) -> None:
        hub = self._hub
        self._end(coming)
        hub.sessions.welcome(session, now)
        if hub.roster.get(session.id) is not session:
            self._shut(coming, CloseCode.POLICY, LOST)
        elif coming.peer is not None and coming.asked is not None:
            del self._peers[coming.peer]
            hub.sessions.attach(session, coming.peer, coming.asked, now)
            hub.ask(session, coming.held, now)

    # -- how it ends

    def _fail(self, coming: _Coming, cause: str, told: str | None = None, *, is_store: bool = False) -> None:
        """The client may come again: the session may be there. `told` is what it hears, if not the cause."""
        self._end(coming, is_decided=False)
        self._hub.notify("take-over", f"{coming.connection}: {cause}", is_store=is_store)
        self._shut(coming, CloseCode.INTERNAL, told or cause)

    def _end(self, coming: _Coming, is_decided: bool = True) -> None:
        self._coming.pop(coming.connection, None)
        coming.then(is_decided)

    def _shut(self, coming: _Coming, code: CloseCode, reason: str) -> None:
        if coming.peer is not None:
            self._hub.shut_peer(coming.peer, code, reason)
            del self._peers[coming.peer]
            coming.peer = None
            coming.let_go()


def session_of(connection: str, row: State, acks: State | None) -> Session:
    """As its rows tell of it."""
    told = read_session(row.value)
    taken = read_acks(acks.value) if acks is not None else AcksRow(told.start, ())
    return Session(connection, told, taken, row.version, acks.version if acks is not None else 0)
