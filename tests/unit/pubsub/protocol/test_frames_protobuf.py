from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.descriptor_pool import Default
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.protocol.frame_values import plain_responses, requests

from semel.errors import LocalProtocolError
from semel.pubsub.protocol import frames_protobuf
from semel.pubsub.protocol.frames import DEPTH_MAX, UINT64_MAX, FrameError
from semel.pubsub.protocol.frames_protobuf import PACKAGE, SCHEMA, ProtobufCodec, check_any
from semel.pubsub.protocol.messages import (
    Ack,
    CancelInvocation,
    Connected,
    Data,
    DataType,
    Disconnected,
    ErrorName,
    Fault,
    GroupMessage,
    GroupStateItem,
    GroupStateSnapshot,
    GroupStateUpdate,
    Invoke,
    InvokeResponse,
    JoinGroup,
    LeaveGroup,
    Ping,
    Pong,
    Request,
    Response,
    SendEvent,
    SendToGroup,
    SequenceAck,
    ServerMessage,
    SetGroupState,
    StartStream,
    StreamAck,
    StreamClosed,
    StreamData,
    StreamEnd,
    StreamNack,
    StreamPart,
    SubscribeGroupState,
    UnsubscribeGroupState,
)
from semel.websocket import CloseCode

codec = ProtobufCodec()

TEXT = Data(DataType.TEXT, b"hi")
HI = b"\x0a\x02hi"  # MessageData with text_data


def field(number: int, value: bytes | int) -> bytes:
    """A field of fewer than 128 bytes, or a number below 128, as it goes on the wire."""
    tag = number << 3 | (0 if isinstance(value, int) else 2)
    written = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    return written + (bytes([value]) if isinstance(value, int) else bytes([len(value)]) + value)


def refused(frame: bytes | str) -> FrameError:
    with pytest.raises(FrameError) as raised:
        codec.decode(frame)
    return raised.value


# -- the schema


def test_every_message_and_field_of_the_proto_file_is_read() -> None:
    text = Path(frames_protobuf.__file__).with_name("webpubsub.proto").read_text()
    assert f"package {PACKAGE};" in text
    assert list(SCHEMA) == re.findall(r"^message (\w+)", text, re.MULTILINE)
    numbers = [str(number) for fields in SCHEMA.values() for _, number, _, _ in fields]
    assert numbers == re.findall(r" = (\d+);", text)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("PingMessage", ()),
        (
            "SendToGroupMessage",
            (
                ("group", 1, "", "string"),
                ("ack_id", 2, "optional", "uint64"),
                ("data", 3, "", "MessageData"),
                ("no_echo", 4, "optional", "bool"),
                ("ttl_seconds", 5, "optional", "uint32"),
                ("metadata", 6, "map", "string"),
                ("stream", 7, "", "StreamStartInfo"),
            ),
        ),
        (
            "MessageData",
            (
                ("text_data", 1, "data", "string"),
                ("binary_data", 2, "data", "bytes"),
                ("protobuf_data", 3, "data", "google.protobuf.Any"),
                ("json_data", 4, "data", "string"),
            ),
        ),
        (
            "GroupStateUpdateMessage",
            (
                ("group", 1, "", "string"),
                ("items", 2, "repeated", "GroupStateItem"),
                ("sequence_id", 3, "optional", "uint64"),
            ),
        ),
    ],
)
def test_fields_are_read_with_number_label_and_type(name: str, fields: tuple[tuple[str, int, str, str], ...]) -> None:
    assert SCHEMA[name] == fields


def test_the_schema_is_proto3_with_presence_where_it_says_optional() -> None:
    send = Default().FindMessageTypeByName(f"{PACKAGE}.SendToGroupMessage")
    assert {field.name: field.has_presence for field in send.fields} == {
        "group": False,
        "ack_id": True,
        "data": True,
        "no_echo": True,
        "ttl_seconds": True,
        "metadata": False,
        "stream": True,
    }


@pytest.mark.parametrize(
    ("request_", "frame"),
    [
        (SendToGroup("g", TEXT), field(1, field(1, b"g") + field(3, HI))),
        (
            SendToGroup("g", TEXT, 0, True, 9, {"k": "v"}),
            field(
                1,
                field(1, b"g")
                + field(2, 0)
                + field(3, HI)
                + field(4, 1)
                + field(5, 9)
                + field(6, field(1, b"k") + field(2, b"v")),
            ),
        ),
        (
            StartStream("g", "s", 5),
            field(1, field(1, b"g") + field(7, field(1, b"s") + field(2, 5))),
        ),
        (SendEvent("e", TEXT, 7), field(5, field(1, b"e") + field(2, HI) + field(3, 7))),
        (
            SendEvent("e", Data(DataType.JSON, b"[1]"), None, {"k": "v"}),
            field(5, field(1, b"e") + field(2, field(4, b"[1]")) + field(4, field(1, b"k") + field(2, b"v"))),
        ),
        (JoinGroup("g", 1), field(6, field(1, b"g") + field(2, 1))),
        (LeaveGroup("g"), field(7, field(1, b"g"))),
        (SequenceAck(5), field(8, field(1, 5))),
        (SequenceAck(0), field(8, b"")),
        (Ping(), field(9, b"")),
        (Invoke("i", "e", TEXT), field(10, field(1, b"e") + field(2, b"i") + field(3, HI))),
        (CancelInvocation("i"), field(11, field(1, b"i"))),
        (StreamData("s"), field(13, field(1, b"s"))),
        (StreamData("s", 2, TEXT), field(13, field(1, b"s") + field(2, 2) + field(3, HI))),
        (StreamEnd("s"), field(14, field(1, b"s"))),
        (
            StreamEnd("s", Fault(ErrorName.USER, "m", "c")),
            field(14, field(1, b"s") + field(2, field(1, b"m") + field(2, b"c"))),
        ),
        (
            SetGroupState("g", 1, {"k": "v"}),
            field(15, field(1, b"g") + field(2, 1) + field(3, field(1, field(1, b"k") + field(2, b"v")))),
        ),
        (SetGroupState("g"), field(15, field(1, b"g"))),
        (SubscribeGroupState("g", 1), field(16, field(1, b"g") + field(2, 1))),
        (UnsubscribeGroupState("g"), field(17, field(1, b"g"))),
    ],
)
def test_requests_are_written_to_the_byte(request_: Request, frame: bytes) -> None:
    assert codec.encode_request(request_) == frame
    assert codec.decode(frame) == request_


@pytest.mark.parametrize(
    ("response", "frame"),
    [
        (Ack(7), field(1, field(1, 7) + field(2, 1))),
        (Ack(7, Fault("n", "m")), field(1, field(1, 7) + field(3, field(1, b"n") + field(2, b"m")))),
        (GroupMessage("g", TEXT), field(2, field(1, b"group") + field(2, b"g") + field(3, HI))),
        (
            GroupMessage("g", TEXT, None, 5, {"k": "v"}),
            field(
                2,
                field(1, b"group")
                + field(2, b"g")
                + field(3, HI)
                + field(4, 5)
                + field(5, field(1, b"k") + field(2, b"v")),
            ),
        ),
        (ServerMessage(Data(DataType.BINARY, b"\xff")), field(2, field(1, b"server") + field(3, field(2, b"\xff")))),
        (
            ServerMessage(Data(DataType.PROTOBUF, field(1, b"url") + field(2, b"\xff"))),
            field(2, field(1, b"server") + field(3, field(3, field(1, b"url") + field(2, b"\xff")))),
        ),
        (Connected("c", "u", "t"), field(3, field(1, field(1, b"c") + field(2, b"u") + field(3, b"t")))),
        (Connected("c"), field(3, field(1, field(1, b"c")))),
        (Disconnected("r"), field(3, field(2, field(2, b"r")))),
        (Pong(), field(4, b"")),
        (InvokeResponse("i", TEXT), field(5, field(1, b"i") + field(2, 1) + field(3, HI))),
        (
            InvokeResponse("i", None, Fault("n", "m")),
            field(5, field(1, b"i") + field(4, field(1, b"n") + field(2, b"m"))),
        ),
        (StreamAck("s", 2), field(6, field(1, b"s") + field(2, 2))),
        (StreamNack("s", 2, "n", "m"), field(7, field(1, b"s") + field(2, b"n") + field(3, b"m") + field(4, 2))),
        (StreamClosed("s"), field(8, field(1, b"s"))),
        (StreamClosed("s", Fault("n", "m")), field(8, field(1, b"s") + field(2, field(1, b"n") + field(2, b"m")))),
        (
            GroupStateUpdate("g", (GroupStateItem("c", 5, "u", {"k": "v"}),)),
            field(
                9,
                field(1, b"g")
                + field(
                    2,
                    field(1, b"c") + field(2, b"u") + field(3, field(1, field(1, b"k") + field(2, b"v"))) + field(4, 5),
                ),
            ),
        ),
        (
            GroupStateSnapshot("g", (GroupStateItem("c", 5),)),
            field(10, field(1, b"g") + field(2, field(1, b"c") + field(4, 5))),
        ),
        (
            GroupMessage("g", TEXT, stream=StreamPart("s", 2)),
            field(2, field(1, b"group") + field(2, b"g") + field(3, HI) + field(6, field(1, b"s") + field(2, 2))),
        ),
        (
            GroupMessage("g", None, stream=StreamPart("s", 3, True, Fault("n", "m", "c"))),
            field(
                2,
                field(1, b"group")
                + field(2, b"g")
                + field(3, field(1, b""))
                + field(
                    6,
                    field(1, b"s")
                    + field(2, 3)
                    + field(3, 1)
                    + field(4, field(1, b"n") + field(2, b"m") + field(3, b"c")),
                ),
            ),
        ),
    ],
)
def test_responses_are_written_to_the_byte(response: Response, frame: bytes) -> None:
    assert codec.encode(response) == frame
    assert codec.decode_response(frame) == response


# -- what is refused


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff",
        field(2, b""),
        field(12, b"new"),
        field(10, field(1, b"e")),
        field(10, field(1, b"e") + field(2, b"i") + field(5, field(1, b"s"))),
        field(11, b""),
        field(13, b""),
        field(13, field(1, b"s") + field(2, 1)),
        field(13, field(1, b"s") + field(3, HI)),
        field(14, b""),
        field(15, b""),
        field(16, field(1, b" ")),
        field(17, b""),
        field(1, 5),
        field(6, b""),
        field(6, field(1, b" ")),
        field(6, field(1, b"\x00")),
        field(6, field(1, b"\xff")),
        field(6, field(1, b"\xed\xa0\x80")),
        field(1, field(1, b"g")),
        field(1, field(1, b"g") + field(3, b"")),
        field(1, field(1, b"g") + field(3, field(1, b"\xff"))),
        field(1, field(1, b"g") + field(3, field(3, b"\xff"))),
        field(1, field(1, b"g") + field(3, field(4, b"null"))),
        field(1, field(1, b"g") + field(3, field(4, b"{"))),
        field(1, field(1, b"g") + field(3, field(4, b""))),
        field(1, field(1, b"g") + field(3, field(4, b"[" * DEPTH_MAX))),
        field(1, field(1, b"g") + field(3, HI) + b"\x28\xad\x02"),  # 301 seconds
        field(1, field(1, b"g") + field(3, HI) + field(6, field(1, b"a b"))),
        field(1, field(1, b"g") + field(3, HI) + field(6, field(1, b"k") + field(2, "ä".encode()))),
        field(1, field(1, b"g") + field(3, HI) + field(7, field(1, b"s"))),
        field(1, field(1, b"g") + field(2, 0) + field(7, field(1, b"s"))),
        field(1, field(1, b"g") + field(7, b"")),
        field(1, field(1, b"g") + field(7, field(1, b"s") + field(2, 0))),
        field(5, field(1, b"9") + field(2, HI)),
        field(5, field(1, b"e")),
        field(5, field(1, b"e") + field(2, HI) + field(5, field(1, b"s"))),
    ],
)
def test_what_is_not_as_it_must_be_closes_the_connection(frame: bytes) -> None:
    error = refused(frame)
    assert error.close_code == CloseCode.BAD_FRAME
    assert error.reason
    assert error.fix


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff",
        field(1, field(1, 7)),
        field(1, field(2, 1) + field(3, b"")),
        field(2, field(1, b"group") + field(3, HI)),
        field(2, field(1, b"user") + field(3, HI)),
        field(2, field(1, b"server")),
        field(3, b""),
        field(5, field(1, b"i")),
        field(10, field(1, b"g") + field(2, b"\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")),  # -1 ms
        field(11, b""),
    ],
)
def test_a_server_that_breaks_the_protocol_is_found_out(frame: bytes) -> None:
    with pytest.raises(FrameError):
        codec.decode_response(frame)


@pytest.mark.parametrize("frame", ["", "\x4a\x00", '{"type":"ping"}'])
def test_protobuf_goes_in_binary_frames(frame: str) -> None:
    assert refused(frame).close_code == CloseCode.WRONG_FRAME_TYPE
    with pytest.raises(FrameError, match="binary frames"):
        codec.decode_response(frame)


def test_fields_that_nobody_knows_are_skipped() -> None:
    assert codec.decode(field(6, field(1, b"g") + field(15, b"new")) + field(30, 1)) == JoinGroup("g")


def test_an_any_is_told_from_other_bytes() -> None:
    for body in (b"", Any(type_url="u", value=b"v").SerializeToString()):
        assert check_any(body) == body
    with pytest.raises(FrameError, match="Any"):
        check_any(b"\x0a\x05a")


# -- there and back


@given(requests)
def test_a_request_reads_back(request: Request) -> None:
    assert codec.decode(codec.encode_request(request)) == request


@given(plain_responses)
def test_a_response_reads_back(response: Response) -> None:
    assert codec.decode_response(codec.encode(response)) == response


def test_metadata_may_stand_for_data() -> None:
    entry = field(1, b"k") + field(2, b"v")
    empty, metadata = Data(DataType.TEXT, b""), {"k": "v"}
    assert codec.decode(field(1, field(1, b"g") + field(6, entry))) == SendToGroup("g", empty, metadata=metadata)
    assert codec.decode(field(5, field(1, b"e") + field(4, entry))) == SendEvent("e", empty, metadata=metadata)
    assert "missing" in refused(field(1, field(1, b"g") + field(6, entry) + field(3, b""))).message


def test_the_same_metadata_makes_the_same_bytes() -> None:
    notes = {f"k{n}": "v" for n in range(20)}
    message = ServerMessage(TEXT, 1, notes)
    backwards = ServerMessage(TEXT, 1, dict(reversed(notes.items())))
    assert codec.encode(message) == codec.encode(backwards)


def test_who_sent_it_has_no_field() -> None:
    frame = codec.encode(GroupMessage("g", TEXT, "user"))
    assert codec.decode_response(frame) == GroupMessage("g", TEXT)


@pytest.mark.parametrize(
    "response",
    [
        Ack(1, Fault("n", "m", "c")),
        StreamClosed("s", Fault("n", "m", "c")),
        InvokeResponse("i", None, Fault("n", "m", "c")),
    ],
)
def test_responses_without_a_field_are_our_own_mistake(response: Response) -> None:
    with pytest.raises(LocalProtocolError, match="no field") as raised:
        codec.encode(response)
    assert raised.value.fix


def test_half_of_a_part_is_our_own_mistake() -> None:
    for request in (StreamData("s", 1), StreamData("s", None, TEXT)):
        with pytest.raises(LocalProtocolError, match="number and data"):
            codec.encode_request(request)


@pytest.mark.parametrize(
    "response",
    [
        Disconnected("\ud800"),
        Ack(-1),
        Ack(UINT64_MAX + 1),
        ServerMessage(Data(DataType.TEXT, b"\xff")),
        ServerMessage(Data(DataType.PROTOBUF, b"\xff")),
        GroupMessage("g", None),
        GroupMessage("g", None, stream=StreamPart("s", 1)),
        InvokeResponse("i", TEXT, Fault("n", "m")),
        GroupStateUpdate("g", (GroupStateItem("c", 2**63),)),
    ],
)
def test_what_protobuf_cannot_carry_is_our_own_mistake(response: Response) -> None:
    with pytest.raises(LocalProtocolError):
        codec.encode(response)


frames = requests.map(codec.encode_request) | plain_responses.map(codec.encode)


@given(st.binary(max_size=30) | st.text(max_size=3))
def test_whatever_comes_it_is_read_or_refused(frame: bytes | str) -> None:
    with suppress(FrameError):
        assert isinstance(codec.decode(frame), Request)
    with suppress(FrameError):
        assert isinstance(codec.decode_response(frame), Response)


@given(frames, st.data())
def test_a_damaged_frame_is_read_or_refused(frame: bytes, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(frame)))
    end = draw.draw(st.integers(start, min(len(frame), start + 3)))
    damaged = frame[:start] + draw.draw(st.binary(max_size=3)) + frame[end:]
    with suppress(FrameError):
        assert isinstance(codec.decode(damaged), Request)
    with suppress(FrameError):
        assert isinstance(codec.decode_response(damaged), Response)
