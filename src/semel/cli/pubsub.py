"""`semel pubsub`: look into a running pub/sub server, send, close and follow."""

from __future__ import annotations

import json as json_text
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from semel.cli.options import bundled, option
from semel.cli.remote import RemoteServer, ServerOptions
from semel.cli.signals import until_interrupted
from semel.cli.terminal import CommandResult, Terminal, human_bytes
from semel.errors import ConfigError, EpochChanged, PeerUnavailable

if TYPE_CHECKING:
    from rich.table import Table

HUBS = "/v1/pubsub/hubs"
REPEATED = "idempotent-replayed"
PAGE = 500
NAMES_SHOWN, NAME_SHOWN = 5, 40
"""Groups of a connection in a table, and characters of each, at most. --json has all of them."""
ANY_WIDTH = 100_000
WAIT_S = 25
RETRY_S = 1.0
GIVE_UP_S = 60.0
"""How long a server may be away before following it ends."""

HubArgument = Annotated[str, typer.Argument(metavar="HUB", help="The hub's name.", show_default=False)]
LimitOption = Annotated[int, option("--limit", "How many to show, at most.", "N", min=1)]
GroupOption = Annotated[str | None, option("--group", "The members of this group.", "NAME")]
UserOption = Annotated[str | None, option("--user", "The connections of this user.", "NAME")]
ConnectionIdOption = Annotated[str | None, option("--connection", "This connection.", "ID")]
EverybodyOption = Annotated[bool, option("--everybody", "All connections of the hub.")]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
@bundled
def pubsub_group() -> None:
    """Look into a running pub/sub server, send, close and follow.

    \b
    Examples:
      semel pubsub hubs
      semel pubsub connections chat --group news
      semel pubsub send chat "hello" --group news
      semel pubsub tail chat
    """


# -- what is there


@app.command("hubs")
@bundled
def hubs(place: ServerOptions) -> CommandResult:
    """List the hubs, and how many connections and groups each has.

    \b
    Examples:
      semel pubsub hubs
      semel pubsub hubs --dev --json
    """
    with place.server() as server:
        found = server.get(HUBS, "hubs")["hubs"]
    table = _table("hub", connected="right", waiting="right", elsewhere="right", groups="right")
    for hub in found:
        here = hub.get("here")
        _add_row(
            table,
            hub["name"],
            *("" if here is None else f"{here[name]:,}" for name in ("connected", "waiting", "elsewhere", "groups")),
        )
    return CommandResult({"hubs": found}, [_whole(table)] if found else ["no hub has been used yet"])


@app.command("connections")
@bundled
def connections(
    hub: HubArgument,
    place: ServerOptions,
    group: GroupOption = None,
    user: UserOption = None,
    limit: LimitOption = 1000,
) -> CommandResult:
    """List the connections of a hub: who, in which groups, and what each has not acknowledged.

    \b
    Examples:
      semel pubsub connections chat
      semel pubsub connections chat --user ann --json
    """
    with place.server() as server:
        found, more = _pages(server, hub, "connections", limit, {"group": group, "user": user})
        nobody = "" if found else _nothing(server, hub, "nobody is there")
    columns = {
        "user": "left",
        "state": "left",
        "node": "left",
        "protocol": "left",
        "groups": "left",
        "backlog": "right",
    }
    table = _table("connection", **columns)
    for each in found:
        _add_row(
            table,
            each["connectionId"],
            each["userId"] or "",
            _state(each),
            each["node"],
            _protocol(each["protocol"]),
            _few(each["groups"]),
            f"{each['backlog']:,} ({human_bytes(each['backlogBytes'])})" if each["backlog"] else "",
        )
    return _listed("connections", found, more, table, nobody)


def _protocol(name: str | None) -> str:
    """Without what all of them have; None where another node knows it."""
    return "" if name is None else name.removesuffix(".webpubsub.azure.v1") or "simple"


def _few(names: list[str]) -> str:
    shown = ", ".join(name if len(name) <= NAME_SHOWN else f"{name[: NAME_SHOWN - 1]}…" for name in names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN:,} more"


def _state(connection: Mapping[str, Any]) -> str:
    since = connection["waitingSince"]
    return connection["state"] if since is None else f"waiting since {_clock(since)}"


@app.command("groups")
@bundled
def groups(hub: HubArgument, place: ServerOptions, limit: LimitOption = 1000) -> CommandResult:
    """List the groups of a hub, and how many members each has.

    \b
    Examples:
      semel pubsub groups chat
      semel pubsub groups chat --limit 10
    """
    with place.server() as server:
        found, more = _pages(server, hub, "groups", limit, {})
        nothing = "" if found else _nothing(server, hub, "no group has a member")
    table = _table("group", members="right")
    for each in found:
        _add_row(table, each["name"], f"{each['members']:,}")
    return _listed("groups", found, more, table, nothing)


def _pages(
    server: RemoteServer, hub: str, name: str, limit: int, query: Mapping[str, object]
) -> tuple[list[dict[str, Any]], bool]:
    """Up to `limit` of them, and whether there are more."""
    found: list[dict[str, Any]] = []
    following: str | None = None
    while len(found) < limit:
        asked = {**query, "after": following, "limit": min(PAGE, limit - len(found))}
        page = server.get(f"{HUBS}/{quote(hub, safe='')}/{name}", name, asked)
        found += page[name]
        following = page["next"]
        if following is None:
            return found, False
    return found, True


def _nothing(server: RemoteServer, hub: str, nothing: str) -> str:
    """Perhaps another hub was meant."""
    names = [each["name"] for each in server.get(HUBS, "hubs")["hubs"]]
    if hub.lower() in names or not names:
        return nothing
    return f"{nothing}: {plain(hub)} is none of the hubs that are used, {_few(names)}"


def _listed(name: str, found: list[dict[str, Any]], more: bool, table: Table, nothing: str) -> CommandResult:
    view: list[Any] = [_whole(table)] if found else [nothing]
    if more:
        view.append("there are more: raise --limit")
    return CommandResult({name: found, "more": more}, view)


# -- what is done


@app.command("send")
@bundled
def send(
    hub: HubArgument,
    place: ServerOptions,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="What to send, unless --file says.", show_default=False)
    ] = None,
    group: GroupOption = None,
    user: UserOption = None,
    connection: ConnectionIdOption = None,
    everybody: EverybodyOption = False,
    file: Annotated[Path | None, option("--file", "Send what is in this file; - is stdin.", "FILE")] = None,
    type_: Annotated[str, option("--type", "What it is: text, json or binary.", "TYPE")] = "text",
    key: Annotated[
        str | None, option("--key", "An idempotency key: repeated with it, this sends once.", "TEXT")
    ] = None,
    ttl: Annotated[int | None, option("--ttl", "Seconds after which it is not delivered.", "S", min=1, max=300)] = None,
    filter_: Annotated[str | None, option("--filter", "Only to those that this chooses.", "ODATA")] = None,
) -> CommandResult:
    """Send a message to a group, a user, a connection or everybody. It is durable when this returns.

    \b
    Examples:
      semel pubsub send chat "hello" --group news
      semel pubsub send chat --file order.json --type json --user ann --key o-7
      semel pubsub send chat "bye" --everybody --filter "userId ne 'ann'"
    """
    if type_ not in _CONTENT_TYPES:
        raise ConfigError(f"--type {type_} is none of text, json and binary", fix="use one of them")
    path, to = _receivers(hub, group, user, connection, everybody)
    headers = {"content-type": _CONTENT_TYPES[type_], **({"idempotency-key": key} if key is not None else {})}
    body = _body(text, file)
    with place.server() as server:
        query = {"messageTtlSeconds": ttl, "filter": filter_}
        answer = server.rest("POST", f"{path}/:send", query, body=body, headers=headers)
    is_new = REPEATED not in answer
    line = f"sent {human_bytes(len(body))} to {_named(to)}" if is_new else "sent before under this key: not sent again"
    return CommandResult({"hub": hub, **to, "bytes": len(body), "new": is_new}, [line])


_CONTENT_TYPES = {"text": "text/plain", "json": "application/json", "binary": "application/octet-stream"}


def _body(text: str | None, file: Path | None) -> bytes:
    if (text is None) == (file is None):
        raise ConfigError("there must be one thing to send", fix="give TEXT, or --file")
    if file is None:
        return (text or "").encode(errors="surrogateescape")
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", fix="name another file") from None


@app.command("close")
@bundled
def close(
    hub: HubArgument,
    place: ServerOptions,
    group: GroupOption = None,
    user: UserOption = None,
    connection: ConnectionIdOption = None,
    everybody: EverybodyOption = False,
    reason: Annotated[str, option("--reason", "The reason that the clients get.", "TEXT")] = "",
) -> CommandResult:
    """Close connections and end their sessions, with all that they have not acknowledged.

    \b
    Examples:
      semel pubsub close chat --connection 5f0c...
      semel pubsub close chat --user ann --reason "signed out"
      semel pubsub close chat --everybody
    """
    path, to = _receivers(hub, group, user, connection, everybody)
    with place.server() as server:
        found = server.has(path) if not everybody else bool(_pages(server, hub, "connections", 1, {})[0])
        asked = ("DELETE", path) if connection is not None else ("POST", f"{path}/:closeConnections")
        server.rest(*asked, {"reason": reason or None})
    line = f"closed {_named(to)}" if found else f"nobody was there: {_named(to)}"
    return CommandResult({"hub": hub, **to, "found": found}, [line])


def _receivers(
    hub: str, group: str | None, user: str | None, connection: str | None, everybody: bool
) -> tuple[str, dict[str, Any]]:
    """Their address in the REST API, and what was named."""
    given = {"group": group, "user": user, "connection": connection, "everybody": everybody or None}
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise ConfigError("it is not clear to whom", fix="give one of --group, --user, --connection and --everybody")
    [(sort, name)] = named.items()
    path = f"/hubs/{quote(hub, safe='')}"
    return path if sort == "everybody" else f"{path}/{sort}s/{quote(str(name), safe='')}", named


def _named(to: Mapping[str, Any]) -> str:
    [(sort, name)] = to.items()
    return "everybody" if sort == "everybody" else f"{sort} {plain(str(name))}"


# -- what goes on


@app.command("tail")
@bundled
def tail(
    context: typer.Context,
    hub: HubArgument,
    place: ServerOptions,
    group: Annotated[str | None, option("--group", "Only messages to this group.", "NAME")] = None,
    stored: Annotated[bool, option("--stored", "Begin with what is still in the store.")] = False,
    count: Annotated[int | None, option("--count", "End after so many messages.", "N", min=1)] = None,
) -> None:
    """Follow the messages of a hub, until Ctrl-C. With --json, one object a line.

    It goes on where it was when the server comes back within a minute. Messages
    that nobody needs any more may be gone before they are read; it says so.

    \b
    Examples:
      semel pubsub tail chat
      semel pubsub tail chat --group news --count 10 --json
    """
    terminal: Terminal = context.obj
    with (
        until_interrupted(),
        place.server() as server,
    ):
        if terminal.shows_progress:
            terminal.note(_nothing(server, hub, f"following {plain(hub)}, Ctrl-C ends it"))
        for number, message in enumerate(_follow(server, hub, group, stored, terminal.note), start=1):
            if terminal.json:
                print(json_text.dumps(message), flush=True)
            else:
                terminal.out.print(_line(message), markup=False, highlight=False, soft_wrap=True)
            if number == count:
                return


def _follow(
    server: RemoteServer, hub: str, group: str | None, stored: bool, note: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    path = f"{HUBS}/{quote(hub, safe='')}/messages"
    page = server.get(path, "messages", {"group": group, "after": "start" if stored else None})
    answered_at = time.monotonic()
    while True:
        yield from page["messages"]
        if page["missed"]:
            note(f"{page['missed']:,} records before {page['after']} were gone before they could be read")
        after = page["after"]
        while True:
            try:
                page = server.get(path, "messages", {"group": group, "after": after, "wait": WAIT_S})
                break
            except EpochChanged as error:
                note(f"{error.message}: going on from now")
                after = None
            except PeerUnavailable as error:
                if time.monotonic() - answered_at > GIVE_UP_S:
                    raise
                note(f"{error.message}: trying again")
                time.sleep(RETRY_S)
        answered_at = time.monotonic()


def _line(message: Mapping[str, Any]) -> str:
    [to] = [f"{sort} {name}" for sort, name in message["to"].items()] or ["everybody"]
    sender = message.get("user") or message["from"]
    data = message.get("data")
    shown = data if isinstance(data, str) else json_text.dumps(data, ensure_ascii=False)
    kind = message.get("dataType")
    mark = f"({kind}) " if kind in ("binary", "protobuf") else ""
    return f"{_clock(message['at'] / 1e6)}  {message['offset']}  {plain(f'{sender} to {to}: {mark}{shown}')}"


# -- how it is shown


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%SZ")


def plain(text: str) -> str:
    """Names and messages come from strangers: what would move the cursor or change a colour is shown, not done."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _table(first: str, **columns: Any) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first)
    for name, justify in columns.items():
        table.add_column(name, justify=justify)
    return table


def _whole(table: Table) -> Table:
    """As wide as it has to be: names in it are copied, so a narrow terminal may break lines, and we break no names."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=ANY_WIDTH)
    table.width = Measurement.get(console, console.options, table).maximum
    return table


def _add_row(table: Table, *cells: str) -> None:
    from rich.text import Text

    table.add_row(*(Text(plain(cell)) for cell in cells))
