"""What an application sends it gets back as the same value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import InputError
from semel.pubsub.client.data import Message, data_of, message_of, value_of
from semel.pubsub.protocol.messages import Data, DataType, GroupMessage, ServerMessage, StreamPart

JSON = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.text() | st.binary() | st.lists(JSON) | st.dictionaries(st.text(), JSON))
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert value_of(data_of(value)) == value


@given(JSON)
def test_anything_may_be_sent_as_json(value: Any) -> None:
    data = data_of(value, "json")
    assert data.type is DataType.JSON
    assert value_of(data) == value


@pytest.mark.parametrize(
    ("value", "type", "body"),
    [
        ("a", "json", b'"a"'),
        ("ü", "text", "ü".encode()),
        (bytearray(b"a"), None, b"a"),
        (memoryview(b"a"), "binary", b"a"),
        (b"\n\x01a", "protobuf", b"\n\x01a"),
    ],
)
def test_a_type_may_be_named(value: Any, type: str | None, body: bytes) -> None:
    assert data_of(value, type).body == body
    assert data_of(value, type).type == (type or "binary")


@pytest.mark.parametrize(
    ("value", "type", "words"),
    [
        (1, "text", "int is no text"),
        ("a", "binary", "str is not binary"),
        ("a", "protobuf", "str is not protobuf"),
        ("a", "xml", "no data of type 'xml'"),
        ({1, object()}, None, "JSON cannot say this"),
        ("\ud800", "json", "JSON cannot say this"),
    ],
)
def test_what_does_not_fit_its_type_is_refused(value: Any, type: str | None, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        data_of(value, type)
    assert error.value.fix


def test_a_message_says_where_it_comes_from_and_which_one_it_is() -> None:
    data = Data(DataType.JSON, b'{"a":1}')
    message = message_of(GroupMessage("g", data, "ann", 7, {"semel-id": "one"}))
    assert (message.data, message.type, message.group, message.from_user) == ({"a": 1}, "json", "g", "ann")
    assert (message.sequence_id, message.id, message.metadata) == (7, "one", {"semel-id": "one"})
    assert message_of(ServerMessage(data, 8)) == Message(data, sequence_id=8)
    assert message_of(ServerMessage(data)).id is None


def test_the_end_of_a_stream_has_no_data() -> None:
    end = message_of(GroupMessage("g", None, stream=StreamPart("s", 3, is_end=True)))
    assert (end.data, end.type) == (None, None)
    assert end.stream == StreamPart("s", 3, is_end=True)
