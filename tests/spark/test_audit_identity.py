"""Which events are about the same message: by its id, and by its session where both sides know it. In ledgers that
were written by a program that has nothing of Semel's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.foreign_ledger import ACCEPTED, BEGIN, CONFIRMED, DUPLICATE, FORWARDED, HANDLED, RESENT, SENT, Ledger

from semel.spark.audit.compact import compact
from semel.spark.audit.result import Audit, CellFigures, Finding
from semel.spark.audit.run import AuditOptions, audit, prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = AuditOptions(deadline_s=0, examples_max=100)
IN, ON, NORTH, SOUTH, DESK, TAKE = "app>hub", "hub>far", "north>desk", "south>desk", "phone>desk2", "log>book"


def tell_of_identity(edge: Ledger, hub: Ledger) -> None:
    """On `app>hub`, pipeline p: what became of each id is in its name."""

    def sent(id: str, *sessions: str | None) -> None:
        for session in sessions:
            edge.tell(SENT, IN, id, session, 1, pipeline="p")

    def accepted(id: str, *sessions: str | None, kind: int = ACCEPTED) -> None:
        for session in sessions:
            hub.tell(kind, IN, id, session, 1, pipeline="p")

    sent("fine", "A")
    accepted("fine", "A")
    sent("doubled-in-two-sessions", "A")
    accepted("doubled-in-two-sessions", "A", "B")
    sent("sender-without-session", None)
    accepted("sender-without-session", "C")
    sent("receiver-without-session", "C")
    accepted("receiver-without-session", None)
    sent("other-session", "A")
    accepted("other-session", "Z")
    sent("two-of-one-id", "A", "B")
    accepted("two-of-one-id", "A", "B")
    sent("lost-in-one-session", "A", "B")
    accepted("lost-in-one-session", "A")
    sent("lost", "A")
    accepted("phantom", "D")
    sent("resent-without-session", "A")
    edge.tell(RESENT, IN, "resent-without-session", pipeline="p")
    accepted("resent-without-session", "A")
    sent("confirmed-without-session", "A")
    accepted("confirmed-without-session", "A")
    edge.tell(CONFIRMED, IN, "confirmed-without-session", pipeline="p")
    sent("duplicate-elsewhere", "A")
    accepted("duplicate-elsewhere", "A")
    accepted("duplicate-elsewhere", None, kind=DUPLICATE)


def tell_of_ways(edge: Ledger, hub: Ledger) -> None:
    """Two ways to one receiver, of which one knows no sessions; and one that nobody writes down as sent."""
    for session, hop in (("S", NORTH), (None, SOUTH)):
        for id in ("over-both", "taken-twice"):
            edge.tell(SENT, hop, id, session, pipeline="p")
    for id in ("over-both", "taken-twice"):
        hub.tell(ACCEPTED, NORTH, id, "S", pipeline="p")
    hub.tell(DUPLICATE, SOUTH, "over-both", pipeline="p")
    hub.tell(ACCEPTED, SOUTH, "taken-twice", pipeline="p")
    for session in ("M", "N"):
        hub.tell(ACCEPTED, DESK, "called-twice", session, pipeline="p")
        hub.tell(ACCEPTED, DESK, f"called-once-by-{session}", session, pipeline="p")


def tell_of_a_worker(edge: Ledger, hub: Ledger) -> None:
    """It forwards under sessions of its own, and forgets one."""
    for id in ("passed-on", "forgotten"):
        edge.tell(SENT, "a>w", id, "in", pipeline="work")
        for kind in (ACCEPTED, FORWARDED):
            hub.tell(kind, "a>w", id, "in", pipeline="work")
    hub.tell(SENT, "w>b", "passed-on", "out", pipeline="work")
    for kind in (ACCEPTED, HANDLED):
        edge.tell(kind, "w>b", "passed-on", "out", pipeline="work")


def tell_of_ranges(edge: Ledger, hub: Ledger) -> None:
    """Good ones in r, one that names other records in q; and a hop on which only handlings are written down."""
    ids = [f"r-{number}" for number in range(1, 4)]
    for offset, id in enumerate(ids, 1):
        edge.tell(SENT, ON, id, "R", offset, pipeline="r")
        hub.record("far/in", offset, id, "R", offset)
        edge.tell(SENT, TAKE, id, "R", offset, pipeline="r")
        hub.tell(HANDLED, TAKE, id, "R", offset, pipeline="r")
    hub.tell_range(ACCEPTED, ON, "far/in", 1, ids, pipeline="r")
    hub.tell_range(ACCEPTED, ON, "far/in", 1, ["others", "than", "these"], pipeline="q")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign") / "lake"
    edge, hub = Ledger(folder, "edge"), Ledger(folder, "hub")
    for tell in (tell_of_identity, tell_of_ways, tell_of_a_worker, tell_of_ranges):
        tell(edge, hub)
    edge.write()
    hub.write()
    return folder


def found(result: Audit) -> set[tuple[str, str, str]]:
    return {(each.finding.value, each.hop, each.message) for each in result.examples}


EXPECTED = {
    ("duplicate", IN, "doubled-in-two-sessions"),
    ("lost", IN, "lost-in-one-session"),
    ("lost", IN, "lost"),
    ("phantom", IN, "phantom"),
    ("duplicate", SOUTH, "taken-twice"),
    ("duplicate", DESK, "called-twice"),
    ("lost", "a>w", "forgotten"),
    ("gap", ON, "far/in@1:1..3"),
}


def of_hop(result: Audit, hop: str) -> CellFigures:
    [cell] = [cell for cell in result.totals if (cell.hop, cell.sent + cell.accepted > 0) == (hop, True)]
    return cell


def same(result: Audit) -> Audit:
    return replace(result, sources=(), seconds=0)


def test_a_foreign_ledger_is_judged_by_ids_and_by_sessions_that_both_sides_know(
    spark: SparkSession, lake: Path
) -> None:
    """All at once, of one pipeline alone, between two points, and from compacted days."""
    with prepared(spark, [lake], AT_ONCE) as case:
        whole = case.audit()
        points = case.compare(f"sent:{IN}", f"accepted:{IN}")
    assert found(whole) == EXPECTED
    assert whole.count(Finding.LOST) == 3
    assert (whole.count(Finding.DUPLICATE), whole.count(Finding.PHANTOM), whole.gaps) == (3, 1, 1)
    into = of_hop(whole, IN)
    assert (into.sent, into.accepted_unique, into.lost, into.in_flight) == (13, 11, 2, 0)
    [chain] = [chain for chain in whole.chains if chain.pipeline == "work"]
    assert (chain.sent, chain.arrived, chain.inside) == (2, 1, 1)
    assert (points.counts.sent, points.counts.unique, points.surplus_count) == (13, 11, 1)
    assert points.missing == ("lost", "lost-in-one-session")
    assert not [note for note in whole.notes if TAKE in note], "handlings are what arrived"
    assert all(note.startswith(("p: ", "r: ", "work: ", "q: ")) for note in whole.notes)

    alone = audit(spark, [lake], replace(AT_ONCE, pipelines=("r",)))
    assert (alone.gaps, found(alone), alone.holds) == (0, set(), True)
    assert audit(spark, [lake], replace(AT_ONCE, pipelines=("q",))).gaps == 1
    later = replace(AT_ONCE, until=whole.now)
    assert found(audit(spark, [lake], later)) == EXPECTED


def test_segments_of_two_days_and_ranges_without_a_fold_are_read_as_the_page_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Rows of another day are in a file of their own. Without a fold only the number of a range is checked."""
    folder = tmp_path / "lake"
    edge, hub = (Ledger(folder, store, BEGIN.replace(hour=23, minute=59, second=58)) for store in ("edge", "hub"))
    ids = ["m-1", "m-2", "m-3"]
    for offset, id in enumerate(ids, 1):
        edge.tell(SENT, ON, id, "S", offset, pipeline="r")
        hub.record("far/in", offset, id, "S", offset)
    hub.at = edge.at
    hub.tell_range(ACCEPTED, ON, "far/in", 1, ids, pipeline="r", folds=False)
    hub.tell_range(CONFIRMED, ON, "far/in", 1, ["others", "than", "these"], pipeline="r", folds=False)
    edge.write()
    hub.write()
    files = sorted(path.relative_to(folder / "raw").as_posix() for path in folder.rglob("*.parquet"))
    assert files == [
        "index/v1/day=2026-01-31/seg-hub-1-1-1.parquet", "index/v1/day=2026-02-01/seg-hub-1-2-3.parquet",
        "ledger/v1/day=2026-01-31/seg-edge-1-1-1.parquet", "ledger/v1/day=2026-02-01/seg-edge-1-2-3.parquet",
        "ledger/v1/day=2026-02-01/seg-hub-1-1-2.parquet",
    ]  # fmt: skip
    whole = audit(spark, [folder], AT_ONCE)
    cell = of_hop(whole, ON)
    assert (cell.sent, cell.accepted_unique, cell.lost, whole.gaps, whole.holds) == (3, 3, 0, 0, True)

    more = Ledger(folder, "more", edge.at)
    more.record("far/in", 1, "m-1")
    more.tell_range(CONFIRMED, ON, "far/in", 1, ["one", "too many"], pipeline="r", folds=False)
    more.write()
    assert audit(spark, [folder], AT_ONCE).gaps == 1


def test_compacted_days_with_ids_in_several_sessions_give_the_same(spark: SparkSession, tmp_path: Path) -> None:
    edge, hub = Ledger(tmp_path / "lake", "edge"), Ledger(tmp_path / "lake", "hub")
    for tell in (tell_of_identity, tell_of_ways, tell_of_a_worker):
        tell(edge, hub)
    edge.write()
    hub.write()
    before = audit(spark, [tmp_path / "lake"], AT_ONCE)
    assert compact(spark, tmp_path / "lake").left == {}
    assert same(audit(spark, [tmp_path / "lake"], AT_ONCE)) == same(before)
    assert found(before) == {each for each in EXPECTED if each[0] != "gap"}
