"""What the records of a hub's stream say: messages with their receivers, and who joined, left, came and went.

    kind      target            source                       subject
    message   g/<group>         connection that sent it      its user
              u/<user>          or "rest"
              c/<connection>
              "" for everybody
    join, leave   g/<group>     the connection               its user
    open, close   c/<connection>

A record carries all that decides who gets it, so every node decides alike, also when it is read again much later.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

import msgspec

from semel.kernel.envelope import Blob, Envelope
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Append, PutBlob, RecordKind
from semel.kernel.store import BLOB_CHUNK_BYTES, Record
from semel.kernel.text import ID_CHARS_MAX, stream_name
from semel.pubsub.messages import CONTENT_TYPES, Data, DataType, Metadata, StreamPart

REST = "rest"
DATA_TYPES = {content: kind for kind, content in CONTENT_TYPES.items()}

NO_ECHO, EXCLUDED, FILTER, EXPIRES, STREAM = "no-echo", "excluded", "filter", "expires", "stream"
META = "meta-"
"""Headers. Those of the sender's own metadata begin with `META`."""


MESSAGE_ID = "semel-id"
"""Metadata under which a client gives a message its own id. A hub takes each id once, whichever session brings it."""


def id_identity(id: str) -> str:
    return _identity("id", id)


def key_identity(key: str) -> str:
    """Of a call with an idempotency key."""
    return _identity("key", key)


def _identity(sort: str, name: str) -> str:
    """Fit to be an identity, however long the name is."""
    identity = f"{sort}/{name}"
    return identity if len(identity) <= ID_CHARS_MAX else f"{sort}/{sha256(name.encode()).hexdigest()}"


def stream_of(hub: str) -> str:
    return stream_name("hub", hub)


@lru_cache(maxsize=4096)
def group_target(group: str) -> str:
    """The same object for the same group: stores check a target they have just seen no second time."""
    return f"g/{group}"


def user_target(user: str) -> str:
    return f"u/{user}"


def connection_target(connection: str) -> str:
    return f"c/{connection}"


EVERYBODY = ""


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What else decides who gets a message, and what comes with it. `expires` in microseconds."""

    no_echo: bool = False
    excluded: tuple[str, ...] = ()
    filter: str | None = None
    expires: int | None = None
    metadata: Metadata | None = None
    stream: StreamPart | None = None


NO_TERMS = Terms()


def accepted_event(hub: str) -> Event:
    """What the ledger hears of messages that a hub takes in, as one row for all of a commit."""
    return Event(Kind.ACCEPTED, f"client>{stream_of(hub)}")


def repeated_event(hub: str) -> Event:
    """What it hears of one that was there already."""
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
    terms: Terms,
    on_fresh: Event,
    blob: Blob | None = None,
    identity: str | None = None,
    on_duplicate: Event | None = None,
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
    return Append(stream, envelope, identity, target=target, on_fresh=on_fresh, on_duplicate=on_duplicate)


def _headers(terms: Terms) -> dict[str, str]:
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


def terms_of(envelope: Envelope) -> Terms:
    headers = envelope.headers
    if not headers:
        return NO_TERMS
    metadata = {name.removeprefix(META): value for name, value in headers.items() if name.startswith(META)}
    return Terms(
        NO_ECHO in headers,
        msgspec.json.decode(headers[EXCLUDED], type=tuple[str, ...]) if EXCLUDED in headers else (),
        headers.get(FILTER),
        int(headers[EXPIRES]) if EXPIRES in headers else None,
        metadata or None,
        msgspec.json.decode(headers[STREAM], type=StreamPart) if STREAM in headers else None,
    )


def data_of(envelope: Envelope, body: bytes) -> Data | None:
    """Records that others put into the stream, a Spark query for one, may have any content type: those are binary."""
    if envelope.datacontenttype is None:
        return Data(DataType.BINARY, body) if body else None
    kind = DATA_TYPES.get(envelope.datacontenttype.partition(";")[0].strip().lower(), DataType.BINARY)
    return Data(kind, body)


def membership(
    stream: str, kind: RecordKind, group: str, connection: str, user: str | None, at: int, id: str
) -> Append:
    """Somebody joined or left."""
    return Append(stream, Envelope(id, connection, time=at, subject=user), kind=kind, target=group_target(group))


def presence(stream: str, kind: RecordKind, connection: str, user: str | None, at: int, id: str) -> Append:
    """A connection came, changed or went."""
    envelope = Envelope(id, connection, time=at, subject=user)
    return Append(stream, envelope, kind=kind, target=connection_target(connection))


def of_record(record: Record) -> Append:
    """A record that was read, in the form in which it was written."""
    return Append(record.position.stream, record.envelope, record.identity, record.kind, record.target)
