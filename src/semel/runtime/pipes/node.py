"""Runs the workers of paths: local delivery between those of one process, TCP or a hub to those of another.

    async with Performer(store) as performer:
        node = PipeNode("berlin", performer, tcp)
        await node.deploy(build(path), here={"A"}, nodes={"B": "madrid"})
        await node.offer("A", envelope)

What a worker sends is gathered until the tick ends and goes out as one parcel per route; its confirms become one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from semel.errors import ConfigError, InputError, LimitExceeded, SemelError, StoreUnavailable, Suspended
from semel.kernel.effects import Close, Notify, PeerConnected, PeerDisconnected, Received
from semel.kernel.envelope import FRAME_BYTES_MAX, Envelope
from semel.kernel.hop import HopMessage
from semel.kernel.retry import RetryPolicy
from semel.pipes.language.options import DedupBy
from semel.pipes.services.channel import Channel, ChannelConfig, Initiator, Spawner, addressed
from semel.pipes.services.publisher import Publisher
from semel.pipes.workers.build import APP, Built, WorkerPlan
from semel.pipes.workers.durable import DurableStage
from semel.pipes.workers.outlet import PACKED_BYTES_MAX
from semel.pipes.workers.route import LOCAL, TRANSPORT, NoRoute, Parcel, Router, ToNode, ToWorker, arrived_from
from semel.pipes.workers.stage import Stage
from semel.runtime.host.hosting import Factory, Handler
from semel.runtime.host.performer import Performer
from semel.runtime.pipes.ports import PARCEL_BODIES_MAX, Port, Takes, first_node
from semel.runtime.transports.base import Inbox, Transport
from semel.runtime.transports.hub import HubTransport
from semel.runtime.transports.tcp import TcpTransport

log = logging.getLogger(__name__)

ROUTE_BYTES = 16 * 1024
"""What is left of a frame for the way that a parcel has before and behind it."""
PACKED_BYTES = 4 * 1024
"""What a pipe around a middle adds to a message when it packs it, and the next pipe around has to carry."""
SMALL_BYTES = 128 * 1024
"""A message without headers and with less data fits everywhere: no need to weigh it exactly."""

OFFERS_MAX = 1_000
"""Messages of the application that wait at once to be stored by a durable worker."""
OFFER_AGAIN_S = 1.0
"""A message of the application that is not stored by then is offered again: nobody else would."""
LOOK_AGAIN_S = 0.25
"""Whoever waits for a worker looks at least this often: a worker that starts again tells nobody."""

_encoder = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class _Offer:
    """A message of the application on its way into the store."""

    envelope: Envelope
    stored: asyncio.Future[None]
    again_at: float


OnMessage = Callable[[Envelope, tuple[str, ...]], None]
"""The application as a worker: called on the loop with a message and the way back to who sent it."""


class PipeNode:
    """The workers of one process. `tcp`, which may be a hub's instead, connects it with others, who know both by one
    name; without it everything is local. `astray` counts parcels that name a worker or a node which is not here, or
    that come from where they cannot come from: they are dropped, and nothing is dialled for them. `parcel_bodies` is
    how many messages may travel as one parcel; 1 gives each a fate of its own on a bad link."""

    def __init__(
        self,
        name: str,
        performer: Performer,
        tcp: TcpTransport | HubTransport | None = None,
        *,
        parcel_bodies: int = PARCEL_BODIES_MAX,
    ) -> None:
        if parcel_bodies < 1:
            raise ConfigError(f"parcel_bodies is {parcel_bodies}", fix="use 1 or more messages in a parcel")
        if tcp is not None and tcp.name != name:
            raise ConfigError(
                f"the node is called {name}, but its transport {tcp.name}", fix="give both the same name: peers see one"
            )
        self.name = name
        self.performer = performer
        self.astray = 0
        self.parcel_bodies = parcel_bodies
        self.ports_to_flush: list[Port] = []
        self._tcp = tcp
        self._ports: dict[str, Port] = {}
        self._listeners: dict[str, OnMessage] = {}
        self._forwarders: set[str] = set()
        self._configured: set[str] = set()
        self._nodes: set[str] = set()
        self._router = Router(_Names(self._ports, self._listeners), self._forwarders, self._nodes)
        self._bytes_max: dict[str, int] = {}
        self._in_session: dict[str, str] = {}
        self._stopped: dict[str, str] = {}
        self._moved = asyncio.Event()
        self._offers: OrderedDict[tuple[str, str], _Offer] = OrderedDict()
        self._again: asyncio.TimerHandle | None = None
        self._flush_due = False
        performer.attach(self)
        performer.observe(self._observed)
        performer.on_room(self._moved.set)
        if tcp is not None:
            tcp.bind(self)

    # -- setting up

    async def deploy(
        self,
        built: Built,
        *,
        here: Collection[str] | None = None,
        nodes: Mapping[str, str] | None = None,
        handler: Handler | None = None,
        inline: bool = False,
        retry: RetryPolicy | None = None,
        report_s: float | None = 1.0,
    ) -> None:
        """Host those workers and forwarders of a path that are `here` (None: all). `nodes` says at which node the
        others are. `handler` is the application's code at the end of the path; a durable worker tries it again as
        `retry` says when it fails. Volatile workers write their counts to the ledger every `report_s` (None: never),
        unless the path was built with a time of its own."""
        places = self._places(built, here, nodes or {})
        mine = [worker for worker in built.workers if places[worker.config.name] == self.name]
        self._check_deploy(built, mine, places, handler)
        self._forwarders.update(name for name in built.forwarders if places[name] == self.name)
        self._configured.update(set(places.values()) - {self.name})
        self._nodes.update(self._configured)
        for worker in reversed(mine):  # whoever sends finds its receiver there
            config = replace(worker.config, report_s=worker.config.report_s or report_s)
            config = config if retry is None else replace(config, handler_retry=retry)
            plan = replace(worker, config=config)
            await self._host(built, plan, places, handler if plan.config.handles else None, inline)

    def _places(self, built: Built, here: Collection[str] | None, nodes: Mapping[str, str]) -> dict[str, str]:
        """Where everything is. A worker that a pipe adds to one of its ends is where that end is."""

        def place(name: str) -> str:
            return self.name if here is None or name in here else nodes.get(name, "")

        names = [*(worker.config.name for worker in built.workers), *built.forwarders]
        places = {name: place(name) or place(name.partition("~")[0]) for name in names}
        lost = sorted(name for name, node in places.items() if not node)
        if lost:
            raise ConfigError(f"nobody says where {', '.join(lost)} is", fix="name its node in nodes=")
        return places

    def _check_deploy(
        self, built: Built, mine: Sequence[WorkerPlan], places: Mapping[str, str], handler: Handler | None
    ) -> None:
        """Everything that can be wrong, before anything is begun."""
        if self._tcp is None and set(places.values()) != {self.name}:
            raise ConfigError(f"{self.name} has no transport to other nodes", fix="pass a transport to PipeNode")
        for worker in mine:
            config = worker.config
            self._check_free(config.name)
            if config.handles and handler is None:
                raise ConfigError(f"{config.name} is where the path ends, and has no handler", fix="pass handler=")
            for outlet in config.outlets:
                if outlet.packs and places[outlet.peer] != self.name:
                    raise ConfigError(f"{outlet.peer} is not where {config.name} is", fix="put both on one node")
        for name in built.forwarders:
            if places[name] == self.name and (name in self._ports or name in self._listeners):
                raise ConfigError(f"{self.name} has a worker {name} already", fix="give the forwarder another name")

    async def _host(
        self, built: Built, worker: WorkerPlan, places: Mapping[str, str], handler: Handler | None, inline: bool
    ) -> None:
        name = worker.config.name
        port = Port(self, name)
        for (sender, receiver), route in built.routes.items():
            if sender == name:
                port.routes[receiver] = self._route([link.receiver for link in route], receiver, built, places)
        for (sender, receiver), route in built.back.items():
            if sender == name:
                port.routes[receiver] = self._route([link.sender for link in route], receiver, built, places)
        self._ports[name] = port
        self._bytes_max[name] = self._largest(built)
        keeper = _session_keeper(built)
        if keeper is not None:
            self._in_session[name] = keeper
        try:
            await self.performer.host(
                self.factory(worker), handler=handler, inline=inline, transport=port, peers=()
            )  # fmt: skip
        except BaseException:
            del self._ports[name]
            raise

    def factory(self, worker: WorkerPlan) -> Factory:
        """What builds a worker's machine, at first and whenever it starts again."""
        config = worker.config
        if worker.durable:
            return lambda store: DurableStage(config, store)
        return lambda store: Stage(config, secrets.token_hex(4))

    def _route(
        self, points: Sequence[str], end: str, built: Built, places: Mapping[str, str]
    ) -> tuple[str, ...]:  # fmt: skip
        """Through the forwarders among these points, and over a connection wherever the next point is at another node.

        A confirm that goes back over the middle of a pipe passes the workers there: they must not take it for theirs,
        so only their nodes are on its route.
        """
        route: list[str] = []
        at = self.name
        passed = [point for point in points if point != end]
        for point in [*passed, end]:
            if places[point] != at:
                at = places[point]
                route.append(f"{TRANSPORT}#{at}")
            if point == end or point in built.forwarders:
                route.append(f"{LOCAL}#{point}")
        return tuple(route)

    def _largest(self, built: Built) -> int:
        """How large a message may be so that it gets through every frame and every pipe around a middle."""
        frame = FRAME_BYTES_MAX if self._tcp is None else self._tcp.limits.frame_bytes
        packs = sum(outlet.packs for worker in built.workers for outlet in worker.config.outlets)
        largest = frame - ROUTE_BYTES
        return min(largest, PACKED_BYTES_MAX - (packs - 1) * PACKED_BYTES) if packs else largest

    async def host(
        self,
        factory: Factory,
        *addresses: str,
        takes: Takes = Takes.BODIES,
        routes: Mapping[str, Sequence[str]] | None = None,
        handler: Handler | None = None,
        inline: bool = False,
    ) -> None:
        """Host a machine that is no part of a path, under the addresses given, of which the first is its own name: a
        storage service, its publishers and consumers, a channel. `routes` lead to those whom it speaks to by name."""
        for address in addresses:
            self._check_free(address)
        port = Port(self, addresses[0], takes)
        port.routes.update({peer: tuple(route) for peer, route in (routes or {}).items()})
        self._know(*port.routes.values())
        self._ports.update(dict.fromkeys(addresses, port))
        try:
            await self.performer.host(factory, handler=handler, inline=inline, transport=port, peers=())
        except BaseException:
            for address in addresses:
                del self._ports[address]
            raise

    async def open_channel(self, end: Callable[[str], Channel | Initiator | Spawner]) -> None:
        """Host one end of a channel. `end` makes it for a run: `partial(Channel, config)` where both routes are known,
        `partial(Initiator, config)` and `partial(Spawner, config)` for sessions."""
        look = end("look")
        addresses = dict.fromkeys((look.name, *look.addresses))
        route = look.config.route if isinstance(look.config, ChannelConfig) else ()
        self._know(route)
        await self.host(lambda store: end(secrets.token_hex(4)), *addresses, takes=Takes.ADDRESSED)

    def _know(self, *routes: Sequence[str]) -> None:
        """The nodes that routes lead to first, so that their being away is no surprise."""
        self._configured.update(node for route in routes if (node := first_node(route)) is not None)
        self._nodes.update(self._configured)

    def listen(self, name: str, on_message: OnMessage) -> None:
        """Let the application be a worker of that name."""
        self._check_free(name)
        self._listeners[name] = on_message

    def send_along(self, route: Sequence[str], envelope: Envelope, *, back: str = "") -> None:
        """Send a message along a route, once. `back` is the name under which an answer will come."""
        self.performer.check_open()
        self.post(Parcel(tuple(route), (f"{LOCAL}#{back}",) if back else (), (envelope,)))
        self._flush_later()

    def _check_free(self, name: str) -> None:
        if name in self._ports or name in self._listeners or name in self._forwarders:
            raise ConfigError(f"{self.name} has a worker {name} already", fix="give it another name")

    # -- the application

    async def offer(self, worker: str, envelope: Envelope) -> None:
        """Hand a message to the first worker of a path. Returns when a durable one has stored it, and when a volatile
        one has room for it."""
        self._check(worker, envelope)
        machine = await self._machine(worker)
        if not isinstance(machine, Stage):
            await self._offer_durably(worker, envelope)
            return
        await self.room_at(worker)
        self.performer.feed(worker, Received(APP, envelope))

    async def offer_all(self, worker: str, envelopes: Iterable[Envelope]) -> None:
        """Many messages at once, as many at a time as the worker has room for. Returns as `offer` does."""
        batch: list[Envelope] = []
        for envelope in envelopes:
            self._check(worker, envelope)
            batch.append(envelope)
            if len(batch) == PARCEL_BODIES_MAX:
                await self._offer_batch(worker, batch)
                batch = []
        if batch:
            await self._offer_batch(worker, batch)

    async def _offer_batch(self, worker: str, batch: Sequence[Envelope]) -> None:
        if not isinstance(await self._machine(worker), Stage):
            await asyncio.gather(*(self._offer_durably(worker, envelope) for envelope in batch))
            return
        while batch:
            room = await self.room_at(worker)
            self.performer.feed(worker, Received(APP, Parcel((), (), tuple(batch[:room]))))
            batch = batch[room:]

    def _check(self, worker: str, envelope: Envelope) -> None:
        """One that can never arrive would stand in the way of all that come after it."""
        keeper = self._in_session.get(worker)
        if keeper is not None and (envelope.session is None or not envelope.index):
            raise InputError(
                f"{envelope.id} has no place in the order that {keeper} keeps: it has no session or no index",
                fix="set session and index, from 1 on in each session, or take dedup=session out of the path",
            )
        self._check_size(worker, envelope)

    def _check_size(self, worker: str, envelope: Envelope) -> None:
        """One that is too large would never arrive, and would end the connection at every attempt."""
        if len(envelope.data) < SMALL_BYTES and not envelope.headers:
            return
        size, limit = len(_encoder.encode(envelope)), self._bytes_max.get(worker, FRAME_BYTES_MAX)
        if size > limit:
            raise LimitExceeded(
                f"{envelope.id} has {size:,} bytes, and its path carries at most {limit:,}",
                fix="send a smaller body or fewer headers",
            )

    async def _offer_durably(self, worker: str, envelope: Envelope) -> None:
        while len(self._offers) >= OFFERS_MAX:
            await self._wait()
        self._check_open(worker)
        offer = self._offers.get((worker, envelope.id))
        if offer is None:
            loop = asyncio.get_running_loop()
            offer = _Offer(envelope, loop.create_future(), loop.time() + OFFER_AGAIN_S)
            self._offers[worker, envelope.id] = offer
            self._look_later(loop, OFFER_AGAIN_S)
            self.performer.feed(worker, Received(APP, HopMessage(envelope.id, envelope, 0)))
        await asyncio.shield(offer.stored)

    def _look_later(self, loop: asyncio.AbstractEventLoop, wait_s: float) -> None:
        if self._again is None:
            self._again = loop.call_later(wait_s, self._offer_again)

    def _offer_again(self) -> None:
        """A commit that failed and a worker that started again forget what the application offered."""
        self._again = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for (worker, _), offer in [item for item in self._offers.items() if item[1].again_at <= now]:
            offer.again_at = now + OFFER_AGAIN_S
            self.performer.feed(worker, Received(APP, HopMessage(offer.envelope.id, offer.envelope, 0)))
        if self._offers:
            self._look_later(loop, OFFER_AGAIN_S / 2)

    def answered(self, worker: str, ids: Iterable[str]) -> None:
        """The worker has stored these."""
        for id in ids:
            offer = self._offers.pop((worker, id), None)
            if offer is not None and not offer.stored.done():
                offer.stored.set_result(None)
        self._moved.set()

    def _observed(self, worker: str, effect: Notify | Close) -> None:
        """What the store will not hold, and what a worker that has stopped will never store, must not wait."""
        if worker not in self._ports:
            return
        if isinstance(effect, Close):
            self._stopped[worker] = effect.reason or "finished"
            self._fail([key for key in self._offers if key[0] == worker], self._stopped_error(worker))
        elif effect.topic == "rejected" and effect.message is not None:
            error = InputError(effect.detail, fix="fix the message and offer it again")
            self._fail([key for key in self._offers if key == (worker, effect.message)], error)
        elif effect.topic == "refused":
            error = InputError(effect.detail, fix="fix what it names; the worker goes on trying")
            self._fail([key for key in self._offers if key[0] == worker], error)

    def _fail(self, keys: Sequence[tuple[str, str]], error: SemelError) -> None:
        for key in keys:
            stored = self._offers.pop(key).stored
            if not stored.done():
                stored.set_exception(error)
                stored.exception()  # seen, also when nobody waits for it any more
        self._moved.set()

    def _stopped_error(self, worker: str) -> Suspended:
        return Suspended(
            f"{worker} has stopped: {self._stopped[worker]}", fix="see its log; fix the cause and start it again"
        )

    async def room_at(self, worker: str) -> int:
        """Wait until a worker takes more; returns how many messages it takes."""
        while True:
            machine = await self._machine(worker)
            room = _room(machine)
            if room > 0:
                return room
            await self._wait()

    async def drained(self, worker: str) -> None:
        """Wait until everything that a worker has taken is confirmed onward, and nothing is left with its handler or in
        line for it. Of a durable one, everything that is stored now must have been confirmed, or handled where the path
        ends. A volatile one holds no message whose handler failed: its sender does, or nobody."""
        machine = await self._machine(worker)
        head = 0
        if isinstance(machine, DurableStage):
            head = (await asyncio.to_thread(self.performer.store.head, machine.config.stream)).offset
        while True:
            machine = await self._machine(worker)
            if isinstance(machine, DurableStage) and machine.passed >= head:
                return
            if not isinstance(machine, DurableStage) and not _in_hand(machine):
                return
            await self._wait()

    async def _machine(self, worker: str) -> Stage | DurableStage | Publisher:
        """The worker as it stands. One that starts again is waited for."""
        while True:
            self._check_open(worker)
            machine = self.performer.machine(worker)
            if isinstance(machine, Stage | DurableStage | Publisher):
                return machine
            if machine is not None:
                raise InputError(f"{worker} takes no offers", fix="offer to the first worker of a path or a publisher")
            await self._wait()

    def _check_open(self, worker: str) -> None:
        self.performer.check_open()
        if worker not in self._ports:
            raise InputError(f"there is no worker {worker}", fix="deploy the path before offering messages")
        if worker in self._stopped:
            raise self._stopped_error(worker)

    async def _wait(self) -> None:
        self.performer.check_open()
        self._moved.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await self._moved.wait()

    # -- moving parcels

    def post(self, parcel: Parcel, via: str | None = None) -> None:
        """Take a parcel one step on its way. `via` is the node that it came from, None for our own."""
        try:
            step = self._router.route(parcel)
        except InputError as error:
            self._drop(error.message, via)
            return
        if isinstance(step, NoRoute):
            self._drop(step.reason, via)
        elif isinstance(step, ToNode):
            self._send_on(step.node, step.parcel, via)
        else:
            self._arrive(step.worker, step.parcel, via)

    def _drop(self, reason: str, via: str | None) -> None:
        self.astray += 1
        log.warning("%s: a parcel from %s went astray: %s", self.name, via or "here", reason)

    def _send_on(self, node: str, parcel: Parcel, via: str | None) -> None:
        if self._tcp is None:
            self._drop(f"there is no connected node named {node}", via)
            return
        if type(parcel.bodies[0]) is Envelope:
            bodies = tuple(HopMessage(body.id, body, 0) if type(body) is Envelope else body for body in parcel.bodies)
            parcel = Parcel(parcel.onward, parcel.back, bodies)
        self._tcp.send(node, parcel)
        if via is not None:
            # no machine of ours had a part in it, so the performer's tick will not come
            self._flush_later()

    def _flush_later(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_tcp)

    def _flush_tcp(self) -> None:
        self._flush_due = False
        if self._tcp is not None:
            self._tcp.flush()

    def _arrive(self, address: str, parcel: Parcel, via: str | None) -> None:
        try:
            sender = parcel.sender
        except InputError as error:
            self._drop(error.message, via)
            return
        on_message = self._listeners.get(address)
        if on_message is not None:
            self._deliver_to_application(on_message, parcel)
            return
        port = self._ports[address]
        if via is not None and not port.may_come(sender, via):
            self._drop(f"{via} does not speak for {sender}", via)
            return
        port.learn(sender, parcel.back)
        self._hand_in(port, address, sender, parcel)
        self._moved.set()

    def _hand_in(self, port: Port, address: str, sender: str, parcel: Parcel) -> None:
        match port.takes:
            case Takes.PARCELS:
                self.performer.feed(port.worker, Received(sender, parcel))
            case Takes.BODIES:
                for body in parcel.bodies:
                    self.performer.feed(port.worker, Received(sender, body))
            case Takes.ADDRESSED:
                self.performer.feed(port.worker, Received(sender, addressed(ToWorker(address, parcel))))

    def _deliver_to_application(self, on_message: OnMessage, parcel: Parcel) -> None:
        for body in parcel.bodies:
            envelope = body.envelope if isinstance(body, HopMessage) else body
            if not isinstance(envelope, Envelope):
                log.warning("%s: a %s is no message for the application", self.name, type(body).__name__)
                continue
            try:
                on_message(envelope, parcel.back)
            except Exception:
                log.exception("an application's worker failed")

    # -- the performer's transport

    def bind(self, inbox: Inbox) -> None: ...

    def send(self, peer: str, message: Any) -> bool:
        return False

    def flush(self) -> None:
        ports, self.ports_to_flush = self.ports_to_flush, []
        for port in dict.fromkeys(ports):
            port.flush_boxes()
        if self._tcp is not None:
            self._tcp.flush()

    def pause(self) -> None:
        if self._tcp is not None:
            self._tcp.pause()

    async def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._fail(list(self._offers), _closed_error(self.name))
        if self._tcp is not None:
            await self._tcp.close()

    # -- the TCP transport's inbox

    @property
    def is_full(self) -> bool:
        return self.performer.is_full

    async def room(self) -> None:
        await self.performer.room()

    def received(self, transport: Transport, peer: str, message: Any) -> None:
        if not isinstance(message, Parcel):
            log.warning("%s: %s sent a bare %s", self.name, peer, type(message).__name__)
            return
        try:
            parcel = arrived_from(peer, message)
        except InputError as error:
            self._drop(error.message, peer)
            return
        self.post(parcel, via=peer)

    def connected(self, transport: Transport, peer: str) -> None:
        self._nodes.add(peer)
        self._report_connection(peer, PeerConnected)

    def disconnected(self, transport: Transport, peer: str) -> None:
        if peer not in self._configured:
            self._nodes.discard(peer)
        self._report_connection(peer, PeerDisconnected)

    def _report_connection(self, node: str, event: type[PeerConnected] | type[PeerDisconnected]) -> None:
        """Workers that send over this connection get the event under the names of those whom they send to."""
        for port in self._ports.values():
            for peer, route in port.routes.items():
                if first_node(route) == node:
                    self.performer.feed(port.worker, event(peer))


class _Names(Collection[str]):
    """All that answer to a name here, without copying them at each step of a parcel."""

    def __init__(self, *tables: Mapping[str, object]) -> None:
        self._tables = tables

    def __contains__(self, name: object) -> bool:
        return any(name in table for table in self._tables)

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(*self._tables)

    def __len__(self) -> int:
        return sum(map(len, self._tables))


def _room(machine: Stage | DurableStage | Publisher) -> int:
    """How many messages it takes at once. What comes beyond that, a volatile worker drops."""
    outlets = machine.outlets if isinstance(machine, Stage) else ()
    rooms = (outlet.config.queue_max - outlet.unconfirmed for outlet in outlets if outlet.resend is not None)
    return min(rooms, default=PARCEL_BODIES_MAX)


def _in_hand(machine: Stage | Publisher) -> int:
    return machine.unconfirmed + (machine.busy if isinstance(machine, Stage) else 0)


def _session_keeper(built: Built) -> str | None:
    """The worker that lets messages pass in the order of their producer, if there is one."""
    by_session = (
        worker.config.name
        for worker in built.workers
        if any(inlet.dedup is DedupBy.SESSION for inlet in worker.config.inlets)
    )
    return next(by_session, None)


def _closed_error(node: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{node} is closed; what it was offered may or may not be stored", fix="offer it again to the next one"
    )
