"""The PostgreSQL store: several nodes share one history.

READ COMMITTED, and the head row of a stream is locked while its batch commits, so offsets become visible in order. The
ledger and the index are written by users' transactions too, which lock no heads; they are read by transaction id, below
the oldest transaction that is still running. One writer connection per process; readers have their own.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from psycopg import RawCursor

from semel.errors import (
    CommitInDoubt,
    InputError,
    NotAStore,
    SchemaTooNew,
    SemelError,
    StoreBusy,
    StoreInRecovery,
    StoreReadOnly,
    StoreUnavailable,
)
from semel.kernel.ledger import START, Entry, Mark
from semel.kernel.ops import Outcome, Unit, WorkRow, WorkState
from semel.kernel.position import OFFSET_MAX, Position, check_epoch
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
from semel.stores import postgres_sync as sync
from semel.stores.apply import apply
from semel.stores.points import reach
from semel.stores.postgres_connection import (
    LOCK_S,
    SETTLE_S,
    Array,
    Begun,
    Call,
    PostgresConnection,
    Row,
    Statements,
    bigints,
    errors,
    ints,
    is_broken,
    is_refusal,
    is_retryable,
    redact,
    smallints,
    texts,
)
from semel.stores.postgres_engine import PostgresEngine, TryAgain, entry_of, index_entry_of, record_of, work_row_of
from semel.stores.postgres_fronts import Fronts
from semel.stores.postgres_gate import Gate
from semel.stores.postgres_listen import ChangeListener
from semel.stores.postgres_pool import Pool
from semel.stores.postgres_sync import roll_back, transaction, watched
from semel.stores.postgres_tx import PostgresTx
from semel.stores.postgres_witness import MARKER_KEEP_US, WitnessedCommit
from semel.stores.queries import load_migrations
from semel.stores.shared import (
    ASIDE,
    bare_row,
    blob_missing,
    counts_of,
    exported_mark,
    ledger_end,
    named_counts,
    prefix_bounds,
)

log = logging.getLogger(__name__)

SERVER_MIN = 140000
TRIES_MAX = 20
DOUBTS_MAX = 1000
MIGRATE_S = 600.0
NAME_COMMITS = 1000
"""So many commits sign the same marker."""
CLOSE_S = 2.0
"""How long closing waits for a commit under way."""
LEDGER_COLUMNS = (
    "xid", "seq", "at", "node", "pipeline", "hop", "kind", "message", "delivery", "session", "idx", "peer", "stream",
    "epoch", "first", "last", "n", "fold", "attempt", "cause", "trace",
)  # fmt: skip
INDEX_COLUMNS = (
    "xid", "seq", "stream", "epoch", "offset", "identity", "kind", "target", "at", "bytes",
    "message", "source", "type", "subject", "time", "session", "idx", "datacontenttype", "terms",
)  # fmt: skip


class PostgresStore:
    """See `semel.kernel.store` for what it promises. The clock is the server's, read once in each transaction."""

    def __init__(
        self,
        url: str,
        *,
        node: str = "local",
        create: bool = True,
        identity_keep_s: float = IDENTITY_KEEP_S,
        state_keep_s: float = STATE_KEEP_S,
        ledger_keep_s: float | None = None,
        lock_s: float = LOCK_S,
    ) -> None:
        self.url = url
        self.node = node
        self.identity_keep_s = identity_keep_s
        self.state_keep_s = state_keep_s
        self.ledger_keep_s = ledger_keep_s
        self.lock_s = lock_s
        self._lock = threading.RLock()
        self._writer: PostgresConnection | None = None
        self._name_writer()
        self._doubts: OrderedDict[str, tuple[list[Outcome], int]] = OrderedDict()
        self._ledger_swept = START
        self._fronts = Fronts()
        self._done_swept = self._forgotten = 0
        self._closed = False
        self._gate = Gate(url, node)
        self.witness = self._gate.witness
        self._pool = Pool(url, self._gate.open, self.witness)
        self._writer_pid = 0
        self._listener = ChangeListener(self._gate.open, lambda pid: pid == self._writer_pid)
        try:
            self._prepare(create)
        except BaseException:
            self.close()
            raise

    def _name_writer(self) -> None:
        """A new name after each doubt: the marker of the commit in doubt must not be overwritten by the next one. And
        after some commits: of a row that is written again and again all versions stay while a transaction is open."""
        self._writer_name = uuid.uuid4().hex
        self._commits = 0

    # -- opening

    def _prepare(self, create: bool) -> None:
        with closing(self._gate.lines.connect()) as session, errors(self.url):
            session.patience_s = LOCK_S + SETTLE_S
            run = Statements(session)
            [(version, encoding, is_standby, is_store)] = run.ask("server")
            if version < SERVER_MIN:
                raise StoreUnavailable(f"{redact(self.url)} runs PostgreSQL {version // 10000}", fix="use 14 or newer")
            if encoding != "UTF8":
                fix = "create one with: createdb -E UTF8 -T template0"
                raise NotAStore(f"the database holds {encoding} text", fix=fix)
            if not is_store and not create:
                raise NotAStore(f"{redact(self.url)} has no Semel tables", fix="add them: semel store init <url>")
            if not is_store and is_standby:
                fix = "connect to the primary"
                raise StoreReadOnly(f"{redact(self.url)} is a standby without Semel tables", fix=fix)
            self.schema_found = _schema(run) if is_store else 0
            if self.schema_found < _newest():
                self.migrate()
            self._check_schema(_schema(run))
            self.store_id = run.ask("read_store")[0][0]
        # the first connection makes the checks that every connection makes
        with self._pool.connection():
            pass

    def _check_schema(self, schema: int) -> None:
        if schema > _newest():
            raise SchemaTooNew(
                f"{redact(self.url)} has schema {schema}, this Semel knows {_newest()}",
                fix="install the newer Semel that wrote it; nothing was changed",
            )

    def migrate(self) -> tuple[int, int]:
        """Many processes may open an empty database at once: one makes the tables, the others wait for it. Who has
        waited looks from another session: inside its own transaction it may not see that there are tables now."""
        connect = self._gate.lines.connect
        with closing(connect()) as session, closing(connect()) as look, errors(self.url):
            before = _schema(Statements(look))
            self._check_schema(before)
            for number, sql in load_migrations("postgres"):
                with transaction(session, "own_schema", lock_s=MIGRATE_S, wait_s=MIGRATE_S) as run:
                    if _schema(Statements(look)) >= number:
                        continue
                    run.ask("into_own_schema")
                    session.execute(sql.encode(), prepare=False)
                    reach("migrate.step")
                    run.run("record_schema", number)
            return before, _schema(Statements(look))

    # -- transactions

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[Statements]:
        """A short transaction beside the commits, on a connection of its own."""
        with self._pool.connection() as session, transaction(session, durable=durable) as run:
            yield run

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        units = tuple(units)
        with self._lock:
            commits = self._commits
            for _ in range(TRIES_MAX):
                try:
                    with self._fronts.unless_it_fails(), errors(self.url):
                        outcomes = self._commit(units)
                    break
                except TryAgain:
                    continue
                except StoreBusy as error:
                    if not is_retryable(error.__cause__):
                        raise
            else:
                raise StoreBusy("others change the same rows all the time", fix="try again in a moment")
            has_written = self._commits != commits
            if self._commits >= NAME_COMMITS:
                self._name_writer()
        reach("commit.committed")
        if has_written:
            self._listener.wake()
        return outcomes

    def _commit(self, units: Sequence[Unit]) -> list[Outcome]:
        try:
            engine = PostgresEngine(self._begin, self.node, units, self._fronts)
            outcomes = apply(engine, units)
            engine.begin()
            self._check_member(engine.members)
        except BaseException:
            if self._writer is not None:
                roll_back(self._writer)
            raise
        assert self._writer is not None, "a transaction that has begun has a connection"
        self._end(self._writer, outcomes, engine)
        return outcomes

    def _check_member(self, members: int) -> None:
        """Once there are members nobody answers who is none. The next connection makes us one."""
        if members and not self._gate.membership.is_joined:
            self._drop_writer()
            raise TryAgain("member")

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._writer_pid = None, 0

    def _begin(self, calls: Sequence[Call]) -> Begun:
        """A connection may have died since the last commit. Nothing was written, so a new one may take its place."""
        begun = None if self._writer is None else self._begin_again(Statements(self._connected()), calls)
        if begun is None:
            begun = Statements(self._connected()).begin(calls)
        reach("commit.begin")
        return begun

    @staticmethod
    def _begin_again(statements: Statements, calls: Sequence[Call]) -> Begun | None:
        try:
            return statements.begin(calls)
        except psycopg.Error:
            if not is_broken(statements.connection):
                raise
        return None

    def _connected(self) -> PostgresConnection:
        """After a failover the same URL leads to another server, so a new connection begins like an open."""
        if self._closed:
            raise StoreUnavailable("the store is closed", fix="open it again")
        if self._writer is not None and (is_broken(self._writer) or self._writer.term != self.witness.term):
            self._drop_writer()
        if self._writer is None:
            self._writer = self._open_writer()
            self._writer_pid = self._writer.info.backend_pid
        return self._writer

    def _open_writer(self) -> PostgresConnection:
        session = self._gate.open(self.lock_s)
        if session.is_standby:
            session.close()
            raise StoreReadOnly(f"{redact(self.url)} is a standby", fix="connect to the primary")
        return session

    def _end(self, connection: PostgresConnection, outcomes: list[Outcome], engine: PostgresEngine) -> None:
        """The last writes and COMMIT go out together: should a write fail, the server skips what comes after it.

        The server's own word is final. Without it nobody knows, unless there was nothing to commit; nor does anybody
        when it comes with a warning, for then the standby may lack it."""
        is_asked = False
        last = connection.cursor()
        seen: RawCursor[Row] | None = None
        connection.warnings.clear()
        try:
            with connection.pipeline():
                if engine.wrote:
                    engine.finish(self._writer_name, self._commits + 1)
                elif self.witness.is_member:
                    seen = Statements(connection).run("flushed")
                reach("commit.applied")
                is_asked = True
                last.execute("COMMIT", prepare=False)
        except psycopg.Error as error:
            has_happened = last.statusmessage == "COMMIT" and not connection.warnings
            if not has_happened and (not is_asked or is_refusal(error)):
                roll_back(connection)
                raise
            connection.close()
            self._writer_pid = 0
            if engine.wrote and not has_happened:
                raise self._doubt(outcomes, engine.now, f"the connection broke inside COMMIT: {error}") from error
        except BaseException:
            if not is_asked:
                roll_back(connection)
                raise
            # interrupted by this process itself: nobody will ask what became of it, but its number is taken
            connection.close()
            self._writer_pid = 0
            self._name_writer()
            raise
        if engine.wrote and connection.warnings:
            connection.close()
            self._writer_pid = 0
            raise self._doubt(outcomes, engine.now, f"COMMIT came with a warning: {connection.warning_text}")
        self._answer(connection, outcomes, engine, seen)
        self._commits += engine.wrote

    def _answer(
        self,
        connection: PostgresConnection,
        outcomes: list[Outcome],
        engine: PostgresEngine,
        seen: RawCursor[Row] | None,
    ) -> None:
        if not engine.wrote:
            self.witness.saw(connection.term, seen.fetchall()[0][0] if seen is not None else 0)
            return
        try:
            self.witness.committed(connection.term, WitnessedCommit(self._writer_name, self._commits + 1, engine.now))
        except StoreUnavailable as error:
            self._drop_writer()
            raise self._doubt(outcomes, engine.now, f"it is too late to acknowledge it: {error.message}") from error

    def _doubt(self, outcomes: list[Outcome], at: int, cause: str) -> CommitInDoubt:
        marker = f"{self._writer_name}.{self._commits + 1}"
        self._doubts[marker] = (outcomes, at)
        if len(self._doubts) > DOUBTS_MAX:
            self._doubts.popitem(last=False)
        self._name_writer()
        return CommitInDoubt(" ".join(cause.split()), marker=marker, fix="ask resolve(marker) what happened")

    def resolve(self, marker: str) -> list[Outcome] | None:
        """Signs in the place of the lost transaction, and waits for it if it has signed and still lives. If there was
        room, it did not happen, and never can: should the server come to it only now, it finds its place taken.

        Either answer is given when the synchronous standby has it too. That may take long; then this raises, and may
        be asked again."""
        if marker not in self._doubts:
            raise InputError(f"no transaction {marker!r} is in doubt", fix="resolve only what CommitInDoubt named")
        outcomes, at = self._doubts[marker]
        writer, _, n = marker.partition(".")
        with self._pool.connection() as session, watched(session), transaction(session, lock_s=sync.WAIT_S) as run:
            run.run("barrier")
            [(now, *_)] = run.ask("store_now")
            if now - at > MARKER_KEEP_US // 2:
                raise StoreUnavailable(f"the marker of {marker} may be gone", fix="compare by hand what was written")
            if run.run("void", writer, int(n), now).rowcount or run.ask("is_void", writer, int(n))[0][0]:
                return None
            [(lsn,)] = run.ask("flushed")
        self.witness.saw(session.term, lsn)
        self._listener.wake()
        return outcomes

    # -- reading

    @property
    def epoch(self) -> int:
        return int(self._pool.ask("read_epoch")[0][0])

    def read(self, stream: str, after: Position | None = None, limit: int = 1000) -> Records | Trimmed:
        """One statement, so that the trim mark and the records are of the same moment."""
        asked = ("read", (stream, after.offset if after is not None else None, max(0, limit)))
        term, [rows] = self._pool.ask_in_term([asked])
        epoch, first, begin, offset = rows[-1][:4]
        self.witness.read(term, stream, offset or 0, rows[-1][7])
        if after is not None:
            check_epoch(after, epoch)
        if first is not None and begin + 1 < first:
            return Trimmed(Position(stream, epoch, first))
        return Records(tuple(record_of(stream, epoch, row[3:]) for row in rows if row[3] is not None))

    def tail(
        self, stream: str, after: Position | None = None, limit: int = 1000, timeout_s: float = 30.0
    ) -> Records | Trimmed:
        return self._listener.until(
            lambda: self.read(stream, after, limit),
            lambda found: not isinstance(found, Records) or bool(found.records),
            timeout_s,
        )

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._listener.listen(wake)

    def wake(self) -> None:
        """Listeners of this process are notified like all others."""
        try:
            self._pool.ask("notify")
        except SemelError:
            log.info("nobody could be notified of a commit; everybody looks by himself", exc_info=True)
            self._listener.wake()

    def head(self, stream: str) -> Position:
        [(epoch, head)] = self._pool.ask("read_head", stream)
        return Position(stream, epoch, head)

    def cursor(self, name: str) -> Position | None:
        rows = self._pool.ask("read_cursor", name)
        return Position(*rows[0]) if rows else None

    def known(self, stream: str, identities: Sequence[str]) -> dict[str, Position]:
        found = self._pool.ask("read_known", stream, texts(list(identities)))
        return {identity: Position(stream, epoch, offset) for identity, offset, epoch in found}

    def state(self, key: str) -> State | None:
        rows = self._pool.ask("read_state", key)
        return State(*rows[0]) if rows else None

    def states(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, State]]:
        rows = self._pool.ask("read_states", after, *prefix_bounds(prefix), limit)
        return [(key, State(value, version)) for key, value, version in rows]

    def work(self, queue: str, identity: str) -> WorkRow | None:
        """A row may be moved between two looks, and back."""
        for _ in range(2):
            if rows := self._pool.ask("read_work", queue, identity):
                return work_row_of(rows[0])
            if left := self._pool.ask("read_identity", queue, identity):
                return bare_row(queue, identity, left[0][0])
        return None

    def work_rows(self, queue: str, states: Collection[WorkState], after: int = 0, limit: int = 100) -> list[WorkRow]:
        """What was put aside is rare, and found by an index of its own."""
        aside, others = smallints(sorted(ASIDE.intersection(states))), smallints(sorted(set(states) - ASIDE))
        return [work_row_of(row) for row in self._pool.ask("work_rows", queue, aside, others, after, limit)]

    def work_counts(self, queue_prefix: str = "") -> dict[str, dict[WorkState, int]]:
        return counts_of(self._pool.ask("work_counts", *prefix_bounds(queue_prefix)))

    def history(self, message: str, limit: int = 1000) -> list[Entry]:
        return [entry_of(row) for row in self._pool.ask("read_history", message, limit)]

    def due(self, queue: str) -> bool:
        begins = self._fronts.of(queue).begins()
        if begins is None:
            return True
        term, (_, [(is_due,)], [(lsn,)]) = self._pool.ask_in_term(
            [("by_index", ()), ("work_due", (queue, *begins)), ("flushed", ())]
        )
        self.witness.saw(term, lsn)
        return bool(is_due)

    def ledger(self, after: Mark, limit: int = 1000) -> list[Entry]:
        return [entry_of(row) for row in self._pool.ask("read_ledger", after.xid, after.seq, limit)]

    def index(self, after: Mark, limit: int = 1000) -> list[IndexEntry]:
        return [index_entry_of(row) for row in self._pool.ask("read_index", after.xid, after.seq, limit)]

    def ledger_columns(self, after: Mark, limit: int = 1000) -> dict[str, Sequence[Any]]:
        """What `ledger` finds, by column and as stored. The export reads millions and needs no objects."""
        return _columns(LEDGER_COLUMNS, self._pool.ask("read_ledger", after.xid, after.seq, limit))

    def index_columns(self, after: Mark, limit: int = 1000) -> dict[str, Sequence[Any]]:
        """What `index` finds, by column and as stored."""
        return _columns(INDEX_COLUMNS, self._pool.ask("read_index", after.xid, after.seq, limit))

    def body(self, name: str) -> Iterator[bytes]:
        """One chunk in memory at a time, each from a read of its own: a slow consumer holds up nobody."""
        rows = self._pool.ask("read_blob", name)
        if not rows or rows[0][0] <= 0:
            raise blob_missing(name)
        return self._chunks(name)

    def _chunks(self, name: str) -> Iterator[bytes]:
        part = -1
        while rows := self._pool.ask("read_chunk", name, part):
            part, data = rows[0]
            yield data

    # -- retention

    def sweep(self, now: int, limit: int = 1000) -> Swept:
        """One sweeper at a time; a second one finds nothing to do. A caller whose clock runs ahead loses nothing."""
        now = self._sweep_time(now)
        records, forgotten = self._sweep_records(now, limit)
        identities = forgotten + self._sweep_identities(now, limit - forgotten)
        moved, work = self._sweep_done(now, limit)
        is_behind = moved + work >= limit
        work += self._sweep_dead(now, limit - work)
        work += self._forget_work(now, limit - work)
        blobs = self._sweep_blobs(now, limit)
        ledger = self._sweep_ledger(now, limit)
        states = self._sweep_states(now, limit)
        with self._transaction(durable=False) as run:
            run.run("sweep_markers", MARKER_KEEP_US)
        more = is_behind or max(records, identities, work, blobs, ledger, states) >= limit
        return Swept(records, identities, work, blobs, ledger, states, more, moved)

    def _sweep_time(self, now: int) -> int:
        return min(now, int(self._pool.ask("store_now")[0][0]))

    @contextmanager
    def _sweeping(self) -> Iterator[Statements | None]:
        """None when somebody else sweeps. What a crash undoes is swept again, so nobody waits for the disk."""
        with self._transaction(durable=False) as run:
            is_mine = run.ask("own_sweep")[0][0]
            yield run if is_mine else None
            if is_mine:
                reach("sweep.deleted")

    def _sweep_records(self, now: int, limit: int) -> tuple[int, int]:
        records = identities = 0
        forget = now - int(self.identity_keep_s * 1_000_000)
        with self._sweeping() as run:
            if run is None:
                return 0, 0
            for stream in run.ask("streams_to_hollow"):
                hollowed, gone = self._hollow(run, stream, limit - records, forget, now)
                records += hollowed
                identities += gone
                if records >= limit:
                    break
        return records, identities

    def _hollow(self, run: Statements, stream: Row, limit: int, forget: int, now: int) -> tuple[int, int]:
        """Drop what was trimmed and exported: all of a row whose identity nobody needs, else all but its identity."""
        id, name, begin, end = stream
        end = self._exported_until(run, name, begin, end)
        rows = run.ask("records_to_hollow", id, begin, end, limit, forget)
        gone = [offset for offset, is_gone, _, _ in rows if is_gone]
        if gone:
            run.run("delete_records", id, bigints(gone))
        if len(gone) < len(rows):
            run.run("hollow_records", id, bigints([offset for offset, is_gone, _, _ in rows if not is_gone]))
        _forget_blobs(run, [blob for *_, blob in rows], now)
        run.run("set_hollowed", id, rows[-1][0] + 1 if len(rows) == limit else end)
        return len(rows), sum(has_identity for _, is_gone, has_identity, _ in rows if is_gone)

    @staticmethod
    def _exported_until(run: Statements, name: str, begin: int, end: int) -> int:
        states = run.ask("exported", "export/index")
        mark = exported_mark(State(*states[0])) if states else None
        if mark is None:
            return end
        [(first,)] = run.ask("first_unexported", name, begin, end, mark.xid, mark.seq)
        return end if first is None else int(first)

    def _sweep_identities(self, now: int, limit: int) -> int:
        identities = 0
        forget = now - int(self.identity_keep_s * 1_000_000)
        with self._sweeping() as run:
            if run is None or limit <= 0:
                return 0
            for id, begin, end in run.ask("streams_to_forget"):
                identities += self._forget(run, id, begin, end, limit - identities, forget)
                if identities >= limit:
                    break
        return identities

    @staticmethod
    def _forget(run: Statements, id: int, begin: int, end: int, limit: int, forget: int) -> int:
        rows = run.ask("records_to_forget", id, begin, end, limit, forget)
        old = [offset for offset, is_old in rows if is_old]
        young = [offset for offset, is_old in rows if not is_old]
        if old:
            run.run("delete_records", id, bigints(old))
        run.run("set_forgotten", id, young[0] if young else old[-1] + 1 if len(rows) == limit else end)
        return len(old)

    def _sweep_done(self, now: int, limit: int) -> tuple[int, int]:
        """Leave only the identities of rows that are done: how many, and how many rows were past their time.

        It goes on where it ended, past index entries of rows that are gone but cannot be cleaned up yet. When there is
        no more it looks at all: rows are not done in the order of their numbers."""
        with self._sweeping() as run:
            if run is None:
                return 0, 0
            begin = self._done_swept
            rows = run.ask("done_work", now, begin, OFFSET_MAX, limit)
            if begin and len(rows) < limit:
                rows += run.ask("done_work", now, 0, begin, limit - len(rows))
            old = [seq for seq, _, _, is_old in rows if is_old]
            moved = [seq for seq, _, _, is_old in rows if not is_old]
            if old:
                run.run("delete_done", bigints(old))
            if moved:
                run.run("add_names", texts(sorted({name for _, *names, _ in rows for name in names})))
                run.run("move_done", bigints(moved))
        self._done_swept = rows[-1][0] if len(rows) == limit else 0
        return len(moved), len(old)

    def _sweep_dead(self, now: int, limit: int) -> int:
        with self._sweeping() as run:
            if run is None:
                return 0
            rows = run.ask("sweep_dead", now, limit)
            _forget_blobs(run, [blob for (blob,) in rows], now)
        return len(rows)

    def _forget_work(self, now: int, limit: int) -> int:
        """Forget the identities of rows that are past their time, going on where it ended while there is more."""
        with self._sweeping() as run:
            if run is None:
                return 0
            rows = run.ask("forget_identities", now, self._forgotten, limit)
        self._forgotten = max((until for (until,) in rows), default=0) if len(rows) == limit else 0
        return len(rows)

    def _sweep_blobs(self, now: int, limit: int) -> int:
        with self._sweeping() as run:
            if run is None:
                return 0
            names = texts([name for (name,) in run.ask("orphan_blobs", now - int(ORPHAN_KEEP_S * 1_000_000), limit)])
            run.run("delete_chunks", names)
            return run.run("delete_blobs", names).rowcount

    def _sweep_ledger(self, now: int, limit: int) -> int:
        """Only what has been exported goes, or what is old if nobody exports: the ledger is evidence, not a cache."""
        with self._sweeping() as run:
            states = run.ask("exported", "export/ledger") if run is not None else []
            mark = exported_mark(State(*states[0])) if states else None
            if run is None:
                return 0
            if mark is None:
                return self._sweep_old_ledger(run, ledger_end(now, self.ledger_keep_s), limit)
            swept = self._ledger_swept
            rows = run.ask("sweep_ledger", swept.xid, swept.seq, mark.xid, mark.seq, limit)
        self._ledger_swept = max((Mark(*row) for row in rows), default=self._ledger_swept)
        return len(rows)

    def _sweep_old_ledger(self, run: Statements, old: int, limit: int) -> int:
        """The oldest are those with the lowest marks, but for clocks that were set: an entry that stays is looked at
        again."""
        if not old:
            return 0
        rows = run.ask("oldest_ledger", self._ledger_swept.xid, self._ledger_swept.seq, old, limit)
        gone = [Mark(xid, seq) for xid, seq, is_old in rows if is_old]
        run.run("delete_ledger", bigints([mark.xid for mark in gone]), bigints([mark.seq for mark in gone]))
        for xid, seq, is_old in rows:
            if not is_old:
                break
            self._ledger_swept = Mark(xid, seq)
        return len(gone)

    def _sweep_states(self, now: int, limit: int) -> int:
        with self._sweeping() as run:
            return run.run("sweep_states", now - self._state_keep_us, limit).rowcount if run is not None else 0

    @property
    def _state_keep_us(self) -> int:
        return int(self.state_keep_s * 1_000_000)

    # -- the rest

    def raise_epoch(self, reason: str) -> int:
        with self._pool.connection() as session:
            return self._gate.raise_epoch(session, reason, lambda _: True)

    def bind(self, connection: Any) -> PostgresTx:
        """`connection` is the user's own psycopg connection, with a transaction open or about to open."""
        return PostgresTx(self.url, self.node, self.store_id, connection, self._pool.ask)

    def check(self) -> None:
        [(_, _, is_standby, _)] = self._pool.ask("server")
        if is_standby:
            raise StoreInRecovery(
                f"{redact(self.url)} is in recovery",
                fix="connect to the primary; if this is to be one, promote it, or wait until its recovery is over",
            )

    def horizon(self) -> LedgerHorizon:
        return _horizon(self._pool.ask)

    def status(self) -> Status:
        with self._transaction() as run:
            [(_, schema, epoch, *_)] = run.ask("read_store")
            return Status(
                url=redact(self.url),
                engine=f"PostgreSQL {run.connection.info.parameter_status('server_version')}",
                store_id=self.store_id,
                epoch=epoch,
                schema=schema,
                streams=tuple(StreamInfo(name, epoch, head, first) for name, head, first in run.ask("status_streams")),
                cursors=tuple(
                    CursorInfo(name, Position(*position), pins) for name, *position, pins in run.ask("status_cursors")
                ),
                work=named_counts(counts_of(run.ask("work_counts", *prefix_bounds("")))),
                remembered=run.ask("status_remembered")[0][0],
                ledger_entries=run.ask("status_ledger")[0][0],
                sweepable=run.ask("status_sweepable", self._state_keep_us)[0][0],
                bytes=run.ask("status_bytes")[0][0],
                details={"database": run.connection.info.dbname, "user": run.connection.info.user},
                horizon=_horizon(run.ask),
            )

    def close(self) -> None:
        self._listener.close()
        self._closed = True
        if not self._lock.acquire(timeout=CLOSE_S):
            self._cut_writer()
            self._lock.acquire()
        try:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        finally:
            self._lock.release()
        self._pool.close()
        self._gate.membership.close()

    def _cut_writer(self) -> None:
        """A commit may wait for its standby for ever. Whoever waits for the commit learns that it is in doubt."""
        if (writer := self._writer) is not None:
            writer.hang_up()


def _schema(run: Statements) -> int:
    [(_, _, _, is_store)] = run.ask("server")
    rows = run.ask("read_store") if is_store else []
    return int(rows[0][1]) if rows else 0


def _horizon(ask: Callable[..., Sequence[Row]]) -> LedgerHorizon:
    [(events, held_us)] = ask("ledger_horizon")
    if not events:
        return LedgerHorizon()
    holders = ask("horizon_holder")
    if not holders:
        return LedgerHorizon(held_us / 1e6, events, "a transaction that this user may not see")
    [(pid, name, state, since_us)] = holders
    who = f"the prepared transaction {name!r}" if pid is None else f"{name or 'an unnamed application'} (pid {pid})"
    return LedgerHorizon(held_us / 1e6, events, f"{who}, {state}, open for {since_us / 1e6:.0f} s")


def _newest() -> int:
    return load_migrations("postgres")[-1][0]


def _forget_blobs(run: Statements, blobs: Sequence[str | None], now: int) -> None:
    counts = Counter(blob for blob in blobs if blob is not None)
    if counts:
        names = sorted(counts)
        refs: Array = ints([counts[name] for name in names])
        run.run("forget_blobs", texts(names), refs, now)


def _columns(names: Sequence[str], rows: Sequence[Row]) -> dict[str, Sequence[Any]]:
    values = zip(*rows, strict=True) if rows else ((),) * len(names)
    return dict(zip(names, values, strict=True))
