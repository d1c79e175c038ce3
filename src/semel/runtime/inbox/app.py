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
from typing import TYPE_CHECKING, Unpack

from semel.errors import InputError
from semel.inbox.endpoint import EndpointMode
from semel.inbox.messages import Attributes, check_envelope
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import Envelope
from semel.runtime.inbox import operating, service
from semel.runtime.inbox.buffered import buffer_of, deliver_buffered
from semel.runtime.inbox.definition import Application, Verdict
from semel.runtime.inbox.inline import InlineDelivery
from semel.runtime.inbox.operating import DeadLetter
from semel.runtime.inbox.trial import wants_sqlite
from semel.stores.open import open_store

if TYPE_CHECKING:
    from semel.auth.keys import AccessKeys
    from semel.runtime.inbox.asgi import InboxAsgi
    from semel.runtime.inbox.django import View


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
        if found.options.mode is EndpointMode.BUFFERED:
            return await deliver_buffered(self, found, envelope)
        return await InlineDelivery(self, found, envelope, threads).handle()

    def receive(self, endpoint: str, envelopes: Sequence[Envelope]) -> list[Verdict]:
        """As at every endpoint: at a buffered one they are in memory, or refused while it is full, all or none."""
        found = self.check_endpoint(endpoint)
        if found.options.mode is not EndpointMode.BUFFERED:
            return super().receive(endpoint, envelopes)
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
        key: str | None = None,
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

    # -- for operators

    def dead_letters(self, endpoint: str) -> list[DeadLetter]:
        """What was given up or put aside, the oldest first."""
        return operating.dead_letters(self, endpoint)

    def replay(self, endpoint: str, identity: str) -> None:
        """Let a dead letter be handled again. It is named by its identity, or by the id of its message."""
        operating.replay(self, endpoint, identity)

    def discard(self, endpoint: str, identity: str) -> None:
        """Give up a dead letter for good."""
        operating.discard(self, endpoint, identity)

    # -- running

    async def serve(self, *, stop: asyncio.Event | None = None) -> None:
        """Run the handlers and the relay in this process, until cancelled or until `stop` is set."""
        async with service.InboxService(self):
            await (stop or asyncio.Event()).wait()

    def run(self) -> None:
        """Run until SIGINT or SIGTERM, then finish what has begun."""
        _check_no_loop("run")
        service.run_until_signalled(self)

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
        twin.senders, twin.periodic, twin.hub = dict(self.senders), list(self.periodic), self.hub
        twin._folder = folder
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
