"""What the records of a hub's stream say: messages with their receivers, and who joined, left, came and went.

    kind      target            source                       subject
    message   g/<group>         connection that sent it      its user
              u/<user>          or "rest"
              c/<connection>
              "" for everybody
    join, leave   g/<group>     the connection               its user
    open, close   c/<connection>                             its user
    state     g/<group>         the connection               its user
    order, reply                the node                     in a reply: the id of the order

An `open` says on which node a session is from here on. An order asks other nodes to do something for the sessions that
they have.

A record carries all that decides who gets it, so every node decides alike, also when it is read again much later.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256
from typing import Protocol

import msgspec

from semel.cloudevents import MESSAGE_ID as MESSAGE_ID
from semel.kernel import ops
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Blob, Envelope
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import MESSAGE, Append, PutBlob
from semel.kernel.store import BLOB_CHUNK_BYTES, Record
from semel.kernel.text import ID_CHARS_MAX, stream_name
from semel.pubsub.protocol.frames import FrameError, check_digits, json_body
from semel.pubsub.protocol.messages import CONTENT_TYPES, Data, DataType, Metadata, StreamPart


class RecordKind(IntEnum):
    """Numbers are stored, and the lower-case names stand in the exported index (`record_types`): neither ever changes
    meaning, and no other protocol uses these numbers.

    Records come back from a store with a plain number, also one that only a newer Semel knows: compare with `==`.
    """

    MESSAGE = ops.MESSAGE
    JOIN = 1
    LEAVE = 2
    OPEN = 3
    CLOSE = 4
    STATE = 5
    ORDER = 6
    REPLY = 7


REST = "rest"
DATA_TYPES = {content: kind for kind, content in CONTENT_TYPES.items()}

NO_ECHO, EXCLUDED, FILTER, EXPIRES, STREAM = "no-echo", "excluded", "filter", "expires", "stream"
NODE, NODES = "node", "nodes"
META = "meta-"
"""Headers. Those of the sender's own metadata begin with `META`."""

START, END, GROUPS, RELIABLE = "start", "end", "groups", "reliable"
"""Headers of `open` and `close`, for the audit: a session is given what stands after `start` and up to `end`. `groups`
are those that it is in from the start. Only a reliable one acknowledges."""
GROUPS_CHARS_MAX = 8 * 1024


def id_identity(id: str) -> str:
    return _identity("id", id)


def digest_of(target: str, data: Data, terms: Sequence[object]) -> bytes:
    """Two messages under one id are the same if this is: to whom, of which type, on which terms, with which data."""
    head = msgspec.msgpack.encode((target, CONTENT_TYPES[data.type], *terms))
    return sha256(len(head).to_bytes(8) + head + data.body).digest()


def _identity(sort: str, name: str) -> str:
    """Fit to be an identity, however long the name is."""
    identity = f"{sort}/{name}"
    return identity if len(identity) <= ID_CHARS_MAX else f"{sort}/{sha256(name.encode()).hexdigest()}"


def stream_of(hub: str) -> str:
    return stream_name("hub", hub)


TO_GROUP, TO_USER, TO_CONNECTION = "g/", "u/", "c/"


@lru_cache(maxsize=4096)
def group_target(group: str) -> str:
    """The same object for the same group: stores check a target they have just seen no second time."""
    return f"{TO_GROUP}{group}"


def user_target(user: str) -> str:
    return f"{TO_USER}{user}"


def connection_target(connection: str) -> str:
    return f"{TO_CONNECTION}{connection}"


EVERYBODY = ""


class DeliveryTerms(msgspec.Struct, frozen=True, gc=False):
    """What else decides who gets a message, and what comes with it. `expires` in microseconds."""

    no_echo: bool = False
    excluded: tuple[str, ...] = ()
    filter: str | None = None
    expires: int | None = None
    metadata: Metadata | None = None
    stream: StreamPart | None = None


NO_TERMS = DeliveryTerms()


class Served(Protocol):
    """What of a session stands in the stream."""

    id: str
    user: str | None
    start: int
    is_reliable: bool
    groups: dict[str, int]


def accepted_event(hub: str) -> Event:
    """The ledger's event for messages that a hub takes in: one row for all of a commit."""
    return Event(Kind.ACCEPTED, f"client>{stream_of(hub)}")


def repeated_event(hub: str) -> Event:
    """The ledger's event for a message that was there before."""
    return Event(Kind.DUPLICATE, f"client>{stream_of(hub)}")


def chunks_of(blob: Blob, body: bytes) -> list[PutBlob]:
    """What has to be committed together with a message whose body is too large for its row."""
    starts = range(0, len(body), BLOB_CHUNK_BYTES)
    return [PutBlob(blob.name, part, body[at : at + BLOB_CHUNK_BYTES]) for part, at in enumerate(starts)]


def message(
    stream: str,
    id: str,
    target: str,
    data: Data | None,
    *,
    at: int,
    sender: str,
    user: str | None,
    terms: DeliveryTerms,
    on_fresh: Event,
    blob: Blob | None = None,
    identity: str | None = None,
    on_duplicate: Event | None = None,
    digest: bytes | None = None,
) -> Append:
    envelope = Envelope(
        id,
        sender,
        data=data.body if data is not None and blob is None else b"",
        time=at,
        subject=user,
        datacontenttype=CONTENT_TYPES[data.type] if data is not None else None,
        headers=_headers(terms) if terms is not NO_TERMS else {},
        blob=blob,
    )
    return Append(
        stream, envelope, identity, target=target, on_fresh=on_fresh, on_duplicate=on_duplicate, digest=digest
    )


def plain_message(
    stream: str, id: str, target: str, data: Data, at: int, sender: str, user: str | None, fresh: Event, repeated: Event
) -> Append:
    """By far the most frequent one: to a group, without terms, with its body in the row."""
    envelope = Envelope(id, sender, "message", data.body, None, None, at, user, CONTENT_TYPES[data.type])
    return Append(stream, envelope, None, MESSAGE, target, fresh, repeated)


def _headers(terms: DeliveryTerms) -> dict[str, str]:
    headers: dict[str, str] = {}
    if terms.no_echo:
        headers[NO_ECHO] = "1"
    if terms.excluded:
        headers[EXCLUDED] = msgspec.json.encode(terms.excluded).decode()
    if terms.filter is not None:
        headers[FILTER] = terms.filter
    if terms.expires is not None:
        headers[EXPIRES] = str(terms.expires)
    if terms.stream is not None:
        headers[STREAM] = msgspec.json.encode(terms.stream).decode()
    for name, value in (terms.metadata or {}).items():
        headers[META + name] = value
    return headers


def terms_of(envelope: Envelope) -> DeliveryTerms:
    headers = envelope.headers
    if not headers:
        return NO_TERMS
    metadata = {name.removeprefix(META): value for name, value in headers.items() if name.startswith(META)}
    return DeliveryTerms(
        NO_ECHO in headers,
        msgspec.json.decode(headers[EXCLUDED], type=tuple[str, ...]) if EXCLUDED in headers else (),
        headers.get(FILTER),
        int(headers[EXPIRES]) if EXPIRES in headers else None,
        metadata or None,
        msgspec.json.decode(headers[STREAM], type=StreamPart) if STREAM in headers else None,
    )


def data_of(envelope: Envelope, body: bytes) -> Data | None:
    return Data(kind_of(envelope), body) if body or envelope.datacontenttype is not None else None


def kind_of(envelope: Envelope) -> DataType:
    """Records that others put into the stream, a Spark query for one, may have any content type: those are binary."""
    content = envelope.datacontenttype or ""
    kind = DATA_TYPES.get(content)  # as our own are written; others are looked at more closely
    return kind or DATA_TYPES.get(content.partition(";")[0].strip().lower(), DataType.BINARY)


def membership(
    stream: str, kind: RecordKind, group: str, connection: str, user: str | None, at: int, id: str
) -> Append:
    """Somebody joined or left."""
    return Append(stream, Envelope(id, connection, time=at, subject=user), kind=kind, target=group_target(group))


def opened(stream: str, session: Served, node: str, at: int, id: str) -> Append:
    """A session is on this node from here on: it is new, or was taken over. The record names its groups if they fit,
    and if not, other nodes keep what they know."""
    headers = {NODE: node, **_opening(session.start, session.is_reliable, sorted(session.groups))}
    data = msgspec.json.encode(sorted(session.groups))
    if len(data) > DATA_INLINE_BYTES_MAX:
        data = b""
    envelope = Envelope(id, session.id, data=data, time=at, subject=session.user, headers=headers)
    return Append(stream, envelope, kind=RecordKind.OPEN, target=connection_target(session.id))


def opened_on(envelope: Envelope) -> tuple[str, tuple[str, ...] | None]:
    """The node of an `open`, and the groups if it names them."""
    groups = msgspec.json.decode(envelope.data, type=tuple[str, ...]) if envelope.data else None
    return envelope.headers.get(NODE, ""), groups


def closed(stream: str, connection: str, user: str | None, end: int, at: int, id: str) -> Append:
    envelope = Envelope(id, connection, time=at, subject=user, headers={END: str(end)})
    return Append(stream, envelope, kind=RecordKind.CLOSE, target=connection_target(connection))


def order(stream: str, node: str, nodes: Sequence[str], body: bytes, at: int, id: str) -> Append:
    headers = {NODES: msgspec.json.encode(nodes).decode()}
    return Append(stream, Envelope(id, node, data=body, time=at, headers=headers), kind=RecordKind.ORDER)


def ordered(envelope: Envelope) -> tuple[str, ...]:
    """The nodes that an order is for."""
    return msgspec.json.decode(envelope.headers.get(NODES, "[]"), type=tuple[str, ...])


def reply(stream: str, node: str, order_id: str, body: bytes, at: int, id: str) -> Append:
    return Append(stream, Envelope(id, node, data=body, time=at, subject=order_id), kind=RecordKind.REPLY)


def _opening(start: int, is_reliable: bool, groups: Sequence[str]) -> dict[str, str]:
    """A session with more groups than a header may hold is not audited, like one that does not acknowledge."""
    headers = {START: str(start)}
    names = msgspec.json.encode(groups).decode()
    if is_reliable and len(names) <= GROUPS_CHARS_MAX:
        headers |= {RELIABLE: "1", GROUPS: names}
    return headers


def of_record(record: Record) -> Append:
    """A record that was read, in the form in which it was written. Others than hubs write messages too, a Spark query
    for one: data that is not what it says would break every subscriber that gets it, so it becomes binary."""
    envelope = record.envelope
    if record.kind == MESSAGE:
        body = record.body if record.body is not None else envelope.data
        if not _is_sound(kind_of(envelope), body):
            envelope = msgspec.structs.replace(envelope, datacontenttype=CONTENT_TYPES[DataType.BINARY])
    return Append(record.position.stream, envelope, record.identity, record.kind, record.target)


def _is_sound(kind: DataType, body: bytes) -> bool:
    if kind is DataType.BINARY:
        return True
    try:
        if kind is DataType.PROTOBUF:
            from semel.pubsub.protocol.frames_protobuf import (
                check_any,  # only here: who has none can do without the package
            )

            check_any(body)
        elif kind is DataType.JSON:
            check_digits(json_body(body.decode()))
        else:
            body.decode()
    except (FrameError, UnicodeDecodeError):
        return False
    return True
