"""A hub with much to do: a message to a thousand clients, ten thousand clients that say nothing, a thousand that come
back after kill -9; and a publish beside many that are stored."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from semel.bench.pubsub_load import (
    FIRST_ID,
    GOODBYE,
    Answers,
    Marked,
    PublishLoad,
    Subscriber,
    Wire,
    acks,
    drive,
    masked,
    open_clients,
    open_socket,
    open_sockets,
    send_frames,
)
from semel.bench.pubsub_sides import GROUP, HUB, SUBSCRIBER_PATH, SemelServer
from semel.kernel.ops import Advance, Unit
from semel.kernel.position import Position
from semel.pubsub.hub.records import NO_TERMS, accepted_event, group_target, message, stream_of
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import Data, DataType
from semel.stores import open_store

FILES_SPARE = 500
"""What processes need besides connections."""
STORE_BATCH = 1000


# -- one to many


@dataclass(frozen=True, slots=True)
class FanOut:
    deliveries_per_s: float
    p99_s: float


class _Timed(PublishLoad):
    """Remembers when each message was sent."""

    def __init__(self, sock: socket.socket, answers: Answers, block: bytes, size: int, window: int) -> None:
        super().__init__(sock, answers, block, size, window)
        self.times: list[float] = []

    def fill(self) -> None:
        super().fill()
        self.times += [time.perf_counter()] * (self.sent - len(self.times))


class _Crowd:
    def __init__(self, publisher: _Timed) -> None:
        self.times = publisher.times
        self.total = 0
        self.waits: list[float] = []


class _Member(Subscriber):
    """Every member gets every message, in order, so the place says when it was sent."""

    def __init__(self, crowd: _Crowd, *, acknowledges: bool) -> None:
        super().__init__(acknowledges=acknowledges)
        self._crowd = crowd

    def receive(self, data: bytes) -> bytes:
        before = self.count
        answer = super().receive(data)
        now, crowd = time.perf_counter(), self._crowd
        crowd.total += self.count - before
        crowd.waits += [now - sent for sent in crowd.times[before : self.count]]
        return answer


def fan_out(server: SemelServer, members: int, body_bytes: int, window: int, seconds: float) -> FanOut:
    """From a publish to subscribers with sessions. `window` messages are on their way to the last of them."""
    block, size = send_frames(GROUP, body_bytes, _messages(seconds, members))
    publisher = _Timed(open_clients(server.port, server.path(), 1)[0][0], acks(), block, size, window)
    return _fan_out(publisher, open_clients(server.port, server.path(GROUP), members), seconds, acknowledges=True)


def broadcast(port: int, members: int, body_bytes: int, window: int, seconds: float) -> FanOut:
    """The same frames from a bare listener."""
    head = f'{{"type":"message","from":"group","group":"{GROUP}","dataType":"text","data":"'
    frame = masked(f'{head}{"x" * body_bytes}","sequenceId":{FIRST_ID}}}'.encode())
    block = frame * _messages(seconds, members)
    publisher = _Timed(open_socket(port, "/client/publisher"), Marked(b"nothing"), block, len(frame), window)
    return _fan_out(publisher, list(open_sockets(port, [SUBSCRIBER_PATH] * members)), seconds, acknowledges=False)


def _messages(seconds: float, members: int) -> int:
    return max(10, int(seconds * 1_000_000 / members))


def _fan_out(
    publisher: _Timed, members: Iterable[tuple[socket.socket, bytes]], seconds: float, *, acknowledges: bool
) -> FanOut:
    crowd = _Crowd(publisher)
    wires = [Wire(sock, _Member(crowd, acknowledges=acknowledges)) for sock, _ in members]
    publisher.done = lambda: crowd.total // len(wires)
    try:
        count, took = drive(publisher, wires, seconds)
    finally:
        for wire in (publisher, *wires):
            wire.close(GOODBYE)
    waits = sorted(crowd.waits)
    return FanOut(count * len(wires) / took, waits[int(0.99 * len(waits))])


# -- many that say nothing


@dataclass(frozen=True, slots=True)
class Idle:
    connections: int
    bytes_each: float


def idle(server: SemelServer, wanted: int) -> Idle:
    """The first connection begins the hub and is not counted."""
    count = min(wanted, raise_file_limit() - FILES_SPARE)
    sockets = [sock for sock, _ in open_clients(server.port, server.path(), 1)]
    try:
        before = server.memory_bytes()
        sockets += [sock for sock, _ in open_clients(server.port, server.path(), count)]
        return Idle(count, (server.memory_bytes() - before) / count)
    finally:
        for sock in sockets:
            sock.close()


def raise_file_limit() -> int:
    """As many open files as this process may have. Servers started after it may have as many."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most if most != resource.RLIM_INFINITY else 1 << 20


# -- many that come back


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from kill -9 until the last one had everything, and of that until the server listened again."""

    sessions: int
    seconds: float
    start_s: float


class _Welcome(msgspec.Struct, rename="camel"):
    connection_id: str
    reconnection_token: str


def recover(server: SemelServer, sessions: int, missed: int, body_bytes: int) -> Recovery:
    """Sessions lose their sockets, messages are published to them, and then the server is killed."""
    paths = []
    for sock, received in open_clients(server.port, server.path(GROUP), sessions):
        paths.append(_way_back(received))
        sock.close()
    block, size = send_frames(GROUP, body_bytes, missed)
    publisher = PublishLoad(open_clients(server.port, server.path(), 1)[0][0], acks(), block, size, missed)
    drive(publisher)
    publisher.close(GOODBYE)
    begin = time.perf_counter()
    server.kill()
    server.start()
    start_s = time.perf_counter() - begin
    for sock, received in open_sockets(server.port, paths, Subprotocol.JSON_RELIABLE):
        _receive_all(Wire(sock, Subscriber(acknowledges=False), received), missed)
    return Recovery(sessions, time.perf_counter() - begin, start_s)


def _way_back(received: bytes) -> str:
    text = received[received.index(b'{"type":"system"') :]
    welcome = msgspec.json.decode(text[: text.index(b"}") + 1], type=_Welcome)
    query = {"awps_connection_id": welcome.connection_id, "awps_reconnection_token": welcome.reconnection_token}
    return f"/client/hubs/{HUB}?{urlencode(query)}"


def _receive_all(wire: Wire, count: int) -> None:
    with closing(wire):
        wire.sock.setblocking(True)
        while wire.answers.count < count:
            wire.receive()


# -- beside many that are stored


def fill(store_url: str, count: int, body_bytes: int) -> None:
    """Messages in the stream of the hub which stay there, because a cursor before them pins."""
    stream, data = stream_of(HUB), Data(DataType.TEXT, b"x" * body_bytes)
    accepted, target = accepted_event(HUB), group_target(GROUP)
    with closing(open_store(store_url)) as store:
        head = store.head(stream)
        store.commit([Unit((Advance("bench/floor", Position(stream, head.epoch, head.offset)),))])
        for first in range(0, count, STORE_BATCH):
            appends = [
                message(
                    stream, f"stored#{number}", target, data, at=time.time_ns() // 1000, sender="bench", user=None,
                    terms=NO_TERMS, on_fresh=accepted,
                )
                for number in range(first, min(count, first + STORE_BATCH))
            ]  # fmt: skip
            store.commit([Unit(tuple(appends))])


def publish(server: SemelServer, subscribers: int, frames: tuple[bytes, int], window: int, seconds: float) -> float:
    """Durable acknowledged messages per second, all of which the subscribers have got."""
    wires = [Wire(sock, Subscriber()) for sock, _ in open_clients(server.port, server.path(GROUP), subscribers)]
    [(sock, _)] = open_clients(server.port, server.path(), 1)
    publisher = PublishLoad(sock, acks(), *frames, window)
    try:
        count, took = drive(publisher, wires, seconds)
    finally:
        for wire in (publisher, *wires):
            wire.close(GOODBYE)
    return count / took


def folder_of(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder
