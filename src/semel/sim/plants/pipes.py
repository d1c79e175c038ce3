"""Known mistakes of pipes: each breaks one promise of a worker on a path, or of a client of the storage pipe.

Two of the kernel's hold for pipes as well: `index-dedup-off-by-one` and `resend-reordered`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from semel.kernel.effects import Effect, Send
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.kernel.ledger import Kind
from semel.kernel.resend import Transmit
from semel.pipes.language.options import ConfirmOn, DedupBy
from semel.pipes.services.consumer import Consumer
from semel.pipes.services.publisher import Publisher, _Entry
from semel.pipes.services.storage import SaveIndex
from semel.pipes.workers.inlet import Arrival, Inlet
from semel.pipes.workers.outlet import Outlet
from semel.pipes.workers.stage import Stage, _Held
from semel.sim.plants.registry import plant as any_plant

plant = partial(any_plant, caught_by="pipes")

# -- resending


_NEWEST = "pipe-newest-confirm-only"
_NEWEST_TEXT = "every attempt has a reference of its own and only the newest one's confirm counts"


@plant(_NEWEST, _NEWEST_TEXT, (Outlet, "messages"))
def _name_attempts(
    right: Callable[..., list[HopMessage]], outlet: Outlet, transmits: Sequence[Any]
) -> list[HopMessage]:
    return [
        msgspec.structs.replace(message, delivery=f"{message.delivery}#{message.attempt}")
        for message in right(outlet, transmits)
    ]


@plant(_NEWEST, _NEWEST_TEXT, (Outlet, "confirm"))
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
)
def _dedup_swallows_resend(
    right: Callable[..., list[Effect]], stage: Stage, held: _Held, arrival: Arrival, now: float
) -> list[Effect]:
    return [Send(arrival[0], Confirm((arrival[1].delivery,)))]


# -- the storage pipe: what a client of the store is promised


@plant(
    "storage-constant-request",
    "every push has the same request id, so the next one takes the place of an unanswered one",
    (Publisher, "_take"),
)
def _constant_request(
    right: Callable[..., list[Effect]],
    publisher: Publisher,
    envelope: Envelope,
    owed: tuple[str, str] | None,
    now: float,
) -> list[Effect]:
    request = f"{publisher._run}/1"
    if publisher._entry(envelope) is None:
        publisher._entries.pop(request, None)
        publisher._requests.clear()
        publisher._pushes._flights.pop(request, None)
        publisher._pushes._queue.pop(request, None)
        publisher._last = 0
    return right(publisher, envelope, owed, now)


@plant(
    "storage-reordered-after-timeout",
    "a push that times out goes to the end of the queue, and the next one is sent first",
    (Publisher, "on_timer"),
)
def _reordered_after_timeout(
    right: Callable[..., Sequence[Effect]], publisher: Publisher, now: float
) -> Sequence[Effect]:
    pushes = publisher._pushes
    late = [each for each in pushes.on_timer(now) if isinstance(each, Transmit)]
    for transmit in late:
        pushes._flights.pop(transmit.id)
        pushes._queue[transmit.id] = transmit.item
    again: list[Transmit[_Entry]] = pushes._fill(now)
    return [*publisher._sends(again), *right(publisher, now)]


@plant(
    "storage-index-past-error", "a handler's error is noted, and the index moves on all the same", (Consumer, "_failed")
)
def _index_past_error(right: Callable[..., list[Effect]], consumer: Consumer, error: str, now: float) -> list[Effect]:
    return consumer._passes((), Kind.HANDLED, now)


@plant(
    "storage-save-not-confirmed",
    "the index is sent once, and taken for saved when it has been sent",
    (Consumer, "_save"),
)
def _save_not_confirmed(right: Callable[..., list[Effect]], consumer: Consumer, now: float) -> list[Effect]:
    place, config = consumer._place, consumer.config
    if place is None or place == consumer._saved:
        return []
    consumer._saved = place
    save = SaveIndex(consumer._next_request(), config.client, config.stream, place.epoch, place.offset)
    return [Send(config.service, save)]
