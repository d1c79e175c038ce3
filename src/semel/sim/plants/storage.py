"""Known mistakes of the storage pipe: each breaks one promise of a client of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semel.kernel.effects import Effect, Send
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind
from semel.kernel.resend import Transmit
from semel.pipes.services.consumer import Consumer
from semel.pipes.services.publisher import Publisher, _Entry
from semel.pipes.services.storage import SaveIndex
from semel.sim.plants.registry import plant


@plant(
    "storage-constant-request",
    "every push has the same request id, so the next one takes the place of an unanswered one",
    (Publisher, "_take"),
    caught_by="pipes",
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
    caught_by="pipes",
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
    "storage-index-past-error",
    "a handler's error is noted, and the index moves on all the same",
    (Consumer, "_failed"),
    caught_by="pipes",
)
def _index_past_error(right: Callable[..., list[Effect]], consumer: Consumer, error: str, now: float) -> list[Effect]:
    return consumer._passes((), Kind.HANDLED, now)


@plant(
    "storage-save-not-confirmed",
    "the index is sent once, and taken for saved when it has been sent",
    (Consumer, "_save"),
    caught_by="pipes",
)
def _save_not_confirmed(right: Callable[..., list[Effect]], consumer: Consumer, now: float) -> list[Effect]:
    place, config = consumer._place, consumer.config
    if place is None or place == consumer._saved:
        return []
    consumer._saved = place
    save = SaveIndex(consumer._next_request(), config.client, config.stream, place.epoch, place.offset)
    return [Send(config.service, save)]
