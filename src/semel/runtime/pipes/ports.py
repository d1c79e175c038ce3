"""How a worker reaches the others: gathers what it sends until the tick ends, and cuts it into parcels."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.pipes.workers.build import APP
from semel.pipes.workers.route import LOCAL, TRANSPORT, Parcel
from semel.runtime.transports.base import Inbox

log = logging.getLogger(__name__)

PARCEL_BODIES_MAX = 256
PARCEL_BYTES_MAX = 64 * 1024
BODY_BYTES = 128
"""What a message weighs beside its text and its data."""
LEARNED_MAX = 1_000


class Takes(Enum):
    """How a machine wants to get what comes for it: the parcel, what is in it one by one, or the parcel with the
    address on it that was meant."""

    PARCELS = "parcels"
    BODIES = "bodies"
    ADDRESSED = "addressed"


class Post(Protocol):
    """What a port asks of its node."""

    parcel_bodies: int
    ports_to_flush: list[Port]

    def post(self, parcel: Parcel) -> None: ...

    def answered(self, worker: str, ids: Sequence[str]) -> None: ...


@dataclass(slots=True)
class _Box:
    """What goes to one peer with the next flush."""

    bodies: list[Any] = field(default_factory=list)
    confirms: list[str] = field(default_factory=list)


class Port:
    """How one worker reaches the others. To the performer it is the worker's transport."""

    def __init__(self, node: Post, worker: str, takes: Takes = Takes.PARCELS) -> None:
        self.worker = worker
        self.takes = takes
        self.routes: dict[str, tuple[str, ...]] = {}
        self._node = node
        self._boxes: dict[str, _Box] = {}
        self._parcels: list[Parcel] = []
        self._learned: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def learn(self, peer: str, back: tuple[str, ...]) -> None:
        """The way by which a peer last sent is the way to answer it, unless a route to it was configured."""
        if peer in self.routes:
            return
        self._learned[peer] = back
        self._learned.move_to_end(peer)
        if len(self._learned) > LEARNED_MAX:
            self._learned.popitem(last=False)

    def may_come(self, sender: str, node: str) -> bool:
        """Whether that node may speak for this sender: not for the application, nor for a worker that it does not
        lead to."""
        if sender == APP:
            return False
        route = self.routes.get(sender)
        return route is None or first_node(route) == node

    def send(self, peer: str, message: Any) -> bool:
        if type(message) is Parcel:
            self._parcels.append(message)
            self._node.ports_to_flush.append(self)
            return True
        box = self._boxes.get(peer)
        if box is None:
            box = self._boxes[peer] = _Box()
            self._node.ports_to_flush.append(self)
        if type(message) is Confirm:
            box.confirms.extend(message.deliveries)
        else:
            box.bodies.append(message)
        return True

    def flush_boxes(self) -> None:
        parcels, self._parcels = self._parcels, []
        for parcel in parcels:
            self._node.post(parcel)
        boxes, self._boxes = self._boxes, {}
        for peer, box in boxes.items():
            if peer == APP:
                self._node.answered(self.worker, box.confirms)
                continue
            if box.confirms:
                box.bodies.extend(confirms_in_parts(box.confirms))
            self._post(peer, box.bodies)

    def _post(self, peer: str, bodies: list[Any]) -> None:
        onward = self.routes.get(peer) or self._learned.get(peer)
        if onward is None:
            log.warning("%s knows no route to %s", self.worker, peer)
            return
        back = (f"{LOCAL}#{self.worker}",)
        for part in parts(bodies, self._node.parcel_bodies):
            self._node.post(Parcel(onward, back, part))

    # the performer's transport: what it asks for is done by the node

    def bind(self, inbox: Inbox) -> None: ...

    def flush(self) -> None: ...

    def pause(self) -> None: ...

    async def close(self) -> None: ...


def first_node(route: Sequence[str]) -> str | None:
    """The node to which a route leads first; None when it stays here."""
    sign = f"{TRANSPORT}#"
    return next((address.removeprefix(sign) for address in route if address.startswith(sign)), None)


def confirms_in_parts(deliveries: Sequence[str]) -> Iterator[Confirm]:
    """Cut so that each fits well into a frame."""
    part: list[str] = []
    size = 0
    for delivery in deliveries:
        if part and size + len(delivery) > PARCEL_BYTES_MAX // 2:
            yield Confirm(tuple(part))
            part, size = [], 0
        part.append(delivery)
        size += len(delivery) + 4
    yield Confirm(tuple(part))


def parts(bodies: list[Any], most: int) -> Iterator[tuple[Any, ...]]:
    """Cut so that each part fits well into a frame, also when every character in it takes four bytes."""
    part: list[Any] = []
    size = 0
    for body in bodies:
        weight = _weight(body)
        if part and (size + weight > PARCEL_BYTES_MAX or len(part) >= most):
            yield tuple(part)
            part, size = [], 0
        part.append(body)
        size += weight
    if part:
        yield tuple(part)


def _weight(body: Any) -> int:
    if type(body) is HopMessage:
        return len(body.delivery) + _weight(body.envelope)
    if type(body) is Envelope:
        size = BODY_BYTES + len(body.id) + len(body.source) + len(body.type) + len(body.data)
        if body.headers or body.subject or body.session or body.datacontenttype:
            texts = [body.session or "", body.subject or "", body.datacontenttype or ""]
            size += sum(map(len, [*texts, *body.headers, *body.headers.values()]))
        return size
    if type(body) is Confirm:
        return BODY_BYTES + sum(map(len, body.deliveries))
    return BODY_BYTES
