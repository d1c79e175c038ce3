"""Commands of the server side that change sessions, carried out for those that this node has (`orders.py` for the
sessions of other nodes)."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial

from semel.errors import LimitExceeded
from semel.kernel.ledger import Kind
from semel.kernel.ops import Put, Result
from semel.pubsub.hub.answers import DONE, NOT_FOUND, Gathered, Reply, failed, outcome_for
from semel.pubsub.hub.calls import (
    Answer,
    CloseConnections,
    Connection,
    Everybody,
    Grant,
    Group,
    JoinMembers,
    Outcome,
    Receivers,
    RemoveMembers,
    Revoke,
    User,
)
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.context import HubContext, SessionCommits
from semel.pubsub.hub.endings import Endings
from semel.pubsub.hub.groups import Groups
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.roster import SOMEWHERE, Arrivals, Elsewhere, Here, M, Roster
from semel.pubsub.hub.session import TOO_MANY_GROUPS, Session
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.filters import parse
from semel.pubsub.protocol.messages import Disconnected
from semel.pubsub.protocol.permissions import Permissions
from semel.websocket import CloseCode

Command = CloseConnections | JoinMembers | RemoveMembers | Grant | Revoke

CarriedOut = Callable[[Answer, Set[str]], None]
"""The answer for the sessions that were here, and those that had to be left out, because they are moving."""

CLOSED_BY_SERVICE = "Application server closed the connection."
"""What clients of Azure get when no reason is given."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Restricts a command to some of the sessions that it names: those that opened before this offset (None: whenever
    they did), and of them only these ids (None: all)."""

    before: int | None = None
    only: frozenset[str] | None = None

    def covers(self, session: Session) -> bool:
        if self.before is not None and (session.present_at is None or session.present_at >= self.before):
            return False
        return _is_among(session.id, self.only)


def scope_at(command: Command, before: int, only: frozenset[str] | None) -> Scope:
    """A connection that is named by its id is meant whenever it opens. A command for several is for those that opened
    before it, on whichever node, so that all nodes agree on them."""
    return Scope(None if isinstance(_whom(command), Connection) else before, only)


def _is_among(id: str, only: frozenset[str] | None) -> bool:
    return only is None or id in only


class Commands:
    """`_stored`: for sessions with changed permissions on their way, what holds if the store does not take those."""

    def __init__(
        self,
        context: HubContext,
        outgoing: Outgoing,
        tail: Tail,
        roster: Here,
        elsewhere: Roster[Elsewhere],
        arrivals: Arrivals,
        endings: Endings,
        closing: Closing,
        commits: SessionCommits,
        groups: Groups,
    ) -> None:
        self._context, self._outgoing, self._tail = context, outgoing, tail
        self._roster, self._elsewhere, self._arrivals, self._endings = roster, elsewhere, arrivals, endings
        self._closing, self._commits, self._groups = closing, commits, groups
        self._stored: dict[Session, Permissions] = {}

    def __len__(self) -> int:
        """How many sessions have changed permissions on their way into the store."""
        return len(self._stored)

    # -- whom a command is for

    def elsewhere_of(self, command: Command, only: frozenset[str] | None) -> Sequence[Elsewhere]:
        """Sessions of other nodes that a command names. Filters are applied there: only they know the protocols."""
        excluded = command.excluded if isinstance(command, CloseConnections) else ()
        found = find(self._elsewhere, _whom(command))
        return [each for each in found if each.id not in excluded and _is_among(each.id, only)]

    def may_have(self, command: Command, only: frozenset[str] | None) -> bool:
        """Whether one of them is here, or was until a moment ago."""
        who = _whom(command)
        found = [*find(self._roster, who), *find(self._arrivals.sessions, who), *find(self._endings.sessions, who)]
        return any(_is_among(each.id, only) for each in found) or bool(self._missing(command, only))

    def _missing(self, command: Command, only: frozenset[str] | None) -> set[str]:
        """Those who were here until a moment ago, and for whom the stream has not named another node yet."""
        return {each.id for each in self.elsewhere_of(command, only) if each.node == SOMEWHERE}

    def carry_out(self, command: Command, scope: Scope, now: float, then: CarriedOut) -> None:
        """Apply it now to the sessions that are here. Those that are still arriving follow as soon as it is decided
        whether they stay; one that does not may be on another node, and is reported as moved."""
        moved: set[str] = set()

        def answer(answer: Answer) -> None:
            then(answer, moved)

        arriving = [each for each in find(self._arrivals.sessions, _whom(command)) if _is_among(each.id, scope.only)]
        if not arriving:
            self._apply(command, scope, now, answer, moved)
            return
        both = Gathered(2, answer)

        def decided(now: float) -> None:
            moved.update(each.id for each in arriving if self._has_moved(each))
            self._apply(command, scope, now, both.add, moved)

        self._arrivals.when_decided(arriving, decided)
        self._apply(command, scope, now, both.add, moved)

    def _has_moved(self, session: Session) -> bool:
        """It is in the store, but neither here nor ending here."""
        known = self._roster.get(session.id), self._endings.sessions.get(session.id)
        return bool(session.versions.row_stored) and session not in known

    def _apply(self, command: Command, scope: Scope, now: float, answer: Reply, moved: set[str]) -> None:
        """Sessions that cannot be found now are added to `moved`: the command is repeated for them."""
        moved |= self._missing(command, scope.only)
        found = [each for each in find_durable(self._roster, _whom(command)) if scope.covers(each)]
        answer = self.answer_after_ends(self._ending(command, scope.only), now, answer, moved)
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
        found = find(self._endings.sessions, _whom(command))
        return [each for each in found if _is_among(each.id, only) and each.id not in excluded]

    def answer_after_ends(
        self, ending: Sequence[Session], now: float, answer: Reply, moved: set[str] | None = None
    ) -> Reply:
        """Sessions that are about to end are not found any more. Until their end is in the store, a crash or another
        node could bring them back, so the answer waits for it."""
        if not ending:
            return answer
        all_of_them = Gathered(1 + len(ending), answer)

        def ended(session: Session, failure: Failure | None) -> None:
            if failure is None:
                all_of_them.add(NOT_FOUND)
            else:
                all_of_them.add(failed(failure) if moved is None else outcome_for(session, failure, moved))

        for session in ending:
            self._closing.when_ended(session, now, partial(ended, session))
        return all_of_them.add

    # -- connections

    def _close(
        self, call: CloseConnections, found: Sequence[Session], now: float, answer: Reply, moved: set[str]
    ) -> None:
        chosen = [each for each in found if each.id not in call.excluded]
        together = Gathered(len(chosen), answer)
        reason = call.reason or CLOSED_BY_SERVICE

        def ended(session: Session, failure: Failure | None) -> None:
            together.add(outcome_for(session, failure, moved))

        for session in chosen:
            self._outgoing.send(session, Disconnected(reason))
            self._outgoing.close_socket(session, CloseCode.POLICY, reason)
            self._closing.close(session, Kind.CANCELLED, reason, now, partial(ended, session))

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
            self._context.report_once("hub-commit", failure)
            answer(outcome_for(session, failure, moved))

        self._commits.commit(session, (), (session.put_row(self._context.hub, session.row()),), done, failed)

    # -- groups

    def _join(self, call: JoinMembers, found: Sequence[Session], now: float, answer: Reply, moved: set[str]) -> None:
        chosen = _matching(call.filter, found)
        if not chosen and not isinstance(call.who, Everybody):
            answer(NOT_FOUND)
            return
        if not all(session.has_room_for(call.groups, self._tail.offset) for session in chosen):
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
        together = Gathered(len(changes), answer)

        def failed(session: Session, failure: Failure) -> None:
            self._context.report_once("hub-commit", failure)
            together.add(outcome_for(session, failure, moved))

        def write(session: Session, puts: Sequence[Put]) -> None:
            self._commits.commit(session, (), puts, lambda results, now: together.add(DONE), partial(failed, session))

        for session, group in changes:
            if group is None:
                write(session, (session.put_row(self._context.hub, session.row()),))
            else:
                self._groups.change(session, group, kind, now, partial(write, session), partial(failed, session))


def _all_of(session: Session) -> Sequence[str]:
    """The groups that it is in, or may yet be."""
    return sorted(session.memberships.wanted.union(session.memberships.decided))


def _changes(session: Session, groups: Sequence[str], is_join: bool) -> Sequence[str | None]:
    """The groups for which something has to be done. None stands for the row alone: all is as it is asked for, but the
    row that says so is on its way, or was refused."""
    changed = [group for group in groups if not session.memberships.is_settled(group, is_join)]
    is_written = not session.versions.owes_row and session.versions.row == session.versions.row_stored
    return changed or ([] if is_written else [None])


def find(roster: Roster[M], who: Receivers) -> Sequence[M]:
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


def find_durable(roster: Here, who: Receivers) -> Sequence[Session]:
    """Without those that are not in the store yet."""
    return [session for session in find(roster, who) if not session.is_opening]


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
