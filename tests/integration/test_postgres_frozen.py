"""A PostgreSQL that falls silent: its kernel confirms what it is sent, and no answer comes."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from tests.integration.postgres_stores import DEADLINE_S, STREAM, append, execute, ids, wait_until
from tests.tools.postgres_pair import Pair
from tests.tools.private_postgres import go_on, hang

from semel.errors import CommitInDoubt, SemelError, StoreUnavailable
from semel.kernel.position import Position
from semel.stores import postgres_gate, postgres_members
from semel.stores.points import on_reach
from semel.stores.postgres import PostgresStore
from semel.stores.postgres_connection import LOCK_S
from semel.stores.postgres_members import Membership
from semel.testing.limits import scaled
from semel.testing.postgres import ADMIN, PrivatePostgres

pytestmark = pytest.mark.connected


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_members, "SILENT_S", scaled(1.0))
    monkeypatch.setattr(postgres_members, "LOCK_S", 0.2)
    monkeypatch.setattr(postgres_members, "BEAT_S", 0.1)


@contextmanager
def hanging(server: PrivatePostgres) -> Iterator[None]:
    hang(server)
    try:
        yield
    finally:
        go_on(server)


def in_the_end(act: Callable[[], Any]) -> Any:
    """What it returns when the store can be used again; until then it is an outage."""
    until = time.monotonic() + scaled(DEADLINE_S)
    while True:
        try:
            return act()
        except StoreUnavailable:
            assert time.monotonic() < until, "the store did not come back"
            time.sleep(0.05)


# -- with another one that takes over


def freeze_before_it_is_asked(pair: Pair, store: PostgresStore, threads: ThreadPoolExecutor) -> Future[Position]:
    """Everything was sent but COMMIT."""
    on_reach(lambda point: hang(pair.primary) if point == "commit.applied" else None)
    heard = threads.submit(append, store, "b")
    wait_until(lambda: "stopped" in state_of(pair.primary))
    on_reach(None)
    return heard


def freeze_before_it_is_answered(pair: Pair, store: PostgresStore, threads: ThreadPoolExecutor) -> Future[Position]:
    """The standby has it and says so, and nobody tells us."""
    pair.wait_until_followed()
    pair.standby.freeze()
    heard = threads.submit(append, store, "b")
    asked = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_until(lambda: execute(pair.primary.url, asked))
    for (pid,) in execute(pair.primary.url, asked):
        os.kill(pid, signal.SIGSTOP)
    pair.standby.thaw()
    pair.wait_until_followed()
    hang(pair.primary)
    return heard


def state_of(server: PrivatePostgres) -> str:
    pid = (server.folder / "data" / "postmaster.pid").read_text().split()[0]
    with open(f"/proc/{pid}/status") as status:
        return status.read()


@pytest.mark.parametrize(
    ("freeze", "is_there"), [(freeze_before_it_is_asked, False), (freeze_before_it_is_answered, True)]
)
@pytest.mark.usefixtures("little_patience")
def test_sessions_go_on_at_the_new_primary_when_the_old_one_freezes(
    pair: Pair,
    threads: ThreadPoolExecutor,
    freeze: Callable[[Pair, PostgresStore, ThreadPoolExecutor], Future[Position]],
    is_there: bool,
) -> None:
    with (
        pair.new_database() as url,
        closing(PostgresStore(url)) as writer,
        closing(PostgresStore(url)) as reader,
    ):
        woken = threads.submit(reader.tail, STREAM, append(writer, "a"), 10, scaled(DEADLINE_S))
        try:
            heard = freeze(pair, writer, threads)
            reading = threads.submit(in_the_end, lambda: ids(reader))
            pair.standby.promote()
            with pytest.raises(CommitInDoubt) as doubt:
                heard.result(scaled(DEADLINE_S))
            outcomes = in_the_end(lambda: writer.resolve(doubt.value.marker))
            assert (outcomes is not None) == is_there
            assert reading.result(scaled(DEADLINE_S)) == (["a", "b"] if is_there else ["a"])
            assert in_the_end(lambda: append(writer, "c")) == Position(STREAM, 1, 3 if is_there else 2)
            with suppress(SemelError):
                woken.result(scaled(DEADLINE_S))
            assert in_the_end(lambda: ids(reader)) == (["a", "b", "c"] if is_there else ["a", "c"])
            assert (writer.epoch, reader.epoch) == (1, 1)
        finally:
            on_reach(None)
            go_on(pair.primary)


def test_nobody_waits_for_the_old_primary_once_another_one_is_known(pair: Pair, threads: ThreadPoolExecutor) -> None:
    """One process of the old primary is frozen, the one that was to commit; the others only lose their clients."""
    with pair.new_database() as url, closing(PostgresStore(url)) as store:
        append(store, "a")
        frozen = store._writer_pid
        assert store._writer is not None
        store._gate.lines.put_last(store._writer, is_silent=False)
        is_frozen = threading.Event()

        def freeze(point: str) -> None:
            if point == "commit.applied":
                os.kill(frozen, signal.SIGSTOP)
                is_frozen.set()

        on_reach(freeze)
        try:
            heard = threads.submit(append, store, "b")
            assert is_frozen.wait(scaled(DEADLINE_S))
            pair.standby.promote()
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> %s"
            execute(pair.primary.url, others, urlsplit(url).path[1:], frozen)
            with pytest.raises(CommitInDoubt) as doubt:
                heard.result(scaled(DEADLINE_S))
        finally:
            on_reach(None)
            os.kill(frozen, signal.SIGCONT)
        assert in_the_end(lambda: store.resolve(doubt.value.marker)) is None
        assert in_the_end(lambda: append(store, "c")) == Position(STREAM, 1, 2)


# -- without


def cannot_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection for beats is just being made, again and again."""

    def fail(membership: Membership, session: Any) -> None:
        raise OSError

    monkeypatch.setattr(Membership, "_stay", fail)


def can_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """As usual."""


@pytest.mark.parametrize("beating", [can_beat, cannot_beat])
@pytest.mark.usefixtures("little_patience")
def test_a_frozen_server_without_another_one_is_an_outage_until_it_goes_on(
    pair: Pair, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, beating: Callable[[Any], None]
) -> None:
    beating(monkeypatch)
    monkeypatch.setattr(postgres_gate, "ADMIT_S", scaled(1.0) - LOCK_S)
    with pair.new_database() as both:
        url = f"{pair.primary.database_url(urlsplit(both).path[1:])}&connect_timeout=2"
        with closing(PostgresStore(url)) as store:
            append(store, "a")
            with hanging(pair.primary), pytest.raises(StoreUnavailable):
                threads.submit(ids, store).result(scaled(DEADLINE_S))
            assert in_the_end(lambda: append(store, "b")) == Position(STREAM, 1, 2)
            assert ids(store) == ["a", "b"]


@pytest.mark.usefixtures("little_patience")
def test_a_beat_that_waits_for_its_row_is_no_silence(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[Exception] = []
    beat = Membership.beat

    def note(self: Membership, session: Any) -> None:
        try:
            beat(self, session)
        except psycopg.errors.LockNotAvailable as error:
            refused.append(error)
            raise

    monkeypatch.setattr(Membership, "beat", note)
    with pair.new_database() as url, closing(PostgresStore(url)) as store:
        append(store, "a")
        writer = store._writer
        with psycopg.connect(url) as holder:
            holder.execute("SELECT FROM semel_member FOR UPDATE")
            wait_until(lambda: len(refused) >= 5)
        append(store, "b")
        assert store._writer is writer, "it was not cut"


def test_an_overloaded_server_is_given_more_time_each_time() -> None:
    patience = postgres_members.Patience()
    given = [patience.s]
    for _ in range(3):
        patience.unanswered()
        patience.answered()
        given.append(patience.s)
    assert given == [5.0, 10.0, 20.0, 20.0]
    for _ in range(postgres_members.CALM_BEATS):
        patience.answered()
    assert patience.s == 5.0


# -- a host that lets connections wait


@contextmanager
def silent_host() -> Iterator[socket.socket]:
    """Connections to it are made by its kernel, and that is all."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        server.setblocking(False)
        yield server


def count_callers(server: socket.socket) -> int:
    count = 0
    with suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


def test_a_silent_host_that_stands_first_is_waited_for_once(postgres_url: str) -> None:
    place = psycopg.conninfo.conninfo_to_dict(postgres_url)
    with silent_host() as silent:
        hosts = f"host=127.0.0.1,{quote(str(place['host']), safe='')}"
        ports = f"port={silent.getsockname()[1]},{place.get('port', 5432)}"
        user = place.get("user", ADMIN)
        url = f"postgresql:///{place['dbname']}?user={user}&{hosts}&{ports}&connect_timeout=2"
        with closing(PostgresStore(f"{url}&target_session_attrs=read-write")) as store:
            append(store, "a")
            assert ids(store) == ["a"]
        assert count_callers(silent) == 1
