"""Large bodies and retention: what is visible when, and what may be deleted."""

from __future__ import annotations

import pytest

from semel.errors import InputError, StoreRefused
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.ledger import Kind
from semel.kernel.ops import (
    Advanced,
    Append,
    Conflict,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Put,
    PutBlob,
    Trim,
    Unit,
    WorkState,
)
from semel.kernel.store import ORPHAN_KEEP_S, STATE_KEEP_S, State, Store, Swept
from semel.testing.contract.base import (
    DAY_US,
    QUEUE,
    STREAM,
    StoreSuite,
    Time,
    append,
    claim_one,
    commit,
    commit_refused,
    enqueue,
    entries,
    events,
    identities,
    index_entries,
    logged,
    message,
    read_ids,
)

PARTS = (b"a" * 1000, b"b" * 1000, b"c" * 10)
SIZE = sum(map(len, PARTS))
STATE_KEEP_US = int(STATE_KEEP_S * 1_000_000)


def put_parts(store: Store, name: str = "body") -> None:
    for part, data in enumerate(PARTS):
        commit(store, PutBlob(name, part, data))


def naming(id: str, name: str = "body", size: int = SIZE) -> Envelope:
    return Envelope(id=id, blob=Blob(name, size))


def body_of(store: Store, name: str = "body") -> bytes:
    return b"".join(store.body(name))


class BodySuite(StoreSuite):
    """A large body becomes visible with the row that names it, and goes when the last one has gone."""

    def test_a_body_comes_back_whole(self, store: Store) -> None:
        put_parts(store)
        commit(store, Append(STREAM, naming("m")))
        assert body_of(store) == b"".join(PARTS)

    def test_parts_come_back_in_their_order(self, store: Store) -> None:
        for part in (2, 0, 11, 1, 10):
            commit(store, PutBlob("body", part, bytes([part])))
        commit(store, Append(STREAM, naming("m", size=5)))
        assert list(body_of(store)) == [0, 1, 2, 10, 11]

    def test_nothing_is_visible_before_it_is_named(self, store: Store) -> None:
        put_parts(store)
        with pytest.raises(InputError):
            body_of(store)

    def test_a_body_that_was_never_stored(self, store: Store) -> None:
        with pytest.raises(InputError):
            body_of(store, "none")

    def test_parts_and_name_in_one_unit(self, store: Store) -> None:
        chunks = [PutBlob("body", part, data) for part, data in enumerate(PARTS)]
        commit(store, *chunks, Append(STREAM, naming("m")))
        assert body_of(store) == b"".join(PARTS)

    def test_a_work_row_may_name_a_body(self, store: Store) -> None:
        put_parts(store)
        commit(store, Enqueue(QUEUE, "a", naming("m")))
        assert claim_one(store).envelope.blob == Blob("body", SIZE)
        assert body_of(store) == b"".join(PARTS)

    @pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1, 0])
    def test_another_size_is_refused(self, store: Store, size: int) -> None:
        put_parts(store)
        with pytest.raises(StoreRefused):
            commit(store, Append(STREAM, naming("m", size=size)), Put("k", b"v"))
        assert store.state("k") is None
        assert read_ids(store.read(STREAM)) == []
        commit(store, Append(STREAM, naming("m")))

    def test_naming_what_is_not_there_is_refused(self, store: Store) -> None:
        for op in (Append(STREAM, naming("m")), Enqueue(QUEUE, "m", naming("m"))):
            with pytest.raises(StoreRefused):
                commit(store, op)
        assert store.work(QUEUE, "m") is None

    def test_a_part_written_again_changes_nothing(self, store: Store) -> None:
        """A sender that got no answer sends the part again."""
        put_parts(store)
        commit(store, PutBlob("body", 1, PARTS[1]), PutBlob("body", 1, PARTS[1]))
        commit(store, Append(STREAM, naming("m")))
        assert body_of(store) == b"".join(PARTS)

    def test_a_named_body_takes_no_more_parts(self, store: Store) -> None:
        put_parts(store)
        commit(store, Append(STREAM, naming("m")))
        with pytest.raises(StoreRefused):
            commit(store, PutBlob("body", 3, b"more"))
        assert body_of(store) == b"".join(PARTS)

    def test_a_duplicate_does_not_refer_to_the_body(self, store: Store, time: Time) -> None:
        put_parts(store)
        op = Append(STREAM, naming("m"), identity="m")
        assert [type(result) for result in commit(store, op, op)] == [Fresh, Duplicate]
        commit(store, op)
        commit(store, Trim(STREAM, 2))
        sweep_all(store, time.now() + 30 * DAY_US)
        with pytest.raises(InputError):
            body_of(store)

    def test_a_refused_duplicate_does_not_need_the_parts(self, store: Store) -> None:
        """The body of a copy need not be sent again: the first one stands."""
        put_parts(store)
        commit(store, Append(STREAM, naming("m"), identity="m"))
        again = commit(store, Append(STREAM, naming("m", name="never-sent"), identity="m"))
        assert isinstance(again[0], Duplicate)

    def test_two_rows_may_name_one_body(self, store: Store, time: Time) -> None:
        put_parts(store)
        commit(store, Append(STREAM, naming("m")), Enqueue(QUEUE, "m", naming("m")))
        commit(store, Trim(STREAM, 2))
        sweep_all(store, time.now() + 30 * DAY_US)
        assert body_of(store) == b"".join(PARTS)
        row = claim_one(store)
        commit(store, Finish(QUEUE, "m", WorkState.DONE, fence=row.fence))
        sweep_all(store, time.now() + 60 * DAY_US)
        with pytest.raises(InputError):
            body_of(store)

    def test_the_body_goes_with_the_last_trimmed_record(self, store: Store, time: Time) -> None:
        put_parts(store)
        commit(store, Append(STREAM, naming("m1")), Append(STREAM, naming("m2")))
        commit(store, Trim(STREAM, 2))
        sweep_all(store, time.now() + 30 * DAY_US)
        assert body_of(store) == b"".join(PARTS)
        commit(store, Trim(STREAM, 3))
        sweep_all(store, time.now() + 60 * DAY_US)
        with pytest.raises(InputError):
            body_of(store)

    def test_a_replaced_row_lets_go_of_its_body(self, store: Store, time: Time) -> None:
        put_parts(store)
        commit(store, Enqueue(QUEUE, "t", naming("m"), replace=True))
        commit(store, Enqueue(QUEUE, "t", message("m", data=b"small"), replace=True))
        sweep_all(store, time.now() + 30 * DAY_US)
        with pytest.raises(InputError):
            body_of(store)

    def test_a_row_replaced_with_the_same_body_keeps_it(self, store: Store, time: Time) -> None:
        put_parts(store)
        commit(store, Enqueue(QUEUE, "t", naming("m"), replace=True))
        commit(store, Enqueue(QUEUE, "t", naming("m"), replace=True))
        sweep_all(store, time.now() + 30 * DAY_US)
        assert body_of(store) == b"".join(PARTS)

    def test_orphans_are_swept_after_their_time(self, store: Store, time: Time) -> None:
        put_parts(store)
        now = time.now()
        assert store.sweep(now).blobs == 0
        assert store.sweep(now + int((ORPHAN_KEEP_S + 60) * 1_000_000)).blobs == 1
        with pytest.raises(StoreRefused):
            commit(store, Append(STREAM, naming("m")))
        put_parts(store)
        commit(store, Append(STREAM, naming("m")))

    def test_a_body_survives_a_sweep_while_it_is_named(self, store: Store, time: Time) -> None:
        put_parts(store)
        commit(store, Enqueue(QUEUE, "a", naming("m")))
        sweep_all(store, time.now() + 365 * DAY_US)
        assert body_of(store) == b"".join(PARTS)

    def test_a_dead_row_keeps_its_body(self, store: Store, time: Time) -> None:
        put_parts(store)
        commit(store, Enqueue(QUEUE, "a", naming("m")))
        row = claim_one(store)
        commit(store, Finish(QUEUE, "a", WorkState.DEAD, fence=row.fence, keep_s=90 * 24 * 3600.0))
        sweep_all(store, time.now() + 30 * DAY_US)
        assert body_of(store) == b"".join(PARTS)


class SweepSuite(StoreSuite):
    """Sweep deletes what nobody needs, and nothing else."""

    @pytest.mark.parametrize("state", [state for state in WorkState if state not in (WorkState.DONE, WorkState.DEAD)])
    def test_an_open_row_is_never_deleted(self, store: Store, time: Time, state: WorkState) -> None:
        enqueue(store, "a")
        if state is WorkState.CLAIMED:
            claim_one(store, lease_s=time.short_s)
        else:
            commit(store, Finish(QUEUE, "a", state))
        assert sweep_all(store, time.now() + 3650 * DAY_US).work == 0
        row = store.work(QUEUE, "a")
        assert row is not None
        assert row.state is state

    @pytest.mark.parametrize("state", [WorkState.DONE, WorkState.DEAD])
    def test_a_finished_row_is_kept_for_its_time(self, store: Store, time: Time, state: WorkState) -> None:
        enqueue(store, "a")
        commit(store, Finish(QUEUE, "a", state, keep_s=1000.0))
        now = time.now()
        assert store.sweep(now + 900 * 1_000_000).work == 0
        assert isinstance(commit(store, Enqueue(QUEUE, "a", message("a")))[0], Duplicate)
        assert store.sweep(now + 1100 * 1_000_000).work == 1
        assert store.work(QUEUE, "a") is None
        assert isinstance(commit(store, Enqueue(QUEUE, "a", message("a")))[0], Fresh)

    def test_a_dead_row_that_holds_its_key_stays(self, store: Store, time: Time) -> None:
        enqueue(store, "a1", "a2", key="a")
        commit(store, Finish(QUEUE, "a1", WorkState.DEAD, holds=True, keep_s=0.0))
        sweep_all(store, time.now() + 30 * DAY_US)
        assert store.work(QUEUE, "a1") is not None

    @pytest.mark.parametrize("scope", [None, "all"])
    def test_a_dead_row_without_an_end_stays_until_it_is_discarded(
        self, store: Store, time: Time, scope: str | None
    ) -> None:
        commit(store, Enqueue(QUEUE, "a", message("a", data=b"body"), scope=scope))
        commit(store, Finish(QUEUE, "a", WorkState.DEAD, keep_s=None))
        assert sweep_all(store, time.now() + 3650 * DAY_US).total == 0
        row = store.work(QUEUE, "a")
        assert row is not None
        assert (row.state, row.envelope.data) == (WorkState.DEAD, b"body")
        commit(store, Finish(QUEUE, "a", WorkState.DONE, keep_s=0.0))
        assert sweep_all(store, time.now() + DAY_US).work == 1
        assert store.work(QUEUE, "a") is None

    def test_a_scope_is_free_again_when_its_row_is_gone(self, store: Store, time: Time) -> None:
        commit(store, Enqueue("inbox/one", "a", message("a"), scope="all"))
        commit(store, Finish("inbox/one", "a", WorkState.DONE, keep_s=0.0))
        sweep_all(store, time.now() + DAY_US)
        assert isinstance(commit(store, Enqueue("inbox/two", "a", message("a"), scope="all"))[0], Fresh)

    def test_a_finished_key_does_not_stand_in_the_way(self, store: Store, time: Time) -> None:
        enqueue(store, "a1", key="a")
        commit(store, Finish(QUEUE, "a1", WorkState.DONE, keep_s=0.0))
        sweep_all(store, time.now() + DAY_US)
        enqueue(store, "a2", key="a")
        assert identities([claim_one(store)]) == ["a2"]

    def test_records_that_are_not_trimmed_stay(self, store: Store, time: Time) -> None:
        append(store, "a", "b")
        assert sweep_all(store, time.now() + 3650 * DAY_US).total == 0
        assert read_ids(store.read(STREAM)) == ["a", "b"]

    def test_identities_of_records_that_are_still_there_are_never_forgotten(self, store: Store, time: Time) -> None:
        append(store, "a")
        sweep_all(store, time.now() + 3650 * DAY_US)
        assert isinstance(commit(store, Append(STREAM, message("a"), identity="a"))[0], Duplicate)

    def test_an_identity_is_forgotten_after_its_time(self, store: Store, time: Time) -> None:
        append(store, "a", "b")
        commit(store, Trim(STREAM, 3))
        now = time.now()
        sweep_all(store, now + 6 * DAY_US)
        assert isinstance(commit(store, Append(STREAM, message("a"), identity="a"))[0], Duplicate)
        sweep_all(store, now + 8 * DAY_US)
        assert commit(store, Append(STREAM, message("a"), identity="a"))[0] == Fresh(store.head(STREAM))

    def test_sweep_works_in_bounded_steps_and_says_when_more_is_left(self, store: Store, time: Time) -> None:
        commit(store, *(Append(STREAM, message(f"m{n}")) for n in range(7)))
        commit(store, *(Enqueue(QUEUE, f"w{n}", message("w")) for n in range(5)))
        commit(store, *(Finish(QUEUE, f"w{n}", WorkState.DONE, keep_s=0.0) for n in range(5)))
        commit(store, Trim(STREAM, 8))
        first = store.sweep(time.now() + DAY_US, limit=2)
        assert first.more
        assert max(first.records, first.work) <= 2
        rest = sweep_all(store, time.now() + DAY_US, limit=2)
        assert (first.records + rest.records, first.work + rest.work) == (7, 5)
        assert store.sweep(time.now() + DAY_US) == Swept()

    def test_records_that_were_not_exported_stay(self, store: Store, time: Time) -> None:
        append(store, "a", "b", "c")
        mark = index_entries(store)[0].mark
        commit(store, Trim(STREAM, 4))
        commit(store, Put("export/index", f"{mark.xid}.{mark.seq}".encode()))
        sweep_all(store, time.now() + 30 * DAY_US)
        assert [entry.record.envelope.id for entry in index_entries(store)][-2:] == ["b", "c"]

    def test_the_ledger_stays_until_it_is_exported(self, store: Store, time: Time) -> None:
        commit(store, *(Log(logged(Kind.HANDLED, f"m{n}")) for n in range(4)))
        sweep_all(store, time.now() + 3650 * DAY_US)
        assert [event.message for event in events(store)] == ["m0", "m1", "m2", "m3"]
        mark = entries(store)[1].mark
        commit(store, Put("export/ledger", f"{mark.xid}.{mark.seq}".encode()))
        assert sweep_all(store, time.now()).ledger == 2
        assert [event.message for event in events(store)] == ["m2", "m3"]

    def test_the_count_of_a_deleted_state_is_kept_for_its_time(self, store: Store, time: Time) -> None:
        commit(store, Put("k", b"first life"), Put("k", None))
        now = time.now()
        assert store.sweep(now + STATE_KEEP_US - 60_000_000).states == 0
        assert commit(store, Put("k", b"second life", expected=0)) == (Advanced(version=3),)
        commit(store, Put("k", None))
        now = time.now()
        assert store.sweep(now + STATE_KEEP_US + 60_000_000).states == 1
        assert store.sweep(now + STATE_KEEP_US + 60_000_000) == Swept()

    def test_a_key_is_new_when_its_count_is_gone(self, store: Store, time: Time) -> None:
        commit(store, Put("k", b"1"), Put("k", b"2"), Put("k", None))
        assert sweep_all(store, time.now() + 2 * DAY_US).states == 1
        assert store.state("k") is None
        assert commit_refused(store, Put("k", b"late", expected=2)) == (Conflict(0),)
        assert commit(store, Put("k", None)) == (Advanced(version=0),)
        assert commit(store, Put("k", b"new", expected=0)) == (Advanced(version=1),)
        assert store.state("k") == State(b"new", 1)

    def test_a_key_that_is_there_counts_on_whatever_is_swept(self, store: Store, time: Time) -> None:
        commit(store, Put("here", b"1"), *(Put("gone", b"x") for _ in range(5)), Put("gone", None))
        assert sweep_all(store, time.now() + 2 * DAY_US).states == 1
        assert commit(store, Put("here", b"2", expected=1)) == (Advanced(version=2),)

    def test_a_state_that_was_set_again_is_never_swept(self, store: Store, time: Time) -> None:
        commit(store, Put("k", b"1"), Put("k", None))
        commit(store, Put("k", b"2"))
        commit(store, Put("one unit", b"1"), Put("one unit", None), Put("one unit", b"2"))
        assert sweep_all(store, time.now() + 3650 * DAY_US).total == 0
        assert store.state("k") == State(b"2", 3)
        assert store.state("one unit") == State(b"2", 3)

    def test_counts_of_deleted_states_are_swept_in_bounded_steps(self, store: Store, time: Time) -> None:
        commit(store, *(Put(f"k{n}", b"x") for n in range(5)))
        commit(store, *(Put(f"k{n}", None) for n in range(5)))
        now = time.now() + 2 * DAY_US
        assert [store.sweep(now, limit=2) for _ in range(3)] == [
            Swept(states=2, more=True), Swept(states=2, more=True), Swept(states=1),
        ]  # fmt: skip

    def test_a_sweep_takes_nothing_from_later_commits(self, store: Store, time: Time) -> None:
        append(store, "a")
        commit(store, Trim(STREAM, 2))
        sweep_all(store, time.now() + 30 * DAY_US)
        store.commit([Unit((Append(STREAM, message("b"), identity="b"),))])
        assert store.head(STREAM).offset == 2


def sweep_all(store: Store, now: int, limit: int = 1000) -> Swept:
    """Sweep until nothing more is left; answers the sums."""
    total = Swept()
    while True:
        swept = store.sweep(now, limit)
        total = Swept(
            total.records + swept.records,
            total.identities + swept.identities,
            total.work + swept.work,
            total.blobs + swept.blobs,
            total.ledger + swept.ledger,
            total.states + swept.states,
            moved=total.moved + swept.moved,
        )
        if not swept.more:
            return total
