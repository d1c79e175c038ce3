"""Services at addresses: what a listener must know of a service before it asks it.

A listener finds the mount of a request by its path as soon as the head has come, so the body is limited, and an error
answered, as the service wants it: also an error that the service never hears of.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from semel.auth.authority import Authority
from semel.errors import ConfigError, InputError
from semel.http import ErrorStyle, HttpRequest, HttpResponse, bad_request, text_error
from semel.routes import Routes
from semel.runtime.transports.websocket import SocketService

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
