"""Handlers that share a commit: one after the other in one transaction.

    a handler fails                 its writes are rolled back to its savepoint; the others are committed
    anything else goes wrong        all is rolled back, and each runs again in a transaction of its own

"Anything else" is a connection that is lost, a fence that is stale, a commit that fails or is in doubt. In doubt it may
have happened: then each one's fence is used up, its second run is rolled back and says LOST, and nothing happens twice.

A savepoint on PostgreSQL is a round trip, about as dear as the handler's own statement. So there they are set only for
a while after a handler has failed; the failure itself rolls all of them back, and they run again behind savepoints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from semel.errors import StaleFence, TransactionEnded
from semel.kernel.effects import OwnTransaction
from semel.kernel.store import Store
from semel.runtime.host.log_fields import about_many
from semel.runtime.inbox.handling import HandlerRun
from semel.runtime.inbox.lanes import LaneEnd
from semel.runtime.inbox.outbox import Outbox, apply_cancels
from semel.runtime.inbox.own_commits import EndedItself, watched
from semel.runtime.transactions import bind
from semel.stores.points import reach
from semel.stores.sqlite import SqliteStore
from semel.stores.sqlite_session import session_of

log = logging.getLogger(__name__)

POINT = "semel_shared"
CAREFUL = 50
"""So many transactions after one in which a handler failed have savepoints."""


class Savepoints(Protocol):
    """One name is used again and again: the last one of a name is the one that is meant."""

    def begin(self) -> None: ...

    def set(self) -> None: ...

    def go_back(self) -> None: ...


class HandlerFailedWithoutSavepoint(Exception):
    """All of its transaction is rolled back."""


class _SqliteSavepoints:
    def __init__(self, store: SqliteStore, connection: Any) -> None:
        self._store, self._connection = store, connection

    def begin(self) -> None:
        """The write lock is waited for in turn, and before the first handler reads: none of them can fail for it."""
        self._store.begin_users(session_of(self._connection))

    def set(self) -> None:
        self._connection.execute(f"SAVEPOINT {POINT}")

    def go_back(self) -> None:
        self._connection.execute(f"ROLLBACK TO {POINT}")


class _NoSavepoints:
    def begin(self) -> None: ...

    def set(self) -> None: ...

    def go_back(self) -> None:
        raise HandlerFailedWithoutSavepoint


def savepoints_of(store: Store, connection: Any) -> Savepoints:
    if isinstance(store, SqliteStore):
        return _SqliteSavepoints(store, connection)
    from semel.runtime.inbox.psycopg_savepoints import PsycopgSavepoints  # where SQLite is all there is, it is not

    return PsycopgSavepoints(connection)


class SharedCommits:
    """Runs the handlers of an endpoint, from any of its threads."""

    def __init__(self) -> None:
        self._careful = 0

    def run(self, runs: Sequence[HandlerRun]) -> list[LaneEnd]:
        """Several handlers of one provider in one transaction, or in one each if that fails."""
        if len(runs) > 1:
            try:
                return self._run_shared(runs)
            except _Spoilt as spoilt:
                return [*spoilt.ends, *(run_alone(run) for run in runs[len(spoilt.ends) :])]
            except StaleFence:
                pass  # one of them is no longer ours, and its own run will say which
            except Exception:
                fields = about_many(runs[0].identity.queue.removeprefix("inbox/"), [run.envelope.id for run in runs])
                log.info(
                    "%d handlers could not share a commit; each runs by itself", len(runs), exc_info=True, extra=fields
                )
        return [run_alone(run) for run in runs]

    def _run_shared(self, runs: Sequence[HandlerRun]) -> list[LaneEnd]:
        if not self._careful and not isinstance(runs[0].context.store, SqliteStore):
            try:
                return _run_shared(runs, behind_savepoints=False)
            except HandlerFailedWithoutSavepoint:
                self._careful = CAREFUL
        self._careful = max(0, self._careful - 1)
        return _run_shared(runs)


def run_alone(run: HandlerRun) -> LaneEnd:
    try:
        answer, is_used = run.ended_in_thread()
    except (Exception, SystemExit) as error:
        return LaneEnd(error)
    return LaneEnd(answer, has_news=is_used)


def _run_shared(runs: Sequence[HandlerRun], *, behind_savepoints: bool = True) -> list[LaneEnd]:
    provider, store = runs[0].handler.provider, runs[0].context.store
    assert provider is not None, "handlers that share a commit have a transaction"
    begin: Callable[[], Any] = provider.begin
    with begin() as transaction:
        points = savepoints_of(store, transaction) if behind_savepoints else _NoSavepoints()
        points.begin()
        ends = _run_all(points, runs, transaction)
        reach("inbox.returned")
        good = [(run, outbox) for run, outbox in zip(runs, ends, strict=True) if isinstance(outbox, Outbox)]
        _apply_all(store, transaction, good)
        reach("inbox.marked")
    reach("inbox.committed")
    return [
        LaneEnd(OwnTransaction.FINISHED, has_news=end.is_used) if isinstance(end, Outbox) else LaneEnd(end)
        for end in ends
    ]


class _Spoilt(Exception):
    """A handler has ended the transaction that others share. Those before it may have had their effect without their
    mark, as it has: none of them is tried again."""

    def __init__(self, ends: Sequence[LaneEnd]) -> None:
        self.ends = ends


def _run_all(points: Savepoints, runs: Sequence[HandlerRun], transaction: Any) -> list[Outbox | BaseException]:
    ends: list[Outbox | BaseException] = []
    ended = watched(transaction)
    for run in runs:
        ends.append(_run_behind(points, run, transaction, ended))
        if isinstance(error := ends[-1], TransactionEnded):
            raise _Spoilt([LaneEnd(end if isinstance(end, BaseException) else error) for end in ends])
    return ends


def _run_behind(points: Savepoints, run: HandlerRun, transaction: Any, ended: EndedItself) -> Outbox | BaseException:
    points.set()
    try:
        return run.begun_in(transaction, ended)
    except TransactionEnded as error:
        return error  # there is no savepoint to go back to
    except (Exception, SystemExit) as error:
        points.go_back()
        return error


def _apply_all(store: Store, transaction: Any, good: Sequence[tuple[HandlerRun, Outbox]]) -> None:
    """The marks of all and what they send: one call, as few statements as it takes."""
    if not good:
        return
    tx: Any = bind(store, transaction)
    for _, outbox in good:
        apply_cancels(tx, outbox)
    tx.apply([op for run, outbox in good for op in (*run.mark, *outbox.ops)])
