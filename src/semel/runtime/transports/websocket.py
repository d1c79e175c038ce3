"""WebSockets as a server sees them: RFC 6455 without extensions.

`FrameReader` turns bytes into messages and knows nothing of sockets. `WebSocketPeer` is one connected client: what came
in one read is handed over together, and what is written within one tick goes out together. Frames to be sent are made
by `semel.websocket`, once for all who get them.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
from base64 import b64decode, b64encode
from dataclasses import dataclass
from hashlib import sha1
from http import HTTPStatus
from typing import Protocol

from semel.errors import FrameError
from semel.http import HttpRequest, HttpResponse, text_response
from semel.runtime.server.limits import ListenerLimits
from semel.websocket import CloseCode

try:
    from websockets.speedups import apply_mask
except ImportError:  # where there is no compiled one
    from websockets.utils import apply_mask

log = logging.getLogger(__name__)

Message = str | bytes

NO_CODE = 1005
"""The close frame said nothing. It is never sent."""

_TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x1, 0x2, 0x8, 0x9, 0xA
_FINAL_TEXT, _FINAL_BINARY = 0x81, 0x82
_COMMON = (_FINAL_TEXT, _FINAL_BINARY)
_PING_FRAME = b"\x89\x00"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE_CODES = {1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, *range(3000, 5000)}


@dataclass(frozen=True, slots=True)
class CloseFrame:
    """A close frame that came, or why the stream cannot be read any further."""

    code: int
    reason: str = ""
    is_fault: bool = False


class FrameReader:
    """Whole messages out of a stream of masked frames, in pieces as they come.

    After `feed` there may be a `ping` to answer, the last one that came, and a `close`, after which nothing is read. A
    message that is not whole yet takes the memory of what has come of it, and none when it has been handed out.
    """

    __slots__ = ("_held", "_limit", "_needed", "_parts", "_parts_kind", "close", "ping")

    def __init__(self, limit: int) -> None:
        self.ping: bytes | None = None
        self.close: CloseFrame | None = None
        self._limit = limit
        self._held: bytearray | None = None
        self._needed = 0
        self._parts: bytearray | None = None
        self._parts_kind = 0

    def feed(self, data: bytes) -> list[Message]:
        messages: list[Message] = []
        if self.close is not None:
            return messages
        if self._held is not None:
            self._held += data
            if len(self._held) < self._needed:
                return messages
            data, self._held = bytes(self._held), None
        try:
            read = self._read(data, messages)
        except FrameError as error:
            self.close = CloseFrame(error.close_code, error.reason, is_fault=True)
        except UnicodeDecodeError:
            self.close = CloseFrame(CloseCode.BAD_FRAME, "a text is not UTF-8", is_fault=True)
        else:
            if read < len(data) and self.close is None:
                self._held = bytearray(data[read:])
        if self.close is not None:
            self._held = self._parts = None
        return messages

    def _read(self, data: bytes, messages: list[Message]) -> int:
        """Returns how much of `data` is done with; `_needed` is how much it takes to go on from there.

        This runs for every frame, so the common ones go straight through and all else is out of line.
        """
        at, size, limit, needed = 0, len(data), self._limit, 2
        while size - at >= 2:
            first, second = data[at], data[at + 1]
            is_common = first in _COMMON and second >= 0x80 and self._parts is None
            if not is_common:
                self._check(first, second)
            length, start = second & 0x7F, at + 6
            if length > 125:
                width = 2 if length == 126 else 8
                start += width
                if size < start:
                    needed = 6 + width
                    break
                length = int.from_bytes(data[at + 2 : start - 4], "big")
                if length < 126 or (width == 8 and not 0xFFFF < length < 1 << 63):
                    raise _broken("a length must be written in as few bytes as it takes")
            if length > limit:
                raise _too_big(length, limit)
            end = start + length
            if end > size:
                needed = end - at
                break
            payload = apply_mask(data[start:end], data[start - 4 : start])
            if not is_common:
                self._take(first, payload, messages)
            elif first == _FINAL_TEXT:
                messages.append(payload.decode())
            else:
                messages.append(payload)
            at = end
            if self.close is not None:
                break
        self._needed = needed
        return at

    def _check(self, first: int, second: int) -> None:
        """Whether a frame with these two bytes may come now."""
        kind, is_final = first & 0x0F, first >= 0x80
        if second < 0x80:
            raise _broken("a frame from a client must be masked")
        if first & 0x70:
            raise _broken("a reserved bit is set, but no extension was agreed upon")
        if kind in (_CLOSE, _PING, _PONG):
            if not is_final or second & 0x7F > 125:
                raise _broken("a control frame is whole and has at most 125 bytes")
        elif kind == 0:
            if self._parts is None:
                raise _broken("a continuation without a beginning")
        elif kind not in (_TEXT, _BINARY):
            raise _broken(f"there is no frame of kind {kind}")
        elif self._parts is not None:
            raise _broken("a new message before the last one was whole")

    def _take(self, first: int, payload: bytes, messages: list[Message]) -> None:
        kind = first & 0x0F
        if kind == _PING:
            self.ping = payload
        elif kind == _CLOSE:
            self.close = _closing(payload)
        elif kind != _PONG:
            self._gather(first, payload, messages)

    def _gather(self, first: int, payload: bytes, messages: list[Message]) -> None:
        if self._parts is None:
            self._parts, self._parts_kind = bytearray(), first
        if len(self._parts) + len(payload) > self._limit:
            raise _too_big(len(self._parts) + len(payload), self._limit)
        self._parts += payload
        if first >= 0x80:
            whole, self._parts = bytes(self._parts), None
            messages.append(whole.decode() if self._parts_kind == _TEXT else whole)


def _broken(message: str) -> FrameError:
    return FrameError(message, close_code=CloseCode.PROTOCOL_ERROR, fix="use a client that keeps to RFC 6455")


def _too_big(size: int, limit: int) -> FrameError:
    return FrameError(
        f"a message of {size:,} bytes or more, the limit is {limit:,}",
        close_code=CloseCode.TOO_BIG,
        fix="send less at once",
    )


def _closing(payload: bytes) -> CloseFrame:
    if not payload:
        return CloseFrame(NO_CODE)
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or code not in _CLOSE_CODES:
        raise _broken("a close frame without a code that may be sent")
    return CloseFrame(code, payload[2:].decode())


def close_frame(code: int, reason: str = "") -> bytes:
    """As much of the reason as there is room for."""
    if code == NO_CODE:
        return b"\x88\x00"
    text = reason.encode(errors="replace")[: FrameError.REASON_BYTES_MAX].decode(errors="ignore").encode()
    return bytes((0x88, 2 + len(text))) + code.to_bytes(2, "big") + text


# -- shaking hands


@dataclass(frozen=True, slots=True)
class Accept:
    """Let a client in. `subprotocol` is one of those that it offered, or None. `key` is what you want to find at the
    peer. The client may be gone by then: it is there when `on_open` says so. `waits`: the answer to its handshake goes
    out with the first that is written to it, or with `welcome`."""

    subprotocol: str | None = None
    key: object = None
    waits: bool = False


def subprotocols(request: HttpRequest) -> tuple[str, ...]:
    """What the client offers to speak, in the order of its liking."""
    offered = request.headers.get("sec-websocket-protocol", "").split(",")
    return tuple(name for name in (name.strip() for name in offered) if name)


def check_upgrade(request: HttpRequest) -> HttpResponse | None:
    """What is wrong with a request for a WebSocket, if anything. What follows it is taken for frames, so a body that is
    only announced is as wrong as one that is there: a proxy may count it."""
    if request.method != "GET" or request.body or _announces_body(request):
        return _bad("a WebSocket begins with a GET without a body")
    if request.headers.get("sec-websocket-version") != "13":
        return text_response(
            HTTPStatus.UPGRADE_REQUIRED, "WebSocket version 13 it must be", ("sec-websocket-version", "13")
        )
    try:
        nonce = b64decode(request.headers.get("sec-websocket-key", ""), validate=True)
    except (binascii.Error, ValueError):
        nonce = b""
    if len(nonce) != 16:
        return _bad("Sec-WebSocket-Key must be 16 bytes in Base64")
    return None


def _announces_body(request: HttpRequest) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def _bad(text: str) -> HttpResponse:
    return text_response(HTTPStatus.BAD_REQUEST, text)


def accept_head(request: HttpRequest, subprotocol: str | None) -> bytes:
    proof = b64encode(sha1(request.headers["sec-websocket-key"].encode() + _GUID).digest())
    lines = [
        b"HTTP/1.1 101 Switching Protocols",
        b"upgrade: websocket",
        b"connection: Upgrade",
        b"sec-websocket-accept: " + proof,
    ]
    if subprotocol is not None:
        lines.append(b"sec-websocket-protocol: " + subprotocol.encode("latin-1"))
    return b"\r\n".join([*lines, b"", b""])


# -- one client


class SocketService(Protocol):
    """Who speaks with the peers. All of this is called on the loop; but for `upgrade` it must not wait."""

    async def upgrade(self, request: HttpRequest) -> Accept | HttpResponse:
        """Accept a WebSocket, or say why not. Meanwhile nothing is read from it; after `upgrade_s` it is refused."""
        ...

    def on_open(self, peer: WebSocketPeer) -> None:
        """It may be written to from now on."""
        ...

    def on_frames(self, peer: WebSocketPeer, messages: list[Message]) -> None:
        """What came in one read, in order: text as `str`, binary as `bytes`. Nothing comes after `peer.close`."""
        ...

    def on_room(self, peer: WebSocketPeer) -> None:
        """It was full and has taken enough to be written to again."""
        ...

    def on_stalled(self, peer: WebSocketPeer) -> None:
        """It takes nothing, or not as much as is written, and holds `stalled_bytes` of memory. Said once until it has
        room again. Close it, abort it, or write no more."""
        ...

    def on_closed(self, peer: WebSocketPeer, code: int | None, reason: str) -> None:
        """The last event of a peer. `code` is that of the close frame that began the end, whoever sent it; 1005
        if that said nothing, None if the connection ended without one."""
        ...


class SocketHost(Protocol):
    """What a peer asks of the server that it belongs to."""

    limits: ListenerLimits

    def gather(self, peer: WebSocketPeer) -> None:
        """Call `peer.flush` at the end of this tick."""
        ...

    def leave(self, connection: WebSocketPeer) -> None: ...


class WebSocketPeer(asyncio.Protocol):
    """One client on a WebSocket."""

    __slots__ = (
        "_close", "_deadline", "_gathered", "_gathered_bytes", "_head", "_host", "_is_closing", "_is_deaf",
        "_is_full", "_is_stalled", "_loop", "_pinged", "_reader", "_reason", "_received_at", "_service", "_taken",
        "_taken_at", "_transport", "_written", "address", "is_held", "key", "subprotocol",
    )  # fmt: skip

    def __init__(
        self, host: SocketHost, service: SocketService, transport: asyncio.Transport, accept: Accept, address: str
    ) -> None:
        self.key = accept.key
        self.subprotocol = accept.subprotocol
        self.address = address
        self.is_held = False
        self._host, self._service = host, service
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(host.limits.frame_bytes)
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._received_at = self._pinged = self._loop.time()
        self._written = self._taken = 0
        self._taken_at = self._received_at
        self._deadline: float | None = None
        self._close: CloseFrame | None = None
        self._reason = ""
        self._is_closing = self._is_deaf = self._is_full = self._is_stalled = False
        self._head = b""
        transport.set_write_buffer_limits(high=host.limits.full_bytes, low=host.limits.room_bytes)

    def __repr__(self) -> str:
        return f"<Peer at {self.address}>"

    # -- what the session asks

    @property
    def is_closing(self) -> bool:
        """Nothing more can be written."""
        return self._is_closing

    @property
    def is_full(self) -> bool:
        """It has enough to take for now: await `on_room`."""
        return self._is_full

    @property
    def pending_bytes(self) -> int:
        """What is written and not yet with the system."""
        return self._gathered_bytes + self._transport.get_write_buffer_size()

    def write(self, frames: bytes) -> bool:
        """Whole frames, from `semel.websocket`; they go out at the end of this tick. False when it is
        full now, or closing: then frames are dropped."""
        if self._is_closing:
            return False
        if not self._gathered:
            self._host.gather(self)
        self._gathered.append(frames)
        self._gathered_bytes += len(frames)
        if self._gathered_bytes > self._host.limits.full_bytes:
            # The system may take all of it at once: only the transport knows who is full, and when there is room again.
            self.flush()
        return not self._is_full

    def flush(self) -> None:
        """Write out what `write` has gathered."""
        gathered = self._gathered
        if not gathered:
            return
        data = gathered[0] if len(gathered) == 1 else b"".join(gathered)
        gathered.clear()
        self._gathered_bytes = 0
        self._send(data)
        if self._is_full and not self._is_stalled:
            self._is_stalled = self._transport.get_write_buffer_size() > self._host.limits.stalled_bytes
            if self._is_stalled:
                self._service.on_stalled(self)

    def _send(self, data: bytes) -> None:
        # It may have broken, with nobody notified yet.
        if not self._transport.is_closing():
            if self._head:
                data, self._head = self._head + data, b""
            self._written += len(data)
            self._transport.write(data)

    def welcome(self) -> None:
        """Answer its handshake, if that has waited for it."""
        if self._head:
            self._send(b"")

    def close(self, code: int = CloseCode.NORMAL, reason: str = "") -> None:
        """Send what was written and then a close frame. Who does not answer it within `close_s` is cut off."""
        if not self._is_closing:
            self._finish(CloseFrame(code, reason))

    def abort(self, reason: str = "") -> None:
        """Cut the connection. What was written and is not with the system yet is lost."""
        self._is_closing = self._is_deaf = True
        self._reason = self._reason or reason
        self._gathered.clear()
        self._transport.abort()

    def hold(self) -> None:
        """Read no more until `release`. Meanwhile it cannot be taken for dead, unless it takes nothing."""
        if not self.is_held and not self._is_closing:
            self.is_held = True
            self._transport.pause_reading()

    def release(self) -> None:
        if self.is_held:
            self.is_held = False
            self._received_at = self._loop.time()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    # -- what the server says

    def begin(self, head: bytes, unread: bytes, waits: bool = False) -> None:
        """The transport is ours. `head` is the answer to the handshake; `unread` has come already."""
        self._head = head
        if not waits:
            self.welcome()
        try:
            self._service.on_open(self)
        except Exception:
            log.exception("%r could not be opened", self)
            self.close(CloseCode.INTERNAL, "the server failed")
        if unread:
            self.data_received(unread)
        if not self.is_held:
            self._transport.resume_reading()

    def check(self, now: float) -> None:
        """Called now and then: is it late, or silent?"""
        if self._deadline is not None:
            if now >= self._deadline:
                self.abort("it did not answer the close frame")
            return
        limits = self._host.limits
        if self._is_full and not self._takes(now):
            self.abort(f"it took less than {limits.room_bytes:,} bytes in {limits.dead_s:g} s")
            return
        if self.is_held:
            return
        if now - self._received_at >= limits.dead_s:
            self.abort(f"nothing came for {limits.dead_s:g} s")
        elif now - max(self._received_at, self._pinged) >= limits.ping_s:
            self._pinged = now
            self.flush()
            self._send(_PING_FRAME)

    def _takes(self, now: float) -> bool:
        """Whether what was written becomes less. Who is alive and does not read would hold its memory for ever."""
        taken = self._written - self._transport.get_write_buffer_size()
        if taken - self._taken >= self._host.limits.room_bytes:
            self._taken, self._taken_at = taken, now
        return now - self._taken_at < self._host.limits.dead_s

    def stop(self) -> None:
        self.close(CloseCode.GOING_AWAY, "the server is stopping")

    # -- what the loop says

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        if self._is_deaf:
            return
        messages = self._reader.feed(data)
        if messages and not self._is_closing:
            self._hand_over(messages)
        if self._reader.ping is not None:
            self._pong(self._reader.ping)
        if self._reader.close is not None:
            self._on_close(self._reader.close)

    def eof_received(self) -> bool:
        self._leave()
        return False

    def pause_writing(self) -> None:
        self._is_full = True
        self._taken = self._written - self._transport.get_write_buffer_size()
        self._taken_at = self._loop.time()

    def resume_writing(self) -> None:
        self._is_full = self._is_stalled = False
        if not self._is_closing:
            self._service.on_room(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = self._is_deaf = True
        self._gathered.clear()
        self._host.leave(self)
        close = self._close
        if close is None:
            self._service.on_closed(self, None, self._reason or (str(exc) if exc else ""))
        else:
            self._service.on_closed(self, close.code, close.reason)

    # -- ways to an end

    def _hand_over(self, messages: list[Message]) -> None:
        try:
            self._service.on_frames(self, messages)
        except Exception:
            log.exception("%r: its frames were not taken", self)
            self.close(CloseCode.INTERNAL, "the server failed")

    def _pong(self, payload: bytes) -> None:
        """To the last of several pings that came together: RFC 6455 allows it, and it costs one write."""
        self._reader.ping = None
        if not self._is_closing and not self._is_full:
            self.flush()
            self._send(bytes((0x8A, len(payload))) + payload)

    def _on_close(self, close: CloseFrame) -> None:
        self._is_deaf = True
        if self._is_closing:
            self._leave()
        else:
            self._finish(close)

    def _finish(self, close: CloseFrame) -> None:
        """Our close frame goes out, as the first one or as an answer."""
        self._close = close
        self.flush()
        self._is_closing = True
        self._deadline = self._loop.time() + self._host.limits.close_s
        self._send(close_frame(close.code, close.reason))
        self.release()
        if self._transport.is_closing():
            return
        if self._is_deaf and close.is_fault and self._transport.can_write_eof():
            # More may come that nobody can read. Closing before it has come could cost the peer our last words.
            self._transport.write_eof()
        elif self._is_deaf:
            self._leave()

    def _leave(self) -> None:
        """Close when all is written, or at the deadline if that takes too long."""
        self._is_closing = True
        if self._deadline is None:
            self._deadline = self._loop.time() + self._host.limits.close_s
        self._transport.close()
