"""A switch to another PostgreSQL: the epoch stays when it is proven that nothing was lost, and rises otherwise."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest
from tests.integration.postgres_stores import DEADLINE_S, STREAM, append, execute, ids, members, wait_until
from tests.tools.postgres_pair import Pair, Standby

from semel.errors import CommitInDoubt, StoreUnavailable
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Put, Trim, Unit
from semel.kernel.position import Position
from semel.stores import postgres_switch
from semel.stores.points import on_reach
from semel.stores.postgres import PostgresStore
from semel.stores.postgres_connection import Q
from semel.stores.postgres_lines import Lines
from semel.stores.postgres_switch import Switch
from semel.stores.postgres_witness import Witness
from semel.testing.limits import scaled
from semel.testing.postgres import ADMIN

pytestmark = pytest.mark.connected


@pytest.fixture
def stores(url: str) -> Iterator[Callable[[], PostgresStore]]:
    """Each call opens the store once more, as another process would."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(PostgresStore(url)))


@pytest.fixture
def no_patience(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which somebody is silent. It takes the place of what `pair` sets."""
    monkeypatch.setattr(postgres_switch, "DECIDE_S", 0.5)


def lag(pair: Pair) -> None:
    """From now on the primary waits for no standby, and the standby gets nothing."""
    pair.wait_until_followed()
    pair.require("")
    pair.standby.stop()


def lose(pair: Pair) -> None:
    """The standby that has lagged behind takes over."""
    pair.primary.stop()
    pair.standby.start()
    pair.standby.promote()


# -- nothing was lost


def test_the_epoch_stays_when_every_member_finds_all_of_it(
    pair: Pair, url: str, stores: Callable[[], PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_s = scaled(DEADLINE_S)
    monkeypatch.setattr(postgres_switch, "DECIDE_S", decide_s)
    writer, reader = stores(), stores()
    assert append(writer, "a").epoch == 1
    assert ids(reader) == ["a"]
    reader.commit([Unit((Put("k", b"v"),))])
    pair.fail_over()
    begun = time.monotonic()
    assert ids(reader) == ["a"]
    assert append(writer, "b") == Position(STREAM, 1, 2)
    assert time.monotonic() - begun < decide_s, "nobody waited for somebody silent"
    assert (writer.epoch, reader.epoch) == (1, 1)
    assert execute(url, "SELECT timeline, epoch FROM semel_store") == [(2, 1)]
    assert [entry[0] for entry in execute(url, "SELECT message FROM semel_ledger ORDER BY seq")] == ["epoch 1 kept"]


def test_a_process_that_comes_only_after_the_switch_waits_for_the_members(
    pair: Pair, url: str, stores: Callable[[], PostgresStore]
) -> None:
    append(stores(), "a")
    pair.fail_over()
    late = stores()
    assert (late.epoch, ids(late)) == (1, ["a"])
    assert members(url) == 2


@contextmanager
def third_server(pair: Pair) -> Iterator[tuple[Standby, str]]:
    """A standby of the standby, and a URL that leads to whichever of the three may be written."""
    source = f"host={pair.standby.folder} user={ADMIN} application_name=third"
    follows = {"primary_conninfo": source, "synchronous_standby_names": ""}
    third = Standby(pair.primary, "third", follows)
    third.start()
    try:
        with pair.new_database() as url:
            yield third, url.replace("&target", f",{str(third.folder).replace('/', '%2F')}&target")
    finally:
        third.close()


@pytest.mark.parametrize("notices", [True, False])
def test_two_switches_in_a_row(pair: Pair, notices: bool) -> None:
    with third_server(pair) as (third, url), closing(PostgresStore(url)) as store:
        append(store, "a")
        pair.fail_over()
        if notices:
            append(store, "b")
        wait_until(lambda: is_followed(pair.standby))
        pair.standby.stop()
        third.promote()
        expected = ["a", "b"] if notices else ["a"]
        assert (ids(store), store.epoch) == (expected, 1)
        assert execute(url, "SELECT timeline FROM semel_store") == [(3,)]


def is_followed(server: Standby) -> bool:
    asked = "SELECT count(*) FROM pg_stat_replication WHERE flush_lsn >= pg_current_wal_flush_lsn()"
    return execute(server.url, asked) == [(1,)]


# -- something was lost


def commit_something(writer: PostgresStore, reader: PostgresStore) -> None:
    append(writer, "lost")


def read_something(writer: PostgresStore, reader: PostgresStore) -> None:
    """Its writer is gone, and cannot say that it is missing."""
    append(writer, "lost")
    assert ids(reader) == ["a", "lost"]
    forget(writer)


def see_something(writer: PostgresStore, reader: PostgresStore) -> None:
    append(writer, "lost")
    assert reader.head(STREAM).offset == 2
    forget(writer)


def forget(store: PostgresStore) -> None:
    """It remembers nothing of what it has acknowledged."""
    store.witness._commit = None


@pytest.mark.parametrize("answer", [commit_something, read_something, see_something])
def test_a_standby_that_was_behind_costs_the_epoch(
    pair: Pair, stores: Callable[[], PostgresStore], answer: Callable[[PostgresStore, PostgresStore], None]
) -> None:
    writer, reader = stores(), stores()
    append(writer, "a")
    lag(pair)
    answer(writer, reader)
    lose(pair)
    assert append(writer, "b").epoch == 2
    assert reader.epoch == 2


def test_a_member_that_comes_late_forces_the_epoch_up_after_all(
    pair: Pair, url: str, stores: Callable[[], PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease had run out, so nobody waited for it. It has acknowledged what is lost."""
    first, late = stores(), stores()
    append(first, "a")
    late.witness.is_member = False  # it does not know that its lease has run out
    stop_beating(late)
    execute(url, "UPDATE semel_member SET until = 0 WHERE member = %s", late._gate.membership.member)
    lag(pair)
    append(late, "lost")
    lose(pair)
    assert first.epoch == 1
    assert append(first, "b") == Position(STREAM, 1, 2)
    assert append(late, "c").epoch == 2
    assert first.epoch == 2


def stop_beating(store: PostgresStore) -> None:
    """The process goes on, and its lease is not renewed any more until it joins again."""
    membership = store._gate.membership
    member, membership.member = membership.member, "nobody"
    assert membership._thread is not None
    membership._closed.set()
    membership._stop_write.close()
    membership._thread.join()
    membership._closed.clear()
    membership._stop_read, membership._stop_write = socket.socketpair()
    membership.member, membership._thread = member, None


# -- somebody is silent


CHILD = """
import sys
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Unit
from semel.stores.points import on_reach
from semel.stores.postgres import PostgresStore

url, id, point = sys.argv[1:]

def stop(reached):
    if reached == point:
        print(point, flush=True)
        sys.stdin.readline()

on_reach(stop)
store = PostgresStore(url)
while id:
    store.commit([Unit((Append("hub/orders", Envelope(id=id), identity=id),))])
    print("acknowledged", flush=True)
    id = sys.stdin.readline().strip()
"""


class Child:
    def __init__(self, url: str, id: str, point: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD, url, id, point], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def say(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def append(self, id: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{id}\n")
        self._process.stdin.flush()
        assert self.say() == "acknowledged"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def member_process(url: str, id: str, point: str = "") -> Iterator[Child]:
    child = Child(url, id, point)
    try:
        yield child
    finally:
        child.kill()


def test_a_silent_member_costs_the_epoch(
    pair: Pair, url: str, stores: Callable[[], PostgresStore], no_patience: None
) -> None:
    store = stores()
    with member_process(url, "a") as silent:
        assert silent.say() == "acknowledged"
        silent.kill()
    assert members(url) == 2
    pair.fail_over()
    assert (ids(store), store.epoch) == (["a"], 2)
    [(cause,)] = execute(url, "SELECT cause FROM semel_ledger WHERE message = 'epoch 2'")
    assert "no answer from" in cause


def test_where_nobody_is_left_who_could_tell_the_epoch_rises(
    pair: Pair, url: str, stores: Callable[[], PostgresStore], no_patience: None
) -> None:
    append(stores(), "a")
    with closing(PostgresStore(url)) as gone:
        append(gone, "b")
    execute(url, "DELETE FROM semel_member")
    pair.fail_over()
    with closing(PostgresStore(url)) as late:
        assert late.epoch == 2


def test_a_member_that_still_talks_to_the_old_primary_is_silent_here(
    pair: Pair, url: str, stores: Callable[[], PostgresStore], no_patience: None
) -> None:
    """Both servers may be written. Nobody can say what the other one has acknowledged there."""
    stays = stores()
    append(stays, "a")
    with closing(PostgresStore(swapped(url))) as moves:
        assert ids(moves) == ["a"]
        pair.standby.promote()
        moves._gate.witness.saw(0, 0)
        moves._gate.lines = Lines(moves.url)  # forget which of the two was usable last
        end_sessions_of(pair, moves)
        assert moves.epoch == 2


def test_whoever_has_vouched_acknowledges_nothing_more_on_the_old_primary(
    pair: Pair, url: str, stores: Callable[[], PostgresStore], hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its word was about what it had answered until then."""
    monkeypatch.setattr(postgres_switch, "DECIDE_S", scaled(DEADLINE_S))
    one, other = stores(), stores()
    append(one, "a")
    assert ids(other) == ["a"]
    promoted = promote_beside(pair, url)
    with ThreadPoolExecutor(2) as threads:
        hold.at("commit.applied")
        late = threads.submit(append, one, "late")
        hold.wait()
        lead_to(promoted, one, other)
        vouching = threads.submit(connect_anew, one)
        wait_until(lambda: execute(promoted, "SELECT switch_timeline FROM semel_store") == [(2,)])
        hold.go_on()
        with pytest.raises(CommitInDoubt) as doubt:
            late.result(scaled(DEADLINE_S))
        connect_anew(other)
        vouching.result(scaled(DEADLINE_S))
    assert (one.resolve(doubt.value.marker), ids(one), one.epoch) == (None, ["a"], 1)


def test_the_lease_is_renewed_where_the_answers_come_from(
    pair: Pair, url: str, stores: Callable[[], PostgresStore]
) -> None:
    """The old primary still takes the renewals of before."""
    store = stores()
    append(store, "a")
    promoted = promote_beside(pair, url)
    lead_to(promoted, store)
    connect_anew(store)
    [(joined,)] = execute(promoted, "SELECT renewed FROM semel_member")
    wait_until(lambda: execute(promoted, "SELECT renewed FROM semel_member") > [(joined,)])
    assert (store.epoch, append(store, "b")) == (1, Position(STREAM, 1, 2))


def test_an_old_primary_that_boots_again_is_not_touched(
    pair: Pair, url: str, stores: Callable[[], PostgresStore]
) -> None:
    """It has another history from the switch on, and knows nothing of it."""
    store = stores()
    append(store, "a")
    pair.wait_until_followed()
    pair.require("")
    pair.fail_over()
    append(store, "b")
    pair.standby.stop()
    pair.primary.start()
    for answer in (append, read_one):
        with pytest.raises(StoreUnavailable, match="was replaced"):
            answer(store, "c")
    assert execute(url, "SELECT epoch, timeline FROM semel_store") == [(1, 1)]
    pair.primary.stop()
    pair.standby.start()
    assert append(store, "c") == Position(STREAM, 1, 3)


def read_one(store: PostgresStore, id: str) -> None:
    assert id in ids(store)


def promote_beside(pair: Pair, url: str) -> str:
    """The standby is a primary too from now on, and the old one goes on by itself. Returns where the new one is."""
    pair.wait_until_followed()
    pair.require("")
    wait_until(lambda: execute(url, "SHOW synchronous_standby_names") == [("",)])
    pair.standby.promote()
    return pair.standby.url.replace("/postgres?", f"/{url.partition('?')[0].rpartition('/')[2]}?")


def lead_to(url: str, *stores: PostgresStore) -> None:
    """Their next connections lead there. Those that are open stay."""
    for store in stores:
        store._gate.lines = Lines(url)


def connect_anew(store: PostgresStore) -> None:
    store._gate.open().close()


class Hold:
    """Holds the first one who comes to a point."""

    def __init__(self) -> None:
        self._point = ""
        self._is_there, self._may_go = threading.Event(), threading.Event()

    def at(self, point: str) -> None:
        self._point = point
        on_reach(self._stop)

    def _stop(self, reached: str) -> None:
        if reached == self._point:
            self._point = ""
            self._is_there.set()
            assert self._may_go.wait(scaled(DEADLINE_S))

    def wait(self) -> None:
        assert self._is_there.wait(scaled(DEADLINE_S)), "nobody came"

    def go_on(self) -> None:
        self._may_go.set()


@pytest.fixture
def hold() -> Iterator[Hold]:
    hold = Hold()
    yield hold
    hold.go_on()
    on_reach(None)


def swapped(url: str) -> str:
    """The second server first."""
    head, _, rest = url.partition("?host=")
    hosts, _, tail = rest.partition("&")
    return f"{head}?host={','.join(reversed(hosts.split(',')))}&{tail}"


def end_sessions_of(pair: Pair, store: PostgresStore) -> None:
    """All sessions go; whoever lists the old primary first comes back to it."""
    execute(
        pair.primary.url,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'semel'",
    )


# -- rights


@pytest.mark.parametrize("may_read", [True, False])
def test_without_the_right_to_read_the_history_nothing_is_proven(pair: Pair, url: str, may_read: bool) -> None:
    execute(url, "CREATE ROLE plain LOGIN")
    execute(url, "GRANT ALL ON SCHEMA public TO plain")
    if may_read:
        execute(url, "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO plain")
    with closing(PostgresStore(url.replace("//postgres@", "//plain@"))) as store:
        append(store, "a")
        pair.fail_over()
        assert store.epoch == (1 if may_read else 2)


# -- kill points


@pytest.mark.parametrize("point", ["switch.vouched", "switch.kept"])
def test_a_member_that_dies_while_it_says_its_word_is_silent(
    pair: Pair, url: str, stores: Callable[[], PostgresStore], no_patience: None, point: str
) -> None:
    """What was not committed was not said."""
    with member_process(url, "a", point) as child:
        assert child.say() == "acknowledged"
        pair.fail_over()
        assert child.say() == point
        child.kill()
    late = stores()
    assert (late.epoch, ids(late)) == (2, ["a"])


def test_a_member_that_dies_while_it_joins_is_none(pair: Pair, url: str, stores: Callable[[], PostgresStore]) -> None:
    store = stores()
    append(store, "a")
    with member_process(url, "never", "member.joined") as child:
        assert child.say() == "member.joined"
        child.kill()
    wait_until(lambda: members(url) == 1)
    pair.fail_over()
    assert (store.epoch, ids(store)) == (1, ["a"])


# -- membership


def test_a_member_that_was_killed_is_in_nobodys_way_on_its_machine(
    pair: Pair, url: str, stores: Callable[[], PostgresStore], threads: ThreadPoolExecutor
) -> None:
    """However long its lease still is."""
    with member_process(url, "a") as child:
        assert child.say() == "acknowledged"
        child.kill()
    execute(url, "UPDATE semel_member SET until = until + 3600::bigint * 1000000")
    assert threads.submit(lambda: ids(stores())).result(scaled(DEADLINE_S)) == ["a"]
    assert members(url) == 1


def test_whoever_closes_leaves(pair: Pair, url: str, stores: Callable[[], PostgresStore]) -> None:
    store = stores()
    with closing(PostgresStore(url)):
        assert members(url) == 2
    assert members(url) == 1
    pair.fail_over()
    assert store.epoch == 1


def test_a_process_that_was_there_before_there_were_members_becomes_one_with_its_next_commit(
    pair: Pair, url: str
) -> None:
    pair.require("")
    wait_until(lambda: execute(url, "SHOW synchronous_standby_names") == [("",)])
    with closing(PostgresStore(url)) as early:
        append(early, "a")
        assert members(url) == 0
        pair.require("standby")
        wait_until(lambda: execute(url, "SHOW synchronous_standby_names") == [("standby",)])
        with closing(PostgresStore(url)) as later:
            append(later, "b")
            assert members(url) == 1
            append(early, "c")
            assert members(url) == 2


def test_a_store_without_a_standby_has_no_members(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        append(store, "a")
        assert members(postgres_url) == 0


# -- the checker catches a wrong keep


def acknowledge_and_stay(pair: Pair, url: str, store: PostgresStore) -> None:
    lag(pair)
    append(store, "lost")


def acknowledge_and_die(pair: Pair, url: str, store: PostgresStore) -> None:
    with member_process(url, "b") as child:
        assert child.say() == "acknowledged"
        lag(pair)
        child.append("lost")


def join_and_die(pair: Pair, url: str, store: PostgresStore) -> None:
    lag(pair)
    with member_process(url, "lost") as child:
        assert child.say() == "acknowledged"


def look_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Witness, "find_loss", lambda *args, **kwargs: None)


def know_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has joined is not compared with who is there."""
    monkeypatch.setattr(Switch, "_find_loss", lambda self, *args: None)


def wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Q, "read_vouchers", "SELECT 1, NULL::text WHERE $1::bigint > 0")


@pytest.mark.parametrize(
    ("plant", "answer"),
    [
        (look_for_nothing, acknowledge_and_stay),
        (know_nobody, join_and_die),
        (wait_for_nobody, acknowledge_and_die),
    ],
)
@pytest.mark.parametrize("planted", [True, False], ids=["planted", "right"])
def test_a_planted_wrong_keep_is_caught(
    pair: Pair,
    url: str,
    stores: Callable[[], PostgresStore],
    monkeypatch: pytest.MonkeyPatch,
    no_patience: None,
    plant: Callable[[pytest.MonkeyPatch], None],
    answer: Callable[[Pair, str, PostgresStore], None],
    planted: bool,
) -> None:
    """What was acknowledged is gone and the epoch is the same: the one thing that must not be."""
    store = stores()
    append(store, "a")
    answer(pair, url, store)
    if planted:
        plant(monkeypatch)
    lose(pair)
    is_kept = store.epoch == 1
    assert "lost" not in ids(store)
    assert is_kept is planted


# -- why a member acts only when it is known


def open_with_members(url: str) -> PostgresStore:
    """On a server without a standby, as if one had been there."""
    PostgresStore(url).close()
    execute(url, "UPDATE semel_store SET members = 1")
    return PostgresStore(url)


def test_a_lease_that_has_run_out_is_not_renewed_but_begun_anew(postgres_url: str) -> None:
    """Others may have joined meanwhile without its word."""
    with closing(open_with_members(postgres_url)) as store:
        number = store._gate.membership.number
        execute(postgres_url, "UPDATE semel_member SET until = 0")
        wait_until(lambda: store._gate.membership.number > number)
        assert append(store, "a").offset == 1
        assert execute(postgres_url, "SELECT number FROM semel_member") == [(store._gate.membership.number,)]


def is_known(url: str, number: int) -> bool:
    with psycopg.connect(url) as connection:
        [(found,)] = psycopg.RawCursor(connection).execute(Q["is_known"], [number]).fetchall()
    return bool(found)


def test_two_that_join_at_once_do_not_do_for_each_other(postgres_url: str) -> None:
    """Both could be lost together. Only one that was there before is a witness of them."""
    open_with_members(postgres_url).close()
    later = time.time_ns() // 1000 + 3600 * 1_000_000
    execute(postgres_url, "INSERT INTO semel_member VALUES ('old', 'n', '', 2, 2, 0, %s, 1)", later)

    def open_and_close() -> None:
        PostgresStore(postgres_url).close()

    with ThreadPoolExecutor(2) as threads:
        opening = [threads.submit(open_and_close) for _ in range(2)]
        wait_until(lambda: members(postgres_url) == 3)
        assert [is_known(postgres_url, number) for number in (3, 4)] == [False, False]
        assert not any(each.done() for each in opening)
        execute(postgres_url, "UPDATE semel_member SET seen = 99 WHERE member = 'old'")
        for each in opening:
            each.result(scaled(DEADLINE_S))


@pytest.fixture
def many_files() -> Iterator[None]:
    """What is opened from now on has a number above 1023, as on a server with a thousand clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2048
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while held[-1] < 1100:
            held.append(os.dup(held[0]))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_lease_is_renewed_where_a_thousand_files_are_open(postgres_url: str, many_files: None) -> None:
    with closing(open_with_members(postgres_url)):
        renewed = execute(postgres_url, "SELECT renewed FROM semel_member")
        for _ in range(2):
            wait_until(lambda seen=renewed: execute(postgres_url, "SELECT renewed FROM semel_member") != seen)  # type: ignore[misc]
            renewed = execute(postgres_url, "SELECT renewed FROM semel_member")


def test_what_was_read_and_has_been_swept_since_is_not_taken_for_lost(postgres_url: str) -> None:
    """The store has gone on: a record that nobody knows by an identity leaves no trace when it is swept."""
    with closing(open_with_members(postgres_url)) as store:
        store.commit([Unit((Append(STREAM, Envelope(id="a")),))])
        assert ids(store) == ["a"]
        store.commit([Unit((Trim(STREAM, 2),))])
        assert store.sweep(time.time_ns() // 1000).records == 1
        store._gate.open().close()
        assert store.epoch == 1
