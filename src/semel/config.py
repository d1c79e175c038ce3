"""Configuration: `semel.toml`, and over it environment variables such as SEMEL_STORE__URL.

Whatever is wrong is said with its line, what is allowed, and what was probably meant. A key that Semel does not know is
an error: a setting that is silently ignored is worse than none.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from semel import __version__
from semel.errors import ConfigError

FILE = "semel.toml"
ENV_PREFIX = "SEMEL_"
DEFAULT_URL = "sqlite:///semel.db"
LATER_SECTIONS = frozenset({
    "server", "auth", "pubsub", "inbox", "ebxml", "geo", "pipe", "pipeline", "spark", "telemetry",
})  # fmt: skip
"""Sections that belong to parts of Semel which are not in this version."""


class StoreSection(BaseModel):
    """[store]: where messages are kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = Field(default=None, min_length=1, description="the URL of the store, such as sqlite:///semel.db")
    node: str = Field(
        default="local",
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9._~-]+$",
        description="the name of this process in the ledger: up to 128 of A-Z a-z 0-9 . _ ~ -",
    )


class LedgerSection(BaseModel):
    """[ledger]: how the ledger and the index of streams are exported."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    export_to: Path | None = Field(default=None, description="the folder for Parquet segments")
    segment_rows: int = Field(
        default=500_000, ge=1_000, le=5_000_000, description="rows in one segment: 1,000 to 5,000,000"
    )
    lease_s: float = Field(
        default=30.0, ge=1.0, le=3600.0, description="seconds after which a killed export is taken over: 1 to 3600"
    )


_SECTIONS: dict[str, type[BaseModel]] = {"store": StoreSection, "ledger": LedgerSection}


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=ENV_PREFIX, env_nested_delimiter="__", case_sensitive=False
    )

    store: StoreSection = StoreSection()
    ledger: LedgerSection = LedgerSection()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What the environment says wins over the file, which comes in as arguments."""
        return env_settings, init_settings


@dataclass(frozen=True, slots=True)
class Config:
    """What was configured, and where: `file` is None when there is no configuration file."""

    store: StoreSection
    ledger: LedgerSection
    file: Path | None = None

    def resolve_store(self, given: str | None = None) -> tuple[str, str]:
        """The URL of the store and where it comes from: the command line, else the configuration, else the default."""
        if given:
            return given, "--store"
        if self.store.url is None:
            return DEFAULT_URL, "default"
        return self.store.url, "SEMEL_STORE__URL" if _env_name(("store", "url")) else str(self.file)


def load_config(path: Path | None = None, folder: Path | None = None) -> Config:
    """Read the given file, else `semel.toml` in the folder if there is one. Raises ConfigError and nothing else."""
    file = path if path is not None else (folder or Path()) / FILE
    if path is None and not file.is_file():
        return _checked({}, None, "")
    text = _read(file)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}", fix="correct that line; strings need quotes") from None
    return _checked(data, file, text)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start})", fix="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration {file}: {error.strerror}", fix="name a file that exists and may be read"
        ) from None


def _checked(data: dict[str, Any], file: Path | None, text: str) -> Config:
    problems = _unknown_sections(data, file, text) + _unknown_variables()
    if problems:
        raise _config_error(problems)
    try:
        settings = _Settings(**data)
    except ValidationError as error:
        raise _config_error([_explain(details, file, text) for details in error.errors()]) from None
    return Config(settings.store, settings.ledger, file)


def _config_error(problems: list[tuple[str, str]]) -> ConfigError:
    """All problems at once, so that one edit can mend them."""
    if len(problems) == 1:
        return ConfigError(problems[0][0], fix=problems[0][1])
    lines = [f"{message} ({fix})" for message, fix in problems]
    return ConfigError("\n".join(lines), fix=f"mend these {len(problems)} settings")


def _unknown_sections(data: Mapping[str, Any], file: Path | None, text: str) -> list[tuple[str, str]]:
    known = tuple(_SECTIONS)
    return [
        (f"{file}, line {line_of(text, (name,))}: {message}", fix)
        for name in data
        if name not in known
        for message, fix in [_unknown_section(name, known)]
    ]


def _unknown_section(name: str, known: tuple[str, ...]) -> tuple[str, str]:
    if name in LATER_SECTIONS:
        return (
            f"section [{name}] belongs to a part that Semel {__version__} does not have yet",
            f"remove [{name}], or install a version that has it",
        )
    return f"there is no section [{name}]", _did_you_mean(name, known, "sections")


def _unknown_variables() -> list[tuple[str, str]]:
    """A variable such as SEMEL_STROE__URL would otherwise be ignored in silence."""
    known = tuple(_SECTIONS)
    problems = []
    for variable in sorted(os.environ):
        section, separator, _ = variable.lower().removeprefix(ENV_PREFIX.lower()).partition("__")
        if not variable.upper().startswith(ENV_PREFIX):
            continue
        if separator and section not in known:
            message, fix = _unknown_section(section, known)
            problems.append((f"environment variable {variable}: {message}", fix))
        if not separator and section in known:
            message = f"environment variable {variable}: {section!r} is a section, not a value"
            problems.append(
                (
                    message,
                    f"name the key as well, as in {variable}__{next(iter(_SECTIONS[section].model_fields)).upper()}",
                )
            )
    return problems


def _explain(details: Any, file: Path | None, text: str) -> tuple[str, str]:
    """One complaint of pydantic as where, what and what to do."""
    loc = tuple(str(part) for part in details["loc"])
    where = _where(loc, file, text)
    fields = _SECTIONS[loc[0]].model_fields
    if details["type"] == "extra_forbidden":
        return f"{where}: there is no key {loc[-1]!r} in [{loc[0]}]", _did_you_mean(loc[-1], tuple(fields), "keys")
    if len(loc) == 1:
        return f"{where}: {loc[0]!r} is a section, not a value", f"write it as [{loc[0]}] with keys below"
    allowed = fields[loc[1]].description
    what = details["msg"].removeprefix("Input ")
    return f"{where}: {'.'.join(loc)} = {details['input']!r} {what}", f"{'.'.join(loc)} is {allowed}"


def _where(loc: tuple[str, ...], file: Path | None, text: str) -> str:
    variable = _env_name(loc)
    return f"environment variable {variable}" if variable else f"{file}, line {line_of(text, loc)}"


def _env_name(loc: tuple[str, ...]) -> str | None:
    """The variable that sets this key or something below it, as it is spelled in the environment."""
    wanted = ENV_PREFIX + "__".join(loc).upper()
    return next((name for name in os.environ if f"{name.upper()}__".startswith(f"{wanted}__")), None)


def _did_you_mean(name: str, known: tuple[str, ...], what: str) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"the {what} are: {', '.join(sorted(known))}"


def line_of(text: str, path: tuple[str, ...]) -> int:
    """The line where a key is set. It is the one after the longest readable beginning that does not have the key."""
    lines = text.splitlines()
    for count in range(len(lines), -1, -1):
        try:
            data: Any = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        if not _has(data, path):
            return count + 1
    return 1


def _has(data: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return True
