"""What operators see of a hub: how many are there, who, and in which groups. It only looks.

A list comes in pages. The ids after a page are found anew for each, so whoever comes and goes meanwhile does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from itertools import chain
from typing import TYPE_CHECKING

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
from semel.pubsub.hub.session import Session

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub
    from semel.pubsub.hub.roster import Elsewhere


def overview(hub: Hub, look: Look) -> Answer:
    match look:
        case Summarize():
            return Answer(rows=(_summary(hub),))
        case ListConnections(of=of, after=after, limit=limit):
            ids, more = _page(_ids(hub, of), after, limit)
            return Answer(rows=tuple(_connection(hub, id) for id in ids), more=more)
        case ListGroups(after=after, limit=limit):
            names, more = _page({*hub.roster.groups, *hub.elsewhere.groups}, after, limit)
            return Answer(rows=tuple(GroupInfo(name, _members(hub, name)) for name in names), more=more)


def _summary(hub: Hub) -> HubInfo:
    connected = sum(session.peer is not None for session in hub.roster)
    groups = len(hub.roster.groups.keys() | hub.elsewhere.groups.keys())
    return HubInfo(connected, len(hub.roster) - connected, len(hub.elsewhere), groups)


def _members(hub: Hub, group: str) -> int:
    return len(hub.roster.groups.get(group, ())) + len(hub.elsewhere.groups.get(group, ()))


def _ids(hub: Hub, of: Everybody | Group | User) -> Iterable[str]:
    here, elsewhere = hub.roster, hub.elsewhere
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


def _connection(hub: Hub, id: str) -> ConnectionInfo:
    session = hub.roster.get(id)
    return _here(session) if session is not None else _elsewhere(hub.elsewhere.sessions[id])


def _here(session: Session) -> ConnectionInfo:
    return ConnectionInfo(
        session.id,
        Attendance.CONNECTED if session.peer is not None else Attendance.WAITING,
        session.node,
        tuple(sorted(session.groups)),
        session.user,
        session.subprotocol,
        session.start,
        session.acked,
        session.queue_count,
        session.queue_bytes,
        session.dropped_at,
    )


def _elsewhere(session: Elsewhere) -> ConnectionInfo:
    return ConnectionInfo(
        session.id, Attendance.ELSEWHERE, session.node, tuple(sorted(session.groups)), session.user
    )  # fmt: skip
