"""One hub on one node: takes what clients and services ask, makes it durable, and delivers what the stream holds.

The hub only wires its parts together and hands each event to the one that it is for. The parts know each other by their
constructors, never the hub:

    in          admission     what sockets report, and who may come in
                clients       what clients ask, and publishing; groups, streams and group_state do the rest
                service       what REST and commands ask; commands and orders do it
                events        what is handed to event handlers, and their answers
    the store   context       commits and loads, and whose they are; commits in the name of a session
    out         tail          the records of the stream, in the order of their offsets
                delivery      messages to the sessions that they are for; ack_flush: what those acknowledge
                applier       what every other record changes
                outgoing      what is written to sockets, and the answers to ackIds
    sessions    sessions      how they begin; closing: how they end; endings: ends that are not in the store yet
                roster        which there are: here, elsewhere, on their way, and those only a newer Semel can read
                catchup       what they have missed; spills: what a silent client is owed leaves the stream
    nodes       nodes         who lives; takeover, lost_sessions: whose session it is; floors: what is still needed
                read_barrier  questions about sessions wait until the stream was read to its end

What this node has committed itself need not be read again if no record of another node stands before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Protocol

import msgspec

from semel.errors import EpochChanged
from semel.kernel.effects import (
    CommitFailed,
    Committed,
    CommitUnknown,
    Effect,
    Event,
    Loaded,
    LoadedAll,
    LoadedHead,
    LoadFailed,
    ReadDone,
    ReadFailed,
    ReadTrimmed,
    Received,
    Wake,
)
from semel.kernel.position import Position
from semel.pubsub.events.handler_calls import Fetched, Replied
from semel.pubsub.events.handlers import Handlers
from semel.pubsub.events.queue import Events
from semel.pubsub.hub.ack_flush import AckFlush
from semel.pubsub.hub.admission import Admission, SocketEvent
from semel.pubsub.hub.applier import Applier
from semel.pubsub.hub.calls import Call
from semel.pubsub.hub.catchup import CatchUp
from semel.pubsub.hub.clients import Clients, Publishing
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.commands import Commands
from semel.pubsub.hub.context import HubContext, HubOptions, SessionCommits
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.endings import CatchingUp, Endings
from semel.pubsub.hub.floors import Floors
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.groups import Groups
from semel.pubsub.hub.idempotency import Keys
from semel.pubsub.hub.lost_sessions import LostSessions
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.nodes import Nodes
from semel.pubsub.hub.orders import NodeCommands
from semel.pubsub.hub.outgoing import ClientAcks, Outgoing
from semel.pubsub.hub.read_barrier import ReadBarrier
from semel.pubsub.hub.roster import Arrivals, Elsewhere, Here, Roster, UnreadableSessions
from semel.pubsub.hub.service import Service
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.sessions import Sessions
from semel.pubsub.hub.sockets import ALL, Frames, HubRestarted
from semel.pubsub.hub.spills import Spills
from semel.pubsub.hub.streams import Streams
from semel.pubsub.hub.tail import Tail
from semel.pubsub.hub.takeover import TakeOver


class Upkeep:
    """At regular times a hub tries again what the store did not do, and trims what nobody needs. It also looks whether
    there is more to read: nothing may depend on being woken, or on the answer to every commit."""

    def __init__(
        self,
        context: HubContext,
        lease: NodeLease,
        tail: Tail,
        floors: Floors,
        closing: Closing,
        spills: Spills,
        missing: LostSessions,
        catch_up: CatchUp,
    ) -> None:
        self._context, self._lease, self._tail, self._floors = context, lease, tail, floors
        self._closing, self._spills, self._missing, self._catch_up = closing, spills, missing, catch_up
        self._at: float | None = None

    def start(self, now: float) -> None:
        self._at = now + self._context.options.trim_s

    def next_deadline(self) -> float | None:
        return self._at

    def on_timer(self, now: float) -> None:
        if self._at is None or self._at > now:
            return
        self._at = now + self._context.options.trim_s
        self._closing.try_again(now)
        self._spills.try_again()
        self._missing.try_again()
        self._catch_up.try_again()
        self._tail.read_on()
        if self._lease.is_held:
            self._floors.update()


__all__ = ["Hub", "HubOptions"]

LOOK_BACK = 2_000
"""How many records before the end of the stream a node of several begins."""


class _Timed(Protocol):
    """A part of the hub that has something to do at times."""

    def next_deadline(self) -> float | None: ...

    def on_timer(self, now: float) -> None: ...


class Hub:
    """A machine. `random` gives as many fresh bytes as it is asked for. `head` is the end of the stream when the
    sessions were read, `floor` where this node began to need it. `sessions_elsewhere` are those of other nodes."""

    def __init__(
        self,
        hub: str,
        node: str,
        head: Position,
        floor: int,
        sessions: Iterable[Session],
        sessions_elsewhere: Iterable[Elsewhere],
        random: Callable[[int], bytes],
        options: HubOptions | None = None,
        handlers: Handlers | None = None,
    ) -> None:
        context = self.context = HubContext(hub, node, head, random, options)
        self.name, self.counts = context.stream, context.counts
        is_shared, rows = context.options.is_shared, context.options.read_rows
        lease = self._lease = NodeLease(f"{context.stream}/nodes", node, is_shared)

        # who is where
        roster, elsewhere = self.roster, self.elsewhere = Here(), Roster[Elsewhere]()
        for each in sessions_elsewhere:
            elsewhere.add(each)
        arrivals, endings = self.arrivals, self.endings = Arrivals(), Endings()
        behind = CatchingUp()
        left_out = self.left_out = UnreadableSessions(context)
        self._restored = tuple(sessions)

        # the stream and the sockets
        outgoing = self.outgoing = Outgoing(context)
        tail = self.tail = Tail(_look_back(head) if is_shared else head, context.effects.append, rows)
        current = self.current = ReadBarrier(context, tail)
        floors = self.floors = Floors(context, lease, tail, roster, endings, left_out, floor)
        commits = self._commits = SessionCommits(context, tail)
        acks, client_acks = AckFlush(context, commits, roster), ClientAcks(context, outgoing)
        self._acks = acks

        # what sessions do
        streams = Streams(context, outgoing, tail, commits, roster)
        closing = self.closing = Closing(
            context, outgoing, tail, roster, arrivals, endings, left_out, behind, acks, streams
        )
        events = self.events = Events(
            context, outgoing, tail, roster, elsewhere, commits, client_acks, closing, handlers or Handlers(hub)
        )
        delivery = Delivery(context, outgoing, roster, acks, closing)
        spills = self.spills = Spills(context, lease, tail, roster, acks)
        catch_up = self._catch_up = CatchUp(context, tail, roster, behind, spills, acks, delivery, closing)
        publishing = self._publishing = Publishing(context, tail, commits, client_acks, streams, closing)
        groups = Groups(context, tail, commits, client_acks, events)
        states = self.group_states = GroupStates(context, outgoing, roster, commits, client_acks, current)
        clients = self._clients = Clients(outgoing, client_acks, publishing, delivery, groups, streams, states, events)
        self._sessions = Sessions(
            context, lease, outgoing, tail, roster, elsewhere, arrivals, commits, clients, delivery, catch_up, closing,
            streams, states, events,
        )  # fmt: skip

        # what the server side and other nodes do
        take_over = self.take_over = TakeOver(
            context, outgoing, tail, roster, elsewhere, arrivals, floors, spills, self._sessions, closing, clients
        )
        missing = LostSessions(context, roster, elsewhere, current, closing, take_over)
        commands = self._commands = Commands(
            context, outgoing, tail, roster, elsewhere, arrivals, endings, closing, commits, groups
        )
        orders = self.orders = NodeCommands(context, tail, current, commands)
        keys = self._keys = Keys(context)
        self._service = Service(context, tail, roster, elsewhere, arrivals, endings, current, keys, commands, orders)
        self._admission = Admission(
            context, lease, outgoing, roster, endings, left_out, self._sessions, take_over, clients, closing, delivery,
            states,
        )  # fmt: skip
        self._nodes = Nodes(context, lease, floors, current, take_over, self._admission.admit_waiting)
        self._upkeep = Upkeep(context, lease, tail, floors, closing, spills, missing, catch_up)
        self._applier = Applier(context, roster, elsewhere, endings, current, delivery, closing, states, orders)

        # where two parts call each other, the one that was made first gets the other here
        tail.on_messages, tail.listener = delivery.on_messages, self._applier
        commits.on_refused = missing.on_refused
        closing.events, closing.on_missing = events, missing.add
        context.on_restart = (outgoing.close_all, take_over.abandon, orders.abandon, current.abandon)

        self._timed: tuple[_Timed, ...] = (
            acks, spills, self._upkeep, current, orders, events, streams, keys,
            *((self._nodes,) if is_shared else ()), closing,
        )  # fmt: skip

    # -- the machine

    def start(self, now: float) -> Sequence[Effect]:
        """Nobody has a socket yet: the time for coming back begins now, however long the node was away."""
        self.context.send(ALL, HubRestarted())
        for session in self._restored:
            self._sessions.restore(session, now)
        self._restored = ()
        self.spills.start(now)
        self._upkeep.start(now)
        self._keys.start(now)
        if self.context.options.is_shared:
            self._nodes.start(now)
        self.tail.read_on()
        return self._end(now)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if self._is_over(now):
            return self._end(now)
        match event:
            case Received(peer=peer, message=Frames(requests=requests)):
                session = self.outgoing.open_session(peer)
                if session is not None:
                    self._clients.handle(session, requests, now)
                else:
                    self._admission.receive_early(peer, requests, now)
            case Received(peer=peer, message=message):
                self._receive_message(peer, message, now)
            case Committed():
                self.context.committed(event, now)
            case CommitFailed() | CommitUnknown():
                self.context.commit_failed(event, now)
            case ReadFailed(error=EpochChanged() as error):
                self._applier.restart_in_new_epoch(error.message)
            case ReadDone() | ReadTrimmed() | ReadFailed():
                if isinstance(event, ReadFailed):
                    self.context.notify("hub-read", event.error.message, is_store=True)
                self.tail.receive_read(event, now)
            case Loaded() | LoadedAll() | LoadFailed():
                self.context.loaded(event, now)
            case LoadedHead(head=head):
                self.context.end_loaded(head, now)
            case Wake(is_own=False):
                self.tail.read_on()
        return self._end(now)

    def _receive_message(self, peer: str, message: object, now: float) -> None:
        if isinstance(message, SocketEvent):
            self._admission.receive(peer, message, now)
        elif isinstance(message, Replied | Fetched):
            self.events.receive(message, now)
        elif isinstance(message, Call):
            self._service.handle(peer, message, now)

    def next_deadline(self) -> float | None:
        times = [part.next_deadline() for part in self._timed]
        return min((at for at in times if at is not None), default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        if self._is_over(now):
            return self._end(now)
        for part in self._timed:
            part.on_timer(now)
        return self._end(now)

    def _is_over(self, now: float) -> bool:
        """A node that was asleep for too long does not continue where it was."""
        if not self._lease.has_run_out(now):
            return False
        self.context.restart("the node was not heard of for too long")
        return True

    def _end(self, now: float) -> Sequence[Effect]:
        """What was staged and written while one event was handled goes out together."""
        self._catch_up.continue_reading()
        self.orders.try_moved_again(now)
        for session in self._commits.take_staged():
            self._publishing.commit_staged(session)
        self.outgoing.flush()
        self._acks.plan(now)
        return self.context.take_effects()

    # -- for whoever looks on

    @property
    def node(self) -> str:
        return self.context.node

    @property
    def is_in(self) -> bool:
        """Whether it may have sessions: it is the only node, or the others know that it lives."""
        return self._lease.is_held

    def in_flight(self) -> dict[str, int]:
        """How much of what was begun is not finished, by part. All are 0 in a hub at rest without sessions."""
        counted: dict[str, Sized] = {
            "sessions": self.roster, "elsewhere": self.elsewhere, "arrivals": self.arrivals, "endings": self.endings,
            "take-overs": self.take_over, "floors": self.floors, "permissions": self._commands, "spills": self.spills,
            "store": self.context, "acks": self._acks, "orders": self.orders, "current": self.current,
            "tail": self.tail,
        }  # fmt: skip
        return {name: len(part) for name, part in counted.items()}


def _look_back(head: Position) -> Position:
    """Other nodes write rows a moment after the records that belong to them, so rows may not have been there yet when
    they were read: the last records are applied again. A single node has no such gap, and begins at the end."""
    return msgspec.structs.replace(head, offset=max(0, head.offset - LOOK_BACK))
