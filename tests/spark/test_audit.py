"""The audit on Spark, against ledgers of which the truth is known and against the same definitions in DuckDB."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.shared_session import SharedSession
from tests.tools.ledgers import (
    BEGIN_US,
    CHAT,
    IN,
    NORTH,
    OUT,
    SECOND_US,
    SOUTH,
    STREAM,
    Book,
    Letter,
    Scene,
    Truth,
    plant,
    scene,
)

from semel.errors import InputError, StoreBusy
from semel.kernel.ledger import ENDS, Event, Kind
from semel.kernel.ops import Append, Log, Unit
from semel.runtime.export.exporter import DATASETS, ExportOptions, export
from semel.spark.audit import compact as compacting
from semel.spark.audit import expand, figures
from semel.spark.audit.compact import compact
from semel.spark.audit.follow import FollowOptions, opened
from semel.spark.audit.result import Audit, CellFigures, Finding, WindowState
from semel.spark.audit.run import NEWEST, AuditOptions, audit, prepared
from semel.stores.open import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MINUTE = AuditOptions(deadline_s=60)

FINDINGS = {
    "lost": Finding.LOST,
    "doubled": Finding.DUPLICATE,
    "disorder": Finding.ORDER,
    "phantoms": Finding.PHANTOM,
    "unbalanced": Finding.UNBALANCED,
}


# -- what was planted is found


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Truth]:
    """Two folders of two stores each, the files of one of them small."""
    truth, lakes = Truth(), []
    for seed, rows in ((3, 50), (4, 5000)):
        with scene(tmp_path_factory.mktemp("planted")) as made:
            plant(made, seed, sessions=5, each=10)
            made.export(segment_rows=rows)
            lakes.append(made.folder)
            _add(truth, made.truth)
    return lakes, truth


def _add(truth: Truth, more: Truth) -> None:
    for hop, ids in more.sent.items():
        truth.sent.setdefault(hop, set()).update(ids)
    for hop, fates in more.planted.items():
        for fate, ids in fates.items():
            truth.of(hop, fate).update(ids)


@pytest.fixture(scope="module")
def audited(shared_spark: SharedSession, planted: tuple[list[Path], Truth]) -> tuple[Audit, list[Any]]:
    """The audit of all, and its table of findings. Once for the whole module."""
    options = AuditOptions(deadline_s=60, window_s=1, examples_max=1000, session_class="^([a-z]+)-")
    with prepared(shared_spark.get(), planted[0], options) as case:
        return case.audit(), case.findings().collect()


def test_everything_planted_is_found_and_nothing_else(
    planted: tuple[list[Path], Truth], audited: tuple[Audit, list[Any]]
) -> None:
    _, truth = planted
    result, rows = audited
    assert result.gaps == 0
    for hop in (IN, OUT, NORTH, SOUTH):
        for fate, finding in FINDINGS.items():
            expected = truth.of(hop, fate)
            assert {r["message"] for r in rows if (r["hop"], r["finding"]) == (hop, finding.value)} == expected
            assert {e.message for e in result.examples if (e.hop, e.finding) == (hop, finding)} == expected
        cells = [cell for cell in result.totals if cell.hop == hop]
        assert sum(cell.sent for cell in cells) == len(truth.sent[hop])
        assert sum(cell.given_up for cell in cells) == len(truth.of(hop, "given_up"))
        assert sum(cell.in_flight for cell in cells) == len(truth.of(hop, "in_flight"))
    for fate in FINDINGS:
        assert any(truth.of(hop, fate) for hop in (IN, OUT, NORTH, SOUTH)), f"the seeds plant no {fate}"


def test_the_figures_keep_their_identities(audited: tuple[Audit, list[Any]]) -> None:
    result, _ = audited
    for cell in (*result.totals, *result.windows):
        assert cell.sent == cell.accepted_unique + cell.lost + cell.given_up + cell.in_flight
        assert cell.arrivals >= cell.arrivals_unique
        assert cell.doubled >= cell.accepted - cell.accepted_unique
        assert cell.delivery.sent >= cell.delivery.unique
        assert cell.pipe.sent >= cell.pipe.unique
        if cell.state is WindowState.SETTLED:
            assert cell.in_flight == 0
        if cell.state is WindowState.EMPTY:
            assert cell.sent == 0


def test_windows_add_up_to_the_whole(audited: tuple[Audit, list[Any]]) -> None:
    result, _ = audited
    counts = [f.name for f in fields(CellFigures) if f.type == "int"]
    for total in result.totals:
        mine = [w for w in result.windows if (w.hop, w.session_class) == (total.hop, total.session_class)]
        for name in counts:
            assert sum(getattr(window, name) for window in mine) == getattr(total, name), (total.hop, name)
        assert sum(window.latency.count for window in mine) == total.latency.count
        times = [window.window for window in mine]
        assert times == sorted(set(times))


def test_session_classes_are_told_apart(audited: tuple[Audit, list[Any]]) -> None:
    assert {cell.session_class for cell in audited[0].totals if cell.hop == NORTH} == {"std", "vip"}


def test_a_chain_is_measured_beside_its_prediction(
    planted: tuple[list[Path], Truth], audited: tuple[Audit, list[Any]]
) -> None:
    _, truth = planted
    [chain] = audited[0].chains
    assert chain.hops == (IN, OUT)
    sent = truth.sent[IN] - truth.of(IN, "in_flight")
    arrived = sent - truth.of(IN, "lost") - truth.of(IN, "given_up") - truth.of(OUT, "lost")
    assert (chain.sent, chain.arrived) == (len(sent), len(arrived))
    first = 1 - len(truth.of(IN, "lost") | truth.of(IN, "given_up")) / len(sent)
    second = 1 - len(truth.of(OUT, "lost")) / len(truth.sent[OUT])
    assert chain.predicted == pytest.approx(first * second)


# -- compacted days


def test_compacted_days_give_the_same_audit_without_moving_a_row(
    spark: SparkSession,
    planted: tuple[list[Path], Truth],
    audited: tuple[Audit, list[Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lakes = [Path(shutil.copytree(lake, tmp_path / str(at))) for at, lake in enumerate(planted[0])]
    done = compact(spark, lakes[0])
    assert (done.days, done.left) == (("2026-01-01",), {})
    assert compact(spark, lakes[0]).days == ()
    options = AuditOptions(deadline_s=60, window_s=1, examples_max=1000, session_class="^([a-z]+)-")
    assert same(audit(spark, lakes, options)) == same(audited[0])
    with prepared(spark, lakes[:1]) as case:
        assert not case.raw
        case.messages().explain()
    plan = capsys.readouterr().out
    assert "Bucketed: true" in plan
    assert "Exchange" not in plan


def same(result: Audit) -> Audit:
    return replace(result, sources=(), seconds=0)


def test_one_compacts_at_a_time(spark: SparkSession, planted: tuple[list[Path], Truth], tmp_path: Path) -> None:
    lake = Path(shutil.copytree(planted[0][1], tmp_path / "lake"))
    with compacting._alone(lake), pytest.raises(StoreBusy):
        compact(spark, lake)
    with pytest.raises(InputError, match="2031-01-01"):
        compact(spark, lake, ["2031-01-01"])


# -- one thing at a time


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path) as made:
        yield made


def letter(index: int, session: str = "s") -> Letter:
    return Letter(f"{session}-{index}", session, index)


def totals(result: Audit) -> dict[str, CellFigures]:
    return {cell.hop: cell for cell in result.totals}


def found(result: Audit, finding: Finding) -> set[tuple[str, str]]:
    return {(example.hop, example.message) for example in result.examples if example.finding is finding}


def test_late_data_reopens_its_window_even_after_the_day_was_compacted(
    spark: SparkSession, stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One loss and one duplicate in one window: sums alone would not show either. Then the lost one arrives late."""
    one, two = letter(1), letter(2)
    stage.edge.log(Kind.SENT, IN, one)
    stage.edge.log(Kind.SENT, IN, two)
    stage.hub.accept([one])
    stage.hub.accept([one])
    stage.at(BEGIN_US + 100 * SECOND_US)
    stage.hub.log(Kind.DUPLICATE, IN, one)
    stage.export()
    result = audit(spark, [stage.folder], MINUTE)
    assert found(result, Finding.LOST) == {(IN, two.id)}
    assert found(result, Finding.DUPLICATE) == {(IN, one.id)}
    [window] = [cell for cell in result.windows if cell.sent]
    assert (window.sent, window.accepted, window.lost, window.doubled) == (2, 2, 1, 1)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compacting, "_put_manifest", die)
        with pytest.raises(KeyboardInterrupt):
            compact(spark, stage.folder)
    assert compacting.read_manifest(stage.folder).days == ()
    compact(spark, stage.folder)
    left = list(compacting.events_folder(stage.folder).glob("gen-*/day=*"))
    assert len(left) == 1

    stage.at(BEGIN_US + 200 * SECOND_US)
    stage.hub.accept([two])
    stage.export()
    later = audit(spark, [stage.folder], MINUTE)
    assert later.count(Finding.LOST) == 0
    [window] = [cell for cell in later.windows if cell.sent]
    assert (window.sent, window.accepted_unique, window.lost) == (2, 2, 0)


def test_a_restored_store_counts_without_what_it_lost(spark: SparkSession, tmp_path: Path) -> None:
    """What the lost history accepted is lost; sent again, it counts as accepted once."""
    lake, path = tmp_path / "lake", tmp_path / "hub.db"
    one, two, three = letter(1), letter(2), letter(3)
    edge, hub = Book(tmp_path / "edge.db", "edge"), Book(path, "hub")
    for each in (one, two, three):
        edge.log(Kind.SENT, IN, each)
    hub.accept([one])
    hub.export(lake)
    hub.store.close()
    shutil.copy(path, tmp_path / "backup.db")
    hub = Book(path, "hub")
    hub.accept([two, three])
    hub.export(lake)
    hub.store.close()
    shutil.copy(tmp_path / "backup.db", path)
    hub = Book(path, "hub")
    assert hub.store.epoch == 2
    hub.now = edge.now = BEGIN_US + 100 * SECOND_US
    hub.confirm([two], hub.accept([two]))
    hub.export(lake)
    edge.export(lake)
    hub.store.close()
    edge.store.close()
    result = audit(spark, [lake], MINUTE)
    assert result.gaps == 0
    assert found(result, Finding.LOST) == {(IN, three.id)}
    assert (totals(result)[IN].accepted, totals(result)[IN].doubled) == (2, 0)


def test_a_range_without_its_records_is_a_gap(spark: SparkSession, stage: Scene) -> None:
    letters = [letter(number) for number in range(1, 41)]
    places = stage.hub.accept(letters)
    stage.hub.confirm(letters, places)
    stage.hub.confirm(letters[:3], places[1:4])
    stage.export()
    result = audit(spark, [stage.folder], MINUTE)
    assert result.gaps == 1
    [example] = [example for example in result.examples if example.finding is Finding.GAP]
    assert (example.hop, example.message, example.count) == (IN, f"{STREAM}@1:2..4", 1)
    assert "they are others" in example.detail
    assert list(compact(spark, stage.folder).left) == ["2026-01-01"]


def test_a_live_store_beside_its_folder_counts_nothing_twice(spark: SparkSession, stage: Scene) -> None:
    one, two, three = letter(1), letter(2), letter(3)
    for each in (one, two):
        stage.edge.log(Kind.SENT, IN, each)
    stage.hub.accept([one])
    stage.export()
    stage.edge.log(Kind.SENT, IN, three)
    stage.hub.accept([two, three])
    result = audit(spark, [stage.folder, stage.edge.url, stage.hub.url], AuditOptions(deadline_s=0))
    cell = totals(result)[IN]
    assert (cell.sent, cell.accepted, cell.lost, cell.doubled, result.gaps) == (3, 3, 0, 0, 0)
    assert (result.events, found(result, Finding.LOST)) == (6, set())


def test_a_store_in_postgresql_counts_live_exported_and_followed(
    spark: SparkSession, postgres_url: str, tmp_path: Path
) -> None:
    options = AuditOptions(deadline_s=0, now=NEWEST, window_s=60)
    letters = [letter(number) for number in range(1, 5)]
    taken = Event(Kind.ACCEPTED, IN, CHAT)
    with closing(open_store(postgres_url, node="hub")) as store:
        sent = [Log(Event(Kind.SENT, IN, CHAT, each.id, session=each.session, idx=each.index)) for each in letters]
        store.commit([Unit(tuple(sent))])
        store.commit([Unit(tuple(Append(STREAM, each.envelope, on_fresh=taken) for each in letters[:2]))])
        for dataset in DATASETS:
            export(store, tmp_path / "lake", dataset, ExportOptions())
        store.commit([Unit((Append(STREAM, letters[2].envelope, on_fresh=taken),))])
    exported = audit(spark, [tmp_path / "lake"], options)
    assert found(exported, Finding.LOST) == {(IN, letters[2].id), (IN, letters[3].id)}
    live = audit(spark, [postgres_url], options)
    assert (found(live, Finding.LOST), totals(live)[IN].accepted, live.gaps) == ({(IN, letters[3].id)}, 3, 0)
    assert same(audit(spark, [tmp_path / "lake", postgres_url], options)) == same(live)
    with opened(spark, [postgres_url], options, FollowOptions(tmp_path / "state")) as follower:
        assert same(follower.step()[0]) == same(live)


def test_any_two_points_can_be_compared(spark: SparkSession, stage: Scene) -> None:
    letters = [letter(number) for number in range(1, 6)]
    for each in letters:
        stage.edge.log(Kind.SENT, IN, each)
    stage.hub.accept(letters[1:])
    stage.edge.log(Kind.ACCEPTED, OUT, letters[1])
    stage.edge.log(Kind.ACCEPTED, OUT, letters[1])
    stage.edge.log(Kind.ACCEPTED, OUT, letter(9))
    stage.export()
    with prepared(spark, [stage.folder]) as case:
        whole = case.compare(IN, OUT)
        assert (whole.counts.sent, whole.counts.unique, whole.counts.received) == (5, 1, 2)
        assert whole.missing == ("s-1", "s-3", "s-4", "s-5")
        assert whole.surplus == ("s-9",)
        into = case.compare(f"sent:{IN}", f"stream:{STREAM}")
        assert (into.counts.unique, into.missing) == (4, ("s-1",))
        with pytest.raises(InputError, match="no hop 'x>y'"):
            case.compare("x>y", OUT)


def test_odd_hops_are_read_for_what_they_say(spark: SparkSession, stage: Scene) -> None:
    """Handlers that write no `accepted`, senders that nobody heard, clocks that differ, meters that kept no ids."""
    one, two = letter(1), letter(2)
    stage.hub.accept([one, two])
    stage.edge.log(Kind.HANDLED, f"{STREAM}>handler", one)
    stage.edge.log(Kind.HANDLED, f"{STREAM}>handler", one)
    stage.edge.log(Kind.SKIPPED, f"{STREAM}>handler", two)
    stage.edge.log(Kind.ACCEPTED, "browser>edge", one)
    stage.hub.now += 5_000
    stage.hub.log(Kind.SENT, "hub>far", one)
    stage.edge.log(Kind.ACCEPTED, "hub>far", one)
    meter = Event(Kind.SENT, "a>b", CHAT, stream="a>b", epoch=0, first=1, last=700, n=700)
    stage.edge.commit(Log(meter))
    stage.at(BEGIN_US + 100 * SECOND_US)
    stage.edge.log(Kind.CONFIRMED, "hub>far", one)
    stage.export()
    result = audit(spark, [stage.folder], MINUTE)
    cells = totals(result)
    handler = cells[f"{STREAM}>handler"]
    assert (handler.sent, handler.accepted_unique, handler.given_up, handler.doubled) == (2, 1, 1, 1)
    assert (handler.open, handler.unbalanced) == (0, 0)
    assert (cells["browser>edge"].phantoms, cells["browser>edge"].state) == (0, WindowState.EMPTY)
    assert (cells["hub>far"].latency.skewed, cells["hub>far"].latency.skew_ms) == (1, 5.0)
    assert "a>b" not in cells
    named = [f"{CHAT}: {hop}" for hop in ("a>b", IN, "browser>edge", "hub>far")]
    assert sorted(":".join(note.split(":")[:2]) for note in result.notes) == named


def test_only_what_was_sent_in_time_counts_and_all_that_became_of_it(spark: SparkSession, stage: Scene) -> None:
    """`until` leaves out what was sent later. What was sent before and arrived later has arrived."""
    letters = [letter(number) for number in range(1, 5)]
    for number, each in enumerate(letters):
        stage.at(BEGIN_US + number * SECOND_US)
        stage.edge.log(Kind.SENT, IN, each)
    stage.at(BEGIN_US + 60 * SECOND_US)
    stage.hub.accept([letters[1]])
    stage.edge.log(Kind.ACCEPTED, OUT, letters[1])
    stage.export()
    within = AuditOptions(deadline_s=0, since=BEGIN_US + SECOND_US, until=BEGIN_US + 3 * SECOND_US)
    result = audit(spark, [stage.folder], within)
    assert (totals(result)[IN].sent, totals(result)[IN].accepted_unique) == (2, 1)
    assert found(result, Finding.LOST) == {(IN, letters[2].id)}
    [chain] = result.chains
    assert (chain.sent, chain.arrived) == (2, 1)


def test_what_a_worker_forwarded_and_nobody_saw_again_is_lost(spark: SparkSession, stage: Scene) -> None:
    """Handled, dead or under other ids (a receipt): these have ended well. Too young: may still come."""
    first, onward = "a>spark/p", "spark/p>b"
    names = ("passed", "gone", "handled", "dead", "mapped", "expired")
    letters = {name: Letter(name, "s", number) for number, name in enumerate(names, 1)}
    ends = {"handled": Kind.HANDLED, "dead": Kind.DEAD_LETTERED}
    for name, each in letters.items():
        for kind in (Kind.SENT, Kind.ACCEPTED, ends.get(name, Kind.FORWARDED)):
            stage.edge.log(kind, first, each)
    for kind in (Kind.SENT, Kind.ACCEPTED, Kind.HANDLED):
        stage.edge.log(kind, onward, letters["passed"])
    stage.edge.log(Kind.EXPIRED, onward, letters["expired"])
    stage.edge.commit(Append("spark/p/receipts", letters["mapped"].envelope))
    stage.at(BEGIN_US + 100 * SECOND_US)
    young = Letter("young", "s", 9)
    for kind in (Kind.SENT, Kind.ACCEPTED, Kind.FORWARDED):
        stage.edge.log(kind, first, young)
    stage.export()
    result = audit(spark, [stage.folder], MINUTE)
    [inside] = result.inside
    assert (inside.hop, inside.onward, inside.lost) == (first, (onward,), 1)
    assert (result.count(Finding.LOST), found(result, Finding.LOST)) == (1, {(first, "gone")})
    [example] = [example for example in result.examples if example.finding is Finding.LOST]
    assert example.detail == f"between {first} and {onward}"
    [chain] = result.chains
    assert (chain.sent, chain.arrived, chain.inside) == (6, 1, 1)
    assert totals(result)[first].lost == 0
    compact(spark, stage.folder)
    assert same(audit(spark, [stage.folder], MINUTE)) == same(result)


def test_a_live_store_is_judged_by_the_clock_and_an_export_by_its_newest_event(
    spark: SparkSession, stage: Scene
) -> None:
    """A receiver that is dead writes nothing; what was sent to it does not stay in flight for ever."""
    stage.edge.log(Kind.SENT, IN, letter(1))
    stage.export()
    exported = audit(spark, [stage.folder])
    assert (exported.now, totals(exported)[IN].in_flight) == (BEGIN_US, 1)
    live = audit(spark, [stage.edge.url])
    assert (totals(live)[IN].in_flight, totals(live)[IN].lost) == (0, 1)
    assert live.now > BEGIN_US
    assert live.window_s == 1
    newest = audit(spark, [stage.edge.url], AuditOptions(now=NEWEST))
    assert (newest.now, totals(newest)[IN].in_flight) == (BEGIN_US, 1)


def test_an_export_of_nothing_and_windows_without_number(spark: SparkSession, stage: Scene) -> None:
    stage.edge.export(stage.folder)
    empty = audit(spark, [stage.folder], MINUTE)
    assert (empty.events, empty.totals, empty.windows, empty.settled) == (0, (), (), False)
    stage.edge.log(Kind.SENT, IN, letter(1))
    stage.at(BEGIN_US + 5000 * SECOND_US)
    stage.edge.log(Kind.SENT, IN, letter(2))
    stage.edge.export(stage.folder)
    with pytest.raises(InputError, match="5,000,000 windows"):
        audit(spark, [stage.folder], AuditOptions(window_s=0.001))
    with pytest.raises(InputError, match="no pipeline 'mail'"):
        audit(spark, [stage.folder], AuditOptions(pipelines=("mail",)))


# -- beside DuckDB

SQL = """
WITH taken AS (
  SELECT pipeline, hop FROM events GROUP BY ALL
  HAVING count(*) FILTER (kind = 4) = 0 AND count(*) FILTER (kind IN (20, 21, 22)) > 0
), quiet AS (
  SELECT pipeline, hop FROM events GROUP BY ALL HAVING count(*) FILTER (kind IN (1, 2)) = 0
), many AS (
  SELECT pipeline, split_part(hop, '>', 2) AS receiver FROM (SELECT DISTINCT pipeline, hop FROM events)
  GROUP BY ALL HAVING count(*) > 1
), marked AS (
  SELECT e.*, e.kind = 4 OR (t.hop IS NOT NULL AND e.kind IN (20, 21, 22)) AS takes
  FROM events e LEFT JOIN taken t USING (pipeline, hop) WHERE kind <> 12
), m AS (
  SELECT pipeline, hop, session, message, max(idx) AS idx,
    count(*) FILTER (kind IN (1, 2)) AS sends, count(*) FILTER (takes) AS accepted,
    count(*) FILTER (kind = 5) AS duplicates, count(*) FILTER (kind = 6) AS rejected,
    count(*) FILTER (kind >= 20 AND kind <> 28) AS ended, count(*) FILTER (kind = 28) AS dropped,
    count(*) FILTER (kind = 11) AS replayed, count(*) FILTER (kind = 7) AS confirmed,
    min(epoch_us("at")) FILTER (kind IN (1, 2)) AS sent_at, min(epoch_us("at")) FILTER (takes) AS accepted_at,
    min(epoch_us("at")) AS seen_at, min(ord) FILTER (takes) AS ord, arg_min(store, ord) FILTER (takes) AS store
  FROM marked GROUP BY ALL
), n AS (
  SELECT m.*, c.code FROM m JOIN codes c USING (pipeline, hop)
), placed AS (
  SELECT m.*, coalesce(sent_at, seen_at) AS t, m.accepted + m.duplicates + m.rejected AS arrivals,
    many.receiver IS NOT NULL AS shared,
    EXISTS (SELECT 1 FROM n o WHERE o.pipeline = m.pipeline AND o.session = m.session AND o.message = m.message
            AND split_part(o.hop, '>', 2) = split_part(m.hop, '>', 2) AND o.accepted > 0) AS somewhere,
    EXISTS (SELECT 1 FROM n o WHERE o.pipeline = m.pipeline AND o.session = m.session AND o.message = m.message
            AND split_part(o.hop, '>', 2) = split_part(m.hop, '>', 2) AND o.accepted > 0 AND o.hop <> m.hop
            AND (o.accepted_at, o.code) < (m.accepted_at, m.code)) AS late,
    EXISTS (SELECT 1 FROM n o WHERE o.pipeline = m.pipeline AND o.session = m.session AND o.hop = m.hop
            AND o.store = m.store AND o.accepted > 0 AND m.accepted > 0 AND o.ord < m.ord AND o.idx > m.idx) AS behind
  FROM n m LEFT JOIN many ON many.pipeline = m.pipeline AND many.receiver = split_part(m.hop, '>', 2)
), j AS (
  SELECT *, accepted > 0 OR (shared AND duplicates > 0 AND somewhere) AS held,
    accepted - CASE WHEN accepted > 0 AND NOT late THEN 1 ELSE 0 END AS copies,
    t <= $now - $deadline AS settled, ended + dropped > 0 AS over
  FROM placed
), v AS (
  SELECT j.*, sends > 0 AND NOT held AND NOT over AND settled AS lost,
    sends > 0 AND NOT held AND over AS given_up, sends > 0 AND NOT held AND NOT over AND NOT settled AS in_flight
  FROM j
)
SELECT pipeline, hop, t - t % $window AS "window",
  count(*) FILTER (sends > 0) AS sent, coalesce(sum(sends), 0) AS attempts,
  coalesce(sum(arrivals) FILTER (sends > 0 AND NOT in_flight), 0) AS arrivals,
  count(*) FILTER (sends > 0 AND NOT in_flight AND arrivals > 0) AS arrivals_unique,
  coalesce(sum(arrivals ** 2) FILTER (sends > 0 AND NOT in_flight), 0) AS arrivals_squares,
  coalesce(sum(greatest(accepted, 1)) FILTER (sends > 0 AND held), 0) AS accepted,
  count(*) FILTER (sends > 0 AND held) AS accepted_unique,
  coalesce(sum(greatest(accepted, 1) ** 2) FILTER (sends > 0 AND held), 0) AS accepted_squares,
  coalesce(sum(duplicates) FILTER (sends > 0 AND NOT in_flight), 0) AS duplicates,
  coalesce(sum(rejected) FILTER (sends > 0 AND NOT in_flight), 0) AS rejected,
  count(*) FILTER (lost) AS lost, sum(copies) AS doubled, count(*) FILTER (behind) AS disorder,
  count(*) FILTER (sends = 0 AND arrivals > 0 AND settled AND (pipeline, hop) NOT IN (SELECT pipeline, hop FROM quiet))
    AS phantoms,
  count(*) FILTER (given_up) AS given_up, count(*) FILTER (in_flight) AS in_flight,
  coalesce(sum(ended) FILTER (accepted > 0), 0) AS ended,
  coalesce(sum(replayed) FILTER (accepted > 0), 0) AS replayed,
  coalesce(sum(greatest(accepted + replayed - ended, 0)) FILTER (accepted > 0), 0) AS open,
  count(*) FILTER ((accepted > 0 AND ended > accepted + replayed)
    OR (confirmed > 0 AND settled AND NOT held AND NOT over AND rejected = 0)) AS unbalanced,
  count(*) FILTER (sends > 0 AND accepted > 0 AND accepted_at >= sent_at) AS latencies,
  count(*) FILTER (sends > 0 AND accepted > 0 AND accepted_at < sent_at) AS skewed
FROM v GROUP BY ALL ORDER BY ALL
"""

WORLDS = 30
WINDOW_US, DEADLINE_US = 7 * SECOND_US, 5 * SECOND_US


def random_events() -> pa.Table:
    """Anything at all, in many small worlds at once: each pipeline is one, drawn from a seed of its own."""
    rows: list[dict[str, Any]] = []
    for world in range(WORLDS):
        rng = random.Random(world)
        hops = rng.sample(["a>d", "b>d", "d>e", "e>f", "q>e"], rng.randint(1, 4))
        kinds = [1, 2, 4, 5, *rng.sample([6, 7, 8, 9, 10, 11, 12, *ENDS], 6)]
        for at in range(rng.randint(0, 250)):
            number = rng.randint(1, 15)
            rows.append({
                "store": rng.choice("xy"), "epoch": 1, "at": BEGIN_US + rng.randint(0, 30 * SECOND_US), "node": "n",
                "pipeline": f"w{world}", "hop": rng.choice(hops), "kind": rng.choice(kinds), "message": f"m{number}",
                "session": f"s{number % 3}", "idx": number if number % 5 else None, "peer": "", "ord": at,
                "attempt": 1, "cause": None,
            })  # fmt: skip
    text = pa.string()
    types = {"epoch": pa.int32(), "at": pa.timestamp("us", tz="UTC"), "kind": pa.int16(), "idx": pa.int64()}
    types |= {"ord": pa.int64(), "attempt": pa.int32()}
    return pa.Table.from_pylist(rows, pa.schema([(name, types.get(name, text)) for name in expand.EVENT_COLUMNS]))


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("events") / "events.parquet"
    pq.write_table(random_events(), path)
    return path


def test_the_figures_agree_with_duckdb(spark: SparkSession, events: Path) -> None:
    now = BEGIN_US + 25 * SECOND_US
    rows = spark.read.schema(expand.EVENT).parquet(str(events))
    hops = figures.survey(rows).hops
    ways = figures.ways(hops, ())
    halves = [
        figures.messages(figures.facts(half, ways, stores=2), ways, 2) for half in rows.randomSplit([0.5, 0.5], 7)
    ]
    merged = figures.merged(halves[0].unionByName(halves[1]))
    sums = figures.windows(
        figures.judged(merged, ways, now=now, deadline_us=DEADLINE_US, stores=2),
        window_us=WINDOW_US,
        deadline_us=DEADLINE_US,
        now=now,
        session_class=None,
    )
    names = {hop.code: (hop.pipeline, hop.hop) for hop in hops}
    ours = {(*names[row["code"]], row["window"]): row.asDict() for row in sums.collect()}
    theirs = _duckdb(events, hops, now)
    assert len(theirs) > 200
    assert ours.keys() == theirs.keys()
    for key, cell in theirs.items():
        assert {name: ours[key][name] for name in cell} == cell, key


def _duckdb(events: Path, hops: tuple[figures.LedgerHop, ...], now: int) -> dict[tuple[str, str, int], dict[str, int]]:
    with duckdb.connect() as db:
        db.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet('{events}')")
        db.execute("CREATE TABLE codes (pipeline text, hop text, code bigint)")
        db.executemany("INSERT INTO codes VALUES (?, ?, ?)", [(hop.pipeline, hop.hop, hop.code) for hop in hops])
        query = db.execute(SQL, {"now": now, "deadline": DEADLINE_US, "window": WINDOW_US})
        columns = [column[0] for column in query.description or ()]
        cells = [dict(zip(columns, row, strict=True)) for row in query.fetchall()]
    return {
        (cell.pop("pipeline"), cell.pop("hop"), cell.pop("window")): {name: int(n) for name, n in cell.items()}
        for cell in cells
    }
