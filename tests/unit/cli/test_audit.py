"""`semel audit` without Spark: what it asks for, what it prints, and which exit code it ends with."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import Semel

from semel.calculus.mode import MessageCounts
from semel.cli.audit import parse_findings, parse_time
from semel.cli.terminal import Terminal
from semel.errors import ConfigError, PeerUnavailable, SemelError, StoreUnavailable
from semel.spark import session
from semel.spark.audit import compact, files, follow, run, sources
from semel.spark.audit.chains import ChainComparison, ChainPoint
from semel.spark.audit.result import Audit, Finding
from unit.spark.audit import samples
from unit.spark.audit.samples import audit, cell

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "audit.md").read_text(encoding="utf-8")


@dataclass
class World:
    """What Spark would have done, and what it was asked."""

    audit: Audit = field(default_factory=samples.good)
    comparison: ChainComparison | None = None
    error: Exception | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    points: tuple[str, str] | None = None
    tables: dict[str, Any] = field(default_factory=dict)


@dataclass
class PreparedAudit:
    world: World

    def audit(self) -> Audit:
        if self.world.error is not None:
            raise self.world.error
        return replace(self.world.audit, sources=self.world.asked["sources"])

    def compare(self, first: str, last: str) -> ChainComparison:
        self.world.points = (first, last)
        assert self.world.comparison is not None
        return self.world.comparison

    def tables(self) -> dict[str, Any]:
        return {"windows": None, "findings": None}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()

    def spark_session(**options: Any) -> str:
        made.asked["session"] = options
        return "spark"

    @contextmanager
    def prepared(
        spark: str, given: tuple[str, ...], options: run.AuditOptions, progress: Callable[..., None]
    ) -> Iterator[PreparedAudit]:
        assert spark == "spark"
        made.asked |= {"sources": given, "options": options}
        progress("counting", 0.2)
        yield PreparedAudit(made)

    monkeypatch.setattr(session, "spark_session", spark_session)
    monkeypatch.setattr(sources, "find", lambda given: made.asked.update(found=given))
    monkeypatch.setattr(run, "prepared", prepared)
    monkeypatch.setattr(files, "write_tables", lambda tables, folder: made.tables.update({str(folder): tables}))
    for variable in ("SEMEL_STORE__URL", "SEMEL_SPARK__MASTER"):
        monkeypatch.delenv(variable, raising=False)
    return made


# -- exit codes


def test_0_when_it_holds(semel: Semel, world: World) -> None:
    ran = semel("audit", "lake")
    assert (ran.exit_code, ran.err) == (0, "")
    assert ran.out.startswith("✓ It holds: nothing lost, doubled or out of order in ")
    assert world.asked["found"] == world.asked["sources"] == ("lake",)


def test_1_when_something_was_found_and_the_ids_are_told(semel: Semel, world: World) -> None:
    world.audit = samples.bad()
    ran = semel("audit", "lake")
    assert ran.exit_code == 1
    assert "order-540-0000" in ran.out
    assert ran.err.startswith("error: It does not hold: 12 lost, 3 doubled")
    ran = semel("audit", "lake", "--json")
    assert (ran.exit_code, ran.err) == (1, "")
    assert ran.error["code"] == "claim-false"
    assert ran.result["verdict"]["failing"] == ["lost", "duplicate", "order", "phantom"]
    assert ran.result["examples"][0]["message"] == "order-540-0000"


@pytest.mark.parametrize(
    ("fail_on", "exit_code"),
    [("lost", 1), ("order", 0), ("duplicate, ORDER", 0), ("order,lost", 1), ("all", 1), ("none", 0), ("gap", 0)],
)
def test_only_what_was_claimed_decides(fail_on: str, exit_code: int, semel: Semel, world: World) -> None:
    world.audit = audit([cell(lost=1)])
    ran = semel("audit", "lake", "--fail-on", fail_on, "--json")
    assert ran.exit_code == exit_code
    assert ran.result["verdict"]["found"]["lost"] == 1


def test_by_default_everything_decides() -> None:
    from semel.cli.audit import FAIL_ON

    assert parse_findings(FAIL_ON) == tuple(Finding)


@pytest.mark.parametrize(
    ("made", "fix"),
    [
        (samples.empty, "name other sources"),
        (samples.in_flight, "wait for the deadline"),
        (samples.arrived_and_young, "wait for the deadline"),
    ],
)
def test_4_when_nothing_has_settled(made: Callable[[], Audit], fix: str, semel: Semel, world: World) -> None:
    world.audit = made()
    ran = semel("audit", "lake")
    assert ran.exit_code == 4
    assert f"fix: {fix}" in ran.err
    assert semel("audit", "lake", "--fail-on", "none", "--json").error["code"] == "no-data"


@pytest.mark.parametrize("error", [StoreUnavailable("gone", fix="look"), PeerUnavailable("no master", fix="start it")])
def test_3_when_a_store_or_the_master_cannot_be_reached(error: SemelError, semel: Semel, world: World) -> None:
    world.error = error
    ran = semel("audit", "lake", "--json")
    assert (ran.exit_code, ran.error["message"]) == (3, error.message)


def test_3_when_spark_gives_up_and_our_own_words_are_found_in_its(semel: Semel, world: World) -> None:
    from pyspark.errors import PySparkRuntimeError

    text = "An error occurred while calling o1\n  at java\nsemel.errors.StoreUnavailable: the server went away\n  at x"
    world.error = PySparkRuntimeError(text)
    ran = semel("audit", "lake")
    assert ran.exit_code == 3
    assert ran.err.startswith("error: Spark could not finish the audit: the server went away\n")
    assert "Traceback" in semel("audit", "lake", "--debug").err
    world.error = PySparkRuntimeError("Job aborted: out of memory\n  at java")
    assert "Spark could not finish the audit: Job aborted: out of memory\n" in semel("audit", "lake").err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--fail-on", "lots"), "there is no finding 'lots'"),
        (("--fail-on", ","), "it names no finding"),
        (("--since", "yesterday"), "--since 'yesterday' is neither a duration nor a time"),
        (("--deadline", "soon"), "--deadline 'soon' is not a duration"),
        (("--window", "0s"), "--window: a window of 0 s"),
        (("--class-by", "("), "--class-by: '(' is no regular expression"),
        (("--class-by", "abc"), "--class-by: 'abc' has no group"),
        (("--from", "a"), "--to is missing"),
        (("--to", "a"), "--from is missing"),
        (("--out", "report.pdf"), "--out report.pdf is not HTML"),
        (("--out", "nowhere/report.html"), "there is no folder nowhere"),
        (("--prometheus", "."), "--prometheus . is a folder"),
        (("--tables", "file"), "--tables file is a file"),
        (("--compact",), "--compact without an export folder"),
        (("--until", "tomorrow"), "--until 'tomorrow' is neither a duration nor a time"),
        (("--since", "1h", "--until", "2h"), "--since and --until: the time ends before it begins"),
        (("--now", "later"), "--now 'later' is neither a duration nor a time"),
        (("--state", "s"), "--state without --follow"),
        (("--keep", "7d"), "--keep without --follow"),
        (("--follow", "30s"), "--follow needs a folder to keep its place in"),
        (("--follow", "0s", "--state", "s"), "--follow: every 0 s is not often"),
        (("--follow", "1s", "--state", "s", "--keep", "0s"), "--keep: keeping 0 s keeps nothing"),
        (("--follow", "1s", "--state", "s", "--compact"), "--compact does not go with --follow"),
        (("--follow", "1s", "--state", "s", "--from", "a", "--to", "b"), "--from does not go with --follow"),
    ],
)
def test_2_for_a_mistake_before_spark_is_started(
    args: tuple[str, ...], message: str, semel: Semel, world: World, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    ran = semel("audit", "lake", *args)
    assert ran.exit_code == 2
    assert message in ran.err
    assert "session" not in world.asked
    assert "fix: " in ran.err


def test_2_without_the_package(semel: Semel, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    ran = semel("audit", "lake")
    assert ran.exit_code == 2
    assert "pip install 'semel[spark]'" in ran.err


# -- what is asked of the audit


def test_options_reach_the_audit(semel: Semel, world: World) -> None:
    assert semel("audit", "a", "b").exit_code == 0
    assert world.asked["sources"] == ("a", "b")
    plain = world.asked["options"]
    assert (plain.deadline_s, plain.window_s, plain.since, plain.pipelines) == (300.0, None, None, ())
    args = (
        "--pipeline",
        "orders",
        "--deadline",
        "30s",
        "--window",
        "2m",
        "--class-by",
        "^(a|b)",
        "--since",
        "2026-01-31",
    )
    assert semel("audit", "a", *args).exit_code == 0
    asked = world.asked["options"]
    assert (asked.pipelines, asked.deadline_s, asked.window_s, asked.session_class) == (
        ("orders",),
        30.0,
        120.0,
        "^(a|b)",
    )
    assert asked.since == datetime(2026, 1, 31, tzinfo=UTC).timestamp() * 1_000_000


def test_the_end_and_the_moment_of_judgement_reach_the_audit(semel: Semel, world: World) -> None:
    semel("audit", "lake")
    assert (world.asked["options"].until, world.asked["options"].now) == (None, None)
    semel("audit", "lake", "--until", "2026-01-31", "--now", "2026-02-01")
    moments = [datetime(2026, *day, tzinfo=UTC).timestamp() * 1_000_000 for day in ((1, 31), (2, 1))]
    assert [world.asked["options"].until, world.asked["options"].now] == moments
    semel("audit", "lake", "--now", "newest")
    assert world.asked["options"].now == run.NEWEST


# -- going on


def test_following_tells_every_judgement_and_ends_with_the_last(
    semel: Semel, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[follow.FollowOptions] = []

    def follows(spark: str, given: Any, options: Any, following: follow.FollowOptions, tell: Any) -> None:
        asked.append(following)
        tell(replace(samples.good(), sources=given), {"windows": None})
        tell(replace(samples.bad(), sources=given), {"windows": None})

    monkeypatch.setattr(follow, "follow", follows)
    args = ("audit", "sqlite:///s.db", "--follow", "5s", "--tables", "t", "--prometheus", "s.prom")
    ran = semel(*args)
    assert ran.exit_code == 1
    lines = ran.out.splitlines()
    assert "It holds" in lines[0]
    assert "It does not hold" in lines[1]
    assert (asked[0].folder, asked[0].every_s, asked[0].keep_s) == (Path("t/_follow"), 5.0, follow.KEEP_S)
    assert set(world.tables["t"]) == {"windows"}
    assert "semel_audit_holds 0" in (tmp_path / "s.prom").read_text()
    ran = semel(*args, "--state", "s", "--keep", "1d", "--json")
    assert (asked[1].folder, asked[1].keep_s) == (Path("s"), 86_400.0)
    assert ran.error["code"] == "claim-false"


def test_the_configured_store_is_the_source_when_none_is_named(
    semel: Semel, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = semel("audit")
    assert world.asked["sources"] == ("sqlite:///semel.db",)
    assert ran.err == "no store was named: using sqlite:///semel.db in this folder\n"
    monkeypatch.setenv("SEMEL_STORE__URL", "sqlite:///other.db")
    assert semel("audit").err == ""
    assert world.asked["sources"] == ("sqlite:///other.db",)


def test_spark_is_started_as_configured_and_as_asked(semel: Semel, world: World, tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text('[spark]\nmaster = "local[1]"\nmemory = "1g"\n')
    semel("audit", "lake")
    assert (world.asked["session"]["master"], world.asked["session"]["memory"]) == ("local[1]", "1g")
    semel("audit", "lake", "--master", "spark://host:7077")
    assert world.asked["session"]["master"] == "spark://host:7077"


def test_a_password_is_never_told(semel: Semel, world: World, tmp_path: Path) -> None:
    url = "postgresql://me:secret@host/db"
    ran = semel("audit", url, "--out", "report.html", "--json")
    assert ran.result["sources"] == ["postgresql://me:***@host/db"]
    assert "secret" not in ran.out + (tmp_path / "report.html").read_text()
    world.error = StoreUnavailable(f"cannot reach {url}", fix=f"look at {url}")
    ran = semel("audit", url)
    assert "secret" not in ran.err
    assert "me:***@host" in ran.err


def test_times_in_words() -> None:
    now = 1_000_000_000_000_000
    assert parse_time("--since", "2h", now) == now - 7_200_000_000
    assert parse_time("--since", "1970-01-01T00:00:01", now) == 1_000_000
    assert parse_time("--since", "1970-01-01 01:00:01+01:00", now) == 1_000_000
    assert parse_time("--since", "1970-01-01T00:00:01Z", now) == 1_000_000
    with pytest.raises(ConfigError, match="neither a duration nor a time"):
        parse_time("--since", "2 fortnights", now)


def test_since_is_counted_from_now(semel: Semel, world: World) -> None:
    before = time.time_ns() // 1000
    semel("audit", "lake", "--since", "1h")
    since = world.asked["options"].since
    assert before <= since + 3_600_000_000 <= time.time_ns() // 1000


# -- what is written


def test_the_results_are_written_where_asked(semel: Semel, world: World, tmp_path: Path) -> None:
    world.audit = samples.bad()
    ran = semel("audit", "lake", "--out", "r.html", "--prometheus", "s.prom", "--tables", "t", "--json")
    assert ran.exit_code == 1
    assert ran.result["written"] == {"report": "r.html", "tables": "t", "prometheus": "s.prom"}
    assert "It does not hold" in (tmp_path / "r.html").read_text()
    assert "semel_audit_holds 0" in (tmp_path / "s.prom").read_text()
    assert set(world.tables["t"]) == {"windows", "findings"}
    assert semel("audit", "lake", "--out", "r.html").out.endswith("report: r.html\n")


def test_a_failed_audit_writes_nothing(semel: Semel, world: World, tmp_path: Path) -> None:
    world.error = StoreUnavailable("gone", fix="look")
    (tmp_path / "r.html").write_text("old")
    assert semel("audit", "lake", "--out", "r.html", "--prometheus", "s.prom").exit_code == 3
    assert (tmp_path / "r.html").read_text() == "old"
    assert not (tmp_path / "s.prom").exists()


def test_folders_are_compacted_first(
    semel: Semel, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake").mkdir()
    done = compact.Compacted(("2026-01-31",), 7, 99, {"2026-02-01": "not complete"})
    asked: list[str] = []
    monkeypatch.setattr(compact, "compact", lambda spark, folder, progress: asked.append(folder) or done)
    ran = semel("audit", "lake", "sqlite:///semel.db", "--compact", "--json")
    assert asked == ["lake"]
    assert ran.result["compacted"] == [
        {"folder": "lake", "days": ["2026-01-31"], "rows": 7, "bytes": 99, "left": {"2026-02-01": "not complete"}}
    ]


def test_the_commands_of_the_guide_are_commands(
    semel: Semel, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake").mkdir()
    monkeypatch.setattr(compact, "compact", lambda spark, folder, progress: compact.Compacted((), 0, 0))
    monkeypatch.setattr(follow, "follow", lambda spark, given, options, how, tell: tell(samples.good(), {}))
    world.comparison = compared(10, 10, 10)
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("semel audit")]
    assert len(commands) == 9
    for command in commands:
        _, *args = shlex.split(command.partition(" > ")[0])
        assert semel(*args).exit_code == 0, command


def test_where_a_person_waits_the_stages_are_named(semel: Semel, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []

    @contextmanager
    def progress(self: Terminal, what: str, total: float | None = None) -> Iterator[Callable[..., None]]:
        stages.append(what)
        yield lambda done, what: stages.append(f"{done:g} {what}")

    monkeypatch.setattr(Terminal, "progress", progress)
    assert semel("audit", "lake").exit_code == 0
    assert stages == ["looking at the sources", "0 starting Spark, which takes a few seconds", "20 counting"]


# -- two points


def compared(sent: int, unique: int, received: int, surplus: int = 0) -> ChainComparison:
    missing = tuple(f"m{number}" for number in range(sent - unique))
    of, to = ChainPoint("a>b", "sent"), ChainPoint("b>c", "accepted")
    return ChainComparison(of, to, MessageCounts(sent, unique, received), surplus, missing, tuple(["s"] * surplus))


def test_two_points_that_agree(semel: Semel, world: World) -> None:
    world.comparison = compared(10, 10, 10)
    ran = semel("audit", "lake", "--from", "a>b", "--to", "b>c", "--json")
    assert (ran.exit_code, world.points) == (0, ("a>b", "b>c"))
    assert ran.result["comparison"]["from"] == "sent:a>b"
    assert ran.result["comparison"]["missing_ids"] == []
    ran = semel("audit", "lake", "--from", "a>b", "--to", "b>c")
    assert "From sent:a>b to accepted:b>c: 10 of 10 messages arrived; no difference.\n" in ran.out


@pytest.mark.parametrize(
    ("comparison", "fail_on", "exit_code"),
    [
        (compared(10, 8, 8), "lost", 1),
        (compared(10, 8, 8), "duplicate", 0),
        (compared(10, 10, 11), "duplicate", 1),
        (compared(10, 10, 10, 1), "phantom", 1),
        (compared(10, 10, 10, 1), "lost,duplicate,order", 0),
    ],
)
def test_two_points_that_differ_make_the_claim_false(
    comparison: ChainComparison, fail_on: str, exit_code: int, semel: Semel, world: World, tmp_path: Path
) -> None:
    world.comparison = comparison
    args = ("--from", "a>b", "--to", "b>c", "--fail-on", fail_on, "--out", "r.html")
    ran = semel("audit", "lake", *args)
    assert ran.exit_code == exit_code
    assert ("error: From sent:a>b to accepted:b>c: " in ran.err) == bool(exit_code)
    for message in (*comparison.missing, *comparison.surplus):
        assert f": {message}\n" in ran.out
        assert f">{message}</span>" in (tmp_path / "r.html").read_text()
