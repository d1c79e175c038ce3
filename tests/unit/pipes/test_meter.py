"""Meters count for good, and hand over what is new as ranges."""

from __future__ import annotations

from semel.kernel.ledger import Kind, fold_ids
from semel.pipes.meter import Meter


def test_counts_grow_for_good() -> None:
    meter = Meter("A>B")
    meter.count(Kind.SENT, "a", 1)
    meter.count(Kind.SENT, "b", 2)
    meter.count(Kind.RESENT, "a", 1)
    assert meter.counts == {Kind.SENT: 2, Kind.RESENT: 1}
    assert meter.take() == []
    assert not meter.has_news


def test_what_is_new_becomes_one_range_for_each_kind() -> None:
    meter = Meter("A>B", "orders", "pipe/orders/a", "B", keeps_spans=True)
    for id, index in (("b", 7), ("a", 5), ("c", 9)):
        meter.count(Kind.SENT, id, index)
    meter.count(Kind.CONFIRMED, "a", 5)
    assert meter.has_news
    sent, confirmed = meter.take()
    assert (sent.kind, sent.first, sent.last, sent.n, sent.fold) == (Kind.SENT, 5, 9, 3, fold_ids("abc"))
    assert (sent.hop, sent.pipeline, sent.stream, sent.peer) == ("A>B", "orders", "pipe/orders/a", "B")
    assert (confirmed.kind, confirmed.first, confirmed.last, confirmed.n) == (Kind.CONFIRMED, 5, 5, 1)
    assert not meter.has_news
    assert meter.take() == []


def test_what_could_not_be_written_is_told_with_the_rest() -> None:
    meter = Meter("A>B", keeps_spans=True)
    meter.count(Kind.SENT, "a", 3)
    taken = meter.take()
    meter.count(Kind.SENT, "b", 1)
    meter.count(Kind.SENT, "c", 8)
    meter.put_back(taken)
    (sent,) = meter.take()
    assert (sent.first, sent.last, sent.n, sent.fold) == (1, 8, 3, fold_ids("abc"))
    meter.put_back([sent])
    assert meter.take() == [sent]
    assert meter.counts == {Kind.SENT: 3}
