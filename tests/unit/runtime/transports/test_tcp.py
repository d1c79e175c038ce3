"""Between processes over TCP: who is believed, and what is dropped. `integration/test_runtime_tcp.py` has sockets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from unittest.mock import Mock, call

import pytest

from semel.errors import AuthError, ConfigError, LimitExceeded, RemoteProtocolError, SemelError
from semel.kernel.hop import Confirm
from semel.runtime.transports.base import Inbox
from semel.runtime.transports.frames import VERSION, Challenge, Hello, Refusal, encode
from semel.runtime.transports.tcp import TcpLimits, TcpTransport, _Connection, is_loopback

SECRET = b"a secret of theirs"
CONFIRM = Confirm(("d1",))


def test_without_a_secret_only_who_says_so_and_only_on_this_machine() -> None:
    with pytest.raises(ConfigError, match="needs a secret"):
        TcpTransport("a")
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")] == [
        True, True, True, False, False,
    ]  # fmt: skip


async def test_it_listens_beyond_this_machine_only_with_a_secret() -> None:
    with pytest.raises(ConfigError, match="lets anybody in"):
        await TcpTransport("a", insecure=True).listen("0.0.0.0")


class Pipe:
    """One end writes what the other reads."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.writer = Mock(spec=asyncio.StreamWriter, write=self.reader.feed_data)


async def greet(listener: TcpTransport, dialler: TcpTransport, expected: str = "listener") -> list[object]:
    """What each side says of the other: its name or why not."""
    there, back = Pipe(), Pipe()
    welcome = listener._welcome(there.reader, back.writer)
    introduce = dialler._introduce(expected, back.reader, there.writer)
    tasks = [asyncio.create_task(welcome), asyncio.create_task(introduce)]  # type: ignore[arg-type]
    _, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    there.reader.feed_eof()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_both_sides_prove_that_they_know_the_secret() -> None:
    assert await greet(TcpTransport("listener", secret=SECRET), TcpTransport("dialler", secret=SECRET)) == [
        "dialler",
        None,
    ]
    said = await greet(TcpTransport("listener", secret=SECRET), TcpTransport("dialler", secret=b"another"))
    assert [type(each) for each in said] == [AuthError, RemoteProtocolError]


async def test_a_listener_that_does_not_know_the_secret_is_not_believed() -> None:
    said = await greet(TcpTransport("listener", insecure=True), TcpTransport("dialler", secret=SECRET))
    assert isinstance(said[1], AuthError)


async def test_whoever_answers_in_place_of_another_is_not_spoken_to() -> None:
    said = await greet(TcpTransport("listener", secret=SECRET), TcpTransport("d", secret=SECRET), expected="somebody")
    assert isinstance(said[1], RemoteProtocolError)
    assert "in place of somebody" in said[1].message


async def greeting(message: bytes, kind: type = Hello, **limits: int) -> object:
    reader = asyncio.StreamReader()
    reader.feed_data(message)
    return await TcpTransport("a", secret=SECRET, limits=TcpLimits(**limits))._greeting(reader, kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (encode(Refusal("no")), RemoteProtocolError),
        (encode(Challenge(VERSION, "a", b"n" * 16)), RemoteProtocolError),
        ((5000).to_bytes(4, "big"), LimitExceeded),
    ],
)
async def test_a_greeting_is_small_and_the_one_that_is_due(message: bytes, kind: type[SemelError]) -> None:
    with pytest.raises(kind):
        await greeting(message)


@dataclass
class Wired:
    transport: TcpTransport
    inbox: Mock
    writer: Mock


def wired(**limits: int | float) -> Wired:
    transport, inbox = TcpTransport("a", secret=SECRET, limits=TcpLimits(**limits)), Mock(spec=Inbox)  # type: ignore[arg-type]
    transport.bind(inbox)
    writer = connection(transport, "b")
    return Wired(transport, inbox, writer)


def connection(transport: TcpTransport, peer: str) -> Mock:
    writer = Mock(spec=asyncio.StreamWriter)
    writer.is_closing.return_value = False
    writer.transport.get_write_buffer_size.return_value = 0
    transport._begin(_Connection(peer, asyncio.StreamReader(), writer))
    return writer


async def test_what_is_sent_in_a_tick_is_written_together() -> None:
    made = wired()
    assert made.transport.send("b", CONFIRM)
    assert made.transport.send("b", CONFIRM)
    made.writer.write.assert_not_called()
    made.transport.flush()
    made.writer.write.assert_called_once_with(encode(CONFIRM) * 2)


async def test_without_a_connection_or_room_a_message_is_dropped_and_counted() -> None:
    made = wired(buffer_bytes=len(encode(CONFIRM)))
    assert not made.transport.send("nobody", CONFIRM)
    assert made.transport.send("b", CONFIRM)
    assert not made.transport.send("b", CONFIRM)
    assert made.transport.dropped == 2
    made.writer.transport.abort.assert_not_called()


async def test_a_peer_that_takes_nothing_for_too_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    made = wired(buffer_bytes=0, stall_s=15.0)
    clock = Mock(return_value=100.0)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
    made.transport.send("b", CONFIRM)
    clock.return_value = 115.0
    made.transport.send("b", CONFIRM)
    made.writer.transport.abort.assert_not_called()
    clock.return_value = 115.1
    made.transport.send("b", CONFIRM)
    made.writer.transport.abort.assert_called_once_with()


async def test_a_newer_connection_of_the_same_name_replaces_the_older_one() -> None:
    made = wired()
    newer = connection(made.transport, "b")
    made.writer.close.assert_called_once_with()
    assert made.transport.peers == ["b"]
    transport = made.transport
    assert made.inbox.mock_calls == [
        call.connected(transport, "b"), call.disconnected(transport, "b"), call.connected(transport, "b")
    ]  # fmt: skip
    made.transport.send("b", CONFIRM)
    made.transport.flush()
    newer.write.assert_called_once()
