"""The PostgreSQL store on a primary with a synchronous standby: what is answered, shown and kept when one goes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from tests.integration.postgres_stores import DEADLINE_S, STREAM, append, execute, ids, wait_until
from tests.tools.postgres_pair import Pair

from semel.errors import CommitInDoubt, NotAStore, SemelError, StoreUnavailable
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Applied, Fresh
from semel.kernel.position import Position
from semel.spark import tables_postgres
from semel.spark.offsets import Subject
from semel.spark.reading import StoreReader
from semel.spark.tables_postgres import PostgresDatabase
from semel.stores import postgres_sync
from semel.stores.postgres import PostgresStore
from semel.testing.limits import scaled

pytestmark = pytest.mark.connected

SHORT_S = 0.3
"""How long to wait for a standby that does not answer."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby that does answer may take longer on a slow machine."""
    monkeypatch.setattr(postgres_sync, "WAIT_S", scaled(postgres_sync.WAIT_S))


@contextmanager
def in_a_hurry() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_sync, "WAIT_S", SHORT_S)
        patch.setattr(tables_postgres, "LAND_S", SHORT_S)
        yield


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(url)) as store:
        yield store


def waiting(pair: Pair) -> list[int]:
    """The server processes that wait for the standby."""
    rows = execute(pair.primary.url, "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    return [pid for (pid,) in rows]


@contextmanager
def frozen(pair: Pair) -> Iterator[None]:
    """The standby is connected and silent."""
    pair.wait_until_followed()
    pair.standby.freeze()
    try:
        yield
    finally:
        pair.standby.thaw()


def held_append(pair: Pair, store: PostgresStore, threads: ThreadPoolExecutor, id: str) -> Future[Position]:
    """One that is committed on the primary and waits for the standby."""
    heard = threads.submit(append, store, id)
    wait_until(lambda: bool(waiting(pair)))
    return heard


def cancel_waits(pair: Pair, how: str = "pg_cancel_backend") -> None:
    execute(pair.primary.url, f"SELECT {how}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")


# -- a commit that the standby has not confirmed


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_commit_whose_wait_for_the_standby_is_cut_short_is_in_doubt(
    pair: Pair, store: PostgresStore, threads: ThreadPoolExecutor, how: str
) -> None:
    """PostgreSQL answers with success and a warning. A promoted standby would not have it."""
    append(store, "before")
    with frozen(pair):
        heard = held_append(pair, store, threads, "doubtful")
        cancel_waits(pair, how)
        with pytest.raises(CommitInDoubt) as doubt:
            heard.result(scaled(DEADLINE_S))
    assert store.resolve(doubt.value.marker) == [Applied((Fresh(Position(STREAM, 1, 2)),))]
    pair.fail_over()
    assert ids(store) == ["before", "doubtful"]


def test_a_doubt_is_resolved_only_when_the_standby_has_the_commit(
    pair: Pair, store: PostgresStore, threads: ThreadPoolExecutor
) -> None:
    """It is there on this primary. Whether it stays depends on the standby."""
    append(store, "before")
    pair.standby.stop()
    heard = held_append(pair, store, threads, "doubtful")
    cancel_waits(pair)
    with pytest.raises(CommitInDoubt) as doubt:
        heard.result(scaled(DEADLINE_S))
    with in_a_hurry(), pytest.raises(StoreUnavailable, match="standby"):
        store.resolve(doubt.value.marker)
    pair.primary.stop()
    pair.standby.start()
    pair.standby.promote()
    assert store.resolve(doubt.value.marker) is None
    assert ids(store) == ["before"]


def test_what_is_written_beside_the_commits_is_not_taken_for_safe_either(
    pair: Pair, store: PostgresStore, threads: ThreadPoolExecutor
) -> None:
    append(store, "before")
    with frozen(pair):
        heard = threads.submit(store.raise_epoch, "by hand")
        wait_until(lambda: bool(waiting(pair)))
        cancel_waits(pair)
        with pytest.raises(StoreUnavailable, match="standby"):
            heard.result(scaled(DEADLINE_S))


def test_a_batch_of_spark_whose_wait_is_cut_short_has_not_landed(
    pair: Pair, store: PostgresStore, threads: ThreadPoolExecutor
) -> None:
    with closing(PostgresDatabase(store)) as database, frozen(pair):
        outcome = database.apply(store, [Append(STREAM, Envelope(id="batch"))])
        assert isinstance(outcome, Applied)
        heard = threads.submit(database.commit)
        wait_until(lambda: bool(waiting(pair)))
        cancel_waits(pair)
        with pytest.raises(StoreUnavailable, match="standby"):
            heard.result(scaled(DEADLINE_S))


# -- nobody waits for ever


def test_a_batch_of_spark_gives_up_while_the_standby_is_silent(
    pair: Pair, store: PostgresStore, threads: ThreadPoolExecutor
) -> None:
    """Before it reads anything, and in its commit."""
    with closing(PostgresDatabase(store)) as database, frozen(pair), in_a_hurry():
        database.apply(store, [Append(STREAM, Envelope(id="batch"))])
        for act in (database.commit, lambda: PostgresDatabase(store)):
            with pytest.raises(StoreUnavailable, match="standby"):
                threads.submit(act).result(scaled(DEADLINE_S))
    assert threads.submit(ids, store).result(scaled(DEADLINE_S)) == ["batch"]


def test_resolve_comes_back_while_the_standby_is_silent(
    pair: Pair, store: PostgresStore, threads: ThreadPoolExecutor
) -> None:
    append(store, "before")
    with frozen(pair):
        heard = held_append(pair, store, threads, "doubtful")
        cancel_waits(pair)
        with pytest.raises(CommitInDoubt) as doubt:
            heard.result(scaled(DEADLINE_S))
        with in_a_hurry(), pytest.raises(StoreUnavailable, match="standby"):
            threads.submit(store.resolve, doubt.value.marker).result(scaled(DEADLINE_S))
    assert threads.submit(store.resolve, doubt.value.marker).result(scaled(DEADLINE_S)) is not None


def test_others_go_on_while_resolve_waits_for_the_standby(
    pair: Pair, store: PostgresStore, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(store, "before")
    with store._pool.connection():
        assert ids(store) == ["before"], "there are two connections for readers now"
    with frozen(pair):
        heard = held_append(pair, store, threads, "doubtful")
        cancel_waits(pair)
        with pytest.raises(CommitInDoubt) as doubt:
            heard.result(scaled(DEADLINE_S))
        monkeypatch.setattr(postgres_sync, "WAIT_S", scaled(DEADLINE_S))
        resolving = threads.submit(store.resolve, doubt.value.marker)
        wait_until(lambda: bool(waiting(pair)))
        assert store._lock.acquire(timeout=scaled(DEADLINE_S)), "nobody who commits waits for it"
        store._lock.release()
        assert ids(store) == ["before", "doubtful"], "who has a connection reads on"
        assert not resolving.done()
    assert resolving.result(scaled(DEADLINE_S)) is not None


def test_a_store_is_closed_while_a_commit_waits_for_the_standby(
    pair: Pair, url: str, threads: ThreadPoolExecutor
) -> None:
    store = PostgresStore(url)
    append(store, "before")
    with frozen(pair):
        heard = held_append(pair, store, threads, "held")
        store.close()
        with pytest.raises(CommitInDoubt):
            heard.result(scaled(DEADLINE_S))


# -- nothing is shown that the standby lacks


def crash_alone(pair: Pair, store: PostgresStore, threads: ThreadPoolExecutor) -> None:
    """The primary comes back from a crash with a commit that the standby lacks, which is still away."""
    pair.wait_until_followed()
    pair.standby.stop()
    heard = held_append(pair, store, threads, "unconfirmed")
    pair.primary.stop()
    with pytest.raises(SemelError):
        heard.result(scaled(DEADLINE_S))
    pair.primary.start()


@pytest.mark.parametrize("opens_anew", [False, True])
def test_after_a_crash_nothing_is_read_before_the_standby_has_it(
    pair: Pair, url: str, store: PostgresStore, threads: ThreadPoolExecutor, opens_anew: bool
) -> None:
    append(store, "before")
    crash_alone(pair, store, threads)

    def read() -> list[str]:
        if not opens_anew:
            return ids(store)
        with closing(PostgresStore(url)) as other:
            return ids(other)

    def is_refused_for_the_standby() -> bool:
        """A server that has just come back may have other troubles first. Nothing is read through any of them."""
        with pytest.raises(StoreUnavailable) as refused:
            read()
        return "standby" in str(refused.value)

    with in_a_hurry():
        wait_until(is_refused_for_the_standby)
    pair.standby.start()
    wait_until(lambda: _succeeds(read))
    assert read() == ["before", "unconfirmed"]


@pytest.mark.parametrize("opens_anew", [False, True])
def test_nor_is_anything_read_by_spark(
    pair: Pair, url: str, store: PostgresStore, threads: ThreadPoolExecutor, opens_anew: bool
) -> None:
    append(store, "before")
    with closing(StoreReader(url)) as reader:
        if not opens_anew:
            assert reader.bounds(Subject(STREAM)).head.seq == 1
        crash_alone(pair, store, threads)
        with in_a_hurry(), pytest.raises(StoreUnavailable, match="standby"):
            reader.bounds(Subject(STREAM))
        pair.standby.start()
        wait_until(lambda: _succeeds(lambda: reader.bounds(Subject(STREAM))))
        assert reader.bounds(Subject(STREAM)).head.seq == 2


def test_where_no_standby_is_waited_for_spark_makes_no_commit(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_sync, "barrier", lambda session: pytest.fail("nothing is to be waited for"))
    with closing(StoreReader(postgres_url)) as reader, pytest.raises(NotAStore):
        reader.bounds(Subject(STREAM))


def _succeeds(read: Callable[[], object]) -> bool:
    try:
        read()
    except StoreUnavailable:
        return False
    return True


# -- no connection is used unchecked


def test_a_check_that_fails_is_made_again_with_the_next_connection(pair: Pair, store: PostgresStore) -> None:
    """While the database is away it cannot be made. What comes back may be another server."""
    append(store, "a")
    pair.primary.stop()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            append(store, "b")
    pair.standby.promote()
    append(store, "b")
    [(timeline,)] = execute(
        pair.standby.url.replace("/postgres?", f"/{_database(store)}?"), "SELECT timeline FROM semel_store"
    )
    assert timeline == 2


@pytest.mark.parametrize("by", ["reader", "listener"])
def test_whoever_connects_first_after_a_switch_makes_the_check(pair: Pair, store: PostgresStore, by: str) -> None:
    append(store, "a")
    if by == "listener":
        woken = threading.Event()
        store.listen(woken.set)
        woken.clear()
        pair.fail_over()
        assert woken.wait(scaled(DEADLINE_S))
    else:
        pair.fail_over()
        assert ids(store) == ["a"]
    [(timeline,)] = execute(
        pair.standby.url.replace("/postgres?", f"/{_database(store)}?"), "SELECT timeline FROM semel_store"
    )
    assert timeline == 2


def _database(store: PostgresStore) -> str:
    return store.url.partition("?")[0].rpartition("/")[2]
