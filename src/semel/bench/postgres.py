"""PostgreSQL under measurement: the given server, or a private one from a wheel with full durability."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from semel.bench.sides import STREAM, Bench, batch_event
from semel.kernel.envelope import Envelope
from semel.stores import open_store
from semel.stores.rows import ENVELOPE_COLUMNS, envelope_row

RECORD_COLUMNS = ("stream_id", '"offset"', "xid", "epoch", "at", "kind", "target", "identity", *ENVELOPE_COLUMNS)
LEDGER_COLUMNS = (
    "xid", "at", "node", "pipeline", "hop", "kind", "peer", "stream", "epoch", "first", "last", "n", "fold", "attempt",
)  # fmt: skip


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})"


class RawPostgres:
    """psycopg's own `executemany` into the same tables of another database on the same server."""

    def __init__(self, url: str) -> None:
        open_store(url).close()
        self._db = psycopg.connect(url)
        self._db.execute(
            "INSERT INTO semel_stream (name, start, head, first) VALUES (%s, 0, 0, 1)", [STREAM], prepare=True
        )
        [(self._stream_id,)] = self._db.execute("SELECT id FROM semel_stream WHERE name = %s", [STREAM]).fetchall()
        self._db.commit()
        self._head = 0

    def prepare(self, envelopes: Sequence[Envelope], batch: int) -> list[Any]:
        return [self._batch(envelopes[start : start + batch]) for start in range(0, len(envelopes), batch)]

    def _batch(self, envelopes: Sequence[Envelope]) -> tuple[list[tuple[Any, ...]], tuple[Any, ...], int]:
        first = self._head + 1
        rows = []
        for envelope in envelopes:
            self._head += 1
            rows.append((self._stream_id, self._head, 0, 1, 0, 0, "", envelope.id, *envelope_row(envelope)))
        event = batch_event(first, envelopes)
        ledger = (
            0, 0, "local", "", event.hop, event.kind, "", event.stream, event.epoch, event.first, event.last, event.n,
            event.fold, 1,
        )  # fmt: skip
        return rows, ledger, self._head

    def insert(self, batches: Sequence[Any]) -> None:
        add_record, add_ledger = _insert("semel_record", RECORD_COLUMNS), _insert("semel_ledger", LEDGER_COLUMNS)
        with self._db.cursor() as cursor:
            for rows, ledger, head in batches:
                cursor.executemany(add_record, rows)
                cursor.execute("UPDATE semel_stream SET head = %s WHERE id = %s", (head, self._stream_id))
                cursor.execute(add_ledger, ledger)
                self._db.commit()

    def close(self) -> None:
        self._db.close()


class PostgresBench(Bench):
    """Two databases of one server: one for Semel, one for the raw batches. Both are dropped afterwards."""

    def __init__(self, server_url: str | None, folder: Path) -> None:
        from semel.testing.postgres import PrivatePostgres, new_database

        with ExitStack() as stack:
            if server_url is None:
                server_url = stack.enter_context(PrivatePostgres(durable=True)).url
            store = open_store(stack.enter_context(new_database(server_url)))
            raw = RawPostgres(stack.enter_context(new_database(server_url)))
            super().__init__(store, raw, folder)
            self._stack = stack.pop_all()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._stack.close()
