"""Calls of the server side (`calls.py`): each is answered when what was asked for is durable."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from itertools import chain

from msgspec.structs import replace

from semel.errors import InputError, StoreError
from semel.kernel.effects import Loaded, LoadedAll, LoadFailed
from semel.kernel.ops import Append, PutBlob, Result
from semel.pubsub.hub.answers import DONE, NOT_FOUND, Reply, failed
from semel.pubsub.hub.calls import (
    Answer,
    Attendance,
    Call,
    Check,
    CloseConnections,
    Connection,
    ConnectionInfo,
    Everybody,
    Find,
    Grant,
    Group,
    GroupInfo,
    HubInfo,
    JoinMembers,
    ListConnections,
    ListGroups,
    ListMembers,
    Look,
    Member,
    Outcome,
    Publish,
    Receivers,
    RemoveMembers,
    Revoke,
    Summarize,
    User,
)
from semel.pubsub.hub.commands import Command, Commands, find, find_durable
from semel.pubsub.hub.commits import Failure, is_conflict
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.endings import Endings
from semel.pubsub.hub.idempotency import Keys, terms_of
from semel.pubsub.hub.orders import NodeCommands
from semel.pubsub.hub.read_barrier import ReadBarrier
from semel.pubsub.hub.records import (
    EVERYBODY,
    NO_TERMS,
    REST,
    DeliveryTerms,
    connection_target,
    digest_of,
    group_target,
    message,
    user_target,
)
from semel.pubsub.hub.roster import UNREADABLE, Arrivals, Elsewhere, Here, M, Roster
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_rows import read_session, session_key
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.permissions import Permissions


class Service:
    def __init__(
        self,
        context: HubContext,
        tail: Tail,
        roster: Here,
        elsewhere: Roster[Elsewhere],
        arrivals: Arrivals,
        endings: Endings,
        current: ReadBarrier,
        keys: Keys,
        commands: Commands,
        orders: NodeCommands,
    ) -> None:
        self._context, self._tail, self._roster, self._elsewhere = context, tail, roster, elsewhere
        self._arrivals, self._endings, self._current = arrivals, endings, current
        self._keys, self._commands, self._orders = keys, commands, orders

    def handle(self, peer: str, call: Call, now: float) -> None:
        """A message is for whoever is there at its place in the stream. Everything else is about sessions that any node
        may have, also one that has just opened there: so the stream is read to its end first."""

        def answer(answer: Answer) -> None:
            self._context.send(peer, answer)

        if isinstance(call, Publish):
            self._publish(call, now, answer)
        else:
            self._current.when(
                lambda now: self._handle(call, now, answer), lambda why: answer(Answer(Outcome.FAILED, why)), now
            )

    def _handle(self, call: Command | Find | ListMembers | Check | Look, now: float, answer: Reply) -> None:
        match call:
            case CloseConnections() | JoinMembers() | RemoveMembers() | Grant() | Revoke():
                self._orders.carry_out(call, now, answer)
            case Find(who=who):
                self._find(who, now, answer)
            case ListMembers():
                answer(self._list(call))
            case Summarize() | ListConnections() | ListGroups():
                answer(overview(self._roster, self._elsewhere, call))
            case Check():
                self._check(call, now, answer)

    def _find(self, who: Receivers, now: float, answer: Reply) -> None:
        if find_durable(self._roster, who) or self._is_elsewhere_or_arriving(who):
            answer(DONE)
        else:
            self._commands.answer_after_ends(find(self._endings.sessions, who), now, answer)(NOT_FOUND)

    def _is_elsewhere_or_arriving(self, who: Receivers) -> bool:
        return bool(find(self._elsewhere, who) or find(self._arrivals.sessions, who))

    def _publish(self, call: Publish, now: float, answer: Reply) -> None:
        try:
            append, chunks = self._message(call, now)
        except InputError as error:
            answer(Answer(Outcome.REFUSED, error.message))
            return

        digest = digest_of(append.target, call.data, terms_of(call))
        key = [self._keys.put(call.key, digest, append.envelope.id, now)] if call.key is not None else []

        def done(results: tuple[Result, ...], now: float) -> None:
            self._context.counts.accepted += 1
            self._tail.take_own((append,), results, now)
            answer(DONE)

        def not_published(failure: Failure, now: float) -> None:
            self._tail.drop_bodies((append,))
            if call.key is not None and is_conflict(failure):
                self._context.counts.duplicates += 1
                self._keys.compare(call.key, digest, answer)
            else:
                self._context.report_once("hub-commit", failure)
                answer(failed(failure))

        self._context.commit((append, *key, *chunks), done, not_published)

    def _message(self, call: Publish, now: float) -> tuple[Append, list[PutBlob]]:
        at = round(now * 1e6)
        expires = at + call.ttl_s * 1_000_000 if call.ttl_s else None
        terms = DeliveryTerms(False, call.excluded, call.filter, expires, call.metadata)
        blob, chunks = self._tail.keep_body(call.data.body, self._context.mint, now)
        append = message(
            self._context.stream, call.id or self._context.mint(now), _target(call.to), call.data,
            at=at, sender=REST, user=None, terms=terms if terms != DeliveryTerms() else NO_TERMS, blob=blob,
            # an id of the caller's own is looked for in the ledger long after the record was trimmed
            on_fresh=self._context.accepted if call.id is None else replace(self._context.accepted, message=call.id),
        )  # fmt: skip
        return append, chunks

    def _check(self, call: Check, now: float, answer: Reply) -> None:
        who, session = Connection(call.connection), self._roster.get(call.connection)
        if session is not None:
            answer(_has(session.permissions, call))
        elif self._is_elsewhere_or_arriving(who):
            key = session_key(self._context.hub, call.connection)
            self._context.load(key, lambda found, now: answer(_has_by_row(found, call)))
        else:
            self._commands.answer_after_ends(find(self._endings.sessions, who), now, answer)(NOT_FOUND)

    def _list(self, call: ListMembers) -> Answer:
        group = Group(call.group)
        found: list[Session | Elsewhere] = [
            *find_durable(self._roster, group),
            *find(self._elsewhere, group),
            *find(self._arrivals.sessions, group),
        ]
        members = {each.id: Member(each.id, each.user) for each in found if each.id > call.after}
        after = sorted(members.values(), key=_by_connection)
        return Answer(members=tuple(after[: call.limit]), more=len(after) > call.limit)


def _by_connection(member: Member) -> str:
    return member.connection


def _has(permissions: Permissions, call: Check) -> Answer:
    return DONE if permissions.has(call.permission, call.group) else NOT_FOUND


def _has_by_row(found: Loaded | LoadedAll | LoadFailed, call: Check) -> Answer:
    if not isinstance(found, Loaded):
        return Answer(Outcome.FAILED, "the store cannot be read")
    if found.state is None:
        return NOT_FOUND
    try:
        return _has(read_session(found.state.value).permissions, call)
    except StoreError:
        return Answer(Outcome.FAILED, UNREADABLE)


def _target(to: Receivers) -> str:
    match to:
        case Group(name=name):
            return group_target(name)
        case User(name=name):
            return user_target(name)
        case Connection(name=name):
            return connection_target(name)
        case Everybody():
            return EVERYBODY


# -- what operators see: how many are there, who, and in which groups

# A list comes in pages. Each is found by the last id of the one before, so who comes and goes meanwhile does no harm.


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
