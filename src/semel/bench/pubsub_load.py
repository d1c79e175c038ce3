"""The client side of `semel bench pubsub`, which must cost less than any server that it measures.

The frames of a run are made beforehand, are all of the same length and lie one behind the other in memory. What comes
back is counted and not taken apart. One loop over blocking calls drives all connections, in the process of the bench.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Protocol

from semel.errors import PeerUnavailable
from semel.pubsub.protocol.frames import Subprotocol

HOST = "127.0.0.1"
READ_BYTES = 1 << 18
WAIT_S = 60.0
"""Who says nothing for so long is given up."""
SEQUENCE_ACK_S = 0.5
"""How often a subscriber acknowledges. Microsoft's clients wait longer."""
AT_ONCE = 200
"""Connections that are opened together."""
FIRST_ID = 1_000_000
"""ackIds begin here, so that all have the same number of digits."""
IDS_MAX = 9_000_000
ACCEPTED = b"HTTP/1.1 101 "
MASK = b"\x37\xfa\x21\x3d"


def masked(payload: bytes, first: int = 0x81) -> bytes:
    """A frame as a client sends it, by default one of text."""
    from websockets.speedups import apply_mask

    size = len(payload)
    length = bytes((0x80 | size,)) if size < 126 else bytes((0xFE,)) + size.to_bytes(2)
    return bytes((first,)) + length + MASK + apply_mask(payload, MASK)


GOODBYE = masked((1000).to_bytes(2), 0x88)
"""A close frame. Without it a session waits for its client to come back."""


# -- what comes back


class Answers(Protocol):
    """Receives everything that comes on a connection. `count` is how many messages are done with."""

    count: int

    def receive(self, data: bytes) -> bytes:
        """Returns what has to be said to that, if anything."""
        ...


class Sized:
    """Answers that are all of the same size."""

    def __init__(self, size: int) -> None:
        self.count = self._bytes = 0
        self._size = size

    def receive(self, data: bytes) -> bytes:
        self._bytes += len(data)
        self.count = self._bytes // self._size
        return b""


class Marked:
    """Answers in each of which `mark` stands once."""

    def __init__(self, mark: bytes) -> None:
        self.count = 0
        self._mark, self._keep = mark, len(mark) - 1
        self._tail = b""

    def receive(self, data: bytes) -> bytes:
        text = self._tail + data
        self.count += text.count(self._mark)
        self._tail = text[-self._keep :]
        return b""


def acks() -> Marked:
    """The acks of publishes that were accepted."""
    return Marked(b'"success":true')


class Subscriber(Marked):
    """Messages of a group. It acknowledges now and then what it has got, as clients do."""

    def __init__(self, *, acknowledges: bool = True) -> None:
        super().__init__(b'"type":"message"')
        self._next_ack = time.monotonic() + SEQUENCE_ACK_S if acknowledges else math.inf

    def receive(self, data: bytes) -> bytes:
        super().receive(data)
        now = time.monotonic()
        if now < self._next_ack:
            return b""
        number, end, _ = data[data.rfind(b'"sequenceId":') + 13 :].partition(b"}")
        if not end or not number.isdigit():
            return b""
        self._next_ack = now + SEQUENCE_ACK_S
        return masked(b'{"type":"sequenceAck","sequenceId":%b}' % number)


# -- connections


class Wire:
    """A connection that listens."""

    def __init__(self, sock: socket.socket, answers: Answers, received: bytes = b"") -> None:
        sock.setblocking(False)
        self.sock, self.answers = sock, answers
        self._received = received
        self._out = answers.receive(received) if received else b""

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def receive(self) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise PeerUnavailable(
                f"the server has closed a connection of the bench, after {self._received[-120:]!r}",
                fix="see what it printed above",
            )
        self._received = data
        self._out += self.answers.receive(data)
        if self._out:
            self.write()

    def write(self) -> None:
        try:
            sent = self.sock.send(self._out)
        except BlockingIOError:
            return
        self._out = self._out[sent:]

    def close(self, last: bytes = b"") -> None:
        with suppress(OSError):
            self.sock.send(last)
        self.sock.close()


class PublishLoad(Wire):
    """Sends from `block`, frames of `size` bytes each, with `window` of them on their way. Without `is_endless` the
    block is sent once at most. `done` says how many have arrived, by default those that are acknowledged."""

    def __init__(
        self,
        sock: socket.socket,
        answers: Answers,
        block: bytes,
        size: int,
        window: int,
        *,
        is_endless: bool = False,
        received: bytes = b"",
    ) -> None:
        super().__init__(sock, answers, received)
        self.window = window
        self.done: Callable[[], int] = lambda: self.answers.count
        self._block, self._size = memoryview(block), size
        self._limit: int | None = None if is_endless else len(block) // size
        self._sent = 0
        self._is_blocked = False

    @property
    def sent(self) -> int:
        """How many were begun."""
        return -(-self._sent // self._size)

    @property
    def wants_to_write(self) -> bool:
        return self._is_blocked or super().wants_to_write

    @property
    def is_idle(self) -> bool:
        """It has sent all that it may, and all of it is done."""
        return self.sent == self._limit and self.done() >= self._limit

    def stop(self) -> None:
        """Send no more than was begun."""
        self._limit = self.sent

    def fill(self) -> None:
        allowed = self.done() + self.window
        if self._limit is not None:
            allowed = min(allowed, self._limit)
        allowed *= self._size
        self._is_blocked = False
        while self._sent < allowed and not self._out:
            at = self._sent % len(self._block)
            try:
                self._sent += self.sock.send(self._block[at : min(len(self._block), at + allowed - self._sent)])
            except BlockingIOError:
                self._is_blocked = True
                return


def drive(publisher: PublishLoad, others: Sequence[Wire] = (), seconds: float | None = None) -> tuple[int, float]:
    """Publish for so long, or until all is sent. Returns how many messages there were, and how long it took until all
    were done and all others had all of them."""
    with selectors.DefaultSelector() as selector:
        for wire in (publisher, *others):
            selector.register(wire.sock, selectors.EVENT_READ, wire)
        begin = received = now = time.perf_counter()
        writing: set[Wire] = set()
        publisher.fill()
        while not (publisher.is_idle and all(wire.answers.count >= publisher.sent for wire in others)):
            received = now if _turn(selector, writing) else received
            now = time.perf_counter()
            if seconds is not None and now - begin >= seconds:
                publisher.stop()
            publisher.fill()
            _watch(selector, publisher, writing)
            if now - received > WAIT_S:
                raise PeerUnavailable(
                    f"{publisher.done():,} of {publisher.sent:,} messages were done, and then nothing came any more",
                    fix="run it on a machine at rest",
                )
        return publisher.sent, time.perf_counter() - begin


def _turn(selector: selectors.BaseSelector, writing: set[Wire]) -> bool:
    """Read and write what can be read and written now. False when that is nothing."""
    events = selector.select(1.0)
    for key, mask in events:
        wire: Wire = key.data
        if mask & selectors.EVENT_READ:
            wire.receive()
        if mask & selectors.EVENT_WRITE:
            wire.write()
        _watch(selector, wire, writing)
    return bool(events)


def _watch(selector: selectors.BaseSelector, wire: Wire, writing: set[Wire]) -> None:
    if wire.wants_to_write == (wire in writing):
        return
    if wire.wants_to_write:
        writing.add(wire)
        selector.modify(wire.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, wire)
    else:
        writing.discard(wire)
        selector.modify(wire.sock, selectors.EVENT_READ, wire)


# -- WebSocket


def open_sockets(
    port: int, paths: Sequence[str], subprotocol: str | None = None, until: bytes = b"\r\n\r\n"
) -> Iterator[tuple[socket.socket, bytes]]:
    """A WebSocket for each path, a few at a time. What came already is handed over, and `until` is in it."""
    for first in range(0, len(paths), AT_ONCE):
        opened = [_begin_socket(port, path, subprotocol) for path in paths[first : first + AT_ONCE]]
        for sock in opened:
            yield sock, _head(sock, until)


def open_socket(port: int, path: str, subprotocol: str | None = None, until: bytes = b"\r\n\r\n") -> socket.socket:
    [(sock, _)] = open_sockets(port, [path], subprotocol, until)
    return sock


def _begin_socket(port: int, path: str, subprotocol: str | None) -> socket.socket:
    sock = socket.create_connection((HOST, port), WAIT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = [
        f"GET {path} HTTP/1.1", f"Host: {HOST}:{port}", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {b64encode(os.urandom(16)).decode()}",
    ]  # fmt: skip
    if subprotocol is not None:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    return sock


def _head(sock: socket.socket, until: bytes) -> bytes:
    received = b""
    while until not in received:
        data = sock.recv(READ_BYTES)
        received += data
        if not data or not received.startswith(ACCEPTED[: len(received)]):
            raise PeerUnavailable(
                f"a server does not let the bench in: {received[-200:]!r}", fix="see what it printed above"
            )
    return received


def open_clients(port: int, path: str, count: int) -> list[tuple[socket.socket, bytes]]:
    """Clients of the reliable JSON protocol whose sessions are open."""
    return list(open_sockets(port, list(repeat(path, count)), Subprotocol.JSON_RELIABLE, b'"connected"'))


def send_frames(group: str, body_bytes: int, count: int) -> tuple[bytes, int]:
    """So many publishes with an ackId each, and the size of each."""
    text = '{"type":"sendToGroup","group":"%s","ackId":%d,"dataType":"text","data":"%s"}'
    body = "x" * body_bytes
    frames = [masked((text % (group, FIRST_ID + number, body)).encode()) for number in range(min(count, IDS_MAX))]
    return b"".join(frames), len(frames[0])
