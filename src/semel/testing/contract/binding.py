"""Writes inside the user's own transaction: there when the user commits, gone when the user rolls back."""

from __future__ import annotations

import pytest

from semel.errors import LocalProtocolError, StaleFence
from semel.kernel.lease import Guard
from semel.kernel.ledger import Kind
from semel.kernel.ops import (
    Advance,
    Advanced,
    Append,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Put,
    Trim,
    WorkState,
)
from semel.kernel.store import State, Store
from semel.testing.contract.base import (
    QUEUE,
    STREAM,
    Connect,
    StoreSuite,
    append,
    claim,
    claim_one,
    commit,
    enqueue,
    events,
    identities,
    logged,
    message,
)


class BindSuite(StoreSuite):
    def test_writes_are_visible_only_after_the_commit(self, store: Store, connect: Connect) -> None:
        position = append(store, "a")[0]
        connection = connect()
        tx = store.bind(connection)
        results = tx.apply([
            Put("k", b"v", expected=0),
            Advance("c", position),
            Enqueue(QUEUE, "w", message("w")),
            Log(logged(Kind.HANDLED, "m")),
        ])  # fmt: skip
        assert results[:2] == (Advanced(version=1), Advanced(position))
        assert isinstance(results[2], Fresh)
        assert (store.state("k"), store.cursor("c"), store.work(QUEUE, "w")) == (None, None, None)
        connection.commit()
        connection.close()
        assert (store.state("k"), store.cursor("c")) == (State(b"v", 1), position)
        assert identities(claim(store)) == ["w"]
        assert [event.message for event in events(store)] == ["m"]

    def test_a_rollback_takes_everything_back(self, store: Store, connect: Connect) -> None:
        connection = connect()
        store.bind(connection).apply([Put("k", b"v"), Enqueue(QUEUE, "w", message("w"), key="k")])
        connection.rollback()
        connection.close()
        assert store.state("k") is None
        assert claim(store) == []
        assert isinstance(commit(store, Enqueue(QUEUE, "w", message("w"), key="k"))[0], Fresh)
        claim_one(store)
        assert events(store) == []

    def test_one_call_sees_what_an_earlier_one_wrote(self, store: Store, connect: Connect) -> None:
        connection = connect()
        tx = store.bind(connection)
        assert tx.apply([Put("k", b"1", expected=0)]) == (Advanced(version=1),)
        assert tx.apply([Put("k", b"2", expected=1)]) == (Advanced(version=2),)
        assert isinstance(tx.apply([Enqueue(QUEUE, "w", message("w"))])[0], Fresh)
        assert isinstance(tx.apply([Enqueue(QUEUE, "w", message("w"))])[0], Duplicate)
        claimed = tx.apply([Claim(QUEUE, "me")])[0]
        assert isinstance(claimed, Claimed)
        tx.apply([Finish(QUEUE, "w", WorkState.DONE, fence=claimed.rows[0].fence)])
        connection.commit()
        connection.close()
        assert store.state("k") == State(b"2", 2)
        row = store.work(QUEUE, "w")
        assert row is not None
        assert row.state is WorkState.DONE

    @pytest.mark.parametrize("op", [Append(STREAM, message("m")), Trim(STREAM, 1)])
    def test_the_head_of_a_stream_is_never_held(self, store: Store, connect: Connect, op: Append | Trim) -> None:
        connection = connect()
        tx = store.bind(connection)
        with pytest.raises(LocalProtocolError):
            tx.apply([Put("k", b"v"), op])
        connection.commit()
        connection.close()
        assert store.state("k") is None

    def test_a_handler_finishes_its_row_with_its_own_writes(self, store: Store, connect: Connect) -> None:
        enqueue(store, "w")
        row = claim_one(store)
        connection = connect()
        finish = Finish(QUEUE, "w", WorkState.DONE, fence=row.fence)
        store.bind(connection).apply([finish, Put("effect", b"done"), Log(logged(Kind.HANDLED, "w"))])
        connection.commit()
        connection.close()
        assert store.state("effect") == State(b"done", 1)
        assert claim(store) == []

    def test_a_stale_fence_says_so_and_the_user_rolls_back(self, store: Store, connect: Connect) -> None:
        enqueue(store, "w")
        first = claim_one(store, lease_s=0.0)
        second = claim_one(store)
        connection = connect()
        tx = store.bind(connection)
        tx.apply([Put("before", b"v")])
        with pytest.raises(StaleFence):
            tx.apply([Finish(QUEUE, "w", WorkState.DONE, fence=first.fence), Put("effect", b"twice")])
        connection.rollback()
        connection.close()
        assert (store.state("before"), store.state("effect")) == (None, None)
        commit(store, Finish(QUEUE, "w", WorkState.DONE, fence=second.fence))

    def test_a_stale_guard_and_a_conflict_say_so(self, store: Store, connect: Connect) -> None:
        commit(store, Put("k", b"v"))
        connection = connect()
        tx = store.bind(connection)
        with pytest.raises(StaleFence):
            tx.apply([Put("x", b"v", guard=Guard(QUEUE, "none", 1))])
        with pytest.raises(StaleFence):
            tx.apply([Put("k", b"w", expected=9)])
        connection.rollback()
        connection.close()
        assert store.state("k") == State(b"v", 1)

    def test_the_store_goes_on_after_the_commit(self, store: Store, connect: Connect) -> None:
        for number in range(3):
            connection = connect()
            store.bind(connection).apply([Enqueue("outbox/app", f"o{number}", message("o"))])
            connection.commit()
            connection.close()
            append(store, f"m{number}")
        assert identities(claim(store, 10, queue="outbox/app")) == ["o0", "o1", "o2"]
