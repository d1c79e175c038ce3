"""One line for an outage and one for its end, whoever meets it."""

from __future__ import annotations

import logging

import pytest

from semel import errors
from semel.runtime.host.outages import Outages, Use, is_outage, is_readable, not_asked, public_message


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outages(clock: Clock) -> Outages:
    return Outages(clock)


def test_one_line_when_it_begins_and_one_when_it_is_over(
    outages: Outages, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        outages.record(errors.StoreFull("no space left for x.db", fix="free\nsome"))
    outages.record(errors.StoreBusy("locked"))
    assert outages.current is not None
    assert outages.current.cause.message == "locked"
    clock.now = 12.34
    outages.committed()
    outages.committed()
    assert caplog.messages == [
        "the store is in trouble: no space left for x.db; free some",
        "the store is well again, after 12.3 s",
    ]
    assert outages.count == 1
    outages.record(errors.StoreBusy("locked"))
    assert outages.count == 2


def test_what_reads_begin_no_commit_ends(outages: Outages, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """One connection to the database works, and another does not."""
    for _ in range(3):
        outages.record(errors.StoreUnavailable("too many clients"), use=Use.READING)
        outages.committed()
    assert caplog.messages == ["the store is in trouble: too many clients"]
    assert outages.is_unreadable
    clock.now = 3.0
    outages.was_read()
    assert outages.current is None
    assert not outages.is_unreadable
    assert caplog.messages[1:] == ["the store is well again, after 3.0 s"]


def test_what_commits_begin_no_read_ends(outages: Outages) -> None:
    outages.record(errors.StoreFull("full"))
    outages.was_read()
    assert outages.current is not None
    outages.committed()
    assert outages.current is None


def test_an_outage_of_both_ends_with_both_and_says_what_is_left(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    outages.record(errors.StoreUnavailable("too many clients"), use=Use.READING)
    outages.record(errors.StoreFull("full"))
    outages.committed()
    assert outages.current is not None
    assert outages.current.cause.message == "too many clients"
    outages.record(errors.StoreUnavailable("away"), use=Use.BOTH)
    outages.was_read()
    assert outages.current.cause.message == "away"
    outages.committed()
    assert outages.current is None
    assert (outages.count, len(caplog.messages)) == (1, 2)


def test_who_did_not_ask_has_nothing_to_tell(outages: Outages, caplog: pytest.LogCaptureFixture) -> None:
    outages.record(errors.StoreFull("full"))
    outages.record(not_asked(), "a client was not answered", Use.BOTH)
    assert outages.current is not None
    assert outages.current.cause.message == "full"
    outages.committed()
    assert outages.current is None
    assert len(caplog.messages) == 2


def test_what_needs_a_restart_takes_the_place_of_what_does_not_and_never_ends(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    outages.record(errors.CommitInDoubt("an I/O error inside a commit", marker="io"))
    outages.record(errors.StoreBroken("an I/O error"))
    outages.record(errors.StoreGone("gone"))
    outages.record(errors.StoreFull("full"))
    outages.committed()
    assert outages.current is not None
    assert outages.current.needs_restart
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]


def test_a_doubt_that_comes_of_a_broken_store_is_the_same_outage(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    doubt = errors.CommitInDoubt("gone, inside a commit", marker="gone")
    doubt.__cause__ = errors.StoreGone("gone")
    outages.record(doubt)
    outages.record(doubt.__cause__)
    assert caplog.messages == ["the store is in trouble: gone"]
    assert outages.current is not None
    assert outages.current.needs_restart


@pytest.mark.parametrize(
    "error",
    [
        errors.StoreRefused("too big"),
        errors.EpochChanged("another history", current=2),
        errors.StaleFence("somebody else"),
        errors.InputError("nonsense"),
    ],
)
def test_what_was_asked_may_be_at_fault(
    outages: Outages, error: errors.SemelError, caplog: pytest.LogCaptureFixture
) -> None:
    outages.record(error)
    assert outages.current is None
    assert not caplog.messages
    outages.record(error, "something cannot be done")
    assert caplog.messages == [f"something cannot be done: {error.message}"]


def test_every_trouble_has_words_that_say_what_to_do() -> None:
    for error in (
        errors.StoreUnavailable("at host.example"),
        errors.NotAStore("at host.example"),
        errors.StoreInRecovery("at host.example"),
        errors.StoreFull("at host.example"),
        errors.StoreBusy("at host.example"),
        errors.StoreReadOnly("at host.example"),
        errors.StoreBroken("at host.example"),
        errors.StoreGone("at host.example"),
        errors.CommitInDoubt("at host.example", marker=""),
    ):
        assert is_outage(error)
        words = public_message(error)
        assert ("restart" in words) == isinstance(error, errors.StoreBroken)
        assert ("by itself" in words) != ("restart" in words)
        assert "host.example" not in words


def test_what_stands_in_the_way_of_writing_does_not_always_stand_in_the_way_of_reading() -> None:
    assert is_readable(errors.StoreFull("full"))
    assert not is_readable(errors.StoreUnavailable("away"))
