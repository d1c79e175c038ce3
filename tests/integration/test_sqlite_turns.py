"""The queue for the write lock between real processes: fair, and nobody can hang it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import pytest

from semel import errors
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Enqueue, Unit
from semel.stores.sqlite import SqliteStore
from semel.stores.sqlite_turns import Turns
from semel.testing.limits import scaled, wait_until

SPAWN = multiprocessing.get_context("spawn")
HOLD_S = 0.02
HANDLERS = 4


def enqueue(id: str) -> Enqueue:
    return Enqueue("inbox/orders", id, Envelope(id=id, data=b"body"))


def in_order(store: SqliteStore) -> list[str]:
    """What was committed, the first first."""
    with contextlib.closing(sqlite3.connect(store.path)) as connection:
        return [id for (id,) in connection.execute("SELECT id FROM semel_work ORDER BY seq")]


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/semel.db"
    SqliteStore(url).close()
    return url


@pytest.fixture
def store(url: str) -> Iterator[SqliteStore]:
    """Whose patience outlasts every limit here: what goes on, goes on in turn."""
    with contextlib.closing(SqliteStore(url, busy_s=scaled(120))) as store:
        yield store


@pytest.fixture
def turns(store: SqliteStore) -> Turns:
    """The queue as somebody sees it who does not wait."""
    return Turns(Path(f"{store.path}-semel-turns"))


def in_queue(turns: Turns) -> int:
    return len(turns.read(time.monotonic()))


@contextlib.contextmanager
def processes(target, url: str, count: int) -> Iterator[list[multiprocessing.process.BaseProcess]]:
    """They run until the end of the block; each has begun at its beginning."""
    pipes = [SPAWN.Pipe() for _ in range(count)]
    started = [SPAWN.Process(target=target, args=(url, n, pipes[n][1]), daemon=True) for n in range(count)]
    for process, (_, theirs) in zip(started, pipes, strict=True):
        process.start()
        theirs.close()
    try:
        for ours, _ in pipes:
            assert ours.poll(scaled(60))
        yield started
    finally:
        for process, (ours, _) in zip(started, pipes, strict=True):
            ours.close()
            process.join(scaled(60))
            process.kill()
            process.join()


def handle(url: str, number: int, parent: Connection, in_turn: bool = True) -> None:
    """Writes in its own connection and keeps the lock for as long as a handler takes, back to back."""
    store = SqliteStore(url, node=f"p{number}", in_turn=in_turn)
    with contextlib.closing(store), contextlib.closing(sqlite3.connect(store.path)) as connection:
        count = 0
        while not parent.poll():
            store.bind(connection).apply([enqueue(f"{number}-{count}")])
            time.sleep(HOLD_S)
            connection.commit()
            if count == 0:
                parent.send("begun")
            count += 1


def overtaken(store: SqliteStore, id: str) -> int:
    """How many transactions of others went before a commit since it was asked for."""
    before = len(in_order(store))
    store.commit([Unit((enqueue(id),))])
    return in_order(store).index(id) - before


class TestFairness:
    @pytest.mark.parametrize("count", [1, HANDLERS])
    def test_a_commit_waits_for_one_handler_of_each_process(self, store: SqliteStore, url: str, count: int) -> None:
        with processes(handle, url, count):
            found = [overtaken(store, f"mine-{n}") for n in range(15)]
        assert median(found) <= count + 1

    def test_handlers_take_turns(self, store: SqliteStore, url: str) -> None:
        with processes(handle, url, HANDLERS):
            begin = len(in_order(store))
            wait_until(lambda: len(in_order(store)) >= begin + 60, "sixty handlers")
        who = [id.partition("-")[0] for id in in_order(store)[begin : begin + 60]]
        twice = sum(1 for one, next in pairwise(who) if one == next)
        assert twice <= 15
        assert min(who.count(str(number)) for number in range(HANDLERS)) >= 5

    def test_who_begins_by_itself_gives_way_to_who_waits_in_turn(
        self, store: SqliteStore, url: str, turns: Turns
    ) -> None:
        with contextlib.closing(SqliteStore(url)) as polite:
            with locked(store) as blocker, committing(store, "mine"):
                wait_until(lambda: in_queue(turns) == 1, "the ticket")
                begin = time.monotonic()
                polite.give_way(0.1)
                assert time.monotonic() - begin >= 0.1, "somebody waits, and not longer than it was told to"
                blocker.execute("ROLLBACK")
            begin = time.monotonic()
            polite.give_way(3600)
            assert time.monotonic() - begin < scaled(60)

    def test_many_threads(self, url: str, turns: Turns) -> None:
        stores = [SqliteStore(url) for _ in range(12)]

        def write(number: int) -> None:
            for n in range(20):
                stores[number].commit([Unit((enqueue(f"{number}-{n}"),))])

        threads = [threading.Thread(target=write, args=(number,)) for number in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(scaled(120))
        assert len(set(in_order(stores[0]))) == 240
        assert in_queue(turns) == 0
        for store in stores:
            store.close()


def commit_once(url: str, number: int, parent: Connection) -> None:
    with contextlib.closing(SqliteStore(url)) as store:
        parent.send("begun")
        store.commit([Unit((enqueue(f"child-{number}"),))])


@contextlib.contextmanager
def locked(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """Somebody who knows nothing of queues has the lock."""
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


@contextlib.contextmanager
def committing(store: SqliteStore, id: str) -> Iterator[None]:
    thread = threading.Thread(target=store.commit, args=([Unit((enqueue(id),))],), daemon=True)
    thread.start()
    yield
    thread.join(scaled(60))
    assert not thread.is_alive()


class TestNobodyHangsIt:
    def test_one_that_was_killed_is_passed_over(self, store: SqliteStore, url: str, turns: Turns) -> None:
        with locked(store) as blocker, processes(commit_once, url, 1) as [child]:
            wait_until(lambda: in_queue(turns) == 1, "the child's ticket")
            with committing(store, "mine"):
                wait_until(lambda: in_queue(turns) == 2, "the ticket behind it")
                child.kill()
                child.join()
                blocker.execute("ROLLBACK")
        assert in_order(store) == ["mine"]
        assert in_queue(turns) == 0

    def test_one_that_was_stopped_is_passed_over_and_goes_on(self, store: SqliteStore, url: str, turns: Turns) -> None:
        with locked(store) as blocker, processes(commit_once, url, 1) as [child]:
            wait_until(lambda: in_queue(turns) == 1, "the child's ticket")
            assert child.pid is not None
            with committing(store, "mine"):
                wait_until(lambda: in_queue(turns) == 2, "the ticket behind it")
                os.kill(child.pid, signal.SIGSTOP)
                blocker.execute("ROLLBACK")
            assert in_order(store) == ["mine"]
            os.kill(child.pid, signal.SIGCONT)
            child.join(scaled(60))
        assert in_order(store) == ["mine", "child-0"]
        assert in_queue(turns) == 0

    def test_the_first_in_the_queue_is_served_first(self, store: SqliteStore, url: str, turns: Turns) -> None:
        with locked(store) as blocker, processes(commit_once, url, 1):
            wait_until(lambda: in_queue(turns) == 1, "the child's ticket")
            with committing(store, "mine"):
                wait_until(lambda: in_queue(turns) == 2, "the ticket behind it")
                blocker.execute("ROLLBACK")
        assert in_order(store) == ["child-0", "mine"]

    def test_who_gives_up_leaves_the_queue(self, store: SqliteStore, url: str, turns: Turns) -> None:
        hasty = SqliteStore(url, busy_s=0.1)
        with locked(store) as blocker, committing(store, "patient"):
            wait_until(lambda: in_queue(turns) == 1, "the ticket before it")
            with pytest.raises(errors.StoreBusy):
                hasty.commit([Unit((enqueue("hasty"),))])
            assert in_queue(turns) == 1
            blocker.execute("ROLLBACK")
        hasty.close()
        assert in_order(store) == ["patient"]

    def test_behind_others_the_wait_is_bounded_too(self, store: SqliteStore, url: str) -> None:
        hasty = SqliteStore(url, busy_s=0.0)
        with locked(store) as blocker:
            with pytest.raises(errors.StoreBusy):
                hasty.commit([Unit((enqueue("hasty"),))])
            blocker.execute("ROLLBACK")
        assert hasty.commit([Unit((enqueue("hasty"),))])[0].results
        hasty.close()

    def test_a_writer_that_knows_of_no_queue_does_no_harm(self, store: SqliteStore, url: str, turns: Turns) -> None:
        with processes(write_alone, url, 2):
            for n in range(10):
                store.commit([Unit((enqueue(f"mine-{n}"),))])
        assert len(in_order(store)) == 10
        assert in_queue(turns) == 0

    def test_without_a_file_commits_go_on(self, url: str, tmp_path: Path) -> None:
        (tmp_path / "semel.db-semel-turns").unlink()
        (tmp_path / "semel.db-semel-turns").mkdir()
        with contextlib.closing(SqliteStore(url)) as store, processes(handle, url, 1):
            store.commit([Unit((enqueue("mine"),))])
            store.check()

    def test_a_users_connection_waits_in_turn_and_keeps_its_timeout(self, store: SqliteStore, turns: Turns) -> None:
        with contextlib.closing(sqlite3.connect(store.path, timeout=3600, check_same_thread=False)) as connection:
            user = threading.Thread(target=lambda: store.bind(connection).apply([enqueue("users")]), daemon=True)
            with locked(store) as blocker:
                user.start()
                wait_until(lambda: in_queue(turns) == 1, "the user's ticket")
                with committing(store, "mine"):
                    wait_until(lambda: in_queue(turns) == 2, "the ticket behind it")
                    blocker.execute("ROLLBACK")
                    user.join(scaled(60))
                    connection.commit()
            assert connection.execute("PRAGMA busy_timeout").fetchone() == (3_600_000,)
        assert in_order(store) == ["users", "mine"]

    def test_a_check_behind_the_queue_finds_the_lock_held_for_moments_only(self, store: SqliteStore, url: str) -> None:
        with processes(handle, url, 2):
            for _ in range(5):
                store.check()


def write_alone(url: str, number: int, parent: Connection) -> None:
    """A plain program with SQLite, which leaves the lock for a moment now and then."""
    path = url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS plain (number)")
        parent.send("begun")
        while not parent.poll():
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO plain VALUES (1)")
            time.sleep(HOLD_S / 4)
            connection.execute("COMMIT")
            time.sleep(HOLD_S / 20)
