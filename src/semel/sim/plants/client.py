"""Known mistakes of a client, and of a hub that its clients would notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from semel.pubsub.client import streams
from semel.pubsub.client.acks import Pending, Requests
from semel.pubsub.client.inbox import SequenceAcks
from semel.pubsub.client.states import ClientGroupStates, WatchedGroup
from semel.pubsub.client.streams import Window
from semel.pubsub.hub import clients
from semel.pubsub.hub.in_order import InOrder
from semel.pubsub.protocol.messages import GroupStateItem, SendToGroup
from semel.sim.plants.registry import plant as any_plant

plant = partial(any_plant, caught_by="client")

Pendings = list[Pending]

# -- sending again


@plant(
    "client-new-ack-ids",
    "a client sends a request again under a new ackId",
    (Requests, "begin_socket"),
    (Requests, "overdue"),
)
def _new_ack_ids(right: Callable[..., Pendings], requests: Requests, now: float) -> Pendings:
    again = right(requests, now)
    for pending in again:
        del requests._by_ack_id[pending.ack_id]  # type: ignore[arg-type]
        requests._flights.confirm_all([str(pending.ack_id)])
        requests._number(pending, now)
        requests._flights.offer(str(pending.ack_id), pending, now)
    return again


@plant(
    "client-repeats-after-loss",
    "a message without an id is sent again in a new session, though the one before may have taken it",
    (Pending, "is_repeatable"),
)
def _repeats_after_loss(right: Callable[..., bool], pending: Pending, first_remembered: Any) -> bool:
    return True


@plant(
    "client-resends-only-refused",
    "only what was refused, or is overdue, goes out again, and not what else has no answer",
    (Requests, "_messages_again"),
)
def _resends_only_refused(right: Callable[..., Pendings], requests: Requests, armed: Pendings, now: float) -> Pendings:
    due = requests._refused | {pending.ack_id for pending in armed}
    return [pending for pending in right(requests, armed, now) if pending.ack_id in due]


@plant(
    "client-resends-up-to-last-refused",
    "all up to the last that was refused goes out again, but those behind it are on their way to be refused too",
    (Requests, "_messages_again"),
)
def _resends_up_to_last_refused(
    right: Callable[..., Pendings], requests: Requests, armed: Pendings, now: float
) -> Pendings:
    last = max(requests._refused | {pending.ack_id or 0 for pending in armed})
    return [pending for pending in right(requests, armed, now) if (pending.ack_id or 0) <= last]


@plant(
    "client-forgets-given-up",
    "a message that was given up is not sent a second time for those that wait behind it",
    (Requests, "_is_needed_twice"),
)
def _forgets_given_up(right: Callable[..., bool], requests: Requests, pending: Pending) -> bool:
    return False


@plant(
    "client-repeats-at-once",
    "after one that was given up messages are sent twice, although others before them have no answer",
    (Requests, "_is_needed_twice"),
)
def _repeats_at_once(right: Callable[..., bool], requests: Requests, pending: Pending) -> bool:
    return requests._gave_up and isinstance(pending.request, SendToGroup)


# -- receiving


@plant("client-no-memory", "a client takes whatever comes for new", (SequenceAcks, "arrive"))
def _no_memory(right: Callable[..., bool], acks: SequenceAcks, number: int, size: int, now: float) -> bool:
    right(acks, number, size, now)
    return True


@plant(
    "client-early-acks",
    "a client acknowledges a message when it comes, and not when the application has had it",
    (SequenceAcks, "arrive"),
)
def _early_acks(right: Callable[..., bool], acks: SequenceAcks, number: int, size: int, now: float) -> bool:
    is_new = right(acks, number, size, now)
    acks.deliver(number, size, now)
    return is_new


# -- streams and states


@plant("client-parts-not-resent", "parts of a stream that went out count as arrived", (Window, "go_back"))
def _parts_not_resent(right: Callable[..., None], window: Window) -> None: ...


class _AlwaysEmpty(Window):
    """For whoever asks whether something in it is unacknowledged."""

    def __bool__(self) -> bool:
        return False


@plant(
    "client-end-overtakes",
    "the end of a stream goes out although a part before it was refused, as Microsoft's JavaScript client does it",
    (streams, "Window"),
)
def _end_overtakes(right: type[Window], *args: int) -> Window:
    return _AlwaysEmpty(*args)


@plant("client-snapshot-adds", "a watcher keeps what a snapshot leaves out", (WatchedGroup, "take_snapshot"))
def _snapshot_adds(
    right: Callable[..., list[GroupStateItem]], view: WatchedGroup, items: tuple[GroupStateItem, ...]
) -> list[GroupStateItem]:
    view.has_snapshot = True
    return view.take_update(items)


@plant(
    "client-state-not-restored",
    "a new session does not say again what the one before it said of itself",
    (ClientGroupStates, "restored"),
)
def _state_not_restored(right: Callable[..., Iterator[Any]], states: ClientGroupStates) -> Iterator[Any]:
    return iter(())


# -- the hub


@plant("hub-takes-behind-refused", "a hub takes what comes behind a message that it has refused", (InOrder, "hold"))
def _takes_behind_refused(right: Callable[..., None], in_order: InOrder) -> None: ...


_IDS = "hub-forgets-ids"
_IDS_TEXT = "a hub does not know the ids of messages that it has taken"


@plant(_IDS, _IDS_TEXT, (clients, "id_identity"))
def _no_identity(right: Callable[..., Any], id: str) -> None: ...


@plant(_IDS, _IDS_TEXT, (clients, "digest_of"))
def _no_digest(right: Callable[..., Any], *content: Any) -> None: ...
