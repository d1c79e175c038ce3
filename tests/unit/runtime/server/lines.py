"""A connection without a network: what comes is fed, and what goes out is written down."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from semel.http import HttpRequest, HttpResponse
from semel.runtime.server.part import Mount
from semel.runtime.transports.websocket import (
    Accept,
    WebSocketPeer,
)


def masked(first: int, payload: bytes, mask: bytes = b"\x01\x02\x03\x04") -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 65_536:
        head = bytes((first, 0x80 | 126)) + struct.pack("!H", size)
    else:
        head = bytes((first, 0x80 | 127)) + struct.pack("!Q", size)
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


class Guest:
    """A service that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.requests: list[HttpRequest] = []

    async def handle(self, request: HttpRequest) -> HttpResponse:
        self.requests.append(request)
        return HttpResponse(200, (), request.path.encode())

    async def upgrade(self, request: HttpRequest) -> Accept | HttpResponse:
        return Accept()

    def on_open(self, peer: WebSocketPeer) -> None:
        self.heard.append(("open",))

    def on_frames(self, peer: WebSocketPeer, messages: list[str | bytes]) -> None:
        self.heard.append(("frames", *messages))

    def on_room(self, peer: WebSocketPeer) -> None:
        self.heard.append(("room",))

    def on_stalled(self, peer: WebSocketPeer) -> None:
        self.heard.append(("stalled",))

    def on_closed(self, peer: WebSocketPeer, code: int | None, reason: str) -> None:
        self.heard.append(("closed", code, reason))


def mounted(guest: Guest) -> list[Mount]:
    """Calls everywhere, WebSockets where pub/sub has them."""
    calls = Mount("/", lambda request: guest.handle(request))
    return [calls, replace(calls, prefix="/client/", sockets=guest), replace(calls, prefix="/clients/", sockets=guest)]


class Line(asyncio.Transport):
    """A transport that goes nowhere. `stuck` is what the other side does not take."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})
        self.written: list[bytes] = []
        self.stuck = 0
        self.is_aborted = self.is_closed = self.is_ended = False
        self.is_reading_ = True
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.stuck

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.marks = (high, low)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.is_reading_ = False

    def resume_reading(self) -> None:
        self.is_reading_ = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True


def now() -> float:
    return asyncio.get_running_loop().time()
