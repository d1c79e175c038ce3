"""What is decided about a row before its handler has it."""

from __future__ import annotations

import pytest

from semel.inbox.endpoint import EndpointOptions, Style
from semel.inbox.reservation import DIED, is_ambiguous, reservation_of
from semel.inbox.rows import end_row, row_end
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind
from semel.kernel.ops import Finish, Log, WorkRow, WorkState

BARE = reservation_of(Envelope("a"))


def row(envelope: Envelope | None = None, *, taken_over: bool = False, cause: str | None = None) -> WorkRow:
    found = envelope or Envelope("a", time=1_000_000)
    return WorkRow("inbox/sms", "a", None, 1, WorkState.CLAIMED, 0, 2, 7, "me", found, cause, taken_over)


def end(options: EndpointOptions, style: Style | None, found: WorkRow, now: int = 0) -> tuple[WorkState, Kind] | None:
    made = row_end(options, style, found, now)
    return None if made is None else (made.to, made.kind)


def test_one_that_is_too_late_expires() -> None:
    options = EndpointOptions("sms", expire_s=2.0)
    assert end(options, Style.OPTIMISTIC, row(), 3_000_000) is None
    assert end(options, Style.OPTIMISTIC, row(), 3_000_001) == (WorkState.DONE, Kind.EXPIRED)
    assert end(options, Style.OPTIMISTIC, row(Envelope("a")), 9_000_000) is None, "without a time there is no late"


@pytest.mark.parametrize(
    ("on_crash", "wanted"),
    [("retry", None), ("drop", (WorkState.DONE, Kind.DISCARDED)), ("park", (WorkState.PARKED, Kind.SUSPENDED))],
)
def test_a_claim_that_ran_out_means_what_the_endpoint_says(
    on_crash: str, wanted: tuple[WorkState, Kind] | None
) -> None:
    options = EndpointOptions("sms", on_crash=on_crash)  # type: ignore[arg-type]
    assert end(options, Style.RESERVED, row(taken_over=True)) == wanted
    assert end(options, Style.RESERVED, row()) is None
    assert end(options, Style.OPTIMISTIC, row(taken_over=True)) is None, "its effect was rolled back"


@pytest.mark.parametrize("on_crash", ["retry", "park"])
def test_a_reservation_without_its_body_waits_for_the_brokers_next_delivery(on_crash: str) -> None:
    options = EndpointOptions("sms", mode="inline", style="reserved", on_crash=on_crash)  # type: ignore[arg-type]
    assert end(options, Style.RESERVED, row(BARE, taken_over=True)) == (WorkState.DEFERRED, Kind.FAILED)


def test_only_a_reservation_remembers_in_its_cause_that_its_worker_died() -> None:
    """One that a human let go again after it was put aside for that is handled."""
    assert is_ambiguous(row(BARE, cause=DIED))
    assert not is_ambiguous(row(cause=DIED))


def test_a_dead_letter_is_kept_until_somebody_ends_it() -> None:
    options = EndpointOptions("sms", keep_s=5.0)
    dead, log = end_row(options, row(), Envelope("a"), WorkState.DEAD, Kind.DEAD_LETTERED, cause="no")
    assert isinstance(dead, Finish)
    assert isinstance(log, Log)
    assert (dead.keep_s, dead.fence, log.event.attempt, log.event.cause) == (None, 7, 2, "no")
    [done, _] = end_row(options, row(), Envelope("a"), WorkState.DONE, Kind.HANDLED)
    assert isinstance(done, Finish)
    assert done.keep_s == 5.0
