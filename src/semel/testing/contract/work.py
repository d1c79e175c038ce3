"""Work queues: who may claim what and when, leases and fences, order per key, timers that are set again."""

from __future__ import annotations

from threading import Event

import pytest

from semel.errors import LocalProtocolError, StoreRefused
from semel.kernel.envelope import Envelope
from semel.kernel.ops import (
    Append,
    Attempts,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Put,
    Renew,
    Stale,
    Unit,
    WorkRow,
    WorkState,
)
from semel.kernel.position import Position
from semel.kernel.store import Records, Store
from semel.testing.contract.base import (
    LONG_S,
    QUEUE,
    StoreSuite,
    Time,
    claim,
    claim_one,
    commit,
    commit_refused,
    enqueue,
    identities,
    message,
)
from semel.testing.limits import scaled


def finish(store: Store, row: WorkRow, to: WorkState = WorkState.DONE, **more: object) -> None:
    """Finish a claimed row under its fence; it must land."""
    commit(store, Finish(row.queue, row.identity, to, fence=row.fence, **more))  # type: ignore[arg-type]


def put_aside(store: Store, id: str, to: WorkState, **more: object) -> None:
    """Bring an unclaimed row into a state."""
    commit(store, Finish(QUEUE, id, to, **more))  # type: ignore[arg-type]


def state_of(store: Store, id: str) -> WorkState:
    row = store.work(QUEUE, id)
    assert row is not None
    return row.state


def _logged(store: Store) -> list[tuple[int, str, bytes]]:
    found = store.read("orders/log")
    assert isinstance(found, Records)
    return [(record.position.offset, record.envelope.id, record.envelope.data) for record in found.records]


class EnqueueSuite(StoreSuite):
    """A work row exists once within its scope, whatever has become of the first one."""

    def test_a_row_that_does_not_exist(self, store: Store) -> None:
        assert store.work(QUEUE, "a") is None

    def test_a_new_row_is_ready(self, store: Store, time: Time) -> None:
        envelope = message("m", data=b"body", session="s", index=3, headers={"h": "1"})
        commit(store, Enqueue(QUEUE, "a", envelope, key="k"))
        row = store.work(QUEUE, "a")
        assert row is not None
        assert row.envelope == envelope
        assert (row.queue, row.identity, row.key) == (QUEUE, "a", "k")
        assert (row.state, row.attempts, row.owner, row.cause) == (WorkState.READY, 0, "", None)
        assert row.due <= time.now()

    def test_a_second_enqueue_answers_with_the_first_position(self, store: Store) -> None:
        first = commit(store, Enqueue(QUEUE, "a", message("a", data=b"1")))[0]
        assert isinstance(first, Fresh)
        again = commit(store, Enqueue(QUEUE, "a", message("a", data=b"2")))[0]
        assert again == Duplicate(first.position, state=WorkState.READY)
        assert claim_one(store).envelope.data == b"1"
        assert claim(store) == []

    def test_a_new_row_with_a_log_is_a_record_too_and_a_duplicate_is_none(self, store: Store) -> None:
        """The verdict over the row decides, not a memory of the stream's own."""
        op = Enqueue(QUEUE, "a", message("a", data=b"1"), log="orders/log")
        store.commit([Unit((op, op)), Unit((op, Enqueue(QUEUE, "b", message("b"), log="orders/log")))])
        commit(store, op)
        assert _logged(store) == [(1, "a", b"1"), (2, "b", b"")]
        commit(store, Enqueue(QUEUE, "a", message("a", data=b"2"), replace=True, log="orders/log"))
        assert len(_logged(store)) == 2, "set again, it is the same row"

    def test_the_log_of_a_refused_unit_is_not_written(self, store: Store) -> None:
        commit_refused(
            store,
            Enqueue(QUEUE, "a", message("a"), log="orders/log"),
            Put("key", b"1", expected=7),
        )
        commit(store, Enqueue(QUEUE, "a", message("a"), log="orders/log"), Append("orders/log", message("own")))
        assert [id for _, id, _ in _logged(store)] == ["own", "a"]

    def test_duplicates_within_one_unit_and_across_units(self, store: Store) -> None:
        op = Enqueue(QUEUE, "a", message("a"))
        outcomes = store.commit([Unit((op, op)), Unit((op,))])
        kinds = [type(result) for outcome in outcomes for result in outcome.results]
        assert kinds == [Fresh, Duplicate, Duplicate]
        assert identities(claim(store, 10)) == ["a"]

    def test_queues_do_not_share_identities(self, store: Store) -> None:
        enqueue(store, "a")
        enqueue(store, "a", queue="inbox/other")
        assert len(claim(store, 10)) == 1

    def test_a_scope_reaches_across_queues(self, store: Store) -> None:
        first = commit(store, Enqueue("inbox/one", "a", message("a"), scope="all"))[0]
        again = commit(store, Enqueue("inbox/two", "a", message("a"), scope="all"))[0]
        assert isinstance(first, Fresh)
        assert again == Duplicate(first.position, state=WorkState.READY)
        assert first.position.stream == "inbox/one"
        assert store.work("inbox/two", "a") is None

    def test_a_scope_reaches_across_queues_within_one_unit(self, store: Store) -> None:
        ops = [Enqueue(queue, "a", message("a"), scope="all") for queue in ("inbox/one", "inbox/two")]
        assert [type(result) for result in commit(store, *ops)] == [Fresh, Duplicate]

    def test_scopes_do_not_share_identities(self, store: Store) -> None:
        commit(store, Enqueue("inbox/one", "a", message("a"), scope="x"))
        assert isinstance(commit(store, Enqueue("inbox/two", "a", message("a"), scope="y"))[0], Fresh)

    @pytest.mark.parametrize("scopes", [("x", "y"), ("x", None), (None, "x")])
    @pytest.mark.parametrize("together", [True, False])
    def test_an_identity_has_one_scope_in_a_queue(
        self, store: Store, scopes: tuple[str | None, str | None], together: bool
    ) -> None:
        """Whoever finishes a row names it by queue and identity: a second one of that name could not be told apart."""
        first, second = (Unit((Enqueue(QUEUE, "a", message("a"), scope=scope, replace=True),)) for scope in scopes)
        beside = Unit((Enqueue(QUEUE, "beside", message("beside")),))
        if not together:
            store.commit([first])
        with pytest.raises(StoreRefused, match="inbox/contract has a row 'a' of another scope"):
            store.commit([beside, first, second])
        assert identities(claim(store, 10)) == ([] if together else ["a"])

    @pytest.mark.parametrize("is_own_first", [True, False])
    def test_a_scope_with_the_name_of_a_queue_is_that_queues_own(self, store: Store, is_own_first: bool) -> None:
        ops = [Enqueue(QUEUE, "a", message("a")), Enqueue("inbox/other", "a", message("a"), scope=QUEUE)]
        first, second = ops if is_own_first else ops[::-1]
        fresh = commit(store, first)[0]
        assert isinstance(fresh, Fresh)
        assert fresh.position.stream == first.queue
        assert commit(store, second) == (Duplicate(fresh.position, state=WorkState.READY),)
        assert store.work(second.queue, "a") is None

    def test_an_identity_known_in_its_scope_is_a_duplicate_wherever_it_is_sent(self, store: Store) -> None:
        """The row of another scope is in nobody's way: nothing new would come to stand beside it."""
        enqueue(store, "a")
        first = commit(store, Enqueue("inbox/other", "a", message("a"), scope="x"))[0]
        assert isinstance(first, Fresh)
        again = commit(store, Enqueue(QUEUE, "a", message("a"), scope="x"))
        assert again == (Duplicate(first.position, state=WorkState.READY),)

    @pytest.mark.parametrize("state", [state for state in WorkState if state is not WorkState.CLAIMED])
    def test_an_identity_is_remembered_in_every_state(self, store: Store, state: WorkState) -> None:
        """The state is no part of the identity: a second copy of a finished message is still a second copy."""
        enqueue(store, "a")
        put_aside(store, "a", state)
        again = commit(store, Enqueue(QUEUE, "a", message("a")))[0]
        assert isinstance(again, Duplicate)
        assert (again.state, again.result) == (state, None)
        assert state_of(store, "a") is state

    def test_an_identity_is_remembered_while_it_is_claimed(self, store: Store) -> None:
        enqueue(store, "a")
        claim_one(store)
        again = commit(store, Enqueue(QUEUE, "a", message("a")))[0]
        assert isinstance(again, Duplicate)
        assert again.state is WorkState.CLAIMED
        assert claim(store) == []

    def test_a_claim_sees_what_its_own_unit_enqueued(self, store: Store) -> None:
        results = commit(store, Enqueue(QUEUE, "a", message("a")), Claim(QUEUE, "w"))
        assert isinstance(results[1], Claimed)
        assert identities(results[1].rows) == ["a"]

    def test_the_status_counts_rows_by_state(self, store: Store) -> None:
        enqueue(store, "a", "b", "c")
        claim_one(store)
        put_aside(store, "c", WorkState.PARKED)
        assert store.status().work[QUEUE] == {"claimed": 1, "ready": 1, "parked": 1}


class ClaimSuite(StoreSuite):
    """Claims: first come first served, one owner at a time, by the store's clock."""

    def test_an_empty_queue(self, store: Store) -> None:
        assert claim(store) == []

    def test_rows_are_claimed_in_the_order_of_their_enqueueing(self, store: Store) -> None:
        enqueue(store, "c", "a")
        enqueue(store, "b")
        assert identities(claim(store, 2)) == ["c", "a"]
        assert identities(claim(store, 2)) == ["b"]

    def test_a_claimed_row_knows_its_owner(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        row = claim_one(store, owner="worker 7", lease_s=LONG_S)
        assert (row.state, row.owner, row.attempts) == (WorkState.CLAIMED, "worker 7", 1)
        assert row.fence > 0
        assert abs(row.due - time.now() - LONG_S * 1_000_000) < 60_000_000
        assert store.work(QUEUE, "a") == row

    def test_a_claimed_row_is_not_claimed_again(self, store: Store) -> None:
        enqueue(store, "a")
        claim_one(store)
        assert claim(store, 10) == []

    def test_queues_do_not_mix(self, store: Store) -> None:
        enqueue(store, "a", queue="inbox/other")
        assert claim(store, 10) == []

    def test_two_claims_in_one_commit_get_different_rows(self, store: Store) -> None:
        enqueue(store, "a", "b", "c")
        results = commit(store, Claim(QUEUE, "x", limit=2), Claim(QUEUE, "y", limit=2))
        assert [identities(result.rows) for result in results if isinstance(result, Claimed)] == [["a", "b"], ["c"]]

    def test_every_claim_gets_a_higher_fence(self, store: Store, time: Time) -> None:
        enqueue(store, "a", "b")
        fences = []
        for _ in range(3):
            fences += [claim_one(store, lease_s=0.0, identity=id).fence for id in ("a", "b")]
        assert fences == sorted(set(fences))

    def test_an_expired_lease_is_taken_over(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        first = claim_one(store, owner="one", lease_s=time.short_s)
        time.outlast_short()
        second = claim_one(store, owner="two")
        assert (second.owner, second.attempts) == ("two", 2)
        assert second.fence > first.fence

    @pytest.mark.parametrize("key", [None, "k"])
    @pytest.mark.parametrize("identity", [None, "a"])
    def test_a_claim_says_what_it_took_over(
        self, store: Store, time: Time, key: str | None, identity: str | None
    ) -> None:
        """Only a lease that expired: not one that was given back, and not the row beside it."""
        enqueue(store, "a", key=key)
        row = claim_one(store)
        commit(store, Finish(QUEUE, "a", WorkState.READY, fence=row.fence))
        again = claim_one(store, lease_s=time.short_s)
        time.outlast_short()
        enqueue(store, "b", key="other")
        found = claim(store, 10, identity=identity)
        assert [row.taken_over, again.taken_over] == [False, False]
        assert {each.identity: each.taken_over for each in found} == ({"a": True} | ({} if identity else {"b": False}))
        kept = store.work(QUEUE, "a")
        assert kept is not None
        assert not kept.taken_over

    def test_the_former_owner_can_do_nothing_any_more(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        first = claim_one(store, lease_s=time.short_s)
        time.outlast_short()
        second = claim_one(store)
        for op in (Finish(QUEUE, "a", WorkState.DONE, fence=first.fence), Renew(QUEUE, "a", first.fence)):
            assert commit_refused(store, op) == (Stale(second.fence),)
        finish(store, second)

    def test_an_expired_lease_that_nobody_took_still_counts(self, store: Store, time: Time) -> None:
        """Expiry decides who may take over, never whether a write is allowed: the fence decides that."""
        enqueue(store, "a")
        row = claim_one(store, lease_s=time.short_s)
        time.outlast_short()
        finish(store, row)
        assert claim(store) == []

    def test_renew_extends_the_lease(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        row = claim_one(store, lease_s=time.short_s)
        commit(store, Renew(QUEUE, "a", row.fence, lease_s=LONG_S))
        time.outlast_short()
        assert claim(store) == []
        finish(store, row)

    def test_a_renewed_lease_ends_too(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        row = claim_one(store, lease_s=LONG_S)
        commit(store, Renew(QUEUE, "a", row.fence, lease_s=time.short_s))
        time.outlast_short()
        assert claim_one(store).attempts == 2

    def test_a_renewal_may_write_a_cause_which_the_next_claim_sees(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        row = claim_one(store, lease_s=LONG_S)
        commit(store, Renew(QUEUE, "a", row.fence, cause="runs alone"))
        commit(store, Renew(QUEUE, "a", row.fence, lease_s=time.short_s))
        time.outlast_short()
        again = claim_one(store)
        assert (again.cause, again.taken_over, again.attempts) == ("runs alone", True, 2)

    def test_renewing_what_is_not_claimed(self, store: Store) -> None:
        enqueue(store, "a")
        assert commit_refused(store, Renew(QUEUE, "a", 0)) == (Stale(0),)
        assert commit_refused(store, Renew(QUEUE, "none", 1)) == (Stale(0),)

    def test_claim_by_identity(self, store: Store) -> None:
        enqueue(store, "a", "b", "c")
        assert claim_one(store, identity="b").identity == "b"
        assert claim(store, identity="b") == []
        assert claim(store, identity="none") == []
        assert identities(claim(store, 10)) == ["a", "c"]

    def test_scheduled_rows_wait_until_they_are_due(self, store: Store, time: Time) -> None:
        now = time.now()
        far = Enqueue(QUEUE, "far", message("far"), due=now + int(LONG_S * 1_000_000))
        commit(store, far, Enqueue(QUEUE, "near", message("near"), due=now + int(time.short_s * 1_000_000)))
        assert state_of(store, "far") is WorkState.SCHEDULED
        time.outlast_short()
        assert identities(claim(store, 10)) == ["near"]
        assert claim(store, identity="far") == []

    def test_a_due_time_in_the_past_is_now(self, store: Store, time: Time) -> None:
        commit(store, Enqueue(QUEUE, "a", message("a"), due=time.now() - 1_000_000))
        assert state_of(store, "a") is WorkState.READY
        claim_one(store)

    def test_due_rows_come_in_the_order_in_which_they_fall_due(self, store: Store, time: Time) -> None:
        now, step = time.now(), int(time.short_s * 1_000_000) // 4
        commit(store, *(Enqueue(QUEUE, f"t{n}", message("t"), due=now + n * step) for n in (3, 1, 2)))
        time.outlast_short()
        assert identities(claim(store, 10)) == ["t1", "t2", "t3"]


class FinishSuite(StoreSuite):
    """Every way out of a claim, and the operator's ways without one."""

    def test_a_done_row_is_not_claimed_again(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        finish(store, claim_one(store, lease_s=time.short_s))
        time.outlast_short()
        assert claim(store) == []
        assert claim(store, identity="a") == []

    def test_done_drops_the_body_and_keeps_the_identity(self, store: Store) -> None:
        envelope = Envelope(id="m", source="s", type="t", session="k", data=b"body", headers={"h": "1"})
        commit(store, Enqueue(QUEUE, "a", envelope))
        finish(store, claim_one(store))
        row = store.work(QUEUE, "a")
        assert row is not None
        assert (row.envelope.id, row.envelope.type, row.envelope.session) == ("m", "t", "k")
        assert row.envelope.data == b""

    def test_dead_keeps_the_body_and_the_cause(self, store: Store) -> None:
        commit(store, Enqueue(QUEUE, "a", message("m", data=b"body")))
        finish(store, claim_one(store), WorkState.DEAD, cause="ValueError: no")
        row = store.work(QUEUE, "a")
        assert row is not None
        assert (row.state, row.cause, row.envelope.data) == (WorkState.DEAD, "ValueError: no", b"body")
        assert claim(store) == []

    def test_a_retry_comes_back_when_it_is_due(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        finish(store, claim_one(store), WorkState.SCHEDULED, due=time.now() + int(time.short_s * 1_000_000))
        time.outlast_short()
        row = claim_one(store)
        assert (row.identity, row.attempts) == ("a", 2)

    def test_a_retry_does_not_come_back_before_it_is_due(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        finish(store, claim_one(store), WorkState.SCHEDULED, due=time.now() + int(LONG_S * 1_000_000))
        assert claim(store) == []

    def test_a_delay_counts_from_the_stores_own_now(self, store: Store, time: Time) -> None:
        enqueue(store, "a", "b")
        finish(store, claim_one(store), WorkState.SCHEDULED, delay_s=LONG_S)
        finish(store, claim_one(store), WorkState.SCHEDULED, delay_s=time.short_s)
        assert claim(store) == []
        time.outlast_short()
        assert identities(claim(store, 10)) == ["b"]

    def test_a_row_handed_back_is_ready_at_once(self, store: Store) -> None:
        enqueue(store, "a")
        finish(store, claim_one(store), WorkState.READY)
        assert claim_one(store).attempts == 2

    def test_the_wrong_fence_finishes_nothing(self, store: Store) -> None:
        enqueue(store, "a")
        row = claim_one(store)
        for fence in (row.fence + 1, row.fence - 1, 0):
            assert commit_refused(store, Finish(QUEUE, "a", WorkState.DONE, fence=fence)) == (Stale(row.fence),)
        assert state_of(store, "a") is WorkState.CLAIMED

    def test_a_fence_finishes_once(self, store: Store) -> None:
        enqueue(store, "a")
        row = claim_one(store)
        finish(store, row, WorkState.READY)
        assert commit_refused(store, Finish(QUEUE, "a", WorkState.DONE, fence=row.fence)) == (Stale(0),)

    def test_a_claimed_row_cannot_be_finished_without_its_fence(self, store: Store) -> None:
        enqueue(store, "a")
        row = claim_one(store)
        assert commit_refused(store, Finish(QUEUE, "a", WorkState.DONE)) == (Stale(row.fence),)

    def test_an_operator_may_finish_an_unclaimed_row(self, store: Store) -> None:
        enqueue(store, "a")
        put_aside(store, "a", WorkState.DONE)
        assert claim(store) == []
        assert state_of(store, "a") is WorkState.DONE

    def test_what_is_done_is_not_ended_again(self, store: Store) -> None:
        """Whoever comes too late must not tell the ledger so."""
        enqueue(store, "w")
        commit(store, Finish(QUEUE, "w", WorkState.DONE))
        assert commit_refused(store, Finish(QUEUE, "w", WorkState.DONE)) == (Stale(0),)

    def test_who_decides_by_a_state_is_refused_when_it_has_changed(self, store: Store) -> None:
        enqueue(store, "a")
        put_aside(store, "a", WorkState.DEAD)
        put_aside(store, "a", WorkState.READY, was=WorkState.DEAD)
        replay = Finish(QUEUE, "a", WorkState.READY, was=WorkState.DEAD)
        assert commit_refused(store, replay) == (Stale(0),)
        put_aside(store, "a", WorkState.DONE)
        assert commit_refused(store, replay) == (Stale(0),)
        assert state_of(store, "a") is WorkState.DONE

    def test_finishing_what_does_not_exist(self, store: Store) -> None:
        assert commit_refused(store, Finish(QUEUE, "none", WorkState.DONE)) == (Stale(0),)
        assert commit_refused(store, Finish(QUEUE, "none", WorkState.DONE, fence=1)) == (Stale(0),)

    def test_a_replay_counts_anew(self, store: Store) -> None:
        enqueue(store, "a")
        finish(store, claim_one(store), WorkState.READY)
        finish(store, claim_one(store), WorkState.DEAD)
        put_aside(store, "a", WorkState.READY, attempts=Attempts.RESET)
        assert claim_one(store).attempts == 1

    def test_a_claim_given_back_unused_is_not_counted(self, store: Store) -> None:
        enqueue(store, "a")
        finish(store, claim_one(store), WorkState.READY)
        finish(store, claim_one(store), WorkState.READY, attempts=Attempts.RELEASE)
        assert claim_one(store).attempts == 2

    def test_attempts_are_counted_op_by_op(self, store: Store) -> None:
        enqueue(store, "a")
        row = claim_one(store)
        release = Finish(QUEUE, "a", WorkState.PARKED, fence=row.fence, attempts=Attempts.RELEASE)
        commit(store, release, Finish(QUEUE, "a", WorkState.READY))
        assert claim_one(store).attempts == 1

    @pytest.mark.parametrize("aside", [WorkState.PARKED, WorkState.DEFERRED])
    def test_what_is_put_aside_is_claimed_only_by_its_identity(self, store: Store, aside: WorkState) -> None:
        enqueue(store, "a")
        finish(store, claim_one(store), aside)
        assert claim(store, 10) == []
        assert claim_one(store, identity="a").attempts == 2

    def test_a_claim_may_leave_alone_what_is_parked(self, store: Store) -> None:
        enqueue(store, "a", "b")
        for id, aside in (("a", WorkState.PARKED), ("b", WorkState.DEFERRED)):
            finish(store, claim_one(store, identity=id), aside)
        assert claim(store, identity="a", parked=False) == []
        assert claim_one(store, identity="b", parked=False).identity == "b"
        assert claim_one(store, identity="a").identity == "a"

    @pytest.mark.parametrize("aside", [WorkState.PARKED, WorkState.DEFERRED, WorkState.DEAD])
    def test_what_is_put_aside_may_be_let_go_again(self, store: Store, aside: WorkState) -> None:
        commit(store, Enqueue(QUEUE, "a", message("a", data=b"body")))
        finish(store, claim_one(store), aside)
        put_aside(store, "a", WorkState.READY)
        assert claim_one(store).envelope.data == b"body"


class KeySuite(StoreSuite):
    """Rows of a key are claimed one after the other, in the order of their turn."""

    def test_one_of_a_key_at_a_time(self, store: Store) -> None:
        enqueue(store, "a1", "a2", key="a")
        enqueue(store, "b1", key="b")
        rows = claim(store, 10)
        assert identities(rows) == ["a1", "b1"]
        assert claim(store, 10) == []
        finish(store, rows[0])
        assert identities(claim(store, 10)) == ["a2"]

    def test_rows_without_a_key_do_not_wait_for_each_other(self, store: Store) -> None:
        enqueue(store, "a", "b")
        enqueue(store, "k1", "k2", key="k")
        assert identities(claim(store, 10)) == ["a", "b", "k1"]

    def test_the_limit_counts_rows_and_not_keys(self, store: Store) -> None:
        for key in "abc":
            enqueue(store, f"{key}1", f"{key}2", key=key)
        assert identities(claim(store, 2)) == ["a1", "b1"]
        assert identities(claim(store, 2)) == ["c1"]

    def test_keys_belong_to_their_queue(self, store: Store) -> None:
        enqueue(store, "a1", key="a")
        enqueue(store, "a2", key="a", queue="inbox/other")
        assert len(claim(store)) == 1
        assert len(claim(store, queue="inbox/other")) == 1

    def test_several_of_a_key_when_asked_for(self, store: Store) -> None:
        enqueue(store, "a1", "a2", "a3", key="a")
        rows = claim(store, 10, per_key=2)
        assert identities(rows) == ["a1", "a2"]
        assert claim(store, 10, per_key=2) == []
        finish(store, rows[0])
        assert claim(store, 10, per_key=2) == []
        finish(store, rows[1])
        assert identities(claim(store, 10, per_key=2)) == ["a3"]

    def test_several_of_a_key_within_the_limit(self, store: Store) -> None:
        enqueue(store, "a1", "a2", "a3", key="a")
        enqueue(store, "b1", key="b")
        assert identities(claim(store, 2, per_key=10)) == ["a1", "a2"]
        assert identities(claim(store, 10, per_key=10)) == ["b1"]

    def test_keys_are_filled_one_after_the_other_up_to_the_limit(self, store: Store) -> None:
        for key in "abcdef":
            enqueue(store, *(f"{key}{number}" for number in range(4)), key=key)
        assert identities(claim(store, 7, per_key=3)) == ["a0", "a1", "a2", "b0", "b1", "b2", "c0"]
        assert identities(claim(store, 7, per_key=3)) == ["d0", "d1", "d2", "e0", "e1", "e2", "f0"]

    def test_short_keys_do_not_keep_a_claim_from_its_limit(self, store: Store) -> None:
        for number in range(12):
            enqueue(store, f"a{number}", key=f"a{number:02}")
        enqueue(store, "b0", "b1", "b2", key="b")
        rows = claim(store, 14, per_key=5)
        assert identities(rows) == [*(f"a{number}" for number in range(12)), "b0", "b1"]

    def test_an_expired_claim_is_taken_over_before_what_follows_it(self, store: Store, time: Time) -> None:
        enqueue(store, "a1", "a2", key="a")
        claim_one(store, lease_s=time.short_s)
        time.outlast_short()
        assert identities(claim(store, 10)) == ["a1"]

    def test_a_retry_holds_its_key(self, store: Store, time: Time) -> None:
        enqueue(store, "a1", "a2", key="a")
        enqueue(store, "b1", key="b")
        finish(store, claim_one(store), WorkState.SCHEDULED, due=time.now() + int(LONG_S * 1_000_000))
        assert identities(claim(store, 10)) == ["b1"]

    def test_a_retry_that_is_due_goes_first(self, store: Store, time: Time) -> None:
        enqueue(store, "a1", "a2", key="a")
        finish(store, claim_one(store), WorkState.SCHEDULED, due=time.now() + int(time.short_s * 1_000_000))
        time.outlast_short()
        row = claim_one(store)
        assert row.identity == "a1"
        finish(store, row)
        assert claim_one(store).identity == "a2"

    def test_a_row_handed_back_goes_first(self, store: Store) -> None:
        enqueue(store, "a1", "a2", key="a")
        finish(store, claim_one(store), WorkState.READY)
        assert identities(claim(store, 10)) == ["a1"]

    @pytest.mark.parametrize("aside", [WorkState.PARKED, WorkState.DEFERRED, WorkState.DEAD])
    def test_a_row_put_aside_lets_the_next_pass(self, store: Store, aside: WorkState) -> None:
        enqueue(store, "a1", "a2", key="a")
        finish(store, claim_one(store), aside)
        assert identities(claim(store, 10)) == ["a2"]

    @pytest.mark.parametrize("aside", [WorkState.PARKED, WorkState.DEFERRED, WorkState.DEAD])
    def test_a_row_put_aside_may_hold_its_key(self, store: Store, aside: WorkState) -> None:
        enqueue(store, "a1", "a2", key="a")
        finish(store, claim_one(store), aside, holds=True)
        assert claim(store, 10) == []
        assert claim(store, 10, key="a") == []
        put_aside(store, "a1", WorkState.READY)
        assert identities(claim(store, 10)) == ["a1"]

    def test_a_held_key_is_free_when_the_row_is_done(self, store: Store) -> None:
        enqueue(store, "a1", "a2", key="a")
        finish(store, claim_one(store), WorkState.PARKED, holds=True)
        put_aside(store, "a1", WorkState.DONE)
        assert identities(claim(store, 10)) == ["a2"]

    def test_a_parked_row_let_go_takes_its_old_turn(self, store: Store) -> None:
        enqueue(store, "a1", "a2", "a3", key="a")
        finish(store, claim_one(store), WorkState.PARKED)
        finish(store, claim_one(store))
        put_aside(store, "a1", WorkState.READY)
        row = claim_one(store)
        assert row.identity == "a1"
        finish(store, row)
        assert identities(claim(store, 10)) == ["a3"]

    def test_a_deferred_row_is_claimed_while_its_key_goes_on(self, store: Store) -> None:
        enqueue(store, "a1", "a2", "a3", key="a")
        finish(store, claim_one(store), WorkState.DEFERRED)
        second = claim_one(store)
        assert second.identity == "a2"
        first = claim_one(store, identity="a1")
        finish(store, first)
        finish(store, second)
        assert claim_one(store).identity == "a3"

    def test_an_operator_may_put_a_waiting_row_aside(self, store: Store) -> None:
        enqueue(store, "a1", "a2", "a3", key="a")
        put_aside(store, "a1", WorkState.DEFERRED)
        put_aside(store, "a2", WorkState.DONE)
        assert identities(claim(store, 10)) == ["a3"]

    def test_a_scheduled_row_does_not_hold_its_key(self, store: Store, time: Time) -> None:
        commit(store, Enqueue(QUEUE, "a1", message("a1"), key="a", due=time.now() + int(LONG_S * 1_000_000)))
        enqueue(store, "a2", key="a")
        finish(store, claim_one(store))
        assert claim(store, 10) == []

    def test_a_scheduled_row_takes_its_turn_when_it_is_due(self, store: Store, time: Time) -> None:
        due = time.now() + int(time.soon_s * 1_000_000)
        commit(store, Enqueue(QUEUE, "a1", message("a1"), key="a", due=due))
        enqueue(store, "a2", key="a")
        time.advance(time.soon_s)
        row = claim_one(store)
        assert row.identity == "a2"
        enqueue(store, "a3", key="a")
        finish(store, row)
        row = claim_one(store)
        assert row.identity == "a1"
        finish(store, row)
        assert claim_one(store).identity == "a3"

    def test_a_row_made_ready_comes_before_the_new_ones_of_its_commit(self, store: Store, time: Time) -> None:
        commit(store, Enqueue(QUEUE, "a1", message("a1"), key="a", due=time.now() + int(LONG_S * 1_000_000)))
        commit(store, Enqueue(QUEUE, "a2", message("a2"), key="a"), Finish(QUEUE, "a1", WorkState.READY))
        assert identities(claim(store, 10, per_key=10)) == ["a1", "a2"]

    def test_scheduled_rows_of_a_key_take_turns_by_due_time(self, store: Store, time: Time) -> None:
        soon = time.now() + int(time.soon_s * 1_000_000)
        for number in (3, 1, 2):
            commit(store, Enqueue(QUEUE, f"a{number}", message("a"), key="a", due=soon + number))
        time.advance(time.soon_s + 0.001)
        order = []
        for _ in range(3):
            row = claim_one(store)
            order.append(row.identity)
            finish(store, row)
        assert order == ["a1", "a2", "a3"]

    def test_claim_by_key(self, store: Store) -> None:
        enqueue(store, "a1", "a2", key="a")
        enqueue(store, "b1", "b2", "b3", key="b")
        enqueue(store, "x")
        assert identities(claim(store, 10, key="b", per_key=2)) == ["b1", "b2"]
        assert claim(store, 10, key="b") == []
        assert claim(store, 10, key="none") == []
        assert sorted(identities(claim(store, 10))) == ["a1", "x"]

    def test_claim_by_identity_respects_the_order_of_the_key(self, store: Store) -> None:
        enqueue(store, "a1", "a2", key="a")
        assert claim(store, identity="a2") == []
        assert claim_one(store, identity="a1").identity == "a1"

    def test_claims_in_one_commit_respect_the_key(self, store: Store) -> None:
        enqueue(store, "a1", "a2", key="a")
        results = commit(store, Claim(QUEUE, "x"), Claim(QUEUE, "y"))
        assert [identities(result.rows) for result in results if isinstance(result, Claimed)] == [["a1"], []]

    def test_finish_and_claim_of_the_next_in_one_unit(self, store: Store) -> None:
        enqueue(store, "a1", "a2", key="a")
        row = claim_one(store)
        results = commit(store, Finish(QUEUE, "a1", WorkState.DONE, fence=row.fence), Claim(QUEUE, "w"))
        assert isinstance(results[1], Claimed)
        assert identities(results[1].rows) == ["a2"]

    def test_a_long_run_over_many_keys_keeps_every_order(self, store: Store) -> None:
        for number in range(4):
            commit(store, *(Enqueue(QUEUE, f"{key}{number}", message("m"), key=key) for key in "abcdefgh"))
        seen: dict[str, list[str]] = {key: [] for key in "abcdefgh"}
        while rows := claim(store, 5, per_key=2):
            for row in rows:
                assert row.key is not None
                seen[row.key].append(row.identity)
                finish(store, row)
        assert seen == {key: [f"{key}{number}" for number in range(4)] for key in "abcdefgh"}


class PassSuite(StoreSuite):
    """A retry that passes lets go of its key, and comes back behind the others."""

    def test_a_retry_that_passes_lets_the_next_go_on(self, store: Store, time: Time) -> None:
        enqueue(store, "a1", "a2", "a3", key="a")
        finish(store, claim_one(store), WorkState.SCHEDULED, delay_s=LONG_S, passes=True)
        second = claim_one(store)
        assert second.identity == "a2"
        finish(store, second)
        finish(store, claim_one(store))
        assert claim(store, 10) == []
        assert state_of(store, "a1") is WorkState.SCHEDULED

    def test_a_retry_that_passed_takes_its_turn_when_it_is_due(self, store: Store, time: Time) -> None:
        enqueue(store, "a1", "a2", key="a")
        finish(store, claim_one(store), WorkState.SCHEDULED, delay_s=time.short_s, passes=True)
        time.outlast_short()
        order = []
        for _ in range(2):
            row = claim_one(store)
            order.append((row.identity, row.attempts))
            finish(store, row)
        assert order == [("a2", 1), ("a1", 2)]

    def test_a_retry_at_once_that_passes_goes_to_the_end_of_its_key(self, store: Store) -> None:
        enqueue(store, "a1", "a2", "a3", key="a")
        finish(store, claim_one(store), WorkState.SCHEDULED, delay_s=0.0, passes=True)
        order = []
        for _ in range(3):
            row = claim_one(store)
            order.append(row.identity)
            finish(store, row)
        assert order == ["a2", "a3", "a1"]

    def test_without_a_key_a_retry_at_once_goes_behind_all_that_are_due(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        enqueue(store, "b")
        first = claim_one(store)
        time.advance(0.001)
        finish(store, first, WorkState.SCHEDULED, delay_s=0.0, passes=True)
        assert identities(claim(store, 10)) == ["b", "a"]

    @pytest.mark.parametrize("to", [state for state in WorkState if state is not WorkState.SCHEDULED])
    def test_only_a_retry_passes(self, store: Store, to: WorkState) -> None:
        enqueue(store, "a", key="a")
        row = claim_one(store)
        with pytest.raises(LocalProtocolError, match="does not pass"):
            commit(store, Finish(QUEUE, "a", to, fence=row.fence, passes=True))


class DueSuite(StoreSuite):
    """`due` is a cheap look: what a claim would find, it must not miss."""

    def test_an_empty_queue_has_nothing_due(self, store: Store) -> None:
        assert store.due(QUEUE) is False
        enqueue(store, "a", queue="inbox/other")
        assert store.due(QUEUE) is False

    @pytest.mark.parametrize("key", [None, "k"])
    def test_a_row_is_due_until_it_is_claimed(self, store: Store, key: str | None) -> None:
        enqueue(store, "a", key=key)
        assert store.due(QUEUE)
        finish(store, claim_one(store))
        claim(store)
        assert store.due(QUEUE) is False

    @pytest.mark.parametrize("key", [None, "k"])
    def test_a_claimed_row_is_due_again_when_its_lease_is_over(self, store: Store, time: Time, key: str | None) -> None:
        enqueue(store, "a", key=key)
        claim_one(store, lease_s=time.short_s)
        time.outlast_short()
        assert store.due(QUEUE)

    @pytest.mark.parametrize("key", [None, "k"])
    def test_a_scheduled_row_is_due_when_its_time_has_come(self, store: Store, time: Time, key: str | None) -> None:
        due = time.now() + int(time.soon_s * 1_000_000)
        commit(store, Enqueue(QUEUE, "a", message("a"), key=key, due=due))
        assert store.due(QUEUE) is False
        time.advance(time.soon_s)
        assert store.due(QUEUE)

    def test_the_next_of_a_key_is_due_when_the_first_is_done(self, store: Store) -> None:
        enqueue(store, "a1", "a2", key="a")
        row = claim_one(store)
        claim(store)
        assert store.due(QUEUE) is False
        finish(store, row)
        assert store.due(QUEUE)

    @pytest.mark.parametrize("key", [None, "k"])
    def test_what_is_put_aside_is_not_due(self, store: Store, key: str | None) -> None:
        enqueue(store, "a", key=key)
        finish(store, claim_one(store), WorkState.PARKED, holds=key is not None)
        claim(store)
        assert store.due(QUEUE) is False
        put_aside(store, "a", WorkState.READY)
        assert store.due(QUEUE)

    def test_a_wake_reaches_those_who_listen(self, store: Store) -> None:
        woken = Event()
        stop = store.listen(woken.set)
        woken.clear()
        store.wake()
        assert woken.wait(scaled(30))
        stop()


class ReplaceSuite(StoreSuite):
    """`replace` sets a durable timer again, whatever has become of the row."""

    def _set(self, store: Store, due: int | None, data: bytes = b"", **more: str) -> Fresh | Duplicate:
        envelope = message("timer", data=data)
        result = commit(store, Enqueue(QUEUE, "t", envelope, due=due, replace=True, **more))[0]  # type: ignore[arg-type]
        assert isinstance(result, Fresh | Duplicate)
        return result

    def test_the_first_time_is_an_ordinary_enqueue(self, store: Store) -> None:
        assert isinstance(self._set(store, None), Fresh)
        assert claim_one(store).identity == "t"

    def test_a_timer_set_earlier_fires_earlier(self, store: Store, time: Time) -> None:
        first = self._set(store, time.now() + int(LONG_S * 1_000_000), b"old")
        assert self._set(store, None, b"new") == Duplicate(first.position, state=WorkState.SCHEDULED)
        row = claim_one(store)
        assert (row.envelope.data, row.attempts) == (b"new", 1)
        assert claim(store) == []

    def test_a_timer_set_later_fires_later(self, store: Store, time: Time) -> None:
        self._set(store, None, b"old")
        self._set(store, time.now() + int(LONG_S * 1_000_000), b"new")
        assert claim(store) == []
        row = store.work(QUEUE, "t")
        assert row is not None
        assert (row.state, row.envelope.data) == (WorkState.SCHEDULED, b"new")

    def test_whoever_holds_it_is_fenced_off(self, store: Store) -> None:
        self._set(store, None, b"old")
        held = claim_one(store)
        self._set(store, None, b"new")
        for op in (Finish(QUEUE, "t", WorkState.DONE, fence=held.fence), Renew(QUEUE, "t", held.fence)):
            assert commit_refused(store, op) == (Stale(0),)
        row = claim_one(store)
        assert (row.envelope.data, row.attempts) == (b"new", 1)
        assert row.fence > held.fence

    def test_whoever_held_it_stays_fenced_off_after_the_next_claim(self, store: Store) -> None:
        self._set(store, None)
        held = claim_one(store)
        self._set(store, None)
        row = claim_one(store)
        stale = commit_refused(store, Finish(QUEUE, "t", WorkState.DONE, fence=held.fence))
        assert stale == (Stale(row.fence),)

    @pytest.mark.parametrize("state", [WorkState.DONE, WorkState.DEAD, WorkState.PARKED, WorkState.DEFERRED])
    def test_a_finished_timer_is_opened_again(self, store: Store, time: Time, state: WorkState) -> None:
        self._set(store, None, b"old")
        finish(store, claim_one(store), state)
        self._set(store, time.now() + int(time.short_s * 1_000_000), b"new")
        time.outlast_short()
        row = claim_one(store)
        assert (row.envelope.data, row.attempts) == (b"new", 1)
        finish(store, row)

    def test_a_timer_opened_again_is_not_swept(self, store: Store, time: Time) -> None:
        self._set(store, None)
        finish(store, claim_one(store), keep_s=0.0)
        self._set(store, time.now() + int(LONG_S * 1_000_000))
        store.sweep(time.now() + int(2 * LONG_S * 1_000_000))
        assert store.work(QUEUE, "t") is not None

    def test_set_twice_in_one_commit_the_last_wins(self, store: Store) -> None:
        ops = [Enqueue(QUEUE, "t", message("timer", data=data), replace=True) for data in (b"1", b"2", b"3")]
        assert [type(result) for result in commit(store, *ops)] == [Fresh, Duplicate, Duplicate]
        assert claim_one(store).envelope.data == b"3"
        assert claim(store) == []

    def test_a_timer_with_a_key_holds_it_only_when_due(self, store: Store, time: Time) -> None:
        self._set(store, None, key="k")
        enqueue(store, "next", key="k")
        self._set(store, time.now() + int(LONG_S * 1_000_000), key="k")
        row = claim_one(store)
        assert row.identity == "next"
        finish(store, row)
        self._set(store, None, key="k")
        assert claim_one(store).identity == "t"

    def test_a_scope_across_queues_moves_the_row_where_it_is(self, store: Store) -> None:
        commit(store, Enqueue("inbox/one", "t", message("t", data=b"old"), scope="timers", replace=True))
        again = Enqueue("inbox/two", "t", message("t", data=b"new"), scope="timers", replace=True)
        result = commit(store, again)[0]
        assert isinstance(result, Duplicate)
        assert result.position.stream == "inbox/one"
        assert claim_one(store, queue="inbox/one").envelope.data == b"new"
        assert claim(store, queue="inbox/two") == []

    def test_a_timer_keeps_its_key(self, store: Store) -> None:
        """Its turn among the rows of its key depends on it, so setting it again does not change it."""
        self._set(store, None, key="k")
        finish(store, claim_one(store))
        self._set(store, None, key="another")
        enqueue(store, "next", key="k")
        row = claim_one(store)
        assert (row.identity, row.key) == ("t", "k")
        assert claim(store, 10) == []
        finish(store, row)
        self._set(store, None)
        assert identities(claim(store, 10, key="k")) == ["t"]

    def test_a_replaced_row_keeps_its_position(self, store: Store) -> None:
        first = self._set(store, None)
        assert first.position == Position(QUEUE, store.epoch, first.position.offset)
        assert self._set(store, None).position == first.position
