from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigError
from semel.inbox.endpoint import FailedHead
from semel.inbox.failure import STEPS_MAX, FailureRule, FailureRules, exponential, on, retry
from semel.kernel.retry import Again, Decision, Enough, Failure, PauseThen, Requeue, error_name, type_names
from semel.kernel.work import WORKER_DIED

DEAD = Enough("dead_letter", holds=True)
PARKED = Enough("park", holds=True)


class Base(Exception):
    pass


class Middle(Base):
    pass


class Leaf(Middle):
    pass


CLASSES: tuple[type[BaseException], ...] = (Leaf, Middle, Base, Exception, BaseException)


def failure_of(error: BaseException) -> Failure:
    return Failure(str(error), type_names(type(error)))


def decide(policy: FailureRules, error: BaseException, attempt: int = 1, now: float = 100.0) -> Decision:
    return policy.decide(failure_of(error), attempt, now, 0.0)


def ended(policy: FailureRules, error: BaseException) -> Decision:
    return decide(policy, error, policy.attempts_max)


# -- which rule decides


@given(st.sets(st.sampled_from(CLASSES), min_size=1), st.sampled_from(CLASSES), st.randoms())
def test_the_most_specific_class_decides(
    known: set[type[BaseException]], raised: type[BaseException], random: Random
) -> None:
    rules = [retry(each, waits=[CLASSES.index(each) + 1.0]) for each in known]
    random.shuffle(rules)
    policy = FailureRules(handler=tuple(rules), default=on(BaseException).discard())
    fitting = [each for each in known if issubclass(raised, each)]
    expected = Again(100.0 + min(CLASSES.index(each) for each in fitting) + 1.0) if fitting else Enough("discard")
    assert decide(policy, raised()) == expected


def test_the_handlers_word_comes_before_the_endpoints_and_that_before_the_apps() -> None:
    policy = FailureRules(handler=(on(Leaf).discard(),), endpoint=(on(Middle).park(),), app=(on(Base).discard(),))
    assert decide(policy, Leaf()) == Enough("discard")
    assert decide(policy, Middle()) == PARKED
    assert decide(policy, Base()) == Enough("discard")
    assert isinstance(decide(policy, ValueError()), Again)


def test_a_handler_that_takes_everything_is_not_overruled_by_a_finer_rule_of_the_app() -> None:
    policy = FailureRules(handler=(on(Exception).park(),), app=(on(Leaf).discard(),))
    assert decide(policy, Leaf()) == PARKED


def test_two_rules_for_one_class_are_refused() -> None:
    with pytest.raises(ConfigError, match="two rules") as caught:
        FailureRules(app=(on(Leaf).discard(), retry(Base, Leaf, waits=[1])))
    assert caught.value.fix


def test_classes_are_known_by_their_qualified_names() -> None:
    rule = on("TimeoutError", error_name(Leaf)).discard()
    policy = FailureRules(app=(rule,))
    assert decide(policy, TimeoutError()) == decide(policy, Leaf()) == Enough("discard")

    class TimeoutLike(Exception):
        pass

    TimeoutLike.__qualname__ = "TimeoutError"
    assert isinstance(decide(policy, TimeoutLike()), Again)


# -- what it decides


def test_the_waits_of_a_rule_one_after_the_other_then_its_end() -> None:
    policy = FailureRules(handler=(retry(TimeoutError, waits=[0.05, 0.25, 2]).then("dead_letter"),))
    decisions = [decide(policy, TimeoutError(), attempt) for attempt in (1, 2, 3, 4, 5)]
    assert decisions == [
        Again(100.05),
        Again(100.25),
        Again(102.0),
        DEAD,
        DEAD,
    ]


def test_the_default_is_three_attempts_then_a_dead_letter() -> None:
    policy = FailureRules()
    assert policy.attempts_max == 3
    assert [decide(policy, Leaf(), attempt) for attempt in (1, 2, 3)] == [
        Again(101.0),
        Again(104.0),
        DEAD,
    ]


@given(st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_jitter_takes_from_the_end_of_the_wait(wait: float, jitter: float, chance: float) -> None:
    policy = FailureRules(app=(retry(Exception, waits=[wait], jitter=jitter),))
    decision = policy.decide(failure_of(Leaf()), 1, 0.0, chance)
    assert isinstance(decision, Again)
    assert wait * (1 - jitter) - 1e-6 <= decision.at <= wait


def test_steps_of_several_sorts() -> None:
    rule = on(Exception).retry_now(2).retry([1]).requeue(2).schedule([60, 600]).park()
    policy = FailureRules(app=(rule,))
    assert [decide(policy, Leaf(), attempt) for attempt in range(1, 9)] == [
        Again(100.0), Again(100.0), Again(101.0), Requeue(), Requeue(),
        Again(160.0, passes=True), Again(700.0, passes=True), PARKED,
    ]  # fmt: skip


def test_a_pause_goes_with_the_decision_for_the_message() -> None:
    policy = FailureRules(app=(on(ConnectionError).requeue().pause(60).discard(),))
    assert decide(policy, ConnectionError(), 1) == PauseThen(60, Requeue())
    assert decide(policy, ConnectionError(), 2) == PauseThen(60, Enough("discard"))


def test_a_rule_that_only_pauses_tries_again_like_the_default() -> None:
    policy = FailureRules(app=(on(ConnectionError).pause(60),))
    assert decide(policy, ConnectionError(), 1) == PauseThen(60, Again(101.0))
    assert decide(policy, ConnectionError(), 3) == PauseThen(60, DEAD)


@pytest.mark.parametrize(("head", "holds"), [(FailedHead.BLOCKS, True), (FailedHead.PASSES, False)])
def test_one_that_failed_for_good_blocks_or_passes_its_key(head: FailedHead, holds: bool) -> None:
    policy = FailureRules(app=(on(Leaf).park(),), failed_head=head)
    assert decide(policy, Leaf()) == Enough("park", holds)
    assert ended(policy, ValueError()) == Enough("dead_letter", holds)


def test_a_retry_keeps_its_key_whatever_becomes_of_those_that_fail_for_good() -> None:
    assert decide(FailureRules(failed_head=FailedHead.PASSES), Leaf()) == Again(101.0)


rules = st.builds(
    lambda kind, waits, times, end: on(kind).retry(waits).requeue(times).then(end),
    st.sampled_from(CLASSES),
    st.lists(st.floats(0, 100), max_size=5),
    st.integers(1, 5),
    st.sampled_from(["discard", "dead_letter", "park"]),
)


@given(rules, rules, st.sampled_from(CLASSES), st.integers(0, 20))
def test_every_message_comes_to_an_end(
    one: FailureRule, other: FailureRule, raised: type[BaseException], more: int
) -> None:
    """A row with more attempts than any rule allows is never tried again: a poison message blocks nobody for ever."""
    policy = FailureRules(handler=(one,), app=(other,))
    assert isinstance(decide(policy, raised(), policy.attempts_max + more), Enough)


def test_a_message_that_kills_its_worker_ends_as_the_policy_says() -> None:
    died = Failure("its worker died 4 times while it had this message", WORKER_DIED)
    assert FailureRules().decide(died, 4, 0.0, 0.0) == DEAD
    parks = FailureRules(app=(on(WORKER_DIED[0]).park(),))
    assert parks.decide(died, 4, 0.0, 0.0) == PARKED


# -- what cannot be used is refused where it is written


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: on(),
        lambda: on(int),  # type: ignore[arg-type]
        lambda: on(""),
        lambda: on(Leaf()),  # type: ignore[arg-type]
        lambda: retry(Leaf, waits=[-1]),
        lambda: retry(Leaf, waits=[float("nan")]),
        lambda: retry(Leaf, waits=[float("inf")]),
        lambda: retry(Leaf, waits=[1], jitter=1.5),
        lambda: on(Leaf).then("retry"),
        lambda: on(Leaf).retry_now(0),
        lambda: on(Leaf).requeue(STEPS_MAX + 1),
        lambda: on(Leaf).requeue(STEPS_MAX).requeue(),
        lambda: on(Leaf).pause(0),
        lambda: exponential(1, 3, factor=0.5),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        wrong()
    assert caught.value.fix


def test_a_rule_is_not_changed_by_what_is_said_after_it() -> None:
    base = on(Leaf).retry([1])
    base.discard()
    assert base == retry(Leaf, waits=[1])


def test_waits_that_grow_up_to_a_maximum() -> None:
    assert exponential(1, 5, factor=3, max_s=20) == (1, 3, 9, 20, 20)
    assert exponential(1, 200, factor=10)[-1] == 60
