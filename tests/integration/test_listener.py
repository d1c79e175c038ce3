"""The listener with real sockets, on both event loops: real clients, and clients that mean no good."""

from __future__ import annotations

import asyncio
import functools
import inspect
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import websockets.asyncio.client as client
from websockets.exceptions import ConnectionClosed, InvalidStatus

from semel.http import HttpRequest, HttpResponse
from semel.runtime.server.limits import ListenerLimits
from semel.runtime.server.listener import Listener
from semel.runtime.server.part import Mount
from semel.runtime.transports.websocket import Accept, WebSocketPeer, subprotocols
from semel.testing.limits import scaled
from semel.websocket import frame

try:
    from uvloop import new_event_loop as uvloop_factory
except ModuleNotFoundError:
    LOOPS = {"asyncio": asyncio.new_event_loop}
else:
    LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop_factory}

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
WAIT_S = 30.0
UPGRADE = (
    f"GET /client/hubs/a HTTP/1.1\r\nHost: a\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n"
    f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
).encode()
GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"


def on_each_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(loop: str, **others: Any) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(asyncio.wait_for(test(**others), scaled(WAIT_S)))

    parameters = [inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    run.__signature__ = inspect.Signature([*parameters, *inspect.signature(test).parameters.values()])  # type: ignore[attr-defined]
    marked: Callable[..., None] = pytest.mark.parametrize("loop", list(LOOPS))(run)
    return marked


class Guest:
    """A service that echoes, and writes down what it hears. Paths and subprotocols tell it how to behave."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.peers: list[WebSocketPeer] = []
        self.changed = asyncio.Event()
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()
        self.echoes = True

    async def handle(self, request: HttpRequest) -> HttpResponse:
        self._note("call", request.method, request.path)
        if request.path == "/slow":
            await self.gate.wait()
        if request.path == "/fail":
            raise RuntimeError("a bug")
        if request.path.startswith("/status/"):
            return HttpResponse(int(request.path[8:]), (("x-a", "b"),), b"words")
        return HttpResponse(200, (("content-type", "text/plain"),), request.body or request.path.encode())

    async def upgrade(self, request: HttpRequest) -> Accept | HttpResponse:
        self.asked.set()
        kind = request.path.rsplit("/", 1)[-1]
        if kind == "slow":
            await self.gate.wait()
        if kind == "fail":
            raise RuntimeError("a bug")
        if kind.isdecimal():
            return HttpResponse(int(kind), (("x-reason", "no"),), f"refused {kind}".encode())
        if kind == "wrong":
            return Accept("never offered")
        offered = subprotocols(request)
        return Accept(offered[0] if offered else None, key=request.query)

    def on_open(self, peer: WebSocketPeer) -> None:
        self.peers.append(peer)
        self._note("open", peer.key, peer.subprotocol)

    def on_frames(self, peer: WebSocketPeer, messages: list[str | bytes]) -> None:
        self._note("frames", *messages)
        if self.echoes:
            peer.write(b"".join([frame(message) for message in messages]))

    def on_room(self, peer: WebSocketPeer) -> None:
        self._note("room")

    def on_stalled(self, peer: WebSocketPeer) -> None:
        self._note("stalled")

    def on_closed(self, peer: WebSocketPeer, code: int | None, reason: str) -> None:
        self._note("closed", code)

    def _note(self, *what: Any) -> None:
        self.heard.append(what)
        self.changed.set()

    def all(self, kind: str) -> list[Any]:
        return [heard[1] if len(heard) > 1 else kind for heard in self.heard if heard[0] == kind]

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


def mounted(guest: Guest) -> list[Mount]:
    """Calls everywhere, WebSockets where pub/sub has them."""
    calls = Mount("/", lambda request: guest.handle(request))
    return [calls, replace(calls, prefix="/client/", sockets=guest), replace(calls, prefix="/clients/", sockets=guest)]


@asynccontextmanager
async def open_listener(
    *, tls: ssl.SSLContext | None = None, **limits: Any
) -> AsyncIterator[tuple[Guest, Listener, int]]:
    guest = Guest()
    listener = Listener(mounted(guest), limits=ListenerLimits(**({"stop_s": 1.0, "sweep_s": 0.01} | limits)), tls=tls)
    port = await listener.listen()
    try:
        yield guest, listener, port
    finally:
        guest.gate.set()
        await listener.stop()
    assert listener.connections == 0
    assert len(guest.all("open")) == len(guest.all("closed"))


@asynccontextmanager
async def dial(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def dial_socket(
    port: int, extra: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with dial(port) as (reader, writer):
        writer.write(UPGRADE + b"\r\n" + extra)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
        yield reader, writer


async def answer(reader: asyncio.StreamReader, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    assert head[0].startswith("HTTP/1.1 ")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    size = int(headers.get("content-length", 0)) if has_body else 0
    return int(head[0].split()[1]), headers, await reader.readexactly(size)


async def server_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first, size = await reader.readexactly(2)
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    elif size == 127:
        size = int.from_bytes(await reader.readexactly(8), "big")
    return first, await reader.readexactly(size)


async def close_code(reader: asyncio.StreamReader) -> int:
    first, payload = await server_frame(reader)
    assert first == 0x88
    return int.from_bytes(payload[:2], "big")


def masked(first: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    if size < 126:
        return bytes((first, 0x80 | size)) + bytes(4) + payload
    if size < 65_536:
        return bytes((first, 0x80 | 126)) + struct.pack("!H", size) + bytes(4) + payload
    return bytes((first, 0x80 | 127)) + struct.pack("!Q", size) + bytes(4) + payload


def reset(writer: asyncio.StreamWriter) -> None:
    """Cut the connection as a crash would."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# -- a real client


@on_each_loop
async def test_a_client_connects_speaks_and_leaves() -> None:
    async with open_listener() as (guest, _, port):
        async with client.connect(f"ws://127.0.0.1:{port}/client/hubs/a?me", subprotocols=["b", "c"]) as ws:  # type: ignore[list-item]
            assert ws.subprotocol == "b"
            await ws.send("text é")
            await ws.send(b"bytes")
            await ws.send(["in ", "three ", "parts"])
            assert [await ws.recv() for _ in range(3)] == ["text é", b"bytes", "in three parts"]
            await (await ws.ping())
        await guest.until(lambda: guest.all("closed"))
        assert guest.heard[0] == ("open", "me", "b")
        assert guest.heard[-1] == ("closed", 1000)


@on_each_loop
async def test_a_large_message_goes_there_and_back_and_a_larger_one_does_not() -> None:
    async with open_listener(frame_bytes=1 << 20) as (guest, _, port):
        async with client.connect(f"ws://127.0.0.1:{port}/client/hubs/a", max_size=None, compression=None) as ws:
            await ws.send(bytes(1 << 20))
            assert await ws.recv() == bytes(1 << 20)
            with suppress(ConnectionClosed):
                await ws.send(bytes((1 << 20) + 1))
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            assert ws.close_code == 1009
        await guest.until(lambda: guest.all("closed") == [1009])


@on_each_loop
async def test_the_server_closes_after_what_it_has_written() -> None:
    async with open_listener() as (guest, _, port):
        async with client.connect(f"ws://127.0.0.1:{port}/client/hubs/a") as ws:
            await guest.until(lambda: guest.peers)
            guest.peers[0].write(frame("one") + frame("two"))
            guest.peers[0].close(1008, "enough")
            assert [message async for message in aiter_all(ws)] == ["one", "two"]
            assert (ws.close_code, ws.close_reason) == (1008, "enough")
        await guest.until(lambda: guest.all("closed") == [1008])


async def aiter_all(ws: client.ClientConnection) -> AsyncIterator[str | bytes]:
    with suppress(ConnectionClosed):
        while True:
            yield await ws.recv()


@on_each_loop
async def test_many_clients_at_once() -> None:
    async with open_listener() as (_, listener, port):

        async def talk(number: int) -> None:
            async with client.connect(f"ws://127.0.0.1:{port}/client/hubs/a") as ws:
                for turn in range(20):
                    await ws.send(f"{number} {turn}")
                assert [await ws.recv() for _ in range(20)] == [f"{number} {turn}" for turn in range(20)]

        await asyncio.gather(*(talk(number) for number in range(50)))
        assert listener.limits.connections > 50


# -- the handshake


@pytest.mark.parametrize("status", [400, 401, 404, 500])
@on_each_loop
async def test_a_refusal_reaches_the_client_with_its_body(status: int) -> None:
    async with open_listener() as (guest, _, port):
        with pytest.raises(InvalidStatus) as caught:
            await client.connect(f"ws://127.0.0.1:{port}/client/hubs/{status}")
        response = caught.value.response
        assert (response.status_code, response.body) == (status, f"refused {status}".encode())
        assert response.headers["x-reason"] == "no"
        assert guest.heard == []


@pytest.mark.parametrize("kind", ["fail", "wrong"])
@on_each_loop
async def test_a_service_that_fails_is_a_500(kind: str) -> None:
    async with open_listener() as (_, _, port):
        with pytest.raises(InvalidStatus) as caught:
            await client.connect(f"ws://127.0.0.1:{port}/client/hubs/{kind}")
        assert caught.value.response.status_code == 500


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ((b"Version: 13", b"Version: 12"), 426),
        ((KEY.encode(), b"short"), 400),
        ((b"GET", b"POST"), 400),
        ((b"Host: a\r\n", b""), 400),
        ((b"Host: a\r\n", b"Host: a\r\nContent-Length: 8\r\n"), 400),
        ((b"Host: a\r\n", b"Host: a\r\nTransfer-Encoding: chunked\r\n"), 400),
        ((b"/client/hubs/a", b"/other"), 200),  # not a place for WebSockets: an ordinary request
        ((b"WebSocket", b"h2c"), 200),
    ],
)
@on_each_loop
async def test_a_handshake_that_is_not_one(change: tuple[bytes, bytes], status: int) -> None:
    async with open_listener() as (guest, _, port), dial(port) as (reader, writer):
        writer.write(UPGRADE.replace(*change) + b"\r\n" + masked(0x81, b"not read"))
        code, headers, _ = await answer(reader)
        assert (code, headers["connection"]) == (status, "close")
        assert await reader.read() == b""
        assert not guest.peers


@on_each_loop
async def test_nothing_is_read_while_the_service_thinks_and_nothing_is_lost() -> None:
    async with open_listener() as (guest, _, port), dial(port) as (reader, writer):
        texts = [f"{number:05}" for number in range(20_000)]
        writer.write(UPGRADE.replace(b"hubs/a", b"hubs/slow") + b"\r\n")
        await guest.asked.wait()
        writer.write(b"".join(masked(0x81, text.encode()) for text in texts))
        assert guest.heard == []
        guest.gate.set()
        await reader.readuntil(b"\r\n\r\n")
        assert [(await server_frame(reader))[1].decode() for _ in texts] == texts


@on_each_loop
async def test_a_frame_that_comes_with_the_handshake_is_heard_after_the_opening() -> None:
    early = [bytes((number,)) * 10_000 for number in range(5)]
    extra = b"".join(masked(0x82, message) for message in early)
    async with open_listener() as (guest, _, port), dial_socket(port, extra) as (reader, _):
        assert [(await server_frame(reader))[1] for _ in early] == early
        assert guest.heard[0][0] == "open"


@on_each_loop
async def test_a_service_that_takes_too_long_is_a_503() -> None:
    async with open_listener(upgrade_s=0.02) as (_, _, port), dial(port) as (reader, writer):
        writer.write(UPGRADE.replace(b"hubs/a", b"hubs/slow") + b"\r\n")
        assert (await answer(reader))[0] == 503


@on_each_loop
async def test_a_client_that_goes_during_the_handshake_leaves_nothing_behind() -> None:
    async with open_listener() as (guest, listener, port), dial(port) as (_, writer):
        writer.write(UPGRADE.replace(b"hubs/a", b"hubs/slow") + b"\r\n")
        await guest.asked.wait()
        reset(writer)
        guest.gate.set()
        await listener._empty.wait()
        assert len(guest.all("open")) == len(guest.all("closed"))


@on_each_loop
async def test_a_websocket_may_follow_calls_on_the_same_connection() -> None:
    async with open_listener() as (_, _, port), dial(port) as (reader, writer):
        writer.write(GET + GET + UPGRADE + b"\r\n" + masked(0x81, b"hi"))
        assert [(await answer(reader))[0] for _ in range(2)] == [200, 200]
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert await server_frame(reader) == (0x81, b"hi")


# -- hostile frames


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x02hi", 1002),
        (masked(0xC1, b"x"), 1002),
        (masked(0x83, b"x"), 1002),
        (masked(0x09, b"x"), 1002),
        (masked(0x80, b"x"), 1002),
        (masked(0x81, b"\xff"), 1007),
        (b"\x82\xff" + struct.pack("!Q", 1 << 40) + bytes(4) + bytes(200_000), 1009),
        (b"\x00" * 1000, 1002),
        (b"GET / HTTP/1.1\r\n\r\n", 1002),
    ],
)
@on_each_loop
async def test_a_broken_frame_is_answered_with_its_code_though_more_is_on_its_way(data: bytes, code: int) -> None:
    async with open_listener() as (guest, _, port), dial_socket(port) as (reader, writer):
        writer.write(masked(0x81, b"good") + data + bytes(300_000))
        assert await server_frame(reader) == (0x81, b"good")
        assert await close_code(reader) == code
        assert await reader.read() == b""
        writer.close()
        await guest.until(lambda: guest.all("closed") == [code])


@on_each_loop
async def test_control_frames_may_come_between_the_parts_of_a_message() -> None:
    async with open_listener() as (_, _, port), dial_socket(port) as (reader, writer):
        for part in (masked(0x01, b"on"), masked(0x89, b"p"), masked(0x00, b"e "), masked(0x8A), masked(0x80, b"two")):
            writer.write(part)
        assert {await server_frame(reader), await server_frame(reader)} == {(0x8A, b"p"), (0x81, b"one two")}


@on_each_loop
async def test_one_byte_at_a_time_is_slow_but_right() -> None:
    async with open_listener() as (_, _, port), dial_socket(port) as (reader, writer):
        for byte in masked(0x81, b"patience"):
            writer.write(bytes((byte,)))
            await writer.drain()
        assert await server_frame(reader) == (0x81, b"patience")


@pytest.mark.parametrize(
    ("payload", "code"), [(b"", 1005), (struct.pack("!H", 1001), 1001), (struct.pack("!H", 4000), 4000)]
)
@on_each_loop
async def test_the_code_of_a_close_frame_is_heard_and_given_back(payload: bytes, code: int) -> None:
    async with open_listener() as (guest, _, port), dial_socket(port) as (reader, writer):
        writer.write(masked(0x88, payload))
        assert await server_frame(reader) == (0x88, payload)
        assert await reader.read() == b""
        await guest.until(lambda: guest.all("closed") == [code])


@pytest.mark.parametrize("how", ["reset", "half"])
@on_each_loop
async def test_a_connection_that_ends_without_a_word_is_closed_without_a_code(how: str) -> None:
    async with open_listener() as (guest, _, port), dial_socket(port) as (reader, writer):
        if how == "reset":
            reset(writer)
        else:
            writer.write_eof()
            assert await reader.read() == b""
        await guest.until(lambda: guest.all("closed") == [None])


# -- time and room


@on_each_loop
async def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    async with open_listener(ping_s=0.05, dead_s=0.3) as (guest, _, port), dial_socket(port) as (reader, _):
        assert await server_frame(reader) == (0x89, b"")
        await guest.until(lambda: guest.all("closed") == [None])


@on_each_loop
async def test_a_client_that_answers_pings_stays() -> None:
    async with (
        open_listener(ping_s=scaled(0.02), dead_s=scaled(0.4)) as (guest, _, port),
        dial_socket(port) as (reader, writer),
    ):
        for _ in range(30):
            assert await server_frame(reader) == (0x89, b"")
            writer.write(masked(0x8A))
        assert guest.all("closed") == []


@on_each_loop
async def test_a_slow_reader_is_full_then_stalled_and_has_room_when_it_reads() -> None:
    limits = {"full_bytes": 64 * 1024, "room_bytes": 16 * 1024, "stalled_bytes": 1024 * 1024}
    async with open_listener(**limits) as (guest, _, port), dial_socket(port) as (reader, _):
        await guest.until(lambda: guest.peers)
        peer, sent = guest.peers[0], 0
        block = frame(bytes(64 * 1024))
        was_full = False
        while not guest.all("stalled"):
            was_full = not peer.write(block) or was_full
            sent += len(block)
            await asyncio.sleep(0)
        assert was_full
        assert peer.is_full
        assert peer.pending_bytes > limits["stalled_bytes"]
        await reader.readexactly(sent)
        await guest.until(lambda: guest.all("room"))
        assert not peer.is_full


@on_each_loop
async def test_a_stalled_peer_can_be_aborted_and_one_that_closes_is_cut_off() -> None:
    limits = {"full_bytes": 64 * 1024, "room_bytes": 16 * 1024, "stalled_bytes": 1024 * 1024, "close_s": 0.1}
    async with open_listener(**limits) as (guest, _, port), dial_socket(port), dial_socket(port):
        await guest.until(lambda: len(guest.peers) == 2)
        while len(guest.all("stalled")) < 2:
            for peer in guest.peers:
                peer.write(bytes(64 * 1024))
            await asyncio.sleep(0)
        guest.peers[0].abort()
        guest.peers[1].close(1008)
        await guest.until(lambda: sorted(guest.all("closed"), key=str) == [1008, None])


@on_each_loop
async def test_a_peer_that_is_held_waits_in_the_socket() -> None:
    async with open_listener() as (guest, _, port), dial_socket(port) as (reader, writer):
        await guest.until(lambda: guest.peers)
        guest.peers[0].hold()
        writer.write(masked(0x81, b"later"))
        async with dial(port) as (other, ask):
            ask.write(GET)
            await answer(other)
        assert guest.all("frames") == []
        guest.peers[0].release()
        assert await server_frame(reader) == (0x81, b"later")


# -- HTTP


@on_each_loop
async def test_calls_are_answered_in_order_on_one_connection() -> None:
    async with open_listener() as (_, _, port), dial(port) as (reader, writer):
        paths = [f"/{number}" for number in range(3000)]
        writer.write(b"".join(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode() for path in paths))
        assert [(await answer(reader))[2].decode() for _ in paths] == paths


@on_each_loop
async def test_a_connection_stays_after_errors_of_the_service() -> None:
    async with open_listener() as (_, _, port), dial(port) as (reader, writer):
        for path, status in [("/fail", 500), ("/status/404", 404), ("/status/204", 204), ("/fail", 500), ("/", 200)]:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            code, headers, body = await answer(reader)
            assert code == status
            assert ("content-length" in headers) == (status != 204)
            assert bool(body) == (status != 204)


@on_each_loop
async def test_head_has_the_length_and_not_the_body() -> None:
    async with open_listener() as (_, _, port), dial(port) as (reader, writer):
        writer.write(b"HEAD /four HTTP/1.1\r\nHost: a\r\n\r\nOPTIONS /five HTTP/1.1\r\nHost: a\r\n\r\n")
        status, headers, _ = await answer(reader, has_body=False)
        assert (status, headers["content-length"]) == (200, "5")
        assert (await answer(reader))[2] == b"/five"


@on_each_loop
async def test_bodies_in_chunks_with_trailers_and_after_a_question() -> None:
    async with open_listener() as (_, _, port), dial(port) as (reader, writer):
        writer.write(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-T: 1\r\n\r\n"
        )
        assert (await answer(reader))[2] == b"abcde"
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"ok")
        assert (await answer(reader))[2] == b"ok"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS on a port without
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 33_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 5_000_000, 431),  # without an end
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"\r\n" * 100_000, 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n", 413),  # before any of it has come
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n" + bytes(1_000_000), 413),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"ffff\r\n" + bytes(65_535) + b"\r\n",
            413,
        ),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)
@on_each_loop
async def test_what_is_wrong_or_too_much_is_said_and_the_connection_ends(data: bytes, status: int) -> None:
    async with (
        open_listener(head_bytes=32 * 1024, body_bytes=50_000) as (guest, _, port),
        dial(port) as (reader, writer),
    ):
        writer.write(data)
        code, headers, _ = await answer(reader)
        assert (code, headers["connection"]) == (status, "close")
        assert await reader.read() == b""
        assert guest.heard == []


@on_each_loop
async def test_good_requests_before_a_bad_one_are_answered_first() -> None:
    async with open_listener() as (_, _, port), dial(port) as (reader, writer):
        writer.write(GET + GET + b"NONSENSE\r\n\r\n" + GET)
        assert [(await answer(reader))[0] for _ in range(3)] == [200, 200, 400]
        assert await reader.read() == b""


@pytest.mark.parametrize("data", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n1"])
@on_each_loop
async def test_who_sends_slowly_is_not_waited_for(data: bytes) -> None:
    async with open_listener(head_s=0.1, body_s=0.1) as (_, _, port), dial(port) as (reader, writer):
        writer.write(data)
        if data:
            assert (await answer(reader))[0] == 408
        assert await reader.read() == b""


@on_each_loop
async def test_a_head_that_comes_byte_by_byte_has_no_more_time_than_another() -> None:
    async with open_listener(head_s=0.2) as (_, _, port), dial(port) as (reader, writer):
        reply = asyncio.ensure_future(answer(reader))
        for byte in b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000:
            if reply.done():
                break
            writer.write(bytes((byte,)))
            await asyncio.wait([reply], timeout=0.01)
        assert (await reply)[0] == 408


@on_each_loop
async def test_an_idle_connection_is_closed() -> None:
    async with open_listener(idle_s=0.05) as (_, _, port), dial(port) as (reader, writer):
        writer.write(GET)
        await answer(reader)
        assert await reader.read() == b""


@on_each_loop
async def test_old_clients_and_those_that_want_to_leave() -> None:
    async with open_listener() as (_, _, port):
        for head, goes_on in [
            (b"GET / HTTP/1.0\r\n\r\n", False),
            (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
            (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", False),
        ]:
            async with dial(port) as (reader, writer):
                writer.write(head)
                _, headers, _ = await answer(reader)
                assert headers.get("connection") == ("keep-alive" if goes_on else "close")
                if not goes_on:
                    assert await reader.read() == b""


@on_each_loop
async def test_who_has_ended_its_half_still_gets_its_answers() -> None:
    async with open_listener() as (guest, _, port), dial(port) as (reader, writer):
        writer.write(GET + GET.replace(b"/x", b"/slow"))
        writer.write_eof()
        assert (await answer(reader))[0] == 200
        await guest.until(lambda: len(guest.all("call")) == 2)
        guest.gate.set()
        assert (await answer(reader))[0] == 200
        assert await reader.read() == b""


@on_each_loop
async def test_a_call_whose_client_has_gone_is_finished_all_the_same() -> None:
    async with open_listener() as (guest, listener, port), dial(port) as (_, writer):
        writer.write(GET.replace(b"/x", b"/slow"))
        await guest.until(lambda: guest.all("call"))
        reset(writer)
        async with dial(port) as (reader, other):
            other.write(GET)
            await answer(reader)
        assert listener.connections >= 1
        guest.gate.set()
        await listener.stop()
        assert listener.connections == 0


# -- limits on connections, and stopping


@on_each_loop
async def test_too_many_connections_are_told_so() -> None:
    async with (
        open_listener(connections=2) as (_, _, port),
        dial_socket(port),
        dial_socket(port),
        dial(port) as (reader, _),
    ):
        assert (await answer(reader))[0] == 503
        assert await reader.read() == b""


@on_each_loop
async def test_too_many_connections_from_one_address_are_told_so_until_one_leaves() -> None:
    async with open_listener(connections_per_address=1) as (guest, listener, port):
        async with dial_socket(port), dial(port) as (reader, _):
            assert (await answer(reader))[0] == 429
        await guest.until(lambda: guest.all("closed"))
        await listener._empty.wait()
        async with dial_socket(port):
            assert listener.connections == 1


@on_each_loop
async def test_stopping_closes_sockets_with_1001_and_finishes_calls() -> None:
    async with (
        open_listener(stop_s=scaled(60.0), close_s=scaled(60.0)) as (guest, listener, port),
        client.connect(f"ws://127.0.0.1:{port}/client/hubs/a") as ws,
        dial(port) as (idle, idle_writer),
        dial(port) as (half, half_writer),
        dial(port) as (busy, busy_writer),
    ):
        idle_writer.write(GET)
        await answer(idle)
        half_writer.write(GET + GET[:9])
        await answer(half)
        busy_writer.write(GET.replace(b"/x", b"/slow") + GET)
        await guest.until(lambda: "/slow" in [heard[-1] for heard in guest.heard])
        stopping = asyncio.ensure_future(listener.stop())
        with pytest.raises(ConnectionClosed):
            await ws.recv()
        assert ws.close_code == 1001
        assert await idle.read() == b""
        assert (await answer(half))[0] == 503
        half_writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert not stopping.done()
        guest.gate.set()
        status, headers, _ = await answer(busy)
        assert (status, headers["connection"]) == (200, "close")
        assert await busy.read() == b""
        busy_writer.close()
        await stopping


@on_each_loop
async def test_who_is_let_in_while_the_server_stops_is_told_to_come_again() -> None:
    async with open_listener(stop_s=scaled(60.0)) as (guest, listener, port), dial(port) as (reader, writer):
        writer.write(UPGRADE.replace(b"hubs/a", b"hubs/slow") + b"\r\n")
        await guest.asked.wait()
        stopping = asyncio.ensure_future(listener.stop())
        await asyncio.sleep(0)
        guest.gate.set()
        status, headers, _ = await answer(reader)
        assert (status, headers["retry-after"]) == (503, "1")
        writer.close()
        await stopping
        assert not guest.peers


@on_each_loop
async def test_stopping_waits_no_longer_than_it_should() -> None:
    async with (
        open_listener(stop_s=0.05, close_s=5.0) as (guest, listener, port),
        dial_socket(port) as (reader, _),
        dial(port) as (_, writer),
    ):
        writer.write(GET.replace(b"/x", b"/slow"))
        await guest.until(lambda: guest.all("call"))
        await listener.stop()
        assert listener.connections == 0
        assert await close_code(reader) == 1001


# -- TLS. The key is nobody's: it was made for this file and is good for localhost only.

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUPT6z5afdcVxDJcRn0MIhQtW7GbgwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNTIzMTAyNVoYDzIxMjYxMDIy
MjMxMDI1WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASmV7gxzpdBOvxgyx8VxZLyIyh8BUwdIQR8QbUkDYmRYJtauI2U+HkP
cinBgSuo6Nk8KrviuDIOn02kqoxam53Io28wbTAdBgNVHQ4EFgQUkZ1dWbUl67da
mBqiuHz37QZ1XiIwHwYDVR0jBBgwFoAUkZ1dWbUl67damBqiuHz37QZ1XiIwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIgeavo1qhdPY27MjhEYeG6fCrUDyPhoZN+FCw9OmIx6b0CIQCG
IXiA1VvQA/5oBRNcnH3ZZOO55k93bYDVeBMcU54pJg==
-----END CERTIFICATE-----
"""
PRIVATE_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgUS2UXW7dJLlJ+AZa
vsXMew6I+RCWz9hPnqTP2XJhNF2hRANCAASmV7gxzpdBOvxgyx8VxZLyIyh8BUwd
IQR8QbUkDYmRYJtauI2U+HkPcinBgSuo6Nk8KrviuDIOn02kqoxam53I
-----END PRIVATE KEY-----
"""


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For the server and for its clients."""
    (tmp_path / "both.pem").write_text(CERTIFICATE + PRIVATE_KEY)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "both.pem")
    return server, ssl.create_default_context(cadata=CERTIFICATE)


@on_each_loop
async def test_all_of_it_over_tls(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server_tls, client_tls = tls
    async with open_listener(tls=server_tls) as (guest, _, port):
        async with client.connect(f"wss://localhost:{port}/client/hubs/a", ssl=client_tls) as ws:
            await ws.send("hi")
            assert await ws.recv() == "hi"
        reader, writer = await asyncio.open_connection("localhost", port, ssl=client_tls)
        writer.write(GET)
        assert (await answer(reader))[2] == b"/x"
        writer.write(b"NONSENSE\r\n\r\n")
        assert (await answer(reader))[0] == 400
        writer.close()
        await guest.until(lambda: guest.all("closed") == [1000])
