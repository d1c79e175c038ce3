"""What a handler or a caller sends: stored in the same transaction as its own writes, delivered after the commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Unpack

from semel.errors import InputError, StaleFence
from semel.inbox.messages import Attributes, in_us, type_name
from semel.inbox.outbox import BROKERS, FIX_DESTINATION, Destination, DestinationKind, OutboxCalls, parse_destination
from semel.kernel.ops import Log, Op, Result
from semel.kernel.store import AsyncTx, Tx

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Outbox:
    """Collects what is sent; the transaction that it belongs to stores it. Nothing leaves when that is rolled back.

    A handler gets one by asking for it. A caller gets one for its own transaction: `with app.outbox(connection) as o:`.
    """

    def __init__(
        self,
        calls: OutboxCalls,
        routes: Mapping[str, str],
        now: Callable[[], int],
        mint: Callable[[], str],
        endpoints: Collection[str] = (),
        senders: Collection[str] = (),
    ) -> None:
        """`endpoints` are those of the application; empty where it has none to its knowledge. `senders` are for the
        destinations that Semel itself does not know."""
        self._endpoints = endpoints
        self._senders = senders
        self._calls = calls
        self._routes = routes
        self._now = now
        self._mint = mint

    def publish(
        self,
        message: object,
        to: Destination | str | None = None,
        *,
        id: str | None = None,
        key: str | None = None,
        **attributes: Unpack[Attributes],
    ) -> str:
        """Send a message after the commit, in order among those of its key. Returns its id.

        Without `to` it goes where messages of its type are routed. Without `id` a handler's message gets an id that is
        the same when the handler runs again, a caller's a new one.
        """
        return self._calls.publish(message, self._to(message, to), id=self._id(id), key=key, **attributes)

    def schedule(
        self,
        message: object,
        to: Destination | str | None = None,
        *,
        at: datetime | None = None,
        after_s: float | None = None,
        id: str | None = None,
        key: str | None = None,
        replace: bool = False,
        **attributes: Unpack[Attributes],
    ) -> str:
        """Send a message at a time, or so many seconds from now. Returns its id, by which it can be cancelled."""
        due = self._due(at, after_s)
        return self._calls.schedule(
            message, self._to(message, to), due=due, id=self._id(id), key=key, replace=replace, **attributes
        )

    def cancel(self, id: str, to: Destination | str) -> None:
        """Take back a message that was not sent yet. Too late is no error: it was sent."""
        self._calls.cancel(id, to)

    def _id(self, id: str | None) -> str | None:
        return self._mint() if id is None and self._calls.handled is None else id

    def _to(self, message: object, to: Destination | str | None) -> Destination:
        found = self._routed(message, to)
        destination = found if isinstance(found, Destination) else parse_destination(found)
        return check_known(destination, self._endpoints, self._senders)

    def _routed(self, message: object, to: Destination | str | None) -> Destination | str:
        if to is not None:
            return to
        name = getattr(message, "type", None) if type(message).__name__ == "Envelope" else type_name(type(message))
        if name in self._routes:
            return self._routes[str(name)]
        raise InputError(
            f"nobody said where messages of type {name!r} go",
            fix=f"say it: publish(..., to=...), or once for all: app.route({name}, to=...)",
        )

    def _due(self, at: datetime | None, after_s: float | None) -> int:
        if (at is None) == (after_s is None):
            raise InputError("a scheduled message needs a time", fix="give either at= or after_s=")
        if after_s is not None:
            return self._now() + in_us(after_s)
        assert at is not None, "one of the two is given"
        if at.tzinfo is None:
            raise InputError(f"{at} has no time zone", fix="use datetime.now(UTC) or give a tzinfo")
        return (at - _EPOCH) // _MICROSECOND

    @property
    def ops(self) -> tuple[Op, ...]:
        """What is to be committed with the transaction that this belongs to."""
        return tuple(self._calls.enqueues)

    @property
    def is_used(self) -> bool:
        return bool(self._calls.enqueues or self._calls.cancels)

    @property
    def cancels(self) -> tuple[tuple[Op, ...], ...]:
        """Each is a unit of its own: one that comes too late is refused, and the others are not."""
        calls = self._calls
        return tuple((op, Log(event)) for op, event in zip(calls.cancels, calls.cancelled, strict=True))


def check_known(destination: Destination, endpoints: Collection[str], senders: Collection[str]) -> Destination:
    """Refuse where it is written what would otherwise fail when it is sent."""
    name = destination.name
    if destination.kind is DestinationKind.ENDPOINT and endpoints and name not in endpoints:
        raise InputError(
            f"there is no endpoint {name!r} in this application",
            fix=f"make it: app.endpoint({name!r}), or publish to one that there is",
        )
    if destination.kind is DestinationKind.BROKER and name not in (*BROKERS, *senders):
        raise InputError(
            f"nobody sends to {name}: {destination}",
            fix=f"add who does: app.sender({name!r}, send), or {FIX_DESTINATION}",
        )
    return destination


def apply_cancels(tx: Tx, outbox: Outbox) -> None:
    """One that comes too late takes nothing with it."""
    for cancel in outbox.cancels:
        with suppress(StaleFence):
            tx.apply(cancel)


def apply_outbox(tx: Tx, outbox: Outbox, *mark: Op) -> tuple[Result, ...]:
    """The mark of a handler and what it sends, all or none."""
    apply_cancels(tx, outbox)
    ops = [*mark, *outbox.ops]
    return tx.apply(ops) if ops else ()


async def apply_outbox_async(tx: AsyncTx, outbox: Outbox, *mark: Op) -> tuple[Result, ...]:
    """The same in a transaction whose calls are awaited."""
    for cancel in outbox.cancels:
        with suppress(StaleFence):
            await tx.apply(cancel)
    ops = [*mark, *outbox.ops]
    return await tx.apply(ops) if ops else ()
