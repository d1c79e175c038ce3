"""Which inputs of a pipeline have been answered for: what a batch has to know before it lands.

Only those who hold the state `sink/<pipeline>` write the streams that are looked at here. So what was found stands for
as long as nobody else has landed a batch, and then the commit is refused and this is asked again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

import msgspec

from semel.errors import StoreUnavailable
from semel.kernel.store import Store
from semel.spark.landing import Inputs, died_stream, output_stream, questions, receipts_stream
from semel.spark.rows import Row
from semel.stores.queries import load_queries
from semel.stores.sqlite import path_of

BUSY_S = 30.0


def answered(store: Store, pipeline: str, rows: Sequence[Row], *, elsewhere: bool = False) -> Inputs:
    """Those of the rows' inputs that the pipeline has answered for: see `questions`. A stream that holds nothing is not
    asked."""
    kept, receipts, died = output_stream(pipeline), receipts_stream(pipeline), died_stream(pipeline)
    used = [stream for stream in (kept, receipts, died) if store.head(stream).offset > 0]
    if not used:
        return Inputs()
    asked = questions(rows, elsewhere=elsewhere)
    wanted = {kept: asked.kept, receipts: asked.receipts, died: asked.dead}
    found = known(store, {stream: wanted[stream] for stream in used if wanted[stream]})
    return Inputs(found.get(kept, set()), found.get(receipts, set()), found.get(died, set()))


def known(store: Store, wanted: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """By stream, which of the identities it holds."""
    if not wanted:
        return {}
    return _known_in_sqlite(store, wanted) if store.url.startswith("sqlite:") else _known_in_postgres(store, wanted)


def _known_in_sqlite(store: Store, wanted: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    statements = load_queries("sqlite.sql")
    found: dict[str, set[str]] = {}
    try:
        with closing(sqlite3.connect(path_of(store.url), isolation_level=None, timeout=BUSY_S)) as connection:
            connection.execute("PRAGMA query_only = ON")
            for stream, identities in wanted.items():
                id, *_ = connection.execute(statements["read_stream"], (stream,)).fetchone()
                rows = connection.execute(statements["known"], (id, msgspec.json.encode(list(identities)).decode()))
                found[stream] = {identity for identity, _ in rows}
    except sqlite3.Error as error:
        raise StoreUnavailable(f"SQLite failed: {error}", fix="see the message; then start the query again") from None
    return found


def _known_in_postgres(store: Store, wanted: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    import psycopg

    from semel.stores.postgres_wire import Statements, errors, texts

    with errors(store.url), psycopg.connect(store.url, autocommit=True) as connection:
        run = Statements(connection, ours=False)
        return {
            stream: {identity for _, identity, _ in run.ask("known", stream, texts(list(identities)))}
            for stream, identities in wanted.items()
        }
