"""What must be there after a close and a reopen."""

from __future__ import annotations

import pytest

from semel.errors import EpochChanged, StoreUnavailable
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.ledger import Kind
from semel.kernel.ops import (
    Advance,
    Append,
    Duplicate,
    Enqueue,
    Finish,
    Log,
    Put,
    PutBlob,
    Renew,
    Trim,
    WorkState,
)
from semel.kernel.position import Position
from semel.kernel.store import State, Store, Trimmed
from semel.testing.contract.base import (
    QUEUE,
    STREAM,
    MakeStore,
    StoreSuite,
    append,
    claim,
    claim_one,
    commit,
    enqueue,
    events,
    identities,
    index_entries,
    logged,
    message,
    read_ids,
)


class DurableSuite(StoreSuite):
    def test_everything_is_there_after_a_reopen(self, store: Store, make_store: MakeStore) -> None:
        positions = append(store, "a", "b", "c")
        commit(store, Advance("c", positions[1]), Put("k", b"v"), Put("k", b"w"), Log(logged(Kind.SENT, "m")))
        commit(store, PutBlob("blob", 0, b"body"), Append("hub/big", Envelope(id="big", blob=Blob("blob", 4))))
        store_id = store.store_id
        store.close()
        store = make_store()
        assert (store.epoch, store.store_id) == (1, store_id)
        assert read_ids(store.read(STREAM)) == ["a", "b", "c"]
        assert store.cursor("c") == positions[1]
        assert store.state("k") == State(b"w", 2)
        assert b"".join(store.body("blob")) == b"body"
        assert [event.message for event in events(store)] == ["m"]
        assert [entry.record.envelope.id for entry in index_entries(store)] == ["a", "b", "c", "big"]

    def test_identities_are_still_known(self, store: Store, make_store: MakeStore) -> None:
        first = append(store, "a")[0]
        enqueue(store, "w")
        commit(store, Finish(QUEUE, "w", WorkState.DONE))
        store.close()
        store = make_store()
        assert commit(store, Append(STREAM, message("a"), identity="a")) == (Duplicate(first),)
        assert isinstance(commit(store, Enqueue(QUEUE, "w", message("w")))[0], Duplicate)

    def test_offsets_and_marks_go_on(self, store: Store, make_store: MakeStore) -> None:
        append(store, "a")
        commit(store, Log(logged(Kind.SENT, "one")))
        store.close()
        store = make_store()
        assert append(store, "b")[0] == Position(STREAM, 1, 2)
        commit(store, Log(logged(Kind.SENT, "two")))
        assert [event.message for event in events(store)] == ["one", "two"]

    def test_a_trimmed_stream_stays_trimmed(self, store: Store, make_store: MakeStore) -> None:
        append(store, "a", "b")
        commit(store, Trim(STREAM, 2))
        store.close()
        assert make_store().read(STREAM) == Trimmed(Position(STREAM, 1, 2))

    def test_a_claim_outlives_the_process_that_made_it(self, store: Store, make_store: MakeStore) -> None:
        enqueue(store, "w")
        row = claim_one(store)
        store.close()
        store = make_store()
        assert claim(store) == []
        commit(store, Renew(QUEUE, "w", row.fence))
        commit(store, Finish(QUEUE, "w", WorkState.DONE, fence=row.fence))

    def test_fences_are_never_used_again(self, store: Store, make_store: MakeStore) -> None:
        enqueue(store, "w")
        fences = []
        for _ in range(4):
            fences.append(claim_one(store, lease_s=0.0).fence)
            store.close()
            store = make_store()
        assert fences == sorted(set(fences))

    def test_the_order_of_the_keys_is_kept(self, store: Store, make_store: MakeStore) -> None:
        enqueue(store, "a1", "a2", key="a")
        enqueue(store, "b1", key="b")
        row = claim_one(store)
        store.close()
        store = make_store()
        assert identities(claim(store, 10)) == ["b1"]
        commit(store, Finish(QUEUE, "a1", WorkState.DONE, fence=row.fence))
        assert identities(claim(store, 10)) == ["a2"]

    def test_a_raised_epoch_stays_raised(self, store: Store, make_store: MakeStore) -> None:
        old = append(store, "a")[0]
        store.raise_epoch("restored")
        new = append(store, "b")[0]
        store.close()
        store = make_store()
        assert store.epoch == 2
        with pytest.raises(EpochChanged):
            store.read(STREAM, after=old)
        assert append(store, "c")[0] == Position(STREAM, 2, new.offset + 1)

    def test_a_closed_store_writes_nothing(self, store: Store) -> None:
        store.close()
        with pytest.raises(StoreUnavailable):
            commit(store, Put("k", b"v"))

    def test_closing_twice_is_harmless(self, store: Store, make_store: MakeStore) -> None:
        append(store, "a")
        store.close()
        store.close()
        assert read_ids(make_store().read(STREAM)) == ["a"]

    def test_a_store_that_takes_commits_has_nothing_to_say_of_itself(self, store: Store) -> None:
        append(store, "a")
        store.check()
        append(store, "b")

    def test_migrating_an_up_to_date_store_changes_nothing(self, store: Store) -> None:
        append(store, "a")
        before, after = store.migrate()
        assert before == after == store.status().schema
        assert read_ids(store.read(STREAM)) == ["a"]
