"""Rows that only keep a place."""

from __future__ import annotations

from semel.inbox.reservation import DIED, RESERVED_HEADER, as_message, is_ambiguous, is_reservation, reservation_of
from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkRow, WorkState


def row(*, cause: str | None = None, taken_over: bool = False) -> WorkRow:
    bare = reservation_of(Envelope("a", type="note"))
    return WorkRow("inbox/sms", "a", None, 1, WorkState.CLAIMED, 0, 1, 1, "me", bare, cause, taken_over)


def test_a_reservation_says_who_it_is_and_nothing_else() -> None:
    message = Envelope("a", source="till", type="note", data=b"secret", headers={"own": "1"})
    bare = reservation_of(message)
    assert (bare.id, bare.source, bare.type, bare.data) == ("a", "till", "note", b"")
    assert is_reservation(bare)


def test_a_message_is_none_whatever_its_sender_wrote_into_it() -> None:
    assert not is_reservation(Envelope("a"))
    assert not is_reservation(Envelope("a", data=b"body", headers={RESERVED_HEADER: "1"}))


def test_what_comes_in_is_no_reservation() -> None:
    forged = Envelope("a", headers={RESERVED_HEADER: "1", "own": "1"})
    assert as_message(forged) == Envelope("a", headers={"own": "1"})
    plain = Envelope("a", headers={"own": "1"})
    assert as_message(plain) is plain


def test_in_doubt_is_what_a_dead_process_had_also_after_a_worker_put_it_aside() -> None:
    assert [is_ambiguous(row()), is_ambiguous(row(cause="ValueError: no"))] == [False, False]
    assert [is_ambiguous(row(taken_over=True)), is_ambiguous(row(cause=DIED))] == [True, True]
