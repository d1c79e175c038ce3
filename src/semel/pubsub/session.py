"""One logical connection: what it may do, what it has been sent, and what of it survives a crash.

A session outlives its socket. Two rows of the store hold it:

    session   who it is, its permissions and groups, and since when it has no socket      changes seldom
    acks      which of its own messages were taken, how far its streams have come, and    changes with every publish
              how far it has acknowledged

Every write to a row names the version that it builds on, so a node that was replaced cannot write for the session any
more, whatever it believes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

import msgspec

from semel.errors import StoreError
from semel.kernel.ledger import hash_id
from semel.kernel.numbers import NumberSet
from semel.kernel.ops import Append, Put, PutBlob, Result
from semel.pubsub.frames import RELIABLE, Frame, codec_for, subprotocol_of
from semel.pubsub.messages import Data, DataType, GroupMessage, Metadata, Request, Response, ServerMessage
from semel.pubsub.permissions import Permission, Permissions
from semel.pubsub.records import NO_TERMS, Terms, data_of, terms_of
from semel.pubsub.wire import frame

if TYPE_CHECKING:
    from semel.pubsub.streams import StreamChanges

ALLOWED_MAX = 1024
GROUPS_MAX = 10_000


class OwnState(msgspec.Struct, frozen=True, array_like=True):
    """What a session says of itself in a group. `updated_at` in milliseconds."""

    state: dict[str, str]
    updated_at: int


class SessionRow(msgspec.Struct, frozen=True, array_like=True):
    """`groups` says since which offset; `left` are the stays in groups that ended after `acked`. `dropped_at` in
    seconds, None while a socket is attached. Offsets are those of `epoch`: in another one they mean nothing."""

    user: str | None
    subprotocol: str
    node: str
    start: int
    permissions: Permissions
    groups: dict[str, int] = {}
    left: tuple[tuple[str, int, int], ...] = ()
    dropped_at: float | None = None
    state: str = ""
    epoch: int = 0
    states: dict[str, OwnState] = {}
    watches: tuple[str, ...] = ()


class ClientStream(msgspec.Struct, frozen=True, array_like=True):
    """A stream that a client sends to a group, and the number of the part that comes next. One that `is_ended` is
    remembered for a client that did not hear so."""

    id: str
    group: str
    expected: int
    idle_ms: int
    no_echo: bool = False
    ttl_s: int | None = None
    metadata: Metadata | None = None
    is_ended: bool = False


class AcksRow(msgspec.Struct, frozen=True, array_like=True):
    acked: int
    taken: tuple[tuple[int, int], ...]
    streams: tuple[ClientStream, ...] = ()


def session_key(hub: str, connection: str) -> str:
    return f"hub/{hub}/session/{connection}"


def acks_key(hub: str, connection: str) -> str:
    return f"hub/{hub}/acks/{connection}"


_encode = msgspec.msgpack.Encoder().encode
_decode_session = msgspec.msgpack.Decoder(SessionRow).decode
_decode_acks = msgspec.msgpack.Decoder(AcksRow).decode


def read_session(value: bytes) -> SessionRow:
    return _read(_decode_session, value)


def read_acks(value: bytes) -> AcksRow:
    return _read(_decode_acks, value)


T = TypeVar("T")


def _read(decode: Callable[[bytes], T], value: bytes) -> T:
    try:
        return decode(value)
    except msgspec.MsgspecError as error:
        raise StoreError(f"a session cannot be read: {error}", fix="was it written by a newer Semel?") from None


class Entry:
    """A message on its way to subscribers, shared by all of them. It is made into a frame once for each protocol."""

    __slots__ = ("_frames", "_hash", "body", "envelope", "offset", "size", "target", "terms")

    def __init__(self, offset: int, append: Append, body: bytes | None = None) -> None:
        self.offset = offset
        self.envelope = envelope = append.envelope
        self.body = envelope.data if body is None else body
        self.size = len(self.body)
        self.target = append.target
        self.terms: Terms = terms_of(envelope) if envelope.headers else NO_TERMS
        self._hash: int | None = None
        self._frames: dict[str, bytes] = {}

    @property
    def hash(self) -> int:
        if self._hash is None:
            self._hash = hash_id(self.envelope.id)
        return self._hash

    def frame(self, subprotocol: str) -> bytes:
        made = self._frames.get(subprotocol)
        if made is None:
            made = self._frames[subprotocol] = self._make(subprotocol)
        return made

    def _make(self, subprotocol: str) -> bytes:
        envelope, terms = self.envelope, self.terms
        sequence = self.offset if subprotocol in RELIABLE else None
        data = data_of(envelope, self.body)
        response: Response
        if self.target.startswith("g/"):
            response = GroupMessage(self.target[2:], data, envelope.subject, sequence, terms.metadata, terms.stream)
        else:
            response = ServerMessage(data or Data(DataType.BINARY, b""), sequence, terms.metadata)
        encoded: Frame | None = codec_for(subprotocol).encode(response)
        return frame(encoded) if encoded is not None else b""


class Run:
    """Messages to the same target, one after the other. They are made into frames once for each protocol."""

    __slots__ = ("_frames", "entries", "first", "is_plain", "last", "size")

    def __init__(self, first: int, appends: Sequence[Append]) -> None:
        self.first, self.last = first, first + len(appends) - 1
        self.entries = [Entry(offset, append) for offset, append in enumerate(appends, first)]
        self.size = sum([entry.size for entry in self.entries])
        self.is_plain = all(entry.terms is NO_TERMS for entry in self.entries)
        self._frames: dict[str, list[bytes]] = {}

    def frames(self, subprotocol: str) -> list[bytes]:
        made = self._frames.get(subprotocol)
        if made is None:
            found = [entry.frame(subprotocol) for entry in self.entries]
            made = self._frames[subprotocol] = [frame for frame in found if frame]
        return made


class Session:
    """In memory. `acked` is how far the client has acknowledged, `sent` the highest offset that ever went to it,
    `written` the highest that went to its present socket, `queue` what it has not acknowledged. `taken` are the ackIds
    whose messages are durable, `claimed` also those that are on their way. `early` is what the client has said before
    its session was durable; None from then on. While it `is_behind`, what it has missed is still being read: what comes
    in waits in its queue, and `early_ack` is how far it has acknowledged meanwhile. `opened` is where the stream says
    that it is on this node. `streams`, `states` and `watches` count what is on its way, those that are `stored` do
    not. It `owes_row` since a commit failed that may have said what is decided.

    What groups it is in is `groups_wanted` as soon as it is asked for, `groups_decided` when it is durable from which
    record on, and `groups` when the stream has come there: with several nodes that may be a little later."""

    __slots__ = (
        "_may", "acked", "acks_stored", "acks_version", "claimed", "confirmed", "dropped_at", "early", "early_ack",
        "epoch", "generation", "groups", "groups_decided", "groups_wanted", "has_timed", "id", "is_behind",
        "is_reliable", "is_stalled", "left", "node", "opened", "out", "owes_row", "peer", "permissions", "queue",
        "queue_bytes", "row_stored", "row_version", "sent", "staged", "staged_chunks", "staged_ids", "staged_streams",
        "start", "state", "states", "states_stored", "streams", "streams_stored", "subprotocol", "taken", "told",
        "user", "waiting", "watches", "watches_stored", "written",
    )  # fmt: skip

    def __init__(self, id: str, row: SessionRow, acks: AcksRow, row_version: int, acks_version: int) -> None:
        self.id = id
        self.user = row.user
        self.subprotocol = row.subprotocol
        self.is_reliable = subprotocol_of(row.subprotocol) in RELIABLE
        self.node = row.node
        self.start = row.start
        self.permissions = row.permissions
        self.groups = dict(row.groups)
        self.groups_decided = dict(row.groups)
        self.groups_wanted = set(row.groups)
        self.left = list(row.left)
        self.dropped_at = row.dropped_at
        self.state = row.state
        self.epoch = row.epoch
        self.opened = 0
        self.is_behind = self.has_timed = False
        self.early_ack = 0
        self.row_version = self.row_stored = row_version
        self.acks_version = self.acks_stored = acks_version
        self.taken = NumberSet(acks.taken)
        self.claimed = NumberSet(acks.taken)
        self.streams_stored = {stream.id: stream for stream in acks.streams}
        self.streams = dict(self.streams_stored)
        self.states_stored = dict(row.states)
        self.states = dict(row.states)
        self.watches_stored = dict.fromkeys(row.watches)
        self.watches = dict.fromkeys(row.watches)
        self.acked = self.sent = self.written = self.told = acks.acked
        self.queue: deque[Entry] = deque()
        self.queue_bytes = 0
        self.peer: str | None = None
        self.is_stalled = False
        self.early: list[Request] | None = None
        self.out: list[bytes] = []
        self.staged: list[Append] = []
        self.staged_ids: list[int | None] = []
        self.staged_chunks: list[PutBlob] = []
        self.staged_streams: StreamChanges | None = None
        self.waiting: dict[int, int] = {}
        self.generation = 0
        self.owes_row = False
        self.confirmed: Confirmed | None = None
        self._may: dict[tuple[Permission, str], bool] = {}

    @property
    def connection_id(self) -> str:
        return self.id

    @property
    def user_id(self) -> str | None:
        return self.user

    @property
    def protocol(self) -> str | None:
        """As filters ask for it."""
        return self.subprotocol or None

    # -- what is stored

    def row(self) -> SessionRow:
        """Of the stays that have ended, those in which something was not acknowledged yet."""
        self.left = [stay for stay in self.left if stay[2] > self.told]
        return SessionRow(
            self.user, self.subprotocol, self.node, self.start, self.permissions, dict(self.groups_decided),
            tuple(self.left), self.dropped_at, self.state, self.epoch, dict(self.states), tuple(self.watches),
        )  # fmt: skip

    def put_row(self, hub: str, row: SessionRow) -> Put:
        """The next version of the row. The versions of a row follow each other, so several may be on their way."""
        put = Put(session_key(hub, self.id), _encode(row), self.row_version)
        self.row_version += 1
        self.owes_row = False
        return put

    def stored(self, put: Put, result: Result) -> None:
        """A row was written: this is its version by now."""
        version = getattr(result, "version", None) or 0
        if put.key.rpartition("/")[0].endswith("/acks"):
            self.acks_stored = version
        else:
            self.row_stored = version

    def is_settled(self, group: str, is_in: bool) -> bool:
        """Whether it is in the group, or out of it, with nothing on its way that could change that."""
        return (group in self.groups_wanted) == (group in self.groups_decided) == is_in

    def decide_group(self, group: str, offset: int, is_joined: bool, tail: int) -> None:
        """A record in the stream says so. A stay that ends is remembered while something of it may be missing; what the
        session said of itself in it is not."""
        if is_joined:
            self.groups_decided.setdefault(group, offset)
            return
        if self.states.get(group) is self.states_stored.pop(group, None):  # if not, it was said after leaving
            self.states.pop(group, None)
        since = self.groups_decided.pop(group, None)
        served = self.floor(tail)
        self.left = [stay for stay in self.left if stay[2] > served]
        if since is not None and served < offset:
            self.left.append((group, since, offset))

    def fall_back(self) -> None:
        """Nothing that was on its way will be stored: go on from what is."""
        self.groups_wanted = set(self.groups_decided)
        self.owes_row = True
        self.generation += 1
        self.row_version, self.acks_version = self.row_stored, self.acks_stored
        self.claimed = NumberSet(self.taken.ranges())
        self.streams, self.states = dict(self.streams_stored), dict(self.states_stored)
        self.watches = dict(self.watches_stored)

    def put_acks(self, hub: str) -> Put:
        row = AcksRow(self.told, tuple(self.claimed.ranges()), tuple(self.streams.values()))
        put = Put(acks_key(hub, self.id), _encode(row), self.acks_version)
        self.acks_version += 1
        return put

    # -- what it may do

    def may(self, permission: Permission, group: str) -> bool:
        known = self._may.get((permission, group))
        if known is None:
            known = self.permissions.may(permission, group)
            if len(self._may) < ALLOWED_MAX:
                self._may[permission, group] = known
        return known

    def permit(self, permissions: Permissions) -> None:
        self.permissions = permissions
        self._may.clear()

    # -- what it gets

    def push(self, entry: Entry) -> None:
        if self.is_reliable:
            self.queue.append(entry)
            self.queue_bytes += entry.size
            if entry.terms is not NO_TERMS and entry.terms.expires is not None:
                self.has_timed = True
        if self.peer is not None and not self.is_stalled and not self.is_behind:
            self.sent = self.written = entry.offset
            made = entry.frame(self.subprotocol)
            if made:
                self.out.append(made)

    def push_run(self, run: Run) -> None:
        if self.is_reliable:
            self.queue.extend(run.entries)
            self.queue_bytes += run.size
        if self.peer is not None and not self.is_stalled and not self.is_behind:
            self.sent = self.written = run.last
            self.out += run.frames(self.subprotocol)

    def caught_up(self, missed: Sequence[Entry]) -> None:
        """What it has missed is there, and comes before what came in meanwhile."""
        self.is_behind = False
        self.queue.extendleft(reversed(missed))
        self.queue_bytes += sum(entry.size for entry in missed)
        self.has_timed = self.has_timed or any(entry.terms.expires is not None for entry in missed)
        if self.early_ack > self.acked:
            self.acknowledge(self.early_ack)

    def take_expired(self, now: float) -> list[Entry]:
        """Out of what has not gone to the present socket: what came too late for it."""
        if not self.has_timed:
            return []
        late = {
            entry.offset: entry
            for entry in self.queue
            if entry.offset > self.written and entry.terms.expires is not None and entry.terms.expires <= now * 1e6
        }
        self.queue = deque(entry for entry in self.queue if entry.offset not in late)
        self.queue_bytes -= sum(entry.size for entry in late.values())
        self.has_timed = any(entry.terms.expires is not None for entry in self.queue)
        return list(late.values())

    def catch_up(self) -> None:
        """What came while the socket had no room, or before it was there."""
        if self.peer is None or self.is_stalled or self.is_behind:
            return
        written = self.written
        for entry in reversed(list(takewhile(lambda entry: entry.offset > written, reversed(self.queue)))):
            self.out.append(entry.frame(self.subprotocol))
            self.written = entry.offset
        self.sent = max(self.sent, self.written)

    def acknowledge(self, offset: int) -> None:
        """The client has everything up to here. What is new in it is gathered for the ledger."""
        queue, size, n, fold, last = self.queue, 0, 0, 0, 0
        if queue and self.confirmed is None and queue[0].offset <= offset:
            self.confirmed = Confirmed(queue[0].offset)
        while queue and queue[0].offset <= offset:
            entry = queue.popleft()
            size += entry.size
            fold ^= entry.hash
            n, last = n + 1, entry.offset
        if n and self.confirmed is not None:
            self.confirmed.add_all(last, n, fold)
        self.queue_bytes -= size
        self.acked = offset

    def take_confirmed(self) -> Confirmed | None:
        """What is to be written down now: the ledger and the row say it in one commit."""
        confirmed, self.confirmed, self.told = self.confirmed, None, self.acked
        return confirmed

    def put_back(self, confirmed: Confirmed | None, told: int) -> None:
        """It was not written down."""
        self.told = told
        if confirmed is not None and self.confirmed is not None:
            confirmed.extend(self.confirmed)
        self.confirmed = confirmed or self.confirmed

    def floor(self, tail: int) -> int:
        """Records up to here are not needed for this session any more."""
        if self.confirmed is not None:
            return self.told
        if self.is_behind:
            return self.acked
        return self.queue[0].offset - 1 if self.queue else tail


class Confirmed:
    """What a session has acknowledged since it was last written down."""

    __slots__ = ("first", "fold", "last", "n")

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.n = self.fold = 0

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Confirmed:
        """All of some entries, of which there is at least one."""
        first, *rest = entries
        found = cls(first.offset)
        for entry in (first, *rest):
            found.add(entry)
        return found

    def add(self, entry: Entry) -> None:
        self.add_all(entry.offset, 1, entry.hash)

    def add_all(self, last: int, n: int, fold: int) -> None:
        self.last = last
        self.n += n
        self.fold ^= fold

    def extend(self, later: Confirmed) -> None:
        self.last = later.last
        self.n += later.n
        self.fold ^= later.fold
