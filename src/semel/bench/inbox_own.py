"""Two sides of `semel bench inbox`: Semel, and the same statements by hand.

By hand means: the same tables, the same durability, the same number of round trips and of connections, claims in
batches of the same size and one statement for mark and ledger. It checks nothing: no order of keys is kept, nobody asks
whether the commit is durable, and nothing is renewed, retried or given back.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import psycopg

from semel.bench.inbox_meter import Meter, Took, answer
from semel.inbox.identity import inbox_hop, inbox_queue
from semel.inbox.messages import envelope_of
from semel.kernel.envelope import mint_id
from semel.kernel.ledger import Kind
from semel.runtime.host.loop import run as run_loop
from semel.runtime.inbox.app import App
from semel.runtime.inbox.lanes import RUN_AHEAD
from semel.runtime.inbox.service import InboxService
from semel.stores.open import open_store
from semel.stores.sqlite import SqliteStore

ENDPOINT = "orders"
QUEUE, HOP = inbox_queue(ENDPOINT), inbox_hop(ENDPOINT)
SCOPE = "inbox/app/id"
KEEP_US = 604_800_000_000
EFFECT = "CREATE TABLE IF NOT EXISTS effect (id text PRIMARY KEY, amount integer)"
FILL = 500


@dataclass
class Placed:
    """The message."""

    id: str
    amount: int
    note: str


def new_id(ids: str) -> str:
    return mint_id(time.time(), os.urandom(10)) if ids == "ordered" else str(uuid.uuid4())


def placed(count: int, body_bytes: int, ids: str = "ordered") -> list[Placed]:
    return [Placed(new_id(ids), number, "x" * body_bytes) for number in range(count)]


# -- Semel


class SemelSide:
    def __init__(self, url: str, postmaster: int | None, body_bytes: int) -> None:
        self._url, self._postmaster, self._body_bytes = url, postmaster, body_bytes
        self._meter = Meter(1, None)
        open_store(url).close()
        _make_effect(url)

    def __call__(self, what: str, asked: Mapping[str, Any]) -> Took:
        does: dict[str, Callable[..., Took]] = {
            "store": self._store, "handle": self._handle, "both": self._both, "sweep": self._sweep, "fill": self._fill,
        }  # fmt: skip
        return does[what](**asked)

    def _app(self, workers: int, share: int) -> App:
        app = App(self._url, name="app")
        options: dict[str, Any] = {"share_commit": share} if share > 1 else {}
        orders = app.endpoint(ENDPOINT, parallel=workers, **options)
        if self._url.startswith("sqlite"):
            orders.on(Placed)(self._on_sqlite)
        else:
            orders.on(Placed)(_postgres_handler(lambda: self._meter))
        return app

    def _on_sqlite(self, placed: Placed, db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO effect VALUES (?, ?)", (placed.id, placed.amount))
        self._meter.hit()

    def _store(self, messages: int, ids: str = "ordered") -> Took:
        """What was only to be stored must not be handled in the next round."""
        took = self._stored(messages, ids)
        _run(self._url, "DELETE FROM semel_work WHERE state = 0")
        return took

    def _stored(self, messages: int, ids: str) -> Took:
        with closing(self._app(1, 1)) as app:
            meter = Meter(messages, self._postmaster)
            for each in placed(messages, self._body_bytes, ids):
                app.send(each, to=ENDPOINT, id=each.id)
                meter.hit()
        return meter.took()

    def _handle(self, messages: int, workers: int, share: int = 1) -> Took:
        with closing(self._app(workers, share)) as app:
            envelopes = [envelope_of(each, each.id) for each in placed(messages, self._body_bytes)]
            for at in range(0, messages, FILL):
                app.receive(ENDPOINT, envelopes[at : at + FILL])
            self._meter = Meter(messages, self._postmaster)
            before = effects(self._url)
            run_loop(self._serve(app))
        if (found := effects(self._url) - before) != messages:
            raise RuntimeError(f"{found} of {messages} messages had their effect")
        return self._meter.took()

    def _both(self, messages: int, workers: int, ids: str) -> Took:
        """Stored one by one, then handled: what a message costs in all."""
        stored = self._stored(messages, ids)
        with closing(self._app(workers, 1)) as app:
            self._meter = Meter(messages, self._postmaster)
            run_loop(self._serve(app))
        return stored.and_then(self._meter.took())

    def _sweep(self, messages: int, workers: int) -> Took:
        """What is done is moved, all of it."""
        self._handle(messages, workers)
        with closing(open_store(self._url)) as store:
            begin = Meter(1, self._postmaster, warm=0)
            rows = 0
            while (swept := store.sweep(time.time_ns() // 1000)).work + swept.moved:
                rows += swept.work + swept.moved
            begin.hit()
        return begin.took().of(max(1, rows))

    def _fill(self, messages: int, ids: str) -> Took:
        """Identities as a sweep leaves them, made by the server itself."""
        meter = Meter(1, self._postmaster, warm=0)
        _run(self._url, f"INSERT INTO semel_name (name) VALUES ('{SCOPE}'), ('{QUEUE}') ON CONFLICT DO NOTHING")
        identity = "lpad(to_hex(1700000000000 + n), 12, '0') || substr(md5(n::text), 1, 20)"
        if ids == "random":
            identity = "md5(n::text)"
        _run(
            self._url,
            f"""INSERT INTO semel_identity (seq, keep_until, scope, queue, identity)
            SELECT -n, {time.time_ns() // 1000 + KEEP_US}, s.id, q.id,
                regexp_replace({identity}, '(.{{8}})(.{{4}})(.{{4}})(.{{4}})(.*)', '\\1-\\2-\\3-\\4-\\5')
            FROM generate_series(1, {messages}) n, semel_name s, semel_name q
            WHERE s.name = '{SCOPE}' AND q.name = '{QUEUE}'""",
        )
        _run(self._url, "ANALYZE semel_identity")
        meter.hit()
        return meter.took().of(messages)

    async def _serve(self, app: App) -> None:
        async with InboxService(app):
            await asyncio.to_thread(self._meter.done.wait)


def _postgres_handler(meter: Callable[[], Meter]) -> Callable[..., None]:
    def handle(placed: Placed, db: psycopg.Connection) -> None:
        db.execute("INSERT INTO effect VALUES (%s, %s)", (placed.id, placed.amount))
        meter().hit()

    return handle


def effects(url: str) -> int:
    count = "SELECT count(*) FROM effect"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            return int(db.execute(count).fetchone()[0])
    with psycopg.connect(url) as connection:
        [(found,)] = connection.execute(count).fetchall()
    return int(found)


def _make_effect(url: str) -> None:
    _run(url, EFFECT)


def _run(url: str, statement: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            db.execute(statement)
            db.commit()
        return
    with psycopg.connect(url) as connection:
        connection.execute(statement)


# -- by hand


class Hand(Protocol):
    """One connection, and what is done on it by hand."""

    def store(self, row: Sequence[Any]) -> None: ...

    def claim(self, limit: int) -> list[tuple[Any, ...]]: ...

    def handle(self, rows: Sequence[tuple[Any, ...]], meter: Meter) -> None:
        """One commit for all of them."""
        ...

    def close(self) -> None: ...


class RawSide:
    """`connect` opens a connection; each worker is a thread with one of its own, and one of them claims."""

    def __init__(self, url: str, connect: Callable[[], Hand], postmaster: int | None, body_bytes: int) -> None:
        self._connect, self._postmaster, self._body_bytes = connect, postmaster, body_bytes
        open_store(url).close()
        _make_effect(url)
        self._claimer = connect()
        self._seq = 0

    def __call__(self, what: str, asked: Mapping[str, Any]) -> Took:
        return self._store(asked["messages"]) if what == "store" else self._handle(**asked)

    def _rows(self, count: int) -> list[tuple[Any, ...]]:
        rows = []
        for each in placed(count, self._body_bytes):
            self._seq += 1
            body = json.dumps({"id": each.id, "amount": each.amount, "note": each.note}).encode()
            rows.append((self._seq, each.id, body, len(body)))
        return rows

    def _store(self, count: int) -> Took:
        meter = Meter(count, self._postmaster)
        for row in self._rows(count):
            self._claimer.store([row])
            meter.hit()
        while self._claimer.claim(1000):
            pass
        return meter.took()

    def _handle(self, messages: int, workers: int, share: int = 1) -> Took:
        rows = self._rows(messages)
        for at in range(0, messages, FILL):
            self._claimer.store(rows[at : at + FILL])
        meter = Meter(messages, self._postmaster)
        claimed = _Claimed(self._claimer, batch_of(workers, share), share)
        threads = [threading.Thread(target=self._work, args=(claimed, meter)) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return meter.took()

    def _work(self, claimed: _Claimed, meter: Meter) -> None:
        with closing(self._connect()) as hand:
            while rows := claimed.take():
                hand.handle(rows, meter)


def batch_of(workers: int, share: int) -> int:
    """As many as Semel claims at once; see `InboxService`."""
    begun = workers * share
    return (begun + (500 if begun == 1 else max(begun, RUN_AHEAD))) // 2


class _Claimed:
    """What is claimed and not yet begun."""

    def __init__(self, hand: Hand, batch: int, share: int) -> None:
        self._hand, self._batch, self._share = hand, max(batch, share), share
        self._lock = threading.Lock()
        self._rows: deque[tuple[Any, ...]] = deque()

    def take(self) -> list[tuple[Any, ...]]:
        with self._lock:
            if not self._rows:
                self._rows.extend(self._hand.claim(self._batch))
            return [self._rows.popleft() for _ in range(min(self._share, len(self._rows)))]


class PostgresHand:
    STORE = f"""WITH added AS (
        INSERT INTO semel_work (seq, queue, scope, identity, state, holds, due, id, source, type, data, size)
        VALUES (%s, '{QUEUE}', '{SCOPE}', %s, 0, true, 0, %s, '', 'Placed', %s, %s)
        ON CONFLICT DO NOTHING RETURNING id
    ) INSERT INTO semel_ledger (xid, at, node, pipeline, hop, kind, message, session, peer, n, attempt)
      SELECT pg_current_xact_id()::text::bigint, 0, 'local', '', '{HOP}', {int(Kind.ACCEPTED)}, id, id, '', 1, 1
      FROM added"""
    CLAIM = f"""WITH due AS (
        SELECT seq FROM semel_work WHERE queue = '{QUEUE}' AND key IS NULL AND state <= 2 AND state = 0
        ORDER BY due, seq LIMIT %s FOR UPDATE SKIP LOCKED
    ) UPDATE semel_work w SET state = 2, fence = w.fence + 1, attempts = w.attempts + 1, owner = 'hand', due = 30000000
      FROM due WHERE w.seq = due.seq RETURNING w.identity, w.fence, w.data, w.attempts"""
    MARK = f"""WITH finished AS (
        UPDATE semel_work SET state = 5, holds = false, keep_until = %s, data = NULL, headers = NULL, size = 0
        WHERE queue = '{QUEUE}' AND identity = %s AND state = 2 AND fence = %s RETURNING id
    ) INSERT INTO semel_ledger (xid, at, node, pipeline, hop, kind, message, session, peer, n, attempt)
      SELECT pg_current_xact_id()::text::bigint, 0, 'local', '', '{HOP}', {int(Kind.HANDLED)}, id, id, '', 1, %s
      FROM finished"""
    MARKS = f"""WITH finished AS (
        UPDATE semel_work SET state = 5, holds = false, keep_until = %s, data = NULL, headers = NULL, size = 0
        FROM unnest(%s::text[], %s::bigint[]) AS f (name, number)
        WHERE queue = '{QUEUE}' AND identity = f.name AND state = 2 AND fence = f.number RETURNING id, attempts
    ) INSERT INTO semel_ledger (xid, at, node, pipeline, hop, kind, message, session, peer, n, attempt)
      SELECT pg_current_xact_id()::text::bigint, 0, 'local', '', '{HOP}', {int(Kind.HANDLED)}, id, id, '', 1, attempts
      FROM finished"""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url)

    def store(self, row: Sequence[Any]) -> None:
        for seq, id, body, size in row:
            self._db.execute(self.STORE, (seq, id, id, body, size), prepare=True)
        self._db.commit()

    def claim(self, limit: int) -> list[tuple[Any, ...]]:
        rows = self._db.execute(self.CLAIM, (limit,), prepare=True).fetchall()
        self._db.commit()
        return rows

    def handle(self, rows: Sequence[tuple[Any, ...]], meter: Meter) -> None:
        keep = time.time_ns() // 1000 + KEEP_US
        for _, _, body, _ in rows:
            message = json.loads(body)
            self._db.execute("INSERT INTO effect VALUES (%s, %s)", (message["id"], message["amount"]))
        if len(rows) == 1:
            [(identity, fence, _, attempts)] = rows
            self._db.execute(self.MARK, (keep, identity, fence, attempts), prepare=True)
        else:
            names, fences = [row[0] for row in rows], [row[1] for row in rows]
            self._db.execute(self.MARKS, (keep, names, fences), prepare=True)
        self._db.commit()
        meter.hit(len(rows))

    def close(self) -> None:
        self._db.close()


class SqliteHand:
    STORE = f"""INSERT INTO semel_work (
            seq, queue, scope, identity, state, holds, due, id, source, type, data, size, attempts, fence, owner
        ) VALUES (?, '{QUEUE}', '{SCOPE}', ?, 0, 1, 0, ?, '', 'Placed', ?, ?, 0, 0, '') ON CONFLICT DO NOTHING"""
    LEDGER = f"""INSERT INTO semel_ledger (at, node, pipeline, hop, kind, message, session, peer, n, attempt)
        VALUES (0, 'local', '', '{HOP}', ?1, ?2, ?2, '', 1, ?3)"""
    CLAIM = f"""UPDATE semel_work SET state = 2, fence = fence + 1, attempts = attempts + 1, owner = 'hand',
            due = 30000000
        WHERE seq IN (
            SELECT seq FROM semel_work WHERE queue = '{QUEUE}' AND key IS NULL AND state <= 2 AND state = 0
            ORDER BY due, seq LIMIT ?
        ) RETURNING identity, fence, data, attempts"""
    MARK = f"""UPDATE semel_work SET state = 5, holds = 0, keep_until = ?, data = NULL, headers = NULL, size = 0
        WHERE queue = '{QUEUE}' AND identity = ? AND state = 2 AND fence = ?"""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
        self._db.execute("PRAGMA synchronous = FULL")

    def store(self, row: Sequence[Any]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        for seq, id, body, size in row:
            self._db.execute(self.STORE, (seq, id, id, body, size))
            self._db.execute(self.LEDGER, (int(Kind.ACCEPTED), id, 1))
        self._db.execute("COMMIT")

    def claim(self, limit: int) -> list[tuple[Any, ...]]:
        self._db.execute("BEGIN IMMEDIATE")
        rows = self._db.execute(self.CLAIM, (limit,)).fetchall()
        self._db.execute("COMMIT")
        return rows

    def handle(self, rows: Sequence[tuple[Any, ...]], meter: Meter) -> None:
        keep = time.time_ns() // 1000 + KEEP_US
        self._db.execute("BEGIN IMMEDIATE")
        for identity, fence, body, attempts in rows:
            message = json.loads(body)
            self._db.execute("INSERT INTO effect VALUES (?, ?)", (message["id"], message["amount"]))
            self._db.execute(self.MARK, (keep, identity, fence))
            self._db.execute(self.LEDGER, (int(Kind.HANDLED), message["id"], attempts))
        self._db.execute("COMMIT")
        meter.hit(len(rows))

    def close(self) -> None:
        self._db.close()


def side_of(name: str, url: str, postmaster: int | None, body_bytes: int) -> Callable[..., Took]:
    if name == "semel":
        return SemelSide(url, postmaster, body_bytes)
    hand: Callable[[], Hand] = partial(PostgresHand, url)
    if url.startswith("sqlite"):
        hand = partial(SqliteHand, str(SqliteStore(url).path))
    return RawSide(url, hand, postmaster, body_bytes)


if __name__ == "__main__":
    _, name, url, postmaster, body_bytes = sys.argv
    answer(side_of(name, url, int(postmaster) or None, int(body_bytes)))
