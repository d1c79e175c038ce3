"""Worker and follower: effects and completions land together, and nothing is done under a lost claim."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.kernel.bench import Bench

from semel.errors import ConfigError, StoreRefused, StoreUnavailable
from semel.kernel.effects import (
    Commit,
    CommitFailed,
    Committed,
    CommitUnknown,
    Delivered,
    DeliverLost,
    DeliverUntouched,
    Drain,
    LoadFailed,
    LookForWork,
    OwnTransaction,
    Pause,
    Resume,
    Wake,
    WorkFound,
)
from semel.kernel.envelope import Envelope
from semel.kernel.group import CommitGroup
from semel.kernel.ledger import Kind
from semel.kernel.ops import (
    Append,
    Applied,
    Claim,
    Claimed,
    Enqueue,
    Finish,
    Op,
    Renew,
    Stale,
    Trim,
    Unit,
    WorkRow,
    WorkState,
)
from semel.kernel.position import Position
from semel.kernel.retry import Again, Decision, Enough, Failure, GiveUp, PauseThen, Release, Requeue, RetryPolicy
from semel.kernel.store import Records
from semel.kernel.work import ALONE, Follower, FollowerConfig, Worker, WorkerConfig
from semel.stores.memory import MemoryStore

QUEUE, EFFECTS, STREAM = "inbox/orders", "hub/effects", "hub/orders"
DOWN = StoreUnavailable("gone", fix="wait")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def start_worker(bench: Bench, name: str = "w", **more: Any) -> Worker:
    worker = Worker(WorkerConfig(name, QUEUE, "inbox/orders>handler", **more))
    bench.add(worker)
    return worker


def start_follower(bench: Bench, **more: Any) -> Follower:
    config = FollowerConfig("f", STREAM, "hub/orders>f", **more)
    follower = Follower(config, bench.store.cursor(config.cursor))
    bench.add(follower)
    return follower


def commit(bench: Bench, *ops: Op) -> Any:
    outcome = bench.store.commit([Unit(ops)])[0]
    bench.interpreter.wake()
    bench.run()
    return outcome.results


def enqueue(bench: Bench, *ids: str, key: str | None = None) -> None:
    commit(bench, *(Enqueue(QUEUE, id, Envelope(id=id), key=key) for id in ids))


def publish(bench: Bench, *ids: str) -> None:
    commit(bench, *(Append(STREAM, Envelope(id=id)) for id in ids))


def effects(bench: Bench) -> list[str]:
    found = bench.store.read(EFFECTS)
    assert isinstance(found, Records)
    return [record.envelope.id for record in found.records]


def record_effect(item: Any) -> tuple[Op, ...]:
    return (Append(EFFECTS, Envelope(id=item.envelope.id)),)


def state_of(bench: Bench, id: str) -> WorkState:
    row = bench.store.work(QUEUE, id)
    assert row is not None
    return row.state


def kinds(bench: Bench) -> list[Kind]:
    return [event.kind for event in bench.ledger()]


def test_a_worker_handles_each_row_once_with_its_effect(bench: Bench) -> None:
    bench.handler = record_effect
    start_worker(bench)
    enqueue(bench, "a", "b", "c")
    assert bench.delivered == effects(bench) == ["a", "b", "c"]
    assert {state_of(bench, id) for id in "abc"} == {WorkState.DONE}
    assert kinds(bench) == [Kind.HANDLED] * 3


def test_a_worker_finds_what_was_there_before_it(bench: Bench) -> None:
    enqueue(bench, "a")
    start_worker(bench)
    assert bench.delivered == ["a"]


def test_a_worker_that_nobody_wakes_looks_by_itself(bench: Bench) -> None:
    start_worker(bench, idle_s=5.0)
    bench.store.commit([Unit((Enqueue(QUEUE, "a", Envelope(id="a")),))])
    bench.wait(4.9)
    assert bench.delivered == []
    bench.wait(0.2)
    assert bench.delivered == ["a"]


def test_no_more_rows_than_asked_for_are_with_the_application(bench: Bench) -> None:
    bench.deliver = lambda seat, effect: bench.delivered.append(effect.item.envelope.id)  # type: ignore[method-assign]
    start_worker(bench, parallel=2)
    enqueue(bench, *"abcd")
    assert bench.delivered == ["a", "b"]
    bench.interpreter.wake()
    bench.run()
    assert bench.delivered == ["a", "b"]


def test_a_failing_handler_is_tried_again_and_then_given_up(bench: Bench) -> None:
    def fail(item: Any) -> tuple[Op, ...]:
        raise ValueError("no\x00 good")

    bench.handler = fail
    start_worker(bench, retry=RetryPolicy(retries=2, interval_s=10.0, then="dead_letter"))
    enqueue(bench, "a")
    assert state_of(bench, "a") is WorkState.SCHEDULED
    bench.wait(60.0)
    assert bench.delivered == ["a"] * 3
    row = bench.store.work(QUEUE, "a")
    assert row is not None
    assert (row.state, row.cause, row.attempts) == (WorkState.DEAD, "no\ufffd good", 3)
    assert kinds(bench) == [Kind.FAILED, Kind.FAILED, Kind.DEAD_LETTERED]


@pytest.mark.parametrize(
    ("then", "state", "kind"),
    [
        ("dead_letter", WorkState.DEAD, Kind.DEAD_LETTERED),
        ("discard", WorkState.DONE, Kind.DISCARDED),
        ("park", WorkState.PARKED, Kind.SUSPENDED),
        ("suspend", WorkState.PARKED, Kind.SUSPENDED),
    ],
)
def test_what_becomes_of_a_message_is_the_policys_choice(
    bench: Bench, then: GiveUp, state: WorkState, kind: Kind
) -> None:
    def fail(item: Any) -> tuple[Op, ...]:
        raise ValueError("no")

    bench.handler = fail
    start_worker(bench, retry=RetryPolicy(retries=0, then=then))
    enqueue(bench, "a")
    assert (state_of(bench, "a"), kinds(bench)) == (state, [kind])


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_a_retry_waits_by_the_stores_clock_however_far_ours_is_off(bench: Bench, ahead_s: float) -> None:
    def fail(item: Any) -> tuple[Op, ...]:
        raise ValueError("no")

    bench.handler = fail
    bench.store = MemoryStore(clock=lambda: int((bench.now + ahead_s) * 1_000_000))
    start_worker(bench, retry=RetryPolicy(retries=2, interval_s=10.0))
    enqueue(bench, "a")
    row = bench.store.work(QUEUE, "a")
    assert row is not None
    assert row.due == int((bench.now + ahead_s + 10.0) * 1_000_000)


def test_a_failure_does_not_stop_the_others(bench: Bench) -> None:
    def fail_a(item: Any) -> tuple[Op, ...]:
        if item.envelope.id == "a":
            raise ValueError("no")
        return record_effect(item)

    bench.handler = fail_a
    start_worker(bench, retry=RetryPolicy(retries=0, then="dead_letter"))
    enqueue(bench, "a", "b")
    assert effects(bench) == ["b"]


def test_a_retry_does_not_let_its_key_overtake(bench: Bench) -> None:
    failures = ["a"]

    def fail_once(item: Any) -> tuple[Op, ...]:
        if item.envelope.id in failures:
            failures.remove(item.envelope.id)
            raise ValueError("not yet")
        return record_effect(item)

    bench.handler = fail_once
    start_worker(bench, parallel=4, retry=RetryPolicy(retries=3, interval_s=10.0))
    enqueue(bench, "a", "b", key="k")
    assert effects(bench) == []
    bench.wait(60.0)
    assert effects(bench) == ["a", "b"]


def test_a_long_handler_keeps_its_claim_by_renewing(bench: Bench) -> None:
    bench.deliver = lambda seat, effect: bench.delivered.append(effect.item.envelope.id)  # type: ignore[method-assign]
    start_worker(bench, lease_s=30.0)
    enqueue(bench, "a")
    bench.wait(300.0)
    taken = commit(bench, Claim(QUEUE, "thief"))[0]
    assert taken == Claimed(())
    assert bench.delivered == ["a"]


@pytest.mark.parametrize("report", ["failed", "unknown"])
def test_a_renewal_that_fails_is_made_again_soon_and_the_row_is_kept(bench: Bench, report: str) -> None:
    held: list[Any] = []
    bench.deliver = lambda seat, effect: held.append((seat, effect))  # type: ignore[method-assign]
    start_worker(bench, lease_s=30.0)
    enqueue(bench, "a")
    seat = bench.interpreter.seat("w")
    assert seat is not None
    bench.now += 10.0
    [renew] = seat.machine.on_timer(bench.now)
    assert isinstance(renew, Commit)
    lost = CommitFailed(renew.token, error=DOWN) if report == "failed" else CommitUnknown(renew.token)
    bench.interpreter.feed(seat, lost)
    assert seat.machine.next_deadline() == bench.now + 3.0
    bench.wait(300.0)
    assert commit(bench, Claim(QUEUE, "thief"))[0] == Claimed(())
    bench.handler = record_effect
    Bench.deliver(bench, *held[0])
    bench.run()
    assert (effects(bench), bench.notes) == (["a"], [])


def test_a_renewal_that_is_stale_lets_go_of_the_row(bench: Bench) -> None:
    bench.deliver = lambda seat, effect: None  # type: ignore[method-assign]
    worker = start_worker(bench, lease_s=30.0)
    enqueue(bench, "a")
    bench.now += 31.0
    commit(bench, Claim(QUEUE, "thief"))
    bench.wait(0.0)
    assert [note.topic for note in bench.notes] == ["claim-lost"]
    assert worker._held == {}


def test_a_worker_that_lost_its_claim_lets_go_and_lands_nothing(bench: Bench) -> None:
    held: list[Any] = []
    bench.deliver = lambda seat, effect: held.append((seat, effect))  # type: ignore[method-assign]
    start_worker(bench, lease_s=30.0)
    enqueue(bench, "a")
    bench.now += 31.0
    taken = commit(bench, Claim(QUEUE, "thief"))[0]
    assert [row.owner for row in taken.rows] == ["thief"]
    seat, effect = held[0]
    Bench.deliver(bench, seat, effect)
    bench.handler = record_effect
    bench.run()
    assert effects(bench) == []
    assert [note.topic for note in bench.notes] == ["claim-lost"]
    commit(bench, Finish(QUEUE, "a", WorkState.DONE, fence=taken.rows[0].fence))


@pytest.mark.parametrize("away", [1, 3])
def test_a_finish_that_the_store_does_not_take_is_committed_again(bench: Bench, away: int) -> None:
    """What the handler did outside has happened, and must not happen twice because a store was away."""
    bench.handler = record_effect
    start_worker(bench, lease_s=30.0, retry=RetryPolicy(retries=0, then="dead_letter"))
    bench.fail_commits = [None, *[DOWN] * away]
    enqueue(bench, "a")
    assert effects(bench) == []
    bench.wait(60.0)
    assert (bench.delivered, effects(bench), state_of(bench, "a")) == (["a"], ["a"], WorkState.DONE)


def test_a_finish_in_doubt_is_refused_by_its_fence_if_it_was_committed(bench: Bench) -> None:
    worker = start_worker(bench)
    bench.handler = record_effect
    land = bench.land

    def lose_the_answer(group: CommitGroup) -> None:
        if any(isinstance(op, Finish) for unit in group.units for op in unit.ops):
            bench.land = land  # type: ignore[method-assign]
            bench.store.commit(group.units)
            bench.interpreter.unknown(group)
        else:
            land(group)

    bench.land = lose_the_answer  # type: ignore[method-assign]
    enqueue(bench, "a")
    bench.wait(60.0)
    assert (bench.delivered, effects(bench), worker._held) == (["a"], ["a"], {})


def test_a_worker_that_closes_commits_once_more_what_the_store_did_not_take(bench: Bench) -> None:
    bench.handler = record_effect
    start_worker(bench)
    bench.fail_commits = [None, DOWN]
    enqueue(bench, "a")
    seat = bench.interpreter.seat("w")
    assert seat is not None
    bench.interpreter.feed(seat, Drain())
    bench.run()
    assert effects(bench) == ["a"]


def test_a_finish_that_is_refused_is_handled_again_after_the_lease(bench: Bench) -> None:
    bench.handler = record_effect
    start_worker(bench, lease_s=30.0)
    bench.fail_commits = [None, StoreRefused("too large", fix="make it smaller")]
    enqueue(bench, "a")
    assert effects(bench) == []
    bench.wait(60.0)
    assert bench.delivered == ["a", "a"]
    assert effects(bench) == ["a"]


def test_the_ledger_says_for_which_delivery_a_row_stands(bench: Bench) -> None:
    bench.handler = record_effect
    start_worker(bench, delivery=lambda row: f"to {row.identity}")
    enqueue(bench, "a")
    assert [(entry.event.kind, entry.event.delivery) for entry in bench.store.history("a")][-1:] == [
        (Kind.HANDLED, "to a")
    ]


def test_a_claim_that_fails_is_tried_again(bench: Bench) -> None:
    bench.fail_commits = [DOWN]
    start_worker(bench)
    bench.store.commit([Unit((Enqueue(QUEUE, "a", Envelope(id="a")),))])
    bench.wait(2.0)
    assert bench.delivered == ["a"]


def test_two_workers_share_without_doubling(bench: Bench) -> None:
    bench.handler = record_effect
    start_worker(bench, "one", parallel=3)
    start_worker(bench, "two", parallel=3)
    enqueue(bench, *(f"m{n}" for n in range(20)))
    assert sorted(effects(bench)) == sorted(f"m{n}" for n in range(20))


# -- handlers that end their rows in a transaction of their own


def finish_itself(bench: Bench) -> Any:
    def handle(item: Any) -> OwnTransaction:
        finish = Finish(item.queue, item.identity, WorkState.DONE, fence=item.fence)
        outcome = bench.store.commit([Unit((finish, *record_effect(item)))])[0]
        return OwnTransaction.FINISHED if isinstance(outcome, Applied) else OwnTransaction.LOST

    return handle


def test_a_row_that_the_handler_has_finished_is_only_forgotten(bench: Bench) -> None:
    bench.handler = finish_itself(bench)
    worker = start_worker(bench)
    enqueue(bench, "a", "b")
    assert (effects(bench), kinds(bench), bench.notes) == (["a", "b"], [], [])
    assert worker._held == {}


def test_a_row_that_the_handler_could_not_finish_is_lost_and_not_written_to(bench: Bench) -> None:
    held: list[Any] = []
    bench.deliver = lambda seat, effect: held.append((seat, effect))  # type: ignore[method-assign]
    worker = start_worker(bench, lease_s=30.0)
    enqueue(bench, "a")
    bench.now += 31.0
    taken = commit(bench, Claim(QUEUE, "thief"))[0]
    bench.handler = finish_itself(bench)
    Bench.deliver(bench, *held[0])
    bench.run()
    row = bench.store.work(QUEUE, "a")
    assert row is not None
    assert (row.owner, row.fence, row.state) == ("thief", taken.rows[0].fence, WorkState.CLAIMED)
    assert ([note.topic for note in bench.notes], worker._held, effects(bench)) == (["claim-lost"], {}, [])


def test_a_renewal_that_comes_after_the_handlers_own_finish_is_no_loss(bench: Bench) -> None:
    held: list[Any] = []
    bench.deliver = lambda seat, effect: held.append((seat, effect))  # type: ignore[method-assign]
    worker = start_worker(bench, lease_s=30.0)
    enqueue(bench, "a")
    bench.now += 10.0
    [renew] = worker.on_timer(bench.now)
    assert isinstance(renew, Commit)
    worker.receive(Delivered(held[0][1].token, finished=True), bench.now)
    assert worker.receive(CommitFailed(renew.token, (Stale(0),)), bench.now) == []


def test_a_row_that_the_application_has_not_begun_is_given_back_as_it_was(bench: Bench) -> None:
    held: list[Any] = []
    bench.deliver = lambda seat, effect: held.append((seat, effect))  # type: ignore[method-assign]
    worker = start_worker(bench)
    enqueue(bench, "a")
    token = held[0][1].token
    assert worker.may_begin(token, bench.now)
    assert not worker.may_begin(token, bench.now + 31.0), "its lease has run out"
    worker.receive(Pause(), bench.now)
    assert not worker.may_begin(token, bench.now)
    [release] = worker.receive(DeliverUntouched(held[0][1].token), bench.now)
    assert isinstance(release, Commit)
    commit(bench, *release.ops)
    row = bench.store.work(QUEUE, "a")
    assert row is not None
    assert (row.state, row.attempts, worker._held) == (WorkState.READY, 0, {})


def test_a_worker_that_emptied_the_queue_does_not_look_after_each_row(bench: Bench) -> None:
    """While it still holds rows: others call it, and it looks in a while."""
    held: list[Any] = []
    bench.deliver = lambda seat, effect: held.append(effect)  # type: ignore[method-assign]
    worker = start_worker(bench, parallel=3)
    enqueue(bench, "a", "b")
    assert worker.receive(Delivered(held[0].token, finished=True), bench.now) == []
    [look] = worker.receive(Delivered(held[1].token, finished=True), bench.now)
    assert isinstance(look, LookForWork)


# -- batches


def hold(bench: Bench) -> list[Any]:
    """The application keeps what it gets until the test lets `answer` go."""
    held: list[Any] = []

    def deliver(seat: Any, effect: Any) -> None:
        bench.delivered.append(effect.item.envelope.id)
        held.append((seat, effect))

    bench.deliver = deliver  # type: ignore[method-assign]
    return held


def answer(bench: Bench, held: list[Any], count: int = 1) -> None:
    for seat, effect in [held.pop(0) for _ in range(count)]:
        bench.interpreter.feed(seat, Delivered(effect.token))
    bench.run()


def claims(bench: Bench) -> list[int]:
    """The limits of the claims from now on."""
    asked: list[int] = []
    right = bench.store.commit

    def commit(units: Any) -> Any:
        asked.extend(op.limit for unit in units for op in unit.ops if isinstance(op, Claim))
        return right(units)

    bench.store.commit = commit  # type: ignore[method-assign]
    return asked


def test_a_claim_serves_many_rows_and_waits_until_a_batch_fits(bench: Bench) -> None:
    held = hold(bench)
    enqueue(bench, *(f"m{n}" for n in range(20)))
    asked = claims(bench)
    start_worker(bench, parallel=2, ahead=6, batch=4)
    assert (asked, bench.delivered) == ([8], ["m0", "m1"])
    answer(bench, held, 2)
    answer(bench, held)
    assert (asked, bench.delivered) == ([8], ["m0", "m1", "m2", "m3", "m4"])
    answer(bench, held)
    assert asked == [8, 4]
    while held:
        answer(bench, held)
    assert bench.delivered == [f"m{n}" for n in range(20)]
    assert set(asked) <= {4, 5, 6, 7, 8}


def test_a_worker_that_holds_nothing_claims_however_large_its_batch(bench: Bench) -> None:
    bench.handler = record_effect
    start_worker(bench, parallel=2, ahead=6, batch=8)
    for id in "abc":
        enqueue(bench, id)
    assert effects(bench) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "sizes", [{"parallel": 0}, {"ahead": -1}, {"batch": 0}, {"parallel": 2, "ahead": 1, "batch": 4}]
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        WorkerConfig("w", QUEUE, "hop", **sizes)  # type: ignore[arg-type]


def test_rows_that_wait_keep_their_leases_and_are_renewed_in_one_transaction(bench: Bench) -> None:
    hold(bench)
    enqueue(bench, *(f"m{n}" for n in range(10)))
    start_worker(bench, parallel=1, ahead=9, batch=1, lease_s=30.0)
    commits: list[int] = []
    right = bench.store.commit

    def count(units: Any) -> Any:
        commits.append(sum(isinstance(op, Renew) for unit in units for op in unit.ops))
        return right(units)

    bench.store.commit = count  # type: ignore[method-assign]
    bench.wait(95.0)
    assert [renewed for renewed in commits if renewed] == [10] * 9
    assert commit(bench, Claim(QUEUE, "thief", limit=10))[0] == Claimed(())


def test_what_falls_due_soon_is_renewed_with_what_is_due(bench: Bench) -> None:
    hold(bench)
    worker = start_worker(bench, parallel=2, lease_s=30.0)
    enqueue(bench, "a")
    bench.now += 4.0
    enqueue(bench, "b")
    bench.now += 6.0
    assert len(worker.on_timer(bench.now)) == 2


def test_a_row_that_waited_past_its_lease_is_not_begun(bench: Bench) -> None:
    held = hold(bench)
    enqueue(bench, "a", "b")
    start_worker(bench, parallel=1, ahead=1, lease_s=30.0)
    bench.now += 31.0
    answer(bench, held)
    assert bench.delivered == ["a", "b"]  # claimed anew, not the old claim
    row = bench.store.work(QUEUE, "b")
    assert row is not None
    assert row.attempts == 2


def test_a_lost_row_that_is_still_with_the_application_takes_up_room(bench: Bench) -> None:
    held = hold(bench)
    start_worker(bench, parallel=1, lease_s=30.0)
    enqueue(bench, "a")
    bench.now += 31.0
    commit(bench, Claim(QUEUE, "thief"))
    bench.wait(5.0)
    enqueue(bench, "b")
    assert bench.delivered == ["a"]
    answer(bench, held)
    assert bench.delivered == ["a", "b"]


# -- looking


def test_an_idle_worker_reads_and_does_not_commit(bench: Bench) -> None:
    start_worker(bench, idle_s=0.2)
    asked = claims(bench)
    bench.wait(10.0)
    assert asked == []
    bench.store.commit([Unit((Enqueue(QUEUE, "a", Envelope(id="a")),))])
    bench.wait(0.2)
    assert bench.delivered == ["a"]
    assert asked


def test_a_look_that_fails_is_made_again(bench: Bench) -> None:
    worker = start_worker(bench, idle_s=5.0)
    bench.now += 5.0
    assert worker.on_timer(bench.now) == [LookForWork(QUEUE)]
    assert worker.receive(LoadFailed(QUEUE, DOWN), bench.now) == ()
    assert worker.next_deadline() == bench.now + 1.0


def test_a_worker_that_is_woken_while_it_claims_claims_again(bench: Bench) -> None:
    worker = Worker(WorkerConfig("w", QUEUE, "hop"))
    [first] = worker.start(0.0)
    assert isinstance(first, Commit)
    assert worker.receive(Wake(), 0.0) == []
    [again] = worker.receive(Committed(first.token, (Claimed(()),)), 0.0)
    assert isinstance(again, Commit)
    assert worker.receive(Wake(is_own=True), 0.0) == []
    assert worker.receive(Committed(again.token, (Claimed(()),)), 0.0) == []


def test_after_its_own_commits_a_worker_whose_queue_was_dry_only_looks(bench: Bench) -> None:
    worker = Worker(WorkerConfig("w", QUEUE, "hop"))
    [claim] = worker.start(0.0)
    assert isinstance(claim, Commit)
    worker.receive(Committed(claim.token, (Claimed(()),)), 0.0)
    assert worker.receive(Wake(is_own=True), 0.0) == [LookForWork(QUEUE)]
    assert worker.receive(Wake(is_own=True), 0.0) == []
    assert worker.receive(WorkFound(QUEUE, False), 0.0) == [LookForWork(QUEUE)]
    assert worker.receive(WorkFound(QUEUE, False), 0.0) == []
    assert isinstance(worker.receive(Wake(), 0.0)[0], Commit)


AHEAD = {"parallel": 8, "ahead": 100, "batch": 50, "ahead_s": 0.2, "at_once": 1}


def test_what_a_slow_application_comes_to_much_later_is_left_to_others(bench: Bench) -> None:
    held = hold(bench)
    start_worker(bench, **AHEAD)
    enqueue(bench, *(f"m{n}" for n in range(20)))
    for _ in range(4):
        bench.wait(0.5)
        answer(bench, held)
        assert len(bench.store.work_rows(QUEUE, (WorkState.CLAIMED,))) <= 2


def test_the_faster_the_application_the_more_is_claimed_at_once(bench: Bench) -> None:
    asked = claims(bench)
    start_worker(bench, **AHEAD)
    enqueue(bench, *(f"m{n}" for n in range(200)))
    assert len(bench.delivered) == 200
    assert max(asked) >= 50


def test_who_becomes_slow_claims_little_again(bench: Bench) -> None:
    start_worker(bench, **AHEAD)
    enqueue(bench, *(f"m{n}" for n in range(200)))
    held = hold(bench)
    bench.wait(60.0)
    enqueue(bench, "one")
    bench.wait(60.0)
    answer(bench, held)
    enqueue(bench, *(f"n{n}" for n in range(20)))
    assert len(bench.store.work_rows(QUEUE, (WorkState.CLAIMED,))) <= 2


# -- decisions


class Script:
    """A policy that decides as told, and remembers what it was asked."""

    def __init__(self, *decisions: Decision, last_attempt: int | None = None) -> None:
        self.decisions, self._last_attempt = list(decisions), last_attempt
        self.asked: list[tuple[Failure, int]] = []

    def last_attempt(self, row: WorkRow) -> int | None:
        return self._last_attempt

    def decide(self, failure: Failure, row: WorkRow, attempt: int, now: float, chance: float) -> Decision:
        assert 0 <= chance < 1
        assert row.queue == QUEUE
        self.asked.append((failure, attempt))
        return self.decisions.pop(0)


def fail_always(item: Any) -> tuple[Op, ...]:
    raise KeyError(item.identity)


def test_a_policy_decides_by_what_went_wrong(bench: Bench) -> None:
    bench.handler = fail_always
    policy = Script(Again(bench.now + 7.0), Enough("park"))
    start_worker(bench, policy=policy)
    enqueue(bench, "a")
    row = bench.store.work(QUEUE, "a")
    assert row is not None
    assert row.due == int((bench.now + 7.0) * 1_000_000)
    bench.wait(20.0)
    failure = Failure("'a'", ("KeyError", "LookupError", "Exception", "BaseException"))
    assert policy.asked == [(failure, 1), (failure, 2)]
    assert state_of(bench, "a") is WorkState.PARKED


@pytest.mark.parametrize("decision", [Again(0.0, passes=True), Requeue()])
def test_a_row_that_passes_goes_behind_the_others_of_its_key(bench: Bench, decision: Decision) -> None:
    failures = ["a"]

    def fail_once(item: Any) -> tuple[Op, ...]:
        if item.envelope.id in failures:
            failures.remove(item.envelope.id)
            raise ValueError("not yet")
        return record_effect(item)

    bench.handler = fail_once
    start_worker(bench, policy=Script(decision))
    enqueue(bench, "a", "b", "c", key="k")
    assert effects(bench) == ["b", "c", "a"]
    assert kinds(bench)[0] is Kind.FAILED


def test_a_row_that_is_requeued_goes_behind_all_that_are_due(bench: Bench) -> None:
    bench.handler = lambda item: (
        fail_always(item) if item.attempts == 1 and item.identity == "a" else record_effect(item)
    )
    enqueue(bench, "a")
    bench.now += 1.0
    enqueue(bench, "b")
    bench.now += 1.0
    start_worker(bench, policy=Script(Requeue()))
    assert effects(bench) == ["b", "a"]


def test_a_row_that_is_released_is_ready_at_once(bench: Bench) -> None:
    bench.handler = fail_always
    worker = start_worker(bench, policy=Script(Release()))
    worker.receive(Pause(), bench.now)
    hold(bench)
    enqueue(bench, "a")
    worker.receive(Resume(), bench.now)
    assert state_of(bench, "a") is WorkState.READY


@pytest.mark.parametrize(
    ("then", "state", "kind"),
    [
        ("dead_letter", WorkState.DEAD, Kind.DEAD_LETTERED),
        ("discard", WorkState.DONE, Kind.DISCARDED),
        ("park", WorkState.PARKED, Kind.SUSPENDED),
    ],
)
def test_a_message_that_kills_its_worker_is_given_up_as_the_policy_says(
    bench: Bench, then: GiveUp, state: WorkState, kind: Kind
) -> None:
    enqueue(bench, "a")
    die(bench)
    die(bench, cause=ALONE)
    start_worker(bench, retry=RetryPolicy(retries=1, then=then))
    row = bench.store.work(QUEUE, "a")
    assert row is not None
    assert (bench.delivered, row.state, kinds(bench)) == ([], state, [kind])
    assert row.cause == "its worker died 2 times while it had this message"


def test_a_message_that_kills_its_worker_is_given_up_also_by_a_rule_that_pauses(bench: Bench) -> None:
    enqueue(bench, "a", "b")
    die(bench, identity="a", cause=ALONE)
    start_worker(bench, policy=Script(PauseThen(60.0, Enough("dead_letter")), last_attempt=1), parallel=2)
    assert (bench.delivered, state_of(bench, "a"), state_of(bench, "b")) == ([], WorkState.DEAD, WorkState.READY)
    bench.wait(60.0)
    assert bench.delivered == ["b"]


def test_a_death_after_failures_names_the_last_of_them(bench: Bench) -> None:
    bench.handler = fail_always
    start_worker(bench, retry=RetryPolicy(retries=1, interval_s=1.0, then="dead_letter"), idle_s=60.0)
    enqueue(bench, "a")
    bench.now += 2.0
    [claimed] = bench.store.commit([Unit((Claim(QUEUE, "one that dies"),))])[0].results
    assert isinstance(claimed, Claimed)
    marked = Renew(QUEUE, "a", claimed.rows[0].fence, 1.0, cause=f"{ALONE}; before that: 'a'")
    bench.store.commit([Unit((marked,))])
    bench.wait(100.0)
    row = bench.store.work(QUEUE, "a")
    assert row is not None
    assert (bench.delivered, row.state) == (["a"], WorkState.DEAD)
    assert row.cause == "its worker died while it had this message, at attempt 2; before that: 'a'"


def test_a_last_attempt_is_made_whatever_became_of_those_before(bench: Bench) -> None:
    bench.handler = record_effect
    enqueue(bench, "a")
    for _ in range(2):
        commit(bench, Claim(QUEUE, "one that dies", lease_s=1.0))
        bench.now += 2.0
    start_worker(bench, retry=RetryPolicy(retries=2))
    assert effects(bench) == ["a"]


# -- suspects


def die(bench: Bench, limit: int = 1, identity: str | None = None, cause: str | None = None) -> None:
    """A worker claims, and is never heard of again."""
    [claimed] = commit(bench, Claim(QUEUE, "one that dies", limit=limit, lease_s=1.0, identity=identity))
    if cause is not None:
        commit(bench, *(Renew(QUEUE, row.identity, row.fence, 1.0, cause) for row in claimed.rows))
    bench.now += 2.0


def start_with_suspects(bench: Bench, *ids: str, deaths: int = 2, keyed: bool = False, **more: Any) -> Worker:
    """Their workers have died so often that this attempt is the last one; nobody knows of which of them."""
    for id in ids:
        enqueue(bench, id, key=id if keyed else None)
    for _ in range(deaths):
        die(bench, limit=len(ids))
    return start_worker(bench, retry=RetryPolicy(retries=2, then="dead_letter"), parallel=4, **more)


def cause_of(bench: Bench, id: str) -> str | None:
    row = bench.store.work(QUEUE, id)
    assert row is not None
    return row.cause


@pytest.mark.parametrize("keyed", [False, True])
def test_suspects_run_one_after_the_other_each_marked_and_alone(bench: Bench, keyed: bool) -> None:
    held = hold(bench)
    start_with_suspects(bench, "a", "b", "c", keyed=keyed)
    for id in ("a", "b", "c"):
        assert [each.item.identity for _, each in held] == [id]
        assert [each for each in ("a", "b", "c") if cause_of(bench, each) == ALONE][-1] == id
        answer(bench, held)
    assert [state_of(bench, id) for id in ("a", "b", "c")] == [WorkState.DONE] * 3


@pytest.mark.parametrize("deaths", [2, 3, 7])
def test_who_was_held_beside_others_when_a_worker_died_is_never_given_up_for_it(bench: Bench, deaths: int) -> None:
    bench.handler = record_effect
    start_with_suspects(bench, "a", "b", "c", deaths=deaths)
    assert sorted(effects(bench)) == ["a", "b", "c"]


def test_a_suspect_waits_for_what_is_with_the_application_and_nothing_new_is_claimed(bench: Bench) -> None:
    held = hold(bench)
    enqueue(bench, "s")
    die(bench)
    enqueue(bench, "a", "b")
    start_worker(bench, retry=RetryPolicy(retries=1), parallel=4)
    assert [each.item.identity for _, each in held] == ["a", "b"]
    enqueue(bench, "c")
    answer(bench, held)
    assert ([each.item.identity for _, each in held], cause_of(bench, "s")) == (["b"], None)
    answer(bench, held)
    assert ([each.item.identity for _, each in held], cause_of(bench, "s")) == (["s"], ALONE)
    assert state_of(bench, "c") is WorkState.READY
    answer(bench, held)
    assert [each.item.identity for _, each in held] == ["c"]


def test_a_suspect_that_fails_is_given_up_for_that(bench: Bench) -> None:
    bench.handler = fail_always
    start_with_suspects(bench, "a")
    assert (state_of(bench, "a"), cause_of(bench, "a")) == (WorkState.DEAD, "'a'")


def test_a_mark_that_the_store_does_not_take_is_written_again_before_the_suspect_runs(bench: Bench) -> None:
    enqueue(bench, "a")
    die(bench)
    bench.fail_commits = [None, DOWN]
    start_worker(bench, retry=RetryPolicy(retries=1), lease_s=30.0)
    assert bench.delivered == []
    bench.wait(4.0)
    assert bench.delivered == ["a"]


def test_a_suspect_that_is_given_back_is_not_blamed_and_still_comes_from_a_dead_worker(bench: Bench) -> None:
    held = hold(bench)
    worker = start_with_suspects(bench, "a")
    token = held[0][1].token
    give_back = worker.receive(DeliverUntouched(token), bench.now)
    [op] = [op for each in give_back if isinstance(each, Commit) for op in each.ops if isinstance(op, Renew)]
    assert (op.lease_s, op.cause) == (0.0, "")
    _, [claimed] = [each.results for each in bench.store.commit([Unit((op,)), Unit((Claim(QUEUE, "next"),))])]
    assert (claimed.rows[0].taken_over, claimed.rows[0].cause) == (True, "")


def test_a_suspect_whose_end_is_in_doubt_is_not_taken_for_one_that_killed(bench: Bench) -> None:
    held = hold(bench)
    worker = start_with_suspects(bench, "a")
    token = held[0][1].token
    lost = worker.receive(DeliverLost(token), bench.now)
    assert [op.cause for each in lost if isinstance(each, Commit) for op in each.ops if isinstance(op, Renew)] == [""]


# -- gates


class ShutGate:
    """Lets nothing in, and cannot say until when."""

    is_shut = True

    def room(self, now: float, asked: int) -> int:
        return 0 if self.is_shut else asked

    def next_deadline(self, now: float) -> float | None:
        return None

    def taken(self, row: WorkRow, now: float) -> None: ...

    def returned(self, row: WorkRow) -> None: ...


def test_a_gate_that_opens_unseen_is_found_open(bench: Bench) -> None:
    gate = ShutGate()
    start_worker(bench, gate=gate, idle_s=5.0)
    enqueue(bench, "a")
    gate.is_shut = False
    bench.wait(5.0)
    assert bench.delivered == ["a"]


# -- pausing and closing


def test_a_paused_worker_takes_nothing_new_and_gives_back_what_waits(bench: Bench) -> None:
    held = hold(bench)
    enqueue(bench, "a", "b", "c")
    worker = start_worker(bench, parallel=1, ahead=1)
    seat = bench.interpreter.seat("w")
    assert seat is not None
    bench.interpreter.feed(seat, Pause())
    bench.run()
    assert worker.is_paused
    assert [state_of(bench, id) for id in "abc"] == [WorkState.CLAIMED, WorkState.READY, WorkState.READY]
    answer(bench, held)
    bench.wait(100.0)
    assert (bench.delivered, state_of(bench, "a")) == (["a"], WorkState.DONE)
    bench.interpreter.feed(seat, Resume())
    bench.run()
    assert bench.delivered == ["a", "b"]


def test_a_pause_ends_by_itself(bench: Bench) -> None:
    worker = start_worker(bench)
    seat = bench.interpreter.seat("w")
    assert seat is not None
    bench.interpreter.feed(seat, Pause(bench.now + 30.0))
    enqueue(bench, "a")
    bench.wait(29.0)
    assert bench.delivered == []
    bench.wait(1.0)
    assert (bench.delivered, worker.is_paused) == (["a"], False)


def test_rows_that_come_after_a_pause_are_given_back(bench: Bench) -> None:
    enqueue(bench, "a")
    worker = Worker(WorkerConfig("w", QUEUE, "hop"))
    bench.interpreter.add(worker)
    worker.receive(Pause(), bench.now)
    bench.run()
    assert (bench.delivered, state_of(bench, "a"), worker._held) == ([], WorkState.READY, {})


def test_a_worker_at_rest_finishes_what_is_begun_and_gives_back_the_rest(bench: Bench) -> None:
    held = hold(bench)
    enqueue(bench, *"abcd")
    worker = start_worker(bench, parallel=1, ahead=2)
    seat = bench.interpreter.seat("w")
    assert seat is not None
    bench.interpreter.feed(seat, Drain())
    bench.run()
    answer(bench, held)
    bench.wait(100.0)
    assert bench.delivered == ["a"]
    assert [state_of(bench, id) for id in "abcd"] == [WorkState.DONE] + [WorkState.READY] * 3
    assert (worker._held, worker._releasing) == ({}, set())


def test_a_follower_handles_a_stream_in_order_with_its_cursor(bench: Bench) -> None:
    bench.handler = record_effect
    start_follower(bench, batch=2)
    publish(bench, *"abcde")
    assert effects(bench) == list("abcde")
    assert bench.store.cursor("follow/f") == Position(STREAM, 1, 5)
    assert kinds(bench) == [Kind.HANDLED] * 5


def test_a_restarted_follower_goes_on_where_its_last_commit_ended(bench: Bench) -> None:
    bench.handler = record_effect
    publish(bench, "a", "b")
    start_follower(bench)
    publish(bench, "c")
    start_follower(bench)
    publish(bench, "d")
    assert effects(bench) == list("abcd")


def test_nothing_overtakes_a_record_that_fails(bench: Bench) -> None:
    failures = ["b", "b"]

    def fail_twice(item: Any) -> tuple[Op, ...]:
        if item.envelope.id in failures:
            failures.remove(item.envelope.id)
            raise ValueError("not yet")
        return record_effect(item)

    bench.handler = fail_twice
    start_follower(bench)
    publish(bench, *"abc")
    assert effects(bench) == ["a"]
    bench.wait(60.0)
    assert effects(bench) == ["a", "b", "c"]
    assert [event.attempt for event in bench.ledger()] == [1, 3, 1]


def test_a_follower_that_may_not_try_again_stops(bench: Bench) -> None:
    def fail(item: Any) -> tuple[Op, ...]:
        raise ValueError("no")

    bench.handler = fail
    start_follower(bench, retry=RetryPolicy(retries=0))
    publish(bench, "a", "b")
    assert bench.delivered == ["a"]
    assert bench.closes == ["suspended"]
    assert bench.store.cursor("follow/f") is None


def test_a_commit_in_question_makes_the_follower_ask_the_store(bench: Bench) -> None:
    bench.handler = record_effect
    start_follower(bench)
    bench.fail_commits = [DOWN]
    publish(bench, "a", "b")
    assert (bench.delivered, bench.closes) == (["a"], ["reload"])
    start_follower(bench)
    assert effects(bench) == ["a", "b"]


def test_of_two_followers_with_one_cursor_only_one_lands_each_effect(bench: Bench) -> None:
    bench.handler = record_effect
    follower = start_follower(bench)
    other = Bench()
    other.store, other.handler = bench.store, record_effect
    start_follower(other)
    bench.store.commit([Unit((Append(STREAM, Envelope(id="a")),))])
    bench.interpreter.wake()
    other.interpreter.wake()
    bench.run()
    other.run()
    assert effects(bench) == ["a"]
    assert other.closes == ["reload"]
    assert follower.next_deadline() is None


def test_a_follower_that_would_skip_records_stops(bench: Bench) -> None:
    publish(bench, "a", "b", "c")
    commit(bench, Trim(STREAM, 3))
    start_follower(bench)
    assert bench.delivered == []
    assert bench.closes == ["trimmed"]


def test_a_follower_of_an_old_epoch_stops(bench: Bench) -> None:
    start_follower(bench)
    publish(bench, "a")
    bench.store.raise_epoch("restored")
    publish(bench, "b")
    assert bench.closes == ["epoch-changed"]
    assert bench.delivered == ["a"]


def test_a_stopped_follower_does_nothing_more(bench: Bench) -> None:
    follower = start_follower(bench)
    bench.store.raise_epoch("restored")
    publish(bench, "b")
    start_follower(bench)
    assert follower.receive(Wake(), bench.now) == ()
    assert follower.next_deadline() is None


def test_ahead_lets_commits_of_a_follower_share_a_transaction_in_order(bench: Bench) -> None:
    bench.handler = record_effect
    start_follower(bench, ahead=3)
    publish(bench, *"abcdefg")
    assert effects(bench) == list("abcdefg")
    assert bench.store.cursor("follow/f") == Position(STREAM, 1, 7)


def test_a_failed_commit_takes_those_after_it_down_and_nothing_lands_twice(bench: Bench) -> None:
    bench.handler = record_effect
    start_follower(bench, ahead=3)
    bench.fail_commits = [DOWN]
    publish(bench, *"abcde")
    assert effects(bench) == []
    assert bench.closes == ["reload"]
    start_follower(bench, ahead=3)
    assert effects(bench) == list("abcde")
