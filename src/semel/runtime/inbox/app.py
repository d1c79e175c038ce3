"""An application: handlers that run once per message, in the user's own database.

    app = App("sqlite:///shop.db", name="shop")
    orders = app.endpoint("orders")

    @orders.on(OrderPlaced, key=lambda order: order.customer)
    def reserve(order: OrderPlaced, db: sqlite3.Connection, outbox: Outbox) -> None:
        db.execute("INSERT INTO reservation VALUES (?)", (order.id,))
        outbox.publish(StockReserved(order.id), to="stream:stock")

    app.run()

Nothing is opened when an application is defined: its database is opened with the first call that needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from semel.errors import ConfigError, InputError
from semel.inbox.endpoint import EndpointMode
from semel.inbox.messages import Attributes, check_envelope
from semel.inbox.outbox import outbox_queue
from semel.inbox.settle import DeliveryEnd
from semel.inbox.sources import AUTO, Rule
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event
from semel.kernel.ops import Remember
from semel.kernel.trace import trace_id, with_trace
from semel.runtime.brokers.listeners import TransportMaker, listen_to, make_listeners
from semel.runtime.inbox import operating, owners, service
from semel.runtime.inbox.buffered import buffer_of, deliver_buffered
from semel.runtime.inbox.counts import MessageCount
from semel.runtime.inbox.definition import Application, Verdict, mint, now_us
from semel.runtime.inbox.endpoint import InboxEndpoint
from semel.runtime.inbox.inline import InlineDelivery
from semel.runtime.inbox.operating import DeadLetter
from semel.runtime.inbox.trial import wants_sqlite
from semel.stores.open import open_store

if TYPE_CHECKING:
    from semel.auth.keys import AccessKeys
    from semel.runtime.inbox.asgi import InboxAsgi
    from semel.runtime.inbox.django import View
    from semel.runtime.inbox.metrics import InboxMetrics


class App(Application):
    """An application that can be run and looked after."""

    _folder: TemporaryDirectory[str] | None = None

    async def deliver(self, endpoint: str, envelope: Envelope, threads: Executor | None = None) -> DeliveryEnd:
        """Take one delivery of a transport, and say what becomes of it: an ack, or not. An inline endpoint handles it
        first; a buffered one waits until it has room for it in memory."""
        found = self.check_endpoint(endpoint)
        check_envelope(envelope)
        if found.options.mode is EndpointMode.DURABLE:
            raise InputError(f"endpoint {endpoint!r} is durable", fix="let a durable endpoint store it: receive()")
        with self.telemetry.spans.receiving(endpoint, [envelope]) as [traced]:
            if found.options.mode is EndpointMode.BUFFERED:
                return await self._deliver_buffered(found, traced)
            return await InlineDelivery(self, found, traced, threads).handle()

    async def _deliver_buffered(self, endpoint: InboxEndpoint, envelope: Envelope) -> DeliveryEnd:
        end = await deliver_buffered(self, endpoint, envelope)
        if end is DeliveryEnd.ACK:
            self.telemetry.received(endpoint.name, [Verdict.BUFFERED])
        return end

    def send(
        self,
        message: object,
        to: str,
        *,
        id: str | None = None,
        key: str | int | None = None,
        after_s: float | None = None,
        **attributes: Unpack[Attributes],
    ) -> tuple[str, Verdict]:
        """Store a message at an endpoint, in a commit of its own. Returns its id and whether it is new."""
        id = id if id is not None else mint()
        with self.telemetry.spans.sending(to, id) as carried:
            if carried:
                own = message.headers if isinstance(message, Envelope) else {}
                attributes["headers"] = with_trace(attributes.get("headers", own), carried)
            sent, verdict = super().send(message, to, id=id, key=key, after_s=after_s, **attributes)
        self.telemetry.received(to, [verdict])
        return sent, verdict

    def receive(self, endpoint: str, envelopes: Sequence[Envelope]) -> list[Verdict]:
        """As at every endpoint: at a buffered one they are in memory, or refused while it is full, all or none."""
        found = self.check_endpoint(endpoint)
        with self.telemetry.spans.receiving(endpoint, envelopes) as traced:
            verdicts = self._take_in(found, traced)
        self.telemetry.received(endpoint, verdicts)
        return verdicts

    def _take_in(self, found: InboxEndpoint, envelopes: Sequence[Envelope]) -> list[Verdict]:
        if found.options.mode is not EndpointMode.BUFFERED:
            return super().receive(found.name, envelopes)
        _ = self.handlers
        buffer_of(self, found).put_now([check_envelope(each) for each in envelopes])
        return [Verdict.BUFFERED] * len(envelopes)

    async def receive_async(self, endpoint: str, envelopes: Sequence[Envelope]) -> list[Verdict]:
        """`receive` for a coroutine: other tasks go on while the store is waited for."""
        return await asyncio.to_thread(self.receive, endpoint, envelopes)

    async def send_async(
        self,
        message: object,
        to: str,
        *,
        id: str | None = None,
        key: str | int | None = None,
        after_s: float | None = None,
        **attributes: Unpack[Attributes],
    ) -> tuple[str, Verdict]:
        """`send` for a coroutine."""
        send = partial(self.send, message, to, id=id, key=key, after_s=after_s, **attributes)
        return await asyncio.to_thread(send)

    # -- over HTTP, in a program of the user's own

    def asgi(
        self,
        *,
        keys: AccessKeys | str | None = None,
        open_to_all: bool = False,
        addresses: Sequence[str] = (),
        origins: Sequence[str] = ("*",),
        backlog: int = 1_000_000,
    ) -> InboxAsgi:
        """The endpoints as an ASGI app, which takes CloudEvents: mount it, and POST to `<where>/<endpoint>`.

        `keys` decide who may send: an access key, a connection string or AccessKeys. `addresses` are those under which
        senders know this program, where it stands behind a proxy. `origins` are the hosts that may ask to send.
        `backlog` messages may wait at an endpoint before more are refused.
        """
        from semel.runtime.inbox.asgi import InboxAsgi
        from semel.runtime.inbox.http_entrance import entrance_for

        return InboxAsgi(
            entrance_for(self, keys=keys, is_open=open_to_all, addresses=addresses, origins=origins, backlog=backlog)
        )

    def django_view(
        self,
        *,
        keys: AccessKeys | str | None = None,
        open_to_all: bool = False,
        addresses: Sequence[str] = (),
        origins: Sequence[str] = ("*",),
        backlog: int = 1_000_000,
    ) -> View:
        """The same as a Django view: `path("inbox/<str:endpoint>", app.django_view(keys=...))`."""
        from semel.runtime.inbox.django import inbox_view
        from semel.runtime.inbox.http_entrance import entrance_for

        return inbox_view(
            entrance_for(self, keys=keys, is_open=open_to_all, addresses=addresses, origins=origins, backlog=backlog)
        )

    def keep_unreadable(self, endpoint: str, data: bytes, why: str, **attributes: Unpack[Attributes]) -> str:
        """Keep what a transport has brought and nobody can make a message of, as a dead letter."""
        kept = super().keep_unreadable(endpoint, data, why, **attributes)
        self.telemetry.of(endpoint).add(MessageCount.UNREADABLE)
        return kept

    def _remember(self, *arguments: Any) -> Remember:
        """The ledger has the trace in which a caller of `first` does its work."""
        op, trace = super()._remember(*arguments), trace_id(self.telemetry.spans.carried())
        return traced_remember(op, trace) if trace is not None else op

    # -- for operators

    def metrics(self) -> InboxMetrics:
        """The figures of this process and of its queues, for Prometheus: register it, or ask for its `text()`."""
        from semel.runtime.inbox.metrics import InboxMetrics  # who asks for no figures need not wait for it

        return InboxMetrics(self.name, self.telemetry, lambda: self.store, self._queues, now_us)

    def _queues(self) -> dict[str, str]:
        outbox = outbox_queue(self.name)
        return {**{name: each.options.queue for name, each in self.endpoints.items()}, outbox: outbox}

    def dead_letters(self, endpoint: str) -> list[DeadLetter]:
        """What was given up or put aside, the oldest first."""
        return operating.dead_letters(self, endpoint)

    def replay(self, endpoint: str, identity: str) -> None:
        """Let a dead letter be handled again. It is named by its identity, or by the id of its message."""
        operating.replay(self, endpoint, identity)

    def discard(self, endpoint: str, identity: str) -> None:
        """Give up a dead letter for good."""
        operating.discard(self, endpoint, identity)

    def adopt(self, endpoint: str) -> str | None:
        """Take an endpoint over that another application of this store has. Stop that one first: a process of it that
        still runs takes nothing more from then on. Returns who had it."""
        self.check_endpoint(endpoint)
        before = owners.adopt_endpoint(self.store, self.name, endpoint)
        self._scopes.pop(endpoint, None)
        self._handlers = None
        return before

    # -- running

    def listen(
        self,
        endpoint: str,
        to: str | TransportMaker,
        *,
        id: Rule = AUTO,
        type: Rule = AUTO,
        url: str | None = None,
    ) -> None:
        """Let an endpoint listen to a broker while the application runs: "nats:STREAM" or "amqp:queue", with options as
        `semel.inbox.sources` says them. `id` and `type` may be functions of the message. `url` is for a broker other
        than the application's. `to` may make a transport of your own instead."""
        self.check_endpoint(endpoint)
        if endpoint in self.listens:
            raise ConfigError(
                f"endpoint {endpoint!r} listens to something already", fix="give the other an endpoint of its own"
            )
        self.listens[endpoint] = listen_to(to, id=id, type=type, url=url)

    async def serve(self, *, stop: asyncio.Event | None = None) -> None:
        """Run handlers, listeners and the relay in this process, until cancelled or until `stop` is set."""
        async with service.InboxService(self, listeners=make_listeners(self, self)):
            await (stop or asyncio.Event()).wait()

    def run(self) -> None:
        """Run until SIGINT or SIGTERM, then finish what has begun."""
        _check_no_loop("run")
        service.run_until_signalled(self, lambda: make_listeners(self, self))

    def drain(self, timeout_s: float = 30.0) -> int:
        """Handle all that is due, in this thread, and return how many messages there were. For tests."""
        _check_no_loop("drain")
        return service.drain(self, timeout_s)

    async def drain_async(self, timeout_s: float = 30.0) -> int:
        """`drain` for a test that is a coroutine."""
        return await service.drain_async(self, timeout_s)

    def memory(self) -> App:
        """The same application on a store of its own, in memory. For tests: what its handlers send stays where it can
        be seen. Handlers that ask for a sqlite3.Connection get an empty SQLite file, which is gone with `close`; those
        that ask for any other connection need a database of its kind, and are refused."""
        folder = TemporaryDirectory(prefix="semel-") if self._wants_file() else None
        store = f"sqlite:///{folder.name}/memory.db" if folder is not None else open_store("memory:")
        twin = App(store, name=self.name, identity=self.mode, keep_s=self.keep_s, styles=self.styles)
        twin.endpoints, twin.rules, twin.routes = dict(self.endpoints), self.rules, dict(self.routes)
        twin.memories = dict(self.memories)
        twin.senders, twin.periodic, twin.hub = dict(self.senders), list(self.periodic), self.hub
        twin.follows = [each for each in self.follows if each.store is None]  # other stores have no part in a test
        twin.brokers = dict(self.brokers)
        twin._folder, twin.telemetry.spans = folder, self.telemetry.spans
        return twin

    def _wants_file(self) -> bool:
        return wants_sqlite(self.endpoints.values(), [each.kind for each in self._given])

    def close(self) -> None:
        super().close()
        if self._folder is not None:
            self._folder.cleanup()


def _check_no_loop(name: str) -> None:
    """A loop that waits for another one would stand still."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    instead = {"drain": "await app.drain_async()", "run": "await app.serve()"}[name]
    raise InputError(f"{name}() is called inside an event loop", fix=f"use `{instead}`")


def traced_remember(op: Remember, trace: str) -> Remember:
    def traced(event: Event) -> Event:
        return msgspec.structs.replace(event, trace=trace)

    fresh = op.on_fresh if isinstance(op.on_fresh, tuple) else (op.on_fresh,) if op.on_fresh else ()
    duplicate = traced(op.on_duplicate) if op.on_duplicate is not None else None
    return msgspec.structs.replace(op, on_fresh=tuple(traced(each) for each in fresh), on_duplicate=duplicate)
