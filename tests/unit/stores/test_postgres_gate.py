"""One barrier for all who wait for one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from semel.errors import StoreUnavailable
from semel.stores import postgres_gate
from semel.stores.postgres_gate import Gate, Shared
from semel.testing.limits import scaled

DEADLINE_S = 60.0
SESSION: Any = None


class Act:
    """Waits until it is let go, and counts."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.count = 0
        self.failure: Exception | None = None

    def __call__(self, _: Any) -> None:
        self.count += 1
        self.begun.release()
        assert self.go_on.acquire(timeout=scaled(DEADLINE_S))
        if self.failure is not None:
            raise self.failure


def start(
    shared: Shared, threads: ThreadPoolExecutor, act: Act, waiters: int
) -> tuple[Future[None], list[Future[None]]]:
    """One that acts, and others that came while it did."""
    first = threads.submit(shared.make, SESSION)
    assert act.begun.acquire(timeout=scaled(DEADLINE_S))
    others = [threads.submit(shared.make, SESSION) for _ in range(waiters)]
    wait_until(lambda: shared.waiting == waiters)
    return first, others


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(6000):
        if is_so():
            return
        deadline.wait(0.01)
    raise AssertionError("it did not happen in time")


def test_all_who_come_while_one_acts_share_the_next_act() -> None:
    act = Act()
    shared = Shared(act)
    with ThreadPoolExecutor(8) as threads:
        first, others = start(shared, threads, act, 7)
        act.go_on.release()
        first.result(scaled(DEADLINE_S))
        assert act.begun.acquire(timeout=scaled(DEADLINE_S)), "what began before they came does not serve them"
        assert not any(other.done() for other in others)
        act.go_on.release()
        for other in others:
            other.result(scaled(DEADLINE_S))
    assert act.count == 2


@pytest.fixture
def barriers(monkeypatch: pytest.MonkeyPatch) -> Act:
    """Those of a gate whose connections pass every other check."""
    act = Act()
    monkeypatch.setattr(postgres_gate, "barrier", act)
    monkeypatch.setattr(postgres_gate, "Statements", Primary)
    monkeypatch.setattr(Gate, "_check", lambda self, session: None)
    monkeypatch.setattr(Gate, "_ensure_member", lambda self, session, found: None)
    return act


@pytest.fixture
def gate(barriers: Act) -> Iterator[Gate]:
    gate = Gate("postgresql:///x", "n")
    yield gate
    gate.membership.close()


class Primary:
    def __init__(self, session: Any) -> None:
        pass

    def ask(self, name: str) -> list[tuple[Any, ...]]:
        return [(170000, "UTF8", False, True)]


def admit(gate: Gate) -> None:
    session: Any = SimpleNamespace(term=-1, is_standby=None)
    gate._admit(session)


def test_a_barrier_on_one_server_does_not_do_for_another(gate: Gate, barriers: Act) -> None:
    with ThreadPoolExecutor(2) as threads:
        old = threads.submit(admit, gate)
        assert barriers.begun.acquire(timeout=scaled(DEADLINE_S))
        gate.witness.term += 1
        new = threads.submit(admit, gate)
        assert barriers.begun.acquire(timeout=scaled(DEADLINE_S)), "it waits for nobody on the old server"
        barriers.go_on.release(2)
        for each in (old, new):
            each.result(scaled(DEADLINE_S))
    assert barriers.count == 2


def test_all_who_wait_hear_that_the_connection_of_the_one_who_acted_broke(gate: Gate, barriers: Act) -> None:
    barriers.failure = psycopg.OperationalError("the server has gone")
    with ThreadPoolExecutor(4) as threads:
        acting = threads.submit(admit, gate)
        assert barriers.begun.acquire(timeout=scaled(DEADLINE_S))
        waiting = [threads.submit(admit, gate) for _ in range(3)]
        wait_until(lambda: gate._barriers[1].waiting == 3)
        barriers.go_on.release(4)
        for each in (acting, *waiting):
            with pytest.raises(StoreUnavailable, match="has gone"):
                each.result(scaled(DEADLINE_S))
    assert barriers.count == 1


def test_all_who_waited_hear_of_a_failure_and_the_next_one_tries_again() -> None:
    act = Act()
    act.failure = StoreUnavailable("the standby is silent", fix="wait")
    shared = Shared(act)
    with ThreadPoolExecutor(8) as threads:
        first, others = start(shared, threads, act, 3)
        act.go_on.release()
        for waiter in (first, *others):
            with pytest.raises(StoreUnavailable, match="silent"):
                waiter.result(scaled(DEADLINE_S))
        act.failure = None
        act.go_on.release()
        shared.make(SESSION)
    assert act.count == 2


def test_a_connection_that_breaks_meanwhile_serves_nobody() -> None:
    act = Act()
    act.failure = OSError("broken")
    shared = Shared(act)
    with ThreadPoolExecutor(8) as threads:
        first, [other] = start(shared, threads, act, 1)
        act.go_on.release()
        with pytest.raises(OSError, match="broken"):
            first.result(scaled(DEADLINE_S))
        assert act.begun.acquire(timeout=scaled(DEADLINE_S))
        act.failure = None
        act.go_on.release()
        other.result(scaled(DEADLINE_S))
    assert act.count == 2
