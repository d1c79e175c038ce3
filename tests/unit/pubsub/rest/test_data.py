"""A body and its content type as the data of a message."""

from __future__ import annotations

import pytest

from semel.errors import FrameError
from semel.http import HttpError
from semel.pubsub.protocol.messages import Data, DataType
from semel.pubsub.rest.data import read_data


@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        ("text/plain", b"hello", Data(DataType.TEXT, b"hello")),
        ("text/plain", b"", Data(DataType.TEXT, b"")),
        ("text/plain; charset=iso-8859-1", b"\xe9", Data(DataType.TEXT, "é".encode())),
        ("application/json", b'{"a": 1}', Data(DataType.JSON, b'{"a": 1}')),
        ("application/octet-stream", b"\xff\x00", Data(DataType.BINARY, b"\xff\x00")),
    ],
)
def test_the_content_type_says_what_the_body_is(content_type: str, body: bytes, data: Data) -> None:
    assert read_data({"content-type": content_type}, body) == data


def test_without_a_type_it_is_bytes() -> None:
    assert read_data({}, b"\xff") == Data(DataType.BINARY, b"\xff")


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("image/png", b"", 415),
        ("text/plain", b"\xff", 400),
    ],
)
def test_what_is_no_text_of_a_known_type_is_refused(content_type: str, body: bytes, status: int) -> None:
    with pytest.raises(HttpError) as refused:
        read_data({"content-type": content_type}, body)
    assert refused.value.status == status


@pytest.mark.parametrize("body", [b"", b"{"])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError, match="not JSON"):
        read_data({"content-type": "application/json"}, body)
