"""One hub on one node: takes what clients say, makes it durable, and hands on what the stream says.

    publish     staged per session, committed with the session's ackIds, and only then acknowledged
    deliver     the records of the stream in the order of their offsets, each to those who were there at that place
    session     opened, recovered, dropped, ended; it survives its socket and this process

Delivery never comes from a publish but from the stream. What this node has committed itself need not be read again if
nothing of another node stands before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import msgspec

from semel.errors import SemelError
from semel.kernel.effects import (
    Commit,
    CommitFailed,
    Committed,
    CommitUnknown,
    Effect,
    Event,
    Notify,
    Read,
    ReadDone,
    ReadFailed,
    ReadTrimmed,
    Received,
    Send,
    Wake,
)
from semel.kernel.envelope import mint_id
from semel.kernel.ledger import Event as LedgerEvent
from semel.kernel.ledger import Kind
from semel.kernel.ops import Advance, Append, Conflict, Fresh, Log, Op, Put, RecordKind, Result, Trim
from semel.kernel.position import Position
from semel.pubsub.frames import codec_for
from semel.pubsub.messages import (
    Ack,
    CloseCode,
    Connected,
    Disconnected,
    ErrorName,
    Fault,
    JoinGroup,
    LeaveGroup,
    Ping,
    Pong,
    Request,
    Response,
    SendToGroup,
    SequenceAck,
)
from semel.pubsub.odata import parse
from semel.pubsub.permissions import Permission, Permissions
from semel.pubsub.records import (
    NO_TERMS,
    Terms,
    accepted_event,
    group_target,
    membership,
    message,
    of_record,
    presence,
    stream_of,
)
from semel.pubsub.roster import Roster
from semel.pubsub.session import AcksRow, Confirmed, Entry, Session, SessionRow, acks_key, session_key
from semel.pubsub.wire import frame

READ_ROWS = 2000
FLUSH_S = 1.0
AHEAD_MAX = 20_000
"""How many records of our own may wait for others before them. Beyond that they are read again."""


@dataclass(frozen=True, slots=True)
class HubOptions:
    """`recovery_s`: how long a session waits for its client. The backlog is what a client has not acknowledged."""

    recovery_s: float = 90.0
    backlog_count: int = 100_000
    backlog_bytes: int = 64 * 1024 * 1024
    trim_s: float = 5.0


# -- what the server tells a hub


class Open(msgspec.Struct, frozen=True):
    """A socket has shown who it is. `connection` and `token` are fresh."""

    connection: str
    token: str | None
    subprotocol: str
    user: str | None
    permissions: Permissions
    groups: tuple[str, ...] = ()
    state: str = ""


class Resume(msgspec.Struct, frozen=True):
    """A socket has shown the token of this connection."""

    connection: str


class Frames(msgspec.Struct, frozen=True):
    requests: Sequence[Request]


class Gone(msgspec.Struct, frozen=True):
    """The socket is closed: by the client with this code, or lost."""

    code: int | None = None


# -- what a hub tells the server


class Write(msgspec.Struct, frozen=True):
    """Whole WebSocket frames, in order."""

    frames: list[bytes]


class Shut(msgspec.Struct, frozen=True):
    """Close the socket after what was written."""

    code: CloseCode
    reason: str = ""


@dataclass(slots=True)
class _Waiting:
    """Who hears what became of a commit."""

    done: Callable[[tuple[Result, ...], float], None]
    failed: Callable[[CommitFailed | CommitUnknown, float], None]


class Hub:
    """A machine. `random` gives fresh bytes; it is called with how many."""

    def __init__(
        self,
        hub: str,
        node: str,
        tail: Position,
        head: int,
        sessions: Iterable[Session],
        random: Callable[[int], bytes],
        options: HubOptions | None = None,
    ) -> None:
        self.hub, self.node = hub, node
        self.stream = stream_of(hub)
        self.name = self.stream
        self.options = options or HubOptions()
        self.roster = Roster()
        for session in sessions:
            self.roster.add(session)
        self.epoch, self.tail, self._boot = tail.epoch, tail.offset, head
        self._random = random
        self._accepted = accepted_event(hub)
        self._sockets: dict[str, Session] = {}
        self._opening: dict[str, Open] = {}
        self._ahead: dict[int, Append] = {}
        self._reading = False
        self._own_commits = 0
        self._token = 0
        self._waiting: dict[int, _Waiting] = {}
        self._touched: dict[str, Session] = {}
        self._dirty: dict[str, Session] = {}
        self._expiries: list[tuple[float, str]] = []
        self._effects: list[Effect] = []
        self._flush_at: float | None = None
        self._trim_at: float | None = None
        self._floor = tail.offset

    # -- the machine

    def start(self, now: float) -> Sequence[Effect]:
        """Nobody has a socket yet: the time for coming back begins now, however long the node was away."""
        for session in self.roster:
            if session.node == self.node:
                session.dropped_at = now
                self._expect_back(session, now)
        self._trim_at = now + self.options.trim_s
        self._read()
        return self._end(now)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case Received(peer=peer, message=told):
                self._hear(peer, told, now)
            case Committed(token=token, results=results):
                self._own_commits += 1
                self._waiting.pop(token).done(results, now)
            case CommitFailed(token=token) | CommitUnknown(token=token):
                self._waiting.pop(token).failed(event, now)
            case ReadDone(records=records):
                self._reading = False
                self._take_in([(record.position.offset, of_record(record)) for record in records], now)
                if len(records) == READ_ROWS or self._ahead or self.tail < self._boot:
                    self._read()
            case ReadTrimmed(first=first):
                self._reading = False
                self.tail = max(self.tail, first.offset - 1)
                self._read()
            case ReadFailed(error=error):
                self._reading = False
                self._effects.append(Notify("hub-read", f"{self.stream}: {error.message}"))
            case Wake():
                self._look_for_others()
        return self._end(now)

    def next_deadline(self) -> float | None:
        times = [at for at in (self._flush_at, self._trim_at) if at is not None]
        if self._expiries:
            times.append(self._expiries[0][0])
        return min(times, default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        if self._flush_at is not None and self._flush_at <= now:
            self._flush(now)
        if self._trim_at is not None and self._trim_at <= now:
            self._trim(now)
        while self._expiries and self._expiries[0][0] <= now:
            self._expire(heappop(self._expiries)[1], now)
        return self._end(now)

    def _end(self, now: float) -> Sequence[Effect]:
        """What was staged and written while one event was handled goes out together."""
        touched, self._touched = self._touched, {}
        for session in touched.values():
            if session.staged:
                self._commit_staged(session)
            if session.out and session.peer is not None:
                self._effects.append(Send(session.peer, Write(session.out)))
                session.out = []
        if self._dirty and self._flush_at is None:
            self._flush_at = now + FLUSH_S
        effects, self._effects = self._effects, []
        return effects

    def _commit(
        self,
        ops: Iterable[Op],
        chain: str | None,
        done: Callable[[tuple[Result, ...], float], None],
        failed: Callable[[CommitFailed | CommitUnknown, float], None],
    ) -> None:
        self._token += 1
        self._waiting[self._token] = _Waiting(done, failed)
        self._effects.append(Commit(tuple(ops), self._token, chain))

    def _mint(self, now: float) -> str:
        return mint_id(now, self._random(10))

    # -- sockets

    def _hear(self, peer: str, told: object, now: float) -> None:
        match told:
            case Frames(requests=requests):
                session = self._sockets.get(peer)
                if session is not None:
                    self._touched[session.id] = session
                    for request in requests:
                        self._handle(session, request, now)
            case Open():
                self._open(peer, told, now)
            case Resume(connection=connection):
                self._resume(peer, connection, now)
            case Gone(code=code):
                self._gone(peer, code, now)

    def _tell(self, session: Session, response: Response) -> None:
        if session.peer is not None:
            encoded = codec_for(session.subprotocol).encode(response)
            if encoded is not None:
                session.out.append(frame(encoded))
                self._touched[session.id] = session

    def _shut(self, session: Session, code: CloseCode, reason: str) -> None:
        """What was written before goes out before."""
        if session.peer is None:
            return
        if session.out:
            self._effects.append(Send(session.peer, Write(session.out)))
            session.out = []
        self._effects.append(Send(session.peer, Shut(code, reason)))
        self._sockets.pop(session.peer, None)
        session.peer = None

    # -- sessions

    def _open(self, peer: str, asked: Open, now: float) -> None:
        """It begins where the stream stands now: what comes in before it is durable is for it as well."""
        start = max(self.tail, self._boot)
        row = SessionRow(
            asked.user, asked.subprotocol, self.node, start, asked.permissions,
            dict.fromkeys(asked.groups, start), state=asked.state,
        )  # fmt: skip
        acks = AcksRow(start, ())
        session = Session(asked.connection, row, acks, 0, 0)
        session.peer = peer
        self._sockets[peer] = session
        self.roster.add(session)
        put_row, put_acks = session.put_row(self.hub, row), session.put_acks(self.hub)
        record = presence(self.stream, RecordKind.OPEN, session.id, session.user, round(now * 1e6), self._mint(now))

        def done(results: tuple[Result, ...], now: float) -> None:
            appended, row_put, acks_put = results
            session.stored(put_row, row_put)
            session.stored(put_acks, acks_put)
            session.row_version, session.acks_version = session.row_stored, session.acks_stored
            self._appended([(record, appended)], now)
            held, session.out = session.out, []
            self._tell(session, Connected(session.id, session.user, asked.token))
            session.out += held
            if session.peer is None:
                self._drop(session, now)

        def failed(failure: CommitFailed | CommitUnknown, now: float) -> None:
            self.roster.remove(session)
            self._shut(session, CloseCode.INTERNAL, "the store cannot take the session now")

        self._commit((record, put_row, put_acks), None, done, failed)

    def _resume(self, peer: str, connection: str, now: float) -> None:
        session = self.roster.get(connection)
        if session is None or not session.is_reliable:
            self._effects.append(Send(peer, Shut(CloseCode.POLICY, "there is no such session any more")))
            return
        if session.peer is not None:
            self._shut(session, CloseCode.GOING_AWAY, "another socket has taken over")
        session.peer, session.dropped_at = peer, None
        self._sockets[peer] = session
        self._touched[session.id] = session
        session.out.clear()
        session.replay()

    def _gone(self, peer: str, code: int | None, now: float) -> None:
        session = self._sockets.pop(peer, None)
        if session is None:
            return
        session.peer = None
        session.out.clear()
        if code == CloseCode.NORMAL or not session.is_reliable:
            self._close(session, Kind.CANCELLED, "the client closed the connection", now)
        else:
            self._drop(session, now)

    def _drop(self, session: Session, now: float) -> None:
        session.dropped_at = now
        self._expect_back(session, now)

    def _expect_back(self, session: Session, now: float) -> None:
        heappush(self._expiries, (now + self.options.recovery_s, session.id))

    def _expire(self, connection: str, now: float) -> None:
        session = self.roster.get(connection)
        if session is None or session.dropped_at is None:
            return
        if session.dropped_at + self.options.recovery_s <= now:
            self._close(session, Kind.EXPIRED, "the client did not come back in time", now)

    def _close(self, session: Session, kind: Kind, reason: str, now: float) -> None:
        """The session ends, and what it has not acknowledged with it: the ledger says so."""
        self.roster.remove(session)
        self._dirty.pop(session.id, None)
        ops: list[Op] = [
            presence(self.stream, RecordKind.CLOSE, session.id, session.user, round(now * 1e6), self._mint(now)),
            Put(session_key(self.hub, session.id), None),
            Put(acks_key(self.hub, session.id), None),
        ]
        if session.confirmed is not None:
            ops.append(Log(self._delivered(session, session.confirmed)))
        if session.queue:
            rest = Confirmed(session.queue[0].offset)
            for entry in session.queue:
                rest.add(entry)
            ops.append(Log(self._delivered(session, rest, kind, reason)))
        self._commit(ops, None, lambda results, now: self._appended([(ops[0], results[0])], now), self._could_not_close)

    def _could_not_close(self, failure: CommitFailed | CommitUnknown, now: float) -> None:
        self._effects.append(Notify("session-close", f"{self.stream}: {_why(failure)}"))

    def _overflow(self, session: Session, now: float) -> None:
        reason = f"{len(session.queue):,} messages are not acknowledged"
        self._effects.append(Notify("backlog", f"{self.stream}: {session.id} is closed, {reason}"))
        self._tell(session, Disconnected(reason))
        self._shut(session, CloseCode.POLICY, reason)
        self._close(session, Kind.DISCARDED, reason, now)

    # -- what clients ask

    def _handle(self, session: Session, request: Request, now: float) -> None:
        if type(request) is SendToGroup:
            self._publish(session, request, now)
            return
        match request:
            case SequenceAck(sequence_id=offset):
                self._acknowledge(session, offset, now)
            case Ping():
                self._tell(session, Pong())
            case JoinGroup():
                self._change_group(session, request, RecordKind.JOIN, now)
            case LeaveGroup():
                self._change_group(session, request, RecordKind.LEAVE, now)
            case _:
                ack_id = getattr(request, "ack_id", None)
                self._ack(session, ack_id, Fault(ErrorName.BAD_REQUEST, "not supported"))

    def _ack(self, session: Session, ack_id: int | None, error: Fault | None = None) -> None:
        if ack_id is not None:
            self._tell(session, Ack(ack_id, error))

    def _is_repeated(self, session: Session, ack_id: int | None) -> bool:
        """One that is durable is answered at once; one on its way when it is decided."""
        if ack_id is None or ack_id not in session.claimed:
            return False
        if ack_id in session.taken:
            self._ack(session, ack_id, _duplicate(ack_id))
        else:
            session.waiting[ack_id] = session.waiting.get(ack_id, 0) + 1
        return True

    def _publish(self, session: Session, request: SendToGroup, now: float) -> None:
        ack_id, group = request.ack_id, request.group
        if self._is_repeated(session, ack_id):
            return
        if not session.may(Permission.SEND_TO_GROUP, group):
            self._ack(session, ack_id, _forbidden("send to", group))
            return
        at = round(now * 1e6)
        terms = NO_TERMS
        if request.no_echo or request.ttl_s or request.metadata:
            expires = at + request.ttl_s * 1_000_000 if request.ttl_s else None
            terms = Terms(request.no_echo, expires=expires, metadata=request.metadata)
        id = f"{session.id}#{ack_id}" if ack_id is not None else self._mint(now)
        if ack_id is not None:
            session.claimed.add(ack_id)
        session.staged.append(
            message(
                self.stream, id, group_target(group), request.data,
                at=at, sender=session.id, user=session.user, terms=terms, on_fresh=self._accepted,
            )
        )  # fmt: skip
        session.staged_ids.append(ack_id)

    def _commit_staged(self, session: Session) -> None:
        appends, session.staged = session.staged, []
        ids, session.staged_ids = session.staged_ids, []
        ack_ids = [ack_id for ack_id in ids if ack_id is not None]
        puts = (session.put_acks(self.hub),) if ack_ids else ()
        self._commit_for(session, appends, puts, ack_ids)

    def _commit_for(
        self,
        session: Session,
        appends: Sequence[Append],
        puts: Sequence[Put],
        ack_ids: Sequence[int] = (),
        then: Callable[[tuple[Result, ...], float], None] | None = None,
        log: Sequence[Log] = (),
    ) -> None:
        """A commit in the name of a session, after those before it. The ackIds are answered when it is durable."""
        generation = session.generation

        def done(results: tuple[Result, ...], now: float) -> None:
            for put, result in zip(puts, results[len(appends) :], strict=False):
                session.stored(put, result)
            if appends:
                self._appended(zip(appends, results, strict=False), now)
            for ack_id in ack_ids:
                self._taken(session, ack_id)
            if then is not None:
                then(results, now)

        def failed(failure: CommitFailed | CommitUnknown, now: float) -> None:
            self._not_taken(session, ack_ids, generation, failure)

        self._commit((*appends, *puts, *log), session.id, done, failed)

    def _taken(self, session: Session, ack_id: int) -> None:
        session.taken.add(ack_id)
        self._ack(session, ack_id)
        if session.waiting:
            for _ in range(session.waiting.pop(ack_id, 0)):
                self._ack(session, ack_id, _duplicate(ack_id))

    def _not_taken(
        self,
        session: Session,
        ack_ids: Sequence[int],
        generation: int,
        failure: CommitFailed | CommitUnknown,
    ) -> None:
        """Nothing of it happened, so the same ackId may be tried again. If nobody can say whether it happened, or if
        somebody else has the session, nothing may be said either."""
        is_replaced = isinstance(failure, CommitFailed) and any(isinstance(each, Conflict) for each in failure.results)
        if isinstance(failure, CommitUnknown) or is_replaced:
            self._lose(session, "taken over" if is_replaced else _why(failure))
            return
        if session.generation == generation:
            session.fall_back()
        fault = Fault(ErrorName.INTERNAL, _why(failure))
        for ack_id in ack_ids:
            for _ in range(1 + session.waiting.pop(ack_id, 0)):
                self._ack(session, ack_id, fault)

    def _lose(self, session: Session, why: str) -> None:
        self._shut(session, CloseCode.INTERNAL, why)
        self.roster.remove(session)

    def _acknowledge(self, session: Session, offset: int, now: float) -> None:
        if not session.is_reliable or offset <= session.acked:
            return
        if offset > session.sent:
            self._shut(session, CloseCode.POLICY, f"{offset} is acknowledged, but {session.sent} is the last one sent")
            self._drop(session, now)
            return
        session.acknowledge(offset)
        self._dirty[session.id] = session

    # -- groups

    def _change_group(self, session: Session, request: JoinGroup | LeaveGroup, kind: RecordKind, now: float) -> None:
        ack_id, group = request.ack_id, request.group
        if self._is_repeated(session, ack_id):
            return
        if not session.may(Permission.JOIN_LEAVE_GROUP, group):
            verb = "join" if kind is RecordKind.JOIN else "leave"
            self._ack(session, ack_id, _forbidden(verb, group))
            return
        if (group in session.groups) == (kind is RecordKind.JOIN):
            # nothing changes
            self._remember(session, ack_id, ())
            return
        record = membership(self.stream, kind, group, session.id, session.user, round(now * 1e6), self._mint(now))
        if ack_id is not None:
            session.claimed.add(ack_id)

        def then(results: tuple[Result, ...], now: float) -> None:
            self._remember(session, ack_id, (self._put_groups(session, group, kind, _offset(results[0])),))

        self._commit_for(session, (record,), (), then=then)

    def _put_groups(self, session: Session, group: str, kind: RecordKind, offset: int) -> Put:
        """Where its record stands is known only now, so the row that says so is a commit of its own. The client hears
        after it, and what it has not heard of is not promised."""
        row = session.row()
        groups = dict(row.groups)
        if kind is RecordKind.JOIN:
            groups.setdefault(group, offset)
        else:
            groups.pop(group, None)
        return session.put_row(self.hub, msgspec.structs.replace(row, groups=groups))

    def _remember(self, session: Session, ack_id: int | None, puts: Sequence[Put]) -> None:
        """Commit what is left to do for a request, with its ackId, and answer it."""
        if ack_id is not None:
            session.claimed.add(ack_id)
            puts = (*puts, session.put_acks(self.hub))
        if puts:
            self._commit_for(session, (), puts, [ack_id] if ack_id is not None else [])

    # -- the stream

    def _appended(self, pairs: Iterable[tuple[Op, Result]], now: float) -> None:
        """Records of our own: delivered in their turn."""
        found = []
        for op, result in pairs:
            assert isinstance(op, Append)
            if isinstance(result, Fresh):
                found.append((result.position.offset, op))
        self._take_in(found, now)

    def _take_in(self, found: Iterable[tuple[int, Append]], now: float) -> None:
        for offset, op in found:
            if offset == self.tail + 1:
                self._fold(offset, op, now)
            elif offset > self.tail:
                self._ahead[offset] = op
        while self._ahead and (op := self._ahead.pop(self.tail + 1, None)) is not None:
            self._fold(self.tail + 1, op, now)
        if self._ahead:
            self._ahead = {offset: op for offset, op in self._ahead.items() if offset > self.tail}
            if len(self._ahead) > AHEAD_MAX:
                self._ahead = {}
            self._read()

    def _fold(self, offset: int, op: Append, now: float) -> None:
        self.tail = offset
        if op.kind is RecordKind.MESSAGE:
            self._fan_out(Entry(offset, op), now)
        elif op.kind is RecordKind.JOIN or op.kind is RecordKind.LEAVE:
            session = self.roster.get(op.envelope.source)
            if session is not None:
                change = self.roster.join if op.kind is RecordKind.JOIN else self.roster.leave
                change(session, op.target[2:], offset)
        if offset == self._boot:
            self.roster.forget_stays()

    def _fan_out(self, entry: Entry, now: float) -> None:
        terms = entry.terms
        receivers = self.roster.receivers(entry.target, entry.offset)
        if terms is not NO_TERMS:
            receivers = self._chosen(receivers, entry, now)
        options = self.options
        for session in receivers:
            if entry.offset <= session.acked:
                continue
            session.push(entry)
            self._touched[session.id] = session
            if len(session.queue) > options.backlog_count or session.queue_bytes > options.backlog_bytes:
                self._overflow(session, now)

    def _chosen(self, receivers: Iterable[Session], entry: Entry, now: float) -> Iterable[Session]:
        terms = entry.terms
        if terms.expires is not None and terms.expires <= now * 1e6:
            return ()
        left_out = {*terms.excluded, *([entry.envelope.source] if terms.no_echo else [])}
        chosen = [session for session in receivers if session.id not in left_out]
        if terms.filter is None:
            return chosen
        asked = parse(terms.filter)
        return [session for session in chosen if asked.matches(session)]

    def _read(self) -> None:
        if not self._reading:
            self._reading = True
            self._effects.append(Read(self.stream, Position(self.stream, self.epoch, self.tail), READ_ROWS, wait=False))

    def _look_for_others(self) -> None:
        """A commit that we know of explains the wake; what others put between is seen as a gap."""
        explained, self._own_commits = self._own_commits > 0, 0
        if not explained:
            self._read()

    # -- what is written down later

    def _flush(self, now: float) -> None:
        """How far clients have acknowledged. What is lost of it in a crash is sent again and dropped by the client."""
        self._flush_at = None
        dirty, self._dirty = self._dirty, {}
        for session in dirty.values():
            log = []
            if session.confirmed is not None:
                log.append(Log(self._delivered(session, session.confirmed)))
                session.confirmed = None
            self._commit_for(session, (), (session.put_acks(self.hub),), log=log)

    def _delivered(
        self, session: Session, range: Confirmed, kind: Kind = Kind.CONFIRMED, cause: str | None = None
    ) -> LedgerEvent:
        return LedgerEvent(
            kind, f"{self.stream}>sub", peer=session.id, stream=self.stream, epoch=self.epoch, first=range.first,
            last=range.last, n=range.n, fold=range.fold, cause=cause,
        )  # fmt: skip

    def _trim(self, now: float) -> None:
        """Give up what nobody needs any more."""
        self._trim_at = now + self.options.trim_s
        floor = min((session.floor(self.tail) for session in self.roster), default=self.tail)
        if floor <= self._floor:
            return
        self._floor = floor
        cursor = f"{self.stream}/floor/{self.node}"
        ops = (Advance(cursor, Position(self.stream, self.epoch, floor)), Trim(self.stream, floor + 1))
        self._commit(ops, None, lambda results, now: None, self._could_not_trim)

    def _could_not_trim(self, failure: CommitFailed | CommitUnknown, now: float) -> None:
        self._effects.append(Notify("hub-trim", f"{self.stream}: {_why(failure)}"))


def _offset(result: Result) -> int:
    assert isinstance(result, Fresh)
    return result.position.offset


def _why(failure: CommitFailed | CommitUnknown) -> str:
    error: SemelError | None = getattr(failure, "error", None)
    return error.message if error is not None else "the store could not take it"


def _duplicate(ack_id: int) -> Fault:
    return Fault(ErrorName.DUPLICATE, f"Message with ack-id: {ack_id} has been processed")


def _forbidden(verb: str, group: str) -> Fault:
    return Fault(ErrorName.FORBIDDEN, f"The client does not have permission to {verb} group '{group}'")
