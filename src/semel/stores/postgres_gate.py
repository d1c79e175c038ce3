"""The gate through which every connection of a store comes: writer, readers and listener alike.

A connection may lead to another server than the one before it, or to the same one after a crash. So each is checked
before its first use: against the recorded origin, because history may have been cut short; and by one commit that the
synchronous standby confirms, because a crash makes commits visible that were still waiting for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass

from semel.errors import SemelError, StoreInRecovery, StoreReadOnly, StoreUnavailable
from semel.kernel.ledger import Event, Kind
from semel.kernel.position import EPOCH_GAP
from semel.kernel.store import State
from semel.stores.points import reach
from semel.stores.postgres_connection import LOCK_S, PostgresConnection, Statements, errors, is_silence, redact
from semel.stores.postgres_engine import PostgresEngine
from semel.stores.postgres_lines import Lines
from semel.stores.postgres_members import Membership
from semel.stores.postgres_switch import Switch, drop_silent, find_switch_lsn
from semel.stores.postgres_sync import WAIT_S, barrier, transaction
from semel.stores.postgres_witness import Witness
from semel.stores.shared import exported_mark, start_of_epoch

log = logging.getLogger(__name__)

ADMIT_S = 5.0
"""How long a statement of the checks may go unanswered, beside what it may wait for a lock or a standby."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Which server, timeline and tables a connection leads to. What this user may not see is None; an unknown value is
    no evidence of a change."""

    server: str | None
    timeline: int | None
    tables: str | None

    def changes(self, now: Origin) -> dict[str, str]:
        pairs = ((name, getattr(self, name), getattr(now, name)) for name in ("server", "timeline", "tables"))
        return {
            name: f"{name} {was} became {is_now}"
            for name, was, is_now in pairs
            if was is not None and is_now is not None and was != is_now
        }

    def is_news(self, now: Origin) -> bool:
        """Whether more is known now than before."""
        pairs = ((self.server, now.server), (self.timeline, now.timeline), (self.tables, now.tables))
        return any(was is None and is_now is not None for was, is_now in pairs)


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """What a new connection leads to. `members` have ever joined; `is_followed`: commits wait for a standby."""

    noted: Origin
    origin: Origin
    members: int
    raised_on: int | None
    is_followed: bool


class Gate:
    """`node` is the name under which a new epoch is written to the ledger."""

    def __init__(self, url: str, node: str) -> None:
        self._url, self._node = url, node
        self.witness = Witness()
        self.lines = Lines(url)
        self.membership = Membership(url, node, self.witness, self.open, self.lines)
        self._barriers: tuple[int, Shared] = (-1, Shared(self._make_barrier))
        self._checking = threading.RLock()
        self._was_primary = False
        self._member_on: int | None = None
        self._server: str | None = None

    def open(self, lock_s: float = LOCK_S) -> PostgresConnection:
        """A connection that may be used."""
        session = self.lines.connect(lock_s)
        try:
            with errors(self._url):
                # others wait for these checks, so they must come to an end even if the server freezes now
                session.patience_s = max(lock_s, WAIT_S) + ADMIT_S
                self._admit(session)
                session.patience_s = None
        except BaseException as error:
            if isinstance(error, SemelError):
                # it may be an old primary that has lost its standby to another one
                self.lines.put_last(session, is_silent=is_silence(error))
            session.close()
            raise
        return session

    def is_current(self, session: PostgresConnection) -> bool:
        """False if it leads to a server that the store has been switched away from."""
        return session.term == self.witness.term

    def _admit(self, session: PostgresConnection) -> None:
        [(_, _, session.is_standby, _)] = Statements(session).ask("server")
        if session.is_standby:
            self._check_standby()
            session.term = self.witness.term
            return
        with self._checking:
            found = self._check(session)
            session.term = self.witness.term
            # what still waits for an answer of the old server would not be allowed to pass it on
            self.lines.hang_up_before(session.term)
            self._ensure_member(session, found)
            self._was_primary = True
            barriers = self._barriers_of(session.term)
        barriers.make(session)

    def _barriers_of(self, term: int) -> Shared:
        """A barrier on one server says nothing about another one."""
        if self._barriers[0] != term:
            self._barriers = (term, Shared(self._make_barrier))
        return self._barriers[1]

    def _make_barrier(self, session: PostgresConnection) -> None:
        """As our own error, so that everybody who waits for it gets the reason."""
        with errors(self._url):
            barrier(session)

    def _ensure_member(self, session: PostgresConnection, found: ConnectionFacts) -> None:
        """Where commits wait for a standby, or there are members, only a member may answer anything."""
        timeline = _known(found.origin.timeline)
        if self.membership.is_joined and self._member_on != timeline:
            self.membership.renew(session, timeline)
        elif (found.members or found.is_followed) and not self.membership.is_joined:
            self.membership.join(session, timeline)
        self._member_on = timeline

    def _check_standby(self) -> None:
        """A store that was opened on a standby may read what the standby has. One that was on a primary is not silently
        moved to a standby."""
        if self._was_primary:
            raise StoreInRecovery(
                f"{redact(self._url)} leads to a standby now", fix="try again when a primary has been promoted"
            )

    def _check(self, session: PostgresConnection) -> ConnectionFacts:
        """Another server, another timeline or other tables than last time: the history may have been cut short."""
        found = find(session)
        self._check_not_replaced(found.origin)
        changes = found.noted.changes(found.origin)
        self.witness.meet(_known(found.origin.timeline))
        switch = Switch(session, _known(found.origin.timeline), self.witness, self.membership)
        if changes and not self._is_kept(switch, found, changes):
            self.raise_epoch(session, ", ".join(changes.values()), lambda run: find_noted(run) == found.noted)
        elif Statements(session).ask("cursor_beyond_head"):
            reason = "a cursor stands beyond the end of its stream"
            self.raise_epoch(session, reason, lambda run: bool(run.ask("cursor_beyond_head")))
        elif found.noted.is_news(found.origin):
            with transaction(session) as run:
                run.run("note_origin", *astuple(found.origin))
        if not switch.is_kept_by_us:
            self._check_own(session, find(session) if changes else found)
        self.witness.move_on(_known(found.origin.timeline))
        return found

    def _check_not_replaced(self, origin: Origin) -> None:
        """An old primary may boot as a primary again and stand first in the URL. Its history has gone its own way, and
        an epoch raised there would be a second one with the same number. So nothing is written there."""
        newest = self.witness.newest
        is_elsewhere = None not in (self._server, origin.server) and self._server != origin.server
        if newest is not None and _known(origin.timeline) < newest and not is_elsewhere:
            raise StoreUnavailable(
                f"{redact(self._url)} leads to a server that was replaced: it is on timeline {origin.timeline}, "
                f"and timeline {newest} has begun",
                fix="stop it, or make it a standby; if it was restored on purpose, restart this process",
            )
        self._server = origin.server or self._server

    def _is_kept(self, switch: Switch, found: ConnectionFacts, changes: dict[str, str]) -> bool:
        """Only a switch of the same server to another timeline can be survived, and only where there are members."""
        if set(changes) != {"timeline"} or None in (*astuple(found.noted), *astuple(found.origin)) or not found.members:
            return False
        if switch.decide(lambda run: self._note_kept(run, found, changes["timeline"])):
            return True
        changes["reason"] = switch.reason
        return False

    def _note_kept(self, run: Statements, found: ConnectionFacts, change: str) -> None:
        run.run("note_origin", *astuple(found.origin))
        [(epoch,)] = run.ask("read_epoch")
        self._log(run, Event(Kind.ACTION, "store", message=f"epoch {epoch} kept", cause=change))
        log.warning("PostgreSQL was switched: %s; nothing is lost, and epoch %d goes on", change, epoch)

    def _check_own(self, session: PostgresConnection, found: ConnectionFacts) -> None:
        """Others may have decided without us. What we have answered for must be there; if not, we raise the epoch."""
        before, timeline = self.witness.timeline, _known(found.origin.timeline)
        if before is None:
            return
        if found.raised_on is None or found.raised_on <= before:
            loss = self._find_loss(session, before, timeline)
            if loss is None:
                return
            self.raise_epoch(session, loss, lambda _: True)
        self.witness.on_epoch_raised(Statements(session).ask("flushed")[0][0])

    def _find_loss(self, session: PostgresConnection, before: int, timeline: int) -> str | None:
        switch_lsn = find_switch_lsn(session, timeline, before) if timeline != before else None
        if timeline != before and switch_lsn is None:
            return "the history of the timeline cannot be read"
        [(now, *_)] = Statements(session).ask("store_now")
        # Where the timeline goes on, others have gone on too: what they have trimmed and swept since was there.
        return self.witness.find_loss(session, switch_lsn, now, is_pending=timeline == before)

    def raise_epoch(self, session: PostgresConnection, reason: str, is_needed: Callable[[Statements], bool]) -> int:
        """Raise the epoch once no commit is under way. If several processes see the need, the first one does it."""
        origin = find(session).origin
        with transaction(session, "own_epoch") as run:
            if is_needed(run):
                return self._write_epoch(run, reason, origin)
            return int(run.ask("read_epoch")[0][0])

    def _write_epoch(self, run: Statements, reason: str, origin: Origin) -> int:
        noted = find_noted(run)
        is_elsewhere = noted.server != origin.server or noted.tables != origin.tables
        [(epoch,)] = run.ask("raise_epoch", _highest_exported(run), origin.timeline)
        drop_silent(run, -1 if is_elsewhere else _known(origin.timeline))
        run.run("note_origin", *astuple(origin))
        run.run("raise_heads", EPOCH_GAP, start_of_epoch(epoch))
        run.run("rebase_cursors", epoch)
        run.run("raise_fence", EPOCH_GAP)
        self._log(run, Event(Kind.ACTION, "store", message=f"epoch {epoch}", cause=reason))
        run.run("notify")
        reach("epoch.raised")
        log.warning("epoch %d begins: %s", epoch, reason)
        return int(epoch)

    def _log(self, run: Statements, event: Event) -> None:
        engine = PostgresEngine(run.join, self._node)
        engine.add_ledger([event])
        engine.flush()


class Shared:
    """An action that many ask for at once; one run serves all who asked before it began.

    When it fails, it fails for all who wait: otherwise each would try in turn, and the last would wait for all."""

    def __init__(self, act: Callable[[PostgresConnection], None]) -> None:
        self._act = act
        self._turn = threading.Condition()
        self._begun = self._done = self._failures = 0
        self._is_acting = False
        self._failure: SemelError | None = None
        self.waiting = 0

    def make(self, session: PostgresConnection) -> None:
        """Return when it has been done once from now on, by this connection or by another that waits like it."""
        with self._turn:
            if self._is_served():
                return
            self._begun += 1
            self._is_acting = True
        try:
            self._act(session)
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        with self._turn:
            self._is_acting = False
            if error is None:
                self._done = self._begun
            elif isinstance(error, SemelError):
                self._failure = error
                self._failures += 1
            self._turn.notify_all()

    def _is_served(self) -> bool:
        """Wait until somebody else has done it, or nobody is going to."""
        wanted, failures = self._begun + 1, self._failures
        self.waiting += 1
        try:
            while self._is_acting:
                self._turn.wait()
                if self._failures > failures and self._failure is not None:
                    raise StoreUnavailable(self._failure.message, fix=self._failure.fix) from self._failure
        finally:
            self.waiting -= 1
        return self._done >= wanted


def find(session: PostgresConnection) -> ConnectionFacts:
    run = Statements(session)
    [(*noted, _, members, raised_on, is_followed, timeline, tables)] = run.ask("origin")
    server = None
    with suppress(StoreReadOnly), errors(""):
        [(server,)] = run.ask("system_id")
    return ConnectionFacts(Origin(*noted), Origin(server, timeline, tables), members, raised_on, is_followed)


def find_noted(run: Statements) -> Origin:
    return Origin(*run.ask("origin")[0][:3])


def check_settled(run: Statements) -> None:
    """For a transaction on a connection that did not come through the gate, with the epoch held."""
    if not run.ask("is_settled")[0][0]:
        raise StoreUnavailable("PostgreSQL was switched to another server", fix="start the query again")


def _known(timeline: int | None) -> int:
    assert timeline is not None, "a primary knows its timeline"
    return timeline


def _highest_exported(run: Statements) -> int:
    states = [row for key in ("export/index", "export/ledger") for row in run.ask("exported", key)]
    return max((mark.xid for row in states if (mark := exported_mark(State(*row)))), default=0)
