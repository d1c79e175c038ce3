from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.protocol import frame_values
from tests.unit.pubsub.protocol.frame_values import groups, json_text, texts, uint64s, users

from semel.pubsub.protocol.codecs import SimpleCodec, codec_for
from semel.pubsub.protocol.frames import (
    DEPTH_MAX,
    RELIABLE,
    FrameError,
    Subprotocol,
    check_depth,
    json_body,
    subprotocol_of,
)
from semel.pubsub.protocol.frames_json import JsonCodec
from semel.pubsub.protocol.frames_protobuf import ProtobufCodec
from semel.pubsub.protocol.messages import Ack, Data, DataType, GroupMessage
from semel.websocket import CloseCode, frame


def test_subprotocols_are_known_by_name_in_any_case() -> None:
    assert [subprotocol_of(name.upper()) for name in Subprotocol] == list(Subprotocol)
    assert [subprotocol_of(name) for name in (None, "", "mqtt", "json.webpubsub.azure.v2")] == [None] * 4


def test_each_subprotocol_has_its_codec() -> None:
    codecs = {name: type(codec_for(name)) for name in Subprotocol}
    assert codecs == {
        "json.webpubsub.azure.v1": JsonCodec,
        "json.reliable.webpubsub.azure.v1": JsonCodec,
        "protobuf.webpubsub.azure.v1": ProtobufCodec,
        "protobuf.reliable.webpubsub.azure.v1": ProtobufCodec,
    }
    assert type(codec_for(None)) is type(codec_for("chat")) is SimpleCodec


def test_a_reliable_subprotocol_shares_the_codec_of_its_plain_one() -> None:
    assert codec_for("JSON.webpubsub.azure.v1") is codec_for(Subprotocol.JSON_RELIABLE)
    assert codec_for(Subprotocol.PROTOBUF) is codec_for(Subprotocol.PROTOBUF_RELIABLE)
    assert codec_for(None) is codec_for("chat")


def test_the_reliable_ones_say_so_in_their_names() -> None:
    assert {name for name in Subprotocol if ".reliable." in name} == RELIABLE
    assert "json.reliable.webpubsub.azure.v1" in RELIABLE


def test_an_error_says_how_to_close() -> None:
    error = FrameError("ä" * 100)
    assert error.close_code == CloseCode.BAD_FRAME
    assert error.reason == "ä" * 61
    assert len(error.reason.encode()) < error.REASON_BYTES_MAX
    assert FrameError("lone \ud800").reason == "lone ?"


def depth_of(document: object) -> int:
    if not isinstance(document, list | dict):
        return 0
    inner = document.values() if isinstance(document, dict) else document
    return 1 + max(map(depth_of, inner), default=0)


brackets = st.text('[]{}"\\:, a\n', max_size=8)
documents = st.recursive(
    brackets, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(brackets, inner, max_size=4), max_leaves=30
)


@given(documents, st.integers(0, 6), st.booleans())
def test_the_depth_is_that_of_the_document_whatever_its_strings_hold(document: object, max: int, spaced: bool) -> None:
    text = json.dumps(document, separators=(" , ", " : ") if spaced else (",", ":"))
    if depth_of(document) <= max:
        check_depth(text, max)
    else:
        with pytest.raises(FrameError, match=f"more than {max} deep"):
            check_depth(text, max)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":', '{"a": [1, '])
@pytest.mark.parametrize("max", [DEPTH_MAX, 3])
def test_the_limit_is_exact_for_every_way_of_nesting(opening: str, max: int) -> None:
    levels = opening.count("[") + opening.count("{")
    closing = "".join("]" if char == "[" else "}" for char in reversed(opening) if char in "[{")
    times = max // levels
    fits, rest = opening * times + "1" + closing * times, max - times * levels
    fits = "[" * rest + fits + "]" * rest
    check_depth(fits, max)
    with pytest.raises(FrameError):
        check_depth(f"[{fits}]", max)


@pytest.mark.parametrize("text", ["[" * 100_000, "]" * 100_000, '{"":' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_endless_nesting_is_refused_before_anything_recurses(text: str) -> None:
    with pytest.raises(FrameError):
        json_body(text)


def test_json_on_its_own_stays_as_it_was_written() -> None:
    text = ' {"b":1e400,\t"a":[12345678901234567890123, 1.10],"b":"\\u00e4ä"}\n'
    assert json_body(text) == text.strip().encode()


def test_json_on_its_own_leaves_room_for_the_frame_around_it() -> None:
    fits = "[" * (DEPTH_MAX - 1) + "]" * (DEPTH_MAX - 1)
    assert json_body(fits) == fits.encode()
    with pytest.raises(FrameError, match="deep"):
        json_body(f"[{fits}]")


@pytest.mark.parametrize("text", ["", " ", "null", " null ", "NaN", "{", "1 2", "'a'", '"\\ud800"', '"\ud800"', "[1,]"])
def test_what_is_not_json_or_null_is_refused(text: str) -> None:
    with pytest.raises(FrameError, match="the data is n") as raised:
        json_body(text)
    assert raised.value.close_code == CloseCode.BAD_FRAME


# -- many at once


@pytest.mark.parametrize("subprotocol", [*Subprotocol, None])
@given(st.lists(uint64s, max_size=4))
def test_acks_together_are_the_acks_one_by_one(subprotocol: str | None, ack_ids: list[int]) -> None:
    codec = codec_for(subprotocol)
    alone = [codec.encode(Ack(ack_id)) for ack_id in ack_ids]
    assert codec.ack_frames(ack_ids) == b"".join([frame(each) for each in alone if each is not None])


_bodies = {
    DataType.TEXT: texts.map(str.encode),
    DataType.JSON: frame_values.documents.map(json_text),
    DataType.BINARY: st.binary(max_size=200),
}
_plain = st.sampled_from(list(_bodies)).flatmap(lambda kind: st.tuples(users, st.just(kind), _bodies[kind]))


@pytest.mark.parametrize("subprotocol", [*Subprotocol, None])
@given(groups, st.lists(_plain, max_size=4), st.none() | st.integers(0, 2**53))
def test_messages_together_are_the_messages_one_by_one(
    subprotocol: str | None, group: str, messages: list[tuple[str | None, DataType, bytes]], first: int | None
) -> None:
    codec = codec_for(subprotocol)
    alone = [
        codec.encode(GroupMessage(group, Data(kind, body), user, None if first is None else first + at))
        for at, (user, kind, body) in enumerate(messages)
    ]
    assert codec.group_frames(group, messages, first) == b"".join([frame(each) for each in alone if each is not None])
