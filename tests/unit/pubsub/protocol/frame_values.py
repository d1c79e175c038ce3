"""Everything that clients and servers can say, for the tests of both encodings."""

from __future__ import annotations

import json
import string

from google.protobuf.any_pb2 import Any
from hypothesis import strategies as st

from semel.pubsub.protocol.frames import UINT32_MAX, UINT64_MAX
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

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ids = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=30)
groups = ids.filter(lambda name: not name.isspace())
events = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,127}", fullmatch=True)
keys = st.text(string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~", min_size=1, max_size=20)
values = st.text(st.characters(codec="ascii", exclude_characters="\x00"), max_size=20)
metadata = st.none() | st.dictionaries(keys, values, min_size=1, max_size=4)
uint64s = st.integers(0, UINT64_MAX)
ack_ids = st.none() | uint64s
ttls = st.none() | st.integers(0, 300)

scalars = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
documents = scalars | st.recursive(
    st.none() | scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8
).filter(lambda document: document is not None)


def json_text(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def serialized_any(type_url: str, value: bytes) -> bytes:
    return Any(type_url=type_url, value=value).SerializeToString(deterministic=True)


data = st.one_of(
    st.builds(Data, st.just(DataType.JSON), documents.map(json_text)),
    st.builds(Data, st.just(DataType.TEXT), texts.map(str.encode)),
    st.builds(Data, st.just(DataType.BINARY), st.binary(max_size=40)),
    st.builds(Data, st.just(DataType.PROTOBUF), st.builds(serialized_any, texts, st.binary(max_size=20))),
)
states = st.none() | st.dictionaries(texts, texts, max_size=3)
plain_faults = st.builds(Fault, texts, texts)
faults = st.builds(Fault, texts, texts, st.none() | texts)
users = st.none() | ids

requests = st.one_of(
    st.builds(JoinGroup, groups, ack_ids),
    st.builds(LeaveGroup, groups, ack_ids),
    st.builds(SendToGroup, groups, data, ack_ids, st.booleans(), ttls, metadata),
    st.builds(SendEvent, events, data, ack_ids, metadata),
    st.builds(SequenceAck, uint64s),
    st.just(Ping()),
    st.builds(StartStream, groups, ids, st.none() | st.integers(1, UINT32_MAX), st.booleans(), ttls, metadata),
    st.builds(Invoke, ids, events, st.none() | data),
    st.builds(CancelInvocation, ids),
    st.builds(StreamData, ids),
    st.builds(StreamData, ids, uint64s, data),
    st.builds(StreamEnd, ids, st.none() | st.builds(Fault, st.just(ErrorName.USER), texts, st.none() | texts)),
    st.builds(SetGroupState, groups, ack_ids, states),
    st.builds(SubscribeGroupState, groups, ack_ids),
    st.builds(UnsubscribeGroupState, groups, ack_ids),
)
items = st.builds(GroupStateItem, texts, st.integers(0, 2**63 - 1), st.none() | texts, states)
plain_errors = st.none() | st.builds(Fault, texts, texts, st.none() | ids)
plain_parts = st.builds(StreamPart, texts, uint64s, st.just(False), plain_errors)
plain_ends = st.builds(StreamPart, texts, uint64s, st.just(True), plain_errors)
plain_responses = st.one_of(
    st.builds(Connected, texts, users, st.none() | texts),
    st.builds(Disconnected, texts),
    st.builds(Ack, uint64s, st.none() | plain_faults),
    st.builds(GroupMessage, groups, data, st.none(), ack_ids, metadata),
    st.builds(ServerMessage, data, ack_ids, metadata),
    st.just(Pong()),
    st.builds(GroupMessage, groups, data, st.none(), ack_ids, metadata, plain_parts),
    st.builds(GroupMessage, groups, st.none(), st.none(), ack_ids, metadata, plain_ends),
    st.builds(InvokeResponse, texts, st.none() | data),
    st.builds(InvokeResponse, texts, st.none(), plain_faults),
    st.builds(StreamAck, texts, uint64s),
    st.builds(StreamNack, texts, uint64s, texts, st.none() | ids),
    st.builds(StreamClosed, texts, st.none() | plain_faults),
    st.builds(GroupStateSnapshot, groups, st.lists(items, max_size=3).map(tuple)),
    st.builds(GroupStateUpdate, groups, st.lists(items, max_size=3).map(tuple)),
)
parts = st.builds(StreamPart, texts, uint64s, st.just(False), st.none() | faults)
ends = st.builds(StreamPart, texts, uint64s, st.just(True), st.none() | faults)
json_responses = st.one_of(
    st.builds(Ack, uint64s, st.builds(Fault, texts, texts, texts)),
    st.builds(GroupMessage, groups, data, users, ack_ids, metadata, st.none() | parts),
    st.builds(GroupMessage, groups, st.none(), users, ack_ids, metadata, ends),
    st.builds(InvokeResponse, texts, st.none(), faults),
    st.builds(StreamNack, texts, uint64s, texts, st.none() | texts),
    st.builds(StreamClosed, texts, st.none() | faults),
)
responses = plain_responses | json_responses
