"""An audit that goes on: in parts, with late data, restarts and crashes, it says what an audit of all at once says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.tools.ledgers import BEGIN_US, CHAT, DESK, IN, NORTH, OUT, SECOND_US, SOUTH, Letter, Scene, plant, scene

from semel.errors import ConfigError, StoreBusy, StoreError
from semel.kernel.ledger import Kind
from semel.spark.audit import follow as following
from semel.spark.audit.follow import AuditFollower, FollowOptions, follow, opened
from semel.spark.audit.result import Audit, Finding
from semel.spark.audit.run import NEWEST, AuditOptions, audit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow(10)

OPTIONS = AuditOptions(deadline_s=60, window_s=1, now=NEWEST, examples_max=1000, session_class="^([a-z]+)-")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path) as made:
        yield made


def sources(stage: Scene) -> list[str]:
    return [stage.edge.url, stage.hub.url]


def same(result: Audit) -> Audit:
    """Without the advice on where to begin, for which an audit of all at once looks through the messages again."""
    notes = tuple(note for note in result.notes if "--since" not in note)
    return replace(result, sources=(), seconds=0, notes=notes)


def step(
    spark: SparkSession, stage: Scene, options: AuditOptions = OPTIONS, **more: Any
) -> tuple[Audit, dict[tuple[str, str, int], int], AuditFollower]:
    """A run of its own, as after a restart: the result, and the revision of each window."""
    wanted = FollowOptions(stage.folder.parent / "state", **more)
    with opened(spark, sources(stage), options, wanted) as follower:
        result, tables = follower.step()
        rows = tables["windows"].selectExpr("hop", "session_class", "unix_micros(window) AS at", "revision").collect()
    return result, {(row["hop"], row["session_class"], row["at"]): row["revision"] for row in rows}, follower


def test_in_parts_it_says_what_the_audit_of_all_says(
    spark: SparkSession, stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three parts and as many runs. One dies before its batch counts, one after Spark did not get to know of it."""
    late = [Letter(f"tardy-{number}", "std-tardy", number) for number in range(1, 4)]
    for each in late:
        stage.edge.log(Kind.SENT, IN, each)
    plant(stage, 1, sessions=2, each=5)
    first, revisions, _ = step(spark, stage)
    window = (IN, "std", BEGIN_US)
    assert {each.id for each in late} <= {e.message for e in first.examples if e.finding is Finding.LOST}

    plant(stage, 2, sessions=2, each=5)
    came = stage.hub.now
    places = stage.hub.accept(late[:2])
    stage.hub.confirm(late[:2], places)

    def die(*_: object) -> None:
        raise RuntimeError("died before it counts")

    with monkeypatch.context() as patch:
        patch.setattr(AuditFollower, "_put", die)
        with pytest.raises(Exception, match="died before it counts"):
            step(spark, stage)
    second, before, _ = step(spark, stage)
    assert before[window] > revisions[window]
    lost = {e.message for e in second.examples if (e.finding, e.hop) == (Finding.LOST, IN)}
    assert lost & {each.id for each in late} == {late[2].id}

    commits = stage.folder.parent / "state" / "checkpoint" / "commits"
    newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)

    for kind in (Kind.ACCEPTED, Kind.HANDLED):
        stage.edge.log(kind, OUT, late[0])
    monkeypatch.setattr(following, "PARTS_MAX", 1)
    last, after, follower = step(spark, stage)
    assert {cell for cell in after if after[cell] != before.get(cell)} == {(OUT, "std", came // SECOND_US * SECOND_US)}
    assert len(follower.state.parts) == 2, "the two newest of three became one"
    assert same(last) == same(audit(spark, sources(stage), OPTIONS))
    assert len({cell.hop for cell in last.windows}) == 4


def test_what_has_been_settled_for_long_is_let_go_of_and_its_windows_stay(spark: SparkSession, stage: Scene) -> None:
    options = AuditOptions(deadline_s=10, window_s=10, now=NEWEST)
    one, two, three = (Letter(f"m{number}", "s", number) for number in (1, 2, 3))
    for each in (one, two):
        stage.edge.log(Kind.SENT, IN, each)
    stage.hub.accept([one])
    stage.at(BEGIN_US + 1000 * SECOND_US)
    stage.edge.log(Kind.SENT, IN, three)
    stage.hub.accept([three])
    first, _, follower = step(spark, stage, options, keep_s=100)
    assert follower.state.horizon == BEGIN_US + 890 * SECOND_US
    kept = spark.read.parquet(str(follower.folder.path / "parts" / follower.state.parts[0].name / "messages"))
    assert {row["key"] for row in kept.collect()} == {three.id}

    stage.edge.log(Kind.CONFIRMED, IN, three)
    second, revisions, _ = step(spark, stage, options, keep_s=100)
    assert [(cell.window, cell.sent, cell.lost) for cell in second.windows if cell.hop == IN and cell.sent] == [
        (BEGIN_US, 2, 1), (BEGIN_US + 1000 * SECOND_US, 1, 0),
    ]  # fmt: skip
    assert revisions[IN, "", BEGIN_US] == 1
    assert [e.message for e in second.examples] == [e.message for e in first.examples] == [two.id]
    assert "are closed" in " ".join(second.notes)

    nobody = Letter("m9", "s", 9)
    stage.edge.log(Kind.RESENT, IN, one, attempt=2)
    for each in (one, two, nobody):
        stage.hub.log(Kind.ACCEPTED, IN, each)
    stage.at(BEGIN_US + 1020 * SECOND_US)
    stage.edge.log(Kind.CONFIRMED, IN, three)
    third, _, _ = step(spark, stage, options, keep_s=100)
    assert third.late == 2
    assert [(e.finding, e.message) for e in third.examples if e.message != two.id] == [(Finding.PHANTOM, nobody.id)]
    assert third.count(Finding.LOST) == 1


def test_a_turn_judges_what_is_new_and_not_what_is_kept(spark: SparkSession, stage: Scene) -> None:
    """A session that goes on, in which one comes too early; and one of long ago that arrives at last."""
    options = AuditOptions(deadline_s=10, window_s=10, now=NEWEST, examples_max=1000)
    old = [Letter(f"old-{number}", f"s{number % 5}", number) for number in range(1, 101)]
    for each in old:
        stage.edge.log(Kind.SENT, IN, each)
    stage.hub.accept(old[1:])
    stage.at(BEGIN_US + 1000 * SECOND_US)
    stage.edge.log(Kind.CONFIRMED, IN, old[-1])
    with opened(spark, sources(stage), options, FollowOptions(stage.folder.parent / "state")) as follower:
        follower.step()
        assert follower.state.judgement is not None
        assert follower.state.judgement.rows == 100
        early, late = Letter("early", "s3", 4), Letter("next", "s3", 103)
        for each in (late, early):
            stage.edge.log(Kind.SENT, IN, each)
        stage.hub.accept([late, early, old[0]])
        result, _ = follower.step()
        judgement = follower.state.judgement
        assert judgement.rows == 3
        assert same(result) == same(audit(spark, sources(stage), options))
        found = {(e.finding, e.message, e.detail) for e in result.examples}
        assert (Finding.ORDER, "early", "accepted after 103 of its session") in found
        assert (Finding.ORDER, "old-1", "accepted after 96 of its session") in found

        follower.step()
        assert follower.state.judgement == judgement


def test_in_small_turns_it_says_what_the_audit_of_all_says(
    spark: SparkSession, stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages whose events come turns apart and in any order, on ways that meet, in ranges that wait, and under other
    sessions than before."""
    monkeypatch.setattr(following, "PARTS_MAX", 2)
    options = replace(OPTIONS, deadline_s=1)
    rng, letters = random.Random(5), [Letter(f"m{number}", f"std-{number % 2}", number) for number in range(1, 31)]
    with opened(spark, sources(stage), options, FollowOptions(stage.folder.parent / "state")) as follower:
        said = []
        for _ in range(2):
            for _ in range(24):
                stage.at(stage.end_us + rng.randrange(300_000))
                _happen(stage, rng, letters)
            said.append(follower.step()[0])
    assert same(said[-1]) == same(audit(spark, sources(stage), options))


def _happen(stage: Scene, rng: random.Random, letters: list[Letter]) -> None:
    """Now and then in another session, or in none, for which the id stands."""
    letter = rng.choice(letters)
    if rng.random() < 0.3:
        letter = replace(letter, session=rng.choice(["std-0", "std-1", letter.id]))
    match rng.randrange(6):
        case 0 | 1:
            stage.edge.log(Kind.SENT, IN, letter)
        case 2:
            stage.hub.accept([letter])
        case 3:
            stage.edge.confirm([letter], stage.hub.accept([letter]))
        case 4:
            stage.edge.log(Kind.SENT, rng.choice([NORTH, SOUTH]), letter, pipeline=DESK)
            stage.hub.log(rng.choice([Kind.ACCEPTED, Kind.DUPLICATE]), NORTH, letter, pipeline=DESK)
        case _:
            stage.hub.log(rng.choice([Kind.ACCEPTED, Kind.FORWARDED, Kind.EXPIRED]), OUT, letter)


def test_it_goes_on_until_it_is_told_to_stop(spark: SparkSession, stage: Scene, tmp_path: Path) -> None:
    """And silence counts: nothing new comes in, and what was sent is lost by the clock. A range comes in before its
    records and waits for them."""
    stage.edge.log(Kind.SENT, IN, Letter("m", "s", 1))
    stage.hub.accept([Letter(f"stray-{number}", "s", number) for number in range(2, 32)])
    heard: list[Audit] = []
    wanted = FollowOptions(tmp_path / "state", every_s=0.01, rows_max=10, stop=lambda: len(heard) > 1)
    follow(spark, sources(stage), AuditOptions(), wanted, lambda found, tables: heard.append(found))
    assert [found.count(Finding.LOST) for found in heard] == [1, 1]
    assert [(found.count(Finding.PHANTOM), found.gaps) for found in heard] == [(30, 0), (30, 0)]
    first, second = (found.now for found in heard)
    assert first is not None
    assert second is not None
    assert first < second


def test_gaps_of_other_pipelines_do_not_count_where_one_is_followed(
    spark: SparkSession, stage: Scene, tmp_path: Path
) -> None:
    letters = [Letter(f"m{number}", "s", number) for number in range(1, 6)]
    places = stage.hub.accept(letters)
    stage.hub.confirm(letters[:3], places[1:4])
    for pipeline, gaps in ((CHAT, 1), (DESK, 0)):
        options = replace(OPTIONS, pipelines=(pipeline,))
        with opened(spark, sources(stage), options, FollowOptions(tmp_path / pipeline)) as follower:
            assert follower.step()[0].gaps == gaps


def test_what_cannot_be_followed_is_refused(spark: SparkSession, stage: Scene, tmp_path: Path) -> None:
    stage.export()
    wanted = FollowOptions(tmp_path / "state")
    with (
        pytest.raises(ConfigError, match="only stores can be followed"),
        opened(spark, [stage.folder], OPTIONS, wanted),
    ):
        pass
    again = opened(spark, [stage.edge.url], OPTIONS, wanted)
    with opened(spark, [stage.edge.url], OPTIONS, wanted), pytest.raises(StoreBusy), again:
        pass
    with pytest.raises(ConfigError, match="follows other stores"), opened(spark, sources(stage), OPTIONS, wanted):
        pass
    (tmp_path / "state" / "_state.json").write_text("{")
    with pytest.raises(StoreError, match="cannot be read"), opened(spark, [stage.edge.url], OPTIONS, wanted):
        pass
