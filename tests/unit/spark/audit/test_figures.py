from __future__ import annotations

import pytest

from semel.kernel.ledger import Kind
from semel.spark.audit.figures import SUMS, HopReading, LedgerHop, figures, together, ways
from semel.spark.audit.result import WindowState


def hop(name: str, *kinds: Kind, pipeline: str = "p", code: int = 0) -> LedgerHop:
    return LedgerHop(pipeline, name, code or hash((pipeline, name)), sum(1 << kind for kind in kinds), 1)


def only(name: str, *kinds: Kind, streams: tuple[str, ...] = ()) -> HopReading:
    [way] = ways([hop(name, *kinds)], streams)
    return way


def test_surveys_of_one_hop_add_up() -> None:
    parts = [LedgerHop("p", "a>b", 7, 1 << Kind.SENT, 3), LedgerHop("p", "a>b", 7, 1 << Kind.ACCEPTED, 2)]
    [whole] = together(parts)
    assert whole == LedgerHop("p", "a>b", 7, 1 << Kind.SENT | 1 << Kind.ACCEPTED, 5)
    assert whole.has(Kind.SENT)
    assert not whole.has(Kind.RESENT, Kind.HANDLED)


def test_a_hop_has_a_point_at_each_end() -> None:
    assert (hop("hub/in>worker").sender, hop("hub/in>worker").receiver) == ("hub/in", "worker")
    assert (hop("store").sender, hop("store").receiver) == ("store", "")


def test_records_stand_for_what_a_silent_stream_sent() -> None:
    assert only("chat>w", Kind.ACCEPTED, streams=("chat",)) == HopReading(hop("chat>w", Kind.ACCEPTED), implied=True)
    assert not only("chat>w", Kind.SENT, Kind.ACCEPTED, streams=("chat",)).implied


def test_a_silent_sender_that_is_no_stream_is_unseen() -> None:
    assert only("app>hub", Kind.ACCEPTED).unseen
    assert not only("app>hub", Kind.RESENT, Kind.ACCEPTED).unseen


def test_handled_is_acceptance_where_nobody_writes_accepted() -> None:
    assert only("a>handler", Kind.HANDLED).taken
    assert not only("a>handler", Kind.HANDLED, Kind.ACCEPTED).taken
    assert not only("a>handler", Kind.EXPIRED).taken


def test_two_hops_to_one_point_are_shared_within_a_pipeline() -> None:
    found = ways([hop("n>d"), hop("s>d"), hop("x>d", pipeline="q")], ())
    assert found == []
    kinds = (Kind.SENT, Kind.ACCEPTED)
    found = ways([hop("n>d", *kinds), hop("s>d", *kinds), hop("x>d", *kinds, pipeline="q")], ())
    assert [way.shared for way in found] == [True, True, False]


def test_actions_alone_make_no_hop() -> None:
    assert ways([hop("store", Kind.ACTION)], ()) == []


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({}, WindowState.EMPTY),
        ({"sent": 2}, WindowState.SETTLED),
        ({"sent": 2, "unsettled": 1}, WindowState.OPEN),
        ({"sent": 2, "in_flight": 1}, WindowState.OPEN),
    ],
)
def test_a_window_is_open_while_anything_of_it_is_under_way(counts: dict[str, int], state: WindowState) -> None:
    """What waits for its receiver is under way for as long as that takes."""
    way = HopReading(hop("chat>spark/p", Kind.ACCEPTED, code=7), implied=True)
    none = {**dict.fromkeys(SUMS, 0), "latencies": 0, "skewed": 0, "skew": None}
    row = {"code": 7, "session_class": "", "window": 0, **none, **counts}
    assert figures(row, {7: way}).state is state
