"""What an audit says beside its figures. Hops of one name may be in several pipelines, so each note names its own."""

from __future__ import annotations

import pytest

from semel.cli.audit import parse_time
from semel.kernel.ledger import Kind
from semel.spark.audit import notes
from semel.spark.audit.figures import HopReading, LedgerHop, Survey
from semel.spark.audit.findings import Start
from semel.spark.audit.result import CellFigures, Latency, WindowState
from semel.spark.audit.sources import Held

SECOND = 1_000_000


def hop(name: str, *kinds: Kind, pipeline: str = "p") -> LedgerHop:
    return LedgerHop(pipeline, name, 1, sum(1 << kind for kind in kinds), 1)


def of(*ways: HopReading) -> tuple[str, ...]:
    return notes.of(ways, Survey())


def test_what_nobody_wrote_down_is_told() -> None:
    unsent, unheard = of(HopReading(hop("app>hub", Kind.ACCEPTED), unseen=True), HopReading(hop("hub>far", Kind.SENT)))
    assert unsent == "p: app>hub: nobody wrote down what was sent, so nothing can be said about losses"
    assert unheard == "p: hub>far: nobody wrote down what arrived; is the receiver's ledger among the sources?"
    assert of(HopReading(hop("chat>w", Kind.ACCEPTED), implied=True)) == ()
    [nameless] = of(HopReading(hop("app>hub", Kind.ACCEPTED, pipeline=""), unseen=True))
    assert nameless.startswith("app>hub: ")


@pytest.mark.parametrize("kind", [Kind.HANDLED, Kind.FORWARDED, Kind.MIRRORED])
def test_who_writes_only_what_it_has_handled_has_written_what_arrived(kind: Kind) -> None:
    assert of(HopReading(hop("hub>handler", Kind.SENT, kind), taken=True)) == ()


def test_pipelines_that_are_behind_for_longer_than_a_message_may_take_are_told() -> None:
    ways = [HopReading(hop("chat>spark/p", Kind.ACCEPTED), implied=True, waits_from=time) for time in (None, 5, 6)]
    [note] = notes.waiting(ways, 5)
    assert note.startswith("p: chat>spark/p: the pipeline has yet to take what was written from 1970-01-01 00:00:00")


def test_messages_behind_a_gap_are_told_by_hop() -> None:
    ways = [
        HopReading(hop("chat>spark/p", Kind.ACCEPTED), implied=True),
        HopReading(hop("room>spark/p", Kind.ACCEPTED)),
    ]
    found = [Held("chat>spark/p", session, 4, 2) for session in ("s", "t")] + [Held("gone>spark/p", "s", 4, 2)]
    assert notes.held(found, ways) == [
        "p: chat>spark/p: 4 messages of 2 sessions waiting behind a gap, such as index 4 of session s;"
        " they are in flight, whatever the deadline"
    ]


def test_how_to_leave_out_what_was_written_before_a_reader_began() -> None:
    [note] = notes.late_starts([Start("p", "chat>spark/p", 1_700_000_000_000_001, 1200)])
    assert note.startswith("p: chat>spark/p: 1,200 of the lost were written before the first that it took.")
    assert parse_time("--since", note.split("--since ")[1], 0) == 1_700_000_000_000_001


def test_how_many_ranges_are_about_trimmed_records() -> None:
    assert notes.trimmed({}) == []
    of_shop, of_chat = notes.trimmed({("shop", "a>b"): 1200, ("chat", "c>d"): 1})[::-1]
    assert of_shop.startswith("shop: a>b: 1,200 ranges of the ledger about records that were trimmed")
    assert of_chat.startswith("chat: c>d: 1 range of the ledger about records that were trimmed")


def test_what_was_only_counted_and_where_clocks_differ() -> None:
    survey = Survey(metered=(("p", "a>b", Kind.SENT, 1200), ("q", "a>b", Kind.SENT, 7)))
    assert notes.of([], survey)[0] == "p: a>b: 1,200 times sent was counted without ids and is not audited"
    assert [note[0] for note in notes.of([], survey)] == ["p", "q"]
    assert [note[0] for note in notes.of([], survey, ["q"])] == ["q"]
    skewed = CellFigures("p", "a>b", "", None, WindowState.SETTLED, latency=Latency(skewed=2, skew_ms=1.5))
    [note] = notes.skewed([skewed, CellFigures("p", "a>b", "", 0, WindowState.SETTLED, sent=1)])
    assert note.startswith("p: a>b: 2 messages were accepted up to 1.5 ms before they were sent")
