"""The SQLite store: one file, no server, full durability.

WAL with synchronous FULL: a commit is on the disk before it is answered. One writer connection per process, always
`BEGIN IMMEDIATE`; readers have their own connections and never wait. Several processes may use one file: heads are
read inside each transaction and never cached, and other processes' commits are noticed by SQLite's data version.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from semel.errors import (
    CommitInDoubt,
    ConfigError,
    NotAStore,
    SchemaTooNew,
    StoreBroken,
    StoreGone,
    StoreUnavailable,
)
from semel.kernel.ledger import Entry, Event, Kind, Mark
from semel.kernel.ops import Outcome, Unit, WorkRow, WorkState
from semel.kernel.position import EPOCH_GAP, Position, check_epoch
from semel.kernel.store import (
    IDENTITY_KEEP_S,
    ORPHAN_KEEP_S,
    STATE_KEEP_S,
    CursorInfo,
    IndexEntry,
    LedgerHorizon,
    Records,
    State,
    Status,
    StreamInfo,
    Swept,
    Trimmed,
)
from semel.stores.apply import apply
from semel.stores.checkpoint import BACKSTOP_PAGES, Checkpointer
from semel.stores.points import reach
from semel.stores.private_files import make_private
from semel.stores.queries import load_migrations
from semel.stores.shared import (
    ASIDE,
    bare_row,
    blob_missing,
    counts_of,
    ledger_end,
    named_counts,
    prefix_bounds,
)
from semel.stores.sidecar import Marks, Sidecar
from semel.stores.sqlite_engine import Q, SqliteEngine, entry_of, index_entry_of, json_list, record_of, work_row_of
from semel.stores.sqlite_errors import code_of, errors, locked
from semel.stores.sqlite_files import Files, check_not_lost, leave_open
from semel.stores.sqlite_session import SqliteSession
from semel.stores.sqlite_turns import STEP_S, Turn, Turns, at_once
from semel.stores.sqlite_tx import SqliteTx
from semel.stores.waking import Waking

log = logging.getLogger(__name__)

SQLITE_MIN = (3, 38, 0)
BUSY_S = 30.0
WATCH_S = 0.005
WATCH_LOCK_S = 0.05
LOCK_LOOK_S = 1.0
"""Who holds the lock for as long as this is in the way."""
NO_LIMIT = 2**62
FIX_DISK = "check the disk, then restart this process"
LEDGER_COLUMNS = (
    "seq", "at", "node", "pipeline", "hop", "kind", "message", "delivery", "session", "idx", "peer", "stream", "epoch",
    "first", "last", "n", "fold", "attempt", "cause", "trace",
)  # fmt: skip
INDEX_COLUMNS = (
    "seq", "stream", "epoch", "offset", "identity", "kind", "target", "at", "bytes",
    "message", "source", "type", "subject", "time", "session", "idx", "datacontenttype", "terms",
)  # fmt: skip


class SqliteStore:
    """See `semel.kernel.store` for what it promises. `url` is sqlite:///relative or sqlite:////absolute."""

    def __init__(
        self,
        url: str,
        *,
        node: str = "local",
        create: bool = True,
        clock: Callable[[], int] | None = None,
        identity_keep_s: float = IDENTITY_KEEP_S,
        state_keep_s: float = STATE_KEEP_S,
        ledger_keep_s: float | None = None,
        busy_s: float = BUSY_S,
        in_turn: bool = True,
    ) -> None:
        """Without `in_turn` the write lock is for whoever asks at the right moment, as SQLite has it."""
        self.url = url
        self.node = node
        self.path = path_of(url)
        self.identity_keep_s = identity_keep_s
        self.state_keep_s = state_keep_s
        self.ledger_keep_s = ledger_keep_s
        self.busy_s = busy_s
        self._clock = clock or (lambda: time.time_ns() // 1000)
        self._lock = threading.RLock()
        self._readers = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._broken: StoreUnavailable | None = None
        self._busy_since: float | None = None
        self._files = Files(self.path)
        self._sidecar = Sidecar(Path(f"{self._files.database}-semel"))
        # beside the file itself, not beside a link to it: all who share the lock share the queue
        turns = Path(f"{os.path.realpath(self._files.database)}-semel-turns")
        self._turns = Turns(turns if in_turn else None)
        self._check_engine()
        self._check_file(create)
        self._files.note_database()
        self._writer = self._connect("rwc")
        self._commits = self._others = self._version = 0
        self._waking = Waking(self._commits_of_others, WATCH_S)
        self._checkpointer = Checkpointer(self._connect)
        self._prepare(create)

    # -- opening

    @staticmethod
    def _check_engine() -> None:
        if sqlite3.sqlite_version_info < SQLITE_MIN:
            raise ConfigError(
                f"this Python has SQLite {sqlite3.sqlite_version}, Semel needs {'.'.join(map(str, SQLITE_MIN))}",
                fix="use a newer Python build, or a postgresql:// store",
            )

    def _check_file(self, create: bool) -> None:
        if self.path.is_dir():
            raise NotAStore(f"{self.path} is a folder", fix="name a file inside it, such as semel.db")
        check_not_lost(self.path, self._sidecar)
        if not self.path.exists() and not create:
            raise StoreUnavailable(f"there is no store at {self.path}", fix=f"create it: semel store init {self.url}")
        if not self.path.parent.is_dir():
            raise StoreUnavailable(f"the folder {self.path.parent} does not exist", fix="create it, or correct the URL")
        if create and not self.path.exists():
            # SQLite gives the log and its index the rights of the database. What is wrong here it will say better.
            with suppress(OSError):
                make_private(self.path.resolve())

    def _connect(self, mode: str = "rw") -> sqlite3.Connection:
        """Only the first one may make the file."""
        self._check_files()
        name = f"file:{quote(self._files.database)}?mode={mode}"
        with errors(self.path):
            connection = sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            with errors(self.path):
                connection.execute("PRAGMA busy_timeout = 0")
                self._retry_busy(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone(), self.busy_s)
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA cache_size = -32768")
                connection.execute(f"PRAGMA wal_autocheckpoint = {BACKSTOP_PAGES}")
        except BaseException:
            connection.close()
            raise
        self._open.append(connection)
        self._check_files()
        return connection

    def _prepare(self, create: bool) -> None:
        try:
            self._check_schema(create)
            [(self.store_id,)] = self._writer.execute("SELECT store_id FROM semel_store").fetchall()
            self._check_rewind()
            self._files.note()
        except BaseException:
            self.close()
            raise

    def _check_schema(self, create: bool) -> None:
        self.schema_found = version = self._schema_version()
        newest = load_migrations("sqlite")[-1][0]
        if version > newest:
            raise SchemaTooNew(
                f"{self.path} has schema {version}, this Semel knows {newest}",
                fix="install the newer Semel that wrote it; nothing was changed",
            )
        if version == 0 and not create:
            raise NotAStore(f"{self.path} has no Semel tables", fix=f"add them: semel store init {self.url}")
        if version < newest:
            self.migrate()

    def _schema_version(self) -> int:
        with errors(self.path):
            found = self._writer.execute("SELECT name FROM sqlite_schema WHERE name = 'semel_store'").fetchone()
            if found is None:
                return 0
            row = self._writer.execute("SELECT schema FROM semel_store").fetchone()
        return int(row[0]) if row is not None else 0

    def migrate(self) -> tuple[int, int]:
        before = self._schema_version()
        after = before
        for number, sql in load_migrations("sqlite"):
            with self._transaction() as db:
                after = self._schema_version()
                if number <= after:
                    continue
                for statement in _statements(sql):
                    db.execute(statement)
                reach("migrate.step")
                self._record_version(db, number)
                after = number
        return before, after

    @staticmethod
    def _record_version(db: sqlite3.Connection, number: int) -> None:
        db.execute(
            "INSERT INTO semel_store VALUES (1, ?, ?, 1, 0, 0, 0, 0, 0)"
            " ON CONFLICT (one) DO UPDATE SET schema = excluded.schema",
            (uuid.uuid4().hex, number),
        )

    def _check_rewind(self) -> None:
        """A suspicion is looked at again under the write lock, where nobody commits meanwhile. Without one the lock is
        not needed, and a store can be opened and read while somebody else writes."""
        with self._watched():
            suspicion = self._find_rewind(self._writer)
        if suspicion is not None:
            with self._transaction() as db:
                found = self._find_rewind(db)
                if found is not None:
                    self._begin_epoch(db, *found)
        self._note_marks()

    def _begin_epoch(self, db: sqlite3.Connection, reason: str, noted: Marks | None) -> None:
        head = max(noted.head if noted else 0, db.execute(Q["highest_head"]).fetchone()[0])
        self._write_epoch(db, reason, head + EPOCH_GAP, (noted.fence if noted else 0) + EPOCH_GAP)

    def _find_rewind(self, db: sqlite3.Connection) -> tuple[str, Marks | None] | None:
        # the sidecar first: what is committed between the two reads must not make it look ahead
        noted = self._sidecar.read()
        [(commits,)] = db.execute("SELECT commits FROM semel_store").fetchall()
        if commits and noted is None:
            return "the file was moved or restored without its sidecar", None
        if noted is not None and noted.store_id != self.store_id:
            return "another store stood here before", noted
        if noted is not None and noted.commits > commits:
            return "the file was restored from an older copy", noted
        if db.execute(Q["cursor_beyond_head"]).fetchone() is not None:
            return "a cursor stands beyond the end of its stream", noted
        return None

    def _note_marks(self) -> None:
        """Also for what others have committed, and users in their own transactions."""
        commits, fence = self._writer.execute("SELECT commits, fence FROM semel_store").fetchone()
        self._commits = commits
        [(self._top,)] = self._writer.execute(Q["highest_head"]).fetchall()
        self._sidecar.write(Marks(self.store_id, commits, self._top, fence))

    # -- transactions

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._watched():
            self._check_files(self._files.check_database)
            self._begin(self._writer)
            try:
                yield self._writer
            except BaseException:
                self._roll_back()
                raise
            self._end(self._writer)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """SQLite's errors in our words. After an I/O error this process no longer uses the file."""
        with errors(self.path):
            try:
                yield
            except sqlite3.Error as error:
                if code_of(error) == sqlite3.SQLITE_IOERR:
                    self._broken = StoreBroken(f"an I/O error struck {self.path}: {error}", fix=FIX_DISK)
                    raise self._broken from error
                raise

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise type(self._broken)(self._broken.message, fix=self._broken.fix)

    def _check_files(self, check: Callable[[], None] | None = None) -> None:
        """Once they were found gone this process no longer uses them, not even when they come back: what others did
        with them meanwhile nobody knows."""
        self._check_usable()
        try:
            (check or self._files.check)()
        except StoreGone as error:
            self._broken = error
            raise

    def _begin(self, connection: sqlite3.Connection | SqliteSession, busy_s: float | None = None) -> None:
        limit = self.busy_s if busy_s is None else busy_s
        with self._turns.waiting() as turn:
            self._retry_busy(lambda: connection.execute("BEGIN IMMEDIATE"), limit, turn)

    def begin_users(self, session: SqliteSession) -> None:
        """In turn like our own, for as long as the connection would wait by itself: its own wait would not beat, and be
        passed over."""
        if session.busy_s is not None:
            return self._begin(session, session.busy_s)
        with at_once(session) as busy_s:
            self._begin(session, busy_s)

    def give_way(self, limit_s: float) -> None:
        """Before a transaction that begins by itself: let those go first who wait for the write lock in turn."""
        until = time.monotonic() + limit_s
        with self._turns.waiting(draws=False) as turn:
            while not turn.is_ours(now := time.monotonic()) and now < until:
                time.sleep(turn.step_s)

    def _retry_busy(self, attempt: Callable[[], object], busy_s: float, turn: Turn | None = None) -> None:
        """SQLite's own wait doubles up to 100 ms and starves. The last attempt is made whoever's turn it is."""
        since: float | None = None
        try:
            while True:
                now = time.monotonic()
                last = now >= (now if since is None else since) + busy_s
                if last or turn is None or turn.is_ours(now):
                    try:
                        attempt()
                        return
                    except sqlite3.OperationalError as error:
                        if last or code_of(error) != sqlite3.SQLITE_BUSY:
                            raise
                since = self._busy_since = now if since is None else since
                time.sleep(STEP_S if turn is None else turn.step_s)
        finally:
            if since is not None:
                self._busy_since = None

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def _end(self, connection: sqlite3.Connection) -> None:
        """An I/O error at this point leaves the outcome open, and the page cache can no longer be trusted to tell.
        So do files that went meanwhile: the commit may be in them, or nowhere."""
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if code_of(error) != sqlite3.SQLITE_IOERR:
                self._roll_back()
                raise
            self._broken = StoreBroken(f"an I/O error struck {self.path} inside a commit: {error}", fix=FIX_DISK)
            self._broken.__cause__ = error
            connection.close()
            raise CommitInDoubt(self._broken.message, marker="io", fix=FIX_DISK) from self._broken
        try:
            self._check_files()
        except StoreGone as error:
            raise CommitInDoubt(f"{error.message}, inside a commit", marker="gone", fix=error.fix) from error

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        with self._lock:
            with self._transaction() as db:
                reach("commit.begin")
                changes = db.total_changes
                engine = SqliteEngine(db, self._clock(), self.node)
                self._check_counted(engine.commits)
                outcomes = apply(engine, units)
                wrote = db.total_changes != changes
                if wrote:
                    engine.finish()
                reach("commit.applied")
            reach("commit.committed")
            # a claim that finds no work is no news: workers that woke each other by looking would never rest
            if wrote:
                self._after_commit(engine)
        if wrote:
            self._waking.wake()
        return outcomes

    def _check_counted(self, commits: int) -> None:
        """A copy that was written over the file has the same inode. It may show here."""
        if commits < self._commits:
            self._broken = StoreGone(
                f"{self.path} was overwritten with an older copy while this process used it",
                fix="stop all processes before a restore, then restart this one; see the page on backups",
            )
            raise self._broken

    def _after_commit(self, engine: SqliteEngine) -> None:
        """It has happened: whatever goes wrong from here on must not make anybody believe that it has not."""
        try:
            # so many there were without this one
            self._note_commits(engine.commits - 1)
            self._commits = engine.commits
            self._top = max(self._top, engine.top)
            self._sidecar.write(Marks(self.store_id, engine.commits, self._top, engine.fence))
            self._checkpointer.committed(self._writer, engine.size)
        except Exception:
            log.exception("after a commit to %s", self.path)

    def resolve(self, marker: str) -> list[Outcome] | None:
        self._check_usable()
        raise StoreUnavailable(f"no transaction {marker!r} is in doubt", fix="resolve only what CommitInDoubt named")

    # -- reading

    @property
    def _reader(self) -> sqlite3.Connection:
        reader: sqlite3.Connection | None = getattr(self._readers, "connection", None)
        self._check_usable()
        if reader is None:
            reader = self._connect()
            reader.execute("PRAGMA query_only = ON")
            self._readers.connection = reader
        return reader

    def _ask(self, query: str, *args: Any) -> list[Any]:
        with self._watched():
            return self._reader.execute(Q[query], args).fetchall()

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """Several reads that see one state of the store."""
        with self._watched():
            reader = self._reader
            reader.execute("BEGIN")
            try:
                yield reader
            finally:
                reader.execute("ROLLBACK")

    @property
    def epoch(self) -> int:
        with self._watched():
            return int(self._reader.execute("SELECT epoch FROM semel_store").fetchone()[0])

    def read(self, stream: str, after: Position | None = None, limit: int = 1000) -> Records | Trimmed:
        with self._snapshot() as db:
            row = db.execute(Q["read_stream"], (stream,)).fetchone()
            if row is None:
                if after is not None:
                    check_epoch(after, db.execute("SELECT epoch FROM semel_store").fetchone()[0])
                return Records(())
            id, start, _, first, epoch = row
            if after is not None:
                check_epoch(after, epoch)
            # a cursor may be older than the stream: nothing lies before its start, so nothing is missing there
            begin = max(after.offset, start) if after is not None else start
            if begin + 1 < first:
                return Trimmed(Position(stream, epoch, first))
            found = db.execute(Q["read_records"], (id, begin, limit)).fetchall()
        return Records(tuple(record_of(stream, epoch, row) for row in found))

    def tail(
        self, stream: str, after: Position | None = None, limit: int = 1000, timeout_s: float = 30.0
    ) -> Records | Trimmed:
        return self._waking.until(
            lambda: self.read(stream, after, limit),
            lambda found: not isinstance(found, Records) or bool(found.records),
            timeout_s,
        )

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._waking.listen(wake)

    def _commits_of_others(self) -> int:
        """A number that changes when others have committed than this store. SQLite says whether anybody has; the count
        of commits says whether it was us. Who cannot find out soon looks in vain rather than too late."""
        with self._watched():
            version = int(self._reader.execute("PRAGMA data_version").fetchone()[0])
            if version == self._version:
                return self._others
            if not self._lock.acquire(timeout=WATCH_LOCK_S):
                commits = -1
            else:
                try:
                    [(commits,)] = self._reader.execute("SELECT commits FROM semel_store").fetchall()
                finally:
                    self._lock.release()
        self._version = version
        return self._note_commits(commits)

    def _note_commits(self, commits: int) -> int:
        if commits != self._commits:
            self._others += 1
        self._commits = commits
        return self._others

    def wake(self) -> None:
        """Other processes see that the data has changed."""
        self._waking.wake()

    def head(self, stream: str) -> Position:
        rows = self._ask("read_stream", stream)
        return Position(stream, rows[0][4], rows[0][2]) if rows else Position(stream, self.epoch, 0)

    def cursor(self, name: str) -> Position | None:
        rows = self._ask("read_cursor", name)
        return Position(*rows[0]) if rows else None

    def known(self, stream: str, identities: Sequence[str]) -> dict[str, Position]:
        with self._snapshot() as db:
            row = db.execute(Q["read_stream"], (stream,)).fetchone()
            if row is None:
                return {}
            id, *_, epoch = row
            found = db.execute(Q["known"], (id, json_list(identities))).fetchall()
        return {identity: Position(stream, epoch, offset) for identity, offset, _ in found}

    def state(self, key: str) -> State | None:
        rows = self._ask("read_state", key)
        return State(*rows[0]) if rows else None

    def states(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, State]]:
        rows = self._ask("read_states", after, *prefix_bounds(prefix), limit)
        return [(key, State(value, version)) for key, value, version in rows]

    def work(self, queue: str, identity: str) -> WorkRow | None:
        with self._snapshot() as db:
            if row := db.execute(Q["one_row"], (queue, identity)).fetchone():
                return work_row_of(row)
            left = db.execute(Q["one_identity"], (queue, identity)).fetchone()
        return bare_row(queue, identity, left[0]) if left is not None else None

    def work_rows(self, queue: str, states: Collection[WorkState], after: int = 0, limit: int = 100) -> list[WorkRow]:
        """What was put aside is rare, and found by an index of its own."""
        with self._snapshot() as db:
            asked: list[tuple[str, Any]] = [("work_rows_aside", int(state)) for state in ASIDE.intersection(states)]
            others = sorted(set(states) - ASIDE)
            asked += [("work_rows", json_list(others))] if others else []
            rows = [row for query, which in asked for row in db.execute(Q[query], (queue, which, after, limit))]
        return sorted(map(work_row_of, rows), key=lambda row: row.seq)[:limit]

    def work_counts(self, queue_prefix: str = "") -> dict[str, dict[WorkState, int]]:
        return counts_of(self._ask("work_counts", *prefix_bounds(queue_prefix)))

    def history(self, message: str, limit: int = 1000) -> list[Entry]:
        return [entry_of(row) for row in self._ask("read_history", message, limit)]

    def due(self, queue: str) -> bool:
        return bool(self._ask("work_due", queue, self._clock())[0][0])

    def ledger(self, after: Mark, limit: int = 1000) -> list[Entry]:
        return [entry_of(row) for row in self._ask("read_ledger", after.seq, limit)]

    def index(self, after: Mark, limit: int = 1000) -> list[IndexEntry]:
        return [index_entry_of(row) for row in self._ask("read_index", after.seq, limit)]

    def ledger_columns(self, after: Mark, limit: int = 1000) -> dict[str, Sequence[Any]]:
        """What `ledger` finds, by column and as stored. The export reads millions and needs no objects."""
        return _columns(LEDGER_COLUMNS, self._ask("read_ledger", after.seq, limit))

    def index_columns(self, after: Mark, limit: int = 1000) -> dict[str, Sequence[Any]]:
        """What `index` finds, by column and as stored."""
        return _columns(INDEX_COLUMNS, self._ask("read_index", after.seq, limit))

    def body(self, name: str) -> Iterator[bytes]:
        """One chunk in memory at a time, each from a read of its own: a slow consumer holds up no checkpoint."""
        refs = self._ask("blob_refs", name)
        if not refs or refs[0][0] <= 0:
            raise blob_missing(name)
        return self._chunks(name, self._ask("blob_size", name)[0][0])

    def _chunks(self, name: str, size: int) -> Iterator[bytes]:
        part = -1
        while rows := self._ask("read_chunks", name, part):
            part, data = rows[0]
            size -= len(data)
            yield bytes(data)
        if size:
            raise blob_missing(name)

    # -- retention

    def sweep(self, now: int, limit: int = 1000) -> Swept:
        """Each sort in a transaction of its own, so that no commit waits for more than one batch."""
        records, identities = self._sweep_records(now, limit)
        moved, work = self._sweep_done(now, limit)
        is_behind = moved + work >= limit
        work += self._sweep_dead(now, limit - work)
        work += self._forget_work(now, limit - work)
        blobs = self._sweep_blobs(now, limit)
        ledger = self._sweep_ledger(now, limit)
        states = self._sweep_states(now, limit)
        more = is_behind or max(records, identities, work, blobs, ledger, states) >= limit
        return Swept(records, identities, work, blobs, ledger, states, more, moved)

    @contextmanager
    def _sweeping(self, now: int) -> Iterator[SqliteEngine]:
        with self._lock:
            with self._transaction() as db:
                engine = SqliteEngine(db, now, self.node)
                changes = db.total_changes
                yield engine
                wrote = db.total_changes != changes
                if wrote:
                    engine.finish()
                reach("sweep.deleted")
            if wrote:
                # before anybody else commits: the writer would meet its own checkpoint
                self._after_commit(engine)

    def _sweep_records(self, now: int, limit: int) -> tuple[int, int]:
        forget = now - int(self.identity_keep_s * 1_000_000)
        dropped = forgotten = 0
        for id, first, hollowed in self._ask("sweep_streams"):
            if dropped < limit:
                with self._sweeping(now) as engine:
                    count, gone, hollowed = self._drop_bodies(engine, id, first, hollowed, forget, limit - dropped)
                    dropped += count
                    forgotten += gone
            if forgotten < limit:
                with self._sweeping(now) as engine:
                    forgotten += self._forget_identities(engine, id, hollowed, forget, limit - forgotten)
        return dropped, forgotten

    def _drop_bodies(
        self, engine: SqliteEngine, id: int, first: int, hollowed: int, forget: int, limit: int
    ) -> tuple[int, int, int]:
        """Trimmed records go, but for those whose identity must still be known: of these only the body goes."""
        db = self._writer
        exported = engine.exported("export/index")
        to = exported.seq if exported is not None else NO_LIMIT
        [found] = db.execute(Q["bodies_to_drop"], (id, hollowed, first, to, limit, forget)).fetchall()
        last, count, identities, forgotten = found
        if not count:
            return 0, 0, hollowed
        rows = (id, hollowed, last)
        blobs = db.execute(Q["blobs_to_drop"], rows).fetchall()
        db.executemany(Q["forget_blob"], [(engine.now, blob) for (blob,) in blobs])
        # one statement for all: each is a turn for the interpreter lock, for which commits wait
        db.execute(Q["drop_records"], (*rows, forget))
        if identities > forgotten:
            db.execute(Q["hollow_records"], rows)
        db.execute(Q["set_hollowed"], (last, id))
        return count, forgotten, last

    def _forget_identities(self, engine: SqliteEngine, id: int, hollowed: int, forget: int, limit: int) -> int:
        return self._writer.execute(Q["forget_records"], (forget, id, hollowed, limit)).rowcount

    def _sweep_done(self, now: int, limit: int) -> tuple[int, int]:
        with self._sweeping(now) as engine:
            return engine.move_done(limit)

    def _sweep_dead(self, now: int, limit: int) -> int:
        with self._sweeping(now) as engine:
            db = self._writer
            rows = db.execute(Q["dead_work"], (now, limit)).fetchall()
            db.executemany(Q["delete_work"], [(seq,) for seq, *_ in rows])
            db.executemany(
                Q["delete_scope"], [(scope, identity) for _, queue, scope, identity, _ in rows if scope != queue]
            )
            db.executemany(Q["forget_blob"], [(engine.now, blob) for *_, blob in rows if blob is not None])
        return len(rows)

    def _forget_work(self, now: int, limit: int) -> int:
        with self._sweeping(now):
            return self._writer.execute(Q["forget_identities"], (now, limit)).rowcount

    def _sweep_blobs(self, now: int, limit: int) -> int:
        with self._sweeping(now):
            names = self._writer.execute(Q["orphan_blobs"], (now - int(ORPHAN_KEEP_S * 1_000_000), limit)).fetchall()
            self._writer.executemany(Q["delete_chunks"], names)
            self._writer.executemany(Q["delete_blob"], names)
        return len(names)

    def _sweep_ledger(self, now: int, limit: int) -> int:
        """Only what has been exported goes, or what is old if nobody exports: the ledger is evidence, not a cache."""
        with self._sweeping(now) as engine:
            exported = engine.exported("export/ledger")
            if exported is None:
                old = ledger_end(now, self.ledger_keep_s)
                return self._writer.execute(Q["delete_old_ledger"], (old, limit)).rowcount if old else 0
            return self._writer.execute(Q["delete_ledger"], (exported.seq, limit)).rowcount

    def _sweep_states(self, now: int, limit: int) -> int:
        with self._sweeping(now):
            return self._writer.execute(Q["sweep_states"], (self._forget_states(now), limit)).rowcount

    def _forget_states(self, now: int) -> int:
        return now - int(self.state_keep_s * 1_000_000)

    # -- the rest

    def raise_epoch(self, reason: str) -> int:
        with self._lock:
            with self._transaction() as db:
                [(head,)] = db.execute(Q["highest_head"]).fetchall()
                epoch = self._write_epoch(db, reason, head + EPOCH_GAP, EPOCH_GAP)
            self._note_marks()
        self._waking.wake()
        return epoch

    def _write_epoch(self, db: sqlite3.Connection, reason: str, head: int, fence: int) -> int:
        """Offsets and fences go on above everything that the lost history may have given out. The sidecar may lag,
        so its marks alone would not do: a whole gap lies between."""
        db.execute(Q["raise_epoch"], (fence,))
        db.execute(Q["raise_heads"], (head,))
        db.execute(Q["rebase_cursors"])
        [(epoch,)] = db.execute("SELECT epoch FROM semel_store").fetchall()
        engine = SqliteEngine(db, self._clock(), self.node)
        engine.add_ledger([Event(Kind.ACTION, "store", message=f"epoch {epoch}", cause=reason)])
        engine.finish()
        reach("epoch.raised")
        return int(epoch)

    def bind(self, connection: Any) -> SqliteTx:
        """`connection` is the user's own sqlite3 connection to this file, with a transaction open or about to open."""
        return SqliteTx(self, connection)

    def check(self) -> None:
        """The lock is somebody's for a moment all the time; in the way is who keeps it."""
        self._check_files()
        self._ask("read_cursor", "")
        if not self._lock.acquire(timeout=LOCK_LOOK_S):
            since = self._busy_since
            if since is not None and time.monotonic() - since >= LOCK_LOOK_S:
                raise locked(self.path)
            return
        try:
            with self._watched():
                self._check_usable()
                self._begin(self._writer, LOCK_LOOK_S)
                self._roll_back()
        finally:
            self._lock.release()

    def horizon(self) -> LedgerHorizon:
        """There is one writer at a time, so what is committed is shown."""
        return LedgerHorizon()

    def status(self) -> Status:
        with self._snapshot() as db:
            epoch, schema = db.execute("SELECT epoch, schema FROM semel_store").fetchone()
            work = counts_of(db.execute(Q["work_counts"], prefix_bounds("")))
            [(remembered,)] = db.execute(Q["status_remembered"]).fetchall()
            streams = tuple(
                StreamInfo(name, epoch, head, first) for name, head, first in db.execute(Q["status_streams"])
            )
            cursors = tuple(
                CursorInfo(name, Position(stream, at_epoch, offset), bool(pins))
                for name, stream, at_epoch, offset, pins in db.execute(Q["status_cursors"])
            )
            [(ledger,)] = db.execute(Q["status_ledger"]).fetchall()
            now = self._clock()
            [(sweepable,)] = db.execute(Q["status_sweepable"], (now, self._forget_states(now))).fetchall()
        return Status(
            url=self.url,
            engine=f"SQLite {sqlite3.sqlite_version}",
            store_id=self.store_id,
            epoch=epoch,
            schema=schema,
            streams=streams,
            cursors=cursors,
            work=named_counts(work),
            remembered=remembered,
            ledger_entries=ledger,
            sweepable=sweepable,
            bytes=self._size(),
            details={"path": str(self.path), "journal": "WAL", "synchronous": "FULL"},
        )

    def _size(self) -> int:
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        self._waking.close()
        self._checkpointer.close()
        with self._lock:
            with suppress(StoreUnavailable):
                self._check_files()
                if hasattr(self, "store_id"):
                    self._note_marks()
            if self._files.are_others():
                leave_open(self._open)
            else:
                # now SQLite moves the log into the database, also one that has no name any more: it is not lost
                for connection in self._open:
                    connection.close()
            self._broken = self._broken or StoreUnavailable("the store is closed", fix="open it again")
            self._open.clear()
            self._sidecar.close()
            self._turns.close()


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Sequence[Any]]:
    values = zip(*rows, strict=True) if rows else ((),) * len(names)
    return {**dict(zip(names, values, strict=True)), "xid": (None,) * len(rows)}


def path_of(url: str) -> Path:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    wrong = parts.netloc or parts.query or parts.fragment or parts.scheme != "sqlite"
    if wrong or not parts.path.startswith("/") or not parts.path.strip("/"):
        raise ConfigError(
            f"{url!r} is not the URL of a SQLite store", fix="write sqlite:///semel.db or sqlite:////absolute/path.db"
        )
    return Path(unquote(parts.path[1:]))


def _statements(sql: str) -> Iterator[str]:
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
