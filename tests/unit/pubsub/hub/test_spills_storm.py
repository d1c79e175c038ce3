"""Clients that acknowledge late, in a storm in which nodes die: what they are owed leaves the stream, and nothing else
changes. And mistakes that could be made with it, each of which the storm has to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.unit.pubsub.hub.storm import OPTIONS, Storm
from tests.unit.pubsub.hub.storm_ends import Ends

from semel.kernel.ops import Op, Put
from semel.pubsub.hub import ack_flush, spills
from semel.pubsub.hub.ack_flush import AckFlush
from semel.pubsub.hub.backlog import Backlog
from semel.pubsub.hub.publishing import Publishing
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.spill_rows import Spilled, SpillRow

SEEDS = 12
PLANTED_SEEDS = 100
AGED = replace(OPTIONS, backlog_age_s=3.0)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a spill takes several commits, and a session has several rows and pages of them."""
    monkeypatch.setattr(spills, "ROW_COUNT", 3)
    monkeypatch.setattr(spills, "COMMIT_BYTES", 5 * spills.OVERHEAD_BYTES)
    monkeypatch.setattr(spills, "PAGE", 2)


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[SpillRow]:
    """Those that a node has read because it took over their session."""
    found: list[SpillRow] = []
    read = spills.Spills._read

    def counting(self: spills.Spills, session: Session, parts: dict[str, bytes]) -> Spilled:
        found.extend(session.spill.rows)
        return read(self, session, parts)

    monkeypatch.setattr(spills.Spills, "_read", counting)
    return found


def troubles(seed: int, faults: float) -> list[str]:
    storm = Storm(seed, faults=faults, options=AGED)
    storm.run(steps=600, messages=80)
    found = storm.wrong()
    storm.acknowledge_all()
    return found + storm.untold()


@pytest.mark.parametrize("faults", [0.0, 0.05])
def test_nothing_is_lost_doubled_or_reordered_when_it_leaves_the_stream(
    faults: float, rows_read: list[SpillRow]
) -> None:
    found = {seed: troubles(seed, faults) for seed in range(SEEDS)}
    assert not any(found.values()), found
    assert len(rows_read) > 20


@pytest.mark.parametrize("faults", [0.0, 0.05])
def test_the_ledger_tells_of_all_that_was_due_though_it_left_the_stream(
    faults: float, rows_read: list[SpillRow]
) -> None:
    for seed in range(SEEDS):
        storm = Ends(seed, faults=faults, options=replace(AGED, recovery_s=60.0))
        storm.run(steps=900, messages=80)
        storm.wait(120)
        assert storm.unaccounted() == [], seed
    assert len(rows_read) > 20


def test_an_acknowledgement_that_was_not_written_down_when_what_came_after_it_was_spilled() -> None:
    """This seed found it: a crash then left deliveries that the ledger never heard of."""
    assert troubles(25, 0.0) == []


def test_no_rows_are_left_when_everybody_has_gone() -> None:
    for seed in range(4):
        storm = Storm(seed, faults=0.05 * (seed % 2), options=AGED)
        storm.run(steps=300, messages=40)
        storm.empty()
        assert storm.wrong() == [], seed


# -- mistakes that could be made: the storm has to find each


def copies_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes a session over reads the stream only."""
    monkeypatch.setattr(spills.Spills, "load", lambda self, session, now, then: then(Spilled(), now))


def acks_that_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is acknowledged and not written down is neither copied nor told."""
    flush, take = AckFlush.flush, Backlog.take_confirmed

    def wrong(
        self: AckFlush, session: Session, more: Sequence[Op] = (), then: Callable[[bool], None] = lambda done: None
    ) -> None:
        with monkeypatch.context() as silent:
            silent.setattr(Backlog, "take_confirmed", (lambda backlog: None) if more else take)
            flush(self, session, more, then)

    monkeypatch.setattr(AckFlush, "flush", wrong)


def rows_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit for something else writes the acks row as well, and names no copies."""
    put_acks, commit_staged = Session.put_acks, Publishing.commit_staged

    def nameless(session: Session, hub: str) -> Put:
        rows, session.spill.rows = session.spill.rows, ()
        put = put_acks(session, hub)
        session.spill.rows = rows
        return put

    def wrong(publishing: Publishing, session: Session) -> None:
        with monkeypatch.context() as staged:
            staged.setattr(Session, "put_acks", nameless)
            commit_staged(publishing, session)

    monkeypatch.setattr(Publishing, "commit_staged", wrong)


def rows_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is acknowledged is not deleted."""
    monkeypatch.setattr(ack_flush, "deletions", lambda hub, connection, rows: [])


@pytest.mark.parametrize(
    "plant",
    [
        copies_that_are_not_read,
        acks_that_are_passed_over,
        rows_without_a_name,
        rows_that_stay,
    ],
)
def test_a_planted_mistake_is_found(plant, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    plant(monkeypatch)
    for seed in range(PLANTED_SEEDS):
        try:
            if troubles(seed, faults=0.05 * (seed % 2)):
                return
            if plant is rows_that_stay:
                storm = Storm(seed, options=AGED)
                storm.run(steps=300, messages=40)
                storm.empty()
                if storm.wrong():
                    return
        except AssertionError:
            return
    pytest.fail(f"{plant.__name__} was not found in {PLANTED_SEEDS} seeds")
