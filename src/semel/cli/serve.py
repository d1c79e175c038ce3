"""`semel serve`: the pub/sub server."""

from __future__ import annotations

import resource
from contextlib import ExitStack, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import (
    ConfigOption,
    StoreOption,
    bundled,
    find_store,
    load,
    opened,
    option,
    parse_duration,
)
from semel.cli.options import shown as without_password
from semel.cli.remote import KeysOption, find_keys
from semel.cli.terminal import Terminal
from semel.errors import EXIT_UNREACHABLE, CommitInDoubt, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ssl import SSLContext

    from semel.auth.keys import AccessKeys
    from semel.config import Config, HubSection, ServerSection
    from semel.kernel.store import Store
    from semel.pubsub.events.handlers import Handlers
    from semel.runtime.host.forced_exit import ForcedExit
    from semel.runtime.inbox.app import App
    from semel.runtime.server.limits import ListenerLimits
    from semel.runtime.server.part import PartFactory, ServerSettings
    from semel.runtime.server.pubsub import PubSubSettings
    from semel.runtime.server.server import Listening

DEV_HOST, DEV_PORT = "127.0.0.1", 8080
FILES_KEPT = 256
"""For the store, event handlers and whatever else is no client."""
END_S = 9.5
"""From a signal to the end, whatever hangs."""
STUCK_END_S = 0.5
"""From where it is clear that the store keeps a thread."""
RECOVERY_S_MIN, RECOVERY_S_MAX = 1.0, 86_400.0
DEV_ORIGIN = "localhost"
"""As event handlers know Microsoft's emulator."""


@bundled
def serve(
    context: typer.Context,
    host: Annotated[str | None, option("--host", "Where to listen. Default: 127.0.0.1.", "ADDRESS")] = None,
    port: Annotated[int | None, option("--port", "0 takes any. Default: 8080.", "N", min=0, max=65_535)] = None,
    dev: Annotated[bool, option("--dev", "The well-known key of Microsoft's emulator, for this machine only.")] = False,
    keys: KeysOption = None,
    endpoint: Annotated[
        list[str] | None, option("--endpoint", "Another address of this server, as behind a proxy. Repeatable.", "URL")
    ] = None,
    tls_cert: Annotated[Path | None, option("--tls-cert", "Serve TLS, with this.", "FILE")] = None,
    tls_key: Annotated[Path | None, option("--tls-key", "Its key, if elsewhere.", "FILE")] = None,
    tls_client_ca: Annotated[
        Path | None, option("--tls-client-ca", "Ask clients for certificates from these authorities.", "FILE")
    ] = None,
    recovery: Annotated[
        str | None, option("--recovery", "How long a session waits for its client. Default: 90s.", "TIME")
    ] = None,
    no_banner: Annotated[bool, option("--no-banner", "Do not print the connection string, which is a secret.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve Azure Web PubSub's protocols: WebSocket clients and REST, durable, on one port.

    What is not said here is taken from [server], [auth] and [pubsub] of the configuration. With [inbox] app, or with
    [inbox] store and [[inbox.endpoint]], CloudEvents are taken at /v1/inbox/<endpoint>.

    \b
    Examples:
      semel serve
      semel serve --dev          port and key of Microsoft's emulator
      semel serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
      semel serve --endpoint https://events.example.com
      semel serve --dev --debug  logs who is refused, and why
    """
    import uvloop

    from semel.auth.keys import connection_string
    from semel.runtime.host.forced_exit import ForcedExit
    from semel.runtime.server.ledger import LedgerPart
    from semel.runtime.server.pubsub import PubSub
    from semel.runtime.server.server_lock import Running, server_lock
    from semel.stores.sqlite import path_of

    terminal: Terminal = context.obj
    _keep_log(who_is_refused=terminal.debug)
    loaded = load(config)
    url = find_store(terminal, store, loaded)
    server = loaded.server
    bound = host or (DEV_HOST if dev else server.host)
    if dev and not _is_loopback(bound):
        raise ConfigError(
            f"--dev has a key that everybody knows, and {bound} is not this machine alone",
            fix="leave out --host, or --dev",
        )
    at = bound, port if port is not None else DEV_PORT if dev else server.port
    tls, limits = _tls(server, tls_cert, tls_key, tls_client_ca), _limits(server, terminal.note)
    settings = _server(loaded, find_keys(dev, keys, loaded.auth), endpoint, at, tls, limits)
    pubsub = _pubsub(loaded, recovery, dev=dev and not settings.endpoints)
    with ExitStack() as stack:
        inbox = _inbox(loaded, url, terminal.note)
        if inbox is not None:
            stack.callback(inbox.close)
        say_where = None
        if url.startswith("sqlite:"):
            say_where = stack.enter_context(server_lock(path_of(url).absolute()))
        forced_exit = stack.enter_context(ForcedExit(EXIT_UNREACHABLE))
        opened_store = stack.enter_context(opened(url, loaded, create=True))
        parts: list[PartFactory] = [partial(PubSub, settings=pubsub)]
        if inbox is not None:
            parts.append(_inbox_part(inbox, loaded))
        parts.append(partial(LedgerPart, others={} if inbox is None else {"inbox": lambda: inbox.store}))

        def ready(at: Listening) -> None:
            known_as = settings.endpoints[0].rstrip("/") if settings.endpoints else at.endpoint
            if say_where is not None:
                say_where(Running(known_as, dev, None if keys is None else str(keys.absolute())))
            secret = connection_string(known_as, settings.keys.primary).text()
            _announce(terminal, at, secret if server.banner and not no_banner else None, url)

        uvloop.run(_serve(opened_store, settings, parts, ready, forced_exit))


def _keep_log(*, who_is_refused: bool) -> None:
    """On stderr, one line for each thing, with its time in UTC."""
    import logging
    import time

    lines = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    lines.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(lines)
    logging.basicConfig(handlers=[handler])
    # what the driver complains of is reported by the store, in our words
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    if who_is_refused:
        logging.getLogger("semel").setLevel(logging.INFO)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _tls(server: ServerSection, cert: Path | None, key: Path | None, client_ca: Path | None) -> SSLContext | None:
    """A certificate on the command line does not go with the key of another one."""
    from semel.runtime.server.server import tls_context

    if cert is None:
        cert, key = server.tls_cert, key or server.tls_key
    if cert is None and key is not None:
        raise ConfigError("there is a key for TLS, and no certificate", fix="give --tls-cert or tls_cert as well")
    client_ca = client_ca or server.tls_client_ca
    if cert is None and client_ca is not None:
        raise ConfigError("clients can show certificates over TLS only", fix="give --tls-cert or tls_cert as well")
    return tls_context(cert, key, client_ca) if cert is not None else None


def _server(
    loaded: Config,
    keys: AccessKeys,
    endpoints: list[str] | None,
    at: tuple[str, int],
    tls: SSLContext | None,
    limits: ListenerLimits,
) -> ServerSettings:
    from semel.runtime.server.part import ServerSettings

    known, is_open = tuple(endpoints or loaded.server.endpoints), loaded.server.metrics == "open"
    return ServerSettings(keys, known, loaded.store.node, is_open, *at, tls, limits)


def _pubsub(loaded: Config, recovery: str | None, *, dev: bool = False) -> PubSubSettings:
    """The command line wins over the configuration."""
    from semel.pubsub.hub.machine import HubOptions
    from semel.runtime.server.pubsub import PubSubSettings

    pubsub = loaded.pubsub
    options = HubOptions(
        recovery_s=pubsub.recovery_s if recovery is None else _recovery_s(recovery),
        backlog_count=pubsub.backlog_count,
        backlog_bytes=pubsub.backlog_bytes,
        backlog_age_s=pubsub.backlog_age_s,
    )
    handlers = {hub.name: _handlers(hub) for hub in pubsub.hub if hub.handler}
    return PubSubSettings(options, handlers, DEV_ORIGIN if dev else "")


def _recovery_s(given: str) -> float:
    seconds = parse_duration("--recovery", given)
    if not RECOVERY_S_MIN <= seconds <= RECOVERY_S_MAX:
        raise ConfigError(f"--recovery {given} is not between 1s and 24h", fix="write it like 90s")
    return seconds


def _handlers(hub: HubSection) -> Handlers:
    from semel.pubsub.events.handlers import Handlers, event_handler

    found = (event_handler(each.url, each.system_events, each.user_events, each.auth) for each in hub.handler)
    return Handlers(hub.name, tuple(found))


def _inbox(loaded: Config, server_url: str, note: Callable[[str], None]) -> App | None:
    """The application whose endpoints are served: the one that is named, or one without handlers of its own, made of
    what the configuration says. What cannot work is refused here, before anything is made; a store that is away may
    come back."""
    from semel.errors import StoreError
    from semel.runtime.inbox.app import App

    section = loaded.inbox
    if section.app is not None:
        from semel.cli.inbox import load_app

        found = load_app(section.app)
    elif section.store is not None and section.endpoint:
        found = App(section.store, name=section.name, identity=section.identity, config=loaded.file)
        for each in section.endpoint:
            found.endpoint(each.name)
    else:
        return None
    if _is_one_file(found.url, server_url):
        raise ConfigError(
            f"{found.url} has both the inbox and the server, and handlers would hold up every publish",
            fix="give the application a file of its own",
        )
    try:
        _ = found.handlers
    except StoreError as error:
        note(f"the inbox cannot be used yet: {error.message}")
    return found


def _is_one_file(*urls: str) -> bool:
    from semel.stores.sqlite import path_of

    return all(url.startswith("sqlite:") for url in urls) and len({path_of(url).resolve() for url in urls}) == 1


def _inbox_part(app: App, loaded: Config) -> PartFactory:
    from semel.runtime.server.inbox import InboxPart, InboxPartSettings

    return partial(InboxPart, app=app, settings=InboxPartSettings(loaded.inbox.origins, loaded.inbox.backlog))


def _limits(server: ServerSection, note: Callable[[str], None]) -> ListenerLimits:
    """A connection is an open file, and where there are no more of them it would be closed without an answer: so the
    listener has to know. A number that does not fit is reported."""
    from semel.runtime.server.limits import ListenerLimits

    connections = _with_files_for(server.connections)
    if connections < server.connections and "connections" in server.model_fields_set:
        note(f"this process may open so few files that {connections:,} connections are the most: raise ulimit -n")
    return ListenerLimits(
        connections=connections,
        connections_per_address=server.connections_per_address,
        connection_rate=server.connection_rate,
        request_rate=server.request_rate,
        frame_bytes=server.frame_bytes,
    )


def _with_files_for(connections: int) -> int:
    """Raises how many files may be open, as far as the machine allows; how many connections that is room for."""
    wanted = connections + FILES_KEPT
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < wanted:
        raised = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        with suppress(OSError, ValueError):  # some systems have a limit behind the limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections if files == resource.RLIM_INFINITY else min(connections, max(files - FILES_KEPT, files // 2))


async def _serve(
    store: Store,
    settings: ServerSettings,
    parts: Sequence[PartFactory],
    ready: Callable[[Listening], None],
    forced_exit: ForcedExit,
) -> None:
    """Until Ctrl-C or a polite kill. A store that does not answer may keep threads for which Python would wait."""
    import asyncio
    import signal

    from semel.runtime.server.server import serving

    signalled, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled.set)
    try:
        async with serving(store, settings, parts) as listening:
            ready(listening)
            await signalled.wait()
            forced_exit.within(END_S)
    except CommitInDoubt as doubt:
        forced_exit.within(STUCK_END_S, doubt.exit_code)
        raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _announce(terminal: Terminal, at: Listening, secret: str | None, url: str) -> None:
    """One line of JSON, or a few for people. Whoever started it waits for this."""
    import json

    from semel.http import THIS_MACHINE

    if terminal.json:
        result = {"endpoint": at.endpoint, "connection_string": secret, "store": without_password(url)}
        print(json.dumps({"ok": True, "command": "serve", "result": result, "error": None}), flush=True)
        return
    everywhere = ", on every address of this machine," if at.host in THIS_MACHINE else ""
    terminal.out.print(
        f"Semel serves {at.endpoint}{everywhere} from {without_password(url)}", highlight=False, soft_wrap=True
    )
    if secret is not None:
        terminal.out.print(f"  {secret}", highlight=False, markup=False, soft_wrap=True)
    terminal.out.print("Ctrl-C ends it.", style="dim")
