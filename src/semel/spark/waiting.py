"""Rows that wait behind a gap: which sessions of a pipeline wait, for which index, and how many rows of each.

The order keeps such rows in the state of the query, where nobody else can see them. So it lets out a row with the
outcome 'waiting' whenever that changes for a session, and the sink writes it down with the batch: for `semel pipeline
status`, and for the audit, to which a message behind a gap is not lost.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from semel.errors import StoreError
from semel.kernel.ops import Op, Put
from semel.kernel.store import Store
from semel.spark.landing import Job
from semel.spark.rows import Row, RowOutcome

SESSIONS_MAX = 100_000
"""So many sessions are written down, and no more: it is for people and audits, and the query keeps its rows anyway."""


class Wait(msgspec.Struct, frozen=True):
    """`rows` rows of a session cannot pass before the one with this index has come."""

    index: int
    rows: int


class Waits(msgspec.Struct, frozen=True):
    """The sessions that wait, by the query that keeps their rows. Another query has rows of its own."""

    query: str = ""
    sessions: dict[str, Wait] = {}

    @property
    def rows(self) -> int:
        return sum(wait.rows for wait in self.sessions.values())


def waits_key(pipeline: str) -> str:
    return f"sink/{pipeline}/waiting"


def read_waits(store: Store, pipeline: str) -> Waits:
    state = store.state(waits_key(pipeline))
    if state is None:
        return Waits()
    try:
        return msgspec.json.decode(state.value, type=Waits)
    except msgspec.MsgspecError as error:
        fix = "give the pipeline another name"
        raise StoreError(f"the state {waits_key(pipeline)} is not one that this sink wrote: {error}", fix=fix) from None


def waiting_ops(store: Store, job: Job, rows: Iterable[Row]) -> list[Op]:
    """What a batch has to say about sessions that wait. They land in the transaction of the batch."""
    changes = {
        row.envelope.session: Wait(row.envelope.index or 0, rows_waiting(row.cause))
        for row in rows
        if row.outcome is RowOutcome.WAITING and row.envelope.session is not None
    }
    known = read_waits(store, job.pipeline)
    is_other = known.query != job.query
    if job.once or not (changes or (is_other and known.sessions)):
        return []
    sessions = {} if is_other else dict(known.sessions)
    for session, wait in changes.items():
        sessions.pop(session, None)
        if wait.rows and len(sessions) < SESSIONS_MAX:
            sessions[session] = wait
    return [Put(waits_key(job.pipeline), msgspec.json.encode(Waits(job.query, sessions)))]


def waiting_cause(rows: int) -> str:
    """The cause of a row with the outcome 'waiting'."""
    return f"{rows} rows wait for it"


def rows_waiting(cause: str | None) -> int:
    """Undo `waiting_cause`. A row that somebody else made says nothing."""
    number = (cause or "").partition(" ")[0]
    return int(number) if number.isdecimal() else 0
