"""One WebSocket of a client: what is said of it, in which order it writes, and what never appears in an error."""

from __future__ import annotations

import asyncio
import ssl
from unittest.mock import AsyncMock, Mock, call

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosedError, InvalidStatus, InvalidURI, NegotiationError
from websockets.frames import Close
from websockets.http11 import Response

from semel.errors import AuthError, ConfigError, Forbidden, PeerUnavailable, RemoteProtocolError, SemelError
from semel.pubsub.client.events import Closed, Event, FrameReceived, OpenFailed, Recover, SocketOpened
from semel.runtime.client.socket import Dialer, Socket, _address, error_of

URL = "wss://h/client/hubs/chat?access_token=secret"


def refusal(status: int, body: bytes = b"", content: str = "text/plain") -> InvalidStatus:
    return InvalidStatus(Response(status, "", Headers({"content-type": content}), body))


@pytest.mark.parametrize(
    ("error", "kind", "is_retryable"),
    [
        (refusal(401), AuthError, False),
        (refusal(403), Forbidden, False),
        (refusal(404), RemoteProtocolError, False),
        (refusal(503), PeerUnavailable, True),
        (refusal(429), PeerUnavailable, True),
        (NegotiationError("no"), RemoteProtocolError, False),
        (ssl.SSLCertVerificationError("self-signed"), AuthError, False),
        (ImportError("python-socks"), ConfigError, False),
        (InvalidURI(URL, "bad"), ConfigError, False),
        (ConnectionRefusedError(111, "refused"), PeerUnavailable, True),
        (EOFError(), PeerUnavailable, True),
    ],
)
def test_why_there_is_no_connection_and_whether_another_try_helps(
    error: Exception, kind: type[SemelError], is_retryable: bool
) -> None:
    if isinstance(error, ssl.SSLCertVerificationError):
        error.verify_message = "self-signed"
    found = error_of(error)
    assert (type(found), found.retryable) == (kind, is_retryable)
    assert "secret" not in str(found)


def test_what_the_server_says_is_told_if_it_is_words() -> None:
    assert error_of(refusal(503, b"come back later\n")).message.endswith("HTTP 503: come back later")
    assert error_of(refusal(503, b"<html>", "text/html")).message.endswith("HTTP 503")


def test_the_address_says_that_we_resend_in_order_and_to_which_session_we_come_back() -> None:
    assert _address(URL, None) == f"{URL}&semel_in_order=true"
    assert _address(f"{URL}&Semel_In_Order=true", None) == f"{URL}&Semel_In_Order=true"
    back = _address(URL, Recover("c 1", "t"))
    assert back.endswith("&semel_in_order=true&awps_connection_id=c+1&awps_reconnection_token=t")


async def test_an_address_is_asked_for_again_for_each_new_session() -> None:
    given = iter(["wss://one", "wss://two"])
    dialer = Dialer(lambda: next(given), "json")
    assert [await dialer._fresh(), await dialer._fresh()] == ["wss://one", "wss://two"]
    with pytest.raises(PeerUnavailable, match="failed with ValueError"):
        await Dialer(Mock(side_effect=ValueError("secret")), "json")._fresh()
    assert "secret" not in repr(Dialer(URL, "json"))


class Scene:
    """A socket whose other end is a mock."""

    def __init__(self, *frames: str, dial_error: SemelError | None = None) -> None:
        self.heard: list[Event] = []
        self.connection = Mock(spec=ClientConnection, subprotocol="json", transport=Mock())
        self.connection.send, self.connection.close = AsyncMock(), AsyncMock()
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._frames = iter(frames)
        self.connection.recv = self._recv
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._error = dial_error
        self.socket = Socket(1, self._dial, self.heard.append, self.may_read)

    async def _dial(self) -> ClientConnection:
        if self._error is not None:
            raise self._error
        return self.connection

    async def _recv(self) -> str:
        for frame in self._frames:
            return frame
        return await self.end

    async def turn(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    async def break_off(self, code: int | None, reason: str = "") -> None:
        received = Close(code, reason) if code is not None else None
        self.end.set_exception(ConnectionClosedError(received, None, None))
        await self.socket.task


async def test_what_happens_is_told_in_order_up_to_the_end() -> None:
    scene = Scene("one", "two")
    await scene.turn()
    await scene.break_off(1008, "no")
    assert scene.heard == [
        SocketOpened(1, "json"), FrameReceived(1, "one"), FrameReceived(1, "two"), Closed(1, 1008, "no")
    ]  # fmt: skip
    scene.connection.transport.abort.assert_called_once_with()


async def test_a_connection_that_broke_has_no_code() -> None:
    scene = Scene()
    await scene.turn()
    await scene.break_off(None)
    assert scene.heard[-1] == Closed(1, None, "")


async def test_one_that_does_not_open_says_why_and_nothing_else() -> None:
    error = PeerUnavailable("gone", fix="")
    scene = Scene(dial_error=error)
    await scene.socket.task
    assert scene.heard == [OpenFailed(1, error)]


async def test_while_it_may_not_read_nothing_is_read() -> None:
    scene = Scene("one")
    scene.may_read.clear()
    await scene.turn()
    assert scene.heard == [SocketOpened(1, "json")]
    scene.may_read.set()
    await scene.turn()
    assert scene.heard[-1] == FrameReceived(1, "one")
    await scene.break_off(None)


async def test_frames_wait_for_what_has_to_be_written_down_before_them() -> None:
    scene, written = Scene(), asyncio.get_running_loop().create_future()
    scene.socket.send("first")
    scene.socket.wait_for(written)
    scene.socket.send("second")
    await scene.turn()
    assert scene.connection.send.await_args_list == [call("first")]
    written.set_result(None)
    await scene.turn()
    assert scene.connection.send.await_args_list == [call("first"), call("second")]
    await scene.break_off(None)


async def test_a_close_goes_out_after_what_was_sent() -> None:
    scene = Scene()
    await scene.turn()
    scene.socket.send("last")
    scene.socket.close(1000, "bye")
    await scene.turn()
    scene.connection.send.assert_awaited_once_with("last")
    scene.connection.close.assert_awaited_once_with(1000, "bye")
    await scene.break_off(1000)


async def test_one_that_is_only_being_opened_is_given_up() -> None:
    scene = Scene()
    scene.socket.close(1000, "")
    await asyncio.gather(scene.socket.task, return_exceptions=True)
    assert scene.socket.task.cancelled()
    assert scene.heard == []
