"""What a client refuses to send, because the server would close the connection over it."""

from __future__ import annotations

import pytest

from semel.errors import InputError, LimitExceeded
from semel.pubsub.client.checks import check_part, check_request, check_stream, with_id
from semel.pubsub.client.events import Acked
from semel.pubsub.hub.records import MESSAGE_ID
from semel.pubsub.protocol.frames import FRAME_BYTES_MAX, UINT32_MAX
from semel.pubsub.protocol.frames_json import JsonCodec
from semel.pubsub.protocol.messages import (
    Data,
    DataType,
    Invoke,
    JoinGroup,
    SendEvent,
    SendToGroup,
    SetGroupState,
    StartStream,
)

CODEC = JsonCodec()


def text(body: bytes = b"hi") -> Data:
    return Data(DataType.TEXT, body)


@pytest.mark.parametrize(
    "request_",
    [
        SendToGroup("g", text(), metadata={"k": "v"}, ttl_s=5),
        SendEvent("ask", text(b"")),
        Invoke("", "ask"),
        JoinGroup("g"),
        SetGroupState("g", state={"": ""}),
        SendToGroup("g", Data(DataType.JSON, b'{"a":[1]}')),
        SendToGroup("g", Data(DataType.BINARY, b"\xff")),
    ],
)
def test_what_is_good_goes_out_and_its_size_is_known(request_: Acked | Invoke) -> None:
    assert check_request(request_, CODEC) > len('{"type":""}')


@pytest.mark.parametrize(
    "request_",
    [
        SendToGroup("", text()),
        SendToGroup("g", text(), ttl_s=-1),
        SendToGroup("g", text(), metadata={"": "v"}),
        SendToGroup("g", text(b"\xff")),
        SendToGroup("g", Data(DataType.JSON, b"{")),
        SendEvent("", text()),
        SendEvent("ask", text(), metadata={"": "v"}),
        Invoke("", "ask", Data(DataType.JSON, b"\xff")),
        JoinGroup(" "),
        SetGroupState("g", state={"k": "\ud800"}),
    ],
)
def test_what_the_server_would_refuse_is_an_error_here(request_: Acked | Invoke) -> None:
    with pytest.raises(InputError):
        check_request(request_, CODEC)


def test_the_size_is_that_with_the_longest_ack_id_and_in_bytes() -> None:
    assert check_request(JoinGroup("g"), CODEC) == check_request(JoinGroup("g", 7), CODEC)
    assert check_request(SendToGroup("g", text("ü".encode())), CODEC) == check_request(
        SendToGroup("g", text(b"ab")), CODEC
    )


def test_a_frame_larger_than_the_limit_is_refused() -> None:
    around = check_request(SendToGroup("g", text(b"")), CODEC)
    assert check_request(SendToGroup("g", text(b"x" * (FRAME_BYTES_MAX - around))), CODEC) == FRAME_BYTES_MAX
    with pytest.raises(LimitExceeded, match="1,048,577 bytes"):
        check_request(SendToGroup("g", text(b"x" * (FRAME_BYTES_MAX - around + 1))), CODEC)
    with pytest.raises(LimitExceeded):
        check_part("s", text(b"x" * FRAME_BYTES_MAX), CODEC)


def test_the_id_of_the_application_travels_in_the_metadata() -> None:
    request = SendToGroup("g", text(), metadata={"k": "v"})
    named = with_id(request, "order-1")
    assert isinstance(named, SendToGroup)
    assert named.metadata == {"k": "v", MESSAGE_ID: "order-1"}
    assert with_id(request, None) is request
    with pytest.raises(InputError, match="only messages to groups"):
        with_id(JoinGroup("g"), "order-1")
    with pytest.raises(InputError):
        with_id(request, "")


@pytest.mark.parametrize("idle_ms", [0, -1, UINT32_MAX + 1])
def test_the_idle_time_of_a_stream_has_limits(idle_ms: int) -> None:
    check_stream(StartStream("g", "s", idle_timeout_ms=UINT32_MAX), CODEC)
    with pytest.raises(InputError, match="idle timeout"):
        check_stream(StartStream("g", "s", idle_timeout_ms=idle_ms), CODEC)
