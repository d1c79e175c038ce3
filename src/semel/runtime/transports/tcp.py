"""Messages between processes over TCP. See `frames` for what goes over the wire.

A peer is known by its name, which it proves with the shared secret; a newer connection of the same name replaces the
older one, so a process that comes back is received at once. Messages are dropped when there is no connection or when
the peer does not take them: the resend machine sends them again.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import random
import secrets
import socket
import ssl
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from semel.errors import AuthError, ConfigError, LimitExceeded, RemoteProtocolError, SemelError
from semel.kernel.envelope import FRAME_BYTES_MAX
from semel.kernel.hop import Wire
from semel.kernel.retry import RetryPolicy
from semel.kernel.text import check_id
from semel.pipes.workers.route import Parcel
from semel.runtime.transports.base import Inbox
from semel.runtime.transports.frames import (
    HEADER_BYTES,
    NONCE_BYTES,
    VERSION,
    Challenge,
    FrameBuffer,
    Greeting,
    Hello,
    Refusal,
    Welcome,
    decode,
    decode_greeting,
    encode,
    prove,
)

log = logging.getLogger(__name__)

G = TypeVar("G", bound=Greeting)

READ_BYTES = 64 * 1024
CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class TcpLimits:
    """`stall_s` is how long a peer may take nothing from a full buffer before its connection is closed."""

    frame_bytes: int = FRAME_BYTES_MAX
    greeting_bytes: int = 4096
    handshake_s: float = 5.0
    connections: int = 256
    buffer_bytes: int = 4 * 1024 * 1024
    stall_s: float = 15.0
    retry: RetryPolicy = field(
        default_factory=lambda: RetryPolicy(interval_s=0.05, factor=2.0, interval_max_s=5.0, jitter=0.5)
    )


@dataclass(slots=True, eq=False)
class _Connection:
    peer: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gathered: list[bytes] = field(default_factory=list)
    gathered_bytes: int = 0
    full_since: float | None = None


class TcpTransport:
    """`name` is how peers know this process. Without a `secret` anybody who can connect is believed, so leaving it out
    takes an explicit `insecure=True`. On networks that others can read, pass TLS contexts as well."""

    def __init__(
        self,
        name: str,
        *,
        secret: bytes | None = None,
        insecure: bool = False,
        limits: TcpLimits | None = None,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        if not secret and not insecure:
            raise ConfigError(
                "a TCP transport needs a secret that its peers know",
                fix="pass secret=, or insecure=True on a test bench",
            )
        self.name = check_id("name", name)
        self.limits = limits or TcpLimits()
        self.dropped = 0
        self._secret = secret
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._inbox: Inbox | None = None
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted = 0
        self._connections: dict[str, _Connection] = {}
        self._gathering: set[_Connection] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._closing = False

    def bind(self, inbox: Inbox) -> None:
        self._inbox = inbox

    @property
    def peers(self) -> list[str]:
        """Who is connected now."""
        return list(self._connections)

    # -- connecting

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Accept connections; returns the port, which the system chooses when `port` is 0."""
        if self._secret is None and not is_loopback(host):
            raise ConfigError(f"listening on {host} without a secret lets anybody in", fix="pass secret=")
        try:
            server = await asyncio.start_server(self._accept, host, port, ssl=self._server_tls)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", fix="choose another port") from None
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def dial(self, peer: str, host: str, port: int) -> None:
        """Stay connected to a peer: again and again, with growing pauses, until the transport is closed."""
        self._track(self._keep_dialling(peer, host, port))

    def _track(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._track(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted += 1
        try:
            async with asyncio.timeout(self.limits.handshake_s):
                peer = await self._welcome(reader, writer)
            await self._speak(_Connection(peer, reader, writer))
        except (OSError, EOFError, TimeoutError, SemelError) as error:
            log.warning("%s: connection from %s ended: %s", self.name, _address(writer), _words(error))
        finally:
            self._accepted -= 1
            writer.close()

    async def _keep_dialling(self, peer: str, host: str, port: int) -> None:
        attempt = 0
        while not self._closing:
            attempt += 1
            try:
                connection = await self._connect(peer, host, port)
                attempt = 0
                await self._speak(connection)
            except (OSError, EOFError, TimeoutError, SemelError) as error:
                log.log(
                    logging.WARNING if attempt <= 1 else logging.DEBUG,
                    "%s: connection to %s at %s:%d ended: %s", self.name, peer, host, port, _words(error),
                )  # fmt: skip
            await asyncio.sleep(self.limits.retry.wait_s(max(1, attempt), random.random()))

    async def _connect(self, peer: str, host: str, port: int) -> _Connection:
        async with asyncio.timeout(self.limits.handshake_s):
            reader, writer = await asyncio.open_connection(host, port, ssl=self._client_tls)
            try:
                await self._introduce(peer, reader, writer)
            except BaseException:
                writer.close()
                raise
        return _Connection(peer, reader, writer)

    # -- shaking hands

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """The listener's side. Returns the name of the peer, or says why not and raises."""
        if self._accepted > self.limits.connections:
            raise self._refuse(writer, LimitExceeded("too many connections", fix="raise limits.connections"))
        challenge = Challenge(VERSION, self.name, secrets.token_bytes(NONCE_BYTES))
        writer.write(encode(challenge))
        hello = await self._greeting(reader, Hello)
        if hello.version != VERSION:
            reason = f"version {hello.version} is not {VERSION}"
            raise self._refuse(writer, RemoteProtocolError(reason, fix="run the same Semel on both sides"))
        check_id("name", hello.name)
        if self._secret is not None and not hmac.compare_digest(hello.proof, self._proof("dialler", challenge, hello)):
            raise self._refuse(writer, AuthError("the secret is another one", fix="give both sides the same secret"))
        writer.write(encode(Welcome(self._proof("listener", challenge, hello))))
        return hello.name

    async def _introduce(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The dialler's side. Raises when the other is not who it should be, or does not want us."""
        challenge = await self._greeting(reader, Challenge)
        if challenge.version != VERSION:
            raise RemoteProtocolError(
                f"version {challenge.version} is not {VERSION}", fix="run the same Semel on both sides"
            )
        if challenge.name != peer:
            raise RemoteProtocolError(f"{challenge.name} answers in place of {peer}", fix="correct the address")
        hello = Hello(VERSION, self.name, secrets.token_bytes(NONCE_BYTES), b"")
        hello = msgspec.structs.replace(hello, proof=self._proof("dialler", challenge, hello))
        writer.write(encode(hello))
        welcome = await self._greeting(reader, Welcome)
        if self._secret is not None and not hmac.compare_digest(
            welcome.proof, self._proof("listener", challenge, hello)
        ):
            raise AuthError(f"{peer} does not know the secret", fix="give both sides the same secret")

    def _proof(self, role: str, challenge: Challenge, hello: Hello) -> bytes:
        return b"" if self._secret is None else prove(self._secret, role, challenge, hello.name, hello.nonce)

    async def _greeting(self, reader: asyncio.StreamReader, kind: type[G]) -> G:
        size = int.from_bytes(await reader.readexactly(HEADER_BYTES), "big")
        if size > self.limits.greeting_bytes:
            raise LimitExceeded(f"greeting of {size:,} bytes", fix="check that the peer speaks Semel's frames")
        greeting = decode_greeting(await reader.readexactly(size))
        if isinstance(greeting, Refusal):
            raise RemoteProtocolError(f"refused: {greeting.reason}", fix="see the log of the peer")
        if not isinstance(greeting, kind):
            raise RemoteProtocolError(f"a {type(greeting).__name__} came in place of a {kind.__name__}", fix="")
        return greeting

    @staticmethod
    def _refuse(writer: asyncio.StreamWriter, error: SemelError) -> SemelError:
        writer.write(encode(Refusal(error.message)))
        return error

    # -- speaking

    async def _speak(self, connection: _Connection) -> None:
        _watch_for_silence(connection.writer, self.limits.stall_s)
        self._begin(connection)
        try:
            await self._read(connection)
        finally:
            self._end(connection)

    def _begin(self, connection: _Connection) -> None:
        older = self._connections.get(connection.peer)
        if older is not None:
            self._end(older)
        self._connections[connection.peer] = connection
        log.info("%s: connected to %s", self.name, connection.peer)
        if self._inbox is not None:
            self._inbox.connected(self, connection.peer)

    def _end(self, connection: _Connection) -> None:
        connection.writer.close()
        self._gathering.discard(connection)
        if self._connections.get(connection.peer) is not connection:
            return
        del self._connections[connection.peer]
        if self._inbox is not None and not self._closing:
            self._inbox.disconnected(self, connection.peer)

    async def _read(self, connection: _Connection) -> None:
        """Until the peer ends the connection, or breaks the rules."""
        inbox = self._inbox
        assert inbox is not None, "bind comes before connections"
        frames = FrameBuffer(self.limits.frame_bytes)
        while data := await connection.reader.read(READ_BYTES):
            for payload in frames.feed(data):
                message = decode(payload)
                if inbox.is_full:
                    await inbox.room()
                await self._flowing.wait()
                inbox.received(self, connection.peer, message)

    def send(self, peer: str, message: Wire | Parcel) -> bool:
        connection = self._connections.get(peer)
        if connection is None or connection.writer.is_closing():
            self.dropped += 1
            return False
        frame = encode(message)
        buffered = connection.writer.transport.get_write_buffer_size() + connection.gathered_bytes
        if buffered + len(frame) > self.limits.buffer_bytes:
            self._overflow(connection)
            return False
        connection.full_since = None
        connection.gathered.append(frame)
        connection.gathered_bytes += len(frame)
        self._gathering.add(connection)
        return True

    def _overflow(self, connection: _Connection) -> None:
        self.dropped += 1
        now = asyncio.get_running_loop().time()
        if connection.full_since is None:
            connection.full_since = now
        elif now - connection.full_since > self.limits.stall_s:
            log.warning("%s: %s takes nothing for %s s", self.name, connection.peer, self.limits.stall_s)
            connection.writer.transport.abort()

    def flush(self) -> None:
        for connection in self._gathering:
            connection.writer.write(b"".join(connection.gathered))
            connection.gathered.clear()
            connection.gathered_bytes = 0
        self._gathering.clear()

    # -- ending

    def pause(self) -> None:
        self._flowing.clear()

    async def close(self) -> None:
        """Write out what is buffered, as far as peers take it within a second, and end every connection."""
        self._closing = True
        self.flush()
        for server in self._servers:
            server.close()
        await self._end_connections()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_connections(self) -> None:
        writers = [connection.writer for connection in self._connections.values()]
        for writer in writers:
            writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
        for writer in writers:
            writer.transport.abort()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _watch_for_silence(writer: asyncio.StreamWriter, silence_s: float) -> None:
    """Have the system end a connection whose other end has gone silently."""
    end = writer.get_extra_info("socket")
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))


def _address(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if name else "an unknown address"


def _words(error: Exception) -> str:
    if isinstance(error, SemelError):
        return error.message
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, EOFError):
        return "the other side hung up"
    return str(error) or type(error).__name__
