"""Known mistakes of pipes: each breaks one promise of a worker on a path.

Two of the kernel's hold for pipes as well: `index-dedup-off-by-one` and `resend-reordered`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from semel.kernel.effects import Effect, Send
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.pipes.language.options import ConfirmOn, DedupBy
from semel.pipes.workers.inlet import Arrival, Inlet
from semel.pipes.workers.outlet import Outlet
from semel.pipes.workers.stage import Stage, _Held
from semel.sim.plants.registry import plant

# -- resending


_NEWEST = "pipe-newest-confirm-only"
_NEWEST_TEXT = "every attempt has a reference of its own and only the newest one's confirm counts"


@plant(_NEWEST, _NEWEST_TEXT, (Outlet, "messages"), caught_by="pipes")
def _name_attempts(
    right: Callable[..., list[HopMessage]], outlet: Outlet, transmits: Sequence[Any]
) -> list[HopMessage]:
    return [
        msgspec.structs.replace(message, delivery=f"{message.delivery}#{message.attempt}")
        for message in right(outlet, transmits)
    ]


@plant(_NEWEST, _NEWEST_TEXT, (Outlet, "confirm"), caught_by="pipes")
def _newest_only(
    right: Callable[..., list[HopMessage]], outlet: Outlet, deliveries: Sequence[str], now: float
) -> list[HopMessage]:
    ids = []
    for delivery in deliveries:
        id, _, attempt = delivery.rpartition("#")
        flight = outlet.resend._flights.get(id) if outlet.resend is not None else None
        if flight is not None and flight.attempt == int(attempt):
            ids.append(id)
    return right(outlet, ids, now)


@plant(
    "pipe-constant-reference",
    "all messages go out under one reference, so the next one takes the place of an unconfirmed one",
    (Outlet, "offer"),
    caught_by="pipes",
)
def _constant_reference(
    right: Callable[..., tuple[str, list[HopMessage]]], outlet: Outlet, envelope: Envelope, now: float
) -> tuple[str, list[HopMessage]]:
    outlet._last = 0
    if outlet.resend is not None:
        outlet.resend._flights.clear()
        outlet.resend._queue.clear()
    return right(outlet, envelope, now)


# -- confirming too early


@plant(
    "pipe-confirm-before-handling",
    "a worker confirms on arrival what it should confirm after its handler",
    (Stage, "_accept"),
    caught_by="pipes",
)
def _confirm_before_handling(
    right: Callable[..., list[Effect]], stage: Stage, inlet: Inlet, arrival: Arrival, now: float
) -> list[Effect]:
    effects = right(stage, inlet, arrival, now)
    if inlet.config.confirm is not ConfirmOn.PROCESSING:
        return effects
    return [Send(arrival[0], Confirm((arrival[1].delivery,))), *effects]


@plant(
    "pipe-cascade-confirms-early",
    "a worker confirms when it has sent a message on, not when that has been confirmed",
    (Stage, "_pass_on"),
    caught_by="pipes",
)
def _cascade_confirms_early(right: Callable[..., list[Effect]], stage: Stage, held: _Held, now: float) -> list[Effect]:
    effects = right(stage, held, now)
    if held.inlet.config.confirm is not ConfirmOn.CASCADE:
        return effects
    stage._done(held.inlet.key(held.arrival))
    return effects


@plant(
    "pipe-early-one-confirmed",
    "a strict inlet confirms what waits in its buffer, or found no place there",
    (Stage, "_arrived"),
    caught_by="pipes",
)
def _early_one_confirmed(
    right: Callable[..., list[Effect]], stage: Stage, inlet: Inlet, peer: str, message: HopMessage, now: float
) -> list[Effect]:
    effects = right(stage, inlet, peer, message, now)
    if effects or inlet.config.dedup is not DedupBy.STRICT:
        return effects
    return [Send(peer, Confirm((message.delivery,)))]


# -- telling new from old


@plant(
    "pipe-index-passes-over-error",
    "after an error of its handler a worker forgets the message, but not that its index has passed",
    (Stage, "_failed"),
    caught_by="pipes",
)
def _index_passes_over_error(
    right: Callable[..., list[Effect]], stage: Stage, held: _Held | None, error: str
) -> list[Effect]:
    effects = right(stage, held, error)
    if held is not None and (key := held.inlet.key(held.arrival)) in stage._held:
        stage._let_go(key, held)
    return effects


@plant(
    "pipe-dedup-swallows-resend",
    "a copy of what has not come through yet is taken for a duplicate and confirmed",
    (Stage, "_again"),
    caught_by="pipes",
)
def _dedup_swallows_resend(
    right: Callable[..., list[Effect]], stage: Stage, held: _Held, arrival: Arrival, now: float
) -> list[Effect]:
    return [Send(arrival[0], Confirm((arrival[1].delivery,)))]
