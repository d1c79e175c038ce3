"""What all stores tell of one message, in one timeline."""

from __future__ import annotations

import pytest

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Entry, Event, Kind, Mark
from semel.kernel.ops import Append, Log, Unit
from semel.stores import journey as module
from semel.stores.journey import Step, journey_in, plain_step, timeline
from semel.stores.memory import MemoryStore

ACCEPTED = Event(Kind.ACCEPTED, "client>hub/chat")


def publish(store: MemoryStore, *ids: str) -> None:
    store.commit([Unit(tuple(Append("hub/chat", Envelope(id), on_fresh=ACCEPTED) for id in ids))])


def log(store: MemoryStore, message: str, kind: Kind = Kind.HANDLED) -> None:
    store.commit([Unit((Log(Event(kind, "inbox/orders>handler", message=message)),))])


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    publish(store, "o-1", "o-2")
    log(store, "o-2")
    publish(store, "o-3")
    log(store, "o-1", Kind.FAILED)
    return store


@pytest.mark.parametrize("page", [1, 100])
def test_ranges_that_hold_the_message_belong_to_it(store: MemoryStore, page: int) -> None:
    found = journey_in(store, "o-1", page=page)
    assert [(each.event.kind, each.event.first) for each in found.entries] == [(Kind.ACCEPTED, 1), (Kind.FAILED, None)]
    assert found.is_whole
    assert journey_in(store, "nobody").entries == []


def test_a_look_that_is_cut_short_says_so_and_has_what_is_about_the_message_alone(store: MemoryStore) -> None:
    for rows in range(7):
        found = journey_in(store, "o-1", rows_max=rows)
        assert not found.is_whole
        assert found.entries[-1].event.kind is Kind.FAILED
        assert found.entries == sorted(found.entries, key=lambda entry: entry.mark)
    assert journey_in(store, "o-1", rows_max=7).is_whole, "three records and four entries"


def test_a_message_with_more_entries_than_one_look_gives_is_looked_for_in_the_whole_ledger(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HISTORY_MAX", 3)
    for _ in range(5):
        log(store, "far")
    assert len(journey_in(store, "far").entries) == 5


def entry(seq: int, at: int, hop: str = "a>b") -> Entry:
    return Entry(Mark(0, seq), at, "node", Event(Kind.ACCEPTED, hop, message="m", delivery="c#1"))


def test_stores_are_merged_by_time_and_at_one_time_in_their_order() -> None:
    found = timeline({"hub": [entry(1, 10), entry(2, 30)], "shop": [entry(1, 10), entry(9, 20)]})
    assert [(step.store, step.entry.mark.seq) for step in found] == [("hub", 1), ("shop", 1), ("shop", 9), ("hub", 2)]


def test_a_step_says_when_where_and_what() -> None:
    told = plain_step(Step("shop", entry(1, 1_769_860_800_000_000)))
    assert told == {
        "at": "2026-01-31T12:00:00Z", "store": "shop", "node": "node", "hop": "a>b", "kind": "accepted",
        "message": "m", "delivery": "c#1", "attempt": 1, "cause": None,
    }  # fmt: skip
