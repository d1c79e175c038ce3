"""HTTP/1.1 on a connection, as far as a server of calls needs it.

httptools reads the heads and the chunks. What is here is the rest: limits on what a client may send and for how long,
one answer after the other however many requests come at once, bodies that are handed on while they come, and the moment
at which a connection becomes a WebSocket.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import httptools

from semel.errors import LocalProtocolError
from semel.http import ClientCertificate, ErrorStyle, HttpError, HttpRequest, HttpResponse, status_error
from semel.runtime.server.body_reader import BodyReader
from semel.runtime.server.limits import ListenerLimits
from semel.runtime.server.part import Mount
from semel.runtime.server.responses import check_response, encode_response, has_body, length_of

log = logging.getLogger(__name__)

SLICE_BYTES = 16 * 1024
"""How much is parsed at once, so that the requests of one read do not all become objects before one is answered."""
PIPELINED_MAX = 32
HELD_BYTES_MAX = 256 * 1024
"""How much of a body may wait for a service that reads it as it comes; then the client has to wait."""
HELD_BYTES_LOW = 64 * 1024
STEP_BYTES = 64 * 1024
"""As often as so much of a streamed body has come, the client has `body_s` again for the next."""
_NEVER = float("inf")


class _Call(NamedTuple):
    """`body` is there if the service reads it while it comes."""

    request: HttpRequest
    mount: Mount
    version: str
    keep_alive: bool
    is_socket: bool
    body: BodyReader | None = None


class HttpHost(Protocol):
    """What a connection asks of the server that it belongs to."""

    limits: ListenerLimits
    scheme: str
    errors: ErrorStyle
    """The style of errors for requests that cannot be matched to a service."""

    @property
    def is_stopping(self) -> bool: ...

    def enter(self, connection: HttpConnection) -> HttpError | None:
        """An error is a refusal: the connection says it and closes."""
        ...

    def leave(self, connection: HttpConnection) -> None: ...

    def has_room_for(self, size: int) -> bool:
        """Whether so much more of a body may be kept. What may counts, until the connection says that it is gone."""
        ...

    def drop(self, size: int) -> None: ...

    def find(self, path: str) -> Mount: ...

    async def handle(self, request: HttpRequest, mount: Mount) -> HttpResponse: ...

    async def upgrade(self, request: HttpRequest, mount: Mount, connection: HttpConnection) -> HttpResponse | None:
        """None: the connection is a WebSocket now and belongs to somebody else."""
        ...

    def responded(self, status: int) -> None: ...


class HttpConnection(asyncio.Protocol):
    """One client. Requests are answered one at a time and in order."""

    def __init__(self, host: HttpHost) -> None:
        self.address = ""
        self.certificate: ClientCertificate | None = None
        self.transport: asyncio.Transport
        self._host = host
        self._limits = host.limits
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._unread = b""
        self._waiting: deque[_Call] = deque()
        self._work: asyncio.Task[None] | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._deadline = self._loop.time() + self._limits.head_s
        self._last_answer: HttpResponse | None = None
        """What remains to be written before the connection is closed, once all requests before it are answered."""
        self.is_gone = False
        self.kept_bytes = 0
        """How many bytes of bodies are held."""
        self._is_paused = self._is_upgrading = self._ignores_input = self._is_closing = self._is_eof = False
        self._refusal = status_error(HTTPStatus.BAD_REQUEST)
        self._begin()
        self._is_reading = False

    def _begin(self) -> None:
        self._is_reading = self._in_head = True
        self._head_bytes = self._fed_bytes = self._headers_seen = 0
        self._target = b""
        self._headers: dict[str, str] = {}
        self._mount: Mount | None = None
        self._body = bytearray()
        self._body_bytes = self._stepped_bytes = 0
        self._reader: BodyReader | None = None

    # -- what the loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        self.address = str(name[0]) if isinstance(name, tuple) else ""
        self.certificate = _certificate(transport)
        refusal = self._host.enter(self)
        if refusal is not None:
            self._end(self._host.errors(refusal))

    def connection_lost(self, exc: Exception | None) -> None:
        """A call that is under way is left to its end: what it does, it does whole."""
        self.is_gone = self._ignores_input = True
        self._waiting.clear()
        self._has_room.set()
        if self._reader is not None:
            self._reader.fail(ConnectionResetError("the client has gone"))
        if self._work is None or self._work.done():
            self._host.leave(self)

    def data_received(self, data: bytes) -> None:
        if self._is_upgrading or not self._ignores_input:
            self._unread += data
            self._parse()

    def eof_received(self) -> bool:
        """A client that has sent all may still be waiting for the answer. TLS knows no such half."""
        self._is_eof = self._ignores_input = True
        if self._reader is not None:
            self._reader.fail(status_error(HTTPStatus.BAD_REQUEST))
        if self._work is not None and self._host.scheme == "http":
            return True
        self._is_closing = True
        self._deadline = self._loop.time() + self._limits.close_s
        return False

    def pause_writing(self) -> None:
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._has_room.set()

    # -- what the server says

    def check(self, now: float) -> None:
        """Called now and then: is it late?"""
        if now < self._deadline:
            return
        if self._is_closing or not self._has_room.is_set():
            self.abort()
        else:
            self._leave(HTTPStatus.REQUEST_TIMEOUT)

    def stop(self) -> None:
        """Answer what is under way, and then close."""
        if self._work is None and not self._is_closing:
            self._leave(HTTPStatus.SERVICE_UNAVAILABLE)

    def abort(self) -> None:
        if self._work is not None:
            self._work.cancel()
        self.transport.abort()

    def hand_over(self, protocol: asyncio.Protocol) -> bytes:
        """Another protocol has the transport from now on. Returns what has come for it already."""
        self._host.leave(self)
        self.transport.set_protocol(protocol)
        return self._unread

    # -- reading

    def _parse(self) -> None:
        while (
            self._unread and len(self._waiting) < PIPELINED_MAX and not self._ignores_input and not self._is_body_full
        ):
            part, self._unread = self._unread[:SLICE_BYTES], self._unread[SLICE_BYTES:]
            self._feed(part)
        self._steer(is_paused=self._is_upgrading or len(self._waiting) > 1 or self._is_body_full)

    @property
    def _is_body_full(self) -> bool:
        return self._reader is not None and self._reader.held_bytes > HELD_BYTES_MAX

    def _steer(self, *, is_paused: bool) -> None:
        """While requests are waiting, no further ones are read."""
        if is_paused == self._is_paused or self.is_gone:
            return
        self._is_paused = is_paused
        if is_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _feed(self, part: bytes) -> None:
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade as upgrade:
            # What follows is in another protocol. It stays in the socket until it is clear who reads it.
            self._unread = part[upgrade.args[0] :] + self._unread
            self._ignores_input = self._is_upgrading = True
        except httptools.HttpParserError:
            self._fail(self._refusal)
        else:
            if self._in_head:
                self._fed_bytes += len(part)
                if self._fed_bytes > self._limits.head_bytes + SLICE_BYTES:
                    self._fail(status_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def _fail(self, error: HttpError) -> None:
        """The request that is being read cannot be read on. Whoever reads its body gets the error and answers;
        otherwise it is answered here, in the style of the service if the head says for whom it was."""
        if self._reader is not None:
            self._ignores_input = True
            self._deadline = _NEVER
            self._reader.fail(error)
        else:
            errors = self._host.errors if self._mount is None else self._mount.errors
            self._end(errors(error))

    def _refuse(self, error: HttpError) -> None:
        self._refusal = error
        raise ValueError(error.message)

    # The parser calls these. What they raise ends the parsing.

    def on_message_begin(self) -> None:
        self._begin()
        if self._work is None:
            self._deadline = self._loop.time() + self._limits.head_s

    def on_url(self, part: bytes) -> None:
        self._count(len(part))
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        self._headers_seen += 1
        if self._headers_seen > self._limits.headers:
            self._refuse(status_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        if not self._in_head:
            return  # a trailer: nobody here wants one
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if key not in self._headers:
            self._headers[key] = text
        elif key == "host":
            self._refuse(status_error(HTTPStatus.BAD_REQUEST))
        else:
            self._headers[key] += ("; " if key == "cookie" else ", ") + text

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes:
            self._refuse(status_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._fed_bytes = 0
        if "host" not in self._headers and self._parser.get_http_version() == "1.1":
            self._refuse(status_error(HTTPStatus.BAD_REQUEST))
        self._path, self._query = _split(self._target.decode("latin-1"))
        self._mount = mount = self._host.find(self._path)
        self._body_bytes_max = self._limits.body_bytes if mount.body_bytes is None else mount.body_bytes
        length = self._headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._body_bytes_max:
            self._refuse(self._too_large())
        if mount.streams:
            self._reader = BodyReader(self._body_wanted, self._body_taken)
            self._call(b"", self._reader)
        elif self._work is None:
            self._deadline = self._loop.time() + self._limits.body_s
            # With an earlier request unanswered, this would be taken for the answer to that.
            self._continue()

    def _too_large(self) -> HttpError:
        fix = f"send up to {self._body_bytes_max:,} bytes"
        return HttpError(413, "Error.PayloadTooLarge", "the body is too large", fix=fix)

    def _continue(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _body_wanted(self, reader: BodyReader) -> None:
        """The service reads: now the client may be asked for the body, and its time begins."""
        if reader is self._reader and not self.is_gone:
            self._deadline = self._loop.time() + self._limits.body_s
            self._continue()

    def _body_taken(self, reader: BodyReader, size: int) -> None:
        self._drop(size)
        if reader is self._reader and self._is_paused and reader.held_bytes <= HELD_BYTES_LOW:
            self._deadline = self._loop.time() + self._limits.body_s
            self._parse()

    def on_body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._body_bytes > self._body_bytes_max:
            self._refuse(self._too_large())
        if not self._host.has_room_for(len(part)):
            self._refuse(status_error(HTTPStatus.SERVICE_UNAVAILABLE, ("retry-after", "1")))
        self.kept_bytes += len(part)
        if self._reader is None:
            self._body += part
            return
        self._reader.feed(part)
        if self._deadline < _NEVER and self._body_bytes - self._stepped_bytes >= STEP_BYTES:
            self._stepped_bytes = self._body_bytes
            self._deadline = self._loop.time() + self._limits.body_s
        if self._is_body_full:
            self._deadline = _NEVER  # it is the service that lets the client wait

    def on_message_complete(self) -> None:
        reader = self._reader
        if reader is None:
            self._call(bytes(self._body), None)
        elif self._work is not None:
            self._deadline = _NEVER
        self._begin()
        self._is_reading = False
        if reader is not None:
            reader.end()

    def _call(self, body: bytes, reader: BodyReader | None) -> None:
        assert self._mount is not None
        request = HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            path=self._path,
            query=self._query,
            headers=self._headers,
            body=body,
            scheme=self._host.scheme,
            host=self._headers.get("host", ""),
            address=self.address,
            stream=reader,
            certificate=self.certificate,
        )
        upgrades = self._parser.should_upgrade()
        call = _Call(
            request,
            self._mount,
            version=self._parser.get_http_version(),
            keep_alive=self._parser.should_keep_alive() and not upgrades,
            is_socket=upgrades and self._mount.sockets is not None and _wants_socket(request),
            body=reader,
        )
        self._waiting.append(call)
        if self._work is None:
            self._deadline = _NEVER
            self._work = self._loop.create_task(self._work_off())

    # -- answering

    async def _work_off(self) -> None:
        try:
            await self._answer_all()
        finally:
            if self.is_gone:
                self._host.leave(self)

    async def _answer_all(self) -> None:
        while self._waiting:
            call = self._waiting.popleft()
            response = await self._answer(call)
            if response is None:
                return
            try:
                if self.is_gone:
                    break
                self._host.responded(response.status)
                goes_on = call.keep_alive and not self._host.is_stopping and not self._is_unread(call)
                if response.stream is None:
                    self.transport.write(_encoded(response, call, keep_alive=goes_on))
                else:
                    goes_on = await self._send_stream(response, call, keep_alive=goes_on)
            finally:
                self._finish_body(call)
            if not goes_on:
                self._waiting.clear()
                self._last_answer = None
                self._ignores_input = True
                break
            if not self._has_room.is_set():
                await self._room()
            self._parse()
        self._work = None
        if self._ignores_input:
            self._end(self._last_answer)
        else:
            self._deadline = self._loop.time() + (self._limits.body_s if self._is_reading else self._limits.idle_s)

    @staticmethod
    def _is_unread(call: _Call) -> bool:
        """What has not come of a body would be taken for the next request."""
        return call.body is not None and not call.body.is_complete

    def _finish_body(self, call: _Call) -> None:
        self._drop(len(call.request.body) if call.body is None else call.body.discard())
        if self._is_unread(call):
            self._ignores_input = True
            self._reader = None

    async def _room(self) -> None:
        """Wait until the client has taken what was written."""
        self._deadline = self._loop.time() + self._limits.body_s
        await self._has_room.wait()
        self._deadline = _NEVER

    def _drop(self, size: int) -> None:
        self.kept_bytes -= size
        self._host.drop(size)

    async def _answer(self, call: _Call) -> HttpResponse | None:
        """None: it is a WebSocket now."""
        request, mount = call.request, call.mount
        try:
            if call.is_socket:
                response = await self._host.upgrade(request, mount, self)
            else:
                response = await self._host.handle(request, mount)
            if response is not None:
                check_response(response)
            return response
        except HttpError as error:
            return mount.errors(error)
        except Exception as error:
            if not (self.is_gone and isinstance(error, ConnectionResetError)):
                log.exception("%s %s failed", request.method, request.path)
            return mount.errors(status_error(HTTPStatus.INTERNAL_SERVER_ERROR))

    async def _send_stream(self, response: HttpResponse, call: _Call, *, keep_alive: bool) -> bool:
        """Whether the connection may go on."""
        try:
            return await self._send_chunks(response, call, keep_alive=keep_alive)
        except Exception:
            # What is missing must not look like an end.
            log.exception("%s %s failed while it was answered", call.request.method, call.request.path)
            self.transport.abort()
            return False
        finally:
            close = getattr(response.stream, "aclose", None)
            if close is not None:
                await close()

    async def _send_chunks(self, response: HttpResponse, call: _Call, *, keep_alive: bool) -> bool:
        assert response.stream is not None
        length = length_of(response)
        is_chunked = length is None and call.version == "1.1"
        keep_alive = keep_alive and (is_chunked or length is not None)
        self.transport.write(_encoded(response, call, keep_alive=keep_alive))
        if not has_body(response, call.request.method):
            return keep_alive
        sent = 0
        async for chunk in response.stream:
            if not chunk:
                continue
            sent += len(chunk)
            if length is not None and sent > length:
                break
            self.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if is_chunked else chunk)
            if not self._has_room.is_set():
                await self._room()
            if self.is_gone:
                return False
        if length is not None and sent != length:
            raise LocalProtocolError(f"a body of {length:,} bytes was announced", fix="send as many as Content-Length")
        if is_chunked:
            self.transport.write(b"0\r\n\r\n")
        return keep_alive

    def _leave(self, status: HTTPStatus) -> None:
        """Close between two requests. In the middle of one, say why."""
        if self._is_reading:
            self._fail(status_error(status))
        else:
            self._ignores_input = self._is_closing = True
            self._deadline = self._loop.time() + self._limits.close_s
            self.transport.close()

    def _end(self, last_answer: HttpResponse | None) -> None:
        """Answer what is under way, then this, and close. Closing at once with bytes unread would reset the connection,
        and that may take the last answer away; so we end our half and let the other end its own."""
        self._ignores_input = True
        self._last_answer = last_answer
        if self._work is not None or self.transport.is_closing():
            return
        self._is_closing = True
        self._is_upgrading = False
        self._deadline = self._loop.time() + self._limits.close_s
        self._steer(is_paused=False)
        if last_answer is not None:
            self.transport.write(encode_response(last_answer, "", "1.1", keep_alive=False))
        if self._host.scheme == "http" and not self._is_eof:
            self.transport.write_eof()
        else:
            self.transport.close()


def _encoded(response: HttpResponse, call: _Call, *, keep_alive: bool) -> bytes:
    return encode_response(response, call.request.method, call.version, keep_alive=keep_alive)


def _wants_socket(request: HttpRequest) -> bool:
    return request.headers.get("upgrade", "").lower() == "websocket"


def _certificate(transport: asyncio.BaseTransport) -> ClientCertificate | None:
    """What the client has shown, if a certificate was asked for: then the handshake has checked it."""
    tls = transport.get_extra_info("ssl_object")
    if tls is None or tls.context.verify_mode == ssl.CERT_NONE:
        return None
    der = tls.getpeercert(binary_form=True)
    if der is None:
        return None
    fields = tls.getpeercert()
    return ClientCertificate(der, _name(fields, "subject"), _name(fields, "issuer"), fields.get("subjectAltName", ()))


def _name(certificate: dict[str, Any], field: str) -> tuple[tuple[str, str], ...]:
    return tuple(part for parts in certificate.get(field, ()) for part in parts)


def _split(target: str) -> tuple[str, str]:
    """Path and query of a request target, which names the host as well when it is meant for a proxy."""
    if target.startswith(("/", "*")):
        path, _, query = target.partition("?")
        return path, query
    parts = urlsplit(target)
    return parts.path or "/", parts.query
