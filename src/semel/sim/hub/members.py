"""Clients of a hub that do what the protocol asks, and remember what they were promised."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.pubsub.hub.sockets import ClosePeer
from semel.pubsub.protocol.messages import (
    Ack,
    CloseCode,
    Connected,
    ErrorName,
    GroupMessage,
    JoinGroup,
    LeaveGroup,
    SendToGroup,
)
from semel.sim.hub.node import text

if TYPE_CHECKING:
    from semel.sim.hub.storm import HubStorm, StormNode

GROUPS = ("red", "blue")
LARGE = " " * 300_000

Asked = JoinGroup | LeaveGroup | SendToGroup


class Stay:
    """What is written after `since` and before `until` is promised. After `out` nothing may come, up to `again`."""

    def __init__(self, group: str, since: float) -> None:
        self.group, self.since = group, since
        self.until = self.out = self.again = math.inf


class StormClient:
    """Sends again under the same ackId, drops what it has, acknowledges what it got."""

    def __init__(self, storm: HubStorm, name: str) -> None:
        self.storm, self.name, self.connection = storm, name, ""
        self.node: StormNode | None = None
        self.socket = ""
        self.is_connected = False
        self.last = self.last_on_socket = 0
        self.got: list[tuple[int, str]] = []
        self.unacked: dict[int, Asked] = {}
        self.stays: list[Stay] = []
        self.refusals: list[str] = []
        self._ack_id = 0
        for group in GROUPS:
            self._ask(lambda id, group=group: JoinGroup(group, id))  # type: ignore[misc]

    def _ask(self, make: Callable[[int], Asked]) -> None:
        self._ack_id += 1
        request = self.unacked[self._ack_id] = make(self._ack_id)
        if self.node is not None and self.is_connected:
            self.node.send(self.socket, request)

    def publish(self, group: str, is_large: bool = False, no_echo: bool = False) -> None:
        body = f"{self.name} {self._ack_id + 1}{' quiet' if no_echo else ''}"
        self._ask(lambda id: SendToGroup(group, text(body + LARGE * is_large), id, no_echo))

    def is_own_quiet(self, body: str) -> bool:
        """Published by itself, and not to come back."""
        return body.startswith(f"{self.name} ") and body.endswith(" quiet")

    def change_group(self, group: str) -> None:
        """Leave it, or come in again. One change at a time."""
        if any(isinstance(ask, JoinGroup | LeaveGroup) and ask.group == group for ask in self.unacked.values()):
            return
        stay = self._stay(group)
        if stay is not None and stay.until == math.inf:
            stay.until = self.storm.books.last_offset
            self._ask(lambda id: LeaveGroup(group, id))
        elif stay is not None:
            stay.again = self.storm.books.last_offset
            self._ask(lambda id: JoinGroup(group, id))

    def _stay(self, group: str) -> Stay | None:
        return next((stay for stay in reversed(self.stays) if stay.group == group), None)

    def connect(self, node: StormNode) -> None:
        self.node, self.socket, self.last_on_socket = node, self.storm.fresh_socket(self), 0
        if not self.is_connected:
            # who never got a session has no token for it
            self.connection = f"session of {self.socket}"
            node.open(self.socket, self.connection)
            return
        node.resume(self.socket, self.connection)
        self.send_again()

    def send_again(self) -> None:
        if self.node is not None and self.is_connected:
            for request in list(self.unacked.values()):
                self.node.send(self.socket, request)

    def drop(self) -> None:
        if self.node is not None and self.node in self.node.nodes:
            self.node.drop(self.socket)
        self.node = None

    def receive(self) -> None:
        if self.node is None:
            return
        for said in self.node.take(self.socket):
            match said:
                case Connected():
                    self.is_connected = True
                    self.send_again()
                case Ack(ack_id=id, error=error):
                    if error is None or error.name == ErrorName.DUPLICATE:
                        self._acked(self.unacked.pop(id, None))
                case GroupMessage(sequence_id=offset, data=data):
                    assert offset is not None
                    assert data is not None
                    self._message(offset, data.body.decode().rstrip())
                case ClosePeer(code=code, reason=reason):
                    if code is CloseCode.POLICY:
                        self.refusals.append(reason)
                    self.node = None
                    return

    def _acked(self, request: Asked | None) -> None:
        if isinstance(request, JoinGroup):
            self.stays.append(Stay(request.group, self.storm.books.last_offset))
        elif isinstance(request, LeaveGroup):
            stay = self._stay(request.group)
            assert stay is not None
            stay.out = self.storm.books.last_offset

    def _message(self, offset: int, body: str) -> None:
        if offset <= self.last_on_socket:
            self.storm.world.violated(f"{self.name}: {offset} came after {self.last_on_socket} on one socket")
        self.last_on_socket = offset
        if offset > self.last:
            self.last = offset
            self.got.append((offset, body))
            self.storm.world.clock.note(f"{self.name} got {offset}")

    def acknowledge(self) -> None:
        if self.node is not None and self.last:
            self.node.ack(self.socket, self.last)
