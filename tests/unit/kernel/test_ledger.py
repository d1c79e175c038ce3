from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import InputError
from semel.kernel.ledger import (
    ARRIVALS,
    ENDS,
    START,
    Balance,
    Event,
    Kind,
    Mark,
    balance,
    fold_ids,
    hash_id,
    range_event,
)
from semel.kernel.position import Position

ids = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())


def test_numbers_of_kinds_never_change() -> None:
    assert {kind.name: kind.value for kind in Kind} == {
        "SENT": 1,
        "RESENT": 2,
        "ACCEPTED": 4,
        "DUPLICATE": 5,
        "REJECTED": 6,
        "CONFIRMED": 7,
        "FAILED": 8,
        "SUSPENDED": 9,
        "RESUMED": 10,
        "REPLAYED": 11,
        "ACTION": 12,
        "HANDLED": 20,
        "FORWARDED": 21,
        "MIRRORED": 22,
        "DISCARDED": 23,
        "DEAD_LETTERED": 24,
        "EXPIRED": 25,
        "CANCELLED": 26,
        "SKIPPED": 27,
        "DROPPED": 28,
    }


def test_ends_and_arrivals() -> None:
    assert {kind.value for kind in ENDS} == set(range(20, 29))
    assert {Kind.ACCEPTED, Kind.DUPLICATE, Kind.REJECTED} == ARRIVALS


def test_the_hash_of_an_id_never_changes() -> None:
    """Ledgers of different releases, nodes and languages are compared by it."""
    assert hash_id("m1") == 6829887198152988975
    assert hash_id("ü") == 7408949341365432148


@given(ids)
def test_a_hash_is_a_signed_64_bit_number(id: str) -> None:
    assert -(2**63) <= hash_id(id) < 2**63


@given(st.lists(ids))
def test_a_fold_does_not_depend_on_order(messages: list[str]) -> None:
    assert fold_ids(messages) == fold_ids(sorted(messages))


@given(st.sets(ids), st.sets(ids))
def test_folds_tell_sets_apart(left: set[str], right: set[str]) -> None:
    assert (fold_ids(left) == fold_ids(right)) == (left == right)


@given(st.lists(ids), ids)
def test_an_id_seen_twice_cancels_out(messages: list[str], extra: str) -> None:
    assert fold_ids([*messages, extra, extra]) == fold_ids(messages)


@given(st.lists(ids, min_size=1, max_size=20), st.integers(1, 2**40))
def test_a_range_stands_for_its_records(messages: list[str], first: int) -> None:
    template = Event(Kind.ACCEPTED, "a>b", "p", peer="x")
    last = first + len(messages) - 1
    event = range_event(template, Position("s", 3, first), Position("s", 3, last), messages)
    assert (event.stream, event.epoch, event.first, event.last) == ("s", 3, first, last)
    assert (event.n, event.fold) == (len(messages), fold_ids(messages))
    assert (event.kind, event.hop, event.pipeline, event.peer) == (Kind.ACCEPTED, "a>b", "p", "x")
    assert not event.is_template


def test_an_event_is_about_one_message_or_about_a_range() -> None:
    with pytest.raises(InputError):
        Event(Kind.SENT, "a>b", message="m", first=1, last=2)
    with pytest.raises(InputError):
        Event(Kind.SENT, "a>b", message="m", n=2)
    with pytest.raises(InputError):
        Event(Kind.SENT, "a>b", first=1)
    with pytest.raises(InputError):
        Event(Kind.SENT, "")
    assert Event(Kind.SENT, "a>b").is_template
    assert not Event(Kind.SENT, "a>b", message="m").is_template


def test_marks_order_by_transaction_and_then_by_number() -> None:
    assert START < Mark(0, 1) < Mark(0, 2) < Mark(5, 1) < Mark(6, 0)
    assert (str(Mark(0, 7)), str(Mark(5, 7))) == ("7", "5.7")


events = st.lists(
    st.builds(Event, st.sampled_from(Kind), st.just("a>b"), message=st.just("m"))
    | st.builds(
        lambda kind, n: Event(kind, "a>b", stream="s", epoch=1, first=1, last=n, n=n),
        st.sampled_from(Kind),
        st.integers(1, 50),
    )
)


@given(events, st.integers(0, 100))
def test_a_balance_adds_up_what_happened(found: list[Event], open_count: int) -> None:
    result = balance(found, open_count)
    assert result.accepted == sum(event.n for event in found if event.kind == 4)
    assert result.replayed == sum(event.n for event in found if event.kind == 11)
    assert result.ended == sum(event.n for event in found if 20 <= event.kind < 28)
    assert result.holds == (result.accepted + result.replayed == result.ended + open_count)


def test_a_balance_that_does_not_hold_is_a_loss_or_a_double() -> None:
    assert Balance(accepted=5, replayed=1, ended=4, open=2).holds
    assert not Balance(accepted=5, replayed=0, ended=4, open=0).holds
    assert not Balance(accepted=5, replayed=0, ended=6, open=0).holds
