"""`semel pipeline`: run what moves messages from stream to stream, look at it, and end it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import (
    StoreOptions,
    bundled,
    find_store,
    load,
    naming_option,
    opened,
    option,
    parse_duration,
    shown,
)
from semel.cli.signals import until_signalled
from semel.cli.terminal import CommandResult, Terminal
from semel.errors import ConfigError, NotAStore, PeerUnavailable, SemelError, StoreUnavailable
from semel.words import plural

if TYPE_CHECKING:
    from rich.table import Table

    from semel.config import Config
    from semel.kernel.store import Store
    from semel.spark.pipeline import Pipeline
    from semel.spark.runner import PipelineRun, RunStatus

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

WAITING_MAX = 10
"""So many sessions that wait are listed by name."""

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="A [[pipeline]] of semel.toml, or a Python file.", show_default=False)
]
MasterOption = Annotated[str | None, option("--master", "Where Spark runs. Default: [spark] master, else here.", "URL")]


@app.callback()
@bundled
def pipeline_group() -> None:
    """Run pipelines on Spark: messages from stream to stream, each once and in order.

    \b
    Examples:
      semel pipeline list
      semel pipeline run orders --once
      semel pipeline run my_pipeline.py
      semel pipeline status orders
      semel pipeline stop orders
    """


def _find(name: str, config: Config, terminal: Terminal, store: str | None) -> Pipeline:
    """A pipeline by its name in the configuration, or from a Python file, which names its own store."""
    from semel.spark.pipeline import from_file, from_section

    if name.endswith(".py"):
        return from_file(Path(name))
    for section in config.pipelines:
        if section.name == name:
            return from_section(section, find_store(terminal, store, config))
    known = ", ".join(section.name for section in config.pipelines)
    place = config.file or "semel.toml"
    raise ConfigError(
        f"there is no pipeline {name!r} in {place}",
        fix=f"the pipelines are: {known}" if known else f"add [[pipeline]] to {place}, or name a Python file",
    )


# -- run


@app.command("run")
@bundled
def run(
    context: typer.Context,
    name: NameArgument,
    places: StoreOptions,
    once: Annotated[bool, option("--once", "Take what is there, then end.")] = False,
    as_name: Annotated[str | None, option("--as", "Replay it under another name, into spark/NEW.", "NEW")] = None,
    start: Annotated[str | None, option("--start", "Where to begin, when it has no place yet.", "OFFSET")] = None,
    until: Annotated[int | None, option("--until", "Where to end.", "OFFSET", min=1)] = None,
    master: MasterOption = None,
    checkpoint: Annotated[
        str | None, option("--checkpoint", "Where it keeps its place. Default: [spark] checkpoints.", "DIR")
    ] = None,
    wait: Annotated[str, option("--wait", "How long to wait for another driver to end.", "TIME")] = "0s",
) -> CommandResult:
    """Run a pipeline from where it stopped. Ctrl-C ends it: a batch that was cut short runs again the next time.

    \b
    Examples:
      semel pipeline run orders --once
      semel pipeline run orders --master spark://host:7077
      semel pipeline run my_pipeline.py --checkpoint /var/lib/semel/checkpoints
      semel pipeline run orders --as orders-again --until 9000
    """
    from semel.spark import runner
    from semel.spark.pipeline import replay
    from semel.spark.session import check_executors, spark_session

    terminal: Terminal = context.obj
    settings = load(places.config)
    wait_s = parse_duration("--wait", wait)
    found = _find(name, settings, terminal, places.store)
    with naming_option("--as"):
        found = replay(found, as_name)
    with naming_option("--start"):
        found = replay(found, start=start, until=until)
    options = runner.RunOptions(
        checkpoint=runner.checkpoint_of(found.name, checkpoint or settings.spark.checkpoints),
        once=once or until is not None,
        wait_s=wait_s,
    )
    with opened(found.store, settings, create=True) as output, terminal.progress("starting Spark") as update:
        warnings = _missing(output, found, settings)
        for warning in warnings:
            terminal.note(warning)
        options.progress = lambda run: update(run.rows, what=_doing(run))
        spark = spark_session(
            app=f"semel-{found.name}",
            master=master or settings.spark.master,
            memory=settings.spark.memory,
            partitions=settings.spark.partitions,
            settings=settings.spark.settings,
            start_from_cache=settings.spark.start_cache,
        )
        check_executors(spark)
        update(what=f"running {found.name}")
        dead = runner.deaths(output, found.name)
        with until_signalled() as is_signalled:
            options.stop = is_signalled
            ended = runner.run(spark, found, output, options)
        dead = runner.deaths(output, found.name) - dead
    words = [f"{found.name}: {ended.state} after {_done(ended)}", *_dead_words(found, dead)]
    return CommandResult({**_run_dict(ended), "dead": dead, "warnings": warnings}, words)


def _done(run: PipelineRun) -> str:
    return f"{plural(run.rows, 'row')} in {plural(max(0, run.batch + 1), 'batch', 'batches')}"


def _dead_words(pipeline: Pipeline, dead: int) -> list[str]:
    """What was refused is kept, and must not look as if it had passed."""
    streams = ", ".join(f"dead/{each.stream}" for each in pipeline.inputs)
    return [f"  {plural(dead, 'dead letter')}, with the cause of each: {streams}"] if dead else []


def _missing(output: Store, pipeline: Pipeline, settings: Config) -> list[str]:
    """A misspelt stream is one that stays empty. It may also be one that nobody has written yet, so it is no error."""
    return [
        f"warning: there is no stream {each.stream} in {shown(each.store)} yet{_like(each.stream, known)}"
        for each in pipeline.inputs
        if (known := _streams(output, pipeline, settings, each.store)) is not None and each.stream not in known
    ]


def _like(stream: str, known: Sequence[str]) -> str:
    close = get_close_matches(stream, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _streams(store: Store, pipeline: Pipeline, settings: Config, url: str) -> list[str] | None:
    """The streams of the store of an input; None when it cannot be asked."""
    try:
        with nullcontext(store) if url == pipeline.store else opened(url, settings) as asked:
            return [each.name for each in asked.status().streams]
    except SemelError:
        return None


def _doing(run: PipelineRun) -> str:
    return f"{run.pipeline}: batch {run.batch}, {run.rows_per_s:,.0f} rows/s"


def _run_dict(run: PipelineRun) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(run)
    return found


# -- list


@app.command("list")
@bundled
def list_(context: typer.Context, places: StoreOptions) -> CommandResult:
    """The pipelines of the configuration, and how each stands.

    \b
    Examples:
      semel pipeline list
      semel pipeline list --json
    """
    url, settings = places.find(context.obj)
    from semel.spark.pipeline import from_section

    found = [from_section(section, url) for section in settings.pipelines]
    if not found:
        place = settings.file or "semel.toml"
        return CommandResult([], [f"{place} has no pipelines; add [[pipeline]] with a name and from"])
    try:
        with opened(url, settings) as opened_store:
            rows = [(each, _status(opened_store, each, settings)) for each in found]
    except (NotAStore, StoreUnavailable) as error:
        if not _is_missing(url, error):
            raise
        rows = [(each, _never_run(each, settings)) for each in found]
    return CommandResult([_status_dict(each, status) for each, status in rows], [_table(rows)])


def _is_missing(url: str, error: SemelError) -> bool:
    """Whether there is no store yet, which a server that does not answer does not say."""
    from semel.stores.sqlite import path_of

    return isinstance(error, NotAStore) or (url.lower().startswith("sqlite:") and not path_of(url).exists())


def _never_run(pipeline: Pipeline, settings: Config) -> RunStatus:
    from semel.spark.runner import RunStatus

    lag = {each.stream: _head(None, pipeline, settings, each.store, each.stream) for each in pipeline.inputs}
    return RunStatus(run=None, alive=False, owner="", lag=lag, landed=0)


def _status(store: Store, pipeline: Pipeline, settings: Config) -> RunStatus:
    from semel.spark import runner

    return runner.status(store, pipeline, partial(_head, store, pipeline, settings))


def _head(store: Store | None, pipeline: Pipeline, settings: Config, url: str, stream: str) -> int | None:
    """The head of an input; `store` is the open one of the pipeline. None when the store cannot be asked."""
    if store is not None and url == pipeline.store:
        return store.head(stream).offset
    try:
        with opened(url, settings) as other:
            return other.head(stream).offset
    except SemelError:
        return None


def _status_dict(pipeline: Pipeline, status: RunStatus) -> dict[str, Any]:
    return {
        "name": pipeline.name,
        "from": [{"store": shown(each.store), "stream": each.stream} for each in pipeline.inputs],
        "output": pipeline.to or pipeline.table or pipeline.path or pipeline.output,
        "store": shown(pipeline.store),
        "state": _state(status),
        **asdict(status),
        "waiting": [
            {"session": session, "index": wait.index, "rows": wait.rows} for session, wait in status.waiting.items()
        ],
        "run": _run_dict(status.run) if status.run is not None else None,
    }


def _state(status: RunStatus) -> str:
    if status.alive:
        return "running"
    if status.run is None:
        return "never run"
    return "killed" if status.run.state == "running" else status.run.state


def _table(rows: list[tuple[Pipeline, RunStatus]]) -> Table:
    from rich.table import Table

    table = Table()
    for column in ("pipeline", "from", "to", "state"):
        table.add_column(column, overflow="fold")
    for column in ("rows", "lag"):
        table.add_column(column, justify="right")
    for pipeline, status in rows:
        table.add_row(
            pipeline.name,
            "\n".join(each.stream for each in pipeline.inputs),
            pipeline.to or pipeline.table or pipeline.path or pipeline.output,
            _state(status),
            f"{status.landed:,}",
            "\n".join("?" if lag is None else f"{lag:,}" for lag in status.lag.values()),
        )
    return table


# -- status and stop


@app.command("status")
@bundled
def status(context: typer.Context, name: NameArgument, places: StoreOptions) -> CommandResult:
    """Who runs a pipeline, how far it is, and what it said last.

    \b
    Examples:
      semel pipeline status orders
      semel pipeline status orders --json
    """
    settings = load(places.config)
    found = _find(name, settings, context.obj, places.store)
    with opened(found.store, settings) as opened_store:
        standing = _status(opened_store, found, settings)
        warnings = _missing(opened_store, found, settings)
    return CommandResult(
        {**_status_dict(found, standing), "warnings": warnings}, [*_status_lines(found, standing), *warnings]
    )


def _status_lines(pipeline: Pipeline, standing: RunStatus) -> list[Any]:
    run = standing.run
    lines = [f"{pipeline.name}: {_state(standing)}" + (f" by {standing.owner}" if standing.owner else "")]
    if run is not None:
        lines.append(f"  {_done(run)} since {_moment(run.started)}")
        lines.append(f"  checkpoint {run.checkpoint}")
        if run.error:
            lines.append(f"  it said: {run.error}")
    for stream, lag in standing.lag.items():
        lines.append(f"  {stream}: " + ("cannot be asked" if lag is None else f"{plural(lag, 'record')} behind"))
    return [*lines, *_waiting_words(standing), *_dead_words(pipeline, standing.dead)]


def _waiting_words(standing: RunStatus) -> list[str]:
    """Rows behind a gap: they were taken, and have not landed."""
    waiting = sorted(standing.waiting.items(), key=lambda of: (-of[1].rows, of[0]))
    if not waiting:
        return []
    rows = sum(wait.rows for _, wait in waiting)
    lines = [f"  {plural(rows, 'message')} of {plural(len(waiting), 'session')} waiting behind a gap:"]
    lines += [
        f"    session {session}: {plural(wait.rows, 'message')} for index {wait.index}"
        for session, wait in waiting[:WAITING_MAX]
    ]
    more = len(waiting) - WAITING_MAX
    return [*lines, *([f"    and {plural(more, 'more session')}"] if more > 0 else [])]


def _moment(at: int) -> str:
    return datetime.fromtimestamp(at / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@app.command("stop")
@bundled
def stop(
    context: typer.Context,
    name: NameArgument,
    places: StoreOptions,
    wait: Annotated[str, option("--wait", "How long to wait until it has ended.", "TIME")] = "60s",
) -> CommandResult:
    """Ask a running pipeline to end, from any machine that reaches its store.

    \b
    Examples:
      semel pipeline stop orders
      semel pipeline stop orders --wait 5m
    """
    from semel.spark import runner

    terminal: Terminal = context.obj
    settings = load(places.config)
    wait_s = parse_duration("--wait", wait)
    found = _find(name, settings, terminal, places.store)
    with opened(found.store, settings) as opened_store, terminal.progress(f"stopping {found.name}"):
        row = runner.ask_to_stop(opened_store, found.name)
        if row is None:
            return CommandResult({"name": found.name, "stopped": False}, [f"{found.name} is not running"])
        if not runner.wait_for_end(opened_store, found.name, row.fence, wait_s):
            raise PeerUnavailable(
                f"{row.owner} has not ended {found.name} within {wait_s:g} s",
                fix="it was asked to, and ends as soon as it can; look again with: semel pipeline status",
            )
    return CommandResult({"name": found.name, "stopped": True, "owner": row.owner}, [f"{found.name} has ended"])
