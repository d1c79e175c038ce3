"""A lease: one holder at a time, and a replaced one can no longer write."""

from __future__ import annotations

import pytest

from semel.errors import CommitInDoubt, StaleFence, StoreBusy
from semel.kernel.ops import Outcome, Put, Unit
from semel.runtime.host.lease_holder import Holder, commit_unit
from semel.stores.memory import MemoryStore


class Clock:
    now = 1_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock=clock)


def holder(store: MemoryStore, owner: str) -> Holder:
    return Holder(store, "pipeline/orders", job="running the pipeline orders", owner=owner, lease_s=10.0)


def test_the_second_is_told_who_the_first_is(store: MemoryStore) -> None:
    holder(store, "first").acquire()
    with pytest.raises(StoreBusy, match="first is running the pipeline orders") as refused:
        holder(store, "second").acquire()
    assert "within 10 s" in refused.value.fix


def test_a_released_lease_is_free_at_once(store: MemoryStore) -> None:
    first = holder(store, "first")
    first.acquire()
    first.release()
    holder(store, "second").acquire()


def test_a_replaced_holder_writes_nothing(store: MemoryStore, clock: Clock) -> None:
    first, second = holder(store, "first"), holder(store, "second")
    first.acquire()
    clock.now += 11_000_000
    second.acquire()
    assert second.fence > first.fence
    with pytest.raises(StaleFence, match="has taken over"):
        first.commit(Put("k", b"old", guard=first.guard))
    with pytest.raises(StaleFence):
        first.renew(now=True)
    first.release()
    second.commit(Put("k", b"new", guard=second.guard))
    state = store.state("k")
    assert state is not None
    assert state.value == b"new"


def test_renewing_keeps_it(store: MemoryStore, clock: Clock) -> None:
    first = holder(store, "first")
    first.acquire()
    for _ in range(3):
        clock.now += 8_000_000
        first.renew(now=True)
    with pytest.raises(StoreBusy):
        holder(store, "second").acquire()


def test_whoever_waits_may_be_stopped(store: MemoryStore) -> None:
    holder(store, "first").acquire()
    heard: list[str] = []
    with pytest.raises(StoreBusy):
        holder(store, "second").acquire(60.0, waiting=heard.append, stop=lambda: bool(heard))
    assert heard == ["first"]


@pytest.mark.parametrize("happened", [True, False])
def test_a_doubt_is_resolved_before_anything_is_done_again(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    commit, calls = store.commit, []

    def breaking(units: list[Unit]) -> list[Outcome]:
        calls.append(units)
        if len(calls) > 1:
            return commit(units)
        if happened:
            outcomes.extend(commit(units))
        raise CommitInDoubt("the connection broke", marker="m", fix="")

    outcomes: list[Outcome] = []
    monkeypatch.setattr(store, "commit", breaking)
    monkeypatch.setattr(store, "resolve", lambda marker: outcomes or None)
    commit_unit(store, (Put("k", b"v", expected=0),))
    state = store.state("k")
    assert state is not None
    assert state.value == b"v"
    assert len(calls) == (1 if happened else 2)
