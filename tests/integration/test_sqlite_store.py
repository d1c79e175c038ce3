"""What only SQLite can get wrong: files, sidecars, several processes on one file, and a disk that refuses."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import shutil
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from semel import Envelope, errors
from semel.kernel.envelope import Blob
from semel.kernel.ops import (
    Advance,
    Advanced,
    Append,
    Applied,
    Claim,
    Duplicate,
    Enqueue,
    Fresh,
    Put,
    Trim,
    Unit,
    WorkState,
)
from semel.kernel.position import Position
from semel.kernel.store import Records, State
from semel.stores import queries, sqlite_engine
from semel.stores.sqlite import SqliteStore
from semel.stores.sqlite_engine import Q, work_row_of
from semel.stores.sqlite_session import Sqlite3Session
from semel.testing.limits import scaled

SPAWN = multiprocessing.get_context("spawn")
FULL = 2


def append(id: str, stream: str = "hub/x") -> Unit:
    return Unit((Append(stream, Envelope(id=id, data=b"body"), identity=id),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "semel.db"


@pytest.fixture
def open_at(path: Path):
    stores: list[SqliteStore] = []

    def open_(**options):
        stores.append(SqliteStore(f"sqlite:///{path}", **options))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


class Failing:
    """A connection whose disk fails at statements that begin like this."""

    def __init__(self, connection, where):
        self.connection, self.where = connection, where

    def __getattr__(self, name):
        return getattr(self.connection, name)

    def execute(self, sql, *args):
        self._check(sql)
        return self.connection.execute(sql, *args)

    def executemany(self, sql, *args):
        self._check(sql)
        return self.connection.executemany(sql, *args)

    def _check(self, sql):
        if sql.lstrip().startswith(self.where):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error


def restore(copy: Path, path: Path) -> None:
    """What an operator does: the old file in the place of the new one, the log and its index removed."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, path)


def back_up(path: Path) -> Path:
    copy = path.with_name("backup.db")
    with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    source.close()
    target.close()
    return copy


class TestRewind:
    def test_a_reopened_store_keeps_its_epoch(self, open_at):
        first = open_at()
        first.commit([append("a")])
        first.close()
        assert open_at().epoch == 1

    def test_a_restored_file_begins_a_new_epoch_above_everything_given_out(self, open_at, path):
        store = open_at()
        store.commit([append("a")])
        copy = back_up(path)
        store.commit([append("b"), append("c")])
        lost = store.head("hub/x")
        store.close()
        restore(copy, path)
        again = open_at()
        assert again.epoch == 2
        [outcome] = again.commit([append("d")])
        assert isinstance(outcome.results[0], Fresh)
        assert outcome.results[0].position.offset > lost.offset

    def test_fences_of_the_lost_history_are_never_given_out_again(self, open_at, path):
        store = open_at()
        store.commit([Unit((Enqueue("inbox/q", "row", Envelope(id="row")),))])
        copy = back_up(path)
        claim = Unit((Claim("inbox/q", "w", lease_s=0.0),))
        fences = [store.commit([claim])[0].results[0].rows[0].fence for _ in range(3)]
        store.close()
        restore(copy, path)
        [outcome] = open_at().commit([claim])
        assert outcome.results[0].rows[0].fence > max(fences)

    def test_a_position_of_the_lost_history_is_refused(self, open_at, path):
        store = open_at()
        store.commit([append("a")])
        copy = back_up(path)
        store.commit([append("b")])
        seen = store.head("hub/x")
        store.close()
        restore(copy, path)
        with pytest.raises(errors.EpochChanged) as caught:
            open_at().read("hub/x", after=seen)
        assert caught.value.current == 2

    def test_a_cursor_of_the_surviving_history_goes_on(self, open_at, path):
        store = open_at()
        store.commit([append("a"), append("b")])
        store.commit([Unit((Advance("reader", Position("hub/x", 1, 1)),))])
        copy = back_up(path)
        store.commit([append("c")])
        store.close()
        restore(copy, path)
        again = open_at()
        found = again.read("hub/x", after=again.cursor("reader"))
        assert [record.envelope.id for record in found.records] == ["b"]

    @pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"nonsense")])
    def test_without_a_sidecar_that_makes_sense_a_new_epoch_begins(self, open_at, path, damage):
        store = open_at()
        store.commit([append("a")])
        store.close()
        damage(path.with_name(path.name + "-semel"))
        assert open_at().epoch == 2

    def test_another_store_in_the_same_place_begins_a_new_epoch(self, open_at, path, tmp_path):
        other = SqliteStore(f"sqlite:///{tmp_path}/other.db")
        other.commit([append("a")])
        other.close()
        store = open_at()
        store.commit([append("b")])
        store.close()
        restore(tmp_path / "other.db", path)
        assert open_at().epoch == 2

    def test_a_cursor_beyond_the_end_proves_a_rewind(self, open_at, path):
        store = open_at()
        store.commit([append("a")])
        store.close()
        with sqlite3.connect(path) as db:
            db.execute("INSERT INTO semel_cursor VALUES ('reader', 'hub/x', 1, 99, 1)")
        db.close()
        assert open_at().epoch == 2

    def test_the_reason_is_in_the_ledger(self, open_at, path):
        store = open_at()
        store.commit([append("a")])
        store.close()
        path.with_name(path.name + "-semel").unlink()
        again = open_at()
        assert "sidecar" in again.ledger(after=_start())[-1].event.cause

    def test_opening_beside_a_busy_writer_keeps_the_epoch(self, open_at, path):
        store = open_at()
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                store.commit([append(f"m{number}")])
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(200):
            SqliteStore(f"sqlite:///{path}").close()
        stop.set()
        writer.join()
        assert store.epoch == 1

    def test_a_fence_given_out_in_a_users_transaction_is_not_given_out_again(self, open_at, path):
        """The sidecar hears of users' transactions late, so its mark alone would not be enough."""
        store = open_at()
        store.commit([Unit((Enqueue("inbox/q", "row", Envelope(id="row")),))])
        copy = back_up(path)
        store.commit([append("a")])
        user = sqlite3.connect(path)
        claim = Claim("inbox/q", "w", lease_s=0.0)
        fence = store.bind(user).apply([claim])[0].rows[0].fence
        user.commit()
        user.close()
        store.close()
        restore(copy, path)
        [outcome] = open_at().commit([Unit((claim,))])
        assert outcome.results[0].rows[0].fence > fence

    def test_a_restore_is_seen_although_only_users_transactions_came_after_the_backup(self, open_at, path):
        store = open_at()
        store.commit([append("a")])
        copy = back_up(path)
        user = sqlite3.connect(path)
        store.bind(user).apply([Enqueue("outbox/shop", "7", Envelope(id="7"))])
        user.commit()
        user.close()
        store.close()
        restore(copy, path)
        assert open_at().epoch == 2


def _start():
    from semel.kernel.ledger import START

    return START


def write_many(url: str, name: str, count: int) -> None:
    store = SqliteStore(url, node=name)
    for number in range(count):
        store.commit([append(f"{name}-{number}")])
    store.close()


def write_same(url: str, name: str, count: int) -> None:
    store = SqliteStore(url, node=name)
    for number in range(count):
        store.commit([append(f"same-{number}")])
    store.close()


class TestSeveralProcesses:
    def run(self, target, path, processes=3, count=100):
        url = f"sqlite:///{path}"
        SqliteStore(url).close()
        workers = [SPAWN.Process(target=target, args=(url, f"p{n}", count)) for n in range(processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(scaled(120))
            assert worker.exitcode == 0
        store = SqliteStore(url)
        found = store.read("hub/x", limit=10_000)
        store.close()
        assert isinstance(found, Records)
        return found.records

    def test_offsets_stay_dense_and_nothing_is_lost(self, path):
        records = self.run(write_many, path)
        assert [record.position.offset for record in records] == list(range(1, 301))
        assert len({record.envelope.id for record in records}) == 300

    def test_one_of_them_wins_each_identity(self, path):
        records = self.run(write_same, path)
        assert sorted(record.envelope.id for record in records) == sorted(f"same-{n}" for n in range(100))

    def test_a_reader_is_woken_by_another_process(self, path):
        url = f"sqlite:///{path}"
        reader = SqliteStore(url)
        writer = SPAWN.Process(target=write_many, args=(url, "other", 1))
        writer.start()
        found = reader.tail("hub/x", timeout_s=scaled(60))
        writer.join(scaled(60))
        reader.close()
        assert [record.envelope.id for record in found.records] == ["other-0"]

    def test_a_listener_hears_of_another_process(self, path):
        url = f"sqlite:///{path}"
        reader = SqliteStore(url)
        heard = threading.Event()
        stop = reader.listen(lambda: heard.set() if reader.read("hub/x").records else None)
        writer = SPAWN.Process(target=write_many, args=(url, "other", 1))
        writer.start()
        assert heard.wait(scaled(60))
        stop()
        writer.join(scaled(60))
        reader.close()


class TestErrors:
    def test_a_file_that_is_no_database(self, open_at, path):
        path.write_text("a shopping list\n" * 100)
        with pytest.raises(errors.NotAStore, match="not a SQLite database") as caught:
            open_at()
        assert caught.value.fix
        assert path.read_text().startswith("a shopping list")

    def test_a_folder(self, path, open_at):
        path.mkdir()
        with pytest.raises(errors.NotAStore, match="folder"):
            open_at()

    def test_a_missing_folder(self, tmp_path):
        with pytest.raises(errors.StoreUnavailable, match="does not exist"):
            SqliteStore(f"sqlite:///{tmp_path}/nowhere/semel.db")

    def test_a_missing_store_that_must_not_be_created(self, open_at, path):
        with pytest.raises(errors.StoreUnavailable, match="no store"):
            open_at(create=False)
        assert not path.exists()

    def test_somebody_elses_database_is_left_alone(self, open_at, path):
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE customers (name TEXT)")
        db.close()
        with pytest.raises(errors.NotAStore, match="no Semel tables"):
            open_at(create=False)

    def test_a_locked_database_is_busy_and_loses_nothing(self, open_at, path):
        store = open_at(busy_s=0.05)
        store.commit([append("a")])
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.StoreBusy) as caught:
            store.commit([append("b")])
        assert caught.value.retryable
        blocker.execute("ROLLBACK")
        blocker.close()
        [outcome] = store.commit([append("b")])
        assert isinstance(outcome.results[0], Fresh)

    def test_who_keeps_the_lock_is_in_the_way_and_who_has_it_for_a_moment_is_not(self, open_at, path, monkeypatch):
        monkeypatch.setattr("semel.stores.sqlite.LOCK_LOOK_S", 0.05)
        store = open_at()
        store.check()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            with pytest.raises(errors.StoreBusy):
                store.check()
            blocker.execute("ROLLBACK")
        store.check()

    def test_a_commit_that_waits_for_the_lock_says_so(self, open_at, path, monkeypatch):
        monkeypatch.setattr("semel.stores.sqlite.LOCK_LOOK_S", 0.05)
        store = open_at()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            committing = threading.Thread(target=store.commit, args=([append("a")],))
            committing.start()
            while store._busy_since is None:
                time.sleep(0.001)
            with pytest.raises(errors.StoreBusy):
                store.check()
            blocker.execute("ROLLBACK")
        committing.join(scaled(60))
        assert store._busy_since is None
        store.check()

    def test_a_newer_schema_is_refused_and_unchanged(self, open_at, path):
        open_at().close()
        with sqlite3.connect(path) as db:
            db.execute("UPDATE semel_store SET schema = 99")
        db.close()
        with pytest.raises(errors.SchemaTooNew, match="schema 99"):
            open_at()
        with sqlite3.connect(path) as db:
            assert db.execute("SELECT schema FROM semel_store").fetchone() == (99,)
        db.close()

    def test_a_full_disk_refuses_the_commit_and_keeps_the_rest(self, open_at, path):
        store = open_at()
        store.commit([append("a")])
        pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
        store._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        big = Unit((Append("hub/x", Envelope(id="big", data=b"x" * 200_000), identity="big"),))
        with pytest.raises(errors.StoreFull, match="no space"):
            store.commit([big])
        store._writer.execute(f"PRAGMA max_page_count = {pages + 1000}")
        [outcome] = store.commit([big])
        assert isinstance(outcome.results[0], Fresh)
        assert outcome.results[0].position.offset == 2

    def test_an_io_error_inside_commit_ends_the_use_of_the_file(self, open_at, path, monkeypatch):
        store = open_at()
        store.commit([append("a")])
        monkeypatch.setattr(store, "_writer", Failing(store._writer, "COMMIT"))
        with pytest.raises(errors.CommitInDoubt):
            store.commit([append("b")])
        with pytest.raises(errors.StoreUnavailable, match="I/O error"):
            store.commit([append("c")])
        with pytest.raises(errors.StoreUnavailable):
            store.resolve("io")
        [outcome] = open_at().commit([append("a")])
        assert isinstance(outcome.results[0], Duplicate)

    @pytest.mark.parametrize("where", ["BEGIN IMMEDIATE", "SELECT", "UPDATE"])
    def test_an_io_error_before_the_commit_ends_the_use_of_the_file(self, open_at, monkeypatch, where):
        """What the page cache holds is no longer what the disk holds, whichever statement has noticed it."""
        store = open_at()
        store.commit([append("a")])
        monkeypatch.setattr(store, "_writer", Failing(store._writer, where))
        with pytest.raises(errors.StoreUnavailable):
            store.commit([append("b")])
        monkeypatch.setattr(store, "_writer", store._writer.connection)
        self.check_unusable(store)
        [outcome] = open_at().commit([append("b")])
        assert isinstance(outcome.results[0], Fresh)

    @pytest.mark.parametrize(
        ("look", "where"),
        [
            (lambda store: store.head("hub/x"), "SELECT"),
            (lambda store: store.read("hub/x"), "SELECT"),
            (lambda store: store.epoch, "SELECT"),
            (lambda store: store._commits_of_others(), "PRAGMA data_version"),
        ],
    )
    def test_an_io_error_of_a_read_ends_the_use_of_the_file(self, open_at, look, where):
        store = open_at()
        store.commit([append("a")])
        store._readers.connection = Failing(store._reader, where)
        with pytest.raises(errors.StoreUnavailable):
            look(store)
        store._readers.connection = store._readers.connection.connection
        self.check_unusable(store)

    def test_an_io_error_in_a_users_transaction_ends_the_use_of_the_file(self, open_at, path):
        store = open_at()
        with contextlib.closing(sqlite3.connect(path)) as db:
            tx = store.bind(Failing(Sqlite3Session(db), "SAVEPOINT"))
            with pytest.raises(errors.StoreUnavailable):
                tx.apply((Put("k", b"v"),))
            db.rollback()
        self.check_unusable(store)

    @staticmethod
    def check_unusable(store):
        for use in (lambda: store.commit([append("c")]), lambda: store.head("hub/x"), lambda: store.sweep(0)):
            with pytest.raises(errors.StoreUnavailable, match="I/O error"):
                use()

    @pytest.mark.parametrize("url", ["sqlite://host/x.db", "sqlite:///", "sqlite:///x.db?mode=memory"])
    def test_a_url_that_names_no_file(self, url):
        with pytest.raises(errors.ConfigError, match="not the URL"):
            SqliteStore(url)


class TestMigration:
    def test_an_older_schema_is_brought_up_to_date(self, open_at, monkeypatch):
        store = open_at()
        store.commit([append("a")])
        store.close()
        steps = queries.load_migrations("sqlite")
        newest = steps[-1][0] + 1
        steps.append((newest, "CREATE TABLE semel_later (x INTEGER) STRICT;\n"))
        monkeypatch.setattr("semel.stores.sqlite.load_migrations", lambda engine: steps)
        again = open_at()
        assert again.status().schema == newest
        assert again.migrate() == (newest, newest)
        [outcome] = again.commit([append("a")])
        assert isinstance(outcome, Applied)
        assert isinstance(outcome.results[0], Duplicate)

    def test_a_failed_step_leaves_the_old_schema(self, open_at, monkeypatch):
        store = open_at()
        store.close()
        good = queries.load_migrations("sqlite")
        broken = "CREATE TABLE semel_later (x INTEGER) STRICT;\nCREATE TABLE semel_later (y);\n"
        bad = [*good, (good[-1][0] + 1, broken)]
        with monkeypatch.context() as patch:
            patch.setattr("semel.stores.sqlite.load_migrations", lambda engine: bad)
            with pytest.raises(errors.StoreError):
                open_at()
        assert open_at().status().schema == good[-1][0]

    def test_old_counts_of_deleted_states_are_kept_from_the_migration_on(self, open_at, path, monkeypatch):
        with monkeypatch.context() as patch:
            old = queries.load_migrations("sqlite")[:1]
            patch.setattr("semel.stores.sqlite.load_migrations", lambda engine: old)
            open_at().close()
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("INSERT INTO semel_state VALUES ('gone', x'', -5), ('here', x'01', 3)")
        now = time.time_ns() // 1000
        store = open_at()
        assert (store.status().sweepable, store.sweep(now).states) == (0, 0)
        assert store.state("here") == State(b"\x01", 3)
        later = open_at(clock=lambda: now + 25 * 3600 * 1_000_000)
        assert (later.status().sweepable, later.sweep(later._clock()).states) == (1, 1)
        assert later.status().sweepable == 0
        [outcome] = store.commit([Unit((Put("gone", b"y", expected=0), Put("here", b"y", expected=3)))])
        assert outcome.results == (Advanced(version=1), Advanced(version=4))

    def test_rows_of_an_older_schema_are_moved_by_the_next_sweep(self, open_at, path, monkeypatch):
        with monkeypatch.context() as patch:
            old = queries.load_migrations("sqlite")[:3]
            patch.setattr("semel.stores.sqlite.load_migrations", lambda engine: old)
            open_at().close()
        columns = (
            "seq, queue, scope, identity, state, holds, due, attempts, fence, owner, keep_until, id, source, type, size"
        )
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            rows = [(n, f"w{n}", 4 + n, "m") for n in range(3)]
            values = "?, 'inbox/a', 'inbox/a', ?, ?, 0, 0, 2, 7, 'w', 9000000000000000, ?, 's', 't', 0"
            db.executemany(f"INSERT INTO semel_work ({columns}) VALUES ({values})", rows)
            db.execute("UPDATE semel_store SET work_seq = 3, commits = 1")
        store = open_at()
        assert store.sweep(time.time_ns() // 1000).moved == 1
        rows = [store.work("inbox/a", f"w{n}") for n in range(3)]
        assert [row.state for row in rows] == [WorkState.PARKED, WorkState.DONE, WorkState.DEAD]
        assert [(row.attempts, row.fence, row.envelope.id) for row in rows] == [(2, 7, "m"), (0, 0, "w1"), (2, 7, "m")]

    @pytest.mark.parametrize(
        ("query", "index"),
        [
            ("read_history", "semel_ledger_message"),
            ("work_rows_aside", "semel_work_aside"),
            ("done_work", "semel_work_done"),
            ("dead_work", "semel_work_dead"),
            ("forget_identities", "semel_identity_keep"),
            ("known_identities", "semel_identity_queue"),
            ("known_identities", "semel_identity_scope"),
        ],
    )
    def test_what_is_asked_often_has_an_index(self, open_at, query, index):
        db = open_at()._writer
        params = (1,) * len(set(re.findall(r"\?\d+", Q[query])) or re.findall(r"\?", Q[query]))
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {Q[query]}", params)]
        assert any(index in step for step in plan), plan
        assert not any(step.startswith("SCAN semel") for step in plan), plan

    def test_a_state_that_an_older_process_has_set_again_is_not_swept(self, open_at, path):
        """It knows no time of deletion, and leaves the one that is there."""
        store = open_at(state_keep_s=0.0)
        store.commit([Unit((Put("k", b"1"), Put("k", None)))])
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE semel_state SET value = x'02', version = 3")
        assert store.sweep(time.time_ns() // 1000).states == 0
        assert store.state("k") == State(b"\x02", 3)


def test_what_reads_cannot_write(open_at):
    """Only the writer knows whether it may: it holds the lock, and notes what it commits."""
    store = open_at()
    store.commit([append("a")])
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store._reader.execute("DELETE FROM semel_store")


def test_a_commit_is_on_the_disk_before_it_is_answered(open_at):
    """With anything less than FULL the log is not synced at a commit, and a power failure takes what was acknowledged.
    No test can pull the plug, so the setting itself is checked, on every connection that may write."""
    store = open_at()
    store.commit([append("a")])
    assert len(store._open) > 0
    for connection in store._open:
        [(synchronous,)] = connection.execute("PRAGMA synchronous").fetchall()
        [(journal,)] = connection.execute("PRAGMA journal_mode").fetchall()
        assert (synchronous, journal) == (FULL, "wal")


def test_a_sweep_finds_the_counts_of_deleted_states_by_an_index(open_at, path):
    open_at()
    with contextlib.closing(sqlite3.connect(path)) as db:
        plan = [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + Q["sweep_states"], (0, 1000))]
    assert not any("SCAN semel_state" in line for line in plan)
    assert any("semel_state_deleted" in line for line in plan)
    assert not any("TEMP B-TREE" in line for line in plan)


def test_the_log_does_not_grow_without_end(open_at, path):
    """The checkpointer copies the log while commits go on, so the log starts again from time to time."""
    store = open_at()
    body = b"x" * 100_000
    for number in range(400):
        store.commit([Unit((Append("hub/x", Envelope(id=str(number), data=body)),))])
    assert path.with_name(path.name + "-wal").stat().st_size < 30_000_000


def test_a_users_transaction_in_the_users_own_connection(open_at, path):
    store = open_at()
    user = sqlite3.connect(path, isolation_level=None)
    user.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")
    user.execute("BEGIN IMMEDIATE")
    user.execute("INSERT INTO orders VALUES ('7')")
    store.bind(user).apply([Enqueue("outbox/shop", "7", Envelope(id="7"))])
    assert store.work("outbox/shop", "7") is None
    user.execute("COMMIT")
    assert store.work("outbox/shop", "7") is not None
    user.close()


def test_a_listener_that_fails_does_not_undo_a_commit(open_at):
    store = open_at()
    store.listen(lambda: 1 / 0)
    [outcome] = store.commit([append("a")])
    assert isinstance(outcome.results[0], Fresh)
    assert store.tail("hub/x", timeout_s=scaled(10)).records


def test_a_refused_bound_unit_leaves_nothing_behind(open_at, path):
    """A user who catches the error and commits all the same commits nothing of ours."""
    store = open_at()
    user = sqlite3.connect(path, isolation_level=None)
    user.execute("BEGIN IMMEDIATE")
    nameless = Envelope(id="8", blob=Blob("nowhere", 10))
    with pytest.raises(errors.StoreRefused):
        store.bind(user).apply([Enqueue("outbox/shop", "8", nameless)])
    store.bind(user).apply([Enqueue("outbox/shop", "9", Envelope(id="9"))])
    user.execute("COMMIT")
    user.close()
    assert store.work("outbox/shop", "8") is None
    assert store.work("outbox/shop", "9") is not None


def test_what_follows_a_commit_is_done_before_the_next_one_begins(open_at, monkeypatch):
    """A checkpoint runs on the writer's own connection: beside another thread's commit it would break that one."""
    store = open_at()
    held = []
    after_commit = store._after_commit

    def watch(engine):
        held.append(store._lock._is_owned())
        after_commit(engine)

    monkeypatch.setattr(store, "_after_commit", watch)
    store.commit([Unit((Append("hub/x", Envelope(id="1")), Trim("hub/x", 2)))])
    store.sweep(store._clock())
    assert len(held) == 2
    assert all(held)


def test_a_look_for_commits_of_others_that_fails_is_made_again(open_at, monkeypatch):
    """The thread that looks must survive it, and what it could not see is news the next time."""
    store, other = open_at(), open_at()
    before = store._commits_of_others()
    other.commit([Unit((Append("hub/x", Envelope(id="1")),))])

    class Locked:
        def __init__(self, reader):
            self.reader = reader

        def execute(self, sql):
            if sql.startswith("SELECT"):
                raise sqlite3.OperationalError("database is locked")
            return self.reader.execute(sql)

    with monkeypatch.context() as broken:
        broken.setattr(SqliteStore, "_reader", Locked(store._reader))
        with pytest.raises(errors.SemelError):
            store._commits_of_others()
    assert store._commits_of_others() == before + 1
    assert store._commits_of_others() == before + 1
    store.commit([Unit((Append("hub/x", Envelope(id="2")),))])
    assert store._commits_of_others() == before + 1


def test_a_look_for_work_reads_indexes(open_at, path):
    open_at()
    with contextlib.closing(sqlite3.connect(path)) as db:
        plan = [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + Q["work_due"], ("inbox/q", 0))]
    assert not any(line.startswith("SCAN semel") for line in plan), plan
    assert {index for line in plan for index in line.split() if index.startswith("semel_work_")} >= {
        "semel_work_due", "semel_work_key_due", "semel_work_waiting",
    }  # fmt: skip


def test_a_claim_of_several_rows_of_each_key_reads_no_more_than_it_wants(open_at, monkeypatch):
    store = open_at()
    for key in range(30):
        ops = [Enqueue("inbox/q", f"{key}.{n}", Envelope(id="m"), key=f"k{key:02}") for n in range(30)]
        store.commit([Unit(tuple(ops))])
    read = []
    monkeypatch.setattr(sqlite_engine, "work_row_of", lambda row: read.append(row) or work_row_of(row))
    for limit in (20, 45):
        read.clear()
        [outcome] = store.commit([Unit((Claim("inbox/q", "w", limit=limit, per_key=30),))])
        assert len(outcome.results[0].rows) == limit
        assert len(read) <= limit
