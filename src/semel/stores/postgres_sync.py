"""Transactions that are answered only when the synchronous standby has them, and never waited for without an end.

A COMMIT that waits for a standby ends in one of four ways. The standby confirms: success. Somebody cancels the wait:
success and a WARNING, although a standby that is promoted would not have it. Somebody ends the session: a WARNING, and
the connection is closed. Or nobody does anything: neither statement_timeout nor lock_timeout nor transaction_timeout
ends this wait, and the server does not notice that its client has gone. Only a cancel does, so we send one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

import psycopg
from psycopg.pq import TransactionStatus

from semel.errors import StoreUnavailable
from semel.stores.postgres_connection import PostgresConnection, Statements, is_broken

log = logging.getLogger(__name__)

WAIT_S = 5.0
"""How long a COMMIT beside the store's commits may take, its wait for the standby included."""
FIX_STANDBY = "check that the primary and its synchronous standby run, then try again"
CANCEL_S = 2.0
"""How long a server may take to obey a cancel before its connection is cut."""


class Watch:
    """Cancels what a session is doing when it takes too long, and cuts the connection when that does not help.

    A session that was late is closed: the cancel may still be on its way and would hit whatever comes next."""

    def __init__(self, session: PostgresConnection, wait_s: float) -> None:
        self._session, self._wait_s = session, wait_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="semel-watch", daemon=True)
        self.is_late = False

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        if self.is_late:
            self._session.close()

    def _run(self) -> None:
        if self._done.wait(self._wait_s):
            return
        self.is_late = True
        with suppress(psycopg.Error):
            self._session.cancel_safe(timeout=CANCEL_S)
        if not self._done.wait(CANCEL_S):
            self._session.hang_up()


@contextmanager
def transaction(
    session: PostgresConnection,
    lock: str | None = None,
    *,
    durable: bool = True,
    lock_s: float | None = None,
    wait_s: float = 0.0,
) -> Iterator[Statements]:
    """A short transaction. When it is durable and this returns, the synchronous standby has it too.

    `lock_s` is how long to wait for a lock, `wait_s` for COMMIT, if not as long as usual."""
    try:
        run = Statements(session)
        run.run("begin")
        run.run("need_disk" if durable else "need_no_disk")
        if lock_s is not None:
            run.run("wait_for", f"{int(lock_s * 1000)}ms")
        if lock is not None:
            run.run(lock)
        yield run
    except BaseException:
        roll_back(session)
        raise
    session.warnings.clear()
    if durable:
        with watched(session, wait_s or WAIT_S):
            session.execute("COMMIT", prepare=False)
    else:
        session.execute("COMMIT", prepare=False)
    if durable:
        _check_confirmed(session)


def _check_confirmed(session: PostgresConnection) -> None:
    if session.warnings:
        session.close()
        raise StoreUnavailable(f"the synchronous standby has not confirmed: {session.warning_text}", fix=FIX_STANDBY)


@contextmanager
def watched(session: PostgresConnection, wait_s: float | None = None) -> Iterator[None]:
    """What the session does here ends in time."""
    with Watch(session, WAIT_S if wait_s is None else wait_s) as watch:
        try:
            yield
        except psycopg.Error as error:
            if watch.is_late:
                raise StoreUnavailable("PostgreSQL or its standby did not answer in time", fix=FIX_STANDBY) from error
            raise


def barrier(session: PostgresConnection) -> None:
    """Returns when the standby has all that this session could see when it was called."""
    run = Statements(session)
    session.warnings.clear()
    with watched(session), session.pipeline():
        for name in ("begin", "need_disk", "barrier"):
            run.run(name)
        session.execute("COMMIT", prepare=False)
    _check_confirmed(session)


def roll_back(session: PostgresConnection) -> None:
    """A connection that cannot even roll back is of no use: the server ends its transaction with it."""
    try:
        if not is_broken(session) and session.info.transaction_status != TransactionStatus.IDLE:
            session.execute("ROLLBACK", prepare=False)
    except psycopg.Error:
        session.close()
