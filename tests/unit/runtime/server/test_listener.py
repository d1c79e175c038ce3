from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigError
from semel.http import HttpRequest, HttpResponse
from semel.pubsub.protocol.messages import CloseCode
from semel.pubsub.protocol.wire import frame
from semel.runtime.server.connection import HttpConnection
from semel.runtime.server.limits import ListenerLimits
from semel.runtime.server.listener import Listener
from semel.runtime.server.mounts import Mount
from semel.runtime.transports.websocket import (
    NO_CODE,
    Accept,
    CloseFrame,
    FrameReader,
    WebSocketPeer,
    check_upgrade,
    close_frame,
    subprotocols,
)

LIMIT = 1024


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


def read(*parts: bytes, limit: int = LIMIT) -> tuple[list[str | bytes], FrameReader]:
    reader = FrameReader(limit)
    return [message for part in parts for message in reader.feed(part)], reader


payloads = st.one_of(st.text(max_size=300), st.binary(max_size=300))
masks = st.binary(min_size=4, max_size=4)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[str | bytes]]:
    """Messages as a client may send them: whole or in parts, with pings and pongs anywhere."""
    data, expected = b"", draw(st.lists(payloads, max_size=6))
    for message in expected:
        kind, body = (1, message.encode()) if isinstance(message, str) else (2, message)
        parts = pieces(body, draw(st.lists(st.integers(0, 300), max_size=3)))
        for number, part in enumerate(parts):
            first = (kind if number == 0 else 0) | (0x80 if number == len(parts) - 1 else 0)
            data += masked(first, part, draw(masks))
            if draw(st.booleans()):
                data += masked(draw(st.sampled_from([0x89, 0x8A])), draw(st.binary(max_size=125)), draw(masks))
    return data, expected


class TestReadingFrames:
    @given(streams(), st.lists(st.integers(0, 3000), max_size=8))
    def test_messages_come_out_whole_however_the_bytes_are_cut(
        self, stream: tuple[bytes, list[str | bytes]], cuts: list[int]
    ) -> None:
        data, expected = stream
        messages, reader = read(*pieces(data, cuts))
        assert (messages, reader.close) == (expected, None)

    @given(streams())
    def test_one_byte_at_a_time_is_enough(self, stream: tuple[bytes, list[str | bytes]]) -> None:
        data, expected = stream
        messages, _ = read(*(data[i : i + 1] for i in range(len(data))))
        assert messages == expected

    @given(st.lists(st.binary(max_size=200), max_size=5))
    def test_whatever_comes_nothing_is_raised_and_nothing_is_read_after_a_close(self, parts: list[bytes]) -> None:
        reader = FrameReader(LIMIT)
        for part in parts:
            was_closed = reader.close is not None
            messages = reader.feed(part)
            assert not (was_closed and messages)

    @given(st.binary(max_size=200).filter(lambda data: data[:1] not in (b"\x81", b"\x82")))
    def test_garbage_is_a_protocol_error_or_is_waited_on(self, garbage: bytes) -> None:
        _, reader = read(garbage)
        if reader.close is not None and reader.close.is_fault:
            assert reader.close.code in (1002, 1007, 1009)

    @pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536])
    def test_every_form_of_length(self, size: int) -> None:
        messages, _ = read(masked(0x82, bytes(size)), limit=100_000)
        assert messages == [bytes(size)]

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (b"\x81\x02hi", 1002),  # not masked
            (masked(0xC1, b"x"), 1002),  # reserved bits
            (masked(0xA1, b"x"), 1002),
            (masked(0x91, b"x"), 1002),
            (masked(0x83, b"x"), 1002),  # kinds that do not exist
            (masked(0x8B, b"x"), 1002),
            (masked(0x09, b"x"), 1002),  # a ping in parts
            (b"\x89\xfe\x00\x7e", 1002),  # a ping of 126 bytes
            (masked(0x80, b"x"), 1002),  # a continuation of nothing
            (masked(0x00, b"x"), 1002),
            (masked(0x01, b"x") + masked(0x81, b"y"), 1002),  # a message within a message
            (masked(0x01, b"x") + masked(0x02, b"y"), 1002),
            (b"\x81\xfe\x00\x7d" + bytes(4), 1002),  # 125 in two bytes
            (b"\x81\xff" + struct.pack("!Q", 65_535) + bytes(4), 1002),
            (b"\x81\xff" + b"\x80" + bytes(7) + bytes(4), 1002),  # a length below zero
            (masked(0x81, b"\xff"), 1007),
            (masked(0x81, b"\xed\xa0\x80"), 1007),  # half a surrogate pair
            (masked(0x01, b"\xc3") + masked(0x80, b"("), 1007),
            (b"\x82\xfe" + struct.pack("!H", LIMIT + 1) + bytes(4), 1009),  # before the payload has come
            (b"\x82\xff" + struct.pack("!Q", 1 << 40) + bytes(4), 1009),
            (masked(0x02, bytes(LIMIT)) + masked(0x80, b"x"), 1009),
            (masked(0x88, b"\x03"), 1002),  # half a code
            (masked(0x88, struct.pack("!H", 999)), 1002),
            (masked(0x88, struct.pack("!H", 1005)), 1002),
            (masked(0x88, struct.pack("!H", 1006)), 1002),
            (masked(0x88, struct.pack("!H", 5000)), 1002),
            (masked(0x88, struct.pack("!H", 1000) + b"\xff"), 1007),
        ],
    )
    def test_what_breaks_the_protocol_is_named_by_its_code(self, data: bytes, code: int) -> None:
        _, reader = read(data)
        assert reader.close is not None
        assert (reader.close.code, reader.close.is_fault) == (code, True)
        assert reader.close.reason

    def test_what_came_before_a_fault_is_handed_over(self) -> None:
        messages, reader = read(masked(0x81, b"one") + masked(0x82, b"two") + b"\x81\x01x" + masked(0x81, b"three"))
        assert messages == ["one", b"two"]
        assert reader.close is not None

    def test_the_largest_message_passes_whole_and_in_parts(self) -> None:
        body = bytes(LIMIT)
        messages, reader = read(masked(0x82, body) + masked(0x02, body[:500]) + masked(0x80, body[500:]))
        assert (messages, reader.close) == ([body, body], None)

    def test_a_text_may_be_cut_inside_a_character(self) -> None:
        messages, _ = read(masked(0x01, "é".encode()[:1]) + masked(0x80, "é".encode()[1:]))
        assert messages == ["é"]

    def test_the_last_ping_of_a_read_is_kept(self) -> None:
        _, reader = read(masked(0x89, b"a") + masked(0x89, b"b"))
        assert reader.ping == b"b"

    @pytest.mark.parametrize(
        ("payload", "close"),
        [
            (b"", CloseFrame(NO_CODE)),
            (struct.pack("!H", 1000), CloseFrame(1000)),
            (struct.pack("!H", 1001) + "adieu é".encode(), CloseFrame(1001, "adieu é")),
            (struct.pack("!H", 4999) + b"mine", CloseFrame(4999, "mine")),
        ],
    )
    def test_a_close_frame_says_code_and_reason_and_is_the_last(self, payload: bytes, close: CloseFrame) -> None:
        messages, reader = read(masked(0x81, b"x") + masked(0x88, payload) + masked(0x81, b"late"))
        assert (messages, reader.close) == (["x"], close)

    def test_a_frame_of_ours_can_be_read_again(self) -> None:
        ours = frame("x" * 200)
        assert ours[:2] == b"\x81\x7e"
        assert close_frame(1001, "bye") == b"\x88\x05\x03\xe9bye"

    @given(st.text(max_size=200), st.sampled_from([1000, 1001, 1008, 4000]))
    def test_a_close_frame_never_breaks_the_protocol(self, reason: str, code: int) -> None:
        sent = close_frame(code, reason)
        assert sent[0] == 0x88
        assert sent[1] == len(sent) - 2 <= 125
        _, reader = read(masked(0x88, sent[2:]))
        assert reader.close is not None
        assert reader.close.code == code
        assert reason.encode(errors="replace").decode().startswith(reader.close.reason)


class TestShakingHands:
    GOOD = {"sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}  # noqa: RUF012

    def test_a_good_request_has_nothing_wrong(self) -> None:
        assert check_upgrade(HttpRequest("GET", "/client/", headers=self.GOOD)) is None

    @pytest.mark.parametrize(
        ("changes", "status"),
        [
            ({"sec-websocket-version": "8"}, 426),
            ({"sec-websocket-version": ""}, 426),
            ({"sec-websocket-key": ""}, 400),
            ({"sec-websocket-key": "no base 64"}, 400),
            ({"sec-websocket-key": "é"}, 400),
            ({"sec-websocket-key": "c2hvcnQ="}, 400),
        ],
    )
    def test_a_bad_one_is_told_what_is_wrong(self, changes: dict[str, str], status: int) -> None:
        refusal = check_upgrade(HttpRequest("GET", "/client/", headers=self.GOOD | changes))
        assert refusal is not None
        assert refusal.status == status
        assert refusal.body

    def test_only_a_get_without_a_body_will_do(self) -> None:
        for request in (
            HttpRequest("POST", "/", headers=self.GOOD),
            HttpRequest("GET", "/", headers=self.GOOD, body=b"x"),
        ):
            assert check_upgrade(request) is not None

    @pytest.mark.parametrize(("header", "names"), [("", ()), ("a", ("a",)), (" a ,, b,a", ("a", "b", "a")), (",", ())])
    def test_subprotocols_keep_their_order(self, header: str, names: tuple[str, ...]) -> None:
        assert subprotocols(HttpRequest("GET", "/", headers={"sec-websocket-protocol": header})) == names


class TestLimits:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"connections": 0},
            {"head_s": -1.0},
            {"ping_s": 60.0, "dead_s": 60.0},
            {"room_bytes": 10, "full_bytes": 5},
            {"full_bytes": 10, "room_bytes": 5, "stalled_bytes": 9},
        ],
    )
    def test_limits_that_contradict_each_other_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            ListenerLimits(**wrong)


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


def connected(**limits: Any) -> tuple[WebSocketPeer, Line, Guest, Listener]:
    guest, line = Guest(), Line()
    listener = Listener(mounted(guest), limits=ListenerLimits(**limits))
    listener._loop = asyncio.get_running_loop()
    connection = HttpConnection(listener)
    connection.connection_made(line)
    peer = WebSocketPeer(listener, guest, line, Accept(key="a"), connection.address)
    listener._count(peer)
    peer.begin(connection.hand_over(peer))
    return peer, line, guest, listener


def now() -> float:
    return asyncio.get_running_loop().time()


class TestPeer:
    async def test_what_came_in_one_read_is_handed_over_together(self) -> None:
        peer, _, guest, _ = connected()
        peer.data_received(masked(0x81, b"one") + masked(0x82, b"two") + masked(0x81, b"thr")[:-1])
        assert guest.heard == [("open",), ("frames", "one", b"two")]

    async def test_what_is_written_in_one_tick_goes_out_together(self) -> None:
        peer, line, _, _ = connected()
        assert peer.write(frame("a") + frame("b"))
        assert peer.write(frame("c"))
        assert line.written == []
        await asyncio.sleep(0)
        assert line.written == [frame("a") + frame("b") + frame("c")]

    async def test_a_ping_is_answered_after_what_was_written(self) -> None:
        peer, line, _, _ = connected()
        peer.write(frame("a"))
        peer.data_received(masked(0x89, b"hi"))
        assert line.written == [frame("a"), b"\x8a\x02hi"]
        await asyncio.sleep(0)
        assert len(line.written) == 2

    async def test_a_silent_peer_is_pinged_and_then_given_up(self) -> None:
        peer, line, guest, _ = connected(ping_s=20, dead_s=60)
        start = now()
        for second in range(59):
            peer.check(start + second)
        assert line.written == [b"\x89\x00"] * 2
        assert not line.is_aborted
        peer.check(start + 61)
        assert line.is_aborted
        peer.connection_lost(None)
        assert guest.heard[-1] == ("closed", None, "nothing came for 60 s")

    async def test_a_pong_is_a_sign_of_life(self) -> None:
        peer, line, _, _ = connected(ping_s=20, dead_s=60)
        peer._heard = now() - 61
        peer.data_received(masked(0x8A, b""))
        peer.check(now())
        assert not line.is_aborted
        assert line.written == []

    async def test_who_is_held_is_not_read_and_not_given_up(self) -> None:
        peer, line, _, _ = connected()
        peer.hold()
        assert not line.is_reading_
        peer.check(now() + 1000)
        assert not line.is_aborted
        peer._heard -= 1000
        peer.release()
        assert line.is_reading_
        peer.check(now() + 1)
        assert not line.is_aborted

    async def test_a_close_goes_out_after_what_was_written_and_takes_no_more(self) -> None:
        peer, line, guest, _ = connected()
        peer.write(frame("last"))
        peer.close(1008, "enough")
        peer.close(1000, "again")
        assert not peer.write(frame("late"))
        await asyncio.sleep(0)
        assert line.written == [frame("last"), close_frame(1008, "enough")]
        peer.data_received(masked(0x81, b"ignored"))
        peer.data_received(masked(0x88, struct.pack("!H", 1008)))
        assert line.is_closed
        peer.connection_lost(None)
        assert guest.heard == [("open",), ("closed", 1008, "enough")]

    async def test_who_does_not_answer_a_close_is_cut_off(self) -> None:
        peer, line, _, _ = connected(close_s=5)
        peer.close()
        peer.check(now() + 4)
        assert not line.is_aborted
        peer.check(now() + 6)
        assert line.is_aborted

    async def test_who_holds_its_buffer_full_while_leaving_is_cut_off(self) -> None:
        peer, line, _, _ = connected(close_s=5)
        peer.data_received(masked(0x88, b""))
        assert line.written == [b"\x88\x00"]
        assert line.is_closed
        peer.check(now() + 6)
        assert line.is_aborted

    async def test_a_fault_is_named_and_the_rest_is_not_read(self) -> None:
        peer, line, guest, _ = connected()
        peer.data_received(masked(0x81, b"good") + b"\x81\x00")
        assert line.written[-1][:4] == b"\x88" + bytes((len(line.written[-1]) - 2,)) + struct.pack("!H", 1002)
        assert line.is_ended
        peer.data_received(masked(0x81, b"more"))
        peer.eof_received()
        peer.connection_lost(None)
        assert [heard[:2] for heard in guest.heard] == [("open",), ("frames", "good"), ("closed", 1002)]

    async def test_full_and_room_and_stalled_are_each_said_once(self) -> None:
        peer, line, guest, _ = connected(full_bytes=100, room_bytes=50, stalled_bytes=1000)
        assert line.marks == (100, 50)
        line.stuck = 110
        peer.pause_writing()
        assert peer.is_full
        assert peer.pending_bytes == 110
        line.stuck = 1001
        for _ in range(2):
            assert not peer.write(b"x")
            await asyncio.sleep(0)
        assert guest.heard == [("open",), ("stalled",)]
        line.stuck = 0
        peer.resume_writing()
        assert peer.write(b"x")
        assert guest.heard == [("open",), ("stalled",), ("room",)]
        line.stuck = 1001
        peer.pause_writing()
        await asyncio.sleep(0)
        assert guest.heard[-1] == ("stalled",)

    @pytest.mark.parametrize("is_held", [False, True])
    async def test_who_takes_nothing_is_given_up_though_it_talks(self, is_held: bool) -> None:
        """It would keep its memory for as long as it likes, and who is held is not even asked whether it lives."""
        peer, line, _, _ = connected(full_bytes=100, room_bytes=50, stalled_bytes=1000, dead_s=60)
        peer.write(bytes(1001))
        line.stuck = 1001
        peer.pause_writing()
        if is_held:
            peer.hold()
        begin = now()
        line.stuck = 950  # so much it takes in nearly a minute
        peer._heard = begin + 59
        peer.check(begin + 59)
        assert not line.is_aborted
        line.stuck = 901
        for later in (100, 118):
            peer._heard = begin + later
            peer.check(begin + later)
            assert not line.is_aborted
        peer._heard = begin + 120
        peer.check(begin + 120)
        assert line.is_aborted

    async def test_who_takes_much_at_once_is_not_full(self) -> None:
        """Otherwise it would be waited for: the transport says that there is room only to whom it has said full."""
        peer, line, guest, _ = connected(full_bytes=100, room_bytes=50, stalled_bytes=1000)
        assert peer.write(bytes(90))
        assert line.written == []
        assert peer.write(bytes(20))
        assert line.written == [bytes(110)]
        await asyncio.sleep(0)
        assert line.written == [bytes(110)]
        assert not peer.is_full
        assert guest.heard == [("open",)]

    async def test_an_aborted_peer_is_quiet(self) -> None:
        peer, line, guest, listener = connected()
        peer.write(b"x")
        peer.abort("no use")
        await asyncio.sleep(0)
        assert line.is_aborted
        assert line.written == []
        peer.connection_lost(None)
        assert guest.heard[-1] == ("closed", None, "no use")
        assert listener.connections == 0
        assert listener.peers == []

    async def test_a_service_that_fails_closes_that_peer_only(self, caplog: pytest.LogCaptureFixture) -> None:
        peer, line, guest, _ = connected()

        def fail(peer: WebSocketPeer, messages: list[str | bytes]) -> None:
            raise RuntimeError("a bug")

        guest.on_frames = fail  # type: ignore[method-assign]
        peer.data_received(masked(0x81, b"x"))
        assert line.written == [close_frame(CloseCode.INTERNAL, "the server failed")]
        assert "a bug" in caplog.text


def http(**limits: Any) -> tuple[HttpConnection, Line, Guest, Listener]:
    guest, line = Guest(), Line()
    listener = Listener(mounted(guest), limits=ListenerLimits(**limits))
    listener._loop = asyncio.get_running_loop()
    connection = HttpConnection(listener)
    connection.connection_made(line)
    return connection, line, guest, listener


async def settle(connection: HttpConnection) -> None:
    if connection._work is not None:
        await asyncio.wait([connection._work])


def statuses(line: Line) -> list[int]:
    return [int(part[:3]) for part in b"".join(line.written).split(b"HTTP/1.1 ")[1:]]


@st.composite
def calls(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, bytes]]]:
    data, expected = b"", []
    for _ in range(draw(st.integers(0, 4))):
        path = "/" + draw(st.text("abc%2F-", max_size=8))
        body = draw(st.binary(max_size=60))
        head = f"POST {path}?q=1 HTTP/1.1\r\nHost: a\r\n".encode()
        if draw(st.booleans()):
            data += head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        else:
            data += head + b"Transfer-Encoding: chunked\r\n\r\n"
            for part in pieces(body, draw(st.lists(st.integers(0, 60), max_size=3))):
                if part:
                    data += b"%x\r\n" % len(part) + part + b"\r\n"
            data += b"0\r\n\r\n"
        expected.append((path, body))
    return data, expected


class TestHttp:
    @given(calls(), st.lists(st.integers(0, 400), max_size=6))
    def test_requests_come_out_whole_and_in_order_however_the_bytes_are_cut(
        self, sent: tuple[bytes, list[tuple[str, bytes]]], cuts: list[int]
    ) -> None:
        async def talk() -> None:
            connection, line, guest, _ = http()
            for part in pieces(sent[0], cuts):
                connection.data_received(part)
                await asyncio.sleep(0)
            await settle(connection)
            assert [(request.path, request.body) for request in guest.requests] == sent[1]
            assert statuses(line) == [200] * len(sent[1])

        asyncio.run(talk())

    @given(st.lists(st.binary(max_size=100), max_size=4))
    def test_garbage_is_answered_with_a_400_or_waited_on(self, parts: list[bytes]) -> None:
        async def talk() -> None:
            connection, line, _, _ = http()
            for part in parts:
                connection.data_received(part)
            await settle(connection)
            assert set(statuses(line)) <= {200, 400, 431}

        asyncio.run(talk())

    async def test_a_request_is_given_as_it_came(self) -> None:
        connection, _, guest, _ = http()
        connection.data_received(
            b"PUT /api/hubs/a%2Fb/:send?x=%20&y HTTP/1.1\r\nHost: h:80\r\nX-A: 1\r\nx-a: 2\r\n"
            b"Cookie: a=1\r\nCookie: b=2\r\nContent-Length: 2\r\n\r\nhi"
        )
        await settle(connection)
        headers = {"host": "h:80", "x-a": "1, 2", "cookie": "a=1; b=2", "content-length": "2"}
        assert guest.requests == [
            HttpRequest("PUT", "/api/hubs/a%2Fb/:send", "x=%20&y", headers, b"hi", "http", "h:80", "192.0.2.1")
        ]

    @pytest.mark.parametrize(
        ("target", "path", "query"),
        [
            ("http://h:1/p?q", "/p", "q"),
            ("http://h?q", "/", "q"),
            ("/?", "/", ""),
            ("//a?b?c", "//a", "b?c"),
        ],
    )
    async def test_every_form_of_target(self, target: str, path: str, query: str) -> None:
        connection, _, guest, _ = http()
        connection.data_received(f"OPTIONS {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        await settle(connection)
        assert [(request.path, request.query) for request in guest.requests] == [(path, query)]

    async def test_requests_that_come_too_fast_are_refused_until_it_is_time(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = [1000.0]
        connection, line, guest, listener = http(request_rate=0.2)
        listener._clock = lambda: clock[0]
        one = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        upgrade = one.replace(b"GET /", b"GET /client/hubs/a").replace(
            b"\r\n\r\n", b"\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
        )
        connection.data_received(one * 4)
        await settle(connection)
        assert statuses(line) == [200, 200, 429, 429]
        assert line.written[-1].count(b"retry-after: 5\r\n") == 1
        assert len(guest.requests) == 2
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        clock[0] += 5.0
        connection.data_received(one + upgrade)
        await settle(connection)
        assert statuses(line)[4:] == [200, 429]
        assert "connection: close" in line.written[-1].decode()

    async def test_connections_that_come_too_fast_are_refused_and_those_of_this_machine_are_not(self) -> None:
        guest = Guest()
        listener = Listener(mounted(guest), limits=ListenerLimits(connection_rate=0.1))

        def come(address: str) -> list[int]:
            line = Line()
            line._extra["peername"] = (address, 1)  # type: ignore[attr-defined]
            HttpConnection(listener).connection_made(line)
            return statuses(line)

        assert [come("192.0.2.1") for _ in range(3)] == [[], [429], [429]]
        assert [come(f"2001:db8::{number}") for number in range(2)] == [[], [429]]
        assert come("2001:db8:1::1") == []
        assert [come(address) for address in ("127.0.0.1", "127.0.0.1", "::1", "::1")] == [[]] * 4

    async def test_many_requests_of_one_read_do_not_all_become_objects_at_once(self) -> None:
        connection, line, guest, _ = http()
        one = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        connection.data_received(one * 5000)
        assert len(connection._waiting) < 700
        assert not line.is_reading_
        await settle(connection)
        assert len(guest.requests) == 5000
        assert line.is_reading_

    async def test_time_runs_out_in_the_head_in_the_body_and_between_requests(self) -> None:
        for data, wait_s, status in [
            (b"", 11, []),
            (b"GET / HT", 11, [408]),
            (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12", 61, [408]),
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 76, [200]),
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT", 61, [200, 408]),
        ]:
            connection, line, _, _ = http(head_s=10, body_s=60, idle_s=75, close_s=5)
            connection.data_received(data)
            await settle(connection)
            connection.check(now() + wait_s - 2)
            assert not line.is_ended
            assert not line.is_closed
            connection.check(now() + wait_s)
            assert (line.is_ended or line.is_closed, statuses(line)) == (True, status)
            connection.check(now() + 6)
            assert line.is_aborted

    async def test_a_client_that_does_not_read_is_cut_off(self) -> None:
        connection, line, guest, _ = http(body_s=60)
        connection.pause_writing()
        connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(guest.requests) == 1
        connection.check(now() + 61)
        assert line.is_aborted
        connection.connection_lost(None)
        await settle(connection)

    async def test_the_bodies_of_all_who_are_not_answered_yet_have_a_limit(self) -> None:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\n\r\n"
        first, _, guest, listener = http(body_bytes=100, bodies_bytes=100)
        first.data_received(head + bytes(59))

        def another() -> tuple[HttpConnection, Line]:
            connection, line = HttpConnection(listener), Line()
            connection.connection_made(line)
            connection.data_received(head + bytes(60))
            return connection, line

        second, line = another()
        assert statuses(line) == [503]
        second.connection_lost(None)
        first.data_received(b"x")
        await settle(first)
        third, line = another()
        await settle(third)
        assert statuses(line) == [200]
        assert len(guest.requests) == 2
        fourth, _ = another()
        fourth.connection_lost(None)
        await settle(fourth)
        assert listener._bodies_bytes == 0

    async def test_trailers_are_not_headers(self) -> None:
        connection, _, guest, _ = http()
        connection.data_received(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nHost: b\r\nAuth: c\r\n\r\n"
        )
        await settle(connection)
        assert [dict(request.headers) for request in guest.requests] == [{"host": "a", "transfer-encoding": "chunked"}]

    async def test_a_call_whose_client_has_gone_counts_until_it_is_done(self) -> None:
        connection, line, guest, listener = http()
        gate = asyncio.Event()

        async def handle(request: HttpRequest) -> HttpResponse:
            await gate.wait()
            return HttpResponse()

        guest.handle = handle  # type: ignore[method-assign]
        connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        await asyncio.sleep(0)
        connection.connection_lost(None)
        assert listener.connections == 1
        gate.set()
        await settle(connection)
        assert (listener.connections, line.written) == (0, [])

    async def test_who_has_gone_before_it_was_let_in_is_never_opened(self) -> None:
        connection, _, guest, listener = http()
        gate = asyncio.Event()

        async def upgrade(request: HttpRequest) -> Accept | HttpResponse:
            await gate.wait()
            return Accept()

        guest.upgrade = upgrade  # type: ignore[method-assign]
        connection.data_received(
            b"GET /client/ HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await asyncio.sleep(0)
        connection.connection_lost(None)
        gate.set()
        await settle(connection)
        assert (guest.heard, listener.connections) == ([], 0)

    async def test_a_bad_answer_is_a_500_and_the_connection_goes_on(self, caplog: pytest.LogCaptureFixture) -> None:
        connection, line, guest, _ = http()
        answers = iter(
            [
                HttpResponse(200, (("a", "x\r\ny: z"),)),
                HttpResponse(99),
                HttpResponse(200, (("b ", "x"),)),
                HttpResponse(204, (), b"x"),
            ]
        )

        async def handle(request: HttpRequest) -> HttpResponse:
            return next(answers)

        guest.handle = handle  # type: ignore[method-assign]
        connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 4)
        await settle(connection)
        assert statuses(line) == [500, 500, 500, 204]
        assert line.written[-1].endswith(b"\r\n\r\n")
        assert b"content-length" not in line.written[-1]
        assert "cannot be sent" in caplog.text


async def test_a_port_that_is_taken_is_a_config_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot listen"):
            await Listener(mounted(Guest())).listen(port=taken.getsockname()[1])
