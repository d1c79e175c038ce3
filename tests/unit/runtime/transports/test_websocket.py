"""WebSockets as a server sees them: frames that come in any pieces, and one peer from its first to its last."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.runtime.server.lines import Guest, Line, masked, mounted, now, pieces

from semel.http import HttpRequest
from semel.runtime.server.connection import HttpConnection
from semel.runtime.server.limits import ListenerLimits
from semel.runtime.server.listener import Listener
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
from semel.websocket import CloseCode, frame

LIMIT = 1024


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


def connected(head: bytes = b"", waits: bool = False, **limits: Any) -> tuple[WebSocketPeer, Line, Guest, Listener]:
    guest, line = Guest(), Line()
    listener = Listener(mounted(guest), limits=ListenerLimits(**limits))
    listener._loop = asyncio.get_running_loop()
    connection = HttpConnection(listener)
    connection.connection_made(line)
    peer = WebSocketPeer(listener, guest, line, Accept(key="a"), connection.address)
    listener._count(peer)
    peer.begin(head, connection.hand_over(peer), waits)
    return peer, line, guest, listener


class TestPeer:
    async def test_the_answer_to_a_handshake_may_wait_for_a_welcome(self) -> None:
        _, line, _, _ = connected(b"101")
        assert line.written == [b"101"]
        peer, line, _, _ = connected(b"101", waits=True)
        assert line.written == []
        for _ in range(2):
            peer.welcome()
            assert line.written == [b"101"]

    async def test_nothing_goes_out_before_it(self) -> None:
        peer, line, _, _ = connected(b"101", waits=True)
        peer.close(CloseCode.INTERNAL, "no")
        assert line.written == [b"101" + close_frame(CloseCode.INTERNAL, "no")]

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
        peer._received_at = now() - 61
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
        peer._received_at -= 1000
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
        peer._received_at = begin + 59
        peer.check(begin + 59)
        assert not line.is_aborted
        line.stuck = 901
        for later in (100, 118):
            peer._received_at = begin + later
            peer.check(begin + later)
            assert not line.is_aborted
        peer._received_at = begin + 120
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
