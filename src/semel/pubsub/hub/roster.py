"""Who is there: the sessions of a hub by id, by user and by group; those that arrive, and those that are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from semel.errors import StoreError
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.records import TO_CONNECTION, TO_GROUP, TO_USER
from semel.pubsub.hub.session import Session
from semel.pubsub.protocol.filters import FilteredConnection


class RosterMember(Protocol):
    """`groups` says since which offset it is in each."""

    id: str
    user: str | None
    groups: dict[str, int]


SOMEWHERE = ""


class Elsewhere:
    """What this node has to know of a session of another node. The node is `SOMEWHERE` if the store has refused a write
    for the session, and the record that names its node has not been read yet. That record stands after `since`, where
    the session came here: records up to there are older than what is known."""

    __slots__ = ("groups", "id", "node", "since", "user")

    def __init__(self, id: str, user: str | None, node: str, groups: dict[str, int], since: int = 0) -> None:
        self.id, self.user, self.node, self.groups, self.since = id, user, node, groups, since


@dataclass(frozen=True, slots=True)
class _Seen:
    connection_id: str
    user_id: str | None
    protocol: str | None
    groups: Collection[str]


M = TypeVar("M", bound=RosterMember)
T = TypeVar("T")


class Roster(Generic[M]):
    def __init__(self) -> None:
        self.sessions: dict[str, M] = {}
        self.users: dict[str, dict[str, M]] = {}
        self.groups: dict[str, dict[str, M]] = {}

    def __len__(self) -> int:
        return len(self.sessions)

    def __iter__(self) -> Iterator[M]:
        return iter(self.sessions.values())

    def get(self, connection: str) -> M | None:
        return self.sessions.get(connection)

    def add(self, session: M) -> None:
        """Index it under its user and its groups. What was known under its id before is replaced."""
        if (before := self.sessions.get(session.id)) is not None:
            self.remove(before)
        self.sessions[session.id] = session
        if session.user is not None:
            self.users.setdefault(session.user, {})[session.id] = session
        for group in session.groups:
            self.groups.setdefault(group, {})[session.id] = session

    def remove(self, session: M) -> None:
        """Only if it is this one that is there: it may have left, and be back as another object."""
        if self.sessions.get(session.id) is not session:
            return
        del self.sessions[session.id]
        if session.user is not None:
            discard(self.users, session.user, session.id)
        for group in session.groups:
            discard(self.groups, group, session.id)

    def join(self, session: M, group: str, offset: int) -> None:
        """From this offset on, unless it is a member since an earlier one."""
        if session.groups.setdefault(group, offset) == offset:
            self.groups.setdefault(group, {})[session.id] = session

    def leave(self, session: M, group: str, offset: int) -> None:
        since = session.groups.get(group)
        # a leave that is read again must not end a later stay
        if since is not None and since <= offset:
            del session.groups[group]
            discard(self.groups, group, session.id)


class Here(Roster[Session]):
    """The sessions that this node has, and which of them a record is for."""

    def receivers(self, target: str, offset: int) -> Iterable[Session]:
        """Whom a record with this target is for, by its place in the stream."""
        if target.startswith(TO_GROUP):
            return self.members(target[2:], offset)
        if target.startswith(TO_USER):
            found: Iterable[Session] = self.users.get(target[2:], {}).values()
        elif target.startswith(TO_CONNECTION):
            session = self.sessions.get(target[2:])
            found = (session,) if session is not None else ()
        else:
            found = self.sessions.values()
        # what stands before its start was never for it, though it may be read again after it has begun
        return [session for session in found if session.start < offset]

    def members(self, group: str, offset: int) -> list[Session]:
        members = self.groups.get(group, {}).values()
        return [session for session in members if session.groups[group] < offset]

    def seen(self, session: Session, offset: int) -> FilteredConnection:
        """What a filter sees of it, at this place in the stream."""
        return session


class Past(Here):
    """For records that are read again: sessions count as members also for their stays that have ended, for records of
    that time."""

    def __init__(self) -> None:
        super().__init__()
        self._stays: dict[str, list[tuple[Session, int, float]]] = {}
        self._stays_of: dict[str, list[tuple[str, int, float]]] = {}

    def add(self, session: Session) -> None:
        super().add(session)
        stays = [
            (group, since, math.inf) for group, since in session.memberships.decided.items()
        ] + session.memberships.left
        self._stays_of[session.id] = stays
        for group, since, until in stays:
            self._stays.setdefault(group, []).append((session, since, until))

    def members(self, group: str, offset: int) -> list[Session]:
        return [session for session, since, until in self._stays.get(group, ()) if since < offset < until]

    def seen(self, session: Session, offset: int) -> FilteredConnection:
        groups = {group for group, since, until in self._stays_of[session.id] if since < offset < until}
        return _Seen(session.connection_id, session.user_id, session.protocol, groups)


def discard(index: dict[str, dict[str, T]], key: str, connection: str) -> None:
    found = index.get(key)
    if found is not None:
        found.pop(connection, None)
        if not found:
            del index[key]


class Arrivals:
    """Sessions whose first commit on this node is on its way: new ones, and those that are taken over.

    Other nodes may learn from the stream that a session is here before this node has the answer to its commit. Until
    then nothing can be written for the session, since the versions of its rows come with that answer: what is asked of
    it waits.
    """

    def __init__(self) -> None:
        self.sessions = Roster[Session]()
        self._waiting: list[tuple[set[str], Callable[[float], None]]] = []

    def __len__(self) -> int:
        return len(self.sessions) + len(self._waiting)

    def begin(self, session: Session) -> None:
        self.sessions.add(session)

    def decided(self, session: Session, now: float) -> None:
        """Its commit is done, or has failed: call those who waited for it."""
        self.sessions.remove(session)
        waiting, self._waiting = self._waiting, []
        for ids, call in waiting:
            ids.discard(session.id)
            if ids:
                self._waiting.append((ids, call))
            else:
                call(now)

    def when_decided(self, sessions: Iterable[Session], call: Callable[[float], None]) -> None:
        """Call when it is decided for all of these."""
        self._waiting.append(({session.id for session in sessions}, call))


UNREADABLE = "the session cannot be read"


class UnreadableSessions:
    """Sessions that this Semel cannot read, because a newer one has written them. `_floors`: the last record that each
    of them does not need.

    No node of this version takes them, and their rows stay as they are. What the stream holds for them is kept, so the
    Semel that can read them continues as if nothing had happened.
    """

    def __init__(self, context: HubContext) -> None:
        self._context = context
        self._floors: dict[str, int] = {}

    def __contains__(self, connection: object) -> bool:
        return connection in self._floors

    def add(self, connection: str, floor: int, error: StoreError) -> None:
        """On a node that is the only one: nobody else keeps the stream for it."""
        self._floors[connection] = floor
        self.report(connection, error)

    def report(self, connection: str, error: StoreError) -> None:
        detail = f"{connection} is left out, and what it is owed is kept: {error.message}; {error.fix}"
        self._context.notify("session-unreadable", detail)

    def floors(self) -> Iterable[int]:
        return self._floors.values()
