"""What the server side asks of a hub (`calls.py`), answered when it is durable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from semel.errors import InputError, LimitExceeded
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Duplicate, PutBlob, RecordKind, Result
from semel.kernel.store import Record
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
    ListMembers,
    Member,
    Outcome,
    Publish,
    Receivers,
    RemoveMembers,
    Revoke,
    User,
)
from semel.pubsub.commits import Failure, why
from semel.pubsub.messages import CloseCode, Disconnected
from semel.pubsub.odata import parse
from semel.pubsub.records import (
    EVERYBODY,
    NO_TERMS,
    REST,
    Terms,
    connection_target,
    group_target,
    key_identity,
    message,
    user_target,
)
from semel.pubsub.session import Session

if TYPE_CHECKING:
    from semel.pubsub.hub import Hub

DONE, NOT_FOUND = Answer(), Answer(Outcome.NOT_FOUND)


class Service:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def hear(self, peer: str, call: Call, now: float) -> None:
        match call:
            case Publish():
                self._publish(peer, call, now)
            case CloseConnections():
                self._close(peer, call, now)
            case JoinMembers():
                self._join(peer, call, now)
            case RemoveMembers():
                self._remove(peer, call, now)
            case Grant() | Revoke():
                self._permit(peer, call)
            case Find(who=who):
                self._hub.answer(peer, DONE if self._there(who) else NOT_FOUND)
            case ListMembers():
                self._hub.answer(peer, self._list(call))
            case Check(connection=connection, permission=permission, group=group):
                session = self._hub.roster.get(connection)
                has = session is not None and session.permissions.has(permission, group)
                self._hub.answer(peer, DONE if has else NOT_FOUND)

    def _there(self, who: Receivers) -> Sequence[Session]:
        """Those who are there now."""
        roster = self._hub.roster
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

    # -- messages

    def _publish(self, peer: str, call: Publish, now: float) -> None:
        try:
            append, chunks = self._message(call, now)
        except InputError as error:
            self._hub.answer(peer, Answer(Outcome.REFUSED, error.message))
            return

        def done(results: tuple[Result, ...], now: float) -> None:
            result, *_ = results
            if isinstance(result, Duplicate):
                self._hub.drop_bodies((append,))
                self._hub.look_at(
                    result.position, lambda first: self._hub.answer(peer, _compared(append, call.data.body, first))
                )
                return
            self._hub.take_own((append,), results, now)
            self._hub.answer(peer, DONE)

        def failed(failure: Failure, now: float) -> None:
            self._hub.drop_bodies((append,))
            self._hub.answer(peer, _failed(failure))

        self._hub.commit((append, *chunks), done, failed)

    def _message(self, call: Publish, now: float) -> tuple[Append, list[PutBlob]]:
        at = round(now * 1e6)
        expires = at + call.ttl_s * 1_000_000 if call.ttl_s else None
        terms = Terms(False, call.excluded, call.filter, expires, call.metadata)
        blob, chunks = self._hub.keep_body(call.data.body, now)
        append = message(
            self._hub.stream, call.id or self._hub.mint(now), _target(call.to), call.data,
            at=at, sender=REST, user=None, terms=terms if terms != Terms() else NO_TERMS, blob=blob,
            identity=key_identity(call.key) if call.key is not None else None,
            on_fresh=self._hub.accepted, on_duplicate=self._hub.repeated,
        )  # fmt: skip
        return append, chunks

    # -- connections

    def _close(self, peer: str, call: CloseConnections, now: float) -> None:
        chosen = [session for session in self._there(call.to) if session.id not in call.excluded]
        together = _Together(len(chosen), lambda answer: self._hub.answer(peer, answer))
        for session in chosen:
            self._hub.tell(session, Disconnected(call.reason))
            self._hub.shut(session, CloseCode.POLICY, call.reason)
            self._hub.close(session, Kind.CANCELLED, call.reason or "closed by the service", now, together.hear)

    def _permit(self, peer: str, call: Grant | Revoke) -> None:
        session = self._hub.roster.get(call.connection)
        if session is None:
            self._hub.answer(peer, NOT_FOUND if isinstance(call, Grant) else DONE)
            return
        before = session.permissions
        change = before.granted if isinstance(call, Grant) else before.revoked
        try:
            session.permit(change(call.permission, call.group))
        except LimitExceeded as error:
            self._hub.answer(peer, Answer(Outcome.REFUSED, error.message))
            return

        def failed(failure: Failure) -> None:
            session.permit(before)
            self._hub.answer(peer, _failed(failure))

        self._hub.commit_for(
            session,
            (),
            (session.put_row(self._hub.hub, session.row()),),
            lambda results, now: self._hub.answer(peer, DONE),
            failed,
        )

    # -- groups

    def _join(self, peer: str, call: JoinMembers, now: float) -> None:
        chosen = self._chosen(call)
        if not chosen and not isinstance(call.who, Everybody):
            self._hub.answer(peer, NOT_FOUND)
            return
        changes = [(session, group) for session in chosen for group in call.groups if group not in session.groups]
        self._change(peer, changes, RecordKind.JOIN, now)

    def _remove(self, peer: str, call: RemoveMembers, now: float) -> None:
        changes = [
            (session, group)
            for session in self._chosen(call)
            for group in (session.groups if call.groups is None else call.groups)
            if group in session.groups
        ]
        self._change(peer, changes, RecordKind.LEAVE, now)

    def _chosen(self, call: JoinMembers | RemoveMembers) -> Sequence[Session]:
        found = self._there(call.who)
        if call.filter is None:
            return found
        asked = parse(call.filter)
        return [session for session in found if asked.matches(session)]

    def _change(self, peer: str, changes: Iterable[tuple[Session, str]], kind: RecordKind, now: float) -> None:
        """Each is durable by itself; the answer comes when all are."""
        changes = list(changes)
        together = _Together(len(changes), lambda answer: self._hub.answer(peer, answer))
        for session, group in changes:
            self._hub.change_group(
                session,
                group,
                kind,
                now,
                lambda puts, session=session: self._hub.commit_for(  # type: ignore[misc]
                    session, (), puts, lambda results, now: together.hear(None), together.hear
                ),
                together.hear,
            )

    def _list(self, call: ListMembers) -> Answer:
        ids = sorted(id for id in self._hub.roster.groups.get(call.group, ()) if id > call.after)
        roster = self._hub.roster
        members = tuple(Member(id, roster.sessions[id].user) for id in ids[: call.limit])
        return Answer(members=members, more=len(ids) > call.limit)


class _Together:
    """One answer for many."""

    def __init__(self, count: int, answer: Callable[[Answer], None]) -> None:
        self._left, self._answer = count, answer
        self._failure: Failure | None = None
        if count == 0:
            answer(DONE)

    def hear(self, failure: Failure | None) -> None:
        self._failure = self._failure or failure
        self._left -= 1
        if self._left == 0:
            self._answer(_failed(self._failure) if self._failure is not None else DONE)


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


def _compared(append: Append, body: bytes, first: Record | None) -> Answer:
    """The same call again is done already. What the first one said may be gone by now: then nothing can be compared."""
    if first is None:
        return DONE
    envelope = first.envelope
    said = first.target, envelope.datacontenttype, first.body if first.body is not None else envelope.data
    if (append.target, append.envelope.datacontenttype, body) == said:
        return DONE
    return Answer(Outcome.CONFLICT, "this key was used for another message")
