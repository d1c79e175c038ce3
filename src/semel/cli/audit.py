"""`semel audit`: what became of every message, by the ledgers of all who handled it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import ConfigOption, bundled, find_store, naming_option, option, parse_duration, shown
from semel.cli.terminal import CommandResult, Terminal, claim_false
from semel.errors import EXIT_CLAIM_FALSE, EXIT_HOLDS, EXIT_NO_DATA, ConfigError, PeerUnavailable, SemelError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semel.config import Config
    from semel.spark.audit.chains import ChainComparison
    from semel.spark.audit.follow import FollowOptions
    from semel.spark.audit.result import Audit, Finding
    from semel.spark.audit.run import AuditOptions, PreparedAudit

Say = Callable[..., None]

FOLLOW_FOLDER = "_follow"
"""Below the tables. Readers of Parquet leave out what begins with an underscore."""
FAIL_ON = "lost,duplicate,order,phantom,unbalanced,gap"
_DURATION_LIKE = re.compile(r"\s*\d+(?:\.\d+)?\s*(?:ms|s|m|h|d|w)\s*\Z")
_STEPS = 100


@bundled
def audit(
    context: typer.Context,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE", help="Export folders and stores. Default: the configured store.", show_default=False
        ),
    ] = None,
    pipeline: Annotated[str | None, option("--pipeline", "Only the hops of this pipeline.", "NAME")] = None,
    since: Annotated[
        str | None, option("--since", "Only what was sent since: 2h, or 2026-01-31T09:00.", "TIME")
    ] = None,
    until: Annotated[
        str | None, option("--until", "Only what was sent before: 1h, or 2026-01-31T17:00.", "TIME")
    ] = None,
    deadline: Annotated[
        str | None, option("--deadline", "How long a message may take before it counts as lost. Default: 5m.", "TIME")
    ] = None,
    now: Annotated[
        str | None,
        option(
            "--now",
            "When it is judged; or newest, the newest event. Default: now with a live store, else newest.",
            "TIME",
        ),
    ] = None,
    window: Annotated[
        str | None, option("--window", "Figures over time in steps of this. Default: about 120 steps.", "TIME")
    ] = None,
    class_by: Annotated[
        str | None, option("--class-by", "Sessions by the first group of this: '^([a-z]+)-'.", "REGEX")
    ] = None,
    from_point: Annotated[
        str | None, option("--from", "Compare this point with another, given by --to.", "POINT")
    ] = None,
    to_point: Annotated[str | None, option("--to", "The point further on.", "POINT")] = None,
    out: Annotated[Path | None, option("--out", "Write a report: .html.", "FILE")] = None,
    tables: Annotated[Path | None, option("--tables", "Write the results as Parquet, for notebooks.", "DIR")] = None,
    prometheus: Annotated[
        Path | None, option("--prometheus", "Write metrics for node_exporter: .prom.", "FILE")
    ] = None,
    fail_on: Annotated[str, option("--fail-on", "What makes the claim false; or none.", "LIST")] = FAIL_ON,
    compact: Annotated[
        bool, option("--compact", "First sort the export folders, so that audits are faster from now on.")
    ] = False,
    follow: Annotated[
        str | None, option("--follow", "Go on, and judge again every so often; stores only. Try 30s.", "TIME")
    ] = None,
    state: Annotated[
        Path | None, option("--state", "Where --follow keeps its place. Default: below --tables.", "DIR")
    ] = None,
    keep: Annotated[
        str | None, option("--keep", "How late anything may be with --follow. Default: 7d.", "TIME")
    ] = None,
    master: Annotated[
        str | None, option("--master", "Where Spark runs. Default: [spark] master, else here.", "URL")
    ] = None,
    config: ConfigOption = None,
) -> CommandResult:
    """Find every message that was lost, doubled or out of order, on every hop.

    A source is a folder that `semel store export` has written, or the URL of
    a store. Give those of all nodes: what one sent, another has accepted.

    \b
    Exit codes: 0 it holds, 1 something in --fail-on was found, 3 a store or
    the master cannot be reached, 4 nothing has settled yet. With --follow they
    speak of the last judgement before Ctrl-C.

    \b
    Examples:
      semel audit
      semel audit lake
      semel audit lake sqlite:///shop.db --since 2h --deadline 30s
      semel audit lake --out report.html --prometheus semel.prom
      semel audit lake --fail-on lost,duplicate,order --json
      semel audit lake --from "shop>office" --to "office>depot"
      semel audit sqlite:///shop.db --follow 30s --tables tables
    """
    from semel.config import load_config
    from semel.spark.session import need_pyspark

    terminal: Terminal = context.obj
    settings = load_config(config)
    wanted = parse_findings(fail_on)
    places = _Places(out, tables, prometheus)
    places.check()
    points = _points(from_point, to_point)
    need_pyspark()
    options = _options(pipeline, (since, until, now), deadline, window, class_by)
    given = sources or [find_store(terminal, None, settings)]
    job = _Job(tuple(given), options, places, points, compact, master, settings)
    if follow is not None:
        following = _follow_options(follow, state, keep, places, job)
        with _hidden_passwords(given):
            return _answer(job.follow(following, wanted, terminal), wanted, places, terminal)
    _check_follows(state, keep)
    with _hidden_passwords(given), terminal.progress("looking at the sources", _STEPS) as update:
        found = job.run(lambda what, part=0.0: update(part * _STEPS, what=what))
        places.write(found, wanted)
    return _answer(found, wanted, places, terminal)


# -- what was asked


def parse_findings(text: str) -> tuple[Finding, ...]:
    """ "lost,duplicate", "all" or "none"."""
    from semel.spark.audit.result import Finding

    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if words == ["all"]:
        return tuple(Finding)
    if words == ["none"]:
        return ()
    known = {finding.value: finding for finding in Finding}
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        what = f"there is no finding {unknown[0]!r}" if unknown else "it names no finding"
        raise ConfigError(f"--fail-on {text!r}: {what}", fix=f"use some of {', '.join(known)}; or all, or none")
    return tuple(finding for finding in Finding if finding.value in words)


def parse_time(option: str, text: str, now_us: int) -> int:
    """Microseconds: so long before now ("2h"), or a moment (ISO 8601, in UTC where it names no zone)."""
    if _DURATION_LIKE.match(text):
        return now_us - round(parse_duration(option, text) * 1_000_000)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        fix = "write how long ago (30m, 2h, 7d), or a date and time such as 2026-01-31T09:00"
        raise ConfigError(f"{option} {text!r} is neither a duration nor a time", fix=fix) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)


def _points(first: str | None, last: str | None) -> tuple[str, str] | None:
    if first is None and last is None:
        return None
    if not first or not last:
        missing = "--to" if first else "--from"
        raise ConfigError(f"two points are compared, and {missing} is missing", fix=f"add {missing} POINT")
    return first, last


def _options(
    pipeline: str | None,
    times: tuple[str | None, str | None, str | None],
    deadline: str | None,
    window: str | None,
    class_by: str | None,
) -> AuditOptions:
    from semel.spark.audit.run import DEADLINE_S, NEWEST, AuditOptions

    clock = time.time_ns() // 1000
    since, until, now = (
        parse_time(option, text, clock) if text is not None and (option, text) != ("--now", NEWEST) else None
        for option, text in zip(("--since", "--until", "--now"), times, strict=True)
    )
    options = AuditOptions(
        deadline_s=parse_duration("--deadline", deadline) if deadline is not None else DEADLINE_S,
        now=NEWEST if times[2] == NEWEST else now,
        pipelines=(pipeline,) if pipeline is not None else (),
    )
    with naming_option("--window"):
        options = replace(options, window_s=parse_duration("--window", window) if window is not None else None)
    with naming_option("--since and --until"):
        options = replace(options, since=since, until=until)
    with naming_option("--class-by"):
        return replace(options, session_class=class_by)


def _follow_options(every: str, state: Path | None, keep: str | None, places: _Places, job: _Job) -> FollowOptions:
    from semel.spark.audit.follow import KEEP_S, FollowOptions

    for name, given in (("--compact", job.compact), ("--from", job.points)):
        if given:
            raise ConfigError(f"{name} does not go with --follow", fix="leave one of them out")
    folder = state or (places.tables / FOLLOW_FOLDER if places.tables is not None else None)
    if folder is None:
        raise ConfigError("--follow needs a folder to keep its place in", fix="add --tables DIR, or --state DIR")
    with naming_option("--follow"):
        options = FollowOptions(folder, parse_duration("--follow", every))
    with naming_option("--keep"):
        return replace(options, keep_s=parse_duration("--keep", keep) if keep is not None else KEEP_S)


def _check_follows(state: Path | None, keep: str | None) -> None:
    for name, given in (("--state", state), ("--keep", keep)):
        if given is not None:
            raise ConfigError(f"{name} without --follow", fix=f"add --follow 30s, or leave {name} out")


@dataclass(frozen=True, slots=True)
class _Places:
    """Where results go besides the terminal."""

    out: Path | None
    tables: Path | None
    prometheus: Path | None

    def check(self) -> None:
        from semel.spark.audit.files import check_place

        if self.out is not None:
            if self.out.suffix.lower() not in (".html", ".htm"):
                raise ConfigError(f"--out {self.out} is not HTML", fix="name a file that ends in .html")
            check_place("--out", self.out)
        if self.prometheus is not None:
            check_place("--prometheus", self.prometheus)
        if self.tables is not None and self.tables.exists() and not self.tables.is_dir():
            raise ConfigError(f"--tables {self.tables} is a file", fix="name a folder; it is created when missing")

    def write(self, found: _Found, wanted: Sequence[Finding]) -> None:
        if self.out is not None:
            from semel.spark.audit.report_html import write_report

            write_report(found.audit, self.out, wanted, found.comparison)
        if self.prometheus is not None:
            from semel.spark.audit.prometheus import write_metrics

            write_metrics(found.audit, self.prometheus, wanted)

    @property
    def written(self) -> dict[str, str]:
        named = {"report": self.out, "tables": self.tables, "prometheus": self.prometheus}
        return {name: str(path) for name, path in named.items() if path is not None}


# -- the work


@dataclass(frozen=True, slots=True)
class _Found:
    audit: Audit
    comparison: ChainComparison | None
    compacted: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class _Job:
    sources: tuple[str, ...]
    options: AuditOptions
    places: _Places
    points: tuple[str, str] | None
    compact: bool
    master: str | None
    settings: Config

    def run(self, say: Say) -> _Found:
        from semel.spark.audit import sources
        from semel.spark.audit.run import prepared

        # report a mistake now, and not after Spark has started
        if self.compact and not self._folders:
            raise ConfigError("--compact without an export folder", fix="name one, or leave --compact out")
        sources.find(self.sources)
        say("starting Spark, which takes a few seconds")
        spark = self._spark()
        with _spark_failures():
            compacted = tuple(self._compacted(spark, say)) if self.compact else ()
            with prepared(spark, self.sources, self.options, say) as case:
                audit = case.audit()
                comparison = self._compared(case, say)
                self._write_tables(case, say)
        return _Found(replace(audit, sources=tuple(map(shown, audit.sources))), comparison, compacted)

    def follow(self, following: FollowOptions, wanted: tuple[Finding, ...], terminal: Terminal) -> _Found:
        """Until Ctrl-C or a polite kill. Every judgement is printed in a line, and written where asked."""
        from semel.cli.signals import until_signalled
        from semel.spark.audit import sources
        from semel.spark.audit.follow import follow

        sources.find(self.sources)
        spark = self._spark()
        last: list[_Found] = []

        def show(audit: Audit, tables: Mapping[str, DataFrame]) -> None:
            found = _Found(replace(audit, sources=tuple(map(shown, audit.sources))), None, ())
            last[:] = [found]
            self.places.write(found, wanted)
            self._put_tables(tables)
            _say_judgement(found.audit, wanted, terminal)

        with _spark_failures(), until_signalled() as is_signalled:
            follow(spark, self.sources, self.options, replace(following, stop=is_signalled), show)
        return last[0]

    @property
    def _folders(self) -> list[str]:
        return [source for source in self.sources if Path(source).expanduser().is_dir()]

    def _spark(self) -> SparkSession:
        from semel.spark.session import spark_session

        spark = self.settings.spark
        return spark_session(
            app="semel-audit",
            master=self.master or spark.master,
            memory=spark.memory,
            partitions=spark.partitions,
            settings=spark.settings,
            start_from_cache=spark.start_cache,
        )

    def _compacted(self, spark: SparkSession, say: Say) -> Iterator[dict[str, Any]]:
        from semel.spark.audit.compact import compact

        for folder in self._folders:
            done = compact(spark, folder, progress=say)
            yield {"folder": folder, "days": list(done.days), "rows": done.rows, "bytes": done.bytes, "left": done.left}

    def _compared(self, case: PreparedAudit, say: Say) -> ChainComparison | None:
        if self.points is None:
            return None
        say("comparing two points", 0.95)
        with naming_option("--from and --to"):
            return case.compare(*self.points)

    def _write_tables(self, case: PreparedAudit, say: Say) -> None:
        if self.places.tables is not None:
            say("writing tables", 0.97)
            self._put_tables(case.tables())

    def _put_tables(self, tables: Mapping[str, DataFrame]) -> None:
        if self.places.tables is not None:
            from semel.spark.audit.files import write_tables

            write_tables(tables, self.places.tables)


def _say_judgement(audit: Audit, wanted: tuple[Finding, ...], terminal: Terminal) -> None:
    from semel.spark.audit.report import judge, moment, spelled

    when = "no events" if audit.now is None else moment(audit.now)
    line = f"{when}  {spelled(judge(audit, wanted).sentence)}"
    terminal.story.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _hidden_passwords(urls: Sequence[str]) -> Iterator[None]:
    """Whatever an error says, it says it without the password of a store."""
    try:
        yield
    except SemelError as error:
        for url in urls:
            error.message = error.message.replace(url, shown(url))
            error.fix = error.fix.replace(url, shown(url))
        raise


@contextmanager
def _spark_failures() -> Iterator[None]:
    """A job that Spark gave up: what went wrong is in there somewhere, below much that nobody wants to read."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from semel.spark.failures import first_line, ours_in

    try:
        yield
    except (PySparkException, Py4JError) as error:
        ours = ours_in(str(error))
        why = ours.message if ours is not None else first_line(str(error))
        fix = (ours.fix if ours is not None else "") or "look at what it names; --debug shows all that Spark said"
        raise PeerUnavailable(f"Spark could not finish the audit: {why}", fix=fix) from error


# -- the answer


def _answer(found: _Found, wanted: tuple[Finding, ...], places: _Places, terminal: Terminal) -> CommandResult:
    from semel.spark.audit.report import AuditOutcome, judge, judge_points
    from semel.spark.audit.show import as_dict, points_dict, points_view, view

    judgement = judge(found.audit, wanted)
    result = as_dict(found.audit, wanted)
    if found.comparison is not None:
        result["comparison"] = points_dict(found.comparison)
    if found.compacted:
        result["compacted"] = list(found.compacted)
    result["written"] = places.written
    lines = [] if terminal.json else view(found.audit, wanted)
    if found.comparison is not None and not terminal.json:
        lines += ["", *points_view(found.comparison)]
    lines += [f"{name}: {path}" for name, path in places.written.items()]
    false = [judgement.sentence] if judgement.outcome is AuditOutcome.FAILS else []
    if found.comparison is not None and judge_points(found.comparison, wanted):
        false.append(judge_points(found.comparison, wanted))
    if false:
        error = claim_false(" ".join(false), "look at the ids above; --out writes a report")
        return CommandResult(result, lines, EXIT_CLAIM_FALSE, error)
    if judgement.outcome is AuditOutcome.NO_DATA:
        later = "wait for the deadline, shorten it with --deadline, or name more sources"
        other = "name other sources, or another time with --since and --until"
        fix = later if found.audit.is_open else other
        return CommandResult(
            result, lines, EXIT_NO_DATA, {"code": "no-data", "message": judgement.sentence, "fix": fix}
        )
    return CommandResult(result, lines, EXIT_HOLDS)
