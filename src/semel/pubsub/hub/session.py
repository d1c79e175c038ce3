"""One logical connection: what it may do, what it has been sent, and what of it survives a crash.

A session outlives its socket. Two rows of the store hold it:

    session   who it is, its permissions and groups, and since when it has no socket      changes seldom
    acks      which of its own messages were taken, how far its streams have come, and    changes with every publish
              how far it has acknowledged

What its client has not acknowledged for long is in further rows, which the acks name (`spill_rows.py`).

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
from semel.kernel.numbers import NumberSet
from semel.kernel.ops import Append, Put, PutBlob, Result
from semel.pubsub.hub.in_order import InOrder
from semel.pubsub.hub.runs import Run
from semel.pubsub.hub.spill_rows import Spill, SpillRow
from semel.pubsub.protocol.frames import RELIABLE, subprotocol_of
from semel.pubsub.protocol.messages import Metadata, Request
from semel.pubsub.protocol.permissions import Permission, Permissions

if TYPE_CHECKING:
    from semel.pubsub.hub.streams import StreamChanges

ALLOWED_MAX = 1024
GROUPS_MAX = 10_000
GROUPS_CHARS_MAX = 512 * 1024
"""Of all names together: they are in one row, which is written with every change."""
TOO_MANY_GROUPS = (
    f"a connection can be in {GROUPS_MAX:,} groups, with {GROUPS_CHARS_MAX:,} characters in all their names; those that"
    " it has left count until it has acknowledged what came from them"
)


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


class SpilledAcks(msgspec.Struct, frozen=True, array_like=True):
    acked: int
    rows: tuple[SpillRow, ...]


class AcksRow(msgspec.Struct, frozen=True, array_like=True):
    """`acked` also names the rows of spilled messages, if there are some. It does so in this place because a Semel that
    knows nothing of them must not read on without them: to that one the row is unreadable."""

    acked: int | SpilledAcks
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


class Session:
    """In memory. `acked` is how far the client has acknowledged, `told` how far rows on their way say so, `settled` how
    far the store does. `sent` is the highest offset that ever went to it, `written` the highest that went to its socket
    of now, `queue` what it has not acknowledged (of the first run, what comes after `acked`). `taken` are the ackIds
    whose messages are durable, `claimed` also those that are on their way. `early` is what the client has said before
    its session was durable; None from then on. While it `is_behind`, what it has missed is still being read: what comes
    in waits in its queue, and `early_ack` is how far it has acknowledged meanwhile. `opened` is where the stream says
    that it has come here from another node, `came` a place at which it was there already, on whichever node, as far as
    the stream has told so here. `end` is up to where it got what was due, once it is over here. `streams`, `states` and
    `watches` count what is on its way, those that are `stored` do not. It `owes_row` since a commit failed that may
    have said what is decided.

    What groups it is in is `groups_wanted` as soon as it is asked for, `groups_decided` when it is durable from which
    record on, and `groups` when the stream has come there: with several nodes that may be a little later."""

    __slots__ = (
        "_may", "acked", "acks_stored", "acks_version", "came", "claimed", "confirmed", "dropped_at", "early",
        "early_ack", "end", "epoch", "generation", "groups", "groups_decided", "groups_wanted", "has_timed", "id",
        "in_order", "is_behind", "is_reliable", "is_stalled", "left", "node", "opened", "owes_row", "peer",
        "permissions", "queue", "queue_bytes", "queue_count", "row_stored", "row_version", "sent", "settled", "spill",
        "staged",
        "staged_chunks", "staged_ids", "staged_streams", "start", "state", "states", "states_stored", "streams",
        "streams_stored", "subprotocol", "taken", "told", "user", "waiting", "watches", "watches_stored", "written",
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
        self.came: int | None = None
        self.end: int | None = None
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
        acked, spilled = (acks.acked, ()) if isinstance(acks.acked, int) else (acks.acked.acked, acks.acked.rows)
        self.acked = self.sent = self.written = self.told = self.settled = acked
        self.spill = Spill(spilled)
        self.queue: deque[Run] = deque()
        self.queue_bytes = self.queue_count = 0
        self.peer: str | None = None
        self.in_order: InOrder | None = None
        self.is_stalled = False
        self.early: list[Request] | None = None
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
    def here_since(self) -> int:
        """Where the stream says so, whether it has been read up to there or not."""
        return max(self.opened, self.came or 0)

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
        """Of the stays that have ended, those of which something may have to be read again: that it was acknowledged is
        forgotten in a crash until the store says so."""
        self.left = [stay for stay in self.left if stay[2] > self.settled]
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

    def has_room_for(self, groups: Iterable[str], tail: int) -> bool:
        """Whether it may come into these as well. Groups that it has left count for as long as it is owed something of
        its time there."""
        self._forget_stays(tail)
        names = [*self.groups_wanted.union(groups), *(group for group, _, _ in self.left)]
        return len(names) <= GROUPS_MAX and sum(map(len, names)) <= GROUPS_CHARS_MAX

    def decide_group(self, group: str, offset: int, is_joined: bool, tail: int) -> None:
        """A record in the stream says so. A stay that ends is remembered while something of it may be missing; what the
        session said of itself in it is not."""
        if is_joined:
            self.groups_decided.setdefault(group, offset)
            return
        if self.states.get(group) is self.states_stored.pop(group, None):  # if not, it was said after leaving
            self.states.pop(group, None)
        since = self.groups_decided.pop(group, None)
        if since is not None and self._forget_stays(tail) < offset:
            self.left.append((group, since, offset))

    def _forget_stays(self, tail: int) -> int:
        """Those of which nothing is missing any more. Returns up to where that is so."""
        served = self.floor(tail)
        self.left = [stay for stay in self.left if stay[2] > served]
        return served

    def fall_back(self) -> None:
        """Nothing that was on its way will be stored: go on from what is."""
        self.groups_wanted = set(self.groups_decided)
        self.owes_row = True
        self.generation += 1
        self.row_version, self.acks_version = self.row_stored, self.acks_stored
        self.claimed = NumberSet(self.taken.ranges())
        self.streams, self.states = dict(self.streams_stored), dict(self.states_stored)
        self.watches = dict(self.watches_stored)
        self.spill.fall_back()

    def put_acks(self, hub: str) -> Put:
        acked = SpilledAcks(self.told, self.spill.rows) if self.spill.rows else self.told
        row = AcksRow(acked, tuple(self.claimed.ranges()), tuple(self.streams.values()))
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

    def push(self, run: Run) -> bool:
        """It is due to this session. True if it goes to its socket now."""
        if self.is_reliable:
            self.queue.append(run)
            self.queue_bytes += run.size
            self.queue_count += run.count
            if run.expires is not None:
                self.has_timed = True
        if self.peer is None or self.is_stalled or self.is_behind:
            return False
        self.sent = self.written = run.last
        return True

    def caught_up(self, missed: Sequence[Run]) -> None:
        """What it has missed is there, and comes before what came in meanwhile."""
        self.is_behind = False
        self.queue.extendleft(reversed(missed))
        self.queue_bytes += sum(run.size for run in missed)
        self.queue_count += sum(run.count for run in missed)
        self.has_timed = self.has_timed or any(run.expires is not None for run in missed)
        if self.early_ack > self.acked:
            self.acknowledge(self.early_ack)

    def take_expired(self, now: float) -> list[Run]:
        """Out of what has not gone to the present socket: what came too late for it."""
        if not self.has_timed:
            return []
        late = {run.first: run for run in self.queue if run.first > self.written and run.is_expired(now)}
        self.queue = deque(run for run in self.queue if run.first not in late)
        self.queue_bytes -= sum(run.size for run in late.values())
        self.queue_count -= sum(run.count for run in late.values())
        self.has_timed = any(run.expires is not None for run in self.queue)
        return list(late.values())

    def catch_up(self) -> list[Run]:
        """What goes to its socket now: what came while that had no room, or before it was there."""
        if self.peer is None or self.is_stalled or self.is_behind or not self.queue:
            return []
        written, self.written = self.written, max(self.written, self.queue[-1].last)
        self.sent = max(self.sent, self.written)
        waiting = takewhile(lambda run: run.last > written, reversed(self.queue))
        return [run.after(written) for run in reversed(list(waiting))]

    def acknowledge(self, offset: int) -> None:
        """The client has everything up to here. What is new in it is gathered for the ledger."""
        queue = self.queue
        while queue and queue[0].first <= offset:
            part = queue[0].between(self.acked, offset)
            self.queue_bytes -= part.size
            self.queue_count -= part.count
            if self.confirmed is None:
                self.confirmed = Confirmed(part.first)
            self.confirmed.add(part)
            if queue[0].last > offset:
                break
            queue.popleft()
        self.acked = offset

    def unacknowledged(self) -> Iterable[Run]:
        """What is in its queue. Of the first run, a part may be acknowledged."""
        return (run.after(self.acked) for run in self.queue)

    def left_behind(self) -> Confirmed | None:
        """What it has not acknowledged when it ends. Messages that are lost count as nothing: nobody knows which of
        that range they were, so the range does not fit, and an audit finds it."""
        found = Confirmed.of(self.unacknowledged()) if self.queue else None
        for row in self.spill.lost:
            if row.last > self.acked:
                lost = Confirmed(max(row.first, self.acked + 1), row.last)
                if found is not None:
                    lost.merge(found)
                found = lost
        return found

    def unspilled(self, after: int) -> list[Run]:
        """What of its queue comes after this offset."""
        after = max(after, self.acked)
        found = list(takewhile(lambda run: run.last > after, reversed(self.queue)))
        return [run.after(after) for run in reversed(found)]

    def take_confirmed(self) -> Confirmed | None:
        """What is to be written down now: the ledger and the row say it in one commit."""
        confirmed, self.confirmed, self.told = self.confirmed, None, self.acked
        return confirmed

    def settle(self, told: int) -> None:
        """Up to here the store says it."""
        self.settled = max(self.settled, told)

    def put_back(self, confirmed: Confirmed | None, told: int) -> None:
        """It was not written down, and perhaps what was taken before it was not either."""
        self.told = min(self.told, told)
        if confirmed is not None and self.confirmed is not None:
            confirmed.merge(self.confirmed)
        self.confirmed = confirmed or self.confirmed

    def floor(self, tail: int) -> int:
        """Records up to here are not needed for this session any more."""
        spilled = self.spill.stored_last
        if self.confirmed is not None or self.settled < self.told:
            return max(self.settled, spilled)
        if self.is_behind:
            return max(self.acked, spilled)
        if not self.queue or self.queue[-1].last <= spilled:
            return tail
        return max(self.queue[0].first - 1, self.acked, spilled)

    @property
    def missing_after(self) -> int:
        """What it is owed after this place has to be read from the stream. What it is owed before it is in its rows."""
        return max(self.acked, self.spill.stored_last)


class Confirmed:
    """What a session has acknowledged since it was last written down."""

    __slots__ = ("first", "fold", "last", "n")

    def __init__(self, first: int, last: int | None = None) -> None:
        self.first, self.last = first, first if last is None else last
        self.n = self.fold = 0

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Confirmed:
        """All of some runs, of which there is at least one."""
        first, *rest = runs
        found = cls(first.first)
        for run in (first, *rest):
            found.add(run)
        return found

    def add(self, run: Run) -> None:
        self.last = run.last
        self.n += run.count
        self.fold ^= run.fold

    def merge(self, other: Confirmed) -> None:
        self.first = min(self.first, other.first)
        self.last = max(self.last, other.last)
        self.n += other.n
        self.fold ^= other.fold
