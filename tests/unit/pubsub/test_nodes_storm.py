from __future__ import annotations

import pytest
from tests.unit.pubsub.storm import Storm

from semel.kernel.ops import Put
from semel.pubsub.floors import Floors
from semel.pubsub.session import Session, SessionRow
from semel.pubsub.tail import Tail

SEEDS = 30
PLANTED_SEEDS = 60


def troubles(seed: int) -> list[str]:
    storm = Storm(seed)
    storm.run(steps=600, messages=60)
    return storm.wrong()


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_lost_doubled_or_reordered_whatever_dies(part: int) -> None:
    found = {seed: troubles(seed) for seed in range(part * SEEDS, (part + 1) * SEEDS)}
    assert not any(found.values()), found


# -- mistakes that were made, or could be: the storm has to find each


def rows_of_what_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row says in which groups the session is by the part of the stream that has been read here."""
    row = Session.row

    def wrong(session: Session) -> SessionRow:
        session.groups_decided = dict(session.groups)
        return row(session)

    monkeypatch.setattr(Session, "row", wrong)


def acks_without_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acks are written whatever version is there: also by a node that was replaced."""
    put_acks = Session.put_acks

    def wrong(session: Session, hub: str) -> Put:
        put = put_acks(session, hub)
        return Put(put.key, put.value)

    monkeypatch.setattr(Session, "put_acks", wrong)


def own_records_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node has committed itself is handed on before what others have put before it."""

    def wrong(tail: Tail, appends, results, now) -> None:  # type: ignore[no-untyped-def]
        for append, result in zip(appends, results, strict=False):
            offset = result.position.offset
            if offset > tail.offset:
                tail._tell_one(offset, append, now)

    monkeypatch.setattr(Tail, "take_own", wrong)


def a_floor_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor of a node does not fall for a session that comes, and falls asleep on what others need."""
    monkeypatch.setattr(Floors, "come", lambda floors, connection, acked: None)
    monkeypatch.setattr(Floors, "_needed", lambda floors: [floors._hub.tail.offset])


@pytest.mark.parametrize(
    "plant", [rows_of_what_was_told, acks_without_a_fence, own_records_at_once, a_floor_that_stays]
)
def test_a_planted_mistake_is_found(plant, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    plant(monkeypatch)
    for seed in range(PLANTED_SEEDS):
        try:
            if troubles(seed):
                return
        except AssertionError:
            return
    pytest.fail(f"{plant.__name__} was not found in {PLANTED_SEEDS} seeds")
