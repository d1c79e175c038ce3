"""The sending end: the same id on every attempt, in order, exactly as often as the policy says."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semel.errors import ConfigError, LocalProtocolError
from semel.kernel.resend import GaveUp, Resend, ResendPolicy, Transmit
from semel.kernel.retry import RetryPolicy


def policy(window: int = 1, retries: int | None = 2) -> ResendPolicy:
    return ResendPolicy(window, timeout_s=5.0, retry=RetryPolicy(retries=retries, interval_s=3.0))


def test_stop_and_wait_sends_one_at_a_time() -> None:
    resend: Resend[str] = Resend(policy())
    assert resend.offer("a", "A", 0.0) == [Transmit("a", "A", 1)]
    assert resend.offer("b", "B", 0.0) == []
    assert resend.room == 0
    assert resend.confirm("a", 1.0) == (True, [Transmit("b", "B", 1)])
    assert list(resend.unconfirmed()) == ["b"]


def test_attempts_wait_for_the_timeout_and_then_for_the_interval() -> None:
    resend: Resend[str] = Resend(policy())
    resend.offer("a", "A", 100.0)
    assert resend.next_deadline() == 105.0
    assert resend.on_timer(104.9) == []
    assert resend.on_timer(105.0) == [Transmit("a", "A", 2)]
    assert resend.on_timer(108.0) == [Transmit("a", "A", 3)]
    assert resend.on_timer(111.0) == [GaveUp("a", 3)]
    assert resend.next_deadline() is None
    assert resend.on_timer(1e9) == []


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_exactly_one_plus_retries_attempts(retries: int) -> None:
    resend: Resend[str] = Resend(policy(retries=retries))
    sends = len(resend.offer("a", "A", 0.0))
    while (deadline := resend.next_deadline()) is not None:
        sends += sum(isinstance(effect, Transmit) for effect in resend.on_timer(deadline))
    assert sends == 1 + retries
    assert resend.suspended == GaveUp("a", 1 + retries)


def test_a_late_confirm_of_any_attempt_is_accepted() -> None:
    resend: Resend[str] = Resend(policy())
    resend.offer("a", "A", 0.0)
    resend.on_timer(5.0)
    assert resend.confirm("a", 6.0) == (True, [])
    assert resend.confirm("a", 7.0) == (False, [])
    assert resend.next_deadline() is None


def test_a_confirm_is_accepted_even_after_giving_up() -> None:
    resend: Resend[str] = Resend(policy(retries=0))
    resend.offer("a", "A", 0.0)
    resend.offer("b", "B", 0.0)
    resend.on_timer(5.0)
    assert resend.confirm("a", 6.0) == (True, [])
    assert resend.resume(7.0) == [Transmit("b", "B", 1)]


def test_one_that_is_out_of_attempts_suspends_all() -> None:
    resend: Resend[str] = Resend(policy(window=3, retries=0))
    for id in "abcd":
        resend.offer(id, id.upper(), 0.0)
    assert resend.on_timer(5.0) == [GaveUp("a", 1)]
    assert resend.offer("e", "E", 6.0) == []
    assert resend.resend_all(6.0) == []


def test_resume_sends_everything_in_order_and_counts_anew() -> None:
    resend: Resend[str] = Resend(policy(window=2, retries=1))
    for id in "abc":
        resend.offer(id, id.upper(), 0.0)
    resend.on_timer(5.0)
    assert resend.on_timer(8.0) == [GaveUp("a", 2)]
    assert resend.resume(20.0) == [Transmit("a", "A", 1), Transmit("b", "B", 1)]
    assert resend.next_deadline() == 25.0
    assert resend.on_timer(25.0) == [Transmit("a", "A", 2), Transmit("b", "B", 2)]


def test_a_reconnect_sends_what_is_in_flight_in_order() -> None:
    resend: Resend[str] = Resend(policy(window=2, retries=None))
    for id in "abc":
        resend.offer(id, id.upper(), 0.0)
    assert resend.resend_all(1.0) == [Transmit("a", "A", 2), Transmit("b", "B", 2)]
    assert resend.next_deadline() == 4.0


def test_resends_of_one_tick_keep_the_order_of_the_offers() -> None:
    resend: Resend[str] = Resend(policy(window=3, retries=None))
    resend.offer("a", "A", 0.0)
    resend.offer("b", "B", 1.0)
    resend.on_timer(5.0)
    resend.offer("c", "C", 2.0)
    again = resend.on_timer(8.0)
    assert [effect.id for effect in again] == ["a", "b", "c"]


@pytest.mark.parametrize("where", ["in flight", "waiting"])
def test_offering_the_same_id_twice_is_a_mistake(where: str) -> None:
    resend: Resend[str] = Resend(policy())
    resend.offer("first", "", 0.0)
    if where == "waiting":
        resend.offer("second", "", 0.0)
    with pytest.raises(LocalProtocolError):
        resend.offer("first" if where == "in flight" else "second", "", 0.0)


def test_jitter_is_the_same_in_every_run_and_differs_between_senders() -> None:
    jittery = ResendPolicy(1, 1.0, RetryPolicy(interval_s=10.0, jitter=0.5))

    def deadlines(seed: int) -> list[float]:
        resend: Resend[None] = Resend(jittery, seed=seed)
        resend.offer("a", None, 0.0)
        found = []
        for _ in range(4):
            at = resend.next_deadline()
            assert at is not None
            found.append(at)
            resend.on_timer(at)
        return found

    assert deadlines(1) == deadlines(1) != deadlines(2)


@pytest.mark.parametrize(("window", "timeout_s"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0)])
def test_a_policy_that_makes_no_sense_is_refused(window: int, timeout_s: float) -> None:
    with pytest.raises(ConfigError):
        ResendPolicy(window, timeout_s)


class ResendMachine(RuleBasedStateMachine):
    """Random offers, confirms, timers, reconnects and resumes, held to what every sender must keep."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.resend: Resend[int] = Resend(policy(window=3, retries=2))
        self.offered: list[str] = []
        self.confirmed: set[str] = set()
        self.sent: list[str] = []
        self.attempts: Counter[str] = Counter()
        self.reconnected = False

    def note(self, effects: list[Transmit[int] | GaveUp] | list[Transmit[int]]) -> None:
        for effect in effects:
            if isinstance(effect, Transmit):
                assert effect.item == self.offered.index(effect.id), "an id goes with its item on every attempt"
                assert effect.id not in self.confirmed
                self.attempts[effect.id] = self.attempts[effect.id] + 1 if effect.attempt > 1 else 1
                assert effect.attempt == self.attempts[effect.id]
                if effect.id not in self.sent:
                    self.sent.append(effect.id)
        order = [self.offered.index(effect.id) for effect in effects if isinstance(effect, Transmit)]
        assert order == sorted(order), "what goes out together goes out in the order of the offers"

    @rule()
    def offer(self) -> None:
        self.offered.append(f"m{len(self.offered)}")
        self.note(self.resend.offer(self.offered[-1], len(self.offered) - 1, self.now))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.sent))
        first, effects = self.resend.confirm(id, self.now)
        assert first == (id not in self.confirmed), "the first confirm counts, whichever attempt it answers"
        self.confirmed.add(id)
        self.note(effects)

    @rule(wait=st.floats(0, 8))
    def time(self, wait: float) -> None:
        self.now += wait
        was_suspended = self.resend.suspended is not None
        effects = self.resend.on_timer(self.now)
        assert not (was_suspended and effects)
        self.note(effects)
        gave_up = [effect for effect in effects if isinstance(effect, GaveUp)]
        assert all(effect.attempts >= 3 for effect in gave_up)
        assert all(self.attempts[effect.id] == effect.attempts for effect in gave_up)

    @rule()
    def reconnect(self) -> None:
        self.note(self.resend.resend_all(self.now))

    @precondition(lambda self: self.resend.suspended is not None)
    @rule()
    def resume(self) -> None:
        self.note(self.resend.resume(self.now))

    @invariant()
    def window_holds(self) -> None:
        in_flight = [id for id in self.sent if id not in self.confirmed]
        assert len(in_flight) <= 3

    @invariant()
    def nothing_is_forgotten_and_order_is_kept(self) -> None:
        assert list(self.resend.unconfirmed()) == [id for id in self.offered if id not in self.confirmed]
        assert self.sent == self.offered[: len(self.sent)], "first attempts go out in the order of the offers"

    @invariant()
    def something_is_due_while_something_is_in_flight(self) -> None:
        waits = any(id not in self.confirmed for id in self.sent)
        deadline = self.resend.next_deadline()
        assert (deadline is not None) == (waits and self.resend.suspended is None)


TestResendMachine = ResendMachine.TestCase
TestResendMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 4))
def test_a_link_that_loses_delivers_everything_in_the_end(lost: list[bool], window: int) -> None:
    resend: Resend[None] = Resend(policy(window=window, retries=None))
    fate = iter(lost)
    on_the_way = [effect for n in range(8) for effect in resend.offer(f"m{n}", None, 0.0)]
    arrived: list[str] = []
    while len(resend):
        for effect in on_the_way:
            if next(fate, False):
                continue
            arrived += [effect.id] if effect.id not in arrived else []
        confirmed = [id for effect in on_the_way if (id := effect.id) in arrived]
        on_the_way = [again for id in confirmed for again in resend.confirm(id, 0.0)[1]]
        if not on_the_way and (deadline := resend.next_deadline()) is not None:
            on_the_way = [effect for effect in resend.on_timer(deadline) if isinstance(effect, Transmit)]
    assert sorted(arrived) == [f"m{n}" for n in range(8)]
