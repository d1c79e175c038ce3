"""The ledger and the index: evidence that is written with the change it reports, and read without a gap."""

from __future__ import annotations

import msgspec
import pytest

from semel.errors import LocalProtocolError, StoreRefused
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind, fold_ids
from semel.kernel.ops import Advance, Append, Applied, Enqueue, Log, Put, Remember, Trim, Unit
from semel.kernel.position import Position
from semel.kernel.store import Store
from semel.testing.contract.base import (
    HOP,
    QUEUE,
    STREAM,
    StoreSuite,
    Time,
    append,
    commit,
    commit_refused,
    entries,
    events,
    index_entries,
    logged,
    message,
    read_index,
    read_ledger,
)

ACCEPTED = Event(Kind.ACCEPTED, HOP, "pipeline")
"""A template: attached to appends it becomes a range."""


class LedgerSuite(StoreSuite):
    """What is written when."""

    def test_an_entry_says_who_and_when(self, store: Store, time: Time) -> None:
        before = time.now()
        commit(store, Log(logged(Kind.SENT, "m")))
        entry = entries(store)[0]
        assert before <= entry.at <= time.now()
        assert entry.node == store.node

    def test_every_field_comes_back(self, store: Store) -> None:
        event = Event(
            Kind.FAILED,
            HOP,
            pipeline="orders",
            message="m ü",
            delivery="conn#7",
            session="s",
            idx=2**53 - 1,
            peer="p",
            attempt=3,
            cause="ValueError: ✗",
            trace="00-abc",
        )
        span = Event(Kind.CONFIRMED, HOP, peer="p", stream=STREAM, epoch=2, first=5, last=2**53 - 1, n=7, fold=-(2**63))
        commit(store, Log(event), Log(span))
        assert events(store) == [event, span]

    def test_an_event_about_a_message_without_a_session_is_its_own_session(self, store: Store) -> None:
        commit(store, Log(logged(Kind.SENT, "m")))
        assert [event.session for event in events(store)] == ["m"]

    def test_entries_stand_in_the_order_of_their_commits(self, store: Store) -> None:
        for number in range(5):
            commit(store, Log(logged(Kind.SENT, f"a{number}")), Log(logged(Kind.SENT, f"b{number}")))
        assert [event.message for event in events(store)] == [f"{c}{n}" for n in range(5) for c in "ab"]
        marks = [entry.mark for entry in read_ledger(store)]
        assert marks == sorted(set(marks))

    def test_reading_in_pages_finds_the_same(self, store: Store) -> None:
        commit(store, *(Log(logged(Kind.SENT, f"m{n}")) for n in range(7)))
        entries(store)
        assert read_ledger(store, limit=3) == read_ledger(store)

    def test_templates_of_one_commit_become_one_range(self, store: Store) -> None:
        appends = [Append(STREAM, message(id), identity=id, on_fresh=ACCEPTED) for id in ("a", "b", "c")]
        store.commit([Unit((appends[0], appends[1])), Unit((appends[2],))])
        event = events(store)[0]
        assert (event.kind, event.hop, event.pipeline) == (Kind.ACCEPTED, HOP, "pipeline")
        assert (event.stream, event.epoch, event.first, event.last) == (STREAM, store.epoch, 1, 3)
        assert (event.n, event.fold, event.message) == (3, fold_ids(["a", "b", "c"]), None)
        assert len(events(store)) == 1

    def test_equal_templates_need_not_be_the_same_object(self, store: Store) -> None:
        ops = [Append(STREAM, message(id), on_fresh=Event(Kind.ACCEPTED, HOP)) for id in ("a", "b")]
        commit(store, *ops)
        assert [event.n for event in events(store)] == [2]

    def test_different_templates_become_different_ranges(self, store: Store) -> None:
        other = Event(Kind.ACCEPTED, "other>hop")
        templates = [ACCEPTED, other, ACCEPTED]
        commit(store, *(Append(STREAM, message(f"m{n}"), on_fresh=event) for n, event in enumerate(templates)))
        found = {event.hop: event for event in events(store)}
        mine = found[HOP]
        assert (mine.first, mine.last, mine.n, mine.fold) == (1, 3, 2, fold_ids(["m0", "m2"]))
        assert (found["other>hop"].first, found["other>hop"].last, found["other>hop"].n) == (2, 2, 1)

    def test_a_fresh_append_may_tell_several_things(self, store: Store) -> None:
        both = (ACCEPTED, msgspec.structs.replace(ACCEPTED, kind=Kind.FORWARDED))
        commit(store, *(Append(STREAM, message(id), identity=id, on_fresh=both) for id in ("a", "b", "a")))
        found = {event.kind: (event.first, event.last, event.n, event.fold) for event in events(store)}
        assert found == dict.fromkeys((Kind.ACCEPTED, Kind.FORWARDED), (1, 2, 2, fold_ids("ab")))

    def test_each_stream_has_its_own_range(self, store: Store) -> None:
        streams = (STREAM, "hub/other")
        commit(store, *(Append(stream, message("m"), on_fresh=ACCEPTED) for stream in streams))
        assert sorted(event.stream or "" for event in events(store)) == sorted(streams)

    def test_a_duplicate_is_no_part_of_the_range(self, store: Store) -> None:
        append(store, "b")
        duplicate = Event(Kind.DUPLICATE, HOP)
        commit(
            store,
            *(
                Append(STREAM, message(id), identity=id, on_fresh=ACCEPTED, on_duplicate=duplicate)
                for id in ("a", "b", "c", "a")
            ),
        )
        found = events(store)
        ranges = [event for event in found if event.kind is Kind.ACCEPTED]
        assert [(event.first, event.last, event.n, event.fold) for event in ranges] == [(2, 3, 2, fold_ids("ac"))]
        assert [event.message for event in found if event.kind is Kind.DUPLICATE] == ["b", "a"]

    def test_a_fresh_enqueue_writes_the_one_event_and_a_duplicate_the_other(self, store: Store) -> None:
        envelope = Envelope(id="m", session="s", index=4)
        op = Enqueue(QUEUE, "m", envelope, on_fresh=ACCEPTED, on_duplicate=Event(Kind.DUPLICATE, HOP))
        commit(store, op)
        commit(store, op)
        found = [(event.kind, event.message, event.session, event.idx, event.n) for event in events(store)]
        assert found == [(Kind.ACCEPTED, "m", "s", 4, 1), (Kind.DUPLICATE, "m", "s", 4, 1)]

    @pytest.mark.parametrize("op", [Enqueue(QUEUE, "m", Envelope(id="m")), Remember(QUEUE, "m")])
    def test_fresh_work_may_tell_several_things(self, store: Store, op: Enqueue | Remember) -> None:
        told = msgspec.structs.replace(op, on_fresh=(ACCEPTED, logged(Kind.HANDLED, "m")))
        commit(store, told, told)
        commit(store, told)
        assert [(event.kind, event.message) for event in events(store)] == [(Kind.ACCEPTED, "m"), (Kind.HANDLED, "m")]

    def test_an_event_about_one_message_stays_one(self, store: Store) -> None:
        commit(store, Append(STREAM, message("m"), on_fresh=logged(Kind.FORWARDED, "m")))
        assert [(event.kind, event.message, event.first) for event in events(store)] == [(Kind.FORWARDED, "m", None)]

    def test_nothing_is_written_for_a_refused_unit(self, store: Store) -> None:
        append(store, "dup")
        commit_refused(
            store,
            Log(logged(Kind.SENT, "m")),
            Append(STREAM, message("m"), on_fresh=ACCEPTED),
            Append(STREAM, message("dup"), identity="dup", on_duplicate=logged(Kind.DUPLICATE, "dup")),
            Put("k", b"v", expected=5),
        )
        assert events(store) == []

    def test_nothing_is_written_when_the_store_refuses_the_data(self, store: Store) -> None:
        append(store, "a")
        with pytest.raises(StoreRefused):
            commit(store, Log(logged(Kind.SENT, "m")), Advance("c", Position(STREAM, store.epoch, 9)))
        assert events(store) == []

    def test_a_log_of_a_template_is_a_mistake(self, store: Store) -> None:
        with pytest.raises(LocalProtocolError):
            commit(store, Log(ACCEPTED))

    def test_the_status_counts_entries(self, store: Store) -> None:
        commit(store, Log(logged(Kind.SENT, "a")), Log(logged(Kind.SENT, "b")))
        assert store.status().ledger_entries == 2


class IndexSuite(StoreSuite):
    """The index: all streams in the order in which the history grew, without bodies."""

    def test_an_entry_describes_its_record(self, store: Store) -> None:
        envelope = Envelope(id="m", source="s", type="t", session="k", index=4, data=b"12345", subject="x", time=5)
        op = Append(STREAM, envelope, identity="i", kind=17, target="group")
        position = Position(STREAM, store.epoch, 1)
        commit(store, op)
        entry = index_entries(store)[0]
        assert entry.size == 5
        assert (entry.record.position, entry.record.kind, entry.record.target) == (position, 17, "group")
        found = entry.record.envelope
        assert (found.id, found.type, found.session, found.index) == ("m", "t", "k", 4)

    def test_streams_are_in_one_order(self, store: Store) -> None:
        for number in range(3):
            append(store, f"a{number}", stream="hub/a")
            append(store, f"b{number}", stream="hub/b")
        assert [entry.record.envelope.id for entry in index_entries(store)] == ["a0", "b0", "a1", "b1", "a2", "b2"]
        marks = [entry.mark for entry in read_index(store)]
        assert marks == sorted(set(marks))

    def test_reading_the_index_in_pages_finds_the_same(self, store: Store) -> None:
        append(store, *(f"m{n}" for n in range(7)))
        index_entries(store)
        assert read_index(store, limit=3) == read_index(store)

    def test_a_trimmed_record_is_indexed_until_it_is_swept(self, store: Store) -> None:
        append(store, "a", "b")
        commit(store, Trim(STREAM, 2))
        assert [entry.record.envelope.id for entry in index_entries(store)] == ["a", "b"]

    def test_a_duplicate_is_not_indexed(self, store: Store) -> None:
        append(store, "a")
        outcome = store.commit([Unit((Append(STREAM, message("a"), identity="a"),))])
        assert isinstance(outcome[0], Applied)
        assert len(index_entries(store)) == 1
