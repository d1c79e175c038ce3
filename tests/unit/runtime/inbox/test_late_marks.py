"""A mark that the store would not take is written when it is back."""

from __future__ import annotations

import pytest

from semel.errors import StoreUnavailable
from semel.inbox.reservation import DIED
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Claim, Enqueue, Finish, Op, Unit, WorkState
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Store
from semel.runtime.inbox import late_marks
from semel.runtime.inbox.late_marks import LateMarks
from semel.stores.memory import MemoryStore
from semel.testing.limits import wait_until

QUEUE = "inbox/mail"


class Away:
    """A store that cannot be reached for so many times."""

    def __init__(self, store: Store, times: int) -> None:
        self.store, self.times = store, times

    def __call__(self) -> Store:
        self.times -= 1
        if self.times >= 0:
            raise StoreUnavailable("it is away", fix="wait")
        return self.store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(late_marks, "RETRY", RetryPolicy(interval_s=0.001))
    made = MemoryStore()
    made.commit([Unit((Enqueue(QUEUE, "a", Envelope("a")),))])
    return made


def claimed(store: Store) -> int:
    [outcome] = store.commit([Unit((Claim(QUEUE, "w", 1, 60.0),))])
    [result] = outcome.results  # type: ignore[union-attr]
    return result.rows[0].fence  # type: ignore[union-attr, no-any-return]


def done(fence: int) -> tuple[Op, ...]:
    return (Finish(QUEUE, "a", WorkState.DONE, fence),)


def state(store: Store) -> WorkState:
    row = store.work(QUEUE, "a")
    assert row is not None
    return row.state


def test_it_is_tried_until_the_store_is_back(store: Store) -> None:
    marks = LateMarks(Away(store, 3))
    marks.write(done(claimed(store)))
    wait_until(lambda: state(store) is WorkState.DONE, "the mark")
    marks.close()


def test_closing_waits_for_one_last_try_and_says_what_was_not_written(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    marks = LateMarks(Away(store, 1_000_000))
    marks.write(done(claimed(store)))
    marks.close()
    assert state(store) is WorkState.CLAIMED
    assert "a mark was not written" in caplog.text


@pytest.mark.parametrize(("cause", "after"), [(DIED, WorkState.DONE), ("for another reason", WorkState.DEFERRED)])
def test_a_message_that_was_put_aside_because_nobody_knew_is_done_after_all(
    store: Store, cause: str, after: WorkState
) -> None:
    fence = claimed(store)
    store.commit([Unit((Finish(QUEUE, "a", WorkState.DEFERRED, fence, cause=cause),))])
    marks = LateMarks(lambda: store)
    marks.write(done(fence))
    marks.close()
    assert state(store) is after
