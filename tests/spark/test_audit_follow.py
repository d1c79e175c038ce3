"""An audit that goes on: in parts, with late data, restarts and crashes, it says what an audit of all at once says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semel.kernel.ledger import Kind
from semel.spark.audit import follow as following
from semel.spark.audit.follow import Follower, FollowOptions, opened
from semel.spark.audit.result import Audit, Finding
from semel.spark.audit.run import NEWEST, Options, audit
from semel.testing.ledgers import BEGIN_US, IN, OUT, Letter, Scene, plant, scene

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = Options(deadline_s=60, window_s=1, now=NEWEST, examples_max=1000, session_class="^([a-z]+)-")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path) as made:
        yield made


def sources(stage: Scene) -> list[str]:
    return [stage.edge.url, stage.hub.url]


def same(result: Audit) -> Audit:
    return replace(result, sources=(), seconds=0)


def step(
    spark: SparkSession, stage: Scene, options: Options = OPTIONS, **more: Any
) -> tuple[Audit, dict[tuple[str, str, int], int], Follower]:
    """A run of its own, as after a restart: the result, and the revision of each window."""
    wanted = FollowOptions(stage.folder.parent / "state", **more)
    with opened(spark, sources(stage), options, wanted) as follower:
        result, tables = follower.step()
        rows = tables["windows"].selectExpr("hop", "session_class", "unix_micros(window) AS at", "revision").collect()
    return result, {(row["hop"], row["session_class"], row["at"]): row["revision"] for row in rows}, follower


def test_in_parts_it_says_what_the_audit_of_all_says(
    spark: SparkSession, stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five parts and as many runs. One dies before its batch counts, one after Spark did not get to know of it."""
    late = [Letter(f"late-{number}", "std-late", number) for number in range(1, 4)]
    for each in late:
        stage.edge.log(Kind.SENT, IN, each)
    plant(stage, 1, sessions=3, each=6)
    first, revisions, _ = step(spark, stage, rows_max=200)
    window = (IN, "std", BEGIN_US)
    assert {each.id for each in late} <= {e.message for e in first.examples if e.finding is Finding.LOST}

    plant(stage, 2, sessions=3, each=6)

    def die(*_: object) -> None:
        raise RuntimeError("died before it counts")

    with monkeypatch.context() as patch:
        patch.setattr(Follower, "_put", die)
        with pytest.raises(Exception, match="died before it counts"):
            step(spark, stage)
    step(spark, stage)

    places = stage.hub.accept(late[:2])
    stage.hub.confirm(late[:2], places)
    third, later, _ = step(spark, stage)
    assert later[window] > revisions[window]
    assert {late[2].id} == {
        e.message for e in third.examples if e.finding is Finding.LOST and e.message.startswith("late-") and e.hop == IN
    }

    plant(stage, 3, sessions=2, each=6)
    step(spark, stage)
    commits = stage.folder.parent / "state" / "checkpoint" / "commits"
    newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)

    for kind in (Kind.ACCEPTED, Kind.HANDLED):
        stage.edge.log(kind, OUT, late[0])
    monkeypatch.setattr(following, "PARTS_MAX", 1)
    _, frozen, _ = step(spark, stage)
    last, unchanged, follower = step(spark, stage)
    assert unchanged == frozen
    assert len(follower.state.parts) == 1
    assert same(last) == same(audit(spark, sources(stage), OPTIONS))
    assert len({cell.hop for cell in last.windows}) == 4
