"""One WebSocket of a client: opened, read, written and closed, on the library `websockets`.

An address carries an access token. It is never logged and never part of an error; the library would log it when
debugging, so it gets a logger that says nothing. Redirects are not followed: the token would go to whoever is named.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
    NegotiationError,
    WebSocketException,
)
from websockets.http11 import Response
from websockets.typing import Subprotocol as Offered

from semel.errors import AuthError, ConfigError, Forbidden, PeerUnavailable, RemoteProtocolError, SemelError
from semel.pubsub.client.events import Closed, Event, FrameReceived, OpenFailed, Recover, SocketOpened
from semel.pubsub.protocol.frames import Frame
from semel.pubsub.protocol.handshake import IN_ORDER

Url = str | Callable[[], str | Awaitable[str]]
"""The address of a hub with its access token, or a function that gives a fresh one for each new session."""

RESPONSE_BYTES_MAX = 8 * 1024 * 1024
"""A frame from the server is larger than what was sent: binary data becomes Base64 in JSON, and text is escaped."""

CLOSE_S = 2.0
"""How long a close may take before the connection is cut."""

REASON_BYTES_MAX = 500
FOR_A_TIME = frozenset({408, 425, 429, 500, 502, 503, 504})

_SILENT = logging.getLogger(f"{__name__}.silent")
_SILENT.disabled = True


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


@dataclass
class Dialer:
    """Knows where the hub is. `tls` None: certificates are verified against those that this machine trusts."""

    url: Url = field(repr=False)
    subprotocol: str
    tls: ssl.SSLContext | None = None
    _last: str = field(default="", repr=False)

    async def dial(self, recover: Recover | None) -> ClientConnection:
        """A connection that is open. Raises nothing but SemelError."""
        if recover is None:
            self._last = await self._fresh()
        more: dict[str, Any] = {"ssl": self.tls} if self.tls is not None else {}
        try:
            address = _address(self._last, recover)
            return await _Connect(
                address, subprotocols=[Offered(self.subprotocol)], compression=None, max_size=RESPONSE_BYTES_MAX,
                open_timeout=None, ping_interval=None, close_timeout=CLOSE_S, logger=_SILENT, **more,
            )  # fmt: skip
        except (OSError, WebSocketException, ValueError, EOFError, ImportError) as error:
            failure = error_of(error)
        raise failure  # out here it has no context, which may hold the address

    async def _fresh(self) -> str:
        try:
            return await self._call() if callable(self.url) else self.url
        except SemelError:
            raise
        except Exception as error:
            raise PeerUnavailable(
                f"the function that gives the address failed with {type(error).__name__}", fix="see the cause"
            ) from error

    async def _call(self) -> str:
        """One that may block does so on a thread of its own."""
        assert callable(self.url)
        if inspect.iscoroutinefunction(self.url):
            return str(await self.url())
        found = await asyncio.to_thread(self.url)
        return str(await found) if inspect.isawaitable(found) else str(found)


def _address(given: str, recover: Recover | None) -> str:
    """With the parameter that says that we send again in order what was not taken, unless it is there already: ours
    takes it only once, and servers that do not know it pass over it. The access token stays also for who comes back, as
    in Microsoft's clients: who keeps sessions does not look at it, a proxy may."""
    parts = urlsplit(given)
    names = {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    more = {} if IN_ORDER in names else {IN_ORDER: "true"}
    if recover is not None:
        more |= {"awps_connection_id": recover.connection_id, "awps_reconnection_token": recover.token}
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, urlencode(more))))))


def error_of(error: Exception) -> SemelError:
    """Why there is no connection, without the address."""
    match error:
        case InvalidStatus():
            return _refusal(error.response)
        case NegotiationError():
            return RemoteProtocolError("the server does not speak this subprotocol", fix="is this a hub's address?")
        case ssl.SSLCertVerificationError():
            return AuthError(
                f"the server's certificate is not trusted: {error.verify_message}",
                fix="use a server whose certificate this machine trusts, or pass an SSLContext as tls",
            )
        case InvalidProxy() | ImportError():
            return ConfigError("the proxy of this machine cannot be used", fix="correct HTTPS_PROXY, or set NO_PROXY")
        case InvalidURI() | ValueError():
            return ConfigError("that is not an address of a hub", fix="use wss://host/client/hubs/name?access_token=…")
        case OSError():
            return PeerUnavailable(f"no connection: {error.strerror or type(error).__name__}", fix="is it running?")
        case _:
            return PeerUnavailable("the server broke off the handshake", fix="is this the address of a hub?")


def _refusal(response: Response) -> SemelError:
    """With what the server says of it, if it says it in words."""
    status, words = response.status_code, ""
    if response.headers.get("content-type", "").startswith("text/plain"):
        words = (response.body or b"")[:REASON_BYTES_MAX].decode(errors="replace").strip()
    text = f"the server refuses the connection with HTTP {status}{': ' if words else ''}{words}"
    if status == 401:
        return AuthError(text, fix="use a fresh access token, made for this hub and this address")
    if status == 403:
        return Forbidden(text, fix="ask for a token that may connect to this hub")
    if status in FOR_A_TIME:
        return PeerUnavailable(text, fix="try again later")
    return RemoteProtocolError(text, fix="check the address: wss://host/client/hubs/name")


@dataclass(frozen=True, slots=True)
class _Close:
    code: int
    reason: str


class Socket:
    """`report` is called with what happens on it, up to its end. While `may_read` is clear nothing is read."""

    def __init__(
        self,
        number: int,
        dial: Callable[[], Awaitable[ClientConnection]],
        report: Callable[[Event], None],
        may_read: asyncio.Event,
    ) -> None:
        self._number, self._dial, self._report, self._may_read = number, dial, report, may_read
        self._outgoing: asyncio.Queue[Frame | asyncio.Future[None] | _Close] = asyncio.Queue()
        self._is_open = False
        self.connection: ClientConnection | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    def send(self, frame: Frame) -> None:
        self._outgoing.put_nowait(frame)

    def wait_for(self, done: asyncio.Future[None]) -> None:
        """What is sent from now on goes out after this, and not at all if it fails."""
        self._outgoing.put_nowait(done)

    def close(self, code: int, reason: str) -> None:
        """After what was sent. One that is only being opened is given up."""
        if not self._is_open:
            self.task.cancel()
            return
        self._outgoing.put_nowait(_Close(code, reason))
        timer = asyncio.get_running_loop().call_later(CLOSE_S, self.task.cancel)
        self.task.add_done_callback(lambda task: timer.cancel())

    async def _run(self) -> None:
        try:
            self.connection = await self._dial()
        except SemelError as error:
            self._report(OpenFailed(self._number, error))
            return
        self._is_open = True
        writer = asyncio.get_running_loop().create_task(self._write(self.connection))
        try:
            self._report(SocketOpened(self._number, self.connection.subprotocol))
            await self._read(self.connection)
        finally:
            writer.cancel()
            self.connection.transport.abort()

    async def _read(self, connection: ClientConnection) -> None:
        try:
            while True:
                await self._may_read.wait()
                self._report(FrameReceived(self._number, await connection.recv()))
        except ConnectionClosed as closed:
            frame = closed.rcvd
            self._report(Closed(self._number, frame.code if frame else None, frame.reason if frame else ""))

    async def _write(self, connection: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                match await self._outgoing.get():
                    case _Close(code=code, reason=reason):
                        await connection.close(code, reason)
                        return
                    case asyncio.Future() as done:
                        await asyncio.shield(done)  # others may wait for it too
                    case frame:
                        await connection.send(frame)
