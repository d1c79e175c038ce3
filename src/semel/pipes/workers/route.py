"""Routes and addresses, as in the source: a message knows the way that lies before it and the way back.

    0#B  or  B      the worker B on this node
    1#berlin        whatever node is connected under the name berlin

A route names connections that somebody configured. It never makes one: a stranger's message cannot send us to an
address of its own choosing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from semel.errors import InputError
from semel.kernel.text import check_id

LOCAL, TRANSPORT = "0", "1"
ROUTE_MAX = 32
"""Addresses in a route: more than this is a loop or an attack."""


@dataclass(frozen=True, slots=True)
class Address:
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}#{self.name}"


def parse_address(text: str) -> Address:
    kind, sign, name = text.partition("#")
    if not sign:
        kind, name = LOCAL, text
    if kind not in (LOCAL, TRANSPORT):
        raise InputError(f"address {text!r} is of an unknown kind", fix="use 0#worker or 1#node")
    check_id("address", name)
    return Address(kind, name)


class Parcel(msgspec.Struct, frozen=True, tag="parcel"):
    """Messages on their way together. `back` leads to the worker that sent them, nearest address first."""

    onward: tuple[str, ...]
    back: tuple[str, ...]
    bodies: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(self.onward) + len(self.back) > ROUTE_MAX:
            raise InputError(f"a route of over {ROUTE_MAX} addresses", fix="look for a loop in the route")

    @property
    def sender(self) -> str:
        """The worker that sent it."""
        return parse_address(self.back[-1]).name if self.back else ""


@dataclass(frozen=True, slots=True)
class ToWorker:
    """It has arrived: this worker takes it."""

    worker: str
    parcel: Parcel


@dataclass(frozen=True, slots=True)
class ToNode:
    """It goes on over the connection of that name."""

    node: str
    parcel: Parcel


@dataclass(frozen=True, slots=True)
class NoRoute:
    """Nobody here by that name. `is_away`: a node that is not connected now, and may well come back."""

    reason: str
    is_away: bool = False


class Router:
    """Says where a parcel goes next. Workers take what is theirs; forwarders send on and add themselves to the way
    back, so that an answer finds home."""

    def __init__(self, workers: Collection[str], forwarders: Collection[str], nodes: Collection[str]) -> None:
        self.workers = workers
        self.forwarders = forwarders
        self.nodes = nodes

    def route(self, parcel: Parcel) -> ToWorker | ToNode | NoRoute:
        while parcel.onward:
            address = parse_address(parcel.onward[0])
            rest = parcel.onward[1:]
            if address.kind == TRANSPORT:
                onward = Parcel(rest, parcel.back, parcel.bodies)
                return ToNode(address.name, onward) if address.name in self.nodes else _astray(address)
            if address.name in self.workers:
                return ToWorker(address.name, Parcel(rest, parcel.back, parcel.bodies))
            if address.name not in self.forwarders:
                return _astray(address)
            parcel = Parcel(rest, (str(address), *parcel.back), parcel.bodies)
        return NoRoute("the route ends before a worker takes the message")


def arrived_from(node: str, parcel: Parcel) -> Parcel:
    """A parcel off the wire, with the connection that it came by on its way back."""
    return Parcel(parcel.onward, (f"{TRANSPORT}#{node}", *parcel.back), parcel.bodies)


def _astray(address: Address) -> NoRoute:
    if address.kind == TRANSPORT:
        return NoRoute(f"there is no connected node named {address.name}", is_away=True)
    return NoRoute(f"there is no worker named {address.name}")
