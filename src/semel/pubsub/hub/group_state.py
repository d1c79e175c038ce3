"""Group state: a small map that each connection may publish in a group, for all who watch the group.

    set       a connection sets its state or clears it; leaving the group and ending clear it as well
    watch     a client gets a snapshot of all states, and from then on every change

A change is a record in the hub's stream, so every node knows all states. What a session has set and what it watches is
in its row, so both survive whatever the session survives.

Updates are not sent again: who comes back with a new socket, or could not take them for a while, gets a snapshot.
Microsoft's clients keep what they had from an update although a snapshot leaves it out, so what was cleared lately is
sent as an update again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Result
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.context import HubContext, SessionCommits
from semel.pubsub.hub.outgoing import ClientAcks, Outgoing, forbidden
from semel.pubsub.hub.read_barrier import ReadBarrier
from semel.pubsub.hub.records import RecordKind, group_target
from semel.pubsub.hub.roster import Here, discard
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_rows import OwnState
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.messages import (
    CONTENT_TYPES,
    DataType,
    ErrorName,
    Fault,
    GroupStateItem,
    GroupStateSnapshot,
    GroupStateUpdate,
    SetGroupState,
    SubscribeGroupState,
    UnsubscribeGroupState,
)
from semel.pubsub.protocol.permissions import Permission
from semel.websocket import frame

KEYS_MAX = 64
KEY_CHARS_MAX = 256
STATE_CHARS_MAX = 4 * 1024
STATES_CHARS_MAX = 32 * 1024
"""How large one state may be, and all states of a session with the names of their groups: they are in one row."""
WATCHES_MAX = 100
CLEARED_MAX = 10_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str]).decode


class _Cleared(NamedTuple):
    at: float
    group: str
    item: GroupStateItem


class GroupStates:
    def __init__(
        self,
        context: HubContext,
        outgoing: Outgoing,
        roster: Here,
        commits: SessionCommits,
        acks: ClientAcks,
        current: ReadBarrier,
    ) -> None:
        self._context, self._outgoing, self._roster = context, outgoing, roster
        self._commits, self._acks, self._current = commits, acks, current
        self._groups: dict[str, dict[str, GroupStateItem]] = {}
        self._connections: dict[str, dict[str, GroupStateItem]] = {}
        self._clocks: dict[str, int] = {}
        self._watchers: dict[str, dict[str, Session]] = {}
        self._watching: dict[str, Session] = {}
        self._missed: set[str] = set()
        self._not_shown: dict[tuple[str, str], Session] = {}
        self._cleared: deque[_Cleared] = deque()

    @property
    def watched(self) -> int:
        """How many groups somebody here watches."""
        return len(self._watchers)

    # -- what clients ask for

    def set(self, session: Session, request: SetGroupState, now: float) -> None:
        """It need not be a member: who may join a group may set its state there before it joins."""
        group, state = request.group, request.state
        if self._acks.is_repeated(session, request.ack_id):
            return
        fault = self._refusal(session, group) or _excess(session, group, state)
        if fault is not None:
            self._acks.answer(session, request.ack_id, fault)
            return
        if state is None and group not in session.states:
            self._commit(session, request.ack_id)
            return
        at = self._next_time(session, now)
        own = OwnState(state, at) if state is not None else None
        # at once, so that the next request counts with it; if the commit fails, `states.stored` is what holds
        _put(session.states, group, own)
        record = self._record(session, group, state, at, now)
        self._commit(session, request.ack_id, lambda now: _put(session.states.stored, group, own), record)

    def watch(self, session: Session, request: SubscribeGroupState) -> None:
        """A client that asks again gets another snapshot."""
        group = request.group
        if self._acks.is_repeated(session, request.ack_id):
            return
        fault = self._refusal(session, group)
        if fault is None and group not in session.watches and len(session.watches) >= WATCHES_MAX:
            fault = Fault(ErrorName.BAD_REQUEST, f"a connection can watch the state of {WATCHES_MAX} groups")
        if fault is not None:
            self._acks.answer(session, request.ack_id, fault)
            return
        session.watches[group] = None

        def then(now: float) -> None:
            session.watches.stored[group] = None
            self._begin_watching(session, group, now)

        self._commit(session, request.ack_id, then)

    def unwatch(self, session: Session, request: UnsubscribeGroupState) -> None:
        group = request.group
        if self._acks.is_repeated(session, request.ack_id):
            return
        session.watches.pop(group, None)
        discard(self._watchers, group, session.id)
        self._commit(session, request.ack_id, lambda now: session.watches.stored.pop(group, None))

    def _refusal(self, session: Session, group: str) -> Fault | None:
        allowed = session.may(Permission.JOIN_LEAVE_GROUP, group)
        return None if allowed else forbidden("see or change the state of", group)

    def _next_time(self, session: Session, now: float) -> int:
        """In milliseconds, later than every state of this connection before. One is left free for its leaving the group
        in between, which may be on its way."""
        last = max((own.updated_at for own in session.states.values()), default=0)
        at = max(round(now * 1000), last + 2, self._clocks.get(session.id, 0) + 2)
        self._clocks[session.id] = at
        return at

    def _record(self, session: Session, group: str, state: dict[str, str] | None, at: int, now: float) -> Append:
        envelope = Envelope(
            self._context.mint(now), session.id, data=_encode(state) if state is not None else b"", time=at * 1000,
            subject=session.user, datacontenttype=CONTENT_TYPES[DataType.JSON],
        )  # fmt: skip
        return Append(self._context.stream, envelope, kind=RecordKind.STATE, target=group_target(group))

    def _commit(
        self,
        session: Session,
        ack_id: int | None,
        then: Callable[[float], object] | None = None,
        record: Append | None = None,
    ) -> None:
        """The ackId, with the row of the session if something is new in it: `then` is called when that is durable."""
        ack_ids = [ack_id] if ack_id is not None else []
        puts = [session.put_row(self._context.hub, session.row())] if then is not None else []
        if ack_id is not None:
            session.acks.claimed.add(ack_id)
            puts.append(session.put_acks(self._context.hub))
        if not puts:
            return

        def done(results: tuple[Result, ...], now: float) -> None:
            self._acks.accept(session, ack_ids)
            if then is not None:
                then(now)

        def failed(failure: Failure) -> None:
            # `unwatch` stops the updates before it is durable
            self._rewatch(session)
            self._acks.fail(session, ack_ids, failure)

        self._commits.commit(session, [record] if record is not None else [], puts, done, failed)

    # -- what the stream says

    def on_state(self, append: Append, now: float) -> None:
        envelope = append.envelope
        state = _decode(envelope.data) if envelope.data else None
        at = (envelope.time or 0) // 1000
        self._change(append.target[2:], envelope.source, envelope.subject, state, at, now)

    def on_leave(self, connection: str, group: str, now: float) -> None:
        known = self._connections.get(connection, {}).get(group)
        if known is not None:
            self._change(group, connection, known.user_id, None, known.updated_at + 1, now)

    def on_close(self, connection: str, now: float) -> None:
        for group, known in list(self._connections.get(connection, {}).items()):
            self._change(group, connection, known.user_id, None, known.updated_at + 1, now)
        watcher = self._watching.pop(connection, None)
        for group in watcher.watches if watcher is not None else ():
            discard(self._watchers, group, connection)
        self._clocks.pop(connection, None)
        self._missed.discard(connection)

    def load(self, session: Session) -> None:
        """The states of a session that was read from the store, wherever it is."""
        for group, own in session.states.items():
            self._keep(group, GroupStateItem(session.id, own.updated_at, session.user, own.state))

    def _change(
        self, group: str, connection: str, user: str | None, state: dict[str, str] | None, at: int, now: float
    ) -> None:
        known = self._connections.get(connection, {}).get(group)
        if known is not None and known.updated_at >= at:
            return  # a record that is read again after the row of its session, which is newer
        item = GroupStateItem(connection, at, user, state)
        if state is None:
            self._drop(group, item, now)
        else:
            self._keep(group, item)
        self._send_to_watchers(group, item)

    def _keep(self, group: str, item: GroupStateItem) -> None:
        assert item.state is not None
        self._groups.setdefault(group, {})[item.connection_id] = item
        self._connections.setdefault(item.connection_id, {})[group] = item
        self._clocks[item.connection_id] = max(self._clocks.get(item.connection_id, 0), item.updated_at)

    def _drop(self, group: str, item: GroupStateItem, now: float) -> None:
        discard(self._groups, group, item.connection_id)
        discard(self._connections, item.connection_id, group)
        cleared = self._cleared
        cleared.append(_Cleared(now, group, item))
        while len(cleared) > CLEARED_MAX or cleared[0].at + self._context.options.recovery_s < now:
            cleared.popleft()

    # -- what watchers get

    def _send_to_watchers(self, group: str, item: GroupStateItem) -> None:
        """One frame for all with the same protocol. Who is not here any more is forgotten, who has no room gets a
        snapshot later."""
        frames: dict[str, bytes] = {}
        response = GroupStateUpdate(group, (item,))
        for session in list(self._watchers.get(group, {}).values()):
            if self._roster.get(session.id) is not session:
                discard(self._watchers, group, session.id)
            elif session.is_stalled:
                self._missed.add(session.id)
            elif session.peer is not None:
                if session.subprotocol not in frames:
                    frames[session.subprotocol] = frame(codec_for(session.subprotocol).encode(response) or b"")
                self._outgoing.write(session.peer, frames[session.subprotocol])

    def resumed(self, session: Session, now: float) -> None:
        """It has a new socket, and may have missed something."""
        self._missed.discard(session.id)
        for group in session.watches:
            self._begin_watching(session, group, now)

    def has_room(self, session: Session, now: float) -> None:
        """Its socket takes more again."""
        if session.id in self._missed:
            self.resumed(session, now)

    def _begin_watching(self, session: Session, group: str, now: float) -> None:
        """The snapshot holds what was set on any node before. If the stream cannot be read, it is sent when it can."""

        def begin(now: float) -> None:
            if group in session.watches and self._roster.get(session.id) is session:
                self._watch(session, group)
                self._send_snapshot(session, group)

        def failed(why: str) -> None:
            self._not_shown[session.id, group] = session

        self._current.when(begin, failed, now)

    def send_missed(self, now: float) -> None:
        """The stream can be read again. What was read just now may be too old for them: they ask for themselves."""
        not_shown, self._not_shown = self._not_shown, {}
        for (_, group), session in not_shown.items():
            self._begin_watching(session, group, now)

    def _rewatch(self, session: Session) -> None:
        for group in session.watches:
            self._watch(session, group)

    def _watch(self, session: Session, group: str) -> None:
        self._watchers.setdefault(group, {})[session.id] = session
        self._watching[session.id] = session

    def _send_snapshot(self, session: Session, group: str) -> None:
        known = self._groups.get(group, {})
        self._outgoing.send(session, GroupStateSnapshot(group, tuple(known.values())))
        gone = {each.item.connection_id: each.item for each in self._cleared if each.group == group}
        items = tuple(item for connection, item in gone.items() if connection not in known)
        if items:
            self._outgoing.send(session, GroupStateUpdate(group, items))


def _excess(session: Session, group: str, state: dict[str, str] | None) -> Fault | None:
    """What is too much about a state, if anything."""
    if state is None:
        return None
    if len(state) > KEYS_MAX or any(len(key) > KEY_CHARS_MAX for key in state):
        return Fault(ErrorName.BAD_REQUEST, f"a state has up to {KEYS_MAX} keys of up to {KEY_CHARS_MAX} characters")
    if _size(state) > STATE_CHARS_MAX:
        return Fault(ErrorName.BAD_REQUEST, f"a state has up to {STATE_CHARS_MAX} characters")
    others = sum(len(name) + _size(own.state) for name, own in session.states.items() if name != group)
    if others + len(group) + _size(state) > STATES_CHARS_MAX:
        reason = f"the states of a connection, with the names of their groups, have up to {STATES_CHARS_MAX} characters"
        return Fault(ErrorName.BAD_REQUEST, reason)
    return None


def _size(state: dict[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in state.items())


T = TypeVar("T")


def _put(index: dict[str, T], key: str, value: T | None) -> None:
    if value is None:
        index.pop(key, None)
    else:
        index[key] = value
