"""One hub on one node: takes what clients and services say, makes it durable, and hands on what the stream says.

    clients     what the sessions ask (`clients.py`)
    service     what REST and commands ask (`service.py`)
    events      what is told to event handlers, and what they answer (`events.py`)
    streams     messages in parts (`streams.py`)
    states      what members say of themselves in a group (`group_state.py`)
    tail        the records in the order of their offsets (`tail.py`)
    delivery    each of them to those who were there at that place, and what they acknowledge (`delivery.py`)
    sessions    opened, recovered, dropped and ended; they survive their sockets and this process (`sessions.py`)
    arrivals    sessions that are on their way into the store, or to this node (`arrivals.py`)
    endings     sessions that are over here, until the store says so too (`endings.py`)
    left-out    sessions that only a newer Semel can read (`left_out.py`)
    catch-up    what sessions have missed (`catchup.py`)
    spills      what is not acknowledged for so long that the stream need not keep it for them (`spills.py`)
    nodes       who lives, and whose sessions have to be taken over (`nodes.py`, `takeover.py`, `orders.py`)

Delivery never comes from a publish but from the stream. What this node has committed itself need not be read again if
nothing of another node stands before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

import msgspec

from semel.errors import EpochChanged
from semel.kernel.effects import (
    Close,
    Commit,
    CommitFailed,
    Committed,
    CommitUnknown,
    Effect,
    Event,
    Load,
    LoadAll,
    Loaded,
    LoadedAll,
    LoadedHead,
    LoadFailed,
    LoadHead,
    Notify,
    ReadDone,
    ReadFailed,
    ReadTrimmed,
    Received,
    Send,
    Wake,
)
from semel.kernel.envelope import Blob, mint_id
from semel.kernel.lease import Guard
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Fresh, Op, Put, PutBlob, Result
from semel.kernel.position import Position
from semel.kernel.text import clean_cause
from semel.pubsub.events.handler_calls import Fetched, Replied
from semel.pubsub.events.handlers import Handlers
from semel.pubsub.events.queue import Events
from semel.pubsub.hub.arrivals import Arrivals
from semel.pubsub.hub.asking import Asking
from semel.pubsub.hub.calls import Answer, Call
from semel.pubsub.hub.catchup import CatchUp
from semel.pubsub.hub.clients import Clients
from semel.pubsub.hub.commits import Done, Failed, Failure, is_conflict, is_trouble, why
from semel.pubsub.hub.counts import Counts
from semel.pubsub.hub.current import Current
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.endings import Endings
from semel.pubsub.hub.floors import Floors
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.idempotency import Keys
from semel.pubsub.hub.left_out import LeftOut
from semel.pubsub.hub.nodes import Nodes
from semel.pubsub.hub.orders import Orders
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.record_kinds import RecordKind
from semel.pubsub.hub.records import (
    accepted_event,
    membership,
    opened_on,
    repeated_event,
    stream_of,
)
from semel.pubsub.hub.roster import Elsewhere, Here, Roster
from semel.pubsub.hub.runs import Run, runs_of
from semel.pubsub.hub.service import Service
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.sessions import Sessions
from semel.pubsub.hub.sockets import ALL, Anew, Frames, Gone, Open, Resume, Room, Shut, Stalled
from semel.pubsub.hub.spills import Spills
from semel.pubsub.hub.streams import Streams
from semel.pubsub.hub.tail import READ_ROWS, Tail
from semel.pubsub.hub.takeover import HELD_BYTES_MAX, TakeOver
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.messages import CloseCode, Request, Response, weigh
from semel.pubsub.protocol.wire import frame

EARLY_MAX = 1_000
LOOK_BACK = 2_000
"""How many records before the end of the stream a node begins that is not alone."""
EARLY_BYTES_MAX = 4 * 1024 * 1024
"""What a client may say before its session is durable. Who comes back says again what was not answered: that may be
more."""


@dataclass(frozen=True, slots=True)
class HubOptions:
    """`recovery_s`: how long a session waits for its client. The backlog is what a client has not acknowledged.
    `backlog_age_s`: what it leaves unacknowledged for longer goes into rows of its session, and the stream moves on.
    `is_shared`: other nodes may use the store at the same time; one that is silent for `lease_s` is taken for dead.
    `read_rows`: how many records are read at once."""

    recovery_s: float = 90.0
    backlog_count: int = 100_000
    backlog_bytes: int = 64 * 1024 * 1024
    backlog_age_s: float = 600.0
    trim_s: float = 5.0
    is_shared: bool = False
    lease_s: float = 10.0
    read_rows: int = READ_ROWS


class _Timed(Protocol):
    """A part of the hub that has something to do at times."""

    def next_deadline(self) -> float | None: ...

    def on_timer(self, now: float) -> None: ...


class _Waiting(NamedTuple):
    """Who hears what became of a commit."""

    done: Done
    failed: Failed


class Hub:
    """A machine. `random` gives as many fresh bytes as it is asked for. `head` is the end of the stream when the
    sessions were read, `floor` where this node began to need it. `elsewhere` are the sessions of other nodes."""

    def __init__(
        self,
        hub: str,
        node: str,
        head: Position,
        floor: int,
        sessions: Iterable[Session],
        elsewhere: Iterable[Elsewhere],
        random: Callable[[int], bytes],
        options: HubOptions | None = None,
        handlers: Handlers | None = None,
    ) -> None:
        self.hub, self.node, self.epoch = hub, node, head.epoch
        self.stream = self.name = stream_of(hub)
        self.options = options or HubOptions()
        self.accepted, self.repeated = accepted_event(hub), repeated_event(hub)
        self.roster, self.elsewhere = Here(), Roster[Elsewhere]()
        for each in elsewhere:
            self.elsewhere.add(each)
        self.head = head.offset
        self._effects: list[Effect] = []
        self.outgoing = Outgoing()
        self.tail = Tail(
            _begin_of(head, self.options), self._tell, self._tell_all, self._skip, self._effects.append,
            self.options.read_rows, self._at_end,
        )  # fmt: skip
        self.floors, self.catch_up, self.orders = Floors(self, floor), CatchUp(self), Orders(self)
        self.current = Current(self)
        self.arrivals, self.endings, self.left_out = Arrivals(), Endings(self), LeftOut(self)
        self.spills = Spills(self)
        self.sessions, self.delivery = Sessions(self), Delivery(self)
        self.clients, self.service = Clients(self), Service(self)
        self.keys = Keys(self)
        self.events = Events(self, self.clients, handlers or Handlers(hub))
        self.streams, self.group_states = Streams(self), GroupStates(self, self.clients)
        self.take_over, self._nodes = TakeOver(self), Nodes(self) if self.options.is_shared else None
        self._timed: tuple[_Timed, ...] = (
            self.delivery, self.spills, self.floors, self.current, self.orders, self.events, self.streams, self.keys,
            *((self._nodes,) if self._nodes is not None else ()), self.sessions,
        )  # fmt: skip
        self.counts = Counts()
        self._random = random
        self.sockets: dict[str, Session] = {}
        self._waiting_room: dict[str, list[object]] = {}
        self._tokens = count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._loads = Asking[str | LoadAll, Callable[[Loaded | LoadedAll | LoadFailed, float], None]](self._ask)
        self._complaints: set[str] = set()
        self._told: list[tuple[int, int, Callable[[], None]]] = []
        self._touched: dict[str, Session] = {}
        self._begin_with = tuple(sessions)

    # -- the machine

    def start(self, now: float) -> Sequence[Effect]:
        """Nobody has a socket yet: the time for coming back begins now, however long the node was away."""
        self.send(ALL, Anew())
        for session in self._begin_with:
            # what was sent before is not known any more; it cannot have been more than there was
            session.sent = max(session.sent, self.head)
            self.sessions.begin(session, now)
        self._begin_with = ()
        self.spills.start(now)
        self.floors.start(now)
        self.keys.start(now)
        if self._nodes is not None:
            self._nodes.start(now)
        self.tail.read_on()
        return self._end(now)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if self._is_over(now):
            return self._end(now)
        match event:
            case Received(peer=peer, message=told):
                self._hear(peer, told, now)
            case Committed(token=token, results=results):
                self._complaints.clear()
                self._waiting.pop(token).done(results, now)
            case CommitFailed(token=token) | CommitUnknown(token=token):
                self.counts.failed_commits += 1
                self._waiting.pop(token).failed(event, now)
            case ReadFailed(error=EpochChanged() as error):
                self._end_history(error.message)
            case ReadDone() | ReadTrimmed() | ReadFailed():
                if isinstance(event, ReadFailed):
                    self.notify("hub-read", event.error.message, is_store=True)
                self.tail.heard(event, now)
            case Loaded(key=key) | LoadedAll(asked=key):
                for tell in self._loads.answered(key):
                    tell(event, now)
            case LoadedHead(head=head):
                self.current.found_end(head.offset if head.epoch == self.epoch else None, now)
            case LoadFailed(key=self.stream):
                self.current.found_end(None, now)
            case LoadFailed(key=key):
                failed = [asked for asked in self._loads if key == (asked if isinstance(asked, str) else asked.prefix)]
                for tell in [tell for asked in failed for tell in self._loads.answered(asked)]:
                    tell(event, now)
            case Wake(is_own=False):
                self.tail.read_on()
        return self._end(now)

    def next_deadline(self) -> float | None:
        times = [part.next_deadline() for part in self._timed]
        return min((at for at in times if at is not None), default=None)

    @property
    def is_in(self) -> bool:
        """Whether it may take sessions: it is alone, or the others know that it lives."""
        return self._nodes is None or self._nodes.is_in

    @property
    def guard(self) -> Guard | None:
        """On what may not be written any more once this node is taken for dead."""
        return self._nodes.guard if self._nodes is not None else None

    def _is_over(self, now: float) -> bool:
        """A node that was asleep for too long does not go on where it was."""
        if self._nodes is None or not self._nodes.is_over(now):
            return False
        self.begin_anew("the node was not heard of for too long")
        return True

    def on_timer(self, now: float) -> Sequence[Effect]:
        if self._is_over(now):
            return self._end(now)
        for part in self._timed:
            part.on_timer(now)
        return self._end(now)

    def _end(self, now: float) -> Sequence[Effect]:
        """What was staged and written while one event was handled goes out together."""
        self.catch_up.go_on()
        self.orders.go_on(now)
        touched, self._touched = self._touched, {}
        for session in touched.values():
            if session.staged:
                self.clients.commit_staged(session)
        self._write()
        self.delivery.plan_flush(now)
        effects = list(self._effects)
        self._effects.clear()
        return effects

    def _write(self) -> None:
        write = self.outgoing.take()
        if write is not None:
            self.send(ALL, write)

    def mint(self, now: float) -> str:
        return mint_id(now, self._random(10))

    def complain(self, topic: str, failure: Failure) -> None:
        """The store takes nothing, for however many sessions: said once, until it takes something again."""
        if topic not in self._complaints and not is_conflict(failure):
            self._complaints.add(topic)
            self.report(topic, failure)

    def report(self, topic: str, failure: Failure, what: str = "") -> None:
        detail = f"{what}: {why(failure)}" if what else why(failure)
        self.notify(topic, detail, is_store=is_trouble(failure))

    def notify(self, topic: str, detail: str, *, is_store: bool = False) -> None:
        self._effects.append(Notify(topic, f"{self.stream}: {detail}", is_store=is_store))

    def send(self, peer: str, message: object) -> None:
        self._effects.append(Send(peer, message))

    def answer(self, peer: str, answer: Answer) -> None:
        self.send(peer, answer)

    # -- the store

    def load(self, key: str, tell: Callable[[Loaded | LoadedAll | LoadFailed, float], None]) -> None:
        self._loads.ask(key, tell)

    def load_all(self, asked: LoadAll, tell: Callable[[Loaded | LoadedAll | LoadFailed, float], None]) -> None:
        """If one of several for the same prefix fails, all hear that."""
        self._loads.ask(asked, tell)

    def look_for_end(self) -> None:
        """Of the stream. `current` hears of it."""
        self._effects.append(LoadHead(self.stream))

    def _ask(self, asked: str | LoadAll) -> None:
        self._effects.append(Load(asked) if isinstance(asked, str) else asked)

    def commit(self, ops: Iterable[Op], done: Done, failed: Failed, chain: str | None = None) -> None:
        token = next(self._tokens)
        self._waiting[token] = _Waiting(done, failed)
        self._effects.append(Commit(tuple(ops), token, chain))

    def commit_for(
        self,
        session: Session,
        appends: Sequence[Append],
        puts: Sequence[Put],
        done: Done,
        failed: Callable[[Failure], None],
        more: Sequence[Op] = (),
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
                self.begin_anew("the store did not answer")
                return
            self.drop_bodies(appends)
            if is_conflict(failure):
                self.sessions.refused(session, now)
            elif session.generation == generation:
                session.fall_back()
            failed(failure)

        self.commit((*appends, *puts, *more), on_done, on_failed, session.id)

    def begin_anew(self, reason: str) -> None:
        """The clients come back, and find what the store holds."""
        for session in list(self.sockets.values()):
            self.shut(session, CloseCode.INTERNAL, reason)
        self.take_over.abandon(reason)
        self.orders.abandon(reason)
        self.current.abandon(reason)
        self._effects.append(Close("reload"))

    # -- sockets

    def _hear(self, peer: str, told: object, now: float) -> None:
        if not self.is_in and self._keep_waiting(peer, told):
            return
        match told:
            case Frames(requests=requests):
                session = self.sockets.get(peer)
                if session is None:
                    self._unknown(peer, requests)
                    return
                self.ask(session, requests, now)
            case Stalled() | Room():
                self._stall(peer, isinstance(told, Stalled), now)
            case Open():
                self.sessions.open(peer, told, now)
            case Resume():
                self.sessions.resume(peer, told, now)
            case Gone():
                self._gone(peer, told, now)
            case Replied() | Fetched():
                self.events.hear(told, now)
            case _ if isinstance(told, Call):
                self.service.hear(peer, told, now)

    def _keep_waiting(self, peer: str, told: object) -> bool:
        """Who comes before this node may take sessions waits until it may. False if it is nobody who came."""
        if isinstance(told, Open | Resume):
            self._waiting_room[peer] = [told]
        elif peer not in self._waiting_room:
            return False
        elif isinstance(told, Gone):
            del self._waiting_room[peer]
        elif len(self._waiting_room[peer]) >= EARLY_MAX or _weight(self._waiting_room[peer]) > HELD_BYTES_MAX:
            del self._waiting_room[peer]
            self.shut_peer(peer, CloseCode.INTERNAL, "the node is not ready yet")
        else:
            self._waiting_room[peer].append(told)
        return True

    def let_in(self, now: float) -> None:
        """Those who waited."""
        waiting, self._waiting_room = self._waiting_room, {}
        for peer, all_told in waiting.items():
            for told in all_told:
                self._hear(peer, told, now)

    def _unknown(self, peer: str, requests: Sequence[Request]) -> None:
        """Its session is on its way here; or it was shut, or belongs to a hub that was here before this one: then it
        may come back."""
        if not self.take_over.hold(peer, requests):
            self.shut_peer(peer, CloseCode.GOING_AWAY, "this session is not open")

    def ask(self, session: Session, requests: Sequence[Request], now: float) -> None:
        if session.early is None:
            self.clients.hear(session, requests, now)
        elif len(session.early) + len(requests) > EARLY_MAX or weigh([*session.early, *requests]) > EARLY_BYTES_MAX:
            reason = "wait for connected before you ask for so much"
            self.shut(session, CloseCode.POLICY, reason)
            self.sessions.close(session, Kind.CANCELLED, reason, now)
        else:
            session.early += requests

    def touch(self, session: Session) -> None:
        """What it has staged by the end of this event is committed then."""
        self._touched[session.id] = session

    def tell(self, session: Session, response: Response) -> None:
        if session.peer is not None:
            encoded = codec_for(session.subprotocol).encode(response)
            if encoded is not None:
                self.outgoing.say(session.peer, frame(encoded))

    def tell_taken(self, session: Session, ack_ids: Sequence[int]) -> None:
        if session.peer is not None and ack_ids:
            frames = codec_for(session.subprotocol).ack_frames(ack_ids)
            self.outgoing.say(session.peer, frames, len(ack_ids))

    def shut(self, session: Session, code: CloseCode, reason: str) -> None:
        """What was written before goes out before."""
        if session.peer is None:
            return
        self._write()
        self.send(session.peer, Shut(code, reason))
        self.sockets.pop(session.peer, None)
        session.peer = None

    def shut_peer(self, peer: str, code: CloseCode, reason: str) -> None:
        """Of a socket that has no session here."""
        self.send(peer, Shut(code, reason))

    def _stall(self, peer: str, is_stalled: bool, now: float) -> None:
        """What a reliable client has no room for waits in its queue. A plain one has none, and is too slow."""
        session = self.sockets.get(peer)
        if session is None or session.early is not None:
            return
        if is_stalled and not session.is_reliable:
            self.notify("slow-client", f"{session.id} takes less than it is sent")
            self.shut(session, CloseCode.POLICY, "the client is too slow")
            self.sessions.close(session, Kind.DISCARDED, "the client is too slow", now)
            return
        session.is_stalled = is_stalled
        if not is_stalled:
            self.delivery.catch_up(session, now)
            self.group_states.has_room(session, now)

    def _gone(self, peer: str, told: Gone, now: float) -> None:
        self.take_over.gone(peer)
        session = self.sockets.pop(peer, None)
        if session is None:
            return
        session.peer = None
        if told.code == CloseCode.NORMAL or not session.is_reliable:
            self.sessions.close(session, Kind.CANCELLED, _farewell(told), now)
        else:
            self.sessions.drop(session, now)

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
        so the row that says it is a commit after it, which `then` has to make: nobody was told before. The row is
        written here as well, as it is, to be refused if another node has the session. Not the acks: they would say
        that the ackId was taken."""
        record = membership(self.stream, kind, group, session.id, session.user, round(now * 1e6), self.mint(now))

        def done(results: tuple[Result, ...], now: float) -> None:
            joined = results[0]
            assert isinstance(joined, Fresh)
            session.decide_group(group, joined.position.offset, kind == RecordKind.JOIN, self.tail.offset)
            then((session.put_row(self.hub, session.row()),))
            self.events.look(session.id)

        if kind == RecordKind.JOIN:
            session.groups_wanted.add(group)
            more = self.events.on_join(session, group, now)
        else:
            session.groups_wanted.discard(group)
            more = self.events.on_leave(session, group, now)
        self.commit_for(session, (record,), (session.put_row(self.hub, session.row()),), done, failed, more)

    # -- the stream

    def take_own(self, appends: Sequence[Append], results: Sequence[Result], now: float) -> None:
        if self.tail.is_of_another_epoch(results[: len(appends)]):
            self._end_history("a commit came to stand in another epoch than the hub's")
            return
        self.tail.take_own(appends, results, now)

    def _end_history(self, why: str) -> None:
        """The store has another history than the one that was followed here: a backup, or a database that failed over.
        Somebody else may have noticed first. What the sessions are worth, the rows say that are read anew."""
        self.notify("hub-read", why)
        self.begin_anew("the store has another history")

    def keep_body(self, body: bytes, now: float) -> tuple[Blob | None, list[PutBlob]]:
        return self.tail.keep_body(body, lambda: self.mint(now))

    def drop_bodies(self, appends: Iterable[Append]) -> None:
        self.tail.drop_bodies(appends)

    def when_told(self, offset: int, call: Callable[[], None]) -> None:
        """As soon as the record that stands there has been handed on."""
        if offset <= self.tail.offset:
            call()
        else:
            heappush(self._told, (offset, next(self._tokens), call))

    def _tell(self, offset: int, append: Append, body: bytes | None, now: float) -> None:
        kind = append.kind
        if kind == RecordKind.MESSAGE:
            if append.envelope.blob is not None and body is None:
                self.notify("hub-body", f"the body of {append.envelope.id} is gone")
            else:
                self.delivery.fan_out(Run(offset, (append,), body), now)
        elif kind == RecordKind.JOIN or kind == RecordKind.LEAVE:
            self._change_member(kind, append, offset)
            if kind == RecordKind.LEAVE:
                self.group_states.on_leave(append.envelope.source, append.target[2:], now)
        elif kind == RecordKind.OPEN:
            self._opened(append, offset)
        elif kind == RecordKind.CLOSE:
            self._closed(append.envelope.source)
            self.group_states.on_close(append.envelope.source, now)
        elif kind == RecordKind.STATE:
            self.group_states.fold(offset, append, now)
        elif kind == RecordKind.ORDER or kind == RecordKind.REPLY:
            self.orders.hear(append, offset, now)
        while self._told and self._told[0][0] <= offset:
            heappop(self._told)[2]()

    def _at_end(self, number: int | None, now: float) -> None:
        """Of the stream, as it stood when this read began; or not yet (0), or it cannot be read (None)."""
        self.current.has_read(number, now)
        if number:
            self.group_states.show_missed(now)

    def _skip(self, offset: int, is_first: bool) -> None:
        """What stands before is gone. What the rows were read after is known from them, and a node that is alone knows
        all that there was; but if it has sessions, they may have needed it. And what was told so far may be older than
        the rows: what is gone would have led from there to what they say."""
        if len(self.roster) or (self._nodes is not None and (not is_first or offset > self.head + 1)):
            self.notify("hub-read", f"records before {offset} are gone that sessions may have needed")
            self.begin_anew("messages are missing here")

    def _tell_all(self, first: int, appends: Sequence[Append], now: float) -> None:
        """Messages, one after the other: who gets them changes with other records only, so it is looked up
        once for all that go to the same target. And with the place at which this node began, where the sessions begin
        that came before it had read so far."""
        before = max(0, self.head + 1 - first)
        for run in (*runs_of(first, appends[:before]), *runs_of(first + before, appends[before:])):
            self.delivery.fan_out(run, now)
        while self._told and self._told[0][0] < first + len(appends):
            heappop(self._told)[2]()

    def _change_member(self, kind: int, append: Append, offset: int) -> None:
        """What another node said of a session before it came here is in its row; what is not had not been promised."""
        group, connection = append.target[2:], append.envelope.source
        session = self.roster.get(connection)
        if session is not None:
            if offset > session.opened:
                (self.roster.join if kind == RecordKind.JOIN else self.roster.leave)(session, group, offset)
            return
        other = self.elsewhere.get(connection)
        if other is not None and offset > other.since:
            (self.elsewhere.join if kind == RecordKind.JOIN else self.elsewhere.leave)(other, group, offset)

    def _opened(self, append: Append, offset: int) -> None:
        """Whoever wrote this has the session. One that is here and was opened by others has been taken over."""
        envelope = append.envelope
        node, groups = opened_on(envelope)
        known = self.elsewhere.get(envelope.source)
        is_old = known is not None and offset <= known.since
        if known is not None and not is_old:
            self.elsewhere.remove(known)
        session = self.roster.get(envelope.source)
        if session is not None and session.came is not None:
            session.came = min(session.came, offset)
        self.orders.has_moved(envelope.source, node)
        if node == self.node:
            return
        self.endings.taken(envelope.source, offset)
        if session is not None and offset > session.opened:
            self.sessions.lose(session)
        if not is_old and (session is None or offset > session.opened):
            before = known or session
            if groups is None:
                groups = tuple(before.groups) if before is not None else ()
            self.elsewhere.add(Elsewhere(envelope.source, envelope.subject, node, dict.fromkeys(groups, offset)))

    def _closed(self, connection: str) -> None:
        session, other = self.roster.get(connection), self.elsewhere.get(connection)
        if session is not None:
            self.sessions.lose(session)
        if other is not None:
            self.elsewhere.remove(other)
            self.orders.has_ended(connection)

    def try_again(self, now: float) -> None:
        """Again, if a read has failed, or the end of a session. And look whether there is more: nothing may hang on
        being woken up, or on having heard what became of a commit."""
        self.endings.try_again(now)
        self.spills.try_again()
        self.sessions.try_again()
        self.catch_up.try_again()
        self.tail.read_on()


def _farewell(told: Gone) -> str:
    """Why the client is gone, in its own words if it had any."""
    if told.reason:
        return clean_cause(told.reason)
    return "the client closed the connection" if told.code is not None else "the connection was lost"


def _weight(all_told: Sequence[object]) -> int:
    return sum(weigh(told.requests) for told in all_told if isinstance(told, Frames))


def _begin_of(head: Position, options: HubOptions) -> Position:
    """Rows that other nodes write a moment after the records that they speak of may not have been there yet, so what
    those say is looked at again. Sessions of this node have nothing of the kind: it begins at the end."""
    if not options.is_shared:
        return head
    return msgspec.structs.replace(head, offset=max(0, head.offset - LOOK_BACK))
