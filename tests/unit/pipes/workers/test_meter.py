"""Meters count for good, and hand over what is new as ranges."""

from __future__ import annotations

import pytest

import semel.pipes.workers.meter as module
from semel.kernel.effects import Commit
from semel.kernel.ledger import Event, Kind, fold_ids
from semel.kernel.ops import Log
from semel.pipes.workers.meter import HopMeter, Reports


def logged(commit: Commit) -> list[Event]:
    return [op.event for op in commit.ops if isinstance(op, Log)]


def test_counts_grow_for_good() -> None:
    meter = HopMeter("A>B")
    assert not meter.has_news
    meter.count(Kind.SENT, "a", 1)
    meter.count(Kind.SENT, "b", 2)
    meter.count(Kind.RESENT, "a", 1)
    assert meter.counts == {Kind.SENT: 2, Kind.RESENT: 1}
    meter.take()
    assert meter.counts == {Kind.SENT: 2, Kind.RESENT: 1}
    assert not meter.has_news


@pytest.mark.parametrize("folds", [False, True])
def test_what_is_new_becomes_one_range_for_each_kind(folds: bool) -> None:
    meter = HopMeter("A>B", "orders", "pipe/orders/a", "B", folds)
    for id, index in (("b", 7), ("a", 5), ("c", 9)):
        meter.count(Kind.SENT, id, index)
    meter.count(Kind.CONFIRMED, "a", 5)
    assert meter.has_news
    sent, confirmed = meter.take()
    fold = fold_ids("abc") if folds else None
    assert (sent.kind, sent.first, sent.last, sent.n, sent.fold) == (Kind.SENT, 5, 9, 3, fold)
    assert (sent.hop, sent.pipeline, sent.stream, sent.peer) == ("A>B", "orders", "pipe/orders/a", "B")
    assert (confirmed.kind, confirmed.first, confirmed.last, confirmed.n) == (Kind.CONFIRMED, 5, 5, 1)
    assert not meter.has_news
    assert meter.take() == []
    meter.count(Kind.SENT, "d", 10)
    (sent,) = meter.take()
    assert (sent.first, sent.last, sent.n, sent.fold) == (10, 10, 1, fold_ids("d") if folds else None)


def test_without_folds_nothing_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(message: str) -> int:
        raise AssertionError(f"{message} was hashed")

    monkeypatch.setattr(module, "hash_id", refuses)
    meter = HopMeter("A>B")
    meter.count(Kind.SENT, "a", 1)
    meter.put_back(meter.take())
    assert [event.n for event in meter.take()] == [1]


@pytest.mark.parametrize("folds", [False, True])
def test_what_could_not_be_written_is_told_with_the_rest(folds: bool) -> None:
    meter = HopMeter("A>B", folds=folds)
    meter.count(Kind.SENT, "a", 3)
    taken = meter.take()
    meter.count(Kind.SENT, "b", 1)
    meter.count(Kind.SENT, "c", 8)
    meter.put_back(taken)
    (sent,) = meter.take()
    assert (sent.first, sent.last, sent.n, sent.fold) == (1, 8, 3, fold_ids("abc") if folds else None)
    meter.put_back([sent])
    assert meter.take() == [sent]
    assert meter.counts == {Kind.SENT: 3}


def test_no_range_speaks_of_what_the_ledger_names() -> None:
    meter = HopMeter("A>B", folds=True)
    meter.count_reported(Kind.FAILED)
    assert not meter.has_news
    assert meter.counts == {Kind.FAILED: 1}
    meter.put_back([Event(Kind.FAILED, "A>B", message="a")])
    (failed,) = meter.take()
    assert (failed.first, failed.last, failed.n, failed.fold) == (0, 0, 1, fold_ids("a"))


# -- reports


def test_a_report_comes_a_while_after_the_first_news() -> None:
    first, second = HopMeter("A>B"), HopMeter("B>C")
    reports = Reports([first, second], 10.0)
    reports.look(1.0)
    assert reports.at is None
    second.count(Kind.SENT, "a", 1)
    reports.look(2.0)
    first.count(Kind.SENT, "b", 1)
    reports.look(3.0)
    assert reports.at == 12.0
    assert reports.on_timer(11.9) == []
    (commit,) = reports.on_timer(12.0)
    assert [event.hop for event in logged(commit)] == ["A>B", "B>C"]
    assert commit.token < 0, "never taken for one of its owner's"
    reports.look(12.0)
    assert reports.at is None


def test_only_what_is_not_written_is_told_again() -> None:
    meter = HopMeter("A>B")
    reports = Reports([meter], 1.0)
    for written in (True, False):
        meter.count(Kind.SENT, "a", 1)
        reports.look(0.0)
        (commit,) = reports.on_timer(1.0)
        (reports.written if written else reports.not_written)(commit.token)
        reports.not_written(commit.token if written else 77)
        assert meter.has_news is not written


def test_an_event_of_its_own_that_is_not_written_is_told_as_a_number() -> None:
    meter = HopMeter("A>B")
    reports = Reports([meter], 1.0)
    (commit,) = reports.one(meter, Event(Kind.FAILED, "A>B", message="a"))
    assert [event.message for event in logged(commit)] == ["a"]
    assert not meter.has_news
    reports.not_written(commit.token)
    assert [(event.kind, event.n) for event in meter.take()] == [(Kind.FAILED, 1)]


def test_without_a_time_there_are_no_reports() -> None:
    meter = HopMeter("A>B")
    reports = Reports([meter], None)
    meter.count(Kind.SENT, "a", 1)
    reports.look(0.0)
    assert reports.at is None
    assert reports.on_timer(99.0) == []
