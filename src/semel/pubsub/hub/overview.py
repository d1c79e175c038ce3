"""What operators see of a hub: how many are there, who, and in which groups. Nothing is changed here.

A list comes in pages. Each is found by the last id of the one before, so who comes and goes meanwhile does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from itertools import chain

from semel.pubsub.hub.calls import (
    Answer,
    Attendance,
    ConnectionInfo,
    Everybody,
    Group,
    GroupInfo,
    HubInfo,
    ListConnections,
    ListGroups,
    Look,
    Summarize,
    User,
)
from semel.pubsub.hub.roster import Elsewhere, Here, M, Roster
from semel.pubsub.hub.session import Session


def overview(here: Here, elsewhere: Roster[Elsewhere], look: Look) -> Answer:
    match look:
        case Summarize():
            return Answer(rows=(_summary(here, elsewhere),))
        case ListConnections(of=of, after=after, limit=limit):
            ids, more = _page(_ids(here, elsewhere, of), after, limit)
            return Answer(rows=tuple(_connection(here, elsewhere, id) for id in ids), more=more)
        case ListGroups(after=after, limit=limit):
            names, more = _page({*here.groups, *elsewhere.groups}, after, limit)
            rows = [GroupInfo(name, _members(here, name) + _members(elsewhere, name)) for name in names]
            return Answer(rows=tuple(rows), more=more)


def _summary(here: Here, elsewhere: Roster[Elsewhere]) -> HubInfo:
    connected = sum(session.peer is not None for session in here)
    groups = len(here.groups.keys() | elsewhere.groups.keys())
    return HubInfo(connected, len(here) - connected, len(elsewhere), groups)


def _members(roster: Roster[M], group: str) -> int:
    return len(roster.groups.get(group, ()))


def _ids(here: Here, elsewhere: Roster[Elsewhere], of: Everybody | Group | User) -> Iterable[str]:
    match of:
        case Everybody():
            return chain(here.sessions, elsewhere.sessions)
        case Group(name=name):
            return chain(here.groups.get(name, ()), elsewhere.groups.get(name, ()))
        case User(name=name):
            return chain(here.users.get(name, ()), elsewhere.users.get(name, ()))


def _page(names: Iterable[str], after: str, limit: int) -> tuple[list[str], bool]:
    """The first of them after a name, and whether there are more."""
    found = nsmallest(limit + 1, (name for name in names if name > after))
    return found[:limit], len(found) > limit


def _connection(here: Here, elsewhere: Roster[Elsewhere], id: str) -> ConnectionInfo:
    session = here.get(id)
    return _here(session) if session is not None else _elsewhere(elsewhere.sessions[id])


def _here(session: Session) -> ConnectionInfo:
    return ConnectionInfo(
        session.id,
        Attendance.CONNECTED if session.peer is not None else Attendance.WAITING,
        session.node,
        tuple(sorted(session.groups)),
        session.user,
        session.subprotocol,
        session.start,
        session.backlog.acked,
        session.backlog.count,
        session.backlog.bytes,
        session.dropped_at,
    )


def _elsewhere(session: Elsewhere) -> ConnectionInfo:
    return ConnectionInfo(
        session.id, Attendance.ELSEWHERE, session.node, tuple(sorted(session.groups)), session.user
    )  # fmt: skip
