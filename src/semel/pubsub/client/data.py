"""What an application sends and gets, as Python values.

type       value
json       whatever JSON can say: dict, list, str, int, float, bool
text       str
binary     bytes
protobuf   bytes of a serialized google.protobuf.Any
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from semel.errors import InputError
from semel.pubsub.client import events as client_events
from semel.pubsub.hub.records import MESSAGE_ID
from semel.pubsub.protocol.messages import Data, DataType, GroupMessage, GroupStateItem, Metadata, StreamPart


def data_of(value: Any, type: str | None = None) -> Data:
    """Unless `type` says otherwise, bytes are binary, a str is text, and all else is JSON."""
    kind = _type_of(value) if type is None else _known(type)
    match kind:
        case DataType.JSON:
            return Data(kind, _json(value))
        case DataType.TEXT:
            if not isinstance(value, str):
                raise InputError(f"{_name(value)} is no text", fix="send a str, or leave the type out")
            return Data(kind, value.encode(errors="surrogatepass"))
        case _:
            if not isinstance(value, bytes | bytearray | memoryview):
                raise InputError(f"{_name(value)} is not {kind.value}", fix="send bytes, or leave the type out")
            return Data(kind, bytes(value))


def value_of(data: Data) -> Any:
    match data.type:
        case DataType.JSON:
            return _from_json(data.body)
        case DataType.TEXT:
            return data.body.decode()
        case _:
            return data.body


def _from_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        pass
    try:
        return json.loads(body)  # which takes a number beyond all floats for infinity
    except (ValueError, RecursionError) as error:
        raise InputError(f"the data is no JSON that can be read: {error}", fix="read it from `content.body`") from None


def _type_of(value: Any) -> DataType:
    if isinstance(value, str):
        return DataType.TEXT
    return DataType.BINARY if isinstance(value, bytes | bytearray | memoryview) else DataType.JSON


def _known(type: str) -> DataType:
    try:
        return DataType(type)
    except ValueError:
        raise InputError(
            f"there is no data of type {type!r}", fix=f"use one of {', '.join(kind.value for kind in DataType)}"
        ) from None


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, UnicodeError, msgspec.MsgspecError) as error:
        raise InputError(
            f"JSON cannot say this: {error}", fix="send dicts, lists, text, numbers and booleans"
        ) from None


def _name(value: Any) -> str:
    return type(value).__name__


@dataclass(frozen=True)
class Message:
    """What a subscriber gets. `group` None: it came from the server, for this connection, its user or everybody.

    `sequence_id` grows within a session; plain protocols have none. `content` is the data as bytes.
    """

    content: Data | None
    group: str | None = None
    from_user: str | None = None
    sequence_id: int | None = None
    metadata: Metadata | None = None
    stream: StreamPart | None = None

    @cached_property
    def data(self) -> Any:
        """None at the end of a stream, which has no data."""
        return None if self.content is None else value_of(self.content)

    @property
    def type(self) -> str | None:
        return None if self.content is None else self.content.type.value

    @property
    def id(self) -> str | None:
        """The sender's own, if it gave one."""
        return (self.metadata or {}).get(MESSAGE_ID)


def message_of(event: client_events.Message) -> Message:
    if isinstance(event, GroupMessage):
        return Message(event.data, event.group, event.from_user, event.sequence_id, event.metadata, event.stream)
    return Message(event.data, sequence_id=event.sequence_id, metadata=event.metadata)


@dataclass(frozen=True)
class GroupStateChange:
    """What has changed in a group that is watched: items of `changed` without a state were taken back. `states` is all
    there is now, by connection id."""

    group: str
    changed: tuple[GroupStateItem, ...]
    states: Mapping[str, GroupStateItem]
