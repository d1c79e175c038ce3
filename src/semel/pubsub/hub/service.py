"""Calls of the server side (`calls.py`): each is answered when what was asked for is durable."""

from __future__ import annotations

from semel.errors import InputError, StoreError
from semel.kernel.effects import Loaded, LoadedAll, LoadFailed
from semel.kernel.ops import Append, PutBlob, Result
from semel.pubsub.hub.answers import DONE, NOT_FOUND, Reply, failed
from semel.pubsub.hub.arrivals import Arrivals
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
from semel.pubsub.hub.commands import Command, Commands, find, find_durable
from semel.pubsub.hub.commits import Failure, is_conflict
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.current import Current
from semel.pubsub.hub.endings import Endings
from semel.pubsub.hub.idempotency import Keys, terms_of
from semel.pubsub.hub.left_out import UNREADABLE
from semel.pubsub.hub.orders import Orders
from semel.pubsub.hub.overview import overview
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
from semel.pubsub.hub.roster import Elsewhere, Here, Roster
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
        current: Current,
        keys: Keys,
        commands: Commands,
        orders: Orders,
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
        terms = Terms(False, call.excluded, call.filter, expires, call.metadata)
        blob, chunks = self._tail.keep_body(call.data.body, self._context.mint, now)
        append = message(
            self._context.stream, call.id or self._context.mint(now), _target(call.to), call.data,
            at=at, sender=REST, user=None, terms=terms if terms != Terms() else NO_TERMS, blob=blob,
            on_fresh=self._context.accepted,
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
