"""`semel store`: create a store, look into it, keep it small, and export its ledger."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import (
    ConfigOption,
    StoreOptions,
    bundled,
    find_store,
    load,
    opened,
    option,
    parse_duration,
    shown,
)
from semel.cli.signals import ended_by
from semel.cli.terminal import CommandResult, Terminal, human_bytes
from semel.errors import ConfigError, NotAStore, SemelError

if TYPE_CHECKING:
    from rich.table import Table

    from semel.config import Config
    from semel.kernel.ledger import Entry, Event
    from semel.kernel.store import Status, Store, StreamInfo, Swept
    from semel.runtime.export.exporter import Exported, ExportOptions, Progress
    from semel.stores.journey import Step

SWEEP_ROWS = 5000
LEDGER_PAGE = 5000


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
@bundled
def store_group() -> None:
    """Create, inspect, sweep and export a store.

    \b
    Examples:
      semel store init sqlite:///semel.db
      semel store status
      semel store ledger --message order-7
      semel store sweep --older-than 7d
      semel store export --to lake
    """


# -- init


@app.command("init")
@bundled
def init(
    context: typer.Context,
    places: StoreOptions,
    url: Annotated[str | None, typer.Argument(metavar="[URL]", help="The store to create.", show_default=False)] = None,
) -> CommandResult:
    """Create a store. One that is there already is left as it is.

    \b
    Examples:
      semel store init sqlite:///semel.db
      semel store init sqlite:////var/lib/semel/semel.db
      semel store init postgresql://user@host/database
    """
    if url and places.store and url != places.store:
        raise ConfigError(f"two stores are named: {shown(url)} and {shown(places.store)}", fix="name one")
    found, settings = replace(places, store=url or places.store).find(context.obj)
    created = not _exists(found, settings)
    with opened(found, settings, create=True) as opened_store:
        status = opened_store.status()
    result = {
        "store": shown(found),
        "created": created,
        "store_id": status.store_id,
        "epoch": status.epoch,
        "schema": status.schema,
    }
    word = "created" if created else "is there already"
    return CommandResult(result, [f"{shown(found)} {word}: schema {status.schema}, epoch {status.epoch}"])


def _exists(url: str, config: Config) -> bool:
    """Whether the place holds a store. What cannot be reached is an error, not an answer."""
    if url.startswith("sqlite:"):
        from semel.stores.sqlite import path_of

        if not path_of(url).exists():
            return False
    try:
        with opened(url, config):
            return True
    except NotAStore:
        return False


# -- status


@app.command("status")
@bundled
def status(context: typer.Context, places: StoreOptions) -> CommandResult:
    """Show streams, cursors, work, ledger and what could be swept.

    \b
    Examples:
      semel store status
      semel store status --store postgresql://user@host/database --json
    """
    with places.opened(context.obj) as (_, found):
        seen = found.status()
        exported = {name: _exported(found, name) for name in ("ledger", "index")}
    return CommandResult({**_plain(seen), "exported": exported}, _status_view(seen, exported))


def _plain(found: Status | Swept | Event) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain


def _exported(store: Store, dataset: str) -> str | None:
    state = store.state(f"export/{dataset}")
    return state.value.decode() if state is not None else None


def _status_view(seen: Status, exported: dict[str, str | None]) -> list[Any]:
    facts = _table("", "")
    for name, value in _facts(seen, exported):
        facts.add_row(name, value)
    facts.show_header = False
    view = [facts]
    if seen.streams:
        view.append(_streams_table(seen))
    if seen.cursors:
        view.append(_cursors_table(seen))
    if seen.work:
        view.append(_work_table(seen))
    return view


def _facts(seen: Status, exported: dict[str, str | None]) -> list[tuple[str, str]]:
    facts = [
        ("store", seen.url),
        ("engine", seen.engine),
        ("id", seen.store_id),
        ("epoch", str(seen.epoch)),
        ("schema", str(seen.schema)),
        ("size", human_bytes(seen.bytes)),
        ("remembered", f"{seen.remembered:,} identities of work that is done"),
        ("ledger", f"{seen.ledger_entries:,} entries" + (f", {seen.horizon}" if seen.horizon.events else "")),
        ("sweepable", f"{seen.sweepable:,} rows"),
    ]
    facts += [(f"{name} exported", f"up to {mark}") for name, mark in exported.items() if mark is not None]
    return facts + list(seen.details.items())


def _streams_table(seen: Status) -> Table:
    table = _table("stream", "first", "head")
    for stream in seen.streams:
        table.add_row(stream.name, f"{stream.first:,}", f"{stream.head:,}")
    return table


def _cursors_table(seen: Status) -> Table:
    heads = {stream.name: stream.head for stream in seen.streams}
    table = _table("cursor", "position", "behind", "pins")
    for cursor in seen.cursors:
        behind = heads.get(cursor.position.stream, 0) - cursor.position.offset
        table.add_row(cursor.name, str(cursor.position), f"{behind:,}", "yes" if cursor.pins else "no")
    return table


def _work_table(seen: Status) -> Table:
    states = sorted({state for counts in seen.work.values() for state in counts})
    table = _table("queue", *states)
    for queue, counts in seen.work.items():
        table.add_row(queue, *(f"{counts.get(state, 0):,}" for state in states))
    return table


def _table(first: str, *columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first, overflow="fold", style="cyan")
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column else "left")
    return table


# -- migrate


@app.command("migrate")
@bundled
def migrate(context: typer.Context, places: StoreOptions) -> CommandResult:
    """Bring the schema of a store up to this version of Semel.

    \b
    Examples:
      semel store migrate
      semel store migrate --store postgresql://user@host/database
    """
    with places.opened(context.obj) as (url, found):
        before, after = found.migrate()
        # opening a store has brought it up to date already: it remembers what it found
        before = getattr(found, "schema_found", before)
    change = f"{before} → {after}" if before != after else f"{after}, nothing to do"
    line = f"{shown(url)}: schema {change}"
    return CommandResult({"store": shown(url), "before": before, "after": after}, [line])


# -- new-epoch


@app.command("new-epoch")
@bundled
def new_epoch(
    context: typer.Context,
    places: StoreOptions,
    reason: Annotated[str, option("--reason", "Why; it is kept in the ledger.", "TEXT", show_default=False)],
) -> CommandResult:
    """Begin a new epoch, after a restore that Semel could not see by itself.

    Positions that were given out before are refused from now on, so nobody reads on in a history that is gone.

    \b
    Examples:
      semel store new-epoch --reason "restored from the backup of Monday"
      semel store new-epoch --reason restored --store postgresql://user@host/db
    """
    if not reason.strip():
        raise ConfigError("--reason is empty", fix="say in a few words why: it is kept in the ledger")
    with places.opened(context.obj) as (url, found):
        epoch = found.raise_epoch(reason)
    return CommandResult(
        {"store": shown(url), "epoch": epoch, "reason": reason}, [f"{shown(url)}: epoch {epoch} begins"]
    )


# -- ledger


@app.command("ledger")
@bundled
def ledger(
    context: typer.Context,
    store: Annotated[
        list[str] | None,
        option("--store", "A store; may be given more than once. Default: as for every command.", "URL"),
    ] = None,
    config: ConfigOption = None,
    message: Annotated[str | None, option("--message", "Only what was seen to happen to this message.", "ID")] = None,
    last: Annotated[int, option("--last", "How many entries, counted from the end.", "N", min=1)] = 20,
) -> CommandResult:
    """Show the ledger, oldest first: who saw what happen to which message on which hop.

    An entry is about one message or about a range of a stream. With --message, ranges that hold a record of that
    message are shown too, as long as the record has not been trimmed. The ledgers of several stores are one timeline.

    \b
    Examples:
      semel store ledger
      semel store ledger --last 100 --json
      semel store ledger --message order-7
      semel store ledger --message order-7 --store URL --store URL
    """
    from semel.stores.journey import Step, journey_in, pages, timeline

    settings = load(config)
    urls = list(dict.fromkeys(store)) if store else [find_store(context.obj, None, settings)]
    found: dict[str, list[Entry]] = {}
    seen: set[str] = set()
    for url in urls:
        with opened(url, settings) as each:
            if each.store_id in seen:
                continue  # the same one under another name: it would tell everything twice
            seen.add(each.store_id)
            if message is not None:
                found[shown(url)] = journey_in(each, message, page=LEDGER_PAGE).entries
            else:
                found[shown(url)] = list(deque(pages(each.ledger, LEDGER_PAGE), maxlen=last))
    steps = timeline(found) if len(found) > 1 else [Step(url, entry) for url, one in found.items() for entry in one]
    steps = steps[-last:]
    result = {
        "store": shown(urls[0]),
        "stores": list(found),
        "entries": [{"store": step.store, **_plain_entry(step.entry)} for step in steps],
    }
    view = _journey_table(steps) if message is not None else _ledger_table(steps, len(found) > 1)
    return CommandResult(result, [view] if steps else ["the ledger holds no such entry"])


def _plain_entry(entry: Entry) -> dict[str, Any]:
    event = _plain(entry.event)
    return {"mark": str(entry.mark), "at": entry.at, "node": entry.node, **event, "kind": entry.event.kind.name.lower()}


def _journey_table(steps: Iterable[Step]) -> Table:
    """What happened to one message, wherever that was."""
    from rich.markup import escape

    table = _table("at", "store", "node", "hop", "kind", "delivery", "attempt", "cause")
    for step in steps:
        entry, event = step.entry, step.entry.event
        delivery = event.delivery or (f"{event.stream} {event.first} to {event.last}" if event.stream else "")
        cells = (_at(entry), step.store, entry.node, event.hop, event.kind.name.lower(), delivery)
        table.add_row(*map(escape, (*cells, str(event.attempt), event.cause or "")))
    return table


def _at(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.at / 1_000_000, UTC).isoformat(" ", "milliseconds")


def _ledger_table(steps: Iterable[Step], several: bool) -> Table:
    from rich.markup import escape

    table = _table("mark", "at", *(["store"] if several else []), "node", "kind", "hop", "message", "attempt", "cause")
    for step in steps:
        entry, event = step.entry, step.entry.event
        about = event.message or (f"{event.stream} {event.first} to {event.last}" if event.stream else "")
        where = (step.store,) if several else ()
        cells = (str(entry.mark), _at(entry), *where, entry.node, event.kind.name.lower(), event.hop, about)
        table.add_row(*map(escape, (*cells, str(event.attempt), event.cause or "")))
    return table


# -- sweep


@app.command("sweep")
@bundled
def sweep(
    context: typer.Context,
    places: StoreOptions,
    older_than: Annotated[
        str | None, option("--older-than", "First give up records of every stream older than this: 7d.", "AGE")
    ] = None,
) -> CommandResult:
    """Remove what nobody needs any more. Nothing open, pinned by a cursor or waiting for the export is touched.

    \b
    Examples:
      semel store sweep
      semel store sweep --older-than 7d
    """
    terminal: Terminal = context.obj
    age_s = parse_duration("--older-than", older_than) if older_than is not None else None
    with places.opened(terminal) as (url, found):
        trimmed = _trim(found, age_s, terminal) if age_s is not None else []
        swept = _sweep_all(found, terminal)
    result = {"store": shown(url), "trimmed": trimmed, "swept": _plain(swept), "total": swept.total}
    return CommandResult(result, [*_trim_lines(trimmed), _swept_line(swept)])


def _trim(store: Store, age_s: float, terminal: Terminal) -> list[dict[str, Any]]:
    from semel.kernel.ops import Advanced, Applied, Trim, Unit

    before_us = time.time_ns() // 1000 - int(age_s * 1_000_000)
    streams = store.status().streams
    trimmed = []
    with terminal.progress("trimming streams", len(streams)) as update:
        for done, stream in enumerate(streams):
            update(done, f"trimming {stream.name}")
            wanted = first_since(store, stream, before_us)
            if wanted <= stream.first:
                continue
            outcome = store.commit([Unit((Trim(stream.name, wanted),))])[0]
            assert isinstance(outcome, Applied)
            answer = outcome.results[0]
            assert isinstance(answer, Advanced)
            assert answer.position is not None
            trimmed.append({"stream": stream.name, "wanted": wanted, "first": answer.position.offset})
    return trimmed


def first_since(store: Store, stream: StreamInfo, since_us: int) -> int:
    """The offset of the first record written at or after a time, found by halving: records are in order of time."""
    from semel.kernel.position import Position
    from semel.kernel.store import Records

    low, high = stream.first, stream.head + 1
    while low < high:
        middle = (low + high) // 2
        found = store.read(stream.name, Position(stream.name, stream.epoch, middle - 1), 1)
        if not isinstance(found, Records) or not found.records or found.records[0].at >= since_us:
            high = middle
        else:
            low = found.records[0].position.offset + 1
    return low


def _sweep_all(store: Store, terminal: Terminal) -> Swept:
    from semel.kernel.store import Swept

    total = Swept(more=True)
    with terminal.progress("sweeping", store.status().sweepable or None) as update:
        while total.more:
            step = store.sweep(time.time_ns() // 1000, SWEEP_ROWS)
            total = Swept(
                total.records + step.records,
                total.identities + step.identities,
                total.work + step.work,
                total.blobs + step.blobs,
                total.ledger + step.ledger,
                total.states + step.states,
                step.more,
                total.moved + step.moved,
            )
            update(total.total + total.moved)
    return total


def _trim_lines(trimmed: list[dict[str, Any]]) -> list[str]:
    return [
        f"{entry['stream']}: begins at {entry['first']:,} now"
        + (
            f" (up to {entry['wanted']:,} is old enough, but a cursor or the export still needs the rest)"
            if entry["first"] < entry["wanted"]
            else ""
        )
        for entry in trimmed
    ]


def _swept_line(swept: Swept) -> str:
    counts = {name: count for name, count in _plain(swept).items() if name != "more" and count}
    if not counts:
        return "nothing to sweep"
    return "swept " + ", ".join(f"{count:,} {name}" for name, count in counts.items())


# -- export


@app.command("export")
@bundled
def export(
    context: typer.Context,
    places: StoreOptions,
    to: Annotated[Path | None, option("--to", "The folder. Default: export_to in the section ledger.", "DIR")] = None,
    dataset: Annotated[str, option("--dataset", "What to export: ledger, index or all.", "NAME")] = "all",
    every: Annotated[str | None, option("--every", "Go on, and look again this often, until stopped.", "TIME")] = None,
    wait: Annotated[str | None, option("--wait", "How long to wait for another export. Default: 45s.", "TIME")] = None,
    new_epoch: Annotated[
        bool, option("--new-epoch", "This store was restored from a backup and is the one that goes on.")
    ] = False,
    forget: Annotated[
        bool, option("--forget", "Export no more: sweep need not wait for it. Files that are there stay.")
    ] = False,
) -> CommandResult:
    """Write the ledger and the index of streams as Parquet files, each row exactly once.

    It may be killed at any moment: the next run goes on where this one was. Stop --every with Ctrl-C or SIGTERM.

    \b
    Examples:
      semel store export --to lake
      semel store export --to lake --every 30s
      semel store export --to lake --dataset ledger --wait 0
      semel store export --forget
    """
    terminal: Terminal = context.obj
    settings = load(places.config)
    if forget:
        return _forget(find_store(terminal, places.store, settings), settings, _datasets(dataset), wait)
    folder = to or settings.ledger.export_to
    if folder is None:
        raise ConfigError("no folder for the export was named", fix="add --to DIR, or set [ledger] export_to")
    names = _datasets(dataset)
    every_s = parse_duration("--every", every) if every is not None else None
    options = _export_options(settings, wait, new_epoch)
    url = find_store(terminal, places.store, settings)
    with opened(url, settings) as found, _stoppable(every_s is not None) as stop:
        options = replace(options, stop=stop.is_set)
        rounds = _rounds(lambda: _export_round(found, folder, names, options, terminal), every_s, stop, terminal)
    return _export_answer(url, folder, rounds)


def _forget(url: str, config: Config, names: tuple[str, ...], wait: str | None) -> CommandResult:
    from semel.runtime.export.exporter import forget

    with opened(url, config) as found:
        for name in names:
            forget(found, name, _export_options(config, wait, False))
    return CommandResult({"store": shown(url), "forgotten": list(names)}, [f"{name}: export ended" for name in names])


def _datasets(name: str) -> tuple[str, ...]:
    from semel.runtime.export.exporter import DATASETS

    if name == "all":
        return DATASETS
    if name not in DATASETS:
        raise ConfigError(f"there is no dataset {name!r}", fix=f"use one of: all, {', '.join(DATASETS)}")
    return (name,)


def _export_options(config: Config, wait: str | None, new_epoch: bool) -> ExportOptions:
    from semel.runtime.export.exporter import ExportOptions

    ledger = config.ledger
    wait_s = parse_duration("--wait", wait) if wait is not None else ledger.lease_s * 1.5
    return ExportOptions(ledger.segment_rows, ledger.lease_s, wait_s, new_epoch=new_epoch)


@contextmanager
def _stoppable(wanted: bool) -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set: a loop that runs until then ends between two segments."""
    stop = threading.Event()
    with ended_by(lambda *_: stop.set()) if wanted else nullcontext():
        yield stop


def _rounds(
    work: Callable[[], list[Exported]], every_s: float | None, stop: threading.Event, terminal: Terminal
) -> list[Exported]:
    """One round, or one after the other until stopped. A loop goes on after errors that another try may fix."""
    done: list[Exported] = []
    while not stop.is_set():
        try:
            done += work()
        except SemelError as error:
            if every_s is None or not error.retryable:
                raise
            terminal.err.print(f"{error.message}: trying again", style="yellow", markup=False)
        if every_s is None:
            break
        stop.wait(every_s)
    return done


def _export_round(
    store: Store, folder: Path, names: tuple[str, ...], options: ExportOptions, terminal: Terminal
) -> list[Exported]:
    from semel.runtime.export.exporter import export

    done = []
    entries = store.status().ledger_entries if terminal.shows_progress else 0
    for name in names:
        with terminal.progress(f"exporting the {name}", entries if name == "ledger" else None) as update:
            done.append(export(store, folder, name, replace(options, progress=_reporter(terminal, update))))
    horizon = store.horizon()
    if horizon.is_long:
        terminal.note(f"the newest part could not be exported: {horizon}")
    return done


def _reporter(terminal: Terminal, update: Callable[..., None]) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        if progress.waiting_for:
            terminal.note(f"waiting for {progress.waiting_for}, which is exporting the {progress.dataset}")
        update(progress.rows)

    return report


def _export_answer(url: str, folder: Path, rounds: list[Exported]) -> CommandResult:
    datasets: dict[str, dict[str, Any]] = {}
    for done in rounds:
        seen = datasets.setdefault(done.dataset, {"rows": 0, "bytes": 0, "files": []})
        seen["rows"] += done.rows
        seen["bytes"] += done.bytes
        seen["files"] += [segment.path for segment in done.segments]
        seen["mark"] = f"{done.mark.xid}.{done.mark.seq}"
    lines = [_exported_line(name, seen) for name, seen in datasets.items()]
    return CommandResult({"store": shown(url), "to": str(folder), "datasets": datasets}, lines)


def _exported_line(name: str, seen: dict[str, Any]) -> str:
    if not seen["files"]:
        return f"{name}: nothing new since {seen['mark']}"
    files = f"{len(seen['files'])} files, {human_bytes(seen['bytes'])}"
    return f"{name}: {seen['rows']:,} rows in {files}, up to {seen['mark']}"
