from __future__ import annotations

import pytest
from hypothesis import given
from tests.unit.pubsub.protocol.frame_values import responses

from semel.errors import LocalProtocolError
from semel.pubsub.protocol.codecs import SimpleCodec, codec_for
from semel.pubsub.protocol.frames import Frame
from semel.pubsub.protocol.messages import Data, DataType, GroupMessage, Response, ServerMessage, StreamPart

encode = SimpleCodec().encode


@pytest.mark.parametrize(
    ("data", "frame"),
    [
        (Data(DataType.TEXT, "grüß\n".encode()), "grüß\n"),
        (Data(DataType.JSON, b'{"b":1,  "a":"x"}'), '{"b":1,  "a":"x"}'),
        (Data(DataType.JSON, b'"text"'), '"text"'),
        (Data(DataType.BINARY, b"\xff\x00"), b"\xff\x00"),
        (Data(DataType.PROTOBUF, b"\x0a\x01a"), b"\x0a\x01a"),
        (Data(DataType.TEXT, b""), ""),
    ],
)
def test_a_simple_client_gets_the_data_alone(data: Data, frame: Frame) -> None:
    assert encode(GroupMessage("g", data, "user", 5, {"a": "b"})) == frame
    assert encode(ServerMessage(data)) == frame


def test_the_end_of_a_stream_has_nothing_for_a_simple_client() -> None:
    assert encode(GroupMessage("g", None, stream=StreamPart("s", 3, is_end=True))) is None


@given(responses)
def test_only_messages_are_sent(response: Response) -> None:
    has_data = isinstance(response, GroupMessage | ServerMessage) and response.data is not None
    assert (encode(response) is not None) == has_data


def test_text_that_is_not_utf8_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="not UTF-8"):
        encode(ServerMessage(Data(DataType.TEXT, b"\xff")))


@pytest.mark.parametrize(
    ("subprotocol", "codec"),
    [
        ("json.webpubsub.azure.v1", "JsonCodec"),
        ("json.reliable.webpubsub.azure.v1", "JsonCodec"),
        ("protobuf.webpubsub.azure.v1", "ProtobufCodec"),
        ("protobuf.reliable.webpubsub.azure.v1", "ProtobufCodec"),
        ("mine", "SimpleCodec"),
        (None, "SimpleCodec"),
    ],
)
def test_a_subprotocol_has_its_codec_and_every_other_client_is_a_simple_one(
    subprotocol: str | None, codec: str
) -> None:
    assert type(codec_for(subprotocol)).__name__ == codec
    assert codec_for(subprotocol) is codec_for(subprotocol)
