"""Options that several commands share, and how a command finds its store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.errors import ConfigError, InputError

if TYPE_CHECKING:
    from semel.cli.terminal import Terminal
    from semel.config import Config
    from semel.kernel.store import Store

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="The store. Default: SEMEL_STORE__URL, else semel.toml, else sqlite:///semel.db."
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The configuration file. Default: semel.toml, if any.")
]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_duration(option: str, text: str) -> float:
    """Seconds in "500ms", "30s", "15m", "12h", "7d" or "2w". A bare number is seconds."""
    found = _DURATION.match(text.strip())
    if found is None:
        raise ConfigError(f"{option} {text!r} is not a duration", fix="write a number and a unit: 500ms 30s 15m 12h 7d")
    return float(found[1]) * _SECONDS[found[2] or "s"]


@contextmanager
def naming_option(option: str) -> Iterator[None]:
    """The error about a value that is refused further inside names the option that it was given by."""
    try:
        yield
    except (ConfigError, InputError) as error:
        raise ConfigError(f"{option}: {error.message}", fix=error.fix) from error


def load(file: Path | None) -> Config:
    from semel.config import load_config

    return load_config(file)


def find_store(terminal: Terminal, given: str | None, config: Config) -> str:
    """The URL of the store. When nobody chose one, say which it is."""
    url, source = config.resolve_store(given)
    if source == "default":
        terminal.note(f"no store was named: using {url} in this folder")
    return url


def shown(url: str) -> str:
    """The URL as it may be printed: without its password."""
    return _PASSWORD_QUERY.sub(r"\1***", _PASSWORD.sub(r"\1***\2", url))


_PASSWORD = re.compile(r"(://[^/?#@:]*:)[^/?#]*(@)")
_PASSWORD_QUERY = re.compile(r"([?&]password=)[^&#]*")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Which store, and which configuration."""

    store: StoreOption = None
    config: ConfigOption = None

    def find(self, terminal: Terminal) -> tuple[str, Config]:
        settings = load(self.config)
        return find_store(terminal, self.store, settings), settings

    @contextmanager
    def opened(self, terminal: Terminal) -> Iterator[tuple[str, Store]]:
        """The URL and the store."""
        url, settings = self.find(terminal)
        with opened(url, settings) as store:
            yield url, store


@contextmanager
def opened(url: str, config: Config, *, create: bool = False) -> Iterator[Store]:
    from semel.stores.open import open_store

    try:
        store = open_store(url, node=config.store.node, create=create)
    except ConfigError as error:
        raise ConfigError(error.message.replace(url, shown(url)), fix=error.fix.replace(url, shown(url))) from None
    except ValueError as error:
        raise ConfigError(
            f"{shown(url)!r} is not a URL: {error}", fix="write it as in semel store init --help"
        ) from None
    try:
        yield store
    finally:
        store.close()
