"""Configuration: `semel.toml`, and over it environment variables such as SEMEL_STORE__URL.

Whatever is wrong is said with its line, what is allowed, and what was probably meant. A key that Semel does not know is
an error: a setting that is silently ignored is worse than none.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, TypeAlias, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from semel.errors import ConfigError, InputError, SemelError
from semel.version import __version__

FILE = "semel.toml"
ENV_PREFIX = "SEMEL_"
DEFAULT_URL = "sqlite:///semel.db"
LATER_SECTIONS = frozenset({"ebxml", "geo", "pipe", "telemetry"})
"""Sections that belong to parts of Semel which are not in this version."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StoreSection(_Section):
    """[store]: where messages are kept."""

    url: str | None = Field(default=None, min_length=1, description="the URL of the store, such as sqlite:///semel.db")
    node: str = Field(
        default="local",
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9._~-]+$",
        description="the name of this process in the ledger: up to 128 of A-Z a-z 0-9 . _ ~ -",
    )


class LedgerSection(_Section):
    """[ledger]: how the ledger and the index of streams are exported, or for how long the ledger is kept."""

    export_to: Path | None = Field(default=None, description="the folder for Parquet segments")
    segment_rows: int = Field(
        default=500_000, ge=1_000, le=5_000_000, description="rows in one segment: 1,000 to 5,000,000"
    )
    lease_s: float = Field(
        default=30.0, ge=1.0, le=3600.0, description="seconds after which a killed export is taken over: 1 to 3600"
    )
    keep_s: float | None = Field(
        default=None, ge=60.0, le=3.2e9, description="seconds after which entries go if nobody exports: 60 or more"
    )


class SparkSection(_Section):
    """[spark]: where pipelines and audits run, and with how much."""

    master: str | None = Field(
        default=None, min_length=1, description="the cluster, such as local[4], spark://host:7077 or yarn"
    )
    memory: str | None = Field(
        default=None, pattern=r"^[1-9][0-9]*[mg]$", description="the memory of the driver, such as 512m or 4g"
    )
    partitions: int | None = Field(default=None, ge=1, le=100_000, description="partitions of a shuffle: 1 to 100,000")
    checkpoints: str = Field(
        default="semel-checkpoints",
        min_length=1,
        description="the folder or URI below which pipelines keep their place",
    )
    start_cache: bool = Field(
        default=True, description="true or false: whether a start-up cache is used if there is one"
    )
    settings: dict[str, str] = Field(default={}, description="a table of Spark's own settings, each value a string")


class InputSection(_Section):
    """One input of a pipeline."""

    stream: str = Field(min_length=1, description="the name of a stream")
    store: str | None = Field(default=None, min_length=1, description="the URL of a store; [store] url when left out")


class OrderSection(_Section):
    """How a pipeline puts the messages of a session in order."""

    gap: Literal["wait", "skip"] = Field(
        default="wait", description="'wait' or 'skip': what to do about an index that is missing"
    )
    after_s: float = Field(
        default=60.0, ge=0.0, description="seconds after which a missing index is skipped: 0 or more"
    )
    buffer: int = Field(default=10_000, ge=1, description="messages of one session that may wait: 1 or more")
    forget_s: float = Field(
        default=604_800.0, gt=0.0, description="seconds after which a silent session is forgotten: more than 0"
    )


def _as_inputs(value: Any) -> Any:
    """A name alone stands for a stream of that name."""
    inputs = value if isinstance(value, list) else [value]
    if not inputs:
        raise ValueError("should name at least one stream")
    return [{"stream": each} if isinstance(each, str) else each for each in inputs]


def _as_order(value: Any) -> Any:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


_FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
Inputs: TypeAlias = Annotated[tuple[InputSection, ...], BeforeValidator(_as_inputs)]
Order: TypeAlias = Annotated[OrderSection | None, BeforeValidator(_as_order)]


class PipelineSection(_Section):
    """[[pipeline]]: one pipeline on Spark. `from_` and `order` may be written shorter than they are kept here."""

    name: str = Field(
        max_length=128,
        pattern=r"^[a-z0-9_~-][a-z0-9._~-]*$",
        description="the pipeline's name: up to 128 of a-z 0-9 . _ ~ -",
    )
    from_: Inputs = Field(alias="from", description="a stream, or a list of streams and of tables {store, stream}")
    dedupe: Literal["id", "index"] = Field(
        default="id", description="'id' or 'index': what makes two messages the same"
    )
    order: Order = Field(default=None, description="true, false, or a table of gap, after_s, buffer and forget_s")
    handler: str | None = Field(
        default=None, pattern=_FUNCTION, description="the function that gets each message, as module:function"
    )
    transform: str | None = Field(
        default=None, pattern=_FUNCTION, description="the function from DataFrame to DataFrame, as module:function"
    )
    to: str | None = Field(default=None, min_length=1, description="the stream that gets the output")
    target: str = Field(default="", description="for whom it is where `to` is a hub: g/<group>, u/<user>")
    table: str | None = Field(default=None, min_length=1, description="the table that gets the output")
    key: str | None = Field(default=None, min_length=1, description="the column that names a row of the table")
    path: str | None = Field(default=None, min_length=1, description="the folder that gets the output as Parquet")
    max_rows_per_batch: int = Field(default=100_000, ge=1, description="messages in one batch, at most: 1 or more")
    every_s: float = Field(default=1.0, ge=0.0, description="seconds between the starts of two batches: 0 or more")
    lease_s: float = Field(
        default=30.0, ge=1.0, le=3600.0, description="seconds after which a killed run is taken over: 1 to 3600"
    )
    start: Literal["earliest", "latest", "available"] = Field(
        default="earliest", description="'earliest', 'latest' or 'available': where to begin the first time"
    )


_OUR_ERROR = "semel"


def _as_custom_error(error: SemelError) -> PydanticCustomError:
    """The complaint of a part that knows better than a pattern what is wrong, without the value: it may be a secret."""
    return PydanticCustomError(_OUR_ERROR, "{message}", {"message": error.message, "fix": error.fix})


class ServerSection(_Section):
    """[server]: where `semel serve` listens, and how much it takes."""

    host: str = Field(default="127.0.0.1", min_length=1, description="the address to listen on, such as 0.0.0.0")
    port: int = Field(default=8080, ge=0, le=65_535, description="the port to listen on: 0 to 65535, 0 takes any")
    tls_cert: Path | None = Field(default=None, description="the certificate in PEM form; with it, TLS is served")
    tls_key: Path | None = Field(default=None, description="the key of the certificate, if it is in another file")
    tls_client_ca: Path | None = Field(
        default=None, description="authorities in PEM form: clients may show certificates that come from them"
    )
    endpoints: tuple[str, ...] = Field(default=(), description="a list of other addresses of this server")
    banner: bool = Field(default=True, description="true or false: whether the connection string is printed")
    metrics: Literal["role", "open"] = Field(
        default="role", description="'role' or 'open': who may read /metrics, the holder of a token or everybody"
    )
    connections: int = Field(default=100_000, ge=1, description="connections at a time, at most: 1 or more")
    connections_per_address: int = Field(
        default=20_000, ge=1, description="connections at a time from one address, at most: 1 or more"
    )
    connection_rate: float = Field(
        default=1_000.0, ge=0, description="new connections in a second from one address, at most; 0 for any number"
    )
    request_rate: float = Field(
        default=5_000.0, ge=0, description="HTTP requests in a second from one address, at most; 0 for any number"
    )
    frame_bytes: int = Field(
        default=1_048_576, ge=1_024, le=1_048_576, description="bytes of one frame, at most: 1,024 to 1,048,576"
    )

    @field_validator("endpoints")
    @classmethod
    def _check_endpoints(cls, endpoints: tuple[str, ...]) -> tuple[str, ...]:
        from semel.auth.keys import DEV_KEY, connection_string

        for endpoint in endpoints:
            try:
                connection_string(endpoint, DEV_KEY)
            except ConfigError as error:
                raise _as_custom_error(error) from None
        return endpoints


class AuthSection(_Section):
    """[auth]: the access keys of the server, in a file of their own or here."""

    keys: Path | None = Field(default=None, description="the file with the access keys, made at the first start")
    primary_key: str | None = Field(default=None, repr=False, description="an access key of 32 to 512 signs")
    secondary_key: str | None = Field(default=None, repr=False, description="another key of 32 to 512 signs")

    @field_validator("primary_key", "secondary_key")
    @classmethod
    def _check_key(cls, key: str | None, info: ValidationInfo) -> str | None:
        from semel.auth.keys import DEV_KEY, AccessKeys

        try:
            AccessKeys(key or DEV_KEY) if info.field_name == "primary_key" else AccessKeys(DEV_KEY, key)
        except ConfigError as error:
            raise _as_custom_error(error) from None
        return key

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.primary_key is not None and self.keys is not None:
            raise _as_custom_error(ConfigError("[auth] has both keys and primary_key", fix="leave out one of the two"))
        if self.secondary_key is not None and self.primary_key is None:
            raise _as_custom_error(
                ConfigError("[auth] has a secondary_key without a primary_key", fix="set primary_key as well")
            )
        return self


class HandlerSection(_Section):
    """[[pubsub.hub.handler]]: where some events of a hub go. The first handler that takes an event gets it."""

    url: str = Field(description="the address, such as https://app.example/hooks/{hub}/{event}")
    system_events: tuple[Literal["connect", "connected", "disconnected", "joined", "left"], ...] = Field(
        default=(), description="a list of 'connect', 'connected', 'disconnected', 'joined', 'left'"
    )
    user_events: str | None = Field(default=None, description="'*', or names of events with commas between")
    auth: Literal["none", "key"] = Field(
        default="none", description="'none' or 'key': whether a token under the server's key goes with each event"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        from semel.pubsub.events.handlers import event_handler

        try:
            event_handler(self.url, self.system_events, self.user_events, self.auth)
        except ConfigError as error:
            raise _as_custom_error(error) from None
        return self


def _hub_name(name: str) -> str:
    from semel.pubsub.protocol.names import check_hub

    try:
        return check_hub(name)
    except InputError as error:
        raise _as_custom_error(error) from None


class HubSection(_Section):
    """[[pubsub.hub]]: what is special about one hub. Hubs need not be named to be used."""

    name: Annotated[str, AfterValidator(_hub_name)] = Field(description="the hub's name, in any case")
    handler: tuple[HandlerSection, ...] = Field(default=(), description="its event handlers, in order")


class PubSubSection(_Section):
    """[pubsub]: what hubs do for sessions."""

    recovery_s: float = Field(
        default=90.0, ge=1.0, le=86_400.0, description="seconds that a session waits for its client: 1 to 86400"
    )
    backlog_count: int = Field(
        default=100_000, ge=1, description="messages that a client may leave unacknowledged: 1 or more"
    )
    backlog_bytes: int = Field(
        default=67_108_864, ge=1_024, description="bytes that a client may leave unacknowledged: 1,024 or more"
    )
    backlog_age_s: float = Field(
        default=600.0,
        ge=1.0,
        description="seconds that the stream keeps what a client leaves unacknowledged: 1 or more",
    )
    hub: tuple[HubSection, ...] = Field(default=(), description="tables [[pubsub.hub]], one for each hub")


class BreakerSection(_Section):
    """The circuit breaker of an endpoint."""

    window_s: float = Field(default=600.0, gt=0.0, description="seconds over which failures are counted: more than 0")
    minimum: int = Field(default=10, ge=1, description="messages that must have ended before it opens: 1 or more")
    share: float = Field(default=0.15, gt=0.0, le=1.0, description="the share that must have failed: above 0, up to 1")
    pause_s: float = Field(default=300.0, gt=0.0, description="seconds for which it stays open: more than 0")


class FollowSection(_Section):
    """follow of [[inbox.endpoint]]: a stream whose messages an endpoint takes."""

    stream: str = Field(min_length=1, description="the name of a stream, such as 'hub/chat'")
    store: str | None = Field(
        default=None, min_length=1, repr=False, description="the URL of the store that has it; default: the inbox's own"
    )
    group: str | tuple[str, ...] = Field(default=(), description="of a hub: the groups that are taken; default: all")
    start: Literal["earliest", "latest"] = Field(
        default="earliest", description="'earliest' or 'latest': where it begins the first time"
    )
    name: str = Field(default="", description="tells two apart that read streams of one name")

    @property
    def groups(self) -> tuple[str, ...]:
        return (self.group,) if isinstance(self.group, str) else self.group


class EndpointSection(_Section):
    """[[inbox.endpoint]]: options of one endpoint, over what the application says in its code."""

    name: str = Field(min_length=1, description="the name of an endpoint, as in app.endpoint(name)")
    mode: Literal["durable", "buffered", "inline"] | None = Field(
        default=None, description="'durable', 'buffered' or 'inline': when a message is acknowledged"
    )
    style: Literal["eager", "optimistic", "reserved", "none"] | None = Field(
        default=None, description="'eager', 'optimistic', 'reserved' or 'none': when the mark is written"
    )
    on_crash: Literal["retry", "drop", "park"] | None = Field(
        default=None, description="'retry', 'drop' or 'park': what a crash of a reserved handler means"
    )
    failed_head: Literal["blocks", "passes"] | None = Field(
        default=None, description="'blocks' or 'passes': what a dead letter does to its key"
    )
    parallel: int | None = Field(default=None, ge=1, description="messages that are handled at a time: 1 or more")
    buffer_high: int | None = Field(default=None, ge=1, description="messages in memory that are the most: 1 or more")
    buffer_low: int | None = Field(default=None, ge=1, description="messages in memory that open it again: 1 or more")
    lease_s: float | None = Field(
        default=None, gt=0.0, description="seconds after which a dead process is replaced: more than 0"
    )
    keep_s: float | None = Field(
        default=None, gt=0.0, description="seconds for which a handled message is remembered: more than 0"
    )
    expire_s: float | None = Field(
        default=None, gt=0.0, description="seconds after which a message is not handled any more: more than 0"
    )
    redelivery_s: float | None = Field(
        default=None, gt=0.0, description="seconds for which the transport may deliver a message again: more than 0"
    )
    share_commit: int | None = Field(
        default=None, ge=1, description="handlers that run in one transaction, at most: 1 or more"
    )
    id_field: str | None = Field(
        default=None, min_length=1, description="the field of an event's body with its id, such as order.id"
    )
    log: bool | None = Field(
        default=None, description="true: what is accepted is also in the stream inbox/<endpoint>/log"
    )
    follow: tuple[FollowSection, ...] = Field(
        default=(), description="streams whose messages the endpoint takes: tables with stream, store, group, start"
    )
    breaker: BreakerSection | None = Field(
        default=None, description="a table of window_s, minimum, share and pause_s: the circuit breaker"
    )
    listen: str | None = Field(
        default=None, min_length=1, description="what it listens to at a broker: 'nats:STREAM' or 'amqp:queue'"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        from semel.inbox.endpoint import EndpointOptions
        from semel.inbox.following import FollowedStream
        from semel.inbox.sources import parse_source

        # a style without a mode is for the mode that the code says
        mode = {"mode": "inline"} if self.style in ("eager", "none") else {}
        try:
            options = {key: value for key, value in self.options.items() if key != "follow"}
            EndpointOptions(self.name, **{**mode, **options})
            if self.listen is not None:
                parse_source(self.listen)
            for each in self.follow:
                FollowedStream(self.name, each.stream, each.store, each.groups, each.start, each.name)
        except (ConfigError, InputError) as error:
            raise _as_custom_error(error) from None
        return self

    @property
    def options(self) -> dict[str, Any]:
        """What is said, as keyword arguments of an endpoint."""
        from semel.inbox.breaker import BreakerOptions

        given = self.model_dump(exclude={"name", "breaker", "listen", "follow"}, exclude_none=True)
        if self.follow:
            given["follow"] = tuple(each.model_dump(exclude_none=True) for each in self.follow)
        return given if self.breaker is None else {**given, "breaker": BreakerOptions(**self.breaker.model_dump())}


class InboxSection(_Section):
    """[inbox]: the database of an application's handlers, and what is special about its endpoints."""

    store: str | None = Field(
        default=None, min_length=1, description="the URL of the application's own database, such as sqlite:///shop.db"
    )
    hub: str | None = Field(
        default=None, repr=False, description="the connection string of the server whose hubs are sent to"
    )
    nats: str | None = Field(
        default=None, min_length=1, repr=False, description="the URL of NATS, such as nats://user:password@host:4222"
    )
    amqp: str | None = Field(
        default=None, min_length=1, repr=False, description="the URL of RabbitMQ, such as amqps://user:password@host/"
    )
    keep_s: float | None = Field(
        default=None, gt=0.0, description="seconds for which a handled message is remembered: more than 0"
    )
    app: str | None = Field(
        default=None, pattern=_FUNCTION, description="the application whose endpoints `semel serve` has, as module:app"
    )
    name: str = Field(
        default="app", min_length=1, max_length=128, description="the name of the application, where `app` names none"
    )
    identity: Literal["id", "id+endpoint"] = Field(
        default="id", description="'id' or 'id+endpoint': what makes two messages the same, where `app` names none"
    )
    origins: tuple[str, ...] = Field(
        default=("*",), description="a list of hosts that may ask to send events, such as a hub's; '*' is all"
    )
    backlog: int = Field(
        default=1_000_000, ge=1, description="messages of an endpoint that may wait before more are refused: 1 or more"
    )
    tracing: bool = Field(default=False, description="whether OpenTelemetry hears of every message: true or false")
    endpoint: tuple[EndpointSection, ...] = Field(
        default=(), description="tables [[inbox.endpoint]], one for each endpoint"
    )

    @field_validator("hub")
    @classmethod
    def _check_hub(cls, hub: str | None) -> str | None:
        from semel.auth.keys import parse_connection_string

        try:
            if hub is not None:
                parse_connection_string(hub)
        except ConfigError as error:
            raise _as_custom_error(error) from None
        return hub

    @field_validator("nats", "amqp")
    @classmethod
    def _check_broker(cls, url: str | None, info: ValidationInfo) -> str | None:
        from semel.inbox.sources import check_broker_url

        try:
            return check_broker_url(str(info.field_name), url) if url is not None else None
        except ConfigError as error:
            raise _as_custom_error(error) from None


_SECTIONS: dict[str, type[BaseModel]] = {
    "store": StoreSection,
    "ledger": LedgerSection,
    "spark": SparkSection,
    "pipeline": PipelineSection,
    "server": ServerSection,
    "auth": AuthSection,
    "pubsub": PubSubSection,
    "inbox": InboxSection,
}
_LISTS = frozenset({"pipeline"})
"""Sections that may be there many times. The environment has no way to say which one is meant, so it sets none."""
_INNER_LISTS = frozenset({("pubsub", "hub"), ("pubsub", "hub", "handler"), ("inbox", "endpoint")})
"""Tables within a section that may be there many times."""

_Path: TypeAlias = tuple[str | int, ...]


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=ENV_PREFIX, env_nested_delimiter="__", case_sensitive=False
    )

    store: StoreSection = StoreSection()
    ledger: LedgerSection = LedgerSection()
    spark: SparkSection = SparkSection()
    pipeline: tuple[PipelineSection, ...] = ()
    server: ServerSection = ServerSection()
    auth: AuthSection = AuthSection()
    pubsub: PubSubSection = PubSubSection()
    inbox: InboxSection = InboxSection()

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
    spark: SparkSection = field(default_factory=SparkSection)
    pipelines: tuple[PipelineSection, ...] = ()
    server: ServerSection = field(default_factory=ServerSection)
    auth: AuthSection = field(default_factory=AuthSection)
    pubsub: PubSubSection = field(default_factory=PubSubSection)
    inbox: InboxSection = field(default_factory=InboxSection)

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
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", fix="write shorter numbers, nested less deep") from None
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
    except SettingsError:
        raise _not_json() from None
    # a pipeline's name is the name of its lease, its checkpoint and its stream
    problems = _names_taken("pipeline", [each.name for each in settings.pipeline], ("pipeline",), file, text)
    problems += _names_taken("hub", [each.name for each in settings.pubsub.hub], ("pubsub", "hub"), file, text)
    problems += _names_taken(
        "endpoint", [each.name for each in settings.inbox.endpoint], ("inbox", "endpoint"), file, text
    )
    problems += _shared_file(settings, file, text)
    if problems:
        raise _config_error(problems)
    return Config(
        settings.store, settings.ledger, file, settings.spark, settings.pipeline, settings.server, settings.auth,
        settings.pubsub, settings.inbox,
    )  # fmt: skip


def _shared_file(settings: _Settings, file: Path | None, text: str) -> list[tuple[str, str]]:
    """Handlers write in transactions of their own length. On SQLite, where one at a time writes, they would hold up
    every publish of a server on the same file."""
    own, server = settings.inbox.store, settings.store.url or DEFAULT_URL
    if own is None or not is_same_file(own, server):
        return []
    where = _where(("inbox", "store"), file, text)
    return [(f"{where}: {own} is the file of [store], which is the server's", "give the inbox a file of its own")]


def is_same_file(*urls: str) -> bool:
    """Whether the URLs of stores lead to one SQLite file."""
    paths = [Path(url.removeprefix("sqlite:///").partition("?")[0]).resolve() for url in urls]
    return all(url.startswith("sqlite:") for url in urls) and len(set(paths)) == 1


def _not_json() -> ConfigError:
    """Lists and tables are written as JSON in the environment."""
    shapes = {
        ("spark", "settings"): '{"name": "value"}',
        ("server", "endpoints"): '["https://events.example.com"]',
        ("pubsub", "hub"): '[{"name": "chat"}]',
        ("inbox", "endpoint"): '[{"name": "orders"}]',
    }
    named = [(name, shape) for loc, shape in shapes.items() if (name := _env_name(loc)) is not None]
    name, shape = next(each for each in named if not _is_json(os.environ[each[0]]))
    return ConfigError(f"environment variable {name}: this is not JSON", fix=f"write it as {shape}, quotes included")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _names_taken(what: str, names: list[str], loc: _Path, file: Path | None, text: str) -> list[tuple[str, str]]:
    """Two of a list may not share a name."""
    return [
        (f"{_where((*loc, at, 'name'), file, text)}: there is another {what} {name!r} above",
         f"give each {what} a name of its own")
        for at, name in enumerate(names)
        if name in names[:at]
    ]  # fmt: skip


def _config_error(problems: list[tuple[str, str]]) -> ConfigError:
    """All problems at once, so that one edit can fix them."""
    if len(problems) == 1:
        return ConfigError(problems[0][0], fix=problems[0][1])
    lines = [f"{message} ({fix})" for message, fix in problems]
    return ConfigError("\n".join(lines), fix=f"fix these {len(problems)} settings")


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
    problems = []
    for variable in sorted(os.environ):
        section, separator, _ = variable.lower().removeprefix(ENV_PREFIX.lower()).partition("__")
        if variable.upper().startswith(ENV_PREFIX) and (problem := _unknown_variable(variable, section, separator)):
            problems.append((f"environment variable {variable}: {problem[0]}", problem[1]))
    return problems


def _unknown_variable(variable: str, section: str, separator: str) -> tuple[str, str] | None:
    if section in _LISTS:
        return f"[[{section}]] can only be set in the file", f"move it to {FILE}, and unset {variable}"
    if separator and section not in _SECTIONS:
        return _unknown_section(section, tuple(_SECTIONS))
    if not separator and section in _SECTIONS:
        key = next(iter(_SECTIONS[section].model_fields)).upper()
        return f"{section!r} is a section, not a value", f"name the key as well, as in {variable}__{key}"
    return None


def _explain(details: Any, file: Path | None, text: str) -> tuple[str, str]:
    """One complaint of pydantic as where, what and what to do."""
    loc: _Path = details["loc"]
    where = _where(loc, file, text)
    if details["type"] == _OUR_ERROR:
        return f"{where}: {details['ctx']['message']}", details["ctx"]["fix"]
    *tables, key = (part for part in loc if isinstance(part, str))
    if not tables:
        return _not_a_section(where, key, _header([key]))
    inside = _header(tables)
    fields = _fields(tables)
    if details["type"] == "extra_forbidden":
        return f"{where}: there is no key {key!r} in {inside}", _did_you_mean(key, tuple(fields), "keys")
    name = ".".join([*tables, key])
    allowed = (
        f"{name} is {fields[key].description}"
        if key in fields
        else f"{name}: {_fields(tables[:-1])[tables[-1]].description}"
    )
    if details["type"] == "missing":
        return f"{where}: {inside} has no {key!r}", allowed
    what = details["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{where}: {name} = {details['input']!r} {what}", allowed


def _header(tables: list[str]) -> str:
    """How the table is written in the file, or where it is to be found in one that is."""
    if tuple(tables) in _INNER_LISTS:
        return f"[[{'.'.join(tables)}]]"
    first = f"[[{tables[0]}]]" if tables[0] in _LISTS else f"[{tables[0]}]"
    return ".".join([first, *tables[1:]])


def _not_a_section(where: str, name: str, header: str) -> tuple[str, str]:
    if name in _LISTS:
        return f"{where}: {name!r} is a list of tables", f"write each as {header} with keys below"
    return f"{where}: {name!r} is a section, not a value", f"write it as {header} with keys below"


def _fields(tables: list[str]) -> dict[str, FieldInfo]:
    """The keys of a section, or of a table within one, as they are written in the file."""
    model: Any = _SECTIONS[tables[0]]
    for name in tables[1:]:
        model = _model_in(_by_name(model)[name].annotation)
    return _by_name(model) if model is not None else {}


def _by_name(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The table in `Table`, `Table | None` or `tuple[Table, ...]`."""
    if get_origin(annotation) in (tuple, Union, UnionType):
        return next(filter(None, map(_model_in, get_args(annotation))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _where(loc: _Path, file: Path | None, text: str) -> str:
    variable = _env_name(loc)
    return f"environment variable {variable}" if variable else f"{file}, line {line_of(text, _written(text, loc))}"


def _written(text: str, loc: _Path) -> _Path:
    """As much of a place as is in the file: a missing key is reported at the table that lacks it."""
    data = tomllib.loads(text)
    return next((loc[:size] for size in range(len(loc), 0, -1) if _has(data, loc[:size])), loc[:1])


def _env_name(loc: _Path) -> str | None:
    """The variable that sets this key or something below it, as it is spelled in the environment."""
    wanted = ENV_PREFIX + "__".join(map(str, loc)).upper()
    return next((name for name in os.environ if f"{name.upper()}__".startswith(f"{wanted}__")), None)


def _did_you_mean(name: str, known: tuple[str, ...], what: str) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"the {what} are: {', '.join(sorted(known))}"


def line_of(text: str, path: _Path) -> int:
    """The line where a key is set. It is the one after the longest readable beginning that does not have the key."""
    lines = text.splitlines()
    for count in range(len(lines), -1, -1):
        try:
            data: Any = tomllib.loads("\n".join(lines[:count]))
        except (ValueError, RecursionError):
            continue
        if not _has(data, path):
            return count + 1
    return 1


def _has(data: Any, path: _Path) -> bool:
    for part in path:
        if isinstance(part, int):
            if not isinstance(data, list) or part >= len(data):
                return False
        elif not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return True
