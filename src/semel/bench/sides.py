"""The two sides of a comparison: a store under measurement and, beside it, the same tables for raw batches."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind, fold_ids
from semel.kernel.store import Store
from semel.stores import open_store
from semel.stores.rows import envelope_row
from semel.stores.sqlite import SqliteStore
from semel.stores.sqlite_engine import Q, ledger_row

STREAM = "hub/bench"
HOP = "client>hub/bench"


class Raw(Protocol):
    """The baseline: no verdicts, no producers, no group commit; what the engine itself can do when somebody hands it a
    hundred finished rows at a time and waits for the disk after each hundred."""

    def prepare(self, envelopes: Sequence[Envelope], batch: int) -> list[Any]:
        """Everything that can be done before the clock starts."""
        ...

    def insert(self, batches: Sequence[Any]) -> None:
        """One transaction per batch."""
        ...

    def close(self) -> None: ...


def batch_event(first: int, envelopes: Sequence[Envelope]) -> Event:
    """The ledger row that a group commit of these records writes."""
    return Event(
        Kind.ACCEPTED,
        HOP,
        stream=STREAM,
        epoch=1,
        first=first,
        last=first + len(envelopes) - 1,
        n=len(envelopes),
        fold=fold_ids(envelope.id for envelope in envelopes),
    )


class RawSqlite:
    """Inserts into a fresh file through a connection that the store has set up, so the settings are the same."""

    def __init__(self, url: str) -> None:
        self._store = SqliteStore(url)
        self._db: sqlite3.Connection = self._store._writer
        # a plain loop leaves the log to SQLite, so here it behaves as SQLite does by default
        self._db.execute("PRAGMA wal_autocheckpoint = 1000")
        self._stream_id = self._db.execute(Q["add_stream"], (STREAM, 0)).fetchone()[0]
        self._head = self._seq = self._ledger = self._commits = 0

    def prepare(self, envelopes: Sequence[Envelope], batch: int) -> list[Any]:
        return [self._batch(envelopes[start : start + batch]) for start in range(0, len(envelopes), batch)]

    def _batch(self, envelopes: Sequence[Envelope]) -> tuple[list[tuple[Any, ...]], tuple[Any, ...], tuple[Any, ...]]:
        first = self._head + 1
        rows = []
        for envelope in envelopes:
            self._head += 1
            self._seq += 1
            own = (self._seq, self._stream_id, 1, self._head, envelope.id, 0, "", 0)
            rows.append((*own, *envelope_row(envelope), None))  # without a digest, as what is appended beside it
        self._ledger += 1
        self._commits += 1
        ledger = (self._ledger, 0, "local", *ledger_row(batch_event(first, envelopes)))
        return rows, ledger, (self._commits, 0, self._seq, 0, self._ledger)

    def insert(self, batches: Sequence[Any]) -> None:
        db, head = self._db, self._head - sum(len(rows) for rows, _, _ in batches)
        for rows, ledger, counters in batches:
            head += len(rows)
            db.execute("BEGIN IMMEDIATE")
            db.executemany(Q["add_record"], rows)
            db.execute(Q["set_head"], (head, self._stream_id))
            db.execute(Q["add_ledger"], ledger)
            db.execute(Q["end_store"], counters)
            db.execute("COMMIT")

    def close(self) -> None:
        self._store.close()


class Bench:
    """`stored` is how many rows each side holds; `folder` is on the disk that is measured."""

    def __init__(self, store: Store, raw: Raw, folder: Path) -> None:
        self.store = store
        self.raw = raw
        self.folder = folder
        self.stored = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()
        self.store.close()


class SqliteBench(Bench):
    """Two files in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="semel-bench-", dir=folder)
        path = Path(self._temporary.name).resolve()
        super().__init__(open_store(f"sqlite:///{path}/semel.db"), RawSqlite(f"sqlite:///{path}/raw.db"), path)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._temporary.cleanup()
