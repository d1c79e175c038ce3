"""One hub on one node: takes what clients and services say, makes it durable, and hands on what the stream says.

    clients     what the sessions ask (`clients.py`)
    service     what REST, event handlers and commands ask (`service.py`)
    stream      the records in the order of their offsets, each to those who were there at that place (here)
    sessions    opened, recovered, dropped and ended; they survive their sockets and this process (here)

Delivery never comes from a publish but from the stream. What this node has committed itself need not be read again if
nothing of another node stands before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from semel.kernel.effects import (
    Close,
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
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Blob, mint_id
from semel.kernel.ledger import Event as LedgerEvent
from semel.kernel.ledger import Kind
from semel.kernel.ops import Advance, Append, Conflict, Fresh, Log, Op, Put, PutBlob, RecordKind, Result, Trim
from semel.kernel.position import Position
from semel.kernel.store import Record
from semel.pubsub.calls import Answer, Call
from semel.pubsub.clients import Clients
from semel.pubsub.commits import Done, Failed, Failure, nothing_more, why
from semel.pubsub.frames import codec_for
from semel.pubsub.messages import CloseCode, Connected, Disconnected, Request, Response
from semel.pubsub.odata import parse
from semel.pubsub.permissions import Permissions
from semel.pubsub.records import (
    NO_TERMS,
    accepted_event,
    chunks_of,
    membership,
    of_record,
    presence,
    repeated_event,
    stream_of,
)
from semel.pubsub.roster import Roster
from semel.pubsub.service import Service
from semel.pubsub.session import AcksRow, Confirmed, Entry, Session, SessionRow, acks_key, session_key
from semel.pubsub.wire import frame

READ_ROWS = 2000
FLUSH_S = 1.0
EARLY_MAX = 1_000
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
    """A socket has shown who it is. `connection` is fresh; `token` is what it may come back with."""

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


class Stalled(msgspec.Struct, frozen=True):
    """The socket has enough to take for now."""


class Room(msgspec.Struct, frozen=True):
    """It takes more again."""


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


class _Waiting(NamedTuple):
    """Who hears what became of a commit."""

    done: Done
    failed: Failed


class Hub:
    """A machine. `random` gives as many fresh bytes as it is asked for. `tail` is the place up to which every session
    has been served, `head` the end of the stream when the sessions were read."""

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
        self.stream = self.name = stream_of(hub)
        self.options = options or HubOptions()
        self.accepted, self.repeated = accepted_event(hub), repeated_event(hub)
        self.roster = Roster()
        for session in sessions:
            # what was sent before is not known any more; it cannot have been more than there was
            session.sent = max(session.sent, head)
            self.roster.add(session)
        self.epoch, self.tail, self._boot = tail.epoch, tail.offset, head
        self._clients, self._service = Clients(self), Service(self)
        self._random = random
        self._sockets: dict[str, Session] = {}
        self._ahead: dict[int, Append] = {}
        self._bodies: dict[str, bytes] = {}
        self._looks: dict[int, list[Callable[[Record | None], None]]] = {}
        self._reading: int | None = None
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
                self._drop(session, now)
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
            case ReadDone(records=records, after=after):
                self._looked(after, records[0] if records else None)
                if self._is_ours(after):
                    self._read_done(records, now)
            case ReadTrimmed(first=first, after=after):
                self._looked(after, None)
                if self._is_ours(after):
                    self.tail = max(self.tail, first.offset - 1)
                    self._read()
            case ReadFailed(error=error, after=after):
                self._looked(after, None)
                if self._is_ours(after):
                    self.notify("hub-read", error.message)
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
            self._flush()
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
                self._clients.commit_staged(session)
            if session.out and session.peer is not None:
                self._effects.append(Send(session.peer, Write(session.out)))
                session.out = []
        if self._dirty and self._flush_at is None:
            self._flush_at = now + FLUSH_S
        effects, self._effects = self._effects, []
        return effects

    def mint(self, now: float) -> str:
        return mint_id(now, self._random(10))

    def notify(self, topic: str, detail: str) -> None:
        self._effects.append(Notify(topic, f"{self.stream}: {detail}"))

    # -- commits

    def commit(self, ops: Iterable[Op], done: Done, failed: Failed, chain: str | None = None) -> None:
        self._token += 1
        self._waiting[self._token] = _Waiting(done, failed)
        self._effects.append(Commit(tuple(ops), self._token, chain))

    def commit_for(
        self,
        session: Session,
        appends: Sequence[Append],
        puts: Sequence[Put],
        done: Done,
        failed: Callable[[Failure], None],
        more: Sequence[Log | PutBlob] = (),
    ) -> None:
        """In the name of a session, after what was committed for it before. If somebody else has the session by now, it
        is let go of. If nobody can say whether it happened, only the store can: the hub begins anew from it."""
        generation = session.generation

        def on_done(results: tuple[Result, ...], now: float) -> None:
            for put, result in zip(puts, results[len(appends) :], strict=False):
                session.stored(put, result)
            if appends:
                self.take_own(appends, results, now)
            done(results, now)

        def on_failed(failure: Failure, now: float) -> None:
            if isinstance(failure, CommitUnknown):
                self._begin_anew()
                return
            if any(isinstance(each, Conflict) for each in failure.results):
                self.drop_bodies(appends)
                self._lose(session)
                return
            if session.generation == generation:
                session.fall_back()
            self.drop_bodies(appends)
            failed(failure)

        self.commit((*appends, *puts, *more), on_done, on_failed, session.id)

    def _begin_anew(self) -> None:
        """The clients come back, and find what the store holds."""
        for session in list(self._sockets.values()):
            self.shut(session, CloseCode.INTERNAL, "the store did not answer")
        self._effects.append(Close("reload"))

    def _lose(self, session: Session) -> None:
        """Another node has it, and its client will be there."""
        self.shut(session, CloseCode.INTERNAL, "the session is not here any more")
        self.roster.remove(session)
        self._dirty.pop(session.id, None)

    # -- sockets

    def _hear(self, peer: str, told: object, now: float) -> None:
        match told:
            case Frames(requests=requests):
                session = self._sockets.get(peer)
                if session is None:
                    # it was shut, or belongs to a hub that was here before this one: let it come back
                    self._effects.append(Send(peer, Shut(CloseCode.GOING_AWAY, "this session is not open")))
                    return
                self.touch(session)
                self._ask(session, requests, now)
            case Stalled() | Room():
                self._stall(peer, isinstance(told, Stalled), now)
            case Open():
                self._open(peer, told, now)
            case Resume(connection=connection):
                self._resume(peer, connection)
            case Gone(code=code):
                self._gone(peer, code, now)
            case _ if isinstance(told, Call):
                self._service.hear(peer, told, now)

    def _ask(self, session: Session, requests: Sequence[Request], now: float) -> None:
        if session.early is None:
            self._clients.hear(session, requests, now)
        elif len(session.early) + len(requests) > EARLY_MAX:
            self.shut(session, CloseCode.POLICY, "wait for connected before you ask for so much")
        else:
            session.early += requests

    def answer(self, peer: str, answer: Answer) -> None:
        self._effects.append(Send(peer, answer))

    def touch(self, session: Session) -> None:
        self._touched[session.id] = session

    def tell(self, session: Session, response: Response) -> None:
        if session.peer is not None:
            encoded = codec_for(session.subprotocol).encode(response)
            if encoded is not None:
                session.out.append(frame(encoded))
                self._touched[session.id] = session

    def shut(self, session: Session, code: CloseCode, reason: str) -> None:
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
        groups = dict.fromkeys(asked.groups, start)
        row = SessionRow(asked.user, asked.subprotocol, self.node, start, asked.permissions, groups, state=asked.state)
        session = Session(asked.connection, row, AcksRow(start, ()), 0, 0)
        session.peer, session.early, session.is_stalled = peer, [], True
        self._sockets[peer] = session
        self.roster.add(session)
        puts = (session.put_row(self.hub, row), session.put_acks(self.hub))
        came = self._presence(RecordKind.OPEN, session, now)

        def done(results: tuple[Result, ...], now: float) -> None:
            session.row_version, session.acks_version = session.row_stored, session.acks_stored
            self.tell(session, Connected(session.id, session.user, asked.token))
            session.is_stalled = False
            session.catch_up()
            self.touch(session)
            early, session.early = session.early or (), None
            self._clients.hear(session, early, now)

        def failed(failure: Failure) -> None:
            self.roster.remove(session)
            self.shut(session, CloseCode.INTERNAL, "the store cannot take the session now")

        self.commit_for(session, (came,), puts, done, failed)

    def _presence(self, kind: RecordKind, session: Session, now: float) -> Append:
        return presence(self.stream, kind, session.id, session.user, round(now * 1e6), self.mint(now))

    def _resume(self, peer: str, connection: str) -> None:
        session = self.roster.get(connection)
        if session is None or not session.is_reliable:
            self._effects.append(Send(peer, Shut(CloseCode.POLICY, "there is no such session any more")))
            return
        if session.peer is not None:
            self.shut(session, CloseCode.GOING_AWAY, "another socket has taken over")
        session.peer, session.dropped_at, session.is_stalled = peer, None, False
        self._sockets[peer] = session
        self.touch(session)
        session.out.clear()
        session.replay()

    def _stall(self, peer: str, is_stalled: bool, now: float) -> None:
        """What a reliable client has no room for waits in its queue. A plain one has none, and is too slow."""
        session = self._sockets.get(peer)
        if session is None or session.early is not None:
            return
        if is_stalled and not session.is_reliable:
            self.notify("slow-client", f"{session.id} takes less than it is sent")
            self.shut(session, CloseCode.POLICY, "the client is too slow")
            self.close(session, Kind.DISCARDED, "the client is too slow", now)
            return
        session.is_stalled = is_stalled
        if not is_stalled:
            session.catch_up()
            self.touch(session)

    def _gone(self, peer: str, code: int | None, now: float) -> None:
        session = self._sockets.pop(peer, None)
        if session is None:
            return
        session.peer = None
        session.out.clear()
        if code == CloseCode.NORMAL or not session.is_reliable:
            self.close(session, Kind.CANCELLED, "the client closed the connection", now)
        else:
            self._drop(session, now)

    def _drop(self, session: Session, now: float) -> None:
        session.dropped_at = now
        heappush(self._expiries, (now + self.options.recovery_s, session.id))

    def _expire(self, connection: str, now: float) -> None:
        session = self.roster.get(connection)
        if session is None or session.dropped_at is None:
            return
        if session.dropped_at + self.options.recovery_s <= now:
            self.close(session, Kind.EXPIRED, "the client did not come back in time", now)

    def close(
        self,
        session: Session,
        kind: Kind,
        reason: str,
        now: float,
        then: Callable[[Failure | None], None] | None = None,
    ) -> None:
        """The session ends, and what it has not acknowledged with it: the ledger says so. `then` hears whether that is
        in the store."""
        self.roster.remove(session)
        self._dirty.pop(session.id, None)
        went = self._presence(RecordKind.CLOSE, session, now)
        rows = [Put(key(self.hub, session.id), None) for key in (session_key, acks_key)]
        log = [Log(self._told(session, session.confirmed))] if session.confirmed is not None else []
        if session.queue:
            log.append(Log(self._told(session, Confirmed.of(session.queue), kind, reason)))

        def done(results: tuple[Result, ...], now: float) -> None:
            self.take_own((went,), results, now)
            if then is not None:
                then(None)

        def failed(failure: Failure, now: float) -> None:
            self.notify("session-close", f"{session.id} is not closed in the store: {why(failure)}")
            if then is not None:
                then(failure)

        self.commit((went, *rows, *log), done, failed, session.id)

    def _overflow(self, session: Session, now: float) -> None:
        reason = f"{len(session.queue):,} messages are not acknowledged"
        self.notify("backlog", f"{session.id} is closed, {reason}")
        self.tell(session, Disconnected(reason))
        self.shut(session, CloseCode.POLICY, reason)
        self.close(session, Kind.DISCARDED, reason, now)

    def acknowledge(self, session: Session, offset: int, now: float) -> None:
        """Of what was never sent, nothing can have been received: who says so is not believed."""
        if not session.is_reliable or offset <= session.acked:
            return
        if offset > session.sent:
            reason = f"{offset} is acknowledged, but {session.sent} is the last one sent"
            self.shut(session, CloseCode.POLICY, reason)
            self._drop(session, now)
            return
        session.acknowledge(offset)
        self._dirty[session.id] = session

    # -- groups

    def change_group(
        self,
        session: Session,
        group: str,
        kind: RecordKind,
        now: float,
        then: Callable[[Sequence[Put]], None],
        failed: Callable[[Failure], None],
    ) -> None:
        """A record in the stream says from where on it holds. Where that is is known only when the record is durable,
        so the row that says it is a commit after it, which `then` has to make: nobody was told before."""
        record = membership(self.stream, kind, group, session.id, session.user, round(now * 1e6), self.mint(now))

        def done(results: tuple[Result, ...], now: float) -> None:
            [result] = results
            assert isinstance(result, Fresh)
            row = session.row()
            groups = dict(row.groups)
            if kind is RecordKind.JOIN:
                groups.setdefault(group, result.position.offset)
            else:
                groups.pop(group, None)
            then((session.put_row(self.hub, msgspec.structs.replace(row, groups=groups)),))

        self.commit_for(session, (record,), (), done, failed)

    # -- the stream

    def take_own(self, appends: Sequence[Append], results: Sequence[Result], now: float) -> None:
        """Records of our own: delivered in their turn."""
        fresh = []
        for append, result in zip(appends, results, strict=False):
            if type(result) is Fresh:
                fresh.append((result.position.offset, append))
            else:
                self.drop_bodies((append,))
        self._take_in(fresh, now)

    def _take_in(self, found: Iterable[tuple[int, Append]], now: float) -> None:
        for offset, append in found:
            if offset == self.tail + 1:
                self._fold(offset, append, now)
            elif offset > self.tail:
                self._ahead[offset] = append
        if not self._ahead:
            return
        while (following := self._ahead.get(self.tail + 1)) is not None:
            self._fold(self.tail + 1, following, now)
        self._ahead = {offset: append for offset, append in self._ahead.items() if offset > self.tail}
        if self._ahead:
            if len(self._ahead) > AHEAD_MAX:
                self._ahead = {}
            self._read()

    def _fold(self, offset: int, append: Append, now: float) -> None:
        self.tail = offset
        kind = append.kind
        if kind is RecordKind.MESSAGE:
            blob = append.envelope.blob
            body = self._bodies.pop(blob.name, None) if blob is not None else None
            if blob is not None and body is None:
                self.notify("hub-body", f"the body of {append.envelope.id} is gone")
            else:
                self._fan_out(Entry(offset, append, body), now)
        elif offset > self._boot and (kind is RecordKind.JOIN or kind is RecordKind.LEAVE):
            self._change_member(kind, append, offset)
        if offset == self._boot:
            self.roster.forget_stays()

    def _change_member(self, kind: RecordKind, append: Append, offset: int) -> None:
        """What was so when the sessions were read is in their rows; a change that is not had not been promised."""
        session = self.roster.get(append.envelope.source)
        if session is not None:
            change = self.roster.join if kind is RecordKind.JOIN else self.roster.leave
            change(session, append.target[2:], offset)

    def _fan_out(self, entry: Entry, now: float) -> None:
        receivers = self.roster.receivers(entry.target, entry.offset)
        if entry.terms is not NO_TERMS:
            receivers = _chosen(receivers, entry, now)
        offset, count_max, bytes_max = entry.offset, self.options.backlog_count, self.options.backlog_bytes
        for session in receivers:
            if offset <= session.acked:
                continue
            session.push(entry)
            self._touched[session.id] = session
            if len(session.queue) > count_max or session.queue_bytes > bytes_max:
                self._overflow(session, now)

    def keep_body(self, body: bytes, now: float) -> tuple[Blob | None, list[PutBlob]]:
        """What stands in the row for a body that is too large for it, and its chunks. It is kept until it is
        delivered."""
        if len(body) <= DATA_INLINE_BYTES_MAX:
            return None, []
        blob = Blob(f"{self.stream}/{self.mint(now)}", len(body))
        self._bodies[blob.name] = body
        return blob, chunks_of(blob, body)

    def drop_bodies(self, appends: Iterable[Append]) -> None:
        """They will not be delivered."""
        for append in appends:
            if append.envelope.blob is not None:
                self._bodies.pop(append.envelope.blob.name, None)

    def _read_done(self, records: Sequence[Record], now: float) -> None:
        for record in records:
            if record.body is not None and record.envelope.blob is not None and record.position.offset > self.tail:
                self._bodies[record.envelope.blob.name] = record.body
        # what a read gives follows on what is known, also where a new epoch has left a gap in the numbers
        for record in records:
            if record.position.offset > self.tail:
                self._fold(record.position.offset, of_record(record), now)
        self._take_in((), now)
        if len(records) == READ_ROWS or self._ahead or (records and self.tail < self._boot):
            self._read()

    def _read(self) -> None:
        if self._reading is None:
            self._reading = self.tail
            after = Position(self.stream, self.epoch, self.tail)
            self._effects.append(Read(self.stream, after, READ_ROWS, wait=False, bodies=True))

    def _is_ours(self, after: Position | None) -> bool:
        """Whether this is the end of a read that goes on with the stream."""
        if after is None or after.offset != self._reading:
            return False
        self._reading = None
        return True

    def look_at(self, position: Position, tell: Callable[[Record | None], None]) -> None:
        """Read one record again. None if it is gone."""
        before = msgspec.structs.replace(position, offset=position.offset - 1)
        self._looks.setdefault(before.offset, []).append(tell)
        self._effects.append(Read(self.stream, before, 1, wait=False, bodies=True))

    def _looked(self, after: Position | None, found: Record | None) -> None:
        for tell in self._looks.pop(after.offset, ()) if after is not None else ():
            tell(found)

    def _look_for_others(self) -> None:
        """A commit that we know of explains the wake; what others put between is seen as a gap."""
        is_explained, self._own_commits = self._own_commits > 0, 0
        if not is_explained:
            self._read()

    # -- what is written down later

    def _flush(self) -> None:
        """How far clients have acknowledged. What is lost of it in a crash is sent again and dropped by the client."""
        self._flush_at = None
        dirty, self._dirty = self._dirty, {}
        for session in dirty.values():
            log = [Log(self._told(session, session.confirmed))] if session.confirmed is not None else []
            session.confirmed = None
            self.commit_for(session, (), (session.put_acks(self.hub),), nothing_more, self._not_flushed, more=log)

    def _not_flushed(self, failure: Failure) -> None:
        self.notify("hub-flush", why(failure))

    def _told(
        self, session: Session, range: Confirmed, kind: Kind = Kind.CONFIRMED, cause: str | None = None
    ) -> LedgerEvent:
        return LedgerEvent(
            kind, f"{self.stream}>sub", peer=session.id, stream=self.stream, epoch=self.epoch, first=range.first,
            last=range.last, n=range.n, fold=range.fold, cause=cause,
        )  # fmt: skip

    def _trim(self, now: float) -> None:
        """Give up what nobody needs any more. A read that failed is made again here, if nothing else did."""
        self._trim_at = now + self.options.trim_s
        if self._ahead or self.tail < self._boot:
            self._read()
        floor = min((session.floor(self.tail) for session in self.roster), default=self.tail)
        if floor <= self._floor:
            return
        self._floor = floor
        cursor = floor_cursor(self.hub, self.node)
        ops = (Advance(cursor, Position(self.stream, self.epoch, floor)), Trim(self.stream, floor + 1))
        self.commit(ops, nothing_more, lambda failure, now: self.notify("hub-trim", why(failure)))


def floor_cursor(hub: str, node: str) -> str:
    """Up to here nobody on the node needs a record any more. It pins the rest."""
    return f"{stream_of(hub)}/floor/{node}"


def _chosen(receivers: Iterable[Session], entry: Entry, now: float) -> Iterable[Session]:
    terms = entry.terms
    if terms.expires is not None and terms.expires <= now * 1e6:
        return ()
    left_out = {*terms.excluded, *([entry.envelope.source] if terms.no_echo else [])}
    chosen = [session for session in receivers if session.id not in left_out]
    if terms.filter is None:
        return chosen
    asked = parse(terms.filter)
    return [session for session in chosen if asked.matches(session)]
