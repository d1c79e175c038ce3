"""`semel serve`: the pub/sub server."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import (
    ConfigOption,
    DebugOption,
    JsonOption,
    StoreOption,
    find_store,
    load,
    opened,
    parse_duration,
)
from semel.cli.options import shown as without_password
from semel.cli.terminal import Terminal
from semel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from semel.kernel.store import Store
    from semel.pubsub.keys import AccessKeys
    from semel.runtime.pubsub import PubSubSettings
    from semel.runtime.server import Listening

KEY_VARIABLES = ("SEMEL_ACCESS_KEY", "SEMEL_ACCESS_KEY_SECONDARY")
DEV_HOST = "127.0.0.1"


def serve(
    context: typer.Context,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = DEV_HOST,
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65_535, help="0 takes any.")] = 8080,
    dev: Annotated[
        bool, typer.Option("--dev", help="The well-known key of Microsoft's emulator, for this machine only.")
    ] = False,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="FILE", help="The access keys. Default: semel.keys, made at the first start."),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--endpoint", metavar="URL", help="Another address of this server, as behind a proxy. Repeatable."
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="Serve TLS, with this.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, if elsewhere.")] = None,
    recovery: Annotated[
        str, typer.Option("--recovery", metavar="TIME", help="How long a session waits for its client.")
    ] = "90s",
    no_banner: Annotated[
        bool, typer.Option("--no-banner", help="Do not print the connection string, which is a secret.")
    ] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Serve Azure Web PubSub's protocols: WebSocket clients and REST, durable, on one port.

    \b
    Examples:
      semel serve
      semel serve --dev          port and key of Microsoft's emulator
      semel serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
      semel serve --endpoint https://events.example.com
    """
    import uvloop

    from semel.pubsub.hub import HubOptions
    from semel.runtime.pubsub import PubSubSettings
    from semel.runtime.server import alone_with, tls_context
    from semel.stores.sqlite import path_of

    terminal: Terminal = context.obj
    loaded = load(config)
    url = find_store(terminal, store, loaded)
    if dev and host != DEV_HOST:
        raise ConfigError(
            f"--dev has a key that everybody knows, and {host} is not this machine alone",
            fix="leave out --host, or --dev",
        )
    options = HubOptions(recovery_s=parse_duration("--recovery", recovery))
    found = _keys(dev, keys)
    tls = tls_context(tls_cert, tls_key) if tls_cert is not None else None
    with ExitStack() as stack:
        if url.startswith("sqlite:"):
            stack.enter_context(alone_with(path_of(url).absolute()))
        opened_store = stack.enter_context(opened(url, loaded, create=True))
        settings = PubSubSettings(found, tuple(endpoint or ()), loaded.store.node or "local", options)

        def ready(at: Listening) -> None:
            _tell(terminal, at, settings.keys, url, banner=not no_banner)

        uvloop.run(_serve(opened_store, settings, host, port, tls, ready))


async def _serve(
    store: Store,
    settings: PubSubSettings,
    host: str,
    port: int,
    tls: SSLContext | None,
    ready: Callable[[Listening], None],
) -> None:
    """Until Ctrl-C or a polite kill."""
    import asyncio
    import signal

    from semel.runtime.server import serving

    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    async with serving(store, settings, host=host, port=port, tls=tls) as listening:
        ready(listening)
        await told.wait()


def _keys(dev: bool, file: Path | None) -> AccessKeys:
    from semel.pubsub.keys import DEV_KEY, AccessKeys
    from semel.runtime.key_file import load_keys

    given = [os.environ.get(name) or None for name in KEY_VARIABLES]
    if dev:
        if file is not None or any(given):
            raise ConfigError("--dev has its own key, and another one is given", fix="leave out one of the two")
        return AccessKeys(DEV_KEY)
    primary, secondary = given
    if primary is None and secondary is not None:
        raise ConfigError(
            f"{KEY_VARIABLES[1]} is set without {KEY_VARIABLES[0]}", fix=f"set {KEY_VARIABLES[0]} as well"
        )
    if primary is not None:
        if file is not None:
            raise ConfigError(f"both {KEY_VARIABLES[0]} and --keys are given", fix="leave out one of the two")
        return AccessKeys(primary, secondary)
    return load_keys((file or Path("semel.keys")).absolute())


def _tell(terminal: Terminal, at: Listening, keys: AccessKeys, url: str, *, banner: bool) -> None:
    """One line of JSON, or a few for people. Whoever started it waits for this."""
    import json

    from semel.pubsub.keys import connection_string

    secret = connection_string(at.endpoint, keys.primary).text() if banner else None
    if terminal.json:
        result = {"endpoint": at.endpoint, "connection_string": secret, "store": without_password(url)}
        print(json.dumps({"ok": True, "command": "serve", "result": result, "error": None}), flush=True)
        return
    terminal.out.print(f"Semel serves {at.endpoint} from {without_password(url)}", highlight=False, soft_wrap=True)
    if secret is not None:
        terminal.out.print(f"  {secret}", highlight=False, markup=False, soft_wrap=True)
    terminal.out.print("Ctrl-C ends it.", style="dim")
