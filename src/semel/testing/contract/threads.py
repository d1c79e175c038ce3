"""Many at once: whatever the interleaving, one wins and everybody gets the same answer."""

from __future__ import annotations

import threading
import time as wall
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from semel.kernel.ledger import START, Balance, Event, Kind, Mark, balance
from semel.kernel.ops import (
    Advance,
    Append,
    Applied,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Put,
    Result,
    Unit,
    WorkRow,
    WorkState,
)
from semel.kernel.position import Position
from semel.kernel.store import Records, Store
from semel.testing.contract.base import (
    HOP,
    QUEUE,
    STREAM,
    MakeStore,
    StoreSuite,
    append,
    commit,
    events,
    logged,
    message,
    read_ids,
)
from semel.testing.limits import scaled

T = TypeVar("T")
Handles = Callable[[int], list[Store]]

THREADS = 8
DEADLINE_S = 60.0


class ThreadSuite(StoreSuite):
    """Eight threads on one store object. Subclass with other `handles` to give each a store object of its own."""

    @pytest.fixture
    def handles(self, store: Store) -> Handles:
        return lambda count: [store] * count

    def test_one_identity_is_fresh_exactly_once(self, handles: Handles) -> None:
        ids = [f"m{n}" for n in range(20)]
        answers = at_once(handles(THREADS), lambda store, _: [_append_one(store, id) for id in ids])
        for verdicts in zip(*answers, strict=True):
            assert Counter(map(type, verdicts)) == {Fresh: 1, Duplicate: THREADS - 1}
            assert len({verdict.position for verdict in verdicts}) == 1

    def test_one_work_identity_is_fresh_exactly_once(self, handles: Handles) -> None:
        ops = [Enqueue(QUEUE, f"m{n}", message("m"), scope="all") for n in range(20)]
        answers = at_once(handles(THREADS), lambda store, _: [commit(store, op)[0] for op in ops])
        for verdicts in zip(*answers, strict=True):
            assert Counter(map(type, verdicts)) == {Fresh: 1, Duplicate: THREADS - 1}

    def test_batches_that_overlap_crosswise_do_not_deadlock(self, handles: Handles) -> None:
        ids = [f"m{n}" for n in range(30)]
        streams = ["hub/a", "hub/b", "hub/c"]

        def write(store: Store, number: int) -> Counter[type[Result]]:
            order = ids if number % 2 else ids[::-1]
            ops = [Append(streams[(n + number) % 3], message(id), identity=id) for n, id in enumerate(order)]
            ops += [Append(stream, message(id), identity=id) for stream in streams for id in order]
            return Counter(map(type, commit(store, *ops)))

        totals = sum(at_once(handles(THREADS), write), Counter())
        assert totals[Fresh] == 90

    def test_a_tailing_reader_beside_many_writers_skips_nothing(self, handles: Handles) -> None:
        total = (THREADS - 1) * 25
        seen: list[Position] = []

        def run(store: Store, number: int) -> None:
            if number == 0:
                _tail_until(store, total, seen)
            else:
                for step in range(25):
                    append(store, f"{number}/{step}")

        at_once(handles(THREADS), run)
        assert [position.offset for position in seen] == list(range(1, total + 1))

    def test_no_row_is_claimed_by_two(self, store: Store, handles: Handles) -> None:
        total = 60
        commit(store, *(Enqueue(QUEUE, f"w{n}", message("w")) for n in range(total)))

        def work(store: Store, number: int) -> list[str]:
            mine: list[str] = []
            while rows := _claim(store, f"worker {number}", 3):
                mine += [row.identity for row in rows]
                commit(store, *(Finish(QUEUE, row.identity, WorkState.DONE, fence=row.fence) for row in rows))
            return mine

        claimed = [identity for mine in at_once(handles(THREADS), work) for identity in mine]
        assert sorted(claimed) == sorted(f"w{n}" for n in range(total))

    def test_rows_of_a_key_keep_their_order_among_many_workers(self, store: Store, handles: Handles) -> None:
        keys, per_key = 6, 8
        for number in range(per_key):
            commit(store, *(Enqueue(QUEUE, f"{key}/{number}", message("w"), key=f"k{key}") for key in range(keys)))
        order: list[tuple[str | None, int]] = []
        lock = threading.Lock()

        def work(store: Store, _: int) -> None:
            until = wall.monotonic() + scaled(DEADLINE_S)
            while len(order) < keys * per_key:
                assert wall.monotonic() < until, f"only {len(order)} rows were claimed"
                for row in _claim(store, "w", 2):
                    with lock:
                        order.append((row.key, int(row.identity.split("/")[1])))
                    commit(store, Finish(QUEUE, row.identity, WorkState.DONE, fence=row.fence))

        at_once(handles(THREADS), work)
        for key in range(keys):
            assert [number for name, number in order if name == f"k{key}"] == list(range(per_key))

    def test_each_version_of_a_state_has_one_winner(self, store: Store, handles: Handles) -> None:
        rounds = 10

        def race(store: Store, number: int) -> list[int]:
            won: list[int] = []
            until = wall.monotonic() + scaled(DEADLINE_S)
            while (version := _version(store)) < rounds:
                assert wall.monotonic() < until, f"stuck at version {version}"
                outcome = store.commit([Unit((Put("counter", str(number).encode(), expected=version),))])[0]
                if isinstance(outcome, Applied):
                    won.append(version + 1)
            return won

        wins = [version for won in at_once(handles(THREADS), race) for version in won]
        assert sorted(wins) == list(range(1, rounds + 1))
        assert _version(store) == rounds

    def test_a_cursor_never_goes_back(self, store: Store, handles: Handles) -> None:
        positions = append(store, *(f"m{n}" for n in range(40)))

        def advance(store: Store, number: int) -> bool:
            seen = 0
            for position in positions[number::THREADS]:
                commit(store, Advance("c", position))
                cursor = store.cursor("c")
                assert cursor is not None
                if cursor.offset < max(seen, position.offset):
                    return False
                seen = cursor.offset
            return True

        assert all(at_once(handles(THREADS), advance))
        assert store.cursor("c") == positions[-1]

    def test_the_ledger_is_complete_and_in_order_beside_its_writers(self, handles: Handles) -> None:
        total = (THREADS - 1) * 20

        def run(store: Store, number: int) -> list[tuple[Mark, str | None]]:
            if number:
                for step in range(20):
                    commit(store, Log(logged(Kind.SENT, f"{number}/{step}")))
                return []
            return _follow_ledger(store, total)

        seen = at_once(handles(THREADS), run)[0]
        marks = [mark for mark, _ in seen]
        assert marks == sorted(set(marks))
        assert sorted(name or "" for _, name in seen) == sorted(
            f"{number}/{step}" for number in range(1, THREADS) for step in range(20)
        )

    def test_the_index_is_complete_and_in_order_beside_its_writers(self, handles: Handles) -> None:
        total = (THREADS - 1) * 20

        def run(store: Store, number: int) -> list[tuple[Mark, Position]]:
            if number:
                for step in range(20):
                    append(store, f"{number}/{step}", stream=f"hub/s{number % 3}")
                return []
            return _follow_index(store, total)

        seen = at_once(handles(THREADS), run)[0]
        marks = [mark for mark, _ in seen]
        assert marks == sorted(set(marks))
        assert len({position for _, position in seen}) == total
        for stream in {position.stream for _, position in seen}:
            offsets = [position.offset for _, position in seen if position.stream == stream]
            assert offsets == list(range(1, len(offsets) + 1))

    def test_everything_at_once_balances(self, store: Store, handles: Handles) -> None:
        """Producers that send everything twice, workers and sweepers: each is handled once, and the ledger agrees."""
        per_producer = 15

        def run(store: Store, number: int) -> None:
            if number < 4:
                _produce(store, number, per_producer)
            else:
                _consume(store, number, 4 * per_producer)

        at_once(handles(THREADS), run)
        handled = read_ids(store.read("hub/effects"))
        assert sorted(handled) == sorted(f"{number}/{step}" for number in range(4) for step in range(per_producer))
        assert balance(events(store), open_count=0) == Balance(len(handled), 0, len(handled), 0)


class SharedThreadSuite(ThreadSuite):
    """The same with a store object per thread, as separate processes would have."""

    @pytest.fixture
    def handles(self, store: Store, make_store: MakeStore) -> Handles:
        return lambda count: [make_store() for _ in range(count)]


def at_once(stores: Sequence[Store], run: Callable[[Store, int], T]) -> list[T]:
    """Run in one thread per store, all starting together; answers in the order of the stores."""
    barrier = threading.Barrier(len(stores))

    def begin(number: int) -> T:
        barrier.wait(DEADLINE_S)
        return run(stores[number], number)

    with ThreadPoolExecutor(len(stores)) as pool:
        return list(pool.map(begin, range(len(stores))))


def _append_one(store: Store, id: str) -> Fresh | Duplicate:
    result = commit(store, Append(STREAM, message(id), identity=id))[0]
    assert isinstance(result, Fresh | Duplicate)
    return result


def _claim(store: Store, owner: str, limit: int) -> tuple[WorkRow, ...]:
    result = commit(store, Claim(QUEUE, owner, limit=limit))[0]
    assert isinstance(result, Claimed)
    return result.rows


def _version(store: Store) -> int:
    state = store.state("counter")
    return state.version if state is not None else 0


def _tail_until(store: Store, total: int, seen: list[Position]) -> None:
    until = wall.monotonic() + scaled(DEADLINE_S)
    while len(seen) < total:
        assert wall.monotonic() < until, f"only {len(seen)} of {total} came"
        found = store.tail(STREAM, seen[-1] if seen else None, limit=50, timeout_s=1.0)
        assert isinstance(found, Records)
        seen += [record.position for record in found.records]


def _follow_ledger(store: Store, total: int) -> list[tuple[Mark, str | None]]:
    seen: list[tuple[Mark, str | None]] = []
    until = wall.monotonic() + scaled(DEADLINE_S)
    while len(seen) < total:
        assert wall.monotonic() < until, f"only {len(seen)} of {total} came"
        page = store.ledger(seen[-1][0] if seen else START, limit=7)
        seen += [(entry.mark, entry.event.message) for entry in page]
    return seen


def _follow_index(store: Store, total: int) -> list[tuple[Mark, Position]]:
    seen: list[tuple[Mark, Position]] = []
    until = wall.monotonic() + scaled(DEADLINE_S)
    while len(seen) < total:
        assert wall.monotonic() < until, f"only {len(seen)} of {total} came"
        page = store.index(seen[-1][0] if seen else START, limit=7)
        seen += [(entry.mark, entry.record.position) for entry in page]
    return seen


def _produce(store: Store, number: int, count: int) -> None:
    for step in range(count):
        id = f"{number}/{step}"
        event = Event(Kind.ACCEPTED, HOP, message=id)
        op = Enqueue(QUEUE, id, message(id), key=f"k{number}", on_fresh=event)
        store.commit([Unit((op,)), Unit((op,))])


def _consume(store: Store, number: int, total: int) -> None:
    until = wall.monotonic() + scaled(DEADLINE_S)
    while store.head("hub/effects").offset < total:
        assert wall.monotonic() < until, f"only {store.head('hub/effects').offset} of {total} handled"
        for row in _claim(store, f"worker {number}", 2):
            done = Finish(QUEUE, row.identity, WorkState.DONE, fence=row.fence)
            commit(store, done, Append("hub/effects", message(row.identity)), Log(logged(Kind.HANDLED, row.identity)))
        store.sweep(0)
