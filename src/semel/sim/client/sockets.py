"""Sockets whose bytes are on their way for a while, and that may break between any two of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from semel.pubsub.hub.sockets import ClosePeer, SocketClosed
from semel.pubsub.protocol.frames import Frame

if TYPE_CHECKING:
    from semel.sim.client.actor import Actor


class SocketLane:
    """One direction of a socket: bytes on their way, in order, and the close after them."""

    def __init__(self) -> None:
        self.on_the_way: deque[bytes | ClosePeer | SocketClosed] = deque()
        self.free_at = 0.0
        self._rest = b""

    def come_in(self, data: bytes) -> list[Frame]:
        """Whole frames, as far as they have come in."""
        self._rest += data
        found: list[Frame] = []
        while (end := _end_of_frame(self._rest)) is not None:
            whole, self._rest = self._rest[:end], self._rest[end:]
            body = whole[_header(whole) :]
            found.append(body.decode() if whole[0] == 0x81 else body)
        return found

    def cut(self, chance: Random) -> list[bytes]:
        """What still gets through when the socket breaks: the bytes up to some byte."""
        through = []
        left = chance.randint(0, sum(len(each) for each in self.on_the_way if isinstance(each, bytes)))
        for each in self.on_the_way:
            if not isinstance(each, bytes) or left <= 0:
                break
            through.append(each[:left])
            left -= len(each)
        self.on_the_way.clear()
        return through


def _header(data: bytes) -> int:
    return {126: 4, 127: 10}.get(data[1], 2)


def _end_of_frame(data: bytes) -> int | None:
    if len(data) < 2 or len(data) < _header(data):
        return None
    size = data[1] if data[1] < 126 else int.from_bytes(data[2 : _header(data)])
    end = _header(data) + size
    return end if len(data) >= end else None


@dataclass(eq=False)
class SocketLink:
    """A socket with its two ends. Each end learns on its own that it is over."""

    peer: str
    actor: Actor
    socket: int
    connection: str
    up: SocketLane = field(default_factory=SocketLane)
    down: SocketLane = field(default_factory=SocketLane)
    is_whole: bool = True
