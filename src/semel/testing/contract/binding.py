"""Writes inside the user's own transaction: there when the user commits, gone when the user rolls back."""

from __future__ import annotations

import msgspec
import pytest

from semel.errors import InputError, LocalProtocolError, StaleFence, StoreRefused
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.lease import Guard
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import (
    Advance,
    Advanced,
    Append,
    Attempts,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Op,
    Put,
    PutBlob,
    Remember,
    Result,
    Trim,
    WorkState,
)
from semel.kernel.store import State, Store
from semel.testing.contract.base import (
    DAY_US,
    HOP,
    QUEUE,
    STREAM,
    Connect,
    StoreSuite,
    Time,
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
from semel.testing.contract.bodies import sweep_all

ENDS = [
    Finish(QUEUE, "", WorkState.DONE),
    Finish(QUEUE, "", WorkState.DEAD, cause="poison"),
    Finish(QUEUE, "", WorkState.DEAD, holds=True),
    Finish(QUEUE, "", WorkState.PARKED, cause="wait for a human"),
    Finish(QUEUE, "", WorkState.PARKED, holds=True),
    Finish(QUEUE, "", WorkState.SCHEDULED, delay_s=3600.0, cause="later"),
    Finish(QUEUE, "", WorkState.SCHEDULED, due=0),
    Finish(QUEUE, "", WorkState.DEFERRED),
    Finish(QUEUE, "", WorkState.READY),
    Finish(QUEUE, "", WorkState.DEAD, keep_s=None),
    Finish(QUEUE, "", WorkState.SCHEDULED, delay_s=3600.0, passes=True),
    Finish(QUEUE, "", WorkState.SCHEDULED, due=0, passes=True),
    Finish(QUEUE, "", WorkState.SCHEDULED, due=0, passes=True, holds=True),
    Finish(QUEUE, "", WorkState.READY, attempts=Attempts.RESET),
    Finish(QUEUE, "", WorkState.SCHEDULED, due=0, attempts=Attempts.RELEASE),
]
"""With the queue, the identity and the fence still to come."""


def apply_and_commit(store: Store, connect: Connect, *ops: Op) -> tuple[Result, ...]:
    """In a transaction of the user's that does nothing else."""
    connection = connect()
    results = store.bind(connection).apply(ops)
    connection.commit()
    connection.close()
    return results


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

    @pytest.mark.parametrize(
        "op",
        [Append(STREAM, message("m")), Trim(STREAM, 1), Enqueue(QUEUE, "m", message("m"), log=STREAM)],
    )
    def test_the_head_of_a_stream_is_never_held(self, store: Store, connect: Connect, op: Op) -> None:
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

    # -- connections

    def test_a_connection_that_would_lose_what_is_written_is_refused(
        self, store: Store, lossy_connections: dict[str, Connect]
    ) -> None:
        enqueue(store, "w")
        finish = Finish(QUEUE, "w", WorkState.DONE, fence=claim_one(store).fence)
        for what, connect in lossy_connections.items():
            for op in (Enqueue(QUEUE, what, message("m")), Log(logged(Kind.HANDLED, what)), Put(what, b"v"), finish):
                connection = connect()
                with pytest.raises(InputError) as refused:
                    store.bind(connection).apply([op])
                assert refused.value.fix, what
                connection.close()
            assert (store.work(QUEUE, what), store.state(what)) == (None, None)
        assert events(store) == []
        commit(store, finish)

    def test_factories_of_the_users_own_do_not_matter(self, store: Store, odd_connections: dict[str, Connect]) -> None:
        for what, connect in odd_connections.items():
            enqueue(store, what, key="k")
            finish = Finish(QUEUE, what, WorkState.DONE, fence=claim_one(store).fence)
            add = Enqueue("outbox/app", what, message(what, data=b"\x00\xff"), key="k")
            assert isinstance(apply_and_commit(store, connect, finish, add, Put(what, b"v"))[1], Fresh)
            assert isinstance(apply_and_commit(store, connect, add)[0], Duplicate)
            assert store.state(what) == State(b"v", 1)
            row = store.work("outbox/app", what)
            assert row is not None
            assert row.envelope.data == b"\x00\xff"

    # -- what ends a handler: finish, log, enqueue

    @pytest.mark.parametrize("end", ENDS, ids=lambda end: f"{end.to.name.lower()}{'-holds' * end.holds}")
    @pytest.mark.parametrize("key", [None, "k"])
    @pytest.mark.parametrize("others", [0, 1])
    def test_a_row_ends_as_it_does_in_a_commit(
        self, store: Store, connect: Connect, time: Time, end: Finish, key: str | None, others: int
    ) -> None:
        """The second row of each queue shows whether the first one still holds the key, a sweep how long it stays."""
        found = []
        enqueue(store, *(f"other{number}" for number in range(others)))
        more = [Finish(QUEUE, row.identity, WorkState.DONE, row.fence) for row in claim(store, 1)]
        assert len(more) == others
        for queue in ("inbox/bound", "inbox/committed"):
            sent = message("m", data=b"body", headers={"h": "v"})
            commit(store, *(Enqueue(queue, identity, sent, key=key) for identity in ("w", "next")))
            claim_one(store, queue=queue, lease_s=0.0)
            row = claim_one(store, queue=queue, identity="w")
            assert row.attempts == 2
            finish = msgspec.structs.replace(end, queue=queue, identity="w", fence=row.fence)
            before = time.now()
            if queue == "inbox/bound":
                assert apply_and_commit(store, connect, finish, *more) == (Advanced(),) * (others + 1)
            else:
                commit(store, finish)
            ended = store.work(queue, "w")
            assert ended is not None
            delay_s = round((ended.due - before) / 1e6, -2) if ended.due else None
            next_ones = identities(claim(store, 10, queue=queue, per_key=10))
            sweep_all(store, time.now() + 30 * DAY_US)
            stays = store.work(queue, "w") is not None
            found.append(
                (ended.state, ended.attempts, ended.cause, ended.key, ended.envelope, delay_s, next_ones, stays)
            )
        assert found[0] == found[1]

    def test_many_rows_end_together(self, store: Store, connect: Connect) -> None:
        enqueue(store, "c", "a", "b", "d")
        rows = claim(store, 4)
        ends = [WorkState.DONE, WorkState.DEAD, WorkState.PARKED, WorkState.READY]
        finishes = [Finish(QUEUE, row.identity, to, row.fence) for row, to in zip(rows, ends, strict=True)]
        logs = [Log(logged(Kind.HANDLED, row.identity)) for row in rows]
        apply_and_commit(store, connect, *finishes, *logs)
        found = [store.work(QUEUE, row.identity) for row in rows]
        assert [row.state for row in found if row is not None] == ends
        assert [event.message for event in events(store)] == [row.identity for row in rows]

    @pytest.mark.parametrize("others", [0, 2])
    def test_one_stale_fence_refuses_all_and_the_transaction_goes_on(
        self, store: Store, connect: Connect, others: int
    ) -> None:
        """Also when the user catches the error and commits all the same."""
        enqueue(store, "stale", *(f"w{number}" for number in range(others)))
        stale = claim_one(store, lease_s=0.0)
        rows = claim(store, others + 1)
        finishes = [Finish(QUEUE, row.identity, WorkState.DONE, row.fence) for row in rows if row.identity != "stale"]
        refused = Finish(QUEUE, "stale", WorkState.DONE, stale.fence)
        told = Enqueue("outbox/app", "o", message("o"), key="k", on_fresh=logged(Kind.SENT, "o"))
        connection = connect()
        tx = store.bind(connection)
        with pytest.raises(StaleFence):
            tx.apply([*finishes, refused, told, Log(logged(Kind.HANDLED, "stale"))])
        assert isinstance(tx.apply([Enqueue("outbox/app", "other", message("m"))])[0], Fresh)
        connection.commit()
        connection.close()
        assert store.work("outbox/app", "o") is None
        assert store.work("outbox/app", "other") is not None
        for row in rows:
            found = store.work(QUEUE, row.identity)
            assert found is not None
            assert (found.state, found.fence) == (WorkState.CLAIMED, row.fence)
        assert events(store) == []

    @pytest.mark.parametrize(
        "missing", [Finish(QUEUE, "none", WorkState.DONE, 7), Finish(QUEUE, "w", WorkState.DONE, 7)]
    )
    def test_a_row_that_is_gone_or_not_claimed_is_stale(self, store: Store, connect: Connect, missing: Finish) -> None:
        enqueue(store, "w")
        connection = connect()
        with pytest.raises(StaleFence):
            store.bind(connection).apply([missing, Log(logged(Kind.HANDLED, "w"))])
        connection.commit()
        connection.close()
        assert events(store) == []
        claim_one(store)

    def test_each_enqueue_has_its_verdict(self, store: Store, connect: Connect) -> None:
        enqueue(store, "old")
        ops = [Enqueue(QUEUE, id, message(id)) for id in ("b", "old", "a", "b")]
        connection = connect()
        tx = store.bind(connection)
        b, old, a, again = tx.apply(ops)
        assert isinstance(b, Fresh)
        assert isinstance(a, Fresh)
        assert isinstance(old, Duplicate)
        assert again == Duplicate(b.position, state=WorkState.READY)
        assert old.state is WorkState.READY
        assert old.position.offset < b.position.offset < a.position.offset
        assert [result.position for result in tx.apply(ops) if isinstance(result, Duplicate)] == [
            b.position, old.position, a.position, b.position,
        ]  # fmt: skip
        connection.commit()
        connection.close()
        assert identities(claim(store, 10)) == ["old", "b", "a"]

    # -- identities

    def test_what_is_remembered_is_done_and_has_a_result(self, store: Store, connect: Connect, time: Time) -> None:
        op = Remember(QUEUE, "a", keep_s=1000.0, result=b"\x00the answer")
        first, other = apply_and_commit(store, connect, op, Enqueue(QUEUE, "b", message("b", data=b"body")))
        assert isinstance(first, Fresh)
        assert isinstance(other, Fresh)
        row = store.work(QUEUE, "a")
        assert row is not None
        assert (row.state, row.key, row.attempts, row.envelope) == (WorkState.DONE, None, 0, Envelope(id="a"))
        assert [row.envelope.data for row in claim(store, 10)] == [b"body"]
        known = Duplicate(first.position, state=WorkState.DONE, result=b"\x00the answer")
        assert commit(store, op)[0] == known
        now = time.now()
        for _ in ("a row", "what a sweep leaves of it"):
            again: list[Op] = [Enqueue(QUEUE, "a", message("a"), key="k"), Remember(QUEUE, "a", result=b"another")]
            assert apply_and_commit(store, connect, *again) == (known, known)
            assert sweep_all(store, now + 900 * 1_000_000).work == 0
        assert sweep_all(store, now + 1100 * 1_000_000).work == 1
        assert isinstance(apply_and_commit(store, connect, op)[0], Fresh)

    def test_an_empty_result_and_none(self, store: Store, connect: Connect) -> None:
        ops: list[Op] = [Remember(QUEUE, "a"), Enqueue(QUEUE, "b", message("b"))]
        apply_and_commit(store, connect, *ops)
        found = apply_and_commit(store, connect, *ops)
        assert [each.result for each in found if isinstance(each, Duplicate)] == [b"", None]

    def test_of_two_alike_in_one_call_the_first_counts(self, store: Store, connect: Connect) -> None:
        new, late = Enqueue(QUEUE, "a", message("a"), scope="s"), Remember(QUEUE, "a", scope="s", result=b"r")
        first, again = apply_and_commit(store, connect, new, late)
        assert isinstance(first, Fresh)
        assert again == Duplicate(first.position, state=WorkState.READY)
        later = [msgspec.structs.replace(op, identity="b") for op in (late, new)]
        first, again = apply_and_commit(store, connect, *later)
        assert isinstance(first, Fresh)
        assert again == Duplicate(first.position, state=WorkState.DONE, result=b"r")

    def test_a_duplicate_of_what_the_same_call_finishes(self, store: Store, connect: Connect) -> None:
        enqueue(store, "a", "b")
        rows = claim(store, 2)
        ends = [WorkState.DONE, WorkState.PARKED]
        finishes = [Finish(QUEUE, row.identity, to, row.fence) for row, to in zip(rows, ends, strict=True)]
        copies: list[Op] = [Enqueue(QUEUE, "a", message("a")), Remember(QUEUE, "b")]
        found = apply_and_commit(store, connect, *finishes, *copies)[2:]
        assert [each.state for each in found if isinstance(each, Duplicate)] == ends

    @pytest.mark.parametrize("scopes", [("x", "y"), ("x", None), (None, "x")])
    @pytest.mark.parametrize("is_swept", [False, True])
    def test_an_identity_has_one_scope_in_a_queue_also_for_a_user(
        self, store: Store, connect: Connect, time: Time, scopes: tuple[str | None, str | None], *, is_swept: bool
    ) -> None:
        commit(store, Remember(QUEUE, "a", scope=scopes[0]))
        if is_swept:
            assert sweep_all(store, time.now()).moved == 1
        connection = connect()
        tx = store.bind(connection)
        with pytest.raises(StoreRefused, match="'a' of another scope"):
            tx.apply([Remember(QUEUE, "a", scope=scopes[1]), Log(logged(Kind.HANDLED, "a"))])
        assert isinstance(tx.apply([Remember("inbox/other", "a", scope=scopes[1])])[0], Fresh)
        connection.commit()
        connection.close()
        assert events(store) == []

    def test_a_bare_identity_of_a_scope_is_known_in_each_queue(
        self, store: Store, connect: Connect, time: Time
    ) -> None:
        first = commit(store, Remember(QUEUE, "a", scope="all", result=b"r"))[0]
        assert isinstance(first, Fresh)
        assert sweep_all(store, time.now()).moved == 1
        found = apply_and_commit(store, connect, Enqueue("inbox/other", "a", message("a"), scope="all"))[0]
        assert found == Duplicate(first.position, state=WorkState.DONE, result=b"r")
        assert isinstance(apply_and_commit(store, connect, Enqueue("inbox/other", "a", message("a")))[0], Fresh)

    def test_fresh_work_in_a_users_transaction_may_tell_several_things(self, store: Store, connect: Connect) -> None:
        told = (Event(Kind.ACCEPTED, HOP), logged(Kind.HANDLED, "a"))
        op = Remember(QUEUE, "a", on_fresh=told, on_duplicate=Event(Kind.DUPLICATE, HOP))
        apply_and_commit(store, connect, op, Enqueue(QUEUE, "b", message("b"), on_fresh=told[:1]), op)
        apply_and_commit(store, connect, op)
        assert [(event.kind, event.message) for event in events(store)] == [
            (Kind.ACCEPTED, "a"),
            (Kind.HANDLED, "a"),
            (Kind.ACCEPTED, "b"),
            (Kind.DUPLICATE, "a"),
            (Kind.DUPLICATE, "a"),
        ]

    def test_the_ledger_tells_of_each_verdict(self, store: Store, connect: Connect) -> None:
        fresh, again = Event(Kind.ACCEPTED, HOP, pipeline="p"), Event(Kind.DUPLICATE, HOP, pipeline="p")
        sent = message("m", session="s", index=3)
        op = Enqueue(QUEUE, "m", sent, on_fresh=fresh, on_duplicate=again)
        apply_and_commit(store, connect, op, Log(logged(Kind.SENT, "x")), op)
        apply_and_commit(store, connect, op)
        expected = [
            Event(kind, HOP, "p", "m", None, "s", 3) for kind in (Kind.ACCEPTED, Kind.DUPLICATE, Kind.DUPLICATE)
        ]
        assert events(store) == [Event(Kind.SENT, HOP, message="x", session="x"), *expected]

    def test_an_event_keeps_every_field(self, store: Store, connect: Connect) -> None:
        event = Event(
            Kind.REJECTED, HOP, "p", None, "d", "s", 2**53 - 1, "peer", "hub/x", 7, 1, 2**53 - 1, 5, -(2**63), 3,
            'cause "with" \\ ümlaut\n%s $1', "trace",
        )  # fmt: skip
        apply_and_commit(store, connect, Log(event))
        assert events(store) == [event]

    def test_an_envelope_keeps_every_field(self, store: Store, connect: Connect) -> None:
        envelopes = [
            Envelope(
                id="a", source="s", type="t", data=b"\x00\xff'\\", session="n", index=7, time=9, subject="%s",
                datacontenttype="text/plain", headers={"h": "ü\\u0041 $1 %(x)s"},
            ),
            Envelope(id="b"),
            Envelope(id="c", data=b"x" * 70_000),
        ]  # fmt: skip
        apply_and_commit(store, connect, *(Enqueue(QUEUE, each.id, each) for each in envelopes))
        assert [row.envelope for row in claim(store, 10)] == envelopes

    def test_rows_of_a_key_are_claimed_in_the_order_given(self, store: Store, connect: Connect) -> None:
        enqueue(store, "first", key="k")
        row = claim_one(store)
        finish = Finish(QUEUE, "first", WorkState.DONE, row.fence)
        apply_and_commit(store, connect, finish, *(Enqueue(QUEUE, id, message(id), key="k") for id in ("z", "a", "m")))
        assert identities(claim(store, 10, per_key=10)) == ["z", "a", "m"]

    def test_what_is_due_later_waits(self, store: Store, connect: Connect, time: Time) -> None:
        later = time.now() + DAY_US
        ops = [Enqueue(QUEUE, f"{key}", message("m"), key=key, due=later) for key in (None, "k")]
        apply_and_commit(store, connect, *ops, Enqueue(QUEUE, "now", message("m"), key="k", due=0))
        assert identities(claim(store, 10)) == ["now"]
        row = store.work(QUEUE, "k")
        assert row is not None
        assert (row.state, row.due) == (WorkState.SCHEDULED, later)

    def test_a_scope_is_one_for_several_queues(self, store: Store, connect: Connect) -> None:
        first = apply_and_commit(store, connect, Enqueue("inbox/a", "m", message("m"), scope="app"))[0]
        assert isinstance(first, Fresh)
        second = apply_and_commit(store, connect, Enqueue("inbox/b", "m", message("m"), scope="app"))[0]
        assert second == Duplicate(first.position, state=WorkState.READY)

    def test_another_scope_of_the_same_row_is_refused_with_the_whole_call(self, store: Store, connect: Connect) -> None:
        enqueue(store, "m", "w")
        row = claim_one(store, identity="w")
        connection = connect()
        tx = store.bind(connection)
        with pytest.raises(StoreRefused, match="'m' of another scope"):
            tx.apply([Finish(QUEUE, "w", WorkState.DONE, row.fence), Enqueue(QUEUE, "m", message("m"), scope="app")])
        tx.apply([Log(logged(Kind.HANDLED, "w"))])
        connection.commit()
        connection.close()
        found = store.work(QUEUE, "w")
        assert found is not None
        assert found.state is WorkState.CLAIMED
        assert [event.message for event in events(store)] == ["w"]

    @pytest.mark.parametrize("count", [1, 2])
    def test_the_body_of_a_row_that_is_done_goes_with_the_last_that_names_it(
        self, store: Store, connect: Connect, time: Time, count: int
    ) -> None:
        commit(store, PutBlob("body", 0, b"abc"))
        for number in range(count):
            commit(store, Enqueue(QUEUE, f"w{number}", Envelope(id="m", blob=Blob("body", 3))))
        rows = claim(store, count)
        store.sweep(time.now() + DAY_US)
        assert b"".join(store.body("body")) == b"abc"
        apply_and_commit(store, connect, *(Finish(QUEUE, row.identity, WorkState.DONE, row.fence) for row in rows))
        assert store.sweep(time.now() + DAY_US).blobs == 1

    def test_who_does_not_wait_is_answered_alike_when_nobody_is_in_the_way(
        self, store: Store, connect: Connect
    ) -> None:
        connection = connect()
        tx = store.bind(connection)
        assert isinstance(tx.apply([Enqueue(QUEUE, "w", message("w"))], wait=False)[0], Fresh)
        assert isinstance(tx.apply([Enqueue(QUEUE, "w", message("w"))], wait=False)[0], Duplicate)
        connection.commit()
        connection.close()
        assert identities(claim(store)) == ["w"]
