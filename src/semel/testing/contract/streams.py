"""Streams: each identity once, offsets dense and in order, reads that never skip in silence."""

from __future__ import annotations

import threading
import time
import time as wall
from concurrent.futures import ThreadPoolExecutor

import pytest

from semel.errors import EpochChanged, InputError
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind, Mark
from semel.kernel.ops import Advance, Advanced, Append, Applied, Claim, Duplicate, Fresh, Put, Trim, Unit
from semel.kernel.position import Position
from semel.kernel.store import Record, Records, Store, Trimmed
from semel.testing.contract.base import (
    DAY_US,
    STREAM,
    MakeStore,
    StoreSuite,
    Time,
    append,
    claim_one,
    commit,
    enqueue,
    index_entries,
    message,
    read_ids,
)


class AppendSuite(StoreSuite):
    """Idempotent append: the identity decides, and the answer says where the first one stands."""

    def test_a_new_stream_begins_at_offset_one(self, store: Store) -> None:
        assert append(store, "a", "b") == [Position(STREAM, store.epoch, 1), Position(STREAM, store.epoch, 2)]

    def test_a_second_append_of_an_identity_answers_with_the_first_position(self, store: Store) -> None:
        first = append(store, "a")[0]
        append(store, "b")
        again = commit(store, Append(STREAM, message("a", data=b"another body"), identity="a"))
        assert again == (Duplicate(first),)
        assert read_ids(store.read(STREAM)) == ["a", "b"]

    def test_a_duplicate_leaves_no_gap_in_the_offsets(self, store: Store) -> None:
        append(store, "a")
        commit(store, Append(STREAM, message("a"), identity="a"), Append(STREAM, message("b"), identity="b"))
        assert [record.position.offset for record in _records(store)] == [1, 2]
        assert append(store, "c")[0].offset == store.head(STREAM).offset == 3

    def test_a_duplicate_within_one_unit(self, store: Store) -> None:
        ops = [Append(STREAM, message(id), identity=id) for id in ("a", "b", "a")]
        at = [Position(STREAM, store.epoch, offset) for offset in (1, 2)]
        assert commit(store, *ops) == (Fresh(at[0]), Fresh(at[1]), Duplicate(at[0]))

    def test_a_duplicate_across_units_of_one_commit(self, store: Store) -> None:
        units = [Unit((Append(STREAM, message("a", data=body), identity="a"),)) for body in (b"first", b"second")]
        first = Position(STREAM, store.epoch, 1)
        assert store.commit(units) == [Applied((Fresh(first),)), Applied((Duplicate(first),))]
        assert [record.envelope.data for record in _records(store)] == [b"first"]

    def test_something_else_under_an_identity_is_told_by_its_digest(self, store: Store) -> None:
        said = Event(Kind.DUPLICATE, "a>b")
        [fresh] = commit(store, Append(STREAM, message("a"), identity="a", digest=b"1"))
        assert isinstance(fresh, Fresh)
        same = Append(STREAM, message("a"), identity="a", digest=b"1", on_duplicate=said)
        other = Append(STREAM, message("a"), identity="a", digest=b"2", on_duplicate=said)
        bare = Append(STREAM, message("a"), identity="a")
        first = fresh.position
        assert commit(store, same, other, bare) == (Duplicate(first), Duplicate(first, differs=True), Duplicate(first))
        assert [entry.event.message for entry in store.ledger(Mark(0, 0))] == ["a"]
        [undigested] = append(store, "b")
        assert commit(store, Append(STREAM, message("b"), identity="b", digest=b"1")) == (Duplicate(undigested),)

    def test_digests_within_one_commit_are_compared(self, store: Store) -> None:
        ops = [Append(STREAM, message("a"), identity=f"id-{n % 40}", digest=bytes([n // 40])) for n in range(80)]
        results = commit(store, *ops, Append("hub/other", message("a"), identity="id-1"))
        assert [type(result) for result in results[:40]] == [Fresh] * 40
        assert [getattr(result, "differs", None) for result in results[40:80]] == [True] * 40
        for digest in (b"1" * 65, b"1"):
            with pytest.raises(InputError):
                commit(store, Append(STREAM, message("a"), identity="x" if len(digest) > 1 else None, digest=digest))

    def test_without_an_identity_every_append_is_new(self, store: Store) -> None:
        results = commit(store, Append(STREAM, message("a")), Append(STREAM, message("a")))
        assert [type(result) for result in results] == [Fresh, Fresh]
        assert read_ids(store.read(STREAM)) == ["a", "a"]

    def test_identities_belong_to_their_stream(self, store: Store) -> None:
        append(store, "a")
        assert append(store, "a", stream="hub/other")[0] == Position("hub/other", store.epoch, 1)

    def test_identities_that_differ_in_case_or_accents_are_different(self, store: Store) -> None:
        ids = ["a", "A", "á", "a ", "ａ"]
        append(store, *ids)
        assert read_ids(store.read(STREAM)) == ids

    def test_known_identities_are_found_with_their_positions(self, store: Store) -> None:
        positions = append(store, "a", "b", "c")
        append(store, "b", stream="hub/other")
        assert store.known(STREAM, ["c", "never", "a"]) == {"a": positions[0], "c": positions[2]}
        assert store.known(STREAM, []) == store.known("hub/never", ["a"]) == {}

    def test_one_commit_may_write_several_streams(self, store: Store) -> None:
        streams = ["hub/c", "hub/a", "hub/b"]
        results = commit(store, *(Append(stream, message("m"), identity="m") for stream in streams))
        assert results == tuple(Fresh(Position(stream, store.epoch, 1)) for stream in streams)

    def test_a_record_comes_back_as_it_went_in(self, store: Store) -> None:
        envelope = Envelope(
            id="ä 1",
            source="urn:x",
            type="order.new",
            data=bytes(range(256)),
            session="s/1",
            index=2**53 - 1,
            time=1_700_000_000_123_456,
            subject="",
            datacontenttype="application/json",
            headers={"x": "", "ключ": "\n\t🙂"},
        )
        commit(store, Append(STREAM, envelope, identity="id", kind=17, target="group/1"))
        record = _records(store)[0]
        assert record.envelope == envelope
        assert (record.kind, record.target, record.identity) == (17, "group/1", "id")

    def test_a_record_carries_the_time_of_its_commit(self, store: Store, time: Time) -> None:
        before = time.now()
        append(store, "a")
        assert before <= _records(store)[0].at <= time.now()

    def test_a_large_commit_is_answered_in_the_order_asked(self, store: Store) -> None:
        ids = [f"m{(n * 7919) % 1000:04}" for n in range(1000)]
        assert [position.offset for position in append(store, *ids)] == list(range(1, 1001))
        assert read_ids(store.read(STREAM, limit=2000)) == ids

    def test_an_empty_commit_does_nothing(self, store: Store) -> None:
        assert store.commit([]) == []
        assert store.commit([Unit(())]) == [Applied(())]


class ReadSuite(StoreSuite):
    """Reads: in order, from anywhere, bounded, honest about what is gone."""

    def test_a_stream_that_does_not_exist_is_empty(self, store: Store) -> None:
        assert store.read(STREAM) == Records(())
        assert store.head(STREAM).offset == 0

    def test_records_come_in_offset_order_up_to_the_limit(self, store: Store) -> None:
        append(store, "a", "b", "c")
        assert read_ids(store.read(STREAM, limit=2)) == ["a", "b"]

    def test_reading_goes_on_from_the_middle(self, store: Store) -> None:
        positions = append(store, "a", "b", "c", "d")
        assert read_ids(store.read(STREAM, after=positions[1])) == ["c", "d"]

    def test_nothing_after_the_head(self, store: Store) -> None:
        append(store, "a")
        assert store.read(STREAM, after=store.head(STREAM)) == Records(())

    def test_streams_do_not_mix(self, store: Store) -> None:
        append(store, "a")
        append(store, "b", stream="hub/contract2")
        assert read_ids(store.read(STREAM)) == ["a"]

    def test_the_head_is_the_last_offset(self, store: Store) -> None:
        positions = append(store, "a", "b")
        assert store.head(STREAM) == positions[-1]

    def test_a_position_of_another_epoch_is_refused(self, store: Store) -> None:
        append(store, "a")
        with pytest.raises(EpochChanged) as caught:
            store.read(STREAM, after=Position(STREAM, store.epoch + 1, 1))
        assert caught.value.current == store.epoch

    def test_tail_returns_at_once_when_there_is_something(self, store: Store) -> None:
        append(store, "a")
        assert read_ids(store.tail(STREAM, timeout_s=60)) == ["a"]

    def test_tail_gives_up_when_the_time_is_up(self, store: Store) -> None:
        append(store, "a")
        assert store.tail(STREAM, after=store.head(STREAM), timeout_s=0.02) == Records(())

    def test_tail_of_a_stream_that_does_not_exist_yet(self, store: Store) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.tail, STREAM, None, 10, 60)
            append(store, "a")
            assert read_ids(waiting.result(30)) == ["a"]

    def test_tail_is_woken_by_another_thread(self, store: Store) -> None:
        _play_ping_pong(store, store)

    def test_tail_below_the_trim_mark_says_so(self, store: Store) -> None:
        append(store, "a", "b")
        commit(store, Trim(STREAM, 2))
        assert store.tail(STREAM, timeout_s=60) == Trimmed(Position(STREAM, store.epoch, 2))

    def test_a_listener_hears_of_each_commit_until_it_stops(self, store: Store) -> None:
        woken = threading.Event()
        stop = store.listen(woken.set)
        for number in range(3):
            woken.clear()
            append(store, f"a{number}")
            assert woken.wait(30)
        stop()
        _wait_for_a_commit(store, "calls that were under way are over when a later listener was called")
        woken.clear()
        _wait_for_a_commit(store, "not for the first")
        assert not woken.is_set()

    def test_own_commits_are_heard_where_they_are_made_and_nowhere_else(self, store: Store) -> None:
        """Whoever writes knows what it wrote: woken up by that, it would read all of it again."""
        heard: list[int] = []
        stop = store.listen(lambda: heard.append(threading.get_ident()))
        begun = time.monotonic()
        for number in range(200):
            append(store, f"own{number}")
        # others may have committed before, for all that a listener knows when it begins; and a store that is kept from
        # looking for 50 ms may rather wake in vain than too late, and once more for the commit that it did not see
        in_vain = 5 + 2 * int((time.monotonic() - begun) / 0.05)
        stop()
        assert heard.count(threading.get_ident()) == 200
        assert len(heard) < 200 + in_vain

    def test_a_listener_that_fails_disturbs_neither_the_commit_nor_others(self, store: Store) -> None:
        def fail() -> None:
            raise ValueError("a listener's own trouble")

        woken = threading.Event()
        stops = [store.listen(fail), store.listen(woken.set)]
        woken.clear()
        append(store, "a")
        assert woken.wait(30)
        for stop in stops:
            stop()
        assert len(_records(store)) == 1

    def test_a_claim_that_finds_nothing_wakes_nobody(self, store: Store) -> None:
        """Otherwise idle workers of two nodes keep each other awake for ever, with a write each time."""
        calls: list[None] = []
        stop = store.listen(lambda: calls.append(None))
        for _ in range(20):
            commit(store, Claim("inbox/empty", "w"))
        _wait_for_a_commit(store, "something")
        stop()
        assert len(calls) < 10


class TrimSuite(StoreSuite):
    """Trim: never past what somebody needs, and never a silent skip afterwards."""

    def test_trim_answers_the_first_offset_left(self, store: Store) -> None:
        append(store, "a", "b", "c")
        assert commit(store, Trim(STREAM, 3)) == (Advanced(Position(STREAM, store.epoch, 3)),)

    def test_a_read_below_the_trim_mark_says_where_to_go_on(self, store: Store) -> None:
        positions = append(store, "a", "b", "c")
        commit(store, Trim(STREAM, 3))
        trimmed = Trimmed(Position(STREAM, store.epoch, 3))
        assert store.read(STREAM) == trimmed
        assert store.read(STREAM, after=positions[0]) == trimmed
        assert read_ids(store.read(STREAM, after=positions[1])) == ["c"]

    def test_a_read_is_honest_after_the_rows_are_gone(self, store: Store, time: Time) -> None:
        append(store, "a", "b", "c")
        commit(store, Trim(STREAM, 3))
        store.sweep(time.now() + 30 * DAY_US)
        assert store.read(STREAM) == Trimmed(Position(STREAM, store.epoch, 3))
        assert store.head(STREAM).offset == 3

    def test_trim_never_goes_back(self, store: Store) -> None:
        append(store, "a", "b", "c")
        commit(store, Trim(STREAM, 3))
        assert commit(store, Trim(STREAM, 2)) == (Advanced(Position(STREAM, store.epoch, 3)),)

    def test_trim_stops_at_the_end_of_the_stream(self, store: Store) -> None:
        append(store, "a", "b")
        assert commit(store, Trim(STREAM, 100)) == (Advanced(Position(STREAM, store.epoch, 3)),)
        assert append(store, "c")[0].offset == 3
        assert read_ids(store.read(STREAM, after=Position(STREAM, store.epoch, 2))) == ["c"]

    def test_trim_stops_at_the_lowest_pin(self, store: Store) -> None:
        positions = append(store, "a", "b", "c", "d")
        commit(store, Advance("slow", positions[1]), Advance("slower", positions[0]))
        assert commit(store, Trim(STREAM, 4)) == (Advanced(positions[1]),)
        commit(store, Advance("slower", positions[2]))
        assert commit(store, Trim(STREAM, 4)) == (Advanced(positions[2]),)

    def test_a_cursor_that_does_not_pin_does_not_hold_the_trim(self, store: Store) -> None:
        positions = append(store, "a", "b", "c")
        commit(store, Advance("watcher", positions[0], pins=False))
        assert commit(store, Trim(STREAM, 3)) == (Advanced(positions[2]),)

    def test_a_cursor_may_let_go_of_its_pin(self, store: Store) -> None:
        positions = append(store, "a", "b", "c")
        commit(store, Advance("c", positions[0]))
        commit(store, Advance("c", positions[0], pins=False))
        assert commit(store, Trim(STREAM, 3)) == (Advanced(positions[2]),)

    def test_pins_of_other_streams_do_not_count(self, store: Store) -> None:
        positions = append(store, "a", "b")
        other = append(store, "a", stream="hub/other")
        commit(store, Advance("c", other[0]))
        assert commit(store, Trim(STREAM, 2)) == (Advanced(positions[1]),)

    def test_trim_stops_at_what_has_not_been_exported(self, store: Store) -> None:
        positions = append(store, "a", "b", "c", "d")
        mark = index_entries(store)[1].mark
        commit(store, Put("export/index", f"{mark.xid}.{mark.seq}".encode()))
        assert commit(store, Trim(STREAM, 5)) == (Advanced(positions[2]),)

    def test_a_trimmed_identity_is_still_known(self, store: Store, time: Time) -> None:
        first = append(store, "a", "b")[0]
        commit(store, Trim(STREAM, 3))
        store.sweep(time.now())
        assert commit(store, Append(STREAM, message("a"), identity="a")) == (Duplicate(first),)

    def test_a_trimmed_identity_keeps_its_digest(self, store: Store, time: Time) -> None:
        [fresh] = commit(store, Append(STREAM, message("a"), identity="a", digest=b"1"))
        assert isinstance(fresh, Fresh)
        commit(store, Trim(STREAM, 2))
        store.sweep(time.now())
        again = [Append(STREAM, message("a"), identity="a", digest=digest) for digest in (b"1", b"2")]
        assert commit(store, *again) == (Duplicate(fresh.position), Duplicate(fresh.position, differs=True))

    def test_trim_of_a_stream_that_does_not_exist(self, store: Store) -> None:
        assert [type(result) for result in commit(store, Trim("hub/none", 5))] == [Advanced]
        assert store.read("hub/none") == Records(())


class EpochSuite(StoreSuite):
    """Epochs: positions of an old history are refused, and offsets never name two records."""

    def test_a_store_begins_in_epoch_one(self, store: Store) -> None:
        assert store.epoch == 1

    def test_raising_the_epoch_refuses_old_positions(self, store: Store) -> None:
        old = append(store, "a")[0]
        assert store.raise_epoch("restored from a backup") == 2
        assert store.epoch == 2
        with pytest.raises(EpochChanged):
            store.read(STREAM, after=old)

    def test_new_offsets_lie_above_all_old_ones(self, store: Store) -> None:
        old = append(store, "a", "b")[-1]
        store.raise_epoch("restored")
        new = append(store, "c")[0]
        assert new.epoch == 2
        assert new.offset > old.offset + 1_000_000
        assert append(store, "d")[0].offset == new.offset + 1

    def test_a_stream_that_begins_after_the_raise_begins_above_too(self, store: Store) -> None:
        old = append(store, "a")[0]
        store.raise_epoch("restored")
        assert append(store, "a", stream="hub/new")[0].offset > old.offset + 1_000_000

    def test_a_reader_who_begins_again_finds_everything(self, store: Store) -> None:
        append(store, "a", "b")
        store.raise_epoch("restored")
        append(store, "c")
        records = _records(store)
        assert [record.envelope.id for record in records] == ["a", "b", "c"]
        assert {record.position.epoch for record in records} == {2}
        assert read_ids(store.read(STREAM, after=records[1].position)) == ["c"]
        assert read_ids(store.read(STREAM, after=records[0].position)) == ["b", "c"]

    def test_a_stream_of_a_later_epoch_is_read_from_its_start(self, store: Store) -> None:
        store.raise_epoch("restored")
        append(store, "a")
        assert read_ids(store.read(STREAM)) == ["a"]

    def test_a_cursor_older_than_a_stream_of_a_later_epoch_is_not_trimmed(self, store: Store) -> None:
        """The stream begins far above the cursor. What lies between was never given out, so nothing is missing."""
        commit(store, Advance("c", Position(STREAM, 1, 0), pins=False))
        store.raise_epoch("restored")
        first, second = append(store, "a", "b")
        cursor = store.cursor("c")
        assert cursor == Position(STREAM, 2, 0)
        for offset in (cursor.offset, 7, first.offset - 1):
            assert read_ids(store.read(STREAM, after=Position(STREAM, 2, offset))) == ["a", "b"]
            assert read_ids(store.tail(STREAM, after=Position(STREAM, 2, offset), timeout_s=0.0)) == ["a", "b"]
        commit(store, Trim(STREAM, second.offset))
        assert store.read(STREAM, after=cursor) == Trimmed(second)

    def test_identities_survive_the_raise(self, store: Store) -> None:
        old = append(store, "a")[0]
        store.raise_epoch("restored")
        again = commit(store, Append(STREAM, message("a"), identity="a"))
        assert again == (Duplicate(Position(STREAM, 2, old.offset)),)

    def test_cursors_keep_their_place(self, store: Store) -> None:
        positions = append(store, "a", "b")
        commit(store, Advance("c", positions[0]))
        store.raise_epoch("restored")
        cursor = store.cursor("c")
        assert cursor == Position(STREAM, 2, positions[0].offset)
        assert read_ids(store.read(STREAM, after=cursor)) == ["b"]

    def test_versions_of_a_new_epoch_lie_above_all_old_ones(self, store: Store) -> None:
        """A machine that remembers a version of the lost history must never find it true again."""
        commit(store, Put("k", b"1"))
        store.raise_epoch("restored")
        state = store.state("k")
        assert state is not None
        remembered = range(state.version + 1, state.version + 10)
        commit(store, Put("k", b"2", expected=state.version), Put("new", b"1", expected=0))
        for key in ("k", "new"):
            written = store.state(key)
            assert written is not None
            assert written.version not in remembered
            assert written.version > 1_000_000

    def test_fences_of_a_new_epoch_lie_above_all_old_ones(self, store: Store) -> None:
        enqueue(store, "a")
        old = claim_one(store, lease_s=0.0)
        store.raise_epoch("restored")
        assert claim_one(store).fence > old.fence + 1_000_000

    def test_the_index_keeps_the_epoch_of_the_writing(self, store: Store) -> None:
        append(store, "a")
        store.raise_epoch("restored")
        append(store, "b")
        assert [entry.record.position.epoch for entry in index_entries(store)] == [1, 2]

    def test_trim_goes_on_after_the_raise(self, store: Store) -> None:
        append(store, "a", "b")
        store.raise_epoch("restored")
        new = append(store, "c")[0]
        assert commit(store, Trim(STREAM, new.offset)) == (Advanced(new),)
        assert store.read(STREAM) == Trimmed(new)


class SharedStreamSuite(StoreSuite):
    """Two handles on one store, as two processes would have."""

    def test_the_other_handle_sees_what_is_committed(self, store: Store, make_store: MakeStore) -> None:
        other = make_store()
        append(store, "a")
        append(other, "b")
        assert read_ids(store.read(STREAM)) == read_ids(other.read(STREAM)) == ["a", "b"]

    def test_no_handle_believes_an_old_head(self, store: Store, make_store: MakeStore) -> None:
        other = make_store()
        offsets = [append(handle, f"m{n}")[0].offset for n, handle in enumerate([store, other, other, store, other])]
        assert offsets == [1, 2, 3, 4, 5]

    def test_identities_are_shared(self, store: Store, make_store: MakeStore) -> None:
        first = append(store, "a")[0]
        assert commit(make_store(), Append(STREAM, message("a"), identity="a")) == (Duplicate(first),)

    def test_tail_is_woken_by_another_handle(self, store: Store, make_store: MakeStore) -> None:
        _play_ping_pong(store, make_store())

    def test_a_listener_hears_of_another_handle(self, store: Store, make_store: MakeStore) -> None:
        woken = threading.Event()
        stop = store.listen(woken.set)
        append(make_store(), "a")
        assert woken.wait(30)
        stop()

    def test_a_listener_hears_of_another_handle_between_its_own_commits(
        self, store: Store, make_store: MakeStore
    ) -> None:
        other, own = make_store(), threading.get_ident()
        woken = threading.Event()
        stop = store.listen(lambda: woken.set() if threading.get_ident() != own else None)
        for number in range(5):
            append(store, f"own{number}")
            woken.clear()
            append(other, f"other{number}")
            append(store, f"again{number}")
            assert woken.wait(30)
        stop()

    def test_an_epoch_raised_by_another_handle_is_seen(self, store: Store, make_store: MakeStore) -> None:
        old = append(store, "a")[0]
        make_store().raise_epoch("restored")
        assert append(store, "b")[0].epoch == 2
        with pytest.raises(EpochChanged):
            store.read(STREAM, after=old)
        assert store.epoch == 2


def _records(store: Store) -> list[Record]:
    found = store.read(STREAM)
    assert isinstance(found, Records)
    return list(found.records)


def _wait_for_a_commit(store: Store, id: str) -> None:
    heard = threading.Event()
    stop = store.listen(heard.set)
    append(store, id)
    assert heard.wait(30)
    stop()


def _play_ping_pong(left: Store, right: Store) -> None:
    """Forty turns, each waiting for the other's record: a tail that is polled and not woken cannot keep up."""
    turns = 40
    began = wall.monotonic()
    with ThreadPoolExecutor(1) as pool:
        player = pool.submit(_play, right, "hub/ping", "hub/pong", turns)
        append(left, "ping0", stream="hub/ping")
        _play(left, "hub/pong", "hub/ping", turns)
        player.result(30)
    assert wall.monotonic() - began < 10
    assert read_ids(left.read("hub/pong")) == [f"hub/pong{n}" for n in range(turns)]


def _play(store: Store, mine: str, theirs: str, turns: int) -> None:
    after = None
    for number in range(turns):
        found = store.tail(mine, after, limit=1, timeout_s=30)
        assert isinstance(found, Records)
        assert found.records, f"nothing came on {mine} after {after}"
        after = found.records[0].position
        append(store, f"{theirs}{number}", stream=theirs)
