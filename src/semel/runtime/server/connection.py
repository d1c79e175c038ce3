"""HTTP/1.1 on a connection, as far as a server of calls needs it: whole requests in, whole responses out.

httptools reads the heads and the chunks. What is here is the rest: limits on what a client may send and for how long,
one answer after the other however many requests come at once, and the moment at which a connection becomes a WebSocket.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit

import httptools

from semel.errors import LocalProtocolError
from semel.http import HttpRequest, HttpResponse, text_response
from semel.runtime.server.limits import ListenerLimits

log = logging.getLogger(__name__)

SLICE_BYTES = 16 * 1024
"""How much is parsed at once, so that the requests of one read do not all become objects before one is answered."""
PIPELINED_MAX = 32
_NEVER = float("inf")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSAFE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OURS = {"content-length", "transfer-encoding", "connection", "date"}


@dataclass(frozen=True, slots=True)
class _Call:
    request: HttpRequest
    version: str
    keep_alive: bool
    is_socket: bool


class HttpHost(Protocol):
    """What a connection asks of the server that it belongs to."""

    limits: ListenerLimits
    scheme: str

    @property
    def is_stopping(self) -> bool: ...

    def enter(self, connection: HttpConnection) -> HttpResponse | None:
        """A response is a refusal: the connection says it and closes."""
        ...

    def leave(self, connection: HttpConnection) -> None: ...

    def has_room_for(self, size: int) -> bool:
        """Whether so much more of a body may be kept. What may counts, until the connection says that it is gone."""
        ...

    def drop(self, size: int) -> None: ...

    def is_socket(self, request: HttpRequest) -> bool:
        """Whether an upgrade to WebSocket is meant for us. What is not is answered as plain HTTP."""
        ...

    async def handle(self, request: HttpRequest) -> HttpResponse: ...

    async def upgrade(self, request: HttpRequest, connection: HttpConnection) -> HttpResponse | None:
        """None: the connection is a WebSocket now and belongs to somebody else."""
        ...


class HttpConnection(asyncio.Protocol):
    """One client. Requests are answered one at a time and in order."""

    def __init__(self, host: HttpHost) -> None:
        self.address = ""
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
        self._farewell: HttpResponse | None = None
        """What remains to be said before the connection is closed, once all requests before it are answered."""
        self.is_gone = False
        self.kept_bytes = 0
        """Of bodies."""
        self._is_paused = self._is_upgrading = self._is_deaf = self._is_closing = self._is_eof = False
        self._refusal = HTTPStatus.BAD_REQUEST
        self._begin()
        self._is_reading = False

    def _begin(self) -> None:
        self._is_reading = self._in_head = True
        self._head_bytes = self._fed_bytes = self._headers_seen = 0
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    # -- what the loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        self.address = str(name[0]) if isinstance(name, tuple) else ""
        refusal = self._host.enter(self)
        if refusal is not None:
            self._end(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        """A call that is under way is left to its end: what it does, it does whole."""
        self.is_gone = self._is_deaf = True
        self._waiting.clear()
        self._has_room.set()
        if self._work is None or self._work.done():
            self._host.leave(self)

    def data_received(self, data: bytes) -> None:
        if self._is_upgrading or not self._is_deaf:
            self._unread += data
            self._parse()

    def eof_received(self) -> bool:
        """Who has said all may still be waiting for the answer. TLS knows no such half."""
        self._is_eof = self._is_deaf = True
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
        while self._unread and len(self._waiting) < PIPELINED_MAX and not self._is_deaf:
            part, self._unread = self._unread[:SLICE_BYTES], self._unread[SLICE_BYTES:]
            self._feed(part)
        self._steer(is_paused=self._is_upgrading or len(self._waiting) > 1)

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
            self._is_deaf = self._is_upgrading = True
        except httptools.HttpParserError:
            self._end(_plain(self._refusal))
        else:
            if self._in_head:
                self._fed_bytes += len(part)
                if self._fed_bytes > self._limits.head_bytes + SLICE_BYTES:
                    self._end(_plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def _refuse(self, status: HTTPStatus) -> None:
        self._refusal = status
        raise ValueError(status.phrase)

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
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if not self._in_head:
            return  # a trailer: nobody here wants one
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if key not in self._headers:
            self._headers[key] = text
        elif key == "host":
            self._refuse(HTTPStatus.BAD_REQUEST)
        else:
            self._headers[key] += ("; " if key == "cookie" else ", ") + text

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._fed_bytes = 0
        if "host" not in self._headers and self._parser.get_http_version() == "1.1":
            self._refuse(HTTPStatus.BAD_REQUEST)
        length = self._headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._limits.body_bytes:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if self._work is None:
            self._deadline = self._loop.time() + self._limits.body_s
            # With an earlier request unanswered, this would be taken for the answer to that.
            if self._headers.get("expect", "").lower() == "100-continue":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, part: bytes) -> None:
        if len(self._body) + len(part) > self._limits.body_bytes:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if not self._host.has_room_for(len(part)):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
        self.kept_bytes += len(part)
        self._body += part

    def on_message_complete(self) -> None:
        path, query = _split(self._target.decode("latin-1"))
        request = HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            path=path,
            query=query,
            headers=self._headers,
            body=bytes(self._body),
            scheme=self._host.scheme,
            host=self._headers.get("host", ""),
            address=self.address,
        )
        upgrades = self._parser.should_upgrade()
        call = _Call(
            request,
            version=self._parser.get_http_version(),
            keep_alive=self._parser.should_keep_alive() and not upgrades,
            is_socket=upgrades and self._host.is_socket(request),
        )
        self._begin()
        self._is_reading = False
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
            self._drop(len(call.request.body))
            if response is None:
                return
            if self.is_gone:
                break
            keep_alive = call.keep_alive and not self._host.is_stopping
            self.transport.write(_encode(response, call, keep_alive=keep_alive))
            if not keep_alive:
                self._waiting.clear()
                self._farewell = None
                self._is_deaf = True
                break
            if not self._has_room.is_set():
                self._deadline = self._loop.time() + self._limits.body_s
                await self._has_room.wait()
                self._deadline = _NEVER
            self._parse()
        self._work = None
        if self._is_deaf:
            self._end(self._farewell)
        else:
            self._deadline = self._loop.time() + (self._limits.body_s if self._is_reading else self._limits.idle_s)

    def _drop(self, size: int) -> None:
        self.kept_bytes -= size
        self._host.drop(size)

    async def _answer(self, call: _Call) -> HttpResponse | None:
        """None: it is a WebSocket now."""
        request = call.request
        try:
            response = await (self._host.upgrade(request, self) if call.is_socket else self._host.handle(request))
            if response is not None:
                _check(response)
            return response
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _leave(self, status: HTTPStatus) -> None:
        """Close between two requests. In the middle of one, say why."""
        if self._is_reading:
            self._end(_plain(status))
        else:
            self._is_deaf = self._is_closing = True
            self._deadline = self._loop.time() + self._limits.close_s
            self.transport.close()

    def _end(self, farewell: HttpResponse | None) -> None:
        """Answer what is under way, say farewell, and close. Closing at once with bytes unread would reset the
        connection, and that may take the last answer away; so we end our half and let the other end its own."""
        self._is_deaf = True
        self._farewell = farewell
        if self._work is not None or self.transport.is_closing():
            return
        self._is_closing = True
        self._is_upgrading = False
        self._deadline = self._loop.time() + self._limits.close_s
        self._steer(is_paused=False)
        if farewell is not None:
            self.transport.write(_encode(farewell, _NOBODY, keep_alive=False))
        if self._host.scheme == "http" and not self._is_eof:
            self.transport.write_eof()
        else:
            self.transport.close()


_NOBODY = _Call(HttpRequest("", ""), version="1.1", keep_alive=False, is_socket=False)


def _split(target: str) -> tuple[str, str]:
    """Path and query of a request target, which names the host as well when it is meant for a proxy."""
    if target.startswith(("/", "*")):
        path, _, query = target.partition("?")
        return path, query
    parts = urlsplit(target)
    return parts.path or "/", parts.query


def _plain(status: HTTPStatus) -> HttpResponse:
    return text_response(status, status.phrase)


def _check(response: HttpResponse) -> None:
    if not 200 <= response.status <= 599:
        raise LocalProtocolError(f"status {response.status} is no answer", fix="answer with 200 to 599")
    for name, value in response.headers:
        if not _NAME.fullmatch(name) or _UNSAFE.search(value):
            raise LocalProtocolError(f"header {name!r} cannot be sent", fix="take line ends out of names and values")


def _encode(response: HttpResponse, call: _Call, *, keep_alive: bool) -> bytes:
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {response.status} {phrase}", f"date: {_date()}"]
    lines += [f"{name}: {value}" for name, value in response.headers if name.lower() not in _OURS]
    has_body = response.status >= 200 and response.status not in (204, 304)
    if has_body:
        lines.append(f"content-length: {len(response.body)}")
    if not keep_alive:
        lines.append("connection: close")
    elif call.version == "1.0":
        lines.append("connection: keep-alive")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
    return head + response.body if has_body and call.request.method != "HEAD" else head


def _date() -> str:
    global _date_text
    second = int(time.time())
    if _date_text[0] != second:
        _date_text = (second, formatdate(second, usegmt=True))
    return _date_text[1]


_date_text = (0, "")
