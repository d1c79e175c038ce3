"""`semel inbox`: run the handlers of an application, put messages in, and look after dead letters."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import bundled
from semel.cli.terminal import CommandResult
from semel.errors import EXIT_USAGE, ConfigError

if TYPE_CHECKING:
    from semel.runtime.inbox.app import App

AppArgument = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="Where the application is, such as shop:app.", show_default=False)
]
EndpointArgument = Annotated[str, typer.Argument(metavar="ENDPOINT", help="One of its endpoints.", show_default=False)]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of a dead letter.", show_default=False)]

LOOK_S = 0.2

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
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise
        raise ConfigError(
            f"there is no module {module_name!r}", fix="run the command in the folder of the module, or install it"
        ) from None
    found = getattr(module, attribute, None)
    if not isinstance(found, App):
        there = ", ".join(sorted(key for key, value in vars(module).items() if isinstance(value, App))) or "none"
        raise ConfigError(f"{module_name} has no application {attribute!r}", fix=f"name one of: {there}")
    return found


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
) -> CommandResult:
    """Create the tables of an application's store. Afterwards it needs no right to create any.

    \b
    Examples:
      semel inbox init shop:app
      semel inbox init shop:app --sql > semel.sql
    """
    from semel.runtime.inbox.operating import schema_sql

    if sql:
        text = schema_sql(load_app(name))
        return CommandResult({"sql": text}, [text])
    with opened(name) as found:
        status = found.store.status()
    return CommandResult({"schema": status.schema}, [f"the store of {name} is ready: schema {status.schema}"])


@app.command("run")
@bundled
def run(
    context: typer.Context,
    name: AppArgument,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=256, metavar="N", help="How many processes share the work.")
    ] = 1,
) -> CommandResult:
    """Run the handlers and the relay of an application, until Ctrl-C or SIGTERM.

    What has begun is finished first. What a process held when it was killed is handled by another after its lease.

    \b
    Examples:
      semel inbox run shop:app
      semel inbox run shop:app --processes 4
    """
    with opened(name) as found:
        handlers = found.handlers  # refused here, before any process is started
        if processes == 1:
            found.run()
    if processes > 1:
        _run_processes(name, processes)
    return CommandResult({"endpoints": sorted(handlers)}, ["stopped"])


def _run_processes(name: str, count: int) -> None:
    """One that dies is started again; a signal ends them all."""
    command = [sys.executable, "-m", "semel", "inbox", "run", name]
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    children = [subprocess.Popen(command) for _ in range(count)]
    try:
        while not signals:
            ended = [child for child in children if child.poll() is not None]
            if any(child.returncode == EXIT_USAGE for child in ended):
                raise ConfigError(f"a process of {name} could not start", fix="see what it printed")
            children = [subprocess.Popen(command) if child in ended else child for child in children]
            time.sleep(LOOK_S)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


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
    view = Table("queue", "paused", "breaker", "ready", "scheduled", "claimed", "parked", "dead")
    for row in rows:
        counts = [f"{row.counts.get(state, 0):,}" for state in ("ready", "scheduled", "claimed", "parked", "dead")]
        breaker = f"open until {row.breaker}" if row.breaker else ""
        view.add_row(row.queue, "yes" if row.paused else "", breaker, *counts)
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
def list_letters(context: typer.Context, name: AppArgument, endpoint: EndpointArgument) -> CommandResult:
    """List the dead letters of an endpoint, the oldest first.

    \b
    Examples:
      semel inbox dead-letters list shop:app orders
    """
    from rich.table import Table

    with opened(name) as found:
        rows = found.dead_letters(endpoint)
    view = Table("id", "type", "attempts", "cause")
    for row in rows:
        view.add_row(row.identity, row.type, str(row.attempts), row.cause)
    return CommandResult({"dead_letters": [row.as_dict() for row in rows]}, [view])


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
    context: typer.Context, name: AppArgument, endpoint: EndpointArgument, id: IdArgument
) -> CommandResult:
    """Let a dead letter be handled again, with its attempts counted from the beginning.

    \b
    Examples:
      semel inbox dead-letters replay shop:app orders order-7
    """
    with opened(name) as found:
        found.replay(endpoint, id)
    return CommandResult({"replayed": id}, [f"{id} will be handled again"])


@letters.command("discard")
@bundled
def discard_letter(
    context: typer.Context, name: AppArgument, endpoint: EndpointArgument, id: IdArgument
) -> CommandResult:
    """Give up a dead letter for good. Its identity is still remembered.

    \b
    Examples:
      semel inbox dead-letters discard shop:app orders order-7
    """
    with opened(name) as found:
        found.discard(endpoint, id)
    return CommandResult({"discarded": id}, [f"{id} is discarded"])
