from __future__ import annotations

from itertools import product

import pytest

from semel.inbox.endpoint import ALLOWED, EndpointMode, Style
from semel.inbox.settle import (
    ARRIVAL_EXITS,
    ARRIVALS,
    HANDLING_EXITS,
    TABLE,
    DeliveryEnd,
    Exit,
    RowFate,
    Settlement,
    exit_of,
    settle,
)
from semel.kernel.retry import Again, Decision, Enough, PauseThen, Release, Requeue

COMBINATIONS = [combination for combination, kinds in ALLOWED.items() if kinds]
EVERY = [(mode, style, exit) for (mode, style), exit in product(COMBINATIONS, sorted(HANDLING_EXITS, key=str))]
DECISIONS: list[Decision] = [
    Again(110.0), Again(160.0, passes=True), Requeue(), Release(), Enough("discard"), Enough("dead_letter"),
    Enough("park"), PauseThen(60.0, Requeue()),
]  # fmt: skip

# the exits after which nothing more is to be done with the message by this process or another
ENDS = {Exit.OK, Exit.DISCARD, Exit.EXPIRED, Exit.CANCELLED}


def test_the_table_is_complete() -> None:
    assert TABLE.keys() == set(COMBINATIONS)
    assert all(entries.keys() == HANDLING_EXITS for entries in TABLE.values())
    assert ARRIVALS.keys() == ARRIVAL_EXITS
    assert set(Exit) == HANDLING_EXITS | ARRIVAL_EXITS


def test_every_delivery_is_settled_once() -> None:
    """Acked before in the modes that ack before the handler, and in the other one an end or another attempt here."""
    for mode, style, exit in EVERY:
        for has_store in (True, False) if style is Style.NONE else (True,):
            found = settle(mode, style, exit, has_store=has_store)
            assert (found.delivery is DeliveryEnd.ACKED_BEFORE) == (mode is not EndpointMode.INLINE), (
                mode,
                style,
                exit,
            )
            if mode is EndpointMode.INLINE:
                assert (found.delivery is DeliveryEnd.NONE_YET) == found.again, (style, exit)


def test_an_end_leaves_no_open_row() -> None:
    """Discarded, expired and cancelled messages are settled like handled ones: nothing comes back after a restart."""
    for mode, style, exit in EVERY:
        if exit in ENDS:
            found = settle(mode, style, exit)
            assert found.row is (RowFate.NO_ROW if style is Style.NONE else RowFate.DONE), (mode, style, exit)
            assert not found.again


def test_an_inline_delivery_is_acked_only_when_the_store_has_what_is_needed() -> None:
    """Or when the handler is done with it, where nobody asked for a mark."""
    for mode, style, exit in EVERY:
        found = settle(mode, style, exit)
        if found.delivery is DeliveryEnd.ACK:
            kept = found.row in (RowFate.DONE, RowFate.DEAD, RowFate.PARKED, RowFate.SCHEDULED)
            unmarked = style is Style.NONE and exit in ENDS
            mark_follows = style is Style.RESERVED and exit is Exit.MARK_FAILED
            assert kept or unmarked or mark_follows or exit is Exit.DUPLICATE_HANDLED, (mode, style, exit)


def test_a_durable_row_that_has_not_ended_can_be_reached() -> None:
    """It is claimable, waits for its time, is kept for a human, or its claim runs out. It is never without a row."""
    for mode, style, exit in EVERY:
        if mode is EndpointMode.DURABLE and exit not in ENDS:
            assert settle(mode, style, exit).row not in (RowFate.NO_ROW, RowFate.REMOVED, RowFate.DONE), (style, exit)


@pytest.mark.parametrize("style", Style)
def test_a_duplicate_of_what_is_being_handled_inline_is_given_back(style: Style) -> None:
    assert settle(EndpointMode.INLINE, style, Exit.DUPLICATE_OPEN).delivery is DeliveryEnd.GIVE_BACK


@pytest.mark.parametrize("mode", EndpointMode)
def test_an_effect_that_may_have_happened_is_left_to_on_crash(mode: EndpointMode) -> None:
    assert settle(mode, Style.RESERVED, Exit.CUT_OFF).row is RowFate.UNTOUCHED


def test_a_mark_that_is_written_later_fails_nothing() -> None:
    assert settle(EndpointMode.INLINE, Style.RESERVED, Exit.MARK_FAILED) == Settlement(
        DeliveryEnd.ACK, RowFate.UNTOUCHED
    )


def test_a_store_that_is_down_or_in_doubt_at_the_door_means_no_ack() -> None:
    for exit in (Exit.STORE_DOWN, Exit.IN_DOUBT, Exit.SHUTDOWN):
        assert ARRIVALS[exit].delivery is DeliveryEnd.GIVE_BACK
    for exit in ARRIVAL_EXITS - {Exit.STORE_DOWN, Exit.IN_DOUBT, Exit.SHUTDOWN}:
        assert ARRIVALS[exit].delivery is DeliveryEnd.ACK


@pytest.mark.parametrize("exit", [Exit.DEAD_LETTER, Exit.PARK])
def test_without_a_store_the_broker_keeps_what_failed(exit: Exit) -> None:
    found = settle(EndpointMode.INLINE, Style.NONE, exit, has_store=False)
    assert found == Settlement(DeliveryEnd.NACK, RowFate.NO_ROW)


def test_without_a_store_what_is_scheduled_is_not_lost() -> None:
    inline = settle(EndpointMode.INLINE, Style.NONE, Exit.SCHEDULE, has_store=False)
    assert inline.delivery is DeliveryEnd.GIVE_BACK
    assert settle(EndpointMode.BUFFERED, Style.NONE, Exit.SCHEDULE, has_store=False).again


# -- the moves of a row


@pytest.mark.parametrize("decision", DECISIONS)
def test_every_decision_of_a_policy_is_an_exit(decision: Decision) -> None:
    assert exit_of(decision) in HANDLING_EXITS
