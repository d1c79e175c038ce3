"""At regular times a hub tries again what the store did not do, and trims what nobody needs.

It also looks whether there is more to read: nothing may depend on being woken, or on the answer to every commit.
"""

from __future__ import annotations

from semel.pubsub.hub.catchup import CatchUp
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.floors import Floors
from semel.pubsub.hub.missing import Missing
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.spills import Spills
from semel.pubsub.hub.tail import Tail


class Upkeep:
    def __init__(
        self,
        context: HubContext,
        lease: NodeLease,
        tail: Tail,
        floors: Floors,
        closing: Closing,
        spills: Spills,
        missing: Missing,
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
