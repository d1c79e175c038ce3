"""`semel inbox`: run the handlers of an application, put messages in, and look after dead letters."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.inbox_watching import LogFormat, WatchOptions
from semel.cli.options import bundled
from semel.cli.terminal import CommandResult, Terminal
from semel.errors import ConfigError, InputError, SemelError

if TYPE_CHECKING:
    from semel.runtime.inbox.app import App

AppArgument = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="Where the application is, such as shop:app.", show_default=False)
]
EndpointArgument = Annotated[str, typer.Argument(metavar="ENDPOINT", help="One of its endpoints.", show_default=False)]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of a dead letter.", show_default=False)]

OptionalIdArgument = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="The id of a dead letter.", show_default=False)
]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters of the endpoint.")]
CauseOption = Annotated[
    str | None, typer.Option("--cause", metavar="TEXT", help="All whose cause has this text in it.")
]

CHILD = "SEMEL_INBOX_CHILD"
"""Set for the processes of `run --processes`: the one that starts them has said what runs."""
LIST_MAX = 1000

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
letters = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(letters, name="dead-letters")


@app.callback()
@bundled
def inbox_group() -> None:
    """Handlers that run once per message.

    \b
    Examples:
      semel inbox run shop:app --processes 4
      semel inbox send shop:app orders Refund '{"order_id": "7"}' --id r-7
      semel inbox status shop:app
      semel inbox dead-letters list shop:app orders
      semel inbox dead-letters replay shop:app orders order-7
    """


@letters.callback()
@bundled
def letters_group() -> None:
    """Messages that were given up: list them, look at one, replay or discard it.

    \b
    Examples:
      semel inbox dead-letters list shop:app orders
      semel inbox dead-letters show shop:app orders order-7
      semel inbox dead-letters replay shop:app orders order-7
      semel inbox dead-letters discard shop:app orders order-7
    """


def load_app(name: str) -> App:
    """The application that a name such as shop:app stands for."""
    from semel.runtime.inbox.app import App

    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{name!r} names no application", fix="write it as module:name, such as shop:app")
    module = _import(module_name)
    found = getattr(module, attribute, None)
    if not isinstance(found, App):
        there = ", ".join(sorted(key for key, value in vars(module).items() if isinstance(value, App))) or "none"
        raise ConfigError(f"{module_name} has no application {attribute!r}", fix=f"name one of: {there}")
    return found


def _import(name: str) -> ModuleType:
    """What the user's own module raises is the user's to correct, and no fault of the command."""
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except SemelError:
        raise  # it says already what to do
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (name, name.partition(".")[0]):
            raise ConfigError(
                f"there is no module {name!r}", fix="run the command in the folder of the module, or install it"
            ) from None
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"module {name!r} cannot be imported: {type(error).__name__}: {error}",
            fix=f"correct it: {last.filename}, line {last.lineno}; --debug shows the way there",
        ) from error


@contextmanager
def opened(name: str) -> Iterator[App]:
    """The application, with its store closed at the end."""
    found = load_app(name)
    try:
        yield found
    finally:
        found.close()


@app.command("init")
@bundled
def init(
    context: typer.Context,
    name: AppArgument,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements instead of running them.")] = False,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="NAME", help="Make them in this schema. PostgreSQL only.")
    ] = None,
) -> CommandResult:
    """Create the tables of an application's store. Afterwards it needs no right to create any.

    \b
    Examples:
      semel inbox init shop:app
      semel inbox init shop:app --sql > semel.sql
      semel inbox init shop:app --schema semel
    """
    from semel.runtime.inbox.operating import schema_sql

    if sql:
        text = schema_sql(load_app(name), schema)
        return CommandResult({"sql": text}, [text])
    if schema is not None:
        return _init_in_schema(name, schema)
    with opened(name) as found:
        status = found.store.status()
    return CommandResult({"schema": status.schema}, [f"the store of {name} is ready: schema {status.schema}"])


def _init_in_schema(name: str, schema: str) -> CommandResult:
    from semel.runtime.inbox.own_schema import fix_search_path, make_in_schema

    with opened(name) as found:
        version = make_in_schema(found.url, schema)
    lines = [
        f"the store of {name} is ready in {schema}: schema {version}",
        f"let the roles of the application find it: {fix_search_path(schema)}",
    ]
    return CommandResult({"schema": version, "in": schema}, lines)


@app.command("run")
@bundled
def run(
    context: typer.Context,
    name: AppArgument,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=256, metavar="N", help="How many processes share the work.")
    ] = 1,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="[HOST:]PORT", help="Serve figures for Prometheus there, under /metrics."),
    ] = None,
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", help="Let other machines read them: HOST need not be this one.")
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Lines for people, or one JSON object in each.")
    ] = LogFormat.TEXT,
) -> CommandResult:
    """Run the handlers and the relay of an application, until Ctrl-C or SIGTERM.

    What has begun is finished first. What a process held when it was killed is handled by another after its lease. Of
    several processes each serves its own figures, at the first port from PORT on that is free.

    \b
    Examples:
      semel inbox run shop:app
      semel inbox run shop:app --processes 4
      semel inbox run shop:app --metrics 9464 --log-format json
    """
    from semel.cli.inbox_processes import run_processes

    terminal: Terminal = context.obj
    watching = WatchOptions.asked(metrics, open_metrics, log_format, processes)
    with opened(name) as found, watching.applied(found, is_one=processes == 1):
        handlers = found.handlers  # refused here, before any process is started
        if CHILD not in os.environ:
            where = "in this process" if processes == 1 else f"in {processes} processes"
            watching.announce([*described(found), where], terminal.note)
        if processes == 1:
            found.run()
    if processes > 1:
        os.environ[CHILD] = "1"
        with watching.passed_on():
            run_processes([sys.executable, "-m", "semel", "inbox", "run", name], processes, terminal.say)
    return CommandResult({"endpoints": sorted(handlers)}, ["stopped"])


def described(app: App) -> list[str]:
    """What is about to run, for whoever reads the log."""
    lines = [f"{app.name} on {_without_password(app.url)}"]
    for name, handlers in app.handlers.items():
        options = app.endpoints[name].options
        lines.append(f"  {name} ({options.mode}, {options.parallel} at a time): {', '.join(handlers) or 'no handlers'}")
    lines += [f"  every {each.schedule.expression}: {each.schedule.name} to {each.to}" for each in app.periodic]
    return lines


def _without_password(url: str) -> str:
    if not url.startswith("postgres"):
        return url
    from semel.stores.postgres_connection import redact

    return redact(url)


@app.command("send")
@bundled
def send(
    context: typer.Context,
    name: AppArgument,
    endpoint: EndpointArgument,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The type of the message.", show_default=False)],
    body: Annotated[str, typer.Argument(metavar="BODY", help="The message as JSON; - reads it from stdin.")] = "{}",
    id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Default: a new one.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Its place in an order.")] = None,
) -> CommandResult:
    """Store a message at an endpoint. One with an id that was here before is a duplicate, and that is no error.

    \b
    Examples:
      semel inbox send shop:app orders Refund '{"order_id": "7"}' --id r-7
      semel inbox send shop:app orders OrderPlaced - < order.json
    """
    from semel.inbox.messages import JSON
    from semel.kernel.envelope import Envelope
    from semel.runtime.inbox.definition import mint

    data = sys.stdin.buffer.read() if body == "-" else body.encode()
    envelope = Envelope(mint() if id is None else id, type=type, data=data, datacontenttype=JSON)
    with opened(name) as found:
        sent, verdict = found.send(envelope, to=endpoint, id=envelope.id, key=key)
    return CommandResult({"id": sent, "verdict": verdict.value}, [f"{sent} {verdict}"])


@app.command("status")
@bundled
def status(context: typer.Context, name: AppArgument) -> CommandResult:
    """Show how many messages each endpoint and the outbox have, by state.

    \b
    Examples:
      semel inbox status shop:app
      semel inbox status shop:app --json
    """
    from rich.table import Table

    from semel.runtime.inbox.operating import queue_status

    with opened(name) as found:
        rows = queue_status(found)
    states = ("ready", "scheduled", "claimed", "deferred", "parked", "dead")
    view = Table("queue", "paused", "breaker", *states, "blocked")
    for row in rows:
        counts = [f"{row.counts.get(state, 0):,}" for state in states]
        breaker = f"open until {row.breaker}" if row.breaker else ""
        blocked = f"{row.blocked:,} behind a dead letter" if row.blocked else ""
        view.add_row(row.queue, "yes" if row.paused else "", breaker, *counts, blocked)
    return CommandResult({"queues": [row.as_dict() for row in rows]}, [view])


@app.command("pause")
@bundled
def pause(context: typer.Context, name: AppArgument, endpoint: EndpointArgument) -> CommandResult:
    """Let an endpoint take nothing new, in all processes, until it is resumed. Messages are stored meanwhile.

    \b
    Examples:
      semel inbox pause shop:app orders
    """
    return _set_paused(name, endpoint, True)


@app.command("resume")
@bundled
def resume(context: typer.Context, name: AppArgument, endpoint: EndpointArgument) -> CommandResult:
    """Let a paused endpoint go on.

    \b
    Examples:
      semel inbox resume shop:app orders
    """
    return _set_paused(name, endpoint, False)


@app.command("adopt")
@bundled
def adopt(context: typer.Context, name: AppArgument, endpoint: EndpointArgument) -> CommandResult:
    """Take an endpoint over that belongs to another application of the same store, or to this one's former name.

    Stop the other application first, and let its outbox run empty. Messages, dead letters and what was handled stay.

    \b
    Examples:
      semel inbox adopt shop:app orders
    """
    with opened(name) as found:
        before = found.adopt(endpoint)
    line = f"{endpoint} belongs to {found.name}" + (f", and no longer to {before}" if before else "")
    return CommandResult({"endpoint": endpoint, "owner": found.name, "before": before}, [line])


@app.command("follow")
@bundled
def follow(
    context: typer.Context,
    name: AppArgument,
    endpoint: Annotated[str, typer.Argument(metavar="[ENDPOINT]", help="One of its endpoints.")] = "",
    source: Annotated[str, typer.Argument(metavar="[SOURCE]", help="What it follows, such as hub/chat.")] = "",
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="WHERE", help="earliest: from what is there. latest: only what is new."),
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="Forget it: its store may trim the stream.")] = False,
) -> CommandResult:
    """Show how far streams were taken into endpoints, or say from where one goes on that has stopped.

    A follower stops when records are missing: its source was restored, or trimmed. What --from leaves out is left out
    for good. Records that come again under their ids are duplicates, for as long as the endpoint remembers them.

    \b
    Examples:
      semel inbox follow shop:app
      semel inbox follow shop:app orders hub/chat --from earliest
      semel inbox follow shop:app orders hub/chat --end
    """
    from rich.table import Table

    from semel.inbox.following import FollowStart
    from semel.runtime.inbox.following import end_follow, follow_from, follow_status

    if start is not None and start not in set(FollowStart):
        raise ConfigError(f"--from is {start!r}", fix="use earliest or latest")
    if (start is not None) == end and (start is not None or endpoint):
        raise ConfigError("it is not said what to do", fix="give --from earliest, --from latest, or --end")
    with opened(name) as found:
        if end:
            end_follow(found, endpoint, source)
            return CommandResult({"ended": source}, [f"{endpoint} has forgotten {source}"])
        if start is not None:
            at = follow_from(found, endpoint, source, FollowStart(start)).position
            return CommandResult({"endpoint": endpoint, "source": source, "at": str(at)}, [f"goes on after {at}"])
        rows = follow_status(found)
    view = Table("endpoint", "follows", "taken up to", "behind", "stopped")
    for row in rows:
        behind = "?" if row.lag is None else f"{row.lag:,}"
        view.add_row(row.endpoint, row.name, "" if row.offset is None else f"{row.offset:,}", behind, row.stopped)
    return CommandResult({"follows": [row.as_dict() for row in rows]}, [view])


def _set_paused(name: str, endpoint: str, paused: bool) -> CommandResult:
    from semel.runtime.inbox.operating import set_paused

    with opened(name) as found:
        set_paused(found, endpoint, paused)
    return CommandResult(
        {"endpoint": endpoint, "paused": paused}, [f"{endpoint} {'is paused' if paused else 'goes on'}"]
    )


@letters.command("list")
@bundled
def list_letters(
    context: typer.Context,
    name: AppArgument,
    endpoint: EndpointArgument,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LIST_MAX, metavar="N", help="How many to show at most.")
    ] = LIST_MAX,
) -> CommandResult:
    """List the dead letters of an endpoint, the oldest first.

    \b
    Examples:
      semel inbox dead-letters list shop:app orders
    """
    from rich.table import Table

    from semel.runtime.inbox.operating import count_letters, dead_letters

    with opened(name) as found:
        rows, total = dead_letters(found, endpoint, limit), count_letters(found, endpoint)
    view = Table("id", "state", "type", "attempts", "cause")
    for row in rows:
        view.add_row(row.identity, row.state, row.type, str(row.attempts), row.cause)
    lines: list[Any] = [view]
    if total > len(rows):
        lines.append(f"the oldest {len(rows):,} of {total:,}")
    return CommandResult({"dead_letters": [row.as_dict() for row in rows], "total": total}, lines)


@letters.command("show")
@bundled
def show_letter(context: typer.Context, name: AppArgument, endpoint: EndpointArgument, id: IdArgument) -> CommandResult:
    """Show one dead letter with its body and what the ledger says of it.

    \b
    Examples:
      semel inbox dead-letters show shop:app orders order-7
    """
    from semel.runtime.inbox.operating import letter_history

    with opened(name) as found:
        letter, history = letter_history(found, endpoint, id)
    lines: list[Any] = [f"{letter.message} ({letter.type}), {letter.attempts} attempts: {letter.cause}", letter.body]
    lines += [f"  {each['at']} {each['kind']} {each['cause'] or ''}".rstrip() for each in history]
    return CommandResult({**letter.as_dict(), "history": history}, lines)


@letters.command("replay")
@bundled
def replay_letter(
    context: typer.Context,
    name: AppArgument,
    endpoint: EndpointArgument,
    id: OptionalIdArgument = None,
    all_: AllOption = False,
    cause: CauseOption = None,
) -> CommandResult:
    """Let a dead letter be handled again, with its attempts counted from the beginning.

    \b
    Examples:
      semel inbox dead-letters replay shop:app orders order-7
      semel inbox dead-letters replay shop:app orders --cause ConnectionError
    """
    with opened(name) as found:
        moved = _move_letters(found, endpoint, found.replay, id, all_, cause)
    return _moved("replayed", id, moved, "will be handled again", "will be handled again")


@letters.command("discard")
@bundled
def discard_letter(
    context: typer.Context,
    name: AppArgument,
    endpoint: EndpointArgument,
    id: OptionalIdArgument = None,
    all_: AllOption = False,
    cause: CauseOption = None,
) -> CommandResult:
    """Give up a dead letter for good. Its identity is still remembered.

    \b
    Examples:
      semel inbox dead-letters discard shop:app orders order-7
      semel inbox dead-letters discard shop:app orders --all
    """
    with opened(name) as found:
        moved = _move_letters(found, endpoint, found.discard, id, all_, cause)
    return _moved("discarded", id, moved, "is discarded", "are discarded")


def _move_letters(
    app: App, endpoint: str, move: Callable[[str, str], None], id: str | None, all_: bool, cause: str | None
) -> list[str]:
    """One by its id, or all of a kind. Exactly one of the three ways has to be said: nothing said is not everything."""
    from semel.runtime.inbox.operating import letters_like, move_many

    if [id is not None, all_, cause is not None].count(True) != 1:
        raise InputError("name what is meant", fix="give the ID of one, --cause TEXT for those that have it, or --all")
    if id is not None:
        move(endpoint, id)
        return [id]
    return move_many(lambda each: move(endpoint, each), letters_like(app, endpoint, cause or ""))


def _moved(what: str, id: str | None, moved: list[str], one: str, many: str) -> CommandResult:
    if id is not None:
        return CommandResult({what: id}, [f"{id} {one}"])
    return CommandResult({what: moved, "count": len(moved)}, [f"dead letters that {many}: {len(moved):,}"])
