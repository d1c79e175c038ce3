"""The listener of a server: WebSocket and HTTP on one port, with or without TLS, for the services that are mounted.

Every connection begins as HTTP. A request to upgrade becomes a WebSocket where the service at its path has sockets and
accepts it; everything else is a call with an answer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus

from semel.errors import ConfigError, LocalProtocolError
from semel.http import ErrorStyle, HttpError, HttpRequest, HttpResponse, nothing_here, text_error, unavailable
from semel.runtime.server.connection import HttpConnection
from semel.runtime.server.limits import ListenerLimits, Rate, is_loopback, source_of
from semel.runtime.server.part import Mount, Mounts
from semel.runtime.transports.websocket import (
    Accept,
    SocketService,
    WebSocketPeer,
    accept_head,
    check_upgrade,
    subprotocols,
)

log = logging.getLogger(__name__)

SWEEP_SLICE = 1_000
BACKLOG = 2_048
WARN_S = 10.0
NOBODYS_BYTES = 64 * 1024
"""The largest body of a request that is for no service."""


class Listener:
    """`errors` is the style of answers to what cannot be read or is for no service. `responded` gets the status of
    each answer."""

    def __init__(
        self,
        mounts: Iterable[Mount],
        *,
        limits: ListenerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        errors: ErrorStyle = text_error,
        responded: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.limits = limits or ListenerLimits()
        self.errors, self.responded = errors, responded
        self.scheme = "http" if tls is None else "https"
        self.port = 0
        self.is_stopping = False
        self._mounts = Mounts(mounts, Mount("/", _nothing, body_bytes=NOBODYS_BYTES, errors=errors))
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._connections: set[HttpConnection | WebSocketPeer] = set()
        self._addresses: Counter[str] = Counter()
        self._connection_rate = Rate(self.limits.connection_rate)
        self._request_rate = Rate(self.limits.request_rate)
        self._warned_at = float("-inf")
        self._bodies_bytes = 0
        self._gathering: list[WebSocketPeer] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def peers(self) -> list[WebSocketPeer]:
        """The WebSockets that are open now."""
        return [connection for connection in self._connections if isinstance(connection, WebSocketPeer)]

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Open the listener; returns the port, which the system chooses when `port` is 0."""
        self._loop = asyncio.get_running_loop()
        tls_wait_s = None if self._tls is None else self.limits.head_s
        try:
            server = await self._loop.create_server(
                lambda: HttpConnection(self),
                host,
                port,
                ssl=self._tls,
                ssl_handshake_timeout=tls_wait_s,
                backlog=BACKLOG,
            )
        except OSError as error:
            raise _cannot_listen(host, port, error) from None
        self._servers.append(server)
        if self._sweeping is None:
            self._sweeping = self._loop.create_task(self._sweep())
        self.port = int(server.sockets[0].getsockname()[1])
        return self.port

    async def stop(self, within_s: float | None = None) -> None:
        """Let nobody in, answer the calls under way, close all WebSockets with 1001, and cut off who takes longer than
        that, or `stop_s`."""
        self.is_stopping = True
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.stop()
        if not await self._is_empty_within(self.limits.stop_s if within_s is None else within_s):
            for connection in list(self._connections):
                connection.abort()
            await self._is_empty_within(self.limits.close_s)
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])

    async def _is_empty_within(self, wait_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), wait_s)
        return not self._connections

    # -- what connections ask

    def enter(self, connection: HttpConnection) -> HttpError | None:
        self._count(connection)
        if self.is_stopping or len(self._connections) > self.limits.connections:
            return unavailable("no more connections now")
        source = source_of(connection.address)
        if self._addresses[source] > self.limits.connections_per_address:
            return _too_many("too many connections from here", 1)
        return self._too_often(self._connection_rate, source, "connections")

    def _too_often(self, rate: Rate, source: str, what: str) -> HttpError | None:
        """A refusal, if it comes too fast from there."""
        if is_loopback(source):
            return None
        wait_s = rate.wait_s(source, self._clock())
        if not wait_s:
            return None
        self._warn(source, what)
        return _too_many(f"too many {what} in this time", math.ceil(wait_s))

    def _warn(self, source: str, what: str) -> None:
        """A flood of requests is none of words in the log."""
        now = self._clock()
        if now - self._warned_at >= WARN_S:
            self._warned_at = now
            log.warning("%s from %s come too fast and are refused with 429, perhaps from others as well", what, source)

    def _count(self, connection: HttpConnection | WebSocketPeer) -> None:
        self._connections.add(connection)
        self._addresses[source_of(connection.address)] += 1
        self._empty.clear()

    def leave(self, connection: HttpConnection | WebSocketPeer) -> None:
        self._connections.discard(connection)
        if isinstance(connection, HttpConnection):
            self.drop(connection.kept_bytes)
            connection.kept_bytes = 0
        source = source_of(connection.address)
        self._addresses[source] -= 1
        if not self._addresses[source]:
            del self._addresses[source]
        if not self._connections:
            self._empty.set()

    def has_room_for(self, size: int) -> bool:
        if self._bodies_bytes + size > self.limits.bodies_bytes:
            return False
        self._bodies_bytes += size
        return True

    def drop(self, size: int) -> None:
        self._bodies_bytes -= size

    def find(self, path: str) -> Mount:
        return self._mounts.find(path)

    async def handle(self, request: HttpRequest, mount: Mount) -> HttpResponse:
        self._check_rate(request)
        return await mount.handle(request)

    def _check_rate(self, request: HttpRequest) -> None:
        refusal = self._too_often(self._request_rate, source_of(request.address), "requests")
        if refusal is not None:
            raise refusal

    async def upgrade(self, request: HttpRequest, mount: Mount, connection: HttpConnection) -> HttpResponse | None:
        assert mount.sockets is not None
        self._check_rate(request)
        refusal = check_upgrade(request)
        if refusal is not None:
            return refusal
        try:
            async with asyncio.timeout(self.limits.upgrade_s):
                answer = await mount.sockets.upgrade(request)
        except TimeoutError:
            raise unavailable("no answer in time") from None
        if isinstance(answer, HttpResponse):
            return answer
        if self.is_stopping or connection.is_gone:
            raise unavailable("the server is stopping")
        self._open(request, mount.sockets, answer, connection)
        return None

    def _open(self, request: HttpRequest, service: SocketService, accept: Accept, connection: HttpConnection) -> None:
        if accept.subprotocol is not None and accept.subprotocol not in subprotocols(request):
            raise LocalProtocolError(
                f"{accept.subprotocol} was not offered", fix="choose one of `subprotocols(request)`"
            )
        peer = WebSocketPeer(self, service, connection.transport, accept, connection.address)
        self._count(peer)
        head = accept_head(request, accept.subprotocol)
        peer.begin(head, connection.hand_over(peer), accept.waits)

    def gather(self, peer: WebSocketPeer) -> None:
        if not self._gathering:
            self._loop.call_soon(self._flush)
        self._gathering.append(peer)

    def _flush(self) -> None:
        gathering, self._gathering = self._gathering, []
        for peer in gathering:
            try:
                peer.flush()
            except Exception:
                log.exception("%r: what was written did not go out", peer)
                peer.abort("the server failed")

    async def _sweep(self) -> None:
        """Look after deadlines and silence, a part of the connections at a time."""
        while True:
            await asyncio.sleep(self.limits.sweep_s)
            for number, connection in enumerate(list(self._connections), start=1):
                try:
                    connection.check(self._loop.time())
                except Exception:
                    log.exception("%r cannot be looked after", connection)
                    connection.abort()
                if number % SWEEP_SLICE == 0:
                    await asyncio.sleep(0)


async def _nothing(request: HttpRequest) -> HttpResponse:
    raise nothing_here()


def _too_many(message: str, after_s: int) -> HttpError:
    again = (("retry-after", str(after_s)),)
    return HttpError(HTTPStatus.TOO_MANY_REQUESTS, "Error.TooManyRequests", message, headers=again)


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    why, fix = _REFUSED.get(error.errno or 0, (str(error.strerror), "choose another --host or --port"))
    return ConfigError(f"cannot listen on {host}:{port}: {why}", fix=fix)


_REFUSED = {
    errno.EADDRINUSE: (
        "something else does",
        "stop that, or choose another port with --port; 0 takes any that is free",
    ),
    errno.EADDRNOTAVAIL: ("this machine has no such address", "choose another --host; 0.0.0.0 is every address it has"),
    errno.EACCES: ("this user may not", "choose a --port of 1024 or above"),
}
