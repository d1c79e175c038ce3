"""The gate through which every connection of a store comes: writer, readers and listener alike.

A connection may lead to another server than the one before it, or to the same one after a crash. So each is checked
before its first use: against the noted origin, because history may have been cut short; and by one commit that the
synchronous standby confirms, because a crash makes commits visible that were still waiting for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from semel.errors import SemelError, StoreReadOnly, StoreUnavailable
from semel.kernel.ledger import Event, Kind
from semel.kernel.position import EPOCH_GAP
from semel.kernel.store import State
from semel.stores.points import reach
from semel.stores.postgres_engine import PostgresEngine
from semel.stores.postgres_sync import barrier, transaction
from semel.stores.postgres_wire import Session, Statements, connect, errors, redact
from semel.stores.shared import exported_mark, start_of_epoch

ORIGIN = ("server", "timeline", "tables")


class Gate:
    """`node` is the name under which a new epoch is written to the ledger."""

    def __init__(self, url: str, node: str) -> None:
        self._url, self._node = url, node
        self._barriers = Shared(barrier)
        self._checking = threading.Lock()
        self._was_primary = False

    def open(self, lock_s: float | None = None) -> Session:
        """A connection that may be used."""
        session = connect(self._url) if lock_s is None else connect(self._url, lock_s)
        try:
            with errors(self._url):
                self._admit(session)
        except BaseException:
            session.close()
            raise
        return session

    def _admit(self, session: Session) -> None:
        run = Statements(session)
        [(_, _, session.is_standby, _)] = run.ask("server")
        if session.is_standby:
            self._check_standby()
            return
        with self._checking:
            self._check_rewind(session)
        self._was_primary = True
        self._barriers.make(session)

    def _check_standby(self) -> None:
        """Whoever opened the store on a standby reads what the standby has. Nobody is led back to it in silence."""
        if self._was_primary:
            raise StoreUnavailable(
                f"{redact(self._url)} leads to a standby now", fix="try again when a primary has been promoted"
            )

    def _check_rewind(self, session: Session) -> None:
        """Another server, another timeline or other tables than last time: the history may have been cut short."""
        run = Statements(session)
        origin = find_origin(run)
        [(_, _, _, *noted)] = run.ask("read_store")
        changes = [
            f"{what} {was} became {now}"
            for what, was, now in zip(ORIGIN, noted, origin, strict=True)
            if was is not None and now is not None and was != now
        ]
        if changes:
            self.raise_epoch(session, ", ".join(changes), lambda run: run.ask("read_store")[0][3:] == tuple(noted))
        elif run.ask("cursor_beyond_head"):
            reason = "a cursor stands beyond the end of its stream"
            self.raise_epoch(session, reason, lambda run: bool(run.ask("cursor_beyond_head")))
        elif any(was is None and now is not None for was, now in zip(noted, origin, strict=True)):
            with transaction(session) as run:
                run.run("note_origin", *origin)

    def raise_epoch(self, session: Session, reason: str, is_needed: Callable[[Statements], bool]) -> int:
        """Waits until no commit is under way. Of several processes that see the need, the first one does it."""
        origin = find_origin(Statements(session))
        with transaction(session, "own_epoch") as run:
            if not is_needed(run):
                return int(run.ask("read_epoch")[0][0])
            [(epoch,)] = run.ask("raise_epoch", _highest_exported(run))
            run.run("note_origin", *origin)
            run.run("raise_heads", EPOCH_GAP, start_of_epoch(epoch))
            run.run("rebase_cursors", epoch)
            run.run("raise_fence", EPOCH_GAP)
            self._log(run, Event(Kind.ACTION, "store", message=f"epoch {epoch}", cause=reason))
            run.run("notify")
            reach("epoch.raised")
        return int(epoch)

    def _log(self, run: Statements, event: Event) -> None:
        engine = PostgresEngine(run.join, self._node)
        engine.add_ledger([event])
        engine.flush()


class Shared:
    """An act that many ask for at once and that serves all who asked before it began.

    When it fails, all who wait hear of it: otherwise each would try in turn, and the last would wait for all."""

    def __init__(self, act: Callable[[Session], None]) -> None:
        self._act = act
        self._turn = threading.Condition()
        self._begun = self._done = self._failures = 0
        self._is_acting = False
        self._failure: SemelError | None = None
        self.waiting = 0

    def make(self, session: Session) -> None:
        """Have it done once from now on, by this session or by another one that waits like it."""
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
        """Wait until somebody else has done it, or nobody is about to."""
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


def find_origin(run: Statements) -> list[Any]:
    """What this user may not see stays unknown, and what is unknown proves nothing."""
    return [_ask_or_none(run, query) for query in ("system_id", "timeline", "table_ids")]


def _ask_or_none(run: Statements, query: str) -> Any:
    with suppress(StoreReadOnly), errors(""):
        return run.ask(query)[0][0]
    return None


def _highest_exported(run: Statements) -> int:
    states = [row for key in ("export/index", "export/ledger") for row in run.ask("exported", key)]
    return max((mark.xid for row in states if (mark := exported_mark(State(*row)))), default=0)
