from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.pubsub.hub.storm import OPTIONS, Storm
from tests.unit.pubsub.hub.storm_calls import Calls
from tests.unit.pubsub.hub.storm_ends import Ends

from semel.kernel.ledger import Kind
from semel.kernel.ops import Put
from semel.pubsub.hub.answers import NOT_FOUND
from semel.pubsub.hub.commands import Scope, _is_among
from semel.pubsub.hub.current import Current
from semel.pubsub.hub.endings import Endings, Then
from semel.pubsub.hub.floors import Floors
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.orders import Orders
from semel.pubsub.hub.session import RowVersions, Session
from semel.pubsub.hub.session_rows import SessionRow
from semel.pubsub.hub.tail import Tail

SEEDS = 30
EMPTIED_SEEDS = 5
PLANTED_SEEDS = 300
PAGES_OF_TWO = replace(OPTIONS, read_rows=2)


def troubles(seed: int, faults: float = 0.0) -> list[str]:
    storm = Storm(seed, faults=faults)
    storm.run(steps=600, messages=60)
    found = storm.wrong()
    storm.acknowledge_all()
    return found + storm.untold()


@pytest.mark.parametrize("faults", [0.0, 0.02, 0.05, 0.1])
def test_nothing_is_lost_doubled_or_reordered_whatever_dies(faults: float) -> None:
    found = {seed: troubles(seed, faults) for seed in range(SEEDS)}
    assert not any(found.values()), found


def test_a_stay_that_was_forgotten_before_the_ledger_knew_of_it() -> None:
    """This seed found it."""
    assert troubles(3434, 0.05) == []


@pytest.mark.parametrize("faults", [0.0, 0.05])
def test_nothing_is_left_when_everybody_has_gone(faults: float) -> None:
    for seed in range(EMPTIED_SEEDS):
        storm = Storm(seed, faults=faults)
        storm.run(steps=300, messages=30)
        storm.empty()
        assert storm.wrong() == [], seed


def unaccounted(seed: int, faults: float) -> list[str]:
    storm = Ends(seed, faults=faults)
    storm.run(steps=900, messages=80)
    found = storm.wrong()
    storm.acknowledge_all()
    return found + storm.unaccounted()


@pytest.mark.parametrize("faults", [0.0, 0.02, 0.05, 0.1])
def test_the_ledger_tells_of_all_that_was_due_to_sessions_that_have_ended(faults: float) -> None:
    found = {seed: unaccounted(seed, faults) for seed in range(SEEDS)}
    assert not any(found.values()), found


def test_a_session_that_was_taken_up_again_while_its_end_was_on_its_way() -> None:
    """This seed found it: it was here twice, and got everything twice."""
    assert unaccounted(6341, 0.02) == []


def test_a_session_that_a_dead_node_had_taken_from_the_one_that_takes_over_from_it() -> None:
    """This seed found it: it was held for one that is here, and was nobody's from then on."""
    assert unaccounted(20052, 0.0) == []


def test_the_ledger_tells_of_all_that_was_due_to_those_who_came_too_late_or_took_too_little() -> None:
    options = replace(OPTIONS, recovery_s=12.0, backlog_count=5)
    for seed in range(SEEDS):
        storm = Ends(seed, faults=0.05 * (seed % 2), options=options)
        storm.run(steps=900, messages=80)
        storm.wait(36)
        assert storm.unaccounted() == [], seed


def misinformed(seed: int, faults: float, options: HubOptions = OPTIONS) -> list[str]:
    storm = Calls(seed, faults=faults, options=options)
    storm.run(steps=600, messages=40)
    return storm.wrong()


@pytest.mark.parametrize("faults", [0.0, 0.05])
def test_any_node_answers_for_all(faults: float) -> None:
    found = {seed: misinformed(seed, faults) for seed in range(SEEDS)}
    assert not any(found.values()), found


def test_a_session_that_was_taken_over_before_the_order_for_it_was_read() -> None:
    """These seeds found it: by the stream another node had it, but the one that asked, or obeyed, knew better."""
    assert misinformed(399, 0.0) == []
    assert misinformed(536, 0.0) == []


def test_a_session_that_was_refused_to_its_node_though_nobody_else_had_it() -> None:
    """This seed found it: it was in the store as that node's, and on no node."""
    assert misinformed(1780, 0.05) == []


def test_nodes_that_never_come_to_the_end_of_the_stream() -> None:
    """These seeds found a node that began while others trimmed, and one that came to its own take-over of a session
    that it had lost since."""
    assert misinformed(70217, 0.0, PAGES_OF_TWO) == []
    assert misinformed(70093, 0.05, PAGES_OF_TWO) == []


# -- mistakes that were made, or could be: the storm has to find each


def rows_of_what_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row says in which groups the session is by the part of the stream that has been read here."""
    row = Session.row

    def wrong(session: Session) -> SessionRow:
        session.memberships.decided = dict(session.groups)
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
                tail._apply_one(offset, append, now)

    monkeypatch.setattr(Tail, "take_own", wrong)


def rows_that_are_never_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A join is taken for settled though the commit of its row has failed."""
    monkeypatch.setattr(RowVersions, "owes_row", property(lambda session: False, lambda session, value: None))


def ends_that_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for the end of a session hears that it is gone as soon as nobody finds it."""
    begin = Endings.begin

    def wrong(endings: Endings, session: Session, kind: Kind, reason: str, then: Then | None) -> None:
        begin(endings, session, kind, reason, then)
        endings.sessions.remove(session)

    monkeypatch.setattr(Endings, "begin", wrong)


def stays_that_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that has left a group is not given what it is owed of its time there."""
    decide_group = Session.decide_group

    def wrong(session: Session, group: str, offset: int, is_joined: bool, tail: int) -> None:
        decide_group(session, group, offset, is_joined, tail)
        session.memberships.left.clear()

    monkeypatch.setattr(Session, "decide_group", wrong)


def a_floor_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor of a node does not fall for a session that comes, and falls asleep on what others need."""
    monkeypatch.setattr(Floors, "expect", lambda floors, connection, acked: floors.put(floors._floor))
    monkeypatch.setattr(Floors, "_needed", lambda floors: [floors._tail.offset])


def answers_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node says what it knows, without looking what others have done since."""
    monkeypatch.setattr(Current, "when", lambda current, then, failed, now: then(now))


def answers_after_a_read_that_was_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks, but perhaps a moment before the question came."""

    def wrong(tail: Tail) -> int:
        number = tail._reads if tail._is_reading else tail._reads + 1
        tail.read_on()
        return number

    monkeypatch.setattr(Tail, "read_to_end", wrong)


def answers_at_an_end_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was looked for when others had asked, and counts for those who have asked since."""
    found_end = Current._found_end

    def wrong(current: Current, offset: int | None, now: float) -> None:
        current._looking_for = current._count
        found_end(current, offset, now)

    monkeypatch.setattr(Current, "_found_end", wrong)


def orders_that_do_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that moves while it is ordered about is taken for gone."""

    def wrong(orders: Orders, now: float) -> None:
        again, orders._again = orders._again, {}
        for run in again:
            run.answers.add(NOT_FOUND)

    monkeypatch.setattr(Orders, "try_moved_again", wrong)


def orders_for_whoever_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is let in while nodes come to an order counts for one, and not for the other."""
    monkeypatch.setattr(Scope, "covers", lambda scope, session: _is_among(session.id, scope.only))


@pytest.mark.parametrize(
    ("plant", "first", "options"),  # from which seed on it is looked for: some take long to be found
    [
        (answers_from_memory, 0, OPTIONS),
        (answers_after_a_read_that_was_under_way, 43, OPTIONS),
        (answers_at_an_end_of_before, 70022, PAGES_OF_TWO),
        (orders_that_do_not_follow, 0, OPTIONS),
        (orders_for_whoever_is_there, 113, OPTIONS),
    ],
)
def test_a_mistake_that_misinforms_is_found(  # type: ignore[no-untyped-def]
    plant, first: int, options: HubOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(misinformed(seed, 0.0, options) for seed in range(first, first + PLANTED_SEEDS)), plant.__name__


@pytest.mark.parametrize(
    "plant",
    [
        rows_of_what_was_told,
        rows_that_are_never_owed,
        acks_without_a_fence,
        own_records_at_once,
        stays_that_are_forgotten,
        ends_that_are_not_waited_for,
        a_floor_that_stays,
    ],
)
def test_a_planted_mistake_is_found(plant, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    plant(monkeypatch)
    for seed in range(PLANTED_SEEDS):
        try:
            if troubles(seed, faults=0.05 * (seed % 2)):
                return
        except AssertionError:
            return
    pytest.fail(f"{plant.__name__} was not found in {PLANTED_SEEDS} seeds")
