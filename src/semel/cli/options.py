"""Options that several commands share, and how a command finds its store.

Options that belong together are one parameter of a command: a dataclass whose fields are options.

    @app.command("status")
    @bundled
    def status(context: typer.Context, places: StoreOptions) -> CommandResult: ...

On the command line they come after the command's own options, and `--json` and `--debug` after all of them. No command
takes those two itself: `semel.cli.main` reads them before anything else, so that even a mistake in the rest is reported
in the form that was asked for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from semel.errors import ConfigError, InputError

if TYPE_CHECKING:
    from semel.cli.terminal import Terminal
    from semel.config import Config
    from semel.kernel.store import Store


def option(name: str, help: str, metavar: str | None = None, **more: Any) -> Any:
    """What belongs behind the type in `Annotated`."""
    return typer.Option(name, help=help, metavar=metavar, **more)


JsonOption = Annotated[bool, option("--json", "Print one JSON object on stdout, and nothing else there.")]
DebugOption = Annotated[bool, option("--debug", "Show where an error comes from. Also: SEMEL_DEBUG=1.")]

Result = TypeVar("Result")


def bundled(command: Callable[..., Result]) -> Callable[..., Result]:
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())
    bundles: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}

    @wraps(command)
    def expanded(*, json: bool, debug: bool, **given: Any) -> Result:
        for name, bundle in bundles.items():
            given[name] = bundle(**{field.name: given.pop(field.name) for field in fields(bundle)})
        return command(**given)

    options = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own if each.name not in bundles]
    options += [option for bundle in bundles.values() for option in _options(bundle)]
    options += [_flag("json", JsonOption), _flag("debug", DebugOption)]
    expanded.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    return expanded


def _options(bundle: Any) -> list[Parameter]:
    types = get_type_hints(bundle, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name])
        for field in fields(bundle)
    ]


def _flag(name: str, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=annotation)


StoreOption = Annotated[
    str | None,
    option("--store", "The store. Default: SEMEL_STORE__URL, else semel.toml, else sqlite:///semel.db.", "URL"),
]
ConfigOption = Annotated[
    Path | None, option("--config", "The configuration file. Default: semel.toml, if any.", "FILE")
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
        store = open_store(url, node=config.store.node, create=create, ledger_keep_s=config.ledger.keep_s)
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
