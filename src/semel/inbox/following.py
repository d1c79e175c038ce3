"""From a stream to the rows of an endpoint, by a cursor that is kept in the inbox's own database.

    a new epoch, another store, a stream that ends before the cursor, records that were trimmed: it stops and says so
    anything else: messages become rows and the cursor moves, in one commit

So nothing is taken twice and nothing is left out, whatever dies, and whether or not ids are remembered. A copy of the
cursor in the source's own store keeps records from being trimmed that were not taken yet. It may be late: then it keeps
more than it has to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

from semel.errors import ConfigError, InputError
from semel.inbox.identity import inbox_queue
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope
from semel.kernel.lease import Guard
from semel.kernel.ledger import Event, Kind, message_event
from semel.kernel.ops import MESSAGE, Enqueue, Log, Op, Put, PutBlob
from semel.kernel.position import Position
from semel.kernel.store import BLOB_CHUNK_BYTES, Record
from semel.kernel.text import ID_CHARS_MAX, NAME_CHARS_MAX, check_stream, check_text, clean_cause, quote_part

BATCH_MAX = 1000
GROUPS_MAX = 100
BODY_BYTES_MAX = 16 * 1024 * 1024
"""What is taken of a body in chunks into another store: a whole batch is in memory, one body at a time."""
CURSOR_PREFIX = "inbox/follow/"
UNREADABLE_TYPE = "unreadable"
WHY_HEADER = "semel-why"
WHY_CHARS_MAX = 200
CONNECTION_HEADER = "semel-connection"
"""Who sent a message that came over a hub. Its source is the hub, which is what its id belongs to."""
_HUB, _TO_GROUP = "hub/", "g/"


class FollowStart(StrEnum):
    """Where a follower begins that has no cursor yet."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class FollowedStream:
    """An endpoint that takes the messages of a stream. `store` is the URL of the store that has it, None the inbox's
    own. Of a hub's stream `groups` are taken, all messages unless said. `name` tells two apart that read streams of one
    name into one endpoint. An `is_entrance` is the stream of the endpoint itself: what was taken is trimmed there."""

    endpoint: str
    stream: str
    store: str | None = field(default=None, repr=False)
    groups: tuple[str, ...] = ()
    start: FollowStart | str = FollowStart.EARLIEST
    name: str = ""
    batch: int = 200
    is_entrance: bool = False

    def __post_init__(self) -> None:
        inbox_queue(self.endpoint)
        _check_stream(self)
        _check_groups(self)
        if self.start not in set(FollowStart):
            raise ConfigError(f"start is {self.start!r}", fix="use 'earliest' or 'latest'")
        object.__setattr__(self, "start", FollowStart(self.start))
        object.__setattr__(
            self, "name", check_text("the name of what is followed", self.name or self.stream, chars_max=NAME_CHARS_MAX)
        )
        if not 1 <= self.batch <= BATCH_MAX:
            raise ConfigError(f"batch is {self.batch!r}", fix=f"use 1 to {BATCH_MAX} records")

    @property
    def hop(self) -> str:
        """What the ledger calls the way from the stream to the rows. The stream of the endpoint itself has the name of
        its queue already."""
        return f"{self.stream}>{'rows' if self.is_entrance else inbox_queue(self.endpoint)}"

    @property
    def is_hub(self) -> bool:
        return self.stream.startswith(_HUB)

    def key(self, app: str) -> str:
        """The name of the cursor in the inbox's database, and of the lease of whoever follows."""
        text = f"{CURSOR_PREFIX}{quote_part(app)}/{quote_part(self.endpoint)}/{self.name}"
        return text if len(text) <= ID_CHARS_MAX else f"{CURSOR_PREFIX}{sha256(text.encode()).hexdigest()}"

    def pin(self, app: str, inbox: str, life: int) -> str:
        """The name of the copy in the source's store, which may serve many inboxes. A pin never goes back, so each life
        of a cursor has one of its own."""
        return f"{self.key(app)}@{inbox}.{life}"

    def takes(self, record: Record) -> bool:
        if record.kind != MESSAGE:
            return False
        return not self.groups or any(record.target == f"{_TO_GROUP}{group}" for group in self.groups)


def _check_stream(options: FollowedStream) -> None:
    try:
        check_stream(options.stream)
    except InputError as error:
        raise ConfigError(error.message, fix="name a stream as it is stored, such as hub/chat or orders") from None
    own = inbox_queue(options.endpoint)
    if options.stream in (own, f"{own}/log") and options.store is None and not options.is_entrance:
        raise ConfigError(
            f"endpoint {options.endpoint!r} would follow its own stream {options.stream!r}",
            fix=f"leave it out: what is appended to {own} is taken by itself, and its log is what was taken",
        )


def _check_groups(options: FollowedStream) -> None:
    if options.groups and not options.is_hub:
        raise ConfigError(f"{options.stream!r} has no groups", fix="name groups for the stream of a hub: hub/<hub>")
    if len(options.groups) > GROUPS_MAX:
        raise ConfigError(
            f"{len(options.groups)} groups are followed at once", fix=f"name {GROUPS_MAX} at most, or take all"
        )
    for group in options.groups:
        check_text("a group", group, chars_max=1024)


class FollowCursor(msgspec.Struct, frozen=True):
    """How far a stream was taken. `source` is the id of its store: a URL may lead elsewhere one day. One that has
    `stopped` says why, and goes on when an operator says from where. `life` counts how often one did."""

    source: str
    stream: str
    epoch: int
    offset: int
    stopped: str = ""
    life: int = 1

    @property
    def position(self) -> Position:
        return Position(self.stream, self.epoch, self.offset)


def read_cursor(value: bytes) -> FollowCursor:
    return msgspec.json.decode(value, type=FollowCursor)


def write_cursor(key: str, cursor: FollowCursor, version: int, guard: Guard | None) -> Put:
    """Only over what was read before, and only by whoever has the lease, if that is asked for."""
    return Put(key, msgspec.json.encode(cursor), expected=version, guard=guard)


def first_cursor(
    options: FollowedStream, source: str, head: Position, first: Position | None, life: int = 1
) -> FollowCursor:
    """Where a follower begins. `first` is the first record that is left of a stream that was trimmed."""
    offset = head.offset if options.start is FollowStart.LATEST else first.offset - 1 if first is not None else 0
    return FollowCursor(source, options.stream, head.epoch, offset, life=life)


def in_history(options: FollowedStream, cursor: FollowCursor, source: str, epoch: int) -> FollowCursor:
    """The inbox's own stream and its cursor are restored together, so a new epoch has lost nothing between them."""
    if options.store is None and cursor.source == source:
        return msgspec.structs.replace(cursor, epoch=epoch)
    return cursor


def stop_reason(cursor: FollowCursor, source: str, head: Position) -> str | None:
    """Why a follower may not go on from its cursor. None: it may."""
    if cursor.source != source:
        return f"the store of {cursor.stream} is another one: {source}, not {cursor.source}"
    if cursor.epoch != head.epoch:
        return (
            f"{cursor.stream} is in epoch {head.epoch}, and was taken up to {cursor.position}: its store was restored"
        )
    if head.offset < cursor.offset:
        return f"{cursor.stream} ends at {head}, and was taken up to {cursor.position}: what was taken is gone from it"
    return None


def trimmed_reason(cursor: FollowCursor, first: Position) -> str:
    missing = first.offset - 1 - cursor.offset
    return f"{missing:,} records of {cursor.stream} were trimmed before they were taken: {cursor.position}..{first}"


def stop_advice(app: str, options: FollowedStream) -> str:
    """What an operator does next."""
    return (
        f"see what is missing, then say from where to go on: semel inbox follow MODULE:APP {options.endpoint} "
        f"{options.name} --from earliest (what is there) or latest (only what is new); the application is {app}"
    )


def stop_ops(
    app: str, options: FollowedStream, cursor: FollowCursor, version: int, why: str, guard: Guard
) -> tuple[Op, ...]:
    stopped = msgspec.structs.replace(cursor, stopped=clean_cause(why))
    return write_cursor(options.key(app), stopped, version, guard), Log(_action(options, "stopped", why))


def restart_ops(app: str, options: FollowedStream, cursor: FollowCursor, version: int, how: str) -> tuple[Op, ...]:
    """An operator's word, whoever has the lease: its next commit finds another version and reads anew."""
    return write_cursor(options.key(app), cursor, version, None), Log(_action(options, "restarted", how))


def _action(options: FollowedStream, what: str, cause: str) -> Event:
    """Not about a message, and of no kind that ends one."""
    return Event(Kind.ACTION, options.hop, message=f"follow {what}", cause=clean_cause(cause))


def is_held(open_rows: int, held: bool, high: int, low: int) -> bool:
    """Whether nothing more is read for now: from more than `high` open rows until there are fewer than `low`."""
    return open_rows >= low if held else open_rows > high


class FollowBatch(msgspec.Struct, frozen=True):
    """What one commit does. `taken` counts its messages."""

    ops: tuple[Op, ...]
    cursor: FollowCursor
    taken: int


def follow_batch(
    options: FollowedStream,
    app: str,
    cursor: FollowCursor,
    records: Sequence[Record],
    version: int,
    guard: Guard,
    enqueue: Callable[[Envelope], Enqueue],
    *,
    refused: str = "",
) -> FollowBatch:
    """The rows of these records, and the cursor after them. With `refused` the store did not take what is in them as it
    is: it is kept as a dead letter."""
    ops: list[Op] = []
    taken = [record for record in records if options.takes(record)]
    for record in taken:
        ops += _row(options, record, enqueue, refused)
    moved = msgspec.structs.replace(cursor, offset=records[-1].position.offset)
    ops.append(write_cursor(options.key(app), moved, version, guard))
    return FollowBatch(tuple(ops), moved, len(taken))


def _row(options: FollowedStream, record: Record, enqueue: Callable[[Envelope], Enqueue], refused: str) -> list[Op]:
    envelope = _envelope(options, record)
    chunks: list[Op] = []
    try:
        if refused:
            raise InputError(refused, fix="")
        if envelope.blob is not None and record.body is not None:
            chunks = _chunks(envelope.blob.name, record.body)
        elif envelope.blob is not None and envelope.blob.size > BODY_BYTES_MAX and options.store is not None:
            raise InputError(f"its body has {envelope.blob.size:,} bytes, the limit is {BODY_BYTES_MAX:,}", fix="")
        op = enqueue(envelope)
    except InputError as error:
        envelope, chunks = unreadable(record, error.message), []
        op = enqueue(envelope)
    delivery = f"{record.position.stream}/{record.position.epoch}/{record.position.offset}"
    accepted = message_event(Kind.ACCEPTED, options.hop, "", envelope, delivery=delivery)
    own = op.on_fresh if isinstance(op.on_fresh, Event) else None
    told = {"on_fresh": (accepted, own) if own is not None else accepted}
    repeated = message_event(Kind.DUPLICATE, options.hop, "", envelope, delivery=delivery)
    ops: list[Op] = [*chunks, msgspec.structs.replace(op, on_duplicate=repeated, **told)]
    if options.groups:
        # where all records are taken, the stream itself says what was sent
        ops.append(Log(message_event(Kind.SENT, options.hop, "", envelope, delivery=delivery)))
    return ops


def _envelope(options: FollowedStream, record: Record) -> Envelope:
    """As it stands in the stream. Of a hub's message the source becomes the hub: its ids are the hub's, and whoever
    sends one again does it on another connection."""
    envelope = record.envelope
    if not options.is_hub:
        return envelope
    changed: dict[str, Any] = {"source": options.stream}
    if CONNECTION_HEADER not in envelope.headers:
        changed["headers"] = {**envelope.headers, CONNECTION_HEADER: envelope.source}
    try:
        return msgspec.structs.replace(envelope, **changed)
    except InputError:
        return msgspec.structs.replace(envelope, source=options.stream)  # it has as many headers as there may be


def unreadable(record: Record, why: str) -> Envelope:
    """A record that cannot be stored as the message that it is. No handler knows its type: it is a dead letter. Its id
    is its place, so it is one however often it is read."""
    position = record.position
    place = sha256(f"{position.stream} {position.epoch} {position.offset}".encode()).hexdigest()
    why = f"message {record.envelope.id!r} at {position}: {why}".encode("ascii", "replace").decode()[:WHY_CHARS_MAX]
    data = record.envelope.data or (record.body or b"")[:DATA_INLINE_BYTES_MAX]
    return Envelope(f"unreadable-{place}", type=UNREADABLE_TYPE, data=data, headers={WHY_HEADER: why})


def _chunks(name: str, body: bytes) -> list[Op]:
    starts = range(0, len(body), BLOB_CHUNK_BYTES)
    return [PutBlob(name, part, body[at : at + BLOB_CHUNK_BYTES]) for part, at in enumerate(starts)]
