"""What a process keeps for each machine that it runs: its handler, its peers, and how to start it again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from semel.kernel.effects import Deliver, Event, Machine, OwnTransaction
from semel.kernel.ops import Op, WorkRow
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Record, Store
from semel.runtime.transports.base import Transport

log = logging.getLogger(__name__)

Factory = Callable[[Store], Machine]
"""Builds a machine from what the store holds. Runs on a thread, so it may read."""

Handled = Iterable[Op] | OwnTransaction | None

Handler = Callable[[WorkRow | Record], Handled | Awaitable[Handled]]
"""The application's own code. A coroutine function runs on the loop, any other function on a thread.

What it returns is committed together with the fact that it ran; an exception means that it did not. One that ends its
work row in a transaction of its own says with `OwnTransaction` how that went."""

Taker = Callable[[Deliver, Callable[[Event], None]], None]
"""Takes deliveries on the loop in place of a handler, and tells of each, on the loop, what became of it."""

RELOAD_RETRY = RetryPolicy(interval_s=0.05, factor=2.0, interval_max_s=1.0)
"""Everybody who uses the machine waits meanwhile: that a database is back is noticed at once, however long it took."""

RELOAD_QUIET_S = 10.0
"""A machine that ran for so long before it stopped is started again at once."""

CAUSE_CHARS_MAX = 200


@dataclass(slots=True, eq=False)
class Host:
    """What the performer knows of a machine besides its seat. `peers` None means that it listens to all.

    `wants_sent`: it has an attribute of that name and wants `Sent` events. Few machines do, since that a message went
    out says nothing about its arrival, and an event per message costs as much as the message.
    """

    name: str
    factory: Factory | None = None
    handler: Handler | None = None
    transport: Transport | None = None
    peers: Collection[str] | None = None
    inline: bool = False
    wants_sent: bool = False
    taker: Taker | None = None
    reloads: int = 0
    reloaded_at: float = 0.0

    def reload_wait_s(self, now: float) -> float:
        """At once the first time, later and later when it keeps stopping."""
        self.reloads = 0 if now - self.reloaded_at > RELOAD_QUIET_S else self.reloads + 1
        self.reloaded_at = now
        return RELOAD_RETRY.wait_s(self.reloads, 0.0) if self.reloads else 0.0


class Hosts:
    """The machines of a process by name, and by whose messages they receive, which is looked up for every frame."""

    def __init__(self) -> None:
        self._by_name: dict[str, Host] = {}
        self._receivers: dict[tuple[int, str | None], list[Host]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Host]:
        return iter(list(self._by_name.values()))

    def get(self, name: str) -> Host | None:
        return self._by_name.get(name)

    def add(self, host: Host) -> None:
        self.remove(host.name)
        self._by_name[host.name] = host
        for key in _listens_to(host):
            self._receivers.setdefault(key, []).append(host)

    def remove(self, name: str) -> None:
        host = self._by_name.pop(name, None)
        if host is None:
            return
        for key in _listens_to(host):
            self._receivers[key].remove(host)
            if not self._receivers[key]:
                del self._receivers[key]

    def receivers(self, transport: Transport, peer: str) -> tuple[Host, ...]:
        """The machines that receive what this peer sends over this transport."""
        at = id(transport)
        return (*self._receivers.get((at, None), ()), *self._receivers.get((at, peer), ()))


def _listens_to(host: Host) -> list[tuple[int, str | None]]:
    """Keys by identity, since two transports may be equal. A host holds its transport, so the id is not used again."""
    if host.transport is None:
        return []
    at = id(host.transport)
    return [(at, None)] if host.peers is None else [(at, peer) for peer in dict.fromkeys(host.peers)]


def cause_of(error: BaseException) -> str:
    """One line about an exception, short enough for the ledger."""
    text = str(error).strip().split("\n", 1)[0]
    cause = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return cause if len(cause) <= CAUSE_CHARS_MAX else cause[: CAUSE_CHARS_MAX - 1] + "…"
