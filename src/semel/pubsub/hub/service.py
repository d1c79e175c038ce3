"""What the server side asks of a hub (`calls.py`), answered when it is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from semel.errors import InputError, LimitExceeded, StoreError
from semel.kernel.effects import Loaded, LoadedAll, LoadFailed
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Put, PutBlob, Result
from semel.pubsub.hub.calls import (
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
from semel.pubsub.hub.commits import Failure, hint, is_conflict
from semel.pubsub.hub.idempotency import terms_of
from semel.pubsub.hub.left_out import UNREADABLE
from semel.pubsub.hub.overview import overview
from semel.pubsub.hub.record_kinds import RecordKind
from semel.pubsub.hub.records import (
    EVERYBODY,
    NO_TERMS,
    REST,
    Terms,
    connection_target,
    digest_of,
    group_target,
    message,
    user_target,
)
from semel.pubsub.hub.roster import SOMEWHERE, Elsewhere, M, Roster
from semel.pubsub.hub.session import TOO_MANY_GROUPS, Session, read_session, session_key
from semel.pubsub.protocol.filters import parse
from semel.pubsub.protocol.messages import CloseCode, Disconnected
from semel.pubsub.protocol.permissions import Permissions

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub
    from semel.pubsub.hub.orders import Command

Reply = Callable[[Answer], None]
Obeyed = Callable[[Answer, Set[str]], None]
"""The answer for the sessions that were here, and those that had to be left out, because they are moving."""

DONE, NOT_FOUND = Answer(), Answer(Outcome.NOT_FOUND)
MOVING = Answer(Outcome.FAILED, "a connection is moving from node to node; ask again")

CLOSED_BY_SERVICE = "Application server closed the connection."
"""What clients of Azure hear when no reason is given."""


@dataclass(frozen=True, slots=True)
class Scope:
    """For which of the sessions that a command names it is: those that came before this place of the stream, whenever
    that was if it is None, and of them only these, or all."""

    before: int | None = None
    only: frozenset[str] | None = None

    def covers(self, session: Session) -> bool:
        if self.before is not None and (session.came is None or session.came >= self.before):
            return False
        return _is_among(session.id, self.only)


def scope_at(command: Command, before: int, only: frozenset[str] | None) -> Scope:
    """A connection that is named is meant whenever it comes. Of several, those are who came before: all of them, and
    nobody else, on whichever node."""
    return Scope(None if isinstance(_whom(command), Connection) else before, only)


def _is_among(id: str, only: frozenset[str] | None) -> bool:
    return only is None or id in only


class Service:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._stored: dict[Session, Permissions] = {}
        """Of sessions with changed ones on their way: what holds if the store does not take those."""

    def hear(self, peer: str, call: Call, now: float) -> None:
        """A message is for whoever is there where it comes to stand. Everything else is about sessions that any node
        may have, also one that was just let in there."""

        def answer(answer: Answer) -> None:
            self._hub.answer(peer, answer)

        if isinstance(call, Publish):
            self._publish(call, now, answer)
        else:
            self._hub.current.when(
                lambda now: self._hear(call, now, answer), lambda why: answer(Answer(Outcome.FAILED, why)), now
            )

    def _hear(self, call: Command | Find | ListMembers | Check | Look, now: float, answer: Reply) -> None:
        match call:
            case CloseConnections() | JoinMembers() | RemoveMembers() | Grant() | Revoke():
                self._hub.orders.carry_out(call, now, answer)
            case Find(who=who):
                self._find(who, now, answer)
            case ListMembers():
                answer(self._list(call))
            case Summarize() | ListConnections() | ListGroups():
                answer(overview(self._hub, call))
            case Check():
                self._check(call, now, answer)

    def _find(self, who: Receivers, now: float, answer: Reply) -> None:
        if self._there(who) or self._elsewhere(who) or self._arriving(who):
            answer(DONE)
        else:
            self._after_ends(_found(self._hub.endings.sessions, who), now, answer)(NOT_FOUND)

    def _there(self, who: Receivers) -> Sequence[Session]:
        """Those who are here now, durably."""
        return [session for session in _found(self._hub.roster, who) if session.early is None]

    def _elsewhere(self, who: Receivers) -> Sequence[Elsewhere]:
        """Those whom other nodes have."""
        return _found(self._hub.elsewhere, who)

    def _arriving(self, who: Receivers) -> Sequence[Session]:
        """Those of whom that is not decided yet."""
        return _found(self._hub.arrivals.sessions, who)

    # -- whom a command is for

    def elsewhere_of(self, command: Command, only: frozenset[str] | None) -> Sequence[Elsewhere]:
        """A filter is asked where the sessions are: what protocol they speak is known only there."""
        excluded = command.excluded if isinstance(command, CloseConnections) else ()
        found = self._elsewhere(_whom(command))
        return [each for each in found if each.id not in excluded and _is_among(each.id, only)]

    def may_have(self, command: Command, only: frozenset[str] | None) -> bool:
        """Whether one of them is here, or was until a moment ago."""
        who = _whom(command)
        found = [*_found(self._hub.roster, who), *self._arriving(who), *_found(self._hub.endings.sessions, who)]
        return any(_is_among(each.id, only) for each in found) or bool(self._missing(command, only))

    def _missing(self, command: Command, only: frozenset[str] | None) -> set[str]:
        """Those who were here until a moment ago, and of whom the stream has not said where they are."""
        return {each.id for each in self.elsewhere_of(command, only) if each.node == SOMEWHERE}

    def obey(self, command: Command, scope: Scope, now: float, obeyed: Obeyed) -> None:
        """For the sessions that are here, and for those that arrive as soon as it is decided whether they do. One that
        did not, but was somewhere before, may be there still."""
        moved: set[str] = set()

        def answer(answer: Answer) -> None:
            obeyed(answer, moved)

        arriving = [each for each in self._arriving(_whom(command)) if _is_among(each.id, scope.only)]
        if not arriving:
            self._carry_out(command, scope, now, answer, moved)
            return
        both = Gathered(2, answer)

        def decided(now: float) -> None:
            moved.update(each.id for each in arriving if self._has_moved(each))
            self._carry_out(command, scope, now, both.hear, moved)

        self._hub.arrivals.when_decided(arriving, decided)
        self._carry_out(command, scope, now, both.hear, moved)

    def _has_moved(self, session: Session) -> bool:
        """It is in the store, but neither here nor ending here."""
        known = self._hub.roster.get(session.id), self._hub.endings.sessions.get(session.id)
        return bool(session.row_stored) and session not in known

    def _carry_out(self, command: Command, scope: Scope, now: float, answer: Reply, moved: set[str]) -> None:
        """Whoever is here is served, wherever the others are: for those it is done again (`moved`)."""
        moved |= self._missing(command, scope.only)
        found = [each for each in self._there(_whom(command)) if scope.covers(each)]
        answer = self._after_ends(self._ending(command, scope.only), now, answer, moved)
        match command:
            case CloseConnections():
                self._close(command, found, now, answer, moved)
            case JoinMembers():
                self._join(command, found, now, answer, moved)
            case RemoveMembers():
                self._remove(command, found, now, answer, moved)
            case Grant() | Revoke():
                self._permit(command, found, answer, moved)

    def _ending(self, command: Command, only: frozenset[str] | None) -> Sequence[Session]:
        excluded = command.excluded if isinstance(command, CloseConnections) else ()
        found = _found(self._hub.endings.sessions, _whom(command))
        return [each for each in found if _is_among(each.id, only) and each.id not in excluded]

    def _after_ends(self, ending: Sequence[Session], now: float, answer: Reply, moved: set[str] | None = None) -> Reply:
        """Nothing can be asked any more of those who are about to end, and they are not found. But until that is in the
        store, a crash or another node could bring them back."""
        if not ending:
            return answer
        all_of_them = Gathered(1 + len(ending), answer)

        def ended(session: Session, failure: Failure | None) -> None:
            if failure is None:
                all_of_them.hear(NOT_FOUND)
            else:
                all_of_them.hear(_failed(failure) if moved is None else _became(session, failure, moved))

        for session in ending:
            self._hub.endings.ask(session, now, partial(ended, session))
        return all_of_them.hear

    # -- messages

    def _publish(self, call: Publish, now: float, answer: Reply) -> None:
        try:
            append, chunks = self._message(call, now)
        except InputError as error:
            answer(Answer(Outcome.REFUSED, error.message))
            return

        digest = digest_of(append.target, call.data, terms_of(call))
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
                self._hub.complain("hub-commit", failure)
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

    def _close(
        self, call: CloseConnections, found: Sequence[Session], now: float, answer: Reply, moved: set[str]
    ) -> None:
        chosen = [each for each in found if each.id not in call.excluded]
        together = Gathered(len(chosen), answer)
        reason = call.reason or CLOSED_BY_SERVICE

        def ended(session: Session, failure: Failure | None) -> None:
            together.hear(_became(session, failure, moved))

        for session in chosen:
            self._hub.tell(session, Disconnected(reason))
            self._hub.shut(session, CloseCode.POLICY, reason)
            self._hub.sessions.close(session, Kind.CANCELLED, reason, now, partial(ended, session))

    def _permit(self, call: Grant | Revoke, found: Sequence[Session], answer: Reply, moved: set[str]) -> None:
        if not found:
            answer(NOT_FOUND if isinstance(call, Grant) else DONE)
            return
        [session] = found
        before = session.permissions
        change = before.granted if isinstance(call, Grant) else before.revoked
        try:
            changed = change(call.permission, call.group)
        except LimitExceeded as error:
            answer(Answer(Outcome.CONFLICT, error.message))
            return
        self._stored.setdefault(session, before)
        session.permit(changed)

        def done(results: tuple[Result, ...], now: float) -> None:
            if session.permissions is changed:
                self._stored.pop(session, None)
            else:
                self._stored[session] = changed
            answer(DONE)

        def failed(failure: Failure) -> None:
            session.permit(self._stored.pop(session, session.permissions))
            self._hub.complain("hub-commit", failure)
            answer(_became(session, failure, moved))

        self._hub.commit_for(session, (), (session.put_row(self._hub.hub, session.row()),), done, failed)

    def _check(self, call: Check, now: float, answer: Reply) -> None:
        who, session = Connection(call.connection), self._hub.roster.get(call.connection)
        if session is not None:
            answer(_has(session.permissions, call))
        elif self._elsewhere(who) or self._arriving(who):
            self._hub.load(
                session_key(self._hub.hub, call.connection), lambda found, now: answer(_has_by_row(found, call))
            )
        else:
            self._after_ends(_found(self._hub.endings.sessions, who), now, answer)(NOT_FOUND)

    # -- groups

    def _join(self, call: JoinMembers, found: Sequence[Session], now: float, answer: Reply, moved: set[str]) -> None:
        chosen = _matching(call.filter, found)
        if not chosen and not isinstance(call.who, Everybody):
            answer(NOT_FOUND)
            return
        if not all(session.has_room_for(call.groups, self._hub.tail.offset) for session in chosen):
            answer(Answer(Outcome.REFUSED, TOO_MANY_GROUPS))
            return
        changes = [(session, group) for session in chosen for group in _changes(session, call.groups, True)]
        self._change(changes, RecordKind.JOIN, now, answer, moved)

    def _remove(
        self, call: RemoveMembers, found: Sequence[Session], now: float, answer: Reply, moved: set[str]
    ) -> None:
        changes = [
            (session, group)
            for session in _matching(call.filter, found)
            for group in _changes(session, _all_of(session) if call.groups is None else call.groups, False)
        ]
        self._change(changes, RecordKind.LEAVE, now, answer, moved)

    def _change(
        self,
        changes: Sequence[tuple[Session, str | None]],
        kind: RecordKind,
        now: float,
        answer: Reply,
        moved: set[str],
    ) -> None:
        """Each is durable by itself; the answer comes when all are."""
        hub, together = self._hub, Gathered(len(changes), answer)

        def failed(session: Session, failure: Failure) -> None:
            hub.complain("hub-commit", failure)
            together.hear(_became(session, failure, moved))

        def write(session: Session, puts: Sequence[Put]) -> None:
            hub.commit_for(session, (), puts, lambda results, now: together.hear(DONE), partial(failed, session))

        for session, group in changes:
            if group is None:
                write(session, (session.put_row(hub.hub, session.row()),))
            else:
                hub.change_group(session, group, kind, now, partial(write, session), partial(failed, session))

    def _list(self, call: ListMembers) -> Answer:
        group = Group(call.group)
        found: list[Session | Elsewhere] = [*self._there(group), *self._elsewhere(group), *self._arriving(group)]
        members = {each.id: Member(each.id, each.user) for each in found if each.id > call.after}
        after = sorted(members.values(), key=_by_connection)
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

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def expect_one_more(self) -> None:
        """Before the last one was heard."""
        self._left += 1


_WORSE = (Outcome.NOT_FOUND, Outcome.DONE, Outcome.CONFLICT, Outcome.REFUSED, Outcome.FAILED)


def _all_of(session: Session) -> Sequence[str]:
    """The groups that it is in, or may yet be."""
    return sorted(session.groups_wanted.union(session.groups_decided))


def _changes(session: Session, groups: Sequence[str], is_join: bool) -> Sequence[str | None]:
    """The groups for which something has to be done. None stands for the row alone: all is as it is asked for, but the
    row that says so is on its way, or was refused."""
    changed = [group for group in groups if not session.is_settled(group, is_join)]
    is_written = not session.owes_row and session.row_version == session.row_stored
    return changed or ([] if is_written else [None])


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


def _matching(filter: str | None, found: Sequence[Session]) -> Sequence[Session]:
    if filter is None:
        return found
    asked = parse(filter)
    return [each for each in found if asked.matches(each)]


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
    if found.state is None:
        return NOT_FOUND
    try:
        return _has(read_session(found.state.value).permissions, call)
    except StoreError:
        return Answer(Outcome.FAILED, UNREADABLE)


def _failed(failure: Failure) -> Answer:
    """If somebody else has written for a session meanwhile, it is not here any more."""
    return MOVING if is_conflict(failure) else Answer(Outcome.FAILED, hint(failure))


def _became(session: Session, failure: Failure | None, moved: set[str]) -> Answer:
    """What a command came to for one session. One that is not here any more has moved, and was not there."""
    if failure is None:
        return DONE
    if is_conflict(failure):
        moved.add(session.id)
        return NOT_FOUND
    return _failed(failure)


def summed_up(answer: Answer, moved: Set[str]) -> Answer:
    """For those who are not told which sessions have moved."""
    return MOVING if moved and answer.outcome is not Outcome.FAILED else answer


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
