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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.metrics_core import Metric

from semel.auth.authority import Authority
from semel.auth.keys import AccessKeys
from semel.http import ErrorStyle, text_error
from semel.runtime.host.performer import Performer
from semel.runtime.server.limits import ListenerLimits
from semel.runtime.server.mounts import Mount


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
