"""One logical connection of a client: who it is, what it may do, what it was given, and what the store holds of it.

A session outlives its socket, and its node (`session_rows.py`). Every write to one of its rows names the version that
it builds on, so a node that was replaced cannot write for the session any more, whatever it believes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from semel.kernel.numbers import NumberSet
from semel.kernel.ops import Append, Put, PutBlob, Result
from semel.kernel.store import State
from semel.pubsub.hub.backlog import Backlog
from semel.pubsub.hub.in_order import InOrder
from semel.pubsub.hub.session_phase import SessionChange, SessionPhase, after
from semel.pubsub.hub.session_rows import (
    AcksRow,
    ClientStream,
    SessionRow,
    Spill,
    SpilledAcks,
    acks_key,
    encode_row,
    read_acks,
    read_session,
    session_key,
)
from semel.pubsub.protocol.frames import RELIABLE, subprotocol_of
from semel.pubsub.protocol.messages import Request, Response
from semel.pubsub.protocol.permissions import Permission, Permissions

GROUPS_MAX = 10_000
GROUPS_CHARS_MAX = 512 * 1024
"""For all names together: they are in one row, which is written with every change."""
TOO_MANY_GROUPS = (
    f"a connection can be in {GROUPS_MAX:,} groups, with {GROUPS_CHARS_MAX:,} characters in all their names; those that"
    " it has left count until it has acknowledged what came from them"
)

MembershipInterval = tuple[str, int, int]
"""A group, and the offsets between which the session was in it."""


class Memberships:
    """In which groups a session is.

    `wanted`: as soon as it is asked for. `decided`: when it is durable from which record on. `applied`: when this
    node has applied that record; messages go by this one. `left` are stays that have ended, of which the client may not
    have everything."""

    __slots__ = ("applied", "decided", "left", "wanted")

    def __init__(self, row: SessionRow) -> None:
        self.applied = dict(row.groups)
        self.decided = dict(row.groups)
        self.wanted = set(row.groups)
        self.left: list[MembershipInterval] = list(row.left)

    def is_settled(self, group: str, is_in: bool) -> bool:
        """Whether it is in the group, or out of it, with nothing on its way that could change that."""
        return (group in self.wanted) == (group in self.decided) == is_in

    def has_room_for(self, groups: Iterable[str], served: int) -> bool:
        """Whether it may join these as well. Groups that it has left count for as long as it is owed something of its
        time there."""
        self.forget_stays(served)
        names = [*self.wanted.union(groups), *(group for group, _, _ in self.left)]
        return len(names) <= GROUPS_MAX and sum(map(len, names)) <= GROUPS_CHARS_MAX

    def join(self, group: str, offset: int) -> None:
        """The record that says so is durable, at this offset."""
        self.decided.setdefault(group, offset)

    def leave(self, group: str, offset: int, served: int) -> None:
        """A stay that ends is remembered while something of it may be missing."""
        since = self.decided.pop(group, None)
        self.forget_stays(served)
        if since is not None and served < offset:
            assert since < offset, "a stay ends after it began"
            self.left.append((group, since, offset))

    def forget_stays(self, served: int) -> None:
        """Nothing up to this offset is missing any more."""
        self.left = [stay for stay in self.left if stay[2] > served]

    def fall_back(self) -> None:
        """Nothing that was on its way will be stored."""
        self.wanted = set(self.decided)


class AckMemory:
    """Which ackIds of a client were taken, so that each of its requests takes effect once.

    `taken`: what stands behind these is durable. `claimed`: also those on their way into the store. `waiting`: those
    that are not decided, and how often they were sent again meanwhile."""

    __slots__ = ("claimed", "taken", "waiting")

    def __init__(self, taken: Iterable[tuple[int, int]]) -> None:
        self.taken = NumberSet(taken)
        self.claimed = NumberSet(self.taken.ranges())
        self.waiting: dict[int, int] = {}

    def is_known(self, ack_id: int) -> bool:
        return ack_id in self.claimed or ack_id in self.waiting

    def wait_for(self, ack_id: int) -> None:
        """It is on its way, but may not be claimed before it is decided: the acks row would say that it was taken."""
        self.waiting.setdefault(ack_id, 0)

    def repeat(self, ack_id: int) -> None:
        """It was sent again before it was decided."""
        self.waiting[ack_id] = self.waiting.get(ack_id, 0) + 1

    def take_repeats(self, ack_id: int) -> int:
        """How often it was sent again."""
        return self.waiting.pop(ack_id, 0)

    def claim_waiting(self, ack_ids: Sequence[int]) -> None:
        """They are decided. One that was sent once is answered once."""
        self.claimed.add_all(ack_ids)
        for ack_id in ack_ids:
            if self.waiting.get(ack_id) == 0:
                del self.waiting[ack_id]

    def fall_back(self) -> None:
        """Nothing that was on its way will be stored."""
        self.claimed = NumberSet(self.taken.ranges())


class StreamChanges:
    """What one commit says of the streams of a session: how they stand after it, None for one that is gone, and the
    replies to the client once it is durable. Of several acks for one stream the client gets the last."""

    __slots__ = ("replies", "streams")

    def __init__(self) -> None:
        self.streams: dict[str, ClientStream | None] = {}
        self.replies: dict[tuple[str, str], Response] = {}


class StagedPublishes:
    """What a session publishes with requests that came together, to become one commit. Each record has an entry in
    `ack_ids`, None if its client asked for no answer. `chunks` are large bodies."""

    __slots__ = ("ack_ids", "appends", "chunks", "streams")

    def __init__(self) -> None:
        self.appends: list[Append] = []
        self.ack_ids: list[int | None] = []
        self.chunks: list[PutBlob] = []
        self.streams: StreamChanges | None = None

    def add(self, append: Append, ack_id: int | None) -> None:
        self.appends.append(append)
        self.ack_ids.append(ack_id)

    def stream_changes(self) -> StreamChanges:
        if self.streams is None:
            self.streams = StreamChanges()
        return self.streams


ALLOWED_MAX = 1024

T = TypeVar("T")


class Tentative(dict[str, T]):
    """As it will be when everything on its way is stored. `stored` is what the store has."""

    __slots__ = ("stored",)

    def __init__(self, stored: Mapping[str, T]) -> None:
        super().__init__(stored)
        self.stored = dict(stored)

    def fall_back(self) -> None:
        self.clear()
        self.update(self.stored)


class RowVersions:
    """`row` and `acks` are the versions that the next writes build on. Versions follow each other, so several writes
    may be on their way at once. `generation` counts how often that has failed. `owes_row`: a commit has failed that may
    have written what is decided, so the next one has to."""

    __slots__ = ("acks", "acks_stored", "generation", "owes_row", "row", "row_stored")

    def __init__(self, row: int, acks: int) -> None:
        self.row = self.row_stored = row
        self.acks = self.acks_stored = acks
        self.generation = 0
        self.owes_row = False

    def fall_back(self) -> None:
        """Nothing that was on its way will be stored."""
        self.row, self.acks = self.row_stored, self.acks_stored
        self.generation += 1
        self.owes_row = True


class Session:
    """One client at this hub, for longer than its sockets last. The store has two rows of it, the session and its acks,
    each written under its version (`versions`)."""

    __slots__ = (
        "_may", "acks", "backlog", "dropped_at", "early", "end", "epoch", "groups", "id", "in_order",
        "is_reliable", "is_stalled", "memberships", "node", "opened", "peer", "permissions", "phase", "present_at",
        "spill", "staged", "start", "state", "states", "streams", "subprotocol", "user", "versions", "watches",
    )  # fmt: skip

    def __init__(self, id: str, row: SessionRow, acks: AcksRow, row_version: int, acks_version: int) -> None:
        # who it is
        self.id, self.user, self.subprotocol, self.node = id, row.user, row.subprotocol, row.node
        self.is_reliable = subprotocol_of(row.subprotocol) in RELIABLE
        self.permissions, self.state = row.permissions, row.state
        self._may: dict[tuple[Permission, str], bool] = {}

        # where it stands: its phase, and its socket if it has one
        self.phase = SessionPhase.NEW
        self.peer: str | None = None
        self.is_stalled = False
        self.in_order: InOrder | None = None
        self.dropped_at = row.dropped_at
        self.early: list[Request] = []
        """What its client has asked while it was opening."""

        # offsets of its epoch
        self.epoch, self.start = row.epoch, row.start
        self.opened = 0
        """Where the stream says that it came here from another node."""
        self.present_at: int | None = None
        """A place at which it was there already, on whichever node, as far as this node has read."""
        self.end: int | None = None
        """The last record that it was given, once it is over here."""

        # what it has
        acked, spilled = (acks.acked, ()) if isinstance(acks.acked, int) else (acks.acked.acked, acks.acked.rows)
        self.versions = RowVersions(row_version, acks_version)
        self.acks = AckMemory(acks.taken)
        self.backlog = Backlog(acked, self.is_reliable)
        self.spill = Spill(spilled)
        self.memberships = Memberships(row)
        self.groups = self.memberships.applied  # the same dict: looked at for every receiver of every message
        self.streams = Tentative({stream.id: stream for stream in acks.streams})
        self.states = Tentative(row.states)
        self.watches = Tentative(dict.fromkeys(row.watches))
        self.staged = StagedPublishes()

    @classmethod
    def of_rows(cls, connection: str, row: State, acks: State | None) -> Session:
        stored = read_session(row.value)
        taken = read_acks(acks.value) if acks is not None else AcksRow(stored.start, ())
        return cls(connection, stored, taken, row.version, acks.version if acks is not None else 0)

    # -- where it stands

    def change(self, change: SessionChange) -> None:
        self.phase = after(self.phase, change)
        self._open_backlog()

    def attach(self, peer: str, *, in_order: bool) -> None:
        """It has a socket. On a new one clients begin again with what was not answered."""
        self.peer, self.is_stalled, self.dropped_at = peer, False, None
        self.in_order = InOrder() if in_order else None
        self._open_backlog()

    def detach(self) -> None:
        self.peer = None
        self._open_backlog()

    def stall(self, is_stalled: bool) -> None:
        """Its socket has enough for now, or takes more again."""
        assert self.peer is not None
        self.is_stalled = is_stalled
        self._open_backlog()

    def _open_backlog(self) -> None:
        self.backlog.is_open = self.phase is SessionPhase.LIVE and self.peer is not None and not self.is_stalled

    @property
    def is_opening(self) -> bool:
        return self.phase is SessionPhase.OPENING

    @property
    def is_behind(self) -> bool:
        return self.phase is SessionPhase.BEHIND or self.phase is SessionPhase.ENDING_BEHIND

    @property
    def here_since(self) -> int:
        """Where the stream says so, whether it has been read up to there or not."""
        return max(self.opened, self.present_at or 0)

    # -- as filters see it

    @property
    def connection_id(self) -> str:
        return self.id

    @property
    def user_id(self) -> str | None:
        return self.user

    @property
    def protocol(self) -> str | None:
        return self.subprotocol or None

    # -- what is stored

    def row(self) -> SessionRow:
        """Stays that have ended are kept up to where the store says that they were acknowledged: a crash forgets what
        it does not say."""
        groups = self.memberships
        groups.forget_stays(self.backlog.flushed)
        return SessionRow(
            self.user, self.subprotocol, self.node, self.start, self.permissions, dict(groups.decided),
            tuple(groups.left), self.dropped_at, self.state, self.epoch, dict(self.states), tuple(self.watches),
        )  # fmt: skip

    def put_row(self, hub: str, row: SessionRow) -> Put:
        put = Put(session_key(hub, self.id), encode_row(row), self.versions.row)
        self.versions.row += 1
        self.versions.owes_row = False
        return put

    def put_acks(self, hub: str) -> Put:
        acked, rows = self.backlog.flushing, self.spill.rows
        row = AcksRow(
            SpilledAcks(acked, rows) if rows else acked, tuple(self.acks.claimed.ranges()), tuple(self.streams.values())
        )
        put = Put(acks_key(hub, self.id), encode_row(row), self.versions.acks)
        self.versions.acks += 1
        return put

    def stored(self, put: Put, result: Result) -> None:
        """A row was written: this is its version by now."""
        version = getattr(result, "version", None) or 0
        if put.key.rpartition("/")[0].endswith("/acks"):
            self.versions.acks_stored = version
        else:
            self.versions.row_stored = version

    def fall_back(self) -> None:
        """Nothing that was on its way will be stored: continue from what is."""
        self.versions.fall_back()
        self.memberships.fall_back()
        self.acks.fall_back()
        self.streams.fall_back()
        self.states.fall_back()
        self.watches.fall_back()
        self.spill.fall_back()

    # -- groups

    def has_room_for(self, groups: Iterable[str], tail: int) -> bool:
        return self.memberships.has_room_for(groups, self.floor(tail))

    def decide_group(self, group: str, offset: int, is_joined: bool, tail: int) -> None:
        """A record at this offset says that it has joined or left. With the group goes its state there, unless that was
        set after it left."""
        if is_joined:
            self.memberships.join(group, offset)
            return
        if self.states.get(group) is self.states.stored.pop(group, None):
            self.states.pop(group, None)
        self.memberships.leave(group, offset, self.floor(tail))

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

    # -- what it needs of the stream

    def floor(self, tail: int) -> int:
        """Records up to here are not needed for this session any more."""
        backlog, spilled = self.backlog, self.spill.stored_last
        if backlog.confirmed is not None or backlog.flushed < backlog.flushing:
            return max(backlog.flushed, spilled)
        if self.is_behind:
            return max(backlog.acked, spilled)
        if not backlog.queue or backlog.queue[-1].last <= spilled:
            return tail
        return max(backlog.queue[0].first - 1, backlog.acked, spilled)

    @property
    def missing_after(self) -> int:
        """What it is owed after this place has to be read from the stream. What it is owed before it is in its rows."""
        return max(self.backlog.acked, self.spill.stored_last)
