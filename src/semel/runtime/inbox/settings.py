"""What `[inbox]` of semel.toml, or the environment, says about an application.

store, hub, keep_s,      what the code says wins: `App(store)`; the file completes it
nats, amqp
[ledger] keep_s          for how long the application's own store keeps its ledger
[[inbox.endpoint]]       the file wins over the code: who runs an application sets it up for the place it runs in
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semel.errors import ConfigError
from semel.inbox.outbox import BROKERS

_FILE = "semel.toml"
_VARIABLES = ("SEMEL_INBOX__", "SEMEL_LEDGER__", "SEMEL_STORE__")


@dataclass(frozen=True, slots=True)
class InboxSettings:
    """`endpoints` has the options of each endpoint that is named, `listens` what they listen to, and `brokers` URLs by
    kind. `where` is the file, for messages. `server` is the store of the server, None where nothing is configured."""

    store: str | None = None
    hub: str | None = field(default=None, repr=False)
    keep_s: float | None = None
    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    brokers: dict[str, str] = field(default_factory=dict, repr=False)
    listens: dict[str, str] = field(default_factory=dict)
    where: str = _FILE
    server: str | None = None
    ledger_keep_s: float | None = None
    tracing: bool = False


def read_settings(config: str | Path | None = None) -> InboxSettings:
    """From that file, else from semel.toml in the folder where the program runs, if there is one."""
    has_variables = any(name.upper().startswith(_VARIABLES) for name in os.environ)
    if config is None and not has_variables and not Path(_FILE).is_file():
        return InboxSettings()  # without the time that it takes to load what reads it
    from semel.config import DEFAULT_URL, load_config

    found = load_config(Path(config) if config is not None else None)
    section = found.inbox
    return InboxSettings(
        section.store,
        section.hub,
        section.keep_s,
        {each.name: each.options for each in section.endpoint},
        {kind: url for kind in BROKERS if (url := getattr(section, kind)) is not None},
        {each.name: each.listen for each in section.endpoint if each.listen is not None},
        str(found.file or "the environment"),
        found.store.url or DEFAULT_URL,
        found.ledger.keep_s,
        section.tracing,
    )


def check_not_the_servers(settings: InboxSettings, store: str) -> None:
    """What [inbox] may not say, the code may not either: handlers would hold up every publish of the server."""
    if settings.server is None or not store.startswith("sqlite:"):
        return
    from semel.config import is_same_file

    if is_same_file(store, settings.server):
        raise ConfigError(
            f"{store} is the file of [store] in {settings.where}, which is the server's",
            fix="give the application a file of its own",
        )


def needed_store(settings: InboxSettings) -> str:
    if settings.store is None:
        raise ConfigError(
            "the application has no store",
            fix='say it in the code, App("sqlite:///shop.db"), or as store in [inbox] of semel.toml',
        )
    return settings.store
