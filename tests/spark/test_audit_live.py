"""Live stores as they are in production: swept, trimmed, and with a pipeline that is behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from tests.tools.ledgers import CHAT, IN, STREAM, Letter, scene

from semel.cli.audit import parse_time
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Append, Put, Trim
from semel.runtime.export.exporter import export
from semel.spark.audit.follow import FollowOptions, opened
from semel.spark.audit.result import Audit, CellFigures, WindowState
from semel.spark.audit.run import AuditOptions, audit
from semel.spark.landing import SinkState, SourceRange, state_key
from semel.spark.waiting import Wait, Waits, waits_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = AuditOptions(deadline_s=0)
YEAR_S = 366 * 86_400.0


def letter(number: int) -> Letter:
    return Letter(f"m{number}", "s", number)


def of_hop(result: Audit, hop: str) -> CellFigures:
    return next(cell for cell in result.totals if cell.hop == hop)


def test_what_was_exported_and_swept_is_counted_once_with_its_folder(spark: SparkSession, tmp_path: Path) -> None:
    with scene(tmp_path) as stage:
        for number in (1, 2):
            stage.edge.log(Kind.SENT, IN, letter(number))
        stage.hub.accept([letter(1), letter(2)])
        stage.export()
        assert stage.edge.store.sweep(stage.edge.now).ledger == 2
        assert stage.hub.store.sweep(stage.hub.now).ledger == 1
        stage.edge.log(Kind.SENT, IN, letter(3))
        stage.hub.accept([letter(3)])
        both = audit(spark, [stage.folder, stage.edge.url, stage.hub.url], AT_ONCE)
        cell = of_hop(both, IN)
        assert (cell.sent, cell.accepted, cell.lost, both.gaps, both.notes) == (3, 3, 0, 0, ())
        alone = audit(spark, [stage.edge.url, stage.hub.url], AT_ONCE)
        assert of_hop(alone, IN).sent == 1
        assert len(alone.notes) == 2


def test_ranges_of_trimmed_records_are_no_gaps(spark: SparkSession, tmp_path: Path) -> None:
    with scene(tmp_path) as stage:
        stage.hub.accept([letter(1), letter(2)])
        stage.hub.accept([letter(3), letter(4)])
        export(stage.hub.store, tmp_path / "elsewhere", "index")
        stage.hub.commit(Trim(STREAM, 3))
        stage.hub.store.sweep(stage.hub.now + 10**15)
        result = audit(spark, [stage.hub.url], AT_ONCE)
        assert result.gaps == 0
        [note] = [note for note in result.notes if "records that were trimmed" in note]
        assert note.startswith(f"{CHAT}: {IN}: 1 range ")


def test_what_was_written_before_a_reader_began_is_lost_until_it_is_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    """No ledger says where it was to begin, so a note says how to say it."""
    with scene(tmp_path) as stage:
        hop, hub = "chat>spark/p", stage.hub
        for number in (1, 2, 3, 4):
            hub.now += 1_000_001
            hub.commit(Append("chat", letter(number).envelope))
        for number in (3, 4):
            hub.commit(Append("spark/p", letter(number).envelope, on_fresh=Event(Kind.ACCEPTED, hop, "p")))
        hub.export(stage.folder)
        result = audit(spark, [stage.folder], AT_ONCE)
        cell = of_hop(result, hop)
        assert (cell.sent, cell.lost) == (4, 2)
        [note] = result.notes
        assert "2 of the lost were written before the first that it took" in note
        since = parse_time("--since", note.split("--since ")[1], 0)
        again = audit(spark, [stage.folder], AuditOptions(deadline_s=0, since=since))
        cell = of_hop(again, hop)
        assert (cell.sent, cell.lost, again.notes) == (2, 0, ())


def test_what_a_pipeline_has_yet_to_take_is_in_flight(spark: SparkSession, tmp_path: Path) -> None:
    """At once and followed. Of what it took, one message did not arrive: that one is lost."""
    with scene(tmp_path) as stage:
        hop, hub = "chat>spark/p", stage.hub

        def land(number: int, taken: int, batch: int) -> None:
            state = SinkState("q", batch, {"chat": SourceRange(hub.store.store_id, "chat", 1, 0, taken)})
            record = Append("spark/p", letter(number).envelope, on_fresh=Event(Kind.ACCEPTED, hop, "p"))
            hub.commit(record, Put(state_key("p"), state.encode()))

        for number in (1, 2, 3, 4):
            hub.now += 1_000_000
            hub.commit(Append("chat", letter(number).envelope))
        land(1, taken=2, batch=0)
        once = audit(spark, [hub.url], AT_ONCE)
        cell = of_hop(once, hop)
        assert (cell.sent, cell.accepted, cell.lost, cell.in_flight, cell.state) == (4, 1, 1, 2, WindowState.OPEN)
        assert any("yet to take" in note for note in once.notes)
        options = FollowOptions(tmp_path / "state", keep_s=YEAR_S)
        with opened(spark, [hub.url], AuditOptions(deadline_s=0, window_s=60), options) as follower:
            cell = of_hop(follower.step()[0], hop)
            assert (cell.sent, cell.accepted, cell.lost, cell.in_flight) == (4, 1, 1, 2)
            land(3, taken=4, batch=1)
            cell = of_hop(follower.step()[0], hop)
            assert (cell.sent, cell.accepted, cell.lost, cell.in_flight) == (4, 2, 2, 0)


def test_what_waits_behind_a_gap_is_in_flight_until_the_gap_is_closed(spark: SparkSession, tmp_path: Path) -> None:
    """At once and followed, whatever the deadline. Of what came before the gap one did not arrive: that is lost."""
    with scene(tmp_path) as stage:
        hop, hub = "chat>spark/p", stage.hub

        def land(numbers: list[int], batch: int, waits: dict[str, Wait]) -> None:
            state = SinkState("q", batch, {"chat": SourceRange(hub.store.store_id, "chat", 1, 0, 5)})
            records = (Append("spark/p", letter(n).envelope, on_fresh=Event(Kind.ACCEPTED, hop, "p")) for n in numbers)
            notes = Put(waits_key("p"), msgspec.json.encode(Waits("q", waits)))
            hub.commit(*records, Put(state_key("p"), state.encode()), notes)

        for number in (1, 2, 4, 5, 6):
            hub.now += 1_000_000
            hub.commit(Append("chat", letter(number).envelope))
        land([1], 0, {"s": Wait(3, 3)})
        once = audit(spark, [hub.url], AT_ONCE)
        cell = of_hop(once, hop)
        assert (cell.sent, cell.accepted, cell.lost, cell.in_flight, cell.state) == (5, 1, 1, 3, WindowState.OPEN)
        assert once.notes == (
            "p: chat>spark/p: 3 messages of 1 session waiting behind a gap, such as index 3 of session s;"
            " they are in flight, whatever the deadline",
        )
        options = FollowOptions(tmp_path / "state", keep_s=YEAR_S)
        with opened(spark, [hub.url], AuditOptions(deadline_s=0, window_s=60), options) as follower:
            cell = of_hop(follower.step()[0], hop)
            assert (cell.sent, cell.accepted, cell.lost, cell.in_flight) == (5, 1, 1, 3)
            land([4, 5], 1, {})
            cell = of_hop(follower.step()[0], hop)
            assert (cell.sent, cell.accepted, cell.lost, cell.in_flight) == (5, 3, 2, 0)
