"""Which event goes to which URL: the event handlers of a hub.

    [[handler]]                                      # the first that takes an event gets it, and no other
    url = "https://app.example/hooks/{hub}/{event}"
    system_events = ["connect", "disconnected"]
    user_events = "*"                                # all of them; or one name; or names with commas between
    auth = "key"                                     # or "none"

Whoever can make a server call an address of his choice can call what lies behind its firewall. So scheme, host and port
stand in the configuration as they are, `{hub}` and `{event}` are filled in after them, as %XX where needed, and events
are only ever sent to what the configuration says at that moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import TypeVar
from urllib.parse import quote

from semel.errors import ConfigError, InputError
from semel.pubsub.protocol.names import check_event, check_hub

URL_CHARS_MAX = 2048
HOST_CHARS_MAX = 253
VALIDATE = "validate"
"""What stands for `{event}` when a handler is asked whether it wants events at all."""

_ORIGIN = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z_.-]+))(?::(?P<port>[0-9]{1,5}))?\Z")
_LABEL = re.compile(r"[0-9A-Za-z_](?:[0-9A-Za-z_-]{0,61}[0-9A-Za-z_])?\Z")
_URL = re.compile(r"(?P<endpoint>(?i:https?)://(?P<origin>[^/?#\\]*))(?P<rest>.*)\Z", re.DOTALL)
_REST = re.compile(r"(?:[/?](?:[0-9A-Za-z._~:/?@!$&'()*+,;={}-]|%[0-9A-Fa-f]{2})*)?\Z")
_PARAMETER = re.compile(r"\{([^{}]*)\}")
_PARAMETERS = ("hub", "event")
_SHAPE = "https://app.example/hooks/{hub}/{event}"


class SystemEvent(StrEnum):
    """What happens to a connection. `CONNECT` asks before it happens, the others tell of it."""

    CONNECT = "connect"
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    JOINED = "joined"
    LEFT = "left"


class Auth(StrEnum):
    """How a handler can tell who calls, besides the signature: not at all, or by a token under the server's key."""

    NONE = "none"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class EventHandler:
    """`user_events` None: it takes none. A name takes the event in any case, as it does at Microsoft."""

    url: str
    system_events: frozenset[SystemEvent] = frozenset()
    user_events: str | None = None
    auth: Auth = Auth.NONE

    def __post_init__(self) -> None:
        _check_url(self.url)
        names = _names(self.user_events)
        if not self.system_events and not names:
            raise ConfigError(
                f"the event handler {_shown(self.url)} takes no event",
                fix='name system_events, or user_events such as "*" or "message,join"',
            )

    def __repr__(self) -> str:
        events = sorted(self.system_events)
        return f"EventHandler({_shown(self.url)}, {events}, {self.user_events!r}, {self.auth})"

    @property
    def endpoint(self) -> str:
        """Scheme, host and port."""
        return _split(self.url)[0]

    def takes_user_event(self, name: str) -> bool:
        names = _names(self.user_events)
        return "*" in names or name.lower() in names

    def url_for(self, hub: str, event: str) -> str:
        values = {"hub": hub, "event": event}
        endpoint, rest = _split(self.url)
        return endpoint + _PARAMETER.sub(lambda found: quote(values[found[1].lower()], safe=""), rest)


def event_handler(
    url: str, system_events: Iterable[str] = (), user_events: str | None = None, auth: str = "none"
) -> EventHandler:
    """From plain text, as it stands in a configuration, in any case."""
    return EventHandler(
        url,
        frozenset(_one_of(SystemEvent, "system event", name) for name in system_events),
        user_events,
        _one_of(Auth, "auth", auth),
    )


@dataclass(frozen=True, slots=True)
class Handlers:
    """The event handlers of one hub, in order."""

    hub: str
    handlers: tuple[EventHandler, ...] = ()

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "hub", check_hub(self.hub))
        except InputError as error:
            raise ConfigError(error.message, fix=error.fix) from None

    def for_system_event(self, event: SystemEvent) -> EventHandler | None:
        return next((handler for handler in self.handlers if event in handler.system_events), None)

    def for_user_event(self, name: str) -> EventHandler | None:
        return next((handler for handler in self.handlers if handler.takes_user_event(name)), None)


# -- what a configuration may say

T = TypeVar("T", bound=StrEnum)


def _one_of(kind: type[T], what: str, name: str) -> T:
    try:
        return kind(name.strip().lower())
    except ValueError:
        raise ConfigError(f"{name[:64]!r} is no {what}", fix=f"use {', '.join(kind)}") from None


@lru_cache(maxsize=1024)
def _names(pattern: str | None) -> frozenset[str]:
    """The user events that a pattern takes, in small letters."""
    if pattern is None:
        return frozenset()
    names = [name.strip() for name in pattern.split(",")]
    for name in names:
        if name != "*":
            try:
                check_event(name)
            except InputError:
                raise ConfigError(
                    f"{name[:128]!r} in user_events is neither * nor the name of an event",
                    fix='use "*" for all events, or names with commas between, such as "message,join"',
                ) from None
    return frozenset(name.lower() for name in names)


def _shown(url: str) -> str:
    """What comes after a question mark may be a secret."""
    path, mark, _ = url.partition("?")
    return repr(path + (mark and "?…"))


def _split(url: str) -> tuple[str, str]:
    """Up to the host and its port, and what comes after."""
    found = _URL.match(url)
    assert found is not None
    return found["endpoint"], found["rest"]


def _check_url(url: str) -> None:
    if len(url) > URL_CHARS_MAX:
        raise ConfigError(
            f"the URL of an event handler has {len(url):,} characters, the limit is {URL_CHARS_MAX:,}",
            fix=f"write it like {_SHAPE}",
        )
    found = _URL.match(url)
    if found is None:
        raise ConfigError(f"{_shown(url)} does not begin with http:// or https://", fix=f"write it like {_SHAPE}")
    if "@" in found["origin"]:
        raise ConfigError(
            "the URL of an event handler has a user or a password in it", fix='leave them out, and use auth = "key"'
        )
    if set("{}") & set(found["origin"]):
        raise ConfigError(
            f"{_shown(url)} has a parameter in its host",
            fix="write the host out: {hub} and {event} may only come after it",
        )
    if not _is_origin(found["origin"]):
        raise ConfigError(
            f"{_shown(url)} has no host that can be called",
            fix="write a name in ASCII, an IPv4 address or [an IPv6 address], and a port from 1 to 65535 if needed",
        )
    if not _REST.match(found["rest"]):
        raise ConfigError(
            f"{_shown(url)} has characters that cannot be there",
            fix="write them as %XX, and leave out # with what follows",
        )
    _check_parameters(url)


def _is_origin(text: str) -> bool:
    """Whether every library reads the same host and the same port out of it."""
    found = _ORIGIN.match(text)
    if found is None or not 0 < int(found["port"] or 1) < 65536:
        return False
    try:
        if found["v6"] is not None:
            IPv6Address(found["v6"])
        elif re.match(r"[0-9.]+\Z", found["name"]):
            IPv4Address(found["name"])
        else:
            return len(found["name"]) <= HOST_CHARS_MAX and all(map(_LABEL.match, found["name"].split(".")))
    except AddressValueError:
        return False
    return True


def _check_parameters(url: str) -> None:
    for name in _PARAMETER.findall(url):
        if name.lower() not in _PARAMETERS:
            raise ConfigError(f"{{{name}}} in {_shown(url)} is no parameter", fix="use {hub} and {event}")
    if set("{}") & set(_PARAMETER.sub("", url)):
        raise ConfigError(f"{_shown(url)} has a brace that belongs to no parameter", fix="write { as %7B and } as %7D")
