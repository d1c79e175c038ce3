"""What the server side asks of a hub (`calls.py`), answered when it is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from semel.errors import InputError, LimitExceeded
from semel.kernel.effects import Loaded, LoadedAll, LoadFailed
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, PutBlob, RecordKind, Result
from semel.pubsub.calls import (
    Answer,
    Call,
    Check,
    CloseConnections,
    Connection,
    Everybody,
    Find,
    Grant,
    Group,
    JoinMembers,
    ListConnections,
    ListGroups,
    ListMembers,
    Member,
    Outcome,
    Publish,
    Receivers,
    RemoveMembers,
    Revoke,
    Summarize,
    User,
)
from semel.pubsub.commits import Failure, is_conflict, why
from semel.pubsub.idempotency import digest_of
from semel.pubsub.messages import CloseCode, Disconnected
from semel.pubsub.odata import parse
from semel.pubsub.overview import overview
from semel.pubsub.permissions import Permissions
from semel.pubsub.records import (
    EVERYBODY,
    NO_TERMS,
    REST,
    Terms,
    connection_target,
    group_target,
    message,
    user_target,
)
from semel.pubsub.roster import Elsewhere, M, Roster
from semel.pubsub.session import GROUPS_MAX, Session, read_session, session_key

if TYPE_CHECKING:
    from semel.pubsub.hub import Hub
    from semel.pubsub.orders import Command

Reply = Callable[[Answer], None]

DONE, NOT_FOUND = Answer(), Answer(Outcome.NOT_FOUND)


class Service:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def hear(self, peer: str, call: Call, now: float) -> None:
        def answer(answer: Answer) -> None:
            self._hub.answer(peer, answer)

        match call:
            case Publish():
                self._publish(call, now, answer)
            case CloseConnections() | JoinMembers() | RemoveMembers() | Grant() | Revoke():
                self._command(call, now, answer)
            case Find(who=who):
                answer(DONE if self._there(who) or self._elsewhere(who) else NOT_FOUND)
            case ListMembers():
                answer(self._list(call))
            case Summarize() | ListConnections() | ListGroups():
                answer(overview(self._hub, call))
            case Check():
                self._check(call, answer)

    def _there(self, who: Receivers) -> Sequence[Session]:
        """Those who are here now."""
        return _found(self._hub.roster, who)

    def _elsewhere(self, who: Receivers) -> Sequence[Elsewhere]:
        """Those whom other nodes have."""
        return _found(self._hub.elsewhere, who)

    def _command(self, command: Command, now: float, answer: Reply) -> None:
        """For the sessions that are here, and by order for those that are elsewhere."""
        nodes = self.nodes_of(command)
        if not nodes:
            self.obey(command, now, answer)
            return
        both = Gathered(2, answer)
        self.obey(command, now, both.hear)
        self._hub.orders.give(command, nodes, now, both.hear)

    def nodes_of(self, command: Command) -> frozenset[str]:
        """The other nodes that have to carry it out."""
        return frozenset(each.node for each in self._chosen(command, self._elsewhere(_whom(command))))

    def has_come(self, command: Command, at: int) -> bool:
        """Whether one that it is for has come here since the stream stood there."""
        return any(session.opened > at for session in self._chosen(command, self._there(_whom(command))))

    def obey(self, command: Command, now: float, answer: Reply) -> None:
        """For the sessions that are here."""
        match command:
            case CloseConnections():
                self._close(command, now, answer)
            case JoinMembers():
                self._join(command, now, answer)
            case RemoveMembers():
                self._remove(command, now, answer)
            case Grant() | Revoke():
                self._permit(command, answer)

    def _chosen(self, command: Command, found: Sequence[M]) -> Sequence[M]:
        if isinstance(command, CloseConnections):
            return [each for each in found if each.id not in command.excluded]
        if isinstance(command, JoinMembers | RemoveMembers) and command.filter is not None:
            asked = parse(command.filter)
            return [each for each in found if asked.matches(each)]
        return found

    # -- messages

    def _publish(self, call: Publish, now: float, answer: Reply) -> None:
        try:
            append, chunks = self._message(call, now)
        except InputError as error:
            answer(Answer(Outcome.REFUSED, error.message))
            return

        digest = digest_of(append, call.data.body)
        key = [self._hub.keys.put(call.key, digest, append.envelope.id, now)] if call.key is not None else []

        def done(results: tuple[Result, ...], now: float) -> None:
            self._hub.counts.accepted += 1
            self._hub.take_own((append,), results, now)
            answer(DONE)

        def failed(failure: Failure, now: float) -> None:
            self._hub.drop_bodies((append,))
            if call.key is not None and is_conflict(failure):
                self._hub.counts.duplicates += 1
                self._hub.keys.compare(call.key, digest, answer)
            else:
                answer(_failed(failure))

        self._hub.commit((append, *key, *chunks), done, failed)

    def _message(self, call: Publish, now: float) -> tuple[Append, list[PutBlob]]:
        at = round(now * 1e6)
        expires = at + call.ttl_s * 1_000_000 if call.ttl_s else None
        terms = Terms(False, call.excluded, call.filter, expires, call.metadata)
        blob, chunks = self._hub.keep_body(call.data.body, now)
        append = message(
            self._hub.stream, call.id or self._hub.mint(now), _target(call.to), call.data,
            at=at, sender=REST, user=None, terms=terms if terms != Terms() else NO_TERMS, blob=blob,
            on_fresh=self._hub.accepted,
        )  # fmt: skip
        return append, chunks

    # -- connections

    def _close(self, call: CloseConnections, now: float, answer: Reply) -> None:
        chosen = self._chosen(call, self._there(call.to))
        together = Gathered(len(chosen), answer)
        for session in chosen:
            self._hub.tell(session, Disconnected(call.reason))
            self._hub.shut(session, CloseCode.POLICY, call.reason)
            self._hub.close(session, Kind.CANCELLED, call.reason or "closed by the service", now, together.became)

    def _permit(self, call: Grant | Revoke, answer: Reply) -> None:
        session = self._hub.roster.get(call.connection)
        if session is None:
            answer(NOT_FOUND if isinstance(call, Grant) else DONE)
            return
        before = session.permissions
        change = before.granted if isinstance(call, Grant) else before.revoked
        try:
            session.permit(change(call.permission, call.group))
        except LimitExceeded as error:
            answer(Answer(Outcome.REFUSED, error.message))
            return

        def failed(failure: Failure) -> None:
            session.permit(before)
            answer(_failed(failure))

        put = session.put_row(self._hub.hub, session.row())
        self._hub.commit_for(session, (), (put,), lambda results, now: answer(DONE), failed)

    def _check(self, call: Check, answer: Reply) -> None:
        session = self._hub.roster.get(call.connection)
        if session is not None:
            answer(_has(session.permissions, call))
        elif self._hub.elsewhere.get(call.connection) is None:
            answer(NOT_FOUND)
        else:
            self._hub.load(
                session_key(self._hub.hub, call.connection), lambda found, now: answer(_has_by_row(found, call))
            )

    # -- groups

    def _join(self, call: JoinMembers, now: float, answer: Reply) -> None:
        chosen = self._chosen(call, self._there(call.who))
        if not chosen and not isinstance(call.who, Everybody):
            answer(NOT_FOUND)
            return
        if any(len(session.groups_wanted.union(call.groups)) > GROUPS_MAX for session in chosen):
            answer(Answer(Outcome.REFUSED, f"a connection can be in {GROUPS_MAX:,} groups"))
            return
        changes = [
            (session, group)
            for session in chosen
            for group in call.groups
            if session.owes_row or not session.is_settled(group, True)
        ]
        self._change(changes, RecordKind.JOIN, now, answer)

    def _remove(self, call: RemoveMembers, now: float, answer: Reply) -> None:
        changes = [
            (session, group)
            for session in self._chosen(call, self._there(call.who))
            for group in (sorted(session.groups_wanted) if call.groups is None else call.groups)
            if session.owes_row or not session.is_settled(group, False)
        ]
        self._change(changes, RecordKind.LEAVE, now, answer)

    def _change(self, changes: Sequence[tuple[Session, str]], kind: RecordKind, now: float, answer: Reply) -> None:
        """Each is durable by itself; the answer comes when all are."""
        together = Gathered(len(changes), answer)
        for session, group in changes:
            self._hub.change_group(
                session,
                group,
                kind,
                now,
                lambda puts, session=session: self._hub.commit_for(  # type: ignore[misc]
                    session, (), puts, lambda results, now: together.became(None), together.became
                ),
                together.became,
            )

    def _list(self, call: ListMembers) -> Answer:
        group = Group(call.group)
        found: list[Session | Elsewhere] = [*self._there(group), *self._elsewhere(group)]
        after = sorted((Member(each.id, each.user) for each in found if each.id > call.after), key=_by_connection)
        return Answer(members=tuple(after[: call.limit]), more=len(after) > call.limit)


class Gathered:
    """One answer for many: the worst of them. That something was not there counts only if it was nowhere."""

    def __init__(self, count: int, answer: Reply) -> None:
        self._left, self._answer = count, answer
        self._worst = NOT_FOUND
        if count == 0:
            answer(DONE)

    def hear(self, answer: Answer) -> None:
        if _WORSE.index(answer.outcome) > _WORSE.index(self._worst.outcome):
            self._worst = answer
        self._left -= 1
        if self._left == 0:
            self._answer(self._worst)

    def expect_one_more(self) -> None:
        """Before the last one was heard."""
        self._left += 1

    def became(self, failure: Failure | None) -> None:
        self.hear(DONE if failure is None else _failed(failure))


_WORSE = (Outcome.NOT_FOUND, Outcome.DONE, Outcome.CONFLICT, Outcome.REFUSED, Outcome.FAILED)


def _by_connection(member: Member) -> str:
    return member.connection


def _found(roster: Roster[M], who: Receivers) -> Sequence[M]:
    match who:
        case Group(name=name):
            return list(roster.groups.get(name, {}).values())
        case User(name=name):
            return list(roster.users.get(name, {}).values())
        case Connection(name=name):
            session = roster.get(name)
            return [session] if session is not None else []
        case Everybody():
            return list(roster)


def _whom(command: Command) -> Receivers:
    match command:
        case CloseConnections(to=to):
            return to
        case JoinMembers(who=who) | RemoveMembers(who=who):
            return who
        case Grant(connection=connection) | Revoke(connection=connection):
            return Connection(connection)


def _has(permissions: Permissions, call: Check) -> Answer:
    return DONE if permissions.has(call.permission, call.group) else NOT_FOUND


def _has_by_row(found: Loaded | LoadedAll | LoadFailed, call: Check) -> Answer:
    if not isinstance(found, Loaded):
        return Answer(Outcome.FAILED, "the store cannot be read")
    return _has(read_session(found.state.value).permissions, call) if found.state is not None else NOT_FOUND


def _failed(failure: Failure) -> Answer:
    return Answer(Outcome.FAILED, why(failure))


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
