"""Identities without a body: those that are remembered from the start, and what a sweep leaves of work that is done."""

from __future__ import annotations

import pytest

from semel.errors import StoreRefused
from semel.kernel.envelope import Envelope
from semel.kernel.lease import Guard
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import (
    RESULT_BYTES_MAX,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Remember,
    Renew,
    Result,
    Stale,
    WorkState,
)
from semel.kernel.store import Store
from semel.testing.contract.base import (
    DAY_US,
    HOP,
    LONG_S,
    QUEUE,
    StoreSuite,
    Time,
    claim,
    claim_one,
    commit,
    commit_refused,
    enqueue,
    events,
    identities,
    logged,
    message,
)
from semel.testing.contract.bodies import sweep_all

OTHER = "inbox/other"


def remember(store: Store, id: str, result: bytes = b"", **more: object) -> Result:
    return commit(store, Remember(QUEUE, id, result=result, **more))[0]  # type: ignore[arg-type]


def place(result: Result) -> int:
    assert isinstance(result, Fresh | Duplicate)
    return result.position.offset


class RememberSuite(StoreSuite):
    """An identity is remembered as handled, once within its scope like every work row."""

    def test_the_first_is_fresh_and_the_second_learns_what_was_kept(self, store: Store) -> None:
        first = remember(store, "a", b"the answer")
        assert isinstance(first, Fresh)
        assert first.position.stream == QUEUE
        assert remember(store, "a", b"another") == Duplicate(first.position, state=WorkState.DONE, result=b"the answer")

    def test_an_empty_result_is_one(self, store: Store) -> None:
        remember(store, "a")
        again = remember(store, "a")
        assert isinstance(again, Duplicate)
        assert again.result == b""

    def test_a_result_as_large_as_it_may_be(self, store: Store) -> None:
        remember(store, "a", bytes(range(256)) * (RESULT_BYTES_MAX // 256))
        again = remember(store, "a")
        assert isinstance(again, Duplicate)
        assert again.result == bytes(range(256)) * (RESULT_BYTES_MAX // 256)

    def test_it_is_done_and_nobody_claims_it(self, store: Store) -> None:
        remember(store, "a")
        row = store.work(QUEUE, "a")
        assert row is not None
        assert (row.state, row.attempts, row.key, row.envelope.data) == (WorkState.DONE, 0, None, b"")
        assert claim(store, 10) == []
        assert claim(store, identity="a") == []

    def test_an_enqueue_of_it_is_a_duplicate(self, store: Store) -> None:
        first = remember(store, "a", b"r")
        assert isinstance(first, Fresh)
        again = commit(store, Enqueue(QUEUE, "a", message("a")))[0]
        assert again == Duplicate(first.position, state=WorkState.DONE, result=b"r")
        assert claim(store, 10) == []

    def test_remembering_what_is_enqueued_is_a_duplicate(self, store: Store) -> None:
        enqueue(store, "a")
        again = remember(store, "a", b"r")
        assert isinstance(again, Duplicate)
        assert (again.state, again.result) == (WorkState.READY, None)
        assert claim_one(store).identity == "a"

    def test_twice_in_one_commit(self, store: Store) -> None:
        results = commit(store, Remember(QUEUE, "a", result=b"1"), Remember(QUEUE, "a", result=b"2"))
        assert isinstance(results[0], Fresh)
        assert results[1] == Duplicate(results[0].position, state=WorkState.DONE, result=b"1")

    def test_beside_an_enqueue_of_the_same_in_one_commit_the_first_counts(self, store: Store) -> None:
        results = commit(store, Enqueue(QUEUE, "a", message("a")), Remember(QUEUE, "a", result=b"2"))
        assert isinstance(results[1], Duplicate)
        assert (results[1].state, results[1].result) == (WorkState.READY, None)
        assert claim_one(store).identity == "a"

    def test_a_remembered_scope_reaches_across_queues(self, store: Store) -> None:
        first = remember(store, "a", scope="all")
        again = commit(store, Remember(OTHER, "a", scope="all"))[0]
        assert place(again) == place(first)
        assert isinstance(again, Duplicate)
        assert again.position.stream == QUEUE

    def test_the_ledger_has_the_verdict(self, store: Store) -> None:
        op = Remember(QUEUE, "a", on_fresh=Event(Kind.HANDLED, HOP), on_duplicate=logged(Kind.DUPLICATE, "m"))
        commit(store, op)
        commit(store, op)
        assert [(event.kind, event.message) for event in events(store)] == [
            (Kind.HANDLED, "a"),
            (Kind.DUPLICATE, "m"),
        ]

    def test_a_guard_that_is_stale_refuses_it(self, store: Store) -> None:
        guarded = Remember(QUEUE, "a", guard=Guard(QUEUE, "owner", 1))
        assert commit_refused(store, guarded) == (Stale(0),)
        assert store.work(QUEUE, "a") is None

    def test_what_is_remembered_is_forgotten_after_its_time(self, store: Store, time: Time) -> None:
        remember(store, "a", keep_s=1000.0)
        now = time.now()
        assert store.sweep(now + 900 * 1_000_000).work == 0
        assert isinstance(remember(store, "a"), Duplicate)
        assert store.sweep(now + 1100 * 1_000_000).work == 1
        assert isinstance(remember(store, "a"), Fresh)

    def test_what_is_opened_again_has_no_result(self, store: Store) -> None:
        remember(store, "a", b"r")
        commit(store, Enqueue(QUEUE, "a", message("a", data=b"new"), replace=True))
        again = remember(store, "a")
        assert isinstance(again, Duplicate)
        assert (again.state, again.result) == (WorkState.READY, None)
        assert claim_one(store).envelope.data == b"new"


class BareSuite(StoreSuite):
    """A sweep leaves only the identity of a row that is done, and it counts for as much as the row."""

    def _leave(self, store: Store, time: Time, id: str = "a", **more: object) -> int:
        """Done and swept; answers where it stood."""
        first = commit(store, Enqueue(QUEUE, id, message(id, data=b"body"), **more))[0]  # type: ignore[arg-type]
        commit(store, Finish(QUEUE, id, WorkState.DONE))
        assert sweep_all(store, time.now()).moved == 1
        return place(first)

    def test_a_sweep_moves_a_row_once(self, store: Store, time: Time) -> None:
        self._leave(store, time)
        swept = sweep_all(store, time.now())
        assert (swept.moved, swept.total) == (0, 0)

    def test_a_late_copy_is_a_duplicate(self, store: Store, time: Time) -> None:
        seq = self._leave(store, time)
        again = commit(store, Enqueue(QUEUE, "a", message("a")))[0]
        assert isinstance(again, Duplicate)
        assert (again.position.stream, again.position.offset) == (QUEUE, seq)
        assert (again.state, again.result) == (WorkState.DONE, None)
        assert claim(store, 10) == []

    def test_late_copies_among_new_ones(self, store: Store, time: Time) -> None:
        self._leave(store, time, "b")
        ops = [Enqueue(QUEUE, id, message(id)) for id in ("a", "b", "c", "b")]
        assert [type(result) for result in commit(store, *ops)] == [Fresh, Duplicate, Fresh, Duplicate]
        assert identities(claim(store, 10)) == ["a", "c"]

    def test_a_late_copy_in_a_key_does_not_hold_it(self, store: Store, time: Time) -> None:
        self._leave(store, time, key="k")
        commit(store, Enqueue(QUEUE, "a", message("a"), key="k"), Enqueue(QUEUE, "b", message("b"), key="k"))
        assert identities(claim(store, 10)) == ["b"]

    def test_the_result_is_kept(self, store: Store, time: Time) -> None:
        remember(store, "a", b"r" * RESULT_BYTES_MAX)
        assert sweep_all(store, time.now()).moved == 1
        again = remember(store, "a")
        assert isinstance(again, Duplicate)
        assert (again.state, again.result) == (WorkState.DONE, b"r" * RESULT_BYTES_MAX)

    def test_what_is_left_of_the_row(self, store: Store, time: Time) -> None:
        seq = self._leave(store, time, key="k")
        row = store.work(QUEUE, "a")
        assert row is not None
        assert (row.queue, row.identity, row.seq, row.state) == (QUEUE, "a", seq, WorkState.DONE)
        assert (row.key, row.attempts, row.fence, row.owner, row.cause) == (None, 0, 0, "", None)
        assert row.envelope == Envelope(id="a")

    def test_nobody_claims_a_bare_identity(self, store: Store, time: Time) -> None:
        self._leave(store, time)
        assert claim(store, 10) == []
        assert claim(store, identity="a") == []

    def test_a_bare_identity_is_forgotten_after_its_time(self, store: Store, time: Time) -> None:
        enqueue(store, "a", "b")
        commit(store, *(Finish(QUEUE, id, WorkState.DONE, keep_s=1000.0) for id in ("a", "b")))
        now = time.now()
        assert store.sweep(now).moved == 2
        assert sweep_all(store, now + 900 * 1_000_000).total == 0
        assert store.sweep(now + 1100 * 1_000_000, limit=1).work == 1
        assert sweep_all(store, now + 1100 * 1_000_000, limit=1).work == 1
        assert store.work(QUEUE, "a") is None
        assert isinstance(commit(store, Enqueue(QUEUE, "a", message("a")))[0], Fresh)

    def test_only_done_rows_are_moved(self, store: Store, time: Time) -> None:
        enqueue(store, "ready", "parked", "dead", "held", key="k")
        commit(store, Finish(QUEUE, "parked", WorkState.PARKED), Finish(QUEUE, "dead", WorkState.DEAD))
        commit(store, Finish(QUEUE, "held", WorkState.DEAD, holds=True))
        assert sweep_all(store, time.now()).moved == 0
        assert identities(store.work_rows(QUEUE, set(WorkState))) == ["ready", "parked", "dead", "held"]

    def test_moving_in_bounded_steps(self, store: Store, time: Time) -> None:
        ids = [f"w{n}" for n in range(5)]
        enqueue(store, *ids)
        commit(store, *(Finish(QUEUE, id, WorkState.DONE) for id in ids))
        now = time.now()
        steps = [store.sweep(now, limit=2) for _ in range(3)]
        assert [(step.moved, step.more, step.total) for step in steps] == [(2, True, 0), (2, True, 0), (1, False, 0)]
        again = commit(store, *(Enqueue(QUEUE, id, message(id)) for id in ids))
        assert all(isinstance(result, Duplicate) for result in again)

    def test_a_row_that_is_done_late_is_moved_too(self, store: Store, time: Time) -> None:
        enqueue(store, "late", "soon")
        commit(store, Finish(QUEUE, "soon", WorkState.DONE))
        assert store.sweep(time.now(), limit=1).moved == 1
        commit(store, Finish(QUEUE, "late", WorkState.DONE))
        assert sweep_all(store, time.now(), limit=1).moved == 1

    def test_a_scope_is_remembered_wherever_the_copy_is_sent(self, store: Store, time: Time) -> None:
        seq = self._leave(store, time, scope="all")
        for queue in (QUEUE, OTHER):
            again = commit(store, Enqueue(queue, "a", message("a"), scope="all"))[0]
            assert isinstance(again, Duplicate)
            assert (again.position.stream, again.position.offset) == (QUEUE, seq)
        assert claim(store, 10) == claim(store, 10, queue=OTHER) == []
        row = store.work(QUEUE, "a")
        assert row is not None
        assert row.seq == seq
        assert store.work(OTHER, "a") is None

    @pytest.mark.parametrize("scopes", [("x", "y"), ("x", None), (None, "x")])
    def test_a_bare_identity_has_one_scope_in_a_queue(
        self, store: Store, time: Time, scopes: tuple[str | None, str | None]
    ) -> None:
        self._leave(store, time, scope=scopes[0])
        with pytest.raises(StoreRefused, match="inbox/contract has a row 'a' of another scope"):
            commit(store, Enqueue(QUEUE, "a", message("a"), scope=scopes[1]))
        assert claim(store, 10) == []

    def test_the_row_of_another_scope_is_in_nobodys_way(self, store: Store, time: Time) -> None:
        """A copy that is known in its scope is a duplicate, whatever has its name in the queue it was sent to."""
        self._leave(store, time)
        first = commit(store, Enqueue(OTHER, "a", message("a"), scope="x"))[0]
        again = commit(store, Enqueue(QUEUE, "a", message("a"), scope="x"))[0]
        assert isinstance(again, Duplicate)
        assert again.position.stream == OTHER
        assert place(again) == place(first)
        commit(store, Finish(OTHER, "a", WorkState.DONE))
        assert sweep_all(store, time.now()).moved == 1
        assert place(commit(store, Enqueue(QUEUE, "a", message("a"), scope="x"))[0]) == place(first)
        assert isinstance(commit(store, Enqueue("inbox/third", "a", message("a"), scope="y"))[0], Fresh)

    def test_a_bare_identity_in_the_scope_of_another_queue(self, store: Store, time: Time) -> None:
        self._leave(store, time)
        again = commit(store, Enqueue(OTHER, "a", message("a"), scope=QUEUE))[0]
        assert isinstance(again, Duplicate)
        assert again.position.stream == QUEUE
        assert isinstance(commit(store, Enqueue(OTHER, "a", message("a")))[0], Fresh)

    @pytest.mark.parametrize("scope", [None, "timers"])
    def test_a_bare_identity_is_opened_again(self, store: Store, time: Time, scope: str | None) -> None:
        seq = self._leave(store, time, scope=scope)
        op = Enqueue(QUEUE, "a", message("new", data=b"new"), scope=scope, replace=True)
        again = commit(store, op)[0]
        assert isinstance(again, Duplicate)
        assert (again.position.offset, again.state) == (seq, WorkState.DONE)
        row = claim_one(store)
        assert (row.seq, row.attempts, row.envelope) == (seq, 1, op.envelope)
        assert sweep_all(store, time.now() + 30 * DAY_US).moved == 0
        commit(store, Finish(QUEUE, "a", WorkState.DONE, fence=row.fence))
        assert sweep_all(store, time.now()).moved == 1
        assert isinstance(commit(store, Enqueue(QUEUE, "a", message("a"), scope=scope))[0], Duplicate)

    def test_opened_again_it_is_claimed_in_the_same_unit(self, store: Store, time: Time) -> None:
        self._leave(store, time)
        results = commit(store, Enqueue(QUEUE, "a", message("a"), replace=True), Claim(QUEUE, "w"))
        assert isinstance(results[1], Claimed)
        assert identities(results[1].rows) == ["a"]

    def test_opened_again_its_fence_is_higher_than_before(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        held = claim_one(store)
        commit(store, Finish(QUEUE, "a", WorkState.DONE, fence=held.fence))
        sweep_all(store, time.now())
        commit(store, Enqueue(QUEUE, "a", message("a"), replace=True))
        row = claim_one(store)
        assert row.fence > held.fence
        assert commit_refused(store, Renew(QUEUE, "a", held.fence)) == (Stale(row.fence),)

    def test_opened_again_it_takes_the_key_that_is_given_and_the_last_turn(self, store: Store, time: Time) -> None:
        self._leave(store, time, key="old")
        enqueue(store, "b", key="new")
        ops = [Enqueue(QUEUE, "a", message("a"), key=key, replace=True) for key in ("new", "other")]
        commit(store, *ops)
        first = claim_one(store)
        assert first.identity == "b"
        commit(store, Finish(QUEUE, "b", WorkState.DONE, fence=first.fence))
        row = claim_one(store)
        assert (row.identity, row.key) == ("a", "new")

    def test_opened_again_for_later(self, store: Store, time: Time) -> None:
        self._leave(store, time)
        due = time.now() + int(LONG_S * 1_000_000)
        commit(store, Enqueue(QUEUE, "a", message("a"), key="k", due=due, replace=True))
        assert claim(store, 10) == []
        row = store.work(QUEUE, "a")
        assert row is not None
        assert (row.state, row.due, row.key) == (WorkState.SCHEDULED, due, "k")

    @pytest.mark.parametrize("scope", [None, "all"])
    def test_an_operator_may_let_it_go_again(self, store: Store, time: Time, scope: str | None) -> None:
        seq = self._leave(store, time, scope=scope)
        commit(store, Finish(QUEUE, "a", WorkState.READY))
        row = claim_one(store)
        assert (row.identity, row.seq, row.attempts, row.envelope) == ("a", seq, 1, Envelope(id="a"))

    def test_whoever_comes_late_is_fenced_off_and_changes_nothing(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        row = claim_one(store)
        commit(store, Finish(QUEUE, "a", WorkState.DONE, fence=row.fence))
        sweep_all(store, time.now())
        for op in (Finish(QUEUE, "a", WorkState.DONE, fence=row.fence), Renew(QUEUE, "a", row.fence)):
            assert commit_refused(store, op) == (Stale(0),)
        assert commit_refused(store, Log(logged(Kind.SENT, "m"), guard=Guard(QUEUE, "a", row.fence))) == (Stale(0),)
        assert sweep_all(store, time.now()).moved == 0

    def test_an_enqueue_that_is_refused_leaves_it(self, store: Store, time: Time) -> None:
        self._leave(store, time)
        replace = Enqueue(QUEUE, "a", message("a"), replace=True)
        commit_refused(store, replace, Finish(QUEUE, "none", WorkState.DONE))
        assert claim(store, 10) == []
        assert isinstance(commit(store, Enqueue(QUEUE, "a", message("a")))[0], Duplicate)


class OperatorSuite(StoreSuite):
    """What operators list and count."""

    def test_rows_are_listed_by_state_in_order(self, store: Store) -> None:
        enqueue(store, *(f"w{n}" for n in range(6)))
        for id, state in (("w1", WorkState.DEAD), ("w4", WorkState.PARKED), ("w5", WorkState.DEAD)):
            commit(store, Finish(QUEUE, id, state))
        enqueue(store, "elsewhere", queue=OTHER)
        assert identities(store.work_rows(QUEUE, {WorkState.DEAD})) == ["w1", "w5"]
        assert identities(store.work_rows(QUEUE, {WorkState.DEAD, WorkState.PARKED})) == ["w1", "w4", "w5"]
        assert identities(store.work_rows(QUEUE, {WorkState.READY})) == ["w0", "w2", "w3"]
        assert identities(store.work_rows(QUEUE, {WorkState.READY, WorkState.PARKED})) == ["w0", "w2", "w3", "w4"]
        assert store.work_rows(QUEUE, {WorkState.CLAIMED}) == []
        assert store.work_rows(QUEUE, set()) == []
        assert store.work_rows("inbox/none", set(WorkState)) == []

    def test_rows_are_listed_in_pages(self, store: Store) -> None:
        ids = [f"w{n}" for n in range(7)]
        enqueue(store, *ids)
        commit(store, *(Finish(QUEUE, id, WorkState.DEAD, cause="no") for id in ids[::2]))
        found: list[str] = []
        after = 0
        while rows := store.work_rows(QUEUE, {WorkState.DEAD, WorkState.READY}, after, 3):
            found += identities(rows)
            after = rows[-1].seq
        assert found == ids

    def test_a_listed_row_is_the_row(self, store: Store) -> None:
        commit(store, Enqueue(QUEUE, "a", message("m", data=b"body", headers={"h": "1"}), key="k"))
        commit(store, Finish(QUEUE, "a", WorkState.DEAD, cause="ValueError: no"))
        assert store.work_rows(QUEUE, [WorkState.DEAD]) == [store.work(QUEUE, "a")]

    def test_a_row_that_is_done_is_listed_until_it_is_swept(self, store: Store, time: Time) -> None:
        enqueue(store, "a")
        commit(store, Finish(QUEUE, "a", WorkState.DONE))
        assert identities(store.work_rows(QUEUE, {WorkState.DONE})) == ["a"]
        sweep_all(store, time.now())
        assert store.work_rows(QUEUE, {WorkState.DONE}) == []

    def test_counts_by_queue_and_state_without_what_is_done(self, store: Store) -> None:
        enqueue(store, "a", "b", "c", "d")
        claim_one(store)
        commit(store, Finish(QUEUE, "c", WorkState.DEAD), Finish(QUEUE, "d", WorkState.DONE))
        enqueue(store, "x", queue=OTHER)
        mine = {WorkState.CLAIMED: 1, WorkState.READY: 1, WorkState.DEAD: 1}
        assert store.work_counts("inbox/") == {QUEUE: mine, OTHER: {WorkState.READY: 1}}
        assert store.work_counts(QUEUE) == {QUEUE: mine}
        assert store.work_counts("inbox/c%") == store.work_counts("none") == {}

    def test_the_status_counts_what_is_remembered(self, store: Store, time: Time) -> None:
        enqueue(store, "a", "b", "c")
        commit(store, Finish(QUEUE, "a", WorkState.DONE))
        sweep_all(store, time.now())
        commit(store, Finish(QUEUE, "b", WorkState.DONE))
        status = store.status()
        assert status.work[QUEUE] == {"ready": 1}
        assert status.remembered == 2

    def test_the_history_of_a_message(self, store: Store) -> None:
        kinds = (Kind.ACCEPTED, Kind.FAILED, Kind.HANDLED)
        for kind in kinds:
            commit(store, Log(logged(kind, "m")), Log(logged(kind, "m2")))
        assert [entry.event.kind for entry in store.history("m")] == list(kinds)
        assert [entry.event.kind for entry in store.history("m", 2)] == list(kinds[:2])
        assert [entry.event.message for entry in store.history("m2")] == ["m2"] * 3
        assert store.history("none") == []
        commit(store, Log(logged(Kind.SENT, "ü ✗")))
        [entry] = store.history("ü ✗")
        assert (entry.event.kind, entry.node) == (Kind.SENT, store.node)
