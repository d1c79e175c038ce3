"""A part of Semel that a server runs: what it serves, and what it says of itself when operators ask.

    class Greeting(Part):
        name = "greeting"

        def __init__(self, context: ServerContext) -> None:
            routes = [Route("GET", "/v1/greeting/{name}", self._greet, role=READ)]
            self.mounts = (Mount("/v1/greeting/", Routed(routes, context.authority), errors=json_error),)

Given to `serving`, it is served, is asked for its health and its metrics, and stands in the overview.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prometheus_client.metrics_core import Metric

from semel.auth.authority import Authority
from semel.auth.keys import AccessKeys
from semel.errors import ConfigError, InputError
from semel.http import ErrorStyle, HttpRequest, HttpResponse, Routes, bad_request, text_error
from semel.runtime.host.performer import Performer
from semel.runtime.server.limits import ListenerLimits
from semel.runtime.transports.websocket import SocketService

# -- services at addresses

# A listener finds the mount of a request by its path as soon as the head has come, so the body is limited, and an error
# answered, as the service wants it: also an error that the service never sees.

Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


@dataclass(frozen=True, slots=True)
class Mount:
    """A service at `prefix`, which begins and ends with a slash: `/v1/` is for `/v1` and all that is below it.

    `handle` may raise `HttpError`, which is answered in the style of `errors`; anything else becomes a 500 in that
    style. `body_bytes` is the largest body, None what the listener allows. With `streams` the service reads bodies
    while they come, from `request.stream`, and is asked as soon as the head is there. `sockets` get the WebSockets that
    begin here; without them an upgrade is answered like any other request.
    """

    prefix: str
    handle: Handler
    body_bytes: int | None = None
    streams: bool = False
    errors: ErrorStyle = text_error
    sockets: SocketService | None = None

    def __post_init__(self) -> None:
        if not (self.prefix.startswith("/") and self.prefix.endswith("/")):
            raise ConfigError(f"the prefix {self.prefix!r} is no place", fix="begin and end it with a slash")


class Mounts:
    """Where several prefixes fit, the longest is meant. `otherwise` is for paths that belong to nobody."""

    def __init__(self, mounts: Iterable[Mount], otherwise: Mount) -> None:
        found = sorted(mounts, key=lambda mount: -len(mount.prefix))
        self._otherwise = otherwise
        self._by_word: dict[str, list[Mount]] = {}
        """By the first word of the path. A mount at the root fits every one."""
        for word in {_first_word(mount.prefix) for mount in found}:
            self._by_word[word] = [mount for mount in found if _first_word(mount.prefix) in (word, "")]
        self._at_root = self._by_word.get("", [])
        prefixes = [mount.prefix for mount in found]
        for prefix in prefixes:
            if prefixes.count(prefix) > 1:
                raise ConfigError(f"two services want {prefix}", fix="give one of them another prefix")

    def find(self, path: str) -> Mount:
        path += "/"
        for mount in self._by_word.get(_first_word(path), self._at_root):
            if path.startswith(mount.prefix):
                return mount
        return self._otherwise


def _first_word(path: str) -> str:
    return path[1 : path.find("/", 1)]


RouteHandler = Callable[[HttpRequest, dict[str, str]], Awaitable[HttpResponse]]


class Route(NamedTuple):
    """`handle` gets the request and the names in its path. `role` is what a token must allow, with those names filled
    in, such as `semel.send:inbox/{endpoint}`; None: open to all."""

    method: str
    pattern: str
    handle: RouteHandler
    role: str | None


class Routed:
    """A handler out of routes: each is for who has its role."""

    def __init__(
        self, routes: Sequence[Route], authority: Authority, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._routes = Routes((route.method, route.pattern, route) for route in routes)
        self._authority, self._clock = authority, clock

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        route, names = self._routes.find(request.method, request.path)
        if route.role is not None:
            self._authority.check(request, route.role.format_map(names), self._clock())
        try:
            return await route.handle(request, names)
        except InputError as error:
            raise bad_request(error.message, fix=error.fix) from None


# -- parts


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`endpoints` are other addresses under which people know this server. `node` is its name in the store. With
    `open_metrics` everybody may read the metrics. Port 0 is any that is free."""

    keys: AccessKeys
    endpoints: tuple[str, ...] = ()
    node: str = "local"
    open_metrics: bool = False
    host: str = "127.0.0.1"
    port: int = 8080
    tls: ssl.SSLContext | None = None
    limits: ListenerLimits = field(default_factory=ListenerLimits)


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What a server gives its parts. The performer and its store belong to the server."""

    performer: Performer
    settings: ServerSettings
    clock: Callable[[], float] = time.time
    random: Callable[[int], bytes] = os.urandom

    @property
    def authority(self) -> Authority:
        return Authority(self.settings.keys, self.settings.endpoints)


@dataclass(frozen=True, slots=True)
class Health:
    """`problem` is what is wrong and what to do, in words for everybody: without names of files, hosts or databases.
    Empty: nothing is."""

    problem: str = ""
    is_ended_by_restart: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class OwnListener:
    """A port for some services alone, with a certificate, limits and an error style of its own: `errors` also answers
    what cannot be read and what is for no service."""

    name: str
    host: str
    port: int
    mounts: Sequence[Mount]
    tls: ssl.SSLContext | None = None
    limits: ListenerLimits = field(default_factory=ListenerLimits)
    errors: ErrorStyle = text_error


class Part:
    """What a part does not say of itself is as here: well, and nothing."""

    name: str
    mounts: Sequence[Mount] = ()
    """Its services on the listener of the server."""
    listeners: Sequence[OwnListener] = ()
    """Services that are not on the listener of the server."""
    topics: Sequence[str] = ()
    """What its machines report by `Notify`."""

    def health(self) -> Health:
        """What is known now."""
        return Health()

    async def ready(self) -> Health:
        """Whether it can serve, if need be after a look. It may take two seconds at most."""
        return self.health()

    def metrics(self) -> Iterable[Metric]:
        return ()

    async def overview(self) -> Mapping[str, Any]:
        """What is there, in a few figures that JSON can hold."""
        return {}

    async def run(self) -> None:
        """What it does while the server serves, until it is cancelled."""

    def stop(self) -> None:
        """The server is about to stop: nobody who waits for an answer is kept waiting from now on."""


PartFactory = Callable[[ServerContext], Part]
