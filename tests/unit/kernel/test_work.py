"""Worker and follower: effects and completions land together, and nothing is done under a lost claim."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.kernel.bench import Bench

from semel.errors import StoreUnavailable
from semel.kernel.effects import Commit, CommitFailed, CommitUnknown, Wake
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Claim, Claimed, Enqueue, Finish, Op, Trim, Unit, WorkState
from semel.kernel.position import Position
from semel.kernel.retry import GiveUp, RetryPolicy
from semel.kernel.store import Records
from semel.kernel.work import Follower, FollowerConfig, Worker, WorkerConfig
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


def test_a_finish_that_fails_is_handled_again_after_the_lease(bench: Bench) -> None:
    bench.handler = record_effect
    start_worker(bench, lease_s=30.0)
    bench.fail_commits = [None, DOWN]
    enqueue(bench, "a")
    assert effects(bench) == []
    bench.wait(60.0)
    assert bench.delivered == ["a", "a"]
    assert effects(bench) == ["a"]


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
