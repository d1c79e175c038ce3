from __future__ import annotations

import pytest
from tests.unit.pubsub.hub.parts import NOW, run

from semel.kernel.ledger import Kind
from semel.pubsub.hub.backlog import AckRange, Backlog
from semel.pubsub.hub.records import DeliveryTerms
from semel.pubsub.hub.session_rows import SpillRow


@pytest.fixture
def backlog() -> Backlog:
    return Backlog(0, is_kept=True)


def test_what_comes_in_goes_to_an_open_socket_and_is_kept(backlog: Backlog) -> None:
    backlog.is_open = True
    assert backlog.push(run(1, 3))
    assert (backlog.count, backlog.bytes, backlog.sent, backlog.written) == (3, 3, 3, 3)


def test_what_comes_in_waits_while_there_is_no_socket(backlog: Backlog) -> None:
    assert not backlog.push(run(1, 2))
    assert (backlog.count, backlog.sent) == (2, 0)
    backlog.is_open = True
    assert [(each.first, each.last) for each in backlog.take_unwritten()] == [(1, 2)]
    assert backlog.take_unwritten() == []


def test_nothing_is_kept_for_a_plain_client() -> None:
    plain = Backlog(0, is_kept=False)
    plain.is_open = True
    assert plain.push(run(1))
    assert (plain.count, len(plain.queue)) == (0, 0)


def test_a_new_socket_gets_what_is_not_acknowledged_again(backlog: Backlog) -> None:
    backlog.is_open = True
    backlog.push(run(1, 4))
    backlog.acknowledge(2)
    backlog.written = backlog.acked
    assert [(each.first, each.last) for each in backlog.take_unwritten()] == [(3, 4)]


def test_an_acknowledgement_within_a_run_leaves_its_rest(backlog: Backlog) -> None:
    backlog.push(run(1, 5))
    backlog.acknowledge(2)
    backlog.acknowledge(3)
    assert (backlog.count, backlog.bytes) == (2, 2)
    assert [(each.first, each.last) for each in backlog.unacknowledged()] == [(4, 5)]
    assert backlog.confirmed is not None
    assert (backlog.confirmed.first, backlog.confirmed.last, backlog.confirmed.n) == (1, 3, 3)


def test_nobody_takes_an_acknowledgement_back(backlog: Backlog) -> None:
    backlog.push(run(1, 5))
    backlog.acknowledge(3)
    with pytest.raises(AssertionError):
        backlog.acknowledge(2)


def test_what_was_missed_comes_before_what_came_in_meanwhile(backlog: Backlog) -> None:
    backlog.push(run(5, 2))
    backlog.early_ack = 3
    backlog.add_missed([run(2), run(3), run(4)])
    assert [each.first for each in backlog.queue] == [4, 5]
    assert (backlog.acked, backlog.count) == (3, 3)


def test_what_was_missed_cannot_stand_after_what_came_in(backlog: Backlog) -> None:
    backlog.push(run(5))
    with pytest.raises(AssertionError, match="in order"):
        backlog.add_missed([run(5)])


def test_what_expires_before_it_is_written_is_taken_out(backlog: Backlog) -> None:
    backlog.push(run(1, terms=DeliveryTerms(expires=round((NOW - 1) * 1e6))))
    backlog.push(run(2))
    assert [each.first for each in backlog.take_expired(NOW)] == [1]
    assert (backlog.count, backlog.has_expiring) == (1, False)


def test_what_was_written_is_owed_although_it_expires(backlog: Backlog) -> None:
    backlog.is_open = True
    backlog.push(run(1, terms=DeliveryTerms(expires=round((NOW - 1) * 1e6))))
    assert backlog.take_expired(NOW) == []


def test_a_flush_that_fails_is_taken_up_again_with_what_came_since(backlog: Backlog) -> None:
    backlog.push(run(1, 4))
    backlog.acknowledge(2)
    before, confirmed = backlog.flushing, backlog.take_confirmed()
    assert (backlog.confirmed, backlog.flushing, backlog.flushed) == (None, 2, 0)
    backlog.acknowledge(3)
    backlog.put_back(confirmed, before)
    assert backlog.confirmed is not None
    assert (backlog.confirmed.first, backlog.confirmed.last, backlog.confirmed.n) == (1, 3, 3)
    assert backlog.flushing == 0


def test_lost_messages_make_the_range_of_an_end_not_fit(backlog: Backlog) -> None:
    backlog.acked = 5
    backlog.push(run(9))
    left = backlog.left_behind([SpillRow(1, 5), SpillRow(6, 8)])
    assert left is not None
    assert (left.first, left.last, left.n) == (6, 9, 1)


def test_a_session_that_has_everything_leaves_nothing_behind(backlog: Backlog) -> None:
    assert backlog.left_behind(()) is None


def test_a_range_as_the_ledger_has_it() -> None:
    event = AckRange.of([run(3, 2), run(5)]).ledger_event("hub/chat", 1, "alice", Kind.EXPIRED, "late")
    assert (event.kind, event.first, event.last, event.n, event.cause) == (Kind.EXPIRED, 3, 5, 3, "late")
    assert (event.hop, event.peer) == ("hub/chat>sub", "alice")
